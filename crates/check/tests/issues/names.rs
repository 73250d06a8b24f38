//! Damage to directories, to the tree that they form, and to what refers to inodes otherwise.

use super::*;

pub fn directory_cases() -> Vec<Case> {
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
        case("EntryEncoding", "strict", |v| {
            let dir = v.lookup("dir/sub");
            v.edit_inode(dir, |i| i.flags |= InodeFlags::CASEFOLD);
            let (block, at, _) = v.find(dir, "middle");
            v.edit_leaf(dir, block, |b| b[at + 8] = 0xFF);
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
        // A name of what the next mount for writing deletes.
        case("EntryInode", "groups", |v| {
            let ino = v.lookup("zero");
            v.edit_inode(ino, |i| i.links = 0);
            v.edit_sb(|sb| sb.last_orphan.set(ino.0));
        }),
        case("EntryInode", "more", |v| {
            let ino = v.lookup("zero");
            v.edit_inode(ino, |i| i.links = 0);
            orphan_entry(v, ino, true);
        }),
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
        // Neither mark nor bitmap know the last inodes.
        case("EntryUnusedInode", "ext4", |v| {
            let used = v.geo.inodes_per_group - v.desc(0).itable_unused;
            v.edit_desc(0, |d| d.itable_unused += 8);
            v.edit_inode_bitmap(0, |b| {
                for n in used - 8..used {
                    b[n as usize / 8] &= !(1 << (n % 8));
                }
            });
        })
        .also(&["GroupUnusedInodes"])
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

pub fn tree_cases() -> Vec<Case> {
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
        case("OrphanFile", "more", |v| {
            // The first block is a hole, and there are as many as before.
            let ino = Ino(v.sb().orphan_file_inum.get());
            v.edit_inode(ino, |i| i.block[12] = 1);
        }),
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
        case("QuotaFile", "more", |v| {
            // Never written, says the extent.
            v.edit_inode(Ino::USR_QUOTA, |i| i.block[17] |= 0x80);
        }),
        case("QuotaFile", "more", |v| {
            v.edit_inode(Ino::USR_QUOTA, |i| i.size -= 1);
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
