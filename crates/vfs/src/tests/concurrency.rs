//! Threads on shared files and directories, with lock ranks checked (debug builds).

use super::{Fixture, Submit, quiet};
use crate::engine::{FallocMode, SyncScope};
use crate::error::ErrorKind;
use crate::testing::MemOptions;
use crate::{MountOptions, RenameMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

fn busy() -> MountOptions {
    MountOptions {
        cache_bytes: 1 << 20,
        dirty_bytes_background: 64 << 10,
        dirty_bytes_max: 256 << 10,
        writeback_interval: Duration::from_millis(2),
        lazy_time_interval: Duration::from_millis(2),
        ..MountOptions::default()
    }
}

/// Every 4 KiB block is always filled with one byte, by the last writer, or zero.
#[test]
fn readers_writers_truncation_and_fsync_on_one_file() {
    let f = Fixture::late(64 << 20, MemOptions::default(), busy());
    let inode = f.file("f");
    std::thread::scope(|s| {
        for t in 0..6u64 {
            let h = if t == 5 {
                f.open_direct(&inode)
            } else {
                f.open(&inode)
            };
            let vfs = &f.vfs;
            s.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(t);
                for _ in 0..300 {
                    let unit = rng.random_range(0..64u64);
                    match rng.random_range(0..20) {
                        0..9 => {
                            let byte = rng.random_range(1..=255u8);
                            h.write_at(&[byte; 4096], unit * 4096).unwrap();
                        }
                        9..15 => {
                            let mut buf = [0; 4096];
                            let n = h.read_at(&mut buf, unit * 4096).unwrap();
                            assert!(
                                buf[..n].iter().all(|b| *b == buf[0]),
                                "a torn block: {} and others",
                                buf[0]
                            );
                        }
                        15 => h.set_len(unit * 4096).unwrap(),
                        16 => h
                            .fallocate(unit * 4096..(unit + 3) * 4096, FallocMode::PunchHole)
                            .unwrap(),
                        17 => h.sync(SyncScope::Data).unwrap(),
                        18 => vfs.sync().unwrap(),
                        _ => vfs.drop_caches(),
                    }
                }
            });
        }
    });
    f.vfs.sync().unwrap();
    let h = f.open(&inode);
    let cached = super::read_all(&h);
    assert!(f.engine.contents_on_disk(inode.ino()).unwrap() == cached);
    assert_eq!(f.engine.reserved_blocks(), 0);
}

#[test]
fn rename_storm() {
    let f = Fixture::new(16 << 20, MemOptions::default(), quiet());
    let mut dirs = vec![f.root.clone()];
    for i in 0..6 {
        let parent = dirs[i / 2].clone();
        dirs.push(f.dir(&parent, &format!("d{i}")));
    }
    for i in 0..8 {
        f.file(&format!("n{i}"));
    }
    let names: Vec<String> = (0..6)
        .map(|i| format!("d{i}"))
        .chain((0..8).map(|i| format!("n{i}")))
        .collect();
    std::thread::scope(|s| {
        for t in 0..6u64 {
            let (f, dirs, names) = (&f, &dirs, &names);
            s.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(1000 + t);
                for _ in 0..800 {
                    let a = &dirs[rng.random_range(0..dirs.len())];
                    let b = &dirs[rng.random_range(0..dirs.len())];
                    let x = names[rng.random_range(0..names.len())].as_bytes();
                    let y = names[rng.random_range(0..names.len())].as_bytes();
                    let result = match rng.random_range(0..10) {
                        0..5 => f.vfs.rename(&f.cred, a, x, b, y, RenameMode::Replace),
                        5 => f.vfs.rename(&f.cred, a, x, b, y, RenameMode::Exchange),
                        6 => f.vfs.rename(&f.cred, a, x, a, y, RenameMode::Replace),
                        7 => f.vfs.rmdir(&f.cred, a, x),
                        8 => f.vfs.unlink(&f.cred, a, x),
                        _ => {
                            let req = crate::CreateRequest::new(crate::FileKind::Regular, 0o600);
                            f.vfs.create(&f.cred, a, x, &req).map(|_| ())
                        }
                    };
                    if let Err(e) = result {
                        assert!(
                            matches!(
                                e.kind(),
                                ErrorKind::NotFound
                                    | ErrorKind::Exists
                                    | ErrorKind::NotEmpty
                                    | ErrorKind::NotDirectory
                                    | ErrorKind::IsDirectory
                                    | ErrorKind::Invalid
                            ),
                            "{e:?}"
                        );
                    }
                }
            });
        }
    });
    // Still a tree: every directory that has a name leads up to the root.
    let root = f.root.ino();
    for d in &dirs {
        let mut at = d.clone();
        for depth in 0.. {
            assert!(depth < 100, "a cycle");
            if at.ino() == root || at.attr().nlink == 0 {
                break;
            }
            at = f.vfs.lookup(&f.cred, &at, b"..").unwrap();
        }
    }
}

