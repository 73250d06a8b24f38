//! When sections are cleaned, and by which thread.
//!
//! *Foreground* cleaning runs in the thread that is about to change something, when free sections run short
//! ([`Cleaning::make_room`]). It takes greedy victims until there is room for the change, or until cleaning gains nothing any more.
//! The *background* is a thread. When free sections are about to run short it cleans *ahead* of the writers, greedily as
//! well. From time to time it checks whether anything changed; if not, it cleans a section by cost and benefit.
//!
//! # Steps
//! A step of cleaning empties a section, or writes the checkpoint that makes emptied sections free. After each step, waiters are
//! served in order as far as the room goes ([`queue`](super::queue)). So a waiter waits for no more than its own room and that of the waiters
//! before it.
//!
//! A checkpoint writes nearly all nodes of a volume that is overwritten at random. So it follows several sections
//! ([`Ahead::batch`]), unless a writer has waited for long.
//!
//! # Dirty data
//! In `lfs` mode dirty data in the cache needs new blocks, and writeback cannot wait for cleaning. Room for it is
//! kept free, and no garbage gathers in that room. So little data may be dirty on a full volume ([`Cleaning::unwritten_bytes_max`]).

use super::Cleaning;
use super::queue::{Attending, First, QueuePlace};
use super::{Cleaner, Trigger};
use crate::alloc::victims::Policy;
use crate::options::{BackgroundCleaning, Mode};
use crate::writer::Writer;
use crate::writer::trace::Part;
use crate::{Error, ErrorKind, Result};
use blockwright_vfs::Host;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A writer that has waited so long is served without making room for others as well.
const PATIENCE: Duration = Duration::from_millis(200);
/// Sections cleaned in vain before a pass gives up.
const IN_VAIN_MAX: u32 = 24;
/// And sections' worth of garbage in them: many sections with little garbage each make a free one in the end.
const GARBAGE_IN_VAIN_MAX: u64 = 4;
/// Sections after which a checkpoint shows what was won.
const UNSEEN_MAX: u32 = 12;
/// How long the background does nothing after it has cleaned in vain.
const REST: Duration = Duration::from_secs(1);

/// Steps from when room runs short until there is some, whichever thread takes them.
#[derive(Default)]
pub(super) struct Pass {
    begun: bool,
    tried: HashSet<u32>,
    /// The most free sections there were.
    best: usize,
    /// Sections cleaned since there were more than ever.
    in_vain: u32,
    /// The garbage that was in them, in blocks.
    garbage_in_vain: u64,
    /// Sections cleaned since the last checkpoint.
    unseen: u32,
    wrote_back: bool,
    /// The last pass gave up when this many blocks had been committed.
    gave_up: Option<u64>,
}

/// How far cleaning goes beyond what is needed, in sections.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// The background begins when fewer than this many are left.
    low: usize,
    /// How many are made at once.
    batch: usize,
}

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Something was done.
    Done,
    /// Nothing is won any more.
    InVain,
}

/// How the free sections compare with what is about to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    Ample,
    /// There is some, and soon none: the background may begin.
    Low,
    /// It has to be made.
    Short,
}

/// What woke the background thread.
enum Wake {
    Time,
    Called,
    Stop,
}

impl Cleaner {
    /// Waits for work.
    fn sleep(&self, time: Duration) -> Wake {
        let mut stop = self.stop.lock();
        let called = || self.called.load(Ordering::Acquire);
        if !*stop && !called() {
            self.stopped.wait_for(&mut stop, time);
        }
        match *stop {
            true => Wake::Stop,
            false if called() => Wake::Called,
            false => Wake::Time,
        }
    }

    /// Waits; ends early when cleaning is to stop.
    fn rest(&self, time: Duration) {
        let mut stop = self.stop.lock();
        if !*stop {
            self.stopped.wait_for(&mut stop, time);
        }
    }

    /// Has the background clean, if there is any.
    fn call(&self) {
        if !self.called.swap(true, Ordering::AcqRel) {
            drop(self.stop.lock());
            self.stopped.notify_all();
        }
    }
}

