//! Volumes made from directories, tar streams and container images.
//!
//! # Steps
//! 1. Sources are merged in memory, in order (`tree`; metadata only). `policy` applies rules to all entries.
//! 2. The volume is planned from the result: [`blockwright_mkfs::ext4::plan`], [`blockwright_mkfs::f2fs::plan`]. Planning alone finds the smallest size.
//! 3. The plan is written front to back. Several threads read the data from the sources. So no journal is needed, and every file lies in one piece.
//!
//! # Data of sources
//! Data of plain archives and of directories is read in place. Data of compressed archives and of standard input is kept in a nameless
//! file beside the image until it is in the volume. `budget` limits what all archives together may take.
//!
//! # Reproducible volumes
//! With [`VolumeBuilder::source_date_epoch`], the same sources and options make the same bytes. No time later than the epoch is stored, and
//! the epoch replaces times that reading the sources changes. Nothing is random: without [`VolumeBuilder::uuid`], the UUID is derived from a
//! digest of the volume's contents (see `digest`), and the directories' hash seed from the UUID.
//!
//! # Calls
//! It calls `mkfs` for plans and writing, `disk` and `device` for the target. It never calls an engine.
//!
//! # Crash order
//! That of `mkfs`: the superblock is written last, so an interrupted volume is not taken for a complete one.
//!
//! References: pax(1) and tar(5) for archives; `image` and `policy` name theirs.

mod archive;
mod base;
mod budget;
mod copying;
mod data;
mod digest;
mod directory;
mod dumpfile;
mod fsverity;
mod image;
mod journal;
mod layer;
pub(crate) mod output;
pub(crate) mod part;
mod pax;
mod policy;
mod progress;
mod source;
mod tar;
mod target;
mod tree;

use crate::{Error, ErrorKind, Format, Result};
use blockwright_device::{HostDevice, NbdAddress, SharedDevice};
use blockwright_disk::Place;
use blockwright_disk::container::{self, detect_file};
use blockwright_mkfs::ext4::{FormatOptions, FsType};
pub use blockwright_mkfs::flags::LeftOut;
use blockwright_mkfs::tree::{Node, NodeId, Tree};
use blockwright_mkfs::{Before, MkfsError, f2fs};
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use blockwright_reshape::ext4::settings::ExternalJournal;
pub use image::ContainerImage;
pub use journal::{JournalBuilder, JournalReport};
pub use policy::{EntryPolicy, FileContexts, FsConfig, Mtime, OwnerMap, companions};
pub use progress::BuildProgress;
pub use target::{BuildDetails, BuildReport};

use budget::Budget;
use output::{building_mode, folder, removed_on_failure};
use progress::{ProgressFn, Tell};
use source::{Source, Stream};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use target::{TargetOptions, TargetPlan, not_for_f2fs};
use tree::LayerTree;

pub(crate) use directory::storable;

/// The end of a message about a size that is too small: the least size, rounded up.
fn at_least(bytes: u64) -> String {
    match bytes.div_ceil(1 << 10) {
        kib @ 0..1024 => format!("at least {kib} KiB are needed"),
        kib => format!("at least {} MiB are needed", kib.div_ceil(1 << 10)),
    }
}

/// The requested size of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// As large as what it is made on.
    AsDevice,
    Bytes(u64),
    /// The smallest that fits, with this many bytes free.
    Auto(u64),
}

/// Makes a volume, empty or from sources. See the [module's](self) head.
///
/// ```
/// use blockwright::{Volume, VolumeBuilder};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (image, tree) = (dir.path().join("disk.img"), dir.path().join("tree"));
/// # std::fs::create_dir(&tree)?;
/// std::fs::write(tree.join("motd"), "hello")?;
/// let report = VolumeBuilder::new()
///     .size_auto(1 << 20)
///     .label("system")
///     .owner(0, 0)
///     .from(&tree)
///     .create(&image)?;
/// assert!(report.free_blocks * u64::from(report.block_bytes) >= 1 << 20);
/// let volume = Volume::open_read_only(&image)?;
/// assert_eq!(volume.read("/motd")?, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct VolumeBuilder {
    format: Format,
    options: FormatOptions,
    reserved_given: bool,
    journal_bytes: Option<u64>,
    journal: Option<ExternalJournal>,
    size: Size,
    sources: Vec<Source>,
    owner: Option<(u32, u32)>,
    epoch: Option<u64>,
    platform: Option<image::Platform>,
    keep_config: bool,
    policy: EntryPolicy,
    progress: ProgressFn,
    /// Distinguishes the volume from others with the same contents, for the UUID: its place on a
    /// disk.
    salt: String,
    /// An earlier build.
    base: Option<SharedDevice>,
}

