//! Redoing fast commits: a fast commit logs changes rather than blocks, and this part turns them into blocks.
//!
//! Everything happens in the overlay, on top of the log's blocks:
//! - Blocks that files gain count as used from the start.
//! - Names are collected per directory, and each changed directory is written once.
//! - Mappings are laid out from the extents that a file ends up with.
//! - Blocks that no file maps any more become free last.
//!
//! So a replay that was interrupted and starts again finds either the old or the new version of each structure.
//!
//! Not responsible for: inodes that lost their last name (they go to the orphan list, and the rounds finish it), and
//! quota files (the rounds count their usage).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use blockwright_ondisk::common::casefold;
use blockwright_ondisk::ext4::fast_commit::ADDED_MAX;
use blockwright_ondisk::ext4::inode::{self, InodeFlags};
use blockwright_ondisk::ext4::jbd2::JournalSuperblock;
use blockwright_ondisk::ext4::types::LINK_MAX;
use blockwright_ondisk::ext4::{BlockNo, ChecksumKind, FileKind, GroupFlags, GroupNo, Ino, Inode};

use super::CheckError;
use super::context::Checker;
use super::dir_rebuild::Name;
use super::fast_commit::{FastCommits, NameChange, Operation, READ_AT_ONCE, Reread};
use super::issue::IssueKind;
use super::mapping::{Collect, MapSink, Piece};

/// Offsets in an inode: where the mapping begins, and the generation behind it.
const MAPPING: usize = 0x28;
const AFTER_MAPPING: usize = 0x64;
/// An extent tree's root without entries.
const EMPTY_ROOT: [u8; 12] = [0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];

/// Fast commits are no longer what the scan found.
const OVERWRITTEN: IssueKind = IssueKind::FastCommitRecord {
    ino: Ino::JOURNAL,
    what: "the replay wrote over the fast commits",
};

/// What a file maps, by first file block.
type Pieces = BTreeMap<u64, Piece>;

/// What a file maps before and after.
#[derive(Default)]
struct FileMap {
    before: Vec<Piece>,
    tree: Vec<BlockNo>,
    after: Pieces,
    /// Space besides data and tree, in sectors.
    extra: u64,
    generation: Option<[u8; 4]>,
    /// Ranges were added or removed.
    touched: bool,
}

/// The names of a directory that changes.
struct DirNames {
    dotdot: Ino,
    casefold: bool,
    list: Vec<Option<Name>>,
    /// Where in the list a name is, by what it is compared by.
    found: HashMap<Vec<u8>, usize>,
    /// Where the list has room: names that come and go do not make it longer.
    free: Vec<usize>,
    changed: bool,
}

impl DirNames {
    fn key(&self, name: &[u8]) -> Vec<u8> {
        if self.casefold {
            casefold::fold_name(name).into_owned()
        } else {
            name.to_vec()
        }
    }

    fn get(&self, name: &[u8]) -> Option<&Name> {
        let at = self.found.get(&self.key(name))?;
        self.list.get(*at)?.as_ref()
    }

    fn put(&mut self, name: Name) {
        let key = self.key(&name.name);
        self.changed = true;
        match self.found.get(&key) {
            Some(at) => self.list[*at] = Some(name),
            None => {
                let at = self.free.pop().unwrap_or(self.list.len());
                self.found.insert(key, at);
                match self.list.get_mut(at) {
                    Some(slot) => *slot = Some(name),
                    None => self.list.push(Some(name)),
                }
            }
        }
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some(at) = self.found.remove(&self.key(name)) {
            self.list[at] = None;
            self.free.push(at);
            self.changed = true;
        }
    }
}

/// A replay under way.
#[derive(Default)]
struct Redo {
    files: BTreeMap<Ino, FileMap>,
    dirs: BTreeMap<Ino, DirNames>,
    /// Blocks of what is gone.
    lost: Vec<(BlockNo, u64)>,
    /// Blocks of directories that were written.
    kept: Vec<(BlockNo, u64)>,
    touched: BTreeSet<Ino>,
    /// See [`ADDED_MAX`].
    added: usize,
}

