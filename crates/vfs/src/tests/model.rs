//! Random operations on one file against a `Vec<u8>`.

use super::{Fixture, quiet, read_all, start_or_wait};
use crate::engine::{FallocMode, SyncScope};
use crate::error::ErrorKind;
use crate::testing::MemOptions;
use crate::{Carrier, Handle, MountOptions, Patience, ReadOp, SetAttr, WriteOp};
use blockwright_device::{AlignedBuf, Loan};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Added to every seed, for long runs: `MODEL_SEED=1000 cargo test model`.
fn seed_base() -> u64 {
    std::env::var("MODEL_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0)
}

type Flying = Vec<(mpsc::Receiver<crate::Result<usize>>, usize)>;

/// Submits the data cut at multiples of `unit` bytes of the file. `back`: as a front end writes back what it has cached.
fn submit_pieces(h: &Arc<Handle>, data: &[u8], offset: u64, unit: usize, back: bool) -> Flying {
    let mut flying = Flying::new();
    let mut at = 0;
    while at < data.len() {
        let here = (offset as usize + at) / unit * unit + unit - offset as usize;
        let piece = &data[at..here.min(data.len())];
        let (send, receive) = mpsc::channel();
        let done = Box::new(move |r| send.send(r).unwrap());
        let slices = vec![AlignedBuf::copy_of(piece).into()];
        let to = offset + at as u64;
        let carrier = Carrier::new(None);
        let op = WriteOp::at(to, slices).carried_by(&carrier);
        carrier.collect(|| match back {
            true => start_or_wait(h, op.written_back(), done),
            false => {
                if let Some(back) = h.start(op, done, Patience::Nowait) {
                    h.start(back.op, back.done, Patience::Worker);
                }
            }
        });
        flying.push((receive, piece.len()));
        at += piece.len();
    }
    flying
}

/// `lend`: into memory that holds something else before.
fn submitted_read(h: &Arc<Handle>, offset: u64, len: usize, lend: bool) -> Vec<u8> {
    let (send, receive) = mpsc::channel();
    let room = lend.then(|| {
        let mut stale = AlignedBuf::zeroed(len.next_multiple_of(4096));
        stale.fill(0xA5);
        Loan::of(stale, drop)
    });
    let done: crate::ReadDone = Box::new(move |r| send.send(r).unwrap());
    let op = ReadOp {
        room,
        ..ReadOp::new(offset, len)
    };
    start_or_wait(h, op, done);
    let slices = receive.recv().unwrap().unwrap();
    slices.iter().flat_map(|s| s.iter().copied()).collect()
}

fn run(seed: u64, mem: MemOptions, mount: MountOptions, late: bool, ops: usize) {
    let seed = seed + seed_base();
    println!("seed {seed} {mem:?}");
    let make = if late { Fixture::late } else { Fixture::new };
    let f = make(64 << 20, mem, mount);
    let mut rng = SmallRng::seed_from_u64(seed);
    let inode = f.file("f");
    let cached = f.open_above(&inode);
    let direct = f.open_direct(&inode);
    let block = u64::from(mem.block_bytes);
    let span = (block * 24).max(96 << 10);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..ops {
        let size = model.len() as u64;
        let offset = match rng.random_range(0..3) {
            0 => rng.random_range(0..span),
            1 => rng.random_range(0..span / block) * block,
            _ => size.min(span),
        };
        let len = match rng.random_range(0..4) {
            0 => rng.random_range(1..64),
            1 => block,
            2 => rng.random_range(1..=block * 4),
            _ => rng.random_range(1..=8) * block,
        };
        let h = if rng.random_bool(0.25) {
            &direct
        } else {
            &cached
        };
        let what = rng.random_range(0..100);
        println!(
            "step {step}: op {what} at {offset}+{len}, size {size}, direct {}",
            h.flags().direct
        );
        let mut extend = |to: u64| {
            if model.len() < to as usize {
                model.resize(to as usize, 0);
            }
        };
        match what {
            0..40 => {
                let byte = rng.random_range(1..=255u8);
                let data: Vec<u8> = (0..len).map(|i| byte ^ (i as u8)).collect();
                if rng.random_bool(0.5) {
                    // In several pieces that fly together, beside a cached write to other blocks.
                    let unit = [512, block][rng.random_range(0..2)] as usize;
                    let back = !h.flags().direct && rng.random_bool(0.5);
                    let flying = submit_pieces(h, &data, offset, unit, back);
                    let beside = (offset + len).next_multiple_of(block) + block;
                    if rng.random_bool(0.5) {
                        cached.write_at(&data[..1], beside).unwrap();
                        extend(beside + 1);
                        model[beside as usize] = data[0];
                    }
                    for (receive, n) in flying {
                        assert_eq!(receive.recv().unwrap().unwrap(), n);
                    }
                } else {
                    assert_eq!(h.write_at(&data, offset).unwrap(), data.len());
                }
                if model.len() < (offset + len) as usize {
                    model.resize((offset + len) as usize, 0);
                }
                model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
            }
            40..60 => {
                let (buf, n) = if rng.random_bool(0.5) {
                    let buf = submitted_read(h, offset, len as usize, rng.random_bool(0.5));
                    let n = buf.len();
                    (buf, n)
                } else {
                    let mut buf = vec![0xEE; len as usize];
                    let n = h.read_at(&mut buf, offset).unwrap();
                    (buf, n)
                };
                let want = model
                    .get(offset as usize..)
                    .map_or(&[][..], |m| &m[..m.len().min(len as usize)]);
                assert!(buf[..n] == *want, "step {step}: read {offset}+{len}");
            }
            60..68 => {
                h.set_len(offset).unwrap();
                model.resize(offset as usize, 0);
            }
            68..74 => {
                if h.fallocate(offset..offset + len, FallocMode::PunchHole)
                    .is_ok()
                {
                    let end = (offset + len).min(size) as usize;
                    if (offset as usize) < end {
                        model[offset as usize..end].fill(0);
                    }
                }
            }
            74..79 => {
                let keep_size = rng.random_bool(0.5);
                if h.fallocate(offset..offset + len, FallocMode::ZeroRange { keep_size })
                    .is_ok()
                {
                    if !keep_size {
                        extend(offset + len);
                    }
                    let end = (offset + len).min(model.len() as u64) as usize;
                    if (offset as usize) < end {
                        model[offset as usize..end].fill(0);
                    }
                }
            }
            79..82 => {
                let keep_size = rng.random_bool(0.5);
                if h.fallocate(offset..offset + len, FallocMode::Allocate { keep_size })
                    .is_ok()
                    && !keep_size
                {
                    extend(offset + len);
                }
            }
            82..85 => {
                let (s, e) = (
                    offset / block * block,
                    (offset + len).div_ceil(block) * block,
                );
                match h.fallocate(s..e, FallocMode::CollapseRange) {
                    Ok(()) => {
                        model.drain(s as usize..e as usize);
                    }
                    Err(e2) if e2.kind() == ErrorKind::Invalid => assert!(e >= size),
                    Err(e2) => assert_eq!(e2.kind(), ErrorKind::Unsupported),
                }
            }
            85..87 if size < 2 * span => {
                let (s, e) = (
                    offset / block * block,
                    (offset + len).div_ceil(block) * block,
                );
                match h.fallocate(s..e, FallocMode::InsertRange) {
                    Ok(()) => {
                        let tail = model.split_off(s as usize);
                        model.resize(e as usize, 0);
                        model.extend(tail);
                    }
                    Err(e2) if e2.kind() == ErrorKind::Invalid => assert!(s >= size),
                    Err(e2) => assert_eq!(e2.kind(), ErrorKind::Unsupported),
                }
            }
            87..90 => h.sync(SyncScope::Data).unwrap(),
            90..93 => f.vfs.sync().unwrap(),
            93..96 => f.vfs.drop_caches(),
            96..98 => {
                if size > 0 {
                    let at = rng.random_range(0..size);
                    let data = h.seek_data(at);
                    let hole = h.seek_hole(at).unwrap();
                    assert!(hole >= at && hole <= size);
                    if let Ok(data) = data {
                        assert!(
                            model[at as usize..data as usize].iter().all(|b| *b == 0),
                            "only zeroes before data"
                        );
                    }
                }
            }
            _ => {
                let req = SetAttr {
                    size: Some(size + 7),
                    ..SetAttr::default()
                };
                f.vfs.set_attr(&f.cred, &inode, &req).unwrap();
                model.resize(size as usize + 7, 0);
            }
        }
        assert_eq!(inode.size(), model.len() as u64, "step {step} op {what}");
    }
    assert!(read_all(&cached) == model, "at the end");
    f.vfs.sync().unwrap();
    assert!(
        f.engine.contents_on_disk(inode.ino()).unwrap() == model,
        "on disk"
    );
    assert_eq!(f.engine.reserved_blocks(), 0, "no reservation is left");
    f.vfs.drop_caches();
    assert!(read_all(&direct) == model, "past the cache");
    drop((cached, direct, inode));
    f.vfs.unlink(&f.cred, &f.root, b"f").unwrap();
    // The flusher may hold the last pin for a moment.
    for _ in 0..500 {
        if f.engine.inode_count() == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(f.engine.free_blocks(), (64 << 20) / block - 1, "all freed");
}

fn mem(block_bytes: u32) -> MemOptions {
    MemOptions {
        block_bytes,
        ..MemOptions::default()
    }
}

#[test]
fn blocks_of_4k() {
    for seed in 0..12 {
        run(seed, mem(4096), quiet(), false, 600);
    }
}

#[test]
fn blocks_of_1k() {
    for seed in 100..112 {
        run(seed, mem(1024), quiet(), false, 600);
    }
}

#[test]
fn blocks_of_64k() {
    for seed in 200..205 {
        run(seed, mem(65536), quiet(), false, 300);
    }
}

#[test]
fn short_targets() {
    for seed in 300..308 {
        let m = MemOptions {
            allocate_bytes_max: 8192,
            ..mem(4096)
        };
        run(seed, m, quiet(), false, 500);
    }
}

#[test]
fn inline_files() {
    for seed in 400..410 {
        let m = MemOptions {
            inline_bytes_max: 700,
            ..mem(1024)
        };
        run(seed, m, quiet(), false, 500);
    }
}

#[test]
fn tiny_cache_and_busy_flusher() {
    for seed in 500..508 {
        let mount = MountOptions {
            cache_bytes: 128 << 10,
            dirty_bytes_background: 16 << 10,
            dirty_bytes_max: 64 << 10,
            writeback_interval: Duration::from_millis(1),
            lazy_time_interval: Duration::from_millis(1),
            ..MountOptions::default()
        };
        run(seed, mem(4096), mount.clone(), true, 300);
        run(seed + 50, mem(1024), mount, false, 300);
    }
}

#[test]
fn late_completions() {
    for seed in 600..606 {
        run(seed, mem(4096), quiet(), true, 300);
    }
}

/// Writes past the cache that need nothing prepared, finished where they land.
#[test]
fn blocks_at_hand() {
    for seed in 650..658 {
        let m = |block_bytes, inline_bytes_max| MemOptions {
            preallocated: true,
            inline_bytes_max,
            ..mem(block_bytes)
        };
        run(seed, m(4096, 0), quiet(), true, 300);
        run(seed + 50, m(1024, 700), quiet(), false, 300);
    }
}

/// As mounts read and write back: what is large goes past the cache, here nearly everything.
#[test]
fn past_the_cache() {
    for (seed, past) in (900..).zip([1, 512, 4096, 8192]) {
        let mount = MountOptions {
            read_past_bytes: past,
            write_past_bytes: past,
            ..quiet()
        };
        let busy = MountOptions {
            cache_bytes: 128 << 10,
            dirty_bytes_background: 16 << 10,
            dirty_bytes_max: 64 << 10,
            writeback_interval: Duration::from_millis(1),
            ..mount.clone()
        };
        run(seed, mem(4096), mount.clone(), true, 300);
        run(seed + 10, mem(1024), mount, false, 300);
        run(seed + 20, mem(4096), busy.clone(), true, 300);
        run(seed + 30, mem(1024), busy, true, 300);
    }
}

#[test]
fn without_delayed_allocation() {
    let mount = MountOptions {
        delayed_allocation: false,
        ..quiet()
    };
    for seed in 700..704 {
        run(seed, mem(4096), mount.clone(), false, 300);
    }
}

/// What is there only for comparison is as correct.
#[test]
fn with_the_switches_off() {
    let mount = MountOptions {
        comparison: crate::Comparison {
            legacy_writeback: true,
            deferred_completion: true,
        },
        ..quiet()
    };
    let busy = MountOptions {
        cache_bytes: 128 << 10,
        dirty_bytes_background: 16 << 10,
        dirty_bytes_max: 64 << 10,
        writeback_interval: Duration::from_millis(1),
        ..mount.clone()
    };
    for seed in 800..804 {
        run(seed, mem(4096), mount.clone(), true, 300);
        run(seed + 50, mem(1024), busy.clone(), true, 300);
    }
}
