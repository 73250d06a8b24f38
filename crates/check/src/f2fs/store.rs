//! Blocks of the volume, through an overlay of changed ones.
//!
//! Every read of a check comes through here, so the next step sees repairs that are not written yet. Nothing reaches the
//! device before the repair is written as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockwright_device::{BlockDevice, DevOffset, Flags, SharedDevice};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr};

use super::CheckError;

/// Largest single read or write, in blocks.
const RUN_BLOCKS: u32 = 1024;

/// The volume's blocks.
pub(super) struct Store {
    device: SharedDevice,
    blocks: u64,
    overlay: BTreeMap<u32, Arc<[u8]>>,
}

impl Store {
    /// All blocks of a volume of `blocks` blocks.
    pub fn new(device: SharedDevice, blocks: u64) -> Self {
        Self {
            device,
            blocks,
            overlay: BTreeMap::new(),
        }
    }

    /// Reads blocks of a device, wherever they are.
    pub fn read_device(
        device: &dyn BlockDevice,
        first: u64,
        count: u32,
        what: &'static str,
    ) -> Result<Vec<u8>, CheckError> {
        let mut out = vec![0; count as usize * BLOCK_SIZE];
        device
            .read_at(DevOffset(first * BLOCK_SIZE as u64), &mut out)
            .map_err(|source| CheckError::Device { what, source })?;
        Ok(out)
    }

    /// Reads one block.
    pub fn read(&self, block: BlockAddr, what: &'static str) -> Result<Vec<u8>, CheckError> {
        if let Some(bytes) = self.overlay.get(&block.0) {
            return Ok(bytes.to_vec());
        }
        self.read_run(block, 1, what)
    }

    /// Reads consecutive blocks with as few requests as possible.
    pub fn read_run(
        &self,
        first: BlockAddr,
        count: u32,
        what: &'static str,
    ) -> Result<Vec<u8>, CheckError> {
        if u64::from(first.0) + u64::from(count) > self.blocks {
            return Err(CheckError::OutsideVolume { what, block: first });
        }
        let mut out = Vec::with_capacity(count as usize * BLOCK_SIZE);
        let (mut at, end) = (first.0, first.0 + count);
        while at < end {
            let piece = (end - at).min(RUN_BLOCKS);
            out.extend(Self::read_device(
                &*self.device,
                u64::from(at),
                piece,
                what,
            )?);
            at += piece;
        }
        for (block, bytes) in self.overlay.range(first.0..end) {
            let at = (block - first.0) as usize * BLOCK_SIZE;
            out[at..at + BLOCK_SIZE].copy_from_slice(bytes);
        }
        Ok(out)
    }

    /// Changes a block, in memory. Whether it was not changed before.
    pub fn write(&mut self, block: BlockAddr, bytes: Vec<u8>) -> bool {
        debug_assert_eq!(bytes.len(), BLOCK_SIZE);
        self.overlay.insert(block.0, bytes.into()).is_none()
    }

    /// The changed blocks, which are forgotten.
    pub fn take_changes(&mut self) -> BTreeMap<u32, Arc<[u8]>> {
        std::mem::take(&mut self.overlay)
    }

    /// The blocks that were changed.
    pub fn changed(&self) -> Vec<BlockAddr> {
        self.overlay.keys().map(|n| BlockAddr(*n)).collect()
    }

    /// Makes a changed block another one; the old one is as it was. Whether it was changed.
    pub fn move_change(&mut self, from: BlockAddr, to: BlockAddr) -> bool {
        let Some(bytes) = self.overlay.remove(&from.0) else {
            return false;
        };
        self.overlay.insert(to.0, bytes);
        true
    }

    /// How many blocks were changed.
    pub fn pending(&self) -> usize {
        self.overlay.len()
    }

    /// Writes blocks to the device, in runs.
    pub fn write_device(&self, blocks: &BTreeMap<u32, Arc<[u8]>>) -> Result<(), CheckError> {
        let mut run: Option<(u32, Vec<u8>)> = None;
        for (block, bytes) in blocks {
            match &mut run {
                Some((first, all))
                    if *first as usize + all.len() / BLOCK_SIZE == *block as usize
                        && all.len() < RUN_BLOCKS as usize * BLOCK_SIZE =>
                {
                    all.extend_from_slice(bytes);
                }
                _ => {
                    if let Some((first, all)) = run.take() {
                        self.put(first, &all)?;
                    }
                    run = Some((*block, bytes.to_vec()));
                }
            }
        }
        match run {
            Some((first, all)) => self.put(first, &all),
            None => Ok(()),
        }
    }

    fn put(&self, first: u32, bytes: &[u8]) -> Result<(), CheckError> {
        let offset = DevOffset(u64::from(first) * BLOCK_SIZE as u64);
        self.device
            .write_at(offset, bytes, Flags::empty())
            .map_err(|source| CheckError::Device {
                what: "repairs",
                source,
            })
    }

    /// Makes everything written durable.
    pub fn flush(&self) -> Result<(), CheckError> {
        self.device.flush().map_err(|source| CheckError::Device {
            what: "repairs",
            source,
        })
    }
}
