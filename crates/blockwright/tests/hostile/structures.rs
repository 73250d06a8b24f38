//! Damage to one structure at a time: it is found where it matters, named, and answered as the volume's error
//! behaviour says.

use crate::exercise::{self, Outcome};
use crate::image::{self, BLOCK, Image};
use crate::{LIMIT, both, common};
use blockwright::{ErrorKind, Volume, VolumeOptions};
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FEATURES: &str = "orphan_file";

fn must_find(what: &str, outcome: &Outcome, words: &[&str]) {
    let text = outcome.text();
    assert!(outcome.found_damage(), "{what}: not noticed: {text:?}");
    assert!(
        words.iter().any(|w| text.to_lowercase().contains(w)),
        "{what}: none of {words:?} in {text}"
    );
}

/// A checksum of each kind made wrong, and what the message must name. `written` is for structures that only
/// writers look at.
#[test]
fn every_kind_of_checksum() {
    let good = image::make(FEATURES);
    let ino = |path: &str| good.ino(path);
    let cases: Vec<(&str, usize, bool, &[&str])> = vec![
        ("superblock", 1024 + 0x78, false, &["superblock"]),
        (
            "group descriptor",
            good.group_desc(0) + 0x10,
            false,
            &["group", "descriptor"],
        ),
        (
            "block bitmap",
            good.block_bitmap(0) + 700,
            true,
            &["bitmap"],
        ),
        ("inode bitmap", good.inode_bitmap(0) + 5, true, &["bitmap"]),
        (
            "inode",
            good.inode(ino("/dir/plain")) + 0x10,
            false,
            &["inode"],
        ),
        (
            "extent block",
            good.first_pointer(ino("/holes")) + 40,
            false,
            &["extent"],
        ),
        (
            "directory leaf",
            good.file_block(ino("/dir"), 0) + 30,
            false,
            &["director"],
        ),
        (
            "index root",
            good.file_block(ino("/many"), 0) + 0x24,
            false,
            &["director", "index"],
        ),
        (
            "index leaf",
            good.file_block(ino("/many"), 5) + 30,
            false,
            &["director"],
        ),
        (
            "attribute block",
            good.xattr_block(ino("/dir/plain")) + 0x18,
            false,
            &["attribute"],
        ),
    ];
    for (what, at, written, words) in cases {
        let mut bad = good.clone();
        bad.flip(at);
        let (reading, writing) = both(what, bad.0);
        must_find(what, if written { &writing } else { &reading }, words);
        must_find(what, &writing, words);
    }
}

/// A volume that was not closed: its journal has something to replay.
fn dirty() -> Image {
    let good = image::make("");
    let device = good.device();
    let v = Volume::open_device(device.clone()).expect("opens");
    v.create_dir("/in-the-journal").expect("made");
    v.write("/in-the-journal/f", b"here").expect("written");
    v.sync().expect("durable");
    let copy = Image(device.to_vec());
    v.close().expect("closed");
    copy
}

#[test]
fn a_damaged_journal() {
    let good = dirty();
    let journal = good.journal();
    let (reading, _) = both("an undamaged journal", good.0.clone());
    assert_eq!(reading.text(), "");
    let mut bad = good.clone();
    bad.flip(journal + 0x10);
    let (reading, writing) = both("journal superblock", bad.0);
    must_find("journal superblock", &reading, &["journal"]);
    must_find("journal superblock", &writing, &["journal"]);
    // The log ends before a damaged block, or it is an error: never something else is replayed.
    for block in 1..12 {
        for at in [0, 4, 8, 12, 20, 200, BLOCK - 2] {
            let mut bad = good.clone();
            bad.flip(journal + block * BLOCK + at);
            both(&format!("journal block {block} at {at}"), bad.0);
        }
    }
}

#[test]
fn a_directory_that_names_its_ancestor() {
    let mut bad = image::make("^metadata_csum");
    let (dir, below) = (bad.ino("/dir"), bad.ino("/dir/below"));
    let block = bad.file_block(below, 0);
    let deep = bad.ino("/dir/below/deep") as u32;
    let entry = (0..BLOCK - 8)
        .step_by(4)
        .find(|at| *at > 20 && bad.u32(block + at) == deep)
        .expect("the entry");
    bad.put32(block + entry, dir as u32);
    let (reading, writing) = both("a loop of directories", bad.0);
    must_find("a loop", &reading, &["loop"]);
    assert!(writing.found_damage());
}

#[test]
fn extent_trees_that_go_astray() {
    let good = image::make("^metadata_csum");
    let holes = good.ino("/holes");
    let (root, leaf) = (good.i_block(holes), good.first_pointer(holes));
    let block = (leaf / BLOCK) as u32;
    let mut cases: Vec<(&str, Image)> = Vec::new();
    let mut with = |what, change: &dyn Fn(&mut Image)| {
        let mut bad = good.clone();
        change(&mut bad);
        cases.push((what, bad));
    };
    with("an index that names itself", &|i| {
        i.put16(leaf + 6, 1);
        i.put32(leaf + 12 + 4, block);
        i.put16(leaf + 12 + 8, 0);
    });
    with("a deep root over a leaf", &|i| i.put16(root + 6, 5));
    with("a depth past the limit", &|i| i.put16(root + 6, 200));
    with("a wrong magic", &|i| i.put16(leaf, 0xF30B));
    with("more entries than fit", &|i| i.put16(leaf + 2, 500));
    with("a huge maximum", &|i| i.put16(leaf + 4, 0xFFFF));
    with("overlapping extents", &|i| {
        let first = i.u32(leaf + 12);
        i.put32(leaf + 24, first);
    });
    with("an extent of no blocks", &|i| i.put16(leaf + 12 + 4, 0));
    with("past the device", &|i| i.put32(leaf + 12 + 8, 0x00FF_FFFF));
    with("far past the device", &|i| i.put16(leaf + 12 + 6, 0xFFFF));
    with("into metadata", &|i| i.put32(leaf + 12 + 8, 2));
    with("an index past the device", &|i| {
        i.put32(root + 12 + 4, 0x00FF_FFFF)
    });
    for (what, bad) in cases {
        let (reading, writing) = both(what, bad.0);
        must_find(what, &reading, &["extent", "pointer"]);
        assert!(writing.found_damage(), "{what}");
    }
}

