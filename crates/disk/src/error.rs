//! The crate's error: a kind, and a sentence that names the structure and the wrong value.

use blockwright_device::{DevOffset, DeviceError, DeviceErrorKind};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a disk, or a partition of one, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The device below failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A structure contradicts itself or the device; the sentence names it.
    #[error("{0}")]
    Corrupt(String),
    /// The format has a feature that this program does not know, or does not write.
    #[error("{0}")]
    Unsupported(String),
    /// There is no such partition, or no table of partitions.
    #[error("{0}")]
    NotFound(String),
    /// The operation is refused for safety. The text names the option that allows it.
    #[error("{0}")]
    Denied(String),
}

/// For interfaces that open devices: a refusal with the reason.
impl From<Error> for DeviceError {
    fn from(e: Error) -> Self {
        let kind = match e {
            Error::Device(e) => return e,
            Error::Corrupt(why) => DeviceErrorKind::BadDisk { why },
            Error::Unsupported(why) | Error::NotFound(why) | Error::Denied(why) => {
                DeviceErrorKind::Refused { why }
            }
        };
        DeviceError {
            op: "open",
            offset: DevOffset(0),
            bytes: 0,
            kind,
        }
    }
}
