//! The ext2/ext3/ext4 engine: a [`blockwright_vfs::engine::Engine`] for the format.
//!
//! Three parts meet here: the journal and the metadata cache (`buffer`, `jbd2`, `mount`), allocation
//! and mapping (`mballoc`, `ialloc`, `extents`, `indirect`, `map`), and names and inodes (`inode`,
//! `dir`, `namei`, `xattr`, `orphan`, `quota`). [`fs::Fs`] ties them together.
#![forbid(unsafe_code)]

pub mod range_set;

pub use blockwright_vfs::error::{Error, ErrorKind, Result};
