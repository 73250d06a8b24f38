//! Recovery: what the log says must still go home.
//!
//! Three passes, as the format demands. *Scan* follows the log from the tail on, transaction by
//! transaction, and ends at the first block that is not the expected next one: a transaction
//! without its commit block never happened. *Revoke* and *replay* then choose for each block its
//! newest copy, unless a transaction at or after the copy's revoked the block. Only headers and tags
//! are kept in memory (a few bytes per logged block); copies are read in the order of the log in the end. Blocks of the log that were never stored cost no
//! request, and go home only where something else is.
//!
//! # What is torn and what is damaged
//! A commit block is written after everything else of its transaction was flushed. So a bad descriptor or
//! copy *under a good commit block* is damage, and an error; a bad commit block with nothing
//! sensible behind it is the torn end of the log, and ignored; a bad commit block followed by
//! a complete next transaction is damage.
//!
//! Not responsible for: where copies go (a device, or the checkpoint map of a read-only mount), and
//! fast commits (`fast_commit`).
//!
//! Reference: kernel documentation, "ext4 Data Structures: Journal (jbd2)".

use super::location::LogBlock;
use super::location::LogMap;
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, SharedDevice};
use blockwright_ondisk::ext4::jbd2::{
    Commit, DescriptorTags, JournalBlockType, JournalChecksums, JournalSuperblock, MAGIC_BYTES,
    RevokedBlocks, TagFlags, block_header, v1_checksum,
};
use blockwright_ondisk::ext4::{BlockNo, FormatError};
use blockwright_ondisk::sums_differ;
use hashbrown::HashMap;
use std::ops::Range;

const OP: &str = "journal replay";

/// A logged block's copy.
#[derive(Clone, Copy, Debug)]
struct Copy {
    sequence: u32,
    at: LogBlock,
    escaped: bool,
    checksum: u32,
}

/// What the scan found.
#[derive(Debug)]
pub struct Recovery {
    /// Newest copy of each block that must go home.
    copies: HashMap<BlockNo, Copy>,
    /// Sequence number after the last complete transaction.
    pub end_sequence: u32,
    /// Where the scan ended.
    pub end: LogBlock,
    /// Complete transactions.
    pub transactions: u32,
    /// Copies superseded or revoked.
    pub skipped: u64,
}

/// Reads a log.
pub struct LogReader<'a> {
    device: &'a SharedDevice,
    map: &'a LogMap,
    superblock: &'a JournalSuperblock,
    window: Option<(u64, AlignedBuf)>,
    /// Bytes that the next read asks for.
    ahead: u64,
    /// What was never stored: the hole that was met last, in bytes of the device.
    hole: Range<u64>,
    zero: AlignedBuf,
}

/// Most bytes read ahead at once, and fewest.
const AHEAD_MAX: u64 = 1 << 18;
const AHEAD_MIN: u64 = 1 << 15;
/// Bytes of copies that are in memory at once, so that they are written in the order of their places.
const COPIES_BYTES: usize = 4 << 20;

impl<'a> LogReader<'a> {
    /// A reader of the log described by `superblock`.
    #[must_use]
    pub fn new(
        device: &'a SharedDevice,
        map: &'a LogMap,
        superblock: &'a JournalSuperblock,
    ) -> Self {
        LogReader {
            device,
            map,
            superblock,
            window: None,
            ahead: AHEAD_MIN,
            hole: 0..0,
            zero: AlignedBuf::zeroed(superblock.block_size as usize),
        }
    }

    fn next(&self, at: LogBlock) -> LogBlock {
        if at.0 + 1 >= self.superblock.log_end {
            LogBlock(self.superblock.first)
        } else {
            LogBlock(at.0 + 1)
        }
    }

    /// Whether a block of the journal was never stored. One that was read already is not asked about: it costs nothing more.
    fn is_hole(&mut self, at: LogBlock) -> Result<bool> {
        let offset = self.map.offset(at, self.superblock.block_size)?.0;
        let end = offset.saturating_add(u64::from(self.superblock.block_size));
        let held = self.window.as_ref();
        if held.is_some_and(|(start, buf)| *start <= offset && end <= *start + buf.len() as u64) {
            return Ok(false);
        }
        if !self.hole.contains(&offset) {
            let data = self.device.next_data(DevOffset(offset)).0;
            self.hole = offset..data;
        }
        Ok(end <= self.hole.end)
    }

