//! Reading through the page cache, and reading ahead of it.
//!
//! A miss marks the missing blocks, asks the engine where they are, and submits one device request
//! per folio, all in flight together; completions fill the folios in the device's context. Readahead is
//! the same without waiting: the window doubles while a handle reads sequentially and collapses when it
//! does not, and the next window is started when half of the last one is used up.
//!
//! # Locks
//! `invalidate` shared while blocks are marked and mapped: a truncation either sees the marks and
//! voids them, or finishes before the mapping is asked for.

use crate::cache::page_cache::{FOLIO_BYTES_MAX, Presence, ReadBytes, ReadTicket};
use crate::core::Core;
use crate::engine::Place;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::inode::holds::HeldBlock;
use crate::locks::{Condvar, Mutex, Rank};
use crate::relocation::reads::Reading;
use blockwright_device::{AlignedBuf, DevOffset, DeviceError, IoSlice, Op, Request};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// First window of a stream.
const WINDOW_BYTES_MIN: u64 = 128 << 10;

/// Proof that `invalidate` is held.
pub(crate) enum Invalidate<'a> {
    /// Not by the caller: take it shared.
    Take,
    /// As `Take`, if it is free: what is read ahead need not be read.
    Try,
    /// By the caller, exclusively.
    #[expect(dead_code, reason = "the guard is proof, not data")]
    Held(&'a crate::locks::WriteGuard<'a, ()>),
}

/// What becomes of the device requests that fill a gap.
enum Fill<'a> {
    /// They are submitted and waited for.
    Wait,
    /// They are submitted.
    Start,
    /// The caller submits them.
    Plan(&'a mut Vec<PlannedRead>),
}

/// A read into one folio that is to be submitted. The folio is marked until it is finished or dropped.
pub(super) struct PlannedRead {
    inode: Arc<Inode>,
    pub(super) device: DevOffset,
    ticket: ReadTicket,
    /// Bytes of a block.
    block: u64,
    reading: Option<Arc<Reading>>,
    finished: bool,
}

impl PlannedRead {
    pub(super) fn bytes(&self) -> u64 {
        self.ticket.range.end - self.ticket.range.start
    }

    /// Ends the read, with its bytes if it succeeded.
    pub(super) fn finish(mut self, bytes: Option<AlignedBuf>) {
        self.end(bytes);
    }

    fn end(&mut self, bytes: Option<AlignedBuf>) {
        if !std::mem::replace(&mut self.finished, true) {
            let bytes = bytes.map(ReadBytes::Buffer);
            self.inode.finish_read(self.block, &self.ticket, bytes);
            self.reading = None;
        }
    }
}

impl Drop for PlannedRead {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// The access pattern of a handle.
#[derive(Default)]
pub(crate) struct Readahead {
    next: u64,
    window: u64,
    /// End of what was read ahead.
    ahead: u64,
}

impl Readahead {
    /// Notes a read and says what to read ahead now.
    pub(crate) fn on_read(&mut self, range: &Range<u64>, window_max: u64) -> Option<Range<u64>> {
        let sequential = range.start == self.next;
        self.next = range.end;
        if !sequential || window_max == 0 {
            self.window = 0;
            self.ahead = 0;
            return None;
        }
        let start = self.ahead.max(range.start);
        if self.window > 0 && self.ahead > range.end.saturating_add(self.window / 2) {
            return None;
        }
        self.window = (self.window * 2)
            .max(WINDOW_BYTES_MIN)
            .min(window_max.max(1));
        // Windows that end at multiples of their size are made of whole, large folios.
        self.ahead = range
            .end
            .saturating_add(self.window)
            .next_multiple_of(self.window.min(FOLIO_BYTES_MAX));
        Some(start..self.ahead)
    }
}

/// Reads in flight that a thread waits for.
struct Batch {
    state: Mutex<(usize, Option<DeviceError>)>,
    done: Condvar,
}

impl Batch {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Batch {
            state: Mutex::new(Rank::Leaf, (count, None)),
            done: Condvar::new(),
        })
    }

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

/// How a missing stretch was dealt with.
enum Filled {
    /// Reads were started (and waited for, if asked).
    Read(u64),
    /// It reads as zeroes up to here, and was not cached.
    Zero(u64),
    /// Another thread is at it; look again.
    Again,
}

impl Core {
    pub(crate) fn block(&self) -> u64 {
        u64::from(self.format.block_bytes)
    }

