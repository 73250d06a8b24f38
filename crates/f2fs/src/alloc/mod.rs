//! Segments: which blocks of the main area are in use, and the six logs that hand out new ones.
//!
//! A block is handed out (`busy`), becomes valid when something refers to it, and invalid when nothing does
//! any more. Three maps per segment keep that apart: what the next checkpoint will call valid (`now`), what
//! the last one did or was referred to since (`then`), and what was handed out and is being written.
//!
//! A log appends to free segments: to the next one of its section, then to those of a free section. When free sections run
//! short it fills the holes of a segment in use (SSR): the segment with the fewest blocks in use of its kind; `mode=lfs`
//! does not. `victims` chooses sections to be cleaned.
//!
//! # Part
//! [`Segments`] owns the table of segments, the logs and their leases. It calls no other part, and never waits for cleaning or a checkpoint: it
//! reports `NoSpace`.
//!
//! # Reserves
//! The last free sections are for threads that free others: users' data leaves `reserve` of them alone, data whose write was accepted
//! about half of that, cleaning half, a checkpoint none. `accepted` has the promise that accepted writes find room. User blocks are counted apart (`charge`): over-provisioned segments are never promised to users.
//!
//! # Invariants
//! * A block that the last checkpoint calls valid is never handed out, or a crash would show one
//!   owner's data in the other's file.
//! * Every block that is handed out has its summary in its log, or among those to be written with the next
//!   checkpoint.
//! * `held` counts the blocks that any map holds: what is left can be handed out at once.
//! * `used_in` and `valid_in` count each section's segments that are not free and its valid blocks (`now`).
//! * Nothing is put into the section that is being cleaned.
//!
//! # Locks
//! `inner`, rank `Group`. The device is read under it only when a log moves into a segment in use.
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": Segment Information Table, Segment Summary
//! Area, Write-allocation Policy.

mod accepted;
mod claim;
mod durable;
mod garbage;
mod lease;
mod pinned;
mod place;
pub(crate) mod sharing;
mod summaries;
mod table;
pub(crate) mod victims;

pub(crate) use claim::{Claim, chain_start};

use crate::options::Mode;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, SharedDevice, WriteBatch};
use blockwright_ondisk::f2fs::checkpoint::{ALLOC_LFS, ALLOC_SSR, LogHead, VersionBitmap};
use blockwright_ondisk::f2fs::sit::{self, ENTRIES_PER_BLOCK, SitEntry, ValidMap};
use blockwright_ondisk::f2fs::summary::{
    SIT_JOURNAL_ENTRIES, SitJournal, Summary, SummaryBlock, SummaryKind,
};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Checkpoint, Geometry, Log, SegNo,
};
use blockwright_vfs::locks::{Mutex, MutexGuard, Rank};
use hashbrown::{HashMap, HashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
#[cfg(debug_assertions)]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use summaries::Summaries;
use table::{SegSet, SegTable, Segment};

const OP: &str = "allocate blocks";

struct Head {
    seg: SegNo,
    next: u16,
    ssr: bool,
    entries: Vec<Summary>,
}

/// Counts that a checkpoint stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks in use: nodes, data, and what is reserved on disk.
    pub blocks: u64,
    /// Blocks promised in memory.
    pub promised: u64,
    /// Nodes.
    pub nodes: u32,
    /// Inodes.
    pub inodes: u32,
}

/// The segments' state, locked.
pub struct Inner {
    segs: SegTable,
    busy: HashMap<SegNo, ValidMap>,
    logs: Vec<Head>,
    /// Segments whose entry in the table's blocks is out of date.
    dirty: BTreeSet<SegNo>,
    /// Summaries of segments that logs have left since the last checkpoint.
    summaries: BTreeMap<SegNo, Summaries>,
    /// Segments without a block in use that recovery brought into use.
    brought_into_use: usize,
    free: SegSet,
    /// Segments that have something to pack when the next checkpoint is durable.
    changed: BTreeSet<SegNo>,
    /// Segments of which the next checkpoint will call nothing valid, logs' own among them.
    empty: u32,
    /// Sections of free segments only, by number.
    free_sections: SegSet,
    /// The others, by number.
    used_sections: SegSet,
    /// Segments of each section that are not free.
    used_in: Vec<u16>,
    /// Blocks of each section that the next checkpoint calls valid.
    valid_in: Vec<u32>,
    /// All of them together.
    valid: u64,
    garbage: garbage::Garbage,
    cleaning: Option<u32>,
    /// Sections that cannot be cleaned, for damage or a failing device.
    unmovable: HashSet<u32>,
    /// Counts for the next checkpoint.
    pub counts: Counts,
    /// Blocks in use at the last checkpoint.
    blocks_then: u64,
    /// Blocks that came into use since, whether others went or not.
    charged: u64,
    /// Blocks that went since. The next checkpoint makes them usable.
    freed: u64,
    sit_valid: VersionBitmap,
    /// While checkpoints are disabled: what stays as it is.
    pinned: Option<pinned::Pinned>,
}

