//! Submitted direct I/O.

use super::{Fixture, quiet};
use crate::engine::SyncScope;
use crate::error::ErrorKind;
use crate::testing::MemOptions;
use crate::{MountOptions, OpenFlags, SyncMode};
use blockwright_device::AlignedBuf;
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
    // A cached page over the range is dropped.
    let cached = f.open(&inode);
    let mut buf = [0; 4096];
    cached.read_at(&mut buf, 8192).unwrap();
    assert_eq!(buf, [2; 4096]);
    submit(&h, 8192, 77);
    receive.recv().unwrap().unwrap();
    assert_eq!(counter(&f, "direct_completions_inline"), 64);
    cached.read_at(&mut buf, 8192).unwrap();
    assert_eq!(buf, [77; 4096]);
    // Synchronous writers and errors are deferred.
    let sync = OpenFlags {
        direct: true,
        sync: SyncMode::Data,
        ..OpenFlags::read_write()
    };
    let hs = f.vfs.open(&f.cred, &inode, sync).unwrap();
    submit(&hs, 60 * 4096, 5);
    receive.recv().unwrap().unwrap();
    f.engine.device().fail_writes.store(true, Ordering::SeqCst);
    submit(&h, 60 * 4096, 6);
    let e = receive.recv().unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    f.engine.device().fail_writes.store(false, Ordering::SeqCst);
    assert_eq!(counter(&f, "direct_completions_inline"), 64);
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
        inline_completion: false,
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
    assert_eq!(counter(&f, "direct_completions_deferred"), 1);
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
