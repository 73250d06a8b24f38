//! Changes of a volume as a whole: its size, and its settings.
//!
//! The volume must not be open. A journal that was not replayed is replayed first. A change that is interrupted is finished or undone when the
//! volume is opened next, by this library, by the kernel, or by e2fsck.
//!
//! ```
//! use blockwright::device::{DevOffset, MemoryDevice, SharedDevice};
//! use blockwright::reshape::{self, ResizeOptions, Settings};
//! use blockwright::{Volume, VolumeBuilder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("disk.img");
//! VolumeBuilder::new().size(16 << 20).create(&image)?;
//! std::fs::OpenOptions::new().write(true).open(&image)?.set_len(1 << 30)?;
//! let device = blockwright::device::open(&image, Default::default())?;
//! let resized = reshape::resize(&device, &ResizeOptions::to_bytes(1 << 30))?;
//! assert_eq!(resized.bytes(), 1 << 30);
//! reshape::set(&device, &Settings { label: Some(b"large".to_vec()), ..Settings::default() })?;
//! # drop(device);
//! # Volume::open(&image)?.close()?;
//! # Ok(())
//! # }
//! ```

use crate::format::{self, Format};
use crate::{Error, ErrorKind, Result, VolumeOptions};
use blockwright_device::{DevOffset, OpenMode, OverlayDevice, SharedDevice};
use blockwright_ondisk::ext4::superblock::{RawSuperblock, SUPERBLOCK_OFFSET, State, Superblock};
use blockwright_ondisk::ext4::{Compat, Incompat, RoCompat};
use blockwright_reshape::{ReshapeError, ext4, f2fs};
use std::path::Path;
use std::sync::Arc;

pub use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
pub use blockwright_reshape::ext4::settings::{ExternalJournal, LostJournal, Reserved, Settings};
pub use blockwright_reshape::options::{ResizeOptions, Size};
pub use blockwright_reshape::random_uuid;
pub use blockwright_reshape::resized::{Mode, Parts, Resized};
pub use blockwright_reshape::watch::{Phase, Progress, Watch};

/// Changes the size of the volume on a device. The device keeps its size: the caller makes it larger before, or cuts it to [`Resized::bytes`] afterwards. Behind the end of a
/// volume that was made smaller nothing is needed.
///
/// With [`Mode::DryRun`] and [`Mode::Rehearsal`] nothing is written, not even a replay of the journal. With [`Mode::Change`] nothing is written before a rehearsal has found
/// that the change is possible ([`Error::changed_nothing`]), unless it is left out ([`ResizeOptions::without_rehearsal`]).
///
/// # Errors
/// `Invalid` for sizes beyond the device, and for a journal that is not the volume's; `Unsupported` for what the volume's layout or format does not allow, `Busy` for a volume that
/// must be checked first, `Corrupt`, `NoSpace`, `Io`; `Interrupted` when the watch stopped it. The volume is whole then: an ext4 volume has its old size, and an f2fs
/// volume may have the new one already. The same call continues.
pub fn resize(device: &SharedDevice, options: &ResizeOptions) -> Result<Resized> {
    let resized = resize_as_asked(device, options);
    match (resized, options.size) {
        (Err(e), Size::Bytes(bytes))
            if matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Invalid) =>
        {
            Err(match smallest(device, options, bytes) {
                Some((least, true)) => e.and(&format!("; the smallest size is {least} bytes")),
                Some((least, false)) => e.and(&format!(
                    "; the smallest size is {least} bytes, which only shrinking to the minimum reaches"
                )),
                None => e,
            })
        }
        (resized, _) => resized,
    }
}

/// The fewest bytes that the files of the volume allow, if that is more than was asked for, and whether they can be asked for: shrinking f2fs to its minimum
/// makes the metadata areas smaller first. `None` also where it cannot be found.
fn smallest(device: &SharedDevice, options: &ResizeOptions, asked: u64) -> Option<(u64, bool)> {
    if volume_bytes(device).ok()? <= asked {
        return None;
    }
    let mut options = options.clone().mode(Mode::Rehearsal);
    options.size = Size::Minimum { free: 0 };
    let least = resize_as_asked(device, &options).ok()?.bytes();
    if least <= asked {
        return None;
    }
    options.size = Size::Bytes(least);
    Some((least, resize_as_asked(device, &options).is_ok()))
}

