//! Applying fast commits: what `journal::fast_commit` read, redone on the recovered volume.
//!
//! Runs at mount, on a volume of its own that commits straight home, while the log is still marked
//! as in use. A crash in between recovers the log's blocks again and redoes everything, so each
//! step asks whether it has been done: names that exist, bits that are set, directories that have
//! their dots.
//!
//! # Order
//! Blocks that files gain are marked used before anything allocates (a directory that grows must
//! not take them). Names and inodes follow in the order of the log. Mappings of files are rebuilt
//! from the extents they end up with; blocks that are no longer mapped are freed last of all.
//!
//! Not responsible for: deleting what lost its last name (it goes on the orphan list, which the mount
//! finishes). Quota usage is counted anew at the end (`recovery::quota_recount`).

use super::Recovery;
use crate::alloc::bits::{bit, clear_bits, set_bits};
use crate::inode::{Purpose, disk_kind, empty_extent_root, ext4};
use crate::journal::buffer::BlockKind;
use crate::journal::fast_commit::{Operation, Operations};
use crate::map::extents::{Extent, Tree};
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::extent::{ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::fast_commit::ADDED_MAX;
use blockwright_ondisk::ext4::{self as disk, BlockNo, FileBlock, FileKind, Ino, InodeFlags};
use blockwright_vfs as vfs;
use blockwright_vfs::range_set::RangeSet;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const OP: &str = "fast-commit replay";
/// Offsets in an inode: where the mapping begins, and where the fields after it do.
const MAPPING: usize = 0x28;
const AFTER_MAPPING: usize = 0x64;
/// Enough for any one step: a name added, an inode, an extent tree's path.
const CREDITS: u32 = 512;

/// A file's extents, by first logical block.
type Extents = BTreeMap<u64, Extent>;

/// What a file had before, and what it ends up with.
struct File {
    before: Extents,
    after: Extents,
    /// Blocks of the tree it had.
    nodes: Vec<BlockNo>,
    generation: Option<u32>,
}

fn cut(extents: &mut Extents, range: Range<u64>) {
    let hit: Vec<Extent> = extents
        .range(..range.end)
        .rev()
        .map(|(_, e)| *e)
        .take_while(|e| e.end().0 > range.start)
        .collect();
    for e in hit {
        extents.remove(&e.logical.0);
        if e.logical.0 < range.start {
            let len = (range.start - e.logical.0) as u32;
            extents.insert(e.logical.0, Extent { len, ..e });
        }
        if e.end().0 > range.end {
            let skip = range.end - e.logical.0;
            let rest = Extent {
                logical: FileBlock(range.end),
                physical: BlockNo(e.physical.0 + skip),
                len: e.len - skip as u32,
                ..e
            };
            extents.insert(range.end, rest);
        }
    }
}

fn blocks_of(extents: &Extents) -> impl Iterator<Item = Range<u64>> + '_ {
    extents
        .values()
        .map(|e| e.physical.0..e.physical.0 + u64::from(e.len))
}

impl Recovery {
    /// Redoes the operations; what they change is home and flushed afterwards.
    ///
    /// # Errors
    /// `Corrupt` when an operation contradicts the volume, `UnsupportedFeature` for a file that is not
    /// mapped by extents; `Io`.
    pub(crate) fn apply_fast_commits(&self, operations: &Operations<'_>) -> Result<()> {
        self.load_orphans()?;
        let files = self.plan_extents(operations)?;
        let mut gained = RangeSet::default();
        for range in files.values().flat_map(|f| blocks_of(&f.after)) {
            gained.insert(range);
        }
        self.mark_blocks(&gained, true)?;
        let mut lost = RangeSet::default();
        operations.for_each(|operation| {
            if let Operation::Inode { ino, raw } = operation {
                self.collect_directory(*ino, raw, &mut lost)?;
            }
            self.apply_one(operation)
        })?;
        for (ino, file) in &files {
            for range in blocks_of(&file.before) {
                lost.insert(range);
            }
            if file.before != file.after {
                self.rebuild_extents(*ino, &file.after)?;
                for node in &file.nodes {
                    lost.insert(node.0..node.0 + 1);
                    self.volume.cache.remove(*node);
                }
            }
        }
        for range in gained.iter() {
            lost.remove(range);
        }
        self.mark_blocks(&lost, false)?;
        self.collect_nameless(operations)?;
        self.recount_quota()?;
        self.volume.journal.commit_running()
    }

