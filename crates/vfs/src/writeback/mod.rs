//! Writing dirty pages: in order, in long runs, with several targets on their way.
//!
//! A [`Stream`] takes a file's lowest runs of dirty pages, asks the engine for room for all of it at
//! once, submits the device writes, and continues while they fly. Short runs, of one file or several, make a *batch*:
//! allocated together, sent together (neighbours on the device in one request), and made visible by one commit
//! when all its writes are done. Commits follow file order, so an appended file never shows a hole.
//!
//! * Throttled writers, fsync and sync start at the beginning of what they must clean; the flusher (see
//!   `flusher`) alone continues from where it was.
//! * fsync and sync write what was dirty when they began, once, even if pages are dirtied meanwhile.
//! * Budgets are charged for bytes written, never for bytes looked at. When the engine gives less room
//!   than asked for, the rest is dirty again and the walk continues right behind the last byte written.
//! * Reclaim never writes.
//!
//! # Crash order
//! Data is on the device before [`Data::commit_write`](crate::engine::Data::commit_write) makes
//! it reachable, so a crash exposes no stale blocks. The block that the size on disk ends in goes before what lies behind it
//! ([`Core::write_open_end`]), so it exposes nothing that an earlier crash left in that block either.
//!
//! # Locks
//! None across calls to the engine or the device: a run is marked under the table's lock, and the
//! file's writeback *owner* keeps truncation away. An owner of one file waits for another only after
//! finishing all it has in flight.

mod batch;
pub(crate) mod flusher;
pub(crate) mod flusher_state;
mod legacy;
mod removed;

use crate::cache::page_cache::DirtyRun;
use crate::core::Core;
use crate::core::InodeRef;
use crate::engine::{CommitWrite, Intent, WriteTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode::holds::WritebackOwner;
use crate::io::split_slices;
use crate::io::submit::{Ended, How, commit_or_abandon};
use crate::io::wait::Waiter;
use crate::types::Ino;
use blockwright_device::IoSlice;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use batch::{BATCH_BYTES, BATCH_RUNS, Batch, Entry, InFlight};

/// The longest run asked for at once: what one ext4 extent of 4 KiB blocks can hold.
const RUN_BYTES_MAX: u64 = 128 << 20;
/// Bytes on their way to the device before the stream waits for the oldest batch.
const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;
/// Runs on their way before the stream waits for the oldest batch.
const IN_FLIGHT_RUNS_MAX: usize = 1024;

/// What a stream does with pages for which the engine finds no room, although it reserved some for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WithoutRoom {
    /// They stay dirty. The caller can have the engine clean ([`Core::make_room_for_reserved`]) once it owns no writeback and holds no
    /// lock, and then write them.
    KeepDirty,
    /// Their data is lost, and every open handle gets the error.
    GiveUp,
}

/// What a stream came to, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Outcome {
    pub(crate) written: u64,
    /// Dirty bytes of files for whose next bytes there was no room.
    pub(crate) kept_dirty: u64,
}

/// A sequence of writes, of one file or several.
pub(crate) struct Stream<'a> {
    core: &'a Core,
    without_room: WithoutRoom,
    /// The engine found no room for a file's next bytes. Those behind wait, too, or a crash could show them behind a hole.
    held_up: bool,
    /// What was written, and what stayed dirty for lack of room, in bytes.
    outcome: Outcome,
    /// What is gathered and not sent yet.
    open: Batch,
    in_flight: VecDeque<InFlight>,
    /// Of what is in flight.
    bytes: u64,
    runs: usize,
}

impl<'a> Stream<'a> {
    /// One that gives up what the engine finds no room for: for callers that hold locks, and cannot wait for cleaning.
    pub(crate) fn new(core: &'a Core) -> Self {
        Self::without_room(core, WithoutRoom::GiveUp)
    }

    pub(crate) fn without_room(core: &'a Core, without_room: WithoutRoom) -> Self {
        Stream {
            core,
            without_room,
            held_up: false,
            outcome: Outcome::default(),
            open: Batch::default(),
            in_flight: VecDeque::new(),
            bytes: 0,
            runs: 0,
        }
    }