fn resize_as_asked(device: &SharedDevice, options: &ResizeOptions) -> Result<Resized> {
    let (journal, mode) = (options.journal.as_ref(), options.mode);
    match format::detect(device)? {
        Format::Ext4 => {
            let change = |device: &SharedDevice,
                          journal: Option<&ExternalJournal>,
                          step: Step<'_, Resized>| {
                let mut options = step.options(options).journal(journal.cloned());
                if let (Step::Made(found), Size::Minimum { .. }) = (&step, options.size) {
                    options.size = Size::Bytes(found.bytes());
                }
                ext4::resize::resize(device, &options)
            };
            recovered(device, journal, mode, options.rehearse, &change)
        }
        Format::F2fs => {
            refuse_journal(journal)?;
            f2fs::resize::refuse(device).map_err(|e| Error::from(e).before_any_change())?;
            let change =
                |device: &SharedDevice, _: Option<&ExternalJournal>, step: Step<'_, Resized>| {
                    f2fs::resize::resize(device, &step.options(options))
                };
            // A clean checkpoint does not say that there is nothing to recover: what was synced after it counts, and files without a name are gone.
            let waits = Some(Waiting {
                journal_is_its: false,
            });
            staged(device, None, mode, options.rehearse, waits, &change)
        }
    }
}

/// Changes settings of the volume on a device.
///
/// # Errors
/// `Invalid` and `Unsupported` for settings that are invalid or cannot be changed, `Busy` for a volume that must be checked first, `Corrupt`,
/// `NoSpace`, `Io`. Nothing was written but with `Io`: a part of the settings may be changed then.
pub fn set(device: &SharedDevice, settings: &Settings) -> Result<()> {
    set_watched(device, settings, &Watch::default()).map(|_| ())
}

/// As [`set`], and tells `watch` the progress, which can stop the change between two steps. The result is what a volume that was not unmounted lost with its journal:
/// with [`LostJournal::Transactions`] it must be checked.
///
/// # Errors
/// As [`set`]; `Interrupted` when it was stopped. The volume is whole then, and a part of the settings may be changed. The same call makes the rest.
pub fn set_watched(
    device: &SharedDevice,
    settings: &Settings,
    watch: &Watch,
) -> Result<Option<LostJournal>> {
    match format::detect(device)? {
        Format::Ext4 => {
            type Lost = Option<LostJournal>;
            let change =
                |device: &SharedDevice, journal: Option<&ExternalJournal>, step: Step<'_, Lost>| {
                    let settings = Settings {
                        journal: journal.cloned(),
                        ..settings.clone()
                    };
                    match step {
                        Step::Made(_) => ext4::settings::set_rehearsed(device, &settings, watch),
                        Step::Asked(_) => {
                            ext4::settings::rehearse(device, &settings, watch).map(|()| None)
                        }
                    }
                };
            let journal = settings.journal.as_ref();
            match settings.lost_journal {
                None => recovered(device, journal, Mode::Change, true, &change),
                // What waits in it cannot be replayed.
                Some(_) => staged(device, journal, Mode::Change, true, None, &change),
            }
        }
        Format::F2fs => {
            refuse_journal(settings.journal.as_ref())?;
            let more = f2fs::settings::is_more_than_superblock(device, settings)
                .map_err(|e| Error::from(e).before_any_change())?;
            if more {
                f2fs::resize::refuse(device).map_err(|e| Error::from(e).before_any_change())?;
            }
            let change = |device: &SharedDevice,
                          _: Option<&ExternalJournal>,
                          step: Step<'_, ()>| match step {
                Step::Made(_) => f2fs::set_rehearsed(device, settings, watch),
                Step::Asked(_) => f2fs::rehearse(device, settings, watch),
            };
            // As for a change of size.
            let waits = more.then_some(Waiting {
                journal_is_its: false,
            });
            staged(device, None, Mode::Change, true, waits, &change).map(|()| None)
        }
    }
}

