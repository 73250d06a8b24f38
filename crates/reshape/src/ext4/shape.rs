//! What a size makes of a volume: its superblock, the resize inode, counts of metadata.
//!
//! Used for growth and for shrinkage. Nothing is written here; the resize inode is staged.

use std::collections::BTreeSet;

use blockwright_ondisk::ext4::{
    BlockNo, Compat, Geometry, GroupNo, Incompat, Ino, RawSuperblock, Superblock,
};

use super::files::words;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};

/// Blocks that a last group has beside its metadata, or it is left out; as `mke2fs` and `resize2fs` have it.
pub(super) const LAST_GROUP_SLACK: u64 = 50;
/// Slot of the doubly indirect block in a block map.
const DOUBLE: usize = 13;

/// The superblock of a volume that is made as large as `bytes` bytes allow. Counts of what is free are not yet right.
pub(super) fn target(sb: &Superblock, bytes: u64) -> Result<Superblock> {
    let geo = &sb.geo;
    let first = geo.first_data_block.0;
    let mut blocks = bytes >> geo.block_bits >> geo.cluster_bits << geo.cluster_bits;
    if blocks > u64::from(u32::MAX) && !geo.features.has_incompat(Incompat::BIT64) {
        return Err(ReshapeError::Unsupported(
            "a volume without 64bit has at most 2^32 - 1 blocks".into(),
        ));
    }
    if blocks == geo.blocks_count {
        return Ok(sb.clone());
    }
    loop {
        if blocks <= first + 1 {
            return Err(ReshapeError::Invalid("no volume is that small".into()));
        }
        // The volume itself was read, so what does not fit is what this size would need.
        let new = Superblock::from_raw(shaped(sb, blocks)?, None).map_err(|e| {
            match blocks < geo.blocks_count {
                true => ReshapeError::Invalid(format!("no volume like this is that small: {e}")),
                false => {
                    ReshapeError::Unsupported(format!("no volume like this is that large: {e}"))
                }
            }
        })?;
        let rest = (blocks - first) % u64::from(geo.blocks_per_group);
        let last = GroupNo(new.geo.groups_count - 1);
        let needed =
            u64::from(new.geo.base_meta_blocks(last)) + 2 + u64::from(geo.inode_table_blocks);
        let is_new = last.0 >= geo.groups_count || blocks < geo.blocks_count;
        if is_new && rest != 0 && rest < needed + LAST_GROUP_SLACK {
            blocks -= rest;
            continue;
        }
        return Ok(new);
    }
}

/// The superblock for this many blocks: counts, places of descriptors and copies.
pub(super) fn shaped(sb: &Superblock, blocks: u64) -> Result<RawSuperblock> {
    let geo = &sb.geo;
    let mut raw = sb.raw;
    let groups = (blocks - geo.first_data_block.0).div_ceil(u64::from(geo.blocks_per_group));
    let too_many = || {
        ReshapeError::Unsupported(format!(
            "{groups} groups of {} inodes are more inodes than a volume can have",
            geo.inodes_per_group
        ))
    };
    let groups = u32::try_from(groups).map_err(|_| too_many())?;
    let inodes = groups
        .checked_mul(geo.inodes_per_group)
        .ok_or_else(too_many)?;
    raw.inodes_count.set(inodes);
    // A plan only: `renumber` gives such a file another number before the end moves.
    for file in [
        &mut raw.usr_quota_inum,
        &mut raw.grp_quota_inum,
        &mut raw.prj_quota_inum,
        &mut raw.orphan_file_inum,
    ] {
        if file.get() > inodes {
            file.set(geo.first_ino.0);
        }
    }
    raw.set_blocks_count(blocks);
    let share = sb.raw.reserved_blocks_count() as f64 / geo.blocks_count as f64;
    raw.set_reserved_blocks_count((share * blocks as f64) as u64);

    let mut features = geo.features;
    let desc_blocks = groups.div_ceil(geo.descs_per_block);
    let more = desc_blocks.saturating_sub(geo.desc_blocks);
    if more > 0 && !features.has_incompat(Incompat::META_BG) {
        let reserve = features.has_compat(Compat::RESIZE_INODE);
        if reserve && more <= geo.reserved_gdt_blocks {
            raw.reserved_gdt_blocks
                .set((geo.reserved_gdt_blocks - more) as u16);
        } else {
            features.incompat |= Incompat::META_BG;
            features.compat.remove(Compat::RESIZE_INODE);
            raw.first_meta_bg.set(geo.desc_blocks);
            raw.reserved_gdt_blocks.set(0);
        }
    }
    if features.has_incompat(Incompat::META_BG) {
        let first = raw.first_meta_bg.get().min(desc_blocks);
        raw.first_meta_bg.set(first);
    }
    let fewer = geo.desc_blocks.saturating_sub(desc_blocks);
    if features.has_compat(Compat::RESIZE_INODE) && fewer > 0 {
        let reserved = (geo.reserved_gdt_blocks + fewer).min(geo.block_size / 4);
        raw.reserved_gdt_blocks.set(reserved as u16);
    }
    raw.set_features(features);
    // The second of two copies lies in the last group.
    if features.has_compat(Compat::SPARSE_SUPER2)
        && geo.groups_count > 1
        && geo.backup_bgs[1] == geo.groups_count - 1
    {
        // A smaller volume may have files where that copy would be.
        let last = if groups > geo.groups_count {
            groups - 1
        } else {
            0
        };
        if groups != geo.groups_count {
            raw.backup_bgs[1].set(last);
        }
    }
    if raw.backup_bgs[0].get() >= groups {
        raw.backup_bgs[0].set(0);
    }
    Ok(raw)
}

