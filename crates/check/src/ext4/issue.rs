//! Everything that can be wrong with a volume: one variant per check.
//!
//! A row is the variant, how bad it is, what becomes of it (`log`), and the message. Messages name structure, inode and block. Where a structure's own parser
//! says what is wrong with it, the variant carries that error.

use crate::report::Severity;
use blockwright_ondisk::ext4::{BlockNo, FileBlock, FormatError, GroupNo, Ino, fast_commit};

/// A metadata structure of a group or of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Metadata {
    /// A copy of the superblock.
    Superblock,
    /// A block of group descriptors, or one reserved for more of them.
    Descriptors,
    /// A block bitmap.
    BlockBitmap,
    /// An inode bitmap.
    InodeBitmap,
    /// Part of an inode table.
    InodeTable,
    /// The multiple-mount-protection block.
    Mmp,
}

impl std::fmt::Display for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::Descriptors => "group descriptors",
            Self::BlockBitmap => "block bitmap",
            Self::InodeBitmap => "inode bitmap",
            Self::InodeTable => "inode table",
            Self::Mmp => "multiple-mount-protection block",
        })
    }
}

/// The user of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// Metadata of the volume.
    Metadata,
    /// An inode: its data, its tree or its attribute block.
    Inode(Ino),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Metadata => f.write_str("file system metadata"),
            Self::Inode(ino) => write!(f, "inode {ino}"),
        }
    }
}

