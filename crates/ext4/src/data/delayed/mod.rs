//! [`Delayed`]: reservations, and blocks for what is written.
//!
//! It owns nothing but its references: what is delayed and pending is in each inode's `MapState`. It calls the block allocator, `quota` and
//! `map`. It never makes blocks visible (`data::commit`) and knows nothing of inline data but that a file has it (`data::inline`).
//!
//! A write reserves blocks (`reserve_hole`: counters only). Writeback then takes a run for as long a
//! stretch as possible (`allocate`: in memory only, remembered as *pending*), writes the data, and
//! makes it visible in one short transaction (`data::commit`): bitmap, extent, size, inode.
//!
//! Reservations hold the worst case of metadata too: see `meta_blocks`. They are released
//! when the blocks become visible or are given up.
//!
//! # Locks
//! The inode's `map` exclusively; handles are started before it is taken.
//!
//! # Crash order
//! Nothing on disk refers to a block before its data is there.

mod allocate;

use crate::Result;
use crate::alloc::{Allocator, Claim, Run};
use crate::inode::{Ext4Inode, MapState, PendingRun, changeable};
use crate::map::extents::node;
use crate::map::indirect::{file_bytes_max, pointer_blocks};
use crate::map::{BlockState, Mapper, Maps, Stretch, no_space};
use crate::quota::{Limit, Quota};
use crate::volume::Volume;
use crate::{Error, ErrorKind};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, InodeFlags};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::WriteTarget;
use smallvec::SmallVec;
use std::ops::Range;

/// How often a promise that seems broken is looked at again, each time after others put blocks down.
const PROMISE_ROUNDS: usize = 10_000;
/// The longest run asked for at once: one extent.
const RUN_MAX: u64 = 32768;

/// Blocks of metadata that a file's delayed blocks may need at worst.
fn meta_blocks(map: &MapState, block_len: usize) -> u64 {
    let n = map.delayed.total();
    if n == 0 {
        return 0;
    }
    // Data that fits into the inode needs none. Otherwise a few hundred small files would reserve all of a
    // volume with large blocks.
    let in_inode = node::capacity(&map.root).saturating_sub(node::count(&map.root)) as u64;
    if node::depth(&map.root) == 0 && n <= in_inode {
        return 0;
    }
    // Every block its own extent, in leaves that are split in the middle; and the levels above.
    let per_leaf = (block_len as u64 / 12).saturating_sub(1) / 2;
    n.div_ceil(per_leaf.max(1)) + 5
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Delayed {
        volume: Volume,
        alloc: Allocator,
        quota: Quota,
        maps: Maps,
    }
}

impl Delayed {
    /// Changes the delayed set and returns the change in metadata blocks to reserve. With extents that is
    /// the difference to what is promised already, since the worst case depends on the tree too, which
    /// may have grown meanwhile.
    fn change_delayed(
        &self,
        map: &mut MapState,
        range: Range<u64>,
        change: impl FnOnce(&mut MapState),
    ) -> i64 {
        let len = self.volume.block_bytes();
        let extents = map.flags.contains(InodeFlags::EXTENTS);
        let count = |map: &MapState| {
            if extents {
                meta_blocks(map, len)
            } else {
                pointer_blocks(range.clone(), len as u64 / 4, |r| map.delayed.intersects(r))
            }
        };
        let before = if extents {
            map.meta_promised
        } else {
            count(map)
        };
        change(map);
        let delta = count(map) as i64 - before as i64;
        if !extents {
            map.pointers_promised = map.pointers_promised.saturating_add_signed(delta);
        }
        delta
    }

    /// Drops delayed blocks whose data claim is gone or goes with them: releases their metadata.
    pub(crate) fn drop_delayed(
        &self,
        map: &mut MapState,
        range: Range<u64>,
        release_data: bool,
    ) -> u64 {
        // Cut to what there is: callers pass ranges without an end, and counting pointer blocks walks them.
        let Some(bounds) = map.delayed.bounds() else {
            return 0;
        };
        let range = range.start.max(bounds.start)..range.end.min(bounds.end);
        if range.start >= range.end {
            return 0;
        }
        let mut removed = 0;
        let meta = self.change_delayed(map, range.clone(), |map| {
            removed = map.delayed.remove(range)
        });
        let data = if release_data { removed } else { 0 };
        let freed = meta.min(0).unsigned_abs();
        map.meta_promised = map.meta_promised.saturating_sub(freed);
        self.alloc.unreserve_space(data, freed);
        removed
    }

