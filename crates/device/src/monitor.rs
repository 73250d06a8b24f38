//! Requests of a device and their results: counters that are always on, and a recorder that is started
//! on demand.
//!
//! A device that does I/O has a [`Monitor`] and reports every request to it twice. Telling costs three
//! additions to atomics of the thread's own; the clock is read for one request in [`TIMED_ONE_IN`] of a thread,
//! kind and size, and for all while a trace is recorded.
//!
//! # Invariants
//! Every request that was submitted is completed once, so what is in flight is the difference.
//!
//! # Locks
//! The recorder's, a leaf, taken only while a trace is recorded, and never held while the file is written.

use crate::DeviceError;
use crate::metrics::{BUCKETS, Distribution, Histogram, SHARDS, bucket_of, shard};
use crate::request::{Request, Stamp};
use crate::trace::{Event, Recorder, TraceError, TraceOptions, TraceStatus};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub use crate::request::{Kind, Seen};

/// Of this many requests of one thread, kind and size the first is timed.
pub const TIMED_ONE_IN: u64 = 32;

/// Counters of one kind in one shard.
struct Cells {
    sizes: [AtomicU64; BUCKETS],
    bytes: AtomicU64,
}

impl Default for Cells {
    fn default() -> Self {
        Cells {
            sizes: [const { AtomicU64::new(0) }; BUCKETS],
            bytes: AtomicU64::new(0),
        }
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    completed: AtomicU64,
    kinds: [Cells; Kind::ALL.len()],
}

/// See the module's head.
pub struct Monitor {
    shards: [Shard; SHARDS],
    latency: [Histogram; Kind::ALL.len()],
    fua: AtomicU64,
    errors: AtomicU64,
    queued_max: AtomicU64,
    epoch: Instant,
    tracing: AtomicBool,
    recorder: Mutex<Option<Recorder>>,
}

impl Default for Monitor {
    fn default() -> Self {
        Monitor {
            shards: Default::default(),
            latency: Default::default(),
            fua: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            queued_max: AtomicU64::new(0),
            epoch: Instant::now(),
            tracing: AtomicBool::new(false),
            recorder: Mutex::default(),
        }
    }
}

/// What was asked of a device, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// By kind, in the order of [`Kind::ALL`].
    pub kinds: [KindStats; Kind::ALL.len()],
    /// Requests that were submitted and not completed yet.
    pub in_flight: u64,
    /// The most submitted requests that the device's queue held at once; those that their callers
    /// do themselves and wait for are not queued.
    pub queued_max: u64,
    /// Writes that were durable on completion, also among the writes.
    pub fua: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// What was asked of a device, of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Requests by size in bytes. The sum is the bytes.
    pub sizes: Distribution,
    /// Nanoseconds between submission and completion of the requests that were timed.
    pub latency: Distribution,
}

impl QueueStats {
    /// The statistics of one kind.
    #[must_use]
    pub fn kind(&self, kind: Kind) -> &KindStats {
        &self.kinds[kind as usize]
    }
}

impl Monitor {
    fn now(&self) -> u64 {
        // 584 years fit.
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Bytes that writes covered, data and metadata.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        let kinds = [Kind::Write, Kind::MetaWrite];
        let cells = self
            .shards
            .iter()
            .flat_map(|s| kinds.map(|k| &s.kinds[k as usize]));
        cells.fold(0, |sum, c| {
            sum.wrapping_add(c.bytes.load(Ordering::Relaxed))
        })
    }

    /// A request is submitted. The returned value belongs to the request.
    #[inline]
    pub fn submitted(&self, seen: &Seen) -> Stamp {
        let cells = &self.shards[shard()].kinds[seen.kind as usize];
        let before = cells.sizes[bucket_of(seen.bytes)].fetch_add(1, Ordering::Relaxed);
        if seen.bytes > 0 {
            cells.bytes.fetch_add(seen.bytes, Ordering::Relaxed);
        }
        if seen.fua {
            self.fua.fetch_add(1, Ordering::Relaxed);
        }
        if before.is_multiple_of(TIMED_ONE_IN) || self.tracing.load(Ordering::Relaxed) {
            Stamp(self.now() + 1)
        } else {
            Stamp(0)
        }
    }

