//! Writing a transaction: what happens between its last handle and its callers' wake-up.

use super::transaction::{Callback, Transaction};
use super::{Handle, Shared, Tid, add};
use crate::buffer::{BufferData, BufferRef};
use crate::io::WriteBatch;
use crate::{Error, Result};
use blockwright_device::{DevOffset, Flags};
use blockwright_ondisk::ext4::BlockNo;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
        if let Some(hook) = self.on_lock.get() {
            if txn.sizes() != (0, 0) {
                hook(&Handle::internal(self, Arc::clone(txn), "commit"))?;
            }
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
        if !commit.copies.is_empty() {
            self.write_home(&commit)?;
        }
        for callback in commit.callbacks {
            callback();
        }
        Ok(())
    }

    /// The commit of a volume without a journal.
    fn write_home(&self, commit: &Commit) -> Result<()> {
        let bytes = self.cache.block_bytes() as u64;
        let mut batch = WriteBatch::new(&self.device, Flags::empty());
        for (block, data) in &commit.copies {
            batch.push(DevOffset(block.0 * bytes), data.clone().into());
        }
        batch.finish().map_err(|e| Error::io("metadata write", e))?;
        add(&self.counters.checkpoint_blocks, commit.copies.len() as u64);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.flush("metadata flush")
    }
}
