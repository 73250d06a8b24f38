//! A repair loses nothing that e2fsck keeps.
//!
//! Each volume is damaged in one way, repaired here and, a copy of it, by `e2fsck -fy`. Afterwards
//! both checkers call ours clean, and each path that e2fsck kept is there with the same bytes.

use blockwright_test_support::lab as common;
mod encryption;
mod features;
mod inodes;
mod journals;
mod judge;
mod maps;
mod preen;
mod reconnected;
mod reserved;
mod values;
mod whole;

use blockwright_check::ext4::IssueKind;
use blockwright_ondisk::ext4::Ino;
use common::volume::Volume;
use common::{Lab, show, tools, verify};
use judge::{judge, listing};

#[test]
fn inodes_behind_the_mark_are_in_use() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
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
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-O",
            "orphan_file,ea_inode,quota",
        ],
    ] {
        let clean = Volume::new(lab.make("12M", args).unwrap());
        let groups = clean.geo.groups_count;
        let all = clean.geo.inodes_per_group;
        let before = listing(&lab, &clean.image);
        // Of all inodes but the reserved ones, of those too, and with a bitmap that agrees.
        for (first, bitmap) in [(11, false), (0, false), (11, true)] {
            let mut v = clean.clone();
            for group in 0..groups {
                let keep = if group == 0 { first } else { 0 };
                v.edit_desc(group, |d| d.itable_unused = all - keep);
                if bitmap {
                    v.edit_inode_bitmap(group, |b| {
                        for n in keep..all {
                            b[n as usize / 8] &= !(1 << (n % 8));
                        }
                    });
                }
            }
            let what = format!("{args:?} mark at {first}, bitmap too: {bitmap}");
            let (mut bad, ours) = judge(&lab, &what, &v.image);
            wrong.append(&mut bad);
            if listing(&lab, &ours) != before {
                wrong.push(format!("{what}: paths or bytes differ"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_first_table_stays_where_it_is() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for args in [
        &["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext2", "-b", "1024"],
    ] {
        let clean = Volume::new(lab.make("12M", args).unwrap());
        let before = listing(&lab, &clean.image);
        for links in [0, 1, 2, 77] {
            let mut v = clean.clone();
            v.edit_inode(Ino::ROOT, |i| i.links = links);
            let report = verify(&v.image).unwrap();
            let count = |k: &IssueKind| matches!(k, IssueKind::LinkCount { ino: Ino::ROOT, .. });
            if !report.issues.iter().all(|i| count(&i.kind)) || report.is_clean() {
                wrong.push(format!("{args:?} links {links}: found\n{}", show(&report)));
            }
            let what = format!("{args:?} links {links}");
            let (mut bad, ours) = judge(&lab, &what, &v.image);
            wrong.append(&mut bad);
            if listing(&lab, &ours) != before {
                wrong.push(format!("{what}: paths or bytes differ"));
            }
        }
        // A descriptor that points elsewhere: found again, with the journal in it.
        let mut v = clean.clone();
        v.edit_desc(0, |d| d.inode_table.0 += 40);
        let (mut bad, ours) = judge(&lab, &format!("{args:?} table moved"), &v.image);
        wrong.append(&mut bad);
        if listing(&lab, &ours) != before {
            wrong.push(format!("{args:?} table moved: paths or bytes differ"));
        }
        assert_eq!(
            Volume::new(ours).desc(0).inode_table,
            clean.desc(0).inode_table
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
