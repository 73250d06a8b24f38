//! [`Groups`]: block groups in memory, their descriptors, and where the volume's fixed metadata lies.
//!
//! It owns a `Group` for each group that was touched, the system zone, and the journal's blocks. It calls `volume` only, and never
//! decides which blocks or inodes to hand out (`alloc`, `alloc::inodes`).
//!
//! A `Group` is made when it is first touched and lives as long as the mount; a 16 TiB volume
//! has 131 072 groups, so the table is sparse and a group is small until its bitmap is loaded.
//! While a group exists, its `GroupState::desc` is the truth; every change is
//! written through to the descriptor block within the caller's handle.
//!
//! The system zone is the set of blocks no file may own: superblock copies, descriptors, bitmaps,
//! inode tables. It is computed per flexible group when first asked for.
//!
//! # Locks
//! A group's state is a mutex of rank "group"; below it only metadata buffers. Never two groups at
//! once.
//!
//! # Crash order
//! None of its own: a descriptor changes in the handle that changes its bitmap.
//!
//! # References
//! kernel documentation, "ext4 Data Structures: Block Group Descriptors", "Layout".

use super::bits::set_bits;
use super::zones::Zones;
use crate::alloc::FreeMap;
use crate::alloc::pending::PendingInodes;
use crate::growing::Growing;
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, BufferRef};
use crate::volume::Volume;
use crate::{Error, Result};
use blockwright_ondisk::ext4::{BlockNo, FormatError, GroupDesc, GroupFlags, GroupNo, Ino};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Groups per chunk of the table.
const CHUNK: usize = 256;
/// Levels of the table: enough for 2^32 groups.
const LEVELS: usize = 25;
/// Most groups whose metadata one system zone lists, however large flexible groups are.
const ZONE_GROUPS_MAX: u32 = 1024;

/// Everything about a group that changes.
pub(crate) struct GroupState {
    /// The descriptor.
    pub(crate) desc: GroupDesc,
    /// Available blocks, while loaded. Blocks taken but not yet marked on disk, and blocks freed
    /// but not yet committed, are unavailable here.
    pub(crate) map: Option<Box<FreeMap>>,
    /// Blocks taken in memory and not yet marked used on disk. Not zero: `map` must stay loaded.
    pub(crate) taken: u32,
    /// Blocks free on disk whose transaction has not committed. Not zero: `map` must stay loaded.
    pub(crate) pending: u32,
    /// The block bitmap was found to be wrong; nothing is allocated or freed here.
    pub(crate) block_bitmap_bad: bool,
    /// The inode bitmap was found to be wrong.
    pub(crate) inode_bitmap_bad: bool,
    /// Inodes freed in a transaction that has not committed.
    pub(crate) inodes_pending: PendingInodes,
    /// The inode bitmap's contents agreed with the descriptor once.
    pub(crate) inode_bitmap_checked: bool,
}

/// One block group.
pub(crate) struct Group {
    /// Its number.
    pub(crate) no: GroupNo,
    state: Mutex<GroupState>,
}

impl Group {
    /// Locks the group.
    pub(crate) fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock()
    }

    /// Locks the group unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, GroupState>> {
        self.state.try_lock()
    }
}

type Chunk<T> = Box<[OnceLock<T>]>;
type Level<T> = Box<[OnceLock<Chunk<T>>]>;

/// A table that costs one word per chunk until something is put into a chunk. It has no end: each level has twice as many chunks as the one before,
/// and nothing in it moves when the volume grows.
struct Sparse<T> {
    levels: [OnceLock<Level<T>>; LEVELS],
}

impl<T> Sparse<T> {
    fn new() -> Self {
        Sparse {
            levels: std::array::from_fn(|_| OnceLock::new()),
        }
    }

    /// Level, and chunk in the level.
    fn place(index: usize) -> (usize, usize) {
        let n = index / CHUNK + 1;
        let level = n.ilog2() as usize;
        (level, n - (1 << level))
    }

    fn slot(&self, index: usize) -> Option<&OnceLock<T>> {
        let (level, at) = Self::place(index);
        let chunk = self
            .levels
            .get(level)?
            .get_or_init(|| (0..1usize << level).map(|_| OnceLock::new()).collect())
            .get(at)?
            .get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        chunk.get(index % CHUNK)
    }

