//! Mount options of the engine.
//!
//! Names are those of the kernel's f2fs, where it has the option. What all formats have is in the vfs's `MountOptions`.

use blockwright_ondisk::f2fs::Log;
use std::time::Duration;

/// I/O priority of the daemon that writes merged checkpoints: class best-effort, this level.
pub(crate) const PRIORITY: u8 = 3;

/// Where new blocks come from (the kernel's `mode=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Data is overwritten in place; logs fill holes when free segments run short.
    #[default]
    Adaptive,
    /// Everything is written to free segments, overwrites too; cleaning makes them.
    Lfs,
}

/// Cleaning while the volume is idle (the kernel's `background_gc=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BackgroundCleaning {
    /// Blocks are moved while the volume is idle. The freed blocks can be used after the next checkpoint.
    #[default]
    On,
    /// Only when space runs short.
    Off,
    /// As `On`, with a checkpoint after every section: what it frees can be used at once.
    Sync,
}

/// Whether checkpoints are written (the kernel's `checkpoint=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checkpointing {
    /// They are.
    #[default]
    Enabled,
    /// One is written at mount; after that nothing changes on the device that it refers to, until they are enabled again. Whatever ends the
    /// mount before, the volume is as it was when it was mounted.
    Disabled {
        /// How many free blocks may be hidden by that at mount, at most.
        unusable_max: Unusable,
    },
}

/// Blocks that may be given up for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// So many.
    Blocks(u64),
    /// So many hundredths of what users may have.
    Percent(u8),
}

/// What fsync does; the names are the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FsyncMode {
    /// A file's nodes are written where the next mount finds them, when that suffices.
    #[default]
    Posix,
    /// As `Posix`, except that for a new file in a directory that lost names a checkpoint is written, so that these are
    /// gone, too.
    Strict,
    /// As `Posix`, without device flushes: safe only on devices whose caches survive a power loss.
    NoBarrier,
}

/// How many of the six logs are written to (the kernel's `active_logs=`). Those that are not stay where the last checkpoint has them;
/// what a mount with more logs left in their segments is found, cleaned and refilled as before.
///
/// Source: kernel documentation, "Flash-Friendly File System (F2FS)", mount option active_logs; C. Lee et al., "F2FS: A New File System for
/// Flash Storage", FAST '15, section 2.3, for what each of the six is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ActiveLogs {
    /// One for all data and one for all nodes. There is no log of its own for what fsync writes, so every fsync writes a checkpoint.
    Two,
    /// Data of directories, and of files; direct nodes of files, and all other nodes.
    Four,
    /// By temperature, three each.
    #[default]
    Six,
}

impl ActiveLogs {
    /// Where goes what would go to `log` of six.
    #[must_use]
    pub fn of(self, log: Log) -> Log {
        match (self, log) {
            (ActiveLogs::Six, log) => log,
            (ActiveLogs::Four, Log::HotData) => Log::HotData,
            (ActiveLogs::Four, Log::WarmData | Log::ColdData) => Log::ColdData,
            (ActiveLogs::Four, Log::WarmNode) => Log::WarmNode,
            (ActiveLogs::Four, Log::HotNode | Log::ColdNode) => Log::ColdNode,
            (ActiveLogs::Two, log) if log.is_node() => Log::HotNode,
            (ActiveLogs::Two, _) => Log::HotData,
        }
    }

    /// The number, as the mount option has it.
    #[must_use]
    pub fn count(self) -> u64 {
        match self {
            ActiveLogs::Two => 2,
            ActiveLogs::Four => 4,
            ActiveLogs::Six => 6,
        }
    }

    /// From the number; `None` for one that f2fs does not have.
    #[must_use]
    pub fn from_count(count: u64) -> Option<Self> {
        [Self::Two, Self::Four, Self::Six]
            .into_iter()
            .find(|logs| logs.count() == count)
    }
}

blockwright_device::with_defaults! {
/// How to mount. Fields are public: start from `Options::default()` and set what differs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse all changes; write nothing to the device.
    pub read_only: bool = false,
    /// Budget of the cache of nodes and directory blocks in bytes.
    pub metadata_cache_bytes: u64 = 128 << 20,
    /// Tell the device about segments that became free.
    pub discard: bool = true,
    /// What fsync does.
    pub fsync_mode: FsyncMode = FsyncMode::Posix,
    /// With `read_only`: show the last checkpoint, without what was fsynced after it.
    pub no_recovery: bool = false,
    /// Age at which changes are made durable with a checkpoint.
    pub commit_interval: Duration = Duration::from_secs(5),
    /// Where new blocks come from.
    pub mode: Mode = Mode::default(),
    /// How many of the six logs are written to.
    pub active_logs: ActiveLogs = ActiveLogs::default(),
    /// Cleaning while the volume is idle.
    pub background_cleaning: BackgroundCleaning = BackgroundCleaning::default(),
    /// How often the background looks whether the volume is idle. It is when nothing changed since the last look.
    pub cleaning_interval: Duration = Duration::from_secs(30),
    /// Whether checkpoints are written.
    pub checkpoint: Checkpointing = Checkpointing::default(),
    /// Whether a daemon writes one checkpoint for all concurrent requests; otherwise each caller writes its own. When
    /// nothing is said, it does unless checkpoints are disabled; to ask for both is refused.
    pub checkpoint_merge: Option<bool> = None,
    /// I/O priority of that daemon: class best-effort, this level, 0 (first) to 7.
    pub ckpt_thread_ioprio: u8 = PRIORITY,
    /// How simultaneous writes share a data log.
    #[cfg(feature = "comparison")]
    pub dio_alloc: crate::comparison::DirectAllocation = crate::comparison::DirectAllocation::default(),
    /// The smallest direct write that is serialized, in pages of 4 KiB, where a log's blocks are handed out one at a time. The engine reserves
    /// runs in one step, so it serializes no write.
    pub serialized_dio_pages: u64 = 64,
}
}
