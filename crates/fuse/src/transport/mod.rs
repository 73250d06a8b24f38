//! How requests and replies travel between the kernel and the dispatcher.
//!
//! A transport reads requests from its connection and hands each, with a [`ReplySink`], to the dispatcher. `dev_fuse` works
//! everywhere, and greets the kernel in any case. `uring` takes over from it where the kernel offers that. `readers` says which threads read
//! `/dev/fuse`, and `watch` finds those that are stuck. `control` is for other programs: it asks the server of a mount.
//!
//! [`ReplySink`]: crate::ReplySink

mod control;
mod dev_fuse;
mod readers;
pub(crate) mod uring;
mod watch;

pub use control::{Control, ControlError};
pub use dev_fuse::DevFuse;
pub use uring::Uring;
