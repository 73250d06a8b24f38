//! Group descriptors: where each group's bitmaps and inode table are, and how much is free.
//!
//! The first 32 bytes are common to all volumes; with `64bit` a descriptor has 64 bytes or more,
//! which add the high halves. [`GroupDesc`] has the halves joined. Bytes past the 64th are kept
//! (and covered by the checksum) but mean nothing.
//!
//! Not responsible for: the location of descriptors (see [`Geometry`]), bitmap contents.

use std::mem::{offset_of, size_of};

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{self, ChecksumKind, GROUP_DESC_CHECKSUM_OFFSET};
use super::error::FormatError;
use super::features::Incompat;
use super::geometry::Geometry;
use super::types::{BlockNo, GroupNo};

bitflags! {
    /// `bg_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap and table were never written; all inodes are free.
        const INODE_UNINIT = 0x0001;
        /// The block bitmap was never written; only the group's own metadata is in use.
        const BLOCK_UNINIT = 0x0002;
        /// The inode table is zeroed.
        const INODE_ZEROED = 0x0004;
        const _ = !0;
    }
}

/// The low 32 bytes of a group descriptor. Fields keep their documented names, without `bg_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawGroupDesc32 {
    pub block_bitmap_lo: U32,
    pub inode_bitmap_lo: U32,
    pub inode_table_lo: U32,
    pub free_blocks_count_lo: U16,
    pub free_inodes_count_lo: U16,
    pub used_dirs_count_lo: U16,
    pub flags: U16,
    pub exclude_bitmap_lo: U32,
    pub block_bitmap_csum_lo: U16,
    pub inode_bitmap_csum_lo: U16,
    pub itable_unused_lo: U16,
    pub checksum: U16,
}

/// A 64-byte group descriptor. Fields keep their documented names, without `bg_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawGroupDesc64 {
    pub lo: RawGroupDesc32,
    pub block_bitmap_hi: U32,
    pub inode_bitmap_hi: U32,
    pub inode_table_hi: U32,
    pub free_blocks_count_hi: U16,
    pub free_inodes_count_hi: U16,
    pub used_dirs_count_hi: U16,
    pub itable_unused_hi: U16,
    pub exclude_bitmap_hi: U32,
    pub block_bitmap_csum_hi: U16,
    pub inode_bitmap_csum_hi: U16,
    pub reserved: U32,
}

const _: () = {
    assert!(size_of::<RawGroupDesc32>() == 32);
    assert!(size_of::<RawGroupDesc64>() == 64);
    assert!(offset_of!(RawGroupDesc32, flags) == 0x12);
    assert!(offset_of!(RawGroupDesc32, checksum) == GROUP_DESC_CHECKSUM_OFFSET);
    assert!(offset_of!(RawGroupDesc64, block_bitmap_hi) == 0x20);
    assert!(offset_of!(RawGroupDesc64, itable_unused_hi) == 0x32);
    assert!(offset_of!(RawGroupDesc64, inode_bitmap_csum_hi) == 0x3A);
};

/// A group descriptor with its halves joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupDesc {
    /// Block of the block (cluster) bitmap.
    pub block_bitmap: BlockNo,
    /// Block of the inode bitmap.
    pub inode_bitmap: BlockNo,
    /// First block of the inode table.
    pub inode_table: BlockNo,
    /// Free clusters (blocks, without bigalloc).
    pub free_clusters: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories among the group's inodes.
    pub used_dirs: u32,
    /// State of bitmaps and inode table.
    pub flags: GroupFlags,
    /// Block of the snapshot exclude bitmap (unused by any released system).
    pub exclude_bitmap: BlockNo,
    /// Checksum of the block bitmap; only 16 bits are kept by 32-byte descriptors.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap; only 16 bits are kept by 32-byte descriptors.
    pub inode_bitmap_csum: u32,
    /// Inodes at the end of the table that were never used.
    pub itable_unused: u32,
}

