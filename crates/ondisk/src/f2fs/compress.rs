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
use super::types::BlockAddr;
use crate::lzo;

pub use super::types::Algorithm;

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

/// Bit of an inode's `compress_flag`: clusters have checksums.
pub const FLAG_CHECKSUM: u16 = 1;

/// Logarithms of the blocks that a cluster can have.
pub const CLUSTER_LOGS: std::ops::RangeInclusive<u8> = 2..=8;

/// The algorithm of an inode's code.
///
/// # Errors
/// [`FormatError::CompressAlgorithm`].
pub fn algorithm(found: u8) -> Result<Algorithm, FormatError> {
    match found {
        0 => Ok(Algorithm::Lzo),
        1 => Ok(Algorithm::Lz4),
        2 => Ok(Algorithm::Zstd),
        3 => Ok(Algorithm::LzoRle),
        found => Err(FormatError::CompressAlgorithm { found }),
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
        if crate::sums_differ(found, expected) {
            return Err(FormatError::CompressChecksum { found, expected });
        }
    }
    Ok(data)
}

/// The blocks that hold a compressed cluster's data, from the addresses of the whole cluster; `None` when it
/// is not compressed.
///
/// # Errors
/// [`FormatError::CompressAddress`] when the addresses are not those of a compressed cluster: its mark, one
/// block at least and fewer than the cluster has, then only what is reserved or nothing.
pub fn cluster_blocks(addresses: &[BlockAddr]) -> Result<Option<&[BlockAddr]>, FormatError> {
    let (first, rest) = match addresses {
        [first, rest @ ..] if *first == BlockAddr::COMPRESSED => (first, rest),
        _ => return Ok(None),
    };
    let bad = |position: usize, found: BlockAddr, reason| FormatError::CompressAddress {
        position,
        found,
        reason,
    };
    let count = rest.iter().take_while(|a| a.is_stored()).count();
    if count == 0 {
        return Err(bad(0, *first, "and no block follows"));
    }
    let behind = rest[count..]
        .iter()
        .position(|a| *a != BlockAddr::NULL && *a != BlockAddr::NEW);
    match behind {
        Some(n) => {
            let position = 1 + count + n;
            Err(bad(position, addresses[position], "behind the data's end"))
        }
        None => Ok(Some(&rest[..count])),
    }
}

/// What a cluster holds, from its compressed bytes: exactly `bytes` of them, independent of what these claim.
///
/// # Errors
/// [`FormatError::CompressData`], [`FormatError::CompressSize`]; [`FormatError::CompressNotBuilt`] without the features `zstd` and `ruzstd`.
pub fn decompress(
    algorithm: Algorithm,
    payload: &[u8],
    bytes: usize,
) -> Result<Vec<u8>, FormatError> {
    let bad = |reason: String| FormatError::CompressData { algorithm, reason };
    let out = match algorithm {
        Algorithm::Lzo | Algorithm::LzoRle => {
            lzo::decompress(payload, bytes).map_err(|e| bad(e.to_string()))?
        }
        Algorithm::Lz4 => {
            lz4_flex::block::decompress(payload, bytes).map_err(|e| bad(e.to_string()))?
        }
        #[cfg(not(any(feature = "zstd", feature = "ruzstd")))]
        Algorithm::Zstd => return Err(FormatError::CompressNotBuilt { algorithm }),
        #[cfg(any(feature = "zstd", feature = "ruzstd"))]
        Algorithm::Zstd => unpack_zstd(payload, bytes).map_err(|e| bad(e.to_string()))?,
    };
    if out.len() != bytes {
        return Err(FormatError::CompressSize {
            found: out.len(),
            expected: bytes,
        });
    }
    Ok(out)
}

/// One frame of zstd that holds at most `bytes`.
#[cfg(feature = "zstd")]
fn unpack_zstd(payload: &[u8], bytes: usize) -> std::io::Result<Vec<u8>> {
    zstd::bulk::decompress(payload, bytes)
}

#[cfg(all(feature = "ruzstd", not(feature = "zstd")))]
use unpack_zstd_in_rust as unpack_zstd;

