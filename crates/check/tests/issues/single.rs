//! Damage to what there is once, and to groups: superblock, journal, descriptors and bitmaps.

use super::*;

pub fn superblock_cases() -> Vec<Case> {
    vec![
        case("SuperblockBad", "groups", |v| v.image[1024 + 0x38] = 0),
        case("FeaturesLost", "ext4", |v| {
            v.edit_sb(|sb| sb.set_features(Default::default()));
        }),
        case("FeaturesLost", "ext2", |v| {
            v.edit_sb(|sb| sb.set_features(Default::default()));
        }),
        case("FeaturesLost", "groups", |v| {
            v.edit_sb(|sb| sb.set_features(Default::default()));
        }),
        case("FeaturesContradicted", "ext4", |v| {
            v.edit_sb(|sb| {
                let mut f = sb.features();
                f.incompat.remove(Incompat::FILETYPE);
                sb.set_features(f);
            });
        }),
        case("SuperblockChecksum", "ext4", |v| v.image[2047] ^= 1),
        case("SuperblockField", "ext4", |v| {
            let most = v.geo.blocks_count;
            v.edit_sb(|sb| sb.set_reserved_blocks_count(most));
        }),
        case("FeatureContradiction", "plain", |v| {
            v.edit_sb(|sb| {
                let mut f = sb.features();
                f.compat |= Compat::RESIZE_INODE;
                f.incompat |= Incompat::METADATA_CSUM_SEED;
                sb.set_features(f);
            });
        }),
        case("TimeInFuture", "ext4", |v| {
            v.edit_sb(|sb| sb.set_write_time(1 << 33))
        }),
        case("MarkedErroneous", "ext4", |v| {
            v.edit_sb(|sb| sb.state.set((State::CLEAN | State::ERROR).bits()));
        }),
        case("NotUnmounted", "groups", |v| {
            v.edit_sb(|sb| sb.state.set(0))
        }),
        case("UuidMissing", "ext2", |v| v.edit_sb(|sb| sb.uuid = [0; 16])),
        case("HashFlavourMissing", "ext4", |v| {
            v.edit_sb(|sb| sb.flags.set(0))
        }),
        case("FreeBlocks", "ext4", |v| {
            v.edit_sb(|sb| sb.set_free_blocks_count(1))
        }),
        case("FreeInodes", "ext4", |v| {
            v.edit_sb(|sb| sb.free_inodes_count.set(1))
        }),
        case("Mmp", "mmp", |v| {
            let block = BlockNo(v.sb().mmp_block.get());
            v.block(block)[0] ^= 1;
        }),
    ]
}

fn journal_head(v: &mut Volume, edit: impl FnOnce(&mut [u8])) {
    let block = v.blocks(Ino::JOURNAL)[0];
    edit(v.block(block));
}

pub fn journal_cases() -> Vec<Case> {
    vec![
        case("JournalSuperblock", "ext4", |v| {
            journal_head(v, |b| b[0] ^= 1)
        }),
        case("JournalField", "ext4", |v| journal_head(v, |b| b[0x43] = 2)),
        case("JournalFeatures", "ext4", |v| {
            journal_head(v, |b| b[0x2A] = 1)
        }),
        case("JournalErrno", "ext4", |v| {
            journal_head(v, |b| b[0x20..0x24].fill(0xFF))
        }),
        case("JournalInode", "ext4", |v| {
            v.edit_raw(Ino::JOURNAL, |raw| put16(raw, 0, 0o040_755))
        })
        .also(&["InodeReserved", "BlockBitmap", "GroupFreeBlocks"]),
        case("RecoveryFlagSet", "ext4", |v| {
            v.edit_sb(|sb| {
                let mut f = sb.features();
                f.incompat |= Incompat::NEEDS_RECOVERY;
                sb.set_features(f);
            });
        }),
    ]
}

pub fn group_cases() -> Vec<Case> {
    vec![
        case("GroupDescChecksum", "groups", |v| v.raw_desc(2)[0x1E] ^= 1)
            .also(&["BitmapChecksum", "BitmapPadding"]),
        case("GroupDescLocation", "groups", |v| {
            v.edit_desc(2, |d| d.inode_table = BlockNo(1 << 30));
        })
        .also(&["BitmapChecksum", "BitmapPadding"]),
        // The end of a table at the last of all block numbers has no number.
        case("GroupDescLocation", "groups", |v| {
            v.edit_desc(3, |d| {
                d.block_bitmap = BlockNo(u64::MAX);
                d.inode_bitmap = BlockNo(u64::MAX);
                d.inode_table = BlockNo(u64::MAX);
            });
        })
        .also(&[
            "BitmapChecksum",
            "BitmapPadding",
            "BlockBitmap",
            "InodeBitmap",
        ]),
        case("GroupDescLocation", "ext4", |v| {
            v.edit_desc(0, |d| d.inode_table = BlockNo(u64::MAX));
        })
        .also(&["BitmapChecksum", "BitmapPadding"]),
        case("MetadataOverlap", "groups", |v| {
            let table = v.desc(0).inode_table;
            v.edit_desc(0, |d| d.inode_bitmap = BlockNo(table.0 + 3));
        })
        .also(COUNTS)
        .also(&["BitmapPadding"]),
        case("GroupFlags", "plain", |v| {
            v.edit_desc(0, |d| d.flags = GroupFlags::BLOCK_UNINIT)
        }),
        case("GroupUnusedInodes", "groups", |v| {
            v.edit_desc(1, |d| d.itable_unused = 9999)
        }),
        case("GroupFreeBlocks", "ext4", |v| {
            v.edit_desc(0, |d| d.free_clusters += 1)
        }),
        case("GroupFreeInodes", "ext4", |v| {
            v.edit_desc(0, |d| d.free_inodes -= 1)
        }),
        case("GroupDirs", "ext4", |v| {
            v.edit_desc(0, |d| d.used_dirs += 1)
        }),
        case("BlockBitmap", "ext4", |v| {
            v.edit_block_bitmap(0, |b| b[900] ^= 1)
        }),
        case("InodeBitmap", "ext4", |v| {
            v.edit_inode_bitmap(0, |b| b[1] ^= 1)
        }),
        case("BitmapPadding", "ext4", |v| {
            let bytes = v.geo.inode_bitmap_bytes();
            v.edit_inode_bitmap(0, |b| b[bytes] = 0);
        }),
        case("BitmapChecksum", "ext4", |v| {
            v.edit_desc(0, |d| d.block_bitmap_csum ^= 1)
        }),
        case("ResizeInode", "ext4", |v| {
            v.edit_inode(Ino::RESIZE, |i| i.links = 0)
        })
        .also(&["BlockBitmap", "GroupFreeBlocks"]),
    ]
}
