//! Many writers until the volume (or their quota) is full, delete, again: what was promised at write time is
//! kept at writeback, and afterwards every block is accounted for, with every switch of allocation.

use blockwright_test_support as common;

use blockwright::{ErrorKind, Format, OpenOptions, Volume, VolumeBuilder, VolumeOptions};
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_ext4::Ext4;
use blockwright_ext4::comparison::Preallocation;
use common::testing::{assert_e2fsck_clean, have};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);
const WRITERS: u64 = 6;

fn engine(v: &Volume) -> &Ext4 {
    let engine = v.vfs().engine().as_any().downcast_ref::<Ext4>();
    engine.expect("ext4")
}

fn options(delayed: bool, preallocation: Preallocation) -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.parts.vfs.delayed_allocation = delayed;
    options.parts.ext4.comparison.preallocation = preallocation;
    options
}

/// What is in memory only must be gone when no thread writes any more.
fn nothing_is_held(v: &Volume, what: &str) {
    let fs = engine(v).fs();
    let numbers = fs.alloc.counters();
    let get = |name: &str| {
        let found = numbers.iter().find(|(n, _)| n == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    };
    assert_eq!(get("alloc_blocks_claimed"), 0, "{what}: claimed blocks");
    let seen = fs.alloc.snapshot();
    assert_eq!(
        seen.pa_blocks_made,
        seen.pa_blocks_used + seen.pa_blocks_discarded + seen.pa_blocks_now,
        "{what}: {seen:?}"
    );
}

fn finish(v: Volume, device: &MemoryDevice, what: &str) {
    v.close().unwrap_or_else(|e| panic!("{what}: close: {e}"));
    if have("e2fsck") {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("image");
        std::fs::write(&path, device.to_vec()).expect("saved");
        assert_e2fsck_clean(&path);
    }
}

/// One writer: small, large, sparse and appending writes until there is no room; every file's fsync must
/// succeed, since all that was accepted has a place. Bytes accepted.
fn write_until_full(v: &Volume, writer: u64, round: u64) -> u64 {
    let mut accepted = 0;
    for n in 0.. {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .open(v, format!("w{writer}-{n}"));
        let file = match file {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NoSpace => return accepted,
            Err(e) => panic!("create: {e}"),
        };
        let kind = (writer + n + round) % 4;
        let data = vec![1 + writer as u8; [700, 3000, 65_536, 9000][kind as usize]];
        let mut full = false;
        for k in 0..[1, 30, 40, 60][kind as usize] {
            let at = match kind {
                1 => (k * 7919 % 64) * 20_000,
                _ => k * data.len() as u64,
            };
            match file.write_at(&data, at) {
                Ok(n) => {
                    accepted += n as u64;
                    if n < data.len() {
                        full = true;
                    }
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                    full = true;
                }
            }
            if full {
                break;
            }
        }
        if n % 3 == 0 || full {
            file.sync_all().unwrap_or_else(|e| {
                panic!("writer {writer}, round {round}: accepted and lost: {e}")
            });
        }
        if full {
            return accepted;
        }
    }
    unreachable!("the volume is not endless")
}

fn storm(delayed: bool, preallocation: Preallocation, features: &'static str, rounds: u64) {
    let what = format!("delayed {delayed}, {preallocation:?}, `{features}`");
    let device = Arc::new(MemoryDevice::new(12 << 20));
    let shared: SharedDevice = device.clone();
    VolumeBuilder::new()
        .size(12 << 20)
        .block_size(1024)
        .features(features)
        .create_on(&shared)
        .expect("made");
    let v = options(delayed, preallocation)
        .open_device(shared)
        .expect("opened");
    // The directory grows once, and inode tables are touched.
    write_until_full(&v, 0, 0);
    let empty = |v: &Volume| {
        let names: Vec<_> = v
            .read_dir("/")
            .expect("listed")
            .map(|e| e.expect("entry").file_name().to_owned())
            .filter(|n| n.to_string_lossy().starts_with('w'))
            .collect();
        for name in names {
            v.remove_file(name).expect("removed");
        }
        v.sync().expect("synced");
    };
    empty(&v);
    let mut before = None;
    for round in 1..=rounds {
        let accepted = AtomicU64::new(0);
        std::thread::scope(|s| {
            for writer in 0..WRITERS {
                let (v, accepted) = (&v, &accepted);
                s.spawn(move || {
                    accepted.fetch_add(write_until_full(v, writer, round), Ordering::Relaxed);
                });
            }
        });
        v.sync()
            .unwrap_or_else(|e| panic!("{what}, round {round}: sync: {e}"));
        let accepted = accepted.into_inner();
        assert!(
            accepted > 4 << 20,
            "{what}, round {round}: {accepted} bytes"
        );
        nothing_is_held(&v, &what);
        empty(&v);
        nothing_is_held(&v, &what);
        // Names of six writers make the directory grow in the first round.
        let free = v.statfs().expect("statfs").blocks_free;
        let expected = *before.get_or_insert(free);
        if round > 2 {
            assert_eq!(free, expected, "{what}, round {round}: blocks leaked");
        } else {
            before = Some(free);
        }
    }
    finish(v, &device, &what);
}

#[test]
fn storms_leave_every_block_accounted_for() {
    common::guarded("storms", LIMIT, || {
        for (delayed, preallocation, features, rounds) in [
            (true, Preallocation::Tree, "", 14),
            (false, Preallocation::Tree, "", 12),
            (true, Preallocation::Tree, "quota", 6),
            (true, Preallocation::Tree, "^extent,^64bit", 6),
            (false, Preallocation::List, "", 4),
            (true, Preallocation::None, "", 4),
            (false, Preallocation::None, "^extent,^64bit", 4),
        ] {
            storm(delayed, preallocation, features, rounds);
        }
    });
}

/// Sets a hard limit where the user's quota entry is on the device. Quota blocks have no checksum.
fn limit_quota(device: &MemoryDevice, uid: u32, kib: u64) -> bool {
    let bytes = device.to_vec();
    let mut done = false;
    for at in (0..bytes.len() - 72).step_by(8) {
        let u64_at = |o: usize| u64::from_le_bytes(bytes[at + o..at + o + 8].try_into().unwrap());
        // The id, no limits, one inode, one block.
        if u64_at(0) == u64::from(uid)
            && (u64_at(8), u64_at(16), u64_at(24)) == (0, 0, 1)
            && (u64_at(32), u64_at(40)) == (0, 0)
            && u64_at(48) == 1024
        {
            let mut sector = bytes[at / 512 * 512..][..1024].to_vec();
            let place = at % 512 + 32;
            sector[place..place + 8].copy_from_slice(&kib.to_le_bytes());
            device
                .write_at(DevOffset((at / 512 * 512) as u64), &sector, Flags::empty())
                .expect("written");
            done = true;
        }
    }
    done
}

/// A user's delayed and direct writes, together and from several threads, end at the limit: refused when they
/// are written, never lost, and not one block early.
#[test]
fn quota_is_promised_when_written() {
    const UID: u32 = 77_777;
    const KIB: u64 = 600;
    for (delayed, direct) in [(true, false), (false, false), (true, true)] {
        common::guarded("quota", LIMIT, move || {
            let what = format!("delayed {delayed}, direct {direct}");
            let device = Arc::new(MemoryDevice::new(12 << 20));
            let shared: SharedDevice = device.clone();
            VolumeBuilder::new()
                .size(12 << 20)
                .block_size(1024)
                .features("quota")
                .create_on(&shared)
                .expect("made");
            let options = options(delayed, Preallocation::Tree);
            let v = options.open_device(shared.clone()).expect("opened");
            v.write("/first", [5; 1024]).expect("written");
            v.chown("/first", Some(UID), None).expect("owned");
            v.close().expect("closed");
            assert!(limit_quota(&device, UID, KIB), "no entry found");
            let v = options.open_device(shared).expect("opened");
            let files: Vec<_> = (0..4)
                .map(|n| {
                    let name = format!("q{n}");
                    let file = OpenOptions::new()
                        .write(true)
                        .create(true)
                        .direct(direct)
                        .open(&v, &name)
                        .expect("made");
                    v.chown(&name, Some(UID), None).expect("owned");
                    file
                })
                .collect();
            let accepted = AtomicU64::new(1024);
            std::thread::scope(|s| {
                for file in &files {
                    let accepted = &accepted;
                    s.spawn(move || {
                        for k in 0.. {
                            match file.write_at(&[9; 1024], k * 1024) {
                                Ok(n) => accepted.fetch_add(n as u64, Ordering::Relaxed),
                                Err(e) => {
                                    assert_eq!(e.kind(), ErrorKind::QuotaExceeded, "{e}");
                                    break;
                                }
                            };
                        }
                    });
                }
            });
            // What fits the quota may be overwritten, full or not.
            let longest = files
                .iter()
                .max_by_key(|f| f.metadata().expect("known").len());
            let longest = longest.expect("four files");
            longest.write_all_at(&[8; 1024], 0).expect("overwritten");
            for file in &files {
                file.sync_all().expect("accepted, so kept");
            }
            let used = accepted.into_inner();
            // Blocks of the mapping are promised at their worst case, too, for each of four files.
            assert!(used <= KIB * 1024, "{what}: {used} bytes");
            assert!(used >= (KIB - 80) * 1024, "{what}: {used} bytes");
            nothing_is_held(&v, &what);
            // The owner changes while blocks are delayed: the promise goes along.
            for file in &files {
                file.set_len(0).expect("cut");
            }
            files[1].write_all_at(&[3; 4096], 0).expect("room again");
            v.chown("q1", Some(UID + 1), None).expect("given away");
            files[1].write_all_at(&[3; 8192], 4096).expect("not theirs");
            files[1].sync_all().expect("kept");
            drop(files);
            nothing_is_held(&v, &what);
            finish(v, &device, &what);
        });
    }
}

/// Files that are appended to side by side, with little dirt allowed, so that their writeback alternates: each
/// gets room of its own to grow into.
#[test]
fn files_that_grow_side_by_side_stay_in_few_pieces() {
    const JOBS: u64 = 8;
    const BYTES: u64 = 12 << 20;
    for delayed in [true, false] {
        common::guarded("appends", LIMIT, move || {
            let device: SharedDevice = Arc::new(MemoryDevice::new(2 << 30));
            VolumeBuilder::new()
                .size(2 << 30)
                .create_on(&device)
                .expect("made");
            let mut options = options(delayed, Preallocation::Tree);
            options.parts.vfs.dirty_bytes_max = 8 << 20;
            options.parts.vfs.dirty_bytes_background = 4 << 20;
            let v = options.open_device(device).expect("opened");
            let files: Vec<_> = (0..JOBS)
                .map(|n| v.create_file(format!("a{n}")).expect("made"))
                .collect();
            // In turn, as fair threads would.
            let piece = vec![7; 64 << 10];
            for at in (0..BYTES).step_by(piece.len()) {
                for file in &files {
                    file.write_all_at(&piece, at).expect("written");
                }
            }
            let mut pieces = 0;
            for file in &files {
                file.sync_all().expect("durable");
                pieces += file.extents().expect("known").len();
            }
            // Small windows at first: 16, 32, … blocks, until there is something to go by.
            let most = if delayed { 4 } else { 7 } * JOBS as usize;
            assert!(pieces <= most, "delayed {delayed}: {pieces} pieces");
        });
    }
}

/// What a copied file consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blocks {
    Data,
    Unwritten,
}