fn join32(lo: U32, hi: U32) -> u64 {
    u64::from(lo.get()) | u64::from(hi.get()) << 32
}

fn join16(lo: U16, hi: U16) -> u32 {
    u32::from(lo.get()) | u32::from(hi.get()) << 16
}

impl GroupDesc {
    /// Parses a descriptor of `geo.desc_size` bytes, verifies its checksum, and checks that what
    /// it points at can be there.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::GroupDescChecksum`], or what [`Self::validate`]
    /// returns.
    pub fn parse(bytes: &[u8], geo: &Geometry, group: GroupNo) -> Result<Self, FormatError> {
        verify_checksum(bytes, geo, group)?;
        let desc = Self::decode(bytes, geo)?;
        desc.validate(geo, group)?;
        Ok(desc)
    }

    /// Parses without verifying anything: for checkers.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn decode(bytes: &[u8], geo: &Geometry) -> Result<Self, FormatError> {
        let bytes = desc_bytes(bytes, geo)?;
        let mut full = [0u8; 64];
        let known = bytes.len().min(64);
        full[..known].copy_from_slice(&bytes[..known]);
        let raw: RawGroupDesc64 = zerocopy::transmute!(full);
        Ok(Self {
            block_bitmap: BlockNo(join32(raw.lo.block_bitmap_lo, raw.block_bitmap_hi)),
            inode_bitmap: BlockNo(join32(raw.lo.inode_bitmap_lo, raw.inode_bitmap_hi)),
            inode_table: BlockNo(join32(raw.lo.inode_table_lo, raw.inode_table_hi)),
            free_clusters: join16(raw.lo.free_blocks_count_lo, raw.free_blocks_count_hi),
            free_inodes: join16(raw.lo.free_inodes_count_lo, raw.free_inodes_count_hi),
            used_dirs: join16(raw.lo.used_dirs_count_lo, raw.used_dirs_count_hi),
            flags: GroupFlags::from_bits_retain(raw.lo.flags.get()),
            exclude_bitmap: BlockNo(join32(raw.lo.exclude_bitmap_lo, raw.exclude_bitmap_hi)),
            block_bitmap_csum: join16(raw.lo.block_bitmap_csum_lo, raw.block_bitmap_csum_hi),
            inode_bitmap_csum: join16(raw.lo.inode_bitmap_csum_lo, raw.inode_bitmap_csum_hi),
            itable_unused: join16(raw.lo.itable_unused_lo, raw.itable_unused_hi),
        })
    }

    /// Stores the descriptor into its `geo.desc_size` bytes and sets the checksum.
    ///
    /// Bytes that have no field are left alone.
    ///
    /// # Errors
    /// [`FormatError::Truncated`] for a short slice.
    pub fn encode_into(
        &self,
        bytes: &mut [u8],
        geo: &Geometry,
        group: GroupNo,
    ) -> Result<(), FormatError> {
        let old = desc_bytes(bytes, geo)?;
        let known = old.len().min(64);
        let reserved = if known == 64 {
            [old[60], old[61], old[62], old[63]]
        } else {
            [0; 4]
        };
        let hi16 = |n: u32| U16::new((n >> 16) as u16);
        let lo16 = |n: u32| U16::new(n as u16);
        let raw = RawGroupDesc64 {
            lo: RawGroupDesc32 {
                block_bitmap_lo: U32::new(self.block_bitmap.0 as u32),
                inode_bitmap_lo: U32::new(self.inode_bitmap.0 as u32),
                inode_table_lo: U32::new(self.inode_table.0 as u32),
                free_blocks_count_lo: lo16(self.free_clusters),
                free_inodes_count_lo: lo16(self.free_inodes),
                used_dirs_count_lo: lo16(self.used_dirs),
                flags: U16::new(self.flags.bits()),
                exclude_bitmap_lo: U32::new(self.exclude_bitmap.0 as u32),
                block_bitmap_csum_lo: lo16(self.block_bitmap_csum),
                inode_bitmap_csum_lo: lo16(self.inode_bitmap_csum),
                itable_unused_lo: lo16(self.itable_unused),
                checksum: U16::ZERO,
            },
            block_bitmap_hi: U32::new((self.block_bitmap.0 >> 32) as u32),
            inode_bitmap_hi: U32::new((self.inode_bitmap.0 >> 32) as u32),
            inode_table_hi: U32::new((self.inode_table.0 >> 32) as u32),
            free_blocks_count_hi: hi16(self.free_clusters),
            free_inodes_count_hi: hi16(self.free_inodes),
            used_dirs_count_hi: hi16(self.used_dirs),
            itable_unused_hi: hi16(self.itable_unused),
            exclude_bitmap_hi: U32::new((self.exclude_bitmap.0 >> 32) as u32),
            block_bitmap_csum_hi: hi16(self.block_bitmap_csum),
            inode_bitmap_csum_hi: hi16(self.inode_bitmap_csum),
            reserved: U32::from_bytes(reserved),
        };
        let Some(dest) = bytes.get_mut(..known) else {
            return Ok(());
        };
        dest.copy_from_slice(&raw.as_bytes()[..known]);
        set_checksum(bytes, geo, group)
    }

    /// Checks that bitmaps and inode table lie in the volume (in the group, without flex_bg) and
    /// that no count exceeds what a group has.
    ///
    /// # Errors
    /// One variant per check.
    pub fn validate(&self, geo: &Geometry, group: GroupNo) -> Result<(), FormatError> {
        let table_len = u64::from(geo.inode_table_blocks);
        let flex = geo.features.has_incompat(Incompat::FLEX_BG);
        for (what, first, len) in [
            ("block bitmap", self.block_bitmap, 1),
            ("inode bitmap", self.inode_bitmap, 1),
            ("inode table", self.inode_table, table_len),
        ] {
            let in_group = || {
                let start = geo.group_first_block(group).0;
                let end = start + u64::from(geo.group_blocks(group));
                first.0 >= start && first.0 + len <= end
            };
            if !geo.contains_run(first, len) || !(flex || in_group()) {
                return Err(FormatError::GroupDescLocation {
                    group,
                    what,
                    block: first,
                    len,
                });
            }
        }
        let tables = [self.block_bitmap, self.inode_bitmap]
            .map(|b| b >= self.inode_table && b.0 - self.inode_table.0 < table_len);
        if tables != [false; 2] || self.block_bitmap == self.inode_bitmap {
            return Err(FormatError::GroupDescOverlap { group });
        }
        for (what, found, max) in [
            ("free clusters", self.free_clusters, geo.clusters_per_group),
            ("free inodes", self.free_inodes, geo.inodes_per_group),
            ("directories", self.used_dirs, geo.inodes_per_group),
            ("unused inodes", self.itable_unused, geo.inodes_per_group),
        ] {
            if found > max {
                return Err(FormatError::GroupDescCount {
                    group,
                    what,
                    found,
                    max,
                });
            }
        }
        Ok(())
    }

    /// Compares a block bitmap with the checksum kept here.
    ///
    /// # Errors
    /// [`FormatError::BitmapChecksum`].
    pub fn verify_block_bitmap(
        &self,
        bitmap: &[u8],
        geo: &Geometry,
        group: GroupNo,
    ) -> Result<(), FormatError> {
        let covered = &bitmap[..bitmap.len().min(geo.block_bitmap_bytes())];
        verify_bitmap("block bitmap", covered, self.block_bitmap_csum, geo, group)
    }

    /// Compares an inode bitmap with the checksum kept here.
    ///
    /// # Errors
    /// [`FormatError::BitmapChecksum`].
    pub fn verify_inode_bitmap(
        &self,
        bitmap: &[u8],
        geo: &Geometry,
        group: GroupNo,
    ) -> Result<(), FormatError> {
        let covered = &bitmap[..bitmap.len().min(geo.inode_bitmap_bytes())];
        verify_bitmap("inode bitmap", covered, self.inode_bitmap_csum, geo, group)
    }

    /// Records the checksum of a block bitmap; nothing without metadata checksums.
    pub fn set_block_bitmap_csum(&mut self, bitmap: &[u8], geo: &Geometry) {
        if geo.metadata_csum() {
            let covered = &bitmap[..bitmap.len().min(geo.block_bitmap_bytes())];
            self.block_bitmap_csum = geo.seed.bitmap(covered) & bitmap_csum_mask(geo);
        }
    }

    /// Records the checksum of an inode bitmap; nothing without metadata checksums.
    pub fn set_inode_bitmap_csum(&mut self, bitmap: &[u8], geo: &Geometry) {
        if geo.metadata_csum() {
            let covered = &bitmap[..bitmap.len().min(geo.inode_bitmap_bytes())];
            self.inode_bitmap_csum = geo.seed.bitmap(covered) & bitmap_csum_mask(geo);
        }
    }
}

