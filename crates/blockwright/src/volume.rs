//! Opening and closing volumes.

use crate::devices::{self, Opener};
use crate::format::{self, Format};
use crate::{Error, ErrorKind, Result, VolumeOptions};
use blockwright_device::{DeviceErrorKind, OpenMode, SharedDevice};
use blockwright_vfs::{Cred, Engine, StatFs, Vfs};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open volume. See the [crate's](crate) head for an example.
///
/// [`Volume::close`] writes everything and reports whether that worked. Dropping a volume closes it,
/// too, but cannot report errors.
pub struct Volume {
    vfs: Arc<Vfs>,
    format: Format,
    cred: Cred,
    closed: AtomicBool,
}

/// Metadata is not given less than this, however small the volume's budget is.
const METADATA_BYTES_MIN: u64 = 1 << 20;

fn mount(
    device: &SharedDevice,
    format: Format,
    options: &VolumeOptions,
) -> Result<(Arc<dyn Engine>, SharedDevice)> {
    // One budget for all that is cached. Pages have what metadata leaves them, and that is half of it at least.
    let half = (options.parts.vfs.cache_bytes / 2).max(METADATA_BYTES_MIN);
    let metadata_bytes = |asked: u64| asked.min(half);
    match format {
        #[cfg(feature = "ext4")]
        Format::Ext4 => {
            let mut ext4 = options.parts.ext4.clone();
            ext4.read_only = options.read_only;
            ext4.metadata_cache_bytes = metadata_bytes(ext4.metadata_cache_bytes);
            let engine = blockwright_ext4::Ext4::mount(Arc::clone(device), ext4)?;
            // Journaled data that was recovered for reading only is in memory.
            let device = Arc::clone(&engine.fs().volume.device);
            Ok((engine, device))
        }
        #[cfg(feature = "f2fs")]
        Format::F2fs => {
            let mut f2fs = options.parts.f2fs.clone();
            f2fs.read_only = options.read_only;
            f2fs.metadata_cache_bytes = metadata_bytes(f2fs.metadata_cache_bytes);
            let engine = blockwright_f2fs::F2fs::mount(Arc::clone(device), f2fs)?;
            Ok((engine, Arc::clone(device)))
        }
        #[cfg(not(all(feature = "ext4", feature = "f2fs")))]
        format => {
            // No engine of this build has asked.
            let _ = (device, metadata_bytes);
            let what = format!(
                "this is an {format} volume, and this build has no {format} (feature `{format}`)"
            );
            Err(Error::new(ErrorKind::UnsupportedFeature, what))
        }
    }
}

impl Volume {
    /// Opens the volume at `path` for reading and writing, with the default options.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        VolumeOptions::new().open(path)
    }

    /// Opens the volume at `path` for reading only; writes nothing to the device.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        VolumeOptions::new().read_only(true).open(path)
    }

    /// Opens the volume on `device` for reading and writing, with the default options.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open_device(device: SharedDevice) -> Result<Self> {
        VolumeOptions::new().open_device(device)
    }

    /// The options with which a volume can be opened.
    #[must_use]
    pub fn options() -> VolumeOptions {
        VolumeOptions::new()
    }

    pub(crate) fn open_path_by(
        path: &Path,
        options: &VolumeOptions,
        open: &mut Opener<'_>,
    ) -> Result<Self> {
        let mode = options.open_mode();
        let device = open(path, mode).map_err(|e| {
            let denied = matches!(e.kind, DeviceErrorKind::Unsupported);
            let e = Error::from(e).at(path);
            if denied {
                return Error::new(ErrorKind::Unsupported, "neither a file nor a block device")
                    .at(path);
            }
            e
        })?;
        let device = crate::join_devices_by(device, &options.more_devices, mode, open);
        Self::open_on_by(device.map_err(|e| e.at(path))?, options, open).map_err(|e| e.at(path))
    }

    pub(crate) fn open_on_by(
        device: SharedDevice,
        options: &VolumeOptions,
        open: &mut Opener<'_>,
    ) -> Result<Self> {
        #[cfg(feature = "ext4")]
        if let Some(path) = &options.journal {
            let mode = options.open_mode();
            let journal = open(path, mode);
            let options = VolumeOptions {
                journal: None,
                ..options.clone()
            };
            let options = options.journal_device(journal.map_err(|e| Error::from(e).at(path))?);
            return Self::open_on_by(device, &options, open);
        }
        #[cfg(not(feature = "ext4"))]
        let _only_journals_are_opened = open;
        let format = match format::detect(&device) {
            // The first superblock may be gone altogether.
            #[cfg(feature = "ext4")]
            Err(e)
                if options.parts.ext4.superblock_1k.is_some()
                    && e.kind() == ErrorKind::UnsupportedFeature =>
            {
                Format::Ext4
            }
            found => found?,
        };
        let (engine, device) = mount(&device, format, options)?;
        let mut mount = options.parts.vfs.clone();
        mount.read_only = options.read_only;
        Ok(Volume {
            vfs: Vfs::new(engine, device, mount),
            format,
            cred: options.cred.clone(),
            closed: AtomicBool::new(false),
        })
    }

    #[cfg(feature = "build")]
    /// Makes an empty ext4 volume of `bytes` bytes in a new image at `path`, and opens it. For more
    /// choice see [`crate::VolumeBuilder`].
    ///
    /// # Errors
    /// `Exists` when there is something at `path`; as making and opening.
    pub fn create(path: impl AsRef<Path>, bytes: u64) -> Result<Self> {
        let path = path.as_ref();
        crate::VolumeBuilder::new().size(bytes).create_new(path)?;
        Self::open(path)
    }

    /// The volume's format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.vfs.options().read_only || self.vfs.engine().is_read_only()
    }

    /// Why changes are refused, when the volume itself is the reason and it is known.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        self.vfs.engine().read_only_reason()
    }

    /// The layer below: inodes, handles, everything without paths.
    #[must_use]
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// The credentials with which this volume's methods act.
    #[must_use]
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// How full the volume is.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn statfs(&self) -> Result<StatFs> {
        Ok(self.vfs.statfs()?)
    }

    /// Discards all blocks that are free: in an image file they become holes. How many bytes were discarded.
    ///
    /// # Errors
    /// `Unsupported` when the device cannot discard, `ReadOnly`, `Io`.
    pub fn trim(&self) -> Result<u64> {
        Ok(self.vfs.engine().trim(0..u64::MAX, 0)?)
    }

    /// As [`Volume::trim`], range by range. Before each range, `tell` gets how many bytes of the volume were gone through, and how many there are; it stops the
    /// trim when it breaks. A stop harms nothing: the rest is trimmed when it is asked for again. How many bytes were discarded, and whether all was gone through.
    ///
    /// # Errors
    /// As [`Volume::trim`].
    pub fn trim_watched(
        &self,
        tell: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(u64, bool)> {
        /// Ranges of a volume: so many at most, where they are not smaller than the least.
        const RANGES_MAX: u64 = 1000;
        const RANGE_MIN: u64 = 1 << 30;
        let stat = self.statfs()?;
        let total = stat.blocks.saturating_mul(u64::from(stat.block_bytes));
        // Whole blocks, groups and segments of most sizes.
        let step = (total / RANGES_MAX).max(1).next_multiple_of(RANGE_MIN);
        let (mut trimmed, mut at) = (0, 0);
        loop {
            if tell(at.min(total), total).is_break() {
                return Ok((trimmed, false));
            }
            // The volume's own metadata is not counted, so that its end may lie behind the total.
            let end = match total.saturating_sub(at) > step {
                true => at + step,
                false => u64::MAX,
            };
            trimmed += self.vfs.engine().trim(at..end, 0)?;
            if end == u64::MAX {
                return Ok((trimmed, true));
            }
            at = end;
        }
    }

    /// Makes everything durable that was done before.
    ///
    /// # Errors
    /// `Io` and whatever else kept something from the device.
    pub fn sync(&self) -> Result<()> {
        Ok(self.vfs.sync()?)
    }

    /// Writes everything, marks the volume clean and closes it. Files that are still open fail from
    /// now on.
    ///
    /// # Errors
    /// `Io` and whatever else kept something from the device; the volume is closed anyway, and
    /// recovered when it is opened next.
    pub fn close(self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(self.vfs.unmount()?)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            // No caller can receive the error; the journal recovers writes that did not arrive.
            let _unreported = self.vfs.unmount();
        }
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Volume({} on {})", self.format, self.vfs.device().name())
    }
}

