//! Compressed files as Linux's f2fs writes them.
//!
//! `blockwright/tests/data/f2fs-compressed-by-linux.img.zst` was made by mkfs.f2fs 1.15 (`-O extra_attr,inode_checksum,sb_checksum,compression`)
//! and written by Debian's Linux 6.12 in a virtual machine: for each algorithm, with clusters of 4 and of 32 blocks
//! (`compress_algorithm=A,compress_log_size=N,compress_chksum,compress_extension=*`), three files: lines of text; runs of
//! zeroes of many lengths between other bytes; and text, noise and zeroes. Of `mixed` in the large clusters what compression saved was
//! released. [`SUMS`] is what Linux's `sha256sum` said of them after the next mount.

use crate::common;
use blockwright::{ErrorKind, ExtentKind, OpenOptions, RenameMode, Volume};
use blockwright_check::{Mode, f2fs as check};
use blockwright_device::{MemoryDevice, SharedDevice};
use sha2::{Digest, Sha256};
use std::sync::Arc;

const IMAGE: &[u8] =
    include_bytes!("../../../blockwright/tests/data/f2fs-compressed-by-linux.img.zst");
const ALGORITHMS: [&str; 4] = ["lzo", "lzo-rle", "lz4", "zstd"];
const SUMS: [(&str, &str); 3] = [
    (
        "mixed",
        "d562929cef21dc40f08d3cea770a9e5e93dab199b38927130f798aea0743c0d2",
    ),
    (
        "text",
        "57ce70f4dd995292b32d4b23a13b6c8485108487d012918cf2512787fb475836",
    ),
    (
        "zeroes",
        "016ec28602631b6e8ec40db165d55b8163b3da71812d00d64391654778b4ba9e",
    ),
];

fn image() -> Arc<MemoryDevice> {
    let bytes = zstd::stream::decode_all(IMAGE).expect("unpacked");
    Arc::new(MemoryDevice::from_image(&bytes))
}

fn sum(bytes: &[u8]) -> String {
    let sum = Sha256::digest(bytes);
    sum.iter().map(|b| format!("{b:02x}")).collect()
}

/// Paths of the files, and what they hold.
fn files() -> impl Iterator<Item = (String, &'static str)> {
    ALGORITHMS.into_iter().flat_map(|algorithm| {
        [2, 5].into_iter().flat_map(move |log| {
            SUMS.map(|(name, sum)| (format!("/{algorithm}-{log}/{name}"), sum))
        })
    })
}

fn assert_clean(device: &Arc<MemoryDevice>) {
    let options = check::CheckOptions {
        mode: Mode::ReadOnly,
        ..check::CheckOptions::default()
    };
    let shared: SharedDevice = device.clone();
    let report = check::check(shared, &options).expect("checked");
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
    if common::have_tool("fsck.f2fs") {
        let file = tempfile::NamedTempFile::new().expect("a file");
        device.save(file.path()).expect("saved");
        common::assert_fsck_f2fs_clean(file.path());
    }
}

#[test]
fn what_linux_compressed_is_read() {
    let device = image();
    assert_clean(&device);
    let volume = Volume::options()
        .read_only(true)
        .open_device(device)
        .expect("opens");
    for (path, expected) in files() {
        let file = volume.open_file(&path).expect("opens");
        let extents = file.extents().expect("known");
        let packed = extents.iter().filter(|e| e.kind == ExtentKind::Encoded);
        // Linux compresses whole clusters only, which the short files with the large ones do not have.
        let short = path.contains("-5/") && !path.ends_with("mixed");
        assert_eq!(packed.count() == 0, short, "{path}");
        let bytes = volume.read(&path).expect("read");
        assert_eq!(sum(&bytes), expected, "{path}");
        let mut part = vec![0; 10_000];
        let n = file.read_at(&mut part, 33_333).expect("read");
        assert!(part[..n] == bytes[33_333..33_333 + n], "{path}");
    }
}

