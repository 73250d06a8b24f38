//! Submitted direct I/O.

use super::{Fixture, Submit, quiet, start_or_wait};
use crate::engine::SyncScope;
use crate::error::ErrorKind;
use crate::testing::MemOptions;
use crate::{Carrier, MountOptions, OpenFlags, Patience, ReadOp, SyncMode, WriteOp};
use blockwright_device::{AlignedBuf, Loan};
use std::sync::atomic::Ordering;
use std::sync::mpsc;

fn counter(f: &Fixture, name: &str) -> u64 {
    let all = f.vfs.counters();
    all.iter().find(|(n, _)| n == name).unwrap().1
}

fn page(byte: u8) -> Vec<blockwright_device::IoSlice> {
    vec![AlignedBuf::copy_of(&[byte; 4096]).into()]
}

#[test]
fn overwrites_complete_in_the_device_and_everything_else_elsewhere() {
    let f = Fixture::late(64 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open_direct(&inode);
    let (send, receive) = mpsc::channel();
    let submit = |h: &std::sync::Arc<crate::Handle>, at: u64, byte: u8| {
        let send = send.clone();
        h.submit_write(page(byte), at, Box::new(move |r| send.send(r).unwrap()));
    };
    for i in 0..64u64 {
        submit(&h, i * 4096, 1);
    }
    for _ in 0..64 {
        assert_eq!(receive.recv().unwrap().unwrap(), 4096);
    }
    assert_eq!(counter(&f, "direct_completions_inline"), 0);
    assert_eq!(inode.size(), 64 * 4096);
    for i in 0..64u64 {
        submit(&h, i * 4096, i as u8);
    }
    for _ in 0..64 {
        assert_eq!(receive.recv().unwrap().unwrap(), 4096);
    }
    assert_eq!(counter(&f, "direct_completions_inline"), 64);
    // A cached page over the range is dropped before.
    let cached = f.open(&inode);
    let mut buf = [0; 4096];
    cached.read_at(&mut buf, 8192).unwrap();
    assert_eq!(buf, [2; 4096]);
    submit(&h, 8192, 77);
    receive.recv().unwrap().unwrap();
    assert_eq!(counter(&f, "direct_completions_inline"), 65);
    cached.read_at(&mut buf, 8192).unwrap();
    assert_eq!(buf, [77; 4096]);
    // A synchronous writer whose metadata is durable owes no flush; one that wants times too does, and errors
    // are deferred.
    let sync = OpenFlags {
        direct: true,
        sync: SyncMode::Data,
        ..OpenFlags::read_write()
    };
    let hs = f.vfs.open(&f.cred, &inode, sync).unwrap();
    submit(&hs, 60 * 4096, 5);
    receive.recv().unwrap().unwrap();
    assert_eq!(counter(&f, "direct_fua_writes"), 1);
    assert_eq!(counter(&f, "direct_completions_inline"), 66);
    let all = OpenFlags {
        sync: SyncMode::All,
        ..sync
    };
    let hs = f.vfs.open(&f.cred, &inode, all).unwrap();
    submit(&hs, 60 * 4096, 5);
    receive.recv().unwrap().unwrap();
    assert_eq!(counter(&f, "direct_deferred_for_sync"), 1);
    f.engine.device().fail_writes.store(true, Ordering::SeqCst);
    submit(&h, 60 * 4096, 6);
    let e = receive.recv().unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    f.engine.device().fail_writes.store(false, Ordering::SeqCst);
    assert_eq!(counter(&f, "direct_completions_inline"), 66);
    assert_eq!(counter(&f, "direct_deferred_for_error"), 1);
    // Truncation waits for what flies.
    for i in 0..32u64 {
        submit(&h, i * 4096, 9);
    }
    h.set_len(0).unwrap();
    for _ in 0..32 {
        receive.recv().unwrap().unwrap();
    }
    f.vfs.sync().unwrap();
}

#[test]
fn the_switch_defers_all() {
    let mount = MountOptions {
        comparison: crate::Comparison {
            deferred_completion: true,
            ..crate::Comparison::default()
        },
        ..quiet()
    };
    let f = Fixture::new(8 << 20, MemOptions::default(), mount);
    let h = f.open_direct(&f.file("f"));
    h.write_at(&[1; 8192], 0).unwrap();
    let (send, receive) = mpsc::channel();
    h.submit_write(
        page(2),
        4096,
        Box::new(move |r| send.send(r.unwrap()).unwrap()),
    );
    assert_eq!(receive.recv().unwrap(), 4096);
    assert_eq!(counter(&f, "direct_completions_inline"), 0);
    // Also the one that is waited for.
    assert_eq!(counter(&f, "direct_completions_deferred"), 2);
}

#[test]
fn submitted_reads_see_everything() {
    let f = Fixture::late(8 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let cached = f.open(&inode);
    let direct = f.open_direct(&inode);
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 253) as u8).collect();
    cached.write_at(&data, 0).unwrap();
    let (send, receive) = mpsc::channel();
    let read = |at: u64, len: usize| {
        let send = send.clone();
        direct.submit_read(
            at,
            len,
            Box::new(move |r| {
                let all: Vec<u8> = r.unwrap().iter().flat_map(|s| s.to_vec()).collect();
                send.send(all).unwrap();
            }),
        );
        receive.recv().unwrap()
    };
    assert!(read(10, 50_000)[..] == data[10..50_010], "dirty pages");
    cached.sync(SyncScope::Data).unwrap();
    assert!(read(777, 200_000)[..] == data[777..], "short at the end");
    assert!(read(100_000, 10).is_empty());
}

