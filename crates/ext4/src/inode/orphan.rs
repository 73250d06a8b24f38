//! [`Orphans`]: inodes to finish after a crash: deleted but open, unnamed, or being truncated.
//!
//! It owns the list in memory. It calls `volume` and `InodeTable`. It never stores an inode, and never finishes one (`recovery`).
//!
//! Two forms on disk. The list: the superblock names the first inode, each inode's deletion time the
//! next. The orphan file (`orphan_file`): slots with inode numbers, of which many can change at once;
//! when all slots are taken the list is used. Both are mirrored in memory, so that a removal knows its
//! neighbours at once.
//!
//! # Locks
//! `state` is taken below the inode's body and above buffers. Storing an inode that is on the list happens
//! under it, so that the link stored is the one that is true.
//!
//! # Crash order
//! An inode is put on the list in the handle that makes it an orphan, and taken off in the handle that finishes it. At mount,
//! after journal replay, what is still on is truncated to its size, or deleted when it has no name.
//!
//! References: kernel documentation, "Orphan file"; "The Super Block" (`s_last_orphan`).

use super::ext4;
use super::table::InodeTable;
use crate::journal::Handle;
use crate::journal::buffer::BufferRef;
use crate::vfs_ino;
use crate::volume::Volume;
use crate::{Error, Result};
use blockwright_ondisk::ext4::features::RoCompat;
use blockwright_ondisk::ext4::{self as disk, Ino, InodeSeed, orphan_file};
use blockwright_vfs as vfs;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Offset of the deletion time in an inode.
pub(crate) const DTIME: usize = 0x14;
/// Credits for one addition or removal: the inode, its neighbour or a block of the orphan file, the superblock.
pub(crate) const CREDITS: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

/// The orphans as a volume lists them.
#[derive(Default)]
pub(crate) struct State {
    /// First of the list, 0 for none.
    head: u32,
    list: HashMap<u32, Links>,
    /// Block and slot in the orphan file.
    pub(crate) slots: HashMap<u32, (usize, usize)>,
    /// Blocks of the orphan file, and how many slots of each are free.
    pub(crate) blocks: Vec<(BufferRef, usize)>,
    pub(crate) seed: Option<InodeSeed>,
    /// The superblock says that the orphan file holds something.
    present: bool,
}

impl State {
    /// Nothing yet. `present`: the superblock says that the orphan file holds something.
    pub(crate) fn new(present: bool) -> Self {
        State {
            present,
            ..State::default()
        }
    }

    fn holds(&self, ino: Ino) -> bool {
        self.list.contains_key(&ino.0) || self.slots.contains_key(&ino.0)
    }

    pub(crate) fn push(&mut self, ino: u32) {
        let next = self.head;
        if let Some(links) = self.list.get_mut(&next) {
            links.prev = ino;
        }
        self.list.insert(ino, Links { prev: 0, next });
        self.head = ino;
    }
}

/// See the module's head.
pub struct Orphans {
    volume: Arc<Volume>,
    table: Arc<InodeTable>,
    state: Mutex<State>,
}

impl Orphans {
    /// None, until [`Orphans::set`].
    pub(crate) fn new(volume: &Arc<Volume>, table: &Arc<InodeTable>) -> Self {
        Orphans {
            volume: Arc::clone(volume),
            table: Arc::clone(table),
            state: Mutex::default(),
        }
    }

    /// Takes over what the volume lists.
    pub(crate) fn set(&self, state: State) {
        *self.state.lock() = state;
    }

