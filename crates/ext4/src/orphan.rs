//! Inodes to finish after a crash: deleted but open, unnamed, or being truncated.
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
//! An inode goes on in the handle that makes it one, and off in the handle that finishes it. At mount,
//! after journal replay, what is still on is truncated to its size, or deleted when it has no name.
//!
//! References: kernel documentation, "Orphan file"; "The Super Block" (`s_last_orphan`).

use crate::buffer::{BlockKind, BufferRef};
use crate::fs::Fs;
use crate::inode::{Purpose, ext4, vfs_ino};
use crate::jbd2::Handle;
use crate::map::BlockState;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::features::{Compat, RoCompat};
use blockwright_ondisk::ext4::{self as disk, FileBlock, Ino, InodeFlags, InodeSeed, orphan_file};
use blockwright_vfs as vfs;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

/// Offset of the deletion time in an inode.
const DTIME: usize = 0x14;

#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

#[derive(Default)]
struct State {
    /// First of the list, 0 for none.
    head: u32,
    list: HashMap<u32, Links>,
    /// Block and slot in the orphan file.
    slots: HashMap<u32, (usize, usize)>,
    /// Blocks of the orphan file, and how many slots of each are free.
    blocks: Vec<(BufferRef, usize)>,
    seed: Option<InodeSeed>,
    /// The superblock says that the orphan file holds something.
    present: bool,
}

impl State {
    fn holds(&self, ino: Ino) -> bool {
        self.list.contains_key(&ino.0) || self.slots.contains_key(&ino.0)
    }

    fn push(&mut self, ino: u32) {
        let next = self.head;
        if let Some(links) = self.list.get_mut(&next) {
            links.prev = ino;
        }
        self.list.insert(ino, Links { prev: 0, next });
        self.head = ino;
    }
}

/// All orphans of a volume.
#[derive(Default)]
pub struct Orphans {
    state: Mutex<State>,
}

impl Orphans {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        let state = self.state.lock();
        state.list.len() + state.slots.len()
    }
}

impl Fs {
    /// Blocks a handle must reserve for one addition or removal.
    #[must_use]
    pub fn orphan_credits(&self) -> u32 {
        // The inode, its neighbour or a block of the orphan file, the superblock.
        3
    }

    /// Stores an inode's bytes while its place on the list cannot change. `store` gets the deletion time
    /// to store, which is the next orphan's number.
    pub(crate) fn with_orphan_link<R>(&self, ino: Ino, store: impl FnOnce(Option<u32>) -> R) -> R {
        let state = self.orphans.state.lock();
        store(state.list.get(&ino.0).map(|l| l.next))
    }

    /// Puts an inode among the orphans, if it is not there. The caller stores the inode in the same
    /// handle after.
    ///
    /// # Errors
    /// A device error.
    pub fn orphan_add(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        self.orphan_list(h, inode)?;
        self.put_own_link(h, inode)
    }

    /// Puts an inode among the orphans, if it is not there, and stores it.
    ///
    /// # Errors
    /// A device error.
    pub fn orphan_add_and_store(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        self.orphan_list(h, inode)?;
        self.store_inode(h, inode).or_else(|e| {
            // The head is in the transaction already, and must lead to somewhere.
            self.put_own_link(h, inode)?;
            Err(e)
        })
    }

    /// The link must be on disk with the head, whatever the caller does after.
    fn put_own_link(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let own = ext4(inode);
        let state = self.orphans.state.lock();
        match state.list.get(&own.ino.0) {
            Some(links) => self.put_link(h, own.ino, links.next),
            None => Ok(()),
        }
    }

    fn orphan_list(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let own = ext4(inode);
        let mut state = self.orphans.state.lock();
        if state.holds(own.ino) {
            return Ok(());
        }
        if self.slot_add(h, &mut state, own.ino)? {
            return Ok(());
        }
        let ino = own.ino.0;
        state.push(ino);
        own.on_orphan_list.store(true, Ordering::Release);
        self.sb.update_at_commit(h, |raw| raw.last_orphan.set(ino));
        Ok(())
    }

    /// Takes an inode off, if it is on. The caller stores the inode in the same handle after.
    ///
    /// # Errors
    /// A device error.
    pub fn orphan_remove(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let was_listed = ext4(inode).on_orphan_list.load(Ordering::Acquire);
        self.orphan_unlist(h, inode)?;
        if was_listed {
            self.put_link(h, ext4(inode).ino, 0)?;
        }
        Ok(())
    }

