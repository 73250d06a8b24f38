//! Room that removed files still have: their blocks become free when they leave memory.
//!
//! The thread that drops the last reference to a removed file frees its blocks. Mostly that is the thread that removes it. While writeback
//! (the flusher, or a sync of the volume) writes a file it has a reference, too, and frees the blocks after the removal has returned. A write that
//! finds no room waits for that.
//!
//! # Locks
//! None but leaves. The caller may hold locks of other files, and the flusher may wait for these: so no thread waits here for long.

use crate::core::Core;
use blockwright_device::sim::turns;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a write waits for removed files to leave memory.
const PATIENCE: Duration = Duration::from_secs(2);

impl Core {
    /// Waits until no removed file is about to free its blocks: none that writeback has, and none that another thread evicts. Ends without that
    /// when it takes long. Whether there was one. The blocks may be unusable until the engine's next commit.
    pub(crate) fn wait_for_removed(&self) -> bool {
        // Threads that take turns evict in their own turns, and have no flusher.
        if turns::takes_turns() {
            return false;
        }
        let start = Instant::now();
        let mut waited = false;
        loop {
            let seen = self.flusher.cleaned.load(Ordering::SeqCst);
            let held = self.flusher.holds_removed();
            if !held && !self.inodes.is_evicting() || start.elapsed() > PATIENCE {
                return waited;
            }
            waited = true;
            if held {
                self.flusher.let_go.store(true, Ordering::SeqCst);
                self.kick_flusher();
            }
            self.flusher.wait_progress(seen);
        }
    }
}
