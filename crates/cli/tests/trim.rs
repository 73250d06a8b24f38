//! `fstrim` on mounts: what it refuses, what it counts, and that the image gets smaller.

mod common;

use common::{Mounted, Scratch, check_clean, have, have_fuse, ok, our_mkfs, output, program};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const IMAGE_BYTES: u64 = 256 << 20;
const REMOVED: usize = 48 << 20;

/// Bytes trimmed, as `fstrim -v` says, or what it complains about.
fn fstrim(mnt: &Path, args: &[&str]) -> Result<u64, String> {
    let out = output(Command::new("fstrim").arg("-v").args(args).arg(mnt));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    // "/mnt: 1.5 GiB (1610612736 bytes) trimmed"
    let bytes = text.split('(').nth(1).and_then(|t| t.split(' ').next());
    Ok(bytes.expect("a count").parse().expect("a number"))
}

fn used(image: &Path) -> u64 {
    fs::metadata(image).expect("there").blocks() * 512
}

fn trims(format: &str) {
    if !have("fstrim") || !have_fuse() || !blockwright_oracles::is_root() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("image"), scratch.dir("mnt"));
    our_mkfs(&image, &["-t", format], "256M");
    let mounted = Mounted::new(&image, &mnt, "");
    let invalid = |args: &[&str]| {
        let said = fstrim(&mnt, args).expect_err("invalid");
        assert!(said.contains("Invalid argument"), "{args:?}: {said}");
    };
    let beyond = (IMAGE_BYTES * 2).to_string();
    invalid(&["-o", &beyond]);
    invalid(&["-o", &beyond, "-l", "1M"]);
    invalid(&["-l", "1000"]);
    invalid(&["-o", "1M", "-l", "1"]);
    // Beyond the end from within: as far as there is something.
    fstrim(&mnt, &["-o", "1M", "-l", "1T"]).expect("trimmed");
    if format == "ext4" {
        invalid(&["-m", "1G"]);
    }
    // Files of many sizes, so that not all that goes is whole segments.
    let mut kept = Vec::new();
    let mut gone = Vec::new();
    for n in 0..12 {
        let name = mnt.join(format!("f{n}"));
        let mut file = File::create(&name).expect("made");
        file.write_all(&vec![n as u8 + 1; REMOVED / 8])
            .expect("room");
        file.sync_all().expect("synced");
        if n % 3 == 0 { &mut kept } else { &mut gone }.push(name);
    }
    let before = used(&image);
    for name in &gone {
        fs::remove_file(name).expect("removed");
    }
    let removed = (gone.len() * (REMOVED / 8)) as u64;
    // At once: what was removed counts, though nothing was synced.
    let mut count = fstrim(&mnt, &[]).expect("trimmed");
    // The kernel forgets a removed file some time after unlink(2) has returned. On a busy machine that is after the first fstrim.
    for _ in 0..50 {
        if before.saturating_sub(used(&image)) >= removed * 9 / 10 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        count += fstrim(&mnt, &[]).expect("trimmed");
    }
    let after = used(&image);
    let returned = before.saturating_sub(after);
    println!("{format}: {removed} removed, {count} counted, {returned} returned");
    assert!(count >= returned, "{count} counted, {returned} returned");
    assert!(
        returned >= removed * 9 / 10,
        "of {removed} bytes {returned} were returned"
    );
    let again = fstrim(&mnt, &[]).expect("trimmed");
    assert!(again <= count, "{count}, then {again}");
    assert!(used(&image) <= after + (1 << 20));
    // Small runs are left alone when asked to.
    assert_eq!(fstrim(&mnt, &["-o", "0", "-l", "4096"]), Ok(0));
    for (k, name) in kept.iter().enumerate() {
        let seen = fs::read(name).expect("there");
        assert!(seen == vec![k as u8 * 3 + 1; REMOVED / 8], "{name:?}");
    }
    mounted.unmount();
    check_clean(&image, format);
}

#[test]
fn fstrim_of_ext4() {
    trims("ext4");
}

#[test]
fn fstrim_of_f2fs() {
    trims("f2fs");
}

/// An image with a kept file, of which another one was removed: the kept bytes, and what the image took before.
fn with_removed_file(image: &Path, scratch: &Scratch, format: &str) -> (Vec<u8>, u64) {
    our_mkfs(image, &["-t", format], "256M");
    let (kept, gone) = (scratch.path("kept"), scratch.path("gone"));
    fs::write(&kept, vec![0xC3; 5 << 20]).expect("written");
    fs::write(&gone, vec![0xB7; REMOVED]).expect("written");
    let inside = |name: &str| format!("{}:/{name}", image.display());
    let copy = |from: &Path, name: &str| {
        ok(program().arg("cp").arg(from).arg(inside(name)));
    };
    copy(&gone, "gone");
    copy(&kept, "kept");
    let before = used(image);
    // f2fs discards what is removed by itself.
    ok(program().arg("rm").arg(inside("gone")));
    (fs::read(&kept).expect("there"), before)
}

fn trims_images(format: &str) {
    let scratch = Scratch::new();
    for zero in [false, true] {
        let image = scratch.path("image");
        let (kept, before) = with_removed_file(&image, &scratch, format);
        let flag: &[&str] = if zero { &["--zero"] } else { &[] };
        let said = ok(program().args(["trim", "--json"]).args(flag).arg(&image));
        let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let trimmed = json["trimmed"].as_u64().expect("a number");
        let returned = before.saturating_sub(used(&image));
        println!("{format}: {trimmed} trimmed, {returned} returned");
        assert!(returned >= REMOVED as u64 * 9 / 10, "{returned} returned");
        assert!(trimmed >= returned && trimmed <= IMAGE_BYTES);
        let bytes = fs::read(&image).expect("read");
        assert!(!bytes.chunks(4096).any(|block| block == [0xB7; 4096]));
        let out = output(
            program()
                .arg("cat")
                .arg(format!("{}:/kept", image.display())),
        );
        assert!(out.stdout == kept);
        check_clean(&image, format);
        fs::remove_file(&image).expect("removed");
    }
}

#[test]
fn trim_of_ext4_images() {
    trims_images("ext4");
}

#[test]
fn trim_of_f2fs_images() {
    trims_images("f2fs");
}

#[test]
fn trim_of_a_kernel_mount_and_of_none() {
    let scratch = Scratch::new();
    let text = scratch.dir("plain");
    let refused = output(program().arg("trim").arg("--zero").arg(&text));
    assert_eq!(refused.status.code(), Some(2));
    let none = output(program().arg("trim").arg(scratch.path("none")));
    assert_eq!(none.status.code(), Some(1));
    if !common::have_kernel() {
        return;
    }
    let image = scratch.path("image");
    let (_, before) = with_removed_file(&image, &scratch, "ext4");
    let mounted = common::KernelMount::new(&image, &scratch.dir("mnt"), "");
    ok(program().arg("trim").arg(scratch.path("mnt")));
    drop(mounted);
    assert!(before.saturating_sub(used(&image)) >= REMOVED as u64 * 9 / 10);
}
