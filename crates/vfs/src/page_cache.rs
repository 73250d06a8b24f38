//! Cached pages of regular files.
//!
//! A file's cache is a table of *folios*: naturally aligned runs of 4 KiB to 256 KiB. A folio's bytes
//! are one counted buffer. Writeback and readers take counted slices of it; a writer changes it
//! through `Arc::make_mut`, which copies while a slice is alive, so nobody ever waits for pages to be
//! stable and bytes on their way to the device never change.
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

use crate::budget::{Budget, Tag};
use crate::error::Error;
use crate::inode::Inode;
use crate::locks::{Condvar, Mutex, MutexGuard, Rank};
use crate::range_set::{RangeSet, total};
use blockwright_device::{AlignedBuf, IoSlice};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

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

/// A stretch of one folio that somebody reads from the device.
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
    /// Somebody is reading it.
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
    folios: BTreeMap<u64, Folio>,
    dirty: RangeSet,
    writeback: RangeSet,
    /// When the oldest dirty page became so, in milliseconds of the volume's clock.
    pub(crate) dirty_since: u64,
    /// Somebody owns the file's writeback.
    owned: bool,
    /// So many wait for that.
    owner_waiters: usize,
    /// Where the flusher goes on. Nobody else reads or writes it.
    pub(crate) flusher_index: u64,
    error_count: u64,
    error: Option<Error>,
    /// Direct writes on their way that will commit blocks.
    allocating: Vec<Range<u64>>,
    next_id: u64,
    /// Goes up whenever up-to-date bytes leave the cache.
    lost: u64,
    /// How many folios there are, to be read without the lock.
    cached: Arc<AtomicUsize>,
}

/// The cached pages of one file, with their writeback state.
pub struct FilePages {
    table: Mutex<Table>,
    /// Signalled when a read or writeback ends or the owner goes.
    changed: Condvar,
    /// Open handles that may write.
    pub(crate) writers: AtomicUsize,
    cached: Arc<AtomicUsize>,
    /// Direct I/O that flies without a lock.
    in_flight: AtomicUsize,
    /// Somebody waits for that to reach zero.
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
            awaited: AtomicBool::new(false),
            allocating: AtomicUsize::new(0),
        }
    }
}

impl FilePages {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    pub(crate) fn wait(&self, table: &mut MutexGuard<'_, Table>) {
        self.changed.wait(table);
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Whether pages are dirty or on their way to the device.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let table = self.lock();
        !table.dirty.is_empty() || !table.writeback.is_empty()
    }

    /// Drops the folio of this queue entry unless it is in use.
    pub(crate) fn reclaim(&self, tag: &Arc<Tag>) -> bool {
        // Reclaim must not wait for a table that a writer fills: it takes another folio.
        let Some(mut table) = self.table.try_lock() else {
            return false;
        };
        let range = tag.start..tag.start + tag.bytes;
        match table.folios.get(&tag.start) {
            Some(f) if Arc::ptr_eq(&f.tag, tag) => {
                if !f.reading.none()
                    || table.dirty.intersects(range.clone())
                    || table.writeback.intersects(range)
                {
                    return false;
                }
                table.remove_folio(tag.start);
                true
            }
            // Replaced meanwhile; this entry is void.
            _ => true,
        }
    }

    /// Waits until nothing in the range is under writeback.
    pub(crate) fn wait_writeback(&self, range: Range<u64>) {
        let mut table = self.lock();
        while table.writeback.intersects(range.clone()) {
            self.wait(&mut table);
        }
    }

    /// Ends a read: the bytes, or `None` when it failed. In the device's context.
    pub(crate) fn finish_read(
        &self,
        inode: &Inode,
        block: u64,
        ticket: &ReadTicket,
        bytes: Option<ReadBytes>,
    ) {
        let mut table = self.lock();
        if let Some(f) = table
            .folios
            .get_mut(&ticket.folio)
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
                let end = inode.size().max(ticket.range.start);
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
        self.notify();
    }

