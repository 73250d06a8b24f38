//! SIT, NAT, SSA and the checkpoint packs of a planned volume.

use super::plan::Plan;
use crate::options::Before;
use crate::{MkfsError, Result};
use blockwright_ondisk::f2fs::checkpoint::{ALLOC_LFS, LogHead, VersionBitmap};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::pack::{NatBits, nat_bits_blocks};
use blockwright_ondisk::f2fs::summary::{
    CompactSummaries, NatJournal, SitJournal, SummaryBlock, SummaryKind, compact_blocks,
};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Checkpoint, CheckpointFlags, FormatError, Ino, Log,
    NatEntry, Nid, RawCheckpoint, SegNo, SitEntry, Summary, nat, sit,
};
use std::collections::BTreeMap;

/// The SIT's blocks that describe segments in use.
pub(crate) fn sit_blocks(plan: &Plan) -> Vec<(BlockAddr, Vec<u8>)> {
    let geo = &plan.shape.geo;
    let mut blocks: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for log in Log::ALL {
        for (seg, count) in plan.places.segments(log, plan.logs.used(log)) {
            let mut entry = SitEntry::free();
            entry.log = log;
            for n in 0..count {
                entry.valid.set(n, true);
            }
            let (index, position) = geo.sit_position(seg);
            let block = blocks.entry(index).or_insert_with(|| vec![0; BLOCK_SIZE]);
            // The position is one of the block's.
            let _in_range = sit::set_entry(block, position, &entry);
        }
    }
    blocks
        .into_iter()
        .filter_map(|(index, bytes)| Some((geo.sit_block(index, Copy2::First)?, bytes)))
        .collect()
}

/// The NAT's blocks that have numbers in use, and the bits that say which blocks are full or empty.
pub(crate) fn nat_blocks(plan: &Plan) -> (Vec<(BlockAddr, Vec<u8>)>, NatBits) {
    let geo = &plan.shape.geo;
    let per = nat::ENTRIES_PER_BLOCK;
    let count = (plan.next_nid as usize).div_ceil(per);
    let mut bytes = vec![0u8; count * BLOCK_SIZE];
    // Number 0 is never given out.
    let mut used = vec![0usize; count];
    used[0] = 1;
    let mut set = |nid: Nid, ino: Ino, block: BlockAddr| {
        let (index, position) = geo.nat_position(nid);
        let entry = NatEntry {
            version: 0,
            ino,
            block,
        };
        let at = index as usize * BLOCK_SIZE;
        let _in_range = nat::set_entry(&mut bytes[at..at + BLOCK_SIZE], position, entry);
        used[index as usize] += 1;
    };
    // The two inodes that exist in memory only are taken.
    for ino in [Ino::NODE, Ino::META] {
        set(ino.nid(), ino, BlockAddr(1));
    }
    for (log, nodes) in Log::NODE.into_iter().zip(&plan.nodes) {
        for (index, node) in nodes.iter().enumerate() {
            let index = index as u64;
            let place = super::logs::Place { log, index };
            set(node.nid, node.ino, plan.places.address(place));
        }
    }
    let mut bits = NatBits {
        full: vec![0; geo.nat_bitmap_bytes()],
        empty: vec![0xFF; geo.nat_bitmap_bytes()],
    };
    for (n, used) in used.iter().enumerate() {
        let bit = 1u8 << (n % 8);
        if *used > 0 {
            bits.empty[n / 8] &= !bit;
        }
        if *used == per {
            bits.full[n / 8] |= bit;
        }
    }
    let blocks = bytes
        .chunks(BLOCK_SIZE)
        .enumerate()
        .filter_map(|(n, b)| Some((geo.nat_block(n as u32, Copy2::First)?, b.to_vec())))
        .collect();
    (blocks, bits)
}

/// A log's summaries, segment by segment; the last one is the head's.
fn segment_summaries(plan: &Plan, log: Log) -> Vec<(SegNo, Vec<Summary>)> {
    let mut all = plan.logs.summaries(log);
    let segments = plan.places.segments(log, plan.logs.used(log));
    segments
        .map(|(seg, count)| (seg, all.by_ref().take(usize::from(count)).collect()))
        .collect()
}

fn summary_block(log: Log, mut entries: Vec<Summary>) -> SummaryBlock {
    entries.resize(BLOCKS_PER_SEG as usize, Summary::default());
    let mut block = SummaryBlock::new(SummaryKind::of(log));
    block.entries = entries;
    block
}

/// The SSA's blocks of full segments. Those of the heads are in the checkpoint.
pub(crate) fn ssa_blocks(plan: &Plan) -> Vec<(BlockAddr, Vec<u8>)> {
    let mut out = Vec::new();
    for log in Log::ALL {
        let mut segments = segment_summaries(plan, log);
        segments.pop();
        for (seg, entries) in segments {
            if let Some(block) = plan.shape.geo.ssa_block(seg) {
                out.push((block, summary_block(log, entries).encode_with_checksum()));
            }
        }
    }
    out.sort_by_key(|(block, _)| *block);
    out
}

