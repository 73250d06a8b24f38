//! An ext4 inode in memory: what the format needs beyond [`blockwright_vfs::Attr`].
//!
//! The vfs's `Attr` is the truth for what `stat` shows; [`MapState`] for the block mapping and the
//! size on disk (which lags behind the size in memory until data is written); [`Body`] for the rest
//! of the bytes on disk: the extended attribute area, and fields that this engine does not know.
//!
//! # Parts in this folder, from the bottom
//! - `table`: [`InodeTable`], blocks of the inode tables.
//! - `orphan`: [`Orphans`], inodes to finish after a crash.
//! - `stored`: [`StoredInodes`], reading and writing inodes.
//! - `store`, `create`: [`Inodes`], stored and new inodes with their quota.
//! - `evict`: [`Eviction`], the end of an inode. It stands above `map`, `data` and `attr`.
//!
//! # Locks
//! vfs inode lock → journal handle → `map` → `body` → group → buffer. `tid`s are atomics.
//!
//! # References
//! kernel documentation, "ext4 Data Structures: Index Nodes".

mod create;
mod evict;
pub(crate) mod orphan;
mod store;
mod stored;
mod table;

pub(crate) use evict::Eviction;
pub(crate) use orphan::Orphans;
pub(crate) use store::Inodes;
pub(crate) use stored::StoredInodes;
pub(crate) use table::InodeTable;

use disk::{BlockNo, FileBlock, FileKind, Ino, InodeFlags, InodeSeed};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;

use crate::journal::AtomicTid;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4 as disk;
use blockwright_vfs as vfs;
use blockwright_vfs::block_set::BlockSet;
use blockwright_vfs::types as vt;
use std::sync::atomic::{AtomicBool, AtomicU64};

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

/// The goal for an inode's next blocks, and its preallocations.
pub use crate::alloc::preallocation::InodeAlloc as PlacementState;

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
    pub delayed: BlockSet<1>,
    /// Metadata blocks that are promised for the delayed ones (with extents).
    pub meta_promised: u64,
    /// The same of a block-mapped file: pointer blocks that its delayed blocks need at worst.
    pub pointers_promised: u64,
    /// Runs taken but not committed, by first logical block.
    pub pending: BTreeMap<FileBlock, PendingRun>,
    /// Blocks in `pending` that were not delayed: a direct write's.
    pub pending_direct: u64,
    /// Where the extent tree surely has nothing.
    pub holes: crate::map::extents::Holes,
    /// Changes whenever mappings change other than by filling holes.
    pub generation: u64,
    /// Placement hints.
    pub placement: PlacementState,
}

/// The contents of the inode's bytes besides attributes and mapping, guarded by
/// [`Ext4Inode::body`].
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
    /// The inode is on the orphan list: its deletion time is a link.
    pub(crate) on_orphan_list: AtomicBool,
    /// Space in use as last stored, in units of 512 bytes: what its owner has been charged for.
    charged_sectors: AtomicU64,
    /// Access, modification and change time as last stored, to tell lazily changed ones.
    stored_times: Mutex<[vt::Timestamp; 3]>,
    /// Of a directory: the name that was last looked for.
    pub(crate) last_sought: crate::dir::sought::LastSought,
}

/// The engine's part of an inode.
#[must_use]
pub fn ext4(inode: &vfs::Inode) -> &Ext4Inode {
    inode.private::<Ext4Inode>()
}

/// The kind as the vfs has it.
#[must_use]
pub fn vfs_kind(kind: FileKind) -> vt::FileKind {
    match kind {
        FileKind::Regular => vt::FileKind::Regular,
        FileKind::Directory => vt::FileKind::Directory,
        FileKind::CharDevice => vt::FileKind::CharDevice,
        FileKind::BlockDevice => vt::FileKind::BlockDevice,
        FileKind::Fifo => vt::FileKind::Fifo,
        FileKind::Socket => vt::FileKind::Socket,
        FileKind::Symlink => vt::FileKind::Symlink,
    }
}

/// The kind as the format has it.
#[must_use]
pub fn disk_kind(kind: vt::FileKind) -> FileKind {
    match kind {
        vt::FileKind::Regular => FileKind::Regular,
        vt::FileKind::Directory => FileKind::Directory,
        vt::FileKind::CharDevice => FileKind::CharDevice,
        vt::FileKind::BlockDevice => FileKind::BlockDevice,
        vt::FileKind::Fifo => FileKind::Fifo,
        vt::FileKind::Socket => FileKind::Socket,
        vt::FileKind::Symlink => FileKind::Symlink,
    }
}

fn vfs_time(t: disk::Timestamp) -> vt::Timestamp {
    vt::Timestamp {
        secs: t.secs,
        nanos: t.nanos,
    }
}

fn disk_time(t: vt::Timestamp) -> disk::Timestamp {
    disk::Timestamp {
        secs: t.secs,
        nanos: t.nanos,
    }
}

/// `makedev` in the user-space coding of 64 bits.
fn make_dev(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    ((major & 0xFFFF_F000) << 32)
        | ((major & 0xFFF) << 8)
        | ((minor & 0xFFFF_FF00) << 12)
        | (minor & 0xFF)
}

/// Major and minor number of a `dev_t`.
fn split_dev(dev: u64) -> (u32, u32) {
    (
        (((dev >> 8) & 0xFFF) | ((dev >> 32) & 0xFFFF_F000)) as u32,
        ((dev & 0xFF) | ((dev >> 12) & 0xFFFF_FF00)) as u32,
    )
}

/// Flags a user cannot change: they say how contents are stored.
pub(crate) const FIXED_USER_FLAGS: u32 =
    vt::InodeFlags::ENCRYPT.bits() | vt::InodeFlags::VERITY.bits();

/// The purpose of loading an inode. It decides which inodes may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For users: no special inodes, none without a name.
    User,
    /// To finish the deletion of an orphan.
    Orphan,
    /// One of the format's own: journal, quota, orphan file.
    Special,
    /// One that holds an attribute's value.
    EaInode,
}

/// An empty extent root.
#[must_use]
pub fn empty_extent_root() -> [u8; 60] {
    let mut root = [0; 60];
    root[..2].copy_from_slice(&0xF30Au16.to_le_bytes());
    root[4..6].copy_from_slice(&4u16.to_le_bytes());
    root
}

impl Ext4Inode {
    /// A copy of `i_flags`.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        self.map.read().flags
    }

    /// Whether the contents are kept in the inode.
    pub(crate) fn is_inline(&self) -> bool {
        self.flags().contains(InodeFlags::INLINE_DATA)
    }
}

/// Fails for contents that cannot be read here.
pub(crate) fn readable(op: &'static str, inode: &vfs::Inode, flags: InodeFlags) -> Result<()> {
    if flags.contains(InodeFlags::ENCRYPT) {
        return Err(Error::new(ErrorKind::KeyRequired, op)
            .ino(inode.ino())
            .detail("the file is encrypted"));
    }
    Ok(())
}

/// Fails for contents that may not be changed, whatever the volume allows.
pub(crate) fn changeable(op: &'static str, inode: &vfs::Inode, flags: InodeFlags) -> Result<()> {
    readable(op, inode, flags)?;
    if flags.contains(InodeFlags::VERITY) {
        return Err(Error::new(ErrorKind::NotPermitted, op)
            .ino(inode.ino())
            .detail("the file is protected by fs-verity"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, 0xF_FFFF)] {
            assert_eq!(split_dev(make_dev(major, minor)), (major, minor));
        }
        assert_eq!(make_dev(8, 1), 0x801);
    }
}