fn cut(pieces: &mut Pieces, first: u64, end: u64) {
    let hit: Vec<Piece> = pieces
        .range(..end)
        .rev()
        .map(|(_, p)| *p)
        .take_while(|p| p.end() > first)
        .collect();
    for piece in hit {
        pieces.remove(&piece.logical);
        if piece.logical < first {
            let len = (first - piece.logical) as u32;
            pieces.insert(piece.logical, Piece { len, ..piece });
        }
        if piece.end() > end {
            let skip = end - piece.logical;
            let rest = Piece {
                logical: end,
                physical: BlockNo(piece.physical.0 + skip),
                len: piece.len - skip as u32,
                ..piece
            };
            pieces.insert(end, rest);
        }
    }
}

fn generation_of(raw: &[u8]) -> Option<[u8; 4]> {
    raw.get(AFTER_MAPPING..AFTER_MAPPING + 4)?.try_into().ok()
}

impl Checker {
    /// Redoes fast commits. Records that contradict the volume are reported and left out. So are all of them when the
    /// log wrote over its own fast commits. `false`: nothing was redone, because they add more than [`ADDED_MAX`].
    pub fn apply_fast_commits(
        &mut self,
        pieces: &[Piece],
        head: &JournalSuperblock,
        fast: &FastCommits,
    ) -> Result<bool, CheckError> {
        if !self.journal_log(pieces, head).has_still(fast)? {
            self.problem(OVERWRITTEN);
            return Ok(true);
        }
        self.load_used_blocks()?;
        let mut redo = Redo::default();
        let mut reread = Reread::default();
        for first in fast.blocks.clone().step_by(READ_AT_ONCE as usize) {
            let log = self.journal_log(pieces, head);
            for operation in log.operations_from(fast, first, &mut reread)? {
                redo.touched.insert(operation.ino());
                self.plan_ranges(&mut redo, &operation)?;
            }
            if redo.added > ADDED_MAX {
                return Ok(false);
            }
        }
        for file in redo.files.values() {
            for piece in file.after.values() {
                let len = u64::from(piece.len);
                self.scan.used.insert_run(piece.physical, len, None);
            }
        }
        let mut reread = Reread::default();
        for first in fast.blocks.clone().step_by(READ_AT_ONCE as usize) {
            let log = self.journal_log(pieces, head);
            for operation in log.operations_from(fast, first, &mut reread)? {
                self.redo(&mut redo, &operation)?;
            }
        }
        if reread.differs_from(fast) {
            self.problem(OVERWRITTEN);
        }
        self.finish_directories(&mut redo)?;
        self.finish_mappings(&mut redo)?;
        self.finish_bitmaps()?;
        self.list_nameless(&redo)?;
        Ok(true)
    }

    /// Redoes one operation.
    fn redo(&mut self, redo: &mut Redo, operation: &Operation) -> Result<(), CheckError> {
        let done = match operation {
            Operation::AddRange { .. } | Operation::DelRange { .. } => Ok(()),
            Operation::Inode { ino, raw } => self.redo_inode(redo, *ino, raw)?,
            Operation::Name {
                change: NameChange::Unlink,
                parent,
                ino,
                name,
            } => self.redo_unlink(redo, *parent, *ino, name)?,
            Operation::Name {
                change,
                parent,
                ino,
                name,
            } => {
                let create = *change == NameChange::Create;
                self.redo_link(redo, *parent, *ino, name, create)?
            }
        };
        if let Err(what) = done {
            self.problem(IssueKind::FastCommitRecord {
                ino: operation.ino(),
                what,
            });
        }
        Ok(())
    }

    /// The bitmaps decide what is in use; where there is none, the group's own metadata.
    fn load_used_blocks(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        for group in geo.groups() {
            let fixed = u64::from(geo.base_meta_blocks(group));
            self.scan
                .claim_metadata(geo.group_first_block(group), fixed);
            let desc = self.descs[group.0 as usize];
            for (first, len) in [
                (desc.block_bitmap, 1),
                (desc.inode_bitmap, 1),
                (desc.inode_table, u64::from(geo.inode_table_blocks)),
            ] {
                if geo.contains_run(first, len) {
                    self.scan.claim_metadata(first, len);
                }
            }
        }
        for group in geo.groups() {
            if let Some(bits) = self.stored_block_bitmap(group)? {
                self.scan.used.insert_bitmap(group, &bits);
            }
        }
        Ok(())
    }

