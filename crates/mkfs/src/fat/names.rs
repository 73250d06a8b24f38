//! Names in FAT directories: long ones in UTF-16, and for each a short alias of 8 and 3 characters.
//!
//! Both kinds of names of one directory are compared without regard to case, and share one space: no alias may be what another file is called.
//! Source of the rules: Microsoft, "FAT32 File System Specification" 1.03, "Long Directory Entries" and "Name Limits and Character Sets".

use std::collections::{HashMap, HashSet};

/// The longest name, in UTF-16 units.
const UNITS_MAX: usize = 255;
/// UTF-16 units in one entry of a long name.
const UNITS_PER_ENTRY: usize = 13;

/// A short name as it is stored: eight characters and three, padded with spaces.
pub(super) type Short = [u8; 11];

/// A name as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Empty when the short name says it all.
    pub long: Vec<u16>,
    pub short: Short,
}

impl Name {
    /// Directory entries that it takes.
    pub fn slots(&self) -> u64 {
        1 + self.long.len().div_ceil(UNITS_PER_ENTRY) as u64
    }

    /// Appends the entries of the long name, which come before the short one.
    pub fn put_long(&self, out: &mut Vec<u8>) {
        let sum = self
            .short
            .iter()
            .fold(0u8, |sum, &byte| sum.rotate_right(1).wrapping_add(byte));
        let pieces: Vec<&[u16]> = self.long.chunks(UNITS_PER_ENTRY).collect();
        for (index, piece) in pieces.iter().enumerate().rev() {
            let mut units = [0xFFFFu16; UNITS_PER_ENTRY];
            units[..piece.len()].copy_from_slice(piece);
            if let Some(end) = units.get_mut(piece.len()) {
                *end = 0;
            }
            let mut entry = [0u8; 32];
            let last = if index + 1 == pieces.len() { 0x40 } else { 0 };
            // At most 20 entries.
            entry[0] = (index as u8 + 1) | last;
            (entry[11], entry[13]) = (0x0F, sum);
            let places = (1..11)
                .step_by(2)
                .chain((14..26).step_by(2))
                .chain([28, 30]);
            for (at, unit) in places.zip(units) {
                entry[at..at + 2].copy_from_slice(&unit.to_le_bytes());
            }
            out.extend_from_slice(&entry);
        }
    }
}

/// Whether a short name may have this character.
fn is_short(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit() || "$%'-_@~`!(){}^#&".contains(c)
}

/// The text as a short name, if it is one.
fn exact(text: &str) -> Option<Short> {
    let (base, extension) = match text.rsplit_once('.') {
        Some((_, "")) => return None,
        Some((base, extension)) => (base, extension),
        None => (text, ""),
    };
    let fits = !base.is_empty() && base.len() <= 8 && extension.len() <= 3;
    if !fits || !base.chars().chain(extension.chars()).all(is_short) {
        return None;
    }
    let mut short = [b' '; 11];
    short[..base.len()].copy_from_slice(base.as_bytes());
    short[8..8 + extension.len()].copy_from_slice(extension.as_bytes());
    Some(short)
}

/// Up to `most` characters of the text that short names may have, others replaced.
fn squeezed(text: &str, most: usize) -> String {
    let kept = text.chars().filter(|c| !matches!(c, ' ' | '.'));
    kept.map(|c| if is_short(c) { c } else { '_' })
        .take(most)
        .collect()
}

/// A name that can be stored, as text. A sentence says what is wrong with another one.
fn checked(name: &[u8]) -> Result<&str, String> {
    let Ok(text) = std::str::from_utf8(name) else {
        return Err("a FAT volume keeps names in Unicode, and this one is no UTF-8".to_owned());
    };
    if let Some(bad) = text
        .chars()
        .find(|&c| c < ' ' || c == '\x7F' || "\"*/:<>?\\|".contains(c))
    {
        return Err(format!("a name on a FAT volume has no {bad:?}"));
    }
    if text.is_empty() || text.ends_with([' ', '.']) {
        return Err("a name on a FAT volume ends with neither a dot nor a space".to_owned());
    }
    if text.encode_utf16().count() > UNITS_MAX {
        return Err(format!(
            "a name on a FAT volume has at most {UNITS_MAX} UTF-16 units"
        ));
    }
    Ok(text)
}

