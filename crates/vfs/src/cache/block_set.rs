//! A set of blocks of a file, as ranges: which pages are dirty, or on their way; in an engine, which blocks wait for a place.
//!
//! A bit per unit, in pieces of 1024 that are ordered by place. For byte offsets the unit is a KiB, the smallest block. Scattered blocks are what makes such sets large,
//! and then a piece holds several; a stream sets whole words. Pieces lie outside of the ordered map, whose nodes have room for eleven: a small file
//! would have one piece and the room of ten. A set that became empty keeps nothing. Ranges given are of whole units, or are widened to
//! such in questions. Adjacent blocks count as one range.

use std::collections::BTreeMap;
use std::ops::Range;

const WORDS: usize = 16;
/// Units in a piece.
const PIECE: u64 = WORDS as u64 * 64;

type Piece = [u64; WORDS];

/// See the module's head. `UNIT`: what a bit stands for.
#[derive(Default, Debug, Clone)]
pub struct BlockSet<const UNIT: u64> {
    /// By number; none is empty.
    pieces: BTreeMap<u64, Box<Piece>>,
    units: u64,
}

/// The word of a piece and the bits of it that lie in `units`, one word after another.
fn masks(piece: u64, units: &Range<u64>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let base = piece * PIECE;
    let from = units.start.max(base) - base;
    let to = units.end.min(base + PIECE).saturating_sub(base);
    let words = if from < to {
        (from / 64) as usize..(to - 1) as usize / 64 + 1
    } else {
        0..0
    };
    words.map(move |word| {
        let low = from.saturating_sub(word as u64 * 64).min(64);
        let high = (to - word as u64 * 64).min(64);
        (word, ones(high) & !ones(low))
    })
}

/// So many low bits.
fn ones(n: u64) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// The first bit of a piece at or behind `from` that is `set`, or not.
fn next_in(piece: &Piece, from: u64, set: bool) -> Option<u64> {
    let mut mask = !ones(from % 64);
    for (word, bits) in piece.iter().enumerate().skip((from / 64) as usize) {
        let found = if set { *bits } else { !bits } & mask;
        if found != 0 {
            return Some(word as u64 * 64 + u64::from(found.trailing_zeros()));
        }
        mask = u64::MAX;
    }
    None
}

impl<const UNIT: u64> BlockSet<UNIT> {
    /// The units that a range touches.
    fn units(range: &Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        range.start / UNIT..(range.end - 1) / UNIT + 1
    }

