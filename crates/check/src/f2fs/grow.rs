//! New blocks for what a repair makes longer or moves: a quota file, a directory, nodes among data.
//!
//! Blocks are taken from segments that neither the checkpoint on the device nor the volume as repaired so far uses. So
//! nothing valid is overwritten before the repair is written. A block is refused when the blocks that the repair changes, which
//! need such places, too, would have none. SIT, summaries and counts change with them, so the next step
//! sees a consistent volume.

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::inode::NIDS_OFFSET;
use blockwright_ondisk::f2fs::node::{NodePath, node_path};
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Footer, Ino, Inode, Log as F2Log, NatEntry, Nid,
    NodeOffset, SegNo, SitEntry,
};

use super::CheckError;
use super::context::Checker;
use super::state::DirBlock;

/// A node, its entry in the NAT, and its place in its segment.
type PlacedNode = (Nid, NatEntry, u16);

/// Blocks that change because a file grows by one block: its inode, and the nodes that lead to the block.
const CHANGED_BY_GROWTH: usize = 4;

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
        let Some(block) = self.take_free(summary, node)? else {
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
            let Some(block) = self.take_free(summary, true)? else {
                return Ok(());
            };
            // The old block stays as it is on the device: the checkpoint there refers to it.
            self.store.move_change(entry.block, block);
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

    /// Whether changed blocks of both kinds keep places of their own when this new block is taken. Without such a place they are written over
    /// blocks that the checkpoint on the device names, before the new one is durable.
    fn leaves_room(&mut self, segment: SegNo, at: u16, node: bool) -> bool {
        let changed = self.store.pending().saturating_sub(self.new_blocks.taken);
        let changed = changed + CHANGED_BY_GROWTH;
        let left = |at: u16| BLOCKS_PER_SEG as usize - usize::from(at);
        let other = self.next_new_block(!node).map_or(0, |(_, at)| left(at));
        let segments = |left: usize| {
            changed
                .saturating_sub(left)
                .div_ceil(BLOCKS_PER_SEG as usize)
        };
        let needed = segments(left(at + 1)) + segments(other);
        let is_spare = |c: &Self, s: &SegNo| *s != segment && c.is_free_segment(*s);
        let seen = self.new_blocks.spare.iter().filter(|s| is_spare(self, s));
        if seen.count() < needed {
            let free = self.following_free_segments().filter(|s| *s != segment);
            self.new_blocks.spare = free.take(needed).collect();
            return self.new_blocks.spare.len() == needed;
        }
        true
    }

    /// Takes a free block of nodes or data that nothing on the device refers to.
    fn take_free(&mut self, summary: Summary, node: bool) -> Result<Option<BlockAddr>, CheckError> {
        if self.new_blocks.refused[usize::from(node)] {
            return Ok(None);
        }
        let open = self.next_new_block(node);
        let next = open.or_else(|| self.find_free_segment().map(|s| (s, 0)));
        let Some((segment, at)) = next.filter(|(s, at)| self.leaves_room(*s, *at, node)) else {
            self.new_blocks.refused[usize::from(node)] = true;
            return Ok(None);
        };
        let Some(start) = self.geo.segment_start(segment) else {
            return Ok(None);
        };
        let slot = if node {
            &mut self.new_blocks.node
        } else {
            &mut self.new_blocks.data
        };
        *slot = Some((segment, at + 1));
        self.new_blocks.taken += 1;
        self.scan.take(segment.0, at, node);
        let newest = self.tables.newest;
        let sit = &mut self.tables.sit;
        let entry = sit.entry(segment.0).or_insert_with(SitEntry::free);
        if entry.valid.count() == 0 {
            entry.log = if node {
                F2Log::WarmNode
            } else {
                F2Log::WarmData
            };
            entry.mtime = newest;
        }
        entry.valid.set(at, true);
        let kind = if node {
            SummaryKind::Node
        } else {
            SummaryKind::Data
        };
        self.put_summaries(segment, kind, &[(at, summary)])?;
        if at == 0 {
            let raw = &mut self.pack.checkpoint.raw;
            let free = raw.free_segment_count.get();
            raw.free_segment_count.set(free.saturating_sub(1));
        }
        self.changes += 1;
        Ok(Some(BlockAddr(start.0 + u32::from(at))))
    }
}
