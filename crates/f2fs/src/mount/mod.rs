//! [`Fs`]: the parts of one mounted volume, and the mount that constructs them.
//!
//! `found` reads superblock, checkpoint and journals. The mount then constructs the parts, recovers what was fsynced, and opens the quota
//! files. A volume that cannot be written is constructed a second time, without a writer.
//!
//! # Part
//! [`Fs`] owns the parts. Nothing but this module and the engine uses it; a part gets the parts that it needs when it is constructed.

mod found;
mod tuning;

use crate::alloc::{Counts, Segments};
use crate::attr::Attributes;
use crate::attr::quotas::Quotas;
use crate::checkpoint::Checkpoints;
use crate::data::Data;
use crate::dir::Directories;
use crate::dir::names::Names;
use crate::gc::Cleaning;
use crate::node::Nodes;
use crate::node::nat::Nat;
use crate::node::tree::Tree;
use crate::options::Options;
use crate::recovery::fsync::Fsync;
use crate::recovery::{self, Link, Recovered, Recovery};
use crate::volume::{Parsed, Volume};
use crate::writer::{Access, Current, Writer, WrittenInLife};
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_vfs::types::StatFs;
use found::Found;
use std::sync::Arc;

/// A mounted volume, shared.
pub type FsRef = Arc<Fs>;

/// The parts of a mounted volume, each constructed from those above it. Only the mount and the engine see all of them.
pub struct Fs {
    /// What all parts know of the volume.
    pub volume: Arc<Volume>,
    /// Whether it is written, and with what.
    pub access: Arc<Access>,
    /// Nodes and where they are.
    pub nodes: Arc<Nodes>,
    /// Files' trees of nodes, inodes in them, and quota.
    pub(crate) tree: Arc<Tree>,
    /// Checkpoints, and the gate that operations pass.
    pub checkpoints: Arc<Checkpoints>,
    /// The quota files as a whole.
    pub(crate) quotas: Quotas,
    /// Cleaning.
    pub cleaning: Arc<Cleaning>,
    /// Contents of directories.
    pub(crate) directories: Arc<Directories>,
    /// Attributes, and the life of inodes.
    pub(crate) attributes: Arc<Attributes>,
    /// Changes of the tree of names.
    pub(crate) names: Names,
    /// Contents of files.
    pub(crate) data: Data,
    /// fsync.
    pub(crate) fsync: Fsync,
    /// Roll-forward recovery.
    pub(crate) recovery: Recovery,
    /// What the mount recovered.
    pub recovered: Recovered,
    /// Counts as recovery left them, where nothing is written.
    counts: Option<Counts>,
}

