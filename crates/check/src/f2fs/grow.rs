//! New blocks for what a repair makes longer or moves: a quota file, a directory, nodes among data.
//!
//! Blocks are taken from segments that neither the checkpoint on the device nor the volume as repaired so far uses, and where
//! there are too few of them, from holes beside blocks of the same kind, also in the segments of logs. So
//! nothing valid is overwritten before the repair is written. A block is refused when the blocks that the repair changes, which
//! need such places, too, would have none. SIT, summaries and counts change with them, so the next step
//! sees a consistent volume.

use std::collections::{BTreeMap, BTreeSet};

use blockwright_ondisk::f2fs::checkpoint::{ALLOC_LFS, LogHead};
use blockwright_ondisk::f2fs::inode::NIDS_OFFSET;
use blockwright_ondisk::f2fs::node::{NodePath, node_path};
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Footer, Ino, Inode, Log as F2Log, NatEntry, Nid,
    NodeOffset, SegNo, SitEntry,
};

use super::CheckError;
use super::context::Checker;
use super::state::{DirBlock, Holes};

/// A node, its entry in the NAT, and its place in its segment.
type PlacedNode = (Nid, NatEntry, u16);

/// Blocks of data and of nodes that change because a file grows by one block: one that had room before; the inode, and the nodes that
/// lead to the block.
const CHANGED_BY_GROWTH: [usize; 2] = [1, 4];

impl Checker {
    /// Gives block `at` of a file a place, with the nodes that lead to it. `None` when there is no room, or no file has such
    /// a block; the nodes may be there then.
    pub(super) fn add_block(
        &mut self,
        ino: Ino,
        at: u64,
        bytes: Vec<u8>,
    ) -> Result<Option<DirBlock>, CheckError> {
        let Some((nid, position)) = self.make_way(ino, at)? else {
            return Ok(None);
        };
        let old = self.address_at(ino, nid, position)?;
        if old.is_some_and(|old| old.is_stored()) {
            return Ok(None);
        }
        if old == Some(BlockAddr::NEW) {
            // A place that was promised to the file is counted already.
            self.edit_inode(ino, |head| {
                head.blocks.set(head.blocks.get().saturating_sub(1))
            })?;
            let raw = &mut self.pack.checkpoint.raw;
            let blocks = raw.valid_block_count.get().saturating_sub(1);
            raw.valid_block_count.set(blocks);
            self.scan.blocks = self.scan.blocks.saturating_sub(1);
            self.clear_address(ino, nid, position)?;
        }
        let version = self.tables.nat.get(&nid.0).map_or(0, |e| e.version);
        let summary = Summary {
            nid,
            version,
            offset: position as u16,
        };
        let Some(block) = self.take_new(ino, summary, false)? else {
            return Ok(None);
        };
        self.write(block, bytes);
        self.put_address(ino, nid, position, block)?;
        Ok(Some(DirBlock {
            dir: ino,
            at,
            block,
            owner: (nid, position as u16),
        }))
    }

    /// An address as a node has it.
    fn address_at(
        &self,
        ino: Ino,
        nid: Nid,
        position: usize,
    ) -> Result<Option<BlockAddr>, CheckError> {
        let Some((_, block)) = self.read_node(nid)? else {
            return Ok(None);
        };
        let start = match Inode::parse_unverified(&block, ino, &self.geo) {
            Ok(inode) if nid == ino.nid() => inode.layout(self.geo.features).address_bytes().start,
            _ => 0,
        };
        let word = block
            .get(start + position * 4..)
            .and_then(|b| b.first_chunk());
        Ok(word.map(|w| BlockAddr(u32::from_le_bytes(*w))))
    }

