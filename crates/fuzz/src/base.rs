//! Base images, made once per process by the engines: small volumes with one of everything, clean or with something to
//! recover.
//!
//! Made with fixed UUIDs, hash seeds and block choice, so that an offset in a corpus means the same field in the next
//! process. A change of mkfs or of an allocator moves fields; corpora then lose some of their worth, never their
//! validity.

use crate::fields::{self, Map};
use blockwright::{
    ErrorKind, Format, OpenOptions, Volume, VolumeBuilder, VolumeOptions, XattrMode,
};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_mkfs::ext4::{FormatOptions, FsType};
use blockwright_ondisk::ext4::checksum;
use blockwright_ondisk::ext4::fast_commit::running_checksum;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A base image.
pub struct Base {
    /// For messages.
    pub name: &'static str,
    /// The image; inputs work on snapshots of it.
    pub device: MemoryDevice,
    /// Bytes per block.
    pub block_bytes: u64,
    /// What is worth changing.
    pub map: Map,
}

impl Base {
    /// Without anything worth changing.
    #[must_use]
    pub fn plain(name: &'static str, device: MemoryDevice, block_bytes: u64) -> Self {
        let map = Map::default();
        Base {
            name,
            device,
            block_bytes,
            map,
        }
    }
}

/// Nothing happens but what a target asks for, and what is cached is small.
#[must_use]
pub fn options(read_only: bool) -> VolumeOptions {
    let never = Duration::from_secs(1_000_000);
    let mut options = Volume::options().read_only(read_only);
    options.parts.vfs.commit_interval = never;
    options.parts.vfs.writeback_interval = never;
    options.parts.vfs.lazy_time_interval = never;
    options.parts.vfs.cache_bytes = 16 << 20;
    options.parts.vfs.readahead_bytes = 0;
    options.parts.ext4.commit_interval = never;
    options.parts.ext4.metadata_cache_bytes = 4 << 20;
    options.parts.ext4.comparison.preallocation = blockwright_ext4::comparison::Preallocation::None;
    options.parts.f2fs.commit_interval = never;
    options.parts.f2fs.metadata_cache_bytes = 4 << 20;
    options.parts.f2fs.background_cleaning = blockwright_f2fs::BackgroundCleaning::Off;
    options.parts.f2fs.checkpoint_merge = Some(false);
    options
}

type Made<T> = Result<T, Box<dyn std::error::Error>>;

const UUID: [u8; 16] = [0x42; 16];
const EPOCH: u64 = 1_700_000_000;

fn ext4(bytes: u64, change: impl FnOnce(&mut FormatOptions)) -> Made<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    let shared: SharedDevice = device.clone();
    let mut options = FormatOptions {
        block_bytes: Some(1024),
        inodes: Some(256),
        uuid: Some(UUID),
        hash_seed: Some(UUID),
        now: EPOCH,
        ..FormatOptions::default()
    };
    change(&mut options);
    blockwright_mkfs::ext4::format(&shared, &options)?;
    Ok(device.snapshot())
}

fn f2fs(features: &str) -> Made<MemoryDevice> {
    const MIB: u64 = 1 << 20;
    let mut last = None;
    // The smallest that can be made.
    for size in [36, 40, 44, 48, 52, 56, 64] {
        let device = Arc::new(MemoryDevice::new(size * MIB));
        let shared: SharedDevice = device.clone();
        let builder = VolumeBuilder::new()
            .format(Format::F2fs)
            .uuid(UUID)
            .features(features);
        match builder.source_date_epoch(EPOCH).create_on(&shared) {
            Ok(_) => return Ok(device.snapshot()),
            Err(e) => last = Some(e),
        }
    }
    Err(last.map_or("no size".into(), Into::into))
}

