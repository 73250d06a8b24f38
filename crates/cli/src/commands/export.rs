//! `export`: a volume, or a part of one, as a tar stream.

use super::progress::Bar;
use crate::args::ExportArgs;
use crate::failure::{self, At, Failure, Result};
use crate::image::data_bytes;
use crate::interrupt::Interrupts;
use crate::operand::Inside;
use blockwright::Volume;
use blockwright::export::{Compression, Packer, export_tar_watched};
use std::ffi::OsStr;
use std::io::{BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BUFFER_BYTES: usize = 1 << 20;

/// Runs `export`.
///
/// # Errors
/// As reading the volume and writing the stream.
pub fn export(args: &ExportArgs) -> Result<()> {
    let operand = Inside::parse(&args.path);
    let to_stdout = args
        .output
        .as_deref()
        .is_none_or(|path| path == Path::new("-"));
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "a tar stream is not written to a terminal (redirect it, or name a file with -o)",
        ));
    }
    let options = crate::image::with_other_devices(Volume::options().read_only(true));
    let volume = options.open_by(&operand.image, &mut crate::wall::device)?;
    let result = match args.output.as_deref().filter(|_| !to_stdout) {
        None => write(
            &volume,
            &operand,
            crate::output::stdout(),
            Compression::None,
            // What reads the stream sees that it ends too early.
            &Interrupts::default(),
        ),
        Some(path) => crate::wall::spare_inputs(path, "export")
            .and_then(|()| to_file(&volume, &operand, path)),
    };
    result.and(volume.close().at(operand.image.display()))
}

fn to_file(volume: &Volume, operand: &Inside, path: &Path) -> Result<()> {
    let compression = Compression::of_name(path)?;
    let file = crate::wall::output(path).at(path.display())?;
    let size_counts = file.metadata().is_ok_and(|meta| meta.is_file());
    // Writing to a pipe or a device may wait for ever.
    let interrupts = match size_counts {
        true => Interrupts::note()?,
        false => Interrupts::default(),
    };
    let mut written = write(volume, operand, &file, compression, &interrupts);
    if written.is_err() && interrupts.came() {
        let what = match size_counts {
            true => "interrupted; the archive was removed",
            false => "interrupted; the archive is incomplete",
        };
        let failure = Failure::new(what).at(path.display());
        written = Err(failure.code(crate::exit::INTERRUPTED));
    }
    // A complete archive is kept although parts of the volume could not be read: rescue is what damaged volumes are opened for.
    match &written {
        // Half an archive must not be taken for a whole one.
        Err(e) if !e.is_silent() && size_counts => crate::wall::remove_output(path),
        _ => crate::wall::keep_output(),
    }
    written
}

fn write(
    volume: &Volume,
    operand: &Inside,
    to: impl Write,
    compression: Compression,
    interrupts: &Interrupts,
) -> Result<()> {
    let place = operand.to_string();
    let path = Path::new(OsStr::from_bytes(&operand.path));
    let out = BufWriter::with_capacity(BUFFER_BYTES, to);
    let mut packer = Packer::new(out, compression)?;
    let bar = Bar::new(0, false);
    if bar.is_shown() {
        bar.expect(expected(volume, operand));
    }
    let mut failed = |e: &blockwright::Error| {
        failure::print(&Failure::from(e.clone()).within(&operand.image));
    };
    let report = export_tar_watched(volume, path, &mut packer, &mut failed, &mut |so_far| {
        bar.set(so_far.bytes);
        match interrupts.came() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })
    .at(&place)
    .map_err(|e| e.within(&operand.image))?;
    packer.finish()?.flush()?;
    bar.finish();
    if report.sockets_skipped > 0 {
        failure::warn(format_args!(
            "{place}: {} sockets were left out (tar has no entry for them)",
            report.sockets_skipped
        ));
    }
    if report.failures > 0 {
        return Err(Failure::said(crate::exit::FAILURE));
    }
    Ok(())
}

/// About how many bytes the archive will have. What cannot be read is told when it is exported.
fn expected(volume: &Volume, operand: &Inside) -> u64 {
    if operand.is_root()
        && let Ok(stat) = volume.statfs()
    {
        return (stat.blocks - stat.blocks_free.min(stat.blocks))
            .saturating_mul(stat.block_bytes.into());
    }
    let (vfs, cred) = (volume.vfs(), volume.cred());
    let start = vfs.resolve(cred, &operand.path, false);
    start.map_or(0, |start| data_bytes(vfs, cred, start, &operand.path))
}