    fn inode_in_use(&self, ino: Ino) -> Result<Option<Arc<vfs::Inode>>> {
        if !self.ialloc.is_used(ino)? {
            return Ok(None);
        }
        match self.stored.load_for(ino, Purpose::Orphan) {
            Ok(inode) => Ok(Some(inode)),
            Err(e) if e.kind() == ErrorKind::Stale => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn damaged(&self, ino: Ino, detail: &str) -> Error {
        Error::corrupt(OP, detail).ino(crate::vfs_ino(ino))
    }

    /// The extents of every file the operations touch, before and after.
    fn plan_extents(&self, operations: &Operations<'_>) -> Result<BTreeMap<Ino, File>> {
        let mut files: BTreeMap<Ino, File> = BTreeMap::new();
        let mut added = 0;
        operations.for_each(|operation| {
            self.plan_one(&mut files, &mut added, operation)?;
            if added > ADDED_MAX {
                let detail = format!(
                    "fast commits add more than {ADDED_MAX} files and extents: have e2fsck replay them"
                );
                return Err(Error::new(ErrorKind::UnsupportedFeature, OP).detail(detail));
            }
            Ok(())
        })?;
        Ok(files)
    }

    /// `added`: see [`ADDED_MAX`].
    fn plan_one(
        &self,
        files: &mut BTreeMap<Ino, File>,
        added: &mut usize,
        operation: &Operation,
    ) -> Result<()> {
        let ino = match operation {
            Operation::AddRange { ino, .. }
            | Operation::DelRange { ino, .. }
            | Operation::Inode { ino, .. } => *ino,
            _ => return Ok(()),
        };
        let file = match files.entry(ino) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                *added += 1;
                new.insert(self.file_before(ino)?)
            }
        };
        let had = file.after.len();
        match operation {
            Operation::AddRange { extent, .. } => {
                let (first, len) = (extent.physical, u64::from(extent.len));
                if len == 0 || !self.volume.geometry().contains_run(first, len) {
                    return Err(self.damaged(ino, "blocks are added that leave the volume"));
                }
                self.groups.check_block_range(OP, Some(ino), first, len)?;
                cut(&mut file.after, extent.logical.0..extent.end().0);
                file.after.insert(extent.logical.0, *extent);
            }
            Operation::DelRange { first, len, .. } => {
                cut(
                    &mut file.after,
                    first.0..first.0.saturating_add(u64::from(*len)),
                );
            }
            Operation::Inode { raw, .. } => {
                let generation = raw
                    .get(AFTER_MAPPING..AFTER_MAPPING + 4)
                    .and_then(|b| b.try_into().ok())
                    .map(u32::from_le_bytes);
                if file.generation.is_some() && file.generation != generation {
                    // The number was given to another file.
                    file.after.clear();
                }
                file.generation = generation;
            }
            _ => {}
        }
        *added = (*added + file.after.len()).saturating_sub(had);
        Ok(())
    }

    fn file_before(&self, ino: Ino) -> Result<File> {
        let mut file = File {
            before: Extents::new(),
            after: Extents::new(),
            nodes: Vec::new(),
            generation: None,
        };
        let Some(inode) = self.inode_in_use(ino)? else {
            return Ok(file);
        };
        file.generation = Some(inode.generation());
        let own = ext4(&inode);
        let map = own.map.read();
        if inode.kind() == vfs::FileKind::Regular && map.flags.contains(InodeFlags::EXTENTS) {
            let tree = Tree::new(&self.alloc, ino, own.seed);
            tree.for_each(&map.root, |e| {
                file.before.insert(e.logical.0, e);
            })?;
            self.tree_nodes(
                &map.root,
                NodePlace::Inode,
                NodeRules::ROOT,
                &mut file.nodes,
            )?;
        }
        file.after = file.before.clone();
        Ok(file)
    }

    /// The blocks below a node. The tree has been read through before, so it is sound.
    fn tree_nodes(
        &self,
        bytes: &[u8],
        place: NodePlace,
        rules: NodeRules,
        nodes: &mut Vec<BlockNo>,
    ) -> Result<()> {
        let node = ExtentNode::parse(bytes, place, rules, self.volume.geometry())
            .map_err(|e| Error::corrupt(OP, e.to_string()))?;
        for (position, index) in node.indexes().enumerate() {
            nodes.push(index.child);
            if let Some(rules) = node.child_rules(position, rules) {
                let child = self
                    .volume
                    .cache
                    .read(index.child, BlockKind::ExtentNode, |_| Ok(()))?;
                self.tree_nodes(&child.data(), NodePlace::Block(index.child), rules, nodes)?;
            }
        }
        Ok(())
    }

