//! Blocks of a directory's hash index.
//!
//! The root lies in block 0 of the directory behind "." and ".."; other index blocks begin with
//! one unused entry that spans the block. Both hold an array of (hash, block) entries; the first
//! entry's hash is implicitly 0, and in its place lie the array's limit and count.
//!
//! [`DxNode`] is validated: limit as the block size demands, 1 ≤ count ≤ limit, hashes ascending.
//! That child blocks exist in the directory and that levels do not loop is the caller's check.

use std::mem::size_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::InodeSeed;
use super::dir::{DirFormat, decode_rec_len, encode_rec_len, write_entry};
use super::error::FormatError;
use super::types::{FileKind, Ino};

/// Offset of the root's info within block 0.
pub const ROOT_INFO_OFFSET: usize = 24;
/// Offset of the entries in the root.
pub const ROOT_ENTRIES_OFFSET: usize = 32;
/// Offset of the entries in any other index block.
pub const NODE_ENTRIES_OFFSET: usize = 8;
/// Index levels below the root without `large_dir`.
pub const MAX_INDIRECT_LEVELS: u8 = 1;
/// Index levels below the root with `large_dir`.
pub const MAX_INDIRECT_LEVELS_LARGE: u8 = 2;

/// What the root says about the index. Fields keep their documented names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDxRootInfo {
    pub reserved_zero: U32,
    pub hash_version: u8,
    pub info_length: u8,
    pub indirect_levels: u8,
    pub unused_flags: u8,
}

/// Limit and count of an index block's entries; lies over the first entry's hash.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDxCountLimit {
    pub limit: U16,
    pub count: U16,
}

/// An index entry. Fields keep their documented names.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDxEntry {
    pub hash: U32,
    pub block: U32,
}

/// Checksum behind the last possible entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDxTail {
    pub reserved: U32,
    pub checksum: U32,
}

const ENTRY: usize = size_of::<RawDxEntry>();
const TAIL: usize = size_of::<RawDxTail>();

const _: () = {
    assert!(size_of::<RawDxRootInfo>() == 8);
    assert!(size_of::<RawDxCountLimit>() == 4);
    assert!(ENTRY == 8);
    assert!(TAIL == 8);
};

/// Which index block a block is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DxPlace {
    /// Block 0 of the directory.
    Root,
    /// Any other index block.
    Node,
}

impl DxPlace {
    /// Offset of the entries.
    #[must_use]
    pub fn entries_offset(self) -> usize {
        match self {
            Self::Root => ROOT_ENTRIES_OFFSET,
            Self::Node => NODE_ENTRIES_OFFSET,
        }
    }

    /// Entries the block has room for.
    #[must_use]
    pub fn limit(self, format: &DirFormat) -> usize {
        let tail = if format.checksums { TAIL } else { 0 };
        (format.block_size - self.entries_offset() - tail) / ENTRY
    }
}

/// An entry of an index: the directory block for hashes from `hash` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DxEntry {
    /// First hash; its lowest bit says that the previous block ends with the same hash.
    pub hash: u32,
    /// Block within the directory.
    pub block: u32,
}

/// Validated head of an index: the root's info and its parent entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DxRootInfo {
    /// The directory's own inode, from ".".
    pub dot: Ino,
    /// The parent's inode, from "..".
    pub dotdot: Ino,
    /// Stored hash version (see [`super::hash::HashVersion::from_raw`]).
    pub hash_version: u8,
    /// Index levels between root and leaves.
    pub indirect_levels: u8,
}

