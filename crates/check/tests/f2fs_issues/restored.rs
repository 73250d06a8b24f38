//! Fields of which something else says what they were, or what alone they can be.

use super::*;
use blockwright_ondisk::common::casefold::ENCODING_UTF8_12_1;

/// A restored length is the one that was, not one that is possible.
#[test]
fn the_length_of_extra_attributes_is_restored_from_the_checksum() {
    if !f2fs_tools() {
        return;
    }
    let good = F2Lab::new().volume(&["-O", FULL]);
    let ino = good.lookup("dir/sub/middle");
    let (_, whole) = good.inode(ino);
    for size in [0, 4, 8, 12, 20, 32, 35, 40, 0x7FFC, 0xFFFF] {
        let v = good.copy();
        put_extra_size(&v, "dir/sub/middle", size);
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        let report = report.unwrap();
        assert_eq!(
            names(&report),
            ["InodeExtraSize"],
            "{size}: {}",
            show(&report)
        );
        let (_, mended) = F2Volume::new(after.snapshot()).inode(ino);
        assert!(mended == whole, "{size}");
    }
    // Where something else is wrong, too, no length is confirmed.
    let v = good.copy();
    put_extra_size(&v, "dir/sub/middle", 32);
    let (block, _) = v.node(ino.nid());
    v.edit(block, |b| b[CHECKSUM_OFFSET] ^= 1);
    let report = verify_f2fs(&v.device).unwrap();
    let found = names(&report);
    assert!(
        found.contains(&"InodeChecksum".to_owned())
            && !found.contains(&"InodeExtraSize".to_owned()),
        "{}",
        show(&report)
    );
}

/// mkfs.f2fs with the feature and without `-C`: no encoding says how names are folded.
#[test]
fn case_insensitive_directories_without_an_encoding() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let base = lab.volume(&["-O", "extra_attr,casefold"]);
    assert!(lab.fsck(&base.device).0);
    for directory in [false, true] {
        let v = base.copy();
        if directory {
            let flag = InodeFlags::CASEFOLD.bits();
            v.edit_inode(v.lookup("dir"), |h| h.flags.set(h.flags.get() | flag));
        }
        let report = verify_f2fs(&v.device).unwrap();
        let expected: &[&str] = match directory {
            true => &["CasefoldFlag", "EncodingMissing"],
            false => &["EncodingMissing"],
        };
        assert_eq!(names(&report), expected, "{}", show(&report));
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        let report = report.unwrap();
        // With an encoding the directory is one of those that may be.
        assert_eq!(names(&report), ["EncodingMissing"], "{}", show(&report));
        assert!(!report.has_uncorrected());
        assert!(verify_f2fs(&after).unwrap().is_clean());
        assert!(lab.fsck(&after).0);
        let after = F2Volume::new(after.snapshot());
        for copy in 0..2 {
            let raw = RawSuperblock::read(&after.block(BlockAddr(copy))).unwrap();
            assert_eq!(raw.s_encoding.get(), ENCODING_UTF8_12_1);
        }
        let (inode, _) = after.inode(after.lookup("dir"));
        assert_eq!(inode.flags.contains(InodeFlags::CASEFOLD), directory);
    }
}

/// A number that names no encoding: fsck.f2fs says nothing about it.
#[test]
fn case_insensitive_directories_of_an_unknown_encoding() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let v = lab.volume(&["-O", "extra_attr,casefold", "-C", "utf8"]);
    for copy in 0..2 {
        edit_superblock(&v, copy, |sb| sb.s_encoding.set(7));
    }
    let unknown = |device: &blockwright_device::MemoryDevice| {
        let report = verify_f2fs(device).unwrap();
        assert!(report.is_clean(), "{}", show(&report));
        assert_eq!(names(&report), ["EncodingUnknown"]);
        assert!(show(&report).contains("encoding 7"), "{}", show(&report));
    };
    assert!(lab.fsck(&v.device).0);
    unknown(&v.device);
    // Names that an encoding may fold to anything: no hash of theirs is wrong. (fsck.f2fs 1.15 ends with SIGSEGV here.)
    let dir = v.lookup("dir");
    let flag = InodeFlags::CASEFOLD.bits();
    v.edit_inode(dir, |h| h.flags.set(h.flags.get() | flag));
    unknown(&v.device);
    let (report, _) = repair_f2fs(&v.device, Mode::Yes);
    let report = report.unwrap();
    assert!(!report.changed && !report.has_uncorrected());
}
