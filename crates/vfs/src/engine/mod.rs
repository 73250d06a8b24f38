//! What a format implements.
//!
//! The vfs owns locks, caches and all data I/O. An engine owns the format: it answers where data is, and changes metadata. It sees
//! file data only where that is metadata (inline data) or encoded (compressed files).
//!
//! [`Engine`] is the union of five traits:
//! * [`Names`]: directories, and what their names lead to;
//! * [`Attributes`]: inodes, their attributes and extended attributes;
//! * [`Data`]: where the data of a regular file is, and will be;
//! * [`Space`]: room, and the limits on it;
//! * [`Volume`]: the mounted volume as a whole.
//!
//! Properties that never change while a volume is mounted are a value, [`Format`]. The vfs asks for
//! it once.
//!
//! # Errors
//! Every method that changes something fails with `ReadOnly` on a read-only mount, and with `Poisoned` after a failed write of
//! metadata.
//!
//! # Locks
//! Each method says which inode locks the vfs holds when it calls. An engine takes only locks of the ranks "engine gate" and
//! below (see [`crate::locks`]). The vfs holds no page or table lock across a call.
//!
//! The attributes in memory ([`Inode::attr`](crate::Inode::attr)) are the truth. The engine persists them when it writes the inode.
//! The size on disk may lag behind, and is the engine's own.
//!
//! # A buffered write, from start to end
//! 1. [`Space::reserve`], when the program writes: room for every hole in the range, or `NoSpace` now.
//! 2. [`Data::allocate_runs`], at writeback: blocks for the reserved ranges, in memory only. Nothing on disk refers to them yet.
//! 3. The vfs writes the data to the device.
//! 4. [`Data::commit_writes`]: a short transaction makes blocks, extents and size visible. So a crash exposes the old state or the
//!    new data, never stale blocks.
//!
//! A direct write is steps 2–4 with [`Intent::Direct`]. Its step 2 includes step 1.

mod attributes;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod data;
mod names;
mod part;
mod space;
mod volume;

pub use attributes::{Attributes, SyncScope};
pub use data::{
    CommitWrite, Data, FallocMode, Intent, Mapping, Place, TARGETS_MAX, WriteTarget, uncovered,
};
pub use names::{Names, Rename};
pub use space::{Grown, NewSize, Space};
pub use volume::{Format, Host, Volume};

/// Methods of an engine that a part of it has by the same name: `part: method(argument: Type) -> Result<T>;`. The engine is a structure with its parts
/// in `fs`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward {
    ($part:ident: $($method:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $method(&self, $($argument: $type),*) $(-> $result)? {
            self.fs.$part.$method($($argument),*)
        })*
    };
}

/// A mounted file system of some format.
pub trait Engine: Names + Attributes + Data + Space + Volume {}

impl<T: Names + Attributes + Data + Space + Volume> Engine for T {}