/// See the module's head.
pub struct Segments {
    device: SharedDevice,
    geo: Arc<Geometry>,
    inner: Mutex<Inner>,
    leases: lease::Leases,
    /// Changed with `inner` locked only; looked at without, before every operation.
    held: AtomicU64,
    is_pinned: AtomicBool,
    spill_need: AtomicU64,
    user_blocks: u64,
    mode: Mode,
    /// Free sections that users' data leaves alone.
    reserve: usize,
    /// How many sections are free: a look without the lock.
    free_hint: AtomicUsize,
    /// How many blocks are neither in use nor promised: likewise.
    spare_hint: AtomicU64,
    commits: AtomicU64,
    refilled: AtomicU64,
    /// See [`Segments::withhold`].
    #[cfg(debug_assertions)]
    withheld: AtomicU32,
}

/// The purpose of a block: it decides which of the last free sections the block may come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// A user's data or node.
    User,
    /// Data whose write was accepted: nothing can refuse it any more.
    Accepted,
    /// Data that cleaning moves, to free a section.
    Cleaning,
    /// A checkpoint, which frees what was given up.
    Checkpoint,
}

fn index(log: Log) -> usize {
    usize::from(log.code())
}

fn or(a: &ValidMap, b: &ValidMap) -> ValidMap {
    let mut out = *a;
    for (x, y) in out.0.iter_mut().zip(&b.0) {
        *x |= y;
    }
    out
}

impl Inner {
    fn used(&self, seg: SegNo) -> ValidMap {
        let s = self.segs.get(seg);
        let both = or(&s.now, &s.then);
        match self.busy.get(&seg) {
            Some(busy) => or(&both, busy),
            None => both,
        }
    }

    fn is_log(&self, seg: SegNo) -> bool {
        self.logs.iter().any(|l| l.seg == seg)
    }

    fn refresh_free(&mut self, seg: SegNo, per: u32) {
        let empty = self.used(seg).count() == 0 && !self.is_log(seg);
        self.set_free(seg, empty, per);
    }

    /// Notes whether a segment is free; `per` are the segments of a section.
    fn set_free(&mut self, seg: SegNo, free: bool, per: u32) {
        if self.free.contains(seg) == free {
            return;
        }
        self.garbage.note(seg.0 / per);
        self.set_free_at_mount(seg, free, per);
    }

    /// As [`Inner::set_free`], before sections are in order.
    fn set_free_at_mount(&mut self, seg: SegNo, free: bool, per: u32) {
        if self.free.contains(seg) == free {
            return;
        }
        let section = seg.0 / per;
        let used = &mut self.used_in[section as usize];
        if free {
            self.free.insert(seg);
            *used -= 1;
            if *used == 0 {
                self.used_sections.remove(SegNo(section));
                self.free_sections.insert(SegNo(section));
            }
        } else {
            self.free.remove(seg);
            *used += 1;
            self.free_sections.remove(SegNo(section));
            self.used_sections.insert(SegNo(section));
        }
    }
}

