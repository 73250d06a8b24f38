//! A change of a volume's size or settings: its progress on a terminal, and its stop by a signal.

use super::progress::PhaseBar;
use crate::failure::{At, Result};
use crate::interrupt::Interrupts;
use blockwright::reshape::{ExternalJournal, Watch};
use blockwright_device::OpenMode;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// The journal on another device that `--journal` names.
///
/// # Errors
/// With the device named.
pub fn named_journal(mode: OpenMode) -> Result<Option<ExternalJournal>> {
    let journal = crate::devices::journal();
    journal.map(|path| external_journal(path, mode)).transpose()
}

/// The journal on the device or in the image at a path.
///
/// # Errors
/// With the device named.
pub fn external_journal(path: &Path, mode: OpenMode) -> Result<ExternalJournal> {
    Ok(ExternalJournal {
        device: crate::wall::device(path, mode).at(path.display())?,
        number: device_number(path),
    })
}

/// The number of a block device, as a volume stores that of its journal; 0 for what is none.
fn device_number(path: &Path) -> u32 {
    let meta = std::fs::metadata(path).ok();
    let meta = meta.filter(|meta| meta.file_type().is_block_device());
    meta.map_or(0, |meta| {
        let number = meta.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        (minor & 0xFF) | (major << 8) | ((minor & !0xFF) << 12)
    })
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

    /// Whether a signal came.
    pub fn is_stopped(&self) -> bool {
        self.interrupts.came()
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
