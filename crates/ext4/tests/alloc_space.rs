//! Fragmentation, full volumes, concurrent allocators, deep trees and enormous volumes.

mod support;

use blockwright_device::{BlockDevice, Flags, HostDevice, MemoryDevice, OpenMode};
use blockwright_ext4::comparison::Preallocation;
use blockwright_ext4::{Ext4, Options};
use blockwright_vfs::engine::{Attributes, Data, Names, Space, Volume};
use blockwright_vfs::engine::{FallocMode, Intent, Place};
use blockwright_vfs::{ErrorKind, FileKind, Inode, NewInode, Timestamp};
use std::ops::Range;
use std::sync::Arc;
use support::{Image, Mounted, fsck, have, run, save};

fn file() -> NewInode {
    NewInode {
        kind: FileKind::Regular,
        perm: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        symlink: Vec::new(),
        now: Timestamp::now(),
        xattrs: Vec::new(),
    }
}

fn create(engine: &Ext4, name: &str) -> Arc<Inode> {
    let root = engine.load(engine.format().root).expect("root");
    engine
        .create(&root, name.as_bytes(), &file())
        .expect("create")
}

/// Reserves, allocates and commits a byte range, without writing data. Returns the device offsets.
fn fill(
    engine: &Ext4,
    inode: &Arc<Inode>,
    range: Range<u64>,
    intent: Intent,
) -> Result<Vec<(u64, u64)>, ErrorKind> {
    if intent == Intent::Writeback {
        engine.reserve(inode, range.clone()).map_err(|e| e.kind())?;
    }
    inode.update_attr(|a| a.size = a.size.max(range.end));
    let mut runs = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let t = engine
            .allocate(inode, at..range.end, range.end, intent)
            .map_err(|e| e.kind())?;
        if t.commit {
            engine
                .commit_write(inode, &t, range.end)
                .map_err(|e| e.kind())?;
        }
        runs.push((t.device.expect("on the device").0, t.bytes));
        at += t.bytes;
    }
    Ok(runs)
}

/// Extents as the format can store them at best: stretches that continue each other, cut at 128 MiB.
fn extents(engine: &Ext4, inode: &Arc<Inode>) -> u64 {
    let block = u64::from(engine.format().block_bytes);
    let (mut at, mut count) = (0, 0);
    while at < inode.size() {
        let m = engine.map(inode, at, inode.size() - at).expect("map");
        if let Place::Mapped(_) | Place::Unwritten(_) = m.place {
            count += (m.bytes / block).div_ceil(32768);
        }
        at = m.offset + m.bytes;
    }
    count
}

fn counter(engine: &Ext4, name: &str) -> u64 {
    let all = engine.fs().alloc.counters();
    all.iter().find(|c| c.0 == name).map_or(0, |c| c.1)
}

fn close_file(engine: &Ext4, inode: Arc<Inode>) {
    engine.release_write(&inode);
    engine.evict(&inode).expect("evict");
}

#[test]
fn a_gigabyte_is_eight_extents() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    // However it arrives: at once, in writeback's pieces, or in small direct writes.
    for piece in [1 << 30, 16 << 20, 256 << 10] {
        let image = Image::make(4 << 20, &["-t", "ext4", "-E", "lazy_itable_init=1"]);
        let device = HostDevice::open(&image.path, OpenMode::default()).expect("open");
        let engine = Ext4::mount(device, Options::default()).expect("mount");
        let inode = create(&engine, "big");
        let intent = if piece < 1 << 20 {
            Intent::Direct
        } else {
            Intent::Writeback
        };
        for at in (0..1u64 << 30).step_by(piece) {
            fill(&engine, &inode, at..at + piece as u64, intent).expect("fill");
        }
        let found = extents(&engine, &inode);
        // Growing windows cost the first few.
        let most = if piece == 1 << 30 { 8 } else { 12 };
        assert!(found <= most, "{found} extents in pieces of {piece}");
        close_file(&engine, inode);
        engine.unmount().expect("unmount");
        drop(engine);
        fsck(&image.path).expect("clean");
    }
}

