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
//! or is not aligned, is written synchronously by the pool.
//!
//! # Locks
//! A submitted operation holds no lock while it flies; the file counts it instead, and truncation, with
//! the inode lock and `invalidate` held exclusively, waits until the count is zero. Writes that allocate are
//! counted a second time: whoever puts pages into the cache or allocates, with the inode lock held, waits
//! until they have landed. So finisher and synchronisers take neither of these locks: only the
//! pool may, which is why they are different threads.

use crate::buffered::{InodeLock, WriteTimes};
use crate::direct_io::split_slices;
use crate::engine::{CommitWrite, SyncScope, WriteTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{Handle, SyncMode};
use crate::inode::Inode;
use crate::readahead::Invalidate;
use crate::settled::Pieces;
use crate::still::Reading;
use crate::types::Timestamp;
use crate::vfs::Core;
use crate::writeback::split_requests;
use blockwright_device::{AlignedBuf, DevOffset, DeviceError, Flags, IoSlice, Op, Request};
use crossbeam_channel::Sender;
use std::ops::Range;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Told once how a submitted write went. May run in the device's context: must not block.
pub type WriteDone = Box<dyn FnOnce(Result<usize>) + Send>;
/// Told once how a submitted read went. May run in the device's context: must not block.
pub type ReadDone = Box<dyn FnOnce(Result<Vec<IoSlice>>) + Send>;

type Task = Box<dyn FnOnce() + Send>;
type Finish = (WriteFlight, Option<DeviceError>);

const POOL_THREADS: usize = 4;
/// Synchronisers beside each other share one commit.
const SYNC_THREADS: usize = 8;
/// Writes finished in one go.
const FINISH_MAX: usize = 256;

/// Threads for what may block. Started when first needed; they end with the volume.
#[derive(Default)]
pub(crate) struct Workers {
    /// What concerns one file goes to one thread, in order: appends that were submitted one after another are
    /// allocated so, and do not wait for each other's lock.
    pool: [OnceLock<Sender<Task>>; POOL_THREADS],
    syncers: OnceLock<Sender<Task>>,
    finisher: OnceLock<Sender<Finish>>,
}

impl Workers {
    fn start(name: &str, threads: usize) -> Sender<Task> {
        let (send, receive) = crossbeam_channel::unbounded::<Task>();
        for _ in 0..threads {
            let receive = receive.clone();
            // Without any thread the channel is closed, and tasks run where they are handed in.
            let _ = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    for task in receive {
                        task();
                    }
                });
        }
        send
    }

    fn run(queue: &OnceLock<Sender<Task>>, name: &str, threads: usize, task: Task) {
        let queue = queue.get_or_init(|| Self::start(name, threads));
        if let Err(back) = queue.send(task) {
            back.into_inner()();
        }
    }

    fn in_pool(&self, file: &Inode, task: Task) {
        let k = file.ino().0 as usize % POOL_THREADS;
        Self::run(&self.pool[k], "bw-direct", 1, task);
    }

    fn in_syncers(&self, task: Task) {
        Self::run(&self.syncers, "bw-sync", SYNC_THREADS, task);
    }

    fn in_finisher(&self, finish: Finish) {
        let queue = self.finisher.get_or_init(|| {
            let (send, receive) = crossbeam_channel::unbounded::<Finish>();
            let _ = std::thread::Builder::new()
                .name("bw-finisher".to_owned())
                .spawn(move || {
                    let mut batch = Vec::new();
                    for first in &receive {
                        batch.push(first);
                        batch.extend(receive.try_iter().take(FINISH_MAX - 1));
                        finish_batch(&mut batch);
                    }
                });
            send
        });
        if let Err(back) = queue.send(finish) {
            finish_batch(&mut vec![back.into_inner()]);
        }
    }
}

/// Lets go of a file in a device's context: if it was the last reference, what follows (closing,
/// an eviction perhaps) is left to the pool.
fn let_go(handle: Arc<Handle>) {
    if let Some(last) = Arc::into_inner(handle) {
        let core = Arc::clone(last.core());
        let inode = Arc::clone(last.inode());
        core.workers.in_pool(&inode, Box::new(move || drop(last)));
    }
}

