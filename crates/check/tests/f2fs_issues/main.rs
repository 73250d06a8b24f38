//! One damaged f2fs volume for each issue: what is told of it, and what fsck.f2fs says.

use blockwright_test_support::lab as common;
mod restored;

use blockwright_check::Mode;
use blockwright_check::f2fs::IssueKind;
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::dir::{DentrySlots, slots_of};
use blockwright_ondisk::f2fs::inode::{
    CHECKSUM_OFFSET, INLINE_RESERVED_WORDS, NIDS_OFFSET, WORDS_OFFSET,
};
use blockwright_ondisk::f2fs::pack::PackLayout;
use blockwright_ondisk::f2fs::sit::ValidMap;
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, FileKind, Footer, InlineFlags, Ino, InodeFlags, Log, Nid, NodeOffset,
    SegNo, hash, xattr,
};
use common::f2fs::{F2Lab, F2Volume, FULL, f2fs_tools, names, repair_f2fs, show, verify_f2fs};

/// What fsck.f2fs says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tool {
    /// It finds something too.
    Agrees,
    /// It finds nothing: it does not look, or repairs in silence.
    Silent(&'static str),
}

use Tool::{Agrees, Silent};

struct Case {
    /// Kinds of issues told, except those that follow.
    kinds: &'static [&'static str],
    tool: Tool,
    damage: fn(&mut F2Volume),
}

const fn case(kinds: &'static [&'static str], tool: Tool, damage: fn(&mut F2Volume)) -> Case {
    Case {
        kinds,
        tool,
        damage,
    }
}

fn edit_superblock(v: &F2Volume, copy: u32, edit: impl FnOnce(&mut RawSuperblock)) {
    v.edit(BlockAddr(copy), |b| {
        let mut raw = RawSuperblock::read(b).unwrap();
        edit(&mut raw);
        raw.set_checksum();
        b[1024..1024 + 3072].copy_from_slice(&raw.to_bytes());
    });
}

