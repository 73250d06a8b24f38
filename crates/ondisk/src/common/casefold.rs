//! Case-insensitive names: when two names are one in a casefolded directory, and what is hashed.
//!
//! The volume names its encoding; the only one there is, is UTF-8 as of Unicode 12.1. Names are
//! compared after full case folding of each character, removal of default-ignorable characters, and
//! canonical decomposition.
//!
//! # As Linux folds
//! Not documented, and found by experiment: Linux 6.1's f2fs stored 26 000 names, with all characters and with random
//! ones. Each stored hash is that of the name as this code folds it (`data/casefold-by-linux.txt` in the tests has a part
//! of them).
//! - An ignorable character is removed, but marks are not reordered across its place.
//! - A continuation byte outside of a character (0x80 to 0xBF, not at the start of the name) is no error: it is kept. Among
//!   marks it appears once for each pass that sorts them (see `Run`).
//! - A name with any other byte that is not UTF-8 is not folded: it is compared and hashed byte by byte.
//!
//! # Exactness
//! The tables of the crate `unicode-normalization` are those of a later Unicode version. They differ
//! from 12.1 only in characters assigned since; Unicode guarantees that mappings and decompositions
//! of assigned characters never change. So names with such newer characters can be read, and found
//! by their exact bytes, but not created: an entry under a wrong hash could not be found by others.

use std::borrow::Cow;

#[cfg(feature = "casefold")]
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

/// Stands for the tables of a build without the feature `casefold`. No encoding is known then, so no name is folded.
#[cfg(not(feature = "casefold"))]
fn decompose_canonical(c: char, mut emit: impl FnMut(char)) {
    emit(c);
}

#[cfg(not(feature = "casefold"))]
fn canonical_combining_class(_: char) -> u8 {
    0
}

/// The one encoding there is: UTF-8 as of Unicode 12.1.
pub const ENCODING_UTF8_12_1: u16 = 1;
/// Whether names of this encoding can be folded: there is one, and without the feature `casefold` none.
#[must_use]
pub fn is_known(encoding: u16) -> bool {
    cfg!(feature = "casefold") && encoding == ENCODING_UTF8_12_1
}

/// In the flags of the encoding: names that are not UTF-8 are refused.
pub const STRICT: u16 = 1;

/// Characters with case mappings, decompositions or combining classes that were assigned after
/// Unicode 12.1, in ranges that may include characters without any.
const NEWER: &[(u32, u32)] = &[
    (0x05C8, 0x05CF),
    (0x0870, 0x089F),
    (0x08BE, 0x08D2),
    (0x0B55, 0x0B55),
    (0x0C3C, 0x0C3C),
    (0x0CF3, 0x0CF3),
    (0x0ECE, 0x0ECE),
    (0x170D, 0x170D),
    (0x1715, 0x171F),
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
    (0x16EA0, 0x16EDF),
    (0x16FE4, 0x16FF1),
    (0x1CF00, 0x1CFCF),
    (0x1D127, 0x1D128),
    (0x1D250, 0x1D28F),
    (0x1DF00, 0x1DFFF),
    (0x1E030, 0x1E08F),
    (0x1E290, 0x1E2AF),
    (0x1E4D0, 0x1E5FF),
    (0x1E6C0, 0x1E6FF),
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

/// A piece of a folded name.
#[derive(Clone, Copy)]
enum Piece {
    /// A character, and its canonical combining class.
    Char(char, u8),
    /// A continuation byte outside of a character.
    Stray(u8),
    /// The place of an ignorable character.
    Barrier,
}

/// The pieces of a name in their first order; `None` where the name is not folded.
fn pieces(name: &[u8]) -> Option<Vec<Piece>> {
    let mut out = Vec::with_capacity(name.len());
    let mut folded = String::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = match std::str::from_utf8(rest) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(rest.get(..e.valid_up_to())?).ok()?,
        };
        for c in text.chars() {
            if is_in(c, IGNORABLE) {
                out.push(Piece::Barrier);
                continue;
            }
            if is_in(c, NEWER) {
                out.push(Piece::Char(c, 0));
                continue;
            }
            folded.clear();
            fold_char(c, &mut folded);
            for c in folded.chars() {
                decompose_canonical(c, |c| {
                    out.push(Piece::Char(c, canonical_combining_class(c)));
                });
            }
        }
        rest = rest.get(text.len()..)?;
        if let Some((byte, after)) = rest.split_first() {
            if !(0x80..0xC0).contains(byte) || out.is_empty() {
                return None;
            }
            out.push(Piece::Stray(*byte));
            rest = after;
        }
    }
    Some(out)
}

