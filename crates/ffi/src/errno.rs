//! The errno that a program of another language expects for an error: the one that the same call on a mount would give.

use blockwright::{Error, ErrorKind};
use blockwright_vfs::errno as of_volume;

/// The errno of an error. A host without room for a sparse image counts as a full volume.
#[must_use]
pub fn errno_of(error: &Error) -> i32 {
    let errno = match error.as_volume() {
        Some(volume) if error.kind() == volume.kind() => of_volume::errno_of(volume),
        _ => of_volume::errno_of_kind(error.kind()),
    };
    errno.raw_os_error()
}

/// The errno of a failed fsync: data that cannot be made durable is an I/O error, not `EROFS`.
#[must_use]
pub fn errno_of_sync(error: &Error) -> i32 {
    match error.as_volume() {
        Some(volume) if error.kind() == ErrorKind::Poisoned => {
            of_volume::errno_of_sync(volume).raw_os_error()
        }
        _ => errno_of(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn an_error_has_the_errno_of_its_kind() {
        let error = Error::new(ErrorKind::NotEmpty, "entries").at("/dir");
        assert_eq!(errno_of(&error), Errno::NOTEMPTY.raw_os_error());
        let poisoned = blockwright_vfs::Error::new(ErrorKind::Poisoned, "the volume");
        let poisoned = Error::from(poisoned).at("/file");
        assert_eq!(errno_of(&poisoned), Errno::ROFS.raw_os_error());
        assert_eq!(errno_of_sync(&poisoned), Errno::IO.raw_os_error());
    }
}
