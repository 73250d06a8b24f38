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
use crate::setters::setters;
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

    setters! {
        /// Makes a volume of this format rather than ext4. f2fs volumes have no inode size or ratio, no
        /// reserved percentage and no journal: such options are refused then.
        format(format: Format) { format = format; }
        /// Starts from the defaults of ext2, ext3 or ext4.
        fs_type(kind: FsType) { format = Format::Ext4; options.kind = kind; }
        /// Changes to the default features, as mke2fs's `-O`: `quota,^has_journal`; for f2fs those of
        /// mkfs.f2fs: `extra_attr,inode_checksum`.
        features(list: impl Into<String>) { options.features = list.into(); }
        /// Size of the volume in bytes. Without it: the size of the image or device that is there.
        size(bytes: u64) { size = Size::Bytes(bytes); }
        /// The smallest size that fits the sources and leaves this many bytes free for all users. Unless given
        /// otherwise, such volumes have 4096-byte blocks, no space reserved for root, and as many inodes
        /// as they need and one more for every 16 KiB of free space.
        size_auto(free_bytes: u64) { size = Size::Auto(free_bytes); }
        /// Bytes per block: 1024, 2048, 4096 … 65536; f2fs: 4096.
        block_size(bytes: u32) { options.block_bytes = Some(bytes); }
        /// Bytes per inode: 128 to 1024.
        inode_size(bytes: u16) { options.inode_bytes = bytes; }
        /// One inode for this many bytes.
        inode_ratio(bytes: u64) { options.inode_ratio = Some(bytes); }
        /// The number of inodes.
        inodes(count: u64) { options.inodes = Some(count); }
        /// Percentage of blocks reserved for root.
        reserved_percent(percent: f64) { options.reserved_percent = percent; reserved_given = true; }
        /// Label, at most 16 bytes; f2fs: 511 UTF-16 units.
        label(label: impl AsRef<[u8]>) { options.label = label.as_ref().to_vec(); }
        /// UUID. When not given: random, or with [`VolumeBuilder::source_date_epoch`] a digest of the input.
        uuid(uuid: [u8; 16]) { options.uuid = Some(uuid); }
        /// Owner and group of the root directory, where no source describes it.
        root_owner(uid: u32, gid: u32) { options.root_owner = (uid, gid); }
        /// Seed of ext4's directory hashes; follows from the UUID when not given.
        hash_seed(seed: [u8; 16]) { options.hash_seed = Some(seed); }
        /// Size of the journal in bytes; by the volume's size when not given.
        journal_bytes(bytes: u64) { journal_bytes = Some(bytes); }
        /// The journal is on this device, which [`JournalBuilder`] has made and no volume uses. The volume has its block size, and the feature `has_journal`.
        journal_device(journal: ExternalJournal) { journal = Some(journal); }
        /// All other options of the format. Replaces what was set before.
        format_options(options: FormatOptions) { options = options; reserved_given = true; }
        /// Owner and group of everything that comes from directories.
        owner(uid: u32, gid: u32) { owner = Some((uid, gid)); }
        /// Makes the result depend on the sources and options alone: the volume is made at this time (in seconds since
        /// 1970), no file is younger, and the UUID is derived from the contents of the volume. The sources are read twice
        /// for that (once when [`VolumeBuilder::uuid`] is given).
        source_date_epoch(secs: u64) { epoch = Some(secs); }
        /// Rules for the entries of all sources: which ones are left out, their times, owners, modes and labels.
        entries(policy: EntryPolicy) { policy = policy; }
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

    setters! {
        /// Puts the configuration of the last container image into the volume, as `/.blockwright/config.json`: its command,
        /// environment, user and ports.
        keep_image_config(keep: bool) { keep_config = keep; }
    }

    /// Whom to tell how far it is.
    #[must_use]
    pub fn progress(self, tell: impl Fn(&BuildProgress) + Send + Sync + 'static) -> Self {
        self.watch(move |step| {
            tell(step);
            ControlFlow::Continue(())
        })
    }

    setters! {
        /// As [`VolumeBuilder::progress`], and the build stops when the function breaks. It then fails with `Interrupted`, as it does when a source cannot be
        /// read: a new image is removed, and one that was there is no volume any more from [`BuildProgress::Planned`] on. [`BuildProgress::Finishing`] comes too late to stop.
        watch(tell: impl Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync + 'static) { progress = Box::new(tell); }
        /// An earlier build of the volume (ext2, ext3 or ext4): files and directories that are there as well get the same inode numbers, and the same blocks if
        /// they need no more of them. So images of consecutive builds share most of their bytes. The contents are those of the sources in any case.
        /// The base is not trusted: numbers above four times what the sources need are not kept, and [`VolumeBuilder::size_auto`] takes over its number of
        /// inodes only up to four times what is needed.
        ///
        /// Checksums start from the earlier volume's seed (feature `metadata_csum_seed`, unless [`VolumeBuilder::features`] names it), and directories are
        /// hashed with its seed, because the UUID is another one.
        base(volume: SharedDevice) { base = Some(volume); }
    }
}