    /// The bytes of a block of the journal.
    ///
    /// # Errors
    /// `Io`, or `Corrupt` past the journal's end.
    pub fn read(&mut self, at: LogBlock) -> Result<&[u8]> {
        let bytes = u64::from(self.superblock.block_size);
        let offset = self.map.offset(at, self.superblock.block_size)?.0;
        let held = self.window.as_ref();
        let held = held.map_or(0..0, |(start, buf)| *start..*start + buf.len() as u64);
        if !(held.start <= offset && offset + bytes <= held.end) {
            if self.is_hole(at)? {
                return Ok(&self.zero);
            }
            // Twice as much as the last time, where the log is read on.
            let follows = (held.end..=held.end.saturating_add(AHEAD_MAX)).contains(&offset);
            self.ahead = match follows && !held.is_empty() {
                true => (2 * self.ahead).min(AHEAD_MAX),
                false => AHEAD_MIN,
            };
            // As much of what follows as is contiguous with it on the device.
            let mut len = bytes;
            let mut next = at;
            while len < self.ahead {
                next = LogBlock(next.0 + 1);
                match self.map.offset(next, self.superblock.block_size) {
                    Ok(o) if o.0 == offset + len => len += bytes,
                    _ => break,
                }
            }
            let buf = self
                .device
                .read_buf(DevOffset(offset), len as usize)
                .map_err(|e| Error::io(OP, e))?;
            self.window = Some((offset, buf));
        }
        let Some((start, buf)) = &self.window else {
            return Err(Error::corrupt(OP, "nothing was read"));
        };
        let from = (offset - start) as usize;
        buf.get(from..from + bytes as usize)
            .ok_or_else(|| Error::corrupt(OP, "a block lies outside of what was read"))
    }
}

/// One transaction while it is scanned.
#[derive(Default)]
struct Pending {
    copies: Vec<(BlockNo, Copy)>,
    revokes: Vec<BlockNo>,
    /// The first check that failed; an error only if the transaction turns out to be committed.
    damage: Option<FormatError>,
    v1_sum: u32,
    blocks: u32,
}

enum End {
    /// Nothing more that belongs to the log.
    OfLog,
    /// A commit block with a good checksum (or none).
    Committed {
        next: LogBlock,
        time: (u64, u32),
        copies: Pending,
    },
    /// A commit block whose checksum is bad.
    BadCommit {
        next: LogBlock,
        time: (u64, u32),
        error: FormatError,
    },
}

fn bad(sequence: u32, error: impl std::fmt::Display) -> Error {
    Error::corrupt(OP, format!("transaction {sequence}: {error}"))
}

