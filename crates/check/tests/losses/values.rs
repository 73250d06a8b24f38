//! Attribute values in inodes of their own, and files that are marked as one.

use blockwright_check::Mode;
use blockwright_check::ext4::IssueKind;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{FileKind, Ino};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::judge::{judge, listing, with};

/// e2fsck accepts the mark on a file that no attribute refers to. The kernel looks up no such file, so it is damage,
/// and the file is kept.
#[test]
fn files_marked_as_values_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for features in [
        "ea_inode,^metadata_csum,^has_journal",
        "^ea_inode,^metadata_csum,^has_journal",
    ] {
        let clean = Volume::new(lab.make("8M", &with(features)).unwrap());
        let before = listing(&lab, &clean.image);
        for path in ["dir/big", "zero", "many"] {
            let mut v = clean.clone();
            let ino = v.lookup(path);
            v.edit_inode(ino, |i| i.flags |= InodeFlags::EA_INODE);
            let what = format!("{features}: {path}");
            let report = verify(&v.image).unwrap();
            let marked =
                |k: &IssueKind| matches!(k, IssueKind::InodeFlags { ino: i, .. } if *i == ino);
            assert!(
                report.issues.len() == 1 && marked(&report.issues[0].kind),
                "{what}: {}",
                show(&report)
            );
            let (wrong, ours) = judge(&lab, &what, &v.image);
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            assert_eq!(listing(&lab, &ours), before, "{what}");
        }
        // Without a name, too.
        let mut v = Volume::new(lab.debugfs(&clean.image, &["unlink dir/big"]));
        let ino = clean.lookup("dir/big");
        v.edit_inode(ino, |i| i.flags |= InodeFlags::EA_INODE);
        let (wrong, ours) = judge(&lab, features, &v.image);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let bytes = |list: &crate::judge::Listing, path: &str| list[path].2.clone();
        let found = bytes(&listing(&lab, &ours), &format!("lost+found/#{ino}"));
        assert_eq!(found, bytes(&before, "dir/big"), "{features}");
    }
}

/// References to a value are counted anew.
#[test]
fn references_to_values_are_counted() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = with("ea_inode,^metadata_csum,^has_journal");
    let image = lab.make("8M", &args).unwrap();
    let value = lab.dir.path().join("value");
    std::fs::write(&value, [b'v'; 3000]).unwrap();
    let set = format!("ea_set -f {} zero user.large", value.display());
    let clean = Volume::new(lab.debugfs(&image, &[&set]));
    let holder = (11..clean.geo.inodes_per_group)
        .map(Ino)
        .find(|i| {
            let inode = clean.inode(*i);
            inode.kind() == Some(FileKind::Regular) && inode.flags.contains(InodeFlags::EA_INODE)
        })
        .unwrap();
    for refs in [0, 2, u64::MAX] {
        let mut v = clean.clone();
        v.edit_inode(holder, |i| i.set_ea_inode_refs(refs));
        let report = verify(&v.image).unwrap();
        let counted = |k: &IssueKind| matches!(k, IssueKind::XattrValueRefs { counted: 1, .. });
        assert!(
            report.issues.iter().any(|i| counted(&i.kind)),
            "{refs}: {}",
            show(&report)
        );
        let (wrong, ours) = judge(&lab, &format!("{refs} references"), &v.image);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(Volume::new(ours).inode(holder).ea_inode_refs(), 1);
    }
}

/// The hash in an attribute decides which inode holds its value. What that inode says of itself is mended, and the value and its
/// neighbours are kept.
#[test]
fn values_in_inodes_that_do_not_say_so_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for features in [
        "ea_inode,^has_journal",
        "ea_inode,^metadata_csum,^extents,^64bit,^has_journal",
    ] {
        let image = lab.make("8M", &with(features)).unwrap();
        let set = ["first", "second"].map(|name| {
            let value = lab.dir.path().join(name);
            std::fs::write(&value, name.repeat(600)).unwrap();
            format!("ea_set -f {} zero user.{name}", value.display())
        });
        // debugfs counts no blocks for values.
        let image = lab.debugfs(&image, &set.each_ref().map(String::as_str));
        let clean = Volume::new(repair(&image, Mode::Yes).1);
        let (code, text) = lab.e2fsck(&clean.image);
        assert_eq!(code, 0, "{features}: {text}");
        let file = clean.lookup("zero");
        let holders: Vec<Ino> = (11..clean.geo.inodes_per_group)
            .map(Ino)
            .filter(|i| clean.inode(*i).flags.contains(InodeFlags::EA_INODE))
            .collect();
        assert_eq!(holders.len(), 2);
        for (n, holder) in holders.iter().enumerate() {
            type Damage = fn(&mut blockwright_ondisk::ext4::Inode);
            let damage: [(&str, Damage); 5] = [
                ("no links", |i| i.links = 0),
                ("two links", |i| i.links = 2),
                ("many links", |i| i.links = 0x8001),
                ("no mark", |i| i.flags -= InodeFlags::EA_INODE),
                ("no flags", |i| i.flags = InodeFlags::empty()),
            ];
            for (what, change) in damage {
                let mut v = clean.clone();
                v.edit_inode(*holder, change);
                let what = format!("{features}: value {n}: {what}");
                assert!(!verify(&v.image).unwrap().is_clean(), "{what}");
                let (code, text) = lab.e2fsck(&v.image);
                assert_ne!(code, 0, "{what}: {text}");
                let (wrong, ours) = judge(&lab, &what, &v.image);
                assert!(wrong.is_empty(), "{}", wrong.join("\n"));
                let mut ours = Volume::new(ours);
                for ino in [file, holders[0], holders[1]] {
                    let before = clean.clone().raw_inode(ino).to_vec();
                    let after = ours.raw_inode(ino);
                    let differs: Vec<_> = (0..before.len())
                        .filter(|n| before[*n] != after[*n])
                        .map(|n| (n, before[n], after[n]))
                        .collect();
                    assert!(differs.is_empty(), "{what}: inode {ino}: {differs:?}");
                }
            }
        }
    }
}

/// A deleted inode does not come back for an attribute with a wrong hash, or when its blocks hold something else by now.
#[test]
fn deleted_values_stay_deleted() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab
        .make("8M", &with("ea_inode,^metadata_csum,^has_journal"))
        .unwrap();
    let value = lab.dir.path().join("value");
    std::fs::write(&value, [b'v'; 3000]).unwrap();
    let set = format!("ea_set -f {} zero user.large", value.display());
    let clean = Volume::new(lab.debugfs(&image, &[&set]));
    let holder = (11..clean.geo.inodes_per_group)
        .map(Ino)
        .find(|i| clean.inode(*i).flags.contains(InodeFlags::EA_INODE))
        .unwrap();
    for what in ["another value", "another hash"] {
        let mut v = clean.clone();
        v.edit_inode(holder, |i| i.links = 0);
        if what == "another value" {
            let block = v.blocks(holder)[0];
            v.block(block)[7] ^= 1;
        } else {
            v.edit_inode(holder, |i| i.atime.secs ^= 1);
        }
        let (wrong, ours) = judge(&lab, what, &v.image);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(Volume::new(ours).inode(holder).links, 0, "{what}");
    }
}
