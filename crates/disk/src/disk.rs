//! An open disk.

use crate::{Error, Partition, Place, Result, Selector, Table};
use blockwright_device::{DevOffset, DeviceError, OffsetDevice, OpenMode, SharedDevice};
use std::path::Path;
use std::sync::Arc;

/// A disk: a device with partitions, or one volume.
#[derive(Clone)]
pub struct Disk {
    device: SharedDevice,
}

impl Disk {
    /// Opens the disk in a file, on a block device, or behind an address. A partition that the path names is ignored.
    ///
    /// # Errors
    /// As [`blockwright_device::open`].
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self> {
        let place = Place::of(path);
        Self::on(blockwright_device::open(&place.file, mode)?)
    }

    /// The disk on a device.
    ///
    /// # Errors
    /// As reading the device.
    pub fn on(device: SharedDevice) -> Result<Self> {
        Ok(Disk { device })
    }

    /// The disk's bytes.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Reads the table of partitions; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Corrupt`] when there is one, and no copy of it can be used.
    pub fn table(&self) -> Result<Option<Table>> {
        Table::read(&self.device)
    }

    /// Finds a partition that can be used.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] when the partition does not lie on the disk, or overlaps another one; as [`Disk::table`].
    pub fn find(&self, selector: &Selector) -> Result<Partition> {
        let Some(table) = self.table()? else {
            return Err(Error::NotFound(
                "there is no table of partitions (neither GPT nor MBR)".to_owned(),
            ));
        };
        let partition = table.find(selector)?;
        match &partition.problem {
            Some(problem) => Err(Error::Corrupt(format!(
                "partition {}: {problem}",
                partition.number
            ))),
            None => Ok(partition.clone()),
        }
    }

    /// A partition as a device.
    ///
    /// # Errors
    /// As [`Disk::find`].
    pub fn part(&self, selector: &Selector) -> Result<SharedDevice> {
        let partition = self.find(selector)?;
        let start = DevOffset(partition.start);
        let window = OffsetDevice::new(Arc::clone(&self.device), start, Some(partition.bytes))?;
        Ok(Arc::new(window))
    }

    /// The partition that is asked for, or the whole disk.
    ///
    /// # Errors
    /// As [`Disk::part`].
    pub fn select(&self, selector: Option<&Selector>) -> Result<SharedDevice> {
        match selector {
            Some(selector) => self.part(selector),
            None => Ok(Arc::clone(&self.device)),
        }
    }
}

/// Opens what a user calls an image, as [`blockwright_device::open`] does, and a partition of one: `disk.img:p2`, `disk.img:p=root`.
///
/// # Errors
/// As [`blockwright_device::open`]; [`blockwright_device::DeviceErrorKind::Refused`] and
/// [`blockwright_device::DeviceErrorKind::BadDisk`] as [`Disk::part`].
pub fn open(
    path: impl AsRef<Path>,
    mode: OpenMode,
) -> std::result::Result<SharedDevice, DeviceError> {
    let place = Place::of(path);
    let device = blockwright_device::open(&place.file, mode)?;
    Ok(Disk::on(device)?.select(place.part.as_ref())?)
}
