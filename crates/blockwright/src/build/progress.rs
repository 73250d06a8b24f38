//! What a builder tells while it works, and how it is stopped.

use crate::{Error, ErrorKind, Result};
use std::ops::ControlFlow;

/// Progress of a builder. Called from several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildProgress {
    /// This many more files of the sources are known. Also told, with none more, while data of sources is read for a digest, and while rules are applied.
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

/// Tells after each MiB of data that is read meanwhile that the sources are being read, so that long files can be stopped, too. Work that reads no data
/// counts as some of it.
pub(crate) struct Meter<'a> {
    tell: Tell<'a>,
    unseen: u64,
}

impl<'a> Meter<'a> {
    pub fn new(tell: Tell<'a>) -> Self {
        Meter { tell, unseen: 0 }
    }

    /// So many bytes more were read.
    ///
    /// # Errors
    /// [`stopped`].
    pub fn read(&mut self, bytes: u64) -> Result<()> {
        const STEP: u64 = 1 << 20;
        self.unseen += bytes;
        if self.unseen < STEP {
            return Ok(());
        }
        self.unseen = 0;
        told(self.tell, &BuildProgress::Reading { files: 0 })
    }

    /// One more entry was looked at: 512 of them count as a MiB of data.
    ///
    /// # Errors
    /// [`stopped`].
    pub fn entry(&mut self) -> Result<()> {
        self.read(2 << 10)
    }
}

/// The function that stops nothing and hears nothing.
pub(crate) fn unheard(_step: &BuildProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

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
