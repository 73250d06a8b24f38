//! Open files: positioned reads and writes, synchronisation, space management.
//!
//! A handle owns what one opener knows: its rights, its readahead window, and how many of the file's write errors it has reported. `io` reads
//! and writes, `space` changes what is allocated, and all handles of a file share its inode and pages.

use crate::core::Core;
use crate::core::InodeRef;
use crate::engine::{FallocMode, Mapping, SyncScope};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::permissions::Cred;
use crate::inode::times::TimesKeeper;
use crate::io::buffered::InodeLock;
use crate::io::readahead::Readahead;
use crate::locks::{Mutex, Rank};
use crate::types::{FileKind, InodeFlags};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

impl SyncMode {
    /// What has to be synchronised.
    pub(crate) fn scope(self) -> Option<SyncScope> {
        match self {
            SyncMode::None => None,
            SyncMode::Data => Some(SyncScope::Data),
            SyncMode::All => Some(SyncScope::All),
        }
    }
}

/// The caller above a handle, as far as it does itself what the vfs otherwise does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FrontEnd {
    /// A program: nothing is cached above the handle, and appends go to the end that the vfs knows.
    #[default]
    Program,
    /// The kernel's FUSE client. It caches what it reads, and it resolves the end of the file for appends.
    FuseClient,
    /// The kernel's FUSE client, with a file that a program opened with `O_DIRECT`. The client reports a short write as an
    /// I/O error, so a write that comes to less than asked for fails with the reason.
    FuseClientDirect,
}

impl FrontEnd {
    /// Whether large reads need not be cached here as well (`MountOptions::read_past_bytes`).
    pub(crate) fn caches_reads(self) -> bool {
        self != FrontEnd::Program
    }

    /// Whether writes of a handle open for appending go to the offset that they name.
    pub(crate) fn resolves_appends(self) -> bool {
        self != FrontEnd::Program
    }

    /// Whether a write that comes to less than asked for fails with the reason.
    pub(crate) fn short_write_is_error(self) -> bool {
        self == FrontEnd::FuseClientDirect
    }
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
    /// Cut to nothing on opening.
    pub truncate: bool,
    /// Bypass the page cache where alignment allows.
    pub direct: bool,
    /// The duties that the caller above the handle takes over.
    pub front_end: FrontEnd,
    /// What writes wait for.
    pub sync: SyncMode,
    /// Reads leave the access time alone.
    pub noatime: bool,
}

impl OpenFlags {
    /// Whether writes go to the end that the vfs knows, whatever offset they name.
    pub(crate) fn appends_here(&self) -> bool {
        self.append && !self.front_end.resolves_appends()
    }

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
    /// The writer whose writes take set-id bits off; none for one that may keep them.
    strips: Option<Arc<Cred>>,
    readahead: Mutex<Readahead>,
    /// How many of the file's write errors this handle knows of.
    errors_seen: AtomicU64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.flags.write && self.inode.pages.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.core.release_write(&self.inode);
        }
    }
}

impl Handle {
    pub(crate) fn new(
        core: &Arc<Core>,
        inode: &InodeRef,
        flags: OpenFlags,
        strips: Option<Arc<Cred>>,
    ) -> Arc<Self> {
        if flags.write {
            inode.pages.writers.fetch_add(1, Ordering::AcqRel);
        }
        Arc::new(Handle {
            core: Arc::clone(core),
            inode: inode.clone(),
            flags,
            strips,
            readahead: Mutex::new(Rank::Leaf, Readahead::default()),
            errors_seen: AtomicU64::new(inode.pages.error_count()),
        })
    }

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

