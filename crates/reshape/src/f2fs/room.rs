//! Blocks that may be written: the committed checkpoint does not use them, and neither does the next one.
//!
//! Each log has a segment of its own here, which is not the log's head. Whole free sections come first; when as few are left as cleaning wants to
//! find, holes in segments of the same kind; then the last sections.
//!
//! Invariant: a section holds data or nodes, never both, and the entry of its first segment says which. Linux cleans a section as a whole, and stops the
//! volume if kinds are mixed.

use std::collections::BTreeSet;
use std::ops::Range;

use blockwright_ondisk::f2fs::sit::ValidMap;
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{BLOCKS_PER_SEG, BlockAddr, Log, SitEntry};

use super::volume::Volume;
use crate::error::Result;

/// A block that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub block: BlockAddr,
    pub seg: u32,
    pub at: u16,
    /// Nothing was in use in the segment: its summaries are leftovers.
    pub first: bool,
}

#[derive(Clone, Copy)]
struct Open {
    seg: u32,
    next: u16,
    taken: ValidMap,
}

/// Where blocks are found. Of one volume, until its next commit.
pub(crate) struct Room {
    /// Segments that may be written.
    allowed: Range<u32>,
    /// Free sections that are left for cleaning as long as there are holes.
    keep: usize,
    open: [Option<Open>; Log::ALL.len()],
    /// Sections without a block in use.
    fresh: BTreeSet<u32>,
    /// Segments with holes: of data, and of nodes.
    holes: [Vec<u32>; 2],
}

impl Room {
    /// Finds the room in a range of segments.
    pub fn new(volume: &Volume, allowed: Range<u32>) -> Self {
        let per_sec = volume.geo.segs_per_sec.max(1);
        let mut room = Self {
            keep: (volume.counts().reserve.reserved / per_sec) as usize,
            open: [None; Log::ALL.len()],
            fresh: BTreeSet::new(),
            holes: [Vec::new(), Vec::new()],
            allowed,
        };
        let busy = volume.busy_segments();
        let sections = room.allowed.start.div_ceil(per_sec)..room.allowed.end / per_sec;
        for section in sections {
            let segments = section * per_sec..(section + 1) * per_sec;
            if busy.range(segments.clone()).next().is_none() {
                room.fresh.insert(section);
                continue;
            }
            let first = volume.sit(segments.start).log.is_node();
            for seg in segments {
                let entry = volume.sit(seg);
                let mixed = first != entry.log.is_node() && !entry.valid.is_empty();
                let full = u32::from(volume.taken(seg).count()) == BLOCKS_PER_SEG;
                if !volume.heads.contains_key(&seg) && !mixed && !full {
                    room.holes[usize::from(first)].push(seg);
                }
            }
        }
        // The frontmost is taken first, from the list's end.
        room.holes.iter_mut().for_each(|list| list.reverse());
        room
    }

    fn in_open(&mut self, volume: &mut Volume, log: Log) -> Option<Taken> {
        let slot = &mut self.open[usize::from(log.code())];
        let open = slot.as_mut()?;
        let at = (open.next..BLOCKS_PER_SEG as u16).find(|at| !open.taken.get(*at));
        let Some(at) = at else {
            *slot = None;
            return None;
        };
        open.next = at + 1;
        let seg = open.seg;
        let start = volume.geo.main.0 + seg * BLOCKS_PER_SEG;
        let first = volume.taken(seg).is_empty();
        let mut entry = volume.sit(seg);
        if entry.valid.is_empty() {
            entry = SitEntry {
                log,
                mtime: volume.newest(),
                ..entry
            };
        }
        entry.valid.set(at, true);
        volume.set_sit(seg, entry);
        Some(Taken {
            block: BlockAddr(start + u32::from(at)),
            seg,
            at,
            first,
        })
    }

    /// The first segment of a section that nothing uses. The others of it are for the same kind.
    fn open_section(&mut self, volume: &mut Volume, log: Log) -> Option<u32> {
        let per_sec = volume.geo.segs_per_sec.max(1);
        let section = self.fresh.pop_first()?;
        let first = section * per_sec;
        for seg in first..first + per_sec {
            let entry = SitEntry {
                log,
                mtime: volume.newest(),
                ..SitEntry::free()
            };
            volume.set_sit(seg, entry);
        }
        let list = &mut self.holes[usize::from(log.is_node())];
        list.extend((first + 1..first + per_sec).rev());
        Some(first)
    }

    fn hole(&mut self, log: Log) -> Option<u32> {
        self.holes[usize::from(log.is_node())].pop()
    }

    /// Takes a block for a log's kind of contents. `None` when there is none before the next commit.
    pub fn take(&mut self, volume: &mut Volume, log: Log) -> Option<Taken> {
        loop {
            if let Some(taken) = self.in_open(volume, log) {
                return Some(taken);
            }
            let seg = if self.fresh.len() > self.keep {
                // The rest of a section in use comes before the next section.
                let rest = self.rest_of_section(volume, log);
                rest.or_else(|| self.open_section(volume, log))
            } else {
                self.hole(log).or_else(|| self.open_section(volume, log))
            }?;
            self.open[usize::from(log.code())] = Some(Open {
                seg,
                next: 0,
                taken: volume.taken(seg),
            });
        }
    }

    /// Takes a block, whose summary names its owner.
    pub fn take_for(
        &mut self,
        volume: &mut Volume,
        log: Log,
        owner: Summary,
    ) -> Result<Option<Taken>> {
        let Some(to) = self.take(volume, log) else {
            return Ok(None);
        };
        if to.first {
            volume.new_summary(to.seg, SummaryKind::of(log));
        }
        let block = volume.summary_mut(to.seg)?;
        if let Some(entry) = block.entries.get_mut(usize::from(to.at)) {
            *entry = owner;
        }
        Ok(Some(to))
    }

    /// A segment behind the last one that was opened, in the same section.
    fn rest_of_section(&mut self, volume: &Volume, log: Log) -> Option<u32> {
        if volume.geo.segs_per_sec <= 1 {
            return None;
        }
        let list = &mut self.holes[usize::from(log.is_node())];
        let last = *list.last()?;
        if volume.taken(last).is_empty() {
            return list.pop();
        }
        None
    }

    /// A free segment that becomes a log's head.
    pub fn take_segment(&mut self, volume: &mut Volume, log: Log) -> Option<u32> {
        if let Some(seg) = self.open_section(volume, log) {
            return Some(seg);
        }
        let list = &mut self.holes[usize::from(log.is_node())];
        let at = list.iter().rposition(|seg| volume.taken(*seg).is_empty())?;
        Some(list.remove(at))
    }
}