    /// The node and the position there of a block's address; nodes that are missing are made.
    fn make_way(&mut self, ino: Ino, at: u64) -> Result<Option<(Nid, usize)>, CheckError> {
        let Some((_, block)) = self.read_node(ino.nid())? else {
            return Ok(None);
        };
        let Ok(inode) = Inode::parse_unverified(&block, ino, &self.geo) else {
            return Ok(None);
        };
        let in_inode = inode.layout(self.geo.features).addresses_used(1);
        let Some(NodePath {
            depth,
            positions,
            offsets,
        }) = node_path(at, in_inode, 1)
        else {
            return Ok(None);
        };
        let mut nid = ino.nid();
        for level in 1..=depth {
            // The inode keeps its nodes' numbers apart.
            let word = match level {
                1 => NIDS_OFFSET + positions[0] * 4,
                _ => positions[level - 1] * 4,
            };
            let Some((_, block)) = self.read_node(nid)? else {
                return Ok(None);
            };
            let bytes = block[word..word + 4].first_chunk().unwrap_or(&[0; 4]);
            let mut child = Nid(u32::from_le_bytes(*bytes));
            if child.0 == 0 {
                let Some(made) = self.make_node(ino, offsets[level])? else {
                    return Ok(None);
                };
                child = made;
                self.edit_node(nid, |b| {
                    b[word..word + 4].copy_from_slice(&child.0.to_le_bytes());
                })?;
            }
            nid = child;
        }
        Ok(Some((nid, positions[depth])))
    }

    /// Makes a node that leads nowhere yet.
    fn make_node(&mut self, ino: Ino, offset: NodeOffset) -> Result<Option<Nid>, CheckError> {
        let taken = |n: &u32| {
            self.tables.nat.contains_key(n)
                || self.tables.orphans.contains(n)
                || self.sb.qf_ino.iter().any(|q| q.get() == *n)
        };
        let from = self.new_blocks.nid_from.max(Ino::ROOT.0);
        let Some(nid) = (from..self.geo.nids()).find(|n| !taken(n)).map(Nid) else {
            return Ok(None);
        };
        self.new_blocks.nid_from = nid.0;
        let summary = Summary {
            nid,
            version: 0,
            offset: 0,
        };
        let Some(block) = self.take_new(ino, summary, true)? else {
            return Ok(None);
        };
        let footer = Footer {
            nid,
            ino,
            offset,
            cold: true,
            fsync: false,
            dentry: false,
            version: self.pack.checkpoint.footer_version(),
            next: BlockAddr(0),
        };
        let mut bytes = vec![0; BLOCK_SIZE];
        // The block has its full length.
        let _ = footer.write(&mut bytes);
        self.write(block, bytes);
        let entry = NatEntry {
            version: 0,
            ino,
            block,
        };
        self.tables.nat.insert(nid.0, entry);
        let raw = &mut self.pack.checkpoint.raw;
        raw.valid_node_count.set(raw.valid_node_count.get() + 1);
        self.scan.nodes += 1;
        Ok(Some(nid))
    }

    /// Takes a free block, and counts it as the file's.
    fn take_new(
        &mut self,
        ino: Ino,
        summary: Summary,
        node: bool,
    ) -> Result<Option<BlockAddr>, CheckError> {
        if self.scan.blocks >= self.pack.checkpoint.raw.user_block_count.get() {
            return Ok(None);
        }
        let Some(block) = self.take_free(summary, node, CHANGED_BY_GROWTH)? else {
            return Ok(None);
        };
        self.edit_inode(ino, |head| head.blocks.set(head.blocks.get() + 1))?;
        let raw = &mut self.pack.checkpoint.raw;
        raw.valid_block_count.set(raw.valid_block_count.get() + 1);
        self.scan.blocks += 1;
        Ok(Some(block))
    }

    /// The nodes that are in some segments, with their places there. A node that is bad has no block of its own.
    pub(super) fn nodes_of(&self, segments: &[SegNo]) -> BTreeMap<u32, Vec<PlacedNode>> {
        let mut found: BTreeMap<u32, Vec<PlacedNode>> =
            segments.iter().map(|s| (s.0, Vec::new())).collect();
        for (nid, entry) in &self.tables.nat {
            let (visited, bad) = (&self.scan.visited, &self.scan.bad);
            let Some((segment, at)) = self.geo.segment_of(entry.block) else {
                continue;
            };
            if let Some(nodes) = found.get_mut(&segment.0)
                && visited.contains(nid)
                && !bad.contains(nid)
            {
                nodes.push((Nid(*nid), *entry, at));
            }
        }
        found
    }

