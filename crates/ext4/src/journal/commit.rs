//! Writing a transaction: what happens between its last handle and its callers' wake-up.
//!
//! # Crash order
//! Revokes, descriptors and copies; a flush, which also covers the file data that the transaction makes visible; the commit block, with FUA. Then the
//! copies enter the checkpoint map, and the callbacks hand freed blocks to new owners. Without a journal the copies are written to
//! their places, and a flush follows.
//!
//! Not responsible: which thread commits, and when (`journal`); writing logged blocks to their places (`checkpoint`).

use super::location::LogBlock;
use super::log::Log;
use super::transaction::{Callback, Transaction};
use super::{Handle, Shared, Tid, add};
use crate::journal::buffer::{BufferData, BufferRef};
use crate::{Error, Result};
use blockwright_device::{
    AlignedBuf, DevOffset, DeviceExt, Flags, IoPriority, IoSlice, WriteBatch,
};
use blockwright_ondisk::ext4::BlockNo;
use blockwright_ondisk::ext4::jbd2::{
    DescriptorBuilder, JournalChecksums, JournalFormat, RevokeBuilder, needs_escape, v1_checksum,
};
use blockwright_vfs::Timestamp;
use std::sync::Arc;

/// A transaction ready to be written.
pub(super) struct Commit {
    pub(super) tid: Tid,
    /// Ascending by block.
    pub(super) copies: Vec<(BlockNo, BufferData)>,
    /// Ascending.
    pub(super) revokes: Vec<BlockNo>,
    callbacks: Vec<Callback>,
    /// Keeps the buffers in the cache until the checkpoint map or the device has their bytes.
    _pinned: Vec<BufferRef>,
}

impl Shared {
    /// Snapshots a transaction that has no handles left.
    pub(super) fn prepare(&self, txn: &Arc<Transaction>) -> Result<Commit> {
        self.check_alive("commit")?;
        if let Some(hook) = self.on_lock.get()
            && txn.sizes() != (0, 0)
        {
            hook(&Handle::internal(self, Arc::clone(txn), "commit"))?;
        }
        let (contents, callbacks) = txn.take();
        let mut pinned: Vec<BufferRef> = contents.blocks.into_values().map(|b| b.buffer).collect();
        pinned.sort_unstable_by_key(|b| b.block());
        let mut revokes: Vec<BlockNo> = contents.revokes.into_iter().collect();
        revokes.sort_unstable();
        Ok(Commit {
            tid: txn.tid,
            copies: pinned.iter().map(|b| (b.block(), b.data())).collect(),
            revokes,
            callbacks,
            _pinned: pinned,
        })
    }

    /// Makes a prepared transaction durable, and runs its callbacks.
    pub(super) fn write_commit(&self, commit: Commit) -> Result<()> {
        let Commit {
            tid,
            copies,
            revokes,
            callbacks,
            _pinned,
        } = commit;
        match &self.log {
            _ if copies.is_empty() && revokes.is_empty() => {}
            Some(log) => {
                let (end, blocks) = self.write_log(log, &copies, &revokes)?;
                add(&self.counters.blocks_logged, copies.len() as u64);
                add(&self.counters.revokes, revokes.len() as u64);
                let map = self.cache.checkpoint();
                map.insert(tid, copies);
                // After its copies are in the map: the checkpointer takes a transaction without
                // copies for one that is home, and releases its place in the log.
                log.committed(tid, end, blocks);
                // Waits for writes home of these blocks that are under way, because the callbacks
                // below hand the blocks to new owners.
                map.remove(revokes);
                self.kick_checkpointer();
            }
            None => self.write_home(&copies)?,
        }
        // The cache may evict the buffers now: the checkpoint map or the device has their bytes.
        drop(_pinned);
        for callback in callbacks {
            callback();
        }
        Ok(())
    }

    /// The commit of a volume without a journal.
    fn write_home(&self, copies: &[(BlockNo, BufferData)]) -> Result<()> {
        let bytes = self.cache.block_bytes() as u64;
        let mut batch = WriteBatch::new(&self.device, Flags::META, IoPriority::default());
        for (block, data) in copies {
            batch.push(DevOffset(block.0 * bytes), data.clone().into());
        }
        batch.finish().map_err(|e| Error::io("metadata write", e))?;
        add(&self.counters.checkpoint_blocks, copies.len() as u64);
        add(&self.counters.checkpoints, 1);
        self.flush("metadata flush")
    }