crate::log::issues! {
/// An issue of an ext4 volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the messages say it; fields are what was found and what was expected
#[non_exhaustive]
pub enum IssueKind {
    // Superblock.
    SuperblockBad { error: FormatErrorBox, backup: BlockNo } [Damage] "primary superblock unusable ({error}); using the copy in block {backup}",
    FeaturesLost [Damage] "superblock: says the volume has no features, and what is on it says otherwise",
    FeaturesContradicted { what: String } [Damage] "superblock: {what}, and what is on the volume says otherwise",
    SuperblockChecksum { error: FormatErrorBox } [Damage] "superblock: checksum does not match its contents ({error})",
    SuperblockField { field: &'static str, found: u64 } [Damage] "superblock: {field} is {found}, which cannot be",
    FeatureContradiction { what: &'static str } [Damage] "superblock: {what}",
    TimeInFuture { what: &'static str, found: u64 } [Minor PREEN] "superblock: {what} is in the future ({found} seconds since 1970)",
    MarkedErroneous [Note PREEN] "superblock: the volume was marked as having errors",
    NotUnmounted [Note PREEN] "superblock: the volume was not unmounted cleanly",
    UuidMissing [Note PREEN] "superblock: no UUID",
    HashFlavourMissing [Minor PREEN] "superblock: neither signed nor unsigned directory hash is chosen",

    // Journal.
    JournalSuperblock { error: FormatErrorBox } [Damage] "journal: {error}",
    JournalField { field: &'static str, found: u32 } [Damage] "journal: {field} is {found}, which cannot be",
    JournalFeatures { incompat: u32, ro_compat: u32 } [Damage] "journal: unknown features (incompatible {incompat:#x}, read-only {ro_compat:#x})",
    JournalInode { ino: Ino, what: &'static str } [Damage] "journal: inode {ino} cannot hold one ({what})",
    JournalExternal [Note PREEN NEVER] "journal: on another device; it was not looked at",
    JournalReplayed { transactions: u64 } [Note PREEN] "journal: {transactions} transactions were waiting to be replayed",
    JournalTransaction { sequence: u32, block: u32 } [Damage]
        "journal: transaction {sequence} is damaged in journal block {block}; replay ends before it",
    JournalBlockOutside { sequence: u32, block: BlockNo } [Damage]
        "journal: transaction {sequence} logs block {block}, which is outside of the volume",
    JournalRevoke { sequence: u32, block: u32 } [Damage]
        "journal: the list of revoked blocks of transaction {sequence} (journal block {block}) is damaged; nothing is replayed",
    FastCommitReplayed { records: u64 } [Note PREEN] "journal: {records} fast-commit records were waiting to be replayed",
    FastCommitUnknown [Note NEVER] "journal: fast commits with records that are not known here; nothing is changed",
    FastCommitTooMany [Note NEVER]
        "journal: fast commits add more than {} files, extents and names; nothing more is changed (have e2fsck replay them)" (fast_commit::ADDED_MAX),
    FastCommitRecord { ino: Ino, what: &'static str } [Damage] "journal: a fast-commit record of inode {ino} cannot be replayed: {what}",
    RecoveryFlagMissing [Damage] "journal: holds transactions, but the superblock says no recovery is needed",
    RecoveryFlagSet [Note PREEN] "journal: empty, but the superblock says recovery is needed",
    JournalErrno { errno: i32 } [Note PREEN] "journal: aborted with error {errno}",

    // Groups.
    GroupDescChecksum { group: GroupNo } [Damage] "group {group}: descriptor checksum does not match",
    GroupDescLocation { group: GroupNo, what: Metadata, block: BlockNo } [Damage] "group {group}: {what} at block {block} cannot be there",
    MetadataOverlap { group: GroupNo, what: Metadata, block: BlockNo } [Damage] "group {group}: {what} at block {block} overlaps other metadata",
    GroupFlags { group: GroupNo, flags: u16, what: &'static str } [Damage] "group {group}: flags {flags:#x} are not allowed here ({what})",
    GroupUnusedInodes { group: GroupNo, found: u32 } [Minor] "group {group}: says {found} inodes at the end of its table are unused, which cannot be",
    GroupFreeBlocks { group: GroupNo, found: u32, counted: u32 } [Minor PREEN] "group {group}: {found} free blocks, counted {counted}",
    GroupFreeInodes { group: GroupNo, found: u32, counted: u32 } [Minor PREEN] "group {group}: {found} free inodes, counted {counted}",
    GroupDirs { group: GroupNo, found: u32, counted: u32 } [Minor PREEN] "group {group}: {found} directories, counted {counted}",
    // A superblock's own counts are computed anew by every mount.
    FreeBlocks { found: u64, counted: u64 } [Note PREEN] "superblock: {found} free blocks, counted {counted}",
    FreeInodes { found: u64, counted: u64 } [Note PREEN] "superblock: {found} free inodes, counted {counted}",

    // Bitmaps.
    BlockBitmap { group: GroupNo, first: BlockNo, count: u32, in_use: bool } [Minor PREEN]
        "group {group}: block bitmap differs in {count} places, the first is block {first} (in use: {in_use})",
    InodeBitmap { group: GroupNo, first: Ino, count: u32, in_use: bool } [Minor PREEN]
        "group {group}: inode bitmap differs in {count} places, the first is inode {first} (in use: {in_use})",
    BitmapPadding { group: GroupNo, what: Metadata } [Minor PREEN] "group {group}: padding at the end of the {what} is not set",
    BitmapChecksum { group: GroupNo, what: Metadata } [Minor PREEN] "group {group}: {what} checksum does not match",

    // Inodes.
    InodeChecksum { ino: Ino } [Damage] "inode {ino}: checksum does not match",
    InodeMode { ino: Ino, mode: u16 } [Damage] "inode {ino}: mode {mode:#o} is not a file type",
    SpecialIsDirectory { ino: Ino } [Damage] "inode {ino}: its mode says that it is no directory, but it is one",
    InodeReserved { ino: Ino, what: &'static str } [Damage] "inode {ino}: {what}",
    InodeExtraSize { ino: Ino, found: u16 } [Damage] "inode {ino}: extra size {found} cannot be",
    InodeSize { ino: Ino, found: u64, expected: u64 } [Damage] "inode {ino}: size {found}, expected {expected}",
    InodeBlocks { ino: Ino, found: u64, counted: u64 } [Minor PREEN] "inode {ino}: {found} sectors, counted {counted}",
    InodeDtimeSet { ino: Ino } [Minor PREEN] "inode {ino}: in use, but has a deletion time",
    InodeDtimeZero { ino: Ino } [Minor PREEN] "inode {ino}: deleted, but has no deletion time",
    InodeDtimeLow { ino: Ino, dtime: u32 } [Damage] "inode {ino}: deletion time {dtime} is the next inode of a lost orphan list",
    InodeFlags { ino: Ino, flags: u32, what: &'static str } [Damage] "inode {ino}: flags {flags:#x} contradict ({what})",
    InodeFieldNotZero { ino: Ino, field: &'static str } [Damage] "inode {ino}: {field} should be zero",
    InodeTimeFar { ino: Ino } [Minor] "inode {ino}: a time past 2310, most likely one before 1970",
    Symlink { ino: Ino, what: &'static str } [Damage] "inode {ino}: symbolic link is not valid ({what})",
    SpecialFile { ino: Ino, what: &'static str } [Damage] "inode {ino}: device, fifo or socket is not valid ({what})",
    InlineData { ino: Ino, what: &'static str } [Damage] "inode {ino}: inline data is not valid ({what})",

    // Mappings.
    ExtentNode { ino: Ino, error: FormatErrorBox } [Damage] "inode {ino}: {error}",
    ExtentChecksum { ino: Ino, block: BlockNo } [Damage] "inode {ino}: extent block {block}: checksum does not match",
    ExtentEntry { ino: Ino, logical: FileBlock, physical: BlockNo, len: u32, what: &'static str } [Damage]
        "inode {ino}: extent of {len} blocks at file block {logical} (block {physical}) has {what}",
    ExtentIndexStart { ino: Ino, logical: FileBlock, block: BlockNo, found: FileBlock } [Damage]
        "inode {ino}: extent index at file block {logical} points at block {block}, which begins at {found}",
    MappingLoop { ino: Ino, block: BlockNo } [Damage] "inode {ino}: block {block} is part of the mapping twice",
    BlockOutside { ino: Ino, logical: FileBlock, block: BlockNo } [Damage]
        "inode {ino}: file block {logical} is mapped to block {block}, outside of the volume",
    ClusterMisaligned { ino: Ino, logical: FileBlock } [Damage] "inode {ino}: extent mapping and cluster size disagree at file block {logical}",
    BlocksShared { first: BlockNo, count: u64, owner: Owner, other: Owner } [Damage]
        "{count} blocks from block {first} on are used by {owner} and by {other}",
    BlocksSharedByFeature { blocks: u64 } [Note NEVER]
        "{blocks} blocks have several users, as the feature shared_blocks allows; e2fsck -E unshare_blocks gives each its own",

    // Attributes.
    XattrInode { ino: Ino, error: FormatErrorBox } [Damage] "inode {ino}: attributes in the inode: {error}",
    XattrBlock { ino: Ino, block: BlockNo, error: FormatErrorBox } [Damage] "inode {ino}: attribute block {block}: {error}",
    XattrBlockOutside { ino: Ino, block: BlockNo } [Damage] "inode {ino}: attribute block {block} is outside of the volume",
    XattrEntry { ino: Ino, offset: usize, what: &'static str } [Damage] "inode {ino}: attribute entry at {offset}: {what}",
    XattrChecksum { block: BlockNo } [Damage] "attribute block {block}: checksum does not match",
    XattrRefcount { block: BlockNo, found: u32, counted: u32 } [Minor PREEN] "attribute block {block}: {found} references, counted {counted}",
    XattrValueInode { ino: Ino, value: Ino, what: &'static str } [Damage] "inode {ino}: attribute value in inode {value}: {what}",
    XattrValueRefs { ino: Ino, found: u64, counted: u64 } [Damage] "inode {ino}: holds an attribute value with {found} references, counted {counted}",

    // Directories.
    DirEntry { dir: Ino, logical: u32, block: BlockNo, error: FormatErrorBox } [Damage]
        "directory {dir}: block {block} (file block {logical}): {error}",
    DirChecksum { dir: Ino, logical: u32 } [Damage] "directory {dir}: file block {logical}: checksum does not match",
    DirTail { dir: Ino, logical: u32 } [Damage] "directory {dir}: file block {logical}: no checksum tail",
    DirHole { dir: Ino, logical: u32 } [Damage] "directory {dir}: file block {logical} is not allocated",
    DotMissing { dir: Ino } [Damage] "directory {dir}: \".\" is missing or not first",
    DotBig { dir: Ino } [Damage] "directory {dir}: \".\" takes more than its place",
    DotPadding { dir: Ino } [Damage] "directory {dir}: \".\" or \"..\" is not followed by a zero byte",
    EntryEncoding { dir: Ino, name: String } [Damage]
        "directory {dir}: the name {name:?} is not UTF-8, which the volume requires of case-insensitive directories",
    DotInode { dir: Ino, found: Ino } [Damage] "directory {dir}: \".\" names inode {found}",
    DotDotMissing { dir: Ino } [Damage] "directory {dir}: \"..\" is missing or not second",
    DotDotInode { dir: Ino, found: Ino, expected: Ino } [Damage] "directory {dir}: \"..\" names inode {found}, but the parent is {expected}",
    EntryInode { dir: Ino, name: String, ino: Ino, what: &'static str } [Damage]
        "directory {dir}: entry \"{name}\" names inode {ino}, which is {what}",
    EntryType { dir: Ino, name: String, ino: Ino, found: u8, expected: u8 } [Minor]
        "directory {dir}: entry \"{name}\" of inode {ino} says type {found}, it is {expected}",
    EntryDuplicate { dir: Ino, name: String } [Damage] "directory {dir}: a second \"{name}\"",
    EntrySecondLink { dir: Ino, name: String, ino: Ino } [Damage] "directory {dir}: entry \"{name}\" is a second link to directory {ino}",
    EntryUnusedInode { dir: Ino, name: String, ino: Ino } [Damage]
        "directory {dir}: inode {ino} of entry \"{name}\" lies in the unused part of its inode table",
    HtreeRoot { dir: Ino, error: FormatErrorBox } [Damage] "directory {dir}: index: {error}",
    HtreeNode { dir: Ino, logical: u32, error: FormatErrorBox } [Damage] "directory {dir}: index block {logical}: {error}",
    HtreeChecksum { dir: Ino, logical: u32 } [Damage] "directory {dir}: index block {logical}: checksum does not match",
    HtreeBlock { dir: Ino, logical: u32, what: &'static str } [Damage] "directory {dir}: index points at file block {logical}, which {what}",
    HtreeUnreferenced { dir: Ino, logical: u32 } [Damage] "directory {dir}: file block {logical} is not reached by the index",
    HtreeHash { dir: Ino, logical: u32, name: String } [Damage] "directory {dir}: entry \"{name}\" in file block {logical} does not hash into it",

    // Connectivity and links.
    RootMissing { what: &'static str } [Damage] "root directory: {what}",
    DirUnreachable { dir: Ino } [Damage] "directory {dir} is not reachable from the root",
    DirLoop { dir: Ino } [Damage] "directory {dir} is its own ancestor",
    InodeUnattached { ino: Ino } [Damage] "inode {ino} is in use, but no directory names it",
    LinkCount { ino: Ino, found: u32, counted: u32 } [Minor PREEN] "inode {ino}: link count {found}, counted {counted}",

    // Orphans.
    OrphanList { ino: Ino, what: &'static str } [Damage] "orphan list: inode {ino} ({what})",
    OrphanBlock { error: FormatErrorBox } [Damage] "orphan file: {error}",
    OrphanFile { ino: Ino, what: &'static str } [Damage] "orphan file: inode {ino} ({what})",
    OrphanPresentMissing [Minor PREEN] "orphan file holds entries, but orphan_present is not set",
    OrphanPresentSet [Minor PREEN] "orphan_present is set, but the orphan file is empty",
    OrphanPending { ino: Ino } [Note PREEN] "inode {ino} was being deleted or truncated",

    // Special inodes.
    ResizeInode { what: &'static str } [Damage] "resize inode: {what}",
    QuotaFile { kind: &'static str, ino: Ino, what: &'static str } [Damage] "{kind} quota file (inode {ino}): {what}",
    QuotaUsage { kind: &'static str, id: u32, found_bytes: u64, found_inodes: u64, bytes: u64, inodes: u64 } [Minor PREEN]
        "{kind} quota of id {id}: {found_bytes} bytes and {found_inodes} inodes, counted {bytes} and {inodes}",
    Mmp { error: FormatErrorBox } [Damage] "multiple-mount protection: {error}",
    MmpInUse { host: String } [Note NEVER] "multiple-mount protection: in use by host \"{host}\"",
}
}

/// A [`FormatError`] as a part of an issue.
pub type FormatErrorBox = crate::format_error::FormatErrorBox<FormatError>;

impl IssueKind {
    /// What the table says, but for issues whose fields matter.
    fn judged(&self) -> (Severity, u8) {
        let (severity, flags) = self.listed();
        match self {
            // An entry without a type is slower to list, not wrong.
            Self::EntryType { found: 0, .. } => (Severity::Note, flags),
            _ => (severity, flags),
        }
    }
}
