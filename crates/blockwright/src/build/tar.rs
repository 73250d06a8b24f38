//! Tar archives: headers, PAX records, long names, sparse maps. Entries as they are, nothing resolved.
//!
//! Understood: v7, ustar, GNU (long names, base-256 numbers, sparse), PAX (POSIX.1-2001 records,
//! `SCHILY.xattr.*`, `SCHILY.acl.*`, `LIBARCHIVE.xattr.*`, GNU sparse formats 0.0, 0.1 and 1.0).
//!
//! Reference: POSIX `pax`, the GNU tar manual ("Tar Internals").

use super::archive::Input;
use super::data::{DataRef, Segment};
use super::pax::{self, Records};
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use std::collections::BTreeMap;
use std::ops::Range;

const BLOCK: u64 = 512;
/// Longest name and longest PAX header there is use for.
const NAME_BYTES_MAX: u64 = 64 << 10;
const PAX_BYTES_MAX: u64 = 16 << 20;
/// Most pieces of a sparse file.
const SEGMENTS_MAX: usize = 1 << 22;

/// What an entry is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    File(FileKind),
    /// Another name of the file of this path.
    HardLink(Vec<u8>),
}

/// An entry of an archive.
pub(crate) struct Entry {
    pub path: Vec<u8>,
    pub kind: EntryKind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    pub atime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
    pub symlink: Vec<u8>,
    pub device: (u32, u32),
    pub size: u64,
    pub ranges: Vec<Range<u64>>,
    pub data: Option<DataRef>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn damaged(input: &Input<'_>, what: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "the archive is damaged: {what} (before byte {})",
            input.position
        ),
    )
}

/// A zero- or space-terminated field.
fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or(field)
}

/// A number: octal digits, or base 256 with the highest bit set.
fn number(field: &[u8]) -> Option<i128> {
    match field.first()? {
        first @ (0x80 | 0xFF) => {
            let start = if *first == 0xFF { -1i128 } else { 0 };
            field[1..].iter().try_fold(start, |n, b| {
                n.checked_mul(256)?.checked_add(i128::from(*b))
            })
        }
        first if first & 0x80 != 0 => {
            let start = i128::from(first & 0x3F);
            if first & 0x40 != 0 {
                return None;
            }
            field[1..].iter().try_fold(start, |n, b| {
                n.checked_mul(256)?.checked_add(i128::from(*b))
            })
        }
        _ => {
            let digits = text(field).trim_ascii();
            digits.iter().try_fold(0i128, |n, b| match b {
                b'0'..=b'7' => n.checked_mul(8)?.checked_add(i128::from(b - b'0')),
                _ => None,
            })
        }
    }
}

fn header_sum_matches(header: &[u8; 512]) -> bool {
    let Some(stored) = number(&header[148..156]) else {
        return false;
    };
    let blanked = |i: usize| {
        if (148..156).contains(&i) {
            b' '
        } else {
            header[i]
        }
    };
    let unsigned: i128 = (0..512).map(|i| i128::from(blanked(i))).sum();
    // Some old programs summed signed characters.
    let signed: i128 = (0..512).map(|i| i128::from(blanked(i) as i8)).sum();
    stored == unsigned || stored == signed
}

const NO_ARCHIVE: &str = "this is not a tar archive";

/// What tells that an archive is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Its end mark, a block of zeroes.
    Mark,
    /// Its digest: it may end behind any entry. Go's programs, and so those for containers, write and take such archives.
    Digest,
}

/// An archive's entries.
pub(crate) struct TarReader<'a> {
    input: Input<'a>,
    end: End,
    global: Records,
}

/// What headers before an entry's own said about it.
#[derive(Default)]
struct Pending {
    records: Records,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    any: bool,
}

impl<'a> TarReader<'a> {
    pub fn new(input: Input<'a>, end: End) -> Self {
        TarReader {
            input,
            end,
            global: Records::default(),
        }
    }

