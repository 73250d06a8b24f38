//! One damaged volume per issue: it is found, it is repaired, and e2fsck agrees afterwards.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use blockwright_check::ext4::IssueKind;
use blockwright_check::{Mode, Outcome, Severity, fsck_exit_code};
use blockwright_ondisk::ext4::dir::{DirBlock, TAIL_SIZE};
use blockwright_ondisk::ext4::extent::Extent;
use blockwright_ondisk::ext4::htree::DxPlace;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::superblock::State;
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileBlock, GroupFlags, Incompat, Ino, RoCompat, extent, jbd2, mmp, orphan_file,
};
use common::volume::Volume;
use common::{Lab, repair, show, tools, verify};

const BASES: &[(&str, &str, &[&str])] = &[
    ("ext4", "8M", &["-t", "ext4", "-b", "1024"]),
    ("ext2", "8M", &["-t", "ext2", "-b", "1024", "-I", "256"]),
    (
        "groups",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^has_journal",
            "-g",
            "1024",
        ],
    ),
    (
        "plain",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^has_journal,^metadata_csum,^uninit_bg",
        ],
    ),
    (
        "inline",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "512",
            "-O",
            "inline_data,^has_journal",
        ],
    ),
    (
        "bigalloc",
        "16M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-C",
            "4096",
            "-O",
            "bigalloc,^has_journal",
        ],
    ),
    (
        "more",
        "12M",
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-O",
            "orphan_file,ea_inode,quota",
        ],
    ),
    (
        "mmp",
        "8M",
        &["-t", "ext4", "-b", "1024", "-O", "mmp,^has_journal"],
    ),
];

fn put16(bytes: &mut [u8], at: usize, n: u16) {
    bytes[at..at + 2].copy_from_slice(&n.to_le_bytes());
}

fn put32(bytes: &mut [u8], at: usize, n: u32) {
    bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
}

/// The variant's name.
fn name(kind: &IssueKind) -> String {
    let text = format!("{kind:?}");
    text.split([' ', '{', '(']).next().unwrap_or("").to_owned()
}

struct Case {
    issue: &'static str,
    base: &'static str,
    damage: fn(&mut Volume),
    /// Consequences that are found too.
    also: &'static [&'static str],
    more: &'static [&'static str],
}

const fn case(issue: &'static str, base: &'static str, damage: fn(&mut Volume)) -> Case {
    Case {
        issue,
        base,
        damage,
        also: &[],
        more: &[],
    }
}

impl Case {
    const fn also(mut self, also: &'static [&'static str]) -> Self {
        if self.also.is_empty() {
            self.also = also;
        } else {
            self.more = also;
        }
        self
    }
}

const COUNTS: &[&str] = &[
    "BlockBitmap",
    "InodeBitmap",
    "GroupFreeBlocks",
    "GroupFreeInodes",
    "GroupDirs",
];

