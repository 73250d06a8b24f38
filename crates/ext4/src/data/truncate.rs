//! [`Truncation`]: changing sizes and filling or emptying ranges: truncate, and the five modes of fallocate.
//!
//! It owns nothing but its references. It calls `Delayed`, `InlineData`, `Maps`, `Inodes`, `Orphans` and the block allocator. It never
//! touches pages: the vfs has dropped or written them.
//!
//! # Locks
//! The vfs holds the inode lock and the invalidate lock exclusively.
//!
//! # Crash order
//! Shrinking: one transaction puts the inode on the orphan list and sets the new size;
//! then blocks go, in as many transactions as it takes; the last one takes it off the list. Recovery
//! finds it on the list and continues freeing. Growing never allocates.
//!
//! Blocks past the end of the file (`keep_size`) are unwritten extents and need no mark.

use super::delayed::Delayed;
use super::inline::InlineData;
use crate::alloc::{Allocator, Claim, Run};
use crate::inode::{Ext4Inode, Inodes, MapState, Orphans, orphan};
use crate::map::extents::Tree;
use crate::map::{BlockState, Mapper, Maps};
use crate::quota::Quota;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::extent::MAX_UNWRITTEN_LEN;
use blockwright_ondisk::ext4::{BlockNo, FileBlock, InodeFlags};
use blockwright_vfs::engine::FallocMode;
use blockwright_vfs::{Inode, Timestamp};
use std::ops::Range;
use std::sync::Arc;

/// First file block behind every possible one.
const ALL: FileBlock = FileBlock(1 << 32);

fn touch(inode: &Inode, now: Timestamp) {
    inode.update_attr(|a| (a.mtime, a.ctime) = (now, now));
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Truncation {
        volume: Volume,
        alloc: Allocator,
        quota: Quota,
        orphans: Orphans,
        inodes: Inodes,
        maps: Maps,
        delayed: Delayed,
        inline: InlineData,
    }
}

impl Truncation {
    /// [`blockwright_vfs::engine::Data::truncate`].
    ///
    /// # Errors
    /// As there.
    pub fn truncate(&self, inode: &Arc<Inode>, size: u64, now: Timestamp) -> Result<()> {
        const OP: &str = "truncate";
        self.volume.check_writable(OP)?;
        if size > self.maps.file_bytes_max(inode) {
            return Err(Error::new(ErrorKind::FileTooLarge, OP).ino(inode.ino()));
        }
        if self.inline.truncate(inode, size, now)? {
            return Ok(());
        }
        let e = inode.private::<Ext4Inode>();
        self.delayed.forget_placement(inode);
        let old = inode.size();
        let keep = size.div_ceil(self.volume.block_bytes() as u64);
        self.delayed.unreserve(
            inode,
            keep.saturating_mul(self.volume.block_bytes() as u64)..u64::MAX,
        );
        if size > old {
            let h = self.volume.journal.start(self.inode_credits(), OP)?;
            let mut map = e.map.write();
            map.disk_size = size;
            inode.update_attr(|a| a.size = size);
            touch(inode, now);
            return self.inodes.store_locked(&h, inode, &map);
        }
        // Also when the size stays: blocks allocated past the end go.
        let needs_orphan = {
            let map = e.map.read();
            let found = Mapper::new(&self.alloc, e, &map).find(e.ino, &map, FileBlock(keep), 1)?;
            found.state != BlockState::Hole || found.len < crate::map::ENDLESS >> 1
        };
        {
            let h = self
                .volume
                .journal
                .start(self.inode_credits() + orphan::CREDITS, OP)?;
            if needs_orphan {
                self.orphans.add(&h, inode)?;
            }
            let mut map = e.map.write();
            map.disk_size = size;
            map.generation = map.generation.wrapping_add(1);
            inode.update_attr(|a| a.size = size);
            touch(inode, now);
            self.inodes.store_locked(&h, inode, &map)?;
        }
        if needs_orphan {
            self.maps.remove(inode, FileBlock(keep), ALL, OP)?;
            let h = self
                .volume
                .journal
                .start(self.inode_credits() + orphan::CREDITS, OP)?;
            self.orphans.remove(&h, inode)?;
        }
        Ok(())
    }

