//! Damage to inodes: their fields, mappings and attributes.

use super::*;
use blockwright_ondisk::ext4::xattr::{self, ValueToHash};

pub fn inode_cases() -> Vec<Case> {
    vec![
        case("InodeChecksum", "ext4", |v| {
            let ino = v.lookup("dir/big");
            v.raw_inode(ino)[0x7C] ^= 1;
        }),
        case("InodeMode", "ext4", |v| {
            let ino = v.lookup("zero");
            v.edit_raw(ino, |raw| put16(raw, 0, 0o170_644));
        })
        .also(&["EntryInode", "InodeBitmap", "GroupFreeInodes"]),
        // A type there is none of, where the test of types has one that is another's.
        case("EntryType", "ext4", |v| {
            let dir = v.lookup("dir");
            let (block, at, _) = v.find(dir, "hard");
            v.edit_leaf(dir, block, |b| b[at + 7] = 65);
        }),
        case("SpecialIsDirectory", "ext4", |v| {
            let ino = v.lookup("dir/sub");
            v.edit_raw(ino, |raw| put16(raw, 0, 0o010_755));
        }),
        case("SpecialIsDirectory", "ext2", |v| {
            let ino = v.lookup("dir/sub");
            v.edit_raw(ino, |raw| put16(raw, 0, 0o060_755));
        }),
        case("SpecialIsDirectory", "ext4", |v| {
            let ino = v.lookup("dir/sub");
            v.edit_raw(ino, |raw| put16(raw, 0, 5));
        }),
        case("InodeReserved", "ext4", |v| {
            v.edit_raw(Ino::UNDEL, |raw| put16(raw, 0, 0o100_644));
        }),
        case("InodeExtraSize", "ext4", |v| {
            let ino = v.lookup("zero");
            v.edit_raw(ino, |raw| put16(raw, 0x80, 7));
        }),
        case("InodeSize", "ext4", |v| {
            let ino = v.lookup("dir/big");
            v.edit_inode(ino, |i| i.size = 10);
        }),
        case("InodeBlocks", "ext4", |v| {
            let ino = v.lookup("dir/big");
            v.edit_inode(ino, |i| i.sectors += 2);
        }),
        case("InodeDtimeSet", "ext4", |v| {
            let ino = v.lookup("a");
            v.edit_inode(ino, |i| i.dtime = 1_700_000_000);
        }),
        case("InodeDtimeLow", "ext4", |v| {
            let ino = v.lookup("a");
            v.edit_inode(ino, |i| i.dtime = 13);
        }),
        case("InodeDtimeZero", "ext4", |v| {
            // The first inode behind those in use.
            let unused = v.desc(0).itable_unused;
            let first = v.geo.inodes_per_group - unused + 1;
            v.edit_desc(0, |d| d.itable_unused -= 8);
            v.edit_raw(Ino(first), |raw| put16(raw, 0, 0o100_644));
        }),
        case("InodeFlags", "ext4", |v| {
            let ino = v.lookup("a");
            v.edit_inode(ino, |i| i.flags |= InodeFlags::INDEX);
        }),
        // The volume's own files hold no attribute's value: the journal, quota, the file of orphans.
        case("InodeFlags", "more", |v| {
            v.edit_inode(Ino::JOURNAL, |i| i.flags |= InodeFlags::EA_INODE);
        }),
        case("InodeFlags", "more", |v| {
            v.edit_inode(Ino::USR_QUOTA, |i| i.flags |= InodeFlags::EA_INODE);
        }),
        case("InodeFlags", "more", |v| {
            let ino = Ino(v.sb().orphan_file_inum.get());
            v.edit_inode(ino, |i| i.flags |= InodeFlags::EA_INODE);
        }),
        case("InodeFieldNotZero", "ext4", |v| {
            let ino = v.lookup("a");
            v.edit_raw(ino, |raw| put32(raw, 0x70, 1));
        }),
        case("InodeTimeFar", "ext4", |v| {
            let ino = v.lookup("a");
            v.edit_raw(ino, |raw| {
                put32(raw, 0x10, 0x8000_0001);
                put32(raw, 0x88, 3);
            });
        }),
        case("Symlink", "ext4", |v| {
            let ino = v.lookup("short-link");
            v.edit_inode(ino, |i| i.size = 5);
        })
        .also(&["EntryInode", "InodeBitmap", "GroupFreeInodes"]),
        case("SpecialFile", "ext4", |v| {
            let ino = v.lookup("fifo");
            v.edit_inode(ino, |i| i.flags |= InodeFlags::EXTENTS);
        })
        .also(&["EntryInode", "InodeBitmap", "GroupFreeInodes"]),
        case("InlineData", "inline", |v| {
            let dir = v.lookup("empty");
            v.edit_inode(dir, |i| i.size += 4);
        }),
        case("LinkCount", "ext4", |v| {
            let ino = v.lookup("a");
            v.edit_inode(ino, |i| i.links = 5);
        }),
    ]
}

