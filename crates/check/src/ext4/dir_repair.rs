//! Repairs of directories: damaged blocks, indexes, holes, new entries.

use blockwright_ondisk::ext4::dir::{self, DirBlock, DirEntry, DirFormat};
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, FileKind, Ino, Inode, htree};

use super::CheckError;
use super::context::Checker;
use super::dir_rebuild::Name;
use super::directories::DirPass;
use super::htree::Role;
use super::state::DirInfo;

fn put_rec_len(bytes: &mut [u8], at: usize, rec_len: usize, format: &DirFormat) {
    if let Some(stored) = dir::encode_rec_len(rec_len, format.block_size)
        && let Some(dest) = bytes.get_mut(at + 4..at + 6)
    {
        dest.copy_from_slice(&stored.to_le_bytes());
    }
}

/// Whether entries follow each other from `at` to exactly the end, one of them in use.
fn chain_ends(bytes: &[u8], mut at: usize, format: DirFormat) -> bool {
    let block = DirBlock::entries_of(bytes, format);
    let mut used = false;
    while at < bytes.len() {
        match block.entry_at(at) {
            Ok(entry) => {
                used |= entry.is_used();
                at += entry.rec_len;
            }
            Err(_) => return false,
        }
    }
    used && at == bytes.len()
}

impl Checker {
    /// Gives an entry all that follows it, up to `end`.
    pub fn join_entries(bytes: &mut [u8], at: usize, end: usize, format: &DirFormat) {
        put_rec_len(bytes, at, end - at, format);
    }

    /// Makes what lies between a damaged entry and the next good one a single entry: the damaged
    /// one with a length that fits, if that makes it good, or else an unused one.
    pub fn skip_damage(bytes: &mut [u8], at: usize, previous: Option<usize>, format: &DirFormat) {
        let len = bytes.len();
        if len - at < dir::MIN_REC_LEN {
            // Too small for an entry: the one before takes it.
            match previous {
                Some(before) => put_rec_len(bytes, before, len - before, format),
                None => bytes[at..].fill(0),
            }
            return;
        }
        let next = (at + dir::MIN_REC_LEN..len)
            .step_by(4)
            .find(|n| chain_ends(bytes, *n, *format))
            .unwrap_or(len);
        put_rec_len(bytes, at, next - at, format);
        if DirBlock::entries_of(bytes, *format).entry_at(at).is_err() {
            bytes[at..at + 4].fill(0);
            bytes[at + 6..at + 8].fill(0);
        }
    }

    /// Makes room for the checksum at the end of a leaf. Where the entries end afterwards.
    pub fn make_tail(&mut self, pass: &DirPass, bytes: &mut [u8]) -> usize {
        let end = bytes.len() - dir::TAIL_SIZE;
        let mut at = 0;
        while at < bytes.len() {
            let Ok(entry) = DirBlock::entries_of(bytes, pass.format).entry_at(at) else {
                break;
            };
            let rec_len = entry.rec_len;
            if at + rec_len > end {
                let needed = match entry.is_used() {
                    true => pass.format.entry_len(entry.name),
                    false => dir::MIN_REC_LEN,
                };
                if at < end && at + needed <= end {
                    put_rec_len(bytes, at, end - at, &pass.format);
                }
                break;
            }
            at += rec_len;
        }
        let _ = dir::write_tail(bytes, &pass.format);
        end
    }

