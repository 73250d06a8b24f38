//! Discarding unused blocks (FITRIM).
//!
//! A free run is taken in memory while it is being discarded, so that no writer gets it; runs freed by a
//! transaction that has not committed are not available and so not discarded: a crash may
//! bring their contents back.

use super::{Allocator, Run};
use crate::{Error, Result};
use blockwright_device::DevOffset;
use blockwright_ondisk::ext4::{BlockNo, GroupNo};
use std::ops::Range;

impl Allocator {
    /// [`blockwright_vfs::engine::Space::trim`].
    ///
    /// # Errors
    /// `Invalid` for a range that begins behind the end or is shorter than a block, and for runs longer than a group; `Unsupported` where
    /// the device cannot discard.
    pub fn trim(&self, range: Range<u64>, bytes_min: u64) -> Result<u64> {
        const OP: &str = "trim";
        self.volume.check_writable(OP)?;
        if !self.volume.device.geometry().discard {
            return Err(
                Error::new(crate::ErrorKind::Unsupported, OP).detail("the device cannot discard")
            );
        }
        let geo = self.volume.geometry();
        let bits = geo.block_bits;
        let per_group = u64::from(geo.blocks_per_group) << bits;
        let blocks = range.end.saturating_sub(range.start) >> bits;
        if range.start >> bits >= geo.blocks_count || blocks == 0 || bytes_min > per_group {
            return Err(Error::new(crate::ErrorKind::Invalid, OP));
        }
        // What was freed and not committed cannot be given back, as a crash would bring it back.
        self.volume
            .journal
            .sync(self.volume.journal.running_tid())?;
        let first = BlockNo((range.start >> bits).max(geo.first_data_block.0));
        let end = (range.end >> bits).min(geo.blocks_count);
        if first.0 >= end {
            return Ok(0);
        }
        let min = u32::try_from(bytes_min.div_ceil(1 << bits).max(1)).unwrap_or(u32::MAX);
        let (Some(from), Some(last)) = (
            geo.group_of_block(first),
            geo.group_of_block(BlockNo(end - 1)),
        ) else {
            return Ok(0);
        };
        let mut trimmed = 0u64;
        for g in (from.0..=last.0).map(GroupNo) {
            let base = geo.group_first_block(g).0;
            let low = first.0.saturating_sub(base) as u32;
            let high = (end - base).min(u64::from(geo.group_blocks(g))) as u32;
            let mut at = low;
            while let Some(run) = self.take_for_trim(g, at..high, min)? {
                at = (run.end().0 - base) as u32;
                let bytes = u64::from(run.len) << bits;
                let result = self
                    .volume
                    .device
                    .discard(DevOffset(run.start.0 << bits), bytes);
                self.put_back(run);
                result.map_err(|e| Error::io(OP, e))?;
                trimmed += bytes;
            }
        }
        Ok(trimmed)
    }

    /// Takes the next available run of a group, of at least `min` blocks, in a range of its blocks.
    fn take_for_trim(&self, group: GroupNo, range: Range<u32>, min: u32) -> Result<Option<Run>> {
        let base = self.volume.geometry().group_first_block(group).0;
        if self.free_in_group(group) < min {
            return Ok(None);
        }
        let found = self.take_from_group(group, |map| {
            let mut at = range.start;
            while let Some((start, len)) = map.next_run(at) {
                if start >= range.end {
                    return None;
                }
                let len = len.min(range.end - start);
                if len >= min {
                    return Some((start, len));
                }
                at = start + len;
            }
            None
        })?;
        debug_assert!(found.is_none_or(|r| r.start.0 >= base));
        Ok(found)
    }
}
