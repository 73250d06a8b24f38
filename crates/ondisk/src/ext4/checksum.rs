//! Checksums of all ext4 and jbd2 metadata.
//!
//! ext4 uses CRC-32C *without* the final inversion, chaining the raw register: seeds are raw
//! registers too, starting from all ones. Ordinary CRC-32C libraries invert on entry and exit;
//! [`crc32c()`] undoes that so that results can be chained and compared as the format stores them.
//!
//! Every function here computes; comparing and storing is done next to each structure. Slices are
//! whole structures; the stored checksum inside them is skipped or taken as zero as the format
//! demands, so callers need not blank it first.

use super::types::{BlockNo, GroupNo, Ino};

/// CRC-32C of `data` on top of the raw register `state` (no inversion on either side).
#[must_use]
pub fn crc32c(state: u32, data: &[u8]) -> u32 {
    !::crc32c::crc32c_append(!state, data)
}

/// The register every chain starts from.
pub const CRC32C_INIT: u32 = !0;

/// CRC of `data` with the `N` bytes at `hole` taken as zero; a hole past the end is ignored.
fn crc32c_with_hole<const N: usize>(state: u32, data: &[u8], hole: usize) -> u32 {
    match (data.get(..hole), data.get(hole.saturating_add(N)..)) {
        (Some(before), Some(after)) => crc32c(crc32c(crc32c(state, before), &[0; N]), after),
        _ => crc32c(state, data),
    }
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut reg = i as u16;
        let mut bit = 0;
        while bit < 8 {
            reg = if reg & 1 != 0 {
                (reg >> 1) ^ 0xA001
            } else {
                reg >> 1
            };
            bit += 1;
        }
        table[i] = reg;
        i += 1;
    }
    table
};

/// CRC-16/ANSI (reflected polynomial 0xA001) on top of `state`; group descriptors of `uninit_bg`.
#[must_use]
pub fn crc16(state: u16, data: &[u8]) -> u16 {
    data.iter().fold(state, |reg, b| {
        (reg >> 8) ^ CRC16_TABLE[usize::from((reg as u8) ^ b)]
    })
}

const CRC32_BE_TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut reg = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            reg = if reg & 0x8000_0000 != 0 {
                (reg << 1) ^ 0x04C1_1DB7
            } else {
                reg << 1
            };
            bit += 1;
        }
        table[i] = reg;
        i += 1;
    }
    table
};

/// Most-significant-bit-first CRC-32 on top of `state`, no inversions; jbd2's first checksum kind.
#[must_use]
pub fn crc32_be(state: u32, data: &[u8]) -> u32 {
    data.iter().fold(state, |reg, b| {
        (reg << 8) ^ CRC32_BE_TABLE[usize::from(((reg >> 24) as u8) ^ b)]
    })
}

/// Which checksums a volume's metadata carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChecksumKind {
    /// None at all.
    None,
    /// CRC-16 of the group descriptors only (`uninit_bg`).
    GroupDescCrc16,
    /// CRC-32C of all metadata (`metadata_csum`).
    Crc32c,
}

/// The register every metadata checksum of a volume starts from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MetaSeed(pub u32);

/// The register checksums of one inode, and of blocks that belong to it, start from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InodeSeed(pub u32);

impl MetaSeed {
    /// The seed of a volume without `metadata_csum_seed`.
    #[must_use]
    pub fn from_uuid(uuid: &[u8; 16]) -> Self {
        Self(crc32c(CRC32C_INIT, uuid))
    }

    /// The seed of an inode and of everything it owns.
    #[must_use]
    pub fn inode(self, ino: Ino, generation: u32) -> InodeSeed {
        let state = crc32c(self.0, &ino.0.to_le_bytes());
        InodeSeed(crc32c(state, &generation.to_le_bytes()))
    }

    /// Checksum of a block or inode bitmap; `bitmap` is cut to the bytes the format covers.
    #[must_use]
    pub fn bitmap(self, bitmap: &[u8]) -> u32 {
        crc32c(self.0, bitmap)
    }

