//! `trim`: free blocks become holes of an image file, or are discarded on a device.

use super::progress::PhaseBar;
use crate::args::TrimArgs;
use crate::failure::{Failure, Result};
use crate::image::{Access, Image, with_other_devices};
use crate::interrupt::Interrupts;
use crate::output::{Out, human};
use blockwright::Volume;
use blockwright::device::ZeroingDevice;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

#[derive(Serialize)]
struct TrimJson {
    image: String,
    /// Bytes that were discarded or zeroed.
    trimmed: u64,
}

/// Runs `trim`.
///
/// # Errors
/// With the image or directory named.
pub fn trim(args: &TrimArgs) -> Result<()> {
    let place = args.path.display().to_string();
    let trimmed = if args.path.is_dir() {
        mounted(args)
    } else {
        image(&args.path, args.zero)
    }
    .map_err(|e| e.at(&place))?;
    let mut out = Out::new();
    if args.json {
        out.json(&TrimJson {
            image: place,
            trimmed,
        })?;
    } else {
        writeln!(out, "{place}: {} trimmed", human(trimmed))?;
    }
    out.finish()
}

fn mounted(args: &TrimArgs) -> Result<u64> {
    if args.zero {
        return Err(Failure::usage("--zero is for images, not for mounts"));
    }
    // The ioctl works on any directory, and would trim the file system that a mistyped path lies on.
    if !is_mount_point(&args.path)? {
        return Err(Failure::new("not a mount point, and not an image"));
    }
    let directory = File::open(&args.path)?;
    blockwright_device::trim_mounted(&directory).map_err(|e| match e.raw_os_error() {
        Some(95 | 25) => Failure::new("the file system or its device cannot discard"),
        _ => e.into(),
    })
}

/// Whether a file system is mounted on this directory.
fn is_mount_point(path: &Path) -> Result<bool> {
    let flags = rustix::fs::StatxFlags::BASIC_STATS;
    let stat = rustix::fs::statx(rustix::fs::CWD, path, rustix::fs::AtFlags::empty(), flags)
        .map_err(std::io::Error::from)?;
    // Linux 5.8 and newer say so. An older kernel lets the directory pass.
    let root = rustix::fs::StatxAttributes::MOUNT_ROOT;
    Ok(!stat.stx_attributes_mask.contains(root) || stat.stx_attributes.contains(root))
}

/// Trims range by range, until a signal comes.
fn watched(volume: &Volume) -> Result<u64> {
    let interrupts = Interrupts::note()?;
    let bar = PhaseBar::new("trimming", false);
    let trimmed = volume.trim_watched(&mut |done, total| {
        bar.show("ranges", done, total);
        match interrupts.came() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.finish();
    match trimmed? {
        (trimmed, true) => Ok(trimmed),
        (trimmed, false) => Err(Failure::new(format_args!(
            "interrupted; {} trimmed: the same command trims the rest",
            human(trimmed)
        ))
        .code(crate::exit::INTERRUPTED)),
    }
}

fn image(path: &Path, zero: bool) -> Result<u64> {
    if !zero {
        let image = Image::open(path, Access::Write)?;
        let trimmed = image.on_volume(watched);
        image.close()?;
        return trimmed;
    }
    let options = with_other_devices(Volume::options());
    let volume = options.open_by(path, &mut |path, mode| {
        let device = crate::wall::device(path, mode)?;
        Ok(Arc::new(ZeroingDevice::new(device)))
    })?;
    let trimmed = watched(&volume);
    volume.close()?;
    trimmed
}
