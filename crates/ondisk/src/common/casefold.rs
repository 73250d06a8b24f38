//! Case-insensitive names: when two names are one in a casefolded directory, and what is hashed.
//!
//! The volume names its encoding; the only one there is, is UTF-8 as of Unicode 12.1. Names are
//! compared after full case folding of each character, removal of default-ignorable characters, and
//! canonical decomposition. A name that is not UTF-8 is compared byte by byte (and refused in a new
//! entry when the volume is strict).
//!
//! # Exactness
//! The tables at hand are those of a later Unicode version. They differ from 12.1 only in characters
//! assigned since; Unicode guarantees that mappings and decompositions of assigned characters never
//! change. So names with such newer characters can be read, and found by their exact
//! bytes, but not created: an entry under a wrong hash could not be found by others.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

/// The one encoding there is: UTF-8 as of Unicode 12.1.
pub const ENCODING_UTF8_12_1: u16 = 1;
/// In the flags of the encoding: names that are not UTF-8 are refused.
pub const STRICT: u16 = 1;

/// Characters with case mappings, decompositions or combining classes that were assigned after
/// Unicode 12.1, in ranges that may include characters without any.
const NEWER: &[(u32, u32)] = &[
    (0x0870, 0x089F),
    (0x08BE, 0x08D2),
    (0x0B55, 0x0B55),
    (0x0C3C, 0x0C3C),
    (0x0CF3, 0x0CF3),
    (0x0ECE, 0x0ECE),
    (0x170D, 0x171F),
    (0x180F, 0x180F),
    (0x1ABF, 0x1AFF),
    (0x1B4C, 0x1B4F),
    (0x1B7D, 0x1B7F),
    (0x1C89, 0x1C8F),
    (0x1DFA, 0x1DFA),
    (0x2C2F, 0x2C2F),
    (0x2C5F, 0x2C5F),
    (0xA7C0, 0xA7C1),
    (0xA7C7, 0xA7F6),
    (0xA82C, 0xA82C),
    (0x10570, 0x105FF),
    (0x10780, 0x107BF),
    (0x10D40, 0x10D8F),
    (0x10E80, 0x10EFF),
    (0x10F70, 0x10FDF),
    (0x11070, 0x11075),
    (0x110C2, 0x110C2),
    (0x111CE, 0x111CF),
    (0x1123F, 0x11241),
    (0x11380, 0x113FF),
    (0x116D0, 0x116EF),
    (0x11900, 0x1195F),
    (0x11BC0, 0x11BFF),
    (0x11F00, 0x11F5F),
    (0x16100, 0x1613F),
    (0x16D40, 0x16D7F),
    (0x16FE4, 0x16FF1),
    (0x1CF00, 0x1CFCF),
    (0x1DF00, 0x1DFFF),
    (0x1E030, 0x1E08F),
    (0x1E290, 0x1E2AF),
    (0x1E4D0, 0x1E5FF),
];

/// Characters that comparing ignores (`Default_Ignorable_Code_Point` of Unicode 12.1).
const IGNORABLE: &[(u32, u32)] = &[
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180E),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
];

fn is_in(c: char, ranges: &[(u32, u32)]) -> bool {
    let c = u32::from(c);
    let at = ranges.partition_point(|(_, end)| *end < c);
    ranges.get(at).is_some_and(|(start, _)| *start <= c)
}

/// Full case folding of one character.
fn fold_char(c: char, out: &mut String) {
    match c {
        'A'..='Z' => out.push(c.to_ascii_lowercase()),
        '\0'..='\u{7F}' => out.push(c),
        // Dotless i folds to nothing but itself (only Turkish folding does otherwise).
        '\u{131}' => out.push(c),
        '\u{1E9E}' => out.push_str("ss"),
        // Cherokee folds to upper case, for historical reasons.
        '\u{13A0}'..='\u{13FD}' | '\u{AB70}'..='\u{ABBF}' => out.extend(c.to_uppercase()),
        _ if is_in(c, NEWER) => out.push(c),
        // Upper case first brings together what lower case alone keeps apart (ß, ς, ſ, ligatures).
        _ => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
    }
}

/// The form of a name that is compared and hashed.
fn fold(name: &str) -> Vec<u8> {
    if name.is_ascii() {
        return name.to_ascii_lowercase().into_bytes();
    }
    let mut folded = String::with_capacity(name.len());
    for c in name.chars() {
        fold_char(c, &mut folded);
    }
    folded
        .chars()
        .filter(|c| !is_in(*c, IGNORABLE))
        .nfd()
        .collect::<String>()
        .into_bytes()
}

/// The form of a name that is compared and hashed; the name itself when it is not UTF-8.
#[must_use]
pub fn fold_name(name: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(name) {
        Ok(text) => Cow::Owned(fold(text)),
        Err(_) => Cow::Borrowed(name),
    }
}

/// Whether a name has characters newer than the encoding, whose folding others may not know.
#[must_use]
pub fn is_newer(name: &str) -> bool {
    name.chars().any(|c| is_in(c, NEWER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        fold(a) == fold(b)
    }

    #[test]
    fn folding_as_documented() {
        assert!(same("README", "readme"));
        assert!(same("Straße", "STRASSE"));
        assert!(same("\u{1E9E}", "ss"));
        assert!(same("Σίσυφος", "ΣΊΣΥΦΟΣ"));
        assert!(same("\u{E9}", "e\u{301}"));
        assert!(same("\u{C9}", "e\u{301}"));
        assert!(same("a\u{200B}b", "AB"));
        assert!(same("\u{FB01}", "FI"));
        assert!(same("\u{212A}", "k"));
        assert!(same("\u{130}", "i\u{307}"));
        assert!(same("\u{AB70}", "\u{13A0}"));
        assert!(!same("\u{131}", "i"));
        assert!(!same("a", "b"));
        assert!(!same("\u{10570}", "\u{10597}"));
    }

    #[test]
    fn tables_are_sorted() {
        for table in [NEWER, IGNORABLE] {
            assert!(table.iter().all(|(s, e)| s <= e));
            assert!(table.windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}
