//! What cleaning and checkpoints spent their time on. It explains why a change waited for room.
//!
//! Parts of the work tell when they begin and end ([`Trace::enter`]). The longest of each kind is kept, and the last
//! [`SPANS_MAX`] parts that took noticeable time. A wait that was longer than [`SLOW`] is kept, if it is one of the longest,
//! with the parts that fell into it ([`SlowWait`]); of several at the same time the longest.
//!
//! # Locks
//! Leaves, for a moment. A part that took no noticeable time takes none.

use blockwright_device::sim::turns;
use blockwright_vfs::locks::{Mutex, Rank};
use blockwright_vfs::stats::Stats;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Parts that are remembered.
const SPANS_MAX: usize = 1024;
/// What is shorter is not.
const NOTICEABLE: Duration = Duration::from_millis(1);
/// Waits that are kept.
const WAITS_MAX: usize = 4;
/// Waits from here on are explained.
const SLOW: Duration = Duration::from_millis(250);

/// A part of the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Waiting for the turn to clean.
    Turn,
    /// Reading the nodes that own a section's blocks.
    Nodes,
    /// Waiting for operations to end, then telling owners, with none under way.
    Owners,
    /// Waiting until a file's blocks are still.
    Relocation,
    /// Moving a file's blocks while they are.
    Move,
    /// Waiting for a checkpoint that was asked for.
    Checkpoint,
    /// Nodes are written before the checkpoint, while operations go on.
    Preflush,
    /// The checkpoint waits for operations to end.
    Gate,
    /// It writes directories, nodes and tables.
    Pack,
    /// It waits for the device to have them, and writes the last block.
    Flush,
    /// It waits for reads, and gives back and discards what became free.
    Free,
    /// Writing back what is dirty in the cache.
    WriteBack,
}

/// How many there are: the last one counts them. All are named, so that another one must be added here to compile.
const PARTS: usize = {
    use Part as P;
    let last = P::WriteBack;
    match last {
        P::Turn | P::Nodes | P::Owners | P::Relocation | P::Move | P::Checkpoint => {}
        P::Preflush | P::Gate | P::Pack | P::Flush | P::Free | P::WriteBack => {}
    }
    last as usize + 1
};

/// A part, when it was.
#[derive(Clone, Copy, Debug)]
struct Span {
    part: Part,
    began: Instant,
    took: Duration,
}

/// A long wait for room, and what was done meanwhile.
#[derive(Clone, Debug)]
pub struct SlowWait {
    /// Since when.
    pub began: Instant,
    /// How long.
    pub took: Duration,
    spans: Vec<Span>,
}

impl fmt::Display for SlowWait {
    /// The parts in the order in which they ended, in milliseconds since the wait began.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms:", self.took.as_millis())?;
        let since = |at: Instant| match at.checked_duration_since(self.began) {
            Some(after) => after.as_millis() as i128,
            None => -(self.began.duration_since(at).as_millis() as i128),
        };
        for s in &self.spans {
            let from = since(s.began);
            let to = since(s.began + s.took);
            write!(f, " {:?} {from}..{to}", s.part)?;
        }
        Ok(())
    }
}

/// See the module's head.
pub(crate) struct Trace {
    longest_ns: [AtomicU64; PARTS],
    spans: Mutex<VecDeque<Span>>,
    slowest: Mutex<Vec<SlowWait>>,
}

impl Default for Trace {
    fn default() -> Self {
        Trace {
            longest_ns: Default::default(),
            spans: Mutex::new(Rank::Leaf, VecDeque::new()),
            slowest: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }
}

/// A part under way: it ends when this goes.
pub(crate) struct Entered<'a> {
    trace: &'a Trace,
    part: Part,
    began: Instant,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.trace.longest_ns[self.part as usize].fetch_max(ns, Ordering::Relaxed);
        // How long threads that take turns wait says nothing, and must not change what they do.
        if took < NOTICEABLE || turns::takes_turns() {
            return;
        }
        let mut spans = self.trace.spans.lock();
        if spans.len() == SPANS_MAX {
            spans.pop_front();
        }
        spans.push_back(Span {
            part: self.part,
            began: self.began,
            took,
        });
    }
}

