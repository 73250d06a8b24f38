//! A device that remembers everything done to it, and builds the images a crash could leave.
//!
//! Storage is a [`MemoryDevice`]; every write, write-zeroes, discard and flush is also appended to
//! a log, in the order in which it was applied. A *cut* at `n` is a power failure at the moment
//! when exactly the first `n` entries had been submitted. [`RecordingDevice::image_at`] builds the
//! medium after it, by the durability model of the crate's head:
//!
//! * A write is **durable** at the cut when it was completed with FUA, or when a flush that was
//!   submitted after the write's completion had itself completed. Durable writes are kept.
//! * Every other write is **pending**: kept, dropped, or torn at logical-block boundaries, as the
//!   [`CrashPolicy`] decides. Kept writes are applied in log order: reordering shows as a later
//!   write kept while an earlier one is lost. Two writes of the *same* block cannot swap, because a
//!   write cache holds one version of a block.
//! * A discard, once durable, still promises nothing: about half of them (a fixed half for a given
//!   log) leave the old bytes in every image.
//!
//! With [`Completions::Deferred`] a thread completes requests later and in random order, so that
//! a flush covers only what was completed before it: a caller that does not wait is found out.
//!
//! Tests push [`markers`](RecordingDevice::marker) ("fsync of f returned") into the log, so that
//! the oracle knows what was promised at each cut.
//!
//! Locks: the log's, held while the entry is applied, so that log order is the order of effects;
//! never held during a completion. The memory device's shard locks are taken inside.

use super::memory::MemoryDevice;
use super::rng::SplitMix64;
use crate::{BlockDevice, DevOffset, Flags, Geometry, Op, Request, Result, refuse};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// When requests complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Completions {
    /// In the submitter's thread, at once.
    #[default]
    Inline,
    /// In another thread, later, in an order drawn from the seed (and the threads' timing).
    Deferred {
        /// Of the order.
        seed: u64,
    },
}

/// The fate of the writes that were not yet durable at the cut.
///
/// `usize` parameters count pending writes in log order; [`RecordingDevice::pending_at`] returns
/// their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// All are kept: the medium as reads saw it, discarded ranges apart.
    AllKept,
    /// None is kept.
    NoneKept,
    /// The first this many are kept.
    Prefix(usize),
    /// All are kept but this one.
    AllBut(usize),
    /// Only this one is kept.
    Only(usize),
    /// Every one is kept, dropped or torn by chance; the odds are drawn per image, too.
    Random {
        /// Decides everything.
        seed: u64,
    },
}

/// What a log entry did.
#[derive(Clone, Debug)]
pub enum Action {
    /// These bytes were written.
    Write {
        /// What was written.
        data: Arc<[u8]>,
        /// With [`Flags::FUA`].
        fua: bool,
        /// With [`Flags::META`].
        meta: bool,
    },
    /// Zeroes were written.
    WriteZeroes {
        /// How many.
        bytes: u64,
    },
    /// The range was discarded.
    Discard {
        /// Its length.
        bytes: u64,
    },
    /// A flush.
    Flush,
    /// A test's own note.
    Marker(Arc<str>),
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What was done.
    pub action: Action,
    /// Where.
    pub offset: DevOffset,
    /// How long the log was when the completion was about to be called: a cut there or later
    /// comes after the completion. `None` while in flight.
    pub completed: Option<usize>,
}

impl Entry {
    /// Length of the range that the entry changes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.action {
            Action::Write { data, .. } => data.len() as u64,
            Action::WriteZeroes { bytes } | Action::Discard { bytes } => *bytes,
            Action::Flush | Action::Marker(_) => 0,
        }
    }

    fn changes(&self) -> bool {
        !matches!(self.action, Action::Flush | Action::Marker(_))
    }

    fn completed_by(&self, cut: usize) -> bool {
        self.completed.is_some_and(|at| at <= cut)
    }

    /// Applies an entry that is durable. Whether a discard forgets depends on its place in the log
    /// alone, so that an image does not depend on which checkpoint it was built from.
    fn apply_durable(&self, image: &MemoryDevice, index: usize) {
        let forgets_nothing = matches!(self.action, Action::Discard { .. })
            && SplitMix64::new(index as u64).chance(500);
        if !forgets_nothing {
            self.apply(image, 0..self.bytes());
        }
    }

    fn apply(&self, image: &MemoryDevice, part: Range<u64>) {
        let at = self.offset.0 + part.start;
        match &self.action {
            Action::Write { data, .. } => {
                image.store(at, &data[part.start as usize..part.end as usize]);
            }
            Action::WriteZeroes { .. } | Action::Discard { .. } => {
                image.clear(at, part.end - part.start);
            }
            Action::Flush | Action::Marker(_) => {}
        }
    }
}

