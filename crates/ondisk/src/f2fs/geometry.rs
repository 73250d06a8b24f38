//! Where everything is in a volume: pure arithmetic over a validated superblock.
//!
//! SIT and NAT have two copies of each block. The SIT's copies are two halves of the area; the NAT's
//! alternate segment by segment, so that a block and its twin are a segment apart.

use super::InodeSeed;
use super::error::FormatError;
use super::features::Features;
use super::nat::{self, NatEntry};
use super::sit;
use super::superblock::raw::RawSuperblock;
use super::types::{BLOCKS_PER_SEG, BlockAddr, Ino, LOG_BLOCKS_PER_SEG, Nid, SegNo};

/// Which of a block's two copies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Copy2 {
    /// The bit in the version bitmap is clear.
    First,
    /// The bit is set.
    Second,
}

impl Copy2 {
    /// From the bit of a version bitmap.
    #[must_use]
    pub const fn from_bit(bit: bool) -> Self {
        if bit { Self::Second } else { Self::First }
    }

    /// The other one: where the next version goes.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// Places and sizes of a volume's areas. All block addresses computed here fit 32 bits because the
/// areas were checked to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Features of the volume.
    pub features: Features,
    /// The seed of inode checksums.
    pub inode_seed: InodeSeed,
    /// Blocks of the volume.
    pub blocks_count: u64,
    /// First block of the checkpoint area.
    pub cp: BlockAddr,
    /// First block of the SIT.
    pub sit: BlockAddr,
    /// First block of the NAT.
    pub nat: BlockAddr,
    /// First block of the SSA.
    pub ssa: BlockAddr,
    /// First block of the main area.
    pub main: BlockAddr,
    /// Segments of the main area.
    pub main_segments: u32,
    /// Segments of the SIT, both copies.
    pub sit_segments: u32,
    /// Segments of the NAT, both copies.
    pub nat_segments: u32,
    /// Segments of the SSA.
    pub ssa_segments: u32,
    /// Segments per section: the unit of cleaning.
    pub segs_per_sec: u32,
    /// Sections per zone: the unit that keeps logs apart.
    pub secs_per_zone: u32,
    /// Extra blocks of each checkpoint pack, for bitmaps.
    pub cp_payload: u32,
}

impl Geometry {
    /// From a superblock that was checked.
    pub(crate) fn new(raw: &RawSuperblock) -> Self {
        Self {
            features: raw.features(),
            inode_seed: InodeSeed::from_uuid(&raw.uuid),
            blocks_count: raw.block_count.get(),
            cp: BlockAddr(raw.cp_blkaddr.get()),
            sit: BlockAddr(raw.sit_blkaddr.get()),
            nat: BlockAddr(raw.nat_blkaddr.get()),
            ssa: BlockAddr(raw.ssa_blkaddr.get()),
            main: BlockAddr(raw.main_blkaddr.get()),
            main_segments: raw.segment_count_main.get(),
            sit_segments: raw.segment_count_sit.get(),
            nat_segments: raw.segment_count_nat.get(),
            ssa_segments: raw.segment_count_ssa.get(),
            segs_per_sec: raw.segs_per_sec.get(),
            secs_per_zone: raw.secs_per_zone.get(),
            cp_payload: raw.cp_payload.get(),
        }
    }

    /// Blocks of the main area.
    #[must_use]
    pub fn main_blocks(&self) -> u64 {
        u64::from(self.main_segments) << LOG_BLOCKS_PER_SEG
    }

    /// Block behind the main area.
    #[must_use]
    pub fn main_end(&self) -> u64 {
        u64::from(self.main.0) + self.main_blocks()
    }

    /// Whether a block lies in the main area.
    #[must_use]
    pub fn in_main(&self, block: BlockAddr) -> bool {
        block.0 >= self.main.0 && u64::from(block.0) < self.main_end()
    }

    /// Segment and offset in it of a block of the main area; `None` for any other block.
    #[must_use]
    pub fn segment_of(&self, block: BlockAddr) -> Option<(SegNo, u16)> {
        if !self.in_main(block) {
            return None;
        }
        let at = block.0 - self.main.0;
        Some((
            SegNo(at >> LOG_BLOCKS_PER_SEG),
            (at & (BLOCKS_PER_SEG - 1)) as u16,
        ))
    }

    /// First block of a segment; `None` past the last.
    #[must_use]
    pub fn segment_start(&self, seg: SegNo) -> Option<BlockAddr> {
        (seg.0 < self.main_segments).then(|| BlockAddr(self.main.0 + (seg.0 << LOG_BLOCKS_PER_SEG)))
    }

    /// Sections of the main area.
    #[must_use]
    pub fn sections(&self) -> u32 {
        self.main_segments / self.segs_per_sec.max(1)
    }

