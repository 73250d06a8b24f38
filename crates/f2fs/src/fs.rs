//! [`Fs`]: one mounted volume, and what every part of the engine uses.
//!
//! Parts are fields; each has its own locks. Nothing here locks more than a leaf.

use crate::cache::BlockCache;
use crate::mount::{self, Found};
use crate::nat::Nat;
use crate::options::Options;
use crate::quota::Quota;
use crate::recovery::{self, Link, Recovered};
use crate::segments::{Counts, Segments};
use crate::writer::{Current, Writer, WrittenInLife};
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::f2fs::node::Footer;
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
    /// What the mount recovered.
    pub recovered: Recovered,
    /// Counts as recovery left them, where nothing is written.
    counts: Option<Counts>,
    /// How it was mounted.
    pub options: Options,
    errors: AtomicU64,
    latest: Mutex<Option<Error>>,
}

/// The inode a node belongs to, from its footer. An inode's own node has its number: who looks for an inode's dirty nodes knows
/// that one, and most files have no other.
fn owner_of_node(nid: Nid, bytes: &[u8]) -> Option<u32> {
    let owner = Footer::read(bytes).map_or(0, |f| f.ino.0);
    (owner != nid.0).then_some(owner)
}

/// The number as the vfs has it.
#[must_use]
pub fn vfs_ino(ino: Ino) -> blockwright_vfs::Ino {
    blockwright_vfs::Ino(u64::from(ino.0))
}

impl Fs {
    /// Reads what a mount needs, and recovers in memory what was fsynced after the checkpoint. Writes nothing.
    ///
    /// # Errors
    /// What cannot be used, naming the structure or the feature; or a device error.
    pub fn mount(device: SharedDevice, options: Options) -> Result<FsRef> {
        let found = mount::read_all(&device)?;
        let chain = if options.no_recovery && options.read_only {
            Ok(Vec::new())
        } else {
            recovery::walk(&device, &found.sb.geo, &found.pack.checkpoint)
        };
        let mut reason = mount::why_not_written(&device, &found, &options)?;
        let chain = match chain {
            Ok(chain) => chain,
            Err(e) => {
                reason = Some(Self::unrecoverable(reason, e)?);
                Vec::new()
            }
        };
        let mut fs = match Self::open(&device, &options, found, reason.clone(), &chain) {
            Ok(fs) => fs,
            Err(e) if chain.is_empty() => return Err(e),
            Err(e) => {
                // Again, without: what was in memory may have been half done.
                let reason = Self::unrecoverable(reason, e)?;
                let found = mount::read_all(&device)?;
                Self::open(&device, &options, found, Some(reason), &[])?
            }
        };
        if fs.reason.is_none()
            && let Err(e) = fs.start_quota(!chain.is_empty())
        {
            // Written without quota, the files would lie from then on.
            let reason = format!("its quota cannot be kept: {e}");
            let found = mount::read_all(&device)?;
            fs = Self::open(&device, &options, found, Some(reason), &chain)?;
        }
        if fs.reason.is_some()
            && let Some(w) = fs.writer.take()
        {
            fs.counts = Some(w.segments.counts());
        }
        Ok(Arc::new(fs))
    }

    /// Why a volume is not written, for want of recovery.
    fn unrecoverable(reason: Option<String>, e: Error) -> Result<String> {
        if e.kind() == ErrorKind::Io {
            return Err(e);
        }
        let first = reason.map_or(String::new(), |first| format!("{first}; "));
        Ok(format!(
            "{first}what was fsynced after its last checkpoint cannot be recovered: {e}"
        ))
    }

    /// The volume as its checkpoint and the chain behind it have it. Where there is a chain, also a volume that is not
    /// written gets what changes it in memory.
    fn open(
        device: &SharedDevice,
        options: &Options,
        found: Found,
        reason: Option<String>,
        chain: &[Link],
    ) -> Result<Fs> {
        let changeable = reason.is_none() || !chain.is_empty();
        let mut fs = Self::as_found(device, options, found, reason, changeable)?;
        if !chain.is_empty() {
            fs.recovered = fs.recover(chain)?;
        }
        Ok(fs)
    }

    /// The volume as its checkpoint has it; `writer`: with what changes it, be it in memory only.
    fn as_found(
        device: &SharedDevice,
        options: &Options,
        found: Found,
        reason: Option<String>,
        writer: bool,
    ) -> Result<Fs> {
        let Found {
            sb,
            pack,
            nat,
            sit,
            data_summaries,
            node_summaries,
            lifetime,
            orphans,
            nat_bits,
        } = found;
        let geo = Arc::new(sb.geo.clone());
        let valid = pack.checkpoint.nat_bitmap.clone();
        // Every file has a node of its own, while a directory's block has the names of a hundred.
        let quarter = options.metadata_cache_bytes / 4;
        let writer = if writer {
            let cp = &pack.checkpoint;
            let nodes = match node_summaries {
                Some(nodes) => nodes,
                None => mount::collect_node_summaries(device, &geo, cp)?,
            };
            let segments = Segments::load(
                Arc::clone(device),
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
            let lifetime = WrittenInLife::new(lifetime, device);
            Some(Writer::new(segments, current, orphans, lifetime, options))
        } else {
            None
        };
        Ok(Fs {
            quota: Quota::default(),
            writer,
            reason,
            recovered: Recovered::default(),
            counts: None,
            nat: Nat::new(Arc::clone(device), Arc::clone(&geo), valid, &nat, nat_bits),
            device: Arc::clone(device),
            sb,
            geo,
            checkpoint: pack.checkpoint,
            nodes: BlockCache::with_owners(3 * quarter, owner_of_node),
            blocks: BlockCache::new(quarter),
            orphans,
            options: options.clone(),
            errors: AtomicU64::new(0),
            latest: Mutex::new(Rank::Leaf, None),
        })
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
            None => match self.counts {
                Some(counts) => (counts.blocks, u64::from(counts.nodes)),
                None => (
                    raw.valid_block_count.get(),
                    u64::from(raw.valid_node_count.get()),
                ),
            },
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
