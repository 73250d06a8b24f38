//! Volumes whose files share blocks, as the images of Android do: everything reads them, and what would write refuses by name.

mod common;

use common::run::{bw, good, json, refused, stderr};
use common::{Mounted, Scratch, have, have_fuse, ok, output};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Two files of the same contents in the same blocks.
fn image(scratch: &Scratch) -> (PathBuf, Vec<u8>) {
    let tree = scratch.dir("tree");
    let bytes: Vec<u8> = (0..50_000u32).map(|n| (n * 7 / 3) as u8).collect();
    fs::write(tree.join("first"), &bytes).unwrap();
    fs::write(tree.join("second"), &bytes).unwrap();
    let image = scratch.path("image");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]);
    ok(mke2fs.arg(&tree).arg(&image).arg("16M"));
    for command in ["copy_inode first second", "feature shared_blocks"] {
        ok(Command::new("debugfs")
            .args(["-w", "-R", command])
            .arg(&image));
    }
    // The blocks that the second file had are free.
    assert_eq!(
        output(Command::new("e2fsck").arg("-fy").arg(&image))
            .status
            .code(),
        Some(1)
    );
    (image, bytes)
}

#[test]
fn shared_blocks_are_read_and_never_written() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new();
    let (image, bytes) = image(&scratch);
    let before = common::run::hash(&image);

    assert!(good(&image, &["ls", "IMAGE"]).contains("second"));
    for name in ["IMAGE:/first", "IMAGE:/second"] {
        assert_eq!(output(&mut bw(&image, &["cat", name])).stdout, bytes);
    }
    let tar = scratch.path("out.tar");
    ok(bw(&image, &["export", "IMAGE", "-o"]).arg(&tar));
    assert!(fs::metadata(&tar).unwrap().len() > 2 * bytes.len() as u64);
    assert!(good(&image, &["info", "IMAGE"]).contains("shared_blocks"));
    let map = json(&image, &["map", "--json", "IMAGE"]);
    assert_eq!(map["claimed_twice"], 0, "{map}");
    let said = good(&image, &["check", "-n", "IMAGE"]);
    assert!(said.contains("unshare_blocks"), "{said}");
    // A repair leaves the blocks shared, and says so.
    let said = good(&image, &["check", "-y", "IMAGE"]);
    assert!(said.contains("13 blocks have several users"), "{said}");

    for args in [
        &["mkdir", "IMAGE:/new"][..],
        &["rm", "IMAGE:/first"],
        &["resize", "IMAGE", "32M"],
        &["set", "IMAGE", "label=new"],
    ] {
        let out = output(&mut bw(&image, args));
        assert!(!out.status.success(), "{args:?}");
        assert!(
            stderr(&out).contains("shared_blocks"),
            "{args:?}: {}",
            stderr(&out)
        );
    }
    let from = scratch.dir("from");
    refused(
        bw(
            &image,
            &["mkfs", "-O", "shared_blocks", "--size", "16M", "--from"],
        )
        .arg(&from)
        .arg(scratch.path("made")),
        2,
        &["shared_blocks"],
    );
    assert_eq!(common::run::hash(&image), before);

    if have_fuse() {
        let mnt = scratch.dir("mnt");
        let mounted = Mounted::new(&image, &mnt, "ro");
        assert_eq!(fs::read(mnt.join("second")).unwrap(), bytes);
        mounted.unmount();
    }
}
