//! Inode times: 32 bits of signed seconds, and where there is room a word with two more bits of
//! seconds and 30 bits of nanoseconds.
//!
//! The two bits extend the *signed* seconds upwards, so the range is 1901-12-13 to 2446-05-10.

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// Nanoseconds past `secs`, below one billion.
    pub nanos: u32,
}

impl Timestamp {
    /// Earliest second that can be stored.
    pub const MIN_SECS: i64 = i32::MIN as i64;
    /// Latest second that can be stored with an extra word.
    pub const MAX_SECS: i64 = i32::MAX as i64 + (3 << 32);

    /// From the stored words; `extra` is `None` where the inode has no room for it.
    #[must_use]
    pub fn decode(secs: u32, extra: Option<u32>) -> Self {
        let base = i64::from(secs as i32);
        match extra {
            None => Self {
                secs: base,
                nanos: 0,
            },
            Some(word) => Self {
                secs: base + (i64::from(word & 3) << 32),
                nanos: (word >> 2).min(999_999_999),
            },
        }
    }

    /// The stored words (seconds, extra). Times that cannot be stored become the nearest that can.
    #[must_use]
    pub fn encode(self, has_extra: bool) -> (u32, u32) {
        if !has_extra {
            let secs = self.secs.clamp(Self::MIN_SECS, i64::from(i32::MAX));
            return (secs as i32 as u32, 0);
        }
        let secs = self.secs.clamp(Self::MIN_SECS, Self::MAX_SECS);
        let lo = secs as u32;
        let epoch = ((secs - i64::from(lo as i32)) >> 32) as u32 & 3;
        (lo, epoch | self.nanos.min(999_999_999) << 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_over_the_whole_range() {
        for secs in [
            Timestamp::MIN_SECS,
            -1,
            0,
            i64::from(i32::MAX),
            i64::from(i32::MAX) + 1,
            (1 << 32) - 1,
            1 << 32,
            (1 << 32) + i64::from(i32::MAX) + 1,
            Timestamp::MAX_SECS,
        ] {
            for nanos in [0, 1, 999_999_999] {
                let t = Timestamp { secs, nanos };
                let (lo, hi) = t.encode(true);
                assert_eq!(Timestamp::decode(lo, Some(hi)), t);
            }
        }
    }

    #[test]
    fn documented_examples() {
        // From the format reference's table of the extra epoch bits.
        assert_eq!(Timestamp::decode(0x8000_0000, Some(0)).secs, -0x8000_0000);
        assert_eq!(Timestamp::decode(0x8000_0000, Some(1)).secs, 0x8000_0000);
        assert_eq!(Timestamp::decode(0x0000_0000, Some(1)).secs, 0x1_0000_0000);
        assert_eq!(Timestamp::decode(0x7fff_ffff, Some(3)).secs, 0x3_7fff_ffff);
    }

    #[test]
    fn out_of_range_is_clamped() {
        let far = Timestamp {
            secs: i64::MAX,
            nanos: u32::MAX,
        };
        let (lo, hi) = far.encode(true);
        assert_eq!(
            Timestamp::decode(lo, Some(hi)),
            Timestamp {
                secs: Timestamp::MAX_SECS,
                nanos: 999_999_999
            }
        );
        assert_eq!(far.encode(false), (i32::MAX as u32, 0));
        assert_eq!(
            Timestamp {
                secs: i64::MIN,
                nanos: 0
            }
            .encode(true)
            .0,
            0x8000_0000
        );
    }
}
