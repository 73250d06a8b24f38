//! Volumes that are as they should be, however odd: e2fsck and the kernel accept them, and so does the check.

use blockwright_test_support::lab as common;

use blockwright_check::Mode;
use blockwright_ondisk::ext4::extent::{self, Extent};
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::jbd2::RawJournalSuperblock;
use blockwright_ondisk::ext4::{FileBlock, Ino, RawSuperblock, RoCompat};
use common::verdict::{e2fsck_clean, e2fsck_silent};
use common::volume::Volume;
use common::{Lab, repair, show, tools, verify};
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

/// The kernel never reads these, and e2fsck takes them for nothing.
#[test]
fn fields_of_reserved_inodes_that_nothing_reads() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let put =
        |bytes: &mut [u8], at: usize, n: u32| bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
    let bare = Volume::new(made(
        &lab,
        "4M",
        "-t ext4 -b 1024 -O ^has_journal,^resize_inode,^metadata_csum",
    ));
    let old = Volume::new(made(&lab, "8M", "-t ext3 -b 1024 -I 128"));
    for (what, base, ino, at, value) in [
        ("an attribute block far outside", &bare, 9, 0x68, 90_000_000),
        ("attributes without quota", &bare, 3, 0x68, 3000),
        ("attributes without a journal", &bare, 8, 0x68, 3000),
        (
            "a triply indirect block without a journal",
            &bare,
            8,
            0x60,
            1,
        ),
        ("a size without a journal", &bare, 8, 0x6C, 1 << 31),
        ("sectors without a journal", &bare, 8, 0x74, 0xFFFF),
        ("a small size", &bare, 5, 0x04, 512),
        (
            "the journal's sectors without huge_file",
            &old,
            8,
            0x74,
            0xFFFF,
        ),
        ("the journal's fragment", &old, 8, 0x70, u32::MAX),
    ] {
        let mut v = base.clone();
        v.edit_raw(Ino(ino), |raw| put(raw, at, value));
        accepted(&lab, what, &v.image);
    }
}

/// Kernels and e2fsprogs hash whole words, with whatever pads a value.
#[test]
fn values_with_other_padding() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut v = Volume::new(made(&lab, "4M", "-t ext4 -b 1024 -O ^metadata_csum"));
    let block = v.inode(v.lookup("dir/big")).file_acl;
    let size = &mut v.block(block)[32 + 8..32 + 12];
    assert_eq!(size, 500u32.to_le_bytes());
    size.copy_from_slice(&499u32.to_le_bytes());
    accepted(&lab, "padding", &v.image);
}

/// Android's images: files with the same contents share their blocks on purpose.
#[test]
fn blocks_that_a_feature_lets_files_share() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut v = Volume::new(made(&lab, "8M", "-t ext4 -b 1024 -O ^has_journal"));
    let (big, middle) = (v.lookup("dir/big"), v.lookup("dir/sub/middle"));
    let own = v.blocks(middle);
    let maps_to = |v: &mut Volume, physical| {
        let e = Extent {
            logical: FileBlock(0),
            physical,
            len: own.len() as u32,
            unwritten: false,
        };
        v.edit_inode(middle, |i| extent::write_leaf(&mut i.block, &[e]).unwrap());
    };
    // The two begin with the same bytes.
    let first = v.blocks(big)[0];
    maps_to(&mut v, first);
    let without = v.image.clone();
    v.edit_sb(|sb| {
        let mut f = sb.features();
        f.ro_compat |= RoCompat::SHARED_BLOCKS;
        sb.set_features(f);
    });
    // The blocks that `middle` had are still in use by the bitmap.
    let repaired = |image: &[u8]| {
        let (report, after) = repair(image, Mode::Yes);
        report.unwrap();
        Volume::new(after)
    };
    let after = repaired(&v.image);
    accepted(&lab, "shared blocks", &after.image);
    let text = show(&verify(&after.image).unwrap());
    let note = format!("{} blocks have several users", own.len());
    assert!(
        text.contains(&note) && text.contains("unshare_blocks"),
        "{text}"
    );
    // Nothing is separated: there need not be room for it, and e2fsck does it only when it is told to.
    assert_eq!(after.blocks(middle)[0], first);
    assert_eq!(after.blocks(big)[0], first);
    let free = |v: &Volume| u64::from(v.sb().free_blocks_count_lo.get());
    assert_eq!(free(&after), free(&v) + own.len() as u64);

    // Without the feature it is damage, and so is a block of the volume's metadata with it.
    assert_ne!(repaired(&without).blocks(middle)[0], first);
    let mut over = after;
    let table = over.desc(0).inode_table;
    maps_to(&mut over, table);
    let report = verify(&over.image).unwrap();
    assert!(!report.is_clean(), "{}", show(&report));
    // e2fsck asks no question about it: a difference with a reason, which holds with the feature only.
    let (code, said) = lab.e2fsck(&over.image);
    assert!(e2fsck_clean(code, &said), "{said}");
    let silent = e2fsck_silent(&report).expect("a reason");
    assert!(silent.contains("shared_blocks"), "{silent}");
    assert_eq!(e2fsck_silent(&verify(&without).unwrap()), None);
    assert_ne!(repaired(&over.image).blocks(middle)[0], table);
}

/// The kernel stores a count of 1 for too many subdirectories, and leaves it when they go.
#[test]
fn one_link_of_an_indexed_directory() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for features in ["^has_journal", "^has_journal,^dir_nlink"] {
        let args = format!("-t ext4 -b 1024 -O {features}");
        let path = lab.dir.path().join("indexed.img");
        std::fs::write(&path, made(&lab, "8M", &args)).unwrap();
        let done = std::process::Command::new("e2fsck")
            .args(["-fyD"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(done.status.code().unwrap() < 4);
        let mut v = Volume::new(std::fs::read(&path).unwrap());
        let many = v.lookup("many");
        v.edit_inode(many, |i| {
            assert!(i.flags.contains(InodeFlags::INDEX));
            i.links = 1;
        });
        accepted(&lab, features, &v.image);
        // Of a directory without an index it is damage.
        let dir = v.lookup("dir");
        v.edit_inode(dir, |i| i.links = 1);
        assert!(!verify(&v.image).unwrap().is_clean(), "{features}");
    }
}

/// The volume's own files are in use, whatever their time of deletion says.
#[test]
fn times_of_deletion_that_nothing_reads() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut v = Volume::new(made(&lab, "8M", "-t ext4 -b 1024 -O orphan_file,quota"));
    let orphans = Ino(v.sb().orphan_file_inum.get());
    for ino in [orphans, Ino::JOURNAL, Ino::USR_QUOTA] {
        v.edit_inode(ino, |i| i.dtime = 0x4000_0000);
        accepted(&lab, &format!("inode {ino}"), &v.image);
    }
}

/// Linux 6.1 mounts such a volume, and lets the file grow into its size.
#[test]
fn a_quota_file_that_is_longer_than_it_says() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let base = Volume::new(made(&lab, "8M", "-t ext4 -b 1024 -O quota"));
    let size = base.inode(Ino::USR_QUOTA).size;
    for longer in [size + 1, size + 1024, size + (1 << 20), 1 << 31] {
        let mut v = base.clone();
        v.edit_inode(Ino::USR_QUOTA, |i| i.size = longer);
        accepted(&lab, &format!("{longer} bytes"), &v.image);
    }
}
