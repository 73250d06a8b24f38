//! A set of byte offsets, or of block numbers, kept as disjoint, merged ranges.
//!
//! Its memory follows from the number of gaps, not from what is in it. For the engines: f2fs keeps the blocks that it has promised to cached data in
//! one, ext4's recovery the blocks that fast commits gain and lose. It has no lock; that of its owner guards it.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges; touching ones are merged.
#[derive(Default, Debug, Clone)]
pub struct RangeSet {
    /// Start → end.
    map: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// Whether nothing is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Adds a range; how many bytes were not in the set before.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        // The set is mostly empty: one comparison finds that.
        let last = self.map.range(..=range.end).next_back();
        if last.is_none_or(|(_, e)| *e < range.start) {
            self.map.insert(range.start, range.end);
            self.total += range.end - range.start;
            return range.end - range.start;
        }
        let before = self.total;
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.map.range(..=start).next_back()
            && e >= start
        {
            if e >= end {
                return 0;
            }
            start = s;
        }
        while let Some((&s, &e)) = self.map.range(start..=end).next() {
            self.map.remove(&s);
            self.total -= e - s;
            end = end.max(e);
        }
        self.map.insert(start, end);
        self.total += end - start;
        self.total - before
    }

    /// Takes a range out; the parts that were in the set.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        if range.is_empty() {
            return out;
        }
        let first = self
            .map
            .range(..=range.start)
            .next_back()
            .filter(|(_, e)| **e > range.start)
            .map_or(range.start, |(s, _)| *s);
        while let Some((&s, &e)) = self.map.range(first..range.end).next() {
            self.map.remove(&s);
            let cut = s.max(range.start)..e.min(range.end);
            if s < cut.start {
                self.map.insert(s, cut.start);
            }
            if cut.end < e {
                self.map.insert(cut.end, e);
            }
            self.total -= cut.end - cut.start;
            let last = cut.end >= range.end;
            // The left rest starts before `range.start`, so it is not found again below.
            if !cut.is_empty() {
                out.push(cut.clone());
            }
            if last {
                break;
            }
            if s < range.start {
                // Go on behind the left rest.
                out.extend(self.remove(cut.end..range.end));
                break;
            }
        }
        out
    }

    /// The first stretch in the set that overlaps `range`, cut to it.
    pub fn first_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        if let Some((_, &e)) = self.map.range(..=range.start).next_back()
            && e > range.start
        {
            return Some(range.start..e.min(range.end));
        }
        let (&s, &e) = self.map.range(range.start..range.end).next()?;
        Some(s..e.min(range.end))
    }

    /// Whether all of `range` is in the set.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let last = self.map.range(..=range.start).next_back();
        last.is_some_and(|(_, e)| *e >= range.end)
    }

    /// Whether any of `range` is in the set.
    #[must_use]
    pub fn intersects(&self, range: Range<u64>) -> bool {
        let last = self.map.range(..range.end).next_back();
        !range.is_empty() && last.is_some_and(|(_, e)| *e > range.start)
    }

    /// All stretches, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map.iter().map(|(s, e)| *s..*e)
    }

    /// All stretches that overlap `range`, cut to it.
    pub fn overlapping(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        let mut at = range.start;
        while let Some(r) = self.first_in(at..range.end) {
            at = r.end;
            out.push(r);
        }
        out
    }
}

/// How many bytes these ranges cover.
pub fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    #[test]
    fn agrees_with_a_bitmap() {
        let mut rng = SmallRng::seed_from_u64(5);
        let mut set = RangeSet::default();
        let mut bits = [false; 128];
        for _ in 0..5000 {
            let a = rng.random_range(0..128u64);
            let b = rng.random_range(a..=128);
            let (ua, ub) = (a as usize, b as usize);
            let have = bits[ua..ub].iter().filter(|b| **b).count() as u64;
            if rng.random_bool(0.5) {
                assert_eq!(set.insert(a..b), b - a - have);
                bits[ua..ub].fill(true);
            } else {
                let cut = set.remove(a..b);
                assert_eq!(total(&cut), have);
                assert!(cut.windows(2).all(|w| w[0].end < w[1].start));
                bits[ua..ub].fill(false);
            }
            let all = set.overlapping(0..128);
            assert!(all.windows(2).all(|w| w[0].end < w[1].start), "merged");
            assert_eq!(set.total, total(&all));
            assert!(set.iter().eq(all));
            for (i, bit) in bits.iter().enumerate() {
                let i = i as u64;
                assert_eq!(set.intersects(i..i + 1), *bit);
            }
        }
    }
}
