//! The device in blocks of 4096 bytes.
//!
//! Owns the device. Nothing is cached, and nothing is flushed unless asked for.

use blockwright_device::{DevOffset, Flags, SharedDevice};
use blockwright_ondisk::f2fs::types::BLOCK_BITS;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr};

use crate::error::{ReshapeError, Result};
use crate::watch::Watch;

/// Largest single read or write, in blocks.
const RUN_BLOCKS: usize = 1024;

/// A device in blocks of a volume.
#[derive(Clone)]
pub(crate) struct Store {
    device: SharedDevice,
    /// Sees how far the change is.
    pub watch: Watch,
}

fn offset(block: u64) -> DevOffset {
    DevOffset(block << BLOCK_BITS)
}

impl Store {
    pub fn new(device: SharedDevice, watch: Watch) -> Self {
        Self { device, watch }
    }

    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.device.geometry().bytes
    }

    /// Reads consecutive blocks.
    pub fn read(&self, first: BlockAddr, count: u32, what: &'static str) -> Result<Vec<u8>> {
        let mut out = vec![0; count as usize * BLOCK_SIZE];
        let mut at = u64::from(first.0);
        for piece in out.chunks_mut(RUN_BLOCKS * BLOCK_SIZE) {
            self.device
                .read_at(offset(at), piece)
                .map_err(ReshapeError::device(what))?;
            at += (piece.len() / BLOCK_SIZE) as u64;
        }
        Ok(out)
    }

    /// Writes consecutive blocks.
    pub fn write(&self, first: BlockAddr, bytes: &[u8], what: &'static str) -> Result<()> {
        let mut at = u64::from(first.0);
        for piece in bytes.chunks(RUN_BLOCKS * BLOCK_SIZE) {
            self.device
                .write_at(offset(at), piece, Flags::empty())
                .map_err(ReshapeError::device(what))?;
            at += (piece.len() / BLOCK_SIZE) as u64;
        }
        Ok(())
    }

    /// Makes blocks read as zeroes. Holes stay holes.
    pub fn zero(&self, first: BlockAddr, count: u32, what: &'static str) -> Result<()> {
        let (start, bytes) = (offset(u64::from(first.0)), u64::from(count) << BLOCK_BITS);
        if count == 0 || self.device.next_data(start).0 >= start.0 + bytes {
            return Ok(());
        }
        self.device
            .write_zeroes(start, bytes)
            .map_err(ReshapeError::device(what))
    }

    /// Writes blocks in the order given, neighbours together.
    pub fn write_all<'b>(
        &self,
        blocks: impl Iterator<Item = (BlockAddr, &'b [u8])>,
        what: &'static str,
    ) -> Result<()> {
        let mut run: Option<(BlockAddr, Vec<u8>)> = None;
        for (block, bytes) in blocks {
            if let Some((first, all)) = &mut run {
                let blocks = all.len() / BLOCK_SIZE;
                if u64::from(first.0) + blocks as u64 == u64::from(block.0) && blocks < RUN_BLOCKS {
                    all.extend_from_slice(bytes);
                    continue;
                }
                self.write(*first, all, what)?;
            }
            run = Some((block, bytes.to_vec()));
        }
        match run {
            Some((first, all)) => self.write(first, &all, what),
            None => Ok(()),
        }
    }

    /// Makes all that was written durable.
    pub fn flush(&self, what: &'static str) -> Result<()> {
        self.device.flush().map_err(ReshapeError::device(what))
    }
}
