//! Records of PAX headers: numbers, times, attributes, access control lists, sparse maps.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;
use blockwright_ondisk::ext4::Timestamp;
use std::collections::BTreeMap;

/// Key–value records. An empty value takes a key back.
#[derive(Clone, Default, Debug)]
pub(crate) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Pieces of a sparse map of format 0.0, whose keys repeat.
    pieces: Vec<(Option<u64>, Option<u64>)>,
}

fn parse_u64(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

impl Records {
    /// Adds the records of a header (`"LENGTH KEY=VALUE\n"` each). `None` when they are invalid.
    pub fn parse(&mut self, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let space = bytes.iter().take(20).position(|b| *b == b' ')?;
            let len = usize::try_from(parse_u64(&bytes[..space])?).ok()?;
            let record = bytes.get(space + 1..len)?;
            let record = record.strip_suffix(b"\n")?;
            let equals = record.iter().position(|b| *b == b'=')?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"GNU.sparse.offset" => self.pieces.push((Some(parse_u64(value)?), None)),
                b"GNU.sparse.numbytes" => match self.pieces.last_mut() {
                    Some(piece) if piece.1.is_none() => piece.1 = Some(parse_u64(value)?),
                    _ => return None,
                },
                _ => {
                    self.values.insert(key.to_vec(), value.to_vec());
                }
            }
            bytes = &bytes[len..];
        }
        Some(())
    }

    /// These records, with those of a global header where these have none.
    pub fn over(mut self, global: &Records) -> Records {
        for (key, value) in &global.values {
            self.values
                .entry(key.clone())
                .or_insert_with(|| value.clone());
        }
        self
    }

    pub fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.values
            .get(key.as_bytes())
            .map(Vec::as_slice)
            .filter(|v| !v.is_empty())
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        parse_u64(self.bytes(key)?)
    }

    /// A time: decimal seconds, possibly negative, with a fraction.
    pub fn time(&self, key: &str) -> Option<Timestamp> {
        let text = std::str::from_utf8(self.bytes(key)?).ok()?;
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let secs: i64 = whole.parse().ok()?;
        if !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let mut nanos = 0u32;
        for i in 0..9 {
            let digit = fraction
                .as_bytes()
                .get(i)
                .map_or(0, |b| u32::from(b - b'0'));
            nanos = nanos * 10 + digit;
        }
        Some(match (negative, nanos) {
            (false, _) => Timestamp { secs, nanos },
            (true, 0) => Timestamp {
                secs: secs.checked_neg()?,
                nanos: 0,
            },
            // Nanoseconds count upwards from the second before.
            (true, n) => Timestamp {
                secs: secs.checked_neg()?.checked_sub(1)?,
                nanos: 1_000_000_000 - n,
            },
        })
    }

    /// The map of a sparse file of format 0.0 or 0.1; the inner `None` when it is invalid.
    #[allow(clippy::option_option)] // absent, damaged, present
    pub fn sparse_0(&self) -> Option<Option<Vec<(u64, u64)>>> {
        if let Some(map) = self.bytes("GNU.sparse.map") {
            let numbers: Option<Vec<u64>> = map.split(|b| *b == b',').map(parse_u64).collect();
            return Some(
                numbers
                    .filter(|n| n.len() % 2 == 0)
                    .map(|n| n.chunks_exact(2).map(|p| (p[0], p[1])).collect()),
            );
        }
        if self.pieces.is_empty() {
            // A sparse file without any data has a size and no map.
            return self.number("GNU.sparse.size").map(|_| Some(Vec::new()));
        }
        Some(self.pieces.iter().map(|(a, b)| a.zip(*b)).collect())
    }
}

/// Collects extended attributes and access control lists. The error names the invalid value.
pub(crate) fn attributes(
    records: &Records,
    out: &mut BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<(), String> {
    for (key, value) in &records.values {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            if super::storable(name) {
                out.insert(name.to_vec(), value.clone());
            }
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let name = percent_decoded(name);
            if super::storable(&name) && !out.contains_key(&name) {
                let value = base64_decoded(value).ok_or("an attribute's coding makes no sense")?;
                out.insert(name, value);
            }
        } else if key == b"RHT.security.selinux" {
            out.entry(b"security.selinux".to_vec())
                .or_insert_with(|| value.clone());
        }
    }
    for (key, name) in [
        ("SCHILY.acl.access", &b"system.posix_acl_access"[..]),
        ("SCHILY.acl.default", b"system.posix_acl_default"),
    ] {
        if let Some(text) = records.bytes(key) {
            let acl = acl_from_text(text)?;
            if !acl.is_empty() {
                out.entry(name.to_vec()).or_insert(acl);
            }
        }
    }
    Ok(())
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let hex = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'%'
            && let (Some(a), Some(b)) = (
                text.get(at + 1).and_then(|b| hex(*b)),
                text.get(at + 2).and_then(|b| hex(*b)),
            )
        {
            out.push(a << 4 | b);
            at += 3;
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    out
}

/// Base64 of any lines, with or without padding.
fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let digits = |b: &&u8| !matches!(**b, b'\n' | b'\r');
    let text: Vec<u8> = text.iter().filter(digits).copied().collect();
    STANDARD_PAD_INDIFFERENT.decode(text).ok()
}

