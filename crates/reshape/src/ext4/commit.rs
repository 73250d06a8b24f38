//! How staged blocks become the volume's state, all of them or none.
//!
//! A change is one transaction of the volume's own journal. The program that opens the volume after a crash (the kernel, e2fsck or this
//! library) replays the journal or finds it empty. So ordinary recovery finishes or undoes the change.
//!
//! # Crash order
//! 1. The transaction into the log; the superblock asks for recovery. Flush. The log is empty as far as its superblock says, so nothing happens yet.
//! 2. The journal's superblock says that the log holds a transaction. Flush: **the change is made**.
//! 3. Every staged block in its place. Flush.
//! 4. The journal's superblock says that the log is empty. Flush.
//! 5. The superblock asks for no recovery. Flush.
//! 6. Copies of superblock and descriptors, which serve only when the originals are lost.
//!
//! A smaller size is committed otherwise (`Order::Superblock`): the kernel counts groups before it replays the journal. With a superblock that
//! shrinks in the replay it would allocate in groups that are gone. So step 1 leaves the superblock alone, and between steps 2 and 3 the
//! superblock itself is written, which asks for recovery and has the new size. The same order serves changes of form that the superblock announces (`64bit`,
//! `metadata_csum`).
//!
//! A change of the superblock alone needs no journal: it is one write. A volume without a journal gets one for the time of the change (`journal_file`).
//!
//! A journal on another device has steps 2 and 4, and the log, on that device. Each flush that follows them reaches it first, so the order is the same.
//!
//! The log's superblock changes in its first 512 bytes only. A superblock that is torn is replaced by a copy, as
//! always.

use blockwright_ondisk::ext4::superblock::State;

use super::log::Log;
use super::volume::Volume;
use crate::error::Result;

/// What makes the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The log.
    Log,
    /// The superblock, because an opener must know it before it replays the log: the volume gets smaller, or metadata another form.
    Superblock,
}

impl Volume {
    /// Commits the superblock alone. It must be all that changes.
    pub fn commit_super(&mut self) -> Result<()> {
        debug_assert!(self.disk.staged().is_empty());
        self.has_committed = true;
        self.write_super(&self.sb.raw, false)?;
        self.disk.flush("superblock")?;
        self.committed = self.sb.raw;
        Ok(())
    }

    /// Commits everything that is staged, and the superblock, without a journal. The volume is unclean meanwhile. A checker must be able to mend, without loss,
    /// what is staged under the superblock with more blocks: the one before of a volume that gets smaller, else the new one. So no block behind the end is
    /// ever free.
    pub fn commit_unlogged(&mut self) -> Result<()> {
        let larger = self.sb.raw.blocks_count() > self.committed.blocks_count();
        let mut unclean = if larger { self.sb.raw } else { self.committed };
        unclean.state.set((unclean.state() - State::CLEAN).bits());
        self.write_super(&unclean, false)?;
        self.disk.flush("superblock")?;
        let images = self.disk.staged();
        let images = images
            .iter()
            .map(|(block, image)| (*block, image.as_slice()));
        self.disk.write_all(images, "metadata")?;
        self.disk.flush("metadata")?;
        self.disk.clear_staged();
        self.commit_super()
    }

    /// Commits everything that is staged, and the superblock, through this log. The copies are not written. The log was opened before anything
    /// was staged, so it is where the committed state has it.
    pub fn commit_through(&mut self, log: &mut Log, order: Order) -> Result<()> {
        self.stage_super(true)?;
        let images = self.disk.staged();
        log.write(&self.disk, images.iter().map(|(b, i)| (*b, i.as_slice())))?;
        if order != Order::Superblock {
            self.write_super(&self.committed, true)?;
        }
        self.disk.flush("journal")?;
        log.flush_elsewhere()?;
        self.has_committed = true;
        log.set_live(&self.disk)?;
        log.flush(&self.disk)?;
        if order == Order::Superblock {
            self.write_super(&self.sb.raw, true)?;
            self.disk.flush("superblock")?;
        }
        let images = self.disk.staged();
        let images = images
            .iter()
            .map(|(block, image)| (*block, image.as_slice()));
        self.disk.write_all(images, "metadata")?;
        self.disk.flush("metadata")?;
        log.set_empty(&self.disk)?;
        log.flush(&self.disk)?;
        self.write_super(&self.sb.raw, false)?;
        self.disk.flush("superblock")?;
        self.committed = self.sb.raw;
        self.disk.clear_staged();
        Ok(())
    }
}
