//! A volume, or a part of one, as a tar stream.
//!
//! PAX archives with everything a volume knows: times to the nanosecond, extended attributes
//! (`SCHILY.xattr.*`), access control lists (`SCHILY.acl.*`), hard links, devices, holes (GNU sparse
//! format 1.0), names of any length and bytes. Entries are in byte order of their paths, and depend on
//! nothing but the volume. Sockets, which tar has no entry for, are counted and left out.

pub use crate::pack::{Compression, Packer};
use crate::walk::{ReadAheadWalk, WalkStep};
use crate::{Error, ErrorKind, FileType, Result, Volume};
use blockwright_device::os_name;
use blockwright_vfs::{Handle, InodeRef, OpenFlags, Timestamp, acl};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = 512;
/// Archives end at a multiple of this, as tape drives wanted it and tar still does.
const RECORD: u64 = 10_240;
/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// Bytes read at once where a larger read failed: a block of either format, so that no readable block is lost.
const RESCUE: usize = 4096;

/// What an archive contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// Entries written.
    pub entries: u64,
    /// Bytes of the archive.
    pub bytes: u64,
    /// Sockets, which were left out.
    pub sockets_skipped: u64,
    /// What could not be read (see [`export_tar_past_errors`]).
    pub failures: u64,
}

/// Writes everything at and below `path` as a tar stream. Names in the archive are relative to
/// `path`, which is itself the entry `./` if it is a directory.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// let volume = blockwright::Volume::create(&image, 16 << 20)?;
/// volume.write("/hello", "world")?;
/// let mut archive = Vec::new();
/// let report = blockwright::export::export_tar(&volume, "/", &mut archive)?;
/// assert_eq!(report.bytes, archive.len() as u64);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As reading the volume and as writing the stream.
pub fn export_tar(
    volume: &Volume,
    path: impl AsRef<Path>,
    writer: impl Write,
) -> Result<ExportReport> {
    export(volume, path.as_ref(), writer, None, None)
}

/// As [`export_tar`], but continues past everything that cannot be read from a damaged volume, and
/// calls `failed` for each.
///
/// The archive has everything that could be read. Unreadable blocks of a file become zeroes. Unreadable attributes
/// are left out. A damaged directory keeps the names that could be read.
///
/// # Errors
/// As writing the stream, and when `path` itself cannot be read.
pub fn export_tar_past_errors(
    volume: &Volume,
    path: impl AsRef<Path>,
    writer: impl Write,
    failed: &mut dyn FnMut(&Error),
) -> Result<ExportReport> {
    export(volume, path.as_ref(), writer, Some(failed), None)
}

/// As [`export_tar_past_errors`], and calls `progress` with what was written so far, after each part of at most 1 MiB of data. It stops when that breaks.
///
/// ```
/// # use std::ops::ControlFlow;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// let volume = blockwright::Volume::create(&image, 16 << 20)?;
/// let mut seen = 0;
/// let report = blockwright::export::export_tar_watched(&volume, "/", std::io::sink(), &mut |_| (), &mut |so_far| {
///     seen = so_far.bytes;
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(report.bytes, seen);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`export_tar_past_errors`]; `Interrupted` when `progress` breaks. The archive may be incomplete then.
pub fn export_tar_watched(
    volume: &Volume,
    path: impl AsRef<Path>,
    writer: impl Write,
    failed: &mut dyn FnMut(&Error),
    progress: &mut dyn FnMut(&ExportReport) -> ControlFlow<()>,
) -> Result<ExportReport> {
    export(volume, path.as_ref(), writer, Some(failed), Some(progress))
}

/// Called with what was written so far.
type ProgressFn<'v> = &'v mut dyn FnMut(&ExportReport) -> ControlFlow<()>;

