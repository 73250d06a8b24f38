//! Steps 3 and 5 of every write of data, direct or of cached pages: the requests of several targets are submitted together and
//! complete together. Then the engine commits the targets that are on the device and gives up the others.
//!
//! # Invariants
//! * Targets that follow each other on the device share a request, up to the largest that the device wants.
//! * `done` is called once, when all requests have ended.
//! * A request that fails, fails every target of which it has bytes.
//!
//! # Locks
//! None is held. The state of a submission is a leaf.

use crate::engine::{CommitWrite, Engine};
use crate::error::Result;
use crate::locks::{Mutex, Rank};
use blockwright_device::{
    BlockDevice, DevOffset, DeviceError, Flags, IoSlice, Op, Request, RingIntake,
};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The requests of some targets, in the making.
#[derive(Default)]
pub(crate) struct Writes {
    requests: SmallVec<[Gathered; 1]>,
    /// How many were added.
    targets: usize,
}

/// One request.
struct Gathered {
    device: u64,
    bytes: u64,
    slices: Vec<IoSlice>,
    /// The targets of which it has bytes, in the order in which they were added.
    targets: Range<usize>,
}

/// The targets of a request that failed, in the order in which they were added.
pub(crate) type Failed = (Range<usize>, DeviceError);

/// How requests are submitted.
#[derive(Clone, Default)]
pub(crate) struct How {
    pub(crate) flags: Flags,
    /// The submitting thread's own ring.
    pub(crate) ring: Option<RingIntake>,
    /// The caller waits. The last request is done in its thread, which spares that thread and the device's a wake-up each.
    pub(crate) waits: bool,
}

impl Writes {
    pub(crate) fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Adds the bytes of the next target, which go to `device`. A slice stays whole.
    pub(crate) fn add(&mut self, device: DevOffset, slices: Vec<IoSlice>, request_bytes_max: u64) {
        let targets = self.targets..self.targets + 1;
        self.targets += 1;
        let mut at = device.0;
        let bytes: u64 = slices.iter().map(|s| s.len() as u64).sum();
        let follows = |r: &Gathered, at| r.device + r.bytes == at;
        if bytes <= request_bytes_max && !self.requests.last().is_some_and(|r| follows(r, at)) {
            return self.requests.push(Gathered {
                device: at,
                bytes,
                slices,
                targets,
            });
        }
        for slice in slices {
            let bytes = slice.len() as u64;
            match self.requests.last_mut() {
                Some(r) if follows(r, at) && r.bytes + bytes <= request_bytes_max => {
                    r.bytes += bytes;
                    r.slices.push(slice);
                    r.targets.end = targets.end;
                }
                _ => self.requests.push(Gathered {
                    device: at,
                    bytes,
                    slices: vec![slice],
                    targets: targets.clone(),
                }),
            }
            at += bytes;
        }
    }

    /// Submits all of it. `done` gets the failures: in the device's context, or before this returns.
    pub(crate) fn submit(
        mut self,
        device: &dyn BlockDevice,
        how: &How,
        done: impl FnOnce(Vec<Failed>) + Send + 'static,
    ) {
        let Some(last) = self.requests.pop() else {
            return done(Vec::new());
        };
        if self.requests.is_empty() {
            return last.submit_last(device, how, move |failed| {
                done(failed.into_iter().collect())
            });
        }
        let all = Arc::new(Submission {
            left: AtomicUsize::new(self.requests.len() + 1),
            state: Mutex::new(Rank::Leaf, (Vec::new(), Some(done))),
        });
        for request in self.requests {
            let all = Arc::clone(&all);
            request.submit(device, how, move |failed| all.one_done(failed));
        }
        last.submit_last(device, how, move |failed| all.one_done(failed));
    }
}

impl Gathered {
    fn submit(
        self,
        device: &dyn BlockDevice,
        how: &How,
        done: impl FnOnce(Option<Failed>) + Send + 'static,
    ) {
        let targets = self.targets;
        let mut request = Request::new(
            Op::Write(self.slices),
            DevOffset(self.device),
            move |finished| done(finished.result.err().map(|e| (targets, e))),
        );
        request.flags = how.flags;
        request.ring.clone_from(&how.ring);
        device.submit(request);
    }

    fn submit_last(
        self,
        device: &dyn BlockDevice,
        how: &How,
        done: impl FnOnce(Option<Failed>) + Send + 'static,
    ) {
        if !how.waits {
            return self.submit(device, how, done);
        }
        let at = DevOffset(self.device);
        let result = device.write_vectored_at(at, &self.slices, how.flags);
        done(result.err().map(|e| (self.targets, e)));
    }
}

/// Several requests on their way.
struct Submission<F> {
    left: AtomicUsize,
    /// The failures, and the caller's completion.
    state: Mutex<(Vec<Failed>, Option<F>)>,
}

