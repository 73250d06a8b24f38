//! Memory in use stays near the cache's budget, whatever is written and read. A program of its own, because it
//! looks at the whole process.

use blockwright::{OpenOptions, VolumeBuilder, VolumeOptions};
use blockwright_device::{AlignedBuf, IoSlice};
use blockwright_vfs::{Patience, WriteOp};
use std::sync::mpsc;
use std::time::Duration;

const CACHE: u64 = 32 << 20;
/// Part of that.
const METADATA: u64 = 8 << 20;
/// Beside the budget: threads, tables, what is in flight.
const REST: u64 = 64 << 20;

/// The most memory this process ever had resident, in bytes; `None` where the host does not tell.
fn resident_max() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[test]
fn resident_memory_follows_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    VolumeBuilder::new()
        .size(600 << 20)
        .create_new(&image)
        .unwrap();
    for (ordered, inline) in [(true, true), (false, false)] {
        let mut options = VolumeOptions::default();
        options.parts.vfs.cache_bytes = CACHE;
        options.parts.vfs.comparison.legacy_writeback = !ordered;
        options.parts.vfs.comparison.deferred_completion = !inline;
        options.parts.ext4.metadata_cache_bytes = METADATA;
        let volume = options.open(&image).unwrap();
        let open = |name: &str, direct: bool| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .direct(direct)
                .open(&volume, name)
                .unwrap()
        };
        // Two streams beside each other, five times the cache.
        std::thread::scope(|s| {
            for k in 0..2 {
                let file = open(&format!("/stream{k}"), false);
                s.spawn(move || {
                    let chunk = vec![k as u8 + 1; 1 << 20];
                    for at in 0..60u64 {
                        file.write_all_at(&chunk, at << 20).unwrap();
                    }
                    file.sync_all().unwrap();
                });
            }
        });
        // Small writes all over, and reads of everything.
        let file = open("/stream0", false);
        for k in 0..20_000u64 {
            file.write_all_at(&[7; 100], k * 2971 % (60 << 20)).unwrap();
        }
        let mut buf = vec![0; 1 << 20];
        for at in 0..60u64 {
            file.read_at(&mut buf, at << 20).unwrap();
        }
        // Direct writes, 256 in flight, growing a file and then overwriting it.
        let direct = open("/direct", true);
        let slice: IoSlice = AlignedBuf::copy_of(&[9; 16384]).into();
        for _ in 0..2 {
            let (send, receive) = mpsc::channel();
            for k in 0..2048u64 {
                let send = send.clone();
                let done = Box::new(move |r: blockwright_vfs::Result<usize>| {
                    send.send(r.is_ok()).unwrap();
                });
                direct.handle().start(
                    WriteOp::at(k * 16384, vec![slice.clone()]),
                    done,
                    Patience::Worker,
                );
                if k >= 256 {
                    assert!(receive.recv_timeout(Duration::from_secs(60)).unwrap());
                }
            }
            for _ in 0..256 {
                assert!(receive.recv_timeout(Duration::from_secs(60)).unwrap());
            }
        }
        drop((file, direct));
        volume.close().unwrap();
    }
    let Some(most) = resident_max() else {
        blockwright_oracles::leave("the host does not tell how much memory is resident");
        return;
    };
    assert!(
        most <= CACHE + REST,
        "{} MiB were resident, {} allowed",
        most >> 20,
        (CACHE + REST) >> 20
    );
    println!("{} MiB of {} allowed", most >> 20, (CACHE + REST) >> 20);
}
