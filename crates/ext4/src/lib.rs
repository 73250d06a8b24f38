//! The ext2/ext3/ext4 engine: a [`blockwright_vfs::engine::Engine`] for the format.
//!
//! # Parts
//! Each part is a struct that owns its state and is constructed from the parts that it calls. Only [`Fs`], which the mount assembles, and
//! [`Ext4`], the engine, see all parts. From the bottom:
//! - `journal`: transactions, the metadata cache, and what recovery reads from a log.
//! - `volume`: the device, superblock, options and tunables; reports damage. It holds the journal and the cache, which all parts use.
//! - `alloc`: `groups` (block groups, the system zone), the block allocator with preallocations, and the inode allocator.
//! - `inode`: `table`, `orphan` and `stored` (inodes as their tables have them).
//! - `quota`: below the parts that charge it, so it maps and stores its own files without them.
//! - `inode::Inodes`: stored and new inodes with their charge.
//! - `map`: extents, indirect blocks, mappings of whole files.
//! - `data`: `delayed` (reservations, blocks for writes), `inline`, `commit`, `truncate`.
//! - `attr::xattr`, then `inode::Eviction` (the end of an inode), `dir`, `attr`, and `dir::names` (changes of the tree).
//! - `recovery`: orphans and fast commits at mount.
//! - `mount`: reads what a mount needs, and constructs the parts. `engine`: answers the vfs.
#![forbid(unsafe_code)]
// What only growth calls lives with the parts that grow.
#![cfg_attr(not(feature = "grow"), allow(dead_code))]

mod alloc;
mod attr;
#[cfg(feature = "comparison")]
pub mod comparison;
mod data;
mod dir;
pub mod engine;
mod growing;
mod inode;
pub mod journal;
mod map;
mod mount;
pub mod options;
mod quota;
mod recovery;
#[cfg(test)]
mod testing;
mod volume;

pub use alloc::AllocSnapshot;
use blockwright_ondisk::ext4::Ino;
pub use blockwright_vfs::error::{Error, ErrorKind, Result};
pub use engine::Ext4;
pub use mount::{Fs, FsRef};
pub use options::{OnPanic, Options};

/// The number as the vfs has it.
pub(crate) fn vfs_ino(ino: Ino) -> blockwright_vfs::Ino {
    blockwright_vfs::Ino(u64::from(ino.0))
}
