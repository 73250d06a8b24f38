//! The FUSE front end: makes a mounted volume appear in the kernel's tree.
//!
//! mount (`mount`) → connection → `transport` → `dispatch` → [`blockwright_vfs::Vfs`].
//!
//! # Parts, lowest first
//! - [`protocol`]: the kernel's structures, decoded and encoded.
//! - `connection`: replies and notifications.
//! - `scheduling`: where and how a request is served. It holds every constant, and does no I/O.
//! - [`dispatch`]: the meaning of a request. It owns the tables of nodes and open files that the kernel knows.
//! - [`transport`]: how requests travel: `/dev/fuse`, or rings of io_uring. It owns the threads and the memory of requests.
//! - [`mount`], `keeper`: getting a connection, unmounting, and cleaning up after a server that was killed.
//! - [`Session`] ties them together. Everything else is public for programs with a transport or a connection of their own.
//!
//! # Calls
//! It calls `vfs` for everything about files, `blockwright` for opened volumes, and `device` for buffers and rings.
//!
//! # Never
//! No file-system logic, no opening of images, no arguments of commands.
//!
//! # Locks
//! Tables of nodes and files are sharded, and their locks are leaves: nothing is called under them. The heads of `dispatch`, `transport` and
//! their files list the others.
//!
//! # Crash order
//! This crate writes nothing to an image. When the server dies, the volume is as after a power failure: `docs/DURABILITY.md` says what is kept.
//! [`Session`] has the order of a clean end.
//!
//! References: the kernel's Documentation/filesystems/fuse; fuse(4), mount(2), fusermount3(1).

#![warn(missing_docs)]

mod connection;
pub mod dispatch;
mod error;
mod ids;
mod keeper;
pub mod mount;
mod options;
mod process;
pub mod protocol;
mod scheduling;
mod session;
mod signals;
mod threads;
pub mod transport;

pub use connection::{Notifier, ReplySink, TransportStats};
pub use dispatch::Dispatcher;
pub use error::{FuseError, FuseErrorKind, Result};
pub use keeper::Keeper;
pub use mount::{
    Elsewhere, MountEntry, Unmount, connection_exists, keep, mounted_at, mounted_elsewhere, unmount,
};
#[cfg(feature = "comparison")]
pub use options::DirectRing;
pub use options::{
    CpuLatency, FuseOptions, Log, PermissionChecks, TransportChoice, TransportKind, Visibility,
};
pub use scheduling::request_short_slices;
pub use session::{Prepared, Session, Unmounter};
pub use signals::{Event, SignalWatch, Signals};
pub use transport::{Control, ControlError};

#[cfg(test)]
extern crate self as blockwright_fuse;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
