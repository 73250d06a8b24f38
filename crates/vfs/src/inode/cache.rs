//! One [`Inode`] per number: the cache that makes inode locks mean something.
//!
//! The cache knows the volume only as its [`Home`], which loads and evicts inodes.
//!
//! An inode in use is pinned by [`Pinned`] references. When the last one goes, an inode without names is
//! evicted at once; others are idle: kept, least recently used first out, as long as the volume's budget and
//! a bound on their number let them. A thread that loads or makes one evicts surplus idle ones.
//!
//! # Invariants
//! * A number has at most one live `Inode`. Concurrent loads of a number wait for the first.
//! * [`Attributes::evict`](crate::engine::Attributes::evict) runs outside the shard's lock, with the slot
//!   marked: a thread that wants the number meanwhile waits, then loads afresh.
//! * An inode with dirty pages is not dropped from the cache before they are written, unless it has no
//!   name left; lazy times are written before it is, and it stays if they cannot be.
//!
//! # Locks
//! One lock per shard, rank `InodeMap`; nothing is called under it.

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::locks::{Condvar, Mutex, Rank};
use crate::types::Ino;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

pub(crate) const SHARDS: usize = 64;
/// So many inodes of one shard are evicted at one look.
const EVICTED_TOGETHER: usize = 64;

/// The volume that a cache of inodes belongs to. All calls are made outside the locks of the cache.
pub(crate) trait Home: Sized {
    /// The cache itself.
    fn inodes(&self) -> &InodeCache<Self>;

    /// Makes room in memory for an inode and has the engine load it.
    fn load(self: &Arc<Self>, ino: Ino) -> Result<Arc<Inode>>;

    /// Gives the engine the times of an idle inode that are in memory only. `false` when that failed: the inode has to stay.
    fn write_times_of_idle(&self, inode: &Arc<Inode>) -> bool;

    /// Has the engine forget an inode that leaves memory.
    fn evict(&self, inode: &Arc<Inode>);
}

/// A counted reference that keeps an inode in the cache. Cheap to clone.
pub(crate) struct Pinned<H: Home>(Arc<Pin<H>>);

/// The state that the references share; its drop may evict the inode.
struct Pin<H: Home> {
    inode: Arc<Inode>,
    home: Arc<H>,
}

impl<H: Home> Pinned<H> {
    pub(crate) fn arc(&self) -> &Arc<Inode> {
        &self.0.inode
    }
}

impl<H: Home> Clone for Pinned<H> {
    fn clone(&self) -> Self {
        Pinned(Arc::clone(&self.0))
    }
}

impl<H: Home> Drop for Pin<H> {
    fn drop(&mut self) {
        self.home.inodes().unpinned(&self.home, &self.inode);
    }
}

enum Slot<H: Home> {
    /// Being loaded or evicted by another thread; wait.
    Busy,
    Live {
        inode: Arc<Inode>,
        pin: Weak<Pin<H>>,
        /// Set while unpinned: the stamp of its entry in the shard's queue.
        idle: Option<u64>,
    },
}

impl<H: Home> Slot<H> {
    /// Without a pin, and not queued as idle either.
    fn live(inode: Arc<Inode>) -> Self {
        Slot::Live {
            inode,
            pin: Weak::new(),
            idle: None,
        }
    }
}

struct Shard<H: Home> {
    slots: HashMap<Ino, Slot<H>>,
    /// Unpinned inodes, oldest first. Entries whose stamp no longer matches are void.
    idle: VecDeque<(Ino, u64)>,
    idle_count: usize,
    stamp: u64,
}

impl<H: Home> Shard<H> {
    fn new() -> Self {
        Shard {
            slots: HashMap::new(),
            idle: VecDeque::new(),
            idle_count: 0,
            stamp: 0,
        }
    }

    fn mark_idle(&mut self, ino: Ino) {
        self.stamp += 1;
        let stamp = self.stamp;
        if let Some(Slot::Live { idle, .. }) = self.slots.get_mut(&ino) {
            if idle.replace(stamp).is_none() {
                self.idle_count += 1;
            }
            self.idle.push_back((ino, stamp));
        }
        if self.idle.len() > 2 * self.idle_count + 64 {
            let slots = &self.slots;
            self.idle.retain(|(ino, stamp)| {
                matches!(slots.get(ino), Some(Slot::Live { idle: Some(s), .. }) if s == stamp)
            });
        }
    }

    /// Takes the oldest unpinned inode out of the queue; it stays in the map.
    fn pop_idle(&mut self) -> Option<(Ino, Arc<Inode>)> {
        while let Some((ino, stamp)) = self.idle.pop_front() {
            if let Some(Slot::Live { inode, idle, .. }) = self.slots.get_mut(&ino)
                && *idle == Some(stamp)
            {
                *idle = None;
                self.idle_count -= 1;
                return Some((ino, Arc::clone(inode)));
            }
        }
        None
    }
}

struct ShardCell<H: Home> {
    shard: Mutex<Shard<H>>,
    /// Signalled when a busy slot changes its state.
    slot_changed: Condvar,
}

