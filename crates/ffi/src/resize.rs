//! The size of a volume, and of the image file around it.

use crate::image::{Window, open_device};
use blockwright::reshape::{self, Mode, ResizeOptions, Resized};
use blockwright::{Error, Result};
use blockwright_device::{NbdAddress, OpenMode};
use blockwright_disk::Place;
use blockwright_disk::container::{self, detect_file};
use std::path::Path;

/// The size that a volume shall have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// So many bytes. An image file becomes longer when that is needed.
    Bytes(u64),
    /// All of the image or device.
    Fill,
    /// As few bytes as the files need, and so many more that stay free.
    Minimum {
        /// Free bytes.
        free: u64,
    },
}

/// Whether `path` is a plain image file, whose length follows the volume's. A partition, a container and a block device keep theirs.
fn is_plain_file(path: &Path) -> bool {
    NbdAddress::parse(path).is_none()
        && Place::of(path).part.is_none()
        && path.is_file()
        && detect_file(path) == container::Format::Raw
}

/// Changes the size of the volume at `path`, which must not be open. The file of a plain image gets longer or shorter with it. When that fails, the
/// file has its old length, unless the volume may ask for the longer one ([`reshape::file_bytes`]).
///
/// # Errors
/// As [`reshape::resize`]; `Busy` when the image is open.
pub fn resize(path: &Path, target: Target, mode: Mode) -> Result<Resized> {
    let open = OpenMode {
        read_only: mode != Mode::Change,
        ..OpenMode::default()
    };
    let plain = is_plain_file(path);
    let device = open_device(path, Window::default(), open)?;
    let at = |e: Error| e.at(path);
    let length = device.geometry().bytes;
    let had = reshape::volume_bytes(&device).ok();
    let run = || {
        let options = match target {
            Target::Minimum { free } => ResizeOptions::to_minimum(free),
            Target::Fill => ResizeOptions::to_bytes(length),
            Target::Bytes(bytes) => {
                if plain && mode == Mode::Change && bytes > length {
                    device.grow(bytes)?;
                }
                ResizeOptions::to_bytes(bytes)
            }
        };
        reshape::resize(&device, &options.mode(mode))
    };
    let resized = run().map_err(at);
    if !plain || mode != Mode::Change {
        return resized;
    }
    let wanted = match target {
        Target::Bytes(bytes) => Some(bytes),
        Target::Fill | Target::Minimum { .. } => None,
    };
    let wanted = reshape::file_bytes(&device, length, had, wanted, resized.as_ref());
    // `device` still holds the image's lock.
    let trimmed = std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| {
            if file.metadata()?.len() != wanted {
                file.set_len(wanted)?;
                file.sync_all()?;
            }
            Ok(())
        });
    drop(device);
    let resized = resized?;
    trimmed.map_err(|e| at(Error::from(e)))?;
    Ok(resized)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright::{ErrorKind, Format, Volume, VolumeBuilder};

    #[test]
    fn the_file_follows_the_volume() {
        let dir = tempfile::tempdir().expect("a folder");
        for (format, bytes) in [(Format::Ext4, 32 << 20), (Format::F2fs, 128 << 20)] {
            let path = dir.path().join(format!("{format}.img"));
            let made = VolumeBuilder::new().format(format).size(bytes);
            made.create(&path).expect("made");
            let length = || std::fs::metadata(&path).expect("a file").len();
            let larger = Target::Bytes(bytes * 2);
            resize(&path, larger, Mode::DryRun).expect("planned");
            assert_eq!(length(), bytes);
            let grown = resize(&path, larger, Mode::Change).expect("grown");
            assert_eq!((grown.bytes_before(), length()), (bytes, bytes * 2));
            let small = resize(&path, Target::Minimum { free: 0 }, Mode::Change);
            let small = small.expect("made smaller");
            assert_eq!(length(), small.bytes());
            let before = length();
            let error = resize(&path, Target::Bytes(4096), Mode::Change).expect_err("too small");
            assert!(!error.to_string().is_empty());
            assert_eq!(length(), before);
            let volume = Volume::open(&path).expect("opened");
            let error = resize(&path, larger, Mode::Change).expect_err("open");
            assert_eq!(error.kind(), ErrorKind::Busy);
            volume.close().expect("closed");
        }
    }
}