impl DxRootInfo {
    /// Validates the part of block 0 before the index entries.
    ///
    /// # Errors
    /// [`FormatError::DxRoot`], [`FormatError::DxLevels`], [`FormatError::Truncated`].
    pub fn parse(block: &[u8], format: &DirFormat, max_levels: u8) -> Result<Self, FormatError> {
        let head = block
            .get(..ROOT_ENTRIES_OFFSET)
            .ok_or(FormatError::Truncated {
                structure: "directory index root",
                needed: ROOT_ENTRIES_OFFSET,
                found: block.len(),
            })?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let dots = half(4) == 12
            && head[6] == 1
            && head[8] == b'.'
            && decode_rec_len(half(16), format.block_size) == format.block_size - 12
            && head[18] == 2
            && head[20..22] == *b"..";
        let info = RawDxRootInfo::ref_from_bytes(&head[ROOT_INFO_OFFSET..])
            .map_err(|_| FormatError::DxRoot { what: "size" })?;
        if !dots {
            return Err(FormatError::DxRoot {
                what: "entries \".\" and \"..\"",
            });
        }
        if info.info_length != 8 {
            return Err(FormatError::DxRoot {
                what: "info length",
            });
        }
        if info.reserved_zero.get() != 0 {
            return Err(FormatError::DxRoot {
                what: "reserved word",
            });
        }
        if info.unused_flags & 1 != 0 {
            return Err(FormatError::DxRoot { what: "flags" });
        }
        if info.indirect_levels > max_levels {
            return Err(FormatError::DxLevels {
                found: info.indirect_levels,
                max: max_levels,
            });
        }
        Ok(Self {
            dot: Ino(word(0)),
            dotdot: Ino(word(12)),
            hash_version: info.hash_version,
            indirect_levels: info.indirect_levels,
        })
    }

    /// Writes the part of block 0 before the index entries. `None` for a short block.
    #[must_use]
    pub fn write(&self, block: &mut [u8], format: &DirFormat) -> Option<()> {
        let dir = Some(FileKind::Directory);
        write_entry(block, 0, 12, self.dot, dir, b".", format)?;
        let rest = format.block_size.checked_sub(12)?;
        write_entry(block, 12, rest, self.dotdot, dir, b"..", format)?;
        let info = RawDxRootInfo {
            reserved_zero: U32::ZERO,
            hash_version: self.hash_version,
            info_length: 8,
            indirect_levels: self.indirect_levels,
            unused_flags: 0,
        };
        block
            .get_mut(ROOT_INFO_OFFSET..ROOT_ENTRIES_OFFSET)?
            .copy_from_slice(info.as_bytes());
        Some(())
    }
}

/// Validated entries of an index block.
#[derive(Clone, Copy, Debug)]
pub struct DxNode<'a> {
    entries: &'a [RawDxEntry],
    limit: usize,
}

impl<'a> DxNode<'a> {
    /// Validates the entries of an index block. The root's head is [`DxRootInfo::parse`]'s.
    ///
    /// # Errors
    /// [`FormatError::DxFakeEntry`], [`FormatError::DxLimit`], [`FormatError::DxCount`],
    /// [`FormatError::DxOrder`].
    pub fn parse(block: &'a [u8], place: DxPlace, format: &DirFormat) -> Result<Self, FormatError> {
        if block.len() != format.block_size {
            return Err(FormatError::Truncated {
                structure: "directory index block",
                needed: format.block_size,
                found: block.len(),
            });
        }
        if place == DxPlace::Node {
            let rec_len = u16::from_le_bytes([block[4], block[5]]);
            if block[..4] != [0; 4] || decode_rec_len(rec_len, format.block_size) != block.len() {
                return Err(FormatError::DxFakeEntry);
            }
        }
        let at = place.entries_offset();
        let count_limit = RawDxCountLimit::ref_from_bytes(&block[at..at + 4])
            .map_err(|_| FormatError::DxFakeEntry)?;
        let (found, expected) = (usize::from(count_limit.limit.get()), place.limit(format));
        if found != expected {
            return Err(FormatError::DxLimit { found, expected });
        }
        let count = usize::from(count_limit.count.get());
        if count == 0 || count > found {
            return Err(FormatError::DxCount {
                found: count,
                limit: found,
            });
        }
        let (entries, _) = <[RawDxEntry]>::ref_from_prefix_with_elems(&block[at..], count)
            .map_err(|_| FormatError::DxCount {
                found: count,
                limit: expected,
            })?;
        let node = Self {
            entries,
            limit: expected,
        };
        let mut last = 0;
        for position in 1..count {
            let hash = node.hash(position);
            // One hash may fill several blocks: then all but the first of their entries are the same.
            let continued = hash == last && hash & 1 == 1;
            if hash <= last && !continued {
                return Err(FormatError::DxOrder { position });
            }
            last = hash;
        }
        Ok(node)
    }

