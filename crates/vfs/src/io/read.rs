//! Reads: from the cache, or past it.
//!
//! Two kinds go past the cache: those of direct handles, and large ones of a front end that caches what it reads itself
//! ([`FrontEnd`](crate::FrontEnd)), as long as not all of it is in our cache. To keep these bytes here as well would cost a copy
//! and memory, and no reader would ask for them again.
//!
//! # Locks
//! `invalidate` is held shared from before the file is looked at until the read is counted in flight; nothing is held while it is
//! in flight. The dirty pages of a direct read's range are written before.

use super::completion::Carrier;
use super::let_go;
use super::wait::Waiter;
use super::{Operation, Patience, ReadDone, WaitsFor, WouldWait};
use crate::core::Core;
use crate::engine::Place;
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::io::readahead::push_zeroes;
use crate::relocation::reads::Reading;
use blockwright_device::{
    AlignedBuf, DevOffset, DeviceError, IoSlice, Loan, Op, Request, RingIntake,
};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cached reads of at most this many bytes are copied under the table's lock: cheaper than counting.
const SMALL_READ_BYTES: usize = 16 << 10;
/// The longest request: a device counts bytes in 32 bits.
const READ_REQUEST_BYTES_MAX: u64 = 1 << 30;

/// A read. Its outcome is slices that are together `len` bytes, or fewer at the end of the file, without a copy where the bytes
/// are in memory.
pub struct ReadOp {
    /// Its first byte.
    pub offset: u64,
    /// How many bytes are wanted.
    pub len: usize,
    /// Memory that the device may read into, at the place that the bytes have among those asked for. Other bytes are elsewhere, so
    /// the slices have to be looked at in any case.
    pub room: Option<Loan>,
    /// The calling thread, if it carries device I/O itself and starts this read.
    pub carrier: Option<Arc<Carrier>>,
}

impl ReadOp {
    /// A read into memory that the vfs finds.
    #[must_use]
    pub fn new(offset: u64, len: usize) -> Self {
        ReadOp {
            offset,
            len,
            room: None,
            carrier: None,
        }
    }

    /// For another thread, or for one that waits.
    fn uncarried(self) -> Self {
        ReadOp {
            carrier: None,
            ..self
        }
    }
}

impl super::sealed::Sealed for ReadOp {}

impl Operation for ReadOp {
    type Output = Vec<IoSlice>;

    fn start_on(
        self,
        handle: &Arc<Handle>,
        done: ReadDone,
        patience: Patience,
    ) -> Option<WouldWait<Self>> {
        match patience {
            Patience::Nowait => {
                if !handle.flags().direct
                    && let Some(slices) = handle.read_if_cached(&self)
                {
                    done(Ok(slices));
                    return None;
                }
                match handle.place_read(&self, Effort::KnownPlaces) {
                    Ok(Ok(read)) => handle.launch_read(self, read, done),
                    Ok(Err(why)) => {
                        let op = self;
                        return Some(WouldWait { op, done, why });
                    }
                    Err(_) => {
                        let (op, why) = (self, WaitsFor::Refusal);
                        return Some(WouldWait { op, done, why });
                    }
                }
            }
            Patience::Wait => handle.read_waiting(self, done),
            Patience::Worker => match handle.place_read(&self, Effort::Map) {
                Ok(Ok(read)) => handle.launch_read(self, read, done),
                Ok(Err(_)) | Err(_) => {
                    let (me, op) = (Arc::clone(handle), self.uncarried());
                    let task = Box::new(move || me.read_waiting(op, done));
                    handle.core().workers.in_pool(handle.inode(), task);
                }
            },
        }
        None
    }

    fn run_on(self, handle: &Arc<Handle>) -> Result<Vec<IoSlice>> {
        handle.may_read()?;
        match handle.place_read(&self, Effort::Write)? {
            Ok(read) => {
                let waiter = Waiter::new();
                // A thread that waits here completes nothing in its ring.
                handle.launch_read(self.uncarried(), read, waiter.done());
                waiter.wait()
            }
            Err(_) => handle.read_through_cache(&self),
        }
    }
}

/// What a read does to be placed past the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// It tries locks, and looks for places that are known already.
    KnownPlaces,
    /// It tries locks, and asks the engine.
    TryMap,
    /// It waits for locks, and asks the engine.
    Map,
    /// It also writes the dirty pages of its range.
    Write,
}

/// A stretch of a read.
pub(super) enum ReadPiece {
    /// So many zeroes.
    Zeroes(u64),
    Device(DevOffset, u64),
}

