//! `check` of f2fs volumes: the format is detected; fsck's exit codes; JSON.

mod common;

use std::os::unix::fs::FileExt;

use common::run::{bw, json, refused};
use common::{Scratch, ok, output, program};

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
