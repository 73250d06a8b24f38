//! What sums the volume up: SIT, summaries, the logs' heads, the checkpoint's counts.

use std::collections::BTreeSet;

use blockwright_ondisk::f2fs::checkpoint::{ALLOC_LFS, ALLOC_SSR, LogHead};
use blockwright_ondisk::f2fs::summary::{
    self, RawSummary, RawSummaryBlock, Summary, SummaryBlock, SummaryKind,
};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Log as F2Log, Nid, SegNo, SitEntry,
};
use zerocopy::FromBytes;

use super::CheckError;
use super::context::Checker;
use super::issue::{IssueKind, NODES_AND_DATA};
use super::state::SegmentUse;
use crate::Phase;

/// Summary blocks kept in memory.
const CACHE_MAX: usize = 2048;

fn at(block: &[u8], offset: u16) -> Option<Summary> {
    let start = usize::from(offset) * summary::ENTRY_BYTES;
    let (raw, _) = RawSummary::ref_from_prefix(block.get(start..)?).ok()?;
    Some(Summary {
        nid: Nid(raw.nid.get()),
        version: raw.version,
        offset: raw.ofs_in_node.get(),
    })
}

impl Checker {
    /// What the summaries say of a block; `None` where there are none.
    pub(super) fn summary_at(
        &mut self,
        segment: SegNo,
        offset: u16,
    ) -> Result<Option<Summary>, CheckError> {
        if let Some((_, block)) = self.summaries.by_segment.get(&segment.0) {
            return Ok(block
                .as_ref()
                .and_then(|b| b.entries.get(usize::from(offset)).copied()));
        }
        let Some(place) = self.geo.ssa_block(segment) else {
            return Ok(None);
        };
        if !self.scan.ssa.blocks.contains_key(&segment.0) {
            if self.scan.ssa.blocks.len() >= CACHE_MAX {
                self.scan.ssa.blocks.clear();
            }
            let block = self.store.read(place, "summaries")?;
            self.scan.ssa.blocks.insert(segment.0, block);
        }
        let block = self.scan.ssa.blocks.get(&segment.0);
        Ok(block.and_then(|b| at(b, offset)))
    }

    /// A segment holds nodes or data. Where it holds both, the nodes move: the NAT alone says where they are.
    fn part_nodes_and_data(&mut self) -> Result<(), CheckError> {
        let mixed = (self.scan.segments.iter()).filter(|(_, u)| u.nodes > 0 && u.data > 0);
        let mixed: Vec<SegNo> = mixed.map(|(n, _)| SegNo(*n)).collect();
        if mixed.is_empty() {
            return Ok(());
        }
        let mut nodes = self.nodes_of(&mixed);
        for segment in mixed {
            let stored = self.tables.sit.get(&segment.0);
            let found = stored.map_or(SitEntry::free().log, |e| e.log);
            let what = NODES_AND_DATA;
            if self.problem(IssueKind::SegmentType {
                segment,
                found,
                what,
            }) {
                let nodes = nodes.remove(&segment.0).unwrap_or_default();
                self.move_nodes_out(segment, nodes)?;
            }
        }
        Ok(())
    }

    /// Compares SIT and SSA with what is in use.
    pub(super) fn check_segments(&mut self) -> Result<(), CheckError> {
        self.part_nodes_and_data()?;
        let mut all: BTreeSet<u32> = self.scan.segments.keys().copied().collect();
        all.extend(self.tables.sit.keys());
        let total = all.len() as u64;
        for (n, segment) in all.into_iter().enumerate() {
            if n % 1024 == 0 {
                self.report_progress(Phase::Bitmaps, n as u64, total)?;
            }
            let used = self
                .scan
                .segments
                .get(&segment)
                .copied()
                .unwrap_or_default();
            self.check_sit_entry(SegNo(segment), &used);
            if used.map.count() > 0 {
                self.check_summaries(SegNo(segment), &used)?;
            }
        }
        Ok(())
    }

    fn block_at(&self, segment: SegNo, offset: usize) -> BlockAddr {
        let start = self.geo.segment_start(segment).unwrap_or_default();
        BlockAddr(start.0 + offset as u32)
    }

    fn check_sit_entry(&mut self, segment: SegNo, used: &SegmentUse) {
        let stored = self
            .tables
            .sit
            .get(&segment.0)
            .copied()
            .unwrap_or_else(SitEntry::free);
        let (mut missing, mut extra, mut first) = (0, 0, None);
        for (n, (a, b)) in used.map.0.iter().zip(stored.valid.0).enumerate() {
            missing += (a & !b).count_ones() as u16;
            extra += (b & !a).count_ones() as u16;
            if *a != b && first.is_none() {
                first = Some(n * 8 + (a ^ b).leading_zeros() as usize);
            }
        }
        let mut entry = stored;
        let mut repair = false;
        if let Some(first) = first {
            let first = self.block_at(segment, first);
            if self.problem(IssueKind::SitBitmap {
                segment,
                first,
                missing,
                extra,
            }) {
                entry.valid = used.map;
                repair = true;
            }
        }
        let what = match (used.nodes, used.data) {
            (0, 0) => return self.store_sit(segment, entry, repair),
            (_, 0) => "nodes",
            (0, _) => "data",
            // Told of already: there was no room to part them.
            _ => return self.store_sit(segment, entry, repair),
        };
        if stored.log.is_node() != (used.nodes > 0) {
            let found = stored.log;
            if self.problem(IssueKind::SegmentType {
                segment,
                found,
                what,
            }) {
                entry.log = self.log_for(segment, used);
                repair = true;
            }
        }
        self.store_sit(segment, entry, repair);
    }

