//! [`MetaCache`]: one [`Buffer`] per file-system block of metadata in use.
//!
//! It owns the buffers and their budget. It calls the device and the checkpoint map. It never decides when changes go home (the journal
//! does), and never parses a block: a reader brings the check.
//!
//! # Invariants
//! * A buffer's bytes are an `Arc<AlignedBuf>` that is never changed while another thread holds it:
//!   changing copies first. So a commit snapshots a block by cloning an `Arc`, and readers keep a
//!   consistent view without holding a lock.
//! * At most one buffer per block is in the cache. A buffer that a caller holds, or that a running or
//!   committing transaction holds, is not evicted; every other one is clean: its bytes equal the
//!   checkpoint map's copy, or else the device's.
//! * Bytes are verified once per kind, when they enter the cache.
//!
//! # Locks
//! Shard lock (leaf, no I/O under it); a buffer's `load` lock; a buffer's state lock, below all
//! others of the engine. While one reader does the I/O, others of the same block wait on `loaded`.

pub use super::BufferData;
use super::checkpoint::CheckpointMap;
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, Op, Request, SharedDevice};
use blockwright_ondisk::ext4::{BlockNo, GroupNo};
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// A shared buffer.
pub type BufferRef = Arc<Buffer>;

/// What a metadata block holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // named as the structures are
pub enum BlockKind {
    Super,
    GroupDesc,
    BlockBitmap(GroupNo),
    InodeBitmap(GroupNo),
    InodeTable(GroupNo),
    ExtentNode,
    Indirect,
    Directory,
    Xattr,
    OrphanFile,
    Quota,
    EaInode,
    Symlink,
    Journal,
    Mmp,
}

impl BlockKind {
    /// Nonzero code, one per kind.
    const fn code(self) -> u8 {
        match self {
            BlockKind::Super => 1,
            BlockKind::GroupDesc => 2,
            BlockKind::BlockBitmap(_) => 3,
            BlockKind::InodeBitmap(_) => 4,
            BlockKind::InodeTable(_) => 5,
            BlockKind::ExtentNode => 6,
            BlockKind::Indirect => 7,
            BlockKind::Directory => 8,
            BlockKind::Xattr => 9,
            BlockKind::OrphanFile => 10,
            BlockKind::Quota => 11,
            BlockKind::EaInode => 12,
            BlockKind::Symlink => 13,
            BlockKind::Journal => 14,
            BlockKind::Mmp => 15,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Empty,
    Loading,
    Ready,
}

pub(crate) struct BufferState {
    pub(crate) data: BufferData,
    /// The latest transaction that has this buffer among its blocks; 0 for none.
    pub(crate) tid: u64,
}

/// One metadata block in memory.
pub struct Buffer {
    block: BlockNo,
    state: RwLock<BufferState>,
    load: Mutex<Load>,
    loaded: Condvar,
    /// `load` says `Ready`, which it does for good once it does: spares the lock.
    ready: AtomicBool,
    /// [`BlockKind::code`] of the kind the bytes were verified as; 0 for unverified.
    verified: AtomicU8,
    /// Second chance for eviction.
    touched: AtomicBool,
    /// Read ahead, and not asked for yet.
    ahead: AtomicBool,
}

impl Buffer {
    fn empty(block: BlockNo, nothing: &BufferData) -> BufferRef {
        Arc::new(Buffer {
            block,
            state: RwLock::new(BufferState {
                data: Arc::clone(nothing),
                tid: 0,
            }),
            load: Mutex::new(Load::Empty),
            loaded: Condvar::new(),
            ready: AtomicBool::new(false),
            verified: AtomicU8::new(0),
            touched: AtomicBool::new(false),
            ahead: AtomicBool::new(false),
        })
    }

    /// Which block it is.
    #[must_use]
    pub fn block(&self) -> BlockNo {
        self.block
    }

    /// The bytes as they are now; later changes do not show in the snapshot.
    #[must_use]
    pub fn data(&self) -> BufferData {
        Arc::clone(&self.state.read().data)
    }

    pub(crate) fn state(&self) -> &RwLock<BufferState> {
        &self.state
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Becomes the loader (`true`), or waits until another one is done. Loop until ready.
    fn claim(&self) -> bool {
        if self.is_ready() {
            return false;
        }
        let mut load = self.load.lock();
        loop {
            match *load {
                Load::Ready => return false,
                Load::Empty => {
                    *load = Load::Loading;
                    return true;
                }
                Load::Loading => self.loaded.wait(&mut load),
            }
        }
    }

    fn try_claim(&self) -> bool {
        if self.is_ready() {
            return false;
        }
        let mut load = self.load.lock();
        let free = *load == Load::Empty;
        if free {
            *load = Load::Loading;
        }
        free
    }

    fn finish_load(&self, data: Option<BufferData>) {
        let ready = data.is_some();
        if let Some(data) = data {
            self.state.write().data = data;
        }
        *self.load.lock() = if ready { Load::Ready } else { Load::Empty };
        if ready {
            self.ready.store(true, Ordering::Release);
        }
        self.loaded.notify_all();
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:?})", self.block)
    }
}

#[derive(Default)]
struct Shard {
    buffers: HashMap<BlockNo, BufferRef>,
    /// Eviction order: a queue with second chances. May hold blocks that are gone.
    queue: VecDeque<BlockNo>,
    /// Blocks that were asked for and found. Counted here, where the lock is held anyway: one counter for all shards
    /// would be written by all CPUs.
    hits: u64,
}

const SHARDS: usize = 32;

#[derive(Default)]
struct Stats {
    misses: AtomicU64,
    evictions: AtomicU64,
    read_ahead: AtomicU64,
}

/// Whether asking for a buffer is a use of the cache that statistics count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Counted,
    Apart,
}