    /// A request that was submitted is completed.
    #[inline]
    pub fn completed(&self, seen: &Seen, stamp: Stamp, ok: bool) {
        self.shards[shard()]
            .completed
            .fetch_add(1, Ordering::Relaxed);
        if !ok {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        if stamp.0 != 0 {
            self.timed(seen, stamp);
        }
    }

    #[cold]
    fn timed(&self, seen: &Seen, stamp: Stamp) {
        let start = stamp.0 - 1;
        let took = self.now().saturating_sub(start);
        self.latency[seen.kind as usize].note(took);
        if self.tracing.load(Ordering::Relaxed)
            && let Some(recorder) = self.recorder.lock().as_mut()
            && start >= recorder.began_ns()
            && !recorder.push(&Event {
                start_ns: start - recorder.began_ns(),
                latency_ns: took,
                offset: seen.offset.0,
                bytes: seen.bytes,
                kind: seen.kind,
                fua: seen.fua,
            })
        {
            self.tracing.store(false, Ordering::Relaxed);
        }
    }

    /// A request is submitted to this device. For implementations of devices.
    pub fn note_submitted(&self, request: &mut Request) {
        request.stamp = self.submitted(&request.seen());
    }

    /// Records the completion of a request of this device, and then calls its submitter's completion. For
    /// implementations of devices.
    pub fn complete(&self, request: Request, result: Result<(), DeviceError>) {
        self.completed(&request.seen(), request.stamp, result.is_ok());
        request.complete(result);
    }

    /// Does a request in the caller's thread, and records it.
    pub(crate) fn watch<T, E>(
        &self,
        seen: &Seen,
        job: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let stamp = self.submitted(seen);
        let result = job();
        self.completed(seen, stamp, result.is_ok());
        result
    }

    /// So many submitted requests wait or are being worked on.
    #[inline]
    pub fn note_queued(&self, queued: usize) {
        let queued = queued as u64;
        if queued > self.queued_max.load(Ordering::Relaxed) {
            self.queued_max.fetch_max(queued, Ordering::Relaxed);
        }
    }

    /// The counters' values.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        let mut stats = QueueStats {
            queued_max: self.queued_max.load(Ordering::Relaxed),
            fua: self.fua.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            ..QueueStats::default()
        };
        // Completions first: what is completed was submitted before, so the difference is never negative.
        let completed = self.shards.iter().fold(0u64, |sum, shard| {
            sum.wrapping_add(shard.completed.load(Ordering::Acquire))
        });
        for (k, kind) in stats.kinds.iter_mut().enumerate() {
            for shard in &self.shards {
                let cells = &shard.kinds[k];
                kind.sizes.sum += cells.bytes.load(Ordering::Relaxed);
                for (sum, cell) in kind.sizes.buckets.iter_mut().zip(&cells.sizes) {
                    *sum += cell.load(Ordering::Relaxed);
                }
            }
            kind.latency = self.latency[k].get();
        }
        let submitted: u64 = stats.kinds.iter().map(|kind| kind.sizes.count()).sum();
        stats.in_flight = submitted.saturating_sub(completed);
        stats
    }

    /// Records all requests from now on.
    ///
    /// # Errors
    /// `Running` when a trace is recorded already; `Io` when the file cannot be written.
    pub fn start_trace(&self, options: TraceOptions) -> Result<(), TraceError> {
        let mut slot = self.recorder.lock();
        if slot.is_some() {
            return Err(TraceError::Running);
        }
        *slot = Some(Recorder::start(options, self.now())?);
        self.tracing.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// How the recording goes; `None` when there is none.
    #[must_use]
    pub fn trace_status(&self) -> Option<TraceStatus> {
        self.recorder.lock().as_ref().map(Recorder::status)
    }

    /// Ends the recording and waits until the file is written. `None` when there was none.
    ///
    /// # Errors
    /// `Io` when the file could not be written.
    pub fn stop_trace(&self) -> Result<Option<TraceStatus>, TraceError> {
        self.tracing.store(false, Ordering::Relaxed);
        // Outside of the lock: completions wait for it.
        let recorder = self.recorder.lock().take();
        recorder.map(Recorder::finish).transpose()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // A caller that wants the outcome asks before this.
        let _unreported = self.stop_trace();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DevOffset;

    fn seen(kind: Kind, bytes: u64) -> Seen {
        Seen {
            kind,
            offset: DevOffset(0),
            bytes,
            fua: false,
        }
    }

    #[test]
    fn requests_are_counted_by_kind_and_size() {
        let monitor = Monitor::default();
        for _ in 0..64 {
            let request = seen(Kind::Write, 4096);
            let stamp = monitor.submitted(&request);
            monitor.completed(&request, stamp, true);
        }
        let read = seen(Kind::Read, 8192);
        let stamp = monitor.submitted(&read);
        monitor.note_queued(3);
        monitor.note_queued(2);
        let stats = monitor.stats();
        assert_eq!(stats.in_flight, 1);
        assert_eq!(stats.queued_max, 3);
        let writes = stats.kind(Kind::Write);
        assert_eq!(
            (writes.sizes.buckets[12], writes.sizes.sum),
            (64, 64 * 4096)
        );
        assert_eq!(writes.latency.count(), 64 / TIMED_ONE_IN);
        assert_eq!(stats.kind(Kind::Read).latency.count(), 0);
        monitor.completed(&read, stamp, false);
        let stats = monitor.stats();
        assert_eq!((stats.in_flight, stats.errors), (0, 1));
        // The first of a size is timed.
        assert_eq!(stats.kind(Kind::Read).latency.count(), 1);
    }
}
