//! Releases inodes and closes files off the threads that read requests.
//!
//! A FORGET or RELEASE may cost much more than any other request: the last reference to an unlinked inode frees its blocks, and
//! the last writer's close discards preallocations. No client waits for either, so one thread does both. It collects for a
//! moment before it begins: waking it costs more than most of these jobs, and takes a CPU from a client.
//!
//! # Invariants
//! - The thread that handles the request changes the tables (`nodes`, `files`) at once, so later requests cannot reach what waits
//!   here. A LOOKUP of the same inode takes a reference of its own, before or after. So the order among waiting entries is free.
//! - The queue is bounded ([`WAITING_MAX`]). Beyond that the request's thread releases the inode itself.
//! - Before a request is refused for lack of space, the queue is drained: its entries may hold that space.
//!
//! # Locks
//! `state`, a leaf: nothing is dropped under it.

use super::files::OpenFile;
use blockwright_vfs::{InodeRef, Stats};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Entries that wait at most.
const WAITING_MAX: usize = 4096;
/// With this number of entries the thread begins at once.
const ENOUGH: usize = 256;
/// The time for which entries are collected before the thread begins.
const COLLECT: Duration = Duration::from_millis(3);

/// An entry of the queue.
#[allow(dead_code)] // Held to be dropped.
pub(super) enum Release {
    Node(InodeRef),
    File(Arc<OpenFile>),
}

#[derive(Default)]
struct State {
    waiting: Vec<Release>,
    /// Taken by the thread, and not done yet.
    taken: usize,
    /// A thread waits until all is done.
    hurry: bool,
    started: bool,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    /// Released by the thread, released by callers, and how often the thread was woken.
    behind: AtomicU64,
    at_once: AtomicU64,
    batches: AtomicU64,
}

/// See the module's head. The thread starts when first needed and ends when this is dropped.
#[derive(Default)]
pub(super) struct DeferredReleases(Arc<Shared>);

impl DeferredReleases {
    /// Queues an entry.
    pub(super) fn add(&self, what: Release) {
        let mut state = self.0.state.lock();
        if !state.started && !state.ended {
            state.started = true;
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("fuse-forget".to_owned());
            // Without the thread, every caller releases its own.
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

    /// Waits until all that waited has been released, or for `limit`. Returns whether there was anything to wait for,
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
        blockwright_vfs::stat_lines! { out;
            counter "fuse_released_behind", Count, "inodes and files that the kernel gave back, released by a thread of their own"
                => count(&self.0.behind);
            counter "fuse_released_at_once", Count, "those released by the thread that read the request, because too many waited"
                => count(&self.0.at_once);
            counter "fuse_released_batches", Count, "how often that thread found work" => count(&self.0.batches);
        }
    }
}

impl Drop for DeferredReleases {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.work.notify_one();
    }
}

impl Shared {
    /// The thread: waits for entries, collects for a moment, and releases them without a lock.
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
                // Ended, or a drain found nothing.
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
                // A panic leaks an inode at worst. The other entries must still be released.
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
