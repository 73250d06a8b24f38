//! Which requests are expected to wait for something.
//!
//! Whoever reads requests should not be held up by one: what is slow by nature goes to another thread
//! before it begins, and a kind that turned out slow counts as such for a while.

use crate::protocol::Opcode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A WRITE of more bytes is slow: it fills the page cache, and may have to clean it first.
const QUICK_WRITE_BYTES_MAX: usize = 128 << 10;
/// For how long a kind of request counts as slow after it took too much.
const SLOW_FOR: Duration = Duration::from_secs(1);
/// Over how much time waiting is summed up.
const WINDOW_MS: u64 = 100;
/// So much waiting (µs) of one kind in a window is too much. One request that the machine itself held up for a moment is
/// not: handing all others to another thread costs each of them more.
const WAITED_US_MAX: u64 = 10_000;
/// One more than the highest opcode.
const OPCODES: usize = Opcode::CopyFileRange64 as usize + 1;

/// Whether a request of this kind and size (bytes, headers included) waits for a device as a rule.
pub(super) fn is_slow_by_nature(opcode: Opcode, bytes: usize) -> bool {
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

/// Which kinds took long a short while ago.
#[derive(Debug)]
pub(super) struct Lately {
    born: OnceLock<Instant>,
    /// Until when each kind counts as slow, in milliseconds since `born`; 0 as a rule.
    slow_until: [AtomicU64; OPCODES],
    /// What each kind waited in the window that runs: its number in the upper half, µs in the lower.
    waited: [AtomicU64; OPCODES],
}

impl Default for Lately {
    fn default() -> Self {
        Lately {
            born: OnceLock::new(),
            slow_until: std::array::from_fn(|_| AtomicU64::new(0)),
            waited: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Lately {
    fn now_ms(&self) -> u64 {
        let born = self.born.get_or_init(Instant::now);
        // One, because 0 has a meaning of its own.
        u64::try_from(born.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    }

    /// Whether a request of this kind took long a short while ago.
    pub(super) fn is_slow(&self, opcode: Opcode) -> bool {
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
    pub(super) fn note(&self, opcode: Opcode, took: Duration) {
        let now_ms = self.now_ms();
        let window = (now_ms / WINDOW_MS) << 32;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let waited = &self.waited[opcode as usize];
        let before = waited.load(Ordering::Relaxed);
        let sum = match before & !u64::from(u32::MAX) == window {
            true => before & u64::from(u32::MAX),
            false => 0,
        };
        let sum = sum.saturating_add(took_us).min(u64::from(u32::MAX));
        // Of two at once one may be forgotten: there will be more, if it matters.
        waited.store(window | sum, Ordering::Relaxed);
        if sum > WAITED_US_MAX {
            let until = now_ms + SLOW_FOR.as_millis() as u64;
            self.slow_until[opcode as usize].store(until, Ordering::Relaxed);
        }
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
        let lately = Lately::default();
        assert!(!lately.is_slow(Opcode::Rename));
        lately.note(Opcode::Rename, Duration::from_millis(15));
        assert!(lately.is_slow(Opcode::Rename));
        assert!(!lately.is_slow(Opcode::Lookup));
    }

    #[test]
    fn a_hiccup_does_not_count_but_several_do() {
        let lately = Lately::default();
        lately.note(Opcode::Write, Duration::from_millis(3));
        assert!(!lately.is_slow(Opcode::Write));
        // Some of them fall into one window, wherever it begins.
        for _ in 0..8 {
            lately.note(Opcode::Write, Duration::from_millis(3));
        }
        assert!(lately.is_slow(Opcode::Write));
    }
}
