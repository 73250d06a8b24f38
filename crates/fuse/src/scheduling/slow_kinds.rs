//! Which requests are expected to wait.
//!
//! A thread that reads requests must not be held up by one of them. A kind that is slow by nature goes to another thread
//! before it begins. A kind that turned out slow counts as slow for a while. Beside a cold `find` on the same CPU, a program that creates files
//! ran 1.6 times as fast with this memory as without (four pairs: 1.3 to 2.0).

use super::limits::{
    QUICK_WRITE_BYTES_MAX, SLOW_MS_MAX, SLOW_MS_MIN, SLOW_WAITED_US_MAX, SLOW_WINDOW_MS,
};
use crate::protocol::Opcode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// More than [`SLOW_MS_MAX`].
const LAST_FACTOR: u64 = 1024;
/// Bits of a sum of waiting (µs): sums beyond a second are as good as one.
const SUM_BITS: u32 = 20;
const SUM_MAX: u64 = (1 << SUM_BITS) - 1;
/// One more than the highest opcode.
const OPCODES: usize = Opcode::CopyFileRange64 as usize + 1;

/// Whether a request of this kind and size (bytes, headers included) waits for a device as a rule.
pub(crate) fn is_slow_by_nature(opcode: Opcode, bytes: usize) -> bool {
    match opcode {
        Opcode::Read
        | Opcode::Fsync
        | Opcode::FsyncDir
        | Opcode::SyncFs
        | Opcode::Fallocate
        | Opcode::Lseek
        | Opcode::CopyFileRange
        | Opcode::CopyFileRange64
        | Opcode::Ioctl => true,
        Opcode::Write => bytes > QUICK_WRITE_BYTES_MAX,
        _ => false,
    }
}

/// The kinds that took long a short while ago.
#[derive(Debug)]
pub(crate) struct SlowKinds {
    born: OnceLock<Instant>,
    /// Until when each kind counts as slow, in milliseconds since `born`; 0 as a rule.
    slow_until: [AtomicU64; OPCODES],
    /// Waiting time of each kind, see [`Waited`].
    waited: [AtomicU64; OPCODES],
    /// The last time that each kind was slow: until when (ms since `born`), times [`LAST_FACTOR`], and for how long (ms).
    last: [AtomicU64; OPCODES],
}

/// The waiting time (µs) of one kind in the current window and in the previous one. As one word: the window's number in
/// the upper 24 bits (it comes back after 19 days, when a forgotten sum does no harm), then the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waited {
    window: u64,
    before: u64,
    now: u64,
}

impl Waited {
    fn from_word(word: u64) -> Self {
        Waited {
            window: word >> (2 * SUM_BITS),
            before: word >> SUM_BITS & SUM_MAX,
            now: word & SUM_MAX,
        }
    }

    fn word(self) -> u64 {
        self.window << (2 * SUM_BITS) | self.before << SUM_BITS | self.now
    }

    /// The same and `took_us` more, at this time.
    fn and(self, now_ms: u64, took_us: u64) -> Self {
        let window = (now_ms / SLOW_WINDOW_MS) & (u64::MAX >> (2 * SUM_BITS));
        let (before, now) = match window.wrapping_sub(self.window) {
            0 => (self.before, self.now),
            1 => (self.now, 0),
            _ => (0, 0),
        };
        Waited {
            window,
            before,
            now: now.saturating_add(took_us).min(SUM_MAX),
        }
    }

    /// The waiting of the last [`SLOW_WINDOW_MS`]: of the window before, as much as is not older, taken as even.
    fn lately_us(self, now_ms: u64) -> u64 {
        self.now + self.before * (SLOW_WINDOW_MS - now_ms % SLOW_WINDOW_MS) / SLOW_WINDOW_MS
    }
}