/// Written back in turn, as the flusher does, they must not get into each other's way: the first extent is a whole one, too.
#[test]
fn streams_beside_each_other_have_whole_extents() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    const PIECE: u64 = 16 << 20;
    const EACH: u64 = 512 << 20;
    let image = Image::make(4 << 20, &["-t", "ext4", "-E", "lazy_itable_init=1"]);
    let device = HostDevice::open(&image.path, OpenMode::default()).expect("open");
    let engine = Ext4::mount(device, Options::default()).expect("mount");
    let streams: Vec<_> = (0..2)
        .map(|k| create(&engine, &format!("stream{k}")))
        .collect();
    for at in (0..EACH).step_by(PIECE as usize) {
        for inode in &streams {
            fill(&engine, inode, at..at + PIECE, Intent::Writeback).expect("fill");
        }
    }
    for inode in streams {
        assert_eq!(extents(&engine, &inode), EACH.div_ceil(128 << 20));
        close_file(&engine, inode);
    }
    engine.unmount().expect("unmount");
    drop(engine);
    fsck(&image.path).expect("clean");
}

/// Every reservation that succeeds is honoured, and the volume can be filled to the last block.
#[test]
fn a_full_volume_keeps_its_promises() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    for args in [
        &["-t", "ext4", "-b", "1024", "-m", "0"][..],
        &["-t", "ext4", "-b", "4096", "-m", "0"],
        &["-t", "ext3", "-b", "1024", "-m", "0"],
    ] {
        let image = Image::make(24 << 10, args);
        let device: Arc<MemoryDevice> = Arc::new(image.load());
        let engine = Ext4::mount(device.clone(), Options::default()).expect("mount");
        let block = u64::from(engine.format().block_bytes);
        for round in 0..3 {
            let before = engine.statfs().expect("statfs").blocks_free;
            let mut files = Vec::new();
            // Reserve first, everywhere, scattered; allocate only when nothing more can be reserved.
            let mut full = false;
            for f in 0..6u64 {
                let inode = create(&engine, &format!("r{round}f{f}"));
                let mut ranges = Vec::new();
                let mut at = 0;
                while !full && ranges.len() < 600 {
                    let len = 1 + (at * 7 + f) % 9;
                    let range = at * block..(at + len) * block;
                    match engine.reserve(&inode, range.clone()) {
                        Ok(()) => ranges.push(range),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::NoSpace);
                            full = true;
                        }
                    }
                    at += len + 1;
                }
                files.push((inode, ranges));
            }
            for (inode, ranges) in &files {
                for range in ranges {
                    fill(&engine, inode, range.clone(), Intent::Writeback).unwrap_or_else(|e| {
                        panic!("{args:?} round {round}: a promise was broken: {e:?}")
                    });
                }
            }
            // Then to the brim, block by block.
            let last = create(&engine, &format!("r{round}last"));
            let mut at = 0;
            while fill(&engine, &last, at * block..(at + 1) * block, Intent::Direct).is_ok() {
                at += 1;
            }
            let left = engine.statfs().expect("statfs");
            assert!(left.blocks_available <= 8, "{args:?}: {left:?}");
            assert!(
                left.blocks_free <= (24 << 20) / block / 50,
                "{args:?}: {left:?}"
            );
            assert_eq!(counter(&engine, "alloc_blocks_claimed"), 0);
            // And empty again: freed blocks are usable at once, a commit is forced when needed.
            files.push((last, Vec::new()));
            for (inode, _) in files {
                engine
                    .truncate(&inode, 0, Timestamp::now())
                    .expect("truncate");
                close_file(&engine, inode);
            }
            let after = engine.statfs().expect("statfs").blocks_free;
            assert_eq!(after, before, "{args:?} round {round}: blocks leaked");
        }
        engine.unmount().expect("unmount");
        drop(engine);
        let dir = tempfile::tempdir().expect("dir");
        fsck(&save(&device, dir.path(), "done")).expect("clean");
    }
}

