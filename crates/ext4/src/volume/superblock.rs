//! [`SuperState`]: the superblock while mounted: totals that change with every allocation, and journaled updates.
//!
//! Totals live in atomics. Writing them on every allocation would make the superblock's block a
//! bottleneck, so the journal's lock hook puts them in once per transaction, when no handle is
//! left: a crash image then has the totals that its group descriptors add up to.
//!
//! # Locks
//! `raw`, then the buffer. Both below a handle and below group locks.

use super::{ErrorRecord, now_seconds};
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, BufferRef, MetaCache};
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, Monitor, SharedDevice};
use blockwright_ondisk::ext4::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use blockwright_ondisk::ext4::{RawSuperblock, Superblock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of bytes written to a device since it was opened; nothing where it does not count. `s_kbytes_written` says how much the
/// volume was written in its life, as the kernel has it.
fn written_bytes(device: &SharedDevice) -> u64 {
    device.monitor().map_or(0, Monitor::written_bytes)
}

/// See the module's head.
pub struct SuperState {
    buffer: BufferRef,
    /// Offset of the superblock in its block.
    at: usize,
    raw: Mutex<RawSuperblock>,
    free_blocks: AtomicU64,
    free_inodes: AtomicU64,
    device: SharedDevice,
    /// KiB written in the volume's life before this mount, and what the device had been given by then, in bytes.
    written_before: (u64, u64),
    /// Totals differ from what the superblock's buffer says.
    stale: AtomicBool,
}

impl SuperState {
    /// The state of the volume whose validated superblock is `superblock`.
    ///
    /// # Errors
    /// `Io` when the superblock's block cannot be read.
    pub fn new(cache: &MetaCache, superblock: &Superblock) -> Result<Self> {
        let geo = &superblock.geo;
        let buffer = cache.read(geo.super_block(), BlockKind::Super, |_| Ok(()))?;
        let at = SUPERBLOCK_OFFSET - geo.block_offset(geo.super_block());
        let raw = superblock.raw;
        Ok(SuperState {
            buffer,
            at: at as usize,
            free_blocks: AtomicU64::new(raw.free_blocks_count()),
            free_inodes: AtomicU64::new(u64::from(raw.free_inodes_count.get())),
            written_before: (raw.kbytes_written.get(), written_bytes(cache.device())),
            device: Arc::clone(cache.device()),
            raw: Mutex::new(raw),
            stale: AtomicBool::new(false),
        })
    }

    /// A copy of the superblock, totals included.
    #[must_use]
    pub fn raw(&self) -> RawSuperblock {
        let mut raw = *self.raw.lock();
        self.put_totals(&mut raw);
        raw
    }

    /// Free blocks (clusters times their size with bigalloc), as the bitmaps have it: blocks
    /// reserved for delayed writes count as free.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Acquire)
    }

    /// Free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Acquire)
    }

    /// Adjusts the number of free blocks by `delta`, inside the handle that changed the bitmap.
    pub fn add_free_blocks(&self, delta: i64) {
        adjust(&self.free_blocks, delta);
        self.stale.store(true, Ordering::Release);
    }

    /// Adjusts the number of free inodes by `delta`, inside the handle that changed the bitmap.
    pub fn add_free_inodes(&self, delta: i64) {
        adjust(&self.free_inodes, delta);
        self.stale.store(true, Ordering::Release);
    }

    /// Replaces the totals: after adding up the group descriptors of an unclean volume.
    pub fn set_totals(&self, free_blocks: u64, free_inodes: u64) {
        self.free_blocks.store(free_blocks, Ordering::Release);
        self.free_inodes.store(free_inodes, Ordering::Release);
        self.stale.store(true, Ordering::Release);
    }

    /// Looks at the superblock. `f` must not block. Totals may be stale: see the getters.
    pub fn with<R>(&self, f: impl FnOnce(&RawSuperblock) -> R) -> R {
        f(&self.raw.lock())
    }

    /// Changes the superblock in a transaction; needs one credit. `f` must not lock anything.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn update<R>(&self, h: &Handle<'_>, f: impl FnOnce(&mut RawSuperblock) -> R) -> Result<R> {
        let mut raw = self.raw.lock();
        let value = f(&mut raw);
        self.write(h, &mut raw)?;
        Ok(value)
    }

    /// Changes the superblock as part of the handle's transaction: it is written when the transaction is complete, by
    /// [`Self::refresh`], however often it was changed. The handle's transaction must have a block in it, since empty
    /// ones are not refreshed. No handle of a later transaction exists before that.
    pub(crate) fn update_at_commit(&self, _h: &Handle<'_>, f: impl FnOnce(&mut RawSuperblock)) {
        self.change_later(f);
    }

    /// Changes the superblock in memory: the change goes out with the next refresh.
    pub(crate) fn change_later(&self, f: impl FnOnce(&mut RawSuperblock)) {
        f(&mut self.raw.lock());
        self.stale.store(true, Ordering::Release);
    }

    /// Puts the totals into the superblock if they changed. The journal calls this per transaction.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn refresh(&self, h: &Handle<'_>) -> Result<()> {
        if !self.stale.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let mut raw = self.raw.lock();
        raw.set_write_time(now_seconds());
        self.write(h, &mut raw)
    }

    fn put_totals(&self, raw: &mut RawSuperblock) {
        raw.set_free_blocks_count(self.free_blocks());
        raw.free_inodes_count
            .set(u32::try_from(self.free_inodes()).unwrap_or(u32::MAX));
        let (kbytes, bytes) = self.written_before;
        let since = written_bytes(&self.device).saturating_sub(bytes);
        raw.kbytes_written.set(kbytes.saturating_add(since >> 10));
        raw.set_checksum();
    }

    fn write(&self, h: &Handle<'_>, raw: &mut RawSuperblock) -> Result<()> {
        self.put_totals(raw);
        let bytes = raw.to_bytes();
        let range = self.at..self.at + SUPERBLOCK_SIZE;
        let fits = h.modify(&self.buffer, |block| {
            block
                .get_mut(range)
                .map(|place| place.copy_from_slice(&bytes))
                .is_some()
        })?;
        if fits {
            Ok(())
        } else {
            Err(Error::corrupt(
                "superblock",
                "the block is too small for the superblock",
            ))
        }
    }

    /// Changes the superblock and writes it home at once, durably: for the flags that say whether the
    /// log counts, which must not themselves depend on the log. Only while the log is empty and
    /// no transaction runs, or recovery would bring an older superblock back.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn write_through(
        &self,
        device: &SharedDevice,
        f: impl FnOnce(&mut RawSuperblock),
    ) -> Result<()> {
        let mut raw = self.raw.lock();
        f(&mut raw);
        raw.set_write_time(now_seconds());
        self.put_totals(&mut raw);
        let mut state = self.buffer.state().write();
        let data: &mut AlignedBuf = Arc::make_mut(&mut state.data);
        let range = self.at..self.at + SUPERBLOCK_SIZE;
        if let Some(place) = data.get_mut(range) {
            place.copy_from_slice(&raw.to_bytes());
        }
        // Only the logical blocks with the superblock: with small blocks the boot sector may share the
        // file-system block, and the engine never writes it.
        let unit = (device.geometry().logical_block_bytes as usize).max(1);
        let from = self.at / unit * unit;
        let to = (self.at + SUPERBLOCK_SIZE)
            .next_multiple_of(unit)
            .min(data.len());
        let home = self.buffer.block().0 * data.len() as u64 + from as u64;
        let bytes = data.get(from..to).unwrap_or_default();
        device
            .write_at(DevOffset(home), bytes, Flags::FUA | Flags::META)
            .map_err(|e| Error::io("superblock", e))?;
        self.stale.store(false, Ordering::Release);
        Ok(())
    }

    /// Notes an error in memory; see `volume::errors`.
    pub(crate) fn record_error(&self, record: &ErrorRecord) {
        self.change_later(|raw| record.apply(raw));
    }

    /// Whether the volume had recorded errors, or was not unmounted cleanly, when mounted.
    #[must_use]
    pub fn state(&self) -> State {
        self.raw.lock().state()
    }
}

fn adjust(total: &AtomicU64, delta: i64) {
    // Saturating: a damaged volume's descriptors may claim more than the superblock's total.
    let _ = total.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
        Some(n.saturating_add_signed(delta))
    });
}
