//! The checkpoint map: block → newest committed copy that is not home yet.
//!
//! Three users: the metadata cache reads through it; a commit puts its blocks in and takes revoked
//! ones out; the checkpointer writes copies home.
//!
//! # Crash order
//! A copy leaves the map by the checkpointer only after its write home completed. The log tail
//! moves past a transaction only when none of its copies is in the map *and* a flush completed
//! after that. A revoked block leaves the map only when no write home of it is under way, because
//! the block's next user writes data there without asking the journal.
//!
//! # Locks
//! One lock, a leaf.

use super::BufferData;
use super::Tid;
use blockwright_ondisk::ext4::BlockNo;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Entry {
    tid: Tid,
    data: BufferData,
    /// A write home of this block (of this or an older copy) is under way.
    writing: bool,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<BlockNo, Entry>,
    /// Copies per transaction; no zero counts.
    per_tid: BTreeMap<Tid, usize>,
}

impl Inner {
    fn count_down(&mut self, tid: Tid) {
        if let Some(count) = self.per_tid.get_mut(&tid) {
            *count -= 1;
            if *count == 0 {
                self.per_tid.remove(&tid);
            }
        }
    }
}

/// See the module's head.
#[derive(Default)]
pub struct CheckpointMap {
    inner: Mutex<Inner>,
    written: Condvar,
    /// How many entries there are, to be read without the lock.
    blocks: AtomicUsize,
}

impl CheckpointMap {
    /// The copy of a block, when it is not home yet.
    #[must_use]
    pub fn find(&self, block: BlockNo) -> Option<BufferData> {
        self.inner
            .lock()
            .entries
            .get(&block)
            .map(|e| e.data.clone())
    }

    /// Whether a block has a copy here.
    #[must_use]
    pub fn contains(&self, block: BlockNo) -> bool {
        self.inner.lock().entries.contains_key(&block)
    }

    /// How many blocks are not home yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.lock().entries.len()
    }

    /// [`CheckpointMap::len`] as of the last change.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    fn note(&self, inner: &Inner) {
        self.blocks.store(inner.entries.len(), Ordering::Relaxed);
    }

    /// Whether everything is home.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The oldest transaction that has a copy here.
    #[must_use]
    pub fn oldest(&self) -> Option<Tid> {
        self.inner.lock().per_tid.keys().next().copied()
    }

    /// Adds a committed transaction's copies; they supersede older ones.
    pub fn insert(&self, tid: Tid, copies: impl IntoIterator<Item = (BlockNo, BufferData)>) {
        let mut inner = self.inner.lock();
        for (block, data) in copies {
            let old = inner.entries.get_mut(&block).map(|entry| {
                entry.data = data.clone();
                std::mem::replace(&mut entry.tid, tid)
            });
            match old {
                Some(old) => inner.count_down(old),
                None => {
                    let entry = Entry {
                        tid,
                        data,
                        writing: false,
                    };
                    inner.entries.insert(block, entry);
                }
            }
            *inner.per_tid.entry(tid).or_default() += 1;
        }
        self.note(&inner);
    }

    /// Takes revoked blocks out. Returns when none of them is being written home.
    pub fn remove(&self, blocks: impl IntoIterator<Item = BlockNo>) {
        let mut inner = self.inner.lock();
        for block in blocks {
            while inner.entries.get(&block).is_some_and(|e| e.writing) {
                self.written.wait(&mut inner);
            }
            if let Some(entry) = inner.entries.remove(&block) {
                inner.count_down(entry.tid);
            }
        }
        self.note(&inner);
    }

    /// Up to `max` copies of transactions up to `until`, lowest block numbers from `from` on,
    /// marked as being written. [`CheckpointMap::written_home`] must follow.
    pub(crate) fn take_batch(
        &self,
        blocks: &[BlockNo],
        until: Tid,
    ) -> Vec<(BlockNo, Tid, BufferData)> {
        let mut inner = self.inner.lock();
        let mut batch = Vec::with_capacity(blocks.len());
        for &block in blocks {
            if let Some(entry) = inner.entries.get_mut(&block)
                && entry.tid <= until
                && !entry.writing
            {
                entry.writing = true;
                batch.push((block, entry.tid, entry.data.clone()));
            }
        }
        batch
    }

    /// Blocks with a copy of a transaction up to `until`, ascending.
    pub(crate) fn blocks_until(&self, until: Tid) -> Vec<BlockNo> {
        let inner = self.inner.lock();
        let mut blocks: Vec<BlockNo> = inner
            .entries
            .iter()
            .filter(|(_, e)| e.tid <= until)
            .map(|(b, _)| *b)
            .collect();
        drop(inner);
        blocks.sort_unstable();
        blocks
    }

    /// The batch's writes ended. With `success`, copies that were not superseded meanwhile leave.
    pub(crate) fn written_home(&self, batch: &[(BlockNo, Tid, BufferData)], success: bool) {
        let mut inner = self.inner.lock();
        for (block, tid, _) in batch {
            let Some(entry) = inner.entries.get_mut(block) else {
                continue;
            };
            entry.writing = false;
            if success && entry.tid == *tid {
                inner.entries.remove(block);
                inner.count_down(*tid);
            }
        }
        self.note(&inner);
        drop(inner);
        self.written.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_device::AlignedBuf;
    use std::sync::Arc;

    fn copy(byte: u8) -> BufferData {
        Arc::new(AlignedBuf::copy_of(&[byte; 16]))
    }

    #[test]
    fn newer_copies_supersede_and_move_the_tail() {
        let map = CheckpointMap::default();
        map.insert(Tid(1), [(BlockNo(5), copy(1)), (BlockNo(6), copy(1))]);
        map.insert(Tid(2), [(BlockNo(5), copy(2))]);
        assert_eq!(map.oldest(), Some(Tid(1)));
        assert_eq!(map.find(BlockNo(5)).map(|d| d[0]), Some(2));
        map.remove([BlockNo(6)]);
        assert_eq!(map.oldest(), Some(Tid(2)));
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn a_copy_superseded_while_written_stays() {
        let map = CheckpointMap::default();
        map.insert(Tid(1), [(BlockNo(5), copy(1)), (BlockNo(9), copy(1))]);
        let batch = map.take_batch(&map.blocks_until(Tid(1)), Tid(1));
        assert_eq!(batch.len(), 2);
        map.insert(Tid(2), [(BlockNo(5), copy(2))]);
        map.written_home(&batch, true);
        assert_eq!(map.find(BlockNo(5)).map(|d| d[0]), Some(2));
        assert!(!map.contains(BlockNo(9)));
        assert_eq!(map.oldest(), Some(Tid(2)));
        // A failed write leaves the copy.
        let batch = map.take_batch(&map.blocks_until(Tid(2)), Tid(2));
        map.written_home(&batch, false);
        assert!(map.contains(BlockNo(5)));
    }

    #[test]
    fn removing_waits_for_the_write_home() {
        let map = Arc::new(CheckpointMap::default());
        map.insert(Tid(1), [(BlockNo(5), copy(1))]);
        let batch = map.take_batch(&[BlockNo(5)], Tid(1));
        let other = Arc::clone(&map);
        let remover = std::thread::spawn(move || other.remove([BlockNo(5)]));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(
            !remover.is_finished(),
            "removed a block that is being written home"
        );
        map.written_home(&batch, false);
        remover.join().expect("remover");
        assert!(map.is_empty());
    }
}
