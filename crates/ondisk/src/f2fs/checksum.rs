//! Checksums: CRC-32 (the IEEE polynomial, reflected) without any inversion. The register starts
//! from the superblock's magic, or from a seed that is itself such a register.
//!
//! Every function here computes; comparing and storing is done next to each structure. The stored
//! checksum inside a structure is skipped or taken as zero as the format demands.

use super::types::Ino;

/// The magic, which is also the start of most checksums.
pub const MAGIC: u32 = 0xF2F5_2010;

/// CRC-32 of `data` on top of the raw register `state` (no inversion on either side).
#[must_use]
pub fn crc32(state: u32, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!state);
    hasher.update(data);
    !hasher.finalize()
}

/// Checksum of a structure that begins at the first byte of `data`, on top of the magic.
#[must_use]
pub fn crc32_magic(data: &[u8]) -> u32 {
    crc32(MAGIC, data)
}

/// Checksum of a checkpoint block whose checksum lies at `offset`: the bytes before it, and, where it
/// does not end the block, those behind it. `None` when the offset is not inside of the block.
#[must_use]
pub fn checkpoint(block: &[u8], offset: usize) -> Option<u32> {
    let before = block.get(..offset)?;
    let behind = block.get(offset.checked_add(4)?..)?;
    let sum = crc32_magic(before);
    Some(crc32(sum, behind))
}

/// The register that checksums of a volume's inodes start from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InodeSeed(pub u32);

impl InodeSeed {
    /// From the volume's UUID.
    #[must_use]
    pub fn from_uuid(uuid: &[u8; 16]) -> Self {
        Self(crc32(!0, uuid))
    }

    /// Checksum of an inode: its number, generation, and its block with the four bytes at `hole`
    /// (where the checksum is kept) taken as zero. The footer takes part.
    #[must_use]
    pub fn inode(self, ino: Ino, generation: u32, block: &[u8], hole: usize) -> Option<u32> {
        let before = block.get(..hole)?;
        let behind = block.get(hole.checked_add(4)?..)?;
        let state = crc32(self.0, &ino.0.to_le_bytes());
        let state = crc32(state, &generation.to_le_bytes());
        Some(crc32(crc32(crc32(state, before), &[0; 4]), behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_and_chaining() {
        // The published check value of CRC-32, with this format's missing inversions undone.
        assert_eq!(!crc32(!0, b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(crc32(7, b"ab"), b"cd"), crc32(7, b"abcd"));
        assert_eq!(crc32(9, b""), 9);
    }

    #[test]
    fn short_slices_do_not_panic() {
        assert_eq!(checkpoint(&[0; 8], 5), None);
        assert_eq!(checkpoint(&[0; 8], usize::MAX), None);
        assert!(checkpoint(&[0; 8], 4).is_some());
        assert_eq!(InodeSeed(1).inode(Ino(3), 0, &[0; 8], 6), None);
        assert_eq!(InodeSeed(1).inode(Ino(3), 0, &[0; 8], usize::MAX), None);
    }
}