    /// The next entry, its data kept. `None` at the archive's end.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        let mut pending = Pending::default();
        loop {
            let mut header = [0u8; 512];
            let first = self.input.position == 0;
            let read = self.input.read_full(&mut header).map_err(|e| {
                // Shorter than any archive: a text file, say.
                if first && e.kind() == ErrorKind::Corrupt {
                    let what =
                        format!("{NO_ARCHIVE}, or a truncated one: it ends inside its first entry");
                    Error::new(ErrorKind::Corrupt, what)
                } else {
                    e
                }
            })?;
            if !read && self.end == End::Digest && !pending.any {
                return Ok(None);
            }
            if !read {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "the archive is truncated: it has no end mark (after byte {})",
                        self.input.position
                    ),
                ));
            }
            if header.iter().all(|b| *b == 0) {
                if pending.any {
                    return Err(damaged(&self.input, "a header without its entry"));
                }
                let first = self.input.position == BLOCK;
                if !self.input.drain()? && first {
                    // An image whose first sector is empty, say, would be an empty archive else.
                    return Err(damaged(&self.input, NO_ARCHIVE));
                }
                return Ok(None);
            }
            if !header_sum_matches(&header) {
                let what = if self.input.position == BLOCK {
                    NO_ARCHIVE
                } else {
                    "a header's checksum is wrong"
                };
                return Err(damaged(&self.input, what));
            }
            let size = number(&header[124..136])
                .and_then(|n| u64::try_from(n).ok())
                .ok_or_else(|| damaged(&self.input, "a size that is no number"))?;
            match header[156] {
                b'x' | b'X' => {
                    let bytes = self.read_small(size, PAX_BYTES_MAX, "a PAX header")?;
                    let input = &self.input;
                    pending
                        .records
                        .parse(&bytes)
                        .ok_or_else(|| damaged(input, "a PAX record makes no sense"))?;
                    pending.any = true;
                }
                b'g' => {
                    let bytes = self.read_small(size, PAX_BYTES_MAX, "a PAX header")?;
                    if self.global.parse(&bytes).is_none() {
                        return Err(damaged(&self.input, "a PAX record makes no sense"));
                    }
                }
                b'L' => {
                    let name = self.read_small(size, NAME_BYTES_MAX, "a long name")?;
                    pending.path = Some(text(&name).to_vec());
                    pending.any = true;
                }
                b'K' => {
                    let name = self.read_small(size, NAME_BYTES_MAX, "a long link name")?;
                    pending.link = Some(text(&name).to_vec());
                    pending.any = true;
                }
                // A volume's label.
                b'V' => self.skip_padded(size)?,
                b'M' => {
                    return Err(Error::new(
                        ErrorKind::Unsupported,
                        "the archive goes on from another volume",
                    ));
                }
                _ => return self.entry(&header, size, pending).map(Some),
            }
        }
    }

    fn padding(bytes: u64) -> u64 {
        bytes.wrapping_neg() % BLOCK
    }

    fn skip_padded(&mut self, bytes: u64) -> Result<()> {
        self.input.skip(bytes)?;
        self.input.skip(Self::padding(bytes))
    }

    fn read_small(&mut self, bytes: u64, most: u64, what: &str) -> Result<Vec<u8>> {
        if bytes > most {
            return Err(damaged(&self.input, &format!("{what} of {bytes} bytes")));
        }
        let mut out = vec![0u8; bytes as usize];
        if bytes > 0 && !self.input.read_full(&mut out)? {
            return Err(self.input.truncated());
        }
        self.input.skip(Self::padding(bytes))?;
        Ok(out)
    }

    fn entry(&mut self, header: &[u8; 512], size: u64, pending: Pending) -> Result<Entry> {
        let records = pending.records.over(&self.global);
        let bad = |input: &Input<'_>, what: &str| damaged(input, what);
        let field = |range: Range<usize>, what: &str| {
            number(&header[range]).ok_or_else(|| bad(&self.input, what))
        };
        let id = |key: &str, range: Range<usize>| -> Result<u32> {
            let n = match records.number(key) {
                Some(n) => i128::from(n),
                None => field(range, "an owner that is no number")?,
            };
            u32::try_from(n).map_err(|_| bad(&self.input, "an owner past 32 bits"))
        };
        let ustar = header[257..262] == *b"ustar";
        let gnu = header[257..265] == *b"ustar  \0";
        let path = records
            .bytes("GNU.sparse.name")
            .or_else(|| records.bytes("path"))
            .map(<[u8]>::to_vec)
            .or(pending.path)
            .unwrap_or_else(|| {
                let prefix = if ustar && !gnu {
                    text(&header[345..500])
                } else {
                    b""
                };
                let name = text(&header[..100]);
                if prefix.is_empty() {
                    name.to_vec()
                } else {
                    [prefix, b"/", name].concat()
                }
            });
        let link = records
            .bytes("linkpath")
            .map(<[u8]>::to_vec)
            .or(pending.link)
            .unwrap_or_else(|| text(&header[157..257]).to_vec());
        let mode = field(100..108, "a mode that is no number")?;
        let mtime = match records.time("mtime") {
            Some(t) => t,
            None => Timestamp {
                secs: i64::try_from(field(136..148, "a time that is no number")?)
                    .map_err(|_| bad(&self.input, "a time out of range"))?,
                nanos: 0,
            },
        };
        let typeflag = header[156];
        let kind = match typeflag {
            b'1' => EntryKind::HardLink(link.clone()),
            b'2' => EntryKind::File(FileKind::Symlink),
            b'3' => EntryKind::File(FileKind::CharDevice),
            b'4' => EntryKind::File(FileKind::BlockDevice),
            b'5' | b'D' => EntryKind::File(FileKind::Directory),
            b'6' => EntryKind::File(FileKind::Fifo),
            // Before ustar, directories were files with a slash at the end.
            0 | b'0' if path.last() == Some(&b'/') => EntryKind::File(FileKind::Directory),
            // Unknown kinds are regular files, as POSIX has it.
            _ => EntryKind::File(FileKind::Regular),
        };
        let device = if matches!(typeflag, b'3' | b'4') {
            let part = |key: &str, range: Range<usize>| -> Result<u32> {
                let n = match records.number(key) {
                    Some(n) => i128::from(n),
                    None => field(range, "a device number that is none")?,
                };
                u32::try_from(n).map_err(|_| bad(&self.input, "a device number past 32 bits"))
            };
            (
                part("SCHILY.devmajor", 329..337)?,
                part("SCHILY.devminor", 337..345)?,
            )
        } else {
            (0, 0)
        };
        let mut entry = Entry {
            path,
            perm: (mode & 0o7777) as u16,
            uid: id("uid", 108..116)?,
            gid: id("gid", 116..124)?,
            mtime,
            atime: records.time("atime"),
            ctime: records.time("ctime"),
            symlink: if typeflag == b'2' { link } else { Vec::new() },
            device,
            size: 0,
            ranges: Vec::new(),
            data: None,
            xattrs: BTreeMap::new(),
            kind,
        };
        if let Err(what) = pax::attributes(&records, &mut entry.xattrs) {
            return Err(bad(&self.input, &what));
        }
        let stored = match records.bytes("size") {
            Some(_) => records
                .number("size")
                .ok_or_else(|| bad(&self.input, "a size that is no number"))?,
            // Links, devices and the like have none, whatever old programs wrote there.
            None if matches!(typeflag, b'1'..=b'6') => 0,
            None => size,
        };
        if entry.kind == EntryKind::File(FileKind::Regular) {
            self.regular(header, stored, &records, &mut entry)?;
        } else {
            self.skip_padded(stored)?;
        }
        Ok(entry)
    }

    /// The data of a regular file, sparse or not.
    fn regular(
        &mut self,
        header: &[u8; 512],
        stored: u64,
        records: &Records,
        entry: &mut Entry,
    ) -> Result<()> {
        let mut data_bytes = stored;
        let mut size = stored;
        let mut map = None;
        if header[156] == b'S' {
            let (real, pieces) = self.old_gnu_map(header)?;
            (size, map) = (real, Some(pieces));
        } else if records.bytes("GNU.sparse.major").is_some_and(|v| v == b"1") {
            size = records
                .number("GNU.sparse.realsize")
                .ok_or_else(|| damaged(&self.input, "a sparse file without a size"))?;
            let before = self.input.position;
            map = Some(self.pax_1_0_map()?);
            data_bytes = stored
                .checked_sub(self.input.position - before)
                .ok_or_else(|| damaged(&self.input, "a sparse map longer than its file"))?;
        } else if let Some(pieces) = records.sparse_0() {
            size = records
                .number("GNU.sparse.size")
                .or_else(|| records.number("GNU.sparse.realsize"))
                .ok_or_else(|| damaged(&self.input, "a sparse file without a size"))?;
            map = Some(pieces.ok_or_else(|| damaged(&self.input, "a sparse map makes no sense"))?);
        }
        entry.size = size;
        let (file, whole) = self.input.keep(data_bytes)?;
        self.input.skip(Self::padding(data_bytes))?;
        let pieces = map.unwrap_or_else(|| vec![(0, size)]);
        let mut segments = Vec::with_capacity(pieces.len());
        let (mut logical, mut at) = (0u64, 0u64);
        for (offset, bytes) in pieces {
            if bytes == 0 {
                continue;
            }
            let end = offset
                .checked_add(bytes)
                .filter(|end| *end <= size && offset >= logical);
            let used = at.checked_add(bytes).filter(|used| *used <= data_bytes);
            let (Some(end), Some(used)) = (end, used) else {
                return Err(damaged(&self.input, "a sparse map contradicts its file"));
            };
            segments.push(Segment {
                logical: offset,
                bytes,
                at: whole.at + at,
            });
            entry.ranges.push(offset..end);
            (logical, at) = (end, used);
        }
        if size > 0 {
            entry.data = Some(DataRef::Archive { file, segments });
        }
        Ok(())
    }

    /// The map of an old GNU sparse file: in its header, and in blocks that follow it.
    fn old_gnu_map(&mut self, header: &[u8; 512]) -> Result<(u64, Vec<(u64, u64)>)> {
        let mut pieces = Vec::new();
        let take = |table: &[u8], pieces: &mut Vec<(u64, u64)>| -> Option<()> {
            for slot in table.chunks_exact(24) {
                if slot[0] == 0 {
                    break;
                }
                let offset = u64::try_from(number(&slot[..12])?).ok()?;
                let bytes = u64::try_from(number(&slot[12..])?).ok()?;
                pieces.push((offset, bytes));
            }
            Some(())
        };
        let bad = "a sparse map makes no sense";
        take(&header[386..482], &mut pieces).ok_or_else(|| damaged(&self.input, bad))?;
        let real = number(&header[483..495])
            .and_then(|n| u64::try_from(n).ok())
            .ok_or_else(|| damaged(&self.input, "a sparse file without a size"))?;
        let mut more = header[482] != 0;
        while more {
            let mut block = [0u8; 512];
            if !self.input.read_full(&mut block)? {
                return Err(self.input.truncated());
            }
            take(&block[..504], &mut pieces).ok_or_else(|| damaged(&self.input, bad))?;
            if pieces.len() > SEGMENTS_MAX {
                return Err(damaged(&self.input, "a sparse map without end"));
            }
            more = block[504] != 0;
        }
        Ok((real, pieces))
    }

    /// The map of a PAX sparse file of format 1.0: decimal lines before the data.
    fn pax_1_0_map(&mut self) -> Result<Vec<(u64, u64)>> {
        let mut lines = LineReader {
            block: [0; 512],
            at: 512,
        };
        let bad = |input: &Input<'_>| damaged(input, "a sparse map makes no sense");
        let count = lines
            .number(&mut self.input)?
            .ok_or_else(|| bad(&self.input))?;
        if count > SEGMENTS_MAX as u64 {
            return Err(damaged(&self.input, "a sparse map without end"));
        }
        let mut pieces = Vec::new();
        for _ in 0..count {
            let offset = lines
                .number(&mut self.input)?
                .ok_or_else(|| bad(&self.input))?;
            let bytes = lines
                .number(&mut self.input)?
                .ok_or_else(|| bad(&self.input))?;
            pieces.push((offset, bytes));
        }
        Ok(pieces)
    }
}

/// Decimal numbers, one a line, in whole blocks.
struct LineReader {
    block: [u8; 512],
    at: usize,
}

impl LineReader {
    fn number(&mut self, input: &mut Input<'_>) -> Result<Option<u64>> {
        let mut value: Option<u64> = None;
        loop {
            if self.at == self.block.len() {
                if !input.read_full(&mut self.block)? {
                    return Err(input.truncated());
                }
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return Ok(value),
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    let next = value
                        .unwrap_or(0)
                        .checked_mul(10)
                        .and_then(|v| v.checked_add(digit));
                    let Some(next) = next else { return Ok(None) };
                    value = Some(next);
                }
                _ => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_both_codings() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"    644 "), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(number(&[0xFF, 0xFF, 0xFF, 0xFE]), Some(-2));
        assert_eq!(number(b"12x4\0"), None);
    }
}
