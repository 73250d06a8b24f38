//! The host's system calls on one open file: the only part of a [`super::HostDevice`] that differs between hosts.
//!
//! `linux` opens with `O_DIRECT`, locks, punches holes, and knows block specials. `elsewhere` is written with the standard library alone: macOS,
//! FreeBSD, Windows and WASI. Both have the same functions, whose errors are the host's own numbers.
//!
//! | | Linux | elsewhere |
//! |---|---|---|
//! | direct I/O | where the file takes it | never; [`super::DirectIo::Always`] is refused |
//! | a second writer | refused (`flock`) | refused on macOS, FreeBSD and Windows; WASI has no locks |
//! | discard, zeroes | holes in files, the device's commands | discards do nothing, zeroes are written |
//! | holes | found | not found: everything counts as data |
//! | block specials | yes | refused |

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::*;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

use crate::{DevOffset, DeviceError, DeviceErrorKind};

/// The number of an error of the host.
pub(super) fn number_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(EIO)
}

pub(super) fn refused(kind: DeviceErrorKind) -> DeviceError {
    DeviceError {
        op: "open",
        offset: DevOffset(0),
        bytes: 0,
        kind,
    }
}