    /// Submits a read into one folio. Its end is not waited for.
    pub(super) fn start_read(&self, read: PlannedRead) {
        self.start_read_of(read, None);
    }

    fn start_read_of(&self, read: PlannedRead, batch: Option<Arc<Batch>>) {
        self.counters.cache_reads.fetch_add(1, Ordering::Relaxed);
        self.device.submit(Request::new(
            Op::Read(AlignedBuf::for_overwrite(read.bytes() as usize)),
            read.device,
            move |done| {
                let (bytes, error) = match (done.result, done.read) {
                    (Ok(()), bytes) => (bytes, None),
                    (Err(e), _) => (None, Some(e)),
                };
                read.finish(bytes);
                if let Some(batch) = batch {
                    batch.one_done(error);
                }
            },
        ));
    }

    /// Brings the missing stretch at `pos` (block-aligned) in, up to `end` (block-aligned). With `cache_zeroes`
    /// blocks that are nowhere are put into the cache as zeroes, for a writer.
    fn fill(
        &self,
        inode: &Arc<Inode>,
        pos: u64,
        end: u64,
        invalidate: &Invalidate<'_>,
        how: &mut Fill<'_>,
        cache_zeroes: bool,
    ) -> Result<Filled> {
        let block = self.block();
        let guard = match invalidate {
            Invalidate::Take => Some(inode.invalidate.read()),
            Invalidate::Try => match inode.invalidate.try_read() {
                Some(guard) => Some(guard),
                None => return Ok(Filled::Again),
            },
            Invalidate::Held(_) => None,
        };
        let end = end.min(pos.saturating_add(4 << 20));
        self.make_room_in_cache(end - pos);
        let tickets = {
            let mut table = inode.pages.lock();
            match table.presence(pos, end, block) {
                Presence::Missing(gap) => {
                    table.begin_read(inode, &self.budget, pos..gap.min(end), block)
                }
                Presence::Ready | Presence::Reading => return Ok(Filled::Again),
            }
        };
        let Some(stop) = tickets.last().map(|t| t.range.end) else {
            return Ok(Filled::Again);
        };
        let cancel = |tickets: &[ReadTicket]| {
            for t in tickets {
                inode.finish_read(block, t, None);
            }
            inode.pages.drop_empty(pos..stop);
        };
        let reading = self.begin_read();
        let mapping = match self.engine.map(inode, pos, stop - pos) {
            Ok(m) => m,
            Err(e) => {
                cancel(&tickets);
                return Err(e);
            }
        };
        let map_end = mapping.offset.saturating_add(mapping.bytes);
        if mapping.offset > pos || map_end <= pos {
            cancel(&tickets);
            return Err(
                Error::corrupt("map", "the mapping does not hold the offset").ino(inode.ino()),
            );
        }
        match mapping.place {
            Place::Inline => {
                // The whole file is in the inode.
                let bytes = match self.engine.read_inline(inode) {
                    Ok(b) => b,
                    Err(e) => {
                        cancel(&tickets);
                        return Err(e);
                    }
                };
                for t in &tickets {
                    let mut buf = AlignedBuf::zeroed((t.range.end - t.range.start) as usize);
                    let from = usize::try_from(t.range.start).unwrap_or(usize::MAX);
                    if let Some(rest) = bytes.get(from..) {
                        let n = rest.len().min(buf.len());
                        buf[..n].copy_from_slice(&rest[..n]);
                    }
                    inode.finish_read(block, t, Some(ReadBytes::Buffer(buf)));
                }
                Ok(Filled::Read(stop))
            }
            // That is read by the engine, which waits.
            Place::Encoded if matches!(how, Fill::Plan(_)) => {
                cancel(&tickets);
                Ok(Filled::Again)
            }
            Place::Encoded => {
                let (tickets, rest) = split(tickets, map_end);
                cancel(&rest);
                let bytes = match self.engine.read_encoded(inode, mapping.offset) {
                    Ok(bytes) if bytes.len() as u64 == mapping.bytes => bytes,
                    Ok(_) => {
                        cancel(&tickets);
                        let what = "an encoded stretch has another length than its mapping";
                        return Err(Error::corrupt("read encoded data", what).ino(inode.ino()));
                    }
                    Err(e) => {
                        cancel(&tickets);
                        return Err(e);
                    }
                };
                for t in &tickets {
                    // Within the stretch: tickets were cut at its end.
                    let from = (t.range.start - mapping.offset) as usize;
                    let to = (t.range.end - mapping.offset) as usize;
                    let part = AlignedBuf::copy_of(&bytes[from..to]);
                    inode.finish_read(block, t, Some(ReadBytes::Buffer(part)));
                }
                Ok(Filled::Read(stop.min(map_end)))
            }
            Place::Hole | Place::Delayed | Place::Unwritten(_) | Place::Reserved
                if cache_zeroes =>
            {
                let stop = stop.min(map_end);
                let (zero, rest) = split(tickets, stop);
                for t in &zero {
                    inode.finish_read(block, t, Some(ReadBytes::Zero));
                }
                cancel(&rest);
                Ok(Filled::Read(stop))
            }
            Place::Hole | Place::Delayed | Place::Unwritten(_) | Place::Reserved => {
                cancel(&tickets);
                Ok(Filled::Zero(stop.min(map_end)))
            }
            Place::Mapped(device) => {
                let (tickets, rest) = split(tickets, map_end);
                cancel(&rest);
                let reading = reading.map(Arc::new);
                let planned = tickets.into_iter().map(|ticket| PlannedRead {
                    inode: Arc::clone(inode),
                    device: DevOffset(device.0 + (ticket.range.start - mapping.offset)),
                    ticket,
                    block,
                    reading: reading.clone(),
                    finished: false,
                });
                // A truncation voids the marks when `guard` is dropped; the reads themselves may go on.
                match how {
                    Fill::Plan(plan) => plan.extend(planned),
                    Fill::Start => planned.for_each(|read| self.start_read(read)),
                    Fill::Wait => {
                        let batch = Batch::new(planned.len());
                        planned.for_each(|read| self.start_read_of(read, Some(Arc::clone(&batch))));
                        drop(guard);
                        batch
                            .wait()
                            .map_err(|e| Error::io("read", e).ino(inode.ino()))?;
                    }
                }
                Ok(Filled::Read(stop.min(map_end)))
            }
        }
    }

