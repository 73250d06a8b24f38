//! An open file: positioned I/O, and a cursor for [`Read`], [`Write`] and [`Seek`].

use crate::{Error, ErrorKind, Metadata, Result};
use blockwright_device::IoSlice;
use blockwright_vfs as vfs;
use blockwright_vfs::{FallocMode, Handle, Place, SyncScope, Vfs};
use parking_lot::Mutex;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// An open file of a volume. Dropping it closes it, without making it durable.
///
/// Positioned calls (`read_at`, `write_at`) may run at the same time from any number of threads.
/// The cursor of `Read`, `Write` and `Seek` is the file's own and moves under a lock.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// let volume = blockwright::Volume::create(&image, 32 << 20)?;
/// let file = volume.create_file("/journal.db")?;
/// // Space first, so that no later write is refused for lack of it; it reads as zeroes.
/// file.allocate(0, 1 << 20)?;
/// assert_eq!(file.metadata()?.len(), 1 << 20);
/// assert_eq!(file.write_at(b"record", 8192)?, 6);
/// file.sync_data()?;
///
/// let mut record = [0; 6];
/// assert_eq!(file.read_at(&mut record, 8192)?, 6);
/// assert_eq!(&record, b"record");
///
/// // What is punched is a hole again; data begin behind it.
/// file.write_all_at(&[7; 4096], 0)?;
/// file.punch_hole(0, 4096)?;
/// assert_eq!(file.seek_hole(0)?, 0);
/// assert_eq!(file.seek_data(0)?, 8192);
///
/// file.set_len(8192 + 6)?;
/// assert_eq!(file.append(b", and one more")?, 8192 + 6);
/// file.sync_all()?;
///
/// let copy = volume.create_file("/copy.db")?;
/// assert_eq!(file.copy_range(8192, &copy, 0, 6)?, 6);
/// assert_eq!(volume.read("/copy.db")?, b"record");
/// # drop((file, copy));
/// # volume.close()?;
/// # Ok(())
/// # }
/// ```
pub struct File {
    handle: Arc<Handle>,
    vfs: Arc<Vfs>,
    cursor: Mutex<u64>,
}

/// A stretch of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Where it is.
    pub kind: ExtentKind,
}

/// Where a stretch of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Nowhere: it reads as zeroes.
    Hole,
    /// On the device, from this byte on.
    Data(u64),
    /// Allocated on the device from this byte on, but reading as zeroes.
    Unwritten(u64),
    /// In the inode.
    Inline,
    /// On the device, but not as the file shows it: compressed.
    Encoded,
}

impl File {
    pub(crate) fn new(handle: Arc<Handle>, vfs: Arc<Vfs>) -> Self {
        File {
            handle,
            vfs,
            cursor: Mutex::new(0),
        }
    }

