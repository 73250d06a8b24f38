//! The superblock as it is stored: layout, constants, and values that need no validation.

use std::mem::{offset_of, size_of};

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ext4::checksum;
use crate::ext4::error::FormatError;
use crate::ext4::features::{Compat, Features, Incompat, RoCompat};

/// Byte offset of the primary superblock on the device.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Size of the superblock structure in bytes.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xEF53;
/// Fixed inode size of revision 0.
pub const GOOD_OLD_INODE_SIZE: u16 = 128;
/// `s_checksum_type` of CRC-32C.
pub const CHECKSUM_TYPE_CRC32C: u8 = 1;

/// `s_creator_os` of Linux.
pub const OS_LINUX: u32 = 0;
/// `s_creator_os` of the Hurd, which lays part of its inodes out differently.
pub const OS_HURD: u32 = 1;

bitflags! {
    /// `s_state`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct State: u16 {
        /// Cleanly unmounted.
        const CLEAN = 0x0001;
        /// Errors were detected.
        const ERROR = 0x0002;
        /// Orphans are being recovered.
        const ORPHANS = 0x0004;
        /// A fast-commit replay is under way.
        const FC_REPLAY = 0x0020;
        const _ = !0;
    }

    /// `s_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct MiscFlags: u32 {
        /// Directory hashes treat characters as signed.
        const SIGNED_HASH = 0x0001;
        /// Directory hashes treat characters as unsigned.
        const UNSIGNED_HASH = 0x0002;
        /// Made for testing development code.
        const TEST_FILESYS = 0x0004;
        const _ = !0;
    }

    /// `s_default_mount_opts`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct DefaultMountOpts: u32 {
        /// Print debugging information.
        const DEBUG = 0x0001;
        /// New files take the group of their directory.
        const BSDGROUPS = 0x0002;
        /// User extended attributes.
        const XATTR_USER = 0x0004;
        /// POSIX access control lists.
        const ACL = 0x0008;
        /// 16-bit user ids.
        const UID16 = 0x0010;
        /// Journal mode, low bit (`data=journal` alone, `data=writeback` with the next).
        const JMODE_DATA = 0x0020;
        /// Journal mode, high bit (`data=ordered` alone).
        const JMODE_ORDERED = 0x0040;
        /// No flushes.
        const NOBARRIER = 0x0100;
        /// Check that block numbers never point at metadata.
        const BLOCK_VALIDITY = 0x0200;
        /// Discard freed blocks.
        const DISCARD = 0x0400;
        /// No delayed allocation.
        const NODELALLOC = 0x0800;
        const _ = !0;
    }
}

/// The reaction to damage (`s_errors`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorBehaviour {
    /// Go on.
    Continue,
    /// Turn read-only.
    RemountReadOnly,
    /// Stop the system.
    Panic,
}

impl ErrorBehaviour {
    /// From `s_errors`; an undefined value means the safe default.
    #[must_use]
    pub const fn from_raw(value: u16) -> Self {
        match value {
            1 => Self::Continue,
            3 => Self::Panic,
            _ => Self::RemountReadOnly,
        }
    }

    /// The `s_errors` value.
    #[must_use]
    pub const fn to_raw(self) -> u16 {
        match self {
            Self::Continue => 1,
            Self::RemountReadOnly => 2,
            Self::Panic => 3,
        }
    }
}

