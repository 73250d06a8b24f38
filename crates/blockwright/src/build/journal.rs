//! Journals on devices of their own: they are made, and new volumes name them.

use super::output::{building_mode, removed_on_failure};
use super::progress::{BuildProgress, ProgressFn, unheard};
use crate::setters::setters;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{HostDevice, SharedDevice};
use blockwright_disk::container::{self, detect_file};
use blockwright_mkfs::ext4::{FormatOptions, JournalName, JournalOptions, format_journal_watched};
use blockwright_reshape::ext4::settings::ExternalJournal;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Has a new volume name its journal.
pub(super) fn name_in(options: &mut FormatOptions, journal: &ExternalJournal) -> Result<()> {
    let found = journal.read()?;
    let place = journal.device.name();
    let refuse = |kind, what: String| Err(Error::new(kind, format!("{place}: {what}")));
    let block_bytes = *options.block_bytes.get_or_insert(found.journal.block_size);
    if block_bytes != found.journal.block_size {
        let has = found.journal.block_size;
        return refuse(
            ErrorKind::Invalid,
            format!(
                "the journal has blocks of {has} bytes, and the volume would have blocks of {block_bytes}"
            ),
        );
    }
    if found.uuid() == [0; 16] {
        return refuse(
            ErrorKind::Invalid,
            "the journal has no UUID by which a volume could name it".to_owned(),
        );
    }
    if !found.users().is_empty() {
        return refuse(ErrorKind::Busy, "the journal has a user".to_owned());
    }
    if found.journal.start.is_some() || found.journal.errno != 0 {
        return refuse(
            ErrorKind::Busy,
            "the journal holds changes that were not replayed, or records an error".to_owned(),
        );
    }
    options.journal_device = Some(JournalName {
        uuid: found.uuid(),
        number: journal.number,
    });
    Ok(())
}

/// Writes a volume that names a journal. The journal lists it first, because a volume names no journal that does not list it. When the volume cannot be
/// written, the journal lists none again, and serves another try.
pub(super) fn listing<T>(
    journal: Option<&ExternalJournal>,
    uuid: [u8; 16],
    write: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(journal) = journal else {
        return write();
    };
    journal.list(uuid)?;
    let written = write();
    if written.is_err() {
        // The first error is the one to tell.
        let _already_failing = journal.unlist();
    }
    written
}

/// Properties of a journal device that was made.
#[derive(Clone, Debug)]
pub struct JournalReport {
    /// Bytes of the journal.
    pub bytes: u64,
    /// Bytes per block.
    pub block_bytes: u32,
    /// Blocks.
    pub blocks: u32,
    /// UUID, by which its volume names it.
    pub uuid: [u8; 16],
}

/// Makes a journal on a device of its own (`mke2fs -O journal_dev`), which an ext4 volume can use.
///
/// ```
/// use blockwright::build::JournalBuilder;
/// use blockwright::reshape::ExternalJournal;
/// use blockwright::{Volume, VolumeBuilder};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (image, log) = (dir.path().join("disk.img"), dir.path().join("log.img"));
/// JournalBuilder::new().size(8 << 20).create(&log)?;
/// let device = blockwright::device::open(&log, Default::default())?;
/// VolumeBuilder::new()
///     .size(64 << 20)
///     .journal_device(ExternalJournal { device, number: 0 })
///     .create(&image)?;
/// Volume::options().journal(&log).open(&image)?.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JournalBuilder {
    options: JournalOptions,
    allow_backing: bool,
    progress: Arc<ProgressFn>,
}

impl Default for JournalBuilder {
    fn default() -> Self {
        JournalBuilder {
            options: JournalOptions::default(),
            allow_backing: false,
            progress: Arc::new(Box::new(unheard)),
        }
    }
}