    fn apply_one(&self, operation: &Operation) -> Result<()> {
        match operation {
            Operation::AddRange { .. } | Operation::DelRange { .. } => Ok(()),
            Operation::Inode { ino, raw } => self.put_inode(*ino, raw),
            Operation::Create { parent, ino, name } => self.add_name(*parent, *ino, name, true),
            Operation::Link { parent, ino, name } => self.add_name(*parent, *ino, name, false),
            Operation::Unlink { parent, ino, name } => self.remove_name(*parent, *ino, name),
        }
    }

    /// The blocks of a removed directory whose number another inode gets. (Files: see
    /// [`Recovery::plan_extents`].)
    fn collect_directory(&self, ino: Ino, raw: &[u8], lost: &mut RangeSet) -> Result<()> {
        let Some(inode) = self.inode_in_use(ino)? else {
            return Ok(());
        };
        let generation = inode.generation().to_le_bytes();
        let same = raw.get(AFTER_MAPPING..AFTER_MAPPING + 4) == Some(&generation[..]);
        let own = ext4(&inode);
        let map = own.map.read();
        let is_dir = inode.kind() == vfs::FileKind::Directory;
        if same || !is_dir || !map.flags.contains(InodeFlags::EXTENTS) {
            return Ok(());
        }
        let mut nodes = Vec::new();
        self.tree_nodes(&map.root, NodePlace::Inode, NodeRules::ROOT, &mut nodes)?;
        let tree = Tree::new(&self.alloc, ino, own.seed);
        let mut runs: Vec<Range<u64>> = nodes.iter().map(|n| n.0..n.0 + 1).collect();
        tree.for_each(&map.root, |e| {
            runs.push(e.physical.0..e.physical.0 + u64::from(e.len));
        })?;
        for run in runs {
            for block in run.clone() {
                self.volume.cache.remove(BlockNo(block));
            }
            lost.insert(run);
        }
        Ok(())
    }

    /// Puts the logged bytes of an inode into its table, except for the mapping.
    fn put_inode(&self, ino: Ino, raw: &[u8]) -> Result<()> {
        let geo = self.volume.geometry();
        let size = usize::from(geo.inode_size);
        if raw.len() < disk::inode::BASE_SIZE || raw.len() > size {
            return Err(self.damaged(ino, "the logged inode has an impossible size"));
        }
        let was_used = self.ialloc.is_used(ino)?;
        let (buffer, at) = self.table.buffer(ino)?;
        let mut new = buffer.data()[at..at + size].to_vec();
        let generation = AFTER_MAPPING..AFTER_MAPPING + 4;
        if !was_used || new[generation.clone()] != raw[generation] {
            // Another file: nothing of the old one counts.
            new.fill(0);
        }
        let flags_at = 0x20;
        let flags = raw[flags_at..flags_at + 4]
            .try_into()
            .map_or(0, u32::from_le_bytes);
        let flags = InodeFlags::from_bits_retain(flags);
        new[..MAPPING].copy_from_slice(&raw[..MAPPING]);
        new[AFTER_MAPPING..raw.len()].copy_from_slice(&raw[AFTER_MAPPING..]);
        if !flags.contains(InodeFlags::EXTENTS) {
            // Inline data, a short link's target, a device's number.
            new[MAPPING..AFTER_MAPPING].copy_from_slice(&raw[MAPPING..AFTER_MAPPING]);
        } else if new[MAPPING..MAPPING + 2] != 0xF30Au16.to_le_bytes() {
            new[MAPPING..AFTER_MAPPING].copy_from_slice(&empty_extent_root());
        }
        let mode = u16::from_le_bytes([new[0], new[1]]);
        let Some(kind) = FileKind::from_mode(mode) else {
            return Err(self.damaged(ino, "the logged inode has no kind"));
        };
        disk::inode::set_checksum(&mut new, geo, ino)
            .map_err(|e| Error::corrupt(OP, e.to_string()))?;
        let h = self.volume.journal.start(CREDITS, OP)?;
        h.modify(&buffer, |block| block[at..at + size].copy_from_slice(&new))?;
        if !was_used {
            self.ialloc
                .mark_used(&h, ino, kind == FileKind::Directory)?;
        }
        Ok(())
    }

