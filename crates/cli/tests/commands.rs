//! Editing, copying and reporting, run as users run them: on volumes of our own and of mke2fs.

mod common;

use common::run::{bw, good, hash, json, refused, source_tree, stderr, with_input};
use common::{Scratch, e2fsck_clean, have, mke2fs, ok, our_mkfs, output};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A volume of each maker.
fn volumes(scratch: &Scratch) -> Vec<PathBuf> {
    let ours = scratch.path("ours.img");
    our_mkfs(&ours, &[], "32M");
    let mut all = vec![ours];
    if have("mke2fs") {
        let theirs = scratch.path("theirs.img");
        mke2fs(&theirs, &["-t", "ext4"], "32M");
        all.push(theirs);
        let old = scratch.path("old.img");
        mke2fs(&old, &["-t", "ext2", "-b", "1024"], "32M");
        all.push(old);
    }
    all
}

#[test]
fn editing_and_listing() {
    let scratch = Scratch::new();
    for image in volumes(&scratch) {
        let image = &image;
        good(image, &["mkdir", "IMAGE:/a"]);
        good(
            image,
            &["mkdir", "-p", "-m", "750", "IMAGE:/a/b/c", "IMAGE:/a"],
        );
        refused(&mut bw(image, &["mkdir", "IMAGE:/a"]), 1, &["/a", "exists"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/b/c"])[0]["mode"],
            "0750"
        );

        let out = with_input(&mut bw(image, &["cp", "-", "IMAGE:/a/file"]), b"hello\n");
        assert!(out.status.success(), "{}", stderr(&out));
        assert_eq!(
            good(image, &["cat", "IMAGE:/a/file", "IMAGE:/a/file"]),
            "hello\nhello\n"
        );
        assert_eq!(good(image, &["cp", "IMAGE:/a/file", "-"]), "hello\n");

        good(image, &["ln", "IMAGE:/a/file", "IMAGE:/hard"]);
        good(image, &["ln", "-s", "a/file", "IMAGE:/soft"]);
        refused(
            &mut bw(image, &["ln", "-s", "x", "IMAGE:/soft"]),
            1,
            &["exists"],
        );
        good(image, &["ln", "-sf", "a/file", "IMAGE:/soft"]);
        refused(
            &mut bw(image, &["ln", "IMAGE:/a", "IMAGE:/dirlink"]),
            1,
            &["director"],
        );
        assert_eq!(good(image, &["cat", "IMAGE:/soft"]), "hello\n");
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/hard"])[0]["links"],
            2
        );
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/soft"])[0]["target"],
            "a/file"
        );

        good(image, &["chmod", "u+x,go-r", "IMAGE:/hard"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/file"])[0]["mode"],
            "0700"
        );
        good(image, &["chmod", "-R", "a+rX", "IMAGE:/a"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/b/c"])[0]["mode"],
            "0755"
        );
        refused(&mut bw(image, &["chmod", "u+q", "IMAGE:/a"]), 2, &["u+q"]);
        good(image, &["chown", "-R", "12:34", "IMAGE:/a"]);
        good(image, &["chown", ":35", "IMAGE:/a"]);
        let stat = json(image, &["stat", "--json", "IMAGE:/a", "IMAGE:/a/b"]);
        assert_eq!(
            (&stat[0]["uid"], &stat[0]["gid"]),
            (&Value::from(12), &Value::from(35))
        );
        assert_eq!(
            (&stat[1]["uid"], &stat[1]["gid"]),
            (&Value::from(12), &Value::from(34))
        );
        refused(&mut bw(image, &["chown", "root", "IMAGE:/a"]), 2, &["root"]);

        good(
            image,
            &["setxattr", "-n", "user.note", "-v", "0x00ff", "IMAGE:/hard"],
        );
        good(
            image,
            &["setxattr", "-n", "user.word", "-v", "plain", "IMAGE:/hard"],
        );
        let text = good(image, &["getxattr", "IMAGE:/a/file"]);
        assert!(
            text.contains("user.note=0sAP8=") && text.contains("user.word=\"plain\""),
            "{text}"
        );
        let attributes = json(
            image,
            &["getxattr", "--json", "-n", "user.note", "IMAGE:/hard"],
        );
        assert_eq!(attributes[0]["xattrs"][0]["value_base64"], "AP8=");
        good(image, &["setxattr", "-x", "user.note", "IMAGE:/hard"]);
        refused(
            &mut bw(image, &["getxattr", "-n", "user.note", "IMAGE:/hard"]),
            1,
            &["user.note", "no such attribute"],
        );

        let text = good(image, &["ls", "-l", "IMAGE"]);
        assert!(
            text.contains("lrwxrwxrwx 1  0  0 ") && text.contains("soft -> a/file"),
            "{text}"
        );
        assert_eq!(good(image, &["ls", "IMAGE:/a"]), "b\nfile\n");
        assert_eq!(good(image, &["ls", "-d", "IMAGE:/a"]), "/a\n");
        assert!(good(image, &["ls", "-R", "IMAGE"]).contains(":/a/b:\nc\n"));
        let listing = json(image, &["ls", "--json", "IMAGE:/a"]);
        assert_eq!(listing[0]["entries"][1]["name"], "file");
        assert_eq!(listing[0]["entries"][1]["size"], 6);
        let text = good(image, &["tree", "IMAGE"]);
        assert!(
            text.contains("├── a/\n│   ├── b/\n│   │   └── c/\n│   └── file\n"),
            "{text}"
        );
        // The image's path, in the first line, may end so.
        assert!(!good(image, &["tree", "-L", "1", "IMAGE"]).contains("── b/"));
        assert_eq!(
            json(image, &["tree", "--json", "IMAGE:/a"])["entries"][0]["entries"][0]["name"],
            "c"
        );

        good(image, &["mv", "IMAGE:/hard", "IMAGE:/a/b"]);
        good(image, &["mv", "IMAGE:/a/b", "IMAGE:/moved"]);
        assert_eq!(good(image, &["ls", "IMAGE:/moved"]), "c\nhard\n");
        refused(
            &mut bw(image, &["mv", "IMAGE:/a", "IMAGE:/a/sub"]),
            1,
            &["into itself"],
        );
        refused(
            &mut bw(image, &["mv", "IMAGE:/none", "IMAGE:/x"]),
            1,
            &["/none", "no such"],
        );
        good(image, &["mv", "-n", "IMAGE:/soft", "IMAGE:/a/file"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/file"])[0]["kind"],
            "file"
        );

        refused(&mut bw(image, &["rm", "IMAGE:/a"]), 1, &["/a", "directory"]);
        refused(
            &mut bw(image, &["rm", "-d", "IMAGE:/moved"]),
            1,
            &["not empty"],
        );
        refused(&mut bw(image, &["rm", "IMAGE:/none"]), 1, &["no such"]);
        good(image, &["rm", "-f", "IMAGE:/none"]);
        good(
            image,
            &["rm", "-r", "IMAGE:/a", "IMAGE:/moved", "IMAGE:/soft"],
        );
        refused(&mut bw(image, &["rm", "-r", "IMAGE:/"]), 1, &["root"]);
        assert_eq!(good(image, &["ls", "IMAGE"]), "lost+found\n");
        if have("e2fsck") {
            e2fsck_clean(image, "after editing");
        }
    }
}

#[test]
fn copies_keep_everything() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let source_text = source.to_str().unwrap();
    let root = rustix::process::geteuid().is_root();
    for (n, image) in volumes(&scratch).into_iter().enumerate() {
        let image = &image;
        good(image, &["cp", "-a", source_text, "IMAGE:/tree"]);
        // Inside the image, then to another one, then back to the host.
        good(image, &["cp", "-a", "IMAGE:/tree", "IMAGE:/again"]);
        let second = scratch.path(&format!("second{n}.img"));
        our_mkfs(&second, &[], "48M");
        let other = format!("{}:/", second.display());
        good(image, &["cp", "-a", "IMAGE:/again", &other]);
        let back = scratch.path(&format!("back{n}"));
        let from = format!("{}:/again", second.display());
        good(image, &["cp", "-a", &from, back.to_str().unwrap()]);

        for (name, kept) in [("big", true), ("sparse", true), ("sub/file", root)] {
            let (a, b) = (source.join(name), back.join(name));
            assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{name}");
            let (a, b) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
            assert_eq!(
                (a.mtime(), a.mtime_nsec()),
                (b.mtime(), b.mtime_nsec()),
                "{name}"
            );
            if kept {
                assert_eq!(
                    (a.mode(), a.uid(), a.gid()),
                    (b.mode(), b.uid(), b.gid()),
                    "{name}"
                );
            }
        }
        assert!(
            fs::metadata(back.join("sparse")).unwrap().blocks() < 1000,
            "holes stay holes"
        );
        assert_eq!(
            fs::read_link(back.join("link")).unwrap(),
            Path::new("sub/file")
        );
        assert_eq!(
            fs::read_link(back.join("dangling")).unwrap(),
            Path::new("nowhere")
        );
        let ino = |name: &str| fs::metadata(back.join(name)).unwrap().ino();
        assert_eq!(ino("linked"), ino("sub/file"), "hard links stay together");
        assert!(back.join(OsStr::from_bytes(b"bytes \xff\xfe")).exists());
        let listing = json(image, &["ls", "--json", "IMAGE:/again"]);
        let odd = listing[0]["entries"]
            .as_array()
            .unwrap()
            .iter()
            .find(|e| e["name_base64"].is_string());
        assert!(odd.is_some(), "names that are not UTF-8 are exact in JSON");
        let mut buffer = [0u8; 16];
        if rustix::fs::getxattr(source.join("big"), "user.note", &mut buffer).is_ok() {
            let length = rustix::fs::getxattr(back.join("big"), "user.note", &mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"kept");
        }
        if have("e2fsck") {
            e2fsck_clean(image, "after copying");
            e2fsck_clean(&second, "after copying");
        }

        let du = json(image, &["du", "-s", "--json", "IMAGE:/tree"]);
        let inodes = fs::read_dir(&source).unwrap().count() as u64 + 1;
        assert_eq!(
            du[0]["inodes"],
            Value::from(inodes),
            "hard links count once"
        );
        let extents = json(image, &["extents", "--json", "IMAGE:/tree/big"]);
        let total: u64 = extents[0]["extents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["length"].as_u64().unwrap())
            .sum();
        assert_eq!(
            total,
            3_000_001u64.next_multiple_of(extents[0]["block_bytes"].as_u64().unwrap())
        );
        let first = extents[0]["extents"][0]["physical"].as_u64().unwrap();
        let mut bytes = [0u8; 512];
        fs::File::open(image)
            .unwrap()
            .read_exact_at(&mut bytes, first)
            .unwrap();
        assert_eq!(bytes, [0xA5; 512], "the data is where it is said to be");
        assert!(good(image, &["extents", "IMAGE:/tree/sparse"]).contains("Logical"));
    }
}

#[test]
fn the_rules_of_cp() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "32M");
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    fs::write(&a, "A").unwrap();
    fs::write(&b, "B").unwrap();
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    good(image, &["mkdir", "IMAGE:/d"]);
    good(image, &["cp", "--owner", "7:8", a, b, "IMAGE:/d"]);
    assert_eq!(good(image, &["cat", "IMAGE:/d/a", "IMAGE:/d/b"]), "AB");
    assert_eq!(json(image, &["stat", "--json", "IMAGE:/d/a"])[0]["uid"], 7);
    refused(&mut bw(image, &["cp", a, b, "IMAGE:/none"]), 1, &["/none"]);
    refused(
        &mut bw(image, &["cp", a, b, "IMAGE:/d/a"]),
        1,
        &["not a directory"],
    );
    refused(&mut bw(image, &["cp", a, "IMAGE:/none/"]), 1, &["/none/"]);
    refused(
        &mut bw(image, &["cp", "IMAGE:/d", "IMAGE:/e"]),
        1,
        &["directory", "-r"],
    );
    refused(
        &mut bw(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/d/e"]),
        1,
        &["into itself"],
    );
    refused(
        &mut bw(image, &["cp", "IMAGE:/d/a", "IMAGE:/d/a"]),
        1,
        &["same file"],
    );
    refused(
        &mut bw(image, &["cp", "IMAGE:/d/none", b]),
        1,
        &["/d/none", "no such"],
    );
    refused(&mut bw(image, &["cp", a, b]), 2, &["IMAGE:/path"]);
    good(image, &["cp", "-n", b, "IMAGE:/d/a"]);
    assert_eq!(good(image, &["cat", "IMAGE:/d/a"]), "A");
    good(image, &["cp", b, "IMAGE:/d/a"]);
    assert_eq!(good(image, &["cat", "IMAGE:/d/a"]), "B");
    // Into a directory that is there, onto a new name, and the contents alone.
    good(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/new"]);
    good(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/new"]);
    good(image, &["cp", "-r", "IMAGE:/d/.", "IMAGE:/new/d"]);
    assert_eq!(good(image, &["ls", "IMAGE:/new"]), "a\nb\nd\n");
    assert_eq!(good(image, &["ls", "IMAGE:/new/d"]), "a\nb\n");
    refused(
        &mut bw(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/new/a"]),
        1,
        &["overwritten"],
    );
    // Through a symlink, and the symlink itself.
    good(image, &["ln", "-s", "d/b", "IMAGE:/link"]);
    good(image, &["cp", "IMAGE:/link", "IMAGE:/followed"]);
    good(image, &["cp", "-r", "IMAGE:/link", "IMAGE:/copied"]);
    assert_eq!(
        json(image, &["stat", "--json", "IMAGE:/followed"])[0]["kind"],
        "file"
    );
    assert_eq!(
        json(image, &["stat", "--json", "IMAGE:/copied"])[0]["target"],
        "d/b"
    );
    // One failure does not keep the others from being copied.
    refused(
        &mut bw(image, &["cp", "/none such", b, "IMAGE:/new/d"]),
        1,
        &["/none such"],
    );
    if have("e2fsck") {
        e2fsck_clean(image, "after cp");
    }
}

#[test]
fn the_root_of_an_empty_volume_has_an_owner() {
    let scratch = Scratch::new();
    for format in ["ext4", "f2fs"] {
        let image = &scratch.path(format);
        let owner = ["--size", "64M", "--owner", "12:34", "IMAGE"];
        good(image, &[&["mkfs", "-t", format], &owner[..]].concat());
        let root = &json(image, &["stat", "--json", "IMAGE:/"])[0];
        assert_eq!((&root["uid"], &root["gid"]), (&12.into(), &34.into()));
    }
}

#[test]
fn reports() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(
        image,
        &["-L", "named", "-U", "01234567-89ab-cdef-0123-456789abcdef"],
        "64M",
    );
    let info = json(image, &["info", "--json", "IMAGE"]);
    assert_eq!(info["label"], "named");
    assert_eq!(info["uuid"], "01234567-89ab-cdef-0123-456789abcdef");
    assert_eq!(info["format"], "ext4");
    assert_eq!(info["state"][0], "clean");
    assert_eq!(info["checksum_ok"], true);
    assert_eq!(info["size"], 64 << 20);
    let text = good(image, &["info", "IMAGE"]);
    assert!(
        text.contains("named") && text.contains("Journal:"),
        "{text}"
    );
    let df = json(image, &["df", "--json", "IMAGE"]);
    let number = |key: &str| df[key].as_u64().unwrap();
    assert_eq!(number("used") + number("free"), number("size"));
    assert_eq!(
        number("inodes_used") + number("inodes_free"),
        number("inodes")
    );
    assert!(good(image, &["df", "IMAGE"]).contains("Use%"));
    // As coreutils have it, `-h` is not help where there are sizes.
    assert!(good(image, &["df", "-h", "IMAGE"]).contains("Use%"));
    assert!(good(image, &["du", "-sh", "IMAGE"]).starts_with("13.0 KiB\t"));
    assert!(good(image, &["ls", "-lh", "IMAGE"]).contains(" 12.0 KiB "));
    assert!(good(image, &["du", "--help"]).contains("--human-readable"));
    let check = json(image, &["check", "--json", "IMAGE"]);
    assert_eq!(
        (&check["clean"], &check["exit_code"]),
        (&Value::from(true), &Value::from(0))
    );
    assert!(good(image, &["check", "-n", "IMAGE"]).contains("clean"));
    // dumpe2fs agrees.
    if have("dumpe2fs") {
        let theirs = ok(Command::new("dumpe2fs").arg("-h").arg(image));
        let field = |name: &str| {
            let line = theirs.lines().find(|l| l.starts_with(name)).unwrap();
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        assert_eq!(field("Free blocks"), info["blocks_free"].to_string());
        assert_eq!(field("Inode count"), info["inodes"].to_string());
        let mut names: Vec<&str> = info["features"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f.as_str().unwrap())
            .collect();
        let features = field("Filesystem features");
        let mut expected: Vec<&str> = features.split_whitespace().collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
    }
    let made = json(
        &scratch.path("made.img"),
        &["mkfs", "--json", "--size", "16M", "-t", "ext2", "IMAGE"],
    );
    assert_eq!(
        (&made["format"], &made["size"]),
        (&Value::from("ext2"), &Value::from(16 << 20))
    );
}

#[test]
fn damage_is_found_and_repaired_with_fsck_codes() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "32M");
    // A wrong number of free blocks, with a right checksum no longer.
    let file = fs::OpenOptions::new()
        .write(true)
        .read(true)
        .open(image)
        .unwrap();
    let mut byte = [0u8; 1];
    file.read_exact_at(&mut byte, 1024 + 12).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1024 + 12).unwrap();
    drop(file);
    let before = hash(image);
    let out = output(&mut bw(image, &["check", "IMAGE"]));
    assert_eq!(
        out.status.code(),
        Some(4),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        stderr(&out)
    );
    assert!(before == hash(image), "a check changes nothing");
    let out = output(&mut bw(image, &["check", "-y", "--json", "IMAGE"]));
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["issues"][0]["outcome"], "repaired");
    assert_eq!(report["changed"], true);
    good(image, &["check", "-n", "IMAGE"]);
    if have("e2fsck") {
        e2fsck_clean(image, "repaired");
    }
    refused(&mut bw(image, &["check", "-n", "-y", "IMAGE"]), 16, &[]);
    // With what every command takes before the name, as one word or two.
    for before in [&["--device", "further.img"][..], &["--device=further.img"]] {
        let asked = [before, &["check", "--bad", "IMAGE"]].concat();
        refused(&mut bw(image, &asked), 16, &["--bad"]);
        let asked = [before, &["ls", "--bad", "check"]].concat();
        refused(&mut bw(image, &asked), 2, &["--bad"]);
    }
    refused(
        &mut bw(image, &["check", "IMAGE.none"]),
        8,
        &["disk.img.none"],
    );
}

