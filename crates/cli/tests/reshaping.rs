//! `resize` and `set` on images: of ext4 beside e2fsprogs and the kernel, of f2fs beside fsck.f2fs.

mod common;

use common::{
    KernelMount, Mounted, Scratch, check_clean, fsck_f2fs_clean, have, have_fuse, have_kernel,
    mke2fs, mkfs_f2fs, ok, our_mkfs, output, program,
};
use std::fs;
use std::path::Path;
use std::process::Command;

fn json(command: &mut Command) -> serde_json::Value {
    serde_json::from_str(&ok(command)).expect("JSON")
}

fn info(image: &Path) -> serde_json::Value {
    json(program().args(["info", "--json"]).arg(image))
}

/// A tree as a tar stream: names, attributes and bytes.
fn exported(image: &Path) -> Vec<u8> {
    let out = output(program().arg("export").arg(image));
    assert!(out.status.success());
    out.stdout
}

fn filled(image: &Path, scratch: &Scratch) -> Vec<u8> {
    let tree = scratch.dir("tree/deep/er");
    for n in 0..60usize {
        fs::write(tree.join(format!("{n}")), vec![n as u8; n * 1500]).expect("written");
    }
    ok(program()
        .args(["cp", "-r"])
        .arg(scratch.path("tree"))
        .arg(format!("{}:/", image.display())));
    exported(image)
}

#[test]
fn an_image_grows_with_its_file() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    our_mkfs(&image, &[], "64M");
    let before = filled(&image, &scratch);
    let said = json(
        program()
            .args(["resize", "--json", "-n"])
            .arg(&image)
            .arg("1G"),
    );
    assert_eq!(said["dry_run"], true);
    assert_eq!(fs::metadata(&image).expect("there").len(), 64 << 20);
    let said = json(program().args(["resize", "--json"]).arg(&image).arg("1G"));
    assert_eq!(
        (&said["size_before"], &said["size"]),
        (&(64 << 20).into(), &(1u64 << 30).into())
    );
    assert_eq!(fs::metadata(&image).expect("there").len(), 1 << 30);
    check_clean(&image, "resized");
    ok(program().arg("resize").arg(&image).arg("+512M"));
    assert_eq!(fs::metadata(&image).expect("there").len(), 3 << 29);
    fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("there")
        .set_len(2 << 30)
        .expect("room");
    ok(program().args(["resize", "--fill"]).arg(&image));
    let said = json(
        program()
            .args(["resize", "--json", "--fill", "-n"])
            .arg(&image),
    );
    assert_eq!(said["size_before"], 2u64 << 30);
    check_clean(&image, "filled");
    assert!(exported(&image) == before, "files differ");
    if have_kernel() {
        let mounted = KernelMount::new(&image, &scratch.dir("mnt"), "");
        assert_eq!(
            fs::read(scratch.path("mnt/tree/deep/er/9"))
                .expect("read")
                .len(),
            9 * 1500
        );
        fs::write(scratch.path("mnt/new"), vec![1; 300 << 20]).expect("room");
        drop(mounted);
        check_clean(&image, "written to by the kernel");
    }
}

#[test]
fn an_image_shrinks_with_its_file() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    our_mkfs(&image, &[], "600M");
    let before = filled(&image, &scratch);
    let length = || fs::metadata(&image).expect("there").len();
    let said = json(program().args(["resize", "--json"]).arg(&image).arg("300M"));
    assert_eq!(said["size"].as_u64(), Some(length()));
    assert!(length() <= 300 << 20);
    check_clean(&image, "smaller");
    ok(program()
        .args(["resize", "--minimum", "--free", "8M"])
        .arg(&image));
    check_clean(&image, "smallest");
    let free = json(program().args(["df", "--json"]).arg(&image))["free"].as_u64();
    let free = free.expect("a number");
    assert!((8 << 20..9 << 20).contains(&free), "{free} bytes free");
    assert!(exported(&image) == before, "files differ");
    ok(program().arg("resize").arg(&image).arg("1G"));
    check_clean(&image, "large again");
    assert!(exported(&image) == before, "files differ");
    let out = output(program().arg("resize").arg(&image).arg("1M"));
    assert_eq!((out.status.code(), length()), (Some(1), 1 << 30));
}

