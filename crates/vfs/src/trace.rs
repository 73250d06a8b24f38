//! Recording a volume's device requests.
//!
//! The device's monitor records, one trace at a time; this module hands it the file. `blockwright_device::trace` has the format.

use crate::vfs::Vfs;
use blockwright_device::monitor::Monitor;
use blockwright_device::trace::{TraceError, TraceOptions, TraceStatus};
use std::path::Path;

impl Vfs {
    fn monitor(&self) -> Result<&Monitor, TraceError> {
        self.core.device.monitor().ok_or(TraceError::Unsupported)
    }

    /// Records the device's requests to the file at `path`, which is made or emptied, until it has
    /// `bytes_max` bytes, [`Vfs::stop_trace`], or the device is closed.
    ///
    /// # Errors
    /// `Running` when a trace is recorded already; `Io`; `Unsupported` when the device records none.
    pub fn start_trace(&self, path: &Path, bytes_max: u64) -> Result<(), TraceError> {
        let monitor = self.monitor()?;
        // Before the file is emptied that may be the one recorded to.
        if monitor.trace_status().is_some() {
            return Err(TraceError::Running);
        }
        self.start_trace_to(std::fs::File::create(path)?, path, bytes_max)
    }

    /// As [`Vfs::start_trace`], to an empty file that is open already; `path` is what it is called.
    ///
    /// # Errors
    /// As [`Vfs::start_trace`].
    pub fn start_trace_to(
        &self,
        file: std::fs::File,
        path: &Path,
        bytes_max: u64,
    ) -> Result<(), TraceError> {
        self.monitor()?.start_trace(TraceOptions {
            file,
            path: path.to_owned(),
            bytes_max,
            device_name: self.core.device.name(),
            device_bytes: self.core.device.geometry().bytes,
        })
    }

    /// How the recording goes; `None` when there is none.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn trace_status(&self) -> Result<Option<TraceStatus>, TraceError> {
        Ok(self.monitor()?.trace_status())
    }

    /// Ends the recording; the file is complete when this returns. `None` when there was none.
    ///
    /// # Errors
    /// `Io` when the file could not be written; `Unsupported`.
    pub fn stop_trace(&self) -> Result<Option<TraceStatus>, TraceError> {
        self.monitor()?.stop_trace()
    }
}
