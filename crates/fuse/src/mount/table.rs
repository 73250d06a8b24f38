//! The kernel's table of mounts: `/proc/self/mountinfo`, and that of other processes.
//!
//! Reading it asks no file system anything, so it works where a server is gone. Lines are in the order of mounting: of several mounts at one
//! point, the last one is on top.
//!
//! References: proc(5).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The device's minor number; of a FUSE file system, the number of the connection.
    pub minor: u32,
    /// The mount point.
    pub point: PathBuf,
    /// The type, such as `fuse.blockwright`.
    pub kind: String,
    /// What is mounted.
    pub source: PathBuf,
    /// This mount refuses changes.
    pub read_only: bool,
}

impl MountEntry {
    /// Number, parent, major:minor, root, mount point, options, optional fields, a dash, type, source, options.
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let (_, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
        let path = |field| Some(PathBuf::from(OsString::from_vec(unescape(field))));
        Some(MountEntry {
            minor: minor.parse().ok()?,
            point: fields.get(4).copied().and_then(path)?,
            kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
            source: fields.get(dash + 2).copied().and_then(path)?,
            read_only: fields.get(5)?.split(|&b| b == b',').any(|o| o == b"ro"),
        })
    }
}

/// All lines of the table with this text.
pub(super) fn entries(text: &[u8]) -> impl DoubleEndedIterator<Item = MountEntry> + '_ {
    text.split(|&b| b == b'\n').filter_map(MountEntry::parse)
}

/// What this process sees mounted at a point, which must be absolute and without symbolic links.
///
/// # Errors
/// When the table cannot be read.
pub fn mounted_at(point: &Path) -> std::io::Result<Option<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(entries(&table).rfind(|entry| entry.point == point))
}

/// Undoes the kernel's `\ooo` for blanks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        let [
            a @ b'0'..=b'3',
            b @ b'0'..=b'7',
            c @ b'0'..=b'7',
            after @ ..,
        ] = tail
        else {
            out.push(first);
            continue;
        };
        if first == b'\\' {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            out.push(first);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let table = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 0:40 / /mnt/with\\040space rw,nosuid - fuse.blockwright /d/my\\040disk.img rw,user_id=0\n\
            3 1 0:41 / /mnt/b ro shared:5 - fuse.blockwright /b.img rw\nbroken\n\
            4 1 0:57 / /mnt/\\134040 rw - fuse.x x rw\n";
        let found: Vec<MountEntry> = entries(table).collect();
        assert_eq!(found.len(), 4);
        assert_eq!((found[0].minor, found[0].kind.as_str()), (1, "ext4"));
        let space = MountEntry {
            minor: 40,
            point: "/mnt/with space".into(),
            kind: "fuse.blockwright".into(),
            source: "/d/my disk.img".into(),
            read_only: false,
        };
        assert_eq!(found[1], space);
        assert!(found[2].read_only);
        assert_eq!(found[3].point, Path::new("/mnt/\\040"));
    }

    #[test]
    fn the_root_is_mounted() {
        let root = mounted_at(Path::new("/")).expect("the table");
        assert!(root.is_some_and(|entry| entry.point == Path::new("/")));
        let none = mounted_at(Path::new("/nothing/is/here")).expect("the table");
        assert_eq!(none, None);
    }
}
