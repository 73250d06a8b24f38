//! A clean volume: its tables, the summaries of its segments, its logs, and the checkpoint that commits changes of them.
//!
//! Owns: the superblock, the checkpoint, all SIT entries that are not empty, and what was changed of NAT and SSA. Memory grows with the segments in
//! use and with what changes between two commits.
//!
//! # Crash order of a commit
//! Blocks that the committed checkpoint does not use, SIT and NAT blocks in their other copies, summaries of segments; a flush; the other pack without
//! its last block; a flush; its last block; a flush. Until that last block is there, the older pack counts, and nothing that it names was overwritten:
//! a summary block that is written in place differs only in entries of blocks that the older pack does not use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use blockwright_ondisk::f2fs::checkpoint::{ALLOC_LFS, CheckpointFlags, LogHead, verify_block};
use blockwright_ondisk::f2fs::checksum::MAGIC;
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::layout::{Areas, Reserve};
use blockwright_ondisk::f2fs::nat::{self, NatBlock};
use blockwright_ondisk::f2fs::pack::{self, NatBits, PackLayout};
use blockwright_ondisk::f2fs::sit::{self, ValidMap};
use blockwright_ondisk::f2fs::summary::{
    CompactSummaries, JOURNAL_BYTES, Lifetime, NatJournal, SitJournal, SummaryBlock, SummaryKind,
};
use blockwright_ondisk::f2fs::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Checkpoint, Features, Geometry, Log, NatEntry, Nid,
    RawSuperblock, SegNo, SitEntry, Superblock,
};

use super::store::Store;
use crate::error::{ReshapeError, Result};

/// Features that a change of size knows. Read-only volumes have two logs only; zoned devices refuse what is written in place.
const KNOWN: Features = Features::KNOWN
    .difference(Features::ZONED)
    .difference(Features::READ_ONLY);
/// NAT blocks that are kept after they were read.
const NAT_CACHE_BLOCKS: usize = 1024;

/// What a volume can hold, as its checkpoint says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub user_blocks: u64,
    pub reserve: Reserve,
}

/// A clean volume.
pub(crate) struct Volume {
    pub store: Store,
    pub raw: RawSuperblock,
    pub geo: Geometry,
    pub cp: Checkpoint,
    /// The pack that counts.
    which: Copy2,
    lifetime: Lifetime,
    /// Entries that are not empty.
    sit: BTreeMap<u32, SitEntry>,
    /// SIT blocks that the next checkpoint writes.
    sit_changed: BTreeSet<u32>,
    /// NAT blocks that the next checkpoint writes.
    nat_changed: BTreeMap<u32, Vec<u8>>,
    nat_cache: HashMap<u32, Vec<u8>>,
    /// The logs' segments.
    pub heads: BTreeMap<u32, (Log, SummaryBlock)>,
    /// Summaries of other segments that the next checkpoint writes.
    summaries: BTreeMap<u32, SummaryBlock>,
    /// The latest time of a SIT entry.
    newest: u64,
    /// Blocks that were given up since the last checkpoint, which uses them.
    held: BTreeMap<u32, ValidMap>,
}

/// The copies of the superblock, if they are valid.
pub(super) fn read_superblocks(store: &Store) -> Result<[Result<Superblock>; 2]> {
    let bytes = store.bytes();
    if bytes < 2 * BLOCK_SIZE as u64 {
        return Err(ReshapeError::Damaged("the device is too small".into()));
    }
    let both = store.read(BlockAddr(0), 2, "superblock")?;
    Ok([0, 1].map(|copy| {
        Superblock::parse(&both[copy * BLOCK_SIZE..], Some(bytes)).map_err(ReshapeError::from)
    }))
}

/// The superblock that counts.
pub(super) fn superblock(store: &Store) -> Result<Superblock> {
    let [first, second] = read_superblocks(store)?;
    first.or_else(|e| second.map_err(|_| e))
}

/// Writes both copies of the superblock, each durably: the second one first, so that one is whole whatever happens to the other.
pub(super) fn write_superblocks(store: &Store, raw: &RawSuperblock) -> Result<()> {
    const WHAT: &str = "superblock";
    for copy in [1, 0] {
        let mut block = store.read(BlockAddr(copy), 1, WHAT)?;
        // The bytes in front of it may be a boot sector.
        block[SUPERBLOCK_OFFSET..][..SUPERBLOCK_SIZE].copy_from_slice(&raw.to_bytes());
        store.write(BlockAddr(copy), &block, WHAT)?;
        store.flush(WHAT)?;
    }
    Ok(())
}

