//! What all formats share: the engine trait, inodes and handles, name lookup, permissions, and
//! the one data path (page cache, writeback, direct I/O, readahead).
//!
//! front end → handle → vfs data path → engine for a *mapping* → device.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod acl;
mod attributes;
pub mod block_set;
mod budget;
mod buffered;
mod comparison;
mod copy;
mod counters;
pub mod engine;
pub mod error;
mod extent_cache;
mod flusher;
mod front_pages;
mod handle;
pub mod inode;
mod inode_cache;
mod io;
pub mod locks;
mod namespace;
pub mod page_cache;
mod path;
pub mod permissions;
pub mod quota;
pub mod range_set;
mod readahead;
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

/// What `front_pages` needs; its test puts loom's here.
mod front_sync {
    use super::locks;

    /// A leaf.
    pub(crate) struct Mutex<T>(locks::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(locks::Mutex::new(locks::Rank::Leaf, value))
        }

        pub(crate) fn lock(&self) -> locks::MutexGuard<'_, T> {
            self.0.lock()
        }
    }
}

pub use attributes::{SetAttr, SetTime};
#[cfg(any(test, feature = "comparison"))]
pub use comparison::Comparison;
pub use engine::{Engine, FallocMode, Host, Mapping, Place, SyncScope};
pub use error::{Error, ErrorKind, Result};
pub use front_pages::{Fill, FrontPages};
pub use handle::{FrontEnd, Handle, OpenFlags, SyncMode};
pub use inode::Inode;
pub use inode_cache::InodeRef;
pub use io::{
    Bytes, Carrier, Done, FileRead, Operation, Patience, ReadDone, ReadOp, TimesKeeper, WaitsFor,
    WouldWait, WriteAt, WriteDone, WriteOp,
};
pub use namespace::CreateRequest;
pub use permissions::{Access, AccessCheck, AtimeMode, Caps, Cred};
pub use stats::{Stats, Unit};
pub use tuning::Tunable;
pub use types::{
    Attr, AttrChange, DirEntry, FileKind, Ino, InodeFlags, NewInode, RenameMode, StatFs, Timestamp,
    XattrMode,
};
pub use vfs::{MountOptions, Vfs};