#[test]
fn creating_and_removing_the_same_names_frees_every_inode() {
    let f = Fixture::late(64 << 20, MemOptions::default(), busy());
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let f = &f;
            s.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(t);
                for i in 0..200 {
                    let name = format!("x{}", rng.random_range(0..4));
                    let inode = f.file(&name);
                    let h = f.open(&inode);
                    h.write_at(&[i as u8; 9000], rng.random_range(0..20_000))
                        .unwrap();
                    let _ = f.vfs.unlink(&f.cred, &f.root, name.as_bytes());
                    // Still usable without a name.
                    let mut buf = [0; 100];
                    h.read_at(&mut buf, 0).unwrap();
                }
            });
        }
    });
    for i in 0..4 {
        let _ = f.vfs.unlink(&f.cred, &f.root, format!("x{i}").as_bytes());
    }
    // The flusher may hold the last pin for a moment.
    for _ in 0..200 {
        if f.engine.inode_count() == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(f.engine.inode_count(), 1);
    assert_eq!(f.engine.free_blocks(), (64 << 20) / 4096 - 1);
    assert_eq!(f.engine.reserved_blocks(), 0);
}

#[test]
fn many_small_files_survive_eviction_of_their_inodes() {
    let mount = MountOptions {
        inodes_idle_max: 64,
        ..busy()
    };
    let f = Fixture::late(64 << 20, MemOptions::default(), mount);
    for i in 0..1000u32 {
        let h = f.open(&f.file(&format!("f{i}")));
        h.write_at(&i.to_le_bytes(), u64::from(i % 7) * 1000)
            .unwrap();
    }
    for i in 0..1000u32 {
        let inode = f
            .vfs
            .resolve(&f.cred, format!("/f{i}").as_bytes(), true)
            .unwrap();
        let h = f.open(&inode);
        let mut buf = [0; 4];
        assert_eq!(h.read_at(&mut buf, u64::from(i % 7) * 1000).unwrap(), 4);
        assert_eq!(u32::from_le_bytes(buf), i);
    }
    f.vfs.sync().unwrap();
    assert!(f.vfs.core.inodes.len() < 1000);
    f.vfs.unmount().unwrap();
}

/// The count of direct I/O in flight is an atomic, and its last one wakes the waiter only if it sees one: neither
/// may miss the other.
#[test]
fn who_waits_for_what_flies_is_always_woken() {
    use crate::cache::page_cache::FilePages;
    use std::sync::{Arc, mpsc};

    let pages = Arc::new(FilePages::default());
    let (land, landing) = mpsc::channel::<()>();
    let theirs = Arc::clone(&pages);
    std::thread::spawn(move || {
        for () in landing {
            theirs.direct_end();
        }
    });
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for round in 0..20_000u32 {
            for _ in 0..1 + round % 3 {
                pages.direct_begin();
                land.send(()).unwrap();
            }
            pages.wait_direct();
            if round % 1000 == 0 {
                tell.send(round).unwrap();
            }
        }
    });
    for round in (0..20_000).step_by(1000) {
        let told = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(told.expect("a waiter was forgotten"), round);
    }
}

/// A buffered write of a part of a block beside a direct overwrite of the same block. Neither may be lost: after both have ended, the
/// block must be what one of the two orders leaves.
#[test]
fn parts_of_a_block_are_written_beside_direct_writes_of_it() {
    const WHOLE: usize = 4096;
    for seed in 0..2u64 {
        let f = Fixture::late(16 << 20, MemOptions::default(), busy());
        let inode = f.file("f");
        let (cached, direct) = (f.open(&inode), f.open_direct(&inode));
        let mut rng = SmallRng::seed_from_u64(seed);
        for round in 0..150u64 {
            let at = rng.random_range(0..4u64) * WHOLE as u64;
            let fresh = rng.random_bool(0.5);
            // In the cache, or not; dirty, or not.
            cached.write_at(&[1; WHOLE], at).unwrap();
            if fresh {
                cached.sync(SyncScope::Data).unwrap();
                f.vfs.drop_caches();
            }
            // A whole block, which the other write lies in; or a sector beside it.
            let bytes = if rng.random_bool(0.5) { WHOLE } else { 512 };
            let part = if bytes == WHOLE { 700..900 } else { 512..613 };
            let submitted = rng.random_bool(0.5);
            let first = rng.random_bool(0.5);
            let barrier = std::sync::Barrier::new(2);
            std::thread::scope(|s| {
                s.spawn(|| {
                    barrier.wait();
                    if submitted {
                        let (send, receive) = std::sync::mpsc::channel();
                        let slices =
                            vec![blockwright_device::AlignedBuf::copy_of(&vec![7; bytes]).into()];
                        direct.submit_write(slices, at, Box::new(move |r| send.send(r).unwrap()));
                        receive.recv().unwrap().unwrap();
                    } else {
                        direct.write_at(&vec![7; bytes], at).unwrap();
                    }
                });
                barrier.wait();
                if first {
                    std::thread::yield_now();
                }
                let range = at + part.start as u64;
                cached.write_at(&vec![9; part.len()], range).unwrap();
            });
            let what = format!(
                "seed {seed}, round {round}: {bytes} bytes, submitted {submitted}, fresh {fresh}"
            );
            let mut seen = [0; WHOLE];
            cached.read_at(&mut seen, at).unwrap();
            let behind = if bytes == WHOLE { 7 } else { 1 };
            for (n, byte) in seen.iter().enumerate() {
                let fits = match n {
                    n if part.contains(&n) => *byte == 9 || bytes == WHOLE && *byte == 7,
                    n if n < bytes => *byte == 7,
                    _ => *byte == behind,
                };
                assert!(fits, "{what}: byte {n} is {byte}");
            }
            let inside = &seen[part.clone()];
            assert!(inside.iter().all(|b| *b == inside[0]), "{what}: torn");
            // What is on the device is what is in the cache.
            cached.sync(SyncScope::Data).unwrap();
            let disk = f.engine.contents_on_disk(inode.ino()).unwrap();
            let start = at as usize;
            assert!(disk[start..start + WHOLE] == seen, "{what}: on disk");
        }
    }
}