    /// What it came to since the last call.
    pub(crate) fn take_outcome(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }

    fn is_idle(&self) -> bool {
        self.open.entries.is_empty() && self.in_flight.is_empty()
    }

    /// The right to write a file back, unless another thread has it or waits for it: waiters come first, and
    /// what this stream has in flight ends. Kept for as long as something of the file is in flight.
    pub(crate) fn own_or_leave(&mut self, inode: &Arc<Inode>) -> Option<Arc<WritebackOwner>> {
        if let Some(owner) = WritebackOwner::try_acquire(inode) {
            return Some(owner);
        }
        let sent = self
            .in_flight
            .iter()
            .rev()
            .flat_map(|f| f.entries.iter().rev());
        let mut all = self.open.entries.iter().rev().chain(sent);
        let own = all.find(|e| Arc::ptr_eq(&e.owner.inode, inode));
        let owner = own.map(|e| Arc::clone(&e.owner))?;
        if inode.pages.lock().is_awaited() {
            drop(owner);
            self.drain();
            return None;
        }
        Some(owner)
    }

    /// The right to write a file back; finishes what is in flight before it waits for others.
    pub(crate) fn own(&mut self, inode: &Arc<Inode>) -> Arc<WritebackOwner> {
        if let Some(owner) = WritebackOwner::try_acquire(inode) {
            return owner;
        }
        self.drain();
        WritebackOwner::acquire(inode)
    }

    /// Starts writing what is dirty in `range`, from its start, up to `budget` bytes. Where it stopped
    /// and how much was written. The last of it may wait for more to be sent with it, until [`Stream::drain`].
    /// A stream with a budget gives way after each batch to threads that wait for the right to write the file back: they may keep
    /// the file's writers waiting meanwhile, truncation or an engine that moves blocks.
    pub(crate) fn write(
        &mut self,
        owner: &Arc<WritebackOwner>,
        range: Range<u64>,
        budget: u64,
    ) -> (u64, u64) {
        let inode = &owner.inode;
        let block = self.core.block();
        let mut written = 0;
        self.held_up = false;
        if range.start > 0 && inode.pages.lock().has_dirty_in(0..range.start) {
            // The first block goes first: with it, data leaves an inode that it has outgrown. Then the one that the size on disk
            // ends in, which that size passes with what is written behind it.
            let end = self.core.changed_end(inode, range.start);
            for first in std::iter::once(0..block).chain(end) {
                let mut at = first.start;
                // A second time only if the data left the inode meanwhile.
                while at < first.end && !self.held_up {
                    let runs = self.begin(inode, at..first.end, block);
                    if runs.is_empty() {
                        break;
                    }
                    written += self.write_runs(owner, runs, &mut at);
                }
            }
        }
        let mut at = range.start;
        while written < budget && !self.held_up {
            let runs = self.begin(inode, at..range.end, budget - written);
            if runs.is_empty() {
                at = range.end;
                break;
            }
            written += self.write_runs(owner, runs, &mut at);
            if budget != u64::MAX && written > 0 && inode.pages.lock().is_awaited() {
                break;
            }
        }
        self.outcome.written += written;
        if self.held_up {
            let dirty = inode.pages.lock().dirty_in(0..u64::MAX);
            self.outcome.kept_dirty += crate::range_set::total(&dirty);
            at = range.end;
        }
        (at, written)
    }

