//! The servers of a mount that are measured, and how each is started and stopped.

use crate::peers::{self, Peer};
use crate::volumes::Format;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A file system that is measured through a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Ours, over io_uring.
    Uring,
    /// Ours, over /dev/fuse.
    DevFuse,
    /// Ours with f2fs, over io_uring.
    F2fsUring,
    /// Ours with f2fs, over /dev/fuse.
    F2fsDevFuse,
    /// The running kernel's ext4 on a loop device with direct I/O.
    Kernel,
    /// e2fsprogs' FUSE server.
    Fuse2fs,
    /// The kernel's f2fs in user-mode-linux (`uml`): nothing is mounted here.
    Uml,
}

impl Server {
    /// Our transports; the first is what is judged first.
    pub const OURS: [Server; 2] = [Server::Uring, Server::DevFuse];
    /// Their names.
    pub const MOUNTS: [&'static str; 2] = [Server::Uring.name(), Server::DevFuse.name()];
    /// The same with f2fs.
    pub const F2FS: [Server; 2] = [Server::F2fsUring, Server::F2fsDevFuse];
    /// Their names.
    pub const F2FS_MOUNTS: [&'static str; 2] =
        [Server::F2fsUring.name(), Server::F2fsDevFuse.name()];
    /// The name of the library, which needs no mount.
    pub const LIBRARY: &'static str = "library";
    /// The same with f2fs.
    pub const F2FS_LIBRARY: &'static str = "f2fs library";

    /// Our transports with a format.
    pub fn ours(format: Format) -> [Server; 2] {
        match format {
            Format::Ext4 => Server::OURS,
            Format::F2fs => Server::F2FS,
        }
    }

    /// The format that the volume must have.
    pub fn format(self) -> Format {
        match self {
            Server::F2fsUring | Server::F2fsDevFuse | Server::Uml => Format::F2fs,
            Server::Uring | Server::DevFuse | Server::Kernel | Server::Fuse2fs => Format::Ext4,
        }
    }

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Server::Uring => "mount, io_uring",
            Server::DevFuse => "mount, /dev/fuse",
            Server::F2fsUring => "f2fs mount, io_uring",
            Server::F2fsDevFuse => "f2fs mount, /dev/fuse",
            Server::Kernel => "kernel ext4, loop",
            Server::Fuse2fs => "fuse2fs",
            Server::Uml => "kernel f2fs, user-mode-linux",
        }
    }

    fn transport(self) -> Option<&'static str> {
        match self {
            Server::Uring | Server::F2fsUring => Some("io_uring"),
            Server::DevFuse | Server::F2fsDevFuse => Some("dev_fuse"),
            Server::Kernel | Server::Fuse2fs | Server::Uml => None,
        }
    }
}

/// Whether this program has the transport: asked for by a mount that cannot work.
pub fn knows(program: &Path, server: Server) -> bool {
    let Some(transport) = server.transport() else {
        return true;
    };
    let out = Command::new(program)
        .args(["mount", "-f", "-o", &format!("transport={transport}")])
        .args(["/dev/null", "/dev/null"])
        .stdin(Stdio::null())
        .output();
    // A transport that is not known is a mistake in the arguments.
    let known = out.is_ok_and(|out| out.status.code() == Some(1));
    let switched_on = transport != "io_uring"
        || fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
            .is_ok_and(|text| text.trim() == "Y" || text.trim() == "1");
    known && switched_on
}

/// A mount that is served; unmounted by `unmount` (which reports), or on drop.
pub enum Served {
    /// Our program, a child process.
    Ours {
        child: Option<Child>,
        program: PathBuf,
        mnt: PathBuf,
    },
    /// A peer.
    Other(Option<peers::Mounted>),
}

fn is_mounted(mnt: &Path) -> bool {
    fs::read_to_string("/proc/mounts")
        .unwrap_or_default()
        .lines()
        .any(|l| l.split(' ').nth(1).map(Path::new) == Some(mnt))
}

impl Served {
    /// Mounts and waits until the files are there.
    pub fn mount(
        server: Server,
        program: &Path,
        image: &Path,
        mnt: &Path,
    ) -> Result<Served, String> {
        fs::create_dir_all(mnt).map_err(|e| e.to_string())?;
        let Some(transport) = server.transport() else {
            let peer = match server {
                Server::Kernel => Peer::Kernel,
                Server::Fuse2fs => Peer::Fuse2fs,
                _ => return Err(format!("{} mounts nothing here", server.name())),
            };
            let mounted = peers::mount(peer, program, image, mnt)?;
            tune_bdi(server, mnt);
            return Ok(Served::Other(Some(mounted)));
        };
        let mut options = format!("transport={transport}");
        for option in server.format().mount_options().split_whitespace() {
            options = format!("{options},{option}");
        }
        let child = Command::new(program)
            .args(["mount", "-f", "-o", &options])
            .arg(image)
            .arg(mnt)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let mut served = Served::Ours {
            child: Some(child),
            program: program.to_path_buf(),
            mnt: mnt.to_path_buf(),
        };
        let start = Instant::now();
        while !is_mounted(mnt) {
            if let Served::Ours {
                child: Some(child), ..
            } = &mut served
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(format!("{}: {status}", server.name()));
            }
            if start.elapsed() > Duration::from_secs(30) {
                return Err(format!("{}: the mount did not appear", server.name()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(served)
    }

    /// The most memory that the server had resident, in 10⁶ bytes; ours only.
    pub fn resident_mb(&self) -> Option<f64> {
        let Served::Ours {
            child: Some(child), ..
        } = self
        else {
            return None;
        };
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024.0 / 1e6)
    }

    /// Unmounts and waits until the image is free.
    pub fn unmount(mut self) -> Result<(), String> {
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        let (child, program, mnt) = match self {
            Served::Ours {
                child,
                program,
                mnt,
            } => (child, program, mnt),
            Served::Other(mounted) => {
                return mounted.take().map_or(Ok(()), peers::Mounted::unmount);
            }
        };
        let Some(mut child) = child.take() else {
            return Ok(());
        };
        let asked = crate::machine::run(
            Command::new("timeout")
                .args(["-k", "5", "120"])
                .arg(&*program)
                .arg("umount")
                .arg(&*mnt),
        );
        let start = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return asked,
                Ok(Some(status)) => return Err(format!("the server ended with {status}")),
                _ if start.elapsed() > Duration::from_secs(120) => break,
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        let _ = crate::machine::run(Command::new("umount").arg("-l").arg(&*mnt));
        let _ = child.kill();
        let _ = child.wait();
        Err("the server did not end".to_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A caller that needs the result calls `unmount`.
        let _unreported = self.end();
    }
}

/// What our own mounts do for themselves: fuse2fs gets it, too.
fn tune_bdi(server: Server, mnt: &Path) {
    if server != Server::Fuse2fs {
        return;
    }
    let Ok(stat) = rustix::fs::stat(mnt) else {
        return;
    };
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    for (name, value) in [
        ("strict_limit", "0"),
        ("max_ratio", "100"),
        ("read_ahead_kb", "2048"),
    ] {
        let _ = fs::write(format!("/sys/class/bdi/{major}:{minor}/{name}"), value);
    }
}