pub(super) fn refuse(sb: &Superblock) -> Result<()> {
    debug_assert_eq!(sb.raw.magic.get(), MAGIC);
    let unknown = sb.geo.features.unsupported(KNOWN);
    if !unknown.is_empty() {
        return Err(ReshapeError::Unsupported(format!(
            "the size and the quota files of f2fs volumes with {} do not change",
            unknown.join(", ")
        )));
    }
    if sb.raw.devs[0].path[0] != 0 {
        return Err(ReshapeError::Unsupported(
            "the size and the quota files of f2fs volumes on several devices do not change".into(),
        ));
    }
    Ok(())
}

/// The head of a pack that was written whole, with its version.
fn read_pack(
    store: &Store,
    geo: &Geometry,
    which: Copy2,
) -> Result<std::result::Result<(u64, Vec<u8>), blockwright_ondisk::f2fs::FormatError>> {
    let start = geo.pack_start(which);
    let head = store.read(start, 1 + geo.cp_payload, "checkpoint")?;
    let total = match verify_block(&head) {
        Ok((raw, _)) => raw.cp_pack_total_block_count.get(),
        Err(e) => return Ok(Err(e)),
    };
    // Impossible numbers are refused with the head's other fields.
    let tail = total.clamp(2, BLOCKS_PER_SEG) - 1;
    let tail = store.read(BlockAddr(start.0 + tail), 1, "checkpoint")?;
    Ok(pack::verify_pair(&head, &tail).map(|version| (version, head)))
}

fn newest_pack(store: &Store, geo: &Geometry) -> Result<(Copy2, Checkpoint)> {
    let packs = [
        read_pack(store, geo, Copy2::First)?,
        read_pack(store, geo, Copy2::Second)?,
    ];
    let version = |n: usize| {
        packs[n]
            .as_ref()
            .map(|(version, _)| *version)
            .map_err(Clone::clone)
    };
    let which = pack::newest(version(0), version(1))?;
    let [first, second] = packs;
    let (_, head) = match which {
        Copy2::First => first?,
        Copy2::Second => second?,
    };
    Ok((which, Checkpoint::parse(&head, geo)?))
}

fn check_flags(cp: &Checkpoint) -> Result<()> {
    let flags = cp.flags();
    if flags.intersects(CheckpointFlags::ERROR | CheckpointFlags::FSCK | CheckpointFlags::RESIZEFS)
    {
        return Err(ReshapeError::NotClean("the volume has errors"));
    }
    if flags.intersects(CheckpointFlags::DISABLED | CheckpointFlags::DISABLED_QUICK) {
        return Err(ReshapeError::NotClean("checkpoints are disabled"));
    }
    if !flags.contains(CheckpointFlags::UMOUNT) || flags.contains(CheckpointFlags::ORPHAN_PRESENT) {
        return Err(ReshapeError::NotClean(
            "the volume was not unmounted cleanly",
        ));
    }
    Ok(())
}

impl Volume {
    /// Reads a volume. Nothing is written.
    ///
    /// # Errors
    /// `NotClean` for volumes with errors and for those that must be recovered; `Unsupported`; `Format` and `Damaged`.
    pub fn open(store: Store) -> Result<Self> {
        let sb = superblock(&store)?;
        refuse(&sb)?;
        let geo = sb.geo;
        let (which, cp) = newest_pack(&store, &geo)?;
        check_flags(&cp)?;
        let mut volume = Self {
            store,
            raw: sb.raw,
            geo,
            cp,
            which,
            lifetime: Lifetime::default(),
            sit: BTreeMap::new(),
            sit_changed: BTreeSet::new(),
            nat_changed: BTreeMap::new(),
            nat_cache: HashMap::new(),
            heads: BTreeMap::new(),
            summaries: BTreeMap::new(),
            held: BTreeMap::new(),
            newest: 0,
        };
        let (nat, sit) = volume.load_pack()?;
        volume.load_sit(&sit)?;
        for (nid, entry) in nat.0 {
            volume.set_nat(nid, entry)?;
        }
        Ok(volume)
    }

