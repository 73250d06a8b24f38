//! The progress of a change, and its stop by the caller.
//!
//! A change asks only where nothing that it has staged must be committed. At a stop what is staged is dropped, and the volume is as the last commit left it. So a
//! stop is no crash, and needs no recovery.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::error::{ReshapeError, Result};

/// What a change is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// It looks at inodes, and may change each of them. The unit is block groups.
    Inodes,
    /// Inodes get other numbers. The unit is inodes.
    Numbers,
    /// It copies files from one place to another. The unit is bytes.
    Data,
    /// It writes or moves metadata. The unit is block groups, directories, or blocks of a table.
    Metadata,
    /// It goes through the change in memory, to find what refuses it before anything is written. The unit is that of the step that it looks at.
    Plan,
}

impl Phase {
    /// Its name, which is stable: `inodes`, `numbers`, `data`, `metadata` or `plan`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Inodes => "inodes",
            Phase::Numbers => "numbers",
            Phase::Data => "data",
            Phase::Metadata => "metadata",
            Phase::Plan => "plan",
        }
    }
}

/// How far a change is. A change may have a phase several times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The phase, which gives the unit.
    pub phase: Phase,
    /// How much of the phase is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

type Tell = dyn Fn(Progress) -> ControlFlow<()> + Send + Sync;

/// A function that is called again and again while a volume changes: it sees the progress, and stops the change when it breaks.
#[derive(Clone, Default)]
pub struct Watch(Option<Arc<Tell>>);

impl Watch {
    /// A watch that calls this function.
    #[must_use]
    pub fn new(tell: impl Fn(Progress) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    /// Asks between two changes whether to go on: tells that nothing of nothing is planned.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.tell(Phase::Plan, 0, 0).is_err()
    }

    /// The watch of a rehearsal: all that it is told is the phase of planning.
    pub(crate) fn planning(&self) -> Self {
        let Some(tell) = self.0.clone() else {
            return Self::default();
        };
        Self::new(move |progress| {
            tell(Progress {
                phase: Phase::Plan,
                ..progress
            })
        })
    }

    /// Tells the progress.
    ///
    /// # Errors
    /// `Interrupted` when the change is to stop here.
    pub(crate) fn tell(&self, phase: Phase, done: u64, total: u64) -> Result<()> {
        let progress = Progress { phase, done, total };
        match self.0.as_ref().map(|tell| tell(progress)) {
            Some(ControlFlow::Break(())) => Err(ReshapeError::Interrupted),
            Some(ControlFlow::Continue(())) | None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.0.is_some()).finish()
    }
}