    fn existing(&self, ino: Ino, what: &str) -> Result<Arc<vfs::Inode>> {
        self.inode_in_use(ino)?
            .ok_or_else(|| self.damaged(ino, &format!("{what} is not in use")))
    }

    fn add_name(&self, parent: Ino, ino: Ino, name: &[u8], create: bool) -> Result<()> {
        let dir = self.existing(parent, "the directory of a new name")?;
        let inode = self.existing(ino, "the inode of a new name")?;
        let is_dir = inode.kind() == vfs::FileKind::Directory;
        if create && is_dir {
            self.init_directory(&inode, parent)?;
        }
        let h = self.volume.journal.start(CREDITS, OP)?;
        let added = match self.dirs.find(&dir, name)? {
            Some(found) if found.ino == ino => false,
            Some(found) => {
                self.dirs
                    .retarget(&h, &dir, &found, ino, disk_kind(inode.kind()))?;
                true
            }
            None => {
                self.dirs
                    .insert(&h, &dir, name, ino, disk_kind(inode.kind()))?;
                true
            }
        };
        if create {
            inode.update_attr(|a| a.nlink = if is_dir { 2 } else { 1 });
        } else if added {
            inode.update_attr(|a| a.nlink = a.nlink.saturating_add(1));
        }
        if added && create && is_dir {
            // 1 stands for "more than can be counted".
            dir.update_attr(|a| {
                a.nlink = match a.nlink {
                    1 => 1,
                    n if n >= disk::types::LINK_MAX - 1 => 1,
                    n => n + 1,
                }
            });
        }
        self.inodes.store(&h, &dir)?;
        self.inodes.store(&h, &inode)
    }

    /// Gives a directory that was created its first block, unless it has one.
    fn init_directory(&self, inode: &vfs::Inode, parent: Ino) -> Result<()> {
        let own = ext4(inode);
        let (root, flags) = {
            let map = own.map.read();
            (map.root, map.flags)
        };
        if flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        if flags.contains(InodeFlags::EXTENTS) {
            let first = Tree::new(&self.alloc, own.ino, own.seed).lookup(&root, FileBlock(0))?;
            if first.extent.is_some() {
                return Ok(());
            }
        }
        {
            let mut map = own.map.write();
            map.disk_size = 0;
            map.blocks = self.xattr_sectors(inode);
        }
        inode.update_attr(|a| a.size = 0);
        let h = self.volume.journal.start(CREDITS, OP)?;
        self.dirs.init(&h, inode, parent)?;
        self.inodes.store(&h, inode)
    }

    fn remove_name(&self, parent: Ino, ino: Ino, name: &[u8]) -> Result<()> {
        let dir = self.existing(parent, "the directory of a removed name")?;
        let Some(found) = self.dirs.find(&dir, name)?.filter(|f| f.ino == ino) else {
            return Ok(());
        };
        let h = self.volume.journal.start(CREDITS, OP)?;
        self.dirs.remove(&h, &dir, &found)?;
        if let Some(inode) = self.inode_in_use(ino)? {
            let is_dir = inode.kind() == vfs::FileKind::Directory;
            inode.update_attr(|a| a.nlink = if is_dir { 0 } else { a.nlink.saturating_sub(1) });
            if is_dir {
                dir.update_attr(|a| {
                    if a.nlink > 2 {
                        a.nlink -= 1;
                    }
                });
            }
            self.inodes.store(&h, &inode)?;
        }
        self.inodes.store(&h, &dir)
    }

    /// Space of an inode's attribute block, in units of 512 bytes.
    fn xattr_sectors(&self, inode: &vfs::Inode) -> u64 {
        let has_block = ext4(inode).body.lock().file_acl.0 != 0;
        if has_block {
            u64::from(self.volume.geometry().block_size / 512)
        } else {
            0
        }
    }

