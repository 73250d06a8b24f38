//! Fast commits: records of logical changes in the blocks behind the log proper.
//!
//! Little-endian, unlike the rest of the journal. Records are (tag, length, value); they do not
//! cross blocks, and a pad record fills the end of a block. A fast commit begins with a head
//! record (only the first after a full commit) and ends with a tail record, whose checksum covers
//! every record's bytes since the tail before, up to itself.
//!
//! Not responsible for: replaying.

use super::checksum;
use super::error::FormatError;
use super::extent::{Extent, RawExtent};
use super::types::{FileBlock, Ino};
use zerocopy::FromBytes;

/// Most files, extents and names that a reader of fast commits takes before it refuses them. It holds them in memory until all are redone, and the records of
/// one area can name far more than a volume has. A bound of this project, and not of the format.
pub const ADDED_MAX: usize = 1 << 19;

/// Bytes of a record before its value.
pub const RECORD_HEADER: usize = 4;

/// Record tags.
pub mod tag {
    #![allow(missing_docs)] // named as in the format reference
    /// What zeroes would be: nothing was written there.
    pub const NONE: u16 = 0;
    pub const ADD_RANGE: u16 = 1;
    pub const DEL_RANGE: u16 = 2;
    pub const CREAT: u16 = 3;
    pub const LINK: u16 = 4;
    pub const UNLINK: u16 = 5;
    pub const INODE: u16 = 6;
    pub const PAD: u16 = 7;
    pub const TAIL: u16 = 8;
    pub const HEAD: u16 = 9;
}

/// A name's inode and directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dentry<'a> {
    /// The directory.
    pub parent: Ino,
    /// The inode.
    pub ino: Ino,
    /// The name.
    pub name: &'a [u8],
}

/// A decoded record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// Blocks were added to a file.
    AddRange {
        /// The file.
        ino: Ino,
        /// The blocks.
        extent: Extent,
    },
    /// Blocks were removed from a file.
    DelRange {
        /// The file.
        ino: Ino,
        /// First block.
        first: FileBlock,
        /// Number of blocks.
        len: u32,
    },
    /// An inode was created and linked.
    Create(Dentry<'a>),
    /// A link was added.
    Link(Dentry<'a>),
    /// A link was removed.
    Unlink(Dentry<'a>),
    /// New contents of an inode.
    Inode {
        /// The inode.
        ino: Ino,
        /// Its bytes, as far as logged.
        raw: &'a [u8],
    },
    /// Filler.
    Pad,
    /// End of a fast commit.
    Tail {
        /// The transaction.
        tid: u32,
        /// Checksum of the records.
        checksum: u32,
    },
    /// Begin of the fast-commit area's contents.
    Head {
        /// Features needed to replay; none is defined.
        features: u32,
        /// The transaction.
        tid: u32,
    },
    /// An unknown tag, and not 0: replay must stop before it.
    Unknown {
        /// The tag.
        tag: u16,
        /// The value.
        value: &'a [u8],
    },
}

/// A record and the bytes its checksum is taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordAt<'a> {
    /// Byte offset in the block.
    pub offset: usize,
    /// Decoded form.
    pub record: Record<'a>,
    /// What the running checksum continues with: header and value, for a tail without the
    /// checksum itself.
    pub summed: &'a [u8],
}

/// Continues the running checksum; it starts from 0 after each tail.
#[must_use]
pub fn running_checksum(state: u32, summed: &[u8]) -> u32 {
    checksum::crc32c(state, summed)
}

/// Iterator over the records of a block; ends at the end of the block or after an error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// The records of a block of the fast-commit area.
    #[must_use]
    pub fn new(block: &'a [u8]) -> Self {
        Self { block, at: 0 }
    }
}

