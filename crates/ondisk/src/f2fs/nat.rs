//! The NAT: where each node is. 455 entries of 9 bytes to a block, without checksum.

use std::mem::size_of;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::types::{BLOCK_SIZE, BlockAddr, Ino};

/// An entry as stored. Fields keep their published names.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawNatEntry {
    pub version: u8,
    pub ino: U32,
    pub block_addr: U32,
}

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = size_of::<RawNatEntry>();
/// Entries of a block.
pub const ENTRIES_PER_BLOCK: usize = BLOCK_SIZE / ENTRY_BYTES;

const _: () = {
    assert!(ENTRY_BYTES == 9);
    assert!(ENTRIES_PER_BLOCK == 455);
};

/// A node's entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NatEntry {
    /// Counts how often the number was given to a new node; summaries must agree.
    pub version: u8,
    /// The inode the node belongs to.
    pub ino: Ino,
    /// Where it is; [`BlockAddr::NULL`] for a free number.
    pub block: BlockAddr,
}

impl NatEntry {
    /// From the stored form, unchecked.
    #[must_use]
    pub fn decode(raw: &RawNatEntry) -> Self {
        Self {
            version: raw.version,
            ino: Ino(raw.ino.get()),
            block: BlockAddr(raw.block_addr.get()),
        }
    }

    /// The stored form.
    #[must_use]
    pub fn encode(self) -> RawNatEntry {
        RawNatEntry {
            version: self.version,
            ino: U32::new(self.ino.0),
            block_addr: U32::new(self.block.0),
        }
    }

    /// Whether the number is free.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.block.0 == BlockAddr::NULL.0
    }
}

/// A view of a NAT block's entries.
#[derive(Clone, Copy, Debug)]
pub struct NatBlock<'a>(&'a [RawNatEntry]);

impl<'a> NatBlock<'a> {
    /// From a block.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn parse(block: &'a [u8]) -> Result<Self, FormatError> {
        <[RawNatEntry]>::ref_from_prefix_with_elems(block, ENTRIES_PER_BLOCK)
            .map(|(entries, _)| Self(entries))
            .map_err(|_| FormatError::Truncated {
                structure: "NAT block",
                needed: ENTRIES_PER_BLOCK * ENTRY_BYTES,
                found: block.len(),
            })
    }

    /// Entry at a position below [`ENTRIES_PER_BLOCK`].
    #[must_use]
    pub fn get(&self, position: usize) -> Option<NatEntry> {
        self.0.get(position).map(NatEntry::decode)
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = NatEntry> + use<'a> {
        self.0.iter().map(NatEntry::decode)
    }
}

/// Stores an entry in a NAT block. `None`, and nothing changed, past its end.
#[must_use]
pub fn set_entry(block: &mut [u8], position: usize, entry: NatEntry) -> Option<()> {
    if position >= ENTRIES_PER_BLOCK {
        return None;
    }
    let at = position * ENTRY_BYTES;
    block
        .get_mut(at..at + ENTRY_BYTES)?
        .copy_from_slice(entry.encode().as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let mut block = vec![0u8; BLOCK_SIZE];
        let e = NatEntry {
            version: 7,
            ino: Ino(9),
            block: BlockAddr(0x0102_0304),
        };
        assert_eq!(set_entry(&mut block, 454, e), Some(()));
        assert_eq!(set_entry(&mut block, 455, e), None);
        let view = NatBlock::parse(&block).unwrap();
        assert_eq!(view.get(454), Some(e));
        assert_eq!(view.get(455), None);
        assert_eq!(view.iter().filter(|e| !e.is_free()).count(), 1);
        assert!(NatBlock::parse(&block[..100]).is_err());
    }
}
