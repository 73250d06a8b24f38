//! Many writers until an f2fs volume is full: the room of one writer's promise is not given to another one in between, or the next
//! checkpoint has more blocks in use than there are for users, and no mount takes it. And a write that is refused leaves no node
//! behind that nothing names.

use crate::common;
use blockwright::{ErrorKind, OpenOptions, Volume, VolumeOptions};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::sim::turns::Turns;
use blockwright_device::{AlignedBuf, FaultyDevice, MemoryDevice, SharedDevice};
use blockwright_f2fs::{F2fs, inode};
use blockwright_ondisk::f2fs::nat::{ENTRIES_PER_BLOCK, NatEntry, set_entry};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Ino, Nid};
use blockwright_test_support::lab::f2fs::F2Volume;
use blockwright_vfs::engine::Intent;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);
const WRITERS: u64 = 8;
const ROUNDS: u64 = 12;
/// Of a write: some blocks, so that what is promised and not yet in use is never little.
const WRITE: usize = 48 << 10;

/// Writes until there is no room. Every other writer has its promises kept all the time, and so do those whose writes go past the cache.
fn write_until_full(v: &Volume, writer: u64) {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .direct(writer % 3 == 1)
        .open(v, format!("w{writer}"));
    let file = match file {
        Ok(file) => file,
        Err(e) => return assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}"),
    };
    let bytes = vec![1 + writer as u8; WRITE];
    let mut at = 0;
    loop {
        match file.write_at(&bytes, at) {
            Ok(n) => at += n as u64,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                break;
            }
        }
        if writer.is_multiple_of(2) {
            file.sync_data().expect("accepted and lost");
        }
    }
    file.sync_all().expect("accepted and lost");
}

#[test]
fn a_full_volume_can_be_mounted_again() {
    if !common::have_tool("mkfs.f2fs") {
        return;
    }
    common::guarded("full", LIMIT, || {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("image");
        common::mkfs_f2fs(&image, "", 64 << 20);
        let device: SharedDevice = Arc::new(MemoryDevice::load(&image).expect("loaded"));
        let open = || {
            Volume::open_device(Arc::clone(&device)).unwrap_or_else(|e| panic!("not mounted: {e}"))
        };
        let v = open();
        let free = v.statfs().expect("statfs").blocks_free;
        v.close().expect("closed");
        for round in 0..ROUNDS {
            let v = open();
            std::thread::scope(|s| {
                for writer in 0..WRITERS {
                    let v = &v;
                    s.spawn(move || write_until_full(v, writer));
                }
            });
            v.close().expect("closed");
            let v = open();
            for writer in 0..WRITERS {
                let name = format!("w{writer}");
                if v.exists(&name).expect("looked up") {
                    let seen = v.read(&name).expect("read");
                    let wrong = seen.iter().any(|b| *b != 1 + writer as u8);
                    assert!(!wrong, "round {round}: {name}");
                    v.remove_file(&name).expect("removed");
                }
            }
            v.sync().expect("synced");
            let now = v.statfs().expect("statfs").blocks_free;
            assert_eq!(now, free, "round {round}: blocks were lost");
            v.close().expect("closed");
        }
    });
}

/// Our checker and fsck.f2fs find nothing, a leaked node among others.
fn assert_clean(device: &Arc<MemoryDevice>, what: &str) {
    let options = blockwright_check::f2fs::CheckOptions::default();
    let shared: SharedDevice = device.clone();
    let report = blockwright_check::f2fs::check(shared, &options).expect("checked");
    let issues: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{what}: {issues:?}");
    if common::have_tool("fsck.f2fs") {
        common::f2fs::assert_clean(device);
    }
}

fn f2fs(v: &Volume) -> &F2fs {
    let engine = v.vfs().engine().as_any();
    engine.downcast_ref::<F2fs>().expect("f2fs")
}

