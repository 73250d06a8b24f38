//! Switches that decide who sees what, and what is read after a crash.

use crate::common::run::{bw, hash, json};
use crate::common::{Mounted, Scratch, check_clean, have_fuse, ok, our_mkfs, output};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn kinds() -> [&'static [&'static str]; 2] {
    [&["-t", "ext4"], &["-t", "f2fs"]]
}

/// `norecovery` shows the volume as it was before what a crash left to be recovered, `ro` as it is after that; neither writes.
#[test]
fn with_and_without_recovery() {
    if !have_fuse() {
        return;
    }
    for kind in kinds() {
        let scratch = Scratch::new();
        let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
        our_mkfs(&image, kind, "96M");
        let settled = Mounted::new(&image, &mnt, "");
        fs::write(mnt.join("before"), "before").unwrap();
        settled.unmount();
        let crashed = Mounted::new(&image, &mnt, "commit=3600");
        let mut file = File::create(mnt.join("after")).unwrap();
        file.write_all(b"after").unwrap();
        file.sync_all().unwrap();
        drop(file);
        crashed.kill();

        let left = hash(&image);
        let seen = |options: &str| {
            let mounted = Mounted::new(&image, &mnt, options);
            assert_eq!(
                fs::read(mnt.join("before")).unwrap(),
                b"before",
                "{kind:?}, {options}"
            );
            let after = fs::read(mnt.join("after")).ok();
            mounted.unmount();
            after
        };
        assert_eq!(
            seen("ro,norecovery"),
            None,
            "{kind:?}: nothing was left to recover"
        );
        assert!(hash(&image) == left, "{kind:?}: norecovery writes");
        assert_eq!(seen("ro").as_deref(), Some(&b"after"[..]), "{kind:?}");
        assert!(hash(&image) == left, "{kind:?}: ro writes");
        assert_eq!(seen("").as_deref(), Some(&b"after"[..]), "{kind:?}");
        check_clean(&image, "recovered");
    }
}

/// ext4 is found by a copy of its superblock when the first one is gone.
#[test]
fn another_superblock() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &["-b", "1024"], "48M");
    let mounted = Mounted::new(&image, &mnt, "");
    fs::write(mnt.join("file"), "kept").unwrap();
    mounted.unmount();
    let raw = File::options().write(true).open(&image).unwrap();
    raw.write_all_at(&[0; 1024], 1024).unwrap();
    let refused = output(bw(&image, &["mount", "-o", "ro", "IMAGE"]).arg(&mnt));
    assert!(!refused.status.success());
    let mounted = Mounted::new(&image, &mnt, "ro,sb=8193");
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"kept");
    mounted.unmount();
}

fn flags_of(mnt: &Path) -> (String, Vec<String>) {
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let line = table
        .lines()
        .find(|l| l.split(' ').nth(1).map(Path::new) == Some(mnt));
    let words: Vec<&str> = line.expect("mounted").split(' ').collect();
    let flags = words[3].split(',').map(str::to_owned).collect();
    (words[0].to_owned(), flags)
}

/// What the kernel is to do about programs and devices on the mount; its name; where it was mounted, and what was said about it.
#[test]
fn flags_names_and_messages() {
    if !have_fuse() || !blockwright_oracles::root() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &[], "48M");
    for (options, there, missing) in [
        (
            "",
            &["nosuid", "nodev", "rw", "relatime"][..],
            &["noexec"][..],
        ),
        (
            "suid,dev,noexec,noatime,ro",
            &["noexec", "noatime", "ro"],
            &["nosuid", "nodev"],
        ),
        (
            "suid,nosuid,dev,nodev,noexec,exec",
            &["nosuid", "nodev"],
            &["noexec"],
        ),
    ] {
        let mounted = Mounted::new(&image, &mnt, options);
        let (_, flags) = flags_of(&mnt);
        let has = |flag: &&str| flags.iter().any(|f| f == flag);
        assert!(there.iter().all(has), "{options}: {flags:?}");
        assert!(!missing.iter().any(has), "{options}: {flags:?}");
        mounted.unmount();
    }
    let log = scratch.path("log");
    let text = mnt.to_str().unwrap();
    let log_text = log.to_str().unwrap();
    ok(&mut bw(
        &image,
        &[
            "mount",
            "-o",
            "fsname=a-name",
            "--log",
            log_text,
            "IMAGE",
            text,
        ],
    ));
    let (name, _) = flags_of(&mnt);
    assert_eq!(name, "a-name");
    ok(&mut bw(&image, &["umount", text]));
    assert!(log.exists(), "no log was made");
    assert_eq!(
        json(&image, &["info", "--json", "IMAGE"])["mounted_on"],
        text
    );
}