/// Opens the device or image of an ext4 journal, with the number by which a volume names it.
///
/// # Errors
/// As opening a volume, with the path.
pub fn open_journal(path: impl AsRef<Path>, mode: OpenMode) -> Result<ExternalJournal> {
    let path = path.as_ref();
    Ok(ExternalJournal {
        device: crate::devices::open(path, mode, false).map_err(|e| Error::from(e).at(path))?,
        number: journal_number(path),
    })
}

/// The number of a block device as a volume stores that of its journal (`s_journal_dev`): `new_encode_dev` of Linux. 0 for what is no block device.
#[must_use]
pub fn journal_number(path: impl AsRef<Path>) -> u32 {
    let Some(number) = crate::host::block_device_number(path.as_ref()) else {
        return 0;
    };
    let (major, minor) = (crate::host::major(number), crate::host::minor(number));
    (minor & 0xFF) | (major << 8) | ((minor & !0xFF) << 12)
}

/// Bytes that the volume on a device has: the device may be larger.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn volume_bytes(device: &SharedDevice) -> Result<u64> {
    if format::detect(device)? == Format::F2fs {
        return Ok(f2fs::resize::volume_bytes(device)?);
    }
    let raw = superblock(device)?;
    let sb = Superblock::from_raw(raw, None)
        .map_err(|e| Error::new(ErrorKind::Corrupt, e.to_string()))?;
    Ok(sb.geo.blocks_count * u64::from(sb.geo.block_size))
}

/// The length that the file of a plain image gets when a change of size has ended, whatever its result. `device` is the file as it was made longer for the
/// change, `before` the length that it had, `had` the size of the volume before, where there was one, and `wanted` the size that was asked for in bytes, if it was.
///
/// A change that failed may have been made: its error comes from a step behind a commit, or the journal finishes it at the next opening. So after an error
/// the file is only cut where no superblock, and no journal that waits for its replay, may ask for what lies behind. After one that was stopped, it is also cut
/// to a volume that has become smaller. After an error before which nothing was written ([`Error::changed_nothing`]), the file gets its length back.
#[must_use]
pub fn file_bytes(
    device: &SharedDevice,
    before: u64,
    had: Option<u64>,
    wanted: Option<u64>,
    resized: std::result::Result<&Resized, &Error>,
) -> u64 {
    match resized {
        Err(error) if error.changed_nothing() => before,
        Err(error) => {
            let kind = error.kind();
            let all = device.geometry().bytes;
            let asked = bytes_asked_for(device);
            if kind == ErrorKind::Interrupted
                && let Some(now) = asked.filter(|now| had.is_some_and(|had| *now < had))
            {
                return now;
            }
            // What waits for a replay was refused as it was, and so was what is no volume.
            let refused = matches!(
                kind,
                ErrorKind::Invalid
                    | ErrorKind::Unsupported
                    | ErrorKind::UnsupportedFeature
                    | ErrorKind::Busy
            );
            let unknown = match refused {
                true => volume_bytes(device).unwrap_or(before),
                false => all,
            };
            asked.unwrap_or(unknown).min(all).max(before)
        }
        // Everything is durable in front of the end.
        Ok(resized) if resized.bytes() < resized.bytes_before() => resized.bytes(),
        Ok(resized) => before.max(wanted.unwrap_or(0)).max(resized.bytes()),
    }
}

/// The most bytes that an opener of the volume may ask for; `None` when that cannot be said.
fn bytes_asked_for(device: &SharedDevice) -> Option<u64> {
    match format::detect(device).ok()? {
        Format::F2fs => f2fs::resize::bytes_asked_for(device).ok(),
        Format::Ext4 => {
            let sb = Superblock::from_raw(superblock(device).ok()?, None).ok()?;
            // A replay may give the superblock another size.
            let waits = sb.features().has_incompat(Incompat::NEEDS_RECOVERY);
            (!waits && sb.raw.verify_checksum().is_ok())
                .then(|| sb.geo.blocks_count * u64::from(sb.geo.block_size))
        }
    }
}

fn superblock(device: &SharedDevice) -> Result<RawSuperblock> {
    let unit = u64::from(device.geometry().logical_block_bytes).max(1);
    let mut head = vec![0; (SUPERBLOCK_OFFSET * 2).next_multiple_of(unit) as usize];
    device.read_at(DevOffset(0), &mut head)?;
    RawSuperblock::read(&head[SUPERBLOCK_OFFSET as usize..])
        .map_err(|e| Error::new(ErrorKind::Corrupt, e.to_string()))
}

