//! The gate between operations and checkpoints.
//!
//! Every operation runs with the gate shared, a checkpoint with it exclusive. So a checkpoint stores whole
//! operations only. Operations leave all they changed in the caches of nodes and directory blocks.
//!
//! # Never stuck
//! A checkpoint needs a new block for every dirty node and directory block. Operations make room for that
//! before they begin ([`Checkpoints::begin`]): they checkpoint first when dirty blocks come close to what can be handed
//! out.
//!
//! # Locks
//! `gate`, rank `EngineGate`.

use crate::Result;
use crate::checkpoint::Checkpoints;
use crate::options::Mode;
use crate::writer::Writer;
use blockwright_vfs::locks::ReadGuard;
use std::sync::atomic::Ordering;

/// With so much dirty metadata a checkpoint is written, however large the cache is: it must not take long.
const DIRTY_BYTES_MAX: u64 = 64 << 20;

/// An operation under way. While it lives no checkpoint is written.
pub(crate) struct Op<'a> {
    pub(crate) w: &'a Writer,
    _gate: ReadGuard<'a, ()>,
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        self.w.dirty.store(true, Ordering::Release);
    }
}

impl Checkpoints {
    /// Begins an operation that changes something.
    ///
    /// # Errors
    /// As [`Access::writer`], and those of a checkpoint.
    pub(crate) fn begin(&self, op: &'static str) -> Result<Op<'_>> {
        let operation = self.begin_quietly(op)?;
        operation
            .w
            .relocation
            .operations
            .fetch_add(1, Ordering::Relaxed);
        Ok(operation)
    }

    /// As [`Checkpoints::begin`], for what an idle volume does to itself.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn begin_quietly(&self, op: &'static str) -> Result<Op<'_>> {
        let w = self.access.writer(op)?;
        if self.is_crowded(w) {
            self.checkpoint()?;
            self.access.writer(op)?;
        }
        if w.segments.is_pinned() {
            w.segments
                .set_spill_need(2 * self.nodes.dirty_blocks() + self.slack(w));
        }
        Ok(Op {
            w,
            _gate: w.gate.read(),
        })
    }

    /// As [`Checkpoints::begin`], if that needs no waiting and no checkpoint before.
    pub(crate) fn try_begin(&self, op: &'static str) -> Option<Op<'_>> {
        let w = self.access.writer(op).ok()?;
        if w.segments.is_pinned() || self.is_crowded(w) {
            return None;
        }
        let gate = w.gate.try_read()?;
        w.relocation.operations.fetch_add(1, Ordering::Relaxed);
        Some(Op { w, _gate: gate })
    }

    /// Blocks the next checkpoint needs, or, after a crash, recovery and its checkpoint.
    pub(crate) fn needed_blocks(&self) -> u64 {
        let chain = self.access.writer.as_ref().map_or(0, |w| w.chain.blocks());
        self.nodes.dirty_blocks() + chain
    }

    /// Blocks that operations leave alone, so that a checkpoint always finds enough.
    fn slack(&self, w: &Writer) -> u64 {
        let slack = (self.volume.geo.main_blocks() / 16).clamp(64, 4096);
        match w.segments.mode() {
            Mode::Adaptive => slack,
            // Free sections only count there, of which there are few.
            Mode::Lfs => slack.min(w.segments.reserve() as u64 * w.segments.section_blocks() / 4),
        }
    }

    /// Whether dirty metadata comes close to what can be handed out, or to the cache's budget.
    fn is_crowded(&self, w: &Writer) -> bool {
        let dirty = self.nodes.dirty_blocks();
        let slack = self.slack(w);
        let needed = self.needed_blocks();
        needed > 0
            && (dirty << 12
                > self
                    .volume
                    .options
                    .metadata_cache_bytes
                    .min(DIRTY_BYTES_MAX)
                || w.segments.available() < 2 * needed + slack)
    }

    /// Whether this many more blocks could be written, and a checkpoint and recovery would find enough still.
    pub(crate) fn is_roomy(&self, w: &Writer, more: u64) -> bool {
        w.segments.available() >= 2 * (self.needed_blocks() + more) + self.slack(w)
    }
}