    /// A group's block bitmap as far as it counts; `None` where none is stored.
    fn stored_block_bitmap(&self, group: GroupNo) -> Result<Option<Vec<u8>>, CheckError> {
        let geo = &self.geo;
        let desc = self.descs[group.0 as usize];
        let uninit =
            desc.flags.contains(GroupFlags::BLOCK_UNINIT) && geo.checksums != ChecksumKind::None;
        if uninit || !geo.contains_run(desc.block_bitmap, 1) {
            return Ok(None);
        }
        let mut bits = self.store.read(desc.block_bitmap, "block bitmap")?;
        bits.truncate(geo.block_bitmap_bytes());
        // Padding is no block.
        for n in geo.group_clusters(group) as usize..bits.len() * 8 {
            bits[n / 8] &= !(1 << (n % 8));
        }
        Ok(Some(bits))
    }

    fn inode_bit(&self, ino: Ino) -> Result<bool, CheckError> {
        let Some((group, index)) = self.geo.split_ino(ino) else {
            return Ok(false);
        };
        let desc = self.descs[group.0 as usize];
        let uninit = desc.flags.contains(GroupFlags::INODE_UNINIT)
            && self.geo.checksums != ChecksumKind::None;
        if uninit || !self.geo.contains_run(desc.inode_bitmap, 1) {
            return Ok(false);
        }
        let bits = self.store.read(desc.inode_bitmap, "inode bitmap")?;
        let byte = bits.get(index as usize / 8).copied().unwrap_or(0);
        Ok(byte >> (index % 8) & 1 != 0)
    }

    /// An inode that is in use.
    fn inode_in_use(&self, ino: Ino) -> Result<Option<Inode>, CheckError> {
        if !self.inode_bit(ino)? {
            return Ok(None);
        }
        Ok(self.read_inode(ino)?.filter(|i| i.kind().is_some()))
    }

    fn file_before(&self, ino: Ino) -> Result<FileMap, CheckError> {
        let mut file = FileMap::default();
        let Some(inode) = self.inode_in_use(ino)? else {
            return Ok(file);
        };
        file.generation = Some(inode.generation.to_le_bytes());
        if inode.maps_blocks(&self.geo) {
            let map = self.mapping_of(ino, &inode)?;
            file.tree = map.tree.into_iter().collect();
            file.before = map.pieces;
        }
        let mapped = Self::mapping_sectors(&self.geo, &file.before, file.tree.len() as u64);
        file.extra = inode.sectors.saturating_sub(mapped);
        file.after = file.before.iter().map(|p| (p.logical, *p)).collect();
        Ok(file)
    }

    /// Follows what a file maps.
    fn plan_ranges(&mut self, redo: &mut Redo, operation: &Operation) -> Result<(), CheckError> {
        let ino = operation.ino();
        if let Operation::Name { change, .. } = operation {
            redo.added += usize::from(*change != NameChange::Unlink);
            return Ok(());
        }
        if let Entry::Vacant(slot) = redo.files.entry(ino) {
            slot.insert(self.file_before(ino)?);
            redo.added += 1;
        }
        let Some(file) = redo.files.get_mut(&ino) else {
            return Ok(());
        };
        let had = file.after.len();
        match operation {
            Operation::AddRange { extent, .. } => {
                let (first, len) = (extent.physical, u64::from(extent.len));
                let sound = len > 0
                    && self.geo.contains_run(first, len)
                    && (0..len).all(|n| !self.scan.metadata.contains(BlockNo(first.0 + n)));
                if !sound {
                    self.problem(IssueKind::FastCommitRecord {
                        ino,
                        what: "blocks are added that are not the file's to have",
                    });
                    return Ok(());
                }
                cut(&mut file.after, extent.logical.0, extent.end().0);
                let piece = Piece {
                    logical: extent.logical.0,
                    physical: first,
                    len: extent.len,
                    unwritten: extent.unwritten,
                };
                file.after.insert(piece.logical, piece);
                file.touched = true;
            }
            Operation::DelRange { first, len, .. } => {
                let end = first.0.saturating_add(u64::from(*len));
                cut(&mut file.after, first.0, end);
                file.touched = true;
            }
            Operation::Inode { raw, .. } => {
                let generation = generation_of(raw);
                if file.generation.is_some() && file.generation != generation {
                    // The number was given to another file.
                    file.after.clear();
                    file.extra = 0;
                    file.touched = true;
                }
                file.generation = generation;
            }
            Operation::Name { .. } => {}
        }
        redo.added = (redo.added + file.after.len()).saturating_sub(had);
        Ok(())
    }

