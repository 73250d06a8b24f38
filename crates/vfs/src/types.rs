//! Plain values that every layer speaks: inode numbers, kinds, attributes, times.
//!
//! They are those of stat(2), not of a format: engines convert at their border.

use blockwright_device::sim::turns;
use std::fmt;

/// An inode number, as users see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ino(pub u64);

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

crate::named! {
    /// The type of an inode's file. Never changes during an inode's life. Its name is stable.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum FileKind {
        /// Regular file.
        Regular => "file",
        /// Directory.
        Directory => "directory",
        /// Symbolic link.
        Symlink => "symlink",
        /// Character device.
        CharDevice => "character device",
        /// Block device.
        BlockDevice => "block device",
        /// Named pipe.
        Fifo => "fifo",
        /// Unix-domain socket.
        Socket => "socket",
    }
}

impl FileKind {
    /// The `S_IFMT` bits of `st_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::Directory => 0o040_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Regular => 0o100_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Socket => 0o140_000,
        }
    }

    /// The kind that `st_mode` names, if it names one.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => FileKind::Fifo,
            0o020_000 => FileKind::CharDevice,
            0o040_000 => FileKind::Directory,
            0o060_000 => FileKind::BlockDevice,
            0o100_000 => FileKind::Regular,
            0o120_000 => FileKind::Symlink,
            0o140_000 => FileKind::Socket,
            _ => return None,
        })
    }
}

/// A point in time: seconds since 1970 (negative before) and nanoseconds (0 ..= 999 999 999).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds.
    pub secs: i64,
    /// Nanoseconds on top of them.
    pub nanos: u32,
}

/// Where the time of threads that take turns begins, in seconds since the epoch.
const VIRTUAL_BEGIN: i64 = 2_000_000_000;

impl Timestamp {
    /// The host's clock as of its last tick, 1 to 10 ms old at most: what kernel file systems give to inodes. The same
    /// clock matters through FUSE: a file that is written within the tick that made it needs no other times then. The
    /// kernel keeps the times while the file is open, and has none to send.
    #[must_use]
    pub fn now() -> Self {
        if let Some(ms) = turns::milliseconds() {
            return Timestamp {
                secs: VIRTUAL_BEGIN + (ms / 1000) as i64,
                nanos: (ms % 1000) as u32 * 1_000_000,
            };
        }
        let (secs, nanos) = blockwright_device::time_of_last_tick();
        Timestamp { secs, nanos }
    }
}

/// The attributes of an inode: what `stat` shows, and little more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// NFS-style generation: differs between two files that had the same number.
    pub generation: u32,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky (`0o7777`).
    pub perm: u32,
    /// Number of names (for a directory as `stat` shows it: 1 means "more than can be counted").
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project (0 where the format has none).
    pub project: u32,
    /// Device number of a device file, in Linux's 64-bit user-space coding (`makedev`).
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes, reserved (delayed) blocks included.
    pub blocks512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth, where the format keeps it.
    pub crtime: Option<Timestamp>,
    /// `FS_IOC_GETFLAGS` flags (immutable 0x10, append-only 0x20, …).
    pub flags: InodeFlags,
}

bitflags::bitflags! {
    /// Inode flags with a meaning to users, with the values of `FS_IOC_GETFLAGS`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct InodeFlags: u32 {
        /// Synchronous updates.
        const SYNC = 0x8;
        /// Immutable: no change, no link, no removal.
        const IMMUTABLE = 0x10;
        /// Only appending.
        const APPEND = 0x20;
        /// Not dumped.
        const NODUMP = 0x40;
        /// No access-time updates.
        const NOATIME = 0x80;
        /// Encrypted; contents and names cannot be had without the key.
        const ENCRYPT = 0x800;
        /// Synchronous directory updates.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy (spreads its subdirectories).
        const TOPDIR = 0x2_0000;
        /// Protected by fs-verity: contents cannot change.
        const VERITY = 0x10_0000;
        /// New files inherit the project.
        const PROJINHERIT = 0x2000_0000;
        /// Names are looked up case-insensitively.
        const CASEFOLD = 0x4000_0000;
    }
}

