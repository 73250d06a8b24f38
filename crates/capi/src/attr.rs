//! Attributes of inodes (`bw_stat`: size, mode, owners, times) and extended attributes: read and changed by path.

use crate::call::{known, on_volume, out};
use crate::error::{Fault, Result, bw_error, bw_status};
use crate::handles::bw_volume;
use crate::raw::{Input, Output, Text};
use blockwright::{FileType, Metadata, Times, Timestamp, XattrMode};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

/// Do not follow a symbolic link at the path's end.
pub const BW_NO_FOLLOW: u32 = 64;

/// Regular file.
pub const BW_TYPE_REGULAR: u32 = 1;
/// Directory.
pub const BW_TYPE_DIRECTORY: u32 = 2;
/// Symbolic link.
pub const BW_TYPE_SYMLINK: u32 = 3;
/// Character device.
pub const BW_TYPE_CHAR_DEVICE: u32 = 4;
/// Block device.
pub const BW_TYPE_BLOCK_DEVICE: u32 = 5;
/// Named pipe.
pub const BW_TYPE_FIFO: u32 = 6;
/// Unix-domain socket.
pub const BW_TYPE_SOCKET: u32 = 7;

/// Each kind with its number.
const KINDS: [(FileType, u32); 7] = [
    (FileType::Regular, BW_TYPE_REGULAR),
    (FileType::Directory, BW_TYPE_DIRECTORY),
    (FileType::Symlink, BW_TYPE_SYMLINK),
    (FileType::CharDevice, BW_TYPE_CHAR_DEVICE),
    (FileType::BlockDevice, BW_TYPE_BLOCK_DEVICE),
    (FileType::Fifo, BW_TYPE_FIFO),
    (FileType::Socket, BW_TYPE_SOCKET),
];

/// A kind as C has it.
pub(crate) fn kind_of(kind: FileType) -> u32 {
    let found = KINDS.iter().find(|(known, _)| *known == kind);
    found.map_or(0, |(_, number)| *number)
}

/// A kind that C names.
pub(crate) fn kind_from(number: u32) -> Result<FileType> {
    let found = KINDS.iter().find(|(_, known)| *known == number);
    found
        .map(|(kind, _)| *kind)
        .ok_or_else(|| Fault::Misuse(format!("{number} is no BW_TYPE_")))
}

/// A time since 1970.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bw_time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds on top of them.
    pub nanoseconds: u32,
    /// 0.
    pub reserved: u32,
}

impl From<Timestamp> for bw_time {
    fn from(t: Timestamp) -> Self {
        bw_time {
            seconds: t.secs,
            nanoseconds: t.nanos,
            reserved: 0,
        }
    }
}

impl bw_time {
    fn stamp(&self, name: &'static str) -> Result<Timestamp> {
        if self.nanoseconds >= 1_000_000_000 {
            return Err(Fault::Misuse(format!(
                "{name}: {} nanoseconds are a second or more",
                self.nanoseconds
            )));
        }
        Ok(Timestamp {
            secs: self.seconds,
            nanos: self.nanoseconds,
        })
    }
}

/// An inode's attributes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_stat {
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Device number of a device file, as `makedev` codes it.
    pub rdev: u64,
    /// Kind and permission bits, as `st_mode` has them.
    pub mode: u32,
    /// `BW_TYPE_` of the inode.
    pub kind: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// 1 when `btime` is known.
    pub has_btime: u32,
    /// Last access.
    pub atime: bw_time,
    /// Last change of the contents.
    pub mtime: bw_time,
    /// Last change of the inode.
    pub ctime: bw_time,
    /// Birth.
    pub btime: bw_time,
}

pub(crate) fn stat_of(m: &Metadata) -> bw_stat {
    let attr = m.attr();
    bw_stat {
        ino: m.ino(),
        size: m.len(),
        blocks: m.blocks(),
        rdev: m.rdev(),
        mode: m.mode(),
        kind: kind_of(m.file_type()),
        nlink: m.nlink(),
        uid: m.uid(),
        gid: m.gid(),
        has_btime: u32::from(attr.crtime.is_some()),
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        btime: attr.crtime.map(bw_time::from).unwrap_or_default(),
    }
}

/// Attributes; a symbolic link at the path's end is followed.
#[unsafe(no_mangle)]
pub extern "C" fn bw_stat_path(
    volume: bw_volume,
    path: Text,
    stat: Option<&mut MaybeUninit<bw_stat>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        out(stat, "stat")?.write(stat_of(&volume.metadata(path.path("path")?)?));
        Ok(())
    })
}

/// Attributes; a symbolic link at the path's end is not followed.
#[unsafe(no_mangle)]
pub extern "C" fn bw_lstat_path(
    volume: bw_volume,
    path: Text,
    stat: Option<&mut MaybeUninit<bw_stat>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        out(stat, "stat")?.write(stat_of(&volume.symlink_metadata(path.path("path")?)?));
        Ok(())
    })
}