impl Default for VolumeBuilder {
    fn default() -> Self {
        Self::new()
    }
}

/// What applies to every source.
pub(crate) struct Rules<'a> {
    /// Owner and group of everything from directories.
    pub owner: Option<(u32, u32)>,
    /// What is left out, which a source need not read.
    pub policy: &'a EntryPolicy,
    /// Times of what no source describes.
    pub now: Timestamp,
    /// The image itself, which a source must not contain: device and inode.
    pub image: Option<(u64, u64)>,
    /// Where to keep data that cannot be read in place.
    pub spool_dir: PathBuf,
    /// The common limit of all archives.
    pub budget: Arc<Budget>,
    pub progress: Tell<'a>,
}

impl VolumeBuilder {
    /// A builder of an empty ext4 volume with mke2fs's defaults. `SOURCE_DATE_EPOCH` is not looked at:
    /// see [`VolumeBuilder::source_date_epoch`].
    #[must_use]
    pub fn new() -> Self {
        VolumeBuilder {
            format: Format::Ext4,
            options: FormatOptions::default(),
            reserved_given: false,
            journal_bytes: None,
            journal: None,
            size: Size::AsDevice,
            sources: Vec::new(),
            owner: None,
            epoch: None,
            platform: None,
            keep_config: false,
            policy: EntryPolicy::new(),
            progress: Box::new(|_| ControlFlow::Continue(())),
            salt: String::new(),
            base: None,
        }
    }

    /// Makes a volume of this format rather than ext4. f2fs volumes have no inode size or ratio, no
    /// reserved percentage and no journal: such options are refused then.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Starts from the defaults of ext2, ext3 or ext4.
    #[must_use]
    pub fn fs_type(mut self, kind: FsType) -> Self {
        self.format = Format::Ext4;
        self.options.kind = kind;
        self
    }

    /// Changes to the default features, as mke2fs's `-O`: `quota,^has_journal`; for f2fs those of
    /// mkfs.f2fs: `extra_attr,inode_checksum`.
    #[must_use]
    pub fn features(mut self, list: impl Into<String>) -> Self {
        self.options.features = list.into();
        self
    }

