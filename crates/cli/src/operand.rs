//! Operands: `IMAGE:/path`, `IMAGE:p2:/path`, local paths, and `-`.
//!
//! # Rules
//! 1. `-` is standard input or output, where the command copies.
//! 2. With `:/` in it, what is before the first one is the image, what follows the colon the path. An image
//!    whose own name has a `:/` is found by trying: the first split whose front is a file wins.
//!    Where local paths are possible, a front that is a directory makes the operand local.
//! 3. Without `:/`, a colon before any slash splits as well: `disk.img:etc/hosts`, `disk.img:` (the root). So a
//!    local file whose name has a colon is written `./name:with:colon`. A colon at the end of a file's name, wherever
//!    that is, names the root: `/srv/disk.img:`.
//! 4. An address of an NBD export (`nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`) is an image; the first `:/` behind its scheme
//!    ends it, or a colon at its end. In the export's name and the socket's path `:` is written `%3A`.
//!    So is an image in chunks (`chunks:INDEX?store=STORE`); the first `:/` without another `/` behind it ends it.
//! 5. `:p2` and `:p=NAME` behind an image name a partition of it, and belong to the image: `disk.img:p2`, `disk.img:p2:/etc/hosts`. So a file `p2`
//!    in the root of a volume is written `disk.img:/p2`. The part before the partition is a file that exists, or has no slash in it.
//! 6. Everything else is a local path, or an image's root for commands that know images only.
//!
//! Paths are bytes: they need not be UTF-8.

use crate::args::{CpArgs, LocalSide};
use blockwright_chunks::address::{SCHEME, image_end, is_address};
use blockwright_device::host::nbd::scheme_len;
use blockwright_disk::Place;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The image.
    pub image: PathBuf,
    /// The path in it; begins with `/`.
    pub path: Vec<u8>,
}

/// An operand of a command that copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Standard input or output.
    Stdio,
    /// A file of the host.
    Local(PathBuf),
    /// A file in an image.
    Inside(Inside),
}

impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}",
            self.image.display(),
            String::from_utf8_lossy(&self.path)
        )
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Stdio => f.write_str("-"),
            Operand::Local(path) => path.display().fmt(f),
            Operand::Inside(inside) => inside.fmt(f),
        }
    }
}

/// What is at a path of the host, as far as the rules care.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Directory,
    File,
}

/// The file type at a path before the process was confined.
static SEEN: Mutex<BTreeMap<Vec<u8>, Found>> = Mutex::new(BTreeMap::new());

fn seen() -> MutexGuard<'static, BTreeMap<Vec<u8>, Found>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find_and_remember(path: &[u8]) -> Found {
    *seen().entry(path.to_vec()).or_insert_with(|| look(path))
}

fn find(path: &[u8]) -> Found {
    seen().get(path).copied().unwrap_or_else(|| look(path))
}

fn look(path: &[u8]) -> Found {
    match look_at(path) {
        Found::Nothing => {
            let place = Place::of(Path::new(OsStr::from_bytes(path)));
            match place
                .part
                .map(|_| look_at(place.file.as_os_str().as_bytes()))
            {
                Some(Found::File) => Found::File,
                _ => Found::Nothing,
            }
        }
        found => found,
    }
}

fn look_at(path: &[u8]) -> Found {
    match std::fs::metadata(Path::new(OsStr::from_bytes(path))) {
        Ok(meta) if meta.is_dir() => Found::Directory,
        Ok(_) => Found::File,
        Err(_) => Found::Nothing,
    }
}

/// How long the beginning of an address is: of an export, or of an image in chunks.
fn address_len(bytes: &[u8]) -> Option<usize> {
    match is_address(bytes) {
        true => Some(SCHEME.len()),
        false => scheme_len(bytes),
    }
}

