//! The page cache's budget: how many bytes are cached and dirty, and what to drop when there are too many.
//!
//! The volume has one budget for what it keeps in memory. Four other users reduce the bytes for pages: the engine's metadata, the inodes
//! ([`Budget::note_others`]), the folios themselves, and requests of front ends ([`Budget::note_front`]). A quarter belongs to pages in any case.
//!
//! One clock over the folios of all files: a folio that was used since the hand last passed gets
//! another round; dirty ones, ones under writeback, and ones being read are passed over. Reclaim never
//! writes.
//!
//! # Locks
//! The queue is a leaf. Tables are only tried, never waited for.

use crate::locks::{Mutex, Rank};
use crate::options::MountOptions;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// About what a folio takes in memory beside its pages, its places in lists included.
const FOLIO_BYTES: u64 = 512;
/// This part of the budget is for pages, however much others take.
const PAGES_LEAST: u64 = 4;
/// This part is for unused inodes, however much others take.
const INODES_LEAST: u64 = 16;
/// This part is for buffers that were given back and wait to be used again.
const FREE_BUFFERS: u64 = 16;
/// The part of the budget that is kept free for writers while the flusher works.
const AHEAD: u64 = 32;
/// Folios that reclaim looks at together: those of one file under one hold of its table's lock.
const LOOK_TOGETHER: usize = 32;
/// Reclaim that has to drop anything drops so much, or this part of the budget if that is less.
const SLACK_BYTES_MAX: u64 = 128 << 10;
const SLACK: u64 = 64;

/// State that all files of a volume share: bytes cached and dirty, and the order of reclaim.
pub(crate) struct Budget {
    /// Of all that is kept in memory.
    limit: AtomicU64,
    /// Bytes of the budget that belong to others than pages.
    others: AtomicU64,
    /// Folios that there are.
    folios: AtomicU64,
    /// What front ends hold for requests: now, at most since the last look, and as counted, which follows more slowly downwards.
    front: AtomicU64,
    front_peak: AtomicU64,
    front_kept: AtomicU64,
    /// What is theirs in any case.
    front_least: AtomicU64,
    /// Tables of front ends: of the inodes that they remember.
    tables: AtomicU64,
    dirty_background: AtomicU64,
    dirty_max: AtomicU64,
    /// How much the engine has room for.
    room: AtomicU64,
    pub(crate) cached: AtomicU64,
    pub(crate) dirty: AtomicU64,
    pub(crate) writeback: AtomicU64,
    clock: Mutex<Clock>,
    pub(crate) reclaimed: AtomicU64,
}

#[derive(Default)]
struct Clock {
    queue: VecDeque<Weak<Tag>>,
    live: usize,
}

/// A file whose folios reclaim may drop.
pub(crate) trait Reclaim: Send + Sync {
    /// Drops the folios of these queue entries, all of this file, except those in use, which are `kept`. How many bytes were dropped.
    /// Does not wait for the file's table.
    fn reclaim(&self, tags: &[Arc<Tag>], kept: &mut Vec<Weak<Tag>>) -> u64;
}

/// A folio's entry in the reclaim queue, and its charge against the budget.
pub(crate) struct Tag {
    file: Weak<dyn Reclaim>,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) referenced: AtomicBool,
    budget: Arc<Budget>,
}

