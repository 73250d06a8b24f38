//! The f2fs format.
//!
//! One module per structure. Raw structures carry the field names of the public format description
//! (the kernel's `f2fs.rst` and the headers' published names) without their prefix; parsed
//! structures carry native-endian values.
//!
//! A volume is: two superblocks (blocks 0 and 1), then areas in whole segments of 512 blocks:
//! checkpoint (two packs, written in turn), SIT (state of every segment of the main area), NAT
//! (where every node is), SSA (the owner of every block of the main area), and the main area itself
//! (nodes and data, written by six logs). SIT and NAT have two copies of each block; a bitmap in the
//! checkpoint says which one is valid, so that a checkpoint becomes valid all at once.
//!
//! Conventions: a [`BlockAddr`] is absolute and counted in 4096-byte blocks; a *slice* given to a
//! parser is exactly one structure. Blocks have 4096 bytes and segments 512 blocks: other sizes are
//! refused by name.
//!
//! Reference: kernel documentation, "WHAT IS Flash-Friendly File System (F2FS)?"; Lee et al.,
//! "F2FS: A New File System for Flash Storage", FAST 2015.

pub mod checkpoint;
pub mod checksum;
pub mod compress;
pub mod dir;
pub mod dir_geometry;
pub mod error;
pub mod features;
pub mod geometry;
pub mod hash;
pub mod inode;
pub mod layout;
pub mod nat;
pub mod node;
pub mod pack;
pub mod sit;
pub mod summary;
pub mod superblock;
pub mod types;
pub mod xattr;

/// Access control lists: f2fs stores them in the very form ext4 does.
pub use super::ext4::acl;

/// Most free segments that roll-forward recovery brings into use: half a TiB of data since one checkpoint. A few addresses could name millions, and each takes
/// memory, and a block of the table and one of the summaries in the next checkpoint. A bound of this project, and not of the format.
pub const RECOVERED_SEGMENTS_MAX: usize = 1 << 18;

pub use checkpoint::{Checkpoint, CheckpointFlags, RawCheckpoint};
pub use checksum::InodeSeed;
pub use error::FormatError;
pub use features::Features;
pub use geometry::Geometry;
pub use inode::{Advise, InlineFlags, Inode, InodeFlags, InodeLayout};
pub use nat::NatEntry;
pub use node::{Footer, NodeOffset};
pub use sit::SitEntry;
pub use summary::Summary;
pub use superblock::{RawSuperblock, Superblock};
pub use types::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, FileBlock, FileKind, Ino, Log, Nid, SegNo, Timestamp,
};