/// As `unpack_zstd`. Holds one byte more than `bytes` when the frame has more.
#[cfg(all(feature = "ruzstd", any(test, not(feature = "zstd"))))]
fn unpack_zstd_in_rust(mut payload: &[u8], bytes: usize) -> std::io::Result<Vec<u8>> {
    use ruzstd::decoding::StreamingDecoder;
    use std::io::{Error, Read};
    let mut out = Vec::with_capacity(bytes + 1);
    let mut frame = StreamingDecoder::new(&mut payload).map_err(Error::other)?;
    (&mut frame).take(bytes as u64 + 1).read_to_end(&mut out)?;
    let frame = frame.into_frame_decoder();
    if out.len() > bytes {
        return Ok(out);
    }
    // Without one in the frame, both are the same nothing.
    let stored = frame.get_checksum_from_data();
    if stored.is_some() && stored != frame.get_calculated_checksum() {
        return Err(Error::other("the checksum is wrong"));
    }
    match payload {
        [] => Ok(out),
        _ => Err(Error::other("bytes follow the frame")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_addresses() {
        let (mark, null, new) = (BlockAddr::COMPRESSED, BlockAddr::NULL, BlockAddr::NEW);
        let block = BlockAddr(5000);
        assert_eq!(cluster_blocks(&[block, mark, null, null]), Ok(None));
        assert_eq!(
            cluster_blocks(&[mark, block, block, new]),
            Ok(Some(&[block, block][..]))
        );
        assert_eq!(
            cluster_blocks(&[mark, block, null, null]),
            Ok(Some(&[block][..]))
        );
        for wrong in [
            [mark, null, null, null],
            [mark, mark, block, null],
            [mark, block, null, block],
            [mark, block, new, mark],
        ] {
            assert!(cluster_blocks(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_are_held() {
        let data: Vec<u8> = (0..16384u32).map(|n| (n / 100) as u8).collect();
        let lz4 = lz4_flex::block::compress(&data);
        let packed = [
            (Algorithm::Lz4, lz4),
            #[cfg(feature = "zstd")]
            (Algorithm::Zstd, zstd::bulk::compress(&data, 3).unwrap()),
        ];
        for (algorithm, packed) in packed {
            assert_eq!(decompress(algorithm, &packed, 16384).unwrap(), data);
            // More than there is room for, and less.
            assert!(decompress(algorithm, &packed, 16383).is_err());
            assert!(matches!(
                decompress(algorithm, &packed, 16385),
                Err(FormatError::CompressSize { found: 16384, .. })
            ));
            assert!(decompress(algorithm, &packed[..packed.len() / 2], 16384).is_err());
            assert!(decompress(algorithm, &[], 16384).is_err());
        }
        assert!(matches!(
            decompress(Algorithm::LzoRle, &[17, 0, 0], 4096),
            Err(FormatError::CompressSize { found: 0, .. })
        ));
    }

    /// Frames of every kind that libzstd makes, whole and damaged.
    #[cfg(all(feature = "zstd", feature = "ruzstd"))]
    #[test]
    fn zstd_in_rust_reads_what_libzstd_reads() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let noise: Vec<u8> = (0..16384).map(|_| random() as u8).collect();
        let words: Vec<u8> = (0..16384)
            .map(|_| b"blockwright "[(random() % 12) as usize])
            .collect();
        let mut mixed = noise.clone();
        mixed[..8192].fill(7);
        mixed[9000..12000].copy_from_slice(&words[..3000]);
        for data in [&noise, &words, &mixed, &vec![0; 16384]] {
            for (level, checksum) in [(-5, false), (1, true), (3, false), (15, true), (22, false)] {
                let mut packer = zstd::bulk::Compressor::new(level).unwrap();
                packer.include_checksum(checksum).unwrap();
                let packed = packer.compress(data).unwrap();
                assert_eq!(&unpack_zstd_in_rust(&packed, data.len()).unwrap(), data);
                assert!(unpack_zstd_in_rust(&packed, data.len() - 1).unwrap().len() >= data.len());
                assert!(unpack_zstd_in_rust(&packed[..packed.len() - 1], data.len()).is_err());
                let longer = [&packed[..], &[0]].concat();
                assert!(unpack_zstd_in_rust(&longer, data.len()).is_err());
                for _ in 0..50 {
                    let mut damaged = packed.clone();
                    let at = random() as usize % packed.len();
                    damaged[at] ^= 1 << (random() % 8);
                    let ours = unpack_zstd_in_rust(&damaged, data.len());
                    let theirs = unpack_zstd(&damaged, data.len());
                    if let (Ok(ours), Ok(theirs)) = (&ours, theirs) {
                        assert_eq!(*ours, theirs, "byte {at}, level {level}");
                    }
                    // Behind a head that says so, a checksum is compared. Some bits do not count.
                    if let (true, 8.., Ok(ours)) = (checksum, at, &ours) {
                        assert_eq!(ours, data, "byte {at}, level {level}");
                    }
                }
            }
        }
    }

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
        assert!(algorithm(4).is_err());
    }

    #[test]
    fn what_liblz4_made() {
        let hex = "\
        ff096c696e6520353435323638206f662074686520746578740a1600310f4600070f1a00190f8a00050f4400\
        0201cf00593238373633ce00011700593634383631170081d8f46eda787f8b9a1f005931303538351f009fc6\
        4fb0b3684889ab000100de8f64e89053ffb7cd88f9009b8fcb34970af1bae4a8b6001d8ff1ba4667d96fe18a\
        3800180132025a383539393152020f4300180f020030018600593633333434b8020f5a00300f0200ce810322\
        0c0f5741a8aa43015f3536353437c9013181f631815ac43c53ae56005a323638333888040f57017a50000000\
        0000";
        let nibble = |b: &u8| (*b as char).to_digit(16).expect("hex") as u8;
        let bytes: Vec<u8> = hex
            .as_bytes()
            .chunks(2)
            .map(|p| nibble(&p[0]) << 4 | nibble(&p[1]))
            .collect();
        let out = decompress(Algorithm::Lz4, &bytes, 1536).unwrap();
        assert_eq!(crc32fast::hash(&out), 0xDF87_EF65);
    }
}
