//! Preallocation: blocks taken beyond a request, kept for the requests that are likely to follow.
//!
//! A file's preallocations are an ordered tree, logical start → run: O(log n) to find, no cap, no
//! trimming. A piece is removed from the tree as it is used, so that what is in the tree is exactly
//! what is unused; pieces never overlap each other (asserted), nor blocks in use. Small files share
//! *locality areas*, one per thread slot, so that many small files written together lie together and
//! writers do not meet. The two kinds are different types: [`InodeAlloc`], [`Localities`].
//!
//! All of it is in memory only: taken in the allocator, not marked on disk, and not claimed
//! (`mballoc::space`), so preallocation never makes a volume look full. It is given back when the
//! last writer closes the file, on truncation and eviction, and by whoever runs out of space.
//!
//! # Locks
//! A tree's mutex is a leaf below the inode's `map`; so discarding another inode's
//! preallocations needs none of its locks.

use crate::mballoc::Run;
use blockwright_ondisk::ext4::{BlockNo, FileBlock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Files up to this many blocks go to the locality areas.
pub(crate) const SMALL_FILE_BLOCKS: u64 = 16;
/// Blocks a locality area takes at once.
pub(crate) const LOCALITY_BLOCKS: u32 = 512;
/// The largest window, in blocks, for writes that append: one extent's worth.
const APPEND_WINDOW_MAX: u64 = 32768;
/// The largest window, in bytes, for writes elsewhere.
const SPARSE_WINDOW_BYTES_MAX: u64 = 8 << 20;
/// The smallest window, in bytes.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

#[derive(Debug, Default)]
struct Tree {
    pieces: Mutex<BTreeMap<u64, Run>>,
}

/// An inode's part of allocation: its preallocations and where it allocated last.
#[derive(Clone, Debug, Default)]
pub struct InodeAlloc {
    tree: Arc<Tree>,
    registered: bool,
    /// Where the last run that was taken ended: (logical, physical).
    pub(crate) last_end: Option<(FileBlock, BlockNo)>,
}

/// All trees that may have something in them.
#[derive(Debug, Default)]
pub(crate) struct PaRegistry {
    trees: Mutex<Vec<Weak<Tree>>>,
}

impl PaRegistry {
    /// Empties all trees; the caller puts the runs back.
    pub(crate) fn drain(&self) -> Vec<Run> {
        let trees: Vec<Arc<Tree>> = {
            let mut list = self.trees.lock();
            list.retain(|t| t.strong_count() > 0);
            list.iter().filter_map(Weak::upgrade).collect()
        };
        let mut runs = Vec::new();
        for tree in trees {
            runs.extend(std::mem::take(&mut *tree.pieces.lock()).into_values());
        }
        runs
    }

    fn add(&self, tree: &Arc<Tree>) {
        let mut list = self.trees.lock();
        if list.len() > 64 && list.len() == list.capacity() {
            list.retain(|t| t.strong_count() > 0);
        }
        list.push(Arc::downgrade(tree));
    }
}

impl InodeAlloc {
    /// Uses the preallocated blocks for `at`, up to `max` of them. A piece that does not end below
    /// `limit` ends the search.
    pub(crate) fn use_at(&self, at: FileBlock, max: u32, limit: Option<BlockNo>) -> Option<Run> {
        let mut pieces = self.tree.pieces.lock();
        let (&start, &run) = pieces.range(..=at.0).next_back()?;
        let skip = at.0 - start;
        if skip >= u64::from(run.len) || limit.is_some_and(|l| run.end() > l) {
            return None;
        }
        let skip = skip as u32;
        let len = max.min(run.len - skip);
        pieces.remove(&start);
        if skip > 0 {
            pieces.insert(start, Run { len: skip, ..run });
        }
        let after = skip + len;
        if after < run.len {
            let rest = Run {
                start: BlockNo(run.start.0 + u64::from(after)),
                len: run.len - after,
            };
            pieces.insert(start + u64::from(after), rest);
        }
        Some(Run {
            start: BlockNo(run.start.0 + u64::from(skip)),
            len,
        })
    }

    /// Keeps a run for the logical blocks from `at` on.
    pub(crate) fn keep(&mut self, registry: &PaRegistry, at: FileBlock, run: Run) {
        if run.len == 0 {
            return;
        }
        if !self.registered {
            registry.add(&self.tree);
            self.registered = true;
        }
        let mut pieces = self.tree.pieces.lock();
        if cfg!(debug_assertions) {
            let end = at.0 + u64::from(run.len);
            let left = pieces.range(..end).next_back();
            let overlap = left.is_some_and(|(s, r)| s + u64::from(r.len) > at.0);
            assert!(!overlap, "preallocations overlap at {at}");
        }
        pieces.insert(at.0, run);
    }

    /// Clips a window around `at` so that it overlaps no piece.
    pub(crate) fn clip(&self, at: FileBlock, window: Range<u64>) -> Range<u64> {
        let pieces = self.tree.pieces.lock();
        let mut window = window;
        if let Some((s, r)) = pieces.range(..=at.0).next_back() {
            window.start = window.start.max((s + u64::from(r.len)).min(at.0));
        }
        if let Some((&s, _)) = pieces.range(at.0 + 1..).next() {
            window.end = window.end.min(s);
        }
        window
    }

    /// Removes everything; the caller puts the runs back.
    pub(crate) fn drain(&self) -> Vec<Run> {
        std::mem::take(&mut *self.tree.pieces.lock())
            .into_values()
            .collect()
    }
}

/// The logical blocks to take for a request at `at`, given the file's size in blocks as far as it is
/// known, and the hole the request lies in. Contains the request; not clipped by preallocations.
pub(crate) fn window(
    at: FileBlock,
    len: u32,
    file_blocks: u64,
    hole: Range<u64>,
    block_bits: u32,
) -> Range<u64> {
    let end = at.0.saturating_add(u64::from(len));
    let appends = end >= file_blocks;
    let max = if appends {
        APPEND_WINDOW_MAX
    } else {
        SPARSE_WINDOW_BYTES_MAX >> block_bits
    };
    let min = (WINDOW_BYTES_MIN >> block_bits).max(1);
    let chunk = file_blocks
        .max(end)
        .checked_next_power_of_two()
        .unwrap_or(max)
        .clamp(min, max.max(min));
    let start = at.0 / chunk * chunk;
    let whole = start..start.saturating_add(chunk).max(end);
    whole.start.max(hole.start).min(at.0)..whole.end.min(hole.end).max(end)
}

/// Where a run of `got` blocks, shorter than the window, begins in the file: so that it covers the
/// request and as much of the window as possible, preferring the window's end.
pub(crate) fn place(at: FileBlock, len: u32, got: u32, window: &Range<u64>) -> FileBlock {
    let (got, end) = (u64::from(got), at.0 + u64::from(len));
    if got >= window.end - window.start {
        return FileBlock(window.start);
    }
    let at_end = window.end - got;
    if at_end <= at.0 && end <= window.end {
        FileBlock(at_end)
    } else if window.start + got >= end {
        FileBlock(window.start)
    } else {
        at
    }
}

/// Areas that small files share.
#[derive(Debug)]
pub(crate) struct Localities {
    slots: Box<[Mutex<Option<Run>>]>,
}

thread_local! {
    static SLOT: usize = {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    };
}

impl Localities {
    pub(crate) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(4, usize::from);
        Localities {
            slots: (0..cpus.next_power_of_two() * 2)
                .map(|_| Mutex::new(None))
                .collect(),
        }
    }

    /// Takes up to `len` blocks from the calling thread's area; `refill` makes a new one when
    /// it is empty.
    pub(crate) fn take<E>(
        &self,
        len: u32,
        limit: Option<BlockNo>,
        refill: impl FnOnce() -> Result<Option<Run>, E>,
    ) -> Result<Option<Run>, E> {
        let slot = SLOT.with(|s| *s) % self.slots.len();
        let mut area = self.slots[slot].lock();
        let within = |r: &Run| limit.is_none_or(|l| r.end() <= l);
        if area.is_none() {
            *area = refill()?;
        }
        let Some(run) = area.filter(within) else {
            return Ok(None);
        };
        let n = len.min(run.len);
        *area = (n < run.len).then(|| Run {
            start: BlockNo(run.start.0 + u64::from(n)),
            len: run.len - n,
        });
        Ok(Some(Run {
            start: run.start,
            len: n,
        }))
    }

    /// Empties all areas; the caller puts the runs back.
    pub(crate) fn drain(&self) -> Vec<Run> {
        self.slots.iter().filter_map(|s| s.lock().take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u32) -> Run {
        Run {
            start: BlockNo(start),
            len,
        }
    }

    #[test]
    fn using_the_middle_leaves_both_sides() {
        let registry = PaRegistry::default();
        let mut pa = InodeAlloc::default();
        pa.keep(&registry, FileBlock(100), run(1000, 50));
        assert_eq!(pa.use_at(FileBlock(99), 5, None), None);
        assert_eq!(pa.use_at(FileBlock(150), 5, None), None);
        assert_eq!(
            pa.use_at(FileBlock(110), 5, Some(BlockNo(1040))),
            None,
            "ends above the limit"
        );
        assert_eq!(
            pa.use_at(FileBlock(110), 5, Some(BlockNo(1050))),
            Some(run(1010, 5))
        );
        assert_eq!(pa.use_at(FileBlock(110), 5, None), None, "used");
        assert_eq!(pa.use_at(FileBlock(115), 99, None), Some(run(1015, 35)));
        assert_eq!(registry.drain(), [run(1000, 10)]);
        assert!(pa.drain().is_empty());
    }

    #[test]
    #[should_panic(expected = "overlap")]
    #[cfg(debug_assertions)]
    fn overlap_is_caught() {
        let registry = PaRegistry::default();
        let mut pa = InodeAlloc::default();
        pa.keep(&registry, FileBlock(10), run(0, 10));
        pa.keep(&registry, FileBlock(5), run(100, 6));
    }

    #[test]
    fn windows_grow_with_the_file_and_stay_in_their_hole() {
        let all = 0..u64::MAX;
        assert_eq!(window(FileBlock(3), 1, 4, all.clone(), 12), 0..16);
        assert_eq!(window(FileBlock(100), 10, 110, all.clone(), 12), 0..128);
        assert_eq!(window(FileBlock(100), 10, 110, 90..105, 12), 90..110);
        assert_eq!(
            window(FileBlock(1 << 20), 1, 2 << 20, all.clone(), 12),
            1 << 20..(1 << 20) + 2048
        );
        assert_eq!(
            window(FileBlock(1 << 20), 1, 1 << 20, all.clone(), 12),
            1 << 20..(1 << 20) + 32768
        );
        let last = u64::from(u32::MAX) - 1;
        assert!(window(FileBlock(last), 1, last, all, 12).end > last);
    }

    #[test]
    fn placing_covers_the_request() {
        let w = 64..128;
        assert_eq!(place(FileBlock(100), 8, 64, &w), FileBlock(64));
        assert_eq!(place(FileBlock(100), 8, 30, &w), FileBlock(98));
        assert_eq!(place(FileBlock(70), 8, 30, &w), FileBlock(64));
        assert_eq!(place(FileBlock(90), 8, 9, &w), FileBlock(90));
        // Near the end of the logical space.
        let end = u64::from(u32::MAX);
        assert_eq!(
            place(FileBlock(end - 3), 2, 3, &(end - 64..end)),
            FileBlock(end - 3)
        );
    }

    #[test]
    fn a_clipped_window_avoids_neighbours() {
        let registry = PaRegistry::default();
        let mut pa = InodeAlloc::default();
        pa.keep(&registry, FileBlock(0), run(0, 10));
        pa.keep(&registry, FileBlock(50), run(100, 10));
        assert_eq!(pa.clip(FileBlock(20), 0..64), 10..50);
        assert_eq!(pa.clip(FileBlock(60), 0..64), 60..64);
    }

    #[test]
    fn localities_hand_out_consecutive_blocks() {
        let l = Localities::new();
        let refill = || Ok::<_, ()>(Some(run(500, 8)));
        assert_eq!(l.take(3, None, refill), Ok(Some(run(500, 3))));
        assert_eq!(l.take(3, None, || Err(())), Ok(Some(run(503, 3))));
        assert_eq!(l.take(3, Some(BlockNo(507)), || Err(())), Ok(None));
        assert_eq!(l.drain(), [run(506, 2)]);
    }
}
