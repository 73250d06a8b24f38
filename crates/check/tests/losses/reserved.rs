//! Inodes that no directory names.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{Ino, RoCompat, extent};

use crate::common::verdict::e2fsck_silent;
use crate::common::volume::Volume;
use crate::common::{Lab, show, tools, verify};
use crate::judge::{judge, listing, put32, with};

/// Inodes of a journal and of quota on a volume without either: a count of links says that they are in use.
#[test]
fn reserved_inodes_without_a_use_have_no_links() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", &with("^has_journal")).unwrap());
    let before = listing(&lab, &clean.image);
    for (ino, damaged) in [
        (1, true),
        (3, true),
        (4, true),
        (7, false),
        (8, true),
        (9, false),
    ] {
        for links in [1, 2, 0x8001] {
            let mut v = clean.clone();
            v.edit_inode(Ino(ino), |i| i.links = links);
            let what = format!("inode {ino}: {links} links");
            let (code, text) = lab.e2fsck(&v.image);
            assert_eq!(code != 0, damaged, "{what}: {text}");
            let report = verify(&v.image).unwrap();
            assert_eq!(report.is_clean(), !damaged, "{what}: {}", show(&report));
            let (wrong, ours) = judge(&lab, &what, &v.image);
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            assert_eq!(listing(&lab, &ours), before, "{what}");
        }
    }
}

/// Flags of directories, and of a file that is in its inode.
#[test]
fn reserved_inodes_have_flags_as_e2fsck_wants_them() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for features in [
        "^has_journal,^metadata_csum",
        "ea_inode,inline_data,casefold,^metadata_csum",
    ] {
        let clean = Volume::new(lab.make("12M", &with(features)).unwrap());
        let mut damaged = 0;
        for ino in [1, 3, 5, 7, 8, 9, 10].map(Ino) {
            for flag in [
                InodeFlags::INDEX,
                InodeFlags::CASEFOLD,
                InodeFlags::INLINE_DATA,
            ] {
                // An index of a journal is a matter of taste: nothing reads it.
                if flag != InodeFlags::CASEFOLD && ino == Ino::JOURNAL {
                    continue;
                }
                let mut v = clean.clone();
                v.edit_inode(ino, |i| i.flags |= flag);
                let what = format!("{features}: inode {ino}: {flag:?}");
                let (code, text) = lab.e2fsck(&v.image);
                let report = verify(&v.image).unwrap();
                let story = format!("{what}: {text}{}", show(&report));
                assert_eq!(code != 0, !report.is_clean(), "{story}");
                if code != 0 {
                    damaged += 1;
                    let (wrong, _) = judge(&lab, &what, &v.image);
                    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
                }
            }
        }
        assert!(damaged > 8, "{features}: {damaged}");
    }
}

/// Sizes past 2^63 are not decoded, and are damage nevertheless.
#[test]
fn the_resize_inode_has_a_possible_size() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for features in ["^metadata_csum", "metadata_csum"] {
        let clean = Volume::new(lab.make("12M", &with(features)).unwrap());
        for high in [1 << 16, u32::MAX] {
            let mut v = clean.clone();
            v.edit_raw(Ino::RESIZE, |raw| put32(raw, 0x6C, high));
            let what = format!("{features}: {high:#x}");
            assert!(!verify(&v.image).unwrap().is_clean(), "{what}");
            let (wrong, _) = judge(&lab, &what, &v.image);
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        }
    }
}

