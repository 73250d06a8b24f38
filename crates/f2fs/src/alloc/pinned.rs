//! Disabled checkpoints: blocks that the last checkpoint calls valid stay unchanged until checkpoints are enabled again.
//!
//! Otherwise they stay until the next checkpoint, and blocks that were given up are handed out again after it. While checkpoints are
//! disabled there is no next one. Blocks of the last one are *pinned*; all others are handed out again as soon as
//! nothing refers to them and no reader may still be about to read them ([`Segments::reclaim`]).
//!
//! Pinned blocks that nothing refers to any more are unusable. An overwrite of a pinned block needs a new one, and room for
//! that is kept when blocks are promised.

use super::{Inner, Segments};
use blockwright_ondisk::f2fs::sit::ValidMap;
use blockwright_ondisk::f2fs::{BlockAddr, SegNo};
use hashbrown::HashMap;
use std::sync::atomic::Ordering;

/// Valid blocks of the checkpoint that counts, where there are any.
pub(super) type Pinned = HashMap<SegNo, ValidMap>;

impl Inner {
    fn pinned_in(&self, seg: SegNo) -> Option<ValidMap> {
        let pinned = self.pinned.as_ref()?;
        Some(pinned.get(&seg).copied().unwrap_or_default())
    }
}

impl Segments {
    /// The checkpoint that was just written counts for good.
    pub(crate) fn pin(&self) {
        let mut inner = self.inner.lock();
        let valid = inner.segs.stored().filter(|(_, s)| s.now.count() > 0);
        let pinned: Pinned = valid.map(|(seg, s)| (seg, s.now)).collect();
        inner.pinned = Some(pinned);
        self.is_pinned.store(true, Ordering::Release);
    }

    /// A newer one counts.
    pub(crate) fn unpin(&self) {
        self.inner.lock().pinned = None;
        self.is_pinned.store(false, Ordering::Release);
    }

    /// Whether checkpoints are disabled.
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Ordering::Acquire)
    }

    /// Whether a block is pinned, and for how many of `len` from there on the same holds.
    pub(crate) fn pinned_run(&self, block: BlockAddr, len: u64) -> (bool, u64) {
        let inner = self.inner.lock();
        let at = |n: u64| {
            let block = BlockAddr(block.0 + n as u32);
            self.geo.segment_of(block).is_some_and(|(seg, at)| {
                let pinned = inner.pinned_in(seg);
                pinned.is_some_and(|map| map.get(at))
            })
        };
        let first = at(0);
        let run = (1..len).find(|n| at(*n) != first).unwrap_or(len.max(1));
        (first, run)
    }

    /// Makes blocks available again that are neither referred to nor pinned. No operation is under way, and no reader may know these blocks.
    pub(crate) fn reclaim(&self) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let changed: Vec<SegNo> = inner.changed.iter().copied().collect();
        for seg in changed {
            let Some(pinned) = inner.pinned_in(seg) else {
                return;
            };
            let s = inner.segs.get_mut(seg);
            let before = std::mem::replace(&mut s.then, pinned);
            let now = s.now;
            let gone = (0..512).filter(|at| before.get(*at) && !pinned.get(*at) && !now.get(*at));
            self.held.fetch_sub(gone.count() as u64, Ordering::Relaxed);
            self.refresh_free(inner, seg);
        }
    }

    /// Blocks that are pinned and that nothing refers to: what disabled checkpoints cost.
    pub(crate) fn unusable(&self) -> u64 {
        let inner = self.inner.lock();
        let of = |seg: &SegNo| {
            let now = inner.segs.get(*seg).now;
            let pinned = inner.pinned_in(*seg).unwrap_or_default();
            (0..512)
                .filter(|at| pinned.get(*at) && !now.get(*at))
                .count() as u64
        };
        inner.changed.iter().map(of).sum()
    }

    /// Blocks that cannot be handed out although nothing is in them: in `lfs` mode, all of segments in use.
    pub(crate) fn holes(&self) -> u64 {
        match self.mode {
            crate::options::Mode::Adaptive => 0,
            crate::options::Mode::Lfs => {
                let held = self.held.load(Ordering::Relaxed);
                (self.geo.main_blocks().saturating_sub(held)).saturating_sub(self.available())
            }
        }
    }

    /// This many blocks are needed to write out nodes and directories.
    pub(crate) fn set_spill_need(&self, blocks: u64) {
        self.spill_need.store(blocks, Ordering::Relaxed);
    }

    /// Whether there is room for this many blocks more while checkpoints are disabled.
    pub(super) fn has_room_pinned(&self, inner: &Inner, more: u64) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        let room = (self.geo.main_blocks() + self.leases.unused()).saturating_sub(held);
        inner.counts.promised + more + self.spill_need.load(Ordering::Relaxed) <= room
    }
}