/// One of everything.
fn populate(volume: &Volume, symlinks: bool) -> Made<()> {
    volume.create_dir_all("/a/b/c")?;
    volume.write("/a/small", b"hello")?;
    volume.write("/a/b/empty", b"")?;
    volume.write("/a/b/block", [0xD5; 1024])?;
    let scattered = volume.create_file("/a/scattered")?;
    for n in 0..9 {
        scattered.write_all_at(&[0xD5; 1024], n * 8192)?;
    }
    match scattered.allocate_keep_size(80 << 10, 8 << 10) {
        // Nothing but extents knows blocks that are allocated and not written.
        Err(e) if e.kind() == ErrorKind::Unsupported => {}
        allocated => allocated?,
    }
    drop(scattered);
    let large = volume.create_file("/a/large")?;
    for n in 0..6 {
        large.write_all_at(&[0xD5; 4096], n * 4096)?;
    }
    large.punch_hole(8192, 1024)?;
    drop(large);
    if symlinks {
        volume.symlink("small", "/a/short")?;
        volume.symlink("x/".repeat(60), "/a/long")?;
        volume.symlink("../b/c/../empty", "/a/b/up")?;
    }
    volume.hard_link("/a/small", "/a/b/c/again")?;
    volume.mknod("/a/fifo", blockwright::FileType::Fifo, 0o600, 0)?;
    volume.mknod("/a/null", blockwright::FileType::CharDevice, 0o666, 0x103)?;
    volume.set_xattr("/a/small", "user.mark", b"value", XattrMode::Any)?;
    volume.set_xattr("/a/b", "user.long", [b'v'; 300], XattrMode::Any)?;
    volume.set_xattr(
        "/a/b/block",
        "security.selinux",
        b"system_u:object_r:x",
        XattrMode::Any,
    )?;
    volume.create_dir("/many")?;
    for n in 0..28u32 {
        let name = format!(
            "/many/{:08x}-{}",
            n.wrapping_mul(0x9e37_79b9),
            "n".repeat(90)
        );
        volume.write(name, b"")?;
    }
    Ok(())
}

/// The image after `work`, closed cleanly; and before it is closed, if `dirty`.
fn worked_on(
    device: MemoryDevice,
    dirty: bool,
    work: impl FnOnce(&Volume) -> Made<()>,
) -> Made<MemoryDevice> {
    let device = Arc::new(device);
    let volume = options(false).open_device(device.clone())?;
    work(&volume)?;
    let unclean = device.snapshot();
    volume.close()?;
    Ok(if dirty { unclean } else { device.snapshot() })
}

/// Operations whose commit waits in the journal or the chain of nodes.
fn to_recover(volume: &Volume) -> Made<()> {
    volume.write("/a/new", [0xD5; 3000])?;
    volume.rename("/a/small", "/a/b/moved")?;
    volume.remove_file("/a/fifo")?;
    volume.create_dir("/a/b/c/d")?;
    volume.sync()?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(volume, "/a/large")?;
    file.write_all_at(&[0xD5; 2048], 30_000)?;
    file.sync_all()?;
    let gone = volume.create_file("/a/orphan")?;
    gone.write_all_at(&[0xD5; 5000], 0)?;
    gone.sync_all()?;
    volume.remove_file("/a/orphan")?;
    volume.write("/fresh", [0xD5; 700])?;
    volume.open_file("/fresh")?.sync_all()?;
    Ok(())
}

/// A fast commit behind the journal's transactions: an inode's range, names made and removed, and an inode.
fn add_fast_commit(device: &MemoryDevice) -> Made<()> {
    use blockwright_device::{BlockDevice, DevOffset, Flags};
    // The journal is one run on a new volume: its superblock's magic is looked for.
    let image = device.to_vec();
    let magic = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let start = image
        .chunks(1024)
        .position(|b| b.starts_with(&magic))
        .ok_or("no journal")?;
    let mut head = image[start * 1024..(start + 1) * 1024].to_vec();
    let word = |head: &[u8], at: usize| {
        head[at..at + 4]
            .iter()
            .fold(0u32, |n, b| n << 8 | u32::from(*b))
    };
    let area = 16u32;
    head[0x2B] |= 0x20;
    head[0x54..0x58].copy_from_slice(&area.to_be_bytes());
    let raw: [u8; 1024] = head[..1024].try_into()?;
    head[0xFC..0x100].copy_from_slice(&checksum::journal_superblock(&raw).to_be_bytes());
    device.write_at(DevOffset(start as u64 * 1024), &head, Flags::empty())?;
    let (len, sequence) = (word(&head, 0x10), word(&head, 0x18));
    // The transactions in the log come first.
    let committed = image[start * 1024..]
        .chunks(1024)
        .take(len as usize)
        .skip(1);
    let last = committed
        .filter(|b| b.starts_with(&magic[..4]) && word(b, 4) == 2)
        .map(|b| word(b, 8));
    let tid = last.max().map_or(sequence, |t| t + 1).to_le_bytes();
    let inode_table_entry = |ino: u32| [&ino.to_le_bytes()[..], &[0xA4, 0x81], &[0; 158]].concat();
    let ino = 20u32.to_le_bytes();
    let mut bytes = Vec::new();
    let mut record = |tag: u16, value: &[u8], len: usize| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((len as u16).to_le_bytes());
        bytes.extend(value);
    };
    let name = |parent: u32, ino: u32, name: &[u8]| {
        [&parent.to_le_bytes()[..], &ino.to_le_bytes(), name].concat()
    };
    record(9, &[[0; 4], tid].concat(), 8);
    let range = [
        &ino[..],
        &3u32.to_le_bytes(),
        &[2, 0, 0, 0],
        &900u32.to_le_bytes(),
    ]
    .concat();
    record(1, &range, range.len());
    let hole = [&ino[..], &1u32.to_le_bytes(), &1u32.to_le_bytes()].concat();
    record(2, &hole, hole.len());
    let made = name(2, 40, b"fast");
    record(6, &inode_table_entry(40), 164);
    record(3, &made, made.len());
    let linked = name(2, 20, b"fast-link");
    record(4, &linked, linked.len());
    let removed = name(12, 15, b"small");
    record(5, &removed, removed.len());
    record(8, &tid, 8);
    let sum = running_checksum(0, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes.resize(1024, 0);
    let at = (start as u64 + u64::from(len - area)) * 1024;
    device.write_at(DevOffset(at), &bytes, Flags::empty())?;
    Ok(())
}

