//! [`Maps`]: mappings of whole files, with the quota of their owners and their stored inodes.
//!
//! It owns nothing but its references. It calls the block allocator, `quota` and `inode`. It never decides where data goes
//! (`data::delayed`), and knows nothing of inline data but that it is there.
//!
//! # Locks
//! The inode's `map`, below a handle.
//!
//! # Crash order
//! Every handle stores the inode with what it changed of the mapping, also on an error.

use super::extents::{Progress, Tree};
use super::{BlockState, ENDLESS, Mapper, create_block, indirect, look_up};
use crate::Result;
use crate::alloc::Allocator;
use crate::inode::{Ext4Inode, Inodes, MapState};
use crate::journal::Handle;
use crate::quota::{Limit, Quota};
use crate::volume::Volume;
use blockwright_device::DevOffset;
use blockwright_ondisk::ext4::{BlockNo, FileBlock, InodeFlags};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{Mapping, Place};
use std::ops::Range;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Maps {
        volume: Volume,
        alloc: Allocator,
        quota: Quota,
        inodes: Inodes,
    }
}

impl Maps {
    /// The mapping of a file block, and the number of blocks that it holds for (at least up to
    /// `max` where the blocks are consecutive).
    ///
    /// # Errors
    /// `Corrupt`; I/O errors.
    pub fn lookup(&self, inode: &Inode, at: FileBlock, max: u64) -> Result<(BlockState, u64)> {
        let e = inode.private::<Ext4Inode>();
        let map = e.map.read();
        look_up(&self.alloc, e, &map, at, max)
    }

    /// Allocates the block at `at` of a file whose contents are metadata (a directory, a slow symlink, an attribute value), inserts
    /// it and stores the inode, in the handle. An existing block is returned as it is. Credits: 24, for a tree of ordinary depth.
    ///
    /// # Errors
    /// `NoSpace`: see [`Allocator::retry_after_commit`].
    pub(crate) fn create_meta(
        &self,
        h: &Handle<'_>,
        inode: &Inode,
        at: FileBlock,
    ) -> Result<BlockNo> {
        let e = inode.private::<Ext4Inode>();
        let mut map = e.map.write();
        let check = |map: &MapState| self.quota.check_meta(inode, map);
        let (block, changed) = create_block(&self.alloc, h, e, &mut map, at, check)?;
        if changed {
            self.inodes.store_locked(h, inode, &map)?;
            self.show_blocks(inode, &map);
        }
        Ok(block)
    }

    /// [`blockwright_vfs::engine::Data::extents`]: of files that have an extent tree.
    pub(crate) fn count_extents(&self, inode: &Inode, leaves: &mut usize) -> Option<u64> {
        let e = inode.private::<Ext4Inode>();
        // A look at statistics does not keep a writer waiting, nor the other way round.
        let map = e.map.try_read()?;
        if !map.flags.contains(InodeFlags::EXTENTS)
            || inode.kind() != blockwright_vfs::FileKind::Regular
            || map.blocks == 0
        {
            return None;
        }
        let tree = Tree::new(&self.alloc, e.ino, e.seed);
        tree.count(&map.root, leaves).ok()?.filter(|n| *n > 0)
    }

    /// Refreshes what `stat` shows of the space taken, delayed blocks included.
    pub(crate) fn show_blocks(&self, inode: &Inode, map: &MapState) {
        let blocks512 = map
            .blocks
            .saturating_add(map.delayed.total() * self.volume.block_units());
        inode.update_attr(|a| a.blocks512 = blocks512);
        // Without a limit there is nothing to fail.
        let _ = self.quota.promise_space(inode, map, Limit::Ignored);
    }

