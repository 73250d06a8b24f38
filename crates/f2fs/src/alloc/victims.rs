//! Which section to clean, and what is in it.
//!
//! - *Greedy*: the section with the fewest valid blocks. It frees most for the least work now.
//! - *Cost-benefit*: the free space gained, times the age of the section's data, over the cost of reading the section and writing its valid
//!   part. Cold sections are cleaned at a higher use than hot ones, whose blocks become invalid by themselves. Of equally used
//!   sections the oldest is best, so one section of each level of use is considered.
//!
//! # References
//! Rosenblum and Ousterhout, "The Design and Implementation of a Log-Structured File System", section 3.5.

use super::garbage::is_worth_it;
use super::{Inner, Segments, Summaries};
use crate::{Error, Result};
use blockwright_ondisk::f2fs::sit::ValidMap;
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{BLOCKS_PER_SEG, BlockAddr, SegNo};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// How a victim is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// The fewest valid blocks.
    Greedy,
    /// The most space for the least work, old sections first. The volume's age in seconds.
    CostBenefit {
        /// Now, as segments' times are given.
        now: u64,
    },
}

/// A segment of the section that is cleaned.
pub(crate) struct VictimSegment {
    pub(crate) kind: SummaryKind,
    pub(crate) start: BlockAddr,
    /// Blocks that something refers to.
    pub(crate) valid: ValidMap,
    pub(crate) summaries: Vec<Summary>,
}

/// How a section's cleaning ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Done, or given up for now.
    Fine,
    /// It cannot be cleaned: not tried again during this mount.
    Unmovable,
}

impl Segments {
    fn segments_of(&self, section: u32) -> std::ops::Range<u32> {
        let per = self.geo.segs_per_sec;
        section * per..((section + 1) * per).min(self.geo.main_segments)
    }

    /// Whether a section can be cleaned, and something is won by it.
    fn is_candidate(&self, inner: &Inner, section: u32) -> bool {
        let valid = u64::from(inner.valid_in[section as usize]);
        let capacity = self.section_blocks();
        if !is_worth_it(valid, capacity) {
            return false;
        }
        let segments = self.segments_of(section);
        let whole = segments.len() as u32 == self.geo.segs_per_sec;
        let in_use = |seg: u32| inner.is_log(SegNo(seg)) || inner.busy.contains_key(&SegNo(seg));
        whole && !inner.unmovable.contains(&section) && !segments.into_iter().any(in_use)
    }

    /// The section to clean, if any is worth it; none of those `tried`.
    pub(crate) fn choose_victim(&self, policy: Policy, tried: &HashSet<u32>) -> Option<u32> {
        let mut inner = self.inner.lock();
        inner.sort_garbage(self.geo.segs_per_sec);
        let inner = &*inner;
        let fit = |s: u32| !tried.contains(&s) && self.is_candidate(inner, s);
        let capacity = self.section_blocks();
        match policy {
            Policy::Greedy => inner.garbage.most_first().find(|s| fit(*s)),
            Policy::CostBenefit { now } => inner.garbage.oldest_of_each(fit).max_by_key(|s| {
                let valid = u64::from(inner.valid_in[*s as usize]);
                let written = self
                    .segments_of(*s)
                    .map(|seg| inner.segs.get(SegNo(seg)).mtime);
                let age = now.saturating_sub(written.max().unwrap_or(0)) + 1;
                u128::from(capacity - valid) * u128::from(age) * 1024 / u128::from(capacity + valid)
            }),
        }
    }

    /// Blocks of a section in use that nothing refers to.
    pub(crate) fn garbage_in(&self, section: u32) -> u64 {
        let inner = self.inner.lock();
        let valid = inner.valid_in.get(section as usize).copied().unwrap_or(0);
        self.section_blocks().saturating_sub(u64::from(valid))
    }

