//! Room that removed files still have: their blocks become free when they leave memory.
//!
//! The thread that drops the last reference to a removed file frees its blocks. Mostly that is the thread that removes it. While writeback
//! (the flusher, or a sync of the volume) writes a file it has a reference, too, and frees the blocks after the removal has returned. A write, or a
//! new name, that finds no room waits for that.
//!
//! # Locks
//! None but leaves. The caller may hold locks of other files, and the flusher may wait for these: so the wait has a limit.

use crate::core::Core;
use crate::error::{ErrorKind, Result};
use blockwright_device::sim::turns;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long an operation waits for removed files to leave memory.
const PATIENCE: Duration = Duration::from_secs(2);

impl Core {
    /// Makes the blocks of files that were removed before usable: waits until these files have left memory, and commits. For a caller that found no
    /// room, without a handle of the engine. Whether trying again makes sense.
    pub(crate) fn reclaim_removed(&self) -> bool {
        self.wait_for_removed();
        self.engine.commit_freed().is_ok()
    }

    /// Runs an operation of the engine; once more where it found no room and room may have come free. Without room the operation changes nothing, and
    /// the caller has no handle of the engine.
    ///
    /// # Errors
    /// The operation's.
    pub(crate) fn with_room<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        match operation() {
            Err(e) if e.kind() == ErrorKind::NoSpace && self.reclaim_removed() => operation(),
            result => result,
        }
    }

    /// Waits until no removed file is about to free its blocks: none that writeback has, and none that another thread evicts. Ends without that
    /// when it takes long.
    fn wait_for_removed(&self) {
        // Threads that take turns evict in their own turns, and have no flusher.
        if turns::takes_turns() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let seen = self.flusher.cleaned.load(Ordering::SeqCst);
            let held = self.flusher.holds_removed();
            if !held && !self.inodes.is_evicting() {
                return;
            }
            if held {
                self.flusher.let_go.store(true, Ordering::SeqCst);
                self.kick_flusher();
            }
            self.flusher.wait_progress(seen);
        }
    }
}
