//! Mounting as root, by `mount(2)`.
//!
//! `helper` serves other users, and root without CAP_SYS_ADMIN. Both pass the kernel the same options (`kernel_options`). Unmounting
//! never follows a symbolic link, and something that is not mounted any more is no error.

use super::{DEV_FUSE, SUBTYPE, Unmount, kernel_options};
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::options::FuseOptions;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Opens a new connection and mounts it.
pub(super) fn mount(path: &Path, options: &FuseOptions) -> Result<OwnedFd> {
    let fd = open_device()?;
    let mut data = vec![
        format!("fd={}", fd.as_raw_fd()),
        // The type bits of the root; the kernel asks for the rest at INIT.
        "rootmode=40000".to_owned(),
        format!("user_id={}", rustix::process::getuid().as_raw()),
        format!("group_id={}", rustix::process::getgid().as_raw()),
    ];
    data.extend(kernel_options(options));
    let data = CString::new(data.join(","))
        .map_err(|_| FuseError::new(FuseErrorKind::BadOption, "an option contains a zero byte"))?;

    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.allow_suid);
    flags.set(MountFlags::NODEV, !options.allow_dev);
    flags.set(MountFlags::NOEXEC, !options.allow_exec);
    flags.set(MountFlags::NOATIME, options.no_atime);
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(
        options.fsname.as_str(),
        path,
        kind.as_str(),
        flags,
        data.as_c_str(),
    )
    .map_err(|e| {
        let (kind, detail) = match e {
            Errno::PERM | Errno::ACCESS => (
                FuseErrorKind::NotPermitted,
                "mounting is not permitted here",
            ),
            Errno::NODEV => (
                FuseErrorKind::NoDevice,
                "the kernel has no FUSE (load the module `fuse`)",
            ),
            _ => (FuseErrorKind::Mount, "cannot mount"),
        };
        FuseError::new(kind, detail)
            .path(path)
            .source(std::io::Error::from(e))
    })?;
    Ok(fd)
}

/// Takes the mount out of the tree.
pub(super) fn unmount(path: &Path, how: Unmount) -> Result<()> {
    unmount_with(
        path,
        match how {
            Unmount::IfIdle => UnmountFlags::NOFOLLOW,
            Unmount::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        },
    )
}

/// Takes the mount out of the tree and ends the connection, even while it is in use.
pub(super) fn force(path: &Path) -> Result<()> {
    unmount_with(
        path,
        UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
    )
}

fn unmount_with(path: &Path, flags: UnmountFlags) -> Result<()> {
    match rustix::mount::unmount(path, flags) {
        // EINVAL: not a mount point (any more).
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(e) => {
            let (kind, detail) = match e {
                Errno::BUSY => (FuseErrorKind::Busy, "cannot unmount while files are open"),
                Errno::PERM | Errno::ACCESS => {
                    (FuseErrorKind::NotPermitted, "unmounting is not permitted")
                }
                _ => (FuseErrorKind::Mount, "cannot unmount"),
            };
            Err(FuseError::new(kind, detail)
                .path(path)
                .source(std::io::Error::from(e)))
        }
    }
}

/// Whether this user may open the device. The helper's own message does not say what to do about it.
pub(super) fn check_access() -> Result<()> {
    open_device().map(drop)
}

/// Opens the FUSE device.
fn open_device() -> Result<OwnedFd> {
    rustix::fs::open(DEV_FUSE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
        let (kind, detail) = match e {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => (
                FuseErrorKind::NoDevice,
                "FUSE is not available: load the module `fuse`, or give the container /dev/fuse",
            ),
            Errno::PERM | Errno::ACCESS => (
                FuseErrorKind::NotPermitted,
                "this user may not open it: root can allow that (chmod 666 /dev/fuse, or a container's device rules)",
            ),
            _ => (FuseErrorKind::Mount, "the device cannot be opened"),
        };
        FuseError::new(kind, detail)
            .path(Path::new(DEV_FUSE))
            .source(std::io::Error::from(e))
    })
}