    /// Puts the logged bytes of an inode into its table, except for the mapping.
    fn redo_inode(
        &mut self,
        redo: &mut Redo,
        ino: Ino,
        raw: &[u8],
    ) -> Result<Result<(), &'static str>, CheckError> {
        let size = usize::from(self.geo.inode_size);
        if raw.len() < inode::BASE_SIZE || raw.len() > size {
            return Ok(Err("the logged inode has an impossible size"));
        }
        let kind = FileKind::from_mode(u16::from_le_bytes([raw[0], raw[1]]));
        let (Some(kind), Some(mut new)) = (kind, self.read_raw_inode(ino)?) else {
            return Ok(Err("the logged inode has no type, or cannot exist"));
        };
        let used = self.inode_bit(ino)?;
        let before = self.inode_in_use(ino)?;
        if !used || generation_of(&new) != generation_of(raw) {
            // Another file: nothing of the old one counts.
            new.fill(0);
            redo.dirs.remove(&ino);
        }
        let flags = u32::from_le_bytes([raw[0x20], raw[0x21], raw[0x22], raw[0x23]]);
        let extents = InodeFlags::from_bits_retain(flags).contains(InodeFlags::EXTENTS);
        new[..MAPPING].copy_from_slice(&raw[..MAPPING]);
        new[AFTER_MAPPING..raw.len()].copy_from_slice(&raw[AFTER_MAPPING..]);
        if !extents {
            // Inline data, a short link's target, a device's number.
            new[MAPPING..AFTER_MAPPING].copy_from_slice(&raw[MAPPING..AFTER_MAPPING]);
        } else if new[MAPPING..MAPPING + 2] != EMPTY_ROOT[..2] {
            new[MAPPING..AFTER_MAPPING].fill(0);
            new[MAPPING..MAPPING + 12].copy_from_slice(&EMPTY_ROOT);
        }
        self.write_raw_inode(ino, new)?;
        let was_dir = before.is_some_and(|i| i.kind() == Some(FileKind::Directory));
        self.mark_inode(ino, used, was_dir, kind == FileKind::Directory)?;
        Ok(Ok(()))
    }

    /// Makes an inode count as used.
    fn mark_inode(
        &mut self,
        ino: Ino,
        used: bool,
        was_dir: bool,
        is_dir: bool,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let Some((group, index)) = geo.split_ino(ino) else {
            return Ok(());
        };
        let at = group.0 as usize;
        let before = self.descs[at];
        let sums = geo.checksums != ChecksumKind::None;
        if !used && geo.contains_run(before.inode_bitmap, 1) {
            let mut bits = if sums && before.flags.contains(GroupFlags::INODE_UNINIT) {
                let mut fresh = vec![0xFF; geo.block_len()];
                fresh[..geo.inode_bitmap_bytes()].fill(0);
                fresh
            } else {
                self.store.read(before.inode_bitmap, "inode bitmap")?
            };
            bits[index as usize / 8] |= 1 << (index % 8);
            let desc = &mut self.descs[at];
            desc.flags -= GroupFlags::INODE_UNINIT;
            desc.set_inode_bitmap_csum(&bits, &geo);
            desc.free_inodes = desc.free_inodes.saturating_sub(1);
            if sums {
                let unused = geo.inodes_per_group - index - 1;
                desc.itable_unused = desc.itable_unused.min(unused);
            }
            self.write(before.inode_bitmap, bits);
            let free = self.sb.free_inodes_count.get();
            self.sb.free_inodes_count.set(free.saturating_sub(1));
            self.touch_superblock();
        }
        let desc = &mut self.descs[at];
        if is_dir && !was_dir {
            desc.used_dirs += 1;
        } else if was_dir && !is_dir {
            desc.used_dirs = desc.used_dirs.saturating_sub(1);
        }
        if self.descs[at] != before {
            self.write_desc(group, false)?;
        }
        Ok(())
    }

    /// The names of a directory, read when it is first needed.
    fn names_of<'r>(
        &self,
        redo: &'r mut Redo,
        dir: Ino,
        inode: &Inode,
        new_parent: Option<Ino>,
    ) -> Result<&'r mut DirNames, CheckError> {
        if let Entry::Vacant(slot) = redo.dirs.entry(dir) {
            let (dotdot, names) = self.read_names(dir, inode)?;
            let fresh = dotdot.0 == 0;
            let mut all = DirNames {
                dotdot: if fresh {
                    new_parent.unwrap_or(Ino::ROOT)
                } else {
                    dotdot
                },
                casefold: inode.flags.contains(InodeFlags::CASEFOLD),
                list: Vec::with_capacity(names.len()),
                found: HashMap::with_capacity(names.len()),
                free: Vec::new(),
                changed: fresh,
            };
            for name in names {
                let key = all.key(&name.name);
                all.found.insert(key, all.list.len());
                all.list.push(Some(name));
            }
            slot.insert(all);
        }
        redo.dirs.get_mut(&dir).ok_or(CheckError::OutsideVolume {
            what: "directory",
            block: BlockNo(0),
        })
    }

    fn directory_for_name(&self, parent: Ino) -> Result<Option<Inode>, CheckError> {
        Ok(self
            .inode_in_use(parent)?
            .filter(|i| i.kind() == Some(FileKind::Directory)))
    }

    fn redo_link(
        &mut self,
        redo: &mut Redo,
        parent: Ino,
        ino: Ino,
        name: &[u8],
        create: bool,
    ) -> Result<Result<(), &'static str>, CheckError> {
        let Some(dir) = self.directory_for_name(parent)? else {
            return Ok(Err("the directory of a new name is none"));
        };
        let Some((inode, kind)) = self
            .inode_in_use(ino)?
            .and_then(|i| i.kind().map(|kind| (i, kind)))
        else {
            return Ok(Err("a new name's inode is not in use"));
        };
        let is_dir = kind == FileKind::Directory;
        if create && is_dir && !inode.flags.contains(InodeFlags::INLINE_DATA) {
            self.names_of(redo, ino, &inode, Some(parent))?;
        }
        let added = if dir.flags.contains(InodeFlags::INLINE_DATA) {
            if self.inline_entry(parent, name)?.is_some_and(|i| i == ino) {
                false
            } else {
                self.remove_name(parent, name)?;
                // The record of the directory's inode, which may follow, says that it is inline.
                if !self.add_inline_entry(parent, name, ino, kind)? {
                    return Ok(Err("a new name does not fit its inline directory"));
                }
                true
            }
        } else {
            let names = self.names_of(redo, parent, &dir, None)?;
            let known = names.get(name).is_some_and(|n| n.ino == ino);
            if !known {
                names.put(Name {
                    name: name.to_vec(),
                    ino,
                    kind,
                    stored: None,
                });
            }
            !known
        };
        if create {
            self.edit_inode(ino, |edit| edit.links(if is_dir { 2 } else { 1 }))?;
        } else if added {
            let links = inode.links.saturating_add(1);
            self.edit_inode(ino, |edit| edit.links(links))?;
        }
        if added && create && is_dir {
            // 1 stands for "more than can be counted".
            let links = match u32::from(dir.links) {
                n if n == 1 || n + 1 >= LINK_MAX => 1,
                n => n as u16 + 1,
            };
            self.edit_inode(parent, |edit| edit.links(links))?;
        }
        Ok(Ok(()))
    }

    fn redo_unlink(
        &mut self,
        redo: &mut Redo,
        parent: Ino,
        ino: Ino,
        name: &[u8],
    ) -> Result<Result<(), &'static str>, CheckError> {
        let Some(dir) = self.directory_for_name(parent)? else {
            return Ok(Err("the directory of a removed name is none"));
        };
        let found = if dir.flags.contains(InodeFlags::INLINE_DATA) {
            let found = self.inline_entry(parent, name)? == Some(ino);
            if found {
                self.remove_name(parent, name)?;
            }
            found
        } else {
            let names = self.names_of(redo, parent, &dir, None)?;
            let found = names.get(name).is_some_and(|n| n.ino == ino);
            if found {
                names.remove(name);
            }
            found
        };
        let Some(inode) = self.inode_in_use(ino)?.filter(|_| found) else {
            return Ok(Ok(()));
        };
        if inode.kind() == Some(FileKind::Directory) {
            self.edit_inode(ino, |edit| edit.links(0))?;
            if dir.links > 2 {
                self.edit_inode(parent, |edit| edit.links(dir.links - 1))?;
            }
        } else {
            let links = inode.links.saturating_sub(1);
            self.edit_inode(ino, |edit| edit.links(links))?;
        }
        Ok(Ok(()))
    }

    /// Writes the directories whose names changed.
    fn finish_directories(&mut self, redo: &mut Redo) -> Result<(), CheckError> {
        for (ino, dir) in std::mem::take(&mut redo.dirs) {
            let gone = self.directory_for_name(ino)?.is_none_or(|i| i.links == 0);
            if !dir.changed || gone {
                continue;
            }
            let before = self.file_before(ino)?;
            let names: Vec<Name> = dir.list.into_iter().flatten().collect();
            if !self.rewrite_directory(ino, dir.dotdot, &names)? {
                self.problem(IssueKind::FastCommitRecord {
                    ino,
                    what: "there is no room for its names",
                });
                continue;
            }
            let after = self.file_before(ino)?;
            redo.give_up(&before.before, &before.tree);
            // Blocks that were rewritten in place are not lost.
            let data = after.before.iter().map(|p| (p.physical, u64::from(p.len)));
            redo.kept
                .extend(data.chain(after.tree.iter().map(|block| (*block, 1))));
        }
        Ok(())
    }

    /// Lays out the mappings of files that changed.
    fn finish_mappings(&mut self, redo: &mut Redo) -> Result<(), CheckError> {
        let mut kept = Vec::new();
        for (ino, file) in std::mem::take(&mut redo.files) {
            let Some(inode) = self.inode_in_use(ino)? else {
                continue;
            };
            let is_dir = inode.kind() == Some(FileKind::Directory);
            let replaced = file.touched && file.after.is_empty();
            if !file.touched || (is_dir && !replaced) {
                kept.extend(file.after.into_values());
                continue;
            }
            redo.give_up(&file.before, &file.tree);
            if is_dir {
                continue;
            }
            if !inode.flags.contains(InodeFlags::EXTENTS) {
                if !file.after.is_empty() {
                    self.problem(IssueKind::FastCommitRecord {
                        ino,
                        what: "blocks are added to a file that is not mapped by extents",
                    });
                }
                continue;
            }
            let mut after = Collect::default();
            file.after.into_values().for_each(|p| after.piece(p));
            let attribute = u64::from(inode.file_acl.0 != 0) << self.geo.cluster_bits;
            let extra = file.extra.max(attribute << (self.geo.block_bits - 9));
            if !self.store_mapping(ino, &inode, &after.pieces, extra)? {
                self.problem(IssueKind::FastCommitRecord {
                    ino,
                    what: "there is no room for its mapping",
                });
            }
            kept.extend(after.pieces);
        }
        for (first, len) in &redo.lost {
            self.scan.used.remove_run(*first, *len);
        }
        let pieces = kept.iter().map(|p| (p.physical, u64::from(p.len)));
        for (first, len) in pieces.chain(redo.kept.iter().copied()) {
            self.scan.used.insert_run(first, len, None);
        }
        Ok(())
    }

    /// Stores the bitmaps and counts of groups whose blocks changed.
    fn finish_bitmaps(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let mut gained = 0i64;
        for group in geo.groups() {
            let bytes = geo.block_bitmap_bytes();
            let old = match self.stored_block_bitmap(group)? {
                Some(bits) => bits,
                None => self.scan.metadata.group_bytes(group, bytes),
            };
            let new = self.scan.used.group_bytes(group, bytes);
            // Metadata that its own bitmap denies is not for the replay to mend.
            let same = old
                .iter()
                .zip(&new)
                .zip(self.scan.metadata.group_bytes(group, bytes))
                .all(|((a, b), meta)| (a ^ b) & !meta == 0);
            if same {
                continue;
            }
            let count = |bits: &[u8]| bits.iter().map(|b| i64::from(b.count_ones())).sum::<i64>();
            let delta = count(&new) - count(&old);
            gained += delta;
            let mut block = vec![0xFF; geo.block_len()];
            block[..bytes].copy_from_slice(&new);
            for n in geo.group_clusters(group) as usize..bytes * 8 {
                block[n / 8] |= 1 << (n % 8);
            }
            let desc = &mut self.descs[group.0 as usize];
            desc.flags -= GroupFlags::BLOCK_UNINIT;
            desc.free_clusters = (i64::from(desc.free_clusters) - delta).max(0) as u32;
            desc.set_block_bitmap_csum(&block, &geo);
            let place = desc.block_bitmap;
            self.write(place, block);
            self.write_desc(group, false)?;
        }
        let blocks = gained << geo.cluster_bits;
        let free = self.sb.free_blocks_count().saturating_add_signed(-blocks);
        self.sb.set_free_blocks_count(free);
        self.touch_superblock();
        Ok(())
    }

    /// Inodes left without a name go on the orphan list.
    fn list_nameless(&mut self, redo: &Redo) -> Result<(), CheckError> {
        for ino in &redo.touched {
            let nameless = self.inode_in_use(*ino)?.is_some_and(|i| i.links == 0);
            if nameless && *ino >= self.geo.first_ino {
                let next = self.sb.last_orphan.get();
                self.edit_inode(*ino, |edit| edit.dtime(next))?;
                self.sb.last_orphan.set(ino.0);
                self.touch_superblock();
            }
        }
        Ok(())
    }

    /// The inode a name in an inline directory has.
    fn inline_entry(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, CheckError> {
        use blockwright_ondisk::ext4::dir::{DirBlock, DirFormat};
        let Some(inode) = self.read_inode(dir)? else {
            return Ok(None);
        };
        let format = DirFormat::of(&self.geo, inode.flags);
        Ok(DirBlock::entries_of(&inode.block[4..], format)
            .iter()
            .map_while(Result::ok)
            .find(|e| e.is_used() && e.name == name)
            .map(|e| e.ino))
    }
}

impl Redo {
    /// Notes blocks that a file had.
    fn give_up(&mut self, pieces: &[Piece], tree: &[BlockNo]) {
        self.lost
            .extend(pieces.iter().map(|p| (p.physical, u64::from(p.len))));
        self.lost.extend(tree.iter().map(|block| (*block, 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(logical: u64, physical: u64, len: u32) -> Piece {
        Piece {
            logical,
            physical: BlockNo(physical),
            len,
            unwritten: false,
        }
    }

    #[test]
    fn cutting_splits_pieces() {
        let mut all: Pieces = [piece(0, 100, 10), piece(10, 200, 10), piece(30, 300, 10)]
            .into_iter()
            .map(|p| (p.logical, p))
            .collect();
        cut(&mut all, 5, 32);
        let left: Vec<Piece> = all.values().copied().collect();
        assert_eq!(left, [piece(0, 100, 5), piece(32, 302, 8)]);
        cut(&mut all, 34, 36);
        assert_eq!(all.len(), 3);
        cut(&mut all, 0, 100);
        assert!(all.is_empty());
    }
}
