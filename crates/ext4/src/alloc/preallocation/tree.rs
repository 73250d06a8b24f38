//! A file's preallocations, ordered by where they lie in the file.
//!
//! Finding, using from an end and deleting need the shared lock; inserting, removing and cutting in two
//! the exclusive one. Everything is O(log n), whatever n is; nothing is trimmed.
//!
//! # Invariants
//! Of the preallocations with something left, in order: what is left of one ends before the next one's key.
//! Deleted ones may be anywhere among them, overlapping what came after, and are stepped over.

use super::pa::{OfInode, Pa, Taken};
use crate::alloc::Run;
use blockwright_ondisk::ext4::BlockNo;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// By the file's block that a preallocation began at, or was re-keyed to.
    pas: RwLock<BTreeMap<u64, Pa<OfInode>>>,
}

/// What a search for a usable preallocation found.
enum Found {
    Run { run: Run, emptied: Option<u64> },
    Cut,
    Nothing,
}

type Map = BTreeMap<u64, Pa<OfInode>>;

/// The last preallocation with something left whose key is at or before `at`.
fn live_before(pas: &Map, at: u64) -> Option<(u64, &Pa<OfInode>)> {
    pas.range(..=at)
        .rev()
        .find(|(_, pa)| !pa.is_deleted())
        .map(|(key, pa)| (*key, pa))
}

/// Something left that overlaps the range: the check that the invariant has of its own.
fn overlapping(pas: &Map, range: &Range<u64>) -> Option<Range<u64>> {
    let last = range.end.checked_sub(1)?;
    let left = live_before(pas, last)?.1.logical_left();
    (left.start < range.end && left.end > range.start).then_some(left)
}

fn find(pas: &Map, at: u64, max: u32, limit: Option<BlockNo>) -> Found {
    loop {
        let Some((key, pa)) = live_before(pas, at) else {
            return Found::Nothing;
        };
        let Some(offset) = pa.offset_of(at).filter(|o| pa.left().contains(o)) else {
            return Found::Nothing;
        };
        // A block-mapped file cannot point so far; nor can what else it has be nearer.
        if limit.is_some_and(|limit| pa.physical_end() > limit) {
            return Found::Nothing;
        }
        match pa.take_at(offset, max) {
            Taken::Run(run) => {
                let emptied = pa.is_deleted().then_some(key);
                return Found::Run { run, emptied };
            }
            Taken::Middle => return Found::Cut,
            // Deleted between the look and the attempt: look again.
            Taken::Missed => {}
        }
    }
}

impl Tree {
    /// Uses the blocks kept for `at`, up to `max` of them. One that does not end below `limit` ends
    /// the search.
    pub(crate) fn use_at(&self, at: u64, max: u32, limit: Option<BlockNo>) -> Option<Run> {
        // Bound to a name: the shared lock must be gone before the exclusive one is asked for.
        let found = find(&self.pas.read(), at, max, limit);
        match found {
            Found::Nothing => None,
            Found::Run { run, emptied } => {
                if let Some(key) = emptied {
                    let mut pas = self.pas.write();
                    // Another may be there by now.
                    if pas.get(&key).is_some_and(Pa::is_deleted) {
                        pas.remove(&key);
                    }
                }
                Some(run)
            }
            Found::Cut => self.cut_at(at, max, limit),
        }
    }

    /// Whether [`Tree::use_at`] would find this many blocks at `at`.
    pub(crate) fn keeps(&self, at: u64, len: u32) -> bool {
        let pas = self.pas.read();
        let left = live_before(&pas, at).map_or(0..0, |(_, pa)| pa.logical_left());
        left.contains(&at) && left.end - at >= u64::from(len)
    }

    /// As [`Tree::use_at`], with the exclusive lock: the blocks may be in the middle.
    fn cut_at(&self, at: u64, max: u32, limit: Option<BlockNo>) -> Option<Run> {
        let mut pas = self.pas.write();
        match find(&pas, at, max, limit) {
            Found::Nothing => None,
            Found::Run { run, .. } => Some(run),
            Found::Cut => {
                let (_, pa) = live_before(&pas, at)?;
                let left = pa.logical_left();
                let offset = pa.offset_of(at)?;
                // All behind `at` first, which is an end; then what is too much of it goes back.
                let Taken::Run(tail) = pa.take_at(offset, u32::MAX) else {
                    return None;
                };
                debug_assert_eq!(left.end - at, u64::from(tail.len));
                let n = max.min(tail.len);
                let rest = Run {
                    start: BlockNo(tail.start.0 + u64::from(n)),
                    len: tail.len - n,
                };
                if rest.len > 0 {
                    let logical = at + u64::from(n);
                    pas.insert(logical, Pa::new(OfInode { logical }, rest));
                }
                Some(Run { len: n, ..tail })
            }
        }
    }

    /// Keeps a run for the file's blocks from `at` on. Returns it when something there is kept
    /// already, which is a bug of the caller's and, in debug builds, a panic.
    pub(crate) fn insert(&self, at: u64, run: Run) -> Option<Run> {
        let end = at.saturating_add(u64::from(run.len));
        let mut pas = self.pas.write();
        if let Some(other) = overlapping(&pas, &(at..end)) {
            debug_assert!(false, "preallocations overlap: {at}..{end} and {other:?}");
            return Some(run);
        }
        // A preallocation that began inside the new one has nothing left there: it is deleted, or
        // used up to a later block; so may be the last that began before. They get the key of what
        // is left.
        let first = live_before(&pas, at).map_or(at, |(key, _)| key);
        let keys: Vec<u64> = pas.range(first..end).map(|(key, _)| *key).collect();
        for key in keys {
            let left = pas.get(&key).map_or(0..0, Pa::logical_left);
            if key >= at || left.start >= end {
                let pa = pas.remove(&key);
                pas.extend(pa.filter(|pa| !pa.is_deleted()).map(|pa| (left.start, pa)));
            }
        }
        pas.insert(at, Pa::new(OfInode { logical: at }, run));
        None
    }

    /// Clips a window around `at`, a block that nothing is kept for, to what lies between its neighbours.
    pub(crate) fn clip(&self, at: u64, window: Range<u64>) -> Range<u64> {
        let pas = self.pas.read();
        let mut window = window;
        for (_, pa) in pas.range(..=at).rev() {
            let left = pa.logical_left();
            if left.is_empty() {
                continue;
            }
            if left.start > at {
                // Used up to behind `at`: a neighbour on the right.
                window.end = window.end.min(left.start);
                continue;
            }
            window.start = window.start.max(left.end.min(at));
            break;
        }
        let behind = pas.range(at.saturating_add(1)..);
        if let Some(right) = behind
            .map(|(_, pa)| pa.logical_left())
            .find(|left| !left.is_empty())
        {
            window.end = window.end.min(right.start);
        }
        window
    }

    /// Deletes everything without keeping users out, and returns what was left.
    pub(crate) fn discard(&self) -> Vec<Run> {
        let runs: Vec<Run> = self.pas.read().values().filter_map(Pa::delete).collect();
        let mut pas = self.pas.write();
        if !pas.is_empty() {
            pas.retain(|_, pa| !pa.is_deleted());
        }
        drop(pas);
        runs
    }

    /// Entries, deleted ones included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.pas.read().len()
    }

    /// Deletes one without removing it, as a discarder does for a moment.
    #[cfg(test)]
    pub(crate) fn delete_only(&self, key: u64) -> Option<Run> {
        self.pas.read().get(&key).and_then(Pa::delete)
    }
}
