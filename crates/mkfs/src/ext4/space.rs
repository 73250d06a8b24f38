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
}

impl Space {
    pub fn new(blocks: u64, cluster_bits: u32) -> Self {
        Space {
            taken: BTreeMap::new(),
            end: blocks.div_ceil(1 << cluster_bits),
            cursor: 0,
            cluster_bits,
            missing: 0,
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