    /// Reads the summaries of the logs' segments, and the journals.
    fn load_pack(&mut self) -> Result<(NatJournal, SitJournal)> {
        const WHAT: &str = "summaries";
        let (geo, cp) = (&self.geo, &self.cp);
        let layout = PackLayout::new(cp, geo)?;
        let start = geo.pack_start(self.which).0;
        let part = |first: u32, count: u32| self.store.read(BlockAddr(start + first), count, WHAT);
        let whole = |first: u32| -> Result<Vec<SummaryBlock>> {
            let blocks = part(first, 3)?;
            let parsed = blocks.chunks_exact(BLOCK_SIZE).map(SummaryBlock::parse);
            Ok(parsed.collect::<std::result::Result<_, _>>()?)
        };
        let first = layout.data_summaries;
        let Some(nodes) = layout.node_summaries else {
            return Err(ReshapeError::NotClean(
                "the volume was not unmounted cleanly",
            ));
        };
        let (nat, sit, mut all);
        if cp.flags().contains(CheckpointFlags::COMPACT_SUM) {
            let compact = CompactSummaries::parse(&part(first, nodes - first)?, &cp.raw, geo)?;
            (nat, sit) = (compact.nat, compact.sit);
            let block = |entries| SummaryBlock {
                entries,
                ..SummaryBlock::new(SummaryKind::Data)
            };
            all = compact.entries.map(block).to_vec();
        } else {
            all = whole(first)?;
            nat = NatJournal::parse(&all[0].journal, geo)?;
            sit = SitJournal::parse(&all[2].journal, geo)?;
        }
        let nodes = whole(nodes)?;
        let lifetime = Lifetime::parse(&nodes[0].journal);
        all.extend(nodes);
        let mut heads = BTreeMap::new();
        for (log, mut block) in Log::ALL.into_iter().zip(all) {
            if block.kind != SummaryKind::of(log) {
                return Err(ReshapeError::Damaged(format!(
                    "the summaries of the {log} log are of the wrong kind"
                )));
            }
            block.journal = vec![0; JOURNAL_BYTES];
            heads.insert(cp.raw.log(log).segment.0, (log, block));
        }
        (self.lifetime, self.heads) = (lifetime, heads);
        Ok((nat, sit))
    }

    fn load_sit(&mut self, journal: &SitJournal) -> Result<()> {
        const WHAT: &str = "SIT";
        let per = sit::ENTRIES_PER_BLOCK as u32;
        let used = self.geo.sit_blocks_used();
        let bitmap = &self.cp.sit_bitmap;
        let place = |index: u32| self.geo.sit_block(index, bitmap.get(index));
        let journaled: BTreeSet<u32> = journal.0.iter().map(|(seg, _)| seg.0).collect();
        let mut index = 0;
        while index < used {
            let Some(first) = place(index) else { break };
            // Neighbours that are the same copy are read together.
            let run = (1..256.min(used - index))
                .take_while(|n| place(index + n) == Some(BlockAddr(first.0 + n)))
                .count() as u32
                + 1;
            let blocks = self.store.read(first, run, WHAT)?;
            for (n, block) in blocks.chunks_exact(BLOCK_SIZE).enumerate() {
                for position in 0..per {
                    let seg = (index + n as u32) * per + position;
                    if seg >= self.geo.main_segments || journaled.contains(&seg) {
                        continue;
                    }
                    let raw = sit::entry_at(block, position as usize)?;
                    let entry = SitEntry::parse(raw, SegNo(seg))?;
                    if entry != SitEntry::free() {
                        self.sit.insert(seg, entry);
                    }
                }
            }
            index += run;
        }
        for (seg, entry) in &journal.0 {
            self.set_sit(seg.0, *entry);
        }
        self.newest = self.sit.values().map(|e| e.mtime).max().unwrap_or(0);
        Ok(())
    }

    /// The areas, as the superblock has them.
    pub fn areas(&self) -> Areas {
        Areas::of(&self.raw)
    }

