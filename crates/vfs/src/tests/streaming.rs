//! Order and size of writeback.

use super::{Fixture, quiet};
use crate::engine::{FallocMode, SyncScope};
use crate::inode::holds::WritebackOwner;
use crate::inode::times::TimesKeeper;
use crate::testing::MemOptions;
use crate::types::{FileKind, Ino, RenameMode};
use crate::writeback::Stream;
use crate::writeback::flusher::Round;
use crate::{
    CreateRequest, ErrorKind, Handle, InodeRef, MountOptions, OpenFlags, ReadOp, SyncMode,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn a_stream_is_written_ascending_in_one_extent_with_few_requests() {
    let mount = MountOptions {
        dirty_bytes_background: 4 << 20,
        dirty_bytes_max: 16 << 20,
        ..quiet()
    };
    let f = Fixture::late(256 << 20, MemOptions::default(), mount);
    let inode = f.file("f");
    let h = f.open(&inode);
    let chunk = vec![1; 64 << 10];
    for i in 0..1024u64 {
        h.write_at(&chunk, i * (64 << 10)).unwrap();
    }
    h.sync(SyncScope::Data).unwrap();
    let order = f.engine.device().write_order.lock().clone();
    assert!(
        order.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0),
        "ascending, each byte once"
    );
    assert_eq!(f.engine.extent_count(inode.ino()), 1);
    assert!(order.len() <= 140, "{} requests for 64 MiB", order.len());
}

#[test]
fn concurrent_streams_are_each_in_order() {
    let mount = MountOptions {
        dirty_bytes_background: 1 << 20,
        dirty_bytes_max: 4 << 20,
        ..quiet()
    };
    let f = Fixture::late(256 << 20, MemOptions::default(), mount);
    let inodes: Vec<_> = (0..4).map(|i| f.file(&format!("f{i}"))).collect();
    std::thread::scope(|s| {
        for (i, inode) in inodes.iter().enumerate() {
            let h = f.open(inode);
            s.spawn(move || {
                let chunk = vec![i as u8 + 1; 100_000];
                for j in 0..100u64 {
                    h.write_at(&chunk, j * 100_000).unwrap();
                }
            });
        }
    });
    f.vfs.sync().unwrap();
    for (i, inode) in inodes.iter().enumerate() {
        let disk = f.engine.contents_on_disk(inode.ino()).unwrap();
        assert!(disk == vec![i as u8 + 1; 10_000_000]);
    }
}

#[test]
fn appends_are_atomic_and_times_lag() {
    let f = Fixture::new(16 << 20, MemOptions::default(), quiet());
    let inode = f.file("log");
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let flags = OpenFlags {
                append: true,
                ..OpenFlags::read_write()
            };
            let h = f.vfs.open(&f.cred, &inode, flags).unwrap();
            s.spawn(move || {
                for _ in 0..200 {
                    let at = h.append(&[t + 1; 37]).unwrap();
                    assert_eq!(at % 37, 0);
                }
            });
        }
    });
    let h = f.open(&inode);
    let all = super::read_all(&h);
    assert_eq!(all.len(), 4 * 200 * 37);
    assert!(all.chunks(37).all(|c| c.iter().all(|b| *b == c[0])));
    h.sync(SyncScope::Data).unwrap();
    let before = f.engine.attr_writes();
    h.write_at(b"x", 0).unwrap();
    h.sync(SyncScope::All).unwrap();
    assert_eq!(f.engine.attr_writes(), before + 1);
}

