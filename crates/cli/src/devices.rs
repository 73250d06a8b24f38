//! What the command line says of a volume's further devices, and whether two paths lead to one file.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Further devices of the volume that this run is about.
static MORE_DEVICES: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Notes the further devices of the volume that this run is about.
pub fn set_more_devices(devices: &[PathBuf]) {
    // Called once, before any command.
    let _ = MORE_DEVICES.set(devices.to_vec());
}

/// The further devices of the volume that this run is about.
pub fn more_devices() -> &'static [PathBuf] {
    MORE_DEVICES.get().map_or(&[], Vec::as_slice)
}

/// The device of the volume's journal, when it is named.
static JOURNAL: OnceLock<PathBuf> = OnceLock::new();

/// Notes the device of the volume's journal.
pub fn set_journal(device: Option<&Path>) {
    if let Some(device) = device {
        // Called once, before any command.
        let _ = JOURNAL.set(device.to_owned());
    }
}

/// The device of the volume's journal, when it is named.
pub fn journal() -> Option<&'static Path> {
    JOURNAL.get().map(PathBuf::as_path)
}

/// The file of changes over the image, when it is named.
static OVERLAY: OnceLock<PathBuf> = OnceLock::new();

/// Notes the file of changes over the image.
pub fn set_overlay(file: Option<&Path>) {
    if let Some(file) = file {
        // Called once, before any command.
        let _ = OVERLAY.set(file.to_owned());
    }
}

/// The file of changes over the image, when it is named.
pub fn overlay() -> Option<&'static Path> {
    OVERLAY.get().map(PathBuf::as_path)
}

/// Whether two paths of the host lead to one file now.
pub fn same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
