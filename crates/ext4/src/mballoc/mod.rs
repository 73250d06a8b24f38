//! Block allocation: which blocks to hand out, and the bitmaps that record it.
//!
//! Taking blocks and marking them used are two steps. [`Allocator::take`] changes memory only;
//! [`Allocator::mark_used`] changes bitmap and descriptor in the handle that makes the blocks
//! reachable. A crash in between loses nothing. [`Allocator::free`] clears the bits at once on
//! disk but leaves the blocks unavailable in memory until that transaction is durable: otherwise
//! new data could overwrite blocks that, after a crash, the old file still owns.
//!
//! Search: at the goal; in the goal's group; in its flexible group; then through the index, which
//! names groups with a run that is long enough; then the longest runs there are. A run is always
//! one stretch in one group.
//!
//! Not responsible for: how much to ask for (`preallocation`, `map`), which inode owns what.
//!
//! # Locks
//! Group locks, one at a time. Searches use `try_lock` first, so that concurrent allocators spread
//! over groups. Loading a bitmap reads under the group's lock.

mod counters;
mod freemap;
pub(crate) mod in_transit;
mod index;
mod maps;
mod marks;
mod search;
mod space;

pub(crate) use counters::AllocCounters;
pub use counters::AllocSnapshot;
pub(crate) use freemap::{FreeMap, order_of};
pub use space::Claim;

use crate::fs::Fs;
use crate::inode::MapState;
use crate::jbd2::Handle;
use crate::preallocation::{Localities, PaRegistry};
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, Geometry, GroupNo, Incompat, Ino, Superblock};
use blockwright_vfs::stats::{Stats, Unit};
use in_transit::InTransit;
use index::FreeIndex;
use parking_lot::Mutex;
use space::Space;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Budget of loaded group bitmaps, in bytes.
const MAP_BYTES_MAX: usize = 16 << 20;

/// A stretch of blocks on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: BlockNo,
    /// Blocks.
    pub len: u32,
}

impl Run {
    /// First block behind it.
    #[must_use]
    pub fn end(&self) -> BlockNo {
        BlockNo(self.start.0.saturating_add(u64::from(self.len)))
    }
}

/// What to allocate.
#[derive(Clone, Copy, Debug)]
pub struct AllocRequest {
    /// For whom (spreads files over the volume, and names them in errors).
    pub ino: Ino,
    /// First logical block, for traces.
    pub logical: FileBlock,
    /// Blocks wanted, at least 1.
    pub len: u32,
    /// Where they would be best.
    pub goal: BlockNo,
    /// A short run exactly at the goal beats a long one elsewhere (it continues an extent).
    pub contiguous: bool,
    /// Which space they come out of.
    pub claim: Claim,
    /// First block number that cannot be used (2³² for block-mapped files).
    pub limit: Option<BlockNo>,
    /// The file is growing: where it cannot go on at the goal, it goes where there is room to grow.
    pub room: bool,
}

/// State shared with commit callbacks.
pub(crate) struct Shared {
    pub(crate) index: FreeIndex,
    pub(crate) space: Space,
}

/// The block allocator of a volume.
pub struct Allocator {
    pub(crate) shared: Arc<Shared>,
    fs: OnceLock<Weak<Fs>>,
    /// Groups with a loaded map, oldest first; may name groups that were unloaded since.
    loaded: Mutex<VecDeque<GroupNo>>,
    loaded_max: usize,
    pub(crate) localities: Localities,
    pub(crate) preallocations: PaRegistry,
    pub(crate) in_transit: InTransit,
    /// Where the last search that had to leave its goal ended: streams continue there.
    stream: AtomicU64,
    pub(crate) taken_runs: AtomicU64,
    pub(crate) goal_hits: AtomicU64,
    pub(crate) groups_scanned: AtomicU64,
    pub(crate) maps_loaded: AtomicU64,
    pub(crate) forced_commits: AtomicU64,
    delayed_allocation: AtomicBool,
}

