//! The contract of [`BlockDevice`](crate::BlockDevice) as tests that run on any device.
//!
//! [`run`] panics with the seed and the place of the first disagreement. The device must be
//! writable, at least [`BYTES_MIN`] bytes large and expendable: its contents are overwritten.
//!
//! Not covered: durability, which only a recording device can show.

use crate::sim::rng::SplitMix64;
use crate::{
    AlignedBuf, DevOffset, DeviceErrorKind, DeviceExt, Done, Flags, IoPriority, IoSlice, Op,
    Request, SharedDevice,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The smallest device that [`run`] takes.
pub const BYTES_MIN: u64 = 4 << 20;

/// Longer than any device takes for one request; a completion that is lost fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every test on one device.
///
/// # Panics
/// When the device does not conform.
pub fn run(device: &SharedDevice, seed: u64) {
    assert!(
        device.geometry().bytes >= BYTES_MIN,
        "device too small for the suite"
    );
    geometry(device);
    refusals(device);
    synchronous_model(device, seed);
    submitted_model(device, seed);
    concurrent(device, seed);
    zeroes_and_discard(device);
    next_data(device);
    large_and_ragged(device, seed);
    submitting_from_completions(device);
    assert!(!device.name().is_empty());
}

fn block_of(device: &SharedDevice) -> usize {
    device.geometry().logical_block_bytes as usize
}

fn geometry(device: &SharedDevice) {
    let geometry = device.geometry();
    let block = geometry.logical_block_bytes;
    assert!(
        block.is_power_of_two() && (512..=65536).contains(&block),
        "{geometry:?}"
    );
    assert!(geometry.optimal_io_bytes >= block, "{geometry:?}");
    assert!(geometry.request_bytes_max >= block, "{geometry:?}");
    assert_eq!(geometry.request_bytes_max % block, 0, "{geometry:?}");
    assert_eq!(geometry.bytes % u64::from(block), 0, "{geometry:?}");
    assert!(!geometry.read_only, "the suite writes");
}

fn submit(device: &SharedDevice, op: Op, offset: u64, flags: Flags) -> Receiver<Done> {
    let (tell, told) = channel();
    let mut request = Request::new(op, DevOffset(offset), move |done| {
        tell.send(done)
            .expect("the test waits for every completion");
    });
    request.flags = flags;
    request.priority = IoPriority(2);
    device.submit(request);
    told
}

fn wait(told: &Receiver<Done>) -> Done {
    let done = told
        .recv_timeout(PATIENCE)
        .expect("the completion was never called");
    assert!(
        told.recv().is_err(),
        "the completion was called once and dropped"
    );
    done
}

fn refusals(device: &SharedDevice) {
    let (bytes, block) = (device.geometry().bytes, block_of(device) as u64);
    let out = DeviceErrorKind::OutOfRange {
        device_bytes: bytes,
    };
    let places = [
        (1, block),
        (block / 2, block),
        (0, block / 2),
        (0, block + 1),
        (bytes, block),
        (bytes - block, 2 * block),
        (u64::MAX - block + 1, block),
        (u64::MAX - block + 1, 2 * block),
    ];
    for (offset, len) in places {
        let fail = |name: &str, error: crate::DeviceError| {
            assert_eq!(error.kind, out, "{name} of {len} at {offset}");
            assert_eq!((error.offset.0, error.bytes), (offset, len), "{name}");
        };
        let at = DevOffset(offset);
        let mut buf = vec![0; len as usize];
        fail("read", device.read_at(at, &mut buf).unwrap_err());
        fail(
            "write",
            device.write_at(at, &buf, Flags::empty()).unwrap_err(),
        );
        fail("discard", device.discard(at, len).unwrap_err());
        fail("write-zeroes", device.write_zeroes(at, len).unwrap_err());
        let read = Op::Read(AlignedBuf::zeroed(len as usize));
        fail(
            "read",
            wait(&submit(device, read, offset, Flags::empty()))
                .result
                .unwrap_err(),
        );
        let write = || Op::Write(vec![AlignedBuf::copy_of(&buf).into()]);
        fail(
            "write",
            wait(&submit(device, write(), offset, Flags::empty()))
                .result
                .unwrap_err(),
        );
    }
    // The sum is aligned, the slices are not.
    let half = || IoSlice::from(AlignedBuf::zeroed(block as usize / 2));
    let error = device.write_slices(DevOffset(0), vec![half(), half()], Flags::empty());
    assert_eq!(error.unwrap_err().kind, out);
    // Nothing to do is done.
    device.read_at(DevOffset(0), &mut []).unwrap();
    device.write_at(DevOffset(bytes), &[], Flags::FUA).unwrap();
    device
        .write_slices(DevOffset(0), Vec::new(), Flags::empty())
        .unwrap();
    device.discard(DevOffset(0), 0).unwrap();
    device.write_zeroes(DevOffset(bytes), 0).unwrap();
    device.flush().unwrap();
}

/// A random range of at most `max` blocks, as (offset, length).
fn range(rng: &mut SplitMix64, area: usize, block: usize, max: usize) -> (usize, usize) {
    let len = (1 + rng.below(max as u64) as usize) * block;
    (
        rng.below(((area - len) / block + 1) as u64) as usize * block,
        len,
    )
}

fn random_flags(rng: &mut SplitMix64) -> Flags {
    if rng.chance(100) {
        Flags::FUA
    } else {
        Flags::empty()
    }
}

/// Slices at odd places of their buffers, whose lengths are whole blocks.
fn scatter(rng: &mut SplitMix64, mut bytes: &[u8], block: usize) -> Vec<IoSlice> {
    let mut slices = Vec::new();
    while !bytes.is_empty() {
        let blocks = 1 + rng.below((bytes.len() / block) as u64) as usize;
        let (head, rest) = bytes.split_at(blocks * block);
        let skip = [0, 0, block, 8, 1][rng.below(5) as usize];
        let mut buf = AlignedBuf::zeroed(skip + head.len() + 3);
        buf[skip..skip + head.len()].copy_from_slice(head);
        slices.push(IoSlice::new(Arc::new(buf), skip..skip + head.len()));
        bytes = rest;
    }
    slices
}

fn synchronous_model(device: &SharedDevice, seed: u64) {
    let (area, block) = (1 << 20, block_of(device));
    let mut rng = SplitMix64::new(seed);
    let mut model = vec![0; area];
    device.write_zeroes(DevOffset(0), area as u64).unwrap();
    for step in 0..400 {
        let (at, len) = range(&mut rng, area, block, 64.min(area / block / 2));
        let flags = random_flags(&mut rng);
        match rng.below(8) {
            0 | 1 => {
                rng.fill(&mut model[at..at + len]);
                // Shifted by one, so that the caller's memory is not aligned.
                let copy = [&[0], &model[at..at + len]].concat();
                device
                    .write_at(DevOffset(at as u64), &copy[1..], flags)
                    .unwrap();
            }
            2 | 3 => {
                rng.fill(&mut model[at..at + len]);
                let slices = scatter(&mut rng, &model[at..at + len], block);
                device
                    .write_slices(DevOffset(at as u64), slices, flags)
                    .unwrap();
            }
            4 => {
                model[at..at + len].fill(0);
                device
                    .write_zeroes(DevOffset(at as u64), len as u64)
                    .unwrap();
            }
            5 => {
                let back = device.read_buf(DevOffset(at as u64), len).unwrap();
                assert!(
                    *back == model[at..at + len],
                    "seed {seed} step {step}: {len} at {at}"
                );
            }
            _ => {
                let mut back = vec![0xEE; len + 1];
                device
                    .read_at(DevOffset(at as u64), &mut back[1..])
                    .unwrap();
                assert!(
                    back[1..] == model[at..at + len],
                    "seed {seed} step {step}: {len} at {at}"
                );
            }
        }
    }
    device.flush().unwrap();
    assert!(
        *device.read_buf(DevOffset(0), area).unwrap() == model,
        "seed {seed}: at the end"
    );
}

/// Many requests in flight on disjoint ranges, then all of it read back.
fn submitted_model(device: &SharedDevice, seed: u64) {
    let (area, block) = (2 << 20, block_of(device));
    let mut rng = SplitMix64::new(seed ^ 1);
    let mut model = vec![0; area];
    for round in 0..4 {
        let mut told = Vec::new();
        let mut at = 0;
        while at < area {
            let len = ((1 + rng.below(16) as usize) * block).min(area - at);
            let flags = random_flags(&mut rng);
            let op = if rng.chance(100) {
                model[at..at + len].fill(0);
                Op::WriteZeroes { bytes: len as u64 }
            } else {
                rng.fill(&mut model[at..at + len]);
                Op::Write(scatter(&mut rng, &model[at..at + len], block))
            };
            told.push(submit(device, op, at as u64, flags));
            at += len;
        }
        for told in &told {
            let done = wait(told);
            done.result.unwrap();
            assert!(done.read.is_none());
        }
        wait(&submit(device, Op::Flush, 0, Flags::empty()))
            .result
            .unwrap();
        let reads: Vec<_> = (0..200)
            .map(|_| {
                let (at, len) = range(&mut rng, area, block, 32.min(area / block / 2));
                let op = Op::Read(AlignedBuf::zeroed(len));
                (at, len, submit(device, op, at as u64, Flags::empty()))
            })
            .collect();
        for (at, len, told) in reads {
            let done = wait(&told);
            done.result.unwrap();
            let read = done.read.expect("the buffer comes back");
            assert!(
                *read == model[at..at + len],
                "seed {seed} round {round}: {len} at {at}"
            );
        }
    }
}

/// Threads with a part of the device each, synchronous and submitted mixed.
fn concurrent(device: &SharedDevice, seed: u64) {
    const THREADS: usize = 4;
    let (part, block) = ((BYTES_MIN as usize) / THREADS, block_of(device));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut rng = SplitMix64::new(seed ^ (thread as u64) << 32);
                let base = thread * part;
                let mut model = vec![0; part];
                device
                    .write_at(DevOffset(base as u64), &model, Flags::empty())
                    .unwrap();
                for step in 0..150 {
                    let (at, len) = range(&mut rng, part, block, 16);
                    let place = (base + at) as u64;
                    match rng.below(5) {
                        0 => {
                            rng.fill(&mut model[at..at + len]);
                            let copy = &model[at..at + len];
                            device
                                .write_at(DevOffset(place), copy, Flags::empty())
                                .unwrap();
                        }
                        1 | 2 => {
                            rng.fill(&mut model[at..at + len]);
                            let op = Op::Write(scatter(&mut rng, &model[at..at + len], block));
                            wait(&submit(device, op, place, Flags::empty()))
                                .result
                                .unwrap();
                        }
                        3 if rng.chance(100) => device.flush().unwrap(),
                        _ => {
                            let back = device.read_buf(DevOffset(place), len).unwrap();
                            assert!(
                                *back == model[at..at + len],
                                "seed {seed} thread {thread} step {step}: {len} at {at}"
                            );
                        }
                    }
                }
            });
        }
    });
}

