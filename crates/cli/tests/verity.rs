//! Files protected by fs-verity: read like others, and never changed.

mod common;

use common::run::{bw, good, refused, with_input};
use common::{Mounted, Scratch, check_clean, e2fsck_clean, have, have_fuse, mke2fs, ok};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const EPERM: i32 = 1;

/// A volume with a file that has the flag. (Its signature is not there: who reads it here does not
/// verify it, as the documents say.)
fn volume(scratch: &Scratch) -> PathBuf {
    let image = scratch.path("verity.img");
    mke2fs(&image, &["-t", "ext4", "-O", "verity"], "32M");
    let out = with_input(&mut bw(&image, &["cp", "-", "IMAGE:/signed"]), b"signed\n");
    assert!(out.status.success());
    // Extents, verity.
    ok(Command::new("debugfs")
        .args(["-w", "-R", "sif /signed flags 0x180000"])
        .arg(&image));
    image
}

fn refused_change<T>(result: std::io::Result<T>, what: &str) {
    match result {
        Ok(_) => panic!("{what} was allowed"),
        Err(e) => assert_eq!(e.raw_os_error(), Some(EPERM), "{what}: {e}"),
    }
}

#[test]
fn a_mount_refuses_to_change_them() {
    if !have_fuse() || !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new();
    let image = volume(&scratch);
    let mnt = scratch.dir("mnt");
    let mounted = Mounted::new(&image, &mnt, "");
    let path = mnt.join("signed");
    let open = |o: &mut OpenOptions| o.open(&path);
    refused_change(open(OpenOptions::new().write(true)), "writing");
    refused_change(open(OpenOptions::new().read(true).write(true)), "both");
    refused_change(open(OpenOptions::new().append(true)), "appending");
    refused_change(
        open(OpenOptions::new().write(true).truncate(true)),
        "truncating",
    );
    let file = File::open(&path).unwrap();
    let by_handle = file.set_len(0).unwrap_err();
    assert_eq!(by_handle.kind(), ErrorKind::InvalidInput, "{by_handle}");
    refused_change(truncate(&path), "truncate(2)");
    drop(file);
    // Everything else is as with other files.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    fs::rename(&path, mnt.join("moved")).unwrap();
    fs::hard_link(mnt.join("moved"), &path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"signed\n");
    fs::remove_file(&path).unwrap();
    mounted.unmount();
    e2fsck_clean(&image, "verity");
    check_clean(&image, "verity");
}

/// truncate(2) by a program: std has no way to it without opening the file.
fn truncate(path: &Path) -> std::io::Result<()> {
    let out = Command::new("perl")
        .args(["-e", "truncate($ARGV[0], 3) or exit($!+0)"])
        .arg(path)
        .output()?;
    match out.status.code() {
        Some(0) => Ok(()),
        Some(errno) => Err(std::io::Error::from_raw_os_error(errno)),
        None => Err(std::io::Error::other("perl was killed")),
    }
}

#[test]
fn commands_refuse_to_change_them() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new();
    let image = &volume(&scratch);
    assert_eq!(good(image, &["cat", "IMAGE:/signed"]), "signed\n");
    let source = scratch.path("source");
    fs::write(&source, "other").unwrap();
    refused(
        &mut bw(image, &["cp", source.to_str().unwrap(), "IMAGE:/signed"]),
        1,
        &["signed", "fs-verity"],
    );
    assert_eq!(good(image, &["cat", "IMAGE:/signed"]), "signed\n");
    good(image, &["mv", "IMAGE:/signed", "IMAGE:/moved"]);
    good(image, &["rm", "IMAGE:/moved"]);
    e2fsck_clean(image, "verity");
}