    /// Moves the nodes of a segment to another one, as long as there is room.
    pub(super) fn move_nodes_out(
        &mut self,
        segment: SegNo,
        nodes: Vec<PlacedNode>,
    ) -> Result<(), CheckError> {
        for (nid, entry, at) in nodes {
            let bytes = self.store.read(entry.block, "node")?;
            let summary = Summary {
                nid,
                version: entry.version,
                offset: 0,
            };
            let Some(block) = self.take_free(summary, true, [0, 0])? else {
                return Ok(());
            };
            // The old block stays as it is on the device: the checkpoint there refers to it.
            if self.store.move_change(entry.block, block) {
                let changed = &mut self.new_blocks.changed[1];
                *changed = changed.saturating_sub(1);
            }
            self.write(block, bytes);
            self.tables.nat.insert(nid.0, NatEntry { block, ..entry });
            self.scan.give_back(segment.0, at, true);
            for lists in [
                &mut self.scan.summaries_wrong,
                &mut self.scan.summaries_missing,
            ] {
                if let Some(list) = lists.get_mut(&segment.0) {
                    list.retain(|(offset, _)| *offset != at);
                }
            }
            if let Some(entry) = self.tables.sit.get_mut(&segment.0) {
                entry.valid.set(at, false);
            }
        }
        Ok(())
    }

    /// The next block of the segment that takes new blocks of a kind. `None` when it is full, or no longer such a segment.
    pub(super) fn next_new_block(&self, node: bool) -> Option<(SegNo, u16)> {
        let next = if node {
            self.new_blocks.node
        } else {
            self.new_blocks.data
        };
        next.filter(|(segment, at)| {
            u32::from(*at) < BLOCKS_PER_SEG
                && !self.summaries.by_segment.contains_key(&segment.0)
                && (self.scan.segments.get(&segment.0)).is_some_and(|u| {
                    let others = if node { u.data } else { u.nodes };
                    u.map.count() > 0 && others == 0 && !u.map.get(*at)
                })
        })
    }

    /// Whether changed blocks of both kinds keep places of their own when this new block is taken, which may be a hole. Without such a
    /// place they are written over blocks that the checkpoint on the device names, before the new one is durable.
    fn leaves_room(
        &mut self,
        (segment, at): (SegNo, u16),
        node: bool,
        hole: bool,
        more: [usize; 2],
    ) -> bool {
        let n = usize::from(node);
        let changed = [n, 1 - n].map(|n| self.new_blocks.changed[n] + more[n]);
        let left = |at: u16| BLOCKS_PER_SEG as usize - usize::from(at);
        let open = |c: &Self, node: bool| c.next_new_block(node).map_or(0, |(_, at)| left(at));
        let own = match hole {
            true => open(self, node),
            false => left(at + 1),
        };
        let needs = [
            changed[0].saturating_sub(own),
            changed[1].saturating_sub(open(self, !node)),
        ];
        let segments = |need: usize| need.div_ceil(BLOCKS_PER_SEG as usize);
        let needed = segments(needs[0]) + segments(needs[1]);
        let is_spare = |c: &Self, s: &SegNo| *s != segment && c.is_free_segment(*s);
        let seen = self.new_blocks.spare.iter().filter(|s| is_spare(self, s));
        if seen.count() < needed {
            let free = self.following_free_segments().filter(|s| *s != segment);
            self.new_blocks.spare = free.take(needed).collect();
            let free = self.new_blocks.spare.len();
            return free == needed
                || self.holes_suffice(needs, free, node, hole.then_some(segment));
        }
        true
    }