/// The resize inode is at least as long as up to the last block that it maps.
#[test]
fn the_resize_inode_holds_its_blocks() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for size in ["6M", "24M"] {
        let clean = Volume::new(
            lab.make(size, &with("^has_journal,^metadata_csum"))
                .unwrap(),
        );
        let mut found = [0, 0];
        let sizes = [0, 1, 12 << 10, 268 << 10, 20_000 << 10, 60_000 << 10];
        let edge = (24_500u32..24_600).map(|n| n << 10);
        let edges = edge.flat_map(|n| [n - 1, n, n + 1]).step_by(7);
        for size in sizes.into_iter().chain(edges) {
            let mut v = clean.clone();
            v.edit_raw(Ino::RESIZE, |raw| put32(raw, 4, size));
            let (code, text) = lab.e2fsck(&v.image);
            let report = verify(&v.image).unwrap();
            found[usize::from(code != 0)] += 1;
            if report.is_clean() != (code == 0) {
                wrong.push(format!("{size}: {}-- e2fsck {code}: {text}", show(&report)));
            }
        }
        assert!(size == "6M" || found[0] > 0 && found[1] > 5, "{found:?}");
        let mut v = clean.clone();
        v.edit_raw(Ino::RESIZE, |raw| put32(raw, 4, 0));
        wrong.append(&mut judge(&lab, size, &v.image).0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// With blocks of 4 KiB the resize inode is a file of 4 GiB.
#[test]
fn the_resize_inode_may_be_a_large_file() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for (block, large) in [("1024", false), ("4096", true)] {
        let args = ["-t", "ext4", "-b", block, "-O", "^has_journal"];
        let mut v = Volume::new(lab.make("24M", &args).unwrap());
        v.edit_sb(|sb| {
            let mut features = sb.features();
            features.ro_compat -= RoCompat::LARGE_FILE;
            sb.set_features(features);
        });
        let (code, text) = lab.e2fsck(&v.image);
        assert_eq!(code != 0, large, "{block}: {text}");
        let report = verify(&v.image).unwrap();
        assert_eq!(report.is_clean(), !large, "{block}: {}", show(&report));
        let (wrong, ours) = judge(&lab, block, &v.image);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let features = Volume::new(ours).sb().features();
        assert_eq!(features.has_ro_compat(RoCompat::LARGE_FILE), large);
    }
}

/// Each flag of each reserved inode: damage exactly when e2fsck finds it, or for a documented reason.
#[test]
fn each_flag_of_reserved_inodes_is_judged_as_by_e2fsck() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for features in ["quota,^metadata_csum", "quota,encrypt,^metadata_csum"] {
        let clean = Volume::new(lab.make("6M", &with(features)).unwrap());
        for ino in [1, 3, 4, 5, 7, 8].map(Ino) {
            for bit in 0..32 {
                let mut v = clean.clone();
                let word = u32::from_le_bytes(v.raw_inode(ino)[0x20..0x24].try_into().unwrap());
                v.edit_raw(ino, |raw| put32(raw, 0x20, word ^ 1 << bit));
                let what = format!("{features}: inode {ino}, flag {:#x}", 1u32 << bit);
                let (code, text) = lab.e2fsck(&v.image);
                let report = verify(&v.image).unwrap();
                let excused = code == 0 && e2fsck_silent(&report).is_some();
                if report.is_clean() != (code == 0) && !excused {
                    wrong.push(format!("{what}: {}-- e2fsck {code}: {text}", show(&report)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Of what the inode of bad blocks must not have, e2fsck looks at the low halves.
#[test]
fn fields_of_the_inode_of_bad_blocks_are_judged_as_by_e2fsck() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(
        lab.make("6M", &with("^has_journal,^metadata_csum"))
            .unwrap(),
    );
    let mut wrong = Vec::new();
    // Mode, owners, links, the block of attributes and its upper half, upper halves of owners.
    for (at, damage) in [
        (0x00, true),
        (0x02, true),
        (0x18, true),
        (0x1A, true),
        (0x68, true),
        (0x76, false),
        (0x78, false),
        (0x7A, false),
    ] {
        let mut v = clean.clone();
        v.edit_raw(Ino(1), |raw| raw[at] = 2);
        let what = format!("field {at:#x}");
        let (code, text) = lab.e2fsck(&v.image);
        let report = verify(&v.image).unwrap();
        if report.is_clean() == damage || (code != 0) != damage {
            wrong.push(format!("{what}: {}-- e2fsck {code}: {text}", show(&report)));
        }
        wrong.append(&mut judge(&lab, &what, &v.image).0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A list of bad blocks may be one of extents. A flag that says so of a list of numbers does not lose them.
#[test]
fn lists_of_bad_blocks_may_have_extents() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(
        lab.make("6M", &with("^has_journal,^metadata_csum"))
            .unwrap(),
    );
    let free = {
        let bits = clean.clone();
        let used = |b: u64| {
            let group = bits.desc(0);
            let at = bits.at(group.block_bitmap);
            bits.image[at + (b as usize - 1) / 8] >> ((b - 1) % 8) & 1 != 0
        };
        (3000..6000).find(|b| (0..3).all(|n| !used(b + n))).unwrap() as u32
    };
    let root = |entries: u16| {
        let mut area = vec![0u8; 60];
        area[..2].copy_from_slice(&extent::MAGIC.to_le_bytes());
        area[2..4].copy_from_slice(&entries.to_le_bytes());
        area[4] = 4;
        area[16] = 3;
        area[20..24].copy_from_slice(&free.to_le_bytes());
        area
    };
    let mut list = vec![0u8; 60];
    for n in 0..3 {
        put32(&mut list, n * 4, free + n as u32);
    }
    let mut wrong = Vec::new();
    for (what, area, kept) in [
        ("numbers", list, [true, false]),
        ("a root", root(1), [true, true]),
        ("an empty root", root(0), [false, false]),
        ("junk", vec![0xFF; 60], [false, false]),
        ("nothing", vec![0; 60], [false, false]),
    ] {
        for (marked, kept) in [true, false].into_iter().zip(kept) {
            let mut v = clean.clone();
            v.edit_raw(Ino(1), |raw| {
                raw[0x28..0x64].copy_from_slice(&area);
                put32(raw, 0x20, InodeFlags::EXTENTS.bits());
            });
            if marked {
                v.edit_block_bitmap(0, |bits| {
                    for b in free - 1..free + 2 {
                        bits[b as usize / 8] |= 1 << (b % 8);
                    }
                });
            }
            let what = format!("{what}, in the bitmap: {marked}");
            let (code, text) = lab.e2fsck(&v.image);
            let report = verify(&v.image).unwrap();
            if report.is_clean() != (code == 0) {
                wrong.push(format!("{what}: {}-- e2fsck {code}: {text}", show(&report)));
            }
            let (mut bad, ours) = judge(&lab, &what, &v.image);
            wrong.append(&mut bad);
            let ours = Volume::new(ours);
            let at = ours.at(ours.desc(0).block_bitmap);
            let b = free as usize - 1;
            let used = ours.image[at + b / 8] >> (b % 8) & 1 != 0;
            if used != kept {
                wrong.push(format!("{what}: the blocks are in use: {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
