//! State that the flusher shares with the threads that start it, wake it and wait for it.
//!
//! Not responsible for what the flusher does: `flusher` is.
//!
//! # Locks
//! Leaves. `thread` is held while the flusher's thread is started, which takes no lock of the volume.

use crate::inode::Inode;
use crate::locks::{Condvar, Mutex, Rank};
use crate::types::Ino;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a writer trusts the flusher to get along before it cleans pages itself.
const PATIENCE: Duration = Duration::from_millis(20);

/// What the flusher shares with the threads that wake it.
pub(crate) struct Flusher {
    pub(crate) state: Mutex<FlusherState>,
    pub(super) wake: Condvar,
    progressed: Condvar,
    /// Goes up whenever pages were written, or a removed file has left memory.
    pub(super) cleaned: AtomicU64,
    /// Writers that wait for that.
    pub(super) waiters: AtomicU64,
    pub(super) running: AtomicBool,
    /// The inodes that writeback keeps in memory while its writes are in flight, and for how many threads.
    held: Mutex<BTreeMap<Ino, (Arc<Inode>, usize)>>,
    /// A thread waits for these inodes to leave memory.
    pub(crate) let_go: AtomicBool,
    /// The flusher runs, or must never run again.
    pub(super) started: AtomicBool,
    pub(super) thread: parking_lot::Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
pub(crate) struct FlusherState {
    pub(super) kicked: bool,
    pub(crate) stop: bool,
}

impl FlusherState {
    pub(super) fn replace_kick(&mut self) -> bool {
        std::mem::replace(&mut self.kicked, true)
    }
}

impl Flusher {
    pub(crate) fn new() -> Self {
        Flusher {
            state: Mutex::new(Rank::Leaf, FlusherState::default()),
            wake: Condvar::new(),
            progressed: Condvar::new(),
            cleaned: AtomicU64::new(0),
            waiters: AtomicU64::new(0),
            running: AtomicBool::new(false),
            held: Mutex::new(Rank::Leaf, BTreeMap::new()),
            let_go: AtomicBool::new(false),
            started: AtomicBool::new(false),
            thread: parking_lot::Mutex::new(None),
        }
    }

    /// Notes that writeback keeps this inode in memory.
    pub(super) fn hold(&self, inode: &Arc<Inode>) {
        let mut held = self.held.lock();
        held.entry(inode.ino()).or_insert((Arc::clone(inode), 0)).1 += 1;
    }

    /// Takes a note back, after the inode may have left memory.
    pub(super) fn release(&self, inodes: impl IntoIterator<Item = Ino>) {
        let mut gone = Vec::new();
        let mut held = self.held.lock();
        for ino in inodes {
            if let Some((_, threads)) = held.get_mut(&ino) {
                *threads -= 1;
                if *threads == 0 {
                    gone.extend(held.remove(&ino));
                }
            }
        }
        drop(held);
    }

    /// Whether writeback keeps a removed file in memory.
    pub(super) fn holds_removed(&self) -> bool {
        let held: Vec<_> = {
            let held = self.held.lock();
            held.values().map(|(inode, _)| Arc::clone(inode)).collect()
        };
        held.iter().any(|inode| inode.attr().nlink == 0)
    }

    /// Says that pages were written or dropped, to writers that wait for it.
    pub(super) fn progress(&self) {
        self.cleaned.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // A thread about to wait has the lock until it does.
            drop(self.state.lock());
            self.progressed.notify_all();
        }
    }

    /// Waits until pages were written since `seen`; whether that came to pass soon.
    pub(super) fn wait_progress(&self, seen: u64) -> bool {
        let mut state = self.state.lock();
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut late = false;
        while self.cleaned.load(Ordering::SeqCst) == seen && !late {
            late = self.progressed.wait_for(&mut state, PATIENCE);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        self.cleaned.load(Ordering::SeqCst) != seen
    }
}
