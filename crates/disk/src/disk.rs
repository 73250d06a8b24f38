//! An open disk: the device in a container, its partition table, and its partitions as devices.

use crate::container::{self, Format, Opener};
use crate::{Error, Partition, Place, Result, Selector, Table};
use blockwright_device::{DevOffset, DeviceError, OffsetDevice, OpenMode, SharedDevice};
use std::path::Path;
use std::sync::Arc;

/// A disk: a device with partitions, or one volume.
#[derive(Clone)]
pub struct Disk {
    device: SharedDevice,
    format: Format,
}

impl Disk {
    /// Opens the disk in a file, on a block device, or behind an address, whichever container it is in. A partition that the path names is
    /// ignored. Backing files and external data files are opened in the image's folder, and only for reading: a disk whose data is in such a file cannot be
    /// written.
    ///
    /// # Errors
    /// As [`open_file`], and as [`container::open`].
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self> {
        Self::open_with(path, mode, false)
    }

    /// As [`Disk::open`]; `allow_backing` opens backing files and external data files anywhere, and an external data file for writing.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn open_with(path: impl AsRef<Path>, mode: OpenMode, allow_backing: bool) -> Result<Self> {
        let file = Place::of(path).file;
        let device = open_file(&file, mode)?;
        Self::on(
            &file,
            device,
            &mut container::open_others(mode, allow_backing),
        )
    }

    /// The disk on a device that was opened from `file`; `opener` opens the other files that it names.
    ///
    /// # Errors
    /// As [`container::open`].
    pub fn on(file: &Path, device: SharedDevice, opener: &mut Opener<'_>) -> Result<Self> {
        let (format, device) = container::open(file, device, opener)?;
        Ok(Disk { device, format })
    }

    /// A disk that is not in a container, or whose container is open already.
    #[must_use]
    pub fn of(device: SharedDevice) -> Self {
        let format = Format::Raw;
        Disk { device, format }
    }

    /// A disk whose container is open, of this format.
    pub(crate) fn in_format(device: SharedDevice, format: Format) -> Self {
        Disk { device, format }
    }

    /// The container.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
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

/// Opens a file, a block device, the export of an NBD server (`nbd://…`), or an image in chunks (`chunks:…`), whatever is in it.
///
/// # Errors
/// As [`blockwright_device::open`]; as opening an index.
pub fn open_file(file: &Path, mode: OpenMode) -> std::result::Result<SharedDevice, DeviceError> {
    #[cfg(feature = "chunks")]
    if let Some(opened) = blockwright_chunks::open(file, mode) {
        return opened;
    }
    #[cfg(not(feature = "chunks"))]
    if let Some(refused) = without_chunks(file) {
        return Err(refused);
    }
    blockwright_device::open(file, mode)
}

/// The error of a build that cannot read images in chunks, if an address of one is given.
#[cfg(any(test, not(feature = "chunks")))]
fn without_chunks(file: &Path) -> Option<DeviceError> {
    let is_address = file.as_os_str().as_encoded_bytes().starts_with(b"chunks:");
    if !is_address || file.exists() {
        return None;
    }
    Some(DeviceError {
        op: "open",
        offset: DevOffset(0),
        bytes: 0,
        kind: blockwright_device::DeviceErrorKind::Refused {
            why: "this build cannot read images in chunks: it needs the feature `chunks`"
                .to_owned(),
        },
    })
}

/// Opens what a user calls an image, as [`open_file`] does, and a partition of one: `disk.img:p2`, `disk.img:p=root`.
///
/// # Errors
/// As [`blockwright_device::open`]; [`blockwright_device::DeviceErrorKind::Refused`] and
/// [`blockwright_device::DeviceErrorKind::BadDisk`] as [`Disk::part`].
pub fn open(
    path: impl AsRef<Path>,
    mode: OpenMode,
) -> std::result::Result<SharedDevice, DeviceError> {
    open_with(path, mode, false)
}

/// As [`open`]; `allow_backing` as for [`Disk::open_with`].
///
/// # Errors
/// As [`open`].
pub fn open_with(
    path: impl AsRef<Path>,
    mode: OpenMode,
    allow_backing: bool,
) -> std::result::Result<SharedDevice, DeviceError> {
    let place = Place::of(path);
    let disk = Disk::open_with(&place.file, mode, allow_backing)?;
    Ok(disk.select(place.part.as_ref())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_chunks_names_the_feature() {
        for address in [
            "chunks:d.caibx",
            "chunks:/d.caibx?store=/s",
            "chunks:https://h/d.caibx?store=https://h/s",
        ] {
            let error = without_chunks(Path::new(address)).map(|e| e.to_string());
            assert!(
                error.is_some_and(|e| e.contains("feature `chunks`")),
                "{address}"
            );
        }
        for other in ["d.caibx", "./chunks:d.caibx", "/chunks:d", "nbd://chunks:/"] {
            assert!(without_chunks(Path::new(other)).is_none(), "{other}");
        }
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("chunks:d");
        std::fs::write(&name, []).unwrap();
        assert!(without_chunks(&name).is_none());
    }
}