    /// As [`Handle::need_write`], for a change that is made now: also a handle that was open before changes no immutable file. Data
    /// that a front end's cache has accepted before is still written.
    fn need_change(&self, op: &'static str, times: TimesKeeper) -> Result<()> {
        self.need_write(op)?;
        if times == TimesKeeper::Vfs && self.inode.attr().flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(self.inode.ino()));
        }
        Ok(())
    }

    pub(crate) fn clamp_to_size(&self, offset: u64, len: usize) -> Range<u64> {
        let size = self.inode.size();
        let start = offset.min(size);
        start..start.saturating_add(len as u64).min(size)
    }

    /// Notes a read, and says what to read ahead of it.
    pub(crate) fn next_window(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let window_max = self.core.readahead_bytes.load(Ordering::Relaxed);
        self.readahead.lock().on_read(range, window_max)
    }

    pub(crate) fn after_read(&self, n: usize) {
        self.core
            .counters
            .bytes_read
            .fetch_add(n as u64, Ordering::Relaxed);
        if !self.flags.noatime {
            self.core.touch_atime(&self.inode);
        }
    }

    /// After a write through the cache: makes durable what the operation asks for.
    pub(crate) fn after_cached_write(&self, at: u64, n: usize, sync: SyncMode) -> Result<usize> {
        if let Some(scope) = sync.scope() {
            let block = self.core.block();
            let end = (at + n as u64).next_multiple_of(block);
            self.core.write_range(&self.inode, at / block * block..end);
            self.finish_sync(scope)?;
        }
        Ok(n)
    }

    /// Whether there was a write error that this handle has not reported.
    pub(crate) fn has_unseen_error(&self) -> bool {
        self.inode.pages.error_count() != self.errors_seen.load(Ordering::Acquire)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn may_overwrite(&self, times: TimesKeeper) -> Result<()> {
        self.need_change("write", times)
    }

    pub(crate) fn may_read(&self) -> Result<()> {
        self.need_read("read")
    }

    /// Whether a write by this handle must take set-id bits off first.
    pub(crate) fn must_strip(&self) -> bool {
        self.strips.as_ref().is_some_and(|cred| {
            self.core
                .has_privileges(&self.inode, |gid| cred.in_group(gid))
        })
    }

    /// Takes off the set-id bits and file capabilities that a write by this handle must remove. The inode lock is held exclusively.
    pub(crate) fn strip_held(&self) -> Result<()> {
        match &self.strips {
            Some(cred) => self
                .core
                .strip_privileges(&self.inode, |gid| cred.in_group(gid)),
            None => Ok(()),
        }
    }

    pub(crate) fn write_cached(
        &self,
        buf: &[u8],
        at: u64,
        lock: &InodeLock<'_>,
        times: TimesKeeper,
    ) -> Result<usize> {
        if matches!(lock, InodeLock::Exclusive(_)) && !self.core.is_direct_aligned(at, buf.len()) {
            // A block that is changed in part is read first. It must not be older than what they write.
            self.inode.pages.wait_overwrites();
        }
        let n = self
            .core
            .write_buffered(&self.inode, buf, at, lock, times)?;
        let through = self.flags.direct || self.core.write_through.load(Ordering::Relaxed);
        if through && n > 0 {
            // Unaligned direct writes go through the cache, but not to stay there.
            let block = self.core.block();
            let end = (at + n as u64).next_multiple_of(block);
            self.core.write_range(&self.inode, at / block * block..end);
            if let Some(e) = self.inode.pages.error_since(&self.errors_seen) {
                return Err(e);
            }
        }
        Ok(n)
    }

    /// Makes durable what was written before, and reports a write error that the handle has not reported.
    pub(crate) fn finish_sync(&self, scope: SyncScope) -> Result<()> {
        self.core.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        let failed = self.inode.pages.error_since(&self.errors_seen);
        if scope == SyncScope::All && self.inode.take_lazy() {
            self.core.engine.write_attr(&self.inode)?;
        }
        let synced = self.core.engine.sync_inode(&self.inode, scope);
        match failed {
            Some(e) => Err(e),
            None => synced,
        }
    }

    /// Takes set-id bits and file capabilities off, when there are any: for front ends whose kernel says when (and which
    /// therefore open with credentials that keep them). `in_group` returns whether the caller is in a group. Whether
    /// anything may have changed.
    ///
    /// # Errors
    /// `NotPermitted` for a protected file, `ReadOnly`, `Io`, `Poisoned`.
    pub fn strip_privileges(&self, in_group: impl Fn(u32) -> bool) -> Result<bool> {
        if !self.core.has_privileges(&self.inode, &in_group) {
            return Ok(false);
        }
        self.need_change("strip privileges", TimesKeeper::Vfs)?;
        let _lock = self.core.lock_to_change(&self.inode, "strip privileges")?;
        self.core.strip_privileges(&self.inode, in_group)?;
        Ok(true)
    }

    /// Makes the file durable. A write error is reported once by every handle that was open.
    ///
    /// # Errors
    /// `Io` and what else the engine reports.
    pub fn sync(&self, scope: SyncScope) -> Result<()> {
        self.core.alive("sync")?;
        if self.inode.kind() == FileKind::Regular {
            self.core.write_range_and_clean(&self.inode, 0..u64::MAX);
        }
        self.finish_sync(scope)
    }

    /// Allocates, frees, zeroes, removes or inserts a range.
    ///
    /// # Errors
    /// `Invalid` for a bad range, `Unsupported`, `NoSpace`, `FileTooLarge`, `NotPermitted`.
    pub fn fallocate(&self, range: Range<u64>, mode: FallocMode) -> Result<()> {
        self.may_fallocate(mode)?;
        self.allocate(range, mode, TimesKeeper::Vfs)
    }

    /// As [`Handle::fallocate`], for a front end that keeps the times (see [`TimesKeeper::FrontEnd`]).
    ///
    /// # Errors
    /// As [`Handle::fallocate`].
    pub fn fallocate_keeping_times(&self, range: Range<u64>, mode: FallocMode) -> Result<()> {
        self.may_fallocate(mode)?;
        self.allocate(range, mode, TimesKeeper::FrontEnd)
    }

    /// An append-only file may get blocks, and keeps what it has.
    fn may_fallocate(&self, mode: FallocMode) -> Result<()> {
        let op = "fallocate";
        let append_only = self.inode.attr().flags.contains(InodeFlags::APPEND);
        if append_only && !matches!(mode, FallocMode::Allocate { .. }) {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(self.inode.ino()));
        }
        Ok(())
    }

    /// [`Handle::fallocate`] without a question about append-only files: a copy makes holes in one as it writes zeroes.
    pub(crate) fn allocate(
        &self,
        range: Range<u64>,
        mode: FallocMode,
        times: TimesKeeper,
    ) -> Result<()> {
        // A request, not something that was in a cache, whatever keeps the times.
        self.need_change("fallocate", TimesKeeper::Vfs)?;
        self.core.make_room(0);
        let lock = self.core.lock_to_change(&self.inode, "fallocate")?;
        if self.must_strip() {
            self.strip_held()?;
        }
        self.core.fallocate(&self.inode, range, mode, &lock, times)
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
        self.core.seek(&self.inode, offset, hole)
    }

    /// Where the file's bytes are, after writing back what has no place yet.
    ///
    /// # Errors
    /// As writing back.
    pub fn map(&self, offset: u64, bytes: u64) -> Result<Mapping> {
        self.core.alive("map")?;
        let _lock = self.inode.lock.read();
        let block = self.core.block();
        let end = offset
            .saturating_add(bytes)
            .checked_next_multiple_of(block)
            .unwrap_or(u64::MAX);
        self.core
            .write_range(&self.inode, offset / block * block..end);
        self.core.engine.map(&self.inode, offset, bytes)
    }

    /// Truncates or extends.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, `Io`; `AccessDenied` when not opened for writing.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.need_change("truncate", TimesKeeper::Vfs)?;
        if self.inode.attr().flags.contains(InodeFlags::APPEND) {
            return Err(Error::new(ErrorKind::NotPermitted, "truncate").ino(self.inode.ino()));
        }
        let lock = self.core.lock_to_change(&self.inode, "truncate")?;
        if self.must_strip() {
            self.strip_held()?;
        }
        self.core.truncate(&self.inode, size, &lock)
    }

    /// The same file, past the cache and without synchronising, for copies: a handle of its own.
    pub(crate) fn past_cache(&self) -> Arc<Handle> {
        let flags = OpenFlags {
            direct: true,
            sync: SyncMode::None,
            ..self.flags
        };
        Handle::new(&self.core, &self.inode, flags, self.strips.clone())
    }
}
