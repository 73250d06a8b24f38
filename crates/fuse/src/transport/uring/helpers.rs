//! Threads for requests that wait, so that threads that read requests never do.
//!
//! A thread is started when a job comes and none is idle, up to a limit; idle ones beyond those that are
//! kept leave after a while. A thread that waits for the kernel, which may in turn wait for a WRITE that
//! needs a helper, does not count against the limit.
//!
//! Locks: one, a leaf; jobs run outside it.

use crate::scheduling::limits::HELPER_IDLE_MAX;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    alive: usize,
    idle: usize,
    blocked: usize,
    ended: bool,
}

/// See the module's head.
pub(crate) struct Helpers {
    keep: usize,
    max: usize,
    state: Mutex<State>,
    work: Condvar,
    gone: Condvar,
}

impl Helpers {
    /// At most `max` threads that are not blocked, `keep` of which stay when there is nothing to do.
    pub(crate) fn new(keep: usize, max: usize) -> Arc<Self> {
        let max = max.max(1);
        Arc::new(Helpers {
            keep: keep.min(max),
            max,
            state: Mutex::default(),
            work: Condvar::new(),
            gone: Condvar::new(),
        })
    }

    /// Starts the first thread. With one to keep at least there is always one from then on.
    ///
    /// # Errors
    /// When the system gives none.
    pub(super) fn begin(self: &Arc<Self>) -> std::io::Result<()> {
        self.state.lock().alive += 1;
        let me = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("fuse-helper".to_owned())
            .spawn(move || me.work());
        if let Err(e) = started {
            self.state.lock().alive -= 1;
            return Err(e);
        }
        Ok(())
    }

    /// Has a job done by some thread. It is done here when there is none to be had.
    pub(crate) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        self.see_to(state);
    }

    /// Wakes or starts a thread if there are jobs that no thread is about to take.
    fn see_to<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        if state.jobs.is_empty() {
            return;
        }
        if state.idle >= state.jobs.len() {
            self.work.notify_one();
            return;
        }
        if state.alive < self.max + state.blocked {
            state.alive += 1;
            drop(state);
            let me = Arc::clone(self);
            let started = std::thread::Builder::new()
                .name("fuse-helper".to_owned())
                .spawn(move || me.work());
            if started.is_ok() {
                return;
            }
            state = self.state.lock();
            state.alive -= 1;
        }
        if state.alive == 0
            && let Some(job) = state.jobs.pop_front()
        {
            drop(state);
            guarded(job);
        } else if state.idle > 0 {
            self.work.notify_one();
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                guarded(job);
                state = self.state.lock();
                continue;
            }
            if state.ended || state.alive > self.max + state.blocked {
                break;
            }
            state.idle += 1;
            let until = Instant::now() + HELPER_IDLE_MAX;
            let timed_out = self.work.wait_until(&mut state, until).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() && state.alive > self.keep {
                break;
            }
        }
        state.alive -= 1;
        if state.alive == 0 {
            self.gone.notify_all();
        }
    }

    /// The calling thread is about to wait for the kernel.
    pub(super) fn block(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.blocked += 1;
        self.see_to(state);
    }

    /// The wait is over.
    pub(super) fn unblock(&self) {
        self.state.lock().blocked -= 1;
    }

    /// How many threads there are.
    pub(super) fn alive(&self) -> usize {
        self.state.lock().alive
    }

    /// What is queued is still done; then the threads leave.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.work.notify_all();
    }

    /// Waits until no thread is left, or for `limit`. Returns whether none is.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state.lock();
        while state.alive > 0 {
            match deadline {
                None => self.gone.wait(&mut state),
                Some(at) => {
                    if self.gone.wait_until(&mut state, at).timed_out() {
                        return state.alive == 0;
                    }
                }
            }
        }
        true
    }
}

/// Runs a job. Should it panic, what it held answers for it (see `Ticket`), and the thread goes on.
fn guarded(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn jobs_are_done_by_as_many_threads_as_allowed() {
        let helpers = Helpers::new(1, 2);
        let (done, results) = channel();
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for n in 0..10 {
            let (done, gate) = (done.clone(), gate.clone());
            helpers.run(move || {
                let _ = gate.lock().recv_timeout(LONG);
                done.send(n).unwrap();
            });
        }
        assert_eq!(helpers.state.lock().alive, 2);
        for _ in 0..10 {
            open.send(()).unwrap();
        }
        let mut all: Vec<i32> = (0..10)
            .map(|_| results.recv_timeout(LONG).unwrap())
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        helpers.end();
        assert!(helpers.wait(Some(LONG)));
    }

    #[test]
    fn who_is_blocked_makes_room_and_panics_do_no_harm() {
        let helpers = Helpers::new(1, 1);
        let (done, results) = channel();
        let inner = Arc::clone(&helpers);
        let from_outer = done.clone();
        helpers.run(move || {
            let (tell, told) = channel();
            let innermost = Arc::clone(&inner);
            inner.run(move || {
                let _ = &innermost;
                tell.send(()).unwrap();
            });
            inner.block();
            // Only another thread can do the job that this one waits for.
            let helped = told.recv_timeout(LONG).is_ok();
            inner.unblock();
            from_outer.send(helped).unwrap();
        });
        assert!(results.recv_timeout(LONG).unwrap());
        helpers.run(|| panic!("expected by the test"));
        helpers.run(move || done.send(true).unwrap());
        assert!(results.recv_timeout(LONG).unwrap());
        helpers.end();
        assert!(helpers.wait(Some(LONG)));
    }
}