    /// What the volume can hold.
    pub fn counts(&self) -> Counts {
        Counts {
            user_blocks: self.cp.raw.user_block_count.get(),
            reserve: Reserve {
                reserved: self.cp.raw.rsvd_segment_count.get(),
                overprovisioned: self.cp.raw.overprov_segment_count.get(),
            },
        }
    }

    /// Changes what the volume can hold, with the next checkpoint.
    pub fn set_counts(&mut self, counts: &Counts) {
        let raw = &mut self.cp.raw;
        raw.user_block_count.set(counts.user_blocks);
        raw.rsvd_segment_count.set(counts.reserve.reserved);
        raw.overprov_segment_count
            .set(counts.reserve.overprovisioned);
    }

    /// The SIT's entry of a segment.
    pub fn sit(&self, seg: u32) -> SitEntry {
        self.sit.get(&seg).copied().unwrap_or_else(SitEntry::free)
    }

    /// Segments with blocks in use, and others that have an entry.
    pub fn sit_entries(&self) -> impl Iterator<Item = (u32, &SitEntry)> {
        self.sit.iter().map(|(seg, entry)| (*seg, entry))
    }

    pub fn set_sit(&mut self, seg: u32, entry: SitEntry) {
        self.sit_changed.insert(self.geo.sit_position(SegNo(seg)).0);
        self.sit.insert(seg, entry);
    }

    /// Blocks of a segment that the next checkpoint uses, the committed one, or both.
    pub fn taken(&self, seg: u32) -> ValidMap {
        let mut map = self.sit(seg).valid;
        if let Some(held) = self.held.get(&seg) {
            for (byte, held) in map.0.iter_mut().zip(held.0) {
                *byte |= held;
            }
        }
        map
    }

    /// The next checkpoint does not use a block; it is free for others after it.
    pub fn give_up(&mut self, seg: u32, at: u16) {
        let mut entry = self.sit(seg);
        entry.valid.set(at, false);
        self.set_sit(seg, entry);
        self.held.entry(seg).or_default().set(at, true);
    }

    fn nat_block(&mut self, index: u32) -> Result<&[u8]> {
        if self.nat_changed.contains_key(&index) {
            return Ok(&self.nat_changed[&index]);
        }
        if self.nat_cache.len() >= NAT_CACHE_BLOCKS && !self.nat_cache.contains_key(&index) {
            self.nat_cache.clear();
        }
        match self.nat_cache.entry(index) {
            std::collections::hash_map::Entry::Occupied(e) => Ok(e.into_mut()),
            std::collections::hash_map::Entry::Vacant(e) => {
                let copy = self.cp.nat_bitmap.get(index);
                let place = self.geo.nat_block(index, copy).ok_or_else(|| {
                    ReshapeError::Damaged(format!("NAT block {index} does not exist"))
                })?;
                Ok(e.insert(self.store.read(place, 1, "NAT")?))
            }
        }
    }

    /// A block of the NAT, as the next checkpoint has it.
    pub fn nat_bytes(&mut self, index: u32) -> Result<Vec<u8>> {
        self.nat_block(index).map(<[u8]>::to_vec)
    }

    /// The NAT's entry of a node.
    pub fn nat(&mut self, nid: Nid) -> Result<NatEntry> {
        self.geo.check_nid(nid)?;
        let (index, position) = self.geo.nat_position(nid);
        let entry = NatBlock::parse(self.nat_block(index)?)?.get(position);
        Ok(entry.unwrap_or_default())
    }

    pub fn set_nat(&mut self, nid: Nid, entry: NatEntry) -> Result<()> {
        self.geo.check_nid(nid)?;
        let (index, position) = self.geo.nat_position(nid);
        if !self.nat_changed.contains_key(&index) {
            let bytes = self.nat_bytes(index)?;
            self.nat_cache.remove(&index);
            self.nat_changed.insert(index, bytes);
        }
        let block = self.nat_changed.get_mut(&index);
        block
            .and_then(|block| nat::set_entry(block, position, entry))
            .ok_or_else(|| ReshapeError::Damaged(format!("node {nid} has no entry in the NAT")))
    }

