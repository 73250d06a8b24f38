//! Handing out data blocks without waiting: each data log leases the rest of its segment, and writers cut runs from the front
//! of the lease with one compare-and-swap.
//!
//! The lease is one word: its next block, and how many are left. A writer that finds too little also leases the next segment, about once per
//! segment, under the log's own lock and the segments'. If that segment follows on the device, the lease grows by it, and the run crosses the
//! boundary. If not, the rest of the old segment becomes a run of its own. So each write ends in as few extents as the segments allow, however
//! many writers there are. Short of room a writer leases no more than it writes, and takes what there is.
//!
//! Leased blocks count as handed out (`busy`), so no other allocator uses them. A checkpoint takes leases back first. No writer then
//! holds leased blocks that are not counted elsewhere, and the head that is stored is the next block of the lease.
//!
//! # Invariants
//! * Leases are taken back only while no operation is under way.
//! * The summary of a leased block is set when it is committed: until then its segment's summaries stay in memory.
//!
//! # Locks
//! Each log's `renewal`, rank `Log`; the segments' under it.
//!
//! # References
//! linux-f2fs-devel, "serialize block allocation of dio writes to enhance multithread performance", December 2015.

#[cfg(feature = "comparison")]
mod comparison;

use super::{Need, Segments, Summaries, index};
use crate::{Error, Result};
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{BLOCKS_PER_SEG, BlockAddr, Log};
use blockwright_vfs::locks::{Mutex, Rank};
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

/// Data logs.
const LOGS: usize = 3;

/// One log's lease.
struct Lease {
    /// The next block in the upper half, how many are left in the lower one.
    word: AtomicU64,
    renewal: Mutex<()>,
    /// Of the variants that are measured beside this one.
    #[cfg(feature = "comparison")]
    single: comparison::SingleBlocks,
}

/// The data logs' leases.
pub(super) struct Leases([Lease; LOGS]);

impl Leases {
    pub(super) fn new() -> Self {
        Leases(std::array::from_fn(|_| Lease {
            word: AtomicU64::new(0),
            renewal: Mutex::new(Rank::Log, ()),
            #[cfg(feature = "comparison")]
            single: comparison::SingleBlocks::default(),
        }))
    }

    /// Blocks of a log's lease that are not handed out.
    pub(super) fn unused_of(&self, log: Log) -> u64 {
        u64::from(unpack(self.0[index(log) % LOGS].word.load(Ordering::Relaxed)).1)
    }

    /// Blocks that are leased and not handed out.
    pub(super) fn unused(&self) -> u64 {
        let left = |lease: &Lease| unpack(lease.word.load(Ordering::Relaxed)).1;
        self.0.iter().map(|lease| u64::from(left(lease))).sum()
    }
}

fn pack(next: u32, left: u32) -> u64 {
    u64::from(next) << 32 | u64::from(left)
}

fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// The result of a cut.
enum Cut {
    Run(BlockAddr, u32),
    /// The next block is another one than was asked for.
    Elsewhere,
    /// There is nothing left, or less than has to be.
    Short,
}

/// How much of the wanted length is enough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Enough {
    All,
    Some,
}

impl Lease {
    /// Cuts up to `want` blocks off the front; when `at` is given, only if it begins there.
    fn cut(&self, want: u32, enough: Enough, at: Option<BlockAddr>) -> Cut {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let (next, left) = unpack(word);
            if left == 0 || (enough == Enough::All && left < want) {
                return Cut::Short;
            }
            if at.is_some_and(|at| at.0 != next) {
                return Cut::Elsewhere;
            }
            let n = left.min(want.max(1));
            match self.word.compare_exchange_weak(
                word,
                pack(next + n, left - n),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Cut::Run(BlockAddr(next), n),
                Err(other) => word = other,
            }
        }
    }

    /// Adds blocks to the lease, with `renewal` held: other threads cut meanwhile, but none adds. Returns the lease's former blocks where the
    /// added ones do not follow them.
    fn add(&self, block: BlockAddr, n: u32) -> Option<(BlockAddr, u32)> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let (next, left) = unpack(word);
            let follows = left > 0 && next + left == block.0;
            let (now, run) = match (left, follows) {
                (0, _) => (pack(block.0, n), None),
                (_, true) => (pack(next, left + n), None),
                (_, false) => (pack(block.0, n), Some((BlockAddr(next), left))),
            };
            let swapped =
                self.word
                    .compare_exchange_weak(word, now, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                Ok(_) => return run,
                Err(other) => word = other,
            }
        }
    }
}

impl Segments {
    fn lease(&self, log: Log) -> &Lease {
        &self.leases.0[index(log) % LOGS]
    }

    /// Takes up to `want` consecutive blocks from a data log: fewer only where the log continues elsewhere. An operation is under way, and
    /// they are busy until [`Segments::commit_as`] or [`Segments::give_back`].
    ///
    /// # Errors
    /// As [`Segments::take`].
    pub(crate) fn take_run(&self, need: Need, log: Log, want: u32) -> Result<(BlockAddr, u32)> {
        let lease = self.lease(log);
        loop {
            if let Cut::Run(block, n) = lease.cut(want, Enough::All, None) {
                return Ok((block, n));
            }
            if let Some(run) = self.extend(need, log, lease, want)? {
                return Ok(run);
            }
        }
    }

    /// As [`Segments::take_run`], all that is wanted and with the room for it promised, if the lease has it and the segments' lock is free.
    pub(crate) fn take_nowait(&self, log: Log, want: u32) -> Option<BlockAddr> {
        let lease = self.lease(log);
        if unpack(lease.word.load(Ordering::Acquire)).1 < want {
            self.extend_nowait(log, lease, want)?;
        }
        let mut inner = self.inner.try_lock()?;
        self.charge_in(&mut inner, 0, u64::from(want)).ok()?;
        match lease.cut(want, Enough::All, None) {
            Cut::Run(block, _) => Some(block),
            Cut::Elsewhere | Cut::Short => {
                inner.counts.promised -= u64::from(want);
                None
            }
        }
    }

