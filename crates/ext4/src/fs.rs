//! [`Fs`]: one mounted volume, and the checks and policies that every part of the engine uses.
//!
//! Parts are fields; each has its own locks. Nothing here locks more than a leaf.

use crate::buffer::MetaCache;
use crate::errors::{ErrorRecord, ErrorState, write_record};
use crate::group::GroupTable;
use crate::ialloc::InodeAllocator;
use crate::jbd2::Journal;
use crate::mballoc::Allocator;
use crate::mmp::Mmp;
use crate::options::Options;
use crate::orphan::Orphans;
use crate::quota::Quota;
use crate::superblock::SuperState;
use crate::tuning::Tuning;
use crate::zones::Zones;
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_ondisk::ext4::{BlockNo, Geometry, Ino, Superblock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mounted volume, shared.
pub type FsRef = Arc<Fs>;

/// A mounted volume.
pub struct Fs {
    /// The device it is on.
    pub device: SharedDevice,
    /// The superblock as validated at mount: geometry and features do not change.
    pub geo: Superblock,
    /// What of the superblock changes.
    pub sb: SuperState,
    /// Metadata blocks.
    pub cache: MetaCache,
    /// Transactions.
    pub journal: Journal,
    /// Blocks no file may claim.
    pub zones: Zones,
    /// Block groups.
    pub groups: GroupTable,
    /// Which blocks are handed out.
    pub alloc: Allocator,
    /// Which inodes are handed out.
    pub inodes: InodeAllocator,
    /// Inodes to finish after a crash.
    pub orphans: Orphans,
    /// Quota files.
    pub quota: Quota,
    /// What can be changed while mounted.
    pub(crate) tuning: Tuning,
    /// How it was mounted.
    pub options: Options,
    /// Errors found.
    pub errors: ErrorState,
    /// Protection against other hosts, when the volume asks for it.
    pub(crate) mmp: Mutex<Option<Mmp>>,
    pub(crate) read_only: AtomicBool,
    pub(crate) unmounted: AtomicBool,
}

impl Fs {
    /// Whether changes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire) || self.journal.aborted().is_some()
    }

    /// # Errors
    /// `Poisoned` after a failed metadata write, `ReadOnly` on a read-only mount.
    pub fn check_writable(&self, op: &'static str) -> Result<()> {
        if let Some(cause) = self.journal.aborted() {
            return Err(Error::new(ErrorKind::Poisoned, op).source(cause.clone()));
        }
        if self.read_only.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ReadOnly, op));
        }
        Ok(())
    }

    /// Refuses changes from here on, and says why.
    pub(crate) fn turn_read_only(&self, cause: &Error) {
        self.errors.note(cause);
        self.read_only.store(true, Ordering::Release);
        self.journal.set_read_only(true);
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.geo.geo.block_len()
    }

    /// The volume's shape.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geo.geo
    }

    /// Damage was found: applies the volume's error behaviour and makes the error to return.
    /// Must not be called with a buffer's or the superblock's lock held.
    #[must_use = "the operation must fail with it"]
    pub fn corrupt(
        &self,
        op: &'static str,
        ino: Option<Ino>,
        block: Option<BlockNo>,
        detail: impl Into<String>,
    ) -> Error {
        let mut error = Error::corrupt(op, detail);
        if let Some(ino) = ino {
            error = error.ino(blockwright_vfs::Ino(u64::from(ino.0)));
        }
        if let Some(block) = block {
            error = error.block(block.0);
        }
        self.errors.note(&error);
        if self.is_read_only() {
            return error;
        }
        let record = ErrorRecord::new(op, ino, block, error.kind());
        self.sb.record_error(&record);
        match self.errors.behaviour() {
            ErrorBehaviour::Continue => {}
            // The running transaction may hold half of an operation that met the damage, so it is
            // not committed either.
            behaviour @ (ErrorBehaviour::RemountReadOnly | ErrorBehaviour::Panic) => {
                self.read_only.store(true, Ordering::Release);
                write_record(&self.device, &record);
                self.journal.abort(&error);
                if behaviour == ErrorBehaviour::Panic
                    && let Some(on_panic) = &self.options.on_panic
                {
                    on_panic(&error);
                }
            }
        }
        error
    }

    /// Checks a run of blocks that an on-disk pointer of a file names: inside of the volume and none of the
    /// volume's own structures.
    ///
    /// # Errors
    /// `Corrupt`, after [`Fs::corrupt`].
    pub fn check_block_range(
        &self,
        op: &'static str,
        ino: Option<Ino>,
        block: BlockNo,
        count: u64,
    ) -> Result<()> {
        let geo = self.geometry();
        if !geo.contains_run(block, count) {
            let detail = format!(
                "a pointer to {count} blocks from {block} leaves the volume of {} blocks",
                geo.blocks_count
            );
            return Err(self.corrupt(op, ino, Some(block), detail));
        }
        if self.options.block_validity
            && (Zones::overlaps_fixed(geo, block, count)
                || self.system_overlap(block, count)?.is_some())
        {
            let detail = format!("a pointer to {count} blocks from {block} hits metadata");
            return Err(self.corrupt(op, ino, Some(block), detail));
        }
        Ok(())
    }
}
