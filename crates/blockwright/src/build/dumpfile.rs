//! A listing of files as a source: the format of composefs, as `mkcomposefs --from-file` and `composefs-info dump` have it.
//!
//! A line is a file: path, size, mode, number of links, owner, group, device, time, payload, content, digest, and its attributes.
//! The data of a regular file is in the line, or in an object: a file beneath the objects' directory that the payload names.
//! A digest is compared with the object's fs-verity digest before anything is made. Payloads lead nowhere else, and the
//! directories that a path goes through are in the listing before it.
//!
//! Reference: composefs-dump(5).

use super::data::{DataRef, Segment};
use super::progress::told;
use super::tree::LayerTree;
use super::{BuildProgress, Rules, archive, fsverity};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{os_name, positional};
use blockwright_mkfs::tree::{Node, NodeId};
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Component, Path};
use std::sync::Arc;

/// The longest line: content is meant for small files.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// The fields of every line.
const FIELDS: usize = 11;

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

/// The bytes that a field stands for.
fn unescape(field: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let digit = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16));
        out.push(match rest.next() {
            Some(b'\\') => b'\\',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'x') => match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => (high << 4 | low) as u8,
                _ => return Err(invalid("an escape \\x without two hexadecimal digits")),
            },
            _ => return Err(invalid("an escape other than \\\\ \\n \\r \\t \\xXY")),
        });
    }
    Ok(out)
}

/// A field that may be absent.
fn optional(field: &[u8]) -> Result<Option<Vec<u8>>> {
    match field {
        b"-" => Ok(None),
        field => unescape(field).map(Some),
    }
}

fn number<T: std::str::FromStr>(field: &[u8], what: &str) -> Result<T> {
    let text = std::str::from_utf8(field).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| invalid(format!("the {what} is not a number in range")))
}

/// `SECONDS.NANOSECONDS`, two numbers rather than a fraction.
fn time(field: &[u8]) -> Result<Timestamp> {
    let bad = || invalid("the time is not of the form SECONDS.NANOSECONDS");
    let dot = field.iter().position(|b| *b == b'.').ok_or_else(bad)?;
    let secs = number(&field[..dot], "time").map_err(|_| bad())?;
    let nanos = number(&field[dot + 1..], "time").map_err(|_| bad())?;
    if nanos >= 1_000_000_000 {
        return Err(bad());
    }
    Ok(Timestamp { secs, nanos })
}

/// A file of the listing.
struct Line {
    path: Vec<u8>,
    size: u64,
    hard_link: bool,
    mode: u32,
    uid: u32,
    gid: u32,
    device: u64,
    mtime: Timestamp,
    payload: Option<Vec<u8>>,
    content: Option<Vec<u8>>,
    digest: Option<Vec<u8>>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn parse(line: &[u8]) -> Result<Line> {
    let mut fields = line.split(|b| *b == b' ');
    let mut fixed = [&[][..]; FIELDS];
    for (index, slot) in fixed.iter_mut().enumerate() {
        *slot = fields.next().ok_or_else(|| {
            invalid(format!(
                "{index} fields, and each line begins with {FIELDS}"
            ))
        })?;
    }
    let [
        path,
        size,
        mode,
        _links,
        uid,
        gid,
        device,
        mtime,
        payload,
        content,
        digest,
    ] = fixed;
    let path = unescape(path)?;
    if path.first() != Some(&b'/') {
        return Err(invalid("the path does not begin with a slash"));
    }
    let (hard_link, mode) = match mode.strip_prefix(b"@") {
        Some(mode) => (true, mode),
        None => (false, mode),
    };
    let mode = std::str::from_utf8(mode).ok();
    let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let mut xattrs = Vec::new();
    for field in fields {
        let equals = field.iter().position(|b| *b == b'=');
        let equals = equals.ok_or_else(|| invalid("an attribute without ="))?;
        xattrs.push((unescape(&field[..equals])?, unescape(&field[equals + 1..])?));
    }
    Ok(Line {
        path,
        size: number(size, "size")?,
        hard_link,
        mode: mode.ok_or_else(|| invalid("the mode is not an octal number"))?,
        uid: number(uid, "owner")?,
        gid: number(gid, "group")?,
        device: number(device, "device")?,
        mtime: time(mtime)?,
        payload: optional(payload)?,
        content: optional(content)?,
        digest: optional(digest)?,
        xattrs,
    })
}

/// Lays the files of a listing in a file over the tree. Objects are beside it unless they have a directory of their own.
pub(crate) fn apply_file(
    tree: &mut LayerTree,
    path: &Path,
    objects: Option<&Path>,
    rules: &Rules<'_>,
) -> Result<()> {
    let file = File::open(path).map_err(|e| Error::from(e).at(path))?;
    let beside = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    apply(tree, file, Some(objects.unwrap_or(beside)), rules).map_err(|e| e.at(path))
}

/// Lays the files of a listing over the tree.
pub(crate) fn apply(
    tree: &mut LayerTree,
    reader: impl Read,
    objects: Option<&Path>,
    rules: &Rules<'_>,
) -> Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, reader);
    let mut listing = Listing {
        tree,
        rules,
        objects,
        spool: None,
        spooled: 0,
        links: Vec::new(),
    };
    let mut line = Vec::new();
    let mut count = 0u64;
    loop {
        line.clear();
        let read = Read::by_ref(&mut reader)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return listing.link();
        }
        count += 1;
        let place = |e: Error| Error::new(e.kind(), format!("line {count}: {e}"));
        if read as u64 == LINE_BYTES_MAX {
            return Err(place(invalid("longer than 64 MiB")));
        }
        let body = line.strip_suffix(b"\n").unwrap_or(&line);
        if body.is_empty() {
            return Err(place(invalid("empty")));
        }
        parse(body)
            .and_then(|file| listing.put(file, body.len() as u64, count))
            .map_err(place)?;
        if count.is_multiple_of(512) {
            told(rules.progress, &BuildProgress::Reading { files: 512 })?;
        }
    }
}

