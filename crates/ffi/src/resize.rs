//! Changes of a volume as a whole: its settings; its size, and that of the image file around it.

use crate::image::{Image, Window};
use crate::partitions::disk;
use blockwright::disk::PartitionSize;
use blockwright::reshape::{self, Mode, ResizeOptions, Resized, Settings, Watch};
use blockwright::{Error, ErrorKind, Result};
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

/// Whether an image is a plain file, whose length follows the volume's. A partition, a range, a container, a block device and what lies below an overlay keep
/// theirs.
fn is_plain_file(image: &Image) -> bool {
    let path: &Path = &image.path;
    image.overlay.is_none()
        && image.window == Window::default()
        && NbdAddress::parse(path).is_none()
        && Place::of(path).part.is_none()
        && path.is_file()
        && detect_file(path) == container::Format::Raw
}

/// Refuses to plan what cannot be made: an image is opened for reading alone then.
fn check_container(image: &Image, mode: Mode) -> Result<()> {
    let has_overlay = image.overlay.is_some();
    let is_planned = mode != Mode::Change && !has_overlay;
    if is_planned && !detect_file(&Place::of(&image.path).file).is_writable() {
        let what = "the container of the disk is only read";
        return Err(Error::new(ErrorKind::ReadOnly, what).at(&image.path));
    }
    Ok(())
}

/// Changes settings of the volume in an image, which must not be open. The journal is the image's, and that of `settings` does not count.
///
/// # Errors
/// As [`reshape::set_watched`]; `Busy` when the image is open.
pub fn set(image: &Image, settings: &Settings, watch: &Watch) -> Result<()> {
    let mode = OpenMode::default();
    let device = image.open_device(mode)?;
    let settings = Settings {
        journal: image.open_journal(mode)?,
        ..settings.clone()
    };
    let changed = reshape::set_watched(&device, &settings, watch);
    changed.map(|_| ()).map_err(|e| e.at(&image.path))
}

