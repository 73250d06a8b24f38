//! Blocks that a thread has in its hands: out of the maps of free blocks and in no preallocation yet, or no more.
//!
//! Whoever was promised blocks and finds none waits for these hands instead of giving up: when they are empty, all
//! that is free is where everybody can find it.
//!
//! # Locks
//! One of its own, a leaf, taken only when somebody waits. Who waits holds nothing in its hands and none of the locks that
//! those need who do: no handle and no inode's `map`.

use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Hands {
    /// Threads that may have blocks in their hands.
    reaching: AtomicU64,
    /// How often hands were emptied that had something in them.
    put_down: AtomicU64,
    waiters: AtomicU64,
    lock: Mutex<()>,
    emptied: Condvar,
}

/// Blocks may be in this thread's hands until this is dropped.
pub(crate) struct InHands<'a> {
    hands: &'a Hands,
    something: Cell<bool>,
}

impl InHands<'_> {
    /// Something was in them: whoever did not find it may look again when it is put down.
    pub(crate) fn something(&self) {
        self.something.set(true);
    }
}

impl Hands {
    /// To be called before blocks are taken out of where others can find them.
    pub(crate) fn hold(&self) -> InHands<'_> {
        self.reaching.fetch_add(1, SeqCst);
        InHands {
            hands: self,
            something: Cell::new(false),
        }
    }

    /// How often hands were emptied so far that had something in them.
    pub(crate) fn put_down(&self) -> u64 {
        self.put_down.load(SeqCst)
    }

    /// Waits until something was put down since [`Hands::put_down`] was `seen`. `false` when all hands are empty and nothing
    /// was: looking again finds nothing that was not there before.
    pub(crate) fn wait(&self, seen: u64) -> bool {
        let mut guard = self.lock.lock();
        // Announced before the look: who empties hands after it sees the waiter.
        self.waiters.fetch_add(1, SeqCst);
        while self.put_down() == seen && self.reaching.load(SeqCst) > 0 {
            self.emptied.wait(&mut guard);
        }
        self.waiters.fetch_sub(1, SeqCst);
        // Counted before they are empty, so that one of the two shows it.
        self.put_down() != seen
    }
}

impl Drop for InHands<'_> {
    fn drop(&mut self) {
        let hands = self.hands;
        if self.something.get() {
            hands.put_down.fetch_add(1, SeqCst);
        }
        hands.reaching.fetch_sub(1, SeqCst);
        if hands.waiters.load(SeqCst) > 0 {
            // The waiter has the lock from its announcement until it sleeps.
            drop(hands.lock.lock());
            hands.emptied.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn empty_hands_are_not_waited_for() {
        let hands = Hands::default();
        let seen = hands.put_down();
        assert!(!hands.wait(seen));
        drop(hands.hold());
        assert!(!hands.wait(seen), "nothing was in them");
        hands.hold().something();
        assert!(hands.wait(seen), "something was put down meanwhile");
        assert!(!hands.wait(hands.put_down()));
    }

    #[test]
    fn who_waits_sees_what_was_put_down() {
        for _ in 0..200 {
            let hands = Arc::new(Hands::default());
            let there = Arc::new(AtomicBool::new(false));
            let held = hands.hold();
            held.something();
            let seen = hands.put_down();
            let waiter = {
                let (hands, there) = (Arc::clone(&hands), Arc::clone(&there));
                std::thread::spawn(move || {
                    assert!(hands.wait(seen));
                    assert!(there.load(SeqCst));
                })
            };
            there.store(true, SeqCst);
            drop(held);
            waiter.join().expect("the waiter came back");
        }
    }
}