fn superblock_cases() -> Vec<Case> {
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

fn journal_cases() -> Vec<Case> {
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

fn group_cases() -> Vec<Case> {
    vec![
        case("GroupDescChecksum", "groups", |v| v.raw_desc(2)[0x1E] ^= 1)
            .also(&["BitmapChecksum", "BitmapPadding"]),
        case("GroupDescLocation", "groups", |v| {
            v.edit_desc(2, |d| d.inode_table = BlockNo(1 << 30));
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
            v.edit_inode(Ino::RESIZE, |i| i.links = 2)
        })
        .also(&["BlockBitmap", "GroupFreeBlocks"]),
    ]
}

fn inode_cases() -> Vec<Case> {
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

fn mapping_cases() -> Vec<Case> {
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

fn attribute_cases() -> Vec<Case> {
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
        case("XattrValueRefs", "more", |v| {
            let ino = v.lookup("zero");
            v.edit_inode(ino, |i| i.flags |= InodeFlags::EA_INODE);
        })
        .also(&["EntryInode", "InodeBitmap", "GroupFreeInodes", "QuotaUsage"]),
    ]
}

fn directory_cases() -> Vec<Case> {
    vec![
        case("DirEntry", "ext4", |v| {
            let dir = v.lookup("dir");
            let (block, at, _) = v.find(dir, "small");
            v.edit_leaf(dir, block, |b| put16(b, at + 4, 3));
        })
        .also(&["DirUnreachable", "InodeUnattached", "LinkCount"]),
        case("DotPadding", "ext4", |v| {
            let dir = v.lookup("dir");
            let block = v.blocks(dir)[0];
            v.edit_leaf(dir, block, |b| b[22] = 7);
        }),
        case("DirChecksum", "ext4", |v| {
            let block = v.blocks(v.lookup("dir"))[0];
            let at = v.geo.block_len() - 1;
            v.block(block)[at] ^= 1;
        }),
        case("DirTail", "ext4", |v| {
            let block = v.blocks(v.lookup("dir"))[0];
            let at = v.geo.block_len() - TAIL_SIZE;
            v.block(block)[at..].fill(0);
        })
        .also(&["DirEntry"]),
        case("DirHole", "ext4", |v| {
            // The last block moves one further.
            let dir = v.lookup("lost+found");
            let blocks = v.blocks(dir);
            let n = blocks.len() as u64;
            assert!(n > 1);
            let run = |logical: u64, from: u64, len: u64| Extent {
                logical: FileBlock(logical),
                physical: BlockNo(blocks[0].0 + from),
                len: len as u32,
                unwritten: false,
            };
            v.edit_inode(dir, |i| {
                extent::write_leaf(&mut i.block, &[run(0, 0, n - 1), run(n, n - 1, 1)]).unwrap();
                i.size += 1024;
            });
        }),
        case("DotMissing", "ext4", |v| {
            let dir = v.lookup("dir");
            let block = v.blocks(dir)[0];
            v.edit_leaf(dir, block, |b| put32(b, 0, 0));
        })
        .also(&["LinkCount"]),
        case("DotBig", "ext4", |v| {
            let dir = v.lookup("dir");
            let block = v.blocks(dir)[0];
            // Its length takes in "..", and "..", what is behind it, is lost.
            v.edit_leaf(dir, block, |b| put16(b, 4, 24));
        })
        .also(&["DotDotMissing", "DotDotInode", "LinkCount"]),
        case("DotInode", "ext4", |v| {
            let dir = v.lookup("dir");
            let block = v.blocks(dir)[0];
            v.edit_leaf(dir, block, |b| put32(b, 0, 2));
        }),
        case("DotDotMissing", "ext4", |v| {
            let dir = v.lookup("dir");
            let block = v.blocks(dir)[0];
            v.edit_leaf(dir, block, |b| put32(b, 12, 0));
        })
        .also(&["DotDotInode", "LinkCount"]),
        case("DotDotInode", "ext4", |v| {
            let dir = v.lookup("dir/sub");
            let block = v.blocks(dir)[0];
            v.edit_leaf(dir, block, |b| put32(b, 12, 2));
        })
        .also(&["LinkCount"]),
        case("EntryInode", "ext4", |v| {
            let (block, at, _) = v.find(Ino::ROOT, "zero");
            v.edit_leaf(Ino::ROOT, block, |b| put32(b, at, 9));
        })
        .also(&["InodeUnattached", "InodeBitmap", "GroupFreeInodes"]),
        case("EntryType", "ext4", |v| {
            let (block, at, _) = v.find(Ino::ROOT, "zero");
            v.edit_leaf(Ino::ROOT, block, |b| b[at + 7] = 2);
        }),
        case("EntryDuplicate", "ext4", |v| {
            let dir = v.lookup("dir");
            let (block, at, _) = v.find(dir, "small");
            v.edit_leaf(dir, block, |b| {
                b[at + 6] = 3;
                b[at + 8..at + 11].copy_from_slice(b"big");
            });
        })
        .also(&["InodeUnattached"]),
        case("EntrySecondLink", "ext4", |v| {
            let target = v.lookup("empty");
            let (block, at, _) = v.find(Ino::ROOT, "zero");
            v.edit_leaf(Ino::ROOT, block, |b| put32(b, at, target.0));
        })
        .also(&[
            "EntryType",
            "InodeUnattached",
            "InodeBitmap",
            "GroupFreeInodes",
        ]),
        case("EntryUnusedInode", "ext4", |v| {
            v.edit_desc(0, |d| d.itable_unused += 8);
        })
        .also(&[
            "InodeBitmap",
            "GroupFreeInodes",
            "BlockBitmap",
            "GroupFreeBlocks",
            "GroupDirs",
        ]),
        case("HtreeRoot", "ext4", |v| {
            let dir = v.lookup("many");
            let block = v.blocks(dir)[0];
            v.edit_index(dir, block, DxPlace::Root, |b| b[28] = 99);
        }),
        case("HtreeNode", "ext4", |v| {
            let dir = v.lookup("many");
            let block = v.blocks(dir)[0];
            v.edit_index(dir, block, DxPlace::Root, |b| put16(b, 34, 0));
        }),
        case("HtreeChecksum", "ext4", |v| {
            let block = v.blocks(v.lookup("many"))[0];
            let at = v.geo.block_len() - 1;
            v.block(block)[at] ^= 1;
        }),
        case("HtreeBlock", "ext4", |v| {
            let dir = v.lookup("many");
            let block = v.blocks(dir)[0];
            v.edit_index(dir, block, DxPlace::Root, |b| put32(b, 36, 4000));
        })
        .also(&["HtreeUnreferenced"]),
        case("HtreeUnreferenced", "ext4", |v| {
            let dir = v.lookup("many");
            let block = v.blocks(dir)[0];
            v.edit_index(dir, block, DxPlace::Root, |b| {
                let count = u16::from_le_bytes([b[34], b[35]]);
                put16(b, 34, count - 1);
            });
        }),
        case("HtreeHash", "ext4", |v| {
            let dir = v.lookup("many");
            let leaf = v.blocks(dir)[1];
            v.edit_leaf(dir, leaf, |b| b[8] = b'b');
        }),
    ]
}

fn tree_cases() -> Vec<Case> {
    vec![
        case("RootMissing", "ext4", |v| {
            v.edit_raw(Ino::ROOT, |raw| raw.fill(0))
        })
        .also(&[
            "DirUnreachable",
            "InodeUnattached",
            "LinkCount",
            "BlockBitmap",
            "GroupFreeBlocks",
            "GroupDirs",
            "InodeBitmap",
            "GroupFreeInodes",
            "DotDotInode",
        ]),
        case("DirUnreachable", "ext4", |v| {
            let (block, at, _) = v.find(Ino::ROOT, "dir");
            v.edit_leaf(Ino::ROOT, block, |b| put32(b, at, 0));
        })
        .also(&["LinkCount", "DotDotInode"]),
        case("DirLoop", "ext4", |v| {
            // dir/sub/deep takes the place of... dir: the three name each other only.
            let (dir, deep) = (v.lookup("dir"), v.lookup("dir/sub/deep"));
            let (block, at, _) = v.find(Ino::ROOT, "dir");
            v.edit_leaf(Ino::ROOT, block, |b| put32(b, at, 0));
            let block = v.blocks(deep)[0];
            let space = v.format().leaf_space();
            v.edit_leaf(deep, block, |b| {
                put16(b, 16, 12);
                put32(b, 24, dir.0);
                put16(b, 28, (space - 24) as u16);
                b[30] = 3;
                b[31] = 2;
                b[32..35].copy_from_slice(b"dir");
            });
        })
        .also(&["LinkCount", "DotDotInode", "DirUnreachable"]),
        case("InodeUnattached", "ext4", |v| {
            let dir = v.lookup("dir");
            let (block, at, _) = v.find(dir, "big");
            v.edit_leaf(dir, block, |b| put32(b, at, 0));
        }),
        case("OrphanList", "groups", |v| {
            v.edit_sb(|sb| sb.last_orphan.set(9_999_999))
        }),
        case("OrphanPending", "groups", |v| {
            let dir = v.lookup("dir");
            let (block, at, ino) = v.find(dir, "big");
            v.edit_leaf(dir, block, |b| put32(b, at, 0));
            v.edit_inode(ino, |i| i.links = 0);
            v.edit_sb(|sb| sb.last_orphan.set(ino.0));
        })
        .also(&[
            "BlockBitmap",
            "InodeBitmap",
            "GroupFreeBlocks",
            "GroupFreeInodes",
            "XattrRefcount",
        ]),
        case("OrphanBlock", "more", |v| {
            let file = Ino(v.sb().orphan_file_inum.get());
            let block = v.blocks(file)[0];
            let at = v.geo.block_len() - 8;
            v.block(block)[at] ^= 1;
        }),
        case("OrphanFile", "more", |v| orphan_entry(v, Ino(2000), true)),
        case("OrphanPresentMissing", "more", |v| {
            let ino = v.lookup("zero");
            orphan_entry(v, ino, false);
        })
        .also(&["OrphanPending"]),
        case("OrphanPresentSet", "more", set_orphan_present),
        case("QuotaFile", "more", |v| {
            let block = v.blocks(Ino::USR_QUOTA)[0];
            v.block(block)[0] ^= 1;
        }),
        case("QuotaUsage", "more", |v| {
            let ino = v.lookup("dir/big");
            v.edit_inode(ino, |i| i.uid = 0);
            // Block 5 of the file (1 KiB each) is where mke2fs puts the first entries.
            let blocks = v.blocks(Ino::USR_QUOTA);
            let place = v.at(blocks[2]) + 1024 + 16 + 48;
            v.image[place] ^= 1;
        }),
    ]
}

fn set_orphan_present(v: &mut Volume) {
    v.edit_sb(|sb| {
        let mut f = sb.features();
        f.ro_compat |= RoCompat::ORPHAN_PRESENT;
        sb.set_features(f);
    });
}

fn orphan_entry(v: &mut Volume, ino: Ino, present: bool) {
    let geo = v.geo.clone();
    let file = Ino(v.sb().orphan_file_inum.get());
    let seed = geo.inode_seed(file, v.inode(file).generation);
    let block = v.blocks(file)[0];
    let bytes = v.block(block);
    orphan_file::set_slot(bytes, 0, ino).unwrap();
    orphan_file::write_tail(bytes, block, &geo, seed).unwrap();
    if present {
        set_orphan_present(v);
    }
}

/// Issues that are tested elsewhere (a journal with transactions in it), or that mean the volume
/// is somebody else's.
const ELSEWHERE: &[&str] = &[
    "JournalReplayed",
    "JournalTransaction",
    "JournalBlockOutside",
    "FastCommitReplayed",
    "FastCommitUnknown",
    "FastCommitRecord",
    "RecoveryFlagMissing",
    "JournalExternal",
    "MmpInUse",
];

#[test]
fn every_issue_is_found_and_repaired() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let bases: BTreeMap<&str, Volume> = BASES
        .iter()
        .map(|(name, size, args)| (*name, Volume::new(lab.make(size, args).unwrap())))
        .collect();
    let cases: Vec<Case> = superblock_cases()
        .into_iter()
        .chain(journal_cases())
        .chain(group_cases())
        .chain(inode_cases())
        .chain(mapping_cases())
        .chain(attribute_cases())
        .chain(directory_cases())
        .chain(tree_cases())
        .collect();
    let mut failures = Vec::new();
    for case in &cases {
        let mut volume = bases[case.base].clone();
        (case.damage)(&mut volume);
        let what = format!("{} on {}", case.issue, case.base);
        let report = match verify(&volume.image) {
            Ok(report) => report,
            Err(error) => {
                failures.push(format!("{what}: {error}"));
                continue;
            }
        };
        let found: BTreeSet<String> = report.issues.iter().map(|i| name(&i.kind)).collect();
        let strange: Vec<&String> = report
            .issues
            .iter()
            .filter(|i| i.severity > Severity::Note)
            .map(|i| &i.kind)
            .zip(report.issues.iter().filter(|i| i.severity > Severity::Note))
            .filter_map(|(kind, _)| found.get(&name(kind)))
            .filter(|n| {
                **n != case.issue
                    && !case.also.contains(&n.as_str())
                    && !case.more.contains(&n.as_str())
            })
            .collect();
        if !found.contains(case.issue) || !strange.is_empty() {
            failures.push(format!("{what}: found\n{}", show(&report)));
        }
        let (report, after) = repair(&volume.image, Mode::Yes);
        let (code, text) = lab.e2fsck(&after);
        let again = verify(&after).map(|r| (r.is_clean(), show(&r)));
        let report = report.map_or_else(
            |e| e.to_string(),
            |r| {
                let bad = r.issues.iter().any(|i| i.outcome != Outcome::Repaired);
                format!("exit {} left {bad}\n{}", fsck_exit_code(&r), show(&r))
            },
        );
        if code != 0 || text.contains("? no") || !matches!(again, Ok((true, _))) {
            failures.push(format!(
                "{what}: after repair ({report}) e2fsck {code}:\n{text}\nours: {again:?}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let tested: BTreeSet<&str> = cases
        .iter()
        .map(|c| c.issue)
        .chain(ELSEWHERE.iter().copied())
        .collect();
    let source = include_str!("../src/ext4/issue.rs");
    let body = source.split("pub enum IssueKind {").nth(1).unwrap();
    let body = body.split("\n}\n").next().unwrap();
    let missing: Vec<&str> = body
        .lines()
        .map(str::trim)
        .filter(|l| l.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|l| l.split([' ', ',', '{']).next().unwrap())
        .filter(|n| !tested.contains(n))
        .collect();
    assert!(missing.is_empty(), "issues without a test: {missing:?}");
}

#[test]
fn another_mount_is_left_alone() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make(
        "8M",
        &["-t", "ext4", "-b", "1024", "-O", "mmp,^has_journal"],
    );
    let mut volume = Volume::new(image.unwrap());
    let geo = volume.geo.clone();
    let block = BlockNo(volume.sb().mmp_block.get());
    let bytes = volume.block(block);
    put32(bytes, 4, 77);
    let sum = geo.seed.mmp(bytes);
    put32(bytes, 0x3FC, sum);
    let report = verify(&volume.image).unwrap();
    assert!(report.issues.iter().any(|i| name(&i.kind) == "MmpInUse"));
    assert_ne!(mmp::SEQ_CLEAN, 77);
    let (report, after) = repair(&volume.image, Mode::Yes);
    assert!(report.is_err());
    assert!(after == volume.image, "a volume in use was written");
}

#[test]
fn external_journal_is_said() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make("8M", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let mut volume = Volume::new(image.unwrap());
    volume.edit_sb(|sb| {
        let mut f = sb.features();
        f.compat |= Compat::HAS_JOURNAL;
        sb.set_features(f);
        sb.journal_uuid = [7; 16];
    });
    let report = verify(&volume.image).unwrap();
    assert!(
        report
            .issues
            .iter()
            .any(|i| i.kind == IssueKind::JournalExternal)
    );
    let _ = (jbd2::MAGIC, DirBlock::entries_of(&[], volume.format()));
}
