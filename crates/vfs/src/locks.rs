//! Locks that know their rank.
//!
//! A thread takes locks in ascending [`Rank`]; taking one of a lower rank than it already holds is
//! an inversion that could deadlock against another thread. In debug builds every acquisition is
//! checked against a thread-local list of held ranks and an inversion panics, naming both; in
//! release builds the wrappers are `parking_lot`'s locks and nothing else.
//!
//! Two locks of one rank may be held only through the `*_nested` methods: their caller vouches for
//! an order within the rank (inodes: ancestors before descendants, directories before others, else
//! ascending numbers; groups: ascending).
//!
//! `try_*` never waits, so it cannot deadlock and is not checked for order; what is held is still
//! recorded.
//!
//! In debug builds a thread that takes turns with others ([`turns`]) may be interrupted wherever it takes a lock. It gives way
//! instead of waiting for a lock or on a [`Condvar`]. So tests decide by a seed how critical sections of threads follow each other.

use blockwright_device::sim::turns;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The order in which locks are taken, first to last. See docs/LOCKING.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// The volume is being frozen, remounted or unmounted.
    Freeze,
    /// Renames that move directories about.
    Rename,
    /// An inode's lock.
    Inode,
    /// Taking blocks away against inserting pages.
    Invalidate,
    /// The engine's gate: a journal handle, the checkpoint lock.
    EngineGate,
    /// Inode number to something: inode cache shards, the NAT.
    InodeMap,
    /// Whose turn it is to allocate from a log.
    Log,
    /// A block group, a segment, a log head.
    Group,
    /// A metadata buffer.
    Buffer,
    /// A device's queue.
    DeviceQueue,
    /// A file's table of cached pages. No engine is ever called below here.
    PageTable,
    /// Anything under which no other lock is taken.
    Leaf,
}

#[cfg(debug_assertions)]
mod held {
    use super::Rank;
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// Proof that a rank is on this thread's list; takes it off when dropped.
    pub struct Held(Rank);

    /// Panics when taking `rank` now is an inversion.
    #[track_caller]
    pub fn check(rank: Rank, nested: bool) {
        HELD.with_borrow(|held| {
            if let Some(&worst) = held.iter().max() {
                let fine = if nested { worst <= rank } else { worst < rank };
                assert!(
                    fine,
                    "lock inversion: taking {rank:?} while holding {held:?}"
                );
            }
        });
    }

    pub fn push(rank: Rank) -> Held {
        HELD.with_borrow_mut(|held| held.push(rank));
        Held(rank)
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // A guard may outlive its thread's storage only when the thread is being torn down.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|r| *r == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::Rank;
    /// Nothing, in release builds.
    pub struct Held;
    #[inline(always)]
    pub fn check(_: Rank, _: bool) {}
    #[inline(always)]
    pub fn push(_: Rank) -> Held {
        Held
    }
}

/// The rank of a lock: a field in debug builds, nothing in release builds.
#[derive(Clone, Copy)]
struct RankField {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl RankField {
    #[inline(always)]
    fn new(rank: Rank) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        RankField {
            #[cfg(debug_assertions)]
            rank,
        }
    }

    #[inline(always)]
    fn get(self) -> Rank {
        #[cfg(debug_assertions)]
        {
            self.rank
        }
        #[cfg(not(debug_assertions))]
        {
            Rank::Leaf
        }
    }
}

/// Takes a lock: waits for it, or gives way until it is free.
#[inline(always)]
fn acquire<G>(wait: impl FnOnce() -> G, mut try_once: impl FnMut() -> Option<G>) -> G {
    if !turns::takes_turns() {
        return wait();
    }
    turns::may_give_way();
    loop {
        match try_once() {
            Some(guard) => return guard,
            None => turns::give_way(),
        }
    }
}

/// A mutual-exclusion lock with a rank.
pub struct Mutex<T: ?Sized> {
    rank: RankField,
    inner: parking_lot::Mutex<T>,
}

/// A reader-writer lock with a rank.
pub struct RwLock<T: ?Sized> {
    rank: RankField,
    inner: parking_lot::RwLock<T>,
}

/// A held lock. The lock is released, then its rank is taken off the thread's list.
pub struct Guard<G> {
    inner: G,
    _held: held::Held,
}

/// A held [`Mutex`].
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
/// A [`RwLock`] held shared.
pub type ReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
/// A [`RwLock`] held exclusively.
pub type WriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<T> Mutex<T> {
    /// A lock of this rank around `value`.
    pub fn new(rank: Rank, value: T) -> Self {
        Mutex {
            rank: RankField::new(rank),
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// The value, out of its lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock.
    ///
    /// # Panics
    /// In debug builds, when this thread holds a lock of the same or a later rank.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        held::check(self.rank.get(), false);
        self.taken(acquire(|| self.inner.lock(), || self.inner.try_lock()))
    }

    /// Takes the lock beside others of the same rank; the caller vouches for the order.
    ///
    /// # Panics
    /// In debug builds, when this thread holds a lock of a later rank.
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        held::check(self.rank.get(), true);
        self.taken(acquire(|| self.inner.lock(), || self.inner.try_lock()))
    }

    /// Takes the lock if that needs no waiting.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock().map(|g| self.taken(g))
    }

