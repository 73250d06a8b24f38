//! [`Journal`]: transactions of metadata blocks, written to a log before they go home.
//!
//! It owns the transactions, the log and the threads that commit and checkpoint. It calls the metadata cache (`buffer`) and the device. It
//! never knows what a block means, and calls the rest of the engine only through its two hooks and the callbacks of a commit.
//!
//! [`Journal::start`] joins the running transaction; [`Journal::commit`] makes one durable. At most
//! one transaction runs and one commits at any time. A commit waits for the handles of its
//! transaction, snapshots every block (an `Arc` clone each), lets the next transaction start,
//! and then writes: revoke records, descriptors and copies, a flush, the commit record. Without a
//! journal the same interface writes the blocks home in ascending order, and flushes.
//!
//! # Group commit
//! There is no queue: the first caller that finds no commit under way leads the next one in its own
//! thread; a handle that comes while it writes joins the transaction that runs meanwhile, and one of
//! them leads that. So n concurrent callers cost about two commits rather than n.
//!
//! # Crash order
//! `commit record durable` → copies enter the checkpoint map, revoked blocks leave it → `on_commit`
//! callbacks (freed blocks become reusable) → callers learn. Data that must be on the device
//! before a transaction shows it was written before the handle started; the flush before the
//! commit record makes it durable.
//!
//! # Locks
//! `state` guards which transaction runs and which commits; it is never held during I/O, nor while waiting for
//! anything but its own conditions. Buffer locks and the transaction's contents come below a handle.
//!
//! The first failed write or flush aborts the journal: nothing is committed any more.
//!
//! References: kernel documentation, "ext4 Data Structures: Journal (jbd2)".

mod alone;
pub mod buffer;
mod checkpoint;
mod checkpointer;
mod commit;
pub(crate) mod fast_commit;
mod handle;
pub(crate) mod load;
pub mod location;
mod log;
mod replay;
mod sharing;
mod stats;
mod transaction;

use crate::journal::buffer::MetaCache;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, SharedDevice};
pub use handle::Handle;
use log::Log;
use parking_lot::{Condvar, Mutex, MutexGuard};
use sharing::{Sharing, Together};
use stats::Tuned;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use transaction::Transaction;

/// A snapshot of a block: immutable, cheap to clone.
pub type BufferData = Arc<AlignedBuf>;

/// A transaction's number, counted from the mount on. 0 is before all. Not the sequence number in
/// the log: transactions without changes are never logged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tid(pub u64);

impl Tid {
    /// The next transaction.
    #[must_use]
    pub const fn next(self) -> Tid {
        Tid(self.0 + 1)
    }
}

/// A [`Tid`] that threads share.
#[derive(Default, Debug)]
pub struct AtomicTid(AtomicU64);

impl AtomicTid {
    /// With a value to begin with.
    #[must_use]
    pub fn new(tid: Tid) -> Self {
        AtomicTid(AtomicU64::new(tid.0))
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> Tid {
        Tid(self.0.load(Ordering::Acquire))
    }

    /// Raises the value to `tid` if that is later.
    pub fn raise(&self, tid: Tid) {
        self.0.fetch_max(tid.0, Ordering::AcqRel);
    }
}

struct Running {
    txn: Arc<Transaction>,
    handles: u32,
    /// Credits reserved by the handles.
    outstanding: u32,
    /// A commit waits for the handles; none joins.
    locked: bool,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// The transaction whose leader is at work, from locking on.
    committing: Option<Tid>,
    last_started: Tid,
    /// Every transaction up to this one is durable.
    durable: Tid,
}

#[derive(Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    fsyncs: AtomicU64,
    fsyncs_merged: AtomicU64,
    pub(crate) blocks_logged: AtomicU64,
    pub(crate) revokes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_blocks: AtomicU64,
    handles: AtomicU64,
    waits: AtomicU64,
    flushes: AtomicU64,
    pub(crate) log_waits: AtomicU64,
    flushes_merged: AtomicU64,
}

