//! What a builder tells while it works, and how it is stopped.

use crate::{Error, ErrorKind, Result};
use std::ops::ControlFlow;

/// Progress of a builder. Called from several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildProgress {
    /// This many more files of the sources are known.
    Reading {
        /// Files since the last call.
        files: u64,
    },
    /// The volume is planned; copying begins.
    Planned {
        /// Bytes of data to copy, in whole blocks.
        bytes: u64,
        /// Bytes of the volume.
        volume_bytes: u64,
    },
    /// So much has been copied by now.
    Copied {
        /// Bytes so far.
        bytes: u64,
        /// Files that are complete so far.
        files: u64,
    },
    /// All data is in the volume; metadata is being written.
    Finishing,
}

/// Takes the progress, and says whether to go on.
pub(crate) type ProgressFn = Box<dyn Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync>;

/// The same, as parts of the builder see it.
pub(crate) type Tell<'a> = &'a (dyn Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync);

/// The error of a build that its progress function has stopped.
pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Interrupted, "the build was stopped")
}

/// Tells a step.
///
/// # Errors
/// [`stopped`].
pub(crate) fn told(tell: Tell<'_>, step: &BuildProgress) -> Result<()> {
    match tell(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(stopped()),
    }
}
