//! What the tests share: images with files in them, and the tools of e2fsprogs as oracles.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use blockwright_device::{OpenMode, SharedDevice};

/// Whether the oracles are there.
pub fn have_tools() -> bool {
    blockwright_oracles::have(&[
        "mke2fs",
        "e2fsck",
        "dumpe2fs",
        "resize2fs",
        "tune2fs",
        "debugfs",
    ])
}

/// A directory for one test.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("reshape-")
        .tempdir()
        .expect("a directory")
}

/// Runs to the end.
pub fn output(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .env("MKE2FS_CONFIG", "/dev/null")
        .output()
        .unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()))
}

/// Runs to the end and insists on success; what was printed.
pub fn ok(command: &mut Command) -> String {
    let out = output(command);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(out.status.success(), "{command:?}: {}\n{said}", out.status);
    said
}

/// A directory of files, small and large, deep and wide.
pub fn tree(dir: &Path) -> PathBuf {
    let root = dir.join("tree");
    fs::create_dir_all(root.join("a/b/c")).expect("made");
    for n in 0..40usize {
        let bytes: Vec<u8> = (0..n * 3001).map(|i| (i * 7 + n) as u8).collect();
        fs::write(root.join(format!("a/file-{n}")), bytes).expect("written");
        fs::write(root.join(format!("a/b/c/{n}")), format!("small {n}")).expect("written");
    }
    std::os::unix::fs::symlink("a/file-3", root.join("link")).expect("linked");
    fs::hard_link(root.join("a/file-9"), root.join("hard")).expect("linked");
    root
}

/// Makes a volume with these options of `mke2fs` and the files of [`tree`].
pub fn mke2fs(image: &Path, options: &[&str], size: &str, files: &Path) {
    ok(Command::new("mke2fs")
        .args(["-q", "-F", "-d"])
        .arg(files)
        .args(options)
        .arg(image)
        .arg(size));
}

/// `e2fsck` finds nothing.
pub fn clean(image: &Path, what: &str) {
    let out = output(Command::new("e2fsck").arg("-fn").arg(image));
    assert!(
        out.status.success(),
        "{what}: {}",
        String::from_utf8_lossy(&out.stdout)
    );
}

/// A field of `dumpe2fs -h`.
pub fn field(image: &Path, name: &str) -> String {
    let said = ok(Command::new("dumpe2fs").arg("-h").arg(image));
    said.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// All names, sizes and bytes of an image, by `debugfs`.
pub fn contents(image: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let out = scratch();
    ok(Command::new("debugfs")
        .arg("-R")
        .arg(format!("rdump / {}", out.path().display()))
        .arg(image));
    let mut list = Vec::new();
    let mut open = vec![out.path().to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let kind = fs::symlink_metadata(&path).expect("there").file_type();
            let name = path.strip_prefix(out.path()).expect("inside").to_owned();
            if kind.is_dir() {
                list.push((name, Vec::new()));
                open.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                list.push((name, target.into_os_string().into_encoded_bytes()));
            } else {
                list.push((name, fs::read(&path).expect("read")));
            }
        }
    }
    list.sort();
    list
}

/// The image as a device.
pub fn device(image: &Path) -> SharedDevice {
    blockwright_device::open(image, OpenMode::default()).expect("a device")
}

/// Makes the file of an image as large as this.
pub fn set_len(image: &Path, bytes: u64) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(image)
        .expect("there");
    file.set_len(bytes).expect("room");
}

/// `e2fsck -fy` recovers and loses nothing; then it finds nothing, and with `compare` every file is as it was.
pub fn recovers(image: &Path, before: &[(PathBuf, Vec<u8>)], what: &str, compare: bool) {
    let out = output(Command::new("e2fsck").arg("-fy").arg(image));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.code().is_some_and(|code| code < 4),
        "{what}: {said}"
    );
    // Files that lose blocks or names are told of in these words.
    for loss in [
        "lost+found",
        "Clear inode",
        "multiply-claimed",
        "Unattached",
        "deleted/unused",
    ] {
        assert!(!said.contains(loss), "{what}: {said}");
    }
    clean(image, what);
    if compare {
        assert!(contents(image) == before, "{what}: files differ");
    }
}

/// What `resize2fs -M` makes of an image, repeated until it changes nothing: its blocks.
pub fn least_by_resize2fs(image: &Path) -> u64 {
    let mut last = String::new();
    loop {
        ok(Command::new("resize2fs").args(["-f", "-M"]).arg(image));
        let blocks = field(image, "Block count");
        if blocks == last {
            return blocks.parse().expect("a number");
        }
        last = blocks;
    }
}

/// A mount by the running kernel, taken away when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let out = output(Command::new("umount").arg(&self.0));
        if !out.status.success() {
            eprintln!(
                "umount {}: {}",
                self.0.display(),
                String::from_utf8_lossy(&out.stderr)
            );
        }
    }
}

/// The running kernel mounts the image, finds the files of [`tree`], and writes. Without root, or loop devices, nothing is tried.
pub fn kernel_writes(image: &Path, what: &str) {
    if !blockwright_oracles::root() || !Path::new("/dev/loop-control").exists() {
        return;
    }
    let dir = scratch();
    // Kernels without quota mount such a volume, too, but not for writing.
    let reads = field(image, "Filesystem features").contains("quota");
    let options = if reads { "loop,ro" } else { "loop" };
    ok(Command::new("mount")
        .args(["-t", "ext4", "-o", options])
        .arg(image)
        .arg(dir.path()));
    let mounted = Mounted(dir.path().to_owned());
    let found = fs::read(dir.path().join("a/b/c/7")).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(found, b"small 7", "{what}");
    if reads {
        return;
    }
    fs::create_dir(dir.path().join("new")).unwrap_or_else(|e| panic!("{what}: {e}"));
    for n in 0..50 {
        fs::write(dir.path().join(format!("new/{n}")), vec![n; 5000])
            .unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    fs::remove_file(dir.path().join("a/file-5")).unwrap_or_else(|e| panic!("{what}: {e}"));
    drop(mounted);
    clean(image, what);
}