fn zeroes_and_discard(device: &SharedDevice) {
    let (area, block) = (1 << 20, block_of(device));
    device
        .write_at(DevOffset(0), &vec![0x5A; area], Flags::empty())
        .unwrap();
    let (start, end) = (3 * block, area - 5 * block);
    device
        .write_zeroes(DevOffset(start as u64), (end - start) as u64)
        .unwrap();
    let back = device.read_buf(DevOffset(0), area).unwrap();
    assert!(
        back[..start]
            .iter()
            .chain(&back[end..])
            .all(|byte| *byte == 0x5A)
    );
    assert!(back[start..end].iter().all(|byte| *byte == 0));
    device
        .write_at(DevOffset(0), &vec![0xA5; area], Flags::empty())
        .unwrap();
    wait(&submit(
        device,
        Op::Discard {
            bytes: (end - start) as u64,
        },
        start as u64,
        Flags::empty(),
    ))
    .result
    .unwrap();
    let back = device.read_buf(DevOffset(0), area).unwrap();
    assert!(
        back[..start]
            .iter()
            .chain(&back[end..])
            .all(|byte| *byte == 0xA5)
    );
    assert!(
        back[start..end].iter().all(|byte| matches!(byte, 0 | 0xA5)),
        "neither old nor zero"
    );
}

