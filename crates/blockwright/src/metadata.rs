//! What `stat` shows, and the times to set.

use crate::setters::setters;
use blockwright_vfs::{Attr, FileKind, InodeFlags, SetTime, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What kind of file something is.
pub type FileType = FileKind;

/// Methods that show an attribute: documentation, then `name: Type = |attributes| value;`.
macro_rules! getters {
    ($($(#[$meta:meta])* $name:ident: $type:ty = $get:expr;)*) => {
        $($(#[$meta])*
        #[must_use]
        pub fn $name(&self) -> $type {
            let get: fn(&Attr) -> $type = $get;
            get(&self.0)
        })*
    };
}

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    getters! {
        /// Kind.
        file_type: FileType = |a| a.kind;
        /// Whether it is a directory.
        is_dir: bool = |a| a.kind == FileKind::Directory;
        /// Whether it is a regular file.
        is_file: bool = |a| a.kind == FileKind::Regular;
        /// Whether it is a symbolic link.
        is_symlink: bool = |a| a.kind == FileKind::Symlink;
        /// Size in bytes.
        #[allow(clippy::len_without_is_empty)] // as std's
        len: u64 = |a| a.size;
        /// Kind and permission bits, as `st_mode` has them.
        mode: u32 = |a| a.kind.mode_bits() | a.perm;
        /// Permission bits with set-id and sticky (`0o7777`).
        permissions: u32 = |a| a.perm;
        /// Inode number.
        ino: u64 = |a| a.ino.0;
        /// Number of names.
        nlink: u32 = |a| a.nlink;
        /// Owner.
        uid: u32 = |a| a.uid;
        /// Group.
        gid: u32 = |a| a.gid;
        /// Device number of a device file, as `makedev` codes it.
        rdev: u64 = |a| a.rdev;
        /// Space taken, in units of 512 bytes.
        blocks: u64 = |a| a.blocks512;
        /// Last access.
        accessed: SystemTime = |a| to_system(a.atime);
        /// Last change of the contents.
        modified: SystemTime = |a| to_system(a.mtime);
        /// Last change of the inode.
        changed: SystemTime = |a| to_system(a.ctime);
        /// Birth, where the inode has room for it.
        created: Option<SystemTime> = |a| a.crtime.map(to_system);
        /// User-visible flags (immutable, append-only, …).
        flags: InodeFlags = |a| a.flags;
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
    const SECOND: i128 = 1_000_000_000;
    let nanos = match t.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos().cast_signed(),
        Err(before) => -before.duration().as_nanos().cast_signed(),
    };
    Timestamp {
        // Nanoseconds count upwards from the second before.
        secs: i64::try_from(nanos.div_euclid(SECOND)).unwrap_or(i64::MAX),
        nanos: nanos.rem_euclid(SECOND) as u32,
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

    setters! {
        /// Sets the time of the last access.
        accessed(t: SystemTime) { atime = Some(SetTime::At(from_system(t))); }
        /// Sets the time of the last change of the contents.
        modified(t: SystemTime) { mtime = Some(SetTime::At(from_system(t))); }
        /// As [`Times::accessed`], to the nanosecond of the volume's own representation.
        accessed_at(t: Timestamp) { atime = Some(SetTime::At(t)); }
        /// As [`Times::modified`], to the nanosecond of the volume's own representation.
        modified_at(t: Timestamp) { mtime = Some(SetTime::At(t)); }
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
