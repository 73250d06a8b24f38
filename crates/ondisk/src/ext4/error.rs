//! The format's error type: one variant per check, with what was found and what was expected.
//!
//! A variant says what is wrong with a structure; where that structure lies (device, inode, block)
//! is known to the reader, and is part of the error only where the check needs it.

use super::types::{BlockNo, FileBlock, GroupNo, Ino, NodePlace};

crate::with_messages! {
/// Why bytes are not what they should be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the messages say it; fields are what was found and what was expected
#[non_exhaustive]
pub enum FormatError {
    Truncated { structure: &'static str, needed: usize, found: usize } = "{structure}: {found} bytes, needs {needed}",
    UnknownFeatureName { name: String } = "unknown feature \"{name}\"",

    SuperMagic { found: u16 } = "superblock: bad magic {found:#06x}, expected 0xef53",
    SuperChecksum { found: u32, expected: u32 } = "superblock: checksum {found:#010x}, expected {expected:#010x}",
    SuperChecksumType { found: u8 } = "superblock: unknown checksum type {found}",
    SuperRevision { found: u32 } = "superblock: unknown revision {found}",
    SuperIsJournalDevice = "superblock: this is an external journal, not a file system",
    SuperNotJournalDevice = "superblock: this is no journal device",
    JournalUsers { users: u32, max: usize } = "journal device: it has {users} users, the format has room for {max}",
    SuperBlockSize { log: u32 } = "superblock: block size 2^(10+{log}) is not between 1 KiB and 64 KiB",
    SuperClusterSize { log: u32, block_log: u32 } = "superblock: cluster size 2^(10+{log}) does not suit block size 2^(10+{block_log})",
    SuperInodeSize { found: u16, block_size: u32 } = "superblock: inode size {found} is not a power of two from 128 to {block_size}",
    SuperClustersPerGroup { found: u32, max: u32 } = "superblock: {found} clusters per group, expected a multiple of 8 up to {max}",
    SuperBlocksPerGroup { found: u32, clusters: u32, ratio: u32 } = "superblock: {found} blocks per group, expected {clusters} clusters of {ratio}",
    SuperInodesPerGroup { found: u32, per_block: u32, max: u32 } =
        "superblock: {found} inodes per group, expected a multiple of 8 and of {per_block} up to {max}",
    SuperFirstDataBlock { found: u32, expected: u32 } = "superblock: first data block {found}, expected {expected}",
    SuperBlocksCount { found: u64 } = "superblock: absurd number of blocks {found}",
    SuperPastDevice { blocks: u64, device_blocks: u64 } = "superblock: {blocks} blocks, but the device has room for {device_blocks}",
    SuperDescSize { found: u16 } = "superblock: group descriptor size {found} is not a power of two from 64 to 1024",
    SuperGroupsCount { found: u64 } = "superblock: {found} groups are too many",
    SuperInodesCount { found: u32, expected: u64 } = "superblock: {found} inodes, expected {expected} (inodes per group times groups)",
    SuperFirstInode { found: u32 } = "superblock: absurd first inode {found}",
    SuperReservedGdt { found: u32, max: u32 } = "superblock: {found} reserved descriptor blocks, at most {max} are possible",
    SuperFirstMetaBg { found: u32, desc_blocks: u32 } = "superblock: first meta block group {found}, but there are {desc_blocks} in all",
    SuperFlexSize { log: u8 } = "superblock: flexible groups of 2^{log} groups",
    SuperExtraIsize { min: u16, want: u16, max: u16 } = "superblock: extra inode size (least {min}, wanted {want}) exceeds {max}",
    SuperDescriptorsDontFit { blocks: u64, group_blocks: u32 } = "superblock: {blocks} blocks of descriptors do not fit in a group of {group_blocks}",
    SuperJournalInode { ino: u32 } = "superblock: journal in inode {ino}",
    SuperJournalMissing = "superblock: has_journal is set, but there is neither journal inode nor device",
    SuperOrphanFileInode { ino: u32 } = "superblock: orphan file in inode {ino}",
    SuperQuotaInode { ino: u32 } = "superblock: quota file in inode {ino}",
    SuperMmpBlock { block: u64 } = "superblock: multiple-mount-protection block {block} is outside of the volume",

    GroupDescChecksum { group: GroupNo, found: u16, expected: u16 } = "group {group}: descriptor checksum {found:#06x}, expected {expected:#06x}",
    GroupDescLocation { group: GroupNo, what: &'static str, block: BlockNo, len: u64 } =
        "group {group}: {what} at block {block} ({len} blocks) cannot be there",
    GroupDescOverlap { group: GroupNo } = "group {group}: bitmaps and inode table overlap",
    GroupDescCount { group: GroupNo, what: &'static str, found: u32, max: u32 } = "group {group}: {found} {what}, but a group has {max}",
    BitmapChecksum { group: GroupNo, what: &'static str, found: u32, expected: u32 } =
        "group {group}: {what} checksum {found:#010x}, expected {expected:#010x}",

    InodeChecksum { ino: Ino, found: u32, expected: u32 } = "inode {ino}: checksum {found:#010x}, expected {expected:#010x}",
    InodeExtraSize { ino: Ino, found: u16, max: u16 } = "inode {ino}: extra size {found} is not a multiple of 4 up to {max}",
    InodeSize { ino: Ino, found: u64 } = "inode {ino}: size {found} is not possible",
    InodeSectors { ino: Ino, sectors: u64 } = "inode {ino}: {sectors} sectors cannot be recorded on this volume",

    ExtentMagic { place: NodePlace, found: u16 } = "{place}: bad magic {found:#06x}, expected 0xf30a",
    ExtentDepth { place: NodePlace, found: u16, expected: u16 } = "{place}: depth {found}, expected {expected}",
    ExtentMax { place: NodePlace, found: u16, room: u16 } = "{place}: capacity {found}, but there is room for {room}",
    ExtentEntries { place: NodePlace, found: u16, max: u16 } = "{place}: {found} entries, but a capacity of {max}",
    ExtentEmptyNode { place: NodePlace } = "{place}: no entries",
    ExtentLength { place: NodePlace, logical: FileBlock } = "{place}: extent at file block {logical} has no length",
    ExtentOrder { place: NodePlace, logical: FileBlock } = "{place}: entry at file block {logical} is out of order or range",
    ExtentOutside { place: NodePlace, logical: FileBlock, physical: BlockNo, len: u32 } =
        "{place}: entry at file block {logical} points outside of the volume ({len} blocks at {physical})",
    ExtentChecksum { block: BlockNo, found: u32, expected: u32 } = "extent block {block}: checksum {found:#010x}, expected {expected:#010x}",

    DirEntryTruncated { offset: usize, left: usize } = "directory block: entry at {offset} has only {left} bytes left",
    DirRecLenUnaligned { offset: usize, rec_len: usize } = "directory block: entry at {offset} has unaligned record length {rec_len}",
    DirRecLenSmall { offset: usize, rec_len: usize } = "directory block: entry at {offset} has too small a record length {rec_len}",
    DirRecLenPastEnd { offset: usize, rec_len: usize, left: usize } =
        "directory block: entry at {offset} of length {rec_len} has only {left} bytes left",
    DirNameTooLong { offset: usize, name_len: usize, rec_len: usize } =
        "directory block: name of {name_len} bytes at {offset} does not fit in {rec_len}",
    DirNameEmpty { offset: usize } = "directory block: entry at {offset} has an empty name",
    DirNameByte { offset: usize, byte: u8 } = "directory block: name at {offset} contains byte {byte:#04x}",
    DirInode { offset: usize, ino: Ino, max: u32 } = "directory block: entry at {offset} names inode {ino}, the last one is {max}",
    DirTail = "directory block: no checksum tail",
    DirChecksum { found: u32, expected: u32 } = "directory block: checksum {found:#010x}, expected {expected:#010x}",

    DxRoot { what: &'static str } = "directory index: bad root ({what})",
    DxLevels { found: u8, max: u8 } = "directory index: {found} levels, at most {max} are possible",
    DxFakeEntry = "directory index: block does not begin with an unused entry",
    DxLimit { found: usize, expected: usize } = "directory index: limit {found}, expected {expected}",
    DxCount { found: usize, limit: usize } = "directory index: {found} entries, limit {limit}",
    DxOrder { position: usize } = "directory index: entry {position} is out of order",
    DxTail = "directory index: no room for the checksum",
    DxChecksum { found: u32, expected: u32 } = "directory index: checksum {found:#010x}, expected {expected:#010x}",
    HashVersionUnknown { found: u8 } = "unknown directory hash version {found}",
    HashKeyMissing = "directory hash: the key of an encrypted case-insensitive directory is missing",
    DxFull { leaves: usize } = "directory index: {leaves} leaves are more than it holds (large_dir allows more)",

    XattrMagic { found: u32 } = "extended attributes: bad magic {found:#010x}, expected 0xea020000",
    XattrBlocks { found: u32 } = "extended attributes: {found} blocks, expected 1",
    XattrTable { offset: usize } = "extended attributes: table leaves its area at {offset}",
    XattrValue { offset: usize, start: usize, size: usize } =
        "extended attributes: value of the entry at {offset} ({size} bytes at {start}) cannot be there",
    XattrValueInode { offset: usize, ino: Ino } = "extended attributes: value of the entry at {offset} is in inode {ino}",
    XattrHash { offset: usize, found: u32, expected: u32 } =
        "extended attributes: hash {found:#010x} of the entry at {offset}, expected {expected:#010x}",
    XattrChecksum { block: BlockNo, found: u32, expected: u32 } =
        "extended attribute block {block}: checksum {found:#010x}, expected {expected:#010x}",
    AclVersion { found: Option<u32>, expected: u32 } = "access control list: version {found:?}, expected {expected}",
    AclEntry { offset: usize } = "access control list: bad entry at {offset}",

    JournalMagic { found: u32 } = "journal superblock: bad magic {found:#010x}, expected 0xc03b3998",
    JournalSuperType { found: u32 } = "journal superblock: block type {found}, expected 3 or 4",
    JournalChecksumMix = "journal superblock: more than one kind of checksums",
    JournalChecksumType { found: u8 } = "journal superblock: unknown checksum type {found}",
    JournalSuperChecksum { found: u32, expected: u32 } = "journal superblock: checksum {found:#010x}, expected {expected:#010x}",
    JournalBlockSize { found: u32 } = "journal superblock: block size {found} is not between 1 KiB and 64 KiB",
    JournalLength { found: u32, blocks: Option<u64> } = "journal superblock: absurd length {found} (the journal maps {blocks:?} blocks)",
    JournalFirst { found: u32, end: u32 } = "journal superblock: log begins at {found}, it ends at {end}",
    JournalStart { found: u32, first: u32, end: u32 } = "journal superblock: replay begins at {found}, outside of the log ({first} to {end})",
    JournalBlockChecksum { found: u32, expected: u32 } = "journal block: checksum {found:#010x}, expected {expected:#010x}",
    JournalCommitChecksum { found: u32, expected: u32 } = "journal commit block: checksum {found:#010x}, expected {expected:#010x}",
    JournalTags = "journal descriptor: tags leave the block",
    JournalRevokeCount { found: u32, max: usize } = "journal revoke block: {found} bytes in use, at most {max} are possible",
    FastCommitRecord { offset: usize, tag: u16, len: usize } = "fast commit: bad record at {offset} (tag {tag}, {len} bytes)",

    MmpMagic { found: u32 } = "multiple-mount protection: bad magic {found:#010x}, expected 0x004d4d50",
    MmpChecksum { found: u32, expected: u32 } = "multiple-mount protection: checksum {found:#010x}, expected {expected:#010x}",
    OrphanMagic { block: BlockNo, found: u32 } = "orphan file block {block}: bad magic {found:#010x}, expected 0x0b10ca04",
    OrphanChecksum { block: BlockNo, found: u32, expected: u32 } = "orphan file block {block}: checksum {found:#010x}, expected {expected:#010x}",
}
}
