//! Files that are read ahead together ([`Vfs::read_ahead`](crate::Vfs::read_ahead)), and files in fragments.

use super::{Fixture, quiet};
use crate::testing::MemOptions;
use crate::{FallocMode, InodeRef, MountOptions, ReadOp};
use std::sync::atomic::Ordering;

/// Files of 1 to 40 000 bytes, which are on the device only.
fn made(f: &Fixture) -> Vec<(InodeRef, Vec<u8>)> {
    let files: Vec<(InodeRef, Vec<u8>)> = (0..60u64)
        .map(|n| {
            let inode = f.file(&format!("f{n}"));
            let bytes = (1 + n * n * 11 % 40_000) as usize;
            let data: Vec<u8> = (0..bytes).map(|at| (at as u64 * 7 + n) as u8).collect();
            f.open(&inode).write_at(&data, 0).unwrap();
            (inode, data)
        })
        .collect();
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    files
}

fn read(f: &Fixture, inode: &InodeRef) -> Vec<u8> {
    let slices = f.open(inode).run(ReadOp::new(0, 1 << 20)).unwrap();
    slices.iter().flat_map(|slice| slice.to_vec()).collect()
}

#[test]
fn files_read_ahead_together_are_found_in_the_cache() {
    for f in [
        Fixture::new(16 << 20, MemOptions::default(), quiet()),
        Fixture::late(16 << 20, MemOptions::default(), quiet()),
    ] {
        let files = made(&f);
        let counters = &f.vfs.core.counters;
        let reads = || counters.cache_reads.load(Ordering::Relaxed);
        let before = reads();
        let wanted: Vec<_> = files
            .iter()
            .map(|(inode, data)| (inode.clone(), data.len() as u64))
            .collect();
        f.vfs.read_ahead(&wanted);
        let together = reads() - before;
        assert!(together <= 20, "{together} requests for neighbours");
        for (inode, data) in &files {
            assert!(read(&f, inode) == *data);
        }
        assert_eq!(reads() - before, together, "none is read twice");
        f.vfs.read_ahead(&wanted);
        assert_eq!(reads() - before, together, "nor ahead twice");
    }
}

#[test]
fn a_change_beside_reading_ahead_is_not_lost() {
    let f = Fixture::late(16 << 20, MemOptions::default(), quiet());
    let mut files = made(&f);
    for round in 0..30u8 {
        f.vfs.drop_caches();
        let wanted: Vec<_> = files
            .iter()
            .map(|(inode, data)| (inode.clone(), data.len() as u64))
            .collect();
        std::thread::scope(|s| {
            s.spawn(|| f.vfs.read_ahead(&wanted));
            for (n, (inode, data)) in files.iter_mut().enumerate() {
                let (h, middle) = (f.open(inode), data.len() / 2);
                match n % 3 {
                    0 => {
                        h.write_at(&[round], middle as u64).unwrap();
                        data[middle] = round;
                    }
                    1 => {
                        h.set_len(middle as u64 + 2).unwrap();
                        data.resize(middle + 2, 0);
                    }
                    _ => {
                        h.fallocate(0..4096, FallocMode::PunchHole).unwrap();
                        data.iter_mut().take(4096).for_each(|byte| *byte = 0);
                        h.write_at(&[round; 5], middle as u64).unwrap();
                        data.resize(data.len().max(middle + 5), 0);
                        data[middle..middle + 5].fill(round);
                    }
                }
            }
        });
        for (n, (inode, data)) in files.iter().enumerate() {
            assert!(read(&f, inode) == *data, "file {n}, round {round}");
        }
        f.vfs.sync().unwrap();
    }
}

/// The slices of a read are of few buffers, in however many fragments the file is: a buffer for each would mean a copy of all of it for each.
#[test]
fn fragments_of_a_folio_are_read_into_one_buffer() {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 64;
    // Reading ahead would have all fragments in flight before the first slice is taken.
    let mount = || MountOptions {
        readahead_bytes: 0,
        ..quiet()
    };
    for f in [
        Fixture::new(16 << 20, MemOptions::default(), mount()),
        Fixture::late(16 << 20, MemOptions::default(), mount()),
    ] {
        let inode = f.file("fragments");
        let h = f.open(&inode);
        let mut data = vec![0; BLOCKS * BLOCK];
        // No two blocks follow each other on the device, and every fourth one is a hole.
        for first in [3, 1, 0] {
            for n in (first..BLOCKS).step_by(4) {
                let at = n * BLOCK;
                data[at..at + BLOCK].fill(n as u8 + 1);
                h.write_at(&data[at..at + BLOCK], at as u64).unwrap();
            }
            f.vfs.sync().unwrap();
        }
        f.vfs.drop_caches();
        let slices = h.run(ReadOp::new(0, BLOCKS * BLOCK)).unwrap();
        let mut buffers = std::collections::BTreeSet::new();
        let (mut at, mut fragments) = (0, 0);
        for slice in &slices {
            assert!(slice[..] == data[at..at + slice.len()], "at {at}");
            if slice[0] != 0 {
                fragments += 1;
                buffers.insert(slice.as_ptr() as usize - at);
            }
            at += slice.len();
        }
        assert_eq!(at, data.len());
        assert!(fragments >= 16, "{fragments} fragments");
        assert!(buffers.len() <= 2, "{} buffers", buffers.len());
    }
}

/// A cache that cannot hold a whole read, with a file of which no two blocks follow each other.
#[test]
fn a_read_of_fragments_ends_in_a_small_cache() {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 512;
    let mount = MountOptions {
        readahead_bytes: 0,
        cache_bytes: 256 << 10,
        ..quiet()
    };
    let f = Fixture::new(16 << 20, MemOptions::default(), mount);
    let inode = f.file("fragments");
    let h = f.open(&inode);
    let mut data = vec![0; BLOCKS * BLOCK];
    for first in [1, 0] {
        for n in (first..BLOCKS).step_by(2) {
            let at = n * BLOCK;
            data[at..at + BLOCK].fill((n % 251) as u8 + 1);
            h.write_at(&data[at..at + BLOCK], at as u64).unwrap();
        }
        f.vfs.sync().unwrap();
    }
    f.vfs.drop_caches();
    let mut bytes = vec![0; data.len()];
    assert_eq!(h.read_at(&mut bytes, 0).unwrap(), data.len());
    assert!(bytes == data);
}
