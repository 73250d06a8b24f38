//! Names of chunks: digests of their contents.

use sha2::{Digest as _, Sha256, Sha512_256};
use std::fmt;

/// The digest that an index is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Digest {
    /// SHA-512/256, casync's default.
    #[default]
    Sha512_256,
    /// SHA-256.
    Sha256,
}

impl Digest {
    /// The name of a chunk with these contents.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> ChunkId {
        ChunkId(match self {
            Digest::Sha512_256 => Sha512_256::digest(bytes).into(),
            Digest::Sha256 => Sha256::digest(bytes).into(),
        })
    }
}

/// The name of a chunk: the digest of its contents before compression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub [u8; 32]);

impl ChunkId {
    /// Where a store keeps the chunk, relative to the store: a folder of the first four hexadecimal digits, and the name with `.cacnk`.
    /// Source: casync(1), and the README of desync.
    #[must_use]
    pub fn path(&self) -> String {
        let hex = self.to_string();
        format!("{}/{hex}.cacnk", &hex[..4])
    }

    /// Reads 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
        let mut id = [0; 32];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(ChunkId(id))
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
