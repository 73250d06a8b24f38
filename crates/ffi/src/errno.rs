//! The errno that a program of another language expects for an error.

use blockwright::{Error, ErrorKind};
use rustix::io::Errno;

/// The errno of a kind of error.
#[must_use]
pub fn errno_of_kind(kind: ErrorKind) -> i32 {
    // Exhaustive: a new kind does not build before it has its errno here.
    let errno = match kind {
        ErrorKind::Io => Errno::IO,
        ErrorKind::Corrupt => Errno::UCLEAN,
        ErrorKind::UnsupportedFeature | ErrorKind::Unsupported => Errno::OPNOTSUPP,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Exists => Errno::EXIST,
        ErrorKind::NotDirectory => Errno::NOTDIR,
        ErrorKind::IsDirectory => Errno::ISDIR,
        ErrorKind::NotEmpty => Errno::NOTEMPTY,
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::QuotaExceeded => Errno::DQUOT,
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
    };
    errno.raw_os_error()
}

/// The errno of an error. A host without room for a sparse image counts as a full volume.
#[must_use]
pub fn errno_of(error: &Error) -> i32 {
    match error.as_volume() {
        Some(volume) if error.kind() == ErrorKind::Io && volume.host_is_full() => {
            Errno::NOSPC.raw_os_error()
        }
        _ => errno_of_kind(error.kind()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_errno_of_its_kind() {
        let error = Error::new(ErrorKind::NotEmpty, "entries").at("/dir");
        assert_eq!(errno_of(&error), Errno::NOTEMPTY.raw_os_error());
    }
}
