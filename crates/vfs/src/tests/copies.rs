//! Copies within a volume.

use super::{Fixture, LateDevice, quiet, read_all};
use crate::engine::{FallocMode, Place, SyncScope};
use crate::testing::MemOptions;
use crate::{ErrorKind, Handle, OpenFlags};
use blockwright_device::sim::memory::MemoryDevice;
use blockwright_device::{BlockDevice, Geometry, Request, SharedDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut out = vec![0; len];
    rng.fill(&mut out[..]);
    out
}

/// Counts the bytes of requests in flight.
struct Flying {
    inner: SharedDevice,
    now: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
}

impl BlockDevice for Flying {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, mut request: Request) {
        let bytes = request.op.bytes();
        let flying = self.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(flying, Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst);
        let (done, now) = (request.done, Arc::clone(&self.now));
        request.done = Box::new(move |d| {
            now.fetch_sub(bytes, Ordering::SeqCst);
            done(d);
        });
        self.inner.submit(request);
    }

    fn name(&self) -> String {
        "flying".to_owned()
    }
}

fn counter(f: &Fixture, name: &str) -> u64 {
    let stats = f.vfs.stats();
    stats.get(name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn a_long_copy_is_bounded_and_leaves_no_cache_behind() {
    let (now, most, requests) = Default::default();
    let device = Flying {
        inner: Arc::new(LateDevice::new(Arc::new(MemoryDevice::new(256 * MIB)))),
        now: Arc::clone(&now),
        most: Arc::clone(&most),
        requests: Arc::clone(&requests),
    };
    let f = Fixture::over(Arc::new(device), MemOptions::default(), quiet());
    let (a, b) = (f.file("a"), f.file("b"));
    let (from, to) = (f.open(&a), f.open(&b));
    let data = pattern(96 * MIB as usize + 777, 1);
    from.write_at(&data, 0).unwrap();
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    most.store(0, Ordering::SeqCst);
    requests.store(0, Ordering::SeqCst);
    let n = from.copy_range(0, &to, 0, u64::MAX).unwrap();
    assert_eq!(n, data.len() as u64);
    let (most, requests) = (most.load(Ordering::SeqCst), requests.load(Ordering::SeqCst));
    assert!(most <= 24 * MIB, "{most} bytes in flight");
    assert!(most > 2 * MIB, "one piece at a time: {most} bytes");
    // 49 pieces of 2 MiB, read and written, in requests of at most a MiB, and the end.
    assert!(requests <= 49 * 4 + 8, "{requests} requests");
    let cached = counter(&f, "cache_bytes");
    assert!(cached <= MIB / 2, "{cached} bytes are cached");
    assert_eq!(counter(&f, "bytes_copied"), data.len() as u64);
    assert_eq!(f.engine.extent_count(b.ino()), 1);
    to.sync(SyncScope::Data).unwrap();
    assert!(f.engine.contents_on_disk(b.ino()).unwrap() == data);
}

/// What of a file is where: holes, unwritten, data; as runs of (kind, end).
fn layout(h: &Handle) -> Vec<(u8, u64)> {
    let size = h.inode().size();
    let mut out: Vec<(u8, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let m = h.map(at, size - at).unwrap();
        let kind = match m.place {
            Place::Hole => b'h',
            Place::Unwritten(_) | Place::Reserved => b'u',
            _ => b'd',
        };
        at = (m.offset + m.bytes).min(size);
        match out.last_mut() {
            Some(last) if last.0 == kind => last.1 = at,
            _ => out.push((kind, at)),
        }
    }
    out
}

#[test]
fn holes_and_unwritten_blocks_are_kept_and_not_touched() {
    let f = Fixture::late(256 * MIB, MemOptions::default(), quiet());
    let (a, b) = (f.file("a"), f.file("b"));
    let (from, to) = (f.open(&a), f.open(&b));
    let data = pattern(2 * MIB as usize, 2);
    from.write_at(&data, 0).unwrap();
    let keep = FallocMode::Allocate { keep_size: false };
    from.fallocate(8 * MIB..20 * MIB, keep).unwrap();
    from.write_at(&data, 12 * MIB).unwrap();
    from.write_at(b"end", 100 << 30).unwrap();
    from.set_len(1 << 40).unwrap();
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    // The target is full of something else.
    to.write_at(&pattern(24 * MIB as usize, 3), 0).unwrap();
    f.vfs.sync().unwrap();
    let written = counter(&f, "bytes_written");
    let read = counter(&f, "bytes_read");
    assert_eq!(from.copy_range(0, &to, 0, u64::MAX).unwrap(), 1 << 40);
    assert_eq!(layout(&to), layout(&from));
    assert_eq!(layout(&to).len(), 8, "{:?}", layout(&to));
    assert!(counter(&f, "bytes_written") - written < 5 * MIB);
    assert!(counter(&f, "bytes_read") - read < 5 * MIB);
    let mut got = vec![0; 24 * MIB as usize];
    to.read_at(&mut got, 0).unwrap();
    let mut want = vec![0; 24 * MIB as usize];
    want[..data.len()].copy_from_slice(&data);
    want[12 * MIB as usize..][..data.len()].copy_from_slice(&data);
    assert!(got == want);
}

#[test]
fn what_is_dirty_is_copied_without_writing_it_back() {
    let f = Fixture::late(64 * MIB, MemOptions::default(), quiet());
    let (a, b) = (f.file("a"), f.file("b"));
    let (from, to) = (f.open(&a), f.open(&b));
    let data = pattern(4 * MIB as usize, 4);
    from.write_at(&data, 0).unwrap();
    let n = from.copy_range(0, &to, 0, 4 * MIB).unwrap();
    assert_eq!(n, 4 * MIB);
    assert!(f.engine.contents_on_disk(b.ino()).unwrap() == data);
    assert_eq!(
        f.engine.extent_count(a.ino()),
        0,
        "the source has no blocks"
    );
    assert!(a.pages.is_dirty());
}

#[test]
fn errors_and_a_full_volume() {
    let f = Fixture::late(32 * MIB, MemOptions::default(), quiet());
    let (a, b) = (f.file("a"), f.file("b"));
    let (from, to) = (f.open(&a), f.open(&b));
    let data = pattern(20 * MIB as usize, 5);
    from.write_at(&data, 0).unwrap();
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    let device = Arc::clone(f.engine.device());
    device.fail_reads.store(true, Ordering::SeqCst);
    let e = from.copy_range(0, &to, 0, 20 * MIB).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    device.fail_reads.store(false, Ordering::SeqCst);
    device.fail_writes.store(true, Ordering::SeqCst);
    let e = from.copy_range(0, &to, 0, 20 * MIB).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    device.fail_writes.store(false, Ordering::SeqCst);
    to.set_len(0).unwrap();
    // No room for all: a part, then the reason.
    let mut done = 0;
    let e = loop {
        match from.copy_range(done, &to, done, 20 * MIB - done) {
            Ok(n) => {
                assert!(n > 0);
                done += n;
            }
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert!(done >= 8 * MIB, "{done}");
    let mut got = vec![0; done as usize];
    to.read_at(&mut got, 0).unwrap();
    assert!(got == data[..done as usize]);
    assert_eq!(f.engine.reserved_blocks(), 0);

    let overlapping = from.copy_range(0, &from, 4096, 8192).unwrap_err();
    assert_eq!(overlapping.kind(), ErrorKind::Invalid);
    let other = Fixture::new(16 * MIB, MemOptions::default(), quiet());
    let elsewhere = other.open(&other.file("c"));
    let e = from.copy_range(0, &elsewhere, 0, 100).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::CrossDevice);
    let append = OpenFlags {
        append: true,
        ..OpenFlags::read_write()
    };
    let append = f.vfs.open(&f.cred, &b, append).unwrap();
    let e = from.copy_range(0, &append, 0, 100).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
}

/// Random files, random ranges, against arrays of bytes.
#[test]
fn random_copies_agree_with_a_model() {
    let seed = std::env::var("SEED").map_or(77, |s| s.parse().unwrap());
    for round in 0..4u64 {
        eprintln!("seed {seed}, round {round}");
        let mem = MemOptions {
            block_bytes: [4096, 1024][round as usize % 2],
            inline_bytes_max: [0, 100][round as usize / 2 % 2],
            allocate_bytes_max: [u64::MAX, 300 << 10][round as usize % 2],
            ..MemOptions::default()
        };
        let f = Fixture::late(512 * MIB, mem, quiet());
        let mut rng = StdRng::seed_from_u64(seed + round);
        let files: Vec<_> = (0..3).map(|k| f.file(&format!("f{k}"))).collect();
        let handles: Vec<[Arc<Handle>; 2]> = files
            .iter()
            .map(|i| [f.open(i), f.open_direct(i)])
            .collect();
        let mut model: Vec<Vec<u8>> = vec![Vec::new(); 3];
        for step in 0..50 {
            let k = rng.random_range(0..3usize);
            let pos = |rng: &mut StdRng| match rng.random_range(0..3) {
                0 => rng.random_range(0..40u64) * 128 * 1024,
                1 => rng.random_range(0..5000u64) * 1024,
                _ => rng.random_range(0..5 * MIB),
            };
            let at = pos(&mut rng);
            let len = match rng.random_range(0..3) {
                0 => rng.random_range(1..9000),
                1 => rng.random_range(1..400_000),
                _ => rng.random_range(1..5 * MIB),
            };
            let h = &handles[k][rng.random_range(0..2usize)];
            match rng.random_range(0..10) {
                0..2 => {
                    let data = pattern(len as usize, step);
                    assert_eq!(h.write_at(&data, at).unwrap() as u64, len);
                    let m = &mut model[k];
                    m.resize(m.len().max((at + len) as usize), 0);
                    m[at as usize..(at + len) as usize].copy_from_slice(&data);
                }
                2 => {
                    let keep = FallocMode::Allocate { keep_size: false };
                    match h.fallocate(at..at + len, keep) {
                        // What lives in its inode has no blocks.
                        Err(e) if e.kind() == ErrorKind::Unsupported => continue,
                        other => other.unwrap(),
                    }
                    let m = &mut model[k];
                    m.resize(m.len().max((at + len) as usize), 0);
                }
                3 => {
                    match h.fallocate(at..at + len, FallocMode::PunchHole) {
                        Err(e) if e.kind() == ErrorKind::Unsupported => continue,
                        other => other.unwrap(),
                    }
                    let m = &mut model[k];
                    let end = m.len().min((at + len) as usize);
                    if (at as usize) < end {
                        m[at as usize..end].fill(0);
                    }
                }
                4 => {
                    h.set_len(at).unwrap();
                    model[k].resize(at as usize, 0);
                }
                5 => {
                    f.vfs.sync().unwrap();
                    f.vfs.drop_caches();
                }
                _ => {
                    let to = rng.random_range(0..3usize);
                    let target = match rng.random_range(0..2) {
                        // Often alike within their blocks, so that long runs go past the cache.
                        0 => pos(&mut rng) / 4096 * 4096 + at % 4096,
                        _ => pos(&mut rng),
                    };
                    let n = len.min((model[k].len() as u64).saturating_sub(at));
                    let overlap = k == to && at < target + len && target < at + len;
                    let h2 = &handles[to][rng.random_range(0..2usize)];
                    let mut done = 0;
                    if overlap {
                        let e = h.copy_range(at, h2, target, len).unwrap_err();
                        assert_eq!(e.kind(), ErrorKind::Invalid);
                        continue;
                    }
                    while done < n {
                        let some = rng.random_range(1..8 * MIB);
                        let more = h
                            .copy_range_some(at + done, h2, target + done, n - done, some)
                            .unwrap();
                        assert!(more > 0);
                        done += more;
                    }
                    assert_eq!(h.copy_range(at + done, h2, target + done, 0).unwrap(), 0);
                    if n > 0 {
                        let bytes = model[k][at as usize..(at + n) as usize].to_vec();
                        let m = &mut model[to];
                        m.resize(m.len().max((target + n) as usize), 0);
                        m[target as usize..(target + n) as usize].copy_from_slice(&bytes);
                    }
                }
            }
            for (h, m) in handles.iter().zip(&model) {
                let got = read_all(&h[step as usize % 2]);
                assert_eq!(got.len(), m.len(), "step {step}");
                if let Some(bad) = got.iter().zip(m).position(|(a, b)| a != b) {
                    panic!("step {step}: byte {bad} differs");
                }
            }
        }
        f.vfs.sync().unwrap();
        for (inode, m) in files.iter().zip(&model) {
            assert!(f.engine.contents_on_disk(inode.ino()).unwrap() == *m);
        }
        assert_eq!(f.engine.reserved_blocks(), 0);
    }
}
