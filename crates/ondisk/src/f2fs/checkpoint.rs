//! The head of a checkpoint pack: sizes, the heads of the logs, flags, and the version bitmaps that
//! say which copy of each SIT and NAT block is valid.
//!
//! A pack begins and ends with a copy of this block; it is valid when both are, with the same
//! version. Of two valid packs the one with the greater version counts.
//!
//! The version bitmaps lie behind the structure (the SIT's first), or, with `large_nat_bitmap`, the
//! NAT's first behind a checksum that lies before them; where they would not fit, the SIT's lies in
//! the `cp_payload` blocks behind the head. Their bits count from the most significant of each byte.

use std::mem::{offset_of, size_of};

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum;
use super::error::FormatError;
use super::geometry::{Copy2, Geometry};
use super::types::{BLOCK_SIZE, BLOCKS_PER_SEG, Log, Nid, SegNo};

bitflags! {
    /// `ckpt_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct CheckpointFlags: u32 {
        /// Written at unmount: nothing to recover, node summaries are in the pack.
        const UMOUNT = 0x0001;
        /// There are orphan blocks.
        const ORPHAN_PRESENT = 0x0002;
        /// Data summaries are compact.
        const COMPACT_SUM = 0x0004;
        /// Metadata was found damaged.
        const ERROR = 0x0008;
        /// A check is wanted.
        const FSCK = 0x0010;
        /// Node summaries are in the pack although it was not written at unmount.
        const FASTBOOT = 0x0020;
        /// Node footers carry the checkpoint's checksum in the high half of their version.
        const CRC_RECOVERY = 0x0040;
        /// The pack's segment ends with bitmaps of full and empty NAT blocks.
        const NAT_BITS = 0x0080;
        /// Everything free was discarded.
        const TRIMMED = 0x0100;
        /// Only the version in node footers counts, although `CRC_RECOVERY` is set.
        const NOCRC_RECOVERY = 0x0200;
        /// The NAT's version bitmap comes first, behind the checksum.
        const LARGE_NAT_BITMAP = 0x0400;
        /// Quota files need a check.
        const QUOTA_NEED_FSCK = 0x0800;
        /// Checkpoints are disabled: what was written since does not count.
        const DISABLED = 0x1000;
        /// As `DISABLED`, and without cleaning first.
        const DISABLED_QUICK = 0x2000;
        /// The volume is being resized.
        const RESIZEFS = 0x4000;
        const _ = !0;
    }
}

impl CheckpointFlags {
    /// Names of the set flags, in bit order.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        const NAMES: [(CheckpointFlags, &str); 15] = [
            (CheckpointFlags::UMOUNT, "umount"),
            (CheckpointFlags::ORPHAN_PRESENT, "orphan_present"),
            (CheckpointFlags::COMPACT_SUM, "compacted_summary"),
            (CheckpointFlags::ERROR, "error"),
            (CheckpointFlags::FSCK, "fsck"),
            (CheckpointFlags::FASTBOOT, "fastboot"),
            (CheckpointFlags::CRC_RECOVERY, "crc_recovery"),
            (CheckpointFlags::NAT_BITS, "nat_bits"),
            (CheckpointFlags::TRIMMED, "trimmed"),
            (CheckpointFlags::NOCRC_RECOVERY, "nocrc_recovery"),
            (CheckpointFlags::LARGE_NAT_BITMAP, "large_nat_bitmap"),
            (CheckpointFlags::QUOTA_NEED_FSCK, "quota_need_fsck"),
            (CheckpointFlags::DISABLED, "disabled"),
            (CheckpointFlags::DISABLED_QUICK, "disabled_quick"),
            (CheckpointFlags::RESIZEFS, "resizefs"),
        ];
        let set = NAMES.iter().filter(|(f, _)| self.contains(*f));
        set.map(|(_, name)| *name).collect()
    }
}