    /// Size of the volume in bytes. Without it: the size of the image or device that is there.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Size::Bytes(bytes);
        self
    }

    /// The smallest size that fits the sources and leaves this many bytes free for all users. Unless given
    /// otherwise, such volumes have 4096-byte blocks, no space reserved for root, and as many inodes
    /// as they need and one more for every 16 KiB of free space.
    #[must_use]
    pub fn size_auto(mut self, free_bytes: u64) -> Self {
        self.size = Size::Auto(free_bytes);
        self
    }

    /// Bytes per block: 1024, 2048, 4096 … 65536; f2fs: 4096.
    #[must_use]
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.options.block_bytes = Some(bytes);
        self
    }

    /// Bytes per inode: 128 to 1024.
    #[must_use]
    pub fn inode_size(mut self, bytes: u16) -> Self {
        self.options.inode_bytes = bytes;
        self
    }

    /// One inode for this many bytes.
    #[must_use]
    pub fn inode_ratio(mut self, bytes: u64) -> Self {
        self.options.inode_ratio = Some(bytes);
        self
    }

    /// The number of inodes.
    #[must_use]
    pub fn inodes(mut self, count: u64) -> Self {
        self.options.inodes = Some(count);
        self
    }

    /// Percentage of blocks reserved for root.
    #[must_use]
    pub fn reserved_percent(mut self, percent: f64) -> Self {
        self.options.reserved_percent = percent;
        self.reserved_given = true;
        self
    }

    /// Label, at most 16 bytes; f2fs: 511 UTF-16 units.
    #[must_use]
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Self {
        self.options.label = label.as_ref().to_vec();
        self
    }

    /// UUID. When not given: random, or with [`VolumeBuilder::source_date_epoch`] a digest of the input.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.options.uuid = Some(uuid);
        self
    }

    /// Owner and group of the root directory, where no source describes it.
    #[must_use]
    pub fn root_owner(mut self, uid: u32, gid: u32) -> Self {
        self.options.root_owner = (uid, gid);
        self
    }

    /// Seed of ext4's directory hashes; follows from the UUID when not given.
    #[must_use]
    pub fn hash_seed(mut self, seed: [u8; 16]) -> Self {
        self.options.hash_seed = Some(seed);
        self
    }

    /// Size of the journal in bytes; by the volume's size when not given.
    #[must_use]
    pub fn journal_bytes(mut self, bytes: u64) -> Self {
        self.journal_bytes = Some(bytes);
        self
    }

    /// The journal is on this device, which [`JournalBuilder`] has made and no volume uses. The volume has its block size, and the feature `has_journal`.
    #[must_use]
    pub fn journal_device(mut self, journal: ExternalJournal) -> Self {
        self.journal = Some(journal);
        self
    }

    /// All other options of the format. Replaces what was set before.
    #[must_use]
    pub fn format_options(mut self, options: FormatOptions) -> Self {
        self.options = options;
        self.reserved_given = true;
        self
    }

    /// Owner and group of everything that comes from directories.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Makes the result depend on the sources and options alone: the volume is made at this time (in seconds since
    /// 1970), no file is younger, and the UUID is derived from the contents of the volume. The sources are read twice
    /// for that (once when [`VolumeBuilder::uuid`] is given).
    #[must_use]
    pub fn source_date_epoch(mut self, secs: u64) -> Self {
        self.epoch = Some(secs);
        self
    }

    /// Rules for the entries of all sources: which ones are left out, their times, owners, modes and labels.
    #[must_use]
    pub fn entries(mut self, policy: EntryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Adds a source over those added before: a directory, or a tar archive (plain, or compressed with
    /// gzip, zstd or xz).
    #[must_use]
    pub fn from(mut self, path: impl Into<PathBuf>) -> Self {
        self.sources.push(Source::Path(path.into()));
        self
    }

    /// Adds the files of a listing as composefs has it. Their data is in the listing, or in objects beneath this directory;
    /// without one, beneath the listing's own.
    #[must_use]
    pub fn from_dumpfile(mut self, listing: impl Into<PathBuf>, objects: Option<PathBuf>) -> Self {
        self.sources.push(Source::Listing(listing.into(), objects));
        self
    }

    /// Adds the files of a listing that a stream has. Without a directory of objects, all data is in the listing.
    #[must_use]
    pub fn from_dumpfile_reader(
        mut self,
        reader: impl Read + Send + 'static,
        objects: Option<PathBuf>,
        name: impl Into<String>,
    ) -> Self {
        let stream = Stream::new(reader, name);
        self.sources.push(Source::ListingStream(stream, objects));
        self
    }

    /// Adds a tar stream (plain or compressed) as a source. `name` is for messages.
    #[must_use]
    pub fn from_reader(
        mut self,
        reader: impl Read + Send + 'static,
        name: impl Into<String>,
    ) -> Self {
        let stream = Stream::new(reader, name);
        self.sources.push(Source::Stream(stream));
        self
    }

    /// Adds a container image as a source: its layers in order, whiteouts applied. Each layer's digest is compared before
    /// it is used.
    #[must_use]
    pub fn from_image(mut self, image: ContainerImage) -> Self {
        let (place, which) = match image {
            ContainerImage::OciLayout { dir, tag } => (image::Place::OciLayout(dir), tag),
            ContainerImage::OciArchive { file, tag } => (image::Place::OciArchive(file), tag),
            ContainerImage::DockerArchive { file, name } => {
                (image::Place::DockerArchive(file), name)
            }
        };
        self.sources.push(Source::Image(place, which));
        self
    }

    /// Adds the image that a stream of `docker save` has (also compressed). `image`: its name, where the stream has
    /// several; `name` is for messages.
    #[must_use]
    pub fn from_image_reader(
        mut self,
        reader: impl Read + Send + 'static,
        image: Option<String>,
        name: impl Into<String>,
    ) -> Self {
        let stream = Stream::new(reader, name);
        self.sources.push(Source::ImageStream(stream, image));
        self
    }

    /// The platform whose image is taken from an index of several: `os/architecture[/variant]`, by Go's names. Without it
    /// `linux` on the processor of this machine.
    ///
    /// # Errors
    /// `Invalid` for text that is no platform.
    pub fn platform(mut self, platform: &str) -> Result<Self> {
        self.platform = Some(image::Platform::parse(platform)?);
        Ok(self)
    }

    /// Puts the configuration of the last container image into the volume, as `/.blockwright/config.json`: its command,
    /// environment, user and ports.
    #[must_use]
    pub fn keep_image_config(mut self, keep: bool) -> Self {
        self.keep_config = keep;
        self
    }

    /// Whom to tell how far it is.
    #[must_use]
    pub fn progress(self, tell: impl Fn(&BuildProgress) + Send + Sync + 'static) -> Self {
        self.watch(move |step| {
            tell(step);
            ControlFlow::Continue(())
        })
    }

    /// As [`VolumeBuilder::progress`], and the build stops when the function breaks. It then fails with `Interrupted`, as it does when a source cannot be
    /// read: a new image is removed, and one that was there is no volume any more from [`BuildProgress::Planned`] on. [`BuildProgress::Finishing`] comes too late to stop.
    #[must_use]
    pub fn watch(
        mut self,
        tell: impl Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Box::new(tell);
        self
    }

    fn timestamp(&self) -> Timestamp {
        let secs = self.epoch.unwrap_or(self.options.now);
        Timestamp {
            secs: i64::try_from(secs).unwrap_or(i64::MAX),
            nanos: 0,
        }
    }

    /// An earlier build of the volume (ext2, ext3 or ext4): files and directories that are there as well get the same inode numbers, and the same blocks if
    /// they need no more of them. So images of consecutive builds share most of their bytes. The contents are those of the sources in any case.
    /// The base is not trusted: numbers above four times what the sources need are not kept, and [`VolumeBuilder::size_auto`] takes over its number of
    /// inodes only up to four times what is needed.
    ///
    /// Checksums start from the earlier volume's seed (feature `metadata_csum_seed`, unless [`VolumeBuilder::features`] names it), and directories are
    /// hashed with its seed, because the UUID is another one.
    #[must_use]
    pub fn base(mut self, volume: SharedDevice) -> Self {
        self.base = Some(volume);
        self
    }

    /// Lays the sources over one another. `device_bytes`: the size of what the volume is made on.
    fn gather(
        &self,
        image: Option<(u64, u64)>,
        spool_dir: &Path,
        device_bytes: Option<u64>,
    ) -> Result<LayerTree> {
        let now = self.timestamp();
        let mut root = Node::new(FileKind::Directory, 0o755, now);
        (root.uid, root.gid) = self.owner.unwrap_or(self.options.root_owner);
        let mut tree = LayerTree::new(root, now);
        let rules = Rules {
            owner: self.owner,
            policy: &self.policy,
            now,
            image,
            spool_dir: spool_dir.to_owned(),
            budget: Arc::new(Budget::new(match self.size {
                Size::Bytes(bytes) => Some(bytes),
                Size::AsDevice => device_bytes,
                Size::Auto(_) => None,
            })),
            progress: &*self.progress,
        };
        let choice = |reference| image::Choice {
            reference,
            platform: self.platform.as_ref(),
            keep_config: self.keep_config,
        };
        for source in &self.sources {
            tree.next_layer();
            source.lay(&mut tree, choice, &rules)?;
        }
        self.policy.apply(&mut tree, self.epoch.map(|_| now))?;
        if !self.policy.protected().is_empty() {
            let patterns = self.policy.protected();
            fsverity::protect(&mut tree, patterns, self.format, spool_dir, &*self.progress)?;
        }
        Ok(tree)
    }

    /// The changes to the default features, with what the policy needs.
    fn wanted_features(&self) -> Result<String> {
        let own = &self.options.features;
        if self.policy.protected().is_empty() {
            return Ok(own.clone());
        }
        if own.split(',').any(|f| f.trim() == "^verity") {
            let what = "files are to be protected by fs-verity, and the feature is switched off";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(match own.is_empty() {
            true => "verity".to_owned(),
            false => format!("{own},verity"),
        })
    }

    fn format_options_for(&self, before: Before) -> Result<FormatOptions> {
        let mut options = self.options.clone();
        options.before = before;
        options.features = self.wanted_features()?;
        if !self.policy.protected().is_empty() {
            options
                .block_bytes
                .get_or_insert(fsverity::BLOCK_BYTES as u32);
        }
        if let Some(epoch) = self.epoch {
            options.now = epoch;
        }
        if matches!(self.size, Size::Auto(_)) && !self.reserved_given {
            options.reserved_percent = 0.0;
        }
        if let Some(bytes) = self.journal_bytes {
            let block = u64::from(options.block_bytes.unwrap_or(4096));
            let blocks = u32::try_from(bytes / block)
                .map_err(|_| Error::new(ErrorKind::Invalid, "the journal is too large"))?;
            options.block_bytes.get_or_insert(4096);
            options.journal_blocks = Some(blocks);
        }
        if let Some(journal) = &self.journal {
            journal::name_in(&mut options, journal)?;
        }
        Ok(options)
    }

    fn f2fs_options(&self, before: Before) -> Result<f2fs::FormatOptions> {
        let o = &self.options;
        let defaults = FormatOptions::default();
        for (given, option) in [
            (o.inode_bytes != defaults.inode_bytes, "inode size"),
            (o.inode_ratio.is_some(), "inode ratio"),
            (o.inodes.is_some(), "number of inodes"),
            (self.reserved_given, "percentage reserved for root"),
            (
                self.journal_bytes.is_some() || self.journal.is_some(),
                "journal",
            ),
        ] {
            if given {
                return Err(not_for_f2fs(option));
            }
        }
        if self.base.is_some() {
            let what = "an f2fs volume is a log, and is not laid over an earlier build";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let label = String::from_utf8(o.label.clone())
            .map_err(|_| Error::new(ErrorKind::Invalid, "an f2fs label is text"))?;
        Ok(f2fs::FormatOptions {
            features: self.wanted_features()?,
            block_bytes: o.block_bytes,
            label,
            uuid: o.uuid,
            root_owner: o.root_owner,
            now: self.epoch.unwrap_or(o.now),
            before,
            ..f2fs::FormatOptions::default()
        })
    }

    fn target(&self, before: Before, tree: &LayerTree) -> Result<TargetOptions> {
        let options = |before| -> Result<TargetOptions> {
            Ok(match self.format {
                Format::Ext4 => TargetOptions::Ext4(self.format_options_for(before)?, None),
                Format::F2fs => TargetOptions::F2fs(self.f2fs_options(before)?),
            })
        };
        // Leftovers on the device do not change the volume.
        let neutral = options(Before::Unknown)?;
        let mut options = options(before)?;
        if self.epoch.is_some() && self.options.uuid.is_none() {
            let text = format!("{neutral:?}");
            let uuid = digest::uuid(tree, &self.size_text(), &text, &*self.progress)?;
            options.set_uuid(uuid);
        }
        if let Some(base) = &self.base {
            options.lay_over(base::read(base, &tree.tree)?)?;
        }
        Ok(options)
    }

    /// The size that was asked for, and the salt, as the digest has them.
    fn size_text(&self) -> String {
        let size = match self.size {
            Size::AsDevice => "as the device".to_owned(),
            Size::Bytes(bytes) => format!("{bytes} bytes"),
            Size::Auto(free) => format!("smallest with {free} bytes free"),
        };
        size + &self.salt
    }

    /// Plans the volume for what it is made on, which has this many bytes.
    fn plan(
        &self,
        tree: &Tree,
        options: &TargetOptions,
        device_bytes: Option<u64>,
    ) -> Result<TargetPlan> {
        let bytes = match self.size {
            Size::Bytes(bytes) => bytes,
            Size::Auto(free_bytes) => {
                return options.smallest(tree, free_bytes);
            }
            Size::AsDevice => match device_bytes {
                Some(bytes) if bytes > 0 => bytes,
                _ => return Err(Error::new(ErrorKind::Invalid, "a new image needs a size")),
            },
        };
        options.plan(tree, bytes).map_err(|e| {
            let cause = std::error::Error::source(&e).and_then(|e| e.downcast_ref());
            let Some(MkfsError::TooSmall { .. } | MkfsError::NoSpace { .. }) = cause else {
                return e;
            };
            match options.smallest(tree, 0) {
                Ok(plan) => {
                    let least = at_least(plan.report().bytes);
                    Error::new(e.kind(), format!("{e}; {least}"))
                }
                Err(_) => e,
            }
        })
    }

    fn write(
        &self,
        device: &SharedDevice,
        plan: &TargetPlan,
        tree: &LayerTree,
    ) -> Result<BuildReport> {
        let mut report = plan.report();
        report.left_out = plan.left_out(&tree.tree);
        for (id, _) in tree.tree.reachable() {
            report.protected += u64::from(tree.tree.node(id).verity.is_some());
            if tree.tree.node(id).kind != FileKind::Directory {
                report.files += 1;
            } else if id != NodeId::ROOT {
                report.directories += 1;
            }
        }
        let planned = (plan.data_bytes(), report.bytes);
        journal::listing(self.journal.as_ref(), report.uuid, || {
            copying::copied(tree, &*self.progress, planned, |data, tell| {
                plan.write(device, &tree.tree, data, tell)
            })
        })?;
        Ok(report)
    }

    /// Makes the volume in the image or on the block device at `path`, or on the NBD export whose address it is.
    /// A missing image is made; one that is there is replaced, unless it is in use. The disk in a container (qcow2), and a partition, get the
    /// volume in their place.
    ///
    /// # Errors
    /// `Busy`, `NoSpace` when the sources do not fit the size, `Invalid` for contradictory options and
    /// for archives that are damaged or hostile, `Io`. A new image is removed again; one that was there
    /// is no volume any more once writing began.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<BuildReport> {
        let path = path.as_ref();
        if NbdAddress::parse(path).is_some()
            || part::is_in_chunks(path)
            || Place::of(path).part.is_some()
            || detect_file(path) != container::Format::Raw
        {
            let device = blockwright_disk::open(path, building_mode())
                .map_err(|e| Error::from(e).at(path))?;
            return self.create_on(&device).map_err(|e| e.at(path));
        }
        match std::fs::metadata(path) {
            Ok(m) if m.is_file() || blockwright_device::is_block_device(&m) => {
                self.replace(path, &m)
            }
            Ok(_) => Err(
                Error::new(ErrorKind::Unsupported, "neither a file nor a block device").at(path),
            ),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => self.create_new(path),
            Err(e) => Err(Error::from(e).at(path)),
        }
    }

    /// Makes the volume in a new image at `path`.
    ///
    /// # Errors
    /// `Exists`; otherwise as [`VolumeBuilder::create`].
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<BuildReport> {
        let path = path.as_ref();
        let tree = self.gather(None, folder(path), None)?;
        let options = self.target(Before::Zeroes, &tree)?;
        let plan = self.plan(&tree.tree, &options, None)?;
        let bytes = match self.size {
            Size::Bytes(bytes) => bytes,
            _ => plan.report().bytes,
        };
        let device = HostDevice::create_with(path, bytes, building_mode())
            .map_err(|e| Error::from(e).at(path))?;
        let made = self.write(&device, &plan, &tree);
        drop(device);
        removed_on_failure(made, path).map_err(|e| e.at(path))
    }

    /// Makes the volume on a device.
    ///
    /// # Errors
    /// As [`VolumeBuilder::create`].
    pub fn create_on(&self, device: &SharedDevice) -> Result<BuildReport> {
        let device_bytes = Some(device.geometry().bytes);
        let tree = self.gather(None, &crate::host::temp_dir(), device_bytes)?;
        let options = self.target(Before::Unknown, &tree)?;
        let plan = self.plan(&tree.tree, &options, Some(device.geometry().bytes))?;
        self.write(device, &plan, &tree)
    }

    /// Makes the volume over something that exists.
    fn replace(&self, path: &Path, metadata: &std::fs::Metadata) -> Result<BuildReport> {
        let at = |e: Error| e.at(path);
        // Whether it is in use is found out before any work is done.
        let device = HostDevice::open(path, building_mode()).map_err(|e| at(e.into()))?;
        let image = metadata.is_file();
        let spool = if image {
            folder(path).to_owned()
        } else {
            crate::host::temp_dir()
        };
        let device_bytes = device.geometry().bytes;
        let own = crate::host::HostFile::of(metadata)
            .identity
            .filter(|_| image);
        let tree = self.gather(own, &spool, Some(device_bytes))?;
        let before = if image {
            Before::Zeroes
        } else {
            Before::Unknown
        };
        let options = self.target(before, &tree)?;
        let plan = self
            .plan(&tree.tree, &options, Some(device_bytes))
            .map_err(at)?;
        if !image {
            return self.write(&device, &plan, &tree).map_err(at);
        }
        let bytes = match self.size {
            Size::Bytes(bytes) => bytes,
            Size::Auto(_) => plan.report().bytes,
            Size::AsDevice => metadata.len(),
        };
        // Cut to nothing first: what is not written is a hole then, and reads as zeroes.
        let file = std::fs::OpenOptions::new().write(true).open(path);
        file.and_then(|f| f.set_len(0).and_then(|()| f.set_len(bytes)))
            .map_err(|e| Error::from(e).at(path))?;
        if bytes <= device_bytes {
            // The lock is never let go of.
            return self.write(&device, &plan, &tree).map_err(at);
        }
        // A device knows the size it was opened with.
        drop(device);
        let device = HostDevice::open(path, building_mode()).map_err(|e| at(e.into()))?;
        self.write(&device, &plan, &tree).map_err(at)
    }
}
