//! [`InodeAllocator`]: which inode a new file gets, and the bitmaps that record it.
//!
//! It owns counts of each flexible group. It calls `volume`, `groups` and the block allocator's counts. It never touches an inode's
//! bytes (`inode`) or the orphan list.
//!
//! Files go into their directory's group, and when that is full spread by a hash, then
//! everywhere. Directories are spread (Orlov): those at the top level, and under directories marked
//! so, go to the emptiest flexible groups; others stay near their parent as long as its flexible group
//! has its share of free inodes, free blocks and not too many directories.
//!
//! Inode tables may be uninitialised (`INODE_UNINIT`, `itable_unused`): a table block in which no other
//! inode is in use is created zeroed, never read.
//!
//! # Locks
//! The group's lock, one at a time. Counts per flexible group are atomics and only guide.
//!
//! # Crash order
//! An inode freed in a transaction is not handed out before that transaction is durable: a crash
//! could otherwise bring the old file back into an inode that a new one already uses.

use super::Allocator;
use super::bits::{bit, clear_bits, first_other, set_bits};
use super::groups::{Group, GroupState, Groups};
use crate::growing::Growing;
use crate::journal::Handle;
use crate::journal::buffer::BlockKind;
use crate::vfs_ino;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::{GroupDesc, GroupFlags, GroupNo, Ino};
use blockwright_vfs::{FileKind, Inode, InodeFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What is known of a flexible group without its groups' locks.
#[derive(Default)]
struct FlexCounts {
    free_inodes: AtomicU32,
    used_dirs: AtomicU32,
}

/// Credits for allocating an inode: bitmap, descriptor, table block, and those of a group's first inode.
pub(crate) const ALLOC_CREDITS: u32 = 6;
/// Credits for freeing an inode.
pub(crate) const FREE_CREDITS: u32 = 4;

/// See the module's head.
pub struct InodeAllocator {
    volume: Arc<Volume>,
    groups: Arc<Groups>,
    alloc: Arc<Allocator>,
    flex: Growing<Box<[FlexCounts]>>,
    groups_per_flex: u32,
    /// Decorrelates top-level directories created one after another.
    spread: AtomicU64,
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53) ^ (x >> 29)
}

impl InodeAllocator {
    /// An allocator that knows no free inode yet; see [`InodeAllocator::note_group`].
    pub(crate) fn new(alloc: &Arc<Allocator>) -> Self {
        let geo = alloc.volume.geometry();
        // Without flex_bg, or with enormous ones, the unit of spreading is 16 groups at most.
        let groups_per_flex = geo.groups_per_flex.clamp(1, 16);
        let count = geo.groups_count.div_ceil(groups_per_flex);
        InodeAllocator {
            volume: Arc::clone(&alloc.volume),
            groups: Arc::clone(&alloc.groups),
            alloc: Arc::clone(alloc),
            flex: Growing::new((0..count).map(|_| FlexCounts::default()).collect()),
            groups_per_flex,
            spread: AtomicU64::new(0),
        }
    }

    pub(crate) fn note_group(&self, group: GroupNo, desc: &GroupDesc) {
        if let Some(flex) = self.flex_of(group) {
            flex.free_inodes
                .fetch_add(desc.free_inodes, Ordering::Relaxed);
            flex.used_dirs.fetch_add(desc.used_dirs, Ordering::Relaxed);
        }
    }

    /// Makes room for the counts of more groups. No handle is open: counts change in handles only.
    pub(crate) fn grow(&self, groups: u32) {
        let old = self.flex.get();
        let count = (groups.div_ceil(self.groups_per_flex) as usize).max(old.len());
        let copy = |n: usize| match old.get(n) {
            Some(flex) => FlexCounts {
                free_inodes: AtomicU32::new(flex.free_inodes.load(Ordering::Relaxed)),
                used_dirs: AtomicU32::new(flex.used_dirs.load(Ordering::Relaxed)),
            },
            None => FlexCounts::default(),
        };
        self.flex.replace((0..count).map(copy).collect());
    }

    fn flex_of(&self, group: GroupNo) -> Option<&FlexCounts> {
        self.flex
            .get()
            .get((group.0 / self.groups_per_flex) as usize)
    }

