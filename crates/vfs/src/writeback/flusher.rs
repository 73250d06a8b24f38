//! The flusher: the thread that writes old and surplus dirty pages; and writers that make too many.
//!
//! # Limits
//! Beyond the background limit the flusher works without waiting for age, until a quarter of it is free again: small files
//! would wake it once each otherwise. Age is looked for once a second, at all dirty inodes; they may be many. Beyond the hard one writers
//! wait while it gets along, and clean pages of their own when it does not (it is busy elsewhere, or there is none). Limits are
//! checked once for [`BALANCE_BYTES`] copied.
//!
//! # Order
//! Only the flusher reads and moves a file's writeback index. It visits dirty files in turn, each for a budget of bytes written,
//! and leaves the index right behind the last page written. One stream continues from visit to visit, so that the device
//! does not run dry between them. Writers start at the beginning of what is dirty.
//!
//! # Locks
//! None but leaves while it looks. A thread that waits for a file's writeback comes first: the flusher ends what it has in flight there.

use crate::core::Core;
use crate::core::InodeRef;
use crate::inode::Inode;
use crate::inode::holds::WritebackOwner;
use crate::options::MountOptions;
use crate::types::Ino;
use crate::writeback::{Stream, WithoutRoom};
use blockwright_device::sim::turns;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A caller's budget for one visit of one file, before it is multiplied.
const VISIT_BYTES: u64 = 4 << 20;
/// Large delayed allocations want large budgets: without this a 1 GiB stream is cut into pieces.
const BUDGET_FACTOR: u64 = 4;
/// Writers check the dirty limits once for this many bytes copied (256 pages).
const BALANCE_BYTES: u64 = 1 << 20;
/// So many dirty inodes are looked at, and held, at once.
const LOOK_AT_ONCE: usize = 256;

impl Core {
    /// Notes that a file has dirty pages.
    pub(crate) fn note_dirty(&self, inode: &Inode) {
        self.dirty.lock().insert(inode.ino());
        self.need_flusher();
    }

    /// Says that pages were written, to writers that wait for it.
    pub(crate) fn progress(&self) {
        self.flusher.progress();
    }

    /// Starts the flusher unless it runs. Volumes that are only looked at have none: a thread is a good part of what
    /// opening a small one costs. Threads that take turns have none either: no other thread has a part in their run.
    pub(crate) fn need_flusher(&self) {
        if !self.flusher.started.load(Ordering::Acquire) && !turns::takes_turns() {
            self.start_flusher();
        }
    }

    #[cold]
    fn start_flusher(&self) {
        let mut thread = self.flusher.thread.lock();
        if self.flusher.started.swap(true, Ordering::AcqRel) {
            return;
        }
        // Without a thread (the host's limits) writers clean their own pages when they must.
        let builder = std::thread::Builder::new().name("bw-flusher".to_owned());
        *thread =
            (self.me.upgrade()).and_then(|core| builder.spawn(move || core.run_flusher()).ok());
    }

    /// Ends the flusher; none is started any more.
    pub(crate) fn stop_flusher(&self) {
        let thread = {
            let mut thread = self.flusher.thread.lock();
            self.flusher.started.store(true, Ordering::Release);
            thread.take()
        };
        self.flusher.state.lock().stop = true;
        self.flusher.wake.notify_all();
        if let Some(thread) = thread {
            // A flusher that panicked has nothing more to say.
            let _ = thread.join();
        }
    }

    /// Wakes the flusher.
    pub(crate) fn kick_flusher(&self) {
        self.need_flusher();
        if !self.flusher.state.lock().replace_kick() {
            self.flusher.wake.notify_one();
        }
    }

    /// After this many bytes copied a writer calls [`Core::balance`].
    pub(crate) fn balance_bytes(&self) -> u64 {
        match self.has_legacy_writeback() {
            false => BALANCE_BYTES,
            true => self.legacy_balance_bytes(),
        }
    }

