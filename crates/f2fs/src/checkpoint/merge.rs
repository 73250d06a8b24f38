//! Merged checkpoints: a daemon writes one checkpoint for all requests that came since the last one.
//!
//! Requests queue without a lock ([`Tickets`]), in the order they come. The daemon takes them *after* it has the gate. By then
//! every operation that was under way has ended, so the checkpoint has all that the requests are for. It is written with the daemon's own I/O
//! priority: otherwise all callers would wait for a checkpoint at the pace of one low-priority task.
//!
//! A caller that has just been served is likely to come back, while others wait already. A daemon that set off at once would serve the two
//! groups in turn, forever. So it waits up to a quarter of a checkpoint's time until as many requests are there as last time.
//!
//! Without a daemon each caller writes its own checkpoint: with `nocheckpoint_merge`, before the daemon runs, and once it is being stopped.
//! Checkpoints at unmount, and all others that are no caller's sync, do not come here.
//!
//! # Locks
//! `sleep_lock`, a leaf, to sleep and to wake; nothing else is done with it held. `thread`, of the same rank, to start and to stop the daemon.
//!
//! # References
//! linux-f2fs-devel, "add checkpoint=merge mount option", January 2021.

use crate::checkpoint::tickets::Tickets;
use crate::checkpoint::{CheckpointKind, Checkpoints};
use crate::options::PRIORITY;
use crate::writer::Writer;
use crate::{Error, ErrorKind, Result};
use blockwright_device::IoPriority;
use blockwright_vfs::locks::{Condvar, Mutex, Rank};
use blockwright_vfs::stats::{Histogram, Stats};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const OP: &str = "checkpoint";
/// The longest the daemon waits for company.
const GATHER_MAX: Duration = Duration::from_millis(20);
/// A shorter wait is not worth a sleep, because timers are no more exact.
const GATHER_MIN: Duration = Duration::from_micros(50);

/// See the module's head.
pub(crate) struct Merger {
    tickets: Tickets,
    sleep_lock: Mutex<()>,
    work: Condvar,
    served: Condvar,
    priority: AtomicU8,
    thread: Mutex<Option<JoinHandle<()>>>,
    began: Instant,
    /// When the oldest waiting request came, in nanoseconds since `began`; 0: none waits.
    since_ns: AtomicU64,
    counters: Counters,
}

/// Changed once per batch.
#[derive(Default)]
struct Counters {
    issued: AtomicU64,
    total: AtomicU64,
    latest_ns: AtomicU64,
    peak_ns: AtomicU64,
    latency: Histogram,
    batch: Histogram,
}

/// Requests that one checkpoint serves.
struct Batch {
    first: u64,
    last: u64,
    /// As in [`Merger`].
    since_ns: u64,
}