/// A buffered write of a part of a block and a direct overwrite of the same block, one acknowledged before the other begins, in both
/// orders: the later one wins, in the cache and on the device.
#[test]
fn a_part_of_a_block_and_a_direct_write_in_turn() {
    const WHOLE: usize = 4096;
    let f = Fixture::late(16 << 20, MemOptions::default(), busy());
    let inode = f.file("f");
    let (cached, direct) = (f.open(&inode), f.open_direct(&inode));
    for round in 0..64u64 {
        let at = round % 4 * WHOLE as u64;
        cached.write_at(&[1; WHOLE], at).unwrap();
        if round & 4 != 0 {
            cached.sync(SyncScope::Data).unwrap();
            f.vfs.drop_caches();
        }
        let submitted = round & 8 != 0;
        let over = || {
            let bytes = vec![7; WHOLE];
            if !submitted {
                return direct.write_at(&bytes, at).unwrap();
            }
            let (send, receive) = std::sync::mpsc::channel();
            let slices = vec![blockwright_device::AlignedBuf::copy_of(&bytes).into()];
            direct.submit_write(slices, at, Box::new(move |r| send.send(r).unwrap()));
            receive.recv().unwrap().unwrap()
        };
        let part = || cached.write_at(&[9; 200], at + 700).unwrap();
        let mut wanted = [7; WHOLE];
        if round & 16 != 0 {
            part();
            over();
        } else {
            over();
            part();
            wanted[700..900].fill(9);
        }
        let mut seen = [0; WHOLE];
        cached.read_at(&mut seen, at).unwrap();
        assert!(seen == wanted, "round {round}");
        cached.sync(SyncScope::Data).unwrap();
        let disk = f.engine.contents_on_disk(inode.ino()).unwrap();
        let start = at as usize;
        assert!(
            disk[start..start + WHOLE] == wanted,
            "round {round}: on disk"
        );
    }
}

/// Threads write while the volume is unmounted. What they were told is written is on the device afterwards, and the calls that fail say why.
#[test]
fn an_unmount_keeps_what_was_acknowledged_before() {
    const RECORD: usize = 64;
    for round in 0..60 {
        let f = Fixture::late(256 << 20, MemOptions::default(), busy());
        let files: Vec<_> = (0..3).map(|n| f.file(&format!("f{n}"))).collect();
        let begun = std::sync::Barrier::new(files.len() + 1);
        let acknowledged: Vec<_> = std::thread::scope(|s| {
            let writers: Vec<_> = files
                .iter()
                .enumerate()
                .map(|(n, inode)| {
                    let handle = f.open(inode);
                    let (f, begun) = (&f, &begun);
                    s.spawn(move || {
                        begun.wait();
                        for k in 0.. {
                            let wrote = match n {
                                // Names change, too.
                                0 if k % 4 == 3 => {
                                    let mut req =
                                        crate::CreateRequest::new(crate::FileKind::Regular, 0o644);
                                    req.exclusive = false;
                                    let name = format!("new{}", k % 7);
                                    f.vfs
                                        .create(&f.cred, &f.root, name.as_bytes(), &req)
                                        .map(drop)
                                }
                                _ => Ok(()),
                            };
                            let record = [k as u8 | 1; RECORD];
                            let at = k * RECORD as u64;
                            let wrote = wrote.and_then(|()| handle.write_at(&record, at));
                            if let Err(e) = wrote {
                                assert_eq!(e.kind(), ErrorKind::Stale, "{e}");
                                return k;
                            }
                        }
                        unreachable!("the volume is unmounted in the end")
                    })
                })
                .collect();
            begun.wait();
            std::thread::sleep(Duration::from_micros(round * 50));
            f.vfs.unmount().unwrap();
            writers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        for (inode, records) in files.iter().zip(acknowledged) {
            let kept = f.engine.contents_on_disk(inode.ino()).unwrap();
            assert!(
                kept.len() as u64 >= records * RECORD as u64,
                "round {round}"
            );
            for k in 0..records {
                let at = k as usize * RECORD;
                assert_eq!(
                    kept[at..at + RECORD],
                    [k as u8 | 1; RECORD],
                    "round {round}"
                );
            }
        }
    }
}