    /// Allocates an inode near `parent`, in the handle: bitmap, descriptor, totals. Credits: 4 (bitmap,
    /// descriptor, table block, and one to spare for a group's first inode).
    ///
    /// # Errors
    /// `NoSpace` when no inode is free.
    pub(crate) fn alloc(&self, h: &Handle<'_>, parent: &Inode, kind: FileKind) -> Result<Ino> {
        let geo = self.volume.geometry();
        let parent_ino = u32::try_from(parent.ino().0).map_or(Ino::ROOT, Ino);
        let home = geo.split_ino(parent_ino).map_or(GroupNo(0), |(g, _)| g);
        let is_dir = kind == FileKind::Directory;
        let start = if is_dir {
            let top = parent_ino == Ino::ROOT || parent.attr().flags.contains(InodeFlags::TOPDIR);
            self.directory_group(home, top)
        } else {
            home
        };
        let groups = geo.groups_count;
        // The start, then by doubling steps from a place the parent hashes to, then all in order.
        let hashed = (u64::from(start.0) + mix(parent.ino().0)) % u64::from(groups);
        let steps =
            (0..groups.ilog2() + 1).map(|i| ((hashed + (1u64 << i)) % u64::from(groups)) as u32);
        let order = std::iter::once(start.0)
            .chain(steps.filter(|_| !is_dir))
            .chain(
                (1..groups)
                    .map(|i| ((u64::from(start.0) + u64::from(i)) % u64::from(groups)) as u32),
            );
        for g in order {
            let full = self
                .flex_of(GroupNo(g))
                .is_none_or(|f| f.free_inodes.load(Ordering::Relaxed) == 0);
            if full {
                continue;
            }
            if let Some(ino) = self.alloc_in(h, GroupNo(g), is_dir)? {
                return Ok(ino);
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "allocate inode").detail("no inode is free"))
    }

    /// The group for a new directory whose parent is in `home`.
    fn directory_group(&self, home: GroupNo, top: bool) -> GroupNo {
        let geo = self.volume.geometry();
        let flex_counts = self.flex.get();
        let flexes = flex_counts.len() as u64;
        let inodes_per_flex = u64::from(geo.inodes_per_group) * u64::from(self.groups_per_flex);
        let blocks_per_flex = u64::from(geo.blocks_per_group) * u64::from(self.groups_per_flex);
        let average_inodes = self.volume.sb.free_inodes() / flexes;
        let average_blocks = self.volume.sb.free_blocks() / flexes;
        let blocks_free = |flex: u64| -> u64 {
            let first = flex as u32 * self.groups_per_flex;
            let end = first
                .saturating_add(self.groups_per_flex)
                .min(geo.groups_count);
            (first..end)
                .map(|g| u64::from(self.alloc.free_in_group(GroupNo(g))))
                .sum()
        };
        let counts = |flex: u64| {
            let f = &flex_counts[flex as usize];
            (
                u64::from(f.free_inodes.load(Ordering::Relaxed)),
                u64::from(f.used_dirs.load(Ordering::Relaxed)),
            )
        };
        let home_flex = u64::from(home.0 / self.groups_per_flex).min(flexes - 1);
        let group_in = |flex: u64| {
            let first = flex as u32 * self.groups_per_flex;
            // The counts of a growing volume are there before its groups.
            let width = geo.groups_count.saturating_sub(first);
            let width = width.clamp(1, self.groups_per_flex);
            if flex == home_flex && !top {
                return home;
            }
            GroupNo(
                first
                    + (mix(self.spread.fetch_add(1, Ordering::Relaxed)) % u64::from(width)) as u32,
            )
        };
        if top {
            // The one with the fewest directories among those with an average share of the rest,
            // from a random start on so that equals are spread. A look at 256 is enough.
            let start = mix(self.spread.fetch_add(1, Ordering::Relaxed)) % flexes;
            let mut best: Option<(u64, u64)> = None;
            for i in 0..flexes.min(256) {
                let flex = (start + i) % flexes;
                let (free, dirs) = counts(flex);
                if free > 0
                    && free >= average_inodes
                    && blocks_free(flex) >= average_blocks
                    && best.is_none_or(|(d, _)| dirs < d)
                {
                    best = Some((dirs, flex));
                }
            }
            if let Some((_, flex)) = best {
                return group_in(flex);
            }
            return group_in(start);
        }
        let dirs_total: u64 = if flexes <= 4096 {
            (0..flexes).map(|f| counts(f).1).sum()
        } else {
            counts(home_flex).1 * flexes
        };
        let max_dirs = dirs_total / flexes + inodes_per_flex / 16;
        let min_inodes = average_inodes.saturating_sub(inodes_per_flex / 4).max(1);
        let min_blocks = average_blocks.saturating_sub(blocks_per_flex / 4);
        for i in 0..flexes {
            let flex = (home_flex + i) % flexes;
            let (free, dirs) = counts(flex);
            if dirs < max_dirs && free >= min_inodes && blocks_free(flex) >= min_blocks {
                return group_in(flex);
            }
        }
        home
    }