struct Inner {
    device: SharedDevice,
    block_bits: u32,
    blocks_count: AtomicU64,
    shards: Vec<Mutex<Shard>>,
    shard_blocks_max: AtomicUsize,
    /// Blocks in all shards, to be read without their locks.
    blocks: AtomicUsize,
    checkpoint: Arc<CheckpointMap>,
    nothing: BufferData,
    /// How much may be read ahead although it is not asked for: see [`Inner::ahead_pays`].
    credit: AtomicI64,
    /// Calls of read-ahead without credit.
    poor: AtomicU64,
    stats: Stats,
}

/// The most credit, in blocks that are read ahead in vain.
const CREDIT_MAX: i64 = 4096;
/// The credit for one block that was read ahead and then requested.
const CREDIT_USED: i64 = 2;
/// Without credit one of this many calls reads ahead, to see whether times have changed.
const POOR_ONE_IN: u64 = 64;

/// The cache. Cloning shares it.
#[derive(Clone)]
pub struct MetaCache {
    inner: Arc<Inner>,
}

impl MetaCache {
    /// A cache of blocks of `1 << block_bits` bytes on a volume of `blocks_count` blocks, using
    /// about `budget_bytes`. Blocks found in `checkpoint` are taken from there.
    #[must_use]
    pub fn new(
        device: SharedDevice,
        block_bits: u32,
        blocks_count: u64,
        budget_bytes: u64,
        checkpoint: Arc<CheckpointMap>,
    ) -> Self {
        MetaCache {
            inner: Arc::new(Inner {
                device,
                block_bits,
                blocks_count: AtomicU64::new(blocks_count),
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                shard_blocks_max: AtomicUsize::new(shard_blocks(budget_bytes, block_bits)),
                blocks: AtomicUsize::new(0),
                checkpoint,
                nothing: Arc::new(AlignedBuf::zeroed(0)),
                credit: AtomicI64::new(CREDIT_MAX),
                poor: AtomicU64::new(0),
                stats: Stats::default(),
            }),
        }
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        1 << self.inner.block_bits
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.inner.device
    }

    /// The volume has become larger.
    pub(crate) fn set_blocks_count(&self, blocks: u64) {
        self.inner.blocks_count.store(blocks, Ordering::Relaxed);
    }

    /// The block's bytes where they may differ from the device's: as cached, or committed and not yet home.
    pub(crate) fn newer_than_device(&self, block: BlockNo) -> Option<BufferData> {
        let shard = self.inner.shard(block).lock();
        let cached = shard.buffers.get(&block).filter(|b| b.is_ready()).cloned();
        drop(shard);
        match cached {
            Some(buffer) => Some(buffer.data()),
            None => self.inner.checkpoint.find(block),
        }
    }

    pub(crate) fn checkpoint(&self) -> &Arc<CheckpointMap> {
        &self.inner.checkpoint
    }