/// Device flushes that cover everything before them, in turn.
#[derive(Default)]
struct FlushTurns {
    started: u64,
    finished: u64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Runs while a transaction is locked against new handles. It may still add to that transaction.
type LockHook = Box<dyn Fn(&Handle<'_>) -> Result<()> + Send + Sync>;
/// Runs once, when the first error aborts the journal.
type AbortHook = Box<dyn Fn(&Error) + Send + Sync>;

/// How a journal is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Age at which the running transaction is committed.
    pub commit_interval: Duration,
    /// Flush around commits.
    pub barrier: bool,
    /// Refuse handles.
    pub read_only: bool,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// The running transaction was taken over by its commit, or replaced: starters look again.
    unlocked: Condvar,
    /// The last handle of a locked transaction ended.
    drained: Condvar,
    /// A commit ended, well or badly.
    committed: Condvar,
    /// For the timer: the journal stops.
    timer: Condvar,
    pub(crate) cache: MetaCache,
    pub(crate) device: SharedDevice,
    settings: Settings,
    tuned: Tuned,
    read_only: AtomicBool,
    pub(crate) counters: Counters,
    /// Most blocks of one transaction.
    txn_blocks_max: u32,
    aborted: OnceLock<Error>,
    on_lock: OnceLock<LockHook>,
    on_abort: OnceLock<AbortHook>,
    log: Option<Log>,
    sharing: Together,
    flushes: Mutex<FlushTurns>,
    flushed: Condvar,
    checkpoint_turn: Mutex<()>,
    checkpoint_wanted: Mutex<bool>,
    checkpoint_wake: Condvar,
    stopping: AtomicBool,
}

/// See the module's head.
pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The threads were started, or are not needed.
    started: AtomicBool,
}

/// Most blocks of a transaction when there is no log that limits it: bounds memory.
const HOME_TXN_BLOCKS_MAX: u32 = 8192;

impl Journal {
    /// A journal for a volume without one: commits write home.
    #[must_use]
    pub fn without_log(cache: MetaCache, settings: Settings) -> Self {
        Self::build(cache, None, settings, HOME_TXN_BLOCKS_MAX)
    }

    /// A journal that commits to `log`.
    #[must_use]
    pub fn with_log(cache: MetaCache, log: Log, settings: Settings) -> Self {
        // A quarter: one transaction commits, one runs, and checkpoints need not hurry. Less than
        // that exactly, since descriptors take room too.
        let blocks_max = (log.capacity() / 4).max(16);
        Self::build(cache, Some(log), settings, blocks_max)
    }

    fn build(cache: MetaCache, log: Option<Log>, settings: Settings, txn_blocks_max: u32) -> Self {
        let device = Arc::clone(cache.device());
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            unlocked: Condvar::new(),
            drained: Condvar::new(),
            committed: Condvar::new(),
            timer: Condvar::new(),
            cache,
            device,
            read_only: AtomicBool::new(settings.read_only),
            tuned: Tuned::new(&settings),
            settings,
            counters: Counters::default(),
            txn_blocks_max,
            aborted: OnceLock::new(),
            on_lock: OnceLock::new(),
            on_abort: OnceLock::new(),
            log,
            sharing: Together::default(),
            flushes: Mutex::default(),
            flushed: Condvar::new(),
            checkpoint_turn: Mutex::default(),
            checkpoint_wanted: Mutex::default(),
            checkpoint_wake: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        Journal {
            shared,
            threads: Mutex::default(),
            started: AtomicBool::new(false),
        }
    }

    /// The timer and the checkpointer, at the first handle: volumes that are only looked at need none.
    #[cold]
    fn start_threads(&self) {
        let mut threads = self.threads.lock();
        let shared = &self.shared;
        let needless = shared.settings.read_only || shared.stopping();
        if self.started.swap(true, Ordering::AcqRel) || needless {
            return;
        }
        // Without the threads commits still happen at fsync and when transactions fill up, and
        // checkpoints when the log is full.
        let timer = Arc::clone(shared);
        let name = |name: &str| std::thread::Builder::new().name(name.into());
        threads.extend(name("ext4-commit").spawn(move || timer.run_timer()).ok());
        if shared.has_log() {
            let checkpointer = Arc::clone(shared);
            let run = move || checkpointer.run_checkpointer();
            threads.extend(name("ext4-checkpoint").spawn(run).ok());
        }
    }

