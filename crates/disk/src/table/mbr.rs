//! Master boot records with logical partitions.
//!
//! An extended partition holds a chain of records. Each has one logical partition, counted from the record itself, and the place of the next
//! record, counted from the extended partition. The chain ends after [`LOGICAL_MAX`] records, or at one that was seen before.

use super::{Partition, PartitionType, Scheme, Table};
use crate::Result;
use crate::bytes::le32;
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};
use std::collections::BTreeSet;

/// The most logical partitions that are read.
pub const LOGICAL_MAX: usize = 256;

/// All MBRs count in sectors of 512 bytes, but for those of disks with larger sectors.
const SECTOR: u64 = 512;

#[derive(Clone, Copy)]
pub(super) struct Entry {
    active: u8,
    pub(super) kind: u8,
    first: u32,
    sectors: u32,
}

impl Entry {
    fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

fn record(sector: &[u8]) -> Option<[Entry; 4]> {
    if sector.get(0x1FE..0x200) != Some(&[0x55, 0xAA]) {
        return None;
    }
    Some([0, 1, 2, 3].map(|n| {
        let at = 0x1BE + 16 * n;
        Entry {
            active: sector[at],
            kind: sector[at + 4],
            first: le32(sector, at + 8),
            sectors: le32(sector, at + 12),
        }
    }))
}

/// The entries of a disk's first sector. Boot code of other formats ends with the same mark, so every entry must make sense, and one must
/// be used.
pub(super) fn entries(head: &[u8]) -> Option<[Entry; 4]> {
    let entries = record(head)?;
    let sane = |e: &Entry| {
        e.active & 0x7F == 0 && (e.kind != 0) == (e.sectors != 0) && (e.kind == 0 || e.first != 0)
    };
    (entries.iter().all(sane) && entries.iter().any(|e| e.kind != 0)).then_some(entries)
}

fn partition(number: u32, first: u64, entry: Entry) -> Partition {
    Partition {
        number,
        start: first * SECTOR,
        bytes: u64::from(entry.sectors) * SECTOR,
        kind: PartitionType::Byte(entry.kind),
        name: String::new(),
        uuid: None,
        problem: None,
    }
}

/// Follows the chain of an extended partition.
fn logical(
    device: &SharedDevice,
    extended: Entry,
    partitions: &mut Vec<Partition>,
    remarks: &mut Vec<String>,
) -> Result<()> {
    let base = u64::from(extended.first);
    let disk_bytes = device.geometry().bytes;
    let block = u64::from(device.geometry().logical_block_bytes);
    let (mut at, mut seen, mut number) = (base, BTreeSet::new(), 5);
    loop {
        if !seen.insert(at) {
            remarks.push(format!(
                "the chain of logical partitions returns to sector {at}: it was followed once"
            ));
            return Ok(());
        }
        if seen.len() > LOGICAL_MAX {
            remarks.push(format!(
                "there are more than {LOGICAL_MAX} logical partitions: the others are left out"
            ));
            return Ok(());
        }
        // No overflow: two numbers of 32 bits.
        let byte = at * SECTOR;
        if byte + SECTOR > disk_bytes {
            remarks.push(format!(
                "the chain of logical partitions leads to sector {at}, which is not on the disk"
            ));
            return Ok(());
        }
        let aligned = byte / block * block;
        let sector = device.read_buf(DevOffset(aligned), block.max(SECTOR) as usize)?;
        let Some(record) = record(&sector[(byte - aligned) as usize..]) else {
            // An extended partition without logical ones may have no record at all.
            if at != base {
                remarks.push(format!(
                    "the chain of logical partitions ends at sector {at}, which has no record"
                ));
            }
            return Ok(());
        };
        let [own, next, ..] = record;
        if own.kind != 0 && own.sectors != 0 {
            partitions.push(partition(number, at + u64::from(own.first), own));
            number += 1;
        }
        if !next.is_extended() || next.sectors == 0 {
            return Ok(());
        }
        at = base + u64::from(next.first);
    }
}

/// Writes one of the four entries into a disk's first sector. Cylinders and heads say what they say for every larger disk: look at the sectors.
pub(super) fn put(sector: &mut [u8], index: usize, kind: u8, first: u32, sectors: u32) {
    let at = 0x1BE + 16 * index;
    sector[at] = 0;
    sector[at + 1..at + 4].copy_from_slice(&[0xFE, 0xFF, 0xFF]);
    sector[at + 4] = kind;
    sector[at + 5..at + 8].copy_from_slice(&[0xFE, 0xFF, 0xFF]);
    sector[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
    sector[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
    sector[0x1FE..0x200].copy_from_slice(&[0x55, 0xAA]);
}

/// Reads an MBR whose entries make sense.
pub(super) fn read(device: &SharedDevice, head: &[u8], entries: &[Entry; 4]) -> Result<Table> {
    let mut table = Table {
        scheme: Scheme::Mbr,
        sector_bytes: SECTOR as u32,
        usable: SECTOR..device.geometry().bytes.min(SECTOR << 32),
        id: format!("{:08x}", le32(head, 0x1B8)),
        partitions: Vec::new(),
        remarks: Vec::new(),
    };
    let mut chain = Vec::new();
    let mut extended = 0;
    for (number, entry) in (1..).zip(entries).filter(|(_, e)| e.kind != 0) {
        let mut found = partition(number, u64::from(entry.first), *entry);
        if entry.is_extended() {
            found.problem =
                Some("it is an extended partition: the logical ones in it begin at p5".to_owned());
            extended += 1;
            if extended == 1 {
                logical(device, *entry, &mut chain, &mut table.remarks)?;
            } else {
                table.remarks.push(
                    "there are several extended partitions: the first one is followed".to_owned(),
                );
            }
        }
        table.partitions.push(found);
    }
    table.partitions.append(&mut chain);
    Ok(table)
}
