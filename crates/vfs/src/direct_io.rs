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
use crate::types::Timestamp;
use crate::vfs::Core;
use crate::writeback::split_requests;
use blockwright_device::{AlignedBuf, DevOffset, DeviceError, Done, IoSlice, Op, Request};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

    fn flush_overlap(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let range = self.blocks_over(&range);
        if inode.pages.lock().has_unwritten(range.clone()) {
            self.write_range(inode, range);
        }
    }

    /// Drops clean cached pages over the range. Whether there were any.
    pub(crate) fn drop_overlap(&self, inode: &Arc<Inode>, range: Range<u64>) -> bool {
        let block = self.block();
        let range = self.blocks_over(&range);
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
                Place::Hole | Place::Delayed | Place::Unwritten(_) => {
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
                        Op::Read(AlignedBuf::for_overwrite(len as usize)),
                        DevOffset(first),
                    );
                    pieces.push(Piece::Read {
                        skip: (from - first) as usize,
                        len: (end - pos) as usize,
                    });
                    pos = end;
                }
                Place::Inline => {
                    drop(guard);
                    drop(waiter.wait());
                    return self.read_cached(inode, range, out);
                }
            }
        }
        let mut reads = waiter.wait().into_iter();
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
        if range.end > inode.size() {
            return Ok(false);
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
        self.flush_overlap(inode, offset..end);
        self.drop_overlap(inode, offset..end);

        let waiter = Waiter::new();
        let mut targets: Vec<(WriteTarget, usize)> = Vec::new();
        let mut rest = slices;
        let mut at = offset;
        let mut failed = None;
        let mut retried = false;
        let data_end = size.max(end);
        while at < end {
            let target = match self
                .engine
                .allocate(inode, at..end, data_end, Intent::Direct)
            {
                Ok(t) if t.offset == at && t.bytes > 0 => t,
                Ok(_) => {
                    failed = Some(Error::corrupt(
                        "allocate",
                        "the target does not start where asked",
                    ));
                    break;
                }
                Err(e) if e.kind() == ErrorKind::NoSpace && !retried => {
                    // Blocks freed a moment ago may be held back until the next commit.
                    retried = true;
                    match self.engine.sync_volume() {
                        Ok(()) => continue,
                        Err(_) => {
                            failed = Some(e);
                            break;
                        }
                    }
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            let bytes = target.bytes.min(end - at);
            let (now, later) = split_slices(rest, bytes);
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
            at += bytes;
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
