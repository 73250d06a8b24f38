//! Getting a FUSE connection: mounting, unmounting, and the kernel's knobs for the mount.
//!
//! As root the file system is mounted by `mount(2)`; other users go through the set-uid helper
//! `fusermount3`. A mount point of the form `/dev/fd/N` means that another program has mounted already
//! and hands the connection over.
//!
//! Not responsible for: serving the connection (`transport`).
//!
//! References: mount(2), fuse(4), fusermount3(1).

mod bdi;
mod control;
mod direct;
mod helper;
mod keep;
mod namespaces;
mod table;

pub use bdi::tune_bdi;
pub use control::connection_exists;
pub use keep::keep;
pub use namespaces::{Elsewhere, mounted_elsewhere};
pub use table::{MountEntry, mounted_at};

use crate::error::{FuseError, FuseErrorKind, Result};
use crate::keeper::Keeper;
use crate::options::{FuseOptions, Log, PermissionChecks, Visibility};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The device every FUSE connection starts from.
pub(crate) const DEV_FUSE: &str = "/dev/fuse";
/// `mount` shows `fuse.` and this as the type.
const SUBTYPE: &str = "blockwright";

/// How the mount came about, and so how it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Direct,
    Helper,
    /// Mounted by another program, which also unmounts.
    Given,
    /// By the keeper, because this process is confined.
    Kept,
}

/// How urgently to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fail when files are open.
    IfIdle,
    /// Take the mount out of the tree now; the connection ends when the last file is closed.
    Detach,
}

/// A mounted connection.
#[derive(Debug)]
pub struct Mount {
    fd: OwnedFd,
    point: MountPoint,
}

/// Where a connection is mounted; enough to unmount it.
#[derive(Clone, Debug)]
pub struct MountPoint {
    path: PathBuf,
    method: Method,
    /// The connection's number; `None` when it is not known.
    minor: Option<u32>,
    /// Ends the connection, wherever it is mounted; `None` where the control file system cannot be reached.
    abort_file: Option<Arc<OwnedFd>>,
    /// Set when this mount has been aborted: whatever is at `path` from then on is another mount.
    /// Held while a mount is ended by its path.
    over: Arc<Mutex<bool>>,
    /// Does all this, where the process is confined.
    keeper: Option<Arc<Keeper>>,
}

impl Mount {
    /// Mounts at `mountpoint` (an existing directory, or `/dev/fd/N`).
    ///
    /// # Errors
    /// `NoDevice`, `NoHelper`, `NotPermitted`, `BadMountpoint`, `DeadMount`, or `Mount` with the
    /// kernel's or the helper's reason.
    pub fn new(mountpoint: &Path, options: &FuseOptions) -> Result<Self> {
        if let Some(fd) = given_fd(mountpoint) {
            let fd = adopt(fd).map_err(|e| e.path(mountpoint))?;
            return Ok(Mount {
                fd,
                point: MountPoint::new(mountpoint.to_owned(), Method::Given),
            });
        }
        if let Some(keeper) = &options.keeper {
            let (fd, path) = keeper.mount(options.read_only)?;
            let mut point = MountPoint::new(path, Method::Kept);
            point.keeper = Some(Arc::clone(keeper));
            return Ok(Mount { fd, point });
        }
        let path = check_mountpoint(mountpoint)?;
        let (fd, method) = if rustix::process::geteuid().is_root() {
            match direct::mount(&path, options) {
                Ok(fd) => (fd, Method::Direct),
                // Root without CAP_SYS_ADMIN, as in a container: the helper may still have it.
                Err(e) if e.kind() == FuseErrorKind::NotPermitted && helper::exists() => {
                    (helper::mount(&path, options)?, Method::Helper)
                }
                Err(e) => return Err(e),
            }
        } else {
            (helper::mount(&path, options)?, Method::Helper)
        };
        Ok(Mount {
            fd,
            point: MountPoint::new(path, method),
        })
    }

    /// The connection, and where it is mounted.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, MountPoint) {
        (self.fd, self.point)
    }
}

impl MountPoint {
    fn new(path: PathBuf, method: Method) -> Self {
        let minor = match method {
            Method::Given | Method::Kept => None,
            Method::Direct | Method::Helper => minor_at(&path).ok().flatten(),
        };
        let abort_file = minor.and_then(|minor| control::abort_file(minor).ok());
        MountPoint {
            path,
            method,
            minor,
            abort_file: abort_file.map(Arc::new),
            over: Arc::default(),
            keeper: None,
        }
    }

    /// Whether the mount at the path is this one. Not found out by looking at it, which would ask the server.
    fn is_here(&self) -> bool {
        match (self.minor, minor_at(&self.path)) {
            (Some(minor), Ok(here)) => here == Some(minor),
            _ => true,
        }
    }

    /// Where else this connection is mounted, once it is not at its path any more.
    pub(crate) fn elsewhere(&self) -> Option<Elsewhere> {
        if let Some(keeper) = &self.keeper {
            let (pid, point) = keeper.held_elsewhere().flatten()?;
            return Some(Elsewhere { pid, point });
        }
        if self.is_here() {
            return None;
        }
        mounted_elsewhere(self.minor?)
    }

