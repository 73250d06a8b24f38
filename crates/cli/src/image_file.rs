//! The file of an image whose volume gets another size: made longer before the process is confined, and given its final length afterwards.

use crate::args::ResizeArgs;
use crate::failure::{At, Failure, Result};
use crate::size::parse_size;
use blockwright::Error;
use blockwright::reshape::{Resized, file_bytes};
use blockwright_device::{NbdAddress, SharedDevice};
use blockwright_disk::container::{self, detect_file};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The image file, opened and made longer before the process was confined, with the length that it had.
static FILE: Mutex<Option<(File, u64)>> = Mutex::new(None);

/// Whether the image is a file, which can become longer. A confined process cannot look.
static IS_FILE: AtomicBool = AtomicBool::new(false);

/// The size that was asked for.
#[derive(Clone, Copy)]
pub enum Wanted {
    /// This many bytes.
    Bytes(u64),
    /// This many bytes more than the volume has.
    More(u64),
    /// All of the image.
    Fill,
    /// As few as the files allow.
    Minimum,
}

/// What the arguments ask for.
///
/// # Errors
/// Arguments that contradict each other.
pub fn wanted(args: &ResizeArgs) -> Result<Wanted> {
    if args.minimum {
        return match &args.size {
            Some(_) => Err(Failure::usage("--minimum takes no size")),
            None => Ok(Wanted::Minimum),
        };
    }
    match (&args.size, args.fill) {
        (Some(_), true) => Err(Failure::usage("--fill takes no size")),
        (None, true) => Ok(Wanted::Fill),
        (None, false) => Err(Failure::usage("a size, --fill or --minimum is needed")),
        (Some(text), false) => {
            let (more, number) = match text.strip_prefix('+') {
                Some(number) => (true, number),
                None => (false, text.as_str()),
            };
            let bytes = parse_size(number).map_err(Failure::usage)?;
            Ok(match more {
                true => Wanted::More(bytes),
                false => Wanted::Bytes(bytes),
            })
        }
    }
}

/// Refuses a new image where devices are: the name of one is mistyped there, and the image would be a file in the host's memory. A file that
/// exists is no concern of this.
///
/// # Errors
/// For a path below `/dev`, but not in `/dev/shm`, where nothing is.
pub fn refuse_among_devices(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let path = std::path::absolute(path).at(path.display())?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    // What `..` and links in front of the name lead to, if there is such a directory.
    let parent = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned());
    if parent.starts_with("/dev") && !parent.starts_with("/dev/shm") {
        return Err(
            Failure::new("no such device, and images are not made in /dev").at(path.display()),
        );
    }
    Ok(())
}

/// Opens the image file for the length that it gets when the change has ended, before the command is confined.
///
/// # Errors
/// Those of the host.
pub fn prepare(args: &ResizeArgs) -> Result<()> {
    let mut slot = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.is_some() {
        return Ok(());
    }
    // A container's file has a length of its own: the volume changes within the disk in it.
    let is_file = NbdAddress::parse(&args.image).is_none()
        && args.image.is_file()
        && detect_file(&args.image) == container::Format::Raw;
    IS_FILE.fetch_or(is_file, Ordering::Relaxed);
    if args.dry_run || !is_file {
        return Ok(());
    }
    let place = args.image.display();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&args.image)
        .at(&place)?;
    let length = file.metadata().at(&place)?.len();
    *slot = Some((file, length));
    Ok(())
}

/// Makes the image file long enough. `device` is the image, which this process alone uses.
///
/// # Errors
/// Those of the host.
pub fn lengthen(args: &ResizeArgs, device: &SharedDevice) -> Result<()> {
    let slot = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, length)) = *slot else {
        return Ok(());
    };
    let needed = match wanted(args)? {
        Wanted::Bytes(bytes) => bytes,
        Wanted::More(bytes) => length.saturating_add(bytes),
        Wanted::Fill | Wanted::Minimum => length,
    };
    if needed > length {
        device.grow(needed)?;
    }
    Ok(())
}

/// Gives the image file its final length, as [`file_bytes`] says. `device` opens the image, whose volume had `had` bytes; `resized` says how the change ended, if
/// it was begun.
///
/// # Errors
/// Those of the host, and of `device` after a change that succeeded.
pub fn finish(
    args: &ResizeArgs,
    device: impl FnOnce() -> Result<SharedDevice>,
    resized: Option<std::result::Result<&Resized, &Error>>,
    had: Option<u64>,
) -> Result<()> {
    let mut slot = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((file, before)) = slot.take() else {
        return Ok(());
    };
    let asked = match wanted(args)? {
        Wanted::Bytes(bytes) => Some(bytes),
        Wanted::More(_) | Wanted::Fill | Wanted::Minimum => None,
    };
    let length = match (resized, device()) {
        (None, _) => before,
        (Some(resized), Ok(device)) => file_bytes(&device, before, had, asked, resized),
        (Some(Ok(_)), Err(error)) => return Err(error),
        // The image keeps what it was given, and the command says why it failed.
        (Some(Err(_)), Err(_)) => return Ok(()),
    };
    let place = args.image.display();
    if file.metadata().at(&place)?.len() != length {
        file.set_len(length).at(&place)?;
        file.sync_all().at(&place)?;
    }
    Ok(())
}

/// Whether the image is a file, as far as [`prepare`] saw.
pub fn is_file() -> bool {
    IS_FILE.load(Ordering::Relaxed)
}