    /// Marks the first dirty runs of the range: one that is long, or as many as make a batch. A block whose earlier write
    /// is still in flight (it was changed meanwhile) is waited for: the device may carry out two writes of one block in either
    /// order, and the older bytes must not win. Blocks behind it wait too, or a crash could show them behind a hole.
    fn begin(&mut self, inode: &Arc<Inode>, range: Range<u64>, bytes_max: u64) -> Vec<DirtyRun> {
        let core = self.core;
        loop {
            {
                let mut table = inode.pages.lock();
                let mut runs: Vec<DirtyRun> = Vec::new();
                let (mut at, mut bytes) = (range.start, 0);
                let mut busy = false;
                while runs.len() < BATCH_RUNS && bytes < bytes_max.min(BATCH_BYTES) && !busy {
                    let enough = (bytes_max - bytes).min(RUN_BYTES_MAX);
                    let Some(first) = table.first_dirty_in(at..range.end, enough) else {
                        break;
                    };
                    let free = match table.first_in_writeback(first.clone()) {
                        // The owner of the file's writeback has all of it that is in flight.
                        Some(_) if self.is_idle() => {
                            debug_assert!(false, "another stream writes this file back");
                            first.end
                        }
                        Some(held_up) => held_up,
                        None => first.end,
                    };
                    busy = free < first.end;
                    if free > first.start {
                        let run = table.begin_writeback(
                            &core.budget,
                            first.start..free,
                            enough,
                            core.block(),
                            inode.size(),
                        );
                        let Some(run) = run else { break };
                        at = run.range.end;
                        bytes += run.range.end - run.range.start;
                        runs.push(run);
                    }
                }
                if !busy || !runs.is_empty() {
                    return runs;
                }
            }
            self.finish_oldest();
        }
    }

    /// Starts writing runs, as far as the engine has room for them at once. `at` is set behind the last that was dealt with.
    fn write_runs(
        &mut self,
        owner: &Arc<WritebackOwner>,
        runs: Vec<DirtyRun>,
        at: &mut u64,
    ) -> u64 {
        let core = self.core;
        let inode = &owner.inode;
        let Some(first) = runs.first() else {
            return 0;
        };
        let (first, data_end) = (first.range.clone(), first.data_end);
        let ranges: Vec<Range<u64>> = runs.iter().map(|r| r.range.clone()).collect();
        let intent = Intent::Writeback;
        let mut runs = runs.into_iter();
        let mut written = 0;
        let taken = core
            .engine
            .allocate_runs(inode, &ranges, data_end, intent)
            .and_then(|targets| match targets.first() {
                Some(t) if t.offset == first.start && t.bytes > 0 => Ok(targets),
                _ => Err(Error::corrupt(
                    "allocate",
                    "the target does not start where asked",
                )),
            });
        match taken {
            Err(e)
                if e.kind() == ErrorKind::NoSpace
                    && self.without_room == WithoutRoom::KeepDirty =>
            {
                runs.next();
                self.held_up = true;
                let mut table = inode.pages.lock();
                table.return_to_dirty(&core.budget, first);
            }
            Err(e) => {
                runs.next();
                written += self.give_up(inode, first, at, e.ino(inode.ino()));
            }
            Ok(targets) => {
                let mut targets = targets.into_iter().peekable();
                for run in runs.by_ref() {
                    let DirtyRun { range, slices, .. } = run;
                    let (mut pos, mut slices) = (range.start, slices);
                    let mut whole = true;
                    while whole
                        && pos < range.end
                        && let Some(target) = targets.next_if(|t| t.offset == pos && t.bytes > 0)
                    {
                        let end = range.end.min(pos.saturating_add(target.bytes));
                        let (now, later) = split_slices(slices, end - pos);
                        slices = later;
                        whole = target.device.is_some();
                        if !self.write_run(owner, now, target, pos..end, data_end) {
                            break;
                        }
                        written += end - pos;
                        pos = end;
                        *at = pos;
                    }
                    if pos < range.end {
                        inode
                            .pages
                            .lock()
                            .return_to_dirty(&core.budget, pos..range.end);
                        whole = false;
                    }
                    if !whole {
                        break;
                    }
                }
                // There are none, but of an engine that gave what was not asked for.
                for target in targets.filter(|t| t.commit) {
                    core.engine.abandon_write(inode, &target);
                }
            }
        }
        let mut table = None;
        for run in runs {
            table
                .get_or_insert_with(|| inode.pages.lock())
                .return_to_dirty(&core.budget, run.range);
        }
        written
    }

