//! Reads of many files at once, for walks that read whole trees.
//!
//! Files that were made together lie together. So the ranges are sorted by their place on the device, neighbours become one
//! request, and all requests are submitted before the first one is waited for.
//!
//! There are two ways:
//! - [`Vfs::start_reads`] gives the bytes to the caller, past the cache. A slice of a result shares the memory of its request. Only whole
//!   blocks on the device are read so. A file whose data is inline, compressed or in the cache is given back, and its reader takes
//!   the ordinary way. A request that fails fails all ranges that it covers. The caller repeats them one by one.
//! - [`Vfs::read_ahead`] brings the bytes into the cache, where later reads find them. What it leaves out, these reads read themselves.
//!
//! # Locks
//! As a direct read: `invalidate` shared while a range is placed, none in flight. It is only tried, because ranges that were placed
//! before count as in flight already, and a truncation may be waiting for them.

use super::ReadDone;
use super::read::{Effort, GatheredRead, PlacedRead, ReadFlight, ReadOp, ReadPiece};
use super::readahead::{PlannedRead, push_zeroes};
use crate::cache::page_cache::Presence;
use crate::core::{Core, InodeRef};
use crate::handle::Handle;
use crate::vfs::Vfs;
use blockwright_device::{
    AlignedBuf, DevOffset, DeviceError, DeviceErrorKind, IoSlice, Op, Request,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most bytes of one request, unless a single range is longer.
const REQUEST_BYTES: u64 = 1 << 20;
/// The longest gap between two ranges that is read and thrown away to save a request.
const GAP_BYTES: u64 = 16 << 10;

/// One range of [`Vfs::start_reads`].
pub struct FileRead {
    /// The file. Opened with `direct`: other handles read through the cache.
    pub handle: Arc<Handle>,
    /// The bytes. Bytes past the end of the file are cut off.
    pub range: Range<u64>,
    /// Told the bytes, as by [`Handle::start`].
    pub done: ReadDone,
}

/// A stretch on the device that a file's range needs.
struct Part {
    /// Aligned to the device's blocks.
    device: Range<u64>,
    /// Bytes before the wanted ones.
    skip: usize,
    len: usize,
    gathered: Arc<GatheredRead>,
    slot: usize,
}

impl Vfs {
    /// Starts reads of several files together. Those that must take another way come back; `done` is not called for them.
    pub fn start_reads(&self, reads: Vec<FileRead>) -> Vec<FileRead> {
        let core = &self.core;
        let mut parts = Vec::with_capacity(reads.len());
        let mut back = Vec::new();
        for read in reads {
            match place(core, &read) {
                Some(placed) => split(core, read, placed, &mut parts),
                None => back.push(read),
            }
        }
        join(
            parts,
            |part| part.device.clone(),
            |device, parts| submit(core, device, parts),
        );
        back
    }

    /// Starts reading the first `bytes` of each file into the cache, and does not wait for the device. Files that are locked, compressed or
    /// cannot be mapped are left out. Errors are left to the readers that need the bytes.
    pub fn read_ahead(&self, files: &[(InodeRef, u64)]) {
        let core = &self.core;
        if core.alive("read ahead").is_err() {
            return;
        }
        let mut plan = Vec::with_capacity(files.len());
        for (inode, bytes) in files {
            core.plan_prefetch(inode, 0..*bytes, &mut plan);
        }
        let device_of = |read: &PlannedRead| read.device.0..read.device.0 + read.bytes();
        join(plan, device_of, |device, mut reads| match reads.pop() {
            Some(only) if reads.is_empty() => core.start_read(only),
            Some(last) => {
                reads.push(last);
                fill_together(core, device, reads);
            }
            None => {}
        });
    }
}

/// Sorts parts by their place on the device, and hands over what one request is to read.
fn join<T>(
    mut parts: Vec<T>,
    device_of: impl Fn(&T) -> Range<u64>,
    mut submit: impl FnMut(Range<u64>, Vec<T>),
) {
    parts.sort_by_key(|part| device_of(part).start);
    let mut parts = parts.into_iter().peekable();
    while let Some(first) = parts.next() {
        let mut device = device_of(&first);
        let mut wanted = device.end - device.start;
        let mut together = vec![first];
        while let Some(next) = parts.next_if(|next| {
            let next = device_of(next);
            let gap = next.start.saturating_sub(device.end);
            let end = next.end.max(device.end);
            // Gaps are never more than half of what is read.
            gap <= GAP_BYTES.min(wanted) && end - device.start <= REQUEST_BYTES
        }) {
            let added = device_of(&next);
            wanted += added.end.saturating_sub(device.end.max(added.start));
            device.end = device.end.max(added.end);
            together.push(next);
        }
        submit(device, together);
    }
}

/// Reads into several folios with one request.
fn fill_together(core: &Core, device: Range<u64>, reads: Vec<PlannedRead>) {
    core.counters.cache_reads.fetch_add(1, Ordering::Relaxed);
    let bytes = device.end - device.start;
    let op = Op::Read(AlignedBuf::for_transfer(bytes as usize));
    core.device
        .submit(Request::new(op, DevOffset(device.start), move |done| {
            let all = done.result.ok().and(done.read);
            for read in reads {
                let from = (read.device.0 - device.start) as usize;
                let part = all
                    .as_ref()
                    .map(|all| AlignedBuf::copy_of(&all[from..from + read.bytes() as usize]));
                read.finish(part);
            }
        }));
}

/// Finds where a range lies. `None` when it takes the ordinary way: there an error shows as well.
fn place(core: &Core, read: &FileRead) -> Option<PlacedRead> {
    let inode = read.handle.inode();
    let len = usize::try_from(read.range.end - read.range.start).ok()?;
    let blocks = core.blocks_over(&read.range);
    let presence = inode
        .pages
        .lock()
        .presence(blocks.start, blocks.end, core.block());
    if !matches!(presence, Presence::Missing(_)) {
        return None;
    }
    let op = ReadOp::new(read.range.start, len);
    read.handle.place_read(&op, Effort::TryMap).ok()?.ok()
}

/// Makes one part of each stretch on the device. A range without any is done at once.
fn split(core: &Core, read: FileRead, placed: PlacedRead, parts: &mut Vec<Part>) {
    let FileRead { handle, done, .. } = read;
    let bytes = placed.range.end - placed.range.start;
    core.counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    if !handle.flags().noatime {
        core.touch_atime(handle.inode());
    }
    let flight = ReadFlight::new(handle, done, placed.reading);
    let logical = u64::from(core.logical_block_bytes);
    let mut slots: Vec<Vec<IoSlice>> = Vec::with_capacity(placed.pieces.len());
    let mut wanted = Vec::new();
    for piece in &placed.pieces {
        match *piece {
            ReadPiece::Zeroes(len) => {
                let mut zeroes = Vec::new();
                push_zeroes(&mut zeroes, 0, len);
                slots.push(zeroes);
            }
            ReadPiece::Device(device, len) => {
                let mut at = device.0;
                let end = device.0 + len;
                while at < end {
                    let n = (end - at).min(REQUEST_BYTES);
                    wanted.push((slots.len(), at, n));
                    slots.push(Vec::new());
                    at += n;
                }
            }
        }
    }
    if wanted.is_empty() {
        return flight.completed(Ok(slots.into_iter().flatten().collect()));
    }
    let gathered = GatheredRead::new(wanted.len(), slots, flight);
    for (slot, at, len) in wanted {
        let start = at / logical * logical;
        parts.push(Part {
            device: start..(at + len).next_multiple_of(logical),
            skip: (at - start) as usize,
            len: len as usize,
            gathered: Arc::clone(&gathered),
            slot,
        });
    }
}

fn submit(core: &Core, device: Range<u64>, parts: Vec<Part>) {
    let bytes = device.end - device.start;
    let op = Op::Read(AlignedBuf::for_transfer(bytes as usize));
    let at = DevOffset(device.start);
    core.device.submit(Request::new(op, at, move |done| {
        let read = done.result.and_then(|()| {
            done.read.map(Arc::new).ok_or(DeviceError {
                op: "read",
                offset: at,
                bytes,
                kind: DeviceErrorKind::Gone,
            })
        });
        for part in parts {
            let slice = read.clone().map(|buf| {
                let from = (part.device.start - device.start) as usize + part.skip;
                IoSlice::new(buf, from..from + part.len)
            });
            part.gathered.one_done(part.slot, slice);
        }
    }));
}
