//! Which threads read `/dev/fuse`.
//!
//! A request costs less than the wake-up of a sleeping thread, so usually *one* thread reads requests and answers them itself, one
//! after another. A client that asks again soon finds it awake. Reading is a job of the pool ([`Threads`]). Before a request that
//! may wait for a device, the reader gives its *place* to a new reading job. The watch (`watch`) takes the place of a reader whose
//! request takes long although its kind is usually quick, and remembers the kind for a while.
//!
//! # Invariants
//! While the connection lives, a place is held by one of three: a thread that reads; a thread whose request is quick, or is found to
//! be slow within two ticks; a reading job in the pool's queue. So no slow request delays others for longer than that. `places` is
//! how many may read at once: more when requests queue up, or when most are slow anyway. Requests that were left to the device ("in
//! flight") occupy no thread.
//!
//! # Locks
//! `ended`, a leaf. A reader's [`Station`] is shared with the watch without a lock.
//!
//! [`Threads`]: crate::threads::Threads

use crate::protocol::Opcode;
use crate::scheduling::limits::WATCH_TICK;
use crate::scheduling::slow_kinds::SlowKinds;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What one reader is doing, for the watch.
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

/// What becomes of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It reads the next request.
    Read,
    /// Its job ends.
    Leave,
}

/// The readers of a connection.
#[derive(Debug)]
pub(super) struct Readers {
    /// The most places that make sense.
    places_max: usize,
    /// Whether the connection has ended.
    ended: Mutex<bool>,
    /// The connection has ended, or the last request in flight was answered then.
    over: Condvar,
    /// Places that are held. Changed under `ended`.
    held: AtomicUsize,
    /// How many places there are. Changed by the watch.
    places: AtomicUsize,
    /// Bytes of requests that the device has, and how many these are.
    in_flight_bytes: AtomicUsize,
    in_flight: AtomicUsize,
    stations: Mutex<Vec<Arc<Station>>>,
    /// Slow requests so far.
    pub(super) slow: AtomicU64,
    /// Which kinds were found slow.
    pub(super) slow_kinds: SlowKinds,
    /// The watch sleeps until a request comes.
    watch_sleeps: AtomicBool,
    wake_watch: Condvar,
}

impl Readers {
    pub(super) fn new(places_max: usize) -> Self {
        Readers {
            places_max: places_max.max(1),
            ended: Mutex::default(),
            over: Condvar::new(),
            held: AtomicUsize::new(0),
            places: AtomicUsize::new(1),
            in_flight_bytes: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            stations: Mutex::default(),
            slow: AtomicU64::new(0),
            slow_kinds: SlowKinds::default(),
            watch_sleeps: AtomicBool::new(false),
            wake_watch: Condvar::new(),
        }
    }

    /// Ensures that a place is held. Returns whether the caller has to queue a reading job, which holds one then.
    #[must_use]
    pub(super) fn ensure_one(&self) -> bool {
        self.ensure(*self.ended.lock())
    }