    /// Puts one target's bytes among what is gathered, or into the inode. `false` if they were to go into the inode, and the file has left it:
    /// the range is asked for again.
    fn write_run(
        &mut self,
        owner: &Arc<WritebackOwner>,
        slices: Vec<IoSlice>,
        target: WriteTarget,
        range: Range<u64>,
        data_end: u64,
    ) -> bool {
        let core = self.core;
        let bytes = range.end - range.start;
        if target.device.is_none()
            && !self.write_inline(&owner.inode, &slices, range.clone(), data_end)
        {
            return false;
        }
        core.counters.writeback_runs.fetch_add(1, Ordering::Relaxed);
        core.counters
            .writeback_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        core.counters.writeback_run_bytes.note(bytes);
        let Some(device) = target.device else {
            return true;
        };
        let entry = Entry {
            owner: Arc::clone(owner),
            target,
            range,
            data_end,
        };
        self.open.add(entry, device, slices, core.request_bytes_max);
        if self.open.is_full() {
            self.send(false);
        }
        while self.bytes > IN_FLIGHT_BYTES_MAX || self.runs > IN_FLIGHT_RUNS_MAX {
            self.finish_oldest();
        }
        true
    }

    /// Sends what is gathered. `waits`: the caller waits for it next. Then a small fsync, which has one request, does that itself.
    fn send(&mut self, waits: bool) {
        let batch = std::mem::take(&mut self.open);
        if batch.entries.is_empty() {
            return;
        }
        let core = self.core;
        core.counters
            .writeback_requests
            .fetch_add(batch.writes.requests() as u64, Ordering::Relaxed);
        self.bytes += batch.bytes;
        self.runs += batch.entries.len();
        let waiter = Waiter::new();
        self.in_flight.push_back(InFlight {
            entries: batch.entries,
            bytes: batch.bytes,
            waiter: Arc::clone(&waiter),
        });
        let how = How {
            waits,
            ..How::default()
        };
        let done = waiter.done();
        batch
            .writes
            .submit(&*core.device, &how, move |failed| done(Ok(failed)));
    }

    /// The engine has no room for a run it had reserved: the data is lost, and every open handle gets the
    /// error.
    fn give_up(&self, inode: &Arc<Inode>, range: Range<u64>, at: &mut u64, error: Error) -> u64 {
        *at = range.end;
        if error.kind() == ErrorKind::NoSpace {
            let lost = &self.core.counters.reserved_bytes_lost;
            lost.fetch_add(range.end - range.start, Ordering::Relaxed);
        }
        self.core.engine.unreserve(inode, range.clone());
        inode.pages.record_error(error);
        inode
            .pages
            .finish_writeback(&self.core.budget, [range.clone()]);
        self.reserve_again(inode, range.clone());
        range.end - range.start
    }

    /// Bytes dirtied again while their reservation was given back need a new one.
    fn reserve_again(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let again = inode.pages.lock().dirty_in(range);
        for r in again {
            if let Err(e) = self.core.engine.reserve(inode, r) {
                inode.pages.record_error(e);
            }
        }
    }

    fn write_inline(
        &mut self,
        inode: &Arc<Inode>,
        slices: &[IoSlice],
        range: Range<u64>,
        data_end: u64,
    ) -> bool {
        let mut bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
        bytes.truncate(usize::try_from(data_end).unwrap_or(usize::MAX));
        match self.core.engine.write_inline(inode, &bytes, data_end) {
            Ok(true) => {}
            // The caller returns the range to the dirty ones.
            Ok(false) => return false,
            Err(e) => inode.pages.record_error(e),
        }
        inode.pages.finish_writeback(&self.core.budget, [range]);
        true
    }

