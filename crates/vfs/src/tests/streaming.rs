//! Order and size of writeback.

use super::{Fixture, quiet};
use crate::engine::SyncScope;
use crate::testing::MemOptions;
use crate::{MountOptions, OpenFlags, SyncMode};

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
    let slices = reader.read_slices(12345, 1 << 20).unwrap();
    let joined: Vec<u8> = slices.iter().flat_map(|s| s.to_vec()).collect();
    assert!(joined[..] == data[12345..12345 + (1 << 20)]);
}
