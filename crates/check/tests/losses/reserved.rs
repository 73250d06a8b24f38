//! Inodes that no directory names.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{Ino, RoCompat};

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
