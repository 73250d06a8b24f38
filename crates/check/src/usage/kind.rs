//! Kinds of blocks.

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Superblock or a copy of it.
    Superblock,
    /// ext4: group descriptors or a copy of them.
    GroupDescriptors,
    /// ext4: room for more group descriptors, and the map of that room.
    ReservedDescriptors,
    /// ext4: a bitmap of blocks.
    BlockBitmap,
    /// ext4: a bitmap of inodes.
    InodeBitmap,
    /// ext4: inodes.
    InodeTable,
    /// ext4: the journal with its map.
    Journal,
    /// ext4: quota files, orphan file, multiple-mount protection.
    SystemFile,
    /// f2fs: the two checkpoint packs.
    Checkpoint,
    /// f2fs: segment information table.
    Sit,
    /// f2fs: node address table.
    Nat,
    /// f2fs: segment summaries.
    Ssa,
    /// f2fs: directory nodes.
    HotNode,
    /// f2fs: nodes of files.
    WarmNode,
    /// f2fs: indirect nodes.
    ColdNode,
    /// f2fs: directory entries and other hot data.
    HotData,
    /// f2fs: data of files.
    WarmData,
    /// f2fs: data that is rarely rewritten.
    ColdData,
    /// ext4: entries of directories.
    Directory,
    /// ext4: extended attributes outside of the inode.
    Attributes,
    /// ext4: extent blocks and indirect blocks of files and directories.
    Mapping,
    /// ext4: data of files, and long targets of symbolic links.
    File,
    /// ext4: data of files that are in more pieces than one per 8 MiB, rounded up.
    FragmentedFile,
    /// f2fs: blocks that were freed in a segment that is still in use. Cleaning makes them free.
    Stale,
    /// Blocks that no allocation uses: before the first group, between areas, behind the last group.
    Unusable,
    /// ext4: blocks on the list of bad blocks.
    Bad,
    /// In use according to the bitmap, but nothing that could be read refers to it.
    Unclaimed,
    /// The structures that describe the block cannot be read.
    Unknown,
    /// Free.
    Free,
}

impl Kind {
    /// All kinds, metadata first.
    pub const ALL: [Kind; 29] = [
        Kind::Superblock,
        Kind::GroupDescriptors,
        Kind::ReservedDescriptors,
        Kind::BlockBitmap,
        Kind::InodeBitmap,
        Kind::InodeTable,
        Kind::Journal,
        Kind::SystemFile,
        Kind::Checkpoint,
        Kind::Sit,
        Kind::Nat,
        Kind::Ssa,
        Kind::HotNode,
        Kind::WarmNode,
        Kind::ColdNode,
        Kind::HotData,
        Kind::WarmData,
        Kind::ColdData,
        Kind::Directory,
        Kind::Attributes,
        Kind::Mapping,
        Kind::File,
        Kind::FragmentedFile,
        Kind::Stale,
        Kind::Unusable,
        Kind::Bad,
        Kind::Unclaimed,
        Kind::Unknown,
        Kind::Free,
    ];

    /// Its place in [`Kind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A stable name, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Superblock => "superblock",
            Kind::GroupDescriptors => "group-descriptors",
            Kind::ReservedDescriptors => "reserved-descriptors",
            Kind::BlockBitmap => "block-bitmap",
            Kind::InodeBitmap => "inode-bitmap",
            Kind::InodeTable => "inode-table",
            Kind::Journal => "journal",
            Kind::SystemFile => "system-file",
            Kind::Checkpoint => "checkpoint",
            Kind::Sit => "sit",
            Kind::Nat => "nat",
            Kind::Ssa => "ssa",
            Kind::HotNode => "hot-node",
            Kind::WarmNode => "warm-node",
            Kind::ColdNode => "cold-node",
            Kind::HotData => "hot-data",
            Kind::WarmData => "warm-data",
            Kind::ColdData => "cold-data",
            Kind::Directory => "directory",
            Kind::Attributes => "attributes",
            Kind::Mapping => "mapping",
            Kind::File => "file",
            Kind::FragmentedFile => "fragmented-file",
            Kind::Stale => "stale",
            Kind::Unusable => "unusable",
            Kind::Bad => "bad",
            Kind::Unclaimed => "unclaimed",
            Kind::Unknown => "unknown",
            Kind::Free => "free",
        }
    }

    /// The name for people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Kind::GroupDescriptors => "group descriptors",
            Kind::ReservedDescriptors => "reserved for descriptors",
            Kind::BlockBitmap => "block bitmaps",
            Kind::InodeBitmap => "inode bitmaps",
            Kind::InodeTable => "inode tables",
            Kind::SystemFile => "system files",
            Kind::Sit => "SIT",
            Kind::Nat => "NAT",
            Kind::Ssa => "SSA",
            Kind::HotNode => "hot nodes",
            Kind::WarmNode => "warm nodes",
            Kind::ColdNode => "cold nodes",
            Kind::HotData => "hot data",
            Kind::WarmData => "warm data",
            Kind::ColdData => "cold data",
            Kind::Directory => "directories",
            Kind::Attributes => "extended attributes",
            Kind::Mapping => "block maps of files",
            Kind::File => "files",
            Kind::FragmentedFile => "fragmented files",
            Kind::Stale => "stale, to be cleaned",
            Kind::Bad => "bad blocks",
            Kind::Unclaimed => "in use, owner unknown",
            Kind::Superblock
            | Kind::Journal
            | Kind::Checkpoint
            | Kind::Unusable
            | Kind::Unknown
            | Kind::Free => self.name(),
        }
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
