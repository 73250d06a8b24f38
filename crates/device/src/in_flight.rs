//! Requests in flight of one batch: how many there are, and the first error.

use crate::DeviceError;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

#[derive(Default)]
struct State {
    count: usize,
    failed: Option<DeviceError>,
}

/// Shared by the thread that submits and by the completions.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<(Mutex<State>, Condvar)>);

impl InFlight {
    /// Counts one more, as soon as there are fewer than `max`.
    pub fn begin(&self, max: usize) {
        let (lock, changed) = &*self.0;
        let mut state = lock.lock();
        while state.count >= max {
            changed.wait(&mut state);
        }
        state.count += 1;
    }

    /// One has ended.
    pub fn end(&self, result: Result<(), DeviceError>) {
        let (lock, changed) = &*self.0;
        let mut state = lock.lock();
        state.count -= 1;
        if let Err(error) = result {
            state.failed.get_or_insert(error);
        }
        changed.notify_all();
    }

    /// Whether a request that has ended failed, and its error was not returned yet.
    pub fn has_failed(&self) -> bool {
        self.0.0.lock().failed.is_some()
    }

    /// Waits until there are none.
    ///
    /// # Errors
    /// The first one since the last call.
    pub fn wait(&self) -> Result<(), DeviceError> {
        let (lock, changed) = &*self.0;
        let mut state = lock.lock();
        while state.count > 0 {
            changed.wait(&mut state);
        }
        state.failed.take().map_or(Ok(()), Err)
    }
}