/// A step on the way to a change of a volume.
enum Step<'a, T> {
    /// The change in this mode.
    Asked(Mode),
    /// The change itself, after a rehearsal that had this result.
    Made(&'a T),
}

impl Step<'_, Resized> {
    /// Options for this step of the change that `options` asks for.
    fn options(&self, options: &ResizeOptions) -> ResizeOptions {
        match self {
            Step::Asked(mode) => options.clone().mode(*mode),
            Step::Made(_) => options.clone().without_rehearsal(),
        }
    }
}

/// A change of a volume on a device.
type Change<'a, T> = &'a dyn Fn(
    &SharedDevice,
    Option<&ExternalJournal>,
    Step<'_, T>,
) -> std::result::Result<T, ReshapeError>;

/// What a mount replays before the change.
#[derive(Clone, Copy)]
struct Waiting {
    /// Whether the journal that is named is the volume's already. One that is to be attached is not.
    journal_is_its: bool,
}

/// Changes an ext4 volume whose journal was replayed and whose orphans were removed, if that is all there is to do before.
fn recovered<T>(
    device: &SharedDevice,
    journal: Option<&ExternalJournal>,
    mode: Mode,
    rehearse: bool,
    change: Change<'_, T>,
) -> Result<T> {
    let raw = superblock(device)?;
    let features = raw.features();
    let waits = features.has_incompat(Incompat::NEEDS_RECOVERY)
        || features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
        || raw.last_orphan.get() != 0
        // A mount drops it.
        || ext4::unmade::holds_unmade_change(device, journal)?;
    let waiting = (waits && !raw.state().contains(State::ERROR)).then(|| Waiting {
        journal_is_its: features.has_compat(Compat::HAS_JOURNAL) && raw.journal_inum.get() == 0,
    });
    staged(device, journal, mode, rehearse, waiting, change)
}

/// Plans, rehearses or makes a change. A change that is made is rehearsed before, so that one that is refused writes nothing. What waits for a replay is replayed before the change; for
/// a plan and a rehearsal in memory, which holds what the replay and the rehearsal write: metadata.
fn staged<T>(
    device: &SharedDevice,
    journal: Option<&ExternalJournal>,
    mode: Mode,
    rehearse: bool,
    waiting: Option<Waiting>,
    change: Change<'_, T>,
) -> Result<T> {
    let replay = |device: &SharedDevice, journal: Option<&ExternalJournal>| match waiting {
        Some(waiting) => open_and_close(device.clone(), journal.filter(|_| waiting.journal_is_its)),
        None => Ok(()),
    };
    let tried = |mode| -> Result<T> {
        let over = |device: &SharedDevice| -> SharedDevice {
            match waiting {
                Some(_) => Arc::new(OverlayDevice::new(device.clone())),
                None => device.clone(),
            }
        };
        let trial = over(device);
        let trial_journal = journal.map(|journal| ExternalJournal {
            device: over(&journal.device),
            ..journal.clone()
        });
        replay(&trial, trial_journal.as_ref())
            .and_then(|()| Ok(change(&trial, trial_journal.as_ref(), Step::Asked(mode))?))
            .map_err(Error::before_any_change)
    };
    match mode {
        Mode::DryRun | Mode::Rehearsal => tried(mode),
        Mode::Change if rehearse => {
            let result = tried(Mode::Rehearsal)?;
            replay(device, journal)?;
            Ok(change(device, journal, Step::Made(&result))?)
        }
        Mode::Change => {
            replay(device, journal)?;
            Ok(change(device, journal, Step::Asked(mode))?)
        }
    }
}

/// f2fs has no journal.
fn refuse_journal(journal: Option<&ExternalJournal>) -> Result<()> {
    match journal {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Invalid,
            "a journal device is named, and f2fs has no journal",
        )
        .before_any_change()),
    }
}

fn open_and_close(device: SharedDevice, journal: Option<&ExternalJournal>) -> Result<()> {
    let mut options = VolumeOptions::new();
    if let Some(journal) = journal {
        options = options.journal_device(journal.device.clone());
    }
    options.open_device(device)?.close()
}