    /// Gives a file a new tree with these extents.
    fn rebuild_extents(&self, ino: Ino, extents: &Extents) -> Result<()> {
        let Some(inode) = self.inode_in_use(ino)? else {
            return Ok(());
        };
        let own = ext4(&inode);
        if inode.kind() != vfs::FileKind::Regular {
            return Ok(());
        }
        let unit = u64::from(self.volume.geometry().block_size / 512);
        let data: u64 = extents.values().map(|e| u64::from(e.len)).sum();
        {
            let mut map = own.map.write();
            if !map.flags.contains(InodeFlags::EXTENTS) {
                if extents.is_empty() {
                    return Ok(());
                }
                return Err(Error::new(ErrorKind::UnsupportedFeature, OP)
                    .ino(inode.ino())
                    .detail("blocks are added to a file that is not mapped by extents"));
            }
            map.root = empty_extent_root();
            map.blocks = data * unit + self.xattr_sectors(&inode);
        }
        let tree = Tree::new(&self.alloc, ino, own.seed);
        for extent in extents.values() {
            let h = self.volume.journal.start(CREDITS, OP)?;
            let mut map = own.map.write();
            tree.insert(&h, &mut map, *extent)?;
            self.inodes.store_locked(&h, &inode, &map)?;
        }
        let h = self.volume.journal.start(CREDITS, OP)?;
        self.inodes.store(&h, &inode)
    }

    /// Sets or clears the bits of blocks, and adjusts totals by those that changed.
    fn mark_blocks(&self, blocks: &RangeSet, used: bool) -> Result<()> {
        let geo = self.volume.geometry();
        for range in blocks.iter() {
            let mut at = range.start;
            while at < range.end {
                let Some((group, start)) = geo.split_block(BlockNo(at)) else {
                    return Err(Error::corrupt(OP, "blocks outside of the volume").block(at));
                };
                let len = (range.end - at).min(u64::from(geo.group_blocks(group) - start)) as u32;
                self.mark_in_group(group, start, len, used)?;
                at += u64::from(len.max(1));
            }
        }
        Ok(())
    }

    fn mark_in_group(&self, group: disk::GroupNo, start: u32, len: u32, used: bool) -> Result<()> {
        let geo = self.volume.geometry();
        let h = self.volume.journal.start(CREDITS, OP)?;
        let group = self.groups.group(group)?;
        let mut guard = group.lock();
        let st = &mut *guard;
        let changed =
            self.groups
                .change_block_bitmap(&h, group.no, &mut st.desc, |bytes, desc| {
                    let changed = (start..start + len)
                        .filter(|n| bit(bytes, *n) != used)
                        .count() as u32;
                    if used {
                        set_bits(bytes, start, len);
                    } else {
                        clear_bits(bytes, start, len);
                    }
                    desc.set_block_bitmap_csum(bytes, geo);
                    changed
                })?;
        // Built from the bitmap as it was; the allocator reads it again.
        st.map = None;
        let free = &mut st.desc.free_clusters;
        *free = if used {
            free.saturating_sub(changed)
        } else {
            free.saturating_add(changed)
        };
        self.groups.store_desc(&h, group.no, st)?;
        drop(guard);
        let delta = i64::from(changed);
        self.volume
            .sb
            .add_free_blocks(if used { -delta } else { delta });
        Ok(())
    }

    /// Inodes left without a name go on the orphan list: the mount deletes them.
    fn collect_nameless(&self, operations: &Operations<'_>) -> Result<()> {
        let mut inodes: BTreeSet<Ino> = BTreeSet::new();
        operations.for_each(|operation| {
            inodes.insert(match operation {
                Operation::AddRange { ino, .. }
                | Operation::DelRange { ino, .. }
                | Operation::Create { ino, .. }
                | Operation::Link { ino, .. }
                | Operation::Unlink { ino, .. }
                | Operation::Inode { ino, .. } => *ino,
            });
            Ok(())
        })?;
        for ino in inodes {
            let Some(inode) = self.inode_in_use(ino)? else {
                continue;
            };
            if inode.attr().nlink == 0 {
                let h = self.volume.journal.start(CREDITS, OP)?;
                self.orphans.add(&h, &inode)?;
                self.inodes.store(&h, &inode)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, len: u32) -> Extent {
        Extent {
            logical: FileBlock(logical),
            physical: BlockNo(physical),
            len,
            unwritten: false,
        }
    }

    #[test]
    fn cutting_splits_extents() {
        let mut all = Extents::new();
        for e in [extent(0, 100, 10), extent(10, 200, 10), extent(30, 300, 10)] {
            all.insert(e.logical.0, e);
        }
        cut(&mut all, 5..32);
        let left: Vec<Extent> = all.values().copied().collect();
        assert_eq!(left, [extent(0, 100, 5), extent(32, 302, 8)]);
        cut(&mut all, 34..36);
        let left: Vec<Extent> = all.values().copied().collect();
        assert_eq!(
            left,
            [extent(0, 100, 5), extent(32, 302, 2), extent(36, 306, 4)]
        );
        cut(&mut all, 0..100);
        assert!(all.is_empty());
    }
}
