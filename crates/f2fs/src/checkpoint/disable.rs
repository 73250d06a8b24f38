//! `checkpoint=disable`: the mount writes one checkpoint, and nothing that it refers to is changed on the device until checkpoints are enabled
//! again. That happens with `checkpoint=enable` at the next mount, or through the tunable. After an unmount or a
//! crash before that, the volume is as it was mounted.
//!
//! Meanwhile fsync and sync promise nothing and do nothing. Overwrites of blocks that the checkpoint has go to new blocks. Metadata that does not
//! fit the cache is *spilled*: it is written to new places, as by a checkpoint, without the pack that would make it count.
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": mount option `checkpoint=`.

use crate::checkpoint::CheckpointKind;
use crate::checkpoint::Checkpoints;
use crate::options::{Checkpointing, Unusable};
use crate::writer::Writer;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{Flags, IoPriority, WriteBatch};
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use std::sync::atomic::Ordering;

const OP: &str = "disable checkpoints";

impl Checkpoints {
    /// At mount: disables checkpoints when that is asked for. When it is not, and they were disabled, the next one enables them.
    ///
    /// # Errors
    /// `Invalid` beside merged checkpoints; `Busy` when more would be hidden than is allowed; those of a checkpoint.
    pub(crate) fn apply_checkpoint_option(&self) -> Result<()> {
        let Some(w) = &self.access.writer else {
            return Ok(());
        };
        let Checkpointing::Disabled { unusable_max } = self.volume.options.checkpoint else {
            if self
                .volume
                .checkpoint
                .flags()
                .contains(CheckpointFlags::DISABLED)
            {
                w.dirty.store(true, Ordering::Release);
            }
            return Ok(());
        };
        if self.volume.options.checkpoint_merge == Some(true) {
            return Err(Error::new(ErrorKind::Invalid, OP)
                .detail("checkpoint=disable and checkpoint_merge cannot be used together"));
        }
        let max = match unusable_max {
            Unusable::Blocks(blocks) => blocks,
            Unusable::Percent(percent) => w.segments.user_blocks() * u64::from(percent) / 100,
        };
        let holes = w.segments.holes();
        if holes > max {
            return Err(Error::new(ErrorKind::Busy, OP).detail(format!(
                "{holes} free blocks would be hidden, {max} are allowed: clean the volume, or allow more (checkpoint=disable:{holes})"
            )));
        }
        self.write_checkpoint(w, CheckpointKind::Disable)
    }

    /// Enables checkpoints again, with one that has all that was done.
    ///
    /// # Errors
    /// Those of a checkpoint.
    pub(crate) fn enable_checkpoints(&self) -> Result<()> {
        let w = self.access.writer("enable checkpoints")?;
        if !w.segments.is_pinned() {
            return Ok(());
        }
        if let Some(host) = w.relocation.host() {
            // Data that was written counts as done.
            host.write_back()?;
        }
        w.dirty.store(true, Ordering::Release);
        self.write_checkpoint(w, CheckpointKind::Sync)
    }

    /// Writes out nodes and directories, and hands out again what is given up and not pinned.
    pub(crate) fn spill(&self, w: &Writer) -> Result<()> {
        let _gate = w.gate.write();
        if !w.segments.is_pinned() {
            // Enabled meanwhile, with a checkpoint.
            return Ok(());
        }
        let spilled = self.spill_gated(w);
        if let Err(e) = &spilled {
            w.poison(e);
        }
        spilled
    }

    fn spill_gated(&self, w: &Writer) -> Result<()> {
        w.segments.end_leases();
        let mut batch = WriteBatch::new(&self.volume.device, Flags::META, IoPriority::current());
        let written = self.write_metadata(w, &mut batch)?;
        w.segments.flush_summaries(&mut batch);
        batch.finish().map_err(|e| Error::io("spill", e))?;
        self.mark_written(written);
        w.relocation.await_reads();
        w.segments.reclaim();
        Ok(())
    }
}
