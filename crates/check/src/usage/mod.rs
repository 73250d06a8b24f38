//! What each block of a volume holds.
//!
//! [`crate::ext4::usage`] and [`crate::f2fs::usage`] return a [`Usage`]: totals by [`Kind`], a bounded number of
//! [`Cell`]s that cover the volume, and the exact [`Run`]s where there are few enough. Each block is counted once.
//!
//! - ext4: bitmaps, inodes and their block maps, as its check reads them. A block that two owners claim counts for the first.
//! - f2fs: the SIT of the last checkpoint alone, so [`Usage::claimed_twice`] and [`Usage::marked_free`] are 0.
//!
//! Damage does not end a walk: blocks whose use cannot be read are [`Kind::Unknown`], and the reason is in
//! [`Usage::issues`] or [`Usage::unread`]. Only what a walk begins with must be readable: the superblock, and on ext4 the
//! group descriptors and the block of multiple-mount protection.
//!
//! Not responsible for: drawing, names of files, repairs. A walk never writes.
//!
//! Invariants: the totals and the cells add up to the volume's blocks. Memory follows the two limits of
//! [`UsageOptions`] and what the check itself keeps, not the size or the fragmentation of the volume.

mod collect;
mod kind;
mod place;

use crate::report::Issue;
use crate::{ProgressFn, Severity};
use blockwright_device::SharedDevice;

pub(crate) use collect::Collector;
pub use kind::Kind;
pub use place::Place;

blockwright_device::with_defaults! {
/// How finely a volume is described.
#[derive(Clone)]
pub struct UsageOptions {
    /// At most this many cells; at least one. A cell covers a power of two of blocks.
    pub cells_max: usize = 1 << 15,
    /// Runs are kept as long as there are at most this many.
    pub runs_max: usize = 1 << 17,
    /// Fragmented files to list.
    pub files_max: usize = 20,
    /// The device that an ext4 journal is on, when it is not on the volume.
    pub journal: Option<SharedDevice> = None,
    /// Called with the progress; stops the walk when it breaks.
    pub progress: Option<ProgressFn> = None,
}
}

impl std::fmt::Debug for UsageOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UsageOptions")
            .field("cells_max", &self.cells_max)
            .field("runs_max", &self.runs_max)
            .field("files_max", &self.files_max)
            .finish_non_exhaustive()
    }
}

/// Consecutive blocks of one kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// First block.
    pub first: u64,
    /// Blocks.
    pub len: u64,
    /// What they hold.
    pub kind: Kind,
}

/// A part of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    counts: [u64; Kind::ALL.len()],
    /// f2fs: when the youngest segment with blocks in use was written, in seconds of mounted time.
    pub written: Option<u64>,
}

impl Cell {
    pub(crate) const EMPTY: Cell = Cell {
        counts: [0; Kind::ALL.len()],
        written: None,
    };

    /// Blocks of a kind.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind.index()]
    }

    /// The kinds that are there, with their blocks.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        let all = Kind::ALL.iter().copied().zip(self.counts);
        all.filter(|(_, n)| *n > 0)
    }

    /// All blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A file in many pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentedFile {
    /// Its inode number.
    pub ino: u64,
    /// Pieces: runs of blocks that are consecutive in the file and on the volume.
    pub pieces: u64,
    /// Blocks.
    pub blocks: u64,
    /// Its first block on the volume.
    pub first: u64,
}

/// Blocks that could not be read, so that what they say is missing from the walk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// What they hold.
    pub what: &'static str,
    /// First block.
    pub first: u64,
    /// Blocks.
    pub len: u64,
    /// Why, for people.
    pub reason: String,
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, first, reason) = (self.what, self.first, &self.reason);
        match self.len {
            0 | 1 => write!(f, "{what}, block {first}: {reason}"),
            n => write!(f, "{what}, blocks {first} to {}: {reason}", first + (n - 1)),
        }
    }
}

/// What each block of a volume holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage<K> {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks of a cell; the last cell may have fewer.
    pub cell_blocks: u64,
    /// The volume in equal parts, in order.
    pub cells: Vec<Cell>,
    /// All runs in order, if there are few enough.
    pub runs: Option<Vec<Run>>,
    /// The files in most pieces, worst first.
    pub fragmented: Vec<FragmentedFile>,
    /// Regular files with blocks (ext4).
    pub files: u64,
    /// Fragmented files among them.
    pub fragmented_files: u64,
    /// f2fs: mounted time at the last checkpoint, in seconds. Ages count back from it.
    pub now: Option<u64>,
    /// Where the parts begin that an anchor can name: groups of ext4, segments of f2fs.
    pub parts: Parts,
    /// ext4: blocks that several owners claim.
    pub claimed_twice: u64,
    /// ext4: blocks with an owner that the bitmaps say are free.
    pub marked_free: u64,
    /// What is wrong with the structures that were read.
    pub issues: Vec<Issue<K>>,
    /// Issues beyond those.
    pub suppressed: u64,
    /// What could not be read.
    pub unread: Vec<Unread>,
    /// Unreadable places beyond those.
    pub unread_more: u64,
}

/// The equal parts that a format divides a volume into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// What one is called.
    pub name: &'static str,
    /// The first block of the first one.
    pub first: u64,
    /// Blocks of each.
    pub blocks: u64,
}

impl<K> Usage<K> {
    /// Blocks of a kind.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.cells.iter().map(|cell| cell.count(kind)).sum()
    }

    /// The kinds that the volume has, with their blocks.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        let all = Kind::ALL.iter().map(|kind| (*kind, self.count(*kind)));
        all.filter(|(_, n)| *n > 0)
    }

    /// Whether something could not be read, or contradicts itself.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.claimed_twice > 0
            || self.marked_free > 0
            || !self.unread.is_empty()
            || self.suppressed > 0
            || self.issues.iter().any(|i| i.severity > Severity::Note)
    }

    /// The same with other issues.
    pub fn map_issues<T>(self, map: impl FnMut(Issue<K>) -> Issue<T>) -> Usage<T> {
        Usage {
            issues: self.issues.into_iter().map(map).collect(),
            block_bytes: self.block_bytes,
            blocks: self.blocks,
            cell_blocks: self.cell_blocks,
            cells: self.cells,
            runs: self.runs,
            fragmented: self.fragmented,
            files: self.files,
            fragmented_files: self.fragmented_files,
            now: self.now,
            parts: self.parts,
            claimed_twice: self.claimed_twice,
            marked_free: self.marked_free,
            suppressed: self.suppressed,
            unread: self.unread,
            unread_more: self.unread_more,
        }
    }
}