impl Default for SlowKinds {
    fn default() -> Self {
        SlowKinds {
            born: OnceLock::new(),
            slow_until: std::array::from_fn(|_| AtomicU64::new(0)),
            waited: std::array::from_fn(|_| AtomicU64::new(0)),
            last: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl SlowKinds {
    fn now_ms(&self) -> u64 {
        let born = self.born.get_or_init(Instant::now);
        // One, because 0 has a meaning of its own.
        u64::try_from(born.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    }

    /// Whether a request of this kind took long a short while ago.
    pub(crate) fn is_slow(&self, opcode: Opcode) -> bool {
        let until = &self.slow_until[opcode as usize];
        match until.load(Ordering::Relaxed) {
            0 => false,
            at if self.now_ms() < at => true,
            _ => {
                until.store(0, Ordering::Relaxed);
                false
            }
        }
    }

    /// A request of this kind took so long.
    pub(crate) fn note(&self, opcode: Opcode, took: Duration) {
        self.note_at(self.now_ms(), opcode, took);
    }

    fn note_at(&self, now_ms: u64, opcode: Opcode, took: Duration) {
        let kind = opcode as usize;
        if now_ms < self.slow_until[kind].load(Ordering::Relaxed) {
            // Others waited for the same, or it began before.
            return;
        }
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let word = &self.waited[kind];
        let waited = Waited::from_word(word.load(Ordering::Relaxed)).and(now_ms, took_us);
        let lately_us = waited.lately_us(now_ms);
        if lately_us <= SLOW_WAITED_US_MAX {
            // Of two at once one may be forgotten: there will be more, if it matters.
            return word.store(waited.word(), Ordering::Relaxed);
        }
        let last = self.last[kind].load(Ordering::Relaxed);
        let (ended, lasted) = (last / LAST_FACTOR, last % LAST_FACTOR);
        let again = now_ms.saturating_sub(ended) <= lasted;
        let lasts = (lately_us / 1000).max(if again { 2 * lasted } else { 0 });
        let lasts = lasts.clamp(SLOW_MS_MIN, SLOW_MS_MAX);
        let until = now_ms + lasts;
        self.last[kind].store(until * LAST_FACTOR + lasts, Ordering::Relaxed);
        // Afterwards it counts anew.
        word.store(0, Ordering::Relaxed);
        self.slow_until[kind].store(until, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_device_is_slow() {
        assert!(is_slow_by_nature(Opcode::Fsync, 80));
        assert!(is_slow_by_nature(Opcode::Write, 1 << 20));
        assert!(!is_slow_by_nature(Opcode::Write, 4096));
        assert!(!is_slow_by_nature(Opcode::Lookup, 80));
    }

    #[test]
    fn what_was_slow_is_remembered_by_kind() {
        let kinds = SlowKinds::default();
        assert!(!kinds.is_slow(Opcode::Rename));
        kinds.note(Opcode::Rename, Duration::from_millis(15));
        assert!(kinds.is_slow(Opcode::Rename));
        assert!(!kinds.is_slow(Opcode::Lookup));
    }

    /// Whether RENAMEs, given as end (ms) and duration (ms), make the kind slow.
    fn is_slow_after(waits: &[(u64, u64)]) -> bool {
        let kinds = SlowKinds::default();
        for &(at, took) in waits {
            kinds.note_at(at, Opcode::Rename, Duration::from_millis(took));
        }
        kinds.slow_until[Opcode::Rename as usize].load(Ordering::Relaxed) != 0
    }

    #[test]
    fn a_hiccup_does_not_count_but_several_do() {
        assert!(!is_slow_after(&[(1000, 3)]));
        assert!(is_slow_after(&[(1000, 3), (1010, 3), (1020, 3), (1030, 3)]));
        assert!(!is_slow_after(&[
            (1000, 3),
            (1200, 3),
            (1400, 3),
            (1600, 3)
        ]));
    }

    #[test]
    fn waiting_on_both_sides_of_a_windows_border_counts() {
        assert!(is_slow_after(&[(1099, 9), (1100, 9)]));
        assert!(is_slow_after(&[(1070, 9), (1130, 9)]));
        // Not what is longer ago.
        assert!(!is_slow_after(&[(1000, 9), (1195, 9)]));
        assert!(!is_slow_after(&[(1099, 9), (1200, 9)]));
    }

    /// How long a kind counts as slow each time, if it is tried again after these pauses (ms) and waits 12 ms each time.
    fn lasts(pauses: &[u64]) -> Vec<u64> {
        let kinds = SlowKinds::default();
        let until = || kinds.slow_until[Opcode::Rename as usize].load(Ordering::Relaxed);
        let mut now = 1000;
        let step = |pause: &u64| {
            now = until().max(now) + pause;
            kinds.note_at(now, Opcode::Rename, Duration::from_millis(12));
            // Another request that waited for the same.
            kinds.note_at(now + 1, Opcode::Rename, Duration::from_millis(12));
            until() - now
        };
        pauses.iter().map(step).collect()
    }

    #[test]
    fn what_always_waits_is_tried_less_and_less() {
        let expected = [20, 40, 80, 160, 320, 640, 1000, 1000, 1000];
        assert_eq!(lasts(&[12; 9]), expected);
    }

    #[test]
    fn what_waits_now_and_then_is_tried_soon() {
        assert_eq!(lasts(&[400; 5]), [20; 5]);
        assert_eq!(lasts(&[12, 12, 12, 400, 12]), [20, 40, 80, 20, 40]);
    }

    #[test]
    fn a_long_wait_is_worth_as_long() {
        let kinds = SlowKinds::default();
        kinds.note_at(1000, Opcode::Rename, Duration::from_millis(84));
        let until = kinds.slow_until[Opcode::Rename as usize].load(Ordering::Relaxed);
        assert_eq!(until, 1084);
        kinds.note_at(2000, Opcode::Rename, Duration::MAX);
        let until = kinds.slow_until[Opcode::Rename as usize].load(Ordering::Relaxed);
        assert_eq!(until, 3000);
    }

    #[test]
    fn sums_stay_in_their_places() {
        let most = Waited::default().and(u64::MAX, u64::MAX);
        assert_eq!(most.now, SUM_MAX);
        assert_eq!(Waited::from_word(most.word()), most);
        let next = most.and(u64::MAX - SLOW_WINDOW_MS, 1);
        assert_eq!((next.before, next.now), (0, 1), "time does not go back");
        let after = Waited::default()
            .and(SLOW_WINDOW_MS, 7)
            .and(2 * SLOW_WINDOW_MS, 1);
        assert_eq!((after.before, after.now), (7, 1));
        assert_eq!(Waited::from_word(after.word()), after);
    }
}
