//! How things are printed: names, sizes, modes, times, tables, JSON.
//!
//! JSON is an interface: fields are added, never renamed or removed. Sizes are bytes, modes are octal
//! strings (`"0644"`), times are UTC (`2026-11-22T00:45:34.123456789Z`). Names are strings; where
//! one is not UTF-8, a field ending in `_base64` beside it has the exact bytes.

use crate::failure::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;
pub use blockwright_map::human;
use blockwright_vfs::{Attr, FileKind, Timestamp};
use serde::Serialize;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

/// Standard output. Its errors say where they are from: a full disk may be the image's, too.
pub struct Stdout(StdoutLock<'static>);

/// Takes standard output.
pub fn stdout() -> Stdout {
    Stdout(io::stdout().lock())
}

/// An error of standard output, with its place.
pub fn of_stdout(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("standard output: {e}"))
}

impl Write for Stdout {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

/// Buffered standard output.
pub struct Out {
    to: BufWriter<Stdout>,
    terminal: bool,
}

impl Out {
    /// Takes standard output.
    pub fn new() -> Self {
        Out {
            to: BufWriter::with_capacity(1 << 16, stdout()),
            terminal: io::stdout().is_terminal(),
        }
    }

    /// Writes a name: its bytes, but without control characters on a terminal, which they could fool.
    ///
    /// # Errors
    /// As writing to standard output.
    pub fn name(&mut self, name: &[u8]) -> Result<()> {
        if self.terminal && name.iter().any(|b| b.is_ascii_control()) {
            let safe: Vec<u8> = name
                .iter()
                .map(|&b| if b.is_ascii_control() { b'?' } else { b })
                .collect();
            self.to.write_all(&safe)?;
        } else {
            self.to.write_all(name)?;
        }
        Ok(())
    }

    /// Writes a value as JSON, readably.
    ///
    /// # Errors
    /// As writing to standard output.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        serde_json::to_writer_pretty(&mut self.to, value).map_err(io::Error::from)?;
        self.to.write_all(b"\n")?;
        Ok(())
    }

    /// Writes a value as JSON in one line.
    ///
    /// # Errors
    /// As writing to standard output.
    pub fn json_line(&mut self, value: &impl Serialize) -> Result<()> {
        serde_json::to_writer(&mut self.to, value).map_err(io::Error::from)?;
        self.to.write_all(b"\n")?;
        Ok(())
    }

    /// Writes out what is buffered. A command that does not do it loses the error.
    ///
    /// # Errors
    /// As writing to standard output.
    pub fn finish(mut self) -> Result<()> {
        self.to.flush()?;
        Ok(())
    }
}

impl Write for Out {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.to.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Columns of text, aligned: numbers to the right.
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; those that begin with `>` are of columns aligned to the right.
    pub fn new(headings: &[&str]) -> Self {
        Table {
            right: headings.iter().map(|h| h.starts_with('>')).collect(),
            rows: vec![
                headings
                    .iter()
                    .map(|h| h.trim_start_matches('>').to_owned())
                    .collect(),
            ],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints the table.
    ///
    /// # Errors
    /// As writing to standard output.
    pub fn print(&self, out: &mut Out) -> Result<()> {
        Self::print_rows(&self.rows, &self.right, out)
    }

    /// Prints the table without its headings.
    ///
    /// # Errors
    /// As writing to standard output.
    pub fn print_body(&self, out: &mut Out) -> Result<()> {
        Self::print_rows(self.rows.get(1..).unwrap_or_default(), &self.right, out)
    }

    fn print_rows(rows: &[Vec<String>], right: &[bool], out: &mut Out) -> Result<()> {
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..right.len()).map(width).collect();
        for row in rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                let width = widths.get(column).copied().unwrap_or(0);
                if right.get(column) == Some(&true) {
                    line.push_str(&format!("{cell:>width$}"));
                } else {
                    line.push_str(&format!("{cell:<width$}"));
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The letter `ls -l` begins with.
pub fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// `drwxr-xr-x`.
pub fn mode_string(kind: FileKind, perm: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(kind_letter(kind));
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (class, (bit, with, without)) in special.into_iter().enumerate() {
        let bits = perm >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (perm & bit != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Permission bits as octal digits.
pub fn octal(perm: u32) -> String {
    format!("{perm:04o}")
}

/// Major and minor number of a device in Linux's 64-bit coding.
pub fn device_numbers(rdev: u64) -> (u32, u32) {
    (rustix::fs::major(rdev), rustix::fs::minor(rdev))
}

/// A moment in UTC, split up.
struct Moment {
    year: i64,
    month: u32,
    day: u32,
    hour: i64,
    minute: i64,
    second: i64,
}

fn moment(secs: i64) -> Moment {
    let days = secs.div_euclid(86_400);
    let rest = secs.rem_euclid(86_400);
    // Years are counted from the first of March, so that the leap day is a year's last.
    let shifted = days + 719_468; // Days from 0000-03-01 to 1970-01-01.
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    // Centuries, four-year blocks and years; their last ones are a day longer.
    let century = (day_of_era / 36_524).min(3);
    let day_of_century = day_of_era - century * 36_524;
    let block = (day_of_century / 1_461).min(24);
    let day_of_block = day_of_century - block * 1_461;
    let year_of_block = (day_of_block / 365).min(3);
    let mut day = (day_of_block - year_of_block * 365) as u32;
    let mut year = era * 400 + century * 100 + block * 4 + year_of_block;
    const LENGTHS: [u32; 12] = [31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 29];
    let mut month = 0;
    while month < 11 && day >= LENGTHS[month] {
        day -= LENGTHS[month];
        month += 1;
    }
    let month = if month < 10 {
        month as u32 + 3
    } else {
        month as u32 - 9
    };
    if month <= 2 {
        year += 1;
    }
    Moment {
        year,
        month,
        day: day + 1,
        hour: rest / 3600,
        minute: rest / 60 % 60,
        second: rest % 60,
    }
}

/// `2026-11-22 00:45`, in UTC.
pub fn time_short(t: Timestamp) -> String {
    let m = moment(t.secs);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}",
        m.year, m.month, m.day, m.hour, m.minute
    )
}

/// `2026-11-22 00:45:34.123456789 +0000`, as stat(1) has it.
pub fn time_full(t: Timestamp) -> String {
    let m = moment(t.secs);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:09} +0000",
        m.year, m.month, m.day, m.hour, m.minute, m.second, t.nanos
    )
}

/// `2026-11-22T00:45:34.123456789Z`, for JSON.
pub fn time_json(t: Timestamp) -> String {
    let m = moment(t.secs);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z",
        m.year, m.month, m.day, m.hour, m.minute, m.second, t.nanos
    )
}

/// Bytes as text, with what is not UTF-8 replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exact bytes, where [`text`] would lose some.
pub fn base64_unless_text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).is_err().then(|| base64(bytes))
}

