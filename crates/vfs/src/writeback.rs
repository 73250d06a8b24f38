//! Writing dirty pages: in order, in long runs, with several targets on their way.
//!
//! A [`Stream`] takes a file's lowest run of dirty pages, asks the engine for room for all of it at
//! once, submits the device writes, and goes on while they fly. When all writes of a target are done
//! its commit makes them visible; commits follow file order, so an appended file never shows a hole.
//!
//! * Throttled writers, fsync and sync start at the beginning of what they must clean; the flusher (see
//!   `flusher`) alone goes on from where it was.
//! * fsync and sync write what was dirty when they began, once, even if pages are dirtied meanwhile.
//! * Budgets are charged for bytes written, never for bytes looked at. When the engine gives less room
//!   than asked for, the rest is dirty again and the walk goes on right behind the last byte written.
//! * Reclaim never writes.
//!
//! # Crash order
//! Data is on the device before [`Engine::commit_write`](crate::engine::Engine::commit_write) makes
//! it reachable, so a crash exposes no stale blocks.
//!
//! # Locks
//! None across calls to the engine or the device: a run is marked under the table's lock, and the
//! file's writeback *owner* keeps truncation away. Whoever owns one file waits for another only after
//! finishing all it has in flight.

use crate::engine::{Intent, WriteTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode_cache::InodeRef;
use crate::locks::{Condvar, Mutex, Rank};
use crate::page_cache::{DirtyRun, WritebackOwner};
use crate::types::Ino;
use crate::vfs::Core;
use blockwright_device::{DevOffset, DeviceError, IoSlice, Op, Request};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest run asked for at once: what one ext4 extent of 4 KiB blocks can hold.
const RUN_BYTES_MAX: u64 = 128 << 20;
/// Bytes on their way to the device before the stream waits for the oldest.
const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;
/// Targets on their way before the stream waits for the oldest.
const IN_FLIGHT_MAX: usize = 32;

/// Writes of one target that are on their way.
struct Pending {
    state: Mutex<(usize, Option<DeviceError>)>,
    done: Condvar,
}

impl Pending {
    fn one_done(&self, error: Option<DeviceError>) {
        let mut state = self.state.lock();
        state.0 -= 1;
        if error.is_some() {
            state.1 = error;
        }
        if state.0 == 0 {
            self.done.notify_all();
        }
    }

    fn wait(&self) -> std::result::Result<(), DeviceError> {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.done.wait(&mut state);
        }
        state.1.take().map_or(Ok(()), Err)
    }
}

struct InFlight {
    owner: Arc<WritebackOwner>,
    target: WriteTarget,
    range: Range<u64>,
    data_end: u64,
    pending: Arc<Pending>,
}

