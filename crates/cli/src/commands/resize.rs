//! `resize`: the size of a volume, and of the image file around it.

use crate::args::ResizeArgs;
use crate::failure::{Failure, Result};
use crate::image_file::{Wanted, finish, is_file, prepare, wanted};
use crate::output::{Out, human};
use blockwright::reshape::{self, Mode, Resized};
use blockwright_device::OpenMode;
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
    groups_before: u32,
    groups: u32,
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
    if args.dry_run && bytes > room && !is_file() {
        return Err(Failure::new(format_args!(
            "there are {room} bytes, fewer than the {bytes} asked for"
        )));
    }
    Ok(reshape::resize(&device, bytes, write)?)
}