/// Bytes in base64, with padding.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD_PAD_INDIFFERENT.encode(bytes)
}

/// Bytes from base64, with or without padding; `None` when it is not that.
pub fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD_PAD_INDIFFERENT.decode(text).ok()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from pairs of hexadecimal digits; `None` when it is not that.
pub fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16);
    let (pairs, rest) = text.as_chunks();
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    pairs
        .iter()
        .map(byte)
        .collect::<Option<_>>()
        .filter(|_| rest.is_empty())
}

/// An inode as JSON has it everywhere.
#[derive(Serialize)]
pub struct AttrJson {
    ino: u64,
    kind: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    project: u32,
    size: u64,
    allocated: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<[u32; 2]>,
    accessed: String,
    modified: String,
    changed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    born: Option<String>,
    generation: u32,
    flags: Vec<&'static str>,
}

/// Flags as lsattr(1) knows them, in words.
pub fn flag_names(attr: &Attr) -> Vec<&'static str> {
    use blockwright_vfs::InodeFlags as F;
    [
        (F::SYNC, "sync"),
        (F::IMMUTABLE, "immutable"),
        (F::APPEND, "append"),
        (F::NODUMP, "nodump"),
        (F::NOATIME, "noatime"),
        (F::ENCRYPT, "encrypted"),
        (F::DIRSYNC, "dirsync"),
        (F::TOPDIR, "topdir"),
        (F::VERITY, "verity"),
        (F::PROJINHERIT, "project-inherit"),
        (F::CASEFOLD, "casefold"),
    ]
    .into_iter()
    .filter(|(flag, _)| attr.flags.contains(*flag))
    .map(|(_, name)| name)
    .collect()
}

impl From<&Attr> for AttrJson {
    fn from(attr: &Attr) -> Self {
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let (major, minor) = device_numbers(attr.rdev);
        AttrJson {
            ino: attr.ino.0,
            kind: attr.kind.name(),
            mode: octal(attr.perm),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            project: attr.project,
            size: attr.size,
            allocated: attr.blocks512.saturating_mul(512),
            device: is_device.then_some([major, minor]),
            accessed: time_json(attr.atime),
            modified: time_json(attr.mtime),
            changed: time_json(attr.ctime),
            born: attr.crtime.map(time_json),
            generation: attr.generation,
            flags: flag_names(attr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> String {
        time_json(Timestamp { secs, nanos: 5 })
    }

    #[test]
    fn times_across_leap_years_and_before_1970() {
        assert_eq!(at(0), "1970-01-01T00:00:00.000000005Z");
        assert_eq!(at(-1), "1969-12-31T23:59:59.000000005Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59:59.000000005Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000005Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.000000005Z");
        assert_eq!(at(-2_147_483_648), "1901-12-13T20:45:52.000000005Z");
        assert_eq!(at(15_032_385_535), "2446-05-10T22:38:55.000000005Z");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = moment(-86_400 * 200_000);
        for day in -199_999..200_000i64 {
            let m = moment(day * 86_400);
            let next = (m.year, m.month, m.day);
            let was = (before.year, before.month, before.day);
            let in_month = next == (was.0, was.1, was.2 + 1) && was.2 < 31;
            let month_end = next == (was.0, was.1 + 1, 1) && was.2 >= 28;
            let year_end = next == (was.0 + 1, 1, 1) && (was.1, was.2) == (12, 31);
            assert!(in_month || month_end || year_end, "{was:?} {next:?}");
            before = m;
        }
    }

    #[test]
    fn modes() {
        assert_eq!(mode_string(FileKind::Directory, 0o1755), "drwxr-xr-t");
        assert_eq!(mode_string(FileKind::Regular, 0o4640), "-rwSr-----");
        assert_eq!(mode_string(FileKind::Regular, 0o6755), "-rwsr-sr-x");
    }

    #[test]
    fn base64_round_trips() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(
                from_base64(coded.as_bytes()).as_deref(),
                Some(plain.as_bytes())
            );
        }
        assert_eq!(from_base64(b"Zg").as_deref(), Some(&b"f"[..]));
        assert_eq!(from_base64(b"a"), None);
        assert_eq!(from_base64(b"a_b!"), None);
    }
}