/// Writes all at and below `root`. With `failed`, files that cannot be read are named to it and left out; otherwise the first one ends the export.
fn export<'v, W: Write>(
    volume: &'v Volume,
    root: &Path,
    writer: W,
    failed: Option<&'v mut dyn FnMut(&Error)>,
    progress: Option<ProgressFn<'v>>,
) -> Result<ExportReport> {
    let root = os_name::bytes(root);
    let mut walk = ReadAheadWalk::new(volume.vfs(), volume.cred(), root)?;
    let mut out = Export {
        volume,
        writer,
        report: ExportReport::default(),
        linked: HashMap::new(),
        buf: vec![0; CHUNK],
        path: Vec::new(),
        failed,
        progress,
    };
    while let Some(step) = walk.step() {
        match step {
            WalkStep::Found(node) => {
                out.path.clear();
                out.path.extend_from_slice(walk.path());
                let below = walk.path().get(root.len()..).unwrap_or_default();
                let below = below.strip_prefix(b"/").unwrap_or(below);
                let name = if node.depth > 0 {
                    below
                } else if node.inode.kind() == FileType::Directory {
                    b"."
                } else {
                    let start = root.iter().rposition(|&b| b == b'/');
                    &root[start.map_or(0, |at| at + 1)..]
                };
                let name = name.to_vec();
                out.entry(&mut walk, &node.inode, name)?;
            }
            WalkStep::Left(_) => {}
            WalkStep::Failed(e) => out.fail(e)?,
        }
    }
    let end = 2 * BLOCK;
    let total = (out.report.bytes + end).next_multiple_of(RECORD);
    out.zeroes(total - out.report.bytes)?;
    out.writer.flush()?;
    Ok(out.report)
}

struct Export<'v, W> {
    volume: &'v Volume,
    writer: W,
    report: ExportReport,
    /// Files with several names, by inode: the first name.
    linked: HashMap<u64, Vec<u8>>,
    buf: Vec<u8>,
    /// The path of the file in progress.
    path: Vec<u8>,
    /// Called for everything that cannot be read; without it that ends the export.
    failed: Option<&'v mut dyn FnMut(&Error)>,
    progress: Option<ProgressFn<'v>>,
}