fn full_volume(left: u64) -> (Arc<MemoryDevice>, Volume) {
    full_volume_with(left, |_| ())
}

/// The same, with more on it.
fn full_volume_with(left: u64, prepare: impl FnOnce(&Volume)) -> (Arc<MemoryDevice>, Volume) {
    let device = common::f2fs::formatted(64 << 20);
    let v = Volume::open_device(device.clone()).expect("mounted");
    prepare(&v);
    // The file that is to be refused has blocks, and all of its names and nodes are on the device.
    let victim = OpenOptions::new()
        .write(true)
        .create(true)
        .direct(true)
        .open(&v, "victim")
        .expect("made");
    victim.write_at(&[1; 8192], 0).expect("written");
    drop(victim);
    let filler = OpenOptions::new()
        .write(true)
        .create(true)
        .open(&v, "filler")
        .expect("made");
    let bytes = vec![7; 256 << 10];
    let mut at = 0;
    while let Ok(n @ 1..) = filler.write_at(&bytes, at) {
        at += n as u64;
    }
    filler.sync_all().expect("synced");
    filler.set_len(at - (left << 12)).expect("cut");
    drop(filler);
    v.sync().expect("synced");
    // A node of the filler may have gone with its blocks.
    while v.statfs().expect("statfs").blocks_free > left {
        let mut open = OpenOptions::new();
        let victim = open.write(true).direct(true).open(&v, "victim");
        let victim = victim.expect("opened");
        let end = victim.metadata().expect("there").len();
        victim.write_at(&[1; 4096], end).expect("written");
        drop(victim);
        v.sync().expect("synced");
    }
    assert_eq!(v.statfs().expect("statfs").blocks_free, left);
    (device, v)
}

/// A node has room and its data has none: the write is refused, and the node is the file's anyway, though nothing else of the
/// file changes before its inode leaves memory.
#[test]
fn a_refused_write_leaks_no_node() {
    common::guarded("refused", LIMIT, || {
        // Behind what the inode, a direct node and an indirect one name: one, two and three nodes are made.
        for at in [5_u64 << 20, 15 << 20, 8 << 30] {
            for left in 1..=4 {
                let what = format!("at {at}, {left} blocks left");
                let (device, v) = full_volume(left);
                let victim = OpenOptions::new()
                    .write(true)
                    .direct(true)
                    .open(&v, "victim")
                    .expect("opened");
                let e = victim.write_at(&[2; 64 << 10], at).expect_err(&what);
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{what}: {e}");
                drop(victim);
                v.vfs().drop_caches();
                v.sync().expect("synced");
                let v = match left % 2 {
                    0 => v,
                    _ => {
                        // What is on the device is what counts.
                        v.close().expect("closed");
                        assert_clean(&device, &what);
                        Volume::open_device(device.clone()).expect("mounted")
                    }
                };
                v.remove_file("victim").expect("removed");
                v.close().expect("closed");
                assert_clean(&device, &what);
            }
        }
    });
}

/// Writeback may have a file in its hands that loses its last name: what comes to the engine after the inode was freed makes no node.
#[test]
fn a_freed_inode_gets_no_node() {
    common::guarded("freed", LIMIT, || {
        let device = common::f2fs::formatted(64 << 20);
        let v = Volume::open_device(device.clone()).expect("mounted");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .open(&v, "victim")
            .expect("made");
        file.write_at(&[1; 8192], 0).expect("written");
        file.sync_all().expect("synced");
        let inode = Arc::clone(&**file.handle().inode());
        drop(file);
        v.remove_file("victim").expect("removed");
        let engine = v.vfs().engine();
        for at in [5_u64 << 20, 15 << 20] {
            let range = at..at + 4096;
            let e = engine.reserve(&inode, range.clone()).expect_err("reserved");
            assert_eq!(e.kind(), ErrorKind::Stale, "{e}");
            let e = engine
                .allocate(&inode, range, at + 4096, Intent::Direct)
                .expect_err("allocated");
            assert_eq!(e.kind(), ErrorKind::Stale, "{e}");
        }
        v.close().expect("closed");
        assert_clean(&device, "freed");
    });
}

