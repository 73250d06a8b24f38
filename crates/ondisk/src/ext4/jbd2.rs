//! The journal (jbd2): big-endian structures, their tags and checksums.
//!
//! A transaction in the journal is: revoke blocks and descriptor blocks (each descriptor followed
//! by the blocks its tags name), then a commit block. [`JournalSuperblock`] is the validated head;
//! [`JournalFormat`] is what tag sizes and checksums depend on. The lists in blocks are read and
//! written by `blocks`, whose types are exported here.
//!
//! Checksums exist in three incompatible kinds: version 1 (a feature of the *compat* set) sums all
//! of a transaction in its commit block; versions 2 and 3 sum each block, and differ in how much
//! of a logged block's sum a tag can hold.
//!
//! Not responsible for: replaying, writing, wrapping around the log. Fast commits: `fast_commit`.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Journal (jbd2)".

use std::mem::{offset_of, size_of};

use bitflags::bitflags;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{self, JournalSeed};
use super::error::FormatError;

mod blocks;

pub use blocks::{Commit, DescriptorBuilder, DescriptorTags, RevokeBuilder, RevokedBlocks, Tag};

/// First word of every journal block that is not a logged block.
pub const MAGIC: u32 = 0xC03B_3998;
/// The magic as it lies on disk; logged blocks beginning with it are escaped.
pub const MAGIC_BYTES: [u8; 4] = MAGIC.to_be_bytes();
/// Bytes of the journal superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// `s_checksum_type` of CRC-32C (versions 2 and 3).
pub const CHECKSUM_CRC32C: u8 = 4;
/// `h_chksum_type` of the most-significant-bit-first CRC-32 (version 1).
pub const CHECKSUM_CRC32: u8 = 1;
/// Fast-commit blocks when the superblock does not say.
pub const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

bitflags! {
    /// Journal features a reader may ignore.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct JournalCompat: u32 {
        /// Commit blocks carry a checksum of their transaction (version 1).
        const CHECKSUM = 0x1;
        const _ = !0;
    }

    /// Journal features without which a reader must not replay.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct JournalIncompat: u32 {
        /// There may be revoke blocks.
        const REVOKE = 0x01;
        /// Block numbers have 64 bits.
        const BIT64 = 0x02;
        /// The commit block may be written together with the transaction.
        const ASYNC_COMMIT = 0x04;
        /// Checksums of version 2.
        const CSUM_V2 = 0x08;
        /// Checksums of version 3.
        const CSUM_V3 = 0x10;
        /// The end of the journal holds fast commits.
        const FAST_COMMIT = 0x20;
        const _ = !0;
    }

    /// Flags of a tag.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct TagFlags: u16 {
        /// The block's first word was the magic and is stored as zero.
        const ESCAPE = 0x1;
        /// No UUID follows; it is that of the tag before.
        const SAME_UUID = 0x2;
        /// The block was deleted by this transaction (never written).
        const DELETED = 0x4;
        /// The last tag of the block.
        const LAST_TAG = 0x8;
        const _ = !0;
    }
}

/// The kind of a journal block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JournalBlockType {
    /// Tags of the blocks that follow.
    Descriptor,
    /// End of a transaction.
    Commit,
    /// Superblock, first version.
    SuperblockV1,
    /// Superblock.
    SuperblockV2,
    /// Blocks that must not be replayed from earlier transactions.
    Revoke,
}

impl JournalBlockType {
    /// From `h_blocktype`.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Descriptor),
            2 => Some(Self::Commit),
            3 => Some(Self::SuperblockV1),
            4 => Some(Self::SuperblockV2),
            5 => Some(Self::Revoke),
            _ => None,
        }
    }

    /// `h_blocktype`.
    #[must_use]
    pub const fn to_raw(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }
}

/// Head of every journal block that is not a logged block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawJournalHeader {
    pub magic: U32,
    pub blocktype: U32,
    pub sequence: U32,
}