/// A ustar header and the PAX records for what does not fit it.
struct Header {
    block: [u8; 512],
    records: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Header {
    fn new(typeflag: u8) -> Self {
        let mut block = [0u8; 512];
        block[156] = typeflag;
        block[257..265].copy_from_slice(b"ustar\x0000");
        Header {
            block,
            records: BTreeMap::new(),
        }
    }

    fn record(&mut self, key: &str, value: impl Into<Vec<u8>>) {
        self.records.insert(key.as_bytes().to_vec(), value.into());
    }

    /// A number in a field of `width` bytes; in a record when it does not fit.
    fn number(&mut self, at: usize, width: usize, value: u64, key: &str) {
        let digits = width - 1;
        let text = format!("{value:0digits$o}");
        if text.len() <= digits {
            self.block[at..at + digits].copy_from_slice(text.as_bytes());
        } else {
            self.block[at..at + digits].fill(b'0');
            self.record(key, value.to_string());
        }
    }

    /// A name in a field; in a record when it is too long or not plain ASCII.
    fn name(&mut self, at: usize, width: usize, name: &[u8], key: &str) {
        let n = name.len().min(width);
        self.block[at..at + n].copy_from_slice(&name[..n]);
        if name.len() > width || !name.is_ascii() {
            self.record(key, name);
        }
    }

    fn time(&mut self, key: &str, t: Timestamp) {
        let text = match (t.secs, t.nanos) {
            (s, 0) => s.to_string(),
            (s, n) if s >= 0 => format!("{s}.{n:09}"),
            // Counted upwards from the second before zero: -0.25 is second -1, 750 million on.
            (s, n) => format!("-{}.{:09}", -(s + 1), 1_000_000_000 - n),
        };
        self.record(key, text);
    }

    fn seal(&mut self) {
        self.block[148..156].fill(b' ');
        let sum: u32 = self.block.iter().map(|b| u32::from(*b)).sum();
        self.block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

/// `"LENGTH KEY=VALUE\n"`, where the length counts its own digits.
fn pax_record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    let mut out = len.to_string().into_bytes();
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
    out
}

/// The text form of an access control list, with numbers for names.
fn acl_text(value: &[u8]) -> Result<Vec<u8>> {
    let list = acl::Acl::parse(value)?;
    let mut out = Vec::new();
    for e in list.entries() {
        let (kind, id) = match e.tag {
            acl::Tag::UserObj => ("user", None),
            acl::Tag::User(id) => ("user", Some(id)),
            acl::Tag::GroupObj => ("group", None),
            acl::Tag::Group(id) => ("group", Some(id)),
            acl::Tag::Mask => ("mask", None),
            acl::Tag::Other => ("other", None),
        };
        let id = id.map(|id| id.to_string()).unwrap_or_default();
        let bit = |mask: u8, c: char| if e.perm & mask != 0 { c } else { '-' };
        let perm: String = [bit(4, 'r'), bit(2, 'w'), bit(1, 'x')].iter().collect();
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(format!("{kind}:{id}:{perm}").as_bytes());
    }
    Ok(out)
}

impl<W: Write> Export<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes)?;
        self.report.bytes += bytes.len() as u64;
        let told = self.progress.as_mut();
        match told.map(|progress| progress(&self.report)) {
            Some(ControlFlow::Break(())) => {
                Err(Error::new(ErrorKind::Interrupted, "the export was stopped"))
            }
            _ => Ok(()),
        }
    }

    fn zeroes(&mut self, bytes: u64) -> Result<()> {
        const ZEROES: [u8; 4096] = [0; 4096];
        let mut left = bytes;
        while left > 0 {
            let n = left.min(ZEROES.len() as u64);
            self.put(&ZEROES[..n as usize])?;
            left -= n;
        }
        Ok(())
    }

    fn pad(&mut self) -> Result<()> {
        let over = self.report.bytes % BLOCK;
        self.zeroes(if over == 0 { 0 } else { BLOCK - over })
    }

    fn headers(&mut self, mut header: Header) -> Result<()> {
        if !header.records.is_empty() {
            let body: Vec<u8> = header
                .records
                .iter()
                .flat_map(|(k, v)| pax_record(k, v))
                .collect();
            let mut pax = Header::new(b'x');
            pax.block[..9].copy_from_slice(b"PaxHeader");
            pax.number(100, 8, 0o644, "");
            pax.number(108, 8, 0, "");
            pax.number(116, 8, 0, "");
            pax.number(124, 12, body.len() as u64, "");
            pax.number(136, 12, 0, "");
            pax.seal();
            self.put(&pax.block)?;
            self.put(&body)?;
            self.pad()?;
        }
        header.seal();
        self.put(&header.block)
    }

    /// What to do about something that cannot be read.
    fn fail(&mut self, e: impl Into<Error>) -> Result<()> {
        let e = e.into().at(Path::new(&*os_name::of(&self.path)));
        let Some(failed) = &mut self.failed else {
            return Err(e);
        };
        self.report.failures += 1;
        failed(&e);
        Ok(())
    }

    /// Writes one file: its header with all attributes, and its contents. Further names of a file become links.
    fn entry(
        &mut self,
        walk: &mut ReadAheadWalk<'_>,
        inode: &InodeRef,
        mut name: Vec<u8>,
    ) -> Result<()> {
        let attr = self.volume.vfs().stat(inode);
        let kind = attr.kind;
        if kind == FileType::Socket {
            self.report.sockets_skipped += 1;
            return Ok(());
        }
        let mut link = Vec::new();
        if kind == FileType::Symlink {
            match self.volume.vfs().read_link(inode) {
                Ok(target) => link = target,
                Err(e) => return self.fail(e),
            }
        }
        if kind == FileType::Directory {
            name.push(b'/');
        }
        let mut typeflag = match kind {
            FileType::Directory => b'5',
            FileType::Symlink => b'2',
            FileType::CharDevice => b'3',
            FileType::BlockDevice => b'4',
            FileType::Fifo => b'6',
            FileType::Regular | FileType::Socket => b'0',
        };
        if kind != FileType::Directory && attr.nlink > 1 {
            match self.linked.get(&attr.ino.0) {
                Some(first) => (typeflag, link) = (b'1', first.clone()),
                None => {
                    self.linked.insert(attr.ino.0, name.clone());
                }
            }
        }
        let mut header = Header::new(typeflag);
        header.number(100, 8, u64::from(attr.perm), "mode");
        header.number(108, 8, u64::from(attr.uid), "uid");
        header.number(116, 8, u64::from(attr.gid), "gid");
        header.number(
            136,
            12,
            u64::try_from(attr.mtime.secs)
                .unwrap_or(0)
                .min(0o777_7777_7777),
            "",
        );
        header.time("mtime", attr.mtime);
        header.time("atime", attr.atime);
        header.time("ctime", attr.ctime);
        header.name(157, 100, &link, "linkpath");
        if matches!(typeflag, b'3' | b'4') {
            let major = crate::host::major(attr.rdev);
            let minor = crate::host::minor(attr.rdev);
            header.number(329, 8, u64::from(major), "SCHILY.devmajor");
            header.number(337, 8, u64::from(minor), "SCHILY.devminor");
        }
        if typeflag != b'1' {
            self.attributes(inode, &mut header)?;
        }
        if typeflag == b'0' {
            return self.regular(walk, inode, &name, attr.size, header);
        }
        self.report.entries += 1;
        header.number(124, 12, 0, "size");
        header.name(0, 100, &name, "path");
        self.headers(header)
    }

    fn attributes(&mut self, inode: &InodeRef, header: &mut Header) -> Result<()> {
        let (vfs, cred) = (self.volume.vfs(), self.volume.cred());
        let mut names = match vfs.list_xattr(cred, inode) {
            Ok(names) => names,
            Err(e) => return self.fail(e),
        };
        names.sort_unstable();
        for name in names {
            let value = vfs.get_xattr(cred, inode, &name).map_err(Error::from);
            let recorded = value.and_then(|value| {
                let record = match &name[..] {
                    b"system.posix_acl_access" => {
                        (b"SCHILY.acl.access".to_vec(), acl_text(&value)?)
                    }
                    b"system.posix_acl_default" => {
                        (b"SCHILY.acl.default".to_vec(), acl_text(&value)?)
                    }
                    full => ([b"SCHILY.xattr.", full].concat(), value),
                };
                header.records.insert(record.0, record.1);
                Ok(())
            });
            if let Err(e) = recorded {
                self.fail(e)?;
            }
        }
        Ok(())
    }

    /// Writes a regular file with holes as a sparse entry, and another one as it is.
    fn regular(
        &mut self,
        walk: &mut ReadAheadWalk<'_>,
        inode: &InodeRef,
        name: &[u8],
        size: u64,
        mut header: Header,
    ) -> Result<()> {
        let flags = OpenFlags {
            noatime: true,
            ..OpenFlags::read_only()
        };
        let opened = match walk.file() {
            Some(file) => Ok(Arc::clone(file)),
            None => self.volume.vfs().open(self.volume.cred(), inode, flags),
        };
        let file = match opened {
            Ok(file) => file,
            Err(e) => return self.fail(e),
        };
        self.report.entries += 1;
        let (pieces, mapped) = if walk.is_dense() {
            (vec![(0, size)], Ok(()))
        } else {
            data_pieces(&file, size)
        };
        if let Err(e) = mapped {
            self.fail(e)?;
        }
        if pieces.len() == 1 && pieces[0] == (0, size) || size == 0 {
            header.number(124, 12, size, "size");
            header.name(0, 100, name, "path");
            self.headers(header)?;
            self.copy_unpadded(walk, &file, 0, size)?;
            return self.pad();
        }
        // GNU tar finds a file's end by its last piece; where a hole is last, by an empty one.
        let end = Some((size, 0)).filter(|_| pieces.last().is_none_or(|(o, b)| o + b < size));
        let mut map = format!("{}\n", pieces.len() + usize::from(end.is_some()));
        for (offset, bytes) in pieces.iter().chain(&end) {
            map.push_str(&format!("{offset}\n{bytes}\n"));
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
        let data: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
        header.record("GNU.sparse.major", "1");
        header.record("GNU.sparse.minor", "0");
        header.record("GNU.sparse.name", name);
        header.record("GNU.sparse.realsize", size.to_string());
        header.number(124, 12, map.len() as u64 + data, "size");
        // Programs that do not know this format unpack it under a name that shows what it is.
        let visible = [b"GNUSparseFile.0/", name].concat();
        header.name(0, 100, &visible, "path");
        self.headers(header)?;
        self.put(&map)?;
        for (offset, bytes) in pieces {
            self.copy_unpadded(walk, &file, offset, bytes)?;
        }
        self.pad()
    }

    /// Writes a stretch of a file. The header has promised its length, so what cannot be read is zeroes.
    fn copy_unpadded(
        &mut self,
        walk: &mut ReadAheadWalk<'_>,
        file: &Arc<Handle>,
        mut offset: u64,
        mut bytes: u64,
    ) -> Result<()> {
        let mut buf = std::mem::take(&mut self.buf);
        let mut told = false;
        let mut want = buf.len();
        let mut copied = Ok(());
        while bytes > 0 && copied.is_ok() {
            if let Some(slices) = walk.data(offset) {
                for slice in slices {
                    let part = bytes.min(slice.len() as u64);
                    copied = copied.and_then(|()| self.put(&slice[..part as usize]));
                    offset += part;
                    bytes -= part;
                }
                continue;
            }
            let part = bytes.min(want as u64) as usize;
            let read = match file.read_at(&mut buf[..part], offset) {
                Ok(0) => Err(Error::new(
                    ErrorKind::Stale,
                    "it became shorter while it was read",
                )),
                Ok(n) => Ok(n),
                Err(e) => Err(e.into()),
            };
            let n = match read {
                Ok(n) => n,
                // The rest of it may be readable in smaller parts.
                Err(_) if want > RESCUE && self.failed.is_some() => {
                    want = RESCUE;
                    continue;
                }
                Err(e) => {
                    // Told once a stretch.
                    if !told && let Err(e) = self.fail(e) {
                        copied = Err(e);
                        break;
                    }
                    told = true;
                    buf[..part].fill(0);
                    part
                }
            };
            offset += n as u64;
            bytes -= n as u64;
            copied = self.put(&buf[..n]);
        }
        self.buf = buf;
        copied
    }
}

