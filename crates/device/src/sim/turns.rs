//! Threads that take turns: one runs at a time, and a seed decides which.
//!
//! In virtual time ([`super::modelled`]) processor time costs nothing, so the host's scheduler must not matter either.
//! Without turns, threads reach the device in the order in which the host runs them, and two runs of the same workload
//! differ. With turns the seed decides the order, so two runs with one seed differ only by what the code under test does.
//!
//! A member has its turn from [`Turns::take_part`] on, until [`Turn::next`], or until it gives way in the middle ([`give_way`]). The
//! next member is drawn from all that are left. As long as no member gives way, the draws come from a sequence of their own,
//! so two runs that never give way have the same order.
//!
//! Members whose locks know of turns (`vfs::locks` in debug builds) are interrupted where they take a lock ([`may_give_way`]), about
//! once in [`LOCKS_PER_TURN`] times, and give way where they would have to wait. So the seed decides every interleaving of their critical
//! sections, and a run can be repeated, as far as no other thread has a part in it.
//!
//! # Not responsible for
//! Other locks. A member that gives way while it holds one that another member needs stops all of them: that is found and
//! panics, rather than hang.

use super::rng::SplitMix64;
use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A member gives way at one in this many of the locks that it takes.
pub const LOCKS_PER_TURN: u64 = 24;

/// As long as a turn may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    /// Not here yet.
    Awaited,
    /// Between two turns.
    Ready,
    /// Gave way in the middle of one.
    Paused,
    Gone,
}

struct State {
    members: Vec<Member>,
    /// Whose turn it is.
    turn: Option<usize>,
    /// How many turns there were.
    count: u64,
    order: SplitMix64,
    interruptions: SplitMix64,
}

impl State {
    /// Draws the next member, once all have arrived.
    fn draw(&mut self) {
        self.turn = None;
        if self.members.contains(&Member::Awaited) {
            return;
        }
        let left = |m: &&Member| **m != Member::Gone;
        let rng = match self.members.contains(&Member::Paused) {
            true => &mut self.interruptions,
            false => &mut self.order,
        };
        let n = rng.below(self.members.iter().filter(left).count() as u64);
        let mut left = self.members.iter().enumerate().filter(|(_, m)| left(m));
        self.turn = left.nth(n as usize).map(|(k, _)| k);
        self.count += 1;
    }
}

/// See the module's head.
pub struct Turns {
    state: Mutex<State>,
    /// One for each member.
    called: Vec<Condvar>,
    /// Of the places where members are interrupted.
    places: u64,
}

/// How this thread gives way.
enum GiveWay {
    Yields,
    GoesOn,
    TakesTurns(Arc<Turns>, usize, SplitMix64),
}

thread_local! {
    static GIVE_WAY: RefCell<GiveWay> = const { RefCell::new(GiveWay::Yields) };
}

/// Lets other threads run in the middle of an operation: the host's other threads, or the members that take turns with this one.
pub fn give_way() {
    let turns = GIVE_WAY.with_borrow(|way| match way {
        GiveWay::Yields => {
            std::thread::yield_now();
            None
        }
        GiveWay::GoesOn => None,
        GiveWay::TakesTurns(turns, k, _) => Some((Arc::clone(turns), *k)),
    });
    if let Some((turns, k)) = turns {
        turns.hand_over(k, Member::Paused);
    }
}

/// Whether the calling thread takes turns with others, and may be interrupted: it waits for nothing that another member has, but gives way.
/// Never in release builds, whose locks know of no turns.
#[must_use]
pub fn takes_turns() -> bool {
    cfg!(debug_assertions) && GIVE_WAY.with_borrow(|way| matches!(way, GiveWay::TakesTurns(..)))
}

/// The time of threads that take turns: a millisecond for each turn. Nothing for other threads, nor in release builds.
#[must_use]
pub fn milliseconds() -> Option<u64> {
    if !cfg!(debug_assertions) {
        return None;
    }
    GIVE_WAY.with_borrow(|way| match way {
        GiveWay::TakesTurns(turns, ..) => Some(turns.state.lock().count),
        _ => None,
    })
}

/// A point in time, to measure how long something takes: by the host's clock, or by turns for a thread that takes them. Code that decides
/// by elapsed time uses this. Otherwise its decisions would differ from run to run.
#[derive(Clone, Copy, Debug)]
pub struct Moment(Clock);

#[derive(Clone, Copy, Debug)]
enum Clock {
    Host(Instant),
    Turns(u64),
}

impl Moment {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Moment(match milliseconds() {
            Some(ms) => Clock::Turns(ms),
            None => Clock::Host(Instant::now()),
        })
    }

    /// The time since then. Nothing when one of the two moments is by the host's clock and the other is not.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        match (self.0, milliseconds()) {
            (Clock::Host(then), None) => then.elapsed(),
            (Clock::Turns(then), Some(now)) => Duration::from_millis(now.saturating_sub(then)),
            _ => Duration::ZERO,
        }
    }
}

/// A place where a member may be interrupted. It is now and then, as the seed says; no other thread is.
pub fn may_give_way() {
    let now = GIVE_WAY.with_borrow_mut(|way| match way {
        GiveWay::TakesTurns(_, _, rng) => rng.below(LOCKS_PER_TURN) == 0,
        _ => false,
    });
    if now {
        give_way();
    }
}

/// From here on the calling thread does not give way.
pub fn never_give_way() {
    GIVE_WAY.set(GiveWay::GoesOn);
}

/// Runs `work` as the only member of turns of its own: no other thread has a part in it, and its time counts turns.
///
/// # Panics
/// When the calling thread takes turns already.
pub fn alone<T>(seed: u64, work: impl FnOnce() -> T) -> T {
    assert!(!takes_turns(), "the thread takes turns already");
    let _turn = Turns::new(1, seed).take_part(0, true);
    work()
}

