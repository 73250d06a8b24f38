//! Orphans at mount: reading what the volume lists, and finishing it.
//!
//! Reading changes nothing and serves a read-only mount, too. A damaged place in the list ends it there: what was listed before is finished, and the rest is
//! left to the checker. Finishing an orphan is one or more transactions; a crash between them leaves it listed.

use super::Recovery;
use crate::inode::orphan::{self, DTIME, State};
use crate::inode::{Purpose, ext4};
use crate::journal::buffer::BlockKind;
use crate::map::BlockState;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::features::{Compat, RoCompat};
use blockwright_ondisk::ext4::{FileBlock, Ino, InodeFlags, orphan_file};
use blockwright_vfs as vfs;
use hashbrown::HashSet;
use std::sync::atomic::Ordering;

impl Recovery {
    /// Reads the orphans that the volume lists. Changes nothing.
    ///
    /// # Errors
    /// A damaged orphan file, or a device error.
    pub fn load_orphans(&self) -> Result<()> {
        const OP: &str = "read orphans";
        let (head, file, present) = self.volume.sb.with(|raw| {
            (
                raw.last_orphan.get(),
                raw.orphan_file_inum.get(),
                raw.features().has_ro_compat(RoCompat::ORPHAN_PRESENT),
            )
        });
        let mut state = State::new(present);
        if self
            .volume
            .geometry()
            .features
            .has_compat(Compat::ORPHAN_FILE)
        {
            self.load_orphan_file(OP, Ino(file), &mut state)?;
        }
        self.load_orphan_list(OP, head, &mut state)?;
        self.orphans.set(state);
        Ok(())
    }

    fn load_orphan_file(&self, op: &'static str, ino: Ino, state: &mut State) -> Result<()> {
        let geo = self.volume.geometry();
        let inode = self.stored.load_for(ino, Purpose::Special)?;
        let seed = ext4(&inode).seed;
        let blocks = inode.size() >> geo.block_bits;
        for lblk in 0..blocks.min(1 << 16) {
            let (place, _) = self.maps.lookup(&inode, FileBlock(lblk), 1)?;
            // The checksum shows whether it was written, independent of the mapping: Linux reads it,
            // too.
            let (BlockState::Mapped(block) | BlockState::Unwritten(block)) = place else {
                return Err(self.volume.corrupt(
                    op,
                    Some(ino),
                    None,
                    format!("block {lblk} is missing"),
                ));
            };
            let buffer = self
                .volume
                .cache
                .read(block, BlockKind::OrphanFile, |data| {
                    orphan_file::verify(data, block, geo, seed)
                        .map_err(|e| Error::corrupt(op, e.to_string()))
                })
                .map_err(|e| match e.kind() {
                    ErrorKind::Corrupt => {
                        self.volume
                            .corrupt(op, Some(ino), Some(block), e.to_string())
                    }
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
            if !seen.insert(next) || next > self.volume.geometry().inodes_count {
                // Its target is unknown; what came before is still finished.
                let _ = self.volume.corrupt(
                    op,
                    Some(Ino(next)),
                    None,
                    "the orphan list is damaged here",
                );
                break;
            }
            chain.push(next);
            let (buffer, offset) = self.table.buffer(Ino(next))?;
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
        let (mut truncated, mut deleted) = (0, 0);
        for ino in self.orphans.numbers() {
            if self.volume.is_read_only() {
                break;
            }
            let inode = match self.stored.load_for(Ino(ino), Purpose::Orphan) {
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Stale) => {
                    // It may be the inode of an attribute's value, which is deleted alike.
                    match self.stored.load_for(Ino(ino), Purpose::EaInode) {
                        Ok(inode) => inode,
                        Err(_) => continue,
                    }
                }
                other => other?,
            };
            let own = ext4(&inode);
            let listed = self.orphans.is_listed(Ino(ino));
            own.on_orphan_list.store(listed, Ordering::Release);
            own.body.lock().dtime = 0;
            if inode.attr().nlink == 0 {
                self.eviction.evict(&inode)?;
                deleted += 1;
                continue;
            }
            if !own.flags().contains(InodeFlags::INLINE_DATA)
                && matches!(inode.kind(), vfs::FileKind::Regular)
            {
                let geo = self.volume.geometry();
                let from = inode.size().div_ceil(u64::from(geo.block_size));
                self.maps
                    .remove(&inode, FileBlock(from), FileBlock(1 << 32), OP)?;
            }
            let h = self.volume.journal.start(orphan::CREDITS + 1, OP)?;
            self.orphans.remove(&h, &inode)?;
            self.inodes.store(&h, &inode)?;
            truncated += 1;
        }
        self.orphans.clear_present()?;
        Ok((truncated, deleted))
    }
}