struct Deferred {
    requests: Sender<(Request, Option<usize>)>,
    thread: JoinHandle<()>,
}

/// See the module's head.
pub struct RecordingDevice {
    live: MemoryDevice,
    base: MemoryDevice,
    log: Arc<Mutex<Vec<Entry>>>,
    /// Images with the first `entries` log entries applied, good for every cut from the key on.
    /// They save replaying a long log from its beginning for each image.
    checkpoints: Mutex<BTreeMap<usize, (usize, Arc<MemoryDevice>)>>,
    deferred: Option<Deferred>,
}

/// How many log entries lie between two checkpoints.
const CHECKPOINT_ENTRIES: usize = 512;

impl RecordingDevice {
    /// Records what happens to a device that begins as a copy of `base`.
    #[must_use]
    pub fn new(base: &MemoryDevice) -> Self {
        Self::with_completions(base, Completions::Inline)
    }

    /// The same, choosing when requests complete.
    #[must_use]
    pub fn with_completions(base: &MemoryDevice, completions: Completions) -> Self {
        let log: Arc<Mutex<Vec<Entry>>> = Arc::default();
        let deferred = match completions {
            Completions::Inline => None,
            Completions::Deferred { seed } => {
                let (requests, queue) = channel();
                let log = Arc::clone(&log);
                let thread = std::thread::spawn(move || complete_later(&queue, &log, seed));
                Some(Deferred { requests, thread })
            }
        };
        RecordingDevice {
            live: base.snapshot(),
            base: base.snapshot(),
            log,
            checkpoints: Mutex::default(),
            deferred,
        }
    }

    /// Length of the log: the number of possible cuts, less one.
    #[must_use]
    pub fn log_len(&self) -> usize {
        self.log.lock().len()
    }

    /// A copy of the log's entries.
    #[must_use]
    pub fn log(&self) -> Vec<Entry> {
        self.log.lock().clone()
    }

    /// Notes that something happened now, and returns the note's index. Every cut *after* that
    /// index comes after what happened.
    pub fn marker(&self, label: impl Into<Arc<str>>) -> usize {
        let mut log = self.log.lock();
        let completed = Some(log.len() + 1);
        let action = Action::Marker(label.into());
        log.push(Entry {
            action,
            offset: DevOffset(0),
            completed,
        });
        log.len() - 1
    }

    /// The notes that came before a cut at `cut`, with their indices.
    #[must_use]
    pub fn markers_before(&self, cut: usize) -> Vec<(usize, Arc<str>)> {
        let log = self.log.lock();
        (log.iter().take(cut).enumerate())
            .filter_map(|(index, entry)| match &entry.action {
                Action::Marker(label) => Some((index, Arc::clone(label))),
                _ => None,
            })
            .collect()
    }

    /// The contents as reads see them now.
    #[must_use]
    pub fn live(&self) -> MemoryDevice {
        let _order = self.log.lock();
        self.live.snapshot()
    }

    /// Log indices of the writes that are pending at a cut.
    #[must_use]
    pub fn pending_at(&self, cut: usize) -> Vec<usize> {
        pending(&self.log.lock(), 0, cut)
    }

    /// The image that a power failure leaves when exactly the first `cut` entries had been
    /// submitted. Costs the changes since the last checkpoint, not the size of the device.
    ///
    /// # Panics
    /// When `cut` exceeds the log's length.
    #[must_use]
    pub fn image_at(&self, cut: usize, policy: CrashPolicy) -> MemoryDevice {
        // Entries are cheap to copy (counted data); building the image needs no lock then.
        let (start, image, entries) = {
            let (start, image) = self.start_for(cut);
            let log = self.log.lock();
            assert!(cut <= log.len(), "cut at {cut} of a log of {}", log.len());
            let mut entries = log[start..cut].to_vec();
            drop(log);
            for entry in &mut entries {
                // Indices relative to the current part.
                entry.completed = entry.completed.map(|at| at.saturating_sub(start));
            }
            (start, image.snapshot(), entries)
        };
        let pending = pending(&entries, 0, cut - start);
        if pending.first().map_or(entries.len(), |first| *first) >= CHECKPOINT_ENTRIES {
            let sure = pending.first().copied().unwrap_or(entries.len());
            let checkpoint = image.snapshot();
            for (index, entry) in entries[..sure].iter().enumerate() {
                entry.apply_durable(&checkpoint, start + index);
            }
            let value = (start + sure, Arc::new(checkpoint));
            self.checkpoints.lock().entry(cut).or_insert(value);
        }
        build(&image, &entries, start, &pending, policy);
        image
    }