    /// Makes one block up to date, for a writer that changes part of it, until when it stays: in a cache that is smaller than
    /// what is being written it would go at once.
    pub(crate) fn fill_block(
        &self,
        inode: &Arc<Inode>,
        pos: u64,
        invalidate: &Invalidate<'_>,
    ) -> Result<HeldBlock> {
        let block = self.block();
        loop {
            {
                let mut table = inode.pages.lock();
                loop {
                    match table.presence(pos, pos + block, block) {
                        Presence::Ready => {
                            return Ok(HeldBlock::new(inode, &mut table, pos..pos + block));
                        }
                        Presence::Reading => inode.pages.wait_for_change(&mut table),
                        Presence::Missing(_) => break,
                    }
                }
            }
            self.fill(inode, pos, pos + block, invalidate, &mut Fill::Wait, true)?;
        }
    }

    /// Starts reading what is missing in the range, and does not wait. Errors are left to the reader that
    /// needs the bytes.
    pub(crate) fn prefetch(&self, inode: &Arc<Inode>, range: Range<u64>) {
        self.fill_ahead(inode, range, &Invalidate::Take, &mut Fill::Start);
    }

    /// As [`Core::prefetch`], but the caller submits the reads that are added to `plan`. It holds no lock.
    pub(super) fn plan_prefetch(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        plan: &mut Vec<PlannedRead>,
    ) {
        self.fill_ahead(inode, range, &Invalidate::Try, &mut Fill::Plan(plan));
    }

    fn fill_ahead(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        invalidate: &Invalidate<'_>,
        how: &mut Fill<'_>,
    ) {
        let block = self.block();
        let wanted = (range.end.checked_next_multiple_of(block)).unwrap_or(range.end);
        let end = wanted.min(inode.size().next_multiple_of(block));
        let mut pos = range.start / block * block;
        while pos < end {
            let presence = inode.pages.lock().presence(pos, end, block);
            match presence {
                Presence::Missing(_) => match self.fill(inode, pos, end, invalidate, how, false) {
                    Ok(Filled::Read(to) | Filled::Zero(to)) => pos = to,
                    Ok(Filled::Again) if matches!(how, Fill::Plan(_)) => return,
                    Ok(Filled::Again) => pos += block,
                    Err(_) => return,
                },
                Presence::Ready | Presence::Reading => pos += block,
            }
        }
    }

