//! Making volumes, empty or from directories and tar streams.

use crate::call::{call, known, outside};
use crate::device::{CallbackDevice, bw_device};
use crate::error::{Fault, Result, bw_error, bw_status};
use crate::raw::{Rules, Sources, Text, User, Versioned, bw_rule, bw_source, sized};
use blockwright::build::{
    BuildProgress, BuildReport, ContainerImage, EntryPolicy, FileContexts, FsConfig,
    JournalBuilder, JournalReport, Mtime, OwnerMap,
};
use blockwright::ext4::FsType;
use blockwright::{Format, VolumeBuilder};
use blockwright_device::{OpenMode, SharedDevice};
use blockwright_ffi::Image;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// Make ext4.
pub const BW_MAKE_EXT4: u32 = 0;
/// Make ext3.
pub const BW_MAKE_EXT3: u32 = 1;
/// Make ext2.
pub const BW_MAKE_EXT2: u32 = 2;
/// Make f2fs.
pub const BW_MAKE_F2FS: u32 = 3;
/// Make a journal for an ext4 volume on another device, and no volume. `bytes`, `block_bytes`, `epoch`, `label`, `uuid` and `progress` count.
pub const BW_MAKE_JOURNAL: u32 = 4;

/// As small as the sources allow; `bytes` is how much stays free.
pub const BW_MAKE_AUTO: u32 = 1;
/// `epoch` counts: the same sources and options make the same bytes.
pub const BW_MAKE_EPOCH: u32 = 2;
/// `uid` and `gid` own everything that comes from directories, and the root directory.
pub const BW_MAKE_OWNER: u32 = 4;
/// `uuid` counts.
pub const BW_MAKE_UUID: u32 = 8;
/// Fail when there is something at `path`.
pub const BW_MAKE_NEW: u32 = 16;
/// `reserved_percent` counts.
pub const BW_MAKE_RESERVED: u32 = 32;
/// `hash_seed` counts.
pub const BW_MAKE_HASH_SEED: u32 = 64;

/// The configuration of the last container image is put into the volume, as `/.blockwright/config.json`.
pub const BW_MAKE_KEEP_CONFIG: u32 = 128;

/// As `BW_ALLOW_BACKING`: for the image at `path`, for `journal` and for `base`.
pub const BW_MAKE_ALLOW_BACKING: u32 = 256;

const ALL_FLAGS: u32 = 511;

/// A directory of the host, or a tar file, plain or compressed with gzip, zstd or xz.
pub const BW_SOURCE_PATH: u32 = 0;
/// A tar stream from an open descriptor, plain or compressed, read to its end.
pub const BW_SOURCE_TAR_FD: u32 = 1;
/// A container image: `path` is `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]` or `docker-archive:FILE[:NAME]`.
pub const BW_SOURCE_IMAGE: u32 = 2;
/// The stream of `docker save` from an open descriptor, also compressed. `path` is the image's name, where the stream has several, or null.
pub const BW_SOURCE_IMAGE_FD: u32 = 3;
/// A listing of composefs. Data that is not in it is below `objects`; if that is null, below the listing's folder.
pub const BW_SOURCE_DUMPFILE: u32 = 4;
/// The same from an open descriptor. If `objects` is null, all data is in the listing.
pub const BW_SOURCE_DUMPFILE_FD: u32 = 5;

/// `text` is a pattern of names or paths that are left out, as of `mkfs --exclude`.
pub const BW_RULE_EXCLUDE: u32 = 0;
/// `text` is a pattern of files that fs-verity protects.
pub const BW_RULE_FSVERITY: u32 = 1;
/// `text` maps users and groups, as of `mkfs --owner-map`: `FROM:TO`, `FIRST-LAST:TO`, with `u:` or `g:` in front, several with commas between.
pub const BW_RULE_OWNERS: u32 = 2;
/// All files have this time of the last change, in `number`: seconds since 1970.
pub const BW_RULE_MTIME: u32 = 3;
/// Files that were changed later have this time.
pub const BW_RULE_MTIME_MAX: u32 = 4;
/// `text` is the path of a file with SELinux labels, as `file_contexts`.
pub const BW_RULE_FILE_CONTEXTS: u32 = 5;
/// `text` is the path of a file with Android's owners, modes and capabilities, as `fs_config`.
pub const BW_RULE_FS_CONFIG: u32 = 6;
/// `text` is where the volume will be mounted: it stands before the paths that these two files are asked about.
pub const BW_RULE_MOUNT_POINT: u32 = 7;

