//! Volumes that are as they should be, however odd: e2fsck and the kernel accept them, and so does the check.

mod common;

use blockwright_ondisk::ext4::jbd2::RawJournalSuperblock;
use blockwright_ondisk::ext4::{Ino, RawSuperblock};
use common::volume::Volume;
use common::{Lab, show, tools, verify};
use zerocopy::{FromBytes, IntoBytes};

fn accepted(lab: &Lab, what: &str, image: &[u8]) {
    let (code, text) = lab.e2fsck(image);
    assert_eq!(code, 0, "{what}: {text}");
    let report = verify(image).unwrap();
    assert!(report.is_clean(), "{what}: {}", show(&report));
}

fn made(lab: &Lab, size: &str, args: &str) -> Vec<u8> {
    let list: Vec<&str> = args.split(' ').collect();
    lab.make(size, &list).unwrap()
}

#[test]
fn volumes_without_a_uuid() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for kind in ["ext4", "ext2"] {
        // `e2fsck -y`, which other images went through, would give it one.
        let path = lab.dir.path().join("bare.img");
        let mut mke2fs = std::process::Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", kind, "-b", "1024", "-U", "clear"]);
        assert!(mke2fs.arg(&path).arg("8M").status().unwrap().success());
        let image = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(RawSuperblock::read(&image[1024..]).unwrap().uuid, [0; 16]);
        accepted(&lab, kind, &image);
    }
}

/// The resize inode's copies of reserved blocks lie one block further than one would think.
#[test]
fn clusters_with_blocks_of_one_kilobyte() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for cluster in ["2048", "4096"] {
        let args = format!("-t ext4 -b 1024 -C {cluster} -O bigalloc");
        accepted(&lab, &args, &made(&lab, "48M", &args));
    }
}

#[test]
fn journals_with_one_block_more_than_their_file() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = made(&lab, "8M", "-t ext3 -b 1024");
    let mut v = Volume::new(image);
    v.edit_inode(Ino::JOURNAL, |i| i.size -= 1024);
    accepted(&lab, "size of the journal", &v.image);
}

#[test]
fn journals_with_odd_heads() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = made(&lab, "8M", "-t ext4 -b 1024 -O ^64bit,^metadata_csum");
    let edit = |change: fn(&mut RawJournalSuperblock)| {
        let mut v = Volume::new(image.clone());
        let place = v.blocks(Ino::JOURNAL)[0];
        let block = v.block(place);
        let (mut raw, _) = RawJournalSuperblock::read_from_prefix(block).unwrap();
        change(&mut raw);
        raw.set_checksum();
        block[..raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
        v.image
    };
    accepted(&lab, "64 bits", &edit(|j| j.feature_incompat.set(2)));
    // e2fsck clears it without a word, and the volume is as good as before.
    let report = verify(&edit(|j| j.errno.set(5))).unwrap();
    assert!(report.is_clean(), "{}", show(&report));
}

#[test]
fn usage_that_e2fsck_counted_without_inline_links() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = made(&lab, "16M", "-t ext4 -b 4096 -O inline_data,quota,project");
    accepted(&lab, "usage by e2fsck", &image);
}
