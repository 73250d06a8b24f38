//! Linux.

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::IoSlice;

pub(crate) use libc::{EAGAIN, ECANCELED, EDQUOT, EINTR, EIO, ENOSPC};

/// `linux/fs.h`: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = libc::_IO(0x12, 119);

/// A result of the host: its number when it failed.
pub(in crate::host) type Result<T> = std::result::Result<T, i32>;

pub(in crate::host) fn means_gone(errno: i32) -> bool {
    matches!(errno, libc::ENXIO | libc::ENODEV | libc::ESHUTDOWN)
}

pub(in crate::host) fn means_read_only(errno: i32) -> bool {
    errno == libc::EROFS
}

/// Lets the lock go at once. Closing alone would not, while a program that another thread is just
/// starting still has a copy of the descriptor (between its fork and its exec).
pub(in crate::host) fn unlock(file: &File) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// The length, of a block special too. The file's own position means nothing: I/O is positional.
pub(in crate::host) fn end(file: &File) -> Result<u64> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(Errno::raw_os_error)
}

/// Where the next data is; `None` when only a hole follows.
pub(in crate::host) fn next_data(file: &File, at: u64) -> Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.raw_os_error()),
    }
}

pub(in crate::host) fn read(file: &File, buf: &mut [u8], at: u64) -> Result<usize> {
    rustix::io::pread(file, buf, at).map_err(Errno::raw_os_error)
}

/// Writes what the host takes at once. With `durable`, it is on the medium when this returns.
pub(in crate::host) fn write(
    file: &File,
    slices: &[IoSlice<'_>],
    at: u64,
    durable: bool,
) -> Result<usize> {
    let flags = match durable {
        true => ReadWriteFlags::DSYNC,
        false => ReadWriteFlags::empty(),
    };
    let result = match rustix::io::pwritev2(file, slices, at, flags) {
        // A file system without RWF_DSYNC: write, then make it durable the long way.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            rustix::io::pwritev(file, slices, at).and_then(|written| {
                if durable {
                    rustix::fs::fdatasync(file)?;
                }
                Ok(written)
            })
        }
        result => result,
    };
    result.map_err(Errno::raw_os_error)
}

pub(in crate::host) fn flush(file: &File) -> Result<()> {
    loop {
        match rustix::fs::fdatasync(file) {
            Err(Errno::INTR) => {}
            result => return result.map_err(Errno::raw_os_error),
        }
    }
}

/// Discards a range. A host that cannot has lost nothing.
pub(in crate::host) fn discard(
    file: &File,
    block_special: bool,
    at: u64,
    bytes: u64,
) -> Result<()> {
    let result = match block_special {
        true => discard_blocks(file, at, bytes),
        false => punch(file, at, bytes),
    };
    match result {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(()),
        Err(e) => Err(e.raw_os_error()),
    }
}

/// Zeroes a range without writing it: by a hole in a regular file (which keeps images sparse), by the device's command for a block special.
/// `false` when the host has neither.
pub(in crate::host) fn zero(file: &File, block_special: bool, at: u64, bytes: u64) -> Result<bool> {
    let result = if block_special {
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, mode, at, bytes)
    } else {
        punch(file, at, bytes)
    };
    match result {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => Ok(false),
        Err(e) => Err(e.raw_os_error()),
    }
}

fn punch(file: &File, at: u64, bytes: u64) -> rustix::io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match rustix::fs::fallocate(file, mode, at, bytes) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn discard_blocks(file: &File, at: u64, bytes: u64) -> rustix::io::Result<()> {
    use std::os::fd::AsRawFd;
    let range = [at, bytes];
    // SAFETY: BLKDISCARD reads two u64, offset and length, from the pointer, which stays
    // valid during the call; the descriptor is open as long as `file`.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, &range) };
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)))
}
