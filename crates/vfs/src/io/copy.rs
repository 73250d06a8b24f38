//! Copying a range of a file into another, or elsewhere into itself.
//!
//! The source's mapping decides how a stretch is copied. Holes stay holes and unwritten blocks unwritten, so nothing
//! of them is read or written. Long runs of data go from device to device: read into buffers, or taken from the cache
//! where they are in it, and written from the same buffers past the cache; several pieces at a time, in order. So a
//! copy is in memory once, and at most [`WINDOW`] pieces of it. Short runs, parts of blocks, and ranges that lie
//! differently within their blocks go through the target's cache, where they are gathered.
//!
//! A copy is not atomic: bytes that are written to either file meanwhile may be in it or not. A copy that a full volume or a quota ends leaves
//! nothing behind the length that it reports. So where room is short, only one piece is written at a time.
//!
//! # Locks
//! None from stretch to stretch; the source's inode lock, shared, to look what is there. Writes and fallocate take the
//! target's as every write does, and reads in flight hold none, so a file may be copied into itself.

use crate::core::Core;
use crate::engine::{FallocMode, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::inode::times::TimesKeeper;
use crate::io::{Patience, ReadOp, WriteAt, WriteOp};
use crate::locks::{Condvar, Mutex, Rank};
use crate::types::Timestamp;
use blockwright_device::IoSlice;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A piece of a long run.
const PIECE_BYTES: u64 = 2 << 20;
/// Pieces being read, and as many being written.
const WINDOW: usize = 4;
/// A copy for which a volume, beside twice its size, has less room than this may meet the end of it. The copy's owner may meet the end
/// of its quota.
const ROOM_MIN: u64 = 64 << 20;
/// Shorter copies, and shorter runs of longer ones, go through the cache.
const DIRECT_COPY_MIN: u64 = 1 << 20;
const DIRECT_RUN_MIN: u64 = 64 << 10;
/// The most that goes through the cache at a time.
const CACHED_BYTES: u64 = 1 << 20;
/// How far one look at the source's data goes.
const LOOK_BYTES: u64 = 64 << 20;

/// The kind of a stretch of the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Hole,
    Unwritten,
    Data,
}

/// Writes on their way, and the first that went wrong.
struct Writes {
    state: Mutex<WritesState>,
    changed: Condvar,
}

#[derive(Default)]
struct WritesState {
    in_flight: usize,
    /// From where on the target may lack data, and why, if that is known.
    broken: Option<(u64, Option<Error>)>,
}

impl WritesState {
    fn note(&mut self, at: u64, error: Option<Error>) {
        if self.broken.as_ref().is_none_or(|(first, _)| at < *first) {
            self.broken = Some((at, error));
        }
    }
}

/// A piece being read: where it goes, and the channel that will bring its bytes.
type PieceRead = (Range<u64>, std::sync::mpsc::Receiver<Result<Vec<IoSlice>>>);

/// A copy under way.
struct Copier<'a> {
    core: &'a Arc<Core>,
    from: &'a Arc<Handle>,
    to: &'a Arc<Handle>,
    /// The same files, past the cache; made when first needed.
    direct: Option<(Arc<Handle>, Arc<Handle>)>,
    /// How many pieces are written at a time: only one if there might be no room for all. A piece that completed behind one for
    /// which there was none would make the file longer than what was copied.
    window: usize,
    /// Those read first come first.
    reads: VecDeque<PieceRead>,
    writes: Arc<Writes>,
}

impl Core {
    /// What is at `pos` of a file, and how far, at most to `end`. What is in the cache only counts as data.
    fn stretch_at(&self, inode: &Arc<Inode>, pos: u64, end: u64) -> Result<(Kind, u64)> {
        let block = self.block();
        // Dirty pages first: once they are neither dirty nor in flight, the mapping includes them.
        let dirty = {
            let table = inode.pages.lock();
            table.first_unwritten_in(pos / block * block..end)
        };
        if let Some(run) = &dirty
            && run.start <= pos
        {
            return Ok((Kind::Data, run.end.min(end)));
        }
        let limit = dirty.map_or(end, |run| run.start);
        let m = self.engine.map(inode, pos, limit - pos)?;
        let to = m.offset.saturating_add(m.bytes).min(limit);
        if m.offset > pos || to <= pos {
            let what = "the mapping does not hold the offset";
            return Err(Error::corrupt("map", what).ino(inode.ino()));
        }
        let kind = match m.place {
            Place::Hole => Kind::Hole,
            Place::Unwritten(_) | Place::Reserved => Kind::Unwritten,
            Place::Delayed | Place::Mapped(_) | Place::Inline | Place::Encoded => Kind::Data,
        };
        Ok((kind, to))
    }