impl fmt::Debug for JournalBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalBuilder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl JournalBuilder {
    /// A builder of a journal as large as its device.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Its size in bytes.
        size(bytes: u64) { options.bytes = Some(bytes); }
        /// Bytes per block, which are those of its volume: 1024 to 65536. Without it 4096, or 1024 below 4 MiB.
        block_size(bytes: u32) { options.block_bytes = Some(bytes); }
        /// Label, at most 16 bytes.
        label(label: impl AsRef<[u8]>) { options.label = label.as_ref().to_vec(); }
        /// UUID; random when not given.
        uuid(uuid: [u8; 16]) { options.uuid = Some(uuid); }
        /// When it is made, in seconds since 1970.
        time(secs: u64) { options.now = secs; }
        /// Makes the journal also in qcow2 images whose data is in an external data file, wherever that is. As
        /// [`VolumeOptions::allow_backing`](crate::VolumeOptions::allow_backing).
        allow_backing(on: bool) { allow_backing = on; }
        /// Tells how far it is, and stops when the function breaks: [`BuildProgress::Planned`] before anything is written, then [`BuildProgress::Copied`] while the
        /// log is wiped. The call fails with `Interrupted` then: a new image is removed, and from `Copied` on one that was there is no journal any more. It keeps
        /// its length.
        watch(tell: impl Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync + 'static) { progress = Arc::new(Box::new(tell)); }
    }

    /// Makes the journal on a device.
    ///
    /// # Errors
    /// `Invalid` for sizes that no journal has, `Io`; `Interrupted` when the function of [`JournalBuilder::watch`] breaks.
    pub fn create_on(&self, device: &SharedDevice) -> Result<JournalReport> {
        let watch = |done, total| match done {
            0 => (self.progress)(&BuildProgress::Planned {
                bytes: total,
                volume_bytes: total,
            }),
            bytes => (self.progress)(&BuildProgress::Copied { bytes, files: 0 }),
        };
        let made = format_journal_watched(device, &self.options, &watch)?;
        let (block_bytes, blocks) = (made.journal.block_size, made.journal.len);
        Ok(JournalReport {
            bytes: u64::from(block_bytes) * u64::from(blocks),
            block_bytes,
            blocks,
            uuid: made.uuid(),
        })
    }

    /// Makes the journal in the image or on the device at a path; a missing image is made.
    ///
    /// # Errors
    /// As [`JournalBuilder::create_on`]; `Invalid` for a new image without a size.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<JournalReport> {
        let path = path.as_ref();
        let made = match std::fs::metadata(path) {
            Ok(meta) if meta.is_file() && detect_file(path) == container::Format::Raw => {
                self.replace(path)
            }
            Err(e)
                if e.kind() == std::io::ErrorKind::NotFound
                    && blockwright_disk::Place::of(path).part.is_none()
                    && blockwright_device::NbdAddress::parse(path).is_none() =>
            {
                self.create_new(path)
            }
            _ => blockwright_disk::open_with(path, building_mode(), self.allow_backing)
                .map_err(Error::from)
                .and_then(|device| self.create_on(&device)),
        };
        made.map_err(|e| e.at(path))
    }

    fn create_new(&self, path: &Path) -> Result<JournalReport> {
        let Some(bytes) = self.options.bytes else {
            return Err(Error::new(ErrorKind::Invalid, "a new image needs a size"));
        };
        let device = HostDevice::create_with(path, bytes, building_mode())?;
        let made = self.create_on(&device);
        drop(device);
        removed_on_failure(made, path)
    }

    /// Makes the journal in an image, which becomes longer when the size asks for it, and has its old length again when that fails. One that is in use stays
    /// as it is.
    fn replace(&self, path: &Path) -> Result<JournalReport> {
        let device = HostDevice::open(path, building_mode())?;
        let asked = self.options.bytes.unwrap_or(0);
        if asked <= device.geometry().bytes {
            return self.create_on(&device);
        }
        let before = std::fs::metadata(path)?.len();
        let grown = device.grow(asked).map_err(Error::from);
        let made = grown.and_then(|()| self.create_on(&device));
        // Windows refuses a second writer until the device is closed.
        drop(device);
        if made.is_err() {
            let file = std::fs::OpenOptions::new().write(true).open(path);
            // The first error is the one to tell.
            let _already_failing = file.and_then(|file| file.set_len(before));
        }
        made
    }
}
