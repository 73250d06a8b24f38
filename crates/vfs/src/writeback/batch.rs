//! Batches of writeback: targets that are gathered, sent together and committed together.
//!
//! Small files share device requests and transactions that way. An entry holds its file's [`WritebackOwner`] until it is committed or given up, so
//! that no second writeback of the file overtakes it.

use crate::engine::WriteTarget;
use crate::inode::holds::WritebackOwner;
use crate::io::submit::{Failed, Writes};
use crate::io::wait::Waiter;
use blockwright_device::{DevOffset, IoSlice};
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

/// Targets that are written, waited for and committed together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) writes: Writes,
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
        self.writes.add(device, slices, request_max);
        self.bytes += entry.range.end - entry.range.start;
        self.entries.push(entry);
    }
}

/// A batch on its way.
pub(super) struct InFlight {
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: u64,
    /// Told what failed, as places in the batch.
    pub(super) waiter: Arc<Waiter<Vec<Failed>>>,
}