/// What is passed over as zero is zero, and the answer can be read at.
fn next_data(device: &SharedDevice) {
    let (area, block) = (BYTES_MIN, block_of(device) as u64);
    device.write_zeroes(DevOffset(0), area).unwrap();
    let data = area / 2 + 3 * block;
    let byte = vec![1; block as usize];
    device
        .write_at(DevOffset(data), &byte, Flags::empty())
        .unwrap();
    for at in (0..=data / block).step_by(7).chain([data / block]) {
        let at = at * block;
        let found = device.next_data(DevOffset(at)).0;
        assert!(
            (at..=data).contains(&found) && found.is_multiple_of(block),
            "the next data from {at}: {found}, and there is data at {data}"
        );
    }
}

/// Requests larger than the device takes at once, with very many slices.
fn large_and_ragged(device: &SharedDevice, seed: u64) {
    let block = block_of(device);
    let bytes = BYTES_MIN as usize - block;
    let mut rng = SplitMix64::new(seed ^ 2);
    let mut model = vec![0; bytes];
    rng.fill(&mut model);
    let whole = Arc::new(AlignedBuf::copy_of(&model));
    let slices: Vec<IoSlice> = (0..bytes / block)
        .map(|index| IoSlice::new(Arc::clone(&whole), index * block..(index + 1) * block))
        .collect();
    let told = submit(
        device,
        Op::Write(slices.clone()),
        block as u64,
        Flags::empty(),
    );
    wait(&told).result.unwrap();
    let read = Op::Read(AlignedBuf::zeroed(bytes));
    let done = wait(&submit(device, read, block as u64, Flags::empty()));
    done.result.unwrap();
    assert!(*done.read.expect("the buffer comes back") == model);
    device.write_zeroes(DevOffset(0), BYTES_MIN).unwrap();
    device
        .write_vectored_at(DevOffset(block as u64), &slices, Flags::FUA)
        .unwrap();
    let mut back = vec![0; bytes + 1];
    device
        .read_at(DevOffset(block as u64), &mut back[1..])
        .unwrap();
    assert!(back[1..] == model);
}

