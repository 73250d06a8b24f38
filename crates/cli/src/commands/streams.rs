//! The contents of a copy's source and destination: files of the host and of images behind one interface.

use crate::failure::{Failure, Result};
use blockwright_vfs::{ErrorKind, Handle};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of a step of a copy inside one image.
const STEP_BYTES: u64 = 64 << 20;

/// A file open for reading.
pub enum Reader {
    Host(File),
    Inside(Arc<Handle>),
}

impl Reader {
    /// The next stretch that has data at or after `offset`, within `size`.
    pub fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        if offset >= size {
            return Ok(None);
        }
        let (start, end) = match self {
            Reader::Host(file) => {
                let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
                    Ok(start) => start,
                    Err(Errno::NXIO) => return Ok(None),
                    // The host's file system does not know: it is all data.
                    Err(_) => return Ok(Some(offset..size)),
                };
                (
                    start,
                    rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size),
                )
            }
            Reader::Inside(handle) => {
                let start = match handle.seek_data(offset) {
                    Ok(start) => start,
                    Err(e) if e.kind() == ErrorKind::NoData => return Ok(None),
                    Err(e) => return Err(e.into()),
                };
                (start, handle.seek_hole(start)?)
            }
        };
        if start >= size || end <= start {
            return Ok(None);
        }
        Ok(Some(start..end.min(size)))
    }

    /// Copies all of it to a file of the same image, holes and unwritten blocks as such. `false` when they are
    /// not in one image: then nothing was done.
    ///
    /// `step` is told how many bytes each step had, and ends the copy with its error.
    pub fn copy_inside(
        &self,
        to: &Writer,
        size: u64,
        step: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<bool> {
        let (Reader::Inside(from), Writer::Inside(to)) = (self, to) else {
            return Ok(false);
        };
        let mut at = 0;
        while at < size {
            match from.copy_range(at, to, at, (size - at).min(STEP_BYTES)) {
                // Another image's.
                Err(e) if at == 0 && e.kind() == ErrorKind::CrossDevice => return Ok(false),
                // Another process cut it during the copy.
                Ok(0) if from.inode().size() <= at => break,
                Ok(0) => return Err(Failure::new(ErrorKind::NoSpace)),
                Ok(n) => {
                    at += n;
                    step(n)?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// Reads at an offset; 0 at the end.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Reader::Host(file) => Ok(file.read_at(buffer, offset)?),
            Reader::Inside(handle) => Ok(handle.read_at(buffer, offset)?),
        }
    }
}

/// A file open for writing.
pub enum Writer {
    Host(File),
    Inside(Arc<Handle>),
}

impl Writer {
    /// Writes all of it.
    pub fn write_at(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        match self {
            Writer::Host(file) => Ok(file.write_all_at(bytes, offset)?),
            Writer::Inside(handle) => {
                while !bytes.is_empty() {
                    let written = handle.write_at(bytes, offset)?;
                    if written == 0 {
                        return Err(Failure::new(ErrorKind::NoSpace));
                    }
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Ok(())
            }
        }
    }

    /// Gives the file its size, which a hole at its end would leave short.
    pub fn set_len(&self, size: u64) -> Result<()> {
        match self {
            // A device or a pipe has none.
            Writer::Host(file) if !file.metadata()?.is_file() => Ok(()),
            Writer::Host(file) => Ok(file.set_len(size)?),
            Writer::Inside(handle) => Ok(handle.set_len(size)?),
        }
    }
}
