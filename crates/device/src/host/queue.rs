//! The bounded queue between submitters and a back end's threads.
//!
//! A submitter blocks while the queue is full, except inside a completion: a completion that
//! submits and blocks would wait for the very thread it runs on.

use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::VecDeque;

thread_local! {
    static COMPLETING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a completion. Submissions made inside never block, and a panic of the completion ends
/// there (after the panic hook reported it) instead of taking the device's thread with it.
pub(super) fn completing(completion: impl FnOnce()) {
    let outer = COMPLETING.replace(true);
    let _reported_by_the_hook =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(completion)).is_err();
    COMPLETING.set(outer);
}

/// See the module's head.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    room: Condvar,
    items_max: usize,
}

pub(super) struct State<T> {
    pub(super) items: VecDeque<T>,
    /// The consumer sleeps, or (for a pool) how many do.
    pub(super) sleepers: usize,
    pub(super) closed: bool,
    waiters: usize,
}

impl<T> Queue<T> {
    pub(super) fn new(items_max: usize) -> Self {
        let items = VecDeque::new();
        let state = State {
            items,
            sleepers: 0,
            closed: false,
            waiters: 0,
        };
        Queue {
            state: Mutex::new(state),
            room: Condvar::new(),
            items_max,
        }
    }

    /// Adds an item and lets `then` look at the state under the same lock.
    pub(super) fn push<R>(&self, item: T, then: impl FnOnce(&mut State<T>) -> R) -> R {
        let mut state = self.state.lock();
        while state.items.len() >= self.items_max && !COMPLETING.get() {
            state.waiters += 1;
            self.room.wait(&mut state);
            state.waiters -= 1;
        }
        state.items.push_back(item);
        then(&mut state)
    }

    pub(super) fn lock(&self) -> parking_lot::MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// To be called after items were taken.
    pub(super) fn taken(&self, state: &State<T>) {
        if state.waiters > 0 && state.items.len() < self.items_max {
            self.room.notify_all();
        }
    }
}
