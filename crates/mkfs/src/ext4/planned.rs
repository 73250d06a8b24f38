//! A volume that is decided but not written.

use super::files::kept_flags;
use super::layout::GroupPlace;
use super::mapping::{MapRun, MetaBlock};
use super::shape::Shape;
use super::space::Space;
use super::xattrs::{Stored, ValueInodes};
use crate::flags::Kept;
use crate::options::Before;
use crate::tree::NodeId;
use blockwright_ondisk::ext4::dir_layout::{DirRules, DirShape};
use blockwright_ondisk::ext4::{Ino, Inode, RawSuperblock};
use std::collections::HashMap;

/// The future contents of an inode's blocks.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Nothing, or nothing that is not in the inode.
    Nothing,
    /// A regular file's data.
    Data(NodeId),
    /// A regular file's data, in the inode.
    Inline(NodeId, Vec<Stored>),
    /// A directory.
    Dir(NodeId, DirShape),
    /// An empty directory of this many blocks (lost+found).
    EmptyDir(u64),
    /// These bytes.
    Bytes(Vec<u8>),
    /// An empty journal.
    Journal,
    /// An orphan file without orphans.
    Orphans,
}

/// An inode with all it has.
pub(crate) struct PlannedInode {
    pub ino: Ino,
    pub inode: Inode,
    /// Attribute area behind the extra fields; empty for none.
    pub body: Vec<u8>,
    pub runs: Vec<MapRun>,
    pub content: Content,
}

/// A volume that is decided but not written.
pub struct Plan {
    pub(crate) shape: Shape,
    pub(crate) raw: RawSuperblock,
    pub(crate) places: Vec<GroupPlace>,
    pub(crate) space: Space,
    /// Ascending by number.
    pub(crate) inodes: Vec<PlannedInode>,
    pub(crate) meta: Vec<MetaBlock>,
    pub(crate) ino_of: Vec<Ino>,
    pub(crate) lost_found: Option<NodeId>,
    /// Of every directory but the root.
    pub(crate) parent_of: HashMap<NodeId, Ino>,
    pub(crate) last_ino: u32,
    pub(crate) before: Before,
    pub(crate) body_room: usize,
    pub(crate) values: ValueInodes,
    pub(crate) rules: DirRules,
}

/// Properties of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatReport {
    /// Bytes per block.
    pub block_bytes: u32,
    /// Bytes per inode.
    pub inode_bytes: u16,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Blocks kept for root.
    pub reserved_blocks: u64,
    /// Inodes of the volume.
    pub inodes: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Groups.
    pub groups: u32,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u32,
    /// Descriptor blocks reserved for growth.
    pub reserved_gdt_blocks: u32,
    /// Features by name.
    pub features: Vec<String>,
    /// UUID.
    pub uuid: [u8; 16],
    /// Bytes of the volume.
    pub bytes: u64,
}

impl Plan {
    /// What the volume will be like.
    #[must_use]
    pub fn report(&self) -> FormatReport {
        let geo = &self.shape.geo;
        FormatReport {
            block_bytes: geo.block_size,
            inode_bytes: geo.inode_size,
            blocks: geo.blocks_count,
            free_blocks: self.raw.free_blocks_count(),
            reserved_blocks: self.raw.reserved_blocks_count(),
            inodes: geo.inodes_count,
            free_inodes: self.raw.free_inodes_count.get(),
            groups: geo.groups_count,
            journal_blocks: self.shape.journal_blocks,
            reserved_gdt_blocks: geo.reserved_gdt_blocks,
            features: geo.features.names(),
            uuid: geo.uuid,
            bytes: geo.blocks_count << geo.block_bits,
        }
    }

    /// What the volume keeps of its files' inode flags and projects.
    #[must_use]
    pub fn kept_flags(&self) -> Kept {
        kept_flags(&self.shape.geo.features)
    }

    /// Bytes of file data that [`super::write`] will copy.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let bits = self.shape.geo.block_bits;
        let data = self
            .inodes
            .iter()
            .filter(|i| matches!(i.content, Content::Data(_)));
        data.flat_map(|i| &i.runs).map(|r| r.len << bits).sum()
    }
}