impl VolumeOptions {
    /// Opens the volume at `path`: an image, a block device, a partition of either (`disk.img:p2`, or by its GPT name `disk.img:p=root`),
    /// the address of an NBD export (`nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`; [`VolumeOptions::direct_io`] does not concern those), or for
    /// reading an image in chunks (`chunks:INDEX?store=URL`).
    ///
    /// # Errors
    /// `Busy` when another process has the image open, `UnsupportedFeature` when the image is neither ext2, ext3, ext4
    /// nor f2fs, or has a feature that this library does not know, `Corrupt`, `Io`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Volume> {
        let Some(overlay) = &self.overlay else {
            return self.open_by(path, &mut self.opener());
        };
        self.open_overlaid(path.as_ref(), overlay)
    }

    #[cfg(not(feature = "disk"))]
    fn open_overlaid(&self, path: &Path, _overlay: &Path) -> Result<Volume> {
        let what = "this build has no overlays (feature `disk`)";
        Err(Error::new(ErrorKind::Unsupported, what).at(path))
    }

    #[cfg(feature = "disk")]
    fn open_overlaid(&self, path: &Path, overlay: &Path) -> Result<Volume> {
        if self.journal.is_some() || !self.more_devices.is_empty() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "an overlay lies over volumes on one device only",
            ));
        }
        let mut options = self.clone();
        options.overlay = None;
        options.open_by(path, &mut |path, mode| {
            let place = blockwright_disk::Place::of(path);
            let disk =
                blockwright_disk::Disk::open_over(&place.file, mode, self.allow_backing, overlay)?;
            Ok(disk.select(place.part.as_ref())?)
        })
    }

    /// Opens the volume on `device`.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open_device(&self, device: SharedDevice) -> Result<Volume> {
        self.open_device_by(device, &mut self.opener())
    }

    /// Opens what these options name.
    fn opener(
        &self,
    ) -> impl FnMut(&Path, OpenMode) -> blockwright_device::Result<SharedDevice> + use<> {
        let allow_backing = self.allow_backing;
        move |path, mode| devices::open(path, mode, allow_backing)
    }

    /// As [`VolumeOptions::open`]; `open` opens each device. For a process that may open no file any more and got its
    /// descriptors before.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`], and those of `open`.
    pub fn open_by(&self, path: impl AsRef<Path>, open: &mut Opener<'_>) -> Result<Volume> {
        self.no_overlay()?;
        Volume::open_path_by(path.as_ref(), self, open)
    }

    /// As [`VolumeOptions::open_device`]; `open` opens the device of an external journal.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`], and those of `open`.
    pub fn open_device_by(&self, device: SharedDevice, open: &mut Opener<'_>) -> Result<Volume> {
        self.no_overlay()?;
        Volume::open_on_by(device, self, open)
    }

    /// A device that is open already has no name that an overlay could hold, and could be written.
    fn no_overlay(&self) -> Result<()> {
        match &self.overlay {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "an overlay lies over an image that is opened by its path",
            )),
        }
    }
}