/// A change of attributes. `None` leaves a field as it is. Values are final: the caller that builds one
/// has done the permission checks and the set-id stripping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrChange {
    /// New permission bits.
    pub perm: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New project.
    pub project: Option<u32>,
    /// New access time.
    pub atime: Option<Timestamp>,
    /// New modification time.
    pub mtime: Option<Timestamp>,
    /// New change time.
    pub ctime: Option<Timestamp>,
    /// New birth time (only the image builder sets it).
    pub crtime: Option<Timestamp>,
    /// New user-visible flags.
    pub flags: Option<InodeFlags>,
}

impl AttrChange {
    /// Makes the change; a birth time where there is one, and of the flags those in `changeable`.
    pub fn apply(&self, a: &mut Attr, changeable: InodeFlags) {
        a.perm = self.perm.unwrap_or(a.perm);
        a.uid = self.uid.unwrap_or(a.uid);
        a.gid = self.gid.unwrap_or(a.gid);
        a.project = self.project.unwrap_or(a.project);
        a.atime = self.atime.unwrap_or(a.atime);
        a.mtime = self.mtime.unwrap_or(a.mtime);
        a.ctime = self.ctime.unwrap_or(a.ctime);
        a.crtime = a.crtime.and(self.crtime.or(a.crtime));
        if let Some(flags) = self.flags {
            let bits = (a.flags.bits() & !changeable.bits()) | (flags.bits() & changeable.bits());
            a.flags = InodeFlags::from_bits_retain(bits);
        }
    }

    /// Whether it changes access, modification or change time, and nothing else.
    #[must_use]
    pub fn is_times_only(&self) -> bool {
        *self
            == AttrChange {
                atime: self.atime,
                mtime: self.mtime,
                ctime: self.ctime,
                ..AttrChange::default()
            }
    }
}

/// Properties of a new inode.
#[derive(Clone, Debug)]
pub struct NewInode {
    /// Kind.
    pub kind: FileKind,
    /// Final permission bits (umask and set-gid inheritance applied).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number for device files, else 0.
    pub rdev: u64,
    /// Target of a symlink, else empty.
    pub symlink: Vec<u8>,
    /// Times of the new inode, and of the parent's change.
    pub now: Timestamp,
    /// Extended attributes that are part of the creation (default ACLs), full names.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl NewInode {
    /// A whiteout: it hides a name of a lower layer, and belongs to `owner`'s owner.
    #[must_use]
    pub fn whiteout(owner: &Attr, now: Timestamp) -> Self {
        NewInode {
            kind: FileKind::CharDevice,
            perm: 0,
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            symlink: Vec::new(),
            now,
            xattrs: Vec::new(),
        }
    }
}

/// One directory entry as `readdir` sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode it names.
    pub ino: Ino,
    /// Kind, when the directory records it.
    pub kind: Option<FileKind>,
    /// Name without terminator.
    pub name: &'a [u8],
    /// Give this to `readdir` to go on after this entry. Never 0; stable while entries come and go.
    pub cookie: u64,
}

/// How full a volume is (`statfs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Block size in bytes; the unit of the block counts.
    pub block_bytes: u32,
    /// Blocks for data, without the format's fixed overhead.
    pub blocks: u64,
    /// Free blocks, delayed allocations taken off.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
    /// A number that identifies the volume (folded from its UUID).
    pub fsid: u64,
}

/// The types a `rename` can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replaces what the new name named.
    #[default]
    Replace,
    /// Fails when the new name exists (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchanges the two names (`RENAME_EXCHANGE`).
    Exchange,
    /// Leaves a whiteout (character device 0:0) under the old name (`RENAME_WHITEOUT`).
    Whiteout,
}

/// How to set an extended attribute that may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Any,
    /// Fail when it exists.
    Create,
    /// Fail when it does not.
    Replace,
}
