//! Writes: which way one goes, and where its bytes are placed.
//!
//! A write past the cache is placed under the file's lock and submitted without it. An overwrite whose blocks and size do not
//! change takes the lock shared. A part of a block takes it exclusively: beside a buffered writer of the block's other parts, the
//! page which that writer read before would bring back what these parts held. All else takes it exclusively.

use super::completion::{Carrier, Finishes, PostWriteWork, WriteFlight, launch};
use super::submit::How;
use super::wait::Waiter;
use super::{Operation, Patience, WaitsFor, WouldWait, WriteDone};
use crate::cache::extent_cache::Pieces;
use crate::engine::SyncScope;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{Handle, SyncMode};
use crate::inode::Inode;
use crate::inode::times::TimesKeeper;
use crate::io::buffered::{INLINE_BYTES_MAX, InodeLock};
use crate::io::readahead::Invalidate;
use crate::types::Timestamp;
use blockwright_device::{AlignedBuf, Flags, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What errors of writes name.
const WRITE: &str = "write";

/// Writeback of a front end in smaller pieces than this goes through the cache.
const WRITE_BACK_PAST_BYTES_MIN: u64 = 128 << 10;

/// Where a write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte of the file. At the end, if the handle was opened to append.
    Offset(u64),
    /// At the end of the file, atomically.
    End,
}

/// The bytes of a write.
#[derive(Clone, Debug)]
pub enum Bytes<'a> {
    /// The caller's: copied, into the cache or for the device.
    Borrowed(&'a [u8]),
    /// Counted references: the device gets them as they are, where their lengths allow that.
    Slices(Vec<IoSlice>),
}

impl Bytes<'_> {
    fn len(&self) -> usize {
        match self {
            Bytes::Borrowed(bytes) => bytes.len(),
            Bytes::Slices(slices) => slices.iter().map(|s| s.len()).sum(),
        }
    }

    /// Whether the device takes each piece as it is.
    fn is_aligned(&self, logical: u64) -> bool {
        match self {
            Bytes::Borrowed(bytes) => (bytes.len() as u64).is_multiple_of(logical),
            Bytes::Slices(slices) => slices
                .iter()
                .all(|s| (s.len() as u64).is_multiple_of(logical)),
        }
    }

    fn concat(slices: &[IoSlice]) -> AlignedBuf {
        let parts: Vec<&[u8]> = slices.iter().map(|s| &s[..]).collect();
        AlignedBuf::concat(&parts)
    }

    /// The bytes as slices that the device takes. They are copied unless they are owned and aligned.
    fn into_slices(self, logical: u64) -> Vec<IoSlice> {
        let aligned = self.is_aligned(logical);
        match self {
            Bytes::Borrowed(bytes) => vec![AlignedBuf::copy_for_transfer(bytes).into()],
            Bytes::Slices(slices) if aligned => slices,
            Bytes::Slices(slices) => vec![Self::concat(&slices).into()],
        }
    }

    /// Runs `job` on the bytes as one slice, for the page cache. Several slices are copied together.
    fn with<R>(&self, job: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Bytes::Borrowed(bytes) => job(bytes),
            Bytes::Slices(slices) => match &slices[..] {
                [one] => job(one),
                _ => job(&Self::concat(slices)),
            },
        }
    }
}

/// A write. Its outcome is how many bytes were written: all of them, or as many as fit the volume.
#[derive(Clone)]
pub struct WriteOp<'a> {
    /// Where it begins.
    pub at: WriteAt,
    /// What is written.
    pub bytes: Bytes<'a>,
    /// What it makes durable; `None`: what the handle was opened for.
    pub sync: Option<SyncMode>,
    /// The side that keeps the file's times.
    pub times: TimesKeeper,
    /// The calling thread, if it carries device I/O itself and starts this write.
    pub carrier: Option<Arc<Carrier>>,
}

impl<'a> WriteOp<'a> {
    fn new(at: WriteAt, bytes: Bytes<'a>) -> Self {
        WriteOp {
            at,
            bytes,
            sync: None,
            times: TimesKeeper::Vfs,
            carrier: None,
        }
    }