fn le32(value: &[u8], at: usize) -> Option<u32> {
    let b = value.get(at..at + 4)?;
    Some(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn dentry(value: &[u8]) -> Option<Dentry<'_>> {
    let name = value.get(8..).filter(|n| !n.is_empty() && n.len() <= 255)?;
    Some(Dentry {
        parent: Ino(le32(value, 0)?),
        ino: Ino(le32(value, 4)?),
        name,
    })
}

fn decode(tag: u16, value: &[u8]) -> Option<Record<'_>> {
    Some(match tag {
        tag::ADD_RANGE => {
            let (raw, _) = RawExtent::ref_from_prefix(value.get(4..)?).ok()?;
            Record::AddRange {
                ino: Ino(le32(value, 0)?),
                extent: Extent::from_raw(raw),
            }
        }
        tag::DEL_RANGE => Record::DelRange {
            ino: Ino(le32(value, 0)?),
            first: FileBlock(u64::from(le32(value, 4)?)),
            len: le32(value, 8)?,
        },
        tag::CREAT => Record::Create(dentry(value)?),
        tag::LINK => Record::Link(dentry(value)?),
        tag::UNLINK => Record::Unlink(dentry(value)?),
        tag::INODE => Record::Inode {
            ino: Ino(le32(value, 0)?),
            raw: value.get(4..)?,
        },
        tag::PAD => Record::Pad,
        tag::TAIL => Record::Tail {
            tid: le32(value, 0)?,
            checksum: le32(value, 4)?,
        },
        tag::HEAD => Record::Head {
            features: le32(value, 0)?,
            tid: le32(value, 4)?,
        },
        tag::NONE => return None,
        tag => Record::Unknown { tag, value },
    })
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordAt<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.at;
        let left = self.block.get(offset..)?;
        let (head, rest) = left.split_at_checked(RECORD_HEADER)?;
        let tag = u16::from_le_bytes([head[0], head[1]]);
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let record = rest.get(..len).and_then(|value| decode(tag, value));
        let Some(record) = record else {
            self.at = self.block.len();
            return Some(Err(FormatError::FastCommitRecord { offset, tag, len }));
        };
        let summed = match record {
            Record::Tail { .. } => &left[..RECORD_HEADER + 4],
            _ => &left[..RECORD_HEADER + len],
        };
        self.at = offset + RECORD_HEADER + len;
        Some(Ok(RecordAt {
            offset,
            record,
            summed,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u16, value: &[u8]) -> Vec<u8> {
        let mut out = tag.to_le_bytes().to_vec();
        out.extend((value.len() as u16).to_le_bytes());
        out.extend(value);
        out
    }

    #[test]
    fn records_decode_in_order() {
        let mut block = record(tag::HEAD, &[0, 0, 0, 0, 7, 0, 0, 0]);
        block.extend(record(tag::CREAT, b"\x02\0\0\0\x0c\0\0\0name"));
        block.extend(record(
            tag::DEL_RANGE,
            &[12, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0],
        ));
        let mut sum = 0;
        for r in Records::new(&block) {
            sum = running_checksum(sum, r.unwrap().summed);
        }
        assert_eq!(sum, running_checksum(0, &block));
        block.extend(record(tag::TAIL, &[7, 0, 0, 0, 1, 2, 3, 4]));
        block.extend(record(tag::PAD, &[0; 3]));
        let all: Vec<Record<'_>> = Records::new(&block).map(|r| r.unwrap().record).collect();
        assert_eq!(
            all,
            [
                Record::Head {
                    features: 0,
                    tid: 7
                },
                Record::Create(Dentry {
                    parent: Ino(2),
                    ino: Ino(12),
                    name: b"name"
                }),
                Record::DelRange {
                    ino: Ino(12),
                    first: FileBlock(5),
                    len: 9
                },
                Record::Tail {
                    tid: 7,
                    checksum: 0x0403_0201
                },
                Record::Pad,
            ]
        );
    }

    #[test]
    fn overlong_and_short_values_are_refused() {
        let mut long = record(tag::INODE, &[1, 0, 0, 0]);
        long[2] = 200;
        let err = FormatError::FastCommitRecord {
            offset: 0,
            tag: tag::INODE,
            len: 200,
        };
        assert_eq!(Records::new(&long).next(), Some(Err(err)));
        let short = record(tag::TAIL, &[1, 2, 3]);
        assert!(Records::new(&short).next().unwrap().is_err());
        let nameless = record(tag::LINK, &[0; 8]);
        assert!(Records::new(&nameless).next().unwrap().is_err());
        // Zeroes are the end of what was written, not a record of an unknown kind.
        assert!(Records::new(&[0; 64]).next().unwrap().is_err());
    }
}