/// What a head's segment holds so far.
fn head_summaries(plan: &Plan, log: Log) -> Vec<Summary> {
    let last = segment_summaries(plan, log).pop();
    last.map_or_else(Vec::new, |(_, entries)| entries)
}

/// Both packs as runs of blocks: the first is valid, the second is older.
pub(crate) fn packs(plan: &Plan, bits: &NatBits) -> Result<Vec<(BlockAddr, Vec<u8>)>> {
    let geo = &plan.shape.geo;
    let mut cp = checkpoint(plan);
    let payload = geo.cp_payload;
    let start_sum = 1 + payload;
    let compact = compact_blocks(&cp.raw);
    // As many whole blocks would do: then they are simpler.
    let data_blocks = if compact < 3 { compact } else { 3 };
    let total = start_sum + data_blocks + 3 + 1;
    let mut flags = CheckpointFlags::UMOUNT;
    if data_blocks < 3 {
        flags |= CheckpointFlags::COMPACT_SUM;
    }
    let bit_blocks = nat_bits_blocks(geo);
    let with_bits = total + bit_blocks <= BLOCKS_PER_SEG;
    if with_bits {
        flags |= CheckpointFlags::NAT_BITS;
    }
    if plan.before == Before::Zeroes {
        // Nothing was ever written to what is free.
        flags |= CheckpointFlags::TRIMMED;
    }
    cp.raw.ckpt_flags.set(flags.bits());
    cp.raw.cp_pack_start_sum.set(start_sum);
    cp.raw.cp_pack_total_block_count.set(total);
    let middle = summaries(plan, &cp.raw, data_blocks)?;
    let no_room = || MkfsError::Option {
        option: "--size",
        reason: FormatError::CpPackRoom {
            what: "version bitmaps",
            needed: 1,
            found: 0,
        }
        .to_string(),
    };
    let mut out = Vec::new();
    // The pack with the higher version counts.
    for (which, version) in [(Copy2::First, plan.shape.version), (Copy2::Second, 0)] {
        cp.raw.checkpoint_ver.set(version);
        let head = cp.encode(geo).ok_or_else(no_room)?;
        let start = geo.pack_start(which);
        let mut pack = head.clone();
        pack.extend_from_slice(&middle);
        // The tail is the head again, without what lies behind it.
        pack.extend_from_slice(&head[..BLOCK_SIZE]);
        out.push((start, pack));
        if with_bits {
            let at = start.0 + BLOCKS_PER_SEG - bit_blocks;
            out.push((BlockAddr(at), bits.encode(&cp)));
        }
    }
    Ok(out)
}

fn checkpoint(plan: &Plan) -> Checkpoint {
    let geo = &plan.shape.geo;
    let mut raw = RawCheckpoint::zeroed();
    let nodes: usize = plan.nodes.iter().map(Vec::len).sum();
    raw.user_block_count.set(plan.shape.user_blocks());
    raw.valid_block_count.set(plan.logs.used_all());
    raw.rsvd_segment_count.set(plan.shape.reserve.reserved);
    raw.overprov_segment_count
        .set(plan.shape.reserve.overprovisioned);
    raw.free_segment_count.set(plan.free_segments());
    raw.valid_node_count.set(nodes as u32);
    raw.valid_inode_count.set(plan.inodes);
    raw.next_free_nid.set(plan.next_nid);
    for log in Log::ALL {
        let last = plan.places.segments(log, plan.logs.used(log)).last();
        if let Some((segment, offset)) = last {
            let head = LogHead {
                segment,
                offset,
                alloc: ALLOC_LFS,
            };
            raw.set_log(log, head);
        }
    }
    Checkpoint {
        raw,
        sit_bitmap: VersionBitmap::new(geo.sit_bitmap_bytes()),
        nat_bitmap: VersionBitmap::new(geo.nat_bitmap_bytes()),
        checksum: 0,
    }
}

/// Data and node summaries of a pack. The journals are empty: the tables' own blocks say it all.
fn summaries(plan: &Plan, raw: &RawCheckpoint, data_blocks: u32) -> Result<Vec<u8>> {
    let mut out = if data_blocks < 3 {
        let all = CompactSummaries {
            nat: NatJournal::default(),
            sit: SitJournal::default(),
            entries: Log::DATA.map(|log| head_summaries(plan, log)),
        };
        all.encode(raw)
            .ok_or_else(|| MkfsError::features("summaries do not fit"))?
    } else {
        let blocks = Log::DATA
            .map(|log| summary_block(log, head_summaries(plan, log)).encode_with_checksum());
        blocks.concat()
    };
    for log in Log::NODE {
        out.extend(summary_block(log, head_summaries(plan, log)).encode_with_checksum());
    }
    Ok(out)
}
