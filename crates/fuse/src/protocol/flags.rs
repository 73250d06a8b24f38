//! Flag words of the protocol.
//!
//! Bits that are not named here are kept: a newer kernel may send them, and what is not wanted is masked where it is answered.

use bitflags::bitflags;

bitflags! {
    /// The features that kernel and server agree on at INIT. The upper half travels in a second word (`flags2`), which is valid
    /// only with [`InitFlags::INIT_EXT`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct InitFlags: u64 {
        /// Several READs of one file at a time.
        const ASYNC_READ = 1;
        /// POSIX locks are sent to the server.
        const POSIX_LOCKS = 1 << 1;
        /// `O_TRUNC` is sent with OPEN instead of as a SETATTR before it.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of `.` and `..` works, also for node numbers the kernel has forgotten.
        const EXPORT_SUPPORT = 1 << 4;
        /// WRITEs larger than a page.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask (it must not apply where a default ACL does).
        const DONT_MASK = 1 << 6;
        /// BSD locks are sent to the server.
        const FLOCK_LOCKS = 1 << 10;
        /// `ioctl` on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Drop cached data when size or mtime changed behind the kernel's back.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS exists.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O is submitted asynchronously.
        const ASYNC_DIO = 1 << 15;
        /// The kernel's page cache keeps dirty pages.
        const WRITEBACK_CACHE = 1 << 16;
        /// `ENOSYS` to OPEN means "no handles needed".
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Several lookups and readdirs in one directory at a time.
        const PARALLEL_DIROPS = 1 << 18;
        /// The server strips set-id bits, first version.
        const HANDLE_KILLPRIV = 1 << 19;
        /// POSIX ACLs are kept by the server and enforced by the kernel.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort gives `ECONNABORTED`.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` in the reply is valid.
        const MAX_PAGES = 1 << 22;
        /// READLINK's answers are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// `ENOSYS` to OPENDIR means "no handles needed".
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data is dropped only on request.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server strips set-id bits when told to by a flag of the request.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has its longer arguments.
        const SETXATTR_EXT = 1 << 29;
        /// INIT has its longer arguments and `flags2`.
        const INIT_EXT = 1 << 30;
        /// New inodes come with a security context.
        const SECURITY_CTX = 1 << 32;
        /// New inodes come with the caller's matching supplementary group.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Expiry-only invalidation exists.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files opened with `DIRECT_IO`.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// I/O can be passed to a backing file.
        const PASSTHROUGH = 1 << 37;
        /// Lookups of `.` by number fail.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Requests can be sent again after the server restarted.
        const HAS_RESEND = 1 << 39;
        /// Idmapped mounts.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests over io_uring.
        const OVER_IO_URING = 1 << 41;
        /// Requests time out.
        const REQUEST_TIMEOUT = 1 << 42;
    }
}

impl InitFlags {
    /// From the two words of the wire.
    #[must_use]
    pub const fn from_words(low: u32, high: u32) -> Self {
        let low = low as u64;
        // Without INIT_EXT the second word is not sent, and whatever is read there means nothing.
        let high = if low & InitFlags::INIT_EXT.bits() == 0 {
            0
        } else {
            high as u64
        };
        InitFlags::from_bits_retain(low | high << 32)
    }

    /// The two words of the wire.
    #[must_use]
    pub const fn words(self) -> (u32, u32) {
        (self.bits() as u32, (self.bits() >> 32) as u32)
    }
}

bitflags! {
    /// How an opened file is to be treated (`fuse_open_out.open_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OpenReply: u32 {
        /// Past the page cache.
        const DIRECT_IO = 1;
        /// Cached pages stay valid.
        const KEEP_CACHE = 1 << 1;
        /// No offsets.
        const NONSEEKABLE = 1 << 2;
        /// Directory contents may be cached.
        const CACHE_DIR = 1 << 3;
        /// A stream.
        const STREAM = 1 << 4;
        /// No FLUSH on close.
        const NOFLUSH = 1 << 5;
        /// Direct writes of one inode may run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// Which fields of SETATTR count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SetAttrValid: u32 {
        /// Permission bits.
        const MODE = 1;
        /// Owner.
        const UID = 1 << 1;
        /// Group.
        const GID = 1 << 2;
        /// Size.
        const SIZE = 1 << 3;
        /// Access time.
        const ATIME = 1 << 4;
        /// Modification time.
        const MTIME = 1 << 5;
        /// The handle.
        const FH = 1 << 6;
        /// The access time is now.
        const ATIME_NOW = 1 << 7;
        /// The modification time is now.
        const MTIME_NOW = 1 << 8;
        /// The lock owner.
        const LOCKOWNER = 1 << 9;
        /// Change time (kept by the kernel with the writeback cache).
        const CTIME = 1 << 10;
        /// Strip set-id bits.
        const KILL_SUIDGID = 1 << 11;
    }

    /// Flags of READ.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct ReadFlags: u32 {
        /// The lock owner is valid. The kernel sets it for READs past its cache only.
        const LOCKOWNER = 1 << 1;
    }

    /// Flags of WRITE.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct WriteFlags: u32 {
        /// Writeback of cached pages; the handle is any writable one.
        const CACHE = 1;
        /// The lock owner counts. So it is with WRITEs past the kernel's cache, and with no other.
        const LOCKOWNER = 1 << 1;
        /// Strip set-id bits.
        const KILL_SUIDGID = 1 << 2;
    }

    /// `open_flags` of OPEN and CREATE requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OpenRequest: u32 {
        /// Strip set-id bits on truncation.
        const KILL_SUIDGID = 1;
    }

    /// `setxattr_flags` of SETXATTR.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SetXattrFlags: u32 {
        /// Clear the set-gid bit along with setting the access ACL.
        const ACL_KILL_SGID = 1;
    }
}

/// `GETATTR`: the handle counts.
pub const GETATTR_FH: u32 = 1;
/// `FSYNC`: data only.
pub const FSYNC_FDATASYNC: u32 = 1;
/// Type of the extension that carries supplementary groups.
pub const EXT_GROUPS: u32 = 32;
/// Notification: drop cached data of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;

#[cfg(test)]
mod tests {
    use super::InitFlags;

    #[test]
    fn the_second_word_counts_only_with_init_ext() {
        let high = (InitFlags::OVER_IO_URING.bits() >> 32) as u32;
        assert_eq!(InitFlags::from_words(1, high), InitFlags::ASYNC_READ);
        let both = InitFlags::from_words(1 | 1 << 30, high);
        assert!(both.contains(InitFlags::OVER_IO_URING | InitFlags::ASYNC_READ));
        assert_eq!(both.words(), (1 | 1 << 30, high));
    }
}
