//! What a round learns: inodes in use, directories and their blocks, clusters in use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use blockwright_ondisk::ext4::dir::DirFormat;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, FileKind, Geometry, GroupNo, Ino};

use super::blockmap::BlockMap;
use super::issue::Metadata;
use crate::Stats;

/// An inode in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeState {
    pub ino: Ino,
    /// `None`: the mode names no file type.
    pub kind: Option<FileKind>,
    /// Link count as stored.
    pub links: u16,
    pub marks: Marks,
    /// Links counted.
    pub found: u32,
}

/// What is special about an inode in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Marks {
    /// Holds an attribute value.
    pub ea_inode: bool,
    /// Waits to be deleted: no name is expected.
    pub orphan: bool,
    /// Cannot be used; names of it are to be removed.
    pub bad: bool,
}

/// What the walk of a mapping found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mapped {
    pub sectors: u64,
    pub end: u64,
    pub written_end: u64,
}

/// Known properties of a journal that was given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct OldJournal {
    pub blocks: u64,
    pub fast_commit: bool,
}

/// Inodes in use, ascending.
#[derive(Default)]
pub(super) struct InodeTable {
    list: Vec<InodeState>,
}

impl InodeTable {
    /// Adds an inode; they come in ascending order.
    pub fn push(&mut self, state: InodeState) {
        debug_assert!(self.list.last().is_none_or(|l| l.ino < state.ino));
        self.list.push(state);
    }

    fn position(&self, ino: Ino) -> Option<usize> {
        self.list.binary_search_by_key(&ino, |s| s.ino).ok()
    }

    pub fn get(&self, ino: Ino) -> Option<&InodeState> {
        self.position(ino).map(|n| &self.list[n])
    }

    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut InodeState> {
        self.position(ino).map(|n| &mut self.list[n])
    }

    pub fn iter(&self) -> std::slice::Iter<'_, InodeState> {
        self.list.iter()
    }

    /// Inodes of a group.
    pub fn of_group(&self, geo: &Geometry, group: GroupNo) -> &[InodeState] {
        let first = group.0 * geo.inodes_per_group + 1;
        let from = self.list.partition_point(|s| s.ino.0 < first);
        let to = self
            .list
            .partition_point(|s| s.ino.0 < first.saturating_add(geo.inodes_per_group));
        &self.list[from..to]
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }
}

/// Consecutive blocks of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirRun {
    pub logical: u32,
    pub physical: BlockNo,
    pub len: u32,
}

/// A directory.
#[derive(Clone, Debug)]
pub(super) struct DirInfo {
    pub ino: Ino,
    pub generation: u32,
    pub size: u64,
    pub index: bool,
    pub inline: bool,
    pub encrypted: bool,
    pub casefold: bool,
    /// Where its runs are in [`Scan::dir_runs`].
    pub runs: std::ops::Range<usize>,
    /// What its ".." says; 0 while unknown.
    pub dotdot: Ino,
    /// The directory that has an entry for it; 0 while unknown.
    pub parent: Ino,
}

impl DirInfo {
    /// The form of its entries.
    pub fn format(&self, geo: &Geometry) -> DirFormat {
        let mut flags = InodeFlags::empty();
        flags.set(InodeFlags::ENCRYPT, self.encrypted);
        flags.set(InodeFlags::CASEFOLD, self.casefold);
        DirFormat::of(geo, flags)
    }
}

/// An attribute block.
#[derive(Clone, Copy, Debug)]
pub(super) struct EaBlock {
    /// References as stored.
    pub stored: u32,
    /// References counted.
    pub counted: u32,
    /// Whether it can be used.
    pub valid: bool,
    /// What its values in inodes of their own count for in each file that refers to it.
    pub values: Values,
}

/// The blocks and bytes that attribute values in separate inodes add to the file that refers to
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Values {
    pub sectors: u64,
    pub inodes: u64,
}

impl std::ops::AddAssign for Values {
    fn add_assign(&mut self, other: Self) {
        self.sectors += other.sectors;
        self.inodes += other.inodes;
    }
}

/// Hashes of the contents of inodes that hold attribute values.
#[derive(Default)]
pub(super) struct ValueSums {
    /// By inode; `None` where the contents were not read.
    pub by_inode: HashMap<u32, Option<u32>>,
    /// Bytes that were read for them, without and in holes of a sparse image.
    pub read: u64,
    pub holes: u64,
}

