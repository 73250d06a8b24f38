//! What a round learns: inodes, directory blocks, blocks in use.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use blockwright_ondisk::f2fs::compress::Algorithm;
use blockwright_ondisk::f2fs::summary::{Summary, SummaryBlock};
use blockwright_ondisk::f2fs::{BlockAddr, FileKind, Ino, Log, Nid, SegNo};

use crate::Stats;

/// An inode in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeState {
    pub kind: FileKind,
    /// Links as stored.
    pub links: u32,
    /// The parent that the inode itself names.
    pub pino: Ino,
    /// Names counted, "." and ".." not.
    pub names: u64,
    /// Of a directory: directories named in it.
    pub subdirs: u64,
    /// The directory that named it first.
    pub parent: Ino,
    /// Whether the root leads to it.
    pub reached: bool,
}

/// A block of a directory, or of a quota file.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirBlock {
    pub dir: Ino,
    /// Which of the directory's blocks.
    pub at: u64,
    pub block: BlockAddr,
    /// The node that maps it, and the address there.
    pub owner: (Nid, u16),
}

/// A directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirInfo {
    pub ino: Ino,
    /// Its first block in the list of blocks; none for inline entries.
    pub blocks: usize,
    pub inline: bool,
    pub casefold: bool,
    /// How the volume's encoding folds names is known.
    pub folding_known: bool,
    pub encrypted: bool,
    pub dir_level: u8,
    pub depth: u32,
    pub size: u64,
    pub dots_pending: bool,
}

/// Where entries are.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntryPlace {
    /// In the directory's inode.
    Inline,
    /// In a block.
    Block(DirBlock),
}

/// A "..".
#[derive(Clone, Copy, Debug)]
pub(super) struct DotDot {
    pub dir: Ino,
    pub found: Ino,
    pub place: EntryPlace,
    pub slot: usize,
}

/// Blocks of a segment in use.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SegmentUse {
    pub map: blockwright_ondisk::f2fs::sit::ValidMap,
    pub nodes: u16,
    pub data: u16,
}

/// What the summaries say of the owner of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Named {
    /// They name it.
    Yes,
    /// They do not know the block.
    Unknown,
    /// They name another one.
    Other,
}

/// An address that takes its block only after all nodes and the owners that summaries name have theirs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disputed {
    pub ino: Ino,
    pub block: BlockAddr,
    pub summary: Summary,
    pub named: Named,
}

/// Summaries of the segments that the logs are in: those of the checkpoint pack, not of the SSA.
#[derive(Default)]
pub(super) struct LogSummaries {
    /// By segment; `None` where the pack has none.
    pub by_segment: BTreeMap<u32, (Log, Option<SummaryBlock>)>,
}

/// Summary blocks of the SSA.
#[derive(Default)]
pub(super) struct SsaCache {
    pub blocks: HashMap<u32, Vec<u8>>,
}

/// Blocks in segments that are not free which neither the repair nor the checkpoint on the device uses.
#[derive(Default)]
pub(super) struct Holes {
    /// Beside data, and beside nodes.
    pub beside: [usize; 2],
    /// In segments of which the repair uses nothing any more: either kind may take one.
    pub left: BTreeMap<u32, usize>,
}

/// Where the next new blocks are: of nodes, and of data.
#[derive(Default)]
pub(super) struct NewBlocks {
    pub node: Option<(SegNo, u16)>,
    pub data: Option<(SegNo, u16)>,
    /// Those that were taken.
    pub places: HashSet<u32>,
    /// Other blocks that were changed, and need a new place: of data, and of nodes.
    pub changed: [usize; 2],
    /// No segment in front of it is free, in this round.
    pub free_from: u32,
    /// No node's number in front of it is free, in this round.
    pub nid_from: u32,
    /// Free segments seen last, which changed blocks may need.
    pub spare: Vec<SegNo>,
    /// Where there is room besides, once it was counted in this round.
    pub holes: Option<Holes>,
    /// No hole is in front of it, in this round: of data, and of nodes.
    pub holes_from: [(u32, u16); 2],
    /// Kinds that got no block in this round because no segment has room.
    pub refused: [bool; 2],
}