impl Drop for Tag {
    fn drop(&mut self) {
        self.budget.cached.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.folios.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    pub(crate) fn new(options: &MountOptions) -> Arc<Self> {
        let budget = Arc::new(Budget {
            limit: AtomicU64::new(options.cache_bytes),
            others: AtomicU64::new(0),
            folios: AtomicU64::new(0),
            front: AtomicU64::new(0),
            front_peak: AtomicU64::new(0),
            front_kept: AtomicU64::new(0),
            front_least: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            dirty_background: AtomicU64::new(0),
            dirty_max: AtomicU64::new(0),
            room: AtomicU64::new(u64::MAX),
            cached: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
            clock: Mutex::new(Rank::Leaf, Clock::default()),
            reclaimed: AtomicU64::new(0),
        });
        budget.set_limits(options);
        budget
    }

    /// Changes the limits. Dirty pages never take more than half of the cache: the rest is what reclaim
    /// has to offer.
    pub(crate) fn set_limits(&self, options: &MountOptions) {
        let max = options.dirty_bytes_max.min(options.cache_bytes / 2);
        let background = match options.dirty_bytes_background {
            u64::MAX => u64::MAX,
            bytes => bytes.min(max / 2),
        };
        self.limit.store(options.cache_bytes, Ordering::Relaxed);
        self.dirty_max.store(max, Ordering::Relaxed);
        self.dirty_background.store(background, Ordering::Relaxed);
    }

    /// Bytes the volume may keep in memory.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes pages may have now.
    pub(crate) fn pages_limit(&self) -> u64 {
        let limit = self.limit();
        let others = self.others.load(Ordering::Relaxed);
        let front = self.front_kept.load(Ordering::Relaxed);
        let front = front.max(self.front_least.load(Ordering::Relaxed));
        // Buffers that wait to be used again take memory, too.
        let free = limit / FREE_BUFFERS;
        let others = others + self.folio_bytes() + front + free;
        limit.saturating_sub(others).max(limit / PAGES_LEAST)
    }

    /// Bytes inodes may have now, when the engine's metadata take this many: what that, requests (those there have been, not all that
    /// may come: these are the pages' to make room for), waiting buffers and the part that is the pages' in any case leave, and a
    /// sixteenth in any case.
    pub(crate) fn inodes_limit(&self, metadata: u64) -> u64 {
        let limit = self.limit();
        let front = self.front_kept.load(Ordering::Relaxed);
        let pages = limit / PAGES_LEAST + self.folio_bytes();
        let others = pages + limit / FREE_BUFFERS + front + self.table_bytes();
        limit
            .saturating_sub(others.saturating_add(metadata))
            .max(limit / INODES_LEAST)
    }

    /// What front ends' tables take.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// A table of a front end's takes this many bytes instead of this many.
    pub(crate) fn note_table(&self, before: u64, after: u64) {
        self.tables
            .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// What folios take beside their pages.
    pub(crate) fn folio_bytes(&self) -> u64 {
        self.folios.load(Ordering::Relaxed) * FOLIO_BYTES
    }

    /// A front end may need this many bytes for requests at any moment, sooner than pages could be dropped.
    pub(crate) fn reserve_front(&self, bytes: u64) {
        self.front_least.fetch_max(bytes, Ordering::Relaxed);
    }

    /// A front end holds this many bytes for requests instead of this many. Returns whether that is more than pages left to it.
    pub(crate) fn note_front(&self, before: u64, after: u64) -> bool {
        let more = after.wrapping_sub(before);
        let now = self.front.fetch_add(more, Ordering::Relaxed);
        let now = now.wrapping_add(more);
        self.front_peak.fetch_max(now, Ordering::Relaxed);
        let kept = self.front_kept.fetch_max(now, Ordering::Relaxed);
        now > kept.max(self.front_least.load(Ordering::Relaxed))
    }

    /// Once in a while: what front ends needed lately may be needed again soon, what they needed long ago is the pages'.
    pub(crate) fn age_front(&self) {
        let now = self.front.load(Ordering::Relaxed);
        let peak = self.front_peak.swap(now, Ordering::Relaxed);
        let kept = self.front_kept.load(Ordering::Relaxed);
        self.front_kept
            .store(peak.max(kept - kept / 4).max(now), Ordering::Relaxed);
    }

    /// Notes how many bytes are in use by others than pages.
    pub(crate) fn note_others(&self, bytes: u64) {
        // All threads look at this, so it is not written without need.
        if self.others.load(Ordering::Relaxed) != bytes {
            self.others.store(bytes, Ordering::Relaxed);
        }
    }

    /// Dirty bytes from which the flusher works.
    pub(crate) fn background_limit(&self) -> u64 {
        self.dirty_background.load(Ordering::Relaxed)
    }

    /// Dirty bytes from which writers clean pages.
    pub(crate) fn dirty_limit(&self) -> u64 {
        self.dirty_max.load(Ordering::Relaxed)
    }

    /// How many bytes may be dirty or on their way for lack of room on the device, whatever the options say.
    pub(crate) fn set_room(&self, bytes: u64) {
        self.room.store(bytes, Ordering::Relaxed);
    }

    /// Dirty bytes from which the flusher works, as things are.
    fn background(&self) -> u64 {
        let room = self.room.load(Ordering::Relaxed);
        match self.dirty_background.load(Ordering::Relaxed) {
            u64::MAX => u64::MAX,
            background => background.min(self.pages_limit() / 4).min(room / 2),
        }
    }

    /// More is dirty than the flusher leaves alone.
    pub(crate) fn over_background(&self) -> bool {
        self.unwritten() > self.background()
    }

    /// More is dirty than the flusher leaves behind once it works. Pages in flight do not count: they become
    /// clean by themselves.
    pub(crate) fn over_low(&self) -> bool {
        let background = self.background();
        self.dirty.load(Ordering::Relaxed) > background - background / 4
    }

    /// More is dirty than writers may leave behind.
    pub(crate) fn over_max(&self) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        let max = self.dirty_max.load(Ordering::Relaxed);
        self.unwritten() > max.min(self.pages_limit() / 2).min(room)
    }

    /// Bytes that must still reach the device.
    pub(crate) fn unwritten(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed) + self.writeback.load(Ordering::Relaxed)
    }