/// No reader of the output: quiet, and no panic. Contents that lie in the inode are one extent, not
/// one for each byte up to the end of a block.
#[test]
fn inline_contents_are_one_extent() {
    let scratch = Scratch::new();
    let (image, tree) = (&scratch.path("disk.img"), scratch.dir("tree"));
    fs::write(tree.join("hosts"), "box\n").unwrap();
    let from = ["--from", tree.to_str().unwrap(), "IMAGE"];
    for format in [
        &["-O", "inline_data", "--size", "8M"][..],
        &["-t", "f2fs", "--size", "60M"],
    ] {
        good(image, &[&["mkfs", "-q", "-F"], format, &from].concat());
        let told = json(image, &["extents", "--json", "IMAGE:/hosts"]);
        let extents = &told[0]["extents"];
        assert_eq!(extents.as_array().unwrap().len(), 1, "{format:?}");
        assert_eq!(extents[0]["length"], 4);
        assert_eq!(extents[0]["flags"], serde_json::json!(["inline", "last"]));
        assert!(good(image, &["extents", "IMAGE:/hosts"]).contains("4 bytes, 1 extent,"));
    }
}

#[test]
fn a_closed_pipe_is_quiet() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "16M");
    let out = with_input(
        &mut bw(image, &["cp", "-", "IMAGE:/big"]),
        &vec![b'x'; 4_000_000],
    );
    assert!(out.status.success());
    for args in [
        &["cat", "IMAGE:/big"][..],
        &["export", "IMAGE"],
        &["cp", "IMAGE:/big", "-"],
    ] {
        let mut child = bw(image, args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(141), "{args:?}");
        assert_eq!(stderr(&out), "", "{args:?}");
    }
}