/// A completion may submit, also when the device's queue is full: chains of requests end.
fn submitting_from_completions(device: &SharedDevice) {
    const CHAINS: usize = 1500;
    const LENGTH: usize = 4;
    let holders = Arc::strong_count(device);
    let (tell, told) = channel();
    let finished = Arc::new(AtomicUsize::new(0));
    fn link(device: &SharedDevice, left: usize, finish: Arc<dyn Fn() + Send + Sync>) {
        let next = Arc::downgrade(device);
        let op = Op::Read(AlignedBuf::zeroed(
            device.geometry().logical_block_bytes as usize,
        ));
        device.submit(Request::new(op, DevOffset(0), move |done| {
            done.result.unwrap();
            match next.upgrade() {
                Some(device) if left > 0 => link(&device, left - 1, finish),
                _ => finish(),
            }
        }));
    }
    let finish: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        if finished.fetch_add(1, Ordering::SeqCst) + 1 == CHAINS {
            tell.send(()).expect("the test waits");
        }
    });
    for _ in 0..CHAINS {
        link(device, LENGTH, Arc::clone(&finish));
    }
    told.recv_timeout(PATIENCE)
        .expect("chains of requests that never ended");
    // The last completions may still hold the device, which the caller wants to drop for good.
    while Arc::strong_count(device) > holders {
        std::thread::yield_now();
    }
}