pub(super) type ReadPieces = SmallVec<[ReadPiece; 2]>;

/// Where a read past the cache finds its bytes. It is counted in flight.
pub(super) struct PlacedRead {
    pub(super) range: Range<u64>,
    pub(super) pieces: ReadPieces,
    pub(super) reading: Option<Reading>,
}

/// A direct read in flight.
pub(super) struct ReadFlight {
    handle: Arc<Handle>,
    done: ReadDone,
    reading: Option<Reading>,
}

impl ReadFlight {
    /// A read that was placed, and so is counted in flight.
    pub(super) fn new(handle: Arc<Handle>, done: ReadDone, reading: Option<Reading>) -> Self {
        ReadFlight {
            handle,
            done,
            reading,
        }
    }

    /// The device is done. In its context.
    pub(super) fn completed(self, result: std::result::Result<Vec<IoSlice>, DeviceError>) {
        let inode = self.handle.inode();
        inode.pages.direct_end();
        drop(self.reading);
        let outcome = result.map_err(|e| Error::io("direct read", e).ino(inode.ino()));
        // First: a caller that waits has the last reference then, so its file is closed when it says so.
        let_go(self.handle);
        (self.done)(outcome);
    }
}

/// Several requests of one read: the last one completes it.
pub(super) struct GatheredRead {
    left: AtomicUsize,
    state: crate::locks::Mutex<ReadState>,
}

struct ReadState {
    /// What each piece brought, in the order of the file.
    slots: Vec<Vec<IoSlice>>,
    error: Option<DeviceError>,
    flight: Option<ReadFlight>,
}

impl GatheredRead {
    /// A read of this many requests. Each fills a slot; the others are filled already.
    pub(super) fn new(requests: usize, slots: Vec<Vec<IoSlice>>, flight: ReadFlight) -> Arc<Self> {
        let state = ReadState {
            slots,
            error: None,
            flight: Some(flight),
        };
        Arc::new(GatheredRead {
            left: AtomicUsize::new(requests),
            state: crate::locks::Mutex::new(crate::locks::Rank::Leaf, state),
        })
    }

