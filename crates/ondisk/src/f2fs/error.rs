//! The format's error type: one variant per check, with what was found and what was expected.
//!
//! A variant says what is wrong with a structure; where that structure lies (device, block) is known
//! to the reader, and is part of the error only where the check needs it.

use super::types::{Algorithm, BlockAddr, FileKind, Ino, Log, Nid, SegNo};

crate::with_messages! {
/// Why bytes are not what they should be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the messages say it; fields are what was found and what was expected
#[non_exhaustive]
pub enum FormatError {
    Truncated { structure: &'static str, needed: usize, found: usize } = "{structure}: {found} bytes, needs {needed}",
    UnknownFeatureName { name: String } = "unknown feature \"{name}\"",

    SuperMagic { found: u32 } = "superblock: bad magic {found:#010x}, expected 0xf2f52010",
    SuperChecksumOffset { found: u32 } = "superblock: checksum at offset {found}, expected 3068",
    SuperChecksum { found: u32, expected: u32 } = "superblock: checksum {found:#010x}, expected {expected:#010x}",
    SuperBlockSize { log: u32 } = "superblock: blocks of 2^{log} bytes, only those of 4096 are known",
    SuperSegmentSize { log: u32 } = "superblock: segments of 2^{log} blocks, only those of 512 are known",
    SuperSectorSize { log: u32, per_block: u32 } = "superblock: sectors of 2^{log} bytes, 2^{per_block} to a block",
    SuperSegments { found: u32 } = "superblock: {found} segments are not possible",
    SuperBlocks { blocks: u64, segments: u32 } = "superblock: {blocks} blocks do not hold {segments} segments",
    SuperSections { sections: u32, per: u32, main: u32 } = "superblock: {sections} sections of {per} segments, but {main} segments in all",
    SuperZone { zone: u32, sections: u32 } = "superblock: zones of {zone} sections, but there are {sections}",
    SuperExtensions { cold: u32, hot: u8 } = "superblock: {cold} cold and {hot} hot extensions, at most 64 are possible",
    SuperPayload { found: u32 } = "superblock: checkpoints with {found} extra blocks",
    SuperInode { what: &'static str, found: u32, expected: u32 } = "superblock: {what} inode {found}, expected {expected}",
    SuperAreaStart { found: u32 } = "superblock: the first segment begins at block {found}",
    SuperArea { what: &'static str, found: u32, expected: u64 } = "superblock: {what} area at block {found}, expected {expected}",
    SuperAreaSize { what: &'static str, segments: u32 } = "superblock: {what} area of {segments} segments",
    SuperAreasEnd { found: u64, end: u64 } = "superblock: areas end at block {found}, the segments at {end}",
    SuperAreaRoom { what: &'static str, main: u64 } = "superblock: the {what} area is too small for {main} segments",
    SuperDevices { segments: u64, expected: u32 } = "superblock: devices of {segments} segments, expected {expected}",
    SuperPastDevice { blocks: u64, device_blocks: u64 } = "superblock: {blocks} blocks, but the device has room for {device_blocks}",

    CpChecksumOffset { found: u32 } = "checkpoint: checksum at offset {found}",
    CpChecksum { found: u32, expected: u32 } = "checkpoint: checksum {found:#010x}, expected {expected:#010x}",
    CpVersions { head: u64, tail: u64 } = "checkpoint: version {head} at its begin, {tail} at its end",
    CpBitmapSize { what: &'static str, found: u32, expected: usize } = "checkpoint: {what} bitmap of {found} bytes, expected {expected}",
    CpBitmapRoom { what: &'static str, at: usize, len: usize } = "checkpoint: no room for the {what} bitmap ({len} bytes at {at})",
    CpSegments { what: &'static str, found: u32, max: u32 } = "checkpoint: {found} {what} segments, there are {max}",
    CpUserBlocks { found: u64, max: u64 } = "checkpoint: {found} blocks for users, there are {max}",
    CpValidBlocks { valid: u64, user: u64 } = "checkpoint: {valid} blocks in use, there are {user} for users",
    CpNodes { nodes: u32, inodes: u32, valid: u64 } = "checkpoint: {nodes} nodes, {inodes} inodes, {valid} blocks in use",
    CpNextNid { found: Nid, max: u32 } = "checkpoint: next free node {found}, there are {max}",
    CpLog { log: Log, segment: SegNo, offset: u16 } = "checkpoint: {log} log at segment {segment}, block {offset}",
    CpLogTwice { log: Log, other: Log, segment: SegNo } = "checkpoint: {log} log and {other} log both in segment {segment}",
    CpPackShape { start_sum: u32, total: u32, payload: u32 } = "checkpoint: summaries at block {start_sum} of {total}, with {payload} extra blocks",
    CpPackRoom { what: &'static str, needed: u32, found: u32 } = "checkpoint: {what} need {needed} blocks, there are {found}",
    NatBitsVersion { found: u64, expected: u64 } = "NAT bits: of checkpoint {found:#018x}, expected {expected:#018x}",
    OrphanCount { found: u32 } = "orphan block: {found} entries, at most 1020 are possible",

    NidRange { nid: Nid, max: u32 } = "node number {nid} is out of range (there are {max})",
    SegmentRange { segment: SegNo, max: u32 } = "segment {segment} is out of range (there are {max})",
    NatBlock { nid: Nid, block: BlockAddr } = "NAT entry {nid}: block {block} is outside of the main area",
    NatInode { nid: Nid, ino: Ino } = "NAT entry {nid}: inode {ino} is out of range",
    SitType { segment: SegNo, found: u8 } = "SIT entry {segment}: unknown type {found}",
    SitCount { segment: SegNo, found: u16, counted: u16 } = "SIT entry {segment}: {found} valid blocks, its bitmap has {counted}",
    SummaryType { found: u8 } = "summary block: unknown type {found}",
    JournalCount { what: &'static str, found: u16, max: usize } = "{what} journal: {found} entries, at most {max} are possible",

    NodeNid { found: Nid, expected: Nid } = "node: number {found} in its footer, expected {expected}",
    NodeInode { nid: Nid, found: Ino, expected: Option<Ino> } = "node {nid}: inode {found} in its footer, expected {expected:?}",
    DataBlock { nid: Nid, position: usize, block: BlockAddr } = "node {nid}: address {position} is block {block}, outside of the main area",

    InodeChecksum { ino: Ino, found: u32, expected: u32 } = "inode {ino}: checksum {found:#010x}, expected {expected:#010x}",
    InodeMode { ino: Ino, found: u16 } = "inode {ino}: mode {found:#o} is of no type",
    InodeExtraSize { ino: Ino, found: u16 } = "inode {ino}: extra size {found} is not possible",
    InodeXattrSize { ino: Ino, found: u16, max: usize } = "inode {ino}: {found} words of attributes, 1 to {max} are possible",
    InodeInline { ino: Ino, found: u8, kind: FileKind } = "inode {ino}: inline flags {found:#04x} do not suit a {kind}",
    InodeNameLength { ino: Ino, found: u32 } = "inode {ino}: name of {found} bytes",
    InodeDepth { ino: Ino, found: u32 } = "inode {ino}: {found} levels of hash tables",
    InodeSize { ino: Ino, found: u64, max: u64 } = "inode {ino}: size {found}, at most {max} is possible",
    InodeBlocks { ino: Ino, found: u64 } = "inode {ino}: {found} blocks are not possible",
    InodeNode { ino: Ino, nid: Nid } = "inode {ino}: node {nid} is not possible",
    InodeExtent { ino: Ino, start: BlockAddr, len: u32 } = "inode {ino}: extent of {len} blocks at {start} is outside of the main area",

    DirNameLength { slot: usize, found: usize } = "directory entry in slot {slot}: name of {found} bytes",
    DirNamePastEnd { slot: usize, found: usize } = "directory entry in slot {slot}: name of {found} bytes leaves the block",
    DirNameByte { slot: usize, byte: u8 } = "directory entry in slot {slot}: name contains byte {byte:#04x}",
    DirInode { slot: usize, ino: Ino, max: u32 } = "directory entry in slot {slot}: names inode {ino}, expected 3 to {max} exclusive",

    XattrEntry { offset: usize } = "extended attributes: the entry at {offset} leaves the list",

    CompressAlgorithm { found: u8 } = "compression: unknown algorithm {found}",
    CompressLength { found: u32, max: usize } = "compressed cluster: {found} bytes, there are {max}",
    CompressChecksum { found: u32, expected: u32 } = "compressed cluster: checksum {found:#010x}, expected {expected:#010x}",
    CompressData { algorithm: Algorithm, reason: String } = "compressed cluster: {algorithm:?}: {reason}",
    CompressNotBuilt { algorithm: Algorithm } = "compressed cluster: {algorithm:?}, which this build cannot read (feature `zstd` or `ruzstd`)",
    CompressSize { found: usize, expected: usize } = "compressed cluster: decompresses to {found} bytes, expected {expected}",
    CompressAddress { position: usize, found: BlockAddr, reason: &'static str } = "compressed cluster: address {position} is {found}, {reason}",
}
}
