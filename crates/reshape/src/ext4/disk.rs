//! The device in blocks, and the after-images of blocks that wait for a commit.
//!
//! Owns: the device, and the staged blocks. Reads see staged blocks. Nothing staged reaches the device except through `commit`. Blocks that
//! are written immediately ([`Disk::write_now`], [`Disk::zero_now`]) must be free, or outside the volume, in the committed state. The other kind that is
//! allowed is a block of which only such bytes differ that the committed superblock and descriptors have every opener ignore: checksums without their
//! feature, bitmaps and tables that count as never written, reserved inodes that no feature uses, copies.

use std::collections::BTreeMap;

use blockwright_device::{CopyBatch, DevOffset, Flags, SharedDevice};

use super::marked_tables::MarkedTables;
use crate::error::{ReshapeError, Result};
use crate::watch::Watch;

/// Largest single read or write.
const IO_BYTES_MAX: usize = 4 << 20;

/// A device in blocks of a volume.
pub(crate) struct Disk {
    device: SharedDevice,
    /// Sees how far the change is.
    pub watch: Watch,
    /// The device is an overlay in memory that is dropped: contents that no later step reads are not written.
    pub rehearses: bool,
    /// Inode tables that have checksums only when they are read. Of a rehearsal alone.
    pub marked: Option<MarkedTables>,
    block_size: usize,
    staged: BTreeMap<u64, Vec<u8>>,
}

impl Disk {
    pub fn new(device: SharedDevice, block_size: u32) -> Self {
        Self {
            device,
            watch: Watch::default(),
            rehearses: false,
            marked: None,
            block_size: block_size as usize,
            staged: BTreeMap::new(),
        }
    }

    pub fn block_len(&self) -> usize {
        self.block_size
    }

    /// Reads bytes, whatever the device's logical block size.
    pub fn read_bytes(
        device: &SharedDevice,
        offset: u64,
        bytes: usize,
        what: &'static str,
    ) -> Result<Vec<u8>> {
        let unit = u64::from(device.geometry().logical_block_bytes).max(1);
        let start = offset / unit * unit;
        let end = (offset + bytes as u64).next_multiple_of(unit);
        let mut out = vec![0; (end - start) as usize];
        device
            .read_at(DevOffset(start), &mut out)
            .map_err(ReshapeError::device(what))?;
        out.drain(..(offset - start) as usize);
        out.truncate(bytes);
        Ok(out)
    }

