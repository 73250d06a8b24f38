//! Quota files: their structure, and whether what they say is used is.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use blockwright_ondisk::ext4::quota::{
    BLOCK_SIZE, ENTRIES_PER_BLOCK, GROUP_MAGIC, PROJECT_MAGIC, REFS_PER_BLOCK, RawQuotaBlockHeader,
    RawQuotaEntry, RawQuotaHeader, RawQuotaInfo, TREE_DEPTH, TREE_ROOT, USER_MAGIC, VERSION,
};
use blockwright_ondisk::ext4::quota_layout::{Grace, QuotaKind, quota_file, usage_entry};
use blockwright_ondisk::ext4::{BlockNo, Incompat, Ino, Inode, InodeFlags, RoCompat};
use zerocopy::{FromBytes, IntoBytes};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::mapping::Collect;
use super::state::Usage;

const KINDS: [(&str, u32); 3] = [
    ("user", USER_MAGIC),
    ("group", GROUP_MAGIC),
    ("project", PROJECT_MAGIC),
];
/// Larger quota files are none to e2fsck.
const SIZE_MAX: u64 = 1 << 31;
/// Blocks of a quota file that are read at most: as many as 4 million owners take.
const BLOCKS_MAX: usize = 1 << 19;

/// A quota file in memory, read block by block.
struct QuotaFile {
    ino: Ino,
    /// Device block of each file block, by position.
    blocks: BTreeMap<u64, BlockNo>,
    visited: BTreeSet<u32>,
    /// Entry of each id, and where it is: block of the file, byte offset.
    entries: BTreeMap<u32, (RawQuotaEntry, u32, usize)>,
    problem: Option<&'static str>,
    /// The size it should have, when that alone is wrong.
    right_size: Option<u64>,
    grace: Grace,
}

impl Checker {
    /// Adds an inode, and the inodes of its attributes' values, to its owners' usage.
    pub fn account(&mut self, inode: &Inode, sectors: u64, inodes: u64) {
        if !self.geo.features.has_ro_compat(RoCompat::QUOTA) {
            return;
        }
        for (map, id) in self
            .scan
            .usage
            .iter_mut()
            .zip([inode.uid, inode.gid, inode.projid])
        {
            let usage = map.entry(id).or_default();
            usage.bytes += sectors * 512;
            usage.inodes += inodes;
        }
    }

    /// Compares the quota files with the usage counted.
    pub fn check_quota(&mut self) -> Result<(), CheckError> {
        if !self.geo.features.has_ro_compat(RoCompat::QUOTA) {
            return Ok(());
        }
        let files = [
            self.sb.usr_quota_inum.get(),
            self.sb.grp_quota_inum.get(),
            self.sb.prj_quota_inum.get(),
        ];
        for (n, inum) in files.into_iter().enumerate() {
            if inum != 0 {
                self.check_quota_file(n, Ino(inum))?;
            }
        }
        Ok(())
    }

    fn check_quota_file(&mut self, which: usize, ino: Ino) -> Result<(), CheckError> {
        let (kind, magic) = KINDS[which];
        let usage = std::mem::take(&mut self.scan.usage[which]);
        let file = self.read_quota_file(ino, magic)?;
        if let Some(what) = file.problem {
            if self.problem(IssueKind::QuotaFile { kind, ino, what }) {
                if let Some(size) = file.right_size {
                    return self.edit_inode(ino, |edit| edit.size(size, true));
                }
                self.rebuild_quota(which, ino, &file, &usage)?;
            }
            return Ok(());
        }
        let ids: BTreeSet<u32> = usage.keys().chain(file.entries.keys()).copied().collect();
        let mut wrong = false;
        for id in ids {
            let counted = usage.get(&id).copied().unwrap_or_default();
            let found = file
                .entries
                .get(&id)
                .map_or(Usage::default(), |(e, _, _)| Usage {
                    bytes: e.curspace.get(),
                    inodes: e.curinodes.get(),
                });
            // A link with inline data is an inode like others to the kernel, and none to e2fsck.
            let links = self.scan.inline_links[which].get(&id).copied().unwrap_or(0);
            let by_e2fsck = Usage {
                inodes: counted.inodes.saturating_sub(links),
                ..counted
            };
            if counted == found || by_e2fsck == found {
                continue;
            }
            // Fast commits do not log quota files: bringing them up to date is part of the replay.
            let fix = if self.usage_is_old {
                self.repairing()
            } else {
                self.problem(IssueKind::QuotaUsage {
                    kind,
                    id,
                    found_bytes: found.bytes,
                    found_inodes: found.inodes,
                    bytes: counted.bytes,
                    inodes: counted.inodes,
                })
            };
            if fix {
                match file.entries.get(&id) {
                    Some((entry, block, at)) => {
                        self.store_usage(&file, *entry, (*block, *at), counted)?;
                    }
                    None => wrong = true,
                }
            }
        }
        if wrong {
            self.rebuild_quota(which, ino, &file, &usage)?;
        }
        Ok(())
    }