    fn ensure(&self, ended: bool) -> bool {
        let needed = !ended && self.held.load(Ordering::Relaxed) == 0;
        if needed {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
        needed
    }

    /// The connection has ended: no more readers.
    pub(super) fn end(&self) {
        *self.ended.lock() = true;
        self.wake_watch.notify_all();
        self.over.notify_all();
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        *self.ended.lock()
    }

    /// A reader is about to leave a request of this size to the device. Refuses when that would be more than
    /// `bytes_max` at once.
    pub(super) fn begin_flight(&self, bytes: usize, bytes_max: usize) -> bool {
        if self.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > bytes_max {
            self.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// A request that was left to the device was answered.
    pub(super) fn end_flight(&self, bytes: usize) {
        self.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Under the lock, so that a thread about to wait either sees the count or is woken.
            if *self.ended.lock() {
                self.over.notify_all();
            }
        }
    }

    /// How many requests the device has.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// How many threads read, or serve what they have read.
    pub(super) fn count(&self) -> usize {
        self.stations.lock().len()
    }

    /// Waits until the connection has ended, no reader is left and no request is in flight, or for `limit`. Returns whether that is so.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut ended = self.ended.lock();
        loop {
            // Only readers begin flights, so readers are looked at first.
            if *ended && self.count() == 0 && self.in_flight() == 0 {
                return true;
            }
            match deadline {
                None => self.over.wait(&mut ended),
                Some(at) => {
                    if self.over.wait_until(&mut ended, at).timed_out() {
                        return *ended && self.count() == 0 && self.in_flight() == 0;
                    }
                }
            }
        }
    }

    // ---- for the watch ----

    pub(super) fn stations(&self) -> Vec<Arc<Station>> {
        self.stations.lock().clone()
    }

    pub(super) fn places(&self) -> usize {
        self.places.load(Ordering::Relaxed)
    }

    pub(super) fn places_max(&self) -> usize {
        self.places_max
    }

    /// Changes how many may read at once. Returns whether the caller has to queue a reading job, which holds a place then.
    #[must_use]
    pub(super) fn set_places(&self, places: usize) -> bool {
        let places = places.clamp(1, self.places_max);
        let ended = self.ended.lock();
        self.places.store(places, Ordering::Relaxed);
        let more = !*ended && self.held.load(Ordering::Relaxed) < places;
        if more {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
        more
    }

    /// Takes the place of a reader that is still at this turn. Returns whether the caller has to queue a reading job, which holds
    /// the place then; `None` when the reader was through in time, or had lost its place already.
    pub(super) fn take_place(&self, station: &Station, turn: u64) -> Option<bool> {
        let ended = self.ended.lock();
        if station.taken.swap(turn, Ordering::SeqCst) == turn {
            return None;
        }
        // The reader looks at `taken` after it has left the turn, and then under the lock.
        if station.turn() != turn {
            station.taken.store(0, Ordering::SeqCst);
            return None;
        }
        self.held.fetch_sub(1, Ordering::Relaxed);
        Some(self.ensure(*ended))
    }

    /// A request has come. After the reader's station says so: either the watch sees that before it sleeps, or it is seen here to
    /// sleep.
    fn stir_watch(&self) {
        if self.watch_sleeps.load(Ordering::SeqCst) {
            drop(self.ended.lock());
            self.watch_sleeps.store(false, Ordering::SeqCst);
            self.wake_watch.notify_one();
        }
    }

    /// The watch sleeps for a tick, or with `deep` until a request comes. Returns whether to go on.
    pub(super) fn pause_watch(&self, deep: bool, is_quiet: impl Fn() -> bool) -> bool {
        let mut ended = self.ended.lock();
        if deep {
            self.watch_sleeps.store(true, Ordering::SeqCst);
            if !is_quiet() {
                self.watch_sleeps.store(false, Ordering::SeqCst);
            }
            while self.watch_sleeps.load(Ordering::SeqCst) && !*ended {
                self.wake_watch.wait(&mut ended);
            }
        } else if !*ended {
            self.wake_watch.wait_for(&mut ended, WATCH_TICK);
        }
        !*ended
    }

    #[cfg(test)]
    pub(super) fn watch_sleeps(&self) -> bool {
        self.watch_sleeps.load(Ordering::SeqCst)
    }
}

/// A thread that reads, from the beginning of its job to its end. It begins with a place, which the caller that queued the job has
/// counted.
pub(super) struct Reader<'a> {
    readers: &'a Readers,
    station: Arc<Station>,
    has_place: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(readers: &'a Readers) -> Self {
        let station = Arc::new(Station::default());
        readers.stations.lock().push(Arc::clone(&station));
        Reader {
            readers,
            station,
            has_place: true,
        }
    }

    /// A request was read that is not expected to wait.
    pub(super) fn begin_quick(&mut self, opcode: Option<Opcode>) {
        let number = opcode.map_or(0, |opcode| opcode as u32);
        self.station.opcode.store(number, Ordering::Relaxed);
        self.station.turn.fetch_add(1, Ordering::SeqCst);
        self.readers.stir_watch();
    }

    /// A request was read that is expected to wait. Returns whether the caller has to queue a reading job, which holds a place then.
    #[must_use]
    pub(super) fn begin_slow(&mut self) -> bool {
        self.readers.slow.fetch_add(1, Ordering::Relaxed);
        self.readers.stir_watch();
        let ended = self.readers.ended.lock();
        self.has_place = false;
        self.readers.held.fetch_sub(1, Ordering::Relaxed);
        self.readers.ensure(*ended)
    }

    /// The request that was begun as a quick one has to wait after all. Returns whether the caller has to queue a reading job.
    #[must_use]
    pub(super) fn turn_slow(&mut self) -> bool {
        self.end_turn();
        self.has_place && self.begin_slow()
    }

    /// The quick part is over, in time or not.
    fn end_turn(&mut self) {
        let turn = self.station.turn.fetch_add(1, Ordering::SeqCst);
        if self.station.taken.load(Ordering::SeqCst) == turn {
            // The watch decides under the lock whether it was in time.
            let _ended = self.readers.ended.lock();
            self.has_place = self.station.taken.load(Ordering::SeqCst) != turn;
        }
    }

    /// The request was answered.
    pub(super) fn finish(&mut self) -> Next {
        if self.has_place {
            self.end_turn();
        }
        let readers = self.readers;
        let (held, places) = (&readers.held, &readers.places);
        if self.has_place && held.load(Ordering::Relaxed) <= places.load(Ordering::Relaxed) {
            return Next::Read;
        }
        let ended = readers.ended.lock();
        if self.has_place {
            held.fetch_sub(1, Ordering::Relaxed);
            self.has_place = false;
        }
        if *ended || held.load(Ordering::Relaxed) >= places.load(Ordering::Relaxed) {
            return Next::Leave;
        }
        held.fetch_add(1, Ordering::Relaxed);
        self.has_place = true;
        Next::Read
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let readers = self.readers;
        let ended = readers.ended.lock();
        let turn = self.station.turn();
        // Only a panic ends a reader within a turn.
        if self.has_place
            && (turn.is_multiple_of(2) || self.station.taken.load(Ordering::SeqCst) != turn)
        {
            readers.held.fetch_sub(1, Ordering::Relaxed);
        }
        (readers.stations.lock()).retain(|station| !Arc::ptr_eq(station, &self.station));
        if *ended {
            readers.over.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Option<Opcode> = Some(Opcode::Lookup);

    fn started(readers: &Readers) -> Reader<'_> {
        assert!(readers.ensure_one());
        Reader::new(readers)
    }

    #[test]
    fn one_reader_answers_quick_requests() {
        let readers = Readers::new(4);
        let mut reader = started(&readers);
        for _ in 0..100 {
            reader.begin_quick(QUICK);
            assert_eq!(reader.finish(), Next::Read);
        }
        assert!(!readers.ensure_one(), "no other is needed");
    }

    #[test]
    fn a_place_is_held_while_others_are_slow() {
        let readers = Readers::new(4);
        let mut first = started(&readers);
        assert!(first.begin_slow(), "the only reader is away: another");
        // The job is queued, perhaps for long: it holds the place anyway.
        assert_eq!(first.finish(), Next::Leave);
        let mut second = Reader::new(&readers);
        second.begin_quick(QUICK);
        assert_eq!(second.finish(), Next::Read);
        assert!(second.begin_slow());
        let third = Reader::new(&readers);
        drop(third);
        // Should a reading job end by a panic, the place is free.
        assert_eq!(second.finish(), Next::Read);
    }

    #[test]
    fn a_stuck_reader_loses_its_place() {
        let readers = Readers::new(2);
        let mut stuck = started(&readers);
        stuck.begin_quick(QUICK);
        let station = readers.stations()[0].clone();
        let turn = station.turn();
        assert_eq!(
            readers.take_place(&station, turn),
            Some(true),
            "another reads"
        );
        let mut other = Reader::new(&readers);
        assert_eq!(
            readers.take_place(&station, turn + 1),
            None,
            "not at that turn"
        );
        other.begin_quick(QUICK);
        assert_eq!(other.finish(), Next::Read);
        drop(other);
        assert_eq!(stuck.finish(), Next::Read, "none reads: it does again");
    }

    #[test]
    fn a_quick_request_can_turn_out_slow() {
        let readers = Readers::new(1);
        let mut first = started(&readers);
        first.begin_quick(QUICK);
        assert!(first.turn_slow(), "none reads: another");
        let mut second = Reader::new(&readers);
        assert_eq!(first.station.turn() % 2, 0);
        second.begin_quick(QUICK);
        // Found out by the watch before it says so itself.
        let station = second.station.clone();
        assert_eq!(readers.take_place(&station, station.turn()), Some(true));
        assert!(!second.turn_slow(), "the place is another reader's already");
        drop(Reader::new(&readers));
        assert_eq!(first.finish(), Next::Read);
        assert_eq!(readers.held.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn more_places_make_more_readers_and_fewer_less() {
        let readers = Readers::new(3);
        let mut first = started(&readers);
        assert!(readers.set_places(2));
        let mut second = Reader::new(&readers);
        assert!(readers.set_places(9), "no more than make sense");
        drop(Reader::new(&readers));
        assert_eq!(readers.places(), 3);
        assert!(!readers.set_places(1));
        first.begin_quick(QUICK);
        assert_eq!(first.finish(), Next::Leave, "one too many");
        second.begin_quick(QUICK);
        assert_eq!(second.finish(), Next::Read);
    }

    #[test]
    fn requests_in_flight_are_waited_for() {
        let readers = Readers::new(1);
        let reader = started(&readers);
        assert!(readers.begin_flight(60, 100));
        assert!(!readers.begin_flight(60, 100), "too much at once");
        assert!(readers.begin_flight(40, 100));
        readers.end();
        drop(reader);
        assert!(!readers.wait(Some(Duration::from_millis(1))));
        readers.end_flight(60);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| readers.wait(Some(Duration::from_secs(20))));
            readers.end_flight(40);
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn none_is_started_after_the_end() {
        let readers = Readers::new(4);
        let mut reader = started(&readers);
        readers.end();
        assert!(!reader.begin_slow());
        assert!(!readers.wait(Some(Duration::from_millis(1))));
        assert_eq!(reader.finish(), Next::Leave);
        drop(reader);
        assert!(readers.wait(None));
        assert!(!readers.ensure_one() && !readers.set_places(2));
    }
}
