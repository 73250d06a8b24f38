//! The ext2/ext3/ext4 format.
//!
//! One module per structure. Raw structures carry the field names of the public format
//! description (the kernel's "ext4 Data Structures and Algorithms" pages) without their prefix;
//! parsed structures carry combined, native-endian values.
//!
//! Conventions: a *block number* is absolute and counted in file system blocks; a *slice* given to
//! a parser is exactly one structure (a block, an inode of `inode_size` bytes, …); `verify_*`
//! functions return `Ok(())` at once when the volume has no metadata checksums.

pub mod acl;
pub mod checksum;
pub mod dir;
pub mod dir_layout;
pub mod error;
pub mod extent;
pub mod fast_commit;
pub mod features;
pub mod geometry;
pub mod group_desc;
pub mod hash;
pub mod htree;
pub mod inode;
pub mod jbd2;
pub mod journal_device;
pub mod mmp;
pub mod orphan_file;
pub mod superblock;
pub mod timestamp;
pub mod types;
pub mod xattr;

pub use crate::common::quota::{self, layout as quota_layout};
pub use checksum::{ChecksumKind, InodeSeed, MetaSeed};
pub use error::FormatError;
pub use features::{Compat, Features, Incompat, RoCompat};
pub use geometry::Geometry;
pub use group_desc::{GroupDesc, GroupFlags};
pub use inode::{Inode, InodeFlags, Timestamp};
pub use superblock::{RawSuperblock, Superblock};
pub use types::{BlockNo, FileBlock, FileKind, GroupNo, Ino};
