//! Everything that can be wrong with a volume: one variant per check.
//!
//! Messages name structure, node and block. Where a structure's own parser says what is wrong with
//! it, the variant carries that error.

use blockwright_ondisk::f2fs::{BlockAddr, FormatError, Ino, Log, Nid, SegNo};
use thiserror::Error;

use crate::report::Severity;

/// Of a segment's blocks, in [`IssueKind::SegmentType`].
pub(super) const NODES_AND_DATA: &str = "nodes and data";

/// An issue of an f2fs volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Error)]
#[allow(missing_docs)] // the messages say it; fields are what was found and what was expected
#[non_exhaustive]
pub enum IssueKind {
    // Superblocks and checkpoints.
    #[error("superblock copy {copy}: unusable ({error})")]
    SuperblockBad { copy: u8, error: FormatErrorBox },
    #[error("superblock: its two copies differ")]
    SuperblockCopies,
    #[error(
        "superblock: directories may be case-insensitive, but no encoding of names is given; Linux does not mount the volume"
    )]
    EncodingMissing,
    #[error(
        "superblock: the name encoding {encoding} is not known; names of case-insensitive directories are not compared with their hashes, and Linux does not mount the volume"
    )]
    EncodingUnknown { encoding: u16 },
    #[error("checkpoint pack {pack}: unusable ({error})")]
    CheckpointBad { pack: u8, error: FormatErrorBox },
    #[error("checkpoint pack {pack}: written whole, but impossible ({error})")]
    CheckpointField { pack: u8, error: FormatErrorBox },
    #[error(
        "checkpoint pack {pack}: the newest, written whole, but impossible ({error}); the other one lacks what was synced since"
    )]
    CheckpointImpossible { pack: u8, error: FormatErrorBox },
    #[error("checkpoint: {error}")]
    PackLayout { error: FormatErrorBox },
    #[error("checkpoint: summaries of the {log} log are of the wrong kind")]
    PackSummary { log: Log },
    #[error("checkpoint: the volume was marked as damaged ({flags})")]
    MarkedErroneous { flags: &'static str },
    #[error(
        "checkpoint: what the quota files count is out of date; a repair or the next mount counts anew"
    )]
    QuotaUncounted,
    #[error("checkpoint: checkpoints are disabled")]
    CheckpointDisabled,
    #[error(
        "checkpoint: {files} files written by fsync wait to be recovered ({nodes} nodes); a mount recovers them, or says why it does not"
    )]
    RecoveryPending { nodes: u64, files: u64 },
    #[error(
        "the node in block {block}, of the files that wait to be recovered: {what}; a mount recovers none of them and writes nothing \
         (`blockwright check -y --discard-fsynced` gives them up)"
    )]
    RecoveryRefused {
        block: BlockAddr,
        what: &'static str,
    },
    #[error(
        "checkpoint: {files} files written by fsync waited to be recovered ({nodes} nodes); they are as the checkpoint has them"
    )]
    RecoveryDiscarded { nodes: u64, files: u64 },
    #[error("inode {ino}, {name:?}: written by fsync since the checkpoint")]
    RecoveryFile { ino: Ino, name: String },
    #[error("{what} journal: {found} entries, at most {max} are possible")]
    JournalCount {
        what: &'static str,
        found: u16,
        max: usize,
    },
    #[error("{what} journal, entry {index}: {error}")]
    JournalEntry {
        what: &'static str,
        index: usize,
        error: FormatErrorBox,
    },
    #[error("orphan block {block}: {error}")]
    OrphanBlock {
        block: BlockAddr,
        error: FormatErrorBox,
    },
    #[error("orphan list: there is no inode {ino}")]
    OrphanMissing { ino: Ino },
    #[error("inode {ino} has no name any more and waits to be deleted")]
    OrphanPending { ino: Ino },
    #[error("NAT bits: {error}")]
    NatBits { error: FormatErrorBox },
    #[error("NAT bits: wrong about block {index} of the NAT ({used} nodes)")]
    NatBitsWrong { index: u32, used: u32 },
    #[error("checkpoint: {log} log in segment {segment}, which is of the {found} log")]
    LogSegmentType {
        log: Log,
        segment: SegNo,
        found: Log,
    },
    #[error(
        "checkpoint: {log} log would go on over block {offset} of segment {segment}, which is in use"
    )]
    LogOffset {
        log: Log,
        segment: SegNo,
        offset: u16,
    },
    #[error("checkpoint: {log} log allocates in an unknown way ({found})")]
    LogAllocation { log: Log, found: u8 },
    #[error("checkpoint: {found} blocks in use, counted {counted}")]
    ValidBlocks { found: u64, counted: u64 },
    #[error("checkpoint: {found} nodes, counted {counted}")]
    ValidNodes { found: u32, counted: u64 },
    #[error("checkpoint: {found} inodes, counted {counted}")]
    ValidInodes { found: u32, counted: u64 },
    #[error("checkpoint: {found} free segments, counted {counted}")]
    FreeSegments { found: u32, counted: u32 },

    // Tables.
    #[error("{error}")]
    NatEntry { error: FormatErrorBox },
    #[error("NAT entry {nid}, which is no node's: block {found}, expected {expected}")]
    NatReserved {
        nid: Nid,
        found: BlockAddr,
        expected: BlockAddr,
    },
    #[error("{error}")]
    SitEntry { error: FormatErrorBox },
    #[error(
        "SIT entry {segment}: {missing} blocks in use are not marked, {extra} are marked that are not; the first is block {first}"
    )]
    SitBitmap {
        segment: SegNo,
        first: BlockAddr,
        missing: u16,
        extra: u16,
    },
    #[error("SIT entry {segment}: of the {found} log, but its blocks are {what}")]
    SegmentType {
        segment: SegNo,
        found: Log,
        what: &'static str,
    },
    #[error("summaries of segment {segment}: of the wrong kind")]
    SummaryKind { segment: SegNo },
    #[error("summaries of segment {segment}: wrong in {count} places, the first is block {first}")]
    SummaryEntries {
        segment: SegNo,
        first: BlockAddr,
        count: u16,
    },

    // Nodes and addresses.
    #[error("node {nid}: {error}")]
    NodeFooter { nid: Nid, error: FormatErrorBox },
    #[error("node {nid} of inode {ino}: at offset {found} of the tree, expected {expected}")]
    NodeOffset {
        nid: Nid,
        ino: Ino,
        found: u32,
        expected: u32,
    },
    #[error("node {nid} of inode {ino}: the next node's block {next} is outside of the main area")]
    NodeNext { nid: Nid, ino: Ino, next: BlockAddr },
    #[error("inode {ino}: its node {nid} does not exist")]
    NodeMissing { ino: Ino, nid: Nid },
    #[error("inode {ino}: its node {nid} is in use elsewhere")]
    NodeShared { ino: Ino, nid: Nid },
    #[error("NAT entry {nid}: of inode {found}, expected {expected}")]
    NodeOwner { nid: Nid, found: Ino, expected: Ino },
    #[error("node {nid} of inode {ino} belongs to no file")]
    NodeUnreachable { nid: Nid, ino: Ino },
    #[error("inode {ino}: {error}")]
    DataAddress { ino: Ino, error: FormatErrorBox },
    #[error("inode {ino}: block {block} (node {nid}, address {position}) is in use elsewhere")]
    BlockShared {
        ino: Ino,
        nid: Nid,
        position: u16,
        block: BlockAddr,
    },
    #[error(
        "inode {ino}: block {block} (node {nid}, address {position}) is an unused one of a segment of nodes"
    )]
    BlockForeign {
        ino: Ino,
        nid: Nid,
        position: u16,
        block: BlockAddr,
    },
    #[error("inode {ino}: node {nid}, address {position} is marked as compressed, which cannot be")]
    CompressMark { ino: Ino, nid: Nid, position: u16 },
    #[error("inode {ino}: the compressed cluster at address {position} of node {nid}: {error}")]
    CompressCluster {
        ino: Ino,
        nid: Nid,
        position: u16,
        error: FormatErrorBox,
    },
    #[error("inode {ino}: compression saved {found} blocks, counted {counted}")]
    CompressSaved { ino: Ino, found: u64, counted: u64 },
    #[error("inode {ino}: {error}: what is compressed cannot be read")]
    CompressAlgorithm { ino: Ino, error: FormatErrorBox },
    #[error(
        "inode {ino}: compressed in clusters of 2^{found} blocks, which cannot be: what is compressed cannot be read"
    )]
    CompressClusterSize { ino: Ino, found: u8 },
    #[error(
        "inode {ino}: the contents of {count} compressed clusters cannot be unpacked ({error})"
    )]
    CompressContents {
        ino: Ino,
        count: u64,
        error: FormatErrorBox,
    },
    #[error("the contents of {count} more compressed clusters were not looked at")]
    CompressUnseen { count: u64 },

    // Inodes.
    #[error("{error}")]
    InodeChecksum { error: FormatErrorBox },
    #[error("{error}; the inode is unusable")]
    InodeUnusable { error: FormatErrorBox },
    #[error("{error}")]
    InodeField { error: FormatErrorBox },
    #[error("inode {ino}: {found} blocks, counted {counted}")]
    InodeBlocks { ino: Ino, found: u64, counted: u64 },
    #[error("inode {ino}: {found} links, counted {counted}")]
    InodeLinks { ino: Ino, found: u32, counted: u64 },
    #[error(
        "inode {ino}: {found} bytes of extra attributes, but its checksum is right with {expected}"
    )]
    InodeExtraSize { ino: Ino, found: u16, expected: u16 },
    #[error("inode {ino}: its extent is not what its nodes map")]
    InodeExtent { ino: Ino },
    #[error(
        "inode {ino}: case-insensitive, but no directory, or the volume has no such directories or no encoding of names"
    )]
    CasefoldFlag { ino: Ino },
    #[error("inode {ino}: compressed, but the volume has no such files")]
    CompressFlag { ino: Ino },
    #[error(
        "inode {ino}: to be compressed by algorithm {algorithm}, in clusters of 2^{log} blocks, which cannot be; nothing of it is"
    )]
    CompressUnknown { ino: Ino, algorithm: u8, log: u8 },
    #[error("inode {ino}: cleaning failed {found} times, but it is not pinned")]
    GcFailures { ino: Ino, found: u16 },
    #[error("inode {ino}: contents are inline, but the word before them is {found:#x}")]
    InlineReserved { ino: Ino, found: u32 },
    #[error("inode {ino}: contents are inline, which no {what} file's are")]
    InlineFlag { ino: Ino, what: &'static str },
    #[error("inode {ino}: contents are inline, and said not to be there")]
    InlineUnsaid { ino: Ino },
    #[error("inode {ino}: contents are inline, but it has node {nid}")]
    InlineNode { ino: Ino, nid: Nid },
    #[error("inode {ino}: symbolic link to nowhere")]
    SymlinkEmpty { ino: Ino },
    #[error("inode {ino}: a symbolic link whose target is not there, or begins with a zero byte")]
    SymlinkTarget { ino: Ino },
    #[error("inode {ino}: {error}")]
    Xattr { ino: Ino, error: FormatErrorBox },
    #[error("inode {ino} has no name")]
    InodeUnreachable { ino: Ino },
    #[error("the root directory is unusable")]
    RootMissing,
    #[error("{kind} quota inode {ino}: {what}")]
    QuotaInode {
        kind: &'static str,
        ino: Ino,
        what: &'static str,
    },
    #[error("{kind} quota file, inode {ino}: {what}")]
    QuotaFile {
        kind: &'static str,
        ino: Ino,
        what: String,
    },
    #[error(
        "{kind} quota of {id}: {found_bytes} bytes and {found_inodes} inodes, counted {bytes} and {inodes}"
    )]
    QuotaUsage {
        kind: &'static str,
        id: u32,
        found_bytes: u64,
        found_inodes: u64,
        bytes: u64,
        inodes: u64,
    },

    // Directories.
    #[error("directory {dir}, block {block}: {error}")]
    DirEntry {
        dir: Ino,
        block: u64,
        error: FormatErrorBox,
    },
    #[error("directory {dir}, block {block}: slots of {name:?} are marked free")]
    DirSlots { dir: Ino, block: u64, name: String },
    #[error("directory {dir}, {name:?}: hash {found:#010x}, expected {expected:#010x}")]
    DirHash {
        dir: Ino,
        name: String,
        found: u32,
        expected: u32,
    },
    #[error("directory {dir}, {name:?}: in block {block}, where it is not looked for")]
    DirPlace { dir: Ino, name: String, block: u64 },
    #[error("directory {dir}: size {found}, at least {expected} expected")]
    DirSize { dir: Ino, found: u64, expected: u64 },
    #[error("directory {dir}: {found} levels, at least {expected} expected")]
    DirDepth { dir: Ino, found: u32, expected: u32 },
    #[error(
        "directory {dir}: its hash tables begin at level {found}, but its names are where level {expected} puts them"
    )]
    DirLevel { dir: Ino, found: u8, expected: u8 },
    #[error("directory {dir}: {name:?} names inode {found}, expected {expected}")]
    DotTarget {
        dir: Ino,
        name: &'static str,
        found: Ino,
        expected: Ino,
    },
    #[error("directory {dir}: its inode names {found} as its parent, expected {expected}")]
    DirParent { dir: Ino, found: Ino, expected: Ino },
    #[error("directory {dir}: no {name:?}")]
    DotMissing { dir: Ino, name: &'static str },
    #[error("directory {dir}: \".\" and \"..\" wait to be added")]
    DotsPending { dir: Ino },
    #[error("directory {dir}, {name:?}: there is no inode {ino}")]
    EntryDangling { dir: Ino, name: String, ino: Ino },
    #[error("directory {dir}, {name:?}: of the wrong type for inode {ino}")]
    EntryType { dir: Ino, name: String, ino: Ino },
    #[error("directory {dir}, {name:?}: inode {ino} is a hidden one")]
    EntryHidden { dir: Ino, name: String, ino: Ino },
    #[error("directory {dir}, {name:?}: directory {ino} has another name already")]
    EntryDirTwice { dir: Ino, name: String, ino: Ino },
    #[error("directory {dir}: {name:?} twice")]
    NameTwice { dir: Ino, name: String },
}