/// Sources are being read: `done` files are known.
pub const BW_STEP_READING: u32 = 0;
/// Data is being copied: `done` of `total` bytes.
pub const BW_STEP_COPYING: u32 = 1;
/// Metadata is being written.
pub const BW_STEP_FINISHING: u32 = 2;

/// Tells the progress of a build: `step` is a `BW_STEP_`. A result other than 0 stops the build, unless `step` is `BW_STEP_FINISHING`, and the call fails with
/// `BW_INTERRUPTED`. A new image is removed then; one that was there is no volume any more, unless `step` was `BW_STEP_READING`.
pub type bw_progress = Option<extern "C" fn(user: User, step: u32, done: u64, total: u64) -> i32>;

/// How a volume is made. A structure of zeroes with `struct_size` set makes an ext4 volume as large as the image or device that is there.
#[repr(C)]
pub struct bw_make_options {
    /// `sizeof(bw_make_options)`.
    pub struct_size: usize,
    /// `BW_MAKE_AUTO`, `BW_MAKE_EPOCH`, `BW_MAKE_OWNER`, `BW_MAKE_UUID`, `BW_MAKE_NEW`, `BW_MAKE_RESERVED`, `BW_MAKE_HASH_SEED`, `BW_MAKE_KEEP_CONFIG`,
    /// `BW_MAKE_ALLOW_BACKING`.
    pub flags: u32,
    /// `BW_MAKE_EXT4`, `BW_MAKE_EXT3`, `BW_MAKE_EXT2`, `BW_MAKE_F2FS` or `BW_MAKE_JOURNAL`.
    pub format: u32,
    /// Size of the volume; 0: that of the image or device. With `BW_MAKE_AUTO`, how many bytes stay free.
    pub bytes: u64,
    /// One inode for so many bytes; 0: the default.
    pub inode_ratio: u64,
    /// Number of inodes; 0: as `inode_ratio` says.
    pub inodes: u64,
    /// Size of the journal in bytes; 0: by the volume's size.
    pub journal_bytes: u64,
    /// Hundredths of the volume for the super user.
    pub reserved_percent: f64,
    /// Bytes per block; 0: the default.
    pub block_bytes: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes per inode of ext4, 128 to 1024; 0: the default.
    pub inode_bytes: u32,
    /// Seconds since 1970, as `SOURCE_DATE_EPOCH`.
    pub epoch: u64,
    /// Label, or null.
    pub label: Text,
    /// Changes to the default features, as mke2fs's and mkfs.f2fs's `-O`, or null.
    pub features: Text,
    /// The device or image of the volume's journal, which `BW_MAKE_JOURNAL` has made and no volume uses, or null.
    pub journal: Text,
    /// UUID.
    pub uuid: [u8; 16],
    /// Seed of ext4's directory hashes.
    pub hash_seed: [u8; 16],
    /// The image of an earlier build of an ext4 volume, or null. What is in both stays where it was.
    pub base: Text,
    /// The platform of container images, as `linux/arm64`; null: linux on this machine's processor.
    pub platform: Text,
    /// Rules for the entries of all sources, or null.
    pub rules: Rules,
    /// How many.
    pub rule_count: usize,
    /// Called from several threads at once, or null.
    pub progress: bw_progress,
    /// Handed to `progress`.
    pub user: User,
}

// SAFETY: numbers, texts, bytes and a function after `struct_size`.
unsafe impl Versioned for bw_make_options {}

/// What a volume that was made is like.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_made {
    /// Bytes of the volume.
    pub bytes: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Files that came from the sources, directories not counted.
    pub files: u64,
    /// Directories that came from the sources.
    pub directories: u64,
    /// Bytes per block.
    pub block_bytes: u32,
    /// Inodes.
    pub inodes: u32,
    /// Free inodes.
    pub inodes_free: u32,
    /// 0.
    pub reserved: u32,
    /// UUID.
    pub uuid: [u8; 16],
}

fn made(report: &BuildReport) -> bw_made {
    bw_made {
        bytes: report.bytes,
        blocks: report.blocks,
        blocks_free: report.free_blocks,
        files: report.files,
        directories: report.directories,
        block_bytes: report.block_bytes,
        inodes: report.inodes,
        inodes_free: report.free_inodes,
        reserved: 0,
        uuid: report.uuid,
    }
}