/// 32-byte descriptors have room for the low half of a bitmap's checksum only.
fn bitmap_csum_mask(geo: &Geometry) -> u32 {
    if geo.desc_size >= 64 {
        u32::MAX
    } else {
        0xFFFF
    }
}

fn verify_bitmap(
    what: &'static str,
    covered: &[u8],
    stored: u32,
    geo: &Geometry,
    group: GroupNo,
) -> Result<(), FormatError> {
    if !geo.metadata_csum() {
        return Ok(());
    }
    let mask = bitmap_csum_mask(geo);
    let expected = geo.seed.bitmap(covered) & mask;
    let found = stored & mask;
    if crate::sums_differ(found, expected) {
        return Err(FormatError::BitmapChecksum {
            group,
            what,
            found,
            expected,
        });
    }
    Ok(())
}

fn desc_bytes<'a>(bytes: &'a [u8], geo: &Geometry) -> Result<&'a [u8], FormatError> {
    let needed = usize::from(geo.desc_size);
    bytes.get(..needed).ok_or(FormatError::Truncated {
        structure: "group descriptor",
        needed,
        found: bytes.len(),
    })
}

fn compute_checksum(desc: &[u8], geo: &Geometry, group: GroupNo) -> Option<u16> {
    match geo.checksums {
        ChecksumKind::None => None,
        ChecksumKind::GroupDescCrc16 => Some(checksum::group_desc_crc16(&geo.uuid, group, desc)),
        ChecksumKind::Crc32c => Some(geo.seed.group_desc(group, desc)),
    }
}

/// Verifies a descriptor's checksum, of whichever kind the volume uses.
///
/// # Errors
/// [`FormatError::GroupDescChecksum`], [`FormatError::Truncated`].
pub fn verify_checksum(bytes: &[u8], geo: &Geometry, group: GroupNo) -> Result<(), FormatError> {
    let desc = desc_bytes(bytes, geo)?;
    let at = GROUP_DESC_CHECKSUM_OFFSET;
    let found = u16::from_le_bytes([desc[at], desc[at + 1]]);
    match compute_checksum(desc, geo, group) {
        Some(expected) if crate::sums_differ(found, expected) => {
            Err(FormatError::GroupDescChecksum {
                group,
                found,
                expected,
            })
        }
        _ => Ok(()),
    }
}

/// Stores a descriptor's checksum, of whichever kind the volume uses.
///
/// # Errors
/// [`FormatError::Truncated`].
pub fn set_checksum(bytes: &mut [u8], geo: &Geometry, group: GroupNo) -> Result<(), FormatError> {
    let sum = compute_checksum(desc_bytes(bytes, geo)?, geo, group).unwrap_or(0);
    let at = GROUP_DESC_CHECKSUM_OFFSET;
    bytes[at..at + 2].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}
