//! Blocks of the orphan file: an array of inode numbers (0: free slot) and a tail.
//!
//! Not responsible for: finding free slots concurrently, processing orphans.

use std::mem::size_of;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::InodeSeed;
use super::error::FormatError;
use super::geometry::Geometry;
use super::types::{BlockNo, Ino};

/// `ob_magic`.
pub const MAGIC: u32 = 0x0B10_CA04;

/// End of a block. Fields keep their documented names, without `ob_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawOrphanTail {
    pub magic: U32,
    pub checksum: U32,
}

const TAIL: usize = size_of::<RawOrphanTail>();
const _: () = assert!(TAIL == 8);

/// Slots of a block.
#[must_use]
pub fn slots_per_block(block_size: usize) -> usize {
    block_size.saturating_sub(TAIL) / 4
}

/// Verifies a block of the orphan file stored at `block`; `seed` is the orphan file's own.
///
/// # Errors
/// [`FormatError::Truncated`], [`FormatError::OrphanMagic`], [`FormatError::OrphanChecksum`].
pub fn verify(
    data: &[u8],
    block: BlockNo,
    geo: &Geometry,
    seed: InodeSeed,
) -> Result<(), FormatError> {
    let (_, tail) = RawOrphanTail::ref_from_suffix(data).map_err(|_| FormatError::Truncated {
        structure: "orphan file block",
        needed: geo.block_len(),
        found: data.len(),
    })?;
    let found = tail.magic.get();
    if found != MAGIC {
        return Err(FormatError::OrphanMagic { block, found });
    }
    if geo.metadata_csum() {
        let (found, expected) = (tail.checksum.get(), seed.orphan_block(block, data));
        if crate::sums_differ(found, expected) {
            return Err(FormatError::OrphanChecksum {
                block,
                found,
                expected,
            });
        }
    }
    Ok(())
}

/// Writes the tail of a block stored at `block`, checksum included. `None` for a short slice.
#[must_use]
pub fn write_tail(data: &mut [u8], block: BlockNo, geo: &Geometry, seed: InodeSeed) -> Option<()> {
    let sum = if geo.metadata_csum() {
        seed.orphan_block(block, data)
    } else {
        0
    };
    let at = data.len().checked_sub(TAIL)?;
    let tail = RawOrphanTail {
        magic: U32::new(MAGIC),
        checksum: U32::new(sum),
    };
    data[at..].copy_from_slice(tail.as_bytes());
    Some(())
}

/// The used slots of a block: slot and inode.
pub fn orphans(data: &[u8]) -> impl Iterator<Item = (usize, Ino)> + '_ {
    let slots = slots_per_block(data.len());
    data.chunks_exact(4)
        .take(slots)
        .map(|b| Ino(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
        .enumerate()
        .filter(|(_, ino)| ino.0 != 0)
}

/// Stores an inode (or `Ino(0)`) in a slot. `None` when there is no such slot.
#[must_use]
pub fn set_slot(data: &mut [u8], slot: usize, ino: Ino) -> Option<()> {
    if slot >= slots_per_block(data.len()) {
        return None;
    }
    data[slot * 4..slot * 4 + 4].copy_from_slice(&ino.0.to_le_bytes());
    Some(())
}
