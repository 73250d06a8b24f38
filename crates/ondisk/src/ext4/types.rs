//! Newtypes for the numbers of the format, well-known inode numbers, and file types.
//!
//! A physical block, a block within a file, an inode and a group are all "just numbers" on disk;
//! mixing two of them up is the classic way to destroy a volume, so each has its own type here.

use std::fmt;

use crate::numbers::number;

number!(
    /// A physical file system block, counted from the start of the device in file system blocks.
    BlockNo(u64), "blk#"
);
number!(
    /// A block within a file, counted from the start of the file in file system blocks.
    ///
    /// Extent-mapped files reach 2^32 − 1; the wider integer keeps sums from wrapping.
    FileBlock(u64), "fblk#"
);
number!(
    /// An inode number. Numbering starts at 1; 0 means "none".
    Ino(u32), "ino#"
);
number!(
    /// A block group, counted from 0.
    GroupNo(u32), "group#"
);

/// Where a node of an extent tree is stored; decides how many entries it may have and whether it has a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodePlace {
    /// In the inode.
    Inode,
    /// In a block of its own.
    Block(BlockNo),
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inode => f.write_str("extent root"),
            Self::Block(block) => write!(f, "extent block {block}"),
        }
    }
}

impl Ino {
    /// List of bad blocks.
    pub const BAD: Self = Self(1);
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// User quota file.
    pub const USR_QUOTA: Self = Self(3);
    /// Group quota file.
    pub const GRP_QUOTA: Self = Self(4);
    /// Boot loader (swapped in by an ioctl, never in a directory).
    pub const BOOT: Self = Self(5);
    /// Reserved for an undelete directory.
    pub const UNDEL: Self = Self(6);
    /// Holds the reserved group-descriptor blocks.
    pub const RESIZE: Self = Self(7);
    /// The internal journal.
    pub const JOURNAL: Self = Self(8);
    /// Snapshot exclude bitmap.
    pub const EXCLUDE: Self = Self(9);
    /// Replica.
    pub const REPLICA: Self = Self(10);
    /// First inode a revision-0 volume hands out, and the smallest legal `s_first_ino`.
    pub const FIRST_NON_RESERVED: Self = Self(11);

    /// The number unless it is 0, which means "none" on disk.
    #[must_use]
    pub const fn non_zero(self) -> Option<Self> {
        if self.0 == 0 { None } else { Some(self) }
    }
}

/// Most hard links to a file; a directory past it stores 1 when `dir_nlink` is set.
pub const LINK_MAX: u32 = 65_000;
/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;

/// Mask of the file type in a mode.
pub const S_IFMT: u16 = 0o170_000;
/// Mode type of a socket.
pub const S_IFSOCK: u16 = 0o140_000;
/// Mode type of a symbolic link.
pub const S_IFLNK: u16 = 0o120_000;
/// Mode type of a regular file.
pub const S_IFREG: u16 = 0o100_000;
/// Mode type of a block device.
pub const S_IFBLK: u16 = 0o060_000;
/// Mode type of a directory.
pub const S_IFDIR: u16 = 0o040_000;
/// Mode type of a character device.
pub const S_IFCHR: u16 = 0o020_000;
/// Mode type of a fifo.
pub const S_IFIFO: u16 = 0o010_000;

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Fifo (named pipe).
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Symbolic link.
    Symlink,
}

impl FileKind {
    /// All kinds, in the order of their directory-entry codes.
    pub const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::CharDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
    ];

    /// From the type bits of a mode; `None` for a mode of no type (a free inode) or a bad one.
    #[must_use]
    pub const fn from_mode(mode: u16) -> Option<Self> {
        match mode & S_IFMT {
            S_IFREG => Some(Self::Regular),
            S_IFDIR => Some(Self::Directory),
            S_IFCHR => Some(Self::CharDevice),
            S_IFBLK => Some(Self::BlockDevice),
            S_IFIFO => Some(Self::Fifo),
            S_IFSOCK => Some(Self::Socket),
            S_IFLNK => Some(Self::Symlink),
            _ => None,
        }
    }

    /// The type bits of a mode.
    #[must_use]
    pub const fn mode_bits(self) -> u16 {
        match self {
            Self::Regular => S_IFREG,
            Self::Directory => S_IFDIR,
            Self::CharDevice => S_IFCHR,
            Self::BlockDevice => S_IFBLK,
            Self::Fifo => S_IFIFO,
            Self::Socket => S_IFSOCK,
            Self::Symlink => S_IFLNK,
        }
    }

    /// From a directory entry's file-type code; `None` for 0 (unknown) and undefined codes.
    #[must_use]
    pub const fn from_dirent(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Regular),
            2 => Some(Self::Directory),
            3 => Some(Self::CharDevice),
            4 => Some(Self::BlockDevice),
            5 => Some(Self::Fifo),
            6 => Some(Self::Socket),
            7 => Some(Self::Symlink),
            _ => None,
        }
    }

    /// The directory entry's file-type code (used when the volume has `filetype`).
    #[must_use]
    pub const fn dirent_code(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Symlink => "symbolic link",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_refuse_to_wrap() {
        assert_eq!(BlockNo(5).checked_add(2), Some(BlockNo(7)));
        assert_eq!(BlockNo(u64::MAX).checked_add(1), None);
        assert_eq!(Ino(0).checked_sub(1), None);
        assert_eq!(GroupNo(7).checked_distance(GroupNo(9)), None);
        assert_eq!(format!("{:?} {}", Ino(12), Ino(12)), "ino#12 12");
        assert_eq!(Ino(0).non_zero(), None);
    }

    #[test]
    fn kinds_round_trip() {
        for kind in FileKind::ALL {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o644), Some(kind));
            assert_eq!(FileKind::from_dirent(kind.dirent_code()), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), None);
        assert_eq!(FileKind::from_mode(S_IFMT), None);
        assert_eq!(FileKind::from_dirent(0), None);
        assert_eq!(FileKind::from_dirent(8), None);
    }
}
