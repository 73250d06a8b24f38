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

/// All MBRs count in sectors of 512 bytes, except those of disks with larger sectors.
pub(super) const SECTOR: u64 = 512;

#[derive(Clone, Copy)]
pub(super) struct Entry {
    active: u8,
    pub(super) kind: u8,
    first: u32,
    sectors: u32,
}

/// Whether a type is that of an extended partition.
pub(super) fn is_extended(kind: u8) -> bool {
    matches!(kind, 0x05 | 0x0F | 0x85)
}

impl Entry {
    fn is_extended(self) -> bool {
        is_extended(self.kind)
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

/// One record of the chain of logical partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Its first byte on the disk.
    pub(super) at: u64,
    /// The number of its partition, when it has one.
    pub(super) number: Option<u32>,
}

/// An extended partition, and the records in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// The number of the extended partition, from 1 to 4.
    pub(super) number: u32,
    /// Its first byte.
    pub(super) start: u64,
    /// Its end.
    pub(super) end: u64,
    /// The records, in the order of the chain. Empty when there is none at `start`.
    pub(super) records: Vec<Record>,
    /// Why the chain could not be followed to its end.
    pub(super) broken: Option<String>,
}

/// Follows the chain of an extended partition.
fn follow(
    device: &SharedDevice,
    number: u32,
    extended: Entry,
    partitions: &mut Vec<Partition>,
) -> Result<Chain> {
    let base = u64::from(extended.first);
    let disk_bytes = device.geometry().bytes;
    let (mut at, mut seen, mut logical) = (base, BTreeSet::new(), 5);
    let mut chain = Chain {
        number,
        start: base * SECTOR,
        // No overflow: two numbers of 32 bits.
        end: (base + u64::from(extended.sectors)) * SECTOR,
        records: Vec::new(),
        broken: None,
    };
    chain.broken = loop {
        if !seen.insert(at) {
            break Some(format!(
                "the chain of logical partitions returns to sector {at}: it was followed once"
            ));
        }
        if seen.len() > LOGICAL_MAX {
            break Some(format!(
                "there are more than {LOGICAL_MAX} logical partitions: the others are left out"
            ));
        }
        let byte = at * SECTOR;
        if byte + SECTOR > disk_bytes {
            break Some(format!(
                "the chain of logical partitions leads to sector {at}, which is not on the disk"
            ));
        }
        let (block, within) = read_block(device, byte)?;
        let Some([own, next, ..]) = record(&block[within..]) else {
            // An extended partition without logical ones may have no record at all.
            break (at != base).then(|| {
                format!("the chain of logical partitions ends at sector {at}, which has no record")
            });
        };
        let used = own.kind != 0 && own.sectors != 0;
        if used {
            partitions.push(partition(logical, at + u64::from(own.first), own));
            logical += 1;
        }
        chain.records.push(Record {
            at: byte,
            number: used.then(|| logical - 1),
        });
        if !next.is_extended() || next.sectors == 0 {
            break None;
        }
        at = base + u64::from(next.first);
    };
    Ok(chain)
}

/// The block of the device with the sector at a byte in it, and where the sector is in the block.
pub(super) fn read_block(device: &SharedDevice, byte: u64) -> Result<(Vec<u8>, usize)> {
    let block = u64::from(device.geometry().logical_block_bytes).max(SECTOR);
    let aligned = byte / block * block;
    let bytes = device.read_buf(DevOffset(aligned), block as usize)?;
    Ok((bytes.to_vec(), (byte - aligned) as usize))
}

/// Fills one of the four entries of a record. Cylinders and heads say what they say for every larger disk: look at the sectors.
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
        chain: None,
    };
    let mut logical = Vec::new();
    for (number, entry) in (1..).zip(entries).filter(|(_, e)| e.kind != 0) {
        let mut found = partition(number, u64::from(entry.first), *entry);
        if entry.is_extended() {
            found.problem =
                Some("it is an extended partition: the logical ones in it begin at p5".to_owned());
            if table.chain.is_none() {
                let chain = follow(device, number, *entry, &mut logical)?;
                table.remarks.extend(chain.broken.clone());
                table.chain = Some(chain);
            } else {
                table.remarks.push(
                    "there are several extended partitions: the first one is followed".to_owned(),
                );
            }
        }
        table.partitions.push(found);
    }
    table.partitions.append(&mut logical);
    Ok(table)
}
