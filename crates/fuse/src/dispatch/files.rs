//! Open files by the number the kernel knows them by.
//!
//! Sharded by that number, so that requests on different files do not meet. A number is the slot and
//! the shard; slots are reused, which is safe because the kernel sends RELEASE last.

use super::gate::Gate;
use blockwright_vfs::{Fill, FrontPages, Handle};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// An open file.
pub(super) struct OpenFile {
    /// The vfs's handle.
    pub(super) handle: Arc<Handle>,
    /// Whether it was opened for writing.
    pub(super) writes: bool,
    /// Whether it was opened for writing alone.
    pub(super) write_only: bool,
    /// Of a file that is written through the kernel's cache: what is known of that when the volume is nearly full.
    pub(super) gate: Option<Arc<Gate>>,
}

impl OpenFile {
    /// The kernel is about to cache these bytes, until what is returned is dropped: after the reply.
    pub(super) fn fill(&self, offset: u64, bytes: usize) -> Option<Filling> {
        let pages = Arc::clone(self.handle.inode().front_pages()?);
        let fill = pages.begin_fill(&(offset..offset.saturating_add(bytes as u64)));
        Some(Filling { pages, fill })
    }
}

/// A READ into the kernel's cache, of a file that was written past it.
pub(super) struct Filling {
    pages: Arc<FrontPages>,
    fill: Fill,
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.pages.end_fill(self.fill);
    }
}

#[derive(Default)]
struct Slots {
    files: Vec<Option<Arc<OpenFile>>>,
    free: Vec<usize>,
}

/// The table of open files.
pub(super) struct Files {
    shards: [Mutex<Slots>; SHARDS],
    next: AtomicUsize,
}

impl Files {
    pub(super) fn new() -> Self {
        Files {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicUsize::new(0),
        }
    }

    /// Puts a file in. Returns its number; never 0, which stands for "no handle".
    pub(super) fn insert(&self, file: OpenFile) -> u64 {
        let shard = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut slots = self.shards[shard].lock();
        let file = Some(Arc::new(file));
        let slot = match slots.free.pop() {
            Some(slot) => {
                slots.files[slot] = file;
                slot
            }
            None => {
                slots.files.push(file);
                slots.files.len() - 1
            }
        };
        (slot * SHARDS + shard + 1) as u64
    }

    fn place(fh: u64) -> Option<(usize, usize)> {
        let index = usize::try_from(fh.checked_sub(1)?).ok()?;
        Some((index % SHARDS, index / SHARDS))
    }

    /// The file of this number.
    pub(super) fn get(&self, fh: u64) -> Option<Arc<OpenFile>> {
        let (shard, slot) = Self::place(fh)?;
        self.shards[shard].lock().files.get(slot)?.clone()
    }

    /// Takes a file out. The caller drops it, outside the lock: that may write.
    pub(super) fn remove(&self, fh: u64) -> Option<Arc<OpenFile>> {
        let (shard, slot) = Self::place(fh)?;
        let mut slots = self.shards[shard].lock();
        let file = slots.files.get_mut(slot)?.take()?;
        slots.free.push(slot);
        Some(file)
    }

    /// The inodes that are open for writing through the kernel's cache.
    pub(super) fn cached_writers(&self) -> Vec<u64> {
        let mut inodes = Vec::new();
        for shard in &self.shards {
            let slots = shard.lock();
            let files = slots.files.iter().flatten();
            let writers = files.filter(|file| file.gate.is_some());
            inodes.extend(writers.map(|file| file.handle.inode().ino().0));
        }
        inodes
    }

    /// Number of open files.
    pub(super) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| {
                let slots = shard.lock();
                slots.files.len() - slots.free.len()
            })
            .sum()
    }

    /// Closes everything: the connection has ended.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let slots = std::mem::take(&mut *shard.lock());
            drop(slots);
        }
    }
}
