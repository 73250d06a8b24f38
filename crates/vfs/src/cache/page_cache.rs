//! Cached pages of regular files.
//!
//! A file's cache is a table of *folios*: naturally aligned runs of 4 KiB to 256 KiB. A folio's bytes
//! are one counted buffer. Writeback and readers take counted slices of it; a writer changes it through
//! `Arc::make_mut`, which copies while a slice is alive. So no thread ever waits for pages to be stable,
//! and bytes in flight to the device never change.
//!
//! Which bytes are up to date is kept per folio, and which are dirty or under writeback per file, all
//! in units of the file-system block: an overwrite of whole blocks reads nothing.
//!
//! # Invariants
//! * Dirty and under-writeback blocks are up to date and never reclaimed.
//! * Bytes of an up-to-date block past the end of the file are zero.
//! * A block being read is marked `reading` before the mapping is asked for. A folio that is dropped or
//!   cut loses its id, so that a read that was under way cannot bring back old bytes.
//! * Bytes are copied, made dirty, and counted in the size under one hold of the table's lock, so that
//!   writeback never sees bytes without their size.
//! * One writeback stream per file at a time (the *owner*): pages reach the device in ascending order.
//!
//! # Locks
//! The table's lock has rank `PageTable`; attributes and the reclaim queue (leaves) are taken under it.
//! No engine and no device is called under it.

mod folios;
mod table;

use crate::cache::block_set::BlockSet;
use crate::cache::budget::{Budget, Tag};
use crate::error::Error;
use crate::locks::{Condvar, Mutex, MutexGuard, Rank};
use blockwright_device::{AlignedBuf, IoSlice};
use folios::Folios;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// No format has smaller blocks.
const KIB: u64 = 1 << 10;

/// Smallest folio.
pub(crate) const FOLIO_BYTES_MIN: u64 = 4 << 10;
/// Largest folio (or one block, when a block is larger).
pub(crate) const FOLIO_BYTES_MAX: u64 = 256 << 10;

/// A bit per block of a folio (256 KiB of 1 KiB blocks at most).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Bits([u64; 4]);

impl Bits {
    fn get(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    fn set(&mut self, range: Range<usize>, on: bool) {
        for i in range {
            if on {
                self.0[i / 64] |= 1 << (i % 64);
            } else {
                self.0[i / 64] &= !(1 << (i % 64));
            }
        }
    }

    fn none(&self) -> bool {
        self.0 == [0; 4]
    }
}

struct Folio {
    id: u64,
    bytes: u64,
    /// `None` until the first bytes arrive.
    buf: Option<Arc<AlignedBuf>>,
    uptodate: Bits,
    reading: Bits,
    tag: Arc<Tag>,
}

impl Folio {
    fn buf_mut(&mut self) -> &mut AlignedBuf {
        let bytes = self.bytes as usize;
        let buf = self
            .buf
            .get_or_insert_with(|| Arc::new(AlignedBuf::for_overwrite(bytes)));
        Arc::make_mut(buf)
    }
}

/// A stretch of one folio that is being read from the device.
#[derive(Clone, Debug)]
pub(crate) struct ReadTicket {
    folio: u64,
    id: u64,
    /// Block-aligned range of the file.
    pub(crate) range: Range<u64>,
}

/// What is at a position.
pub(crate) enum Presence {
    /// Up to date.
    Ready,
    /// It is being read.
    Reading,
    /// Nothing, up to this offset.
    Missing(u64),
}

/// A run of dirty pages taken for writeback, as it was at one instant.
pub(crate) struct DirtyRun {
    pub(crate) range: Range<u64>,
    pub(crate) slices: Vec<IoSlice>,
    /// The file's size then.
    pub(crate) data_end: u64,
}

#[derive(Default)]
pub(crate) struct Table {
    folios: Folios,
    dirty: BlockSet<KIB>,
    writeback: BlockSet<KIB>,
    /// When the oldest dirty page became so, in milliseconds of the volume's clock.
    pub(crate) dirty_since: u64,
    /// The file's writeback has an owner.
    owned: bool,
    /// So many wait for that.
    owner_waiters: usize,
    /// Where the flusher continues. Only the flusher reads or writes it.
    pub(crate) flusher_index: u64,
    error_count: u64,
    error: Option<Error>,
    /// Direct writes on their way that will commit blocks.
    allocating: Vec<Range<u64>>,
    /// Blocks that stay for now ([`Table::hold`]).
    held: Vec<Range<u64>>,
    next_id: u64,
    /// Goes up whenever up-to-date bytes leave the cache.
    lost: u64,
    /// How many folios there are, to be read without the lock.
    cached: Arc<AtomicUsize>,
}

/// The cached pages of one file, with their writeback state.
pub struct FilePages {
    table: Mutex<Table>,
    /// For [`FilePages::wait_for_change`].
    changed: Condvar,
    /// Open handles that may write.
    pub(crate) writers: AtomicUsize,
    cached: Arc<AtomicUsize>,
    /// Direct I/O that flies without a lock.
    in_flight: AtomicUsize,
    /// How many of these overwrite whole blocks in place.
    overwrites: AtomicUsize,
    /// Buffered writers that change parts of blocks, with the inode lock shared.
    part_writers: AtomicUsize,
    /// A thread waits for one of these counts of direct I/O to reach zero.
    awaited: AtomicBool,
    /// How many entries `Table::allocating` has.
    allocating: AtomicUsize,
}

impl Default for FilePages {
    fn default() -> Self {
        let cached = Arc::new(AtomicUsize::new(0));
        let table = Table {
            cached: Arc::clone(&cached),
            ..Table::default()
        };
        FilePages {
            table: Mutex::new(Rank::PageTable, table),
            changed: Condvar::new(),
            writers: AtomicUsize::new(0),
            cached,
            in_flight: AtomicUsize::new(0),
            overwrites: AtomicUsize::new(0),
            part_writers: AtomicUsize::new(0),
            awaited: AtomicBool::new(false),
            allocating: AtomicUsize::new(0),
        }
    }
}

/// See [`FilePages::part_writer`].
pub(crate) struct PartWriter<'a>(&'a FilePages);

