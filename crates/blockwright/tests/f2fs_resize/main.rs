//! f2fs volumes of another size: fsck.f2fs and this project's checker find nothing, files are the same, and a power failure at any moment leaves a volume
//! that opens with all of them.

mod crashes;
mod linux;
mod packs;
mod quota;
mod refusals;

use blockwright::device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright::reshape::{self, Mode, Parts, ResizeOptions, Resized};
use blockwright::{ErrorKind, Volume};
use blockwright_check::Severity;
use blockwright_test_support::testing::{Snapshot, assert_same, have, run_ok, snapshot_volume};
use std::sync::Arc;

/// Bytes.
pub const MIB: u64 = 1 << 20;

/// A device in memory with a volume that mkfs.f2fs has made, and more room behind it.
pub fn made(options: &[&str], bytes: u64, room: u64) -> Arc<MemoryDevice> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let file = std::fs::File::create(&path).expect("an image");
    file.set_len(bytes).expect("a size");
    let name = path.display().to_string();
    let mut args = vec!["-q"];
    args.extend(options);
    args.push(&name);
    run_ok("mkfs.f2fs", &args);
    file.set_len(room.max(bytes)).expect("a size");
    Arc::new(MemoryDevice::load(&path).expect("loaded"))
}

/// As [`made`], by this library.
pub fn made_by_us(bytes: u64, room: u64) -> Arc<MemoryDevice> {
    let small = blockwright_test_support::f2fs::formatted(bytes);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    small.save(&path).expect("saved");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("an image");
    file.set_len(room.max(bytes)).expect("a size");
    Arc::new(MemoryDevice::load(&path).expect("loaded"))
}

/// Only the front of a device.
pub fn cut(device: &MemoryDevice, bytes: u64) -> Arc<MemoryDevice> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    device.save(&path).expect("saved");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("an image");
    file.set_len(bytes).expect("a size");
    Arc::new(MemoryDevice::load(&path).expect("loaded"))
}

/// For what takes any device.
pub fn shared(device: &Arc<MemoryDevice>) -> SharedDevice {
    Arc::clone(device) as SharedDevice
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 31 + seed * 17 + i / 251) as u8)
        .collect()
}

/// Files of all kinds; those written first are removed in part, so that segments have holes.
pub fn fill(device: &Arc<MemoryDevice>, files: usize, megabytes: usize) {
    let volume = Volume::open_device(shared(device)).expect("opened");
    volume.create_dir_all("/d/e").expect("made");
    for n in 0..files {
        volume
            .write(format!("/d/{n}"), pattern(n, n % 40 * 1500))
            .expect("written");
        volume
            .write(format!("/d/e/gone-{n}"), pattern(n, 9000))
            .expect("written");
    }
    // With indirect nodes, and with holes between its addresses.
    let large = blockwright::OpenOptions::new()
        .write(true)
        .create(true)
        .open(&volume, "/large")
        .expect("a file");
    for n in 0..megabytes {
        let at = n as u64 * (MIB + 8192);
        large
            .write_all_at(&pattern(n, MIB as usize), at)
            .expect("written");
    }
    large.write_all_at(b"far away", 50 * MIB).expect("written");
    volume
        .set_xattr("/d", "user.long", vec![7; 900], Default::default())
        .expect("set");
    volume.sync().expect("synced");
    for n in 0..files {
        if n % 3 > 0 {
            volume
                .remove_file(format!("/d/e/gone-{n}"))
                .expect("removed");
        }
    }
    volume.symlink("d/e", "/link").expect("linked");
    volume.hard_link("/d/3", "/hard").expect("linked");
    volume.close().expect("closed");
}

/// All names, attributes and bytes.
pub fn contents(device: &Arc<MemoryDevice>) -> Snapshot {
    let volume = Volume::options()
        .read_only(true)
        .open_device(shared(device))
        .expect("opened");
    let all = snapshot_volume(&volume, "/").expect("read");
    volume.close().expect("closed");
    all
}

