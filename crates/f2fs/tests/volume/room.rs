//! What `df` calls available on f2fs can be had: by fallocate, all of it but the nodes that name it, and then by writing there.

use crate::common;
use blockwright::{ErrorKind, File, OpenOptions, Volume, VolumeOptions};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_vfs::FallocMode;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);

/// Nodes that a new file of this many blocks has beside its inode, at most: addresses in the inode are left out of account.
fn nodes_of(blocks: u64) -> u64 {
    const PER_NODE: u64 = 1018;
    let direct = blocks.div_ceil(PER_NODE);
    // Beyond two direct nodes each 1018 of them have a node above, and beyond two of those there is one more.
    direct + direct.div_ceil(PER_NODE) + 1
}

fn available(v: &Volume) -> u64 {
    v.statfs().expect("statfs").blocks_available
}

fn make(v: &Volume, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(v, name)
        .expect("made")
}

/// Has files of many sizes come and go until the volume is two thirds full.
fn use_it(v: &Volume) {
    let all = available(v);
    let mut n = 0u64;
    while available(v) > all / 3 {
        let bytes = vec![n as u8; [100, 5000, 70_000, 300_000][n as usize % 4]];
        v.write(format!("s{n}"), bytes).expect("room");
        n += 1;
    }
    v.sync().expect("synced");
    for n in (0..n).step_by(3) {
        v.remove_file(format!("s{n}")).expect("removed");
    }
    for n in (1..n).step_by(3) {
        v.write(format!("s{n}"), vec![1; 9000]).expect("room");
    }
}

fn case(args: &str, mib: u64, mount: &str, used: bool) {
    let what = format!("{mib} MiB, mkfs.f2fs {args}, -o {mount}, used: {used}");
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    let file = std::fs::File::create(&image).expect("an image");
    file.set_len(mib << 20).expect("a size");
    let mut mkfs = std::process::Command::new("mkfs.f2fs");
    mkfs.arg("-q").args(args.split_whitespace()).arg(&image);
    assert!(mkfs.status().expect("mkfs.f2fs runs").success());
    let device: SharedDevice = Arc::new(MemoryDevice::load(&image).expect("loaded"));
    let mut options = VolumeOptions::default();
    if mount == "lfs" {
        options.parts.f2fs.mode = blockwright_f2fs::Mode::Lfs;
    }
    let v = options.open_device(Arc::clone(&device)).expect("a mount");
    if used {
        use_it(&v);
    }
    // In one go.
    let file = make(&v, "all");
    let said = available(&v);
    let blocks = said - nodes_of(said);
    let whole = FallocMode::Allocate { keep_size: false };
    file.handle()
        .fallocate(0..blocks << 12, whole)
        .unwrap_or_else(|e| panic!("{what}: {said} said, {blocks} asked: {e}"));
    assert!(available(&v) <= nodes_of(said), "{what}: more is left");
    // What was had can be written.
    let bytes = vec![7; 1 << 20];
    for at in (0..blocks << 12).step_by(1 << 20) {
        let n = ((blocks << 12) - at).min(1 << 20) as usize;
        file.write_all_at(&bytes[..n], at)
            .unwrap_or_else(|e| panic!("{what}: write at {at}: {e}"));
    }
    file.sync_all().unwrap_or_else(|e| panic!("{what}: {e}"));
    file.set_len(0).expect("cut");
    v.sync().expect("synced");
    // In pieces, until there is no more.
    let said = available(&v);
    let mut had = 0;
    loop {
        match file.handle().fallocate(had << 12..(had + 64) << 12, whole) {
            Ok(()) => had += 64,
            Err(e) => break assert_eq!(e.kind(), ErrorKind::NoSpace, "{what}: {e}"),
        }
    }
    assert!(
        had + 64 + nodes_of(said) >= said,
        "{what}: {said} said, {had} had"
    );
    drop(file);
    v.close().expect("closed");
    let options = blockwright_check::f2fs::CheckOptions::default();
    let report = blockwright_check::f2fs::check(device, &options).expect("a check");
    assert!(report.is_clean(), "{what}: {:?}", report.issues);
}

#[test]
fn what_df_says_can_be_had() {
    if !common::have_tool("mkfs.f2fs") {
        return;
    }
    common::guarded("room", LIMIT, || {
        for (args, mib) in [("", 64), ("-o 50", 64), ("-s 4", 160)] {
            for mount in ["adaptive", "lfs"] {
                for used in [false, true] {
                    case(args, mib, mount, used);
                }
            }
        }
    });
}