/// A sequence of writes, of one file or several.
pub(crate) struct Stream<'a> {
    core: &'a Core,
    in_flight: VecDeque<InFlight>,
    bytes: u64,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(core: &'a Core) -> Self {
        Stream {
            core,
            in_flight: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The right to write a file back, unless somebody else has it or waits for it: who waits is given way, and
    /// what this stream has in flight ends. Kept for as long as something of the file is in flight.
    pub(crate) fn own_or_leave(&mut self, inode: &Arc<Inode>) -> Option<Arc<WritebackOwner>> {
        let own = self
            .in_flight
            .iter()
            .rfind(|f| Arc::ptr_eq(&f.owner.inode, inode));
        if let Some(owner) = own.map(|f| Arc::clone(&f.owner)) {
            if inode.pages.lock().is_awaited() {
                drop(owner);
                self.drain();
                return None;
            }
            return Some(owner);
        }
        WritebackOwner::try_acquire(inode)
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
    /// and how much was written.
    pub(crate) fn write(
        &mut self,
        owner: &Arc<WritebackOwner>,
        range: Range<u64>,
        budget: u64,
    ) -> (u64, u64) {
        let inode = &owner.inode;
        let block = self.core.block();
        let mut written = 0;
        if range.start > 0 && inode.pages.lock().has_dirty_in(0..block) {
            // The first block goes first: with it, data leaves an inode that it has outgrown.
            if let Some(run) = self.begin(inode, 0..block, block) {
                written += self.write_run(owner, run, &mut 0);
            }
        }
        let mut at = range.start;
        while written < budget {
            let bytes_max = (budget - written).min(RUN_BYTES_MAX);
            let Some(run) = self.begin(inode, at..range.end, bytes_max) else {
                at = range.end;
                break;
            };
            let bytes = self.write_run(owner, run, &mut at);
            written += bytes;
        }
        (at, written)
    }

    /// Marks the first dirty run of the range. A block whose earlier write is still in flight (it was changed meanwhile)
    /// is waited for: the device may carry out two writes of one block in either order, and the older bytes must not win.
    /// Blocks behind it wait too, or a crash could show them behind a hole.
    fn begin(&mut self, inode: &Arc<Inode>, range: Range<u64>, bytes_max: u64) -> Option<DirtyRun> {
        loop {
            {
                let mut table = inode.pages.lock();
                let first = table.first_dirty_in(range.clone())?;
                let free = match table.first_in_writeback(first.clone()) {
                    // Whoever owns the file's writeback has all of it that is in flight.
                    Some(_) if self.in_flight.is_empty() => {
                        debug_assert!(false, "another stream writes this file back");
                        first.end
                    }
                    Some(busy) => busy,
                    None => first.end,
                };
                if free > first.start {
                    return table.begin_writeback(
                        inode,
                        &self.core.budget,
                        first.start..free,
                        bytes_max,
                        self.core.block(),
                    );
                }
            }
            self.finish_oldest();
        }
    }

    /// Starts writing one run, as far as one target goes. `at` is set behind it.
    fn write_run(&mut self, owner: &Arc<WritebackOwner>, run: DirtyRun, at: &mut u64) -> u64 {
        let core = self.core;
        let inode = &owner.inode;
        let range = run.range.clone();
        let target =
            match core
                .engine
                .allocate(inode, range.clone(), run.data_end, Intent::Writeback)
            {
                Ok(t) if t.offset == range.start && t.bytes > 0 => t,
                Ok(_) => {
                    let e = Error::corrupt("allocate", "the target does not start where asked");
                    return self.give_up(inode, range, at, e.ino(inode.ino()));
                }
                Err(e) => return self.give_up(inode, range, at, e),
            };
        let end = range.end.min(target.offset.saturating_add(target.bytes));
        if end < range.end {
            inode
                .pages
                .lock()
                .return_to_dirty(&core.budget, end..range.end);
        }
        *at = end;
        let bytes = end - range.start;
        core.counters.writeback_runs.fetch_add(1, Ordering::Relaxed);
        core.counters
            .writeback_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        core.counters.writeback_run_bytes.note(bytes);
        let slices = cut(run.slices, bytes);
        let range = range.start..end;
        let Some(device) = target.device else {
            self.write_inline(inode, &slices, range, run.data_end);
            return bytes;
        };
        let requests = split_requests(slices, self.core.request_bytes_max);
        let pending = Arc::new(Pending {
            state: Mutex::new(Rank::Leaf, (requests.len(), None)),
            done: Condvar::new(),
        });
        let mut offset = device.0;
        for slices in requests {
            let bytes: u64 = slices.iter().map(|s| s.len() as u64).sum();
            let pending = Arc::clone(&pending);
            core.counters
                .writeback_requests
                .fetch_add(1, Ordering::Relaxed);
            core.device.submit(Request::new(
                Op::Write(slices),
                DevOffset(offset),
                move |done| pending.one_done(done.result.err()),
            ));
            offset += bytes;
        }
        self.in_flight.push_back(InFlight {
            owner: Arc::clone(owner),
            target,
            range,
            data_end: run.data_end,
            pending,
        });
        self.bytes += bytes;
        while self.bytes > IN_FLIGHT_BYTES_MAX || self.in_flight.len() > IN_FLIGHT_MAX {
            self.finish_oldest();
        }
        bytes
    }

    /// The engine has no room for a run it had reserved: the data is lost, and everybody is told.
    fn give_up(&self, inode: &Arc<Inode>, range: Range<u64>, at: &mut u64, error: Error) -> u64 {
        *at = range.end;
        self.core.engine.unreserve(inode, range.clone());
        inode.pages.record_error(error);
        inode
            .pages
            .finish_writeback(&self.core.budget, range.clone());
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
    ) {
        let mut bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
        bytes.truncate(usize::try_from(data_end).unwrap_or(usize::MAX));
        if let Err(e) = self.core.engine.write_inline(inode, &bytes, data_end) {
            inode.pages.record_error(e);
        }
        inode.pages.finish_writeback(&self.core.budget, range);
    }

    /// Waits for the oldest target and makes it visible.
    fn finish_oldest(&mut self) {
        let Some(f) = self.in_flight.pop_front() else {
            return;
        };
        self.bytes -= f.range.end - f.range.start;
        let core = self.core;
        let inode = &f.owner.inode;
        match f.pending.wait() {
            Ok(()) if f.target.commit => {
                if let Err(e) = core.engine.commit_write(inode, &f.target, f.data_end) {
                    inode.pages.record_error(e);
                }
            }
            Ok(()) => {}
            Err(e) => {
                if f.target.commit {
                    core.engine.abandon_write(inode, &f.target);
                }
                inode
                    .pages
                    .record_error(Error::io("write back", e).ino(inode.ino()));
                self.reserve_again(inode, f.range.clone());
            }
        }
        inode.pages.finish_writeback(&core.budget, f.range);
        core.progress();
    }

    /// Waits for everything in flight.
    pub(crate) fn drain(&mut self) {
        while !self.in_flight.is_empty() {
            self.finish_oldest();
        }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.drain();
    }
}

/// The first `bytes` of these slices.
fn cut(slices: Vec<IoSlice>, bytes: u64) -> Vec<IoSlice> {
    let mut left = bytes as usize;
    let mut out = Vec::with_capacity(slices.len());
    for s in slices {
        if left == 0 {
            break;
        }
        let n = s.len().min(left);
        out.push(s.slice(0..n));
        left -= n;
    }
    out
}

/// Groups slices into requests of at most `bytes_max`.
pub(crate) fn split_requests(slices: Vec<IoSlice>, bytes_max: u64) -> Vec<Vec<IoSlice>> {
    let mut out = Vec::new();
    let mut now = Vec::new();
    let mut bytes = 0;
    for s in slices {
        let len = s.len() as u64;
        if bytes + len > bytes_max && !now.is_empty() {
            out.push(std::mem::take(&mut now));
            bytes = 0;
        }
        bytes += len;
        now.push(s);
    }
    if !now.is_empty() {
        out.push(now);
    }
    out
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

    /// As [`Core::write_range`], by whoever owns the file's writeback already. Starts the writes only.
    pub(crate) fn write_owned(
        &self,
        stream: &mut Stream<'_>,
        owner: &Arc<WritebackOwner>,
        range: Range<u64>,
    ) {
        // What is dirtied from here on is not waited for, or a steady writer would keep us for ever.
        let tagged = owner.inode.pages.lock().dirty_in(range);
        for r in tagged {
            stream.write(owner, r, u64::MAX);
        }
    }

    /// Writes all dirty inodes in ascending order, what was dirty when it began. The first error.
    pub(crate) fn write_all(self: &Arc<Self>) -> Result<()> {
        let inos: Vec<Ino> = self.dirty.lock().iter().copied().collect();
        let mut result = Ok(());
        let mut pins: Vec<(InodeRef, u64)> = Vec::new();
        for chunk in inos.chunks(1024) {
            {
                let mut stream = Stream::new(self);
                for ino in chunk {
                    let Some(inode) = self.inodes.find(self, *ino) else {
                        continue;
                    };
                    let errors = inode.pages.error_count();
                    if !inode.pages.lock().is_idle() {
                        let owner = stream.own(&inode);
                        self.write_owned(&mut stream, &owner, 0..u64::MAX);
                    }
                    pins.push((inode, errors));
                }
                stream.drain();
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
            let refs: Vec<InodeRef> = pins.drain(..).map(|(i, _)| i).collect();
            self.forget_clean(&refs);
        }
        result
    }
}
