//! What all formats share: the engine trait, inodes and handles, name lookup, permissions, and
//! the one data path (page cache, writeback, direct I/O, readahead).
//!
//! front end → handle → vfs data path → engine for a *mapping* → device.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod engine;
pub mod error;
pub mod inode;
pub mod page_cache;
pub mod types;

pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use inode::Inode;
pub use types::{
    Attr, AttrChange, DirEntry, FileKind, Ino, InodeFlags, NewInode, RenameMode, StatFs, Timestamp,
    XattrMode,
};