    /// The nearest known image for a cut, and how many entries it contains.
    fn start_for(&self, cut: usize) -> (usize, Arc<MemoryDevice>) {
        let checkpoints = self.checkpoints.lock();
        match checkpoints.range(..=cut).next_back() {
            Some((_, (entries, image))) => (*entries, Arc::clone(image)),
            None => (0, Arc::new(self.base.snapshot())),
        }
    }

    /// Applies a request and logs it; returns the index of its entry, if it has one.
    fn perform(&self, request: &mut Request) -> Result<Option<usize>> {
        refuse::request(&self.live.geometry(), request)?;
        let at = request.offset.0;
        let flags = request.flags;
        let action = match &mut request.op {
            Op::Read(buf) => {
                self.live.fetch(at, buf);
                return Ok(None);
            }
            Op::Write(slices) => Action::Write {
                data: slices
                    .iter()
                    .map(|slice| &**slice)
                    .collect::<Vec<_>>()
                    .concat()
                    .into(),
                fua: flags.contains(Flags::FUA),
                meta: flags.contains(Flags::META),
            },
            Op::WriteZeroes { bytes } => Action::WriteZeroes { bytes: *bytes },
            Op::Discard { bytes } => Action::Discard { bytes: *bytes },
            Op::Flush => Action::Flush,
        };
        let entry = Entry {
            action,
            offset: request.offset,
            completed: None,
        };
        let mut log = self.log.lock();
        entry.apply(&self.live, 0..entry.bytes());
        log.push(entry);
        Ok(Some(log.len() - 1))
    }
}

/// Indices of entries before `cut` that change the medium and are not durable at it.
fn pending(log: &[Entry], from: usize, cut: usize) -> Vec<usize> {
    // A write that had completed by this index was covered by a completed flush.
    let covered = (log[..cut].iter().enumerate().rev())
        .find(|(_, entry)| matches!(entry.action, Action::Flush) && entry.completed_by(cut))
        .map(|(index, _)| index);
    (from..cut)
        .filter(|&index| {
            let entry = &log[index];
            let fua = matches!(entry.action, Action::Write { fua: true, .. });
            let durable = (fua && entry.completed_by(cut))
                || covered.is_some_and(|flush| entry.completed_by(flush));
            entry.changes() && !durable
        })
        .collect()
}

/// Applies `entries`, whose first has the log index `start`, as the policy says.
fn build(
    image: &MemoryDevice,
    entries: &[Entry],
    start: usize,
    pending: &[usize],
    policy: CrashPolicy,
) {
    let seed = if let CrashPolicy::Random { seed } = policy {
        seed
    } else {
        0
    };
    let mut rng = SplitMix64::new(seed);
    let keep_per_mille = [50, 300, 500, 700, 950][rng.below(5) as usize];
    let tear_per_mille = [0, 100, 500][rng.below(3) as usize];
    let mut waiting = pending.iter().enumerate().peekable();
    for (index, entry) in entries.iter().enumerate() {
        if !entry.changes() {
            continue;
        }
        let all = 0..entry.bytes();
        let Some((number, _)) = waiting.next_if(|(_, at)| **at == index) else {
            entry.apply_durable(image, start + index);
            continue;
        };
        let keep = match policy {
            CrashPolicy::AllKept => true,
            CrashPolicy::NoneKept => false,
            CrashPolicy::Prefix(count) => number < count,
            CrashPolicy::AllBut(one) => number != one,
            CrashPolicy::Only(one) => number == one,
            CrashPolicy::Random { .. } => {
                let block = u64::from(image.geometry().logical_block_bytes);
                if entry.bytes() > block && rng.chance(tear_per_mille) {
                    tear(image, entry, block, &mut rng);
                    continue;
                }
                rng.chance(keep_per_mille)
            }
        };
        if keep {
            entry.apply(image, all);
        }
    }
}

/// Keeps some of an entry's blocks: a prefix, a suffix, or any.
fn tear(image: &MemoryDevice, entry: &Entry, block: u64, rng: &mut SplitMix64) {
    let bytes = entry.bytes();
    let at = rng.below(bytes / block) * block;
    match rng.below(3) {
        0 => entry.apply(image, 0..at),
        1 => entry.apply(image, at..bytes),
        _ => {
            // Long ranges are torn into at most about a thousand pieces.
            let unit = (bytes / 1024).next_multiple_of(block).max(block);
            let mut start = 0;
            while start < bytes {
                let end = bytes.min(start + unit);
                if rng.chance(500) {
                    entry.apply(image, start..end);
                }
                start = end;
            }
        }
    }
}