/// A [`FormatError`] as a part of an issue.
pub type FormatErrorBox = crate::format_error::FormatErrorBox<FormatError>;

impl FormatErrorBox {
    /// Whether the field is counted anew from what the volume holds, so that nothing is lost when it changes.
    fn is_counted(&self) -> bool {
        matches!(
            *self.0,
            FormatError::CpValidBlocks { .. }
                | FormatError::CpNodes { .. }
                | FormatError::CpSegments { what: "free", .. }
                | FormatError::CpNextNid { .. }
        )
    }
}

impl IssueKind {
    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            // Of two packs one is always old; a crash tears the one that is being written.
            Self::CheckpointBad { .. }
            | Self::MarkedErroneous { .. }
            | Self::CheckpointDisabled
            | Self::EncodingUnknown { .. }
            | Self::QuotaUncounted
            | Self::RecoveryPending { .. }
            | Self::RecoveryFile { .. }
            | Self::OrphanPending { .. }
            | Self::DotsPending { .. }
            // Contents are the file's own; the structure is sound.
            | Self::CompressContents { .. }
            | Self::SymlinkTarget { .. }
            | Self::CompressUnseen { .. }
            // Nothing follows it but recovery, which starts at a log's head. A change of size leaves such nodes.
            | Self::NodeNext { .. }
            // Only a checkpoint of an unmount brings new ones; others' are ignored.
            | Self::NatBits { .. } => Severity::Note,
            Self::SuperblockCopies
            | Self::SuperblockBad { .. }
            | Self::NatBitsWrong { .. }
            | Self::LogAllocation { .. }
            | Self::ValidBlocks { .. }
            | Self::ValidNodes { .. }
            | Self::ValidInodes { .. }
            | Self::FreeSegments { .. }
            | Self::SitBitmap { .. }
            | Self::SummaryKind { .. }
            | Self::SummaryEntries { .. }
            | Self::InodeBlocks { .. }
            | Self::CompressSaved { .. }
            | Self::InodeLinks { .. }
            | Self::OrphanMissing { .. }
            | Self::DirParent { .. }
            | Self::NatReserved { .. }
            | Self::GcFailures { .. }
            | Self::QuotaUsage { .. }
            | Self::EntryType { .. } => Severity::Minor,
            Self::RootMissing => Severity::Fatal,
            _ => Severity::Damage,
        }
    }

    /// Whether it is repaired without asking a human ([`crate::Mode::Preen`]): everything needed is
    /// known from elsewhere, and nothing is lost.
    #[must_use]
    pub fn preen_safe(&self) -> bool {
        self.severity() <= Severity::Minor
            || matches!(
                self,
                Self::LogSegmentType { .. }
                    | Self::LogOffset { .. }
                    | Self::InodeExtent { .. }
            )
            // To part them, nodes move.
            || matches!(self, Self::SegmentType { what, .. } if *what != NODES_AND_DATA)
            || matches!(self, Self::CheckpointField { error, .. } if error.is_counted())
    }

    /// Whether no mode repairs it.
    #[must_use]
    pub fn unrepairable(&self) -> bool {
        matches!(
            self,
            Self::RootMissing
                | Self::CompressAlgorithm { .. }
                | Self::CompressClusterSize { .. }
                | Self::CompressContents { .. }
                | Self::SymlinkTarget { .. }
                | Self::CompressUnseen { .. }
                | Self::QuotaInode { .. }
                | Self::CheckpointDisabled
                | Self::EncodingUnknown { .. }
                | Self::QuotaUncounted
                | Self::RecoveryPending { .. }
                | Self::RecoveryFile { .. }
                | Self::OrphanPending { .. }
                | Self::DotsPending { .. }
        )
    }
}

impl crate::log::Kind for IssueKind {
    fn severity(&self) -> Severity {
        Self::severity(self)
    }

    fn preen_safe(&self) -> bool {
        Self::preen_safe(self)
    }

    fn unrepairable(&self) -> bool {
        Self::unrepairable(self)
    }
}
