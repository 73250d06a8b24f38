//! Where a file's data is for good: stretches that a direct overwrite may write to without asking the
//! engine, because its blocks hold data, stay where they are, and lie below the size on disk.
//!
//! Only for engines that keep data where it was written ([`Format::keeps_places`]). A stretch is learnt
//! from a target that needs no commit, and forgotten before blocks are taken away. So a look here replaces two walks of the
//! extent tree on the way of every direct overwrite, and never waits for metadata.
//!
//! [`Format::keeps_places`]: crate::engine::Format::keeps_places
//!
//! # Invariants
//! * Every stretch was written and committed when it was learnt. It stays so until truncation, fallocate
//!   or eviction, which call [`ExtentCache::forget`] with the inode lock and `invalidate` held exclusively and
//!   no direct I/O in flight.
//! * So a user of a stretch looks it up under one of these locks, and counts itself in flight
//!   (`direct_begin`) before letting go.
//!
//! # Locks
//! A leaf, shared to look.

use crate::locks::{Rank, RwLock};
use blockwright_device::DevOffset;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Stretches remembered per file: a log-structured engine may have a file in pieces of 256 KiB. One in more is learnt anew from time to time.
const STRETCHES_MAX: usize = 1 << 14;
/// Stretches of all files, a dozen megabytes. While there are so many, files that learn more forget what they knew.
const STRETCHES_OF_ALL_MAX: usize = 1 << 18;

static STRETCHES_OF_ALL: AtomicUsize = AtomicUsize::new(0);

/// Device offsets and lengths that a range of a file is cut into.
pub(crate) type Pieces = SmallVec<[(DevOffset, u64); 2]>;

/// See the module's head.
pub(crate) struct ExtentCache {
    /// Start in the file → end in the file, and where the start is.
    stretches: RwLock<BTreeMap<u64, (u64, DevOffset)>>,
}

impl Default for ExtentCache {
    fn default() -> Self {
        ExtentCache {
            stretches: RwLock::new(Rank::Leaf, BTreeMap::new()),
        }
    }
}

impl ExtentCache {
    /// Where the range is, if all of it is known.
    pub(crate) fn find(&self, range: &Range<u64>) -> Option<Pieces> {
        let stretches = self.stretches.read();
        let mut pieces = Pieces::new();
        let mut at = range.start;
        while at < range.end {
            let (start, (end, device)) = stretches.range(..=at).next_back()?;
            if *end <= at {
                return None;
            }
            let bytes = (*end).min(range.end) - at;
            pieces.push((DevOffset(device.0 + (at - start)), bytes));
            at += bytes;
        }
        Some(pieces)
    }

    /// Remembers that the range is at `device`.
    pub(crate) fn learn(&self, range: Range<u64>, device: DevOffset) {
        if range.is_empty() {
            return;
        }
        let mut stretches = self.stretches.write();
        let had = stretches.len();
        let all = STRETCHES_OF_ALL.load(Ordering::Relaxed);
        if had >= STRETCHES_MAX || all >= STRETCHES_OF_ALL_MAX {
            stretches.clear();
        }
        // What is known of the range says the same; one entry is enough.
        let old: SmallVec<[u64; 4]> = stretches
            .range(range.start..range.end)
            .map(|(start, _)| *start)
            .collect();
        let mut end = range.end;
        for start in old {
            if let Some((old_end, _)) = stretches.remove(&start) {
                // Beyond this range an older stretch may know more.
                if old_end > end {
                    end = old_end;
                }
            }
        }
        let (mut start, mut device) = (range.start, device);
        if let Some((&before, &(before_end, before_device))) =
            stretches.range(..range.start).next_back()
        {
            if before_end > range.start {
                (start, device, end) = (before, before_device, end.max(before_end));
            } else if before_end == range.start
                && before_device.0 + (before_end - before) == device.0
            {
                (start, device) = (before, before_device);
            }
        }
        stretches.insert(start, (end, device));
        note_count(had, stretches.len());
    }

    /// Forgets everything: blocks are about to go away or to move.
    pub(crate) fn forget(&self) {
        let mut stretches = self.stretches.write();
        note_count(stretches.len(), 0);
        stretches.clear();
    }
}

impl Drop for ExtentCache {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A file has this many stretches now, and had this many before.
fn note_count(before: usize, now: usize) {
    if now >= before {
        STRETCHES_OF_ALL.fetch_add(now - before, Ordering::Relaxed);
    } else {
        STRETCHES_OF_ALL.fetch_sub(before - now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_others_do_not() {
        let s = ExtentCache::default();
        s.learn(0..4096, DevOffset(1 << 20));
        s.learn(4096..8192, DevOffset((1 << 20) + 4096));
        s.learn(8192..12288, DevOffset(5 << 20));
        assert_eq!(s.stretches.read().len(), 2);
        let found = s.find(&(512..9216)).unwrap();
        assert_eq!(
            found.as_slice(),
            [
                (DevOffset((1 << 20) + 512), 7680),
                (DevOffset(5 << 20), 1024)
            ]
        );
        assert!(s.find(&(8192..12289)).is_none());
        s.learn(0..8192, DevOffset(1 << 20));
        s.learn(4096..8192, DevOffset((1 << 20) + 4096));
        assert_eq!(s.stretches.read().len(), 2);
        s.forget();
        assert!(s.find(&(0..1)).is_none());
    }

    #[test]
    fn a_wider_stretch_swallows_what_it_covers() {
        let s = ExtentCache::default();
        for i in [1u64, 3, 5] {
            s.learn(i * 4096..(i + 1) * 4096, DevOffset(i * 4096));
        }
        s.learn(0..5 * 4096, DevOffset(0));
        assert_eq!(s.stretches.read().len(), 1 + 1);
        assert_eq!(s.find(&(0..6 * 4096)).unwrap().len(), 2);
        // Overlapping from the left keeps what the older one knows beyond.
        s.learn(2 * 4096..3 * 4096, DevOffset(2 * 4096));
        assert_eq!(s.find(&(0..6 * 4096)).unwrap().len(), 2);
    }

    #[test]
    fn memory_is_bounded() {
        let s = ExtentCache::default();
        for i in 0..40_000u64 {
            s.learn(i * 8192..i * 8192 + 4096, DevOffset(i * 4096));
        }
        assert!(s.stretches.read().len() <= STRETCHES_MAX);
        assert!(s.find(&(39_999 * 8192..39_999 * 8192 + 4096)).is_some());
    }

    #[test]
    fn memory_of_many_files_is_bounded() {
        let count = |files: &[ExtentCache]| -> usize {
            let each = files.iter().map(|s| s.stretches.read().len());
            each.sum()
        };
        let files: Vec<ExtentCache> = (0..40).map(|_| ExtentCache::default()).collect();
        for s in &files {
            for i in 0..10_000u64 {
                s.learn(i * 8192..i * 8192 + 4096, DevOffset(i * 4096));
            }
            assert!(s.find(&(9_999 * 8192..9_999 * 8192 + 4096)).is_some());
        }
        // One more for each that found them all taken.
        assert!((200_000..=STRETCHES_OF_ALL_MAX + 40).contains(&count(&files)));
        // Other files may use the entries that a file gives up.
        files.iter().take(39).for_each(ExtentCache::forget);
        for i in 0..10_000u64 {
            files[39].learn(i * 8192..i * 8192 + 4096, DevOffset(i * 4096));
        }
        assert_eq!(count(&files), 10_000);
    }
}
