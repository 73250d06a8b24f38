//! Extent trees: nodes of 12-byte entries behind a 12-byte header, in `i_block` or in a block.
//!
//! [`ExtentNode`] is a validated view of one node. Validation makes later arithmetic safe: entries
//! fit, are ascending, do not overlap, have a length, and end below 2^32; leaves point into the
//! volume. It cannot see the rest of the tree: that a child's entries stay within its parent's
//! range, and that the tree has no loops, is checked by the caller with the range and depth
//! passed in [`NodeRules`].
//!
//! Not responsible for: changing trees (the engine), reading.

use std::mem::size_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::InodeSeed;
use super::error::FormatError;
use super::geometry::Geometry;
use super::types::{BlockNo, FileBlock};

pub use super::types::NodePlace;

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// Deepest tree (levels above the leaves).
pub const MAX_DEPTH: u16 = 5;
/// Longest written extent in blocks.
pub const MAX_WRITTEN_LEN: u32 = 32768;
/// Longest unwritten extent in blocks.
pub const MAX_UNWRITTEN_LEN: u32 = 32767;
/// Bytes of the header and of each entry.
pub const ENTRY_SIZE: usize = 12;
/// Entries a root in `i_block` has room for.
pub const ROOT_ENTRIES: u16 = 4;

/// Header of a node. Fields keep their documented names, without `eh_`.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawExtentHeader {
    pub magic: U16,
    pub entries: U16,
    pub max: U16,
    pub depth: U16,
    pub generation: U32,
}

/// Entry of a leaf. Fields keep their documented names, without `ee_`.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawExtent {
    pub block: U32,
    pub len: U16,
    pub start_hi: U16,
    pub start_lo: U32,
}

/// Entry of an inner node. Fields keep their documented names, without `ei_`.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawExtentIndex {
    pub block: U32,
    pub leaf_lo: U32,
    pub leaf_hi: U16,
    pub unused: U16,
}

const _: () = {
    assert!(size_of::<RawExtentHeader>() == ENTRY_SIZE);
    assert!(size_of::<RawExtent>() == ENTRY_SIZE);
    assert!(size_of::<RawExtentIndex>() == ENTRY_SIZE);
};

/// A run of blocks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// First block within the file.
    pub logical: FileBlock,
    /// First block on the device.
    pub physical: BlockNo,
    /// Blocks, at least 1.
    pub len: u32,
    /// Allocated, but reads as zeroes.
    pub unwritten: bool,
}

impl Extent {
    /// First block of the file behind the extent.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.logical.0.saturating_add(u64::from(self.len)))
    }

    /// Longest extent of this kind.
    #[must_use]
    pub fn max_len(unwritten: bool) -> u32 {
        if unwritten {
            MAX_UNWRITTEN_LEN
        } else {
            MAX_WRITTEN_LEN
        }
    }

    /// From its stored form. A length past 32768 says "unwritten"; exactly 32768 is written.
    #[must_use]
    pub fn from_raw(raw: &RawExtent) -> Self {
        let len = u32::from(raw.len.get());
        let unwritten = len > MAX_WRITTEN_LEN;
        Self {
            logical: FileBlock(u64::from(raw.block.get())),
            physical: BlockNo(u64::from(raw.start_lo.get()) | u64::from(raw.start_hi.get()) << 32),
            len: if unwritten {
                len - MAX_WRITTEN_LEN
            } else {
                len
            },
            unwritten,
        }
    }

    /// The stored form; `None` when a number does not fit.
    #[must_use]
    pub fn to_raw(&self) -> Option<RawExtent> {
        if self.len == 0 || self.len > Self::max_len(self.unwritten) || self.physical.0 >> 48 != 0 {
            return None;
        }
        let stored = if self.unwritten {
            self.len + MAX_WRITTEN_LEN
        } else {
            self.len
        };
        Some(RawExtent {
            block: U32::new(u32::try_from(self.logical.0).ok()?),
            len: U16::new(u16::try_from(stored).ok()?),
            start_hi: U16::new((self.physical.0 >> 32) as u16),
            start_lo: U32::new(self.physical.0 as u32),
        })
    }
}

/// An inner node's pointer: the subtree for file blocks from `logical` on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExtentIndex {
    /// First file block the subtree covers.
    pub logical: FileBlock,
    /// Block of the child node.
    pub child: BlockNo,
}

