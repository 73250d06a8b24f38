//! The inodes that the kernel remembers, with the number of lookups it must still give back.
//!
//! A node's number is its inode number, so that file handles (NFS, `open_by_handle_at`) survive a
//! forgotten node. The root is always 1 in the protocol; the inode that really has number 1, should
//! there be one, gets the root's.
//!
//! Invariant: while the kernel remembers a node, its `InodeRef` is held, so the number is not
//! reused and an unlinked file lives. Pins are given to `parting` to be dropped, because the last one may
//! free the file's blocks.

use crate::protocol::ROOT_ID;
use blockwright_vfs::{Error, ErrorKind, Ino, InodeRef, Result, Vfs};
use hashbrown::HashMap;
use parking_lot::Mutex;

const SHARDS: usize = 64;

struct Node {
    inode: InodeRef,
    lookups: u64,
    /// Open files that can be written through: as long as there are any, the kernel may have
    /// pages that we have not seen.
    writers: u32,
}

/// The table of nodes.
pub(super) struct Nodes {
    root: InodeRef,
    shards: Box<[Mutex<HashMap<u64, Node>>]>,
}

impl Nodes {
    pub(super) fn new(root: InodeRef) -> Self {
        Nodes {
            root,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// The node number of an inode number, and the other way round: the mapping is its own inverse.
    pub(super) fn swap_root(&self, number: u64) -> u64 {
        let root = self.root.ino().0;
        match number {
            ROOT_ID => root,
            n if n == root => ROOT_ID,
            n => n,
        }
    }

    fn shard(&self, nodeid: u64) -> &Mutex<HashMap<u64, Node>> {
        // The low bits are the varied ones: inode numbers are handed out densely.
        &self.shards[(nodeid % SHARDS as u64) as usize]
    }

    /// The inode behind a node number.
    ///
    /// # Errors
    /// `Stale` when the number is not in use.
    pub(super) fn get(&self, vfs: &Vfs, nodeid: u64) -> Result<InodeRef> {
        if nodeid == ROOT_ID {
            return Ok(self.root.clone());
        }
        if let Some(node) = self.shard(nodeid).lock().get(&nodeid) {
            return Ok(node.inode.clone());
        }
        // A node the kernel has forgotten comes back through a file handle, but not one without a name, which may
        // not have been let go of yet.
        let inode = vfs.inode(Ino(self.swap_root(nodeid)))?;
        match inode.attr().nlink {
            0 => Err(Error::new(ErrorKind::Stale, "file handle").ino(inode.ino())),
            _ => Ok(inode),
        }
    }

    /// The kernel is about to learn of this inode. Returns its node number.
    pub(super) fn remember(&self, inode: &InodeRef) -> u64 {
        let nodeid = self.swap_root(inode.ino().0);
        if nodeid != ROOT_ID {
            let mut shard = self.shard(nodeid).lock();
            shard
                .entry(nodeid)
                .or_insert_with(|| Node {
                    inode: inode.clone(),
                    lookups: 0,
                    writers: 0,
                })
                .lookups += 1;
        }
        nodeid
    }

    /// The kernel gives back `lookups` lookups. Returns the inode if these were the last: to be dropped
    /// outside all locks.
    pub(super) fn forget(&self, nodeid: u64, lookups: u64) -> Option<InodeRef> {
        let mut shard = self.shard(nodeid).lock();
        match shard.get_mut(&nodeid) {
            Some(node) if node.lookups > lookups => {
                node.lookups -= lookups;
                None
            }
            Some(_) => shard.remove(&nodeid).map(|node| node.inode),
            None => None,
        }
    }

    /// A file was opened for writing, or closed.
    pub(super) fn count_writer(&self, nodeid: u64, opened: bool) {
        if let Some(node) = self.shard(nodeid).lock().get_mut(&nodeid) {
            node.writers = if opened {
                node.writers.saturating_add(1)
            } else {
                // RELEASE and FORGET may overtake each other; the new node then starts from zero.
                node.writers.saturating_sub(1)
            };
        }
    }

    /// Whether the kernel may have dirty pages of the file.
    pub(super) fn has_writers(&self, nodeid: u64) -> bool {
        self.shard(nodeid)
            .lock()
            .get(&nodeid)
            .is_some_and(|node| node.writers > 0)
    }

    /// How many inodes the kernel remembers.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Forgets everything: the connection has ended.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
    }
}
