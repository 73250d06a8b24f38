//! The log on its device: where its blocks lie, its superblock, head and tail.
//!
//! # Invariants
//! * Blocks from the tail up to the head hold committed transactions in sequence; `used` counts
//!   them. Head and next sequence number move only when a commit record is durable, so that at any
//!   time "(head, next sequence)" is where recovery would look for the next transaction.
//! * One block always stays free, or a full log would look like an empty one.
//! * The superblock on disk names a tail at or before the true one.
//!
//! # Crash order
//! The tail on disk moves only after the blocks of the released transactions are home and flushed.
//! Log space is reused only after that tail is durable.
//!
//! # Locks
//! `state` (leaf, no I/O) and `writer` (held while the superblock is written, so that an older
//! version never lands on a newer one).

use super::Tid;
use super::location::{LogBlock, LogMap};
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, Flags, SharedDevice};
use blockwright_ondisk::ext4::jbd2::{
    JournalCompat, JournalFormat, JournalIncompat, JournalSuperblock, RawJournalSuperblock,
    SUPERBLOCK_SIZE,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

struct Committed {
    tid: Tid,
    sequence: u32,
    start: LogBlock,
    blocks: u32,
}

struct LogState {
    raw: RawJournalSuperblock,
    head: LogBlock,
    next_sequence: u32,
    /// Transactions whose blocks may not all be home, oldest first.
    committed: VecDeque<Committed>,
    used: u32,
    /// On disk the log is marked as empty (`s_start` = 0).
    marked_empty: bool,
}

/// The log of a journal that has been recovered.
pub struct Log {
    pub(super) device: SharedDevice,
    /// The log is on a device of its own.
    pub(super) external: bool,
    pub(super) map: LogMap,
    super_at: LogBlock,
    pub(super) format: JournalFormat,
    first: u32,
    end: u32,
    state: Mutex<LogState>,
    writer: Mutex<()>,
}

/// Sets the checksums and numbers that the log uses from now on.
#[derive(Clone, Copy, Debug)]
pub struct LogFeatures {
    /// The volume has 64-bit block numbers.
    pub wide: bool,
    /// The volume checksums its metadata.
    pub metadata_csum: bool,
}

const BLOCK_TYPE_SUPER_V2: u32 = 4;

impl Log {
    /// Takes over an empty (recovered, or cleanly closed) log for writing. Its next transaction gets
    /// `next_sequence`. Nothing is written yet.
    ///
    /// # Errors
    /// `Corrupt` when the superblock with its new features does not hold together.
    pub fn open(
        device: SharedDevice,
        external: bool,
        map: LogMap,
        super_at: LogBlock,
        superblock: &JournalSuperblock,
        features: LogFeatures,
        next_sequence: u32,
    ) -> Result<Self> {
        let mut raw = superblock.raw;
        if raw.header.blocktype.get() != BLOCK_TYPE_SUPER_V2 {
            // The first version ends before the feature words, which revoke records need.
            raw.header.blocktype.set(BLOCK_TYPE_SUPER_V2);
            raw.feature_compat.set(0);
            raw.feature_incompat.set(0);
            raw.feature_ro_compat.set(0);
        }
        let mut compat = JournalCompat::from_bits_retain(raw.feature_compat.get());
        let mut incompat = JournalIncompat::from_bits_retain(raw.feature_incompat.get());
        incompat |= JournalIncompat::REVOKE;
        // Neither is ever written by this engine. The fast-commit area joins the log.
        incompat -= JournalIncompat::FAST_COMMIT | JournalIncompat::ASYNC_COMMIT;
        if features.wide {
            incompat |= JournalIncompat::BIT64;
        }
        if features.metadata_csum {
            incompat = (incompat - JournalIncompat::CSUM_V2) | JournalIncompat::CSUM_V3;
            compat -= JournalCompat::CHECKSUM;
        }
        raw.feature_compat.set(compat.bits());
        raw.feature_incompat.set(incompat.bits());
        raw.start.set(0);
        raw.sequence.set(next_sequence);
        raw.errno.set(0);
        raw.head.set(0);
        raw.set_checksum();
        let blocks = Some(u64::from(map.len()));
        let parsed = JournalSuperblock::parse(raw.as_bytes(), blocks)
            .map_err(|e| Error::corrupt("journal", e.to_string()))?;
        Ok(Log {
            device,
            external,
            map,
            super_at,
            format: parsed.format,
            first: parsed.first,
            end: parsed.log_end,
            state: Mutex::new(LogState {
                raw,
                head: LogBlock(parsed.first),
                next_sequence,
                committed: VecDeque::new(),
                used: 0,
                marked_empty: true,
            }),
            writer: Mutex::new(()),
        })
    }

    /// Blocks that transactions can use.
    pub(super) fn capacity(&self) -> u32 {
        self.end - self.first - 1
    }

    /// Blocks free for the next transaction.
    pub(super) fn free(&self) -> u32 {
        self.capacity().saturating_sub(self.state.lock().used)
    }

    /// Where the next transaction begins, and its sequence number.
    pub(super) fn position(&self) -> (LogBlock, u32) {
        let state = self.state.lock();
        (state.head, state.next_sequence)
    }

    /// The block after `at`, around the end.
    pub(super) fn next(&self, at: LogBlock) -> LogBlock {
        if at.0 + 1 >= self.end {
            LogBlock(self.first)
        } else {
            LogBlock(at.0 + 1)
        }
    }

    /// Where a block of the log lies on its device.
    pub(super) fn offset(&self, at: LogBlock) -> Result<DevOffset> {
        self.map.offset(at, self.format.block_size)
    }

    /// The transaction at the head is durable.
    pub(super) fn committed(&self, tid: Tid, end: LogBlock, blocks: u32) {
        let mut state = self.state.lock();
        let (start, sequence) = (state.head, state.next_sequence);
        state.committed.push_back(Committed {
            tid,
            sequence,
            start,
            blocks,
        });
        state.used += blocks;
        state.head = end;
        state.next_sequence = sequence.wrapping_add(1);
    }

    /// The transaction up to which everything must go home for `wanted` free blocks; `None` when
    /// there are as many.
    pub(super) fn checkpoint_target(&self, wanted: u32) -> Option<Tid> {
        let state = self.state.lock();
        let mut free = self.capacity().saturating_sub(state.used);
        if free >= wanted {
            return None;
        }
        let mut target = None;
        for committed in &state.committed {
            target = Some(committed.tid);
            free += committed.blocks;
            if free >= wanted {
                break;
            }
        }
        target
    }

    /// The latest transaction in the log whose blocks are in the checkpoint map, or were.
    pub(super) fn newest(&self) -> Option<Tid> {
        self.state.lock().committed.back().map(|c| c.tid)
    }

    /// Frees the space of transactions up to `newest` that are before `oldest` (of all of them, for
    /// `None`), whose blocks are home and flushed.
    ///
    /// # Errors
    /// `Io`: the superblock could not be written.
    pub(super) fn release(&self, newest: Tid, oldest: Option<Tid>) -> Result<()> {
        let writer = self.writer.lock();
        let mut state = self.state.lock();
        let mut freed = 0;
        let mut released = 0;
        for committed in &state.committed {
            if committed.tid > newest || oldest.is_some_and(|oldest| committed.tid >= oldest) {
                break;
            }
            freed += committed.blocks;
            released += 1;
        }
        if released == 0 || state.marked_empty {
            return Ok(());
        }
        let (start, sequence) = match state.committed.get(released) {
            Some(tail) => (tail.start, tail.sequence),
            None => (state.head, state.next_sequence),
        };
        state.raw.start.set(start.0);
        state.raw.sequence.set(sequence);
        let raw = state.raw;
        drop(state);
        self.write_super(raw)?;
        // Only now: a commit that reused the space before the tail is durable could be torn by
        // recovery from the old tail.
        let mut state = self.state.lock();
        state.committed.drain(..released);
        state.used = state.used.saturating_sub(freed);
        drop(state);
        drop(writer);
        Ok(())
    }

    /// Before the first transaction: makes recovery look into the log.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn mark_in_use(&self) -> Result<()> {
        let _writer = self.writer.lock();
        let mut state = self.state.lock();
        if !state.marked_empty {
            return Ok(());
        }
        let (head, sequence) = (state.head, state.next_sequence);
        state.raw.start.set(head.0);
        state.raw.sequence.set(sequence);
        let raw = state.raw;
        drop(state);
        self.write_super(raw)?;
        self.state.lock().marked_empty = false;
        Ok(())
    }

    /// Everything is home and flushed: recovery need not look into the log.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn mark_empty(&self) -> Result<()> {
        let _writer = self.writer.lock();
        let mut state = self.state.lock();
        state.raw.start.set(0);
        let sequence = state.next_sequence;
        state.raw.sequence.set(sequence);
        let raw = state.raw;
        drop(state);
        self.write_super(raw)?;
        let mut state = self.state.lock();
        state.marked_empty = true;
        state.committed.clear();
        state.used = 0;
        Ok(())
    }

    /// Leaves word of an abort for the next mount. Best effort.
    pub(super) fn record_errno(&self, errno: i32) {
        let _writer = self.writer.lock();
        let mut state = self.state.lock();
        state.raw.errno.set(errno as u32);
        let raw = state.raw;
        drop(state);
        // The journal has given up already; recovery works without the note.
        let _ = self.write_super(raw);
    }

    fn write_super(&self, mut raw: RawJournalSuperblock) -> Result<()> {
        raw.set_checksum();
        write_super_block(
            &self.device,
            self.offset_of_super()?,
            self.format.block_size,
            &raw,
        )
    }

    fn offset_of_super(&self) -> Result<DevOffset> {
        self.map.offset(self.super_at, self.format.block_size)
    }
}

/// Writes a journal superblock durably. The rest of its block is left as it is.
pub(super) fn write_super_block(
    device: &SharedDevice,
    offset: DevOffset,
    block_size: u32,
    raw: &RawJournalSuperblock,
) -> Result<()> {
    const OP: &str = "journal superblock";
    let unit = device
        .geometry()
        .logical_block_bytes
        .max(SUPERBLOCK_SIZE as u32);
    let bytes = unit.min(block_size) as usize;
    let mut buf = if bytes > SUPERBLOCK_SIZE {
        device
            .read_buf(offset, bytes)
            .map_err(|e| Error::io(OP, e))?
    } else {
        AlignedBuf::zeroed(bytes)
    };
    if let Some(place) = buf.get_mut(..SUPERBLOCK_SIZE) {
        place.copy_from_slice(raw.as_bytes());
    }
    device
        .write_at(offset, &buf, Flags::FUA | Flags::META)
        .map_err(|e| Error::io(OP, e))
}
