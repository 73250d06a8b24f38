//! How requests and replies travel between the kernel and the dispatcher.
//!
//! A [`Transport`] reads requests from its connection and hands each, with a [`ReplySink`], to
//! the dispatcher. `dev_fuse` is the one that works everywhere, and greets the kernel for all;
//! `uring` takes over from it where the kernel offers that.

mod control;
mod dev_fuse;
mod pool;
pub(crate) mod uring;
mod watch;

pub use control::{Control, ControlError};
pub use dev_fuse::DevFuse;
pub use uring::Uring;
pub(crate) use uring::helpers::Helpers;

use crate::dispatch::Dispatcher;
use crate::error::Result;
use blockwright_device::Loan;
use blockwright_vfs::Stats;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Serves a connection.
pub trait Transport: Send + Sync {
    /// Starts serving, in threads of its own.
    ///
    /// # Errors
    /// When no thread or buffer can be had.
    fn start(&self, dispatcher: Arc<Dispatcher>) -> Result<()>;

    /// Waits until the connection has ended and no request is in work any more, or for `limit`.
    /// Returns whether it has ended.
    fn wait(&self, limit: Option<Duration>) -> bool;

    /// Adds its name (`transport`) and what it counts to a snapshot.
    fn stats(&self, out: &mut Stats);
}

/// Where the answer of one request goes.
pub trait ReplySink {
    /// Sends one reply: these parts one after another, the reply header first.
    ///
    /// # Errors
    /// When the kernel does not take it; `ENOENT` means that no client waits for it any more.
    fn send(self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// The memory of the reply behind its header, where there is such a thing, for a device to read into. At most once. Parts of the
    /// reply that lie in it at their own place need not be copied; it is the reply's until it has been let go of, which may be later than `send`.
    fn lend(&mut self) -> Option<Loan> {
        None
    }
}

/// Tells the kernel things it did not ask for.
pub trait Notifier: Send + Sync {
    /// Makes the kernel write back and drop the cached pages of an inode. Blocks until it has; the
    /// WRITEs this causes are served meanwhile by other threads, so no lock that a WRITE takes may be
    /// held.
    ///
    /// # Errors
    /// When the connection has ended. An inode that the kernel does not know is no error.
    fn drop_cached_pages(&self, nodeid: u64) -> io::Result<()> {
        self.drop_cached_range(nodeid, 0..u64::MAX)
    }

    /// As [`Notifier::drop_cached_pages`], of the whole pages of a range. It also waits for READs on their way into these pages.
    ///
    /// # Errors
    /// As there.
    fn drop_cached_range(&self, nodeid: u64, range: Range<u64>) -> io::Result<()>;

    /// Makes the kernel ask for an inode's attributes before it uses them again. Waits for nothing.
    ///
    /// # Errors
    /// As [`Notifier::drop_cached_pages`].
    fn forget_attributes(&self, nodeid: u64) -> io::Result<()>;
}
