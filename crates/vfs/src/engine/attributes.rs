//! [`Attributes`]: inodes, their attributes and extended attributes.
//!
//! The vfs owns inodes in memory: their lock, their cache, and the moment at which one leaves. The engine reads and writes them, and keeps
//! what it knows beside the attributes in [`Inode::private`]. Permissions and the meaning of ACLs are the vfs's.

use crate::error::Result;
use crate::inode::Inode;
use crate::types::{Attr, AttrChange, Ino, XattrMode};
use std::sync::Arc;

/// How much of an inode an fsync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// Data, and the metadata needed to read it back (`fdatasync`).
    Data,
    /// All of the inode's data and metadata (`fsync`).
    All,
}

/// Inodes and their attributes.
///
/// Extended attributes go by their full names: `user.x`, and `system.posix_acl_access` in the format of setxattr(2). The inode's lock
/// is held: shared for reading them, exclusively for changing them.
pub trait Attributes: Send + Sync {
    /// Reads an inode that is in use. The vfs's inode cache guarantees one [`Inode`] per number.
    ///
    /// # Errors
    /// `Stale` when the number is not in use, `Corrupt` when it is invalid.
    fn load(&self, ino: Ino) -> Result<Arc<Inode>>;

    /// Says that these inodes are about to be loaded. An engine that keeps each in a block of its own reads neighbouring blocks
    /// together. Numbers may be free.
    fn load_ahead(&self, _wanted: &[Ino]) {}

    /// Removes an inode from memory. An inode without a name is freed with its blocks. For any other, the vfs has called
    /// [`Attributes::write_attr`] if its attributes were changed in memory only. Called once, when no other thread can reach the inode.
    ///
    /// # Errors
    /// Those of the device and of damaged metadata.
    fn evict(&self, inode: &Arc<Inode>) -> Result<()>;

    /// The attributes for `stat`. An engine may know more than [`Inode::attr`].
    fn stat(&self, inode: &Inode) -> Attr {
        inode.attr()
    }

    /// Applies and journals a change. The inode's lock is held exclusively.
    ///
    /// # Errors
    /// `QuotaExceeded` when the new owner may not have so much.
    fn set_attr(&self, inode: &Arc<Inode>, change: &AttrChange) -> Result<()>;

    /// Journals attributes that were changed in memory only (lazy times). On a read-only volume an engine may do nothing instead of
    /// refusing.
    ///
    /// # Errors
    /// Those of the device and of damaged metadata.
    fn write_attr(&self, inode: &Arc<Inode>) -> Result<()>;

    /// Makes an inode's metadata durable. The vfs has written and committed its data before.
    ///
    /// # Errors
    /// Those of the device.
    fn sync_inode(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<()>;

    /// Whether everything that [`Attributes::sync_inode`] makes durable is on the device already, or in the device's cache. An
    /// overwrite that was written with FUA then needs no flush. False when the engine does not know.
    fn is_durable(&self, _inode: &Arc<Inode>, _scope: SyncScope) -> bool {
        false
    }

    /// The value of an extended attribute. Every name of [`Attributes::list_xattr`] can be read.
    ///
    /// # Errors
    /// `NoAttribute`; `Unsupported` for a name that the format does not store.
    fn get_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. The vfs turns an ACL that equals the mode bits into these bits.
    ///
    /// # Errors
    /// `Exists` with `Create`, `NoAttribute` with `Replace`; `NoSpace`; `Unsupported` for a name that the format does not store.
    fn set_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`; `Unsupported` for a name that the format does not store.
    fn remove_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<()>;

    /// The full names of all extended attributes.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn list_xattr(&self, inode: &Arc<Inode>) -> Result<Vec<Vec<u8>>>;
}
