//! What a checkpoint pack holds between its heads: payload, orphan blocks, summaries; and, at the end
//! of its segment, the NAT bits.
//!
//! ```text
//! head | payload … | orphan blocks … | data summaries | node summaries | head |  …  | NAT bits
//!  0     1            1 + payload       start_sum                        total-1       up to 511
//! ```
//! Data summaries are 1 to 3 compact blocks or 3 whole ones; node summaries (3 blocks) are there when
//! the volume was unmounted.

use std::mem::size_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checkpoint::{Checkpoint, CheckpointFlags, verify_block};
use super::error::FormatError;
use super::geometry::{Copy2, Geometry};
use super::types::{BLOCK_SIZE, BLOCKS_PER_SEG, Ino};

/// Orphans per block.
pub const ORPHANS_PER_BLOCK: usize = 1020;

/// A block of orphans: inodes without a name that were open, to be removed at the next mount.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawOrphanBlock {
    pub ino: [U32; ORPHANS_PER_BLOCK],
    pub reserved: U32,
    pub blk_addr: U16,
    pub blk_count: U16,
    pub entry_count: U32,
    pub check_sum: U32,
}

const _: () = assert!(size_of::<RawOrphanBlock>() == BLOCK_SIZE);

/// The orphans of a block.
///
/// # Errors
/// [`FormatError::Truncated`], [`FormatError::OrphanCount`], [`FormatError::NidRange`].
pub fn parse_orphans(block: &[u8], geo: &Geometry) -> Result<Vec<Ino>, FormatError> {
    let raw = RawOrphanBlock::ref_from_bytes(block).map_err(|_| FormatError::Truncated {
        structure: "orphan block",
        needed: BLOCK_SIZE,
        found: block.len(),
    })?;
    let found = raw.entry_count.get();
    let list = raw
        .ino
        .get(..found as usize)
        .ok_or(FormatError::OrphanCount { found })?;
    list.iter()
        .map(|ino| {
            let ino = Ino(ino.get());
            geo.check_nid(ino.nid()).map(|()| ino)
        })
        .collect()
}

/// Orphan blocks for a list, in order.
#[must_use]
pub fn encode_orphans(orphans: &[Ino]) -> Vec<Vec<u8>> {
    let count = orphans.len().div_ceil(ORPHANS_PER_BLOCK);
    let pieces = orphans.chunks(ORPHANS_PER_BLOCK).enumerate();
    pieces
        .map(|(n, piece)| {
            let mut raw = RawOrphanBlock::new_zeroed();
            for (to, ino) in raw.ino.iter_mut().zip(piece) {
                to.set(ino.0);
            }
            raw.blk_addr.set((n + 1) as u16);
            raw.blk_count.set(count as u16);
            raw.entry_count.set(piece.len() as u32);
            raw.as_bytes().to_vec()
        })
        .collect()
}

/// Where the parts of a pack are, in blocks from its first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackLayout {
    /// Orphan blocks: first and number.
    pub orphans: (u32, u32),
    /// First block of the data summaries.
    pub data_summaries: u32,
    /// First block of the node summaries, when there are any.
    pub node_summaries: Option<u32>,
    /// The last head.
    pub tail: u32,
    /// NAT bits: first and number of blocks.
    pub nat_bits: Option<(u32, u32)>,
}

impl PackLayout {
    /// Of a checkpoint.
    ///
    /// # Errors
    /// [`FormatError::CpPackRoom`] when the summaries or the NAT bits do not fit.
    pub fn new(cp: &Checkpoint, geo: &Geometry) -> Result<Self, FormatError> {
        let (flags, raw) = (cp.flags(), &cp.raw);
        let (start, total) = (
            raw.cp_pack_start_sum.get(),
            raw.cp_pack_total_block_count.get(),
        );
        let first_orphan = 1 + geo.cp_payload;
        let tail = total - 1;
        let nodes = if cp.has_node_summaries() { 3 } else { 0 };
        let room = |what, needed: u32, found: u32| FormatError::CpPackRoom {
            what,
            needed,
            found,
        };
        let between = tail - start;
        let data = if flags.contains(CheckpointFlags::COMPACT_SUM) {
            let data = between
                .checked_sub(nodes)
                .filter(|d| (1..=3).contains(d))
                .ok_or_else(|| room("summaries", nodes + 1, between))?;
            let needed = super::summary::compact_blocks(raw);
            if data < needed {
                return Err(room("compact summaries", needed, data));
            }
            data
        } else if between == 3 + nodes {
            3
        } else {
            return Err(room("summaries", 3 + nodes, between));
        };
        let bits = nat_bits_blocks(geo);
        let nat_bits = if flags.contains(CheckpointFlags::NAT_BITS) {
            let found = BLOCKS_PER_SEG - total;
            if bits > found {
                return Err(room("NAT bits", bits, found));
            }
            Some((BLOCKS_PER_SEG - bits, bits))
        } else {
            None
        };
        Ok(Self {
            orphans: (first_orphan, start - first_orphan),
            data_summaries: start,
            node_summaries: (nodes > 0).then_some(start + data),
            tail,
            nat_bits,
        })
    }
}

/// A valid pack: the head's contents and which of the two it is.
#[derive(Clone, Debug)]
pub struct Pack {
    /// Which one.
    pub which: Copy2,
    /// Its head.
    pub checkpoint: Checkpoint,
}

