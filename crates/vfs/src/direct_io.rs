//! Direct I/O: between the caller's buffers and the device, past the page cache.
//!
//! # Coherence
//! Dirty pages over the range are written first and clean ones dropped, before and after a write.
//!
//! # Locks
//! The inode lock: shared for a pure overwrite (inside the file, every block mapped), exclusive when
//! blocks or the size change. Reads hold `invalidate` shared, so that blocks cannot change owner
//! while the device reads them.

use crate::buffered::{InodeLock, WriteTimes};
use crate::engine::{Intent, Place, WriteTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::locks::{Condvar, Mutex, Rank};
use crate::readahead::{Invalidate, push_zeroes};
use crate::settled::Pieces;
use crate::types::Timestamp;
use crate::vfs::Core;
use crate::writeback::split_requests;
use blockwright_device::{AlignedBuf, DevOffset, DeviceError, Done, IoSlice, Op, Request};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far around a miss places are learnt.
const LEARN_BYTES: u64 = 128 << 20;

/// Requests somebody waits for; the results in the order of submission.
struct Waiter {
    state: Mutex<(usize, Vec<Option<Done>>)>,
    done: Condvar,
}

impl Waiter {
    fn new() -> Arc<Self> {
        Arc::new(Waiter {
            state: Mutex::new(Rank::Leaf, (0, Vec::new())),
            done: Condvar::new(),
        })
    }

    fn submit(self: &Arc<Self>, core: &Core, op: Op, at: DevOffset) {
        let slot = {
            let mut state = self.state.lock();
            state.0 += 1;
            state.1.push(None);
            state.1.len() - 1
        };
        let me = Arc::clone(self);
        core.device.submit(Request::new(op, at, move |done| {
            let mut state = me.state.lock();
            state.1[slot] = Some(done);
            state.0 -= 1;
            if state.0 == 0 {
                me.done.notify_all();
            }
        }));
    }

    fn wait(&self) -> Vec<Done> {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.done.wait(&mut state);
        }
        state.1.drain(..).flatten().collect()
    }
}

impl Core {
    /// The whole blocks that a range touches.
    pub(crate) fn blocks_over(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.block();
        range.start / block * block..range.end.next_multiple_of(block)
    }

    pub(crate) fn flush_overlap(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let range = self.blocks_over(&range);
        if inode.pages.has_unwritten(range.clone()) {
            self.write_range(inode, range);
        }
    }

    /// Drops clean cached pages over the range. Whether there were any.
    pub(crate) fn drop_overlap(&self, inode: &Arc<Inode>, range: Range<u64>) -> bool {
        let block = self.block();
        let range = self.blocks_over(&range);
        if !inode.pages.overlaps(range.clone()) {
            return false;
        }
        let had = {
            let mut table = inode.pages.lock();
            let had = table.overlaps(range.clone());
            if had {
                table.drop_clean(range, block);
            }
            had
        };
        if had {
            inode.pages.notify();
        }
        had
    }