struct Listing<'a, 'r> {
    tree: &'a mut LayerTree,
    rules: &'a Rules<'r>,
    objects: Option<&'a Path>,
    /// Holds contents of lines.
    spool: Option<Arc<File>>,
    spooled: u64,
    /// Further names: directory, name, the path of the file, the line.
    links: Vec<(NodeId, Vec<u8>, Vec<u8>, u64)>,
}

impl Listing<'_, '_> {
    fn put(&mut self, line: Line, bytes: u64, count: u64) -> Result<()> {
        // Contents are not kept in memory.
        let kept = bytes
            - line
                .content
                .as_ref()
                .map_or(0, |c| (c.len() as u64).min(bytes));
        self.rules.budget.entry(kept)?;
        let kind = u16::try_from(line.mode & !0o7777).ok();
        let kind = match kind.and_then(FileKind::from_mode) {
            Some(kind) => kind,
            // Of a hard link only path and payload count.
            None if line.hard_link => FileKind::Regular,
            None => return Err(invalid("the mode is that of no kind of file")),
        };
        let slash = line.path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let above = self.tree.find(&line.path[..slash])?;
        if self.tree.tree.node(above).kind != FileKind::Directory {
            return Err(Error::new(
                ErrorKind::NotDirectory,
                "what it would be in is not a directory",
            ));
        }
        let Some((dir, name)) = self.tree.parent_of(&line.path)? else {
            if kind != FileKind::Directory || line.hard_link {
                return Err(invalid("the root can only be a directory"));
            }
            let node = self.node(&line, kind);
            self.tree.describe(NodeId::ROOT, node);
            return Ok(());
        };
        if line.hard_link {
            let target = line
                .payload
                .ok_or_else(|| invalid("a hard link without a payload"))?;
            self.links.push((dir, name.to_vec(), target, count));
            return Ok(());
        }
        let mut node = self.node(&line, kind);
        let mut data = None;
        match kind {
            FileKind::Symlink => {
                let what = "a symbolic link without a payload";
                node.symlink = line.payload.ok_or_else(|| invalid(what))?;
            }
            FileKind::Regular => {
                node.size = line.size;
                if line.size > 0 {
                    node.data = std::iter::once(0..line.size).collect();
                }
                data = match (&line.content, &line.payload) {
                    (Some(content), _) => Some(self.content(content, line.size)?),
                    (None, Some(payload)) => Some(self.object(payload, &line)?),
                    (None, None) if line.size == 0 => None,
                    (None, None) => return Err(invalid("a file with neither content nor payload")),
                };
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                node.device = (
                    crate::host::major(line.device),
                    crate::host::minor(line.device),
                );
            }
            FileKind::Directory | FileKind::Fifo | FileKind::Socket => {}
        }
        self.tree.insert(dir, name, node, data);
        Ok(())
    }

    fn node(&self, line: &Line, kind: FileKind) -> Node {
        let mut node = Node::new(kind, (line.mode & 0o7777) as u16, self.rules.now);
        (node.uid, node.gid) = (line.uid, line.gid);
        (node.mtime, node.atime, node.ctime) = (line.mtime, line.mtime, line.mtime);
        node.xattrs = line.xattrs.iter().cloned().collect();
        node
    }