#[test]
fn a_journal_is_replayed_first_and_refusals_change_nothing() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    our_mkfs(&image, &[], "64M");
    let before = filled(&image, &scratch);
    let refused = |args: &[&str], code: i32, says: &str| {
        let out = output(program().args(args));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    };
    let path = image.to_str().expect("text");
    let bytes = fs::read(&image).expect("read");
    refused(&["resize", path], 2, "--fill");
    refused(&["resize", path, "--fill", "1G"], 2, "--fill");
    refused(&["resize", path, "12Q"], 2, "not a size");
    refused(&["set", path, "nonsense=1"], 2, "nonsense");
    refused(&["set", path, "label"], 2, "NAME=VALUE");
    refused(&["set", path, "features=+bigalloc"], 1, "bigalloc");
    refused(&["set", path, "uuid=12"], 2, "hexadecimal");
    assert!(
        fs::read(&image).expect("read") == bytes,
        "a refusal changed the image"
    );
    let text = scratch.path("text");
    fs::write(&text, "x").expect("written");
    refused(
        &["resize", text.to_str().expect("text"), "4G"],
        1,
        "no file system",
    );
    assert_eq!(fs::metadata(&text).expect("there").len(), 1);
    if !have("debugfs") {
        return;
    }
    ok(Command::new("debugfs")
        .args(["-w", "-R", "ssv state 2"])
        .arg(&image));
    refused(&["resize", path, "1G"], 1, "check -p");
    assert_eq!(fs::metadata(&image).expect("there").len(), 64 << 20);
    ok(Command::new("debugfs")
        .args(["-w", "-R", "feature +needs_recovery"])
        .arg(&image));
    refused(&["resize", path, "1G"], 1, "check -p");
    assert_eq!(fs::metadata(&image).expect("there").len(), 64 << 20);
    ok(Command::new("debugfs")
        .args(["-w", "-R", "ssv state 1"])
        .arg(&image));
    ok(program().args(["resize", path, "128M"]));
    check_clean(&image, "resized");
    assert!(exported(&image) == before);
}

#[test]
fn settings_of_ext4() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    mke2fs(&image, &["-t", "ext4"], "64M");
    ok(program().arg("set").arg(&image).args([
        "label=a label",
        "uuid=01234567-89ab-cdef-0123-456789abcdef",
        "reserved=0",
        "errors=panic",
        "features=+project,^has_journal",
    ]));
    let told = info(&image);
    assert_eq!(told["label"], "a label");
    assert_eq!(told["uuid"], "01234567-89ab-cdef-0123-456789abcdef");
    let features = told["features"].to_string();
    assert!(
        features.contains("project") && !features.contains("has_journal"),
        "{features}"
    );
    check_clean(&image, "set");
    ok(program().arg("set").arg(&image).args([
        "uuid=random",
        "features=+has_journal",
        "journal-size=8M",
    ]));
    assert_ne!(info(&image)["uuid"], told["uuid"]);
    check_clean(&image, "set again");
}

#[test]
fn settings_of_f2fs() {
    if !have("mkfs.f2fs") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("image");
    mkfs_f2fs(&image, 64 << 20);
    let before = filled(&image, &scratch);
    ok(program()
        .arg("set")
        .arg(&image)
        .args(["label=größer", "uuid=01234567-89ab-cdef-0123-456789abcdef"]));
    let told = info(&image);
    assert_eq!(
        (&told["label"], &told["uuid"]),
        (
            &"größer".into(),
            &"01234567-89ab-cdef-0123-456789abcdef".into()
        )
    );
    fsck_f2fs_clean(&image, "set");
    assert!(exported(&image) == before);
    ok(program().arg("set").arg(&image).args([
        "cold-extensions=log,^mp",
        "hot-extensions=none,wal",
        "features=quota,lost_found",
    ]));
    let features = info(&image)["features"].to_string();
    assert!(
        features.contains("quota") && features.contains("lost_found"),
        "{features}"
    );
    fsck_f2fs_clean(&image, "set again");
    check_clean(&image, "set again");
    assert!(exported(&image) == before);
    for setting in [
        "reserved=0",
        "features=^quota",
        "features=inode_checksum",
        "hot-extensions=so",
    ] {
        let out = output(program().arg("set").arg(&image).arg(setting));
        assert_eq!(out.status.code(), Some(1), "{setting}");
    }
}