    /// [`blockwright_vfs::engine::Space::reserve_hole`] of a file in blocks; `None` for one with inline data, of which nothing is reserved.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn reserve_hole(&self, inode: &Inode, range: Range<u64>) -> Result<Option<bool>> {
        const OP: &str = "reserve";
        self.volume.check_writable(OP)?;
        let e = inode.private::<Ext4Inode>();
        // Taken once, for all there is to look at: the flusher has it for long.
        let mut map = e.map.write();
        changeable(OP, inode, map.flags)?;
        if map.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(None);
        }
        let extents = map.flags.contains(InodeFlags::EXTENTS);
        if range.end > file_bytes_max(self.volume.geometry(), extents) {
            return Err(Error::new(ErrorKind::FileTooLarge, OP).ino(inode.ino()));
        }
        let blocks = self.volume.block_range(&range);
        // With delayed allocation only the holes matter now. They may be known without a look at the extent tree.
        let delays = extents && self.alloc.delays();
        if delays && node::is_empty(&map.root) {
            map.holes.note_empty();
        }
        let known = delays && map.holes.has_none(&blocks);
        let mapper = Mapper::new(&self.alloc, e, &map);
        // The ranges without a reservation, each with the rest of the hole around it.
        let mut holes: SmallVec<[(Range<u64>, Stretch); 2]> = SmallVec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let clear = !map.delayed.intersects(at..blocks.end);
            if !clear && let Some(r) = map.delayed.from(at) {
                at = r.end;
                continue;
            }
            let found = if known {
                if cfg!(debug_assertions) {
                    let found = mapper.find(e.ino, &map, FileBlock(at), 1);
                    let is_hole = found.as_ref().is_ok_and(|f| {
                        f.state == BlockState::Hole && at.saturating_add(f.len) >= blocks.end
                    });
                    assert!(is_hole, "{at}..{} is no hole: {found:?}", blocks.end);
                }
                Stretch {
                    state: BlockState::Hole,
                    len: blocks.end - at,
                    before: None,
                }
            } else {
                mapper.find(e.ino, &map, FileBlock(at), 1)?
            };
            let end = at.saturating_add(found.len).min(blocks.end);
            if found.state != BlockState::Hole {
                at = end;
                continue;
            }
            if clear {
                holes.push((at..end, found));
                at = end;
                continue;
            }
            let mut from = at;
            let mut note = |hole: Range<u64>| {
                if hole.start < hole.end {
                    let rest = found.from(hole.start - at);
                    holes.push((hole, rest));
                }
            };
            for r in map.delayed.overlapping(at..end) {
                note(from..r.start);
                from = r.end;
            }
            note(from..end);
            at = end;
        }
        if holes.is_empty() {
            return Ok(Some(false));
        }
        let whole = blocks;
        let all_new =
            holes.iter().map(|(r, _)| r.end - r.start).sum::<u64>() == whole.end - whole.start;
        // Inserted first, because the worst case of metadata depends on the whole set.
        let (mut data, mut meta) = (0, 0);
        let delta = self.change_delayed(&mut map, whole.clone(), |map| {
            for (hole, _) in &holes {
                data += map.delayed.insert(hole.clone());
            }
        });
        meta += delta.max(0) as u64;
        if self.alloc.reserve_space(data, meta).is_err() {
            // Nothing was promised: only the set goes back.
            self.change_delayed(&mut map, whole, |map| {
                for (hole, _) in holes {
                    map.delayed.remove(hole);
                }
            });
            return Err(no_space(OP, e.ino));
        }
        if map.flags.contains(InodeFlags::EXTENTS) {
            map.meta_promised += meta;
        }
        let promised = self.quota.promise_space(inode, &map, Limit::Enforced);
        if promised.is_err() {
            for (hole, _) in holes {
                self.drop_delayed(&mut map, hole, true);
            }
        } else {
            map.placement.closed = false;
            if !self.alloc.delays() {
                self.assign(inode, &mut map, &holes, range.end);
            }
        }
        self.maps.show_blocks(inode, &map);
        promised.map(|()| Some(all_new))
    }

    /// `nodelalloc`: finds blocks for what was just reserved, in memory: writeback uses them, and
    /// nothing on disk refers to them before their data is there. Blocks that find no place here
    /// get one at writeback, as the reservation promises.
    fn assign(
        &self,
        inode: &Inode,
        map: &mut MapState,
        holes: &[(Range<u64>, Stretch)],
        data_end: u64,
    ) {
        let e = inode.private::<Ext4Inode>();
        let size_blocks = self
            .volume
            .block_range(&(0..inode.size().max(data_end)))
            .end;
        for (hole, found) in holes {
            let mut at = hole.start;
            while at < hole.end {
                let place = FileBlock(at);
                // Taking blocks changes nothing of what is mapped: the hole is what it was.
                let found = found.from(at - hole.start);
                let len = found.len.min(hole.end - at).min(RUN_MAX) as u32;
                let Ok(run) =
                    self.take_blocks(e, map, &found, place, len, size_blocks, Claim::Reserved)
                else {
                    return;
                };
                insert_assigned(map, place, run);
                at += u64::from(run.len);
            }
        }
    }

    /// [`blockwright_vfs::engine::Space::unreserve`].
    pub fn unreserve(&self, inode: &Inode, range: Range<u64>) {
        let e = inode.private::<Ext4Inode>();
        let mut map = e.map.write();
        self.unreserve_in(&mut map, self.volume.block_range(&range));
        self.maps.show_blocks(inode, &map);
    }

    pub(crate) fn unreserve_in(&self, map: &mut MapState, range: Range<u64>) {
        self.unassign(map, &range);
        // Blocks that are being written keep their claim until they are committed or abandoned.
        let busy: Vec<Range<u64>> = pending_in(map, &range)
            .map(|(at, run)| at..at + u64::from(run.len))
            .collect();
        let mut from = range.start;
        for b in busy {
            if from < b.start {
                self.drop_delayed(map, from..b.start, true);
            }
            from = from.max(b.end);
        }
        if from < range.end {
            self.drop_delayed(map, from..range.end, true);
        }
    }

    /// Takes the blocks back that [`Delayed::assign`] found and no writer is in: they are delayed again.
    fn unassign(&self, map: &mut MapState, range: &Range<u64>) {
        if map.pending.is_empty() {
            return;
        }
        let transit = self.alloc.in_transit.hold();
        transit.carries();
        split_pending(map, range.start);
        split_pending(map, range.end);
        let idle: Vec<(u64, PendingRun)> = pending_in(map, range)
            .filter(|(_, run)| run.writers == 0)
            .collect();
        for (at, p) in idle {
            map.pending.remove(&FileBlock(at));
            // Their claim stays with the reservation.
            self.alloc.put_back(Run {
                start: p.block,
                len: p.len,
            });
        }
    }

    /// Runs a step that takes blocks, again after a commit when there are none. Blocks that were `promised` exist, and so do their
    /// blocks of metadata. Another thread may have some in transit between the allocator and a preallocation, where a search does not
    /// find them. The step then runs again when they have arrived.
    pub(crate) fn keep_promise<R>(
        &self,
        promised: impl Fn() -> bool,
        mut step: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        let transit = &self.alloc.in_transit;
        for _ in 0..PROMISE_ROUNDS {
            let seen = transit.arrivals();
            match self.alloc.retry_after_commit(&mut step) {
                Err(e) if e.kind() == ErrorKind::NoSpace && promised() => {
                    if !transit.wait(seen) {
                        return Err(e);
                    }
                }
                done => return done,
            }
        }
        step()
    }

    /// [`blockwright_vfs::engine::Data::abandon_write`].
    pub fn abandon_write(&self, inode: &Inode, target: &WriteTarget) {
        let e = inode.private::<Ext4Inode>();
        let mut map = e.map.write();
        let blocks = self
            .volume
            .block_range(&(target.offset..target.offset.saturating_add(target.bytes)));
        let transit = self.alloc.in_transit.hold();
        transit.carries();
        split_pending(&mut map, blocks.start);
        split_pending(&mut map, blocks.end);
        let runs: Vec<(u64, PendingRun)> = pending_in(&map, &blocks).collect();
        for (at, p) in runs {
            if p.writers > 1 {
                if let Some(p) = map.pending.get_mut(&FileBlock(at)) {
                    p.writers -= 1;
                }
                continue;
            }
            map.pending.remove(&FileBlock(at));
            self.alloc.give_back(Run {
                start: p.block,
                len: p.len,
            });
            if p.was_delayed {
                self.drop_delayed(&mut map, at..at + u64::from(p.len), false);
            } else {
                map.pending_direct -= u64::from(p.len);
            }
        }
        self.maps.show_blocks(inode, &map);
    }

    /// [`blockwright_vfs::engine::Space::release_write`]: gives the inode's preallocated blocks up, and makes no
    /// more for it until it is written to again.
    pub fn release_write(&self, inode: &Inode) {
        let e = inode.private::<Ext4Inode>();
        let mut map = e.map.write();
        map.placement.closed = true;
        self.discard_preallocations(&mut map);
    }

    /// Gives an inode's preallocated blocks up.
    fn discard_preallocations(&self, map: &mut MapState) {
        let transit = self.alloc.in_transit.hold();
        transit.carries();
        for run in map.placement.discard(&self.alloc.preallocations) {
            self.alloc.put_back(run);
        }
    }

    /// The file's mapping is about to change: what was preallocated for it goes.
    pub(crate) fn forget_placement(&self, inode: &Inode) {
        let e = inode.private::<Ext4Inode>();
        self.discard_preallocations(&mut e.map.write());
    }

    /// Gives up everything that an inode holds in memory only, for eviction.
    pub fn release_blocks_in_memory(&self, inode: &Inode) {
        self.release_write(inode);
        self.unreserve(inode, 0..u64::MAX);
    }
}

