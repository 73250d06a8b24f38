//! GUID partition tables. Source of the format: UEFI specification 2.10, 5.3.
//!
//! The primary header is in sector 1, the backup in the last one. Each says where its copy of the entries is. A copy counts when the checksums of
//! header and entries are right, and its numbers make sense. The backup is used when the primary does not count.

use super::{Partition, PartitionType, Scheme, Table, guid_text};
use crate::bytes::{array, le16, le32, le64};
use crate::{Error, Result};
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};
use std::ops::Range;

/// How a header begins.
pub(super) const SIGNATURE: &[u8; 8] = b"EFI PART";
/// The most entries that a table may have. Other programs make 128.
pub const ENTRIES_MAX: u32 = 4096;
/// The largest entry that is read; all but the first 128 bytes of one are reserved.
const ENTRY_BYTES_MAX: u32 = 4096;
/// Bytes of an entry that have a meaning, and the smallest size of one.
pub(super) const ENTRY_BYTES: u32 = 128;
/// Bytes of a header that have a meaning.
pub(super) const HEADER_BYTES: u32 = 92;

/// One copy of the table.
pub(super) struct Copy {
    pub(super) guid: [u8; 16],
    pub(super) sector_bytes: u32,
    /// Where the other copy's header is.
    pub(super) alternate: u64,
    /// The header as it is on the disk: a sector.
    pub(super) header: Vec<u8>,
    pub(super) entries: Vec<u8>,
    pub(super) entry_bytes: usize,
}

impl Copy {
    /// Sectors that the entries take.
    pub(super) fn entries_sectors(&self) -> u64 {
        (self.entries.len() as u64).div_ceil(u64::from(self.sector_bytes))
    }

    /// The bytes of a disk that partitions may have: behind the first entries, and in front of the last.
    pub(super) fn usable(&self, disk_bytes: u64) -> Range<u64> {
        let unit = u64::from(self.sector_bytes);
        // Behind the MBR, the header and the entries.
        let first = le64(&self.header, 40).max(2 + self.entries_sectors());
        let start = first.saturating_mul(unit);
        let last = (disk_bytes / unit).saturating_sub(self.entries_sectors() + 1);
        start..last * unit
    }
}

/// Reads the copy whose header is in sector `lba`; a sentence says what is wrong with it.
pub(super) fn copy(
    device: &SharedDevice,
    sector_bytes: u32,
    lba: u64,
) -> Result<std::result::Result<Copy, String>> {
    let unit = u64::from(sector_bytes);
    let disk_bytes = device.geometry().bytes;
    let on_disk = |at: Option<u64>, bytes: u64| {
        at.filter(|at| at.checked_add(bytes).is_some_and(|end| end <= disk_bytes))
    };
    let Some(at) = on_disk(lba.checked_mul(unit), unit) else {
        return Ok(Err("it is not on the disk".to_owned()));
    };
    let header = device.read_buf(DevOffset(at), sector_bytes as usize)?;
    if header[..8] != SIGNATURE[..] {
        return Ok(Err("it has no signature".to_owned()));
    }
    let header_bytes = le32(&header, 12);
    if !(HEADER_BYTES..=sector_bytes).contains(&header_bytes) {
        return Ok(Err(format!("its header has {header_bytes} bytes")));
    }
    let mut summed = header[..header_bytes as usize].to_vec();
    summed[16..20].fill(0);
    if crc32fast::hash(&summed) != le32(&header, 16) {
        return Ok(Err("the header's checksum is wrong".to_owned()));
    }
    if le64(&header, 24) != lba {
        return Ok(Err(format!(
            "it says that it is in sector {}, and is in sector {lba}",
            le64(&header, 24)
        )));
    }
    let (count, entry_bytes) = (le32(&header, 80), le32(&header, 84));
    let sane = entry_bytes.is_multiple_of(ENTRY_BYTES)
        && (entry_bytes / ENTRY_BYTES).is_power_of_two()
        && entry_bytes <= ENTRY_BYTES_MAX;
    if !sane || count > ENTRIES_MAX {
        return Ok(Err(format!(
            "it has {count} entries of {entry_bytes} bytes; at most {ENTRIES_MAX} of {ENTRY_BYTES} to {ENTRY_BYTES_MAX} are read"
        )));
    }
    // At most 16 MiB.
    let entries_bytes = u64::from(count) * u64::from(entry_bytes);
    let read_bytes =
        entries_bytes.next_multiple_of(unit.max(u64::from(device.geometry().logical_block_bytes)));
    let Some(at) = on_disk(le64(&header, 72).checked_mul(unit), read_bytes) else {
        return Ok(Err("its entries are not on the disk".to_owned()));
    };
    let mut entries = device
        .read_buf(DevOffset(at), read_bytes as usize)?
        .to_vec();
    entries.truncate(entries_bytes as usize);
    if crc32fast::hash(&entries) != le32(&header, 88) {
        return Ok(Err("the checksum of its entries is wrong".to_owned()));
    }
    Ok(Ok(Copy {
        guid: array(&header, 56),
        sector_bytes,
        alternate: le64(&header, 32),
        header: header.to_vec(),
        entries,
        entry_bytes: entry_bytes as usize,
    }))
}