    fn find(&self, index: usize) -> Option<&T> {
        let (level, at) = Self::place(index);
        let chunk = self.levels.get(level)?.get()?.get(at)?.get()?;
        chunk.get(index % CHUNK)?.get()
    }
}

/// See the module's head.
pub struct Groups {
    volume: Arc<Volume>,
    groups: Sparse<Arc<Group>>,
    /// The system zone, by `zone_groups` groups.
    zones: Growing<Sparse<Vec<Range<u64>>>>,
    zone_groups: u32,
    /// The journal's blocks.
    journal: Zones,
}

impl Groups {
    /// A table without any group in it. `journal`: the journal's runs of blocks.
    pub(crate) fn new(
        volume: &Arc<Volume>,
        journal: impl IntoIterator<Item = (BlockNo, u32)>,
    ) -> Self {
        let geo = volume.geometry();
        let zone_groups = geo.groups_per_flex.clamp(1, ZONE_GROUPS_MAX);
        let zones = Zones::default();
        for (start, count) in journal {
            zones.add(start, u64::from(count));
        }
        Groups {
            groups: Sparse::new(),
            zones: Growing::new(Sparse::new()),
            zone_groups,
            journal: zones,
            volume: Arc::clone(volume),
        }
    }

    /// Forgets where fixed metadata lies, after the geometry has changed: the last zone has more groups.
    pub(crate) fn forget_zones(&self) {
        self.zones.replace(Sparse::new());
    }

    /// The groups that are in memory.
    pub(crate) fn loaded(&self, group: GroupNo) -> Option<&Arc<Group>> {
        self.groups.find(group.0 as usize)
    }
    fn desc_buffer(&self, group: GroupNo) -> Result<(BufferRef, Range<usize>)> {
        const OP: &str = "read group descriptor";
        let geo = self.volume.geometry();
        let (index, at) = geo.desc_position(group);
        let Some(block) = geo.desc_block(index) else {
            return Err(Error::corrupt(
                OP,
                format!("group {group} has no descriptor"),
            ));
        };
        // Descriptors have a checksum each, verified when a group is loaded.
        let buffer = self
            .volume
            .cache
            .read(block, BlockKind::GroupDesc, |_| Ok(()))?;
        Ok((buffer, at..at + usize::from(geo.desc_size)))
    }

    fn read_desc(&self, group: GroupNo) -> Result<GroupDesc> {
        let (buffer, at) = self.desc_buffer(group)?;
        let data = buffer.data();
        let bytes = data.get(at).unwrap_or_default();
        GroupDesc::parse(bytes, self.volume.geometry(), group).map_err(|e| {
            self.volume
                .corrupt_format("read group descriptor", None, Some(buffer.block()), &e)
        })
    }

    /// A group's descriptor as it is now, without making the group.
    pub(crate) fn peek_desc(&self, group: GroupNo) -> Result<GroupDesc> {
        match self.loaded(group) {
            Some(g) => Ok(g.lock().desc),
            None => self.read_desc(group),
        }
    }

    /// Where a group's inode table begins.
    ///
    /// # Errors
    /// `Corrupt` when the group's descriptor is wrong; I/O errors.
    pub fn inode_table(&self, group: GroupNo) -> Result<BlockNo> {
        self.peek_desc(group).map(|d| d.inode_table)
    }

    /// The group with this number, read from its descriptor when it is first touched.
    pub(crate) fn group(&self, group: GroupNo) -> Result<&Arc<Group>> {
        const OP: &str = "load group";
        let slot = self.groups.slot(group.0 as usize);
        let Some(slot) = slot.filter(|_| group.0 < self.volume.geometry().groups_count) else {
            return Err(Error::corrupt(OP, format!("there is no group {group}")));
        };
        if let Some(found) = slot.get() {
            return Ok(found);
        }
        // Two threads may read the same descriptor; it does not change before the group exists.
        let desc = self.read_desc(group)?;
        Ok(slot.get_or_init(|| {
            Arc::new(Group {
                no: group,
                state: Mutex::new(GroupState {
                    desc,
                    map: None,
                    taken: 0,
                    pending: 0,
                    block_bitmap_bad: false,
                    inode_bitmap_bad: false,
                    inodes_pending: PendingInodes::default(),
                    inode_bitmap_checked: false,
                }),
            })
        }))
    }

