//! The one place where the file system's errors become errnos.
//!
//! For front ends: FUSE's and those of other languages. Engines and the data path never call it: they know kinds of errors.

use crate::{Error, ErrorKind};
use rustix::io::Errno;

/// The errno that programs expect for this kind of failure.
#[must_use]
pub fn errno_of_kind(kind: ErrorKind) -> Errno {
    // Exhaustive on purpose: a new kind must be given its errno here before anything builds.
    match kind {
        ErrorKind::Io => Errno::IO,
        // What the kernel's own file systems report for bad metadata ("Structure needs cleaning").
        ErrorKind::Corrupt => Errno::UCLEAN,
        ErrorKind::UnsupportedFeature | ErrorKind::Unsupported => Errno::OPNOTSUPP,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Exists => Errno::EXIST,
        ErrorKind::NotDirectory => Errno::NOTDIR,
        ErrorKind::IsDirectory => Errno::ISDIR,
        ErrorKind::NotEmpty => Errno::NOTEMPTY,
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::QuotaExceeded => Errno::DQUOT,
        // After a failed metadata write the volume behaves as if remounted read-only.
        ErrorKind::ReadOnly | ErrorKind::Poisoned => Errno::ROFS,
        ErrorKind::NotPermitted => Errno::PERM,
        ErrorKind::AccessDenied => Errno::ACCESS,
        ErrorKind::NameTooLong => Errno::NAMETOOLONG,
        ErrorKind::TooManyLinks => Errno::MLINK,
        ErrorKind::FileTooLarge => Errno::FBIG,
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::Busy => Errno::BUSY,
        ErrorKind::CrossDevice => Errno::XDEV,
        ErrorKind::NoAttribute => Errno::NODATA,
        ErrorKind::Range => Errno::RANGE,
        ErrorKind::TooBig => Errno::TOOBIG,
        ErrorKind::NoData => Errno::NXIO,
        ErrorKind::Stale => Errno::STALE,
        ErrorKind::TooManySymlinks => Errno::LOOP,
        ErrorKind::KeyRequired => Errno::NOKEY,
        ErrorKind::Overflow => Errno::OVERFLOW,
        ErrorKind::WouldBlock => Errno::AGAIN,
        ErrorKind::Interrupted => Errno::INTR,
    }
}

/// The errno of an error.
#[must_use]
pub fn errno_of(error: &Error) -> Errno {
    match error.kind() {
        // As a kernel's file system on a thin device that ran out of room.
        ErrorKind::Io if error.host_is_full() => Errno::NOSPC,
        kind => errno_of_kind(kind),
    }
}

/// The errno of a failed fsync. `EROFS` is not among those that programs expect there, and reads as
/// "nothing to sync" to some; data that cannot be made durable is an I/O error.
#[must_use]
pub fn errno_of_sync(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Poisoned if error.host_is_full() => Errno::NOSPC,
        ErrorKind::Poisoned => Errno::IO,
        _ => errno_of(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_look_for() {
        assert_eq!(errno_of_kind(ErrorKind::NotFound), Errno::NOENT);
        assert_eq!(errno_of_kind(ErrorKind::NoAttribute), Errno::NODATA);
        assert_eq!(errno_of_kind(ErrorKind::Corrupt), Errno::UCLEAN);
        assert_eq!(errno_of_kind(ErrorKind::NoData), Errno::NXIO);
        let poisoned = Error::new(ErrorKind::Poisoned, "test");
        assert_eq!(errno_of(&poisoned), Errno::ROFS);
        assert_eq!(errno_of_sync(&poisoned), Errno::IO);
    }
}