impl Allocator {
    /// An allocator that knows no free block yet; see [`Fs::start_allocation`].
    #[must_use]
    pub fn new(superblock: &Superblock) -> Self {
        let geo = &superblock.geo;
        let map_bytes = (geo.blocks_per_group as usize / 8).max(64);
        Allocator {
            shared: Arc::new(Shared {
                index: FreeIndex::new(geo.groups_count),
                space: Space::new(
                    geo.blocks_count,
                    superblock.raw.reserved_blocks_count(),
                    geo.features.has_incompat(Incompat::EXTENT),
                ),
            }),
            fs: OnceLock::new(),
            loaded: Mutex::default(),
            loaded_max: (MAP_BYTES_MAX / map_bytes).max(16),
            localities: Localities::new(),
            preallocations: PaRegistry::default(),
            in_transit: InTransit::default(),
            stream: AtomicU64::new(0),
            taken_runs: AtomicU64::new(0),
            goal_hits: AtomicU64::new(0),
            groups_scanned: AtomicU64::new(0),
            maps_loaded: AtomicU64::new(0),
            forced_commits: AtomicU64::new(0),
            delayed_allocation: AtomicBool::new(true),
        }
    }

    fn fs(&self) -> Result<Arc<Fs>> {
        self.fs.get().and_then(Weak::upgrade).ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, "allocate").detail("allocation was not started")
        })
    }

    /// Whether data may not use the blocks that the superblock reserves for root. Off by default:
    /// the engine does not know its callers, and its process owns the volume.
    pub fn set_honour_root_reserve(&self, on: bool) {
        self.shared.space.set_honour_root_reserve(on);
    }

    /// See [`Self::set_honour_root_reserve`].
    #[must_use]
    pub fn honours_root_reserve(&self) -> bool {
        self.shared.space.honours_root_reserve()
    }

    /// How preallocation is done from now on.
    #[cfg(feature = "comparison")]
    pub fn set_preallocation(&self, mode: crate::comparison::Preallocation) {
        self.preallocations.mode.set(mode);
    }

    pub(crate) fn preallocates(&self) -> bool {
        self.preallocations.preallocates()
    }

    /// Whether blocks are placed when pages are written back (`true`, the default) or when they are
    /// written to.
    pub fn set_delayed_allocation(&self, on: bool) {
        self.delayed_allocation.store(on, Ordering::Relaxed);
    }

    pub(crate) fn delays(&self) -> bool {
        self.delayed_allocation.load(Ordering::Relaxed)
    }

    /// The most blocks that one preallocation may take now: so that all of them together leave half of
    /// the free space alone, and none takes what many files could share. Without this, sparse writes
    /// would preallocate a volume full, and the next search find nothing but fragments.
    pub(crate) fn spare(&self, fs: &Fs) -> u64 {
        let free = fs
            .sb
            .free_blocks()
            .saturating_sub(self.shared.space.claimed());
        (free / 2).saturating_sub(self.preallocations.blocks()) / 8
    }

    /// What allocation did since the mount.
    #[must_use]
    pub fn snapshot(&self) -> AllocSnapshot {
        self.preallocations
            .counters
            .snapshot(self.preallocations.blocks())
    }

    /// (free, available to users) for `statfs`, given the free blocks on disk.
    pub(crate) fn statfs(&self, free: u64) -> (u64, u64) {
        self.shared.space.statfs(free)
    }

    /// Adds the live counters to a snapshot.
    pub fn stats(&self, out: &mut Stats) {
        use Unit::{Blocks, Count};
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        out.section("allocator");
        out.counter(
            "alloc_runs",
            Count,
            "runs of blocks taken",
            get(&self.taken_runs),
        );
        out.counter(
            "alloc_goal_hits",
            Count,
            "runs found exactly at their goal",
            get(&self.goal_hits),
        );
        self.preallocations.stats(out);
        out.counter(
            "alloc_groups_scanned",
            Count,
            "block groups searched",
            get(&self.groups_scanned),
        );
        out.counter(
            "alloc_bitmaps_loaded",
            Count,
            "block bitmaps read",
            get(&self.maps_loaded),
        );
        out.counter(
            "alloc_forced_commits",
            Count,
            "commits forced to make freed blocks usable",
            get(&self.forced_commits),
        );
        out.gauge(
            "alloc_blocks_claimed",
            Blocks,
            "blocks promised and not yet marked used",
            self.shared.space.claimed(),
        );
        out.gauge(
            "alloc_blocks_pending",
            Blocks,
            "blocks freed by transactions that are not durable yet",
            self.shared.space.pending(),
        );
    }

    /// The numbers of [`Allocator::stats`].
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut out = Stats::new();
        self.stats(&mut out);
        out.numbers()
    }

    /// Promises room for blocks that will be taken with [`Claim::Reserved`].
    ///
    /// # Errors
    /// `NoSpace`, reserving nothing.
    pub fn reserve_space(&self, data_blocks: u64, meta_blocks: u64) -> Result<()> {
        let want = data_blocks.saturating_add(meta_blocks);
        let fs = self.fs()?;
        if want == 0
            || self
                .shared
                .space
                .claim(|| fs.sb.free_blocks(), want, true, Claim::Data)
                == want
        {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoSpace, "reserve space"))
    }

    /// Takes a promise back.
    pub fn unreserve_space(&self, data_blocks: u64, meta_blocks: u64) {
        self.shared
            .space
            .unclaim(data_blocks.saturating_add(meta_blocks));
    }

    /// Available blocks of a group, as far as known without looking.
    pub(crate) fn free_in_group(&self, group: GroupNo) -> u32 {
        self.shared.index.free(group)
    }

    /// Blocks that become usable when the running transaction commits.
    #[must_use]
    pub fn pending_blocks(&self) -> u64 {
        self.shared.space.pending()
    }

    /// Forces the journal to commit when that would make blocks usable. Never call it with a handle
    /// open. Returns whether trying again makes sense.
    ///
    /// # Errors
    /// As the journal reports.
    pub fn commit_pending(&self) -> Result<bool> {
        if self.pending_blocks() == 0 {
            return Ok(false);
        }
        self.forced_commits.fetch_add(1, Ordering::Relaxed);
        self.fs()?.journal.commit_running()?;
        Ok(true)
    }

    /// Takes the longest run of at most `req.len` blocks near the goal, in memory only. May force a
    /// commit: never call it with a handle open (see [`Self::take_in_handle`]).
    ///
    /// # Errors
    /// `NoSpace`; I/O errors and corruption met while loading bitmaps.
    pub fn take(&self, req: &AllocRequest) -> Result<Run> {
        // Preallocations move between threads for moments in which no thread can discard them, so a
        // promise is kept by looking again rather than by looking once.
        let rounds = if req.claim == Claim::Reserved { 64 } else { 4 };
        let mut last = self.take_in_handle(req);
        for round in 0..rounds {
            match &last {
                Err(e) if e.kind() == ErrorKind::NoSpace => {}
                _ => break,
            }
            if !self.commit_pending()? && round > 0 {
                std::thread::yield_now();
            }
            last = self.take_in_handle(req);
        }
        last
    }

    /// As [`Self::take`], for callers inside of a handle: finds no blocks whose freeing has yet to be
    /// committed, and fails with `NoSpace` when there are only such.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_in_handle(&self, req: &AllocRequest) -> Result<Run> {
        let fs = self.fs()?;
        let space = &self.shared.space;
        let claimed = match req.claim {
            Claim::Reserved => u64::from(req.len),
            claim => space.claim(|| fs.sb.free_blocks(), u64::from(req.len), false, claim),
        };
        let no_space =
            || Error::new(ErrorKind::NoSpace, "allocate").ino(crate::group::vfs_ino(req.ino));
        if claimed == 0 {
            return Err(no_space());
        }
        let len = u32::try_from(claimed).unwrap_or(u32::MAX);
        let mut found = self.search(&fs, req, len);
        if matches!(found, Ok(None)) && self.discard_preallocations(&fs) {
            found = self.search(&fs, req, len);
        }
        if let Ok(Some(run)) = found {
            self.taken_runs.fetch_add(1, Ordering::Relaxed);
            if req.claim != Claim::Reserved {
                space.unclaim(claimed - u64::from(run.len));
            }
            return Ok(run);
        }
        if req.claim != Claim::Reserved {
            space.unclaim(claimed);
        }
        Err(found.err().unwrap_or_else(no_space))
    }

    /// Takes a run without claiming it, for a preallocation: its user claims.
    pub(crate) fn take_unclaimed(&self, req: &AllocRequest) -> Result<Option<Run>> {
        let fs = self.fs()?;
        self.search(&fs, req, req.len)
    }

    /// Claims up to `want` blocks for blocks that are taken already; returns how many.
    pub(crate) fn claim(&self, want: u64, claim: Claim) -> Result<u64> {
        if claim == Claim::Reserved {
            return Ok(want);
        }
        let fs = self.fs()?;
        Ok(self
            .shared
            .space
            .claim(|| fs.sb.free_blocks(), want, false, claim))
    }

    /// Undoes a [`Self::take`]: the blocks are available again, their claim is gone.
    pub fn give_back(&self, run: Run) {
        self.shared.space.unclaim(u64::from(run.len));
        self.put_back(run);
    }

    /// Makes taken, unclaimed blocks available again.
    pub(crate) fn put_back(&self, run: Run) {
        let Ok(fs) = self.fs() else { return };
        for (group, start, len) in split_by_group(fs.geometry(), run) {
            let Ok(group) = fs.group(group) else { continue };
            let mut st = group.lock();
            st.taken = st.taken.saturating_sub(len);
            if let Some(map) = st.map.as_mut() {
                let gave = map.give(start, len);
                debug_assert!(gave, "given back twice: {run:?}");
            }
            self.reindex(group, &st);
        }
    }

    /// Gives up preallocated blocks of all inodes and of the small-file areas. Returns whether there
    /// were any.
    pub(crate) fn discard_preallocations(&self, fs: &Fs) -> bool {
        let transit = self.in_transit.hold();
        let mut runs = self.localities.discard();
        self.preallocations.note_discarded(&runs);
        runs.extend(self.preallocations.discard());
        if !runs.is_empty() {
            transit.carries();
        }
        for run in &runs {
            fs.alloc.put_back(*run);
        }
        !runs.is_empty()
    }

    /// Allocates one block of metadata near the goal, marked used in the handle.
    ///
    /// # Errors
    /// `NoSpace`; when [`Self::pending_blocks`] is not 0, worth another try after the handle was
    /// closed and [`Self::commit_pending`] called.
    pub fn alloc_meta(&self, h: &Handle<'_>, goal: BlockNo, ino: Ino) -> Result<BlockNo> {
        self.alloc_meta_from(h, goal, ino, Claim::Metadata, None)
    }

    /// As [`Self::alloc_meta`], choosing the space and a limit.
    pub(crate) fn alloc_meta_from(
        &self,
        h: &Handle<'_>,
        goal: BlockNo,
        ino: Ino,
        claim: Claim,
        limit: Option<BlockNo>,
    ) -> Result<BlockNo> {
        let run = self.take_in_handle(&AllocRequest {
            ino,
            logical: FileBlock(0),
            len: 1,
            goal,
            contiguous: true,
            claim,
            limit,
            room: false,
        })?;
        if let Err(e) = self.mark_used(h, run) {
            self.give_back(run);
            return Err(e);
        }
        Ok(run.start)
    }
}