    /// Called by writers once per [`Core::balance_bytes`]: holds them back when too much is dirty.
    pub(crate) fn balance(&self, inode: &Arc<Inode>) {
        if self.budget.over_background() {
            self.kick_flusher();
        }
        if self.budget.over_max() {
            let start = Instant::now();
            self.throttle(inode);
            let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.counters.throttled_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }

    /// Holds a writer back until few enough pages are dirty.
    fn throttle(&self, inode: &Arc<Inode>) {
        let mut rounds = 0;
        loop {
            let seen = self.flusher.cleaned.load(Ordering::SeqCst);
            if !self.budget.over_max() {
                return;
            }
            self.counters.throttled.fetch_add(1, Ordering::Relaxed);
            let ordered = !self.has_legacy_writeback();
            if ordered
                && self.flusher.running.load(Ordering::SeqCst)
                && self.flusher.wait_progress(seen)
            {
                continue;
            }
            // A writer holds locks: what finds no room stays dirty until a thread can clean for it.
            let mut stream = Stream::without_room(self, WithoutRoom::KeepDirty);
            let owner = stream.own(inode);
            let written = if ordered {
                // From the beginning of the dirty range: the cyclic index is the flusher's alone.
                stream
                    .write(&owner, 0..u64::MAX, VISIT_BYTES * BUDGET_FACTOR)
                    .1
            } else {
                self.write_legacy(&mut stream, &owner)
            };
            drop(owner);
            stream.drain();
            if stream.take_outcome().kept_dirty > 0 {
                // Cleaning may wait for a lock that this writer holds.
                self.kick_flusher();
                return;
            }
            if written == 0 {
                // Others made the dirt.
                self.flusher.wait_progress(seen);
                rounds += 1;
                if rounds > 500 {
                    return;
                }
            }
        }
    }

    /// One visit of the flusher: from the file's index to the end, then from the start.
    pub(crate) fn write_cyclic(
        &self,
        stream: &mut Stream<'_>,
        owner: &Arc<WritebackOwner>,
        budget: u64,
    ) -> u64 {
        let from = owner.inode.pages.lock().flusher_index;
        let (mut at, mut written) = stream.write(owner, from..u64::MAX, budget);
        if written < budget && at == u64::MAX {
            let (at2, more) = stream.write(owner, 0..from, budget - written);
            at = at2;
            written += more;
        }
        owner.inode.pages.lock().flusher_index = if at == u64::MAX { 0 } else { at };
        written
    }

    /// One round over the dirty inodes, from `cursor` on and around. A round for age looks at all of them; one for lack of
    /// room ends as soon as there is enough again, and the next one continues behind it. Whether any dirty page was
    /// written. `pins` outlive what is in flight: an inode must not be evicted under it.
    pub(crate) fn flush_round(
        self: &Arc<Self>,
        stream: &mut Stream<'_>,
        pins: &mut Vec<InodeRef>,
        cursor: &mut Ino,
        round: Round,
    ) -> bool {
        let options = self.options();
        let begin = *cursor;
        let mut wrapped = false;
        let mut wrote = false;
        loop {
            let end = if wrapped { begin } else { Ino(u64::MAX) };
            let chunk: Vec<Ino> = {
                let dirty = self.dirty.lock();
                let rest = dirty.range(*cursor..end);
                rest.take(LOOK_AT_ONCE).copied().collect()
            };
            let Some(last) = chunk.last() else {
                if wrapped || begin == Ino(0) {
                    *cursor = Ino(0);
                    return wrote;
                }
                wrapped = true;
                *cursor = Ino(0);
                continue;
            };
            let behind = Ino(last.0.saturating_add(1));
            for ino in chunk {
                if self.flusher.state.lock().stop {
                    return wrote;
                }
                if round == Round::ForRoom && !self.budget.over_low() {
                    *cursor = ino;
                    return wrote;
                }
                wrote |= self.flush_inode(stream, pins, ino, round, &options);
            }
            *cursor = behind;
        }
    }

    /// Writes what is old or surplus of one dirty inode. Whether any dirty page was written.
    fn flush_inode(
        self: &Arc<Self>,
        stream: &mut Stream<'_>,
        pins: &mut Vec<InodeRef>,
        ino: Ino,
        round: Round,
        options: &MountOptions,
    ) -> bool {
        let now = self.clock_ms();
        let age = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let Some(inode) = self.find_inode(ino) else {
            // Evicted, which took it off the list. It must not be taken off here: the number may be
            // that of a new file by now, whose pages would not be written then.
            return false;
        };
        self.flusher.hold(&inode);
        let over = match round {
            Round::ForRoom => self.budget.over_low(),
            Round::ForAge => self.budget.over_background(),
        };
        let (has_pages, since) = {
            let table = inode.pages.lock();
            (table.has_unwritten(0..u64::MAX), table.dirty_since)
        };
        let old = now.saturating_sub(since) >= age(options.writeback_interval);
        let mut wrote = false;
        if has_pages
            && (over || old)
            && inode.attr().nlink > 0
            && let Some(owner) = stream.own_or_leave(&inode)
        {
            let bytes = if !self.has_legacy_writeback() {
                self.write_cyclic(stream, &owner, VISIT_BYTES * BUDGET_FACTOR)
            } else {
                self.write_legacy(stream, &owner)
            };
            wrote = bytes > 0;
            // Written pages are clean soon; writers are kept waiting by what is not clean, not by looking for it.
            let folios = bytes / crate::cache::page_cache::FOLIO_BYTES_MIN;
            // A waiting thread has the time to look for it.
            if self.flusher.waiters.load(Ordering::Relaxed) == 0 {
                self.budget.make_room_ahead(2 * folios as usize);
            }
            if !inode.pages.lock().has_dirty() {
                // New dirt starts a new age.
                inode.pages.lock().dirty_since = now;
            }
        }
        if inode
            .lazy_since()
            .is_some_and(|s| now.saturating_sub(s) >= age(options.lazy_time_interval))
            && inode.take_lazy()
            && let Err(e) = self.engine.write_attr(&inode)
        {
            inode.pages.record_error(e);
        }
        pins.push(inode);
        if pins.len() >= LOOK_AT_ONCE || self.flusher.let_go.load(Ordering::SeqCst) {
            stream.drain();
            self.let_go(pins);
        }
        wrote
    }

    /// Takes those that are clean off the list of dirty inodes, and lets all of them leave memory.
    pub(crate) fn let_go(&self, pins: &mut Vec<InodeRef>) {
        self.flusher.let_go.store(false, Ordering::SeqCst);
        self.forget_clean(pins);
        let inos: Vec<Ino> = pins.iter().map(|inode| inode.ino()).collect();
        // The last reference to a removed file frees its blocks here.
        pins.clear();
        self.flusher.release(inos);
        self.progress();
    }

    /// Takes those off the list of dirty inodes that are clean.
    pub(super) fn forget_clean(&self, inodes: &[InodeRef]) {
        let mut dirty = self.dirty.lock();
        for inode in inodes {
            // A writer that dirties it after this look inserts it again.
            if !inode.is_dirty() {
                dirty.remove(&inode.ino());
            }
        }
    }

    /// The flusher's life.
    pub(crate) fn run_flusher(self: Arc<Self>) {
        self.flusher.running.store(true, Ordering::SeqCst);
        let mut cursor = Ino(0);
        let mut looked_at_all = Instant::now();
        let mut minded = Instant::now();
        let mut most_small = 0;
        loop {
            let options = self.options();
            let period = options
                .writeback_interval
                .min(options.lazy_time_interval)
                .min(Duration::from_secs(1))
                .max(Duration::from_millis(10));
            {
                let mut state = self.flusher.state.lock();
                if !state.kicked && !state.stop {
                    let left = period.saturating_sub(looked_at_all.elapsed());
                    let left = left.max(Duration::from_millis(1));
                    self.flusher.wake.wait_for(&mut state, left);
                }
                if state.stop {
                    break;
                }
                state.kicked = false;
            }
            // Metadata may have grown without a request for pages.
            let minds = self.budget.background_limit() != u64::MAX;
            if minds && minded.elapsed() >= Duration::from_millis(250) {
                minded = Instant::now();
                self.mind_memory(&mut most_small);
            }
            let mut pins = Vec::new();
            {
                let mut stream = Stream::without_room(&self, WithoutRoom::KeepDirty);
                // A need of room comes first. Then age, which grows without requests.
                while self.budget.over_background()
                    && self.flush_round(&mut stream, &mut pins, &mut cursor, Round::ForRoom)
                    && !self.flusher.state.lock().stop
                {}
                if looked_at_all.elapsed() >= period {
                    looked_at_all = Instant::now();
                    let mut first = Ino(0);
                    self.flush_round(&mut stream, &mut pins, &mut first, Round::ForAge);
                }
                stream.drain();
                if stream.take_outcome().kept_dirty > 0 {
                    self.make_room_for_reserved();
                }
            }
            self.let_go(&mut pins);
        }
        self.flusher.running.store(false, Ordering::SeqCst);
        self.progress();
    }
}

/// Why the flusher looks at dirty inodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Too much is dirty.
    ForRoom,
    /// Something may have been dirty for too long.
    ForAge,
}
