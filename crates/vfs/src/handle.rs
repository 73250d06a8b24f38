//! Open files: positioned reads and writes, synchronisation, space management.

use crate::engine::{FallocMode, Intent, Mapping, Place, SyncScope};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode_cache::InodeRef;
use crate::locks::WriteGuard;
use crate::permissions::{Access, Caps, Cred};
use crate::types::{FileKind, InodeFlags, Timestamp};
use crate::vfs::{Core, Vfs};
use blockwright_device::{AlignedBuf, DevOffset, Flags, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a write waits for before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Nothing.
    #[default]
    None,
    /// The data and what is needed to read it back are durable (`O_DSYNC`).
    Data,
    /// All of the inode is durable (`O_SYNC`).
    All,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Writes go to the end, atomically.
    pub append: bool,
    /// With `append`: the front end finds the end itself, and writes go to the offset they name (FUSE
    /// with the kernel's writeback cache).
    pub append_resolved: bool,
    /// Cut to nothing on opening.
    pub truncate: bool,
    /// Bypass the page cache where alignment allows.
    pub direct: bool,
    /// What writes wait for.
    pub sync: SyncMode,
    /// Reads leave the access time alone.
    pub noatime: bool,
}

impl OpenFlags {
    /// For reading only.
    #[must_use]
    pub fn read_only() -> Self {
        OpenFlags {
            read: true,
            ..Self::default()
        }
    }

    /// For reading and writing.
    #[must_use]
    pub fn read_write() -> Self {
        OpenFlags {
            read: true,
            write: true,
            ..Self::default()
        }
    }
}

/// An open file. Dropping it closes it.
pub struct Handle {
    core: Arc<Core>,
    inode: InodeRef,
    flags: OpenFlags,
    strip: bool,
}

impl Vfs {
    /// Opens a regular file (or a directory, for `sync` only).
    ///
    /// # Errors
    /// `AccessDenied`, `NotPermitted`, `IsDirectory`, `ReadOnly`, `Invalid` for other kinds.
    pub fn open(&self, cred: &Cred, inode: &InodeRef, flags: OpenFlags) -> Result<Arc<Handle>> {
        let op = "open";
        self.core.alive(op)?;
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory if flags.write || flags.truncate => {
                return Err(Error::new(ErrorKind::IsDirectory, op).ino(inode.ino()));
            }
            FileKind::Directory => {}
            FileKind::Symlink => {
                return Err(Error::new(ErrorKind::TooManySymlinks, op).ino(inode.ino()));
            }
            _ => return Err(Error::new(ErrorKind::Invalid, op).ino(inode.ino())),
        }
        let mut want = Access::empty();
        want.set(Access::READ, flags.read);
        want.set(Access::WRITE, flags.write || flags.truncate);
        self.check(cred, inode, want)?;
        let attr = inode.attr();
        if attr.flags.contains(InodeFlags::APPEND)
            && (flags.truncate || (flags.write && !flags.append))
        {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
        }
        if flags.noatime && cred.checked_here() && !cred.owns(&attr) {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
        }
        if flags.truncate && attr.size != 0 {
            self.core.writable(op)?;
            let lock = inode.lock.write();
            self.core.truncate(inode, 0, &lock)?;
        }
        if flags.write {
            inode.pages.writers.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Arc::new(Handle {
            core: Arc::clone(&self.core),
            inode: inode.clone(),
            flags,
            strip: !cred.capable(Caps::FSETID),
        }))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.flags.write && self.inode.pages.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.core.engine.release_write(&self.inode);
        }
    }
}

