//! Nodes of a large file are read together, not one by one.

use crate::common::f2fs::{assert_clean, formatted};
use blockwright::{File, OpenOptions, Volume, VolumeOptions};
use blockwright_device::{CountingDevice, SharedDevice};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// A direct node has the addresses of 4 MiB: 64 nodes.
const SIZE: u64 = 256 * MIB;

fn open(volume: &Volume) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true);
    file.open(volume, "/large").expect("opened")
}

#[test]
fn walks_of_a_large_file_read_few_times() {
    let memory = formatted(512 * MIB);
    let options = VolumeOptions::default();
    let volume = options.open_device(memory.clone()).expect("opened");
    let file = open(&volume);
    for k in 0..SIZE / MIB {
        let chunk = vec![k as u8; MIB as usize];
        file.write_all_at(&chunk, k * MIB).expect("written");
    }
    drop(file);
    volume.close().expect("closed");

    let counting = Arc::new(CountingDevice::new(memory.clone() as SharedDevice));
    let volume = options.open_device(counting.clone()).expect("opened");
    let file = open(&volume);
    let before = counting.stats();
    let (mut at, mut stretches) = (0, 0);
    while at < SIZE {
        let mapping = file.handle().map(at, SIZE - at).expect("mapped");
        at = mapping.offset + mapping.bytes;
        stretches += 1;
    }
    let reads = counting.stats().since(&before).reads;
    println!("{stretches} stretches; {reads:?}");
    assert!(reads.requests <= 12, "{reads:?} for 64 nodes");
    let mut found = vec![0; 4096];
    for k in (0..SIZE / MIB).step_by(37) {
        let n = file.read_at(&mut found, k * MIB).expect("read");
        assert_eq!(n, found.len());
        assert_eq!(found, vec![k as u8; 4096], "MiB {k}");
    }
    drop(file);
    volume.close().expect("closed");

    // Who removes it needs them, too.
    let counting = Arc::new(CountingDevice::new(memory.clone() as SharedDevice));
    let volume = options.open_device(counting.clone()).expect("opened");
    let before = counting.stats();
    volume.remove_file("/large").expect("removed");
    volume.sync().expect("synced");
    let reads = counting.stats().since(&before).reads;
    assert!(reads.requests <= 20, "{reads:?} to remove 64 nodes");
    volume.close().expect("closed");
    assert_clean(&memory);
}

#[test]
fn inodes_of_a_listing_are_read_together() {
    const FILES: u64 = 200;
    let memory = formatted(256 * MIB);
    let options = VolumeOptions::default();
    let volume = options.open_device(memory.clone()).expect("opened");
    let made: Vec<_> = (0..FILES)
        .map(|n| {
            let path = format!("/file{n}");
            volume.write(&path, vec![1; n as usize]).expect("written");
            volume.metadata(&path).expect("known").ino()
        })
        .collect();
    volume.close().expect("closed");

    let counting = Arc::new(CountingDevice::new(memory.clone() as SharedDevice));
    let volume = options.open_device(counting.clone()).expect("opened");
    let wanted: Vec<_> = made.iter().map(|ino| blockwright_vfs::Ino(*ino)).collect();
    let before = counting.stats();
    let found = volume.vfs().inodes(&wanted);
    let reads = counting.stats().since(&before).reads;
    for (n, inode) in found.into_iter().enumerate() {
        assert_eq!(inode.expect("loaded").attr().size, n as u64);
    }
    assert!(reads.requests <= 8, "{reads:?} for {FILES} inodes");
    // All in memory now.
    let before = counting.stats();
    assert_eq!(volume.vfs().inodes(&wanted).len(), wanted.len());
    assert_eq!(counting.stats().since(&before).reads.requests, 0);
    volume.close().expect("closed");
    assert_clean(&memory);
}

/// New files need free numbers, of which a block of the node table has 455.
#[test]
fn blocks_of_the_node_table_are_read_together_by_who_makes_files() {
    const THREADS: u64 = 4;
    const FILES: u64 = 1000;
    let memory = formatted(256 * MIB);
    let counting = Arc::new(CountingDevice::new(memory.clone() as SharedDevice));
    let options = VolumeOptions::default();
    let volume = options.open_device(counting.clone()).expect("opened");
    for t in 0..THREADS {
        volume.create_dir(format!("/dir{t}")).expect("made");
    }
    volume.sync().expect("synced");
    let before = counting.stats();
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || {
                for n in 0..FILES {
                    let path = format!("/dir{t}/file{n}");
                    volume.write(&path, b"").expect("made");
                }
            });
        }
    });
    let reads = counting.stats().since(&before).reads;
    // Each thread may come to the end of what is in memory at the same time.
    assert!(reads.requests <= THREADS, "{reads:?}");
    // A file in every place that the table gave away, each its own.
    let mut numbers: Vec<_> = (0..THREADS * FILES)
        .map(|n| format!("/dir{}/file{}", n % THREADS, n / THREADS))
        .map(|path| volume.metadata(path).expect("known").ino())
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as u64, THREADS * FILES);
    volume.close().expect("closed");
    assert_clean(&memory);
}