    /// The summaries of a segment, as the next checkpoint has them.
    pub fn summary(&self, seg: u32) -> Result<SummaryBlock> {
        if let Some((_, block)) = self.heads.get(&seg) {
            return Ok(block.clone());
        }
        if let Some(block) = self.summaries.get(&seg) {
            return Ok(block.clone());
        }
        let place = self
            .geo
            .ssa_block(SegNo(seg))
            .ok_or_else(|| ReshapeError::Damaged(format!("segment {seg} has no summary block")))?;
        let block = self.store.read(place, 1, "SSA")?;
        Ok(SummaryBlock::parse(&block)?)
    }

    /// Begins the summaries of a segment in which nothing is in use: what was written there in the past means nothing.
    pub fn new_summary(&mut self, seg: u32, kind: SummaryKind) {
        self.summaries.insert(seg, SummaryBlock::new(kind));
    }

    /// Changes the summaries of a segment that is no log's.
    pub fn summary_mut(&mut self, seg: u32) -> Result<&mut SummaryBlock> {
        use std::collections::btree_map::Entry;
        if !self.summaries.contains_key(&seg) {
            let block = self.summary(seg)?;
            self.summaries.insert(seg, block);
        }
        match self.summaries.entry(seg) {
            Entry::Occupied(block) => Ok(block.into_mut()),
            Entry::Vacant(_) => Err(ReshapeError::Damaged(format!(
                "segment {seg} has no summaries"
            ))),
        }
    }

    /// A log continues in a free segment. What it has written becomes an ordinary segment.
    pub fn move_log(&mut self, log: Log, to: u32) {
        let from = self.cp.raw.log(log).segment;
        if let Some((_, block)) = self.heads.remove(&from.0)
            && !self.taken(from.0).is_empty()
        {
            self.summaries.insert(from.0, block);
        }
        self.heads
            .insert(to, (log, SummaryBlock::new(SummaryKind::of(log))));
        self.cp.raw.set_log(
            log,
            LogHead {
                segment: SegNo(to),
                offset: 0,
                alloc: ALLOC_LFS,
            },
        );
    }

    /// Segments that hold nothing and are no log's.
    pub fn free_segments(&self) -> u32 {
        let used = self
            .sit
            .iter()
            .filter(|(seg, entry)| !entry.valid.is_empty() && !self.heads.contains_key(seg));
        let used = used.count() + self.heads.len();
        self.geo.main_segments.saturating_sub(used as u32)
    }

    /// Segments that hold something now or in the committed state, and those of the logs.
    pub fn busy_segments(&self) -> BTreeSet<u32> {
        let used = self.sit.iter().filter(|(_, entry)| !entry.valid.is_empty());
        let used = used.map(|(seg, _)| *seg);
        used.chain(self.held.keys().copied())
            .chain(self.heads.keys().copied())
            .collect()
    }

    /// When a segment was last written, on the volume's own clock.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Blocks in use.
    pub fn used_blocks(&self) -> u64 {
        let counts = self
            .sit
            .values()
            .map(|entry| u64::from(entry.valid.count()));
        counts.sum()
    }

    /// Writes SIT blocks anew although no entry of theirs has changed, also those behind the last segment.
    pub fn rewrite_sit(&mut self, blocks: std::ops::Range<u32>) {
        self.sit_changed.extend(blocks);
    }

    /// A SIT block as the next checkpoint has it. Segments without an entry, and those that do not exist, are free.
    pub fn encode_sit(&self, index: u32) -> Vec<u8> {
        let per = sit::ENTRIES_PER_BLOCK as u32;
        let mut block = vec![0; BLOCK_SIZE];
        let first = index.saturating_mul(per);
        for (seg, entry) in self.sit.range(first..first.saturating_add(per)) {
            // The position is one of the block's.
            let _in_range = sit::set_entry(&mut block, (seg - first) as usize, entry);
        }
        block
    }