    /// A write of counted slices at `offset`.
    #[must_use]
    pub fn at(offset: u64, slices: Vec<IoSlice>) -> Self {
        Self::new(WriteAt::Offset(offset), Bytes::Slices(slices))
    }

    /// A write of the caller's bytes.
    #[must_use]
    pub fn borrowed(at: WriteAt, bytes: &'a [u8]) -> Self {
        Self::new(at, Bytes::Borrowed(bytes))
    }

    /// Dirty data of a front end's own cache. It goes to its offset, independent of the handle's flags, and does not change
    /// the times.
    #[must_use]
    pub fn written_back(self) -> Self {
        WriteOp {
            times: TimesKeeper::FrontEnd,
            ..self
        }
    }

    /// Hands in the calling thread, which carries the device I/O. Not for a write that another thread starts, or that the caller
    /// waits for.
    #[must_use]
    pub fn carried_by(self, carrier: &Arc<Carrier>) -> Self {
        WriteOp {
            carrier: Some(Arc::clone(carrier)),
            ..self
        }
    }

    /// For another thread.
    fn into_owned(self) -> WriteOp<'static> {
        let bytes = match self.bytes {
            Bytes::Borrowed(bytes) => {
                Bytes::Slices(vec![AlignedBuf::copy_for_transfer(bytes).into()])
            }
            Bytes::Slices(slices) => Bytes::Slices(slices),
        };
        WriteOp {
            at: self.at,
            bytes,
            sync: self.sync,
            times: self.times,
            carrier: None,
        }
    }
}

impl super::sealed::Sealed for WriteOp<'_> {}

impl Operation for WriteOp<'_> {
    type Output = usize;

    fn start_on(
        self,
        handle: &Arc<Handle>,
        done: WriteDone,
        patience: Patience,
    ) -> Option<WouldWait<Self>> {
        match patience {
            Patience::Nowait => match handle.place_nowait(&self, Preallocated::Use) {
                Ok(flight) => handle.launch(self, flight, done, None),
                Err(why) => {
                    let op = self;
                    return Some(WouldWait { op, done, why });
                }
            },
            Patience::Wait => handle.write_waiting(self, done),
            // Preallocated blocks are not looked for: appends that wait in the pool have the first right to them.
            Patience::Worker => match handle.place_nowait(&self, Preallocated::Leave) {
                Ok(flight) => handle.launch(self, flight, done, None),
                Err(_) => {
                    let (me, op) = (Arc::clone(handle), self.into_owned());
                    let task = Box::new(move || me.write_waiting(op, done));
                    handle.core().workers.in_pool(handle.inode(), task);
                }
            },
        }
        None
    }

    fn run_on(self, handle: &Arc<Handle>) -> Result<usize> {
        handle.run_write(self).map(|(_, n)| n)
    }
}

/// The inode lock as an overwrite needs it.
#[expect(dead_code, reason = "guards are proof, not data")]
enum OverwriteLock<'a> {
    Shared(crate::locks::ReadGuard<'a, ()>),
    Exclusive(crate::locks::WriteGuard<'a, ()>),
}

impl<'a> OverwriteLock<'a> {
    fn take(inode: &'a Inode, shared: bool, nowait: bool) -> Option<Self> {
        match (shared, nowait) {
            (true, false) => Some(Self::Shared(inode.lock.read())),
            (true, true) => inode.lock.try_read().map(Self::Shared),
            (false, false) => Some(Self::Exclusive(inode.lock.write())),
            (false, true) => inode.lock.try_write().map(Self::Exclusive),
        }
    }
}

/// An overwrite that is counted. It is not any more when this is dropped.
struct Overwriting<'a>(&'a Inode);

impl<'a> Overwriting<'a> {
    fn begin(inode: &'a Inode) -> Self {
        inode.pages.overwrite_begin();
        Overwriting(inode)
    }

