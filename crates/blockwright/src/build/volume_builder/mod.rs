//! The builder of one volume: what is asked for, and how it is carried out.
//!
//! * here: the options and sources
//! * `gather`: the sources become one tree
//! * `plan`: options of the format, and the plan of the volume
//! * `create`: where the volume is made, and what becomes of a file when that fails
//! * `part`: the volume as a partition of a disk, planned first and written later

mod create;
mod gather;
pub(crate) mod part;
mod plan;

use super::image::{self, ContainerImage};
use super::policy::EntryPolicy;
use super::progress::{BuildProgress, ProgressFn};
use super::source::{Source, Stream};
use crate::{Format, Result};
use blockwright_device::SharedDevice;
use blockwright_mkfs::ext4::{FormatOptions, FsType};
use blockwright_reshape::ext4::settings::ExternalJournal;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// The requested size of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// As large as what it is made on.
    AsDevice,
    Bytes(u64),
    /// The smallest that fits, with this many bytes free.
    Auto(u64),
}

/// Makes a volume, empty or from sources. See the [module's](super) head.
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
    allow_backing: bool,
}

impl Default for VolumeBuilder {
    fn default() -> Self {
        Self::new()
    }
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
            allow_backing: false,
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

    /// Makes the volume also in qcow2 images whose data is in an external data file, wherever that is. As
    /// [`VolumeOptions::allow_backing`](crate::VolumeOptions::allow_backing).
    #[must_use]
    pub fn allow_backing(mut self, on: bool) -> Self {
        self.allow_backing = on;
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
}
