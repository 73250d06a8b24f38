//! Hashes of file names in directory indexes.
//!
//! Three old hashes (each in a signed and an unsigned character flavour, because the first
//! implementation hashed `char`), and SipHash-2-4 for encrypted case-insensitive directories.
//! The half-MD4 hash runs MD4's three rounds with eight steps each over 32-byte pieces; the TEA
//! hash runs 16 cycles of the Tiny Encryption Algorithm with the piece as key.
//!
//! The lowest bit of a hash is always clear (an index uses it to mark collisions that continue
//! in the next block), and the largest value is reserved as the end of a directory stream.
//!
//! References: RFC 1320 (MD4), Wheeler & Needham's TEA, Aumasson & Bernstein's SipHash.

use super::error::FormatError;

/// Which function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HashAlgorithm {
    /// The first, multiplicative one.
    Legacy,
    /// Half MD4, the default.
    HalfMd4,
    /// Tiny Encryption Algorithm.
    Tea,
    /// SipHash-2-4 with the directory's own key.
    SipHash,
}

/// Function and character flavour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HashVersion {
    /// Function.
    pub algorithm: HashAlgorithm,
    /// Whether characters count as unsigned.
    pub unsigned_chars: bool,
}

impl HashVersion {
    /// From the number stored in a superblock or an index.
    ///
    /// # Errors
    /// [`FormatError::HashVersionUnknown`].
    pub fn from_raw(raw: u8) -> Result<Self, FormatError> {
        let algorithm = match raw {
            0 | 3 => HashAlgorithm::Legacy,
            1 | 4 => HashAlgorithm::HalfMd4,
            2 | 5 => HashAlgorithm::Tea,
            6 => HashAlgorithm::SipHash,
            found => return Err(FormatError::HashVersionUnknown { found }),
        };
        Ok(Self {
            algorithm,
            unsigned_chars: (3..=5).contains(&raw),
        })
    }

    /// The number to store in a superblock or an index; the flavour is the superblock's to tell.
    #[must_use]
    pub fn to_raw(self) -> u8 {
        match self.algorithm {
            HashAlgorithm::Legacy => 0,
            HashAlgorithm::HalfMd4 => 1,
            HashAlgorithm::Tea => 2,
            HashAlgorithm::SipHash => 6,
        }
    }
}

/// A name's hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NameHash {
    /// Orders the index; the lowest bit is clear.
    pub hash: u32,
    /// Tells names of the same hash apart (in directory stream positions).
    pub minor: u32,
}

/// The hash reserved for the end of a directory stream.
pub const HASH_EOF: u32 = 0x7FFF_FFFF << 1;

/// Key of the SipHash of a directory: two little-endian words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SipKey(pub [u64; 2]);

/// Hash of a name.
///
/// `seed` is the superblock's (all zero means MD4's own start values). `sip_key` is needed for
/// [`HashAlgorithm::SipHash`] only.
///
/// # Errors
/// [`FormatError::HashKeyMissing`] when SipHash has no key.
pub fn name_hash(
    version: HashVersion,
    seed: [u32; 4],
    sip_key: Option<SipKey>,
    name: &[u8],
) -> Result<NameHash, FormatError> {
    let start = if seed == [0; 4] { MD4_START } else { seed };
    let (hash, minor) = match version.algorithm {
        HashAlgorithm::Legacy => (legacy(name, version.unsigned_chars), 0),
        HashAlgorithm::HalfMd4 => {
            let mut state = start;
            let mut rest = name;
            while !rest.is_empty() {
                half_md4_block(&mut state, &pack::<8>(rest, version.unsigned_chars));
                rest = rest.get(32..).unwrap_or(&[]);
            }
            (state[1], state[2])
        }
        HashAlgorithm::Tea => {
            let mut state = start;
            let mut rest = name;
            while !rest.is_empty() {
                tea_block(&mut state, &pack::<4>(rest, version.unsigned_chars));
                rest = rest.get(16..).unwrap_or(&[]);
            }
            (state[0], state[1])
        }
        HashAlgorithm::SipHash => {
            let key = sip_key.ok_or(FormatError::HashKeyMissing)?;
            let both = siphash24(key, name);
            ((both >> 32) as u32, both as u32)
        }
    };
    let hash = match hash & !1 {
        HASH_EOF => HASH_EOF - 2,
        other => other,
    };
    Ok(NameHash { hash, minor })
}

pub(crate) const MD4_START: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// A character's value: sign-extended in the signed flavour.
fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned {
        u32::from(byte)
    } else {
        i32::from(byte as i8) as u32
    }
}

