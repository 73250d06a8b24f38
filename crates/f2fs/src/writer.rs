//! What a volume that is mounted for writing has beside one that is read: segments, the gate between
//! operations and checkpoints, orphans, and the first failure.
//!
//! # The gate
//! Every operation runs with the gate shared, a checkpoint with it exclusive. So a checkpoint stores whole
//! operations only. Operations leave all they changed in the caches of nodes and directory blocks.
//!
//! # Never stuck
//! A checkpoint needs a new block for every dirty node and directory block. Operations make room for that
//! before they begin (`Fs::begin`): they checkpoint first when dirty blocks come close to what can be handed
//! out.
//!
//! # Locks
//! `gate`, rank `EngineGate`.

use crate::direct::Sharing;
use crate::early::Early;
use crate::fs::Fs;
use crate::fsync::Chain;
use crate::gc::Cleaner;
use crate::merge::Merger;
use crate::options::{ActiveLogs, Mode, Options};
use crate::segments::{Need, Segments};
use crate::{Error, ErrorKind, Result};
use blockwright_device::sim::turns;
use blockwright_device::{Monitor, SharedDevice};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::node::Footer;
use blockwright_ondisk::f2fs::summary::{Lifetime, Summary};
use blockwright_ondisk::f2fs::{BlockAddr, Checkpoint, Ino, Log, Nid};
use blockwright_vfs::locks::{Condvar, Mutex, Rank, ReadGuard, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// With so much dirty metadata a checkpoint is written, however large the cache is: it must not take long.
const DIRTY_BYTES_MAX: u64 = 64 << 20;

/// The checkpoint that counts.
pub(crate) struct Current {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) which: Copy2,
}

/// How much was written to the volume in its life: before this mount, and what the device was given since, where it counts that.
pub(crate) struct WrittenInLife {
    before: Lifetime,
    device: SharedDevice,
    /// Bytes that the device had been given by the mount.
    given_before: u64,
}

impl WrittenInLife {
    pub(crate) fn new(before: Lifetime, device: &SharedDevice) -> Self {
        let device = Arc::clone(device);
        WrittenInLife {
            before,
            given_before: device.monitor().map_or(0, Monitor::written_bytes),
            device,
        }
    }

    pub(crate) fn now(&self) -> Lifetime {
        let given = self.device.monitor().map_or(0, Monitor::written_bytes);
        let since = given.saturating_sub(self.given_before) >> 10;
        Lifetime {
            kib: self.before.kib.saturating_add(since),
        }
    }
}

/// See the module's head.
pub struct Writer {
    /// Segments and logs.
    pub segments: Segments,
    /// How many logs are written to.
    pub(crate) logs: ActiveLogs,
    pub(crate) cleaner: Cleaner,
    /// How data writes share the logs.
    pub(crate) sharing: Sharing,
    pub(crate) gate: RwLock<()>,
    pub(crate) current: Mutex<Current>,
    pub(crate) orphans: Mutex<BTreeSet<Ino>>,
    /// Merges requests for checkpoints.
    pub(crate) merger: Merger,
    /// The ager shall end.
    pub(crate) stop: Mutex<bool>,
    pub(crate) stopped: Condvar,
    /// What fsync wrote since the last checkpoint.
    pub(crate) chain: Chain,
    /// Something changed that no checkpoint has.
    pub(crate) dirty: AtomicBool,
    /// What is written ahead of checkpoints.
    pub(crate) early: Early,
    failure: Mutex<Option<Error>>,
    poisoned: AtomicBool,
    generation: AtomicU64,
    mounted: Instant,
    pub(crate) lifetime: WrittenInLife,
    /// Checkpoints written.
    pub(crate) checkpoints: AtomicU64,
}

impl Writer {
    pub(crate) fn new(
        segments: Segments,
        current: Current,
        orphans: BTreeSet<Ino>,
        lifetime: WrittenInLife,
        options: &Options,
    ) -> Self {
        let seed = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos() as u64);
        let chain_start = segments.chain_start(&current.checkpoint);
        Writer {
            segments,
            logs: options.active_logs,
            cleaner: Cleaner::default(),
            sharing: Sharing::new(options),
            gate: RwLock::new(Rank::EngineGate, ()),
            current: Mutex::new(Rank::Leaf, current),
            orphans: Mutex::new(Rank::Leaf, orphans),
            merger: Merger::new(),
            stop: Mutex::new(Rank::Leaf, false),
            stopped: Condvar::new(),
            chain: Chain::new(chain_start),
            dirty: AtomicBool::new(false),
            early: Early::default(),
            failure: Mutex::new(Rank::Leaf, None),
            poisoned: AtomicBool::new(false),
            generation: AtomicU64::new(seed),
            mounted: Instant::now(),
            lifetime,
            checkpoints: AtomicU64::new(0),
        }
    }

    /// Finds a node that a checkpoint makes durable its next place in a log, and makes its footer say so: the version of that
    /// checkpoint, no mark of an fsync.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn place_node(
        &self,
        log: Log,
        nid: Nid,
        footer: &mut Footer,
        version: u64,
    ) -> Result<BlockAddr> {
        let (to, _) = self
            .segments
            .take_for(Need::Checkpoint, log, 1, |_| Summary {
                nid,
                version: 0,
                offset: 0,
            })?;
        footer.version = version;
        footer.fsync = false;
        footer.dentry = false;
        footer.next = self.segments.next_of(log);
        Ok(to)
    }

    /// A generation for a new inode: differs from that of the number's former owner.
    pub(crate) fn new_generation(&self) -> u32 {
        self.generation.fetch_add(0x9E37_79B9, Ordering::Relaxed) as u32
    }

    /// Seconds the volume has been mounted in its life.
    pub(crate) fn age(&self) -> u64 {
        let before = self.current.lock().checkpoint.raw.elapsed_time.get();
        let since = match turns::milliseconds() {
            Some(ms) => ms / 1000,
            None => self.mounted.elapsed().as_secs(),
        };
        before.saturating_add(since)
    }

    /// The first failed write of metadata: nothing is changed from here on.
    pub(crate) fn poison(&self, cause: &Error) {
        self.failure.lock().get_or_insert_with(|| cause.clone());
        self.poisoned.store(true, Ordering::Release);
        self.stopped.notify_all();
    }

    /// Why changes are refused, when they are.
    pub(crate) fn failure(&self) -> Option<Error> {
        if !self.poisoned.load(Ordering::Acquire) {
            return None;
        }
        self.failure.lock().clone()
    }
}