    /// As [`Core::stretch_at`], neighbours of one kind joined.
    fn stretch(&self, inode: &Arc<Inode>, pos: u64, end: u64) -> Result<(Kind, u64)> {
        let _lock = inode.lock.read();
        let (kind, mut to) = self.stretch_at(inode, pos, end)?;
        let far = match kind {
            Kind::Data => end.min(pos.saturating_add(LOOK_BYTES)),
            Kind::Hole | Kind::Unwritten => end,
        };
        while to < far {
            let (next, next_to) = self.stretch_at(inode, to, far)?;
            if next != kind {
                break;
            }
            to = next_to;
        }
        Ok((kind, to))
    }

    /// Whether a file has nothing but a hole in the range.
    fn is_hole(&self, inode: &Arc<Inode>, range: &Range<u64>) -> Result<bool> {
        let (kind, to) = self.stretch(inode, range.start, range.end)?;
        Ok(kind == Kind::Hole && to >= range.end)
    }

    /// Whether neither the volume nor the owner's quota can come to its end while this many bytes are copied into a file, if others take little
    /// meanwhile.
    fn has_ample_room(&self, inode: &Arc<Inode>, bytes: u64) -> Result<bool> {
        let needed = bytes.saturating_mul(2);
        match self.engine.check_quota(inode, needed) {
            Err(e) if e.kind() == ErrorKind::QuotaExceeded => return Ok(false),
            other => other?,
        }
        let volume = self.engine.statfs()?;
        let room = volume.blocks_free * u64::from(volume.block_bytes);
        Ok(room >= needed.saturating_add(ROOM_MIN))
    }

    /// Raises a file's size to `size`, with a hole.
    fn grow(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        let lock = self.lock_to_change(inode, "copy range")?;
        // Writes in flight that extend the file set its end when they have completed.
        inode.pages.wait_allocating(&(0..u64::MAX));
        if inode.size() < size {
            self.truncate(inode, size, &lock)?;
        }
        Ok(())
    }
}