impl Trace {
    /// Begins a part.
    pub(crate) fn enter(&self, part: Part) -> Entered<'_> {
        Entered {
            trace: self,
            part,
            began: Instant::now(),
        }
    }

    /// A wait for room has ended.
    pub(crate) fn waited(&self, began: Instant) {
        let took = began.elapsed();
        if took < SLOW || turns::takes_turns() {
            return;
        }
        let spans = self.spans.lock();
        let during = spans.iter().filter(|s| s.began + s.took >= began);
        let during: Vec<Span> = during.copied().collect();
        drop(spans);
        let mut slowest = self.slowest.lock();
        let same = slowest
            .iter()
            .position(|s| s.began < began + took && began < s.began + s.took);
        match same {
            Some(n) if slowest[n].took >= took => return,
            Some(n) => drop(slowest.remove(n)),
            None => {}
        }
        slowest.push(SlowWait {
            began,
            took,
            spans: during,
        });
        slowest.sort_by_key(|s| std::cmp::Reverse(s.took));
        slowest.truncate(WAITS_MAX);
    }

    /// The longest waits, longest first, if there were slow ones.
    pub(crate) fn slow_waits(&self) -> Vec<SlowWait> {
        self.slowest.lock().clone()
    }

    /// Adds the longest of each part.
    pub(crate) fn stats(&self, out: &mut Stats) {
        let ms = |part: Part| {
            let ns = self.longest_ns[part as usize].load(Ordering::Relaxed);
            ns.div_ceil(1_000_000)
        };
        blockwright_vfs::stat_lines! { out;
            gauge "cleaning_longest_turn_ms", Milliseconds, "the longest wait for the turn to clean, rounded up" => ms(Part::Turn);
            gauge "cleaning_longest_nodes_ms", Milliseconds, "the longest reading of the nodes that own a section's blocks" => ms(Part::Nodes);
            gauge "cleaning_longest_owners_ms", Milliseconds, "the longest search for the owners of a section's blocks, with the wait for operations to end"
                => ms(Part::Owners);
            gauge "cleaning_longest_still_ms", Milliseconds, "the longest wait of cleaning for a file's relocation barrier" => ms(Part::Relocation);
            gauge "cleaning_longest_move_ms", Milliseconds, "the longest time that cleaning held the barrier to move a file's blocks"
                => ms(Part::Move);
            gauge "cleaning_longest_checkpoint_ms", Milliseconds, "the longest that cleaning waited for a checkpoint" => ms(Part::Checkpoint);
            gauge "checkpoint_longest_early_ms", Milliseconds, "the longest write of nodes before a checkpoint, with operations running"
                => ms(Part::Preflush);
            gauge "checkpoint_longest_gate_ms", Milliseconds, "the longest that a checkpoint waited for operations to end" => ms(Part::Gate);
            gauge "checkpoint_longest_pack_ms", Milliseconds, "the longest time that a checkpoint took to submit its writes" => ms(Part::Pack);
            gauge "checkpoint_longest_flush_ms", Milliseconds, "the longest wait of a checkpoint for the device's flush" => ms(Part::Flush);
            gauge "checkpoint_longest_free_ms", Milliseconds, "the longest time that a checkpoint took, once written, to free segments and node numbers"
                => ms(Part::Free);
            gauge "cleaning_longest_write_back_ms", Milliseconds, "the longest write-back of dirty pages when no section could be cleaned"
                => ms(Part::WriteBack);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_wait_comes_with_what_was_done_meanwhile_and_nothing_else() {
        let trace = Trace::default();
        let span = |part, began, ms| Span {
            part,
            began,
            took: Duration::from_millis(ms),
        };
        let now = Instant::now();
        let began = now.checked_sub(Duration::from_secs(2)).unwrap();
        {
            let mut spans = trace.spans.lock();
            let before = began.checked_sub(Duration::from_millis(100)).unwrap();
            spans.push_back(span(Part::Nodes, before, 50));
            spans.push_back(span(Part::Gate, before, 150));
            spans.push_back(span(Part::Pack, began + Duration::from_millis(50), 1900));
        }
        trace.waited(now);
        assert!(trace.slow_waits().is_empty(), "that was no wait");
        trace.waited(began);
        let waits = trace.slow_waits();
        let parts: Vec<Part> = waits[0].spans.iter().map(|s| s.part).collect();
        assert_eq!(parts, [Part::Gate, Part::Pack]);
        assert!(
            waits[0]
                .to_string()
                .ends_with("Gate -100..50 Pack 50..1950")
        );
        // A shorter one at the same time does not replace it, nor does it count.
        trace.waited(now.checked_sub(Duration::from_secs(1)).unwrap());
        let waits = trace.slow_waits();
        assert_eq!(waits.len(), 1);
        assert!(waits[0].took >= Duration::from_secs(2));
        // A longer one does.
        trace.waited(now.checked_sub(Duration::from_secs(3)).unwrap());
        let waits = trace.slow_waits();
        assert_eq!(waits.len(), 1);
        assert!(waits[0].took >= Duration::from_secs(3));
    }

    #[test]
    fn memory_is_bounded() {
        let trace = Trace::default();
        for _ in 0..3 * SPANS_MAX {
            let began = Instant::now().checked_sub(2 * NOTICEABLE).unwrap();
            drop(Entered {
                trace: &trace,
                part: Part::Move,
                began,
            });
        }
        assert_eq!(trace.spans.lock().len(), SPANS_MAX);
        let longest = trace.longest_ns[Part::Move as usize].load(Ordering::Relaxed);
        assert!(longest >= 2_000_000);
    }
}
