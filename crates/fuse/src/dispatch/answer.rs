//! The result of a request's handler, and its conversion into a reply.
//!
//! When the kernel does not take a reply, what the handler has promised in it (a node, an open file) is undone ([`Undo`]).
//! Only failures of the volume go to the log; the caller's own get their errno, and no more.

use crate::protocol::BadRequest;
use blockwright_device::IoSlice as DeviceSlice;
use blockwright_vfs::errno::{errno_of, errno_of_sync};
use blockwright_vfs::{Error, ErrorKind};
use rustix::io::Errno;
use smallvec::SmallVec;
use zerocopy::{Immutable, IntoBytes};

/// Whether the failure is the volume's and not the caller's, so that it belongs in the log: the errno
/// alone loses structure and place.
pub(super) fn is_worth_logging(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::UnsupportedFeature | ErrorKind::Poisoned
    )
}

/// Changes to undo when the kernel does not take the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Undo {
    /// A node the kernel did not learn of.
    pub(super) node: Option<u64>,
    /// A file it did not learn of.
    pub(super) file: Option<u64>,
}

/// A successful answer. Lives on the stack from handler to reply, so its size costs nothing, while
/// a box would cost an allocation per request.
#[allow(clippy::large_enum_variant)]
pub(super) enum Answer {
    /// Only the header.
    Empty,
    /// A struct or two; what an inode's entry and an opened file take together fits without
    /// allocation.
    Small(SmallVec<[u8; 320]>, Undo),
    /// Bytes made for this reply.
    Bytes(Vec<u8>),
    /// A struct, and bytes after it.
    Headed(SmallVec<[u8; 16]>, Vec<u8>),
    /// File data where it is.
    Slices(Vec<DeviceSlice>),
    /// The protocol has no reply here.
    Nothing,
}

impl Answer {
    pub(super) fn of<T: IntoBytes + Immutable>(value: &T) -> Self {
        Answer::Small(SmallVec::from_slice(value.as_bytes()), Undo::default())
    }

    pub(super) fn undoable<T: IntoBytes + Immutable>(value: &T, undo: Undo) -> Self {
        Answer::Small(SmallVec::from_slice(value.as_bytes()), undo)
    }
}

/// A failed request.
#[derive(Debug)]
pub(super) enum Failure {
    /// The file system says no.
    Fs(Error),
    /// The file system cannot make something durable.
    Sync(Error),
    /// The front end says no.
    Errno(Errno),
    /// The request is not what the protocol says.
    Bad(BadRequest),
}

impl Failure {
    pub(super) fn errno(&self) -> Errno {
        match self {
            Failure::Fs(error) => errno_of(error),
            Failure::Sync(error) => errno_of_sync(error),
            Failure::Errno(errno) => *errno,
            Failure::Bad(_) => Errno::IO,
        }
    }
}

impl Failure {
    /// The same failure of decoding once more: it knows no error of the file system.
    pub(super) fn again(&self) -> Self {
        match self {
            Failure::Bad(bad) => Failure::Bad(*bad),
            other => Failure::Errno(other.errno()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Fs(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Failure::Errno(errno)
    }
}

impl From<BadRequest> for Failure {
    fn from(bad: BadRequest) -> Self {
        Failure::Bad(bad)
    }
}

/// The result of a handler.
pub(super) type Outcome = std::result::Result<Answer, Failure>;