    /// The flight ends the count.
    fn goes_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for Overwriting<'_> {
    fn drop(&mut self) {
        self.0.pages.overwrite_end();
    }
}

/// Whether a write that must not wait may take blocks that the engine has preallocated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preallocated {
    Use,
    Leave,
}

/// Where a write past the cache goes. It is counted in flight.
struct PlacedWrite {
    range: Range<u64>,
    pieces: Pieces,
    work: PostWriteWork,
    /// Why the range is not all that was asked for.
    cut: Option<Error>,
}

/// Where the bytes of a write went.
enum Placed {
    /// Nowhere yet: the device gets them.
    Past(PlacedWrite),
    /// Into the cache: from where on, and how many.
    Cached(u64, usize),
}

impl Handle {
    /// Whether this many bytes at `offset` that a front end's own cache held dirty go past ours, through any writable handle:
    /// whole blocks of a file that is large by now (`write_past_bytes`). The beginning of a file does not, so that a program
    /// that closes a small file need not wait for the device.
    #[must_use]
    pub fn writes_back_past(&self, offset: u64, len: usize) -> bool {
        let core = self.core();
        let from = core.write_past_bytes.load(Ordering::Relaxed);
        from > 0
            && offset >= from
            && len as u64 >= from.min(WRITE_BACK_PAST_BYTES_MIN)
            && core.is_direct_aligned(offset, len)
    }

    /// Where the write begins, if the handle's flags are heeded.
    fn begin_of(&self, op: &WriteOp<'_>) -> WriteAt {
        match op.at {
            WriteAt::Offset(_) if op.times == TimesKeeper::Vfs && self.flags().appends_here() => {
                WriteAt::End
            }
            at => at,
        }
    }

    /// Whether a write of this kind may go past the cache.
    fn goes_past(&self, op: &WriteOp<'_>, at: WriteAt) -> bool {
        match (op.times, at) {
            (TimesKeeper::Vfs, _) => self.flags().direct,
            (TimesKeeper::FrontEnd, WriteAt::Offset(at)) => {
                self.writes_back_past(at, op.bytes.len())
            }
            (TimesKeeper::FrontEnd, WriteAt::End) => false,
        }
    }

    /// Starts a write in a thread that may wait.
    fn write_waiting(self: &Arc<Self>, op: WriteOp<'_>, done: WriteDone) {
        match self.place(&op) {
            Ok(Placed::Past(write)) => self.launch(op, write, done, None),
            Ok(Placed::Cached(at, n)) => {
                if op.times == TimesKeeper::Vfs {
                    let counters = &self.core().counters;
                    counters.deferred_cached.fetch_add(1, Ordering::Relaxed);
                    counters.direct_deferred.fetch_add(1, Ordering::Relaxed);
                }
                done(self.after_cached_write(at, n, self.sync_of(&op)));
            }
            Err(e) => done(Err(e)),
        }
    }

    /// Writes and waits. Where the write began, and how many bytes were written.
    pub(crate) fn run_write(self: &Arc<Self>, mut op: WriteOp<'_>) -> Result<(u64, usize)> {
        // A thread that waits here completes nothing in its ring.
        op.carrier = None;
        match self.place(&op)? {
            Placed::Past(write) => {
                let at = write.range.start;
                let waiter = Waiter::new();
                self.launch(op, write, waiter.done(), Some(Arc::clone(&waiter) as _));
                Ok((at, waiter.wait()?))
            }
            Placed::Cached(at, n) => Ok((at, self.after_cached_write(at, n, self.sync_of(&op))?)),
        }
    }

    fn sync_of(&self, op: &WriteOp<'_>) -> SyncMode {
        op.sync.unwrap_or(self.flags().sync)
    }

