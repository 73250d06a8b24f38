//! The journal's live counters, and what of it can be changed while it runs.
//!
//! All of it is relaxed atomics, so that reading statistics never waits for a commit. A new commit interval wakes the timer, and holds for the
//! running transaction.

use super::{Journal, Settings};
use blockwright_vfs::stats::Stats;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Settings that may change.
pub(super) struct Tuned {
    commit_interval_ms: AtomicU64,
    barrier: AtomicBool,
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl Tuned {
    pub(super) fn new(settings: &Settings) -> Self {
        Tuned {
            commit_interval_ms: AtomicU64::new(millis(settings.commit_interval)),
            barrier: AtomicBool::new(settings.barrier),
        }
    }

    pub(super) fn commit_interval(&self) -> Duration {
        Duration::from_millis(self.commit_interval_ms.load(Ordering::Relaxed))
    }

    pub(super) fn barrier(&self) -> bool {
        self.barrier.load(Ordering::Relaxed)
    }
}

impl Journal {
    /// Age at which the running transaction is committed.
    #[must_use]
    pub fn commit_interval(&self) -> Duration {
        self.shared.tuned.commit_interval()
    }

    /// Changes the age at which the running transaction is committed, of the one that runs, too.
    pub fn set_commit_interval(&self, interval: Duration) {
        let tuned = &self.shared.tuned;
        tuned
            .commit_interval_ms
            .store(millis(interval), Ordering::Relaxed);
        // Taken so that the timer does not miss the wake-up between looking and waiting.
        drop(self.shared.state.lock());
        self.shared.timer.notify_all();
    }

    /// Whether the device's cache is flushed around commits.
    #[must_use]
    pub fn barrier(&self) -> bool {
        self.shared.tuned.barrier()
    }

    /// Switches flushing around commits.
    pub fn set_barrier(&self, on: bool) {
        self.shared.tuned.barrier.store(on, Ordering::Relaxed);
    }

    /// Adds the live counters to a snapshot.
    pub fn stats(&self, out: &mut Stats) {
        let c = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        out.section("journal");
        blockwright_vfs::stat_lines! { out;
            counter "journal_commits", Count, "transactions committed" => get(&c.commits);
            counter "journal_fsyncs", Count, "requests to make a transaction durable" => get(&c.fsyncs);
            counter "journal_fsyncs_merged", Count, "of these, those served by another caller's commit" => get(&c.fsyncs_merged);
            counter "journal_flushes", Count, "flushes of the device's cache" => get(&c.flushes);
            counter "journal_flushes_merged", Count, "flushes saved because another one came after the data" => get(&c.flushes_merged);
            counter "journal_handles", Count, "operations that joined a transaction" => get(&c.handles);
            counter "journal_waits", Count, "operations that waited for a commit to take its blocks, or for room" => get(&c.waits);
            counter "journal_blocks_logged", Blocks, "blocks written to the log" => get(&c.blocks_logged);
            counter "journal_revokes", Count, "blocks revoked" => get(&c.revokes);
            counter "journal_checkpoints", Count, "times that logged blocks were written to their places" => get(&c.checkpoints);
            counter "journal_checkpoint_blocks", Blocks, "logged blocks written to their places" => get(&c.checkpoint_blocks);
            counter "journal_log_waits", Count, "commits that waited for room in the log" => get(&c.log_waits);
            gauge "journal_not_home_blocks", Blocks, "logged blocks that are not at their places yet" => self.shared.cache.checkpoint().len() as u64;
        }
    }

    /// The numbers of [`Journal::stats`].
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut out = Stats::new();
        self.stats(&mut out);
        out.numbers()
    }
}