impl Handle {
    /// The open inode.
    #[must_use]
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }

    /// How it was opened.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn need_read(&self, op: &'static str) -> Result<()> {
        self.core.alive(op)?;
        if self.inode.kind() != FileKind::Regular {
            return Err(Error::new(ErrorKind::IsDirectory, op).ino(self.inode.ino()));
        }
        if !self.flags.read {
            return Err(Error::new(ErrorKind::AccessDenied, op).ino(self.inode.ino()));
        }
        Ok(())
    }

    fn need_write(&self, op: &'static str) -> Result<()> {
        self.core.writable(op)?;
        if !self.flags.write {
            return Err(Error::new(ErrorKind::AccessDenied, op).ino(self.inode.ino()));
        }
        Ok(())
    }

    /// Reads at `offset`; short only at the end of the file.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `AccessDenied` when not opened for reading.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.need_read("read")?;
        let n = self.core.read_into(&self.inode, buf, offset)?;
        if !self.flags.noatime && n > 0 {
            self.core.touch_atime(&self.inode);
        }
        Ok(n)
    }

    /// Reads at `offset` as counted slices, without copying where the bytes are in memory. Together
    /// they are `len` bytes, or fewer at the end of the file.
    ///
    /// # Errors
    /// As [`Handle::read_at`].
    pub fn read_slices(&self, offset: u64, len: usize) -> Result<Vec<IoSlice>> {
        let size = self.inode.size();
        let len = len.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut buf = AlignedBuf::zeroed(len);
        let n = self.read_at(&mut buf, offset)?;
        Ok(vec![IoSlice::new(Arc::new(buf), 0..n)])
    }

    /// Writes at `offset` (at the end for append handles). All of `buf`, or as much as fits the volume.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooLarge`, `Io`; `AccessDenied` when not opened for writing.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let at_end = self.flags.append && !self.flags.append_resolved;
        self.write_somewhere(buf, (!at_end).then_some(offset))
            .map(|(_, n)| n)
    }

    /// Writes at the end of the file, atomically; returns where that was.
    ///
    /// # Errors
    /// As [`Handle::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.write_somewhere(buf, None).map(|(at, _)| at)
    }

    fn write_somewhere(&self, buf: &[u8], offset: Option<u64>) -> Result<(u64, usize)> {
        self.need_write("write")?;
        let (at, n) = {
            let lock = self.inode.lock.write();
            if self.strip && self.core.has_privileges(&self.inode) {
                self.core.strip_privileges(&self.inode)?;
            }
            let at = offset.unwrap_or_else(|| self.inode.size());
            (at, self.core.write_from(&self.inode, buf, at, &lock)?)
        };
        match self.flags.sync {
            SyncMode::None => {}
            SyncMode::Data => self.sync(SyncScope::Data)?,
            SyncMode::All => self.sync(SyncScope::All)?,
        }
        Ok((at, n))
    }

    /// Takes set-id bits and file capabilities off, when there are any: for front ends that are told
    /// when by their kernel (and so open with credentials that keep them).
    ///
    /// # Errors
    /// `ReadOnly`, `Io`, `Poisoned`.
    pub fn strip_privileges(&self) -> Result<()> {
        if self.core.has_privileges(&self.inode) {
            self.need_write("strip privileges")?;
            let _lock = self.inode.lock.write();
            self.core.strip_privileges(&self.inode)?;
        }
        Ok(())
    }

    /// Makes the file durable. A write error is reported once by every handle that was open.
    ///
    /// # Errors
    /// `Io` and what else the engine reports.
    pub fn sync(&self, scope: SyncScope) -> Result<()> {
        self.core.alive("sync")?;
        self.core.engine.sync_inode(&self.inode, scope)
    }

    /// Allocates, frees, zeroes, removes or inserts a range.
    ///
    /// # Errors
    /// `Invalid` for a bad range, `NotSupported`, `NoSpace`, `FileTooLarge`, `NotPermitted`.
    pub fn fallocate(&self, range: Range<u64>, mode: FallocMode) -> Result<()> {
        self.need_write("fallocate")?;
        let _lock = self.inode.lock.write();
        let _invalidate = self.inode.invalidate.write();
        self.core
            .engine
            .fallocate(&self.inode, range, mode, Timestamp::now())
    }

    /// The first byte at or after `offset` that holds data.
    ///
    /// # Errors
    /// `NoData` past the last data.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.seek(offset, false)
    }

    /// The first byte at or after `offset` that is in a hole; the end of the file counts as one.
    ///
    /// # Errors
    /// `NoData` past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.seek(offset, true)
    }

    fn seek(&self, offset: u64, hole: bool) -> Result<u64> {
        self.core.alive("seek")?;
        let _lock = self.inode.lock.read();
        let size = self.inode.size();
        let none = || Error::new(ErrorKind::NoData, "seek").ino(self.inode.ino());
        let mut at = offset;
        while at < size {
            let m = self.core.engine.map(&self.inode, at, size - at)?;
            let is_hole = matches!(m.place, Place::Hole | Place::Unwritten(_));
            if is_hole == hole {
                return Ok(at);
            }
            at = m.offset.saturating_add(m.bytes).max(at + 1);
        }
        if hole && offset < size {
            return Ok(size);
        }
        Err(none())
    }

    /// Where the file's bytes are, after writing back what has no place yet.
    ///
    /// # Errors
    /// As writing back.
    pub fn map(&self, offset: u64, bytes: u64) -> Result<Mapping> {
        self.core.alive("map")?;
        let _lock = self.inode.lock.read();
        self.core.engine.map(&self.inode, offset, bytes)
    }

    /// Truncates or extends.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, `Io`; `AccessDenied` when not opened for writing.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.need_write("truncate")?;
        let lock = self.inode.lock.write();
        if self.strip && self.core.has_privileges(&self.inode) {
            self.core.strip_privileges(&self.inode)?;
        }
        self.core.truncate(&self.inode, size, &lock)
    }

    /// Copies a range from this file to another of the same volume; returns how much, less only at the
    /// end of this file or when the volume is full.
    ///
    /// # Errors
    /// `Invalid` when the ranges overlap in one file; as reading and writing.
    pub fn copy_range(&self, from: u64, to: &Handle, to_offset: u64, len: u64) -> Result<u64> {
        const CHUNK: u64 = 1 << 20;
        if self.inode.ino() == to.inode.ino()
            && from < to_offset.saturating_add(len)
            && to_offset < from.saturating_add(len)
        {
            return Err(Error::new(ErrorKind::Invalid, "copy range").ino(self.inode.ino()));
        }
        let mut done = 0;
        let mut buf = vec![0; usize::try_from(CHUNK.min(len)).unwrap_or(1 << 20)];
        while done < len {
            let want = usize::try_from(CHUNK.min(len - done)).unwrap_or(buf.len());
            let n = self.read_at(&mut buf[..want], from.saturating_add(done))?;
            if n == 0 {
                break;
            }
            let n = match to.write_at(&buf[..n], to_offset.saturating_add(done)) {
                Ok(n) => n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            done += n as u64;
        }
        Ok(done)
    }
}

