//! SHA-256, for the few bytes of a long name. A crate that hashes files at the processor's speed would be seven crates more for every reader.
//!
//! Source: FIPS 180-4, 4.2.2, 5.1.1, 5.3.3 and 6.2.

const fn prime(n: usize) -> u64 {
    let (mut found, mut candidate) = (0, 1);
    while found <= n {
        candidate += 1;
        let mut divisor = 2;
        while candidate % divisor != 0 {
            divisor += 1;
        }
        if divisor == candidate {
            found += 1;
        }
    }
    candidate
}

/// The first 32 bits of the fraction of the root of a prime: the square root, or the cube root.
const fn fraction(prime: u64, power: u32) -> u32 {
    // The root times 2^32, bit by bit: its power is at most the prime times 2^(32 * power).
    let mut root: u128 = 0;
    let mut bit = 40;
    while bit > 0 {
        bit -= 1;
        let tried = root | 1 << bit;
        if tried.pow(power) <= (prime as u128) << (32 * power) {
            root = tried;
        }
    }
    root as u32
}

const fn fractions<const N: usize>(power: u32) -> [u32; N] {
    let mut all = [0; N];
    let mut n = 0;
    while n < N {
        all[n] = fraction(prime(n), power);
        n += 1;
    }
    all
}

static INITIAL: [u32; 8] = fractions(2);
static ROUNDS: [u32; 64] = fractions(3);

fn compress(state: &mut [u32; 8], block: &[u8]) {
    let mut w = [0u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for t in 16..64 {
        let (early, late) = (w[t - 15], w[t - 2]);
        let sigma0 = early.rotate_right(7) ^ early.rotate_right(18) ^ early >> 3;
        let sigma1 = late.rotate_right(17) ^ late.rotate_right(19) ^ late >> 10;
        w[t] = w[t - 16]
            .wrapping_add(sigma0)
            .wrapping_add(w[t - 7])
            .wrapping_add(sigma1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (k, w) in ROUNDS.iter().zip(w) {
        let sum1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = e & f ^ !e & g;
        let first = h
            .wrapping_add(sum1)
            .wrapping_add(choice)
            .wrapping_add(*k)
            .wrapping_add(w);
        let sum0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = a & b ^ a & c ^ b & c;
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(sum0.wrapping_add(majority)));
    }
    for (sum, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *sum = sum.wrapping_add(word);
    }
}

/// The digest of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize((bytes.len() + 9).next_multiple_of(64) - 8, 0);
    padded.extend_from_slice(&(bytes.len() as u64 * 8).to_be_bytes());
    let mut state = INITIAL;
    for block in padded.chunks_exact(64) {
        compress(&mut state, block);
    }
    let mut out = [0; 32];
    for (bytes, word) in out.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    #[test]
    fn digests_are_those_of_the_crate() {
        for len in (0..200).chain([1000, 4096]) {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            assert_eq!(
                super::digest(&bytes)[..],
                Sha256::digest(&bytes)[..],
                "{len}"
            );
        }
    }
}