/// What the checker finds that is more than a note.
pub fn issues(device: &Arc<MemoryDevice>) -> Vec<String> {
    let options = blockwright_check::f2fs::CheckOptions::default();
    let report = blockwright_check::f2fs::check(shared(device), &options).expect("checked");
    let found = report
        .issues
        .iter()
        .filter(|issue| issue.severity > Severity::Note);
    found.map(ToString::to_string).collect()
}

/// Neither this project's checker nor fsck.f2fs finds anything.
pub fn clean(device: &Arc<MemoryDevice>, what: &str) {
    let found = issues(device);
    assert!(found.is_empty(), "{what}: {found:?}");
    blockwright_test_support::f2fs::assert_clean(device);
}

fn change(device: &Arc<MemoryDevice>, bytes: u64) -> Resized {
    reshape::resize(&shared(device), &ResizeOptions::to_bytes(bytes)).expect("resized")
}

fn segments(resized: &Resized) -> u32 {
    match resized.parts {
        Parts::Segments { now, .. } => now,
        Parts::Groups { .. } => panic!("groups"),
    }
}

/// Changes the size, looks at all, writes more, and looks again.
fn through(device: &Arc<MemoryDevice>, sizes: &[u64], what: &str) {
    let mut before = contents(device);
    for (step, bytes) in sizes.iter().enumerate() {
        let what = format!("{what}: {} MiB", bytes / MIB);
        let planned = reshape::resize(
            &shared(device),
            &ResizeOptions::to_bytes(*bytes).mode(Mode::DryRun),
        )
        .expect("planned");
        let resized = change(device, *bytes);
        assert_eq!(resized.bytes(), *bytes, "{what}");
        assert_eq!(planned.blocks, resized.blocks, "{what}");
        let short = cut(device, *bytes);
        clean(&short, &what);
        assert_same(&before, &contents(&short), &[]);
        let volume = Volume::open_device(shared(device)).expect("opened");
        for n in 0..40 {
            volume
                .write(format!("/new-{step}-{n}"), pattern(n, 60_000))
                .expect("written");
        }
        volume.close().expect("closed");
        clean(device, &what);
        before = contents(device);
    }
}

#[test]
fn volumes_of_mkfs_f2fs() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    let android = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,verity,casefold,compression";
    let kinds: &[(&str, &[&str], u64)] = &[
        ("plain", &[], 100 * MIB),
        ("android", &["-O", android, "-C", "utf8"], 100 * MIB),
        (
            "quota",
            &["-O", "extra_attr,quota,lost_found,sb_checksum"],
            100 * MIB,
        ),
        ("large bitmap", &["-i"], 100 * MIB),
        ("sections", &["-s", "2", "-z", "2"], 300 * MIB),
    ];
    for (name, options, bytes) in kinds {
        let device = made(options, *bytes, 3000 * MIB);
        fill(&device, 300, 20);
        // Within the areas, with larger ones, and back.
        through(
            &device,
            &[bytes + 37 * MIB, 3000 * MIB, 1100 * MIB, bytes + 60 * MIB],
            name,
        );
    }
}

#[test]
fn volumes_of_ours() {
    let device = made_by_us(80 * MIB, 5000 * MIB);
    fill(&device, 300, 10);
    through(&device, &[81 * MIB, 5000 * MIB, 200 * MIB], "ours");
    let volume = Volume::open_device(shared(&device)).expect("opened");
    assert!(volume.statfs().expect("statfs").blocks > 0);
}

#[test]
fn the_areas_are_as_large_as_resize_f2fs_makes_them() {
    if !have("mkfs.f2fs") || !have("resize.f2fs") {
        return;
    }
    let device = made(&[], 200 * MIB, 4000 * MIB);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    device.save(&path).expect("saved");
    run_ok("resize.f2fs", &[&path.display().to_string()]);
    let theirs = Arc::new(MemoryDevice::load(&path).expect("loaded"));
    let ours = segments(&change(&device, 4000 * MIB));
    let same = reshape::resize(
        &shared(&theirs),
        &ResizeOptions::to_bytes(4000 * MIB).mode(Mode::DryRun),
    )
    .expect("planned");
    let theirs = segments(&same);
    assert!(ours.abs_diff(theirs) <= theirs / 100, "{ours} {theirs}");
}