#[test]
fn nonsense_in_entries_inodes_and_attributes() {
    let good = image::make("^metadata_csum");
    let dir = good.file_block(good.ino("/dir"), 0);
    let plain = good.inode(good.ino("/dir/plain"));
    let long = good.inode(good.ino("/dir/long"));
    let short = good.inode(good.ino("/dir/short"));
    let attributes = good.xattr_block(good.ino("/dir/plain"));
    for value in [0u16, 1, 3, 7, 11, 13, 1020, 1028, 0xFFFC, 0xFFFF] {
        for at in [4, 16, 28] {
            let mut bad = good.clone();
            bad.put16(dir + at, value);
            both(&format!("entry at {at}: length {value}"), bad.0);
        }
    }
    for ino in [0u32, 1, 5, 8, 0x7FFF_FFFF, u32::MAX] {
        let mut bad = good.clone();
        bad.put32(dir + 24, ino);
        both(&format!("an entry of inode {ino}"), bad.0);
    }
    for (at, inode) in [("plain", plain), ("long", long), ("short", short)] {
        for (low, high) in [
            (0, 0),
            (1, 0),
            (59, 0),
            (60, 0),
            (5000, 0),
            (u32::MAX, 0),
            (0, 1),
            (0, 0x7FFF_FFFF),
            (u32::MAX, u32::MAX),
        ] {
            let mut bad = good.clone();
            bad.put32(inode + 4, low);
            bad.put32(inode + 0x6C, high);
            both(&format!("{at}: size {high:#x}:{low:#x}"), bad.0);
        }
        let mut bad = good.clone();
        bad.0[inode + 40..inode + 100].fill(0xFF);
        both(&format!("{at}: garbage for a map"), bad.0);
        let mut bad = good.clone();
        bad.put16(inode + 0x80, 0xFFFF);
        both(&format!("{at}: extra size"), bad.0);
    }
    for at in (0..0x60).step_by(2) {
        for value in [0u16, 0xFF, 0xFFFF] {
            let mut bad = good.clone();
            bad.put16(attributes + at, value);
            both(&format!("attributes at {at:#x}: {value:#x}"), bad.0);
        }
    }
}

#[test]
fn error_behaviour() {
    let mut bad = image::make("");
    let at = bad.inode(bad.ino("/dir/plain")) + 0x10;
    bad.flip(at);
    for (errors, read_only) in [
        (None, true),
        (Some(ErrorBehaviour::RemountReadOnly), true),
        (Some(ErrorBehaviour::Panic), true),
        (Some(ErrorBehaviour::Continue), false),
    ] {
        let bytes = bad.0.clone();
        common::guarded(&format!("{errors:?}"), LIMIT, move || {
            let mut options = VolumeOptions::default();
            options.parts.ext4.errors = errors;
            let told = Arc::new(AtomicUsize::new(0));
            let counted = told.clone();
            options.parts.ext4.on_panic = Some(Arc::new(move |e| {
                assert_eq!(e.kind(), ErrorKind::Corrupt);
                counted.fetch_add(1, Ordering::SeqCst);
            }));
            let device = Image(bytes).device();
            let v = options.open_device(device).expect("opens");
            v.write("/before", b"x").expect("nothing was met yet");
            let e = v.metadata("/dir/plain").expect_err("damaged");
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
            assert_eq!(v.is_read_only(), read_only, "{errors:?}");
            let panics = usize::from(errors == Some(ErrorBehaviour::Panic));
            assert_eq!(told.load(Ordering::SeqCst), panics, "{errors:?}");
            let after = v.write("/after", b"x");
            assert_eq!(after.is_err(), read_only, "{errors:?}: {after:?}");
            if let Err(e) = after {
                assert!(
                    matches!(e.kind(), ErrorKind::ReadOnly | ErrorKind::Poisoned),
                    "{e}"
                );
            }
            assert_eq!(v.read("/dir/tiny").expect("the rest can be read"), b"tiny");
            assert_eq!(v.close().is_err(), read_only, "{errors:?}");
        });
    }
}

/// A read-only volume says what it met, and stays as it is.
#[test]
fn multiple_mount_protection() {
    let good = image::make_of(blockwright::VolumeBuilder::new().features("mmp"));
    let block = good.u32(1024 + 0x168) as usize * BLOCK;
    assert_ne!(block, 0);
    let mut bad = good.clone();
    bad.flip(block + 8);
    let outcome = common::guarded("MMP", LIMIT, move || {
        exercise::exercise(&bad.0, VolumeOptions::default())
    });
    must_find("MMP", &outcome, &["mmp", "multiple"]);
}