/// A checkpoint makes usable what was freed before it. A caller that finds no room though nothing was freed gets none, however often it asks.
#[test]
fn no_checkpoint_is_written_for_a_failure_that_none_cures() {
    common::guarded("in vain", LIMIT, || {
        // Room for the inode of a symbolic link, and not for the block with its target.
        let (device, v) = full_volume(1);
        let target = "t".repeat(4000);
        let make = |n: u32| {
            let e = v.symlink(&target, format!("link{n}")).expect_err("no room");
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        };
        let written = || v.vfs().stats().get("checkpoints").expect("counted");
        make(0);
        let before = written();
        (1..=20).for_each(make);
        assert_eq!(written() - before, 0);
        // What was freed is usable at once.
        v.remove_file("filler").expect("removed");
        v.symlink(&target, "link").expect("room");
        v.close().expect("closed");
        assert_clean(&device, "in vain");
    });
}

/// The same for data: a direct write asks for blocks as often as it is tried.
#[test]
fn no_checkpoint_is_written_for_a_write_that_none_helps() {
    common::guarded("in vain", LIMIT, || {
        let (device, v) = full_volume(0);
        let victim = OpenOptions::new()
            .write(true)
            .direct(true)
            .open(&v, "victim")
            .expect("opened");
        let end = victim.metadata().expect("there").len();
        let write = || victim.write_at(&[2; 4096], end);
        let written = || v.vfs().stats().get("checkpoints").expect("counted");
        // Another write may have left something that a checkpoint frees.
        write().expect_err("no room");
        let before = written();
        for _ in 0..20 {
            let e = write().expect_err("no room");
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        }
        assert_eq!(written() - before, 0);
        // The engine itself writes one where blocks were freed.
        v.remove_file("filler").expect("removed");
        let inode = v.vfs().resolve(v.cred(), b"victim", true).expect("there");
        let engine = v.vfs().engine();
        let range = end..end + 4096;
        let target = engine
            .allocate(&inode, range, end + 4096, Intent::Direct)
            .expect("room");
        engine.abandon_write(&inode, &target);
        assert_eq!(write().expect("room"), 4096);
        drop((victim, inode));
        v.close().expect("closed");
        assert_clean(&device, "in vain");
    });
}

/// Room that was charged for a block goes back when the block cannot be written.
#[test]
fn a_charge_goes_back_with_the_error_of_the_device() {
    common::guarded("a charge", LIMIT, || {
        let device = common::f2fs::formatted(64 << 20);
        let faulty = Arc::new(FaultyDevice::new(device.clone(), 1));
        let mut options = VolumeOptions::default();
        options.parts.f2fs.commit_interval = Duration::from_secs(3600);
        let v = options.open_device(faulty.clone()).expect("mounted");
        v.write("small", [1; 1000]).expect("written");
        v.sync().expect("synced");
        let free = || v.statfs().expect("statfs").blocks_free;
        let before = free();
        let small = OpenOptions::new().write(true).open(&v, "small");
        let small = small.expect("opened");
        faulty.add(Rule::new(Ops::WRITE, Fault::Errno(5)).always());
        for _ in 0..3 {
            // Its data would have to leave the inode.
            let e = small.set_len(100_000).expect_err("not written");
            assert_eq!(e.kind(), ErrorKind::Io, "{e}");
            assert_eq!(free(), before);
        }
        faulty.heal();
        small.set_len(100_000).expect("cut");
        assert_eq!(free(), before - 1);
        drop(small);
        v.close().expect("closed");
        assert_clean(&device, "a charge");
    });
}