    /// Keeps the content of a line.
    fn content(&mut self, content: &[u8], size: u64) -> Result<DataRef> {
        if content.len() as u64 != size {
            let len = content.len();
            return Err(invalid(format!(
                "the content has {len} bytes, and the size is {size}"
            )));
        }
        if self.rules.budget.unpacked_left() < size {
            return Err(Error::new(ErrorKind::NoSpace, self.rules.budget.too_much()));
        }
        self.rules.budget.unpacked(size);
        let file = match &self.spool {
            Some(file) => Arc::clone(file),
            None => {
                let file = archive::spool_file(&self.rules.spool_dir)?;
                self.spool = Some(Arc::clone(&file));
                file
            }
        };
        (&*file).write_all(content)?;
        let segment = Segment {
            logical: 0,
            bytes: size,
            at: self.spooled,
        };
        self.spooled += size;
        let segments = if size > 0 { vec![segment] } else { Vec::new() };
        Ok(DataRef::Archive { file, segments })
    }

    /// Finds an object, and compares what the line says about it.
    fn object(&self, payload: &[u8], line: &Line) -> Result<DataRef> {
        let payload = os_name::of(payload);
        let payload = Path::new(&*payload);
        let normal = |part: Component<'_>| matches!(part, Component::Normal(_));
        if payload.as_os_str().is_empty() || !payload.components().all(normal) {
            return Err(invalid(
                "a payload that leads out of the objects' directory",
            ));
        }
        let Some(directory) = self.objects else {
            return Err(invalid("a payload, and no directory of objects"));
        };
        let path = directory.join(payload);
        // The objects' directory is the user's; links in it may lead out.
        let real = std::fs::canonicalize(&path).map_err(|e| Error::from(e).at(&path))?;
        let objects = std::fs::canonicalize(directory);
        if !real.starts_with(objects.map_err(|e| Error::from(e).at(directory))?) {
            return Err(invalid(
                "a payload that leads out of the objects' directory",
            ));
        }
        let metadata = std::fs::metadata(&real).map_err(|e| Error::from(e).at(&path))?;
        if !metadata.is_file() {
            return Err(invalid("not a regular file").at(&path));
        }
        if metadata.len() != line.size {
            let what = format!(
                "{} bytes, and the listing says {}",
                metadata.len(),
                line.size
            );
            return Err(invalid(what).at(&path));
        }
        if let Some(digest) = &line.digest {
            let file = crate::host::open(&real).map_err(|e| Error::from(e).at(&path))?;
            let read = |offset, buf: &mut [u8]| positional::read_exact_at(&file, buf, offset);
            let measured = fsverity::measure(line.size, read, |_, _| Ok(()))
                .map_err(|e: std::io::Error| Error::from(e).at(&path))?;
            let found: String = fsverity::digest(&measured)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            if found.as_bytes() != digest {
                let said = String::from_utf8_lossy(digest);
                let what = format!("the fs-verity digest is {found}, and the listing says {said}");
                return Err(Error::new(ErrorKind::Corrupt, what).at(&path));
            }
        }
        Ok(DataRef::Host(real))
    }

    /// Makes the further names: they may come before what they name.
    fn link(self) -> Result<()> {
        for (dir, name, target, count) in self.links {
            let made = self
                .tree
                .find(&target)
                .and_then(|to| self.tree.link(dir, &name, to));
            made.map_err(|e| {
                let target = String::from_utf8_lossy(&target);
                let what = format!("line {count}: a hard link to {target}: {e}");
                Error::new(e.kind(), what)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_the_format() {
        for (text, bytes) in [
            (&b"plain"[..], &b"plain"[..]),
            (br"a\x20b", b"a b"),
            (br"\x00\xfF", b"\0\xFF"),
            (br"\\x41", br"\x41"),
            (br"\n\r\t", b"\n\r\t"),
            (b"", b""),
        ] {
            assert_eq!(unescape(text).expect("good"), bytes);
        }
        for bad in [&br"\"[..], br"\x", br"\x4", br"\xg0", br"\q", br"\x+1"] {
            assert!(unescape(bad).is_err(), "{bad:?}");
        }
        assert_eq!(optional(b"-").expect("good"), None);
        assert_eq!(optional(br"\x2d").expect("good"), Some(b"-".to_vec()));
    }

    #[test]
    fn times_are_two_numbers() {
        let t = time(b"1.1").expect("a time");
        assert_eq!((t.secs, t.nanos), (1, 1));
        let t = time(b"-5.999999999").expect("a time");
        assert_eq!((t.secs, t.nanos), (-5, 999_999_999));
        for bad in [
            "1",
            "1.",
            ".1",
            "1.1000000000",
            "x.1",
            "1.-1",
            "99999999999999999999.0",
        ] {
            assert!(time(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
