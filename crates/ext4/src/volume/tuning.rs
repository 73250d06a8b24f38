//! The engine's settings that can be changed while a volume is mounted, and their initial values.
//!
//! Names are those of `/sys/fs/ext4/DEVICE` where the kernel has the same thing. Values are read with relaxed
//! loads where they are used: a change is in force for what begins after it.
//!
//! The journal's and the metadata cache's values live there; this module only names them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Files up to this many blocks go to the locality areas.
const SMALL_FILE_BLOCKS: u64 = 16;
/// Blocks a locality area takes at once.
const LOCALITY_BLOCKS: u64 = 512;
/// Groups of the right order that are tried when their longest run may still be too short.
const MAX_TO_SCAN: u64 = 32;
/// Bytes of an inode table that are read at once.
const INODE_READAHEAD_BYTES: u64 = 128 << 10;

/// Values that the allocator and the inode code look up.
#[derive(Debug)]
pub(crate) struct Tuning {
    pub(crate) inode_readahead_blks: AtomicU64,
    pub(crate) mb_group_prealloc: AtomicU64,
    pub(crate) mb_max_to_scan: AtomicU64,
    pub(crate) mb_stream_req: AtomicU64,
}

impl Tuning {
    pub(crate) fn new(block_bits: u32) -> Self {
        Tuning {
            inode_readahead_blks: AtomicU64::new((INODE_READAHEAD_BYTES >> block_bits).max(1)),
            mb_group_prealloc: AtomicU64::new(LOCALITY_BLOCKS),
            mb_max_to_scan: AtomicU64::new(MAX_TO_SCAN),
            mb_stream_req: AtomicU64::new(SMALL_FILE_BLOCKS),
        }
    }

    /// Blocks of an inode table that are read at once; 0 reads none ahead.
    pub(crate) fn inode_readahead_blks(&self) -> u64 {
        self.inode_readahead_blks.load(Ordering::Relaxed)
    }

    /// Blocks a locality area takes at once.
    pub(crate) fn mb_group_prealloc(&self) -> u32 {
        self.mb_group_prealloc.load(Ordering::Relaxed) as u32
    }

    /// Groups that are tried for a run that may be too short.
    pub(crate) fn mb_max_to_scan(&self) -> usize {
        self.mb_max_to_scan.load(Ordering::Relaxed) as usize
    }

    /// Files up to this many blocks go to the locality areas.
    pub(crate) fn mb_stream_req(&self) -> u64 {
        self.mb_stream_req.load(Ordering::Relaxed)
    }
}
