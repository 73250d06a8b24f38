//! The host's disk is full before the image is: what works on the image is told, ends with an error, and leaves a consistent image, with
//! all that was promised.

mod common;

use common::{Mounted, Scratch, check_clean, fsck_f2fs_clean, have, have_fuse, our_mkfs, output};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A host file system of this many bytes, gone at the end.
struct Host(PathBuf);

impl Host {
    fn new(dir: &Path, bytes: u64) -> Option<Self> {
        let flags = rustix::mount::MountFlags::empty();
        let size = std::ffi::CString::new(format!("size={bytes}")).expect("text");
        match rustix::mount::mount("none", dir, "tmpfs", flags, size.as_c_str()) {
            Ok(()) => Some(Host(dir.to_owned())),
            Err(e) => {
                blockwright_oracles::leave(&format!("no tmpfs can be mounted: {e}"));
                None
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Both checkers find nothing wrong, the journal's replay apart: with the host still full.
fn consistent(image: &Path, copy: &Path, format: &str, what: &str) {
    check_clean(image, what);
    // What is a hole stays one: the copy is elsewhere, where there is room.
    common::ok(
        Command::new("cp")
            .args(["--sparse=always"])
            .arg(image)
            .arg(copy),
    );
    if format == "f2fs" {
        return fsck_f2fs_clean(copy, what);
    }
    let replay = ["-y", "-E", "journal_only"];
    output(Command::new("e2fsck").args(replay).arg(copy));
    common::e2fsck_clean(copy, what);
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 7u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

/// What is there before the host gets full.
const KEPT: usize = 300_000;

fn prepared(image: &Path, format: &str, scratch: &Scratch) {
    let _ = fs::remove_file(image);
    our_mkfs(image, &["-t", format], "400M");
    let kept = scratch.path("kept");
    fs::write(&kept, noise(KEPT)).expect("room");
    let mut to = image.as_os_str().to_owned();
    to.push(":/kept");
    common::ok(common::program().arg("cp").arg(&kept).arg(to));
}

fn kept(image: &Path, what: &str) {
    let mut name = image.as_os_str().to_owned();
    name.push(":/kept");
    let out = output(common::program().arg("cat").arg(name));
    assert!(out.stdout == noise(KEPT), "{what}: {out:?}");
}

fn copies(format: &str) {
    let scratch = Scratch::new();
    let dir = scratch.dir("host");
    let Some(_host) = Host::new(&dir, 16 << 20) else {
        return;
    };
    let image = dir.join("image");
    // A large file; many small ones, whose nodes and inodes find no room; a file that leaves less and less of it for metadata.
    let large = scratch.path("large");
    fs::write(&large, noise(24 << 20)).expect("room");
    let small = scratch.dir("small");
    for n in 0..200 {
        fs::write(small.join(format!("f{n}")), noise(30_000)).expect("room");
    }
    let leaves = [0u64, 100 << 10, 1 << 20];
    for (what, from, leaves) in [("large", &large, &leaves[..1]), ("small", &small, &leaves)] {
        for leave in leaves {
            prepared(&image, format, &scratch);
            let ballast = dir.join("ballast");
            let _ = fs::remove_file(&ballast);
            if what == "small" {
                // So that it is the metadata that is not taken now and then.
                let st = rustix::fs::statvfs(&dir).expect("statfs");
                let free = st.f_bavail * st.f_frsize;
                fs::write(
                    &ballast,
                    vec![1; free.saturating_sub(leave + (4 << 20)) as usize],
                )
                .expect("room");
            }
            let what = format!("{format}, cp of {what}, {leave}");
            let mut to = image.as_os_str().to_owned();
            to.push(":/new");
            let out = output(common::program().args(["cp", "-r"]).arg(from).arg(to));
            let text = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(1), "{what}: {text}");
            assert!(text.contains("space left on device"), "{what}: {text}");
            consistent(&image, &scratch.path("copy"), format, &what);
            kept(&image, &what);
        }
    }
}

fn mounts(format: &str) {
    let scratch = Scratch::new();
    let dir = scratch.dir("host");
    let mnt = scratch.dir("mnt");
    let Some(_host) = Host::new(&dir, 16 << 20) else {
        return;
    };
    let image = dir.join("image");
    prepared(&image, format, &scratch);
    let mounted = Mounted::new(&image, &mnt, "");
    let mut promised = Vec::new();
    let mut told = None;
    for n in 0..2000 {
        let name = mnt.join(format!("f{n}"));
        let bytes = noise(60_000);
        let made = File::create(&name).and_then(|mut f| {
            f.write_all(&bytes)?;
            f.sync_all()
        });
        match made {
            Ok(()) => promised.push(format!("f{n}")),
            Err(e) => {
                told = Some(e);
                break;
            }
        }
    }
    let told = told.expect("an error").raw_os_error();
    let names = [rustix::io::Errno::NOSPC, rustix::io::Errno::ROFS];
    assert!(
        names.iter().any(|e| Some(e.raw_os_error()) == told),
        "{format}: {told:?}"
    );
    for n in 0..50 {
        let _ = fs::create_dir(mnt.join(format!("d{n}")));
        let _ = fs::remove_file(mnt.join(format!("f{n}")));
        promised.retain(|p| *p != format!("f{n}"));
    }
    // Data may have failed alone; what is changed now cannot be made durable either.
    let synced = output(common::program().arg("sync").arg(&mnt));
    assert!(!synced.status.success(), "{format}: {synced:?}");
    mounted.unmount_failing();
    consistent(&image, &scratch.path("copy"), format, format);
    kept(&image, format);
    for name in promised {
        let mut path = image.as_os_str().to_owned();
        path.push(format!(":/{name}"));
        let out = output(common::program().arg("cat").arg(path));
        assert!(out.stdout == noise(60_000), "{format}: {name}");
    }
}

fn able() -> bool {
    have("e2fsck") && have("fsck.f2fs") && have_fuse() && blockwright_oracles::is_root()
}

#[test]
fn cp_into_ext4_on_a_full_host() {
    if able() {
        copies("ext4");
    }
}

#[test]
fn cp_into_f2fs_on_a_full_host() {
    if able() {
        copies("f2fs");
    }
}

#[test]
fn a_mount_of_ext4_on_a_full_host() {
    if able() {
        mounts("ext4");
    }
}

#[test]
fn a_mount_of_f2fs_on_a_full_host() {
    if able() {
        mounts("f2fs");
    }
}