/// The blocks that descriptors, bitmaps, tables and copies of the superblock take.
pub(super) fn metadata_blocks(geo: &Geometry) -> u64 {
    let own = geo.groups().map(|g| u64::from(geo.base_meta_blocks(g)));
    own.sum::<u64>() + u64::from(geo.groups_count) * (2 + u64::from(geo.inode_table_blocks))
}

/// Gives back what descriptors, and blocks reserved for them, no longer take behind copies of the superblock. A cluster is given back when nothing
/// else is in it.
pub(super) fn free_descriptor_blocks(volume: &mut Volume, old: &Geometry) -> Result<()> {
    let geo = volume.sb.geo.clone();
    let shift = geo.cluster_bits;
    let mut shared = BTreeSet::new();
    if shift > 0 {
        for desc in &volume.descs {
            let firsts = [desc.block_bitmap, desc.inode_bitmap, desc.inode_table];
            shared.extend(firsts.map(|block| block.0 >> shift));
        }
    }
    for group in old.groups() {
        let base = geo.group_first_block(group).0;
        let (had, has) = (old.base_meta_blocks(group), geo.base_meta_blocks(group));
        if has > had {
            return Err(ReshapeError::Unsupported(format!(
                "group {group} has no room for more descriptors"
            )));
        }
        // Groups begin with a cluster.
        let first = (base + u64::from(has)).div_ceil(u64::from(geo.cluster_ratio));
        let mut end = (base + u64::from(had)).div_ceil(u64::from(geo.cluster_ratio));
        // Only the last one is not theirs alone.
        if end > first && shared.contains(&(end - 1)) {
            end -= 1;
        }
        if end > first {
            let blocks = ((end - first) << shift).min(geo.blocks_count - (first << shift));
            volume.mark_blocks(first << shift, blocks, false)?;
        }
    }
    Ok(())
}

/// The superblock's count of metadata, where it has one.
pub(super) fn count_overhead(volume: &mut Volume, old: &Geometry) {
    let stored = u64::from(volume.sb.raw.overhead_blocks.get());
    if stored == 0 {
        return;
    }
    let shift = old.cluster_bits;
    let (before, after) = (metadata_blocks(old), metadata_blocks(&volume.sb.geo));
    let sum = (stored + (after >> shift)).saturating_sub(before >> shift);
    let sum = u32::try_from(sum).unwrap_or(u32::MAX);
    volume.sb.raw.overhead_blocks.set(sum);
}

/// The resize inode lists the reserved blocks and their copies, of which there are fewer reserved ones and more copies; or it goes.
pub(super) fn change_resize_inode(volume: &mut Volume, old: &Geometry) -> Result<()> {
    if !old.features.has_compat(Compat::RESIZE_INODE) {
        return Ok(());
    }
    let geo = volume.sb.geo.clone();
    let mut inode = volume.inode(Ino::RESIZE)?;
    let list: Vec<u32> = words(&inode.block).collect();
    let dind = u64::from(list[DOUBLE]);
    if !geo.features.has_compat(Compat::RESIZE_INODE) {
        if dind != 0 {
            volume.mark_blocks(dind, 1, false)?;
        }
        return volume.stage_inode(Ino::RESIZE, None);
    }
    if dind == 0 {
        return Ok(());
    }
    if !old.contains_run(BlockNo(dind), 1) {
        return Err(ReshapeError::Damaged(
            "the resize inode lists no blocks".into(),
        ));
    }
    let per = geo.block_len() / 4;
    let first = geo.super_block().0 + 1 + u64::from(geo.desc_blocks);
    let reserved = geo.reserved_gdt_blocks;
    let narrow = |block: u64| {
        u32::try_from(block).map_err(|_| {
            ReshapeError::Unsupported("copies of descriptors lie beyond block 2^32".into())
        })
    };
    let mut table = vec![0u8; geo.block_len()];
    let copies: Vec<u64> = geo
        .groups()
        .skip(1)
        .filter(|g| geo.group_has_super(*g))
        .map(|g| u64::from(g.0) * u64::from(geo.blocks_per_group))
        .collect();
    if copies.len() > per {
        return Err(ReshapeError::Unsupported(
            "there are more copies of the descriptors than the resize inode can list".into(),
        ));
    }
    let present = volume
        .disk
        .read_run(first, u64::from(reserved), "resize inode")?;
    let mut blocks = 1u64;
    for n in 0..reserved as usize {
        let primary = first + n as u64;
        let slot = (geo.desc_blocks as usize + n) % per * 4;
        table[slot..slot + 4].copy_from_slice(&narrow(primary)?.to_le_bytes());
        let mut image = vec![0u8; geo.block_len()];
        for (word, base) in image.chunks_exact_mut(4).zip(&copies) {
            word.copy_from_slice(&narrow(base + primary)?.to_le_bytes());
        }
        blocks += 1 + copies.len() as u64;
        let size = geo.block_len();
        if present[n * size..(n + 1) * size] != image {
            volume.disk.stage(primary, image);
        }
    }
    volume.disk.stage(dind, table);
    inode.sectors = (blocks << geo.cluster_bits) << (geo.block_bits - 9);
    volume.stage_inode(Ino::RESIZE, Some(&inode))
}
