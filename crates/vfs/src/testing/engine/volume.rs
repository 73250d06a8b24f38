//! The volume in memory.

use crate::engine::{Format, Volume};
use crate::error::Result;
use crate::stats::Stats;
use crate::testing::{MemEngine, ROOT};
use std::sync::atomic::Ordering;

impl Volume for MemEngine {
    fn format(&self) -> Format {
        Format {
            name: "mem",
            root: ROOT,
            block_bytes: self.options.block_bytes,
            moves_blocks: false,
            keeps_places: true,
            reserve_allocates: false,
        }
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    fn stats(&self, _out: &mut Stats) {}

    fn sync_volume(&self) -> Result<()> {
        self.volume.lock().synced += 1;
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