    /// Collects slices of `range`, which ends at or before the end of the file.
    pub(crate) fn read_cached(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        out: &mut Vec<IoSlice>,
    ) -> Result<()> {
        let block = self.block();
        let mut pos = range.start;
        let end = range.end.next_multiple_of(block);
        let mut missed = false;
        // Where the whole folio was brought in last. If it was dropped before its slices were taken, the cache is too small for that.
        let mut joined = None;
        while pos < range.end {
            {
                let mut table = inode.pages.lock();
                loop {
                    pos = table.slices(pos..range.end, block, out);
                    if pos >= range.end {
                        drop(table);
                        if !missed {
                            self.counters.cache_hits.add(1);
                        }
                        return Ok(());
                    }
                    if !std::mem::replace(&mut missed, true) {
                        self.counters.cache_misses.add(1);
                    }
                    match table.presence(pos, pos + 1, block) {
                        Presence::Reading => inode.pages.wait_for_change(&mut table),
                        Presence::Ready => {}
                        Presence::Missing(_) => break,
                    }
                }
            }
            let from = pos / block * block;
            match self.fill(inode, from, end, &Invalidate::Take, &mut Fill::Wait, false)? {
                Filled::Zero(to) => {
                    push_zeroes(out, pos, to.min(range.end));
                    pos = to.min(range.end);
                }
                Filled::Read(to) if joined != Some(from) => {
                    joined = Some(from);
                    self.fill_folio(inode, from, to..end)?;
                }
                Filled::Read(_) | Filled::Again => {}
            }
        }
        Ok(())
    }

    /// Brings in what else is missing of the folio over `pos`, in a range behind it. A slice of the folio is a reference to it, and a read into a folio with
    /// references copies all of it: for each fragment of a file, if slices were taken in between.
    fn fill_folio(&self, inode: &Arc<Inode>, pos: u64, range: Range<u64>) -> Result<()> {
        let block = self.block();
        let mut at = range.start;
        loop {
            let end = inode.pages.lock().folio_end(pos).unwrap_or(0);
            let end = end.min(range.end);
            if at >= end {
                return Ok(());
            }
            let filled = self.fill(inode, at, end, &Invalidate::Take, &mut Fill::Wait, false)?;
            at = match filled {
                Filled::Zero(to) | Filled::Read(to) => to,
                Filled::Again => at + block,
            };
        }
    }
}

/// Splits tickets at an offset.
fn split(tickets: Vec<ReadTicket>, at: u64) -> (Vec<ReadTicket>, Vec<ReadTicket>) {
    let mut low = Vec::new();
    let mut high = Vec::new();
    for t in tickets {
        if t.range.end <= at {
            low.push(t);
        } else if t.range.start >= at {
            high.push(t);
        } else {
            let mut rest = t.clone();
            rest.range.start = at;
            let mut first = t;
            first.range.end = at;
            low.push(first);
            high.push(rest);
        }
    }
    (low, high)
}

/// Adds slices of zeroes, which share one buffer.
pub(crate) fn push_zeroes(out: &mut Vec<IoSlice>, mut from: u64, to: u64) {
    const BYTES: usize = 64 << 10;
    static ZEROES: std::sync::OnceLock<Arc<AlignedBuf>> = std::sync::OnceLock::new();
    let zeroes = ZEROES.get_or_init(|| Arc::new(AlignedBuf::zeroed(BYTES)));
    while from < to {
        let n = usize::try_from(to - from).unwrap_or(BYTES).min(BYTES);
        out.push(IoSlice::new(Arc::clone(zeroes), 0..n));
        from += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_grows_while_sequential_and_collapses() {
        let mut ra = Readahead::default();
        let first = ra.on_read(&(0..4096), 1 << 20).unwrap();
        assert_eq!(first, 0..2 * WINDOW_BYTES_MIN);
        assert_eq!(ra.on_read(&(4096..8192), 1 << 20), None);
        let mut at = 8192;
        let mut most = 0;
        while at < 8 << 20 {
            if let Some(r) = ra.on_read(&(at..at + 4096), 1 << 20) {
                assert!(r.end > at + 4096);
                most = most.max(r.end - r.start);
            }
            at += 4096;
        }
        assert!((512 << 10..=3 << 19).contains(&most), "{most}");
        assert_eq!(ra.on_read(&(0..4096), 1 << 20), None);
        assert_eq!(Readahead::default().on_read(&(0..4096), 0), None);
    }
}
