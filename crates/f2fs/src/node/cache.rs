//! A cache of 4 KiB metadata blocks by key: nodes by number, directory blocks by inode and position.
//!
//! Contents are counted and copied on write: a reader gets a snapshot and no lock, and a checkpoint that
//! writes blocks out holds the very bytes it began with.
//!
//! Not responsible for: reading and verifying (the inserting code), deciding where a block goes.
//!
//! # Invariants
//! * A dirty block is never dropped. Clean ones are, once the budget is used up.
//! * Writers of one key are serialised by the lock of the inode that owns it; the cache's own locks
//!   only keep the tables whole.
//! * With owners, `owned` has exactly the dirty blocks that are filed under one: an fsync finds a file's without a search.
//!
//! # Locks
//! One per shard, rank `Buffer`; under it only the closure of [`BlockCache::change`] and `owned`, a leaf.

use blockwright_device::AlignedBuf;
use blockwright_vfs::locks::{Mutex, Rank};
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 32;

/// The bytes of one cached block.
pub type Bytes = Arc<AlignedBuf>;

struct Slot {
    bytes: Bytes,
    dirty: bool,
    /// Dirty, and filed under its owner.
    filed: bool,
    /// Looked at since the shard was last swept.
    used: bool,
}

/// In debug builds the same one in every run: a sweep drops the same blocks then, and a run of the crash explorer can be repeated. Otherwise
/// a random one, so that no image can choose keys that meet.
#[cfg(debug_assertions)]
type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
#[cfg(not(debug_assertions))]
type Hashing = hashbrown::DefaultHashBuilder;

struct Shard<K> {
    slots: HashMap<K, Slot, Hashing>,
    /// How many there may be before they are swept. Dirty ones stay: were there as many as the budget has, every
    /// insertion would look at all of them in vain.
    sweep_at: usize,
}

/// Tells a block's owner from its key and its bytes; `None` when its dirty blocks are found without.
pub type OwnerOf<K> = fn(K, &[u8]) -> Option<u32>;

/// Dirty blocks of an owner, and how to tell it.
struct Owned<K> {
    of: OwnerOf<K>,
    dirty: Mutex<HashMap<u32, BTreeSet<K>>>,
}

