//! [`Volume`]: what all parts know of a mounted volume, and where damage is reported.
//!
//! It owns the device, what the mount read of superblock and checkpoint, the mount's options, and the damage found since.
//! It calls no other part and changes nothing on the device.
//!
//! # Locks
//! `latest`, a leaf.

use crate::options::Options;
use crate::{Error, ErrorKind};
use blockwright_device::SharedDevice;
use blockwright_ondisk::f2fs::{
    BlockAddr, Checkpoint, Features, FormatError, Geometry, Ino, Superblock,
};
use blockwright_vfs::locks::{Mutex, Rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module's head.
pub struct Volume {
    /// The device it is on.
    pub device: SharedDevice,
    /// The superblock as validated at mount.
    pub sb: Superblock,
    /// Where everything is.
    pub geo: Arc<Geometry>,
    /// The checkpoint it was mounted from.
    pub checkpoint: Checkpoint,
    /// Inodes without a name that this checkpoint kept.
    pub orphans: Vec<Ino>,
    /// How it was mounted.
    pub options: Options,
    /// Why it is not written, if it is not.
    pub(crate) reason: Option<String>,
    errors: AtomicU64,
    latest: Mutex<Option<Error>>,
}

/// The parts of a [`Volume`].
pub(crate) struct Parsed {
    pub(crate) sb: Superblock,
    pub(crate) geo: Arc<Geometry>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) orphans: Vec<Ino>,
    pub(crate) reason: Option<String>,
}

impl Volume {
    pub(crate) fn new(device: &SharedDevice, options: &Options, parsed: Parsed) -> Self {
        Volume {
            device: Arc::clone(device),
            sb: parsed.sb,
            geo: parsed.geo,
            checkpoint: parsed.checkpoint,
            orphans: parsed.orphans,
            options: options.clone(),
            reason: parsed.reason,
            errors: AtomicU64::new(0),
            latest: Mutex::new(Rank::Leaf, None),
        }
    }
}

/// The number as the vfs has it.
#[must_use]
pub fn vfs_ino(ino: Ino) -> blockwright_vfs::Ino {
    blockwright_vfs::Ino(u64::from(ino.0))
}

impl Volume {
    /// Features of the volume.
    #[must_use]
    pub fn features(&self) -> Features {
        self.geo.features
    }

    /// Why changes are refused.
    #[must_use]
    pub fn read_only(&self, op: &'static str) -> Error {
        let why = self.reason.clone();
        Error::new(ErrorKind::ReadOnly, op).detail(why.unwrap_or_default())
    }

    /// Damage was found: counts it, and makes the error to return.
    #[must_use = "the operation must fail with it"]
    pub fn corrupt(
        &self,
        op: &'static str,
        ino: Option<Ino>,
        block: Option<BlockAddr>,
        detail: impl Into<String>,
    ) -> Error {
        let mut error = Error::corrupt(op, detail);
        if let Some(ino) = ino {
            error = error.ino(vfs_ino(ino));
        }
        if let Some(block) = block {
            error = error.block(u64::from(block.0));
        }
        self.errors.fetch_add(1, Ordering::Relaxed);
        *self.latest.lock() = Some(error.clone());
        error
    }

    /// Damage that was found by a part that does not know of [`Volume::corrupt`].
    pub(crate) fn remember(&self, error: Error) {
        let mut latest = self.latest.lock();
        if latest
            .as_ref()
            .is_none_or(|l| l.to_string() != error.to_string())
        {
            self.errors.fetch_add(1, Ordering::Relaxed);
            *latest = Some(error);
        }
    }

    /// As [`Volume::corrupt`], for what a parser refused.
    #[must_use = "the operation must fail with it"]
    pub fn refused(&self, op: &'static str, ino: Ino, e: &FormatError) -> Error {
        self.corrupt(op, Some(ino), None, e.to_string())
    }

    /// Damage found since the mount.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The latest damage found.
    #[must_use]
    pub fn latest_error(&self) -> Option<Error> {
        self.latest.lock().clone()
    }

    /// The inodes of the quota files of users, groups and projects, 0 where there is none. Without the feature the fields mean nothing.
    pub(crate) fn quota_inodes(&self) -> [Ino; 3] {
        let on = self.geo.features.contains(Features::QUOTA);
        self.sb
            .raw
            .qf_ino
            .map(|q| Ino(if on { q.get() } else { 0 }))
    }

    /// Whether an inode is one of the quota files, which are not charged themselves.
    pub(crate) fn is_quota_file(&self, ino: Ino) -> bool {
        ino.0 != 0 && self.quota_inodes().contains(&ino)
    }
}