    /// As [`Segments::extend`], if the log continues in free blocks right behind the lease. Then nothing is read, and the lease keeps its blocks.
    fn extend_nowait(&self, log: Log, lease: &Lease, want: u32) -> Option<()> {
        let _renewal = lease.renewal.try_lock()?;
        let (next, left) = unpack(lease.word.load(Ordering::Acquire));
        if left >= want {
            return Some(());
        }
        if self.is_short() || want > BLOCKS_PER_SEG {
            return None;
        }
        let mut inner = self.inner.try_lock()?;
        let head = inner.logs[index(log)].seg;
        let begin = match self.room(&inner, log, &inner.used(head)) {
            Some(at) => BlockAddr(self.geo.segment_start(head)?.0 + u32::from(at)),
            None => {
                let keep = self.left_alone(Need::User, log);
                self.geo
                    .segment_start(self.find_fresh(&inner, log, keep)?)?
            }
        };
        if left > 0 && next + left != begin.0 {
            return None;
        }
        let none = |_| Summary::default();
        let (block, n) = self
            .take_in(&mut inner, Need::User, log, BLOCKS_PER_SEG, none)
            .ok()?;
        debug_assert_eq!(block, begin, "the log went on elsewhere");
        drop(inner);
        let gone = lease.add(block, n);
        debug_assert!(gone.is_none(), "the lease did not go on in it");
        Some(())
    }

    /// Extends a lease to `want` blocks, unless another thread did. Returns the run that the caller gets instead, if that is impossible.
    fn extend(
        &self,
        need: Need,
        log: Log,
        lease: &Lease,
        want: u32,
    ) -> Result<Option<(BlockAddr, u32)>> {
        let _renewal = lease.renewal.lock_nested();
        let rest = || match lease.cut(want, Enough::Some, None) {
            Cut::Run(block, n) => Some((block, n)),
            Cut::Elsewhere | Cut::Short => None,
        };
        let short = self.is_short();
        let left = unpack(lease.word.load(Ordering::Acquire)).1;
        if left >= want {
            return Ok(None);
        }
        if short && let Some(run) = rest() {
            return Ok(Some(run));
        }
        let most = if short { want } else { BLOCKS_PER_SEG };
        let (block, n) = match self.take_for(need, log, most, |_| Summary::default()) {
            Ok(taken) => taken,
            Err(e) => return rest().map_or(Err(e), |run| Ok(Some(run))),
        };
        Ok(lease.add(block, n))
    }

    fn is_short(&self) -> bool {
        self.free_sections() <= self.reserve + 2 * LOGS
    }

    /// Takes leases back. No operation is under way.
    pub(crate) fn end_leases(&self) {
        for (code, lease) in self.leases.0.iter().enumerate() {
            let (next, left) = unpack(lease.word.swap(0, Ordering::AcqRel));
            if left == 0 {
                continue;
            }
            let start = BlockAddr(next);
            {
                let mut inner = self.inner.lock();
                let head = &mut inner.logs[code];
                // The rest of earlier segments becomes holes, and so does the whole rest if the log went on behind the lease.
                if let Some(segment) = self.geo.segment_start(head.seg)
                    && segment.0 + u32::from(head.next) == next + left
                {
                    head.next = next.saturating_sub(segment.0) as u16;
                }
            }
            self.give_back(start, left);
        }
    }

    /// As [`Segments::commit`], for blocks of [`Segments::take_run`]: notes their owner.
    ///
    /// # Errors
    /// Damage, or a device error, for a segment that every log has left and whose summaries are on the device.
    pub(crate) fn commit_as(
        &self,
        block: BlockAddr,
        count: u32,
        now: u64,
        summary: impl Fn(u32) -> Summary,
    ) -> Result<()> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut done = 0;
        while done < count {
            let Some((seg, at)) = self.geo.segment_of(BlockAddr(block.0 + done)) else {
                return Err(Error::corrupt(
                    super::OP,
                    "a block outside of the main area",
                ));
            };
            let n = (count - done).min(BLOCKS_PER_SEG - u32::from(at));
            let of_log = inner.logs.iter().position(|head| head.seg == seg);
            let entries = match of_log {
                Some(log) => &mut inner.logs[log].entries,
                None => match inner.summaries.entry(seg) {
                    Entry::Occupied(entry) => entry.into_mut().all_mut(),
                    Entry::Vacant(entry) => {
                        let kind = SummaryKind::of(inner.segs.get(seg).log);
                        entry
                            .insert(Summaries::All(self.read_summaries(seg, kind)?))
                            .all_mut()
                    }
                },
            };
            for (entry, i) in entries[usize::from(at)..].iter_mut().zip(done..done + n) {
                *entry = summary(i);
            }
            done += n;
        }
        self.commit_in(inner, block, count, now);
        Ok(())
    }

    /// Promises end, and this many more blocks are in use: in one step. Otherwise another writer could take the room in between, and
    /// a checkpoint with more blocks in use than users may have would make the volume unusable.
    pub(crate) fn commit_reservation(&self, promised: u64, new: u64) {
        debug_assert!(new <= promised, "{new} blocks of {promised} promised");
        let mut inner = self.inner.lock();
        inner.counts.promised = inner.counts.promised.saturating_sub(promised);
        inner.counts.blocks += new;
        inner.charged += new;
    }
}