/// See the module's head.
pub struct BlockCache<K> {
    shards: Vec<Mutex<Shard<K>>>,
    owned: Option<Owned<K>>,
    hasher: Hashing,
    clean_per_shard_max: usize,
    dirty: AtomicUsize,
    /// Blocks in all shards, to be read without their locks.
    cached: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl<K: Copy + Eq + Hash + Ord> BlockCache<K> {
    /// A cache of about this many bytes of clean blocks.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let blocks = (bytes_max >> 12) as usize;
        BlockCache {
            shards: (0..SHARDS)
                .map(|_| {
                    Mutex::new(
                        Rank::Buffer,
                        Shard {
                            slots: HashMap::default(),
                            sweep_at: (blocks / SHARDS).max(8),
                        },
                    )
                })
                .collect(),
            owned: None,
            hasher: Hashing::default(),
            clean_per_shard_max: (blocks / SHARDS).max(8),
            dirty: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// As [`BlockCache::new`], for blocks that have an owner, which never changes while they are cached.
    #[must_use]
    pub fn with_owners(bytes_max: u64, of: OwnerOf<K>) -> Self {
        BlockCache {
            owned: Some(Owned {
                of,
                dirty: Mutex::new(Rank::Leaf, HashMap::new()),
            }),
            ..Self::new(bytes_max)
        }
    }

    /// A block is dirty now; whether it was filed under an owner.
    fn note_dirty(&self, key: K, bytes: &[u8]) -> bool {
        self.dirty.fetch_add(1, Ordering::Relaxed);
        let Some(owned) = &self.owned else {
            return false;
        };
        let Some(owner) = (owned.of)(key, bytes) else {
            return false;
        };
        owned.dirty.lock().entry(owner).or_default().insert(key);
        true
    }

    /// A block is not dirty any more.
    fn note_clean(&self, key: K, bytes: &[u8], filed: bool) {
        self.dirty.fetch_sub(1, Ordering::Relaxed);
        let Some(owned) = self.owned.as_ref().filter(|_| filed) else {
            return;
        };
        let Some(owner) = (owned.of)(key, bytes) else {
            return;
        };
        let mut dirty = owned.dirty.lock();
        if let Some(keys) = dirty.get_mut(&owner) {
            keys.remove(&key);
            if keys.is_empty() {
                dirty.remove(&owner);
            }
        }
    }

    /// The dirty blocks that are filed under an owner, in ascending order of their keys.
    #[must_use]
    pub fn dirty_of(&self, owner: u32) -> Vec<(K, Bytes)> {
        let Some(owned) = &self.owned else {
            return Vec::new();
        };
        let keys: Vec<K> = match owned.dirty.lock().get(&owner) {
            Some(keys) => keys.iter().copied().collect(),
            None => return Vec::new(),
        };
        keys.into_iter()
            .filter_map(|key| {
                let shard = self.shard(&key).lock();
                let slot = shard.slots.get(&key).filter(|s| s.dirty)?;
                Some((key, Arc::clone(&slot.bytes)))
            })
            .collect()
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K>> {
        let at = (self.hasher.hash_one(key) >> 40) as usize % SHARDS;
        &self.shards[at]
    }

    /// The block if it is cached.
    pub fn find(&self, key: K) -> Option<Bytes> {
        let mut shard = self.shard(&key).lock();
        let found = shard.slots.get_mut(&key).map(|slot| {
            slot.used = true;
            Arc::clone(&slot.bytes)
        });
        drop(shard);
        let counter = if found.is_some() {
            &self.hits
        } else {
            &self.misses
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Whether a block is in the cache. That does not count as a use.
    #[must_use]
    pub fn is_cached(&self, key: K) -> bool {
        self.shard(&key).lock().slots.contains_key(&key)
    }

    /// Puts a block that was read into the cache, unless another thread was faster; returns the bytes that count.
    pub fn insert_clean(&self, key: K, bytes: AlignedBuf) -> Bytes {
        let mut shard = self.shard(&key).lock();
        if let Some(slot) = shard.slots.get_mut(&key) {
            slot.used = true;
            return Arc::clone(&slot.bytes);
        }
        self.add_clean(&mut shard, key, bytes)
    }

    /// As [`BlockCache::insert_clean`], if the block is not there and `fits` says so. Nothing comes or goes between that and the
    /// insertion.
    pub fn insert_clean_if(&self, key: K, bytes: AlignedBuf, fits: impl FnOnce() -> bool) {
        let mut shard = self.shard(&key).lock();
        if !shard.slots.contains_key(&key) && fits() {
            self.add_clean(&mut shard, key, bytes);
        }
    }

    /// A block is about to be added to a shard.
    fn make_room(&self, shard: &mut Shard<K>) {
        if shard.slots.len() >= shard.sweep_at {
            let max = self.clean_per_shard_max;
            let before = shard.slots.len();
            Self::sweep(shard, max);
            self.cached
                .fetch_sub(before - shard.slots.len(), Ordering::Relaxed);
            shard.sweep_at = max.max(shard.slots.len() + max / 4);
        }
    }

    fn add_clean(&self, shard: &mut Shard<K>, key: K, bytes: AlignedBuf) -> Bytes {
        self.make_room(shard);
        let bytes = Arc::new(bytes);
        let slot = Slot {
            bytes: Arc::clone(&bytes),
            dirty: false,
            filed: false,
            used: true,
        };
        shard.slots.insert(key, slot);
        self.cached.fetch_add(1, Ordering::Relaxed);
        bytes
    }

    /// Drops clean blocks that were not used since the last sweep; all clean ones when that is not
    /// enough (everything is in use again and again: any choice is as good as another).
    fn sweep(shard: &mut Shard<K>, max: usize) {
        shard
            .slots
            .retain(|_, slot| slot.dirty || std::mem::take(&mut slot.used));
        if shard.slots.len() >= max {
            let mut keep = max / 2;
            shard.slots.retain(|_, slot| {
                slot.dirty || {
                    keep = keep.saturating_sub(1);
                    keep > 0
                }
            });
        }
    }

    /// Puts a new block into the cache, dirty.
    pub fn insert_dirty(&self, key: K, bytes: AlignedBuf) {
        let mut shard = self.shard(&key).lock();
        // Creating files reads nothing, and blocks that are dirty now are clean after the next checkpoint.
        self.make_room(&mut shard);
        match shard.slots.remove(&key) {
            Some(old) if old.dirty => self.note_clean(key, &old.bytes, old.filed),
            Some(_) => {}
            None => {
                self.cached.fetch_add(1, Ordering::Relaxed);
            }
        }
        let slot = Slot {
            filed: self.note_dirty(key, &bytes),
            bytes: Arc::new(bytes),
            dirty: true,
            used: true,
        };
        shard.slots.insert(key, slot);
    }

    /// Changes a cached block and marks it dirty. `None`, and nothing done, when it is not cached: the
    /// caller reads it and comes again.
    pub fn change<R>(&self, key: K, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let mut shard = self.shard(&key).lock();
        let slot = shard.slots.get_mut(&key)?;
        let bytes: &mut AlignedBuf = Arc::make_mut(&mut slot.bytes);
        let result = change(bytes);
        slot.used = true;
        if !std::mem::replace(&mut slot.dirty, true) {
            slot.filed = self.note_dirty(key, &slot.bytes);
        }
        Some(result)
    }

    /// Forgets a block, dirty or not: it is no longer part of the volume.
    pub fn remove(&self, key: K) {
        let mut shard = self.shard(&key).lock();
        if let Some(old) = shard.slots.remove(&key) {
            self.cached.fetch_sub(1, Ordering::Relaxed);
            if old.dirty {
                self.note_clean(key, &old.bytes, old.filed);
            }
        }
    }

    /// Forgets blocks, dirty or not: those with a key that `is_meant`. `keys` are all that can be, `count` of them. With more keys than blocks in memory, these are
    /// looked at instead: what a damaged size claims costs nothing.
    pub fn remove_all(
        &self,
        keys: impl Iterator<Item = K>,
        count: u64,
        is_meant: impl Fn(&K) -> bool,
    ) {
        if count <= self.cached.load(Ordering::Relaxed) as u64 {
            return keys.for_each(|key| self.remove(key));
        }
        for shard in &self.shards {
            let meant: Vec<K> = {
                let shard = shard.lock();
                let keys = shard.slots.keys().copied();
                keys.filter(&is_meant).collect()
            };
            meant.into_iter().for_each(|key| self.remove(key));
        }
    }

    /// How many bytes of blocks are in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.cached.load(Ordering::Relaxed) as u64) << 12
    }

    /// All dirty blocks, in ascending order of their keys.
    #[must_use]
    pub fn dirty(&self) -> Vec<(K, Bytes)> {
        let mut all = Vec::with_capacity(self.dirty_count());
        for shard in &self.shards {
            let shard = shard.lock();
            let dirty = shard.slots.iter().filter(|(_, s)| s.dirty);
            all.extend(dirty.map(|(k, s)| (*k, Arc::clone(&s.bytes))));
        }
        all.sort_unstable_by_key(|(k, _)| *k);
        all
    }

    /// The keys of all dirty blocks, in ascending order.
    #[must_use]
    pub fn dirty_keys(&self) -> Vec<K> {
        let mut all = Vec::with_capacity(self.dirty_count());
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.slots.iter().filter(|(_, s)| s.dirty).map(|(k, _)| *k));
        }
        all.sort_unstable();
        all
    }

    /// Gives a dirty block what only its stored form needs, and hands out the bytes to be written. They are shared, not copied; a
    /// change of the block before [`BlockCache::mark_written`] copies them. `None` for a block that is not dirty.
    ///
    /// # Errors
    /// That of `seal`.
    pub fn seal<E>(
        &self,
        key: K,
        seal: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Bytes>, E> {
        let mut shard = self.shard(&key).lock();
        let Some(slot) = shard.slots.get_mut(&key).filter(|s| s.dirty) else {
            return Ok(None);
        };
        let bytes: &mut AlignedBuf = Arc::make_mut(&mut slot.bytes);
        seal(bytes)?;
        Ok(Some(Arc::clone(&slot.bytes)))
    }

    /// Whether a block is dirty.
    #[must_use]
    pub fn is_dirty(&self, key: K) -> bool {
        let shard = self.shard(&key).lock();
        shard.slots.get(&key).is_some_and(|s| s.dirty)
    }

    /// The block was written as it was then: it is clean, unless it was changed meanwhile.
    pub fn mark_written(&self, key: K, then: &Bytes) {
        let mut shard = self.shard(&key).lock();
        if let Some(slot) = shard.slots.get_mut(&key)
            && Arc::ptr_eq(&slot.bytes, then)
            && std::mem::replace(&mut slot.dirty, false)
        {
            self.note_clean(key, &slot.bytes, slot.filed);
        }
    }

    /// How many blocks are dirty.
    #[must_use]
    pub fn dirty_count(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Hits and misses so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (
            self.hits.load(Ordering::Relaxed),
            self.misses.load(Ordering::Relaxed),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(v: u8) -> AlignedBuf {
        AlignedBuf::copy_of(&[v; 4096])
    }

    #[test]
    fn all_blocks_of_an_owner_go_wherever_they_are() {
        for count in [4, 1 << 40] {
            let cache = BlockCache::<(u32, u64)>::new(1 << 20);
            for at in [0, 3, 1 << 20, 1 << 39] {
                cache.insert_dirty((1, at), block(1));
                cache.insert_clean((2, at), block(2));
            }
            cache.remove_all((0..count).map(|at| (1, at)), count, |key| key.0 == 1);
            let left = |at| cache.is_cached((1, at));
            assert_eq!([0, 3].map(left), [false; 2]);
            assert_eq!([1 << 20, 1 << 39].map(left), [count == 4; 2]);
            assert!(
                [0, 3, 1 << 20, 1 << 39]
                    .iter()
                    .all(|at| cache.is_cached((2, *at)))
            );
            assert_eq!(cache.dirty_count(), if count == 4 { 2 } else { 0 });
        }
    }

    #[test]
    fn snapshots_do_not_change() {
        let cache = BlockCache::<u32>::new(1 << 20);
        assert!(cache.find(7).is_none());
        let before = cache.insert_clean(7, block(1));
        assert_eq!(cache.change(7, |b| b[0] = 2), Some(()));
        assert_eq!(before[0], 1);
        assert_eq!(cache.find(7).map(|b| b[0]), Some(2));
        assert_eq!(cache.dirty().len(), 1);
        for (key, then) in cache.dirty() {
            cache.mark_written(key, &then);
        }
        assert_eq!(cache.dirty_count(), 0);
        assert_eq!(cache.change(8, |_| ()), None);
    }

    #[test]
    fn what_is_written_is_shared_until_it_is_changed() {
        let cache = BlockCache::<u32>::with_owners(1 << 20, |_, b| Some(u32::from(b[9])));
        cache.insert_dirty(5, block(1));
        cache.insert_dirty(2, block(1));
        assert_eq!(cache.dirty_keys(), [2, 5]);
        let seal = |b: &mut [u8]| {
            b[0] = 7;
            Ok::<(), ()>(())
        };
        let written = cache.seal(2, seal).unwrap().unwrap();
        let cached = cache.find(2).unwrap();
        assert_eq!(written[0], 7);
        assert!(Arc::ptr_eq(&written, &cached), "nothing was copied");
        drop(cached);
        // It is dirty until it is on the device, or it could be dropped, and read from where it is not yet.
        assert_eq!(cache.dirty_keys(), [2, 5]);
        cache.mark_written(2, &written);
        assert_eq!(cache.dirty_keys(), [5]);
        let then = cache.seal(5, seal).unwrap().unwrap();
        cache.change(5, |b| b[0] = 8);
        cache.mark_written(5, &then);
        assert_eq!((then[0], cache.find(5).unwrap()[0]), (7, 8));
        assert_eq!(cache.dirty_keys(), [5]);
        // Nothing to write, and what could not be sealed.
        assert!(cache.seal(9, seal).unwrap().is_none());
        assert_eq!(cache.seal(5, |_| Err("bad")).unwrap_err(), "bad");
    }

    #[test]
    fn owners_know_their_dirty_blocks() {
        let cache = BlockCache::<u32>::with_owners(1 << 20, |_, b| Some(u32::from(b[9])));
        cache.insert_clean(1, block(7));
        assert!(cache.dirty_of(7).is_empty());
        cache.change(1, |b| b[0] = 1);
        cache.insert_dirty(2, block(7));
        cache.insert_dirty(3, block(8));
        let keys = |owner| -> Vec<u32> { cache.dirty_of(owner).iter().map(|(k, _)| *k).collect() };
        assert_eq!((keys(7), keys(8)), (vec![1, 2], vec![3]));
        // A block that is changed while it is being written stays dirty.
        let written = cache.dirty_of(7);
        cache.change(2, |b| b[0] = 1);
        for (key, bytes) in &written {
            cache.mark_written(*key, bytes);
        }
        assert_eq!(keys(7), [2]);
        // A number's next owner.
        cache.insert_dirty(2, block(8));
        cache.remove(3);
        assert_eq!((keys(7), keys(8)), (vec![], vec![2]));
        cache.mark_written(2, &cache.dirty()[0].1);
        assert_eq!((keys(8).len(), cache.dirty_count()), (0, 0));
    }

    /// A caller that knows a block's key needs no list: it is dirty and written like any other, and takes the place of one that is listed.
    #[test]
    fn blocks_that_are_found_without_are_not_filed() {
        let cache =
            BlockCache::<u32>::with_owners(1 << 20, |k, b| (k != b[9].into()).then(|| b[9].into()));
        cache.insert_clean(7, block(7));
        cache.change(7, |b| b[0] = 1);
        cache.insert_dirty(1, block(7));
        cache.insert_dirty(8, block(8));
        let keys = |owner| -> Vec<u32> { cache.dirty_of(owner).iter().map(|(k, _)| *k).collect() };
        assert_eq!((keys(7), keys(8)), (vec![1], vec![]));
        assert_eq!(cache.dirty_keys(), [1, 7, 8]);
        // Its number's next owner, and the one after that.
        cache.insert_dirty(8, block(7));
        assert_eq!((keys(7), keys(8)), (vec![1, 8], vec![]));
        cache.insert_dirty(8, block(8));
        assert_eq!((keys(7), keys(8)), (vec![1], vec![]));
        for (key, bytes) in cache.dirty() {
            cache.mark_written(key, &bytes);
        }
        assert_eq!((cache.dirty_count(), keys(7).len()), (0, 0));
        assert!(cache.owned.is_some_and(|o| o.dirty.lock().is_empty()));
    }

    #[test]
    fn dirty_blocks_survive_pressure() {
        let cache = BlockCache::<u32>::new(1 << 20);
        for k in 0..10 {
            cache.insert_dirty(k, block(k as u8));
        }
        for k in 10..2000 {
            cache.insert_clean(k, block(0));
        }
        for k in 0..10 {
            assert_eq!(cache.find(k).map(|b| b[5]), Some(k as u8));
        }
        let left = (10..2000).filter(|k| cache.find(*k).is_some()).count();
        assert!(left <= 32 * 8 + 10, "{left} clean blocks are left");
        cache.remove(3);
        assert_eq!(cache.dirty_count(), 9);
    }

    /// Blocks that are only made and written leave the cache as blocks that are read do.
    #[test]
    fn written_blocks_are_no_more_than_the_budget() {
        let cache = BlockCache::<u32>::new(1 << 20);
        for k in 0..2000 {
            cache.insert_dirty(k, block(1));
            for (k, bytes) in cache.dirty() {
                cache.mark_written(k, &bytes);
            }
        }
        let left = (0..2000).filter(|k| cache.find(*k).is_some()).count();
        assert!(left <= 32 * 8, "{left} clean blocks are left");
        assert_eq!(cache.memory_bytes(), left as u64 * 4096);
    }
}