    /// Checksum of a group descriptor (the low half of the CRC).
    #[must_use]
    pub fn group_desc(self, group: GroupNo, desc: &[u8]) -> u16 {
        let state = crc32c(self.0, &group.0.to_le_bytes());
        (crc32c_with_hole::<2>(state, desc, GROUP_DESC_CHECKSUM_OFFSET) & 0xFFFF) as u16
    }

    /// Checksum of an extended attribute block stored at `block`.
    #[must_use]
    pub fn xattr_block(self, block: BlockNo, data: &[u8]) -> u32 {
        let state = crc32c(self.0, &block.0.to_le_bytes());
        crc32c_with_hole::<4>(state, data, 16)
    }

    /// Checksum of an attribute value that lives in an inode of its own; also its hash.
    #[must_use]
    pub fn ea_inode_value(self, value: &[u8]) -> u32 {
        crc32c(self.0, value)
    }

    /// Checksum of a multiple-mount-protection block.
    #[must_use]
    pub fn mmp(self, data: &[u8]) -> u32 {
        crc32c(self.0, data.get(..1020).unwrap_or(data))
    }
}

/// Offset of the 16-bit checksum in a group descriptor.
pub const GROUP_DESC_CHECKSUM_OFFSET: usize = 0x1E;
/// Offset of the low half of the checksum in an inode.
pub const INODE_CHECKSUM_LO_OFFSET: usize = 0x7C;
/// Offset of the high half of the checksum in an inode, where the extra size reaches it.
pub const INODE_CHECKSUM_HI_OFFSET: usize = 0x82;

/// CRC-16 of a group descriptor, for volumes with `uninit_bg` and not `metadata_csum`.
#[must_use]
pub fn group_desc_crc16(uuid: &[u8; 16], group: GroupNo, desc: &[u8]) -> u16 {
    let state = crc16(crc16(!0, uuid), &group.0.to_le_bytes());
    let before = desc.get(..GROUP_DESC_CHECKSUM_OFFSET).unwrap_or(desc);
    let after = desc.get(GROUP_DESC_CHECKSUM_OFFSET + 2..).unwrap_or(&[]);
    crc16(crc16(state, before), after)
}

/// Checksum of a superblock of 1024 bytes; it covers all bytes before the checksum field.
#[must_use]
pub fn superblock(raw: &[u8; 1024]) -> u32 {
    crc32c(CRC32C_INIT, &raw[..1020])
}

impl InodeSeed {
    /// Checksum of an inode; `raw` is all of its `inode_size` bytes.
    ///
    /// Whether the high half takes part in (and is blanked for) the sum depends on the inode's
    /// own extra size: see [`inode_has_checksum_hi`].
    #[must_use]
    pub fn inode(self, raw: &[u8]) -> u32 {
        let lo = INODE_CHECKSUM_LO_OFFSET;
        let hi = INODE_CHECKSUM_HI_OFFSET;
        if !inode_has_checksum_hi(raw) {
            return crc32c_with_hole::<2>(self.0, raw, lo);
        }
        let state = crc32c(crc32c(self.0, &raw[..lo]), &[0; 2]);
        let state = crc32c(crc32c(state, &raw[lo + 2..hi]), &[0; 2]);
        crc32c(state, &raw[hi + 2..])
    }

    /// Checksum of a directory leaf block: everything before its 12-byte tail.
    #[must_use]
    pub fn dir_leaf(self, block: &[u8]) -> u32 {
        crc32c(self.0, &block[..block.len().saturating_sub(12)])
    }

    /// Checksum of a directory index block: the bytes up to the last used entry, then the tail.
    ///
    /// `used` is the offset just past the last used entry and `tail` the offset of the 8-byte
    /// tail; both come from a validated index. `None` when they lie outside of the block.
    #[must_use]
    pub fn dir_index(self, block: &[u8], used: usize, tail: usize) -> Option<u32> {
        let state = crc32c(self.0, block.get(..used)?);
        let reserved = block.get(tail..tail.checked_add(4)?)?;
        Some(crc32c(crc32c(state, reserved), &[0; 4]))
    }

