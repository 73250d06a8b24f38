//! Taking ranges out of f2fs files and putting them in: cut at every point, and on full volumes.

use crate::common;
use blockwright::{Format, OpenOptions, Volume, VolumeBuilder};
use blockwright_device::sim::recording::Completions;
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_vfs::FallocMode;
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
    let volume = Volume::open_device(device).expect("a mount");
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
            let volume = Volume::open_device(Arc::clone(&image) as SharedDevice);
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
    let open = || Volume::open_device(Arc::clone(&device));
    let volume = open().expect("a mount");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    let file = options.open(&volume, "/file").expect("made");
    let mut bytes: Vec<u8> = (0..20u32 * 4096).map(|n| (n / 4096 + 1) as u8).collect();
    file.write_all_at(&bytes, 0).expect("room");
    let filler = options.open(&volume, "/filler").expect("made");
    let all = FallocMode::Allocate { keep_size: true };
    // A refused allocation takes nothing, so pieces of half the size follow until not even a block fits.
    let (mut end, mut piece) = (0, BYTES);
    while piece >= 4096 {
        match filler.handle().fallocate(end..end + piece, all) {
            Ok(()) => end += piece,
            Err(_) => piece /= 2,
        }
    }
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

/// Sparse files: the same as moving the bytes does, at the cost of what is mapped. The counts are lookups of nodes, so a busy machine
/// changes nothing.
#[test]
fn holes_cost_nothing() {
    const MIB: u64 = 1 << 20;
    let device = Arc::new(MemoryDevice::new(256 * MIB)) as SharedDevice;
    VolumeBuilder::new()
        .format(Format::F2fs)
        .size(256 * MIB)
        .create_on(&device)
        .expect("made");
    let open = || Volume::open_device(Arc::clone(&device));
    let volume = open().expect("a mount");
    let looked = || {
        let numbers = volume.vfs().stats();
        numbers.get("node_hits").expect("counted") + numbers.get("node_misses").expect("counted")
    };
    let mut works = Vec::new();
    for gib in [1u64, 64] {
        let size = gib << 30;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let file = options.open(&volume, format!("/{gib}")).expect("made");
        file.set_len(size + 123).expect("longer");
        // Single blocks, neighbours across lots, a run longer than a lot, and the end.
        let block = |n: u64| vec![(n % 250 + 1) as u8; 4096];
        let mut places: Vec<u64> = vec![0, 7, 8, 300, 1000, 200_000, (size >> 12) - 1];
        places.extend(50_000..50_400);
        let places = places;
        for at in &places {
            file.write_all_at(&block(*at), at << 12).expect("room");
        }
        // What the end's preallocation left behind the end is not shown by an insertion.
        let handle = file.handle();
        let keep = FallocMode::Allocate { keep_size: true };
        handle
            .fallocate(size + MIB..size + MIB + 8192, keep)
            .expect("room");
        volume.sync().expect("a sync");
        let before = looked();
        // (first block, blocks, whether they are put in)
        let moves = [
            (2, 3, false),
            (100, 90_000, true),
            (50, 5, true),
            (0, 1, false),
            (200_000, 33, false),
        ];
        for (at, n, put_in) in moves {
            if put_in {
                file.insert_range(at << 12, n << 12).expect("put in");
            } else {
                file.collapse_range(at << 12, n << 12).expect("taken out");
            }
            works.push(looked() - before);
        }
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for original in places {
            let mut at = Some(original);
            for (from, n, put_in) in moves {
                at = match at {
                    Some(p) if put_in && p >= from => Some(p + n),
                    Some(p) if !put_in && (from..from + n).contains(&p) => None,
                    Some(p) if !put_in && p >= from + n => Some(p - n),
                    other => other,
                };
            }
            expected.extend(at.map(|at| (at, original)));
        }
        let grown: i64 = moves
            .iter()
            .map(|m| m.1 as i64 * if m.2 { 1 } else { -1 })
            .sum();
        let end = (size as i64 + 123 + grown * 4096) as u64;
        assert_eq!(file.metadata().expect("there").len(), end);
        let check = |file: &blockwright::File| {
            let mut data = Vec::new();
            let mut at = 0;
            while let Ok(from) = file.handle().seek_data(at) {
                let to = file.handle().seek_hole(from).expect("an end");
                data.extend(from >> 12..to.div_ceil(4096));
                at = to;
            }
            let mut blocks: Vec<u64> = expected.iter().map(|e| e.0).collect();
            blocks.sort_unstable();
            assert_eq!(data, blocks, "where there is data");
            for (at, original) in &expected {
                let mut seen = vec![0; 4096];
                let n = file.read_at(&mut seen, at << 12).expect("read");
                assert_eq!(n, seen.len());
                assert!(seen == block(*original), "block {at}, once {original}");
            }
        };
        check(&file);
        drop(file);
        volume.vfs().drop_caches();
        check(&volume.open_file(format!("/{gib}")).expect("there"));
    }
    eprintln!("lookups of nodes: {works:?}");
    let (small, large) = works.split_at(works.len() / 2);
    let (small, large) = (small[small.len() - 1], large[large.len() - 1]);
    assert!(
        large < small * 2 + 10_000,
        "64 GiB cost {large}, 1 GiB {small}"
    );
    volume.close().expect("an unmount");
    let options = blockwright_check::f2fs::CheckOptions::default();
    let report = blockwright_check::f2fs::check(device, &options).expect("a check");
    assert!(report.is_clean(), "{:?}", report.issues);
}
