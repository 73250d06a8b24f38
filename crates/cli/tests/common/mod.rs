//! What the end-to-end tests share: images, mounts that go away also when a test fails, tree snapshots
//! for comparisons, and the oracles (e2fsck, the kernel's ext4 over a loop device).
#![allow(dead_code)]

pub mod populate;
pub mod run;
pub mod snapshot;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_blockwright"))
}

pub use blockwright_oracles::available;

/// Whether a program can be run.
pub fn have(tool: &str) -> bool {
    blockwright_oracles::have(&[tool])
}

/// Whether FUSE mounts can be made.
pub fn have_fuse() -> bool {
    blockwright_oracles::fuse()
}

/// Whether loop devices can be mounted (root).
pub fn have_kernel() -> bool {
    available(
        "root with loop devices",
        blockwright_oracles::is_root() && Path::new("/dev/loop-control").exists(),
    )
}

/// Runs to the end and returns what was printed, whatever the exit code.
pub fn output(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()))
}

/// Runs to the end and insists on success.
pub fn ok(command: &mut Command) -> String {
    let out = output(command);
    assert!(
        out.status.success(),
        "{command:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A directory for one test, gone at the end.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        // Beside the build, because /tmp may be a tmpfs, which refuses O_DIRECT.
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(&base).unwrap();
        Scratch(
            tempfile::Builder::new()
                .prefix("bw-")
                .tempdir_in(base)
                .unwrap(),
        )
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}

/// Makes an empty f2fs volume with mkfs.f2fs.
pub fn mkfs_f2fs(image: &Path, bytes: u64) {
    let file = fs::File::create(image).expect("an image");
    file.set_len(bytes).expect("a size");
    ok(Command::new("mkfs.f2fs").arg("-q").arg(image));
}

/// fsck.f2fs must find nothing and propose nothing.
pub fn fsck_f2fs_clean(image: &Path, what: &str) {
    let out = output(Command::new("fsck.f2fs").arg("--dry-run").arg(image));
    let text = String::from_utf8_lossy(&out.stdout);
    let bad: Vec<&str> = text
        .lines()
        .filter(|l| {
            ["[Fail]", "ASSERT", "[FIX]", "[ERR"]
                .iter()
                .any(|w| l.contains(w))
        })
        .collect();
    assert!(
        out.status.success() && bad.is_empty(),
        "{what}: fsck.f2fs: {}\n{}",
        out.status,
        bad.join("\n")
    );
}

/// `e2fsck -fn` must find nothing, nor an extent tree that is deeper than need be, which it proposes to mend without calling it damage.
pub fn e2fsck_clean(image: &Path, what: &str) {
    let out = output(Command::new("e2fsck").arg("-fn").arg(image));
    let deep = String::from_utf8_lossy(&out.stdout).contains("could be shorter");
    assert!(
        out.status.success() && !deep,
        "{what}: e2fsck -fn of {}: {}\n{}{}",
        image.display(),
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// `blockwright check -n` must find nothing.
pub fn check_clean(image: &Path, what: &str) {
    let out = output(program().args(["check", "-n"]).arg(image));
    assert!(
        out.status.success(),
        "{what}: blockwright check: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// Makes a file system with mke2fs.
pub fn mke2fs(image: &Path, args: &[&str], size: &str) {
    ok(Command::new("mke2fs")
        .args(["-q", "-F"])
        .args(args)
        .arg(image)
        .arg(size));
}

/// Makes a file system with our mkfs.
pub fn our_mkfs(image: &Path, args: &[&str], size: &str) {
    ok(program()
        .args(["mkfs", "--quiet", "-F"])
        .args(args)
        .args(["--size", size])
        .arg(image));
}

fn is_mounted(mountpoint: &Path) -> bool {
    fs::read_to_string("/proc/mounts")
        .unwrap_or_default()
        .lines()
        .any(|l| l.split(' ').nth(1).map(Path::new) == Some(mountpoint))
}

/// A volume mounted by us. Unmounted on drop, by force if need be.
pub struct Mounted {
    pub mountpoint: PathBuf,
    child: Option<std::process::Child>,
}

impl Mounted {
    /// Mounts in the foreground as our child, so that a test can kill it.
    pub fn new(image: &Path, mountpoint: &Path, options: &str) -> Self {
        let mut command = program();
        command.arg("mount").arg("-f");
        if !options.is_empty() {
            command.arg("-o").arg(options);
        }
        let child = command
            .arg(image)
            .arg(mountpoint)
            .stdin(Stdio::null())
            .spawn()
            .expect("the program runs");
        let mut mounted = Mounted {
            mountpoint: mountpoint.to_path_buf(),
            child: Some(child),
        };
        let start = Instant::now();
        while !is_mounted(mountpoint) {
            if let Some(status) = mounted
                .child
                .as_mut()
                .and_then(|c| c.try_wait().ok().flatten())
            {
                mounted.child = None;
                panic!("mount of {} ended: {status}", image.display());
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the mount did not appear"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        mounted
    }

    /// Unmounts and waits for the server, which must say that all is well.
    pub fn unmount(mut self) {
        ok(program().arg("umount").arg(&self.mountpoint));
        let mut child = self.child.take().expect("mounted");
        let status = child.wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
        assert!(!is_mounted(&self.mountpoint));
    }

    /// Unmounts a volume that could not keep all it was given: the server must say so.
    pub fn unmount_failing(mut self) {
        let _ = output(program().arg("umount").arg(&self.mountpoint));
        let mut child = self.child.take().expect("mounted");
        let status = child.wait().unwrap();
        assert!(
            status.code().is_some_and(|code| code > 0),
            "the server ended with {status}"
        );
        assert!(!is_mounted(&self.mountpoint));
    }

    /// Kills the server as a crash would.
    pub fn kill(mut self) {
        let mut child = self.child.take().expect("mounted");
        child.kill().unwrap();
        child.wait().unwrap();
        let _ = output(Command::new("umount").arg("-l").arg(&self.mountpoint));
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, std::process::Child::id)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.mountpoint) {
            let _ = output(
                Command::new("fusermount3")
                    .args(["-u", "-z"])
                    .arg(&self.mountpoint),
            );
        }
        if let Some(mut child) = self.child.take() {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(10) {
                if matches!(child.try_wait(), Ok(Some(_))) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A volume mounted by the kernel over a loop device.
pub struct KernelMount {
    pub mountpoint: PathBuf,
    device: String,
}

impl KernelMount {
    /// Mounts; `None` when this kernel does not know a feature of the image.
    pub fn try_new(image: &Path, mountpoint: &Path, options: &str) -> Option<Self> {
        let device = ok(Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image));
        let device = device.trim().to_owned();
        let mut command = Command::new("mount");
        command.args(["-t", "ext4"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let out = output(command.arg(&device).arg(mountpoint));
        let mounted = KernelMount {
            mountpoint: mountpoint.to_path_buf(),
            device,
        };
        if out.status.success() {
            Some(mounted)
        } else {
            eprintln!(
                "the kernel does not mount it: {}",
                String::from_utf8_lossy(&out.stderr)
            );
            None
        }
    }

    pub fn new(image: &Path, mountpoint: &Path, options: &str) -> Self {
        Self::try_new(image, mountpoint, options)
            .unwrap_or_else(|| panic!("the kernel refuses {}", image.display()))
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if is_mounted(&self.mountpoint)
            && !output(Command::new("umount").arg(&self.mountpoint))
                .status
                .success()
        {
            let _ = output(Command::new("umount").arg("-l").arg(&self.mountpoint));
        }
        let _ = output(Command::new("losetup").arg("-d").arg(&self.device));
        // The detach is asynchronous while a process (udev) has the device open; our lock wants it
        // gone.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5)
            && ok(Command::new("losetup").arg("-a")).contains(&format!("{}:", self.device))
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
