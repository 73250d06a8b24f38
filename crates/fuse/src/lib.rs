//! The FUSE front end: makes a mounted volume appear in the kernel's tree.
//!
//! mount (`mount`) → connection → `transport` → `dispatch` → [`blockwright_vfs::Vfs`].
//!
//! [`Session`] ties them together. Everything else is public for programs with a transport or a
//! connection of their own. `scheduling` decides where and how a request is served.
//!
//! Not responsible for: file-system logic, opening images, arguments of commands.

#![warn(missing_docs)]

mod connection;
pub mod dispatch;
pub mod errno;
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
pub use mount::{Elsewhere, Unmount, connection_exists, keep, mounted_elsewhere, unmount};
#[cfg(feature = "comparison")]
pub use options::DirectRing;
pub use options::{
    CpuLatency, FuseOptions, Log, PermissionChecks, TransportChoice, TransportKind, Visibility,
};
pub use session::{Prepared, Session, Unmounter};
pub use signals::{Event, SignalWatch, Signals};
pub use transport::{Control, ControlError};

#[cfg(test)]
extern crate self as blockwright_fuse;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
