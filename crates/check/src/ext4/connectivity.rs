//! Every directory must be reachable from the root, once, and know its parent.

use blockwright_ondisk::ext4::dir::{self, DirBlock, DirFormat};
use blockwright_ondisk::ext4::extent::{self, Extent};
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{FileBlock, FileKind, GroupFlags, Incompat, Ino, Inode, Timestamp};

use super::context::Checker;
use super::directories::show;
use super::issue::IssueKind;
use super::{CheckError, Phase};

/// Name of the directory for inodes that lost their names.
const LOST_FOUND: &[u8] = b"lost+found";
/// Directories between the root and one of two parents that are looked at.
const DEPTH_MAX: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    Walking,
    Yes,
}

impl Checker {
    /// Finds directories without a way to the root, loops, and wrong parents.
    pub fn check_connectivity(&mut self) -> Result<(), CheckError> {
        self.report_progress(Phase::Links, 0, 1)?;
        let count = self.scan.dirs.len();
        let mut reach = vec![Reach::Unknown; count];
        if let Some(n) = self.scan.dir_position(Ino::ROOT) {
            reach[n] = Reach::Yes;
            self.scan.dirs[n].parent = Ino::ROOT;
        }
        for start in 0..count {
            let mut path = Vec::new();
            let mut at = start;
            while reach[at] == Reach::Unknown {
                reach[at] = Reach::Walking;
                path.push(at);
                let parent = self.scan.dirs[at].parent;
                match self.scan.dir_position(parent) {
                    Some(next) if parent.0 != 0 => {
                        if reach[next] == Reach::Walking {
                            self.break_loop(at)?;
                            break;
                        }
                        at = next;
                    }
                    _ => {
                        self.reconnect_dir(at)?;
                        break;
                    }
                }
            }
            for n in path {
                reach[n] = Reach::Yes;
            }
        }
        for n in 0..count {
            let dir = self.scan.dirs[n].clone();
            if dir.dotdot != dir.parent
                && dir.parent.0 != 0
                && self.problem(IssueKind::DotDotInode {
                    dir: dir.ino,
                    found: dir.dotdot,
                    expected: dir.parent,
                })
            {
                self.set_dotdot(&dir, dir.parent)?;
                self.move_link(dir.dotdot, dir.parent);
            }
        }
        Ok(())
    }

    /// Whether a directory with two names says by its ".." that it belongs to `dir`, and not to the one whose name for it
    /// came first. Blocks that another directory claims by mistake have such names.
    pub fn is_parent_of(&self, n: usize, first: Ino, dir: Ino) -> Result<bool, CheckError> {
        let child = &self.scan.dirs[n];
        if first == dir {
            return Ok(false);
        }
        let word = |bytes: &[u8]| {
            let word = bytes.first_chunk().copied().unwrap_or_default();
            Ino(u32::from_le_bytes(word))
        };
        if child.inline {
            let inode = self.read_inode(child.ino)?;
            return Ok(inode.is_some_and(|i| word(&i.block) == dir));
        }
        let Some(place) = self.dir_block(child, 0) else {
            return Ok(false);
        };
        let bytes = self.store.read(place, "directory")?;
        let named = bytes[..4] == child.ino.0.to_le_bytes() && bytes[20..22] == *b"..";
        Ok(named && word(&bytes[12..]) == dir)
    }

    /// Decides which of two names a directory keeps, once all directories were read: the one that its ".." agrees with, if the root
    /// can be reached from there without the directory itself; else the first.
    pub fn resolve_second_names(&mut self) {
        for (n, dir) in std::mem::take(&mut self.scan.second_names) {
            let dir = Ino(dir);
            let child = self.scan.dirs[n].ino;
            let first = self.scan.dirs[n].parent;
            let loser = if self.is_below_root(dir, child) {
                self.scan.dirs[n].parent = dir;
                first
            } else {
                dir
            };
            let names = self.scan.second_links.entry(loser.0).or_default();
            names.insert(child.0);
        }
    }