/// Entries for logs of each kind; only the first three are in use.
pub const LOGS_MAX: usize = 8;
/// Where the checksum is unless the NAT's bitmap is large: at the block's end.
pub const CHECKSUM_OFFSET: usize = BLOCK_SIZE - 4;
/// Begin of the bitmaps, and the least possible offset of the checksum.
pub const BITMAP_OFFSET: usize = size_of::<RawCheckpoint>();
/// `alloc_type` of a log that appends to free segments.
pub const ALLOC_LFS: u8 = 0;
/// `alloc_type` of a log that fills holes of segments in use.
pub const ALLOC_SSR: u8 = 1;

/// The head, without the bitmaps. Fields keep their published names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawCheckpoint {
    pub checkpoint_ver: U64,
    pub user_block_count: U64,
    pub valid_block_count: U64,
    pub rsvd_segment_count: U32,
    pub overprov_segment_count: U32,
    pub free_segment_count: U32,
    pub cur_node_segno: [U32; LOGS_MAX],
    pub cur_node_blkoff: [U16; LOGS_MAX],
    pub cur_data_segno: [U32; LOGS_MAX],
    pub cur_data_blkoff: [U16; LOGS_MAX],
    pub ckpt_flags: U32,
    pub cp_pack_total_block_count: U32,
    pub cp_pack_start_sum: U32,
    pub valid_node_count: U32,
    pub valid_inode_count: U32,
    pub next_free_nid: U32,
    pub sit_ver_bitmap_bytesize: U32,
    pub nat_ver_bitmap_bytesize: U32,
    pub checksum_offset: U32,
    pub elapsed_time: U64,
    pub alloc_type: [u8; 2 * LOGS_MAX],
}

const _: () = {
    assert!(size_of::<RawCheckpoint>() == 192);
    assert!(offset_of!(RawCheckpoint, cur_node_segno) == 36);
    assert!(offset_of!(RawCheckpoint, cur_node_blkoff) == 68);
    assert!(offset_of!(RawCheckpoint, cur_data_segno) == 84);
    assert!(offset_of!(RawCheckpoint, ckpt_flags) == 132);
    assert!(offset_of!(RawCheckpoint, next_free_nid) == 152);
    assert!(offset_of!(RawCheckpoint, checksum_offset) == 164);
    assert!(offset_of!(RawCheckpoint, elapsed_time) == 168);
    assert!(offset_of!(RawCheckpoint, alloc_type) == 176);
};

impl RawCheckpoint {
    /// All-zero head, with no log.
    #[must_use]
    pub fn zeroed() -> Self {
        let mut raw = Self::new_zeroed();
        raw.cur_node_segno = [U32::new(u32::MAX); LOGS_MAX];
        raw.cur_data_segno = [U32::new(u32::MAX); LOGS_MAX];
        raw
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> CheckpointFlags {
        CheckpointFlags::from_bits_retain(self.ckpt_flags.get())
    }

    /// Head of a log: segment, offset of the next block, and how it allocates.
    #[must_use]
    pub fn log(&self, log: Log) -> LogHead {
        let at = log.temperature();
        // Allocation kinds are indexed by segment type, data first.
        let alloc = self.alloc_type[usize::from(log.code())];
        let (seg, offset) = if log.is_node() {
            (&self.cur_node_segno[at], &self.cur_node_blkoff[at])
        } else {
            (&self.cur_data_segno[at], &self.cur_data_blkoff[at])
        };
        LogHead {
            segment: SegNo(seg.get()),
            offset: offset.get(),
            alloc,
        }
    }

    /// Stores the head of a log.
    pub fn set_log(&mut self, log: Log, head: LogHead) {
        let at = log.temperature();
        self.alloc_type[usize::from(log.code())] = head.alloc;
        let (seg, offset) = if log.is_node() {
            (&mut self.cur_node_segno[at], &mut self.cur_node_blkoff[at])
        } else {
            (&mut self.cur_data_segno[at], &mut self.cur_data_blkoff[at])
        };
        seg.set(head.segment.0);
        offset.set(head.offset);
    }
}

/// Where a log continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHead {
    /// Its segment.
    pub segment: SegNo,
    /// Block in the segment that is next.
    pub offset: u16,
    /// [`ALLOC_LFS`] or [`ALLOC_SSR`].
    pub alloc: u8,
}

