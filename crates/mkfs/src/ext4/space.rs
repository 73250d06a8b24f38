//! Which blocks of a volume-to-be are taken: sorted runs, so that a volume of any size costs
//! memory only for what is on it.
//!
//! Allocation walks forward from a cursor through the gaps. When the volume is full it continues past
//! the end and counts what is missing, so that one planning pass finds how much larger the volume has
//! to be.

use blockwright_ondisk::ext4::BlockNo;
use std::collections::BTreeMap;

/// A run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub start: BlockNo,
    pub len: u64,
}

/// Taken and free blocks, in units of clusters (one block each without bigalloc).
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// start → end, disjoint, not touching each other, in clusters.
    taken: BTreeMap<u64, u64>,
    end: u64,
    cursor: u64,
    cluster_bits: u32,
    missing: u64,
    /// Runs are taken from gaps that hold them whole, where there is one near.
    whole: bool,
}

/// How many gaps are looked at for one that holds a run whole.
const PROBES: u32 = 64;

impl Space {
    pub fn new(blocks: u64, cluster_bits: u32) -> Self {
        Space {
            taken: BTreeMap::new(),
            end: blocks.div_ceil(1 << cluster_bits),
            cursor: 0,
            cluster_bits,
            missing: 0,
            whole: false,
        }
    }

    /// Marks a run as taken; clusters that are taken already stay so.
    pub fn mark(&mut self, start: BlockNo, len: u64) {
        if len == 0 {
            return;
        }
        let first = start.0 >> self.cluster_bits;
        let last = (start.0 + len - 1) >> self.cluster_bits;
        self.mark_clusters(first, last + 1);
    }

    fn mark_clusters(&mut self, mut start: u64, mut end: u64) {
        if let Some((&s, &e)) = self.taken.range(..=start).next_back()
            && e >= start
        {
            if e >= end {
                return;
            }
            start = s;
        }
        while let Some((&s, &e)) = self.taken.range(start..).next() {
            if s > end {
                break;
            }
            end = end.max(e);
            self.taken.remove(&s);
        }
        self.taken.insert(start, end);
    }

    /// Allocation starts looking here from now on.
    pub fn seek(&mut self, to: BlockNo) {
        self.cursor = to.0 >> self.cluster_bits;
    }

    /// The first gap at or after a cluster: (start, end). Past the end the gap is endless.
    fn gap(&self, from: u64) -> (u64, u64) {
        let mut start = from;
        if let Some((_, &e)) = self.taken.range(..=start).next_back() {
            start = start.max(e);
        }
        // Runs never touch, so one step over a run lands in a gap.
        match self.taken.range(start..).next() {
            Some((&s, _)) => (start, s),
            None => (start, u64::MAX >> self.cluster_bits),
        }
    }

    /// Takes the next free run of at most `blocks` (rounded up to clusters), wrapping around once
    /// when the end is reached.
    pub fn take(&mut self, blocks: u64) -> Run {
        let want = blocks.div_ceil(1 << self.cluster_bits).max(1);
        let (mut start, mut gap_end) = self.gap(self.cursor);
        if start >= self.end {
            let (s, e) = self.gap(0);
            if s < self.end {
                (start, gap_end) = (s, e);
            }
        }
        if start < self.end {
            gap_end = gap_end.min(self.end);
        }
        let len = want.min(gap_end - start);
        if start >= self.end {
            self.missing += len;
        }
        self.mark_clusters(start, start + len);
        self.cursor = start + len;
        Run {
            start: BlockNo(start << self.cluster_bits),
            len: len << self.cluster_bits,
        }
    }

    /// From now on, [`Space::take_run`] looks for gaps that hold a run whole. For spaces with gaps all over.
    pub fn prefer_whole(&mut self) {
        self.whole = true;
    }

    /// As [`Space::take`], for the blocks of a file: in one piece, if one of the next gaps or the free end has room for it, and that was asked for.
    pub fn take_run(&mut self, blocks: u64) -> Run {
        if !self.whole {
            return self.take(blocks);
        }
        let want = blocks.div_ceil(1 << self.cluster_bits).max(1);
        let last = self.taken.last_key_value().map_or(0, |(_, end)| *end);
        let mut at = self.cursor;
        let mut found = None;
        for probe in 0..PROBES {
            let (start, end) = self.gap(at);
            let end = end.min(self.end);
            if start >= end {
                break;
            }
            if end - start >= want {
                found = Some(start);
                break;
            }
            if probe == PROBES / 2 {
                // What has always been too small is not asked for ever.
                self.cursor = end;
            }
            at = end;
        }
        let room = self.end.saturating_sub(last) >= want;
        match found.or(room.then_some(last)) {
            Some(start) => {
                self.mark_clusters(start, start + want);
                Run {
                    start: BlockNo(start << self.cluster_bits),
                    len: want << self.cluster_bits,
                }
            }
            None => self.take(blocks),
        }
    }

    /// Takes these runs, if all of them are free. They may lie anywhere; those of one call must not overlap, and are not taken if they do.
    pub fn take_exactly(&mut self, runs: impl Iterator<Item = Run> + Clone) -> bool {
        let bits = self.cluster_bits;
        let clusters = |run: Run| (run.start.0 >> bits, (run.start.0 + run.len) >> bits);
        let mut sorted: Vec<(u64, u64)> = runs.map(clusters).collect();
        sorted.sort_unstable();
        let apart = sorted.windows(2).all(|two| two[0].1 <= two[1].0);
        let free = |&(start, end): &(u64, u64)| {
            let (found, gap_end) = self.gap(start);
            start < end && end <= self.end && found == start && gap_end >= end
        };
        if !apart || !sorted.iter().all(free) {
            return false;
        }
        for (start, end) in sorted {
            self.mark_clusters(start, end);
        }
        true
    }

