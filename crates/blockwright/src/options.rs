//! How a volume is opened.

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
    pub(crate) read_only: bool,
    pub(crate) direct: DirectIo,
    pub(crate) lock: bool,
    pub(crate) cred: Cred,
    pub(crate) more_devices: Vec<PathBuf>,
    pub(crate) journal: Option<PathBuf>,
    pub(crate) overlay: Option<PathBuf>,
    pub(crate) allow_backing: bool,
    /// Options of the layers below, for this project's own programs and tests. Not part of the stable interface.
    #[doc(hidden)]
    pub parts: PartOptions,
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

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            read_only: false,
            direct: DirectIo::default(),
            lock: true,
            cred: Cred::unchecked(),
            more_devices: Vec::new(),
            journal: None,
            overlay: None,
            allow_backing: false,
            parts: PartOptions::default(),
        }
    }
}

impl VolumeOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses all changes and writes nothing to the device. A volume that needs recovery is recovered in memory.
    #[must_use]
    pub fn read_only(mut self, on: bool) -> Self {
        self.read_only = on;
        self
    }

    /// Whether device I/O bypasses the host's page cache. Default: where the device can.
    #[must_use]
    pub fn direct_io(mut self, direct: DirectIo) -> Self {
        self.direct = direct;
        self
    }

    /// Whether the image is locked, so that no other process changes it meanwhile. Default: yes.
    #[must_use]
    pub fn lock(mut self, on: bool) -> Self {
        self.lock = on;
        self
    }

    /// The credentials with which paths are walked and files changed. Default: [`Cred::unchecked`], which ignores
    /// permissions.
    #[must_use]
    pub fn credentials(mut self, cred: Cred) -> Self {
        self.cred = cred;
        self
    }

    /// The other devices of an f2fs volume on several, in the order in which its superblock lists them. Such volumes
    /// are opened for reading only.
    #[must_use]
    pub fn more_devices<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.more_devices = paths.into_iter().map(Into::into).collect();
        self
    }

    /// The device or image of an ext4 journal that is not on the volume.
    #[must_use]
    pub fn journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal = Some(path.into());
        self
    }

    /// Keeps all changes in this file, over an image that is only read. Any number of volumes can share the image that way. A missing overlay is made
    /// when the volume is opened for writing. An existing one is continued; over another image it is refused. It is a qcow2 file whose backing file
    /// is the image: see `disk::overlay`. Concerns volumes that are opened by their path.
    #[must_use]
    pub fn overlay(mut self, file: impl Into<PathBuf>) -> Self {
        self.overlay = Some(file.into());
        self
    }

    /// Opens backing files and external data files of qcow2 images anywhere, and external data files for writing. Default: only regular files in the image's
    /// folder, and only for reading, because the image names them and the caller does not. Concerns images that are opened by their path.
    #[must_use]
    pub fn allow_backing(mut self, on: bool) -> Self {
        self.allow_backing = on;
        self
    }

    #[cfg(feature = "ext4")]
    /// ext4: a journal device that is open already. [`VolumeOptions::journal`] takes precedence.
    #[must_use]
    pub fn journal_device(mut self, device: SharedDevice) -> Self {
        self.parts.ext4.journal_device = Some(device);
        self
    }

    /// Budget in bytes for everything that is cached: pages, metadata and inodes. Default: 256 MiB.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.parts.vfs.cache_bytes = bytes;
        self
    }

    /// Upper limit in bytes for cached metadata. It is part of [`VolumeOptions::cache_bytes`], and at most half of it.
    #[must_use]
    #[cfg_attr(not(any(feature = "ext4", feature = "f2fs")), expect(unused))]
    pub fn metadata_cache_bytes(mut self, bytes: u64) -> Self {
        #[cfg(feature = "ext4")]
        {
            self.parts.ext4.metadata_cache_bytes = bytes;
        }
        #[cfg(feature = "f2fs")]
        {
            self.parts.f2fs.metadata_cache_bytes = bytes;
        }
        self
    }

    /// Dirty bytes from which the flusher works at once, and from which writers wait for it.
    /// Default: 32 MiB and 96 MiB.
    #[must_use]
    pub fn dirty_bytes(mut self, background: u64, max: u64) -> Self {
        self.parts.vfs.dirty_bytes_background = background;
        self.parts.vfs.dirty_bytes_max = max;
        self
    }

    /// Age at which changes are made durable without being asked to. Default: 5 s.
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.parts.vfs.commit_interval = interval;
        self.parts.vfs.writeback_interval = interval;
        #[cfg(feature = "ext4")]
        {
            self.parts.ext4.commit_interval = interval;
        }
        #[cfg(feature = "f2fs")]
        {
            self.parts.f2fs.commit_interval = interval;
        }
        self
    }

    /// When reads change access times. Default: [`AtimeMode::Relative`].
    #[must_use]
    pub fn access_times(mut self, mode: AtimeMode) -> Self {
        self.parts.vfs.atime = mode;
        self
    }

    /// How long a change of times alone may stay in memory. Default: 30 s.
    #[must_use]
    pub fn lazy_time_interval(mut self, interval: Duration) -> Self {
        self.parts.vfs.lazy_time_interval = interval;
        self
    }

    /// The largest readahead window in bytes; 0 turns readahead off. Default: 1 MiB.
    #[must_use]
    pub fn readahead_bytes(mut self, bytes: u64) -> Self {
        self.parts.vfs.readahead_bytes = bytes;
        self
    }

    /// Whether blocks are allocated at writeback (default) or when they are written to.
    #[must_use]
    pub fn delayed_allocation(mut self, on: bool) -> Self {
        self.parts.vfs.delayed_allocation = on;
        self
    }

    /// Whether the journal (ext4) or what was synced after the last checkpoint (f2fs) is recovered (default). Only
    /// a volume opened for reading may go without; it shows an older state, and on ext4 perhaps an inconsistent one.
    #[must_use]
    #[cfg_attr(not(any(feature = "ext4", feature = "f2fs")), expect(unused))]
    pub fn recovery(mut self, on: bool) -> Self {
        #[cfg(feature = "ext4")]
        {
            self.parts.ext4.no_journal_replay = !on;
        }
        #[cfg(feature = "f2fs")]
        {
            self.parts.f2fs.no_recovery = !on;
        }
        self
    }

    /// Whether the device's volatile cache is flushed where the format needs it (default). Without, a power failure
    /// may damage the volume.
    #[must_use]
    #[cfg_attr(not(any(feature = "ext4", feature = "f2fs")), expect(unused))]
    pub fn barriers(mut self, on: bool) -> Self {
        #[cfg(feature = "ext4")]
        {
            self.parts.ext4.barrier = on;
        }
        #[cfg(feature = "f2fs")]
        {
            self.parts.f2fs.fsync_mode = match on {
                true => FsyncMode::Posix,
                false => FsyncMode::NoBarrier,
            };
        }
        self
    }

    #[cfg(feature = "ext4")]
    /// ext4: reads this block, in units of 1 KiB, as the superblock. Sources: mount(8), option `sb=`.
    #[must_use]
    pub fn superblock_1k(mut self, block: u64) -> Self {
        self.parts.ext4.superblock_1k = Some(block);
        self
    }

    #[cfg(feature = "ext4")]
    /// ext4: what is done about damage. Default: as the superblock says.
    #[must_use]
    pub fn errors(mut self, behaviour: ErrorBehaviour) -> Self {
        self.parts.ext4.errors = Some(behaviour);
        self
    }

    #[cfg(feature = "ext4")]
    /// ext4: whether pointers to data are checked against the places of known metadata (default).
    #[must_use]
    pub fn block_validity(mut self, on: bool) -> Self {
        self.parts.ext4.block_validity = on;
        self
    }

    #[cfg(feature = "f2fs")]
    /// f2fs: whether the device is told about segments that became free (default).
    #[must_use]
    pub fn discard(mut self, on: bool) -> Self {
        self.parts.f2fs.discard = on;
        self
    }

    #[cfg(feature = "f2fs")]
    /// f2fs: what fsync does.
    #[must_use]
    pub fn fsync_mode(mut self, mode: FsyncMode) -> Self {
        self.parts.f2fs.fsync_mode = mode;
        self
    }

    #[cfg(feature = "f2fs")]
    /// f2fs: where new blocks come from.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.parts.f2fs.mode = mode;
        self
    }

    #[cfg(feature = "f2fs")]
    /// f2fs: how many logs are written to.
    #[must_use]
    pub fn active_logs(mut self, logs: ActiveLogs) -> Self {
        self.parts.f2fs.active_logs = logs;
        self
    }

    #[cfg(feature = "f2fs")]
    /// f2fs: cleaning while the volume is idle.
    #[must_use]
    pub fn background_cleaning(mut self, cleaning: BackgroundCleaning) -> Self {
        self.parts.f2fs.background_cleaning = cleaning;
        self
    }

    #[cfg(feature = "f2fs")]
    /// f2fs: whether checkpoints are written.
    #[must_use]
    pub fn checkpoint(mut self, checkpointing: Checkpointing) -> Self {
        self.parts.f2fs.checkpoint = checkpointing;
        self
    }

    #[cfg(feature = "f2fs")]
    /// f2fs: whether one thread writes a checkpoint for all callers that ask at the same time. Default: unless
    /// checkpoints are disabled.
    #[must_use]
    pub fn checkpoint_merge(mut self, on: bool) -> Self {
        self.parts.f2fs.checkpoint_merge = Some(on);
        self
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
