//! How many workers there are, and which of them read requests.
//!
//! A request costs its handler less than the wake-up of a sleeping thread, so usually *one* worker
//! reads requests and answers them itself, one after another, while the others are parked. A client that asks
//! again soon finds it awake. Before a request that may wait for a device, the worker hands its place to another
//! one. The watch (see `watch`) notices a request that takes long although its kind is usually quick. It gives the
//! place to another worker, and remembers the kind for a while.
//!
//! # Invariants
//! As long as the connection lives and the limit is not reached, a worker reads, or works on a request that
//! is quick or will be found out within two ticks: so no slow request delays others for longer.
//! `places` is how many may read at once: more when requests queue up, or when most are slow anyway.
//! Requests that were left to the device ("in flight") have no worker; the pool is empty only when they are answered.
//!
//! # Locks
//! `counts`, a leaf. A worker's [`Station`] is shared with the watch without a lock.

use super::watch::Watch;
use crate::protocol::Opcode;
use crate::scheduling::slow_kinds::is_slow_by_nature;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct Counts {
    /// Workers that exist.
    alive: usize,
    /// Those of them that have decided to leave, and do nothing any more. Not to be relied on: two that leave at
    /// once must not both count on each other, nor may a caller that needs a reader count on them.
    leaving: usize,
    /// Workers that wait for a place.
    parked: usize,
    /// Places given to parked workers that have not woken up yet.
    granted: usize,
    /// Workers that wait for the kernel, which may in turn wait for a WRITE: they do not count
    /// against the limit, or all of them could wait for a worker that never comes.
    blocked: usize,
    /// The connection has ended.
    ended: bool,
}

/// What one worker is doing, for the watch.
#[derive(Debug, Default)]
pub(super) struct Station {
    /// Even: waits for a request, or is away on a slow one. Odd: works on a quick request. Grows.
    turn: AtomicU64,
    /// The last turn whose place was taken away.
    taken: AtomicU64,
    /// The request's kind.
    opcode: AtomicU32,
}

impl Station {
    pub(super) fn turn(&self) -> u64 {
        self.turn.load(Ordering::SeqCst)
    }

    pub(super) fn opcode(&self) -> Option<Opcode> {
        Opcode::from_wire(self.opcode.load(Ordering::Relaxed))
    }
}

/// What becomes of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It reads requests.
    Read,
    /// It ends.
    Leave,
}

/// The workers of a connection.
#[derive(Debug)]
pub(super) struct Pool {
    max: usize,
    /// How many parked workers are kept for later.
    keep: usize,
    counts: Mutex<Counts>,
    unparked: Condvar,
    all_gone: Condvar,
    /// Workers with a place. Changed under `counts`.
    readers: AtomicUsize,
    /// How many places there are. Changed by the watch.
    places: AtomicUsize,
    /// Bytes of requests that the device has, and how many these are.
    flying_bytes: AtomicUsize,
    flying: AtomicUsize,
    stations: Mutex<Vec<Arc<Station>>>,
    /// Slow requests so far.
    pub(super) slow: AtomicU64,
    pub(super) watch: Watch,
}

impl Pool {
    pub(super) fn new(keep: usize, max: usize) -> Self {
        let max = max.max(1);
        Pool {
            max,
            keep: keep.clamp(1, max),
            counts: Mutex::default(),
            unparked: Condvar::new(),
            all_gone: Condvar::new(),
            readers: AtomicUsize::new(0),
            places: AtomicUsize::new(1),
            flying_bytes: AtomicUsize::new(0),
            flying: AtomicUsize::new(0),
            stations: Mutex::default(),
            slow: AtomicU64::new(0),
            watch: Watch::default(),
        }
    }

    /// How many workers there are at most, beside those that wait for something else than their request.
    pub(super) fn workers_max(&self) -> usize {
        self.max
    }

    /// The most places that make sense.
    pub(super) fn places_max(&self) -> usize {
        self.keep
    }

    /// A worker will be started; it has a place.
    pub(super) fn add(&self) {
        let mut counts = self.counts.lock();
        counts.alive += 1;
        self.readers.fetch_add(1, Ordering::Relaxed);
    }

    /// A worker that was counted could not be started.
    pub(super) fn remove(&self) {
        let mut counts = self.counts.lock();
        self.readers.fetch_sub(1, Ordering::Relaxed);
        self.gone(&mut counts);
    }

    fn gone(&self, counts: &mut Counts) {
        counts.alive -= 1;
        if counts.alive == 0 {
            counts.ended = true;
            self.watch.end();
            self.all_gone.notify_all();
        }
    }

