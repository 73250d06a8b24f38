//! Blocks for what is written: found in place, shared with a write under way, preallocated, or new.
//!
//! # Locks
//! The inode's `map`: shared while nothing but overwrites is found, then exclusively.

use super::{Delayed, RUN_MAX, pending_in, split_pending};
use crate::alloc::{AllocRequest, Claim, Run, preallocation};
use crate::inode::{Ext4Inode, MapState, PendingRun};
use crate::map::{BlockState, Mapper, Stretch, no_space};
use crate::{Error, ErrorKind, Result};
use blockwright_device::DevOffset;
use blockwright_ondisk::ext4::{BlockNo, FileBlock, InodeFlags};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{Intent, TARGETS_MAX, WriteTarget, uncovered};
use std::ops::Range;

/// One of the ranges that blocks are wanted for.
#[derive(Clone, Copy)]
struct Piece {
    at: FileBlock,
    /// Blocks.
    want: u64,
    /// The file's size as far as the write knows it.
    data_end: u64,
}

impl Delayed {
    /// [`blockwright_vfs::engine::Data::allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate(
        &self,
        inode: &Inode,
        range: Range<u64>,
        data_end: u64,
        intent: Intent,
    ) -> Result<WriteTarget> {
        let targets = self.allocate_runs(inode, &[range], data_end, intent)?;
        let none = || Error::corrupt("allocate", "no target and no reason");
        targets.first().copied().ok_or_else(none)
    }

    /// [`blockwright_vfs::engine::Data::allocate_runs`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate_runs(
        &self,
        inode: &Inode,
        ranges: &[Range<u64>],
        data_end: u64,
        intent: Intent,
    ) -> Result<Vec<WriteTarget>> {
        self.check_allocation(inode, ranges)?;
        let max = match intent {
            Intent::Writeback => TARGETS_MAX,
            Intent::Direct => 1,
        };
        let mut targets = Vec::with_capacity(ranges.len().min(max));
        // A commit must not be forced with the map locked, so a lack of space comes out here first.
        let promised = || intent == Intent::Writeback;
        let done = self.keep_promise(promised, || {
            self.allocate_some(inode, ranges, data_end, intent, max, &mut targets)
        });
        match done {
            Err(e) if targets.is_empty() => Err(e),
            _ => Ok(targets),
        }
    }

    /// [`blockwright_vfs::engine::Data::allocate_nowait`]: out of a preallocation, in an extent tree that is in memory. With quota there is more to look at.
    pub(crate) fn allocate_nowait(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        data_end: u64,
    ) -> Option<WriteTarget> {
        let e = inode.private::<Ext4Inode>();
        if self.quota.is_on() || !self.alloc.preallocates() {
            return None;
        }
        self.check_allocation(inode, std::slice::from_ref(range))
            .ok()?;
        let piece = self.piece(range, data_end);
        let Piece { at, want, .. } = piece;
        let blocks = at.0..at.0 + want;
        let mut map = e.map.try_write()?;
        let registry = &self.alloc.preallocations;
        let len = u32::try_from(want).ok()?;
        if self.volume.block_range(range) != blocks
            || map.flags.contains(InodeFlags::INLINE_DATA)
            || !map
                .disk_size
                .is_multiple_of(self.volume.block_bytes() as u64)
            || !map.placement.keeps(at, len)
            || map.delayed.intersects(blocks.clone())
            || pending_in(&map, &blocks).next().is_some()
        {
            return None;
        }
        match Mapper::new(&self.alloc, e, &map) {
            Mapper::Extents(tree) if tree.is_in_memory(&map.root, at) => {
                let found = tree.lookup(&map.root, at).ok()?;
                let is_hole = found.extent.is_none() && found.hole_end.0 >= blocks.end;
                is_hole.then_some(())?;
            }
            Mapper::Extents(_) | Mapper::Blocks(_) => return None,
        }
        let got = self.alloc.claim(want, Claim::Data).ok()?;
        let transit = self.alloc.in_transit.hold();
        let taken = match got == want {
            true => map.placement.use_at(registry, at, len, None),
            false => None,
        };
        match taken {
            Some(run) if run.len == len => {
                registry.counters.request(len);
                registry.counters.result(len);
                map.placement.closed = false;
                map.placement.last_end = Some((FileBlock(blocks.end), run.end()));
                let pending = PendingRun {
                    block: run.start,
                    len,
                    was_delayed: false,
                    writers: 1,
                };
                map.pending.insert(at, pending);
                map.pending_direct += want;
                Some(self.target(at, run.start, want))
            }
            // Discarded meanwhile, or no space for it.
            taken => {
                self.alloc.unreserve_space(got, 0);
                if let Some(run) = taken {
                    transit.carries();
                    self.alloc.put_back(run);
                }
                None
            }
        }
    }

    fn check_allocation(&self, inode: &Inode, ranges: &[Range<u64>]) -> Result<()> {
        const OP: &str = "allocate";
        self.volume.check_writable(OP)?;
        let max = self
            .maps
            .file_bytes_max(inode)
            .next_multiple_of(self.volume.block_bytes() as u64);
        if ranges.iter().any(|r| r.start >= r.end || r.end > max) {
            return Err(Error::new(ErrorKind::FileTooLarge, OP).ino(inode.ino()));
        }
        Ok(())
    }

    /// Goes on behind the last target, until all is covered or there are `max` targets.
    fn allocate_some(
        &self,
        inode: &Inode,
        ranges: &[Range<u64>],
        data_end: u64,
        intent: Intent,
        max: usize,
        targets: &mut Vec<WriteTarget>,
    ) -> Result<()> {
        let e = inode.private::<Ext4Inode>();
        let left = |targets: &[WriteTarget]| {
            let more = targets.len() < max;
            more.then(|| uncovered(ranges, targets)).flatten()
        };
        {
            // An overwrite allocates nothing and must not wait for writers that do.
            let map = e.map.read();
            let mapper = Mapper::new(&self.alloc, e, &map);
            while let Some(range) = left(targets) {
                let piece = self.piece(&range, data_end);
                let found = mapper.find(e.ino, &map, piece.at, piece.want)?;
                let BlockState::Mapped(block) = found.state else {
                    break;
                };
                targets.push(self.target_in_place(&map, &piece, block, found.len));
            }
        }
        if left(targets).is_none() {
            return Ok(());
        }
        let mut map = e.map.write();
        if intent == Intent::Direct {
            map.placement.closed = false;
        }
        // The hole that the last one was found in: taking blocks changes nothing of what is mapped.
        let mut hole: Option<(FileBlock, Stretch)> = None;
        while let Some(range) = left(targets) {
            let piece = self.piece(&range, data_end);
            let same = hole.filter(|(at, h)| *at <= piece.at && piece.at.0 - at.0 < h.len);
            let found = match same {
                Some((at, h)) => h.from(piece.at.0 - at.0),
                None => {
                    Mapper::new(&self.alloc, e, &map).find(e.ino, &map, piece.at, piece.want)?
                }
            };
            if found.state == BlockState::Hole {
                hole = Some((piece.at, found));
            }
            targets.push(self.allocate_one(inode, &mut map, &piece, &found)?);
        }
        Ok(())
    }

    fn piece(&self, range: &Range<u64>, data_end: u64) -> Piece {
        let blocks = self.volume.block_range(range);
        Piece {
            at: FileBlock(blocks.start),
            want: (blocks.end - blocks.start).min(RUN_MAX),
            data_end,
        }
    }

    fn target(&self, at: FileBlock, block: BlockNo, len: u64) -> WriteTarget {
        let bits = self.volume.geometry().block_bits;
        WriteTarget {
            offset: at.0 << bits,
            bytes: len << bits,
            device: Some(DevOffset(block.0 << bits)),
            commit: true,
            fresh: true,
        }
    }

    /// Blocks that hold data already.
    fn target_in_place(
        &self,
        map: &MapState,
        piece: &Piece,
        block: BlockNo,
        len: u64,
    ) -> WriteTarget {
        let len = len.min(piece.want);
        let end = (piece.at.0 + len) << self.volume.geometry().block_bits;
        WriteTarget {
            commit: map.disk_size < piece.data_end.min(end),
            fresh: false,
            ..self.target(piece.at, block, len)
        }
    }

    fn allocate_one(
        &self,
        inode: &Inode,
        map: &mut MapState,
        piece: &Piece,
        found: &Stretch,
    ) -> Result<WriteTarget> {
        let e = inode.private::<Ext4Inode>();
        let bits = self.volume.geometry().block_bits;
        let Piece { at, want, data_end } = *piece;
        match found.state {
            BlockState::Mapped(block) => {
                return Ok(self.target_in_place(map, piece, block, found.len));
            }
            BlockState::Unwritten(block) => {
                return Ok(self.target(at, block, found.len.min(want)));
            }
            BlockState::Hole | BlockState::Delayed => {}
        }
        let hole = found.len.min(want);
        let around = at.0..at.0.saturating_add(hole);
        let first_pending = pending_in(map, &around).next();
        let next_pending = match first_pending {
            Some((start, run)) if start <= at.0 => {
                // Another thread is writing here already: into the same blocks.
                let skip = at.0 - start;
                let len = (u64::from(run.len) - skip).min(want);
                split_pending(map, at.0);
                split_pending(map, at.0 + len);
                if let Some(p) = map.pending.get_mut(&at) {
                    p.writers += 1;
                    return Ok(self.target(at, p.block, u64::from(p.len).min(len)));
                }
                return Err(Error::corrupt("allocate", "a pending run vanished"));
            }
            Some((start, _)) => start,
            None => u64::MAX,
        };
        let mut len = hole.min(next_pending - at.0);
        let delayed = map.delayed.from(at.0);
        let claim = match &delayed {
            Some(r) => {
                len = len.min(r.end - at.0);
                Claim::Reserved
            }
            None => {
                let next = map.delayed.first_in(at.0..u64::MAX, 1);
                len = len.min(next.map_or(u64::MAX, |r| r.start) - at.0);
                Claim::Data
            }
        };
        let size_blocks = inode.size().max(data_end).div_ceil(1 << bits);
        let run = self.take_blocks(e, map, found, at, len as u32, size_blocks, claim)?;
        let pending = PendingRun {
            block: run.start,
            len: run.len,
            was_delayed: delayed.is_some(),
            writers: 1,
        };
        map.pending.insert(at, pending);
        if !pending.was_delayed {
            map.pending_direct += u64::from(run.len);
        }
        Ok(self.target(at, run.start, u64::from(run.len)))
    }

    /// Takes blocks for a hole: preallocated ones, small files' shared areas, or new ones together
    /// with what is preallocated beside them.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn take_blocks(
        &self,
        e: &Ext4Inode,
        map: &mut MapState,
        hole: &Stretch,
        at: FileBlock,
        len: u32,
        size_blocks: u64,
        claim: Claim,
    ) -> Result<Run> {
        const OP: &str = "allocate";
        let mapper = Mapper::new(&self.alloc, e, map);
        let limit = mapper.limit();
        let got = self.alloc.claim(u64::from(len), claim)?;
        if got == 0 {
            return Err(no_space(OP, e.ino));
        }
        let len = got as u32;
        let unclaim = |n: u32| {
            if claim != Claim::Reserved {
                self.alloc.unreserve_space(u64::from(n), 0);
            }
        };
        let counters = &self.alloc.preallocations.counters;
        counters.request(len);
        let taken = self.take_claimed(e, map, hole, at, len, size_blocks, limit);
        match taken {
            Ok(Some(run)) => {
                counters.result(run.len);
                unclaim(len - run.len);
                map.placement.last_end = Some((FileBlock(at.0 + u64::from(run.len)), run.end()));
                Ok(run)
            }
            Ok(None) => {
                unclaim(len);
                Err(no_space(OP, e.ino))
            }
            Err(error) => {
                unclaim(len);
                Err(error)
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn take_claimed(
        &self,
        e: &Ext4Inode,
        map: &mut MapState,
        hole: &Stretch,
        at: FileBlock,
        len: u32,
        size_blocks: u64,
        limit: Option<BlockNo>,
    ) -> Result<Option<Run>> {
        let request = |len: u32, goal: BlockNo, contiguous: bool| AllocRequest {
            ino: e.ino,
            len,
            goal,
            contiguous,
            claim: Claim::Reserved,
            limit,
            room: false,
        };
        let preallocate = self.alloc.preallocates();
        let transit = self.alloc.in_transit.hold();
        let mapper = Mapper::new(&self.alloc, e, map);
        let registry = &self.alloc.preallocations;
        if preallocate && let Some(run) = map.placement.use_at(registry, at, len, limit) {
            return Ok(Some(run));
        }
        // The nearer of what is on disk and what was taken last, which may still be on its way there.
        let last = map.placement.last_end.filter(|(end, _)| *end <= at);
        let before = hole.before.into_iter().chain(last).max_by_key(|b| b.0);
        let own_goal = self.alloc.inode_goal(e.ino);
        if preallocate && size_blocks <= self.volume.tuning.mb_stream_req() && before.is_none() {
            let spare = u32::try_from(self.alloc.spare() / 2).unwrap_or(u32::MAX);
            let area = self.volume.tuning.mb_group_prealloc().min(spare).max(len);
            let refill = || {
                let run = self.alloc.take_unclaimed(&request(area, own_goal, false))?;
                if let Some(run) = &run {
                    registry.note_made(run.len);
                }
                Ok(run)
            };
            if let Some(run) = self.alloc.localities.take::<Error>(len, limit, refill)? {
                transit.carries();
                registry.note_used(run.len);
                return Ok(Some(run));
            }
        }
        // The goal for a logical block follows from the nearest block before it.
        let goal_for = |block: u64| match before {
            Some((end, physical)) if block >= end.0 => {
                let far = (block - end.0).min(1 << 20);
                (BlockNo(physical.0.saturating_add(far)), block == end.0)
            }
            _ => (own_goal, false),
        };
        // Pointer blocks do not tell cheaply where a hole begins.
        let hole_start = match (&mapper, hole.before) {
            (Mapper::Extents(_), before) => before.map_or(0, |(end, _)| end.0),
            (Mapper::Blocks(_), _) => at.0,
        };
        let hole = hole_start..at.0.saturating_add(hole.len);
        let appends = preallocation::appends(at, len, size_blocks, &hole, before.map(|b| b.0));
        let window = if preallocate && !map.placement.closed {
            let spare = self.alloc.spare();
            let bits = self.volume.geometry().block_bits;
            let wide = preallocation::window(at, len, size_blocks, appends, hole, spare, bits);
            let clipped = map.placement.clip(at, wide);
            // Blocks on their way to the device are in neither, and are near only on the two sides.
            let before = map.pending.range(..=at).next_back();
            let after = map.pending.range(at..).next();
            let start = before.map_or(0, |(s, r)| s.0 + u64::from(r.len)).min(at.0);
            let end = after.map_or(u64::MAX, |(s, _)| s.0);
            clipped.start.max(start)..clipped.end.min(end)
        } else {
            at.0..at.0 + u64::from(len)
        };
        let window_len = (window.end - window.start).min(RUN_MAX) as u32;
        let (goal, contiguous) = goal_for(window.start);
        let wide = AllocRequest {
            room: appends && preallocate,
            ..request(window_len.max(len), goal, contiguous)
        };
        let mut found = self.alloc.take_unclaimed(&wide)?;
        if found.is_none() && self.alloc.discard_preallocations() {
            let (goal, contiguous) = goal_for(at.0);
            found = self.alloc.take_unclaimed(&request(len, goal, contiguous))?;
        }
        let Some(run) = found else {
            return Ok(None);
        };
        transit.carries();
        let start = if run.len <= len {
            at
        } else {
            preallocation::place(at, len, run.len, &window)
        };
        let skip = (at.0 - start.0) as u32;
        let n = len.min(run.len - skip);
        let left = Run {
            start: run.start,
            len: skip,
        };
        let right = Run {
            start: BlockNo(run.start.0 + u64::from(skip + n)),
            len: run.len - skip - n,
        };
        let behind = FileBlock(at.0 + u64::from(n));
        for (at, run) in [(start, left), (behind, right)] {
            for back in map.placement.keep(registry, at, run) {
                self.alloc.put_back(back);
            }
        }
        Ok(Some(Run {
            start: BlockNo(run.start.0 + u64::from(skip)),
            len: n,
        }))
    }
}