    /// Whether the connection still exists although it is no longer mounted at its path.
    pub(crate) fn is_held_elsewhere(&self) -> bool {
        if let Some(keeper) = &self.keeper {
            return keeper.held_elsewhere().is_some();
        }
        let alive = || self.minor.and_then(connection_exists);
        !self.is_here() && (self.elsewhere().is_some() || alive() == Some(true))
    }

    /// The absolute path, or `/dev/fd/N`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path is a place in the tree that can be looked at and unmounted by us.
    #[must_use]
    pub fn is_in_tree(&self) -> bool {
        self.method != Method::Given
    }

    /// Takes the mount out of the tree.
    ///
    /// # Errors
    /// `Busy` when files are open and `how` minds; `NotPermitted`; `Mount` otherwise. A mount that is
    /// gone already is no error.
    pub fn unmount(&self, how: Unmount) -> Result<()> {
        if let Some(keeper) = &self.keeper {
            return match how {
                Unmount::IfIdle => keeper.unmount(),
                Unmount::Detach => keeper.detach(),
            };
        }
        match self.method {
            Method::Direct => direct::unmount(&self.path, how),
            Method::Helper => helper::unmount(&self.path, how),
            Method::Given | Method::Kept => Err(FuseError::new(
                FuseErrorKind::NotPermitted,
                "mounted by another program, which must unmount it",
            )
            .path(&self.path)),
        }
    }
}

impl MountPoint {
    /// Has the kernel write back what programs have written, before the connection is cut. Returns the root directory, if it
    /// could be opened, to be kept open until then.
    pub(crate) fn write_back(&self, log: &Log) -> Option<OwnedFd> {
        let told = |e: &dyn std::fmt::Display| {
            log.line(&format!("writing back before the connection is cut: {e}"));
        };
        if let Some(keeper) = &self.keeper {
            let _ = keeper.write_back().map_err(|e| told(&e));
            return None;
        }
        let root = self.is_in_tree().then(|| self.open_root()).flatten()?;
        let _ = rustix::fs::syncfs(&root).map_err(|e| told(&e));
        Some(root)
    }

    /// Sets the kernel's knobs for the mount; see [`tune_bdi`].
    pub(crate) fn tune(&self, read_ahead_kib: u32) -> Option<String> {
        match &self.keeper {
            Some(keeper) => keeper.tune(read_ahead_kib),
            None => tune_bdi(&self.path, read_ahead_kib),
        }
    }

    /// Opens the root directory, if the connection still answers.
    pub(crate) fn open_root(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if self.is_here() {
            self.path.clone()
        } else {
            self.elsewhere()?.path()
        };
        rustix::fs::open(path, flags, Mode::empty()).ok()
    }

    /// Ends the connection at once, and leaves the mount in the tree. Does not wait, and does not look at the mount, which would ask the
    /// server.
    ///
    /// # Errors
    /// When the control file system cannot be reached.
    pub(crate) fn break_connection(&self) -> std::io::Result<()> {
        if let Some(keeper) = &self.keeper {
            return keeper.break_connection().map_err(std::io::Error::other);
        }
        let file = match &self.abort_file {
            Some(file) => Arc::clone(file),
            // It may have been mounted since. The number is ours only for as long as the mount is seen.
            None => {
                let minor = self.minor.filter(|_| self.is_here());
                Arc::new(control::abort_file(
                    minor.ok_or(std::io::ErrorKind::NotFound)?,
                )?)
            }
        };
        rustix::io::write(&*file, b"1")?;
        Ok(())
    }

    /// What root can do about a connection that [`MountPoint::force_end`] has not ended.
    fn advice(&self) -> String {
        let connection = self.minor.map_or("N".to_owned(), |minor| minor.to_string());
        let place = control::CONNECTIONS;
        format!(
            "{}: the server was killed and cannot end; programs that use the mount hang until root runs: mount -t fusectl none {place}; \
             echo 1 > {place}/{connection}/abort",
            self.path.display()
        )
    }

    /// As [`MountPoint::break_connection`], but where that fails takes the mount out of the tree, too, which
    /// waits for the server's threads: none of them may call it. Does nothing after [`MountPoint::abort`], when
    /// another mount may be at the same place.
    ///
    /// # Errors
    /// When the connection lives on.
    pub(crate) fn force_end(&self) -> Result<()> {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        if *over {
            return Ok(());
        }
        if let Some(keeper) = &self.keeper {
            return keeper.force_end();
        }
        match (self.break_connection(), self.method) {
            (Ok(()), _) => Ok(()),
            (Err(_), Method::Direct) => direct::force(&self.path),
            (Err(e), _) => Err(FuseError::os("cannot end the connection", e).path(&self.path)),
        }
    }

