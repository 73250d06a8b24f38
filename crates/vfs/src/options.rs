//! How a volume is mounted.
//!
//! Plain values, the same for all formats; the engines have options of their own. `tuning` changes some of them while the volume is mounted.

use crate::inode::permissions::AtimeMode;
use std::time::Duration;

blockwright_device::with_defaults! {
/// How a volume is mounted, as far as the vfs is concerned.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse all changes.
    pub read_only: bool = false,
    /// Budget in bytes of what is cached: pages, the engine's metadata, inodes. A quarter is the pages' in any case, and
    /// engines are given at most half of it (see `blockwright::VolumeOptions`).
    pub cache_bytes: u64 = 256 << 20,
    /// Dirty bytes from which the flusher works without waiting for age. `u64::MAX`: it never does, nor does it evict inodes; this is left to
    /// writers, so that what a test does can be repeated.
    pub dirty_bytes_background: u64 = 32 << 20,
    /// Dirty bytes from which writers are made to clean pages themselves.
    pub dirty_bytes_max: u64 = 96 << 20,
    /// How often the engine is asked to make its changes durable.
    pub commit_interval: Duration = Duration::from_secs(5),
    /// Age from which the flusher writes dirty pages.
    pub writeback_interval: Duration = Duration::from_secs(5),
    /// Age from which the flusher writes times that changed in memory only.
    pub lazy_time_interval: Duration = Duration::from_secs(30),
    /// When reads change access times.
    pub atime: AtimeMode = AtimeMode::Relative,
    /// The largest readahead window in bytes; 0 turns readahead off.
    pub readahead_bytes: u64 = 1 << 20,
    /// Submitted reads of at least this many bytes go past the cache where the front end caches what it reads; 0: none does. Smaller
    /// ones are read ahead of.
    pub read_past_bytes: u64 = 256 << 10,
    /// From this offset of a file on, writeback of a front end with its own cache goes past our cache: in whole blocks, and pieces of
    /// 128 KiB or more (or of this number of bytes, if that is less); 0: nothing does.
    pub write_past_bytes: u64 = 4 << 20,
    /// Allocate blocks when pages are written back rather than when they are written to.
    pub delayed_allocation: bool = true,
    /// How many unused inodes are kept, if the budget lets that many.
    pub inodes_idle_max: usize = 1 << 24,
    /// Variants of the data path, to be measured beside it. They are chosen when the volume is mounted.
    #[cfg(any(test, feature = "comparison"))]
    pub comparison: crate::comparison::Comparison = crate::comparison::Comparison::default(),
}
}
