//! Reading and writing files: one operation each, one way to start it.
//!
//! ```text
//! start(op, patience) ── WouldWait(op, why) ──► the caller retries where it may wait
//!      │
//!  1 reserve    room for the bytes, or NoSpace now            (engine)
//!  2 place      cached: copy into the cache and return; writeback does 3 to 5
//!               past the cache: find or allocate blocks       (`write`, `read`, `places`)
//!  3 submit     requests go to the device; no lock is held    (`submit`, `read`)
//!  4 complete   in the device's context, if no work is left
//!  5 finish     commit or abandon blocks (`submit`), set the size, drop cached pages, synchronise, tell the caller
//! ```
//! [`Handle::run`] is start and wait. Work of step 5 that may block is done by one of three: the thread that waits in `run`, a
//! thread that carries device I/O itself and hands in a [`Carrier`], or the finisher (`workers`).
//!
//! # Which way a write goes
//! Past the cache: of a direct handle, where offset and length are multiples of the device's logical block; and large pieces
//! that a front end writes back ([`Handle::writes_back_past`]). A part of a block goes past the cache only if it overwrites data
//! in place, because the rest of a new block has to come from somewhere. Data in the inode never goes past the cache. All else is
//! cached, and a direct handle then writes it back before it returns.
//!
//! # Locks
//! An operation in flight holds no lock; the file counts it instead. Truncation holds the inode lock and `invalidate`
//! exclusively and waits until the count is zero. Writes that commit blocks, or write a part of a block, are counted a second
//! time with their range: a thread that caches or allocates there holds the inode lock and waits until they have finished.
//! So the threads that finish writes take neither of these locks.

pub(crate) mod buffered;
mod completion;
mod copy;
mod many;
mod places;
mod read;
pub(crate) mod readahead;
pub(crate) mod submit;
pub(crate) mod wait;
pub(crate) mod workers;
mod write;

pub use completion::Carrier;
pub use many::FileRead;
pub(crate) use places::split_slices;
pub use read::ReadOp;
pub use write::{Bytes, WriteAt, WriteOp};

use crate::error::Result;
use crate::handle::Handle;
use blockwright_device::IoSlice;
use std::sync::Arc;

/// Told once how an operation went. May run in the device's context: must not block.
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;
/// Told how many bytes were written.
pub type WriteDone = Done<usize>;
/// Told the bytes that were read.
pub type ReadDone = Done<Vec<IoSlice>>;

/// The waits that are allowed to the thread that starts an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Nothing. An operation that would wait, or fail, comes back.
    Nowait,
    /// Locks, metadata and blocks; and the device, where an operation goes through the cache.
    Wait,
    /// As little as possible: a worker of the vfs waits instead. Writes of one file keep their order.
    Worker,
}

/// The reason for which an operation would have waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// It goes through the cache, and the bytes are not there.
    Cache,
    /// The end of the file, which only the inode lock makes certain.
    End,
    /// Bytes must be copied together, because the device does not take them as they are.
    Alignment,
    /// Pages over the range are cached or dirty.
    CachedPages,
    /// Another thread holds the file's lock.
    Lock,
    /// The engine has to look for blocks, or to allocate them.
    Blocks,
    /// It will fail, or set-id bits have to be taken off first.
    Refusal,
}

/// An operation that was not started: as it was handed in.
pub struct WouldWait<O: Operation> {
    /// The operation.
    pub op: O,
    /// Not called yet.
    pub done: Done<O::Output>,
    /// What it would have waited for.
    pub why: WaitsFor,
}

/// Lets go of a file in a device's context. Where that was the last reference, a worker does what follows: closing, perhaps an
/// eviction.
fn let_go(handle: Arc<Handle>) {
    if let Some(last) = Arc::into_inner(handle) {
        let core = Arc::clone(last.core());
        let inode = Arc::clone(last.inode());
        core.workers.in_pool(&inode, Box::new(move || drop(last)));
    }
}

mod sealed {
    pub trait Sealed {}
}

/// [`ReadOp`] and [`WriteOp`].
pub trait Operation: Sized + sealed::Sealed {
    /// What it comes to.
    type Output;
    #[doc(hidden)]
    fn start_on(
        self,
        handle: &Arc<Handle>,
        done: Done<Self::Output>,
        patience: Patience,
    ) -> Option<WouldWait<Self>>;
    #[doc(hidden)]
    fn run_on(self, handle: &Arc<Handle>) -> Result<Self::Output>;
}

impl Handle {
    /// Starts an operation. `done` is called once: in the device's context, in a thread of the vfs's, or before this returns.
    /// `None` once it was started; always so unless `patience` is [`Patience::Nowait`].
    ///
    /// The order of overlapping operations in flight is not defined. With `Nowait` and `Worker` this may be called from `done` of
    /// another operation.
    pub fn start<O: Operation>(
        self: &Arc<Self>,
        op: O,
        done: Done<O::Output>,
        patience: Patience,
    ) -> Option<WouldWait<O>> {
        op.start_on(self, done, patience)
    }

    /// Starts an operation and waits for it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `AccessDenied` when the handle was not opened for it. Writes also: `NoSpace`, `QuotaExceeded`,
    /// `FileTooLarge`, `NotPermitted`, `ReadOnly`.
    pub fn run<O: Operation>(self: &Arc<Self>, op: O) -> Result<O::Output> {
        op.run_on(self)
    }

    /// Runs a [`ReadOp`] into a buffer; short only at the end of the file.
    ///
    /// # Errors
    /// As [`Handle::run`].
    pub fn read_at(self: &Arc<Self>, buf: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(n) = self.read_small(buf, offset)? {
            return Ok(n);
        }
        let mut done = 0;
        for slice in self.run(ReadOp::new(offset, buf.len()))? {
            buf[done..done + slice.len()].copy_from_slice(&slice);
            done += slice.len();
        }
        Ok(done)
    }

    /// Runs a [`WriteOp`] of these bytes at `offset`, or at the end for handles opened to append: all of them, or as many as fit the volume.
    ///
    /// # Errors
    /// As [`Handle::run`].
    pub fn write_at(self: &Arc<Self>, buf: &[u8], offset: u64) -> Result<usize> {
        self.run(WriteOp::borrowed(WriteAt::Offset(offset), buf))
    }

    /// Runs a [`WriteOp`] of these bytes at the end of the file, atomically; returns where that was.
    ///
    /// # Errors
    /// As [`Handle::run`].
    pub fn append(self: &Arc<Self>, buf: &[u8]) -> Result<u64> {
        let (at, _) = self.run_write(WriteOp::borrowed(WriteAt::End, buf))?;
        Ok(at)
    }
}
