//! The ext2/ext3/ext4 engine: a [`blockwright_vfs::engine::Engine`] for the format.
//!
//! Three parts meet here: the journal and the metadata cache (`buffer`, `jbd2`, `mount`), allocation
//! and mapping (`mballoc`, `ialloc`, `extents`, `indirect`, `map`), and names and inodes (`inode`,
//! `dir`, `namei`, `xattr`, `orphan`, `quota`). [`fs::Fs`] ties them together.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod casefold;
mod commit_batch;
#[cfg(feature = "comparison")]
pub mod comparison;
pub mod delayed;
pub mod dir;
pub mod engine;
pub mod errors;
pub mod extents;
pub mod fs;
pub mod group;
pub mod ialloc;
pub mod indirect;
pub mod inline_data;
pub mod inode;
pub mod jbd2;
pub mod map;
pub mod mballoc;
pub mod mmp;
pub mod mount;
pub mod namei;
pub mod options;
pub mod orphan;
pub mod preallocation;
pub mod quota;
mod quota_recount;
mod quota_space;
pub mod statfs;
pub mod superblock;
pub mod trim;
pub mod truncate;
mod tuning;
pub mod xattr;
pub mod zones;

pub use blockwright_vfs::error::{Error, ErrorKind, Result};
pub use engine::Ext4;
pub use fs::{Fs, FsRef};
pub use mballoc::AllocSnapshot;
pub use options::{OnPanic, Options};