    /// Ensures that a worker reads. Returns whether a worker is to be started for it, which is
    /// counted then.
    fn ensure_reader(&self, counts: &mut Counts) -> bool {
        if self.readers.load(Ordering::Relaxed) > 0 || counts.ended {
            return false;
        }
        self.one_more(counts)
    }

    /// Gives a place to a parked worker, or (`true`) to one that is to be started and is counted.
    fn one_more(&self, counts: &mut Counts) -> bool {
        if counts.parked > 0 {
            counts.parked -= 1;
            counts.granted += 1;
            self.readers.fetch_add(1, Ordering::Relaxed);
            self.unparked.notify_one();
            return false;
        }
        let start = counts.alive - counts.leaving < self.max + counts.blocked;
        if start {
            counts.alive += 1;
            self.readers.fetch_add(1, Ordering::Relaxed);
        }
        start
    }

    /// A worker without a place wants one: gets it, waits for it, or is not needed any more.
    fn settle(&self) -> Next {
        let mut counts = self.counts.lock();
        let readers = self.readers.load(Ordering::Relaxed);
        let many = counts.alive - counts.leaving > self.max + counts.blocked;
        // However many workers there are, one reads.
        if !counts.ended
            && (readers == 0 || (!many && readers < self.places.load(Ordering::Relaxed)))
        {
            self.readers.fetch_add(1, Ordering::Relaxed);
            return Next::Read;
        }
        if counts.ended || many || counts.parked >= self.keep {
            counts.leaving += 1;
            return Next::Leave;
        }
        counts.parked += 1;
        loop {
            self.unparked.wait(&mut counts);
            if counts.granted > 0 {
                counts.granted -= 1;
                return Next::Read;
            }
            if counts.ended {
                counts.parked -= 1;
                counts.leaving += 1;
                return Next::Leave;
            }
        }
    }

    /// A worker is about to wait for the kernel. Returns whether another is to be started, which is
    /// counted then.
    pub(super) fn block(&self) -> bool {
        let mut counts = self.counts.lock();
        counts.blocked += 1;
        self.ensure_reader(&mut counts)
    }

    /// The wait for the kernel is over.
    pub(super) fn unblock(&self) {
        self.counts.lock().blocked -= 1;
    }

    /// The connection has ended: no more workers.
    pub(super) fn end(&self) {
        self.counts.lock().ended = true;
        self.unparked.notify_all();
        self.watch.end();
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.counts.lock().ended
    }

    /// A worker is about to leave a request of so many bytes to the device. Refuses when that would be more than
    /// `bytes_max` at once.
    pub(super) fn take_off(&self, bytes: usize, bytes_max: usize) -> bool {
        if self.flying_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > bytes_max {
            self.flying_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.flying.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// A request that was left to the device was answered.
    pub(super) fn land(&self, bytes: usize) {
        self.flying_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if self.flying.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Under the lock, so that a thread about to wait either sees the count or is woken.
            let counts = self.counts.lock();
            if counts.alive == 0 {
                self.all_gone.notify_all();
            }
        }
    }

    /// How many requests the device has.
    pub(super) fn flying(&self) -> usize {
        self.flying.load(Ordering::SeqCst)
    }

    /// Waits until no worker is left and no request in flight, or for `limit`. Returns whether that is so.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut counts = self.counts.lock();
        // Only workers let requests take off, so the order of the two does not matter.
        while counts.alive > 0 || self.flying() > 0 {
            match deadline {
                None => self.all_gone.wait(&mut counts),
                Some(at) => {
                    if self.all_gone.wait_until(&mut counts, at).timed_out() {
                        return counts.alive == 0 && self.flying() == 0;
                    }
                }
            }
        }
        true
    }

    // ---- for the watch ----

    pub(super) fn stations(&self) -> Vec<Arc<Station>> {
        self.stations.lock().clone()
    }

    pub(super) fn places(&self) -> usize {
        self.places.load(Ordering::Relaxed)
    }

    /// Changes how many may read at once. Returns whether a worker is to be started, which is counted
    /// then.
    #[must_use]
    pub(super) fn set_places(&self, places: usize) -> bool {
        let places = places.clamp(1, self.places_max());
        let mut counts = self.counts.lock();
        self.places.store(places, Ordering::Relaxed);
        !counts.ended && self.readers.load(Ordering::Relaxed) < places && self.one_more(&mut counts)
    }

