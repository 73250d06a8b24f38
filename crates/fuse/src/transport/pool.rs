//! How many workers there are, and when another is needed.
//!
//! Invariant: as long as the connection lives and the limit is not reached, at least one worker waits for
//! requests, so that no slow request delays another one.

use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct Counts {
    /// Workers that exist.
    alive: usize,
    /// Workers that wait for a request.
    idle: usize,
    /// Workers that wait for the kernel, which may in turn wait for a WRITE: they do not count
    /// against the limit, or all of them could wait for a worker that never comes.
    blocked: usize,
    /// The connection has ended.
    ended: bool,
}

/// The count of workers.
#[derive(Debug)]
pub(super) struct Pool {
    max: usize,
    counts: Mutex<Counts>,
    all_gone: Condvar,
}

impl Pool {
    pub(super) fn new(max: usize) -> Self {
        Pool {
            max: max.max(1),
            counts: Mutex::default(),
            all_gone: Condvar::new(),
        }
    }

    /// A worker will be started; it counts as idle from now on.
    pub(super) fn add(&self) {
        let mut counts = self.counts.lock();
        counts.alive += 1;
        counts.idle += 1;
    }

    /// An idle worker is no more.
    pub(super) fn remove(&self) {
        let mut counts = self.counts.lock();
        counts.alive -= 1;
        counts.idle -= 1;
        if counts.alive == 0 {
            self.all_gone.notify_all();
        }
    }

    /// A worker got a request. Returns whether another worker should be started, which is then counted
    /// already.
    pub(super) fn got_request(&self) -> bool {
        let mut counts = self.counts.lock();
        counts.idle -= 1;
        self.want_another(&mut counts)
    }

    /// A worker is through with its request. Returns whether it should go on.
    pub(super) fn finished_request(&self) -> bool {
        let mut counts = self.counts.lock();
        counts.idle += 1;
        counts.alive <= self.max + counts.blocked
    }

    /// A worker is about to wait for the kernel. Returns as [`Pool::got_request`].
    pub(super) fn block(&self) -> bool {
        let mut counts = self.counts.lock();
        counts.blocked += 1;
        self.want_another(&mut counts)
    }

    /// The wait for the kernel is over.
    pub(super) fn unblock(&self) {
        self.counts.lock().blocked -= 1;
    }

    /// The connection has ended: no more workers.
    pub(super) fn end(&self) {
        self.counts.lock().ended = true;
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.counts.lock().ended
    }

    /// Waits until no worker is left, or for `limit`. Returns whether none is.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut counts = self.counts.lock();
        while counts.alive > 0 {
            match deadline {
                None => self.all_gone.wait(&mut counts),
                Some(at) => {
                    if self.all_gone.wait_until(&mut counts, at).timed_out() {
                        return counts.alive == 0;
                    }
                }
            }
        }
        true
    }

    fn want_another(&self, counts: &mut Counts) -> bool {
        let want = counts.idle == 0 && !counts.ended && counts.alive < self.max + counts.blocked;
        if want {
            counts.alive += 1;
            counts.idle += 1;
        }
        want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_when_all_are_busy_and_shrinks_after_a_block() {
        let pool = Pool::new(2);
        pool.add();
        assert!(pool.got_request(), "the only worker is busy: a second one");
        assert!(!pool.got_request(), "the limit is reached");
        assert!(pool.block(), "a blocked worker makes room for one more");
        assert!(!pool.got_request());
        pool.unblock();
        assert!(
            !pool.finished_request(),
            "three alive, two allowed: this one goes"
        );
        pool.remove();
        assert!(pool.finished_request());
        assert!(pool.finished_request());
    }

    #[test]
    fn nobody_is_started_after_the_end() {
        let pool = Pool::new(4);
        pool.add();
        pool.end();
        assert!(!pool.got_request());
        assert!(!pool.wait(Some(Duration::from_millis(1))));
        pool.finished_request();
        pool.remove();
        assert!(pool.wait(None));
    }
}
