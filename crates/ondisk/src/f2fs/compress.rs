//! Compressed clusters: the first address of a cluster is [`BlockAddr::COMPRESSED`], the next ones
//! name the blocks of the compressed data, and the rest of the cluster's addresses are holes or
//! reserved. The data begins with a small head.
//!
//! [`BlockAddr::COMPRESSED`]: super::BlockAddr::COMPRESSED

use std::mem::size_of;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum;
use super::error::FormatError;

/// Head of a cluster's compressed data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawCompressHeader {
    pub clen: U32,
    pub chksum: U32,
    pub reserved: [U32; 4],
}

/// Bytes of the head.
pub const HEADER_BYTES: usize = size_of::<RawCompressHeader>();

const _: () = assert!(HEADER_BYTES == 24);

/// `log2` of the fewest blocks of a cluster.
pub const LOG_CLUSTER_MIN: u8 = 2;
/// `log2` of the most blocks of a cluster.
pub const LOG_CLUSTER_MAX: u8 = 8;
/// Bit of an inode's `compress_flag`: clusters have checksums.
pub const FLAG_CHECKSUM: u16 = 1;

/// Algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// LZO1X.
    Lzo,
    /// LZ4 block.
    Lz4,
    /// Zstandard.
    Zstd,
    /// LZO1X with run lengths.
    LzoRle,
}

impl Algorithm {
    /// From an inode's code.
    ///
    /// # Errors
    /// [`FormatError::CompressAlgorithm`].
    pub fn from_code(found: u8) -> Result<Self, FormatError> {
        match found {
            0 => Ok(Self::Lzo),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            3 => Ok(Self::LzoRle),
            found => Err(FormatError::CompressAlgorithm { found }),
        }
    }
}

/// The compressed bytes of a cluster, from its blocks put together. `verify` says whether the inode
/// wants the checksum looked at.
///
/// # Errors
/// [`FormatError::Truncated`], [`FormatError::CompressLength`], [`FormatError::CompressChecksum`].
pub fn payload(blocks: &[u8], verify: bool) -> Result<&[u8], FormatError> {
    let (head, data) =
        RawCompressHeader::ref_from_prefix(blocks).map_err(|_| FormatError::Truncated {
            structure: "compressed cluster",
            needed: HEADER_BYTES,
            found: blocks.len(),
        })?;
    let found = head.clen.get();
    let data = data
        .get(..found as usize)
        .ok_or(FormatError::CompressLength {
            found,
            max: data.len(),
        })?;
    if verify {
        let (found, expected) = (head.chksum.get(), checksum::crc32_magic(data));
        if found != expected {
            return Err(FormatError::CompressChecksum { found, expected });
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads() {
        let data = b"compressed";
        let mut blocks = vec![0u8; 4096];
        let head = RawCompressHeader {
            clen: U32::new(10),
            chksum: U32::new(checksum::crc32_magic(data)),
            reserved: [U32::ZERO; 4],
        };
        blocks[..24].copy_from_slice(head.as_bytes());
        blocks[24..34].copy_from_slice(data);
        assert_eq!(payload(&blocks, true), Ok(&data[..]));
        blocks[24] ^= 1;
        assert!(payload(&blocks, false).is_ok());
        assert!(matches!(
            payload(&blocks, true),
            Err(FormatError::CompressChecksum { .. })
        ));
        blocks[1] = 0x10;
        assert!(matches!(
            payload(&blocks, false),
            Err(FormatError::CompressLength { .. })
        ));
        assert!(payload(&blocks[..3], false).is_err());
        assert!(Algorithm::from_code(4).is_err());
    }
}
