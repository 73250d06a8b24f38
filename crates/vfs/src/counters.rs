//! What the data path counts. `core::stats` names the counters for users.
//!
//! Counters are relaxed: exact once nothing happens, and never a reason to wait. Hits, misses and what goes
//! past the cache are [`Counter`]s, whose value is spread over several cache lines, because all threads change them all the time.

use crate::stats::{Counter, Histogram};
use std::sync::atomic::AtomicU64;

/// Live counters of the data path.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    /// Copied within the volume, and of that holes and unwritten blocks.
    pub(crate) copied: AtomicU64,
    pub(crate) copied_holes: AtomicU64,
    pub(crate) cache_reads: AtomicU64,
    /// Buffered reads that found all they wanted, and those that did not.
    pub(crate) cache_hits: Counter,
    pub(crate) cache_misses: Counter,
    /// Reads of handles that are not direct that went past the cache.
    pub(crate) read_past: Counter,
    pub(crate) write_past: Counter,
    pub(crate) writeback_runs: AtomicU64,
    /// Times that cleaning was asked for by writeback, because reserved room was not available.
    pub(crate) reserved_waits: AtomicU64,
    /// Reserved bytes that found no room, and were lost.
    pub(crate) reserved_bytes_lost: AtomicU64,
    pub(crate) writeback_requests: AtomicU64,
    pub(crate) writeback_bytes: AtomicU64,
    pub(crate) writeback_run_bytes: Histogram,
    pub(crate) throttled: AtomicU64,
    pub(crate) throttled_ns: AtomicU64,
    pub(crate) fsyncs: AtomicU64,
    pub(crate) evict_errors: AtomicU64,
    pub(crate) direct_inline: AtomicU64,
    pub(crate) direct_deferred: AtomicU64,
    /// Of those, why.
    pub(crate) deferred_cached: AtomicU64,
    pub(crate) deferred_commit: AtomicU64,
    pub(crate) deferred_sync: AtomicU64,
    pub(crate) deferred_error: AtomicU64,
    /// Writes into holes that needed no wait, and those finished by the thread in which they completed.
    pub(crate) direct_nowait: AtomicU64,
    pub(crate) direct_finished_here: AtomicU64,
    /// Overwrites made durable by FUA, without a flush.
    pub(crate) direct_fua: AtomicU64,
}
