//! Newtypes for the numbers of the format, and the six logs.

use std::fmt;

use crate::numbers::number;

pub use crate::ext4::types::{
    FileBlock, FileKind, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK,
};

/// Bytes per block.
pub const BLOCK_SIZE: usize = 4096;
/// `log2` of [`BLOCK_SIZE`].
pub const BLOCK_BITS: u32 = 12;
/// Blocks per segment.
pub const BLOCKS_PER_SEG: u32 = 512;
/// `log2` of [`BLOCKS_PER_SEG`].
pub const LOG_BLOCKS_PER_SEG: u32 = 9;
/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;

/// How the clusters of a file are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// LZO1X.
    Lzo,
    /// LZ4 block.
    Lz4,
    /// Zstandard.
    Zstd,
    /// LZO1X with run lengths.
    LzoRle,
}

number!(
    /// A block of the device, counted from its start in blocks of 4096 bytes.
    BlockAddr(u32), "blk#"
);
number!(
    /// A node number: an index into the NAT. 0 means "none".
    Nid(u32), "nid#"
);
number!(
    /// An inode number: the node number of the inode's own node. 0 means "none".
    Ino(u32), "ino#"
);
number!(
    /// A segment of the main area, counted from 0.
    SegNo(u32), "seg#"
);

impl BlockAddr {
    /// A hole: nothing is stored.
    pub const NULL: Self = Self(0);
    /// Reserved but not yet written; reads as zeroes.
    pub const NEW: Self = Self(u32::MAX);
    /// First slot of a compressed cluster.
    pub const COMPRESSED: Self = Self(u32::MAX - 1);

    /// Whether it names a block of the device rather than a hole or one of the marks.
    #[must_use]
    pub const fn is_stored(self) -> bool {
        self.0 != Self::NULL.0 && self.0 != Self::NEW.0 && self.0 != Self::COMPRESSED.0
    }
}

impl Nid {
    /// The number unless it is 0, which means "none" on disk.
    #[must_use]
    pub const fn non_zero(self) -> Option<Self> {
        if self.0 == 0 { None } else { Some(self) }
    }

    /// The inode whose own node has this number.
    #[must_use]
    pub const fn as_ino(self) -> Ino {
        Ino(self.0)
    }
}

impl Ino {
    /// The node area's own inode (in memory only).
    pub const NODE: Self = Self(1);
    /// The meta area's own inode (in memory only).
    pub const META: Self = Self(2);
    /// The root directory.
    pub const ROOT: Self = Self(3);

    /// The node that holds this inode.
    #[must_use]
    pub const fn nid(self) -> Nid {
        Nid(self.0)
    }

    /// The number unless it is 0, which means "none" on disk.
    #[must_use]
    pub const fn non_zero(self) -> Option<Self> {
        if self.0 == 0 { None } else { Some(self) }
    }
}

impl From<Ino> for Nid {
    fn from(ino: Ino) -> Self {
        ino.nid()
    }
}

/// A log: where new blocks of one kind and temperature are appended. Segments remember which log
/// filled them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Log {
    /// Directory data.
    HotData,
    /// Ordinary file data.
    WarmData,
    /// Data that is unlikely to change: media by extension, what cleaning moved.
    ColdData,
    /// Inodes and direct nodes of directories.
    HotNode,
    /// Inodes and direct nodes of everything else.
    WarmNode,
    /// Indirect nodes.
    ColdNode,
}

impl Log {
    /// All, in the order of their codes.
    pub const ALL: [Self; 6] = [
        Self::HotData,
        Self::WarmData,
        Self::ColdData,
        Self::HotNode,
        Self::WarmNode,
        Self::ColdNode,
    ];
    /// The logs of data.
    pub const DATA: [Self; 3] = [Self::HotData, Self::WarmData, Self::ColdData];
    /// The logs of nodes.
    pub const NODE: [Self; 3] = [Self::HotNode, Self::WarmNode, Self::ColdNode];

    /// From a segment's type code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::HotData),
            1 => Some(Self::WarmData),
            2 => Some(Self::ColdData),
            3 => Some(Self::HotNode),
            4 => Some(Self::WarmNode),
            5 => Some(Self::ColdNode),
            _ => None,
        }
    }

    /// The segment's type code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::HotData => 0,
            Self::WarmData => 1,
            Self::ColdData => 2,
            Self::HotNode => 3,
            Self::WarmNode => 4,
            Self::ColdNode => 5,
        }
    }

    /// Whether it takes nodes.
    #[must_use]
    pub const fn is_node(self) -> bool {
        self.code() >= 3
    }

    /// Position among the logs of its kind: 0 hot, 1 warm, 2 cold.
    #[must_use]
    pub const fn temperature(self) -> usize {
        (self.code() % 3) as usize
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HotData => "hot data",
            Self::WarmData => "warm data",
            Self::ColdData => "cold data",
            Self::HotNode => "hot node",
            Self::WarmNode => "warm node",
            Self::ColdNode => "cold node",
        })
    }
}

/// A point in time: 64 bits of signed seconds and a word of nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// Nanoseconds past `secs`, below one billion.
    pub nanos: u32,
}

impl Timestamp {
    /// From the stored words; impossible nanoseconds become the largest possible.
    #[must_use]
    pub fn decode(secs: u64, nanos: u32) -> Self {
        Self {
            secs: secs as i64,
            nanos: nanos.min(999_999_999),
        }
    }
}

impl From<crate::ext4::Timestamp> for Timestamp {
    fn from(t: crate::ext4::Timestamp) -> Self {
        Self {
            secs: t.secs,
            nanos: t.nanos,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_round_trip() {
        for (code, log) in Log::ALL.into_iter().enumerate() {
            assert_eq!(Log::from_code(code as u8), Some(log));
            assert_eq!(usize::from(log.code()), code);
            assert_eq!(log.is_node(), code >= 3);
        }
        assert_eq!(Log::from_code(6), None);
    }

    #[test]
    fn marks_are_no_addresses() {
        for mark in [BlockAddr::NULL, BlockAddr::NEW, BlockAddr::COMPRESSED] {
            assert!(!mark.is_stored());
        }
        assert!(BlockAddr(1).is_stored());
        assert_eq!(Nid(0).non_zero(), None);
        assert_eq!(Ino::ROOT.nid(), Nid(3));
    }
}