/// A function that tells C how far it is.
fn telling(
    tell: extern "C" fn(User, u32, u64, u64) -> i32,
    user: User,
) -> impl Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync + 'static {
    use std::sync::atomic::{AtomicU64, Ordering};
    let files = AtomicU64::new(0);
    let total = AtomicU64::new(0);
    move |progress| {
        let (step, done, total) = match *progress {
            BuildProgress::Reading { files: more } => {
                let known = files.fetch_add(more, Ordering::Relaxed) + more;
                (BW_STEP_READING, known, 0)
            }
            BuildProgress::Planned { bytes, .. } => {
                total.store(bytes, Ordering::Relaxed);
                (BW_STEP_COPYING, 0, bytes)
            }
            BuildProgress::Copied { bytes, .. } => {
                (BW_STEP_COPYING, bytes, total.load(Ordering::Relaxed))
            }
            BuildProgress::Finishing => (BW_STEP_FINISHING, 0, 0),
            _ => return ControlFlow::Continue(()),
        };
        match outside(|| tell(user, step, done, total)) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}

/// The builder, and whether it shall fail when there is something at the path.
fn builder(
    options: Option<&bw_make_options>,
    sources: &[bw_source],
) -> Result<(VolumeBuilder, bool)> {
    let mut builder = VolumeBuilder::new();
    let mut new = false;
    if let Some(o) = options {
        known(o.flags, ALL_FLAGS, "options.flags")?;
        let has = |flag: u32| o.flags & flag != 0;
        builder = match o.format {
            BW_MAKE_EXT4 => builder.fs_type(FsType::Ext4),
            BW_MAKE_EXT3 => builder.fs_type(FsType::Ext3),
            BW_MAKE_EXT2 => builder.fs_type(FsType::Ext2),
            BW_MAKE_F2FS => builder.format(Format::F2fs),
            other => {
                let what = format!("options.format: {other} is no BW_MAKE_");
                return Err(Fault::Misuse(what));
            }
        };
        let allow_backing = has(BW_MAKE_ALLOW_BACKING);
        builder = builder.allow_backing(allow_backing);
        builder = match (has(BW_MAKE_AUTO), o.bytes) {
            (true, free) => builder.size_auto(free),
            (false, 0) => builder,
            (false, bytes) => builder.size(bytes),
        };
        if o.inode_ratio != 0 {
            builder = builder.inode_ratio(o.inode_ratio);
        }
        if o.block_bytes != 0 {
            builder = builder.block_size(o.block_bytes);
        }
        if o.inode_bytes != 0 {
            let bytes = u16::try_from(o.inode_bytes);
            let what = || Fault::Misuse("options.inode_bytes: 128 to 1024".to_owned());
            builder = builder.inode_size(bytes.map_err(|_| what())?);
        }
        if o.inodes != 0 {
            builder = builder.inodes(o.inodes);
        }
        if o.journal_bytes != 0 {
            builder = builder.journal_bytes(o.journal_bytes);
        }
        if has(BW_MAKE_RESERVED) {
            builder = builder.reserved_percent(o.reserved_percent);
        }
        if has(BW_MAKE_HASH_SEED) {
            builder = builder.hash_seed(o.hash_seed);
        }
        if o.journal.optional().is_some() {
            let image = Image {
                journal: Some(o.journal.path("options.journal")?.to_owned()),
                allow_backing,
                ..Image::default()
            };
            if let Some(journal) = image.open_journal(OpenMode::default())? {
                builder = builder.journal_device(journal);
            }
        }
        if has(BW_MAKE_OWNER) {
            builder = builder.owner(o.uid, o.gid).root_owner(o.uid, o.gid);
        }
        if has(BW_MAKE_EPOCH) {
            builder = builder.source_date_epoch(o.epoch);
        }
        if has(BW_MAKE_UUID) {
            builder = builder.uuid(o.uuid);
        }
        if let Some(label) = o.label.optional() {
            builder = builder.label(label);
        }
        builder = builder.features(o.features.utf8("options.features")?);
        if let Some(tell) = o.progress {
            builder = builder.watch(telling(tell, o.user));
        }
        if o.base.optional().is_some() {
            let path = o.base.path("options.base")?;
            let image = Image {
                allow_backing,
                ..Image::new(path)
            };
            builder = builder.base(image.open_device(OpenMode::read_only())?);
        }
        if o.platform.optional().is_some() {
            builder = builder.platform(o.platform.utf8("options.platform")?)?;
        }
        builder = builder
            .keep_image_config(has(BW_MAKE_KEEP_CONFIG))
            .entries(policy(o.rules.slice(o.rule_count, "options.rules")?)?);
        new = has(BW_MAKE_NEW);
    }
    for source in sources {
        refuse_unused(source)?;
        builder = match source.kind {
            BW_SOURCE_PATH => builder.from(source.path.path("source.path")?),
            BW_SOURCE_TAR_FD | BW_SOURCE_IMAGE_FD | BW_SOURCE_DUMPFILE_FD => {
                let file = std::fs::File::from(source.fd.duplicate("source.fd")?);
                let text = source.path.optional();
                let text = text.map(|text| String::from_utf8_lossy(text).into_owned());
                let descriptor = || format!("descriptor {}", source.fd.0);
                match source.kind {
                    BW_SOURCE_IMAGE_FD => builder.from_image_reader(file, text, descriptor()),
                    BW_SOURCE_DUMPFILE_FD => {
                        let name = text.unwrap_or_else(descriptor);
                        builder.from_dumpfile_reader(file, objects(source)?, name)
                    }
                    _ => builder.from_reader(file, text.unwrap_or_else(descriptor)),
                }
            }
            BW_SOURCE_IMAGE => {
                let text = source.path.path("source.path")?.as_os_str();
                let image = ContainerImage::parse(text).ok_or_else(|| {
                    let text = text.display();
                    Fault::Misuse(format!("source.path: {text} names no container image"))
                })?;
                builder.from_image(image)
            }
            BW_SOURCE_DUMPFILE => {
                builder.from_dumpfile(source.path.path("source.path")?, objects(source)?)
            }
            other => {
                let what = format!("source.kind: {other} is no BW_SOURCE_");
                return Err(Fault::Misuse(what));
            }
        };
    }
    Ok((builder, new))
}