    /// Takes a section out of use for cleaning, and returns its segments. An operation is under way, so that no
    /// checkpoint writes summaries meanwhile. `None` when it came into use since it was chosen, or when another is
    /// being cleaned.
    ///
    /// # Errors
    /// Damage of the summaries; a device error. The section is not taken then.
    pub(crate) fn begin_cleaning(&self, section: u32) -> Result<Option<Vec<VictimSegment>>> {
        let mut found = Vec::new();
        {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            if inner.cleaning.is_some() || !self.is_candidate(inner, section) {
                return Ok(None);
            }
            inner.cleaning = Some(section);
            for seg in self.segments_of(section).map(SegNo) {
                let s = inner.segs.get(seg);
                if s.now.count() > 0 {
                    let summaries = inner.summaries.get(&seg).cloned().map(Summaries::into_all);
                    found.push((seg, SummaryKind::of(s.log), s.now, summaries));
                }
            }
        }
        let mut out = Vec::new();
        for (seg, kind, valid, summaries) in found {
            let summaries = match summaries {
                Some(summaries) => Ok(summaries),
                None => self.read_summaries(seg, kind),
            };
            let start = self.geo.segment_start(seg);
            match (summaries, start) {
                (Ok(summaries), Some(start)) => out.push(VictimSegment {
                    kind,
                    start,
                    valid,
                    summaries,
                }),
                (Err(e), _) => {
                    self.end_cleaning(section, Ended::Unmovable);
                    return Err(e);
                }
                (_, None) => {
                    self.end_cleaning(section, Ended::Unmovable);
                    return Err(Error::corrupt(
                        super::OP,
                        "a segment outside of the main area",
                    ));
                }
            }
        }
        Ok(Some(out))
    }

    /// Puts a section back into use. How many valid blocks are left in it.
    pub(crate) fn end_cleaning(&self, section: u32, ended: Ended) -> u32 {
        let mut inner = self.inner.lock();
        if inner.cleaning == Some(section) {
            inner.cleaning = None;
        }
        if ended == Ended::Unmovable {
            inner.unmovable.insert(section);
            inner.garbage.note(section);
        }
        inner.valid_in.get(section as usize).copied().unwrap_or(0)
    }

    /// Keeps those of some that something refers to, in one step; `block_of` says which block is meant.
    pub(crate) fn retain_valid<T>(&self, some: &mut Vec<T>, block_of: impl Fn(&T) -> BlockAddr) {
        let inner = self.inner.lock();
        some.retain(|one| {
            let place = self.geo.segment_of(block_of(one));
            place.is_some_and(|(seg, at)| inner.segs.get(seg).now.get(at))
        });
    }

    /// Whether a block is one that something refers to.
    pub(crate) fn is_valid(&self, block: BlockAddr) -> bool {
        let inner = self.inner.lock();
        self.geo
            .segment_of(block)
            .is_some_and(|(seg, at)| inner.segs.get(seg).now.get(at))
    }

    /// Sections that hold nothing valid and are free with the next checkpoint.
    pub(crate) fn prefree_sections(&self) -> usize {
        let mut inner = self.inner.lock();
        inner.sort_garbage(self.geo.segs_per_sec);
        let idle = |section: &u32| {
            let in_use =
                |seg: u32| inner.is_log(SegNo(seg)) || inner.busy.contains_key(&SegNo(seg));
            !self.segments_of(*section).any(in_use)
        };
        inner.garbage.emptied().filter(idle).count()
    }

    /// Blocks that are not valid, in sections with others that are: what cleaning could free.
    pub(crate) fn invalid_blocks(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.sort_garbage(self.geo.segs_per_sec);
        let sections = inner.used_sections.len() - inner.garbage.emptied().count();
        (sections as u64 * self.section_blocks()).saturating_sub(inner.valid)
    }

    /// The segments that have blocks in a range.
    fn segments_in(&self, range: &std::ops::Range<u64>) -> std::ops::Range<u32> {
        let per = u64::from(BLOCKS_PER_SEG);
        let main = self
            .geo
            .segment_start(SegNo(0))
            .map_or(0, |s| u64::from(s.0));
        let all = u64::from(self.geo.main_segments);
        let first = (range.start.saturating_sub(main) / per).min(all);
        let end = range.end.saturating_sub(main).div_ceil(per).min(all);
        first as u32..end as u32
    }