/// Verifies that the head and the tail of a pack belong together.
///
/// # Errors
/// As [`verify_block`] for either; [`FormatError::CpVersions`] when they differ.
pub fn verify_pair(head: &[u8], tail: &[u8]) -> Result<u64, FormatError> {
    let (first, _) = verify_block(head)?;
    let (last, _) = verify_block(tail)?;
    let (head, tail) = (first.checkpoint_ver.get(), last.checkpoint_ver.get());
    if head != tail {
        return Err(FormatError::CpVersions { head, tail });
    }
    Ok(head)
}

/// Which of two packs counts, from the versions of those that were written whole: the newer one. Whatever its fields say, the
/// older one is no stand-in for it: a mount that went back to it would lose all that was synced since, and say nothing.
/// (Linux 6.1 refuses such volumes, too.)
///
/// # Errors
/// The first pack's error when neither was written whole.
pub fn newest(
    first: Result<u64, FormatError>,
    second: Result<u64, FormatError>,
) -> Result<Copy2, FormatError> {
    match (first, second) {
        // Versions may wrap: the difference counts.
        (Ok(a), Ok(b)) if (b.wrapping_sub(a) as i64) > 0 => Ok(Copy2::Second),
        (Ok(_), _) => Ok(Copy2::First),
        (Err(_), Ok(_)) => Ok(Copy2::Second),
        (Err(e), Err(_)) => Err(e),
    }
}

/// Takes the newer of two packs that are valid or were mended; another one does not count.
///
/// # Errors
/// The first pack's error when both are damaged.
pub fn newer(
    first: Result<Checkpoint, FormatError>,
    second: Result<Checkpoint, FormatError>,
) -> Result<Pack, FormatError> {
    let version = |pack: &Result<Checkpoint, FormatError>| {
        pack.as_ref().map(Checkpoint::version).map_err(Clone::clone)
    };
    let which = newest(version(&first), version(&second))?;
    let checkpoint = match which {
        Copy2::First => first?,
        Copy2::Second => second?,
    };
    Ok(Pack { which, checkpoint })
}

/// Blocks of the NAT bits.
#[must_use]
pub fn nat_bits_blocks(geo: &Geometry) -> u32 {
    let bytes = 8 + 2 * geo.nat_bitmap_bytes();
    bytes.div_ceil(BLOCK_SIZE) as u32
}

/// NAT bits: which NAT blocks are full (no free node number) and which are empty, so that a mount
/// need not read the whole NAT. Bits count from the least significant of each byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NatBits {
    /// Blocks without a free node number.
    pub full: Vec<u8>,
    /// Blocks without one in use.
    pub empty: Vec<u8>,
}

fn bit(map: &[u8], index: u32) -> bool {
    let byte = map.get(index as usize / 8).copied().unwrap_or(0);
    byte >> (index % 8) & 1 != 0
}

impl NatBits {
    /// Nothing is known of any block: right for every volume, as a bit that is not set only costs a read.
    #[must_use]
    pub fn unknown(geo: &Geometry) -> Self {
        Self {
            full: vec![0; geo.nat_bitmap_bytes()],
            empty: vec![0; geo.nat_bitmap_bytes()],
        }
    }

    /// Whether a block has no free node number.
    #[must_use]
    pub fn is_full(&self, index: u32) -> bool {
        bit(&self.full, index)
    }

    /// Whether a block has no node number in use.
    #[must_use]
    pub fn is_empty(&self, index: u32) -> bool {
        bit(&self.empty, index)
    }

    /// Notes of a block whether it is full and whether it is empty; nothing past the last.
    pub fn set(&mut self, index: u32, full: bool, empty: bool) {
        let bit = 1u8 << (index % 8);
        for (map, value) in [(&mut self.full, full), (&mut self.empty, empty)] {
            if let Some(byte) = map.get_mut(index as usize / 8) {
                *byte = (*byte & !bit) | if value { bit } else { 0 };
            }
        }
    }

    /// From their blocks.
    ///
    /// # Errors
    /// [`FormatError::Truncated`]; [`FormatError::NatBitsVersion`] when they are not this
    /// checkpoint's (then they are to be ignored).
    pub fn parse(blocks: &[u8], cp: &Checkpoint, geo: &Geometry) -> Result<Self, FormatError> {
        let bytes = geo.nat_bitmap_bytes();
        let needed = 8 + 2 * bytes;
        let short = || FormatError::Truncated {
            structure: "NAT bits",
            needed,
            found: blocks.len(),
        };
        let (word, rest) = blocks.split_first_chunk::<8>().ok_or_else(short)?;
        let (found, expected) = (u64::from_le_bytes(*word), cp.version_with_checksum());
        if found != expected {
            return Err(FormatError::NatBitsVersion { found, expected });
        }
        Ok(Self {
            full: rest.get(..bytes).ok_or_else(short)?.to_vec(),
            empty: rest.get(bytes..2 * bytes).ok_or_else(short)?.to_vec(),
        })
    }

    /// Their blocks, for a checkpoint whose checksum is set.
    #[must_use]
    pub fn encode(&self, cp: &Checkpoint) -> Vec<u8> {
        let mut out = cp.version_with_checksum().to_le_bytes().to_vec();
        out.extend(&self.full);
        out.extend(&self.empty);
        out.resize(out.len().next_multiple_of(BLOCK_SIZE), 0);
        out
    }
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
