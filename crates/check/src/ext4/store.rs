//! Blocks of the volume, through an overlay of changed ones.
//!
//! Every read of a check comes through here. So the next step sees a journal that was replayed in memory, and repairs that
//! are not written yet. Nothing reaches the device before [`Store::write_back`].
//!
//! Crash order of [`Store::write_back`]: blocks that nothing refers to yet; flush; every other block but the primary
//! superblock; flush; the primary superblock; flush. After a crash in between, the superblock still asks for a check.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blockwright_device::{BlockDevice, DevOffset, Flags, SharedDevice};
use blockwright_ondisk::ext4::BlockNo;

use super::CheckError;

/// Largest single read or write.
const IO_BYTES_MAX: usize = 4 << 20;

/// The volume's blocks.
pub(super) struct Store {
    device: SharedDevice,
    block_size: usize,
    blocks: u64,
    overlay: BTreeMap<u64, Arc<[u8]>>,
    /// Blocks of the overlay to be written back; others are there only to be read (a replay in
    /// memory).
    dirty: BTreeSet<u64>,
    /// Those of them that nothing on the device refers to yet.
    fresh: BTreeSet<u64>,
    /// The hole of a sparse image that was met last, in bytes.
    hole: Cell<(u64, u64)>,
    /// Something was written at once.
    wrote_at_once: Cell<bool>,
}

impl Store {
    /// All blocks of a volume of `blocks` blocks.
    pub fn new(device: SharedDevice, block_size: usize, blocks: u64) -> Self {
        Self {
            device,
            block_size,
            blocks,
            overlay: BTreeMap::new(),
            dirty: BTreeSet::new(),
            wrote_at_once: Cell::new(false),
            fresh: BTreeSet::new(),
            hole: Cell::new((0, 0)),
        }
    }

    /// Whether blocks read as zeroes because nothing was ever stored there. `false` where the device cannot tell.
    pub fn is_hole(&self, first: BlockNo, count: u64) -> bool {
        let end = first.0.saturating_add(count);
        if end > self.blocks || self.overlay.range(first.0..end).next().is_some() {
            return false;
        }
        let size = self.block_size as u64;
        self.in_hole(first.0 * size, end * size)
    }

    fn in_hole(&self, at: u64, end: u64) -> bool {
        let (start, stop) = self.hole.get();
        if start <= at && end <= stop {
            return true;
        }
        let data = self.device.next_data(DevOffset(at)).0;
        if data > at {
            self.hole.set((at, data));
        }
        end <= data
    }

    /// The first block at `block` or behind it that may hold anything but zeroes.
    pub fn next_stored(&self, block: BlockNo) -> BlockNo {
        let size = self.block_size as u64;
        let (start, stop) = self.hole.get();
        let at = block.0 * size;
        let mut data = stop;
        if !(start..stop).contains(&at) {
            data = self.device.next_data(DevOffset(at)).0;
            if data > at {
                self.hole.set((at, data));
            }
        }
        // The block that the data begins in.
        let stored = (data / size).max(block.0);
        let changed = self.overlay.range(block.0..stored).next();
        BlockNo(changed.map_or(stored, |(block, _)| *block))
    }

    /// How many whole blocks the device has.
    pub fn device_blocks(&self) -> u64 {
        self.device.geometry().bytes / self.block_size as u64
    }

