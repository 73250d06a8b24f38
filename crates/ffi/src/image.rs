//! Opening an image or a range of its bytes, with what belongs to the volume.

use blockwright::reshape::{self, ExternalJournal};
use blockwright::{Error, ErrorKind, Result, Volume, VolumeOptions};
use blockwright_device::{DevOffset, OffsetDevice, OpenMode, SharedDevice};
use blockwright_disk::{Disk, Place};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A range of an image's bytes that is used as a device of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// First byte; a multiple of the logical block.
    pub offset: u64,
    /// Length in bytes; the rest of the image when it is `None`.
    pub bytes: Option<u64>,
}

/// An image, and what belongs to the volume in it.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// An image, a block device, a partition (`disk.img:p2`) or an NBD export.
    pub path: PathBuf,
    /// The part of it that is used.
    pub window: Window,
    /// The other devices of an f2fs volume on several, in the order of its superblock.
    pub more_devices: Vec<PathBuf>,
    /// The device or image of an ext4 journal that is not on the volume.
    pub journal: Option<PathBuf>,
    /// A file that keeps all changes; the image is only read.
    pub overlay: Option<PathBuf>,
    /// As [`VolumeOptions::allow_backing`], for each of these.
    pub allow_backing: bool,
}

impl Image {
    /// An image with nothing beside it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Image {
            path: path.into(),
            ..Image::default()
        }
    }

    /// Opens the device: all of the image, a partition, or a range of its bytes.
    ///
    /// # Errors
    /// As [`blockwright::VolumeOptions::open`]; `Invalid` for a range that does not lie on the device or is not aligned.
    pub fn open_device(&self, mode: OpenMode) -> Result<SharedDevice> {
        let at = |e: Error| e.at(&self.path);
        let whole = self.open_whole(mode).map_err(at)?;
        let first = self.window.of(whole).map_err(at)?;
        let open = &mut |path: &Path, mode| self.open(path, mode);
        blockwright::join_devices_by(first, &self.more_devices, mode, open).map_err(at)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> blockwright_device::Result<SharedDevice> {
        blockwright_disk::open_with(path, mode, self.allow_backing)
    }

    fn open_whole(&self, mode: OpenMode) -> Result<SharedDevice> {
        let Some(overlay) = &self.overlay else {
            return Ok(self.open(&self.path, mode)?);
        };
        if !self.more_devices.is_empty() {
            let what = "an overlay lies over volumes on one device only";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let place = Place::of(&self.path);
        let open = || -> blockwright_disk::Result<SharedDevice> {
            let disk = Disk::open_over(&place.file, mode, self.allow_backing, overlay)?;
            match &place.part {
                Some(part) => disk.part(part),
                None => Ok(disk.device().clone()),
            }
        };
        Ok(open().map_err(blockwright_device::DeviceError::from)?)
    }

    /// Opens the journal that is not on the volume.
    ///
    /// # Errors
    /// As opening; with its path.
    pub fn open_journal(&self, mode: OpenMode) -> Result<Option<ExternalJournal>> {
        let open = |path: &PathBuf| {
            Ok(ExternalJournal {
                device: self.open(path, mode).map_err(|e| Error::from(e).at(path))?,
                number: reshape::journal_number(path),
            })
        };
        self.journal.as_ref().map(open).transpose()
    }

    /// Opens the volume.
    ///
    /// # Errors
    /// As [`blockwright::VolumeOptions::open`] and [`Image::open_device`].
    pub fn open_volume(&self, options: &VolumeOptions) -> Result<Volume> {
        let mut options = options.clone().allow_backing(self.allow_backing);
        if let Some(journal) = &self.journal {
            options = options.journal(journal);
        }
        let device = self.open_device(options.open_mode())?;
        options.open_device(device).map_err(|e| e.at(&self.path))
    }
}

impl Window {
    fn of(self, whole: SharedDevice) -> Result<SharedDevice> {
        if self == Window::default() {
            return Ok(whole);
        }
        let room = whole.geometry().bytes;
        let bytes = self.bytes.unwrap_or(room.saturating_sub(self.offset));
        let range = OffsetDevice::new(whole, DevOffset(self.offset), Some(bytes));
        let range = range.map_err(|_| {
            let what = format!(
                "{bytes} bytes at byte {} do not lie on the image ({room} bytes) or are not aligned",
                self.offset
            );
            Error::new(ErrorKind::Invalid, what)
        })?;
        Ok(Arc::new(range))
    }
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
        let image = |window| Image {
            window,
            ..Image::new(&path)
        };
        let device = image(window).open_device(OpenMode::default());
        let device = device.expect("a range");
        VolumeBuilder::new().create_on(&device).expect("made");
        drop(device);
        let volume = image(window).open_volume(&VolumeOptions::new());
        let volume = volume.expect("opened");
        volume.write("/x", b"1").expect("written");
        volume.close().expect("closed");
        for (offset, bytes) in [(8 << 20, Some(32 << 20)), (7, None), (u64::MAX, None)] {
            let wrong = Window { offset, bytes };
            let error = image(wrong).open_volume(&VolumeOptions::new());
            let error = error.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    }

    #[test]
    fn an_overlay_takes_the_changes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("disk.img");
        let made = VolumeBuilder::new().size(16 << 20).create(&path);
        made.expect("made");
        let before = std::fs::read(&path).expect("the image");
        let over = Image {
            overlay: Some(dir.path().join("changes")),
            ..Image::new(&path)
        };
        for name in ["/a", "/b"] {
            let volume = over.open_volume(&VolumeOptions::new()).expect("opened");
            volume.write(name, b"1").expect("written");
            assert!(
                volume.exists("/a").expect("looked up"),
                "what an earlier opening changed"
            );
            volume.close().expect("closed");
        }
        assert!(std::fs::read(&path).expect("the image") == before);
        let both = Image {
            more_devices: vec![path.clone()],
            ..over
        };
        let error = both
            .open_device(OpenMode::default())
            .err()
            .expect("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
