//! Streaming reads of a mounted volume, which go past its cache, beside changes of every kind. Once per transport.

use crate::cases::{noise, options};
use crate::support::{Mounted, can_mount};
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

fn forget_pages(path: &std::path::Path) {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn streams_go_past_the_cache_and_see_every_change() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("stream");
    let mut data = noise((24 << 20) + 12_345, 7);
    fs::write(&path, &data).unwrap();
    let past = || {
        let all = m.volume.vfs.counters();
        all.iter()
            .find(|(n, _)| *n == "cache_reads_past")
            .unwrap()
            .1
    };
    let cold = |sync: bool| {
        if sync {
            File::open(&path).unwrap().sync_all().unwrap();
        }
        forget_pages(&path);
        m.volume.vfs.drop_caches();
    };
    cold(true);
    for round in 0..4u64 {
        let before = past();
        assert!(fs::read(&path).unwrap() == data, "round {round}");
        assert!(past() >= before + 12, "{} of 24 MiB", past() - before);
        // Beside readers at several places at once.
        cold(false);
        std::thread::scope(|scope| {
            for reader in 0..4usize {
                let (path, data) = (&path, &data);
                scope.spawn(move || {
                    let file = File::open(path).unwrap();
                    let mut buf = vec![0; 1 << 20];
                    for i in 0..24 {
                        let at = ((i * 7 + reader * 5) % 24) << 20;
                        file.read_exact_at(&mut buf, at as u64).unwrap();
                        assert!(buf == data[at..at + buf.len()]);
                    }
                });
            }
        });
        // Changed: by pages of the kernel's that it writes back, directly, and in between; some of it dirty in our cache.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let direct = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .unwrap();
        let fresh = noise(64 << 10, 100 + round);
        for i in 0..12usize {
            let at = ((i * 2) << 20) + 8192 * i;
            data[at..at + fresh.len()].copy_from_slice(&fresh);
            if i % 3 == 0 {
                let buf = blockwright_device::AlignedBuf::copy_of(&fresh);
                direct.write_all_at(&buf, at as u64).unwrap();
            } else {
                file.write_all_at(&fresh, at as u64).unwrap();
            }
        }
        rustix::fs::fallocate(
            &file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            (5 << 20) + 100,
            100_000,
        )
        .unwrap();
        data[(5 << 20) + 100..][..100_000].fill(0);
        drop(file);
        cold(round % 2 == 0);
    }
    m.unmount().unwrap();
}

#[test]
fn direct_appends_wait_for_nobody() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let count = |name| {
        let all = m.volume.vfs.counters();
        all.iter().find(|(n, _)| *n == name).unwrap().1
    };
    const PIECE: usize = 192 << 10;
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let path = m.path(&format!("appended-{writer}"));
            scope.spawn(move || {
                let data = noise(16 * PIECE, writer);
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(&path)
                    .unwrap();
                for (k, piece) in data.chunks(PIECE).enumerate() {
                    let piece = blockwright_device::AlignedBuf::copy_of(piece);
                    file.write_all_at(&piece, (k * PIECE) as u64).unwrap();
                }
                let mut back = blockwright_device::AlignedBuf::zeroed(data.len());
                file.read_exact_at(&mut back, 0).unwrap();
                assert!(back[..] == data[..]);
                drop(file);
                assert!(fs::read(&path).unwrap() == data);
            });
        }
    });
    assert_eq!(count("direct_writes_nowait"), 4 * 16);
    assert_eq!(count("direct_completions_deferred"), 4 * 16);
    m.unmount().unwrap();
}
