//! Group commit, the log's wrap-around, failing devices, and volumes without a journal.

mod support;

use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_device::{FaultyDevice, HostDevice, MemoryDevice, OpenMode, SharedDevice};
use blockwright_ext4::comparison::Comparison;
use blockwright_ext4::journal::buffer::BlockKind;
use blockwright_ext4::{ErrorKind, Fs, FsRef, Options};
use blockwright_ondisk::ext4::BlockNo;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use support::{Image, fsck, have, save};

const ARGS: [&str; 6] = ["-t", "ext4", "-b", "1024", "-J", "size=1"];

fn counter(fs: &Fs, name: &str) -> u64 {
    let all = fs.volume.journal.counters();
    all.iter()
        .find(|(n, _)| n == name)
        .unwrap_or_else(|| panic!("no counter {name}"))
        .1
}

/// Each of `threads` commits `rounds` times; every handle changes a block of its own.
fn fsync_storm(fs: &FsRef, threads: u64, rounds: u64) {
    let barrier = Arc::new(Barrier::new(threads as usize));
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let (fs, barrier) = (fs.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                for round in 0..rounds {
                    let h = fs.volume.journal.start(1, "storm").expect("start");
                    h.create(BlockNo(10000 + thread), BlockKind::Xattr, |b| {
                        b[0] = round as u8
                    })
                    .expect("create");
                    let tid = h.tid();
                    drop(h);
                    fs.volume.journal.sync(tid).expect("sync");
                    assert!(fs.volume.journal.tid_is_durable(tid));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("worker");
    }
}

fn storm_on_a_slow_device(group_commit: bool) -> (u64, u64) {
    let image = Image::make(16 << 10, &ARGS);
    // Flushes take long enough that callers pile up, as on real devices.
    let slow = FaultyDevice::new(Arc::new(image.load()), 1);
    slow.add(Rule::new(Ops::FLUSH, Fault::Delay(Duration::from_millis(2))).always());
    let device: SharedDevice = Arc::new(slow);
    let fs = Fs::mount(
        device,
        Options {
            comparison: Comparison {
                group_commit,
                ..Comparison::default()
            },
            ..Options::default()
        },
    )
    .expect("mount");
    fsync_storm(&fs, 16, 20);
    let counts = (
        counter(&fs, "journal_commits"),
        counter(&fs, "journal_flushes"),
    );
    assert_eq!(counter(&fs, "journal_fsyncs"), 320);
    if group_commit {
        assert!(counter(&fs, "journal_fsyncs_merged") > 0);
    }
    fs.unmount().expect("unmount");
    counts
}

#[test]
fn concurrent_fsyncs_share_commits() {
    if !have("mke2fs") {
        return;
    }
    let (commits, flushes) = storm_on_a_slow_device(true);
    println!("320 fsyncs: {commits} commits, {flushes} flushes");
    assert!(commits * 3 < 320, "{commits} commits for 320 fsyncs");
    assert!(flushes * 3 < 320 * 2, "{flushes} flushes for 320 fsyncs");
    let (_, solo_flushes) = storm_on_a_slow_device(false);
    println!("without sharing: {solo_flushes} flushes");
    assert!(
        solo_flushes >= 320,
        "without group commit every caller flushes"
    );
}

/// Far more is logged than the log holds, by one thread and in large transactions.
#[test]
fn the_log_wraps_around_and_recovers() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let image = Image::make(16 << 10, &ARGS);
    // Records, so that an image can be taken while the checkpointer works.
    let device = Arc::new(RecordingDevice::new(&image.load()));
    let fs = Fs::mount(device.clone(), Options::default()).expect("mount");
    let dir = tempfile::tempdir().expect("dir");
    for round in 0..60u64 {
        let h = fs.volume.journal.start(100, "fill").expect("start");
        for n in 0..100 {
            let block = BlockNo(10000 + (round * 37 + n) % 700);
            h.create(block, BlockKind::Xattr, |b| b.fill(round as u8))
                .expect("create");
        }
        if round % 5 == 0 {
            h.forget(BlockNo(10000 + round), 1);
        }
        drop(h);
        if round % 2 == 0 {
            fs.volume.journal.commit_running().expect("commit");
        }
        if round % 15 == 14 {
            fs.volume.journal.commit_running().expect("commit");
            let crashed = device.image_at(device.log_len(), CrashPolicy::AllKept);
            let live: Vec<_> = (0..700u64)
                .map(|n| {
                    fs.volume
                        .cache
                        .read(BlockNo(10000 + n), BlockKind::Xattr, |_| Ok(()))
                })
                .map(|b| b.expect("read").data())
                .collect();
            let again: SharedDevice = Arc::new(crashed.snapshot());
            let recovered = Fs::mount(again, Options::default()).expect("recover");
            for (n, expected) in live.iter().enumerate() {
                let block = BlockNo(10000 + n as u64);
                // What was forgotten may hold anything.
                if (0..=round).any(|r| r % 5 == 0 && block.0 == 10000 + r) {
                    continue;
                }
                let found = recovered
                    .volume
                    .cache
                    .read(block, BlockKind::Xattr, |_| Ok(()))
                    .expect("read");
                assert!(
                    found.data()[..] == expected[..],
                    "round {round}: {block:?}: {} for {}",
                    found.data()[0],
                    expected[0]
                );
            }
            recovered.unmount().expect("unmount");
            let theirs = save(&crashed, dir.path(), "theirs");
            let text = theirs.to_str().expect("path");
            let out = support::run("e2fsck", &["-fy", text]);
            assert!(
                out.status.code().is_some_and(|c| c <= 1),
                "e2fsck refuses our log"
            );
        }
    }
    assert!(counter(&fs, "journal_blocks_logged") > 4000);
    assert!(counter(&fs, "journal_checkpoints") > 3);
    fs.unmount().expect("unmount");
    drop(fs);
    fsck(&save(&device.live(), dir.path(), "clean")).expect("clean");
}