/// Follows one transaction from `at`.
fn scan_one(reader: &mut LogReader<'_>, mut at: LogBlock, sequence: u32) -> Result<End> {
    let format = reader.superblock.format;
    let log_blocks = reader.superblock.log_end - reader.superblock.first;
    let v1 = format.checksums == JournalChecksums::V1;
    let mut pending = Pending {
        v1_sum: u32::MAX,
        ..Pending::default()
    };
    loop {
        pending.blocks += 1;
        if pending.blocks > log_blocks {
            // Around the whole log without a commit block: it never was one transaction.
            return Ok(End::OfLog);
        }
        let block = reader.read(at)?;
        let kind = match block_header(block) {
            Some((kind, found)) if found == sequence => kind,
            _ => return Ok(End::OfLog),
        };
        match kind {
            JournalBlockType::Descriptor => {
                if let Err(error) = format.verify_tail(block) {
                    pending.damage.get_or_insert(error);
                }
                if v1 {
                    pending.v1_sum = v1_checksum(pending.v1_sum, block);
                }
                let tags: Vec<_> = DescriptorTags::new(block, &format).collect();
                for tag in tags {
                    let tag = match tag {
                        Ok(tag) => tag,
                        Err(error) => {
                            pending.damage.get_or_insert(error);
                            break;
                        }
                    };
                    at = reader.next(at);
                    pending.blocks += 1;
                    if pending.blocks > log_blocks {
                        return Ok(End::OfLog);
                    }
                    if v1 {
                        pending.v1_sum = v1_checksum(pending.v1_sum, reader.read(at)?);
                    }
                    let escaped = tag.flags.contains(TagFlags::ESCAPE);
                    let copy = Copy {
                        sequence,
                        at,
                        escaped,
                        checksum: tag.checksum,
                    };
                    pending.copies.push((tag.block, copy));
                }
            }
            JournalBlockType::Revoke => {
                if let Err(error) = format.verify_tail(block) {
                    pending.damage.get_or_insert(error);
                }
                match RevokedBlocks::parse(block, &format) {
                    Ok(blocks) => pending.revokes.extend(blocks),
                    Err(error) => {
                        pending.damage.get_or_insert(error);
                    }
                }
            }
            JournalBlockType::Commit => {
                let next = reader.next(at);
                let block = reader.read(at)?;
                let commit = Commit::parse(block, &format).map_err(|e| bad(sequence, e))?;
                let time = (commit.time_secs, commit.time_nanos);
                let sum_error = match commit.transaction_checksum {
                    Some(found) if sums_differ(found, pending.v1_sum) => {
                        Some(FormatError::JournalCommitChecksum {
                            found,
                            expected: pending.v1_sum,
                        })
                    }
                    _ => format.verify_commit(block).err(),
                };
                return Ok(match sum_error {
                    Some(error) => End::BadCommit { next, time, error },
                    None => End::Committed {
                        next,
                        time,
                        copies: pending,
                    },
                });
            }
            JournalBlockType::SuperblockV1 | JournalBlockType::SuperblockV2 => {
                return Ok(End::OfLog);
            }
        }
        at = reader.next(at);
    }
}

/// Scans the log and decides which copies count. An empty log gives an empty recovery.
///
/// # Errors
/// `Corrupt` when a committed transaction is damaged; `Io`.
pub fn scan(reader: &mut LogReader<'_>) -> Result<Recovery> {
    let superblock = reader.superblock;
    let mut recovery = Recovery {
        copies: HashMap::new(),
        end_sequence: superblock.sequence,
        end: LogBlock(superblock.start.unwrap_or(superblock.first)),
        transactions: 0,
        skipped: 0,
    };
    if superblock.start.is_none() {
        return Ok(recovery);
    }
    // Sequence numbers wrap: compare by distance from the first.
    let origin = superblock.sequence;
    let mut revokes: HashMap<BlockNo, u32> = HashMap::new();
    let mut all: Vec<(BlockNo, Copy)> = Vec::new();
    let mut last_time = (0, 0);
    let mut scanned = 0u64;
    let log_blocks = u64::from(superblock.log_end - superblock.first);
    loop {
        let sequence = recovery.end_sequence;
        match scan_one(reader, recovery.end, sequence)? {
            End::OfLog => break,
            End::BadCommit { next, time, error } => {
                // A commit block older than its predecessor is a remnant of the log's last round.
                let follows = time >= last_time
                    && matches!(
                        scan_one(reader, next, sequence.wrapping_add(1))?,
                        End::Committed { time: then, .. } if then >= time
                    );
                if follows {
                    return Err(bad(sequence, error));
                }
                break;
            }
            End::Committed {
                time,
                copies: pending,
                ..
            } if pending.damage.is_some() => {
                if time < last_time {
                    break;
                }
                let error = pending.damage.unwrap_or(FormatError::JournalTags);
                return Err(bad(sequence, error));
            }
            End::Committed {
                next,
                time,
                copies: pending,
            } => {
                scanned += u64::from(pending.blocks);
                if scanned > log_blocks {
                    return Err(bad(sequence, "the log goes around more than once"));
                }
                last_time = time;
                for block in pending.revokes {
                    revokes.insert(block, sequence);
                }
                all.extend(pending.copies);
                recovery.transactions += 1;
                recovery.end = next;
                recovery.end_sequence = sequence.wrapping_add(1);
            }
        }
    }
    let age = |sequence: u32| sequence.wrapping_sub(origin);
    for (block, copy) in all {
        let revoked = revokes
            .get(&block)
            .is_some_and(|r| age(copy.sequence) <= age(*r));
        // In log order, so a later copy of the same transaction wins as well.
        if revoked || recovery.copies.insert(block, copy).is_some() {
            recovery.skipped += 1;
        }
    }
    Ok(recovery)
}