    /// Writes the transaction's records behind the head, then its commit block. Returns where the
    /// next one begins, and how many blocks this one took.
    fn write_log(
        &self,
        log: &Log,
        copies: &[(BlockNo, BufferData)],
        revokes: &[BlockNo],
    ) -> Result<(LogBlock, u32)> {
        let io = |e| Error::io("journal write", e);
        let records = build(&log.format, log.position().1, copies, revokes)?;
        let blocks = u32::try_from(records.blocks.len() + 1).unwrap_or(u32::MAX);
        self.make_room(log, blocks)?;
        log.mark_in_use()?;

        let mut at = log.position().0;
        let mut batch = WriteBatch::new(&log.device, Flags::META, IoPriority::default());
        for record in records.blocks {
            batch.push(log.offset(at)?, record);
            at = log.next(at);
        }
        batch.finish().map_err(io)?;
        // The records, and all file data that the transaction makes visible, before the commit
        // block: a device may write in any order between flushes.
        if log.external {
            self.flush("journal flush")?;
        }
        self.flush_log(log)?;
        let flags = if self.tuned.barrier() {
            Flags::FUA
        } else {
            Flags::empty()
        };
        log.device
            .write_slices(log.offset(at)?, vec![records.commit], flags | Flags::META)
            .map_err(io)?;
        Ok((log.next(at), blocks))
    }

    pub(super) fn flush_log(&self, log: &Log) -> Result<()> {
        if !self.tuned.barrier() {
            return Ok(());
        }
        add(&self.counters.flushes, 1);
        log.device
            .flush()
            .map_err(|e| Error::io("journal flush", e))
    }
}

/// A transaction as the log holds it.
struct Records {
    /// Revoke blocks, then each descriptor with the copies it describes.
    blocks: Vec<IoSlice>,
    commit: IoSlice,
}

fn too_small() -> Error {
    Error::corrupt(
        "journal write",
        "a block number does not fit the journal's format",
    )
}

fn build(
    format: &JournalFormat,
    sequence: u32,
    copies: &[(BlockNo, BufferData)],
    revokes: &[BlockNo],
) -> Result<Records> {
    let size = format.block_size as usize;
    let mut blocks = Vec::with_capacity(copies.len() + copies.len() / 32 + 4);
    for chunk in revokes.chunks(format.revokes_per_block()) {
        let mut block = AlignedBuf::zeroed(size);
        let mut builder = RevokeBuilder::new(&mut block, format, sequence).ok_or_else(too_small)?;
        for &revoked in chunk {
            builder.push(revoked).ok_or_else(too_small)?;
        }
        builder.finish();
        blocks.push(block.into());
    }
    let mut v1_sum = u32::MAX;
    for chunk in copies.chunks(format.tags_per_block()) {
        let mut block = AlignedBuf::zeroed(size);
        let mut builder =
            DescriptorBuilder::new(&mut block, format, sequence).ok_or_else(too_small)?;
        let mut logged: Vec<IoSlice> = Vec::with_capacity(chunk.len());
        for (home, data) in chunk {
            let escape = needs_escape(data);
            let copy: IoSlice = if escape {
                let mut copy = AlignedBuf::copy_of(data);
                copy[..4].fill(0);
                copy.into()
            } else {
                data.clone().into()
            };
            let sum = format.tag_checksum(sequence, &copy);
            builder.push(*home, escape, sum).ok_or_else(too_small)?;
            logged.push(copy);
        }
        builder.finish();
        blocks.push(block.into());
        if format.checksums == JournalChecksums::V1 {
            let described = blocks.last().into_iter().chain(&logged);
            v1_sum = described.fold(v1_sum, |sum, block| v1_checksum(sum, block));
        }
        blocks.append(&mut logged);
    }
    let now = Timestamp::now();
    let mut commit = AlignedBuf::zeroed(size);
    format
        .write_commit(
            &mut commit,
            sequence,
            u64::try_from(now.secs).unwrap_or(0),
            now.nanos,
            v1_sum,
        )
        .ok_or_else(too_small)?;
    Ok(Records {
        blocks,
        commit: commit.into(),
    })
}