    /// A request has ended.
    pub(super) fn one_done(&self, slot: usize, slice: std::result::Result<IoSlice, DeviceError>) {
        {
            let mut state = self.state.lock();
            match slice {
                Ok(s) => state.slots[slot].push(s),
                Err(e) => state.error = Some(e),
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (slots, error, flight) = {
            let mut state = self.state.lock();
            (
                std::mem::take(&mut state.slots),
                state.error.take(),
                state.flight.take(),
            )
        };
        if let Some(flight) = flight {
            flight.completed(match error {
                None => Ok(slots.into_iter().flatten().collect()),
                Some(e) => Err(e),
            });
        }
    }
}

/// One device request of a read: where it is, which of its bytes are asked for, and where they go.
struct ReadPart {
    /// Its place among the pieces.
    slot: usize,
    first: u64,
    skip: usize,
    len: usize,
    into: AlignedBuf,
}

impl ReadPart {
    /// Finds memory for a stretch that begins `at` bytes behind the first that is asked for: in `room`, if it fits.
    fn new(
        slot: usize,
        at: usize,
        device: DevOffset,
        len: u64,
        logical: u64,
        room: Option<&mut Loan>,
    ) -> Self {
        let first = device.0 / logical * logical;
        let skip = (device.0 - first) as usize;
        let bytes = (device.0 + len - first).next_multiple_of(logical) as usize;
        let lent = room
            .filter(|_| skip == 0)
            .and_then(|room| room.cut(at, bytes));
        ReadPart {
            slot,
            first,
            skip,
            len: len as usize,
            into: lent.unwrap_or_else(|| AlignedBuf::for_transfer(bytes)),
        }
    }

    fn submit(
        self,
        core: &Core,
        ring: Option<RingIntake>,
        done: impl FnOnce(std::result::Result<IoSlice, DeviceError>) + Send + 'static,
    ) {
        let ReadPart {
            first,
            skip,
            len,
            into,
            slot: _,
        } = self;
        let bytes = into.len() as u64;
        let mut request = Request::new(Op::Read(into), DevOffset(first), move |finished| {
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
        });
        request.ring = ring;
        core.device.submit(request);
    }
}

impl Handle {
    /// Reads in a thread that may wait.
    fn read_waiting(self: &Arc<Self>, op: ReadOp, done: ReadDone) {
        match self.place_read(&op, Effort::Write) {
            Ok(Ok(read)) => self.launch_read(op, read, done),
            Ok(Err(_)) => done(self.read_through_cache(&op)),
            Err(e) => done(Err(e)),
        }
    }

    /// Whether a read of this many bytes goes past the cache, if not all of them are in it.
    fn reads_past(&self, len: u64) -> bool {
        let flags = self.flags();
        let least = self.core().read_past_bytes.load(Ordering::Relaxed);
        flags.direct || (flags.front_end.caches_reads() && least > 0 && len >= least)
    }

    /// Places a read, or says why it goes through the cache.
    ///
    /// # Errors
    /// When the handle may not read, or the engine reports an error.
    pub(super) fn place_read(
        &self,
        op: &ReadOp,
        effort: Effort,
    ) -> Result<std::result::Result<PlacedRead, WaitsFor>> {
        let range = self.clamp_to_size(op.offset, op.len);
        if !self.reads_past(range.end - range.start) {
            return Ok(Err(WaitsFor::Cache));
        }
        self.may_read()?;
        let core = self.core();
        let inode = self.inode();
        let writes = effort == Effort::Write && self.flags().direct;
        if writes {
            core.flush_overlap(inode, range);
        }
        let guard = match effort {
            Effort::Map | Effort::Write => inode.invalidate.read(),
            Effort::KnownPlaces | Effort::TryMap => match inode.invalidate.try_read() {
                Some(guard) => guard,
                None => return Ok(Err(WaitsFor::Lock)),
            },
        };
        let range = self.clamp_to_size(op.offset, op.len);
        if range.is_empty() {
            return Ok(Err(WaitsFor::Cache));
        }
        // A page that became dirty after the flush belongs to a write beside this read.
        if !writes && inode.pages.has_unwritten(core.blocks_over(&range)) {
            return Ok(Err(WaitsFor::CachedPages));
        }
        let reading = core.begin_read();
        let known = inode.placed.find(&range).map(|pieces| {
            let device = |(at, len)| ReadPiece::Device(at, len);
            pieces.into_iter().map(device).collect()
        });
        let pieces = match known {
            Some(pieces) => Some(pieces),
            None if effort == Effort::KnownPlaces => return Ok(Err(WaitsFor::Blocks)),
            None => self.map_read(&range)?,
        };
        let Some(pieces) = pieces else {
            return Ok(Err(WaitsFor::Cache));
        };
        inode.pages.direct_begin();
        drop(guard);
        Ok(Ok(PlacedRead {
            range,
            pieces,
            reading,
        }))
    }

    /// Asks the engine where the bytes are. `None` if some are in the inode, or not on the device as the file shows them.
    /// `invalidate` is held.
    fn map_read(&self, range: &Range<u64>) -> Result<Option<ReadPieces>> {
        let core = self.core();
        let inode = self.inode();
        let keeps = core.format.keeps_places;
        let mut pieces = ReadPieces::new();
        let mut at = range.start;
        while at < range.end {
            // As far as it goes: the neighbourhood is likely to be read too.
            let bytes = if keeps {
                super::places::LEARN_BYTES.max(range.end - at)
            } else {
                range.end - at
            };
            let m = core.engine.map(inode, at, bytes)?;
            let end = m.offset.saturating_add(m.bytes);
            if end <= at || m.offset > at {
                let what = "the mapping does not hold the offset";
                return Err(Error::corrupt("map", what).ino(inode.ino()));
            }
            let to = end.min(range.end);
            match m.place {
                Place::Mapped(device) => {
                    if keeps {
                        inode.placed.learn(m.offset..end, device);
                    }
                    let first = DevOffset(device.0 + (at - m.offset));
                    pieces.push(ReadPiece::Device(first, to - at));
                }
                Place::Hole | Place::Delayed | Place::Unwritten(_) | Place::Reserved => {
                    pieces.push(ReadPiece::Zeroes(to - at));
                }
                Place::Inline | Place::Encoded => return Ok(None),
            }
            at = to;
        }
        Ok(Some(pieces))
    }

    /// Submits a read that is placed.
    fn launch_read(self: &Arc<Self>, op: ReadOp, read: PlacedRead, done: ReadDone) {
        let core = self.core();
        let inode = self.inode();
        let PlacedRead {
            range,
            pieces,
            reading,
        } = read;
        core.counters
            .bytes_read
            .fetch_add(range.end - range.start, Ordering::Relaxed);
        if !self.flags().direct {
            core.counters.read_past.add(1);
        }
        if !self.flags().noatime {
            core.touch_atime(inode);
        }
        let flight = ReadFlight::new(Arc::clone(self), done, reading);
        let logical = u64::from(core.logical_block_bytes);
        let mut room = op.room;
        let ring = op.carrier.as_ref().and_then(|c| c.ring.clone());
        let mut file_at = 0;
        let mut parts: SmallVec<[ReadPart; 2]> = SmallVec::new();
        // What is read comes between zeroes in slots of its own.
        let mut slots: Vec<Vec<IoSlice>> = Vec::new();
        for piece in &pieces {
            match *piece {
                ReadPiece::Zeroes(len) => {
                    let mut zeroes = Vec::new();
                    push_zeroes(&mut zeroes, 0, len);
                    slots.push(zeroes);
                    file_at += len as usize;
                }
                ReadPiece::Device(device, len) => {
                    let mut at = 0;
                    while at < len {
                        let n = (len - at).min(READ_REQUEST_BYTES_MAX);
                        let from = DevOffset(device.0 + at);
                        let slot = slots.len();
                        parts.push(ReadPart::new(
                            slot,
                            file_at,
                            from,
                            n,
                            logical,
                            room.as_mut(),
                        ));
                        slots.push(Vec::new());
                        at += n;
                        file_at += n as usize;
                    }
                }
            }
        }
        drop(room);
        if slots.len() == 1
            && let Some(part) = parts.pop()
        {
            return part.submit(core, ring, move |slice| {
                flight.completed(slice.map(|s| vec![s]))
            });
        }
        if parts.is_empty() {
            return flight.completed(Ok(slots.into_iter().flatten().collect()));
        }
        let gathered = GatheredRead::new(parts.len(), slots, flight);
        for part in parts {
            let gathered = Arc::clone(&gathered);
            let slot = part.slot;
            part.submit(core, ring.clone(), move |slice| {
                gathered.one_done(slot, slice)
            });
        }
    }

    /// Reads through the cache, and ahead of what is read.
    fn read_through_cache(self: &Arc<Self>, op: &ReadOp) -> Result<Vec<IoSlice>> {
        self.may_read()?;
        let core = self.core();
        let range = self.clamp_to_size(op.offset, op.len);
        let n = (range.end - range.start) as usize;
        let mut out = Vec::new();
        if n == 0 {
            return Ok(out);
        }
        if !self.flags().direct {
            self.read_ahead(&range);
        }
        core.read_cached(self.inode(), range, &mut out)?;
        self.after_read(n);
        Ok(out)
    }

    /// Copies a small read of cached bytes. `None` when they are not cached, or too many.
    pub(super) fn read_small(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.may_read()?;
        let range = self.clamp_to_size(offset, buf.len());
        let n = (range.end - range.start) as usize;
        if n == 0 {
            return Ok(Some(0));
        }
        let block = self.core().block();
        let hit = !self.flags().direct
            && n <= SMALL_READ_BYTES
            && (self.inode().pages.lock()).copy_small(range.start, &mut buf[..n], block);
        if !hit {
            return Ok(None);
        }
        self.read_ahead(&range);
        self.after_read(n);
        Ok(Some(n))
    }

    fn read_ahead(&self, range: &Range<u64>) {
        if let Some(ahead) = self.next_window(range) {
            self.core().prefetch(self.inode(), ahead);
        }
    }

    /// The bytes, if all of them are in the cache. The pool reads ahead, when that is due.
    fn read_if_cached(self: &Arc<Self>, op: &ReadOp) -> Option<Vec<IoSlice>> {
        self.may_read().ok()?;
        let core = self.core();
        let range = self.clamp_to_size(op.offset, op.len);
        let mut out = Vec::new();
        if !range.is_empty() {
            let table = self.inode().pages.lock();
            if table.slices(range.clone(), core.block(), &mut out) < range.end {
                return None;
            }
        }
        // The reads behind one that might have gone past the cache will go there.
        if !self.reads_past(range.end - range.start)
            && let Some(ahead) = self.next_window(&range)
        {
            let me = Arc::clone(self);
            let prefetch = Box::new(move || me.core().prefetch(me.inode(), ahead));
            core.workers.in_pool(self.inode(), prefetch);
        }
        core.counters.cache_hits.add(1);
        self.after_read(out.iter().map(|s| s.len()).sum());
        Some(out)
    }
}