/// An operation under way. While it lives no checkpoint is written.
pub(crate) struct Op<'a> {
    pub(crate) w: &'a Writer,
    _gate: ReadGuard<'a, ()>,
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        self.w.dirty.store(true, Ordering::Release);
    }
}

impl Fs {
    /// What writing needs.
    ///
    /// # Errors
    /// `ReadOnly` with the reason; `Poisoned` after a failed write of metadata.
    pub(crate) fn writer(&self, op: &'static str) -> Result<&Writer> {
        let Some(w) = &self.writer else {
            return Err(self.read_only(op));
        };
        match w.failure() {
            Some(cause) => Err(Error::new(ErrorKind::Poisoned, op).source(cause)),
            None => Ok(w),
        }
    }

    /// Begins an operation that changes something.
    ///
    /// # Errors
    /// As [`Fs::writer`], and those of a checkpoint.
    pub(crate) fn begin(&self, op: &'static str) -> Result<Op<'_>> {
        let operation = self.begin_quietly(op)?;
        operation
            .w
            .cleaner
            .operations
            .fetch_add(1, Ordering::Relaxed);
        Ok(operation)
    }

    /// As [`Fs::begin`], for what an idle volume does to itself.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn begin_quietly(&self, op: &'static str) -> Result<Op<'_>> {
        let w = self.writer(op)?;
        if self.is_crowded(w) {
            self.checkpoint()?;
            self.writer(op)?;
        }
        if w.segments.is_pinned() {
            w.segments
                .set_spill_need(2 * self.dirty_blocks() + self.slack(w));
        }
        Ok(Op {
            w,
            _gate: w.gate.read(),
        })
    }

    /// As [`Fs::begin`], if that needs no waiting and no checkpoint before.
    pub(crate) fn try_begin(&self, op: &'static str) -> Option<Op<'_>> {
        let w = self.writer(op).ok()?;
        if w.segments.is_pinned() || self.is_crowded(w) {
            return None;
        }
        let gate = w.gate.try_read()?;
        w.cleaner.operations.fetch_add(1, Ordering::Relaxed);
        Some(Op { w, _gate: gate })
    }

    /// Blocks the next checkpoint needs.
    pub(crate) fn dirty_blocks(&self) -> u64 {
        (self.nodes.dirty_count() + self.blocks.dirty_count()) as u64
    }

    /// Blocks the next checkpoint needs, or, after a crash, recovery and its checkpoint.
    pub(crate) fn needed_blocks(&self) -> u64 {
        let chain = self.writer.as_ref().map_or(0, |w| w.chain.blocks());
        self.dirty_blocks() + chain
    }

    /// Blocks that operations leave alone, so that a checkpoint always finds enough.
    fn slack(&self, w: &Writer) -> u64 {
        let slack = (self.geo.main_blocks() / 16).clamp(64, 4096);
        match w.segments.mode() {
            Mode::Adaptive => slack,
            // Free sections only count there, of which there are few.
            Mode::Lfs => slack.min(w.segments.reserve() as u64 * w.segments.section_blocks() / 4),
        }
    }

    /// Whether dirty metadata comes close to what can be handed out, or to the cache's budget.
    fn is_crowded(&self, w: &Writer) -> bool {
        let dirty = self.dirty_blocks();
        let slack = self.slack(w);
        let needed = self.needed_blocks();
        needed > 0
            && (dirty << 12 > self.options.metadata_cache_bytes.min(DIRTY_BYTES_MAX)
                || w.segments.available() < 2 * needed + slack)
    }

    /// Whether so many more blocks could be written, and a checkpoint and recovery would find enough still.
    pub(crate) fn is_roomy(&self, w: &Writer, more: u64) -> bool {
        w.segments.available() >= 2 * (self.needed_blocks() + more) + self.slack(w)
    }
}
