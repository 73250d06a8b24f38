//! Opening an image, or a range of its bytes.

use blockwright::{Error, ErrorKind, Result, Volume, VolumeOptions};
use blockwright_device::{DevOffset, OffsetDevice, OpenMode, SharedDevice};
use std::path::Path;
use std::sync::Arc;

/// A range of an image's bytes that is used as a device of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// First byte; a multiple of the logical block.
    pub offset: u64,
    /// Length in bytes; the rest of the image when it is `None`.
    pub bytes: Option<u64>,
}

impl Window {
    fn is_whole(self) -> bool {
        self == Window::default()
    }
}

/// Opens the device at `path`, which may name a partition (`disk.img:p2`), or a range of its bytes.
///
/// # Errors
/// As [`blockwright::VolumeOptions::open`]; `Invalid` for a range that does not lie on the device or is not aligned.
pub fn open_device(path: &Path, window: Window, mode: OpenMode) -> Result<SharedDevice> {
    let whole = blockwright_disk::open(path, mode).map_err(|e| Error::from(e).at(path))?;
    if window.is_whole() {
        return Ok(whole);
    }
    let room = whole.geometry().bytes;
    let bytes = window.bytes.unwrap_or(room.saturating_sub(window.offset));
    let range = OffsetDevice::new(whole, DevOffset(window.offset), Some(bytes));
    let range = range.map_err(|_| {
        let what = format!(
            "{bytes} bytes at byte {} do not lie on the image ({room} bytes) or are not aligned",
            window.offset
        );
        Error::new(ErrorKind::Invalid, what).at(path)
    })?;
    Ok(Arc::new(range))
}

/// Opens the volume at `path`, or in a range of its bytes.
///
/// # Errors
/// As [`blockwright::VolumeOptions::open`] and [`open_device`].
pub fn open_volume(path: &Path, window: Window, options: &VolumeOptions) -> Result<Volume> {
    if window.is_whole() {
        return options.open(path);
    }
    let device = open_device(path, window, options.open_mode())?;
    options.open_device(device).map_err(|e| e.at(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright::VolumeBuilder;

    #[test]
    fn a_range_is_a_volume_and_a_wrong_one_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("disk.img");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(32 << 20).expect("a length");
        let window = Window {
            offset: 8 << 20,
            bytes: Some(16 << 20),
        };
        let device = open_device(&path, window, OpenMode::default()).expect("a range");
        VolumeBuilder::new().create_on(&device).expect("made");
        drop(device);
        let volume = open_volume(&path, window, &VolumeOptions::new()).expect("opened");
        volume.write("/x", b"1").expect("written");
        volume.close().expect("closed");
        for (offset, bytes) in [(8 << 20, Some(32 << 20)), (7, None), (u64::MAX, None)] {
            let wrong = Window { offset, bytes };
            let error = open_volume(&path, wrong, &VolumeOptions::new()).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    }
}