impl Core {
    pub(crate) fn truncate(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        _lock: &WriteGuard<'_, ()>,
    ) -> Result<()> {
        let _invalidate = inode.invalidate.write();
        self.engine.truncate(inode, size, Timestamp::now())
    }

    fn read_into(&self, inode: &Arc<Inode>, buf: &mut [u8], offset: u64) -> Result<usize> {
        let _lock = inode.lock.read();
        let n = buf
            .len()
            .min(usize::try_from(inode.size().saturating_sub(offset)).unwrap_or(usize::MAX));
        self.read_blocks(inode, &mut buf[..n], offset)?;
        Ok(n)
    }

    fn read_blocks(&self, inode: &Arc<Inode>, buf: &mut [u8], offset: u64) -> Result<()> {
        let block = u64::from(self.engine.block_bytes());
        let mut done = 0usize;
        while done < buf.len() {
            let at = offset + done as u64;
            let m = self.engine.map(inode, at, (buf.len() - done) as u64)?;
            let skip = at - m.offset;
            let n = usize::try_from(m.bytes - skip)
                .unwrap_or(usize::MAX)
                .min(buf.len() - done);
            let out = &mut buf[done..done + n];
            match m.place {
                Place::Hole | Place::Delayed | Place::Unwritten(_) => out.fill(0),
                Place::Inline => {
                    let bytes = self.engine.read_inline(inode)?;
                    for (i, b) in out.iter_mut().enumerate() {
                        *b = bytes.get(at as usize + i).copied().unwrap_or(0);
                    }
                }
                Place::Mapped(dev) => {
                    let start = skip / block * block;
                    let head = (skip - start) as usize;
                    let len = (head + n).next_multiple_of(block as usize);
                    let mut tmp = vec![0; len];
                    self.device
                        .read_at(DevOffset(dev.0 + start), &mut tmp)
                        .map_err(|e| Error::io("read", e).ino(inode.ino()))?;
                    out.copy_from_slice(&tmp[head..head + n]);
                }
            }
            done += n;
        }
        Ok(())
    }

    fn write_from(
        &self,
        inode: &Arc<Inode>,
        buf: &[u8],
        offset: u64,
        _lock: &WriteGuard<'_, ()>,
    ) -> Result<usize> {
        let op = "write";
        let block = u64::from(self.engine.block_bytes());
        let end = offset
            .checked_add(buf.len() as u64)
            .filter(|e| *e <= self.engine.file_bytes_max(inode))
            .ok_or_else(|| Error::new(ErrorKind::FileTooLarge, op).ino(inode.ino()))?;
        if buf.is_empty() {
            return Ok(0);
        }
        let start = offset / block * block;
        let stop = end.next_multiple_of(block);
        self.engine.reserve(inode, start..stop)?;
        let size = inode.size();
        let mut data = vec![0; (stop - start) as usize];
        let known = (size.clamp(start, stop) - start) as usize;
        self.read_blocks(inode, &mut data[..known], start)?;
        let head = (offset - start) as usize;
        data[head..head + buf.len()].copy_from_slice(buf);
        let now = Timestamp::now();
        inode.update_attr(|a| {
            a.size = a.size.max(end);
            a.mtime = now;
            a.ctime = now;
        });
        let data_end = size.max(end);
        let mut at = start;
        while at < stop {
            let t = self
                .engine
                .allocate(inode, at..stop, data_end, Intent::Writeback)?;
            let part = &data[(at - start) as usize..(at - start + t.bytes) as usize];
            match t.device {
                Some(dev) => {
                    let wrote = self.device.write_at(dev, part, Flags::empty());
                    if let Err(e) = wrote {
                        if t.commit {
                            self.engine.abandon_write(inode, &t);
                        }
                        return Err(Error::io(op, e).ino(inode.ino()));
                    }
                    if t.commit {
                        self.engine.commit_write(inode, &t, data_end)?;
                    }
                }
                None => self.engine.write_inline(
                    inode,
                    &data[..(data_end - start) as usize],
                    data_end,
                )?,
            }
            at += t.bytes;
        }
        self.engine.write_attr(inode)?;
        Ok(buf.len())
    }
}