/// Journal superblock as it lies on disk. Fields keep their documented names, without `s_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawJournalSuperblock {
    pub header: RawJournalHeader,
    pub blocksize: U32,
    pub maxlen: U32,
    pub first: U32,
    pub sequence: U32,
    pub start: U32,
    pub errno: U32,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub nr_users: U32,
    pub dynsuper: U32,
    pub max_transaction: U32,
    pub max_trans_data: U32,
    pub checksum_type: u8,
    pub padding2: [u8; 3],
    pub num_fc_blks: U32,
    pub head: U32,
    pub padding: [U32; 40],
    pub checksum: U32,
    pub users: [u8; 768],
}

/// Tag with checksums of version 3.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawTag3 {
    pub blocknr: U32,
    pub flags: U32,
    pub blocknr_high: U32,
    pub checksum: U32,
}

/// Tag without checksums or with those of version 2; the last word only with 64-bit numbers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawTag {
    pub blocknr: U32,
    pub checksum: U16,
    pub flags: U16,
    pub blocknr_high: U32,
}

/// Head of a revoke block. `count` is in bytes and includes this head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawRevokeHeader {
    pub header: RawJournalHeader,
    pub count: U32,
}

/// Commit block. Fields keep their documented names, without `h_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawCommit {
    pub header: RawJournalHeader,
    pub chksum_type: u8,
    pub chksum_size: u8,
    pub padding: [u8; 2],
    pub chksum: [U32; 8],
    pub commit_sec: U64,
    pub commit_nsec: U32,
}

pub(super) const HEADER: usize = size_of::<RawJournalHeader>();
pub(super) const UUID: usize = 16;
const TAIL: usize = 4;

const _: () = {
    assert!(HEADER == 12);
    assert!(size_of::<RawJournalSuperblock>() == SUPERBLOCK_SIZE);
    assert!(offset_of!(RawJournalSuperblock, feature_compat) == 0x24);
    assert!(offset_of!(RawJournalSuperblock, uuid) == 0x30);
    assert!(offset_of!(RawJournalSuperblock, checksum_type) == 0x50);
    assert!(offset_of!(RawJournalSuperblock, num_fc_blks) == 0x54);
    assert!(offset_of!(RawJournalSuperblock, checksum) == 0xFC);
    assert!(size_of::<RawTag3>() == 16);
    assert!(size_of::<RawTag>() == 12);
    assert!(size_of::<RawRevokeHeader>() == 16);
    assert!(size_of::<RawCommit>() == 60);
    assert!(offset_of!(RawCommit, chksum) == 0x10);
    assert!(offset_of!(RawCommit, commit_sec) == 0x30);
};

/// Checksums of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JournalChecksums {
    /// None.
    None,
    /// Of whole transactions, in their commit block.
    V1,
    /// Of blocks, 16 bits of a logged block's.
    V2,
    /// Of blocks, all 32 bits.
    V3,
}

/// What the layout of journal blocks depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalFormat {
    /// Bytes per journal block.
    pub block_size: u32,
    /// Whether block numbers have 64 bits.
    pub wide: bool,
    /// Kind of checksums.
    pub checksums: JournalChecksums,
    /// Seed of the checksums of versions 2 and 3.
    pub seed: JournalSeed,
    /// UUID of the journal, which each descriptor repeats.
    pub uuid: [u8; 16],
}

impl JournalFormat {
    /// Whether blocks carry their own checksum.
    #[must_use]
    pub fn block_checksums(&self) -> bool {
        matches!(self.checksums, JournalChecksums::V2 | JournalChecksums::V3)
    }

