//! Mount options of the engine.

use std::time::Duration;

/// How to mount. Fields are public: start from `Options::default()` and set what differs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse all changes; write nothing to the device.
    pub read_only: bool,
    /// Budget of the cache of nodes and directory blocks in bytes.
    pub metadata_cache_bytes: u64,
    /// Tell the device about segments that became free.
    pub discard: bool,
    /// Age at which changes are made durable with a checkpoint.
    pub commit_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            metadata_cache_bytes: 64 << 20,
            discard: true,
            commit_interval: Duration::from_secs(5),
        }
    }
}