    /// Turns an indexed directory into a linear one: names stay where they are. When all of them are
    /// known to be good, it gets a new index.
    pub fn remove_index(&mut self, pass: &DirPass) -> Result<(), CheckError> {
        let flag = InodeFlags::INDEX.bits();
        self.edit_inode(pass.dir.ino, |edit| edit.flags(flag, 0))?;
        self.scan.restart = true;
        self.reindex.insert(pass.dir.ino.0);
        let nodes: Vec<u32> = pass
            .index
            .iter()
            .flat_map(|i| i.roles.iter())
            .filter(|(_, role)| matches!(role, Role::Index(htree::DxPlace::Node)))
            .map(|(logical, _)| *logical)
            .collect();
        for logical in nodes {
            if let Some(place) = self.dir_block(&pass.dir, logical) {
                let mut bytes = self.store.read(place, "directory")?;
                // A "node" that holds names was none.
                let fake = bytes[..4] == [0; 4];
                if fake && dir::write_empty_leaf(&mut bytes, &pass.format).is_some() {
                    self.store_dir_block(pass, place, bytes, false);
                }
            }
        }
        let Some(place) = self.dir_block(&pass.dir, 0) else {
            return Ok(());
        };
        let mut bytes = self.store.read(place, "directory")?;
        let stored = u16::from_le_bytes([bytes[16], bytes[17]]);
        let rec_len = dir::decode_rec_len(stored, pass.format.block_size);
        if rec_len == self.geo.block_len() - 12 {
            // The entry ".." covers the index.
            bytes[24..].fill(0);
            put_rec_len(&mut bytes, 12, pass.format.leaf_space() - 12, &pass.format);
            let _ = dir::write_tail(&mut bytes, &pass.format);
            self.store_dir_block(pass, place, bytes, false);
        }
        Ok(())
    }

