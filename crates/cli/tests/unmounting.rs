//! `umount` and the end of a server where that is not simple: a volume inside a larger image, a mount that another mount
//! namespace has, several mount points; and error marks that a check takes away.

mod common;

use common::run::{bw, good, json, refused};
use common::{
    Mounted, Scratch, e2fsck_clean, have, have_fuse, have_kernel, ok, our_mkfs, output, program,
};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A new mount namespace gets every mount that is there, those of a test beside it, too. So tests with mounts take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A volume that begins at 1 MiB of a larger file.
fn inside_a_disk(scratch: &Scratch, name: &str, mkfs: &[&str], size: &str) -> std::path::PathBuf {
    let (volume, disk) = (scratch.path("volume.img"), scratch.path(name));
    our_mkfs(&volume, mkfs, size);
    let bytes = fs::read(&volume).unwrap();
    let file = fs::File::create(&disk).unwrap();
    file.write_all_at(&bytes, 1 << 20).unwrap();
    // What is at the beginning is no volume, and not empty either.
    file.write_all_at(&[0xEE; 4096], 0).unwrap();
    fs::remove_file(&volume).unwrap();
    disk
}

#[test]
fn a_volume_inside_a_disk_is_unmounted_like_any_other() {
    let _turn = turn();
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let mnt = scratch.dir("mnt");
    for (name, mkfs, size) in [
        ("ext4.disk", &[][..], "8M"),
        ("f2fs.disk", &["-t", "f2fs"][..], "64M"),
    ] {
        let disk = inside_a_disk(&scratch, name, mkfs, size);
        let at = mnt.to_str().unwrap();
        good(&disk, &["mount", "-o", "offset=1M", "IMAGE", at]);
        fs::write(mnt.join("file"), "hello").unwrap();
        let out = output(program().arg("umount").arg(&mnt));
        assert!(
            out.status.success() && out.stderr.is_empty(),
            "{name}: {out:?}"
        );
        // Free at once, and clean: it can be mounted again.
        let mounted = Mounted::new(&disk, &mnt, "offset=1M");
        assert_eq!(fs::read(mnt.join("file")).unwrap(), b"hello");
        mounted.unmount();
        // A server that dies is told, here as well.
        let mounted = Mounted::new(&disk, &mnt, "offset=1M");
        fs::write(mnt.join("file"), "again").unwrap();
        ok(Command::new("kill").args(["-9", &mounted.pid().to_string()]));
        std::thread::sleep(Duration::from_millis(300));
        refused(
            program().arg("umount").arg(&mnt),
            1,
            &["did not close the volume cleanly"],
        );
        drop(mounted);
    }
}

#[test]
fn several_mount_points_at_once() {
    let _turn = turn();
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let mut points = Vec::new();
    for name in ["a", "b"] {
        let (image, mnt) = (scratch.path(&format!("{name}.img")), scratch.dir(name));
        our_mkfs(&image, &[], "4M");
        let out = output(&mut bw(
            &image,
            &["mount", "-q", "IMAGE", mnt.to_str().unwrap()],
        ));
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        points.push(mnt);
    }
    let nothing = scratch.dir("nothing");
    let mut command = program();
    command
        .arg("umount")
        .arg(&points[0])
        .arg(&nothing)
        .arg(&points[1]);
    refused(&mut command, 1, &["nothing: not mounted"]);
    for mnt in &points {
        assert!(!mnt.join("lost+found").exists());
    }
    let images = ["a.img", "b.img"].map(|name| scratch.path(name));
    let text = ok(program().arg("df").args(&images));
    assert_eq!(text.lines().count(), 3, "{text}");
}

/// A process with a mount namespace of its own, which has every mount that is there now.
struct Namespace(Child);

impl Namespace {
    fn new(mnt: &Path) -> Self {
        let child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sleep", "300"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let own = fs::read_link("/proc/self/ns/mnt").unwrap();
        let theirs = format!("/proc/{}", child.id());
        loop {
            let apart = fs::read_link(format!("{theirs}/ns/mnt")).is_ok_and(|ns| ns != own);
            let sleeps = fs::read_to_string(format!("{theirs}/comm")).is_ok_and(|c| c == "sleep\n");
            if apart && sleeps {
                break;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "unshare takes too long"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(
            Path::new(&format!("{theirs}/root"))
                .join(mnt.strip_prefix("/").unwrap())
                .exists()
        );
        Namespace(child)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_that_another_namespace_has() {
    let _turn = turn();
    if !have_fuse() || !have_kernel() || !have("unshare") {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &[], "16M");
    good(&image, &["mount", "-q", "IMAGE", mnt.to_str().unwrap()]);
    let namespace = Namespace::new(&mnt);
    let there = Path::new("/proc")
        .join(namespace.0.id().to_string())
        .join("root")
        .join(mnt.strip_prefix("/").unwrap());
    // The kernel's umount returns; so does ours, and says what it is.
    let start = Instant::now();
    let out = output(program().arg("umount").arg(&mnt));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    let process = format!("mount namespace of process {}", namespace.0.id());
    assert!(text.contains(&process), "{text}");
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    // What is written there is not lost when a signal ends the server.
    fs::write(there.join("file"), vec![7; 100_000]).unwrap();
    let start = Instant::now();
    let text = String::from_utf8_lossy(&output(&mut bw(&image, &["mkdir", "IMAGE:/x"])).stderr)
        .into_owned();
    let pid: u32 = text
        .split("in use by process ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{text}"));
    ok(Command::new("kill").arg(pid.to_string()));
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(
            start.elapsed() < Duration::from_secs(40),
            "the server goes on"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(namespace);
    good(&image, &["check", "-n", "IMAGE"]);
    let stat = json(&image, &["stat", "--json", "IMAGE:/file"]);
    assert_eq!(stat[0]["size"], 100_000);
}

/// A volume that is marked as having errors, and has none any more, is marked clean by a check that may write.
#[test]
fn error_marks_go_with_the_errors() {
    let _turn = turn();
    if !have("debugfs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    for mode in ["-p", "-y", "-a"] {
        our_mkfs(image, &[], "8M");
        for field in [
            "state 2",
            "error_count 3",
            "first_error_time 1700000000",
            "first_error_line 7",
            "last_error_time 1700000001",
            "last_error_func ext4_lookup",
        ] {
            let request = format!("set_super_value {field}");
            ok(Command::new("debugfs")
                .args(["-w", "-R", &request])
                .arg(image));
        }
        // Nothing is wrong with it, and looking changes nothing.
        let looked = good(image, &["check", "-n", "IMAGE"]);
        assert!(looked.contains("marked as having errors"), "{looked}");
        let info = json(image, &["info", "--json", "IMAGE"]);
        assert_eq!(info["errors"], 3);
        let out = output(&mut bw(image, &["check", mode, "IMAGE"]));
        assert_eq!(out.status.code(), Some(1), "{mode}: {out:?}");
        let info = json(image, &["info", "--json", "IMAGE"]);
        assert_eq!(info["errors"], 0, "{mode}");
        assert!(info.get("first_error").is_none() && info.get("last_error").is_none());
        let again = good(image, &["check", mode, "IMAGE"]);
        assert!(!again.contains("marked"), "{mode}: {again}");
        e2fsck_clean(image, mode);
    }
}
