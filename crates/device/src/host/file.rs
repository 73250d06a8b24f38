//! Synchronous I/O on the host's file, in the caller's thread.
//!
//! With `O_DIRECT`, memory that is not aligned goes through a bounce buffer; offsets and lengths
//! are aligned because the geometry's logical block says what the file wants.

use super::sys;
use crate::monitor::Monitor;
use crate::{AlignedBuf, DevOffset, DeviceError, DeviceErrorKind, Flags, Geometry, Result};
use std::fs::File;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most bytes one bounce buffer holds.
const BOUNCE_BYTES: usize = 1 << 20;
/// The kernel takes no more slices in one call (`UIO_MAXIOV`).
pub(super) const SLICES_MAX: usize = 1024;
/// How often a transient refusal is tried again.
pub(super) const RETRIES_MAX: u32 = 64;

/// An opened and locked file.
pub(super) struct HostFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// As it was opened; [`HostFile::geometry`] has the size that it has now.
    pub(super) opened: Geometry,
    /// Its size now, in whole logical blocks.
    pub(super) bytes: AtomicU64,
    /// Alignment of memory that `O_DIRECT` wants; 1 for buffered I/O.
    pub(super) memory_align: usize,
    pub(super) block_special: bool,
    /// The host keeps it in memory (tmpfs): a transfer is a copy.
    pub(super) in_memory: bool,
    /// Told of every request.
    pub(super) monitor: Monitor,
}

/// What a number of the host's means for a device.
pub(super) fn kind_of(errno: i32) -> DeviceErrorKind {
    match errno {
        errno if sys::means_gone(errno) => DeviceErrorKind::Gone,
        errno if sys::means_read_only(errno) => DeviceErrorKind::ReadOnly,
        errno => DeviceErrorKind::Os(errno),
    }
}

/// What to do after a transfer returned.
pub(super) enum Step {
    /// Try the same again.
    Again,
    /// This many bytes more are done.
    Advance(usize),
}

impl Drop for HostFile {
    fn drop(&mut self) {
        sys::unlock(&self.file);
    }
}

impl HostFile {
    pub(super) fn is_aligned(&self, memory: &[u8]) -> bool {
        (memory.as_ptr() as usize).is_multiple_of(self.memory_align)
    }

    /// Judges one transfer of a request that has moved `moved` of `len` bytes so far. `result` is
    /// bytes or errno.
    pub(super) fn step(
        &self,
        result: std::result::Result<usize, i32>,
        moved: usize,
        len: usize,
        retries: &mut u32,
    ) -> std::result::Result<Step, DeviceErrorKind> {
        match result {
            // Cancelled: the ring's thread was interrupted before the kernel began.
            Err(sys::EINTR | sys::EAGAIN | sys::ECANCELED) if *retries < RETRIES_MAX => {
                *retries += 1;
                Ok(Step::Again)
            }
            Err(errno) => Err(kind_of(errno)),
            Ok(0) => Err(DeviceErrorKind::Short { transferred: moved }),
            Ok(more) => {
                let moved = moved + more;
                // A short direct transfer can end inside a block, where the file was truncated. The
                // rest of it cannot be requested.
                let block = self.opened.logical_block_bytes as usize;
                if moved < len && self.memory_align > 1 && !moved.is_multiple_of(block) {
                    return Err(DeviceErrorKind::Short { transferred: moved });
                }
                Ok(Step::Advance(more))
            }
        }
    }