    /// The volume has more blocks than its superblock said.
    pub fn grow(&mut self, blocks: u64) {
        self.blocks = self.blocks.max(blocks);
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads bytes of the device, whatever its logical block size.
    pub fn read_bytes(
        device: &dyn BlockDevice,
        offset: u64,
        bytes: usize,
        what: &'static str,
    ) -> Result<Vec<u8>, CheckError> {
        let unit = u64::from(device.geometry().logical_block_bytes).max(1);
        let start = offset / unit * unit;
        let end = offset.saturating_add(bytes as u64).next_multiple_of(unit);
        let mut out = vec![0; (end - start) as usize];
        device
            .read_at(DevOffset(start), &mut out)
            .map_err(|source| CheckError::Device { what, source })?;
        let skip = (offset - start) as usize;
        if skip > 0 {
            out.drain(..skip);
        }
        out.truncate(bytes);
        Ok(out)
    }

    /// Reads one block.
    pub fn read(&self, block: BlockNo, what: &'static str) -> Result<Vec<u8>, CheckError> {
        if let Some(bytes) = self.overlay.get(&block.0) {
            return Ok(bytes.to_vec());
        }
        self.read_run(block, 1, what)
    }

    /// Reads consecutive blocks with as few requests as possible.
    pub fn read_run(
        &self,
        first: BlockNo,
        count: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, CheckError> {
        if first.0.saturating_add(count) > self.blocks {
            return Err(CheckError::OutsideVolume { what, block: first });
        }
        let size = self.block_size as u64;
        let mut out = Vec::with_capacity((count * size) as usize);
        let (mut at, end) = (first.0 * size, (first.0 + count) * size);
        while at < end {
            let piece = (end - at).min(IO_BYTES_MAX as u64) as usize;
            if self.in_hole(at, at + piece as u64) {
                at += piece as u64;
                out.resize(out.len() + piece, 0);
                continue;
            }
            out.extend(Self::read_bytes(&*self.device, at, piece, what)?);
            at += piece as u64;
        }
        for (block, bytes) in self.overlay.range(first.0..first.0 + count) {
            let at = ((block - first.0) * size) as usize;
            out[at..at + self.block_size].copy_from_slice(bytes);
        }
        Ok(out)
    }

    /// Changes a block, in memory.
    pub fn write(&mut self, block: BlockNo, bytes: Vec<u8>) {
        debug_assert_eq!(bytes.len(), self.block_size);
        self.overlay.insert(block.0, bytes.into());
        self.dirty.insert(block.0);
    }

    /// Changes a block that nothing on the device refers to: it is written before all others, so
    /// that what will refer to it never names a block that is not there.
    pub fn write_fresh(&mut self, block: BlockNo, bytes: Vec<u8>) {
        self.write(block, bytes);
        self.fresh.insert(block.0);
    }

    /// Changes how a block reads without ever writing it: a replay in memory.
    pub fn shadow(&mut self, block: BlockNo, bytes: Vec<u8>) {
        self.overlay.insert(block.0, bytes.into());
    }

    /// Copies blocks on the device, at once and not through the overlay: only for targets that
    /// nothing refers to yet.
    pub fn copy_to_free(&self, from: BlockNo, to: BlockNo) -> Result<(), CheckError> {
        let bytes = self.read(from, "shared block")?;
        self.wrote_at_once.set(true);
        self.write_device(to.0 * self.block_size as u64, &bytes)
    }

    /// Zeroes blocks on the device, at once and not through the overlay: only blocks that nothing
    /// refers to yet.
    pub fn zero(&self, first: BlockNo, count: u64) -> Result<(), CheckError> {
        let size = self.block_size as u64;
        let what = "repairs";
        self.wrote_at_once.set(true);
        self.device
            .write_zeroes(DevOffset(first.0 * size), count * size)
            .map_err(|source| CheckError::Device { what, source })
    }

    /// Whether something was written to the device that waits for nothing. What is free in the repaired state may be in use on the device: the repair has to
    /// come to its end.
    pub fn has_written_at_once(&self) -> bool {
        self.wrote_at_once.get()
    }

    /// How many blocks wait to be written.
    pub fn pending(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// Drops all changes that wait to be written.
    pub fn discard_changes(&mut self) {
        self.fresh.clear();
        for block in std::mem::take(&mut self.dirty) {
            self.overlay.remove(&block);
        }
    }

    /// Drops blocks that were written back already from memory.
    pub fn forget_clean(&mut self) {
        let dirty = &self.dirty;
        self.overlay.retain(|block, _| dirty.contains(block));
    }

    /// Writes all changes; see the head of the module for the order. The number of blocks written.
    pub fn write_back(&mut self, superblock: BlockNo) -> Result<u64, CheckError> {
        let dirty = std::mem::take(&mut self.dirty);
        let count = dirty.len() as u64;
        if count == 0 {
            return Ok(0);
        }
        let fresh = std::mem::take(&mut self.fresh);
        if !fresh.is_empty() {
            self.write_blocks(fresh.iter().filter(|b| dirty.contains(b)))?;
            self.flush()?;
        }
        self.write_blocks(
            dirty
                .iter()
                .filter(|b| **b != superblock.0 && !fresh.contains(b)),
        )?;
        self.flush()?;
        if dirty.contains(&superblock.0)
            && let Some(bytes) = self.overlay.get(&superblock.0)
        {
            self.write_device(superblock.0 * self.block_size as u64, bytes)?;
            self.flush()?;
        }
        Ok(count)
    }

    /// Writes blocks of the overlay, given in ascending order, in runs.
    fn write_blocks<'b>(&self, blocks: impl Iterator<Item = &'b u64>) -> Result<(), CheckError> {
        let size = self.block_size;
        let mut run: Option<(u64, Vec<u8>)> = None;
        for block in blocks {
            let Some(bytes) = self.overlay.get(block) else {
                continue;
            };
            match &mut run {
                Some((first, all))
                    if *first + (all.len() / size) as u64 == *block
                        && all.len() + size <= IO_BYTES_MAX =>
                {
                    all.extend_from_slice(bytes);
                }
                _ => {
                    if let Some((first, all)) = run.take() {
                        self.write_device(first * size as u64, &all)?;
                    }
                    run = Some((*block, bytes.to_vec()));
                }
            }
        }
        if let Some((first, all)) = run {
            self.write_device(first * size as u64, &all)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), CheckError> {
        self.device.flush().map_err(|source| CheckError::Device {
            what: "repairs",
            source,
        })
    }

    fn write_device(&self, offset: u64, bytes: &[u8]) -> Result<(), CheckError> {
        let what = "repairs";
        self.hole.set((0, 0));
        let unit = u64::from(self.device.geometry().logical_block_bytes).max(1);
        let start = offset / unit * unit;
        let end = (offset + bytes.len() as u64).next_multiple_of(unit);
        let whole = if (start, end) == (offset, offset + bytes.len() as u64) {
            bytes.to_vec()
        } else {
            // The device's blocks are larger than the volume's: keep what lies around.
            let mut whole = Self::read_bytes(&*self.device, start, (end - start) as usize, what)?;
            let at = (offset - start) as usize;
            whole[at..at + bytes.len()].copy_from_slice(bytes);
            whole
        };
        self.device
            .write_at(DevOffset(start), &whole, Flags::empty())
            .map_err(|source| CheckError::Device { what, source })
    }
}