    /// Takes the place of a worker that is still at this turn. Returns whether a worker is to be started
    /// in its stead, which is counted then; `None` when the worker was through in time, or had lost it
    /// already.
    pub(super) fn take_place(&self, station: &Station, turn: u64) -> Option<bool> {
        let mut counts = self.counts.lock();
        if station.taken.swap(turn, Ordering::SeqCst) == turn {
            return None;
        }
        // The worker looks at `taken` after it has left the turn, and then under the lock.
        if station.turn() != turn {
            station.taken.store(0, Ordering::SeqCst);
            return None;
        }
        self.readers.fetch_sub(1, Ordering::Relaxed);
        Some(self.ensure_reader(&mut counts))
    }
}

/// A worker's membership, from the start of its thread (counted by [`Pool::add`] or by the caller that asked for
/// it) to its end.
pub(super) struct Worker<'a> {
    pool: &'a Pool,
    station: Arc<Station>,
    has_place: bool,
    /// Counted among those that leave.
    leaves: bool,
}

impl<'a> Worker<'a> {
    pub(super) fn new(pool: &'a Pool) -> Self {
        let station = Arc::new(Station::default());
        pool.stations.lock().push(station.clone());
        Worker {
            pool,
            station,
            has_place: true,
            leaves: false,
        }
    }

    /// Whether a request of this kind and size is expected to wait for something.
    fn is_slow(&self, opcode: Option<Opcode>, bytes: usize) -> bool {
        opcode.is_some_and(|opcode| {
            is_slow_by_nature(opcode, bytes) || self.pool.watch.slow_kinds.is_slow(opcode)
        })
    }

    /// A request was read. Returns whether another worker is to be started, which is counted then.
    pub(super) fn begin(&mut self, opcode: Option<Opcode>, bytes: usize) -> bool {
        if self.is_slow(opcode, bytes) {
            return self.hand_over();
        }
        self.begin_quick(opcode);
        false
    }

    /// A request was read that needs no waiting, whatever its kind.
    pub(super) fn begin_quick(&mut self, opcode: Option<Opcode>) {
        let number = opcode.map_or(0, |opcode| opcode as u32);
        self.station.opcode.store(number, Ordering::Relaxed);
        self.station.turn.fetch_add(1, Ordering::SeqCst);
        self.pool.watch.stir();
    }

    /// The request that was begun as a quick one has to wait after all. Returns whether another worker is to be
    /// started, which is counted then.
    pub(super) fn turn_slow(&mut self) -> bool {
        self.end_turn();
        self.has_place && self.hand_over()
    }

    fn hand_over(&mut self) -> bool {
        self.pool.slow.fetch_add(1, Ordering::Relaxed);
        self.pool.watch.stir();
        let mut counts = self.pool.counts.lock();
        self.has_place = false;
        self.pool.readers.fetch_sub(1, Ordering::Relaxed);
        self.pool.ensure_reader(&mut counts)
    }

    /// The quick part is over, in time or not.
    fn end_turn(&mut self) {
        let turn = self.station.turn.fetch_add(1, Ordering::SeqCst);
        if self.station.taken.load(Ordering::SeqCst) == turn {
            // The watch decides under the lock whether it was in time.
            let _counts = self.pool.counts.lock();
            self.has_place = self.station.taken.load(Ordering::SeqCst) != turn;
        }
    }

