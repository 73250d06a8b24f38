//! The format's error type: one variant per check, with what was found and what was expected.
//!
//! A variant says what is wrong with a structure; where that structure lies (device, inode, block)
//! is known to the reader, and is part of the error only where the check needs it.

use super::types::{BlockNo, FileBlock, GroupNo, Ino, NodePlace};

/// An error type whose variants have their messages in front of them, with fields in braces. `thiserror` does the same, at the price of three more crates
/// for every build.
macro_rules! with_messages {
    (
        $(#[$of_type:meta])*
        pub enum $name:ident {
            $(#[error($message:literal)] $variant:ident $({ $($field:ident: $type:ty),* $(,)? })?),* $(,)?
        }
    ) => {
        $(#[$of_type])*
        pub enum $name {
            $($variant $({ $($field: $type),* })?),*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),* })? => write!(f, $message)),*
                }
            }
        }

        impl std::error::Error for $name {}
    };
}

with_messages! {
/// Why bytes are not what they should be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the messages say it; fields are what was found and what was expected
#[non_exhaustive]
pub enum FormatError {
    #[error("{structure}: {found} bytes, needs {needed}")]
    Truncated {
        structure: &'static str,
        needed: usize,
        found: usize,
    },
    #[error("unknown feature \"{name}\"")]
    UnknownFeatureName { name: String },

    #[error("superblock: bad magic {found:#06x}, expected 0xef53")]
    SuperMagic { found: u16 },
    #[error("superblock: checksum {found:#010x}, expected {expected:#010x}")]
    SuperChecksum { found: u32, expected: u32 },
    #[error("superblock: unknown checksum type {found}")]
    SuperChecksumType { found: u8 },
    #[error("superblock: unknown revision {found}")]
    SuperRevision { found: u32 },
    #[error("superblock: this is an external journal, not a file system")]
    SuperIsJournalDevice,
    #[error("superblock: this is no journal device")]
    SuperNotJournalDevice,
    #[error("journal device: it has {users} users, the format has room for {max}")]
    JournalUsers { users: u32, max: usize },
    #[error("superblock: block size 2^(10+{log}) is not between 1 KiB and 64 KiB")]
    SuperBlockSize { log: u32 },
    #[error("superblock: cluster size 2^(10+{log}) does not suit block size 2^(10+{block_log})")]
    SuperClusterSize { log: u32, block_log: u32 },
    #[error("superblock: inode size {found} is not a power of two from 128 to {block_size}")]
    SuperInodeSize { found: u16, block_size: u32 },
    #[error("superblock: {found} clusters per group, expected a multiple of 8 up to {max}")]
    SuperClustersPerGroup { found: u32, max: u32 },
    #[error("superblock: {found} blocks per group, expected {clusters} clusters of {ratio}")]
    SuperBlocksPerGroup {
        found: u32,
        clusters: u32,
        ratio: u32,
    },
    #[error(
        "superblock: {found} inodes per group, expected a multiple of 8 and of {per_block} up to {max}"
    )]
    SuperInodesPerGroup {
        found: u32,
        per_block: u32,
        max: u32,
    },
    #[error("superblock: first data block {found}, expected {expected}")]
    SuperFirstDataBlock { found: u32, expected: u32 },
    #[error("superblock: absurd number of blocks {found}")]
    SuperBlocksCount { found: u64 },
    #[error("superblock: {blocks} blocks, but the device has room for {device_blocks}")]
    SuperPastDevice { blocks: u64, device_blocks: u64 },
    #[error("superblock: group descriptor size {found} is not a power of two from 64 to 1024")]
    SuperDescSize { found: u16 },
    #[error("superblock: {found} groups are too many")]
    SuperGroupsCount { found: u64 },
    #[error("superblock: {found} inodes, expected {expected} (inodes per group times groups)")]
    SuperInodesCount { found: u32, expected: u64 },
    #[error("superblock: absurd first inode {found}")]
    SuperFirstInode { found: u32 },
    #[error("superblock: {found} reserved descriptor blocks, at most {max} are possible")]
    SuperReservedGdt { found: u32, max: u32 },
    #[error("superblock: first meta block group {found}, but there are {desc_blocks} in all")]
    SuperFirstMetaBg { found: u32, desc_blocks: u32 },
    #[error("superblock: flexible groups of 2^{log} groups")]
    SuperFlexSize { log: u8 },
    #[error("superblock: extra inode size (least {min}, wanted {want}) exceeds {max}")]
    SuperExtraIsize { min: u16, want: u16, max: u16 },
    #[error("superblock: {blocks} blocks of descriptors do not fit in a group of {group_blocks}")]
    SuperDescriptorsDontFit { blocks: u64, group_blocks: u32 },
    #[error("superblock: journal in inode {ino}")]
    SuperJournalInode { ino: u32 },
    #[error("superblock: has_journal is set, but there is neither journal inode nor device")]
    SuperJournalMissing,
    #[error("superblock: orphan file in inode {ino}")]
    SuperOrphanFileInode { ino: u32 },
    #[error("superblock: quota file in inode {ino}")]
    SuperQuotaInode { ino: u32 },
    #[error("superblock: multiple-mount-protection block {block} is outside of the volume")]
    SuperMmpBlock { block: u64 },

    #[error("group {group}: descriptor checksum {found:#06x}, expected {expected:#06x}")]
    GroupDescChecksum {
        group: GroupNo,
        found: u16,
        expected: u16,
    },
    #[error("group {group}: {what} at block {block} ({len} blocks) cannot be there")]
    GroupDescLocation {
        group: GroupNo,
        what: &'static str,
        block: BlockNo,
        len: u64,
    },
    #[error("group {group}: bitmaps and inode table overlap")]
    GroupDescOverlap { group: GroupNo },
    #[error("group {group}: {found} {what}, but a group has {max}")]
    GroupDescCount {
        group: GroupNo,
        what: &'static str,
        found: u32,
        max: u32,
    },
    #[error("group {group}: {what} checksum {found:#010x}, expected {expected:#010x}")]
    BitmapChecksum {
        group: GroupNo,
        what: &'static str,
        found: u32,
        expected: u32,
    },

    #[error("inode {ino}: checksum {found:#010x}, expected {expected:#010x}")]
    InodeChecksum { ino: Ino, found: u32, expected: u32 },
    #[error("inode {ino}: extra size {found} is not a multiple of 4 up to {max}")]
    InodeExtraSize { ino: Ino, found: u16, max: u16 },
    #[error("inode {ino}: size {found} is not possible")]
    InodeSize { ino: Ino, found: u64 },
    #[error("inode {ino}: {sectors} sectors cannot be recorded on this volume")]
    InodeSectors { ino: Ino, sectors: u64 },

    #[error("{place}: bad magic {found:#06x}, expected 0xf30a")]
    ExtentMagic { place: NodePlace, found: u16 },
    #[error("{place}: depth {found}, expected {expected}")]
    ExtentDepth {
        place: NodePlace,
        found: u16,
        expected: u16,
    },
    #[error("{place}: capacity {found}, but there is room for {room}")]
    ExtentMax {
        place: NodePlace,
        found: u16,
        room: u16,
    },
    #[error("{place}: {found} entries, but a capacity of {max}")]
    ExtentEntries {
        place: NodePlace,
        found: u16,
        max: u16,
    },
    #[error("{place}: no entries")]
    ExtentEmptyNode { place: NodePlace },
    #[error("{place}: extent at file block {logical} has no length")]
    ExtentLength {
        place: NodePlace,
        logical: FileBlock,
    },
    #[error("{place}: entry at file block {logical} is out of order or range")]
    ExtentOrder {
        place: NodePlace,
        logical: FileBlock,
    },
    #[error(
        "{place}: entry at file block {logical} points outside of the volume ({len} blocks at {physical})"
    )]
    ExtentOutside {
        place: NodePlace,
        logical: FileBlock,
        physical: BlockNo,
        len: u32,
    },
    #[error("extent block {block}: checksum {found:#010x}, expected {expected:#010x}")]
    ExtentChecksum {
        block: BlockNo,
        found: u32,
        expected: u32,
    },

    #[error("directory block: entry at {offset} has only {left} bytes left")]
    DirEntryTruncated { offset: usize, left: usize },
    #[error("directory block: entry at {offset} has unaligned record length {rec_len}")]
    DirRecLenUnaligned { offset: usize, rec_len: usize },
    #[error("directory block: entry at {offset} has too small a record length {rec_len}")]
    DirRecLenSmall { offset: usize, rec_len: usize },
    #[error("directory block: entry at {offset} of length {rec_len} has only {left} bytes left")]
    DirRecLenPastEnd {
        offset: usize,
        rec_len: usize,
        left: usize,
    },
    #[error("directory block: name of {name_len} bytes at {offset} does not fit in {rec_len}")]
    DirNameTooLong {
        offset: usize,
        name_len: usize,
        rec_len: usize,
    },
    #[error("directory block: entry at {offset} has an empty name")]
    DirNameEmpty { offset: usize },
    #[error("directory block: name at {offset} contains byte {byte:#04x}")]
    DirNameByte { offset: usize, byte: u8 },
    #[error("directory block: entry at {offset} names inode {ino}, the last one is {max}")]
    DirInode { offset: usize, ino: Ino, max: u32 },
    #[error("directory block: no checksum tail")]
    DirTail,
    #[error("directory block: checksum {found:#010x}, expected {expected:#010x}")]
    DirChecksum { found: u32, expected: u32 },

    #[error("directory index: bad root ({what})")]
    DxRoot { what: &'static str },
    #[error("directory index: {found} levels, at most {max} are possible")]
    DxLevels { found: u8, max: u8 },
    #[error("directory index: block does not begin with an unused entry")]
    DxFakeEntry,
    #[error("directory index: limit {found}, expected {expected}")]
    DxLimit { found: usize, expected: usize },
    #[error("directory index: {found} entries, limit {limit}")]
    DxCount { found: usize, limit: usize },
    #[error("directory index: entry {position} is out of order")]
    DxOrder { position: usize },
    #[error("directory index: no room for the checksum")]
    DxTail,
    #[error("directory index: checksum {found:#010x}, expected {expected:#010x}")]
    DxChecksum { found: u32, expected: u32 },
    #[error("unknown directory hash version {found}")]
    HashVersionUnknown { found: u8 },
    #[error("directory hash: the key of an encrypted case-insensitive directory is missing")]
    HashKeyMissing,
    #[error("directory index: {leaves} leaves are more than it holds (large_dir allows more)")]
    DxFull { leaves: usize },

    #[error("extended attributes: bad magic {found:#010x}, expected 0xea020000")]
    XattrMagic { found: u32 },
    #[error("extended attributes: {found} blocks, expected 1")]
    XattrBlocks { found: u32 },
    #[error("extended attributes: table leaves its area at {offset}")]
    XattrTable { offset: usize },
    #[error(
        "extended attributes: value of the entry at {offset} ({size} bytes at {start}) cannot be there"
    )]
    XattrValue {
        offset: usize,
        start: usize,
        size: usize,
    },
    #[error("extended attributes: value of the entry at {offset} is in inode {ino}")]
    XattrValueInode { offset: usize, ino: Ino },
    #[error(
        "extended attributes: hash {found:#010x} of the entry at {offset}, expected {expected:#010x}"
    )]
    XattrHash {
        offset: usize,
        found: u32,
        expected: u32,
    },
    #[error("extended attribute block {block}: checksum {found:#010x}, expected {expected:#010x}")]
    XattrChecksum {
        block: BlockNo,
        found: u32,
        expected: u32,
    },
    #[error("access control list: version {found:?}, expected {expected}")]
    AclVersion { found: Option<u32>, expected: u32 },
    #[error("access control list: bad entry at {offset}")]
    AclEntry { offset: usize },

    #[error("journal superblock: bad magic {found:#010x}, expected 0xc03b3998")]
    JournalMagic { found: u32 },
    #[error("journal superblock: block type {found}, expected 3 or 4")]
    JournalSuperType { found: u32 },
    #[error("journal superblock: more than one kind of checksums")]
    JournalChecksumMix,
    #[error("journal superblock: unknown checksum type {found}")]
    JournalChecksumType { found: u8 },
    #[error("journal superblock: checksum {found:#010x}, expected {expected:#010x}")]
    JournalSuperChecksum { found: u32, expected: u32 },
    #[error("journal superblock: block size {found} is not between 1 KiB and 64 KiB")]
    JournalBlockSize { found: u32 },
    #[error("journal superblock: absurd length {found} (the journal maps {blocks:?} blocks)")]
    JournalLength { found: u32, blocks: Option<u64> },
    #[error("journal superblock: log begins at {found}, it ends at {end}")]
    JournalFirst { found: u32, end: u32 },
    #[error("journal superblock: replay begins at {found}, outside of the log ({first} to {end})")]
    JournalStart { found: u32, first: u32, end: u32 },
    #[error("journal block: checksum {found:#010x}, expected {expected:#010x}")]
    JournalBlockChecksum { found: u32, expected: u32 },
    #[error("journal commit block: checksum {found:#010x}, expected {expected:#010x}")]
    JournalCommitChecksum { found: u32, expected: u32 },
    #[error("journal descriptor: tags leave the block")]
    JournalTags,
    #[error("journal revoke block: {found} bytes in use, at most {max} are possible")]
    JournalRevokeCount { found: u32, max: usize },
    #[error("fast commit: bad record at {offset} (tag {tag}, {len} bytes)")]
    FastCommitRecord { offset: usize, tag: u16, len: usize },

    #[error("multiple-mount protection: bad magic {found:#010x}, expected 0x004d4d50")]
    MmpMagic { found: u32 },
    #[error("multiple-mount protection: checksum {found:#010x}, expected {expected:#010x}")]
    MmpChecksum { found: u32, expected: u32 },
    #[error("orphan file block {block}: bad magic {found:#010x}, expected 0x0b10ca04")]
    OrphanMagic { block: BlockNo, found: u32 },
    #[error("orphan file block {block}: checksum {found:#010x}, expected {expected:#010x}")]
    OrphanChecksum {
        block: BlockNo,
        found: u32,
        expected: u32,
    },
}
}
