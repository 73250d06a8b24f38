//! Direct I/O without waiting: submitted by one thread, completed wherever the device completes it.
//!
//! A write that overwrites blocks in place, of a file with no cached pages over the range, has nothing left
//! to do when the device is done: its completion runs right there, in the device's context, and the
//! writer is told at once. Only work that may block goes to the *finisher* thread: dropping cached
//! pages, committing blocks or a size, an error. A flush for `O_DSYNC` goes to threads that only
//! synchronise; an overwrite whose metadata is durable is written with FUA instead and owes no flush.
//!
//! Writes that need blocks or a size are prepared by a small pool (which may wait for locks and metadata), then
//! fly like the others; the finisher commits all that have landed meanwhile in one go. What lives in the inode,
//! or is not aligned, is written synchronously by the pool. Where blocks are at hand (preallocated) nothing has to be prepared: front ends submit such
//! writes like overwrites, and a thread that carries out device I/O itself may also finish what lands in it ([`finish_here`]).
//!
//! # Locks
//! A submitted operation holds no lock while it flies; the file counts it instead, and truncation, with
//! the inode lock and `invalidate` held exclusively, waits until the count is zero. Writes that allocate are
//! counted a second time: whoever puts pages into the cache or allocates, with the inode lock held, waits
//! until they have landed. So finisher and synchronisers take neither of these locks: only the
//! pool may, which is why they are different threads.

mod landing;
mod reads;
mod workers;

pub use reads::ReadTarget;
pub(crate) use workers::Workers;
pub use workers::finish_here;