pub fn mapping_cases() -> Vec<Case> {
    vec![
        case("ExtentNode", "ext4", |v| {
            let ino = v.lookup("dir/big");
            v.edit_inode(ino, |i| i.block[0] = 0);
        })
        .also(COUNTS)
        .also(&["InodeBlocks", "BlockBitmap", "GroupFreeBlocks", "InodeSize"]),
        case("ExtentChecksum", "ext4", |v| {
            let ino = v.lookup("sparse");
            let block = v.extent_blocks(ino)[0];
            v.block(block)[8] ^= 1;
        }),
        case("ExtentEntry", "ext4", |v| {
            let ino = v.lookup("dir/sub/middle");
            v.edit_inode(ino, |i| put32(&mut i.block, 12 + 8, 1 << 30));
        })
        .also(&["BlockBitmap", "GroupFreeBlocks", "InodeBlocks"]),
        case("ExtentIndexStart", "ext4", |v| {
            let ino = v.lookup("sparse");
            let block = v.extent_blocks(ino)[0];
            v.edit_extent_block(ino, block, |b| put32(b, 12, 1));
        })
        .also(&["ExtentEntry", "BlocksShared"]),
        case("MappingLoop", "ext2", |v| {
            // An indirect block that lists itself, one level up.
            let ino = v.lookup("dir/big");
            let inode = v.inode(ino);
            let at =
                |n: usize| u32::from_le_bytes(inode.block[n * 4..n * 4 + 4].try_into().unwrap());
            let double = BlockNo(u64::from(at(13)));
            assert_ne!(double.0, 0);
            let word = double.0 as u32;
            let bytes = v.block(double);
            put32(bytes, 40, word);
            put32(bytes, 44, word);
        })
        .also(&["BlocksShared", "InodeBlocks", "InodeSize", "BlockOutside"]),
        case("BlockOutside", "ext2", |v| {
            let ino = v.lookup("dir/big");
            v.edit_inode(ino, |i| put32(&mut i.block, 8, 1 << 30));
        })
        .also(&["BlockBitmap", "GroupFreeBlocks", "InodeBlocks"]),
        case("ClusterMisaligned", "bigalloc", |v| {
            let ino = v.lookup("dir/sub/middle");
            v.edit_inode(ino, |i| {
                let at = 12 + 8;
                let word = u32::from_le_bytes(i.block[at..at + 4].try_into().unwrap());
                put32(&mut i.block, at, word + 1);
            });
        })
        .also(&[
            "InodeBlocks",
            "BlockBitmap",
            "GroupFreeBlocks",
            "BlocksShared",
        ]),
        case("BlocksShared", "ext4", |v| {
            let target = v.blocks(v.lookup("dir/big"))[0];
            let ino = v.lookup("dir/small");
            let e = Extent {
                logical: FileBlock(0),
                physical: target,
                len: 1,
                unwritten: false,
            };
            v.edit_inode(ino, |i| extent::write_leaf(&mut i.block, &[e]).unwrap());
        })
        .also(&["BlockBitmap", "GroupFreeBlocks"]),
    ]
}

/// Puts a zero byte into the name of the entry at `at` of an area with one attribute, and its new hash, which is
/// returned, into the entry.
fn zero_in_name(area: &mut [u8], at: usize) -> u32 {
    let half = |n: usize| usize::from(u16::from_le_bytes([area[n], area[n + 1]]));
    let (name_len, value, value_len) = (usize::from(area[at]), half(at + 2), half(at + 8));
    area[at + 16 + 1] = 0;
    let name = &area[at + 16..at + 16 + name_len];
    let value = ValueToHash::Local(&area[value..value + value_len]);
    let hash = xattr::entry_hash(name, value, true);
    put32(area, at + 12, hash);
    hash
}

pub fn attribute_cases() -> Vec<Case> {
    let gone: &[&str] = &[
        "BlockBitmap",
        "GroupFreeBlocks",
        "InodeBlocks",
        "XattrRefcount",
    ];
    vec![
        case("XattrInode", "ext4", |v| {
            let ino = v.lookup("a");
            let at = 128 + usize::from(v.inode(ino).extra_isize);
            v.edit_raw(ino, |raw| put16(raw, at + 4 + 2, 0xFFF0));
        }),
        case("XattrEntry", "ext4", |v| {
            let block = v.inode(v.lookup("dir/big")).file_acl;
            v.edit_xattr_block(block, |b| b[32 + 12] ^= 1);
        })
        .also(gone),
        // Names with a zero byte in them, hashed as they are: in the inode and in a block.
        case("XattrEntry", "ext4", |v| {
            let ino = v.lookup("a");
            let at = 128 + usize::from(v.inode(ino).extra_isize) + xattr::IBODY_HEADER;
            v.edit_raw(ino, |raw| {
                zero_in_name(&mut raw[at..], 0);
            });
        }),
        case("XattrEntry", "ext4", |v| {
            let block = v.inode(v.lookup("dir/big")).file_acl;
            v.edit_xattr_block(block, |b| {
                let hash = zero_in_name(b, 32);
                put32(b, 12, xattr::block_hash([hash]));
            });
        })
        .also(gone),
        case("XattrBlock", "ext4", |v| {
            let block = v.inode(v.lookup("dir/big")).file_acl;
            v.edit_xattr_block(block, |b| b[0] ^= 1);
        })
        .also(gone),
        case("XattrBlockOutside", "ext4", |v| {
            let ino = v.lookup("dir/big");
            v.edit_inode(ino, |i| i.file_acl = BlockNo(1 << 30));
        })
        .also(gone),
        case("XattrChecksum", "ext4", |v| {
            let block = v.inode(v.lookup("dir/big")).file_acl;
            v.block(block)[16] ^= 1;
        }),
        case("XattrRefcount", "ext4", |v| {
            let block = v.inode(v.lookup("dir/big")).file_acl;
            v.edit_xattr_block(block, |b| b[4] += 1);
        }),
        case("XattrValueInode", "more", |v| {
            let block = v.inode(v.lookup("dir/big")).file_acl;
            v.edit_xattr_block(block, |b| put32(b, 32 + 4, 11));
        })
        .also(gone)
        .also(&[
            "BlockBitmap",
            "GroupFreeBlocks",
            "InodeBlocks",
            "QuotaUsage",
        ]),
    ]
}