    /// Places a write if nothing has to be waited for: an overwrite in place of blocks whose places are known, with no cached
    /// pages over the range; or whole blocks in a hole, or behind the end, for which the engine has preallocated blocks.
    fn place_nowait(
        &self,
        op: &WriteOp<'_>,
        preallocated: Preallocated,
    ) -> std::result::Result<PlacedWrite, WaitsFor> {
        let begin = self.begin_of(op);
        if !self.goes_past(op, begin) {
            return Err(WaitsFor::Cache);
        }
        let WriteAt::Offset(at) = begin else {
            return Err(WaitsFor::End);
        };
        let core = self.core();
        let len = op.bytes.len();
        let logical = u64::from(core.logical_block_bytes);
        if !core.is_device_aligned(at, len) || !op.bytes.is_aligned(logical) {
            return Err(WaitsFor::Alignment);
        }
        if self.may_overwrite(op.times).is_err() || self.must_strip() {
            return Err(WaitsFor::Refusal);
        }
        let range = at..at.saturating_add(len as u64);
        let why = match self.place_over(&range, op.times, true) {
            Ok(write) => return Ok(write),
            Err(why) => why,
        };
        if preallocated == Preallocated::Leave {
            return Err(why);
        }
        let placed = self.place_preallocated(range).ok_or(why)?;
        core.counters.direct_nowait.fetch_add(1, Ordering::Relaxed);
        Ok(placed)
    }

    /// Places a write, and waits for what has to be waited for.
    fn place(&self, op: &WriteOp<'_>) -> Result<Placed> {
        let core = self.core();
        self.may_overwrite(op.times)?;
        let len = op.bytes.len();
        let begin = self.begin_of(op);
        let past = self.goes_past(op, begin);
        if past
            && let WriteAt::Offset(at) = begin
            && core.is_device_aligned(at, len)
            && !self.must_strip()
            && let Ok(write) =
                self.place_over(&(at..at.saturating_add(len as u64)), op.times, false)
        {
            return Ok(Placed::Past(write));
        }
        core.make_room(len);
        let (at, n) = if past {
            match self.place_locked(op, begin)? {
                Placed::Cached(at, n) => (at, n),
                write => return Ok(write),
            }
        } else {
            op.bytes
                .with(|data| self.place_cached(data, begin, op.times))?
        };
        if n < len && self.flags().front_end.short_write_is_error() {
            op.bytes.with(|data| {
                let mut n = n;
                while n < len {
                    let rest = WriteAt::Offset(at + n as u64);
                    match self.place_cached(&data[n..], rest, op.times)? {
                        (_, 0) => break,
                        (_, more) => n += more,
                    }
                }
                Ok(Placed::Cached(at, n))
            })
        } else {
            Ok(Placed::Cached(at, n))
        }
    }

    /// Copies bytes into the cache: beside other writers when the size does not change.
    pub(crate) fn place_cached(
        &self,
        data: &[u8],
        begin: WriteAt,
        times: TimesKeeper,
    ) -> Result<(u64, usize)> {
        let inode = self.inode();
        let strip = self.must_strip();
        if let WriteAt::Offset(at) = begin
            && !strip
        {
            let lock = inode.lock.read();
            self.core().alive(WRITE)?;
            let whole = self.core().is_direct_aligned(at, data.len());
            let part = (!whole).then(|| inode.pages.part_writer());
            let alone = !matches!(part, Some(None));
            if alone && at.saturating_add(data.len() as u64) <= inode.size() {
                let n = self.write_cached(data, at, &InodeLock::Shared(&lock), times)?;
                return Ok((at, n));
            }
        }
        let lock = self.core().lock_to_change(inode, WRITE)?;
        if strip {
            self.strip_held()?;
        }
        let at = self.resolve(begin);
        let n = self.write_cached(data, at, &InodeLock::Exclusive(&lock), times)?;
        Ok((at, n))
    }

    /// The offset that a write begins at. The inode lock is held exclusively.
    fn resolve(&self, begin: WriteAt) -> u64 {
        match begin {
            WriteAt::Offset(at) => at,
            WriteAt::End => {
                // Direct writes in flight raise the size when they finish.
                self.inode().pages.wait_allocating(&(0..u64::MAX));
                self.inode().size()
            }
        }
    }

