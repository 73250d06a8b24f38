//! Writes that the server has answered and that no flush has made durable yet.
//!
//! A server that comes back after a crash may have lost them. So they are kept until a flush is answered, and written again
//! on a new connection before anything else is.
//!
//! # Invariants
//! * Entries are in the order in which their writes were answered. A later write of the same place is a later entry.
//! * A flush drops the entries that were there when it was sent, and no others.
//! * The bytes that are kept are bounded: at [`Log::bytes_max`] the device flushes by itself, and at twice that no more writes are sent
//!   ([`Log::is_full`]), so that only those on their way are added.
//!
//! # Locks
//! Its own, a leaf.

use crate::{DeviceErrorKind, IoSlice, Op, Request};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// What an entry takes beside its data.
const ENTRY_BYTES: u64 = 128;

enum Change {
    Data(Vec<IoSlice>),
    Zeroes,
}

struct Entry {
    number: u64,
    offset: u64,
    bytes: u64,
    change: Change,
}

impl Entry {
    fn cost(&self) -> u64 {
        match self.change {
            Change::Data(_) => self.bytes + ENTRY_BYTES,
            Change::Zeroes => ENTRY_BYTES,
        }
    }
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    /// Entries that there ever were.
    count: u64,
    /// A flush of the device's own is on its way.
    flushing: bool,
    /// Why a write could not be repeated, or a flush of the device's own has failed. No flush succeeds after that.
    failed: Option<DeviceErrorKind>,
}

/// See the module's head.
pub(super) struct Log {
    state: Mutex<State>,
    bytes: AtomicU64,
    /// 0: nothing is kept.
    bytes_max: u64,
}

impl Log {
    pub(super) fn new(bytes_max: u64) -> Self {
        Log {
            state: Mutex::default(),
            bytes: AtomicU64::new(0),
            bytes_max,
        }
    }

    /// Notes a write that was answered. `durable`: it was made so by the server. Whether the device is to flush by itself.
    pub(super) fn note(&self, request: &Request, durable: bool) -> bool {
        if self.bytes_max == 0 {
            return false;
        }
        let (bytes, change) = match &request.op {
            Op::Write(slices) => {
                let kept = slices.iter().map(IoSlice::to_keep).collect();
                (request.op.bytes(), Change::Data(kept))
            }
            Op::WriteZeroes { bytes } => (*bytes, Change::Zeroes),
            _ => return false,
        };
        let mut state = self.state.lock();
        // A durable write is kept only behind others: repeating one of those must not bring older bytes back.
        if durable && state.entries.is_empty() {
            return false;
        }
        state.count += 1;
        let entry = Entry {
            number: state.count,
            offset: request.offset.0,
            bytes,
            change,
        };
        let cost = entry.cost();
        state.entries.push_back(entry);
        let now = self.bytes.fetch_add(cost, Ordering::Relaxed) + cost;
        let wanted = now >= self.bytes_max && !state.flushing;
        state.flushing |= wanted;
        wanted
    }

    /// Whether writes must wait for a flush.
    pub(super) fn is_full(&self) -> bool {
        self.bytes_max > 0 && self.bytes.load(Ordering::Relaxed) >= 2 * self.bytes_max
    }

    /// The writes that a flush covers when it is sent now.
    pub(super) fn mark(&self) -> u64 {
        self.state.lock().count
    }

    /// A flush was answered that was sent at `mark`. After a flush that failed, the state of its writes is unknown, and its caller
    /// gets the error.
    ///
    /// # Errors
    /// Why a write could not be repeated, or a flush of the device's own has failed.
    pub(super) fn flushed(&self, mark: u64) -> Result<(), DeviceErrorKind> {
        let mut state = self.state.lock();
        let mut freed = 0;
        while state.entries.front().is_some_and(|e| e.number <= mark) {
            freed += state.entries.pop_front().map_or(0, |e| e.cost());
        }
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
        state.flushing = false;
        match &state.failed {
            Some(kind) => Err(kind.clone()),
            None => Ok(()),
        }
    }

    /// A write could not be repeated, or a flush of the device's own has failed.
    pub(super) fn fail(&self, kind: DeviceErrorKind) {
        self.state.lock().failed.get_or_insert(kind);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().entries.is_empty()
    }

    /// The writes to repeat: ranges that do not overlap, each with its last contents. `None` stands for zeroes.
    pub(super) fn plan(&self) -> Vec<(u64, u64, Option<Vec<IoSlice>>)> {
        let state = self.state.lock();
        // Begin and end of what later entries cover.
        let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
        let mut plan = Vec::new();
        for entry in state.entries.iter().rev() {
            let end = entry.offset + entry.bytes;
            for (from, to) in uncovered(&covered, entry.offset, end) {
                let slices = match &entry.change {
                    Change::Data(slices) => {
                        Some(part(slices, from - entry.offset, to - entry.offset))
                    }
                    Change::Zeroes => None,
                };
                plan.push((from, to - from, slices));
            }
            cover(&mut covered, entry.offset, end);
        }
        plan
    }
}