/// Compressed files are read only, by every interface; names, attributes and removal are as for others.
#[test]
fn every_change_of_contents_is_refused_by_name() {
    let device = image();
    let volume = Volume::open_device(device.clone()).expect("opens");
    assert!(!volume.is_read_only());
    let write = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options
    };
    // What mapping, copying and fallocate of a mount need, too: a handle for writing.
    for options in [
        write(),
        write().direct(true).clone(),
        OpenOptions::new().append(true).clone(),
        write().truncate(true).clone(),
        write().create(true).clone(),
    ] {
        let e = options.open(&volume, "/lz4-2/text").expect_err("refused");
        assert_refused(&e);
    }
    type Attempt<'a> = (&'a str, &'a dyn Fn(&str) -> blockwright::Result<()>);
    let attempts: [Attempt<'_>; 4] = [
        ("write", &|p| volume.write(p, b"other")),
        ("empty", &|p| volume.set_len(p, 0)),
        ("shorten", &|p| volume.set_len(p, 5000)),
        ("lengthen", &|p| volume.set_len(p, 1 << 20)),
    ];
    for (path, sum_before) in files() {
        for (what, attempt) in &attempts {
            match attempt(&path) {
                Err(e) => assert_refused(&e),
                Ok(()) => panic!("{path}: {what} was done"),
            }
            assert_eq!(
                sum(&volume.read(&path).expect("read")),
                sum_before,
                "{path}: {what}"
            );
        }
    }
    // A handle from before the file was marked has to be refused by the engine itself.
    volume.vfs().drop_caches();
    refused_by_the_engine(&volume);
    for (path, expected) in files() {
        assert_eq!(sum(&volume.read(&path).expect("read")), expected, "{path}");
    }
    volume.close().expect("closed");
    assert_clean(&device);
}

fn assert_refused(e: &blockwright::Error) {
    assert_eq!(e.kind(), ErrorKind::UnsupportedFeature, "{e}");
    assert!(e.to_string().contains("compressed"), "{e}");
}

fn assert_engine_refuses<T: std::fmt::Debug>(result: blockwright_vfs::Result<T>) {
    let e = result.expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::UnsupportedFeature, "{e}");
    assert!(e.to_string().contains("compressed"), "{e}");
}

fn refused_by_the_engine(volume: &Volume) {
    use blockwright_vfs::engine::{FallocMode, Intent};
    let engine = volume.vfs().engine();
    let file = volume.open_file("/lzo-5/mixed").expect("opens");
    let inode = file.handle().inode();
    let now = blockwright::Timestamp::now();
    assert_engine_refuses(engine.reserve(inode, 0..4096));
    assert_engine_refuses(engine.allocate(inode, 0..4096, 4096, Intent::Writeback));
    assert_engine_refuses(engine.allocate(inode, 0..4096, 4096, Intent::Direct));
    assert_engine_refuses(engine.truncate(inode, 0, now));
    assert_engine_refuses(engine.write_inline(inode, b"x", 1));
    for mode in [
        FallocMode::Allocate { keep_size: false },
        FallocMode::Allocate { keep_size: true },
        FallocMode::PunchHole,
        FallocMode::ZeroRange { keep_size: false },
        FallocMode::CollapseRange,
        FallocMode::InsertRange,
    ] {
        assert_engine_refuses(engine.check_fallocate(inode, mode));
        assert_engine_refuses(engine.fallocate(inode, 0..8192, mode, now));
    }
    let settled = engine.extent_in_place(inode, 0, 4096).expect("asked");
    assert!(
        settled.is_none(),
        "direct overwrites would be sent off: {settled:?}"
    );
}

#[test]
fn names_and_attributes_of_compressed_files_change() {
    let device = image();
    let volume = Volume::open_device(device.clone()).expect("opens");
    let sums: std::collections::HashMap<&str, &str> = SUMS.into_iter().collect();
    // Over one another, exchanged, linked, given away.
    volume
        .rename("/lzo-2/text", "/lzo-2/mixed")
        .expect("renamed over");
    volume
        .rename_with("/lz4-2/text", "/zstd-5/zeroes", RenameMode::Exchange)
        .expect("exchanged");
    volume.hard_link("/lz4-5/text", "/link").expect("linked");
    volume.write("/plain", b"plain").expect("written");
    volume
        .rename("/plain", "/lz4-5/text")
        .expect("renamed over");
    volume.chown("/link", Some(5), Some(6)).expect("given");
    volume
        .set_xattr("/link", "user.x", b"y", blockwright::XattrMode::Any)
        .expect("set");
    // New files are not compressed, and can be written.
    volume
        .write("/lzo-rle-5/new", vec![7; 100_000])
        .expect("written");
    volume
        .copy("/lzo-rle-5/zeroes", "/lzo-rle-5/copy")
        .expect("copied");
    volume.sync().expect("synced");
    volume.remove_file("/lzo-rle-2/mixed").expect("removed");
    volume.remove_file("/lzo-rle-5/mixed").expect("removed");
    volume.close().expect("closed");
    assert_clean(&device);
    let volume = Volume::options()
        .read_only(true)
        .open_device(device)
        .expect("opens");
    let read = |path: &str| sum(&volume.read(path).expect("read"));
    assert_eq!(read("/lzo-2/mixed"), sums["text"]);
    assert_eq!(read("/lz4-2/text"), sums["zeroes"]);
    assert_eq!(read("/zstd-5/zeroes"), sums["text"]);
    assert_eq!(read("/link"), sums["text"]);
    assert_eq!(read("/lzo-rle-5/copy"), sums["zeroes"]);
    assert_eq!(volume.read("/lz4-5/text").expect("read"), b"plain");
}
