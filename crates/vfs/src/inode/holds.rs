//! Guards of a file's pages: the sole right to write the file back, and blocks that stay in the cache. Each keeps its inode in memory.
//!
//! # Locks
//! Both take the lock of the file's table when they are made and when they are dropped.

use super::Inode;
use crate::cache::page_cache::{ReadBytes, ReadTicket, Table};
use std::ops::Range;
use std::sync::Arc;

/// A block that is up to date, and stays so though it is clean and others need room, until this is dropped: for a writer that is about to
/// change a part of it. The table must not be locked when it is dropped.
#[must_use]
pub(crate) struct HeldBlock {
    inode: Arc<Inode>,
    block: Range<u64>,
}

impl HeldBlock {
    /// Of a block that is up to date. `table` is the inode's.
    pub(crate) fn new(inode: &Arc<Inode>, table: &mut Table, block: Range<u64>) -> Self {
        table.hold(block.clone());
        let inode = Arc::clone(inode);
        HeldBlock { inode, block }
    }
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        self.inode.pages.lock().release(&self.block);
    }
}

/// Sole right to write back one file. Released when the last clone is dropped.
pub(crate) struct WritebackOwner {
    pub(crate) inode: Arc<Inode>,
}

impl WritebackOwner {
    fn of(inode: &Arc<Inode>) -> Arc<Self> {
        Arc::new(WritebackOwner {
            inode: Arc::clone(inode),
        })
    }

    /// Waits for the right.
    pub(crate) fn acquire(inode: &Arc<Inode>) -> Arc<Self> {
        inode.pages.own_writeback();
        Self::of(inode)
    }

    /// Takes the right if it is free and no thread waits for it.
    pub(crate) fn try_acquire(inode: &Arc<Inode>) -> Option<Arc<Self>> {
        inode.pages.try_own_writeback().then(|| Self::of(inode))
    }
}

impl Drop for WritebackOwner {
    fn drop(&mut self) {
        self.inode.pages.disown_writeback();
    }
}

impl Inode {
    /// Ends a read: the bytes, or `None` when it failed. In the device's context.
    pub(crate) fn finish_read(&self, block: u64, ticket: &ReadTicket, bytes: Option<ReadBytes>) {
        self.pages.finish_read(|| self.size(), block, ticket, bytes);
    }
}
