//! What all formats share: the engine trait, inodes and handles, name lookup, permissions, and
//! the one data path (page cache, writeback, direct I/O, readahead).
//!
//! front end → handle → vfs data path → engine for a *mapping* → device.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cache;
mod comparison;
mod core;
mod counters;
pub mod engine;
#[cfg(target_os = "linux")]
pub mod errno;
pub mod error;
mod handle;
pub mod inode;
mod io;
pub mod locks;
mod named;
mod namespace;
mod open;
mod options;
pub mod quota;
mod relocation;
mod space;
pub mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod trace;
mod tuning;
pub mod types;
mod vfs;
mod writeback;

pub use cache::front_pages::{Fill, FrontPages};
pub use cache::{block_set, page_cache, range_set};
#[cfg(any(test, feature = "comparison"))]
pub use comparison::Comparison;
pub use core::InodeRef;
pub use engine::{Engine, FallocMode, Host, Mapping, Place, SyncScope};
pub use error::{Error, ErrorKind, Result};
pub use handle::{FrontEnd, Handle, OpenFlags, SyncMode};
pub use inode::Inode;
pub use inode::attributes::{SetAttr, SetTime};
pub use inode::permissions::{Access, AccessCheck, AtimeMode, Caps, Cred};
pub use inode::times::TimesKeeper;
pub use inode::{acl, permissions};
pub use io::{
    Bytes, Carrier, Done, FileRead, Operation, Patience, ReadDone, ReadOp, WaitsFor, WouldWait,
    WriteAt, WriteDone, WriteOp,
};
pub use namespace::CreateRequest;
pub use options::MountOptions;
pub use stats::{Stats, Unit};
pub use tuning::tunable::Tunable;
pub use types::{
    Attr, AttrChange, DirEntry, FileKind, Ino, InodeFlags, NewInode, RenameMode, StatFs, Timestamp,
    XattrMode,
};
pub use vfs::Vfs;
