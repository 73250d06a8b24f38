//! The inodes that the kernel remembers, with the number of lookups it must still give back.
//!
//! A node's number is its inode number, so that file handles (NFS, `open_by_handle_at`) survive a
//! forgotten node. The root is always 1 in the protocol; the inode that really has number 1, should
//! there be one, gets the root's.
//!
//! The kernel may remember millions of nodes. So most nodes are [`Light`]: number, generation and count take 16 bytes, and the map one
//! more. The inode of a light node is in memory only while the volume's budget allows it. An access by node number loads it again.
//!
//! A node is [`Held`], with its inode in memory:
//! * while it has no name left
//! * while it is open for writing
//! * if it is a directory, for a while after its last use, because every request on an entry names the directory.
//!
//! # Invariants
//! * While the kernel remembers a node without a name, its `InodeRef` is held: so the unlinked file lives, and its number is
//!   not given to another. An unlink holds the inode until [`Nodes::keep_nameless`] has seen it. A thread that makes a
//!   node light looks for its names under the shard's lock. So one of the two sees the other.
//! * A node with a name needs no reference, because its number is not reused while the name exists. If the name is removed past
//!   this table and another inode gets the number, the generations differ.
//! * `deferred_release` drops the references of forgotten nodes, because the last one may free the file's blocks.
//!
//! # Locks
//! The lock of a shard. Only the lock of an inode's attributes is taken under it. No reference is dropped under it.

use crate::protocol::ROOT_ID;
use blockwright_vfs::{Error, ErrorKind, FileKind, Ino, InodeRef, Result, Vfs};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

const SHARDS: usize = 64;
/// The most directories of a shard that are held because they were in use lately.
const RECENT_MAX: usize = 16;
/// Bytes of the volume's budget for each inode that is held for that reason.
const BUDGET_PER_RECENT: u64 = 96 << 10;
/// A table with room for this number of entries is not made smaller.
const ROOM_LEAST: usize = 28;

/// A node whose inode may leave memory.
struct Light {
    lookups: u32,
    generation: u32,
}

/// A node whose inode stays in memory.
struct Held {
    inode: InodeRef,
    lookups: u64,
    /// Open files that can be written through: as long as there are any, the kernel may have
    /// pages that we have not seen.
    writers: u32,
    /// Open files among them that write through the kernel's cache.
    cached_writers: u32,
    /// It is in [`Shard::recent`].
    recent: bool,
}

impl Held {
    fn of(inode: &InodeRef, lookups: u64) -> Self {
        Held {
            inode: inode.clone(),
            lookups,
            writers: 0,
            cached_writers: 0,
            recent: false,
        }
    }

    /// The node without its inode; `None` when the inode must stay in memory.
    fn lightened(&self) -> Option<Light> {
        if self.writers > 0 || self.recent || self.inode.attr().nlink == 0 {
            return None;
        }
        Some(Light {
            lookups: u32::try_from(self.lookups).ok()?,
            generation: self.inode.generation(),
        })
    }
}

#[derive(Default)]
struct Shard {
    light: HashMap<u64, Light>,
    held: HashMap<u64, Held>,
    /// Held directories that were in use lately, oldest first.
    recent: VecDeque<u64>,
    /// Memory of the maps in bytes, as last reported.
    bytes: u64,
}

impl Shard {
    /// Holds a node's inode, whatever it was before; a new node with no lookups.
    fn hold(&mut self, nodeid: u64, inode: &InodeRef) -> &mut Held {
        let Shard { light, held, .. } = self;
        held.entry(nodeid).or_insert_with(|| {
            let lookups = light.remove(&nodeid).map_or(0, |l| u64::from(l.lookups));
            Held::of(inode, lookups)
        })
    }

    /// A directory was in use just now: queues it, and lets go of what has been queued for longest. What it returns is to be
    /// dropped outside the lock.
    #[must_use]
    fn used(&mut self, nodeid: u64, inode: &InodeRef, recent_max: usize) -> Option<InodeRef> {
        let node = self.hold(nodeid, inode);
        if node.recent {
            return None;
        }
        node.recent = true;
        self.recent.push_back(nodeid);
        if self.recent.len() <= recent_max {
            return None;
        }
        let oldest = self.recent.pop_front()?;
        self.held.get_mut(&oldest)?.recent = false;
        self.lighten(oldest)
    }