    /// `hook` runs in each transaction once no handle is left and before its blocks are
    /// snapshotted: for totals that must agree with what the transaction changed.
    pub fn set_lock_hook(&self, hook: impl Fn(&Handle<'_>) -> Result<()> + Send + Sync + 'static) {
        let _ = self.shared.on_lock.set(Box::new(hook));
    }

    /// `hook` runs once when the journal aborts.
    pub fn set_abort_hook(&self, hook: impl Fn(&Error) + Send + Sync + 'static) {
        let _ = self.shared.on_abort.set(Box::new(hook));
    }

    /// Joins the running transaction with room for `credits` blocks that are not in it yet.
    /// Waits while the transaction is full or commits. `op` names the operation in errors.
    ///
    /// # Errors
    /// `ReadOnly`, `Poisoned`, or `NoSpace` when no transaction could ever be that large.
    pub fn start(&self, credits: u32, op: &'static str) -> Result<Handle<'_>> {
        handle::assert_no_handle(&self.shared, op);
        if !self.started.load(Ordering::Acquire) {
            self.start_threads();
        }
        self.shared.start(credits, op)
    }

    /// Makes transaction `tid` durable. Returns at once when it is. Says nothing about file data
    /// written meanwhile: see [`Journal::sync`].
    ///
    /// # Errors
    /// `Poisoned` or `Io`, when this or an earlier commit failed.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        handle::assert_no_handle(&self.shared, "commit");
        add(&self.shared.counters.fsyncs, 1);
        let Some(_turn) = self.shared.sharing.turn() else {
            return self.shared.commit_until(tid);
        };
        self.shared.commit_until(tid)?;
        self.shared.flush("commit")
    }

    /// Makes durable both transaction `tid` and every device write that completed before the call:
    /// what an `fsync` needs. Costs one flush of the device when `tid` is durable already.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn sync(&self, tid: Tid) -> Result<()> {
        handle::assert_no_handle(&self.shared, "sync");
        add(&self.shared.counters.fsyncs, 1);
        let solo = self.shared.sharing.turn();
        // A commit that has not been led yet flushes after this moment, covering the caller's data.
        let covered = {
            let state = self.shared.state.lock();
            state
                .running
                .as_ref()
                .is_some_and(|r| r.txn.tid == tid && !r.locked && !r.txn.is_empty())
        };
        self.shared.commit_until(tid)?;
        if solo.is_some() {
            self.shared.flush("sync")
        } else if covered {
            Ok(())
        } else {
            self.shared.flush_shared("sync")
        }
    }

