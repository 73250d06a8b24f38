//! `resize`: the size of a volume, and of the image file around it.

use crate::args::ResizeArgs;
use crate::failure::{At, Failure, Result};
use crate::output::{Out, human};
use crate::size::parse_size;
use blockwright::reshape::{self, Mode, Resized};
use blockwright_device::{NbdAddress, OpenMode};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The image file, opened and made longer before the process was confined, with the length that it had.
static FILE: Mutex<Option<(File, u64)>> = Mutex::new(None);

/// Whether the image is a file, which can become longer. A confined process cannot look.
static IS_FILE: AtomicBool = AtomicBool::new(false);

#[derive(Serialize)]
struct ResizeJson {
    image: String,
    /// Nothing was written (`-n`).
    dry_run: bool,
    block_bytes: u32,
    /// Bytes of the volume.
    size_before: u64,
    size: u64,
    groups_before: u32,
    groups: u32,
}

/// The size that was asked for.
#[derive(Clone, Copy)]
enum Wanted {
    Bytes(u64),
    More(u64),
    Fill,
    Minimum,
}

fn wanted(args: &ResizeArgs) -> Result<Wanted> {
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

/// Makes the image file long enough. A file that another process uses keeps its length.
///
/// # Errors
/// Those of the host.
pub fn prepare(args: &ResizeArgs) -> Result<()> {
    let mut slot = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.is_some() {
        return Ok(());
    }
    let is_file = NbdAddress::parse(&args.image).is_none() && args.image.is_file();
    IS_FILE.fetch_or(is_file, Ordering::Relaxed);
    if args.dry_run || !is_file {
        return Ok(());
    }
    let Ok(wanted) = wanted(args) else {
        return Ok(());
    };
    if blockwright_device::hold(&args.image, OpenMode::default()).is_err() {
        // The command says why.
        return Ok(());
    }
    let place = args.image.display();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&args.image)
        .at(&place)?;
    let length = file.metadata().at(&place)?.len();
    let needed = match wanted {
        Wanted::Bytes(bytes) => bytes,
        Wanted::More(bytes) => length.saturating_add(bytes),
        Wanted::Fill | Wanted::Minimum => length,
    };
    if needed > length {
        file.set_len(needed).at(&place)?;
    }
    *slot = Some((file, length));
    Ok(())
}

/// Gives the image file its length: what was prepared and is not needed goes.
fn finish(args: &ResizeArgs, resized: Option<&Resized>) -> Result<()> {
    let mut slot = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((file, before)) = slot.take() else {
        return Ok(());
    };
    let length = match (resized, wanted(args)?) {
        (None, _) => before,
        // Everything is durable in front of the end.
        (Some(resized), _) if resized.bytes() < resized.bytes_before() => resized.bytes(),
        (Some(resized), Wanted::More(_)) => before.max(resized.bytes()),
        (Some(_), Wanted::Bytes(bytes)) => before.max(bytes),
        (Some(_), Wanted::Fill | Wanted::Minimum) => before,
    };
    let place = args.image.display();
    if file.metadata().at(&place)?.len() != length {
        file.set_len(length).at(&place)?;
        file.sync_all().at(&place)?;
    }
    Ok(())
}

/// Runs `resize`.
///
/// # Errors
/// With the image named; the image file has its old length then.
pub fn resize(args: &ResizeArgs) -> Result<()> {
    let place = args.image.display().to_string();
    if args.image.is_dir() {
        return Err(Failure::new("a mounted volume is not resized: unmount it first").at(place));
    }
    wanted(args)?;
    prepare(args)?;
    let resized = run(args).map_err(|e| e.at(&place));
    finish(args, resized.as_ref().ok())?;
    let resized = resized?;
    let mut out = Out::new();
    if args.json {
        out.json(&ResizeJson {
            image: place,
            dry_run: args.dry_run,
            block_bytes: resized.block_bytes,
            size_before: resized.bytes_before(),
            size: resized.bytes(),
            groups_before: resized.groups_before,
            groups: resized.groups,
        })?;
    } else {
        let verb = if args.dry_run { "would be" } else { "is" };
        writeln!(
            out,
            "{place}: was {}, {verb} {} ({} blocks of {} bytes)",
            human(resized.bytes_before()),
            human(resized.bytes()),
            resized.blocks,
            resized.block_bytes
        )?;
    }
    out.finish()
}

fn run(args: &ResizeArgs) -> Result<Resized> {
    let mode = OpenMode {
        read_only: args.dry_run,
        ..OpenMode::default()
    };
    let device = crate::wall::device(&args.image, mode)?;
    let write = match args.dry_run {
        true => Mode::DryRun,
        false => Mode::Change,
    };
    let bytes = match wanted(args)? {
        Wanted::Minimum => return Ok(reshape::resize_to_minimum(&device, args.free, write)?),
        Wanted::Bytes(bytes) => bytes,
        Wanted::Fill => device.geometry().bytes,
        Wanted::More(bytes) => reshape::volume_bytes(&device)?.saturating_add(bytes),
    };
    let room = device.geometry().bytes;
    if args.dry_run && bytes > room && !IS_FILE.load(Ordering::Relaxed) {
        return Err(Failure::new(format_args!(
            "there are {room} bytes, fewer than the {bytes} asked for"
        )));
    }
    Ok(reshape::resize(&device, bytes, write)?)
}