/// Where an image with a partition ends, if the operand is one.
fn partition_end(bytes: &[u8], found: &impl Fn(&[u8]) -> Found) -> Option<usize> {
    let is_export = address_len(bytes).is_some();
    blockwright_disk::place::ends(bytes).find(|&end| {
        let colon = bytes[..end].iter().rposition(|&b| b == b':').unwrap_or(0);
        let front = &bytes[..colon];
        // `disk.img:/p` has a path before it.
        let after_path = find_path(front).is_some() && found(front) != Found::File;
        match found(front) {
            Found::File => true,
            Found::Nothing => !after_path && (is_export || !front.contains(&b'/')),
            Found::Directory => false,
        }
    })
}

/// Where the first `:/` is.
fn find_path(bytes: &[u8]) -> Option<usize> {
    if is_address(bytes) {
        return image_end(bytes).filter(|at| bytes[*at..].starts_with(b":/"));
    }
    let scheme = scheme_len(bytes).unwrap_or(0).max(1);
    (scheme..bytes.len()).find(|&at| bytes[at..].starts_with(b":/"))
}

/// Where the colon between image and path is.
fn split(bytes: &[u8], found: impl Fn(&[u8]) -> Found, local_possible: bool) -> Option<usize> {
    if let Some(end) = partition_end(bytes, &found) {
        // Without a path behind it the whole operand is the image.
        return (end < bytes.len()).then_some(end);
    }
    if is_address(bytes) {
        return image_end(bytes);
    }
    if let Some(scheme) = scheme_len(bytes) {
        let path = (scheme..bytes.len()).find(|&at| bytes[at..].starts_with(b":/"));
        return path.or_else(|| bytes.ends_with(b":").then(|| bytes.len() - 1));
    }
    let places =
        || (1..bytes.len()).filter(|&at| bytes[at] == b':' && bytes.get(at + 1) == Some(&b'/'));
    if let Some(first) = places().next() {
        if let Some(at) = places().find(|&at| found(&bytes[..at]) == Found::File) {
            return Some(at);
        }
        if local_possible && found(&bytes[..first]) == Found::Directory {
            return None;
        }
        return Some(first);
    }
    let colon = bytes.iter().position(|&b| b == b':')?;
    if colon > 0 && !bytes[..colon].contains(&b'/') {
        return Some(colon);
    }
    let last = bytes.len() - 1;
    (bytes[last] == b':' && found(&bytes[..last]) == Found::File).then_some(last)
}

fn inside(bytes: &[u8], colon: usize) -> Inside {
    let mut path = bytes[colon + 1..].to_vec();
    if path.first() != Some(&b'/') {
        path.insert(0, b'/');
    }
    Inside {
        image: PathBuf::from(OsString::from_vec(bytes[..colon].to_vec())),
        path,
    }
}

impl Inside {
    /// An operand of a command that knows images only.
    pub fn parse(argument: &OsStr) -> Self {
        Self::parse_with(argument.as_bytes(), find)
    }

    /// As [`Inside::parse`]; what was found out is kept for later calls, which can then look at no path.
    pub fn remember(argument: &OsStr) -> Self {
        Self::parse_with(argument.as_bytes(), find_and_remember)
    }

    fn parse_with(bytes: &[u8], found: impl Fn(&[u8]) -> Found) -> Self {
        // A file with a colon in its name, given whole, is an image.
        let colon = split(bytes, &found, false)
            .filter(|&at| !(bytes.get(at + 1) != Some(&b'/') && found(bytes) == Found::File));
        match colon {
            Some(at) => inside(bytes, at),
            None => Inside {
                image: PathBuf::from(OsString::from_vec(bytes.to_vec())),
                path: b"/".to_vec(),
            },
        }
    }

    /// Whether the operand names the root, with or without saying so.
    pub fn is_root(&self) -> bool {
        self.path.iter().all(|&b| b == b'/')
    }
}

impl Operand {
    /// An operand of a command that knows local paths as well.
    pub fn parse(argument: &OsStr) -> Self {
        Self::parse_with(argument.as_bytes(), find)
    }

    /// As [`Inside::remember`].
    pub fn remember(argument: &OsStr) -> Self {
        Self::parse_with(argument.as_bytes(), find_and_remember)
    }

