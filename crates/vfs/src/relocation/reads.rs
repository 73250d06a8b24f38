//! Reads of file data under way, for engines that move blocks.
//!
//! A read asks the engine where a block is, then the device for its bytes. If the block moves in between and its old place is
//! handed out, the read would show another file's data. So reads count themselves before they ask, until the device
//! has answered, and an engine waits for them ([`Reads::wait`]) before it hands out old places.
//!
//! Two generations of counters, or steady readers would keep the waiter forever: it waits for stragglers of the older one,
//! makes new readers count in that, and waits for the rest. A reader that the waiter missed counted itself after the waiter had
//! looked, so it asks the engine after the blocks moved, and gets the new place.
//!
//! # Locks
//! [`Reads::wait`] takes a leaf and waits for the device alone.

use blockwright_device::sim::turns;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// A counter on a cache line of its own, so that readers on several CPUs do not meet.
#[derive(Default)]
#[repr(align(64))]
struct Shard([AtomicU64; 2]);

/// Reads of file data under way.
#[derive(Default)]
pub(crate) struct Reads {
    shards: [Shard; SHARDS],
    generation: AtomicUsize,
    /// A thread waits: a reader that leaves looks whether to wake it.
    awaited: AtomicBool,
    waiter: Mutex<()>,
    /// One waiter at a time turns generations.
    turn: Mutex<()>,
    left: Condvar,
}

/// A read under way.
pub(crate) struct Reading {
    reads: Arc<Reads>,
    shard: usize,
    generation: usize,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let reads = &self.reads;
        reads.shards[self.shard].0[self.generation].fetch_sub(1, Ordering::SeqCst);
        // Either this sees the waiter, or the waiter, which says so before it looks, saw the new count.
        if reads.awaited.load(Ordering::SeqCst) {
            drop(reads.waiter.lock());
            reads.left.notify_all();
        }
    }
}

thread_local! {
    static SHARD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS
    };
}

impl Reads {
    /// Counts a read. Before the engine is asked where anything is.
    pub(crate) fn begin(self: &Arc<Self>) -> Reading {
        let shard = SHARD.with(|s| *s);
        let generation = self.generation.load(Ordering::SeqCst);
        self.shards[shard].0[generation].fetch_add(1, Ordering::SeqCst);
        Reading {
            reads: Arc::clone(self),
            shard,
            generation,
        }
    }

    fn is_empty(&self, generation: usize) -> bool {
        let mut counts = self
            .shards
            .iter()
            .map(|s| s.0[generation].load(Ordering::SeqCst));
        counts.all(|n| n == 0)
    }

    /// Waits for every read that got an address before this was called.
    pub(crate) fn wait(&self) {
        let _turn = loop {
            // A thread that takes turns with others waits for none of them.
            if !turns::takes_turns() {
                break self.turn.lock();
            }
            match self.turn.try_lock() {
                Some(turn) => break turn,
                None => turns::give_way(),
            }
        };
        let now = self.generation.load(Ordering::SeqCst);
        self.drain(1 - now);
        self.generation.store(1 - now, Ordering::SeqCst);
        self.drain(now);
    }

    fn drain(&self, generation: usize) {
        while turns::takes_turns() && !self.is_empty(generation) {
            turns::give_way();
        }
        if self.is_empty(generation) {
            return;
        }
        let mut guard = self.waiter.lock();
        self.awaited.store(true, Ordering::SeqCst);
        while !self.is_empty(generation) {
            self.left.wait(&mut guard);
        }
        self.awaited.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_waiter_waits_for_reads_that_began_before_and_for_no_others() {
        let reads = Arc::new(Reads::default());
        reads.wait();
        let turned = reads.generation.load(Ordering::SeqCst);
        let before = reads.begin();
        let (tell, told) = mpsc::channel();
        let theirs = Arc::clone(&reads);
        let waiter = std::thread::spawn(move || {
            theirs.wait();
            tell.send(()).unwrap();
        });
        // The waiter has turned the generation when it waits for `before`; later reads do not hold it up.
        while reads.generation.load(Ordering::SeqCst) == turned {
            std::thread::yield_now();
        }
        let later = reads.begin();
        assert!(told.try_recv().is_err());
        drop(before);
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        waiter.join().unwrap();
        drop(later);
        reads.wait();
    }

    #[test]
    fn steady_readers_and_waiters_come_to_an_end() {
        let reads = Arc::new(Reads::default());
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (reads, stop) = (Arc::clone(&reads), Arc::clone(&stop));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let first = reads.begin();
                        let second = reads.begin();
                        drop(first);
                        drop(second);
                    }
                })
            })
            .collect();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let reads = Arc::clone(&reads);
                std::thread::spawn(move || (0..200).for_each(|_| reads.wait()))
            })
            .collect();
        waiters.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|r| r.join().unwrap());
        assert!(reads.is_empty(0) && reads.is_empty(1));
    }
}