    fn store_usage(
        &mut self,
        file: &QuotaFile,
        mut entry: RawQuotaEntry,
        (block, at): (u32, usize),
        usage: Usage,
    ) -> Result<(), CheckError> {
        entry.curspace.set(usage.bytes);
        entry.curinodes.set(usage.inodes);
        let byte = u64::from(block) * BLOCK_SIZE as u64 + at as u64;
        let size = u64::from(self.geo.block_size);
        let Some(place) = file.blocks.get(&(byte / size)).copied() else {
            return Ok(());
        };
        let mut bytes = self.store.read(place, "quota file")?;
        let offset = (byte % size) as usize;
        if let Some(dest) = bytes.get_mut(offset..offset + size_of::<RawQuotaEntry>()) {
            dest.copy_from_slice(entry.as_bytes());
            self.write(place, bytes);
        }
        Ok(())
    }

    /// Writes a quota file anew: usage as counted, limits as far as they can be read.
    fn rebuild_quota(
        &mut self,
        which: usize,
        ino: Ino,
        old: &QuotaFile,
        usage: &HashMap<u32, Usage>,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let kind = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project][which];
        let mut entries: BTreeMap<u32, RawQuotaEntry> = old
            .entries
            .iter()
            .map(|(id, (e, _, _))| (*id, *e))
            .collect();
        for entry in entries.values_mut() {
            entry.curspace.set(0);
            entry.curinodes.set(0);
        }
        for (id, used) in usage {
            let entry = entries.entry(*id).or_insert_with(|| usage_entry(*id, 0, 0));
            entry.curspace.set(used.bytes);
            entry.curinodes.set(used.inodes);
        }
        let file = quota_file(kind, old.grace, &entries);
        let mut pieces = Collect::default();
        let mut near = old.blocks.values().next().copied().unwrap_or_default();
        let ratio = u64::from(geo.cluster_ratio);
        let blocks = (file.len() as u64).div_ceil(u64::from(geo.block_size));
        let mut logical = 0;
        while logical < blocks {
            let Some(block) = self.scan.used.find_free(near) else {
                return self.drop_quota(which, ino);
            };
            self.scan.used.insert_run(block, ratio, None);
            near = block;
            let len = ratio.min(blocks - logical) as u32;
            super::mapping::MapSink::piece(
                &mut pieces,
                super::mapping::Piece {
                    logical,
                    physical: block,
                    len,
                    unwritten: false,
                },
            );
            logical += u64::from(len);
        }
        let places = pieces
            .pieces
            .iter()
            .flat_map(|p| (0..u64::from(p.len)).map(|n| BlockNo(p.physical.0 + n)));
        for (place, bytes) in places.zip(file.chunks(geo.block_len())) {
            let mut block = vec![0; geo.block_len()];
            block[..bytes.len()].copy_from_slice(bytes);
            self.write_fresh(place, block);
        }
        let mut inode = Inode::new(&geo, 0o100_600);
        inode.links = 1;
        inode.size = file.len() as u64;
        inode.flags |= InodeFlags::IMMUTABLE;
        inode.mtime.secs = self.now as i64;
        if geo.features.has_incompat(Incompat::EXTENT) {
            inode.flags |= InodeFlags::EXTENTS;
            inode.block[..12].copy_from_slice(&[0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        }
        let mut raw = vec![0; usize::from(geo.inode_size)];
        if inode.encode_into(&mut raw, &geo, ino).is_err() {
            return self.drop_quota(which, ino);
        }
        self.write_raw_inode(ino, raw)?;
        if !self.store_mapping(ino, &inode, &pieces.pieces, 0)? {
            return self.drop_quota(which, ino);
        }
        // The old blocks are free now, and the inode may not have counted as used.
        self.scan.restart = true;
        Ok(())
    }

    /// Without room for a file there is none: a kernel makes one of its own when quota is turned on
    /// again.
    fn drop_quota(&mut self, which: usize, ino: Ino) -> Result<(), CheckError> {
        match which {
            0 => self.sb.usr_quota_inum.set(0),
            1 => self.sb.grp_quota_inum.set(0),
            _ => self.sb.prj_quota_inum.set(0),
        }
        self.clear_inode(ino)?;
        self.sb_copies = true;
        self.touch_superblock();
        Ok(())
    }

    fn read_quota_file(&self, ino: Ino, magic: u32) -> Result<QuotaFile, CheckError> {
        let mut file = QuotaFile {
            ino,
            blocks: BTreeMap::new(),
            visited: BTreeSet::new(),
            entries: BTreeMap::new(),
            problem: None,
            right_size: None,
            grace: Grace::default(),
        };
        let Some(inode) = self.read_inode(ino)?.filter(|i| i.links > 0) else {
            file.problem = Some("there is no such file");
            return Ok(file);
        };
        let map = self.mapping_of(ino, &inode)?;
        for piece in &map.pieces {
            for n in 0..u64::from(piece.len) {
                if file.blocks.len() < BLOCKS_MAX {
                    file.blocks
                        .insert(piece.logical + n, BlockNo(piece.physical.0 + n));
                }
            }
        }
        let head = self.quota_block(&file, 0)?;
        let sound = matches!(
            RawQuotaHeader::read_from_prefix(&head),
            Ok((raw, _)) if raw.magic.get() == magic && raw.version.get() == VERSION
        );
        if let Some(Ok(info)) = head.get(8..32).map(RawQuotaInfo::read_from_bytes) {
            file.grace = Grace {
                blocks: info.bgrace.get(),
                inodes: info.igrace.get(),
            };
        }
        self.read_quota_tree(&mut file, TREE_ROOT, TREE_DEPTH)?;
        if !sound {
            // The entries may be good nevertheless, and have limits.
            file.problem = Some("bad magic or version");
        }
        if file.problem.is_none()
            && let Some(Ok(info)) = head.get(8..32).map(RawQuotaInfo::read_from_bytes)
        {
            let size = u64::from(info.blocks.get()) * BLOCK_SIZE as u64;
            // The next block that the file takes is the one behind this number: it must not be in use.
            let behind = self.last_quota_block(&file, &info)? >= info.blocks.get();
            // Linux mounts no volume with a shorter file. A longer one grows into its size.
            if behind {
                file.problem = Some("blocks in use behind its number of blocks");
            } else if inode.size < size || inode.size > SIZE_MAX && inode.size != size {
                file.problem = Some("size and number of blocks disagree");
                let end = map.pieces.last().map_or(0, super::mapping::Piece::end);
                let fits = size.div_ceil(u64::from(self.geo.block_size)) >= end;
                // With blocks behind that size it is the number that is wrong.
                file.right_size = fits.then_some(size);
            }
        }
        if map.pieces.iter().any(|p| p.unwritten) {
            // Its bytes are read nevertheless: limits are kept.
            file.problem = Some("blocks that were never written");
            file.right_size = None;
        }
        Ok(file)
    }

    /// The last block of a quota file that its tree, or one of its lists of blocks with room, leads to.
    fn last_quota_block(&self, file: &QuotaFile, info: &RawQuotaInfo) -> Result<u32, CheckError> {
        let mut last = file.visited.last().copied().unwrap_or(TREE_ROOT);
        for list in [info.free_blk.get(), info.free_entry.get()] {
            let mut seen = BTreeSet::new();
            let mut block = list;
            while block != 0 && seen.insert(block) {
                last = last.max(block);
                if block >= info.blocks.get() {
                    break;
                }
                // The number of the next one comes first.
                let bytes = self.quota_block(file, block)?;
                block = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        Ok(last)
    }

    /// A block of a quota file; zeroes where nothing is mapped.
    fn quota_block(&self, file: &QuotaFile, n: u32) -> Result<Vec<u8>, CheckError> {
        let byte = u64::from(n) * BLOCK_SIZE as u64;
        let size = u64::from(self.geo.block_size);
        let Some(place) = file.blocks.get(&(byte / size)).copied() else {
            return Ok(vec![0; BLOCK_SIZE]);
        };
        let bytes = self.store.read(place, "quota file")?;
        let at = (byte % size) as usize;
        Ok(bytes[at..at + BLOCK_SIZE].to_vec())
    }

    fn read_quota_tree(
        &self,
        file: &mut QuotaFile,
        block: u32,
        depth: usize,
    ) -> Result<(), CheckError> {
        if !file.visited.insert(block) && depth > 0 {
            file.problem = Some("the tree has a loop");
            return Ok(());
        }
        let per = (self.geo.block_size as usize / BLOCK_SIZE).max(1) as u64;
        if u64::from(block) / per > u64::from(u32::MAX)
            || !file.blocks.contains_key(&(u64::from(block) / per))
        {
            file.problem = Some("the tree leaves the file");
            return Ok(());
        }
        let bytes = self.quota_block(file, block)?;
        if depth == 0 {
            Self::read_quota_entries(file, block, &bytes);
            return Ok(());
        }
        for n in 0..REFS_PER_BLOCK {
            let child = u32::from_le_bytes([
                bytes[n * 4],
                bytes[n * 4 + 1],
                bytes[n * 4 + 2],
                bytes[n * 4 + 3],
            ]);
            // Several ids share a data block; it is read once.
            if child != 0 && !(depth == 1 && file.visited.contains(&child)) {
                self.read_quota_tree(file, child, depth - 1)?;
            }
            if file.problem.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn read_quota_entries(file: &mut QuotaFile, block: u32, bytes: &[u8]) {
        let head = size_of::<RawQuotaBlockHeader>();
        let size = size_of::<RawQuotaEntry>();
        for n in 0..ENTRIES_PER_BLOCK {
            let at = head + n * size;
            let Some(Ok(entry)) = bytes.get(at..at + size).map(RawQuotaEntry::read_from_bytes)
            else {
                continue;
            };
            // All zero is a free slot; an entry of id 0 has something in it.
            if entry.as_bytes().iter().any(|b| *b != 0) {
                file.entries.insert(entry.id.get(), (entry, block, at));
            }
        }
        let _ = file.ino;
    }
}
