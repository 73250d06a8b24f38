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
//!   there are sections with garbage.

use super::{BLOCKS_PER_SEG, Inner, Need, Segments, index};
use crate::options::Mode;
use blockwright_ondisk::f2fs::{Log, SegNo};

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
}
