//! The crate's error: a kind, and a sentence for the user.

use blockwright_device::DeviceError;
use blockwright_ondisk::ext4::FormatError;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, ReshapeError>;

/// Why a change was not made. Of ext4, nothing was written but with `Device` and `Interrupted`: then a part may have been changed, and the volume is whole, or the
/// next opening makes it so. Of f2fs, that is so for `NoSpace`, `F2fs` and `Damaged` as well.
#[derive(Debug, thiserror::Error)]
pub enum ReshapeError {
    /// The device failed.
    #[error("{what}: {source}")]
    Device {
        /// What was read or written.
        what: &'static str,
        /// Why it failed.
        source: DeviceError,
    },
    /// A structure is not what the format demands.
    #[error("{0} (`blockwright check -p IMAGE` repairs damage)")]
    Format(#[from] FormatError),
    /// A structure of f2fs is not what the format demands.
    #[error("{0} (`blockwright check -p IMAGE` repairs damage)")]
    F2fs(#[from] blockwright_ondisk::f2fs::FormatError),
    /// Structures contradict each other.
    #[error("{0} (`blockwright check -p IMAGE` repairs damage)")]
    Damaged(String),
    /// The volume must be repaired or recovered first.
    #[error("{0}: run `blockwright check -p IMAGE` first")]
    NotClean(&'static str),
    /// Only the user can say what is to become of something, which the sentence names.
    #[error("{0}")]
    Undecided(&'static str),
    /// The change is possible in the format, but not here.
    #[error("{0}")]
    Unsupported(String),
    /// The change is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The caller stopped the change: what was committed by then stays, and the volume is whole.
    #[error("interrupted")]
    Interrupted,
    /// There is no room for what the change needs.
    #[error("{0}")]
    NoSpace(String),
}

impl ReshapeError {
    /// A failure of the device while something was read or written.
    pub(crate) fn device(what: &'static str) -> impl FnOnce(DeviceError) -> Self {
        move |source| Self::Device { what, source }
    }
}
