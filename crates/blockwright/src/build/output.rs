//! The images that volumes, journals and disks are made in: how they are opened, and what becomes of a new one that could not be made.

use crate::Result;
use blockwright_device::{DirectIo, OpenMode};
use std::path::Path;

/// Around the host's page cache where possible: the disk works from the first piece on rather than
/// at the flush, nothing is copied twice, and the host keeps its cache for the sources.
pub(crate) fn building_mode() -> OpenMode {
    OpenMode {
        direct: DirectIo::Auto,
        ..OpenMode::default()
    }
}

/// The folder in which a file is.
pub(crate) fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Removes a new image when what it was for could not be made in it, because it must not look as if it were. Nothing may have it open.
pub(crate) fn removed_on_failure<T>(made: Result<T>, path: &Path) -> Result<T> {
    if made.is_err() {
        // The first error is the one to tell.
        let _already_failing = std::fs::remove_file(path);
    }
    made
}