    /// The block's buffer, read from the checkpoint map or the device when it is not cached.
    /// `verify` judges the bytes when they enter the cache, or were cached as another kind.
    ///
    /// # Errors
    /// `Io` when the device fails, `Corrupt` for a block outside of the volume, and what `verify` says.
    pub fn read(
        &self,
        block: BlockNo,
        kind: BlockKind,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<BufferRef> {
        let buffer = self.inner.obtain(block, Use::Counted)?;
        if buffer.claim() {
            self.inner.stats.misses.fetch_add(1, Ordering::Relaxed);
            match self.inner.fetch(block) {
                Ok(data) => buffer.finish_load(Some(data)),
                Err(error) => {
                    buffer.finish_load(None);
                    self.inner.discard_if_idle(block);
                    return Err(error);
                }
            }
        } else {
            self.inner.note_use(&buffer);
        }
        if buffer.verified.load(Ordering::Acquire) != kind.code() {
            verify(&buffer.data())?;
            buffer.verified.store(kind.code(), Ordering::Release);
        }
        Ok(buffer)
    }

    /// The block's buffer if it is cached.
    #[must_use]
    pub fn find(&self, block: BlockNo) -> Option<BufferRef> {
        let mut shard = self.inner.shard(block).lock();
        let buffer = shard.buffers.get(&block)?;
        if !buffer.is_ready() {
            return None;
        }
        buffer.touched.store(true, Ordering::Relaxed);
        let buffer = Arc::clone(buffer);
        shard.hits += 1;
        self.inner.note_use(&buffer);
        Some(buffer)
    }

    /// Starts reading runs of blocks, best effort: errors show when the block is read. The bytes
    /// are verified by the [`MetaCache::read`] that uses them. Little is read ahead while
    /// such blocks are dropped again before a read asks for them.
    pub fn read_ahead(&self, runs: &[(BlockNo, u32)]) {
        self.read_around(None, runs);
    }

    /// As [`MetaCache::read_ahead`], around a block that is wanted now. Whether reading ahead is worth it follows from
    /// the others.
    pub fn read_around(&self, wanted: Option<BlockNo>, runs: &[(BlockNo, u32)]) {
        if !self.inner.ahead_pays() {
            return;
        }
        for &(start, count) in runs {
            let end = start
                .0
                .saturating_add(u64::from(count))
                .min(self.inner.blocks_count.load(Ordering::Relaxed));
            let mut at = start.0;
            while at < end {
                at = self.read_ahead_run(wanted, at, end);
            }
        }
    }

    /// Reads ahead the first stretch of uncached blocks in `at..end`; returns where to go on.
    fn read_ahead_run(&self, wanted: Option<BlockNo>, at: u64, end: u64) -> u64 {
        const STRETCH_BYTES: u64 = 1 << 18;
        let bits = self.inner.block_bits;
        let limit = end.min(at.saturating_add((STRETCH_BYTES >> bits).max(1)));
        let mut claimed: Vec<BufferRef> = Vec::new();
        let mut next = at;
        while next < limit {
            let block = BlockNo(next);
            let claim = match self.inner.obtain(block, Use::Apart) {
                Ok(buffer) if buffer.try_claim() => {
                    // Asked once it is claimed: it cannot change from now on. The device's
                    // copy of a block in the map is out of date.
                    if self.inner.checkpoint.contains(block) {
                        buffer.finish_load(None);
                        None
                    } else {
                        Some(buffer)
                    }
                }
                _ => None,
            };
            match claim {
                Some(buffer) => claimed.push(buffer),
                None if claimed.is_empty() => {
                    next += 1;
                    continue;
                }
                None => break,
            }
            next += 1;
        }
        let Some(first) = claimed.first().map(|b| b.block) else {
            return next;
        };
        self.inner
            .stats
            .read_ahead
            .fetch_add(claimed.len() as u64, Ordering::Relaxed);
        let bytes = claimed.len() << bits;
        let block_bytes = self.block_bytes();
        // Of a read that fails nothing is used.
        let op = Op::Read(AlignedBuf::for_overwrite(bytes));
        self.inner
            .device
            .submit(Request::new(op, DevOffset(first.0 << bits), move |done| {
                let data = done.result.ok().and(done.read);
                for (index, buffer) in claimed.iter().enumerate() {
                    let from = index * block_bytes;
                    let part = data.as_ref().and_then(|d| d.get(from..from + block_bytes));
                    let ahead = wanted != Some(buffer.block);
                    buffer.ahead.store(ahead, Ordering::Relaxed);
                    buffer.finish_load(part.map(|p| Arc::new(AlignedBuf::copy_of(p))));
                }
            }));
        next
    }

    /// A buffer for a block whose old contents do not matter: zeroed, taken as `kind`.
    pub(crate) fn fresh(&self, block: BlockNo, kind: BlockKind) -> Result<BufferRef> {
        let buffer = self.inner.obtain(block, Use::Apart)?;
        // A read-ahead of the block's former life may be under way: let it complete first, or it
        // would overwrite what is put here.
        let _ = buffer.claim();
        buffer.finish_load(Some(Arc::new(AlignedBuf::zeroed(self.block_bytes()))));
        buffer.verified.store(kind.code(), Ordering::Release);
        Ok(buffer)
    }

    /// Drops a block that is no longer metadata.
    pub(crate) fn remove(&self, block: BlockNo) {
        let mut shard = self.inner.shard(block).lock();
        self.inner.drop_buffer(&mut shard, block);
    }

    /// About how many bytes of metadata are in memory: in the cache, or waiting to be written home. Of most blocks that wait the
    /// cache has the same bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let cached = self.inner.blocks.load(Ordering::Relaxed);
        (cached.max(self.inner.checkpoint.blocks()) as u64) << self.inner.block_bits
    }