/// What is written is counted for the volume's life, data and metadata, over mounts; dumpe2fs shows the same.
#[test]
fn lifetime_writes_are_counted() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &["-t", "ext4"], "64M");
    let source = scratch.path("source");
    std::fs::write(&source, vec![5; 3 << 20]).unwrap();
    let written = || json(image, &["info", "--json", "IMAGE"])["lifetime_written"].as_u64();
    let mut before = written().unwrap();
    for name in ["IMAGE:/a", "IMAGE:/b"] {
        good(image, &["cp", source.to_str().unwrap(), name]);
        let now = written().unwrap();
        let grown = now - before;
        assert!((3 << 20..12 << 20).contains(&grown), "{before} to {now}");
        before = now;
    }
    if have("dumpe2fs") {
        let theirs = ok(Command::new("dumpe2fs").arg("-h").arg(image));
        let line = theirs.lines().find(|l| l.starts_with("Lifetime writes"));
        let shown = line.unwrap().split_once(':').unwrap().1.trim();
        // So few are shown in KiB.
        assert_eq!(shown, format!("{} kB", before >> 10));
    }
}

#[test]
fn lifetime_writes_are_counted_on_f2fs() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &["-t", "f2fs"], "64M");
    let source = scratch.path("source");
    std::fs::write(&source, vec![5; 3 << 20]).unwrap();
    let written = || {
        let info = json(image, &["info", "--json", "IMAGE"]);
        info["checkpoint"]["lifetime_written"].as_u64().unwrap()
    };
    let mut before = written();
    for name in ["IMAGE:/a", "IMAGE:/b"] {
        good(image, &["cp", source.to_str().unwrap(), name]);
        let now = written();
        let grown = now - before;
        assert!((3 << 20..12 << 20).contains(&grown), "{before} to {now}");
        before = now;
    }
}
