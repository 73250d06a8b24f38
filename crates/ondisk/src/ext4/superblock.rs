//! The superblock: 1024 bytes at byte 1024 of the device (backups at the start of some groups).
//!
//! [`RawSuperblock`] is the layout; [`Superblock`] is a raw superblock whose every value that
//! decides where something lies has been checked, together with the [`Geometry`] derived from it.
//! Free counts, times and error records are not validated: they are hints, and the engine
//! recomputes the counts from the group descriptors.
//!
//! Not responsible for: deciding which features are supported (see [`Features`]), reading.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Super Block".

pub(super) mod raw;

use super::error::FormatError;
use super::features::{Compat, Features, Incompat, RoCompat};
use super::geometry::Geometry;
use super::hash::{HashAlgorithm, HashVersion};
use super::types::{BlockNo, Ino};

pub use raw::*;

/// Where the journal is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalLocation {
    /// In an inode of this volume.
    Internal(Ino),
    /// On another device, which carries this UUID.
    External {
        /// UUID of the journal device.
        uuid: [u8; 16],
        /// Device number hint.
        dev: u32,
    },
}

/// A superblock whose geometry has been validated.
///
/// `raw` may be edited (counts, times, states); the geometry does not follow it.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// The structure as read.
    pub raw: RawSuperblock,
    /// Everything derived from it.
    pub geo: Geometry,
}

impl Superblock {
    /// Validates the superblock at the start of `bytes`, checksum included.
    ///
    /// `device_bytes` is the size of the device when known; the volume must fit in it.
    ///
    /// # Errors
    /// The first check that fails, as its own variant.
    pub fn parse(bytes: &[u8], device_bytes: Option<u64>) -> Result<Self, FormatError> {
        let raw = RawSuperblock::read(bytes)?;
        let found = raw.magic.get();
        if found != MAGIC {
            return Err(FormatError::SuperMagic { found });
        }
        raw.verify_checksum()?;
        Self::from_raw(raw, device_bytes)
    }

    /// Validates everything but the checksum: for checkers, and for making new volumes.
    ///
    /// # Errors
    /// The first check that fails, as its own variant.
    pub fn from_raw(raw: RawSuperblock, device_bytes: Option<u64>) -> Result<Self, FormatError> {
        let geo = Geometry::from_superblock(&raw, device_bytes)?;
        check_special_inodes(&raw, &geo)?;
        Ok(Self { raw, geo })
    }

    /// The volume's features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.geo.features
    }

    /// Where the journal is; `None` without one.
    #[must_use]
    pub fn journal(&self) -> Option<JournalLocation> {
        if !self.geo.features.has_compat(Compat::HAS_JOURNAL) {
            return None;
        }
        Some(match Ino(self.raw.journal_inum.get()).non_zero() {
            Some(ino) => JournalLocation::Internal(ino),
            None => JournalLocation::External {
                uuid: self.raw.journal_uuid,
                dev: self.raw.journal_dev.get(),
            },
        })
    }

    /// The multiple-mount-protection block, when the feature is on and the block plausible.
    ///
    /// # Errors
    /// [`FormatError::SuperMmpBlock`] when it lies outside of the volume.
    pub fn mmp_block(&self) -> Result<Option<BlockNo>, FormatError> {
        if !self.geo.features.has_incompat(Incompat::MMP) {
            return Ok(None);
        }
        let block = self.raw.mmp_block.get();
        if block < 2 || block <= self.geo.first_data_block.0 || block >= self.geo.blocks_count {
            return Err(FormatError::SuperMmpBlock { block });
        }
        Ok(Some(BlockNo(block)))
    }

    /// Hash used for new directory indexes.
    ///
    /// # Errors
    /// [`FormatError::HashVersionUnknown`].
    pub fn default_hash(&self) -> Result<HashVersion, FormatError> {
        self.hash_version(self.raw.def_hash_version)
    }

    /// The hash an index stored with `version` uses on this volume: the superblock, not the
    /// index, says whether characters are signed.
    ///
    /// # Errors
    /// [`FormatError::HashVersionUnknown`].
    pub fn hash_version(&self, version: u8) -> Result<HashVersion, FormatError> {
        let mut v = HashVersion::from_raw(version)?;
        if self.raw.misc_flags().contains(MiscFlags::UNSIGNED_HASH)
            && v.algorithm != HashAlgorithm::SipHash
        {
            v.unsigned_chars = true;
        }
        Ok(v)
    }
}

fn check_special_inodes(raw: &RawSuperblock, geo: &Geometry) -> Result<(), FormatError> {
    let legal = |ino: u32, reserved: Ino| {
        ino == reserved.0 || (ino >= geo.first_ino.0 && ino <= geo.inodes_count)
    };
    let f = &geo.features;
    if f.has_compat(Compat::HAS_JOURNAL) {
        let inum = raw.journal_inum.get();
        if inum != 0 && !legal(inum, Ino::JOURNAL) {
            return Err(FormatError::SuperJournalInode { ino: inum });
        }
        if inum == 0 && raw.journal_dev.get() == 0 && raw.journal_uuid == [0; 16] {
            return Err(FormatError::SuperJournalMissing);
        }
    }
    if f.has_compat(Compat::ORPHAN_FILE) {
        let inum = raw.orphan_file_inum.get();
        if inum < geo.first_ino.0 || inum > geo.inodes_count {
            return Err(FormatError::SuperOrphanFileInode { ino: inum });
        }
    }
    if f.has_ro_compat(RoCompat::QUOTA) {
        for (inum, reserved) in [
            (raw.usr_quota_inum.get(), Ino::USR_QUOTA),
            (raw.grp_quota_inum.get(), Ino::GRP_QUOTA),
            (raw.prj_quota_inum.get(), Ino(0)),
        ] {
            if inum != 0 && !legal(inum, reserved) {
                return Err(FormatError::SuperQuotaInode { ino: inum });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
pub(crate) mod tests;