/// The parts of a run by group: (group, first block in the group, blocks).
pub(crate) fn split_by_group(geo: &Geometry, run: Run) -> Vec<(GroupNo, u32, u32)> {
    let mut parts = Vec::with_capacity(1);
    let (mut at, end) = (run.start.0, run.end().0);
    while at < end {
        let Some((group, offset)) = geo.split_block(BlockNo(at)) else {
            break;
        };
        let n = u64::from(geo.group_blocks(group).saturating_sub(offset)).min(end - at);
        if n == 0 {
            break;
        }
        parts.push((group, offset, n as u32));
        at += n;
    }
    parts
}

impl Fs {
    /// Where an inode's first block should go: in its own group, in one of sixteen places so that
    /// neighbours do not start on top of each other.
    pub(crate) fn inode_goal(&self, ino: Ino) -> BlockNo {
        let geo = self.geometry();
        let (group, index) = geo.split_ino(ino).unwrap_or_default();
        let blocks = geo.group_blocks(group);
        let colour = if blocks >= 4096 {
            index % 16 * (blocks / 16)
        } else {
            0
        };
        BlockNo(geo.group_first_block(group).0 + u64::from(colour))
    }

    /// Frees blocks of an inode: bitmap, and the inode's counter of blocks in `map`.
    pub(crate) fn free_inode_blocks(
        &self,
        h: &Handle<'_>,
        ino: Ino,
        map: &mut MapState,
        run: Run,
        metadata: bool,
    ) -> Result<()> {
        self.check_block_range("free blocks", Some(ino), run.start, u64::from(run.len))?;
        self.alloc.free(h, run, metadata)?;
        map.blocks = map
            .blocks
            .saturating_sub(u64::from(run.len) * self.block_units());
        Ok(())
    }