    /// Ends the connection although files are open, and takes the mount out of the tree: what is open
    /// fails from then on, and what the kernel has not written back is lost. `root`: a
    /// descriptor of the root directory, if there is one.
    ///
    /// # Errors
    /// When the mount cannot be taken out of the tree.
    pub(crate) fn abort(&self, root: Option<OwnedFd>) -> Result<()> {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        *over = true;
        if let Some(keeper) = &self.keeper {
            return keeper.abort();
        }
        // Where the control file system is not mounted, forcing the unmount has to do.
        let _ = self.break_connection();
        drop(root);
        match self.method {
            // Another mount may be at the path by now.
            _ if !self.is_here() => Ok(()),
            Method::Direct => direct::force(&self.path),
            Method::Helper => helper::unmount(&self.path, Unmount::Detach),
            Method::Given | Method::Kept => Ok(()),
        }
    }
}

/// Unmounts whatever FUSE file system is at `mountpoint`: directly as root, by the helper otherwise.
///
/// # Errors
/// As [`MountPoint::unmount`].
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<()> {
    // Not canonicalised through the file system itself, which may be dead; only its parent is.
    let path = absolute_without_last(mountpoint)?;
    if rustix::process::geteuid().is_root() {
        direct::unmount(&path, how)
    } else {
        helper::unmount(&path, how)
    }
}

/// The kernel's own mount options for the connection, shared by both ways. Without the descriptor and
/// the root's mode and owner, which the helper adds itself.
fn kernel_options(options: &FuseOptions) -> Vec<String> {
    let mut list = Vec::new();
    if options.visibility == Visibility::Everyone {
        list.push("allow_other".to_owned());
    }
    if options.permissions == PermissionChecks::Kernel {
        list.push("default_permissions".to_owned());
    }
    if let Some(max_read) = options.max_read {
        list.push(format!("max_read={max_read}"));
    }
    list
}

/// The number of the connection that is mounted at `path`.
fn minor_at(path: &Path) -> std::io::Result<Option<u32>> {
    Ok(table::mounted_at(path)?.map(|entry| entry.minor))
}

/// The descriptor in `/dev/fd/N`.
fn given_fd(mountpoint: &Path) -> Option<RawFd> {
    mountpoint
        .to_str()?
        .strip_prefix("/dev/fd/")?
        .parse::<RawFd>()
        .ok()
        .filter(|&fd| fd >= 0)
}

/// Takes over a descriptor that was passed to this process.
fn adopt(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: F_GETFD only looks the number up; it is valid to ask for any number.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(FuseError::new(
            FuseErrorKind::BadMountpoint,
            "no such descriptor was passed to this process",
        )
        .source(std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is open, and by the convention of `/dev/fd/N` mount points the program that started
    // this process has given it away; nothing else here knows its number.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    // Children (a helper started later) must not keep the connection alive.
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)
        .map_err(|e| FuseError::os("cannot mark the passed descriptor", e))?;
    Ok(owned)
}

/// The mount point as an absolute path without symlinks.
fn check_mountpoint(mountpoint: &Path) -> Result<PathBuf> {
    let bad = |detail: &str, e: std::io::Error| {
        if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) {
            FuseError::new(
                FuseErrorKind::DeadMount,
                "a FUSE file system whose server is gone is still mounted here; unmount it first",
            )
            .path(mountpoint)
        } else {
            FuseError::new(FuseErrorKind::BadMountpoint, detail)
                .path(mountpoint)
                .source(e)
        }
    };
    let path = std::fs::canonicalize(mountpoint).map_err(|e| bad("bad mount point", e))?;
    let meta = std::fs::metadata(&path).map_err(|e| bad("bad mount point", e))?;
    if !meta.is_dir() {
        return Err(FuseError::new(
            FuseErrorKind::BadMountpoint,
            "the mount point is not a directory",
        )
        .path(mountpoint));
    }
    Ok(path)
}

/// Absolute, with the parent canonical and the last component untouched.
fn absolute_without_last(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)
        .map_err(|e| FuseError::os("cannot find the current directory", e).path(path))?;
    Ok(match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            std::fs::canonicalize(parent).map_or(absolute.clone(), |p| p.join(name))
        }
        _ => absolute,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passed_descriptor_is_recognised() {
        assert_eq!(given_fd(Path::new("/dev/fd/7")), Some(7));
        assert_eq!(given_fd(Path::new("/dev/fd/-7")), None);
        assert_eq!(given_fd(Path::new("/dev/fd/x")), None);
        assert_eq!(given_fd(Path::new("/mnt")), None);
    }

    #[test]
    fn bad_mount_points_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error = Mount::new(&missing, &FuseOptions::default()).unwrap_err();
        assert_eq!(error.kind(), FuseErrorKind::BadMountpoint);
        assert!(error.to_string().contains("missing"), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let error = Mount::new(&file, &FuseOptions::default()).unwrap_err();
        assert_eq!(error.kind(), FuseErrorKind::BadMountpoint);
        assert!(error.to_string().contains("not a directory"), "{error}");
        let error = Mount::new(Path::new("/dev/fd/987654"), &FuseOptions::default()).unwrap_err();
        assert_eq!(error.kind(), FuseErrorKind::BadMountpoint);
    }
}
