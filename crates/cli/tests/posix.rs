//! Suites of other authors over the mount, as root: `pjdfstest`, and the stressors of `stress-ng`.
//!
//! The kernel's ext4 passes every test of `pjdfstest` with the same configuration; so do we, with no expected failures.
//! (One is skipped that runs there: glibc does not know a link limit for FUSE.)

mod common;

use common::{Mounted, Scratch, check_clean, e2fsck_clean, have, have_fuse, have_kernel, our_mkfs};
use std::process::Command;

const CONFIGURATION: &str = "[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
stat_st_birthtime = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// A mount point with a short path: the suite binds sockets by full path (108 bytes at most), and its arithmetic
/// for names of PATH_MAX underflows at one length of that path in 127, which this one never has.
fn mountpoint() -> tempfile::TempDir {
    let dir = tempfile::Builder::new()
        .prefix("bw")
        .rand_bytes(4)
        .tempdir()
        .unwrap();
    std::fs::create_dir(dir.path().join("m")).unwrap();
    dir
}

fn suite(mkfs: &[&str], options: &str) {
    if !have_fuse() || !have_kernel() || !have("pjdfstest") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let f2fs = mkfs == ["f2fs"];
    if f2fs {
        if !have("mkfs.f2fs") || !have("fsck.f2fs") {
            return;
        }
        common::mkfs_f2fs(&image, 512 << 20);
    } else {
        our_mkfs(&image, mkfs, "512M");
    }
    std::fs::write(scratch.path("pjdfstest.toml"), CONFIGURATION).unwrap();
    let place = mountpoint();
    let mounted = Mounted::new(&image, &place.path().join("m"), options);
    let out = common::output(
        Command::new("pjdfstest")
            .arg("-c")
            .arg(scratch.path("pjdfstest.toml"))
            .arg("-p")
            .arg(&mounted.mountpoint),
    );
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    let summary = text
        .lines()
        .find(|l| l.starts_with("Summary:"))
        .unwrap_or_default()
        .to_owned();
    println!("{summary}");
    let failed: Vec<&str> = text
        .lines()
        .enumerate()
        .filter(|(_, l)| l.trim_end().ends_with("FAILED"))
        .flat_map(|(n, _)| text.lines().skip(n).take(4))
        .collect();
    assert!(
        summary.contains(" 0 failed") && out.status.success(),
        "{summary}\n{}\n{errors}",
        failed.join("\n")
    );
    let passed: u64 = summary
        .split(',')
        .find_map(|part| part.trim().strip_suffix(" passed"))
        .and_then(|n| n.trim().parse().ok())
        .unwrap_or(0);
    assert!(
        passed >= if f2fs { 370 } else { 380 },
        "the suite ran only in part: {summary}"
    );
    mounted.unmount();
    if f2fs {
        common::fsck_f2fs_clean(&image, "after pjdfstest");
        return;
    }
    check_clean(&image, "after pjdfstest");
    e2fsck_clean(&image, "after pjdfstest");
}

#[test]
fn pjdfstest_f2fs() {
    suite(&["f2fs"], "allow_other");
}

#[test]
fn pjdfstest_default_volume() {
    suite(&[], "allow_other");
}

#[test]
fn pjdfstest_small_blocks_without_journal() {
    suite(
        &["-b", "1024", "-O", "^has_journal,inline_data"],
        "allow_other,transport=dev_fuse",
    );
}

#[test]
fn pjdfstest_ext2() {
    suite(&["-t", "ext2"], "allow_other");
}

/// Stressors of `stress-ng`, one process each, all in one directory at the same time. Those with contents compare what they read.
const STRESSORS: [&str; 24] = [
    "access",
    "aio",
    "chmod",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "fallocate",
    "filename",
    "fpunch",
    "getdent",
    "hdd",
    "iomix",
    "link",
    "mmap",
    "rename",
    "revio",
    "seek",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "xattr",
    "flock",
];
/// Bytes of each stressor's files: all fit on the volume.
const STRESSOR_BYTES: &str = "32m";

fn stressed(format: &str, options: &str) {
    if !have_fuse() || !have("stress-ng") || !have("e2fsck") || !have("fsck.f2fs") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &["-t", format], "1G");
    let mounted = Mounted::new(&image, &scratch.dir("m"), options);
    let work = mounted.mountpoint.join("work");
    std::fs::create_dir(&work).unwrap();
    let mut command = Command::new("stress-ng");
    for stressor in STRESSORS {
        command.args([&format!("--{stressor}"), "1"]);
    }
    for sized in ["fallocate", "hdd", "iomix", "mmap", "revio", "sync-file"] {
        command.args([&format!("--{sized}-bytes"), STRESSOR_BYTES]);
    }
    command.args(["--mmap-file", "--verify", "--timeout", "8", "--temp-path"]);
    let out = common::output(command.arg(&work));
    let told =
        String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && told.contains("successful run completed"),
        "{}: {told}",
        out.status
    );
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "{told}");
    mounted.unmount();
    check_clean(&image, "after stress-ng");
    match format {
        "f2fs" => common::fsck_f2fs_clean(&image, "after stress-ng"),
        _ => e2fsck_clean(&image, "after stress-ng"),
    }
}

#[test]
fn stress_ng_on_ext4() {
    stressed("ext4", "allow_other");
}

#[test]
fn stress_ng_on_f2fs() {
    stressed("f2fs", "allow_other,transport=dev_fuse");
}
