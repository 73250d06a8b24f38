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
/// For how long a kind of request counts as slow after one of it was.
const SLOW_FOR: Duration = Duration::from_secs(1);
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
}

impl Default for Lately {
    fn default() -> Self {
        Lately {
            born: OnceLock::new(),
            slow_until: std::array::from_fn(|_| AtomicU64::new(0)),
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

    /// A request of this kind took long.
    pub(super) fn note(&self, opcode: Opcode) {
        let until = self.now_ms() + SLOW_FOR.as_millis() as u64;
        self.slow_until[opcode as usize].store(until, Ordering::Relaxed);
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
        lately.note(Opcode::Rename);
        assert!(lately.is_slow(Opcode::Rename));
        assert!(!lately.is_slow(Opcode::Lookup));
    }
}
