//! Another layout: all metadata is written to blocks that nothing uses, and then one superblock names it.
//!
//! Nodes and data stay where they are, and so do their addresses: only segments get other numbers, as the main area begins elsewhere.
//!
//! # Crash order
//! Tables, summaries and both checkpoint packs in the new place; a flush; the second superblock; a flush; the first one; a flush. A superblock is in one
//! block, and all that changes in it (but its checksum) in one sector. As long as one copy is the old one, the old metadata is whole as well.

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::checkpoint::VersionBitmap;
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::layout::Areas;
use blockwright_ondisk::f2fs::nat::NatBlock;
use blockwright_ondisk::f2fs::pack::NatBits;
use blockwright_ondisk::f2fs::sit;
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, Geometry, Log, SegNo, SitEntry, Superblock,
};

use super::volume::{Counts, Volume};
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

/// Blocks of a table that are written at once.
const RUN: u32 = 512;

/// How segments are counted anew.
struct Renumber {
    old_main: u32,
    new_main: u32,
    new_segments: u32,
}

impl Renumber {
    /// The new number of a segment; `None` outside of the new main area.
    fn seg(&self, old: u32) -> Option<u32> {
        let at = i64::from(self.old_main) + i64::from(old) * i64::from(BLOCKS_PER_SEG);
        let at = at - i64::from(self.new_main);
        let new = u32::try_from(at).ok()? / BLOCKS_PER_SEG;
        (new < self.new_segments).then_some(new)
    }
}

/// Gives a volume other areas. Nothing that it uses lies in the new metadata areas, or behind the new end; it is committed.
///
/// # Errors
/// `Damaged` when something does. Nothing counts then.
pub(crate) fn switch(volume: Volume, areas: &Areas, counts: &Counts) -> Result<Volume> {
    let mut raw = volume.raw;
    areas.store(&mut raw);
    raw.set_checksum();
    let bytes = volume.store.bytes();
    let geo = Superblock::parse(&raw.to_block(), Some(bytes))?.geo;
    let store = volume.store.clone();
    let mut volume = volume;
    if !apart(&volume.areas(), areas) {
        return Err(ReshapeError::Damaged(
            "the new metadata would overwrite the old".into(),
        ));
    }
    write_layout(&mut volume, &geo, counts)?;
    volume.write_superblocks(raw)?;
    drop(volume);
    Volume::open(store)
}

/// Whether the metadata areas of both layouts have no block in common.
pub(crate) fn apart(a: &Areas, b: &Areas) -> bool {
    u64::from(a.start) >= b.main_start() || u64::from(b.start) >= a.main_start()
}

fn write_layout(volume: &mut Volume, geo: &Geometry, counts: &Counts) -> Result<()> {
    let renumber = Renumber {
        old_main: volume.geo.main.0,
        new_main: geo.main.0,
        new_segments: geo.main_segments,
    };
    let outside = |seg: u32| {
        ReshapeError::Damaged(format!("segment {seg} is in use outside of the new layout"))
    };
    let aligned = volume
        .geo
        .main
        .0
        .abs_diff(geo.main.0)
        .is_multiple_of(BLOCKS_PER_SEG * geo.segs_per_sec);
    if !aligned {
        return Err(ReshapeError::Damaged(
            "the new main area does not begin with a section".into(),
        ));
    }
    // The SIT, and with it which summaries are worth copying.
    let mut entries: BTreeMap<u32, SitEntry> = BTreeMap::new();
    let mut summaries: Vec<(u32, u32)> = Vec::new();
    for (seg, entry) in volume.sit_entries() {
        match renumber.seg(seg) {
            Some(new) => {
                entries.insert(new, *entry);
                if !entry.valid.is_empty() && !volume.heads.contains_key(&seg) {
                    summaries.push((seg, new));
                }
            }
            None if entry.valid.is_empty() => {}
            None => return Err(outside(seg)),
        }
    }
    write_sit(volume, geo, &entries)?;
    write_summaries(volume, geo, &summaries)?;
    let bits = write_nat(volume, geo)?;
    // The logs.
    let mut heads = BTreeMap::new();
    for (seg, (log, block)) in std::mem::take(&mut volume.heads) {
        let new = renumber.seg(seg).ok_or_else(|| outside(seg))?;
        heads.insert(new, (log, block));
    }
    for log in Log::ALL {
        let mut head = volume.cp.raw.log(log);
        head.segment = SegNo(
            renumber
                .seg(head.segment.0)
                .ok_or_else(|| outside(head.segment.0))?,
        );
        volume.cp.raw.set_log(log, head);
    }
    let busy = entries
        .iter()
        .filter(|(seg, entry)| !entry.valid.is_empty() && !heads.contains_key(seg));
    let free = geo.main_segments - (busy.count() + heads.len()) as u32;
    volume.heads = heads;
    volume.cp.sit_bitmap = VersionBitmap::new(geo.sit_bitmap_bytes());
    volume.cp.nat_bitmap = VersionBitmap::new(geo.nat_bitmap_bytes());
    volume.cp.raw.free_segment_count.set(free);
    volume.set_counts(counts);
    let version = volume.cp.raw.checkpoint_ver.get();
    // The next checkpoint goes to the second pack, as it is the older one.
    volume.write_pack(geo, Copy2::Second, version.wrapping_add(1), &bits)?;
    volume.write_pack(geo, Copy2::First, version.wrapping_add(2), &bits)
}

