//! Batches of writeback: targets that are gathered, sent together and committed together.

use crate::cache::page_cache::WritebackOwner;
use crate::engine::WriteTarget;
use crate::locks::{Condvar, Mutex};
use blockwright_device::{DevOffset, DeviceError, IoSlice};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are gathered before they are sent: what is small goes on its way together.
pub(super) const BATCH_BYTES: u64 = 1 << 20;
/// Runs that are gathered before they are sent, and committed together.
pub(super) const BATCH_RUNS: usize = 256;

/// One target of a batch.
pub(super) struct Entry {
    pub(super) owner: Arc<WritebackOwner>,
    pub(super) target: WriteTarget,
    pub(super) range: Range<u64>,
    pub(super) data_end: u64,
}

/// One device write of a batch: targets that follow each other on the device share one.
pub(super) struct Gathered {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) slices: Vec<IoSlice>,
    /// Whose bytes it has, as places in the batch.
    pub(super) entries: Range<usize>,
}

/// Targets that are written, waited for and committed together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) requests: Vec<Gathered>,
    pub(super) bytes: u64,
}

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.entries.len() >= BATCH_RUNS
    }

    pub(super) fn add(
        &mut self,
        entry: Entry,
        device: DevOffset,
        slices: Vec<IoSlice>,
        request_max: u64,
    ) {
        let place = self.entries.len();
        let mut at = device.0;
        for slice in slices {
            let bytes = slice.len() as u64;
            let follows = self
                .requests
                .last_mut()
                .filter(|r| r.offset + r.bytes == at && r.bytes + bytes <= request_max);
            match follows {
                Some(r) => {
                    r.bytes += bytes;
                    r.slices.push(slice);
                    r.entries.end = place + 1;
                }
                None => self.requests.push(Gathered {
                    offset: at,
                    bytes,
                    slices: vec![slice],
                    entries: place..place + 1,
                }),
            }
            at += bytes;
        }
        self.bytes += entry.range.end - entry.range.start;
        self.entries.push(entry);
    }
}

/// A write that failed: whose bytes it had, as places in the batch, and why.
pub(super) type Failed = (Range<usize>, DeviceError);

/// The device writes of a batch that are on their way.
pub(super) struct Pending {
    /// How many there are, and those that failed.
    pub(super) state: Mutex<(usize, Vec<Failed>)>,
    pub(super) done: Condvar,
}

impl Pending {
    pub(super) fn one_done(&self, entries: Range<usize>, error: Option<DeviceError>) {
        let mut state = self.state.lock();
        state.0 -= 1;
        if let Some(e) = error {
            state.1.push((entries, e));
        }
        if state.0 == 0 {
            self.done.notify_all();
        }
    }

    /// Waits for all; the failed ones.
    pub(super) fn wait(&self) -> Vec<Failed> {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.done.wait(&mut state);
        }
        std::mem::take(&mut state.1)
    }
}

/// A batch on its way.
pub(super) struct InFlight {
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: u64,
    pub(super) pending: Arc<Pending>,
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