/// Space and inodes of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// What a round learns.
pub(super) struct Scan {
    /// Clusters in use.
    pub used: BlockMap,
    /// Clusters used more than once.
    pub twice: BlockMap,
    /// Clusters of the volume's own metadata.
    pub metadata: BlockMap,
    /// The same in blocks, first and number: several structures may share a cluster.
    metadata_runs: BTreeMap<u64, u64>,
    pub inodes: InodeTable,
    /// Inodes on the orphan list or in the orphan file.
    pub orphans: BTreeSet<u32>,
    pub dirs: Vec<DirInfo>,
    pub dir_runs: Vec<DirRun>,
    pub ea_blocks: BTreeMap<u64, EaBlock>,
    /// References to inodes that hold attribute values.
    pub ea_refs: HashMap<u32, u64>,
    pub value_sums: ValueSums,
    /// Inodes that hold attribute values, and do not say so.
    pub holders_to_mark: BTreeSet<u32>,
    /// Bitmaps that must be given another place.
    pub relocate: Vec<(GroupNo, Metadata)>,
    /// Inodes whose mapping must be laid out anew.
    pub remap: BTreeSet<u32>,
    /// Blocks of inodes that others use too, and that they get copies of.
    pub unshare: BTreeMap<u32, Vec<(BlockNo, u64)>>,
    /// Those of them that are to be cut to their size.
    pub truncate: BTreeSet<u32>,
    /// Directories whose holes are to be closed.
    pub compact: BTreeSet<u32>,
    /// A block to add at the end of a directory.
    pub append: BTreeMap<u32, BlockNo>,
    /// Directories, by position, with a second name in a directory that their ".." agrees with.
    pub second_names: BTreeSet<(usize, u32)>,
    /// By directory: subdirectories that it has a name of, and that belong to another one.
    pub second_links: BTreeMap<u32, BTreeSet<u32>>,
    /// Names were added or removed: link counts are for the next round.
    pub restart_links: bool,
    /// The round must end before what depends on mappings is looked at.
    pub restart: bool,
    /// Directories whose index must go.
    pub unindex: BTreeSet<u32>,
    /// Inodes without a name, to be put into lost+found.
    pub unattached: Vec<Ino>,
    /// Inodes that stay without a name: there is no room for it, or nothing is repaired.
    pub unnamed: BTreeSet<u32>,
    /// Policies of encrypted inodes.
    pub policies: HashMap<u32, Vec<u8>>,
    /// Inodes in use behind the marks of their groups: the last one of each group.
    pub behind_marks: BTreeMap<u32, u32>,
    /// Marks were raised: the round ends, and what was behind them is for the next one.
    pub marks_raised: bool,
    /// Names of inodes behind marks were looked for.
    pub names_sought: bool,
    /// Usage by owner: user, group, project.
    pub usage: [HashMap<u32, Usage>; 3],
    /// Symbolic links with inline data among them, which e2fsck does not count.
    pub inline_links: [HashMap<u32, u64>; 3],
    /// Times a block of a mapping already in use was followed nevertheless.
    pub reentries: u32,
    /// Groups whose metadata is not there.
    pub groups_missing: u32,
    pub stats: Stats,
}

impl Scan {
    pub fn new(geo: &Geometry) -> Self {
        Self {
            used: BlockMap::new(geo),
            twice: BlockMap::new(geo),
            metadata: BlockMap::new(geo),
            metadata_runs: BTreeMap::new(),
            inodes: InodeTable::default(),
            orphans: BTreeSet::new(),
            dirs: Vec::new(),
            dir_runs: Vec::new(),
            ea_blocks: BTreeMap::new(),
            ea_refs: HashMap::new(),
            value_sums: ValueSums::default(),
            holders_to_mark: BTreeSet::new(),
            relocate: Vec::new(),
            remap: BTreeSet::new(),
            unshare: BTreeMap::new(),
            truncate: BTreeSet::new(),
            compact: BTreeSet::new(),
            append: BTreeMap::new(),
            second_names: BTreeSet::new(),
            second_links: BTreeMap::new(),
            restart_links: false,
            restart: false,
            unindex: BTreeSet::new(),
            unattached: Vec::new(),
            unnamed: BTreeSet::new(),
            policies: HashMap::new(),
            behind_marks: BTreeMap::new(),
            marks_raised: false,
            names_sought: false,
            usage: Default::default(),
            inline_links: Default::default(),
            reentries: 0,
            groups_missing: 0,
            stats: Stats::default(),
        }
    }

    /// Enters blocks of the volume's own metadata.
    pub fn claim_metadata(&mut self, first: BlockNo, len: u64) {
        self.used.insert_run(first, len, None);
        self.metadata.insert_run(first, len, None);
        let known = self.metadata_runs.entry(first.0).or_default();
        *known = len.max(*known);
    }

    /// Whether blocks overlap metadata entered before.
    pub fn metadata_overlaps(&self, first: BlockNo, len: u64) -> bool {
        let before = self.metadata_runs.range(..=first.0).next_back();
        let end = first.0.saturating_add(len);
        before.is_some_and(|(start, n)| start + n > first.0)
            || self.metadata_runs.range(first.0..end).next().is_some()
    }

    /// The directory with this inode number.
    pub fn dir_position(&self, ino: Ino) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |d| d.ino).ok()
    }
}
