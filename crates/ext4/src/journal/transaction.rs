//! A transaction: the blocks changed, the blocks revoked, and what to do once it is durable.
//!
//! # Invariants
//! A block is in `blocks` or in `revokes` of one transaction, never in both: recovery skips the
//! copy of a block that the same transaction revokes.

use super::Tid;
use crate::journal::buffer::BufferRef;
use blockwright_ondisk::ext4::BlockNo;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

pub(crate) type Callback = Box<dyn FnOnce() + Send>;

pub(crate) struct TxnBlock {
    pub(crate) buffer: BufferRef,
    /// The block became metadata in this very transaction, so no older copy needs a revoke …
    created: bool,
    /// … except that this transaction had revoked it before.
    revoke_cancelled: bool,
}

#[derive(Default)]
pub(crate) struct TxnBlocks {
    pub(crate) blocks: HashMap<BlockNo, TxnBlock>,
    pub(crate) revokes: HashSet<BlockNo>,
}

pub(crate) struct Transaction {
    pub(crate) tid: Tid,
    pub(crate) born: Instant,
    contents: Mutex<TxnBlocks>,
    callbacks: Mutex<Vec<Callback>>,
    blocks: AtomicU32,
    revokes: AtomicU32,
}

impl Transaction {
    pub(crate) fn new(tid: Tid) -> Self {
        Transaction {
            tid,
            born: Instant::now(),
            contents: Mutex::default(),
            callbacks: Mutex::default(),
            blocks: AtomicU32::new(0),
            revokes: AtomicU32::new(0),
        }
    }

    /// Blocks logged, and revoke records.
    pub(crate) fn sizes(&self) -> (u32, u32) {
        (
            self.blocks.load(Ordering::Relaxed),
            self.revokes.load(Ordering::Relaxed),
        )
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sizes() == (0, 0) && self.callbacks.lock().is_empty()
    }

    fn count(&self, contents: &TxnBlocks) {
        self.blocks
            .store(contents.blocks.len() as u32, Ordering::Relaxed);
        self.revokes
            .store(contents.revokes.len() as u32, Ordering::Relaxed);
    }

    /// Adds a block that existed before. `true` when it was not in yet.
    pub(crate) fn add(&self, buffer: &BufferRef) -> bool {
        let mut contents = self.contents.lock();
        if let Some(entry) = contents.blocks.get_mut(&buffer.block()) {
            entry.buffer = BufferRef::clone(buffer);
            return false;
        }
        let entry = TxnBlock {
            buffer: BufferRef::clone(buffer),
            created: false,
            revoke_cancelled: false,
        };
        contents.revokes.remove(&buffer.block());
        contents.blocks.insert(buffer.block(), entry);
        self.count(&contents);
        true
    }

    /// Adds a block that becomes metadata now. `true` when it was not in yet.
    pub(crate) fn add_created(&self, buffer: &BufferRef) -> bool {
        let mut contents = self.contents.lock();
        let revoke_cancelled = contents.revokes.remove(&buffer.block());
        if let Some(entry) = contents.blocks.get_mut(&buffer.block()) {
            entry.buffer = BufferRef::clone(buffer);
            return false;
        }
        let entry = TxnBlock {
            buffer: BufferRef::clone(buffer),
            created: true,
            revoke_cancelled,
        };
        contents.blocks.insert(buffer.block(), entry);
        self.count(&contents);
        true
    }

    /// Takes a freed block out, leaving a revoke when the log may hold an older copy of it.
    pub(crate) fn forget(&self, block: BlockNo, with_revokes: bool) {
        let mut contents = self.contents.lock();
        let needs_revoke = match contents.blocks.remove(&block) {
            Some(entry) => !entry.created || entry.revoke_cancelled,
            None => true,
        };
        if with_revokes && needs_revoke {
            contents.revokes.insert(block);
        }
        self.count(&contents);
    }

    pub(crate) fn on_commit(&self, callback: Callback) {
        self.callbacks.lock().push(callback);
    }

    /// Everything in it. Only once no handle is left.
    pub(crate) fn take(&self) -> (TxnBlocks, Vec<Callback>) {
        let contents = std::mem::take(&mut *self.contents.lock());
        (contents, std::mem::take(&mut *self.callbacks.lock()))
    }
}