/// Where a file has data: offset and length. With an error, as far as that is known.
fn data_pieces(file: &Arc<Handle>, size: u64) -> (Vec<(u64, u64)>, Result<()>) {
    let mut out = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match file.seek_data(at) {
            Ok(start) => start,
            Err(e) if e.kind() == ErrorKind::NoData => break,
            Err(e) => return (out, Err(e.into())),
        };
        let end = match file.seek_hole(start) {
            Ok(end) => end.min(size),
            Err(e) => return (out, Err(e.into())),
        };
        if end <= start {
            break;
        }
        out.push((start, end - start));
        at = end;
    }
    (out, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_lengths_count_themselves() {
        for len in [1, 5, 88, 90, 91, 92, 93, 95, 990, 992, 995, 10_000] {
            let record = pax_record(b"k", &vec![b'v'; len]);
            let space = record.iter().position(|b| *b == b' ').expect("a space");
            let stored: usize = std::str::from_utf8(&record[..space])
                .expect("text")
                .parse()
                .expect("a number");
            assert_eq!(stored, record.len());
        }
    }

    #[test]
    fn numbers_that_do_not_fit_become_records() {
        let mut h = Header::new(b'0');
        h.number(108, 8, 0o777_7777, "uid");
        assert!(h.records.is_empty());
        h.number(108, 8, 0o1000_0000, "uid");
        assert_eq!(h.records[&b"uid"[..]], b"2097152");
    }
}