    /// Drops clean folios until `bytes` more fit the budget, or none is left to drop. No table is
    /// locked by the caller.
    pub(crate) fn make_room(&self, bytes: u64) {
        self.reclaim(bytes, None);
    }

    /// Makes some room ahead of writers, so that they need not: looks at this many folios at most.
    pub(crate) fn make_room_ahead(&self, folios: usize) {
        self.reclaim(self.pages_limit() / AHEAD, Some(folios));
    }

    fn reclaim(&self, bytes: u64, mut tries: Option<usize>) {
        loop {
            let limit = self.pages_limit();
            let wanted = self.cached.load(Ordering::Relaxed) + bytes;
            let Some(excess) = wanted.checked_sub(limit).filter(|n| *n > 0) else {
                return;
            };
            // Some more than is asked for, so that the next ones need not come here for every page.
            let enough = excess.max(SLACK_BYTES_MAX.min(limit / SLACK));
            let mut tags: SmallVec<[Arc<Tag>; LOOK_TOGETHER]> = SmallVec::new();
            {
                let mut clock = self.clock.lock();
                // Each folio gets one second chance, then the search ends.
                let left = tries.get_or_insert(clock.queue.len() * 2);
                let mut found = 0;
                while *left > 0 && found < enough && tags.len() < LOOK_TOGETHER {
                    *left -= 1;
                    let Some(tag) = clock.queue.pop_front() else {
                        *left = 0;
                        break;
                    };
                    if let Some(tag) = tag.upgrade() {
                        found += tag.bytes;
                        tags.push(tag);
                    }
                }
                if tags.is_empty() && *left == 0 {
                    return;
                }
            }
            let mut kept = Vec::new();
            for of_one in tags.chunk_by(|a, b| Weak::ptr_eq(&a.file, &b.file)) {
                let Some(file) = of_one[0].file.upgrade() else {
                    continue;
                };
                let bytes = file.reclaim(of_one, &mut kept);
                self.reclaimed.fetch_add(bytes, Ordering::Relaxed);
            }
            if !kept.is_empty() {
                self.clock.lock().queue.extend(kept);
            }
        }
    }

    /// Accounts a new folio and queues it for reclaim.
    pub(crate) fn charge<F: Reclaim + 'static>(
        self: &Arc<Self>,
        file: &Arc<F>,
        start: u64,
        bytes: u64,
    ) -> Arc<Tag> {
        self.cached.fetch_add(bytes, Ordering::Relaxed);
        self.folios.fetch_add(1, Ordering::Relaxed);
        let tag = Arc::new(Tag {
            file: Arc::<F>::downgrade(file),
            start,
            bytes,
            referenced: AtomicBool::new(false),
            budget: Arc::clone(self),
        });
        let mut clock = self.clock.lock();
        clock.queue.push_back(Arc::downgrade(&tag));
        // Entries of folios that were dropped otherwise are swept when they are the majority.
        if clock.queue.len() > 2 * clock.live + 1024 {
            clock.queue.retain(|t| t.strong_count() > 0);
            clock.live = clock.queue.len();
        }
        tag
    }
}