    /// Commits all changes: the next checkpoint. `free_segments` is what it says of them.
    pub fn commit_with(&mut self, free_segments: u32) -> Result<()> {
        for (seg, block) in std::mem::take(&mut self.summaries) {
            if let Some(place) = self.geo.ssa_block(SegNo(seg)) {
                self.store
                    .write(place, &block.encode_with_checksum(), "SSA")?;
            }
        }
        for index in std::mem::take(&mut self.sit_changed) {
            let copy = self.cp.sit_bitmap.get(index).other();
            if let Some(place) = self.geo.sit_block(index, copy) {
                self.store.write(place, &self.encode_sit(index), "SIT")?;
                self.cp.sit_bitmap.set(index, copy);
            }
        }
        for (index, block) in std::mem::take(&mut self.nat_changed) {
            let copy = self.cp.nat_bitmap.get(index).other();
            if let Some(place) = self.geo.nat_block(index, copy) {
                self.store.write(place, &block, "NAT")?;
                self.cp.nat_bitmap.set(index, copy);
            }
        }
        self.nat_cache.clear();
        self.store.flush("tables")?;
        self.cp.raw.free_segment_count.set(free_segments);
        let version = self.cp.raw.checkpoint_ver.get().wrapping_add(1);
        let which = self.which.other();
        let bits = NatBits::unknown(&self.geo);
        self.write_pack(&self.geo.clone(), which, version, &bits)?;
        self.which = which;
        self.held.clear();
        Ok(())
    }

    /// Commits all changes.
    pub fn commit(&mut self) -> Result<()> {
        self.commit_with(self.free_segments())
    }

    /// Writes a pack of the volume's checkpoint, durably. Of a volume that becomes another one, `geo` is the new shape.
    pub fn write_pack(
        &mut self,
        geo: &Geometry,
        which: Copy2,
        version: u64,
        bits: &NatBits,
    ) -> Result<()> {
        const WHAT: &str = "checkpoint";
        let mut body = Vec::with_capacity(6 * BLOCK_SIZE);
        for log in Log::ALL {
            let head = self.cp.raw.log(log).segment.0;
            let (_, block) = self
                .heads
                .get(&head)
                .ok_or_else(|| ReshapeError::Damaged(format!("the {log} log has no segment")))?;
            let mut block = block.clone();
            if log == Log::HotNode {
                block.journal = self.lifetime.encode();
            }
            body.extend(block.encode_with_checksum());
        }
        let start_sum = 1 + geo.cp_payload;
        let total = start_sum + Log::ALL.len() as u32 + 1;
        let bit_blocks = pack::nat_bits_blocks(geo);
        let mut flags = self.cp.flags();
        // Blocks that moved away were not discarded.
        flags -= CheckpointFlags::COMPACT_SUM | CheckpointFlags::TRIMMED;
        flags |= CheckpointFlags::UMOUNT;
        if total + bit_blocks > BLOCKS_PER_SEG {
            flags -= CheckpointFlags::NAT_BITS;
        }
        let raw = &mut self.cp.raw;
        raw.ckpt_flags.set(flags.bits());
        raw.checkpoint_ver.set(version);
        raw.cp_pack_start_sum.set(start_sum);
        raw.cp_pack_total_block_count.set(total);
        let mut front = self.cp.encode(geo).ok_or_else(|| {
            ReshapeError::Unsupported("the version bitmaps do not fit into a checkpoint".into())
        })?;
        let tail = front[..BLOCK_SIZE].to_vec();
        front.extend(body);
        let start = geo.pack_start(which).0;
        self.store.write(BlockAddr(start), &front, WHAT)?;
        if flags.contains(CheckpointFlags::NAT_BITS) {
            let at = BlockAddr(start + BLOCKS_PER_SEG - bit_blocks);
            self.store.write(at, &bits.encode(&self.cp), WHAT)?;
        }
        self.store.flush(WHAT)?;
        self.store
            .write(BlockAddr(start + total - 1), &tail, WHAT)?;
        self.store.flush(WHAT)
    }

    /// Writes the superblock, in both copies. The volume's shape is read from it again.
    pub fn write_superblocks(&mut self, raw: RawSuperblock) -> Result<()> {
        let sb = Superblock::parse(&raw.to_block(), Some(self.store.bytes()))?;
        write_superblocks(&self.store, &raw)?;
        (self.raw, self.geo) = (raw, sb.geo);
        Ok(())
    }

    /// Makes the copies of the superblock equal, if a change was interrupted between them.
    pub fn even_superblocks(&self) -> Result<()> {
        let copies = read_superblocks(&self.store)?;
        let equal = copies.iter().all(|copy| {
            copy.as_ref()
                .is_ok_and(|sb| sb.raw.to_bytes() == self.raw.to_bytes())
        });
        match equal {
            true => Ok(()),
            false => write_superblocks(&self.store, &self.raw),
        }
    }
}
