//! VMDK in one file: sparse ("monolithicSparse") and compressed for streaming ("streamOptimized"). Only read.
//!
//! Source of the format: "Virtual Disk Format 5.0", VMware's technical note. Numbers are little-endian.

use crate::bytes::{le16, le32, le64};
use crate::file::{file_bytes, read_any};
use crate::mapped::{Map, Mapped, Piece};
use crate::{Error, Result};
use blockwright_device::SharedDevice;
use std::io::Read;
use std::sync::Arc;

/// How a sparse file begins.
pub(crate) const MAGIC: [u8; 4] = *b"KDMV";
/// How a file begins that only describes others.
pub(crate) const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile";
const SECTOR: u64 = 512;
/// The grain directory is behind the data, and the header's last copy says where.
const AT_END: u64 = u64::MAX;
const ZERO_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
/// The most bytes of grain tables that are read.
const TABLES_BYTES_MAX: u64 = 64 << 20;
/// The largest grain.
const GRAIN_SECTORS_MAX: u64 = 16 << 10;

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("VMDK: {what}"))
}

struct Grains {
    /// Where each grain is, in sectors; 0: nowhere.
    grains: Vec<u32>,
    grain: u64,
    zero_grains: bool,
    compressed: bool,
}

impl Map for Grains {
    fn piece(&self, offset: u64, end: u64) -> Result<(Piece, u64)> {
        let within = offset % self.grain;
        let bytes = (self.grain - within).min(end - offset);
        let place = self.grains.get((offset / self.grain) as usize);
        Ok(match place.map_or(0, |&place| place) {
            0 => (Piece::Zero, bytes),
            1 if self.zero_grains => (Piece::Zero, bytes),
            place if self.compressed => {
                let key = u64::from(place) * SECTOR;
                let within = within as usize;
                (Piece::Packed { key, within }, bytes)
            }
            place => (Piece::Data(u64::from(place) * SECTOR + within), bytes),
        })
    }

    fn unpack(&self, file: &SharedDevice, key: u64) -> Result<Vec<u8>> {
        let marker = read_any(file, key, 12)?;
        let packed_bytes = u64::from(le32(&marker, 8));
        // Deflate does not make data much larger.
        if packed_bytes == 0 || packed_bytes > 2 * self.grain + 1024 {
            return Err(corrupt(format_args!(
                "a compressed grain of {packed_bytes} bytes at byte {key}"
            )));
        }
        let packed = read_any(file, key + 12, packed_bytes as usize)?;
        let mut out = Vec::with_capacity(self.grain as usize);
        let read = flate2::read::ZlibDecoder::new(&packed[..])
            .take(self.grain)
            .read_to_end(&mut out);
        read.map_err(|e| {
            corrupt(format_args!(
                "the grain at byte {key} cannot be unpacked: {e}"
            ))
        })?;
        // The last grain of a disk may be short.
        out.resize(self.grain as usize, 0);
        Ok(out)
    }
}

/// The disk in a VMDK.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Unsupported`], [`Error::Device`].
pub(crate) fn open(file: SharedDevice) -> Result<SharedDevice> {
    let end = file_bytes(&file)?;
    let mut header = read_any(&file, 0, SECTOR as usize)?;
    if header.starts_with(DESCRIPTOR) {
        return Err(Error::Unsupported(
            "VMDK: it describes a disk in other files; `qemu-img convert` makes one file of it"
                .to_owned(),
        ));
    }
    let version = le32(&header, 4);
    if !(1..=3).contains(&version) {
        return Err(Error::Unsupported(format!("VMDK: version {version}")));
    }
    let (descriptor_at, descriptor_sectors) = (le64(&header, 28), le64(&header, 36));
    if descriptor_at > 0 && descriptor_sectors > 0 {
        let at = descriptor_at.checked_mul(SECTOR).filter(|&at| at < end);
        let at = at.ok_or_else(|| corrupt("its descriptor does not lie in the file"))?;
        let text = read_any(&file, at, (descriptor_sectors.min(40) * SECTOR) as usize)?;
        let has_parent = text.windows(18).any(|part| part == b"parentFileNameHint");
        if has_parent {
            return Err(Error::Unsupported(
                "VMDK: it needs a parent disk".to_owned(),
            ));
        }
    }
    if le64(&header, 56) == AT_END {
        // A marker, the header's copy, and the marker of the end.
        let at = end
            .checked_sub(2 * SECTOR)
            .filter(|at| at.is_multiple_of(SECTOR));
        let at = at.ok_or_else(|| corrupt("it has no footer"))?;
        header = read_any(&file, at, SECTOR as usize)?;
        if header[..4] != MAGIC {
            return Err(corrupt("it has no footer: it is not complete"));
        }
    }
    let flags = le32(&header, 8);
    let (sectors, grain, per_table) = (le64(&header, 12), le64(&header, 20), le32(&header, 44));
    let directory_at = le64(&header, 56);
    let compressed = flags & COMPRESSED != 0;
    if compressed && le16(&header, 77) != 1 {
        return Err(Error::Unsupported(format!(
            "VMDK: compression {}",
            le16(&header, 77)
        )));
    }
    let is_sane = grain.is_power_of_two() && (8..=GRAIN_SECTORS_MAX).contains(&grain);
    if !is_sane || per_table == 0 || per_table > 1 << 16 || sectors > 1 << 40 {
        return Err(corrupt(format_args!(
            "{sectors} sectors in grains of {grain}, {per_table} of them in a table"
        )));
    }
    let grains = sectors.div_ceil(grain);
    let tables = grains.div_ceil(u64::from(per_table));
    let table_bytes = u64::from(per_table) * 4;
    let directory = directory_at
        .checked_mul(SECTOR)
        .filter(|at| at.checked_add(tables * 4).is_some_and(|stop| stop <= end));
    let Some(directory) = directory.filter(|_| tables * table_bytes <= TABLES_BYTES_MAX) else {
        return Err(corrupt(format_args!(
            "{tables} grain tables, and their directory at sector {directory_at}"
        )));
    };
    let directory = read_any(&file, directory, (tables * 4) as usize)?;
    let mut found = Vec::with_capacity((tables * u64::from(per_table)) as usize);
    for n in 0..tables as usize {
        let place = u64::from(le32(&directory, n * 4)) * SECTOR;
        if place == 0 {
            found.resize(found.len() + per_table as usize, 0);
            continue;
        }
        if place + table_bytes > end {
            return Err(corrupt(format_args!(
                "grain table {n} is said to be at byte {place}"
            )));
        }
        let table = read_any(&file, place, table_bytes as usize)?;
        found.extend((0..per_table as usize).map(|n| le32(&table, n * 4)));
    }
    let map = Grains {
        grains: found,
        grain: grain * SECTOR,
        zero_grains: flags & ZERO_GRAINS != 0,
        compressed,
    };
    Ok(Arc::new(Mapped::new(file, sectors * SECTOR, map)?))
}
