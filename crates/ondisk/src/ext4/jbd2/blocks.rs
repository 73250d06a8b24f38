//! The contents of journal blocks: lists of logged blocks, lists of revoked ones, commits.
//!
//! Readers end at the first damage and never leave their block; builders refuse what does not fit
//! and store the block's checksum when finished.
//!
//! Not responsible for: block heads and checksums on reading ([`JournalFormat`] verifies them).

use std::mem::size_of;

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    CHECKSUM_CRC32, HEADER, JournalBlockType, JournalChecksums, JournalFormat, RawCommit,
    RawRevokeHeader, RawTag, RawTag3, TagFlags, UUID,
};
use crate::ext4::error::FormatError;
use crate::ext4::types::BlockNo;

/// A tag: one logged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Where the block belongs.
    pub block: BlockNo,
    /// Flags.
    pub flags: TagFlags,
    /// Checksum as far as stored; compare with [`JournalFormat::tag_checksum`].
    pub checksum: u32,
}

/// Iterator over the tags of a descriptor block; ends after the last tag or the first error.
#[derive(Clone, Debug)]
pub struct DescriptorTags<'a> {
    rest: &'a [u8],
    format: JournalFormat,
    done: bool,
}

impl<'a> DescriptorTags<'a> {
    /// The tags of a descriptor block, whose header and checksum were looked at before.
    #[must_use]
    pub fn new(block: &'a [u8], format: &JournalFormat) -> Self {
        let end = format.list_end().min(block.len());
        Self {
            rest: block.get(HEADER..end).unwrap_or(&[]),
            format: *format,
            done: false,
        }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or(FormatError::JournalTags)?;
        self.rest = rest;
        Ok(taken)
    }

    fn parse_one(&mut self) -> Result<Tag, FormatError> {
        let bytes = self.take(self.format.tag_size())?;
        let tag = if self.format.checksums == JournalChecksums::V3 {
            let raw = RawTag3::ref_from_bytes(bytes).map_err(|_| FormatError::JournalTags)?;
            let high = if self.format.wide {
                u64::from(raw.blocknr_high.get()) << 32
            } else {
                0
            };
            Tag {
                block: BlockNo(u64::from(raw.blocknr.get()) | high),
                flags: TagFlags::from_bits_retain(raw.flags.get() as u16),
                checksum: raw.checksum.get(),
            }
        } else {
            let mut full = [0u8; size_of::<RawTag>()];
            let have = if self.format.wide { full.len() } else { 8 };
            full[..have].copy_from_slice(&bytes[..have]);
            let raw: RawTag = zerocopy::transmute!(full);
            Tag {
                block: BlockNo(
                    u64::from(raw.blocknr.get()) | u64::from(raw.blocknr_high.get()) << 32,
                ),
                flags: TagFlags::from_bits_retain(raw.flags.get()),
                checksum: u32::from(raw.checksum.get()),
            }
        };
        if !tag.flags.contains(TagFlags::SAME_UUID) {
            self.take(UUID)?;
        }
        Ok(tag)
    }
}

impl Iterator for DescriptorTags<'_> {
    type Item = Result<Tag, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Without a last flag the list ends where no tag fits any more.
        if self.done || self.rest.len() < self.format.tag_size() {
            return None;
        }
        let tag = self.parse_one();
        self.done = match &tag {
            Ok(tag) => tag.flags.contains(TagFlags::LAST_TAG),
            Err(_) => true,
        };
        Some(tag)
    }
}

/// Fills a descriptor block.
#[derive(Debug)]
pub struct DescriptorBuilder<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    at: usize,
    /// Offset of the flags' least significant byte of the tag written last.
    last_flags: Option<usize>,
}

impl<'a> DescriptorBuilder<'a> {
    /// Begins a descriptor; `None` for a slice that is not a block.
    #[must_use]
    pub fn new(block: &'a mut [u8], format: &JournalFormat, sequence: u32) -> Option<Self> {
        format.put_header(block, JournalBlockType::Descriptor, sequence)?;
        Some(Self {
            block,
            format: *format,
            at: HEADER,
            last_flags: None,
        })
    }

