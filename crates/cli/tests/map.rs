//! `map`: what each block is, as text, JSON, pictures and a page.

mod common;

use common::run::{bw, good, json, refused, source_tree, stderr};
use common::{Scratch, ok, output, program};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn count(map: &Value, kinds: &[&str]) -> u64 {
    let one = |kind: &&str| map["kinds"][*kind].as_u64().unwrap_or(0);
    kinds.iter().map(one).sum()
}

/// Kinds, and runs where they are told, are all blocks once.
fn assert_adds_up(map: &Value) {
    let blocks = map["blocks"].as_u64().unwrap();
    let kinds = map["kinds"].as_object().unwrap().values();
    assert_eq!(kinds.map(|n| n.as_u64().unwrap()).sum::<u64>(), blocks);
    let mut at = 0;
    for run in map["runs"].as_array().unwrap() {
        assert_eq!(run[0].as_u64(), Some(at));
        at += run[1].as_u64().unwrap();
    }
    assert_eq!(at, blocks);
}

fn assert_is_picture(path: &Path) {
    let bytes = fs::read(path).unwrap();
    match path.extension().and_then(|e| e.to_str()) {
        Some("png") => assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 500),
        Some("svg") => {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.starts_with("<svg") && text.contains("free"), "{text}");
        }
        _ => {
            let text = String::from_utf8(bytes).unwrap();
            let data = text.split_once(r#"type="application/json" id="data">"#);
            let data = data.and_then(|(_, rest)| rest.split_once("</script>"));
            let data: Value = serde_json::from_str(data.unwrap().0).unwrap();
            let runs = data["runs"].as_array().unwrap();
            let covered: u64 = runs.iter().step_by(2).map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(Some(covered), data["blocks"].as_u64());
            assert!(!text.contains("src=") && !text.contains("@DATA@"));
        }
    }
}

#[test]
fn maps_of_both_formats_agree_with_df() {
    let scratch = Scratch::new();
    let tree = source_tree(&scratch, "tree");
    for format in ["ext4", "f2fs"] {
        let image = scratch.path(&format!("{format}.img"));
        ok(bw(
            &image,
            &["mkfs", "-q", "-t", format, "--size", "96M", "--from"],
        )
        .arg(&tree)
        .arg(&image));
        let before = fs::read(&image).unwrap();
        let map = json(&image, &["map", "--json", "IMAGE"]);
        assert_adds_up(&map);
        assert_eq!(
            (&map["format"], &map["damaged"]),
            (&format.into(), &false.into())
        );
        assert_eq!(count(&map, &["unknown", "unclaimed"]), 0, "{map}");
        let df = json(&image, &["df", "--json", "IMAGE"]);
        let unit = map["block_bytes"].as_u64().unwrap();
        let free = count(&map, &["free", "stale"]) * unit;
        let told = df["free"].as_u64().unwrap();
        match format {
            // As dumpe2fs counts them.
            "ext4" => assert_eq!(free, told, "{df}"),
            // f2fs keeps segments for cleaning, which df leaves out.
            _ => assert!(free >= told, "{free} {df}"),
        }
        let text = good(&image, &["map", "IMAGE"]);
        assert!(text.contains("free") && text.contains("96.0 MiB"), "{text}");
        for ending in ["svg", "png", "html"] {
            let path = scratch.path(&format!("map.{ending}"));
            ok(bw(&image, &["map", "--sandbox=require", "IMAGE", "-o"]).arg(&path));
            assert_is_picture(&path);
        }
        assert!(fs::read(&image).unwrap() == before, "{format}: written to");
    }
}

#[test]
fn partitions_of_containers_have_maps() {
    let scratch = Scratch::new();
    let tree = source_tree(&scratch, "tree");
    let disk = scratch.path("disk.qcow2");
    let root = format!("root={}:ext4:64M", tree.display());
    ok(program().args(["disk", "create", "-o"]).arg(&disk).args([
        "--gpt",
        &root,
        "data=:f2fs:64M",
    ]));
    for (part, format) in [("IMAGE:p=root", "ext4"), ("IMAGE:p2", "f2fs")] {
        let map = json(&disk, &["map", "--json", part]);
        assert_adds_up(&map);
        assert_eq!(map["format"], format);
    }
}

