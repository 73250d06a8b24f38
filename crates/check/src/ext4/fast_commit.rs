//! Fast commits: reading the records behind the log that are complete.
//!
//! A scan finds where the last complete fast commit ends, and keeps no records. They are read again, one block at a time, when they are
//! redone. So records that wait take no memory, whatever the length of the area. What they leave does while they are redone: the maps of files and the names of directories that they change.

use std::ops::Range;

use blockwright_ondisk::ext4::extent::Extent;
use blockwright_ondisk::ext4::fast_commit::{Dentry, Record, Records, running_checksum};
use blockwright_ondisk::ext4::{FileBlock, Ino};
use blockwright_ondisk::sums_differ;

use super::CheckError;
use super::replay::Log;

/// Blocks of fast commits that are read before they are redone.
pub(super) const READ_AT_ONCE: u32 = 16;

/// What happens to a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NameChange {
    /// A new inode gets its first name.
    Create,
    /// An inode gets another name.
    Link,
    /// The name goes.
    Unlink,
}

/// One record, to be redone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    AddRange {
        ino: Ino,
        extent: Extent,
    },
    DelRange {
        ino: Ino,
        first: FileBlock,
        len: u32,
    },
    Name {
        change: NameChange,
        parent: Ino,
        ino: Ino,
        name: Vec<u8>,
    },
    Inode {
        ino: Ino,
        raw: Vec<u8>,
    },
}

impl Operation {
    /// The inode it is about.
    pub fn ino(&self) -> Ino {
        match self {
            Self::AddRange { ino, .. }
            | Self::DelRange { ino, .. }
            | Self::Name { ino, .. }
            | Self::Inode { ino, .. } => *ino,
        }
    }

    fn of(record: &Record<'_>) -> Option<Self> {
        let name = |change, d: &Dentry<'_>| Self::Name {
            change,
            parent: d.parent,
            ino: d.ino,
            name: d.name.to_vec(),
        };
        Some(match record {
            Record::AddRange { ino, extent } => Self::AddRange {
                ino: *ino,
                extent: *extent,
            },
            Record::DelRange { ino, first, len } => Self::DelRange {
                ino: *ino,
                first: *first,
                len: *len,
            },
            Record::Create(d) => name(NameChange::Create, d),
            Record::Link(d) => name(NameChange::Link, d),
            Record::Unlink(d) => name(NameChange::Unlink, d),
            Record::Inode { ino, raw } => Self::Inode {
                ino: *ino,
                raw: raw.to_vec(),
            },
            _ => return None,
        })
    }
}

/// The complete fast commits.
#[derive(Default)]
pub(super) struct FastCommits {
    /// How many records they hold that are to be redone.
    pub records: u64,
    /// How many there are.
    pub commits: u32,
    /// Complete commits hold records, or ask for features, that this check does not know.
    pub unknown: bool,
    /// Blocks of the journal, up to the one with the last tail.
    pub blocks: Range<u32>,
    /// Where in the last of these blocks that tail is, in bytes.
    end: usize,
}

/// What was seen of fast commits that are read again, block by block. The log itself may have written over them after the scan.
#[derive(Default)]
pub(super) struct Reread {
    sum: u32,
    records: u64,
    commits: u32,
    changed: bool,
}

impl Reread {
    /// Whether something else was found than by the scan.
    pub fn differs_from(&self, found: &FastCommits) -> bool {
        self.changed || (self.records, self.commits) != (found.records, found.commits)
    }
}

impl Log<'_> {
    /// The records of complete fast commits on top of the last transaction: `sequence` is the one
    /// that would come next.
    pub fn fast_commits(&self, sequence: u32) -> Result<FastCommits, CheckError> {
        // The log ends in front of the block between the two, which neither uses.
        self.fast_commits_from(self.head.log_end.saturating_add(1), sequence)
    }

    /// The same, of fast commits that begin in this block of the journal.
    pub fn fast_commits_from(&self, first: u32, sequence: u32) -> Result<FastCommits, CheckError> {
        let mut found = FastCommits {
            blocks: first..first,
            ..FastCommits::default()
        };
        let (mut sum, mut begun, mut unknown, mut records) = (0, false, false, 0);
        for at in first..self.head.len {
            let Some(block) = self.read(at)? else {
                break;
            };
            for record in Records::new(&block) {
                // An invalid record was torn, or is older: the fast commits end before it.
                let Ok(record) = record else {
                    return Ok(found);
                };
                sum = running_checksum(sum, record.summed);
                match &record.record {
                    Record::Head { features, tid } => {
                        if *tid != sequence {
                            return Ok(found);
                        }
                        begun = true;
                        unknown |= *features != 0;
                    }
                    _ if !begun => return Ok(found),
                    Record::Tail { tid, checksum } => {
                        if *tid != sequence || sums_differ(*checksum, sum) {
                            return Ok(found);
                        }
                        found.records += std::mem::take(&mut records);
                        found.commits += 1;
                        found.unknown |= unknown;
                        (found.blocks.end, found.end) = (at + 1, record.offset);
                        sum = 0;
                    }
                    Record::Unknown { .. } => unknown = true,
                    other => records += u64::from(Operation::of(other).is_some()),
                }
            }
        }
        Ok(found)
    }

    /// Whether the complete fast commits are still those that the scan found.
    pub fn has_still(&self, found: &FastCommits) -> Result<bool, CheckError> {
        let mut reread = Reread::default();
        for at in found.blocks.clone() {
            self.operations(found, at, &mut reread)?;
        }
        Ok(!reread.differs_from(found))
    }

    /// The same of [`READ_AT_ONCE`] blocks, as far as there are.
    pub fn operations_from(
        &self,
        found: &FastCommits,
        first: u32,
        reread: &mut Reread,
    ) -> Result<Vec<Operation>, CheckError> {
        let mut out = Vec::new();
        let end = first.saturating_add(READ_AT_ONCE).min(found.blocks.end);
        self.fetch(first, end.saturating_sub(first))?;
        for at in first..end {
            out.extend(self.operations(found, at, reread)?);
        }
        Ok(out)
    }

    /// What the complete fast commits say in one of their blocks, in the order in which it was logged. Nothing comes
    /// behind a tail whose checksum differs.
    pub fn operations(
        &self,
        found: &FastCommits,
        at: u32,
        reread: &mut Reread,
    ) -> Result<Vec<Operation>, CheckError> {
        let Some(block) = self.read(at)? else {
            return Ok(Vec::new());
        };
        let end = match at + 1 == found.blocks.end {
            true => found.end,
            false => block.len(),
        };
        let mut out = Vec::new();
        for record in Records::new(&block).map_while(Result::ok) {
            if record.offset > end || reread.changed {
                break;
            }
            reread.sum = running_checksum(reread.sum, record.summed);
            if let Record::Tail { checksum, .. } = record.record {
                reread.changed = sums_differ(checksum, reread.sum);
                (reread.sum, reread.commits) = (0, reread.commits + 1);
            }
            out.extend(Operation::of(&record.record));
        }
        reread.records += out.len() as u64;
        Ok(out)
    }
}
