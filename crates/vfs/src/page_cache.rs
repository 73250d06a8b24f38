//! Cached pages of regular files.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The cached pages of one file.
#[derive(Default)]
pub struct FilePages {
    pub(crate) writers: AtomicUsize,
    dirty: std::sync::atomic::AtomicBool,
}

impl FilePages {
    /// Whether pages are dirty or on their way to the device.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }
}