    /// Adds a tag; `None` when the block is full or the number does not fit (nothing is added).
    ///
    /// `checksum` is [`JournalFormat::tag_checksum`] of the block as it is logged.
    #[must_use]
    pub fn push(&mut self, block: BlockNo, escaped: bool, checksum: u32) -> Option<()> {
        let first = self.last_flags.is_none();
        let size = self.format.tag_size();
        let end = self.at + size + if first { UUID } else { 0 };
        let wide_enough = self.format.wide || u32::try_from(block.0).is_ok();
        if end > self.format.list_end() || !wide_enough {
            return None;
        }
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, !first);
        let (low, high) = (U32::new(block.0 as u32), U32::new((block.0 >> 32) as u32));
        let dest = &mut self.block[self.at..self.at + size];
        let flags_at = if self.format.checksums == JournalChecksums::V3 {
            let flags = U32::new(u32::from(flags.bits()));
            let checksum = U32::new(checksum);
            let tag = RawTag3 {
                blocknr: low,
                flags,
                blocknr_high: high,
                checksum,
            };
            dest.copy_from_slice(tag.as_bytes());
            7
        } else {
            let checksum = U16::new(checksum as u16);
            let flags = U16::new(flags.bits());
            let tag = RawTag {
                blocknr: low,
                checksum,
                flags,
                blocknr_high: high,
            };
            let have = if self.format.wide {
                size_of::<RawTag>()
            } else {
                8
            };
            dest[..have].copy_from_slice(&tag.as_bytes()[..have]);
            7
        };
        if first {
            self.block[self.at + size..end].copy_from_slice(&self.format.uuid);
        }
        self.last_flags = Some(self.at + flags_at);
        self.at = end;
        Some(())
    }

    /// Marks the last tag and sets the block's checksum.
    pub fn finish(self) {
        if let Some(at) = self.last_flags {
            self.block[at] |= TagFlags::LAST_TAG.bits() as u8;
        }
        self.format.put_tail(self.block);
    }
}

/// Iterator over the numbers in a revoke block.
#[derive(Clone, Debug)]
pub struct RevokedBlocks<'a> {
    rest: std::slice::ChunksExact<'a, u8>,
}

impl<'a> RevokedBlocks<'a> {
    /// Validates the count of a revoke block, whose header and checksum were looked at before.
    ///
    /// # Errors
    /// [`FormatError::JournalRevokeCount`], [`FormatError::Truncated`].
    pub fn parse(block: &'a [u8], format: &JournalFormat) -> Result<Self, FormatError> {
        let (head, _) = RawRevokeHeader::ref_from_prefix(block).map_err(|_| format.short(block))?;
        let used = head.count.get() as usize;
        let end = format.list_end().min(block.len());
        let list = block
            .get(size_of::<RawRevokeHeader>()..used)
            .filter(|_| used <= end)
            .ok_or(FormatError::JournalRevokeCount {
                found: head.count.get(),
                max: end,
            })?;
        Ok(Self {
            rest: list.chunks_exact(format.revoke_size()),
        })
    }
}

impl Iterator for RevokedBlocks<'_> {
    type Item = BlockNo;

    fn next(&mut self) -> Option<BlockNo> {
        let bytes = self.rest.next()?;
        Some(BlockNo(bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))))
    }
}

/// Fills a revoke block.
#[derive(Debug)]
pub struct RevokeBuilder<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    at: usize,
}

impl<'a> RevokeBuilder<'a> {
    /// Begins a revoke block; `None` for a slice that is not a block.
    #[must_use]
    pub fn new(block: &'a mut [u8], format: &JournalFormat, sequence: u32) -> Option<Self> {
        format.put_header(block, JournalBlockType::Revoke, sequence)?;
        Some(Self {
            block,
            format: *format,
            at: size_of::<RawRevokeHeader>(),
        })
    }

    /// Adds a number; `None` when the block is full or the number does not fit.
    #[must_use]
    pub fn push(&mut self, block: BlockNo) -> Option<()> {
        let size = self.format.revoke_size();
        let end = self.at + size;
        if end > self.format.list_end() || (size == 4 && u32::try_from(block.0).is_err()) {
            return None;
        }
        let bytes = block.0.to_be_bytes();
        self.block[self.at..end].copy_from_slice(&bytes[8 - size..]);
        self.at = end;
        Some(())
    }

    /// Stores the count and sets the block's checksum.
    pub fn finish(self) {
        let used = self.at as u32;
        self.block[HEADER..HEADER + 4].copy_from_slice(&used.to_be_bytes());
        self.format.put_tail(self.block);
    }
}

/// What a commit block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Seconds since 1970.
    pub time_secs: u64,
    /// Nanoseconds past them.
    pub time_nanos: u32,
    /// Checksum of the transaction (version 1), where there is one.
    pub transaction_checksum: Option<u32>,
}

impl Commit {
    /// Decodes a commit block, whose header and checksum were looked at before.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn parse(block: &[u8], format: &JournalFormat) -> Result<Self, FormatError> {
        let (raw, _) = RawCommit::ref_from_prefix(block).map_err(|_| format.short(block))?;
        let v1 = format.checksums == JournalChecksums::V1
            && raw.chksum_type == CHECKSUM_CRC32
            && raw.chksum_size == 4;
        Ok(Self {
            time_secs: raw.commit_sec.get(),
            time_nanos: raw.commit_nsec.get(),
            transaction_checksum: v1.then(|| raw.chksum[0].get()),
        })
    }
}