impl ExtentIndex {
    /// From its stored form.
    #[must_use]
    pub fn from_raw(raw: &RawExtentIndex) -> Self {
        Self {
            logical: FileBlock(u64::from(raw.block.get())),
            child: BlockNo(u64::from(raw.leaf_lo.get()) | u64::from(raw.leaf_hi.get()) << 32),
        }
    }

    /// The stored form; `None` when a number does not fit.
    #[must_use]
    pub fn to_raw(&self) -> Option<RawExtentIndex> {
        if self.child.0 >> 48 != 0 {
            return None;
        }
        Some(RawExtentIndex {
            block: U32::new(u32::try_from(self.logical.0).ok()?),
            leaf_lo: U32::new(self.child.0 as u32),
            leaf_hi: U16::new((self.child.0 >> 32) as u16),
            unused: U16::ZERO,
        })
    }
}

/// Entries a node of `bytes` bytes has room for. Every block size leaves at least the 4 bytes of
/// the checksum behind the last entry.
#[must_use]
pub fn max_entries(bytes: usize) -> u16 {
    u16::try_from(bytes.saturating_sub(ENTRY_SIZE) / ENTRY_SIZE).unwrap_or(u16::MAX)
}

/// What the position of a node in its tree demands.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules {
    /// Depth the parent implies; `None` for a root.
    pub depth: Option<u16>,
    /// First file block the node may cover.
    pub first: FileBlock,
    /// First file block behind what it may cover.
    pub end: FileBlock,
}

impl NodeRules {
    /// A root: any depth, any block. The last block number is reserved, so that a length in
    /// blocks always fits in 32 bits.
    pub const ROOT: Self = Self {
        depth: None,
        first: FileBlock(0),
        end: FileBlock(u32::MAX as u64),
    };
}

/// A validated node.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    header: &'a RawExtentHeader,
    entries: Entries<'a>,
}

/// The entries of a node.
#[derive(Clone, Copy, Debug)]
enum Entries<'a> {
    Leaf(&'a [RawExtent]),
    Inner(&'a [RawExtentIndex]),
}

impl<'a> ExtentNode<'a> {
    /// Validates a node: its header, its entries' order and lengths, that they lie within
    /// `rules`, and that they point into the volume. The checksum is verified separately by
    /// [`verify_checksum`].
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse(
        bytes: &'a [u8],
        place: NodePlace,
        rules: NodeRules,
        geo: &Geometry,
    ) -> Result<Self, FormatError> {
        let header = check_header(bytes, place)?;
        let depth = header.depth.get();
        if depth > MAX_DEPTH || rules.depth.is_some_and(|d| d != depth) {
            let expected = rules.depth.unwrap_or(MAX_DEPTH);
            return Err(FormatError::ExtentDepth {
                place,
                found: depth,
                expected,
            });
        }
        let count = usize::from(header.entries.get());
        // An inner node without entries leads nowhere; an empty leaf is just a hole.
        if count == 0 && depth > 0 {
            return Err(FormatError::ExtentEmptyNode { place });
        }
        let short = || FormatError::Truncated {
            structure: "extent node",
            needed: (count + 1) * ENTRY_SIZE,
            found: bytes.len(),
        };
        let rest = bytes.get(ENTRY_SIZE..).ok_or_else(short)?;
        let entries = if depth == 0 {
            let (leaf, _) =
                <[RawExtent]>::ref_from_prefix_with_elems(rest, count).map_err(|_| short())?;
            check_leaf(leaf, place, rules, geo)?;
            Entries::Leaf(leaf)
        } else {
            let (inner, _) =
                <[RawExtentIndex]>::ref_from_prefix_with_elems(rest, count).map_err(|_| short())?;
            check_inner(inner, place, rules, geo)?;
            Entries::Inner(inner)
        };
        Ok(Self { header, entries })
    }

    /// Levels below this node; 0 for a leaf.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.header.depth.get()
    }

    /// Entries in use.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.header.entries.get())
    }

    /// Whether no entry is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries the node has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::from(self.header.max.get())
    }

    /// The extents of a leaf; nothing for an inner node.
    pub fn extents(&self) -> impl DoubleEndedIterator<Item = Extent> + ExactSizeIterator + use<'a> {
        let raw = match self.entries {
            Entries::Leaf(raw) => raw,
            Entries::Inner(_) => &[],
        };
        raw.iter().map(Extent::from_raw)
    }

    /// The pointers of an inner node; nothing for a leaf.
    pub fn indexes(
        &self,
    ) -> impl DoubleEndedIterator<Item = ExtentIndex> + ExactSizeIterator + use<'a> {
        let raw = match self.entries {
            Entries::Inner(raw) => raw,
            Entries::Leaf(_) => &[],
        };
        raw.iter().map(ExtentIndex::from_raw)
    }

    /// Position of the last entry that starts at or before `block`; `None` when all start later.
    #[must_use]
    pub fn find(&self, block: FileBlock) -> Option<usize> {
        let after = match self.entries {
            Entries::Leaf(raw) => raw.partition_point(|e| u64::from(e.block.get()) <= block.0),
            Entries::Inner(raw) => raw.partition_point(|e| u64::from(e.block.get()) <= block.0),
        };
        after.checked_sub(1)
    }

    /// The extent at a position of a leaf.
    #[must_use]
    pub fn extent(&self, position: usize) -> Option<Extent> {
        match self.entries {
            Entries::Leaf(raw) => raw.get(position).map(Extent::from_raw),
            Entries::Inner(_) => None,
        }
    }

    /// The pointer at a position of an inner node.
    #[must_use]
    pub fn index(&self, position: usize) -> Option<ExtentIndex> {
        match self.entries {
            Entries::Inner(raw) => raw.get(position).map(ExtentIndex::from_raw),
            Entries::Leaf(_) => None,
        }
    }

    /// Rules for the child at a position, given the rules this node was parsed with.
    #[must_use]
    pub fn child_rules(&self, position: usize, rules: NodeRules) -> Option<NodeRules> {
        let first = self.index(position)?.logical;
        let end = self
            .index(position + 1)
            .map_or(rules.end, |next| next.logical);
        Some(NodeRules {
            depth: Some(self.depth().checked_sub(1)?),
            first,
            end,
        })
    }
}

