//! Everything that can be wrong with a volume: one variant per check.
//!
//! Messages name structure, inode and block. Where a structure's own parser says what is wrong
//! with it, the variant carries that error.

use blockwright_ondisk::ext4::{BlockNo, FileBlock, FormatError, GroupNo, Ino, fast_commit};
use thiserror::Error;

use crate::report::Severity;

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

/// An issue of an ext4 volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Error)]
#[allow(missing_docs)] // the messages say it; fields are what was found and what was expected
#[non_exhaustive]
pub enum IssueKind {
    // Superblock.
    #[error("primary superblock unusable ({error}); using the copy in block {backup}")]
    SuperblockBad {
        error: FormatErrorBox,
        backup: BlockNo,
    },
    #[error("superblock: says the volume has no features, and what is on it says otherwise")]
    FeaturesLost,
    #[error("superblock: {what}, and what is on the volume says otherwise")]
    FeaturesContradicted { what: String },
    #[error("superblock: checksum does not match its contents ({error})")]
    SuperblockChecksum { error: FormatErrorBox },
    #[error("superblock: {field} is {found}, which cannot be")]
    SuperblockField { field: &'static str, found: u64 },
    #[error("superblock: {what}")]
    FeatureContradiction { what: &'static str },
    #[error("superblock: {what} is in the future ({found} seconds since 1970)")]
    TimeInFuture { what: &'static str, found: u64 },
    #[error("superblock: the volume was marked as having errors")]
    MarkedErroneous,
    #[error("superblock: the volume was not unmounted cleanly")]
    NotUnmounted,
    #[error("superblock: no UUID")]
    UuidMissing,
    #[error("superblock: neither signed nor unsigned directory hash is chosen")]
    HashFlavourMissing,

    // Journal.
    #[error("journal: {error}")]
    JournalSuperblock { error: FormatErrorBox },
    #[error("journal: {field} is {found}, which cannot be")]
    JournalField { field: &'static str, found: u32 },
    #[error("journal: unknown features (incompatible {incompat:#x}, read-only {ro_compat:#x})")]
    JournalFeatures { incompat: u32, ro_compat: u32 },
    #[error("journal: inode {ino} cannot hold one ({what})")]
    JournalInode { ino: Ino, what: &'static str },
    #[error("journal: on another device; it was not looked at")]
    JournalExternal,
    #[error("journal: {transactions} transactions were waiting to be replayed")]
    JournalReplayed { transactions: u64 },
    #[error(
        "journal: transaction {sequence} is damaged in journal block {block}; replay ends before it"
    )]
    JournalTransaction { sequence: u32, block: u32 },
    #[error("journal: transaction {sequence} logs block {block}, which is outside of the volume")]
    JournalBlockOutside { sequence: u32, block: BlockNo },
    #[error(
        "journal: the list of revoked blocks of transaction {sequence} (journal block {block}) is damaged; nothing is replayed"
    )]
    JournalRevoke { sequence: u32, block: u32 },
    #[error("journal: {records} fast-commit records were waiting to be replayed")]
    FastCommitReplayed { records: u64 },
    #[error("journal: fast commits with records that are not known here; nothing is changed")]
    FastCommitUnknown,
    #[error(
        "journal: fast commits add more than {} files, extents and names; nothing more is changed (have e2fsck replay them)",
        fast_commit::ADDED_MAX
    )]
    FastCommitTooMany,
    #[error("journal: a fast-commit record of inode {ino} cannot be replayed: {what}")]
    FastCommitRecord { ino: Ino, what: &'static str },
    #[error("journal: holds transactions, but the superblock says no recovery is needed")]
    RecoveryFlagMissing,
    #[error("journal: empty, but the superblock says recovery is needed")]
    RecoveryFlagSet,
    #[error("journal: aborted with error {errno}")]
    JournalErrno { errno: i32 },

    // Groups.
    #[error("group {group}: descriptor checksum does not match")]
    GroupDescChecksum { group: GroupNo },
    #[error("group {group}: {what} at block {block} cannot be there")]
    GroupDescLocation {
        group: GroupNo,
        what: Metadata,
        block: BlockNo,
    },
    #[error("group {group}: {what} at block {block} overlaps other metadata")]
    MetadataOverlap {
        group: GroupNo,
        what: Metadata,
        block: BlockNo,
    },
    #[error("group {group}: flags {flags:#x} are not allowed here ({what})")]
    GroupFlags {
        group: GroupNo,
        flags: u16,
        what: &'static str,
    },
    #[error(
        "group {group}: says {found} inodes at the end of its table are unused, which cannot be"
    )]
    GroupUnusedInodes { group: GroupNo, found: u32 },
    #[error("group {group}: {found} free blocks, counted {counted}")]
    GroupFreeBlocks {
        group: GroupNo,
        found: u32,
        counted: u32,
    },
    #[error("group {group}: {found} free inodes, counted {counted}")]
    GroupFreeInodes {
        group: GroupNo,
        found: u32,
        counted: u32,
    },
    #[error("group {group}: {found} directories, counted {counted}")]
    GroupDirs {
        group: GroupNo,
        found: u32,
        counted: u32,
    },
    #[error("superblock: {found} free blocks, counted {counted}")]
    FreeBlocks { found: u64, counted: u64 },
    #[error("superblock: {found} free inodes, counted {counted}")]
    FreeInodes { found: u64, counted: u64 },

    // Bitmaps.
    #[error(
        "group {group}: block bitmap differs in {count} places, the first is block {first} (in use: {in_use})"
    )]
    BlockBitmap {
        group: GroupNo,
        first: BlockNo,
        count: u32,
        in_use: bool,
    },
    #[error(
        "group {group}: inode bitmap differs in {count} places, the first is inode {first} (in use: {in_use})"
    )]
    InodeBitmap {
        group: GroupNo,
        first: Ino,
        count: u32,
        in_use: bool,
    },
    #[error("group {group}: padding at the end of the {what} is not set")]
    BitmapPadding { group: GroupNo, what: Metadata },
    #[error("group {group}: {what} checksum does not match")]
    BitmapChecksum { group: GroupNo, what: Metadata },

    // Inodes.
    #[error("inode {ino}: checksum does not match")]
    InodeChecksum { ino: Ino },
    #[error("inode {ino}: mode {mode:#o} is not a file type")]
    InodeMode { ino: Ino, mode: u16 },
    #[error("inode {ino}: its mode says that it is no directory, but it is one")]
    SpecialIsDirectory { ino: Ino },
    #[error("inode {ino}: {what}")]
    InodeReserved { ino: Ino, what: &'static str },
    #[error("inode {ino}: extra size {found} cannot be")]
    InodeExtraSize { ino: Ino, found: u16 },
    #[error("inode {ino}: size {found}, expected {expected}")]
    InodeSize { ino: Ino, found: u64, expected: u64 },
    #[error("inode {ino}: {found} sectors, counted {counted}")]
    InodeBlocks { ino: Ino, found: u64, counted: u64 },
    #[error("inode {ino}: in use, but has a deletion time")]
    InodeDtimeSet { ino: Ino },
    #[error("inode {ino}: deleted, but has no deletion time")]
    InodeDtimeZero { ino: Ino },
    #[error("inode {ino}: deletion time {dtime} is the next inode of a lost orphan list")]
    InodeDtimeLow { ino: Ino, dtime: u32 },
    #[error("inode {ino}: flags {flags:#x} contradict ({what})")]
    InodeFlags {
        ino: Ino,
        flags: u32,
        what: &'static str,
    },
    #[error("inode {ino}: {field} should be zero")]
    InodeFieldNotZero { ino: Ino, field: &'static str },
    #[error("inode {ino}: a time past 2310, most likely one before 1970")]
    InodeTimeFar { ino: Ino },
    #[error("inode {ino}: symbolic link is not valid ({what})")]
    Symlink { ino: Ino, what: &'static str },
    #[error("inode {ino}: device, fifo or socket is not valid ({what})")]
    SpecialFile { ino: Ino, what: &'static str },
    #[error("inode {ino}: inline data is not valid ({what})")]
    InlineData { ino: Ino, what: &'static str },

    // Mappings.
    #[error("inode {ino}: {error}")]
    ExtentNode { ino: Ino, error: FormatErrorBox },
    #[error("inode {ino}: extent block {block}: checksum does not match")]
    ExtentChecksum { ino: Ino, block: BlockNo },
    #[error(
        "inode {ino}: extent of {len} blocks at file block {logical} (block {physical}) has {what}"
    )]
    ExtentEntry {
        ino: Ino,
        logical: FileBlock,
        physical: BlockNo,
        len: u32,
        what: &'static str,
    },
    #[error(
        "inode {ino}: extent index at file block {logical} points at block {block}, which begins at {found}"
    )]
    ExtentIndexStart {
        ino: Ino,
        logical: FileBlock,
        block: BlockNo,
        found: FileBlock,
    },
    #[error("inode {ino}: block {block} is part of the mapping twice")]
    MappingLoop { ino: Ino, block: BlockNo },
    #[error("inode {ino}: file block {logical} is mapped to block {block}, outside of the volume")]
    BlockOutside {
        ino: Ino,
        logical: FileBlock,
        block: BlockNo,
    },
    #[error("inode {ino}: extent mapping and cluster size disagree at file block {logical}")]
    ClusterMisaligned { ino: Ino, logical: FileBlock },
    #[error("{count} blocks from block {first} on are used by {owner} and by {other}")]
    BlocksShared {
        first: BlockNo,
        count: u64,
        owner: Owner,
        other: Owner,
    },
    #[error(
        "{blocks} blocks have several users, as the feature shared_blocks allows; e2fsck -E unshare_blocks gives each its own"
    )]
    BlocksSharedByFeature { blocks: u64 },

    // Attributes.
    #[error("inode {ino}: attributes in the inode: {error}")]
    XattrInode { ino: Ino, error: FormatErrorBox },
    #[error("inode {ino}: attribute block {block}: {error}")]
    XattrBlock {
        ino: Ino,
        block: BlockNo,
        error: FormatErrorBox,
    },
    #[error("inode {ino}: attribute block {block} is outside of the volume")]
    XattrBlockOutside { ino: Ino, block: BlockNo },
    #[error("inode {ino}: attribute entry at {offset}: {what}")]
    XattrEntry {
        ino: Ino,
        offset: usize,
        what: &'static str,
    },
    #[error("attribute block {block}: checksum does not match")]
    XattrChecksum { block: BlockNo },
    #[error("attribute block {block}: {found} references, counted {counted}")]
    XattrRefcount {
        block: BlockNo,
        found: u32,
        counted: u32,
    },
    #[error("inode {ino}: attribute value in inode {value}: {what}")]
    XattrValueInode {
        ino: Ino,
        value: Ino,
        what: &'static str,
    },
    #[error("inode {ino}: holds an attribute value with {found} references, counted {counted}")]
    XattrValueRefs { ino: Ino, found: u64, counted: u64 },

    // Directories.
    #[error("directory {dir}: block {block} (file block {logical}): {error}")]
    DirEntry {
        dir: Ino,
        logical: u32,
        block: BlockNo,
        error: FormatErrorBox,
    },
    #[error("directory {dir}: file block {logical}: checksum does not match")]
    DirChecksum { dir: Ino, logical: u32 },
    #[error("directory {dir}: file block {logical}: no checksum tail")]
    DirTail { dir: Ino, logical: u32 },
    #[error("directory {dir}: file block {logical} is not allocated")]
    DirHole { dir: Ino, logical: u32 },
    #[error("directory {dir}: \".\" is missing or not first")]
    DotMissing { dir: Ino },
    #[error("directory {dir}: \".\" takes more than its place")]
    DotBig { dir: Ino },
    #[error("directory {dir}: \".\" or \"..\" is not followed by a zero byte")]
    DotPadding { dir: Ino },
    #[error(
        "directory {dir}: the name {name:?} is not UTF-8, which the volume requires of case-insensitive directories"
    )]
    EntryEncoding { dir: Ino, name: String },
    #[error("directory {dir}: \".\" names inode {found}")]
    DotInode { dir: Ino, found: Ino },
    #[error("directory {dir}: \"..\" is missing or not second")]
    DotDotMissing { dir: Ino },
    #[error("directory {dir}: \"..\" names inode {found}, but the parent is {expected}")]
    DotDotInode { dir: Ino, found: Ino, expected: Ino },
    #[error("directory {dir}: entry \"{name}\" names inode {ino}, which is {what}")]
    EntryInode {
        dir: Ino,
        name: String,
        ino: Ino,
        what: &'static str,
    },
    #[error("directory {dir}: entry \"{name}\" of inode {ino} says type {found}, it is {expected}")]
    EntryType {
        dir: Ino,
        name: String,
        ino: Ino,
        found: u8,
        expected: u8,
    },
    #[error("directory {dir}: a second \"{name}\"")]
    EntryDuplicate { dir: Ino, name: String },
    #[error("directory {dir}: entry \"{name}\" is a second link to directory {ino}")]
    EntrySecondLink { dir: Ino, name: String, ino: Ino },
    #[error(
        "directory {dir}: inode {ino} of entry \"{name}\" lies in the unused part of its inode table"
    )]
    EntryUnusedInode { dir: Ino, name: String, ino: Ino },
    #[error("directory {dir}: index: {error}")]
    HtreeRoot { dir: Ino, error: FormatErrorBox },
    #[error("directory {dir}: index block {logical}: {error}")]
    HtreeNode {
        dir: Ino,
        logical: u32,
        error: FormatErrorBox,
    },
    #[error("directory {dir}: index block {logical}: checksum does not match")]
    HtreeChecksum { dir: Ino, logical: u32 },
    #[error("directory {dir}: index points at file block {logical}, which {what}")]
    HtreeBlock {
        dir: Ino,
        logical: u32,
        what: &'static str,
    },
    #[error("directory {dir}: file block {logical} is not reached by the index")]
    HtreeUnreferenced { dir: Ino, logical: u32 },
    #[error("directory {dir}: entry \"{name}\" in file block {logical} does not hash into it")]
    HtreeHash {
        dir: Ino,
        logical: u32,
        name: String,
    },

    // Connectivity and links.
    #[error("root directory: {what}")]
    RootMissing { what: &'static str },
    #[error("directory {dir} is not reachable from the root")]
    DirUnreachable { dir: Ino },
    #[error("directory {dir} is its own ancestor")]
    DirLoop { dir: Ino },
    #[error("inode {ino} is in use, but no directory names it")]
    InodeUnattached { ino: Ino },
    #[error("inode {ino}: link count {found}, counted {counted}")]
    LinkCount { ino: Ino, found: u32, counted: u32 },

    // Orphans.
    #[error("orphan list: inode {ino} ({what})")]
    OrphanList { ino: Ino, what: &'static str },
    #[error("orphan file: {error}")]
    OrphanBlock { error: FormatErrorBox },
    #[error("orphan file: inode {ino} ({what})")]
    OrphanFile { ino: Ino, what: &'static str },
    #[error("orphan file holds entries, but orphan_present is not set")]
    OrphanPresentMissing,
    #[error("orphan_present is set, but the orphan file is empty")]
    OrphanPresentSet,
    #[error("inode {ino} was being deleted or truncated")]
    OrphanPending { ino: Ino },

    // Special inodes.
    #[error("resize inode: {what}")]
    ResizeInode { what: &'static str },
    #[error("{kind} quota file (inode {ino}): {what}")]
    QuotaFile {
        kind: &'static str,
        ino: Ino,
        what: &'static str,
    },
    #[error(
        "{kind} quota of id {id}: {found_bytes} bytes and {found_inodes} inodes, counted {bytes} and {inodes}"
    )]
    QuotaUsage {
        kind: &'static str,
        id: u32,
        found_bytes: u64,
        found_inodes: u64,
        bytes: u64,
        inodes: u64,
    },
    #[error("multiple-mount protection: {error}")]
    Mmp { error: FormatErrorBox },
    #[error("multiple-mount protection: in use by host \"{host}\"")]
    MmpInUse { host: String },
}

/// A [`FormatError`] as a part of an issue.
pub type FormatErrorBox = crate::format_error::FormatErrorBox<FormatError>;

impl IssueKind {
    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            // An entry without a type is slower to list, not wrong.
            Self::EntryType { found: 0, .. } => Severity::Note,
            // The superblock's own counts are computed anew by every mount.
            Self::FreeBlocks { .. }
            | Self::FreeInodes { .. }
            | Self::MarkedErroneous
            | Self::NotUnmounted
            | Self::JournalExternal
            | Self::JournalErrno { .. }
            | Self::UuidMissing
            | Self::JournalReplayed { .. }
            | Self::FastCommitReplayed { .. }
            | Self::FastCommitUnknown
            | Self::FastCommitTooMany
            | Self::BlocksSharedByFeature { .. }
            | Self::RecoveryFlagSet
            | Self::OrphanPending { .. }
            | Self::MmpInUse { .. } => Severity::Note,
            Self::TimeInFuture { .. }
            | Self::HashFlavourMissing
            | Self::GroupUnusedInodes { .. }
            | Self::GroupFreeBlocks { .. }
            | Self::GroupFreeInodes { .. }
            | Self::GroupDirs { .. }
            | Self::BlockBitmap { .. }
            | Self::InodeBitmap { .. }
            | Self::BitmapPadding { .. }
            | Self::BitmapChecksum { .. }
            | Self::InodeDtimeSet { .. }
            | Self::InodeDtimeZero { .. }
            | Self::InodeBlocks { .. }
            | Self::InodeTimeFar { .. }
            | Self::EntryType { .. }
            | Self::LinkCount { .. }
            | Self::OrphanPresentMissing
            | Self::OrphanPresentSet
            | Self::XattrRefcount { .. }
            | Self::QuotaUsage { .. } => Severity::Minor,
            _ => Severity::Damage,
        }
    }

    /// Whether it is repaired without asking a human ([`crate::Mode::Preen`]): the repair loses
    /// nothing, and its cause is an unclean shutdown rather than damage.
    #[must_use]
    pub fn preen_safe(&self) -> bool {
        matches!(
            self,
            Self::JournalReplayed { .. }
                | Self::FastCommitReplayed { .. }
                | Self::OrphanPending { .. }
                | Self::TimeInFuture { .. }
                | Self::HashFlavourMissing
                | Self::UuidMissing
                | Self::RecoveryFlagSet
                | Self::JournalErrno { .. }
                | Self::GroupFreeBlocks { .. }
                | Self::GroupFreeInodes { .. }
                | Self::GroupDirs { .. }
                | Self::FreeBlocks { .. }
                | Self::FreeInodes { .. }
                | Self::BlockBitmap { .. }
                | Self::InodeBitmap { .. }
                | Self::BitmapPadding { .. }
                | Self::BitmapChecksum { .. }
                | Self::InodeDtimeSet { .. }
                | Self::InodeDtimeZero { .. }
                | Self::InodeBlocks { .. }
                | Self::LinkCount { .. }
                | Self::OrphanPresentMissing
                | Self::OrphanPresentSet
                | Self::XattrRefcount { .. }
                | Self::MarkedErroneous
                | Self::NotUnmounted
                | Self::JournalExternal
                | Self::QuotaUsage { .. }
        )
    }

    /// Whether no mode repairs it.
    #[must_use]
    pub fn unrepairable(&self) -> bool {
        matches!(
            self,
            Self::JournalExternal
                | Self::MmpInUse { .. }
                | Self::FastCommitUnknown
                | Self::FastCommitTooMany
                | Self::BlocksSharedByFeature { .. }
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