    /// Whether so many blocks of a kind, and of the other one, have room in free segments and in holes when a hole of `taken` is taken.
    fn holes_suffice(
        &mut self,
        [own, other]: [usize; 2],
        free: usize,
        node: bool,
        taken: Option<SegNo>,
    ) -> bool {
        let holes = self.holes();
        let n = usize::from(node);
        let mut beside = [holes.beside[n], holes.beside[1 - n]];
        let mut left = holes.left.clone();
        if let Some(taken) = taken {
            beside[0] += left.remove(&taken.0).unwrap_or(0);
            beside[0] = beside[0].saturating_sub(1);
        }
        let mut needs = [
            own.saturating_sub(beside[0]),
            other.saturating_sub(beside[1]),
        ];
        let free = std::iter::repeat_n(BLOCKS_PER_SEG as usize, free);
        for room in free.chain(left.into_values()) {
            if let Some(need) = needs.iter_mut().find(|need| **need > 0) {
                *need = need.saturating_sub(room);
            }
        }
        needs == [0, 0]
    }

    /// Where there is room in segments that are not free.
    fn holes(&mut self) -> &mut Holes {
        let counted = match self.new_blocks.holes.take() {
            Some(known) => known,
            None => self.count_holes(),
        };
        self.new_blocks.holes.insert(counted)
    }

    fn count_holes(&self) -> Holes {
        let mut out = Holes::default();
        let used = self.scan.segments.keys().chain(self.tables.held.keys());
        let all = used.chain(self.summaries.by_segment.keys());
        let all: BTreeSet<u32> = all.copied().collect();
        for segment in all.into_iter().map(SegNo) {
            let free = |at: &u16| self.is_hole(segment, *at);
            let holes = (0..BLOCKS_PER_SEG as u16).filter(free).count();
            if holes == 0 {
                continue;
            }
            match [false, true].map(|node| self.has_holes(segment, node)) {
                [true, true] => {
                    out.left.insert(segment.0, holes);
                }
                [true, false] => out.beside[0] += holes,
                [false, true] => out.beside[1] += holes,
                [false, false] => {}
            }
        }
        out
    }

    /// Whether new blocks of a kind may go between the blocks of a segment: no log or block of the other kind is there, and it is not free.
    fn has_holes(&self, segment: SegNo, node: bool) -> bool {
        let used = self.scan.segments.get(&segment.0);
        let others = used.map_or(0, |u| if node { u.data } else { u.nodes });
        let open = [self.next_new_block(false), self.next_new_block(true)];
        let log = self.summaries.by_segment.get(&segment.0);
        // Only blocks of the checkpoint on the device are there: its summaries are of this kind, and it may come back after a crash.
        let kept = used.is_none_or(|u| u.map.count() == 0) && log.is_none();
        let stored = self.tables.sit.get(&segment.0);
        others == 0
            && log.is_none_or(|(log, _)| log.is_node() == node)
            && (!kept || stored.is_some_and(|s| s.valid.count() > 0 && s.log.is_node() == node))
            && !open.iter().flatten().any(|(open, _)| *open == segment)
            && !self.is_free_segment(segment)
    }

    /// Whether a place in a segment with holes is free. In that of a log it may be the one where the log goes on, if it can go on behind it; but not
    /// that of the log where a mount looks for fsynced nodes.
    fn is_hole(&self, segment: SegNo, at: u16) -> bool {
        let used = self.scan.segments.get(&segment.0);
        let log = self.summaries.by_segment.get(&segment.0);
        let allowed = log.is_none_or(|(log, _)| {
            let head = self.pack.checkpoint.raw.log(*log);
            let next = *log != F2Log::WarmNode && u32::from(at) + 1 < BLOCKS_PER_SEG;
            match head.alloc {
                ALLOC_LFS => at < head.offset || next,
                _ => at != head.offset,
            }
        });
        allowed && !used.is_some_and(|u| u.map.get(at)) && !self.tables.is_held(segment, at)
    }

