//! Disks in containers, and disks of which partitions were asked for.
//!
//! A place is taken apart before the process is confined, because a file of the whole name comes first. The names of backing files are read before,
//! too, from fixed places of an image's first 64 KiB, because the files must be open. Everything else of containers, and tables of partitions, is
//! read afterwards.

use super::Device;
use blockwright_device::{DevOffset, DeviceError, DeviceErrorKind, OpenMode, SharedDevice};
use blockwright_disk::{Disk, Error, Place, Selector, container};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What was asked for, and of what.
pub(super) struct Disks {
    places: Vec<(PathBuf, Place)>,
    open: Vec<(PathBuf, Disk)>,
    /// Backing files, by the image that names them and the name there.
    backing: Vec<(PathBuf, Vec<u8>, Result<PathBuf, Error>)>,
    /// The partitions that are open: of which file, where they begin, and how they were asked for.
    parts: Vec<(PathBuf, u64, Selector)>,
}

impl Disks {
    pub(super) const fn new() -> Self {
        Disks {
            places: Vec::new(),
            backing: Vec::new(),
            open: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Takes a path apart, for later calls, which then look at no path.
    pub(super) fn remember(&mut self, path: &Path) -> Place {
        let place = self.place(path);
        if !self.places.iter().any(|(seen, _)| seen == path) {
            self.places.push((path.to_owned(), place.clone()));
        }
        place
    }

    /// What a path means.
    pub(super) fn place(&self, path: &Path) -> Place {
        let known = self.places.iter().find(|(seen, _)| seen == path);
        known.map_or_else(|| Place::of(path), |(_, place)| place.clone())
    }

    /// Opens a place that was not opened before. A disk with partitions stays open, so that another one of them can be asked for.
    ///
    /// # Errors
    /// As [`blockwright_disk::open`].
    pub(super) fn open(
        &mut self,
        place: &Place,
        mode: OpenMode,
    ) -> Result<SharedDevice, DeviceError> {
        let writable = |disk: &Disk| mode.read_only || !disk.device().geometry().read_only;
        let known = self
            .open
            .iter()
            .find(|(seen, disk)| *seen == place.file && writable(disk));
        let disk = match known {
            Some((_, disk)) => disk.clone(),
            None => Disk::open_with(&place.file, mode, allow_backing())?,
        };
        match &place.part {
            Some(part) => {
                self.keep(&place.file, &disk);
                self.part(&place.file, &disk, part)
            }
            None => Ok(disk.device().clone()),
        }
    }

    fn keep(&mut self, file: &Path, disk: &Disk) {
        if !self.open.iter().any(|(seen, _)| seen == file) {
            self.open.push((file.to_owned(), disk.clone()));
        }
    }

    /// The backing files that must be open before `image` is, and remembers what names them.
    pub(super) fn chain(&mut self, image: &Path) -> Vec<PathBuf> {
        let chain = container::chain(image, allow_backing());
        let paths = chain
            .iter()
            .filter_map(|(.., path)| path.clone().ok())
            .collect();
        self.backing.extend(chain);
        paths
    }

    /// The container of an open disk.
    pub(super) fn format_of(&self, file: &Path) -> container::Format {
        let found = self.open.iter().find(|(seen, _)| seen == file);
        found.map_or_else(|| container::detect_file(file), |(_, disk)| disk.format())
    }

    /// Where the partition of a place begins; 0 for a whole disk, and for what was not opened.
    pub(super) fn start_of(&self, place: &Place) -> u64 {
        let is = |(file, _, part): &&(PathBuf, u64, Selector)| {
            *file == place.file && Some(part) == place.part.as_ref()
        };
        self.parts.iter().find(is).map_or(0, |(_, start, _)| *start)
    }

    /// The partition of the disk in a file, or all of it. `devices` are those of open files.
    ///
    /// # Errors
    /// As opening containers and reading the table; [`DeviceErrorKind::InUse`] when a partition is asked for by its number and by its name: two
    /// volumes would be on it.
    pub(super) fn select(
        &mut self,
        file: &Path,
        part: Option<&Selector>,
        device: SharedDevice,
        devices: &[(Vec<PathBuf>, Device)],
    ) -> Result<SharedDevice, DeviceError> {
        let known = self.open.iter().find(|(seen, _)| seen == file);
        let disk = match known {
            Some((_, disk)) => disk.clone(),
            None => {
                let backing = &self.backing;
                let disk = Disk::on(file, device, &mut |image, name| {
                    open_backing(backing, devices, image, name)
                })?;
                self.keep(file, &disk);
                disk
            }
        };
        match part {
            Some(part) => self.part(file, &disk, part),
            None => Ok(disk.device().clone()),
        }
    }

    fn part(
        &mut self,
        file: &Path,
        disk: &Disk,
        part: &Selector,
    ) -> Result<SharedDevice, DeviceError> {
        let start = disk.find(part)?.start;
        let known = self
            .parts
            .iter()
            .find(|(seen, at, _)| seen == file && *at == start);
        match known {
            Some((_, _, other)) if other != part => {
                let holder = format!("this command, as :{other}: name it the same way twice");
                return Err(DeviceError {
                    op: "open",
                    offset: DevOffset(0),
                    bytes: 0,
                    kind: DeviceErrorKind::InUse {
                        holder: Some(holder),
                    },
                });
            }
            Some(_) => {}
            None => self.parts.push((file.to_owned(), start, part.clone())),
        }
        Ok(disk.part(part)?)
    }

    /// Lets go of all disks.
    pub(super) fn release(&mut self) {
        self.open.clear();
    }
}

/// What [`allow_backing`] says.
static ALLOW_BACKING: OnceLock<bool> = OnceLock::new();

/// Whether backing files may be anywhere.
pub fn allow_backing() -> bool {
    ALLOW_BACKING.get().copied().unwrap_or_default()
}

/// Notes whether backing files may be anywhere. Called once, before any command.
pub fn set_allow_backing(allow: bool) {
    let _ = ALLOW_BACKING.set(allow);
}

/// A backing file that was opened before the process was confined.
fn open_backing(
    backing: &[(PathBuf, Vec<u8>, Result<PathBuf, Error>)],
    devices: &[(Vec<PathBuf>, Device)],
    image: &Path,
    name: &[u8],
) -> Result<(PathBuf, SharedDevice), Error> {
    let missing = || {
        Error::NotFound(format!(
            "the backing file {:?} was not opened",
            String::from_utf8_lossy(name)
        ))
    };
    let named = backing
        .iter()
        .find(|(by, seen, _)| by == image && seen == name);
    let path = named.ok_or_else(missing)?.2.clone()?;
    let found = devices.iter().find(|(names, _)| names.contains(&path));
    let device = found.ok_or_else(missing)?.1.clone()?;
    Ok((path, device))
}