/// The cache of inodes of one mounted volume.
pub(crate) struct InodeCache<H: Home> {
    shards: Vec<ShardCell<H>>,
    idle_max_per_shard: AtomicUsize,
    /// How many slots all shards have, to be read without their locks.
    count: AtomicUsize,
    /// The shard that gives up inodes next.
    hand: AtomicUsize,
    /// Threads that evict a nameless inode.
    evicting: AtomicUsize,
    /// Idle inodes that were evicted.
    pub(crate) evicted: AtomicU64,
}

impl<H: Home> InodeCache<H> {
    pub(crate) fn new(idle_max: usize) -> Self {
        InodeCache {
            shards: (0..SHARDS)
                .map(|_| ShardCell {
                    shard: Mutex::new(Rank::InodeMap, Shard::new()),
                    slot_changed: Condvar::new(),
                })
                .collect(),
            idle_max_per_shard: AtomicUsize::new(idle_max.div_ceil(SHARDS)),
            count: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            evicting: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    fn cell(&self, ino: Ino) -> &ShardCell<H> {
        // Neighbouring numbers (files made together) spread over the shards.
        &self.shards[(ino.0 as usize) % SHARDS]
    }

    /// The inode of this number, loaded if need be.
    pub(crate) fn get(&self, home: &Arc<H>, ino: Ino) -> Result<Pinned<H>> {
        if let Some(found) = self.claim_or_find(home, ino) {
            return Ok(found);
        }
        // The slot is ours and busy: load without the lock.
        match home.load(ino) {
            Ok(inode) if inode.ino() == ino => Ok(self.publish(home, inode)),
            Ok(inode) => {
                self.remove(ino);
                Err(Error::corrupt(
                    "load inode",
                    format!("asked for {ino}, the engine gave {}", inode.ino()),
                ))
            }
            Err(e) => {
                self.remove(ino);
                Err(e)
            }
        }
    }

    /// The inode if it is in the cache; does not load it. Waits for a busy slot.
    pub(crate) fn find(&self, home: &Arc<H>, ino: Ino) -> Option<Pinned<H>> {
        let cell = self.cell(ino);
        let mut shard = cell.shard.lock();
        loop {
            match shard.slots.get(&ino) {
                None => return None,
                Some(Slot::Busy) => cell.slot_changed.wait(&mut shard),
                Some(Slot::Live { .. }) => return Some(Self::pin(home, &mut shard, ino)),
            }
        }
    }

    /// Whether the inode is in the cache, or on its way in or out.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.cell(ino).shard.lock().slots.contains_key(&ino)
    }

    /// Either a reference, or `None` with the slot marked busy for the caller to settle.
    fn claim_or_find(&self, home: &Arc<H>, ino: Ino) -> Option<Pinned<H>> {
        let cell = self.cell(ino);
        let mut shard = cell.shard.lock();
        loop {
            match shard.slots.get(&ino) {
                None => {
                    shard.slots.insert(ino, Slot::Busy);
                    self.count.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                Some(Slot::Busy) => cell.slot_changed.wait(&mut shard),
                Some(Slot::Live { .. }) => return Some(Self::pin(home, &mut shard, ino)),
            }
        }
    }

    /// Pins the live inode of this number.
    fn pin(home: &Arc<H>, shard: &mut Shard<H>, ino: Ino) -> Pinned<H> {
        let Some(Slot::Live { inode, pin, idle }) = shard.slots.get_mut(&ino) else {
            unreachable!("only called for a live slot, under the shard's lock");
        };
        if let Some(pin) = pin.upgrade() {
            return Pinned(pin);
        }
        let fresh = Arc::new(Pin {
            inode: Arc::clone(inode),
            home: Arc::clone(home),
        });
        *pin = Arc::downgrade(&fresh);
        if idle.take().is_some() {
            shard.idle_count -= 1;
        }
        Pinned(fresh)
    }

    /// Puts an inode the engine just made into the cache.
    pub(crate) fn insert_new(&self, home: &Arc<H>, inode: Arc<Inode>) -> Pinned<H> {
        let ino = inode.ino();
        let cell = self.cell(ino);
        let mut shard = cell.shard.lock();
        // The number's former owner may still be on its way out, or a caller with a stale number
        // may be loading it.
        while matches!(shard.slots.get(&ino), Some(Slot::Busy)) {
            cell.slot_changed.wait(&mut shard);
        }
        if let Some(Slot::Live { idle: Some(_), .. }) = shard.slots.get(&ino) {
            shard.idle_count -= 1;
        }
        if shard.slots.insert(ino, Slot::live(inode)).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        Self::pin(home, &mut shard, ino)
    }

    fn publish(&self, home: &Arc<H>, inode: Arc<Inode>) -> Pinned<H> {
        let ino = inode.ino();
        let cell = self.cell(ino);
        let mut shard = cell.shard.lock();
        shard.slots.insert(ino, Slot::live(inode));
        let found = Self::pin(home, &mut shard, ino);
        drop(shard);
        cell.slot_changed.notify_all();
        found
    }

    fn remove(&self, ino: Ino) {
        let cell = self.cell(ino);
        if cell.shard.lock().slots.remove(&ino).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        cell.slot_changed.notify_all();
    }

    /// The last reference to a pin went away.
    fn unpinned(&self, home: &Arc<H>, inode: &Arc<Inode>) {
        let ino = inode.ino();
        let nameless = inode.attr().nlink == 0;
        let cell = self.cell(ino);
        let mut shard = cell.shard.lock();
        match shard.slots.get(&ino) {
            // Pinned again meanwhile, evicted already, or another inode has the number now.
            Some(Slot::Live {
                inode: live, pin, ..
            }) if Arc::ptr_eq(live, inode) && pin.strong_count() == 0 => {}
            _ => return,
        }
        if nameless {
            shard.slots.insert(ino, Slot::Busy);
            self.evicting.fetch_add(1, Ordering::SeqCst);
            drop(shard);
            home.evict(inode);
            self.remove(ino);
            self.evicting.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        shard.mark_idle(ino);
        let over = shard.idle_count > self.idle_max_per_shard.load(Ordering::Relaxed);
        drop(shard);
        if over {
            self.shrink_shard(home, cell, 2);
        }
    }

    /// Drops up to `count` of a shard's oldest idle inodes that have nothing to write.
    fn shrink_shard(&self, home: &Arc<H>, cell: &ShardCell<H>, count: usize) -> usize {
        let mut dropped = 0;
        // Dirty ones go to the back; looking at a few more than asked for bounds the walk.
        for _ in 0..count + 8 {
            if dropped == count {
                break;
            }
            let mut shard = cell.shard.lock();
            let Some((ino, inode)) = shard.pop_idle() else {
                break;
            };
            if inode.pages.is_dirty() {
                // The flusher writes them when they are old or too much is dirty, as it would in any case.
                shard.mark_idle(ino);
                continue;
            }
            shard.slots.insert(ino, Slot::Busy);
            drop(shard);
            if !home.write_times_of_idle(&inode) {
                self.put_back_idle(inode);
                continue;
            }
            home.evict(&inode);
            self.remove(ino);
            self.evicted.fetch_add(1, Ordering::Relaxed);
            dropped += 1;
        }
        dropped
    }

    /// Whether a thread evicts a nameless inode, whose blocks become free by that.
    pub(crate) fn is_evicting(&self) -> bool {
        self.evicting.load(Ordering::SeqCst) > 0
    }

    /// Puts an inode back that was about to be evicted.
    fn put_back_idle(&self, inode: Arc<Inode>) {
        let ino = inode.ino();
        let cell = self.cell(ino);
        let mut shard = cell.shard.lock();
        shard.slots.insert(ino, Slot::live(inode));
        shard.mark_idle(ino);
        drop(shard);
        cell.slot_changed.notify_all();
    }

    /// Evicts idle inodes until no more than `most` are cached, or this many shards were looked at: all of them have their turn.
    pub(crate) fn shrink_to(&self, home: &Arc<H>, most: usize, shards: usize) {
        for _ in 0..shards {
            let excess = self.len().saturating_sub(most);
            if excess == 0 {
                return;
            }
            let turn = self.hand.fetch_add(1, Ordering::Relaxed);
            // One more than was added, so that an excess melts away; not many, as a caller waits.
            let count = (excess / SHARDS + 2).min(EVICTED_TOGETHER);
            self.shrink_shard(home, &self.shards[turn % SHARDS], count);
        }
    }

    /// Evicts every idle inode, dirty or not (unmount: everything was written before). How many
    /// inodes are still pinned.
    pub(crate) fn evict_all(&self, home: &Arc<H>) -> usize {
        let mut pinned = 0;
        for cell in &self.shards {
            loop {
                let mut shard = cell.shard.lock();
                let Some((ino, inode)) = shard.pop_idle() else {
                    pinned += shard.slots.len();
                    break;
                };
                shard.slots.insert(ino, Slot::Busy);
                drop(shard);
                home.evict(&inode);
                self.remove(ino);
            }
        }
        pinned
    }

    /// Drops clean idle inodes (and with them their pages).
    pub(crate) fn shrink_all(&self, home: &Arc<H>) -> usize {
        self.shards
            .iter()
            .map(|cell| {
                let idle = cell.shard.lock().idle_count;
                self.shrink_shard(home, cell, idle)
            })
            .sum()
    }

    /// How many inodes are cached.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All cached inodes that are live now.
    pub(crate) fn live(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for cell in &self.shards {
            let shard = cell.shard.lock();
            all.extend(shard.slots.values().filter_map(|slot| match slot {
                Slot::Live { inode, .. } => Some(Arc::clone(inode)),
                Slot::Busy => None,
            }));
        }
        all
    }

    /// Changes the bound on idle inodes.
    pub(crate) fn set_idle_max(&self, idle_max: usize) {
        self.idle_max_per_shard
            .store(idle_max.div_ceil(SHARDS), Ordering::Relaxed);
    }
}