    /// How much is in the set.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.units * UNIT
    }

    /// How many pieces of memory hold it, each for a stretch of 1024 units.
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// From the first to behind the last; `None` when nothing is in the set.
    #[must_use]
    pub fn bounds(&self) -> Option<Range<u64>> {
        let (first, low) = self.pieces.first_key_value()?;
        let (last, high) = self.pieces.last_key_value()?;
        let start = first * PIECE + next_in(low, 0, true)?;
        let word = high.iter().rposition(|word| *word != 0)?;
        let end = last * PIECE + word as u64 * 64 + 64 - u64::from(high[word].leading_zeros());
        Some(start * UNIT..end * UNIT)
    }

    /// The stretch that continues from `at`, a multiple of the unit, if that is in the set.
    #[must_use]
    pub fn from(&self, at: u64) -> Option<Range<u64>> {
        self.contains(&(at..at.saturating_add(UNIT)))
            .then(|| self.first_in(at..u64::MAX, u64::MAX))?
    }

    /// Whether nothing is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units == 0
    }

    /// Adds a range; how much was not in the set before.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        debug_assert!(range.start.is_multiple_of(UNIT) && range.end.is_multiple_of(UNIT));
        let units = Self::units(&range);
        let mut added = 0;
        for number in units.start / PIECE..units.end.div_ceil(PIECE) {
            let piece = self.pieces.entry(number).or_default();
            for (word, mask) in masks(number, &units) {
                added += u64::from((mask & !piece[word]).count_ones());
                piece[word] |= mask;
            }
        }
        self.units += added;
        added * UNIT
    }

    /// Takes a range out; how much of it was in the set.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        debug_assert!(
            range.start.is_multiple_of(UNIT)
                && (range.end.is_multiple_of(UNIT) || range.end == u64::MAX)
        );
        let units = Self::units(&range);
        let last = units.end.div_ceil(PIECE);
        let (mut removed, mut number) = (0, units.start / PIECE);
        while number < last {
            let Some((&at, piece)) = self.pieces.range_mut(number..last).next() else {
                break;
            };
            for (word, mask) in masks(at, &units) {
                removed += u64::from((mask & piece[word]).count_ones());
                piece[word] &= !mask;
            }
            if piece.iter().all(|word| *word == 0) {
                self.pieces.remove(&at);
            }
            number = at + 1;
        }
        self.units -= removed;
        if self.pieces.is_empty() {
            // An emptied map keeps its last node.
            self.pieces = BTreeMap::new();
        }
        removed * UNIT
    }

    /// The first stretch of the set in the range, cut to the range. A stretch that is longer than `enough` may
    /// be cut anywhere behind them.
    #[must_use]
    pub fn first_in(&self, range: Range<u64>, enough: u64) -> Option<Range<u64>> {
        if self.units == 0 {
            return None;
        }
        let wanted = Self::units(&range);
        let (first, last) = (wanted.start / PIECE, wanted.end.div_ceil(PIECE));
        let mut pieces = self.pieces.range(first..last.max(first));
        let (mut number, mut piece, start) = loop {
            let (&number, piece) = pieces.next()?;
            let base = number * PIECE;
            if let Some(at) = next_in(piece, wanted.start.max(base) - base, true) {
                break (number, piece, base + at);
            }
        };
        if start >= wanted.end {
            return None;
        }
        let stop = wanted.end.min(start.saturating_add(enough.div_ceil(UNIT)));
        let mut at = start;
        let end = loop {
            let base = number * PIECE;
            if let Some(end) = next_in(piece, at - base, false) {
                break base + end;
            }
            at = base + PIECE;
            match pieces.next() {
                Some((&next, more)) if next == number + 1 && at < stop => {
                    (number, piece) = (next, more);
                }
                _ => break at,
            }
        };
        let end = end.min(wanted.end);
        Some((start * UNIT).max(range.start)..(end * UNIT).min(range.end))
    }

    /// Whether all of the range is in the set.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let units = Self::units(range);
        (units.start / PIECE..units.end.div_ceil(PIECE)).all(|number| {
            let piece = self.pieces.get(&number);
            piece.is_some_and(|p| masks(number, &units).all(|(word, mask)| !p[word] & mask == 0))
        })
    }

    /// Whether any of the range is in the set.
    #[must_use]
    pub fn intersects(&self, range: Range<u64>) -> bool {
        let units = Self::units(&range);
        let number = units.start / PIECE;
        if self.units == 0 || units.is_empty() {
            return false;
        }
        if units.end <= (number + 1) * PIECE {
            let piece = self.pieces.get(&number);
            return piece
                .is_some_and(|p| masks(number, &units).any(|(word, mask)| p[word] & mask != 0));
        }
        self.first_in(range, UNIT).is_some()
    }

    /// All stretches in the range, cut to it.
    #[must_use]
    pub fn overlapping(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        let mut at = range.start;
        while let Some(r) = self.first_in(at..range.end, u64::MAX) {
            at = r.end;
            out.push(r);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    const UNIT: u64 = 1 << 10;
    type BlockSet = super::BlockSet<UNIT>;

    fn total(ranges: &[Range<u64>]) -> u64 {
        ranges.iter().map(|r| r.end - r.start).sum()
    }

    #[test]
    fn agrees_with_a_bitmap() {
        // Two pieces and a bit, so that stretches cross from one to the next.
        const N: u64 = 2 * PIECE + 100;
        let mut rng = SmallRng::seed_from_u64(5);
        let mut set = BlockSet::default();
        let mut bits = vec![false; N as usize];
        for round in 0..4000 {
            let longest = if round % 3 == 0 { N } else { 70 };
            let a = rng.random_range(0..N);
            let b = rng.random_range(a..=(a + longest).min(N));
            let (ua, ub) = (a as usize, b as usize);
            let bytes = a * UNIT..b * UNIT;
            let have = bits[ua..ub].iter().filter(|b| **b).count() as u64 * UNIT;
            assert_eq!(set.contains(&bytes), have == (b - a) * UNIT);
            assert_eq!(set.intersects(bytes.clone()), have > 0);
            let inside = set.overlapping(bytes.clone());
            assert_eq!(total(&inside), have);
            assert!(inside.windows(2).all(|w| w[0].end < w[1].start), "merged");
            if rng.random_bool(0.5) {
                assert_eq!(set.insert(bytes.clone()), bytes.end - bytes.start - have);
                bits[ua..ub].fill(true);
            } else {
                assert_eq!(set.remove(bytes), have);
                bits[ua..ub].fill(false);
            }
            let all = set.overlapping(0..u64::MAX);
            assert!(all.windows(2).all(|w| w[0].end < w[1].start), "merged");
            assert_eq!(set.total(), total(&all));
            let ends = all.first().zip(all.last());
            assert_eq!(set.bounds(), ends.map(|(a, b)| a.start..b.end));
            assert!(set.pieces.values().all(|p| p.iter().any(|w| *w != 0)));
            let at = rng.random_range(0..N) as usize;
            let next = bits[at..].iter().position(|b| *b).map(|n| at + n);
            let end = next.map(|n| n + bits[n..].iter().take_while(|b| **b).count());
            let found = set.first_in(at as u64 * UNIT..u64::MAX, u64::MAX);
            let want = next.zip(end).map(|(s, e)| s as u64 * UNIT..e as u64 * UNIT);
            assert_eq!(found, want);
            let from = want.clone().filter(|w| w.start == at as u64 * UNIT);
            assert_eq!(set.from(at as u64 * UNIT), from);
            let some = set.first_in(at as u64 * UNIT..u64::MAX, 3 * UNIT);
            if let (Some(some), Some(all)) = (some, want) {
                let least = (3 * UNIT).min(all.end - all.start);
                assert!(some.start == all.start && some.end <= all.end);
                assert!(some.end - some.start >= least);
            }
        }
        set.remove(0..u64::MAX);
        assert!(set.is_empty() && set.pieces.is_empty());
    }

    #[test]
    fn far_and_unaligned_questions_are_answered() {
        let mut set = BlockSet::default();
        let far = (1 << 62) - 4096;
        set.insert(far..far + 4096);
        set.insert(4096..8192);
        assert_eq!(set.first_in(5000..6000, u64::MAX), Some(5000..6000));
        assert_eq!(
            set.first_in(8192..u64::MAX, u64::MAX),
            Some(far..far + 4096)
        );
        assert!(set.intersects(8191..8192) && !set.intersects(8192..8193));
        assert!(set.intersects(0..u64::MAX) && !set.intersects(9000..far));
        assert!(!set.intersects(4096..4096));
        assert_eq!(set.remove(0..u64::MAX), 8192);
    }
}
