//! Contents of the files a volume keeps for itself: journal, orphan file, the
//! resize inode's blocks, the multiple-mount-protection block.

use super::mapping::MetaBlock;
use super::shape::Shape;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::jbd2::{self, JournalBlockType, RawJournalSuperblock};
use blockwright_ondisk::ext4::mmp::{self, RawMmp};
use blockwright_ondisk::ext4::{BlockNo, GroupNo};
use zerocopy::{FromZeros, IntoBytes};

/// The first block of an empty journal: its superblock.
pub(crate) fn journal_superblock(shape: &Shape) -> Vec<u8> {
    let mut raw = RawJournalSuperblock::new_zeroed();
    raw.header.magic.set(jbd2::MAGIC);
    raw.header
        .blocktype
        .set(JournalBlockType::SuperblockV2.to_raw());
    raw.blocksize.set(shape.geo.block_size);
    raw.maxlen.set(shape.journal_blocks);
    raw.first.set(1);
    raw.sequence.set(1);
    raw.nr_users.set(1);
    raw.num_fc_blks.set(shape.fast_commit_blocks);
    // Seed of the checksums the first mount may turn on.
    raw.uuid = shape.raw.uuid;
    let mut block = vec![0u8; shape.geo.block_len()];
    block[..jbd2::SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
    block
}

/// A clean multiple-mount-protection block.
pub(crate) fn mmp_block(shape: &Shape) -> Vec<u8> {
    let mut raw = RawMmp::new_zeroed();
    raw.magic.set(mmp::MAGIC);
    raw.seq.set(mmp::SEQ_CLEAN);
    raw.time.set(shape.raw.mkfs_time());
    raw.nodename[..11].copy_from_slice(b"blockwright");
    raw.check_interval.set(shape.raw.mmp_interval.get());
    raw.set_checksum(&shape.geo);
    let mut block = vec![0u8; shape.geo.block_len()];
    block[..mmp::SIZE].copy_from_slice(raw.as_bytes());
    block
}

/// The blocks of the resize inode: the double-indirect block at `dind` names the primary copy of
/// every reserved descriptor block, each of which names its own backups.
pub(crate) fn resize_blocks(shape: &Shape, dind: BlockNo) -> Result<Vec<MetaBlock>> {
    let geo = &shape.geo;
    let per = geo.block_size / 4;
    let mut table = vec![0u8; geo.block_len()];
    let mut out = Vec::with_capacity(geo.reserved_gdt_blocks as usize + 1);
    let backups: Vec<GroupNo> = geo
        .groups()
        .filter(|g| g.0 != 0 && geo.group_has_super(*g))
        .collect();
    let narrow = |block: u64| {
        u32::try_from(block)
            .map_err(|_| MkfsError::features("resize_inode needs fewer than 2^32 blocks"))
    };
    for i in 0..geo.reserved_gdt_blocks {
        let index = u64::from(geo.desc_blocks + i);
        let primary = geo.super_block().0 + 1 + index;
        let at = ((geo.desc_blocks + i) % per) as usize * 4;
        table[at..at + 4].copy_from_slice(&narrow(primary)?.to_le_bytes());
        let mut block = vec![0u8; geo.block_len()];
        for (slot, group) in block.chunks_exact_mut(4).zip(&backups) {
            // Counted from the primary copy, also where (bigalloc with 1 KiB blocks) backups lie
            // one block lower in their groups: this is what readers expect.
            let copy = primary + u64::from(group.0) * u64::from(geo.blocks_per_group);
            slot.copy_from_slice(&narrow(copy)?.to_le_bytes());
        }
        out.push((BlockNo(primary), block));
    }
    out.push((dind, table));
    Ok(out)
}
