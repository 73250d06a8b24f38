//! Features: one word of the superblock, with the names mkfs.f2fs's `-O` uses.
//!
//! Which bits are *supported* is the engine's decision; this module only names them, including
//! unknown ones ("FEATURE_20": bit 20). f2fs has one word: a reader must refuse unknown bits.

use std::fmt;

use bitflags::bitflags;

use super::error::FormatError;
use crate::common::features::{Change, changes};

bitflags! {
    /// Features of a volume.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Features: u32 {
        /// Encrypted inodes may exist.
        const ENCRYPT = 0x0001;
        /// On a zoned device: written sequentially per zone.
        const ZONED = 0x0002;
        /// Atomic writes (never used on disk).
        const ATOMIC_WRITE = 0x0004;
        /// Inodes have the extra fields before their addresses.
        const EXTRA_ATTR = 0x0008;
        /// Inodes have project ids.
        const PROJECT_QUOTA = 0x0010;
        /// Inodes have checksums.
        const INODE_CHECKSUM = 0x0020;
        /// Each inode says how much room it keeps for attributes.
        const FLEXIBLE_INLINE_XATTR = 0x0040;
        /// Quota files are hidden inodes.
        const QUOTA = 0x0080;
        /// Inodes have creation times.
        const INODE_CRTIME = 0x0100;
        /// There is a `lost+found`.
        const LOST_FOUND = 0x0200;
        /// Verity files may exist.
        const VERITY = 0x0400;
        /// The superblock has a checksum.
        const SB_CHECKSUM = 0x0800;
        /// Directories may be case-insensitive.
        const CASEFOLD = 0x1000;
        /// Files may be compressed.
        const COMPRESSION = 0x2000;
        /// The volume is never written.
        const READ_ONLY = 0x4000;
        /// Files may stand for whole devices.
        const DEVICE_ALIAS = 0x8000;
        const _ = !0;
    }
}

/// Names by bit; the first name of a bit is the one printed.
const NAMES: &[(&str, Features)] = &[
    ("encrypt", Features::ENCRYPT),
    ("blkzoned", Features::ZONED),
    ("atomic_write", Features::ATOMIC_WRITE),
    ("extra_attr", Features::EXTRA_ATTR),
    ("project_quota", Features::PROJECT_QUOTA),
    ("inode_checksum", Features::INODE_CHECKSUM),
    ("flexible_inline_xattr", Features::FLEXIBLE_INLINE_XATTR),
    ("quota", Features::QUOTA),
    ("quota_ino", Features::QUOTA),
    ("inode_crtime", Features::INODE_CRTIME),
    ("lost_found", Features::LOST_FOUND),
    ("verity", Features::VERITY),
    ("sb_checksum", Features::SB_CHECKSUM),
    ("casefold", Features::CASEFOLD),
    ("compression", Features::COMPRESSION),
    ("ro", Features::READ_ONLY),
    ("device_alias", Features::DEVICE_ALIAS),
];

impl Features {
    /// All features whose structures this crate knows. An engine subtracts those that it does not support.
    pub const KNOWN: Self = Self::ENCRYPT
        .union(Self::ZONED)
        .union(Self::ATOMIC_WRITE)
        .union(Self::EXTRA_ATTR)
        .union(Self::PROJECT_QUOTA)
        .union(Self::INODE_CHECKSUM)
        .union(Self::FLEXIBLE_INLINE_XATTR)
        .union(Self::QUOTA)
        .union(Self::INODE_CRTIME)
        .union(Self::LOST_FOUND)
        .union(Self::VERITY)
        .union(Self::SB_CHECKSUM)
        .union(Self::CASEFOLD)
        .union(Self::COMPRESSION)
        .union(Self::READ_ONLY);

    /// Names of all set features, in bit order.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        (0..32u32)
            .filter(|bit| self.bits() & (1 << bit) != 0)
            .map(|bit| {
                let one = Self::from_bits_retain(1 << bit);
                match NAMES.iter().find(|(_, f)| *f == one) {
                    Some((name, _)) => (*name).to_owned(),
                    None => format!("FEATURE_{bit}"),
                }
            })
            .collect()
    }

    /// Names of the features that are set and not in `supported`.
    #[must_use]
    pub fn unsupported(self, supported: Self) -> Vec<String> {
        (self - supported).names()
    }

    /// Applies a list to `self`: names separated by commas or blanks, `^name` clears, `name` sets,
    /// `none` clears everything before it.
    ///
    /// # Errors
    /// [`FormatError::UnknownFeatureName`] for a name that is none of mkfs.f2fs's.
    pub fn parse(mut self, list: &str) -> Result<Self, FormatError> {
        for change in changes(list, &['^'], &[]) {
            let (clear, name) = match change {
                Change::ClearAll => {
                    self = Self::empty();
                    continue;
                }
                Change::Clear(name) => (true, name),
                Change::Set(name) => (false, name),
            };
            let one = Self::by_name(name).ok_or_else(|| FormatError::UnknownFeatureName {
                name: name.to_owned(),
            })?;
            self.set(one, !clear);
        }
        Ok(self)
    }

    /// The single feature called `name` (case-insensitively; also `FEATURE_20` and the like).
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        if let Some((_, f)) = NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
            return Some(*f);
        }
        let bit: u32 = name.strip_prefix("FEATURE_")?.parse().ok()?;
        Some(Self::from_bits_retain(1u32.checked_shl(bit)?))
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_set_clear_and_reset() {
        let android = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,\
                       flexible_inline_xattr,verity,casefold,compression";
        let f = Features::default().parse(android).unwrap();
        assert_eq!(f.bits(), 0x3d78);
        assert_eq!(f.names().len(), 9);
        assert_eq!(
            f.parse("^verity,none,ro quota").unwrap().to_string(),
            "quota ro"
        );
        assert!(matches!(
            f.parse("fancy"),
            Err(FormatError::UnknownFeatureName { .. })
        ));
    }

    #[test]
    fn unknown_bits_have_names() {
        let f = Features::by_name("FEATURE_20").unwrap();
        assert_eq!(f.to_string(), "FEATURE_20");
        assert_eq!(f.unsupported(Features::all()), [""; 0]);
        assert_eq!(f.unsupported(Features::ENCRYPT), ["FEATURE_20"]);
        assert_eq!(Features::by_name("FEATURE_32"), None);
        assert_eq!(Features::by_name("FEATURE_"), None);
        for (name, f) in NAMES {
            assert_eq!(Features::by_name(name), Some(*f));
        }
    }
}