/// What follows when a direct write is on the device.
enum Debt {
    /// Nothing: the blocks are settled, and so is the size.
    None,
    /// These blocks, of which it writes a part, may be cached and written again.
    Release(Range<u64>),
    /// These targets must be committed, and their range may be allocated and cached again.
    Commit(Vec<WriteTarget>),
}

impl Debt {
    /// Ends what was begun with `allocating_begin`.
    fn release(&self, inode: &Inode, range: &Range<u64>) {
        match self {
            Debt::None => {}
            Debt::Release(blocks) => inode.pages.allocating_end(blocks),
            Debt::Commit(_) => inode.pages.allocating_end(range),
        }
    }
}

/// A direct write on its way.
struct WriteFlight {
    handle: Arc<Handle>,
    range: Range<u64>,
    /// What must be made durable afterwards.
    sync: SyncMode,
    debt: Debt,
    done: WriteDone,
}

impl WriteFlight {
    /// The device is done. In its context.
    fn landed(self, error: Option<DeviceError>) {
        let core = Arc::clone(self.handle.core());
        let counters = &core.counters;
        let pages = &self.handle.inode().pages;
        let reason = if error.is_some() {
            &counters.deferred_error
        } else if matches!(self.debt, Debt::Commit(_)) {
            &counters.deferred_commit
        } else if self.sync != SyncMode::None {
            &counters.deferred_sync
        } else if pages.overlaps(self.range.clone()) {
            &counters.deferred_cached
        } else if core.inline_completion.load(Ordering::Relaxed) {
            counters.direct_inline.fetch_add(1, Ordering::Relaxed);
            self.debt.release(self.handle.inode(), &self.range);
            pages.direct_end();
            let n = (self.range.end - self.range.start) as usize;
            (self.done)(Ok(n));
            return let_go(self.handle);
        } else {
            &counters.deferred_switch
        };
        reason.fetch_add(1, Ordering::Relaxed);
        counters.direct_deferred.fetch_add(1, Ordering::Relaxed);
        core.workers.in_finisher((self, error));
    }

    /// After commit: what is left, and the writer is told.
    fn finish(self, outcome: Result<()>) {
        let core = Arc::clone(self.handle.core());
        let inode = self.handle.inode();
        if inode.pages.overlaps(self.range.clone()) {
            core.drop_overlap(inode, self.range.clone());
        }
        self.debt.release(inode, &self.range);
        let scope = match self.sync {
            SyncMode::None => return self.tell(outcome),
            SyncMode::Data => SyncScope::Data,
            SyncMode::All => SyncScope::All,
        };
        if outcome.is_err() {
            return self.tell(outcome);
        }
        core.workers.in_syncers(Box::new(move || {
            let synced = self
                .handle
                .core()
                .engine
                .sync_inode(self.handle.inode(), scope);
            self.tell(synced);
        }));
    }

    fn tell(self, outcome: Result<()>) {
        self.handle.inode().pages.direct_end();
        let n = (self.range.end - self.range.start) as usize;
        (self.done)(outcome.map(|()| n));
        let_go(self.handle);
    }
}