/// Refuses what a source of this kind does not use.
fn refuse_unused(source: &bw_source) -> Result<()> {
    let refused = |what: &str| Err(Fault::Misuse(what.to_owned()));
    let from_descriptor = matches!(
        source.kind,
        BW_SOURCE_TAR_FD | BW_SOURCE_IMAGE_FD | BW_SOURCE_DUMPFILE_FD
    );
    if !from_descriptor && !matches!(source.fd.0, 0 | -1) {
        return refused("source.fd: a source of this kind has no descriptor");
    }
    let is_listing = matches!(source.kind, BW_SOURCE_DUMPFILE | BW_SOURCE_DUMPFILE_FD);
    if !is_listing && source.objects.optional().is_some() {
        return refused("source.objects: only listings have objects");
    }
    if source.reserved != [0; 2] {
        return refused("source.reserved is not 0");
    }
    Ok(())
}

/// The folder of a listing's objects.
fn objects(source: &bw_source) -> Result<Option<PathBuf>> {
    match source.objects.optional() {
        None => Ok(None),
        Some(_) => Ok(Some(source.objects.path("source.objects")?.to_owned())),
    }
}

/// The rules for entries. Of several about the same, times and files, the last one counts.
fn policy(rules: &[bw_rule]) -> Result<EntryPolicy> {
    let mut policy = EntryPolicy::new();
    let mut owners = OwnerMap::default();
    for rule in rules {
        if rule.reserved != 0 {
            return Err(Fault::Misuse("rule.reserved is not 0".to_owned()));
        }
        let text = || -> Result<&str> {
            rule.text.bytes("rule.text")?;
            rule.text.utf8("rule.text")
        };
        match rule.kind {
            BW_RULE_EXCLUDE => policy = policy.exclude(text()?)?,
            BW_RULE_FSVERITY => policy = policy.fsverity(text()?)?,
            BW_RULE_OWNERS => owners.add(text()?)?,
            BW_RULE_MTIME => policy = policy.mtime(Mtime::Set(rule.number)),
            BW_RULE_MTIME_MAX => policy = policy.mtime(Mtime::Clamp(rule.number)),
            BW_RULE_FILE_CONTEXTS => {
                let path = rule.text.path("rule.text")?;
                policy = policy.file_contexts(FileContexts::read(path)?);
            }
            BW_RULE_FS_CONFIG => {
                let path = rule.text.path("rule.text")?;
                policy = policy.fs_config(FsConfig::read(path)?);
            }
            BW_RULE_MOUNT_POINT => policy = policy.mount_point(rule.text.bytes("rule.text")?),
            other => {
                let what = format!("rule.kind: {other} is no BW_RULE_");
                return Err(Fault::Misuse(what));
            }
        }
    }
    Ok(policy.owners(owners))
}