impl Fs {
    /// Reads what a mount needs, and recovers in memory what was fsynced after the checkpoint. Writes nothing.
    ///
    /// # Errors
    /// A structure or feature that cannot be used, by name; or a device error.
    pub fn mount(device: SharedDevice, options: Options) -> Result<FsRef> {
        let found = found::read_all(&device)?;
        let chain = if options.no_recovery && options.read_only {
            Ok(Vec::new())
        } else {
            recovery::walk(&device, &found.sb.geo, &found.pack.checkpoint)
        };
        let mut reason = found::why_not_written(&device, &found, &options)?;
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
                let found = found::read_all(&device)?;
                Self::open(&device, &options, found, Some(reason), &[])?
            }
        };
        if fs.volume.reason.is_none()
            && let Err(e) = fs.quotas.start_quota(!chain.is_empty())
        {
            // Without quota, the quota files would be wrong after the first write.
            let reason = format!("its quota cannot be kept: {e}");
            let found = found::read_all(&device)?;
            fs = Self::open(&device, &options, found, Some(reason), &chain)?;
        }
        if fs.volume.reason.is_some()
            && let Some(w) = &fs.access.writer
        {
            // It was there for recovery in memory only.
            let counts = w.segments.counts();
            let recovered = fs.recovered;
            fs = Self::assemble(fs.volume, fs.nodes, None);
            fs.counts = Some(counts);
            fs.recovered = recovered;
        }
        Ok(Arc::new(fs))
    }

    /// Why a volume is not written when its chain cannot be recovered.
    fn unrecoverable(reason: Option<String>, e: Error) -> Result<String> {
        if e.kind() == ErrorKind::Io {
            return Err(e);
        }
        let first = reason.map_or(String::new(), |first| format!("{first}; "));
        // Where only room is missing, another mount may recover it.
        let way_out = match e.kind() {
            ErrorKind::Corrupt | ErrorKind::Stale => {
                " (`blockwright check` names the files, `blockwright check -y --discard-fsynced` gives them up)"
            }
            _ => "",
        };
        Ok(format!(
            "{first}what was fsynced after its last checkpoint cannot be recovered: {e}{way_out}"
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
            fs.recovered = fs.recovery.recover(chain)?;
        }
        Ok(fs)
    }

    /// The volume as its checkpoint has it; `writer`: also start the parts that change the volume,
    /// even if only in memory.
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
        let writer = if writer {
            let cp = &pack.checkpoint;
            let nodes = match node_summaries {
                Some(nodes) => nodes,
                None => found::collect_node_summaries(device, &geo, cp)?,
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
        let nat = Nat::new(Arc::clone(device), Arc::clone(&geo), valid, &nat, nat_bits);
        let parsed = Parsed {
            sb,
            geo,
            checkpoint: pack.checkpoint,
            orphans,
            reason,
        };
        let volume = Arc::new(Volume::new(device, options, parsed));
        let nodes = Arc::new(Nodes::new(&volume, nat));
        Ok(Self::assemble(volume, nodes, writer))
    }

    /// Constructs the parts, each from those it needs.
    fn assemble(volume: Arc<Volume>, nodes: Arc<Nodes>, writer: Option<Writer>) -> Fs {
        let access = Arc::new(Access::new(&volume, writer));
        let tree = Arc::new(Tree::new(&volume, &access, &nodes));
        let checkpoints = Arc::new(Checkpoints::new(&volume, &access, &nodes, &tree));
        let cleaning = Arc::new(Cleaning::new(&volume, &access, &nodes, &tree, &checkpoints));
        let directories = Arc::new(Directories::new(&volume, &nodes, &tree));
        let attributes =
            Attributes::new(&volume, &access, &nodes, &tree, &checkpoints, &directories);
        let attributes = Arc::new(attributes);
        Fs {
            quotas: Quotas::new(&volume, &nodes, &tree, &checkpoints),
            names: Names::new(
                &volume,
                &access,
                &nodes,
                &tree,
                &checkpoints,
                &directories,
                &attributes,
            ),
            data: Data::new(&volume, &access, &nodes, &tree, &checkpoints, &cleaning),
            fsync: Fsync::new(&volume, &access, &nodes, &checkpoints, &attributes),
            recovery: Recovery::new(&volume, &access, &nodes, &tree, &directories, &attributes),
            recovered: Recovered::default(),
            counts: None,
            volume,
            access,
            nodes,
            tree,
            checkpoints,
            cleaning,
            directories,
            attributes,
        }
    }

    /// How full the volume is, as Linux counts: over-provisioned and reserved segments are never free.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        let raw = &self.volume.checkpoint.raw;
        let user = raw.user_block_count.get();
        let (used, nodes) = match &self.access.writer {
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
        let free = match &self.access.writer {
            Some(w) if w.segments.is_pinned() => {
                user.saturating_sub(used).min(w.segments.available())
            }
            _ => user.saturating_sub(used),
        };
        // Numbers 0 (none), 1 and 2 (the format's own) belong to no file.
        let numbers = u64::from(self.volume.geo.nids()).saturating_sub(3);
        let (files, files_free) = if numbers > user {
            (user, free)
        } else {
            (numbers, numbers.saturating_sub(nodes).min(free))
        };
        let start = u64::from(self.volume.sb.raw.segment0_blkaddr.get());
        let uuid = self.volume.sb.raw.uuid;
        let half = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&uuid[at..at + 8]);
            u64::from_le_bytes(word)
        };
        StatFs {
            block_bytes: 4096,
            blocks: self.volume.geo.blocks_count.saturating_sub(start),
            blocks_free: free,
            blocks_available: free,
            files,
            files_free,
            name_bytes_max: 255,
            fsid: half(0) ^ half(8),
        }
    }
}
