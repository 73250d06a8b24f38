//! Waiting for an operation that was started.
//!
//! The waiting thread also does what a write leaves to do when the device is done, because it is awake for it anyway. An operation that is
//! dropped without an outcome fails, so that its caller never waits for ever.
//!
//! # Locks
//! The state, a leaf. It is not held while the rest of a write is done.

use super::Done;
use super::completion::{CompletedWrite, Finishes};
use crate::error::{Error, ErrorKind, Result};
use crate::locks::{Condvar, Mutex, Rank};
use std::sync::Arc;

enum State<T> {
    InFlight,
    /// The device has the data; the waiting thread does the rest.
    Completed(CompletedWrite),
    Done(Result<T>),
}

/// An operation that one thread waits for. That thread does the work of a write that is left when the device
/// is done.
pub(crate) struct Waiter<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T: Send + 'static> Waiter<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Waiter {
            state: Mutex::new(Rank::Leaf, State::InFlight),
            changed: Condvar::new(),
        })
    }

    fn set(&self, state: State<T>) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    /// Gets the outcome.
    pub(crate) fn done(self: &Arc<Self>) -> Done<T> {
        /// An operation that is dropped untold, because the volume goes down, has failed.
        struct Teller<T: Send + 'static>(Option<Arc<Waiter<T>>>);
        impl<T: Send + 'static> Drop for Teller<T> {
            fn drop(&mut self) {
                if let Some(waiter) = self.0.take() {
                    let e = Error::new(ErrorKind::Io, "wait").detail("the operation was lost");
                    waiter.set(State::Done(Err(e)));
                }
            }
        }
        let mut teller = Teller(Some(Arc::clone(self)));
        Box::new(move |result| {
            if let Some(waiter) = teller.0.take() {
                waiter.set(State::Done(result));
            }
        })
    }

    /// Waits for the outcome.
    pub(crate) fn wait(&self) -> Result<T> {
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::InFlight) {
                State::InFlight => self.changed.wait(&mut state),
                State::Completed(write) => {
                    drop(state);
                    write.finish_here();
                    state = self.state.lock();
                }
                State::Done(result) => return result,
            }
        }
    }
}

impl<T: Send + 'static> Finishes for Waiter<T> {
    fn take(&self, write: CompletedWrite) -> Option<CompletedWrite> {
        self.set(State::Completed(write));
        None
    }
}