/// A copy that the end of the volume ends: the target is as long as what was copied, whatever comes free meanwhile.
fn copies_until_full(format: Format, blocks: Blocks) {
    const MIB: u64 = 1 << 20;
    const ROUNDS: usize = 12;
    let device: SharedDevice = Arc::new(MemoryDevice::new(96 << 20));
    let builder = VolumeBuilder::new().format(format).size(96 << 20);
    builder.create_on(&device).expect("made");
    let v = Volume::open_device(device).expect("opened");
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.open(&v, name)
    };
    let create = |name: &str| open(name).expect("created");
    let source = create("source");
    let bytes: Vec<u8> = (0..9 * MIB + 77_777)
        .map(|at| (at / 4096 % 251) as u8 + 1)
        .map(|byte| if blocks == Blocks::Data { byte } else { 0 })
        .collect();
    match blocks {
        Blocks::Data => source.write_all_at(&bytes, 0).expect("written"),
        Blocks::Unwritten => source.allocate(0, bytes.len() as u64).expect("allocated"),
    }
    source.sync_all().expect("durable");
    let ends = AtomicBool::new(false);
    let round = |round: usize| {
        let mut ends_at = String::new();
        for n in 0.. {
            let what = format!("{format:?}, {blocks:?}, round {round}, copy {n}");
            let target = create(&format!("copy-{n}"));
            let copied = match source.copy_range(0, &target, 0, bytes.len() as u64) {
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::NoSpace => 0,
                Err(e) => panic!("{what}: {e}"),
            };
            let size = target.metadata().expect("known").len();
            assert_eq!(size, copied, "{what}: its size, and what was copied");
            let mut back = vec![0; size as usize];
            let read = target.read_at(&mut back, 0).expect("read");
            assert_eq!(read, back.len(), "{what}");
            assert!(back == bytes[..read], "{what}");
            if copied < bytes.len() as u64 {
                ends_at = format!("copy {n} ended at {copied}");
                break;
            }
        }
        let mut removed = 0;
        loop {
            match v.remove_file(format!("copy-{removed}")) {
                Ok(()) => removed += 1,
                Err(e) if e.kind() == ErrorKind::NotFound => break,
                Err(e) => {
                    panic!("{format:?}, {blocks:?}, round {round}, removing copy {removed}: {e}")
                }
            }
        }
        let room = v.statfs().expect("known");
        assert!(
            removed > 1,
            "{format:?}, {blocks:?}, round {round}: {ends_at}, {room:?}"
        );
    };
    std::thread::scope(|scope| {
        // Room comes and goes.
        scope.spawn(|| {
            for n in 0u64.. {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("other-{}", n % 3);
                let Ok(other) = open(&name) else {
                    // There is no room even for a name.
                    continue;
                };
                let _full = other.write_at(&vec![1; (MIB / 4 * (1 + n % 7)) as usize], 0);
                drop(other);
                v.remove_file(&name).expect("removed");
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..ROUNDS).for_each(round);
        }));
        ends.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    v.close().expect("closed");
}

#[test]
fn copies_end_where_the_volume_is_full() {
    copies_until_full(Format::Ext4, Blocks::Data);
    copies_until_full(Format::F2fs, Blocks::Data);
}

#[test]
fn copies_of_unwritten_blocks_end_where_the_volume_is_full() {
    copies_until_full(Format::Ext4, Blocks::Unwritten);
    copies_until_full(Format::F2fs, Blocks::Unwritten);
}
