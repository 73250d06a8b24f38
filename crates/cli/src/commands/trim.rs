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
use std::ops::{ControlFlow, Range};
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
    let stat = rustix::fs::fstatvfs(&directory).map_err(std::io::Error::from)?;
    let total = stat.f_blocks.saturating_mul(stat.f_frsize);
    let mut trim =
        |range: Range<u64>| match blockwright_device::trim_mounted(&directory, range.clone()) {
            Ok(trimmed) => Ok(trimmed),
            Err(e) => match e.raw_os_error() {
                // Behind the end of a file system that counts more space than it has.
                Some(22) if range.start > 0 => Ok(0),
                Some(95 | 25) => Err(Failure::new("the file system or its device cannot discard")),
                _ => Err(e.into()),
            },
        };
    in_ranges(|tell| by_ranges(total, tell, &mut trim))
}

/// Trims a mounted file system range by range, as [`Volume::trim_watched`] does with an image: a signal is not noticed during a system call. How many bytes were
/// trimmed, and whether all was gone through.
fn by_ranges(
    total: u64,
    tell: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    trim: &mut dyn FnMut(Range<u64>) -> Result<u64>,
) -> Result<(u64, bool)> {
    /// Ranges of a file system: so many at most, where they are not smaller than the least. Some file systems write a checkpoint for each.
    const RANGES_MAX: u64 = 256;
    const RANGE_MIN: u64 = 1 << 30;
    let step = (total / RANGES_MAX).max(1).next_multiple_of(RANGE_MIN);
    let (mut trimmed, mut at) = (0, 0);
    loop {
        if tell(at.min(total), total).is_break() {
            return Ok((trimmed, false));
        }
        // Metadata may not be counted, so that the end lies behind the total.
        let end = match total.saturating_sub(at) > step {
            true => at + step,
            false => u64::MAX,
        };
        trimmed += trim(at..end)?;
        if end == u64::MAX {
            return Ok((trimmed, true));
        }
        at = end;
    }
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
    in_ranges(|tell| Ok(volume.trim_watched(tell)?))
}

/// Does what tells its ranges, with a bar, until a signal comes.
fn in_ranges(
    trim: impl FnOnce(&mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<(u64, bool)>,
) -> Result<u64> {
    let interrupts = Interrupts::note()?;
    let bar = PhaseBar::new("trimming", false);
    let trimmed = trim(&mut |done, total| {
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

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// The ranges of a trim that is stopped before call `stop`, and its result.
    fn ranges(total: u64, stop: usize) -> (Vec<Range<u64>>, (u64, bool)) {
        let (mut seen, mut calls) = (Vec::new(), 0);
        let result = by_ranges(
            total,
            &mut |done, all| {
                assert!(done <= all && all == total);
                calls += 1;
                match calls > stop {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            },
            &mut |range| {
                seen.push(range);
                Ok(7)
            },
        );
        (seen, result.expect("trimmed"))
    }

    #[test]
    fn ranges_follow_one_another_to_the_end() {
        for total in [0, 1, GIB, GIB + 1, 10 * GIB, 3 << 50, u64::MAX] {
            let (seen, (trimmed, whole)) = ranges(total, usize::MAX);
            assert!(whole && trimmed == 7 * seen.len() as u64, "{total}");
            assert!(seen[0].start == 0 && seen[seen.len() - 1].end == u64::MAX);
            assert!(seen.windows(2).all(|pair| pair[0].end == pair[1].start));
            // A range begins within what is counted, or at 0.
            let last = seen[seen.len() - 1].start;
            assert!(
                last < total.max(1) && seen.len() <= 256,
                "{total}: {}",
                seen.len()
            );
        }
        assert_eq!(ranges(10 * GIB, usize::MAX).0.len(), 10);
        let (seen, result) = ranges(10 * GIB, 3);
        assert_eq!((seen.len(), result), (3, (21, false)));
    }
}
