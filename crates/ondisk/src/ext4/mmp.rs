//! Multiple-mount protection: a block that a mounted volume's owner keeps rewriting.
//!
//! Not responsible for: the protocol (waiting, comparing sequence numbers).

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::geometry::Geometry;
use super::superblock::until_nul;

/// `mmp_magic`.
pub const MAGIC: u32 = 0x004D_4D50;
/// Sequence number of a cleanly unmounted volume.
pub const SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// Sequence number while a checker runs.
pub const SEQ_FSCK: u32 = 0xE24D_4D50;
/// Largest sequence number of a mounted volume.
pub const SEQ_MAX: u32 = 0xE24D_4D4F;
/// Bytes of the structure.
pub const SIZE: usize = 1024;

/// The block's structure. Fields keep their documented names, without `mmp_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawMmp {
    pub magic: U32,
    pub seq: U32,
    pub time: U64,
    pub nodename: [u8; 64],
    pub bdevname: [u8; 32],
    pub check_interval: U16,
    pub pad1: U16,
    pub pad2: [U32; 226],
    pub checksum: U32,
}

const _: () = {
    assert!(size_of::<RawMmp>() == SIZE);
    assert!(offset_of!(RawMmp, check_interval) == 0x70);
    assert!(offset_of!(RawMmp, checksum) == 0x3FC);
};

impl RawMmp {
    /// Copies and verifies the structure at the start of `block`.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::MmpMagic`], [`FormatError::MmpChecksum`].
    pub fn parse(block: &[u8], geo: &Geometry) -> Result<Self, FormatError> {
        let (raw, _) = Self::read_from_prefix(block).map_err(|_| FormatError::Truncated {
            structure: "multiple-mount-protection block",
            needed: SIZE,
            found: block.len(),
        })?;
        let found = raw.magic.get();
        if found != MAGIC {
            return Err(FormatError::MmpMagic { found });
        }
        if geo.metadata_csum() {
            let (found, expected) = (raw.checksum.get(), geo.seed.mmp(raw.as_bytes()));
            if crate::sums_differ(found, expected) {
                return Err(FormatError::MmpChecksum { found, expected });
            }
        }
        Ok(raw)
    }

    /// Stores the checksum; nothing without metadata checksums.
    pub fn set_checksum(&mut self, geo: &Geometry) {
        if geo.metadata_csum() {
            let sum = geo.seed.mmp(self.as_bytes());
            self.checksum.set(sum);
        }
    }

    /// Host that wrote the block last.
    #[must_use]
    pub fn host(&self) -> &[u8] {
        until_nul(&self.nodename)
    }

    /// Device name at the host that wrote the block last.
    #[must_use]
    pub fn device(&self) -> &[u8] {
        until_nul(&self.bdevname)
    }
}