    /// Checksum of an extent block; `tail` is the offset of its tail (`12 + 12 * eh_max`).
    /// `None` when the tail lies outside of the block.
    #[must_use]
    pub fn extent_block(self, block: &[u8], tail: usize) -> Option<u32> {
        Some(crc32c(self.0, block.get(..tail)?))
    }

    /// Checksum of a block of the orphan file stored at `block`: the entries before the tail.
    #[must_use]
    pub fn orphan_block(self, block: BlockNo, data: &[u8]) -> u32 {
        let state = crc32c(self.0, &block.0.to_le_bytes());
        crc32c(state, &data[..data.len().saturating_sub(8)])
    }
}

/// Whether the inode's extra size covers the high half of its checksum.
#[must_use]
pub fn inode_has_checksum_hi(raw: &[u8]) -> bool {
    match raw.get(0x80..0x84) {
        Some(b) => u16::from_le_bytes([b[0], b[1]]) >= 4,
        None => false,
    }
}

/// The register checksums of a journal start from (checksum versions 2 and 3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JournalSeed(pub u32);

impl JournalSeed {
    /// From the UUID in the journal's own superblock.
    #[must_use]
    pub fn from_uuid(uuid: &[u8; 16]) -> Self {
        Self(crc32c(CRC32C_INIT, uuid))
    }

    /// Checksum of a logged block, as written to the journal (that is, after escaping).
    ///
    /// Version 3 stores all 32 bits in its tag, version 2 the low 16.
    #[must_use]
    pub fn data_block(self, sequence: u32, data: &[u8]) -> u32 {
        crc32c(crc32c(self.0, &sequence.to_be_bytes()), data)
    }

    /// Checksum of a descriptor or revoke block, whose last four bytes hold it.
    #[must_use]
    pub fn block_with_tail(self, block: &[u8]) -> u32 {
        crc32c_with_hole::<4>(self.0, block, block.len().saturating_sub(4))
    }

    /// Checksum of a commit block, whose first checksum word holds it.
    #[must_use]
    pub fn commit_block(self, block: &[u8]) -> u32 {
        crc32c_with_hole::<4>(self.0, block, 0x10)
    }
}

/// Checksum of a journal superblock of 1024 bytes.
#[must_use]
pub fn journal_superblock(raw: &[u8; 1024]) -> u32 {
    crc32c_with_hole::<4>(CRC32C_INIT, raw, 0xFC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_check_values() {
        // Published check values for "123456789", with this format's missing final inversion.
        assert_eq!(!crc32c(CRC32C_INIT, b"123456789"), 0xE306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
        assert_eq!(crc16(0xFFFF, b"123456789"), 0x4B37);
        assert_eq!(crc32_be(CRC32C_INIT, b"123456789"), 0x0376_E6E7);
    }

    #[test]
    fn chaining_equals_whole() {
        let whole = crc32c(CRC32C_INIT, b"hello world");
        assert_eq!(crc32c(crc32c(CRC32C_INIT, b"hello "), b"world"), whole);
        let mut block = *b"abcdXXXXefgh";
        let holed = crc32c_with_hole::<4>(7, &block, 4);
        block[4..8].fill(0);
        assert_eq!(holed, crc32c(7, &block));
    }

    #[test]
    fn short_slices_do_not_panic() {
        let seed = InodeSeed(1);
        assert_eq!(seed.dir_leaf(&[]), 1);
        assert_eq!(seed.extent_block(&[0; 4], 12), None);
        assert_eq!(seed.dir_index(&[0; 16], 8, 13), None);
        let _ = seed.inode(&[0; 3]);
        let _ = MetaSeed(0).xattr_block(BlockNo(1), &[1, 2]);
        let _ = JournalSeed(0).block_with_tail(&[1]);
        let _ = group_desc_crc16(&[0; 16], GroupNo(0), &[1; 5]);
    }
}