fn check_header(bytes: &[u8], place: NodePlace) -> Result<&RawExtentHeader, FormatError> {
    let (header, _) =
        RawExtentHeader::ref_from_prefix(bytes).map_err(|_| FormatError::Truncated {
            structure: "extent node",
            needed: ENTRY_SIZE,
            found: bytes.len(),
        })?;
    let found = header.magic.get();
    if found != MAGIC {
        return Err(FormatError::ExtentMagic { place, found });
    }
    let room = max_entries(bytes.len());
    let max = header.max.get();
    if max == 0 || max > room {
        return Err(FormatError::ExtentMax {
            place,
            found: max,
            room,
        });
    }
    let entries = header.entries.get();
    if entries > max {
        return Err(FormatError::ExtentEntries {
            place,
            found: entries,
            max,
        });
    }
    Ok(header)
}

fn check_leaf(
    leaf: &[RawExtent],
    place: NodePlace,
    rules: NodeRules,
    geo: &Geometry,
) -> Result<(), FormatError> {
    let mut free_from = rules.first;
    for raw in leaf {
        let e = Extent::from_raw(raw);
        let logical = e.logical;
        if e.len == 0 {
            return Err(FormatError::ExtentLength { place, logical });
        }
        if logical < free_from || e.end() > rules.end {
            return Err(FormatError::ExtentOrder { place, logical });
        }
        if !geo.contains_run(e.physical, u64::from(e.len)) {
            let (physical, len) = (e.physical, e.len);
            return Err(FormatError::ExtentOutside {
                place,
                logical,
                physical,
                len,
            });
        }
        free_from = e.end();
    }
    Ok(())
}

fn check_inner(
    inner: &[RawExtentIndex],
    place: NodePlace,
    rules: NodeRules,
    geo: &Geometry,
) -> Result<(), FormatError> {
    let mut free_from = rules.first;
    for raw in inner {
        let ix = ExtentIndex::from_raw(raw);
        let logical = ix.logical;
        if logical < free_from || logical >= rules.end {
            return Err(FormatError::ExtentOrder { place, logical });
        }
        if !geo.contains_run(ix.child, 1) || NodePlace::Block(ix.child) == place {
            return Err(FormatError::ExtentOutside {
                place,
                logical,
                physical: ix.child,
                len: 1,
            });
        }
        free_from = FileBlock(logical.0 + 1);
    }
    Ok(())
}

