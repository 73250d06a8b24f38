//! Comparing volumes with other programs' view of them: the host's tree, e2fsck, the kernel over a loop device.

use blockwright::{FileType, Result, Volume};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub use blockwright_oracles::{root, skip};

/// Whether a program is installed; the test is skipped when not.
pub fn have(tool: &str) -> bool {
    blockwright_oracles::have(&[tool])
}

/// Runs a program that is known to be there.
///
/// # Panics
/// When it cannot be started.
pub fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(tool)
        .args(args)
        .env("PATH", blockwright_oracles::search_path())
        .output()
        .unwrap_or_else(|e| panic!("{tool}: {e}"))
}

/// Runs a program that must succeed, and returns what it wrote.
///
/// # Panics
/// When it fails, with what it wrote.
pub fn run_ok(tool: &str, args: &[&str]) -> String {
    let out = run(tool, args);
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(
        out.status.success(),
        "{tool} {args:?}: {}\n{text}",
        out.status
    );
    text
}

/// e2fsck must find an image clean.
///
/// # Panics
/// When it finds anything to complain about, or an extent tree that is deeper than need be, which it does not call damage.
pub fn assert_e2fsck_clean(image: &Path) {
    if have("e2fsck") {
        let said = run_ok("e2fsck", &["-fn", &image.display().to_string()]);
        assert!(!said.contains("could be shorter"), "{said}");
    }
}

/// Whether the running kernel says that it was built without an option. One that says nothing counts as having all.
#[must_use]
pub fn kernel_lacks(option: &str) -> bool {
    let built_in = format!("^{option}=");
    let out = run("zgrep", &["-q", &built_in, "/proc/config.gz"]);
    out.status.code() == Some(1)
}

/// An image mounted by the running kernel through a loop device; unmounted when dropped.
pub struct LoopMount {
    device: String,
    dir: tempfile::TempDir,
    mounted: bool,
}

impl LoopMount {
    /// Mounts an image; `None` (said loudly) without the privilege or the kernel support.
    ///
    /// # Panics
    /// When oracles are required.
    pub fn new(image: &Path, options: &str) -> Option<Self> {
        if !root() || !have("losetup") || !have("mount") {
            return None;
        }
        let image = image.display().to_string();
        let out = run("losetup", &["--find", "--show", &image]);
        if !out.status.success() {
            skip(&format!(
                "losetup: {}",
                String::from_utf8_lossy(&out.stderr)
            ));
            return None;
        }
        let device = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        let dir = tempfile::tempdir().ok()?;
        let mut this = LoopMount {
            device,
            dir,
            mounted: false,
        };
        let at = this.dir.path().display().to_string();
        let out = run("mount", &["-t", "ext4", "-o", options, &this.device, &at]);
        if !out.status.success() {
            skip(&format!("mount: {}", String::from_utf8_lossy(&out.stderr)));
            return None;
        }
        this.mounted = true;
        Some(this)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if self.mounted {
            let at = self.dir.path().display().to_string();
            // Busy for a moment while another test starts a program.
            let done = (0..50).any(|_| {
                let done = run("umount", &[&at]).status.success();
                if !done {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                done
            });
            if !done {
                let out = run("umount", &["-l", &at]);
                eprintln!("{at} stayed busy: {}", String::from_utf8_lossy(&out.stderr));
            }
        }
        let out = run("losetup", &["--detach", &self.device]);
        if !out.status.success() {
            eprintln!("losetup --detach {}: failed", self.device);
        }
    }
}

/// What is compared of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Kind.
    pub kind: FileType,
    /// Permission bits.
    pub perm: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Names; 1 for directories, whose count is checked by other means.
    pub links: u32,
    /// Size; 0 for directories.
    pub size: u64,
    /// Time of the last change: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Device number of device files.
    pub rdev: u64,
    /// Hash of contents or link target.
    pub contents: u64,
    /// Extended attributes: by name, length and hash of the value.
    pub xattrs: BTreeMap<String, (usize, u64)>,
}

/// A tree by path, relative to its root (which is the empty path).
pub type Snapshot = BTreeMap<PathBuf, Item>;

fn hash_of(bytes: &[u8]) -> u64 {
    let mut h = DefaultHasher::new();
    h.write(bytes);
    h.finish()
}

