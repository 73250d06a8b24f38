//! `check` of f2fs volumes: the format is detected; fsck's exit codes; JSON.

mod common;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use blockwright::Volume;
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::f2fs::{BlockAddr, Log};
use blockwright_test_support::lab::f2fs::F2Volume;
use common::run::{bw, good, hash, json, refused};
use common::{Scratch, check_clean, fsck_f2fs_clean, have, ok, our_mkfs, output, program};

#[test]
fn f2fs_is_checked_and_repaired() {
    let scratch = Scratch::new();
    let image = scratch.path("f2fs.img");
    let tree = scratch.dir("tree");
    std::fs::write(tree.join("file"), b"contents").unwrap();
    let mut mkfs = program();
    mkfs.args(["mkfs", "-t", "f2fs", "--size", "100M", "--from"]);
    ok(mkfs.arg(&tree).arg(&image));

    let report = json(&image, &["check", "--json", "IMAGE"]);
    assert_eq!(report["clean"], true, "{report}");
    assert_eq!(report["exit_code"], 0);
    assert_eq!((&report["files"], &report["names"]), (&1.into(), &1.into()));

    // The first superblock's magic.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 4], 1024).unwrap();
    let out = output(&mut bw(&image, &["check", "--json", "IMAGE"]));
    assert_eq!(out.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["issues"][0]["kind"], "SuperblockBad", "{report}");
    assert_eq!(report["issues"][0]["outcome"], "left");
    let out = output(&mut bw(&image, &["check", "-p", "IMAGE"]));
    assert_eq!(out.status.code(), Some(1));
    let out = output(&mut bw(&image, &["check", "IMAGE"]));
    assert_eq!(out.status.code(), Some(0));

    refused(
        &mut bw(&image, &["check", "-b", "1", "IMAGE"]),
        16,
        &["ext4"],
    );
    file.write_all_at(&[0; 2 * 4096], 0).unwrap();
    refused(&mut bw(&image, &["check", "IMAGE"]), 8, &["superblock"]);
}

/// A chain of fsynced nodes that no mount recovers: the messages name the way out, it works, and nothing is lost before it is taken.
#[test]
fn fsynced_files_that_no_mount_recovers_are_given_up_by_name() {
    let scratch = Scratch::new();
    let image = scratch.path("f2fs.img");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let shared = Arc::clone(&device) as SharedDevice;
    blockwright_mkfs::f2fs::format(&shared, &Default::default()).unwrap();
    let volume = Volume::open_device(shared).unwrap();
    volume.write("/synced", b"by a checkpoint").unwrap();
    volume.sync().unwrap();
    let file = volume.create_file("/fsynced").unwrap();
    file.write_all_at(&[7; 9000], 0).unwrap();
    file.sync_all().unwrap();
    let crashed = F2Volume::new(device.snapshot());
    drop(file);
    volume.close().unwrap();
    let head = crashed.pack.checkpoint.raw.log(Log::WarmNode);
    let start = crashed.geo.segment_start(head.segment).unwrap().0;
    // The inode's mode: its file is of no kind.
    crashed.edit(BlockAddr(start + u32::from(head.offset)), |b| {
        b[..2].fill(0)
    });
    crashed.device.save(&image).unwrap();
    let before = hash(&image);

    let way_out = "blockwright check -y --discard-fsynced";
    assert_eq!(good(&image, &["ls", "IMAGE"]).trim(), "synced");
    for mode in ["-n", "-p", "-y"] {
        let out = output(&mut bw(&image, &["check", mode, "IMAGE"]));
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.code(), Some(4), "{said}");
        assert!(
            said.contains(way_out) && said.contains("\"fsynced\""),
            "{said}"
        );
        assert!(!said.contains("repairs what can be repaired"), "{said}");
    }
    refused(&mut bw(&image, &["mkdir", "IMAGE:/new"]), 1, &[way_out]);
    let bare = ["check", "--discard-fsynced", "IMAGE"];
    refused(&mut bw(&image, &bare), 16, &["-y"]);
    assert!(hash(&image) == before, "changed before it was asked for");

    let out = output(&mut bw(
        &image,
        &["check", "-y", "--discard-fsynced", "IMAGE"],
    ));
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("\"fsynced\""), "{said}");
    check_clean(&image, "given up");
    if have("fsck.f2fs") {
        fsck_f2fs_clean(&image, "given up");
    }
    ok(&mut bw(&image, &["mkdir", "IMAGE:/new"]));
    let cat = good(&image, &["cat", "IMAGE:/synced"]);
    assert_eq!(cat, "by a checkpoint");

    let ext4 = scratch.path("ext4.img");
    our_mkfs(&ext4, &[], "16M");
    let asked = ["check", "-y", "--discard-fsynced", "IMAGE"];
    refused(&mut bw(&ext4, &asked), 16, &["ext4"]);
}