/// Numbers of nodes that are gone can be taken again after the next checkpoint. Without a number a creation has one written, though no block was freed. Where
/// none helps, nothing is written, and what was charged goes back.
#[test]
fn a_creation_without_a_node_number() {
    const LEFT: u32 = 20;
    common::guarded("node numbers", LIMIT, || {
        let device = common::f2fs::formatted(64 << 20);
        let mut image = F2Volume::new(device.snapshot());
        // All numbers but some are another node's.
        let taken = NatEntry {
            version: 0,
            ino: Ino::ROOT,
            block: image.geo.main,
        };
        let mut block = vec![0; BLOCK_SIZE];
        for position in 0..ENTRIES_PER_BLOCK {
            set_entry(&mut block, position, taken).expect("a position");
        }
        let per = ENTRIES_PER_BLOCK as u32;
        for index in 1..image.geo.nat_blocks() {
            let (at, _) = image.nat_place(Nid(index * per));
            image.put(at, &block);
        }
        for nid in (Ino::ROOT.0 + 1 + LEFT..per).map(Nid) {
            image.set_nat(nid, taken);
        }
        let mut options = VolumeOptions::default();
        options.parts.f2fs.commit_interval = Duration::from_secs(3600);
        let device: SharedDevice = Arc::new(image.device.snapshot());
        let v = options.open_device(device).expect("mounted");
        for n in 0..LEFT {
            v.write(format!("n{n}"), b"").expect("a number");
        }
        let free = || v.statfs().expect("statfs").blocks_free;
        let written = || v.vfs().stats().get("checkpoints").expect("counted");
        let before = (free(), written());
        for _ in 0..3 {
            let e = v.write("one more", b"").expect_err("no number");
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            assert!(e.to_string().contains("node numbers"), "{e}");
            assert_eq!((free(), written()), before);
        }
        v.remove_file("n3").expect("removed");
        v.write("another", b"").expect("a number");
        assert_eq!((free(), written()), (before.0, before.1 + 1));
    });
}

/// Blocks of a directory that is gone are not written any more, wherever they were: hashes of names reach behind 4 GiB, and damaged sizes anywhere.
#[test]
fn blocks_of_a_removed_directory_leave_memory() {
    common::guarded("huge directory", LIMIT, || {
        for at in [3_u64, (1 << 20) + 5, 1 << 39] {
            let device = common::f2fs::formatted(64 << 20);
            let v = Volume::open_device(device.clone()).expect("mounted");
            v.create_dir("d").expect("made");
            let dir = v.vfs().resolve(v.cred(), b"d", true).expect("there");
            let key = (inode::f2fs(&dir).ino, at);
            let blocks = &f2fs(&v).fs().nodes.blocks;
            blocks.insert_dirty(key, AlignedBuf::zeroed(4096));
            dir.update_attr(|a| a.size = (at + 1) << 12);
            drop(dir);
            v.remove_dir("d").expect("removed");
            assert!(!blocks.is_cached(key), "block {at}");
            v.close().expect("closed");
            assert_clean(&device, &format!("block {at}"));
        }
    });
}

