//! Tables of partitions: GPT with its backup, MBR with logical partitions.
//!
//! # Which one counts
//! A protective entry (type 0xEE) in the MBR makes the disk GPT. Without one, the MBR counts when it has entries that make sense:
//! a GPT header is then what an earlier table left. Without either, a GPT header counts alone, with a remark.
//!
//! # What is wrong
//! A table that cannot be used as a whole is an error. A fault of one partition is its `problem`, and keeps it from being
//! opened: it begins or ends outside of the disk, or overlaps another one. An odd but harmless value is a remark.
//!
//! # Changes
//! A GPT is never without a copy that counts: the backup is written and flushed first, then the primary; the other way round when the backup alone
//! counts. An MBR is one sector. A logical partition has a record of its own, which is written and flushed before the record that leads to it. So a crash
//! leaves the old table or the new one.

mod change;
mod edit;
mod gpt;
mod gpt_write;
mod kinds;
mod mbr;
mod mbr_write;

use crate::{Error, Result, Selector};
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};
use std::ops::Range;

pub use change::{ALIGNMENT, NewPartition};
pub use edit::NewTable;
pub use gpt::ENTRIES_MAX;
pub use kinds::{Architecture, Purpose, guid_text, parse_guid, type_name};
pub use mbr::LOGICAL_MAX;
pub use mbr_write::PARTITIONS_MAX as MBR_PARTITIONS_MAX;

/// A kind of table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// GUID partition table (UEFI specification 2.10, chapter 5).
    Gpt,
    /// Master boot record, with logical partitions.
    Mbr,
}

impl Scheme {
    /// `gpt` or `mbr`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Gpt => "gpt",
            Scheme::Mbr => "mbr",
        }
    }
}

/// The type of a partition's contents, as the table states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionType {
    /// A GPT's type, in the order of the bytes on the disk.
    Guid([u8; 16]),
    /// An MBR's type.
    Byte(u8),
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1. Logical partitions of an MBR begin at 5.
    pub number: u32,
    /// Its first byte on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// What it is said to hold.
    pub kind: PartitionType,
    /// Its name (GPT); control characters replaced.
    pub name: String,
    /// Its unique id (GPT), in the order of the bytes on the disk.
    pub uuid: Option<[u8; 16]>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// The partitions of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Which kind of table it is.
    pub scheme: Scheme,
    /// Bytes of the sectors that the table counts in.
    pub sector_bytes: u32,
    /// The bytes of the disk that partitions may have.
    pub usable: Range<u64>,
    /// The disk's id: a UUID (GPT) or eight hexadecimal digits (MBR).
    pub id: String,
    /// The partitions, by number.
    pub partitions: Vec<Partition>,
    /// Faults of the table that do not prevent its use.
    pub remarks: Vec<String>,
    /// The extended partition of an MBR, and its records.
    chain: Option<mbr::Chain>,
}

/// Bytes that are read at fixed places: the MBR and a GPT's header, with sectors of 512 and of 4096 bytes.
const HEAD_BYTES: u64 = 8192;

impl Table {
    /// Reads the table of a device; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Corrupt`] when there is one, and no copy of it can be used.
    pub fn read(device: &SharedDevice) -> Result<Option<Table>> {
        let bytes = device.geometry().bytes;
        if bytes < HEAD_BYTES {
            return Ok(None);
        }
        let head = device.read_buf(DevOffset(0), HEAD_BYTES as usize)?;
        let mbr = mbr::entries(&head);
        let protective = mbr.is_some_and(|entries| entries.iter().any(|e| e.kind == 0xEE));
        let has_header = |sector: usize| head.get(sector..sector + 8) == Some(&gpt::SIGNATURE[..]);
        let sector = [512, 4096].into_iter().find(|&s| has_header(s));
        let mut table = match (mbr, sector) {
            _ if protective => gpt::read(device, sector.map(|s| s as u32))?,
            (Some(entries), _) => mbr::read(device, &head, &entries)?,
            (None, Some(sector)) => {
                let mut table = gpt::read(device, Some(sector as u32))?;
                table
                    .remarks
                    .push("there is no protective MBR before the GPT".to_owned());
                table
            }
            (None, None) => return Ok(None),
        };
        judge(&mut table.partitions, bytes);
        Ok(Some(table))
    }

    /// The partition that is meant.
    ///
    /// # Errors
    /// [`Error::NotFound`], with what there is; several may have one name.
    pub fn find(&self, selector: &Selector) -> Result<&Partition> {
        let is = |p: &&Partition| match selector {
            Selector::Number(number) => p.number == *number,
            Selector::Name(name) => p.name == *name,
        };
        let mut found = self.partitions.iter().filter(is);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => Err(Error::NotFound(format!(
                "partitions {} and {} have the same name; give the number, as in :p{}",
                one.number, other.number, one.number
            ))),
            (None, _) => Err(Error::NotFound(format!(
                "there is no partition {selector}; {}",
                self.listed()
            ))),
        }
    }

    /// The partitions in one sentence.
    #[must_use]
    pub fn listed(&self) -> String {
        const SHOWN_MAX: usize = 8;
        if self.partitions.is_empty() {
            return "the disk has no partitions".to_owned();
        }
        let mut names: Vec<String> = self
            .partitions
            .iter()
            .take(SHOWN_MAX)
            .map(|p| match p.name.is_empty() {
                true => format!("p{}", p.number),
                false => format!("p{} ({})", p.number, p.name),
            })
            .collect();
        if self.partitions.len() > SHOWN_MAX {
            names.push(format!("and {} more", self.partitions.len() - SHOWN_MAX));
        }
        format!("the disk has {}", names.join(", "))
    }
}

/// Notes which partitions do not lie on the disk, and which overlap. An extended partition contains its logical ones.
fn judge(partitions: &mut [Partition], disk_bytes: u64) {
    for p in partitions.iter_mut().filter(|p| p.problem.is_none()) {
        let end = p.start.checked_add(p.bytes);
        if end.is_none_or(|end| end > disk_bytes) {
            p.problem = Some(format!(
                "{} bytes from byte {} on do not lie on the disk, which has {disk_bytes}",
                p.bytes, p.start
            ));
        }
    }
    let mut order: Vec<usize> = (0..partitions.len())
        .filter(|&n| partitions[n].problem.is_none())
        .collect();
    order.sort_by_key(|&n| partitions[n].start);
    // Sorted by where they begin, each is compared with the one before it that reaches farthest.
    let mut farthest: Option<usize> = None;
    for n in order {
        let Some(before) = farthest else {
            farthest = Some(n);
            continue;
        };
        // No overflow: both lie on the disk.
        let end = |n: usize| partitions[n].start + partitions[n].bytes;
        let overlap = partitions[n].start < end(before);
        if end(n) > end(before) {
            farthest = Some(n);
        }
        if overlap {
            let (one, other) = (partitions[before].number, partitions[n].number);
            partitions[n].problem = Some(format!("it overlaps partition {one}"));
            partitions[before]
                .problem
                .get_or_insert(format!("it overlaps partition {other}"));
        }
    }
}

#[cfg(test)]
mod tests;