/// The superblock as it lies on disk. Fields keep their documented names, without `s_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawSuperblock {
    pub inodes_count: U32,
    pub blocks_count_lo: U32,
    pub r_blocks_count_lo: U32,
    pub free_blocks_count_lo: U32,
    pub free_inodes_count: U32,
    pub first_data_block: U32,
    pub log_block_size: U32,
    pub log_cluster_size: U32,
    pub blocks_per_group: U32,
    pub clusters_per_group: U32,
    pub inodes_per_group: U32,
    pub mtime: U32,
    pub wtime: U32,
    pub mnt_count: U16,
    pub max_mnt_count: U16,
    pub magic: U16,
    pub state: U16,
    pub errors: U16,
    pub minor_rev_level: U16,
    pub lastcheck: U32,
    pub checkinterval: U32,
    pub creator_os: U32,
    pub rev_level: U32,
    pub def_resuid: U16,
    pub def_resgid: U16,
    pub first_ino: U32,
    pub inode_size: U16,
    pub block_group_nr: U16,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithm_usage_bitmap: U32,
    pub prealloc_blocks: u8,
    pub prealloc_dir_blocks: u8,
    pub reserved_gdt_blocks: U16,
    pub journal_uuid: [u8; 16],
    pub journal_inum: U32,
    pub journal_dev: U32,
    pub last_orphan: U32,
    pub hash_seed: [U32; 4],
    pub def_hash_version: u8,
    pub jnl_backup_type: u8,
    pub desc_size: U16,
    pub default_mount_opts: U32,
    pub first_meta_bg: U32,
    pub mkfs_time: U32,
    pub jnl_blocks: [U32; 17],
    pub blocks_count_hi: U32,
    pub r_blocks_count_hi: U32,
    pub free_blocks_count_hi: U32,
    pub min_extra_isize: U16,
    pub want_extra_isize: U16,
    pub flags: U32,
    pub raid_stride: U16,
    pub mmp_interval: U16,
    pub mmp_block: U64,
    pub raid_stripe_width: U32,
    pub log_groups_per_flex: u8,
    pub checksum_type: u8,
    pub encryption_level: u8,
    pub reserved_pad: u8,
    pub kbytes_written: U64,
    pub snapshot_inum: U32,
    pub snapshot_id: U32,
    pub snapshot_r_blocks_count: U64,
    pub snapshot_list: U32,
    pub error_count: U32,
    pub first_error_time: U32,
    pub first_error_ino: U32,
    pub first_error_block: U64,
    pub first_error_func: [u8; 32],
    pub first_error_line: U32,
    pub last_error_time: U32,
    pub last_error_ino: U32,
    pub last_error_line: U32,
    pub last_error_block: U64,
    pub last_error_func: [u8; 32],
    pub mount_opts: [u8; 64],
    pub usr_quota_inum: U32,
    pub grp_quota_inum: U32,
    pub overhead_blocks: U32,
    pub backup_bgs: [U32; 2],
    pub encrypt_algos: [u8; 4],
    pub encrypt_pw_salt: [u8; 16],
    pub lpf_ino: U32,
    pub prj_quota_inum: U32,
    pub checksum_seed: U32,
    pub wtime_hi: u8,
    pub mtime_hi: u8,
    pub mkfs_time_hi: u8,
    pub lastcheck_hi: u8,
    pub first_error_time_hi: u8,
    pub last_error_time_hi: u8,
    pub first_error_errcode: u8,
    pub last_error_errcode: u8,
    pub encoding: U16,
    pub encoding_flags: U16,
    pub orphan_file_inum: U32,
    pub reserved: [U32; 94],
    pub checksum: U32,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == SUPERBLOCK_SIZE);
    assert!(offset_of!(RawSuperblock, magic) == 0x38);
    assert!(offset_of!(RawSuperblock, rev_level) == 0x4C);
    assert!(offset_of!(RawSuperblock, first_ino) == 0x54);
    assert!(offset_of!(RawSuperblock, feature_compat) == 0x5C);
    assert!(offset_of!(RawSuperblock, uuid) == 0x68);
    assert!(offset_of!(RawSuperblock, volume_name) == 0x78);
    assert!(offset_of!(RawSuperblock, reserved_gdt_blocks) == 0xCE);
    assert!(offset_of!(RawSuperblock, journal_inum) == 0xE0);
    assert!(offset_of!(RawSuperblock, hash_seed) == 0xEC);
    assert!(offset_of!(RawSuperblock, desc_size) == 0xFE);
    assert!(offset_of!(RawSuperblock, first_meta_bg) == 0x104);
    assert!(offset_of!(RawSuperblock, jnl_blocks) == 0x10C);
    assert!(offset_of!(RawSuperblock, blocks_count_hi) == 0x150);
    assert!(offset_of!(RawSuperblock, flags) == 0x160);
    assert!(offset_of!(RawSuperblock, mmp_block) == 0x168);
    assert!(offset_of!(RawSuperblock, log_groups_per_flex) == 0x174);
    assert!(offset_of!(RawSuperblock, kbytes_written) == 0x178);
    assert!(offset_of!(RawSuperblock, error_count) == 0x194);
    assert!(offset_of!(RawSuperblock, last_error_func) == 0x1E0);
    assert!(offset_of!(RawSuperblock, mount_opts) == 0x200);
    assert!(offset_of!(RawSuperblock, usr_quota_inum) == 0x240);
    assert!(offset_of!(RawSuperblock, backup_bgs) == 0x24C);
    assert!(offset_of!(RawSuperblock, lpf_ino) == 0x268);
    assert!(offset_of!(RawSuperblock, checksum_seed) == 0x270);
    assert!(offset_of!(RawSuperblock, encoding) == 0x27C);
    assert!(offset_of!(RawSuperblock, orphan_file_inum) == 0x280);
    assert!(offset_of!(RawSuperblock, checksum) == 0x3FC);
};

