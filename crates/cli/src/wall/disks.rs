//! Disks in containers, and disks of which partitions were asked for.
//!
//! A place is taken apart before the process is confined, because a file of the whole name comes first. The names of backing files and
//! external data files are read before, too, from fixed places of an image's first 64 KiB, because the files must be open. Everything else of containers, and tables of partitions, is
//! read afterwards.

use super::Device;
use crate::devices::note_input;
use blockwright_device::{DevOffset, DeviceError, DeviceErrorKind, Held, OpenMode, SharedDevice};
use blockwright_disk::container::{Named, Other};
use blockwright_disk::{Disk, Error, Place, Selector, container, overlay};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What was asked for, and of what.
pub(super) struct Disks {
    places: Vec<(PathBuf, Place)>,
    open: Vec<(PathBuf, Disk)>,
    /// Backing files and external data files.
    others: Vec<Named>,
    /// The partitions that are open: of which file, where they begin, and how they were asked for.
    parts: Vec<(PathBuf, u64, Selector)>,
    over: Option<Over>,
}

/// The overlay, and the one image that it lies over.
struct Over {
    file: PathBuf,
    /// The image's name as the overlay holds it, found out while paths could be looked at.
    name: Vec<u8>,
    held: Option<Held>,
    /// The overlay's own device, until the image is opened.
    device: Option<Device>,
}

impl Disks {
    pub(super) const fn new() -> Self {
        Disks {
            places: Vec::new(),
            others: Vec::new(),
            open: Vec::new(),
            parts: Vec::new(),
            over: None,
        }
    }

    /// Notes that the overlay lies over the image in this file.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Refused`] when it lies over another one: a command with an overlay has one image. As finding out the image's name.
    pub(super) fn claim_overlay(&mut self, file: &Path) -> Result<(), DeviceError> {
        match &self.over {
            Some(over) if over.file != file => {
                let why = format!(
                    "--overlay goes with one image, and {} is named, too",
                    over.file.display()
                );
                Err(refused(why))
            }
            Some(_) => Ok(()),
            None => {
                self.over = Some(Over {
                    file: file.to_owned(),
                    name: overlay::base_name(file)?,
                    held: None,
                    device: None,
                });
                Ok(())
            }
        }
    }

    /// Opens the overlay's file for later.
    ///
    /// # Errors
    /// As [`overlay::hold`].
    pub(super) fn hold_overlay(&mut self, path: &Path, mode: OpenMode) -> Result<(), DeviceError> {
        let held = overlay::hold(path, mode)?;
        note_input(path);
        if let Some(over) = &mut self.over {
            over.held = Some(held);
        }
        Ok(())
    }

    /// Starts the threads of the overlay that was opened, if one was.
    pub(super) fn start_overlay(&mut self) {
        if let Some(over) = &mut self.over
            && let Some(held) = over.held.take()
        {
            over.device = Some(held.start());
        }
    }

    /// The disk with the changes of the overlay that was opened for it, if one was.
    fn over(&mut self, file: &Path, disk: Disk) -> Result<Disk, DeviceError> {
        let Some(over) = self.over.as_mut().filter(|over| over.file == file) else {
            return Ok(disk);
        };
        match over.device.take() {
            Some(device) => Ok(disk.with_overlay(&over.name, device?)?),
            None => Ok(disk),
        }
    }

    /// Takes a path apart, for later calls, which then look at no path.
    pub(super) fn remember(&mut self, path: &Path) -> Place {
        let place = self.place(path);
        note_input(&place.file);
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
        note_input(&place.file);
        for other in container::chain(&place.file, mode.read_only, allow_backing()) {
            if let Ok(path) = other.path {
                note_input(&path);
            }
        }
        let writable = |disk: &Disk| mode.read_only || !disk.device().geometry().read_only;
        let known = self
            .open
            .iter()
            .find(|(seen, disk)| *seen == place.file && writable(disk));
        let disk = match known {
            Some((_, disk)) => disk.clone(),
            None => match crate::devices::overlay() {
                Some(path) => {
                    self.claim_overlay(&place.file)?;
                    let disk = Disk::open_over(&place.file, mode, allow_backing(), path)?;
                    note_input(path);
                    // A second one would be refused the overlay's lock.
                    self.keep(&place.file, &disk);
                    disk
                }
                None => Disk::open_with(&place.file, mode, allow_backing())?,
            },
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

    /// The backing files and data files that must be open before `image` is, and whether each is only read. `read_only` says that the image is. Remembers
    /// what names them.
    pub(super) fn chain(&mut self, image: &Path, read_only: bool) -> Vec<(PathBuf, bool)> {
        let chain = container::chain(image, read_only, allow_backing());
        let paths = chain
            .iter()
            .filter_map(|other| Some((other.path.clone().ok()?, other.read_only)))
            .inspect(|(path, _)| note_input(path))
            .collect();
        self.others.extend(chain);
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
                let others = &self.others;
                let disk = Disk::on(file, device, &mut |other| {
                    open_other(others, devices, other)
                })?;
                let disk = self.over(file, disk)?;
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

fn refused(why: String) -> DeviceError {
    DeviceError {
        op: "open",
        offset: DevOffset(0),
        bytes: 0,
        kind: DeviceErrorKind::Refused { why },
    }
}

/// What [`allow_backing`] says.
static ALLOW_BACKING: OnceLock<bool> = OnceLock::new();

/// Whether backing files and external data files may be anywhere, and data files may be written.
pub fn allow_backing() -> bool {
    ALLOW_BACKING.get().copied().unwrap_or_default()
}

/// Notes the answer of [`allow_backing`]. Called once, before any command.
pub fn set_allow_backing(allow: bool) {
    let _ = ALLOW_BACKING.set(allow);
}

/// A backing file or data file that was opened before the process was confined.
fn open_other(
    others: &[Named],
    devices: &[(Vec<PathBuf>, Device)],
    other: &Other<'_>,
) -> Result<(PathBuf, SharedDevice), Error> {
    let missing = || {
        Error::NotFound(format!(
            "the file {:?}, which the image names, was not opened",
            String::from_utf8_lossy(other.name)
        ))
    };
    let named = others.iter().find(|named| {
        named.image == other.image && named.name == other.name && named.role == other.role
    });
    let path = named.ok_or_else(missing)?.path.clone()?;
    let found = devices.iter().find(|(names, _)| names.contains(&path));
    let device = found.ok_or_else(missing)?.1.clone()?;
    Ok((path, device))
}
