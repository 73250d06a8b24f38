//! Contents of the files a volume keeps for itself: journal, orphan file, quota files, the
//! resize inode's blocks, the multiple-mount-protection block.

use super::mapping::MetaBlock;
use super::shape::Shape;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::jbd2::{self, JournalBlockType, RawJournalSuperblock};
use blockwright_ondisk::ext4::mmp::{self, RawMmp};
use blockwright_ondisk::ext4::quota::{
    self, RawQuotaBlockHeader, RawQuotaEntry, RawQuotaHeader, RawQuotaInfo,
};
use blockwright_ondisk::ext4::{BlockNo, GroupNo};
use std::collections::BTreeMap;
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

/// What somebody uses of a volume.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Which ids a quota file counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaKind {
    User,
    Group,
    Project,
}

impl QuotaKind {
    fn magic(self) -> u32 {
        match self {
            QuotaKind::User => quota::USER_MAGIC,
            QuotaKind::Group => quota::GROUP_MAGIC,
            QuotaKind::Project => quota::PROJECT_MAGIC,
        }
    }
}

/// A quota file: header, radix tree, entries.
pub(crate) fn quota_file(kind: QuotaKind, usage: &BTreeMap<u32, Usage>) -> Vec<u8> {
    const B: usize = quota::BLOCK_SIZE;
    const ENTRY: usize = size_of::<RawQuotaEntry>();
    const HEAD: usize = size_of::<RawQuotaBlockHeader>();
    let mut file = vec![0u8; 2 * B];
    let new_block = |file: &mut Vec<u8>| {
        let number = (file.len() / B) as u32;
        file.resize(file.len() + B, 0);
        number
    };
    let mut data_block = 0u32;
    let mut in_block = quota::ENTRIES_PER_BLOCK;
    for (id, used) in usage {
        if in_block == quota::ENTRIES_PER_BLOCK {
            data_block = new_block(&mut file);
            in_block = 0;
        }
        let entry = RawQuotaEntry {
            id: (*id).into(),
            curinodes: used.inodes.into(),
            curspace: used.bytes.into(),
            ..RawQuotaEntry::new_zeroed()
        };
        let at = data_block as usize * B + HEAD + in_block * ENTRY;
        file[at..at + ENTRY].copy_from_slice(entry.as_bytes());
        in_block += 1;
        let count = data_block as usize * B + 8;
        file[count..count + 2].copy_from_slice(&(in_block as u16).to_le_bytes());
        let mut node = quota::TREE_ROOT;
        for (level, byte) in id.to_be_bytes().into_iter().enumerate() {
            let slot = node as usize * B + usize::from(byte) * 4;
            let word = &file[slot..slot + 4];
            let mut child = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if child == 0 {
                child = if level + 1 == quota::TREE_DEPTH {
                    data_block
                } else {
                    new_block(&mut file)
                };
                file[slot..slot + 4].copy_from_slice(&child.to_le_bytes());
            }
            node = child;
        }
    }
    // The last data block, when it has room, is the list of blocks with free entries.
    let free_entry = if (1..quota::ENTRIES_PER_BLOCK).contains(&in_block) {
        data_block
    } else {
        0
    };
    let head = RawQuotaHeader {
        magic: kind.magic().into(),
        version: quota::VERSION.into(),
    };
    let info = RawQuotaInfo {
        bgrace: quota::DEFAULT_GRACE.into(),
        igrace: quota::DEFAULT_GRACE.into(),
        flags: 0.into(),
        blocks: ((file.len() / B) as u32).into(),
        free_blk: 0.into(),
        free_entry: free_entry.into(),
    };
    file[..8].copy_from_slice(head.as_bytes());
    file[8..32].copy_from_slice(info.as_bytes());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_file_for_root_is_as_long_as_mke2fs_s() {
        let usage = BTreeMap::from([(
            0,
            Usage {
                bytes: 20_480,
                inodes: 2,
            },
        )]);
        let file = quota_file(QuotaKind::User, &usage);
        assert_eq!(file.len(), 6 * quota::BLOCK_SIZE);
    }

    #[test]
    fn every_id_is_reached_through_the_tree() {
        let ids = [0, 1, 255, 256, 1000, 70_000, u32::MAX];
        let usage: BTreeMap<u32, Usage> = ids
            .into_iter()
            .chain(2000..2100)
            .map(|id| {
                (
                    id,
                    Usage {
                        bytes: u64::from(id) + 7,
                        inodes: 1,
                    },
                )
            })
            .collect();
        let file = quota_file(QuotaKind::Group, &usage);
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four"));
        for (id, used) in &usage {
            let mut node = quota::TREE_ROOT;
            for byte in id.to_be_bytes() {
                node = word(node as usize * quota::BLOCK_SIZE + usize::from(byte) * 4);
                assert_ne!(node, 0, "id {id}");
            }
            let block = &file[node as usize * quota::BLOCK_SIZE..][..quota::BLOCK_SIZE];
            let found = block[16..]
                .chunks_exact(72)
                .any(|e| e[..4] == id.to_le_bytes() && e[48..56] == used.bytes.to_le_bytes());
            assert!(found, "id {id}");
        }
    }
}
