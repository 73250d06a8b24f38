//! The ioctls a file system answers.
//!
//! FUSE passes only ioctls whose arguments their number describes, so `FS_IOC_FIEMAP` (a header and
//! then as many extents as there is room for) and `FIBMAP` cannot come here; the kernel answers those itself.
//! `lsattr` and `chattr` come as private ioctls of the kernel, with the caller's rights checked.

use super::Dispatcher;
use super::answer::{Answer, Outcome};
use crate::protocol::control;
use crate::protocol::reply::IoctlOut;
use crate::protocol::request::{IoctlIn, Request};
use blockwright_vfs::engine::NewSize;
use blockwright_vfs::{InodeFlags, InodeRef, SetAttr};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of an ioctl: direction (1 write, 2 read), size of the argument, type, number.
const fn ioc(direction: u32, kind: u8, number: u8, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (kind as u32) << 8 | number as u32
}

// The numbers say `long`, the argument has always been an `int`.
const FS_IOC_GETFLAGS: u32 = ioc(2, b'f', 1, 8);
const FS_IOC_SETFLAGS: u32 = ioc(1, b'f', 2, 8);
const FS_IOC32_GETFLAGS: u32 = ioc(2, b'f', 1, 4);
const FS_IOC32_SETFLAGS: u32 = ioc(1, b'f', 2, 4);
const FS_IOC_GETVERSION: u32 = ioc(2, b'v', 1, 8);
const FS_IOC32_GETVERSION: u32 = ioc(2, b'v', 1, 4);
const FS_IOC_FSGETXATTR: u32 = ioc(2, b'X', 31, size_of::<FsXattr>());
const FS_IOC_FSSETXATTR: u32 = ioc(1, b'X', 32, size_of::<FsXattr>());
const FITRIM: u32 = ioc(3, b'X', 121, size_of::<TrimRange>());

/// `EXT4_IOC_RESIZE_FS`: how many blocks the volume is to have.
const EXT4_IOC_RESIZE_FS: u32 = ioc(1, b'f', 16, 8);

/// For how long FITRIM waits for what is about to be freed.
const TRIM_WAIT: Duration = Duration::from_secs(1);

/// `struct fsxattr`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// `struct fstrim_range`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    minlen: u64,
}

const _: () = assert!(size_of::<FsXattr>() == 28 && size_of::<TrimRange>() == 24);

/// Bits of `fsxattr.xflags` and the flags they stand for.
const XFLAGS: [(u32, InodeFlags); 6] = [
    (0x8, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x20, InodeFlags::SYNC),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
    (0x200, InodeFlags::PROJINHERIT),
];

impl Dispatcher {
    pub(super) fn ioctl(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let head = args.take::<IoctlIn>()?;
        let input = args.bytes(head.in_size)?;
        let inode = self.node(request.header.nodeid)?;
        let output: SmallVec<[u8; 32]> = match head.cmd {
            FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => {
                SmallVec::from_slice(self.vfs.stat(&inode).flags.bits().as_bytes())
            }
            FS_IOC_GETVERSION | FS_IOC32_GETVERSION => {
                SmallVec::from_slice(self.vfs.stat(&inode).generation.as_bytes())
            }
            FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS => {
                let (bits, _) = u32::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
                let flags = InodeFlags::from_bits(bits).ok_or(Errno::OPNOTSUPP)?;
                self.set_flags(request, &inode, flags, None)?;
                SmallVec::new()
            }
            FS_IOC_FSGETXATTR => SmallVec::from_slice(self.fs_xattr(&inode).as_bytes()),
            FS_IOC_FSSETXATTR => {
                let (new, _) = FsXattr::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
                self.set_fs_xattr(request, &inode, &new)?;
                SmallVec::new()
            }
            FITRIM => {
                let (range, _) = TrimRange::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
                SmallVec::from_slice(self.trim(request, range)?.as_bytes())
            }
            EXT4_IOC_RESIZE_FS => {
                let (blocks, _) = u64::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
                self.grow(request, blocks)?;
                SmallVec::new()
            }
            control::IOCTL => SmallVec::from_slice(self.control(request, input)?.as_bytes()),
            _ => return Err(Errno::NOTTY.into()),
        };
        if output.len() > usize::try_from(head.out_size).unwrap_or(usize::MAX) {
            return Err(Errno::INVAL.into());
        }
        let reply = IoctlOut::default();
        Ok(Answer::Headed(
            SmallVec::from_slice(reply.as_bytes()),
            output.into_vec(),
        ))
    }

