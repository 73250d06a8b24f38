//! A set of disjoint, non-adjacent ranges of block numbers. No I/O, no locks.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of `u64`, kept sorted, merged and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// start → end (exclusive).
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of members.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// From the first member to behind the last; `None` when there is no member.
    #[must_use]
    pub fn bounds(&self) -> Option<Range<u64>> {
        let (start, _) = self.ranges.first_key_value()?;
        let (_, end) = self.ranges.last_key_value()?;
        Some(*start..*end)
    }

    /// Whether `at` is a member.
    #[must_use]
    pub fn contains(&self, at: u64) -> bool {
        self.range_at(at).is_some()
    }

    /// The range that holds `at`.
    #[must_use]
    pub fn range_at(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// The first range that starts at or after `at`.
    #[must_use]
    pub fn next_range(&self, at: u64) -> Option<Range<u64>> {
        self.ranges.range(at..).next().map(|(s, e)| *s..*e)
    }

    /// The parts of `range` that are members, in order.
    pub fn overlaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.range_at(range.start).map_or(range.start, |r| r.start);
        let Range { start, end } = range;
        self.ranges
            .range(first..end.max(first))
            .map(move |(s, e)| (*s).max(start)..(*e).min(end))
            .filter(|r| r.start < r.end)
    }

    /// Number of members in `range`.
    #[must_use]
    pub fn count(&self, range: Range<u64>) -> u64 {
        self.overlaps(range).map(|r| r.end - r.start).sum()
    }

    /// Whether `range` has no member.
    #[must_use]
    pub fn is_clear(&self, range: &Range<u64>) -> bool {
        let last = self.ranges.range(..range.end).next_back();
        last.is_none_or(|(_, end)| *end <= range.start)
    }

    /// Adds a range; returns how many of its members were new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.start >= range.end {
            return 0;
        }
        // Mostly nothing is there: one look tells.
        let last = self.ranges.range(..=range.end).next_back();
        if last.is_none_or(|(_, e)| *e < range.start) {
            self.ranges.insert(range.start, range.end);
            self.total += range.end - range.start;
            return range.end - range.start;
        }
        let had = self.count(range.clone());
        let (mut start, mut end) = (range.start, range.end);
        // Swallow every range that overlaps or touches.
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        let new = (range.end - range.start) - had;
        self.total += new;
        new
    }

    /// Removes a range; returns how many members it had.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let mut removed = 0;
        let parts: Vec<Range<u64>> = self.overlaps(range).collect();
        for part in parts {
            let Some(whole) = self.range_at(part.start) else {
                continue;
            };
            self.ranges.remove(&whole.start);
            if whole.start < part.start {
                self.ranges.insert(whole.start, part.start);
            }
            if part.end < whole.end {
                self.ranges.insert(part.end, whole.end);
            }
            removed += part.end - part.start;
        }
        self.total -= removed;
        removed
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(s, e)| *s..*e)
    }

    /// Removes everything; returns how many members there were.
    pub fn clear(&mut self) -> u64 {
        self.ranges.clear();
        std::mem::take(&mut self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_bit_array() {
        let mut set = RangeSet::new();
        let mut bits = [false; 64];
        let mut x = 12345u64;
        for _ in 0..5000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let a = (x >> 20) % 64;
            let b = a + (x >> 40) % (65 - a);
            if x >> 63 == 0 {
                let new = (a..b).filter(|i| !bits[*i as usize]).count() as u64;
                assert_eq!(set.insert(a..b), new);
                bits[a as usize..b as usize].fill(true);
            } else {
                let had = (a..b).filter(|i| bits[*i as usize]).count() as u64;
                assert_eq!(set.count(a..b), had);
                assert_eq!(set.remove(a..b), had);
                bits[a as usize..b as usize].fill(false);
            }
            assert_eq!(set.total(), bits.iter().filter(|b| **b).count() as u64);
            for i in 0..64 {
                assert_eq!(set.contains(i), bits[i as usize]);
            }
            let ranges: Vec<_> = set.iter().collect();
            assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
        }
    }
}
