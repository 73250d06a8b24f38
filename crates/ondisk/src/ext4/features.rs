//! Feature sets: the three 32-bit words of the superblock, with the names mke2fs's `-O` uses.
//!
//! Compat bits may be ignored by a reader that does not know them, ro_compat bits forbid writing,
//! incompat bits forbid any access. Which bits are *supported* is the engine's decision; this
//! module only names them, including unknown ones ("FEATURE_I17": incompat bit 17).

use std::fmt;

use bitflags::bitflags;

use super::error::FormatError;
use crate::common::features::{Change, changes};

bitflags! {
    /// Features a reader may ignore.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Compat: u32 {
        /// Directory block preallocation.
        const DIR_PREALLOC = 0x0001;
        /// AFS magic inodes.
        const IMAGIC_INODES = 0x0002;
        /// A jbd2 journal (an ext3 or ext4 volume).
        const HAS_JOURNAL = 0x0004;
        /// Extended attributes exist.
        const EXT_ATTR = 0x0008;
        /// Inode 7 reserves room for growing the group descriptors.
        const RESIZE_INODE = 0x0010;
        /// Directories may have hash indexes.
        const DIR_INDEX = 0x0020;
        /// Lazily initialised groups (never released).
        const LAZY_BG = 0x0040;
        /// Snapshot exclude inode (never released).
        const EXCLUDE_INODE = 0x0080;
        /// Snapshot exclude bitmap (never released).
        const SNAPSHOT_BITMAP = 0x0100;
        /// At most two backup superblocks, listed in `s_backup_bgs`.
        const SPARSE_SUPER2 = 0x0200;
        /// The journal may contain fast commits.
        const FAST_COMMIT = 0x0400;
        /// Inode numbers must not change (encryption policies depend on them).
        const STABLE_INODES = 0x0800;
        /// Orphans are tracked in a file rather than in a list.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features without which a reader must refuse the volume.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Incompat: u32 {
        /// Compression (never released).
        const COMPRESSION = 0x0001;
        /// Directory entries record the file type.
        const FILETYPE = 0x0002;
        /// The journal must be replayed before use.
        const NEEDS_RECOVERY = 0x0004;
        /// This is an external journal device, not a file system.
        const JOURNAL_DEV = 0x0008;
        /// Group descriptors are spread over meta block groups.
        const META_BG = 0x0010;
        /// Files may be mapped by extents.
        const EXTENT = 0x0040;
        /// 64-bit block numbers and group descriptors of 64 bytes or more.
        const BIT64 = 0x0080;
        /// Multiple-mount protection.
        const MMP = 0x0100;
        /// A group's bitmaps and inode table may lie outside of the group.
        const FLEX_BG = 0x0200;
        /// Large extended attribute values live in inodes of their own.
        const EA_INODE = 0x0400;
        /// Data in directory entries (never released).
        const DIRDATA = 0x1000;
        /// The checksum seed is stored rather than derived from the UUID.
        const METADATA_CSUM_SEED = 0x2000;
        /// Directories past 2 GiB, indexes of three levels.
        const LARGE_DIR = 0x4000;
        /// Small files and directories stored in the inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted inodes may exist.
        const ENCRYPT = 0x0001_0000;
        /// Directories may be case-insensitive.
        const CASEFOLD = 0x0002_0000;
        const _ = !0;
    }

    /// Features without which a reader must not write.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct RoCompat: u32 {
        /// Backup superblocks only in groups 0, 1 and powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x0001;
        /// Files past 2 GiB.
        const LARGE_FILE = 0x0002;
        /// B-tree directories (never released).
        const BTREE_DIR = 0x0004;
        /// File sizes counted in 48 bits of sectors or in file system blocks.
        const HUGE_FILE = 0x0008;
        /// Group descriptors have CRC-16 checksums, groups may be uninitialised.
        const UNINIT_BG = 0x0010;
        /// Directories may have more than 65 000 subdirectories.
        const DIR_NLINK = 0x0020;
        /// Inodes larger than 128 bytes have a reserved extra size.
        const EXTRA_ISIZE = 0x0040;
        /// Snapshots (never released).
        const SNAPSHOT = 0x0080;
        /// Quota files are hidden inodes, kept by the file system.
        const QUOTA = 0x0100;
        /// Space is allocated in clusters of several blocks.
        const BIGALLOC = 0x0200;
        /// All metadata has CRC-32C checksums.
        const METADATA_CSUM = 0x0400;
        /// Replicas (never released).
        const REPLICA = 0x0800;
        /// The volume must not be written.
        const READ_ONLY = 0x1000;
        /// Project ids and project quota.
        const PROJECT = 0x2000;
        /// Blocks may be shared between files (Android images).
        const SHARED_BLOCKS = 0x4000;
        /// Verity files may exist.
        const VERITY = 0x8000;
        /// The orphan file may hold entries.
        const ORPHAN_PRESENT = 0x0001_0000;
        const _ = !0;
    }
}