    /// Frees the blocks in `from..to`, in as many handles as it takes; every one leaves a valid inode.
    ///
    /// # Errors
    /// `Corrupt`; I/O errors; `NoSpace` when punching needs a node and there is no block.
    pub fn remove(
        &self,
        inode: &Inode,
        from: FileBlock,
        to: FileBlock,
        op: &'static str,
    ) -> Result<()> {
        let e = inode.private::<Ext4Inode>();
        let mut left = from..to;
        let ea_inode = e.map.read().flags.contains(InodeFlags::EA_INODE);
        let journaled = ea_inode || inode.kind() != blockwright_vfs::FileKind::Regular;
        loop {
            let credits = {
                let map = e.map.read();
                Mapper::new(&self.alloc, e, &map).remove_credits(&map) + 8
            };
            let done = self.alloc.retry_after_commit(|| {
                let h = self.volume.journal.start(credits.saturating_mul(2), op)?;
                let mut map = e.map.write();
                let result = self.remove_steps(&h, e, &mut map, &mut left, journaled, op);
                // Stored also on an error: what was removed is removed.
                map.generation = map.generation.wrapping_add(1);
                self.inodes.store_locked(&h, inode, &map)?;
                self.show_blocks(inode, &map);
                result
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// Frees blocks from the end of a range on and shortens the range. `false` when the handle had no room for all of it.
    fn remove_steps(
        &self,
        h: &Handle<'_>,
        e: &Ext4Inode,
        map: &mut MapState,
        left: &mut Range<FileBlock>,
        journaled: bool,
        op: &'static str,
    ) -> Result<bool> {
        loop {
            let mapper = Mapper::new(&self.alloc, e, map);
            match mapper.remove_step(h, map, left.start, left.end, journaled)? {
                Progress::Done => return Ok(true),
                Progress::NeedHandle => return Ok(false),
                Progress::More(next) if next < left.end => left.end = next,
                Progress::More(_) => {
                    let what = "removal makes no progress";
                    return Err(self.volume.corrupt(op, Some(e.ino), None, what));
                }
            }
        }
    }

    /// Whether a file's blocks are mapped in its inode alone, so that one handle most likely frees them all.
    pub(crate) fn is_small_map(&self, inode: &Inode) -> bool {
        let map = inode.private::<Ext4Inode>().map.read();
        map.flags.contains(InodeFlags::EXTENTS) && Tree::is_in_inode(&map.root)
    }

    /// Credits for [`Maps::remove_in`] of a file with a small map, storing the inode not included.
    pub(crate) fn small_map_credits(&self, inode: &Inode) -> u32 {
        Tree::remove_credits(&inode.private::<Ext4Inode>().map.read().root)
    }

    /// Frees the blocks of a range in the caller's handle. `false` when the handle had no room for all of it; what was
    /// freed is then stored. Otherwise the caller stores the inode.
    ///
    /// # Errors
    /// `Corrupt`; I/O errors. Blocks that were freed until then are stored as free.
    pub(crate) fn remove_in(
        &self,
        h: &Handle<'_>,
        inode: &Inode,
        mut range: Range<FileBlock>,
        op: &'static str,
    ) -> Result<bool> {
        let e = inode.private::<Ext4Inode>();
        let journaled = inode.kind() != blockwright_vfs::FileKind::Regular;
        let mut map = e.map.write();
        let result = self.remove_steps(h, e, &mut map, &mut range, journaled, op);
        map.generation = map.generation.wrapping_add(1);
        if !matches!(result, Ok(true)) {
            self.inodes.store_locked(h, inode, &map)?;
        }
        self.show_blocks(inode, &map);
        result
    }

    /// [`blockwright_vfs::engine::Data::extent_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn extent_in_place(
        &self,
        inode: &Inode,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<Mapping>> {
        let e = inode.private::<Ext4Inode>();
        let map = e.map.read();
        let mut m = self.map_locked(inode, &map, offset, bytes)?;
        let end = m.offset.saturating_add(m.bytes).min(map.disk_size);
        m.bytes = end.saturating_sub(m.offset);
        Ok(Some(m).filter(|m| matches!(m.place, Place::Mapped(_)) && m.bytes > 0))
    }

    /// [`blockwright_vfs::engine::Data::open_end`].
    pub(crate) fn open_end(&self, inode: &Inode) -> Option<u64> {
        let map = inode.private::<Ext4Inode>().map.read();
        let in_blocks = !map.flags.contains(InodeFlags::INLINE_DATA);
        let open = !map
            .disk_size
            .is_multiple_of(self.volume.block_bytes() as u64);
        (in_blocks && open).then_some(map.disk_size)
    }

    /// [`blockwright_vfs::engine::Data::map`].
    ///
    /// # Errors
    /// As there.
    pub fn map(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Mapping> {
        let map = inode.private::<Ext4Inode>().map.read();
        self.map_locked(inode, &map, offset, bytes)
    }

    fn map_locked(
        &self,
        inode: &Inode,
        map: &MapState,
        offset: u64,
        bytes: u64,
    ) -> Result<Mapping> {
        let e = inode.private::<Ext4Inode>();
        let bits = self.volume.geometry().block_bits;
        let generation = map.generation;
        if map.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(Mapping::of_inline(offset, 1 << bits, generation));
        }
        let at = FileBlock(offset >> bits);
        let max = (bytes >> bits).saturating_add(2);
        let (state, len) = look_up(&self.alloc, e, map, at, max)?;
        let offset = at.0 << bits;
        let to_end = (u64::MAX >> bits << bits) - offset;
        let bytes = if len >= ENDLESS >> 1 {
            to_end
        } else {
            (len << bits).min(to_end)
        };
        let place = match state {
            BlockState::Hole => Place::Hole,
            BlockState::Delayed => Place::Delayed,
            BlockState::Mapped(b) => Place::Mapped(DevOffset(b.0 << bits)),
            BlockState::Unwritten(b) => Place::Unwritten(DevOffset(b.0 << bits)),
        };
        Ok(Mapping {
            offset,
            bytes,
            place,
            generation,
        })
    }

    /// The largest size of a regular file like this one, in bytes.
    #[must_use]
    pub fn file_bytes_max(&self, inode: &Inode) -> u64 {
        let extents = inode
            .private::<Ext4Inode>()
            .map
            .read()
            .flags
            .contains(InodeFlags::EXTENTS);
        indirect::file_bytes_max(self.volume.geometry(), extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::inode::Purpose;
    use crate::testing::Parts;
    use blockwright_ondisk::ext4::Ino;

    #[test]
    fn a_block_of_metadata_is_mapped_and_freed() {
        let p = Parts::new();
        let free = p.volume.sb.free_blocks();
        let lost = p
            .stored
            .load_for(Ino(11), Purpose::User)
            .expect("lost+found");
        let at = FileBlock(1000);
        let (state, _) = p.maps.lookup(&lost, at, 1).expect("lookup");
        assert_eq!(state, BlockState::Hole);
        let h = p.volume.journal.start(32, "map").expect("handle");
        let block = p.maps.create_meta(&h, &lost, at).expect("room");
        let again = p.maps.create_meta(&h, &lost, at).expect("there");
        drop(h);
        assert_eq!(again, block, "a block that is there is not replaced");
        let (state, len) = p.maps.lookup(&lost, at, 1).expect("lookup");
        assert_eq!((state, len), (BlockState::Mapped(block), 1));
        assert_eq!(p.volume.sb.free_blocks(), free - 1);
        // As stored, not only as it is in memory.
        let stored = p
            .stored
            .load_for(Ino(11), Purpose::User)
            .expect("lost+found");
        assert_eq!(p.maps.lookup(&stored, at, 1).expect("lookup").0, state);
        p.maps
            .remove(&lost, at, FileBlock(1001), "test")
            .expect("removed");
        assert_eq!(p.volume.sb.free_blocks(), free);
    }

    #[test]
    fn a_reserved_inode_is_no_users() {
        let p = Parts::new();
        let error = p.stored.load_for(Ino(7), Purpose::User).err();
        assert_eq!(error.map(|e| e.kind()), Some(ErrorKind::Stale));
    }
}
