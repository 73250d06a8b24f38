//! Making volumes, empty or from directories and tar streams.

use crate::call::{call, known, outside};
use crate::device::{CallbackDevice, bw_device};
use crate::error::{Fault, Result, bw_error, bw_status};
use crate::raw::{Sources, Text, User, Versioned, bw_source, sized};
use blockwright::build::{BuildProgress, BuildReport, JournalBuilder, JournalReport};
use blockwright::ext4::FsType;
use blockwright::{Format, VolumeBuilder};
use blockwright_device::{OpenMode, SharedDevice};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Make ext4.
pub const BW_MAKE_EXT4: u32 = 0;
/// Make ext3.
pub const BW_MAKE_EXT3: u32 = 1;
/// Make ext2.
pub const BW_MAKE_EXT2: u32 = 2;
/// Make f2fs.
pub const BW_MAKE_F2FS: u32 = 3;
/// Make a journal for an ext4 volume on another device, and no volume. `bytes`, `block_bytes`, `epoch`, `label` and `uuid` count.
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

const ALL_FLAGS: u32 = 127;

/// A directory of the host, or a tar file, plain or compressed with gzip, zstd or xz.
pub const BW_SOURCE_PATH: u32 = 0;
/// A tar stream from an open descriptor, plain or compressed, read to its end.
pub const BW_SOURCE_TAR_FD: u32 = 1;

/// Sources are being read: `done` files are known.
pub const BW_STEP_READING: u32 = 0;
/// Data is being copied: `done` of `total` bytes.
pub const BW_STEP_COPYING: u32 = 1;
/// Metadata is being written.
pub const BW_STEP_FINISHING: u32 = 2;

/// Called with how far it is: `step` is a `BW_STEP_`.
pub type bw_progress = Option<extern "C" fn(user: User, step: u32, done: u64, total: u64)>;

/// How a volume is made. A structure of zeroes with `struct_size` set makes an ext4 volume as large as the image or device that is there.
#[repr(C)]
pub struct bw_make_options {
    /// `sizeof(bw_make_options)`.
    pub struct_size: usize,
    /// `BW_MAKE_AUTO`, `BW_MAKE_EPOCH`, `BW_MAKE_OWNER`, `BW_MAKE_UUID`, `BW_MAKE_NEW`, `BW_MAKE_RESERVED`, `BW_MAKE_HASH_SEED`.
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
    tell: extern "C" fn(User, u32, u64, u64),
    user: User,
) -> impl Fn(&BuildProgress) + Send + Sync + 'static {
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
            _ => return,
        };
        outside(|| tell(user, step, done, total));
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
            let path = o.journal.path("options.journal")?;
            let journal = blockwright::reshape::open_journal(path, OpenMode::default())?;
            builder = builder.journal_device(journal);
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
            builder = builder.progress(telling(tell, o.user));
        }
        new = has(BW_MAKE_NEW);
    }
    for source in sources {
        builder = match source.kind {
            BW_SOURCE_PATH => builder.from(source.path.path("source.path")?),
            BW_SOURCE_TAR_FD => {
                let file = std::fs::File::from(source.fd.duplicate("source.fd")?);
                let name = match source.path.optional() {
                    Some(name) => String::from_utf8_lossy(name).into_owned(),
                    None => format!("descriptor {}", source.fd.0),
                };
                builder.from_reader(file, name)
            }
            other => {
                let what = format!("source.kind: {other} is no BW_SOURCE_");
                return Err(Fault::Misuse(what));
            }
        };
    }
    Ok((builder, new))
}

/// The builder of a journal, if that is to be made.
fn journal(options: Option<&bw_make_options>, count: usize) -> Result<Option<JournalBuilder>> {
    let Some(o) = options.filter(|o| o.format == BW_MAKE_JOURNAL) else {
        return Ok(None);
    };
    known(
        o.flags,
        BW_MAKE_EPOCH | BW_MAKE_UUID,
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
        || [o.features, o.journal]
            .iter()
            .any(|t| t.optional().is_some())
    {
        let what = "a journal has no files, inodes, features or journal of its own";
        return Err(Fault::Misuse(what.to_owned()));
    }
    let mut builder = JournalBuilder::new();
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