impl Copier<'_> {
    fn broken(&self) -> bool {
        self.writes.state.lock().broken.is_some()
    }

    /// Sends the piece read first on its way to the target.
    fn write_first(&mut self) {
        let Some((range, bytes)) = self.reads.pop_front() else {
            return;
        };
        // The sender is dropped without sending only when the volume goes down.
        let read = bytes.recv().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Io, "copy range").detail("the read was lost"))
        });
        let mut state = self.writes.state.lock();
        let slices = match read {
            Ok(slices) => slices,
            Err(e) => return state.note(range.start, Some(e)),
        };
        let got: u64 = slices.iter().map(|s| s.len() as u64).sum();
        if got < range.end - range.start {
            // The source became shorter meanwhile.
            state.note(range.start + got, None);
        }
        while state.in_flight >= self.window {
            self.writes.changed.wait(&mut state);
        }
        let broken = state.broken.as_ref();
        if got == 0 || broken.is_some_and(|(at, _)| *at < range.start) {
            return;
        }
        state.in_flight += 1;
        drop(state);
        let Some((_, to)) = &self.direct else { return };
        let writes = Arc::clone(&self.writes);
        let at = range.start;
        to.start(
            WriteOp::at(at, slices),
            Box::new(move |done| {
                let mut state = writes.state.lock();
                match done {
                    Ok(n) if n as u64 == got => {}
                    Ok(n) => state.note(at + n as u64, None),
                    Err(e) => state.note(at, Some(e)),
                }
                state.in_flight -= 1;
                drop(state);
                writes.changed.notify_all();
            }),
            Patience::Wait,
        );
    }

    /// Copies whole blocks past the cache: begins to, and continues with those before.
    fn past_cache(&mut self, range: Range<u64>, target: u64) {
        let core = self.core;
        let (from, _) = self
            .direct
            .get_or_insert_with(|| (self.from.past_cache(), self.to.past_cache()));
        let from = Arc::clone(from);
        let inode = from.inode();
        let mut pos = range.start;
        while pos < range.end && !self.broken() {
            if self.reads.len() >= WINDOW {
                self.write_first();
            }
            // Pieces end where large requests do.
            let end = ((pos / PIECE_BYTES + 1) * PIECE_BYTES).min(range.end);
            let (send, receive) = std::sync::mpsc::sync_channel(1);
            let mut cached = Vec::new();
            if inode.pages.has_cached()
                && inode
                    .pages
                    .lock()
                    .slices(pos..end, core.block(), &mut cached)
                    >= end
            {
                // The receiver is below, and there is room for one.
                let _ = send.send(Ok(cached));
            } else {
                drop(cached);
                let done = Box::new(move |read| {
                    let _ = send.send(read);
                });
                let op = ReadOp::new(pos, (end - pos) as usize);
                from.start(op, done, Patience::Worker);
            }
            let at = target + (pos - range.start);
            self.reads.push_back((at..at + (end - pos), receive));
            pos = end;
        }
        if self.window == 1 {
            // Nothing is done behind a piece of which it is not known whether it found room.
            self.finish();
        }
    }

    /// Writes into the target's cache; the copy is synchronised as a whole.
    fn write_cached(&self, bytes: &[u8], at: u64) -> Result<usize> {
        let (to, begin) = (self.to, WriteAt::Offset(at));
        to.may_overwrite(TimesKeeper::Vfs)?;
        self.core.make_room(bytes.len());
        let (_, n) = to.place_cached(bytes, begin, TimesKeeper::Vfs)?;
        Ok(n)
    }

    /// Copies through the target's cache. How much.
    fn through_cache(&self, range: Range<u64>, target: u64) -> Result<u64> {
        let mut pos = range.start;
        while pos < range.end {
            let len = (range.end - pos).min(CACHED_BYTES) as usize;
            let slices = self.from.run(ReadOp::new(pos, len))?;
            if slices.is_empty() {
                break;
            }
            for slice in slices {
                let at = target + (pos - range.start);
                let n = match self.write_cached(&slice, at) {
                    Ok(n) => n as u64,
                    Err(_) if pos > range.start => return Ok(pos - range.start),
                    Err(e) => return Err(e),
                };
                pos += n;
                if n < slice.len() as u64 {
                    return Ok(pos - range.start);
                }
            }
        }
        Ok(pos - range.start)
    }

    /// Copies a run of data. Whether all of it was copied or is on its way; if not, that is noted.
    fn data(&mut self, range: Range<u64>, target: u64, whole: u64) -> bool {
        let block = self.core.block();
        let first = range.start.next_multiple_of(block).min(range.end);
        let last = (range.end / block * block).max(first);
        let direct = whole >= DIRECT_COPY_MIN
            && last - first >= DIRECT_RUN_MIN
            && range.start % block == target % block;
        let parts = match direct {
            true => [range.start..first, first..last, last..range.end],
            false => [range.clone(), range.end..range.end, range.end..range.end],
        };
        for (k, part) in parts.into_iter().enumerate() {
            if part.is_empty() {
                continue;
            }
            if self.broken() {
                break;
            }
            let at = target + (part.start - range.start);
            if direct && k == 1 {
                self.past_cache(part, at);
                continue;
            }
            let len = part.end - part.start;
            let outcome = self.through_cache(part, at);
            let n = *outcome.as_ref().unwrap_or(&0);
            if n < len {
                self.writes.state.lock().note(at + n, outcome.err());
            }
        }
        !self.broken()
    }

    /// Makes a range of the target a hole, as far as it lies within the file.
    fn hole(&self, range: Range<u64>) -> Result<()> {
        let inode = self.to.inode();
        let range = range.start..range.end.min(inode.size());
        if range.is_empty() || self.core.is_hole(inode, &range)? {
            return Ok(());
        }
        match self
            .to
            .allocate(range.clone(), FallocMode::PunchHole, TimesKeeper::Vfs)
        {
            Err(e) if e.kind() == ErrorKind::Unsupported => self.zeroes(range),
            other => other,
        }
    }

    /// Makes a range of the target read as zeroes, with blocks that were not written to.
    fn unwritten(&self, range: Range<u64>) -> Result<()> {
        // The size grows with what was copied: an allocation that fails half-way must not leave a longer file.
        let mode = FallocMode::ZeroRange { keep_size: true };
        match self.to.allocate(range.clone(), mode, TimesKeeper::Vfs) {
            // Not every mapping can: blocks mapped one by one have no such state.
            Err(e) if e.kind() == ErrorKind::Unsupported => self.hole(range),
            other => other,
        }
    }

    /// For files of which no range can become a hole.
    fn zeroes(&self, range: Range<u64>) -> Result<()> {
        let zeroes = [0u8; 4096];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(zeroes.len() as u64) as usize;
            let n = self.write_cached(&zeroes[..len], at)?;
            if n == 0 {
                return Err(Error::new(ErrorKind::NoSpace, "copy range"));
            }
            at += n as u64;
        }
        Ok(())
    }

    /// Waits for everything on its way.
    fn finish(&mut self) {
        while !self.reads.is_empty() {
            self.write_first();
        }
        let mut state = self.writes.state.lock();
        while state.in_flight > 0 {
            self.writes.changed.wait(&mut state);
        }
    }

    /// Waits for everything on its way. Up to where the target is complete, at most `reached`, and why not
    /// further.
    fn drain(&mut self, reached: u64) -> (u64, Option<Error>) {
        self.finish();
        match self.writes.state.lock().broken.take() {
            Some((at, error)) if at < reached => (at, error),
            Some((_, error)) => (reached, error),
            None => (reached, None),
        }
    }
}