/// A directory leaves its inode while another thread takes the last blocks of the volume. Whoever gets them, each name that was there or was made is found.
#[test]
fn a_directory_leaves_its_inode_while_the_last_blocks_go() {
    // One more fits into the inode.
    const THERE: usize = 89;
    const MORE: usize = 10;
    common::guarded("leaves its inode", LIMIT, || {
        let (mut left_it, mut refused) = (0, 0);
        for seed in 0..12 {
            let what = format!("seed {seed}");
            let (device, v) = full_volume_with(1 + seed % 3, |v| {
                v.create_dir("d").expect("made");
                v.write("file", b"named often").expect("written");
                for n in 0..THERE {
                    v.hard_link("file", format!("d/there{n:06}"))
                        .expect("named");
                }
            });
            let victim = OpenOptions::new()
                .write(true)
                .direct(true)
                .open(&v, "victim")
                .expect("opened");
            let before = victim.metadata().expect("there").len();
            let turns = Turns::new(2, seed);
            let (made, taken) = std::thread::scope(|s| {
                let naming = s.spawn(|| {
                    let _turn = turns.take_part(0, true);
                    let link = |n: &usize| v.hard_link("file", format!("d/new{n:06}")).map(|()| *n);
                    let (made, failed): (Vec<_>, Vec<_>) =
                        (0..MORE).map(|n| link(&n)).partition(Result::is_ok);
                    for e in failed.into_iter().filter_map(Result::err) {
                        assert_eq!(e.kind(), ErrorKind::NoSpace, "{what}: {e}");
                    }
                    made.into_iter().flatten().collect::<Vec<usize>>()
                });
                let writing = s.spawn(|| {
                    let _turn = turns.take_part(1, true);
                    let at = |n: u64| before + (n << 12);
                    let write = |n: &u64| victim.write_at(&[3; 4096], at(*n)).is_ok();
                    (0..8).take_while(write).count() as u64
                });
                (
                    naming.join().expect("named"),
                    writing.join().expect("wrote"),
                )
            });
            match made.len() == MORE {
                true => left_it += 1,
                false => refused += 1,
            }
            drop(victim);
            let check = |v: &Volume| {
                let names = v.read_dir("d").expect("listed").count();
                assert_eq!(names, THERE + made.len(), "{what}");
                let there = (0..THERE).map(|n| format!("d/there{n:06}"));
                let new = made.iter().map(|n| format!("d/new{n:06}"));
                for name in there.chain(new) {
                    assert_eq!(v.read(&name).expect(&name), b"named often", "{what}");
                }
                let size = v.metadata("victim").expect("there").len();
                assert_eq!(size, before + (taken << 12), "{what}");
            };
            check(&v);
            v.close().expect("closed");
            assert_clean(&device, &what);
            let v = Volume::open_device(device.clone()).expect("mounted");
            check(&v);
            v.close().expect("closed");
        }
        assert!(
            left_it > 0 && refused > 0,
            "{left_it} left it, {refused} were refused"
        );
    });
}

/// Writes files of 4 to 9 MB, syncs some, removes some, for so long.
fn churn(v: &Volume, writer: u64, seed: u64, rounds: u64) {
    let mut rng = SplitMix64::new(seed ^ (writer << 32));
    let bytes = vec![1 + writer as u8; 1 << 20];
    for n in 0..rounds {
        let name = format!("w{writer}-{}", n % 4);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .direct(writer % 2 == 1)
            .open(v, &name);
        if let Ok(file) = file {
            let end = (4 << 20) + common::below(&mut rng, 5 << 20) / 4096 * 4096;
            let step = 4096 << common::below(&mut rng, 9);
            let mut at = 0;
            while at < end {
                match file.write_at(&bytes[..step as usize], at) {
                    Ok(n) => at += n as u64,
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                        break;
                    }
                }
            }
            if common::below(&mut rng, 2) == 0 {
                file.sync_all().expect("accepted and lost");
            }
        }
        if common::below(&mut rng, 3) > 0 {
            let name = format!("w{writer}-{}", common::below(&mut rng, 4));
            // It may not be there.
            let _ = v.remove_file(name);
        }
        if common::below(&mut rng, 4) == 0 {
            v.vfs().drop_caches();
        }
    }
}

/// `FULL_ROUNDS` says how many rounds, for a longer search.
#[test]
fn churn_on_a_full_volume_leaks_no_node() {
    common::guarded("churn", 30 * LIMIT, || {
        let seed = common::seed(14);
        let rounds = std::env::var("FULL_ROUNDS").map_or(1, |r| r.parse().expect("a number"));
        for round in 0..rounds {
            let device = common::f2fs::formatted(160 << 20);
            let v = Volume::open_device(device.clone()).expect("mounted");
            std::thread::scope(|s| {
                for writer in 0..6 {
                    let v = &v;
                    s.spawn(move || churn(v, writer, seed + round, 24));
                }
            });
            v.close().expect("closed");
            assert_clean(&device, &format!("round {round}"));
        }
    });
}

