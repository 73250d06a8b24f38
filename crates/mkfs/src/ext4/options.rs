//! Options of a new volume. Every default is what mke2fs 1.47 does for the same arguments.

use crate::options::Before;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_ondisk::ext4::{Compat, Features, Incompat, RoCompat};

/// Which set of default features a volume starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FsType {
    /// No journal, block-mapped files.
    Ext2,
    /// A journal, block-mapped files.
    Ext3,
    /// A journal, extents, flexible groups, checksums.
    #[default]
    Ext4,
}

impl FsType {
    /// The features volumes of this type have unless asked otherwise.
    #[must_use]
    pub fn default_features(self) -> Features {
        let base = "sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr";
        let more = match self {
            FsType::Ext2 => "",
            FsType::Ext3 => "has_journal",
            FsType::Ext4 => {
                "has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize"
            }
        };
        let all = format!("{base},{more}");
        // The names are this crate's own; a test sees to it that all are known.
        Features::default().parse(&all).unwrap_or_default()
    }
}

/// How a volume names its journal on another device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalName {
    /// The journal's UUID.
    pub uuid: [u8; 16],
    /// The device's number as the kernel has it; 0 for a file.
    pub number: u32,
}

blockwright_device::with_defaults! {
/// Options of a new volume.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The set of default features.
    pub kind: FsType = FsType::Ext4,
    /// Changes to the default features, as mke2fs's `-O`: `^metadata_csum,quota`.
    pub features: String = String::new(),
    /// Bytes per block (1024 ..= 65536); by size when not given: 1024 below 512 MiB, else 4096.
    pub block_bytes: Option<u32> = None,
    /// Bytes per cluster with bigalloc; 16 blocks when not given.
    pub cluster_bytes: Option<u32> = None,
    /// Bytes per inode: 128 ..= 1024 and no more than a block.
    pub inode_bytes: u16 = 256,
    /// One inode for this many bytes; by size when not given.
    pub inode_ratio: Option<u64> = None,
    /// The number of inodes, rather than a ratio.
    pub inodes: Option<u64> = None,
    /// Blocks kept for root, in percent of all (0 ..= 50).
    pub reserved_percent: f64 = 5.0,
    /// Label, at most 16 bytes.
    pub label: Vec<u8> = Vec::new(),
    /// UUID; random when not given.
    pub uuid: Option<[u8; 16]> = None,
    /// Seed of the directory hashes; derived from the UUID when not given.
    pub hash_seed: Option<[u8; 16]> = None,
    /// Size of the volume in bytes; the whole device when not given.
    pub bytes: Option<u64> = None,
    /// Blocks of the journal, without its fast-commit area; by size when not given.
    pub journal_blocks: Option<u32> = None,
    /// The journal is on another device, and the volume has the feature `has_journal`. That the journal lists the volume is the caller's part.
    pub journal_device: Option<JournalName> = None,
    /// Blocks per group; 8 per byte of a block when not given.
    pub blocks_per_group: Option<u32> = None,
    /// Groups per flexible group, a power of two.
    pub groups_per_flex: u32 = 16,
    /// Up to which number of blocks the volume can be grown online; 1024 times its size when not given.
    pub resize_blocks: Option<u64> = None,
    /// Owner and group of the root directory of an empty volume.
    pub root_owner: (u32, u32) = (0, 0),
    /// The reaction of drivers to errors.
    pub errors: ErrorBehaviour = ErrorBehaviour::Continue,
    /// When the volume is made, in seconds since 1970.
    pub now: u64 = crate::options::seconds_now(),
    /// Seconds between updates of the multiple-mount-protection block, 1 ..= 300.
    pub mmp_interval: u16 = 5,
    /// What the device holds before.
    pub before: Before = Before::Unknown,
}
}

