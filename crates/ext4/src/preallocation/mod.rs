//! Preallocation: blocks taken beyond a request, kept for the requests that are likely to follow.
//!
//! A file's preallocations are an ordered `tree`, logical start → run: O(log n) to find, no cap, no
//! trimming. Small files share `locality` areas, one per CPU. Both hold the same kind of thing, a
//! `pa::Pa`, with bookkeeping of different types. `window` says how much to ask for. The `list` is what
//! the tree replaced, for comparison.
//!
//! All of it is in memory only: taken in the allocator, not marked on disk, and not claimed
//! (`mballoc::space`), so preallocation never makes a volume look full. It is given back when the
//! last writer closes the file, on truncation and eviction, and by whoever runs out of space. What is written
//! back after that close gets no more than it asks for.
//!
//! # Locks
//! A collection's lock is a leaf below the inode's `map`; so discarding another inode's preallocations
//! needs none of its locks.

mod list;
mod locality;
mod pa;
mod tree;
mod window;

pub(crate) use locality::Localities;
pub(crate) use window::{appends, place, window};

use crate::mballoc::{AllocCounters, Run};
use crate::options::Preallocation;
use blockwright_ondisk::ext4::{BlockNo, FileBlock};
use blockwright_vfs::stats::{Stats, Unit};
use list::List;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use tree::Tree;

/// Files up to this many blocks go to the locality areas.
pub(crate) const SMALL_FILE_BLOCKS: u64 = 16;
/// Blocks a locality area takes at once.
pub(crate) const LOCALITY_BLOCKS: u32 = 512;

/// What [`pa`] counts with.
mod atomics {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

#[derive(Debug)]
enum Store {
    Tree(Tree),
    List(List),
}

/// An inode's part of allocation: its preallocations and where it allocated last.
#[derive(Clone, Debug, Default)]
pub struct InodeAlloc {
    /// Made when the first preallocation is: most files never have one.
    store: Option<Arc<Store>>,
    /// Where the last run that was taken ended: (logical, physical).
    pub(crate) last_end: Option<(FileBlock, BlockNo)>,
    /// The last writer closed the file, and nobody wrote to it since.
    pub(crate) closed: bool,
}

/// All collections that may have something in them, and how preallocation is done.
#[derive(Debug, Default)]
pub(crate) struct PaRegistry {
    stores: Mutex<Vec<Weak<Store>>>,
    mode: AtomicU8,
    /// Blocks in preallocations, of all kinds. Signed: additions and removals pass each other.
    blocks: AtomicI64,
    pub(crate) counters: AllocCounters,
}

impl PaRegistry {
    pub(crate) fn set_mode(&self, mode: Preallocation) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    pub(crate) fn mode(&self) -> Preallocation {
        [
            Preallocation::Tree,
            Preallocation::List,
            Preallocation::None,
        ]
        .into_iter()
        .find(|m| *m as u8 == self.mode.load(Ordering::Relaxed))
        .unwrap_or_default()
    }

    /// Blocks in preallocations.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed).max(0) as u64
    }

    /// A preallocation of this size was made.
    pub(crate) fn note_made(&self, len: u32) {
        self.blocks.fetch_add(i64::from(len), Ordering::Relaxed);
        self.counters.pa_made(len);
    }

    /// Preallocated blocks were used.
    pub(crate) fn note_used(&self, len: u32) {
        self.blocks.fetch_sub(i64::from(len), Ordering::Relaxed);
        self.counters.pa_used(len);
    }

    /// Preallocated blocks were given up.
    pub(crate) fn note_discarded(&self, runs: &[Run]) {
        for run in runs {
            self.blocks.fetch_sub(i64::from(run.len), Ordering::Relaxed);
            self.counters.pa_discarded(run.len);
        }
    }

    /// Empties all collections of inodes; the caller puts the runs back.
    pub(crate) fn discard(&self) -> Vec<Run> {
        let stores: Vec<Arc<Store>> = {
            let mut list = self.stores.lock();
            list.retain(|t| t.strong_count() > 0);
            list.iter().filter_map(Weak::upgrade).collect()
        };
        let runs: Vec<Run> = stores.iter().flat_map(|store| store.discard()).collect();
        self.note_discarded(&runs);
        runs
    }

    /// Adds the live counters to a snapshot.
    pub(crate) fn stats(&self, out: &mut Stats) {
        self.counters.stats(out);
        out.gauge(
            "pa_now_blocks",
            Unit::Blocks,
            "blocks in preallocations",
            self.blocks(),
        );
    }

    fn new_store(&self) -> Arc<Store> {
        let store = Arc::new(match self.mode() {
            Preallocation::List => Store::List(List::default()),
            Preallocation::Tree | Preallocation::None => Store::Tree(Tree::default()),
        });
        let mut list = self.stores.lock();
        if list.len() > 64 && list.len() == list.capacity() {
            list.retain(|t| t.strong_count() > 0);
        }
        list.push(Arc::downgrade(&store));
        store
    }
}

impl Store {
    fn discard(&self) -> Vec<Run> {
        match self {
            Store::Tree(tree) => tree.discard(),
            Store::List(list) => list.discard(),
        }
    }
}

impl InodeAlloc {
    /// Uses the preallocated blocks for `at`, up to `max` of them. A preallocation that does not end
    /// below `limit` ends the search.
    pub(crate) fn use_at(
        &self,
        registry: &PaRegistry,
        at: FileBlock,
        max: u32,
        limit: Option<BlockNo>,
    ) -> Option<Run> {
        let run = match &**self.store.as_ref()? {
            Store::Tree(tree) => tree.use_at(at.0, max, limit),
            Store::List(list) => list.use_at(at.0, max, limit),
        }?;
        registry.note_used(run.len);
        Some(run)
    }

    /// Whether so many blocks are kept from `at` on. They stay so but for who discards all of them, as long as the map is locked.
    pub(crate) fn keeps(&self, at: FileBlock, len: u32) -> bool {
        match self.store.as_deref() {
            Some(Store::Tree(tree)) => tree.keeps(at.0, len),
            // For comparison only.
            Some(Store::List(_)) | None => false,
        }
    }

    /// Keeps a run for the logical blocks from `at` on. What comes back is not kept (any more) and is
    /// the caller's to put back.
    #[must_use]
    pub(crate) fn keep(&mut self, registry: &PaRegistry, at: FileBlock, run: Run) -> Vec<Run> {
        if run.len == 0 {
            return Vec::new();
        }
        let store = self.store.get_or_insert_with(|| registry.new_store());
        registry.note_made(run.len);
        let back = match &**store {
            Store::Tree(tree) => Vec::from_iter(tree.insert(at.0, run)),
            Store::List(list) => list.insert(at.0, run),
        };
        registry.note_discarded(&back);
        back
    }

    /// Clips a window around `at`, a block that nothing is kept for, so that it overlaps no preallocation.
    pub(crate) fn clip(&self, at: FileBlock, window: Range<u64>) -> Range<u64> {
        match self.store.as_deref() {
            Some(Store::Tree(tree)) => tree.clip(at.0, window),
            Some(Store::List(list)) => list.clip(at.0, window),
            None => window,
        }
    }

    /// Gives everything up; the caller puts the runs back.
    pub(crate) fn discard(&self, registry: &PaRegistry) -> Vec<Run> {
        let runs = self.store.as_ref().map_or_else(Vec::new, |s| s.discard());
        registry.note_discarded(&runs);
        runs
    }
}

#[cfg(test)]
mod tests;
