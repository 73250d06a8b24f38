//! Where an image is cut: content-defined, so that an insertion moves few cuts, and exactly where casync and desync cut, so that all three share
//! chunks.
//!
//! A hash rolls over the last 48 bytes (buzhash: one 32-bit number per byte value, rotated by the byte's distance from the window's end, combined by
//! exclusive or). A chunk ends behind a byte where the hash leaves the remainder `d - 1` when it is divided by the discriminator `d`. A chunk never
//! ends before it has more than the least size, and always ends at the largest size.
//!
//! The discriminator for an average size, and the numbers of the byte values, are facts of the format. Sources: desync's documentation ("chunker"),
//! its BSD-licensed table; compared with casync in this crate's tests.

use crate::index::ChunkSizes;

/// Bytes that the hash covers.
pub const WINDOW: usize = 48;

/// The numbers of the byte values.
#[rustfmt::skip] // eight a line
const NUMBERS: [u32; 256] = [
    0x458B_E752, 0xC107_48CC, 0xFBBC_DBB8, 0x6DED_5B68, 0xB10A_82B5, 0x20D7_5648, 0xDFC5_665F, 0xA842_8801,
    0x7EBF_5191, 0x8411_35C7, 0x65CC_53B3, 0x280A_597C, 0x16F6_0255, 0xC78C_BC3E, 0x2944_15F5, 0xB938_D494,
    0xEC85_C4E6, 0xB7D3_3EDC, 0xE549_B544, 0xFDED_A5AA, 0x882B_F287, 0x3116_737C, 0x0556_9956, 0xE8CC_1F68,
    0x0806_AC5E, 0x22A1_4443, 0x1529_7E10, 0x50D0_90E7, 0x4BA6_0F6F, 0xEFD9_F1A7, 0x5C5C_885C, 0x8248_2F93,
    0x9BFD_7C64, 0x0B3E_7276, 0xF268_8E77, 0x8FAD_8ABC, 0xB050_9568, 0xF1AD_A29F, 0xA53E_FDFE, 0xCB2B_1D00,
    0xF2A9_E986, 0x6463_432B, 0x9509_4051, 0x5A22_3AD2, 0x9BE8_401B, 0x61E5_79CB, 0x1A55_6A14, 0x5840_FDC2,
    0x9261_DDF6, 0xCDE0_02BB, 0x5243_2BB0, 0xBF17_373E, 0x7B7C_222F, 0x2955_ED16, 0x9F10_CA59, 0xE840_C4C9,
    0xCCAB_D806, 0x1454_3F34, 0x1462_417A, 0x0D4A_1F9C, 0x087E_D925, 0xD7F8_F24C, 0x7338_C425, 0xCF86_C8F5,
    0xB191_65CD, 0x9891_C393, 0x3253_84AC, 0x0308_459D, 0x8614_1D7E, 0xC922_116A, 0xE2FF_A6B6, 0x53F5_2AED,
    0x2CD8_6197, 0xF5B9_F498, 0xBF31_9C8F, 0xE041_1FAE, 0x977E_B18C, 0xD877_0976, 0x9833_466A, 0xC674_DF7F,
    0x8C29_7D45, 0x8CA4_8D26, 0xC49E_D8E2, 0x7344_F874, 0x556F_79C7, 0x6B25_EAED, 0xA03E_2B42, 0xF68F_66A4,
    0x8E8B_09A2, 0xF2E0_E62A, 0x0D3A_9806, 0x9729_E493, 0x8C72_B0FC, 0x160B_94F6, 0x450E_4D3D, 0x7A32_0E85,
    0xBEF8_F0E1, 0x21D7_3653, 0x4E3D_977A, 0x1E7B_3929, 0x1CC6_C719, 0xBE47_8D53, 0x8D75_2809, 0xE6D8_C2C6,
    0x275F_0892, 0xC8AC_C273, 0x4CC2_1580, 0xECC4_A617, 0xF5F7_BE70, 0xE795_248A, 0x375A_2FE9, 0x4255_70B6,
    0x8898_DCF8, 0xDC2D_97C4, 0x0106_114B, 0x364D_C22F, 0x1E0C_AD1F, 0xBE63_803C, 0x5F69_FAC2, 0x4D5A_FA6F,
    0x1BC0_DFB5, 0xFB27_3589, 0x0EA4_7F7B, 0x3C1C_2B50, 0x21B2_A932, 0x6B12_23FD, 0x2FE7_06A8, 0xF9BD_6CE2,
    0xA268_E64E, 0xE987_F486, 0x3EAC_F563, 0x1CA2_018C, 0x65E1_8228, 0x2207_360A, 0x57CF_1715, 0x34C3_7D2B,
    0x1F8F_3CDE, 0x93B6_57CF, 0x31A0_19FD, 0xE69E_B729, 0x8BCA_7B9B, 0x4C9D_5BED, 0x277E_BEAF, 0xE0D8_F8AE,
    0xD150_821C, 0x3138_1871, 0xAFC3_F1B0, 0x927D_B328, 0xE95E_FFAC, 0x305A_47BD, 0x426B_A35B, 0x1233_AF3F,
    0x686A_5B83, 0x50E0_72E5, 0xD9D3_BB2A, 0x8BEF_C475, 0x487F_0DE6, 0xC88D_FF89, 0xBD66_4D5E, 0x971B_5D18,
    0x63B1_4847, 0xD7D3_C1CE, 0x7F58_3CF3, 0x72CB_CB09, 0xC0D0_A81C, 0x7FA3_429B, 0xE915_8A1B, 0x225E_A19A,
    0xD8CA_9EA3, 0xC763_B282, 0xBB0C_6341, 0x020B_8293, 0xD4CD_299D, 0x58CF_A7F8, 0x91B4_EE53, 0x37E4_D140,
    0x95EC_764C, 0x30F7_6B06, 0x5EE6_8D24, 0x679C_8661, 0xA419_79C2, 0xF2B6_1284, 0x4FAC_1475, 0x0ADB_49F9,
    0x1972_7A23, 0x15A7_E374, 0xC43A_18D5, 0x3FB1_AA73, 0x342F_C615, 0x924C_0793, 0xBEE2_D7F0, 0x8A27_9DE9,
    0x4AA2_D70C, 0xE24D_D37F, 0xBE86_2C0B, 0x177C_22C2, 0x5388_E5EE, 0xCD8A_7510, 0xF901_B4FD, 0xDBC1_3DBC,
    0x6C0B_AE5B, 0x64EF_E8C7, 0x48B0_2079, 0x8033_1A49, 0xCA3D_8AE6, 0xF354_6190, 0xFED7_108B, 0xC49B_941B,
    0x32BA_F4A9, 0xEB83_3A4A, 0x88A3_F1A5, 0x3A91_CE0A, 0x3CC2_7DA1, 0x7112_E684, 0x4A30_96B1, 0x3794_574C,
    0xA3C8_B6F3, 0x1D21_3941, 0x6E0A_2E00, 0x2334_79F1, 0x0F4C_D82F, 0x6093_EDD2, 0x5D7D_209E, 0x464F_E319,
    0xD4DC_AC9E, 0x0DB8_45CB, 0xFB5E_4BC3, 0xE025_6CE1, 0x09FB_4ED1, 0x0914_BE1E, 0xA5BD_B2C3, 0xC6EB_57BB,
    0x3032_0350, 0x3F39_7E91, 0xA677_91BC, 0x86BC_0E2C, 0xEFA0_A7E2, 0xE9FF_7543, 0xE733_612C, 0xD185_897B,
    0x329E_5388, 0x91DD_236B, 0x2ECB_0D93, 0xF4D8_2A3D, 0x35B5_C03F, 0xE4E6_06F0, 0x05B2_1843, 0x37B4_5964,
    0x5EFF_22F4, 0x6027_F4CC, 0x7717_8B3C, 0xAE50_7131, 0x7BF7_CABC, 0xF9C1_8D66, 0x593A_DE65, 0xD95D_DF11,
];

