//! Operations on a file's table of folios while its lock is held: find, fill, dirty, cut.
//!
//! The invariants are those of the module above. Not responsible for waiting and waking: that is `FilePages`.

use super::{Bits, DirtyRun, FOLIO_BYTES_MAX, FOLIO_BYTES_MIN, Folio, Presence, ReadTicket, Table};
use crate::cache::budget::{Budget, Reclaim};
use blockwright_device::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Table {
    pub(super) fn remove_folio(&mut self, start: u64) -> Option<Box<Folio>> {
        let folio = self.folios.remove(start)?;
        self.lost += 1;
        self.cached.fetch_sub(1, Ordering::SeqCst);
        Some(folio)
    }

    pub(super) fn folio_at(&self, pos: u64) -> Option<(u64, &Folio)> {
        self.folios.over(pos)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.writeback.is_empty() && !self.owned
    }

    pub(crate) fn dirty_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.dirty.overlapping(range)
    }

    /// Whether a thread waits for the right to write the file back.
    pub(crate) fn is_awaited(&self) -> bool {
        self.owner_waiters > 0
    }

    /// Keeps a block that is up to date, though it is clean and others need room, until [`Table::release`].
    pub(crate) fn hold(&mut self, block: Range<u64>) {
        self.held.push(block);
    }

    /// Ends one [`Table::hold`].
    pub(crate) fn release(&mut self, block: &Range<u64>) {
        if let Some(at) = self.held.iter().position(|r| r == block) {
            self.held.swap_remove(at);
        }
    }

    /// The first dirty run in the range; one longer than `enough` bytes may be cut behind them.
    pub(crate) fn first_dirty_in(&self, range: Range<u64>, enough: u64) -> Option<Range<u64>> {
        self.dirty.first_in(range, enough)
    }

    /// The first position of the range that is on its way to the device.
    pub(crate) fn first_in_writeback(&self, range: Range<u64>) -> Option<u64> {
        self.writeback.first_in(range, 1).map(|r| r.start)
    }

    /// The first stretch of the range that is dirty or on its way to the device.
    pub(crate) fn first_unwritten_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let dirty = self.dirty.first_in(range.clone(), u64::MAX);
        let flying = self.writeback.first_in(range, u64::MAX);
        match (dirty, flying) {
            (Some(a), Some(b)) => Some(if a.start <= b.start { a } else { b }),
            (a, b) => a.or(b),
        }
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
        self.folio_at(range.start).is_some() || self.folios.starting_in(range).next().is_some()
    }

    /// Whether any block in the block-aligned range is up to date or being read.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn holds(&self, range: Range<u64>, block: u64) -> bool {
        self.folios.starting_in(0..u64::MAX).any(|(start, f)| {
            (0..f.bytes / block)
                .filter(|u| range.contains(&(start + u * block)))
                .any(|u| f.uptodate.get(u as usize) || f.reading.get(u as usize))
        })
    }

    /// Collects slices of `range` from its start for as long as blocks are up to date; where it ended.
    pub(crate) fn slices(&self, range: Range<u64>, block: u64, out: &mut Vec<IoSlice>) -> u64 {
        self.slices_of(range, block, out, |f| {
            f.tag.referenced.store(true, Ordering::Relaxed);
        })
    }

    fn slices_of(
        &self,
        range: Range<u64>,
        block: u64,
        out: &mut Vec<IoSlice>,
        used: impl Fn(&Folio),
    ) -> u64 {
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
            used(f);
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

    /// Where the folio over `pos` ends.
    pub(crate) fn folio_end(&self, pos: u64) -> Option<u64> {
        let (start, f) = self.folio_at(pos)?;
        Some(start + f.bytes)
    }

    /// The folio at `pos`, or the length of the gap there, up to `end`.
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
                    .starting_in(at..end)
                    .next()
                    .map_or(end, |(start, _)| start);
            }
        }
        Presence::Missing(at.max(pos))
    }

    /// The folio over `pos`, made if there is none: as large as fits between its neighbours and
    /// inside `hint`, which contains `pos`.
    pub(super) fn ensure_folio<F: Reclaim + 'static>(
        &mut self,
        file: &Arc<F>,
        budget: &Arc<Budget>,
        pos: u64,
        hint: &Range<u64>,
        block: u64,
    ) -> u64 {
        match self.folios.over_or_room(pos) {
            Ok(start) => start,
            Err(room) => self.make_folio(file, budget, pos, room, hint, block).0,
        }
    }

    /// As [`Table::ensure_folio`] where none is: `room` is what lies between the neighbours.
    fn make_folio<F: Reclaim + 'static>(
        &mut self,
        file: &Arc<F>,
        budget: &Arc<Budget>,
        pos: u64,
        room: Range<u64>,
        hint: &Range<u64>,
        block: u64,
    ) -> (u64, &mut Folio) {
        let mut bytes = FOLIO_BYTES_MIN.max(block);
        let mut start = pos / bytes * bytes;
        // With blocks that differ from the smallest folio nothing can overlap: all are powers of two.
        while bytes * 2 <= FOLIO_BYTES_MAX {
            let next = pos / (bytes * 2) * (bytes * 2);
            let end = next + bytes * 2;
            if next < room.start || end > room.end || next < hint.start || end > hint.end {
                break;
            }
            bytes *= 2;
            start = next;
        }
        self.next_id += 1;
        self.cached.fetch_add(1, Ordering::SeqCst);
        let folio = Folio {
            id: self.next_id,
            bytes,
            buf: None,
            uptodate: Bits::default(),
            reading: Bits::default(),
            tag: budget.charge(file, start, bytes),
        };
        (start, self.folios.insert(start, folio))
    }

    /// Whether a stream continues at `pos`, where no folio is: one ends there. `room` is what lies around `pos`, within its stretch.
    fn follows(&self, pos: u64, room: &Range<u64>) -> bool {
        let first = pos.is_multiple_of(FOLIO_BYTES_MAX);
        room.start == pos && (!first || (pos > 0 && self.folio_at(pos - 1).is_some()))
    }

    /// Marks the missing, block-aligned `range` as being read; a ticket per folio.
    pub(crate) fn begin_read<F: Reclaim + 'static>(
        &mut self,
        file: &Arc<F>,
        budget: &Arc<Budget>,
        range: Range<u64>,
        block: u64,
    ) -> Vec<ReadTicket> {
        let mut tickets = Vec::new();
        let mut pos = range.start;
        while pos < range.end {
            let start = self.ensure_folio(file, budget, pos, &range, block);
            let Some(f) = self.folios.get_mut(start) else {
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
    pub(crate) fn write<F: Reclaim + 'static>(
        &mut self,
        file: &Arc<F>,
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
        let was_clean = self.dirty.is_empty();
        let lost = self.lost;
        let (start, f) = match self.folios.over_or_room(pos) {
            Ok(start) => match self.folios.get_mut(start) {
                Some(f) => (start, f),
                None => return Ok((0, false)),
            },
            Err(room) => {
                // A stream grows its folios with its length, so that small files stay small.
                if self.follows(pos, &room) {
                    hint.end = hint.end.max(pos + pos.min(FOLIO_BYTES_MAX));
                }
                self.make_folio(file, budget, pos, room, &hint, block)
            }
        };
        let end = (start + f.bytes).min(end_all);
        let first = ((pos - start) / block) as usize;
        let last = ((end - 1 - start) / block) as usize;
        let unit_start = |u: usize| start + u as u64 * block;
        // What is written once needs no second chance in reclaim.
        let again = f.uptodate.get(first);
        // Whole blocks need no reading; nor do bytes that were not written yet.
        for u in [first, last] {
            let (s, e) = (unit_start(u), unit_start(u + 1));
            let unread = zeroes == Some(lost) || size <= s;
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
        if again {
            f.tag.referenced.store(true, Ordering::Relaxed);
        }
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
        if let Some(f) = self.folios.get_mut(start) {
            f.buf_mut()[(range.start - start) as usize..(range.end - start) as usize].fill(0);
        }
        let unit = range.start / block * block;
        let added = self.dirty.insert(unit..unit + block);
        budget.dirty.fetch_add(added, Ordering::Relaxed);
        was_clean
    }

    /// Takes the first run of dirty pages in `range`, at most `bytes_max` long, for writeback. `None`
    /// when nothing is dirty there. `size` is the file's. The caller owns the file's writeback.
    pub(crate) fn begin_writeback(
        &mut self,
        budget: &Budget,
        range: Range<u64>,
        bytes_max: u64,
        block: u64,
        size: u64,
    ) -> Option<DirtyRun> {
        let cut = (bytes_max / block * block).max(block);
        let run = self.dirty.first_in(range, cut)?;
        let run = run.start..run.end.min(run.start.saturating_add(cut));
        let mut slices = Vec::new();
        // That they are written is no use of them, which reclaim would heed.
        let reached = self.slices_of(run.clone(), block, &mut slices, |_| {});
        debug_assert_eq!(reached, run.end, "dirty blocks are up to date");
        let bytes = self.dirty.remove(run.clone());
        budget.dirty.fetch_sub(bytes, Ordering::Relaxed);
        let added = self.writeback.insert(run.clone());
        budget.writeback.fetch_add(added, Ordering::Relaxed);
        Some(DirtyRun {
            range: run,
            slices,
            data_end: size,
        })
    }

    /// Gives the part of a run back that found no place yet.
    pub(crate) fn return_to_dirty(&mut self, budget: &Budget, range: Range<u64>) {
        let gone = self.writeback.remove(range.clone());
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
        let dirty = self.dirty.overlapping(range.clone());
        budget
            .dirty
            .fetch_sub(self.dirty.remove(range.clone()), Ordering::Relaxed);
        self.drop_folios(range, block);
        dirty
    }

    /// Whether a block of the range is held.
    pub(super) fn holds_any(&self, range: &Range<u64>) -> bool {
        self.held.iter().any(|h| range.contains(&h.start))
    }

    /// Drops what is clean in the block-aligned range, and not held.
    pub(crate) fn drop_clean(&mut self, range: Range<u64>, block: u64) {
        let mut keep = self.dirty.overlapping(range.clone());
        keep.extend(self.writeback.overlapping(range.clone()));
        let held = self.held.iter();
        keep.extend(held.filter(|h| range.contains(&h.start)).cloned());
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
            .starting_in(first..range.end)
            .map(|(start, _)| start)
            .collect();
        for start in keys {
            self.next_id += 1;
            let id = self.next_id;
            let Some(f) = self.folios.get_mut(start) else {
                continue;
            };
            let end = start + f.bytes;
            if range.start <= start && end <= range.end {
                self.remove_folio(start);
                continue;
            }
            // Reads under way into this folio are void; a thread that waits for them reads again.
            f.id = id;
            f.reading = Bits::default();
            let units = ((range.start.max(start) - start) / block) as usize
                ..((range.end.min(end) - start).div_ceil(block)) as usize;
            f.uptodate.set(units, false);
            self.lost += 1;
            if self.folios.get(start).is_some_and(|f| f.uptodate.none()) {
                self.remove_folio(start);
            }
        }
    }
}
