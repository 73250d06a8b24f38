//! What can be open, and the tables of it.

use crate::error::{Fault, Result};
use crate::table::Table;
use blockwright::{DirStream, File, Volume};
use blockwright_ffi::{CheckReport, TableData};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open volume. `id` 0 is none. Handles may be copied, and used from every thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bw_volume {
    /// For the library.
    pub id: u64,
}

/// An open file. `id` 0 is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bw_file {
    /// For the library.
    pub id: u64,
}

/// An open directory. `id` 0 is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bw_dir {
    /// For the library.
    pub id: u64,
}

/// The result of a check. `id` 0 is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bw_report {
    /// For the library.
    pub id: u64,
}

/// The partitions of a disk. `id` 0 is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bw_partitions {
    /// For the library.
    pub id: u64,
}

pub(crate) static VOLUMES: Table<OpenVolume> = Table::new(1, "volume");
pub(crate) static FILES: Table<OpenFile> = Table::new(2, "file");
pub(crate) static DIRS: Table<OpenDir> = Table::new(3, "directory");
pub(crate) static REPORTS: Table<CheckReport> = Table::new(4, "report");
pub(crate) static PARTITIONS: Table<TableData> = Table::new(5, "table of partitions");

/// A volume until it is closed.
pub(crate) struct OpenVolume {
    /// Calls hold it shared, closing exclusively: so closing waits for the calls of other threads.
    volume: RwLock<Option<Volume>>,
    health: Arc<Health>,
}

/// Whether a call on a volume, or on one of its files, panicked.
#[derive(Default)]
pub(crate) struct Health {
    poisoned: AtomicBool,
}

impl Health {
    /// # Errors
    /// `Poisoned`.
    pub(crate) fn check(&self) -> Result<()> {
        match self.poisoned.load(Ordering::Acquire) {
            true => Err(Fault::Poisoned),
            false => Ok(()),
        }
    }

    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }
}

impl OpenVolume {
    pub(crate) fn new(volume: Volume) -> Self {
        OpenVolume {
            volume: RwLock::new(Some(volume)),
            health: Arc::new(Health::default()),
        }
    }

    /// Does something with the volume, while it cannot be closed.
    ///
    /// # Errors
    /// `BadHandle` when another thread has just closed it; those of `f`.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Volume) -> Result<R>) -> Result<R> {
        match &*self.volume.read() {
            Some(volume) => f(volume),
            None => Err(Fault::BadHandle("volume")),
        }
    }

    /// Takes the volume out, after the calls that use it.
    pub(crate) fn take(&self) -> Option<Volume> {
        self.volume.write().take()
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }
}

/// A file until it is closed.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) health: Arc<Health>,
}

/// A listing until it is closed.
pub(crate) struct OpenDir {
    pub(crate) stream: Mutex<DirStream>,
    pub(crate) health: Arc<Health>,
}