impl Drop for PartWriter<'_> {
    fn drop(&mut self) {
        self.0.part_writers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FilePages {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Waits until a read or writeback of this file ends, the owner of its writeback goes, or pages are dropped.
    pub(crate) fn wait_for_change(&self, table: &mut MutexGuard<'_, Table>) {
        self.changed.wait(table);
    }

    /// Ends [`FilePages::wait_for_change`] for all threads. The table must not be locked.
    pub(crate) fn wake_waiters(&self) {
        self.changed.notify_all();
    }

    /// Whether pages are dirty or on their way to the device.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let table = self.lock();
        !table.dirty.is_empty() || !table.writeback.is_empty()
    }

    /// Drops the folios of these queue entries, all of this file, except those in use, which are `kept`. How many bytes were dropped.
    pub(crate) fn reclaim(&self, tags: &[Arc<Tag>], kept: &mut Vec<Weak<Tag>>) -> u64 {
        let keep = |tag: &Arc<Tag>| Arc::downgrade(tag);
        // Reclaim must not wait for a table that a writer fills: it takes other folios.
        let Some(mut table) = self.table.try_lock() else {
            kept.extend(tags.iter().map(keep));
            return 0;
        };
        let mut bytes = 0;
        // Their memory is given back when the table is free again.
        let mut dropped: SmallVec<[Box<Folio>; 32]> = SmallVec::new();
        for tag in tags {
            let range = tag.start..tag.start + tag.bytes;
            match table.folios.get(tag.start) {
                Some(f) if Arc::ptr_eq(&f.tag, tag) => {
                    if tag.referenced.swap(false, Ordering::Relaxed)
                        || !f.reading.none()
                        || table.dirty.intersects(range.clone())
                        || table.writeback.intersects(range.clone())
                        || table.holds_any(&range)
                    {
                        kept.push(keep(tag));
                        continue;
                    }
                    dropped.extend(table.remove_folio(tag.start));
                    bytes += tag.bytes;
                }
                // Replaced meanwhile; this entry is void.
                _ => {}
            }
        }
        drop(table);
        bytes
    }

    /// Waits until nothing in the range is under writeback.
    pub(crate) fn wait_writeback(&self, range: Range<u64>) {
        let mut table = self.lock();
        while table.writeback.intersects(range.clone()) {
            self.wait_for_change(&mut table);
        }
    }

    /// Ends a read: the bytes, or `None` when it failed. In the device's context. `size` returns the file's size; it is called under
    /// the table's lock.
    pub(crate) fn finish_read(
        &self,
        size: impl FnOnce() -> u64,
        block: u64,
        ticket: &ReadTicket,
        bytes: Option<ReadBytes>,
    ) {
        let mut table = self.lock();
        if let Some(f) = table
            .folios
            .get_mut(ticket.folio)
            .filter(|f| f.id == ticket.id)
        {
            let at = |offset: u64| ((offset - ticket.folio) / block) as usize;
            let units = at(ticket.range.start)..at(ticket.range.end);
            if let Some(bytes) = bytes {
                let whole = ticket.range.end - ticket.range.start == f.bytes;
                match bytes {
                    ReadBytes::Buffer(buf) if whole && f.uptodate.none() => {
                        f.buf = Some(Arc::new(buf));
                    }
                    ReadBytes::Buffer(buf) => {
                        for u in units
                            .clone()
                            .filter(|u| !f.uptodate.get(*u))
                            .collect::<Vec<_>>()
                        {
                            let from = (u - units.start) * block as usize;
                            let to = u * block as usize;
                            f.buf_mut()[to..to + block as usize]
                                .copy_from_slice(&buf[from..from + block as usize]);
                        }
                    }
                    ReadBytes::Zero => {
                        for u in units
                            .clone()
                            .filter(|u| !f.uptodate.get(*u))
                            .collect::<Vec<_>>()
                        {
                            let to = u * block as usize;
                            f.buf_mut()[to..to + block as usize].fill(0);
                        }
                    }
                }
                // Other systems leave anything behind the end of the file in its last block.
                let end = size().max(ticket.range.start);
                if end < ticket.range.end {
                    for u in units.clone() {
                        let (s, e) = (
                            ticket.folio + u as u64 * block,
                            ticket.folio + (u as u64 + 1) * block,
                        );
                        if e > end && !f.uptodate.get(u) {
                            let from = (s.max(end) - ticket.folio) as usize;
                            let to = (e - ticket.folio) as usize;
                            f.buf_mut()[from..to].fill(0);
                        }
                    }
                }
                f.uptodate.set(units.clone(), true);
            }
            f.reading.set(units, false);
        }
        drop(table);
        self.wake_waiters();
    }

    /// Drops folios in the range that hold nothing and are not being filled.
    pub(crate) fn drop_empty(&self, range: Range<u64>) {
        let mut table = self.lock();
        let keys: Vec<u64> = table
            .folios
            .starting_in(range)
            .filter(|(_, f)| f.uptodate.none() && f.reading.none())
            .map(|(start, _)| start)
            .collect();
        for key in keys {
            drop(table.remove_folio(key));
        }
    }

    /// Ends the writeback of ranges.
    pub(crate) fn finish_writeback(
        &self,
        budget: &Budget,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) {
        let mut table = self.lock();
        for range in ranges {
            let gone = table.writeback.remove(range);
            budget.writeback.fetch_sub(gone, Ordering::Relaxed);
        }
        drop(table);
        self.wake_waiters();
    }

    /// Notes a failed write, for every handle that is open.
    pub(crate) fn record_error(&self, error: Error) {
        let mut table = self.lock();
        table.error_count += 1;
        table.error = Some(error);
    }

    /// The error recorded last.
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.lock().error.clone()
    }

    /// How many errors there were so far.
    pub(crate) fn error_count(&self) -> u64 {
        self.lock().error_count
    }

    /// The last error if there was one since `seen`, which is brought up to date.
    pub(crate) fn error_since(&self, seen: &AtomicU64) -> Option<Error> {
        let table = self.lock();
        if seen.swap(table.error_count, Ordering::AcqRel) == table.error_count {
            return None;
        }
        table.error.clone()
    }

    /// Whether anything is cached in the range. A file without cached pages is not locked to see that.
    ///
    /// In a completion this is sound because a page counts from before its read is submitted: a page that is not
    /// counted yet reads what the device has now.
    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        self.cached.load(Ordering::SeqCst) > 0 && self.lock().overlaps(range)
    }

    /// Whether the file has cached pages at all.
    pub(crate) fn has_cached(&self) -> bool {
        self.cached.load(Ordering::SeqCst) > 0
    }

    /// Whether anything in the range is dirty or under writeback.
    pub(crate) fn has_unwritten(&self, range: Range<u64>) -> bool {
        self.cached.load(Ordering::SeqCst) > 0 && self.lock().has_unwritten(range)
    }

    /// Waits for the sole right to write the file back, and takes it.
    pub(crate) fn own_writeback(&self) {
        let mut table = self.lock();
        table.owner_waiters += 1;
        while table.owned {
            self.wait_for_change(&mut table);
        }
        table.owner_waiters -= 1;
        table.owned = true;
    }

    /// Takes the right to write the file back if it is free and no thread waits for it.
    pub(crate) fn try_own_writeback(&self) -> bool {
        let mut table = self.lock();
        let free = !table.owned && table.owner_waiters == 0;
        table.owned |= free;
        free
    }

    /// Gives the right to write the file back to another thread.
    pub(crate) fn disown_writeback(&self) {
        self.lock().owned = false;
        self.wake_waiters();
    }

    /// Counts direct I/O that flies without a lock.
    pub(crate) fn direct_begin(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn direct_end(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        // Either this sees the waiter, or the waiter, which says so before it looks, saw the new count.
        if self.awaited.load(Ordering::SeqCst) {
            drop(self.lock());
            self.wake_waiters();
        }
    }

    /// Waits until no direct I/O is on its way. The inode lock and `invalidate` are held exclusively, so
    /// that none begins.
    pub(crate) fn wait_direct(&self) {
        let mut table = self.lock();
        self.awaited.store(true, Ordering::SeqCst);
        while self.in_flight.load(Ordering::SeqCst) > 0 {
            self.wait_for_change(&mut table);
        }
        self.awaited.store(false, Ordering::SeqCst);
    }

    /// Counts a direct overwrite of whole blocks. Before it looks for cached pages and for [`FilePages::has_part_writers`]: a buffered
    /// writer of a part of a block counts itself before it looks for overwrites, so one of the two sees the other.
    pub(crate) fn overwrite_begin(&self) {
        self.overwrites.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what [`FilePages::overwrite_begin`] began. A waiter is woken by [`FilePages::direct_end`], which follows.
    pub(crate) fn overwrite_end(&self) {
        self.overwrites.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn has_overwrites(&self) -> bool {
        self.overwrites.load(Ordering::SeqCst) > 0
    }

    /// Waits until no overwrite of whole blocks is in flight. The inode lock is held exclusively, so that none begins.
    pub(crate) fn wait_overwrites(&self) {
        if !self.has_overwrites() {
            return;
        }
        let mut table = self.lock();
        self.awaited.store(true, Ordering::SeqCst);
        while self.has_overwrites() {
            self.wait_for_change(&mut table);
        }
        self.awaited.store(false, Ordering::SeqCst);
    }

    /// Counts a buffered writer that changes parts of blocks with the inode lock shared, until the guard is dropped. `None` when
    /// overwrites are in flight: the page that it would read may be older than what they write, and would be written over it.
    pub(crate) fn part_writer(&self) -> Option<PartWriter<'_>> {
        self.part_writers.fetch_add(1, Ordering::SeqCst);
        let counted = PartWriter(self);
        (!self.has_overwrites()).then_some(counted)
    }

    pub(crate) fn has_part_writers(&self) -> bool {
        self.part_writers.load(Ordering::SeqCst) > 0
    }

    /// Counts a direct write that will commit blocks in the range. The inode lock is held exclusively.
    pub(crate) fn allocating_begin(&self, range: Range<u64>) {
        let mut table = self.lock();
        table.allocating.push(range);
        self.allocating
            .store(table.allocating.len(), Ordering::SeqCst);
    }

    pub(crate) fn allocating_end(&self, range: &Range<u64>) {
        let mut table = self.lock();
        if let Some(at) = table.allocating.iter().position(|r| r == range) {
            table.allocating.swap_remove(at);
        }
        self.allocating
            .store(table.allocating.len(), Ordering::SeqCst);
        drop(table);
        self.wake_waiters();
    }

    /// Whether a direct write on its way will commit blocks in the range.
    pub(crate) fn is_allocating(&self, range: &Range<u64>) -> bool {
        let table = self.lock();
        let mut ranges = table.allocating.iter();
        ranges.any(|r| r.start < range.end && range.start < r.end)
    }

    /// Waits until no direct write on its way will commit blocks in the range. The inode lock is held, so that
    /// none begins.
    pub(crate) fn wait_allocating(&self, range: &Range<u64>) {
        if self.allocating.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut table = self.lock();
        while table
            .allocating
            .iter()
            .any(|r| r.start < range.end && range.start < r.end)
        {
            self.wait_for_change(&mut table);
        }
    }
}

/// What a read brought.
pub(crate) enum ReadBytes {
    /// These bytes, as long as the ticket's range.
    Buffer(AlignedBuf),
    /// Zeroes.
    Zero,
}
