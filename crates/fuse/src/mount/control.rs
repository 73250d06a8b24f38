//! The kernel's control files of FUSE connections: whether a connection exists, and ending one from outside.
//!
//! They are the files of `fusectl`, which is usually mounted at `/sys/fs/fuse/connections`. Containers and small systems lack it there. Root uses
//! an instance that is mounted nowhere; other users need the mount.
//!
//! A connection's number is used again once the connection has ended. An open control file stays that of its own connection, and does nothing
//! after it. It keeps neither the connection nor the mount in being.

use super::table::entries;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Where the control file system is usually mounted.
pub(super) const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The file that ends the connection with this number.
///
/// # Errors
/// `NotFound` without a control file system; when there is no such connection, or it is not this user's.
pub(super) fn abort_file(minor: u32) -> std::io::Result<OwnedFd> {
    let connections = connections().ok_or(std::io::ErrorKind::NotFound)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let path = format!("{minor}/abort");
    Ok(rustix::fs::openat(connections, path, flags, Mode::empty())?)
}

/// Whether there is a connection with this number; `None` when that cannot be seen, without the control file system.
#[must_use]
pub fn connection_exists(minor: u32) -> Option<bool> {
    let found = rustix::fs::statat(
        connections()?,
        minor.to_string(),
        rustix::fs::AtFlags::empty(),
    );
    Some(found.is_ok())
}

/// The directory of all connections.
fn connections() -> Option<OwnedFd> {
    if let Ok(detached) = detached() {
        return Some(detached);
    }
    // Without the control file system the directory is there, and empty, whatever is mounted.
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let mounted = entries(&mounts).any(|entry| entry.point == Path::new(CONNECTIONS));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(CWD, CONNECTIONS, flags, Mode::empty()).ok();
    mounted.then(open).flatten()
}

/// The control file system, mounted nowhere. Only root may, and Linux 5.2 is needed.
fn detached() -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    rustix::mount::fsmount(&context, flags, MountAttrFlags::empty())
}