impl Batch {
    fn count(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The last batch, as far as the daemon remembers it.
#[derive(Default)]
struct LastBatch {
    /// Requests served by it, and those waiting when it ended.
    expected: u64,
    ended: Option<Instant>,
    /// What a checkpoint takes, smoothed.
    cost: Duration,
}

impl LastBatch {
    /// How many requests to wait for, and how long.
    fn patience(&self) -> Option<(u64, Duration)> {
        // A caller that comes back does so at once. A batch that ended long ago says nothing.
        let recent = self.ended.is_some_and(|at| at.elapsed() < self.cost);
        let wait = (self.cost / 4).min(GATHER_MAX);
        (recent && self.expected > 1 && wait >= GATHER_MIN).then_some((self.expected, wait))
    }
}

impl Merger {
    pub(crate) fn new() -> Self {
        Merger {
            tickets: Tickets::new(),
            sleep_lock: Mutex::new(Rank::Leaf, ()),
            work: Condvar::new(),
            served: Condvar::new(),
            priority: AtomicU8::new(PRIORITY),
            thread: Mutex::new(Rank::Leaf, None),
            began: Instant::now(),
            since_ns: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Whether the daemon takes requests.
    pub(crate) fn is_on(&self) -> bool {
        self.tickets.is_open()
    }

    /// The daemon's I/O priority: best-effort, 0 (first) to 7.
    pub(crate) fn priority(&self) -> IoPriority {
        IoPriority(self.priority.load(Ordering::Relaxed))
    }

    /// Changes it, for what the daemon writes next.
    pub(crate) fn set_priority(&self, level: u8) {
        self.priority.store(level.min(7), Ordering::Relaxed);
    }

    /// Starts the daemon, if it does not run.
    ///
    /// # Errors
    /// When the thread cannot be started. Each caller writes its own checkpoints then.
    pub(crate) fn start(checkpoints: &Arc<Checkpoints>) -> Result<()> {
        if checkpoints.access.writer.is_none() {
            return Ok(());
        }
        let merger = &checkpoints.merger;
        let mut thread = merger.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        let theirs = Arc::clone(checkpoints);
        let (go, may_go) = std::sync::mpsc::channel();
        let builder = std::thread::Builder::new().name("f2fs-ckpt-merge".to_owned());
        let started = builder.spawn(move || {
            if may_go.recv().is_ok() {
                run(&theirs);
            }
        });
        let started = started.map_err(|e| {
            Error::new(ErrorKind::Io, "start the checkpoint daemon").detail(e.to_string())
        })?;
        // The queue opens when a thread is there to serve it, and before that thread runs: it ends at a closed queue.
        merger.tickets.open();
        let _ = go.send(());
        *thread = Some(started);
        Ok(())
    }

    /// Stops the daemon, after it has completed what is queued. Later callers write their own checkpoints.
    pub(crate) fn stop(&self) {
        // Held to the end: there is one daemon at a time.
        let mut thread = self.thread.lock();
        if self.tickets.close() {
            self.wake();
        }
        if let Some(thread) = thread.take() {
            // A panic of it has been reported by its own thread.
            let _ended = thread.join();
        }
    }

    fn wake(&self) {
        drop(self.sleep_lock.lock_nested());
        self.work.notify_one();
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos())
            .unwrap_or(u64::MAX)
            .max(1)
    }

    /// Has the daemon write a checkpoint, and waits for it. `None`: there is no daemon, write your own.
    pub(crate) fn request(&self) -> Option<bool> {
        if !self.tickets.is_open() {
            return None;
        }
        if self.since_ns.load(Ordering::Relaxed) == 0 {
            // A caller that loses here came later.
            let _first = self.since_ns.compare_exchange(
                0,
                self.now_ns(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        let asked = self.tickets.ask()?;
        if asked.wake {
            self.wake();
        }
        let mut sleep_lock = self.sleep_lock.lock();
        loop {
            if let Some(success) = self.tickets.outcome(asked.ticket) {
                return Some(success);
            }
            self.served.wait(&mut sleep_lock);
        }
    }

    /// Sleeps until this many wait, the queue is closed, or the time is up.
    fn sleep(&self, wanted: u64, at_most: Option<Duration>) {
        let deadline = at_most.map(|d| Instant::now() + d);
        while self.tickets.doze(wanted) {
            let mut sleep_lock = self.sleep_lock.lock();
            while self.tickets.is_asleep() {
                let Some(deadline) = deadline else {
                    self.work.wait(&mut sleep_lock);
                    continue;
                };
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    self.tickets.rouse();
                    return;
                }
                self.work.wait_for(&mut sleep_lock, left);
            }
        }
    }

    /// Takes all waiting requests.
    fn take(&self) -> Option<Batch> {
        let (first, last) = self.tickets.take()?;
        Some(Batch {
            first,
            last,
            since_ns: self.since_ns.swap(0, Ordering::Relaxed),
        })
    }

    /// Ends a batch, and wakes its callers.
    fn complete(&self, batch: &Batch, success: bool) {
        let c = &self.counters;
        c.issued.fetch_add(1, Ordering::Relaxed);
        c.total.fetch_add(batch.count(), Ordering::Relaxed);
        c.batch.note(batch.count());
        if batch.since_ns != 0 {
            let waited = self.now_ns().saturating_sub(batch.since_ns);
            c.latest_ns.store(waited, Ordering::Relaxed);
            c.peak_ns.fetch_max(waited, Ordering::Relaxed);
            c.latency.note(waited);
        }
        self.tickets.complete((batch.first, batch.last), success);
        drop(self.sleep_lock.lock());
        self.served.notify_all();
    }

    /// Adds its live counters to a snapshot.
    pub(crate) fn stats(&self, out: &mut Stats) {
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ms = |counter: &AtomicU64| get(counter).div_ceil(1_000_000);
        blockwright_vfs::stat_lines! { out;
            gauge "checkpoint_merge", Switch, "a daemon merges requests for checkpoints" => u64::from(self.is_on());
            gauge "ckpt_merge_queued", Count, "requests that wait for the daemon's next checkpoint, or the one it writes" => self.tickets.waiting();
            counter "ckpt_merge_issued", Count, "checkpoints the daemon wrote" => get(&c.issued);
            counter "ckpt_merge_total", Count, "requests it served with them" => get(&c.total);
            gauge "ckpt_merge_cur_ms", Milliseconds, "how long the first request of its latest batch waited, rounded up" => ms(&c.latest_ns);
            gauge "ckpt_merge_peak_ms", Milliseconds, "the longest that any waited, rounded up" => ms(&c.peak_ns);
            histogram "ckpt_merge_latency_ns", Nanoseconds, "how long the first request of each batch waited" => c.latency.get();
            histogram "ckpt_merge_batch", Count, "requests a checkpoint served" => c.batch.get();
        }
    }
}

/// When the daemon ends for any reason, no caller is left waiting for it.
struct CloseOnExit<'a> {
    w: &'a Writer,
    merger: &'a Merger,
}

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        let merger = self.merger;
        merger.tickets.close();
        if let Some(batch) = merger.take() {
            // Only a panic leaves a batch behind.
            self.w
                .poison(&Error::new(ErrorKind::Poisoned, OP).detail("the daemon failed"));
            merger.complete(&batch, false);
        }
    }
}

/// Serves requests until the queue is closed.
fn run(checkpoints: &Checkpoints) {
    let Some(w) = &checkpoints.access.writer else {
        return;
    };
    let merger = &checkpoints.merger;
    let _close = CloseOnExit { w, merger };
    let mut last = LastBatch::default();
    loop {
        merger.sleep(1, None);
        // In this order: no request is queued once it is closed.
        let open = merger.tickets.is_open();
        if open && let Some((wanted, patience)) = last.patience() {
            merger.sleep(wanted, Some(patience));
        }
        merger.priority().adopt();
        let began = Instant::now();
        let served = checkpoints.write_checkpoint_for(w, CheckpointKind::Sync, || merger.take());
        if let Some((batch, result)) = served {
            merger.complete(&batch, result.is_ok());
            let cost = began.elapsed();
            last.cost = match last.cost.is_zero() {
                true => cost,
                false => (last.cost * 7 + cost) / 8,
            };
            last.expected = batch.count() + merger.tickets.waiting();
            last.ended = Some(Instant::now());
        }
        if !open {
            return;
        }
    }
}
