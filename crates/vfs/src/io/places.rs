//! Where operations past the cache find or get their blocks, and how they stay coherent with the cache.
//!
//! # Coherence
//! Dirty pages over the range are written first and clean ones dropped, before and after a write.
//!
//! # Locks
//! Places of overwrites and allocations are asked for with the inode lock held.

use crate::cache::extent_cache::Pieces;
use crate::core::Core;
use crate::engine::{Intent, Place, WriteTarget};
use crate::error::{Error, ErrorKind};
use crate::inode::Inode;
use blockwright_device::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// How far around a miss places are learnt.
pub(super) const LEARN_BYTES: u64 = 128 << 20;

impl Core {
    /// The whole blocks that a range touches.
    pub(crate) fn blocks_over(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.block();
        range.start / block * block..range.end.next_multiple_of(block)
    }

    pub(crate) fn flush_overlap(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let range = self.blocks_over(&range);
        if inode.pages.has_unwritten(range.clone()) {
            self.write_range(inode, range);
        }
    }

    /// Drops clean cached pages over the range. Whether there were any.
    pub(crate) fn drop_overlap(&self, inode: &Arc<Inode>, range: Range<u64>) -> bool {
        let block = self.block();
        let range = self.blocks_over(&range);
        if !inode.pages.overlaps(range.clone()) {
            return false;
        }
        let had = {
            let mut table = inode.pages.lock();
            let had = table.overlaps(range.clone());
            if had {
                table.drop_clean(range, block);
            }
            had
        };
        if had {
            inode.pages.wake_waiters();
        }
        had
    }

    /// Whether a direct write may go past the cache.
    pub(crate) fn is_direct_aligned(&self, offset: u64, len: usize) -> bool {
        let block = self.block();
        offset.is_multiple_of(block) && (len as u64).is_multiple_of(block) && len > 0
    }

    /// Whether the device takes such a write, if the blocks it touches hold data already.
    pub(crate) fn is_device_aligned(&self, offset: u64, len: usize) -> bool {
        let logical = u64::from(self.logical_block_bytes);
        offset.is_multiple_of(logical) && (len as u64).is_multiple_of(logical) && len > 0
    }

    /// Where an overwrite of the range goes, when neither blocks nor size change by it and the engine
    /// keeps data where it is. The inode lock is held, and the range lies below the size.
    pub(crate) fn overwrite_places(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
    ) -> Option<Pieces> {
        if let Some(pieces) = inode.extent_cache.find(range) {
            return Some(pieces);
        }
        if !self.format.keeps_places {
            return None;
        }
        let mut at = range.start / self.block() * self.block();
        while at < range.end {
            // As far as it goes: the neighbourhood is likely to be overwritten too.
            let m = self.engine.extent_in_place(inode, at, LEARN_BYTES).ok()??;
            let end = m.offset.saturating_add(m.bytes);
            let Place::Mapped(device) = m.place else {
                return None;
            };
            if end <= at || m.offset > at {
                return None;
            }
            inode.extent_cache.learn(m.offset..end, device);
            at = end;
        }
        inode.extent_cache.find(range)
    }

    /// Allocates for a direct write of a block-aligned range, from its start on: what was allocated, how far that
    /// goes, and why not to the end. Stops at a target in the inode.
    pub(crate) fn take_targets(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
        data_end: u64,
    ) -> (Vec<WriteTarget>, u64, Option<Error>) {
        let mut targets = Vec::new();
        let mut at = range.start;
        let mut retried = false;
        while at < range.end {
            let asked = self
                .engine
                .allocate(inode, at..range.end, data_end, Intent::Direct);
            match asked {
                Ok(t) if t.offset == at && t.bytes > 0 => {
                    at = range.end.min(at.saturating_add(t.bytes));
                    let in_inode = t.device.is_none();
                    targets.push(t);
                    if in_inode {
                        break;
                    }
                }
                Ok(_) => {
                    let e = Error::corrupt("allocate", "the target does not start where asked");
                    return (targets, at, Some(e));
                }
                Err(e) if e.kind() == ErrorKind::NoSpace && !retried => {
                    retried = true;
                    if !self.reclaim_removed() {
                        return (targets, at, Some(e));
                    }
                }
                Err(e) => return (targets, at, Some(e)),
            }
        }
        (targets, at, None)
    }
}

/// The first `bytes` of these slices, and the rest.
pub(crate) fn split_slices(mut slices: Vec<IoSlice>, bytes: u64) -> (Vec<IoSlice>, Vec<IoSlice>) {
    let mut left = bytes as usize;
    let ends_in = slices.iter().position(|s| {
        let inside = s.len() > left;
        if !inside {
            left -= s.len();
        }
        inside
    });
    let Some(k) = ends_in else {
        return (slices, Vec::new());
    };
    let mut later = slices.split_off(k);
    if left > 0 {
        let cut = &later[0];
        slices.push(cut.slice(0..left));
        later[0] = cut.slice(left..cut.len());
    }
    (slices, later)
}
