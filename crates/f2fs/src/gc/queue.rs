//! The queue of writers that wait for room, in the order they came.
//!
//! One of them, or the background thread, *attends* to the queue: it makes room and [`serves`](Attending::serve) waiters
//! first come, first served. A served waiter continues whatever becomes of the room meanwhile; it need not get a lock
//! or a CPU in time while others wait behind it. No writer passes the queue: newcomers stand behind a waiter,
//! because they would otherwise use up the room made for it.
//!
//! # Invariants
//! * While the queue is not empty, a thread attends to it, or all waiters have been woken and the first to run will attend.
//! * Tickets are served in their order.
//!
//! # Locks
//! `state`, a leaf, for a moment.

use blockwright_device::sim::turns::Moment;
use blockwright_vfs::locks::{Condvar, Mutex, Rank};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// See the module's head.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// How many wait: a look without the lock.
    length: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiter>,
    /// Tickets that were handed out.
    tickets: u64,
    attended: bool,
}

struct Waiter {
    bytes: u64,
    since: Moment,
}

impl State {
    /// Tickets below this were served.
    fn served(&self) -> u64 {
        self.tickets - self.waiting.len() as u64
    }
}

/// A place in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuePlace(u64);

/// The waiter that came first.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) bytes: u64,
    pub(super) waited: Duration,
}

/// The right, and the duty, to make room. It passes to others when this goes.
pub(super) struct Attending<'a>(&'a Queue);

impl Default for Queue {
    fn default() -> Self {
        Queue {
            state: Mutex::new(Rank::Leaf, State::default()),
            changed: Condvar::new(),
            length: AtomicUsize::new(0),
        }
    }
}

impl Queue {
    /// Whether the queue was empty a moment ago.
    pub(super) fn is_empty(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
    }

    /// Stands behind all others, for room for this many bytes. [`Queue::wait`] follows.
    pub(super) fn join(&self, bytes: u64) -> QueuePlace {
        let mut state = self.state.lock();
        state.waiting.push_back(Waiter {
            bytes,
            since: Moment::now(),
        });
        state.tickets += 1;
        self.length.store(state.waiting.len(), Ordering::Release);
        QueuePlace(state.tickets - 1)
    }

    /// Waits until a ticket is served (`None`), or it falls to the caller to attend.
    pub(super) fn wait(&self, ticket: QueuePlace) -> Option<Attending<'_>> {
        let mut state = self.state.lock();
        loop {
            if ticket.0 < state.served() {
                return None;
            }
            if !state.attended {
                state.attended = true;
                return Some(Attending(self));
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits until no other thread attends.
    pub(super) fn attend(&self) -> Attending<'_> {
        let mut state = self.state.lock();
        while state.attended {
            self.changed.wait(&mut state);
        }
        state.attended = true;
        Attending(self)
    }
}

impl Attending<'_> {
    /// Serves the waiters that there is room for, and returns how many. `suffices` is asked with the bytes that they want together.
    pub(super) fn serve(&self, mut suffices: impl FnMut(u64) -> bool) -> usize {
        let mut bytes: u64 = 0;
        let mut count = 0;
        // Without the lock: only the attending thread takes from the front.
        while let Some(first) = self.first() {
            bytes = bytes.saturating_add(first.bytes);
            if !suffices(bytes) {
                break;
            }
            self.take(1);
            count += 1;
        }
        count
    }

    /// Whether a ticket was served.
    pub(super) fn is_served(&self, ticket: QueuePlace) -> bool {
        ticket.0 < self.0.state.lock().served()
    }

    /// Serves all callers, with room or without: no more room can be made.
    pub(super) fn let_go(&self) {
        self.take(usize::MAX);
    }

    fn take(&self, count: usize) {
        let mut state = self.0.state.lock();
        let count = count.min(state.waiting.len());
        state.waiting.drain(..count);
        self.0.length.store(state.waiting.len(), Ordering::Release);
        drop(state);
        self.0.changed.notify_all();
    }

    /// The waiter that came first.
    pub(super) fn first(&self) -> Option<First> {
        let state = self.0.state.lock();
        state.waiting.front().map(|w| First {
            bytes: w.bytes,
            waited: w.since.elapsed(),
        })
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.state.lock().attended = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    #[test]
    fn the_first_attends_and_all_are_served_in_order() {
        let queue = Arc::new(Queue::default());
        let first = queue.join(1);
        let attending = queue.wait(first).expect("no other thread attends");
        let (tell, told) = mpsc::channel();
        for n in 0..5u64 {
            let (queue, tell) = (Arc::clone(&queue), tell.clone());
            let ticket = queue.join(10);
            assert_eq!(ticket, QueuePlace(n + 1));
            std::thread::spawn(move || {
                assert!(queue.wait(ticket).is_none());
                tell.send(ticket).expect("a receiver");
            });
        }
        assert!(!queue.is_empty());
        // Room for the first three: 1, 11, 21 bytes.
        assert_eq!(attending.serve(|bytes| bytes <= 21), 3);
        assert!(attending.is_served(first));
        let mut served: Vec<QueuePlace> = (0..2).map(|_| told.recv().expect("served")).collect();
        served.sort_by_key(|t| t.0);
        assert_eq!(served, [QueuePlace(1), QueuePlace(2)]);
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        // Waiters behind one that cannot be served are not served either.
        assert_eq!(attending.serve(|bytes| bytes < 10), 0);
        assert_eq!(attending.first().expect("three wait").bytes, 10);
        attending.let_go();
        for _ in 0..3 {
            told.recv().expect("served");
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn who_stops_attending_leaves_it_to_another() {
        let queue = Arc::new(Queue::default());
        let background = queue.attend();
        let ticket = queue.join(1);
        let theirs = Arc::clone(&queue);
        let waiter = std::thread::spawn(move || {
            let attending = theirs.wait(ticket).expect("it was left to it");
            assert_eq!(attending.serve(|_| true), 1);
            assert!(attending.is_served(ticket));
        });
        std::thread::sleep(Duration::from_millis(20));
        drop(background);
        waiter.join().expect("a thread");
        assert!(queue.is_empty());
        drop(queue.attend());
    }

    /// Room is made for one at a time, and all waiters come back at once: no wake-up is lost, and tickets are served in order.
    #[test]
    fn many_come_and_go() {
        const THREADS: u64 = 6;
        const ROUNDS: u64 = 500;
        let queue = Arc::new(Queue::default());
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || {
                    for _ in 0..ROUNDS {
                        let ticket = queue.join(1);
                        while let Some(attending) = queue.wait(ticket) {
                            // Its own ticket is among them, or an earlier one.
                            assert_eq!(attending.serve(|bytes| bytes <= 1), 1);
                            if attending.is_served(ticket) {
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().expect("a thread");
        }
        assert!(queue.is_empty());
        assert_eq!(queue.state.lock().served(), THREADS * ROUNDS);
    }
}
