//! Fast commits: small logical records at the end of the journal, written by kernels between two
//! full commits. This engine reads and applies them, and never writes any.
//!
//! The area is a stream of records, restarted after every full commit. A HEAD names the transaction the records
//! come on top of; a TAIL ends each fast commit and carries the checksum of all records since the
//! last TAIL. Records behind the last good TAIL never happened.
//!
//! Not responsible for: applying ([`FastCommits::operations`] go through the engine at mount).
//!
//! Reference: kernel documentation, "ext4 Data Structures: Journal (jbd2)", "Fast commits".

use super::location::LogBlock;
use super::replay::LogReader;
use crate::{Error, ErrorKind, Result};
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

/// The validated operations of all complete fast commits.
#[derive(Clone, Debug, Default)]
pub struct FastCommits {
    /// In the order in which they were logged.
    pub operations: Vec<Operation>,
    /// Complete fast commits.
    pub commits: u32,
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
    let mut found = FastCommits::default();
    let mut pending: Vec<Operation> = Vec::new();
    let mut sum = 0;
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
                    found.operations.append(&mut pending);
                    found.commits += 1;
                    sum = 0;
                    continue;
                }
                Record::Unknown { tag, .. } => {
                    let offset = record.offset;
                    unknown = Some(format!(
                        "unknown fast-commit record {tag:#x} at byte {offset} of the journal's block {at}"
                    ));
                }
                other => pending.extend(operation(other)),
            }
            sum = running_checksum(sum, record.summed);
        }
    }
    Ok(found)
}
