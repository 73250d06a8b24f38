//! The tunables of a mounted volume: their names, what they mean, and which part has the value.
//!
//! Names are those of `/sys/fs/ext4/DEVICE` where the kernel has the same thing.

use super::Fs;
use crate::{Error, ErrorKind, Result};
use blockwright_vfs::Tunable;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

impl Fs {
    /// [`blockwright_vfs::engine::Volume::tunables`].
    #[must_use]
    pub fn tunables(&self) -> Vec<Tunable> {
        let t = &self.volume.tuning;
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let journal = &self.volume.journal;
        let commit_interval = u64::try_from(journal.commit_interval().as_millis());
        blockwright_vfs::tunables! {
            "commit_interval_ms", Milliseconds, 10..=3_600_000, commit_interval.unwrap_or(u64::MAX),
                "age at which the running transaction is committed (mount option commit=)";
            "barrier", Switch, 0..=1, journal.barrier().into(),
                "flush the device's cache around commits; 0: a power failure may corrupt the volume";
            "metadata_cache_bytes", Bytes, 1 << 20..=1 << 40, self.volume.cache.budget_bytes(), "budget of the metadata cache";
            "inode_readahead_blks", Blocks, 0..=1 << 20, get(&t.inode_readahead_blks),
                "blocks of an inode table read at once when one is not cached; 0 reads only that one";
            "mb_group_prealloc", Blocks, 1..=32_768, get(&t.mb_group_prealloc), "blocks that an area of small files takes at once";
            "mb_stream_req", Blocks, 0..=32_768, get(&t.mb_stream_req), "files of up to this many blocks are put together in such areas";
            "mb_max_to_scan", Count, 1..=1 << 20, get(&t.mb_max_to_scan),
                "block groups that are searched for a run although it may be too short";
            "reserve_for_root", Switch, 0..=1, self.alloc.honours_root_reserve().into(),
                "data may not use the blocks that the superblock reserves for root";
        }
    }

    /// [`blockwright_vfs::engine::Volume::set_tunable`].
    ///
    /// # Errors
    /// `NotFound` for a name that is not one of [`Fs::tunables`].
    pub fn set_tunable(&self, name: &str, value: u64) -> Result<()> {
        let (t, journal) = (&self.volume.tuning, &self.volume.journal);
        let set = |slot: &AtomicU64| slot.store(value, Ordering::Relaxed);
        match name {
            "commit_interval_ms" => journal.set_commit_interval(Duration::from_millis(value)),
            "barrier" => journal.set_barrier(value != 0),
            "metadata_cache_bytes" => self.volume.cache.set_budget_bytes(value),
            "inode_readahead_blks" => set(&t.inode_readahead_blks),
            "mb_group_prealloc" => set(&t.mb_group_prealloc),
            "mb_stream_req" => set(&t.mb_stream_req),
            "mb_max_to_scan" => set(&t.mb_max_to_scan),
            "reserve_for_root" => self.alloc.set_honour_root_reserve(value != 0),
            _ => {
                return Err(
                    Error::new(ErrorKind::NotFound, "tune").detail(format!("no tunable {name}"))
                );
            }
        }
        Ok(())
    }
}