/// Everything below a path of a volume.
///
/// # Errors
/// As reading the volume.
pub fn snapshot_volume(volume: &Volume, root: impl AsRef<Path>) -> Result<Snapshot> {
    let root = root.as_ref();
    let mut out = Snapshot::new();
    for entry in volume.walk(root) {
        let entry = entry?;
        let m = entry.metadata;
        let relative = entry
            .path
            .strip_prefix(root)
            .unwrap_or(&entry.path)
            .to_owned();
        let mut contents = 0;
        if m.is_file() {
            let mut h = DefaultHasher::new();
            let file = volume.open_file(&entry.path)?;
            let mut buf = vec![0u8; 1 << 20];
            let mut at = 0;
            loop {
                let n = file.read_at(&mut buf, at)?;
                if n == 0 {
                    break;
                }
                h.write(&buf[..n]);
                at += n as u64;
            }
            contents = h.finish();
        } else if m.is_symlink() {
            contents = hash_of(volume.read_link(&entry.path)?.as_os_str().as_bytes());
        }
        let mut xattrs = BTreeMap::new();
        for name in volume.list_xattr(&entry.path)? {
            let value = volume.get_xattr(&entry.path, &name)?;
            xattrs.insert(
                name.to_string_lossy().into_owned(),
                (value.len(), hash_of(&value)),
            );
        }
        out.insert(
            relative,
            Item {
                kind: m.file_type(),
                perm: m.permissions(),
                owner: (m.uid(), m.gid()),
                links: if m.is_dir() { 1 } else { m.nlink() },
                size: if m.is_dir() { 0 } else { m.len() },
                mtime: (m.attr().mtime.secs, m.attr().mtime.nanos),
                rdev: m.rdev(),
                contents,
                xattrs,
            },
        );
    }
    Ok(out)
}

/// Everything below a directory of the host.
///
/// # Errors
/// As reading it.
pub fn snapshot_host(root: impl AsRef<Path>) -> io::Result<Snapshot> {
    let root = root.as_ref();
    let mut out = Snapshot::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let m = std::fs::symlink_metadata(&path)?;
        let kind = FileType::from_mode(m.mode())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a mode without a kind"))?;
        let mut contents = 0;
        match kind {
            FileType::Directory => {
                for entry in std::fs::read_dir(&path)? {
                    todo.push(entry?.path());
                }
            }
            FileType::Regular => {
                let mut h = DefaultHasher::new();
                let mut file = std::fs::File::open(&path)?;
                let mut buf = vec![0u8; 1 << 20];
                // The same pieces as for a volume: a hash depends on how bytes are fed to it.
                loop {
                    let n = fill(&mut file, &mut buf)?;
                    if n == 0 {
                        break;
                    }
                    h.write(&buf[..n]);
                }
                contents = h.finish();
            }
            FileType::Symlink => {
                contents = hash_of(std::fs::read_link(&path)?.as_os_str().as_bytes());
            }
            _ => {}
        }
        let is_dir = kind == FileType::Directory;
        let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        out.insert(
            path.strip_prefix(root).unwrap_or(&path).to_owned(),
            Item {
                kind,
                perm: m.mode() & 0o7777,
                owner: (m.uid(), m.gid()),
                links: if is_dir {
                    1
                } else {
                    u32::try_from(m.nlink()).unwrap_or(u32::MAX)
                },
                size: if is_dir { 0 } else { m.len() },
                mtime: (m.mtime(), u32::try_from(m.mtime_nsec()).unwrap_or(0)),
                rdev: if device { m.rdev() } else { 0 },
                contents,
                xattrs: host_xattrs(&path)?,
            },
        );
    }
    Ok(out)
}

fn fill(file: &mut std::fs::File, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match io::Read::read(file, &mut buf[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

fn host_xattrs(path: &Path) -> io::Result<BTreeMap<String, (usize, u64)>> {
    let mut names = vec![0u8; 64 << 10];
    let used = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(n) => n,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut out = BTreeMap::new();
    for name in names[..used].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 64 << 10];
        let n = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        let name = String::from_utf8_lossy(name).into_owned();
        out.insert(name, (n, hash_of(&value[..n])));
    }
    Ok(out)
}

/// Two trees must be the same, except that the names in `ignore` may be in only one of them.
///
/// # Panics
/// When they differ, listing the differences.
pub fn assert_same(left: &Snapshot, right: &Snapshot, ignore: &[&str]) {
    let ignored = |p: &Path| ignore.iter().any(|i| p.starts_with(i));
    let mut differences = Vec::new();
    for path in left
        .keys()
        .chain(right.keys().filter(|p| !left.contains_key(*p)))
    {
        if ignored(path) {
            continue;
        }
        match (left.get(path), right.get(path)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                differences.push(format!("{}:\n  {a:?}\n  {b:?}", path.display()));
            }
            (a, _) => {
                let side = if a.is_some() { "left" } else { "right" };
                differences.push(format!("{}: only on the {side}", path.display()));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences[..differences.len().min(20)].join("\n")
    );
}
