//! A change of a volume's size or settings: its progress on a terminal, and its stop by a signal.

use super::progress::PhaseBar;
use crate::failure::{At, Result};
use crate::interrupt::Interrupts;
use blockwright::reshape::{ExternalJournal, Watch};
use blockwright_device::OpenMode;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The journal on another device that the command line names.
///
/// # Errors
/// With the device named.
pub fn named_journal(mode: OpenMode) -> Result<Option<ExternalJournal>> {
    let Some(path) = crate::devices::journal() else {
        return Ok(None);
    };
    Ok(Some(ExternalJournal {
        device: crate::wall::device(path, mode).at(path.display())?,
        number: crate::devices::journal_number(),
    }))
}

/// A change that is watched while it lives.
pub struct Change {
    bar: PhaseBar,
    interrupts: Arc<Interrupts>,
}

impl Change {
    /// Notes signals from now on.
    ///
    /// # Errors
    /// The host's.
    pub fn begin() -> Result<Self> {
        Ok(Change {
            interrupts: Arc::new(Interrupts::note()?),
            bar: PhaseBar::new("changing", false),
        })
    }

    /// What the change calls.
    pub fn watch(&self) -> Watch {
        let (bar, interrupts) = (self.bar.clone(), Arc::clone(&self.interrupts));
        Watch::new(move |progress| {
            bar.show(progress.phase.name(), progress.done, progress.total);
            match interrupts.came() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.bar.clone().finish();
    }
}
