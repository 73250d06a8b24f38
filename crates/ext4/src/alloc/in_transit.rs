//! Blocks in transit: a thread has taken them out of the maps of free blocks or out of a preallocation, and they are in neither.
//!
//! A caller with a reservation that finds no blocks waits for those in transit instead of giving up: when none are, all
//! free blocks are where a search can find them.
//!
//! # Locks
//! One of its own, a leaf, taken only when a thread waits. A waiter has nothing in transit and holds none of the locks that
//! the others need: no handle and no inode's `map`.

use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    /// Threads that may have blocks in transit.
    reaching: AtomicU64,
    /// How often blocks in transit have arrived.
    arrivals: AtomicU64,
    waiters: AtomicU64,
    lock: Mutex<()>,
    emptied: Condvar,
}

/// This thread may have blocks in transit until this is dropped.
pub(crate) struct TransitGuard<'a> {
    transit: &'a InTransit,
    carried: Cell<bool>,
}

impl TransitGuard<'_> {
    /// There are blocks in transit: a caller that did not find them may look again when they arrive.
    pub(crate) fn carries(&self) {
        self.carried.set(true);
    }
}

impl InTransit {
    /// To be called before blocks are taken out of where others can find them.
    pub(crate) fn hold(&self) -> TransitGuard<'_> {
        self.reaching.fetch_add(1, SeqCst);
        TransitGuard {
            transit: self,
            carried: Cell::new(false),
        }
    }

    /// How often blocks in transit have arrived so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(SeqCst)
    }

    /// Waits until blocks have arrived since [`InTransit::arrivals`] was `seen`. `false` when none are in transit and none
    /// arrived: looking again finds nothing that was not there before.
    pub(crate) fn wait(&self, seen: u64) -> bool {
        let mut guard = self.lock.lock();
        // Announced before the look: a thread whose blocks arrive after it sees the waiter.
        self.waiters.fetch_add(1, SeqCst);
        while self.arrivals() == seen && self.reaching.load(SeqCst) > 0 {
            self.emptied.wait(&mut guard);
        }
        self.waiters.fetch_sub(1, SeqCst);
        // Arrivals are counted before `reaching` falls, so that one of the two shows them.
        self.arrivals() != seen
    }
}

impl Drop for TransitGuard<'_> {
    fn drop(&mut self) {
        let transit = self.transit;
        if self.carried.get() {
            transit.arrivals.fetch_add(1, SeqCst);
        }
        transit.reaching.fetch_sub(1, SeqCst);
        if transit.waiters.load(SeqCst) > 0 {
            // The waiter has the lock from its announcement until it sleeps.
            drop(transit.lock.lock());
            transit.emptied.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn empty_transit_is_not_waited_for() {
        let transit = InTransit::default();
        let seen = transit.arrivals();
        assert!(!transit.wait(seen));
        drop(transit.hold());
        assert!(!transit.wait(seen), "there were no blocks");
        transit.hold().carries();
        assert!(transit.wait(seen), "blocks arrived meanwhile");
        assert!(!transit.wait(transit.arrivals()));
    }

    #[test]
    fn a_waiter_sees_what_arrived() {
        for _ in 0..200 {
            let transit = Arc::new(InTransit::default());
            let there = Arc::new(AtomicBool::new(false));
            let held = transit.hold();
            held.carries();
            let seen = transit.arrivals();
            let waiter = {
                let (transit, there) = (Arc::clone(&transit), Arc::clone(&there));
                std::thread::spawn(move || {
                    assert!(transit.wait(seen));
                    assert!(there.load(SeqCst));
                })
            };
            there.store(true, SeqCst);
            drop(held);
            waiter.join().expect("the waiter came back");
        }
    }
}