    /// Adds the live counters to a snapshot.
    pub fn stats(&self, out: &mut blockwright_vfs::Stats) {
        let stats = &self.inner.stats;
        let (mut cached, mut hits) = (0, 0);
        for shard in &self.inner.shards {
            let shard = shard.lock();
            cached += shard.buffers.len();
            hits += shard.hits;
        }
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        out.section("metadata cache");
        blockwright_vfs::stat_lines! { out;
            counter "meta_cache_hits", Count, "metadata blocks found in memory" => hits;
            counter "meta_cache_misses", Count, "metadata blocks read when they were needed" => get(&stats.misses);
            counter "meta_cache_read_ahead", Count, "metadata blocks read before they were needed" => get(&stats.read_ahead);
            counter "meta_cache_evictions", Count, "metadata blocks dropped to stay within the budget" => get(&stats.evictions);
            gauge "meta_cache_blocks", Count, "metadata blocks in memory" => cached as u64;
            gauge "meta_cache_bytes", Bytes, "bytes of metadata blocks in memory" => (cached as u64) << self.inner.block_bits;
            gauge "meta_cache_budget_bytes", Bytes, "bytes of metadata blocks that there may be" => self.budget_bytes();
        }
    }

    /// About how many bytes the cache may have.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        let blocks = self.inner.shard_blocks_max.load(Ordering::Relaxed) * SHARDS;
        (blocks as u64) << self.inner.block_bits
    }

    /// Changes the budget; drops what is above it, as far as it is not in use.
    pub fn set_budget_bytes(&self, bytes: u64) {
        let max = shard_blocks(bytes, self.inner.block_bits);
        self.inner.shard_blocks_max.store(max, Ordering::Relaxed);
        for shard in &self.inner.shards {
            let mut shard = shard.lock();
            // Every buffer gets one second chance, as when blocks come one by one.
            let mut rounds = shard.queue.len() / 8 + 1;
            while shard.buffers.len() > max && rounds > 0 {
                self.inner.make_room(&mut shard);
                rounds -= 1;
            }
        }
    }
}

/// Blocks of a shard for a budget of the whole cache.
fn shard_blocks(budget_bytes: u64, block_bits: u32) -> usize {
    let blocks = usize::try_from(budget_bytes >> block_bits).unwrap_or(usize::MAX);
    (blocks / SHARDS).max(8)
}

impl Inner {
    fn shard(&self, block: BlockNo) -> &Mutex<Shard> {
        // Neighbours go to different shards; the multiplication spreads strided patterns too.
        let hash = block.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        &self.shards[hash as usize % SHARDS]
    }