#[test]
fn concurrent_allocators_never_share_a_block() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let image = Image::make(256 << 10, &["-t", "ext4", "-b", "4096"]);
    let device: Arc<MemoryDevice> = Arc::new(image.load());
    let engine = Ext4::mount(device.clone(), Options::default()).expect("mount");
    let inodes: Vec<_> = (0..8).map(|i| create(&engine, &format!("t{i}"))).collect();
    let runs: Vec<Vec<(u64, u64)>> = std::thread::scope(|s| {
        let threads: Vec<_> = inodes
            .iter()
            .enumerate()
            .map(|(i, inode)| {
                let engine = &engine;
                s.spawn(move || {
                    let mut runs = Vec::new();
                    for n in 0..60u64 {
                        let len = (1 + (n * 13 + i as u64) % 30) * 4096;
                        let start = n * 40 * 4096;
                        let intent = if n % 2 == 0 {
                            Intent::Direct
                        } else {
                            Intent::Writeback
                        };
                        runs.extend(fill(engine, inode, start..start + len, intent).expect("fill"));
                        if n % 20 == 19 {
                            // Freed and allocated again while others allocate.
                            engine
                                .truncate(inode, 0, Timestamp::now())
                                .expect("truncate");
                            runs.clear();
                        }
                    }
                    for n in 0..20u64 {
                        let start = n * 9 * 4096;
                        runs.extend(
                            fill(engine, inode, start..start + 8 * 4096, Intent::Direct)
                                .expect("fill"),
                        );
                    }
                    runs
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("thread"))
            .collect()
    });
    let mut all: Vec<(u64, u64)> = runs.into_iter().flatten().collect();
    all.sort_unstable();
    for pair in all.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
    for inode in inodes {
        close_file(&engine, inode);
    }
    engine.unmount().expect("unmount");
    drop(engine);
    let dir = tempfile::tempdir().expect("dir");
    fsck(&save(&device, dir.path(), "done")).expect("clean");
}

/// Trees of several levels: grown by scattered writes, punched, shifted, cut and emptied.
#[test]
fn deep_trees_stay_valid() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let image = Image::make(128 << 10, &["-t", "ext4", "-b", "1024"]);
    let dir = tempfile::tempdir().expect("dir");
    let device: Arc<MemoryDevice> = Arc::new(image.load());
    let engine = Ext4::mount(device.clone(), Options::default()).expect("mount");
    engine.fs().alloc.set_preallocation(Preallocation::None);
    let check = |what: &str| {
        engine.sync_volume().expect("sync");
        engine
            .fs()
            .volume
            .journal
            .flush_checkpoint()
            .expect("checkpoint");
        let path = save(&device, dir.path(), "now");
        let out = run("e2fsck", &["-fy", path.to_str().expect("path")]);
        // Replaying the journal is no damage; advice on the tree's shape is none either.
        let text = String::from_utf8_lossy(&out.stdout);
        let text: Vec<&str> = text.lines().filter(|l| !l.contains("could be")).collect();
        let text = text.join("\n");
        assert!(out.status.code().is_some_and(|c| c <= 1), "{what}: {text}");
        assert!(
            !text.contains("nvalid") && !text.contains("corrupt") && !text.contains("differences"),
            "{what}: {text}"
        );
    };
    let inode = create(&engine, "deep");
    let block = 1024u64;
    // Every other block, in an order that splits nodes in the middle.
    let n = 20_000u64;
    for i in 0..n {
        let at = (i * 7919 % n) * 2;
        fill(
            &engine,
            &inode,
            at * block..(at + 1) * block,
            Intent::Direct,
        )
        .expect("fill");
    }
    assert_eq!(extents(&engine, &inode), n);
    check("grown");
    let now = Timestamp::now();
    let go = |mode, range: Range<u64>| {
        engine
            .fallocate(&inode, range.start * block..range.end * block, mode, now)
            .expect("fallocate");
    };
    go(FallocMode::PunchHole, 10_000..20_000);
    check("punched");
    go(FallocMode::InsertRange, 4_000..4_100);
    check("inserted");
    go(FallocMode::CollapseRange, 9_000..18_001);
    check("collapsed");
    go(FallocMode::ZeroRange { keep_size: false }, 3_000..5_000);
    check("zeroed");
    go(FallocMode::Allocate { keep_size: true }, 0..20_000);
    check("filled");
    engine
        .truncate(&inode, 7_001 * block, now)
        .expect("truncate");
    check("cut");
    let m = engine.map(&inode, 7_001 * block, block).expect("map");
    assert_eq!(m.place, Place::Hole);
    engine.truncate(&inode, 0, now).expect("truncate");
    assert_eq!(inode.attr().blocks512, 0);
    close_file(&engine, inode);
    engine.unmount().expect("unmount");
    drop(engine);
    fsck(&save(&device, dir.path(), "done")).expect("clean");
}

/// 4 TiB, sparse: mounting and allocating touch a few groups. (16 TiB mount in 50 ms too, but the host takes
/// half a minute to remove the image.)
#[test]
fn an_enormous_volume_costs_what_is_touched() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let args = [
        "-t",
        "ext4",
        "-E",
        "lazy_itable_init=1,nodiscard",
        "-O",
        "^has_journal,^resize_inode",
        "-N",
        "1048576",
    ];
    let image = Image::make(4 << 30, &args);
    let device = HostDevice::open(&image.path, OpenMode::default()).expect("open");
    let started = std::time::Instant::now();
    let engine = Ext4::mount(device, Options::default()).expect("mount");
    let mounted = started.elapsed();
    for i in 0..20 {
        let inode = create(&engine, &format!("f{i}"));
        fill(&engine, &inode, 0..64 << 20, Intent::Writeback).expect("fill");
        assert!(extents(&engine, &inode) <= 2);
        close_file(&engine, inode);
    }
    assert!(counter(&engine, "alloc_bitmaps_loaded") < 40);
    assert!(mounted.as_secs_f64() < 2.0, "mounting took {mounted:?}");
    engine.unmount().expect("unmount");
}