/// The number of a user or group that has only a name here, from the host's own list.
fn host_id(file: &str, name: &str) -> Option<u32> {
    let list = std::fs::read_to_string(file).ok()?;
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name)
            .then(|| fields.nth(1)?.parse().ok())
            .flatten()
    })
}

/// An access control list from its text form to the one setxattr(2) takes.
fn acl_from_text(text: &[u8]) -> Result<Vec<u8>, String> {
    const UNDEFINED: u32 = u32::MAX;
    let text = std::str::from_utf8(text).map_err(|_| "an access control list is not text")?;
    let mut entries = Vec::new();
    for item in text
        .split([',', '\n'])
        .map(|i| i.split('#').next().unwrap_or("").trim())
    {
        if item.is_empty() {
            continue;
        }
        let bad = || format!("an access control list makes no sense: {item}");
        let mut fields = item.split(':');
        let kind = fields.next().unwrap_or("");
        let mut name = fields.next().ok_or_else(bad)?;
        let mut perm = fields.next();
        if perm.is_none() {
            // Masks and others may come without the empty field.
            (perm, name) = (Some(name), "");
        }
        let mut bits = 0u16;
        for c in perm.unwrap_or("").chars() {
            bits |= match c {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return Err(bad()),
            };
        }
        let id = |file: &str| -> Result<u32, String> {
            // star adds the number as a fourth field.
            let number = fields.clone().next().and_then(|n| n.parse().ok());
            name.parse()
                .ok()
                .or(number)
                .or_else(|| host_id(file, name))
                .ok_or_else(|| {
                    format!("an access control list names {name}, which is not known on this host")
                })
        };
        // Tags of `system.posix_acl_access`, as acl(5)'s entries have them in the kernel's attribute.
        let (tag, id) = match (kind, name.is_empty()) {
            ("user" | "u", true) => (0x01u16, UNDEFINED),
            ("user" | "u", false) => (0x02, id("/etc/passwd")?),
            ("group" | "g", true) => (0x04, UNDEFINED),
            ("group" | "g", false) => (0x08, id("/etc/group")?),
            ("mask" | "m", _) => (0x10, UNDEFINED),
            ("other" | "o", _) => (0x20, UNDEFINED),
            _ => return Err(bad()),
        };
        entries.push((tag, id, bits));
    }
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    entries.sort_unstable();
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, id, perm) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &[u8]) -> Records {
        let mut r = Records::default();
        r.parse(text).expect("well formed");
        r
    }

    #[test]
    fn records_are_read_and_bad_ones_refused() {
        let r = records(b"12 path=a/b\n30 mtime=1700000000.123456789\n");
        assert_eq!(r.bytes("path"), Some(&b"a/b"[..]));
        assert_eq!(
            r.time("mtime"),
            Some(Timestamp {
                secs: 1_700_000_000,
                nanos: 123_456_789
            })
        );
        for bad in [
            &b"x"[..],
            b"99 path=a\n",
            b"5 ab\n",
            b"0 a=b\n",
            b"3 a=b\n",
            b"10 pathxx\n",
        ] {
            assert!(Records::default().parse(bad).is_none(), "{bad:?}");
        }
        let t = |text: &str| {
            let len = text.len() + 10;
            records(format!("{len} mtime={text}\n").as_bytes()).time("mtime")
        };
        assert_eq!(
            t("-1.25"),
            Some(Timestamp {
                secs: -2,
                nanos: 750_000_000
            })
        );
        assert_eq!(
            t("12.5"),
            Some(Timestamp {
                secs: 12,
                nanos: 500_000_000
            })
        );
        assert_eq!(t("1.2.3"), None);
    }

    #[test]
    fn access_control_lists() {
        let acl = acl_from_text(b"user::rwx,user:1000:r--,group::r-x,mask::r-x,other::---")
            .expect("fine");
        assert_eq!(acl.len(), 4 + 5 * 8);
        assert_eq!(acl[4..12], [1, 0, 7, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert_eq!(acl[12..20], [2, 0, 4, 0, 0xE8, 3, 0, 0]);
        assert_eq!(
            acl_from_text(b"user:somebody-unknown:r--:77\n").expect("by number")[8],
            77
        );
        assert!(acl_from_text(b"user:no-such-user-here:r--").is_err());
        assert!(acl_from_text(b"nobody").is_err());
    }

    #[test]
    fn codings() {
        for text in [&b"aGVsbG8="[..], b"aGVsbG8", b"aGVs\nbG8=\n"] {
            assert_eq!(base64_decoded(text).expect("valid"), b"hello");
        }
        assert_eq!(percent_decoded(b"user.a%20b"), b"user.a b");
        assert!(base64_decoded(b"a*b").is_none());
    }
}