/// Finds the ends of chunks.
#[derive(Clone, Debug)]
pub struct Chunker {
    min: usize,
    max: usize,
    discriminator: u32,
    /// For a division without dividing: the inverse of the discriminator's odd part modulo 2^32, the number of its factors two, and the largest
    /// quotient.
    inverse: u32,
    twos: u32,
    quotient_max: u32,
}

impl Chunker {
    /// A chunker for these sizes.
    ///
    /// # Errors
    /// As [`ChunkSizes::check`]; a least size below 48 bytes.
    pub fn new(sizes: ChunkSizes) -> std::result::Result<Self, String> {
        sizes.check()?;
        if sizes.min < WINDOW as u64 {
            return Err(format!("chunks must have at least {WINDOW} bytes"));
        }
        let avg = sizes.avg as f64;
        let discriminator = (avg / (-1.428_888_52e-7 * avg + 1.332_375_15)) as u32;
        if discriminator == 0 {
            return Err(format!(
                "chunks of {avg} bytes on average: no cut can be found"
            ));
        }
        let twos = discriminator.trailing_zeros();
        let odd = discriminator >> twos;
        // Newton's iteration doubles the bits that are right; an odd number is its own inverse modulo 8.
        let inverse = (0..5).fold(odd, |x, _| {
            x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)))
        });
        Ok(Chunker {
            min: sizes.min as usize,
            max: sizes.max as usize,
            discriminator,
            inverse,
            twos,
            quotient_max: u32::MAX / discriminator,
        })
    }

    /// The largest chunk, in bytes.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether `hash % discriminator == discriminator - 1`.
    fn is_cut(&self, hash: u32) -> bool {
        let next = hash.wrapping_add(1);
        let quotient = next.wrapping_mul(self.inverse).rotate_right(self.twos);
        // 2^32 wraps to 0.
        quotient <= self.quotient_max && (next != 0 || self.discriminator.is_power_of_two())
    }

    /// Length of the chunk at the beginning of `bytes`, which are all that is left of the image, or at least as many as the largest chunk has.
    #[must_use]
    pub fn cut(&self, bytes: &[u8]) -> usize {
        let end = bytes.len().min(self.max);
        if end <= self.min {
            return end;
        }
        let number = |byte: u8| NUMBERS[usize::from(byte)];
        let window = &bytes[self.min - WINDOW..self.min];
        let mut hash = window
            .iter()
            .fold(0u32, |hash, &byte| hash.rotate_left(1) ^ number(byte));
        let leaving = &bytes[self.min - WINDOW..end - WINDOW];
        let coming = &bytes[self.min..end];
        for (n, (&out, &new)) in leaving.iter().zip(coming).enumerate() {
            hash = hash.rotate_left(1) ^ number(out).rotate_left(WINDOW as u32 % 32) ^ number(new);
            if self.is_cut(hash) {
                return self.min + n + 1;
            }
        }
        end
    }

    /// Whether a stretch of zeroes is cut at the largest size only. Then it needs not be looked at.
    #[must_use]
    pub fn passes_zeroes(&self) -> bool {
        let zeroes = vec![0; self.max];
        self.cut(&zeroes) == self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_found_as_by_division() {
        for avg in [1 << 10, 4 << 10, 48_000, 64 << 10, 1 << 20] {
            let chunker = Chunker::new(ChunkSizes::around(avg)).unwrap();
            let d = chunker.discriminator;
            let near = |q: u64| (q * u64::from(d)).saturating_sub(2)..(q * u64::from(d)) + 2;
            let quotients = (0..2000).chain(u64::from(u32::MAX / d) - 50..=u64::from(u32::MAX / d));
            let mut hashes: Vec<u32> = quotients
                .flat_map(near)
                .filter_map(|hash| u32::try_from(hash).ok())
                .collect();
            hashes.extend([u32::MAX, u32::MAX - 1]);
            for hash in hashes {
                assert_eq!(chunker.is_cut(hash), hash % d == d - 1, "{hash} by {d}");
            }
        }
    }

    #[test]
    fn sizes_have_bounds() {
        let chunker = Chunker::new(ChunkSizes::default()).unwrap();
        assert_eq!(chunker.cut(&[]), 0);
        assert_eq!(chunker.cut(&[1; 16384]), 16384);
        assert!(chunker.passes_zeroes());
        let mut state = 1u32;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .take(8 << 20)
        .collect();
        let mut rest = &bytes[..];
        let mut lengths = Vec::new();
        while !rest.is_empty() {
            let len = chunker.cut(rest);
            lengths.push(len);
            rest = &rest[len..];
        }
        let (last, others) = lengths.split_last().unwrap();
        assert!(*last > 0);
        assert!(others.iter().all(|len| (16384..=262_144).contains(len)));
        let avg = bytes.len() / lengths.len();
        assert!((48 << 10..80 << 10).contains(&avg), "{avg}");
        for sizes in [
            ChunkSizes {
                min: 47,
                avg: 64,
                max: 128,
            },
            ChunkSizes {
                min: 64,
                avg: 63,
                max: 128,
            },
            ChunkSizes {
                min: 64,
                avg: 129,
                max: 128,
            },
            ChunkSizes::around(1 << 40),
        ] {
            assert!(Chunker::new(sizes).is_err(), "{sizes:?}");
        }
    }
}