    /// The request was answered.
    pub(super) fn finish(&mut self) -> Next {
        if self.has_place {
            self.end_turn();
        }
        if self.has_place {
            let pool = self.pool;
            if pool.readers.load(Ordering::Relaxed) <= pool.places.load(Ordering::Relaxed) {
                return Next::Read;
            }
            let _counts = pool.counts.lock();
            if pool.readers.load(Ordering::Relaxed) <= pool.places.load(Ordering::Relaxed) {
                return Next::Read;
            }
            self.has_place = false;
            pool.readers.fetch_sub(1, Ordering::Relaxed);
        }
        let next = self.pool.settle();
        self.has_place = next == Next::Read;
        self.leaves = next == Next::Leave;
        next
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let pool = self.pool;
        pool.stations
            .lock()
            .retain(|station| !Arc::ptr_eq(station, &self.station));
        let mut counts = pool.counts.lock();
        let turn = self.station.turn();
        // Only a panic ends a worker within a turn.
        if self.has_place
            && (turn.is_multiple_of(2) || self.station.taken.load(Ordering::SeqCst) != turn)
        {
            pool.readers.fetch_sub(1, Ordering::Relaxed);
        }
        counts.leaving -= usize::from(self.leaves);
        pool.gone(&mut counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Option<Opcode> = Some(Opcode::Lookup);
    const SLOW: Option<Opcode> = Some(Opcode::Fsync);

    fn started(pool: &Pool) -> Worker<'_> {
        pool.add();
        Worker::new(pool)
    }

    #[test]
    fn one_worker_answers_what_is_quick() {
        let pool = Pool::new(4, 16);
        let mut worker = started(&pool);
        for _ in 0..100 {
            assert!(!worker.begin(QUICK, 80), "no other is needed");
            assert_eq!(worker.finish(), Next::Read);
        }
    }

    #[test]
    fn a_worker_reads_while_others_are_slow_up_to_the_limit() {
        let pool = Pool::new(1, 2);
        let mut first = started(&pool);
        assert!(first.begin(SLOW, 80), "the only worker is away: another");
        let mut second = Worker::new(&pool);
        assert!(!second.begin(SLOW, 80), "the limit is reached");
        assert!(pool.block(), "a blocked worker makes room for one more");
        let mut third = Worker::new(&pool);
        assert!(!third.begin(SLOW, 80));
        pool.unblock();
        assert_eq!(third.finish(), Next::Read, "too many, but none reads");
        assert_eq!(second.finish(), Next::Leave, "three alive, two allowed");
        drop(second);
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| {
                let next = first.finish();
                drop(first);
                next
            });
            while pool.counts.lock().parked == 0 {
                std::thread::yield_now();
            }
            assert!(!third.begin(SLOW, 80), "the parked one takes over");
            assert_eq!(parked.join().unwrap(), Next::Read);
        });
        pool.end();
        assert_eq!(third.finish(), Next::Leave);
        drop(third);
        assert!(pool.wait(None));
    }

    #[test]
    fn who_is_stuck_loses_the_place() {
        let pool = Pool::new(2, 4);
        let mut stuck = started(&pool);
        assert!(!stuck.begin(QUICK, 80));
        let station = pool.stations()[0].clone();
        let turn = station.turn();
        assert_eq!(pool.take_place(&station, turn), Some(true), "another reads");
        let mut other = Worker::new(&pool);
        assert_eq!(
            pool.take_place(&station, turn + 1),
            None,
            "not at that turn"
        );
        assert!(!other.begin(QUICK, 80));
        assert_eq!(other.finish(), Next::Read);
        drop(other);
        assert_eq!(stuck.finish(), Next::Read, "none reads: it does again");
    }

    /// Two that have decided to leave, and have not gone yet, must not keep a reader from being started.
    #[test]
    fn leaving_workers_are_not_counted_on() {
        let pool = Pool::new(1, 2);
        let mut first = started(&pool);
        assert!(first.begin(SLOW, 80));
        assert!(!pool.block(), "one is to be started already");
        let mut second = Worker::new(&pool);
        assert!(second.begin(SLOW, 80), "the first is blocked");
        let mut third = Worker::new(&pool);
        assert!(!third.begin(QUICK, 80));
        pool.unblock();
        // Three, of which two may be: the first leaves, but is not gone.
        assert_eq!(first.finish(), Next::Leave);
        assert!(!third.turn_slow(), "two are at work: the limit");
        assert!(pool.block(), "the second waits: there is room for a reader");
        let mut fourth = Worker::new(&pool);
        assert!(!fourth.begin(SLOW, 80), "the limit again");
        drop(first);
        // More than the limit, but none reads.
        pool.unblock();
        assert_eq!(second.finish(), Next::Read);
    }

    #[test]
    fn a_quick_request_can_turn_out_slow() {
        let pool = Pool::new(1, 4);
        let mut first = started(&pool);
        first.begin_quick(SLOW);
        assert!(first.turn_slow(), "none reads: another");
        let mut second = Worker::new(&pool);
        assert_eq!(first.station.turn() % 2, 0);
        assert!(!second.begin(QUICK, 80));
        // Found out by the watch before it says so itself.
        let station = second.station.clone();
        assert_eq!(pool.take_place(&station, station.turn()), Some(true));
        assert!(!second.turn_slow(), "the place is another worker's already");
        drop(Worker::new(&pool));
        assert_eq!(first.finish(), Next::Read);
        assert_eq!(pool.readers.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_in_flight_is_waited_for() {
        let pool = Pool::new(1, 4);
        let worker = started(&pool);
        assert!(pool.take_off(60, 100));
        assert!(!pool.take_off(60, 100), "too much at once");
        assert!(pool.take_off(40, 100));
        drop(worker);
        assert!(!pool.wait(Some(Duration::from_millis(1))));
        pool.land(60);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pool.wait(Some(Duration::from_secs(20))));
            pool.land(40);
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn none_is_started_after_the_end() {
        let pool = Pool::new(1, 4);
        let mut worker = started(&pool);
        pool.end();
        assert!(!worker.begin(SLOW, 80));
        assert!(!pool.wait(Some(Duration::from_millis(1))));
        assert_eq!(worker.finish(), Next::Leave);
        drop(worker);
        assert!(pool.wait(None));
    }
}
