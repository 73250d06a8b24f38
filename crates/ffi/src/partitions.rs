//! The partitions of a disk as data.

use crate::image::Image;
use blockwright::{Error, ErrorKind, Result};
use blockwright_device::{DeviceError, OpenMode};
use blockwright_disk::{Disk, Partition, Place, Scheme, Selector, probe, table};
use std::path::Path;

/// The table of partitions of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableData {
    /// The kind of table; `None` for a disk without one.
    pub scheme: Option<Scheme>,
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Bytes of the sectors that the table counts in; 0 without one.
    pub sector_bytes: u32,
    /// The disk's id: a UUID (GPT), eight hexadecimal digits (MBR), or nothing.
    pub id: String,
    /// The partitions, by number.
    pub partitions: Vec<PartitionData>,
    /// Faults of the table that do not prevent its use.
    pub remarks: Vec<String>,
}

/// A partition, and what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionData {
    /// Its number, from 1. Logical partitions of an MBR begin at 5.
    pub number: u32,
    /// Its first byte on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its name (GPT), or nothing.
    pub name: String,
    /// Its unique id as text (GPT).
    pub uuid: Option<String>,
    /// Its type: a GUID, or a byte as `0x83`.
    pub kind: String,
    /// The type's name, where it is known.
    pub kind_name: Option<&'static str>,
    /// The format of what it holds, as blkid names it, where it is known.
    pub format: Option<&'static str>,
    /// The label of what it holds, or nothing.
    pub label: String,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// The whole disk that holds an image's partition, and which partition that is.
pub(crate) fn disk(image: &Image, mode: OpenMode) -> Result<(Disk, Option<Selector>)> {
    let place = Place::of(&image.path);
    let disk = match &image.overlay {
        Some(overlay) => Disk::open_over(&place.file, mode, image.allow_backing, overlay),
        None => Disk::open_with(&place.file, mode, image.allow_backing),
    };
    let disk = disk.map_err(|e| of_disk(e).at(&image.path))?;
    Ok((disk, place.part))
}

fn of_disk(e: blockwright_disk::Error) -> Error {
    Error::from(DeviceError::from(e))
}

/// Reads the table of partitions of a disk: an image, a block device or an NBD export. `allow_backing` is [`Image::allow_backing`].
///
/// # Errors
/// As opening; `Corrupt` for a table of which no copy can be used; `Invalid` for a path that names a partition.
pub fn partitions(path: &Path, allow_backing: bool) -> Result<TableData> {
    let image = Image {
        allow_backing,
        ..Image::new(path)
    };
    let (disk, part) = disk(&image, OpenMode::read_only())?;
    if part.is_some() {
        let what = "this is a partition; its disk has the table";
        return Err(Error::new(ErrorKind::Invalid, what).at(path));
    }
    read(&disk).map_err(|e| of_disk(e).at(path))
}

fn read(disk: &Disk) -> blockwright_disk::Result<TableData> {
    let disk_bytes = disk.device().geometry().bytes;
    let Some(table) = disk.table()? else {
        return Ok(TableData {
            scheme: None,
            disk_bytes,
            sector_bytes: 0,
            id: String::new(),
            partitions: Vec::new(),
            remarks: Vec::new(),
        });
    };
    let partitions = table.partitions.iter().map(|p| describe(disk, p));
    Ok(TableData {
        scheme: Some(table.scheme),
        disk_bytes,
        sector_bytes: table.sector_bytes,
        id: table.id.clone(),
        partitions: partitions.collect::<blockwright_disk::Result<_>>()?,
        remarks: table.remarks.clone(),
    })
}

fn describe(disk: &Disk, p: &Partition) -> blockwright_disk::Result<PartitionData> {
    let contents = match p.problem {
        Some(_) => None,
        None => probe::contents(&disk.part(&Selector::Number(p.number))?)?,
    };
    let (kind, kind_name) = table::type_name(p.kind);
    Ok(PartitionData {
        number: p.number,
        start: p.start,
        bytes: p.bytes,
        name: p.name.clone(),
        uuid: p.uuid.as_ref().map(table::guid_text),
        kind,
        kind_name,
        format: contents.as_ref().map(|found| found.format),
        label: contents.map_or_else(String::new, |found| found.label),
        problem: p.problem.clone(),
    })
}