    /// The numbers of all orphans.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let state = self.state.lock();
        state
            .list
            .keys()
            .chain(state.slots.keys())
            .copied()
            .collect()
    }

    /// Whether an inode is on the list, and not in the orphan file.
    pub(crate) fn is_listed(&self, ino: Ino) -> bool {
        self.state.lock().list.contains_key(&ino.0)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        let state = self.state.lock();
        state.list.len() + state.slots.len()
    }

    /// Stores an inode's bytes while its place on the list cannot change. `store` gets the deletion time
    /// to store, which is the next orphan's number.
    pub(crate) fn with_link<R>(&self, ino: Ino, store: impl FnOnce(Option<u32>) -> R) -> R {
        let state = self.state.lock();
        store(state.list.get(&ino.0).map(|l| l.next))
    }

    /// Puts an inode among the orphans, if it is not there. The caller stores the inode in the same
    /// handle after.
    ///
    /// # Errors
    /// A device error.
    pub fn add(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        self.put_on(h, inode)?;
        self.put_own_link(h, inode)
    }

    /// The link must be on disk with the head, whatever the caller does after.
    pub(super) fn put_own_link(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let own = ext4(inode);
        let state = self.state.lock();
        match state.list.get(&own.ino.0) {
            Some(links) => self.put_link(h, own.ino, links.next),
            None => Ok(()),
        }
    }

    pub(super) fn put_on(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let own = ext4(inode);
        let mut state = self.state.lock();
        if state.holds(own.ino) {
            return Ok(());
        }
        if self.slot_add(h, &mut state, own.ino)? {
            return Ok(());
        }
        let ino = own.ino.0;
        state.push(ino);
        own.on_orphan_list.store(true, Ordering::Release);
        self.volume
            .sb
            .update_at_commit(h, |raw| raw.last_orphan.set(ino));
        Ok(())
    }

    /// Takes an inode off whose truncation is complete, or that has got a name, if it is on. Without a name it stays an orphan
    /// until it is freed. The caller stores the inode in the same handle after.
    ///
    /// The caller has the inode's lock, as those who remove a name do.
    ///
    /// # Errors
    /// A device error.
    pub fn remove(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        if inode.attr().nlink == 0 {
            return Ok(());
        }
        let was_listed = ext4(inode).on_orphan_list.load(Ordering::Acquire);
        self.unlist(h, inode)?;
        if was_listed {
            self.put_link(h, ext4(inode).ino, 0)?;
        }
        Ok(())
    }

    /// Takes an inode off, with or without a name, for a caller that stores it, its deletion time included, before anything can go wrong.
    ///
    /// # Errors
    /// A device error.
    pub(crate) fn unlist(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let own = ext4(inode);
        let mut state = self.state.lock();
        if let Some((index, slot)) = state.slots.remove(&own.ino.0) {
            return self.slot_clear(h, &mut state, index, slot);
        }
        let Some(links) = state.list.remove(&own.ino.0) else {
            return Ok(());
        };
        own.on_orphan_list.store(false, Ordering::Release);
        if let Some(next) = state.list.get_mut(&links.next) {
            next.prev = links.prev;
        }
        match state.list.get_mut(&links.prev) {
            Some(prev) => {
                prev.next = links.next;
                self.put_link(h, Ino(links.prev), links.next)?;
            }
            None => {
                state.head = links.next;
                self.volume
                    .sb
                    .update_at_commit(h, |raw| raw.last_orphan.set(links.next));
            }
        }
        Ok(())
    }

    /// Changes the link in an inode's bytes on disk.
    fn put_link(&self, h: &Handle<'_>, ino: Ino, next: u32) -> Result<()> {
        let geo = self.volume.geometry();
        let (buffer, offset) = self.table.buffer(ino)?;
        h.modify(&buffer, |block| {
            let raw = &mut block[offset..offset + usize::from(geo.inode_size)];
            raw[DTIME..DTIME + 4].copy_from_slice(&next.to_le_bytes());
            disk::inode::set_checksum(raw, geo, ino)
        })?
        .map_err(|e| Error::corrupt("orphan list", e.to_string()).ino(vfs_ino(ino)))
    }

    fn slot_add(&self, h: &Handle<'_>, state: &mut State, ino: Ino) -> Result<bool> {
        let Some(seed) = state.seed else {
            return Ok(false);
        };
        let Some(index) = state.blocks.iter().position(|(_, free)| *free > 0) else {
            return Ok(false);
        };
        let geo = self.volume.geometry();
        let buffer = state.blocks[index].0.clone();
        let slot = h.modify(&buffer, |data| {
            let slots = orphan_file::slots_per_block(data.len());
            let slot = (0..slots).find(|s| data[s * 4..s * 4 + 4] == [0; 4])?;
            orphan_file::set_slot(data, slot, ino)?;
            orphan_file::write_tail(data, buffer.block(), geo, seed)?;
            Some(slot)
        })?;
        let Some(slot) = slot else {
            state.blocks[index].1 = 0;
            return Ok(false);
        };
        state.blocks[index].1 -= 1;
        state.slots.insert(ino.0, (index, slot));
        if !state.present {
            self.set_present(h, true)?;
            state.present = true;
        }
        Ok(true)
    }

    fn slot_clear(
        &self,
        h: &Handle<'_>,
        state: &mut State,
        index: usize,
        slot: usize,
    ) -> Result<()> {
        let (Some(seed), Some((buffer, free))) = (state.seed, state.blocks.get_mut(index)) else {
            return Ok(());
        };
        *free += 1;
        let geo = self.volume.geometry();
        let block = buffer.block();
        h.modify(buffer, |data| {
            let _ = orphan_file::set_slot(data, slot, Ino(0));
            let _ = orphan_file::write_tail(data, block, geo, seed);
        })
    }

    fn set_present(&self, h: &Handle<'_>, on: bool) -> Result<()> {
        let bit = RoCompat::ORPHAN_PRESENT.bits();
        self.volume.sb.update(h, |raw| {
            let old = raw.feature_ro_compat.get();
            raw.feature_ro_compat
                .set(if on { old | bit } else { old & !bit });
        })
    }

    /// Tells the superblock when the orphan file holds nothing: at mount, and before unmounting.
    ///
    /// # Errors
    /// A device error.
    pub fn clear_present(&self) -> Result<()> {
        if self.volume.is_read_only() {
            return Ok(());
        }
        {
            let state = self.state.lock();
            if !state.present || !state.slots.is_empty() {
                return Ok(());
            }
        }
        let h = self.volume.journal.start(1, "orphans settled")?;
        let mut state = self.state.lock();
        if state.present && state.slots.is_empty() {
            self.set_present(&h, false)?;
            state.present = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Purpose;
    use crate::testing::Parts;

    /// The next orphan's number, as an inode has it on disk.
    fn link(p: &Parts, ino: Ino) -> u32 {
        let (buffer, at) = p.orphans.table.buffer(ino).expect("table");
        let data = buffer.data();
        let at = at + DTIME;
        u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
    }

    #[test]
    fn the_list_on_disk_follows_the_one_in_memory() {
        let p = Parts::new();
        let head = || p.volume.sb.with(|raw| raw.last_orphan.get());
        let root = p.stored.load_for(Ino::ROOT, Purpose::User).expect("root");
        let lost = p
            .stored
            .load_for(Ino(11), Purpose::User)
            .expect("lost+found");
        let h = p.volume.journal.start(16, "orphans").expect("handle");
        p.orphans.add(&h, &root).expect("added");
        p.orphans.add(&h, &lost).expect("added");
        p.orphans.add(&h, &lost).expect("once is enough");
        assert_eq!((p.orphans.count(), head()), (2, 11));
        assert_eq!(link(&p, Ino(11)), Ino::ROOT.0);
        // From the middle: the neighbour's link changes.
        p.orphans.remove(&h, &root).expect("removed");
        assert_eq!((head(), link(&p, Ino(11))), (11, 0));
        // Without a name it stays, until it is freed.
        lost.update_attr(|a| a.nlink = 0);
        p.orphans.remove(&h, &lost).expect("kept");
        assert_eq!((p.orphans.count(), head()), (1, 11));
        lost.update_attr(|a| a.nlink = 2);
        p.orphans.remove(&h, &lost).expect("removed");
        assert_eq!((p.orphans.count(), head()), (0, 0));
    }
}
