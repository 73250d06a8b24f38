//! [`Writer`]: the additional state of a volume that is mounted for writing: segments, the gate, the current checkpoint, orphans,
//! marks for fsync, and the first failure. [`Access`] says whether a volume has one.
//!
//! It owns this state and calls `alloc` only. Operations and checkpoints, which take the gate: `gate`, `checkpoint`.
//!
//! # Locks
//! `gate`, rank `EngineGate`; the others are leaves.

pub(crate) mod chain;
pub(crate) mod relocation;
pub(crate) mod trace;

use crate::alloc::sharing::Sharing;
use crate::alloc::{Need, Segments};
use crate::options::{ActiveLogs, Options};
use crate::volume::Volume;
use crate::writer::chain::Chain;
use crate::writer::relocation::Relocation;
use crate::{Error, ErrorKind, Result};
use blockwright_device::sim::turns::Moment;
use blockwright_device::{Monitor, SharedDevice};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::node::Footer;
use blockwright_ondisk::f2fs::summary::{Lifetime, Summary};
use blockwright_ondisk::f2fs::{BlockAddr, Checkpoint, Ino, Log, Nid};
use blockwright_vfs::locks::{Condvar, Mutex, Rank, RwLock};
use blockwright_vfs::types::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    pub(crate) relocation: Relocation,
    /// How data writes share the logs.
    pub(crate) sharing: Sharing,
    pub(crate) gate: RwLock<()>,
    pub(crate) current: Mutex<Current>,
    pub(crate) orphans: Mutex<BTreeSet<Ino>>,
    /// The ager must end.
    pub(crate) stop: Mutex<bool>,
    pub(crate) stopped: Condvar,
    /// What fsync wrote since the last checkpoint.
    pub(crate) chain: Chain,
    /// Something changed that no checkpoint has.
    pub(crate) dirty: AtomicBool,
    failure: Mutex<Option<Error>>,
    poisoned: AtomicBool,
    generation: AtomicU64,
    mounted: Moment,
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
        // The checkpoint's version differs from that of the last mount even if the clock was set back.
        let now = Timestamp::now();
        let version = current.checkpoint.raw.checkpoint_ver.get();
        let seed = ((now.secs as u64) << 30 | u64::from(now.nanos)).wrapping_add(version << 16);
        let chain_start = segments.chain_start(&current.checkpoint);
        Writer {
            segments,
            logs: options.active_logs,
            relocation: Relocation::default(),
            sharing: Sharing::new(options),
            gate: RwLock::new(Rank::EngineGate, ()),
            current: Mutex::new(Rank::Leaf, current),
            orphans: Mutex::new(Rank::Leaf, orphans),
            stop: Mutex::new(Rank::Leaf, false),
            stopped: Condvar::new(),
            chain: Chain::new(chain_start),
            dirty: AtomicBool::new(false),
            failure: Mutex::new(Rank::Leaf, None),
            poisoned: AtomicBool::new(false),
            generation: AtomicU64::new(seed),
            mounted: Moment::now(),
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
        before.saturating_add(self.mounted.elapsed().as_secs())
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

/// Whether a volume is written, and with what.
pub struct Access {
    pub(crate) volume: Arc<Volume>,
    /// Nothing when the volume is mounted read-only.
    pub writer: Option<Writer>,
}

impl Access {
    pub(crate) fn new(volume: &Arc<Volume>, writer: Option<Writer>) -> Self {
        Access {
            volume: Arc::clone(volume),
            writer,
        }
    }
}

impl Access {
    /// Why changes are refused although the mount asked for no such thing.
    pub(crate) fn read_only_reason(&self) -> Option<String> {
        match &self.writer {
            Some(w) => w.failure().map(|e| e.to_string()),
            None if self.volume.options.read_only => None,
            None => self.volume.reason.clone(),
        }
    }

    /// What writing needs.
    ///
    /// # Errors
    /// `ReadOnly` with the reason; `Poisoned` after a failed write of metadata.
    pub(crate) fn writer(&self, op: &'static str) -> Result<&Writer> {
        let Some(w) = &self.writer else {
            return Err(self.volume.read_only(op));
        };
        match w.failure() {
            Some(cause) => Err(Error::new(ErrorKind::Poisoned, op).source(cause)),
            None => Ok(w),
        }
    }

    /// Whether fsync and sync do nothing.
    pub(crate) fn checkpoints_are_disabled(&self) -> bool {
        let pinned = |w: &Writer| w.segments.is_pinned();
        self.writer.as_ref().is_some_and(pinned)
    }
}
