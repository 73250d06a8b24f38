//! Writing a repair: as a new checkpoint.
//!
//! Changed nodes and directory blocks go to free segments, SIT and NAT blocks to their other copies. All of it becomes
//! valid with the pack that names it: the older one is overwritten. Only summaries of segments are written in place,
//! because every reader verifies them. When no segment is free, changed blocks go beside others of their kind, where neither
//! checkpoint has a block. Only where nothing is free they are written in place too; no new block takes the last place that they need.
//!
//! Crash order: blocks, tables and summaries; flush; the pack but its last block; flush; its last
//! block; flush; superblocks. Until the last block is there, the old pack counts, and nothing that it
//! names was overwritten.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::nat::{self, NatBlock};
use blockwright_ondisk::f2fs::pack::{self, NatBits};
use blockwright_ondisk::f2fs::sit;
use blockwright_ondisk::f2fs::summary::{Summary, SummaryBlock, SummaryKind};
use blockwright_ondisk::f2fs::superblock::SUPERBLOCK_OFFSET;
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Features, Ino, Log as F2Log, NatEntry, Nid, SegNo,
    SitEntry,
};

use super::context::Checker;
use super::{CheckError, Report};
use crate::Mode;

/// Blocks to be written, by place.
type Blocks = BTreeMap<u32, Arc<[u8]>>;

/// A segment that takes changed blocks.
struct Fresh {
    segment: SegNo,
    next: u16,
}

/// Segments that take changed blocks: nodes and data.
struct Room {
    node: Option<Fresh>,
    data: Option<Fresh>,
}

impl Checker {
    /// Writes everything, and says what became of each issue.
    pub(super) fn finish(mut self) -> Result<Report, CheckError> {
        let repairing = self.mode() != Mode::ReadOnly;
        if repairing && (self.changes > 0 || self.store.pending() > 0) {
            self.write_checkpoint()?;
        }
        if repairing {
            self.write_superblocks()?;
        }
        let stats = self.stats();
        let changed = self.wrote > 0;
        Ok(self.log.into_report(stats, changed, false))
    }