    fn set_flags(
        &self,
        request: &Request<'_>,
        inode: &InodeRef,
        flags: InodeFlags,
        project: Option<u32>,
    ) -> std::result::Result<(), super::Failure> {
        let change = SetAttr {
            flags: Some(flags),
            project,
            ..SetAttr::default()
        };
        self.vfs.set_attr(&self.cred(request)?, inode, &change)?;
        // The kernel does not know that an ioctl changes the change time.
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.forget_attributes(request.header.nodeid);
        }
        Ok(())
    }

    fn fs_xattr(&self, inode: &InodeRef) -> FsXattr {
        let attr = self.vfs.stat(inode);
        FsXattr {
            xflags: XFLAGS
                .iter()
                .filter(|(_, flag)| attr.flags.contains(*flag))
                .fold(0, |bits, (bit, _)| bits | bit),
            projid: attr.project,
            ..FsXattr::default()
        }
    }

    fn set_fs_xattr(
        &self,
        request: &Request<'_>,
        inode: &InodeRef,
        new: &FsXattr,
    ) -> std::result::Result<(), super::Failure> {
        let attr = self.vfs.stat(inode);
        let known = XFLAGS.iter().fold(0, |bits, (bit, _)| bits | bit);
        if new.xflags & !known != 0 || new.extsize != 0 || new.cowextsize != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        let mut flags = attr.flags;
        for (bit, flag) in XFLAGS {
            flags.set(flag, new.xflags & bit != 0);
        }
        let project = (new.projid != attr.project).then_some(new.projid);
        self.set_flags(request, inode, flags, project)
    }

    fn grow(&self, request: &Request<'_>, blocks: u64) -> std::result::Result<(), super::Failure> {
        if request.header.uid != 0 {
            return Err(Errno::PERM.into());
        }
        let block_bytes = u64::from(self.vfs.engine().format().block_bytes);
        let bytes = blocks.checked_mul(block_bytes).ok_or(Errno::INVAL)?;
        self.vfs.engine().grow(NewSize::Bytes(bytes))?;
        Ok(())
    }

    fn trim(
        &self,
        request: &Request<'_>,
        range: TrimRange,
    ) -> std::result::Result<TrimRange, super::Failure> {
        // The request does not carry capabilities; the kernel's file systems ask for CAP_SYS_ADMIN.
        if request.header.uid != 0 {
            return Err(Errno::PERM.into());
        }
        // Blocks of files that were just removed are to be discarded, too.
        self.releases.drain(TRIM_WAIT);
        let end = range.start.saturating_add(range.len);
        let trimmed = self.vfs.engine().trim(range.start..end, range.minlen)?;
        Ok(TrimRange {
            len: trimmed,
            ..range
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_linux() {
        assert_eq!(FS_IOC_GETFLAGS, 0x8008_6601);
        assert_eq!(FS_IOC_SETFLAGS, 0x4008_6602);
        assert_eq!(FS_IOC_FSGETXATTR, 0x801c_581f);
        assert_eq!(FS_IOC_FSSETXATTR, 0x401c_5820);
        assert_eq!(FITRIM, 0xc018_5879);
        assert_eq!(EXT4_IOC_RESIZE_FS, 0x4008_6610);
    }
}