    /// Credits to store an inode, with its share of quota.
    pub(crate) fn inode_credits(&self) -> u32 {
        4 + self.quota.credits()
    }

    /// Whether a file's kind of mapping can do this.
    ///
    /// # Errors
    /// `Unsupported` for block-mapped files, except to punch a hole.
    pub fn check_fallocate(&self, inode: &Inode, mode: FallocMode) -> Result<()> {
        let flags = inode.private::<Ext4Inode>().map.read().flags;
        let mapped_by_blocks =
            !flags.intersects(InodeFlags::EXTENTS.union(InodeFlags::INLINE_DATA));
        if mapped_by_blocks && mode != FallocMode::PunchHole {
            // Block pointers have no unwritten state, and cannot move.
            return Err(Error::new(ErrorKind::Unsupported, "fallocate").ino(inode.ino()));
        }
        Ok(())
    }

    /// [`blockwright_vfs::engine::Data::fallocate`].
    ///
    /// # Errors
    /// As there.
    pub fn fallocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "fallocate";
        self.volume.check_writable(OP)?;
        let ino = inode.ino();
        if range.start >= range.end {
            return Err(Error::new(ErrorKind::Invalid, OP).ino(ino));
        }
        if range.end > self.maps.file_bytes_max(inode) && mode != FallocMode::PunchHole {
            return Err(Error::new(ErrorKind::FileTooLarge, OP).ino(ino));
        }
        self.inline.to_blocks(inode)?;
        self.check_fallocate(inode, mode)?;
        self.delayed.forget_placement(inode);
        let result = match mode {
            FallocMode::Allocate { keep_size } => self.fill(inode, &range, keep_size, now),
            FallocMode::ZeroRange { keep_size } => self.zero(inode, &range, keep_size, now),
            FallocMode::PunchHole => self.punch(inode, &range),
            FallocMode::CollapseRange => self.collapse(inode, &range),
            FallocMode::InsertRange => self.insert_range(inode, &range),
        };
        result?;
        let h = self.volume.journal.start(self.inode_credits(), OP)?;
        touch(inode, now);
        self.inodes.store(&h, inode)
    }

    /// Whole blocks inside of a byte range.
    fn inner_blocks(&self, range: &Range<u64>) -> Range<u64> {
        let bits = self.volume.geometry().block_bits;
        let start = range.start.div_ceil(1 << bits);
        start..(range.end >> bits).max(start)
    }

    /// All blocks a byte range touches.
    fn outer_blocks(&self, range: &Range<u64>) -> Range<u64> {
        let bits = self.volume.geometry().block_bits;
        range.start >> bits..range.end.div_ceil(1 << bits)
    }

    fn aligned_blocks(
        &self,
        op: &'static str,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<Range<u64>> {
        let inner = self.inner_blocks(range);
        if inner != self.outer_blocks(range) || inner.start == inner.end {
            return Err(Error::new(ErrorKind::Invalid, op).ino(inode.ino()));
        }
        Ok(inner)
    }

    fn punch(&self, inode: &Inode, range: &Range<u64>) -> Result<()> {
        let blocks = self.inner_blocks(range);
        let bits = self.volume.geometry().block_bits;
        self.delayed.unreserve(
            inode,
            blocks.start << bits..blocks.end.saturating_mul(1 << bits),
        );
        if blocks.start < blocks.end {
            self.maps.remove(
                inode,
                FileBlock(blocks.start),
                FileBlock(blocks.end.min(ALL.0)),
                "punch hole",
            )?;
        }
        Ok(())
    }

    /// Fills holes with unwritten blocks, one run and one transaction at a time; the size follows, so that
    /// a lack of space in the middle leaves what was done.
    fn fill(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        keep_size: bool,
        now: Timestamp,
    ) -> Result<()> {
        let blocks = self.outer_blocks(range);
        let mut at = blocks.start;
        while at < blocks.end {
            at = self.alloc.retry_after_commit(|| {
                self.fill_step(inode, at, blocks.end, range.end, keep_size, now)
            })?;
        }
        if !keep_size {
            self.grow_to(inode, range.end, now)?;
        }
        Ok(())
    }

    fn grow_to(&self, inode: &Inode, size: u64, now: Timestamp) -> Result<()> {
        if inode.size() >= size {
            return Ok(());
        }
        let e = inode.private::<Ext4Inode>();
        let h = self
            .volume
            .journal
            .start(self.inode_credits(), "fallocate")?;
        let mut map = e.map.write();
        map.disk_size = map.disk_size.max(size);
        inode.update_attr(|a| a.size = a.size.max(size));
        touch(inode, now);
        self.inodes.store_locked(&h, inode, &map)
    }

    fn fill_step(
        &self,
        inode: &Inode,
        at: u64,
        end: u64,
        size: u64,
        keep_size: bool,
        now: Timestamp,
    ) -> Result<u64> {
        const OP: &str = "fallocate";
        let e = inode.private::<Ext4Inode>();
        let bits = self.volume.geometry().block_bits;
        // Look without a handle: filling what is full costs no transaction.
        let (state, len) = self.maps.lookup(inode, FileBlock(at), end - at)?;
        if state != BlockState::Hole {
            return Ok(at.saturating_add(len).min(end));
        }
        let credits = {
            let map = e.map.read();
            Mapper::new(&self.alloc, e, &map).insert_credits(&map) + self.inode_credits()
        };
        let h = self.volume.journal.start(credits.saturating_mul(2), OP)?;
        let mut map = e.map.write();
        let mapper = Mapper::new(&self.alloc, e, &map);
        let hole = mapper.find(e.ino, &map, FileBlock(at), 1)?;
        if hole.state != BlockState::Hole {
            return Ok(at.saturating_add(hole.len).min(end));
        }
        let next_delayed = map.delayed.first_in(at..u64::MAX, 1);
        let next_delayed = next_delayed.map_or(u64::MAX, |r| r.start);
        if let Some(r) = map.delayed.from(at) {
            return Ok(r.end.min(end));
        }
        let stop = at.saturating_add(hole.len).min(end).min(next_delayed);
        let want = (stop - at).min(u64::from(MAX_UNWRITTEN_LEN)) as u32;
        let run =
            self.delayed
                .take_blocks(e, &mut map, &hole, FileBlock(at), want, end, Claim::Data)?;
        let n = match mapper.insert_some(&h, &mut map, FileBlock(at), run, true) {
            Ok(n) => n,
            Err(error) => {
                self.alloc.give_back(run);
                self.inodes.store_locked(&h, inode, &map)?;
                return Err(error);
            }
        };
        self.alloc.mark_used(
            &h,
            Run {
                start: run.start,
                len: n,
            },
        )?;
        if n < run.len {
            self.alloc.give_back(Run {
                start: BlockNo(run.start.0 + u64::from(n)),
                len: run.len - n,
            });
        }
        map.blocks = map
            .blocks
            .saturating_add(u64::from(n) * self.volume.block_units());
        let next = at + u64::from(n);
        if !keep_size {
            let reached = size.min(next << bits);
            map.disk_size = map.disk_size.max(reached);
            inode.update_attr(|a| a.size = a.size.max(reached));
        }
        touch(inode, now);
        self.inodes.store_locked(&h, inode, &map)?;
        self.maps.show_blocks(inode, &map);
        Ok(next)
    }

    /// Whole blocks become unwritten, holes are filled; the vfs has zeroed the partial blocks.
    fn zero(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        keep_size: bool,
        now: Timestamp,
    ) -> Result<()> {
        let inner = self.inner_blocks(range);
        self.change_state(inode, inner, true)?;
        self.fill(inode, range, keep_size, now)
    }

    /// Converts a range of extents to unwritten, in as many handles as it takes.
    fn change_state(&self, inode: &Inode, blocks: Range<u64>, unwritten: bool) -> Result<()> {
        const OP: &str = "zero range";
        let e = inode.private::<Ext4Inode>();
        let mut at = FileBlock(blocks.start);
        let end = FileBlock(blocks.end);
        let tree = Tree::new(&self.alloc, e.ino, e.seed);
        self.alloc.retry_after_commit(|| {
            while at < end {
                let credits = Tree::credits(&e.map.read().root) + self.inode_credits();
                let h = self.volume.journal.start(credits.saturating_mul(2), OP)?;
                let mut map = e.map.write();
                let mut result = Ok(());
                while at < end {
                    let need = Tree::credits(&map.root) + self.inode_credits();
                    if !h.has_credits(need) && !h.extend(need) {
                        break;
                    }
                    match tree.convert_step(&h, &mut map, at, end, unwritten) {
                        Ok(next) => at = next,
                        Err(error) => {
                            result = Err(error);
                            break;
                        }
                    }
                }
                map.generation = map.generation.wrapping_add(1);
                self.inodes.store_locked(&h, inode, &map)?;
                result?;
            }
            Ok(())
        })
    }

    fn collapse(&self, inode: &Inode, range: &Range<u64>) -> Result<()> {
        const OP: &str = "collapse range";
        let blocks = self.aligned_blocks(OP, inode, range)?;
        let size = inode.size();
        if range.end >= size {
            return Err(Error::new(ErrorKind::Invalid, OP).ino(inode.ino()));
        }
        let bits = self.volume.geometry().block_bits;
        self.delayed.unreserve(inode, range.start..u64::MAX);
        self.maps
            .remove(inode, FileBlock(blocks.start), FileBlock(blocks.end), OP)?;
        let by = blocks.end - blocks.start;
        let mut next = Some(FileBlock(blocks.end));
        while let Some(from) = next {
            next = self.shift_step(inode, OP, |tree, h, map| {
                tree.shift_down_step(h, map, from, by)
            })?;
        }
        self.shift_step(inode, OP, |tree, h, map| {
            tree.join(h, map, FileBlock(blocks.start))?;
            map.disk_size = map
                .disk_size
                .saturating_sub(by << bits)
                .max(range.start.min(map.disk_size));
            inode.update_attr(|a| a.size = size - (by << bits));
            map.disk_size = map.disk_size.min(size - (by << bits));
            Ok(())
        })
    }

    fn insert_range(&self, inode: &Inode, range: &Range<u64>) -> Result<()> {
        const OP: &str = "insert range";
        let blocks = self.aligned_blocks(OP, inode, range)?;
        let size = inode.size();
        let by = blocks.end - blocks.start;
        let bits = self.volume.geometry().block_bits;
        let grown = size
            .checked_add(by << bits)
            .filter(|s| *s <= self.maps.file_bytes_max(inode));
        let Some(grown) = grown else {
            return Err(Error::new(ErrorKind::FileTooLarge, OP).ino(inode.ino()));
        };
        if range.start >= size {
            return Err(Error::new(ErrorKind::Invalid, OP).ino(inode.ino()));
        }
        self.delayed.unreserve(inode, range.start..u64::MAX);
        let from = FileBlock(blocks.start);
        let e = inode.private::<Ext4Inode>();
        // Blocks past the end of the file (preallocated) move too, and must still fit.
        let last = Tree::new(&self.alloc, e.ino, e.seed).end(&e.map.read().root)?;
        if last.0 + by >= u64::from(u32::MAX) {
            return Err(Error::new(ErrorKind::FileTooLarge, OP).ino(inode.ino()));
        }
        self.alloc.retry_after_commit(|| {
            self.shift_step(inode, OP, |tree, h, map| {
                tree.split_extent(h, map, from)?;
                map.disk_size = grown;
                inode.update_attr(|a| a.size = grown);
                Ok(())
            })
        })?;
        let mut below = Some(ALL);
        while let Some(end) = below {
            below = self.shift_step(inode, OP, |tree, h, map| {
                tree.shift_up_step(h, map, from, end, by)
            })?;
        }
        Ok(())
    }

    /// One step of a shift in a handle of its own, the inode stored behind it.
    fn shift_step<R>(
        &self,
        inode: &Inode,
        op: &'static str,
        step: impl FnOnce(&Tree<'_>, &crate::journal::Handle<'_>, &mut MapState) -> Result<R>,
    ) -> Result<R> {
        let e = inode.private::<Ext4Inode>();
        let credits = Tree::shift_credits(&e.map.read().root) + self.inode_credits();
        let h = self.volume.journal.start(credits, op)?;
        let mut map = e.map.write();
        let tree = Tree::new(&self.alloc, e.ino, e.seed);
        let result = step(&tree, &h, &mut map);
        map.generation = map.generation.wrapping_add(1);
        self.inodes.store_locked(&h, inode, &map)?;
        self.maps.show_blocks(inode, &map);
        result
    }
}