/// The parts of a range that are not covered.
fn uncovered(covered: &BTreeMap<u64, u64>, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut at = covered
        .range(..=from)
        .next_back()
        .map_or(from, |(_, end)| from.max(*end));
    let mut out = Vec::new();
    for (start, end) in covered.range(from..to) {
        if at < *start {
            out.push((at, *start));
        }
        at = at.max(*end);
    }
    if at < to {
        out.push((at, to));
    }
    out
}

/// Adds a range; ranges that touch become one.
fn cover(covered: &mut BTreeMap<u64, u64>, mut from: u64, mut to: u64) {
    if let Some((start, end)) = covered.range(..=from).next_back()
        && *end >= from
    {
        (from, to) = (*start, to.max(*end));
    }
    let inside: Vec<u64> = covered.range(from..=to).map(|(start, _)| *start).collect();
    for start in inside {
        to = to.max(covered.remove(&start).unwrap_or(to));
    }
    covered.insert(from, to);
}

/// The bytes `from..to` of slices that follow each other.
fn part(slices: &[IoSlice], from: u64, to: u64) -> Vec<IoSlice> {
    let mut at = 0u64;
    let mut out = Vec::new();
    for slice in slices {
        let len = slice.len() as u64;
        let (start, end) = (from.max(at), to.min(at + len));
        if start < end {
            out.push(slice.slice((start - at) as usize..(end - at) as usize));
        }
        at += len;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, DevOffset};

    fn write(offset: u64, fill: u8, bytes: usize) -> Request {
        let slices = [bytes / 2, bytes - bytes / 2]
            .map(|n| IoSlice::from(AlignedBuf::copy_of(&vec![fill; n])));
        Request::new(Op::Write(slices.to_vec()), DevOffset(offset), |_| {})
    }

    fn zeroes(offset: u64, bytes: u64) -> Request {
        Request::new(Op::WriteZeroes { bytes }, DevOffset(offset), |_| {})
    }

    fn image(log: &Log, bytes: usize) -> Vec<u8> {
        let mut image = vec![0xEE; bytes];
        let mut touched = vec![false; bytes];
        for (offset, bytes, slices) in log.plan() {
            let range = offset as usize..(offset + bytes) as usize;
            for at in range.clone() {
                assert!(!touched[at], "byte {at} twice");
                touched[at] = true;
            }
            let data = match slices {
                None => vec![0; bytes as usize],
                Some(slices) => slices.iter().flat_map(|s| s.to_vec()).collect(),
            };
            image[range].copy_from_slice(&data);
        }
        image
    }

    /// The plan is what the writes, one after another, leave.
    #[test]
    fn the_last_write_of_a_place_is_repeated() {
        for seed in 0..200u64 {
            let log = Log::new(1 << 30);
            let mut model = vec![0xEE; 400];
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut below = |n: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % n
            };
            for n in 0..12u8 {
                let (at, len) = (below(300), below(99) + 1);
                let range = at as usize..(at + len) as usize;
                if below(4) == 0 {
                    log.note(&zeroes(at, len), false);
                    model[range].fill(0);
                } else {
                    log.note(&write(at, n + 1, len as usize), false);
                    model[range].fill(n + 1);
                }
            }
            assert!(image(&log, 400) == model, "seed {seed}");
        }
    }

    #[test]
    fn a_flush_drops_what_it_covers() {
        let log = Log::new(1 << 20);
        assert!(!log.note(&write(0, 1, 512), true), "durable, and first");
        assert!(log.is_empty());
        log.note(&write(0, 1, 512), false);
        let mark = log.mark();
        log.note(&write(512, 2, 512), true);
        log.flushed(mark).unwrap();
        let left = log.plan();
        assert_eq!((left.len(), left[0].0, left[0].1), (1, 512, 512));
        log.fail(DeviceErrorKind::Os(5));
        assert_eq!(log.flushed(log.mark()), Err(DeviceErrorKind::Os(5)));
        assert!(log.is_empty());
    }

    #[test]
    fn its_size_is_bounded() {
        let log = Log::new(10_000);
        let asked: Vec<bool> = (0..30)
            .map(|n| log.note(&write(n, 1, 1000), false))
            .collect();
        assert_eq!(asked.iter().filter(|a| **a).count(), 1);
        assert!(log.is_full());
        log.flushed(log.mark()).unwrap();
        assert!(!log.is_full());
        assert!((0..30).any(|n| log.note(&write(n, 1, 1000), false)));
        let none = Log::new(0);
        none.note(&write(0, 1, 512), false);
        assert!(none.is_empty() && !none.is_full());
    }
}