    /// Moves the blocks of a directory together.
    pub fn fill_holes(&mut self, ino: Ino) -> Result<(), CheckError> {
        self.scan.compact.insert(ino.0);
        self.repair_mapping(ino)?;
        let flag = InodeFlags::INDEX.bits();
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(());
        };
        if inode.flags.contains(InodeFlags::INDEX) {
            self.edit_inode(ino, |edit| edit.flags(flag, 0))?;
            self.reindex.insert(ino.0);
        }
        Ok(())
    }

    /// Adds a name to a directory. Whether there was room.
    pub fn add_entry(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<bool, CheckError> {
        let Some(inode) = self.read_inode(dir)? else {
            return Ok(false);
        };
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            if self.add_inline_entry(dir, name, ino, kind)? {
                return Ok(true);
            }
            let more = Name {
                name: name.to_vec(),
                ino,
                kind,
                stored: None,
            };
            return self.move_names_to_blocks(dir, more);
        }
        let format = DirFormat::of(&self.geo, inode.flags);
        let seed = self.geo.inode_seed(dir, inode.generation);
        let blocks = self.blocks_of(dir, &inode)?;
        for place in &blocks {
            let mut bytes = self.store.read(*place, "directory")?;
            let end = format.leaf_space();
            if insert(&mut bytes[..end], name, ino, kind, &format) {
                if dir::set_leaf_checksum(&mut bytes, &format, seed).is_err() {
                    continue;
                }
                self.write(*place, bytes);
                return Ok(true);
            }
        }
        let Some(new) = self
            .scan
            .used
            .find_free(blocks.last().copied().unwrap_or_default())
        else {
            return Ok(false);
        };
        self.scan
            .used
            .insert_run(new, u64::from(self.geo.cluster_ratio), None);
        let mut bytes = vec![0; self.geo.block_len()];
        if dir::write_empty_leaf(&mut bytes, &format).is_none() {
            return Ok(false);
        }
        let end = format.leaf_space();
        if !insert(&mut bytes[..end], name, ino, kind, &format)
            || dir::set_leaf_checksum(&mut bytes, &format, seed).is_err()
        {
            return Ok(false);
        }
        self.write(new, bytes);
        self.scan.append.insert(dir.0, new);
        self.repair_mapping(dir)?;
        Ok(true)
    }

    /// The device blocks of a directory, in order; at most what a directory of 2 GiB has.
    pub fn blocks_of(&self, dir: Ino, inode: &Inode) -> Result<Vec<BlockNo>, CheckError> {
        let map = self.mapping_of(dir, inode)?;
        Ok(map
            .pieces
            .iter()
            .flat_map(|p| (0..u64::from(p.len)).map(|n| BlockNo(p.physical.0 + n)))
            .take(1 << 21)
            .collect())
    }

    /// Adds a name to an inline directory, which stays one. Whether there was room.
    pub fn add_inline_entry(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<bool, CheckError> {
        let (Some(inode), Some(mut raw)) = (self.read_inode(dir)?, self.read_raw_inode(dir)?)
        else {
            return Ok(false);
        };
        let format = DirFormat::of(&self.geo, inode.flags);
        for part in self.inline_parts(&inode, &raw) {
            if insert(&mut raw[part], name, ino, kind, &format) {
                self.write_raw_inode(dir, raw)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes the entry of an inode out of a directory.
    pub fn remove_entry(&mut self, dir: Ino, ino: Ino) -> Result<(), CheckError> {
        self.remove_where(dir, |e| e.ino == ino && !e.is_dot_or_dotdot())
    }

    /// Takes a name out of a directory.
    pub fn remove_name(&mut self, dir: Ino, name: &[u8]) -> Result<(), CheckError> {
        self.remove_where(dir, |e| e.is_used() && e.name == name)
    }

    fn remove_where(
        &mut self,
        dir: Ino,
        which: impl Fn(&DirEntry<'_>) -> bool,
    ) -> Result<(), CheckError> {
        let (Some(inode), Some(mut raw)) = (self.read_inode(dir)?, self.read_raw_inode(dir)?)
        else {
            return Ok(());
        };
        let format = DirFormat::of(&self.geo, inode.flags);
        let position = |bytes: &[u8]| {
            DirBlock::entries_of(bytes, format)
                .iter()
                .map_while(Result::ok)
                .find(|e| which(e))
                .map(|e| e.offset)
        };
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            for range in self.inline_parts(&inode, &raw) {
                if let Some(at) = position(&raw[range.clone()]) {
                    raw[range.start + at..][..4].fill(0);
                    return self.write_raw_inode(dir, raw);
                }
            }
            return Ok(());
        }
        let seed = self.geo.inode_seed(dir, inode.generation);
        for place in self.blocks_of(dir, &inode)? {
            let mut bytes = self.store.read(place, "directory")?;
            if let Some(at) = position(&bytes[..format.leaf_space()]) {
                bytes[at..at + 4].fill(0);
                if blockwright_ondisk::ext4::dir::set_leaf_checksum(&mut bytes, &format, seed)
                    .is_ok()
                {
                    self.write(place, bytes);
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes ".." of a directory name another one.
    pub fn set_dotdot(&mut self, dir: &DirInfo, parent: Ino) -> Result<(), CheckError> {
        if dir.inline {
            return self.edit_inode(dir.ino, |edit| edit.put32(0x28, parent.0));
        }
        let Some(place) = self.dir_block(dir, 0) else {
            return Ok(());
        };
        let mut bytes = self.store.read(place, "directory")?;
        if bytes[20..22] != *b".." || bytes[18] != 2 {
            return Ok(());
        }
        bytes[12..16].copy_from_slice(&parent.0.to_le_bytes());
        let format = dir.format(&self.geo);
        let seed = self.geo.inode_seed(dir.ino, dir.generation);
        let sum = if dir.index {
            htree::set_checksum(&mut bytes, htree::DxPlace::Root, &format, seed)
        } else {
            dir::set_leaf_checksum(&mut bytes, &format, seed)
        };
        if sum.is_ok() {
            self.write(place, bytes);
        }
        Ok(())
    }
}

/// Puts an entry where one fits. Whether one did.
fn insert(bytes: &mut [u8], name: &[u8], ino: Ino, kind: FileKind, format: &DirFormat) -> bool {
    let needed = format.min_rec_len(name.len());
    let slot = DirBlock::entries_of(bytes, *format)
        .iter()
        .map_while(Result::ok)
        .find_map(|e| {
            let own = if e.is_used() {
                format.entry_len(e.name)
            } else {
                0
            };
            (e.rec_len >= own + needed).then_some((e.offset, own, e.rec_len))
        });
    let Some((at, own, rec_len)) = slot else {
        return false;
    };
    if own > 0 {
        put_rec_len(bytes, at, own, format);
    }
    dir::write_entry(
        bytes,
        at + own,
        rec_len - own,
        ino,
        Some(kind),
        name,
        format,
    )
    .is_some()
}