/// Submits a write that must not wait; whether it was taken, and its outcome.
fn try_write(h: &std::sync::Arc<crate::Handle>, at: u64, bytes: &[u8]) -> Option<usize> {
    let (send, receive) = mpsc::channel();
    let slices = vec![AlignedBuf::copy_of(bytes).into()];
    let done = Box::new(move |r: crate::Result<usize>| send.send(r.unwrap()).unwrap());
    if h.start(WriteOp::at(at, slices), done, Patience::Nowait)
        .is_some()
    {
        return None;
    }
    Some(receive.recv().unwrap())
}

#[test]
fn what_would_wait_is_handed_back() {
    let f = Fixture::late(8 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open_direct(&inode);
    let cached = f.open(&inode);
    assert_eq!(try_write(&h, 0, &[1; 4096]), None, "it would grow");
    h.write_at(&[1; 65536], 0).unwrap();
    assert_eq!(try_write(&h, 0, &[2; 4096]), None, "the place is not known");
    h.write_at(&[2; 4096], 0).unwrap();
    // One look taught all of the extent.
    assert_eq!(try_write(&h, 61440, &[3; 4096]), Some(4096));
    assert_eq!(
        try_write(&h, 512, &[4; 1024]),
        Some(1024),
        "part of a block"
    );
    assert_eq!(try_write(&h, 100, &[4; 512]), None, "not aligned");
    assert_eq!(try_write(&h, 0, &[4; 100]), None, "not aligned");
    assert_eq!(try_write(&h, 61440, &[4; 8192]), None, "it would grow");
    assert_eq!(try_write(&cached, 0, &[4; 4096]), None, "not direct");
    {
        let _held = inode.lock.write();
        assert_eq!(try_write(&h, 0, &[5; 4096]), None, "locked");
    }
    cached.read_at(&mut [0; 10], 8192).unwrap();
    assert_eq!(try_write(&h, 8192, &[5; 4096]), None, "cached");
    let mut want = vec![1; 65536];
    want[..4096].fill(2);
    want[512..1536].fill(4);
    want[61440..].fill(3);
    assert!(super::read_all(&cached) == want);
    // Truncation forgets the places.
    h.set_len(4096).unwrap();
    h.set_len(65536).unwrap();
    assert_eq!(try_write(&h, 61440, &[6; 4096]), None);
    want[4096..].fill(0);
    f.vfs.drop_caches();
    assert!(super::read_all(&cached) == want);
}

#[test]
fn preallocated_blocks_are_written_without_waiting() {
    let mem = MemOptions {
        preallocated: true,
        ..MemOptions::default()
    };
    let f = Fixture::late(8 << 20, mem, quiet());
    let inode = f.file("f");
    let h = f.open_direct(&inode);
    let cached = f.open(&inode);
    let taken = || counter(&f, "direct_writes_nowait");
    assert_eq!(try_write(&h, 0, &[1; 8192]), Some(8192), "it grows");
    assert_eq!(try_write(&h, 8192, &[2; 65536]), Some(65536));
    assert_eq!((taken(), inode.size()), (2, 73728));
    assert_eq!(try_write(&h, 0, &[3; 4096]), None, "it holds something");
    assert_eq!(try_write(&h, 73728, &[3; 512]), None, "part of a block");
    {
        let _held = inode.lock.read();
        assert_eq!(try_write(&h, 73728, &[3; 4096]), None, "locked");
    }
    assert_eq!(try_write(&h, 81920, &[4; 4096]), Some(4096), "with a hole");
    assert_eq!(
        try_write(&h, 73728, &[5; 4096]),
        Some(4096),
        "into the hole"
    );
    cached.write_at(&[7; 100], 86016).unwrap();
    assert_eq!(try_write(&h, 86016, &[6; 4096]), None, "dirty");
    assert_eq!(
        try_write(&h, 90112, &[6; 4096]),
        None,
        "the old end is not zeroed"
    );
    let mut want = [vec![1; 8192], vec![2; 65536], vec![5; 4096], vec![0; 4096]].concat();
    want.extend([4; 4096]);
    want.extend([7; 100]);
    assert!(super::read_all(&cached) == want);
    f.vfs.drop_caches();
    assert!(super::read_all(&cached) == want);
    assert_eq!(taken(), 4);
}

#[test]
fn a_thread_that_lands_writes_finishes_them() {
    let finished = |preallocated: bool| {
        let mem = MemOptions {
            preallocated,
            ..MemOptions::default()
        };
        // Completes where it is submitted.
        let f = Fixture::new(8 << 20, mem, quiet());
        let inode = f.file("f");
        let h = f.open_direct(&inode);
        let (send, receive) = mpsc::channel();
        let carrier = Carrier::new(None);
        let job = std::panic::AssertUnwindSafe(|| {
            carrier.collect(|| {
                for n in 0..3u64 {
                    let send = send.clone();
                    let slices = vec![AlignedBuf::copy_of(&[n as u8 + 1; 4096]).into()];
                    let done = Box::new(move |r: crate::Result<usize>| {
                        send.send((r.unwrap(), std::thread::current().id()))
                            .unwrap();
                    });
                    let op = WriteOp::at(n * 4096, slices).carried_by(&carrier);
                    h.start(op, done, Patience::Wait);
                }
                assert_eq!(inode.size(), 0, "all wait for each other");
                panic!("expected by the test");
            });
        });
        assert!(std::panic::catch_unwind(job).is_err());
        let told: Vec<_> = (0..3).map(|_| receive.recv().unwrap()).collect();
        assert!(told.iter().all(|(n, _)| *n == 4096));
        assert_eq!(inode.size(), 12288);
        assert_eq!(super::read_all(&h)[8192..], [3; 4096]);
        let here = std::thread::current().id();
        let here = told.iter().filter(|(_, thread)| *thread == here).count();
        assert_eq!(counter(&f, "direct_finished_where_landed"), here as u64);
        here
    };
    assert_eq!(finished(true), 3);
    assert_eq!(finished(false), 0, "the engine does not allow it");
}

#[test]
fn reads_that_would_wait_are_handed_back() {
    let f = Fixture::late(8 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open_direct(&inode);
    let cached = f.open(&inode);
    let try_read = |h: &std::sync::Arc<crate::Handle>, at: u64, len: usize| {
        let (send, receive) = mpsc::channel();
        let done = Box::new(move |r: crate::Result<Vec<blockwright_device::IoSlice>>| {
            let all: Vec<u8> = r.unwrap().iter().flat_map(|s| s.to_vec()).collect();
            send.send(all).unwrap();
        });
        if h.start(ReadOp::new(at, len), done, Patience::Nowait)
            .is_some()
        {
            return None;
        }
        Some(receive.recv().unwrap())
    };
    let data: Vec<u8> = (0..65536u32).map(|i| (i % 251) as u8).collect();
    h.write_at(&data, 0).unwrap();
    assert!(try_read(&h, 0, 4096).is_none(), "the place is not known");
    let mut buf = [0; 10];
    h.read_at(&mut buf, 777).unwrap();
    assert_eq!(try_read(&h, 777, 5000).unwrap(), data[777..5777]);
    assert!(try_read(&cached, 0, 4096).is_none(), "nothing is cached");
    cached.read_at(&mut [0; 4096], 0).unwrap();
    assert_eq!(try_read(&cached, 10, 4000).unwrap(), data[10..4010]);
    assert_eq!(try_read(&cached, 65536, 10).unwrap(), [0u8; 0]);
    {
        let _held = inode.invalidate.write();
        assert!(try_read(&h, 777, 5000).is_none(), "blocks are going away");
    }
    cached.write_at(&[9; 10], 100).unwrap();
    assert!(try_read(&h, 0, 4096).is_none(), "dirty");
}

#[test]
fn large_reads_of_a_front_end_with_a_cache_go_past_ours() {
    const LARGE: usize = 256 << 10;
    let mem = MemOptions {
        // In many pieces, not all of which follow one another on the device.
        allocate_bytes_max: 64 << 10,
        ..MemOptions::default()
    };
    let f = Fixture::late(16 << 20, mem, quiet());
    let inode = f.file("f");
    let data: Vec<u8> = (0..(2 << 20) + 777u32)
        .map(|i| ((i * 7) >> 3) as u8)
        .collect();
    let h = f.open_above(&inode);
    h.write_at(&data, 0).unwrap();
    // With something of others among its pieces.
    f.open(&f.file("g")).write_at(&data, 0).unwrap();
    f.vfs.sync().unwrap();
    // Returns the bytes, and how many of them the device put where they belong.
    let read = |h: &std::sync::Arc<crate::Handle>, at: u64, len: usize| {
        let (send, receive) = mpsc::channel();
        let mut room = AlignedBuf::zeroed(len.next_multiple_of(4096));
        room.fill(0xA5);
        let start = room.as_ptr().addr();
        let (tell, back) = mpsc::channel();
        let room = Some(Loan::of(room, move |_| tell.send(()).unwrap()));
        let done = Box::new(move |r: crate::Result<Vec<_>>| send.send(r).unwrap());
        let op = ReadOp {
            room,
            ..ReadOp::new(at, len)
        };
        start_or_wait(h, op, done);
        let slices: Vec<blockwright_device::IoSlice> = receive.recv().unwrap()?;
        let (mut bytes, mut in_place) = (Vec::new(), 0);
        for slice in &slices {
            if slice.as_ptr().addr() == start + bytes.len() {
                in_place += slice.len();
            }
            bytes.extend_from_slice(slice);
        }
        drop(slices);
        back.recv().expect("what was lent comes back");
        crate::Result::Ok((bytes, in_place))
    };
    let cached = || f.vfs.core.budget.cached.load(Ordering::SeqCst);
    // All in the cache: taken from there.
    assert_eq!(read(&h, 0, LARGE).unwrap(), (data[..LARGE].to_vec(), 0));
    assert_eq!(counter(&f, "cache_reads_past"), 0);
    f.vfs.drop_caches();
    for at in (0..data.len()).step_by(LARGE).take(8) {
        let (bytes, in_place) = read(&h, at as u64, LARGE).unwrap();
        assert!(bytes == data[at..at + LARGE], "at {at}");
        assert_eq!(in_place, LARGE);
    }
    assert_eq!((counter(&f, "cache_reads_past"), cached()), (8, 0));
    // The end, in the middle of a block, and a beginning that no device reads at.
    let (bytes, in_place) = read(&h, 1 << 20, 2 << 20).unwrap();
    assert!(bytes == data[1 << 20..] && in_place == bytes.len());
    let (bytes, _) = read(&h, 12_345, LARGE).unwrap();
    assert!(bytes == data[12_345..12_345 + LARGE]);
    assert_eq!((counter(&f, "cache_reads_past"), cached()), (10, 0));
    // Small ones are cached and read ahead of, and so are those of others.
    assert!(read(&h, 0, LARGE / 2).unwrap().0 == data[..LARGE / 2]);
    assert!(cached() > 0);
    f.vfs.drop_caches();
    assert!(read(&f.open(&inode), 0, LARGE).unwrap().0 == data[..LARGE]);
    assert!(cached() > 0);
    assert_eq!(counter(&f, "cache_reads_past"), 10);
    // Changes that are not on the device yet are seen, and so are holes.
    f.vfs.drop_caches();
    let mut data = data;
    data[300_000..300_100].fill(9);
    h.write_at(&[9; 100], 300_000).unwrap();
    assert!(read(&h, 0, 2 * LARGE).unwrap().0 == data[..2 * LARGE]);
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    h.fallocate(8192..16_384, crate::FallocMode::PunchHole)
        .unwrap();
    data[8192..16_384].fill(0);
    assert!(read(&h, 0, LARGE).unwrap().0 == data[..LARGE]);
    assert_eq!(counter(&f, "cache_reads_past"), 11);
    // A part in the cache does not keep the rest from the device.
    f.vfs.drop_caches();
    h.read_at(&mut [0; 4096], 1 << 20).unwrap();
    assert!(read(&h, 1 << 20, LARGE).unwrap().0 == data[1 << 20..(1 << 20) + LARGE]);
    assert_eq!(counter(&f, "cache_reads_past"), 12);
    // Errors are told; nothing is lent forever.
    f.vfs.drop_caches();
    f.engine.device().fail_reads.store(true, Ordering::SeqCst);
    let failed = read(&h, 1 << 20, LARGE).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io);
    f.engine.device().fail_reads.store(false, Ordering::SeqCst);
    // Off.
    f.vfs.tune("read_past_bytes", 0).unwrap();
    assert!(read(&h, 1 << 20, LARGE).unwrap().0 == data[1 << 20..(1 << 20) + LARGE]);
    assert_eq!(counter(&f, "cache_reads_past"), 13);
}

#[test]
fn appends_fly_together_and_whoever_allocates_beside_them_waits() {
    let f = Fixture::late(64 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open_direct(&inode);
    let (send, receive) = mpsc::channel();
    let submit = |at: u64, byte: u8| {
        let send = send.clone();
        h.submit_write(page(byte), at, Box::new(move |r| send.send(r).unwrap()));
    };
    for i in 0..300u64 {
        submit(i * 4096, 1 + (i % 200) as u8);
    }
    // The last page, and one behind it, while all of that is on its way.
    let cached = f.open(&inode);
    cached.write_at(&[250; 100], 300 * 4096).unwrap();
    assert!(cached.append(&[251; 3]).unwrap() >= 300 * 4096 + 100);
    for _ in 0..300 {
        assert_eq!(receive.recv().unwrap().unwrap(), 4096);
    }
    assert_eq!(counter(&f, "direct_completions_inline"), 0);
    assert_eq!(counter(&f, "direct_deferred_for_commit"), 300);
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    let all = super::read_all(&cached);
    assert_eq!(all.len(), 300 * 4096 + 103);
    for i in 0..300usize {
        assert!(
            all[i * 4096..(i + 1) * 4096]
                .iter()
                .all(|b| *b == 1 + (i % 200) as u8)
        );
    }
    assert_eq!(f.engine.reserved_blocks(), 0);
    // A failing device: the blocks go back, and the writer is told.
    f.engine.device().fail_writes.store(true, Ordering::SeqCst);
    let free = f.engine.free_blocks();
    submit(400 * 4096, 1);
    assert_eq!(receive.recv().unwrap().unwrap_err().kind(), ErrorKind::Io);
    f.engine.device().fail_writes.store(false, Ordering::SeqCst);
    assert_eq!(inode.size(), 300 * 4096 + 103);
    assert_eq!(f.engine.free_blocks(), free);
}

#[test]
fn what_a_front_end_writes_back_of_a_large_file_goes_past_the_cache() {
    assert_eq!(write_back_past_the_cache(false), 0);
    // Of 8 pieces 3 are overwritten, or end in the cache.
    assert_eq!(write_back_past_the_cache(true), 5);
}

/// On a full volume a write-back past the cache is short, as one through the cache is.
#[test]
fn a_write_back_without_room_for_all_is_short() {
    const FROM: u64 = 1 << 20;
    let mount = MountOptions {
        write_past_bytes: FROM,
        ..quiet()
    };
    let f = Fixture::late(8 << 20, MemOptions::default(), mount);
    let inode = f.file("f");
    let h = f.open_above(&inode);
    h.write_at(&vec![1; FROM as usize], 0).unwrap();
    let bytes = vec![2; 16 << 20];
    let op = || WriteOp::at(FROM, vec![AlignedBuf::copy_of(&bytes).into()]).written_back();
    let written = h.run(op()).expect("short, not refused");
    assert!(written > 0 && written < bytes.len(), "{written}");
    assert_eq!(inode.size(), FROM + written as u64);
    let end = FROM + written as u64;
    let more = WriteOp::at(end, vec![AlignedBuf::copy_of(&bytes).into()]).written_back();
    assert_eq!(h.run(more).unwrap_err().kind(), ErrorKind::NoSpace);
}

/// `preallocated`: tried first, and the engine may have preallocated blocks. How often it had.
fn write_back_past_the_cache(preallocated: bool) -> u64 {
    const PIECE: usize = 256 << 10;
    const FROM: u64 = 1 << 20;
    let mount = MountOptions {
        write_past_bytes: FROM,
        ..quiet()
    };
    let mem = MemOptions {
        preallocated,
        ..MemOptions::default()
    };
    let f = Fixture::late(64 << 20, mem, mount);
    let inode = f.file("f");
    let h = f.open_above(&inode);
    let old = crate::Timestamp {
        secs: 1000,
        ..crate::Timestamp::now()
    };
    let times = crate::SetAttr {
        mtime: Some(crate::SetTime::At(old)),
        ..crate::SetAttr::default()
    };
    f.vfs.set_attr(&f.cred, &inode, &times).unwrap();
    let (send, receive) = mpsc::channel();
    let piece =
        |k: u64| -> Vec<u8> { (0..PIECE as u64).map(|i| (k * 7 + i / 512) as u8).collect() };
    let submit = |k: u64, bytes: &[u8]| {
        let send = send.clone();
        let slices = vec![AlignedBuf::copy_of(bytes).into()];
        let op = WriteOp::at(k * PIECE as u64, slices).written_back();
        let done = Box::new(move |r| send.send(r).unwrap());
        match preallocated {
            true => start_or_wait(&h, op, done),
            false => drop(h.start(op, done, Patience::Wait)),
        }
    };
    let cached = || counter(&f, "cache_bytes");
    // The beginning stays in the cache; the rest flies together, and is not in order.
    for k in 0..4 {
        submit(k, &piece(k));
        assert_eq!(receive.recv().unwrap().unwrap(), PIECE);
    }
    assert_eq!((counter(&f, "cache_writes_past"), cached()), (0, FROM));
    for k in [6, 4, 7, 5] {
        submit(k, &piece(k));
    }
    for _ in 0..4 {
        assert_eq!(receive.recv().unwrap().unwrap(), PIECE);
    }
    assert_eq!((counter(&f, "cache_writes_past"), cached()), (4, FROM));
    // What is small, or ends in the middle of a block, is cached.
    submit(8, &piece(8)[..4096]);
    submit(9, &piece(9)[..PIECE - 100]);
    for _ in 0..2 {
        receive.recv().unwrap().unwrap();
    }
    assert_eq!(counter(&f, "cache_writes_past"), 4);
    // Overwrites, of what was written past the cache and of what is in it.
    submit(5, &piece(50));
    submit(9, &piece(90));
    for _ in 0..2 {
        assert_eq!(receive.recv().unwrap().unwrap(), PIECE);
    }
    assert_eq!(counter(&f, "cache_writes_past"), 6);
    // The writer keeps the times.
    assert_eq!(inode.attr().mtime, old);
    let mut want: Vec<u8> = (0..10).flat_map(piece).collect();
    want[5 * PIECE..6 * PIECE].copy_from_slice(&piece(50));
    want[8 * PIECE + 4096..9 * PIECE].fill(0);
    want[9 * PIECE..].copy_from_slice(&piece(90));
    assert!(super::read_all(&h) == want);
    f.vfs.sync().unwrap();
    assert!(f.engine.contents_on_disk(inode.ino()).unwrap() == want);
    // Errors are told, blocks go back, and off is off.
    f.engine.device().fail_writes.store(true, Ordering::SeqCst);
    let free = f.engine.free_blocks();
    submit(20, &piece(1));
    assert_eq!(receive.recv().unwrap().unwrap_err().kind(), ErrorKind::Io);
    f.engine.device().fail_writes.store(false, Ordering::SeqCst);
    assert_eq!(
        (inode.size(), f.engine.free_blocks()),
        (10 * PIECE as u64, free)
    );
    // The one that failed was sent, too.
    assert_eq!(counter(&f, "cache_writes_past"), 7);
    f.vfs.drop_caches();
    f.vfs.tune("write_past_bytes", 0).unwrap();
    submit(5, &piece(5));
    assert_eq!(receive.recv().unwrap().unwrap(), PIECE);
    assert_eq!(
        (counter(&f, "cache_writes_past"), cached()),
        (7, PIECE as u64)
    );
    counter(&f, "direct_writes_nowait")
}

const BLOCKS: u64 = 4096;

/// Submits a write, and from its completion the next, until `left` is used up.
fn chain(
    h: &std::sync::Arc<crate::Handle>,
    left: &std::sync::Arc<std::sync::atomic::AtomicU64>,
    send: &mpsc::Sender<()>,
) {
    let k = left.fetch_sub(1, Ordering::SeqCst);
    if k == 0 || k > 1 << 32 {
        let _ = send.send(());
        return;
    }
    let (h2, left, send) = (h.clone(), left.clone(), send.clone());
    // Each block twice, so that one waits for the other.
    let at = k / 2 % BLOCKS * 4096;
    h.submit_write(
        page(k as u8),
        at,
        Box::new(move |r| {
            r.unwrap();
            chain(&h2, &left, &send);
        }),
    );
}

#[test]
fn completions_may_submit_over_cached_pages() {
    const IN_FLIGHT: usize = 64;
    let f = Fixture::late(64 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let cached = f.open(&inode);
    cached
        .write_at(&vec![7; BLOCKS as usize * 4096], 0)
        .unwrap();
    cached.sync(SyncScope::All).unwrap();
    // Everything is cached: all take the long way.
    let h = f.open_direct(&inode);
    let left = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(2 * BLOCKS - 1));
    let (send, receive) = mpsc::channel();
    for _ in 0..IN_FLIGHT {
        chain(&h, &left, &send);
    }
    for _ in 0..IN_FLIGHT {
        let limit = std::time::Duration::from_secs(30);
        receive.recv_timeout(limit).expect("no write stays behind");
    }
}
