//! Images made by mke2fs, and the reference tools' opinion of them.
//!
//! A missing tool fails a run with `CI` set; elsewhere the test says loudly that it was skipped.

#![allow(dead_code)] // each test binary uses its part

use blockwright_device::MemoryDevice;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether `tool` can be run; skips loudly, or fails under CI.
pub fn have(tool: &str) -> bool {
    blockwright_oracles::have(&[tool])
}

/// Runs a command; its output.
pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// An image file in a directory of its own.
pub struct Image {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
}

impl Image {
    pub fn make(kib: u64, args: &[&str]) -> Image {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("image");
        let file = std::fs::File::create(&path).expect("image file");
        file.set_len(kib << 10).expect("image size");
        let text = path.to_str().expect("utf-8 path").to_owned();
        let mut all = vec!["-q", "-F"];
        all.extend(args);
        all.push(&text);
        let out = run("mke2fs", &all);
        assert!(
            out.status.success(),
            "mke2fs: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        Image { _dir: dir, path }
    }

    pub fn text(&self) -> &str {
        self.path.to_str().expect("utf-8 path")
    }

    pub fn load(&self) -> MemoryDevice {
        MemoryDevice::load(&self.path).expect("image")
    }
}

/// Saves a device as a file in `dir`.
pub fn save(device: &MemoryDevice, dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    device.save(&path).expect("save");
    path
}

/// `e2fsck -fn`: `Ok`, or what it complained about.
pub fn fsck(path: &Path) -> Result<(), String> {
    let out = run("e2fsck", &["-fn", path.to_str().expect("utf-8 path")]);
    if out.status.success() {
        return Ok(());
    }
    Err(format!(
        "e2fsck: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    ))
}

/// An image mounted by the kernel; unmounted when dropped, whatever happened.
pub struct Mounted {
    at: tempfile::TempDir,
}

impl Mounted {
    /// `None`, loudly, where mounting is not possible.
    pub fn new(image: &Path, options: &str) -> Option<Mounted> {
        let at = tempfile::tempdir().expect("mount point");
        let options = format!("loop,{options}");
        let image = image.to_str().expect("utf-8 path");
        let target = at.path().to_str().expect("utf-8 path");
        let out = run("mount", &["-t", "ext4", "-o", &options, image, target]);
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr).into_owned();
            blockwright_oracles::skip(&format!("cannot mount: {why}"));
            return None;
        }
        Some(Mounted { at })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let target = self.at.path().to_str().expect("utf-8 path");
        // Busy for a moment while another test starts a program.
        for _ in 0..50 {
            if run("umount", &[target]).status.success() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        // Out of sight now, and gone with its loop device when the last user has ended.
        let out = run("umount", &["-l", target]);
        eprintln!(
            "{target} stayed busy: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