/// Writes the first copy of the whole SIT.
fn write_sit(volume: &Volume, geo: &Geometry, entries: &BTreeMap<u32, SitEntry>) -> Result<()> {
    const WHAT: &str = "SIT";
    let per = sit::ENTRIES_PER_BLOCK as u32;
    let used = geo.sit_blocks();
    let place = |index: u32| {
        geo.sit_block(index, Copy2::First)
            .ok_or_else(|| ReshapeError::Damaged(format!("there is no SIT block {index}")))
    };
    let mut index = 0;
    while index < used {
        let count = RUN.min(used - index);
        let range = index * per..(index + count).saturating_mul(per);
        if entries.range(range.clone()).next().is_none() {
            volume.store.zero(place(index)?, count, WHAT)?;
        } else {
            let mut bytes = vec![0; count as usize * BLOCK_SIZE];
            for (seg, entry) in entries.range(range) {
                let (block, position) = geo.sit_position(SegNo(*seg));
                let at = (block - index) as usize * BLOCK_SIZE;
                // The position is one of the block's.
                let _in_range = sit::set_entry(&mut bytes[at..at + BLOCK_SIZE], position, entry);
            }
            volume.store.write(place(index)?, &bytes, WHAT)?;
        }
        index += count;
    }
    Ok(())
}

/// Copies the summaries of segments in use.
fn write_summaries(volume: &Volume, geo: &Geometry, pairs: &[(u32, u32)]) -> Result<()> {
    const WHAT: &str = "SSA";
    let mut rest = pairs;
    while let Some((old, new)) = rest.first() {
        let run = rest
            .iter()
            .take(RUN as usize)
            .enumerate()
            .take_while(|(n, (seg, _))| *seg == old + *n as u32)
            .count();
        let (Some(from), Some(to)) = (
            volume.geo.ssa_block(SegNo(*old)),
            geo.ssa_block(SegNo(*new)),
        ) else {
            return Err(ReshapeError::Damaged(format!(
                "segment {old} has no summary block"
            )));
        };
        volume.store.copy(from, to, run as u32, WHAT)?;
        rest = &rest[run..];
    }
    Ok(())
}

/// Copies the NAT to the first copy of the new one; what is known of its blocks then.
fn write_nat(volume: &mut Volume, geo: &Geometry) -> Result<NatBits> {
    const WHAT: &str = "NAT";
    let mut bits = NatBits::unknown(geo);
    let (old, new) = (volume.geo.nat_blocks(), geo.nat_blocks());
    let place = |index: u32| {
        geo.nat_block(index, Copy2::First)
            .ok_or_else(|| ReshapeError::Damaged(format!("there is no NAT block {index}")))
    };
    let mut index = 0;
    while index < new {
        // A run ends with its segment, where the other copy begins.
        let watch = &volume.store.watch;
        watch.tell(Phase::Metadata, u64::from(index), u64::from(new))?;
        let count = (RUN - index % RUN).min(new - index);
        let mut bytes = Vec::with_capacity(count as usize * BLOCK_SIZE);
        for at in index..index + count {
            let block = match at < old {
                true => volume.nat_bytes(at)?,
                false => vec![0; BLOCK_SIZE],
            };
            let entries = NatBlock::parse(&block)?.iter();
            // Number 0 is never given out.
            let free = entries.filter(|e| e.is_free()).count();
            let free = free.saturating_sub(usize::from(at == 0));
            let all = blockwright_ondisk::f2fs::nat::ENTRIES_PER_BLOCK;
            bits.set(at, free == 0, free == all);
            bytes.extend(block);
        }
        if bytes.iter().all(|byte| *byte == 0) {
            volume.store.zero(place(index)?, count, WHAT)?;
        } else {
            volume.store.write(place(index)?, &bytes, WHAT)?;
        }
        index += count;
    }
    for at in new..old {
        let block = volume.nat_bytes(at)?;
        if NatBlock::parse(&block)?.iter().any(|e| !e.is_free()) {
            return Err(ReshapeError::NoSpace(
                "there are nodes whose numbers the smaller NAT would not have".into(),
            ));
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_keep_their_place() {
        let renumber = Renumber {
            old_main: 5 * 512,
            new_main: 8 * 512,
            new_segments: 10,
        };
        assert_eq!(renumber.seg(2), None);
        assert_eq!(renumber.seg(3), Some(0));
        assert_eq!(renumber.seg(12), Some(9));
        assert_eq!(renumber.seg(13), None);
    }
}