impl Compat {
    /// All compatible features whose structures this crate knows.
    pub const KNOWN: Self = Self::DIR_PREALLOC
        .union(Self::IMAGIC_INODES)
        .union(Self::HAS_JOURNAL)
        .union(Self::EXT_ATTR)
        .union(Self::RESIZE_INODE)
        .union(Self::DIR_INDEX)
        .union(Self::SPARSE_SUPER2)
        .union(Self::FAST_COMMIT)
        .union(Self::STABLE_INODES)
        .union(Self::ORPHAN_FILE);
}

impl Incompat {
    /// All incompatible features whose structures this crate knows. A user of the crate subtracts those that it does not support.
    pub const KNOWN: Self = Self::FILETYPE
        .union(Self::NEEDS_RECOVERY)
        .union(Self::META_BG)
        .union(Self::EXTENT)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::METADATA_CSUM_SEED)
        .union(Self::LARGE_DIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD);
}

impl RoCompat {
    /// All read-only-compatible features whose structures this crate knows. A user of the crate subtracts those that it does not
    /// support.
    pub const KNOWN: Self = Self::SPARSE_SUPER
        .union(Self::LARGE_FILE)
        .union(Self::BTREE_DIR)
        .union(Self::HUGE_FILE)
        .union(Self::UNINIT_BG)
        .union(Self::DIR_NLINK)
        .union(Self::EXTRA_ISIZE)
        .union(Self::QUOTA)
        .union(Self::BIGALLOC)
        .union(Self::METADATA_CSUM)
        .union(Self::READ_ONLY)
        .union(Self::PROJECT)
        .union(Self::SHARED_BLOCKS)
        .union(Self::VERITY)
        .union(Self::ORPHAN_PRESENT);
}

/// One feature word's names, by bit; the first name of a bit is the one printed.
const COMPAT_NAMES: &[(&str, u32)] = &[
    ("dir_prealloc", Compat::DIR_PREALLOC.bits()),
    ("imagic_inodes", Compat::IMAGIC_INODES.bits()),
    ("has_journal", Compat::HAS_JOURNAL.bits()),
    ("ext_attr", Compat::EXT_ATTR.bits()),
    ("resize_inode", Compat::RESIZE_INODE.bits()),
    ("dir_index", Compat::DIR_INDEX.bits()),
    ("lazy_bg", Compat::LAZY_BG.bits()),
    ("exclude_inode", Compat::EXCLUDE_INODE.bits()),
    ("snapshot_bitmap", Compat::SNAPSHOT_BITMAP.bits()),
    ("sparse_super2", Compat::SPARSE_SUPER2.bits()),
    ("fast_commit", Compat::FAST_COMMIT.bits()),
    ("stable_inodes", Compat::STABLE_INODES.bits()),
    ("orphan_file", Compat::ORPHAN_FILE.bits()),
];

const INCOMPAT_NAMES: &[(&str, u32)] = &[
    ("compression", Incompat::COMPRESSION.bits()),
    ("filetype", Incompat::FILETYPE.bits()),
    ("needs_recovery", Incompat::NEEDS_RECOVERY.bits()),
    ("journal_dev", Incompat::JOURNAL_DEV.bits()),
    ("meta_bg", Incompat::META_BG.bits()),
    ("extent", Incompat::EXTENT.bits()),
    ("extents", Incompat::EXTENT.bits()),
    ("64bit", Incompat::BIT64.bits()),
    ("mmp", Incompat::MMP.bits()),
    ("flex_bg", Incompat::FLEX_BG.bits()),
    ("ea_inode", Incompat::EA_INODE.bits()),
    ("dirdata", Incompat::DIRDATA.bits()),
    ("metadata_csum_seed", Incompat::METADATA_CSUM_SEED.bits()),
    ("large_dir", Incompat::LARGE_DIR.bits()),
    ("inline_data", Incompat::INLINE_DATA.bits()),
    ("encrypt", Incompat::ENCRYPT.bits()),
    ("casefold", Incompat::CASEFOLD.bits()),
];

