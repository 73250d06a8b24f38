//! Preallocation: blocks taken beyond a request, kept for the requests that are likely to follow.
//!
//! A file's preallocations are an ordered `tree`, logical start → run: O(log n) to find, no cap, no
//! trimming. Small files share `locality` areas, one per CPU. Both hold the same kind of thing, a
//! `pa::Pa`, with bookkeeping of different types. `window` says how much to ask for.
//!
//! All of it is in memory only: taken in the allocator, not marked on disk, and not claimed
//! (`alloc::space`), so preallocation never makes a volume look full. It is given back when the
//! last writer closes the file, on truncation and eviction, and when space runs out. Data that is written
//! back after that close gets no more than it asks for.
//!
//! # Locks
//! A collection's lock is a leaf below the inode's `map`; so discarding another inode's preallocations
//! needs none of its locks.

#[cfg(feature = "comparison")]
mod comparison;
mod locality;
mod pa;
mod tree;
mod window;

pub(crate) use locality::Localities;
pub(crate) use window::{appends, place, window};

use crate::alloc::{AllocCounters, Run};
use blockwright_ondisk::ext4::{BlockNo, FileBlock};
use blockwright_vfs::stats::Stats;
#[cfg(feature = "comparison")]
use comparison::{Mode, Store};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
#[cfg(not(feature = "comparison"))]
use tree::Tree as Store;

/// What [`pa`] counts with.
mod atomics {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

/// What holds a file's preallocations. `u64`s are logical blocks.
trait Collection {
    /// Uses up to `max` of the blocks kept for `at`. One that ends above `limit` ends the search.
    fn use_at(&self, at: u64, max: u32, limit: Option<BlockNo>) -> Option<Run>;
    /// Whether `len` blocks are kept from `at` on.
    fn keeps(&self, at: u64, len: u32) -> bool;
    /// Keeps a run. What comes back is not kept (any more).
    fn keep(&self, at: u64, run: Run) -> Vec<Run>;
    /// Clips a window around `at` so that it overlaps nothing that is kept.
    fn clip(&self, at: u64, window: Range<u64>) -> Range<u64>;
    /// Gives everything up.
    fn discard(&self) -> Vec<Run>;
}

impl Collection for tree::Tree {
    fn use_at(&self, at: u64, max: u32, limit: Option<BlockNo>) -> Option<Run> {
        self.use_at(at, max, limit)
    }

    fn keeps(&self, at: u64, len: u32) -> bool {
        self.keeps(at, len)
    }

    fn keep(&self, at: u64, run: Run) -> Vec<Run> {
        Vec::from_iter(self.insert(at, run))
    }

    fn clip(&self, at: u64, window: Range<u64>) -> Range<u64> {
        self.clip(at, window)
    }

    fn discard(&self) -> Vec<Run> {
        self.discard()
    }
}

/// Whether and how files preallocate: always, in a tree.
#[cfg(not(feature = "comparison"))]
#[derive(Debug, Default)]
pub(crate) struct Mode;

#[cfg(not(feature = "comparison"))]
impl Mode {
    fn preallocates(&self) -> bool {
        true
    }

    fn collection(&self) -> Store {
        Store::default()
    }
}

/// An inode's part of allocation: its preallocations and where it allocated last.
#[derive(Clone, Debug, Default)]
pub struct InodeAlloc {
    /// Made when the first preallocation is: most files never have one.
    store: Option<Arc<Store>>,
    /// Where the last run that was taken ended: (logical, physical).
    pub(crate) last_end: Option<(FileBlock, BlockNo)>,
    /// The last writer closed the file, and it was not written to since.
    pub(crate) closed: bool,
}

/// All collections that may have something in them, and how preallocation is done.
#[derive(Debug, Default)]
pub(crate) struct PaRegistry {
    stores: Mutex<Vec<Weak<Store>>>,
    pub(crate) mode: Mode,
    /// Blocks in preallocations, of all kinds. Signed: additions and removals pass each other.
    blocks: AtomicI64,
    pub(crate) counters: AllocCounters,
}

impl PaRegistry {
    /// Whether requests get more than they ask for.
    pub(crate) fn preallocates(&self) -> bool {
        self.mode.preallocates()
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
        let runs: Vec<Run> = stores
            .iter()
            .flat_map(|store| Collection::discard(&**store))
            .collect();
        self.note_discarded(&runs);
        runs
    }

    /// Adds the live counters to a snapshot.
    pub(crate) fn stats(&self, out: &mut Stats) {
        self.counters.stats(out);
        blockwright_vfs::stat_lines! { out;
            gauge "pa_now_blocks", Blocks, "blocks in preallocations" => self.blocks();
        }
    }

    fn new_store(&self) -> Arc<Store> {
        let store = Arc::new(self.mode.collection());
        let mut list = self.stores.lock();
        if list.len() > 64 && list.len() == list.capacity() {
            list.retain(|t| t.strong_count() > 0);
        }
        list.push(Arc::downgrade(&store));
        store
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
        let run = Collection::use_at(&**self.store.as_ref()?, at.0, max, limit)?;
        registry.note_used(run.len);
        Some(run)
    }

    /// Whether this many blocks are kept from `at` on. While the map is locked, only a discard of everything changes that.
    pub(crate) fn keeps(&self, at: FileBlock, len: u32) -> bool {
        self.store
            .as_deref()
            .is_some_and(|store| Collection::keeps(store, at.0, len))
    }

    /// Keeps a run for the logical blocks from `at` on. The returned blocks are no longer part of a
    /// preallocation. The caller must give them back to the allocator.
    #[must_use]
    pub(crate) fn keep(&mut self, registry: &PaRegistry, at: FileBlock, run: Run) -> Vec<Run> {
        if run.len == 0 {
            return Vec::new();
        }
        let store = self.store.get_or_insert_with(|| registry.new_store());
        registry.note_made(run.len);
        let back = Collection::keep(&**store, at.0, run);
        registry.note_discarded(&back);
        back
    }

    /// Clips a window around `at`, a block that nothing is kept for, so that it overlaps no preallocation.
    pub(crate) fn clip(&self, at: FileBlock, window: Range<u64>) -> Range<u64> {
        match self.store.as_deref() {
            Some(store) => Collection::clip(store, at.0, window),
            None => window,
        }
    }

    /// Gives everything up; the caller puts the runs back.
    pub(crate) fn discard(&self, registry: &PaRegistry) -> Vec<Run> {
        let runs = self
            .store
            .as_ref()
            .map_or_else(Vec::new, |s| Collection::discard(&**s));
        registry.note_discarded(&runs);
        runs
    }
}

#[cfg(test)]
mod tests;