    /// A log goes on behind a block that was taken where it would have gone on.
    pub(super) fn pass_by(&mut self, segment: SegNo, at: u16) {
        let Some((log, _)) = self.summaries.by_segment.get(&segment.0) else {
            return;
        };
        let raw = &mut self.pack.checkpoint.raw;
        let head = raw.log(*log);
        if head.alloc == ALLOC_LFS && at >= head.offset {
            let offset = at + 1;
            raw.set_log(*log, LogHead { offset, ..head });
        }
    }

    /// The first hole for a block of a kind.
    pub(super) fn find_hole(&mut self, node: bool) -> Option<(SegNo, u16)> {
        let (first, mut from) = self.new_blocks.holes_from[usize::from(node)];
        let mut found = None;
        for segment in (first..self.geo.main_segments).map(SegNo) {
            if self.has_holes(segment, node) {
                let mut places = from..BLOCKS_PER_SEG as u16;
                found = places
                    .find(|at| self.is_hole(segment, *at))
                    .map(|at| (segment, at));
            }
            if found.is_some() {
                break;
            }
            from = 0;
        }
        let next = found.map_or((self.geo.main_segments, 0), |(s, at)| (s.0, at));
        self.new_blocks.holes_from[usize::from(node)] = next;
        found
    }

    /// Takes a free block of nodes or data that nothing on the device refers to, for which so many more blocks of data and of nodes change.
    fn take_free(
        &mut self,
        summary: Summary,
        node: bool,
        more: [usize; 2],
    ) -> Result<Option<BlockAddr>, CheckError> {
        if self.new_blocks.refused[usize::from(node)] {
            return Ok(None);
        }
        let open = self.next_new_block(node);
        let next = open.or_else(|| self.find_free_segment().map(|s| (s, 0)));
        let next = next.filter(|place| self.leaves_room(*place, node, false, more));
        let next = match next {
            Some((segment, at)) => {
                let slot = if node {
                    &mut self.new_blocks.node
                } else {
                    &mut self.new_blocks.data
                };
                *slot = Some((segment, at + 1));
                Some((segment, at))
            }
            None => {
                let hole = self.find_hole(node);
                let hole = hole.filter(|place| self.leaves_room(*place, node, true, more));
                if let Some((segment, _)) = hole {
                    let holes = self.holes();
                    let more = holes.left.remove(&segment.0).unwrap_or(0);
                    let own = &mut holes.beside[usize::from(node)];
                    *own = (*own + more).saturating_sub(1);
                }
                hole
            }
        };
        let Some((segment, at)) = next else {
            self.new_blocks.refused[usize::from(node)] = true;
            return Ok(None);
        };
        let Some(start) = self.geo.segment_start(segment) else {
            return Ok(None);
        };
        let block = BlockAddr(start.0 + u32::from(at));
        self.new_blocks.places.insert(block.0);
        self.scan.take(segment.0, at, node);
        self.pass_by(segment, at);
        let used = self.scan.segments.get(&segment.0);
        let first = used.is_some_and(|u| u.map.count() == 1);
        let newest = self.tables.newest;
        let log = self.summaries.by_segment.get(&segment.0).map(|(l, _)| *l);
        let sit = &mut self.tables.sit;
        let entry = sit.entry(segment.0).or_insert_with(SitEntry::free);
        if first {
            let kind = if node {
                F2Log::WarmNode
            } else {
                F2Log::WarmData
            };
            entry.log = log.unwrap_or(kind);
            entry.mtime = newest;
        }
        entry.valid.set(at, true);
        let kind = if node {
            SummaryKind::Node
        } else {
            SummaryKind::Data
        };
        if log.is_some() {
            // Those of its other blocks are known, too, when the checkpoint had none.
            self.fill_missing_summaries();
        }
        self.put_summaries(segment, kind, &[(at, summary)])?;
        if first && log.is_none() {
            let raw = &mut self.pack.checkpoint.raw;
            let free = raw.free_segment_count.get();
            raw.free_segment_count.set(free.saturating_sub(1));
        }
        self.changes += 1;
        Ok(Some(block))
    }
}