impl Cleaning {
    /// [`blockwright_vfs::engine::Space::make_room`].
    pub(crate) fn make_room(&self, bytes: u64) {
        let Some(w) = &self.access.writer else { return };
        w.segments.withhold_less();
        let Some(host) = w.relocation.host.get() else {
            return;
        };
        if w.segments.is_pinned() {
            // What is moved would not be freed.
            return;
        }
        match self.room(w, &**host, bytes) {
            Room::Ample => return,
            Room::Low => return self.cleaner.call(),
            Room::Short => {}
        }
        let queue = &self.cleaner.queue;
        if w.failure().is_some() {
            return;
        }
        self.cleaner.call();
        let began = Instant::now();
        let ticket = queue.join(bytes);
        while let Some(attending) = queue.wait(ticket) {
            self.attend_to(w, &**host, &attending, ticket);
        }
        let counters = &w.relocation.counters;
        counters.foreground_waits.fetch_add(1, Ordering::Relaxed);
        let ns = began.elapsed().as_nanos() as u64;
        counters.foreground_ns.fetch_add(ns, Ordering::Relaxed);
        counters.foreground_peak_ns.fetch_max(ns, Ordering::Relaxed);
        w.relocation.trace.waited(began);
    }

    fn room(&self, w: &Writer, host: &dyn Host, bytes: u64) -> Room {
        let free = w.segments.free_sections();
        let needed = self.sections_needed(w, host, bytes);
        // Room that is made for waiters is not for a writer that comes later.
        if free < needed || !self.cleaner.queue.is_empty() {
            Room::Short
        } else if free < needed + self.ahead(w).low {
            Room::Low
        } else {
            Room::Ample
        }
    }

    /// Whether [`Cleaning::make_room`] would find nothing to do.
    pub(crate) fn has_ample_room(&self, w: &Writer, bytes: u64) -> bool {
        let host = w.relocation.host.get();
        host.is_none_or(|host| self.room(w, &**host, bytes) == Room::Ample)
    }

    /// Makes room until a ticket is served.
    fn attend_to(&self, w: &Writer, host: &dyn Host, attending: &Attending<'_>, mine: QueuePlace) {
        let part = w.relocation.trace.enter(Part::Turn);
        let mut pass = self.cleaner.turn.lock();
        drop(part);
        loop {
            self.serve(w, host, attending, &mut pass);
            if attending.is_served(mine) {
                break;
            }
            let first = attending.first();
            if self.step_for(w, host, &mut pass, first) == Step::InVain {
                // The operation that needs the room fails with `NoSpace`.
                attending.let_go();
            }
        }
    }

    /// Serves the waiters that there is room for. If there are any, cleaning was not in vain.
    fn serve(&self, w: &Writer, host: &dyn Host, attending: &Attending<'_>, pass: &mut Pass) {
        let served = attending
            .serve(|bytes| w.segments.free_sections() >= self.sections_needed(w, host, bytes));
        if served > 0 {
            *pass = Pass::default();
        }
    }

    /// A step for the first waiter; nothing when none waits.
    fn step_for(&self, w: &Writer, host: &dyn Host, pass: &mut Pass, first: Option<First>) -> Step {
        let Some(first) = first else {
            return Step::Done;
        };
        let needed = self.sections_needed(w, host, first.bytes);
        let wanted = match w.segments.mode() {
            Mode::Lfs if first.waited <= PATIENCE => needed + self.ahead(w).batch,
            _ => needed,
        };
        self.step(w, host, pass, wanted, Trigger::Foreground)
    }

    /// Free sections that must be there before `bytes` are written.
    fn sections_needed(&self, w: &Writer, host: &dyn Host, bytes: u64) -> usize {
        let reserve = w.segments.reserve();
        match w.segments.mode() {
            // Holes are filled when free sections run short; only nodes may use the last ones.
            Mode::Adaptive => (reserve - reserve / 4).max(w.segments.left_to_cleaning() + 1),
            Mode::Lfs => {
                let blocks = bytes.saturating_add(host.unwritten_bytes()) >> 12;
                let blocks = blocks + self.nodes.dirty_blocks() + 1;
                let sections = blocks.div_ceil(w.segments.section_blocks());
                reserve + 1 + usize::try_from(sections).unwrap_or(usize::MAX >> 1)
            }
        }
    }

    /// Sections that nothing valid would be in if all of it were side by side, without the reserve.
    fn spare_sections(&self, w: &Writer) -> usize {
        let sections = w.segments.spare_blocks() / w.segments.section_blocks();
        usize::try_from(sections)
            .unwrap_or(usize::MAX)
            .saturating_sub(w.segments.reserve())
    }

    /// More at once means fewer checkpoints, but also less garbage in each section that is cleaned.
    fn ahead(&self, w: &Writer) -> Ahead {
        let batch = match w.segments.mode() {
            Mode::Adaptive => 1,
            Mode::Lfs => (self.spare_sections(w) / 16).clamp(1, 16),
        };
        Ahead {
            low: batch.div_ceil(2),
            batch,
        }
    }