    /// Reads at `offset`, leaving the cursor alone; short only at the end of the file.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `AccessDenied` when not opened for reading.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.handle.read_at(buf, offset)?)
    }

    /// Writes at `offset` (at the end, when opened for appending), leaving the cursor alone. Less than
    /// all of `buf` only when the volume is full.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooLarge`, `Io`; `AccessDenied` when not opened for writing.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        Ok(self.handle.write_at(buf, offset)?)
    }

    /// Reads `len` bytes at `offset` without waiting; `done` gets counted slices that are together `len` bytes, or fewer at
    /// the end of the file. It may be called in the device's context, or before this returns: it must not block. Hundreds may be
    /// in flight; those of files opened with [`OpenOptions::direct`](crate::OpenOptions::direct) go to the device at once.
    pub fn submit_read(
        &self,
        offset: u64,
        len: usize,
        done: impl FnOnce(Result<Vec<IoSlice>>) + Send + 'static,
    ) {
        let done = Box::new(move |r: vfs::Result<_>| done(r.map_err(Into::into)));
        let op = vfs::ReadOp::new(offset, len);
        self.handle.start(op, done, vfs::Patience::Worker);
    }

    /// Writes slices at `offset` without waiting; `done`, called as for [`File::submit_read`], gets the number of bytes
    /// written. The order of overlapping operations in flight is not defined. Bytes in flight cannot change: slices are
    /// counted references.
    pub fn submit_write(
        &self,
        slices: Vec<IoSlice>,
        offset: u64,
        done: impl FnOnce(Result<usize>) + Send + 'static,
    ) {
        let done = Box::new(move |r: vfs::Result<_>| done(r.map_err(Into::into)));
        let op = vfs::WriteOp::at(offset, slices);
        self.handle.start(op, done, vfs::Patience::Worker);
    }

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// As [`File::write_at`]; `NoSpace` when only a part found room.
    pub fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> Result<()> {
        while !buf.is_empty() {
            let n = self.handle.write_at(buf, offset)?;
            if n == 0 {
                return Err(Error::new(ErrorKind::NoSpace, "the volume is full"));
            }
            buf = &buf[n..];
            offset += n as u64;
        }
        Ok(())
    }

    /// Writes at the end of the file, atomically; returns where that was.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        Ok(self.handle.append(buf)?)
    }

    /// Makes data and metadata durable (`fsync`).
    ///
    /// # Errors
    /// `Io` when any write of this file failed since the last call.
    pub fn sync_all(&self) -> Result<()> {
        Ok(self.handle.sync(SyncScope::All)?)
    }

    /// Makes data durable, with the metadata needed to read it back (`fdatasync`).
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn sync_data(&self) -> Result<()> {
        Ok(self.handle.sync(SyncScope::Data)?)
    }

    /// Cuts or extends the file.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, `Io`.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        Ok(self.handle.set_len(bytes)?)
    }

    fn fallocate(&self, offset: u64, bytes: u64, mode: FallocMode) -> Result<()> {
        Ok(self
            .handle
            .fallocate(offset..offset.saturating_add(bytes), mode)?)
    }

    /// Allocates space for a range, so that writes there cannot fail for lack of it. The file grows to
    /// the range's end if it is shorter.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooLarge`.
    pub fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fallocate(offset, bytes, FallocMode::Allocate { keep_size: false })
    }

    /// As [`File::allocate`], but leaves the size alone.
    ///
    /// # Errors
    /// As [`File::allocate`].
    pub fn allocate_keep_size(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fallocate(offset, bytes, FallocMode::Allocate { keep_size: true })
    }

    /// Frees the space of a range, which reads as zeroes afterwards.
    ///
    /// # Errors
    /// `Unsupported`, `Io`.
    pub fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fallocate(offset, bytes, FallocMode::PunchHole)
    }

    /// Makes a range read as zeroes, with its space kept or allocated.
    ///
    /// # Errors
    /// `Unsupported`, `NoSpace`, `Io`.
    pub fn zero_range(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fallocate(offset, bytes, FallocMode::ZeroRange { keep_size: false })
    }

    /// Removes a range of whole blocks; what follows moves down.
    ///
    /// # Errors
    /// `Invalid` when it is not block-aligned or reaches the end, `Unsupported`.
    pub fn collapse_range(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fallocate(offset, bytes, FallocMode::CollapseRange)
    }

    /// Inserts a hole of whole blocks; what follows moves up.
    ///
    /// # Errors
    /// `Invalid` when it is not block-aligned or past the end, `FileTooLarge`, `Unsupported`.
    pub fn insert_range(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fallocate(offset, bytes, FallocMode::InsertRange)
    }

    /// The first byte at or after `offset` that holds data.
    ///
    /// # Errors
    /// `NoData` when there is none.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        Ok(self.handle.seek_data(offset)?)
    }

    /// The first byte at or after `offset` that is in a hole; the end of the file counts as one.
    ///
    /// # Errors
    /// `NoData` past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        Ok(self.handle.seek_hole(offset)?)
    }

    /// Copies a range to another file of the same volume, holes and unwritten blocks as such; returns how many
    /// bytes, fewer than asked for only at the end of this file, when the volume is full, or when an error came after a
    /// part was copied. Long runs of data are not left in the cache, of neither file.
    ///
    /// # Errors
    /// `Invalid` when the ranges overlap in one file, or the target is open for appending; `CrossDevice`; as
    /// reading and writing.
    pub fn copy_range(&self, offset: u64, to: &File, to_offset: u64, bytes: u64) -> Result<u64> {
        Ok(self
            .handle
            .copy_range(offset, &to.handle, to_offset, bytes)?)
    }

    /// The file's attributes.
    ///
    /// # Errors
    /// None today.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(Metadata(self.vfs.stat(self.handle.inode())))
    }

    /// Where the file's bytes are, after what is cached has found its place. Neighbours of one kind
    /// are joined; holes are included.
    ///
    /// # Errors
    /// As writing back, and `Corrupt`.
    pub fn extents(&self) -> Result<Vec<Extent>> {
        let size = self.metadata()?.len();
        let mut out: Vec<Extent> = Vec::new();
        let mut at = 0;
        while at < size {
            let m = self.handle.map(at, size - at)?;
            let end = m
                .offset
                .saturating_add(m.bytes)
                .clamp(at + 1, size.max(at + 1));
            let skip = at.saturating_sub(m.offset);
            let kind = match m.place {
                Place::Hole | Place::Delayed | Place::Reserved => ExtentKind::Hole,
                Place::Mapped(d) => ExtentKind::Data(d.0.saturating_add(skip)),
                Place::Unwritten(d) => ExtentKind::Unwritten(d.0.saturating_add(skip)),
                Place::Inline => ExtentKind::Inline,
                Place::Encoded => ExtentKind::Encoded,
            };
            let extent = Extent {
                offset: at,
                bytes: end - at,
                kind,
            };
            match out.last_mut() {
                Some(last) if joins(last, &extent) => last.bytes += extent.bytes,
                _ => out.push(extent),
            }
            at = end;
        }
        Ok(out)
    }

    /// The handle below.
    #[must_use]
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }
}

/// Whether `next` continues where `last` ends.
fn joins(last: &Extent, next: &Extent) -> bool {
    match (last.kind, next.kind) {
        (ExtentKind::Hole, ExtentKind::Hole) => true,
        (ExtentKind::Data(a), ExtentKind::Data(b))
        | (ExtentKind::Unwritten(a), ExtentKind::Unwritten(b)) => a + last.bytes == b,
        _ => false,
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut cursor = self.cursor.lock();
        let n = self.read_at(buf, *cursor)?;
        *cursor += n as u64;
        Ok(n)
    }
}

impl Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut cursor = self.cursor.lock();
        if self.handle.flags().append {
            let at = self.append(buf)?;
            *cursor = at + buf.len() as u64;
            return Ok(buf.len());
        }
        let n = self.write_at(buf, *cursor)?;
        *cursor += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut cursor = self.cursor.lock();
        let (base, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (*cursor, by),
            SeekFrom::End(by) => (self.metadata()?.len(), by),
        };
        *cursor = base.checked_add_signed(by).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a position before the file's start",
            )
        })?;
        Ok(*cursor)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({})", self.handle.inode().ino())
    }
}
