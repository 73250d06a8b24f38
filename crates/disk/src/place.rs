//! The argument that a user gives as an image: a file, and optionally a partition of it.
//!
//! `FILE:pN` is the partition with that number, and `FILE:p=NAME` the one with that name (GPT). If a file with the whole text as its name
//! exists, the argument means that file.

use blockwright_device::os_name;
use std::fmt;
use std::path::{Path, PathBuf};

/// Which partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The one with this number, from 1.
    Number(u32),
    /// The one with this name. Names are a GPT's.
    Name(String),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Number(n) => write!(f, "p{n}"),
            Selector::Name(name) => write!(f, "p={name}"),
        }
    }
}

/// A file with a volume, or a partition of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file, block device or export.
    pub file: PathBuf,
    /// The partition; without one, the whole.
    pub part: Option<Selector>,
}

impl Place {
    /// Takes a path apart. `exists` says whether there is a file of a name: it is asked for the whole path alone.
    pub fn parse(path: impl AsRef<Path>, exists: impl FnOnce(&Path) -> bool) -> Self {
        let path = path.as_ref();
        let bytes = os_name::bytes(path);
        let whole = || Place {
            file: path.to_owned(),
            part: None,
        };
        let Some(colon) = bytes.iter().rposition(|&b| b == b':') else {
            return whole();
        };
        match selector(&bytes[colon + 1..]) {
            Some(part) if colon > 0 && !exists(path) => Place {
                file: PathBuf::from(&*os_name::of(&bytes[..colon])),
                part: Some(part),
            },
            _ => whole(),
        }
    }

    /// The place in one path again.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let mut path = self.file.as_os_str().to_owned();
        if let Some(part) = &self.part {
            path.push(format!(":{part}"));
        }
        path.into()
    }

    /// As [`Place::parse`], with the host's files.
    pub fn of(path: impl AsRef<Path>) -> Self {
        Self::parse(path, |path| std::fs::symlink_metadata(path).is_ok())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.display().fmt(f)?;
        match &self.part {
            Some(part) => write!(f, ":{part}"),
            None => Ok(()),
        }
    }
}

/// `p2` or `p=root`, whole. A name has no `/` and no `:`, so that a path can follow it; a partition whose name has one
/// is selected by its number.
pub fn selector(text: &[u8]) -> Option<Selector> {
    let rest = text.strip_prefix(b"p")?;
    if let Some(name) = rest.strip_prefix(b"=") {
        let plain = !name.is_empty() && !name.iter().any(|b| matches!(b, b'/' | b':'));
        let name = std::str::from_utf8(name).ok().filter(|_| plain)?;
        return Some(Selector::Name(name.to_owned()));
    }
    // Up to nine digits: no overflow.
    let number = (1..=9).contains(&rest.len()) && rest.iter().all(u8::is_ascii_digit);
    let number: u32 = std::str::from_utf8(rest)
        .ok()
        .filter(|_| number)?
        .parse()
        .ok()?;
    (number > 0).then_some(Selector::Number(number))
}

/// Where a path inside begins in `FILE:p2:/path`: the place of a colon behind a selector, or the end of the text, for each colon
/// before a selector. The part before it is an image.
pub fn ends(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    (1..text.len()).filter_map(|at| {
        let rest = text[at..].strip_prefix(b":")?;
        let len = rest.iter().position(|&b| b == b':').unwrap_or(rest.len());
        selector(&rest[..len]).map(|_| at + 1 + len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> (String, Option<Selector>) {
        let place = Place::parse(text, |_| false);
        (place.file.display().to_string(), place.part)
    }

    #[test]
    fn partitions_are_found_at_the_end() {
        let number = |n| Some(Selector::Number(n));
        assert_eq!(place("disk.img:p2"), ("disk.img".into(), number(2)));
        assert_eq!(place("/a/b:c:p12"), ("/a/b:c".into(), number(12)));
        assert_eq!(
            place("d:p=root fs"),
            ("d".into(), Some(Selector::Name("root fs".into())))
        );
        for whole in [
            "disk.img",
            "d:p",
            "d:p0",
            "d:p=",
            "d:p1x",
            "d:P1",
            ":p1",
            "d:p1/x",
            "d:p=a/b",
            "d:p9999999999",
            "d:q1",
            "d:p-1",
            "d:p+1",
        ] {
            assert_eq!(place(whole), (whole.into(), None), "{whole}");
        }
        assert_eq!(place("nbd://h:7/x:p1"), ("nbd://h:7/x".into(), number(1)));
    }

    #[test]
    fn a_file_of_that_name_comes_first() {
        let place = Place::parse("d:p1", |path| path == Path::new("d:p1"));
        assert_eq!((place.file.to_str(), place.part), (Some("d:p1"), None));
    }

    #[test]
    fn paths_follow_partitions() {
        let ends = |text: &str| super::ends(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(ends("d:p2:/etc"), [4]);
        assert_eq!(ends("d:p2"), [4]);
        assert_eq!(ends("d:p=a b:x:p3"), [7, 12]);
        assert_eq!(ends("d:/p2"), [0usize; 0]);
        assert_eq!(ends("d:p2x:/y"), [0usize; 0]);
    }
}
