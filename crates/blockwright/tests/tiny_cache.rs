//! Caches smaller than what is written: slow, but every byte is there, and nothing waits forever. What a writer has just read in
//! order to change a part of it used to be dropped again to make room: overwrites went round forever, and what lived in an inode was lost.

use blockwright_test_support as common;

use blockwright::{Format, OpenOptions, Volume, VolumeBuilder, VolumeOptions};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_vfs::FallocMode;
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 128 << 20;

/// Bytes that differ from their neighbours.
fn pattern(n: usize, salt: u8) -> Vec<u8> {
    (0..n).map(|i| (i >> 3) as u8 ^ i as u8 ^ salt).collect()
}

fn volume(format: Format, features: &str, cache_bytes: u64) -> Volume {
    let device = Arc::new(MemoryDevice::new(BYTES)) as SharedDevice;
    VolumeBuilder::new()
        .format(format)
        .features(features)
        .size(BYTES)
        .create_on(&device)
        .expect("made");
    let mut options = VolumeOptions::default();
    options.parts.vfs.cache_bytes = cache_bytes;
    options.open_device(device).expect("opened")
}

/// Overwrites, appends, cuts and punches parts of blocks of files of all sizes, each of which is read from the device first.
fn change_parts(v: &Volume) {
    for (k, size) in [40usize, 700, 3000, 5000, 70_000, 600_000]
        .into_iter()
        .enumerate()
    {
        let path = format!("/{size}");
        let mut bytes = pattern(size, k as u8);
        v.write(&path, &bytes).expect("written");
        for round in 0..6u8 {
            v.sync().expect("durable");
            v.vfs().drop_caches();
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(v, &path)
                .expect("opened");
            let at = bytes.len() / 3 + usize::from(round);
            match round {
                0 => {
                    file.write_all_at(&[1; 10], at as u64).expect("written");
                    bytes[at..at + 10].fill(1);
                }
                1 => {
                    let n = bytes.len() / 2;
                    let new = pattern(n, 99);
                    file.write_all_at(&new, at as u64).expect("written");
                    bytes[at..at + n].copy_from_slice(&new);
                }
                2 => {
                    // Beyond the end: the old last block's rest becomes a hole's zeroes.
                    let end = bytes.len() + 6000;
                    file.write_all_at(&[2; 100], end as u64).expect("written");
                    bytes.resize(end, 0);
                    bytes.resize(end + 100, 2);
                }
                3 => {
                    let range = at as u64..at as u64 + 5;
                    let handle = file.handle();
                    handle
                        .fallocate(range, FallocMode::PunchHole)
                        .expect("punched");
                    bytes[at..at + 5].fill(0);
                }
                4 => {
                    file.set_len(at as u64).expect("cut");
                    bytes.truncate(at);
                }
                _ => {
                    file.set_len(at as u64 + 9000).expect("grown");
                    bytes.resize(at + 9000, 0);
                }
            }
            file.sync_all().expect("durable");
            drop(file);
            v.vfs().drop_caches();
            assert!(
                v.read(&path).expect("read") == bytes,
                "{path}, round {round}"
            );
        }
    }
}

#[test]
fn parts_of_blocks_change_in_caches_of_next_to_nothing() {
    for (format, features) in [
        (Format::Ext4, ""),
        (Format::Ext4, "inline_data"),
        (Format::Ext4, "^extent"),
        (Format::F2fs, "extra_attr"),
    ] {
        for cache_bytes in [4096, 64 << 10, 256 << 10] {
            let what = format!("{format:?} {features}, {cache_bytes} bytes of cache");
            common::guarded(&what, Duration::from_secs(200), move || {
                let v = volume(format, features, cache_bytes);
                change_parts(&v);
                v.close().expect("closed");
            });
        }
    }
}
