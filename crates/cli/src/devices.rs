//! What the command line says of a volume's further devices, and whether two paths lead to one file.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

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
static JOURNAL: OnceLock<(PathBuf, u32)> = OnceLock::new();

/// Notes the device of the volume's journal, and its number, while names can be looked up.
pub fn set_journal(device: Option<&Path>) {
    if let Some(device) = device {
        // Called once, before any command.
        let _ = JOURNAL.set((
            device.to_owned(),
            blockwright::reshape::journal_number(device),
        ));
    }
}

/// The number of the device of the volume's journal; 0 when that is a file, or none is named.
pub fn journal_number() -> u32 {
    JOURNAL.get().map_or(0, |(_, number)| *number)
}

/// The device of the volume's journal, when it is named.
pub fn journal() -> Option<&'static Path> {
    JOURNAL.get().map(|(path, _)| path.as_path())
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

/// Which file of the host it is, whatever its name. Two nodes of one block device are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostFile {
    /// The number of its file system, and its own.
    Inode(u64, u64),
    /// The number of a block device.
    BlockDevice(u64),
}

impl HostFile {
    /// The file that a path leads to now, if there is one.
    pub fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let meta = std::fs::metadata(path).ok()?;
        Some(match meta.file_type().is_block_device() {
            true => HostFile::BlockDevice(meta.rdev()),
            false => HostFile::Inode(meta.dev(), meta.ino()),
        })
    }
}

/// The files that this run opens as images: also what is below and beside them, as backing files, overlays and journals.
static INPUTS: Mutex<Vec<HostFile>> = Mutex::new(Vec::new());

/// Notes that a file is opened as an image, or as a part of one. Called before the process is confined, while names can be looked up.
pub fn note_input(path: &Path) {
    if let Some(file) = HostFile::of(path) {
        let mut inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
        if !inputs.contains(&file) {
            inputs.push(file);
        }
    }
}

/// Whether a file is open as an image or as a part of one.
pub fn is_input(file: HostFile) -> bool {
    let inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    inputs.contains(&file)
}

/// Whether two paths of the host lead to one file now.
pub fn same_inode(a: &Path, b: &Path) -> bool {
    HostFile::of(a).is_some_and(|file| HostFile::of(b) == Some(file))
}
