//! Walking what an inode maps, by extents or by a block map.
//!
//! A walk continues behind anything wrong: it reports the problem, leaves the bad part out, and
//! continues with the next entry, so that a repair keeps all that is good.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, Geometry, Ino, Inode};

use super::CheckError;
use super::issue::IssueKind;
use super::store::Store;

mod extents;
mod indirect;

pub(super) use indirect::DIRECT;

/// Consecutive blocks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// First block in the file.
    pub logical: u64,
    /// First block on the device.
    pub physical: BlockNo,
    /// Blocks.
    pub len: u32,
    /// Reads as zeroes.
    pub unwritten: bool,
}

impl Piece {
    /// First block in the file behind the piece.
    pub fn end(&self) -> u64 {
        self.logical + u64::from(self.len)
    }
}

/// Receives everything that an inode maps.
pub(super) trait MapSink {
    /// A block of the mapping itself. Whether to look into it.
    fn tree(&mut self, block: BlockNo) -> bool;
    /// Blocks of data.
    fn piece(&mut self, piece: Piece);
    /// Something wrong with the mapping.
    fn problem(&mut self, kind: IssueKind);
}

/// What is walked.
pub(super) struct Walk<'a> {
    pub store: &'a Store,
    pub geo: &'a Geometry,
    pub ino: Ino,
    pub inode: &'a Inode,
}

impl Walk<'_> {
    /// Walks the mapping. Nothing is walked for inodes without one.
    pub fn run(&self, sink: &mut dyn MapSink) -> Result<(), CheckError> {
        if self.inode.flags.contains(InodeFlags::EXTENTS) {
            extents::walk(self, sink)
        } else {
            indirect::walk(self, sink)
        }
    }
}

/// Collects pieces and tree blocks, silently, and never follows a tree block twice.
#[derive(Default)]
pub(super) struct Collect {
    pub pieces: Vec<Piece>,
    pub tree: std::collections::BTreeSet<BlockNo>,
}

/// Pieces one file is collected of at most: 2^24 of 24 bytes are what a hostile image can cost.
const PIECES_MAX: usize = 1 << 24;

impl MapSink for Collect {
    fn tree(&mut self, block: BlockNo) -> bool {
        self.tree.insert(block)
    }

    fn piece(&mut self, piece: Piece) {
        if let Some(last) = self.pieces.last_mut()
            && last.end() == piece.logical
            && last.physical.0 + u64::from(last.len) == piece.physical.0
            && last.unwritten == piece.unwritten
            && let Some(len) = last.len.checked_add(piece.len)
        {
            last.len = len;
        } else if self.pieces.len() < PIECES_MAX {
            self.pieces.push(piece);
        }
    }

    fn problem(&mut self, _: IssueKind) {}
}