    /// Waits for the oldest batch and makes it visible.
    fn finish_oldest(&mut self) {
        if self.in_flight.is_empty() {
            self.send(true);
        }
        let Some(f) = self.in_flight.pop_front() else {
            return;
        };
        self.bytes -= f.bytes;
        self.runs -= f.entries.len();
        let core = self.core;
        let mut errors: Vec<Option<Error>> = vec![None; f.entries.len()];
        match f.waiter.wait() {
            Ok(failed) => {
                for (entries, e) in failed {
                    for place in &mut errors[entries] {
                        place.get_or_insert_with(|| Error::io("write back", e.clone()));
                    }
                }
            }
            Err(lost) => errors.fill(Some(lost)),
        }
        let ended: Vec<Ended<'_>> = f
            .entries
            .iter()
            .zip(&errors)
            .map(|(e, error)| Ended {
                write: CommitWrite {
                    inode: &e.owner.inode,
                    target: &e.target,
                    data_end: e.data_end,
                },
                failed: error.is_some(),
            })
            .collect();
        let results = commit_or_abandon(&*core.engine, &ended);
        for ((entry, error), result) in f.entries.iter().zip(errors).zip(results) {
            let inode = &entry.owner.inode;
            if let Some(e) = error {
                inode.pages.record_error(e.ino(inode.ino()));
                self.reserve_again(inode, entry.range.clone());
            } else if let Err(e) = result {
                inode.pages.record_error(e);
            }
        }
        for of_inode in f
            .entries
            .chunk_by(|a, b| Arc::ptr_eq(&a.owner.inode, &b.owner.inode))
        {
            let ranges = of_inode.iter().map(|e| e.range.clone());
            of_inode[0]
                .owner
                .inode
                .pages
                .finish_writeback(&core.budget, ranges);
        }
        core.progress();
    }

    /// Waits for everything, after sending what was gathered.
    pub(crate) fn drain(&mut self) {
        while !self.is_idle() {
            self.finish_oldest();
        }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.drain();
    }
}

impl Core {
    /// Writes what is dirty in `range` now, and waits for it and for what others have in flight.
    /// Errors are recorded with the file.
    pub(crate) fn write_range(&self, inode: &Arc<Inode>, range: Range<u64>) {
        if inode.pages.lock().is_idle() {
            return;
        }
        let mut stream = Stream::new(self);
        let owner = stream.own(inode);
        self.write_owned(&mut stream, &owner, range);
        stream.drain();
    }

    /// As [`Core::write_range`], for callers that hold no lock: where reserved room is not available, the engine cleans, and what
    /// stayed dirty is written then.
    pub(crate) fn write_range_and_clean(&self, inode: &Arc<Inode>, range: Range<u64>) {
        self.with_cleaning(|without_room| {
            if inode.pages.lock().is_idle() {
                return Outcome::default();
            }
            let mut stream = Stream::without_room(self, without_room);
            let owner = stream.own(inode);
            self.write_owned(&mut stream, &owner, range.clone());
            drop(owner);
            stream.drain();
            stream.take_outcome()
        });
    }

    /// Runs `pass`, which writes back. It runs again while writing or cleaning gains anything, and gives up what is left then. No lock is
    /// held, and no writeback owned between passes.
    fn with_cleaning(&self, mut pass: impl FnMut(WithoutRoom) -> Outcome) {
        let mut in_vain = 0;
        while in_vain < 2 {
            let outcome = pass(WithoutRoom::KeepDirty);
            if outcome.kept_dirty == 0 {
                return;
            }
            in_vain = if outcome.written > 0 { 0 } else { in_vain + 1 };
            self.make_room_for_reserved();
        }
        pass(WithoutRoom::GiveUp);
    }

    /// Has the engine clean for what is dirty and found no room.
    pub(crate) fn make_room_for_reserved(&self) {
        self.counters.reserved_waits.fetch_add(1, Ordering::Relaxed);
        self.engine.make_room(0);
    }

    /// As [`Core::write_range`], by the owner of the file's writeback. Starts the writes only.
    pub(crate) fn write_owned(
        &self,
        stream: &mut Stream<'_>,
        owner: &Arc<WritebackOwner>,
        range: Range<u64>,
    ) {
        // Pages dirtied from here on are not waited for, or a steady writer would delay us forever.
        let tagged = owner.inode.pages.lock().dirty_in(range);
        for r in tagged {
            stream.write(owner, r, u64::MAX);
            if stream.held_up {
                break;
            }
        }
    }