    /// Makes allocation possible: sums the descriptors into the superblock's totals and fills the
    /// index with what the descriptors promise. Call once, after journal recovery.
    ///
    /// # Errors
    /// I/O errors. A wrong descriptor is reported, and its group left out.
    pub fn start_allocation(self: &Arc<Self>) -> Result<()> {
        // Only the first call counts; mount makes one.
        let _ = self.alloc.fs.set(Arc::downgrade(self));
        self.inodes.attach(self);
        let geo = self.geometry();
        let (mut free_blocks, mut free_inodes) = (0u64, 0u64);
        for index in (0..geo.desc_blocks).step_by(256) {
            let ahead: Vec<(BlockNo, u32)> = (index..geo.desc_blocks.min(index + 256))
                .filter_map(|i| Some((geo.desc_block(i)?, 1)))
                .collect();
            self.cache.read_ahead(&ahead);
            let first = index * geo.descs_per_block;
            let end = first
                .saturating_add(geo.descs_per_block.saturating_mul(256))
                .min(geo.groups_count);
            for g in (first..end).map(GroupNo) {
                let desc = match self.peek_desc(g) {
                    Ok(desc) => desc,
                    Err(e) if e.kind() == ErrorKind::Corrupt => continue,
                    Err(e) => return Err(e),
                };
                let blocks = geo.group_clusters(g);
                let free = desc.free_clusters.min(blocks);
                free_blocks += u64::from(free) * u64::from(geo.cluster_ratio);
                free_inodes += u64::from(desc.free_inodes);
                // Until the bitmap is loaded: a nearly empty group is in one piece, another one in
                // several.
                let guess = if self.block_bitmap_is_uninit(&desc) || free > blocks / 4 * 3 {
                    free
                } else {
                    free / 4 + 1
                };
                let order = (free > 0).then(|| order_of(guess));
                self.alloc.shared.index.set(g, free, order);
                self.inodes.note_group(geo, g, &desc);
            }
        }
        if (free_blocks, free_inodes) != (self.sb.free_blocks(), self.sb.free_inodes()) {
            self.sb.set_totals(free_blocks, free_inodes);
        }
        Ok(())
    }
}