/// A point in time kept as 32 low bits and 8 high bits of unsigned seconds.
fn time40(lo: U32, hi: u8) -> u64 {
    u64::from(lo.get()) | u64::from(hi) << 32
}

impl RawSuperblock {
    /// All-zero superblock, the starting point for making a volume.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Copy of the 1024 bytes at the start of `bytes`.
    ///
    /// # Errors
    /// [`FormatError::Truncated`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        Self::read_from_prefix(bytes)
            .map(|(raw, _)| raw)
            .map_err(|_| FormatError::Truncated {
                structure: "superblock",
                needed: SUPERBLOCK_SIZE,
                found: bytes.len(),
            })
    }

    /// The structure as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SUPERBLOCK_SIZE] {
        zerocopy::transmute!(*self)
    }

    /// The feature words.
    #[must_use]
    pub fn features(&self) -> Features {
        Features {
            compat: Compat::from_bits_retain(self.feature_compat.get()),
            incompat: Incompat::from_bits_retain(self.feature_incompat.get()),
            ro_compat: RoCompat::from_bits_retain(self.feature_ro_compat.get()),
        }
    }

    /// Stores the feature words.
    pub fn set_features(&mut self, features: Features) {
        self.feature_compat.set(features.compat.bits());
        self.feature_incompat.set(features.incompat.bits());
        self.feature_ro_compat.set(features.ro_compat.bits());
    }

    fn wide(&self, lo: U32, hi: U32) -> u64 {
        // Without 64bit the high words were never initialised by old tools.
        if self.features().has_incompat(Incompat::BIT64) {
            u64::from(lo.get()) | u64::from(hi.get()) << 32
        } else {
            u64::from(lo.get())
        }
    }

    /// Total blocks.
    #[must_use]
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.blocks_count_lo, self.blocks_count_hi)
    }

    /// Blocks reserved for the super user.
    #[must_use]
    pub fn reserved_blocks_count(&self) -> u64 {
        self.wide(self.r_blocks_count_lo, self.r_blocks_count_hi)
    }

    /// Free blocks (counted in blocks also with bigalloc); a hint.
    #[must_use]
    pub fn free_blocks_count(&self) -> u64 {
        self.wide(self.free_blocks_count_lo, self.free_blocks_count_hi)
    }

    /// Stores the total number of blocks.
    pub fn set_blocks_count(&mut self, n: u64) {
        self.blocks_count_lo.set(n as u32);
        self.blocks_count_hi.set((n >> 32) as u32);
    }

    /// Stores the number of blocks reserved for the super user.
    pub fn set_reserved_blocks_count(&mut self, n: u64) {
        self.r_blocks_count_lo.set(n as u32);
        self.r_blocks_count_hi.set((n >> 32) as u32);
    }

    /// Stores the number of free blocks.
    pub fn set_free_blocks_count(&mut self, n: u64) {
        self.free_blocks_count_lo.set(n as u32);
        self.free_blocks_count_hi.set((n >> 32) as u32);
    }

    /// Last mount, seconds since 1970.
    #[must_use]
    pub fn mount_time(&self) -> u64 {
        time40(self.mtime, self.mtime_hi)
    }

    /// Stores the time of the last mount.
    pub fn set_mount_time(&mut self, secs: u64) {
        self.mtime.set(secs as u32);
        self.mtime_hi = (secs >> 32) as u8;
    }

    /// Last write, seconds since 1970.
    #[must_use]
    pub fn write_time(&self) -> u64 {
        time40(self.wtime, self.wtime_hi)
    }

    /// Stores the time of the last write.
    pub fn set_write_time(&mut self, secs: u64) {
        self.wtime.set(secs as u32);
        self.wtime_hi = (secs >> 32) as u8;
    }

    /// Creation, seconds since 1970.
    #[must_use]
    pub fn mkfs_time(&self) -> u64 {
        time40(self.mkfs_time, self.mkfs_time_hi)
    }

    /// Stores the time of creation.
    pub fn set_mkfs_time(&mut self, secs: u64) {
        self.mkfs_time.set(secs as u32);
        self.mkfs_time_hi = (secs >> 32) as u8;
    }

    /// Last full check, seconds since 1970.
    #[must_use]
    pub fn check_time(&self) -> u64 {
        time40(self.lastcheck, self.lastcheck_hi)
    }

    /// Stores the time of the last full check.
    pub fn set_check_time(&mut self, secs: u64) {
        self.lastcheck.set(secs as u32);
        self.lastcheck_hi = (secs >> 32) as u8;
    }

    /// Forgets the errors that were recorded: their number, the first and the last one.
    pub fn clear_errors(&mut self) {
        self.error_count.set(0);
        self.first_error_time.set(0);
        self.first_error_time_hi = 0;
        self.first_error_ino.set(0);
        self.first_error_block.set(0);
        self.first_error_func = [0; 32];
        self.first_error_line.set(0);
        self.first_error_errcode = 0;
        self.last_error_time.set(0);
        self.last_error_time_hi = 0;
        self.last_error_ino.set(0);
        self.last_error_line.set(0);
        self.last_error_block.set(0);
        self.last_error_func = [0; 32];
        self.last_error_errcode = 0;
    }

    /// `s_state`.
    #[must_use]
    pub fn state(&self) -> State {
        State::from_bits_retain(self.state.get())
    }

    /// `s_flags`.
    #[must_use]
    pub fn misc_flags(&self) -> MiscFlags {
        MiscFlags::from_bits_retain(self.flags.get())
    }

    /// The label, without its zero padding. Not necessarily UTF-8.
    #[must_use]
    pub fn label(&self) -> &[u8] {
        until_nul(&self.volume_name)
    }

    /// Where the volume was last mounted, without its zero padding.
    #[must_use]
    pub fn last_mounted_on(&self) -> &[u8] {
        until_nul(&self.last_mounted)
    }

    /// Seed of the directory hashes, as the four words the hash starts from.
    #[must_use]
    pub fn hash_seed(&self) -> [u32; 4] {
        self.hash_seed.map(|w| w.get())
    }

    /// Stores the checksum when the volume has metadata checksums; otherwise does nothing.
    pub fn set_checksum(&mut self) {
        if self.features().metadata_csum() {
            let sum = checksum::superblock(&self.to_bytes());
            self.checksum.set(sum);
        }
    }

    /// Compares the checksum when the volume has metadata checksums.
    ///
    /// # Errors
    /// [`FormatError::SuperChecksum`] or [`FormatError::SuperChecksumType`].
    pub fn verify_checksum(&self) -> Result<(), FormatError> {
        if !self.features().metadata_csum() {
            return Ok(());
        }
        if self.checksum_type != CHECKSUM_TYPE_CRC32C {
            return Err(FormatError::SuperChecksumType {
                found: self.checksum_type,
            });
        }
        let expected = checksum::superblock(&self.to_bytes());
        let found = self.checksum.get();
        if crate::sums_differ(found, expected) {
            return Err(FormatError::SuperChecksum { found, expected });
        }
        Ok(())
    }
}

/// The bytes before the first NUL.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or(bytes)
}