    /// The log that a segment of such blocks belongs to.
    fn log_for(&self, segment: SegNo, used: &SegmentUse) -> F2Log {
        let node = used.nodes > 0;
        match self.summaries.by_segment.get(&segment.0) {
            Some((log, _)) if log.is_node() == node => *log,
            _ if node => F2Log::WarmNode,
            _ => F2Log::WarmData,
        }
    }

    fn store_sit(&mut self, segment: SegNo, entry: SitEntry, repair: bool) {
        if repair {
            self.changes += 1;
            self.tables.sit.insert(segment.0, entry);
        }
    }

    fn check_summaries(&mut self, segment: SegNo, used: &SegmentUse) -> Result<(), CheckError> {
        let kind = if used.nodes > 0 {
            SummaryKind::Node
        } else {
            SummaryKind::Data
        };
        let wrong = self
            .scan
            .summaries_wrong
            .remove(&segment.0)
            .unwrap_or_default();
        let in_log = self.summaries.by_segment.contains_key(&segment.0);
        let mut repair = false;
        if !in_log && let Some(place) = self.geo.ssa_block(segment) {
            let block = match self.scan.ssa.blocks.get(&segment.0) {
                Some(block) => block.clone(),
                None => self.store.read(place, "summaries")?,
            };
            let code = RawSummaryBlock::ref_from_bytes(&block).map_or(0, |b| b.footer.entry_type);
            if code != u8::from(kind == SummaryKind::Node) {
                repair |= self.problem(IssueKind::SummaryKind { segment });
            }
        }
        if let Some((first, _)) = wrong.first() {
            let first = self.block_at(segment, usize::from(*first));
            repair |= self.problem(IssueKind::SummaryEntries {
                segment,
                first,
                count: wrong.len() as u16,
            });
        }
        if repair {
            self.put_summaries(segment, kind, &wrong)?;
        }
        Ok(())
    }

    /// Changes what the summaries say of some blocks.
    pub(super) fn put_summaries(
        &mut self,
        segment: SegNo,
        kind: SummaryKind,
        entries: &[(u16, Summary)],
    ) -> Result<(), CheckError> {
        let put = |block: &mut SummaryBlock| {
            block.kind = kind;
            for (offset, entry) in entries {
                if let Some(dest) = block.entries.get_mut(usize::from(*offset)) {
                    *dest = *entry;
                }
            }
        };
        if let Some((_, block)) = self.summaries.by_segment.get_mut(&segment.0) {
            put(block.get_or_insert_with(|| SummaryBlock::new(kind)));
            self.changes += 1;
            return Ok(());
        }
        let Some(place) = self.geo.ssa_block(segment) else {
            return Ok(());
        };
        let mut bytes = self.store.read(place, "summaries")?;
        let type_at = BLOCK_SIZE - summary::FOOTER_BYTES;
        bytes[type_at] = u8::from(kind == SummaryKind::Node);
        if let Ok(mut block) = SummaryBlock::parse(&bytes) {
            put(&mut block);
            self.write(place, block.encode_with_checksum());
            self.scan.ssa.blocks.remove(&segment.0);
        }
        Ok(())
    }

    /// Looks at where the logs go on.
    pub(super) fn check_logs(&mut self) -> Result<(), CheckError> {
        for log in self.logs() {
            let log = *log;
            let mut head = self.pack.checkpoint.raw.log(log);
            if !matches!(head.alloc, ALLOC_LFS | ALLOC_SSR)
                && self.problem(IssueKind::LogAllocation {
                    log,
                    found: head.alloc,
                })
            {
                // Filling holes assumes least.
                head.alloc = ALLOC_SSR;
                self.pack.checkpoint.raw.set_log(log, head);
                self.changes += 1;
            }
            let used = self
                .scan
                .segments
                .get(&head.segment.0)
                .copied()
                .unwrap_or_default();
            let mut move_on = false;
            let sit = self.tables.sit.get(&head.segment.0).copied();
            let entry = sit.unwrap_or_else(SitEntry::free);
            if entry.log != log {
                let wrong_kind = if log.is_node() {
                    used.data > 0
                } else {
                    used.nodes > 0
                };
                if self.problem(IssueKind::LogSegmentType {
                    log,
                    segment: head.segment,
                    found: entry.log,
                }) {
                    move_on = wrong_kind;
                    if !wrong_kind {
                        self.store_sit(head.segment, SitEntry { log, ..entry }, true);
                    }
                }
            }
            // A log that fills holes looks for them; another takes everything behind its head.
            let taken = match head.alloc {
                ALLOC_SSR => head.offset..head.offset.saturating_add(1),
                _ => head.offset..BLOCKS_PER_SEG as u16,
            };
            if let Some(offset) = taken.into_iter().find(|at| used.map.get(*at)) {
                move_on |= self.problem(IssueKind::LogOffset {
                    log,
                    segment: head.segment,
                    offset,
                });
            }
            if move_on {
                self.move_log(log, head)?;
            }
        }
        Ok(())
    }

