//! Segments as fsync and recovery use them: blocks of the node chain, and blocks that a chain says are in use.
//!
//! A chained node names the place of its successor, so a log moves on before its segment is full. Recovery claims blocks in memory only; those of the chain
//! itself are handed out again after the next checkpoint at the earliest, or a second crash would find the chain overwritten.

use super::{Inner, Need, OP, Segments, Summaries, index};
use crate::{Error, Result};
use blockwright_ondisk::f2fs::RECOVERED_SEGMENTS_MAX;
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{BLOCKS_PER_SEG, BlockAddr, Checkpoint, Geometry, Log, Nid, SegNo};

/// Where the chain behind a checkpoint begins: where the warm node log continues.
pub(crate) fn chain_start(geo: &Geometry, cp: &Checkpoint) -> BlockAddr {
    let head = cp.raw.log(Log::WarmNode);
    let start = geo.segment_start(head.segment);
    start.map_or(BlockAddr::NULL, |s| BlockAddr(s.0 + u32::from(head.offset)))
}

fn too_many_segments() -> Error {
    let detail = format!(
        "its data is in more than {RECOVERED_SEGMENTS_MAX} segments that were free: have Linux mount the volume once"
    );
    Error::new(crate::ErrorKind::UnsupportedFeature, OP).detail(detail)
}

/// What came of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The block is in use from now on, as its summary says.
    Granted,
    /// It is in use already.
    Taken,
    /// It cannot hold data: nodes are in its segment, or it is outside of the main area.
    Impossible,
}

impl Segments {
    /// Takes a block for a node of the chain. Also says where the chain continues: the log is moved at once when
    /// its segment is full, for the node must name its successor's place.
    ///
    /// # Errors
    /// As [`Segments::take`]; nothing is taken then.
    pub(crate) fn take_chained(&self, nid: Nid) -> Result<(BlockAddr, BlockAddr)> {
        let log = Log::WarmNode;
        let (at, _) = self.take(log, 1, |_| Summary {
            nid,
            version: 0,
            offset: 0,
        })?;
        let next = self.place_head(log);
        if next.is_err() {
            self.give_back(at, 1);
        }
        Ok((at, next?))
    }

    fn place_head(&self, log: Log) -> Result<BlockAddr> {
        let mut guard = self.inner.lock();
        let full = || Error::new(crate::ErrorKind::NoSpace, OP);
        let used = guard.used(guard.logs[index(log)].seg);
        if self.room(&guard, log, &used).is_none() {
            self.move_log(&mut guard, log, Need::Checkpoint)?;
        }
        let seg = guard.logs[index(log)].seg;
        let used = guard.used(seg);
        let at = self.room(&guard, log, &used).ok_or_else(full)?;
        let start = self.geo.segment_start(seg).ok_or_else(full)?;
        Ok(BlockAddr(start.0 + u32::from(at)))
    }

    /// A block of a chain that is being recovered: not handed out before the next checkpoint, so that a crash
    /// in between finds it again.
    pub(crate) fn keep(&self, block: BlockAddr) {
        let mut inner = self.inner.lock();
        if let Some((seg, _)) = self.geo.segment_of(block)
            && inner.is_unused(seg)
        {
            inner.segs.get_mut(seg).log = Log::WarmNode;
        }
        self.change(&mut inner, block, 1, |seg, busy, range| {
            let at = range.start;
            let held = seg.now.get(at) || seg.then.get(at) || busy.is_some_and(|b| b.get(at));
            seg.then.set(at, true);
            i64::from(!held)
        });
    }

    /// Where the chain behind a checkpoint begins.
    pub(crate) fn chain_start(&self, cp: &Checkpoint) -> BlockAddr {
        chain_start(&self.geo, cp)
    }

    /// A block that the checkpoint does not call valid holds data, says a chain.
    ///
    /// # Errors
    /// Damage of the segment's summary; a device error; `UnsupportedFeature` for more new segments than [`RECOVERED_SEGMENTS_MAX`].
    pub(crate) fn claim(
        &self,
        block: BlockAddr,
        log: Log,
        summary: Summary,
        now: u64,
    ) -> Result<Claim> {
        let Some((seg, at)) = self.geo.segment_of(block) else {
            return Ok(Claim::Impossible);
        };
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        // The table need not know yet what a log has just moved into.
        let head = inner.logs.iter().position(|l| l.seg == seg);
        let unused = inner.is_unused(seg);
        let s = inner.segs.get_mut(seg);
        match head {
            Some(n) => s.log = Log::ALL[n],
            None if unused => s.log = log,
            None => {}
        }
        let kind = SummaryKind::of(s.log);
        if s.log.is_node() {
            return Ok(Claim::Impossible);
        }
        if s.now.get(at) {
            return Ok(Claim::Taken);
        }
        match head {
            Some(n) => {
                if let Some(entry) = inner.logs[n].entries.get_mut(usize::from(at)) {
                    *entry = summary;
                }
            }
            None => {
                use std::collections::btree_map::Entry;
                let entries = match inner.summaries.entry(seg) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) if unused => {
                        inner.brought_into_use += 1;
                        if inner.brought_into_use > RECOVERED_SEGMENTS_MAX {
                            return Err(too_many_segments());
                        }
                        entry.insert(Summaries::none())
                    }
                    Entry::Vacant(entry) => {
                        entry.insert(Summaries::All(self.read_summaries(seg, kind)?))
                    }
                };
                entries.set(at, summary);
            }
        }
        self.change(inner, block, 1, |seg, _, range| {
            let at = range.start;
            let held = seg.then.get(at);
            seg.now.set(at, true);
            seg.mtime = now;
            i64::from(!held)
        });
        Ok(Claim::Granted)
    }

    /// The owner of a block, from its segment's summary. The summary may be out of date.
    ///
    /// # Errors
    /// Damage of the summary; a device error.
    pub(crate) fn owner_of(&self, block: BlockAddr) -> Result<Option<Summary>> {
        let Some((seg, at)) = self.geo.segment_of(block) else {
            return Ok(None);
        };
        let inner = self.inner.lock();
        let kind = SummaryKind::of(inner.segs.get(seg).log);
        if let Some(log) = inner.logs.iter().find(|l| l.seg == seg) {
            return Ok(log.entries.get(usize::from(at)).copied());
        }
        match inner.summaries.get(&seg) {
            Some(entries) => Ok(entries.get(at)),
            None => Ok(self
                .read_summaries(seg, kind)?
                .get(usize::from(at))
                .copied()),
        }
    }

    /// Logs whose segments are in use behind their heads go on elsewhere: the next checkpoint would store heads in front of recovered blocks, and
    /// writers would overwrite them.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn leave_recovered(&self) -> Result<()> {
        let mut guard = self.inner.lock();
        for log in Log::ALL {
            let head = &guard.logs[index(log)];
            let used = guard.used(head.seg);
            if head.ssr || !(head.next..BLOCKS_PER_SEG as u16).any(|at| used.get(at)) {
                continue;
            }
            match self.move_log(&mut guard, log, Need::Checkpoint) {
                Ok(()) => {}
                // Filling holes is always right.
                Err(e) if e.kind() == crate::ErrorKind::NoSpace => {
                    guard.logs[index(log)].ssr = true;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Whether no map has a block of the segment.
    fn is_unused(&self, seg: SegNo) -> bool {
        self.used(seg).count() == 0
    }
}