impl Handle {
    /// Copies a range from this file to another of the same volume, holes and unwritten blocks as such;
    /// returns how much, less only at the end of this file, when the volume is full, or when an error came after a
    /// part was copied, which the next call meets then.
    ///
    /// # Errors
    /// `Invalid` when the ranges overlap in one file, or the target is open for appending; `CrossDevice`; as reading and writing.
    pub fn copy_range(
        self: &Arc<Self>,
        from: u64,
        to: &Arc<Handle>,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.copy_range_some(from, to, to_offset, len, u64::MAX)
    }

    /// As [`Handle::copy_range`], and ends when `data_max` bytes of data, holes not counted, were copied: for
    /// callers that must answer in time.
    ///
    /// # Errors
    /// As [`Handle::copy_range`].
    pub fn copy_range_some(
        self: &Arc<Self>,
        from: u64,
        to: &Arc<Handle>,
        to_offset: u64,
        len: u64,
        data_max: u64,
    ) -> Result<u64> {
        let op = "copy range";
        self.may_read()?;
        to.may_overwrite(TimesKeeper::Vfs)?;
        if !Arc::ptr_eq(self.core(), to.core()) {
            return Err(Error::new(ErrorKind::CrossDevice, op));
        }
        let invalid = || Error::new(ErrorKind::Invalid, op).ino(to.inode().ino());
        if self.inode().ino() == to.inode().ino()
            && from < to_offset.saturating_add(len)
            && to_offset < from.saturating_add(len)
        {
            return Err(invalid());
        }
        if to.flags().appends_here() {
            return Err(invalid());
        }
        let size = self.inode().size();
        let end = from.saturating_add(len).min(size);
        if from >= end {
            return Ok(0);
        }
        let core = self.core();
        let target_max = core.engine.file_bytes_max(to.inode());
        if to_offset >= target_max {
            return Err(Error::new(ErrorKind::FileTooLarge, op).ino(to.inode().ino()));
        }
        let end = end.min(from.saturating_add(target_max - to_offset));
        if to.must_strip() {
            let _lock = core.lock_to_change(to.inode(), op)?;
            to.strip_held()?;
        }
        // Copies through the cache go in order in any case.
        let side_by_side =
            end - from >= DIRECT_COPY_MIN && core.has_ample_room(to.inode(), end - from)?;
        let mut copier = Copier {
            core,
            from: self,
            to,
            direct: None,
            window: if side_by_side { WINDOW } else { 1 },
            reads: VecDeque::new(),
            writes: Arc::new(Writes {
                state: Mutex::new(Rank::Leaf, WritesState::default()),
                changed: Condvar::new(),
            }),
        };
        let mut pos = from;
        let mut data = 0;
        let mut holes = 0;
        let mut failed = None;
        while pos < end && data < data_max {
            let (kind, stop) = match core.stretch(self.inode(), pos, end) {
                Ok(found) => found,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            let at = to_offset + (pos - from);
            let changed = match kind {
                Kind::Hole => copier.hole(at..at + (stop - pos)),
                Kind::Unwritten => copier.unwritten(at..at + (stop - pos)),
                Kind::Data => {
                    let stop = stop.min(pos.saturating_add(data_max - data));
                    let all = copier.data(pos..stop, at, end - from);
                    data += stop - pos;
                    pos = stop;
                    if !all {
                        break;
                    }
                    continue;
                }
            };
            if let Err(e) = changed {
                failed = Some(e);
                break;
            }
            holes += stop - pos;
            pos = stop;
        }
        let reached = to_offset + (pos - from);
        let (mut complete, error) = copier.drain(reached);
        if complete > to_offset
            // A hole at the end of what was copied is not written.
            && let Err(e) = core.grow(to.inode(), complete)
        {
            // The file keeps its size, and has what was copied below that.
            complete = complete.min(to.inode().size());
            failed = failed.or(Some(e));
        }
        let done = complete.saturating_sub(to_offset);
        if done > 0 {
            let now = Timestamp::now();
            to.inode().update_attr(|a| (a.mtime, a.ctime) = (now, now));
            core.mark_lazy(to.inode());
            let counters = &core.counters;
            counters.copied.fetch_add(done, Ordering::Relaxed);
            counters
                .copied_holes
                .fetch_add(holes.min(done), Ordering::Relaxed);
            let n = usize::try_from(done).unwrap_or(usize::MAX);
            to.after_cached_write(to_offset, n, to.flags().sync)?;
            return Ok(done);
        }
        match error.or(failed) {
            Some(e) => Err(e),
            None => Ok(0),
        }
    }
}
