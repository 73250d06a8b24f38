//! An ext4 inode in memory: what the format needs beyond [`blockwright_vfs::Attr`].
//!
//! The vfs's `Attr` is the truth for what `stat` shows; [`MapState`] for the block mapping and the
//! size on disk (which lags behind the size in memory until data is written); [`Body`] for the rest
//! of the bytes on disk: the extended attribute area, and fields nobody here knows.
//!
//! # Locks
//! vfs inode lock → journal handle → `map` → `body` → group → buffer. `tid`s are atomics.
//!
//! # References
//! kernel documentation, "ext4 Data Structures: Index Nodes".

use blockwright_ondisk::ext4::{BlockNo, FileBlock, Ino, InodeFlags, InodeSeed};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::range_set::RangeSet;

/// A transaction id that may be "none yet".
#[derive(Debug, Default)]
pub struct AtomicTid(AtomicU64);

impl AtomicTid {
    /// The id last stored, as the journal numbers transactions.
    #[must_use]
    pub fn get(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Acquire).checked_sub(1)?).ok()
    }

    /// Stores an id.
    pub fn set(&self, tid: u32) {
        self.0.store(u64::from(tid) + 1, Ordering::Release);
    }
}

/// Blocks that `allocate` took from the allocator and `commit_write` has not made visible yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRun {
    /// First physical block.
    pub block: BlockNo,
    /// Length in blocks.
    pub len: u32,
    /// The logical blocks were in `MapState::delayed` when they were taken.
    pub was_delayed: bool,
    /// Writes under way into it: concurrent ones share it.
    pub writers: u32,
}

/// What guides the placement of an inode's next blocks, and what is preallocated for them.
pub use crate::preallocation::InodeAlloc as PlacementState;

/// The mapping of an inode's blocks, guarded by [`Ext4Inode::map`].
#[derive(Clone, Debug)]
pub struct MapState {
    /// `i_block`: extent root, block pointers, inline data, fast symlink, or device number.
    pub root: [u8; 60],
    /// All of `i_flags`; those that users see are in the vfs's `Attr` too.
    pub flags: InodeFlags,
    /// The size on disk: at most the size in memory.
    pub disk_size: u64,
    /// Space in use on disk, in units of 512 bytes, the attribute block included.
    pub blocks: u64,
    /// Logical blocks with a reservation and no block.
    pub delayed: RangeSet,
    /// Runs taken but not committed, by first logical block.
    pub pending: BTreeMap<FileBlock, PendingRun>,
    /// Changes whenever mappings change other than by filling holes.
    pub generation: u64,
    /// Placement hints.
    pub placement: PlacementState,
}

/// What the inode's bytes hold besides attributes and mapping, guarded by [`Ext4Inode::body`].
#[derive(Clone, Debug)]
pub struct Body {
    /// All `inode_size` bytes as last read or stored. The extended attribute area in them is the
    /// truth; the fields before it are refreshed from attributes and mapping at each store.
    pub raw: Vec<u8>,
    /// `i_extra_isize`.
    pub extra_isize: u16,
    /// `i_file_acl`: the external attribute block, 0 for none.
    pub file_acl: BlockNo,
    /// `i_version`.
    pub version: u64,
    /// `i_dtime`: deletion time, or the next inode of the orphan list.
    pub dtime: u32,
}

/// The engine's part of a [`blockwright_vfs::Inode`].
pub struct Ext4Inode {
    /// Its number.
    pub ino: Ino,
    /// Start of its metadata checksums.
    pub seed: InodeSeed,
    /// Block of the inode table it lives in, and the byte offset there.
    pub location: (BlockNo, usize),
    /// The mapping (the kernel's `i_data_sem`).
    pub map: RwLock<MapState>,
    /// The rest of its bytes.
    pub body: Mutex<Body>,
    /// Transaction that last changed anything of the inode.
    pub sync_tid: AtomicTid,
    /// Transaction that last changed what `fdatasync` must make durable.
    pub datasync_tid: AtomicTid,
}
