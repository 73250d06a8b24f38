//! Room for writes that were accepted: what the engine reserved, writeback places.
//!
//! A count of blocks is not enough. In `lfs` mode a log continues in free sections only, and holes of sections in use are not usable
//! until cleaning has moved the blocks between them. So:
//! * A write is accepted if sections are free for it beside all that is promised or dirty ([`Segments::room_for_data`]). Cleaning has run
//!   before, and gains nothing more if they are not.
//! * What can be refused leaves that room alone: direct writes, and overwrites that may go where the data is.
//! * Accepted data may take sections that users' data leaves alone ([`Need::Accepted`]), because nodes may have taken some meanwhile, and it
//!   fills single holes (`adaptive`).
//! * If writeback still finds no room, it keeps the pages dirty, lets go of its locks, has cleaning run, and tries again
//!   ([`blockwright_vfs::engine::Space::make_room`]). Cleaning always gains room then: what was reserved can be placed, because
//!   over-provisioned segments are never promised to users. Debug builds assert it ([`Segments::assert_reserved_is_placeable`]) whenever
//!   blocks are reserved and wherever they find no room, and can withhold room from tests.

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

    /// Blocks that a log can append before it needs another section, and leased ones that are left.
    fn rest_of_section(&self, inner: &Inner, log: Log) -> u64 {
        self.ahead_of(inner, log) + self.leases.unused_of(log)
    }

    /// Blocks behind a log's head, up to the end of its section.
    fn ahead_of(&self, inner: &Inner, log: Log) -> u64 {
        let head = &inner.logs[index(log)];
        let used = inner.used(head.seg);
        let here = (head.next..BLOCKS_PER_SEG as u16).filter(|at| !used.get(*at));
        let per = self.geo.segs_per_sec;
        let end = (head.seg.0 / per + 1) * per;
        let behind = (head.seg.0 + 1..end).filter(|seg| inner.free.contains(SegNo(*seg)));
        here.count() as u64 + behind.count() as u64 * u64::from(BLOCKS_PER_SEG)
    }

    /// Asserts that what was reserved can be placed. Both sides call it: a reservation after it was taken, and a writer of accepted data
    /// that found no room.
    ///
    /// # Invariant
    /// *Reserved* is each block that was charged and is not valid anywhere: promised data, data reserved on disk, and nodes that were not
    /// written. *Placeable* is each block that a log can take as it is, or after cleaning has moved what is valid in closed sections together.
    /// Reserved blocks are placeable: `blocks + promised - valid <= placeable`.
    ///
    /// It follows from two facts. Blocks that are charged are at most the users' ([`Segments::charge`]); and the format leaves more sections
    /// over than logs, cleaning and checkpoints take ([`Segments::is_provided_for`]). With `N` sections, of which `F` are free, `C` closed
    /// and at most six open, closed sections hold `C * S - valid` blocks of garbage, and accepted data may take `(F - keep) * S`
    /// of free ones. Their sum is at least `(N - 6 - keep) * S - valid`: what users can charge, less what has its place.
    ///
    /// Nothing is asserted where sections are out of reach: those that cannot be cleaned, for damage, and what disabled checkpoints keep.
    pub(crate) fn assert_reserved_is_placeable(&self) {
        if !cfg!(debug_assertions) || self.is_pinned() || !self.is_provided_for() {
            return;
        }
        let inner = self.inner.lock();
        let counts = inner.counts;
        debug_assert!(
            counts.blocks + counts.promised <= self.user_blocks,
            "{counts:?}, {} blocks for users",
            self.user_blocks
        );
        if !inner.unmovable.is_empty() {
            return;
        }
        let reserved = (counts.blocks + counts.promised).saturating_sub(inner.valid);
        let Some(placeable) = self.placeable(&inner) else {
            return;
        };
        debug_assert!(
            reserved <= placeable,
            "{counts:?}: {reserved} blocks have no place, {placeable} can be had: {} of {} sections free, {} blocks valid",
            inner.free_sections.len(),
            self.geo.sections(),
            inner.valid,
        );
    }

    /// Blocks that accepted data and nodes can be put into: of free sections, behind the logs' heads, and garbage of closed sections. `None` for
    /// volumes of which it would take long to say.
    fn placeable(&self, inner: &Inner) -> Option<u64> {
        const SECTIONS_MAX: usize = 4096;
        if inner.used_sections.len() > SECTIONS_MAX {
            return None;
        }
        let size = self.section_blocks();
        let per = self.geo.segs_per_sec;
        let is_closed = |section: &u32| {
            *section < self.geo.sections() && inner.logs.iter().all(|l| l.seg.0 / per != *section)
        };
        let garbage: u64 = (inner.used_sections.iter_from(SegNo(0)))
            .map(|section| section.0)
            .filter(is_closed)
            .map(|section| size.saturating_sub(inner.valid_in[section as usize].into()))
            .sum();
        let ahead: u64 = Log::ALL
            .into_iter()
            .map(|log| self.ahead_of(inner, log))
            .sum();
        let free = inner
            .free_sections
            .len()
            .saturating_sub(self.left_to_cleaning()) as u64;
        Some(free * size + garbage + ahead)
    }

    /// Whether the volume was made with enough sections that users do not have: one for each log, and those that accepted data leaves to
    /// cleaning. mkfs.f2fs and ours make no other.
    fn is_provided_for(&self) -> bool {
        let beside = Log::ALL.len() + self.left_to_cleaning();
        let sections = u64::from(self.geo.sections()).saturating_sub(beside as u64);
        self.user_blocks <= sections * self.section_blocks()
    }
}

/// For tests: room that is not available, without a volume that is full in just the right way.
#[cfg(debug_assertions)]
impl Segments {
    /// Accepted data finds no room until cleaning was asked for this many times.
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

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::{F2fs, Options};
    use blockwright_device::{MemoryDevice, SharedDevice};
    use blockwright_mkfs::f2fs::FormatOptions;
    use std::sync::Arc;

    /// Mounts a volume of this many MiB, and reserves all that users have.
    fn with_all_reserved(mib: u32, segments: u32, look: impl FnOnce(&Segments)) {
        let device: SharedDevice = Arc::new(MemoryDevice::new(u64::from(mib) << 20));
        let options = FormatOptions {
            segs_per_sec: segments,
            ..FormatOptions::default()
        };
        blockwright_mkfs::f2fs::format(&device, &options).expect("formatted");
        let f2fs = F2fs::mount(device, Options::default()).expect("mounted");
        let segments = &f2fs.fs().access.writer.as_ref().expect("written").segments;
        let rest = segments.user_blocks() - segments.counts().blocks;
        segments.charge(0, rest).expect("room");
        look(segments);
        segments.discharge(0, rest);
    }

    #[test]
    fn all_that_users_have_can_be_placed() {
        for segments in [1, 2, 4] {
            with_all_reserved(12 + 40 * segments, segments, |s| {
                assert!(s.is_provided_for(), "{segments}");
                s.assert_reserved_is_placeable();
            });
        }
    }

    #[test]
    #[should_panic(expected = "have no place")]
    fn sections_that_are_neither_free_nor_in_use_are_noticed() {
        // More than the logs have before them.
        with_all_reserved(400, 1, |s| {
            let lost: Vec<SegNo> = s.lock().free_sections.iter_from(SegNo(0)).collect();
            for section in lost {
                s.lock().free_sections.remove(section);
            }
            s.assert_reserved_is_placeable();
        });
    }
}
