//! On-disk formats: little-endian raw structures whose sizes and offsets are asserted at compile
//! time, their checksums, their feature sets, and the validated form of each (`RawX` → `X`).
//!
//! Not responsible for: I/O, caching, locking, allocation policy, or for deciding what to do about
//! damage. A parser either returns a value every later computation can rely on, or a
//! `FormatError` ([ext4's](ext4::FormatError), f2fs's) that names the structure
//! and the value it refused.
//!
//! Features (all default but `ruzstd`): `f2fs` has that format; `zstd` reads f2fs files that are compressed so, and `ruzstd` does it without C; `casefold`
//! folds names, and without it the one encoding that there is counts as unknown.
//!
//! Invariants: nothing here panics on any input bytes, allocates in proportion to an on-disk
//! number, or contains unsafe code.
#![forbid(unsafe_code)]

pub mod common;
pub mod ext4;
#[cfg(feature = "f2fs")]
pub mod f2fs;
#[cfg(feature = "f2fs")]
pub mod lzo;
pub mod nokey;
mod numbers;
mod sha256;

/// Whether a stored checksum is not the computed one. Every check of a checksum asks this.
///
/// `cargo xtask fuzz` builds with `--cfg blockwright_fuzzing`: checksums then never differ, so that damage gets past
/// them and reaches the code behind. No feature and no profile sets this, so no other build has it (`xtask check`
/// looks).
#[must_use]
pub fn sums_differ<T: PartialEq>(found: T, expected: T) -> bool {
    !cfg!(blockwright_fuzzing) && found != expected
}

#[cfg(all(test, not(blockwright_fuzzing)))]
mod tests {
    #[test]
    fn wrong_checksums_are_wrong() {
        assert!(super::sums_differ(1u32, 2) && !super::sums_differ(3u16, 3));
    }
}
