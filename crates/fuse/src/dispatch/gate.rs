//! Counts the writes to one open file on a volume that is nearly full, and says how many may pass before free space is checked.
//!
//! Not responsible for the check itself (`room`).
//!
//! # Locks
//! One, a leaf.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A write is taken to be this large before any was seen; after the first one there is a look how large it was.
const FIRST_WRITE_BYTES: u64 = 256 << 10;
const WRITE_BYTES_MIN: u64 = 64 << 10;
/// Writes that pass a gate before the file's pages are called in again.
const PASSES_MAX: u64 = 4096;

/// The observed writes to one open file.
pub(super) struct Gate {
    /// Bytes that the kernel wrote back since its pages were called in.
    written: AtomicU64,
    state: Mutex<GateState>,
}

struct GateState {
    /// Writes that may pass.
    left: u64,
    /// Those that passed.
    passed: u64,
    /// Size in bytes of the largest write seen, if any.
    write_bytes: Option<u64>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate {
            written: AtomicU64::new(0),
            state: Mutex::new(GateState {
                left: 0,
                passed: 0,
                write_bytes: None,
            }),
        }
    }
}

impl Gate {
    pub(super) fn note_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a write may pass without a look.
    pub(super) fn pass(&self) -> bool {
        let mut state = self.state.lock();
        if state.left == 0 {
            return false;
        }
        state.left -= 1;
        state.passed += 1;
        true
    }

    /// All that was written through it has arrived. `share`: this writer's share of the free bytes. Returns whether the next write will fit.
    pub(super) fn reckon(&self, share: u64) -> bool {
        let mut state = self.state.lock();
        let written = self.written.swap(0, Ordering::Relaxed);
        let passed = std::mem::take(&mut state.passed);
        if passed > 0 && written > 0 {
            // Twice the mean: a file's writes are of one size as a rule.
            state.write_bytes = Some((written.div_ceil(passed) * 2).max(WRITE_BYTES_MIN));
        }
        state.left = 0;
        if share < state.write_bytes.unwrap_or(FIRST_WRITE_BYTES) {
            return false;
        }
        if let Some(bytes) = state.write_bytes {
            state.left = (share / bytes / 4).min(PASSES_MAX);
        }
        state.passed = 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_learns_how_large_writes_are() {
        let gate = Gate::default();
        assert!(!gate.pass(), "at first it is not known what is dirty");
        assert!(!gate.reckon(FIRST_WRITE_BYTES - 1));
        assert!(gate.reckon(1 << 30));
        assert!(!gate.pass(), "the first may be of any size");
        gate.note_written(4096);
        assert!(gate.reckon(8 * WRITE_BYTES_MIN), "it was small");
        assert!(gate.pass() && gate.pass() && !gate.pass());
        gate.note_written(3 * 4096);
        assert!(gate.reckon(WRITE_BYTES_MIN));
        assert!(!gate.pass());
        gate.note_written(16 << 20);
        assert!(!gate.reckon(31 << 20), "one was large");
        assert!(gate.reckon(32 << 20));
    }
}
