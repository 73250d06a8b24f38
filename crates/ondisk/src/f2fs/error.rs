//! The format's error type: one variant per check, with what was found and what was expected.
//!
//! A variant says what is wrong with a structure; where that structure lies (device, block) is known
//! to the reader, and is part of the error only where the check needs it.

use thiserror::Error;

use super::types::{Algorithm, BlockAddr, FileKind, Ino, Log, Nid, SegNo};

/// Why bytes are not what they should be.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
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

    #[error("superblock: bad magic {found:#010x}, expected 0xf2f52010")]
    SuperMagic { found: u32 },
    #[error("superblock: checksum at offset {found}, expected 3068")]
    SuperChecksumOffset { found: u32 },
    #[error("superblock: checksum {found:#010x}, expected {expected:#010x}")]
    SuperChecksum { found: u32, expected: u32 },
    #[error("superblock: blocks of 2^{log} bytes, only those of 4096 are known")]
    SuperBlockSize { log: u32 },
    #[error("superblock: segments of 2^{log} blocks, only those of 512 are known")]
    SuperSegmentSize { log: u32 },
    #[error("superblock: sectors of 2^{log} bytes, 2^{per_block} to a block")]
    SuperSectorSize { log: u32, per_block: u32 },
    #[error("superblock: {found} segments are not possible")]
    SuperSegments { found: u32 },
    #[error("superblock: {blocks} blocks do not hold {segments} segments")]
    SuperBlocks { blocks: u64, segments: u32 },
    #[error("superblock: {sections} sections of {per} segments, but {main} segments in all")]
    SuperSections { sections: u32, per: u32, main: u32 },
    #[error("superblock: zones of {zone} sections, but there are {sections}")]
    SuperZone { zone: u32, sections: u32 },
    #[error("superblock: {cold} cold and {hot} hot extensions, at most 64 are possible")]
    SuperExtensions { cold: u32, hot: u8 },
    #[error("superblock: checkpoints with {found} extra blocks")]
    SuperPayload { found: u32 },
    #[error("superblock: {what} inode {found}, expected {expected}")]
    SuperInode {
        what: &'static str,
        found: u32,
        expected: u32,
    },
    #[error("superblock: the first segment begins at block {found}")]
    SuperAreaStart { found: u32 },
    #[error("superblock: {what} area at block {found}, expected {expected}")]
    SuperArea {
        what: &'static str,
        found: u32,
        expected: u64,
    },
    #[error("superblock: {what} area of {segments} segments")]
    SuperAreaSize { what: &'static str, segments: u32 },
    #[error("superblock: areas end at block {found}, the segments at {end}")]
    SuperAreasEnd { found: u64, end: u64 },
    #[error("superblock: the {what} area is too small for {main} segments")]
    SuperAreaRoom { what: &'static str, main: u64 },
    #[error("superblock: devices of {segments} segments, expected {expected}")]
    SuperDevices { segments: u64, expected: u32 },
    #[error("superblock: {blocks} blocks, but the device has room for {device_blocks}")]
    SuperPastDevice { blocks: u64, device_blocks: u64 },

    #[error("checkpoint: checksum at offset {found}")]
    CpChecksumOffset { found: u32 },
    #[error("checkpoint: checksum {found:#010x}, expected {expected:#010x}")]
    CpChecksum { found: u32, expected: u32 },
    #[error("checkpoint: version {head} at its begin, {tail} at its end")]
    CpVersions { head: u64, tail: u64 },
    #[error("checkpoint: {what} bitmap of {found} bytes, expected {expected}")]
    CpBitmapSize {
        what: &'static str,
        found: u32,
        expected: usize,
    },
    #[error("checkpoint: no room for the {what} bitmap ({len} bytes at {at})")]
    CpBitmapRoom {
        what: &'static str,
        at: usize,
        len: usize,
    },
    #[error("checkpoint: {found} {what} segments, there are {max}")]
    CpSegments {
        what: &'static str,
        found: u32,
        max: u32,
    },
    #[error("checkpoint: {found} blocks for users, there are {max}")]
    CpUserBlocks { found: u64, max: u64 },
    #[error("checkpoint: {valid} blocks in use, there are {user} for users")]
    CpValidBlocks { valid: u64, user: u64 },
    #[error("checkpoint: {nodes} nodes, {inodes} inodes, {valid} blocks in use")]
    CpNodes { nodes: u32, inodes: u32, valid: u64 },
    #[error("checkpoint: next free node {found}, there are {max}")]
    CpNextNid { found: Nid, max: u32 },
    #[error("checkpoint: {log} log at segment {segment}, block {offset}")]
    CpLog {
        log: Log,
        segment: SegNo,
        offset: u16,
    },
    #[error("checkpoint: {log} log and {other} log both in segment {segment}")]
    CpLogTwice {
        log: Log,
        other: Log,
        segment: SegNo,
    },
    #[error("checkpoint: summaries at block {start_sum} of {total}, with {payload} extra blocks")]
    CpPackShape {
        start_sum: u32,
        total: u32,
        payload: u32,
    },
    #[error("checkpoint: {what} need {needed} blocks, there are {found}")]
    CpPackRoom {
        what: &'static str,
        needed: u32,
        found: u32,
    },
    #[error("NAT bits: of checkpoint {found:#018x}, expected {expected:#018x}")]
    NatBitsVersion { found: u64, expected: u64 },
    #[error("orphan block: {found} entries, at most 1020 are possible")]
    OrphanCount { found: u32 },

    #[error("node number {nid} is out of range (there are {max})")]
    NidRange { nid: Nid, max: u32 },
    #[error("segment {segment} is out of range (there are {max})")]
    SegmentRange { segment: SegNo, max: u32 },
    #[error("NAT entry {nid}: block {block} is outside of the main area")]
    NatBlock { nid: Nid, block: BlockAddr },
    #[error("NAT entry {nid}: inode {ino} is out of range")]
    NatInode { nid: Nid, ino: Ino },
    #[error("SIT entry {segment}: unknown type {found}")]
    SitType { segment: SegNo, found: u8 },
    #[error("SIT entry {segment}: {found} valid blocks, its bitmap has {counted}")]
    SitCount {
        segment: SegNo,
        found: u16,
        counted: u16,
    },
    #[error("summary block: unknown type {found}")]
    SummaryType { found: u8 },
    #[error("{what} journal: {found} entries, at most {max} are possible")]
    JournalCount {
        what: &'static str,
        found: u16,
        max: usize,
    },

    #[error("node: number {found} in its footer, expected {expected}")]
    NodeNid { found: Nid, expected: Nid },
    #[error("node {nid}: inode {found} in its footer, expected {expected:?}")]
    NodeInode {
        nid: Nid,
        found: Ino,
        expected: Option<Ino>,
    },
    #[error("node {nid}: address {position} is block {block}, outside of the main area")]
    DataBlock {
        nid: Nid,
        position: usize,
        block: BlockAddr,
    },

    #[error("inode {ino}: checksum {found:#010x}, expected {expected:#010x}")]
    InodeChecksum { ino: Ino, found: u32, expected: u32 },
    #[error("inode {ino}: mode {found:#o} is of no type")]
    InodeMode { ino: Ino, found: u16 },
    #[error("inode {ino}: extra size {found} is not possible")]
    InodeExtraSize { ino: Ino, found: u16 },
    #[error("inode {ino}: {found} words of attributes, 1 to {max} are possible")]
    InodeXattrSize { ino: Ino, found: u16, max: usize },
    #[error("inode {ino}: inline flags {found:#04x} do not suit a {kind}")]
    InodeInline { ino: Ino, found: u8, kind: FileKind },
    #[error("inode {ino}: name of {found} bytes")]
    InodeNameLength { ino: Ino, found: u32 },
    #[error("inode {ino}: {found} levels of hash tables")]
    InodeDepth { ino: Ino, found: u32 },
    #[error("inode {ino}: size {found}, at most {max} is possible")]
    InodeSize { ino: Ino, found: u64, max: u64 },
    #[error("inode {ino}: {found} blocks are not possible")]
    InodeBlocks { ino: Ino, found: u64 },
    #[error("inode {ino}: node {nid} is not possible")]
    InodeNode { ino: Ino, nid: Nid },
    #[error("inode {ino}: extent of {len} blocks at {start} is outside of the main area")]
    InodeExtent {
        ino: Ino,
        start: BlockAddr,
        len: u32,
    },

    #[error("directory entry in slot {slot}: name of {found} bytes")]
    DirNameLength { slot: usize, found: usize },
    #[error("directory entry in slot {slot}: name of {found} bytes leaves the block")]
    DirNamePastEnd { slot: usize, found: usize },
    #[error("directory entry in slot {slot}: name contains byte {byte:#04x}")]
    DirNameByte { slot: usize, byte: u8 },
    #[error("directory entry in slot {slot}: names inode {ino}, expected 3 to {max} exclusive")]
    DirInode { slot: usize, ino: Ino, max: u32 },

    #[error("extended attributes: the entry at {offset} leaves the list")]
    XattrEntry { offset: usize },

    #[error("compression: unknown algorithm {found}")]
    CompressAlgorithm { found: u8 },
    #[error("compressed cluster: {found} bytes, there are {max}")]
    CompressLength { found: u32, max: usize },
    #[error("compressed cluster: checksum {found:#010x}, expected {expected:#010x}")]
    CompressChecksum { found: u32, expected: u32 },
    #[error("compressed cluster: {algorithm:?}: {reason}")]
    CompressData {
        algorithm: Algorithm,
        reason: String,
    },
    #[error(
        "compressed cluster: {algorithm:?}, which this build cannot read (feature `zstd` or `ruzstd`)"
    )]
    CompressNotBuilt { algorithm: Algorithm },
    #[error("compressed cluster: decompresses to {found} bytes, expected {expected}")]
    CompressSize { found: usize, expected: usize },
    #[error("compressed cluster: address {position} is {found}, {reason}")]
    CompressAddress {
        position: usize,
        found: BlockAddr,
        reason: &'static str,
    },
}
