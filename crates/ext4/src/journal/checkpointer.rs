//! Moving committed blocks home, and the log's tail after them.
//!
//! Started when the log is half full, so that commits rarely wait for room; called directly by a
//! commit that does need room, and at unmount. Only the oldest transactions go home: a block that is
//! changed all the time is superseded in the map over and over and written home seldom.
//!
//! # Crash order
//! copies written home → flush → tail moves (durably) → log space reused. See `checkpoint`.
//!
//! # Locks
//! `checkpoint_turn` is held for a whole checkpoint: one at a time, so that an older copy of a block
//! never lands on a newer one.

use super::log::Log;
use super::{Shared, Tid, add};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, Flags, IoPriority, WriteBatch};

/// Blocks written home between two looks at the map.
const BATCH_BLOCKS: usize = 2048;

impl Shared {
    /// Writes everything of transactions up to `until` home and releases their log space.
    pub(super) fn checkpoint(&self, log: &Log, until: Tid) -> Result<()> {
        let _turn = self.checkpoint_turn.lock();
        self.check_alive("checkpoint")?;
        let result = self.write_copies_home(until).and_then(|wrote| {
            if wrote {
                self.flush("checkpoint flush")?;
            }
            // In this order: a transaction that is committed after the first look is not released
            // because the map was empty at the second.
            let Some(newest) = log.newest() else {
                return Ok(());
            };
            log.release(newest, self.cache.checkpoint().oldest())
        });
        add(&self.counters.checkpoints, 1);
        result.inspect_err(|error| self.abort(error.clone()))
    }

    fn write_copies_home(&self, until: Tid) -> Result<bool> {
        let map = self.cache.checkpoint();
        let bytes = self.cache.block_bytes() as u64;
        let blocks = map.blocks_until(until);
        for chunk in blocks.chunks(BATCH_BLOCKS) {
            let batch = map.take_batch(chunk, until);
            let mut writes = WriteBatch::new(&self.device, Flags::META, IoPriority::default());
            for (block, _, data) in &batch {
                writes.push(DevOffset(block.0 * bytes), data.clone().into());
            }
            let result = writes.finish();
            map.written_home(&batch, result.is_ok());
            result.map_err(|e| Error::io("checkpoint write", e))?;
            add(&self.counters.checkpoint_blocks, batch.len() as u64);
        }
        Ok(!blocks.is_empty())
    }

    /// Sees to it that the log has room for `blocks`, in the committing thread.
    pub(super) fn make_room(&self, log: &Log, blocks: u32) -> Result<()> {
        while let Some(until) = log.checkpoint_target(blocks) {
            add(&self.counters.log_waits, 1);
            self.checkpoint(log, until)?;
        }
        if log.free() < blocks {
            return Err(
                Error::new(ErrorKind::NoSpace, "journal write").detail(format!(
                    "a transaction of {blocks} blocks does not fit a log of {}",
                    log.capacity()
                )),
            );
        }
        Ok(())
    }

    /// Wakes the checkpointer when the log is getting full.
    pub(super) fn kick_checkpointer(&self) {
        if self
            .log
            .as_ref()
            .is_some_and(|log| log.free() < log.capacity() / 2)
        {
            let mut wanted = self.checkpoint_wanted.lock();
            *wanted = true;
            self.checkpoint_wake.notify_one();
        }
    }

    /// The checkpointer's thread.
    pub(super) fn run_checkpointer(&self) {
        loop {
            {
                let mut wanted = self.checkpoint_wanted.lock();
                while !*wanted && !self.stopping() && self.aborted.get().is_none() {
                    self.checkpoint_wake.wait(&mut wanted);
                }
                *wanted = false;
            }
            if self.stopping() || self.aborted.get().is_some() {
                return;
            }
            let Some(log) = &self.log else {
                return;
            };
            if let Some(until) = log.checkpoint_target(log.capacity() / 4 * 3) {
                // A failure aborts the journal; all callers meet it there.
                if self.checkpoint(log, until).is_err() {
                    return;
                }
            }
        }
    }
}