    /// Bytes of a tag, the UUID some are followed by not included.
    #[must_use]
    pub fn tag_size(&self) -> usize {
        match (self.checksums, self.wide) {
            (JournalChecksums::V3, _) => 16,
            // Version 2 makes every tag two bytes longer than its fields: an old mistake that
            // became the format.
            (JournalChecksums::V2, true) => 14,
            (JournalChecksums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Bytes of a block that tags or revoked numbers may fill.
    #[must_use]
    pub fn list_end(&self) -> usize {
        self.block_size as usize - if self.block_checksums() { TAIL } else { 0 }
    }

    /// Tags a descriptor block has room for.
    #[must_use]
    pub fn tags_per_block(&self) -> usize {
        (self.list_end() - HEADER - UUID) / self.tag_size()
    }

    /// Bytes of a number in a revoke block.
    #[must_use]
    pub fn revoke_size(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Numbers a revoke block has room for.
    #[must_use]
    pub fn revokes_per_block(&self) -> usize {
        (self.list_end() - size_of::<RawRevokeHeader>()) / self.revoke_size()
    }

    pub(super) fn put_header(
        &self,
        block: &mut [u8],
        kind: JournalBlockType,
        sequence: u32,
    ) -> Option<()> {
        if block.len() != self.block_size as usize {
            return None;
        }
        block.fill(0);
        let header = RawJournalHeader {
            magic: U32::new(MAGIC),
            blocktype: U32::new(kind.to_raw()),
            sequence: U32::new(sequence),
        };
        block[..HEADER].copy_from_slice(header.as_bytes());
        Some(())
    }

    pub(super) fn put_tail(&self, block: &mut [u8]) {
        if self.block_checksums() {
            let sum = self.seed.block_with_tail(block);
            let at = block.len() - TAIL;
            block[at..].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Verifies the checksum at the end of a descriptor or revoke block.
    ///
    /// # Errors
    /// [`FormatError::JournalBlockChecksum`], [`FormatError::Truncated`].
    pub fn verify_tail(&self, block: &[u8]) -> Result<(), FormatError> {
        if !self.block_checksums() {
            return Ok(());
        }
        let tail = block
            .last_chunk::<TAIL>()
            .ok_or_else(|| self.short(block))?;
        let (found, expected) = (u32::from_be_bytes(*tail), self.seed.block_with_tail(block));
        if crate::sums_differ(found, expected) {
            return Err(FormatError::JournalBlockChecksum { found, expected });
        }
        Ok(())
    }

    /// Verifies the checksum of a commit block (versions 2 and 3; version 1 is
    /// [`Commit::transaction_checksum`]'s, which needs the whole transaction).
    ///
    /// # Errors
    /// [`FormatError::JournalCommitChecksum`], [`FormatError::Truncated`].
    pub fn verify_commit(&self, block: &[u8]) -> Result<(), FormatError> {
        if !self.block_checksums() {
            return Ok(());
        }
        let (raw, _) = RawCommit::ref_from_prefix(block).map_err(|_| self.short(block))?;
        let (found, expected) = (raw.chksum[0].get(), self.seed.commit_block(block));
        if crate::sums_differ(found, expected) {
            return Err(FormatError::JournalCommitChecksum { found, expected });
        }
        Ok(())
    }

    /// What a tag stores of the checksum of a logged block, as written (after escaping).
    #[must_use]
    pub fn tag_checksum(&self, sequence: u32, logged: &[u8]) -> u32 {
        match self.checksums {
            JournalChecksums::V3 => self.seed.data_block(sequence, logged),
            JournalChecksums::V2 => self.seed.data_block(sequence, logged) & 0xFFFF,
            JournalChecksums::None | JournalChecksums::V1 => 0,
        }
    }

    /// Makes `block` a commit block with its checksum. `v1_sum` is the transaction's sum, used
    /// with checksums of version 1 only. `None` for a slice that is not a block.
    #[must_use]
    pub fn write_commit(
        &self,
        block: &mut [u8],
        sequence: u32,
        time_secs: u64,
        time_nanos: u32,
        v1_sum: u32,
    ) -> Option<()> {
        self.put_header(block, JournalBlockType::Commit, sequence)?;
        let (raw, _) = RawCommit::mut_from_prefix(block).ok()?;
        raw.commit_sec.set(time_secs);
        raw.commit_nsec.set(time_nanos);
        if self.checksums == JournalChecksums::V1 {
            raw.chksum_type = CHECKSUM_CRC32;
            raw.chksum_size = 4;
            raw.chksum[0].set(v1_sum);
        }
        if self.block_checksums() {
            let sum = self.seed.commit_block(block);
            block[0x10..0x14].copy_from_slice(&sum.to_be_bytes());
        }
        Some(())
    }

    pub(super) fn short(&self, block: &[u8]) -> FormatError {
        FormatError::Truncated {
            structure: "journal block",
            needed: self.block_size as usize,
            found: block.len(),
        }
    }
}

/// Type and sequence number of a journal block; `None` when it is not one (the end of the log,
/// or a logged block).
#[must_use]
pub fn block_header(block: &[u8]) -> Option<(JournalBlockType, u32)> {
    let (raw, _) = RawJournalHeader::ref_from_prefix(block).ok()?;
    if raw.magic.get() != MAGIC {
        return None;
    }
    Some((
        JournalBlockType::from_raw(raw.blocktype.get())?,
        raw.sequence.get(),
    ))
}

/// Whether a block must be escaped when logged.
#[must_use]
pub fn needs_escape(block: &[u8]) -> bool {
    block.first_chunk() == Some(&MAGIC_BYTES)
}

/// Continues the checksum of version 1 with a descriptor or logged block; start with all ones.
#[must_use]
pub fn v1_checksum(state: u32, block: &[u8]) -> u32 {
    checksum::crc32_be(state, block)
}

/// Validated journal superblock.
#[derive(Clone, Debug)]
pub struct JournalSuperblock {
    /// The structure as read; edited by its owner when the journal's head or tail move.
    pub raw: RawJournalSuperblock,
    /// Bytes per journal block.
    pub block_size: u32,
    /// Blocks of the journal, superblock included.
    pub len: u32,
    /// First block of the log.
    pub first: u32,
    /// First block behind the log (the fast-commit area, if any, begins there).
    pub log_end: u32,
    /// Blocks of the fast-commit area.
    pub fast_commit_blocks: u32,
    /// Where replay begins; `None` for an empty log.
    pub start: Option<u32>,
    /// Sequence number expected at `start`.
    pub sequence: u32,
    /// Error recorded when the journal was aborted; 0 for none.
    pub errno: i32,
    /// Features a reader may ignore.
    pub compat: JournalCompat,
    /// Features without which a reader must not replay.
    pub incompat: JournalIncompat,
    /// Read-only compatible features (none is defined).
    pub ro_compat: u32,
    /// Layout of the journal's blocks.
    pub format: JournalFormat,
}

impl JournalSuperblock {
    /// Validates a journal superblock, its checksum included.
    ///
    /// `blocks` is how many blocks the journal's inode maps, when known. Unknown features are not
    /// an error here: see [`Self::incompat`].
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse(bytes: &[u8], blocks: Option<u64>) -> Result<Self, FormatError> {
        let (raw, _) =
            RawJournalSuperblock::read_from_prefix(bytes).map_err(|_| FormatError::Truncated {
                structure: "journal superblock",
                needed: SUPERBLOCK_SIZE,
                found: bytes.len(),
            })?;
        let found = raw.header.magic.get();
        if found != MAGIC {
            return Err(FormatError::JournalMagic { found });
        }
        let kind = raw.header.blocktype.get();
        let v2 = match JournalBlockType::from_raw(kind) {
            Some(JournalBlockType::SuperblockV1) => false,
            Some(JournalBlockType::SuperblockV2) => true,
            _ => return Err(FormatError::JournalSuperType { found: kind }),
        };
        // Version 1 ends before the feature words.
        let word = |w: U32| if v2 { w.get() } else { 0 };
        let compat = JournalCompat::from_bits_retain(word(raw.feature_compat));
        let incompat = JournalIncompat::from_bits_retain(word(raw.feature_incompat));
        let checksums = checksum_kind(compat, incompat)?;
        if matches!(checksums, JournalChecksums::V2 | JournalChecksums::V3) {
            if raw.checksum_type != CHECKSUM_CRC32C {
                return Err(FormatError::JournalChecksumType {
                    found: raw.checksum_type,
                });
            }
            let (found, expected) = (raw.checksum.get(), raw_checksum(&raw));
            if crate::sums_differ(found, expected) {
                return Err(FormatError::JournalSuperChecksum { found, expected });
            }
        }

        let block_size = raw.blocksize.get();
        if !block_size.is_power_of_two() || !(1024..=65536).contains(&block_size) {
            return Err(FormatError::JournalBlockSize { found: block_size });
        }
        let len = raw.maxlen.get();
        if len < 2 || blocks.is_some_and(|n| u64::from(len) > n) {
            return Err(FormatError::JournalLength { found: len, blocks });
        }
        let fast_commit_blocks = match raw.num_fc_blks.get() {
            _ if !incompat.contains(JournalIncompat::FAST_COMMIT) => 0,
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            n => n,
        };
        let first = raw.first.get();
        let log_end = len.saturating_sub(fast_commit_blocks);
        if first == 0 || first >= log_end {
            return Err(FormatError::JournalFirst {
                found: first,
                end: log_end,
            });
        }
        let start = raw.start.get();
        if start != 0 && !(first..log_end).contains(&start) {
            return Err(FormatError::JournalStart {
                found: start,
                first,
                end: log_end,
            });
        }
        let format = JournalFormat {
            block_size,
            wide: incompat.contains(JournalIncompat::BIT64),
            checksums,
            seed: JournalSeed::from_uuid(&raw.uuid),
            uuid: raw.uuid,
        };
        Ok(Self {
            raw,
            block_size,
            len,
            first,
            log_end,
            fast_commit_blocks,
            start: (start != 0).then_some(start),
            sequence: raw.sequence.get(),
            errno: raw.errno.get() as i32,
            compat,
            incompat,
            ro_compat: word(raw.feature_ro_compat),
            format,
        })
    }
}

fn checksum_kind(
    compat: JournalCompat,
    incompat: JournalIncompat,
) -> Result<JournalChecksums, FormatError> {
    let kinds = [
        (
            compat.contains(JournalCompat::CHECKSUM),
            JournalChecksums::V1,
        ),
        (
            incompat.contains(JournalIncompat::CSUM_V2),
            JournalChecksums::V2,
        ),
        (
            incompat.contains(JournalIncompat::CSUM_V3),
            JournalChecksums::V3,
        ),
    ];
    let mut set = kinds
        .into_iter()
        .filter(|(on, _)| *on)
        .map(|(_, kind)| kind);
    match (set.next(), set.next()) {
        (None, _) => Ok(JournalChecksums::None),
        (Some(kind), None) => Ok(kind),
        (Some(_), Some(_)) => Err(FormatError::JournalChecksumMix),
    }
}

fn raw_checksum(raw: &RawJournalSuperblock) -> u32 {
    let bytes: [u8; SUPERBLOCK_SIZE] = zerocopy::transmute!(*raw);
    checksum::journal_superblock(&bytes)
}

impl RawJournalSuperblock {
    /// All zero, the starting point for making a journal.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Stores the checksum where the features demand one.
    pub fn set_checksum(&mut self) {
        let csum = (JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3).bits();
        if self.feature_incompat.get() & csum != 0 {
            self.checksum_type = CHECKSUM_CRC32C;
            let sum = raw_checksum(self);
            self.checksum.set(sum);
        }
    }
}

#[cfg(test)]
#[path = "jbd2_tests.rs"]
mod tests;