/// Logs the completion, then calls it. A cut in between leaves a request that completed and was not reported.
fn complete(log: &Mutex<Vec<Entry>>, request: Request, entry: Option<usize>) {
    if let Some(index) = entry {
        let mut log = log.lock();
        let now = log.len();
        log[index].completed = Some(now);
    }
    request.complete(Ok(()));
}

fn complete_later(queue: &Receiver<(Request, Option<usize>)>, log: &Mutex<Vec<Entry>>, seed: u64) {
    const HELD_MAX: usize = 32;
    let mut rng = SplitMix64::new(seed);
    let mut held = Vec::new();
    loop {
        let next = if held.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            // A short wait lets requests gather, so that there is an order to choose.
            queue.recv_timeout(Duration::from_micros(rng.below(100)))
        };
        match next {
            Ok(one) => {
                held.push(one);
                if held.len() <= HELD_MAX {
                    continue;
                }
            }
            Err(RecvTimeoutError::Disconnected) if held.is_empty() => return,
            Err(_) => {}
        }
        let (request, entry) = held.swap_remove(rng.below(held.len() as u64) as usize);
        complete(log, request, entry);
    }
}

impl BlockDevice for RecordingDevice {
    fn geometry(&self) -> Geometry {
        self.live.geometry()
    }

    fn submit(&self, mut request: Request) {
        match (self.perform(&mut request), &self.deferred) {
            (Err(error), _) => request.complete(Err(error)),
            (Ok(entry), None) => complete(&self.log, request, entry),
            (Ok(entry), Some(deferred)) => {
                if let Err(unsent) = deferred.requests.send((request, entry)) {
                    let (request, entry) = unsent.0;
                    complete(&self.log, request, entry);
                }
            }
        }
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        self.live.read_at(offset, buf)
    }

    fn name(&self) -> String {
        format!("recording of {}", self.live.name())
    }
}