    /// The first segment without a block in use that no log is in. Segments that become free behind it are found in the next round.
    pub(super) fn find_free_segment(&mut self) -> Option<SegNo> {
        let found = self.following_free_segments().next();
        self.new_blocks.free_from = found.map_or(self.geo.main_segments, |s| s.0);
        found
    }

    /// Free segments, from the one that [`Self::find_free_segment`] returns.
    pub(super) fn following_free_segments(&self) -> impl Iterator<Item = SegNo> {
        let all = self.new_blocks.free_from..self.geo.main_segments;
        all.map(SegNo).filter(|s| self.is_free_segment(*s))
    }

    pub(super) fn is_free_segment(&self, SegNo(n): SegNo) -> bool {
        let used = (self.scan.segments.get(&n)).is_some_and(|u| u.map.count() > 0);
        let held = self.tables.held.contains_key(&n);
        !used && !held && !self.summaries.by_segment.contains_key(&n)
    }

    /// Lets a log go on in a free segment; where there is none, at a free block of its own.
    fn move_log(&mut self, log: F2Log, old: LogHead) -> Result<(), CheckError> {
        let Some(segment) = self.find_free_segment() else {
            let used = self.scan.segments.get(&old.segment.0);
            let free = (0..BLOCKS_PER_SEG as u16).find(|o| used.is_none_or(|u| !u.map.get(*o)));
            if let Some(offset) = free {
                let head = LogHead {
                    offset,
                    alloc: ALLOC_SSR,
                    ..old
                };
                self.pack.checkpoint.raw.set_log(log, head);
                self.changes += 1;
            }
            return Ok(());
        };
        self.changes += 1;
        let kind = SummaryKind::of(log);
        if let Some((_, Some(block))) = self.summaries.by_segment.remove(&old.segment.0)
            && let Some(place) = self.geo.ssa_block(old.segment)
        {
            self.write(place, block.encode_with_checksum());
        }
        let fresh = SummaryBlock::new(kind);
        self.summaries
            .by_segment
            .insert(segment.0, (log, Some(fresh)));
        self.pack.checkpoint.raw.set_log(
            log,
            LogHead {
                segment,
                offset: 0,
                alloc: ALLOC_LFS,
            },
        );
        Ok(())
    }

    /// Segments without a block in use that no log is in.
    pub(super) fn free_segments(&self) -> u32 {
        let mut taken: BTreeSet<u32> = self
            .scan
            .segments
            .iter()
            .filter(|(_, u)| u.map.count() > 0)
            .map(|(n, _)| *n)
            .collect();
        for log in self.logs() {
            taken.insert(self.pack.checkpoint.raw.log(*log).segment.0);
        }
        self.geo.main_segments - taken.len() as u32
    }

    /// Compares the checkpoint's counts.
    pub(super) fn check_counts(&mut self) {
        let raw = self.pack.checkpoint.raw;
        let counted = self.scan.blocks;
        let found = raw.valid_block_count.get();
        if found != counted && self.problem(IssueKind::ValidBlocks { found, counted }) {
            self.pack.checkpoint.raw.valid_block_count.set(counted);
            self.changes += 1;
        }
        let (found, counted) = (raw.valid_node_count.get(), self.scan.nodes);
        if u64::from(found) != counted && self.problem(IssueKind::ValidNodes { found, counted }) {
            self.pack
                .checkpoint
                .raw
                .valid_node_count
                .set(counted as u32);
            self.changes += 1;
        }
        let (found, counted) = (raw.valid_inode_count.get(), self.scan.inodes.len() as u64);
        if u64::from(found) != counted && self.problem(IssueKind::ValidInodes { found, counted }) {
            self.pack
                .checkpoint
                .raw
                .valid_inode_count
                .set(counted as u32);
            self.changes += 1;
        }
        let (found, counted) = (raw.free_segment_count.get(), self.free_segments());
        if found != counted && self.problem(IssueKind::FreeSegments { found, counted }) {
            self.pack.checkpoint.raw.free_segment_count.set(counted);
            self.changes += 1;
        }
    }
}
