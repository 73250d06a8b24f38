//! One preallocation: a run of blocks that are not used yet, and what is left of it.
//!
//! The remaining blocks are one span in one atomic word, so that a shared lock on the collection is enough
//! to use it from either end, and to delete it. It only ever shrinks: a compare-and-swap cannot be fooled
//! by a value that came back. Taking from the middle leaves two spans: the collection does it, under its
//! exclusive lock.
//!
//! A *deleted* preallocation (nothing left) may stay in its collection until a holder of the exclusive
//! lock removes it; all others step over it.
//!
//! The two kinds differ in bookkeeping: [`OfInode`] lies at a place in a file, [`OfLocality`] serves whatever
//! small file comes next. A [`Pa`] of one kind cannot be put where the other belongs.

use crate::alloc::Run;
use blockwright_ondisk::ext4::BlockNo;
use std::ops::Range;
// Behind a name of its own, so that tests/preallocation_orders.rs can put loom's in its place.
use super::atomics::{AtomicU64, Ordering};

/// Bookkeeping of a file's own preallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfInode {
    /// The file's block that its first block is for.
    pub(crate) logical: u64,
}

/// Bookkeeping of an area that small files share: none, since any file may use its next blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfLocality;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pa<K> {
    kind: K,
    /// The block its offset 0 is.
    start: BlockNo,
    /// What is left, as offsets: from in the upper half, to in the lower one.
    left: AtomicU64,
}

const fn pack(from: u32, to: u32) -> u64 {
    (from as u64) << 32 | to as u64
}

const fn unpack(left: u64) -> Range<u32> {
    (left >> 32) as u32..left as u32
}

/// What came of an attempt to take blocks from a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// These blocks are the caller's.
    Run(Run),
    /// The place is not (or no longer) in what is left.
    Missed,
    /// The place is in the middle: it must be cut in two first.
    Middle,
}

impl<K> Pa<K> {
    pub(crate) fn new(kind: K, run: Run) -> Self {
        Pa {
            kind,
            start: run.start,
            left: AtomicU64::new(pack(0, run.len)),
        }
    }

    /// What is left, as offsets; empty when deleted.
    pub(crate) fn left(&self) -> Range<u32> {
        unpack(self.left.load(Ordering::Acquire))
    }

    /// Nothing is left.
    pub(crate) fn is_deleted(&self) -> bool {
        self.left().is_empty()
    }

    fn run(&self, offsets: Range<u32>) -> Run {
        Run {
            start: BlockNo(self.start.0 + u64::from(offsets.start)),
            len: offsets.end - offsets.start,
        }
    }

    /// Behind the last block that is left.
    pub(crate) fn physical_end(&self) -> BlockNo {
        BlockNo(self.start.0 + u64::from(self.left().end))
    }

    /// Takes up to `max` blocks from offset `at` on.
    pub(crate) fn take_at(&self, at: u32, max: u32) -> Taken {
        let mut seen = self.left.load(Ordering::Acquire);
        loop {
            let left = unpack(seen);
            if !left.contains(&at) {
                return Taken::Missed;
            }
            let end = at.saturating_add(max).min(left.end);
            let rest = if at == left.start {
                pack(end, left.end)
            } else if end == left.end {
                pack(left.start, at)
            } else {
                return Taken::Middle;
            };
            match self
                .left
                .compare_exchange_weak(seen, rest, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Taken::Run(self.run(at..end)),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes up to `max` blocks from the front.
    pub(crate) fn take_front(&self, max: u32) -> Option<Run> {
        loop {
            let left = self.left();
            if left.is_empty() {
                return None;
            }
            // Another thread may have been faster: then it is not the front any more.
            if let Taken::Run(run) = self.take_at(left.start, max) {
                return Some(run);
            }
        }
    }

    /// Deletes it; what was left goes to the caller alone.
    pub(crate) fn delete(&self) -> Option<Run> {
        let left = unpack(self.left.swap(pack(0, 0), Ordering::AcqRel));
        (!left.is_empty()).then(|| self.run(left))
    }
}

impl Pa<OfInode> {
    /// The file's blocks that are left; empty when deleted.
    pub(crate) fn logical_left(&self) -> Range<u64> {
        let left = self.left();
        self.kind.logical + u64::from(left.start)..self.kind.logical + u64::from(left.end)
    }

    /// The offset of a file's block in it, when it is not before it.
    pub(crate) fn offset_of(&self, at: u64) -> Option<u32> {
        u32::try_from(at.checked_sub(self.kind.logical)?).ok()
    }
}
