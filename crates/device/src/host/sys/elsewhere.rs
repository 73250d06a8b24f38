//! Hosts other than Linux, by the standard library.

use super::number_of;
use crate::positional;
use std::fs::File;
use std::io::IoSlice;

/// A result of the host: its number when it failed.
pub(in crate::host) type Result<T> = std::result::Result<T, i32>;

#[cfg(unix)]
mod numbers {
    pub(crate) use libc::{EAGAIN, ECANCELED, EDQUOT, EINTR, EIO, ENOSPC};
    pub(super) const GONE: [i32; 2] = [libc::ENXIO, libc::ENODEV];
    pub(super) const READ_ONLY: i32 = libc::EROFS;
}

/// Numbers of WASI's `errno`. Source: WASI snapshot preview 1.
#[cfg(target_os = "wasi")]
mod numbers {
    pub(crate) const EAGAIN: i32 = 6;
    pub(crate) const ECANCELED: i32 = 11;
    pub(crate) const EDQUOT: i32 = 19;
    pub(crate) const EINTR: i32 = 27;
    pub(crate) const EIO: i32 = 29;
    pub(crate) const ENOSPC: i32 = 51;
    pub(super) const GONE: [i32; 2] = [60, 43];
    pub(super) const READ_ONLY: i32 = 69;
}

/// Windows' system error codes. Source: Microsoft, "System Error Codes".
#[cfg(windows)]
mod numbers {
    /// `ERROR_NO_SYSTEM_RESOURCES`.
    pub(crate) const EAGAIN: i32 = 1450;
    /// `ERROR_OPERATION_ABORTED`.
    pub(crate) const ECANCELED: i32 = 995;
    /// `ERROR_DISK_QUOTA_EXCEEDED`.
    pub(crate) const EDQUOT: i32 = 1295;
    /// `WSAEINTR`.
    pub(crate) const EINTR: i32 = 10004;
    /// `ERROR_IO_DEVICE`.
    pub(crate) const EIO: i32 = 1117;
    /// `ERROR_DISK_FULL`.
    pub(crate) const ENOSPC: i32 = 112;
    /// `ERROR_NOT_READY`, `ERROR_DEVICE_NOT_CONNECTED`.
    pub(super) const GONE: [i32; 2] = [21, 1167];
    /// `ERROR_WRITE_PROTECT`.
    pub(super) const READ_ONLY: i32 = 19;
}

pub(crate) use numbers::{EAGAIN, ECANCELED, EDQUOT, EINTR, EIO, ENOSPC};

pub(in crate::host) fn means_gone(number: i32) -> bool {
    numbers::GONE.contains(&number)
}

pub(in crate::host) fn means_read_only(number: i32) -> bool {
    number == numbers::READ_ONLY
}

pub(in crate::host) fn unlock(file: &File) {
    #[cfg(unix)]
    let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock);
    #[cfg(not(unix))]
    let _closing_does_it = file;
}

pub(in crate::host) fn end(file: &File) -> Result<u64> {
    file.metadata().map(|m| m.len()).map_err(|e| number_of(&e))
}

/// Everything counts as data.
pub(in crate::host) fn next_data(_file: &File, at: u64) -> Result<Option<u64>> {
    Ok(Some(at))
}

pub(in crate::host) fn read(file: &File, buf: &mut [u8], at: u64) -> Result<usize> {
    positional::read_at(file, buf, at).map_err(|e| number_of(&e))
}

/// Writes what the host takes at once. With `durable`, it is on the medium when this returns.
pub(in crate::host) fn write(
    file: &File,
    slices: &[IoSlice<'_>],
    at: u64,
    durable: bool,
) -> Result<usize> {
    let Some(first) = slices.first() else {
        return Ok(0);
    };
    let written = positional::write_at(file, first, at).map_err(|e| number_of(&e))?;
    if durable {
        flush(file)?;
    }
    Ok(written)
}

pub(in crate::host) fn flush(file: &File) -> Result<()> {
    file.sync_data().map_err(|e| number_of(&e))
}

/// Discards are advice, which is not taken here.
pub(in crate::host) fn discard(_: &File, _: bool, _: u64, _: u64) -> Result<()> {
    Ok(())
}

/// Nothing is zeroed without writing it.
pub(in crate::host) fn zero(_: &File, _: bool, _: u64, _: u64) -> Result<bool> {
    Ok(false)
}
