//! Hashes of file names in directories.
//!
//! Plain directories use the Tiny Encryption Algorithm as ext3's directories do, with MD4's start
//! values, over unsigned characters. Case-insensitive directories hash the folded name. `.` and `..` have hash 0, so that
//! they are found without hashing.
//!
//! Not responsible for: folding (it needs Unicode's tables); encrypted case-insensitive directories, whose hashes take their key.

use crate::common::casefold;
use crate::ext4::hash::{MD4_START, pack, tea_block};
use std::borrow::Cow;

/// Bytes that a folded name may have. Found by experiment on Linux 6.1, as is that an empty one is none: see the tests.
pub const FOLDED_MAX: usize = 254;

/// The form of a name that is compared and hashed in a case-insensitive directory: folded, or the name itself where it is not
/// folded, folds to nothing, or folds to more than [`FOLDED_MAX`] bytes.
#[must_use]
pub fn fold_name(name: &[u8]) -> Cow<'_, [u8]> {
    let folded = casefold::fold_name(name);
    match (1..=FOLDED_MAX).contains(&folded.len()) {
        true => folded,
        false => Cow::Borrowed(name),
    }
}

/// Hash of a name in a plain directory, or of a folded name in a case-insensitive one.
#[must_use]
pub fn name_hash(name: &[u8]) -> u32 {
    if name == b"." || name == b".." {
        return 0;
    }
    let mut state = MD4_START;
    let mut rest = name;
    loop {
        tea_block(&mut state, &pack::<4>(rest, true));
        rest = match rest.get(16..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => return state[0],
        };
    }
}

/// Hash of a name in a case-insensitive directory: of the folded name, or of the name itself where
/// it cannot be folded (it is not UTF-8, and the volume is not strict).
#[must_use]
pub fn casefold_hash(name: &[u8], folded: Option<&[u8]>) -> u32 {
    if name == b"." || name == b".." {
        return 0;
    }
    name_hash(folded.unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_zero() {
        assert_eq!(name_hash(b"."), 0);
        assert_eq!(name_hash(b".."), 0);
        assert_eq!(casefold_hash(b"..", None), 0);
        assert_ne!(name_hash(b"..."), 0);
    }

    #[test]
    fn folded_names_count() {
        assert_eq!(
            casefold_hash(b"README", Some(b"readme")),
            name_hash(b"readme")
        );
        assert_eq!(casefold_hash(&[0xFF], None), name_hash(&[0xFF]));
    }
}