/// The next piece of a name as `N` words, most significant character first, padded with the
/// length of what is left of the name.
pub(crate) fn pack<const N: usize>(rest: &[u8], unsigned: bool) -> [u32; N] {
    let len = (rest.len() & 0xFF) as u32;
    let pad = len * 0x0101_0101;
    let mut words = [pad; N];
    for (word, piece) in words.iter_mut().zip(rest.chunks(4)) {
        if let [a, b, c, d] = *piece {
            *word = widen_four([a, b, c, d], unsigned);
            continue;
        }
        for byte in piece {
            *word = widen(*byte, unsigned).wrapping_add(*word << 8);
        }
    }
    words
}

/// Four characters as a word.
fn widen_four(bytes: [u8; 4], unsigned: bool) -> u32 {
    let word = u32::from_be_bytes(bytes);
    if unsigned {
        return word;
    }
    // A negative character is 256 less than its byte, which is one of the character before it.
    word.wrapping_sub((word & 0x8080_8080) << 1)
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut last, mut before) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
    for byte in name {
        let mixed = last ^ widen(*byte, unsigned).wrapping_mul(7_152_373);
        let mut next = before.wrapping_add(mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7FFF_FFFF);
        }
        (before, last) = (last, next);
    }
    last << 1
}

fn half_md4_block(state: &mut [u32; 4], words: &[u32; 8]) {
    // RFC 1320's three functions and constants; each round visits all words once, in an order
    // and with rotations of its own.
    let mut registers = *state;
    let choose = |x: u32, y, z| (x & y) | (!x & z);
    let order = [0, 1, 2, 3, 4, 5, 6, 7];
    md4_round(&mut registers, words, choose, 0, order, [3, 7, 11, 19]);
    let majority = |x: u32, y, z| (x & y) | (x & z) | (y & z);
    let order = [1, 3, 5, 7, 0, 2, 4, 6];
    let turns = [3, 5, 9, 13];
    md4_round(&mut registers, words, majority, 0x5A82_7999, order, turns);
    let parity = |x: u32, y, z| x ^ y ^ z;
    let order = [3, 7, 2, 6, 1, 5, 0, 4];
    let turns = [3, 9, 11, 15];
    md4_round(&mut registers, words, parity, 0x6ED9_EBA1, order, turns);
    for (old, new) in state.iter_mut().zip(registers) {
        *old = old.wrapping_add(new);
    }
}

/// A round of eight steps. A function for each `mix`: a table of them would be called by pointer for each step.
#[inline]
fn md4_round(
    registers: &mut [u32; 4],
    words: &[u32; 8],
    mix: impl Fn(u32, u32, u32) -> u32,
    constant: u32,
    order: [usize; 8],
    turns: [u32; 4],
) {
    let [mut a, mut b, mut c, mut d] = *registers;
    for (step, word) in order.into_iter().enumerate() {
        let sum = a
            .wrapping_add(mix(b, c, d))
            .wrapping_add(words[word])
            .wrapping_add(constant);
        // The registers take turns: the new value is the next step's `b`.
        (a, b, c, d) = (d, sum.rotate_left(turns[step % 4]), b, c);
    }
    *registers = [a, b, c, d];
}

pub(crate) fn tea_block(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let (mut y, mut z) = (state[0], state[1]);
    let mut sum = 0u32;
    let half = |v: u32, sum: u32, k0: u32, k1: u32| {
        (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        y = y.wrapping_add(half(z, sum, key[0], key[1]));
        z = z.wrapping_add(half(y, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(y);
    state[1] = state[1].wrapping_add(z);
}

pub(crate) fn siphash24(key: SipKey, data: &[u8]) -> u64 {
    let [k0, k1] = key.0;
    let mut v = [
        k0 ^ 0x736F_6D65_7073_6575,
        k1 ^ 0x646F_7261_6E64_6F6D,
        k0 ^ 0x6C79_6765_6E65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    fn round(v: &mut [u64; 4]) {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
    let absorb = |v: &mut [u64; 4], word: u64| {
        v[3] ^= word;
        round(v);
        round(v);
        v[0] ^= word;
    };
    let mut pieces = data.chunks_exact(8);
    for piece in &mut pieces {
        let word = piece.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        absorb(&mut v, word);
    }
    let tail = pieces
        .remainder()
        .iter()
        .rev()
        .fold(0, |w, b| w << 8 | u64::from(*b));
    absorb(&mut v, tail | (data.len() as u64) << 56);
    v[2] ^= 0xFF;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
#[path = "hash_tests.rs"]
mod tests;
