//! What `stat` shows, and the times to set.

use blockwright_vfs::{Attr, FileKind, InodeFlags, SetTime, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What kind of file something is.
pub type FileType = FileKind;

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    /// Kind.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.0.kind
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::Regular
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileKind::Symlink
    }

    /// Size in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // as std's
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Kind and permission bits, as `st_mode` has them.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.0.kind.mode_bits() | self.0.perm
    }

    /// Permission bits with set-id and sticky (`0o7777`).
    #[must_use]
    pub fn permissions(&self) -> u32 {
        self.0.perm
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino.0
    }

    /// Number of names.
    #[must_use]
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Device number of a device file, as `makedev` codes it.
    #[must_use]
    pub fn rdev(&self) -> u64 {
        self.0.rdev
    }

    /// Space taken, in units of 512 bytes.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.blocks512
    }

    /// Last access.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        to_system(self.0.atime)
    }

    /// Last change of the contents.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        to_system(self.0.mtime)
    }

    /// Last change of the inode.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        to_system(self.0.ctime)
    }

    /// Birth, where the inode has room for it.
    #[must_use]
    pub fn created(&self) -> Option<SystemTime> {
        self.0.crtime.map(to_system)
    }

    /// User-visible flags (immutable, append-only, …).
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        self.0.flags
    }

    /// Everything, as the layers below have it.
    #[must_use]
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

fn to_system(t: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(t.nanos));
    let whole = Duration::from_secs(t.secs.unsigned_abs());
    let base = if t.secs < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|b| b.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

fn from_system(t: SystemTime) -> Timestamp {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Timestamp {
            secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            nanos: d.subsec_nanos(),
        },
        Err(before) => {
            // Nanoseconds count upwards from the second before.
            let d = before.duration();
            let secs = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
            match d.subsec_nanos() {
                0 => Timestamp {
                    secs: -secs,
                    nanos: 0,
                },
                n => Timestamp {
                    secs: -secs - 1,
                    nanos: 1_000_000_000 - n,
                },
            }
        }
    }
}

/// Times to set; what is not given stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
}

impl Times {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Times::default()
    }

    /// Both at this moment.
    #[must_use]
    pub fn now() -> Self {
        Times {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::Now),
        }
    }

    /// Sets the time of the last access.
    #[must_use]
    pub fn accessed(mut self, t: SystemTime) -> Self {
        self.atime = Some(SetTime::At(from_system(t)));
        self
    }

    /// Sets the time of the last change of the contents.
    #[must_use]
    pub fn modified(mut self, t: SystemTime) -> Self {
        self.mtime = Some(SetTime::At(from_system(t)));
        self
    }

    /// As [`Times::accessed`], to the nanosecond of the volume's own representation.
    #[must_use]
    pub fn accessed_at(mut self, t: Timestamp) -> Self {
        self.atime = Some(SetTime::At(t));
        self
    }

    /// As [`Times::modified`], to the nanosecond of the volume's own representation.
    #[must_use]
    pub fn modified_at(mut self, t: Timestamp) -> Self {
        self.mtime = Some(SetTime::At(t));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_ways() {
        for t in [
            Timestamp { secs: 0, nanos: 0 },
            Timestamp {
                secs: 5_000_000_000,
                nanos: 123_456_789,
            },
            Timestamp { secs: -2, nanos: 0 },
            Timestamp {
                secs: -2,
                nanos: 999_999_999,
            },
        ] {
            assert_eq!(from_system(to_system(t)), t);
        }
    }
}
