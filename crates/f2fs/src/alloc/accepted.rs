//! Room for writes that were accepted: what the engine reserved, writeback places.
//!
//! A count of blocks is not enough. In `lfs` mode a log goes on in free sections only, and holes of sections in use are no room until
//! cleaning has moved what lies between them. So:
//! * A write is accepted if sections are free for it beside all that is promised or dirty ([`Segments::room_for_data`]). Cleaning has run
//!   before, and gains nothing more if they are not.
//! * What can be refused leaves that room alone: direct writes, and overwrites that may go where the data is.
//! * Accepted data may take sections that users' data leaves alone ([`Need::Accepted`]), because nodes may have taken some meanwhile, and it
//!   fills single holes (`adaptive`).
//! * If writeback finds no room all the same, it keeps the pages dirty, lets go of its locks, has cleaning run, and tries again
//!   ([`blockwright_vfs::engine::Space::make_room`]). Cleaning always gains room then: over-provisioned segments are never promised to users, so
//!   there are sections with garbage. Debug builds assert it ([`Segments::assert_cleaning_gains`]), and can withhold room from tests.

use super::{BLOCKS_PER_SEG, Inner, Need, Segments, index};
use crate::options::Mode;
use blockwright_ondisk::f2fs::{Log, SegNo};
#[cfg(debug_assertions)]
use std::sync::atomic::Ordering;

impl Segments {
    /// Blocks that accepted data finds in a log without cleaning, beside what is promised. All of the volume in `adaptive` mode, where logs fill
    /// holes.
    pub(crate) fn room_for_data(&self, log: Log) -> u64 {
        if self.mode == Mode::Adaptive {
            return u64::MAX;
        }
        let inner = self.inner.lock();
        self.room_in_sections(&inner, log)
            .saturating_sub(inner.counts.promised)
    }

    /// Free sections that accepted data leaves alone.
    pub(crate) fn left_to_cleaning(&self) -> usize {
        self.left_alone(Need::Accepted, Log::WarmData)
    }

    fn room_in_sections(&self, inner: &Inner, log: Log) -> u64 {
        let keep = self.left_to_cleaning();
        let sections = inner.free_sections.len().saturating_sub(keep) as u64;
        sections * self.section_blocks() + self.rest_of_section(inner, log)
    }

    /// Blocks that a log can append before it needs another section.
    fn rest_of_section(&self, inner: &Inner, log: Log) -> u64 {
        let head = &inner.logs[index(log)];
        let used = inner.used(head.seg);
        let here = (head.next..BLOCKS_PER_SEG as u16).filter(|at| !used.get(*at));
        let per = self.geo.segs_per_sec;
        let end = (head.seg.0 / per + 1) * per;
        let behind = (head.seg.0 + 1..end).filter(|seg| inner.free.contains(SegNo(*seg)));
        here.count() as u64
            + behind.count() as u64 * u64::from(BLOCKS_PER_SEG)
            + self.leases.unused_of(log)
    }

    /// Asserts, where accepted data found no room, that cleaning gains some: all that is promised is charged to users' blocks, and free
    /// sections and the rest of logs are not all that is free, so there are sections with garbage.
    pub(crate) fn assert_cleaning_gains(&self) {
        if !cfg!(debug_assertions) || self.is_pinned() {
            return;
        }
        let inner = self.inner.lock();
        let counts = inner.counts;
        let taken = counts.blocks + counts.promised;
        debug_assert!(
            taken <= self.user_blocks,
            "{counts:?}, {} blocks for users",
            self.user_blocks
        );
        let whole = inner.free_sections.len() as u64 * self.section_blocks();
        let logs: u64 = Log::ALL
            .into_iter()
            .map(|log| self.rest_of_section(&inner, log))
            .sum();
        let free = self.geo.main_blocks().saturating_sub(counts.blocks);
        debug_assert!(
            counts.promised == 0 || free > whole + logs || self.is_withholding(),
            "{counts:?}: {free} blocks free, {whole} of them in free sections, {logs} in logs"
        );
    }
}

/// For tests: room that is not at hand, without a volume that is full in just the right way.
#[cfg(debug_assertions)]
impl Segments {
    /// Accepted data finds no room until cleaning was asked for so many times.
    pub(crate) fn withhold(&self, passes: u32) {
        self.withheld.store(passes, Ordering::SeqCst);
    }

    pub(crate) fn is_withholding(&self) -> bool {
        self.withheld.load(Ordering::SeqCst) > 0
    }

    /// Cleaning was asked for.
    pub(crate) fn withhold_less(&self) {
        let less = |n: u32| n.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        let _none_left = self.withheld.fetch_update(set, get, less);
    }
}

#[cfg(not(debug_assertions))]
impl Segments {
    pub(crate) fn is_withholding(&self) -> bool {
        false
    }

    pub(crate) fn withhold_less(&self) {}
}