/// A version bitmap: which copy of each block of a table is valid. The first block's bit is the most
/// significant of the first byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionBitmap(Vec<u8>);

impl VersionBitmap {
    /// All first copies.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// The valid copy of block `index`; the first one past the end.
    #[must_use]
    pub fn get(&self, index: u32) -> Copy2 {
        let byte = self.0.get(index as usize / 8).copied().unwrap_or(0);
        Copy2::from_bit(byte & (0x80 >> (index % 8)) != 0)
    }

    /// Makes a copy of block `index` the valid one; nothing past the end.
    pub fn set(&mut self, index: u32, copy: Copy2) {
        if let Some(byte) = self.0.get_mut(index as usize / 8) {
            let bit = 0x80 >> (index % 8);
            match copy {
                Copy2::First => *byte &= !bit,
                Copy2::Second => *byte |= bit,
            }
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A validated head.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// As stored.
    pub raw: RawCheckpoint,
    /// Which copies of SIT blocks are valid.
    pub sit_bitmap: VersionBitmap,
    /// Which copies of NAT blocks are valid.
    pub nat_bitmap: VersionBitmap,
    /// The head's checksum, as found.
    pub checksum: u32,
}

/// Where the bitmaps are in the head and its payload taken together.
fn bitmap_places(flags: CheckpointFlags, geo: &Geometry) -> (usize, usize) {
    let (sit, nat) = (geo.sit_bitmap_bytes(), geo.nat_bitmap_bytes());
    if flags.contains(CheckpointFlags::LARGE_NAT_BITMAP) {
        (BITMAP_OFFSET + 4 + nat, BITMAP_OFFSET + 4)
    } else if geo.cp_payload > 0 {
        (BLOCK_SIZE, BITMAP_OFFSET)
    } else {
        (BITMAP_OFFSET, BITMAP_OFFSET + sit)
    }
}

/// Where the bitmaps must end at the latest.
fn bitmap_end(flags: CheckpointFlags, geo: &Geometry) -> usize {
    let payload = geo.cp_payload as usize * BLOCK_SIZE;
    if flags.contains(CheckpointFlags::LARGE_NAT_BITMAP) || payload > 0 {
        BLOCK_SIZE + payload
    } else {
        CHECKSUM_OFFSET
    }
}

/// The version of a head whose checksum is right; cheap, and enough to pair a pack's ends.
///
/// # Errors
/// [`FormatError::Truncated`], [`FormatError::CpChecksumOffset`], [`FormatError::CpChecksum`].
pub fn verify_block(block: &[u8]) -> Result<(RawCheckpoint, u32), FormatError> {
    let short = || FormatError::Truncated {
        structure: "checkpoint",
        needed: BLOCK_SIZE,
        found: block.len(),
    };
    let block = block.get(..BLOCK_SIZE).ok_or_else(short)?;
    let (raw, _) = RawCheckpoint::read_from_prefix(block).map_err(|_| short())?;
    let found = raw.checksum_offset.get();
    let offset = found as usize;
    if !(BITMAP_OFFSET..=CHECKSUM_OFFSET).contains(&offset) {
        return Err(FormatError::CpChecksumOffset { found });
    }
    let mut stored = [0; 4];
    stored.copy_from_slice(&block[offset..offset + 4]);
    let found = u32::from_le_bytes(stored);
    let expected = checksum::checkpoint(block, offset).ok_or_else(short)?;
    if crate::sums_differ(found, expected) {
        return Err(FormatError::CpChecksum { found, expected });
    }
    Ok((raw, found))
}

impl Checkpoint {
    /// From a head and its `cp_payload` blocks.
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse(blocks: &[u8], geo: &Geometry) -> Result<Self, FormatError> {
        let (raw, checksum) = verify_block(blocks)?;
        check(&raw, geo)?;
        let flags = raw.flags();
        let large = flags.contains(CheckpointFlags::LARGE_NAT_BITMAP);
        let offset = raw.checksum_offset.get();
        if large != (offset as usize == BITMAP_OFFSET) {
            return Err(FormatError::CpChecksumOffset { found: offset });
        }
        let (sit_at, nat_at) = bitmap_places(flags, geo);
        let end = bitmap_end(flags, geo);
        let bitmap = |what, at: usize, len: usize| {
            blocks
                .get(at..at + len)
                .filter(|_| at + len <= end)
                .map(|b| VersionBitmap(b.to_vec()))
                .ok_or(FormatError::CpBitmapRoom { what, at, len })
        };
        let nat_end = if geo.cp_payload > 0 && !large {
            CHECKSUM_OFFSET
        } else {
            end
        };
        let nat_len = geo.nat_bitmap_bytes();
        if nat_at + nat_len > nat_end {
            return Err(FormatError::CpBitmapRoom {
                what: "NAT",
                at: nat_at,
                len: nat_len,
            });
        }
        Ok(Self {
            sit_bitmap: bitmap("SIT", sit_at, geo.sit_bitmap_bytes())?,
            nat_bitmap: bitmap("NAT", nat_at, nat_len)?,
            raw,
            checksum,
        })
    }

    /// The head and its payload as blocks, checksum included. Sizes of the bitmaps and the
    /// checksum's place are set from the geometry and the flags. `None` when a bitmap does not fit.
    #[must_use]
    pub fn encode(&mut self, geo: &Geometry) -> Option<Vec<u8>> {
        let flags = self.raw.flags();
        let large = flags.contains(CheckpointFlags::LARGE_NAT_BITMAP);
        let offset = if large {
            BITMAP_OFFSET
        } else {
            CHECKSUM_OFFSET
        };
        self.raw.checksum_offset.set(offset as u32);
        self.raw
            .sit_ver_bitmap_bytesize
            .set(u32::try_from(self.sit_bitmap.0.len()).ok()?);
        self.raw
            .nat_ver_bitmap_bytesize
            .set(u32::try_from(self.nat_bitmap.0.len()).ok()?);
        let mut blocks = vec![0; BLOCK_SIZE * (1 + geo.cp_payload as usize)];
        blocks[..BITMAP_OFFSET].copy_from_slice(self.raw.as_bytes());
        let (sit_at, nat_at) = bitmap_places(flags, geo);
        let end = bitmap_end(flags, geo);
        for (at, map) in [(sit_at, &self.sit_bitmap.0), (nat_at, &self.nat_bitmap.0)] {
            if at + map.len() > end {
                return None;
            }
            blocks.get_mut(at..at + map.len())?.copy_from_slice(map);
        }
        let sum = checksum::checkpoint(&blocks[..BLOCK_SIZE], offset)?;
        blocks[offset..offset + 4].copy_from_slice(&sum.to_le_bytes());
        self.checksum = sum;
        Some(blocks)
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.raw.checkpoint_ver.get()
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> CheckpointFlags {
        self.raw.flags()
    }

    /// What node footers written after this checkpoint carry: the version, with the checksum in the
    /// high half where `CRC_RECOVERY` says so.
    #[must_use]
    pub fn footer_version(&self) -> u64 {
        if self.flags().contains(CheckpointFlags::CRC_RECOVERY) {
            self.version_with_checksum()
        } else {
            self.version()
        }
    }

    /// Whether a node's footer says that it was written after this checkpoint, and before any other.
    #[must_use]
    pub fn footer_matches(&self, footer_version: u64) -> bool {
        if self.flags().contains(CheckpointFlags::NOCRC_RECOVERY) {
            return self.version() << 32 == footer_version << 32;
        }
        self.footer_version() == footer_version
    }

    /// The version with the checksum in the high half; the first word of the NAT bits.
    #[must_use]
    pub fn version_with_checksum(&self) -> u64 {
        self.version() | u64::from(self.checksum) << 32
    }

    /// Whether the node logs' summaries are in the pack.
    #[must_use]
    pub fn has_node_summaries(&self) -> bool {
        self.flags()
            .intersects(CheckpointFlags::UMOUNT | CheckpointFlags::FASTBOOT)
    }
}

fn check(raw: &RawCheckpoint, geo: &Geometry) -> Result<(), FormatError> {
    let main = geo.main_segments;
    let read_only = geo.features.contains(super::Features::READ_ONLY);
    for (what, found, expected) in [
        (
            "SIT",
            raw.sit_ver_bitmap_bytesize.get(),
            geo.sit_bitmap_bytes(),
        ),
        (
            "NAT",
            raw.nat_ver_bitmap_bytesize.get(),
            geo.nat_bitmap_bytes(),
        ),
    ] {
        if found as usize != expected {
            return Err(FormatError::CpBitmapSize {
                what,
                found,
                expected,
            });
        }
    }
    for (what, found) in [
        ("reserved", raw.rsvd_segment_count.get()),
        ("over-provisioned", raw.overprov_segment_count.get()),
        ("free", raw.free_segment_count.get()),
    ] {
        // Linux mounts no volume without room for cleaning.
        let too_few = found == 0 && what != "free" && !read_only;
        if found > main || too_few {
            return Err(FormatError::CpSegments {
                what,
                found,
                max: main,
            });
        }
    }
    let (user, valid) = (raw.user_block_count.get(), raw.valid_block_count.get());
    if user > geo.main_blocks() || (user == 0 && !read_only) {
        return Err(FormatError::CpUserBlocks {
            found: user,
            max: geo.main_blocks(),
        });
    }
    if valid > user {
        return Err(FormatError::CpValidBlocks { valid, user });
    }
    let (nodes, inodes) = (raw.valid_node_count.get(), raw.valid_inode_count.get());
    if nodes >= geo.nids() || inodes > nodes || u64::from(nodes) > valid {
        return Err(FormatError::CpNodes {
            nodes,
            inodes,
            valid,
        });
    }
    let next = Nid(raw.next_free_nid.get());
    if next.0 > geo.nids() {
        return Err(FormatError::CpNextNid {
            found: next,
            max: geo.nids(),
        });
    }
    check_logs(raw, geo)?;
    let start = raw.cp_pack_start_sum.get();
    let total = raw.cp_pack_total_block_count.get();
    // Heads, payload, and one block of summaries at least.
    let least = geo.cp_payload + 1;
    if start < least || total > BLOCKS_PER_SEG || start.saturating_add(2) > total {
        return Err(FormatError::CpPackShape {
            start_sum: start,
            total,
            payload: geo.cp_payload,
        });
    }
    let orphans = raw.flags().contains(CheckpointFlags::ORPHAN_PRESENT);
    if !orphans && start != least {
        return Err(FormatError::CpPackShape {
            start_sum: start,
            total,
            payload: geo.cp_payload,
        });
    }
    Ok(())
}

/// Read-only volumes have two logs only: the others' entries mean nothing.
fn check_logs(raw: &RawCheckpoint, geo: &Geometry) -> Result<(), FormatError> {
    let two = geo.features.contains(super::Features::READ_ONLY);
    let mut seen: Vec<(SegNo, Log)> = Vec::with_capacity(6);
    for log in Log::ALL {
        if two && !matches!(log, Log::HotData | Log::HotNode) {
            continue;
        }
        let head = raw.log(log);
        if head.segment.0 >= geo.main_segments || u32::from(head.offset) >= BLOCKS_PER_SEG {
            return Err(FormatError::CpLog {
                log,
                segment: head.segment,
                offset: head.offset,
            });
        }
        if let Some((_, other)) = seen.iter().find(|(s, _)| *s == head.segment) {
            return Err(FormatError::CpLogTwice {
                log,
                other: *other,
                segment: head.segment,
            });
        }
        seen.push((head.segment, log));
    }
    Ok(())
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
pub(crate) mod tests;