    /// Writes a group's descriptor back into its block, in the handle.
    pub(crate) fn store_desc(
        &self,
        h: &Handle<'_>,
        group: GroupNo,
        state: &GroupState,
    ) -> Result<()> {
        let (buffer, at) = self.desc_buffer(group)?;
        let geo = self.volume.geometry();
        h.modify(&buffer, |bytes| match bytes.get_mut(at) {
            Some(bytes) => state.desc.encode_into(bytes, geo, group),
            None => Err(FormatError::Truncated {
                structure: "group descriptor",
                needed: usize::from(geo.desc_size),
                found: 0,
            }),
        })?
        .map_err(|e| {
            self.volume
                .corrupt_format("store group descriptor", None, Some(buffer.block()), &e)
        })
    }

    /// The blocks of fixed metadata among the groups of one zone.
    fn zone(&self, group: GroupNo) -> Result<&[Range<u64>]> {
        // Before the geometry: a zone of a former shape must not get into the table of the new one.
        let zones = self.zones.get();
        let geo = self.volume.geometry();
        let unit = self.zone_groups;
        let index = group.0 / unit;
        let Some(slot) = zones.slot(index as usize) else {
            return Ok(&[]);
        };
        if let Some(zone) = slot.get() {
            return Ok(zone);
        }
        let mut ranges = Vec::new();
        let first = index * unit;
        for g in first..first.saturating_add(unit).min(geo.groups_count) {
            let g = GroupNo(g);
            let start = geo.group_first_block(g).0;
            ranges.push(start..start + u64::from(geo.base_meta_blocks(g)));
            // From the block, not the group: its caller may hold that very group's lock, and where
            // metadata lies never changes.
            let desc = self.read_desc(g)?;
            for (at, len) in [
                (desc.block_bitmap, 1),
                (desc.inode_bitmap, 1),
                (desc.inode_table, u64::from(geo.inode_table_blocks)),
            ] {
                ranges.push(at.0..at.0 + len);
            }
        }
        ranges.retain(|r| r.start < r.end);
        ranges.sort_unstable_by_key(|r| r.start);
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for r in ranges {
            match merged.last_mut() {
                Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
                _ => merged.push(r),
            }
        }
        Ok(slot.get_or_init(|| merged))
    }

    /// The first stretch of fixed metadata that a run of blocks overlaps.
    pub(crate) fn system_overlap(&self, start: BlockNo, count: u64) -> Result<Option<Range<u64>>> {
        let geo = self.volume.geometry();
        let range = start.0..start.0.saturating_add(count);
        if self.journal.overlaps(start, count) {
            return Ok(Some(range));
        }
        let mut at = range.start;
        while at < range.end {
            let Some(group) = geo.group_of_block(BlockNo(at)) else {
                return Ok(Some(at..range.end));
            };
            if let Some(hit) = overlap(self.zone(group)?, &range) {
                return Ok(Some(hit));
            }
            let unit = self.zone_groups;
            let next = (group.0 / unit + 1).saturating_mul(unit);
            if next >= geo.groups_count {
                break;
            }
            at = geo.group_first_block(GroupNo(next)).0;
        }
        Ok(None)
    }

    /// Parts of the system zone within one group, as offsets in the group.
    pub(crate) fn system_blocks_in_group(&self, group: GroupNo) -> Result<Vec<Range<u32>>> {
        let geo = self.volume.geometry();
        let first = geo.group_first_block(group).0;
        let end = first + u64::from(geo.group_blocks(group));
        let clip = |r: &Range<u64>| {
            let (a, b) = (r.start.max(first), r.end.min(end));
            (a < b).then(|| (a - first) as u32..(b - first) as u32)
        };
        Ok(self.zone(group)?.iter().filter_map(clip).collect())
    }

    /// The block bitmap of a group whose bitmap was never written: its fixed metadata, and the bits
    /// behind the group's end.
    pub(crate) fn uninit_block_bitmap(&self, group: GroupNo) -> Result<Vec<u8>> {
        let geo = self.volume.geometry();
        let mut bits = vec![0u8; geo.block_len()];
        for r in self.system_blocks_in_group(group)? {
            set_bits(&mut bits, r.start, r.end - r.start);
        }
        let clusters = geo.group_clusters(group);
        set_bits(
            &mut bits,
            clusters,
            (geo.block_size * 8).saturating_sub(clusters),
        );
        Ok(bits)
    }

