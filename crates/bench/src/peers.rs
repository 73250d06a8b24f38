//! Mounting one image with each of the programs that are compared.

use crate::machine::run;
use crate::volumes::Format;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The program or kernel that mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The program under test.
    Blockwright,
    /// The same with f2fs.
    BlockwrightF2fs,
    /// The running kernel's ext4 on a loop device with direct I/O.
    Kernel,
    /// e2fsprogs' FUSE server.
    Fuse2fs,
}

impl Peer {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Blockwright => "blockwright",
            Peer::BlockwrightF2fs => "blockwright, f2fs",
            Peer::Kernel => "kernel ext4, loop, direct-io",
            Peer::Fuse2fs => "fuse2fs",
        }
    }

    /// What the volume has to be.
    pub fn format(self) -> Format {
        match self {
            Peer::BlockwrightF2fs => Format::F2fs,
            Peer::Blockwright | Peer::Kernel | Peer::Fuse2fs => Format::Ext4,
        }
    }

    /// Whether it is the program under test.
    pub fn is_ours(self) -> bool {
        matches!(self, Peer::Blockwright | Peer::BlockwrightF2fs)
    }
}

/// A mounted image; unmounted by `unmount` (which reports), or on drop.
pub struct Mounted {
    peer: Peer,
    mountpoint: PathBuf,
    device: Option<String>,
    program: PathBuf,
    image: PathBuf,
}

/// Mounts `image` on `mountpoint`.
pub fn mount(
    peer: Peer,
    program: &Path,
    image: &Path,
    mountpoint: &Path,
) -> Result<Mounted, String> {
    fs::create_dir_all(mountpoint).map_err(|e| e.to_string())?;
    let mut mounted = Mounted {
        peer,
        mountpoint: mountpoint.to_path_buf(),
        device: None,
        program: program.to_path_buf(),
        image: image.to_path_buf(),
    };
    match peer {
        Peer::Blockwright => run(Command::new(program)
            .arg("mount")
            .arg(image)
            .arg(mountpoint))?,
        Peer::BlockwrightF2fs => run(Command::new(program)
            .args(["mount", "-o", Format::F2fs.mount_options()])
            .arg(image)
            .arg(mountpoint))?,
        // It stays in the background and keeps every descriptor that it inherits, such as a lock of the caller.
        Peer::Fuse2fs => run(Command::new("sh")
            .args([
                "-c",
                "exec fuse2fs -o rw \"$1\" \"$2\" 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-",
                "sh",
            ])
            .arg(image)
            .arg(mountpoint))?,
        Peer::Kernel => {
            let out = Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .arg(image)
                .output()
                .map_err(|e| format!("losetup: {e}"))?;
            let device = String::from_utf8_lossy(&out.stdout).trim().to_owned();
            if !out.status.success() {
                return Err(format!("losetup: {}", String::from_utf8_lossy(&out.stderr)));
            }
            mounted.device = Some(device.clone());
            run(Command::new("mount")
                .args(["-t", "ext4"])
                .arg(device)
                .arg(mountpoint))?;
        }
    }
    let start = Instant::now();
    while !mounted.is_mounted() {
        if start.elapsed() > Duration::from_secs(20) {
            return Err(format!("{}: the mount did not appear", peer.name()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(mounted)
}

impl Mounted {
    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/mounts")
            .unwrap_or_default()
            .lines()
            .any(|l| l.split(' ').nth(1).map(Path::new) == Some(&self.mountpoint))
    }

    /// Unmounts and waits until the image is free.
    pub fn unmount(mut self) -> Result<(), String> {
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        if self.is_mounted() {
            match self.peer {
                Peer::Blockwright | Peer::BlockwrightF2fs => run(Command::new(&self.program)
                    .arg("umount")
                    .arg(&self.mountpoint))?,
                Peer::Kernel | Peer::Fuse2fs => run(Command::new("umount").arg(&self.mountpoint))?,
            }
        }
        if self.peer == Peer::Fuse2fs {
            // fuse2fs writes the last of the image after the mount is gone.
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(60) && fuse2fs_has(&self.image) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if let Some(device) = self.device.take() {
            run(Command::new("losetup").arg("-d").arg(&device))?;
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(5)
                && run(Command::new("losetup").arg(&device)).is_ok()
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.end().is_err() {
            let _ = run(Command::new("umount").arg("-l").arg(&self.mountpoint));
        }
    }
}

/// Whether a fuse2fs has this image open.
fn fuse2fs_has(image: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    processes.flatten().any(|process| {
        let process = process.path();
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "fuse2fs")
            && fs::read_dir(process.join("fd")).is_ok_and(|open| {
                open.flatten()
                    .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == image))
            })
    })
}
