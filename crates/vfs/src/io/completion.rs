//! Writes past the cache from the device request to the caller's `done`: submit, complete, finish.
//!
//! # Invariants
//! * The completion of a flight is called exactly once; before that its part of `direct_begin` and
//!   `allocating_begin` is given back.
//! * Blocks are committed after the device has the data, and the size in memory is raised before they are.
//! * A failed request ends the write before the target that it belongs to. Targets from there on are abandoned.
//!
//! # Locks
//! None of rank Inode or Invalidate: a holder of these may be waiting for the flight.

use super::submit::{Ended, How, Writes, commit_or_abandon};
use super::{WriteDone, let_go, split_slices};
use crate::cache::extent_cache::Pieces;
use crate::core::Core;
use crate::engine::{CommitWrite, WriteTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{Handle, SyncMode};
use crate::inode::Inode;
use crate::inode::times::TimesKeeper;
use blockwright_device::{DeviceError, IoSlice, RingIntake};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes finished in one go.
pub(super) const FINISH_MAX: usize = 256;

/// The steps after a direct write is on the device.
pub(super) enum PostWriteWork {
    /// Nothing but the end of `overwrite_begin`: the blocks are settled, and so is the size.
    None,
    /// These blocks, of which it writes a part, may be cached and written again.
    Release(Range<u64>),
    /// These targets must be committed, and their range may be allocated and cached again.
    Commit(Vec<WriteTarget>),
}

impl PostWriteWork {
    /// Ends what was begun with `overwrite_begin` or `allocating_begin`.
    fn release(&self, inode: &Inode, range: &Range<u64>) {
        match self {
            PostWriteWork::None => inode.pages.overwrite_end(),
            PostWriteWork::Release(blocks) => inode.pages.allocating_end(blocks),
            PostWriteWork::Commit(_) => inode.pages.allocating_end(range),
        }
    }
}

/// A thread that may finish a write.
pub(super) trait Finishes: Send + Sync {
    /// Takes a write over, or gives it back.
    fn take(&self, write: CompletedWrite) -> Option<CompletedWrite>;
}

/// A direct write in flight.
pub(super) struct WriteFlight {
    pub(super) handle: Arc<Handle>,
    pub(super) range: Range<u64>,
    pub(super) times: TimesKeeper,
    /// What must be made durable afterwards.
    pub(super) sync: SyncMode,
    pub(super) work: PostWriteWork,
    /// Why the range is not all that was asked for.
    pub(super) cut: Option<Error>,
    /// Finishes it, if it can; otherwise the finisher does.
    pub(super) finishes: Option<Arc<dyn Finishes>>,
    pub(super) done: WriteDone,
}

/// The first of its pieces, or targets, that failed, and how.
type Failed = (usize, DeviceError);

/// A write that is on the device, or failed there, with work left that may block.
pub(super) struct CompletedWrite {
    flight: WriteFlight,
    failed: Option<Failed>,
}

/// Where a finished write is synchronised, if it must be.
#[derive(Clone, Copy)]
enum SyncIn {
    ThisThread,
    Workers,
}

impl WriteFlight {
    /// The device is done. In its context.
    ///
    /// Nothing of the volume's is held here once another thread may tell the caller: the caller may close the volume then.
    fn completed(mut self, failed: Option<Failed>) {
        let core = self.handle.core();
        let counters = &core.counters;
        let pages = &self.handle.inode().pages;
        let reason = if failed.is_some() {
            Some(&counters.deferred_error)
        } else if matches!(self.work, PostWriteWork::Commit(_)) {
            Some(&counters.deferred_commit)
        } else if self.sync != SyncMode::None {
            Some(&counters.deferred_sync)
        } else if pages.overlaps(self.range.clone()) {
            Some(&counters.deferred_cached)
        } else if core.defers_completion() {
            None
        } else {
            counters.direct_inline.fetch_add(1, Ordering::Relaxed);
            self.work.release(self.handle.inode(), &self.range);
            let end = self.range.end;
            return self.tell(Ok(end));
        };
        if let Some(reason) = reason {
            reason.fetch_add(1, Ordering::Relaxed);
        }
        counters.direct_deferred.fetch_add(1, Ordering::Relaxed);
        let deferred = core.defers_completion();
        let finishes = self.finishes.take().filter(|_| !deferred);
        let write = CompletedWrite {
            flight: self,
            failed,
        };
        let left = match finishes {
            Some(finishes) => finishes.take(write),
            None => Some(write),
        };
        if let Some(write) = left {
            write.hand_to_finisher();
        }
    }

    /// After commit: does the remaining work, and calls the caller's completion. `outcome`: up to where
    /// the file holds the data.
    fn finish(self, outcome: Result<u64>, sync: SyncIn) {
        let core = Arc::clone(self.handle.core());
        let inode = self.handle.inode();
        if inode.pages.overlaps(self.range.clone()) {
            core.drop_overlap(inode, self.range.clone());
        }
        self.work.release(inode, &self.range);
        let (Some(scope), Ok(end)) = (self.sync.scope(), &outcome) else {
            return self.tell(outcome);
        };
        let end = *end;
        let make_durable = move || {
            let synced = self.handle.finish_sync(scope);
            self.tell(synced.map(|()| end));
        };
        match sync {
            SyncIn::ThisThread => make_durable(),
            SyncIn::Workers => core.workers.in_syncers(Box::new(make_durable)),
        }
    }

    fn tell(self, outcome: Result<u64>) {
        self.handle.inode().pages.direct_end();
        let start = self.range.start;
        // A write-back that finds too little room is short, as it is when it goes through the cache. Of a device error its front end
        // has to know.
        let is_told = |why: &Error| {
            self.handle.flags().front_end.short_write_is_error()
                || self.times == TimesKeeper::FrontEnd && why.kind() == ErrorKind::Io
        };
        let outcome = match (outcome, self.cut.filter(is_told)) {
            (Ok(_), Some(why)) => Err(why),
            (outcome, _) => outcome.map(|end| (end - start) as usize),
        };
        // First: a caller that waits has the last reference then, so its file is closed when it says so.
        let_go(self.handle);
        (self.done)(outcome);
    }
}

impl CompletedWrite {
    pub(super) fn core(&self) -> &Arc<Core> {
        self.flight.handle.core()
    }

    /// Does all that is left in the finisher's thread.
    fn hand_to_finisher(self) {
        let core = Arc::clone(self.core());
        core.workers.in_finisher(self, FINISH_MAX, finish_batch);
    }

    /// Does all that is left in the calling thread.
    pub(super) fn finish_here(self) {
        finish_writes(&mut vec![self], SyncIn::ThisThread);
    }

    /// Up to where the file will hold the data, and how many targets that makes.
    fn reached(&self, targets: &[WriteTarget]) -> (u64, usize) {
        let range = &self.flight.range;
        let whole = self.failed.as_ref().map_or(targets.len(), |(k, _)| *k);
        let last = targets[..whole].last();
        let reached = last.map_or(range.start, |t| range.end.min(t.offset + t.bytes));
        (reached, whole)
    }
}

/// Commits what a batch of writes owes, together, and finishes each.
pub(super) fn finish_batch(batch: &mut Vec<CompletedWrite>) {
    finish_writes(batch, SyncIn::Workers);
}

fn finish_writes(batch: &mut Vec<CompletedWrite>, sync: SyncIn) {
    let mut outcomes: Vec<Result<u64>> = Vec::with_capacity(batch.len());
    // The targets of all, and the writes to which they belong.
    let (mut ended, mut writes) = (Vec::new(), Vec::new());
    for (k, write) in batch.iter().enumerate() {
        let flight = &write.flight;
        let inode: &Arc<Inode> = flight.handle.inode();
        let error = write
            .failed
            .as_ref()
            .map(|(_, e)| Error::io("direct write", e.clone()).ino(inode.ino()));
        let PostWriteWork::Commit(targets) = &flight.work else {
            outcomes.push(error.map_or(Ok(flight.range.end), Err));
            continue;
        };
        let (reached, whole) = write.reached(targets);
        if reached > flight.range.start {
            // The size first: data may be below the size and invisible, never the other way round.
            let times = flight.times.of_change(inode);
            inode.update_attr(|a| {
                a.size = a.size.max(reached);
                (a.mtime, a.ctime) = times;
            });
        }
        outcomes.push(match error {
            Some(e) if reached == flight.range.start => Err(e),
            _ => Ok(reached),
        });
        ended.extend(targets.iter().enumerate().map(|(n, target)| Ended {
            write: CommitWrite {
                inode,
                target,
                data_end: reached,
            },
            failed: n >= whole,
        }));
        writes.resize(ended.len(), k);
    }
    if let Some(first) = writes.first() {
        // One finisher serves one volume: all have the same engine.
        let results = commit_or_abandon(&*batch[*first].core().engine, &ended);
        for (k, result) in writes.iter().zip(results) {
            if let Err(e) = result {
                outcomes[*k] = Err(e);
            }
        }
    }
    for (write, outcome) in batch.drain(..).zip(outcomes) {
        let CompletedWrite { mut flight, failed } = write;
        let core = flight.handle.core();
        if let (Ok(end), PostWriteWork::Commit(_)) = (&outcome, &flight.work) {
            if flight.times == TimesKeeper::Vfs {
                core.mark_lazy(flight.handle.inode());
            }
            core.counters
                .bytes_written
                .fetch_add(end - flight.range.start, Ordering::Relaxed);
        }
        if let Some((_, e)) = failed {
            let ino = flight.handle.inode().ino();
            flight.cut = Some(Error::io("direct write", e).ino(ino));
        }
        flight.finish(outcome, sync);
    }
}

/// A thread that carries device I/O itself, and finishes the writes that complete meanwhile: the ring of a front end's queue.
///
/// It is handed in with an operation that this thread starts ([`WriteOp::carried_by`](super::WriteOp::carried_by)). Where the engine does not allow
/// ring threads to commit, the finisher does.
pub struct Carrier {
    /// The thread's ring, for the requests of the operations that it starts.
    pub(super) ring: Option<RingIntake>,
    /// What completed, while the thread collects.
    completed: parking_lot::Mutex<Option<Vec<CompletedWrite>>>,
}

impl Carrier {
    /// One that collects nothing yet. `ring`: the thread's own.
    #[must_use]
    pub fn new(ring: Option<RingIntake>) -> Arc<Self> {
        Arc::new(Carrier {
            ring,
            completed: parking_lot::Mutex::default(),
        })
    }

    /// Runs `job`, in the course of which device I/O completes; then finishes the writes that completed, together. The thread
    /// holds no lock of the vfs's or the engine's, and `job` waits for no write that this carrier takes.
    pub fn collect<R>(&self, job: impl FnOnce() -> R) -> R {
        /// Also when the job panics: callers wait for their writes.
        struct Ending<'a>(&'a Carrier);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.finish();
            }
        }
        *self.completed.lock() = Some(Vec::new());
        let _ending = Ending(self);
        job()
    }

    fn finish(&self) {
        let mut batch = self.completed.lock().take().unwrap_or_default();
        let Some(first) = batch.first() else {
            return;
        };
        let core = Arc::clone(first.core());
        let alone = batch.iter().all(|write| Arc::ptr_eq(write.core(), &core));
        if alone && core.engine.commits_at_once() {
            let n = batch.len() as u64;
            core.counters
                .direct_finished_here
                .fetch_add(n, Ordering::Relaxed);
            return finish_batch(&mut batch);
        }
        for write in batch {
            write.hand_to_finisher();
        }
    }
}

impl Finishes for Carrier {
    fn take(&self, write: CompletedWrite) -> Option<CompletedWrite> {
        let mut completed = self.completed.lock();
        match &mut *completed {
            // An error takes longer than a thread with other requests should.
            Some(batch) if write.failed.is_none() && batch.len() < FINISH_MAX => {
                batch.push(write);
                None
            }
            _ => Some(write),
        }
    }
}

/// Submits a write's requests. The caller keeps `core`: the flight may complete, and let go of it, before this returns.
pub(super) fn launch(
    core: &Core,
    flight: WriteFlight,
    slices: Vec<IoSlice>,
    pieces: &Pieces,
    how: &How,
) {
    let mut writes = Writes::default();
    let mut rest = slices;
    for (device, bytes) in pieces {
        let (now, later) = split_slices(rest, *bytes);
        rest = later;
        writes.add(*device, now, core.request_bytes_max);
    }
    writes.submit(&*core.device, how, move |failed| {
        let first = failed.into_iter().map(|(pieces, e)| (pieces.start, e));
        flight.completed(first.min_by_key(|(piece, _)| *piece));
    });
}