/// The builder of a journal, if that is to be made.
fn journal(options: Option<&bw_make_options>, count: usize) -> Result<Option<JournalBuilder>> {
    let Some(o) = options.filter(|o| o.format == BW_MAKE_JOURNAL) else {
        return Ok(None);
    };
    known(
        o.flags,
        BW_MAKE_EPOCH | BW_MAKE_UUID | BW_MAKE_ALLOW_BACKING,
        "options.flags of a journal",
    )?;
    let others = [
        o.inode_ratio,
        o.inodes,
        o.journal_bytes,
        o.inode_bytes.into(),
    ];
    if count != 0
        || others != [0; 4]
        || o.rule_count != 0
        || [o.features, o.journal, o.base, o.platform]
            .iter()
            .any(|t| t.optional().is_some())
    {
        let what = "a journal has no files, inodes, features, base or journal of its own";
        return Err(Fault::Misuse(what.to_owned()));
    }
    let mut builder = JournalBuilder::new().allow_backing(o.flags & BW_MAKE_ALLOW_BACKING != 0);
    if o.bytes != 0 {
        builder = builder.size(o.bytes);
    }
    if o.block_bytes != 0 {
        builder = builder.block_size(o.block_bytes);
    }
    if let Some(label) = o.label.optional() {
        builder = builder.label(label);
    }
    if o.flags & BW_MAKE_UUID != 0 {
        builder = builder.uuid(o.uuid);
    }
    if o.flags & BW_MAKE_EPOCH != 0 {
        builder = builder.time(o.epoch);
    }
    if let Some(tell) = o.progress {
        builder = builder.watch(telling(tell, o.user));
    }
    Ok(Some(builder))
}

fn made_journal(report: &JournalReport) -> bw_made {
    bw_made {
        bytes: report.bytes,
        blocks: report.blocks.into(),
        blocks_free: 0,
        files: 0,
        directories: 0,
        block_bytes: report.block_bytes,
        inodes: 0,
        inodes_free: 0,
        reserved: 0,
        uuid: report.uuid,
    }
}

/// Makes a volume in the image or on the block device at `path`, with what the sources hold; without sources (`count` 0) an empty one. A missing image is
/// made; one that is there is replaced, unless it is in use. `options` and `report` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn bw_make(
    path: Text,
    options: *const bw_make_options,
    sources: Sources,
    count: usize,
    report: Option<&mut MaybeUninit<bw_made>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let path = path.path("path")?;
        let options = sized(options, "options")?;
        let done = match journal(options, count)? {
            Some(journal) => made_journal(&journal.create(path)?),
            None => {
                let (builder, new) = builder(options, sources.slice(count, "sources")?)?;
                made(&match new {
                    true => builder.create_new(path)?,
                    false => builder.create(path)?,
                })
            }
        };
        if let Some(report) = report {
            report.write(done);
        }
        Ok(())
    })
}

/// As `bw_make`, on a device of the program.
#[unsafe(no_mangle)]
pub extern "C" fn bw_make_on_device(
    device: *const bw_device,
    options: *const bw_make_options,
    sources: Sources,
    count: usize,
    report: Option<&mut MaybeUninit<bw_made>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let options = sized(options, "options")?;
        let own = || -> Result<SharedDevice> { Ok(Arc::new(CallbackDevice::new(device)?)) };
        let done = match journal(options, count)? {
            Some(journal) => made_journal(&journal.create_on(&own()?)?),
            None => {
                let (builder, new) = builder(options, sources.slice(count, "sources")?)?;
                if new {
                    return Err(Fault::Misuse("BW_MAKE_NEW is for images".to_owned()));
                }
                made(&builder.create_on(&own()?)?)
            }
        };
        if let Some(report) = report {
            report.write(done);
        }
        Ok(())
    })
}