impl Turns {
    /// Turns for this many members, in an order that the seed says.
    #[must_use]
    pub fn new(members: usize, seed: u64) -> Arc<Self> {
        let mut seeds = SplitMix64::new(seed);
        Arc::new(Turns {
            state: Mutex::new(State {
                members: vec![Member::Awaited; members],
                turn: None,
                count: 0,
                order: SplitMix64::new(seeds.next_u64()),
                interruptions: SplitMix64::new(seeds.next_u64()),
            }),
            called: (0..members).map(|_| Condvar::new()).collect(),
            places: seeds.next_u64(),
        })
    }

    /// Makes the calling thread the member `k`, and waits until all are here and it has its turn.
    /// `interrupted`: [`give_way`] ends its turn; otherwise only [`Turn::next`] does.
    ///
    /// # Panics
    /// When there is no such member, or others do not come or do not end their turns.
    #[must_use]
    pub fn take_part(self: &Arc<Self>, k: usize, interrupted: bool) -> Turn {
        GIVE_WAY.set(match interrupted {
            true => {
                let places = SplitMix64::new(self.places.wrapping_add(k as u64));
                GiveWay::TakesTurns(Arc::clone(self), k, places)
            }
            false => GiveWay::GoesOn,
        });
        {
            let mut state = self.state.lock();
            assert!(
                state.members[k] == Member::Awaited,
                "member {k} is here already"
            );
            state.members[k] = Member::Ready;
            if !state.members.contains(&Member::Awaited) {
                state.draw();
                self.call(&state);
            }
        }
        let turn = Turn {
            turns: Arc::clone(self),
            k,
        };
        self.wait(k);
        turn
    }

    fn call(&self, state: &State) {
        if let Some(next) = state.turn {
            self.called[next].notify_one();
        }
    }

    fn wait(&self, k: usize) {
        let mut state = self.state.lock();
        while state.turn != Some(k) {
            let before = state.count;
            let late = self.called[k].wait_for(&mut state, PATIENCE).timed_out();
            assert!(
                !late || state.turn == Some(k) || state.count != before,
                "a turn does not end: its thread waits for one that gave way"
            );
        }
    }

    /// Ends the turn of member `k`, and waits for its next.
    fn hand_over(&self, k: usize, as_: Member) {
        {
            let mut state = self.state.lock();
            state.members[k] = as_;
            state.draw();
            self.call(&state);
        }
        if as_ != Member::Gone {
            self.wait(k);
        }
    }
}

/// A member's part, which ends when it is dropped.
pub struct Turn {
    turns: Arc<Turns>,
    k: usize,
}

impl Turn {
    /// Ends this turn, and waits for the next.
    pub fn next(&self) {
        self.turns.hand_over(self.k, Member::Ready);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        GIVE_WAY.set(GiveWay::Yields);
        self.turns.hand_over(self.k, Member::Gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which member did which step, when each does three steps of two halves.
    fn order(seed: u64, interrupted: bool) -> Vec<(usize, u32, u32)> {
        let turns = Turns::new(5, seed);
        let steps = Mutex::new(Vec::new());
        std::thread::scope(|s| {
            for k in 0..5 {
                let (turns, steps) = (&turns, &steps);
                s.spawn(move || {
                    let turn = turns.take_part(k, interrupted);
                    for step in 0..3 {
                        steps.lock().push((k, step, 0));
                        give_way();
                        steps.lock().push((k, step, 1));
                        turn.next();
                    }
                });
            }
        });
        steps.into_inner()
    }

    #[test]
    fn the_seed_says_who_is_next() {
        for interrupted in [false, true] {
            let first = order(1, interrupted);
            assert_eq!(first.len(), 30);
            for _ in 0..20 {
                assert_eq!(order(1, interrupted), first);
            }
            assert!((2..9).any(|seed| order(seed, interrupted) != first));
        }
    }

    #[test]
    fn the_seed_says_where_members_are_interrupted() {
        let order = |seed| {
            let turns = Turns::new(3, seed);
            let steps = Mutex::new(Vec::new());
            std::thread::scope(|s| {
                for k in 0..3 {
                    let (turns, steps) = (&turns, &steps);
                    s.spawn(move || {
                        assert!(!takes_turns());
                        let _turn = turns.take_part(k, true);
                        assert_eq!(takes_turns(), cfg!(debug_assertions));
                        for _ in 0..100 {
                            may_give_way();
                            steps.lock().push(k);
                        }
                    });
                }
            });
            steps.into_inner()
        };
        let first = order(1);
        let switches = first.windows(2).filter(|two| two[0] != two[1]).count();
        assert!((4..60).contains(&switches), "{switches}");
        assert_eq!(order(1), first);
        assert_ne!(order(2), first);
    }

    #[test]
    fn only_who_may_be_interrupted_is() {
        let halves = |steps: &[(usize, u32, u32)]| steps.chunks(2).all(|two| two[0].0 == two[1].0);
        for seed in 0..5 {
            assert!(halves(&order(seed, false)));
            assert!(!halves(&order(seed, true)));
        }
    }

    #[test]
    fn one_runs_at_a_time_and_who_leaves_is_not_waited_for() {
        let turns = Turns::new(8, 3);
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|s| {
            for k in 0..8 {
                let (turns, inside) = (&turns, &inside);
                s.spawn(move || {
                    use std::sync::atomic::Ordering::SeqCst;
                    let turn = turns.take_part(k, true);
                    for _ in 0..k * 10 {
                        assert_eq!(inside.fetch_add(1, SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        give_way();
                        turn.next();
                    }
                });
            }
        });
    }
}
