//! Buffered writes: reserve, copy into folios, raise the size; writeback does the rest.
//!
//! # Locks
//! The inode lock: exclusive when the size may grow, shared otherwise. Each folio's copy is atomic
//! under the table's lock, so overwrites of one file run beside each other and beside readers.

use crate::core::Core;
use crate::engine::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode::holds::WritebackOwner;
use crate::inode::times::TimesKeeper;
use crate::io::readahead::Invalidate;
use crate::types::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// No format keeps more than this in an inode.
pub(crate) const INLINE_BYTES_MAX: u64 = 4096;

/// Proof that the inode lock is held.
pub(crate) enum InodeLock<'a> {
    #[expect(dead_code, reason = "the guard is proof, not data")]
    /// Shared: the write must not grow the file.
    Shared(&'a crate::locks::ReadGuard<'a, ()>),
    /// Exclusively.
    #[expect(dead_code, reason = "the guard is proof, not data")]
    Exclusive(&'a crate::locks::WriteGuard<'a, ()>),
}

impl Core {
    /// How much of a write of `len` bytes at `offset` the format allows.
    pub(crate) fn clamp_write(&self, inode: &Inode, offset: u64, len: usize) -> Result<usize> {
        // What lies in the file already, the engine need not be asked for.
        if offset.saturating_add(len as u64) <= inode.size() {
            return Ok(len);
        }
        let max = self.engine.file_bytes_max(inode);
        if len > 0 && offset >= max {
            return Err(Error::new(ErrorKind::FileTooLarge, "write").ino(inode.ino()));
        }
        Ok(len.min(usize::try_from(max - offset.min(max)).unwrap_or(usize::MAX)))
    }

    /// Writes into the page cache. All of `buf`, or as much as fits the volume.
    pub(crate) fn write_buffered(
        &self,
        inode: &Arc<Inode>,
        buf: &[u8],
        offset: u64,
        lock: &InodeLock<'_>,
        times: TimesKeeper,
    ) -> Result<usize> {
        let buf = &buf[..self.clamp_write(inode, offset, buf.len())?];
        if buf.is_empty() {
            return Ok(0);
        }
        let block = self.block();
        let size = inode.size();
        // Blocks that a direct write is about to commit must not be reserved beside it.
        let from = offset.min(size) / block * block;
        let to = (offset + buf.len() as u64).next_multiple_of(block);
        inode.pages.wait_allocating(&(from..to));
        let size = size.max(inode.size());
        let grows = offset + buf.len() as u64 > size;
        debug_assert!(!grows || matches!(lock, InodeLock::Exclusive(_)));
        let mut held = None;
        let mut inline = false;
        let mut leaving_inode = if grows {
            self.prepare_growth(inode, offset, &Invalidate::Take, None)?
        } else {
            if self.is_inline(inode)? {
                // Before it is reserved, for the reason given at `prepare_growth`.
                held = Some(self.fill_block(inode, 0, &Invalidate::Take)?);
                inline = true;
            }
            None
        };
        // Asked for by the byte: rounded up, what fits the inode would leave it.
        inline |= leaving_inode.is_some() && self.is_inline(inode)?;
        let mut done = 0;
        let mut failed = None;
        let quantum = self.balance_bytes();
        while done < buf.len() && failed.is_none() {
            let at = offset + done as u64;
            // Pieces end at multiples of the balance quantum, so that long writes stay aligned.
            let piece_end = ((at / quantum + 1) * quantum).min(offset + buf.len() as u64);
            // Before the look at what was lost, which it would change.
            self.make_room_for(piece_end - at);
            let stop = piece_end.next_multiple_of(block);
            let (lost, reserved) = {
                let table = inode.pages.lock();
                // What is dirty is reserved already.
                let dirty = table.is_all_dirty(at / block * block..stop);
                (table.lost(), dirty && !(inline && grows))
            };
            let (fits, new, error) = match reserved {
                true => (piece_end, false, None),
                false => self.reserve_some(inode, at, piece_end, inline),
            };
            failed = error;
            let piece = &buf[done..done + (fits - at) as usize];
            if piece.is_empty() {
                break;
            }
            match self.copy_in(inode, piece, at, new.then_some(lost)) {
                Ok(()) => done += piece.len(),
                Err(e) => {
                    self.unreserve_clean(inode, at / block * block, fits.next_multiple_of(block));
                    failed = Some(e);
                }
            }
            // By now, the size shows that the data does not fit the inode.
            leaving_inode = None;
            held = None;
            inline = false;
            self.balance(inode);
        }
        drop((leaving_inode, held));
        if done > 0 {
            if times == TimesKeeper::Vfs {
                let now = Timestamp::now();
                inode.update_attr(|a| {
                    a.mtime = now;
                    a.ctime = now;
                });
                self.mark_lazy(inode);
            }
            self.counters
                .bytes_written
                .fetch_add(done as u64, Ordering::Relaxed);
            return Ok(done);
        }
        match failed {
            Some(e) => Err(e),
            None => Ok(0),
        }
    }