    /// What the device is like now.
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            bytes: self.bytes.load(Ordering::Acquire),
            ..self.opened
        }
    }

    /// See [`crate::BlockDevice::grow`].
    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        let error = |kind| DeviceError {
            op: "grow",
            offset: DevOffset(0),
            bytes,
            kind,
        };
        let block = u64::from(self.opened.logical_block_bytes);
        let bytes = bytes.next_multiple_of(block);
        // It may have become longer by others.
        let end = sys::end(&self.file).map_err(|e| error(kind_of(e)))?;
        self.bytes.fetch_max(end - end % block, Ordering::AcqRel);
        if bytes > self.geometry().bytes {
            if self.block_special || self.opened.read_only {
                return Err(error(DeviceErrorKind::Unsupported));
            }
            self.file
                .set_len(bytes)
                .map_err(|e| error(kind_of(sys::number_of(&e))))?;
            self.bytes.fetch_max(bytes, Ordering::AcqRel);
        }
        Ok(())
    }

    /// See [`crate::BlockDevice::tail`].
    pub(super) fn tail(&self) -> Result<Vec<u8>> {
        if self.block_special {
            return Ok(Vec::new());
        }
        let (end, block) = (self.geometry().bytes, self.opened.logical_block_bytes);
        let mut buf = AlignedBuf::zeroed(block.max(4096) as usize);
        let read = sys::read(&self.file, &mut buf[..block as usize], end);
        let read = read.map_err(|e| DeviceError {
            op: "read",
            offset: DevOffset(end),
            bytes: u64::from(block),
            kind: kind_of(e),
        })?;
        Ok(buf[..read].to_vec())
    }

    /// Where the file's next data is; see [`crate::BlockDevice::next_data`].
    pub(super) fn next_data(&self, offset: DevOffset) -> DevOffset {
        let end = DevOffset(self.geometry().bytes.max(offset.0));
        if self.block_special {
            return offset;
        }
        match sys::next_data(&self.file, offset.0) {
            // A file system reports data by units of its own.
            Ok(Some(at)) => DevOffset(self.geometry().block_start(at))
                .max(offset)
                .min(end),
            // Nothing but a hole up to the end.
            Ok(None) => end,
            Err(_) => offset,
        }
    }

    pub(super) fn read(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        let bytes = buf.len() as u64;
        let error = |kind| DeviceError {
            op: "read",
            offset,
            bytes,
            kind,
        };
        if self.is_aligned(buf) {
            return self.read_in_place(offset.0, buf).map_err(error);
        }
        let mut bounce = AlignedBuf::for_overwrite(buf.len().min(BOUNCE_BYTES));
        let mut at = offset.0;
        for part in buf.chunks_mut(BOUNCE_BYTES) {
            let bounce = &mut bounce[..part.len()];
            self.read_in_place(at, bounce).map_err(error)?;
            part.copy_from_slice(bounce);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn read_in_place(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<(), DeviceErrorKind> {
        let (mut moved, mut retries) = (0, 0);
        while moved < buf.len() {
            let result = sys::read(&self.file, &mut buf[moved..], offset + moved as u64);
            match self.step(result, moved, buf.len(), &mut retries)? {
                Step::Again => std::thread::yield_now(),
                Step::Advance(more) => moved += more,
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, offset: DevOffset, slices: &[&[u8]], flags: Flags) -> Result<()> {
        let bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        let error = |kind| DeviceError {
            op: "write",
            offset,
            bytes,
            kind,
        };
        if slices.iter().all(|slice| self.is_aligned(slice)) {
            return self.write_in_place(offset.0, slices, flags).map_err(error);
        }
        let mut bounce = AlignedBuf::for_overwrite((bytes as usize).min(BOUNCE_BYTES));
        let (mut at, mut filled) = (offset.0, 0);
        for slice in slices {
            let mut rest = *slice;
            while !rest.is_empty() {
                let part = rest.len().min(bounce.len() - filled);
                bounce[filled..filled + part].copy_from_slice(&rest[..part]);
                (filled, rest) = (filled + part, &rest[part..]);
                if filled == bounce.len() {
                    self.write_in_place(at, &[&bounce], flags).map_err(error)?;
                    (at, filled) = (at + filled as u64, 0);
                }
            }
        }
        self.write_in_place(at, &[&bounce[..filled]], flags)
            .map_err(error)
    }

    fn write_in_place(
        &self,
        offset: u64,
        slices: &[&[u8]],
        flags: Flags,
    ) -> std::result::Result<(), DeviceErrorKind> {
        let durable = flags.contains(Flags::FUA);
        let mut list: Vec<IoSlice<'_>> = slices
            .iter()
            .filter(|s| !s.is_empty())
            .map(|s| IoSlice::new(s))
            .collect();
        let len: usize = list.iter().map(|slice| slice.len()).sum();
        let (mut list, mut moved, mut retries) = (&mut list[..], 0, 0);
        while moved < len {
            let now = &list[..list.len().min(SLICES_MAX)];
            let result = sys::write(&self.file, now, offset + moved as u64, durable);
            match self.step(result, moved, len, &mut retries)? {
                Step::Again => std::thread::yield_now(),
                Step::Advance(more) => {
                    IoSlice::advance_slices(&mut list, more);
                    moved += more;
                }
            }
        }
        Ok(())
    }

    pub(super) fn flush(&self) -> Result<()> {
        if self.opened.read_only {
            return Ok(());
        }
        sys::flush(&self.file).map_err(|errno| DeviceError {
            op: "flush",
            offset: DevOffset(0),
            bytes: 0,
            kind: kind_of(errno),
        })
    }

    pub(super) fn discard(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let result = sys::discard(&self.file, self.block_special, offset.0, bytes);
        result.map_err(|errno| DeviceError {
            op: "discard",
            offset,
            bytes,
            kind: kind_of(errno),
        })
    }

    /// Zeroes as the host can without a transfer, and otherwise by writing.
    pub(super) fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let error = |kind| DeviceError {
            op: "write-zeroes",
            offset,
            bytes,
            kind,
        };
        match sys::zero(&self.file, self.block_special, offset.0, bytes) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let zeroes = AlignedBuf::zeroed(bytes.min(BOUNCE_BYTES as u64) as usize);
                let (mut at, end) = (offset.0, offset.0 + bytes);
                while at < end {
                    let len = (end - at).min(zeroes.len() as u64);
                    self.write_in_place(at, &[&zeroes[..len as usize]], Flags::empty())
                        .map_err(error)?;
                    at += len;
                }
                Ok(())
            }
            Err(errno) => Err(error(kind_of(errno))),
        }
    }
}
