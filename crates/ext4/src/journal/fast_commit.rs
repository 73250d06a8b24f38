//! Fast commits: small logical records at the end of the journal, written by kernels between two
//! full commits. This engine reads and applies them, and never writes any.
//!
//! The area is a stream of records, restarted after every full commit. A HEAD names the transaction the records
//! come on top of; a TAIL ends each fast commit and carries the checksum of all records since the
//! last TAIL. Records behind the last good TAIL never happened.
//!
//! The scan keeps no records, only where they end. They are read again each time they are needed, a block at a time. So the records take no memory. What they
//! leave does: recovery holds the extents of each file that they name.
//!
//! Not responsible for: applying ([`Operations`] go through the engine at mount).
//!
//! Reference: kernel documentation, "ext4 Data Structures: Journal (jbd2)", "Fast commits".

use std::ops::Range;

use super::location::{LogBlock, LogMap};
use super::replay::LogReader;
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::extent::Extent;
use blockwright_ondisk::ext4::fast_commit::{Dentry, Record, Records, running_checksum};
use blockwright_ondisk::ext4::jbd2::JournalSuperblock;
use blockwright_ondisk::ext4::{FileBlock, Ino};
use blockwright_ondisk::sums_differ;

const OP: &str = "fast-commit replay";

/// One thing that a fast commit changed, in the order in which it must be redone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The blocks of `extent` belong to the file.
    AddRange {
        /// The file.
        ino: Ino,
        /// The blocks.
        extent: Extent,
    },
    /// The file has no blocks in the range.
    DelRange {
        /// The file.
        ino: Ino,
        /// First block.
        first: FileBlock,
        /// Number of blocks.
        len: u32,
    },
    /// The inode is in use, and `name` in `parent` names it.
    Create {
        /// The directory.
        parent: Ino,
        /// The inode.
        ino: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// `name` in `parent` names the inode.
    Link {
        /// The directory.
        parent: Ino,
        /// The inode.
        ino: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// `name` in `parent` is gone.
    Unlink {
        /// The directory.
        parent: Ino,
        /// The inode it named.
        ino: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// The inode's bytes (as far as logged), except its mapping.
    Inode {
        /// The inode.
        ino: Ino,
        /// The bytes.
        raw: Vec<u8>,
    },
}

/// Where all complete fast commits are.
#[derive(Clone, Debug, Default)]
pub struct FastCommits {
    /// Records that are to be redone.
    pub records: u64,
    /// Complete fast commits.
    pub commits: u32,
    /// Blocks of the journal, up to the one with the last TAIL.
    blocks: Range<u32>,
    /// Where in the last of these blocks that TAIL is, in bytes.
    end: usize,
}

/// The operations of all complete fast commits, to be read as often as needed.
pub struct Operations<'a> {
    /// Where the journal is.
    pub(super) device: &'a SharedDevice,
    /// Its blocks.
    pub(super) map: &'a LogMap,
    /// Its head.
    pub(super) superblock: &'a JournalSuperblock,
    /// What the scan found.
    pub(super) commits: &'a FastCommits,
}

impl Operations<'_> {
    /// Hands each operation to `redo`, in the order in which they were logged.
    ///
    /// # Errors
    /// What `redo` returns; `Corrupt` when the records are not those that the scan found; `Io`. The log itself may
    /// write over them after the scan. By then, operations may have been redone: those of the same fast commit.
    pub fn for_each(&self, mut redo: impl FnMut(&Operation) -> Result<()>) -> Result<()> {
        let mut reader = LogReader::new(self.device, self.map, self.superblock);
        let commits = self.commits;
        let changed = || Error::corrupt(OP, "fast commits changed after they were found");
        let (mut sum, mut records, mut tails) = (0, 0, 0);
        for at in commits.blocks.clone() {
            let block = reader.read(LogBlock(at))?;
            let is_last = at + 1 == commits.blocks.end;
            for record in Records::new(block) {
                let record = record.map_err(|e| Error::corrupt(OP, e.to_string()))?;
                sum = running_checksum(sum, record.summed);
                if let Record::Tail { checksum, .. } = record.record {
                    if sums_differ(checksum, sum) {
                        return Err(changed());
                    }
                    (sum, tails) = (0, tails + 1);
                }
                if let Some(operation) = operation(&record.record) {
                    records += 1;
                    redo(&operation)?;
                }
                // What is behind the last TAIL need not be records.
                if is_last && record.offset == commits.end {
                    break;
                }
            }
        }
        match (records, tails) == (commits.records, commits.commits) {
            true => Ok(()),
            false => Err(changed()),
        }
    }
}