/// Pending runs that overlap a range of file blocks, in order.
pub(crate) fn pending_in<'a>(
    map: &'a MapState,
    range: &Range<u64>,
) -> impl Iterator<Item = (u64, PendingRun)> + use<'a> {
    let Range { start, end } = *range;
    let before = map.pending.range(..FileBlock(start)).next_back();
    let before = before.filter(|(at, p)| at.0 + u64::from(p.len) > start);
    before
        .into_iter()
        .chain(
            map.pending
                .range(FileBlock(start)..FileBlock(end.max(start))),
        )
        .map(|(at, p)| (at.0, *p))
}

/// Adds a run that waits for writeback; joined with what it continues, so that writeback gets long runs.
fn insert_assigned(map: &mut MapState, at: FileBlock, run: Run) {
    let last = map.pending.range_mut(..at).next_back();
    if let Some((start, p)) = last
        && p.writers == 0
        && p.was_delayed
        && start.0 + u64::from(p.len) == at.0
        && p.block.0 + u64::from(p.len) == run.start.0
        && u64::from(p.len) + u64::from(run.len) <= RUN_MAX
    {
        p.len += run.len;
        return;
    }
    let pending = PendingRun {
        block: run.start,
        len: run.len,
        was_delayed: true,
        writers: 0,
    };
    map.pending.insert(at, pending);
}

/// Cuts the pending run around `at` in two there.
pub(crate) fn split_pending(map: &mut MapState, at: u64) {
    let Some((&start, &p)) = map.pending.range(..FileBlock(at)).next_back() else {
        return;
    };
    let head = at - start.0;
    if head >= u64::from(p.len) {
        return;
    }
    map.pending.insert(
        start,
        PendingRun {
            len: head as u32,
            ..p
        },
    );
    let tail = PendingRun {
        block: BlockNo(p.block.0 + head),
        len: p.len - head as u32,
        ..p
    };
    map.pending.insert(FileBlock(at), tail);
}