impl<F: FnOnce(Vec<Failed>)> Submission<F> {
    fn one_done(&self, failed: Option<Failed>) {
        if let Some(failed) = failed {
            self.state.lock().0.push(failed);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (failed, done) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.0), state.1.take())
        };
        if let Some(done) = done {
            done(failed);
        }
    }
}

/// A target whose write has ended.
pub(crate) struct Ended<'a> {
    pub(crate) write: CommitWrite<'a>,
    pub(crate) failed: bool,
}

/// Commits the targets that are on the device, together, and then gives up the others. One result for each in their order; what needs
/// no commit, or is given up, has none to report.
pub(crate) fn commit_or_abandon(engine: &dyn Engine, ended: &[Ended<'_>]) -> Vec<Result<()>> {
    let committed: Vec<CommitWrite<'_>> = ended
        .iter()
        .filter(|e| e.write.target.commit && !e.failed)
        .map(|e| e.write)
        .collect();
    let mut results = match committed.is_empty() {
        true => Vec::new(),
        false => engine.commit_writes(&committed),
    }
    .into_iter();
    let finish = |e: &Ended<'_>| {
        if !e.write.target.commit {
            return Ok(());
        }
        if e.failed {
            engine.abandon_write(e.write.inode, e.write.target);
            return Ok(());
        }
        results.next().unwrap_or(Ok(()))
    };
    ended.iter().map(finish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_device::{AlignedBuf, DeviceErrorKind, Geometry, MemoryDevice, Result};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const BLOCK: u64 = 4096;

    /// Fails the writes that touch one block, and counts all.
    struct OneBadBlock {
        inner: MemoryDevice,
        bad: u64,
        longest: AtomicUsize,
        requests: AtomicUsize,
    }

    impl BlockDevice for OneBadBlock {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn submit(&self, request: Request) {
            let bytes = request.op.bytes();
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.longest.fetch_max(bytes as usize, Ordering::Relaxed);
            let blocks = request.offset.0 / BLOCK..(request.offset.0 + bytes).div_ceil(BLOCK);
            if blocks.contains(&self.bad) {
                let error = request.error(DeviceErrorKind::Gone);
                return request.complete(Err(error));
            }
            self.inner.submit(request);
        }
        fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
            self.inner.read_at(offset, buf)
        }
        fn name(&self) -> String {
            "one bad block".to_owned()
        }
    }

    #[test]
    fn every_target_is_written_or_told_to_have_failed() {
        const BLOCKS: u64 = 256;
        for seed in 0..200u64 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let device = OneBadBlock {
                inner: MemoryDevice::new(BLOCKS * BLOCK),
                bad: rng.random_range(0..BLOCKS * 2),
                longest: AtomicUsize::new(0),
                requests: AtomicUsize::new(0),
            };
            let request_max = BLOCK * rng.random_range(2..9);
            let mut writes = Writes::default();
            let (mut targets, mut at) = (Vec::new(), 0);
            while rng.random_range(0..12) > 0 {
                // Some follow the one before.
                at += rng.random_range(0..2) * rng.random_range(1..20);
                let slices: Vec<u64> = (0..rng.random_range(1..4))
                    .map(|_| rng.random_range(1..3))
                    .collect();
                let blocks: u64 = slices.iter().sum();
                if at + blocks > BLOCKS {
                    break;
                }
                let fill = targets.len() as u8 + 1;
                let slices = slices
                    .iter()
                    .map(|n| AlignedBuf::copy_of(&vec![fill; (n * BLOCK) as usize]).into())
                    .collect();
                writes.add(DevOffset(at * BLOCK), slices, request_max);
                targets.push(at..at + blocks);
                at += blocks;
            }
            let how = How {
                waits: rng.random_range(0..2) == 0,
                ..How::default()
            };
            let (send, receive) = std::sync::mpsc::channel();
            let planned = writes.requests();
            writes.submit(&device, &how, move |failed| send.send(failed).unwrap());
            let failed = receive.recv().unwrap();
            assert!(receive.recv().is_err(), "seed {seed}: told twice");
            assert_eq!(planned, device.requests.load(Ordering::Relaxed));
            assert!(device.longest.load(Ordering::Relaxed) as u64 <= request_max);
            for (k, target) in targets.iter().enumerate() {
                let told = failed.iter().any(|(targets, _)| targets.contains(&k));
                assert!(told || !target.contains(&device.bad), "seed {seed}: {k}");
                let mut bytes = vec![0; ((target.end - target.start) * BLOCK) as usize];
                device
                    .read_at(DevOffset(target.start * BLOCK), &mut bytes)
                    .unwrap();
                let there = bytes.iter().all(|b| *b == k as u8 + 1);
                assert!(told || there, "seed {seed}: {k} is not on the device");
            }
            let hit = targets.iter().any(|t| t.contains(&device.bad));
            assert_eq!(failed.len(), usize::from(hit), "seed {seed}");
        }
    }
}