/// A block's copy, verified, as it goes home.
fn read_copy(reader: &mut LogReader<'_>, block: BlockNo, copy: &Copy) -> Result<AlignedBuf> {
    let format = reader.superblock.format;
    let logged = reader.read(copy.at)?;
    let expected = format.tag_checksum(copy.sequence, logged);
    if format.block_checksums() && sums_differ(copy.checksum, expected) {
        return Err(bad(
            copy.sequence,
            format_args!(
                "the copy's checksum is {:#x}, its tag says {:#x}",
                expected, copy.checksum
            ),
        )
        .block(block.0));
    }
    let mut data = AlignedBuf::copy_of(logged);
    if copy.escaped {
        data[..4].copy_from_slice(&MAGIC_BYTES);
    }
    Ok(data)
}

impl Recovery {
    /// How many blocks go home.
    #[must_use]
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// The copies in the order of the log, which is read in runs.
    fn in_log_order(&self) -> Vec<(BlockNo, Copy)> {
        let mut order: Vec<(BlockNo, Copy)> = self.copies.iter().map(|(b, c)| (*b, *c)).collect();
        order.sort_unstable_by_key(|(_, copy)| copy.at);
        order
    }

    /// Verifies all copies.
    ///
    /// # Errors
    /// `Corrupt` for a copy whose checksum is bad, or a block outside of the volume; `Io`.
    pub fn verify(&self, reader: &mut LogReader<'_>, blocks_count: u64) -> Result<()> {
        for (block, copy) in self.in_log_order() {
            if block.0 >= blocks_count {
                return Err(
                    bad(copy.sequence, "a logged block lies outside of the volume").block(block.0),
                );
            }
            if reader.superblock.format.block_checksums() {
                read_copy(reader, block, &copy)?;
            }
        }
        Ok(())
    }

    /// Gives the blocks and their newest copies to `sink`, a part of the log at a time. `unstored` says of a block's place that nothing was ever stored there: a
    /// copy that was not, either, is left out.
    ///
    /// # Errors
    /// `Corrupt` for a copy whose checksum is bad; `Io`; and what `sink` says.
    pub fn copies(
        &self,
        reader: &mut LogReader<'_>,
        unstored: impl Fn(BlockNo) -> bool,
        mut sink: impl FnMut(BlockNo, AlignedBuf) -> Result<()>,
    ) -> Result<()> {
        let at_once = (COPIES_BYTES / reader.superblock.block_size as usize).max(1);
        for part in self.in_log_order().chunks(at_once) {
            let mut copies = Vec::with_capacity(part.len());
            for (block, copy) in part {
                let nothing = !copy.escaped && reader.is_hole(copy.at)? && unstored(*block);
                // Its checksum was verified with the others.
                if !nothing {
                    copies.push((*block, read_copy(reader, *block, copy)?));
                }
            }
            copies.sort_unstable_by_key(|(block, _)| *block);
            for (block, data) in copies {
                sink(block, data)?;
            }
        }
        Ok(())
    }

    /// The newest copy of a block, if the log has one.
    ///
    /// # Errors
    /// `Corrupt` when its checksum is bad; `Io`.
    pub fn copy_of(
        &self,
        reader: &mut LogReader<'_>,
        block: BlockNo,
    ) -> Result<Option<AlignedBuf>> {
        let copy = self.copies.get(&block);
        copy.map(|copy| read_copy(reader, block, copy)).transpose()
    }
}
