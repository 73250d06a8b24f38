//! What can be wrong with an index, a store or a chunk.

use crate::ChunkId;
use blockwright_device::{DevOffset, DeviceError, DeviceErrorKind, host_reason};
use std::io;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an image in chunks cannot be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The address is invalid; the sentence says why.
    #[error("{0}")]
    Address(String),
    /// The index contradicts itself; the sentence says where.
    #[error("the index: {0}")]
    Index(String),
    /// The index has something that this program does not read.
    #[error("the index: {0}")]
    Unsupported(String),
    /// No store has the chunk.
    #[error("chunk {chunk} is not in {stores}")]
    Missing {
        /// The chunk.
        chunk: ChunkId,
        /// The stores that were asked.
        stores: String,
    },
    /// A store has something else under the chunk's name.
    #[error("chunk {chunk} in {store}: {why}")]
    Wrong {
        /// The chunk.
        chunk: ChunkId,
        /// The store that it came from.
        store: String,
        /// What is wrong, as a sentence.
        why: String,
    },
    /// A store, or the place of an index, cannot be read.
    #[error("{place}: {why}")]
    Store {
        /// The store, or the address that was asked for.
        place: String,
        /// Why, as a sentence.
        why: String,
    },
    /// The host refused something.
    #[error("{place}: {why}")]
    Host {
        /// The path.
        place: String,
        /// The host's reason.
        why: String,
        /// Its number, when it has one.
        errno: Option<i32>,
    },
    /// The image that is cut into chunks cannot be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Error {
    /// An error of the host, with the path.
    pub(crate) fn host(place: impl std::fmt::Display, e: &io::Error) -> Self {
        Error::Host {
            place: place.to_string(),
            why: host_reason(e),
            errno: e.raw_os_error(),
        }
    }
}

impl From<Error> for DeviceErrorKind {
    fn from(e: Error) -> Self {
        match e {
            Error::Device(e) => e.kind,
            Error::Index(_) | Error::Wrong { .. } => {
                DeviceErrorKind::BadDisk { why: e.to_string() }
            }
            _ => DeviceErrorKind::Refused { why: e.to_string() },
        }
    }
}

/// For interfaces that open devices.
impl From<Error> for DeviceError {
    fn from(e: Error) -> Self {
        match e {
            Error::Device(e) => e,
            e => DeviceError {
                op: "open",
                offset: DevOffset(0),
                bytes: 0,
                kind: e.into(),
            },
        }
    }
}
