//! Images made by e2fsprogs, and its verdict on images.

pub mod f2fs;
pub mod fast_commits;
pub mod verdict;
pub mod volume;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use blockwright_check::Mode;
use blockwright_check::ext4::{CheckError, CheckOptions, Report, check};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{MemoryDevice, SharedDevice};

/// Whether e2fsprogs is there; missing, it fails under CI and skips loudly elsewhere.
pub fn tools() -> bool {
    blockwright_oracles::have(&["mke2fs", "e2fsck", "debugfs"])
}

/// Seeded, printed, repeatable.
pub struct Rng(SplitMix64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(SplitMix64::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn bytes(&mut self, out: &mut [u8]) {
        out.iter_mut().for_each(|b| *b = self.next() as u8);
    }
}

/// Fills a directory with one of everything that needs no privileges.
pub fn sample_tree(root: &Path) {
    let dir = |p: &str| std::fs::create_dir_all(root.join(p)).unwrap();
    let file = |p: &str, bytes: &[u8]| std::fs::write(root.join(p), bytes).unwrap();
    dir("dir/sub/deep");
    dir("many");
    dir("empty");
    file("a", b"hello\n");
    file("zero", b"");
    let mut rng = Rng::new(7);
    let mut big = vec![0; 300_000];
    rng.bytes(&mut big);
    file("dir/big", &big);
    file("dir/small", &big[..50]);
    file("dir/sub/middle", &big[..9000]);
    for n in 0..150 {
        file(&format!("many/a-file-with-a-long-name-{n:04}"), &big[..n]);
    }
    // Holes make a mapping of many pieces.
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    for n in 0..24u64 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", n * 65536 + 100).unwrap();
    }
    std::os::unix::fs::symlink("a", root.join("short-link")).unwrap();
    std::os::unix::fs::symlink("x".repeat(100), root.join("long-link")).unwrap();
    std::fs::hard_link(root.join("a"), root.join("dir/hard")).unwrap();
    let _ = Command::new("mkfifo").arg(root.join("fifo")).status();
    for (name, value, path) in [
        ("user.short", "value".to_owned(), "a"),
        ("user.long", "v".repeat(500), "dir/big"),
        ("user.long", "v".repeat(500), "dir/small"),
    ] {
        let _ = Command::new("setfattr")
            .args(["-n", name, "-v", &value])
            .arg(root.join(path))
            .stderr(std::process::Stdio::null())
            .status();
    }
}

/// A place for images.
pub struct Lab {
    pub dir: tempfile::TempDir,
    pub tree: PathBuf,
}

impl Lab {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        sample_tree(&tree);
        Self { dir, tree }
    }

    /// Makes a volume with the sample tree, its directories indexed where the features allow it.
    /// `None` when this mke2fs cannot.
    pub fn make(&self, size: &str, args: &[&str]) -> Option<Vec<u8>> {
        let path = self.dir.path().join("make.img");
        let _ = std::fs::remove_file(&path);
        let out = Command::new("mke2fs")
            .args(["-q", "-F", "-U", "11111111-2222-3333-4444-555555555555"])
            .args(["-E", "hash_seed=22222222-2222-3333-4444-555555555555"])
            .args(args)
            .arg("-d")
            .arg(&self.tree)
            .arg(&path)
            .arg(size)
            .output()
            .unwrap();
        if !out.status.success() {
            eprintln!("mke2fs {args:?}: {}", String::from_utf8_lossy(&out.stderr));
            return None;
        }
        let out = Command::new("e2fsck")
            .args(["-fyD"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(
            out.status.code().unwrap() <= 1,
            "e2fsck -fyD {args:?}: {}",
            String::from_utf8_lossy(&out.stdout)
        );
        Some(std::fs::read(&path).unwrap())
    }

    /// Runs debugfs commands on an image.
    pub fn debugfs(&self, image: &[u8], commands: &[&str]) -> Vec<u8> {
        let path = self.dir.path().join("debugfs.img");
        std::fs::write(&path, image).unwrap();
        let script = self.dir.path().join("debugfs.cmd");
        std::fs::write(&script, commands.join("\n") + "\n").unwrap();
        let out = Command::new("debugfs")
            .arg("-w")
            .arg("-f")
            .arg(&script)
            .arg(&path)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "debugfs: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        std::fs::read(&path).unwrap()
    }

    /// e2fsck's read-only verdict: exit code and what it said.
    pub fn e2fsck(&self, image: &[u8]) -> (i32, String) {
        let path = self.dir.path().join("e2fsck.img");
        std::fs::write(&path, image).unwrap();
        self.e2fsck_path(&path)
    }

    /// The same, of a file.
    pub fn e2fsck_path(&self, path: &Path) -> (i32, String) {
        let out = Command::new("timeout")
            .args(["60", "e2fsck", "-fn"])
            .arg(path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        (out.status.code().unwrap_or(-1), text)
    }
}

/// Our verdict on an image.
pub fn verify(image: &[u8]) -> Result<Report, CheckError> {
    verify_device(&MemoryDevice::from_image(image))
}

/// Our verdict on what a device holds.
pub fn verify_device(device: &MemoryDevice) -> Result<Report, CheckError> {
    let device: SharedDevice = Arc::new(device.snapshot().into_read_only());
    check(device, &CheckOptions::default())
}

/// Repairs an image: the report, and the image afterwards.
pub fn repair(image: &[u8], mode: Mode) -> (Result<Report, CheckError>, Vec<u8>) {
    let device = Arc::new(MemoryDevice::from_image(image));
    let options = CheckOptions {
        mode,
        ..CheckOptions::default()
    };
    let report = check(device.clone(), &options);
    (report, device.to_vec())
}

/// The issues of a report, one a line.
pub fn show(report: &Report) -> String {
    report
        .issues
        .iter()
        .map(|i| format!("    {:?}: {i}\n", i.severity))
        .collect()
}