/// Commits what a batch of writes owes, together, and finishes each.
fn finish_batch(batch: &mut Vec<Finish>) {
    let mut outcomes: Vec<Result<()>> = Vec::with_capacity(batch.len());
    let mut debts: Vec<(usize, CommitWrite<'_>)> = Vec::new();
    for (k, (flight, error)) in batch.iter().enumerate() {
        let inode: &Arc<Inode> = flight.handle.inode();
        outcomes.push(match error {
            None => Ok(()),
            Some(e) => Err(Error::io("direct write", e.clone()).ino(inode.ino())),
        });
        let Debt::Commit(targets) = &flight.debt else {
            continue;
        };
        let owed = targets.iter().filter(|t| t.commit);
        if error.is_some() {
            for target in owed {
                flight.handle.core().engine.abandon_write(inode, target);
            }
            continue;
        }
        // The size first: data may be below the size and invisible, never the other way round.
        let end = flight.range.end;
        let now = Timestamp::now();
        inode.update_attr(|a| {
            a.size = a.size.max(end);
            (a.mtime, a.ctime) = (now, now);
        });
        debts.extend(owed.map(|target| {
            let data_end = end;
            let write = CommitWrite {
                inode,
                target,
                data_end,
            };
            (k, write)
        }));
    }
    if let Some((first, _)) = debts.first() {
        // One finisher serves one volume: all have the same engine.
        let engine = &batch[*first].0.handle.core().engine;
        let writes: Vec<CommitWrite<'_>> = debts.iter().map(|(_, w)| *w).collect();
        for ((k, _), result) in debts.iter().zip(engine.commit_writes(&writes)) {
            if let Err(e) = result {
                outcomes[*k] = Err(e);
            }
        }
    }
    for ((flight, _), outcome) in batch.drain(..).zip(outcomes) {
        let core = flight.handle.core();
        if outcome.is_ok() && matches!(flight.debt, Debt::Commit(_)) {
            core.mark_lazy(flight.handle.inode());
            core.counters
                .bytes_written
                .fetch_add(flight.range.end - flight.range.start, Ordering::Relaxed);
        }
        flight.finish(outcome);
    }
}

/// Several requests of one write: the last one lands it.
struct Gathered {
    left: AtomicUsize,
    state: crate::locks::Mutex<(Option<DeviceError>, Option<WriteFlight>)>,
}

impl Gathered {
    fn one_done(&self, error: Option<DeviceError>) {
        if let Some(e) = error {
            self.state.lock().0.get_or_insert(e);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (error, flight) = {
            let mut state = self.state.lock();
            (state.0.take(), state.1.take())
        };
        if let Some(flight) = flight {
            flight.landed(error);
        }
    }
}

/// Sends a write on its way.
fn launch(flight: WriteFlight, slices: Vec<IoSlice>, pieces: &Pieces, flags: Flags) {
    let core = Arc::clone(flight.handle.core());
    if let [(device, bytes)] = pieces[..]
        && bytes <= core.request_bytes_max
    {
        return send(&core, slices, device.0, flags, move |error| {
            flight.landed(error)
        });
    }
    let mut requests = Vec::new();
    let mut rest = slices;
    for (device, bytes) in pieces {
        let (now, later) = split_slices(rest, *bytes);
        rest = later;
        let mut at = device.0;
        for part in split_requests(now, core.request_bytes_max) {
            let n: u64 = part.iter().map(|s| s.len() as u64).sum();
            requests.push((at, part));
            at += n;
        }
    }
    let gathered = Arc::new(Gathered {
        left: AtomicUsize::new(requests.len()),
        state: crate::locks::Mutex::new(crate::locks::Rank::Leaf, (None, Some(flight))),
    });
    for (at, part) in requests {
        let gathered = Arc::clone(&gathered);
        send(&core, part, at, flags, move |error| {
            gathered.one_done(error)
        });
    }
}

fn send(
    core: &Core,
    part: Vec<IoSlice>,
    at: u64,
    flags: Flags,
    done: impl FnOnce(Option<DeviceError>) + Send + 'static,
) {
    let mut request = Request::new(Op::Write(part), DevOffset(at), move |finished| {
        done(finished.result.err())
    });
    request.flags = flags;
    core.device.submit(request);
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

/// A direct read on its way.
struct ReadFlight {
    handle: Arc<Handle>,
    done: ReadDone,
    reading: Option<Reading>,
}

impl ReadFlight {
    /// The device is done. In its context.
    fn landed(self, result: std::result::Result<Vec<IoSlice>, DeviceError>) {
        let inode = self.handle.inode();
        inode.pages.direct_end();
        drop(self.reading);
        (self.done)(result.map_err(|e| Error::io("direct read", e).ino(inode.ino())));
        let_go(self.handle);
    }
}

/// Several requests of one read: the last one lands it.
struct GatheredRead {
    left: AtomicUsize,
    state: crate::locks::Mutex<ReadState>,
}

struct ReadState {
    parts: Vec<Option<IoSlice>>,
    error: Option<DeviceError>,
    flight: Option<ReadFlight>,
}

impl GatheredRead {
    fn one_done(&self, slot: usize, slice: std::result::Result<IoSlice, DeviceError>) {
        {
            let mut state = self.state.lock();
            match slice {
                Ok(s) => state.parts[slot] = Some(s),
                Err(e) => state.error = Some(e),
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (parts, error, flight) = {
            let mut state = self.state.lock();
            (
                std::mem::take(&mut state.parts),
                state.error.take(),
                state.flight.take(),
            )
        };
        if let Some(flight) = flight {
            flight.landed(match error {
                None => Ok(parts.into_iter().flatten().collect()),
                Some(e) => Err(e),
            });
        }
    }
}

/// One device request of a read: where it is, and which of its bytes are asked for.
struct ReadPart {
    first: u64,
    bytes: u64,
    skip: usize,
    len: usize,
}

impl ReadPart {
    fn submit(
        self,
        core: &Core,
        done: impl FnOnce(std::result::Result<IoSlice, DeviceError>) + Send + 'static,
    ) {
        let ReadPart {
            first,
            bytes,
            skip,
            len,
        } = self;
        core.device.submit(Request::new(
            Op::Read(AlignedBuf::for_overwrite(bytes as usize)),
            DevOffset(first),
            move |finished| {
                done(finished.result.and_then(|()| {
                    finished
                        .read
                        .map(|buf| IoSlice::new(Arc::new(buf), skip..skip + len))
                        .ok_or(DeviceError {
                            op: "read",
                            offset: DevOffset(first),
                            bytes,
                            kind: blockwright_device::DeviceErrorKind::Gone,
                        })
                }));
            },
        ));
    }
}

impl Handle {
    /// Writes slices at `offset` without waiting for the device; `done` is told how many bytes were written.
    /// Order among overlapping operations in flight is not defined.
    ///
    /// Aligned overwrites through a direct handle never leave the device's completion context. May be called
    /// from `done` of another operation: nothing is waited for here, as whoever holds the file's lock may wait for
    /// an operation that the calling thread has yet to finish.
    pub fn submit_write(self: &Arc<Self>, slices: Vec<IoSlice>, offset: u64, done: WriteDone) {
        let Err((slices, done)) = self.submit_overwrite(slices, offset, done, Patience::Try) else {
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
        if let Err((slices, done)) = self.submit_overwrite(slices, offset, done, Patience::Wait) {
            Arc::clone(self).submit_allocating(slices, offset, done);
        }
    }

    /// Submits a write if that can be done at once: an aligned overwrite in place through a direct handle, of
    /// blocks whose places are known, with no cached pages over the range and nobody holding the file's lock
    /// exclusively. `done` is then called once, mostly in the device's context.
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
        self.submit_overwrite(slices, offset, done, Patience::Try)
    }

    /// Submits the write if it is a pure overwrite; otherwise gives everything back.
    fn submit_overwrite(
        self: &Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        done: WriteDone,
        patience: Patience,
    ) -> std::result::Result<(), (Vec<IoSlice>, WriteDone)> {
        let core = self.core();
        let inode = self.inode();
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let range = offset..offset.saturating_add(len as u64);
        if !self.is_overwriting_direct(&slices, &range) {
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
        let now = Timestamp::now();
        inode.update_attr(|a| {
            a.mtime = now;
            a.ctime = now;
        });
        core.mark_lazy(inode);
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
            sync,
            debt,
            done,
        };
        launch(flight, slices, &pieces, flags);
        Ok(())
    }

    /// Whether this may be an overwrite past the cache, as far as it can be told without looking at the file.
    fn is_overwriting_direct(&self, slices: &[IoSlice], range: &Range<u64>) -> bool {
        let logical = u64::from(self.core().logical_block_bytes);
        self.flags().direct
            && (!self.flags().append || self.flags().append_resolved)
            && !range.is_empty()
            && range.start.is_multiple_of(logical)
            && slices
                .iter()
                .all(|s| (s.len() as u64).is_multiple_of(logical))
            && self.may_overwrite().is_ok()
            && !self.must_strip()
    }

    /// A write that needs blocks, a size or the cache, in the pool: prepares it under the file's lock and sends it
    /// on its way; or writes it here, when it cannot fly.
    fn submit_allocating(self: Arc<Self>, slices: Vec<IoSlice>, offset: u64, done: WriteDone) {
        match self.prepare_allocating(&slices, offset) {
            Ok(Some((targets, range))) => {
                let pieces = targets
                    .iter()
                    .filter_map(|t| {
                        t.device
                            .map(|d| (d, t.bytes.min(range.end.saturating_sub(t.offset))))
                    })
                    .collect();
                let (slices, _) = split_slices(slices, range.end - range.start);
                let sync = self.flags().sync;
                let flight = WriteFlight {
                    handle: self,
                    range,
                    sync,
                    debt: Debt::Commit(targets),
                    done,
                };
                launch(flight, slices, &pieces, Flags::empty());
            }
            Ok(None) => {
                let counters = &self.core().counters;
                counters.deferred_cached.fetch_add(1, Ordering::Relaxed);
                counters.direct_deferred.fetch_add(1, Ordering::Relaxed);
                let result = self.write_slices(slices, offset);
                done(result);
            }
            Err(e) => done(Err(e)),
        }
    }

    /// Allocates for a direct write and counts it in flight. What was allocated and which range it holds (less than
    /// asked for on a volume that has no more room); `None` when the write does not go past the cache.
    fn prepare_allocating(
        &self,
        slices: &[IoSlice],
        offset: u64,
    ) -> Result<Option<(Vec<WriteTarget>, Range<u64>)>> {
        let core = self.core();
        let inode = self.inode();
        let block = core.block();
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let aligned = core.is_direct_aligned(offset, len)
            && slices
                .iter()
                .all(|s| (s.len() as u64).is_multiple_of(u64::from(core.logical_block_bytes)));
        if !self.flags().direct
            || (self.flags().append && !self.flags().append_resolved)
            || !aligned
        {
            return Ok(None);
        }
        self.may_overwrite()?;
        core.make_room(len);
        let end = offset
            .checked_add(len as u64)
            .filter(|e| *e <= core.engine.file_bytes_max(inode))
            .ok_or_else(|| Error::new(ErrorKind::FileTooLarge, "direct write").ino(inode.ino()))?;
        let lock = inode.lock.write();
        if self.must_strip() {
            core.strip_privileges(inode)?;
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
        core.flush_overlap(inode, range.clone());
        core.drop_overlap(inode, range.clone());
        let (targets, reached) = match core.take_targets(inode, &range, size.max(end)) {
            (targets, reached, None) => (targets, reached),
            (targets, reached, Some(_)) if reached > offset => (targets, reached),
            (_, _, Some(e)) => return Err(e),
        };
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
        Ok(Some((targets, range)))
    }

    /// Writes slices at `offset` and waits; direct handles write aligned slices without copying.
    ///
    /// # Errors
    /// As [`Handle::write_at`].
    pub fn write_slices(&self, slices: Vec<IoSlice>, offset: u64) -> Result<usize> {
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let at_end = self.flags().append && !self.flags().append_resolved;
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

    /// Reads at `offset` without waiting; `done` gets slices that are together `len` bytes, or fewer at
    /// the end of the file.
    pub fn submit_read(self: &Arc<Self>, offset: u64, len: usize, done: ReadDone) {
        let Err(done) = self.submit_direct_read(offset, len, done, Patience::Wait) else {
            return;
        };
        let me = Arc::clone(self);
        self.core().workers.in_pool(
            self.inode(),
            Box::new(move || {
                let result = me.read_slices(offset, len);
                done(result);
            }),
        );
    }

    /// Reads at `offset` if that can be started (direct handles) or done (bytes that are cached) at once,
    /// without waiting for locks or metadata. `done` is then called once: in the device's context, or before
    /// this returns.
    ///
    /// # Errors
    /// Gives `done` back when waiting or reporting an error may be needed: use [`Handle::submit_read`] or
    /// [`Handle::read_slices`] where that is allowed.
    pub fn try_submit_read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        done: ReadDone,
    ) -> std::result::Result<(), ReadDone> {
        if self.flags().direct {
            return self.submit_direct_read(offset, len, done, Patience::Try);
        }
        match self.read_if_cached(offset, len) {
            Some(slices) => {
                done(Ok(slices));
                Ok(())
            }
            None => Err(done),
        }
    }

    /// Submits the read if every block is mapped and nothing is dirty; otherwise gives `done` back.
    fn submit_direct_read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        done: ReadDone,
        patience: Patience,
    ) -> std::result::Result<(), ReadDone> {
        if !self.flags().direct || self.may_read().is_err() {
            return Err(done);
        }
        let core = self.core();
        let inode = self.inode();
        let logical = u64::from(core.logical_block_bytes);
        let guard = match patience {
            Patience::Wait => inode.invalidate.read(),
            Patience::Try => match inode.invalidate.try_read() {
                Some(guard) => guard,
                None => return Err(done),
            },
        };
        let range = self.clamp_to_size(offset, len);
        if range.is_empty() || inode.pages.has_unwritten(core.blocks_over(&range)) {
            return Err(done);
        }
        let reading = core.begin_read();
        let pieces = match patience {
            Patience::Wait => core.read_places(inode, &range),
            Patience::Try => inode.placed.find(&range),
        };
        let Some(pieces) = pieces else {
            return Err(done);
        };
        let mut parts: smallvec::SmallVec<[ReadPart; 2]> = pieces
            .iter()
            .map(|(device, len)| {
                let first = device.0 / logical * logical;
                ReadPart {
                    first,
                    bytes: (device.0 + len - first).next_multiple_of(logical),
                    skip: (device.0 - first) as usize,
                    len: *len as usize,
                }
            })
            .collect();
        inode.pages.direct_begin();
        drop(guard);
        core.counters
            .bytes_read
            .fetch_add(range.end - range.start, Ordering::Relaxed);
        if !self.flags().noatime {
            core.touch_atime(inode);
        }
        let flight = ReadFlight {
            handle: Arc::clone(self),
            done,
            reading,
        };
        if parts.len() == 1
            && let Some(part) = parts.pop()
        {
            part.submit(core, move |slice| flight.landed(slice.map(|s| vec![s])));
            return Ok(());
        }
        let gathered = Arc::new(GatheredRead {
            left: AtomicUsize::new(parts.len()),
            state: crate::locks::Mutex::new(
                crate::locks::Rank::Leaf,
                ReadState {
                    parts: vec![None; parts.len()],
                    error: None,
                    flight: Some(flight),
                },
            ),
        });
        for (slot, part) in parts.into_iter().enumerate() {
            let gathered = Arc::clone(&gathered);
            part.submit(core, move |slice| gathered.one_done(slot, slice));
        }
        Ok(())
    }

    /// The bytes, if all of them are in the cache. Reading ahead, when due, is left to the pool.
    fn read_if_cached(self: &Arc<Self>, offset: u64, len: usize) -> Option<Vec<IoSlice>> {
        self.may_read().ok()?;
        let core = self.core();
        let range = self.clamp_to_size(offset, len);
        let mut out = Vec::new();
        if !range.is_empty() {
            let table = self.inode().pages.lock();
            if table.slices(range.clone(), core.block(), &mut out) < range.end {
                return None;
            }
        }
        if let Some(ahead) = self.next_window(&range) {
            let me = Arc::clone(self);
            let prefetch = Box::new(move || me.core().prefetch(me.inode(), ahead));
            core.workers.in_pool(self.inode(), prefetch);
        }
        core.counters.cache_hits.add(1);
        self.after_read(out.iter().map(|s| s.len()).sum());
        Some(out)
    }

    /// Writes aligned slices past the cache, under the lock the write needs.
    pub(crate) fn write_direct_slices(
        &self,
        slices: Vec<IoSlice>,
        at: u64,
        len: usize,
    ) -> Result<usize> {
        self.may_overwrite()?;
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
                core.strip_privileges(inode)?;
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
        self.after_write(at, n)?;
        Ok(n)
    }
}