    /// As [`Core::write_owned`], and waits. The first error of it.
    pub(crate) fn write_owned_now(
        &self,
        owner: &Arc<WritebackOwner>,
        range: Range<u64>,
    ) -> Result<()> {
        let pages = &owner.inode.pages;
        let errors = pages.error_count();
        self.write_owned(&mut Stream::new(self), owner, range);
        match pages.last_error() {
            Some(e) if pages.error_count() != errors => Err(e),
            _ => Ok(()),
        }
    }

    /// The block that the size on disk ends in, if a size of `size` passes that end and the device does not have the block as the
    /// cache has it ([`Data::open_end`](crate::engine::Data::open_end)).
    fn changed_end(&self, inode: &Arc<Inode>, size: u64) -> Option<Range<u64>> {
        let end = self.engine.open_end(inode).filter(|end| *end < size)?;
        let block = self.blocks_over(&(end..end));
        inode.pages.has_unwritten(block.clone()).then_some(block)
    }

    /// Writes the block that the size on disk ends in, if it is dirty and that size may become `size`: what a crash left behind
    /// that end would be part of the file after the next one. For everything but writeback, which sees to it itself. `owner`: the
    /// owner of the file's writeback, if there is one.
    ///
    /// # Errors
    /// Those of the write.
    pub(crate) fn write_open_end(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        owner: Option<&Arc<WritebackOwner>>,
    ) -> Result<()> {
        match (self.changed_end(inode, size), owner) {
            (None, _) => Ok(()),
            (Some(end), Some(owner)) => self.write_owned_now(owner, end),
            (Some(end), None) => self.write_owned_now(&WritebackOwner::acquire(inode), end),
        }
    }

    /// Writes all dirty inodes in ascending order, what was dirty when it began. The first error. The caller holds no lock: the engine may
    /// clean for what it reserved.
    pub(crate) fn write_all(self: &Arc<Self>) -> Result<()> {
        let mut result = Ok(());
        self.with_cleaning(|without_room| {
            let (outcome, written) = self.write_all_once(without_room);
            if result.is_ok() {
                result = written;
            }
            outcome
        });
        result
    }

    /// As [`Core::write_all`], once, and without cleaning: for the engine, while it cleans.
    pub(crate) fn write_all_once(
        self: &Arc<Self>,
        without_room: WithoutRoom,
    ) -> (Outcome, Result<()>) {
        let inos: Vec<Ino> = self.dirty.lock().iter().copied().collect();
        let mut result = Ok(());
        let mut outcome = Outcome::default();
        let mut pins: Vec<(InodeRef, u64)> = Vec::new();
        for chunk in inos.chunks(1024) {
            {
                let mut stream = Stream::without_room(self, without_room);
                for ino in chunk {
                    let Some(inode) = self.find_inode(*ino) else {
                        continue;
                    };
                    self.flusher.hold(&inode);
                    let errors = inode.pages.error_count();
                    if !inode.pages.lock().is_idle() {
                        let owner = stream.own(&inode);
                        self.write_owned(&mut stream, &owner, 0..u64::MAX);
                    }
                    pins.push((inode, errors));
                }
                stream.drain();
                let of_chunk = stream.take_outcome();
                outcome.written += of_chunk.written;
                outcome.kept_dirty += of_chunk.kept_dirty;
            }
            for (inode, errors) in &pins {
                if inode.pages.error_count() != *errors && result.is_ok() {
                    result = Err(inode
                        .pages
                        .last_error()
                        .unwrap_or_else(|| Error::new(ErrorKind::Io, "sync").ino(inode.ino())));
                }
                if inode.take_lazy()
                    && let Err(e) = self.engine.write_attr(inode)
                    && result.is_ok()
                {
                    result = Err(e);
                }
            }
            let mut refs: Vec<InodeRef> = pins.drain(..).map(|(i, _)| i).collect();
            self.let_go(&mut refs);
        }
        (outcome, result)
    }
}