impl Drop for RecordingDevice {
    fn drop(&mut self) {
        if let Some(Deferred { requests, thread }) = self.deferred.take() {
            drop(requests);
            // Dropped by one of its own completions, the thread ends by itself.
            if thread.thread().id() != std::thread::current().id() {
                let _panic_was_reported = thread.join().is_err();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    fn write(device: &RecordingDevice, block: u64, value: u8, flags: Flags) {
        device
            .write_at(DevOffset(block * 512), &[value; 512], flags)
            .unwrap();
    }

    fn block(image: &MemoryDevice, block: u64) -> u8 {
        let mut bytes = [0; 512];
        image.read_at(DevOffset(block * 512), &mut bytes).unwrap();
        assert!(
            bytes.iter().all(|byte| *byte == bytes[0]),
            "torn inside a block"
        );
        bytes[0]
    }

    #[test]
    fn conforms() {
        for completions in [Completions::Inline, Completions::Deferred { seed: 3 }] {
            let base = MemoryDevice::new(crate::conformance::BYTES_MIN);
            let device = Arc::new(RecordingDevice::with_completions(&base, completions));
            crate::conformance::run(&(Arc::clone(&device) as crate::SharedDevice), 2);
            let (all, len) = (CrashPolicy::AllKept, device.log_len());
            assert!(device.image_at(len, all).to_vec() == device.live().to_vec());
        }
    }

    #[test]
    fn flush_and_fua_make_durable() {
        let device = RecordingDevice::new(&MemoryDevice::new(1 << 20));
        write(&device, 0, 1, Flags::empty());
        write(&device, 1, 2, Flags::FUA);
        let image = device.image_at(2, CrashPolicy::NoneKept);
        assert_eq!((block(&image, 0), block(&image, 1)), (0, 2));
        device.flush().unwrap();
        write(&device, 0, 3, Flags::empty());
        assert_eq!(device.pending_at(4), [3]);
        assert_eq!(block(&device.image_at(4, CrashPolicy::NoneKept), 0), 1);
        assert_eq!(block(&device.image_at(4, CrashPolicy::AllKept), 0), 3);
        assert_eq!(block(&device.image_at(2, CrashPolicy::AllKept), 0), 1);
        assert_eq!(block(&device.image_at(0, CrashPolicy::AllKept), 0), 0);
    }

    #[test]
    fn deterministic_policies_choose_by_number() {
        let device = RecordingDevice::new(&MemoryDevice::new(1 << 20));
        for number in 0..4 {
            write(&device, number, 9, Flags::empty());
        }
        let kept = |policy| {
            let image = device.image_at(4, policy);
            (0..4).map(|at| block(&image, at) == 9).collect::<Vec<_>>()
        };
        assert_eq!(kept(CrashPolicy::Prefix(2)), [true, true, false, false]);
        assert_eq!(kept(CrashPolicy::AllBut(1)), [true, false, true, true]);
        assert_eq!(kept(CrashPolicy::Only(2)), [false, false, true, false]);
    }

    #[test]
    fn random_images_are_repeatable_and_differ() {
        let device = RecordingDevice::new(&MemoryDevice::from_image(&[1; 65536]));
        for round in 0..20 {
            let bytes = [round + 2; 4096];
            device
                .write_at(
                    DevOffset(u64::from(round % 8) * 4096),
                    &bytes,
                    Flags::empty(),
                )
                .unwrap();
        }
        let image = |seed| device.image_at(20, CrashPolicy::Random { seed }).to_vec();
        let mut seen = std::collections::HashSet::new();
        let mut torn = false;
        for seed in 0..64 {
            let bytes = image(seed);
            assert_eq!(bytes, image(seed), "seed {seed}");
            // Every block has a value that was once written there, whole.
            for (at, sector) in bytes.chunks(512).enumerate() {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
                let value = usize::from(sector[0]);
                assert!(
                    value == 1 || (value - 2) % 8 == at / 8,
                    "seed {seed} sector {at}"
                );
            }
            torn |= bytes.chunks(4096).any(|page| page[0] != page[4095]);
            seen.insert(bytes);
        }
        assert!(seen.len() > 30 && torn, "{} images", seen.len());
    }

    #[test]
    fn checkpoints_do_not_change_images() {
        let device = RecordingDevice::new(&MemoryDevice::new(1 << 20));
        let mut rng = SplitMix64::new(5);
        for step in 0..3000u64 {
            write(&device, rng.below(64), (step % 255) as u8, Flags::empty());
            if rng.chance(20) {
                device.flush().unwrap();
            }
        }
        let len = device.log_len();
        let cuts: Vec<usize> = (0..40)
            .map(|_| rng.below(len as u64 + 1) as usize)
            .collect();
        let fresh = |cut| {
            device.checkpoints.lock().clear();
            device.image_at(cut, CrashPolicy::NoneKept).to_vec()
        };
        let slow: Vec<_> = cuts.iter().map(|cut| fresh(*cut)).collect();
        let _warm = device.image_at(len, CrashPolicy::AllKept);
        for _ in 0..2 {
            for (cut, slow) in cuts.iter().zip(&slow) {
                assert!(
                    device.image_at(*cut, CrashPolicy::NoneKept).to_vec() == *slow,
                    "{cut}"
                );
            }
        }
        assert!(device.checkpoints.lock().len() > 1);
    }

    #[test]
    fn a_flush_covers_only_what_was_completed() {
        // Submitted but not waited for: the flush beside it promises nothing about the write.
        let mut found = false;
        for seed in 0..50 {
            let completions = Completions::Deferred { seed };
            let device =
                RecordingDevice::with_completions(&MemoryDevice::new(1 << 20), completions);
            let write = Op::Write(vec![AlignedBuf::copy_of(&[7; 512]).into()]);
            device.submit(Request::new(write, DevOffset(0), |done| {
                done.result.unwrap()
            }));
            device.flush().unwrap();
            found |= device.pending_at(2) == [0];
            assert_eq!(block(&device.live(), 0), 7);
        }
        assert!(found);
    }

    #[test]
    fn markers_follow_what_they_promise() {
        for completions in [Completions::Inline, Completions::Deferred { seed: 1 }] {
            let device =
                RecordingDevice::with_completions(&MemoryDevice::new(1 << 20), completions);
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let device = &device;
                    scope.spawn(move || {
                        for round in 1..20u8 {
                            write(device, thread, round, Flags::empty());
                            device.flush().unwrap();
                            device.marker(format!("{thread} {round}"));
                        }
                    });
                }
            });
            for cut in 0..=device.log_len() {
                let image = device.image_at(cut, CrashPolicy::Random { seed: cut as u64 });
                for (_, label) in device.markers_before(cut) {
                    let (thread, round) = label.split_once(' ').unwrap();
                    let found = block(&image, thread.parse().unwrap());
                    assert!(
                        found >= round.parse().unwrap(),
                        "cut {cut}: {label}, found {found}"
                    );
                }
            }
        }
    }
}