    /// [`blockwright_vfs::engine::Space::unwritten_bytes_max`].
    pub(crate) fn unwritten_bytes_max(&self) -> u64 {
        match &self.access.writer {
            Some(w) if w.segments.mode() == Mode::Lfs => {
                let sections = (self.spare_sections(w) as u64 / 32).max(1);
                sections.saturating_mul(w.segments.section_blocks() << 12)
            }
            _ => u64::MAX,
        }
    }

    /// One step towards this many free sections.
    fn step(
        &self,
        w: &Writer,
        host: &dyn Host,
        pass: &mut Pass,
        wanted: usize,
        trigger: Trigger,
    ) -> Step {
        if !pass.begun {
            let given_up = pass.gave_up.filter(|c| *c == w.segments.commits());
            if given_up.is_some() {
                // For writers that waited meanwhile.
                return Step::InVain;
            }
            pass.begun = true;
            pass.best = w.segments.free_sections();
        }
        let went_on = if self.cleaner.is_stopped() || w.failure().is_some() {
            Ok(false)
        } else {
            self.try_step(w, host, pass, wanted, trigger)
        };
        let went_on = went_on.unwrap_or_else(|e| {
            w.relocation
                .counters
                .failures
                .fetch_add(1, Ordering::Relaxed);
            self.note(e);
            // Another section may do.
            true
        });
        let garbage_max = GARBAGE_IN_VAIN_MAX * w.segments.section_blocks();
        let in_vain = pass.in_vain >= IN_VAIN_MAX && pass.garbage_in_vain >= garbage_max;
        if went_on && !in_vain {
            return Step::Done;
        }
        *pass = Pass {
            gave_up: Some(w.segments.commits()),
            ..Pass::default()
        };
        Step::InVain
    }

    /// Whether anything was done.
    fn try_step(
        &self,
        w: &Writer,
        host: &dyn Host,
        pass: &mut Pass,
        wanted: usize,
        trigger: Trigger,
    ) -> Result<bool> {
        let free = w.segments.free_sections();
        let prefree = w.segments.prefree_sections();
        let short = free <= w.segments.reserve() / 2 + 1;
        let enough = free + prefree >= wanted;
        if prefree > 0 && (short || enough || pass.unseen >= UNSEEN_MAX) {
            return self.free_emptied(w, pass);
        }
        let Some(section) = w.segments.choose_victim(Policy::Greedy, &pass.tried) else {
            if prefree > 0 {
                return self.free_emptied(w, pass);
            }
            if w.segments.mode() == Mode::Lfs && !pass.wrote_back && host.unwritten_bytes() > 0 {
                // Room for it is kept, and blocks that it replaces can be freed. A file's error is reported to its open handles.
                let _part = w.relocation.trace.enter(Part::WriteBack);
                let _told = host.write_back();
                pass.wrote_back = true;
                return Ok(true);
            }
            return Ok(false);
        };
        pass.in_vain += 1;
        pass.garbage_in_vain += w.segments.garbage_in(section);
        pass.unseen += 1;
        pass.tried.insert(section);
        match self.clean_section(w, host, section, trigger) {
            Err(e) if e.kind() == ErrorKind::NoSpace => self.free_emptied(w, pass),
            other => other.map(|()| true),
        }
    }

    /// A checkpoint, which frees what was emptied.
    fn free_emptied(&self, w: &Writer, pass: &mut Pass) -> Result<bool> {
        pass.unseen = 0;
        let part = w.relocation.trace.enter(Part::Checkpoint);
        let result = self.checkpoints.checkpoint();
        drop(part);
        let free = w.segments.free_sections();
        if free > pass.best {
            (pass.best, pass.in_vain, pass.garbage_in_vain) = (free, 0, 0);
        } else {
            // The sections that it freed were taken at once, or are held.
            pass.in_vain += IN_VAIN_MAX / 4;
            pass.garbage_in_vain += w.segments.section_blocks();
        }
        result.map(|()| true)
    }

    /// Records damage that no caller learns about.
    fn note(&self, e: Error) {
        if e.kind() != ErrorKind::Corrupt {
            return;
        }
        // `corrupt` has counted it when it was found here; parsers' errors have not been.
        self.volume.remember(e);
    }