    /// Whether names lead from the root to `dir`, and none of them to `except`. Directories that lie deeper than [`DEPTH_MAX`] are not followed.
    fn is_below_root(&self, dir: Ino, except: Ino) -> bool {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == Ino::ROOT {
                return true;
            }
            let known = self.scan.dir_position(at).filter(|_| at != except);
            let Some(n) = known else {
                return false;
            };
            at = self.scan.dirs[n].parent;
        }
        false
    }

    /// Takes names from directories whose subdirectories belong to others.
    pub fn remove_second_links(&mut self) -> Result<(), CheckError> {
        for (dir, others) in std::mem::take(&mut self.scan.second_links) {
            let dir = Ino(dir);
            let Some(inode) = self.read_inode(dir)? else {
                continue;
            };
            let format = DirFormat::of(&self.geo, inode.flags);
            let without = |this: &mut Self, bytes: &mut [u8]| {
                let found: Vec<_> = DirBlock::entries_of(bytes, format)
                    .iter()
                    .map_while(Result::ok)
                    .filter(|e| others.contains(&e.ino.0) && !e.is_dot_or_dotdot())
                    .map(|e| (e.offset, e.ino, show(e.name)))
                    .collect();
                let mut changed = false;
                for (at, ino, name) in found {
                    if this.problem(IssueKind::EntrySecondLink { dir, name, ino }) {
                        bytes[at..at + 4].fill(0);
                        changed = true;
                    }
                }
                changed
            };
            if inode.flags.contains(InodeFlags::INLINE_DATA) {
                let Some(mut raw) = self.read_raw_inode(dir)? else {
                    continue;
                };
                let mut any = false;
                for range in self.inline_parts(&inode, &raw) {
                    any |= without(self, &mut raw[range]);
                }
                if any {
                    self.write_raw_inode(dir, raw)?;
                }
                continue;
            }
            let seed = self.geo.inode_seed(dir, inode.generation);
            for place in self.blocks_of(dir, &inode)? {
                let mut bytes = self.store.read(place, "directory")?;
                if without(self, &mut bytes[..format.leaf_space()])
                    && dir::set_leaf_checksum(&mut bytes, &format, seed).is_ok()
                {
                    self.write(place, bytes);
                }
            }
        }
        Ok(())
    }

    fn move_link(&mut self, from: Ino, to: Ino) {
        if let Some(state) = self.scan.inodes.get_mut(from) {
            state.found = state.found.saturating_sub(1);
        }
        if let Some(state) = self.scan.inodes.get_mut(to) {
            state.found = state.found.saturating_add(1);
        }
    }

    fn break_loop(&mut self, at: usize) -> Result<(), CheckError> {
        let dir = self.scan.dirs[at].clone();
        if self.problem(IssueKind::DirLoop { dir: dir.ino }) {
            self.remove_entry(dir.parent, dir.ino)?;
            self.scan.dirs[at].parent = Ino(0);
            self.scan.unattached.push(dir.ino);
            self.scan.restart_links = true;
        }
        Ok(())
    }

    fn reconnect_dir(&mut self, at: usize) -> Result<(), CheckError> {
        let ino = self.scan.dirs[at].ino;
        let orphan = self.scan.inodes.get(ino).is_some_and(|s| s.marks.orphan);
        if orphan {
            return Ok(());
        }
        if self.problem(IssueKind::DirUnreachable { dir: ino }) {
            self.scan.unattached.push(ino);
        } else {
            // Its count of links is that of a directory with a name.
            self.scan.unnamed.insert(ino.0);
        }
        Ok(())
    }

    /// Gives everything found without a name one in lost+found. What finds no room keeps none. Only a name that was given ends the round: otherwise bitmaps
    /// would never be written, and what has got blocks before would be free for the next mount.
    pub fn reconnect_all(&mut self) -> Result<(), CheckError> {
        let lost = std::mem::take(&mut self.scan.unattached);
        if lost.is_empty() {
            return Ok(());
        }
        self.scan.unnamed.extend(lost.iter().map(|ino| ino.0));
        let Some(target) = self.find_lost_found()? else {
            return Ok(());
        };
        for ino in lost {
            let Some(kind) = self.scan.inodes.get(ino).and_then(|s| s.kind) else {
                continue;
            };
            if ino == target {
                continue;
            }
            let name = format!("#{ino}");
            if !self.add_entry(target, name.as_bytes(), ino, kind)? {
                return Ok(());
            }
            self.scan.unnamed.remove(&ino.0);
            self.scan.restart_links = true;
        }
        Ok(())
    }

    fn find_lost_found(&mut self) -> Result<Option<Ino>, CheckError> {
        let Some(root) = self.read_inode(Ino::ROOT)? else {
            return Ok(None);
        };
        let format = DirFormat::of(&self.geo, root.flags);
        let mut found = None;
        if root.flags.contains(InodeFlags::INLINE_DATA) {
            if let Some(raw) = self.read_raw_inode(Ino::ROOT)? {
                let mut parts = self.inline_parts(&root, &raw).into_iter();
                found = parts.find_map(|part| entry_of(&raw[part], LOST_FOUND, format));
            }
        } else {
            for place in self.blocks_of(Ino::ROOT, &root)? {
                let bytes = self.store.read(place, "directory")?;
                found = entry_of(&bytes[..format.leaf_space()], LOST_FOUND, format);
                if found.is_some() {
                    break;
                }
            }
        }
        if let Some(ino) = found {
            let is_dir = self
                .scan
                .inodes
                .get(ino)
                .is_some_and(|s| s.kind == Some(FileKind::Directory));
            if !is_dir {
                // The next round finds that the former owner of the name has lost it.
                self.remove_name(Ino::ROOT, LOST_FOUND)?;
                self.scan.restart_links = true;
                return self.make_lost_found();
            }
            if let Some(n) = self.scan.dir_position(ino)
                && self.scan.dirs[n].index
            {
                self.unindex_for_insertion(ino)?;
            }
            return Ok(Some(ino));
        }
        self.make_lost_found()
    }

    /// New names go into any block; an index would have to be updated.
    fn unindex_for_insertion(&mut self, ino: Ino) -> Result<(), CheckError> {
        let flag = InodeFlags::INDEX.bits();
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(());
        };
        let format = DirFormat::of(&self.geo, inode.flags);
        let seed = self.geo.inode_seed(ino, inode.generation);
        for (n, place) in self.blocks_of(ino, &inode)?.into_iter().enumerate() {
            let mut bytes = self.store.read(place, "directory")?;
            let fresh = if n == 0 {
                let (dot, dotdot) = (bytes[..12].to_vec(), bytes[12..24].to_vec());
                bytes.fill(0);
                bytes[..12].copy_from_slice(&dot);
                bytes[12..24].copy_from_slice(&dotdot);
                let rest = format.leaf_space() - 12;
                match dir::encode_rec_len(rest, format.block_size) {
                    Some(stored) => bytes[16..18].copy_from_slice(&stored.to_le_bytes()),
                    None => continue,
                }
                dir::write_tail(&mut bytes, &format)
            } else if bytes[..4] == [0; 4] && DirBlock::leaf(&bytes, format).is_err() {
                dir::write_empty_leaf(&mut bytes, &format)
            } else {
                None
            };
            if fresh.is_some() && dir::set_leaf_checksum(&mut bytes, &format, seed).is_ok() {
                self.write(place, bytes);
            }
        }
        self.edit_inode(ino, |edit| edit.flags(flag, 0))?;
        if let Some(n) = self.scan.dir_position(ino) {
            self.scan.dirs[n].index = false;
        }
        Ok(())
    }

    fn make_lost_found(&mut self) -> Result<Option<Ino>, CheckError> {
        if self.lost_found_has_no_room {
            return Ok(None);
        }
        if let Some(n) = self.scan.dir_position(Ino::ROOT)
            && self.scan.dirs[n].index
        {
            self.unindex_for_insertion(Ino::ROOT)?;
        }
        let Some(ino) = self.find_free_inode()? else {
            return Ok(None);
        };
        if !self.make_directory(ino, Ino::ROOT, 0o040_700)? {
            return Ok(None);
        }
        self.scan.restart_links = true;
        let named = self.add_entry(Ino::ROOT, LOST_FOUND, ino, FileKind::Directory)?;
        if !named {
            self.lost_found_has_no_room = true;
            self.clear_inode(ino)?;
            return Ok(None);
        }
        Ok(Some(ino))
    }

    /// Makes a directory of one block in a free inode. Whether there was room.
    fn make_directory(&mut self, ino: Ino, parent: Ino, mode: u16) -> Result<bool, CheckError> {
        let geo = self.geo.clone();
        let Some(block) = self.scan.used.find_free(geo.first_data_block) else {
            return Ok(false);
        };
        self.scan
            .used
            .insert_run(block, u64::from(geo.cluster_ratio), None);
        let mut inode = Inode::new(&geo, mode);
        inode.links = 2;
        inode.size = u64::from(geo.block_size);
        inode.sectors = u64::from(geo.cluster_ratio) << (geo.block_bits - 9);
        let time = Timestamp {
            secs: self.now as i64,
            nanos: 0,
        };
        (inode.atime, inode.ctime, inode.mtime) = (time, time, time);
        if geo.features.has_incompat(Incompat::EXTENT) {
            inode.flags |= InodeFlags::EXTENTS;
            let e = Extent {
                logical: FileBlock(0),
                physical: block,
                len: 1,
                unwritten: false,
            };
            if extent::write_leaf(&mut inode.block, &[e]).is_none() {
                return Ok(false);
            }
        } else {
            inode.block[..4].copy_from_slice(&(block.0 as u32).to_le_bytes());
        }
        let mut raw = vec![0; usize::from(geo.inode_size)];
        if inode.encode_into(&mut raw, &geo, ino).is_err() {
            return Ok(false);
        }
        self.write_raw_inode(ino, raw)?;
        let format = DirFormat::new(&geo);
        let mut bytes = vec![0; geo.block_len()];
        let space = format.leaf_space();
        let kind = Some(FileKind::Directory);
        let written = dir::write_entry(&mut bytes, 0, 12, ino, kind, b".", &format).is_some()
            && dir::write_entry(&mut bytes, 12, space - 12, parent, kind, b"..", &format).is_some()
            && dir::write_tail(&mut bytes, &format).is_some()
            && dir::set_leaf_checksum(&mut bytes, &format, geo.inode_seed(ino, 0)).is_ok();
        if written {
            self.write(block, bytes);
        }
        Ok(written)
    }

    /// A root directory anew, when there is none.
    pub fn make_root(&mut self) -> Result<(), CheckError> {
        if !self.repairing() {
            return Ok(());
        }
        self.make_directory(Ino::ROOT, Ino::ROOT, 0o040_755)?;
        self.scan.restart = true;
        Ok(())
    }

    fn find_free_inode(&mut self) -> Result<Option<Ino>, CheckError> {
        let geo = self.geo.clone();
        for group in geo.groups() {
            let used = self.scan.inodes.of_group(&geo, group);
            if used.len() as u32 >= geo.inodes_per_group {
                continue;
            }
            let free = (0..geo.inodes_per_group)
                .filter_map(|index| geo.ino_at(group, index))
                .find(|ino| *ino >= geo.first_ino && self.scan.inodes.get(*ino).is_none());
            let Some(ino) = free else {
                continue;
            };
            if self.unused_part(ino).is_some()
                && let Some((_, index)) = geo.split_ino(ino)
            {
                // The first free one lies right behind the part in use.
                let desc = &mut self.descs[group.0 as usize];
                desc.itable_unused = geo.inodes_per_group - index - 1;
                desc.flags -= GroupFlags::INODE_UNINIT;
                self.write_desc(group, false)?;
            }
            return Ok(Some(ino));
        }
        Ok(None)
    }
}

fn entry_of(bytes: &[u8], name: &[u8], format: DirFormat) -> Option<Ino> {
    DirBlock::entries_of(bytes, format)
        .iter()
        .map_while(Result::ok)
        .find(|e| e.is_used() && e.name == name)
        .map(|e| e.ino)
}
