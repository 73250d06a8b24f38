//! [`Allocator`]: which blocks to hand out, and the bitmaps that record it.
//!
//! It owns the maps of free blocks, the counters of promised space, the preallocations of all files, and the areas that small files
//! share. It calls `volume` and `groups`. It never knows which inode owns which block, nor how much a file should ask for
//! (`data::delayed`).
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
//! # Parts in this folder
//! - `groups`: block groups, descriptors, the system zone.
//! - `inodes`: which inode a new file gets.
//!
//! # Locks
//! Group locks, one at a time. Searches use `try_lock` first, so that concurrent allocators spread
//! over groups. Loading a bitmap reads under the group's lock. `loaded` is a leaf, and so is every preallocation's lock.
//!
//! # Crash order
//! Bits are set in the handle that makes blocks reachable. Freed blocks stay unusable until their transaction is durable.

pub(crate) mod bits;
mod counters;
mod freemap;
pub(crate) mod groups;
mod in_transit;
mod index;
pub(crate) mod inodes;
mod maps;
mod marks;
mod pending;
pub(crate) mod preallocation;
mod search;
mod space;
mod statfs;
mod trim;
mod zones;

pub(crate) use counters::AllocCounters;
pub use counters::AllocSnapshot;
pub(crate) use freemap::{FreeMap, order_of};
pub use space::Claim;

use crate::journal::Handle;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::{BlockNo, Geometry, GroupDesc, GroupNo, Incompat, Ino};
use blockwright_vfs::stats::Stats;
use groups::Groups;
use in_transit::InTransit;
use index::FreeIndex;
use parking_lot::Mutex;
use preallocation::{Localities, PaRegistry};
use space::Space;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Budget of loaded group bitmaps, in bytes.
const MAP_BYTES_MAX: usize = 16 << 20;
/// Rounds of "no space, but a commit will free some".
const COMMIT_ROUNDS: usize = 4;

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

