//! Inode flags and projects of a tree: what of them a volume can keep, and what not.
//!
//! Flags have the numbers of `FS_IOC_GETFLAGS`, which both formats use on disk. Flags that only describe how the source's
//! file system stores a file (extents, hash indexes, inline data) are no loss.

use crate::tree::Tree;
use bitflags::bitflags;
use blockwright_ondisk::ext4::FileKind;
use std::collections::BTreeMap;

bitflags! {
    /// Flags that mean something to users.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u32 {
        /// Wiped when deleted.
        const SECURE_DELETION = 0x1;
        /// Can be undeleted.
        const UNDELETABLE = 0x2;
        /// Compressed.
        const COMPRESSED = 0x4;
        /// Written synchronously.
        const SYNC = 0x8;
        /// Never changed.
        const IMMUTABLE = 0x10;
        /// Only appended to.
        const APPEND = 0x20;
        /// Not dumped.
        const NODUMP = 0x40;
        /// Access times are not kept.
        const NOATIME = 0x80;
        /// Not compressed.
        const NOCOMPRESS = 0x400;
        /// Encrypted.
        const ENCRYPTED = 0x800;
        /// Data is journaled.
        const JOURNAL_DATA = 0x4000;
        /// Tails are not merged.
        const NOTAIL = 0x8000;
        /// Directory operations are synchronous.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy.
        const TOPDIR = 0x2_0000;
        /// Protected by fs-verity.
        const VERITY = 0x10_0000;
        /// Not copied on write.
        const NOCOW = 0x80_0000;
        /// Direct access.
        const DAX = 0x200_0000;
        /// New files take the directory's project.
        const PROJECT_INHERIT = 0x2000_0000;
        /// Names are looked up case-insensitively.
        const CASEFOLD = 0x4000_0000;
    }
}

impl Flags {
    /// Flags of directories only.
    const OF_DIRECTORIES: Self = Self::DIRSYNC
        .union(Self::TOPDIR)
        .union(Self::PROJECT_INHERIT)
        .union(Self::CASEFOLD);

    /// The letter that lsattr(1) shows.
    fn letter(self) -> &'static str {
        match self {
            Self::SECURE_DELETION => "s",
            Self::UNDELETABLE => "u",
            Self::COMPRESSED => "c",
            Self::SYNC => "S",
            Self::IMMUTABLE => "i",
            Self::APPEND => "a",
            Self::NODUMP => "d",
            Self::NOATIME => "A",
            Self::NOCOMPRESS => "m",
            Self::ENCRYPTED => "E",
            Self::JOURNAL_DATA => "j",
            Self::NOTAIL => "t",
            Self::DIRSYNC => "D",
            Self::TOPDIR => "T",
            Self::VERITY => "V",
            Self::NOCOW => "C",
            Self::DAX => "x",
            Self::PROJECT_INHERIT => "P",
            Self::CASEFOLD => "F",
            _ => "?",
        }
    }
}

/// What a volume keeps of its sources' flags and projects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Of regular files.
    pub files: Flags,
    /// Of directories.
    pub directories: Flags,
    /// Projects.
    pub projects: bool,
}

impl Kept {
    /// What is kept of these flags of a file of this kind.
    #[must_use]
    pub fn of(&self, kind: FileKind, flags: u32) -> Flags {
        let known = Flags::from_bits_truncate(flags);
        match kind {
            FileKind::Directory => known & self.directories,
            FileKind::Regular => known & self.files & !Flags::OF_DIRECTORIES,
            _ => Flags::empty(),
        }
    }
}

/// Something that a volume does not keep of its sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// What: `flag c (COMPRESSED)`, `project`.
    pub what: String,
    /// Of how many files.
    pub files: u64,
}

/// The flags and projects of a tree's files that a volume loses when it keeps only `kept`.
#[must_use]
pub fn left_out(tree: &Tree, kept: &Kept) -> Vec<LeftOut> {
    let mut flags: BTreeMap<u32, u64> = BTreeMap::new();
    let mut projects = 0;
    for (id, _) in tree.reachable() {
        let node = tree.node(id);
        if node.flags != 0 {
            let known = Flags::from_bits_truncate(node.flags);
            for flag in (known - kept.of(node.kind, node.flags)).iter() {
                *flags.entry(flag.bits()).or_default() += 1;
            }
        }
        projects += u64::from(node.project != 0 && !kept.projects);
    }
    let mut out: Vec<LeftOut> = flags
        .into_iter()
        .map(|(bits, files)| {
            let flag = Flags::from_bits_truncate(bits);
            let name = flag.iter_names().next().map_or("", |(name, _)| name);
            LeftOut {
                what: format!("flag {} ({name})", flag.letter()),
                files,
            }
        })
        .collect();
    if projects > 0 {
        out.push(LeftOut {
            what: "project".to_owned(),
            files: projects,
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Node;
    use blockwright_ondisk::ext4::Timestamp;

    #[test]
    fn what_is_left_out_is_counted() {
        let now = Timestamp { secs: 0, nanos: 0 };
        let mut root = Node::new(FileKind::Directory, 0o755, now);
        root.flags = (Flags::DIRSYNC | Flags::CASEFOLD).bits() | 0x8_1000;
        let mut tree = Tree::new(root);
        for name in [b"a", b"b"] {
            let mut node = Node::new(FileKind::Regular, 0o644, now);
            node.flags = (Flags::IMMUTABLE | Flags::COMPRESSED | Flags::DIRSYNC).bits();
            node.project = 7;
            let id = tree.add(node);
            tree.node_mut(crate::tree::NodeId::ROOT)
                .children
                .insert(name.to_vec(), id);
        }
        let kept = Kept {
            files: Flags::IMMUTABLE | Flags::DIRSYNC,
            directories: Flags::DIRSYNC,
            projects: false,
        };
        let got: Vec<(String, u64)> = left_out(&tree, &kept)
            .into_iter()
            .map(|l| (l.what, l.files))
            .collect();
        let want = [
            ("flag c (COMPRESSED)", 2),
            ("flag D (DIRSYNC)", 2),
            ("flag F (CASEFOLD)", 1),
            ("project", 2),
        ];
        assert_eq!(got, want.map(|(what, n)| (what.to_owned(), n)));
    }
}
