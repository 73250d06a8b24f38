//! Mounting and unmounting: the order in which a volume comes to life and is laid to rest.

use crate::buffer::MetaCache;
use crate::errors::ErrorState;
use crate::fs::{Fs, FsRef};
use crate::jbd2::checkpoint::CheckpointMap;
use crate::jbd2::{Journal, Settings};
use crate::options::Options;
use crate::superblock::SuperState;
use crate::zones::Zones;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};
use blockwright_ondisk::ext4::superblock::{ErrorBehaviour, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use blockwright_ondisk::ext4::{FormatError, Incompat, Superblock};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const OP: &str = "mount";

fn format_error(error: FormatError) -> Error {
    Error::corrupt(OP, error.to_string())
}

fn read_superblock(device: &SharedDevice, options: &Options) -> Result<Superblock> {
    let offset = match options.superblock_1k {
        Some(block) => block
            .checked_mul(1024)
            .ok_or(Error::new(ErrorKind::Invalid, OP))?,
        None => SUPERBLOCK_OFFSET,
    };
    let geometry = device.geometry();
    let unit = u64::from(geometry.logical_block_bytes);
    let start = offset / unit * unit;
    let at = (offset - start) as usize;
    let bytes = (at + SUPERBLOCK_SIZE).next_multiple_of(unit as usize);
    let buf = device
        .read_buf(DevOffset(start), bytes)
        .map_err(|e| Error::io(OP, e))?;
    Superblock::parse(&buf[at..], Some(geometry.bytes)).map_err(format_error)
}

impl Fs {
    /// Mounts the volume on `device`.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`, naming the check that failed or the feature; `Io`.
    pub fn mount(device: SharedDevice, options: Options) -> Result<FsRef> {
        let superblock = read_superblock(&device, &options)?;
        let geo = &superblock.geo;
        if geo.features.has_incompat(Incompat::NEEDS_RECOVERY) {
            return Err(
                Error::new(ErrorKind::Unsupported, OP).detail("the journal must be replayed first")
            );
        }
        let read_only = options.read_only;
        let cache = MetaCache::new(
            Arc::clone(&device),
            geo.block_bits,
            geo.blocks_count,
            options.metadata_cache_bytes,
            Arc::new(CheckpointMap::default()),
        );
        let sb = SuperState::new(&cache, &superblock)?;
        let settings = Settings {
            commit_interval: options.commit_interval,
            barrier: options.barrier,
            group_commit: options.group_commit,
            read_only,
        };
        let journal = Journal::without_log(cache.clone(), settings);
        let behaviour = options
            .errors
            .unwrap_or(ErrorBehaviour::from_raw(superblock.raw.errors.get()));
        let fs = Arc::new(Fs {
            device,
            sb,
            cache,
            journal,
            zones: Zones::default(),
            options,
            errors: ErrorState::new(behaviour),
            read_only: AtomicBool::new(read_only),
            geo: superblock,
        });
        let weak = Arc::downgrade(&fs);
        fs.journal.set_lock_hook(move |h| match weak.upgrade() {
            Some(fs) => fs.sb.refresh(h),
            None => Ok(()),
        });
        Ok(fs)
    }

    /// Commits, writes everything home and marks the volume clean. Nothing may be changed after.
    ///
    /// # Errors
    /// `Io` or `Poisoned`: the volume stays marked as in use, and the next mount recovers it.
    pub fn unmount(&self) -> Result<()> {
        if !self.is_read_only() {
            self.journal.flush_checkpoint()?;
        }
        self.journal.stop();
        Ok(())
    }
}