/// Changes the size of the volume in an image, which must not be open. The file of a plain image gets longer or shorter with it. When that fails, the
/// file has its old length, unless the volume may ask for the longer one ([`reshape::file_bytes`]).
///
/// # Errors
/// As [`reshape::resize`]; `Busy` when the image is open.
pub fn resize(image: &Image, target: Target, mode: Mode, watch: &Watch) -> Result<Resized> {
    let open = OpenMode {
        read_only: mode != Mode::Change,
        ..OpenMode::default()
    };
    let path: &Path = &image.path;
    let plain = is_plain_file(image);
    let device = image.open_device(open)?;
    check_container(image, mode)?;
    let journal = image.open_journal(open)?;
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
        let options = options.mode(mode).journal(journal).watch(watch.clone());
        reshape::resize(&device, &options)
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

/// Makes a partition larger, into the free room behind it, and the volume in it, which must not be open. The image is a partition (`disk.img:p2`).
///
/// # Errors
/// As [`blockwright::disk::grow`]; `Invalid` for an image that is no partition, for a range, and for a size as small as possible.
pub fn resize_with_partition(
    image: &Image,
    target: Target,
    mode: Mode,
    watch: &Watch,
) -> Result<Resized> {
    let at = |e: Error| e.at(&image.path);
    let refused = |what: &str| Err(at(Error::new(ErrorKind::Invalid, what)));
    let to = match target {
        Target::Bytes(bytes) => PartitionSize::Bytes(bytes),
        Target::Fill => PartitionSize::Fill,
        Target::Minimum { .. } => return refused("a partition only becomes larger"),
    };
    if image.window != Window::default() || !image.more_devices.is_empty() {
        return refused("a range of an image is no partition of it");
    }
    let open = OpenMode {
        read_only: mode != Mode::Change,
        ..OpenMode::default()
    };
    if Place::of(&image.path).part.is_none() {
        return refused("a partition is needed, as in disk.img:p2");
    }
    let (disk, Some(part)) = disk(image, open)? else {
        return refused("a partition is needed, as in disk.img:p2");
    };
    check_container(image, mode)?;
    let journal = image.open_journal(open)?;
    blockwright::disk::grow(&disk, &part, to, mode, journal, watch).map_err(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{MapForm, map};
    use crate::partitions::partitions;
    use blockwright::build::JournalBuilder;
    use blockwright::disk::{DiskBuilder, Part, Scheme};
    use blockwright::{Format, Volume, VolumeBuilder, VolumeOptions};
    use std::ops::ControlFlow;
    use std::path::{Path, PathBuf};

    fn resize(path: &Path, target: Target, mode: Mode) -> Result<Resized> {
        super::resize(&Image::new(path), target, mode, &Watch::default())
    }

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

    /// A volume whose journal is elsewhere is resized and set with it, and a watch stops both.
    #[test]
    fn with_a_journal_elsewhere() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, log) = (dir.path().join("disk.img"), dir.path().join("log.img"));
        let made = JournalBuilder::new().size(8 << 20).create(&log);
        made.expect("made");
        let image = Image {
            journal: Some(log),
            ..Image::new(&path)
        };
        let journal = image.open_journal(OpenMode::default()).expect("opened");
        let made = VolumeBuilder::new()
            .size(64 << 20)
            .journal_device(journal.expect("a journal"))
            .create(&path);
        made.expect("made");
        let stopped = Watch::new(|_| ControlFlow::Break(()));
        let larger = Target::Bytes(256 << 20);
        let error = super::resize(&image, larger, Mode::Change, &stopped).expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        let bare = resize(&path, larger, Mode::Change).expect_err("without its journal");
        assert!(bare.to_string().contains("journal"), "{bare}");
        let grown = super::resize(&image, larger, Mode::Change, &Watch::default());
        assert!(grown.expect("grown").bytes() > 200 << 20);
        let label = Settings {
            label: Some(b"named".to_vec()),
            features: Some("quota".to_owned()),
            ..Settings::default()
        };
        set(&image, &label, &Watch::default()).expect("set");
        let volume = image.open_volume(&VolumeOptions::new()).expect("opened");
        volume.close().expect("closed");
        let device = image.open_device(OpenMode::read_only()).expect("opened");
        let options = crate::CheckOptions {
            journal: image
                .open_journal(OpenMode::read_only())
                .expect("opened")
                .map(|j| j.device),
            ..crate::CheckOptions::default()
        };
        let found = crate::check(device, &options).expect("checked");
        assert!(found.clean, "{found:?}");
    }

    /// A longer disk: the last partition takes the room, and its volume follows. Its map can be drawn.
    #[test]
    fn partitions_are_listed_and_grow_with_their_volumes() {
        let dir = tempfile::tempdir().expect("a folder");
        for (scheme, container) in [
            (Scheme::Gpt, container::Format::Raw),
            (Scheme::Mbr, container::Format::Qcow2),
        ] {
            let disk = dir.path().join(scheme.name());
            let volume = |label: &str| VolumeBuilder::new().size(32 << 20).label(label);
            DiskBuilder::new(scheme)
                .size(256 << 20)
                .part(Part::volume(
                    "first",
                    volume("one").format(Format::F2fs).size(64 << 20),
                ))
                .part(Part::volume("second", volume("two")))
                .create(&disk, container)
                .expect("made");
            let found = partitions(&disk, false).expect("listed");
            assert_eq!(found.scheme, Some(scheme));
            let second = &found.partitions[1];
            assert_eq!((second.number, second.bytes), (2, 32 << 20));
            assert_eq!((second.format, &*second.label), (Some("ext4"), "two"));
            assert_eq!(found.partitions[0].format, Some("f2fs"));
            assert_eq!(second.uuid.is_some(), scheme == Scheme::Gpt);
            let part = PathBuf::from(format!("{}:p2", disk.display()));
            let image = Image::new(&part);
            let grow = |image: &Image, target, mode, watch: &Watch| {
                resize_with_partition(image, target, mode, watch)
            };
            let none = Watch::default();
            let whole = Image::new(&disk);
            for (image, target) in [
                (&whole, Target::Fill),
                (&image, Target::Minimum { free: 0 }),
            ] {
                let error = grow(image, target, Mode::Change, &none).expect_err("refused");
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            }
            let error = grow(&image, Target::Bytes(1 << 30), Mode::Change, &none);
            assert_eq!(error.expect_err("too large").kind(), ErrorKind::NoSpace);
            grow(&image, Target::Fill, Mode::DryRun, &none).expect("planned");
            let stopped = Watch::new(|_| ControlFlow::Break(()));
            let error = grow(&image, Target::Fill, Mode::Change, &stopped).expect_err("stopped");
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
            assert_eq!(partitions(&disk, false).expect("listed"), found);
            let grown = grow(&image, Target::Fill, Mode::Change, &none).expect("grown");
            let now = partitions(&disk, false).expect("listed").partitions[1].bytes;
            assert!(now > 100 << 20 && grown.bytes() == now, "{now}: {grown:?}");
            let volume = Volume::open(&part).expect("opened");
            volume.write("/x", b"1").expect("written");
            volume.close().expect("closed");
            let svg = map(&image, MapForm::Svg).expect("drawn");
            assert!(svg.starts_with("<svg") || svg.starts_with("<?xml"));
            let html = map(&image, MapForm::Html).expect("drawn");
            assert!(html.contains("<html"));
            assert!(map(&whole, MapForm::Svg).is_err());
            let error = partitions(&part, false).expect_err("a partition");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        let bare = dir.path().join("bare.img");
        VolumeBuilder::new()
            .size(16 << 20)
            .create(&bare)
            .expect("made");
        let found = partitions(&bare, false).expect("read");
        assert!(found.scheme.is_none() && found.partitions.is_empty());
    }
}