/// Known features that no volume is made with: they describe a volume's state, or are history.
const UNMADE_COMPAT: Compat = Compat::DIR_PREALLOC.union(Compat::IMAGIC_INODES);
const UNMADE_INCOMPAT: Incompat = Incompat::NEEDS_RECOVERY;
const UNMADE_RO_COMPAT: RoCompat = RoCompat::BTREE_DIR
    .union(RoCompat::READ_ONLY)
    .union(RoCompat::SHARED_BLOCKS)
    .union(RoCompat::ORPHAN_PRESENT);

impl FormatOptions {
    /// The features the volume will have, after the rules about which go together.
    ///
    /// # Errors
    /// Unknown names, features no volume can be made with, and contradictions.
    pub fn effective_features(&self) -> Result<Features> {
        let given = self.kind.default_features().parse(&self.features);
        let mut f = given.map_err(|e| MkfsError::features(e.to_string()))?;
        let bad = Features {
            compat: f.compat - Compat::KNOWN.difference(UNMADE_COMPAT),
            incompat: f.incompat - Incompat::KNOWN.difference(UNMADE_INCOMPAT),
            ro_compat: f.ro_compat - RoCompat::KNOWN.difference(UNMADE_RO_COMPAT),
        }
        .names();
        if !bad.is_empty() {
            return Err(MkfsError::features(format!(
                "no volume can be made with {}",
                bad.join(", ")
            )));
        }
        if self.journal_device.is_some() {
            f.compat |= Compat::HAS_JOURNAL;
        }
        if f.metadata_csum() {
            // Checksums of everything include those of the descriptors; both bits together are
            // an error to every reader.
            f.ro_compat -= RoCompat::UNINIT_BG;
        }
        if f.has_incompat(Incompat::METADATA_CSUM_SEED) && !f.metadata_csum() {
            return Err(MkfsError::features(
                "metadata_csum_seed needs metadata_csum",
            ));
        }
        if f.has_incompat(Incompat::META_BG) && f.has_compat(Compat::RESIZE_INODE) {
            return Err(MkfsError::features(
                "meta_bg and resize_inode exclude each other (use ^resize_inode)",
            ));
        }
        if f.has_ro_compat(RoCompat::BIGALLOC) && !f.has_incompat(Incompat::EXTENT) {
            return Err(MkfsError::features("bigalloc needs extent"));
        }
        if !f.has_compat(Compat::HAS_JOURNAL) {
            f.compat -= Compat::FAST_COMMIT | Compat::ORPHAN_FILE;
        }
        if f.has_ro_compat(RoCompat::PROJECT) && self.inode_bytes < 256 {
            return Err(MkfsError::features(
                "project needs inodes of 256 bytes or more",
            ));
        }
        if f.has_incompat(Incompat::INLINE_DATA) && self.inode_bytes < 256 {
            return Err(MkfsError::features(
                "inline_data needs inodes of 256 bytes or more",
            ));
        }
        if f.has_compat(Compat::RESIZE_INODE)
            && !f.has_ro_compat(RoCompat::SPARSE_SUPER)
            && !f.has_compat(Compat::SPARSE_SUPER2)
        {
            return Err(MkfsError::features("resize_inode needs sparse_super"));
        }
        Ok(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_sets_are_known() {
        assert_eq!(FsType::Ext2.default_features().names().len(), 6);
        assert_eq!(FsType::Ext3.default_features().names().len(), 7);
        assert_eq!(FsType::Ext4.default_features().names().len(), 14);
    }

    #[test]
    fn contradictions_are_refused() {
        let with = |features: &str| {
            FormatOptions {
                features: features.into(),
                ..Default::default()
            }
            .effective_features()
        };
        assert!(with("meta_bg").is_err());
        assert!(with("meta_bg,^resize_inode").is_ok());
        assert!(with("bigalloc,^extent").is_err());
        assert!(with("journal_dev").is_err());
        assert!(with("shared_blocks").is_err());
        assert!(with("nonsense").is_err());
        let f = with("uninit_bg").expect("uninit_bg gives way");
        assert!(!f.has_ro_compat(RoCompat::UNINIT_BG));
        let f = with("^has_journal,orphan_file").expect("fine");
        assert!(!f.has_compat(Compat::ORPHAN_FILE));
    }
}
