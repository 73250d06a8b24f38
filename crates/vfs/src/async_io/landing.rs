//! Direct writes on their way: sent to the device, landed in its context, finished where that may block.
//!
//! # Invariants
//! * A flight is told exactly once; before that its part of `direct_begin` and `allocating_begin` is given back.
//! * Blocks are committed after the device has the data, and the size in memory is raised before they are.
//!
//! # Locks
//! None of rank Inode or Invalidate: who holds these may be waiting for the flight.

use super::workers::{Finish, keep_landed};
use super::{WriteDone, let_go};
use crate::buffered::WriteTimes;
use crate::direct_io::split_slices;
use crate::engine::{CommitWrite, SyncScope, WriteTarget};
use crate::error::{Error, Result};
use crate::handle::{Handle, SyncMode};
use crate::inode::Inode;
use crate::settled::Pieces;
use crate::vfs::Core;
use crate::writeback::split_requests;
use blockwright_device::{DevOffset, DeviceError, Flags, IoSlice, Op, Request};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What follows when a direct write is on the device.
pub(super) enum Debt {
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
pub(super) struct WriteFlight {
    pub(super) handle: Arc<Handle>,
    pub(super) range: Range<u64>,
    /// Who keeps the file's times.
    pub(super) times: WriteTimes,
    /// What must be made durable afterwards.
    pub(super) sync: SyncMode,
    pub(super) debt: Debt,
    pub(super) done: WriteDone,
}

impl WriteFlight {
    /// The device is done. In its context.
    fn landed(self, error: Option<DeviceError>) {
        let core = self.handle.core();
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
        let core = Arc::clone(core);
        let finish = (self, error);
        let here = finish.1.is_none() && core.inline_completion.load(Ordering::Relaxed);
        let not_here = if here {
            keep_landed(finish)
        } else {
            Some(finish)
        };
        if let Some(finish) = not_here {
            core.workers.in_finisher(finish);
        }
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
pub(super) fn finish_batch(batch: &mut Vec<Finish>) {
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
        let times = flight.times.of_change(inode);
        inode.update_attr(|a| {
            a.size = a.size.max(end);
            (a.mtime, a.ctime) = times;
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
            if flight.times == WriteTimes::Now {
                core.mark_lazy(flight.handle.inode());
            }
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

/// Sends a write on its way. The caller keeps `core`: the flight may land, and let go of it, before this returns.
pub(super) fn launch(
    core: &Core,
    flight: WriteFlight,
    slices: Vec<IoSlice>,
    pieces: &Pieces,
    flags: Flags,
) {
    if let [(device, bytes)] = pieces[..]
        && bytes <= core.request_bytes_max
    {
        return send(core, slices, device.0, flags, move |error| {
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
        send(core, part, at, flags, move |error| gathered.one_done(error));
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
