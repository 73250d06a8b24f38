//! How a volume is opened.

use crate::setters::setters;
#[cfg(feature = "ext4")]
use blockwright_device::SharedDevice;
use blockwright_device::{DirectIo, OpenMode};
#[cfg(feature = "f2fs")]
use blockwright_f2fs::options::{ActiveLogs, Checkpointing};
#[cfg(feature = "f2fs")]
use blockwright_f2fs::{BackgroundCleaning, FsyncMode, Mode};
#[cfg(feature = "ext4")]
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_vfs::{AtimeMode, Cred, MountOptions};
use std::path::PathBuf;
use std::time::Duration;

blockwright_device::with_defaults! {
/// Options for opening a volume.
///
/// The defaults open for reading and writing, take the image's lock, and check no permissions. An option that
/// concerns one format only is ignored by the other.
///
/// ```
/// use blockwright::Volume;
///
/// # fn main() -> blockwright::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let image = dir.path().join("disk.img");
/// # Volume::create(&image, 8 << 20)?.close()?;
/// let volume = Volume::options()
///     .read_only(true)
///     .cache_bytes(32 << 20)
///     .open(&image)?;
/// assert!(volume.is_read_only());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    pub(crate) read_only: bool = false,
    pub(crate) direct: DirectIo = DirectIo::default(),
    pub(crate) lock: bool = true,
    pub(crate) cred: Cred = Cred::unchecked(),
    pub(crate) more_devices: Vec<PathBuf> = Vec::new(),
    pub(crate) journal: Option<PathBuf> = None,
    pub(crate) overlay: Option<PathBuf> = None,
    pub(crate) allow_backing: bool = false,
    /// Options of the layers below, for this project's own programs and tests. Not part of the stable interface.
    #[doc(hidden)]
    pub parts: PartOptions = PartOptions::default(),
}
}

/// Options of the layers below a volume. Each has a `read_only` of its own, which [`VolumeOptions::read_only`] sets.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct PartOptions {
    /// Cache budgets, intervals, access times.
    pub vfs: MountOptions,
    /// Options of the ext4 engine.
    #[cfg(feature = "ext4")]
    pub ext4: blockwright_ext4::Options,
    /// Options of the f2fs engine.
    #[cfg(feature = "f2fs")]
    pub f2fs: blockwright_f2fs::Options,
}

