//! VHD: fixed (the disk and a footer) and dynamic (a table of blocks, of which some are not allocated).
//!
//! Source of the format: "Virtual Hard Disk Image Format Specification", version 1.0, Microsoft 2006. Numbers are big-endian.

use crate::bytes::{be32, be64};
use crate::file::{file_bytes, read_any};
use crate::mapped::{Map, Mapped, Piece};
use crate::{Error, Result};
use blockwright_device::{DevOffset, DeviceExt, OffsetDevice, SharedDevice};
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

/// How a footer begins. A dynamic file begins with a copy of it.
pub(crate) const COOKIE: &[u8; 8] = b"conectix";
const FOOTER_BYTES: usize = 512;
const UNUSED: u32 = u32::MAX;
/// The most blocks that are read: 2 TiB, the format's limit, in the smallest blocks that other programs make.
const BLOCKS_MAX: u32 = 4 << 20;

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("VHD: {what}"))
}

/// The complement of the sum of all bytes, with the sum itself taken as zeroes.
fn sum(bytes: &[u8], at: usize) -> u32 {
    let add = |sum: u32, (n, byte): (usize, &u8)| match (at..at + 4).contains(&n) {
        true => sum,
        false => sum.wrapping_add(u32::from(*byte)),
    };
    !bytes.iter().enumerate().fold(0, add)
}

fn is_footer(bytes: &[u8]) -> bool {
    bytes.len() == FOOTER_BYTES && bytes.starts_with(COOKIE) && be32(bytes, 64) == sum(bytes, 64)
}

/// Whether the file is a fixed VHD: a disk with a footer behind it.
pub(crate) fn is_fixed(file: &SharedDevice) -> Result<bool> {
    let Some(disk) = file_bytes(file)?.checked_sub(FOOTER_BYTES as u64) else {
        return Ok(false);
    };
    let footer = read_any(file, disk, FOOTER_BYTES)?;
    Ok(is_footer(&footer) && be32(&footer, 60) == 2 && be64(&footer, 48) <= disk)
}

struct Blocks {
    /// Where each block's bitmap is, in sectors.
    table: Vec<u32>,
    block: u64,
    bitmap_sectors: u64,
}

impl Map for Blocks {
    fn piece(&self, offset: u64, end: u64) -> Result<(Piece, u64)> {
        let index = offset / self.block;
        let within = offset % self.block;
        let bytes = (self.block - within).min(end - offset);
        Ok(match self.table.get(index as usize) {
            Some(&place) if place != UNUSED => {
                let at = (u64::from(place) + self.bitmap_sectors) * 512 + within;
                (Piece::Data(at), bytes)
            }
            _ => (Piece::Zero, bytes),
        })
    }
}

/// The disk in a VHD.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Unsupported`], [`Error::Device`].
pub(crate) fn open(file: SharedDevice) -> Result<SharedDevice> {
    let end = file_bytes(&file)?;
    let last = end.checked_sub(FOOTER_BYTES as u64);
    let last = last.ok_or_else(|| corrupt("it is shorter than its footer"))?;
    let mut footer = read_any(&file, last, FOOTER_BYTES)?;
    if !is_footer(&footer) {
        // The copy at the beginning of a dynamic disk.
        footer = read_any(&file, 0, FOOTER_BYTES)?;
        if !is_footer(&footer) {
            return Err(corrupt("neither footer has the right checksum"));
        }
    }
    let bytes = be64(&footer, 48);
    match be32(&footer, 60) {
        2 if bytes <= last => {
            let window = OffsetDevice::new(file, DevOffset(0), Some(bytes))?;
            return Ok(Arc::new(window));
        }
        2 => {
            return Err(corrupt(format_args!(
                "a disk of {bytes} bytes in a file of {end}"
            )));
        }
        3 => {}
        4 => {
            return Err(Error::Unsupported(
                "VHD: a differencing disk, which needs another file".to_owned(),
            ));
        }
        kind => return Err(Error::Unsupported(format!("VHD: a disk of kind {kind}"))),
    }
    let at = be64(&footer, 16);
    let header = read_any(&file, at.min(end), 1024)?;
    if !header.starts_with(b"cxsparse") || be32(&header, 36) != sum(&header, 36) {
        return Err(corrupt("the header of a dynamic disk is damaged"));
    }
    let (table_at, entries, block) = (be64(&header, 16), be32(&header, 28), be32(&header, 32));
    let needed = bytes.div_ceil(u64::from(block.max(1)));
    let table_bytes = u64::from(entries) * 4;
    let in_file = table_at
        .checked_add(table_bytes)
        .is_some_and(|to| to <= end);
    if !block.is_power_of_two()
        || block < 512
        || entries > BLOCKS_MAX
        || needed > u64::from(entries)
        || !in_file
    {
        return Err(corrupt(format_args!(
            "a table of {entries} blocks of {block} bytes at byte {table_at}, for a disk of {bytes} bytes in a file of {end}"
        )));
    }
    let raw = read_any(&file, table_at, table_bytes as usize)?;
    let map = Blocks {
        table: (0..entries as usize).map(|n| be32(&raw, n * 4)).collect(),
        block: u64::from(block),
        bitmap_sectors: (u64::from(block) / 512).div_ceil(8).div_ceil(512),
    };
    Ok(Arc::new(Mapped::new(file, bytes, map)?))
}

/// Bytes of the blocks of disks that are made.
const BLOCK: u64 = 2 << 20;
/// Where the table of such a disk is: behind the copy of the footer and the header.
const TABLE_AT: u64 = 1536;

