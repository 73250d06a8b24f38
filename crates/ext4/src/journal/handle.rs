//! Handles: one atomic step of the file system each.
//!
//! Everything that one handle changes becomes durable together or not at all, because a handle
//! belongs to one transaction. A handle reserves *credits*: how many blocks it may bring into the
//! transaction that were not in it yet. Blocks that are in already cost nothing.
//!
//! # Locks
//! A handle is the "engine gate" of the lock order: start it after vfs inode locks, before the
//! inode's map and everything below. A thread holds at most one handle of a journal (debug builds
//! check), since a second start could wait for a commit that waits for the first.

use super::transaction::Transaction;
use super::{Shared, Tid};
use crate::journal::buffer::{BlockKind, BufferRef};
use crate::{Error, ErrorKind, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::ext4::BlockNo;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Membership in the running transaction. Dropping it ends the step.
pub struct Handle<'a> {
    shared: &'a Shared,
    txn: Arc<Transaction>,
    op: &'static str,
    /// Blocks this handle may still bring in.
    credits: Cell<u32>,
    /// Credits reserved in all; given back at the end.
    reserved: Cell<u32>,
    /// The committer's own handle, which is not counted among those it waits for.
    internal: bool,
    /// Not to be moved to, or shared with, another thread: the nesting check is per thread.
    _not_send: PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<(usize, &'static str)>> = const {
        std::cell::RefCell::new(Vec::new())
    };
}

/// Panics (debug builds) when this thread holds a handle of the journal already.
#[cfg(debug_assertions)]
pub(super) fn assert_no_handle(shared: &Shared, op: &'static str) {
    let id = std::ptr::from_ref(shared) as usize;
    HELD.with_borrow(|held| {
        if let Some((_, outer)) = held.iter().find(|(other, _)| *other == id) {
            panic!("{op}: waits for the journal inside the handle of {outer}");
        }
    });
}
#[cfg(not(debug_assertions))]
pub(super) fn assert_no_handle(_shared: &Shared, _op: &'static str) {}

impl<'a> Handle<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        txn: Arc<Transaction>,
        credits: u32,
        op: &'static str,
    ) -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| held.push((std::ptr::from_ref(shared) as usize, op)));
        Handle {
            shared,
            txn,
            op,
            credits: Cell::new(credits),
            reserved: Cell::new(credits),
            internal: false,
            _not_send: PhantomData,
        }
    }

    pub(super) fn internal(shared: &'a Shared, txn: Arc<Transaction>, op: &'static str) -> Self {
        Handle {
            shared,
            txn,
            op,
            credits: Cell::new(u32::MAX),
            reserved: Cell::new(0),
            internal: true,
            _not_send: PhantomData,
        }
    }

    /// The transaction this handle belongs to.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.txn.tid
    }

    /// Whether `n` more blocks may be brought in.
    #[must_use]
    pub fn has_credits(&self, n: u32) -> bool {
        self.credits.get() >= n
    }

    /// Reserves `n` more credits without leaving the transaction. `false`: the transaction is full
    /// or about to commit; end this handle at a consistent point and start another.
    #[must_use]
    pub fn extend(&self, n: u32) -> bool {
        if self.internal || !self.shared.extend(&self.txn, n) {
            return self.internal;
        }
        self.credits.set(self.credits.get() + n);
        self.reserved.set(self.reserved.get() + n);
        true
    }

    /// Sees to it that `n` credits are left, extending when needed.
    ///
    /// # Errors
    /// `NoSpace` when the transaction cannot take as many; callers that may meet this split their
    /// work with [`Handle::has_credits`] and [`Handle::extend`].
    pub fn ensure_credits(&self, n: u32) -> Result<()> {
        let missing = n.saturating_sub(self.credits.get());
        if missing == 0 || self.extend(missing) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoSpace, self.op).detail(format!(
            "the journal's transaction has no room for {missing} more blocks"
        )))
    }

    fn use_credit(&self) {
        debug_assert!(
            self.credits.get() > 0,
            "{}: more blocks changed than credits",
            self.op
        );
        self.credits.set(self.credits.get().saturating_sub(1));
    }

    /// Changes a block as part of the transaction. `f` runs under the buffer's lock: it must not
    /// lock anything, and must leave the block with a correct checksum.
    ///
    /// # Errors
    /// `Poisoned` after a failed metadata write.
    pub fn modify<R>(&self, buffer: &BufferRef, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.shared.check_alive(self.op)?;
        let mut state = buffer.state().write();
        if state.tid != self.txn.tid.0 {
            state.tid = self.txn.tid.0;
            if self.txn.add(buffer) {
                self.use_credit();
            }
        }
        // Copies when a commit, the checkpoint map or a reader holds the bytes as they were.
        let data: &mut AlignedBuf = Arc::make_mut(&mut state.data);
        Ok(f(data))
    }

    /// Makes a newly allocated block metadata: `f` fills it, starting from zeroes. The block's old
    /// contents are never read.
    ///
    /// # Errors
    /// `Poisoned`, or `Corrupt` for a block outside of the volume.
    pub fn create<R>(
        &self,
        block: BlockNo,
        kind: BlockKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<(BufferRef, R)> {
        self.shared.check_alive(self.op)?;
        let buffer = self.shared.cache.fresh(block, kind)?;
        let mut state = buffer.state().write();
        state.tid = self.txn.tid.0;
        if self.txn.add_created(&buffer) {
            self.use_credit();
        }
        let data: &mut AlignedBuf = Arc::make_mut(&mut state.data);
        let value = f(data);
        drop(state);
        Ok((buffer, value))
    }

    /// These metadata blocks are freed by this handle: their changes need not be logged, and
    /// recovery must not bring older copies back over what the blocks hold next. No thread may hold
    /// the buffers for changing.
    pub fn forget(&self, block: BlockNo, count: u32) {
        for n in 0..u64::from(count) {
            let Some(block) = block.checked_add(n) else {
                return;
            };
            self.shared.cache.remove(block);
            self.txn.forget(block, self.shared.has_log());
        }
    }

    /// Runs `f` once the transaction is durable: freed blocks become reusable, for example. Never
    /// runs when the commit fails. `f` may take group locks, but no inode's, and no handle.
    pub fn on_commit(&self, f: impl FnOnce() + Send + 'static) {
        self.txn.on_commit(Box::new(f));
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.internal {
            return;
        }
        #[cfg(debug_assertions)]
        {
            let id = std::ptr::from_ref(self.shared) as usize;
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|(other, _)| *other == id) {
                    held.remove(at);
                }
            });
        }
        self.shared.stop(self.reserved.get());
    }
}

impl std::fmt::Debug for Handle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Handle({} in {:?}, {} credits)",
            self.op,
            self.txn.tid,
            self.credits.get()
        )
    }
}