/// Offset of the checksum behind a node's entries.
fn tail_offset(bytes: &[u8]) -> Option<usize> {
    let max = bytes.get(4..6)?;
    let at = ENTRY_SIZE + ENTRY_SIZE * usize::from(u16::from_le_bytes([max[0], max[1]]));
    (at + 4 <= bytes.len()).then_some(at)
}

/// Verifies the checksum of an extent block (a node in the inode has none of its own).
///
/// # Errors
/// [`FormatError::ExtentChecksum`], [`FormatError::ExtentMax`] when the checksum's own place is
/// outside of the block.
pub fn verify_checksum(
    bytes: &[u8],
    block: BlockNo,
    geo: &Geometry,
    seed: InodeSeed,
) -> Result<(), FormatError> {
    if !geo.metadata_csum() {
        return Ok(());
    }
    let place = NodePlace::Block(block);
    let header = check_header(bytes, place)?;
    let bad_max = FormatError::ExtentMax {
        place,
        found: header.max.get(),
        room: max_entries(bytes.len()),
    };
    let Some(at) = tail_offset(bytes) else {
        return Err(bad_max);
    };
    let Some(expected) = seed.extent_block(bytes, at) else {
        return Err(bad_max);
    };
    let found = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if crate::sums_differ(found, expected) {
        return Err(FormatError::ExtentChecksum {
            block,
            found,
            expected,
        });
    }
    Ok(())
}

/// Stores the checksum of an extent block; nothing without metadata checksums.
///
/// # Errors
/// [`FormatError::Truncated`] when the header's capacity leaves no room for it.
pub fn set_checksum(bytes: &mut [u8], geo: &Geometry, seed: InodeSeed) -> Result<(), FormatError> {
    if !geo.metadata_csum() {
        return Ok(());
    }
    let sum = tail_offset(bytes).and_then(|at| Some((at, seed.extent_block(bytes, at)?)));
    let Some((at, sum)) = sum else {
        return Err(FormatError::Truncated {
            structure: "extent node",
            needed: ENTRY_SIZE + 4,
            found: bytes.len(),
        });
    };
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// Clears the checksum of an extent block, on a volume that loses the feature.
pub fn clear_checksum(bytes: &mut [u8]) {
    if let Some(at) = tail_offset(bytes) {
        bytes[at..at + 4].fill(0);
    }
}

/// Writes a node: header, then entries; the bytes behind are zeroed. `None` when it does not fit.
fn write_node(bytes: &mut [u8], depth: u16, count: usize, raw: &[u8]) -> Option<()> {
    let max = max_entries(bytes.len());
    let count = u16::try_from(count).ok().filter(|n| *n <= max)?;
    let header = RawExtentHeader {
        magic: U16::new(MAGIC),
        entries: U16::new(count),
        max: U16::new(max),
        depth: U16::new(depth),
        generation: U32::ZERO,
    };
    bytes
        .get_mut(..ENTRY_SIZE)?
        .copy_from_slice(header.as_bytes());
    let body = bytes.get_mut(ENTRY_SIZE..)?;
    body.get_mut(..raw.len())?.copy_from_slice(raw);
    body[raw.len()..].fill(0);
    Some(())
}

/// Makes `bytes` a leaf of the given extents (without checksum); `None` when they do not fit.
#[must_use]
pub fn write_leaf(bytes: &mut [u8], extents: &[Extent]) -> Option<()> {
    let raw: Option<Vec<RawExtent>> = extents.iter().map(Extent::to_raw).collect();
    write_node(bytes, 0, extents.len(), raw?.as_bytes())
}

/// Makes `bytes` an inner node of the given pointers (without checksum); `None` when they do not
/// fit or `depth` is 0.
#[must_use]
pub fn write_inner(bytes: &mut [u8], depth: u16, indexes: &[ExtentIndex]) -> Option<()> {
    if depth == 0 || depth > MAX_DEPTH {
        return None;
    }
    let raw: Option<Vec<RawExtentIndex>> = indexes.iter().map(ExtentIndex::to_raw).collect();
    write_node(bytes, depth, indexes.len(), raw?.as_bytes())
}

#[cfg(test)]
#[path = "extent_tests.rs"]
mod tests;
