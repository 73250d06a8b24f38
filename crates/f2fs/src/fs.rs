//! [`Fs`]: one mounted volume, and what every part of the engine uses.
//!
//! Parts are fields; each has its own locks. Nothing here locks more than a leaf.

use crate::cache::BlockCache;
use crate::mount::{self, Found};
use crate::nat::Nat;
use crate::options::Options;
use crate::quota::Quota;
use crate::segments::Segments;
use crate::writer::{Current, Writer};
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::f2fs::{
    BlockAddr, Checkpoint, Features, FormatError, Geometry, Ino, Nid, Superblock,
};
use blockwright_vfs::locks::{Mutex, Rank};
use blockwright_vfs::types::StatFs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mounted volume, shared.
pub type FsRef = Arc<Fs>;

/// A mounted volume.
pub struct Fs {
    /// The device it is on.
    pub device: SharedDevice,
    /// The superblock as validated at mount.
    pub sb: Superblock,
    /// Where everything is.
    pub geo: Arc<Geometry>,
    /// The checkpoint it was mounted from.
    pub checkpoint: Checkpoint,
    /// Where nodes are.
    pub nat: Nat,
    /// Nodes by number.
    pub nodes: BlockCache<Nid>,
    /// Blocks of directories and long symbolic links, by inode and position.
    pub blocks: BlockCache<(Ino, u64)>,
    /// Inodes without a name that the checkpoint it was mounted from kept for this mount.
    pub orphans: Vec<Ino>,
    /// What the volume's quota files count.
    pub(crate) quota: Quota,
    /// What writing needs; nothing when the volume is mounted read-only.
    pub writer: Option<Writer>,
    reason: Option<String>,
    /// How it was mounted.
    pub options: Options,
    errors: AtomicU64,
    latest: Mutex<Option<Error>>,
}

/// The number as the vfs has it.
#[must_use]
pub fn vfs_ino(ino: Ino) -> blockwright_vfs::Ino {
    blockwright_vfs::Ino(u64::from(ino.0))
}

impl Fs {
    /// Reads what a mount needs. Writes nothing.
    ///
    /// # Errors
    /// What cannot be used, naming the structure or the feature; or a device error.
    pub fn mount(device: SharedDevice, options: Options) -> Result<FsRef> {
        let Found {
            sb,
            pack,
            nat,
            sit,
            data_summaries,
            node_summaries,
            orphans,
            nat_bits,
        } = mount::read_all(&device)?;
        let geo = Arc::new(sb.geo.clone());
        let valid = pack.checkpoint.nat_bitmap.clone();
        let half = options.metadata_cache_bytes / 2;
        let reason = if options.read_only {
            Some("the volume is mounted read-only".to_owned())
        } else {
            mount::why_not_written(&device, &sb, &pack.checkpoint)?
        };
        let writer = match &reason {
            Some(_) => None,
            None => {
                let cp = &pack.checkpoint;
                let nodes = match node_summaries {
                    Some(nodes) => nodes,
                    None => mount::collect_node_summaries(&device, &geo, cp)?,
                };
                let segments = Segments::load(
                    Arc::clone(&device),
                    Arc::clone(&geo),
                    cp,
                    &sit,
                    data_summaries,
                    nodes,
                    options.mode,
                )?;
                let current = Current {
                    checkpoint: cp.clone(),
                    which: pack.which,
                };
                let orphans = orphans.iter().copied().collect();
                Some(Writer::new(segments, current, orphans, &options))
            }
        };
        let mut fs = Fs {
            quota: Quota::default(),
            writer,
            reason,
            nat: Nat::new(Arc::clone(&device), Arc::clone(&geo), valid, &nat, nat_bits),
            device,
            sb,
            geo,
            checkpoint: pack.checkpoint,
            nodes: BlockCache::new(half),
            blocks: BlockCache::new(half),
            orphans,
            options,
            errors: AtomicU64::new(0),
            latest: Mutex::new(Rank::Leaf, None),
        };
        if fs.writer.is_some()
            && let Err(e) = fs.start_quota(false)
        {
            // Written without quota, the files would lie from then on.
            fs.reason = Some(format!("its quota cannot be kept: {e}"));
            fs = fs.without_writer();
        }
        Ok(Arc::new(fs))
    }

    /// As its checkpoint has it, with nothing that was changed in memory.
    fn without_writer(mut self) -> Self {
        self.writer = None;
        self.quota = Quota::default();
        let half = self.options.metadata_cache_bytes / 2;
        self.nodes = BlockCache::new(half);
        self.blocks = BlockCache::new(half);
        self
    }

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

    /// Why changes are refused although nobody asked for that.
    pub(crate) fn read_only_reason(&self) -> Option<String> {
        match &self.writer {
            Some(w) => w.failure().map(|e| e.to_string()),
            None if self.options.read_only => None,
            None => self.reason.clone(),
        }
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

    /// Damage that was found by a part that does not know of [`Fs::corrupt`].
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

    /// As [`Fs::corrupt`], for what a parser refused.
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

    /// How full the volume is, as Linux counts: over-provisioned and reserved segments are never free.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        let raw = &self.checkpoint.raw;
        let user = raw.user_block_count.get();
        let (used, nodes) = match &self.writer {
            Some(w) => {
                let counts = w.segments.counts();
                (counts.blocks + counts.promised, u64::from(counts.nodes))
            }
            None => (
                raw.valid_block_count.get(),
                u64::from(raw.valid_node_count.get()),
            ),
        };
        let free = match &self.writer {
            Some(w) if w.segments.is_pinned() => {
                user.saturating_sub(used).min(w.segments.available())
            }
            _ => user.saturating_sub(used),
        };
        // Numbers 0 (none), 1 and 2 (the format's own) are nobody's.
        let numbers = u64::from(self.geo.nids()).saturating_sub(3);
        let (files, files_free) = if numbers > user {
            (user, free)
        } else {
            (numbers, numbers.saturating_sub(nodes).min(free))
        };
        let start = u64::from(self.sb.raw.segment0_blkaddr.get());
        let uuid = self.sb.raw.uuid;
        let half = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&uuid[at..at + 8]);
            u64::from_le_bytes(word)
        };
        StatFs {
            block_bytes: 4096,
            blocks: self.geo.blocks_count.saturating_sub(start),
            blocks_free: free,
            blocks_available: free,
            files,
            files_free,
            name_bytes_max: 255,
            fsid: half(0) ^ half(8),
        }
    }
}
