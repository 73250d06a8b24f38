//! Writing MBRs and the records of logical partitions. Source of the format: what fdisk(8) and sfdisk(8) make and read.
//!
//! Crash order: each change ends with the write of one sector, and what that sector leads to was written and flushed before. The entry of the extended
//! partition, and the lengths of links, may be larger than what is in them; so they grow first.

use super::change::{ALIGNMENT, NewPartition};
use super::mbr::{self, Chain, LOGICAL_MAX, SECTOR};
use super::{PartitionType, Scheme};
use crate::{Error, Result};
use blockwright_device::{DevOffset, Flags, SharedDevice};
use std::ops::Range;

/// The most partitions of an MBR that is made. fdisk reads numbers up to 60, and the extended partition has one of them.
pub const PARTITIONS_MAX: usize = 59;
/// Primary partitions in front of the extended one.
const PRIMARY: usize = 3;
/// The type of an extended partition beyond the first 8 GB, and of a link to the next record.
const EXTENDED: u8 = 0x0F;
const LINK: u8 = 0x05;

/// Whether a partition is a logical one, in a table with `count` partitions that is made. `index` counts from 0.
pub(super) fn is_logical(scheme: Scheme, count: usize, index: usize) -> bool {
    scheme == Scheme::Mbr && count > PRIMARY + 1 && index >= PRIMARY
}

/// A place and a length, in sectors of 32 bits.
pub(super) fn sectors(what: &str, start: u64, bytes: u64) -> Result<(u32, u32)> {
    let number = |bytes: u64| u32::try_from(bytes / SECTOR).ok();
    number(start).zip(number(bytes)).ok_or_else(|| {
        Error::Unsupported(format!(
            "{what}: an MBR has partitions in its first 2 TiB, of less than 2 TiB"
        ))
    })
}

fn kind(partition: &NewPartition) -> Result<u8> {
    match partition.kind {
        PartitionType::Byte(kind) if kind != 0 && !mbr::is_extended(kind) => Ok(kind),
        _ => Err(Error::Unsupported(format!(
            "{}: an MBR has partitions with types of one byte, and one extended partition of its own",
            partition.name
        ))),
    }
}

/// Changes the record in one sector, and flushes. Nothing else in that block of the device changes.
fn change_sector(device: &SharedDevice, at: u64, change: impl FnOnce(&mut [u8])) -> Result<()> {
    let (mut block, within) = mbr::read_block(device, at)?;
    change(&mut block[within..within + SECTOR as usize]);
    device.write_at(DevOffset(at - within as u64), &block, Flags::empty())?;
    Ok(device.flush()?)
}

fn put_length(sector: &mut [u8], index: usize, sectors: u32) {
    let at = 0x1BE + 16 * index + 12;
    sector[at..at + 4].copy_from_slice(&sectors.to_le_bytes());
}

/// Fills the first entry of a record that is at byte `at`.
fn put_own(sector: &mut [u8], at: u64, partition: &NewPartition) -> Result<()> {
    let (first, length) = sectors(&partition.name, partition.start - at, partition.bytes)?;
    mbr::put(sector, 0, kind(partition)?, first, length);
    Ok(())
}

/// The second entry of a record: the next record, at byte `at`, and the end of its partition.
fn put_link(sector: &mut [u8], base: u64, at: u64, end: u64) -> Result<()> {
    let (first, length) = sectors("a logical partition", at - base, end - at)?;
    mbr::put(sector, 1, LINK, first, length);
    Ok(())
}

/// Writes a new table, which was checked for partitions that overlap. Partitions can end at byte `end`. With more than four, those from the fourth on are
/// logical; the extended partition takes all the room up to the next primary one, so that more can be added.
pub(super) fn create(
    device: &SharedDevice,
    id: &[u8; 16],
    partitions: &[NewPartition],
    end: u64,
) -> Result<()> {
    if partitions.len() > PARTITIONS_MAX {
        return Err(Error::Unsupported(format!(
            "an MBR that is made here has at most {PARTITIONS_MAX} partitions; a GPT has 128"
        )));
    }
    let count = partitions.len();
    let logical_from = (0..count)
        .find(|&index| is_logical(Scheme::Mbr, count, index))
        .unwrap_or(count);
    let (primary, logical) = partitions.split_at(logical_from);
    let mut entries = Vec::new();
    for partition in primary {
        let (first, length) = sectors(&partition.name, partition.start, partition.bytes)?;
        entries.push((kind(partition)?, first, length));
    }
    if let Some(first) = logical.first() {
        let base = first.start.saturating_sub(ALIGNMENT);
        let next = primary.iter().map(|p| p.start).filter(|at| *at >= base);
        let until = next.min().unwrap_or(u64::MAX).min(end);
        entries.push(extended(base, until)?);
        let before = primary.iter().filter(|p| p.start < base);
        let mut from = before.map(|p| p.start + p.bytes).max().unwrap_or(SECTOR);
        for partition in logical {
            let at = partition.start.saturating_sub(ALIGNMENT);
            if at < from || partition.start + partition.bytes > until {
                return Err(Error::Unsupported(format!(
                    "{}: a logical partition needs {ALIGNMENT} free bytes in front of it, and lies behind the one with the number before",
                    partition.name
                )));
            }
            from = partition.start + partition.bytes;
        }
        for (index, partition) in logical.iter().enumerate() {
            let at = partition.start - ALIGNMENT;
            let mut sector = [0; SECTOR as usize];
            put_own(&mut sector, at, partition)?;
            if let Some(next) = logical.get(index + 1) {
                put_link(
                    &mut sector,
                    base,
                    next.start - ALIGNMENT,
                    next.start + next.bytes,
                )?;
            }
            change_sector(device, at, |whole| whole.copy_from_slice(&sector))?;
        }
    }
    change_sector(device, 0, |sector| {
        sector[0x1BE..0x1FE].fill(0);
        sector[0x1B8..0x1BC].copy_from_slice(&id[..4]);
        for (index, (kind, first, length)) in entries.into_iter().enumerate() {
            mbr::put(sector, index, kind, first, length);
        }
        sector[0x1FE..0x200].copy_from_slice(&[0x55, 0xAA]);
    })
}