use crate::buffered::{INLINE_BYTES_MAX, InodeLock, WriteTimes};
use crate::direct_io::split_slices;
use crate::engine::{SyncScope, WriteTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{Handle, SyncMode};
use crate::inode::Inode;
use crate::readahead::Invalidate;
use crate::types::Timestamp;
use blockwright_device::{AlignedBuf, Flags, IoSlice};
use landing::{Debt, WriteFlight, launch};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a front end writes back in pieces of fewer bytes goes through the cache.
const WRITE_BACK_PAST_BYTES_MIN: u64 = 128 << 10;

/// What a direct write was given: blocks, the range they hold, and why that is not all of it.
type Prepared = (Vec<WriteTarget>, Range<u64>, Option<Error>);

/// Told once how a submitted write went. May run in the device's context: must not block.
pub type WriteDone = Box<dyn FnOnce(Result<usize>) + Send>;
/// Told once how a submitted read went. May run in the device's context: must not block.
pub type ReadDone = Box<dyn FnOnce(Result<Vec<IoSlice>>) + Send>;

/// Lets go of a file in a device's context: if it was the last reference, what follows (closing,
/// an eviction perhaps) is left to the pool.
fn let_go(handle: Arc<Handle>) {
    if let Some(last) = Arc::into_inner(handle) {
        let core = Arc::clone(last.core());
        let inode = Arc::clone(last.inode());
        core.workers.in_pool(&inode, Box::new(move || drop(last)));
    }
}

/// The inode lock as an overwrite needs it: shared for whole blocks. Parts of a block are written
/// with the lock held exclusively: beside a buffered writer of the block's other parts, the page it read before would bring
/// back what these parts held.
#[expect(dead_code, reason = "guards are proof, not data")]
enum OverwriteLock<'a> {
    Shared(crate::locks::ReadGuard<'a, ()>),
    Exclusive(crate::locks::WriteGuard<'a, ()>),
}

impl<'a> OverwriteLock<'a> {
    fn take(inode: &'a Inode, whole: bool, patience: Patience) -> Option<Self> {
        match (whole, patience) {
            (true, Patience::Wait) => Some(Self::Shared(inode.lock.read())),
            (true, Patience::Try) => inode.lock.try_read().map(Self::Shared),
            (false, Patience::Wait) => Some(Self::Exclusive(inode.lock.write())),
            (false, Patience::Try) => inode.lock.try_write().map(Self::Exclusive),
        }
    }
}

/// Whether one who submits may wait for locks and metadata.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Wait,
    Try,
}

impl Handle {
    /// Writes slices at `offset` without waiting for the device; `done` is told how many bytes were written.
    /// Order among overlapping operations in flight is not defined.
    ///
    /// Aligned overwrites through a direct handle never leave the device's completion context. May be called
    /// from `done` of another operation: nothing is waited for here, as whoever holds the file's lock may wait for
    /// an operation that the calling thread has yet to finish.
    pub fn submit_write(self: &Arc<Self>, slices: Vec<IoSlice>, offset: u64, done: WriteDone) {
        let times = WriteTimes::Now;
        let Err((slices, done)) = self.submit_overwrite(slices, offset, done, times, Patience::Try)
        else {
            return;
        };
        let me = Arc::clone(self);
        self.core().workers.in_pool(
            self.inode(),
            Box::new(move || {
                me.submit_write_here(slices, offset, done);
            }),
        );
    }

    /// As [`Handle::submit_write`], but what has to be waited for before the device gets the write (locks,
    /// metadata, blocks) the calling thread waits for, not one of the pool.
    pub fn submit_write_here(self: &Arc<Self>, slices: Vec<IoSlice>, offset: u64, done: WriteDone) {
        let times = WriteTimes::Now;
        if let Err((slices, done)) =
            self.submit_overwrite(slices, offset, done, times, Patience::Wait)
        {
            Arc::clone(self).submit_allocating(slices, offset, done, times);
        }
    }

    /// Whether so many bytes at `offset` that a front end's own cache held dirty go past ours, through any writable handle:
    /// whole blocks of what is a large file by now (`write_past_bytes`). The beginning of a file does not: nobody should have
    /// to wait for the device when he closes a small one.
    #[must_use]
    pub fn writes_back_past(&self, offset: u64, len: usize) -> bool {
        let core = self.core();
        let from = core.write_past_bytes.load(Ordering::Relaxed);
        from > 0
            && offset >= from
            && len as u64 >= from.min(WRITE_BACK_PAST_BYTES_MIN)
            && core.is_direct_aligned(offset, len)
    }

    /// As [`Handle::write_back_at`] without waiting for the device, if the write goes past the cache
    /// ([`Handle::writes_back_past`]); what has to be waited for before (locks, metadata, blocks) the calling thread waits for.
    pub fn submit_write_back_here(
        self: &Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        done: WriteDone,
    ) {
        let len = slices.iter().map(|s| s.len()).sum();
        if !self.writes_back_past(offset, len) {
            return done(self.write_back_slices(&slices, offset));
        }
        let times = WriteTimes::Theirs;
        if let Err((slices, done)) =
            self.submit_overwrite(slices, offset, done, times, Patience::Wait)
        {
            Arc::clone(self).submit_allocating(slices, offset, done, times);
        }
    }

    /// Starts a write-back past the cache if that can be done at once, as [`Handle::try_submit_write`] does for direct writes.
    ///
    /// # Errors
    /// As there: use [`Handle::submit_write_back_here`].
    pub fn try_submit_write_back(
        self: &Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        done: WriteDone,
    ) -> std::result::Result<(), (Vec<IoSlice>, WriteDone)> {
        let len = slices.iter().map(|s| s.len()).sum();
        if !self.writes_back_past(offset, len) {
            return Err((slices, done));
        }
        self.submit_at_once(slices, offset, done, WriteTimes::Theirs)
    }

    fn write_back_slices(&self, slices: &[IoSlice], offset: u64) -> Result<usize> {
        match slices {
            [one] => self.write_back_at(one, offset),
            _ => {
                let parts: Vec<&[u8]> = slices.iter().map(|s| &s[..]).collect();
                self.write_back_at(&AlignedBuf::concat(&parts), offset)
            }
        }
    }

    /// Submits a write if that can be done at once: an aligned overwrite in place through a direct handle, of
    /// blocks whose places are known, with no cached pages over the range and nobody holding the file's lock
    /// exclusively; or one of whole blocks into a hole, or behind the end, for which the engine has blocks at hand, with nobody holding the lock at all.
    /// `done` is then called once, mostly in the device's context.
    ///
    /// # Errors
    /// Gives everything back, untouched, when waiting (for a lock, for metadata, for the cache) or
    /// reporting an error may be needed: use [`Handle::submit_write`] or [`Handle::write_slices`]
    /// where that is allowed. After one of these succeeded, the next write nearby can most likely be submitted.
    pub fn try_submit_write(
        self: &Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        done: WriteDone,
    ) -> std::result::Result<(), (Vec<IoSlice>, WriteDone)> {
        self.submit_at_once(slices, offset, done, WriteTimes::Now)
    }

    fn submit_at_once(
        self: &Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        done: WriteDone,
        times: WriteTimes,
    ) -> std::result::Result<(), (Vec<IoSlice>, WriteDone)> {
        let (slices, done) = match self.submit_overwrite(slices, offset, done, times, Patience::Try)
        {
            Ok(()) => return Ok(()),
            Err(back) => back,
        };
        let Some((target, range)) = self.prepare_at_hand(&slices, offset, times) else {
            return Err((slices, done));
        };
        let counters = &self.core().counters;
        counters.direct_at_hand.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self).fly_allocating(slices, vec![target], range, done, times);
        Ok(())
    }

    /// As [`Handle::prepare_allocating`], for all of a write, if nothing has to be waited for.
    fn prepare_at_hand(
        &self,
        slices: &[IoSlice],
        offset: u64,
        times: WriteTimes,
    ) -> Option<(WriteTarget, Range<u64>)> {
        let core = self.core();
        let inode = self.inode();
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let range = offset..offset.checked_add(len as u64)?;
        if !core.is_direct_aligned(offset, len)
            || !self.is_overwriting_direct(slices, &range, times)
        {
            return None;
        }
        let _lock = inode.lock.try_write()?;
        let size = inode.size();
        let may_be_inline = size > 0 && size <= INLINE_BYTES_MAX;
        // What lies between the end and the write in its block would have to become zero.
        let leaves_tail = offset > size && !size.is_multiple_of(core.block());
        if may_be_inline
            || leaves_tail
            || inode.pages.overlaps(range.clone())
            || inode.pages.is_allocating(&range)
        {
            return None;
        }
        let data_end = size.max(range.end);
        let target = core.engine.allocate_at_hand(inode, &range, data_end)?;
        debug_assert!(target.offset == offset && target.bytes == len as u64);
        inode.pages.direct_begin();
        inode.pages.allocating_begin(range.clone());
        Some((target, range))
    }

    /// Submits the write if it is a pure overwrite; otherwise gives everything back.
    fn submit_overwrite(
        self: &Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        done: WriteDone,
        times: WriteTimes,
        patience: Patience,
    ) -> std::result::Result<(), (Vec<IoSlice>, WriteDone)> {
        let core = self.core();
        let inode = self.inode();
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let range = offset..offset.saturating_add(len as u64);
        if !self.is_overwriting_direct(&slices, &range, times) {
            return Err((slices, done));
        }
        let whole = core.is_direct_aligned(offset, len);
        let Some(lock) = OverwriteLock::take(inode, whole, patience) else {
            return Err((slices, done));
        };
        if range.end > inode.size() || inode.pages.overlaps(core.blocks_over(&range)) {
            return Err((slices, done));
        }
        let pieces = match patience {
            Patience::Wait => core.overwrite_places(inode, &range),
            Patience::Try => inode.settled.find(&range),
        };
        let Some(pieces) = pieces else {
            return Err((slices, done));
        };
        inode.pages.direct_begin();
        let debt = if whole {
            Debt::None
        } else {
            let blocks = core.blocks_over(&range);
            inode.pages.allocating_begin(blocks.clone());
            Debt::Release(blocks)
        };
        match times {
            WriteTimes::Now => {
                let now = Timestamp::now();
                inode.update_attr(|a| {
                    a.mtime = now;
                    a.ctime = now;
                });
                core.mark_lazy(inode);
            }
            WriteTimes::Theirs => core.counters.write_past.add(1),
        }
        core.counters
            .bytes_written
            .fetch_add(len as u64, Ordering::Relaxed);
        drop(lock);
        let mut sync = self.flags().sync;
        let mut flags = Flags::empty();
        if sync == SyncMode::Data
            && core.device_fua
            && core.engine.is_settled(inode, SyncScope::Data)
        {
            // All that the data needs to be found is durable; with the data durable there is nothing to flush.
            flags = Flags::FUA;
            sync = SyncMode::None;
            core.counters.direct_fua.fetch_add(1, Ordering::Relaxed);
        }
        let flight = WriteFlight {
            handle: Arc::clone(self),
            range,
            times,
            sync,
            debt,
            done,
        };
        launch(core, flight, slices, &pieces, flags);
        Ok(())
    }

    /// Whether this may be an overwrite past the cache, as far as it can be told without looking at the file.
    fn is_overwriting_direct(
        &self,
        slices: &[IoSlice],
        range: &Range<u64>,
        times: WriteTimes,
    ) -> bool {
        let logical = u64::from(self.core().logical_block_bytes);
        self.goes_past(times)
            && !range.is_empty()
            && range.start.is_multiple_of(logical)
            && slices
                .iter()
                .all(|s| (s.len() as u64).is_multiple_of(logical))
            && self.may_overwrite(times).is_ok()
            && !self.must_strip()
    }

    /// Whether writes of this handle go past the cache to the offset they name: of a direct one, and what a front
    /// end writes back.
    fn goes_past(&self, times: WriteTimes) -> bool {
        let flags = self.flags();
        match times {
            WriteTimes::Now => flags.direct && !flags.appends_here(),
            WriteTimes::Theirs => true,
        }
    }

    /// A write that needs blocks, a size or the cache, in the pool: prepares it under the file's lock and sends it
    /// on its way; or writes it here, when it cannot fly.
    fn submit_allocating(
        self: Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        done: WriteDone,
        times: WriteTimes,
    ) {
        match self.prepare_allocating(&slices, offset, times) {
            Ok(Some((targets, range, cut))) => {
                let (slices, _) = split_slices(slices, range.end - range.start);
                let done: WriteDone = match cut {
                    Some(why) if self.flags().front_end.short_write_is_error() => {
                        Box::new(move |result| done(result.and(Err(why))))
                    }
                    _ => done,
                };
                self.fly_allocating(slices, targets, range, done, times);
            }
            Ok(None) => {
                let counters = &self.core().counters;
                counters.deferred_cached.fetch_add(1, Ordering::Relaxed);
                counters.direct_deferred.fetch_add(1, Ordering::Relaxed);
                done(match times {
                    WriteTimes::Now => self.write_slices(slices, offset),
                    WriteTimes::Theirs => self.write_back_slices(&slices, offset),
                });
            }
            Err(e) => done(Err(e)),
        }
    }

    /// Sends a write on its way that is prepared, and counted in flight.
    fn fly_allocating(
        self: Arc<Self>,
        slices: Vec<IoSlice>,
        targets: Vec<WriteTarget>,
        range: Range<u64>,
        done: WriteDone,
        times: WriteTimes,
    ) {
        let pieces = targets
            .iter()
            .filter_map(|t| {
                t.device
                    .map(|d| (d, t.bytes.min(range.end.saturating_sub(t.offset))))
            })
            .collect();
        let sync = self.flags().sync;
        let core = Arc::clone(self.core());
        if times == WriteTimes::Theirs {
            core.counters.write_past.add(1);
        }
        let flight = WriteFlight {
            handle: self,
            range,
            times,
            sync,
            debt: Debt::Commit(targets),
            done,
        };
        launch(&core, flight, slices, &pieces, Flags::empty());
    }

    /// Allocates for a direct write and counts it in flight. What was allocated, which range it holds, and why that is less than
    /// asked for (no more room); `None` when the write does not go past the cache.
    fn prepare_allocating(
        &self,
        slices: &[IoSlice],
        offset: u64,
        times: WriteTimes,
    ) -> Result<Option<Prepared>> {
        let core = self.core();
        let inode = self.inode();
        let block = core.block();
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let aligned = core.is_direct_aligned(offset, len)
            && slices
                .iter()
                .all(|s| (s.len() as u64).is_multiple_of(u64::from(core.logical_block_bytes)));
        if !self.goes_past(times) || !aligned {
            return Ok(None);
        }
        self.may_overwrite(times)?;
        core.make_room(len);
        let end = offset
            .checked_add(len as u64)
            .filter(|e| *e <= core.engine.file_bytes_max(inode))
            .ok_or_else(|| Error::new(ErrorKind::FileTooLarge, "direct write").ino(inode.ino()))?;
        let lock = inode.lock.write();
        if self.must_strip() {
            self.strip_held()?;
        }
        let range = offset..end;
        inode.pages.wait_allocating(&range);
        if core.is_inline(inode)? {
            return Ok(None);
        }
        let size = inode.size();
        if end > size {
            // The old last block's tail may have to become zero first, which nobody else may write then.
            inode
                .pages
                .wait_allocating(&(size / block * block..size.next_multiple_of(block)));
            core.prepare_growth(inode, offset, &Invalidate::Take, None)?;
        }
        core.write_open_end(inode, end, None)?;
        core.flush_overlap(inode, range.clone());
        core.drop_overlap(inode, range.clone());
        let (targets, reached, cut) = core.take_targets(inode, &range, size.max(end));
        if let (true, Some(e)) = (reached == offset, &cut) {
            return Err(e.clone());
        }
        if targets.iter().any(|t| t.device.is_none()) {
            for t in targets.iter().filter(|t| t.commit) {
                core.engine.abandon_write(inode, t);
            }
            return Ok(None);
        }
        let range = offset..reached;
        inode.pages.direct_begin();
        inode.pages.allocating_begin(range.clone());
        drop(lock);
        Ok(Some((targets, range, cut)))
    }

    /// Writes slices at `offset` and waits; direct handles write aligned slices without copying.
    ///
    /// # Errors
    /// As [`Handle::write_at`].
    pub fn write_slices(&self, slices: Vec<IoSlice>, offset: u64) -> Result<usize> {
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let at_end = self.flags().appends_here();
        let logical = u64::from(self.core().logical_block_bytes);
        let aligned = offset.is_multiple_of(logical)
            && len > 0
            && slices
                .iter()
                .all(|s| (s.len() as u64).is_multiple_of(logical));
        if at_end || !self.flags().direct || !aligned {
            return match &slices[..] {
                [one] => self.write_at(one, offset),
                _ => {
                    let parts: Vec<&[u8]> = slices.iter().map(|s| &s[..]).collect();
                    self.write_at(&AlignedBuf::concat(&parts), offset)
                }
            };
        }
        self.write_direct_slices(slices, offset, len)
    }

    /// Writes aligned slices past the cache, under the lock the write needs.
    pub(crate) fn write_direct_slices(
        &self,
        slices: Vec<IoSlice>,
        at: u64,
        len: usize,
    ) -> Result<usize> {
        let whole = self
            .flags()
            .front_end
            .short_write_is_error()
            .then(|| slices.clone());
        let mut n = self.write_direct_unsynced(slices, at, len)?;
        if let Some(whole) = whole.filter(|_| 0 < n && n < len) {
            let (_, rest) = split_slices(whole, n as u64);
            n += self.write_direct_slices(rest, at + n as u64, len - n)?;
        }
        self.after_write(at, n)?;
        Ok(n)
    }

    /// As [`Handle::write_direct_slices`], owing what a synchronous handle owes.
    pub(crate) fn write_direct_unsynced(
        &self,
        slices: Vec<IoSlice>,
        at: u64,
        len: usize,
    ) -> Result<usize> {
        self.may_overwrite(WriteTimes::Now)?;
        let core = self.core();
        let inode = self.inode();
        core.make_room(len);
        let end = at.saturating_add(len as u64);
        let strip = self.must_strip();
        let whole = core.is_direct_aligned(at, len);
        let range = at..end;
        let n = 'written: {
            if whole && !strip {
                let lock = inode.lock.read();
                let proof = InodeLock::Shared(&lock);
                if range.end <= inode.size()
                    && let Some(pieces) = core.overwrite_places(inode, &range)
                {
                    break 'written core.write_over(inode, slices, &range, &pieces, &proof)?;
                }
                if core.is_overwrite(inode, &range)? {
                    break 'written core.write_direct(inode, slices, at, &proof)?;
                }
            }
            let lock = inode.lock.write();
            if strip {
                self.strip_held()?;
            }
            let proof = InodeLock::Exclusive(&lock);
            if whole {
                core.write_direct(inode, slices, at, &proof)?
            } else if range.end <= inode.size()
                && let Some(pieces) = core.overwrite_places(inode, &range)
            {
                core.write_over(inode, slices, &range, &pieces, &proof)?
            } else {
                // Parts of blocks that hold nothing yet get the rest from the cache.
                let parts: Vec<&[u8]> = slices.iter().map(|s| &s[..]).collect();
                let data = AlignedBuf::concat(&parts);
                self.write_cached(&data, at, &proof, WriteTimes::Now)?
            }
        };
        Ok(n)
    }
}
