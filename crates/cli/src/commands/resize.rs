//! `resize`: the size of a volume, and of the image file around it.

use super::change::{Change, named_journal};
use super::stats::said;
use crate::args::ResizeArgs;
use crate::failure::{Failure, Result};
use crate::image_file::{Wanted, finish, is_file, lengthen, prepare, wanted};
use crate::output::{Out, human};
use blockwright::disk::{self, Disk, PartitionSize};
use blockwright::reshape::{self, Mode, Parts, ResizeOptions, Resized};
use blockwright::{Error, ErrorKind};
use blockwright_device::OpenMode;
use blockwright_fuse::Control;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct ResizeJson {
    image: String,
    /// Nothing was written (`-n`).
    dry_run: bool,
    block_bytes: u32,
    /// Bytes of the volume.
    size_before: u64,
    size: u64,
    /// Of ext4.
    #[serde(skip_serializing_if = "Option::is_none")]
    groups_before: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<u32>,
    /// Of f2fs: those of the main area.
    #[serde(skip_serializing_if = "Option::is_none")]
    segments_before: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<u32>,
}

/// Runs `resize`.
///
/// # Errors
/// With the image named; the image file has its old length then, unless the change may have been made.
pub fn resize(args: &ResizeArgs) -> Result<()> {
    let place = args.image.display().to_string();
    if args.image.is_dir() {
        return mounted(args).map_err(|e| e.at(place));
    }
    wanted(args)?;
    prepare(args)?;
    let change = Change::begin()?;
    let mut had = None;
    let begun = run(args, &change, &mut had).map_err(|e| e.at(&place));
    let ended = begun.as_ref().ok().map(std::result::Result::as_ref);
    let image = || Ok(crate::wall::device(&args.image, OpenMode::default())?);
    finish(args, image, ended, had)?;
    drop(change);
    let told = |e: Error| match e.kind() {
        ErrorKind::Interrupted => {
            let now = image().and_then(|image| Ok(reshape::volume_bytes(&image)?));
            now.map_or_else(|e| e, |now| interrupted(args, had, now))
        }
        _ => e.into(),
    };
    let resized = begun?.map_err(told).map_err(|e| e.at(&place))?;
    let (groups, segments) = match resized.parts {
        Parts::Groups { before, now } => (Some((before, now)), None),
        Parts::Segments { before, now } => (None, Some((before, now))),
    };
    let mut out = Out::new();
    if args.json {
        out.json(&ResizeJson {
            image: place,
            dry_run: args.dry_run,
            block_bytes: resized.block_bytes,
            size_before: resized.bytes_before(),
            size: resized.bytes(),
            groups_before: groups.map(|(before, _)| before),
            groups: groups.map(|(_, now)| now),
            segments_before: segments.map(|(before, _)| before),
            segments: segments.map(|(_, now)| now),
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

/// A signal stopped the change of a volume that had `had` bytes: its state, with `now` bytes, and how to continue.
fn interrupted(args: &ResizeArgs, had: Option<u64>, now: u64) -> Failure {
    let how = match (wanted(args), had) {
        // What is added is added to the size that the volume has by now.
        (Ok(Wanted::More(more)), Some(had)) if now != had => {
            format!("a resize to {} bytes", had.saturating_add(more))
        }
        _ => "the same command".to_owned(),
    };
    Failure::new(format_args!(
        "interrupted; the volume is whole and has {} ({now} bytes): {how} continues",
        human(now)
    ))
    .code(crate::exit::INTERRUPTED)
}

#[derive(Serialize)]
struct GrownJson {
    image: String,
    /// Bytes of the volume.
    size_before: u64,
    size: u64,
}

/// Has the server of a mount make its volume larger.
fn mounted(args: &ResizeArgs) -> Result<()> {
    if args.dry_run || args.grow_partition {
        return Err(Failure::usage(
            "-n and --grow-partition are for images, not for mounts",
        ));
    }
    let size = match wanted(args)? {
        Wanted::Bytes(bytes) => bytes.to_string(),
        Wanted::More(bytes) => format!("+{bytes}"),
        Wanted::Fill => "fill".to_owned(),
        Wanted::Minimum => {
            return Err(Failure::usage(
                "a mounted volume only becomes larger: unmount it to make it smaller",
            ));
        }
    };
    let control = Control::open(&args.image).map_err(|e| said(&e))?;
    let (before, now) = control.grow(&size).map_err(|e| said(&e))?;
    let place = args.image.display().to_string();
    let mut out = Out::new();
    if args.json {
        out.json(&GrownJson {
            image: place,
            size_before: before,
            size: now,
        })?;
    } else {
        writeln!(out, "{place}: was {}, is {}", human(before), human(now))?;
    }
    out.finish()
}

/// Refuses to plan what cannot be made: `-n` opens every image for reading alone.
fn check_container(args: &ResizeArgs) -> Result<()> {
    let format = crate::wall::format_of(&args.image);
    if args.dry_run && !format.is_writable() {
        return Err(Failure::new(format_args!(
            "the device is read-only ({}): `blockwright disk convert` makes one that is not",
            format.name()
        )));
    }
    Ok(())
}

/// Makes the partition larger, and then the volume. `had` becomes the bytes that the volume has before.
fn run_in_larger(
    args: &ResizeArgs,
    mode: OpenMode,
    change: &Change,
    had: &mut Option<u64>,
) -> Result<blockwright::Result<Resized>> {
    let Some(selector) = crate::wall::part_of(&args.image) else {
        return Err(Failure::usage(
            "--grow-partition needs a partition, as in disk.img:p2",
        ));
    };
    let disk = Disk::of(crate::wall::device(
        &crate::wall::file_of(&args.image),
        mode,
    )?);
    check_container(args)?;
    let part = disk.part(&selector).ok();
    *had = part.and_then(|part| reshape::volume_bytes(&part).ok());
    let to = match wanted(args)? {
        Wanted::Bytes(bytes) => PartitionSize::Bytes(bytes),
        Wanted::More(bytes) => PartitionSize::More(bytes),
        Wanted::Fill | Wanted::Minimum => PartitionSize::Fill,
    };
    let how = match args.dry_run {
        true => Mode::DryRun,
        false => Mode::Change,
    };
    let journal = named_journal(mode)?;
    Ok(disk::grow(
        &disk,
        &selector,
        to,
        how,
        journal,
        &change.watch(),
    ))
}

/// Changes the size, if that can be begun. `had` becomes the bytes that the volume has before.
fn run(
    args: &ResizeArgs,
    change: &Change,
    had: &mut Option<u64>,
) -> Result<blockwright::Result<Resized>> {
    let mode = OpenMode {
        read_only: args.dry_run,
        ..OpenMode::default()
    };
    if args.grow_partition {
        return run_in_larger(args, mode, change, had);
    }
    let device = crate::wall::device(&args.image, mode)?;
    check_container(args)?;
    *had = reshape::volume_bytes(&device).ok();
    lengthen(args, &device)?;
    let room = device.geometry().bytes;
    let bytes = match wanted(args)? {
        Wanted::Minimum => None,
        Wanted::Bytes(bytes) => Some(bytes),
        Wanted::Fill => Some(room),
        Wanted::More(bytes) => Some(reshape::volume_bytes(&device)?.saturating_add(bytes)),
    };
    if let Some(bytes) = bytes.filter(|bytes| args.dry_run && *bytes > room && !is_file()) {
        return Err(Failure::new(format_args!(
            "there are {room} bytes, fewer than the {bytes} asked for"
        )));
    }
    let options = match bytes {
        Some(bytes) => ResizeOptions::to_bytes(bytes),
        None => ResizeOptions::to_minimum(args.free),
    };
    let options = options
        .mode(match args.dry_run {
            true => Mode::DryRun,
            false => Mode::Change,
        })
        .journal(named_journal(mode)?)
        .watch(change.watch());
    Ok(reshape::resize(&device, &options))
}