    /// Allocates in one group; `None` when nothing is free there.
    fn alloc_in(&self, h: &Handle<'_>, group: GroupNo, is_dir: bool) -> Result<Option<Ino>> {
        let geo = self.volume.geometry();
        let group = match self.groups.group(group) {
            Ok(group) => group,
            Err(e) if e.kind() == ErrorKind::Corrupt => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut guard = group.lock();
        let st = &mut *guard;
        if st.desc.free_inodes == 0 || !self.check_bitmap(group, st)? {
            return Ok(None);
        }
        let first = if group.no.0 == 0 {
            geo.first_ino.0 - 1
        } else {
            0
        };
        let ipb = geo.inodes_per_block;
        // The inode to allocate, and whether the table block has no other inode in use.
        let choose = |bits: &[u8], st: &GroupState| -> Option<(u32, bool)> {
            let len = geo.inodes_per_group.checked_sub(first)?;
            let free = st.inodes_pending.first_free(bits, first, len)?;
            let lone = first_other(bits, free / ipb * ipb, ipb, false).is_none();
            Some((free, lone))
        };
        let Some((index, lone)) = self.mark(h, group, st, is_dir, choose)? else {
            return Ok(None);
        };
        let Some(ino) = geo.ino_at(group.no, index) else {
            return Err(self.volume.corrupt(
                "allocate inode",
                None,
                Some(st.desc.inode_bitmap),
                "inode number out of range",
            ));
        };
        if lone && let Some((table_block, _)) = geo.inode_location(ino, st.desc.inode_table) {
            h.create(table_block, BlockKind::InodeTable(group.no), |_| ())?;
        }
        Ok(Some(ino))
    }

    /// Marks an inode as in use that `choose` finds in the bitmap: bitmap, descriptor and counts.
    fn mark(
        &self,
        h: &Handle<'_>,
        group: &Group,
        st: &mut GroupState,
        is_dir: bool,
        choose: impl FnOnce(&[u8], &GroupState) -> Option<(u32, bool)>,
    ) -> Result<Option<(u32, bool)>> {
        let geo = self.volume.geometry();
        let (block, kind) = (st.desc.inode_bitmap, BlockKind::InodeBitmap(group.no));
        let uninit =
            self.groups.has_group_checksums() && st.desc.flags.contains(GroupFlags::INODE_UNINIT);
        let chosen = if uninit {
            let mut fresh = vec![0u8; geo.block_len()];
            set_bits(
                &mut fresh,
                geo.inodes_per_group,
                geo.block_size * 8 - geo.inodes_per_group,
            );
            let chosen = choose(&fresh, st);
            if let Some((index, _)) = chosen {
                set_bits(&mut fresh, index, 1);
                h.create(block, kind, |bytes| {
                    let n = bytes.len().min(fresh.len());
                    bytes[..n].copy_from_slice(&fresh[..n]);
                })?;
                st.desc.set_inode_bitmap_csum(&fresh, geo);
                st.desc.flags.remove(GroupFlags::INODE_UNINIT);
            }
            chosen
        } else {
            let buffer = self.volume.cache.read(block, kind, |_| Ok(()))?;
            let chosen = choose(&buffer.data(), st);
            if let Some((index, _)) = chosen {
                h.modify(&buffer, |bytes| {
                    set_bits(bytes, index, 1);
                    st.desc.set_inode_bitmap_csum(bytes, geo);
                })?;
            }
            chosen
        };
        let Some((index, _)) = chosen else {
            return Ok(None);
        };
        // A fast commit may be redone on a volume with a wrong count.
        st.desc.free_inodes = st.desc.free_inodes.saturating_sub(1);
        st.desc.used_dirs += u32::from(is_dir);
        if self.groups.has_group_checksums() {
            let used = geo
                .inodes_per_group
                .saturating_sub(st.desc.itable_unused)
                .max(index + 1);
            st.desc.itable_unused = geo.inodes_per_group - used;
        }
        self.groups.store_desc(h, group.no, st)?;
        self.volume.sb.add_free_inodes(-1);
        if let Some(flex) = self.flex_of(group.no) {
            flex.free_inodes.fetch_sub(1, Ordering::Relaxed);
            flex.used_dirs
                .fetch_add(u32::from(is_dir), Ordering::Relaxed);
        }
        Ok(chosen)
    }

    /// Marks an inode as in use, in the handle, that a fast commit made. Its bytes are in its table already.
    ///
    /// # Errors
    /// `Corrupt` when there is no such inode.
    pub(crate) fn mark_used(&self, h: &Handle<'_>, ino: Ino, is_dir: bool) -> Result<()> {
        const OP: &str = "mark inode as used";
        let Some((group, index)) = self.volume.geometry().split_ino(ino) else {
            let what = "there is no such inode";
            return Err(self.volume.corrupt(OP, Some(ino), None, what));
        };
        let group = self.groups.group(group)?;
        let mut guard = group.lock();
        self.mark(h, group, &mut guard, is_dir, |_, _| Some((index, false)))?;
        Ok(())
    }

    /// Frees an inode in the handle; it is handed out again once the transaction is durable.
    ///
    /// # Errors
    /// `Corrupt` when it is free already.
    pub(crate) fn free(&self, h: &Handle<'_>, ino: Ino, is_dir: bool) -> Result<()> {
        const OP: &str = "free inode";
        let geo = self.volume.geometry();
        let Some((group, index)) = geo.split_ino(ino).filter(|_| ino >= geo.first_ino) else {
            return Err(self
                .volume
                .corrupt(OP, Some(ino), None, "a reserved inode number"));
        };
        let group = self.groups.group(group)?;
        let mut guard = group.lock();
        let st = &mut *guard;
        let uninit =
            self.groups.has_group_checksums() && st.desc.flags.contains(GroupFlags::INODE_UNINIT);
        if !self.check_bitmap(group, st)? {
            return Err(Error::corrupt(OP, "the group's inode bitmap is bad").ino(vfs_ino(ino)));
        }
        let block = st.desc.inode_bitmap;
        let was_used = !uninit && {
            let buffer = self
                .volume
                .cache
                .read(block, BlockKind::InodeBitmap(group.no), |_| Ok(()))?;
            h.modify(&buffer, |bytes| {
                let used = bit(bytes, index);
                if used {
                    clear_bits(bytes, index, 1);
                    st.desc.set_inode_bitmap_csum(bytes, geo);
                }
                used
            })?
        };
        if !was_used {
            return Err(self.volume.corrupt(
                OP,
                Some(ino),
                Some(block),
                "the inode is free already",
            ));
        }
        st.desc.free_inodes += 1;
        if is_dir {
            st.desc.used_dirs = st.desc.used_dirs.saturating_sub(1);
        }
        st.inodes_pending.insert(index);
        self.groups.store_desc(h, group.no, st)?;
        drop(guard);
        self.volume.sb.add_free_inodes(1);
        if let Some(flex) = self.flex_of(group.no) {
            flex.free_inodes.fetch_add(1, Ordering::Relaxed);
            if is_dir {
                flex.used_dirs.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let group = Arc::clone(group);
        h.on_commit(move || {
            group.lock().inodes_pending.remove(index);
        });
        Ok(())
    }

    /// Whether an inode is marked in use: for `load`, so that stale numbers are not taken for
    /// files.
    ///
    /// # Errors
    /// I/O errors, or a bad bitmap.
    pub(crate) fn is_used(&self, ino: Ino) -> Result<bool> {
        let Some((group, index)) = self.volume.geometry().split_ino(ino) else {
            return Ok(false);
        };
        let group = self.groups.group(group)?;
        let mut st = group.lock();
        if self.groups.has_group_checksums() && st.desc.flags.contains(GroupFlags::INODE_UNINIT) {
            return Ok(false);
        }
        if !self.check_bitmap(group, &mut st)? {
            return Err(Error::corrupt(
                "read inode bitmap",
                "the group's inode bitmap is bad",
            ));
        }
        let buffer = self.volume.cache.read(
            st.desc.inode_bitmap,
            BlockKind::InodeBitmap(group.no),
            |_| Ok(()),
        )?;
        Ok(bit(&buffer.data(), index))
    }

    /// Validates the group's inode bitmap when it is first used. `false` when it is bad.
    fn check_bitmap(&self, group: &Group, st: &mut GroupState) -> Result<bool> {
        const OP: &str = "load inode bitmap";
        if st.inode_bitmap_bad {
            return Ok(false);
        }
        let uninit =
            self.groups.has_group_checksums() && st.desc.flags.contains(GroupFlags::INODE_UNINIT);
        if st.inode_bitmap_checked || uninit {
            return Ok(true);
        }
        let geo = self.volume.geometry();
        let (desc, block) = (st.desc, st.desc.inode_bitmap);
        let checked = self
            .volume
            .cache
            .read(block, BlockKind::InodeBitmap(group.no), |bytes| {
                desc.verify_inode_bitmap(bytes, geo, group.no)
                    .map_err(|e| self.volume.corrupt_format(OP, None, Some(block), &e))
            })
            .and_then(|buffer| {
                let data = buffer.data();
                let free = (0..geo.inodes_per_group)
                    .filter(|i| !bit(&data, *i))
                    .count();
                if free as u64 != u64::from(desc.free_inodes) {
                    let detail = format!(
                        "the inode bitmap of group {} has {free} free, its descriptor says {}",
                        group.no, desc.free_inodes
                    );
                    return Err(self.volume.corrupt(OP, None, Some(block), detail));
                }
                Ok(())
            });
        match checked {
            Ok(()) => {
                st.inode_bitmap_checked = true;
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                st.inode_bitmap_bad = true;
                self.volume
                    .sb
                    .add_free_inodes(-i64::from(st.desc.free_inodes));
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }
}