    /// Writes bytes, whatever the device's logical block size.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8], what: &'static str) -> Result<()> {
        let unit = u64::from(self.device.geometry().logical_block_bytes).max(1);
        let start = offset / unit * unit;
        let end = (offset + bytes.len() as u64).next_multiple_of(unit);
        let failed = ReshapeError::device(what);
        if (start, end) == (offset, offset + bytes.len() as u64) {
            return self
                .device
                .write_at(DevOffset(start), bytes, Flags::empty())
                .map_err(failed);
        }
        let mut whole = Self::read_bytes(&self.device, start, (end - start) as usize, what)?;
        let at = (offset - start) as usize;
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        self.device
            .write_at(DevOffset(start), &whole, Flags::empty())
            .map_err(failed)
    }

    /// A block, as it will be when what is staged is committed.
    pub fn read(&self, block: u64, what: &'static str) -> Result<Vec<u8>> {
        match self.staged.get(&block) {
            Some(bytes) => Ok(bytes.clone()),
            None => {
                let at = block * self.block_size as u64;
                let mut bytes = Self::read_bytes(&self.device, at, self.block_size, what)?;
                if let Some(tables) = &self.marked {
                    tables.apply(block, &mut bytes)?;
                }
                Ok(bytes)
            }
        }
    }

    /// A block as it is on the device, whatever is staged.
    pub fn read_unstaged(&self, block: u64, what: &'static str) -> Result<Vec<u8>> {
        let at = block * self.block_size as u64;
        Self::read_bytes(&self.device, at, self.block_size, what)
    }

    /// Consecutive blocks, as [`Disk::read`].
    pub fn read_run(&self, first: u64, count: u64, what: &'static str) -> Result<Vec<u8>> {
        let size = self.block_size as u64;
        let mut out = Vec::with_capacity((count * size) as usize);
        let (mut at, end) = (first * size, (first + count) * size);
        while at < end {
            let piece = (end - at).min(IO_BYTES_MAX as u64);
            if self.device.next_data(DevOffset(at)).0 >= at + piece {
                out.resize(out.len() + piece as usize, 0);
            } else {
                out.extend(Self::read_bytes(&self.device, at, piece as usize, what)?);
            }
            at += piece;
        }
        if let Some(tables) = &self.marked {
            tables.apply(first, &mut out)?;
        }
        for (block, bytes) in self.staged.range(first..first + count) {
            let at = ((block - first) * size) as usize;
            out[at..at + self.block_size].copy_from_slice(bytes);
        }
        Ok(out)
    }

    /// An empty batch of copies between blocks that nothing changes meanwhile, see [`Disk::copy`].
    pub fn copies(&self) -> CopyBatch {
        CopyBatch::new(&self.device)
    }

    /// Orders a copy to blocks that nothing refers to yet; a hole is made at once. `Ok` of the batch's `finish` means that it is made.
    pub fn copy(
        &self,
        batch: &mut CopyBatch,
        from: u64,
        to: u64,
        count: u64,
        what: &'static str,
    ) -> Result<()> {
        if self.is_hole(from, count) {
            return self.zero_now(to, count, what);
        }
        let size = self.block_size as u64;
        let unit = u64::from(self.device.geometry().logical_block_bytes).max(1);
        let is_staged = self.staged.range(from..from + count).next().is_some();
        if size.is_multiple_of(unit) && !is_staged {
            batch.push(DevOffset(from * size), DevOffset(to * size), count * size);
            return Ok(());
        }
        let bytes = self.read_run(from, count, what)?;
        self.write_now(to, &bytes, what)
    }

    /// Changes a block, in memory.
    pub fn stage(&mut self, block: u64, bytes: Vec<u8>) {
        debug_assert_eq!(bytes.len(), self.block_size);
        self.staged.insert(block, bytes);
    }

    /// What waits for a commit.
    pub fn staged(&self) -> &BTreeMap<u64, Vec<u8>> {
        &self.staged
    }

    /// Forgets what was staged: it has been committed.
    pub fn clear_staged(&mut self) {
        self.staged.clear();
    }

    /// Writes blocks that nothing refers to yet, or in which only bytes differ that every opener ignores.
    pub fn write_now(&self, block: u64, bytes: &[u8], what: &'static str) -> Result<()> {
        let mut at = block * self.block_size as u64;
        for piece in bytes.chunks(IO_BYTES_MAX) {
            self.write_bytes(at, piece, what)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Makes blocks that nothing refers to yet read as zeroes. Holes stay holes.
    pub fn zero_now(&self, first: u64, count: u64, what: &'static str) -> Result<()> {
        if count == 0 || self.rehearses || self.is_hole(first, count) {
            return Ok(());
        }
        let size = self.block_size as u64;
        let unit = u64::from(self.device.geometry().logical_block_bytes).max(1);
        if size.is_multiple_of(unit) {
            return self
                .device
                .write_zeroes(DevOffset(first * size), count * size)
                .map_err(ReshapeError::device(what));
        }
        let zeroes = vec![0; self.block_size];
        (first..first + count).try_for_each(|block| self.write_now(block, &zeroes, what))
    }

    /// Whether blocks read as zeroes because nothing was ever stored there. `false` where the device cannot tell.
    pub fn is_hole(&self, first: u64, count: u64) -> bool {
        let size = self.block_size as u64;
        self.device.next_data(DevOffset(first * size)).0 >= (first + count) * size
    }

    /// Writes blocks in ascending order, neighbours together.
    pub fn write_all<'b>(
        &self,
        blocks: impl Iterator<Item = (u64, &'b [u8])>,
        what: &'static str,
    ) -> Result<()> {
        let mut run: Option<(u64, Vec<u8>)> = None;
        for (block, bytes) in blocks {
            match &mut run {
                Some((first, all))
                    if *first + (all.len() / self.block_size) as u64 == block
                        && all.len() + self.block_size <= IO_BYTES_MAX =>
                {
                    all.extend_from_slice(bytes);
                }
                _ => {
                    if let Some((first, all)) = run.take() {
                        self.write_now(first, &all, what)?;
                    }
                    run = Some((block, bytes.to_vec()));
                }
            }
        }
        match run {
            Some((first, all)) => self.write_now(first, &all, what),
            None => Ok(()),
        }
    }

    /// Makes all that was written durable.
    pub fn flush(&self, what: &'static str) -> Result<()> {
        self.device.flush().map_err(ReshapeError::device(what))
    }
}
