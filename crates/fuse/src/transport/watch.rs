//! The watch over the workers: finds those that are stuck, and says how many shall read at once.
//!
//! It looks at the workers every tick while requests come, and sleeps while none do; the first request
//! after a pause wakes it. It only compares numbers that the workers leave behind, so that a request costs
//! them next to nothing.

use super::pool::{Pool, Station};
use crate::scheduling::limits::{WATCH_CALM_TICKS, WATCH_QUIET_TICKS, WATCH_TICK};
use crate::scheduling::slow_kinds::SlowKinds;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Which kinds were found slow.
    pub(super) slow_kinds: SlowKinds,
    asleep: AtomicBool,
    /// Whether the connection has ended.
    ended: Mutex<bool>,
    wake: Condvar,
}

impl Watch {
    /// A request has come. After the worker's station says so: either the watch sees that before it sleeps,
    /// or it is seen here to sleep.
    pub(super) fn stir(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            drop(self.ended.lock());
            self.asleep.store(false, Ordering::SeqCst);
            self.wake.notify_one();
        }
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        *self.ended.lock() = true;
        self.wake.notify_all();
    }

    /// Sleeps for a tick, or with `deep` until a request comes. Returns whether to go on.
    fn pause(&self, deep: bool, is_quiet: impl Fn() -> bool) -> bool {
        let mut ended = self.ended.lock();
        if deep {
            self.asleep.store(true, Ordering::SeqCst);
            if !is_quiet() {
                self.asleep.store(false, Ordering::SeqCst);
            }
            while self.asleep.load(Ordering::SeqCst) && !*ended {
                self.wake.wait(&mut ended);
            }
        } else if !*ended {
            self.wake.wait_for(&mut ended, WATCH_TICK);
        }
        !*ended
    }
}

/// What was seen at the last tick.
#[derive(Default)]
struct Seen {
    /// By the address of each worker's station, which tells them apart: the station is kept until the next
    /// tick, lest a new worker's gets the address of one that has ended.
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

/// Watches until the connection ends. `queue`: whether requests wait to be read. `start`: starts a worker
/// that is counted already.
pub(super) fn run(pool: &Pool, queue: impl Fn() -> bool, start: impl Fn()) {
    let mut seen = Seen::default();
    let (mut quiet, mut calm) = (0, 0);
    loop {
        let is_quiet = || {
            pool.slow.load(Ordering::SeqCst) == seen.slow
                && pool.stations().iter().all(|station| {
                    let turn = station.turn();
                    turn % 2 == 0 && seen.turn_of(station) == Some(turn)
                })
        };
        if !pool.watch.pause(quiet >= WATCH_QUIET_TICKS, is_quiet) {
            return;
        }

        let slow = pool.slow.load(Ordering::SeqCst);
        let slow_now = slow.wrapping_sub(seen.slow);
        let mut quick_now = 0;
        let mut next = Seen {
            slow,
            ..Seen::default()
        };
        for station in pool.stations() {
            let turn = station.turn();
            let before = seen.turn_of(&station);
            quick_now += (turn - before.unwrap_or(turn)) / 2;
            if turn % 2 == 1 && before == Some(turn) {
                let opcode = station.opcode();
                if let Some(another) = pool.take_place(&station, turn) {
                    // It still works on it, for an unknown time.
                    let note = |op| pool.watch.slow_kinds.note(op, Duration::MAX);
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
            if pool.places() < pool.places_max() && pool.set_places(pool.places() + 1) {
                start();
            }
        } else {
            calm += 1;
            if calm >= WATCH_CALM_TICKS && pool.places() > 1 {
                calm = 0;
                if pool.set_places(pool.places() - 1) {
                    start();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::Worker;
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
    fn a_stuck_worker_is_replaced_and_its_kind_remembered() {
        let pool = Arc::new(Pool::new(2, 4));
        pool.add();
        let mut worker = Worker::new(&pool);
        let started = Arc::new(AtomicUsize::new(0));
        let watch = std::thread::spawn({
            let (pool, started) = (pool.clone(), started.clone());
            move || {
                run(
                    &pool,
                    || false,
                    || {
                        started.fetch_add(1, Ordering::SeqCst);
                    },
                );
            }
        });
        worker.begin(Some(Opcode::Rename), 80);
        until(|| started.load(Ordering::SeqCst) == 1);
        assert!(pool.watch.slow_kinds.is_slow(Opcode::Rename));
        assert!(!pool.watch.slow_kinds.is_slow(Opcode::Lookup));
        // Asleep by and by, and woken by the next request that is stuck.
        pool.remove();
        worker.finish();
        until(|| pool.watch.asleep.load(Ordering::SeqCst));
        worker.begin(Some(Opcode::Lookup), 80);
        until(|| started.load(Ordering::SeqCst) == 2);
        pool.end();
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
        let pool = Arc::new(Pool::new(3, 4));
        pool.add();
        let mut worker = Worker::new(&pool);
        let watch = std::thread::spawn({
            let pool = pool.clone();
            move || run(&pool, || true, || ())
        });
        until(|| {
            worker.begin(Some(Opcode::Lookup), 80);
            worker.finish();
            pool.places() == 3
        });
        pool.end();
        watch.join().unwrap();
    }
}