    /// [`Self::orphan_remove`] for a caller that stores the inode, its deletion time included, before anything can go wrong.
    ///
    /// # Errors
    /// A device error.
    pub(crate) fn orphan_unlist(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let own = ext4(inode);
        let mut state = self.orphans.state.lock();
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
                self.sb
                    .update_at_commit(h, |raw| raw.last_orphan.set(links.next));
            }
        }
        Ok(())
    }

    /// Changes the link in an inode's bytes on disk.
    fn put_link(&self, h: &Handle<'_>, ino: Ino, next: u32) -> Result<()> {
        let geo = self.geometry();
        let (buffer, offset) = self.inode_buffer(ino)?;
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
        let geo = self.geometry();
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
            self.set_orphan_present(h, true)?;
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
        let geo = self.geometry();
        let block = buffer.block();
        h.modify(buffer, |data| {
            let _ = orphan_file::set_slot(data, slot, Ino(0));
            let _ = orphan_file::write_tail(data, block, geo, seed);
        })
    }

    fn set_orphan_present(&self, h: &Handle<'_>, on: bool) -> Result<()> {
        let bit = RoCompat::ORPHAN_PRESENT.bits();
        self.sb.update(h, |raw| {
            let old = raw.feature_ro_compat.get();
            raw.feature_ro_compat
                .set(if on { old | bit } else { old & !bit });
        })
    }

    /// Reads the orphans that the volume lists. Changes nothing.
    ///
    /// # Errors
    /// A damaged orphan file, or a device error.
    pub fn load_orphans(&self) -> Result<()> {
        const OP: &str = "read orphans";
        let (head, file, present) = self.sb.with(|raw| {
            (
                raw.last_orphan.get(),
                raw.orphan_file_inum.get(),
                raw.features().has_ro_compat(RoCompat::ORPHAN_PRESENT),
            )
        });
        let mut state = State {
            present,
            ..State::default()
        };
        if self.geometry().features.has_compat(Compat::ORPHAN_FILE) {
            self.load_orphan_file(OP, Ino(file), &mut state)?;
        }
        self.load_orphan_list(OP, head, &mut state)?;
        *self.orphans.state.lock() = state;
        Ok(())
    }

    fn load_orphan_file(&self, op: &'static str, ino: Ino, state: &mut State) -> Result<()> {
        let geo = self.geometry();
        let inode = self.load_inode_for(ino, Purpose::Special)?;
        let seed = ext4(&inode).seed;
        let blocks = inode.size() >> geo.block_bits;
        for lblk in 0..blocks.min(1 << 16) {
            let (place, _) = self.map_lookup(&inode, FileBlock(lblk), 1)?;
            let BlockState::Mapped(block) = place else {
                return Err(self.corrupt(op, Some(ino), None, format!("block {lblk} is missing")));
            };
            let buffer = self
                .cache
                .read(block, BlockKind::OrphanFile, |data| {
                    orphan_file::verify(data, block, geo, seed)
                        .map_err(|e| Error::corrupt(op, e.to_string()))
                })
                .map_err(|e| match e.kind() {
                    ErrorKind::Corrupt => self.corrupt(op, Some(ino), Some(block), e.to_string()),
                    _ => e,
                })?;
            let data = buffer.data();
            let index = state.blocks.len();
            let mut free = orphan_file::slots_per_block(data.len());
            for (slot, orphan) in orphan_file::orphans(&data) {
                free -= 1;
                state.slots.insert(orphan.0, (index, slot));
            }
            state.blocks.push((buffer, free));
        }
        state.seed = Some(seed);
        Ok(())
    }

    fn load_orphan_list(&self, op: &'static str, head: u32, state: &mut State) -> Result<()> {
        let mut chain = Vec::new();
        let mut seen = HashSet::new();
        let mut next = head;
        while next != 0 {
            if !seen.insert(next) || next > self.geometry().inodes_count {
                // Where it leads cannot be told; what came before is still finished.
                let _ = self.corrupt(op, Some(Ino(next)), None, "the orphan list is damaged here");
                break;
            }
            chain.push(next);
            let (buffer, offset) = self.inode_buffer(Ino(next))?;
            let data = buffer.data();
            let at = offset + DTIME;
            next = u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        }
        for ino in chain.iter().rev() {
            state.push(*ino);
        }
        Ok(())
    }

    /// Finishes all orphans: truncates those with a name to their size, deletes those without. Returns how
    /// many of each. For a writable mount, after [`Self::load_orphans`].
    ///
    /// # Errors
    /// A device error. Damaged orphans are taken off, and left to the checker.
    pub fn process_orphans(&self) -> Result<(u64, u64)> {
        const OP: &str = "finish orphans";
        let todo: Vec<u32> = {
            let state = self.orphans.state.lock();
            state
                .list
                .keys()
                .chain(state.slots.keys())
                .copied()
                .collect()
        };
        let (mut truncated, mut deleted) = (0, 0);
        for ino in todo {
            if self.is_read_only() {
                break;
            }
            let inode = match self.load_inode_for(Ino(ino), Purpose::Orphan) {
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Stale) => {
                    // It may be the inode of an attribute's value, which is deleted alike.
                    match self.load_inode_for(Ino(ino), Purpose::EaInode) {
                        Ok(inode) => inode,
                        Err(_) => continue,
                    }
                }
                other => other?,
            };
            let own = ext4(&inode);
            let listed = self.orphans.state.lock().list.contains_key(&ino);
            own.on_orphan_list.store(listed, Ordering::Release);
            own.body.lock().dtime = 0;
            if inode.attr().nlink == 0 {
                self.evict_inode(&inode)?;
                deleted += 1;
                continue;
            }
            if !own.flags().contains(InodeFlags::INLINE_DATA)
                && matches!(inode.kind(), vfs::FileKind::Regular)
            {
                let geo = self.geometry();
                let from = inode.size().div_ceil(u64::from(geo.block_size));
                self.map_remove(&inode, FileBlock(from), FileBlock(1 << 32), OP)?;
            }
            let h = self.journal.start(self.orphan_credits() + 1, OP)?;
            self.orphan_remove(&h, &inode)?;
            self.store_inode(&h, &inode)?;
            truncated += 1;
        }
        self.orphans_settled()?;
        Ok((truncated, deleted))
    }

    /// Tells the superblock when the orphan file holds nothing: at mount, and before unmounting.
    ///
    /// # Errors
    /// A device error.
    pub fn orphans_settled(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        {
            let state = self.orphans.state.lock();
            if !state.present || !state.slots.is_empty() {
                return Ok(());
            }
        }
        let h = self.journal.start(1, "orphans settled")?;
        let mut state = self.orphans.state.lock();
        if state.present && state.slots.is_empty() {
            self.set_orphan_present(&h, false)?;
            state.present = false;
        }
        Ok(())
    }
}