impl NewBlocks {
    /// Forgets what holds for one round only.
    pub fn begin_round(&mut self) {
        (self.free_from, self.nid_from) = (0, 0);
        self.spare.clear();
        self.holes = None;
        self.holes_from = [(0, 0); 2];
        self.refused = [false; 2];
    }

    /// Whether a block was refused in this round because no segment has room.
    pub fn lacks_room(&self) -> bool {
        self.refused.contains(&true)
    }
}

/// A compressed cluster whose addresses are sound.
#[derive(Debug)]
pub(super) struct Cluster {
    pub ino: Ino,
    /// Blocks of the compressed data.
    pub blocks: Vec<BlockAddr>,
    pub algorithm: Algorithm,
    /// Whether the data has a checksum.
    pub summed: bool,
    /// Blocks of the cluster when it is unpacked.
    pub len: usize,
}

/// The clusters whose contents are to be examined.
#[derive(Default, Debug)]
pub(super) struct Clusters {
    pub list: Vec<Cluster>,
    /// Bytes of their compressed data.
    pub bytes: u64,
    /// Clusters beyond the limit.
    pub skipped: u64,
}

/// What a round learns.
#[derive(Default)]
pub(super) struct Scan {
    pub inodes: BTreeMap<u32, InodeState>,
    /// Nodes met.
    pub visited: HashSet<u32>,
    pub segments: BTreeMap<u32, SegmentUse>,
    pub disputed: Vec<Disputed>,
    /// Addresses (node, position) that lost their block to another.
    pub lost: HashSet<(u32, u16)>,
    /// The correct contents of summaries that are wrong.
    pub ssa: SsaCache,
    pub summaries_wrong: BTreeMap<u32, Vec<(u16, Summary)>>,
    /// The contents of summaries that are missing.
    pub summaries_missing: BTreeMap<u32, Vec<(u16, Summary)>>,
    pub dirs: Vec<DirInfo>,
    pub dir_blocks: Vec<DirBlock>,
    /// The same by directory and position, once a name is added.
    pub dir_index: Option<HashMap<(Ino, u64), DirBlock>>,
    /// Blocks counted: in use and reserved.
    pub blocks: u64,
    pub nodes: u64,
    /// Where directories keep their "..", and what it names.
    pub dotdots: Vec<DotDot>,
    pub lost_found: Option<Ino>,
    /// Tops of what nothing leads to.
    pub unreached: Vec<Ino>,
    /// Names changed after they were counted.
    pub restart: bool,
    /// What users, groups and projects use.
    pub usage: [BTreeMap<u32, blockwright_ondisk::common::quota::tree::Usage>; 3],
    /// Blocks of the quota files, by inode and position.
    pub quota_blocks: BTreeMap<(u32, u64), DirBlock>,
    /// Inodes that cannot be used.
    pub bad: BTreeSet<u32>,
    /// Compressed clusters whose contents are to be looked at.
    pub clusters: Clusters,
    pub stats: Stats,
}

impl Scan {
    /// Takes a block. `false` when it is taken already.
    pub fn take(&mut self, segment: u32, offset: u16, node: bool) -> bool {
        let used = self.segments.entry(segment).or_default();
        if used.map.get(offset) {
            return false;
        }
        used.map.set(offset, true);
        if node {
            used.nodes += 1;
        } else {
            used.data += 1;
        }
        true
    }

    /// Gives a block back.
    pub fn give_back(&mut self, segment: u32, offset: u16, node: bool) {
        if let Some(used) = self.segments.get_mut(&segment)
            && used.map.get(offset)
        {
            used.map.set(offset, false);
            if node {
                used.nodes = used.nodes.saturating_sub(1);
            } else {
                used.data = used.data.saturating_sub(1);
            }
        }
    }
}