fn edit_slots(v: &F2Volume, dir: Ino, name: &str, edit: impl FnOnce(&mut DentrySlots<'_>, usize)) {
    v.edit_dir(dir, name, |bytes, layout, slot| {
        edit(&mut DentrySlots::new(bytes, layout).unwrap(), slot);
    });
}

/// Makes an entry anew, in its place.
fn put_entry(v: &F2Volume, dir: Ino, old: &str, name: &str, hash: u32, ino: Ino, kind: FileKind) {
    edit_slots(v, dir, old, |slots, slot| {
        slots.remove(slot, slots_of(old.len()));
        slots
            .insert(slot, name.as_bytes(), hash, ino, kind)
            .unwrap();
    });
}

fn put_word(v: &F2Volume, nid: Nid, at: usize, word: u32) {
    v.edit_node(nid, |b| b[at..at + 4].copy_from_slice(&word.to_le_bytes()));
}

/// Another length of the extra attributes, and the checksum of the old one.
fn put_extra_size(v: &F2Volume, path: &str, size: u16) {
    let (block, _) = v.node(v.lookup(path).nid());
    v.edit(block, |b| {
        b[WORDS_OFFSET..WORDS_OFFSET + 2].copy_from_slice(&size.to_le_bytes())
    });
}

fn edit_footer(v: &F2Volume, nid: Nid, edit: impl FnOnce(&mut Footer)) {
    v.edit_node(nid, |b| {
        let mut footer = Footer::read(b).unwrap();
        edit(&mut footer);
        footer.write(b).unwrap();
    });
}

/// The file "big", its first direct and its first indirect node.
fn big(v: &F2Volume) -> (Ino, Nid, Nid) {
    let ino = v.lookup("big");
    let (inode, _) = v.inode(ino);
    (ino, inode.nids[0], inode.nids[2])
}

/// A block of the users' quota file.
fn quota_block(v: &F2Volume, at: usize) -> BlockAddr {
    let (inode, bytes) = v.inode(Ino(4));
    let start = inode.layout(v.geo.features).address_bytes().start + at * 4;
    let word = bytes[start..start + 4].try_into().unwrap();
    BlockAddr(u32::from_le_bytes(word))
}

/// A block of the pack that counts.
fn pack_block(v: &F2Volume, at: impl FnOnce(&PackLayout) -> u32) -> BlockAddr {
    let layout = PackLayout::new(&v.pack.checkpoint, &v.geo).unwrap();
    BlockAddr(v.geo.pack_start(v.pack.which).0 + at(&layout))
}

const NAME: &str = "a-file-with-a-long-name-0100";

const CASES: &[Case] = &[
    case(&["SuperblockBad"], Silent("uses the other copy"), |v| {
        v.edit(BlockAddr(1), |b| b[1100] ^= 1);
    }),
    case(&["SuperblockBad"], Silent("uses the other copy"), |v| {
        v.edit(BlockAddr(0), |b| b[1024] ^= 1);
    }),
    case(&["SuperblockCopies"], Silent("uses the first copy"), |v| {
        edit_superblock(v, 1, |sb| sb.encryption_level = 1);
    }),
    case(&["CheckpointBad"], Silent("an old pack may be torn"), |v| {
        let other = v.geo.pack_start(v.pack.which.other());
        v.edit(other, |b| b[5] ^= 1);
    }),
    case(&["PackLayout"], Agrees, |v| {
        // One block less than the summaries need.
        v.edit_checkpoint(|cp| {
            let total = cp.raw.cp_pack_total_block_count.get();
            cp.raw.cp_pack_total_block_count.set(total + 1);
        });
    }),
    case(&["PackSummary"], Silent("does not look at it"), |v| {
        let block = pack_block(v, |l| l.node_summaries.unwrap());
        v.edit(block, |b| b[4091] = 0);
    }),
    case(&["MarkedErroneous"], Silent("repairs on its own"), |v| {
        v.edit_checkpoint(|cp| {
            let flags = cp.flags() | CheckpointFlags::FSCK;
            cp.raw.ckpt_flags.set(flags.bits());
        });
    }),
    case(&["QuotaUncounted"], Silent("counts anew"), |v| {
        v.edit_checkpoint(|cp| {
            let flags = cp.flags() | CheckpointFlags::QUOTA_NEED_FSCK;
            cp.raw.ckpt_flags.set(flags.bits());
        });
    }),
    case(&["CheckpointDisabled"], Silent("does not mind"), |v| {
        v.edit_checkpoint(|cp| {
            let flags = cp.flags() | CheckpointFlags::DISABLED;
            cp.raw.ckpt_flags.set(flags.bits());
        });
    }),
    case(&["OrphanBlock"], Agrees, |v| {
        add_orphans(v, &[Ino(500_000)]);
    }),
    case(&["OrphanMissing"], Agrees, |v| {
        add_orphans(v, &[Ino(20_000)]);
    }),
    case(
        &["OrphanPending"],
        Silent("waits for the next mount"),
        |v| {
            let ino = v.lookup("dir/sub/middle");
            let sub = v.lookup("dir/sub");
            edit_slots(v, sub, "middle", |s, slot| s.remove(slot, 1));
            v.edit_inode(ino, |head| head.links.set(0));
            add_orphans(v, &[ino]);
        },
    ),
    case(&["NatBits"], Silent("writes them anew"), |v| {
        let block = pack_block(v, |l| l.nat_bits.unwrap().0);
        v.edit(block, |b| b[0] ^= 1);
    }),
    case(&["NatBitsWrong"], Silent("does not look at them"), |v| {
        let block = pack_block(v, |l| l.nat_bits.unwrap().0);
        v.edit(block, |b| b[8] |= 1);
    }),
    case(&["LogSegmentType"], Agrees, |v| {
        let seg = v.pack.checkpoint.raw.log(Log::WarmNode).segment;
        let mut entry = v.sit_entry(seg);
        entry.log = Log::ColdNode;
        v.set_sit(seg, entry);
    }),
    case(&["LogOffset"], Agrees, |v| {
        v.edit_checkpoint(|cp| {
            let mut head = cp.raw.log(Log::WarmNode);
            head.offset -= 1;
            cp.raw.set_log(Log::WarmNode, head);
        });
    }),
    case(&["LogAllocation"], Silent("does not look at it"), |v| {
        v.edit_checkpoint(|cp| {
            let mut head = cp.raw.log(Log::WarmNode);
            head.alloc = 9;
            cp.raw.set_log(Log::WarmNode, head);
        });
    }),
    case(&["ValidBlocks"], Agrees, |v| {
        v.edit_checkpoint(|cp| {
            let n = cp.raw.valid_block_count.get();
            cp.raw.valid_block_count.set(n + 1);
        });
    }),
    case(&["ValidNodes"], Agrees, |v| {
        v.edit_checkpoint(|cp| {
            let n = cp.raw.valid_node_count.get();
            cp.raw.valid_node_count.set(n + 1);
        });
    }),
    case(&["CheckpointField"], Agrees, |v| {
        v.edit_checkpoint(|cp| cp.raw.rsvd_segment_count.set(0));
    }),
    case(&["CheckpointField"], Agrees, |v| {
        v.edit_checkpoint(|cp| cp.raw.user_block_count.set(1 << 40));
    }),
    case(&["CheckpointField"], Agrees, |v| {
        v.edit_checkpoint(|cp| cp.raw.cp_pack_start_sum.set(u32::MAX));
    }),
    case(
        &["CheckpointField", "ValidInodes", "ValidNodes"],
        Agrees,
        |v| {
            v.edit_checkpoint(|cp| {
                let n = cp.raw.valid_node_count.get();
                cp.raw.valid_inode_count.set(n + 7);
            });
        },
    ),
    case(&["ValidInodes"], Agrees, |v| {
        v.edit_checkpoint(|cp| {
            let n = cp.raw.valid_inode_count.get();
            cp.raw.valid_inode_count.set(n - 1);
        });
    }),
    case(&["FreeSegments"], Agrees, |v| {
        v.edit_checkpoint(|cp| {
            let n = cp.raw.free_segment_count.get();
            cp.raw.free_segment_count.set(n - 1);
        });
    }),
    case(&["EntryDangling", "NatEntry"], Agrees, |v| {
        let sub = v.lookup("dir/sub/middle");
        let mut entry = v.nat_entry(sub.nid());
        entry.block = BlockAddr(7);
        v.set_nat(sub.nid(), entry);
    }),
    case(&["NatReserved"], Agrees, |v| {
        let mut entry = v.nat_entry(Nid(2));
        entry.block = BlockAddr(9999);
        v.set_nat(Nid(2), entry);
    }),
    case(&["SitEntry"], Agrees, |v| {
        let seg = SegNo(1);
        let (index, position) = v.geo.sit_position(seg);
        let copy = v.pack.checkpoint.sit_bitmap.get(index);
        v.edit(v.geo.sit_block(index, copy).unwrap(), |b| {
            b[position * 74] ^= 1
        });
    }),
    // Of a segment whose entry in the journal counts: the kernel looks at this one first.
    case(&["SitEntry"], Agrees, |v| {
        let seg = SegNo(1);
        let entry = v.sit_entry(seg);
        v.sit.0.push((seg, entry));
        let journal = v.sit.encode().unwrap();
        v.edit_journal(2, &journal);
        let (index, position) = v.geo.sit_position(seg);
        let copy = v.pack.checkpoint.sit_bitmap.get(index);
        v.edit(v.geo.sit_block(index, copy).unwrap(), |b| {
            b[position * 74 + 1] |= 0xFC;
        });
    }),
    case(&["SitBitmap"], Agrees, |v| {
        let seg = SegNo(v.pack.checkpoint.raw.log(Log::WarmData).segment.0);
        let mut entry = v.sit_entry(seg);
        entry.valid = ValidMap::default();
        v.set_sit(seg, entry);
    }),
];

/// Puts orphans into the pack: everything behind moves on by a block.
fn add_orphans(v: &mut F2Volume, list: &[Ino]) {
    let start = v.geo.pack_start(v.pack.which).0;
    let total = v.pack.checkpoint.raw.cp_pack_total_block_count.get();
    let first = v.pack.checkpoint.raw.cp_pack_start_sum.get();
    for at in (first..total).rev() {
        let block = v.block(BlockAddr(start + at));
        v.put(BlockAddr(start + at + 1), &block);
    }
    let blocks = blockwright_ondisk::f2fs::pack::encode_orphans(list);
    v.put(BlockAddr(start + first), &blocks[0]);
    v.edit_checkpoint(|cp| {
        cp.raw.cp_pack_total_block_count.set(total + 1);
        cp.raw.cp_pack_start_sum.set(first + 1);
        let flags = cp.flags() | CheckpointFlags::ORPHAN_PRESENT;
        cp.raw.ckpt_flags.set(flags.bits());
    });
}

/// What follows from other damage.
const FOLLOWING: [&str; 12] = [
    "EntryDangling",
    "FreeSegments",
    "InodeBlocks",
    "InodeLinks",
    "InodeUnreachable",
    "NatBits",
    "NodeUnreachable",
    "QuotaUsage",
    "SitBitmap",
    "ValidBlocks",
    "ValidInodes",
    "ValidNodes",
];

/// Kinds that no repair is for.
const LEFT: [&str; 3] = ["QuotaInode", "RootMissing", "CheckpointDisabled"];

fn told(text: &str) -> String {
    let bad = |l: &&str| {
        ["ASSERT", "FIX", "Fail", "Error"]
            .iter()
            .any(|w| l.contains(w))
    };
    text.lines()
        .filter(bad)
        .take(8)
        .collect::<Vec<_>>()
        .join("\n")
}

fn run(cases: &[Case]) {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let base = lab.volume(&["-O", FULL]);
    let mut wrong = String::new();
    for (n, case) in cases.iter().enumerate() {
        let kinds = case.kinds;
        let mut v = base.copy();
        (case.damage)(&mut v);
        let report = verify_f2fs(&v.device).unwrap();
        let found = names(&report);
        let all = kinds.iter().all(|k| found.iter().any(|f| f == k));
        let known = |f: &String| kinds.contains(&f.as_str()) || FOLLOWING.contains(&f.as_str());
        if !all || !found.iter().all(known) {
            wrong += &format!("case {n}: {kinds:?}, found {found:?}\n{}", show(&report));
        }
        let (clean, text) = lab.fsck(&v.device);
        if clean != (case.tool != Agrees) {
            let (tool, text) = (case.tool, told(&text));
            wrong += &format!("case {n}: {kinds:?}: fsck.f2fs {tool:?}, clean: {clean}\n{text}\n");
        }
        let left = kinds.iter().any(|k| LEFT.contains(k));
        let (report, repaired) = repair_f2fs(&v.device, Mode::Yes);
        let report = report.unwrap();
        if report.has_uncorrected() != (left && !report.is_clean()) {
            wrong += &format!("case {n}: {kinds:?}, after the repair:\n{}", show(&report));
        }
        if left {
            continue;
        }
        let again = verify_f2fs(&repaired).unwrap();
        if !again.is_clean() {
            wrong += &format!("case {n}: {kinds:?}, repaired, but:\n{}", show(&again));
        }
        let (clean, text) = lab.fsck(&repaired);
        if !clean {
            wrong += &format!(
                "case {n}: {kinds:?}, repaired: fsck.f2fs: {}\n",
                told(&text)
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn superblocks_checkpoints_and_tables() {
    run(CASES);
}

/// Nodes, inodes and directories.
const FILES: &[Case] = &[
    case(&["SegmentType"], Agrees, |v| {
        let (_, _, node) = big(v);
        let _ = node;
        let seg = v.geo.segment_of(v.addresses(v.lookup("big"))[0]).unwrap().0;
        let mut entry = v.sit_entry(seg);
        entry.log = Log::WarmNode;
        v.set_sit(seg, entry);
    }),
    case(&["SummaryKind"], Agrees, |v| {
        let seg = v.geo.segment_of(v.addresses(v.lookup("big"))[0]).unwrap().0;
        v.edit(v.geo.ssa_block(seg).unwrap(), |b| b[4091] = 1);
    }),
    case(&["SummaryEntries"], Agrees, |v| {
        let (seg, at) = v.geo.segment_of(v.addresses(v.lookup("big"))[0]).unwrap();
        v.edit(v.geo.ssa_block(seg).unwrap(), |b| {
            b[usize::from(at) * 7] ^= 1
        });
    }),
    case(&["NodeFooter", "NodeUnreachable"], Agrees, |v| {
        let (_, direct, _) = big(v);
        edit_footer(v, direct, |f| f.ino = Ino(9));
    }),
    case(&["NodeOffset"], Silent("does not look at it"), |v| {
        let (_, direct, _) = big(v);
        edit_footer(v, direct, |f| f.offset = NodeOffset(2));
    }),
    case(&["NodeOffset"], Silent("does not look at it"), |v| {
        let (_, direct, _) = big(v);
        edit_footer(v, direct, |f| f.offset = NodeOffset::INODE);
    }),
    case(&["NodeOffset"], Silent("does not look at it"), |v| {
        let (ino, _, _) = big(v);
        edit_footer(v, ino.nid(), |f| f.offset = NodeOffset(3));
    }),
    case(&["NodeNext"], Silent("does not look at it"), |v| {
        let (_, direct, _) = big(v);
        edit_footer(v, direct, |f| f.next = BlockAddr(17));
    }),
    case(&["NodeMissing"], Agrees, |v| {
        let (ino, _, _) = big(v);
        put_word(v, ino.nid(), NIDS_OFFSET + 16, 20_000);
    }),
    case(&["NodeShared"], Agrees, |v| {
        let (ino, direct, _) = big(v);
        put_word(v, ino.nid(), NIDS_OFFSET + 16, direct.0);
    }),
    case(&["NodeOwner"], Agrees, |v| {
        let (_, direct, _) = big(v);
        let mut entry = v.nat_entry(direct);
        entry.ino = Ino(9);
        v.set_nat(direct, entry);
    }),
    case(&["NodeOwner"], Agrees, |v| {
        let ino = v.lookup("dir/small");
        let mut entry = v.nat_entry(ino.nid());
        entry.ino = Ino(9);
        v.set_nat(ino.nid(), entry);
    }),
    case(&["NodeUnreachable"], Agrees, |v| {
        let (ino, _, _) = big(v);
        put_word(v, ino.nid(), NIDS_OFFSET, 0);
    }),
    case(&["DataAddress"], Agrees, |v| {
        let (ino, _, _) = big(v);
        let at = v.address_at(ino, 5);
        put_word(v, ino.nid(), at, 3);
    }),
    case(&["BlockShared"], Agrees, |v| {
        let ino = v.lookup("big");
        let other = v.addresses(v.lookup("dir/sub/middle"))[0];
        let at = v.address_at(ino, 5);
        put_word(v, ino.nid(), at, other.0);
    }),
    case(&["BlockForeign"], Agrees, |v| {
        let ino = v.lookup("big");
        let head = v.pack.checkpoint.raw.log(Log::ColdNode);
        let free = v.geo.segment_start(head.segment).unwrap().0 + u32::from(head.offset) + 9;
        let at = v.address_at(ino, 5);
        put_word(v, ino.nid(), at, free);
    }),
    case(&["CompressMark"], Agrees, |v| {
        let ino = v.lookup("big");
        let at = v.address_at(ino, 5);
        put_word(v, ino.nid(), at, BlockAddr::COMPRESSED.0);
    }),
    case(&["InodeChecksum"], Agrees, |v| {
        let (block, _) = v.node(v.lookup("big").nid());
        v.edit(block, |b| b[CHECKSUM_OFFSET] ^= 1);
    }),
    // Too short to reach the checksum; and one that leaves a word of attributes to the addresses.
    case(&["InodeExtraSize"], Agrees, |v| {
        put_extra_size(v, "dir/sub/middle", 4)
    }),
    case(&["InodeExtraSize"], Agrees, |v| {
        put_extra_size(v, "big", 32)
    }),
    case(&["InodeExtraSize"], Agrees, |v| {
        put_extra_size(v, "dir", 0xFFFF)
    }),
    case(&["InodeUnusable"], Agrees, |v| {
        v.edit_inode(v.lookup("dir/sub/middle"), |h| h.mode.set(0o644));
    }),
    case(&["InodeField"], Agrees, |v| {
        v.edit_inode(v.lookup("dir/sub/middle"), |h| h.namelen.set(700));
    }),
    case(&["InodeBlocks"], Agrees, |v| {
        v.edit_inode(v.lookup("dir/sub/middle"), |h| h.blocks.set(9));
    }),
    case(&["InodeLinks"], Agrees, |v| {
        v.edit_inode(v.lookup("hard"), |h| h.links.set(3));
    }),
    case(&["InodeLinks"], Agrees, |v| {
        v.edit_inode(v.lookup("dir"), |h| h.links.set(2));
    }),
    case(&["InodeExtent"], Agrees, |v| {
        let at = v.addresses(v.lookup("dir/sub/middle"))[0].0;
        v.edit_inode(v.lookup("dir/sub/middle"), |h| {
            h.ext.fofs.set(0);
            h.ext.blk.set(at + 1);
            h.ext.len.set(2);
        });
    }),
    case(&["CasefoldFlag"], Agrees, |v| {
        v.edit_inode(v.lookup("dir/sub"), |h| {
            h.flags.set(h.flags.get() | 0x4000_0000)
        });
    }),
    case(&["GcFailures"], Agrees, |v| {
        v.edit_inode(v.lookup("dir/sub/middle"), |h| h.current_depth.set(7));
    }),
    case(&["SummaryEntries"], Agrees, |v| {
        let mut entry = v.nat_entry(big(v).1);
        entry.version += 1;
        v.set_nat(big(v).1, entry);
    }),
    case(&["InlineReserved"], Agrees, |v| {
        let ino = v.lookup("link");
        assert!(v.inode(ino).0.inline.contains(InlineFlags::DATA));
        assert_eq!(INLINE_RESERVED_WORDS, 1);
        let at = v.address_at(ino, 0);
        put_word(v, ino.nid(), at, 77);
    }),
    case(&["InlineUnsaid"], Agrees, |v| {
        v.edit_inode(v.lookup("link"), |h| {
            h.inline &= !InlineFlags::DATA_EXIST.bits();
        });
    }),
    case(&["InodeExtent"], Agrees, |v| {
        // Of a directory, which has none.
        v.edit_inode(v.lookup("many"), |h| h.ext.len.set(16384));
    }),
    case(&["InlineNode"], Silent("does not look at it"), |v| {
        let (_, direct, _) = big(v);
        put_word(v, v.lookup("link").nid(), NIDS_OFFSET, direct.0);
    }),
    case(&["SymlinkEmpty"], Silent("does not look at it"), |v| {
        v.edit_inode(v.lookup("link"), |h| h.size.set(0));
    }),
    case(&["Xattr"], Silent("looks at shapes only"), |v| {
        let ino = v.lookup("dir/sub/middle");
        v.edit_inode(ino, |h| h.inline |= InlineFlags::XATTR.bits());
        let (inode, _) = v.inode(ino);
        let range = inode.layout(v.geo.features).xattr_bytes();
        let list = [xattr::Xattr {
            index: xattr::INDEX_USER,
            name: b"n",
            value: b"v",
        }];
        let (mut bytes, _) = xattr::build(&list, range.len()).unwrap();
        bytes[26..28].copy_from_slice(&60_000u16.to_le_bytes());
        v.edit_node(ino.nid(), |b| b[range].copy_from_slice(&bytes));
    }),
    case(&["InodeLinks", "InodeUnreachable"], Agrees, |v| {
        let dir = v.lookup("dir");
        edit_slots(v, dir, "sub", |s, slot| s.remove(slot, 1));
    }),
    case(&["QuotaInode"], Agrees, |v| {
        for copy in 0..2 {
            edit_superblock(v, copy, |sb| sb.qf_ino[0].set(20_000));
        }
    }),
    case(&["QuotaUsage"], Silent("counts anew"), |v| {
        // The entries are in the sixth block of 1 KiB.
        v.edit(quota_block(v, 1), |b| b[1024 + 16 + 48 + 1] ^= 16);
    }),
    case(&["QuotaFile"], Silent("makes it anew"), |v| {
        v.edit(quota_block(v, 0), |b| b[0] ^= 1);
    }),
    case(&["QuotaFile"], Agrees, |v| {
        // The tree leads out of the file.
        v.edit(quota_block(v, 0), |b| b[2048..2052].fill(0x77));
    }),
    case(&["DirEntry"], Agrees, |v| {
        let (block, slot, _) = v.find(v.lookup("many"), NAME);
        v.edit(block.unwrap(), |b| {
            b[30 + slot * 11 + 8..][..2].copy_from_slice(&[0, 2])
        });
    }),
    case(&["DirSlots"], Silent("does not look at it"), |v| {
        let dir = v.lookup("many");
        edit_slots(v, dir, NAME, |s, slot| s.remove(slot + 2, 1));
    }),
    case(&["DirHash"], Agrees, |v| {
        let dir = v.lookup("dir");
        let (_, _, ino) = v.find(dir, "small");
        put_entry(v, dir, "small", "small", 7, ino, FileKind::Regular);
    }),
    case(&["DirPlace"], Agrees, |v| {
        // Another name in the place of one, that belongs into another bucket.
        let dir = v.lookup("many");
        let level_one = v.addresses(dir)[2..6].to_vec();
        let at = |n: &u32| v.find(dir, &format!("a-file-with-a-long-name-{n:04}"));
        let n = (0..320u32).find(|n| level_one.contains(&at(n).0.unwrap()));
        let n = n.unwrap();
        let (_, _, ino) = at(&n);
        let here = format!("a-file-with-a-long-name-{n:04}");
        let name = (0..).map(|n| format!("a-file-with-a-long-name-x{n:03}"));
        let old = hash::name_hash(here.as_bytes());
        let name = name
            .into_iter()
            .find(|n| hash::name_hash(n.as_bytes()) % 2 != old % 2);
        let name = name.unwrap();
        let hash = hash::name_hash(name.as_bytes());
        put_entry(v, dir, &here, &name, hash, ino, FileKind::Regular);
    }),
    case(&["DirLevel"], Agrees, |v| {
        v.edit_inode(v.lookup("many"), |h| h.dir_level = 3);
    }),
    case(&["DirSize"], Silent("does not look at it"), |v| {
        v.edit_inode(v.lookup("many"), |h| h.size.set(4096));
    }),
    case(&["DirDepth"], Silent("does not look at it"), |v| {
        v.edit_inode(v.lookup("many"), |h| h.current_depth.set(1));
    }),
    case(&["DotTarget"], Agrees, |v| {
        let dir = v.lookup("dir");
        put_entry(v, dir, ".", ".", 0, Ino::ROOT, FileKind::Directory);
    }),
    case(&["DotTarget"], Agrees, |v| {
        let (dir, many) = (v.lookup("dir/sub"), v.lookup("many"));
        put_entry(v, dir, "..", "..", 0, many, FileKind::Directory);
    }),
    case(&["DirParent"], Agrees, |v| {
        let many = v.lookup("many");
        v.edit_inode(v.lookup("dir/sub"), |h| h.pino.set(many.0));
    }),
    case(&["DotMissing"], Agrees, |v| {
        let dir = v.lookup("dir");
        edit_slots(v, dir, "..", |s, slot| s.remove(slot, 1));
    }),
    case(&["DotsPending"], Silent("adds them"), |v| {
        let dir = v.lookup("dir");
        edit_slots(v, dir, "..", |s, slot| s.remove(slot, 1));
        v.edit_inode(dir, |h| h.inline |= InlineFlags::DOTS.bits());
    }),
    case(&["EntryDangling"], Agrees, |v| {
        let (dir, hash) = (v.lookup("dir/sub"), hash::name_hash(b"ghost"));
        edit_slots(v, dir, ".", |s, _| {
            let room = s.find_room(1).unwrap();
            s.insert(room, b"ghost", hash, Ino(20_000), FileKind::Regular)
                .unwrap();
        });
    }),
    case(&["EntryType"], Agrees, |v| {
        let dir = v.lookup("dir");
        let (_, _, ino) = v.find(dir, "small");
        let hash = hash::name_hash(b"small");
        put_entry(v, dir, "small", "small", hash, ino, FileKind::Fifo);
    }),
    case(&["EntryHidden"], Agrees, |v| {
        let (dir, hash) = (v.lookup("dir/sub"), hash::name_hash(b"quota"));
        edit_slots(v, dir, ".", |s, _| {
            let room = s.find_room(1).unwrap();
            s.insert(room, b"quota", hash, Ino(4), FileKind::Regular)
                .unwrap();
        });
    }),
    case(&["EntryDirTwice"], Agrees, |v| {
        let (dir, hash) = (v.lookup("dir/sub"), hash::name_hash(b"again"));
        let many = v.lookup("many");
        edit_slots(v, dir, ".", |s, _| {
            let room = s.find_room(1).unwrap();
            s.insert(room, b"again", hash, many, FileKind::Directory)
                .unwrap();
        });
    }),
    case(&["NameTwice"], Silent("does not look at it"), |v| {
        let dir = v.lookup("dir");
        let hash = hash::name_hash(b"small");
        let (_, _, ino) = v.find(dir, "small");
        edit_slots(v, dir, ".", |s, _| {
            let room = s.find_room(1).unwrap();
            s.insert(room, b"small", hash, ino, FileKind::Regular)
                .unwrap();
        });
        v.edit_inode(ino, |h| h.links.set(3));
    }),
    case(&["InodeUnusable", "RootMissing"], Agrees, |v| {
        v.edit_inode(Ino::ROOT, |h| h.mode.set(0));
    }),
    case(&["JournalCount"], Silent("cuts it"), |v| {
        let (block, at) = v.journal_place(0);
        v.edit(block, |b| b[at] = 200);
    }),
    case(&["JournalEntry"], Silent("skips it"), |v| {
        let (block, at) = v.journal_place(2);
        v.edit(block, |b| {
            b[at..at + 2].copy_from_slice(&[1, 0]);
            b[at + 2..at + 6].fill(0xEE);
        });
    }),
];

#[test]
fn nodes_inodes_and_directories() {
    run(FILES);
}

/// The volume of the other cases has the feature.
#[test]
fn a_flag_of_compression_without_the_feature() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let v = lab.volume(&[]);
    v.edit_inode(v.lookup("dir/sub"), |h| h.flags.set(h.flags.get() | 4));
    assert!(!lab.fsck(&v.device).0);
    let report = verify_f2fs(&v.device).unwrap();
    assert_eq!(names(&report), ["CompressFlag"], "{}", show(&report));
    let (report, after) = repair_f2fs(&v.device, Mode::Yes);
    assert!(!report.unwrap().has_uncorrected());
    assert!(verify_f2fs(&after).unwrap().is_clean());
    assert!(lab.fsck(&after).0);
}

#[test]
fn messages_name_structure_and_place() {
    let kind = IssueKind::BlockShared {
        ino: Ino(9),
        nid: Nid(12),
        position: 5,
        block: BlockAddr(0x1234),
    };
    assert_eq!(
        kind.to_string(),
        "inode 9: block 4660 (node 12, address 5) is in use elsewhere"
    );
    assert_eq!(BLOCK_SIZE, 4096);
}
