//! Reads past the cache that nobody waits for, and reads of bytes that are cached.
//!
//! Two kinds go past the cache: those of direct handles, and large ones of a front end that caches what it reads itself
//! ([`FrontEnd`](crate::FrontEnd)), as long as not all of it is in our cache. To keep these bytes here as well would cost a copy,
//! memory for it, and that of others, for nothing: nobody asks twice.
//!
//! # Locks
//! `invalidate` is held shared from before the file is looked at until the read is counted in flight; nothing is held while it flies.

use super::{Patience, ReadDone, let_go};
use crate::error::Error;
use crate::handle::Handle;
use crate::still::Reading;
use crate::vfs::Core;
use blockwright_device::{AlignedBuf, DevOffset, DeviceError, IoSlice, Loan, Op, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the bytes of a read go.
pub struct ReadTarget {
    /// Memory that the device may read into, at the place that the bytes have among those asked for. What could not be read there is
    /// elsewhere, so slices have to be looked at in any case.
    pub room: Option<Loan>,
    /// Told how it went.
    pub done: ReadDone,
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

/// One device request of a read: where it is, which of its bytes are asked for, and where they go.
struct ReadPart {
    first: u64,
    skip: usize,
    len: usize,
    into: AlignedBuf,
}

impl ReadPart {
    /// Finds memory for a stretch that begins `at` bytes behind the first that is asked for: in `room`, if it fits.
    fn new(at: usize, device: DevOffset, len: u64, logical: u64, room: Option<&mut Loan>) -> Self {
        let first = device.0 / logical * logical;
        let skip = (device.0 - first) as usize;
        let bytes = (device.0 + len - first).next_multiple_of(logical) as usize;
        let lent = room
            .filter(|_| skip == 0)
            .and_then(|room| room.cut(at, bytes));
        ReadPart {
            first,
            skip,
            len: len as usize,
            into: lent.unwrap_or_else(|| AlignedBuf::for_transfer(bytes)),
        }
    }

    fn submit(
        self,
        core: &Core,
        done: impl FnOnce(std::result::Result<IoSlice, DeviceError>) + Send + 'static,
    ) {
        let ReadPart {
            first,
            skip,
            len,
            into,
        } = self;
        let bytes = into.len() as u64;
        core.device.submit(Request::new(
            Op::Read(into),
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
    /// Reads at `offset` without waiting; `done` gets slices that are together `len` bytes, or fewer at
    /// the end of the file.
    pub fn submit_read(self: &Arc<Self>, offset: u64, len: usize, done: ReadDone) {
        let target = ReadTarget { room: None, done };
        let Err(target) = self.submit_read_past(offset, len, target, Patience::Wait) else {
            return;
        };
        let me = Arc::clone(self);
        self.core().workers.in_pool(
            self.inode(),
            Box::new(move || {
                let result = me.read_slices(offset, len);
                (target.done)(result);
            }),
        );
    }

    /// As [`Handle::submit_read`], but what has to be waited for before the device gets the read (locks, metadata, dirty
    /// pages) the calling thread waits for, not one of the pool; and for the device when the read cannot fly.
    pub fn submit_read_here(self: &Arc<Self>, offset: u64, len: usize, target: ReadTarget) {
        if let Err(target) = self.submit_read_past(offset, len, target, Patience::Wait) {
            let result = self.read_slices(offset, len);
            (target.done)(result);
        }
    }

    /// Reads at `offset` if that can be started (past the cache) or done (bytes that are cached) at once,
    /// without waiting for locks or metadata. `done` is then called once: in the device's context, or before
    /// this returns.
    ///
    /// # Errors
    /// Gives the target back when waiting or reporting an error may be needed: use [`Handle::submit_read`] or
    /// [`Handle::submit_read_here`] where that is allowed. After the latter the next read past the cache nearby can most likely be started.
    pub fn try_submit_read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        target: ReadTarget,
    ) -> std::result::Result<(), ReadTarget> {
        if !self.flags().direct
            && let Some(slices) = self.read_if_cached(offset, len)
        {
            (target.done)(Ok(slices));
            return Ok(());
        }
        self.submit_read_past(offset, len, target, Patience::Try)
    }

    /// Whether a read of so many bytes goes past the cache, if not all of them are in it.
    fn reads_past(&self, len: u64) -> bool {
        let flags = self.flags();
        let least = self.core().read_past_bytes.load(Ordering::Relaxed);
        flags.direct || (flags.front_end.caches_reads() && least > 0 && len >= least)
    }

    /// Submits the read if it is one past the cache, every block is mapped and nothing is dirty; otherwise gives the target back.
    fn submit_read_past(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        target: ReadTarget,
        patience: Patience,
    ) -> std::result::Result<(), ReadTarget> {
        let range = self.clamp_to_size(offset, len);
        if !self.reads_past(range.end - range.start) || self.may_read().is_err() {
            return Err(target);
        }
        let core = self.core();
        let inode = self.inode();
        let logical = u64::from(core.logical_block_bytes);
        let guard = match patience {
            Patience::Wait => inode.invalidate.read(),
            Patience::Try => match inode.invalidate.try_read() {
                Some(guard) => guard,
                None => return Err(target),
            },
        };
        let range = self.clamp_to_size(offset, len);
        if range.is_empty() || inode.pages.has_unwritten(core.blocks_over(&range)) {
            return Err(target);
        }
        let reading = core.begin_read();
        let pieces = match patience {
            Patience::Wait => core.read_places(inode, &range),
            Patience::Try => inode.placed.find(&range),
        };
        let Some(pieces) = pieces else {
            return Err(target);
        };
        let ReadTarget { mut room, done } = target;
        let mut at = 0;
        let mut parts: smallvec::SmallVec<[ReadPart; 2]> = pieces
            .iter()
            .map(|(device, len)| {
                let part = ReadPart::new(at, *device, *len, logical, room.as_mut());
                at += part.len;
                part
            })
            .collect();
        drop(room);
        inode.pages.direct_begin();
        drop(guard);
        core.counters
            .bytes_read
            .fetch_add(range.end - range.start, Ordering::Relaxed);
        if !self.flags().direct {
            core.counters.read_past.add(1);
        }
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
        // What follows a read that might have gone past the cache will.
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