/// See the module's head.
pub struct Allocator {
    pub(crate) volume: Arc<Volume>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) shared: Arc<Shared>,
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
    /// An allocator that knows no free block yet; see [`Allocator::note_group`].
    pub(crate) fn new(volume: &Arc<Volume>, groups: &Arc<Groups>) -> Self {
        let superblock = volume.superblock();
        let geo = &superblock.geo;
        let map_bytes = (geo.blocks_per_group as usize / 8).max(64);
        Allocator {
            volume: Arc::clone(volume),
            groups: Arc::clone(groups),
            shared: Arc::new(Shared {
                index: FreeIndex::new(geo.groups_count),
                space: Space::new(
                    geo.blocks_count,
                    superblock.raw.reserved_blocks_count(),
                    geo.features.has_incompat(Incompat::EXTENT),
                ),
            }),
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

    /// Notes what a group's descriptor promises, before the group's bitmap is loaded. Returns its free blocks.
    pub(crate) fn note_group(&self, group: GroupNo, desc: &GroupDesc) -> u64 {
        let geo = self.volume.geometry();
        let blocks = geo.group_clusters(group);
        let free = desc.free_clusters.min(blocks);
        // A nearly empty group is in one piece, another one in several.
        let guess = if self.groups.block_bitmap_is_uninit(desc) || free > blocks / 4 * 3 {
            free
        } else {
            free / 4 + 1
        };
        let order = (free > 0).then(|| order_of(guess));
        self.shared.index.set(group, free, order);
        u64::from(free) * u64::from(geo.cluster_ratio)
    }

    /// Where an inode's first block should go: in its own group, in one of sixteen places so that
    /// neighbours do not start on top of each other.
    pub(crate) fn inode_goal(&self, ino: Ino) -> BlockNo {
        let geo = self.volume.geometry();
        let (group, index) = geo.split_ino(ino).unwrap_or_default();
        let blocks = geo.group_blocks(group);
        let colour = if blocks >= 4096 {
            index % 16 * (blocks / 16)
        } else {
            0
        };
        BlockNo(geo.group_first_block(group).0 + u64::from(colour))
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
    pub(crate) fn spare(&self) -> u64 {
        let free = self
            .volume
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

    /// Adds the live counters to a snapshot.
    pub fn stats(&self, out: &mut Stats) {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        out.section("allocator");
        blockwright_vfs::stat_lines! { out;
            counter "alloc_runs", Count, "runs of blocks taken" => get(&self.taken_runs);
            counter "alloc_goal_hits", Count, "runs found exactly at their goal" => get(&self.goal_hits);
        }
        self.preallocations.stats(out);
        blockwright_vfs::stat_lines! { out;
            counter "alloc_groups_scanned", Count, "block groups searched" => get(&self.groups_scanned);
            counter "alloc_bitmaps_loaded", Count, "block bitmaps read" => get(&self.maps_loaded);
            counter "alloc_forced_commits", Count, "commits forced to make freed blocks usable" => get(&self.forced_commits);
            gauge "alloc_blocks_claimed", Blocks, "blocks promised and not yet marked used" => self.shared.space.claimed();
            gauge "alloc_blocks_pending", Blocks, "blocks freed by transactions that are not durable yet" => self.shared.space.pending();
        }
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
        if want == 0
            || self
                .shared
                .space
                .claim(|| self.volume.sb.free_blocks(), want, true, Claim::Data)
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
        self.volume.journal.commit_running()?;
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
        let space = &self.shared.space;
        let claimed = match req.claim {
            Claim::Reserved => u64::from(req.len),
            claim => space.claim(
                || self.volume.sb.free_blocks(),
                u64::from(req.len),
                false,
                claim,
            ),
        };
        let no_space = || Error::new(ErrorKind::NoSpace, "allocate").ino(crate::vfs_ino(req.ino));
        if claimed == 0 {
            return Err(no_space());
        }
        let len = u32::try_from(claimed).unwrap_or(u32::MAX);
        let mut found = self.search(req, len);
        if matches!(found, Ok(None)) && self.discard_preallocations() {
            found = self.search(req, len);
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
        self.search(req, req.len)
    }

    /// Claims up to `want` blocks for blocks that are taken already; returns how many.
    pub(crate) fn claim(&self, want: u64, claim: Claim) -> Result<u64> {
        if claim == Claim::Reserved {
            return Ok(want);
        }
        Ok(self
            .shared
            .space
            .claim(|| self.volume.sb.free_blocks(), want, false, claim))
    }

    /// Undoes a [`Self::take`]: the blocks are available again, their claim is gone.
    pub fn give_back(&self, run: Run) {
        self.shared.space.unclaim(u64::from(run.len));
        self.put_back(run);
    }

    /// Makes taken, unclaimed blocks available again.
    pub(crate) fn put_back(&self, run: Run) {
        for (group, start, len) in split_by_group(self.volume.geometry(), run) {
            let Ok(group) = self.groups.group(group) else {
                continue;
            };
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
    pub(crate) fn discard_preallocations(&self) -> bool {
        let transit = self.in_transit.hold();
        let mut runs = self.localities.discard();
        self.preallocations.note_discarded(&runs);
        runs.extend(self.preallocations.discard());
        if !runs.is_empty() {
            transit.carries();
        }
        for run in &runs {
            self.put_back(*run);
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

    /// Runs `step` again as long as it fails for space that a commit will make usable. `step`
    /// must not return with a handle open.
    ///
    /// # Errors
    /// Those of `step`.
    pub(crate) fn retry_after_commit<R>(&self, mut step: impl FnMut() -> Result<R>) -> Result<R> {
        for _ in 0..COMMIT_ROUNDS {
            match step() {
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    if !self.commit_pending()? {
                        return Err(e);
                    }
                }
                other => return other,
            }
        }
        step()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Parts;

    fn request(len: u32) -> AllocRequest {
        AllocRequest {
            ino: Ino(12),
            len,
            goal: BlockNo(2000),
            contiguous: false,
            claim: Claim::Data,
            limit: None,
            room: false,
        }
    }

    #[test]
    fn taking_changes_memory_only() {
        let p = Parts::new();
        let (free, written) = (p.volume.sb.free_blocks(), p.device.log_len());
        let run = p.alloc.take(&request(64)).expect("room");
        assert_eq!(run.len, 64);
        assert_eq!(p.volume.sb.free_blocks(), free, "marked, not only taken");
        let other = p.alloc.take(&request(64)).expect("room");
        assert!(other.start >= run.end() || run.start >= other.end());
        p.alloc.give_back(run);
        p.alloc.give_back(other);
        assert_eq!(p.device.log_len(), written, "something was written");
        assert_eq!(p.alloc.take(&request(64)).expect("room"), run);
    }

    #[test]
    fn freed_blocks_wait_for_the_commit() {
        let p = Parts::new();
        let free = p.volume.sb.free_blocks();
        let run = p.alloc.take(&request(32)).expect("room");
        let h = p.volume.journal.start(8, "mark").expect("handle");
        p.alloc.mark_used(&h, run).expect("marked");
        drop(h);
        assert_eq!(p.volume.sb.free_blocks(), free - 32);
        p.volume.journal.commit_running().expect("commit");
        let h = p.volume.journal.start(8, "free").expect("handle");
        p.alloc.free(&h, run, false).expect("freed");
        assert_eq!(p.alloc.pending_blocks(), 32);
        let other = p.alloc.take_in_handle(&request(32)).expect("room");
        assert_ne!(other, run, "a crash would show the old owner these blocks");
        p.alloc.give_back(other);
        drop(h);
        p.volume.journal.commit_running().expect("commit");
        assert_eq!(p.alloc.pending_blocks(), 0);
        assert_eq!(p.alloc.take(&request(32)).expect("room"), run);
    }

    #[test]
    fn blocks_of_a_file_are_never_metadata() {
        let p = Parts::new();
        let table = p.groups.inode_table(GroupNo(0)).expect("descriptor");
        let error = p
            .groups
            .check_block_range("test", None, table, 1)
            .expect_err("an inode table");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(p.volume.is_read_only(), "damage was met");
        assert_eq!(p.volume.errors.count(), 1);
    }
}