    fn drop_buffer(&self, shard: &mut Shard, block: BlockNo) {
        if shard.buffers.remove(&block).is_some() {
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn obtain(&self, block: BlockNo, purpose: Use) -> Result<BufferRef> {
        let blocks_count = self.blocks_count.load(Ordering::Relaxed);
        if block.0 >= blocks_count {
            return Err(Error::corrupt(
                "metadata read",
                format!("outside of the volume of {blocks_count} blocks"),
            )
            .block(block.0));
        }
        let mut shard = self.shard(block).lock();
        if let Some(buffer) = shard.buffers.get(&block) {
            buffer.touched.store(true, Ordering::Relaxed);
            let buffer = Arc::clone(buffer);
            shard.hits += u64::from(purpose == Use::Counted && buffer.is_ready());
            return Ok(buffer);
        }
        self.make_room(&mut shard);
        let buffer = Buffer::empty(block, &self.nothing);
        shard.buffers.insert(block, Arc::clone(&buffer));
        self.blocks.fetch_add(1, Ordering::Relaxed);
        shard.queue.push_back(block);
        Ok(buffer)
    }

    /// Evicts until the shard is within its budget. Bounded work: a shard full of buffers in use
    /// grows past the budget rather than being searched over and over.
    fn make_room(&self, shard: &mut Shard) {
        let mut steps = 16;
        let max = self.shard_blocks_max.load(Ordering::Relaxed);
        while (shard.buffers.len() >= max || shard.queue.len() > 2 * shard.buffers.len() + 64)
            && steps > 0
        {
            steps -= 1;
            let Some(candidate) = shard.queue.pop_front() else {
                return;
            };
            let Some(buffer) = shard.buffers.get(&candidate) else {
                steps += 1; // a stale queue entry costs nothing
                continue;
            };
            if Arc::strong_count(buffer) > 1 || buffer.touched.swap(false, Ordering::Relaxed) {
                shard.queue.push_back(candidate);
                continue;
            }
            if buffer.ahead.load(Ordering::Relaxed) {
                self.earn(-1);
            }
            self.drop_buffer(shard, candidate);
            self.stats.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether reading ahead is worth it. Inodes of a directory that is larger than the cache are asked for in
    /// no order: 31 of 32 blocks read ahead would push out others, and be pushed out themselves before
    /// a read asks for them.
    fn ahead_pays(&self) -> bool {
        self.credit.load(Ordering::Relaxed) > 0
            || self
                .poor
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(POOR_ONE_IN)
    }

    /// A block was wanted that is there.
    fn note_use(&self, buffer: &Buffer) {
        if buffer.ahead.load(Ordering::Relaxed) && buffer.ahead.swap(false, Ordering::Relaxed) {
            self.earn(CREDIT_USED);
        }
    }

    fn earn(&self, blocks: i64) {
        // A lost addition does no harm.
        let credit = self.credit.load(Ordering::Relaxed) + blocks;
        self.credit
            .store(credit.clamp(0, CREDIT_MAX), Ordering::Relaxed);
    }

    /// Takes a block whose load failed out of the cache, unless another thread tries again already.
    fn discard_if_idle(&self, block: BlockNo) {
        let mut shard = self.shard(block).lock();
        if shard
            .buffers
            .get(&block)
            .is_some_and(|b| *b.load.lock() == Load::Empty)
        {
            self.drop_buffer(&mut shard, block);
        }
    }

    fn fetch(&self, block: BlockNo) -> Result<BufferData> {
        if let Some(data) = self.checkpoint.find(block) {
            return Ok(data);
        }
        let offset = DevOffset(block.0 << self.block_bits);
        self.device
            .read_buf(offset, 1 << self.block_bits)
            .map(Arc::new)
            .map_err(|e| Error::io("metadata read", e).block(block.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_device::MemoryDevice;

    /// What is read ahead in vain stops, around random blocks; what is used continues and begins again.
    #[test]
    fn reading_ahead_follows_from_what_it_gave() {
        const BLOCKS: u64 = 200_000;
        let device = Arc::new(MemoryDevice::new(BLOCKS << 12));
        let map = Arc::new(CheckpointMap::default());
        let cache = MetaCache::new(device, 12, BLOCKS, 4 << 20, map);
        let ahead = || cache.inner.stats.read_ahead.load(Ordering::Relaxed);
        let look = |block: u64| {
            cache.read_around(Some(BlockNo(block)), &[(BlockNo(block / 32 * 32), 32)]);
            cache
                .read(BlockNo(block), BlockKind::Directory, |_| Ok(()))
                .expect("read");
        };
        // Neighbours are asked for: every block is read ahead, each but the first of a run in time.
        for block in 0..8192 {
            look(block);
        }
        assert_eq!(ahead(), 8192);
        // In no order: hardly any is read ahead in the end.
        let mut at = 1u64;
        let mut random = |n: u64| {
            for _ in 0..n {
                at = at
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                look((at >> 33) % BLOCKS);
            }
        };
        random(2000);
        let before = ahead();
        random(6400);
        let more = ahead() - before;
        assert!((1..6400).contains(&more), "{more} blocks for 6400 reads");
        // In order again.
        for block in 0..16384 {
            look(block);
        }
        let before = ahead();
        for block in 16384..20480 {
            look(block);
        }
        assert_eq!(ahead() - before, 4096);
    }
}