    /// Blocks of one copy of the SIT.
    #[must_use]
    pub fn sit_blocks(&self) -> u32 {
        (self.sit_segments / 2) << LOG_BLOCKS_PER_SEG
    }

    /// Blocks of one copy of the NAT.
    #[must_use]
    pub fn nat_blocks(&self) -> u32 {
        (self.nat_segments / 2) << LOG_BLOCKS_PER_SEG
    }

    /// Bytes of the SIT's version bitmap.
    #[must_use]
    pub fn sit_bitmap_bytes(&self) -> usize {
        self.sit_blocks() as usize / 8
    }

    /// Bytes of the NAT's version bitmap.
    #[must_use]
    pub fn nat_bitmap_bytes(&self) -> usize {
        self.nat_blocks() as usize / 8
    }

    /// How many node numbers there are: every valid one is below.
    #[must_use]
    pub fn nids(&self) -> u32 {
        u64::from(self.nat_blocks())
            .saturating_mul(nat::ENTRIES_PER_BLOCK as u64)
            .min(u64::from(u32::MAX)) as u32
    }

    /// Checks a node number from the device.
    ///
    /// # Errors
    /// [`FormatError::NidRange`].
    pub fn check_nid(&self, nid: Nid) -> Result<(), FormatError> {
        if nid.0 == 0 || nid.0 >= self.nids() {
            return Err(FormatError::NidRange {
                nid,
                max: self.nids(),
            });
        }
        Ok(())
    }

    /// Index of the NAT block that holds a node's entry, and the entry's position in it.
    #[must_use]
    pub fn nat_position(&self, nid: Nid) -> (u32, usize) {
        let per = nat::ENTRIES_PER_BLOCK as u32;
        (nid.0 / per, (nid.0 % per) as usize)
    }

    /// Where a copy of the NAT's block `index` is; `None` past the last.
    #[must_use]
    pub fn nat_block(&self, index: u32, copy: Copy2) -> Option<BlockAddr> {
        if index >= self.nat_blocks() {
            return None;
        }
        let (seg, at) = (index >> LOG_BLOCKS_PER_SEG, index & (BLOCKS_PER_SEG - 1));
        let second = u32::from(copy == Copy2::Second);
        Some(BlockAddr(
            self.nat.0 + ((seg * 2 + second) << LOG_BLOCKS_PER_SEG) + at,
        ))
    }

    /// Index of the SIT block that holds a segment's entry, and the entry's position in it.
    #[must_use]
    pub fn sit_position(&self, seg: SegNo) -> (u32, usize) {
        let per = sit::ENTRIES_PER_BLOCK as u32;
        (seg.0 / per, (seg.0 % per) as usize)
    }

    /// SIT blocks in use: those that describe segments of the main area.
    #[must_use]
    pub fn sit_blocks_used(&self) -> u32 {
        self.main_segments.div_ceil(sit::ENTRIES_PER_BLOCK as u32)
    }

    /// Where a copy of the SIT's block `index` is; `None` past the last.
    #[must_use]
    pub fn sit_block(&self, index: u32, copy: Copy2) -> Option<BlockAddr> {
        if index >= self.sit_blocks() {
            return None;
        }
        let second = u32::from(copy == Copy2::Second);
        Some(BlockAddr(self.sit.0 + second * self.sit_blocks() + index))
    }

    /// Where a segment's summary block is; `None` past the last.
    #[must_use]
    pub fn ssa_block(&self, seg: SegNo) -> Option<BlockAddr> {
        (seg.0 < self.main_segments).then(|| BlockAddr(self.ssa.0 + seg.0))
    }

    /// First block of a checkpoint pack.
    #[must_use]
    pub fn pack_start(&self, copy: Copy2) -> BlockAddr {
        let second = u32::from(copy == Copy2::Second);
        BlockAddr(self.cp.0 + (second << LOG_BLOCKS_PER_SEG))
    }

    /// Checks that the NAT's entry of node `nid` names a block of the main area and an inode. The first
    /// two inodes exist in memory only, so their entries name no real block.
    ///
    /// # Errors
    /// [`FormatError::NatBlock`], [`FormatError::NatInode`].
    pub fn check_nat_entry(&self, nid: Nid, entry: &NatEntry) -> Result<(), FormatError> {
        let NatEntry { ino, block, .. } = *entry;
        if entry.is_free() || block == BlockAddr::NEW || nid.0 < Ino::ROOT.0 {
            return Ok(());
        }
        if !self.in_main(block) {
            return Err(FormatError::NatBlock { nid, block });
        }
        if ino.0 < Ino::ROOT.0 || ino.0 >= self.nids() {
            return Err(FormatError::NatInode { nid, ino });
        }
        Ok(())
    }
}
