//! The threads of a session: one pool for everything that may wait.
//!
//! Its jobs are requests that wait for a device or a lock, the reading of `/dev/fuse`, and the dropping of pages in the kernel's cache.
//! A queue's thread of io_uring is not in the pool, because it never waits.
//!
//! A thread is started when a job comes and none is idle, up to a limit. Idle threads beyond those that are kept leave after a
//! while. A thread that waits for the kernel does not count against the limit: the kernel may in turn wait for a WRITE that needs
//! a thread.
//!
//! # Locks
//! One, a leaf. Jobs run outside it.

use crate::scheduling::limits::THREAD_IDLE_MAX;
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
    /// Threads that wait for the kernel, and jobs that will.
    blocked: usize,
    /// Threads that were started by [`Threads::begin`]. They come on top of `max` and of `keep`.
    permanent: usize,
    ended: bool,
}

impl State {
    fn alive_max(&self, max: usize) -> usize {
        max + self.blocked + self.permanent
    }
}

/// See the module's head.
pub(crate) struct Threads {
    keep: usize,
    max: usize,
    state: Mutex<State>,
    work: Condvar,
    gone: Condvar,
}

impl Threads {
    /// At most `max` threads that are not blocked, `keep` of which stay when there is nothing to do.
    pub(crate) fn new(keep: usize, max: usize) -> Arc<Self> {
        let max = max.max(1);
        Arc::new(Threads {
            keep: keep.clamp(1, max),
            max,
            state: Mutex::default(),
            work: Condvar::new(),
            gone: Condvar::new(),
        })
    }

    /// Starts one more thread, beside those of the limit, which is there from now on: for a job that never ends, or for jobs that must
    /// not depend on the system to give a thread.
    ///
    /// # Errors
    /// When the system gives none.
    pub(crate) fn begin(self: &Arc<Self>) -> std::io::Result<()> {
        let mut state = self.state.lock();
        state.alive += 1;
        state.permanent += 1;
        drop(state);
        self.spawn()
            .inspect_err(|_| self.state.lock().permanent -= 1)
    }

    /// Starts a thread that is counted already.
    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let me = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("fuse-worker".to_owned())
            .spawn(move || me.work());
        match started {
            Ok(_) => Ok(()),
            Err(e) => {
                self.state.lock().alive -= 1;
                Err(e)
            }
        }
    }

    /// Has a thread of the pool do a job. The caller does it when no thread can be started.
    pub(crate) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        self.see_to(state);
    }

    /// As [`Threads::run`], for a job that waits for the kernel. It counts as blocked from now on, so it always gets a thread.
    pub(crate) fn run_blocked(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let me = Arc::clone(self);
        let mut state = self.state.lock();
        state.blocked += 1;
        state.jobs.push_back(Box::new(move || {
            let _unblock = Unblock(&me);
            job();
        }));
        self.see_to(state);
    }

    /// Waits for the kernel, which may need another thread meanwhile.
    pub(crate) fn while_blocked<R>(self: &Arc<Self>, wait: impl FnOnce() -> R) -> R {
        let mut state = self.state.lock();
        state.blocked += 1;
        self.see_to(state);
        let _unblock = Unblock(self);
        wait()
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
        if state.alive < state.alive_max(self.max) {
            state.alive += 1;
            drop(state);
            if self.spawn().is_ok() {
                return;
            }
            state = self.state.lock();
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
            if state.ended || state.alive > state.alive_max(self.max) {
                break;
            }
            state.idle += 1;
            let until = Instant::now() + THREAD_IDLE_MAX;
            let timed_out = self.work.wait_until(&mut state, until).timed_out();
            state.idle -= 1;
            let needed = self.keep + state.permanent;
            if timed_out && state.jobs.is_empty() && state.alive > needed {
                break;
            }
        }
        state.alive -= 1;
        if state.alive == 0 {
            self.gone.notify_all();
        }
    }

    /// How many threads there are.
    pub(crate) fn alive(&self) -> usize {
        self.state.lock().alive
    }

    /// How many threads there are at most, beside those that wait for the kernel.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Queued jobs are still done; then the threads leave.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.work.notify_all();
    }

    /// Waits until no thread is left, or for `limit`. Returns whether none is.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
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

/// The wait for the kernel is over when this is dropped.
struct Unblock<'a>(&'a Threads);

impl Drop for Unblock<'_> {
    fn drop(&mut self) {
        self.0.state.lock().blocked -= 1;
    }
}

/// Runs a job. If it panics, its request is answered when the reply's sink is dropped, and the thread continues.
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
        let threads = Threads::new(1, 2);
        let (done, results) = channel();
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for n in 0..10 {
            let (done, gate) = (done.clone(), gate.clone());
            threads.run(move || {
                let _ = gate.lock().recv_timeout(LONG);
                done.send(n).unwrap();
            });
        }
        assert_eq!(threads.alive(), 2);
        for _ in 0..10 {
            open.send(()).unwrap();
        }
        let mut all: Vec<i32> = (0..10)
            .map(|_| results.recv_timeout(LONG).unwrap())
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        threads.end();
        assert!(threads.wait(Some(LONG)));
    }

    #[test]
    fn a_blocked_thread_makes_room_and_panics_do_no_harm() {
        let threads = Threads::new(1, 1);
        let (done, results) = channel();
        let inner = Arc::clone(&threads);
        let from_outer = done.clone();
        threads.run(move || {
            let (tell, told) = channel();
            inner.run(move || tell.send(()).unwrap());
            // Only another thread can do the job that this one waits for.
            let helped = inner.while_blocked(|| told.recv_timeout(LONG).is_ok());
            from_outer.send(helped).unwrap();
        });
        assert!(results.recv_timeout(LONG).unwrap());
        threads.run(|| panic!("expected by the test"));
        threads.run(move || done.send(true).unwrap());
        assert!(results.recv_timeout(LONG).unwrap());
        threads.end();
        assert!(threads.wait(Some(LONG)));
    }

    /// Reading `/dev/fuse` never ends, and a queue's thread hands over all that waits.
    #[test]
    fn a_job_that_never_ends_takes_no_thread_from_the_others() {
        let threads = Threads::new(1, 1);
        threads.begin().unwrap();
        let (end, ended) = channel::<()>();
        threads.run(move || {
            let _ = ended.recv();
        });
        threads.begin().unwrap();
        let (done, results) = channel();
        for _ in 0..3 {
            let done = done.clone();
            threads.run(move || done.send(()).unwrap());
            results
                .recv_timeout(LONG)
                .expect("beside the one that never ends");
            // It goes idle, and must not leave.
            std::thread::sleep(Duration::from_millis(5));
            assert!(threads.alive() >= 2);
        }
        drop(end);
        threads.end();
        assert!(threads.wait(Some(LONG)));
    }

    #[test]
    fn jobs_that_wait_for_the_kernel_always_get_a_thread() {
        let threads = Threads::new(1, 1);
        let (open, gate) = channel::<()>();
        threads.run(move || {
            let _ = gate.recv_timeout(LONG);
        });
        let (done, results) = channel();
        let together = Arc::new(std::sync::Barrier::new(3));
        for _ in 0..3 {
            let (done, together) = (done.clone(), Arc::clone(&together));
            threads.run_blocked(move || {
                together.wait();
                done.send(()).unwrap();
            });
        }
        for _ in 0..3 {
            results.recv_timeout(LONG).expect("three beside the first");
        }
        open.send(()).unwrap();
        threads.end();
        assert!(threads.wait(Some(LONG)));
        assert_eq!(threads.state.lock().blocked, 0);
    }
}