    fn write_superblocks(&mut self) -> Result<(), CheckError> {
        let bytes = self.sb.to_bytes();
        for (copy, stale) in self.sb_stale.into_iter().enumerate() {
            if !stale {
                continue;
            }
            let at = BlockAddr(copy as u32);
            let mut block = self.store.read(at, "superblock")?;
            block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + bytes.len()].copy_from_slice(&bytes);
            self.put([(at.0, block.into())].into())?;
        }
        Ok(())
    }

    /// Writes blocks durably.
    fn put(&mut self, blocks: Blocks) -> Result<(), CheckError> {
        self.wrote += blocks.len() as u64;
        self.store.write_device(&blocks)?;
        self.store.flush()
    }

    fn write_checkpoint(&mut self) -> Result<(), CheckError> {
        self.fill_missing_summaries();
        self.move_changed()?;
        let mut blocks = self.store.take_changes();
        self.write_sit(&mut blocks)?;
        let (full, empty) = self.write_nat(&mut blocks)?;
        self.put(blocks)?;
        self.write_pack(NatBits { full, empty })
    }

    /// The new pack names the summaries of all logs.
    pub(super) fn fill_missing_summaries(&mut self) {
        for (segment, (log, block)) in &mut self.summaries.by_segment {
            if block.is_some() {
                continue;
            }
            let mut new = SummaryBlock::new(SummaryKind::of(*log));
            for (offset, entry) in self
                .scan
                .summaries_missing
                .remove(segment)
                .unwrap_or_default()
            {
                if let Some(dest) = new.entries.get_mut(usize::from(offset)) {
                    *dest = entry;
                }
            }
            *block = Some(new);
        }
    }

    /// A free block for a changed one.
    fn place_for(&mut self, room: &mut Room, node: bool) -> Option<BlockAddr> {
        let slot = if node { &mut room.node } else { &mut room.data };
        if slot
            .as_ref()
            .is_none_or(|f| u32::from(f.next) >= BLOCKS_PER_SEG)
        {
            *slot = self
                .find_free_segment()
                .map(|segment| Fresh { segment, next: 0 });
        }
        if slot.is_none() {
            let (segment, at) = self.find_hole(node)?;
            self.scan.take(segment.0, at, node);
            self.pass_by(segment, at);
            let start = self.geo.segment_start(segment)?;
            return Some(BlockAddr(start.0 + u32::from(at)));
        }
        let fresh = slot.as_mut()?;
        let (segment, offset) = (fresh.segment, fresh.next);
        fresh.next += 1;
        self.scan.take(segment.0, offset, node);
        let start = self.geo.segment_start(segment)?;
        Some(BlockAddr(start.0 + u32::from(offset)))
    }

    /// Moves a changed block to a free place. Where it is then.
    fn relocate(
        &mut self,
        room: &mut Room,
        from: BlockAddr,
        summary: Summary,
        node: bool,
    ) -> Result<BlockAddr, CheckError> {
        let Some((old, at)) = self.geo.segment_of(from) else {
            return Ok(from);
        };
        // Blocks that the old checkpoint does not use may be written in place.
        if !self.tables.is_held(old, at) {
            self.mark_segment(old, node);
            self.note_owner(old, at, summary, node)?;
            return Ok(from);
        }
        let Some(to) = self.place_for(room, node) else {
            return Ok(from);
        };
        self.store.move_change(from, to);
        self.scan.give_back(old.0, at, node);
        if let Some((new, at)) = self.geo.segment_of(to) {
            self.mark_segment(new, node);
            self.note_owner(new, at, summary, node)?;
        }
        Ok(to)
    }

    /// A segment that was free belongs to a log of the kind.
    fn mark_segment(&mut self, segment: SegNo, node: bool) {
        let newest = self.tables.newest;
        let log = if node { F2Log::HotNode } else { F2Log::HotData };
        let known = self.summaries.by_segment.get(&segment.0);
        let log = known.map_or(log, |(log, _)| *log);
        let entry = self
            .tables
            .sit
            .entry(segment.0)
            .or_insert_with(SitEntry::free);
        if entry.log.is_node() != node || entry.valid.count() == 0 {
            entry.log = log;
            entry.mtime = newest;
        }
    }

    fn note_owner(
        &mut self,
        segment: SegNo,
        at: u16,
        summary: Summary,
        node: bool,
    ) -> Result<(), CheckError> {
        let kind = if node {
            SummaryKind::Node
        } else {
            SummaryKind::Data
        };
        self.put_summaries(segment, kind, &[(at, summary)])
    }

    /// Gives every changed block of the main area a place of its own.
    fn move_changed(&mut self) -> Result<(), CheckError> {
        // Segments of new blocks go on: the rest of them is free, and few others may be.
        let open = |next: Option<(SegNo, u16)>| next.map(|(segment, next)| Fresh { segment, next });
        let mut room = Room {
            node: open(self.next_new_block(true)),
            data: open(self.next_new_block(false)),
        };
        let geo = self.geo.clone();
        let data: HashMap<u32, (Ino, Nid, u16)> = self
            .scan
            .dir_blocks
            .iter()
            .chain(self.scan.quota_blocks.values())
            .filter(|b| !self.scan.lost.contains(&(b.owner.0.0, b.owner.1)))
            .map(|b| (b.block.0, (b.dir, b.owner.0, b.owner.1)))
            .collect();
        let changed: Vec<BlockAddr> = self.store.changed();
        for block in changed.into_iter().filter(|b| geo.in_main(*b)) {
            let Some((dir, nid, position)) = data.get(&block.0).copied() else {
                continue;
            };
            let version = self.tables.nat.get(&nid.0).map_or(0, |e| e.version);
            let summary = Summary {
                nid,
                version,
                offset: position,
            };
            let to = self.relocate(&mut room, block, summary, false)?;
            if to != block {
                self.put_address(dir, nid, usize::from(position), to)?;
            }
        }
        let changed: std::collections::HashSet<u32> =
            self.store.changed().into_iter().map(|b| b.0).collect();
        let nodes: Vec<(Nid, NatEntry)> = self
            .tables
            .nat
            .iter()
            .filter(|(_, e)| changed.contains(&e.block.0))
            .map(|(nid, e)| (Nid(*nid), *e))
            .collect();
        for (nid, entry) in nodes {
            let summary = Summary {
                nid,
                version: entry.version,
                offset: 0,
            };
            let to = self.relocate(&mut room, entry.block, summary, true)?;
            if let Some(e) = self.tables.nat.get_mut(&nid.0) {
                e.block = to;
            }
        }
        // The SIT says what is in use now.
        let used: Vec<(u32, sit::ValidMap)> = self
            .scan
            .segments
            .iter()
            .map(|(n, u)| (*n, u.map))
            .collect();
        for (segment, map) in used {
            let entry = self
                .tables
                .sit
                .entry(segment)
                .or_insert_with(SitEntry::free);
            entry.valid = map;
        }
        for (segment, (log, _)) in &self.summaries.by_segment {
            let entry = self
                .tables
                .sit
                .entry(*segment)
                .or_insert_with(SitEntry::free);
            if entry.valid.count() == 0 {
                entry.log = *log;
            }
        }
        let free = self.free_segments();
        self.pack.checkpoint.raw.free_segment_count.set(free);
        Ok(())
    }

    /// Puts changed SIT blocks where the new checkpoint looks for them.
    fn write_sit(&mut self, blocks: &mut Blocks) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let per = sit::ENTRIES_PER_BLOCK as u32;
        for index in 0..geo.sit_blocks_used() {
            let copy = self.pack.checkpoint.sit_bitmap.get(index);
            let (Some(old), Some(new)) = (
                geo.sit_block(index, copy),
                geo.sit_block(index, copy.other()),
            ) else {
                continue;
            };
            let before = self.store.read(old, "SIT")?;
            let mut after = before.clone();
            for position in 0..per {
                let segment = index * per + position;
                if segment >= geo.main_segments {
                    break;
                }
                let free = SitEntry::free();
                let entry = self.tables.sit.get(&segment).unwrap_or(&free);
                let _ = sit::set_entry(&mut after, position as usize, entry);
            }
            if before != after {
                blocks.insert(new.0, after.into());
                self.pack.checkpoint.sit_bitmap.set(index, copy.other());
            }
        }
        Ok(())
    }

    /// Puts changed NAT blocks where the new checkpoint looks for them. The NAT bits.
    fn write_nat(&mut self, blocks: &mut Blocks) -> Result<(Vec<u8>, Vec<u8>), CheckError> {
        let geo = self.geo.clone();
        let per = nat::ENTRIES_PER_BLOCK as u32;
        let mut full = vec![0; geo.nat_bitmap_bytes()];
        let mut empty = full.clone();
        for index in 0..geo.nat_blocks() {
            let copy = self.pack.checkpoint.nat_bitmap.get(index);
            let (Some(old), Some(new)) = (
                geo.nat_block(index, copy),
                geo.nat_block(index, copy.other()),
            ) else {
                continue;
            };
            let before = self.store.read(old, "NAT")?;
            let mut after = before.clone();
            let mut used = 0;
            for position in 0..per {
                let nid = index * per + position;
                let at = position as usize;
                let stored = NatBlock::parse(&before).ok().and_then(|b| b.get(at));
                let stored = stored.unwrap_or_default();
                let entry = match self.tables.nat.get(&nid) {
                    Some(entry) => *entry,
                    None if nid < Ino::ROOT.0 => NatEntry {
                        ino: Ino(nid),
                        block: BlockAddr(u32::from(nid > 0)),
                        ..stored
                    },
                    None if stored.is_free() => stored,
                    None => NatEntry {
                        ino: Ino(0),
                        block: BlockAddr::NULL,
                        ..stored
                    },
                };
                used += u32::from(nid == 0 || !entry.is_free());
                let _ = nat::set_entry(&mut after, at, entry);
            }
            let (byte, bit) = (index as usize / 8, 1 << (index % 8));
            if used == per {
                full[byte] |= bit;
            }
            if used == 0 {
                empty[byte] |= bit;
            }
            if before != after {
                blocks.insert(new.0, after.into());
                self.pack.checkpoint.nat_bitmap.set(index, copy.other());
            }
        }
        Ok((full, empty))
    }

    /// Writes the pack that is not the newest.
    fn write_pack(&mut self, bits: NatBits) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let which = self.pack.which.other();
        let orphans: Vec<Ino> = self.tables.orphans.iter().map(|ino| Ino(*ino)).collect();
        let mut body = pack::encode_orphans(&orphans);
        let start_sum = 1 + geo.cp_payload + body.len() as u32;
        let empty = |log: F2Log| SummaryBlock::new(SummaryKind::of(log));
        for log in F2Log::ALL {
            let found = self.summaries.by_segment.values().find(|(l, _)| *l == log);
            let block = found.and_then(|(_, block)| block.clone());
            body.push(block.unwrap_or_else(|| empty(log)).encode_with_checksum());
        }
        let total = 1 + geo.cp_payload + body.len() as u32 + 1;
        let settled = self.quota_settled && !self.quota_marked;
        let cp = &mut self.pack.checkpoint;
        let mut flags = cp.raw.flags();
        flags -= CheckpointFlags::COMPACT_SUM;
        flags |= CheckpointFlags::UMOUNT;
        flags.set(CheckpointFlags::ORPHAN_PRESENT, !orphans.is_empty());
        if geo.features.contains(Features::QUOTA) {
            // Where the files could not be put right the next mount counts anew.
            flags.set(CheckpointFlags::QUOTA_NEED_FSCK, !settled);
        }
        let room = BLOCKS_PER_SEG.saturating_sub(total);
        if pack::nat_bits_blocks(&geo) > room {
            flags -= CheckpointFlags::NAT_BITS;
        }
        cp.raw.ckpt_flags.set(flags.bits());
        let version = cp.raw.checkpoint_ver.get();
        cp.raw.checkpoint_ver.set(version.wrapping_add(1));
        cp.raw.cp_pack_start_sum.set(start_sum);
        cp.raw.cp_pack_total_block_count.set(total);
        let Some(head) = cp.encode(&geo) else {
            return Ok(());
        };
        let start = geo.pack_start(which).0;
        let tail = head[..BLOCK_SIZE].to_vec();
        let mut blocks = Blocks::new();
        let front = head.chunks_exact(BLOCK_SIZE).map(<[u8]>::to_vec);
        for (n, block) in front.chain(body).enumerate() {
            blocks.insert(start + n as u32, block.into());
        }
        if flags.contains(CheckpointFlags::NAT_BITS) {
            let bits = bits.encode(cp);
            let first = start + BLOCKS_PER_SEG - (bits.len() / BLOCK_SIZE) as u32;
            for (n, block) in bits.chunks_exact(BLOCK_SIZE).enumerate() {
                blocks.insert(first + n as u32, block.to_vec().into());
            }
        }
        self.put(blocks)?;
        self.put([(start + total - 1, tail.into())].into())
    }
}