    /// Changes a group's block bitmap in the handle. One that was never written is made from the layout first. `change` keeps the
    /// descriptor's checksum of the bitmap right.
    pub(crate) fn change_block_bitmap<R>(
        &self,
        h: &Handle<'_>,
        group: GroupNo,
        desc: &mut GroupDesc,
        change: impl FnOnce(&mut [u8], &mut GroupDesc) -> R,
    ) -> Result<R> {
        let (block, kind) = (desc.block_bitmap, BlockKind::BlockBitmap(group));
        if !self.block_bitmap_is_uninit(desc) {
            let buffer = self.volume.cache.read(block, kind, |_| Ok(()))?;
            return h.modify(&buffer, |bytes| change(bytes, desc));
        }
        let fresh = self.uninit_block_bitmap(group)?;
        let (_, value) = h.create(block, kind, |bytes| {
            let n = bytes.len().min(fresh.len());
            bytes[..n].copy_from_slice(&fresh[..n]);
            change(bytes, desc)
        })?;
        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
        Ok(value)
    }

    /// Whether a group's block bitmap was never written: the descriptor says that it follows from the layout.
    pub(crate) fn block_bitmap_is_uninit(&self, desc: &GroupDesc) -> bool {
        self.has_group_checksums() && desc.flags.contains(GroupFlags::BLOCK_UNINIT)
    }

    /// Whether the flags in descriptors (UNINIT, ZEROED) and `itable_unused` mean anything.
    pub(crate) fn has_group_checksums(&self) -> bool {
        self.volume.geometry().checksums != blockwright_ondisk::ext4::ChecksumKind::None
    }

    /// Checks a run of blocks that an on-disk pointer of a file names: inside of the volume and none of the
    /// volume's own structures.
    ///
    /// # Errors
    /// `Corrupt`, after [`Volume::corrupt`].
    pub fn check_block_range(
        &self,
        op: &'static str,
        ino: Option<Ino>,
        block: BlockNo,
        count: u64,
    ) -> Result<()> {
        let geo = self.volume.geometry();
        if !geo.contains_run(block, count) {
            let detail = format!(
                "a pointer to {count} blocks from {block} leaves the volume of {} blocks",
                geo.blocks_count
            );
            return Err(self.volume.corrupt(op, ino, Some(block), detail));
        }
        if self.volume.options.block_validity
            && (Zones::overlaps_fixed(geo, block, count)
                || self.system_overlap(block, count)?.is_some())
        {
            let detail = format!("a pointer to {count} blocks from {block} hits metadata");
            return Err(self.volume.corrupt(op, ino, Some(block), detail));
        }
        Ok(())
    }
}

fn overlap(sorted: &[Range<u64>], range: &Range<u64>) -> Option<Range<u64>> {
    let at = sorted.partition_point(|r| r.end <= range.start);
    sorted.get(at).filter(|r| r.start < range.end).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_overlaps() {
        let zone = [10..20, 30..31];
        assert_eq!(overlap(&zone, &(0..10)), None);
        assert_eq!(overlap(&zone, &(19..25)), Some(10..20));
        assert_eq!(overlap(&zone, &(20..31)), Some(30..31));
        assert_eq!(overlap(&zone, &(31..99)), None);
    }

    #[test]
    fn sparse_tables_allocate_on_touch() {
        let t: Sparse<u32> = Sparse::new();
        assert!(t.find(999).is_none());
        assert!(t.slot(999).unwrap().set(5).is_ok());
        assert_eq!(t.find(999), Some(&5));
        assert!(t.levels[0].get().is_none());
        // Chunks 0 to 6 are in three levels; nothing is found twice.
        for index in 0..7 * CHUNK {
            let slot = t.slot(index).unwrap();
            assert!(slot.get().is_none() == (index != 999));
            let _ = slot.set(index as u32);
        }
        assert_eq!(t.find(6 * CHUNK), Some(&(6 * CHUNK as u32)));
        assert!(t.find(u32::MAX as usize).is_none());
    }
}
