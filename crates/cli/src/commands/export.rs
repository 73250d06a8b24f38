//! `export`: a volume, or a part of one, as a tar stream.

use crate::args::ExportArgs;
use crate::failure::{At, Failure, Result};
use crate::image::same_file;
use crate::operand::Inside;
use blockwright::export::export_tar;
use blockwright::{Volume, VolumeOptions};
use std::ffi::OsStr;
use std::io::{BufWriter, IsTerminal, Write};
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
    let options = VolumeOptions {
        more_devices: crate::image::more_devices().to_vec(),
        journal: crate::image::journal().map(Path::to_owned),
        ..VolumeOptions::read_only()
    };
    let volume = Volume::open_by(&operand.image, &options, &mut crate::wall::device)?;
    let place = operand.to_string();
    let result = match args.output.as_deref().filter(|_| !to_stdout) {
        None => write(&volume, &operand, std::io::stdout().lock(), &place),
        Some(path) if same_file(path, &operand.image) => {
            Err(Failure::usage("the image is not overwritten by its own export").at(path.display()))
        }
        Some(path) => {
            let made = crate::wall::output(path).at(path.display());
            made.and_then(|file| {
                let written = write(&volume, &operand, &file, &place);
                let size_counts = file.metadata().is_ok_and(|meta| meta.is_file());
                if written.is_err() && size_counts {
                    // Half an archive must not be taken for a whole one.
                    crate::wall::remove_output(path);
                } else {
                    crate::wall::keep_output();
                }
                written
            })
        }
    };
    result.and(volume.close().at(operand.image.display()))
}

fn write(volume: &Volume, operand: &Inside, to: impl Write, place: &str) -> Result<()> {
    let path = Path::new(OsStr::from_bytes(&operand.path));
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, to);
    let report = export_tar(volume, path, &mut out)
        .at(place)
        .map_err(|e| e.within(&operand.image))?;
    out.flush()?;
    if report.sockets_skipped > 0 {
        crate::failure::warn(format_args!(
            "{place}: {} sockets were left out (tar has no entry for them)",
            report.sockets_skipped
        ));
    }
    Ok(())
}
