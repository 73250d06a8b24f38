//! Width of block numbers (`64bit`): descriptors of 64 bytes instead of 32, and back.
//!
//! # Crash order
//! Descriptors are written again in the blocks that they have, and more or fewer of them behind: blocks that the resize inode reserves, or that are
//! free then. All is one transaction of the journal. Its superblock is what makes the change (`Order::Superblock`): a kernel learns the size of descriptors
//! before it replays the journal. While descriptors are written in place, it refuses to mount until e2fsck has replayed the journal.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Block Group Descriptors"; resize2fs(8), `-b` and `-s`.

use blockwright_ondisk::ext4::{Compat, Incompat, RawSuperblock, Superblock};

use super::commit::Order;
use super::shape::{change_resize_inode, count_overhead, free_descriptor_blocks};
use super::volume::Volume;
use crate::error::{ReshapeError, Result};

/// Bytes of a descriptor with `64bit`, as tools make it.
const WIDE: u16 = 64;
/// Bytes of a descriptor without.
const NARROW: u16 = 32;
/// Blocks of the transaction beside descriptors: bitmaps of groups that hold copies, inodes, the superblock.
const FIXED_WEIGHT: usize = 8;

/// The superblock with block numbers of 64 bits, or of 32.
///
/// # Errors
/// `Unsupported` where descriptors have no room, or block numbers are too high.
pub(super) fn widened(sb: &Superblock, on: bool) -> Result<RawSuperblock> {
    let refuse = |why: &str| {
        let verb = if on { "set" } else { "cleared" };
        Err(ReshapeError::Unsupported(format!(
            "the feature 64bit is not {verb}: {why}"
        )))
    };
    let old = &sb.geo;
    if old.features.has_incompat(Incompat::META_BG) {
        return refuse("every meta group (meta_bg) would hold other groups' descriptors");
    }
    if on && !old.features.has_incompat(Incompat::EXTENT) {
        return refuse("files without extents have block numbers of 32 bits: set extent first");
    }
    if !on && old.blocks_count > u64::from(u32::MAX) {
        return refuse("the volume has 2^32 blocks or more");
    }
    let (free, reserved) = (sb.raw.free_blocks_count(), sb.raw.reserved_blocks_count());
    let mut raw = sb.raw;
    let mut features = raw.features();
    features.incompat.set(Incompat::BIT64, on);
    raw.set_features(features);
    raw.desc_size.set(if on { WIDE } else { NARROW });
    // The upper halves mean nothing on a volume without the feature.
    raw.set_blocks_count(old.blocks_count);
    raw.set_free_blocks_count(free);
    raw.set_reserved_blocks_count(reserved);
    let per = old.block_size / u32::from(if on { WIDE } else { NARROW });
    let blocks = old.groups_count.div_ceil(per);
    let reserve = old.features.has_compat(Compat::RESIZE_INODE);
    let had = old.reserved_gdt_blocks;
    if blocks > old.desc_blocks {
        let more = blocks - old.desc_blocks;
        if !reserve || more > had {
            return refuse("no blocks are reserved for larger descriptors (resize_inode)");
        }
        raw.reserved_gdt_blocks.set((had - more) as u16);
    } else if reserve {
        let now = (had + old.desc_blocks - blocks).min(old.block_size / 4);
        raw.reserved_gdt_blocks.set(now as u16);
    }
    Ok(raw)
}

impl Volume {
    /// Makes block numbers 64 bits wide, or 32.
    ///
    /// # Errors
    /// As [`widened`]; damage; `NoSpace`.
    pub fn set_width(&mut self, on: bool) -> Result<()> {
        let old = self.sb.geo.clone();
        let new = Superblock::from_raw(widened(&self.sb, on)?, None)?;
        let copies = old.groups().filter(|g| old.group_has_super(*g)).count();
        let reserved = old.reserved_gdt_blocks.max(new.geo.reserved_gdt_blocks) as usize;
        let weight = new.geo.desc_blocks.max(old.desc_blocks) as usize;
        let mut log = self.log_for(weight + reserved + copies + FIXED_WEIGHT)?;
        // Again: the journal may be another one by now.
        let new = Superblock::from_raw(widened(&self.sb, on)?, None)?;
        self.bitmap_checksums(&new.geo)?;
        self.sb = new;
        free_descriptor_blocks(self, &old)?;
        change_resize_inode(self, &old)?;
        count_overhead(self, &old);
        self.commit_staged(&mut log, Order::Superblock)
    }
}