#[test]
fn a_full_volume_grows() {
    // The areas of the larger one need more room than all of the main area has: it takes several steps.
    let large = 60_000 * MIB;
    let device = made_by_us(100 * MIB, large);
    let volume = Volume::open_device(shared(&device)).expect("opened");
    let mut n = 0;
    while volume.write(format!("/{n}"), pattern(n, 300_000)).is_ok() {
        n += 1;
    }
    let _left = volume.remove_file(format!("/{n}"));
    volume.close().expect("closed");
    assert!(n > 100);
    through(&device, &[large], "full");
}

#[test]
fn as_small_as_possible() {
    let device = made_by_us(2000 * MIB, 2000 * MIB);
    fill(&device, 300, 20);
    let before = contents(&device);
    let planned = reshape::resize(
        &shared(&device),
        &ResizeOptions::to_minimum(0).mode(Mode::DryRun),
    )
    .expect("planned");
    let resized =
        reshape::resize(&shared(&device), &ResizeOptions::to_minimum(0)).expect("resized");
    assert!(resized.bytes() < 120 * MIB, "{resized:?}");
    assert!(
        planned.bytes() <= resized.bytes(),
        "{planned:?} {resized:?}"
    );
    let short = cut(&device, resized.bytes());
    clean(&short, "minimum");
    assert_same(&before, &contents(&short), &[]);
    let again = reshape::resize(&shared(&short), &ResizeOptions::to_minimum(0)).expect("resized");
    assert_eq!(again.blocks, resized.blocks);
    // With room that is asked for.
    let device = made_by_us(2000 * MIB, 2000 * MIB);
    fill(&device, 10, 2);
    let resized =
        reshape::resize(&shared(&device), &ResizeOptions::to_minimum(50 * MIB)).expect("resized");
    let short = cut(&device, resized.bytes());
    let volume = Volume::open_device(shared(&short)).expect("opened");
    let free = volume.statfs().expect("statfs");
    assert!(
        free.blocks_available * u64::from(free.block_bytes) >= 50 * MIB,
        "{free:?}"
    );
    volume
        .write("/more", vec![1; 45 * MIB as usize])
        .expect("written");
    volume.close().expect("closed");
    clean(&short, "minimum and room");
}

#[test]
fn refusals_have_names() {
    if !have("mkfs.f2fs") {
        return;
    }
    let device = made_by_us(100 * MIB, 100 * MIB);
    fill(&device, 100, 30);
    let kind = |bytes| {
        let result = reshape::resize(&shared(&device), &ResizeOptions::to_bytes(bytes));
        result.expect_err("refused").kind()
    };
    assert_eq!(kind(200 * MIB), ErrorKind::Invalid);
    assert_eq!(kind(20 * MIB), ErrorKind::Invalid);
    assert_eq!(kind(70 * MIB), ErrorKind::NoSpace);
    assert_eq!(kind(u64::MAX), ErrorKind::Invalid);
    clean(&device, "refused");
    // The word of features, and the path of the first of several devices.
    for (at, byte) in [(2180, 0x02), (2181, 0x40), (2201, b'/')] {
        let device = made(&[], 100 * MIB, 200 * MIB);
        for copy in [0, 4096] {
            let mut block = vec![0; 4096];
            device.read_at(DevOffset(copy), &mut block).expect("read");
            block[1024 + at] |= byte;
            if at == 2201 {
                // It holds all segments.
                block.copy_within(1024 + 48..1024 + 52, 1024 + 2201 + 64);
            }
            device
                .write_at(DevOffset(copy), &block, Flags::empty())
                .expect("written");
        }
        let result = reshape::resize(&shared(&device), &ResizeOptions::to_bytes(200 * MIB));
        let refused = result.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
}
