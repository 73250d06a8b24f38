//! Names under which entries of encrypted directories are shown without the key, in both formats.
//!
//! An entry's name on disk is ciphertext. It is shown as base64url (no padding) of: its hash (two
//! little-endian words), the first 149 bytes, and, when there are more, the SHA-256 of the rest. So every
//! entry has a name that is legal, unique, at most 252 bytes, and stable. f2fs has one word of hash; the other is zero.

use crate::sha256;

const PLAIN_BYTES: usize = 149;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The name an entry is shown under.
#[must_use]
pub fn encode(hash: (u32, u32), cipher: &[u8]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(8 + PLAIN_BYTES + 32);
    raw.extend_from_slice(&hash.0.to_le_bytes());
    raw.extend_from_slice(&hash.1.to_le_bytes());
    raw.extend_from_slice(&cipher[..cipher.len().min(PLAIN_BYTES)]);
    if let Some(rest) = cipher.get(PLAIN_BYTES..).filter(|r| !r.is_empty()) {
        raw.extend_from_slice(&sha256::digest(rest));
    }
    base64url(&raw)
}

fn base64url(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len().div_ceil(3) * 4);
    for piece in raw.chunks(3) {
        let mut bytes = [0; 3];
        bytes[..piece.len()].copy_from_slice(piece);
        let word = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        for i in 0..=piece.len() as u32 {
            out.push(ALPHABET[(word >> (18 - 6 * i)) as usize & 63]);
        }
    }
    out
}

/// The hash in a name that [`encode`] could have made; `None` for any other name.
#[must_use]
pub fn hash_of(name: &[u8]) -> Option<(u32, u32)> {
    let mut raw = [0u8; 8];
    let mut bits = 0u32;
    let mut have = 0;
    let mut at = 0;
    // Eleven characters hold 66 bits: the eight bytes and the start of the ciphertext.
    if name.len() < 12 {
        return None;
    }
    for c in name {
        let value = ALPHABET.iter().position(|a| a == c)? as u32;
        bits = (bits << 6 | value) & 0xFFFF;
        have += 6;
        if have >= 8 {
            have -= 8;
            if at < 8 {
                raw[at] = (bits >> have) as u8;
                at += 1;
            }
        }
    }
    let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    Some((word(0), word(4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_their_hash() {
        for len in [1, 16, 148, 149, 150, 255] {
            let cipher: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let name = encode((0x1234_5678, 0x9ABC_DEF0), &cipher);
            assert!(name.len() <= 252);
            assert_eq!(hash_of(&name), Some((0x1234_5678, 0x9ABC_DEF0)));
        }
        assert_eq!(hash_of(b"README"), None);
        assert_eq!(hash_of(b"a name with blanks"), None);
        assert_eq!(base64url(b"foobar"), b"Zm9vYmFy");
        assert_eq!(base64url(b"fo"), b"Zm8");
    }
}