    /// Entries in use; at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries the block has room for.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn hash(&self, position: usize) -> u32 {
        match position {
            0 => 0,
            n => self.entries.get(n).map_or(u32::MAX, |e| e.hash.get()),
        }
    }

    /// The entry at a position.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<DxEntry> {
        let raw = self.entries.get(position)?;
        // The upper bits of the block word are reserved for a fill level that no implementation writes.
        Some(DxEntry {
            hash: self.hash(position),
            block: raw.block.get() & 0x0FFF_FFFF,
        })
    }

    /// All entries in order.
    pub fn iter(&self) -> impl Iterator<Item = DxEntry> + '_ {
        (0..self.len()).filter_map(|n| self.get(n))
    }

    /// Position of the entry whose block is the first that may hold names of this hash.
    #[must_use]
    pub fn find(&self, hash: u32) -> usize {
        // The first entry has no hash; it covers everything below the second's.
        self.entries[1..].partition_point(|e| e.hash.get() <= hash)
    }
}

/// Writes the entries of an index block (and the fake entry of a block that is not the root),
/// zeroing the rest. `None` when they do not fit, or there are none.
#[must_use]
pub fn write_entries(
    block: &mut [u8],
    place: DxPlace,
    entries: &[DxEntry],
    format: &DirFormat,
) -> Option<()> {
    let limit = place.limit(format);
    if block.len() != format.block_size || entries.is_empty() || entries.len() > limit {
        return None;
    }
    let at = place.entries_offset();
    block[at..].fill(0);
    if place == DxPlace::Node {
        block[..at].fill(0);
        let stored = encode_rec_len(format.block_size, format.block_size)?;
        block[4..6].copy_from_slice(&stored.to_le_bytes());
    }
    for (slot, e) in block[at..].chunks_exact_mut(ENTRY).zip(entries) {
        let raw = RawDxEntry {
            hash: U32::new(e.hash),
            block: U32::new(e.block),
        };
        slot.copy_from_slice(raw.as_bytes());
    }
    let head = RawDxCountLimit {
        limit: U16::new(u16::try_from(limit).ok()?),
        count: U16::new(u16::try_from(entries.len()).ok()?),
    };
    block[at..at + 4].copy_from_slice(head.as_bytes());
    Some(())
}

/// Offset behind the last used entry and offset of the tail, from the block's own count and limit.
fn checksum_span(block: &[u8], place: DxPlace, format: &DirFormat) -> Option<(usize, usize)> {
    let at = place.entries_offset();
    let head = RawDxCountLimit::ref_from_bytes(block.get(at..at + 4)?).ok()?;
    let (limit, count) = (usize::from(head.limit.get()), usize::from(head.count.get()));
    if limit != place.limit(format) || count > limit {
        return None;
    }
    let tail = at + limit * ENTRY;
    (tail + TAIL <= block.len()).then_some((at + count * ENTRY, tail))
}

/// Verifies the checksum of an index block.
///
/// # Errors
/// [`FormatError::DxChecksum`], [`FormatError::DxTail`] when count and limit leave no place for it.
pub fn verify_checksum(
    block: &[u8],
    place: DxPlace,
    format: &DirFormat,
    seed: InodeSeed,
) -> Result<(), FormatError> {
    if !format.checksums {
        return Ok(());
    }
    let (used, tail) = checksum_span(block, place, format).ok_or(FormatError::DxTail)?;
    let expected = seed
        .dir_index(block, used, tail)
        .ok_or(FormatError::DxTail)?;
    let raw =
        RawDxTail::ref_from_bytes(&block[tail..tail + TAIL]).map_err(|_| FormatError::DxTail)?;
    let found = raw.checksum.get();
    if crate::sums_differ(found, expected) {
        return Err(FormatError::DxChecksum { found, expected });
    }
    Ok(())
}

/// Stores the checksum of an index block; nothing without checksums.
///
/// # Errors
/// [`FormatError::DxTail`] when count and limit leave no place for it.
pub fn set_checksum(
    block: &mut [u8],
    place: DxPlace,
    format: &DirFormat,
    seed: InodeSeed,
) -> Result<(), FormatError> {
    if !format.checksums {
        return Ok(());
    }
    let (used, tail) = checksum_span(block, place, format).ok_or(FormatError::DxTail)?;
    let sum = seed
        .dir_index(block, used, tail)
        .ok_or(FormatError::DxTail)?;
    block[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}