    /// The value, when the caller owns the lock anyway.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    fn taken<'a>(&self, inner: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        Guard {
            inner,
            _held: held::push(self.rank.get()),
        }
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Gives the lock to the thread that waits longest for it, rather than to the next one that asks.
    pub fn unlock_fair(self) {
        parking_lot::MutexGuard::unlock_fair(self.inner);
    }
}

impl<T> RwLock<T> {
    /// A lock of this rank around `value`.
    pub fn new(rank: Rank, value: T) -> Self {
        RwLock {
            rank: RankField::new(rank),
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// The value, out of its lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes the lock shared.
    ///
    /// # Panics
    /// In debug builds, when this thread holds a lock of the same or a later rank.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        held::check(self.rank.get(), false);
        self.read_taken(acquire(|| self.inner.read(), || self.inner.try_read()))
    }

    /// Takes the lock shared, beside others of the same rank.
    ///
    /// # Panics
    /// In debug builds, when this thread holds a lock of a later rank.
    #[track_caller]
    pub fn read_nested(&self) -> ReadGuard<'_, T> {
        held::check(self.rank.get(), true);
        self.read_taken(acquire(|| self.inner.read(), || self.inner.try_read()))
    }

    /// Takes the lock exclusively.
    ///
    /// # Panics
    /// In debug builds, when this thread holds a lock of the same or a later rank.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        held::check(self.rank.get(), false);
        self.write_taken(acquire(|| self.inner.write(), || self.inner.try_write()))
    }

    /// Takes the lock exclusively, beside others of the same rank.
    ///
    /// # Panics
    /// In debug builds, when this thread holds a lock of a later rank.
    #[track_caller]
    pub fn write_nested(&self) -> WriteGuard<'_, T> {
        held::check(self.rank.get(), true);
        self.write_taken(acquire(|| self.inner.write(), || self.inner.try_write()))
    }

    /// Takes the lock shared if that needs no waiting.
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        self.inner.try_read().map(|g| self.read_taken(g))
    }

    /// Takes the lock exclusively if that needs no waiting.
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        self.inner.try_write().map(|g| self.write_taken(g))
    }

    /// The value, when the caller owns the lock anyway.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    fn read_taken<'a>(&self, inner: parking_lot::RwLockReadGuard<'a, T>) -> ReadGuard<'a, T> {
        Guard {
            inner,
            _held: held::push(self.rank.get()),
        }
    }

    fn write_taken<'a>(&self, inner: parking_lot::RwLockWriteGuard<'a, T>) -> WriteGuard<'a, T> {
        Guard {
            inner,
            _held: held::push(self.rank.get()),
        }
    }
}

/// A thread that takes turns lets others run without the lock, until it can have it again. Nothing, and false, for other threads.
fn gave_way<T: ?Sized>(guard: &mut MutexGuard<'_, T>) -> bool {
    if !turns::takes_turns() {
        return false;
    }
    let mutex = parking_lot::MutexGuard::mutex(&guard.inner);
    parking_lot::MutexGuard::unlocked(&mut guard.inner, || {
        // No other member runs between this and the lock's return.
        loop {
            turns::give_way();
            if mutex.try_lock().is_some() {
                return;
            }
        }
    });
    true
}

/// A condition variable for [`Mutex`].
#[derive(Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A new one.
    #[must_use]
    pub const fn new() -> Self {
        Condvar(parking_lot::Condvar::new())
    }

    /// Releases the lock, waits to be woken, takes the lock again. It may also be woken for no reason.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        if !gave_way(guard) {
            self.0.wait(&mut guard.inner);
        }
    }

    /// As [`Condvar::wait`], for at most `timeout`. Whether the time ran out.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        // Threads that take turns know no time: it is always up.
        gave_way(guard) || self.0.wait_for(&mut guard.inner, timeout).timed_out()
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascending_order_and_release_in_any_order_pass() {
        let a = RwLock::new(Rank::Inode, ());
        let b = Mutex::new(Rank::Group, ());
        for _ in 0..2 {
            let ga = a.read();
            let gb = b.lock();
            drop(ga);
            drop(gb);
        }
        let _gb = b.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock inversion")]
    fn inversion_panics() {
        let a = RwLock::new(Rank::Inode, ());
        let b = Mutex::new(Rank::Group, ());
        let _gb = b.lock();
        let _ga = a.write();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock inversion")]
    fn same_rank_without_vouching_panics() {
        let a = RwLock::new(Rank::Inode, ());
        let b = RwLock::new(Rank::Inode, ());
        let _ga = a.write();
        let _gb = b.write();
    }

    #[test]
    fn same_rank_nested_passes() {
        let a = RwLock::new(Rank::Inode, ());
        let b = RwLock::new(Rank::Inode, ());
        let _ga = a.write();
        let _gb = b.write_nested();
    }
}