const RO_COMPAT_NAMES: &[(&str, u32)] = &[
    ("sparse_super", RoCompat::SPARSE_SUPER.bits()),
    ("large_file", RoCompat::LARGE_FILE.bits()),
    ("btree_dir", RoCompat::BTREE_DIR.bits()),
    ("huge_file", RoCompat::HUGE_FILE.bits()),
    ("uninit_bg", RoCompat::UNINIT_BG.bits()),
    ("gdt_csum", RoCompat::UNINIT_BG.bits()),
    ("dir_nlink", RoCompat::DIR_NLINK.bits()),
    ("extra_isize", RoCompat::EXTRA_ISIZE.bits()),
    ("snapshot", RoCompat::SNAPSHOT.bits()),
    ("quota", RoCompat::QUOTA.bits()),
    ("bigalloc", RoCompat::BIGALLOC.bits()),
    ("metadata_csum", RoCompat::METADATA_CSUM.bits()),
    ("replica", RoCompat::REPLICA.bits()),
    ("read-only", RoCompat::READ_ONLY.bits()),
    ("project", RoCompat::PROJECT.bits()),
    ("shared_blocks", RoCompat::SHARED_BLOCKS.bits()),
    ("verity", RoCompat::VERITY.bits()),
    ("orphan_present", RoCompat::ORPHAN_PRESENT.bits()),
];

/// Appends the name of every bit of `word`, in bit order.
fn push_names(out: &mut Vec<String>, names: &[(&str, u32)], letter: char, word: u32) {
    for bit in 0..32u32 {
        let mask = 1u32 << bit;
        if word & mask == 0 {
            continue;
        }
        match names.iter().find(|(_, m)| *m == mask) {
            Some((name, _)) => out.push((*name).to_owned()),
            None => out.push(format!("FEATURE_{letter}{bit}")),
        }
    }
}

/// The three feature words of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features {
    /// Features a reader may ignore.
    pub compat: Compat,
    /// Features without which a reader must refuse the volume.
    pub incompat: Incompat,
    /// Features without which a reader must not write.
    pub ro_compat: RoCompat,
}

impl Features {
    /// Whether every given compat bit is set.
    #[must_use]
    pub const fn has_compat(&self, bits: Compat) -> bool {
        self.compat.contains(bits)
    }

    /// Whether every given incompat bit is set.
    #[must_use]
    pub const fn has_incompat(&self, bits: Incompat) -> bool {
        self.incompat.contains(bits)
    }

    /// Whether every given ro_compat bit is set.
    #[must_use]
    pub const fn has_ro_compat(&self, bits: RoCompat) -> bool {
        self.ro_compat.contains(bits)
    }

    /// Whether all metadata carries CRC-32C checksums.
    #[must_use]
    pub const fn metadata_csum(&self) -> bool {
        self.has_ro_compat(RoCompat::METADATA_CSUM)
    }