#[test]
fn what_cannot_be_drawn_is_refused_and_leaves_nothing() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    good(&image, &["mkfs", "-q", "--size", "16M", "IMAGE"]);
    let (gif, own) = (scratch.path("map.gif"), scratch.path("own.png"));
    refused(
        bw(&image, &["map", "IMAGE", "-o"]).arg(&gif),
        2,
        &["map.gif", ".svg"],
    );
    assert!(!gif.exists());
    fs::hard_link(&image, &own).unwrap();
    refused(
        bw(&image, &["map", "IMAGE", "-o"]).arg(&own),
        2,
        &["own map"],
    );
    good(&image, &["check", "-n", "IMAGE"]);
    // No file system.
    let empty = scratch.path("empty.img");
    fs::write(&empty, vec![0; 1 << 20]).unwrap();
    let svg = scratch.path("empty.svg");
    refused(
        bw(&empty, &["map", "IMAGE", "-o"]).arg(&svg),
        1,
        &["empty.img", "superblock"],
    );
    assert!(!svg.exists());
}

#[test]
fn damaged_volumes_are_drawn_with_what_is_wrong() {
    let scratch = Scratch::new();
    let tree = source_tree(&scratch, "tree");
    let image = scratch.path("disk.img");
    ok(bw(&image, &["mkfs", "-q", "--size", "64M", "--from"])
        .arg(&tree)
        .arg(&image));
    let map = json(&image, &["map", "--json", "IMAGE"]);
    let runs = map["runs"].as_array().unwrap();
    let bitmap = runs.iter().find(|run| run[2] == "block-bitmap").unwrap();
    let at = (bitmap[0].as_u64().unwrap() * map["block_bytes"].as_u64().unwrap()) as usize;
    let mut bytes = fs::read(&image).unwrap();
    bytes[at..at + 64].fill(0x5A);
    fs::write(&image, &bytes).unwrap();
    let damaged = json(&image, &["map", "--json", "IMAGE"]);
    assert_adds_up(&damaged);
    assert_eq!(damaged["damaged"], true);
    assert!(!damaged["problems"].as_array().unwrap().is_empty());
    assert!(count(&damaged, &["unknown"]) > 0);
    assert_eq!(
        count(&damaged, &["inode-table"]),
        count(&map, &["inode-table"])
    );
    // The checker's report links to places in the map.
    let page = scratch.path("check.html");
    let mut check = bw(
        &image,
        &["check", "-n", "--sandbox=require", "IMAGE", "--map"],
    );
    let text = refused(check.arg(&page), 4, &[]);
    assert!(text.is_empty(), "{text}");
    let told = output(bw(&image, &["check", "-n", "--json", "IMAGE", "--map"]).arg(&page));
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let placed = told["issues"].as_array().unwrap().iter();
    assert!(
        placed.filter(|issue| issue["blocks"].is_array()).count() > 0,
        "{told}"
    );
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("block bitmap") && text.contains(r#""place":["#));
    let out = output(bw(&image, &["info", "IMAGE", "--map"]).arg(&page));
    assert!(String::from_utf8_lossy(&out.stdout).contains("check.html#blocks=0-"));
    let out = output(&mut bw(&image, &["map", "IMAGE"]));
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(String::from_utf8_lossy(&out.stdout).contains("Damaged:"));
}

/// The check reads a copy of the superblock, the map the superblock itself.
#[test]
fn a_report_is_printed_although_the_map_fails() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let args = [
        "-q",
        "--size",
        "256M",
        "-b",
        "4096",
        "-O",
        "^metadata_csum",
        "IMAGE",
    ];
    good(&image, &[&["mkfs"], &args[..]].concat());
    let mut bytes = fs::read(&image).unwrap();
    // An incompatible feature that has no name.
    bytes[1024 + 0x63] |= 0x80;
    fs::write(&image, &bytes).unwrap();
    let page = scratch.path("check.html");
    for json in [false, true] {
        let mut check = bw(&image, &["check", "-n", "-b", "32768", "IMAGE", "--map"]);
        check.arg(&page);
        if json {
            check.arg("--json");
        }
        let out = output(&mut check);
        let (said, why) = (String::from_utf8_lossy(&out.stdout), stderr(&out));
        assert_eq!(out.status.code(), Some(8), "{said}{why}");
        assert!(
            said.contains("disk.img") && said.contains("clean"),
            "{said}"
        );
        assert!(why.contains("unsupported features"), "{why}");
        assert!(!page.exists());
    }
}