/// The entry of an extended partition.
fn extended(start: u64, end: u64) -> Result<(u8, u32, u32)> {
    let (first, length) = sectors("the extended partition", start, end - start)?;
    Ok((EXTENDED, first, length))
}

/// Uses an entry of the first sector, from 1. Returns its number.
pub(super) fn add_primary(device: &SharedDevice, number: u32, new: &NewPartition) -> Result<u32> {
    let (first, length) = sectors(&new.name, new.start, new.bytes)?;
    let kind = kind(new)?;
    change_sector(device, 0, |sector| {
        mbr::put(sector, number as usize - 1, kind, first, length);
    })?;
    Ok(number)
}

/// Makes the extended partition reach a byte.
fn reach(device: &SharedDevice, chain: &Chain, end: u64) -> Result<()> {
    if end <= chain.end {
        return Ok(());
    }
    let (_, length) = sectors("the extended partition", chain.start, end - chain.start)?;
    change_sector(device, 0, |sector| {
        put_length(sector, chain.number as usize - 1, length);
    })
}

/// Adds a logical partition behind the last one of the chain, wherever it lies. `used` has what is in use in the extended partition. Returns its number.
pub(super) fn add_logical(
    device: &SharedDevice,
    chain: &Chain,
    used: &[Range<u64>],
    new: &NewPartition,
) -> Result<u32> {
    let count = chain.records.iter().filter(|r| r.number.is_some()).count();
    if chain.records.len() >= LOGICAL_MAX {
        return Err(Error::Unsupported(format!(
            "there are {LOGICAL_MAX} logical partitions already"
        )));
    }
    let end = new.start + new.bytes;
    reach(device, chain, end)?;
    let base = chain.start;
    match chain.records.as_slice() {
        // The first one: its record is at the beginning of the extended partition.
        [] => {
            let mut sector = [0; SECTOR as usize];
            put_own(&mut sector, base, new)?;
            change_sector(device, base, |whole| whole.copy_from_slice(&sector))?;
        }
        [only] if only.number.is_none() => {
            let mut own = [0; SECTOR as usize];
            put_own(&mut own, base, new)?;
            change_sector(device, base, |sector| {
                sector[0x1BE..0x1CE].copy_from_slice(&own[0x1BE..0x1CE]);
            })?;
        }
        [.., last] => {
            // The caller has checked that the partition's bytes are free, and at least a sector in front of them.
            let before = used
                .iter()
                .map(|range| range.end)
                .filter(|at| *at <= new.start);
            let free_from = before.max().unwrap_or(base);
            let at = new.start.saturating_sub(ALIGNMENT).max(free_from);
            if at + SECTOR > new.start {
                return Err(Error::Unsupported(format!(
                    "{}: there is no room for the record in front of a logical partition",
                    new.name
                )));
            }
            let mut sector = [0; SECTOR as usize];
            put_own(&mut sector, at, new)?;
            let mut link = [0; SECTOR as usize];
            put_link(&mut link, base, at, end)?;
            change_sector(device, at, |whole| whole.copy_from_slice(&sector))?;
            change_sector(device, last.at, |sector| {
                sector[0x1CE..0x1DE].copy_from_slice(&link[0x1CE..0x1DE]);
            })?;
        }
    }
    Ok(5 + count as u32)
}

/// Makes a primary partition longer.
pub(super) fn grow_primary(device: &SharedDevice, number: u32, sectors: u32) -> Result<()> {
    change_sector(device, 0, |sector| {
        put_length(sector, number as usize - 1, sectors);
    })
}

/// Makes a logical partition longer: it has `length` sectors then, and ends at byte `end`.
pub(super) fn grow_logical(
    device: &SharedDevice,
    chain: &Chain,
    number: u32,
    length: u32,
    end: u64,
) -> Result<()> {
    let found = chain.records.iter().position(|r| r.number == Some(number));
    let index =
        found.ok_or_else(|| Error::Corrupt(format!("partition {number}: it has no record")))?;
    let at = chain.records[index].at;
    let (_, link) = sectors("a logical partition", 0, end - at)?;
    reach(device, chain, end)?;
    if let Some(before) = index.checked_sub(1) {
        change_sector(device, chain.records[before].at, |sector| {
            put_length(sector, 1, link);
        })?;
    }
    change_sector(device, at, |sector| put_length(sector, 0, length))
}
