//! The journal against crashes: transfers between accounts kept in raw metadata blocks.
//!
//! Every handle moves an amount between two blocks and logs it in a third, so the sum of all
//! accounts shows whether transactions are atomic, and each thread's own counter shows whether what was
//! committed survived. Blocks are also freed (with revokes), used as data, and taken again.

mod support;

use blockwright_device::sim::recording::{Completions, CrashPolicy, RecordingDevice};
use blockwright_device::{
    BlockDevice, CountingDevice, DevOffset, Flags, MemoryDevice, SharedDevice,
};
use blockwright_ext4::journal::buffer::{BlockKind, BufferRef};
use blockwright_ext4::{Fs, FsRef, Options};
use blockwright_ondisk::ext4::BlockNo;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex};
use support::{Image, fsck, have, save};

const ACCOUNTS: u64 = 40;
const FIRST: u64 = 6000;
const START: i64 = 1000;

fn options() -> Options {
    Options {
        commit_interval: std::time::Duration::from_millis(20),
        ..Options::default()
    }
}

fn number(bytes: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put(bytes: &mut [u8], at: usize, value: i64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn account(fs: &Fs, n: u64) -> BufferRef {
    fs.volume
        .cache
        .read(BlockNo(FIRST + n), BlockKind::Xattr, |_| Ok(()))
        .expect("account")
}

/// Balances start at offset 0; offset 8 is the thread's counter in blocks `ACCOUNTS + thread`. Account
/// blocks begin with the journal's magic for odd numbers, to exercise escaping.
fn open_bank(fs: &Fs) {
    let h = fs.volume.journal.start(64, "open bank").expect("start");
    for n in 0..ACCOUNTS {
        h.create(BlockNo(FIRST + n), BlockKind::Xattr, |b| {
            if n % 2 == 1 {
                b[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
            }
            put(b, 8, START);
        })
        .expect("create");
    }
    for n in 0..8 {
        h.create(BlockNo(FIRST + ACCOUNTS + n), BlockKind::Xattr, |b| {
            b.fill(0)
        })
        .expect("create");
    }
    drop(h);
    fs.volume.journal.commit_running().expect("commit");
}

fn transfer(fs: &Fs, locks: &Mutex<()>, thread: u64, count: i64, rng: &mut SmallRng) {
    let h = fs.volume.journal.start(3, "transfer").expect("start");
    let from = rng.random_range(0..ACCOUNTS);
    let to = rng.random_range(0..ACCOUNTS);
    let amount = rng.random_range(0..100);
    let _guard = locks.lock().expect("lock");
    h.modify(&account(fs, from), |b| put(b, 8, number(b, 8) - amount))
        .expect("modify");
    h.modify(&account(fs, to), |b| put(b, 8, number(b, 8) + amount))
        .expect("modify");
    h.modify(&account(fs, ACCOUNTS + thread), |b| put(b, 8, count))
        .expect("modify");
}

/// The sum of all accounts and each thread's counter, after mounting (and so recovering).
fn audit(device: MemoryDevice, read_only: bool) -> (i64, [i64; 8], MemoryDevice) {
    let device = Arc::new(device);
    let shared: SharedDevice = device.clone();
    let fs = Fs::mount(
        shared,
        Options {
            read_only,
            ..options()
        },
    )
    .expect("mount after a crash");
    let sum = (0..ACCOUNTS)
        .map(|n| number(&account(&fs, n).data(), 8))
        .sum();
    for n in 0..ACCOUNTS {
        let magic = account(&fs, n).data()[..4] == 0xC03B_3998u32.to_be_bytes();
        assert_eq!(magic, n % 2 == 1, "escaping of account {n}");
    }
    let counters = std::array::from_fn(|n| number(&account(&fs, ACCOUNTS + n as u64).data(), 8));
    fs.unmount().expect("unmount");
    drop(fs);
    (sum, counters, device.snapshot())
}

fn crash_run(args: &[&str], seed: u64) {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    println!("seed {seed}");
    let image = Image::make(16 << 10, args);
    let base = image.load();
    {
        let device = Arc::new(base.snapshot());
        let fs = Fs::mount(device.clone(), options()).expect("first mount");
        open_bank(&fs);
        fs.unmount().expect("unmount");
        drop(fs);
        base_checks(&device.snapshot());
        workload_and_cuts(&device.snapshot(), seed);
    }
}

fn base_checks(device: &MemoryDevice) {
    let dir = tempfile::tempdir().expect("dir");
    let path = save(device, dir.path(), "clean");
    fsck(&path).expect("clean after an unmount");
}

fn workload_and_cuts(base: &MemoryDevice, seed: u64) {
    let recording = Arc::new(RecordingDevice::with_completions(
        base,
        Completions::Deferred { seed },
    ));
    let shared: SharedDevice = recording.clone();
    let fs: FsRef = Fs::mount(shared, options()).expect("mount");
    let locks = Arc::new(Mutex::new(()));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let (fs, locks, recording) = (fs.clone(), locks.clone(), recording.clone());
            std::thread::spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed ^ thread);
                for count in 1..=120i64 {
                    transfer(&fs, &locks, thread, count, &mut rng);
                    if rng.random_range(0..6) == 0 {
                        fs.volume.journal.commit_running().expect("commit");
                        recording.marker(format!("{thread} {count}"));
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("worker");
    }
    // No unmount: the log stays dirty.
    let end = recording.log_len();
    let mut rng = SmallRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().expect("dir");
    for round in 0..40 {
        let cut = rng.random_range(0..=end);
        let policy = match round % 4 {
            0 => CrashPolicy::AllKept,
            1 => CrashPolicy::NoneKept,
            _ => CrashPolicy::Random { seed: rng.random() },
        };
        let crashed = recording.image_at(cut, policy);
        let (sum, counters, after) = audit(crashed.snapshot(), false);
        assert_eq!(
            sum,
            START * ACCOUNTS as i64,
            "cut {cut} {policy:?}: money appeared or vanished"
        );
        for (_, label) in recording.markers_before(cut) {
            let (thread, count) = label.split_once(' ').expect("label");
            let (thread, count): (usize, i64) = (
                thread.parse().expect("thread"),
                count.parse().expect("count"),
            );
            assert!(
                counters[thread] >= count,
                "cut {cut} {policy:?}: thread {thread} committed {count}, found {}",
                counters[thread]
            );
        }
        let (ro_sum, ro_counters, untouched) = audit(crashed.snapshot(), true);
        assert_eq!(
            (ro_sum, ro_counters),
            (sum, counters),
            "read-only recovery differs"
        );
        assert!(
            untouched.to_vec() == crashed.to_vec(),
            "a read-only mount wrote"
        );
        if round % 8 == 0 {
            fsck(&save(&after, dir.path(), "ours")).expect("clean after our recovery");
            let theirs = save(&crashed, dir.path(), "theirs");
            let text = theirs.to_str().expect("path");
            let out = support::run("e2fsck", &["-fy", text]);
            assert!(
                out.status.code().is_some_and(|c| c <= 1),
                "e2fsck on the crashed image: {}",
                String::from_utf8_lossy(&out.stdout)
            );
            compare(&after, &MemoryDevice::load(&theirs).expect("load"), cut);
        }
    }
    drop(fs);
}

/// Our recovery and e2fsck's must agree on every account.
fn compare(ours: &MemoryDevice, theirs: &MemoryDevice, cut: usize) {
    let (ours, theirs) = (ours.to_vec(), theirs.to_vec());
    let block_size = 1024usize << u32::from_le_bytes(ours[1048..1052].try_into().expect("log"));
    for n in 0..ACCOUNTS + 8 {
        let at = (FIRST + n) as usize * block_size;
        let range = at..at + block_size;
        assert!(
            ours[range.clone()] == theirs[range],
            "cut {cut}: block {} differs",
            FIRST + n
        );
    }
}

#[test]
fn crashes_with_checksums_of_version_3() {
    crash_run(
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-J",
            "size=1",
            "-O",
            "64bit,metadata_csum",
        ],
        1,
    );
}

#[test]
fn crashes_without_checksums() {
    crash_run(
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-J",
            "size=1",
            "-O",
            "^64bit,^metadata_csum",
        ],
        2,
    );
}

#[test]
fn crashes_with_a_block_mapped_journal() {
    crash_run(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 3);
}

/// A block's life: metadata, freed, data, and a crash. Recovery must not bring the metadata back.
#[test]
fn revoked_blocks_keep_their_data() {
    if !have("mke2fs") {
        return;
    }
    let image = Image::make(16 << 10, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let recording = Arc::new(RecordingDevice::new(&image.load()));
    let shared: SharedDevice = recording.clone();
    let fs = Fs::mount(shared.clone(), options()).expect("mount");
    let block = BlockNo(FIRST);
    let other = BlockNo(FIRST + 1);
    for b in [block, other] {
        let h = fs.volume.journal.start(1, "create").expect("start");
        h.create(b, BlockKind::Directory, |bytes| bytes.fill(0xAA))
            .expect("create");
        drop(h);
    }
    fs.volume.journal.commit_running().expect("commit");

    // Freed and, in the same transaction, taken again: no revoke may be left behind.
    let h = fs.volume.journal.start(2, "free and take").expect("start");
    h.forget(other, 1);
    h.create(other, BlockKind::Directory, |bytes| bytes.fill(0xBB))
        .expect("create");
    drop(h);

    let h = fs.volume.journal.start(1, "free").expect("start");
    h.forget(block, 1);
    let freed = Arc::new(Mutex::new(false));
    let told = freed.clone();
    h.on_commit(move || *told.lock().expect("lock") = true);
    drop(h);
    assert!(!*freed.lock().expect("lock"));
    fs.volume.journal.commit_running().expect("commit");
    assert!(
        *freed.lock().expect("lock"),
        "callbacks run before commit returns"
    );

    // Data goes to the block; the journal's copy of its former life must not come back, neither by
    // a checkpoint nor by recovery.
    shared
        .write_at(DevOffset(block.0 * 1024), &[0xDD; 1024], Flags::FUA)
        .expect("data");
    let crashed = recording.image_at(recording.log_len(), CrashPolicy::NoneKept);
    fs.volume.journal.flush_checkpoint().expect("checkpoint");
    let mut found = [0; 1024];
    shared
        .read_at(DevOffset(block.0 * 1024), &mut found)
        .expect("read");
    assert_eq!(found, [0xDD; 1024], "a checkpoint overwrote data");

    let crashed = Arc::new(crashed);
    let again = Fs::mount(crashed.clone(), options()).expect("mount");
    crashed
        .read_at(DevOffset(block.0 * 1024), &mut found)
        .expect("read");
    assert_eq!(found, [0xDD; 1024], "recovery overwrote data");
    let kept = again
        .volume
        .cache
        .read(other, BlockKind::Directory, |_| Ok(()))
        .expect("read");
    assert!(
        kept.data()[..] == [0xBB; 1024],
        "a cancelled revoke was written"
    );
    again.unmount().expect("unmount");
    fs.unmount().expect("unmount");
}

/// Log of three transactions, of two blocks each: where each one's blocks are, from the format.
fn three_transactions() -> (MemoryDevice, [[usize; 4]; 3]) {
    let image = Image::make(16 << 10, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let recording = Arc::new(RecordingDevice::new(&image.load()));
    let fs = Fs::mount(recording.clone(), options()).expect("mount");
    for round in 1..=3u8 {
        let h = fs.volume.journal.start(2, "round").expect("start");
        for n in 0..2 {
            h.create(BlockNo(FIRST + n), BlockKind::Xattr, |b| b.fill(round))
                .expect("create");
        }
        drop(h);
        fs.volume.journal.commit_running().expect("commit");
    }
    let crashed = recording.image_at(recording.log_len(), CrashPolicy::NoneKept);
    let bytes = crashed.to_vec();
    let header = |kind: u32, sequence: u32| {
        let want: Vec<u8> = [0xC03B_3998, kind, sequence]
            .iter()
            .flat_map(|w: &u32| w.to_be_bytes())
            .collect();
        (0..bytes.len() / 1024)
            .rev()
            .find(|n| bytes[n * 1024..n * 1024 + 12] == want[..])
    };
    // Sequence numbers begin at 2: 1 is what mke2fs left.
    let places = std::array::from_fn(|n| {
        let descriptor = header(1, n as u32 + 2).expect("descriptor");
        let commit = header(2, n as u32 + 2).expect("commit");
        [descriptor, descriptor + 1, descriptor + 2, commit].map(|b| b * 1024)
    });
    (crashed, places)
}

/// Mounts the image with one byte changed; the stamp found in the block, or the error.
fn with_damage(image: &MemoryDevice, at: Option<usize>) -> Result<u8, String> {
    let mut bytes = image.to_vec();
    if let Some(at) = at {
        bytes[at] ^= 0x40;
    }
    let device = Arc::new(MemoryDevice::from_image(&bytes));
    let fs = Fs::mount(device.clone(), options()).map_err(|e| {
        assert_eq!(e.kind(), blockwright_ext4::ErrorKind::Corrupt, "{e}");
        assert!(device.to_vec() == bytes, "a refused volume was written");
        e.to_string()
    })?;
    let stamp = account(&fs, 0).data()[100];
    assert_eq!(
        stamp,
        account(&fs, 1).data()[100],
        "half a transaction was recovered"
    );
    fs.unmount().expect("unmount");
    Ok(stamp)
}

#[test]
fn damage_is_told_from_a_torn_end() {
    if !have("mke2fs") {
        return;
    }
    let (image, [first, second, third]) = three_transactions();
    assert_eq!(with_damage(&image, None), Ok(3));
    // The last commit block is bad: it was torn, the transaction never happened.
    assert_eq!(with_damage(&image, Some(third[3] + 700)), Ok(2));
    // It is missing altogether.
    assert_eq!(with_damage(&image, Some(third[3])), Ok(2));
    // A bad one with a good transaction behind it is damage.
    for (at, what) in [
        (second[3] + 700, "transaction 3"),
        (first[3] + 700, "transaction 2"),
        // So is everything that a good commit block covers.
        (second[0] + 20, "transaction 3"),
        (third[0] + 20, "transaction 4"),
        (third[1] + 500, "transaction 4"),
        (third[2] + 1, "transaction 4"),
    ] {
        let error = with_damage(&image, Some(at)).expect_err("damage");
        assert!(error.contains(what), "{error}");
    }
    // Copies that are superseded need not be good.
    assert_eq!(with_damage(&image, Some(first[1] + 500)), Ok(3));
}

/// The protocol against two hosts at once; takes its waiting time.
#[test]
fn multiple_mount_protection() {
    use blockwright_ext4::ErrorKind;
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "mmp",
        "-E",
        "mmp_update_interval=1",
    ];
    let image = Image::make(16 << 10, &args);
    let device = Arc::new(image.load());
    let fs = Fs::mount(device.clone(), options()).expect("mount");
    // The other host sees the block change while it waits.
    let refused = Fs::mount(device.clone(), options()).err().expect("in use");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    // Reading does not need the claim.
    let read_only = Options {
        read_only: true,
        ..options()
    };
    drop(Fs::mount(device.clone(), read_only).expect("read-only mount"));
    fs.unmount().expect("unmount");
    drop(fs);
    let dir = tempfile::tempdir().expect("dir");
    fsck(&save(&device, dir.path(), "clean")).expect("clean after an unmount");
}

/// Blocks of many transactions, whose places are in another order than their copies in the log: that is read in runs all the same.
#[test]
fn a_log_is_read_in_runs() {
    const BLOCKS: u64 = 1500;
    const AT_ONCE: u64 = 50;
    const BEHIND: u64 = 9000;
    if !have("mke2fs") {
        return;
    }
    let image = Image::make(64 << 10, &["-b", "4096", "-J", "size=16"]);
    let device = Arc::new(image.load());
    let fs = Fs::mount(device.clone(), options()).expect("mount");
    let place = |n: u64| BlockNo(BEHIND + n * 37 % BLOCKS);
    for first in (0..BLOCKS).step_by(AT_ONCE as usize) {
        let h = fs.volume.journal.start(AT_ONCE as u32, "scatter");
        let h = h.expect("start");
        for n in first..first + AT_ONCE {
            h.create(place(n), BlockKind::Xattr, |b| b.fill(n as u8 | 1))
                .expect("create");
        }
        drop(h);
        fs.volume.journal.commit_running().expect("commit");
    }
    let after = Arc::new(device.snapshot());
    let counting = Arc::new(CountingDevice::new(after));
    let recovered = Fs::mount(counting.clone(), options()).expect("recovered");
    let reads = counting.stats().reads;
    println!("{reads:?}");
    for n in 0..BLOCKS {
        let block = recovered
            .volume
            .cache
            .read(place(n), BlockKind::Xattr, |_| Ok(()));
        assert_eq!(block.expect("read").data()[7], n as u8 | 1, "block {n}");
    }
    // Twice: to verify, and to write home.
    let log = BLOCKS * 4096;
    assert!(reads.bytes < 3 * log, "{reads:?}");
    assert!(reads.requests < 400, "{reads:?}");
    recovered.unmount().expect("unmount");
    fs.unmount().expect("unmount");
}
