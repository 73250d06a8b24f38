//! [`Volume`]: the mounted volume as a whole, and [`Host`], what an engine may ask of the vfs above it.
//!
//! Calls go down, from the vfs to the engine, but for those of [`Host`]: an engine that moves blocks of files needs them unchanged meanwhile.

use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::stats::Stats;
use crate::tuning::tunable::Tunable;
use crate::types::Ino;
use std::sync::Arc;

/// Properties that are fixed while a volume is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The name of the format: `ext4`, `f2fs`.
    pub name: &'static str,
    /// The root directory's inode number.
    pub root: Ino,
    /// The size of a file-system block in bytes.
    pub block_bytes: u32,
    /// Blocks that hold data may move without the file being changed, or overwrites go elsewhere. Then the vfs keeps count of
    /// reads in flight, for [`Host::await_reads`].
    pub moves_blocks: bool,
    /// A block that holds data stays where it is until truncation, fallocate or eviction. Then the vfs remembers places, and does not
    /// ask for each overwrite. False where overwrites go elsewhere. An engine that cleans notifies the vfs before it moves blocks
    /// ([`Host::with_relocation_barrier`]).
    pub keeps_places: bool,
    /// [`Space::reserve`](super::Space::reserve) can allocate blocks at once, without delay. Otherwise the vfs writes back before a
    /// write returns, if delayed allocation is off.
    pub reserve_allocates: bool,
}

/// What an engine that moves blocks of files asks of the vfs above it ([`Volume::attach`]).
///
/// The caller holds no lock and owns no file's writeback. Otherwise cleaning ([`Space::make_room`](super::Space::make_room)) could
/// wait for its own caller.
pub trait Host: Send + Sync {
    /// Runs `work` while only `work` changes a file's blocks: no thread writes to them, writes them back, or changes the file. Reads
    /// that began before may still be in flight ([`Host::await_reads`]). Later reads see what `work` did.
    ///
    /// # Errors
    /// As loading the inode; `Invalid` when it is not a regular file's; `Stale` when the volume is being unmounted;
    /// those of `work`.
    fn with_relocation_barrier(
        &self,
        ino: Ino,
        work: &mut dyn FnMut(&Arc<Inode>) -> Result<()>,
    ) -> Result<()>;

    /// Writes back all that is dirty.
    ///
    /// # Errors
    /// The first of the files'.
    fn write_back(&self) -> Result<()>;

    /// Bytes of the cache that must still be written to the device.
    fn unwritten_bytes(&self) -> u64;

    /// Waits until every read has ended that may have learnt, before this call, where blocks were. It waits for the device alone: the
    /// caller may hold locks of the rank `EngineGate`.
    fn await_reads(&self);
}

/// The volume.
pub trait Volume: Send + Sync {
    /// Properties that are fixed while the volume is mounted.
    fn format(&self) -> Format;

    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// Why changes are refused on a mount that should take them, in a sentence, if the engine knows.
    fn read_only_reason(&self) -> Option<String> {
        None
    }

    /// Adds the engine's counters to a snapshot.
    fn stats(&self, out: &mut Stats);

    /// The settings that can be changed while the volume is mounted, with the values in force.
    fn tunables(&self) -> Vec<Tunable> {
        Vec::new()
    }

    /// Changes a tunable. The name is one of [`Volume::tunables`], and the value is in its range.
    ///
    /// # Errors
    /// `NotFound` for any other name.
    fn set_tunable(&self, name: &str, _value: u64) -> Result<()> {
        Err(Error::new(ErrorKind::NotFound, "tune").detail(format!("no tunable {name}")))
    }

    /// How many bytes of metadata the engine keeps in memory. They are part of the volume's budget for caches: pages have the rest. Asked
    /// for often.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Hands the vfs above to an engine that cleans. Called once, before any other call of the vfs.
    fn attach(&self, _host: Arc<dyn Host>) {}

    /// Ends the engine's threads that call its [`Host`]. Called before the vfs goes away or evicts all inodes.
    fn stop_cleaning(&self) {}

    /// Makes everything durable that was committed in memory before.
    ///
    /// # Errors
    /// Those of the device.
    fn sync_volume(&self) -> Result<()>;

    /// Makes usable what was freed before, where that takes a commit. An operation that found no room is tried again after it. An engine that knows of nothing
    /// freed does nothing: a caller that cannot be helped would pay a commit each time.
    ///
    /// # Errors
    /// Those of the device.
    fn commit_freed(&self) -> Result<()> {
        self.sync_volume()
    }

    /// Writes everything, and marks the volume clean. The last call: the vfs has evicted all inodes.
    ///
    /// # Errors
    /// Those of the device.
    fn unmount(&self) -> Result<()>;

    /// For code that knows the format (the checker's tests, `info`).
    fn as_any(&self) -> &dyn std::any::Any;
}