#[test]
fn synchronous_handles_write_before_they_return() {
    let f = Fixture::new(16 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let flags = OpenFlags {
        sync: SyncMode::Data,
        ..OpenFlags::read_write()
    };
    let h = f.vfs.open(&f.cred, &inode, flags).unwrap();
    h.write_at(b"durable", 3).unwrap();
    assert_eq!(
        f.engine.contents_on_disk(inode.ino()).unwrap(),
        b"\0\0\0durable"
    );
}

#[test]
fn readahead_turns_small_sequential_reads_into_large_requests() {
    let f = Fixture::late(64 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open(&inode);
    let data: Vec<u8> = (0..16u32 << 20).map(|i| (i >> 8) as u8).collect();
    h.write_at(&data, 0).unwrap();
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    let reader = f.open(&inode);
    let mut buf = [0; 4096];
    for at in (0..data.len()).step_by(4096) {
        assert_eq!(reader.read_at(&mut buf, at as u64).unwrap(), 4096);
        assert!(buf[..] == data[at..at + 4096]);
    }
    let all = f.vfs.counters();
    let reads = all.iter().find(|(n, _)| n == "cache_reads").unwrap().1;
    assert!(reads <= 160, "{reads} device reads for 16 MiB");
    let slices = reader.run(ReadOp::new(12345, 1 << 20)).unwrap();
    let joined: Vec<u8> = slices.iter().flat_map(|s| s.to_vec()).collect();
    assert!(joined[..] == data[12345..12345 + (1 << 20)]);
}

#[test]
fn the_index_stands_behind_the_last_page_written() {
    let mem = MemOptions {
        allocate_bytes_max: 8192,
        ..MemOptions::default()
    };
    let f = Fixture::new(16 << 20, mem, quiet());
    let inode = f.file("f");
    let h = f.open(&inode);
    h.write_at(&vec![1; 1 << 20], 0).unwrap();
    let core = &f.vfs.core;
    let index = || inode.pages.lock().flusher_index;
    let visit = |budget: u64| {
        let owner = WritebackOwner::acquire(&inode);
        core.write_cyclic(&mut Stream::new(core), &owner, budget)
    };
    // Each target takes 8 KiB of what was asked: the budget is charged for that, not for the whole run.
    assert_eq!(visit(64 << 10), 64 << 10);
    assert_eq!(index(), 64 << 10);
    assert_eq!(visit(100 << 10), 100 << 10);
    assert_eq!(index(), 164 << 10);
    // New dirt below the index waits for its turn; an integrity pass and a throttled writer leave the index alone.
    h.write_at(&[2; 4096], 8192).unwrap();
    visit(8192);
    assert!(inode.pages.lock().has_dirty_in(8192..12288));
    assert_eq!(index(), 172 << 10);
    let before = index();
    core.write_range(&inode, 512 << 10..600 << 10);
    assert_eq!(index(), before);
    visit(u64::MAX);
    assert!(!inode.pages.lock().has_dirty());
    assert_eq!(visit(u64::MAX), 0);
}

#[test]
fn a_visit_gives_way_to_who_waits_for_the_right_to_write() {
    let f = Fixture::new(16 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open(&inode);
    // Every other block: a run each.
    for block in (0..2048).step_by(2) {
        h.write_at(&[1; 4096], block * 4096).unwrap();
    }
    let core = &f.vfs.core;
    let owner = WritebackOwner::acquire(&inode);
    let waiter = {
        let inode = Arc::clone(&inode);
        std::thread::spawn(move || drop(WritebackOwner::acquire(&inode)))
    };
    while !inode.pages.lock().is_awaited() {
        std::thread::yield_now();
    }
    let mut stream = Stream::new(core);
    let written = core.write_cyclic(&mut stream, &owner, 16 << 20);
    // A batch: 256 runs.
    assert_eq!(written, 1 << 20);
    assert_eq!(inode.pages.lock().flusher_index, 511 * 4096);
    // A sync of everything has no choice.
    core.write_owned(&mut stream, &owner, 0..u64::MAX);
    assert!(!inode.pages.lock().has_dirty());
    drop(owner);
    stream.drain();
    waiter.join().unwrap();
}

#[test]
fn the_legacy_index_moves_past_what_was_only_looked_at() {
    let mount = MountOptions {
        comparison: crate::Comparison {
            legacy_writeback: true,
            ..crate::Comparison::default()
        },
        ..quiet()
    };
    let f = Fixture::new(16 << 20, MemOptions::default(), mount);
    let inode = f.file("f");
    let h = f.open(&inode);
    h.write_at(&vec![1; 1 << 20], 0).unwrap();
    let core = &f.vfs.core;
    assert_eq!(core.balance_bytes(), 4096);
    let visit = || {
        let owner = WritebackOwner::acquire(&inode);
        core.write_legacy_some(&mut Stream::new(core), &owner, 64 << 10)
    };
    assert_eq!(visit(), 64 << 10);
    assert_eq!(inode.pages.lock().flusher_index, 1 << 20);
    h.write_at(&vec![1; 64 << 10], 1 << 20).unwrap();
    // The stream continues at its end; what was skipped comes later.
    assert_eq!(visit(), 64 << 10);
    let order = f.engine.device().write_order.lock().clone();
    assert_eq!(order.len(), 2);
    assert!(!inode.pages.lock().has_dirty_in(1 << 20..2 << 20));
    assert!(inode.pages.lock().has_dirty_in(64 << 10..1 << 20));
    h.sync(SyncScope::Data).unwrap();
    assert!(!inode.pages.lock().has_dirty());
}

#[test]
fn a_round_for_room_ends_when_there_is_enough_and_the_next_goes_on_there() {
    let f = Fixture::new(16 << 20, MemOptions::default(), quiet());
    let core = &f.vfs.core;
    core.stop_flusher();
    core.flusher.state.lock().stop = false;
    let files: Vec<_> = (0..64).map(|i| f.file(&format!("f{i}"))).collect();
    let dirty = |which: usize| {
        let h = f.open(&files[which]);
        h.write_at(&vec![1; 64 << 10], 0).unwrap();
    };
    (0..64).for_each(dirty);
    // 4 MiB are dirty.
    core.budget.set_limits(&MountOptions {
        dirty_bytes_background: 2 << 20,
        ..quiet()
    });
    let mut cursor = Ino(0);
    let mut round = |why| {
        let (mut stream, mut pins) = (Stream::new(core), Vec::new());
        let wrote = core.flush_round(&mut stream, &mut pins, &mut cursor, why);
        stream.drain();
        core.let_go(&mut pins);
        wrote
    };
    let is_dirty = |which: usize| files[which].pages.lock().has_dirty();
    assert!(round(Round::ForRoom));
    // A quarter of the limit is left free.
    let left = core.budget.unwritten();
    assert!(left > 0 && left <= (2 << 20) - (2 << 20) / 4, "{left}");
    let first_left = (0..64).find(|k| is_dirty(*k)).unwrap();
    assert!((first_left..64).all(is_dirty), "in the files' order");
    // The first one again, and so much that the round is needed: it begins where the last one ended.
    dirty(0);
    (1..first_left).rev().take(16).for_each(dirty);
    assert!(core.budget.over_background());
    assert!(round(Round::ForRoom));
    assert!(is_dirty(0) && !is_dirty(first_left));
    // Nothing is old, and there is room: nothing to do.
    let left = core.budget.unwritten();
    assert!(!round(Round::ForAge) && !round(Round::ForRoom));
    assert_eq!(core.budget.unwritten(), left);
}

#[test]
fn a_steady_writer_keeps_nobody_from_syncing() {
    let mount = MountOptions {
        dirty_bytes_background: 256 << 10,
        dirty_bytes_max: 1 << 20,
        ..quiet()
    };
    let f = Fixture::late(64 << 20, MemOptions::default(), mount);
    let inode = f.file("f");
    let writer = f.open(&inode);
    let syncer = f.open(&inode);
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let (began, begun) = mpsc::channel();
    let writing = std::thread::spawn(move || {
        let mut k = 0u64;
        while !theirs.load(Ordering::Relaxed) {
            writer
                .write_at(&[k as u8; 16384], k % 1024 * 16384)
                .unwrap();
            k += 1;
            if k == 1 {
                began.send(()).unwrap();
            }
        }
        k
    });
    // There is nothing to show before the first write.
    begun.recv().unwrap();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..20 {
            syncer.sync(SyncScope::Data).unwrap();
            send.send(()).unwrap();
        }
    });
    for k in 0..20 {
        if receive.recv_timeout(Duration::from_secs(30)).is_err() {
            stop.store(true, Ordering::Relaxed);
            panic!("sync {k} does not end beside a writer");
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writing.join().unwrap() > 0);
}

/// A volume whose flusher has written a file of so many bytes, and keeps it in memory, while the file was removed: its blocks come free later than
/// the removal returns.
fn with_removed_file(bytes: usize) -> (Fixture, Vec<InodeRef>) {
    let f = Fixture::new(16 << 20, MemOptions::default(), quiet());
    let core = &f.vfs.core;
    core.stop_flusher();
    core.flusher.state.lock().stop = false;
    let removed = f.file("removed");
    f.open(&removed).write_at(&vec![1; bytes], 0).unwrap();
    core.budget.set_limits(&MountOptions {
        dirty_bytes_background: 1 << 20,
        ..quiet()
    });
    let mut pins = Vec::new();
    let mut stream = Stream::new(core);
    core.flush_round(&mut stream, &mut pins, &mut Ino(0), Round::ForRoom);
    stream.drain();
    drop(stream);
    assert!(!pins.is_empty());
    f.vfs.unlink(&f.cred, &f.root, b"removed").unwrap();
    (f, pins)
}

/// What an operation returns that needs the room of the removed file. The flusher keeps the file until the operation has asked for the room.
fn when_room_is_asked_for<T: Send>(
    f: &Fixture,
    pins: &mut Vec<InodeRef>,
    operation: impl FnOnce() -> T + Send,
) -> T {
    let core = &f.vfs.core;
    std::thread::scope(|scope| {
        let running = scope.spawn(operation);
        while !core.flusher.let_go.load(Ordering::SeqCst) && !running.is_finished() {
            std::thread::yield_now();
        }
        core.let_go(pins);
        running.join().unwrap()
    })
}

#[test]
fn a_write_finds_the_room_of_files_that_were_removed_before() {
    const BYTES: usize = 10 << 20;
    type Write = fn(&Arc<Handle>) -> crate::Result<usize>;
    let ways: [(&str, Write); 3] = [
        ("cached", |h| h.write_at(&vec![2; BYTES], 0)),
        ("direct", |h| h.past_cache().write_at(&vec![2; BYTES], 0)),
        ("allocated", |h| {
            let mode = FallocMode::Allocate { keep_size: false };
            h.allocate(0..BYTES as u64, mode, TimesKeeper::Vfs)?;
            Ok(BYTES)
        }),
    ];
    for (what, write) in ways {
        let (f, mut pins) = with_removed_file(BYTES);
        let next = f.open(&f.file("next"));
        let wrote = when_room_is_asked_for(&f, &mut pins, || write(&next));
        assert_eq!(wrote.unwrap(), BYTES, "{what}");
    }
}

#[test]
fn a_name_finds_the_room_of_files_that_were_removed_before() {
    type Make = fn(&Fixture, &InodeRef) -> crate::Result<()>;
    fn make(f: &Fixture, kind: FileKind) -> crate::Result<()> {
        let mut req = CreateRequest::new(kind, 0o755);
        req.symlink = b"target".to_vec();
        f.vfs.create(&f.cred, &f.root, b"n", &req).map(drop)
    }
    let ways: [(&str, Make); 6] = [
        ("file", |f, _| make(f, FileKind::Regular)),
        ("directory", |f, _| make(f, FileKind::Directory)),
        ("symlink", |f, _| make(f, FileKind::Symlink)),
        ("unnamed", |f, _| {
            let req = CreateRequest::new(FileKind::Regular, 0o644);
            f.vfs.create_unnamed(&f.cred, &f.root, &req).map(drop)
        }),
        ("link", |f, file| f.vfs.link(&f.cred, file, &f.root, b"n")),
        ("rename", |f, _| {
            let mode = RenameMode::Replace;
            f.vfs.rename(&f.cred, &f.root, b"file", &f.root, b"n", mode)
        }),
    ];
    for (what, make) in ways {
        let (f, mut pins) = with_removed_file(10 << 20);
        let file = f.file("file");
        f.engine.names_are_full.store(true, Ordering::SeqCst);
        let made = when_room_is_asked_for(&f, &mut pins, || make(&f, &file));
        assert_eq!(made.map_err(|e| e.kind()), Ok(()), "{what}");
        // No room is no reason to wait where nothing was removed.
        f.engine.names_are_full.store(true, Ordering::SeqCst);
        let refused = f.vfs.link(&f.cred, &file, &f.root, b"last");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace, "{what}");
    }
}
