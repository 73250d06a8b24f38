//! `mkfs` behind the wall: directories and archives as sources.

use crate::common::run::{bw, good, stderr};
use crate::common::{Scratch, ok, output};
use crate::have_landlock;
use std::fs;
use std::process::Command;

/// `mkfs --from` reads the directory that it was given, and follows no link out of it.
#[test]
fn volumes_from_directories() {
    if !have_landlock() {
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.dir("source");
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), vec![3; 300_000]).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", source.join("link")).unwrap();
    fs::hard_link(source.join("dir/file"), source.join("second")).unwrap();
    for format in ["ext4", "f2fs"] {
        let images = ["require", "off"].map(|mode| {
            let image = scratch.path(&format!("{format}-{mode}.img"));
            let mode = format!("--sandbox={mode}");
            let args = ["mkfs", &mode, "-q", "-t", format, "--size", "64M"];
            ok(bw(&image, &args)
                .args(["-U", "01234567-89ab-cdef-0123-456789abcdef"])
                .env("SOURCE_DATE_EPOCH", "1700000000")
                .arg("--from")
                .arg(&source)
                .arg(&image));
            good(&image, &["check", "-n", "IMAGE"]);
            fs::read(&image).unwrap()
        });
        assert!(images[0] == images[1], "{format}: another image");
    }
}

/// Sources by `-d` are sources like those by `--from`: the process is confined, and can read them.
#[test]
fn volumes_from_directories_named_as_mke2fs_does() {
    if !have_landlock() {
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.dir("source");
    fs::write(source.join("file"), b"contents\n").unwrap();
    let tar = scratch.path("layer.tar");
    ok(Command::new("tar")
        .args(["-C", source.to_str().unwrap(), "-cf"])
        .arg(&tar)
        .arg("file"));
    // A directory of its own: what lies beside the image can be read in any case.
    let images = scratch.dir("images");
    for format in ["ext4", "f2fs"] {
        for layered in [false, true] {
            let image = images.join(format!("{format}-{layered}.img"));
            let args = ["mkfs", "-v", "-q", "-t", format, "--size", "64M"];
            let mut command = bw(&image, &args);
            command.args(["--sandbox=require", "-d"]).arg(&source);
            if layered {
                command.arg("--from").arg(&tar);
            }
            let out = output(command.arg(&image));
            let said = stderr(&out);
            assert!(out.status.success(), "{format}: {said}");
            assert!(said.contains("sandbox: complete"), "{format}: {said}");
            let text = good(&image, &["cat", "IMAGE:/file"]);
            assert_eq!(text, "contents\n");
        }
    }
}

/// Archives are read behind the wall.
#[test]
fn volumes_from_archives() {
    if !have_landlock() {
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.dir("source");
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), vec![3; 300_000]).unwrap();
    for (kind, flag) in [("tar", "-cf"), ("tar.gz", "-czf")] {
        let tar = scratch.path(kind);
        ok(Command::new("tar")
            .arg("-C")
            .arg(&source)
            .arg(flag)
            .arg(&tar)
            .arg("."));
        for format in ["ext4", "f2fs"] {
            let mut made = Vec::new();
            for mode in ["require", "off"] {
                let image = scratch.path(&format!("{kind}-{format}-{mode}.img"));
                let mode = format!("--sandbox={mode}");
                let args = [
                    "mkfs",
                    &mode,
                    "-q",
                    "-t",
                    format,
                    "--size",
                    "64M",
                    "-U",
                    "01234567-89ab-cdef-0123-456789abcdef",
                ];
                ok(bw(&image, &args)
                    .env("SOURCE_DATE_EPOCH", "1700000000")
                    .arg("--from")
                    .arg(&tar)
                    .arg(&image));
                good(&image, &["check", "-n", "IMAGE"]);
                made.push(
                    good(&image, &["ls", "-lR", "IMAGE"]).replace(image.to_str().unwrap(), ""),
                );
                // Once more, over what is there.
                ok(bw(&image, &args)
                    .args(["--force", "--from"])
                    .arg(&tar)
                    .arg(&image));
            }
            assert_eq!(made[0], made[1]);
        }
    }
}