    /// Drops folios in the range that hold nothing and that nobody is filling.
    pub(crate) fn drop_empty(&self, range: Range<u64>) {
        let mut table = self.lock();
        let keys: Vec<u64> = table
            .folios
            .range(range)
            .filter(|(_, f)| f.uptodate.none() && f.reading.none())
            .map(|(k, _)| *k)
            .collect();
        for key in keys {
            table.remove_folio(key);
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
            let gone = total(&table.writeback.remove(range));
            budget.writeback.fetch_sub(gone, Ordering::Relaxed);
        }
        drop(table);
        self.notify();
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
    /// In a completion this is sound because a page counts from before its read is submitted: who is not
    /// counted yet reads what the device has now.
    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        self.cached.load(Ordering::SeqCst) > 0 && self.lock().overlaps(range)
    }

    /// Whether anything in the range is dirty or under writeback.
    pub(crate) fn has_unwritten(&self, range: Range<u64>) -> bool {
        self.cached.load(Ordering::SeqCst) > 0 && self.lock().has_unwritten(range)
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
            self.notify();
        }
    }

    /// Waits until no direct I/O is on its way. The inode lock and `invalidate` are held exclusively, so
    /// that none begins.
    pub(crate) fn wait_direct(&self) {
        let mut table = self.lock();
        self.awaited.store(true, Ordering::SeqCst);
        while self.in_flight.load(Ordering::SeqCst) > 0 {
            self.wait(&mut table);
        }
        self.awaited.store(false, Ordering::SeqCst);
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
        self.notify();
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
            self.wait(&mut table);
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

/// Sole right to write back one file. Released when the last clone is dropped.
pub(crate) struct WritebackOwner {
    pub(crate) inode: Arc<Inode>,
}

impl WritebackOwner {
    /// Waits for the right.
    pub(crate) fn acquire(inode: &Arc<Inode>) -> Arc<Self> {
        let mut table = inode.pages.lock();
        table.owner_waiters += 1;
        while table.owned {
            inode.pages.wait(&mut table);
        }
        table.owner_waiters -= 1;
        table.owned = true;
        Arc::new(WritebackOwner {
            inode: Arc::clone(inode),
        })
    }

    /// Takes the right if nobody has it or waits for it.
    pub(crate) fn try_acquire(inode: &Arc<Inode>) -> Option<Arc<Self>> {
        let mut table = inode.pages.lock();
        if table.owned || table.owner_waiters > 0 {
            return None;
        }
        table.owned = true;
        Some(Arc::new(WritebackOwner {
            inode: Arc::clone(inode),
        }))
    }
}

impl Drop for WritebackOwner {
    fn drop(&mut self) {
        self.inode.pages.lock().owned = false;
        self.inode.pages.notify();
    }
}

impl Table {
    fn remove_folio(&mut self, start: u64) {
        if self.folios.remove(&start).is_some() {
            self.lost += 1;
            self.cached.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn folio_at(&self, pos: u64) -> Option<(u64, &Folio)> {
        let (&start, f) = self.folios.range(..=pos).next_back()?;
        (start + f.bytes > pos).then_some((start, f))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.writeback.is_empty() && !self.owned
    }

    pub(crate) fn dirty_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.dirty.overlapping(range)
    }

    /// Whether somebody waits for the right to write the file back.
    pub(crate) fn is_awaited(&self) -> bool {
        self.owner_waiters > 0
    }

    /// The first dirty run in the range.
    pub(crate) fn first_dirty_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.dirty.first_in(range)
    }

    /// The first position of the range that is on its way to the device.
    pub(crate) fn first_in_writeback(&self, range: Range<u64>) -> Option<u64> {
        self.writeback.first_in(range).map(|r| r.start)
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub(crate) fn has_dirty_in(&self, range: Range<u64>) -> bool {
        self.dirty.intersects(range)
    }

    pub(crate) fn is_all_dirty(&self, range: Range<u64>) -> bool {
        self.dirty.contains(&range)
    }

    pub(crate) fn has_unwritten(&self, range: Range<u64>) -> bool {
        self.dirty.intersects(range.clone()) || self.writeback.intersects(range)
    }

    /// Goes up whenever up-to-date bytes leave the cache.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether anything is cached in the range.
    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        self.folio_at(range.start).is_some() || self.folios.range(range).next().is_some()
    }

    /// Whether any block in the block-aligned range is up to date or being read.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn holds(&self, range: Range<u64>, block: u64) -> bool {
        self.folios.iter().any(|(start, f)| {
            (0..f.bytes / block)
                .filter(|u| range.contains(&(start + u * block)))
                .any(|u| f.uptodate.get(u as usize) || f.reading.get(u as usize))
        })
    }

    /// Collects slices of `range` from its start for as long as blocks are up to date; where it ended.
    pub(crate) fn slices(&self, range: Range<u64>, block: u64, out: &mut Vec<IoSlice>) -> u64 {
        let mut pos = range.start;
        while pos < range.end {
            let Some((start, f)) = self.folio_at(pos) else {
                break;
            };
            let Some(buf) = &f.buf else { break };
            let stop = (start + f.bytes).min(range.end);
            let mut end = pos;
            while end < stop && f.uptodate.get(((end - start) / block) as usize) {
                end = ((end / block + 1) * block).min(stop);
            }
            if end == pos {
                break;
            }
            f.tag.referenced.store(true, Ordering::Relaxed);
            out.push(IoSlice::new(
                Arc::clone(buf),
                (pos - start) as usize..(end - start) as usize,
            ));
            pos = end;
        }
        pos
    }

    /// Copies bytes out, when all lie in one folio and are up to date.
    pub(crate) fn copy_small(&self, pos: u64, out: &mut [u8], block: u64) -> bool {
        let end = pos + out.len() as u64;
        let Some((start, f)) = self.folio_at(pos) else {
            return false;
        };
        let Some(buf) = &f.buf else { return false };
        if end > start + f.bytes {
            return false;
        }
        let units = ((pos - start) / block) as usize..=((end - 1 - start) / block) as usize;
        if !units.into_iter().all(|u| f.uptodate.get(u)) {
            return false;
        }
        f.tag.referenced.store(true, Ordering::Relaxed);
        out.copy_from_slice(&buf[(pos - start) as usize..(end - start) as usize]);
        true
    }

    /// What is at `pos`; how far the same gap goes, up to `end`.
    pub(crate) fn presence(&self, pos: u64, end: u64, block: u64) -> Presence {
        let ready = |f: &Folio, start: u64, at: u64| {
            let u = ((at - start) / block) as usize;
            (f.uptodate.get(u), f.reading.get(u))
        };
        if let Some((start, f)) = self.folio_at(pos) {
            match ready(f, start, pos) {
                (true, _) => return Presence::Ready,
                (false, true) => return Presence::Reading,
                _ => {}
            }
        }
        let mut at = pos / block * block;
        while at < end {
            if let Some((start, f)) = self.folio_at(at) {
                if ready(f, start, at) != (false, false) {
                    break;
                }
                at += block;
            } else {
                at = self
                    .folios
                    .range(at..end)
                    .next()
                    .map_or(end, |(start, _)| *start);
            }
        }
        Presence::Missing(at.max(pos))
    }

    /// The folio over `pos`, made if there is none: as large as fits between its neighbours and
    /// inside `hint`, which contains `pos`.
    fn ensure_folio(
        &mut self,
        inode: &Arc<Inode>,
        budget: &Arc<Budget>,
        pos: u64,
        hint: &Range<u64>,
        block: u64,
    ) -> u64 {
        let before = self.folios.range(..=pos).next_back();
        let low = before.map_or(0, |(s, f)| s + f.bytes);
        if let Some((start, _)) = before
            && low > pos
        {
            return *start;
        }
        let mut bytes = FOLIO_BYTES_MIN.max(block);
        let mut start = pos / bytes * bytes;
        let high = self
            .folios
            .range(pos..)
            .next()
            .map_or(u64::MAX, |(s, _)| *s);
        // With blocks that differ from the smallest folio nothing can overlap: all are powers of two.
        while bytes * 2 <= FOLIO_BYTES_MAX {
            let next = pos / (bytes * 2) * (bytes * 2);
            let end = next + bytes * 2;
            if next < low || end > high || next < hint.start || end > hint.end {
                break;
            }
            bytes *= 2;
            start = next;
        }
        self.next_id += 1;
        self.cached.fetch_add(1, Ordering::SeqCst);
        self.folios.insert(
            start,
            Folio {
                id: self.next_id,
                bytes,
                buf: None,
                uptodate: Bits::default(),
                reading: Bits::default(),
                tag: budget.charge(inode, start, bytes),
            },
        );
        start
    }

    /// Marks the missing, block-aligned `range` as being read; a ticket per folio.
    pub(crate) fn begin_read(
        &mut self,
        inode: &Arc<Inode>,
        budget: &Arc<Budget>,
        range: Range<u64>,
        block: u64,
    ) -> Vec<ReadTicket> {
        let mut tickets = Vec::new();
        let mut pos = range.start;
        while pos < range.end {
            let start = self.ensure_folio(inode, budget, pos, &range, block);
            let Some(f) = self.folios.get_mut(&start) else {
                break;
            };
            let end = (start + f.bytes).min(range.end);
            let units = ((pos - start) / block) as usize..((end - start) / block) as usize;
            f.reading.set(units, true);
            tickets.push(ReadTicket {
                folio: start,
                id: f.id,
                range: pos..end,
            });
            pos = end;
        }
        tickets
    }

    /// Copies `data` to `pos`, up to the end of one folio, if no block has to be read first. `zeroes`: what is not up to date
    /// there holds zeroes, if [`Table::lost`] is still this. How much was copied, and how many bytes became
    /// dirty; or the block that is needed.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn write(
        &mut self,
        inode: &Arc<Inode>,
        budget: &Arc<Budget>,
        pos: u64,
        data: &[u8],
        size: u64,
        block: u64,
        zeroes: Option<u64>,
    ) -> std::result::Result<(usize, bool), u64> {
        let end_all = pos + data.len() as u64;
        let mut hint =
            pos / FOLIO_BYTES_MIN * FOLIO_BYTES_MIN..end_all.next_multiple_of(FOLIO_BYTES_MIN);
        // A stream grows its folios with its length, so that small files stay small.
        if pos > 0 && self.folio_at(pos - 1).is_some() {
            hint.end = hint.end.max(pos + pos.min(FOLIO_BYTES_MAX));
        }
        let start = self.ensure_folio(inode, budget, pos, &hint, block);
        let was_clean = self.dirty.is_empty();
        let Some(f) = self.folios.get_mut(&start) else {
            return Ok((0, false));
        };
        let end = (start + f.bytes).min(end_all);
        let first = ((pos - start) / block) as usize;
        let last = ((end - 1 - start) / block) as usize;
        let unit_start = |u: usize| start + u as u64 * block;
        // Whole blocks need no reading; nor do bytes that nobody has written yet.
        for u in [first, last] {
            let (s, e) = (unit_start(u), unit_start(u + 1));
            let unread = zeroes == Some(self.lost) || size <= s;
            if f.uptodate.get(u) || unread || (pos <= s && (end >= e || end >= size)) {
                continue;
            }
            return Err(s);
        }
        for u in [first, last] {
            if !f.uptodate.get(u) {
                let (s, e) = (unit_start(u), unit_start(u + 1));
                let at = |o: u64| (o - start) as usize;
                let buf = f.buf_mut();
                if s < pos {
                    buf[at(s)..at(pos)].fill(0);
                }
                if end < e {
                    buf[at(end)..at(e)].fill(0);
                }
                f.uptodate.set(u..u + 1, true);
            }
        }
        let n = (end - pos) as usize;
        let at = (pos - start) as usize;
        f.buf_mut()[at..at + n].copy_from_slice(&data[..n]);
        f.uptodate.set(first..last + 1, true);
        f.tag.referenced.store(true, Ordering::Relaxed);
        let added = self.dirty.insert(unit_start(first)..unit_start(last + 1));
        budget.dirty.fetch_add(added, Ordering::Relaxed);
        Ok((n, was_clean))
    }

    /// Zeroes part of one up-to-date block and makes it dirty. Whether the file was clean.
    pub(crate) fn zero(&mut self, budget: &Budget, range: Range<u64>, block: u64) -> bool {
        let was_clean = self.dirty.is_empty();
        let Some((start, _)) = self.folio_at(range.start) else {
            return false;
        };
        if let Some(f) = self.folios.get_mut(&start) {
            f.buf_mut()[(range.start - start) as usize..(range.end - start) as usize].fill(0);
        }
        let unit = range.start / block * block;
        let added = self.dirty.insert(unit..unit + block);
        budget.dirty.fetch_add(added, Ordering::Relaxed);
        was_clean
    }

    /// Takes the first run of dirty pages in `range`, at most `bytes_max` long, for writeback. `None`
    /// when nothing is dirty there. The caller owns the file's writeback.
    pub(crate) fn begin_writeback(
        &mut self,
        inode: &Inode,
        budget: &Budget,
        range: Range<u64>,
        bytes_max: u64,
        block: u64,
    ) -> Option<DirtyRun> {
        let run = self.dirty.first_in(range)?;
        let cut = (bytes_max / block * block).max(block);
        let run = run.start..run.end.min(run.start.saturating_add(cut));
        let mut slices = Vec::new();
        let reached = self.slices(run.clone(), block, &mut slices);
        debug_assert_eq!(reached, run.end, "dirty blocks are up to date");
        let bytes = total(&self.dirty.remove(run.clone()));
        budget.dirty.fetch_sub(bytes, Ordering::Relaxed);
        let added = self.writeback.insert(run.clone());
        budget.writeback.fetch_add(added, Ordering::Relaxed);
        Some(DirtyRun {
            range: run,
            slices,
            data_end: inode.size(),
        })
    }

    /// Gives the part of a run back that found no place yet.
    pub(crate) fn return_to_dirty(&mut self, budget: &Budget, range: Range<u64>) {
        let gone = total(&self.writeback.remove(range.clone()));
        budget.writeback.fetch_sub(gone, Ordering::Relaxed);
        let added = self.dirty.insert(range);
        budget.dirty.fetch_add(added, Ordering::Relaxed);
    }

    /// Drops everything in the block-aligned range, dirty or not. The dirty stretches. Nothing in the
    /// range is under writeback.
    pub(crate) fn drop_range(
        &mut self,
        budget: &Budget,
        range: Range<u64>,
        block: u64,
    ) -> Vec<Range<u64>> {
        let dirty = self.dirty.remove(range.clone());
        budget.dirty.fetch_sub(total(&dirty), Ordering::Relaxed);
        self.drop_folios(range, block);
        dirty
    }

    /// Drops what is clean in the block-aligned range.
    pub(crate) fn drop_clean(&mut self, range: Range<u64>, block: u64) {
        let mut keep = self.dirty.overlapping(range.clone());
        keep.extend(self.writeback.overlapping(range.clone()));
        keep.sort_by_key(|r| r.start);
        let mut at = range.start;
        for k in keep {
            if at < k.start {
                self.drop_folios(at..k.start, block);
            }
            at = at.max(k.end);
        }
        if at < range.end {
            self.drop_folios(at..range.end, block);
        }
    }

    fn drop_folios(&mut self, range: Range<u64>, block: u64) {
        if range.is_empty() {
            return;
        }
        let first = self
            .folio_at(range.start)
            .map_or(range.start, |(start, _)| start);
        let keys: Vec<u64> = self
            .folios
            .range(first..range.end)
            .map(|(k, _)| *k)
            .collect();
        for start in keys {
            self.next_id += 1;
            let id = self.next_id;
            let Some(f) = self.folios.get_mut(&start) else {
                continue;
            };
            let end = start + f.bytes;
            if range.start <= start && end <= range.end {
                self.remove_folio(start);
                continue;
            }
            // Reads under way into this folio are void; who waits for them reads again.
            f.id = id;
            f.reading = Bits::default();
            let units = ((range.start.max(start) - start) / block) as usize
                ..((range.end.min(end) - start).div_ceil(block)) as usize;
            f.uptodate.set(units, false);
            self.lost += 1;
            if self.folios.get(&start).is_some_and(|f| f.uptodate.none()) {
                self.remove_folio(start);
            }
        }
    }
}
