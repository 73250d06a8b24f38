//! Where a log continues when its segment is full: a free segment, or the holes of one in use.
//!
//! In the order of preference: the next free segment of the section, a free section in a zone of its own, holes of the segment that has most
//! of them, the last free segment. Single holes come last, and serve only what must not be refused. `lfs` mode never fills holes.
//!
//! # Locks
//! The caller holds that of the segments (`Inner`). The summaries of a segment with holes are read with it held.

use super::{Head, Inner, Need, OP, Segments, Summaries, index};
use crate::options::Mode;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, DeviceExt};
use blockwright_ondisk::f2fs::summary::{Summary, SummaryBlock, SummaryKind};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BLOCKS_PER_SEG, Log, SegNo};
use std::sync::atomic::Ordering;

impl Segments {
    /// Moves a log whose segment is full, leaving free sections alone as the need says.
    pub(super) fn move_log(&self, inner: &mut Inner, log: Log, need: Need) -> Result<()> {
        /// Holes that are worth a move.
        const HOLES_MIN: u16 = 9;
        let full = BLOCKS_PER_SEG as u16;
        let kind = SummaryKind::of(log);
        let keep = self.left_alone(need, log);
        let last = || inner.free.first().filter(|_| keep == 0);
        // What cannot be refused takes single holes.
        let any_hole = || {
            let urgent = need != Need::User || log.is_node();
            urgent.then(|| self.find_holes(inner, kind, full)).flatten()
        };
        let filled = |seg| (seg, true);
        let (seg, ssr) = self
            .find_fresh(inner, log, keep)
            .map(|seg| (seg, false))
            .or_else(|| {
                self.find_holes(inner, kind, full + 1 - HOLES_MIN)
                    .map(filled)
            })
            .or_else(|| last().map(|seg| (seg, false)))
            .or_else(|| any_hole().map(filled))
            .ok_or_else(|| Error::new(ErrorKind::NoSpace, OP))?;
        self.refilled.fetch_add(u64::from(ssr), Ordering::Relaxed);
        let entries = if !ssr {
            vec![Summary::default(); BLOCKS_PER_SEG as usize]
        } else if let Some(entries) = inner.summaries.remove(&seg) {
            entries.into_all()
        } else {
            self.read_summaries(seg, kind)?
        };
        let head = &mut inner.logs[index(log)];
        let old = std::mem::replace(
            head,
            Head {
                seg,
                next: 0,
                ssr,
                entries,
            },
        );
        inner.summaries.insert(old.seg, Summaries::All(old.entries));
        inner.segs.get_mut(seg).log = log;
        inner.dirty.insert(seg);
        self.refresh_free(inner, seg);
        self.refresh_free(inner, old.seg);
        Ok(())
    }

    /// A free segment for a log: behind its last one in the same section, else the first of a free section, else
    /// (adaptive mode) any.
    pub(super) fn find_fresh(&self, inner: &Inner, log: Log, keep: usize) -> Option<SegNo> {
        let per = self.geo.segs_per_sec;
        let left = inner.logs[index(log)].seg;
        let section = left.0 / per;
        if per > 1 && inner.cleaning != Some(section) {
            let next = inner.free.next_from(SegNo(left.0 + 1));
            if let Some(seg) = next.filter(|seg| seg.0 / per == section) {
                return Some(seg);
            }
        }
        let kind = SummaryKind::of(log);
        // Nodes may take the last sections, but first fill segments with enough holes.
        let spare = inner.free_sections.len() > self.reserve;
        if self.mode == Mode::Adaptive && !spare && inner.free_sections.len() > keep {
            let worth = BLOCKS_PER_SEG as u16 / 4 * 3;
            if self.find_holes(inner, kind, worth).is_some() {
                return None;
            }
        }
        if inner.free_sections.len() > keep {
            return self
                .find_section(inner, log, section)
                .map(|s| SegNo(s * per));
        }
        if self.mode == Mode::Adaptive && per > 1 {
            let loose = |seg: &SegNo| {
                let section = SegNo(seg.0 / per);
                !inner.free_sections.contains(section) && inner.cleaning != Some(section.0)
            };
            return inner.free.iter_from(SegNo(0)).find(loose);
        }
        None
    }

    /// The next free section behind `after`, in a zone without another log when there is one near.
    pub(super) fn find_section(&self, inner: &Inner, log: Log, after: u32) -> Option<u32> {
        /// Sections looked at for the sake of zones.
        const NEAR: usize = 256;
        let zone_of = |section: u32| section / self.geo.secs_per_zone.max(1);
        let all = &inner.free_sections;
        let behind = all.iter_from(SegNo(after + 1));
        let before = all.iter_from(SegNo(0)).take_while(|s| s.0 <= after);
        let mut around = behind.chain(before).map(|s| s.0);
        let first = around.next()?;
        if self.geo.secs_per_zone <= 1 {
            return Some(first);
        }
        let taken: Vec<u32> = Log::ALL
            .into_iter()
            .filter(|other| *other != log)
            .map(|other| zone_of(inner.logs[index(other)].seg.0 / self.geo.segs_per_sec))
            .collect();
        let apart = std::iter::once(first)
            .chain(around)
            .take(NEAR)
            .find(|section| !taken.contains(&zone_of(*section)));
        Some(apart.unwrap_or(first))
    }

    /// The segment of a kind with the fewest blocks in use, of those with fewer than `max`. None in `lfs` mode.
    pub(super) fn find_holes(&self, inner: &Inner, kind: SummaryKind, max: u16) -> Option<SegNo> {
        if self.mode == Mode::Lfs {
            return None;
        }
        let per = self.geo.segs_per_sec;
        let stored = inner.segs.stored().filter(|(seg, s)| {
            SummaryKind::of(s.log) == kind
                && !inner.is_log(*seg)
                && !inner.free.contains(*seg)
                && inner.cleaning != Some(seg.0 / per)
        });
        stored
            .map(|(seg, _)| (inner.used(seg).count(), seg))
            // One that holds nothing and is not free is being discarded.
            .filter(|(count, _)| *count > 0 && *count < max)
            .min()
            .map(|(_, seg)| seg)
    }

    pub(super) fn read_summaries(&self, seg: SegNo, kind: SummaryKind) -> Result<Vec<Summary>> {
        let at = self
            .geo
            .ssa_block(seg)
            .ok_or_else(|| Error::corrupt(OP, "a segment without summary"))?;
        let bytes = self
            .device
            .read_buf(DevOffset(u64::from(at.0) << 12), BLOCK_SIZE)
            .map_err(|e| Error::io(OP, e))?;
        let block = SummaryBlock::parse(&bytes).map_err(|e| Error::corrupt(OP, e.to_string()))?;
        if block.kind != kind {
            let detail = format!("the summary of segment {seg} is of the wrong kind");
            return Err(Error::corrupt(OP, detail).block(u64::from(at.0)));
        }
        Ok(block.entries)
    }
}
