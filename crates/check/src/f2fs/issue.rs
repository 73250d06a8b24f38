//! Everything that can be wrong with a volume: one variant per check.
//!
//! A row is the variant, how bad it is, what becomes of it (`log`), and the message. Messages name structure, node and block. Where a structure's own parser
//! says what is wrong with it, the variant carries that error.

use crate::log::PREEN;
use crate::report::Severity;
use blockwright_ondisk::f2fs::{BlockAddr, FormatError, Ino, Log, Nid, SegNo};

/// Of a segment's blocks, in [`IssueKind::SegmentType`].
pub(super) const NODES_AND_DATA: &str = "nodes and data";

crate::log::issues! {
/// An issue of an f2fs volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the messages say it; fields are what was found and what was expected
#[non_exhaustive]
pub enum IssueKind {
    // Superblocks and checkpoints.
    SuperblockBad { copy: u8, error: FormatErrorBox } [Minor PREEN] "superblock copy {copy}: unusable ({error})",
    SuperblockCopies [Minor PREEN] "superblock: its two copies differ",
    EncodingMissing [Damage] "superblock: directories may be case-insensitive, but no encoding of names is given; Linux does not mount the volume",
    EncodingUnknown { encoding: u16 } [Note PREEN NEVER]
        "superblock: the name encoding {encoding} is not known; names of case-insensitive directories are not compared with their hashes, and Linux \
         does not mount the volume",
    // Of two packs one is always old; a crash tears the one that is being written.
    CheckpointBad { pack: u8, error: FormatErrorBox } [Note PREEN] "checkpoint pack {pack}: unusable ({error})",
    CheckpointField { pack: u8, error: FormatErrorBox } [Damage] "checkpoint pack {pack}: written whole, but impossible ({error})",
    CheckpointImpossible { pack: u8, error: FormatErrorBox } [Damage]
        "checkpoint pack {pack}: the newest, written whole, but impossible ({error}); the other one lacks what was synced since",
    PackLayout { error: FormatErrorBox } [Damage] "checkpoint: {error}",
    PackSummary { log: Log } [Damage] "checkpoint: summaries of the {log} log are of the wrong kind",
    MarkedErroneous { flags: &'static str } [Note PREEN] "checkpoint: the volume was marked as damaged ({flags})",
    QuotaUncounted [Note PREEN NEVER] "checkpoint: what the quota files count is out of date; a repair or the next mount counts anew",
    CheckpointDisabled [Note PREEN NEVER] "checkpoint: checkpoints are disabled",
    RecoveryPending { nodes: u64, files: u64 } [Note PREEN NEVER]
        "checkpoint: {files} files written by fsync wait to be recovered ({nodes} nodes); a mount recovers them, or says why it does not",
    RecoveryRefused { block: BlockAddr, what: &'static str } [Damage]
        "the node in block {block}, of the files that wait to be recovered: {what}; a mount recovers none of them and writes nothing (`blockwright \
         check -y --discard-fsynced` gives them up)",
    RecoveryDiscarded { nodes: u64, files: u64 } [Damage]
        "checkpoint: {files} files written by fsync waited to be recovered ({nodes} nodes); they are as the checkpoint has them",
    RecoveryFile { ino: Ino, name: String } [Note PREEN NEVER] "inode {ino}, {name:?}: written by fsync since the checkpoint",
    JournalCount { what: &'static str, found: u16, max: usize } [Damage] "{what} journal: {found} entries, at most {max} are possible",
    JournalEntry { what: &'static str, index: usize, error: FormatErrorBox } [Damage] "{what} journal, entry {index}: {error}",
    OrphanBlock { block: BlockAddr, error: FormatErrorBox } [Damage] "orphan block {block}: {error}",
    OrphanMissing { ino: Ino } [Minor PREEN] "orphan list: there is no inode {ino}",
    OrphanPending { ino: Ino } [Note PREEN NEVER] "inode {ino} has no name any more and waits to be deleted",
    // Only a checkpoint of an unmount brings new ones; others' are ignored.
    NatBits { error: FormatErrorBox } [Note PREEN] "NAT bits: {error}",
    NatBitsWrong { index: u32, used: u32 } [Minor PREEN] "NAT bits: wrong about block {index} of the NAT ({used} nodes)",
    LogSegmentType { log: Log, segment: SegNo, found: Log } [Damage PREEN] "checkpoint: {log} log in segment {segment}, which is of the {found} log",
    LogOffset { log: Log, segment: SegNo, offset: u16 } [Damage PREEN]
        "checkpoint: {log} log would go on over block {offset} of segment {segment}, which is in use",
    LogAllocation { log: Log, found: u8 } [Minor PREEN] "checkpoint: {log} log allocates in an unknown way ({found})",
    ValidBlocks { found: u64, counted: u64 } [Minor PREEN] "checkpoint: {found} blocks in use, counted {counted}",
    ValidNodes { found: u32, counted: u64 } [Minor PREEN] "checkpoint: {found} nodes, counted {counted}",
    ValidInodes { found: u32, counted: u64 } [Minor PREEN] "checkpoint: {found} inodes, counted {counted}",
    FreeSegments { found: u32, counted: u32 } [Minor PREEN] "checkpoint: {found} free segments, counted {counted}",

    // Tables.
    NatEntry { error: FormatErrorBox } [Damage] "{error}",
    NatReserved { nid: Nid, found: BlockAddr, expected: BlockAddr } [Minor PREEN] "NAT entry {nid}, which is no node's: block {found}, expected {expected}",
    SitEntry { error: FormatErrorBox } [Damage] "{error}",
    SitBitmap { segment: SegNo, first: BlockAddr, missing: u16, extra: u16 } [Minor PREEN]
        "SIT entry {segment}: {missing} blocks in use are not marked, {extra} are marked that are not; the first is block {first}",
    SegmentType { segment: SegNo, found: Log, what: &'static str } [Damage] "SIT entry {segment}: of the {found} log, but its blocks are {what}",
    SummaryKind { segment: SegNo } [Minor PREEN] "summaries of segment {segment}: of the wrong kind",
    SummaryEntries { segment: SegNo, first: BlockAddr, count: u16 } [Minor PREEN]
        "summaries of segment {segment}: wrong in {count} places, the first is block {first}",

    // Nodes and addresses.
    NodeFooter { nid: Nid, error: FormatErrorBox } [Damage] "node {nid}: {error}",
    NodeOffset { nid: Nid, ino: Ino, found: u32, expected: u32 } [Damage]
        "node {nid} of inode {ino}: at offset {found} of the tree, expected {expected}",
    // Nothing follows it but recovery, which starts at a log's head. A change of size leaves such nodes.
    NodeNext { nid: Nid, ino: Ino, next: BlockAddr } [Note PREEN] "node {nid} of inode {ino}: the next node's block {next} is outside of the main area",
    NodeMissing { ino: Ino, nid: Nid } [Damage] "inode {ino}: its node {nid} does not exist",
    NodeShared { ino: Ino, nid: Nid } [Damage] "inode {ino}: its node {nid} is in use elsewhere",
    NodeOwner { nid: Nid, found: Ino, expected: Ino } [Damage] "NAT entry {nid}: of inode {found}, expected {expected}",
    NodeUnreachable { nid: Nid, ino: Ino } [Damage] "node {nid} of inode {ino} belongs to no file",
    DataAddress { ino: Ino, error: FormatErrorBox } [Damage] "inode {ino}: {error}",
    BlockShared { ino: Ino, nid: Nid, position: u16, block: BlockAddr } [Damage]
        "inode {ino}: block {block} (node {nid}, address {position}) is in use elsewhere",
    BlockForeign { ino: Ino, nid: Nid, position: u16, block: BlockAddr } [Damage]
        "inode {ino}: block {block} (node {nid}, address {position}) is an unused one of a segment of nodes",
    CompressMark { ino: Ino, nid: Nid, position: u16 } [Damage]
        "inode {ino}: node {nid}, address {position} is marked as compressed, which cannot be",
    CompressCluster { ino: Ino, nid: Nid, position: u16, error: FormatErrorBox } [Damage]
        "inode {ino}: the compressed cluster at address {position} of node {nid}: {error}",
    CompressSaved { ino: Ino, found: u64, counted: u64 } [Minor PREEN] "inode {ino}: compression saved {found} blocks, counted {counted}",
    CompressAlgorithm { ino: Ino, error: FormatErrorBox } [Damage NEVER] "inode {ino}: {error}: what is compressed cannot be read",
    CompressClusterSize { ino: Ino, found: u8 } [Damage NEVER]
        "inode {ino}: compressed in clusters of 2^{found} blocks, which cannot be: what is compressed cannot be read",
    // Contents are the file's own; the structure is sound.
    CompressContents { ino: Ino, count: u64, error: FormatErrorBox } [Note PREEN NEVER]
        "inode {ino}: the contents of {count} compressed clusters cannot be unpacked ({error})",
    CompressUnseen { count: u64 } [Note PREEN NEVER] "the contents of {count} more compressed clusters were not looked at",

    // Inodes.
    InodeChecksum { error: FormatErrorBox } [Damage] "{error}",
    InodeUnusable { error: FormatErrorBox } [Damage] "{error}; the inode is unusable",
    InodeField { error: FormatErrorBox } [Damage] "{error}",
    InodeBlocks { ino: Ino, found: u64, counted: u64 } [Minor PREEN] "inode {ino}: {found} blocks, counted {counted}",
    InodeLinks { ino: Ino, found: u32, counted: u64 } [Minor PREEN] "inode {ino}: {found} links, counted {counted}",
    InodeExtraSize { ino: Ino, found: u16, expected: u16 } [Damage]
        "inode {ino}: {found} bytes of extra attributes, but its checksum is right with {expected}",
    InodeExtent { ino: Ino } [Damage PREEN] "inode {ino}: its extent is not what its nodes map",
    CasefoldFlag { ino: Ino } [Damage]
        "inode {ino}: case-insensitive, but no directory, or the volume has no such directories or no encoding of names",
    CompressFlag { ino: Ino } [Damage] "inode {ino}: compressed, but the volume has no such files",
    CompressUnknown { ino: Ino, algorithm: u8, log: u8 } [Damage]
        "inode {ino}: to be compressed by algorithm {algorithm}, in clusters of 2^{log} blocks, which cannot be; nothing of it is",
    GcFailures { ino: Ino, found: u16 } [Minor PREEN] "inode {ino}: cleaning failed {found} times, but it is not pinned",
    InlineReserved { ino: Ino, found: u32 } [Damage] "inode {ino}: contents are inline, but the word before them is {found:#x}",
    InlineFlag { ino: Ino, what: &'static str } [Damage] "inode {ino}: contents are inline, which no {what} file's are",
    InlineUnsaid { ino: Ino } [Damage] "inode {ino}: contents are inline, and said not to be there",
    InlineNode { ino: Ino, nid: Nid } [Damage] "inode {ino}: contents are inline, but it has node {nid}",
    SymlinkEmpty { ino: Ino } [Damage] "inode {ino}: symbolic link to nowhere",
    SymlinkTarget { ino: Ino } [Note PREEN NEVER] "inode {ino}: a symbolic link whose target is not there, or begins with a zero byte",
    Xattr { ino: Ino, error: FormatErrorBox } [Damage] "inode {ino}: {error}",
    InodeUnreachable { ino: Ino } [Damage] "inode {ino} has no name",
    RootMissing [Fatal NEVER] "the root directory is unusable",
    QuotaInode { kind: &'static str, ino: Ino, what: &'static str } [Damage NEVER] "{kind} quota inode {ino}: {what}",
    QuotaFile { kind: &'static str, ino: Ino, what: String } [Damage] "{kind} quota file, inode {ino}: {what}",
    QuotaUsage { kind: &'static str, id: u32, found_bytes: u64, found_inodes: u64, bytes: u64, inodes: u64 } [Minor PREEN]
        "{kind} quota of {id}: {found_bytes} bytes and {found_inodes} inodes, counted {bytes} and {inodes}",

    // Directories.
    DirEntry { dir: Ino, block: u64, error: FormatErrorBox } [Damage] "directory {dir}, block {block}: {error}",
    DirSlots { dir: Ino, block: u64, name: String } [Damage] "directory {dir}, block {block}: slots of {name:?} are marked free",
    DirHash { dir: Ino, name: String, found: u32, expected: u32 } [Damage] "directory {dir}, {name:?}: hash {found:#010x}, expected {expected:#010x}",
    DirPlace { dir: Ino, name: String, block: u64 } [Damage] "directory {dir}, {name:?}: in block {block}, where it is not looked for",
    DirSize { dir: Ino, found: u64, expected: u64 } [Damage] "directory {dir}: size {found}, at least {expected} expected",
    DirDepth { dir: Ino, found: u32, expected: u32 } [Damage] "directory {dir}: {found} levels, at least {expected} expected",
    DirLevel { dir: Ino, found: u8, expected: u8 } [Damage]
        "directory {dir}: its hash tables begin at level {found}, but its names are where level {expected} puts them",
    DotTarget { dir: Ino, name: &'static str, found: Ino, expected: Ino } [Damage]
        "directory {dir}: {name:?} names inode {found}, expected {expected}",
    DirParent { dir: Ino, found: Ino, expected: Ino } [Minor PREEN] "directory {dir}: its inode names {found} as its parent, expected {expected}",
    DotMissing { dir: Ino, name: &'static str } [Damage] "directory {dir}: no {name:?}",
    DotsPending { dir: Ino } [Note PREEN NEVER] "directory {dir}: \".\" and \"..\" wait to be added",
    EntryDangling { dir: Ino, name: String, ino: Ino } [Damage] "directory {dir}, {name:?}: there is no inode {ino}",
    EntryType { dir: Ino, name: String, ino: Ino } [Minor PREEN] "directory {dir}, {name:?}: of the wrong type for inode {ino}",
    EntryHidden { dir: Ino, name: String, ino: Ino } [Damage] "directory {dir}, {name:?}: inode {ino} is a hidden one",
    EntryDirTwice { dir: Ino, name: String, ino: Ino } [Damage] "directory {dir}, {name:?}: directory {ino} has another name already",
    NameTwice { dir: Ino, name: String } [Damage] "directory {dir}: {name:?} twice",
}
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
    /// What the table says, but for issues whose fields matter.
    fn judged(&self) -> (Severity, u8) {
        let (severity, flags) = self.listed();
        let is_safe = match self {
            // To part nodes from data, nodes move.
            Self::SegmentType { what, .. } => *what != NODES_AND_DATA,
            Self::CheckpointField { error, .. } => error.is_counted(),
            _ => false,
        };
        (severity, if is_safe { flags | PREEN } else { flags })
    }
}
