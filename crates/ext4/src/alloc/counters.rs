//! What allocation for files did, in numbers. The parts are per thread and relaxed: cheap enough to
//! count always, and not exact against each other while work is going on.

use blockwright_device::metrics::{Counter, Distribution, Histogram};
use blockwright_vfs::stats::Stats;

/// Totals since the mount.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AllocSnapshot {
    /// Preallocations made (a run taken beyond a request; what lies before and behind counts as two).
    pub pas_made: u64,
    /// Blocks in them.
    pub pa_blocks_made: u64,
    /// Requests served from preallocated blocks, locality areas included.
    pub pas_used: u64,
    /// Blocks these got.
    pub pa_blocks_used: u64,
    /// Preallocations given up unused: on close, truncation, eviction, lack of space, trimming.
    pub pas_discarded: u64,
    /// Blocks in them.
    pub pa_blocks_discarded: u64,
    /// Blocks in preallocations now.
    pub pa_blocks_now: u64,
    /// Requests by size in blocks, as files made them.
    pub request_blocks: Distribution,
    /// Runs by size in blocks, as files got them.
    pub result_blocks: Distribution,
}

#[derive(Debug, Default)]
pub(crate) struct AllocCounters {
    made: Counter,
    made_blocks: Counter,
    used: Counter,
    used_blocks: Counter,
    discarded: Counter,
    discarded_blocks: Counter,
    requests: Histogram,
    results: Histogram,
}

impl AllocCounters {
    pub(crate) fn pa_made(&self, len: u32) {
        self.made.add(1);
        self.made_blocks.add(u64::from(len));
    }

    pub(crate) fn pa_used(&self, len: u32) {
        self.used.add(1);
        self.used_blocks.add(u64::from(len));
    }

    pub(crate) fn pa_discarded(&self, len: u32) {
        self.discarded.add(1);
        self.discarded_blocks.add(u64::from(len));
    }

    pub(crate) fn request(&self, len: u32) {
        self.requests.note(u64::from(len));
    }

    pub(crate) fn result(&self, len: u32) {
        self.results.note(u64::from(len));
    }

    pub(crate) fn snapshot(&self, pa_blocks_now: u64) -> AllocSnapshot {
        AllocSnapshot {
            pas_made: self.made.get(),
            pa_blocks_made: self.made_blocks.get(),
            pas_used: self.used.get(),
            pa_blocks_used: self.used_blocks.get(),
            pas_discarded: self.discarded.get(),
            pa_blocks_discarded: self.discarded_blocks.get(),
            pa_blocks_now,
            request_blocks: self.requests.get(),
            result_blocks: self.results.get(),
        }
    }

    pub(crate) fn stats(&self, out: &mut Stats) {
        let all = self.snapshot(0);
        blockwright_vfs::stat_lines! { out;
            counter "pa_made", Count, "preallocations made" => all.pas_made;
            counter "pa_used", Count, "requests served from preallocations, locality areas included" => all.pas_used;
            counter "pa_discarded", Count, "preallocations given up: on close, truncation, eviction, lack of space" => all.pas_discarded;
            counter "pa_made_blocks", Blocks, "blocks in preallocations made" => all.pa_blocks_made;
            counter "pa_used_blocks", Blocks, "blocks that files got from preallocations" => all.pa_blocks_used;
            counter "pa_discarded_blocks", Blocks, "blocks in preallocations given up" => all.pa_blocks_discarded;
            histogram "alloc_request_blocks", Blocks, "what files asked for, by request" => all.request_blocks;
            histogram "alloc_result_blocks", Blocks, "what files got, by run" => all.result_blocks;
        }
    }
}
