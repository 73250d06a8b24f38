//! Direct reads that nobody waits for, and reads of bytes that are cached.
//!
//! # Locks
//! `invalidate` is held shared from before the file is looked at until the read is counted in flight; nothing is held while it flies.

use super::{Patience, ReadDone, let_go};
use crate::error::Error;
use crate::handle::Handle;
use crate::still::Reading;
use crate::vfs::Core;
use blockwright_device::{AlignedBuf, DevOffset, DeviceError, IoSlice, Op, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// One device request of a read: where it is, and which of its bytes are asked for.
struct ReadPart {
    first: u64,
    bytes: u64,
    skip: usize,
    len: usize,
}

impl ReadPart {
    fn submit(
        self,
        core: &Core,
        done: impl FnOnce(std::result::Result<IoSlice, DeviceError>) + Send + 'static,
    ) {
        let ReadPart {
            first,
            bytes,
            skip,
            len,
        } = self;
        core.device.submit(Request::new(
            Op::Read(AlignedBuf::for_overwrite(bytes as usize)),
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
        let Err(done) = self.submit_direct_read(offset, len, done, Patience::Wait) else {
            return;
        };
        let me = Arc::clone(self);
        self.core().workers.in_pool(
            self.inode(),
            Box::new(move || {
                let result = me.read_slices(offset, len);
                done(result);
            }),
        );
    }

    /// As [`Handle::submit_read`], but what has to be waited for before the device gets the read (locks, metadata, dirty
    /// pages) the calling thread waits for, not one of the pool; and for the device when the read cannot fly.
    pub fn submit_read_here(self: &Arc<Self>, offset: u64, len: usize, done: ReadDone) {
        if let Err(done) = self.submit_direct_read(offset, len, done, Patience::Wait) {
            let result = self.read_slices(offset, len);
            done(result);
        }
    }

    /// Reads at `offset` if that can be started (direct handles) or done (bytes that are cached) at once,
    /// without waiting for locks or metadata. `done` is then called once: in the device's context, or before
    /// this returns.
    ///
    /// # Errors
    /// Gives `done` back when waiting or reporting an error may be needed: use [`Handle::submit_read`] or
    /// [`Handle::submit_read_here`] where that is allowed. After the latter the next direct read nearby can most likely be started.
    pub fn try_submit_read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        done: ReadDone,
    ) -> std::result::Result<(), ReadDone> {
        if self.flags().direct {
            return self.submit_direct_read(offset, len, done, Patience::Try);
        }
        match self.read_if_cached(offset, len) {
            Some(slices) => {
                done(Ok(slices));
                Ok(())
            }
            None => Err(done),
        }
    }

    /// Submits the read if every block is mapped and nothing is dirty; otherwise gives `done` back.
    fn submit_direct_read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        done: ReadDone,
        patience: Patience,
    ) -> std::result::Result<(), ReadDone> {
        if !self.flags().direct || self.may_read().is_err() {
            return Err(done);
        }
        let core = self.core();
        let inode = self.inode();
        let logical = u64::from(core.logical_block_bytes);
        let guard = match patience {
            Patience::Wait => inode.invalidate.read(),
            Patience::Try => match inode.invalidate.try_read() {
                Some(guard) => guard,
                None => return Err(done),
            },
        };
        let range = self.clamp_to_size(offset, len);
        if range.is_empty() || inode.pages.has_unwritten(core.blocks_over(&range)) {
            return Err(done);
        }
        let reading = core.begin_read();
        let pieces = match patience {
            Patience::Wait => core.read_places(inode, &range),
            Patience::Try => inode.placed.find(&range),
        };
        let Some(pieces) = pieces else {
            return Err(done);
        };
        let mut parts: smallvec::SmallVec<[ReadPart; 2]> = pieces
            .iter()
            .map(|(device, len)| {
                let first = device.0 / logical * logical;
                ReadPart {
                    first,
                    bytes: (device.0 + len - first).next_multiple_of(logical),
                    skip: (device.0 - first) as usize,
                    len: *len as usize,
                }
            })
            .collect();
        inode.pages.direct_begin();
        drop(guard);
        core.counters
            .bytes_read
            .fetch_add(range.end - range.start, Ordering::Relaxed);
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
        if let Some(ahead) = self.next_window(&range) {
            let me = Arc::clone(self);
            let prefetch = Box::new(move || me.core().prefetch(me.inode(), ahead));
            core.workers.in_pool(self.inode(), prefetch);
        }
        core.counters.cache_hits.add(1);
        self.after_read(out.iter().map(|s| s.len()).sum());
        Some(out)
    }
}
