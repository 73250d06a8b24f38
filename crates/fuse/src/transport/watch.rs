//! The watch over the readers of `/dev/fuse`: finds those that are stuck, and says how many may read at once.
//!
//! It looks at the readers every tick while requests come, and sleeps while none do. The first request
//! after a pause wakes it. It only compares numbers that the readers leave behind, so a request costs
//! them next to nothing.

use super::readers::{Readers, Station};
use crate::scheduling::limits::{WATCH_CALM_TICKS, WATCH_QUIET_TICKS};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What was seen at the last tick.
#[derive(Default)]
struct Seen {
    /// By the address of each reader's station, which tells them apart. The station is kept until the next
    /// tick, so that no new station gets the address of one that has gone.
    turns: HashMap<usize, (Arc<Station>, u64)>,
    slow: u64,
}

impl Seen {
    fn note(&mut self, station: Arc<Station>, turn: u64) {
        self.turns
            .insert(Arc::as_ptr(&station).addr(), (station, turn));
    }

    fn turn_of(&self, station: &Station) -> Option<u64> {
        let (_, turn) = self.turns.get(&std::ptr::from_ref(station).addr())?;
        Some(*turn)
    }
}

/// Watches until the connection ends. `queue`: whether requests wait to be read. `start`: queues a reading job
/// that is counted already.
pub(super) fn run(readers: &Readers, queue: impl Fn() -> bool, start: impl Fn()) {
    let mut seen = Seen::default();
    let (mut quiet, mut calm) = (0, 0);
    loop {
        let is_quiet = || {
            readers.slow.load(Ordering::SeqCst) == seen.slow
                && readers.stations().iter().all(|station| {
                    let turn = station.turn();
                    turn % 2 == 0 && seen.turn_of(station) == Some(turn)
                })
        };
        if !readers.pause_watch(quiet >= WATCH_QUIET_TICKS, is_quiet) {
            return;
        }

        let slow = readers.slow.load(Ordering::SeqCst);
        let slow_now = slow.wrapping_sub(seen.slow);
        let mut quick_now = 0;
        let mut next = Seen {
            slow,
            ..Seen::default()
        };
        for station in readers.stations() {
            let turn = station.turn();
            let before = seen.turn_of(&station);
            quick_now += (turn - before.unwrap_or(turn)) / 2;
            if turn % 2 == 1 && before == Some(turn) {
                let opcode = station.opcode();
                if let Some(another) = readers.take_place(&station, turn) {
                    // It still works on it, for an unknown time.
                    let note = |op| readers.slow_kinds.note(op, Duration::MAX);
                    opcode.into_iter().for_each(note);
                    if another {
                        start();
                    }
                }
            }
            quick_now += u64::from(turn % 2 == 1);
            next.note(station, turn);
        }
        seen = next;

        quiet = if quick_now + slow_now == 0 {
            quiet + 1
        } else {
            0
        };
        // Slow requests are handed over one by one; it is cheaper when several wait for them at once.
        if slow_now > quick_now / 4 || queue() {
            calm = 0;
            if readers.places() < readers.places_max() && readers.set_places(readers.places() + 1) {
                start();
            }
        } else {
            calm += 1;
            if calm >= WATCH_CALM_TICKS && readers.places() > 1 {
                calm = 0;
                if readers.set_places(readers.places() - 1) {
                    start();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::readers::Reader;
    use super::*;
    use crate::protocol::Opcode;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    fn until(mut what: impl FnMut() -> bool) {
        let start = Instant::now();
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(20), "in vain");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_stuck_reader_is_replaced_and_its_kind_remembered() {
        let readers = Arc::new(Readers::new(2));
        assert!(readers.ensure_one());
        let mut reader = Reader::new(&readers);
        let started = Arc::new(AtomicUsize::new(0));
        let watch = std::thread::spawn({
            let (readers, started) = (readers.clone(), started.clone());
            move || {
                run(
                    &readers,
                    || false,
                    || {
                        started.fetch_add(1, Ordering::SeqCst);
                    },
                );
            }
        });
        reader.begin_quick(Some(Opcode::Rename));
        until(|| started.load(Ordering::SeqCst) == 1);
        assert!(readers.slow_kinds.is_slow(Opcode::Rename));
        assert!(!readers.slow_kinds.is_slow(Opcode::Lookup));
        // It falls asleep, and the next request that is stuck wakes it.
        drop(Reader::new(&readers));
        reader.finish();
        until(|| readers.watch_sleeps());
        reader.begin_quick(Some(Opcode::Lookup));
        until(|| started.load(Ordering::SeqCst) == 2);
        readers.end();
        watch.join().unwrap();
    }

    #[test]
    fn a_station_that_has_gone_is_not_taken_for_a_new_one() {
        let mut seen = Seen::default();
        seen.note(Arc::default(), 7);
        // The allocator hands freed memory of the same size out again at once.
        for _ in 0..100 {
            assert_eq!(seen.turn_of(&Arc::<Station>::default()), None);
        }
    }

    #[test]
    fn a_queue_makes_more_places() {
        let readers = Arc::new(Readers::new(3));
        assert!(readers.ensure_one());
        let mut reader = Reader::new(&readers);
        let watch = std::thread::spawn({
            let readers = readers.clone();
            move || run(&readers, || true, || ())
        });
        until(|| {
            reader.begin_quick(Some(Opcode::Lookup));
            reader.finish();
            readers.places() == 3
        });
        readers.end();
        watch.join().unwrap();
    }
}