    /// Places an overwrite, if neither blocks nor size change by it and the engine keeps data where it is.
    ///
    /// A page that covers the range, or a buffered writer of a part of a block, needs the inode lock exclusively: the writer would
    /// otherwise make a page dirty that holds older bytes than this write, and the page would be written over them.
    fn place_over(
        &self,
        range: &Range<u64>,
        times: TimesKeeper,
        nowait: bool,
    ) -> std::result::Result<PlacedWrite, WaitsFor> {
        let len = (range.end - range.start) as usize;
        let shared = self.core().is_direct_aligned(range.start, len);
        match self.try_place_over(range, times, shared, nowait) {
            Err(WaitsFor::CachedPages | WaitsFor::Lock) if shared && !nowait => {
                self.try_place_over(range, times, false, false)
            }
            placed => placed,
        }
    }

    /// [`Handle::place_over`] with the inode lock shared or exclusive.
    fn try_place_over(
        &self,
        range: &Range<u64>,
        times: TimesKeeper,
        shared: bool,
        nowait: bool,
    ) -> std::result::Result<PlacedWrite, WaitsFor> {
        let core = self.core();
        let inode = self.inode();
        let len = (range.end - range.start) as usize;
        let whole = core.is_direct_aligned(range.start, len);
        let lock = OverwriteLock::take(inode, shared, nowait).ok_or(WaitsFor::Lock)?;
        // Of a volume that is being unmounted: the other ways refuse it.
        if range.end > inode.size() || core.alive(WRITE).is_err() {
            return Err(WaitsFor::Blocks);
        }
        // Before the looks that follow: see `FilePages::overwrite_begin`.
        let counted = whole.then(|| Overwriting::begin(inode));
        if shared && inode.pages.has_part_writers() {
            return Err(WaitsFor::Lock);
        }
        if inode.pages.overlaps(core.blocks_over(range)) {
            if shared || nowait {
                return Err(WaitsFor::CachedPages);
            }
            core.flush_overlap(inode, range.clone());
            core.drop_overlap(inode, range.clone());
        }
        let pieces = match nowait {
            true => inode.extent_cache.find(range),
            false => core.overwrite_places(inode, range),
        };
        let pieces = pieces.ok_or(WaitsFor::Blocks)?;
        inode.pages.direct_begin();
        let work = if let Some(counted) = counted {
            counted.goes_on();
            PostWriteWork::None
        } else {
            let blocks = core.blocks_over(range);
            inode.pages.allocating_begin(blocks.clone());
            PostWriteWork::Release(blocks)
        };
        if times == TimesKeeper::Vfs {
            let now = Timestamp::now();
            inode.update_attr(|a| (a.mtime, a.ctime) = (now, now));
            core.mark_lazy(inode);
        }
        core.counters
            .bytes_written
            .fetch_add(len as u64, Ordering::Relaxed);
        drop(lock);
        Ok(PlacedWrite {
            range: range.clone(),
            pieces,
            work,
            cut: None,
        })
    }

    /// Places a write of whole blocks for which the engine has preallocated blocks.
    fn place_preallocated(&self, range: Range<u64>) -> Option<PlacedWrite> {
        let core = self.core();
        let inode = self.inode();
        if !core.is_direct_aligned(range.start, (range.end - range.start) as usize) {
            return None;
        }
        let _lock = inode.lock.try_write()?;
        core.alive(WRITE).ok()?;
        let size = inode.size();
        let may_be_inline = size > 0 && size <= INLINE_BYTES_MAX;
        // The bytes between the end and the write, in its block, would have to become zero.
        let leaves_tail = range.start > size && !size.is_multiple_of(core.block());
        if may_be_inline
            || leaves_tail
            || inode.pages.overlaps(range.clone())
            || inode.pages.is_allocating(&range)
        {
            return None;
        }
        let data_end = size.max(range.end);
        let target = core.engine.allocate_nowait(inode, &range, data_end)?;
        debug_assert!(target.offset == range.start && target.bytes == range.end - range.start);
        Some(self.count_allocating(range, vec![target], None))
    }