fn base(name: &'static str, made: Made<MemoryDevice>, block_bytes: u64, format: Format) -> Base {
    // A base that cannot be made is a fault of this crate or of an engine: nothing can be fuzzed.
    let device = made.unwrap_or_else(|e| panic!("base {name}: {e}"));
    let map = match format {
        Format::F2fs => fields::f2fs(&device),
        _ => fields::ext4(&device),
    };
    Base {
        name,
        device,
        block_bytes,
        map,
    }
}

fn clean(name: &'static str, empty: Made<MemoryDevice>, block_bytes: u64, format: Format) -> Base {
    let made = empty.and_then(|e| worked_on(e, false, |v| populate(v, true)));
    base(name, made, block_bytes, format)
}

fn dirty(empty: Made<MemoryDevice>) -> Made<MemoryDevice> {
    worked_on(
        worked_on(empty?, false, |v| populate(v, true))?,
        true,
        to_recover,
    )
}

const EXT4_BYTES: u64 = 3 << 20;

fn journaled(o: &mut FormatOptions) {
    o.journal_blocks = Some(1024);
}

/// Volumes that were closed cleanly, of both formats.
#[must_use]
pub fn cleanly_closed() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        vec![
            clean("ext4", ext4(EXT4_BYTES, journaled), 1024, Format::Ext4),
            clean(
                "ext4-inline",
                ext4(1 << 20, |o| o.features = "inline_data,ea_inode,^has_journal,^resize_inode".into()),
                1024,
                Format::Ext4,
            ),
            clean("ext2", ext4(1 << 20, |o| o.kind = FsType::Ext2), 1024, Format::Ext4),
            clean(
                "ext4-4k",
                ext4(6 << 20, |o| {
                    o.block_bytes = Some(4096);
                    o.features = "quota,orphan_file,metadata_csum_seed,^has_journal".into();
                }),
                4096,
                Format::Ext4,
            ),
            clean("f2fs", f2fs(""), 4096, Format::F2fs),
            clean(
                "f2fs-extra",
                f2fs("extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,project_quota,sb_checksum"),
                4096,
                Format::F2fs,
            ),
        ]
    })
}

/// Volumes with something to recover.
#[must_use]
pub fn unclean() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        let fast = dirty(ext4(EXT4_BYTES, |o| {
            journaled(o);
            o.features = "fast_commit".into();
        }));
        let fast = fast.and_then(|d| add_fast_commit(&d).map(|()| d));
        vec![
            base(
                "ext4-journal",
                dirty(ext4(EXT4_BYTES, journaled)),
                1024,
                Format::Ext4,
            ),
            base("ext4-fast-commit", fast, 1024, Format::Ext4),
            base(
                "ext3-journal",
                dirty(ext4(EXT4_BYTES, |o| {
                    journaled(o);
                    o.kind = FsType::Ext3;
                })),
                1024,
                Format::Ext4,
            ),
            base("f2fs-chain", dirty(f2fs("")), 4096, Format::F2fs),
            base(
                "f2fs-extra-chain",
                dirty(f2fs("extra_attr,inode_checksum")),
                4096,
                Format::F2fs,
            ),
        ]
    })
}

/// Both.
#[must_use]
pub fn all() -> &'static [Base] {
    cleanly_closed()
}