/// Nodes are freed while they are written ahead of a checkpoint: each of their blocks is given up, wherever the two threads meet.
#[test]
fn nodes_freed_while_they_are_written_ahead_leave_no_block() {
    const FILES: usize = 60;
    common::guarded("written ahead", LIMIT, || {
        for seed in 0..6 {
            let device = common::f2fs::formatted(64 << 20);
            let mut options = VolumeOptions::default();
            options.parts.f2fs.checkpoint_merge = Some(false);
            options.parts.vfs.dirty_bytes_background = u64::MAX;
            let v = options.open_device(device.clone()).expect("mounted");
            v.vfs().tune("checkpoint_nodes_left", 0).expect("tuned");
            let turns = Turns::new(2, seed);
            std::thread::scope(|s| {
                s.spawn(|| {
                    let _turn = turns.take_part(0, true);
                    for n in 0..FILES {
                        let name = format!("f{n}");
                        let made = OpenOptions::new().write(true).create(true).open(&v, &name);
                        // A node for each of these, and none for data.
                        let file = made.expect("made");
                        for mib in [0, 5, 10, 15, 20] {
                            file.write_at(&[1; 4096], mib << 20).expect("written");
                        }
                        drop(file);
                        v.remove_file(&name).expect("removed");
                    }
                });
                s.spawn(|| {
                    let _turn = turns.take_part(1, true);
                    for _ in 0..4 * FILES {
                        f2fs(&v).fs().checkpoints.write_ahead_of_checkpoint();
                    }
                });
            });
            v.close().expect("closed");
            assert_clean(&device, &format!("seed {seed}"));
        }
    });
}

/// A node of a removed file cannot be read for a while. What was freed before it is named no more, and the next mount frees the rest.
#[test]
fn a_file_that_was_freed_in_part_is_freed_by_the_next_mount() {
    common::guarded("freed in part", LIMIT, || {
        for of_indirect in [false, true] {
            let device = common::f2fs::formatted(64 << 20);
            let options = VolumeOptions::default();
            let v = options.open_device(device.clone()).expect("mounted");
            let made = OpenOptions::new()
                .write(true)
                .create(true)
                .open(&v, "victim");
            let file = made.expect("made");
            // In the inode, two direct nodes, and two below the first indirect one.
            for mib in [0, 5, 10, 15, 17] {
                file.write_at(&[1; 4096], mib << 20).expect("written");
            }
            file.sync_all().expect("synced");
            let nids = inode::f2fs(file.handle().inode()).body.read().inode.nids;
            let bad = match of_indirect {
                false => nids[1],
                true => {
                    let node = f2fs(&v).fs().nodes.cache.find(nids[2]).expect("in memory");
                    Nid(u32::from_le_bytes(node[4..8].try_into().expect("a word")))
                }
            };
            drop(file);
            v.close().expect("closed");

            let faulty = Arc::new(FaultyDevice::new(device.clone(), 1));
            let v = options.open_device(faulty.clone()).expect("mounted");
            let at = u64::from(f2fs(&v).fs().nodes.nat.get(bad).expect("known").block.0) << 12;
            let rule = Rule::new(Ops::READ, Fault::Errno(5)).range(at..at + 4096);
            faulty.add(rule.always());
            v.remove_file("victim").expect("removed");
            assert!(faulty.fired() > 0, "the node was not read");
            faulty.heal();
            let e = v.close().expect_err("the eviction's error is reported");
            assert_eq!(e.kind(), ErrorKind::Io, "{e}");

            let v = options.open_device(device.clone()).expect("mounted again");
            v.close().expect("closed");
            assert_clean(&device, "freed in part");
        }
    });
}
