//! Group descriptors and bitmaps of a planned volume.

use super::planned::{Content, Plan};
use crate::options::Before;
use blockwright_ondisk::ext4::{
    BlockNo, ChecksumKind, FormatError, GroupDesc, GroupFlags, GroupNo, Ino,
};
use std::ops::Range;

/// A planned group's descriptor, and its bitmaps where they have to be written.
pub(crate) struct GroupImage {
    pub desc: GroupDesc,
    pub block_bitmap: Option<Vec<u8>>,
    pub inode_bitmap: Option<Vec<u8>>,
}

/// How many directories each group has.
pub(crate) fn directories(plan: &Plan) -> Vec<u32> {
    let geo = &plan.shape.geo;
    let mut out = vec![0; geo.groups_count as usize];
    for i in &plan.inodes {
        if matches!(i.content, Content::Dir(..) | Content::EmptyDir(_))
            && let Some((group, _)) = geo.split_ino(i.ino)
        {
            out[group.0 as usize] += 1;
        }
    }
    out
}

/// Sets bits `from..to`.
fn set_bits(bitmap: &mut [u8], from: usize, to: usize) {
    let mut at = from;
    while at < to {
        if at.is_multiple_of(8) && to - at >= 8 {
            let bytes = (to - at) / 8;
            bitmap[at / 8..at / 8 + bytes].fill(0xFF);
            at += bytes * 8;
        } else {
            bitmap[at / 8] |= 1 << (at % 8);
            at += 1;
        }
    }
}

/// The used inodes of a group, as runs of positions in its table: the reserved ones, and the planned ones, which may have gaps.
fn used_inodes(plan: &Plan, group: GroupNo) -> Vec<Range<u32>> {
    let ipg = u64::from(plan.shape.geo.inodes_per_group);
    let before = u64::from(group.0) * ipg;
    let reserved = u64::from(Ino::FIRST_NON_RESERVED.0 - 1).saturating_sub(before);
    let first = plan
        .inodes
        .partition_point(|i| u64::from(i.ino.0) <= before);
    let planned = plan.inodes[first..].iter();
    let planned = planned.map(|i| u64::from(i.ino.0) - before - 1);
    let used = (0..reserved.min(ipg)).chain(planned.take_while(|at| *at < ipg));
    let mut runs: Vec<Range<u32>> = Vec::new();
    for at in used.map(|at| at as u32) {
        match runs.last_mut() {
            Some(last) if at <= last.end => last.end = last.end.max(at + 1),
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Whether a reader that finds the group's block bitmap unwritten would assume just what is true:
/// that only the group's own metadata is taken.
fn only_own_metadata(plan: &Plan, group: GroupNo, taken: u64) -> bool {
    let geo = &plan.shape.geo;
    let place = &plan.places[group.0 as usize];
    let mut own = u64::from(geo.base_meta_blocks(group));
    for (start, len) in [
        (place.block_bitmap, 1),
        (place.inode_bitmap, 1),
        (place.inode_table, u64::from(geo.inode_table_blocks)),
    ] {
        let first = geo.group_first_block(group).0;
        let end = first + u64::from(geo.group_blocks(group));
        own += (start.0 + len).min(end).saturating_sub(start.0.max(first));
    }
    taken == own.div_ceil(u64::from(geo.cluster_ratio))
}

/// The image of one group.
pub(crate) fn image(
    plan: &Plan,
    group: GroupNo,
    used_dirs: u32,
) -> std::result::Result<GroupImage, FormatError> {
    let geo = &plan.shape.geo;
    let place = &plan.places[group.0 as usize];
    let checksums = geo.checksums != ChecksumKind::None;
    let first = geo.group_first_block(group).0 >> geo.cluster_bits;
    let clusters = u64::from(geo.group_clusters(group));
    let runs: Vec<(u64, u64)> = plan.space.taken_in(first, first + clusters).collect();
    let taken: u64 = runs.iter().map(|(s, e)| e - s).sum();
    let ipg = geo.inodes_per_group;
    let inodes = used_inodes(plan, group);
    let used = inodes.iter().map(|run| run.end - run.start).sum::<u32>();
    let unused_behind = ipg - inodes.last().map_or(0, |run| run.end);
    let last = group.0 + 1 == geo.groups_count;

    let mut flags = GroupFlags::empty();
    if checksums {
        if plan.before == Before::Zeroes {
            flags |= GroupFlags::INODE_ZEROED;
        }
        if used == 0 && group.0 != 0 {
            flags |= GroupFlags::INODE_UNINIT;
        }
        if group.0 != 0 && !last && only_own_metadata(plan, group, taken) {
            flags |= GroupFlags::BLOCK_UNINIT;
        }
    }
    let mut desc = GroupDesc {
        block_bitmap: place.block_bitmap,
        inode_bitmap: place.inode_bitmap,
        inode_table: place.inode_table,
        free_clusters: (clusters - taken) as u32,
        free_inodes: ipg - used,
        used_dirs,
        flags,
        exclude_bitmap: BlockNo(0),
        block_bitmap_csum: 0,
        inode_bitmap_csum: 0,
        itable_unused: if checksums { unused_behind } else { 0 },
    };
    let bits = geo.block_len() * 8;
    let block_bitmap = (!flags.contains(GroupFlags::BLOCK_UNINIT)).then(|| {
        let mut map = vec![0u8; geo.block_len()];
        for (start, end) in &runs {
            set_bits(&mut map, (start - first) as usize, (end - first) as usize);
        }
        // Blocks past the group's end are never free.
        set_bits(&mut map, clusters as usize, bits);
        desc.set_block_bitmap_csum(&map, geo);
        map
    });
    let inode_bitmap = (!flags.contains(GroupFlags::INODE_UNINIT)).then(|| {
        let mut map = vec![0u8; geo.block_len()];
        for run in &inodes {
            set_bits(&mut map, run.start as usize, run.end as usize);
        }
        set_bits(&mut map, ipg as usize, bits);
        desc.set_inode_bitmap_csum(&map, geo);
        map
    });
    Ok(GroupImage {
        desc,
        block_bitmap,
        inode_bitmap,
    })
}

#[cfg(test)]
mod tests {
    use super::set_bits;

    #[test]
    fn bits_are_set_in_bytes_and_one_by_one() {
        for from in 0..20 {
            for to in from..40 {
                let mut map = [0u8; 5];
                set_bits(&mut map, from, to);
                for bit in 0..40 {
                    let set = map[bit / 8] >> (bit % 8) & 1 == 1;
                    assert_eq!(set, (from..to).contains(&bit));
                }
            }
        }
    }
}
