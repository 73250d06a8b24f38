//! [`Volume`]: what all parts know of a mounted volume, and what is done about damage.
//!
//! It owns the device, the superblock, the metadata cache, the journal, the mount's options and tunables, and the errors found.
//! It calls no part above it, and it never changes what a structure on the device says of files.
//!
//! # Locks
//! `superblock` has one, below a handle and group locks.
//!
//! # Crash order
//! Damage stops the journal before the running transaction can commit: that transaction may hold half of the operation that met
//! the damage. The record of the error goes straight into the superblock.

mod errors;
mod superblock;
mod tuning;

pub(crate) use errors::{ErrorRecord, ErrorState, write_record};
pub(crate) use superblock::SuperState;
pub(crate) use tuning::Tuning;

use crate::growing::Growing;
use crate::journal::Journal;
use crate::journal::buffer::MetaCache;
use crate::options::Options;
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::features::{Incompat, RoCompat};
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_ondisk::ext4::{BlockNo, FormatError, Geometry, Ino, Superblock};
use blockwright_vfs::Timestamp;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    u64::try_from(Timestamp::now().secs).unwrap_or(0)
}

/// See the module's head.
pub struct Volume {
    /// The device it is on.
    pub device: SharedDevice,
    /// The superblock as validated at mount, or when the volume grew.
    shape: Growing<Superblock>,
    /// What of the superblock changes.
    pub sb: SuperState,
    /// Metadata blocks.
    pub cache: MetaCache,
    /// Transactions.
    pub journal: Journal,
    /// What can be changed while mounted.
    pub(crate) tuning: Tuning,
    /// How it was mounted.
    pub options: Options,
    /// Errors found.
    pub errors: ErrorState,
    read_only: AtomicBool,
}

impl Volume {
    /// The volume that `superblock` describes, on the device of `cache`.
    ///
    /// # Errors
    /// `Io` when the superblock's block cannot be read.
    pub(crate) fn new(
        superblock: Superblock,
        cache: MetaCache,
        journal: Journal,
        options: Options,
        read_only: bool,
    ) -> Result<Self> {
        // The superblock's `continue` is what mke2fs writes by default; going on with a
        // volume known to be damaged has to be asked for.
        let behaviour = options.errors.unwrap_or(
            match ErrorBehaviour::from_raw(superblock.raw.errors.get()) {
                ErrorBehaviour::Panic => ErrorBehaviour::Panic,
                _ => ErrorBehaviour::RemountReadOnly,
            },
        );
        Ok(Volume {
            device: SharedDevice::clone(cache.device()),
            sb: SuperState::new(&cache, &superblock)?,
            cache,
            journal,
            tuning: Tuning::new(superblock.geo.block_bits),
            options,
            errors: ErrorState::new(behaviour),
            read_only: AtomicBool::new(read_only),
            shape: Growing::new(superblock),
        })
    }

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

    /// Refuses changes from here on.
    pub(crate) fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
        self.journal.set_read_only(true);
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.geometry().block_len()
    }

    /// Units of 512 bytes in a block, as `i_blocks` counts.
    pub(crate) fn block_units(&self) -> u64 {
        u64::from(self.geometry().block_size / 512)
    }

    /// The blocks of a file that a range of its bytes touches.
    pub(crate) fn block_range(&self, range: &Range<u64>) -> Range<u64> {
        let bits = self.geometry().block_bits;
        range.start >> bits..range.end.div_ceil(1 << bits)
    }

    /// The volume's shape. It changes when the volume grows: a caller that needs two numbers of one moment asks once.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.superblock().geo
    }

    /// The superblock as validated at mount, or when the volume grew: features and what else does not change with every operation.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.shape.get()
    }

    /// The volume has grown.
    pub(crate) fn set_superblock(&self, superblock: Superblock) {
        self.shape.replace(superblock);
    }

    /// Whether the volume has an incompat feature.
    pub(crate) fn has_incompat(&self, bits: Incompat) -> bool {
        self.geometry().features.has_incompat(bits)
    }

    /// Whether the volume has a ro_compat feature.
    pub(crate) fn has_ro_compat(&self, bits: RoCompat) -> bool {
        self.geometry().features.has_ro_compat(bits)
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
            error = error.ino(crate::vfs_ino(ino));
        }
        if let Some(block) = block {
            error = error.block(block.0);
        }
        self.errors.note();
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

    /// As [`Volume::corrupt`], for what a parser refused.
    #[must_use = "the operation must fail with it"]
    pub(crate) fn corrupt_format(
        &self,
        op: &'static str,
        ino: Option<Ino>,
        block: Option<BlockNo>,
        error: &FormatError,
    ) -> Error {
        self.corrupt(op, ino, block, error.to_string())
    }
}
