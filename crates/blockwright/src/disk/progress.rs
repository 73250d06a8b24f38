//! The progress of several parts as that of one disk, and its stop.

use crate::Result;
use crate::build::BuildProgress;
use crate::build::progress::{ProgressFn, stopped, told};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Tells the function of a builder, from any thread, until it breaks.
pub(super) struct DiskProgress {
    tell: ProgressFn,
    is_stopped: AtomicBool,
    /// Bytes that the parts before have copied.
    before: AtomicU64,
}

impl DiskProgress {
    pub fn new(tell: ProgressFn) -> Self {
        DiskProgress {
            tell,
            is_stopped: AtomicBool::new(false),
            before: AtomicU64::new(0),
        }
    }

    /// Tells a step of the disk. A volume that cannot stop any more goes on; the disk stops behind it.
    pub fn tell(&self, step: &BuildProgress) -> ControlFlow<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let flow = (self.tell)(step);
        if flow.is_break() {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
        flow
    }

    /// Tells a step of the part that is being planned or written.
    pub fn tell_of_part(&self, step: &BuildProgress) -> ControlFlow<()> {
        match *step {
            BuildProgress::Copied { bytes, files } => self.tell(&BuildProgress::Copied {
                bytes: self.before.load(Ordering::Relaxed) + bytes,
                files,
            }),
            // The disk tells it once, for all.
            BuildProgress::Planned { .. } => ControlFlow::Continue(()),
            ref other => self.tell(other),
        }
    }

    /// As [`DiskProgress::tell`].
    ///
    /// # Errors
    /// `Interrupted` when the function breaks, or has before.
    pub fn told(&self, step: &BuildProgress) -> Result<()> {
        told(&|step| self.tell(step), step)
    }

    /// Tells that so many bytes of the part were copied.
    ///
    /// # Errors
    /// As [`DiskProgress::told`].
    pub fn told_of_part(&self, bytes: u64) -> Result<()> {
        let bytes = self.before.load(Ordering::Relaxed) + bytes;
        self.told(&BuildProgress::Copied { bytes, files: 0 })
    }

    /// A part with this many bytes of data is written.
    ///
    /// # Errors
    /// As [`DiskProgress::go_on`].
    pub fn part_is_done(&self, data_bytes: u64) -> Result<()> {
        self.before.fetch_add(data_bytes, Ordering::Relaxed);
        self.go_on()
    }

    /// Asks nothing.
    ///
    /// # Errors
    /// `Interrupted` when the function has broken.
    pub fn go_on(&self) -> Result<()> {
        match self.is_stopped.load(Ordering::Relaxed) {
            true => Err(stopped()),
            false => Ok(()),
        }
    }
}
