//! `mkfs --from` directories and archives, and `export`.

mod common;

use common::run::{bw, good, hash, json, refused, source_tree, stderr, with_input};
use common::{Scratch, e2fsck_clean, have, ok, output};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn tar(dir: &Path, to: &Path, flags: &[&str]) {
    ok(Command::new("tar")
        .args(flags)
        .arg("-cf")
        .arg(to)
        .arg("-C")
        .arg(dir)
        .arg("."));
}

#[test]
fn volumes_from_trees_and_archives() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let check = |image: &Path, what: &str| {
        assert_eq!(
            good(image, &["cat", "IMAGE:/sub/file"]),
            "contents",
            "{what}"
        );
        let stat = json(
            image,
            &[
                "stat",
                "--json",
                "IMAGE:/linked",
                "IMAGE:/sub/file",
                "IMAGE:/link",
            ],
        );
        assert_eq!(stat[0]["ino"], stat[1]["ino"], "{what}");
        assert_eq!(stat[0]["mode"], "4711", "{what}");
        assert_eq!(stat[2]["target"], "sub/file", "{what}");
        let sparse = json(image, &["stat", "--json", "IMAGE:/sparse"]);
        assert_eq!(sparse[0]["size"], 9_000_001, "{what}");
        if have("e2fsck") {
            e2fsck_clean(image, what);
        }
    };
    let image = scratch.path("dir.img");
    good(
        &image,
        &[
            "mkfs",
            "-q",
            "--size",
            "auto",
            "--free",
            "2M",
            "--owner",
            "5:6",
            "--from",
            source.to_str().unwrap(),
            "IMAGE",
        ],
    );
    check(&image, "a directory");
    assert_eq!(json(&image, &["stat", "--json", "IMAGE:/sub"])[0]["uid"], 5);
    assert!(
        json(&image, &["df", "--json", "IMAGE"])["free"]
            .as_u64()
            .unwrap()
            >= 2 << 20
    );
    assert!(
        fs::metadata(&image).unwrap().blocks() * 512 < fs::metadata(&image).unwrap().len(),
        "the image is sparse"
    );

    for (suffix, tool, flags) in [
        ("tar", "tar", &["-S"][..]),
        ("tar.gz", "gzip", &["-z"]),
        ("tar.xz", "xz", &["-J"]),
        ("tar.zst", "zstd", &["--zstd"]),
    ] {
        if !have(tool) {
            continue;
        }
        let archive = scratch.path(&format!("source.{suffix}"));
        tar(&source, &archive, flags);
        let image = scratch.path(&format!("{suffix}.img"));
        good(
            &image,
            &[
                "mkfs",
                "-q",
                "--size",
                "48M",
                "--from",
                archive.to_str().unwrap(),
                "IMAGE",
            ],
        );
        check(&image, suffix);
        let image = scratch.path(&format!("{suffix}-stdin.img"));
        let mut command = bw(
            &image,
            &["mkfs", "-q", "--size", "auto", "--from", "-", "IMAGE"],
        );
        let out = with_input(&mut command, &fs::read(&archive).unwrap());
        assert!(out.status.success(), "{}", stderr(&out));
        check(&image, &format!("{suffix} from standard input"));
    }

    // And out again.
    let out = scratch.path("out.tar");
    good(&image, &["export", "-o", out.to_str().unwrap(), "IMAGE"]);
    let names = ok(Command::new("tar").arg("-tf").arg(&out));
    assert!(names.contains("sub/file"), "{names}");
    let again = scratch.path("again.img");
    good(
        &again,
        &[
            "mkfs",
            "-q",
            "--size",
            "auto",
            "--from",
            out.to_str().unwrap(),
            "IMAGE",
        ],
    );
    check(&again, "our own export");
    let part = output(&mut bw(&image, &["export", "IMAGE:/sub"]));
    assert!(part.status.success());
    let part_path = scratch.path("part.tar");
    fs::write(&part_path, &part.stdout).unwrap();
    assert!(ok(Command::new("tar").arg("-tf").arg(&part_path)).contains("file"));
}

#[test]
fn layers_and_whiteouts() {
    let scratch = Scratch::new();
    let (lower, upper) = (scratch.dir("lower"), scratch.dir("upper"));
    for name in ["keep", "gone", "replaced"] {
        fs::write(lower.join(name), "lower").unwrap();
    }
    fs::create_dir(lower.join("opaque")).unwrap();
    fs::write(lower.join("opaque/old"), "lower").unwrap();
    fs::write(upper.join(".wh.gone"), "").unwrap();
    fs::write(upper.join("replaced"), "upper").unwrap();
    fs::create_dir(upper.join("opaque")).unwrap();
    fs::write(upper.join("opaque/.wh..wh..opq"), "").unwrap();
    fs::write(upper.join("opaque/new"), "upper").unwrap();
    let (first, second) = (scratch.path("1.tar"), scratch.path("2.tar"));
    tar(&lower, &first, &[]);
    tar(&upper, &second, &[]);
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let image = &scratch.path("disk.img");
    good(
        image,
        &["mkfs", "-q", "--from", first, "--from", second, "IMAGE"],
    );
    assert_eq!(
        good(image, &["ls", "IMAGE"]),
        "keep\nlost+found\nopaque\nreplaced\n"
    );
    assert_eq!(good(image, &["ls", "-a", "IMAGE:/opaque"]), "new\n");
    assert_eq!(good(image, &["cat", "IMAGE:/replaced"]), "upper");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let make = |name: &str| {
        let image = scratch.path(name);
        ok(bw(
            &image,
            &[
                "mkfs",
                "-q",
                "-U",
                "01234567-89ab-cdef-0123-456789abcdef",
                "--size",
                "auto",
                "--from",
            ],
        )
        .arg(&source)
        .arg(&image)
        .env("SOURCE_DATE_EPOCH", "1700000000"));
        hash(&image)
    };
    let first = make("1.img");
    std::thread::sleep(Duration::from_millis(20));
    assert!(first == make("2.img"));
    refused(
        bw(&scratch.path("x.img"), &["mkfs", "--size", "16M", "IMAGE"])
            .env("SOURCE_DATE_EPOCH", "soon"),
        2,
        &["SOURCE_DATE_EPOCH"],
    );
}