    /// Hands the vfs over, and begins cleaning in the background.
    pub(crate) fn start_cleaning(self: &Arc<Self>, host: Arc<dyn Host>) {
        let Some(w) = &self.access.writer else { return };
        if w.relocation.host.set(host).is_err()
            || self.volume.options.background_cleaning == BackgroundCleaning::Off
        {
            return;
        }
        let theirs = Arc::downgrade(self);
        let interval = self.volume.options.cleaning_interval;
        let thread = std::thread::Builder::new().name("f2fs-gc".to_owned());
        let spawned = thread.spawn(move || {
            while let Some(cleaning) = theirs.upgrade() {
                let Some(w) = &cleaning.access.writer else {
                    return;
                };
                let before = w.relocation.operations.load(Ordering::Relaxed);
                match cleaning.cleaner.sleep(interval) {
                    Wake::Stop => return,
                    Wake::Called => {
                        if cleaning.clean_ahead(w) == Step::InVain {
                            cleaning.cleaner.rest(REST);
                        }
                        cleaning.cleaner.called.store(false, Ordering::Release);
                    }
                    Wake::Time => {
                        let idle = w.relocation.operations.load(Ordering::Relaxed) == before;
                        if idle && !w.segments.is_pinned() {
                            cleaning.clean_background();
                        }
                    }
                }
            }
        });
        *self.cleaner.thread.lock() = spawned.ok();
    }

    /// [`blockwright_vfs::engine::Volume::stop_cleaning`].
    pub(crate) fn stop_cleaning(&self) {
        let Some(_w) = &self.access.writer else {
            return;
        };
        *self.cleaner.stop.lock() = true;
        self.cleaner.stopped.notify_all();
        let thread = self.cleaner.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of it has been reported by its own thread.
            let _ended = thread.join();
        }
    }

    /// Cleans until writers have some sections before they must wait. `InVain`: that cannot be reached.
    fn clean_ahead(&self, w: &Writer) -> Step {
        let Some(host) = w.relocation.host.get() else {
            return Step::InVain;
        };
        let attending = self.cleaner.queue.attend();
        let mut pass = self.cleaner.turn.lock();
        loop {
            if w.segments.is_pinned() {
                attending.let_go();
                return Step::InVain;
            }
            self.serve(w, &**host, &attending, &mut pass);
            let first = attending.first();
            let step = match first {
                // In their place.
                Some(_) => self.step_for(w, &**host, &mut pass, first),
                None => {
                    let ahead = self.ahead(w);
                    let needed = self.sections_needed(w, &**host, 0);
                    let wanted = needed + ahead.low + ahead.batch;
                    if w.segments.free_sections() >= wanted {
                        *pass = Pass::default();
                        return Step::Done;
                    }
                    self.step(w, &**host, &mut pass, wanted, Trigger::Ahead)
                }
            };
            if step == Step::InVain {
                if first.is_some() {
                    attending.let_go();
                }
                return Step::InVain;
            }
        }
    }

    /// Cleans sections one after another until the volume is used again, or most of what is not in use is free. How
    /// many.
    pub fn clean_background(&self) -> u64 {
        let Some(w) = &self.access.writer else {
            return 0;
        };
        let mut tried = HashSet::new();
        let mut done = 0;
        loop {
            let free = w.segments.free_sections() + w.segments.prefree_sections();
            // Half of the space in free sections is enough: what is hot frees more by itself.
            if w.segments.invalid_blocks() <= free as u64 * w.segments.section_blocks() {
                return done;
            }
            let before = w.relocation.operations.load(Ordering::Relaxed);
            if !self.clean_one(w, &mut tried) {
                return done;
            }
            done += 1;
            if w.relocation.operations.load(Ordering::Relaxed) != before {
                return done;
            }
        }
    }

    /// Cleans up to `count` sections as the background does, whether there is need or not. How many.
    pub fn clean_sections(&self, count: u64) -> u64 {
        let Some(w) = &self.access.writer else {
            return 0;
        };
        let mut tried = HashSet::new();
        (0..count)
            .take_while(|_| self.clean_one(w, &mut tried))
            .count() as u64
    }

    /// Cleans the best section that was not `tried`; whether there was one, and no error.
    fn clean_one(&self, w: &Writer, tried: &mut HashSet<u32>) -> bool {
        let Some(host) = w.relocation.host.get() else {
            return false;
        };
        // While checkpoints are disabled, what is moved is not freed.
        if self.cleaner.is_stopped() || w.failure().is_some() || w.segments.is_pinned() {
            return false;
        }
        let _turn = self.cleaner.turn.lock();
        let policy = Policy::CostBenefit { now: w.age() };
        let Some(section) = w.segments.choose_victim(policy, tried) else {
            return false;
        };
        tried.insert(section);
        let cleaned = self.clean_section(w, &**host, section, Trigger::Background);
        let sync = self.volume.options.background_cleaning == BackgroundCleaning::Sync;
        let short = w.segments.free_sections() <= w.segments.reserve() + 1;
        let result = match cleaned {
            Ok(()) if sync || short => self.checkpoints.checkpoint(),
            other => other,
        };
        if let Err(e) = result {
            w.relocation
                .counters
                .failures
                .fetch_add(1, Ordering::Relaxed);
            self.note(e);
            return false;
        }
        true
    }
}