    /// Commits whatever the running transaction holds, and waits for a commit under way.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn commit_running(&self) -> Result<()> {
        handle::assert_no_handle(&self.shared, "commit");
        let newest = self.shared.state.lock().last_started;
        self.shared.commit_until(newest)
    }

    /// Whether a transaction is durable.
    #[must_use]
    pub fn tid_is_durable(&self, tid: Tid) -> bool {
        self.shared.state.lock().durable >= tid
    }

    /// Whether a handle of moderate size would most likely be started without waiting.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let shared = &self.shared;
        let state = shared.state.lock();
        let full = u64::from(shared.txn_blocks_max / 2);
        let room = |r: &Running| !r.locked && shared.weight(r) < full;
        shared.aborted.get().is_none() && state.running.as_ref().is_none_or(room)
    }

    /// The newest transaction that a handle was ever started in.
    #[must_use]
    pub fn newest_tid(&self) -> Tid {
        self.shared.state.lock().last_started
    }

    /// The transaction that a handle started now would most likely join.
    #[must_use]
    pub fn running_tid(&self) -> Tid {
        let state = self.shared.state.lock();
        state
            .running
            .as_ref()
            .map_or(state.last_started.next(), |r| r.txn.tid)
    }

    /// Commits, and writes everything home. Afterwards the log is empty.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn flush_checkpoint(&self) -> Result<()> {
        self.commit_running()?;
        if let Some(log) = &self.shared.log {
            let until = self.shared.state.lock().durable;
            self.shared.checkpoint(log, until)?;
        }
        Ok(())
    }

    /// After [`Journal::flush_checkpoint`], when nothing changes any more: marks the log as
    /// empty, so that the next mount need not look into it.
    ///
    /// # Errors
    /// `Io` or `Poisoned`; `Busy` when something is not home.
    pub fn mark_empty(&self) -> Result<()> {
        self.shared.check_alive("unmount")?;
        let Some(log) = &self.shared.log else {
            return Ok(());
        };
        if !self.shared.cache.checkpoint().is_empty() {
            return Err(
                Error::new(ErrorKind::Busy, "unmount").detail("committed blocks are not home yet")
            );
        }
        log.mark_empty()
    }

    /// Whether commits go to a log.
    pub(crate) fn has_log(&self) -> bool {
        self.shared.has_log()
    }

    /// The most credits a handle can have.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        self.shared.txn_blocks_max
    }

    /// Refuses new handles from now on (`errors=remount-ro`), or takes them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.shared.read_only.store(read_only, Ordering::Release);
    }

    /// Whether the volume was mounted for writing, whatever happened since.
    #[must_use]
    pub fn is_writable_mount(&self) -> bool {
        !self.shared.settings.read_only
    }

    /// Gives up: nothing is committed any more.
    pub fn abort(&self, cause: &Error) {
        self.shared.abort(cause.clone());
    }

    /// Why the journal gave up, if it did.
    #[must_use]
    pub fn aborted(&self) -> Option<&Error> {
        self.shared.aborted.get()
    }

    /// Stops the journal's threads. Commits are still possible.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Each lock is taken so that no waiter misses the wake-up between looking and waiting.
        drop(self.shared.state.lock());
        self.shared.timer.notify_all();
        drop(self.shared.checkpoint_wanted.lock());
        self.shared.checkpoint_wake.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The journal's own thread may drop the last reference to the volume: it ends by itself.
            if thread.thread().id() != std::thread::current().id() {
                // A thread that panicked has already ended.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// # Errors
    /// `Poisoned` when the journal has given up.
    pub(crate) fn check_alive(&self, op: &'static str) -> Result<()> {
        match self.aborted.get() {
            None => Ok(()),
            Some(cause) => Err(Error::new(ErrorKind::Poisoned, op).source(cause.clone())),
        }
    }

    /// A transaction's size in blocks of log, without descriptors.
    fn weight(&self, running: &Running) -> u64 {
        // The smallest block holds more than 64 revoke records.
        let (blocks, revokes) = running.txn.sizes();
        u64::from(blocks) + u64::from(running.outstanding) + u64::from(revokes / 64)
    }

    fn start(&self, credits: u32, op: &'static str) -> Result<Handle<'_>> {
        if credits > self.txn_blocks_max {
            return Err(Error::new(ErrorKind::NoSpace, op).detail(format!(
                "{credits} blocks do not fit a transaction of {} blocks; the journal is too small",
                self.txn_blocks_max
            )));
        }
        let mut waited = false;
        let mut state = self.state.lock();
        loop {
            self.check_alive(op)?;
            if self.read_only.load(Ordering::Acquire) {
                return Err(Error::new(ErrorKind::ReadOnly, op));
            }
            let State {
                running,
                last_started,
                ..
            } = &mut *state;
            let joined = match running {
                None => {
                    *last_started = last_started.next();
                    let txn = Arc::new(Transaction::new(*last_started));
                    running.insert(Running {
                        txn,
                        handles: 0,
                        outstanding: 0,
                        locked: false,
                    })
                }
                Some(r) if r.locked => {
                    if !std::mem::replace(&mut waited, true) {
                        add(&self.counters.waits, 1);
                    }
                    self.unlocked.wait(&mut state);
                    continue;
                }
                Some(r) => r,
            };
            let full = self.weight(joined) + u64::from(credits) > u64::from(self.txn_blocks_max);
            // A transaction without blocks and handles has room whatever was reserved.
            if full && !(joined.handles == 0 && joined.txn.is_empty()) {
                if !std::mem::replace(&mut waited, true) {
                    add(&self.counters.waits, 1);
                }
                let tid = joined.txn.tid;
                if state.committing.is_some() {
                    self.committed.wait(&mut state);
                } else {
                    state = self.lead(state, tid).0;
                }
                continue;
            }
            joined.handles += 1;
            joined.outstanding += credits;
            let txn = Arc::clone(&joined.txn);
            drop(state);
            add(&self.counters.handles, 1);
            return Ok(Handle::new(self, txn, credits, op));
        }
    }

    pub(crate) fn extend(&self, txn: &Arc<Transaction>, n: u32) -> bool {
        let mut state = self.state.lock();
        let Some(running) = state.running.as_mut().filter(|r| Arc::ptr_eq(&r.txn, txn)) else {
            return false;
        };
        let fits = self.weight(running) + u64::from(n) <= u64::from(self.txn_blocks_max);
        if running.locked || !fits {
            return false;
        }
        running.outstanding += n;
        true
    }

    pub(crate) fn stop(&self, reserved: u32) {
        let mut state = self.state.lock();
        // The transaction of a live handle cannot have been replaced.
        let Some(running) = state.running.as_mut() else {
            return;
        };
        running.handles = running.handles.saturating_sub(1);
        running.outstanding = running.outstanding.saturating_sub(reserved);
        if running.handles == 0 && running.locked {
            self.drained.notify_all();
        }
    }

    fn commit_until(&self, tid: Tid) -> Result<()> {
        let mut merged = false;
        let mut state = self.state.lock();
        let tid = tid.min(state.last_started);
        loop {
            if state.durable >= tid {
                if merged {
                    add(&self.counters.fsyncs_merged, 1);
                }
                return Ok(());
            }
            self.check_alive("commit")?;
            if state.committing.is_some() {
                merged = true;
                self.committed.wait(&mut state);
                continue;
            }
            merged = false;
            let Some(running) = state.running.as_ref().map(|r| r.txn.tid) else {
                // Not durable, not running, not committing: cannot be, as tids are handed out in
                // order; treat it as done rather than loop.
                return Ok(());
            };
            let (guard, result) = self.lead(state, running);
            state = guard;
            result?;
        }
    }

    /// Commits the running transaction in this thread. The caller saw that no commit is under way.
    fn lead<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        tid: Tid,
    ) -> (MutexGuard<'s, State>, Result<()>) {
        self.lead_with(state, tid, &mut |_| ())
    }

    fn lead_with<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        tid: Tid,
        before: &mut dyn FnMut(&Arc<Transaction>),
    ) -> (MutexGuard<'s, State>, Result<()>) {
        state.committing = Some(tid);
        let txn = loop {
            let Some(running) = state.running.as_mut() else {
                state.committing = None;
                return (state, Ok(()));
            };
            running.locked = true;
            if running.handles == 0 {
                break Arc::clone(&running.txn);
            }
            self.drained.wait(&mut state);
        };
        drop(state);
        before(&txn);
        let prepared = self.prepare(&txn);

        let mut state = self.state.lock();
        state.running = None;
        self.unlocked.notify_all();
        drop(state);

        let result = prepared.and_then(|commit| self.write_commit(commit));
        if let Err(error) = &result {
            self.abort(error.clone());
        }
        let mut state = self.state.lock();
        state.committing = None;
        if result.is_ok() {
            state.durable = tid;
            add(&self.counters.commits, 1);
        }
        self.committed.notify_all();
        self.unlocked.notify_all();
        (state, result)
    }

    /// Makes all completed device writes durable.
    pub(crate) fn flush(&self, op: &'static str) -> Result<()> {
        self.check_alive(op)?;
        if !self.tuned.barrier() {
            return Ok(());
        }
        add(&self.counters.flushes, 1);
        self.device.flush().map_err(|e| {
            let error = Error::io(op, e);
            self.abort(error.clone());
            error
        })
    }

    /// Makes all device writes durable that completed before the call, sharing the flush with
    /// other callers: a flush under way may have started too early, the one after it
    /// serves all that wait.
    fn flush_shared(&self, op: &'static str) -> Result<()> {
        let mut turns = self.flushes.lock();
        let needed = turns.started + 1;
        loop {
            self.check_alive(op)?;
            if turns.finished >= needed {
                add(&self.counters.flushes_merged, 1);
                return Ok(());
            }
            if turns.started == turns.finished {
                break;
            }
            self.flushed.wait(&mut turns);
        }
        turns.started += 1;
        let mine = turns.started;
        drop(turns);
        let result = self.flush(op);
        // After a failure too: the journal is aborted, and the waiters find that out.
        self.flushes.lock().finished = mine;
        self.flushed.notify_all();
        result
    }

    pub(crate) fn abort(&self, cause: Error) {
        if self.aborted.set(cause.clone()).is_err() {
            return;
        }
        // A full host is no fault of the volume's: like a crash, and the next mount recovers as from one. The note would make it a
        // volume to be repaired.
        if let Some(log) = self.log.as_ref().filter(|_| !cause.host_is_full()) {
            const EIO: i32 = -5;
            log.record_errno(EIO);
        }
        if let Some(hook) = self.on_abort.get() {
            hook(&cause);
        }
        {
            let _wanted = self.checkpoint_wanted.lock();
            self.checkpoint_wake.notify_all();
        }
        // Taken so that no waiter misses the wake-up between looking and waiting.
        drop(self.state.lock());
        self.unlocked.notify_all();
        self.committed.notify_all();
        self.timer.notify_all();
    }

    fn run_timer(&self) {
        let mut state = self.state.lock();
        while !self.stopping() && self.aborted.get().is_none() {
            let interval = self.tuned.commit_interval();
            let due = state
                .running
                .as_ref()
                .map(|r| (r.txn.tid, r.txn.born.elapsed()));
            match due {
                Some((tid, age)) if age >= interval && state.committing.is_none() => {
                    // A failure is kept by the journal and met by every later caller.
                    state = self.lead(state, tid).0;
                }
                Some((_, age)) => {
                    let left = interval.saturating_sub(age).max(Duration::from_millis(1));
                    self.timer.wait_for(&mut state, left);
                }
                // A new transaction does not wake the timer: fsync-heavy loads start thousands a
                // second. It finds one when it is at most one interval old.
                None => {
                    self.timer.wait_for(&mut state, interval);
                }
            }
        }
    }
}
