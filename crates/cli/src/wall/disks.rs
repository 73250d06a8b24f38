//! Disks of which partitions were asked for.
//!
//! A place is taken apart before the process is confined, because a file of the whole name comes first. Tables of partitions are read afterwards.

use blockwright_device::{DevOffset, DeviceError, DeviceErrorKind, OpenMode, SharedDevice};
use blockwright_disk::{Disk, Place, Selector};
use std::path::{Path, PathBuf};

/// What was asked for, and of what.
pub(super) struct Disks {
    places: Vec<(PathBuf, Place)>,
    open: Vec<(PathBuf, Disk)>,
    /// The partitions that are open: of which file, where they begin, and how they were asked for.
    parts: Vec<(PathBuf, u64, Selector)>,
}

impl Disks {
    pub(super) const fn new() -> Self {
        Disks {
            places: Vec::new(),
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
        let device = match known {
            Some((_, disk)) => disk.device().clone(),
            None => blockwright_device::open(&place.file, mode)?,
        };
        match &place.part {
            Some(part) => self.select(&place.file, Some(part), device),
            None => Ok(Disk::on(device)?.device().clone()),
        }
    }

    /// Where the partition of a place begins; 0 for a whole disk, and for what was not opened.
    pub(super) fn start_of(&self, place: &Place) -> u64 {
        let is = |(file, _, part): &&(PathBuf, u64, Selector)| {
            *file == place.file && Some(part) == place.part.as_ref()
        };
        self.parts.iter().find(is).map_or(0, |(_, start, _)| *start)
    }

    /// The partition of the disk in a file, or all of it.
    ///
    /// # Errors
    /// As reading the table; [`DeviceErrorKind::InUse`] when a partition is asked for by its number and by its name: two volumes would be on it.
    pub(super) fn select(
        &mut self,
        file: &Path,
        part: Option<&Selector>,
        device: SharedDevice,
    ) -> Result<SharedDevice, DeviceError> {
        let disk = match self.open.iter().find(|(seen, _)| seen == file) {
            Some((_, disk)) => disk.clone(),
            None => {
                let disk = Disk::on(device)?;
                self.open.push((file.to_owned(), disk.clone()));
                disk
            }
        };
        if let Some(part) = part {
            let start = disk.find(part)?.start;
            let known = self
                .parts
                .iter()
                .find(|(seen, at, _)| seen == file && *at == start);
            match known {
                Some((_, _, other)) if other != part => {
                    return Err(DeviceError {
                        op: "open",
                        offset: DevOffset(0),
                        bytes: 0,
                        kind: DeviceErrorKind::InUse {
                            holder: Some(format!(
                                "this command, as :{other}: name it the same way twice"
                            )),
                        },
                    });
                }
                Some(_) => {}
                None => self.parts.push((file.to_owned(), start, part.clone())),
            }
        }
        Ok(disk.select(part)?)
    }

    /// Lets go of all disks.
    pub(super) fn release(&mut self) {
        self.open.clear();
    }
}