    /// Lets go of a held node's inode if that may be. What it returns is to be dropped outside the lock.
    #[must_use]
    fn lighten(&mut self, nodeid: u64) -> Option<InodeRef> {
        let light = self.held.get(&nodeid)?.lightened()?;
        self.light.insert(nodeid, light);
        let node = self.held.remove(&nodeid)?;
        shrink(&mut self.held);
        Some(node.inode)
    }

    fn len(&self) -> usize {
        self.light.len() + self.held.len()
    }
}

/// Gives back room that a table which has become small does not need.
fn shrink<T>(table: &mut HashMap<u64, T>) {
    let len = table.len();
    // Its `capacity` leaves out the places of what was removed, which may be most of them.
    let places = table.allocation_size() / (size_of::<(u64, T)>() + 1);
    if places * 7 / 8 > ROOM_LEAST.max(len * 4) {
        table.shrink_to(len * 2);
    }
}

/// The table of nodes.
pub(super) struct Nodes {
    vfs: Arc<Vfs>,
    root: InodeRef,
    shards: Box<[Mutex<Shard>]>,
    recent_max: usize,
}

impl Nodes {
    pub(super) fn new(vfs: &Arc<Vfs>, root: InodeRef) -> Self {
        let granted = vfs.options().cache_bytes / BUDGET_PER_RECENT / SHARDS as u64;
        Nodes {
            vfs: Arc::clone(vfs),
            root,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            recent_max: usize::try_from(granted).map_or(RECENT_MAX, |n| n.min(RECENT_MAX)),
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

    fn shard(&self, nodeid: u64) -> &Mutex<Shard> {
        // The low bits are the varied ones: inode numbers are handed out densely.
        &self.shards[(nodeid % SHARDS as u64) as usize]
    }

    /// Changes a shard, and notes what it takes then.
    fn change<R>(&self, nodeid: u64, change: impl FnOnce(&mut Shard) -> R) -> R {
        let mut shard = self.shard(nodeid).lock();
        let result = change(&mut shard);
        let bytes = (shard.light.allocation_size() + shard.held.allocation_size()) as u64;
        let before = std::mem::replace(&mut shard.bytes, bytes);
        drop(shard);
        if before != bytes {
            self.vfs.note_front_end_table(before, bytes);
        }
        result
    }

    /// The inode behind a node number.
    ///
    /// # Errors
    /// `Stale` when the number is not in use; what loading the inode reports.
    pub(super) fn get(&self, nodeid: u64) -> Result<InodeRef> {
        if nodeid == ROOT_ID {
            return Ok(self.root.clone());
        }
        let known = {
            let shard = self.shard(nodeid).lock();
            if let Some(node) = shard.held.get(&nodeid) {
                return Ok(node.inode.clone());
            }
            shard.light.get(&nodeid).map(|node| node.generation)
        };
        let inode = self.vfs.inode(Ino(self.swap_root(nodeid)))?;
        let stale = match known {
            Some(generation) => inode.generation() != generation,
            // A node the kernel has forgotten comes back through a file handle, but not one without a name, which may
            // not have been released yet.
            None => inode.attr().nlink == 0,
        };
        if stale {
            return Err(Error::new(ErrorKind::Stale, "file handle").ino(inode.ino()));
        }
        if known.is_some() && self.recent_max > 0 && inode.kind() == FileKind::Directory {
            let parted = self.change(nodeid, |shard| {
                // It may have been forgotten meanwhile.
                let light = shard.light.contains_key(&nodeid);
                light.then(|| shard.used(nodeid, &inode, self.recent_max))
            });
            drop(parted);
        }
        Ok(inode)
    }

    /// The kernel is about to learn of this inode. Returns its node number.
    pub(super) fn remember(&self, inode: &InodeRef) -> u64 {
        let nodeid = self.swap_root(inode.ino().0);
        if nodeid == ROOT_ID {
            return nodeid;
        }
        let nameless = inode.attr().nlink == 0;
        let parted = self.change(nodeid, |shard| {
            if nameless || shard.held.contains_key(&nodeid) {
                shard.hold(nodeid, inode).lookups += 1;
                // It may have come by a name.
                return shard.lighten(nodeid);
            }
            let generation = inode.generation();
            let node = shard.light.entry(nodeid).or_insert(Light {
                lookups: 0,
                generation,
            });
            node.generation = generation;
            match node.lookups.checked_add(1) {
                Some(more) => node.lookups = more,
                None => shard.hold(nodeid, inode).lookups += 1,
            }
            None
        });
        drop(parted);
        // Its last name may have gone since the look, and the unlink may have been here before.
        self.keep_nameless(inode);
        nodeid
    }

    /// This inode has lost a name, while the caller held it: if that was the last, and the kernel remembers the inode, it
    /// is held until it is forgotten.
    pub(super) fn keep_nameless(&self, inode: &InodeRef) {
        let nodeid = self.swap_root(inode.ino().0);
        if inode.attr().nlink > 0 {
            return;
        }
        self.change(nodeid, |shard| {
            if shard.light.contains_key(&nodeid) {
                shard.hold(nodeid, inode);
            }
        });
    }

    /// The kernel gives back `lookups` lookups. Returns the inode if these were the last and it was held: to be dropped
    /// outside all locks.
    pub(super) fn forget(&self, nodeid: u64, lookups: u64) -> Option<InodeRef> {
        self.change(nodeid, |shard| {
            if let Some(node) = shard.held.get_mut(&nodeid) {
                if node.lookups > lookups {
                    node.lookups -= lookups;
                    return None;
                }
                if node.recent {
                    shard.recent.retain(|recent| *recent != nodeid);
                }
                let node = shard.held.remove(&nodeid)?;
                shrink(&mut shard.held);
                return Some(node.inode);
            }
            let node = shard.light.get_mut(&nodeid)?;
            match u32::try_from(lookups) {
                Ok(fewer) if fewer < node.lookups => node.lookups -= fewer,
                _ => {
                    shard.light.remove(&nodeid);
                    shrink(&mut shard.light);
                }
            }
            None
        })
    }

    /// The file was opened for writing. `cached`: through the kernel's cache.
    pub(super) fn add_writer(&self, nodeid: u64, inode: &InodeRef, cached: bool) {
        self.change(nodeid, |shard| {
            // The kernel never closes a file that it does not remember.
            if shard.held.contains_key(&nodeid) || shard.light.contains_key(&nodeid) {
                let node = shard.hold(nodeid, inode);
                node.writers = node.writers.saturating_add(1);
                node.cached_writers = node.cached_writers.saturating_add(cached.into());
            }
        });
    }

    /// A file that was open for writing is closed. `cached`: as it was opened.
    pub(super) fn remove_writer(&self, nodeid: u64, cached: bool) {
        let parted = self.change(nodeid, |shard| {
            let node = shard.held.get_mut(&nodeid)?;
            // RELEASE and FORGET may overtake each other; the new node then starts from zero.
            node.writers = node.writers.saturating_sub(1);
            node.cached_writers = node.cached_writers.saturating_sub(cached.into());
            shard.lighten(nodeid)
        });
        drop(parted);
    }

    /// Whether the kernel may have dirty pages of the file.
    pub(super) fn has_writers(&self, nodeid: u64) -> bool {
        self.is_held(nodeid, |node| node.writers > 0)
    }

    /// Whether the file is open for writing through the kernel's cache.
    pub(super) fn has_cached_writers(&self, nodeid: u64) -> bool {
        self.is_held(nodeid, |node| node.cached_writers > 0)
    }

    fn is_held(&self, nodeid: u64, test: impl FnOnce(&Held) -> bool) -> bool {
        self.shard(nodeid)
            .lock()
            .held
            .get(&nodeid)
            .is_some_and(test)
    }

    /// Number of inodes that the kernel remembers.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many of them are held in memory, and what the table takes.
    pub(super) fn held(&self) -> (usize, u64) {
        self.shards.iter().fold((0, 0), |(held, bytes), shard| {
            let shard = shard.lock();
            (held + shard.held.len(), bytes + shard.bytes)
        })
    }

    /// Forgets everything: the connection has ended.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            self.vfs.note_front_end_table(nodes.bytes, 0);
            drop(nodes);
        }
    }
}
