//! The device in blocks of 4096 bytes.
//!
//! Owns the device. Nothing is cached, and nothing is flushed unless asked for. In a rehearsal nothing is written: [`super::trial`] keeps the blocks of metadata in
//! memory, and data is not copied, because nothing reads it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwright_device::{DevOffset, Flags, SharedDevice};
use blockwright_ondisk::f2fs::types::BLOCK_BITS;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr};

use super::trial::{Image, Trial};
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
    /// Blocks that a rehearsal has written. Clones share them.
    trial: Option<Arc<Mutex<Trial>>>,
}

fn offset(block: u64) -> DevOffset {
    DevOffset(block << BLOCK_BITS)
}

impl Store {
    pub fn new(device: SharedDevice, watch: Watch) -> Self {
        Self {
            device,
            watch,
            trial: None,
        }
    }

    /// A store for a rehearsal: the device is only read.
    pub fn rehearsal(device: SharedDevice, watch: &Watch) -> Self {
        Self {
            device,
            watch: watch.planning(),
            trial: Some(Arc::default()),
        }
    }

    /// Whether contents of files are neither read nor written.
    pub fn rehearses(&self) -> bool {
        self.trial.is_some()
    }

    fn trial(&self) -> Option<MutexGuard<'_, Trial>> {
        let trial = self.trial.as_ref()?;
        Some(trial.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.device.geometry().bytes
    }

    /// Reads consecutive blocks.
    pub fn read(&self, first: BlockAddr, count: u32, what: &'static str) -> Result<Vec<u8>> {
        let mut out = self.read_device(first, count, what)?;
        if let Some(trial) = self.trial() {
            let read = |block| self.read_device(BlockAddr(block), 1, what);
            trial.patch(u64::from(first.0), &mut out, read)?;
        }
        Ok(out)
    }

    /// Reads consecutive blocks, as they are on the device.
    fn read_device(&self, first: BlockAddr, count: u32, what: &'static str) -> Result<Vec<u8>> {
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
        if let Some(mut trial) = self.trial() {
            for (block, bytes) in (at..).zip(bytes.chunks(BLOCK_SIZE)) {
                trial.keep(block, Image::whole(bytes));
            }
            return Ok(());
        }
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
        if let Some(mut trial) = self.trial() {
            trial.zero(u64::from(first.0), u64::from(count));
            return Ok(());
        }
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

    /// As [`Store::write_all`], of blocks whose bytes are almost those of another block each, which is named in the middle.
    pub fn write_edited<'b>(
        &self,
        blocks: impl Iterator<Item = (BlockAddr, BlockAddr, &'b [u8])>,
        what: &'static str,
    ) -> Result<()> {
        if !self.rehearses() {
            return self.write_all(blocks.map(|(to, _, bytes)| (to, bytes)), what);
        }
        for (to, from, bytes) in blocks {
            // What was edited before is an edit of the same block of the device.
            let of =
                self.trial()
                    .as_deref()
                    .and_then(|t| match t.get(u64::from(from.0)).as_deref() {
                        None => Some(from.0),
                        Some(Image::Edited { of, .. }) => Some(*of),
                        Some(Image::Zero | Image::Whole(_)) => None,
                    });
            let image = match of {
                Some(of) => {
                    let old = self.read_device(BlockAddr(of), 1, what)?;
                    Image::edited(of, &old, bytes)
                }
                None => Image::whole(bytes),
            };
            if let Some(mut trial) = self.trial() {
                trial.keep(u64::from(to.0), image);
            }
        }
        Ok(())
    }

    /// Copies consecutive blocks of metadata.
    pub fn copy(
        &self,
        from: BlockAddr,
        to: BlockAddr,
        count: u32,
        what: &'static str,
    ) -> Result<()> {
        let Some(mut trial) = self.trial() else {
            let bytes = self.read(from, count, what)?;
            return self.write(to, &bytes, what);
        };
        for n in 0..count {
            let image = trial.get(u64::from(from.0 + n)).map(Cow::into_owned);
            let image = image.unwrap_or_else(|| Image::of_device(from.0 + n));
            trial.keep(u64::from(to.0 + n), image);
        }
        Ok(())
    }

    /// Makes all that was written durable.
    pub fn flush(&self, what: &'static str) -> Result<()> {
        if self.rehearses() {
            return Ok(());
        }
        self.device.flush().map_err(ReshapeError::device(what))
    }
}