/// Marks in a row, and the stray bytes among them, sorted by class in passes: a first one that only looks for classes, and
/// one for each class. A stray byte appears in each.
struct Run<'a>(&'a [Piece]);

impl Run<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let mut class = Some(0);
        while let Some(now) = class {
            class = None;
            for piece in self.0 {
                match *piece {
                    Piece::Char(c, of) if of == now => push(c, out),
                    Piece::Char(_, of) if of > now => {
                        class = Some(class.map_or(of, |least: u8| least.min(of)));
                    }
                    Piece::Stray(byte) => out.push(byte),
                    Piece::Char(..) | Piece::Barrier => {}
                }
            }
        }
    }
}

fn push(c: char, out: &mut Vec<u8>) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// The form of a name that is compared and hashed; `None` for the name itself.
fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let pieces = pieces(name)?;
    let mut out = Vec::with_capacity(name.len());
    let mut rest = pieces.as_slice();
    while let Some((first, after)) = rest.split_first() {
        match *first {
            Piece::Char(c, 0) => push(c, &mut out),
            Piece::Stray(byte) => out.push(byte),
            Piece::Barrier => {}
            Piece::Char(..) => {
                let ends = |p: &Piece| matches!(p, Piece::Char(_, 0) | Piece::Barrier);
                let len = rest.iter().position(ends).unwrap_or(rest.len());
                let (run, behind) = rest.split_at(len);
                Run(run).write(&mut out);
                rest = behind;
                continue;
            }
        }
        rest = after;
    }
    Some(out)
}

/// The form of a name that is compared and hashed; the name itself where it is not folded. It may be empty, and longer than a
/// name may be. (f2fs has limits of its own: `f2fs::hash::fold_name`.)
#[must_use]
pub fn fold_name(name: &[u8]) -> Cow<'_, [u8]> {
    fold(name).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Whether a name has characters newer than the encoding, whose folding others may not know.
#[must_use]
pub fn is_newer(name: &str) -> bool {
    name.chars().any(|c| is_in(c, NEWER))
}

#[cfg(all(test, feature = "casefold"))]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        fold(a.as_bytes()) == fold(b.as_bytes())
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

    /// A later version of these tables may know more characters: those belong into [`NEWER`]. (Which of them
    /// Unicode 12.1 has, `perl -e` tells with `\p{Present_In: 12.1}`.)
    #[test]
    fn no_character_is_newer_than_the_encoding() {
        let mapped = |c: &char| {
            let mut folded = String::new();
            fold_char(*c, &mut folded);
            let mut all = Vec::new();
            folded
                .chars()
                .for_each(|c| decompose_canonical(c, |c| all.push(c)));
            !is_in(*c, NEWER) && (all != [*c] || canonical_combining_class(*c) != 0)
        };
        assert_eq!(('\0'..=char::MAX).filter(mapped).count(), 15_135);
    }

    #[test]
    fn marks_are_sorted_up_to_what_is_ignored_and_bytes_stay() {
        let folded = |name: &[u8]| fold_name(name).into_owned();
        assert_eq!(
            folded("Z\u{301}\u{323}".as_bytes()),
            "z\u{323}\u{301}".as_bytes()
        );
        let apart = "Z\u{301}\u{AD}\u{323}".as_bytes();
        assert_eq!(folded(apart), "z\u{301}\u{323}".as_bytes());
        assert_eq!(folded(b"A\x80B"), b"a\x80b");
        assert_eq!(folded(b"\x80AB"), b"\x80AB");
        assert_eq!(folded(b"A\xFFB"), b"A\xFFB");
        assert_eq!(folded(b"A\xC3"), b"A\xC3");
        // Once for the pass that looks for marks, and once for the mark's.
        assert_eq!(folded(b"\xC3\x89\x80B"), b"e\x80\xCC\x81\x80b");
    }

    #[test]
    fn tables_are_sorted() {
        for table in [NEWER, IGNORABLE] {
            assert!(table.iter().all(|(s, e)| s <= e));
            assert!(table.windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}
