//! The dispatcher's view of a connection, for all transports: sinks for replies, notifications to the kernel, and the counters of a
//! transport.
//!
//! The transports implement these traits and call the dispatcher. The dispatcher knows nothing else of them.

use blockwright_device::Loan;
use blockwright_vfs::Stats;
use std::io::{self, IoSlice};
use std::ops::Range;

/// Where the answer of one request goes.
pub trait ReplySink {
    /// Sends one reply: these parts one after another, the reply header first.
    ///
    /// # Errors
    /// When the kernel does not take it; `ENOENT` means that no client waits for it any more.
    fn send(self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// The memory of the reply behind its header, where there is such a thing, for a device to read into. At most once. Parts of the
    /// reply that lie in it at their own place need not be copied. It belongs to the reply until the loan is dropped, which may be later than `send`.
    fn lend(&mut self) -> Option<Loan> {
        None
    }
}

/// Tells the kernel things it did not ask for.
pub trait Notifier: Send + Sync {
    /// Makes the kernel write back and drop the cached pages of an inode. Blocks until it has. Other threads serve the
    /// WRITEs that this causes, so the caller holds no lock that a WRITE takes.
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

/// Counters of a transport.
pub trait TransportStats: Send + Sync {
    /// Adds its name (`transport`) and its counters to a snapshot.
    fn stats(&self, out: &mut Stats);
}