    /// Names of all set features, in the order dumpe2fs lists them.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut out = Vec::new();
        push_names(&mut out, COMPAT_NAMES, 'C', self.compat.bits());
        push_names(&mut out, INCOMPAT_NAMES, 'I', self.incompat.bits());
        push_names(&mut out, RO_COMPAT_NAMES, 'R', self.ro_compat.bits());
        out
    }

    /// Names of the incompat features that are set and not in `supported`.
    #[must_use]
    pub fn unsupported_incompat(&self, supported: Incompat) -> Vec<String> {
        let mut out = Vec::new();
        let word = self.incompat.bits() & !supported.bits();
        push_names(&mut out, INCOMPAT_NAMES, 'I', word);
        out
    }

    /// Names of the ro_compat features that are set and not in `supported`.
    #[must_use]
    pub fn unsupported_ro_compat(&self, supported: RoCompat) -> Vec<String> {
        let mut out = Vec::new();
        let word = self.ro_compat.bits() & !supported.bits();
        push_names(&mut out, RO_COMPAT_NAMES, 'R', word);
        out
    }

    /// Applies an mke2fs-style list to `self`: names separated by commas or blanks, `^name` or
    /// `-name` clears, `+name` or `name` sets, `none` clears everything before it.
    ///
    /// # Errors
    /// [`FormatError::UnknownFeatureName`] for a name that is none of mke2fs's.
    pub fn parse(mut self, list: &str) -> Result<Self, FormatError> {
        for change in changes(list, &['^', '-'], &['+']) {
            let (clear, name) = match change {
                Change::ClearAll => {
                    self = Self::default();
                    continue;
                }
                Change::Clear(name) => (true, name),
                Change::Set(name) => (false, name),
            };
            let one = Self::by_name(name).ok_or_else(|| FormatError::UnknownFeatureName {
                name: name.to_owned(),
            })?;
            if clear {
                self.compat -= one.compat;
                self.incompat -= one.incompat;
                self.ro_compat -= one.ro_compat;
            } else {
                self.compat |= one.compat;
                self.incompat |= one.incompat;
                self.ro_compat |= one.ro_compat;
            }
        }
        Ok(self)
    }

    /// The single feature called `name` (case-insensitively; also `FEATURE_C3` and the like).
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let find = |names: &[(&str, u32)]| {
            names
                .iter()
                .find(|(n, _)| n.eq_ignore_ascii_case(name))
                .map(|(_, m)| *m)
        };
        let mut out = Self::default();
        if let Some(m) = find(COMPAT_NAMES) {
            out.compat = Compat::from_bits_retain(m);
        } else if let Some(m) = find(INCOMPAT_NAMES) {
            out.incompat = Incompat::from_bits_retain(m);
        } else if let Some(m) = find(RO_COMPAT_NAMES) {
            out.ro_compat = RoCompat::from_bits_retain(m);
        } else {
            let rest = name.strip_prefix("FEATURE_")?;
            let letter = *rest.as_bytes().first()?;
            let bit: u32 = rest.get(1..)?.parse().ok().filter(|b| *b < 32)?;
            match letter {
                b'C' => out.compat = Compat::from_bits_retain(1 << bit),
                b'I' => out.incompat = Incompat::from_bits_retain(1 << bit),
                b'R' => out.ro_compat = RoCompat::from_bits_retain(1 << bit),
                _ => return None,
            }
        }
        Some(out)
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
    fn parse_sets_clears_and_resets() {
        let base = Features::default()
            .parse("has_journal,64bit,extents,metadata_csum")
            .unwrap();
        assert_eq!(base.to_string(), "has_journal extent 64bit metadata_csum");
        let edited = base.parse("^has_journal -64bit +Quota,gdt_csum").unwrap();
        assert_eq!(edited.to_string(), "extent uninit_bg quota metadata_csum");
        assert_eq!(
            edited.parse("none,filetype").unwrap().to_string(),
            "filetype"
        );
    }

    #[test]
    fn unknown_names_and_bits() {
        let err = Features::default().parse("has_journal,fancy").unwrap_err();
        assert_eq!(
            err,
            FormatError::UnknownFeatureName {
                name: "fancy".into()
            }
        );
        assert!(Features::default().parse("^").is_err());
        let odd = Features::default()
            .parse("FEATURE_I20,FEATURE_R31,FEATURE_C5")
            .unwrap();
        assert_eq!(odd.to_string(), "dir_index FEATURE_I20 FEATURE_R31");
        assert_eq!(odd.unsupported_incompat(Incompat::EXTENT), ["FEATURE_I20"]);
        assert_eq!(
            odd.unsupported_ro_compat(RoCompat::empty()),
            ["FEATURE_R31"]
        );
        assert!(Features::by_name("FEATURE_I32").is_none());
        assert!(Features::by_name("FEATURE_").is_none());
    }

    #[test]
    fn every_name_is_one_bit_and_parses_to_itself() {
        for names in [COMPAT_NAMES, INCOMPAT_NAMES, RO_COMPAT_NAMES] {
            for (name, mask) in names {
                assert!(mask.is_power_of_two(), "{name}");
                let f = Features::by_name(name).unwrap();
                assert_eq!(
                    f.compat.bits() | f.incompat.bits() | f.ro_compat.bits(),
                    *mask
                );
            }
        }
    }
}