    /// Reads `range`, which ends at or before the end of the file, from the device.
    pub(crate) fn read_direct(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        out: &mut Vec<IoSlice>,
    ) -> Result<()> {
        enum Piece {
            Zero(Range<u64>),
            Read { skip: usize, len: usize },
        }
        self.flush_overlap(inode, range.clone());
        let logical = u64::from(self.logical_block_bytes);
        let waiter = Waiter::new();
        let mut pieces = Vec::new();
        let guard = inode.invalidate.read();
        // Dropped when nothing is in flight any more.
        let reading = self.begin_read();
        let mut pos = range.start;
        let mut failed = None;
        while pos < range.end {
            let m = match self.engine.map(inode, pos, range.end - pos) {
                Ok(m) => m,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            let end = m.offset.saturating_add(m.bytes).min(range.end);
            if end <= pos {
                failed = Some(Error::corrupt(
                    "map",
                    "the mapping does not hold the offset",
                ));
                break;
            }
            match m.place {
                Place::Hole | Place::Delayed | Place::Unwritten(_) | Place::Reserved => {
                    pieces.push(Piece::Zero(pos..end));
                    pos = end;
                }
                Place::Mapped(device) => {
                    let end = end.min(pos + u64::from(u32::MAX) / 4);
                    let from = device.0 + (pos - m.offset);
                    let first = from / logical * logical;
                    let len = (from + (end - pos) - first).next_multiple_of(logical);
                    waiter.submit(
                        self,
                        Op::Read(AlignedBuf::for_transfer(len as usize)),
                        DevOffset(first),
                    );
                    pieces.push(Piece::Read {
                        skip: (from - first) as usize,
                        len: (end - pos) as usize,
                    });
                    pos = end;
                }
                Place::Inline | Place::Encoded => {
                    drop(guard);
                    drop(waiter.wait());
                    drop(reading);
                    return self.read_cached(inode, range, out);
                }
            }
        }
        let mut reads = waiter.wait().into_iter();
        drop(reading);
        drop(guard);
        if let Some(e) = failed {
            return Err(e);
        }
        for piece in pieces {
            match piece {
                Piece::Zero(r) => push_zeroes(out, r.start, r.end),
                Piece::Read { skip, len } => {
                    let Some(done) = reads.next() else { break };
                    done.result
                        .map_err(|e| Error::io("direct read", e).ino(inode.ino()))?;
                    if let Some(buf) = done.read {
                        out.push(IoSlice::new(Arc::new(buf), skip..skip + len));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a direct write of this range changes neither blocks nor size.
    pub(crate) fn is_overwrite(&self, inode: &Arc<Inode>, range: &Range<u64>) -> Result<bool> {
        if range.end > inode.size() || !self.engine.overwrites_in_place() {
            return Ok(false);
        }
        if let Some(must) = self.engine.must_allocate(inode, range)? {
            return Ok(!must);
        }
        let mut pos = range.start;
        while pos < range.end {
            let m = self.engine.map(inode, pos, range.end - pos)?;
            if !matches!(m.place, Place::Mapped(_)) {
                return Ok(false);
            }
            let end = m.offset.saturating_add(m.bytes);
            if end <= pos {
                return Ok(false);
            }
            pos = end;
        }
        Ok(true)
    }

    /// Whether a direct write may go past the cache.
    pub(crate) fn is_direct_aligned(&self, offset: u64, len: usize) -> bool {
        let block = self.block();
        offset.is_multiple_of(block) && (len as u64).is_multiple_of(block) && len > 0
    }

    /// Whether the device takes such a write, if the blocks it touches hold data already.
    pub(crate) fn is_device_aligned(&self, offset: u64, len: usize) -> bool {
        let logical = u64::from(self.logical_block_bytes);
        offset.is_multiple_of(logical) && (len as u64).is_multiple_of(logical) && len > 0
    }

    /// Where an overwrite of the range goes, when neither blocks nor size change by it and the engine
    /// keeps data where it is. The inode lock is held, and the range lies below the size.
    pub(crate) fn overwrite_places(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
    ) -> Option<Pieces> {
        if let Some(pieces) = inode.settled.find(range) {
            return Some(pieces);
        }
        let mut at = range.start / self.block() * self.block();
        while at < range.end {
            // As far as it goes: the neighbourhood is likely to be overwritten too.
            let m = self.engine.settled(inode, at, LEARN_BYTES).ok()??;
            let end = m.offset.saturating_add(m.bytes);
            let Place::Mapped(device) = m.place else {
                return None;
            };
            if end <= at || m.offset > at {
                return None;
            }
            inode.settled.learn(m.offset..end, device);
            at = end;
        }
        inode.settled.find(range)
    }

    /// Where all of the range can be read from. `invalidate` is held.
    pub(crate) fn read_places(&self, inode: &Arc<Inode>, range: &Range<u64>) -> Option<Pieces> {
        if let Some(pieces) = inode.placed.find(range) {
            return Some(pieces);
        }
        let keeps = self.engine.keeps_places();
        let mut pieces = Pieces::new();
        let mut at = range.start;
        while at < range.end {
            let bytes = if keeps { LEARN_BYTES } else { range.end - at };
            let m = self.engine.map(inode, at, bytes).ok()?;
            let Place::Mapped(device) = m.place else {
                return None;
            };
            let end = m.offset.saturating_add(m.bytes);
            if end <= at || m.offset > at {
                return None;
            }
            if keeps {
                inode.placed.learn(m.offset..end, device);
            }
            let end = end.min(range.end);
            pieces.push((DevOffset(device.0 + (at - m.offset)), end - at));
            at = end;
        }
        Some(pieces)
    }

    /// Allocates for a direct write of a block-aligned range, from its start on: what was allocated, how far that
    /// goes, and why not to the end. Stops at a target in the inode.
    pub(crate) fn take_targets(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
        data_end: u64,
    ) -> (Vec<WriteTarget>, u64, Option<Error>) {
        let mut targets = Vec::new();
        let mut at = range.start;
        let mut retried = false;
        while at < range.end {
            let asked = self
                .engine
                .allocate(inode, at..range.end, data_end, Intent::Direct);
            match asked {
                Ok(t) if t.offset == at && t.bytes > 0 => {
                    at = range.end.min(at.saturating_add(t.bytes));
                    let in_inode = t.device.is_none();
                    targets.push(t);
                    if in_inode {
                        break;
                    }
                }
                Ok(_) => {
                    let e = Error::corrupt("allocate", "the target does not start where asked");
                    return (targets, at, Some(e));
                }
                // Blocks freed a moment ago may be held back until the next commit.
                Err(e) if e.kind() == ErrorKind::NoSpace && !retried => {
                    retried = true;
                    if self.engine.sync_volume().is_err() {
                        return (targets, at, Some(e));
                    }
                }
                Err(e) => return (targets, at, Some(e)),
            }
        }
        (targets, at, None)
    }

    /// Overwrites in place, under the inode lock: held exclusively for parts of blocks. All of it.
    pub(crate) fn write_over(
        &self,
        inode: &Arc<Inode>,
        slices: Vec<IoSlice>,
        range: &Range<u64>,
        pieces: &Pieces,
        _lock: &InodeLock<'_>,
    ) -> Result<usize> {
        self.flush_overlap(inode, range.clone());
        self.drop_overlap(inode, range.clone());
        let waiter = Waiter::new();
        let mut rest = slices;
        for (device, bytes) in pieces {
            let (now, later) = split_slices(rest, *bytes);
            rest = later;
            let mut at = device.0;
            for part in split_requests(now, self.request_bytes_max) {
                let n: u64 = part.iter().map(|s| s.len() as u64).sum();
                waiter.submit(self, Op::Write(part), DevOffset(at));
                at += n;
            }
        }
        let failed = waiter.wait().into_iter().find_map(|d| d.result.err());
        self.drop_overlap(inode, range.clone());
        if let Some(e) = failed {
            return Err(Error::io("direct write", e).ino(inode.ino()));
        }
        let n = range.end - range.start;
        let now = Timestamp::now();
        inode.update_attr(|a| (a.mtime, a.ctime) = (now, now));
        self.mark_lazy(inode);
        self.counters.bytes_written.fetch_add(n, Ordering::Relaxed);
        Ok(n as usize)
    }

    /// Writes block-aligned slices at `offset`, past the cache. How much was written: all, or what
    /// fits the volume.
    pub(crate) fn write_direct(
        &self,
        inode: &Arc<Inode>,
        slices: Vec<IoSlice>,
        offset: u64,
        lock: &InodeLock<'_>,
    ) -> Result<usize> {
        let len: u64 = slices.iter().map(|s| s.len() as u64).sum();
        let end = offset
            .checked_add(len)
            .filter(|e| *e <= self.engine.file_bytes_max(inode))
            .ok_or_else(|| Error::new(ErrorKind::FileTooLarge, "direct write").ino(inode.ino()))?;
        let size = inode.size();
        debug_assert!(end <= size || matches!(lock, InodeLock::Exclusive(_)));
        // Those behind the old end matter too: its block may be zeroed below.
        let from = offset.min(size / self.block() * self.block());
        inode.pages.wait_allocating(&(from..end));
        if self.is_inline(inode)? {
            // What lives in the inode moves through the cache.
            let data: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
            let n = self.write_buffered(inode, &data, offset, lock, WriteTimes::Now)?;
            self.flush_overlap(inode, 0..end);
            return Ok(n);
        }
        if end > size {
            self.prepare_growth(inode, offset, &Invalidate::Take, None)?;
        }
        self.write_open_end(inode, end, None)?;
        self.flush_overlap(inode, offset..end);
        self.drop_overlap(inode, offset..end);

        let waiter = Waiter::new();
        let data_end = size.max(end);
        let (taken, _, mut failed) = self.take_targets(inode, &(offset..end), data_end);
        let mut targets: Vec<(WriteTarget, usize)> = Vec::new();
        let mut rest = slices;
        for target in taken {
            let at = target.offset;
            let (now, later) = split_slices(rest, target.bytes.min(end - at));
            rest = later;
            let Some(device) = target.device else {
                // The bytes belong in the inode: the cached path knows how.
                let data: Vec<u8> = now
                    .iter()
                    .chain(&rest)
                    .flat_map(|s| s.iter().copied())
                    .collect();
                waiter.wait();
                let n = self.write_buffered(inode, &data, at, lock, WriteTimes::Now)?;
                self.flush_overlap(inode, at..end);
                return Ok((at - offset) as usize + n);
            };
            let requests = split_requests(now, self.request_bytes_max);
            targets.push((target, requests.len()));
            let mut dev = device.0;
            for slices in requests {
                let n: u64 = slices.iter().map(|s| s.len() as u64).sum();
                waiter.submit(self, Op::Write(slices), DevOffset(dev));
                dev += n;
            }
        }

        let mut results = waiter.wait().into_iter();
        let mut written = offset;
        let mut broken = false;
        for (target, requests) in &targets {
            let error: Option<DeviceError> = results
                .by_ref()
                .take(*requests)
                .filter_map(|d| d.result.err())
                .next_back();
            if let Some(e) = error {
                if target.commit {
                    self.engine.abandon_write(inode, target);
                }
                failed.get_or_insert(Error::io("direct write", e).ino(inode.ino()));
                broken = true;
                continue;
            }
            let target_end = end.min(target.offset + target.bytes);
            if !broken {
                written = target_end;
                if target_end > inode.size() {
                    inode.update_attr(|a| a.size = a.size.max(target_end));
                }
            }
            if target.commit
                && let Err(e) =
                    self.engine
                        .commit_write(inode, target, data_end.min(written.max(size)))
            {
                failed.get_or_insert(e);
                broken = true;
            }
        }
        self.drop_overlap(inode, offset..end);
        let n = (written - offset) as usize;
        if n > 0 {
            let now = Timestamp::now();
            inode.update_attr(|a| {
                a.mtime = now;
                a.ctime = now;
            });
            self.mark_lazy(inode);
            self.counters
                .bytes_written
                .fetch_add(n as u64, Ordering::Relaxed);
            return Ok(n);
        }
        match failed {
            Some(e) => Err(e),
            None => Ok(n),
        }
    }
}

/// The first `bytes` of these slices, and the rest.
pub(crate) fn split_slices(slices: Vec<IoSlice>, bytes: u64) -> (Vec<IoSlice>, Vec<IoSlice>) {
    let mut left = bytes as usize;
    let mut now = Vec::new();
    let mut later = Vec::new();
    for s in slices {
        if left == 0 {
            later.push(s);
        } else if s.len() <= left {
            left -= s.len();
            now.push(s);
        } else {
            now.push(s.slice(0..left));
            later.push(s.slice(left..s.len()));
            left = 0;
        }
    }
    (now, later)
}
