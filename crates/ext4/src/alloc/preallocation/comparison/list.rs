//! A file's preallocations as a capped list. It is walked from its newest entry, with a lock per entry: to use one, to
//! clip a request, and to check that a new one overlaps none. The tree replaced it and does the same three by search.

use crate::alloc::Run;
use crate::alloc::preallocation::pa::{OfInode, Pa, Taken};
use blockwright_ondisk::ext4::BlockNo;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::ops::Range;

/// Entries a file keeps when its list is trimmed.
pub(in crate::alloc::preallocation) const ENTRIES_MAX: usize = 512;
/// So many more it may have before, so that not every insertion trims.
pub(in crate::alloc::preallocation) const SLACK: usize = ENTRIES_MAX / 4;

/// See the module's head.
#[derive(Debug, Default)]
pub(in crate::alloc::preallocation) struct List {
    /// Newest first. Each entry has a lock of its own, as the list in the report had.
    pas: RwLock<VecDeque<Mutex<Pa<OfInode>>>>,
}

impl List {
    /// See [`Tree::use_at`](crate::alloc::preallocation::tree::Tree::use_at).
    pub(in crate::alloc::preallocation) fn use_at(
        &self,
        at: u64,
        max: u32,
        limit: Option<BlockNo>,
    ) -> Option<Run> {
        let mut middle = false;
        {
            let pas = self.pas.read();
            for entry in pas.iter() {
                let pa = entry.lock();
                let Some(offset) = pa.offset_of(at).filter(|o| pa.left().contains(o)) else {
                    continue;
                };
                if limit.is_some_and(|limit| pa.physical_end() > limit) {
                    return None;
                }
                match pa.take_at(offset, max) {
                    // Deleted ones are stepped over until trimming or discarding removes them.
                    Taken::Run(run) => return Some(run),
                    Taken::Middle => middle = true,
                    Taken::Missed => {}
                }
                break;
            }
        }
        if middle { self.cut_at(at, max) } else { None }
    }

    fn cut_at(&self, at: u64, max: u32) -> Option<Run> {
        let mut pas = self.pas.write();
        let tail = pas.iter().find_map(|entry| {
            let pa = entry.lock();
            match pa.take_at(pa.offset_of(at)?, u32::MAX) {
                Taken::Run(tail) => Some(tail),
                Taken::Missed | Taken::Middle => None,
            }
        })?;
        let n = max.min(tail.len);
        if n < tail.len {
            let rest = Run {
                start: BlockNo(tail.start.0 + u64::from(n)),
                len: tail.len - n,
            };
            let logical = at + u64::from(n);
            pas.push_front(Mutex::new(Pa::new(OfInode { logical }, rest)));
        }
        Some(Run { len: n, ..tail })
    }

    /// See [`Tree::insert`](crate::alloc::preallocation::tree::Tree::insert); what is trimmed comes back, too.
    pub(in crate::alloc::preallocation) fn insert(&self, at: u64, run: Run) -> Vec<Run> {
        let end = at.saturating_add(u64::from(run.len));
        let mut pas = self.pas.write();
        let overlaps = |entry: &Mutex<Pa<OfInode>>| {
            let left = entry.lock().logical_left();
            !left.is_empty() && left.start < end && left.end > at
        };
        if pas.iter().any(overlaps) {
            debug_assert!(false, "preallocations overlap at {at}..{end}");
            return vec![run];
        }
        pas.push_front(Mutex::new(Pa::new(OfInode { logical: at }, run)));
        if pas.len() <= ENTRIES_MAX + SLACK {
            return Vec::new();
        }
        pas.retain(|entry| !entry.lock().is_deleted());
        if pas.len() <= ENTRIES_MAX + SLACK {
            return Vec::new();
        }
        pas.drain(ENTRIES_MAX..)
            .filter_map(|entry| entry.lock().delete())
            .collect()
    }

    /// See [`Tree::clip`](crate::alloc::preallocation::tree::Tree::clip).
    pub(in crate::alloc::preallocation) fn clip(&self, at: u64, window: Range<u64>) -> Range<u64> {
        let mut window = window;
        for entry in self.pas.read().iter() {
            let left = entry.lock().logical_left();
            if left.is_empty() {
                continue;
            }
            if left.start > at {
                window.end = window.end.min(left.start);
            } else {
                window.start = window.start.max(left.end.min(at));
            }
        }
        window
    }

    /// See [`Tree::discard`](crate::alloc::preallocation::tree::Tree::discard).
    pub(in crate::alloc::preallocation) fn discard(&self) -> Vec<Run> {
        std::mem::take(&mut *self.pas.write())
            .into_iter()
            .filter_map(|entry| entry.lock().delete())
            .collect()
    }

    #[cfg(test)]
    pub(in crate::alloc::preallocation) fn len(&self) -> usize {
        self.pas.read().len()
    }
}