    /// The operands of `cp`: sources, then the destination.
    pub fn of_copy(args: &CpArgs) -> Vec<Self> {
        let last = args.paths.len().saturating_sub(1);
        let parse = |(n, path): (usize, &OsString)| {
            let is_local = match args.local {
                None => false,
                Some(LocalSide::From) => n < last,
                Some(LocalSide::To) => n == last,
            };
            match is_local {
                true => Operand::local(path),
                false => Operand::parse(path),
            }
        };
        args.paths.iter().enumerate().map(parse).collect()
    }

    /// An operand that is no image's, whatever it looks like.
    fn local(argument: &OsStr) -> Self {
        match argument.as_bytes() {
            b"-" => Operand::Stdio,
            _ => Operand::Local(argument.into()),
        }
    }

    fn parse_with(bytes: &[u8], found: impl Fn(&[u8]) -> Found) -> Self {
        if bytes == b"-" {
            return Operand::Stdio;
        }
        let is_whole_image = partition_end(bytes, &found) == Some(bytes.len());
        match split(bytes, found, true) {
            Some(at) => Operand::Inside(inside(bytes, at)),
            None if address_len(bytes).is_some() || is_whole_image => Operand::Inside(Inside {
                image: PathBuf::from(OsString::from_vec(bytes.to_vec())),
                path: b"/".to_vec(),
            }),
            None => Operand::Local(PathBuf::from(OsString::from_vec(bytes.to_vec()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &[u8]) -> Found {
        Found::Nothing
    }

    fn parsed(text: &str) -> Operand {
        Operand::parse_with(text.as_bytes(), nothing)
    }

    fn image(image: &str, path: &str) -> Operand {
        Operand::Inside(Inside {
            image: image.into(),
            path: path.into(),
        })
    }

    #[test]
    fn images_and_local_paths() {
        assert_eq!(
            parsed("disk.img:/etc/hosts"),
            image("disk.img", "/etc/hosts")
        );
        assert_eq!(parsed("./disk.img:/"), image("./disk.img", "/"));
        assert_eq!(parsed("/a/b.img:/x:/y"), image("/a/b.img", "/x:/y"));
        assert_eq!(parsed("disk.img:etc"), image("disk.img", "/etc"));
        assert_eq!(parsed("disk.img:"), image("disk.img", "/"));
        assert_eq!(parsed("./a:b"), Operand::Local("./a:b".into()));
        assert_eq!(parsed("dir/a:b"), Operand::Local("dir/a:b".into()));
        assert_eq!(parsed(":/x"), Operand::Local(":/x".into()));
        assert_eq!(parsed("plain"), Operand::Local("plain".into()));
        assert_eq!(parsed("-"), Operand::Stdio);
        assert_eq!(parsed("./-"), Operand::Local("./-".into()));
    }

    #[test]
    fn what_exists_decides_between_splits() {
        let found = |path: &[u8]| match path {
            b"odd:/disk.img" | b"/srv/disk.img" => Found::File,
            b"./dir" => Found::Directory,
            _ => Found::Nothing,
        };
        let parse = |text: &str| Operand::parse_with(text.as_bytes(), found);
        assert_eq!(parse("odd:/disk.img:/x"), image("odd:/disk.img", "/x"));
        assert_eq!(parse("./dir:/x"), Operand::Local("./dir:/x".into()));
        assert_eq!(parse("/srv/disk.img:"), image("/srv/disk.img", "/"));
        assert_eq!(parse("./dir:"), Operand::Local("./dir:".into()));
        let inside = Inside::parse_with(b"./dir:/x", found);
        assert_eq!(inside.image, Path::new("./dir"));
    }

    #[test]
    fn image_only_commands_take_whole_images() {
        let inside = Inside::parse_with(b"./odd:name.img", nothing);
        assert_eq!(
            (inside.image.to_str(), &inside.path[..]),
            (Some("./odd:name.img"), &b"/"[..])
        );
        let inside = Inside::parse_with(b"a:b.img", |path| {
            if path == b"a:b.img" {
                Found::File
            } else {
                Found::Nothing
            }
        });
        assert_eq!(inside.image, Path::new("a:b.img"));
    }

    #[test]
    fn addresses_of_exports_are_images() {
        for (text, at, path) in [
            ("nbd://h:7/x:/etc/a:/b", "nbd://h:7/x", "/etc/a:/b"),
            ("nbd://h:/etc", "nbd://h", "/etc"),
            ("nbd://h:7/x", "nbd://h:7/x", "/"),
            ("nbd://h:7/x:", "nbd://h:7/x", "/"),
            (
                "nbd+unix:///?socket=/run/s%3A1:/x",
                "nbd+unix:///?socket=/run/s%3A1",
                "/x",
            ),
        ] {
            assert_eq!(parsed(text), image(at, path), "{text}");
            let inside = Inside::parse_with(text.as_bytes(), nothing);
            assert_eq!(Operand::Inside(inside), image(at, path), "{text}");
        }
        assert_eq!(parsed("./nbd:x/y"), Operand::Local("./nbd:x/y".into()));
    }

    #[test]
    fn images_in_chunks_are_images() {
        let address = "chunks:http://h:1/a.caibx?store=http://h/s&store=/srv/s";
        for (rest, at, path) in [
            ("", "", "/"),
            (":", "", "/"),
            (":/etc/a:/b", "", "/etc/a:/b"),
            (":p2:/etc", ":p2", "/etc"),
            (":p2", ":p2", "/"),
        ] {
            let text = format!("{address}{rest}");
            let expected = image(&format!("{address}{at}"), path);
            assert_eq!(parsed(&text), expected, "{text}");
            let inside = Inside::parse_with(text.as_bytes(), nothing);
            assert_eq!(Operand::Inside(inside), expected, "{text}");
        }
        assert_eq!(parsed("chunks:etc"), image("chunks", "/etc"));
    }

    #[test]
    fn partitions_belong_to_images() {
        let found = |path: &[u8]| match path {
            b"/srv/d.img" | b"/srv/odd:p1" | b"a:/b" => Found::File,
            b"/srv/dir" => Found::Directory,
            _ => Found::Nothing,
        };
        let parse = |text: &str| Operand::parse_with(text.as_bytes(), found);
        for (text, at, path) in [
            ("d.img:p2", "d.img:p2", "/"),
            ("d.img:p2:", "d.img:p2", "/"),
            ("d.img:p2:/etc:/x", "d.img:p2", "/etc:/x"),
            ("d.img:p=root fs:etc", "d.img:p=root fs", "/etc"),
            ("/srv/d.img:p2", "/srv/d.img:p2", "/"),
            ("/srv/d.img:p2:/x:p3", "/srv/d.img:p2", "/x:p3"),
            ("d.img:/p2", "d.img", "/p2"),
            ("d.img:/x:p2", "d.img", "/x:p2"),
            ("a:/b:p1:/c", "a:/b:p1", "/c"),
            ("d.img:p2x", "d.img", "/p2x"),
            ("nbd://h/x:p2:/y", "nbd://h/x:p2", "/y"),
            ("nbd://h/x:p2", "nbd://h/x:p2", "/"),
            ("nbd://h/x:/y:p2", "nbd://h/x", "/y:p2"),
        ] {
            assert_eq!(parse(text), image(at, path), "{text}");
            let inside = Inside::parse_with(text.as_bytes(), found);
            assert_eq!(Operand::Inside(inside), image(at, path), "{text}");
        }
        assert_eq!(parse("/srv/dir:p2"), Operand::Local("/srv/dir:p2".into()));
        assert_eq!(parse("./new:p2"), Operand::Local("./new:p2".into()));
    }

    #[test]
    fn paths_are_bytes() {
        let Operand::Inside(inside) = Operand::parse_with(b"d.img:/\xff\xfe", nothing) else {
            panic!("an image operand");
        };
        assert_eq!(inside.path, b"/\xff\xfe");
    }
}
