//! Changing a file's size and its blocks: truncation, fallocate, and finding data and holes.
//!
//! All operations run with the inode lock and `invalidate` held exclusively and with the file's
//! writeback owned, so that no page is inserted, dirtied or written while blocks go away. The owner
//! never takes the inode lock, so waiting for it here cannot deadlock.

use crate::core::Core;
use crate::engine::{FallocMode, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode::holds::WritebackOwner;
use crate::inode::times::TimesKeeper;
use crate::io::buffered::INLINE_BYTES_MAX;
use crate::io::readahead::Invalidate;
use crate::locks::WriteGuard;
use crate::types::{FileKind, Timestamp};
use crate::writeback::Stream;
use std::ops::Range;
use std::sync::Arc;

impl Core {
    /// Sets a regular file's size.
    pub(crate) fn truncate(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        _lock: &WriteGuard<'_, ()>,
    ) -> Result<()> {
        let op = "truncate";
        if size > self.engine.file_bytes_max(inode) {
            return Err(Error::new(ErrorKind::FileTooLarge, op).ino(inode.ino()));
        }
        let block = self.block();
        let old = inode.size();
        let guard = inode.invalidate.write();
        inode.pages.wait_direct();
        inode.extent_cache.forget();
        inode.placed.forget();
        let invalidate = Invalidate::Held(&guard);
        // Writeback with the old size in mind must not commit after the new size is set.
        let owner = WritebackOwner::acquire(inode);
        if size > old {
            self.prepare_growth(inode, size, &invalidate, Some(&owner))?;
        }
        // Before anything is cut off: what is written now may become visible with a larger size than the new one.
        self.write_open_end(inode, size, Some(&owner))?;
        if size < old {
            let cut = size.next_multiple_of(block);
            if size < cut {
                self.zero_partial(inode, size..cut, &invalidate)?;
            }
            self.drop_pages(inode, cut..u64::MAX);
        }
        let now = Timestamp::now();
        self.engine.truncate(inode, size, now)?;
        inode.update_attr(|a| {
            a.size = size;
            a.mtime = now;
            a.ctime = now;
        });
        Ok(())
    }

    /// Drops cached pages, dirty or not, and what was reserved for them. Writeback is owned.
    pub(crate) fn drop_pages(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let dirty = inode
            .pages
            .lock()
            .drop_range(&self.budget, range, self.block());
        inode.pages.wake_waiters();
        for r in dirty {
            self.engine.unreserve(inode, r);
        }
    }

    /// Writes back and drops the pages in a block-aligned range. The first error of it.
    fn flush_and_drop(
        &self,
        inode: &Arc<Inode>,
        owner: &Arc<WritebackOwner>,
        range: Range<u64>,
    ) -> Result<()> {
        self.write_owned_now(owner, range.clone())?;
        self.drop_pages(inode, range);
        Ok(())
    }

    /// See [`FallocMode`].
    pub(crate) fn fallocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
        _lock: &WriteGuard<'_, ()>,
        times: TimesKeeper,
    ) -> Result<()> {
        let op = "fallocate";
        let invalid = || Error::new(ErrorKind::Invalid, op).ino(inode.ino());
        if inode.kind() != FileKind::Regular || range.is_empty() {
            return Err(invalid());
        }
        self.engine.check_fallocate(inode, mode)?;
        let block = self.block();
        let size = inode.size();
        let len = range.end - range.start;
        let too_large = || Error::new(ErrorKind::FileTooLarge, op).ino(inode.ino());
        let max = self.engine.file_bytes_max(inode);
        let aligned = range.start.is_multiple_of(block) && range.end.is_multiple_of(block);
        let new_size = match mode {
            FallocMode::Allocate { keep_size } | FallocMode::ZeroRange { keep_size } => {
                if range.end > max {
                    return Err(too_large());
                }
                if keep_size { size } else { size.max(range.end) }
            }
            FallocMode::PunchHole => size,
            FallocMode::CollapseRange if aligned && range.end < size => size - len,
            FallocMode::InsertRange if aligned && range.start < size => size
                .checked_add(len)
                .filter(|s| *s <= max)
                .ok_or_else(too_large)?,
            FallocMode::CollapseRange | FallocMode::InsertRange => return Err(invalid()),
        };
        let guard = inode.invalidate.write();
        inode.pages.wait_direct();
        inode.extent_cache.forget();
        inode.placed.forget();
        let invalidate = Invalidate::Held(&guard);
        let owner = WritebackOwner::acquire(inode);
        let zeroes = matches!(mode, FallocMode::PunchHole | FallocMode::ZeroRange { .. });
        if zeroes && new_size == size && size <= INLINE_BYTES_MAX {
            // Where the data lives is known when it is written.
            {
                let mut stream = Stream::new(self);
                self.write_owned(&mut stream, &owner, 0..u64::MAX);
            }
            if self.is_inline(inode)? {
                return self.zero_inline(inode, range, &invalidate, times);
            }
        }
        if new_size > size
            && matches!(
                mode,
                FallocMode::Allocate { .. } | FallocMode::ZeroRange { .. }
            )
        {
            self.prepare_growth(inode, new_size, &invalidate, Some(&owner))?;
        }
        let mut flush = range.start / block * block
            ..range
                .end
                .checked_next_multiple_of(block)
                .unwrap_or(u64::MAX / block * block);
        match mode {
            // Data that outgrows the inode was just brought into the cache, and must be written too.
            FallocMode::Allocate { .. } if size <= INLINE_BYTES_MAX => flush.start = 0,
            FallocMode::Allocate { .. } => {}
            FallocMode::PunchHole | FallocMode::ZeroRange { .. } => {
                self.zero_edges(inode, &range, &invalidate)?;
            }
            FallocMode::CollapseRange | FallocMode::InsertRange => flush.end = u64::MAX,
        }
        self.write_open_end(inode, new_size, Some(&owner))?;
        self.flush_and_drop(inode, &owner, flush)?;
        // No other thread sets times meanwhile: the inode is locked.
        let (mtime, ctime) = times.of_change(inode);
        let allocate = || self.engine.fallocate(inode, range.clone(), mode, mtime);
        match mode {
            // Not to be done twice.
            FallocMode::CollapseRange | FallocMode::InsertRange => allocate(),
            _ => self.with_room(allocate),
        }?;
        inode.update_attr(|a| {
            a.size = new_size;
            a.mtime = mtime;
            a.ctime = ctime;
        });
        if ctime != mtime {
            self.mark_lazy(inode);
        }
        Ok(())
    }

    /// Zeroes a range of data that lives in the inode: there are no blocks to free or to convert.
    fn zero_inline(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        invalidate: &Invalidate<'_>,
        times: TimesKeeper,
    ) -> Result<()> {
        let block = self.block();
        let end = range.end.min(inode.size());
        let mut at = range.start;
        while at < end {
            let stop = ((at / block + 1) * block).min(end);
            self.zero_partial(inode, at..stop, invalidate)?;
            at = stop;
        }
        let (mtime, ctime) = times.of_change(inode);
        inode.update_attr(|a| {
            a.mtime = mtime;
            a.ctime = ctime;
        });
        self.mark_lazy(inode);
        Ok(())
    }

    /// Zeroes the partial blocks at both ends of a range.
    fn zero_edges(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
        invalidate: &Invalidate<'_>,
    ) -> Result<()> {
        let block = self.block();
        // Behind the end of the file there is nothing to zero.
        let end = range.end.min(inode.size().next_multiple_of(block));
        if range.start >= end {
            return Ok(());
        }
        let first = range.start / block * block;
        let last = end / block * block;
        if range.start > first {
            self.zero_partial(inode, range.start..end.min(first + block), invalidate)?;
        }
        if end > last && (last > first || range.start == first) {
            self.zero_partial(inode, last.max(range.start)..end, invalidate)?;
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`. Inode lock held shared.
    pub(crate) fn seek(&self, inode: &Arc<Inode>, offset: u64, hole: bool) -> Result<u64> {
        let size = inode.size();
        let none = || Error::new(ErrorKind::NoData, "seek").ino(inode.ino());
        if offset >= size {
            return Err(none());
        }
        // Whether a preallocated block holds data is known when its pages are written.
        self.write_range(inode, offset / self.block() * self.block()..u64::MAX);
        let mut at = offset;
        while at < size {
            let m = self.engine.map(inode, at, size - at)?;
            let is_hole = matches!(m.place, Place::Hole | Place::Unwritten(_) | Place::Reserved);
            if is_hole == hole {
                return Ok(at);
            }
            at = m.offset.saturating_add(m.bytes).max(at + 1);
        }
        if hole { Ok(size) } else { Err(none()) }
    }
}
