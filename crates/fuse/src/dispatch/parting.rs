//! Letting go of inodes and closing files, off the threads that read requests.
//!
//! What the kernel gives back last (FORGET, RELEASE) may cost much more than it takes to say so: the last reference to
//! an unlinked inode frees its blocks, the last writer's close discards preallocations. Nobody waits for either, so
//! both are left to one thread of its own. It collects for a moment before it begins: waking it costs more than most
//! of these jobs, and takes a CPU from whoever goes on working.
//!
//! # Invariants
//! The tables (`nodes`, `files`) are changed by whoever handles the request, at once: what waits here is out of
//! reach for later requests, and a LOOKUP of the same inode takes a reference of its own, before or after. So the
//! order among those that wait does not matter.
//! The queue is bounded ([`WAITING_MAX`]): beyond it, whoever comes does the work itself.
//! Before a request is refused for want of space, what waits here is done: it may be holding that space.
//!
//! # Locks
//! `state`, a leaf: nothing is dropped under it.

use super::files::OpenFile;
use blockwright_vfs::{InodeRef, Stats, Unit};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// So many wait at most.
const WAITING_MAX: usize = 4096;
/// With so many the thread begins at once.
const ENOUGH: usize = 256;
/// How long it collects.
const COLLECT: Duration = Duration::from_millis(3);

/// What is given back.
#[allow(dead_code)] // Held to be dropped.
pub(super) enum Parting {
    Node(InodeRef),
    File(Arc<OpenFile>),
}

#[derive(Default)]
struct State {
    waiting: Vec<Parting>,
    /// Taken by the thread, and not done yet.
    taken: usize,
    /// Somebody waits until all is done.
    hurry: bool,
    started: bool,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    /// What the thread has done, what had to be done by others, and how often the thread was woken.
    behind: AtomicU64,
    at_once: AtomicU64,
    batches: AtomicU64,
}

/// See the module's head. The thread starts when first needed and ends when this is dropped.
#[derive(Default)]
pub(super) struct Partings(Arc<Shared>);

impl Partings {
    /// Has something let go of soon.
    pub(super) fn add(&self, what: Parting) {
        let mut state = self.0.state.lock();
        if !state.started && !state.ended {
            state.started = true;
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("fuse-forget".to_owned());
            // Without the thread everybody works for himself.
            state.ended = thread.spawn(move || shared.run()).is_err();
        }
        if state.ended || state.waiting.len() >= WAITING_MAX {
            drop(state);
            self.0.at_once.fetch_add(1, Ordering::Relaxed);
            return drop(what);
        }
        state.waiting.push(what);
        let count = state.waiting.len();
        drop(state);
        if count == 1 || count == ENOUGH {
            self.0.work.notify_one();
        }
    }

    /// Waits until all that waited has been let go of, or for `limit`. Returns whether there was anything to wait for,
    /// and it is done.
    pub(super) fn drain(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.0.state.lock();
        if state.waiting.is_empty() && state.taken == 0 {
            return false;
        }
        state.hurry = true;
        self.0.work.notify_one();
        while !state.waiting.is_empty() || state.taken > 0 {
            if self.0.done.wait_until(&mut state, deadline).timed_out() {
                return state.waiting.is_empty() && state.taken == 0;
            }
        }
        true
    }

    /// No more is taken. What waits is still done; this waits for that for at most `limit`.
    pub(super) fn end(&self, limit: Duration) {
        self.0.state.lock().ended = true;
        self.0.work.notify_one();
        self.drain(limit);
    }

    /// Adds what it counts to a snapshot.
    pub(super) fn stats(&self, out: &mut Stats) {
        let count = |what: &AtomicU64| what.load(Ordering::Relaxed);
        out.counter(
            "fuse_let_go_behind",
            Unit::Count,
            "inodes and files that the kernel gave back, let go of by a thread of their own",
            count(&self.0.behind),
        );
        out.counter(
            "fuse_let_go_at_once",
            Unit::Count,
            "those let go of by the thread that read the request, because too many waited",
            count(&self.0.at_once),
        );
        out.counter(
            "fuse_let_go_batches",
            Unit::Count,
            "how often that thread found work",
            count(&self.0.batches),
        );
    }
}

impl Drop for Partings {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.work.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut batch = Vec::new();
        let mut state = self.state.lock();
        loop {
            while state.waiting.is_empty() && !state.ended {
                self.work.wait(&mut state);
            }
            let until = Instant::now() + COLLECT;
            while state.waiting.len() < ENOUGH && !state.ended && !state.hurry {
                if self.work.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            if state.waiting.is_empty() {
                // Ended, or somebody was in a hurry for nothing.
                state.hurry = false;
                if state.ended {
                    return;
                }
                continue;
            }
            std::mem::swap(&mut state.waiting, &mut batch);
            state.taken = batch.len();
            drop(state);
            self.batches.fetch_add(1, Ordering::Relaxed);
            self.behind.fetch_add(batch.len() as u64, Ordering::Relaxed);
            for one in batch.drain(..) {
                // What a panic leaves behind is at worst a leaked inode; the others must still be let go of.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(one)));
            }
            state = self.state.lock();
            state.taken = 0;
            if state.waiting.is_empty() {
                state.hurry = false;
                self.done.notify_all();
            }
        }
    }
}