impl VolumeOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Refuses all changes and writes nothing to the device. A volume that needs recovery is recovered in memory.
        read_only(on: bool) { read_only = on; }
        /// Whether device I/O bypasses the host's page cache. Default: where the device can.
        direct_io(direct: DirectIo) { direct = direct; }
        /// Whether the image is locked, so that no other process changes it meanwhile. Default: yes.
        lock(on: bool) { lock = on; }
        /// The credentials with which paths are walked and files changed. Default: [`Cred::unchecked`], which ignores
        /// permissions.
        credentials(cred: Cred) { cred = cred; }
    }

    /// The other devices of an f2fs volume on several, in the order in which its superblock lists them. Such volumes
    /// are opened for reading only.
    #[must_use]
    pub fn more_devices<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.more_devices = paths.into_iter().map(Into::into).collect();
        self
    }

    setters! {
        /// The device or image of an ext4 journal that is not on the volume.
        journal(path: impl Into<PathBuf>) { journal = Some(path.into()); }
        /// Keeps all changes in this file, over an image that is only read. Any number of volumes can share the image that way. A missing overlay is made
        /// when the volume is opened for writing. An existing one is continued; over another image it is refused. It is a qcow2 file whose backing file
        /// is the image: see `disk::overlay`. Concerns volumes that are opened by their path.
        overlay(file: impl Into<PathBuf>) { overlay = Some(file.into()); }
        /// Opens backing files and external data files of qcow2 images anywhere, and external data files for writing. Default: only regular files in the image's
        /// folder, and only for reading, because the image names them and the caller does not. Concerns images that are opened by their path.
        allow_backing(on: bool) { allow_backing = on; }
        #[cfg(feature = "ext4")]
        /// ext4: a journal device that is open already. [`VolumeOptions::journal`] takes precedence.
        journal_device(device: SharedDevice) { parts.ext4.journal_device = Some(device); }
        /// Budget in bytes for everything that is cached: pages, metadata and inodes. Default: 256 MiB.
        cache_bytes(bytes: u64) { parts.vfs.cache_bytes = bytes; }
        /// Upper limit in bytes for cached metadata. It is part of [`VolumeOptions::cache_bytes`], and at most half of it.
        #[cfg_attr(not(any(feature = "ext4", feature = "f2fs")), expect(unused))]
        metadata_cache_bytes(bytes: u64) {
            #[cfg(feature = "ext4")] parts.ext4.metadata_cache_bytes = bytes;
            #[cfg(feature = "f2fs")] parts.f2fs.metadata_cache_bytes = bytes;
        }
        /// Dirty bytes from which the flusher works at once, and from which writers wait for it.
        /// Default: 32 MiB and 96 MiB.
        dirty_bytes(background: u64, max: u64) {
            parts.vfs.dirty_bytes_background = background;
            parts.vfs.dirty_bytes_max = max;
        }
        /// Age at which changes are made durable without being asked to. Default: 5 s.
        commit_interval(interval: Duration) {
            parts.vfs.commit_interval = interval;
            parts.vfs.writeback_interval = interval;
            #[cfg(feature = "ext4")] parts.ext4.commit_interval = interval;
            #[cfg(feature = "f2fs")] parts.f2fs.commit_interval = interval;
        }
        /// When reads change access times. Default: [`AtimeMode::Relative`].
        access_times(mode: AtimeMode) { parts.vfs.atime = mode; }
        /// How long a change of times alone may stay in memory. Default: 30 s.
        lazy_time_interval(interval: Duration) { parts.vfs.lazy_time_interval = interval; }
        /// The largest readahead window in bytes; 0 turns readahead off. Default: 1 MiB.
        readahead_bytes(bytes: u64) { parts.vfs.readahead_bytes = bytes; }
        /// Whether blocks are allocated at writeback (default) or when they are written to.
        delayed_allocation(on: bool) { parts.vfs.delayed_allocation = on; }
        /// Whether the journal (ext4) or what was synced after the last checkpoint (f2fs) is recovered (default). Only
        /// a volume opened for reading may go without; it shows an older state, and on ext4 perhaps an inconsistent one.
        #[cfg_attr(not(any(feature = "ext4", feature = "f2fs")), expect(unused))]
        recovery(on: bool) {
            #[cfg(feature = "ext4")] parts.ext4.no_journal_replay = !on;
            #[cfg(feature = "f2fs")] parts.f2fs.no_recovery = !on;
        }
        /// Whether the device's volatile cache is flushed where the format needs it (default). Without, a power failure
        /// may damage the volume.
        #[cfg_attr(not(any(feature = "ext4", feature = "f2fs")), expect(unused))]
        barriers(on: bool) {
            #[cfg(feature = "ext4")] parts.ext4.barrier = on;
            #[cfg(feature = "f2fs")] parts.f2fs.fsync_mode = if on { FsyncMode::Posix } else { FsyncMode::NoBarrier };
        }
        #[cfg(feature = "ext4")]
        /// ext4: reads this block, in units of 1 KiB, as the superblock. Sources: mount(8), option `sb=`.
        superblock_1k(block: u64) { parts.ext4.superblock_1k = Some(block); }
        #[cfg(feature = "ext4")]
        /// ext4: what is done about damage. Default: as the superblock says.
        errors(behaviour: ErrorBehaviour) { parts.ext4.errors = Some(behaviour); }
        #[cfg(feature = "ext4")]
        /// ext4: whether pointers to data are checked against the places of known metadata (default).
        block_validity(on: bool) { parts.ext4.block_validity = on; }
        #[cfg(feature = "f2fs")]
        /// f2fs: whether the device is told about segments that became free (default).
        discard(on: bool) { parts.f2fs.discard = on; }
        #[cfg(feature = "f2fs")]
        /// f2fs: what fsync does.
        fsync_mode(mode: FsyncMode) { parts.f2fs.fsync_mode = mode; }
        #[cfg(feature = "f2fs")]
        /// f2fs: where new blocks come from.
        mode(mode: Mode) { parts.f2fs.mode = mode; }
        #[cfg(feature = "f2fs")]
        /// f2fs: how many logs are written to.
        active_logs(logs: ActiveLogs) { parts.f2fs.active_logs = logs; }
        #[cfg(feature = "f2fs")]
        /// f2fs: cleaning while the volume is idle.
        background_cleaning(cleaning: BackgroundCleaning) { parts.f2fs.background_cleaning = cleaning; }
        #[cfg(feature = "f2fs")]
        /// f2fs: whether checkpoints are written.
        checkpoint(checkpointing: Checkpointing) { parts.f2fs.checkpoint = checkpointing; }
        #[cfg(feature = "f2fs")]
        /// f2fs: whether one thread writes a checkpoint for all callers that ask at the same time. Default: unless
        /// checkpoints are disabled.
        checkpoint_merge(on: bool) { parts.f2fs.checkpoint_merge = Some(on); }
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// How the devices of such a volume are opened.
    #[must_use]
    pub fn open_mode(&self) -> OpenMode {
        OpenMode {
            read_only: self.read_only,
            direct: self.direct,
            lock: self.lock,
            ..OpenMode::default()
        }
    }
}