/// Gives each name of a directory its alias, in their order.
///
/// # Errors
/// Which name cannot be stored, and why.
pub(super) fn assign<'a>(
    names: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Name>, (&'a [u8], String)> {
    let mut upper: HashMap<String, &[u8]> = HashMap::new();
    let mut found = Vec::new();
    let mut taken: HashSet<Short> = HashSet::new();
    for name in names {
        let text = checked(name).map_err(|why| (name, why))?;
        let key = text.to_uppercase();
        let short = exact(&key);
        taken.extend(short);
        found.push((text, key.clone(), short));
        if let Some(other) = upper.insert(key, name) {
            let other = String::from_utf8_lossy(other).into_owned();
            return Err((
                name,
                format!("a FAT volume takes it and {other:?} for the same name"),
            ));
        }
    }
    // Where the search for a number begins, by what the alias is made of.
    let mut next: HashMap<(String, String), u32> = HashMap::new();
    let mut named = Vec::with_capacity(found.len());
    for (text, key, short) in found {
        let short = match short {
            Some(short) => short,
            None => alias(&key, &mut taken, &mut next)
                .ok_or_else(|| (text.as_bytes(), "no short name is left for it".to_owned()))?,
        };
        let is_whole = exact(text) == Some(short);
        named.push(Name {
            long: match is_whole {
                true => Vec::new(),
                false => text.encode_utf16().collect(),
            },
            short,
        });
    }
    Ok(named)
}

/// An alias with a number that no other name of the directory has.
fn alias(
    key: &str,
    taken: &mut HashSet<Short>,
    next: &mut HashMap<(String, String), u32>,
) -> Option<Short> {
    let key = key.trim_start_matches(['.', ' ']);
    let (base, extension) = key.rsplit_once('.').unwrap_or((key, ""));
    let (base, extension) = (squeezed(base, 6), squeezed(extension, 3));
    let number = next.entry((base.clone(), extension.clone())).or_insert(1);
    while *number < 1_000_000 {
        let tail = format!("~{number}");
        *number += 1;
        let kept = base.len().min(8 - tail.len());
        let mut short = [b' '; 11];
        short[..kept].copy_from_slice(&base.as_bytes()[..kept]);
        short[kept..kept + tail.len()].copy_from_slice(tail.as_bytes());
        short[8..8 + extension.len()].copy_from_slice(extension.as_bytes());
        if taken.insert(short) {
            return Some(short);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shorts(names: &[&str]) -> Vec<String> {
        let named =
            assign(names.iter().map(|name| name.as_bytes())).unwrap_or_else(|e| panic!("{e:?}"));
        let text = |name: &Name| String::from_utf8_lossy(&name.short).into_owned();
        named.iter().map(text).collect()
    }

    #[test]
    fn aliases() {
        let names = [
            "BOOTX64.EFI",
            "efi",
            "grub.cfg",
            "A long name.conf",
            "a long name.cone",
            "Along~1.con",
            ".profile",
            "ärger",
            "x.y.z",
            "noextension",
        ];
        assert_eq!(
            shorts(&names),
            [
                "BOOTX64 EFI",
                "EFI        ",
                "GRUB    CFG",
                "ALONGN~1CON",
                "ALONGN~2CON",
                "ALONG~1 CON",
                "PROFIL~1   ",
                "_RGER~1    ",
                "XY~1    Z  ",
                "NOEXTE~1   ",
            ]
        );
    }

    #[test]
    fn aliases_of_many_differ() {
        let names: Vec<String> = (0..3000)
            .map(|n| format!("some long name {n}.text"))
            .collect();
        let all: HashSet<String> = shorts(&names.iter().map(String::as_str).collect::<Vec<_>>())
            .into_iter()
            .collect();
        assert_eq!(all.len(), names.len());
    }

    #[test]
    fn an_alias_is_nothing_that_another_file_is_called() {
        // The alias of the first is the name of the second, in another case.
        assert_eq!(
            shorts(&["foo bar.txt", "foobar~1.txt"]),
            ["FOOBAR~2TXT", "FOOBAR~1TXT"]
        );
    }

    #[test]
    fn names_that_cannot_be() {
        let long = "x".repeat(256);
        for bad in ["a:b", "dot.", "space ", "tab\t", "", &long, "a\\b"] {
            assert!(assign([bad.as_bytes()].into_iter()).is_err(), "{bad:?}");
        }
        assert!(assign([&b"\xFF"[..]].into_iter()).is_err());
        let same = assign(["Name".as_bytes(), b"nAME"].into_iter());
        assert!(same.is_err_and(|(_, why)| why.contains("\"Name\"")));
    }

    #[test]
    fn a_long_name_on_the_disk() {
        let named =
            assign([&b"fourteen chars"[..]].into_iter()).unwrap_or_else(|e| panic!("{e:?}"));
        let mut out = Vec::new();
        named[0].put_long(&mut out);
        assert_eq!((out.len(), named[0].slots()), (64, 3));
        // The last part comes first, and ends with a zero and filler.
        assert_eq!((out[0], out[32]), (0x42, 0x01));
        assert_eq!(&out[1..7], &[b's', 0, 0, 0, 0xFF, 0xFF]);
        assert_eq!((out[11], out[33], out[13]), (0x0F, b'f', out[45]));
    }
}
