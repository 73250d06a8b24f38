//! Replies and notifications, server → kernel.
//!
//! Structures have the kernel's names, order and padding.

use super::{WireAttr, wire};

wire! {
    /// In front of every reply. `error` is 0 or a negative errno; for notifications it is the code, with
    /// `unique` 0.
    pub struct OutHeader: 16 {
        pub len: u32,
        pub error: i32,
        pub unique: u64,
    }

    /// A name's inode. `nodeid` 0: there is no such name, and that may be cached.
    pub struct EntryOut: 128 {
        pub nodeid: u64,
        pub generation: u64,
        pub entry_valid: u64,
        pub attr_valid: u64,
        pub entry_valid_nsec: u32,
        pub attr_valid_nsec: u32,
        pub attr: WireAttr,
    }

    /// Attributes and for how long they hold.
    pub struct AttrOut: 104 {
        pub attr_valid: u64,
        pub attr_valid_nsec: u32,
        pub dummy: u32,
        pub attr: WireAttr,
    }

    /// An opened file.
    pub struct OpenOut: 16 {
        pub fh: u64,
        pub open_flags: u32,
        pub backing_id: i32,
    }

    /// Number of bytes written (WRITE, COPY_FILE_RANGE).
    pub struct WriteOut: 8 {
        pub size: u32,
        pub padding: u32,
    }

    /// Number of bytes copied (COPY_FILE_RANGE_64).
    pub struct CopyFileRangeOut: 8 {
        pub bytes_copied: u64,
    }

    /// `statfs`.
    pub struct StatFsOut: 80 {
        pub blocks: u64,
        pub bfree: u64,
        pub bavail: u64,
        pub files: u64,
        pub ffree: u64,
        pub bsize: u32,
        pub namelen: u32,
        pub frsize: u32,
        pub padding: u32,
        pub spare: [u32; 6],
    }

    /// Size in bytes of an attribute value or of a list of names.
    pub struct GetXattrOut: 8 {
        pub size: u32,
        pub padding: u32,
    }

    /// INIT's answer.
    pub struct InitOut: 64 {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
        pub max_background: u16,
        pub congestion_threshold: u16,
        pub max_write: u32,
        pub time_gran: u32,
        pub max_pages: u16,
        pub map_alignment: u16,
        pub flags2: u32,
        pub max_stack_depth: u32,
        pub request_timeout: u16,
        pub unused: [u16; 11],
    }

    /// An ioctl's result; the output bytes follow.
    pub struct IoctlOut: 16 {
        pub result: i32,
        pub flags: u32,
        pub in_iovs: u32,
        pub out_iovs: u32,
    }

    /// LSEEK's answer.
    pub struct LseekOut: 8 {
        pub offset: u64,
    }

    /// In front of each name of READDIR; the name follows, padded to 8 bytes.
    pub struct Dirent: 24 {
        pub ino: u64,
        pub off: u64,
        pub namelen: u32,
        pub kind: u32,
    }

    /// In front of each name of READDIRPLUS. `entry.nodeid` 0: no inode is handed over.
    pub struct DirentPlus: 152 {
        pub entry: EntryOut,
        pub dirent: Dirent,
    }

    /// A time of STATX.
    pub struct StatxTime: 16 {
        pub secs: i64,
        pub nanos: u32,
        pub reserved: i32,
    }

    /// STATX's attributes, like `struct statx`.
    pub struct StatxAttr: 256 {
        pub mask: u32,
        pub blksize: u32,
        pub attributes: u64,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub mode: u16,
        pub spare0: u16,
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub attributes_mask: u64,
        pub atime: StatxTime,
        pub btime: StatxTime,
        pub ctime: StatxTime,
        pub mtime: StatxTime,
        pub rdev_major: u32,
        pub rdev_minor: u32,
        pub dev_major: u32,
        pub dev_minor: u32,
        pub spare2: [u64; 14],
    }

    /// STATX's answer.
    pub struct StatxOut: 288 {
        pub attr_valid: u64,
        pub attr_valid_nsec: u32,
        pub flags: u32,
        pub spare: [u64; 2],
        pub stat: StatxAttr,
    }

    /// Notification: drop cached pages of a range (`len` ≤ 0: to the end).
    pub struct NotifyInvalInode: 24 {
        pub ino: u64,
        pub off: i64,
        pub len: i64,
    }
}