    /// Takes runs of free segments for discarding, one call of `discard` each, while no blocks of them are handed out. Blocks
    /// of `range` only (first and behind last), runs of at least `min` blocks. How many blocks were discarded.
    ///
    /// # Errors
    /// The first of `discard`.
    pub(crate) fn discard_free(
        &self,
        range: std::ops::Range<u64>,
        min: u64,
        mut discard: impl FnMut(BlockAddr, u64) -> Result<()>,
    ) -> Result<u64> {
        let per = self.geo.segs_per_sec;
        let segments = self.segments_in(&range);
        let all: Vec<SegNo> = {
            let inner = self.inner.lock();
            let free = inner.free.iter_from(SegNo(segments.start));
            free.take_while(|seg| seg.0 < segments.end).collect()
        };
        let mut done = 0;
        let mut at = 0;
        while at < all.len() {
            // A run of neighbours, taken out of the free ones until it is discarded.
            let mut run: Vec<SegNo> = Vec::new();
            {
                let mut inner = self.inner.lock();
                while let Some(seg) = all.get(at) {
                    let follows = run.last().is_none_or(|last| last.0 + 1 == seg.0);
                    if !follows || run.len() >= 64 {
                        break;
                    }
                    at += 1;
                    // Two sections are always left to concurrent writers.
                    let spare = inner.free_sections.len() > 2;
                    if !inner.free.contains(*seg) || !spare {
                        if run.is_empty() {
                            continue;
                        }
                        break;
                    }
                    inner.set_free(*seg, false, per);
                    run.push(*seg);
                }
                self.publish(&inner);
            }
            let Some(start) = run.first().and_then(|s| self.geo.segment_start(*s)) else {
                continue;
            };
            // The range may begin and end within a segment.
            let end = u64::from(start.0) + run.len() as u64 * u64::from(BLOCKS_PER_SEG);
            let start = u64::from(start.0).max(range.start);
            let blocks = end.min(range.end).saturating_sub(start);
            let result = if blocks >= min {
                discard(BlockAddr(start as u32), blocks)
            } else {
                Ok(())
            };
            let mut inner = self.inner.lock();
            for seg in &run {
                self.refresh_free(&mut inner, *seg);
            }
            drop(inner);
            result?;
            done += if blocks >= min { blocks } else { 0 };
        }
        Ok(done)
    }

    /// As [`Segments::discard_free`], for unused blocks of segments in use, but not of those that logs are in: taken, as if they were
    /// handed out, until they are discarded. Nothing while checkpoints are disabled.
    ///
    /// # Errors
    /// The first of `discard`.
    pub(crate) fn discard_holes(
        &self,
        range: std::ops::Range<u64>,
        min: u64,
        mut discard: impl FnMut(BlockAddr, u64) -> Result<()>,
    ) -> Result<u64> {
        if self.is_pinned() {
            return Ok(0);
        }
        let per = self.geo.segs_per_sec;
        let segments = self.segments_in(&range);
        let sections: Vec<SegNo> = {
            let inner = self.inner.lock();
            let used = inner.used_sections.iter_from(SegNo(segments.start / per));
            used.take_while(|s| s.0 < segments.end.div_ceil(per))
                .collect()
        };
        let mut done = 0;
        for seg in sections
            .into_iter()
            .flat_map(|s| s.0 * per..(s.0 + 1) * per)
            .filter(|seg| segments.contains(seg))
            .map(SegNo)
        {
            let Some(start) = self.geo.segment_start(seg) else {
                continue;
            };
            let runs = self.take_holes(seg, start, &range, min);
            let mut result: Result<()> = Ok(());
            for run in &runs {
                let blocks = (run.end - run.start) as u64;
                result = result.and_then(|()| {
                    discard(BlockAddr(start.0 + u32::from(run.start)), blocks)?;
                    done += blocks;
                    Ok(())
                });
            }
            self.put_holes_back(seg, &runs);
            result?;
        }
        Ok(done)
    }

    /// Takes the runs of unused blocks of a segment that lie in a range and are long enough.
    fn take_holes(
        &self,
        seg: SegNo,
        start: BlockAddr,
        range: &std::ops::Range<u64>,
        min: u64,
    ) -> Vec<std::ops::Range<u16>> {
        let mut inner = self.inner.lock();
        if inner.free.contains(seg) || inner.is_log(seg) {
            return Vec::new();
        }
        let used = inner.used(seg);
        let mut runs: Vec<std::ops::Range<u16>> = Vec::new();
        for at in 0..BLOCKS_PER_SEG as u16 {
            if used.get(at) || !range.contains(&(u64::from(start.0) + u64::from(at))) {
                continue;
            }
            match runs.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs.retain(|run| run.len() as u64 >= min);
        if !runs.is_empty() {
            let busy = inner.busy.entry(seg).or_default();
            for run in &runs {
                busy.set_range(run.clone(), true);
                self.held.fetch_add(run.len() as u64, Ordering::Relaxed);
            }
        }
        runs
    }

    /// Ends [`Segments::take_holes`]. The segment's entry in the table is as it was, so nothing has to be stored.
    fn put_holes_back(&self, seg: SegNo, runs: &[std::ops::Range<u16>]) {
        if runs.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        if let Some(busy) = inner.busy.get_mut(&seg) {
            for run in runs {
                busy.set_range(run.clone(), false);
                self.held.fetch_sub(run.len() as u64, Ordering::Relaxed);
            }
            if busy.is_empty() {
                inner.busy.remove(&seg);
            }
        }
        // Other blocks in use beside them may have been freed meanwhile.
        self.refresh_free(&mut inner, seg);
    }
}