fn operation(record: &Record<'_>) -> Option<Operation> {
    let owned = |d: &Dentry<'_>| (d.parent, d.ino, d.name.to_vec());
    Some(match record {
        Record::AddRange { ino, extent } => Operation::AddRange {
            ino: *ino,
            extent: *extent,
        },
        Record::DelRange { ino, first, len } => Operation::DelRange {
            ino: *ino,
            first: *first,
            len: *len,
        },
        Record::Create(dentry) => {
            let (parent, ino, name) = owned(dentry);
            Operation::Create { parent, ino, name }
        }
        Record::Link(dentry) => {
            let (parent, ino, name) = owned(dentry);
            Operation::Link { parent, ino, name }
        }
        Record::Unlink(dentry) => {
            let (parent, ino, name) = owned(dentry);
            Operation::Unlink { parent, ino, name }
        }
        Record::Inode { ino, raw } => Operation::Inode {
            ino: *ino,
            raw: raw.to_vec(),
        },
        _ => return None,
    })
}

/// Reads the fast-commit area. `sequence` is that of the transaction the records must come on top of:
/// the one after the last full commit.
///
/// # Errors
/// `UnsupportedFeature` when the area needs features unknown here, or has unknown records before a
/// good TAIL; `Io`.
pub fn scan(
    reader: &mut LogReader<'_>,
    superblock: &JournalSuperblock,
    sequence: u32,
) -> Result<FastCommits> {
    let first = superblock.log_end.saturating_add(1);
    let mut found = FastCommits {
        blocks: first..first,
        ..FastCommits::default()
    };
    let (mut sum, mut records) = (0, 0);
    let mut begun = false;
    let mut unknown = None;
    // The kernel leaves the first block of the area unused.
    for index in 1..superblock.fast_commit_blocks {
        let at = superblock.log_end.saturating_add(index);
        let block = reader.read(LogBlock(at))?;
        for record in Records::new(block) {
            // A record that is invalid is the end: what was torn, or was there before.
            let Ok(record) = record else {
                return Ok(found);
            };
            match &record.record {
                Record::Head { features, tid } => {
                    if *tid != sequence {
                        return Ok(found);
                    }
                    // Counts with the TAIL alone, as all else: what was torn promised nothing.
                    if *features != 0 {
                        unknown = Some(format!(
                            "unknown fast-commit features {features:#x} in block {at} of the journal"
                        ));
                    }
                    begun = true;
                }
                _ if !begun => return Ok(found),
                Record::Tail { tid, checksum } => {
                    sum = running_checksum(sum, record.summed);
                    if *tid != sequence || sums_differ(*checksum, sum) {
                        return Ok(found);
                    }
                    if let Some(what) = unknown {
                        return Err(Error::new(ErrorKind::UnsupportedFeature, OP).detail(what));
                    }
                    found.records += std::mem::take(&mut records);
                    found.commits += 1;
                    (found.blocks.end, found.end) = (at.saturating_add(1), record.offset);
                    sum = 0;
                    continue;
                }
                Record::Unknown { tag, .. } => {
                    let offset = record.offset;
                    unknown = Some(format!(
                        "unknown fast-commit record {tag:#x} at byte {offset} of the journal's block {at}"
                    ));
                }
                other => records += u64::from(operation(other).is_some()),
            }
            sum = running_checksum(sum, record.summed);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_device::MemoryDevice;
    use blockwright_ondisk::ext4::fast_commit::tag;
    use blockwright_ondisk::ext4::jbd2::{MAGIC, RawJournalSuperblock};
    use std::sync::Arc;
    use zerocopy::{FromZeros, IntoBytes};

    const BLOCK: usize = 1024;
    const LEN: u32 = 1100;
    const AREA: u32 = 60;
    const TID: u32 = 9;

    fn record(tag: u16, value: &[u8]) -> Vec<u8> {
        [
            &tag.to_le_bytes(),
            &(value.len() as u16).to_le_bytes(),
            value,
        ]
        .concat()
    }

    fn range(n: u32) -> Vec<u8> {
        let value = [12, n, 1].map(u32::to_le_bytes).concat();
        record(tag::DEL_RANGE, &value)
    }

    /// A journal whose area has these records, and its head.
    fn journal(records: &[Vec<u8>]) -> (SharedDevice, JournalSuperblock) {
        let mut raw = RawJournalSuperblock::new_zeroed();
        raw.header.magic.set(MAGIC);
        raw.header.blocktype.set(4);
        raw.blocksize.set(BLOCK as u32);
        raw.maxlen.set(LEN);
        raw.first.set(1);
        raw.num_fc_blks.set(AREA);
        raw.feature_incompat.set(0x20);
        let head = JournalSuperblock::parse(raw.as_bytes(), None).expect("a head");
        let mut image = vec![0; BLOCK * LEN as usize];
        let mut at = BLOCK * (LEN - AREA + 1) as usize;
        for record in records {
            let left = BLOCK - at % BLOCK;
            if left < record.len() + 4 {
                image[at..at + 2].copy_from_slice(&tag::PAD.to_le_bytes());
                image[at + 2..at + 4].copy_from_slice(&(left as u16 - 4).to_le_bytes());
                at += left;
            }
            image[at..at + record.len()].copy_from_slice(record);
            at += record.len();
        }
        let device: SharedDevice = Arc::new(MemoryDevice::from_image(&image));
        (device, head)
    }

    /// Each tail's checksum is of what lies in front of it, pads included: those are made here as [`journal`] makes them.
    fn signed(records: &mut [Vec<u8>]) {
        let (mut sum, mut at) = (0, 0);
        for record in records {
            let left = BLOCK - at % BLOCK;
            if left < record.len() + 4 {
                let pad = [
                    &tag::PAD.to_le_bytes()[..],
                    &(left as u16 - 4).to_le_bytes(),
                ]
                .concat();
                sum = running_checksum(sum, &[pad, vec![0; left - 4]].concat());
                at += left;
            }
            at += record.len();
            if record[0] == tag::TAIL as u8 {
                sum = running_checksum(sum, &record[..8]);
                record[8..12].copy_from_slice(&sum.to_le_bytes());
                sum = 0;
            } else {
                sum = running_checksum(sum, record);
            }
        }
    }

    /// Records are read from the journal, over blocks and tails, and those behind the last good tail never.
    #[test]
    fn what_is_complete_is_read_as_often_as_needed() {
        let head = record(tag::HEAD, &[0, TID].map(u32::to_le_bytes).concat());
        let tail = record(tag::TAIL, &[TID, 0].map(u32::to_le_bytes).concat());
        for (first, second, torn) in [(0, 3, 0), (500, 900, 300), (1, 1, 2000), (0, 0, 2000)] {
            let mut records = vec![head.clone()];
            records.extend((0..first).map(range));
            records.push(tail.clone());
            records.extend((first..first + second).map(range));
            records.push(tail.clone());
            records.extend((0..torn).map(range));
            signed(&mut records);
            let (device, superblock) = journal(&records);
            let map = LogMap::contiguous(blockwright_ondisk::ext4::BlockNo(0), LEN);
            let mut reader = LogReader::new(&device, &map, &superblock);
            let commits = scan(&mut reader, &superblock, TID).expect("scanned");
            assert_eq!(
                (commits.commits, commits.records),
                (2, u64::from(first + second))
            );
            let operations = Operations {
                device: &device,
                map: &map,
                superblock: &superblock,
                commits: &commits,
            };
            for _ in 0..2 {
                let mut next = 0;
                let each = |operation: &Operation| {
                    let Operation::DelRange { first, .. } = operation else {
                        panic!("{operation:?}");
                    };
                    assert_eq!(first.0, next);
                    next += 1;
                    Ok(())
                };
                operations.for_each(each).expect("read");
                assert_eq!(next, u64::from(first + second));
            }
            let none = scan(&mut reader, &superblock, TID + 1).expect("scanned");
            assert_eq!((none.commits, none.records), (0, 0));
            // A record differs when they are read again, or the second commit is gone.
            let mut differs = records.clone();
            differs[0][4] ^= 1;
            for other in [&differs[..], &records[..first as usize + 2]] {
                let (device, _) = journal(other);
                let operations = Operations {
                    device: &device,
                    ..operations
                };
                let error = operations.for_each(|_| Ok(())).expect_err("they changed");
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
    }
}