/// Cylinders, heads and sectors that a disk is shown with: the specification's appendix, "CHS calculation".
fn geometry(sectors: u64) -> (u16, u8, u8) {
    let sectors = sectors.min(65535 * 16 * 255);
    let (mut heads, mut per_track, mut tracks);
    if sectors >= 65535 * 16 * 63 {
        (per_track, heads) = (255, 16);
        tracks = sectors / per_track;
    } else {
        per_track = 17;
        tracks = sectors / per_track;
        heads = tracks.div_ceil(1024).max(4);
        if tracks >= heads * 1024 || heads > 16 {
            (per_track, heads) = (31, 16);
            tracks = sectors / per_track;
        }
        if tracks >= heads * 1024 {
            (per_track, heads) = (63, 16);
            tracks = sectors / per_track;
        }
    }
    ((tracks / heads) as u16, heads as u8, per_track as u8)
}

/// Bytes of the largest disk that a VHD can have.
const DISK_MAX: u64 = 2040 << 30;

/// Whether a disk can be made in this format.
///
/// # Errors
/// [`Error::Unsupported`] for disks above 2040 GiB.
pub(crate) fn check_size(bytes: u64) -> Result<()> {
    match bytes <= DISK_MAX {
        true => Ok(()),
        false => Err(Error::Unsupported(format!(
            "a VHD has at most 2040 GiB; the disk has {bytes} bytes"
        ))),
    }
}

/// What stands behind the disk in a fixed VHD.
pub(crate) fn fixed_footer(bytes: u64) -> [u8; FOOTER_BYTES] {
    footer(bytes, 2, u64::MAX)
}

/// A footer. The id follows from the disk's size, so that the same disk gives the same file. `header_at` is where the header of a dynamic disk is.
fn footer(bytes: u64, kind: u32, header_at: u64) -> [u8; FOOTER_BYTES] {
    let mut footer = [0u8; FOOTER_BYTES];
    footer[..8].copy_from_slice(COOKIE);
    footer[8..12].copy_from_slice(&2u32.to_be_bytes());
    footer[12..16].copy_from_slice(&0x1_0000u32.to_be_bytes());
    footer[16..24].copy_from_slice(&header_at.to_be_bytes());
    // Programs that go by the size, and not by cylinders, heads and sectors, know it by this name of the creator.
    footer[28..32].copy_from_slice(b"win ");
    footer[32..36].copy_from_slice(&0x1_0000u32.to_be_bytes());
    footer[36..40].copy_from_slice(b"Wi2k");
    footer[40..48].copy_from_slice(&bytes.to_be_bytes());
    footer[48..56].copy_from_slice(&bytes.to_be_bytes());
    let (cylinders, heads, per_track) = geometry(bytes / 512);
    footer[56..58].copy_from_slice(&cylinders.to_be_bytes());
    footer[58] = heads;
    footer[59] = per_track;
    footer[60..64].copy_from_slice(&kind.to_be_bytes());
    footer[68..76].copy_from_slice(b"blockwri");
    footer[76..84].copy_from_slice(&bytes.to_be_bytes());
    let own = sum(&footer, 64);
    footer[64..68].copy_from_slice(&own.to_be_bytes());
    footer
}

/// Writes the disk as a dynamic VHD; [`check_size`] was asked. `progress` gets the position in bytes of the disk.
///
/// # Errors
/// The disk's and the output's.
pub(crate) fn write(
    disk: &SharedDevice,
    out: &mut (impl Write + Seek),
    progress: &dyn Fn(u64),
) -> std::io::Result<()> {
    let bytes = disk.geometry().bytes;
    let blocks = bytes.div_ceil(BLOCK);
    let footer = footer(bytes, 3, 512);
    let mut header = [0u8; 1024];
    header[..8].copy_from_slice(b"cxsparse");
    header[8..16].fill(0xFF);
    header[16..24].copy_from_slice(&TABLE_AT.to_be_bytes());
    header[24..28].copy_from_slice(&0x1_0000u32.to_be_bytes());
    header[28..32].copy_from_slice(&(blocks as u32).to_be_bytes());
    header[32..36].copy_from_slice(&(BLOCK as u32).to_be_bytes());
    let own = sum(&header, 36);
    header[36..40].copy_from_slice(&own.to_be_bytes());
    let mut table = vec![UNUSED; blocks as usize];
    let mut sector = (TABLE_AT + blocks * 4).div_ceil(512);
    out.seek(SeekFrom::Start(sector * 512))?;
    for (index, place) in (0..).zip(&mut table) {
        let at = index * BLOCK;
        let len = BLOCK.min(bytes - at);
        progress(at);
        if disk.next_data(DevOffset(at)).0 >= at + len {
            continue;
        }
        let found = disk
            .read_buf(DevOffset(at), len as usize)
            .map_err(std::io::Error::other)?;
        if found.iter().all(|b| *b == 0) {
            continue;
        }
        *place = sector as u32;
        // All sectors of the block are there: its bitmap is one sector of ones.
        out.write_all(&[0xFF; 512])?;
        out.write_all(&found)?;
        out.write_all(&vec![0; (BLOCK - len) as usize])?;
        sector += 1 + BLOCK / 512;
    }
    progress(bytes);
    out.write_all(&footer)?;
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&footer)?;
    out.write_all(&header)?;
    let table: Vec<u8> = table.iter().flat_map(|place| place.to_be_bytes()).collect();
    out.write_all(&table)
}
