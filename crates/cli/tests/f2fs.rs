//! f2fs through the program: `mkfs -t f2fs` from trees and archives, `info`.

mod common;

use common::run::{bw, good, hash, json, refused, source_tree, with_input};
use common::{Scratch, have, ok, output};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn fsck(image: &Path) {
    if have("fsck.f2fs") {
        let text = ok(Command::new("fsck.f2fs")
            .args(["--dry-run", "-f"])
            .arg(image));
        assert!(
            !text.contains("[Fail]") && !text.contains("[FIX]"),
            "{text}"
        );
    }
}

#[test]
fn made_from_a_tree_and_told_about() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let from = source.to_str().unwrap();
    let image = scratch.path("dir.img");
    let features = "extra_attr,inode_checksum,sb_checksum";
    let made = json(
        &image,
        &[
            "mkfs", "-t", "f2fs", "-L", "ein Name", "-O", features, "--size", "auto", "--free",
            "8M", "--from", from, "--json", "IMAGE",
        ],
    );
    fsck(&image);
    assert_eq!(made["format"], "f2fs");
    assert!(made["blocks_free"].as_u64().unwrap() >= 2048);
    assert!(made.get("groups").is_none());
    assert_eq!(made["size"], fs::metadata(&image).unwrap().len());
    let info = json(&image, &["info", "--json", "IMAGE"]);
    assert_eq!(info["format"], "f2fs");
    assert_eq!(info["label"], "ein Name");
    assert_eq!(info["uuid"], made["uuid"]);
    assert_eq!(info["features"], made["features"]);
    assert_eq!(info["blocks_free"], made["blocks_free"]);
    assert_eq!(info["state"][0], "clean");
    let cp = &info["checkpoint"];
    assert_eq!(cp["segments_free"], made["segments_free"]);
    assert_eq!(cp["segments_reserved"], made["segments_reserved"]);
    assert_eq!(cp["logs"].as_array().unwrap().len(), 6);
    assert_eq!(info["problems"].as_array().unwrap().len(), 0);
    let text = good(&image, &["info", "IMAGE"]);
    for word in [
        "f2fs",
        "ein Name",
        "inode_checksum",
        "hot node:",
        "warm data:",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // The engine reads it.
    assert_eq!(good(&image, &["cat", "IMAGE:/sub/file"]), "contents");
    let stat = json(&image, &["stat", "--json", "IMAGE:/linked", "IMAGE:/link"]);
    assert_eq!(stat[0]["mode"], "4711");
    assert_eq!(stat[1]["target"], "sub/file");
}

#[test]
fn archives_and_the_same_bytes() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let archive = scratch.path("source.tar");
    ok(Command::new("tar")
        .args(["--xattrs", "-Scf"])
        .arg(&archive)
        .arg("-C")
        .arg(&source)
        .arg("."));
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let args = [
        "mkfs", "-q", "-t", "f2fs", "-U", uuid, "--size", "80M", "--from",
    ];
    let make = |name: &str, from: &str, input: &[u8]| {
        let image = scratch.path(name);
        let mut command = bw(&image, &args);
        command
            .arg(from)
            .arg(&image)
            .env("SOURCE_DATE_EPOCH", "1700000000");
        let out = with_input(&mut command, input);
        assert!(out.status.success(), "{}", common::run::stderr(&out));
        fsck(&image);
        hash(&image)
    };
    let from = archive.to_str().unwrap();
    let first = make("first.img", from, b"");
    assert_eq!(make("second.img", from, b""), first);
    assert_eq!(make("stdin.img", "-", &fs::read(&archive).unwrap()), first);
}

#[test]
fn bad_options_and_damage_are_named() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let mkfs = |more: &[&str]| {
        let mut args = vec!["mkfs", "-q", "-t", "f2fs", "--size", "60M"];
        args.extend(more);
        args.push("IMAGE");
        bw(&image, &args)
    };
    refused(&mut mkfs(&["-b", "1024"]), 2, &["4096"]);
    refused(&mut mkfs(&["-O", "has_journal"]), 2, &["has_journal"]);
    refused(&mut mkfs(&["-I", "512"]), 2, &["inode size"]);
    refused(&mut mkfs(&["-J", "4M"]), 2, &["journal"]);
    assert!(!image.exists());
    ok(&mut mkfs(&["-O", "sb_checksum"]));
    // It is not overwritten by accident.
    refused(&mut mkfs(&[]), 1, &["f2fs", "-F"]);
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    // A byte of the first superblock, and one of the first pack's head.
    file.write_all_at(b"\xFF", 1024 + 200).unwrap();
    file.write_all_at(b"\xFF", 512 * 4096 + 20).unwrap();
    let info = json(&image, &["info", "--json", "IMAGE"]);
    let problems = info["problems"].to_string();
    assert!(
        problems.contains("superblock 1: superblock: checksum"),
        "{problems}"
    );
    assert!(
        problems.contains("checkpoint pack 1: checkpoint: checksum"),
        "{problems}"
    );
    assert_eq!(info["checkpoint"]["pack"], 2);
    // Neither copy.
    file.write_all_at(b"\xFF", 4096 + 1024 + 200).unwrap();
    let mut command = bw(&image, &["info", "IMAGE"]);
    refused(
        &mut command,
        1,
        &["disk.img: superblock 1:", "superblock 2:"],
    );
    let text = String::from_utf8(output(&mut command).stdout).unwrap();
    assert!(text.contains("no valid checkpoint"), "{text}");
    assert!(text.contains("superblock 2:"), "{text}");
}

#[test]
fn volumes_on_several_devices_are_read() {
    if !have("mkfs.f2fs") {
        return;
    }
    let scratch = Scratch::new();
    let (image, other) = (scratch.path("a.img"), scratch.path("b.img"));
    for path in [&image, &other] {
        fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
    }
    let more = other.to_str().unwrap();
    ok(Command::new("mkfs.f2fs")
        .args(["-q", "-c", more])
        .arg(&image));
    refused(&mut bw(&image, &["ls", "IMAGE:/"]), 1, &["2 devices"]);
    good(&image, &["ls", "--device", more, "IMAGE:/"]);
    good(&image, &["--device", more, "check", "IMAGE"]);
    good(&image, &["df", "--device", more, "IMAGE"]);
    refused(
        &mut bw(&image, &["mkdir", "--device", more, "IMAGE:/x"]),
        1,
        &["only read"],
    );
}
