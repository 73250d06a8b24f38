//! Kinds of blocks: one row each in the table below.

/// Makes [`Kind`] of rows: what such a block holds, the variant, its stable name for programs, and its name for people.
macro_rules! kinds {
    ($(#[doc = $holds:literal] $kind:ident, $name:literal, $label:literal;)*) => {
        /// What a block holds.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Kind {
            $(#[doc = $holds] $kind,)*
        }

        impl Kind {
            /// All kinds, metadata first.
            pub const ALL: [Kind; [$($name),*].len()] = [$(Kind::$kind),*];

            /// A stable name, for programs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }

            /// The name for people.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Kind::$kind => $label,)*
                }
            }
        }
    };
}

kinds! {
    /// Superblock or a copy of it.
    Superblock, "superblock", "superblock";
    /// ext4: group descriptors or a copy of them.
    GroupDescriptors, "group-descriptors", "group descriptors";
    /// ext4: room for more group descriptors, and the map of that room.
    ReservedDescriptors, "reserved-descriptors", "reserved for descriptors";
    /// ext4: a bitmap of blocks.
    BlockBitmap, "block-bitmap", "block bitmaps";
    /// ext4: a bitmap of inodes.
    InodeBitmap, "inode-bitmap", "inode bitmaps";
    /// ext4: inodes.
    InodeTable, "inode-table", "inode tables";
    /// ext4: the journal with its map.
    Journal, "journal", "journal";
    /// ext4: quota files, orphan file, multiple-mount protection.
    SystemFile, "system-file", "system files";
    /// f2fs: the two checkpoint packs.
    Checkpoint, "checkpoint", "checkpoint";
    /// f2fs: segment information table.
    Sit, "sit", "SIT";
    /// f2fs: node address table.
    Nat, "nat", "NAT";
    /// f2fs: segment summaries.
    Ssa, "ssa", "SSA";
    /// f2fs: directory nodes.
    HotNode, "hot-node", "hot nodes";
    /// f2fs: nodes of files.
    WarmNode, "warm-node", "warm nodes";
    /// f2fs: indirect nodes.
    ColdNode, "cold-node", "cold nodes";
    /// f2fs: directory entries and other hot data.
    HotData, "hot-data", "hot data";
    /// f2fs: data of files.
    WarmData, "warm-data", "warm data";
    /// f2fs: data that is rarely rewritten.
    ColdData, "cold-data", "cold data";
    /// ext4: entries of directories.
    Directory, "directory", "directories";
    /// ext4: extended attributes outside of the inode.
    Attributes, "attributes", "extended attributes";
    /// ext4: extent blocks and indirect blocks of files and directories.
    Mapping, "mapping", "block maps of files";
    /// ext4: data of files, and long targets of symbolic links.
    File, "file", "files";
    /// ext4: data of files that are in more pieces than one per 8 MiB, rounded up.
    FragmentedFile, "fragmented-file", "fragmented files";
    /// f2fs: blocks that were freed in a segment that is still in use. Cleaning makes them free.
    Stale, "stale", "stale, to be cleaned";
    /// Blocks that no allocation uses: before the first group, between areas, behind the last group.
    Unusable, "unusable", "unusable";
    /// ext4: blocks on the list of bad blocks.
    Bad, "bad", "bad blocks";
    /// In use according to the bitmap, but nothing that could be read refers to it.
    Unclaimed, "unclaimed", "in use, owner unknown";
    /// The structures that describe the block cannot be read.
    Unknown, "unknown", "unknown";
    /// Free.
    Free, "free", "free";
}

impl Kind {
    /// Its place in [`Kind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_at_its_index() {
        for (n, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(kind.index(), n, "{kind:?}");
        }
        assert_eq!(Kind::Free.index() + 1, Kind::ALL.len());
        let names: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|k| k.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
