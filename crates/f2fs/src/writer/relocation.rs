//! Blocks that move: readers that may know an old place, counters, and where a waiting writer spent its time.
//!
//! It knows the vfs as the [`Host`], and no other part.

use crate::writer::trace::Trace;
use blockwright_vfs::Host;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What cleaning has done since the mount.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) sections_foreground: AtomicU64,
    pub(crate) sections_background: AtomicU64,
    pub(crate) sections_ahead: AtomicU64,
    pub(crate) data_blocks_moved: AtomicU64,
    pub(crate) node_blocks_moved: AtomicU64,
    pub(crate) foreground_waits: AtomicU64,
    pub(crate) foreground_ns: AtomicU64,
    pub(crate) foreground_peak_ns: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Users' data, in place or not.
    pub(crate) data_blocks_written: AtomicU64,
    /// Nodes and blocks of directories, by checkpoints.
    pub(crate) metadata_blocks_written: AtomicU64,
    /// Overwritten in place in `lfs` mode, for lack of free segments.
    pub(crate) lfs_in_place: AtomicU64,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Relocation {
    pub(crate) host: OnceLock<Arc<dyn Host>>,
    /// Blocks that readers may know were given up since the last checkpoint.
    pub(crate) moved: AtomicBool,
    /// Operations begun: an unchanged count shows an idle volume.
    pub(crate) operations: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) trace: Trace,
}

impl Relocation {
    /// The vfs, once it is there.
    pub(crate) fn host(&self) -> Option<&Arc<dyn Host>> {
        self.host.get()
    }

    /// Before blocks that were given up are handed out: waits for reads that may know them.
    pub(crate) fn await_reads(&self) {
        if self.moved.swap(false, Ordering::AcqRel)
            && let Some(host) = self.host.get()
        {
            host.await_reads();
        }
    }
}