#[test]
fn sizes_of_f2fs() {
    if !have("mkfs.f2fs") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("image");
    mkfs_f2fs(&image, 64 << 20);
    let before = filled(&image, &scratch);
    let resize = |size: &[&str]| json(program().args(["resize", "--json"]).args(size).arg(&image));
    let length = || fs::metadata(&image).expect("there").len();
    let said = json(
        program()
            .args(["resize", "--json", "-n"])
            .arg(&image)
            .arg("2G"),
    );
    assert_eq!((length(), &said["size"]), (64 << 20, &(2u64 << 30).into()));
    let said = json(program().args(["resize", "--json"]).arg(&image).arg("+1G"));
    assert_eq!(said["size"], 1088u64 << 20);
    assert!(
        said["segments"].as_u64() > said["segments_before"].as_u64(),
        "{said}"
    );
    assert!(said["groups"].is_null());
    assert_eq!(length(), 1088 << 20);
    fsck_f2fs_clean(&image, "larger");
    check_clean(&image, "larger");
    assert!(exported(&image) == before);
    let said = resize(&["--minimum", "--free", "5M"]);
    assert_eq!(said["size"].as_u64(), Some(length()));
    assert!(length() < 100 << 20, "{said}");
    fsck_f2fs_clean(&image, "smaller");
    assert!(exported(&image) == before);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("there");
    file.set_len(200 << 20).expect("room");
    assert_eq!(resize(&["--fill"])["size"], 200u64 << 20);
    fsck_f2fs_clean(&image, "filled");
    assert!(exported(&image) == before);
    let out = output(program().arg("resize").arg(&image).arg("16M"));
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(length(), 200 << 20);
}

#[test]
fn a_mounted_f2fs_volume_names_what_makes_it_grow() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("image"), scratch.dir("mnt"));
    our_mkfs(&image, &["-t", "f2fs"], "64M");
    let mounted = Mounted::new(&image, &mnt, "");
    let out = output(program().arg("resize").arg(&mnt).arg("+64M"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && said.contains("Unmount it"),
        "{said}"
    );
    assert_eq!(fs::metadata(&image).expect("there").len(), 64 << 20);
    mounted.unmount();
    ok(program().arg("resize").arg(&image).arg("+64M"));
    assert_eq!(info(&image)["size"], 128 << 20);
}

#[test]
fn a_mounted_volume_grows_while_it_is_written() {
    if !have_fuse() || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("image"), scratch.dir("mnt"));
    our_mkfs(&image, &["-t", "ext4"], "64M");
    let mounted = Mounted::new(&image, &mnt, "");
    let room = || rustix::fs::statvfs(&mnt).expect("statvfs").f_blocks;
    let before = room();
    let pattern = |n: u64| vec![n as u8 + 1; 3 << 20];
    // More than 64 MiB: the writer only ends because the volume has grown.
    let writer = {
        let mnt = mnt.clone();
        std::thread::spawn(move || {
            for n in 0..40u64 {
                let file = mnt.join(format!("f{n}"));
                for _ in 0..200 {
                    let written = fs::write(&file, pattern(n))
                        .and_then(|()| fs::File::open(&file)?.sync_all());
                    if written.is_ok() {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            }
        })
    };
    let said = json(program().args(["resize", "--json"]).arg(&mnt).arg("+200M"));
    assert_eq!(said["size_before"], 64 << 20);
    let size = said["size"].as_u64().expect("a number");
    assert!(size > 250 << 20 && size <= 264 << 20, "{size}");
    assert_eq!(fs::metadata(&image).expect("there").len(), 264 << 20);
    // The image is made longer by another program.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("there");
    file.set_len(512 << 20).expect("room");
    let said = ok(program().args(["resize", "--fill"]).arg(&mnt));
    assert!(said.contains("512"), "{said}");
    assert!(room() > before * 6, "{} of {before}", room());
    for refused in [&["--minimum"][..], &["32M"], &["-n", "1G"]] {
        let out = output(program().arg("resize").arg(&mnt).args(refused));
        assert!(!out.status.success(), "{refused:?}");
    }
    writer.join().expect("the writer");
    for n in 0..40u64 {
        let seen = fs::read(mnt.join(format!("f{n}"))).expect("there");
        assert!(seen == vec![n as u8 + 1; 3 << 20], "f{n}");
    }
    mounted.unmount();
    check_clean(&image, "grown");
    assert_eq!(info(&image)["size"], 512 << 20);
}