    /// Takes one cluster and gives its first block.
    pub fn take_one(&mut self) -> BlockNo {
        self.take(1).start
    }

    /// Takes exactly `blocks` in one piece, at or after `from`. `None` when no gap is large enough.
    pub fn take_contiguous(&mut self, from: BlockNo, blocks: u64) -> Option<BlockNo> {
        let want = blocks.div_ceil(1 << self.cluster_bits).max(1);
        let mut at = from.0.div_ceil(1 << self.cluster_bits);
        loop {
            let (start, end) = self.gap(at);
            let end = end.min(self.end);
            if start >= self.end {
                return None;
            }
            if end - start >= want {
                self.mark_clusters(start, start + want);
                return Some(BlockNo(start << self.cluster_bits));
            }
            at = end;
        }
    }

    /// Clusters that were handed out past the end.
    pub fn missing_blocks(&self) -> u64 {
        self.missing << self.cluster_bits
    }

    /// Free blocks (a last, partial cluster counts in full).
    pub fn free_blocks(&self) -> u64 {
        let taken: u64 = self
            .taken
            .iter()
            .map(|(s, e)| e.min(&self.end).saturating_sub(*s))
            .sum();
        self.end.saturating_sub(taken) << self.cluster_bits
    }

    /// Taken clusters that lie in `start..end` (clusters), as runs cut to that range.
    pub fn taken_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self
            .taken
            .range(..start)
            .next_back()
            .map(|(s, e)| (*s, *e))
            .filter(move |(_, e)| *e > start);
        before
            .into_iter()
            .chain(self.taken.range(start..end).map(|(s, e)| (*s, *e)))
            .map(move |(s, e)| (s.max(start), e.min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_gaps_are_found() {
        let mut s = Space::new(100, 0);
        s.mark(BlockNo(0), 10);
        s.mark(BlockNo(20), 10);
        s.mark(BlockNo(10), 5);
        assert_eq!(
            s.taken.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(),
            [(0, 15), (20, 30)]
        );
        assert_eq!(
            s.take(3),
            Run {
                start: BlockNo(15),
                len: 3
            }
        );
        assert_eq!(
            s.take(30),
            Run {
                start: BlockNo(18),
                len: 2
            }
        );
        assert_eq!(
            s.take(30),
            Run {
                start: BlockNo(30),
                len: 30
            }
        );
        assert_eq!(s.take_contiguous(BlockNo(0), 40), Some(BlockNo(60)));
        assert_eq!(s.free_blocks(), 0);
        let past = s.take(7);
        assert_eq!(past.start, BlockNo(100));
        assert_eq!(s.missing_blocks(), 7);
    }

    #[test]
    fn exact_runs_and_whole_gaps() {
        let run = |start, len| Run {
            start: BlockNo(start),
            len,
        };
        let mut s = Space::new(1000, 0);
        s.mark(BlockNo(0), 10);
        assert!(s.take_exactly([run(20, 5), run(12, 2)].into_iter()));
        // Taken, past the end, empty, overlapping.
        assert!(!s.take_exactly([run(30, 5), run(9, 2)].into_iter()));
        assert!(!s.take_exactly([run(999, 2)].into_iter()));
        assert!(!s.take_exactly([run(40, 0)].into_iter()));
        assert!(!s.take_exactly([run(40, 5), run(44, 1)].into_iter()));
        assert!(!s.take_exactly([run(1 << 60, 5)].into_iter()));
        s.prefer_whole();
        assert_eq!(s.take_run(6), run(14, 6));
        assert_eq!(s.take_run(2), run(10, 2));
        assert_eq!(s.take_run(900), run(25, 900));
        assert_eq!(s.take_run(75), run(925, 75));
        // Nothing is lost when nothing holds it whole: past the end it is counted.
        assert_eq!(
            (s.free_blocks(), s.take_run(3).len, s.missing_blocks()),
            (0, 3, 3)
        );
        // Many gaps that are too small cost little, and stay for what fits.
        let mut s = Space::new(10_000, 0);
        for at in (0..8000).step_by(2) {
            s.mark(BlockNo(at), 1);
        }
        s.prefer_whole();
        assert_eq!(s.take_run(2), run(7999, 2));
        assert_eq!(s.take_run(2), run(8001, 2));
        assert!(s.take_run(1).start.0 < 200);
    }

    #[test]
    fn clusters_round_outwards() {
        let mut s = Space::new(160, 4);
        s.mark(BlockNo(1), 16);
        assert_eq!(
            s.take(1),
            Run {
                start: BlockNo(32),
                len: 16
            }
        );
        assert_eq!(s.free_blocks(), 160 - 48);
        assert_eq!(s.taken_in(1, 2).collect::<Vec<_>>(), [(1, 2)]);
    }

    #[test]
    fn allocation_wraps_to_gaps_before_the_cursor() {
        let mut s = Space::new(10, 0);
        s.seek(BlockNo(5));
        assert_eq!(
            s.take(100),
            Run {
                start: BlockNo(5),
                len: 5
            }
        );
        assert_eq!(
            s.take(100),
            Run {
                start: BlockNo(0),
                len: 5
            }
        );
        assert_eq!(s.missing_blocks(), 0);
    }
}