    /// Reserves room for `at..end`, or for as much of its start as fits. Where that ends, whether all of it was a hole
    /// until now, and why it is not all. `inline`: the data is in the inode, and may stay there.
    fn reserve_some(
        &self,
        inode: &Arc<Inode>,
        at: u64,
        end: u64,
        inline: bool,
    ) -> (u64, bool, Option<Error>) {
        let block = self.block();
        let start = at / block * block;
        let stop = end.next_multiple_of(block);
        let asked = if inline { end.max(inode.size()) } else { stop };
        let error = match self.engine.reserve_hole(inode, start..asked) {
            Ok(new) => return (end, new, None),
            Err(e) if matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::QuotaExceeded) => e,
            Err(e) => return (at, false, Some(e)),
        };
        if error.kind() == ErrorKind::NoSpace
            && self.reclaim_removed()
            && self.engine.reserve(inode, start..stop).is_ok()
        {
            return (end, false, None);
        }
        // Nearly full: block by block.
        let mut fits = start;
        while fits < stop && self.engine.reserve(inode, fits..fits + block).is_ok() {
            fits += block;
        }
        (fits.clamp(at, end), false, (fits < stop).then_some(error))
    }

    /// Gives back the reservation of blocks in the range that did not become dirty.
    fn unreserve_clean(&self, inode: &Arc<Inode>, start: u64, stop: u64) {
        let mut clean = Vec::new();
        {
            let table = inode.pages.lock();
            let mut at = start;
            while at < stop {
                if !table.has_unwritten(at..at + self.block()) {
                    clean.push(at..at + self.block());
                }
                at += self.block();
            }
        }
        for r in clean {
            self.engine.unreserve(inode, r);
        }
    }

    fn make_room_for(&self, bytes: u64) {
        self.budget
            .make_room(bytes.min(crate::cache::page_cache::FOLIO_BYTES_MAX));
    }

    /// Copies reserved bytes into folios. `zeroes`: all of their blocks held zeroes when this was [`Table::lost`], and the
    /// inode has been locked ever since: so, as long as nothing was lost, they hold what the cache has of them.
    ///
    /// [`Table::lost`]: crate::cache::page_cache::Table::lost
    fn copy_in(
        &self,
        inode: &Arc<Inode>,
        data: &[u8],
        offset: u64,
        zeroes: Option<u64>,
    ) -> Result<()> {
        let block = self.block();
        let mut done = 0;
        let mut held = None;
        while done < data.len() {
            let at = offset + done as u64;
            if done > 0 {
                // The caller has made room for the first folio.
                self.make_room_for((data.len() - done) as u64);
            }
            let outcome = {
                let mut table = inode.pages.lock();
                let size = inode.size();
                let outcome =
                    table.write(inode, &self.budget, at, &data[done..], size, block, zeroes);
                if let Ok((n, was_clean)) = outcome {
                    let end = at + n as u64;
                    if end > size {
                        inode.update_attr(|a| a.size = a.size.max(end));
                    }
                    if was_clean {
                        table.dirty_since = self.clock_ms();
                    }
                }
                outcome
            };
            match outcome {
                Ok((n, was_clean)) => {
                    if was_clean {
                        self.note_dirty(inode);
                    }
                    done += n;
                    held = None;
                }
                Err(needed) => held = Some(self.fill_block(inode, needed, &Invalidate::Take)?),
            }
        }
        drop(held);
        Ok(())
    }

    /// Before the file grows by a write at `offset` or a new size: the old last block's tail becomes
    /// zero on disk too, and inline data comes into the cache, to leave the inode with the rest if that does not fit.
    ///
    /// In the latter case, and where writeback may put the data into the inode, the file's writeback must stay owned until the
    /// size has grown. Otherwise data could be written back into the inode in between, stay there, and lose the block that was
    /// reserved for it. `owner` is the owner, if there is one already; otherwise one is returned, to be dropped then.
    pub(crate) fn prepare_growth(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        invalidate: &Invalidate<'_>,
        owner: Option<&Arc<WritebackOwner>>,
    ) -> Result<Option<Arc<WritebackOwner>>> {
        let size = inode.size();
        let block = self.block();
        if size == 0 {
            return Ok(None);
        }
        let last = size / block * block;
        let may_be_inline = size <= INLINE_BYTES_MAX
            && (self.is_inline(inode)? || self.engine.may_go_inline(inode));
        let taken = match owner {
            None if may_be_inline => Some(WritebackOwner::acquire(inode)),
            _ => None,
        };
        if !size.is_multiple_of(block) && offset > size {
            self.zero_partial(inode, size..last + block, invalidate)?;
        }
        if !may_be_inline || !self.is_inline(inode)? {
            return Ok(taken);
        }
        let mut at = 0;
        while at < size {
            // Read before reserving: a reserved block may count as delayed, which reads as zeroes.
            let held = self.fill_block(inode, at, invalidate)?;
            self.engine.reserve(inode, at..size.min(at + block))?;
            self.dirty_block(inode, at..at);
            drop(held);
            at += block;
        }
        Ok(taken)
    }

    /// Whether the file has data that lives in its inode.
    pub(crate) fn is_inline(&self, inode: &Arc<Inode>) -> Result<bool> {
        let size = inode.size();
        Ok(size > 0
            && size <= INLINE_BYTES_MAX
            && self.engine.map(inode, 0, self.block())?.place == Place::Inline)
    }

    /// Zeroes part of one block through the cache, if the block holds anything.
    pub(crate) fn zero_partial(
        &self,
        inode: &Arc<Inode>,
        range: std::ops::Range<u64>,
        invalidate: &Invalidate<'_>,
    ) -> Result<()> {
        let block = self.block();
        let start = range.start / block * block;
        let dirty = inode.pages.lock().has_unwritten(start..start + block);
        let mut stop = start + block;
        if self.is_inline(inode)? {
            stop = stop.min(inode.size());
        }
        if !dirty {
            match self.engine.map(inode, start, block)?.place {
                Place::Mapped(_) | Place::Inline | Place::Encoded => {}
                Place::Hole | Place::Unwritten(_) | Place::Reserved | Place::Delayed => {
                    return Ok(());
                }
            }
        }
        let held = self.fill_block(inode, start, invalidate)?;
        self.engine.reserve(inode, start..stop)?;
        self.dirty_block(inode, range);
        drop(held);
        Ok(())
    }

    /// Zeroes `range` of an up-to-date block and makes the block dirty.
    fn dirty_block(&self, inode: &Arc<Inode>, range: std::ops::Range<u64>) {
        let block = self.block();
        let was_clean = {
            let mut table = inode.pages.lock();
            let was_clean = table.zero(&self.budget, range, block);
            if was_clean {
                table.dirty_since = self.clock_ms();
            }
            was_clean
        };
        if was_clean {
            self.note_dirty(inode);
        }
    }
}
