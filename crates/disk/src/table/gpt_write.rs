//! Writing a GPT, new or changed. Source of the format: UEFI specification 2.10, 5.2.3 and 5.3.
//!
//! Crash order: one copy is written and flushed, then the other. The one that counted before is written last, so at each moment there is a copy whose
//! checksums are right.

use super::change::{Change, NewPartition};
use super::gpt::{self, Copy, ENTRY_BYTES, HEADER_BYTES, SIGNATURE};
use super::{PartitionType, mbr};
use crate::bytes::{array, le64};
use crate::{Error, Result};
use blockwright_device::{DevOffset, DeviceExt, Flags, SharedDevice};

/// Entries of a new table, as all programs make it.
const ENTRIES: usize = 128;
/// Bytes of an entry of a new table.
const ENTRY: usize = ENTRY_BYTES as usize;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Fills an entry. Unknown fields in it stay.
fn put_entry(entry: &mut [u8], partition: &NewPartition, unit: u64) -> Result<()> {
    let PartitionType::Guid(kind) = partition.kind else {
        return Err(Error::Unsupported(
            "a GPT has types that are GUIDs".to_owned(),
        ));
    };
    let units: Vec<u16> = partition.name.encode_utf16().collect();
    if units.len() > 36 {
        return Err(Error::Unsupported(format!(
            "{:?}: a name in a GPT has at most 36 UTF-16 units",
            partition.name
        )));
    }
    put(entry, 0, &kind);
    put(entry, 16, &partition.uuid);
    put(entry, 32, &(partition.start / unit).to_le_bytes());
    let end = (partition.start + partition.bytes) / unit;
    put(entry, 40, &(end - 1).to_le_bytes());
    entry[56..128].fill(0);
    for (n, unit) in units.iter().enumerate() {
        put(entry, 56 + 2 * n, &unit.to_le_bytes());
    }
    Ok(())
}

/// Writes one copy: entries and header. `lba` is where the header goes.
fn write_copy(device: &SharedDevice, table: &Copy, lba: u64) -> Result<()> {
    let unit = u64::from(table.sector_bytes);
    let last = device.geometry().bytes / unit - 1;
    let is_primary = lba == 1;
    let entries_lba = match is_primary {
        true => 2,
        false => last - table.entries_sectors(),
    };
    let mut header = table.header.clone();
    let length = array::<4>(&header, 12);
    let summed = (u32::from_le_bytes(length) as usize).clamp(HEADER_BYTES as usize, header.len());
    put(&mut header, 24, &lba.to_le_bytes());
    put(
        &mut header,
        32,
        &(if is_primary { last } else { 1 }).to_le_bytes(),
    );
    put(
        &mut header,
        48,
        &(last - table.entries_sectors() - 1).to_le_bytes(),
    );
    put(&mut header, 72, &entries_lba.to_le_bytes());
    put(
        &mut header,
        88,
        &crc32fast::hash(&table.entries).to_le_bytes(),
    );
    header[16..20].fill(0);
    let sum = crc32fast::hash(&header[..summed]);
    put(&mut header, 16, &sum.to_le_bytes());
    let mut entries = table.entries.clone();
    entries.resize((table.entries_sectors() * unit) as usize, 0);
    device.write_at(DevOffset(entries_lba * unit), &entries, Flags::empty())?;
    device.write_at(DevOffset(lba * unit), &header, Flags::empty())?;
    Ok(device.flush()?)
}

/// Writes both copies, the one that counted before last.
fn write_both(device: &SharedDevice, table: &Copy, primary_counts: bool) -> Result<()> {
    let last = device.geometry().bytes / u64::from(table.sector_bytes) - 1;
    let order = match primary_counts {
        true => [last, 1],
        false => [1, last],
    };
    for lba in order {
        write_copy(device, table, lba)?;
    }
    Ok(())
}

