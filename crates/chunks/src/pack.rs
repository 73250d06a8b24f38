//! How stores keep a chunk: compressed by zstd.

use crate::{ChunkId, Digest, Error, Result};

/// Level of compression. casync and desync use zstd's own default.
const LEVEL: i32 = 3;
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// How other compressions begin. casync can make stores with the first two.
const OTHERS: [(&[u8], &str); 5] = [
    (b"\x1F\x8B", "gzip"),
    (b"\xFD7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"\x5D\0\0", "lzma"),
    (b"\x04\x22\x4D\x18", "lz4"),
];

/// The most bytes that a compressed chunk of this many bytes can have. Source: the bound of zstd's manual, and a frame's head.
#[must_use]
pub const fn packed_bytes_max(bytes: usize) -> u64 {
    let bytes = bytes as u64;
    bytes + (bytes >> 8) + 1024
}

/// Compresses a chunk.
///
/// # Errors
/// When there is no memory.
pub(crate) fn pack(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    zstd::bulk::compress(bytes, LEVEL)
}

/// Unpacks a chunk that must have `bytes` bytes, and checks it.
///
/// # Errors
/// [`Error::Wrong`], with the store that it came from.
pub(crate) fn unpack(
    digest: Digest,
    id: ChunkId,
    bytes: usize,
    packed: &[u8],
    store: &str,
) -> Result<Vec<u8>> {
    let wrong = |why: String| Error::Wrong {
        chunk: id,
        store: store.to_owned(),
        why,
    };
    if !packed.starts_with(&MAGIC) {
        let other = OTHERS.iter().find(|(magic, _)| packed.starts_with(magic));
        return Err(wrong(match other {
            Some((_, name)) => {
                format!("it is compressed by {name}, and only zstd is supported")
            }
            None => "it is not compressed by zstd".to_owned(),
        }));
    }
    let unpacked = zstd::bulk::decompress(packed, bytes)
        .map_err(|e| wrong(format!("it does not unpack into {bytes} bytes: {e}")))?;
    if unpacked.len() != bytes {
        return Err(wrong(format!(
            "it has {} bytes, and {bytes} in the index",
            unpacked.len()
        )));
    }
    let found = digest.of(&unpacked);
    if found != id {
        return Err(wrong(format!("its contents have another digest, {found}")));
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_contents_are_refused() {
        let bytes = vec![5; 100_000];
        let digest = Digest::default();
        let id = digest.of(&bytes);
        let packed = pack(&bytes).unwrap();
        assert_eq!(unpack(digest, id, 100_000, &packed, "s").unwrap(), bytes);
        let told = |len, packed: &[u8]| {
            unpack(digest, id, len, packed, "s")
                .unwrap_err()
                .to_string()
        };
        assert!(told(99_999, &packed).contains("does not unpack into 99999"));
        assert!(told(100_001, &packed).contains("has 100000 bytes, and 100001"));
        assert!(told(100_000, &packed[..packed.len() - 1]).contains("does not unpack"));
        assert!(told(100_000, b"").contains("not compressed by zstd"));
        assert!(told(100_000, b"\x1F\x8B\x08 and more").contains("by gzip, and only zstd"));
        assert!(told(100_000, b"\xFD7zXZ\0 and more").contains("by xz, and only zstd"));
        let other = pack(&vec![6; 100_000]).unwrap();
        assert!(told(100_000, &other).contains("another digest"));
        assert!(told(1, &pack(&vec![0; 50 << 20]).unwrap()).contains("into 1 bytes"));
    }

    #[test]
    fn what_cannot_be_compressed_has_room() {
        let mut state = 1u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u8
        })
        .take(300_000)
        .collect();
        for len in [0, 1, 100, 300_000] {
            let packed = pack(&bytes[..len]).unwrap();
            assert!(packed.len() as u64 <= packed_bytes_max(len), "{len}");
        }
    }
}