    /// Counts a write that commits blocks as in flight. The inode lock is held exclusively.
    fn count_allocating(
        &self,
        range: Range<u64>,
        targets: Vec<crate::engine::WriteTarget>,
        cut: Option<Error>,
    ) -> PlacedWrite {
        let pages = &self.inode().pages;
        pages.direct_begin();
        pages.allocating_begin(range.clone());
        let pieces = targets
            .iter()
            .filter_map(|t| {
                t.device
                    .map(|d| (d, t.bytes.min(range.end.saturating_sub(t.offset))))
            })
            .collect();
        PlacedWrite {
            range,
            pieces,
            work: PostWriteWork::Commit(targets),
            cut,
        }
    }

    /// Places a write that goes past the cache if it can, under the inode lock: allocates blocks for it, or writes it into the
    /// cache.
    fn place_locked(&self, op: &WriteOp<'_>, begin: WriteAt) -> Result<Placed> {
        let core = self.core();
        let inode = self.inode();
        let lock = core.lock_to_change(inode, WRITE)?;
        if self.must_strip() {
            self.strip_held()?;
        }
        let at = self.resolve(begin);
        let len = op.bytes.len();
        if core.is_direct_aligned(at, len)
            && let Some(write) = self.place_allocating(at, len)?
        {
            return Ok(Placed::Past(write));
        }
        let proof = InodeLock::Exclusive(&lock);
        let n = op
            .bytes
            .with(|data| self.write_cached(data, at, &proof, op.times))?;
        Ok(Placed::Cached(at, n))
    }

    /// Allocates for a direct write of whole blocks. `None` when the data belongs in the inode. The inode lock is held exclusively.
    fn place_allocating(&self, offset: u64, len: usize) -> Result<Option<PlacedWrite>> {
        let core = self.core();
        let inode = self.inode();
        let block = core.block();
        let end = offset
            .checked_add(len as u64)
            .filter(|e| *e <= core.engine.file_bytes_max(inode))
            .ok_or_else(|| Error::new(ErrorKind::FileTooLarge, "direct write").ino(inode.ino()))?;
        let range = offset..end;
        inode.pages.wait_allocating(&range);
        if core.is_inline(inode)? {
            return Ok(None);
        }
        let size = inode.size();
        if end > size {
            // The old last block's tail may have to become zero first, which no other thread may write then.
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
        Ok(Some(self.count_allocating(offset..reached, targets, cut)))
    }

    /// Submits a write that is placed. `waiter`: the thread that waits for it.
    fn launch(
        self: &Arc<Self>,
        op: WriteOp<'_>,
        write: PlacedWrite,
        done: WriteDone,
        waiter: Option<Arc<dyn Finishes>>,
    ) {
        let core = self.core();
        let mut sync = self.sync_of(&op);
        if op.times == TimesKeeper::FrontEnd {
            core.counters.write_past.add(1);
        }
        let mut how = How {
            flags: Flags::empty(),
            ring: op.carrier.as_ref().and_then(|c| c.ring.clone()),
            waits: false,
        };
        if sync == SyncMode::Data
            && core.device_fua
            && !matches!(write.work, PostWriteWork::Commit(_))
            && core.engine.is_durable(self.inode(), SyncScope::Data)
            && !self.has_unseen_error()
        {
            // The metadata that finds the data is durable. With the data durable there is nothing to flush.
            how.flags = Flags::FUA;
            sync = SyncMode::None;
            core.counters.direct_fua.fetch_add(1, Ordering::Relaxed);
        }
        let slices = op.bytes.into_slices(u64::from(core.logical_block_bytes));
        let flight = WriteFlight {
            handle: Arc::clone(self),
            range: write.range,
            times: op.times,
            sync,
            work: write.work,
            cut: write.cut,
            finishes: waiter.or(op.carrier.map(|carrier| carrier as _)),
            done,
        };
        launch(core, flight, slices, &write.pieces, &how);
    }
}
