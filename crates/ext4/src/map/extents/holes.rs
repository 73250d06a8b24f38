//! Where a file surely has no extents: what spares scattered writes the walk down a tree.
//!
//! Known of files whose tree was empty while they were in memory: from there on every extent that is added is noted. A bit per block, by words, so
//! that the answer is one look into a hash table. Removed ranges are not recorded: an unknown hole is searched for in the tree. When extents move
//! ([`Holes::forget`]), or there are too many words, nothing is known until the tree is empty again.
//!
//! Invariant: a block that an extent of the tree covers is noted, unless nothing is known. A caller adds extents to a tree
//! through [`Tree::insert_some`](super::Tree::insert_some) and [`Tree::insert_leaf`](super::Tree::insert_leaf), which note them.

use hashbrown::HashMap;
use std::ops::Range;

/// At most this many words: 16 GiB of 4 KiB blocks when all are in use, in 1 to 2 MiB.
const WORDS_MAX: usize = 1 << 16;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Holes {
    /// The blocks that may be mapped, by number divided by 64. `None`: nothing is known.
    mapped: Option<HashMap<u64, u64>>,
}

/// The bits of a word that lie in `range`.
fn bits(word: u64, range: &Range<u64>) -> u64 {
    let from = range.start.saturating_sub(word * 64).min(64);
    let to = range.end.saturating_sub(word * 64).min(64);
    let ones = |n: u64| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    ones(to) & !ones(from)
}

impl Holes {
    /// The tree has no extents now.
    pub(crate) fn note_empty(&mut self) {
        if self.mapped.as_ref().is_none_or(|m| !m.is_empty()) {
            self.mapped = Some(HashMap::new());
        }
    }

    /// Blocks of the tree are about to be mapped.
    pub(crate) fn note_mapped(&mut self, range: Range<u64>) {
        let Some(mapped) = &mut self.mapped else {
            return;
        };
        let words = range.start / 64..range.end.div_ceil(64);
        let more = usize::try_from(words.end.saturating_sub(words.start)).unwrap_or(usize::MAX);
        if mapped.len().saturating_add(more) > WORDS_MAX {
            self.mapped = None;
            return;
        }
        for word in words {
            *mapped.entry(word).or_default() |= bits(word, &range);
        }
    }

    /// Extents of the tree are about to move.
    pub(crate) fn forget(&mut self) {
        self.mapped = None;
    }

    /// Whether none of these blocks is mapped. `false` when that is not known, or would take long to tell.
    pub(crate) fn has_none(&self, range: &Range<u64>) -> bool {
        let Some(mapped) = &self.mapped else {
            return false;
        };
        let words = range.start / 64..range.end.div_ceil(64);
        words.end.saturating_sub(words.start) <= 64
            && words
                .into_iter()
                .all(|word| mapped.get(&word).is_none_or(|w| w & bits(word, range) == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_never_called_a_hole() {
        let mut holes = Holes::default();
        assert!(!holes.has_none(&(0..1)), "nothing is known");
        holes.note_mapped(5..6);
        assert!(!holes.has_none(&(0..1)));
        holes.note_empty();
        assert!(holes.has_none(&(0..4096)) && !holes.has_none(&(0..5000)));
        holes.note_mapped(60..200);
        for (range, hole) in [
            (0..60, true),
            (0..61, false),
            (59..60, true),
            (199..200, false),
            (200..201, true),
            (200..300, true),
            (100..101, false),
            (1 << 40..(1 << 40) + 3, true),
        ] {
            assert_eq!(holes.has_none(&range), hole, "{range:?}");
        }
        holes.forget();
        assert!(!holes.has_none(&(0..1)));
        holes.note_empty();
        assert!(holes.has_none(&(60..61)), "it became empty");
    }

    #[test]
    fn memory_is_bounded() {
        let mut holes = Holes::default();
        holes.note_empty();
        for k in 0..WORDS_MAX as u64 {
            holes.note_mapped(k * 64..k * 64 + 1);
        }
        assert!(holes.has_none(&(1..2)) && !holes.has_none(&(0..1)));
        holes.note_mapped(1 << 30..(1 << 30) + 1);
        assert!(!holes.has_none(&(1..2)));
        holes.note_empty();
        holes.note_mapped(0..u64::MAX / 2);
        assert!(!holes.has_none(&(1..2)));
    }
}
