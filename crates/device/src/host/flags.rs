//! Properties of a host's file that ioctls report: inode flags and the project; whether a block special can be written to. And the ioctl that trims
//! a mount.
//!
//! The former are no block device's business, but need `unsafe`, which the rooms above do not have.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use std::io;
use std::ops::Range;

/// Inode flags and project of a file of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFlags {
    /// As `FS_IOC_GETFLAGS` has them (`FS_IMMUTABLE_FL`, …).
    pub flags: u32,
    /// As `FS_IOC_FSGETXATTR` has it; 0 where the file system knows none.
    pub project: u32,
}

/// `struct fsxattr`.
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

const _: () = assert!(size_of::<FsXattr>() == 28);

const FS_IOC_FSGETXATTR: Opcode = opcode::read::<FsXattr>(b'X', 31);
const BLKROGET: Opcode = opcode::none(0x12, 94);

/// Reads them. `None` when the file system of the file has no such thing.
///
/// # Errors
/// Those of the system calls.
pub fn file_flags(file: impl AsFd) -> io::Result<Option<FileFlags>> {
    let none = |e: Errno| {
        matches!(
            e,
            Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS
        )
    };
    let flags = match rustix::fs::ioctl_getflags(&file) {
        Ok(flags) => flags.bits(),
        Err(e) if none(e) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    // SAFETY: the opcode is that of FS_IOC_FSGETXATTR, by which the kernel writes one `struct fsxattr`, whose layout
    // `FsXattr` has; every bit pattern is one.
    let found = unsafe {
        let get = Getter::<FS_IOC_FSGETXATTR, FsXattr>::new();
        ioctl(&file, get)
    };
    let project = match found {
        Ok(x) => x.projid,
        Err(e) if none(e) => 0,
        Err(e) => return Err(e.into()),
    };
    Ok(Some(FileFlags { flags, project }))
}

/// `struct fstrim_range`, all of it 64-bit: start, length and least length in bytes; the kernel stores the number of bytes trimmed as the length.
const FITRIM: Opcode = opcode::read_write::<[u64; 3]>(b'X', 121);

/// Asks the file system that a directory is in to discard what is free in a range of its bytes, as `fstrim` does. How many bytes it trimmed. The system call
/// returns when all of the range is trimmed.
///
/// # Errors
/// Those of the system calls: `EOPNOTSUPP` for file systems and devices that cannot, `EPERM` without the right, `EINVAL` for a range behind the end.
pub fn trim_mounted(directory: impl AsFd, range: Range<u64>) -> io::Result<u64> {
    let mut range = [range.start, range.end.saturating_sub(range.start), 0];
    // SAFETY: the opcode is that of FITRIM, by which the kernel reads and writes three u64, whatever their values.
    unsafe {
        ioctl(
            directory,
            rustix::ioctl::Updater::<FITRIM, [u64; 3]>::new(&mut range),
        )?;
    }
    Ok(range[1])
}

/// Whether a block special refuses writes.
pub(super) fn is_set_read_only(device: impl AsFd) -> io::Result<bool> {
    // SAFETY: the opcode is that of BLKROGET, by which the kernel writes one `int`.
    let found = unsafe { ioctl(device, Getter::<BLKROGET, std::ffi::c_int>::new()) };
    Ok(found? != 0)
}
