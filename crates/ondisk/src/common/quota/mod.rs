//! Quota files, which ext4 and f2fs share: the VFS quota format version 2, revision 1.
//!
//! A file is 1024-byte blocks: block 0 holds header and info, block 1 is the root of a radix tree
//! of four levels (one byte of the id each, most significant first) whose leaves name data blocks
//! of 72-byte entries.
//!
//! [`tree`] finds and changes entries, [`layout`] makes a whole file.
//!
//! Not responsible for: accounting, I/O.

pub mod layout;
pub mod tree;

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `dqh_magic` of user quota.
pub const USER_MAGIC: u32 = 0xD9C0_1F11;
/// `dqh_magic` of group quota.
pub const GROUP_MAGIC: u32 = 0xD9C0_1927;
/// `dqh_magic` of project quota.
pub const PROJECT_MAGIC: u32 = 0xD9C0_3F14;
/// `dqh_version` of 64-bit entries (revision 1).
pub const VERSION: u32 = 1;
/// Bytes per block of the file.
pub const BLOCK_SIZE: usize = 1024;
/// Block that holds the root of the tree.
pub const TREE_ROOT: u32 = 1;
/// Levels of the tree.
pub const TREE_DEPTH: usize = 4;
/// References per tree block (32-bit block numbers, 0 for none).
pub const REFS_PER_BLOCK: usize = BLOCK_SIZE / 4;
/// Default grace period in seconds.
pub const DEFAULT_GRACE: u32 = 7 * 24 * 3600;

/// What an id may have: space in bytes; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may be exceeded for a grace period.
    pub space_soft: u64,
    /// Bytes that are never exceeded.
    pub space_hard: u64,
    /// Inodes that may be exceeded for a grace period.
    pub inodes_soft: u64,
    /// Inodes that are never exceeded.
    pub inodes_hard: u64,
}

impl Limits {
    /// As quota files have them, in KiB, rounded up.
    #[must_use]
    pub fn stored(&self) -> tree::StoredLimits {
        tree::StoredLimits {
            kib_soft: self.space_soft.div_ceil(1024),
            kib_hard: self.space_hard.div_ceil(1024),
            inodes_soft: self.inodes_soft,
            inodes_hard: self.inodes_hard,
        }
    }
}

impl RawQuotaEntry {
    /// What the id may have.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let bytes = |kib: &U64| kib.get().saturating_mul(1024);
        Limits {
            space_soft: bytes(&self.bsoftlimit),
            space_hard: bytes(&self.bhardlimit),
            inodes_soft: self.isoftlimit.get(),
            inodes_hard: self.ihardlimit.get(),
        }
    }

    /// When the grace periods for space and for inodes end, in seconds since the epoch; `None` where the soft limit is kept.
    #[must_use]
    pub fn grace_ends(&self) -> (Option<u64>, Option<u64>) {
        let limits = self.limits();
        let over = |soft: u64, used: u64| soft > 0 && used > soft;
        let space = over(limits.space_soft, self.curspace.get()).then(|| self.btime.get());
        let inodes = over(limits.inodes_soft, self.curinodes.get()).then(|| self.itime.get());
        (space, inodes)
    }
}

/// Begin of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format
pub struct RawQuotaHeader {
    pub magic: U32,
    pub version: U32,
}

/// Behind the header. Grace periods are seconds; block numbers are in units of [`BLOCK_SIZE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format
pub struct RawQuotaInfo {
    pub bgrace: U32,
    pub igrace: U32,
    pub flags: U32,
    pub blocks: U32,
    /// Head of the list of free blocks, 0 for none.
    pub free_blk: U32,
    /// Head of the list of data blocks with free entries, 0 for none.
    pub free_entry: U32,
}

/// Head of a data block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format
pub struct RawQuotaBlockHeader {
    pub next_free: U32,
    pub prev_free: U32,
    pub entries: U16,
    pub pad1: U16,
    pub pad2: U32,
}

/// Entry of a data block. Limits of 0 mean none; block limits are in KiB, use is in bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format
pub struct RawQuotaEntry {
    pub id: U32,
    pub pad: U32,
    pub ihardlimit: U64,
    pub isoftlimit: U64,
    pub curinodes: U64,
    pub bhardlimit: U64,
    pub bsoftlimit: U64,
    pub curspace: U64,
    pub btime: U64,
    pub itime: U64,
}

/// Entries of a data block.
pub const ENTRIES_PER_BLOCK: usize =
    (BLOCK_SIZE - size_of::<RawQuotaBlockHeader>()) / size_of::<RawQuotaEntry>();

const _: () = {
    assert!(size_of::<RawQuotaHeader>() == 8);
    assert!(size_of::<RawQuotaInfo>() == 24);
    assert!(size_of::<RawQuotaBlockHeader>() == 16);
    assert!(size_of::<RawQuotaEntry>() == 72);
    assert!(offset_of!(RawQuotaEntry, curspace) == 48);
    assert!(ENTRIES_PER_BLOCK == 14);
};