/// What the kernel reports for the same image.
#[test]
fn statfs_agrees_with_the_kernel() {
    if !have("mke2fs") {
        return;
    }
    for args in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext2", "-b", "2048"],
        &["-t", "ext4", "-O", "meta_bg,^resize_inode,^flex_bg"],
    ] {
        let image = Image::make(48 << 10, args);
        let engine = Ext4::mount(
            Arc::new(image.load()),
            Options {
                read_only: true,
                ..Options::default()
            },
        )
        .expect("mount");
        let ours = engine.statfs().expect("statfs");
        let Some(mounted) = Mounted::new(&image.path, "ro") else {
            return;
        };
        let mount_point = mounted.path().to_str().expect("path");
        let theirs = run("stat", &["-f", "-c", "%b %f %a %c %d", mount_point]);
        let theirs = String::from_utf8_lossy(&theirs.stdout).trim().to_owned();
        let ours = format!(
            "{} {} {} {} {}",
            ours.blocks, ours.blocks_free, ours.blocks_available, ours.files, ours.files_free
        );
        assert_eq!(ours, theirs, "{args:?}");
    }
}

/// Only free blocks are discarded, and none that a crash could bring back.
#[test]
fn trim_spares_what_is_in_use() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let image = Image::make(64 << 10, &["-t", "ext4", "-b", "4096"]);
    let device: Arc<MemoryDevice> = Arc::new(image.load());
    let engine = Ext4::mount(device.clone(), Options::default()).expect("mount");
    let inode = create(&engine, "kept");
    let runs = fill(&engine, &inode, 0..4 << 20, Intent::Writeback).expect("fill");
    for (at, bytes) in &runs {
        device
            .write_at(
                blockwright_device::DevOffset(*at),
                &vec![7; *bytes as usize],
                Flags::empty(),
            )
            .expect("write");
    }
    let free = engine.statfs().expect("statfs").blocks_free * 4096;
    engine.release_write(&inode);
    let trimmed = engine.trim(0..u64::MAX, 0).expect("trim");
    assert_eq!(trimmed, free);
    let mut bytes = vec![0; runs[0].1 as usize];
    device
        .read_at(blockwright_device::DevOffset(runs[0].0), &mut bytes)
        .expect("read");
    assert!(bytes.iter().all(|b| *b == 7));
    // Freed blocks are committed first, so that no crash can bring the file back; then they are discarded, too.
    engine
        .truncate(&inode, 0, Timestamp::now())
        .expect("truncate");
    let running = engine.fs().volume.journal.running_tid();
    let again = engine.trim(0..u64::MAX, 0).expect("trim");
    assert!(engine.fs().volume.journal.tid_is_durable(running));
    let free = engine.statfs().expect("statfs").blocks_free * 4096;
    assert_eq!(again, free);
    assert!(again > trimmed);
    close_file(&engine, inode);
    engine.unmount().expect("unmount");
    drop(engine);
    let dir = tempfile::tempdir().expect("dir");
    fsck(&save(&device, dir.path(), "done")).expect("clean");
}
