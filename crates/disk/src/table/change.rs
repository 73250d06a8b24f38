//! Changes of a table, and their results.

use super::PartitionType;

/// Where partitions that are made here begin: at a multiple of this many bytes. Ends of those that fill their room are aligned, too.
pub const ALIGNMENT: u64 = 1 << 20;

/// A partition to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPartition {
    /// Its first byte on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// What it is said to hold.
    pub kind: PartitionType,
    /// Its name; an MBR has no place for it.
    pub name: String,
    /// Its unique id, in the order of the bytes on the disk; an MBR has no place for it.
    pub uuid: [u8; 16],
}

/// A change of a table.
pub(super) enum Change<'a> {
    Add(&'a NewPartition),
    Grow { number: u32, start: u64, end: u64 },
}