/// Handles whose blocks do not fit one transaction together wait for room rather than overflow.
#[test]
fn transactions_never_outgrow_the_log() {
    if !have("mke2fs") {
        return;
    }
    let image = Image::make(16 << 10, &ARGS);
    let device: SharedDevice = Arc::new(image.load());
    let fs = Fs::mount(device, Options::default()).expect("mount");
    let max = fs.volume.journal.credits_max();
    let too_large = fs
        .volume
        .journal
        .start(max + 1, "too large")
        .expect_err("refused");
    assert_eq!(too_large.kind(), ErrorKind::NoSpace);
    let workers: Vec<_> = (0..6u64)
        .map(|thread| {
            let fs = fs.clone();
            std::thread::spawn(move || {
                for round in 0..20u64 {
                    let h = fs.volume.journal.start(max / 2, "large").expect("start");
                    for n in 0..u64::from(max / 2) {
                        let block = BlockNo(10000 + (thread * 1000 + round * 100 + n) % 6000);
                        h.create(block, BlockKind::Xattr, |b| b[0] = 1)
                            .expect("create");
                    }
                    assert!(!h.has_credits(max));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("worker");
    }
    fs.unmount().expect("unmount");
}

fn poison(ops: Ops, skip: u64) {
    let image = Image::make(16 << 10, &ARGS);
    let memory = Arc::new(image.load());
    let faulty = Arc::new(FaultyDevice::new(memory.clone(), 1));
    let device: SharedDevice = faulty.clone();
    let fs = Fs::mount(device, Options::default()).expect("mount");
    faulty.add(Rule::new(ops, Fault::Errno(5)).skip(skip).always());
    let h = fs.volume.journal.start(1, "doomed").expect("start");
    h.create(BlockNo(10000), BlockKind::Xattr, |b| b[0] = 1)
        .expect("create");
    let told = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tell = told.clone();
    h.on_commit(move || tell.store(true, std::sync::atomic::Ordering::SeqCst));
    let tid = h.tid();
    drop(h);
    let error = fs.volume.journal.commit(tid).expect_err("the device fails");
    assert!(
        matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned),
        "{error}"
    );
    assert!(!fs.volume.journal.tid_is_durable(tid));
    assert!(
        !told.load(std::sync::atomic::Ordering::SeqCst),
        "a failed commit freed blocks"
    );
    assert!(fs.volume.is_read_only());
    let why = fs.read_only_reason().expect("a reason");
    let cause = fs.volume.journal.aborted().expect("a cause");
    assert_eq!(why, cause.to_string());
    let refused = fs
        .volume
        .journal
        .start(1, "afterwards")
        .expect_err("poisoned");
    assert_eq!(refused.kind(), ErrorKind::Poisoned);
    assert_eq!(
        fs.volume
            .check_writable("write")
            .expect_err("poisoned")
            .kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(
        fs.unmount().expect_err("poisoned").kind(),
        ErrorKind::Poisoned
    );
    drop(fs);
    // With the device healed the volume recovers to before the failed commit.
    faulty.heal();
    let again = Fs::mount(memory, Options::default()).expect("mount again");
    again.unmount().expect("unmount");
}

#[test]
fn a_failed_log_write_poisons() {
    if have("mke2fs") {
        poison(Ops::WRITE, 0);
        poison(Ops::WRITE, 1);
        poison(Ops::WRITE, 2);
    }
}

#[test]
fn a_failed_flush_poisons() {
    if have("mke2fs") {
        poison(Ops::FLUSH, 0);
    }
}

/// Without a journal commits write home, in the same API.
#[test]
fn no_journal() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let image = Image::make(
        16 << 10,
        &["-t", "ext4", "-O", "^has_journal", "-b", "1024"],
    );
    let device = Arc::new(image.load());
    let fs = Fs::mount(device.clone(), Options::default()).expect("mount");
    let h = fs.volume.journal.start(2, "create").expect("start");
    h.create(BlockNo(10000), BlockKind::Xattr, |b| b.fill(7))
        .expect("create");
    h.create(BlockNo(10001), BlockKind::Xattr, |b| b.fill(8))
        .expect("create");
    h.forget(BlockNo(10001), 1);
    let tid = h.tid();
    drop(h);
    fs.volume.journal.sync(tid).expect("sync");
    let bytes = device.to_vec();
    assert!(bytes[10000 * 1024..10001 * 1024] == [7; 1024]);
    assert!(
        bytes[10001 * 1024..10002 * 1024] == [0; 1024],
        "a forgotten block was written"
    );
    fs.unmount().expect("unmount");
    drop(fs);
    let dir = tempfile::tempdir().expect("dir");
    fsck(&save(&device, dir.path(), "clean")).expect("clean");
}

/// A 15 TiB volume (the largest file many hosts allow) mounts at once: nothing is read per group.
#[test]
fn a_huge_volume_mounts_at_once() {
    if !have("mke2fs") {
        return;
    }
    let args = [
        "-t",
        "ext4",
        "-O",
        "64bit,sparse_super2,^resize_inode",
        "-E",
        "lazy_itable_init=1,lazy_journal_init=1",
        "-N",
        "200000",
    ];
    let image = Image::make(15 << 30, &args);
    let device: SharedDevice = HostDevice::open(&image.path, OpenMode::default()).expect("open");
    // Timed without writing, since a flush of a busy host says nothing about the mount.
    let start = std::time::Instant::now();
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let fs = Fs::mount(device.clone(), options).expect("mount");
    let took = start.elapsed();
    assert!(took.as_millis() < 1000, "mounting took {took:?}");
    fs.unmount().expect("unmount");
    drop(fs);
    let fs = Fs::mount(device, Options::default()).expect("mount");
    fs.unmount().expect("unmount");
}

#[test]
fn unknown_features_are_refused_by_name() {
    if !have("mke2fs") {
        return;
    }
    let image = Image::make(16 << 10, &ARGS);
    let patch = |at: usize, bits: u32| {
        let mut bytes = image.load().to_vec();
        let word = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("word")) | bits;
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        let mut raw = blockwright_ondisk::ext4::RawSuperblock::read(&bytes[1024..]).expect("raw");
        raw.set_checksum();
        bytes[1024..2048].copy_from_slice(&raw.to_bytes());
        Arc::new(MemoryDevice::from_image(&bytes))
    };
    let incompat = patch(1024 + 0x60, 1 << 27);
    let error = Fs::mount(incompat, Options::default())
        .err()
        .expect("refused");
    assert_eq!(error.kind(), ErrorKind::UnsupportedFeature);
    assert!(error.to_string().contains("FEATURE_I27"), "{error}");
    let device = patch(1024 + 0x64, 1 << 27);
    let before = device.to_vec();
    let fs = Fs::mount(device.clone(), Options::default()).expect("mounts read-only");
    assert!(fs.volume.is_read_only());
    let why = fs.read_only_reason().expect("a reason");
    assert!(why.contains("FEATURE_R27"), "{why}");
    let asked = Options {
        read_only: true,
        ..Options::default()
    };
    let by_wish = Fs::mount(device.clone(), asked).expect("mounts");
    assert_eq!(by_wish.read_only_reason(), None);
    drop(by_wish);
    let refused = fs.volume.journal.start(1, "write").expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    fs.unmount().expect("unmount");
    assert!(before == device.to_vec(), "a read-only mount wrote");
    let strict = Options {
        downgrade_to_read_only: false,
        ..Options::default()
    };
    let error = Fs::mount(device, strict).err().expect("refused");
    assert!(error.to_string().contains("FEATURE_R27"), "{error}");
}

/// A journal on a device of its own: refused unless named, and recovered from there.
#[test]
fn external_journal() {
    use blockwright_ondisk::ext4::{Compat, RawSuperblock};
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let journal = Image::make(4 << 10, &["-b", "1024", "-O", "journal_dev"]);
    let image = Image::make(
        16 << 10,
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
    );
    // mke2fs wants a block device for this; the link is three fields of the superblock.
    let journal_bytes = journal.load().to_vec();
    let journal_super = RawSuperblock::read(&journal_bytes[1024..]).expect("journal device");
    let mut bytes = image.load().to_vec();
    let mut raw = RawSuperblock::read(&bytes[1024..]).expect("superblock");
    let mut features = raw.features();
    features.compat |= Compat::HAS_JOURNAL;
    raw.set_features(features);
    raw.journal_uuid = journal_super.uuid;
    raw.journal_dev.set(0x0701);
    raw.set_checksum();
    bytes[1024..2048].copy_from_slice(&raw.to_bytes());
    let volume = Arc::new(RecordingDevice::new(&MemoryDevice::from_image(&bytes)));

    let refused = Fs::mount(volume.clone(), Options::default())
        .err()
        .expect("unnamed");
    assert_eq!(refused.kind(), ErrorKind::UnsupportedFeature);
    let wrong: SharedDevice = Arc::new(image.load());
    let options = |journal: SharedDevice| Options {
        journal_device: Some(journal),
        ..Options::default()
    };
    let refused = Fs::mount(volume.clone(), options(wrong))
        .err()
        .expect("not a journal");
    assert_eq!(refused.kind(), ErrorKind::Invalid);

    let log = Arc::new(RecordingDevice::new(&journal.load()));
    let fs = Fs::mount(volume.clone(), options(log.clone())).expect("mount");
    let h = fs.volume.journal.start(1, "create").expect("start");
    h.create(BlockNo(10000), BlockKind::Xattr, |b| b.fill(0x77))
        .expect("create");
    drop(h);
    fs.volume.journal.commit_running().expect("commit");
    let volume = volume.image_at(volume.log_len(), CrashPolicy::NoneKept);
    let log: SharedDevice = Arc::new(log.image_at(log.log_len(), CrashPolicy::NoneKept));
    assert!(volume.to_vec()[10000 * 1024] == 0, "still only in the log");
    let volume = Arc::new(volume);
    let again = Fs::mount(volume.clone(), options(log)).expect("mount again");
    again.unmount().expect("unmount");
    assert!(volume.to_vec()[10000 * 1024..10001 * 1024] == [0x77; 1024]);
    drop(fs);
}
