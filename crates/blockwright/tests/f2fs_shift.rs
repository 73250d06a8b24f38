//! Taking ranges out of f2fs files and putting them in: cut at every point, and on full volumes.

mod common;

use blockwright::device::sim::recording::Completions;
use blockwright::device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright::vfs::FallocMode;
use blockwright::{Format, OpenOptions, Volume, VolumeBuilder, VolumeOptions};
use std::sync::Arc;

/// Taking a range out of a file and putting one in, each cut after every write: one of the states in between, never a
/// mixture, and nothing of the block's earlier owner.
#[test]
fn shifted_files_are_cut() {
    if !common::have_tool("mkfs.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    common::mkfs_f2fs(&path, "", 52 << 20);
    let base = MemoryDevice::load(&path).expect("an image");
    let recording = Arc::new(RecordingDevice::with_completions(
        &base,
        Completions::Inline,
    ));
    let device: SharedDevice = recording.clone();
    let volume = Volume::open_device(device, &VolumeOptions::default()).expect("a mount");
    let mut bytes: Vec<u8> = (0..40u32 * 4096 + 100)
        .map(|n| (n / 4096 + 1) as u8)
        .collect();
    volume.write("/file", &bytes).expect("there is room");
    let mut states = vec![bytes.clone()];
    volume.sync().expect("a sync");
    let begin = recording.log_len();
    let file = OpenOptions::new()
        .write(true)
        .open(&volume, "/file")
        .expect("it is there");
    for (at, n) in [(3, 5), (0, 30)] {
        file.collapse_range(at << 12, n << 12)
            .expect("it can be taken out");
        bytes.drain((at << 12) as usize..((at + n) << 12) as usize);
        states.push(bytes.clone());
        file.sync_all().expect("a sync");
        file.insert_range(at << 12, n << 12)
            .expect("it can be put in");
        let hole = vec![0; (n << 12) as usize];
        bytes.splice((at << 12) as usize..(at << 12) as usize, hole);
        states.push(bytes.clone());
        volume.sync().expect("a sync");
    }
    drop(file);
    drop(volume);
    let mut seen = std::collections::BTreeSet::new();
    for cut in begin..=recording.log_len() {
        for policy in [
            CrashPolicy::AllKept,
            CrashPolicy::NoneKept,
            CrashPolicy::Random { seed: cut as u64 },
        ] {
            let image = Arc::new(recording.image_at(cut, policy));
            let volume = Volume::open_device(
                Arc::clone(&image) as SharedDevice,
                &VolumeOptions::default(),
            );
            let volume = volume.expect("it mounts");
            let found = volume.read("/file").expect("it is there");
            let state = states.iter().position(|s| *s == found);
            seen.insert(state.unwrap_or_else(|| panic!("cut {cut}, {policy:?}: a mixture")));
            volume.close().expect("an unmount");
            let options = blockwright_check::f2fs::CheckOptions::default();
            let report = blockwright_check::f2fs::check(image, &options).expect("a check");
            assert!(
                report.is_clean(),
                "cut {cut}, {policy:?}: {:?}",
                report.issues
            );
        }
    }
    assert_eq!(seen.len(), states.len(), "states seen: {seen:?}");
}

/// A volume that runs full in the middle of a move refuses it, and leaves the file as it was.
#[test]
fn a_full_volume_moves_all_or_nothing() {
    const BYTES: u64 = 64 << 20;
    const BLOCKS: u64 = 5;
    let device = Arc::new(MemoryDevice::new(BYTES)) as SharedDevice;
    VolumeBuilder::new()
        .format(Format::F2fs)
        .size(BYTES)
        .create_on(&device)
        .expect("made");
    let open = || Volume::open_device(Arc::clone(&device), &VolumeOptions::default());
    let volume = open().expect("a mount");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    let file = options.open(&volume, "/file").expect("made");
    let mut bytes: Vec<u8> = (0..20u32 * 4096).map(|n| (n / 4096 + 1) as u8).collect();
    file.write_all_at(&bytes, 0).expect("room");
    let filler = options.open(&volume, "/filler").expect("made");
    let all = FallocMode::Allocate { keep_size: true };
    filler.handle().fallocate(0..BYTES, all).expect_err("full");
    volume.sync().expect("a sync");
    for free in 0..BLOCKS {
        file.insert_range(0, BLOCKS << 12).expect_err("it is full");
        volume.vfs().drop_caches();
        assert!(volume.read("/file").expect("read") == bytes, "{free} free");
        let one = free * 4096..(free + 1) * 4096;
        filler
            .handle()
            .fallocate(one, FallocMode::PunchHole)
            .expect("freed");
    }
    file.insert_range(0, BLOCKS << 12).expect("enough room");
    bytes.splice(0..0, [0; (BLOCKS << 12) as usize]);
    drop((file, filler));
    volume.close().expect("an unmount");
    let volume = open().expect("a mount");
    assert!(volume.read("/file").expect("read") == bytes);
    volume.close().expect("an unmount");
    let options = blockwright_check::f2fs::CheckOptions::default();
    let report = blockwright_check::f2fs::check(device, &options).expect("a check");
    assert!(report.is_clean(), "{:?}", report.issues);
}
