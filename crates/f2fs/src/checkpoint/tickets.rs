//! The queue of requests for a checkpoint: a list without links.
//!
//! All requests want the same thing, so a request is its number. Asking is one compare-and-swap that hands out
//! the next number; it fails once the queue is closed. The server reads how far numbers have gone, does what they ask for
//! once, and publishes how far it got. That is arrival order, without a lock or an allocation.
//!
//! The word also says whether the server sleeps. So no request looks for the server without need, and no
//! wake-up is lost: the request that finds the server asleep clears the mark, and it alone wakes the server.
//!
//! Not responsible for: sleeping (`merge`).
//!
//! # Invariants
//! * No number is handed out after [`Tickets::close`], until [`Tickets::open`]. A caller that is refused serves itself.
//! * The server is asleep only as long as fewer requests wait than it asked to be woken for.
//! * There is one server at a time. Failures are permanent: a failed checkpoint poisons the volume, so a request failed if a
//!   batch that began at or before it did.
//!
//! tests/ticket_orders.rs runs this very file under loom.

// Behind a name of its own, so that the test can put loom's in its place.
use super::atomics::{AtomicU64, Ordering};

const OPEN: u64 = 1;
const ASLEEP: u64 = 2;
const ONE: u64 = 4;

/// See the module's head.
#[derive(Debug)]
pub struct Tickets {
    /// The last number handed out, whether the queue is open, whether the server sleeps.
    word: AtomicU64,
    /// The last number that was served.
    served: AtomicU64,
    /// The first number that was served with a failure.
    failed_from: AtomicU64,
}

/// A request's place in the queue.
#[derive(Debug)]
#[must_use = "a caller waits"]
pub struct Asked {
    /// Its number.
    pub ticket: u64,
    /// The server sleeps, and the caller that got this wakes it.
    pub wake: bool,
}

impl Tickets {
    /// An empty queue, closed.
    pub fn new() -> Self {
        Tickets {
            word: AtomicU64::new(0),
            served: AtomicU64::new(0),
            failed_from: AtomicU64::new(u64::MAX),
        }
    }

    fn update(&self, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut now = self.word.load(Ordering::Acquire);
        loop {
            let next = change(now).ok_or(now)?;
            match self
                .word
                .compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(now),
                Err(other) => now = other,
            }
        }
    }

    /// Queues a request; `None` when the queue is closed.
    pub fn ask(&self) -> Option<Asked> {
        let before = self
            .update(|w| (w & OPEN != 0).then_some((w & !ASLEEP) + ONE))
            .ok()?;
        Some(Asked {
            ticket: before / ONE + 1,
            wake: before & ASLEEP != 0,
        })
    }

    /// How a request went: `None` while it waits.
    pub fn outcome(&self, ticket: u64) -> Option<bool> {
        (self.served.load(Ordering::Acquire) >= ticket)
            .then(|| ticket < self.failed_from.load(Ordering::Acquire))
    }

    /// How many requests wait.
    pub fn waiting(&self) -> u64 {
        let served = self.served.load(Ordering::Acquire);
        (self.word.load(Ordering::Acquire) / ONE).saturating_sub(served)
    }

    /// Whether requests are taken.
    pub fn is_open(&self) -> bool {
        self.word.load(Ordering::Acquire) & OPEN != 0
    }

    // ---- the server ----

    /// The server is about to sleep until `wanted` requests wait. `false`: they do already, or the queue is closed.
    pub fn doze(&self, wanted: u64) -> bool {
        let served = self.served.load(Ordering::Acquire);
        self.update(|w| (w & OPEN != 0 && w / ONE - served < wanted).then_some(w | ASLEEP))
            .is_ok()
    }

    /// Whether the server has not been woken yet.
    pub fn is_asleep(&self) -> bool {
        self.word.load(Ordering::Acquire) & ASLEEP != 0
    }

    /// The server woke by itself.
    pub fn rouse(&self) {
        // Always applies.
        let _ = self.update(|w| Some(w & !ASLEEP));
    }

    /// All requests so far: the first and the last of them, `None` when there are none. The caller must do the requested
    /// work after this, and then call [`Tickets::complete`] with the last ticket.
    pub fn take(&self) -> Option<(u64, u64)> {
        let first = self.served.load(Ordering::Acquire) + 1;
        let last = self.word.load(Ordering::Acquire) / ONE;
        (first <= last).then_some((first, last))
    }

    /// Tells a batch how it went.
    pub fn complete(&self, (first, last): (u64, u64), success: bool) {
        if !success && first < self.failed_from.load(Ordering::Acquire) {
            self.failed_from.store(first, Ordering::Release);
        }
        self.served.store(last, Ordering::Release);
    }

    // ---- starting and stopping ----

    /// Takes requests from here on. There is a server.
    pub fn open(&self) {
        let _ = self.update(|w| Some(w | OPEN));
    }

    /// Takes no more requests; those that wait are served still. Whether the server is to be woken for it.
    pub fn close(&self) -> bool {
        let before = self.update(|w| Some(w & !(OPEN | ASLEEP)));
        before.is_ok_and(|w| w & ASLEEP != 0)
    }
}