/// Sets the permission bits (`07777`).
#[unsafe(no_mangle)]
pub extern "C" fn bw_chmod(
    volume: bw_volume,
    path: Text,
    mode: u32,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.set_permissions(path.path("path")?, mode)?)
    })
}

/// Leaves the owner or the group as it is.
pub const BW_KEEP_ID: u32 = u32::MAX;

/// Sets owner and group; `BW_KEEP_ID` leaves one as it is. A symbolic link at the path's end is followed.
#[unsafe(no_mangle)]
pub extern "C" fn bw_chown(
    volume: bw_volume,
    path: Text,
    uid: u32,
    gid: u32,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let id = |id: u32| (id != BW_KEEP_ID).then_some(id);
        Ok(volume.chown(path.path("path")?, id(uid), id(gid))?)
    })
}

/// As `bw_chown`, without following a symbolic link at the path's end.
#[unsafe(no_mangle)]
pub extern "C" fn bw_lchown(
    volume: bw_volume,
    path: Text,
    uid: u32,
    gid: u32,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let id = |id: u32| (id != BW_KEEP_ID).then_some(id);
        Ok(volume.lchown(path.path("path")?, id(uid), id(gid))?)
    })
}

/// Sets the times of the last access and of the last change of the contents. Null leaves one as it is. `flags` is 0, or `BW_NO_FOLLOW` for a symbolic
/// link itself.
#[unsafe(no_mangle)]
pub extern "C" fn bw_set_times(
    volume: bw_volume,
    path: Text,
    accessed: Option<&bw_time>,
    modified: Option<&bw_time>,
    flags: u32,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        known(flags, BW_NO_FOLLOW, "flags")?;
        let mut times = Times::new();
        if let Some(t) = accessed {
            times = times.accessed_at(t.stamp("accessed")?);
        }
        if let Some(t) = modified {
            times = times.modified_at(t.stamp("modified")?);
        }
        let path = path.path("path")?;
        match flags {
            0 => volume.set_times(path, times)?,
            _ => volume.set_symlink_times(path, times)?,
        }
        Ok(())
    })
}

/// Copies bytes to the caller's buffer. `needed` always gets their number; with a buffer of 0 bytes that is all.
pub(crate) fn fill(
    from: &[u8],
    to: &mut Output,
    room: usize,
    needed: Option<&mut MaybeUninit<usize>>,
) -> Result<()> {
    out(needed, "bytes")?.write(from.len());
    if room == 0 {
        return Ok(());
    }
    let to = to.slice(room, "buffer")?;
    let to = to.get_mut(..from.len()).ok_or(Fault::Range(from.len()))?;
    to.copy_from_slice(from);
    Ok(())
}

/// Gets the value of an extended attribute, for example `user.note`. `bytes` gets its length. With `room` 0 nothing is copied; `BW_RANGE` when `room` is too
/// small. Symbolic links are not followed.
#[unsafe(no_mangle)]
pub extern "C" fn bw_get_xattr(
    volume: bw_volume,
    path: Text,
    name: Text,
    mut buffer: Output,
    room: usize,
    bytes: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let name = OsStr::from_bytes(name.bytes("name")?);
        let value = volume.get_xattr(path.path("path")?, name)?;
        fill(&value, &mut buffer, room, bytes)
    })
}

/// The attribute must not exist.
pub const BW_XATTR_CREATE: u32 = 1;
/// The attribute must exist.
pub const BW_XATTR_REPLACE: u32 = 2;

/// Sets an extended attribute. `flags`: 0, `BW_XATTR_CREATE` or `BW_XATTR_REPLACE`. Symbolic links are not followed.
#[unsafe(no_mangle)]
pub extern "C" fn bw_set_xattr(
    volume: bw_volume,
    path: Text,
    name: Text,
    value: Input,
    bytes: usize,
    flags: u32,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let mode = match flags {
            0 => XattrMode::Any,
            BW_XATTR_CREATE => XattrMode::Create,
            BW_XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Fault::Misuse(format!("flags: {flags:#x} is unknown"))),
        };
        let name = OsStr::from_bytes(name.bytes("name")?);
        let value = value.slice(bytes, "value")?;
        Ok(volume.set_xattr(path.path("path")?, name, value, mode)?)
    })
}

/// Removes an extended attribute. Symbolic links are not followed.
#[unsafe(no_mangle)]
pub extern "C" fn bw_remove_xattr(
    volume: bw_volume,
    path: Text,
    name: Text,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let name = OsStr::from_bytes(name.bytes("name")?);
        Ok(volume.remove_xattr(path.path("path")?, name)?)
    })
}

/// Gets the names of all extended attributes, each with a NUL behind it, in byte order. `buffer`, `room` and `bytes` as in `bw_get_xattr`.
#[unsafe(no_mangle)]
pub extern "C" fn bw_list_xattr(
    volume: bw_volume,
    path: Text,
    mut buffer: Output,
    room: usize,
    bytes: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let mut all = Vec::new();
        for name in volume.list_xattr(path.path("path")?)? {
            all.extend_from_slice(name.as_bytes());
            all.push(0);
        }
        fill(&all, &mut buffer, room, bytes)
    })
}