/// A copy of the table, and remarks about the other.
fn either(device: &SharedDevice, sector: Option<u32>) -> Result<(Copy, Vec<String>)> {
    let bytes = device.geometry().bytes;
    let sizes = sector.map_or(vec![512, 4096], |s| vec![s]);
    let mut faults = Vec::new();
    for &size in &sizes {
        match copy(device, size, 1)? {
            Ok(primary) => {
                let last = bytes / u64::from(size) - 1;
                let mut remarks = Vec::new();
                if let Err(fault) = copy(device, size, primary.alternate)? {
                    remarks.push(format!("the backup GPT cannot be used: {fault}"));
                } else if primary.alternate != last {
                    remarks.push(format!(
                        "the backup GPT is in sector {}, and not at the end of the disk ({last})",
                        primary.alternate
                    ));
                }
                return Ok((primary, remarks));
            }
            Err(fault) => faults.push(format!("primary: {fault}")),
        }
    }
    let said = faults.join("; ");
    // A size that the primary's place does not tell is one of two.
    for size in [512u32, 4096] {
        match copy(device, size, bytes / u64::from(size) - 1)? {
            Ok(backup) => {
                let remark = format!("the primary GPT cannot be used, the backup is ({said})");
                return Ok((backup, vec![remark]));
            }
            Err(fault) if sizes.contains(&size) => faults.push(format!("backup: {fault}")),
            Err(_) => {}
        }
    }
    Err(Error::Corrupt(format!(
        "neither copy of the GPT can be used ({})",
        faults.join("; ")
    )))
}

/// A name for people: UTF-16 up to the first zero.
fn name(entry: &[u8]) -> String {
    let units = (56..128).step_by(2).map(|at| le16(entry, at));
    char::decode_utf16(units.take_while(|&unit| unit != 0))
        .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

/// Reads a GPT; `sector` is the sector size at which a primary header was seen.
pub(super) fn read(device: &SharedDevice, sector: Option<u32>) -> Result<Table> {
    let (copy, remarks) = either(device, sector)?;
    let unit = u64::from(copy.sector_bytes);
    let used = copy
        .entries
        .chunks_exact(copy.entry_bytes)
        .enumerate()
        // A zero type marks a free entry.
        .filter(|(_, entry)| entry[..16].iter().any(|&b| b != 0));
    let partitions = used
        .map(|(index, entry)| {
            let (first, last) = (le64(entry, 32), le64(entry, 40));
            let start = first.checked_mul(unit);
            let bytes = last
                .checked_sub(first)
                .and_then(|n| n.checked_add(1)?.checked_mul(unit));
            let problem = match (start, bytes) {
                (Some(_), Some(_)) => None,
                _ => Some(format!("it goes from sector {first} to sector {last}")),
            };
            Partition {
                number: index as u32 + 1,
                start: start.unwrap_or(0),
                bytes: bytes.unwrap_or(0),
                kind: PartitionType::Guid(array(entry, 0)),
                name: name(entry),
                uuid: Some(array(entry, 16)),
                problem,
            }
        })
        .collect();
    Ok(Table {
        scheme: Scheme::Gpt,
        sector_bytes: copy.sector_bytes,
        usable: copy.usable(device.geometry().bytes),
        id: guid_text(&copy.guid),
        partitions,
        remarks,
        chain: None,
    })
}