impl Segments {
    /// Reads the table: the blocks that the checkpoint calls valid, and the journal on top.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn load(
        device: SharedDevice,
        geo: Arc<Geometry>,
        cp: &Checkpoint,
        journal: &SitJournal,
        data: [Vec<Summary>; 3],
        node: [Vec<Summary>; 3],
        mode: Mode,
    ) -> Result<Self> {
        let segs = SegTable::read(&device, &geo, &cp.sit_bitmap, journal)?;
        let dirty = journal.0.iter().map(|(seg, _)| *seg).collect();
        let mut entries = data.into_iter().chain(node);
        let logs: Vec<Head> = Log::ALL
            .into_iter()
            .map(|log| {
                let head = cp.raw.log(log);
                Head {
                    seg: head.segment,
                    next: head.offset,
                    ssr: head.alloc == ALLOC_SSR,
                    entries: entries.next().unwrap_or_default(),
                }
            })
            .collect();
        let raw = &cp.raw;
        let per = geo.segs_per_sec;
        // A last one that is short of segments is never used.
        let sections = geo.sections();
        let mut inner = Inner {
            free_sections: SegSet::full(sections),
            used_sections: SegSet::empty(sections),
            used_in: vec![0; sections as usize + 1],
            valid_in: vec![0; sections as usize + 1],
            valid: 0,
            garbage: garbage::Garbage::default(),
            cleaning: None,
            unmovable: HashSet::new(),
            empty: geo.main_segments,
            changed: BTreeSet::new(),
            free: SegSet::full(geo.main_segments),
            segs,
            busy: HashMap::new(),
            logs,
            dirty,
            summaries: BTreeMap::new(),
            brought_into_use: 0,
            counts: Counts {
                blocks: raw.valid_block_count.get(),
                promised: 0,
                nodes: raw.valid_node_count.get(),
                inodes: raw.valid_inode_count.get(),
            },
            blocks_then: raw.valid_block_count.get(),
            charged: 0,
            freed: 0,
            sit_valid: cp.sit_bitmap.clone(),
            pinned: None,
        };
        let used: Vec<(SegNo, u16)> = inner
            .segs
            .stored()
            .map(|(seg, s)| (seg, s.now.count()))
            .filter(|(_, valid)| *valid > 0)
            .collect();
        let mut held = 0;
        for (seg, valid) in used {
            held += u64::from(valid);
            inner.empty -= 1;
            inner.valid_in[(seg.0 / per) as usize] += u32::from(valid);
            inner.valid += u64::from(valid);
            inner.set_free_at_mount(seg, false, per);
        }
        let heads: Vec<SegNo> = inner.logs.iter().map(|l| l.seg).collect();
        for seg in heads {
            inner.set_free_at_mount(seg, false, per);
        }
        for seg in sections * per..geo.main_segments {
            inner.set_free_at_mount(SegNo(seg), false, per);
        }
        inner.sort_all_garbage(per);
        for log in Log::ALL {
            let head = &inner.logs[index(log)];
            // The segment that a log appends to must be free behind the log's head.
            let used = inner.used(head.seg);
            if !head.ssr && (head.next..512).any(|at| used.get(at)) {
                let detail = format!("the {log} log's segment is in use behind its head");
                return Err(Error::corrupt(OP, detail));
            }
            if mode == Mode::Lfs && head.ssr {
                // Nothing more is put into a segment in use.
                inner.logs[index(log)].next = BLOCKS_PER_SEG as u16;
            }
        }
        let reserve = ((raw.rsvd_segment_count.get() / per) as usize / 2).max(4);
        Ok(Segments {
            user_blocks: raw.user_block_count.get(),
            reserve: reserve.min(sections as usize / 8),
            free_hint: AtomicUsize::new(inner.free_sections.len()),
            spare_hint: AtomicU64::new(geo.main_blocks().saturating_sub(inner.counts.blocks)),
            mode,
            commits: AtomicU64::new(0),
            refilled: AtomicU64::new(0),
            device,
            geo,
            inner: Mutex::new(Rank::Group, inner),
            leases: lease::Leases::new(),
            held: AtomicU64::new(held),
            is_pinned: AtomicBool::new(false),
            spill_need: AtomicU64::new(0),
            #[cfg(debug_assertions)]
            withheld: AtomicU32::new(0),
        })
    }

    /// The state, locked.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Counts as the next checkpoint would have them.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.lock().counts
    }

    /// Blocks that can be handed out before the next checkpoint.
    #[must_use]
    pub fn available(&self) -> u64 {
        match self.mode {
            Mode::Adaptive => (self.geo.main_blocks() + self.leases.unused())
                .saturating_sub(self.held.load(Ordering::Relaxed)),
            Mode::Lfs => self.free_sections() as u64 * self.section_blocks(),
        }
    }

    /// Sections of free segments only.
    #[must_use]
    pub fn free_sections(&self) -> usize {
        self.free_hint.load(Ordering::Relaxed)
    }

    /// Blocks of the main area that are neither in use nor promised, as of the last change: a look without the lock.
    pub(crate) fn spare_blocks(&self) -> u64 {
        self.spare_hint.load(Ordering::Relaxed)
    }

    /// Free sections that users' data leaves alone.
    #[must_use]
    pub fn reserve(&self) -> usize {
        self.reserve
    }

    /// Blocks of a section.
    #[must_use]
    pub fn section_blocks(&self) -> u64 {
        u64::from(self.geo.segs_per_sec) * u64::from(BLOCKS_PER_SEG)
    }

    /// Where new blocks come from.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    fn refresh_free(&self, inner: &mut Inner, seg: SegNo) {
        inner.refresh_free(seg, self.geo.segs_per_sec);
        self.publish(inner);
    }

    fn publish(&self, inner: &Inner) {
        self.free_hint
            .store(inner.free_sections.len(), Ordering::Relaxed);
        let taken = inner.counts.blocks + inner.counts.promised;
        let spare = self.geo.main_blocks().saturating_sub(taken);
        self.spare_hint.store(spare, Ordering::Relaxed);
    }

    /// Blocks for users, in all.
    #[must_use]
    pub fn user_blocks(&self) -> u64 {
        self.user_blocks
    }

    /// Takes room for blocks that are about to be referred to (`promised`: that may be, later).
    ///
    /// # Errors
    /// `NoSpace`, and nothing taken.
    pub fn charge(&self, blocks: u64, promised: u64) -> Result<()> {
        self.charge_in(&mut self.inner.lock(), blocks, promised)
    }

    /// Takes room for blocks, and has `name` refer to them. Where that fails nothing refers to them, and the room goes back.
    ///
    /// # Errors
    /// `NoSpace`, and `name` is not called; what `name` returns.
    pub(crate) fn charge_for<T>(&self, blocks: u64, name: impl FnOnce() -> Result<T>) -> Result<T> {
        self.charge(blocks, 0)?;
        name().inspect_err(|_| self.discharge(blocks, 0))
    }

    fn charge_in(&self, inner: &mut Inner, blocks: u64, promised: u64) -> Result<()> {
        if self.is_pinned() && !self.has_room_pinned(inner, blocks + promised) {
            return Err(Error::new(ErrorKind::NoSpace, OP)
                .detail("what the disabled checkpoints keep leaves no more room"));
        }
        let counts = &mut inner.counts;
        let total = counts.blocks + counts.promised + blocks + promised;
        if total > self.user_blocks {
            return Err(Error::new(ErrorKind::NoSpace, OP));
        }
        counts.blocks += blocks;
        counts.promised += promised;
        inner.charged += blocks;
        Ok(())
    }

    /// Whether there is room, in user blocks, for what came into use since the last checkpoint beside all that it has: what went since may
    /// be back when a chain is recovered.
    pub(crate) fn has_room_to_recover(&self) -> bool {
        /// Blocks of directories, which may have to grow once more for the names of new files.
        const DIRECTORIES: u64 = 256;
        let inner = self.inner.lock();
        let more = inner.charged + inner.charged.min(DIRECTORIES);
        more == 0 || inner.blocks_then + more <= self.user_blocks
    }

    /// Whether the next checkpoint makes blocks usable. Without that, no operation that found no room for one succeeds because of it.
    pub(crate) fn checkpoint_frees(&self) -> bool {
        // Sections count as free when nothing of them is leased.
        let leased = self.mode == Mode::Lfs && self.leases.unused() > 0;
        leased || self.inner.lock().freed > 0
    }

    /// Gives room back.
    pub fn discharge(&self, blocks: u64, promised: u64) {
        let counts = &mut self.inner.lock().counts;
        counts.blocks = counts.blocks.saturating_sub(blocks);
        counts.promised = counts.promised.saturating_sub(promised);
    }

    /// Takes up to `want` consecutive blocks from a log in one step, and notes their owner. They are busy
    /// until [`Segments::commit`] or [`Segments::give_back`].
    ///
    /// # Errors
    /// `NoSpace` when nothing is left that may be handed out before the next checkpoint; damage; a device
    /// error.
    pub fn take(
        &self,
        log: Log,
        want: u32,
        summary: impl Fn(u32) -> Summary,
    ) -> Result<(BlockAddr, u32)> {
        self.take_for(Need::User, log, want, summary)
    }

    /// As [`Segments::take`], for a stated need.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn take_for(
        &self,
        need: Need,
        log: Log,
        want: u32,
        summary: impl Fn(u32) -> Summary,
    ) -> Result<(BlockAddr, u32)> {
        self.take_in(&mut self.inner.lock(), need, log, want, summary)
    }

    /// Free sections that are left alone.
    fn left_alone(&self, need: Need, log: Log) -> usize {
        match need {
            // Without nodes no checkpoint can be written.
            _ if log.is_node() => 0,
            Need::User => self.reserve,
            // Nodes may have taken what was there when the write was accepted. Cleaning still finds sections below.
            Need::Accepted => (self.reserve / 2 + 1).min(self.reserve),
            Need::Cleaning => self.reserve / 2,
            Need::Checkpoint => 0,
        }
    }

    fn take_in(
        &self,
        inner: &mut Inner,
        need: Need,
        log: Log,
        want: u32,
        summary: impl Fn(u32) -> Summary,
    ) -> Result<(BlockAddr, u32)> {
        let mut used = inner.used(inner.logs[index(log)].seg);
        if self.room(inner, log, &used).is_none() {
            self.move_log(inner, log, need)?;
            used = inner.used(inner.logs[index(log)].seg);
        }
        let Some(at) = self.room(inner, log, &used) else {
            return Err(Error::new(ErrorKind::NoSpace, OP));
        };
        let mut n = 0;
        while n < want.max(1) && at + (n as u16) < BLOCKS_PER_SEG as u16 && !used.get(at + n as u16)
        {
            n += 1;
        }
        let head = &mut inner.logs[index(log)];
        let seg = head.seg;
        for i in 0..n {
            head.entries[usize::from(at) + i as usize] = summary(i);
        }
        head.next = at + n as u16;
        let busy = inner.busy.entry(seg).or_default();
        for i in 0..n {
            busy.set(at + i as u16, true);
        }
        self.held.fetch_add(u64::from(n), Ordering::Relaxed);
        let start = self
            .geo
            .segment_start(seg)
            .ok_or_else(|| Error::corrupt(OP, "a log outside of the main area"))?;
        Ok((BlockAddr(start.0 + u32::from(at)), n))
    }

    /// Where a log would write next.
    #[must_use]
    pub fn next_of(&self, log: Log) -> BlockAddr {
        let inner = self.inner.lock();
        let head = &inner.logs[index(log)];
        let used = inner.used(head.seg);
        let at = self.room(&inner, log, &used).unwrap_or(0);
        self.geo
            .segment_start(head.seg)
            .map_or(BlockAddr(0), |s| BlockAddr(s.0 + u32::from(at)))
    }

    fn room(&self, inner: &Inner, log: Log, used: &ValidMap) -> Option<u16> {
        let head = &inner.logs[index(log)];
        (head.next..BLOCKS_PER_SEG as u16).find(|at| !used.get(*at))
    }

    /// Sees to it that every log's head is at a block it can write: that is what a checkpoint must store.
    ///
    /// # Errors
    /// `NoSpace` when there is none; damage; a device error.
    pub(crate) fn place_heads(&self) -> Result<()> {
        let mut guard = self.inner.lock();
        for log in Log::ALL {
            let used = guard.used(guard.logs[index(log)].seg);
            if self.room(&guard, log, &used).is_none() {
                self.move_log(&mut guard, log, Need::Checkpoint)?;
            }
            let used = guard.used(guard.logs[index(log)].seg);
            if let Some(at) = self.room(&guard, log, &used) {
                guard.logs[index(log)].next = at;
            }
        }
        Ok(())
    }

    /// Blocks that were handed out and written are referred to from now on.
    pub fn commit(&self, block: BlockAddr, count: u32, now: u64) {
        self.commit_in(&mut self.inner.lock(), block, count, now);
    }

    fn commit_in(&self, inner: &mut Inner, block: BlockAddr, count: u32, now: u64) {
        self.commits.fetch_add(1, Ordering::AcqRel);
        self.change(inner, block, count, |seg, busy, at| {
            if let Some(busy) = busy {
                busy.set_range(at.clone(), false);
            }
            seg.now.set_range(at, true);
            seg.mtime = now;
            0
        });
    }

    /// Something was written in place that must be durable before what is committed next.
    pub(crate) fn note_write(&self) {
        self.commits.fetch_add(1, Ordering::AcqRel);
    }

    /// How often blocks were committed, or writes noted.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// How often a log went on in the holes of a segment in use.
    pub(crate) fn refilled(&self) -> u64 {
        self.refilled.load(Ordering::Relaxed)
    }

    /// Blocks that were handed out were not written.
    pub fn give_back(&self, block: BlockAddr, count: u32) {
        self.change(&mut self.inner.lock(), block, count, |seg, busy, at| {
            if let Some(busy) = busy {
                busy.set_range(at.clone(), false);
            }
            let held = |at: &u16| seg.now.get(*at) || seg.then.get(*at);
            at.clone().filter(held).count() as i64 - at.len() as i64
        });
    }

    /// Nothing refers to a block any more. It may be handed out again after the next checkpoint.
    pub fn invalidate(&self, block: BlockAddr) {
        self.invalidate_run(block, 1);
    }

    /// As [`Segments::invalidate`], for consecutive blocks.
    pub fn invalidate_run(&self, block: BlockAddr, count: u32) {
        self.invalidate_in(&mut self.inner.lock(), block, count);
    }

    fn invalidate_in(&self, inner: &mut Inner, block: BlockAddr, count: u32) {
        let mut freed = 0;
        self.change(inner, block, count, |seg, _, range| {
            for at in range.clone().filter(|at| seg.now.get(*at)) {
                // Also what no checkpoint has seen: a reader may be on its way to it.
                seg.then.set(at, true);
                freed += 1;
            }
            seg.now.set_range(range, false);
            0
        });
        inner.freed += freed;
    }

    /// As [`Segments::invalidate`] for each of some blocks, in one step.
    pub(crate) fn invalidate_all(&self, blocks: impl IntoIterator<Item = BlockAddr>) {
        let inner = &mut self.inner.lock();
        for block in blocks {
            self.invalidate_in(inner, block, 1);
        }
    }

    /// Changes the maps of consecutive blocks, those of one segment at a time. `f` gets the segment, what is handed out of it,
    /// and which of its blocks are meant; it returns how many more of them are held than were.
    fn change(
        &self,
        inner: &mut Inner,
        block: BlockAddr,
        count: u32,
        mut f: impl FnMut(&mut Segment, Option<&mut ValidMap>, Range<u16>) -> i64,
    ) {
        let mut done = 0;
        while done < count {
            let Some((seg, first)) = self.geo.segment_of(BlockAddr(block.0 + done)) else {
                done += 1;
                continue;
            };
            let n = (count - done).min(BLOCKS_PER_SEG - u32::from(first));
            done += n;
            let section = seg.0 / self.geo.segs_per_sec;
            let s = inner.segs.get_mut(seg);
            let was = s.now.count();
            let mut busy = inner.busy.get_mut(&seg);
            let held = f(s, busy.as_deref_mut(), first..first + n as u16);
            let is = s.now.count();
            if busy.is_some_and(|b| b.is_empty()) {
                inner.busy.remove(&seg);
            }
            match (was, is) {
                (0, 1..) => inner.empty -= 1,
                (1.., 0) => inner.empty += 1,
                _ => {}
            }
            let valid = &mut inner.valid_in[section as usize];
            *valid = *valid + u32::from(is) - u32::from(was);
            inner.valid = inner.valid + u64::from(is) - u64::from(was);
            if inner.garbage.note(section) {
                inner.sort_garbage(self.geo.segs_per_sec);
            }
            inner.changed.insert(seg);
            // Two's complement: also what is less.
            self.held.fetch_add(held as u64, Ordering::Relaxed);
            inner.dirty.insert(seg);
            // A segment with valid blocks that was not free is not free now.
            if is == 0 || inner.free.contains(seg) {
                self.refresh_free(inner, seg);
            }
        }
        self.publish(inner);
    }

    /// Segments that the next checkpoint will call free.
    #[must_use]
    pub fn free_segments(&self) -> u32 {
        let inner = self.inner.lock();
        let logs = inner.logs.iter();
        let own = logs
            .filter(|l| inner.segs.get(l.seg).now.count() == 0)
            .count();
        inner.empty - own as u32
    }
}