/// The sector in front of a GPT that tells programs without GPT that the disk is in use.
fn protective(device: &SharedDevice, unit: u64) -> Result<()> {
    let bytes = u64::from(device.geometry().logical_block_bytes).max(512);
    let mut sector = device.read_buf(DevOffset(0), bytes as usize)?.to_vec();
    let kinds: Vec<u8> = (0..4).map(|n| sector[0x1BE + 16 * n + 4]).collect();
    // A hybrid MBR is its maker's.
    if kinds.iter().any(|&kind| kind != 0 && kind != 0xEE) {
        return Ok(());
    }
    let sectors = device.geometry().bytes / unit - 1;
    let before = sector.clone();
    sector[0x1BE..0x1FE].fill(0);
    let sectors = u32::try_from(sectors).unwrap_or(u32::MAX);
    mbr::put(&mut sector, 0, 0xEE, 1, sectors);
    sector[0x1BF..0x1C2].copy_from_slice(&[0x00, 0x02, 0x00]);
    if sector != before {
        device.write_at(DevOffset(0), &sector, Flags::empty())?;
        device.flush()?;
    }
    Ok(())
}

/// Makes a new table on a device. The protective MBR is written last: without it, there is no table.
pub(super) fn create(
    device: &SharedDevice,
    id: [u8; 16],
    partitions: &[NewPartition],
) -> Result<()> {
    let unit = u64::from(device.geometry().logical_block_bytes.max(512));
    let mut entries = vec![0; ENTRIES * ENTRY];
    if partitions.len() > ENTRIES {
        return Err(Error::Unsupported(format!(
            "a new GPT has at most {ENTRIES} partitions"
        )));
    }
    for (entry, partition) in entries.chunks_exact_mut(ENTRY).zip(partitions) {
        put_entry(entry, partition, unit)?;
    }
    let mut table = Copy {
        guid: id,
        sector_bytes: unit as u32,
        alternate: 0,
        header: vec![0; unit as usize],
        entries,
        entry_bytes: ENTRY,
    };
    let header = &mut table.header;
    put(header, 0, SIGNATURE);
    put(header, 8, &0x0001_0000u32.to_le_bytes());
    put(header, 12, &HEADER_BYTES.to_le_bytes());
    put(header, 56, &id);
    put(header, 80, &(ENTRIES as u32).to_le_bytes());
    put(header, 84, &ENTRY_BYTES.to_le_bytes());
    let first = 2 + table.entries_sectors();
    put(&mut table.header, 40, &first.to_le_bytes());
    write_both(device, &table, false)?;
    protective(device, unit)
}

/// Changes one entry. Returns the number of the partition.
pub(super) fn change(device: &SharedDevice, sector_bytes: u32, change: &Change<'_>) -> Result<u32> {
    let unit = u64::from(sector_bytes);
    let last = device.geometry().bytes / unit - 1;
    let (mut table, primary_counts) = match gpt::copy(device, sector_bytes, 1)? {
        Ok(primary) => (primary, true),
        Err(_) => match gpt::copy(device, sector_bytes, last)? {
            Ok(backup) => (backup, false),
            Err(fault) => {
                return Err(Error::Corrupt(format!(
                    "neither copy of the GPT can be used ({fault})"
                )));
            }
        },
    };
    // Both copies of the entries, both headers and the MBR.
    if 2 * table.entries_sectors() + 3 > last + 1 {
        return Err(Error::Corrupt(
            "the disk has no room for both copies of its GPT".to_owned(),
        ));
    }
    if primary_counts && le64(&table.header, 72) != 2 {
        return Err(Error::Unsupported(
            "the entries of this GPT are not in sector 2, where changes are made".to_owned(),
        ));
    }
    let size = table.entry_bytes;
    let number = match change {
        Change::Add(partition) => {
            let free = |entry: &[u8]| entry[..16].iter().all(|&b| b == 0);
            let mut entries = table.entries.chunks_exact_mut(size).enumerate();
            let Some((index, entry)) = entries.find(|(_, entry)| free(entry)) else {
                return Err(Error::Unsupported("the GPT has no free entry".to_owned()));
            };
            put_entry(entry, partition, unit)?;
            index as u32 + 1
        }
        Change::Grow { number, end, .. } => {
            let at = (*number as usize).saturating_sub(1) * size;
            let entry = table.entries.get_mut(at..at + size);
            let entry =
                entry.ok_or_else(|| Error::NotFound(format!("there is no partition {number}")))?;
            put(entry, 40, &(end / unit - 1).to_le_bytes());
            *number
        }
    };
    write_both(device, &table, primary_counts)?;
    protective(device, unit)?;
    Ok(number)
}
