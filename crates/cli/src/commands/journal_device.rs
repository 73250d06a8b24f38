//! `mkfs -O journal_dev`: a journal on a device of its own.

use super::mkfs::{allowed_device, check_overwrite, parse_uuid, source_date_epoch, uuid_text};
use crate::args::{Format, MkfsArgs, parse_size};
use crate::failure::{At, Failure, Result};
use crate::image_file::refuse_among_devices;
use crate::output::{Out, human};
use blockwright::build::JournalBuilder;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct JournalJson {
    image: String,
    format: &'static str,
    label: String,
    uuid: String,
    size: u64,
    block_bytes: u32,
    blocks: u32,
}

/// Options that a journal has no use for.
fn refuse_others(args: &MkfsArgs) -> Result<()> {
    for (given, option) in [
        (args.features.len() > 1, "-O with other features"),
        (args.format == Format::F2fs, "-t f2fs"),
        (args.inode_size.is_some(), "-I"),
        (args.bytes_per_inode.is_some(), "-i"),
        (args.inodes.is_some(), "-N"),
        (args.reserved_percent.is_some(), "-m"),
        (args.journal_size.is_some(), "-J"),
        (crate::devices::journal().is_some(), "--journal"),
        (args.base.is_some(), "--base"),
        (args.free > 0, "--free"),
        (!args.directory.is_empty(), "-d"),
        (!args.from.is_empty(), "--from"),
        (!args.entries.dumpfile.is_empty(), "--dumpfile"),
        (args.verity.is_some(), "--verity"),
    ] {
        if given {
            return Err(Failure::usage(format_args!(
                "-O journal_dev makes a journal, and goes without {option}"
            )));
        }
    }
    Ok(())
}

/// Makes the journal that `mkfs -O journal_dev` asks for.
///
/// # Errors
/// With the image named.
pub fn make(args: &MkfsArgs) -> Result<()> {
    refuse_others(args)?;
    if !args.force {
        check_overwrite(&args.image)?;
    }
    let mut builder = JournalBuilder::new();
    if let Some(bytes) = args.block_size {
        let bytes = u32::try_from(bytes)
            .map_err(|_| Failure::usage(format_args!("a block of {bytes} bytes")))?;
        builder = builder.block_size(bytes);
    }
    if let Some(label) = &args.label {
        builder = builder.label(label);
    }
    if let Some(uuid) = &args.uuid {
        builder = builder.uuid(parse_uuid(uuid)?);
    }
    if let Some(secs) = source_date_epoch()? {
        builder = builder.time(secs);
    }
    if let Some(size) = args.size.as_deref().or(args.fs_size.as_deref()) {
        let bytes = parse_size(size).map_err(|e| Failure::usage(format_args!("--size: {e}")))?;
        builder = builder.size(bytes);
    }
    if !args.image.exists() {
        refuse_among_devices(&args.image)?;
    }
    let new = crate::interrupt::remove_new_output(&args.image)?;
    let made = match allowed_device(&args.image) {
        Some(device) => device.and_then(|device| {
            let made = builder.create_on(&device);
            made.map_err(|e| e.at(&args.image))
        }),
        None => builder.create(&args.image),
    };
    new.keep();
    let made = made.at(args.image.display())?;
    if args.quiet && !args.json {
        return Ok(());
    }
    let mut out = Out::new();
    if args.json {
        out.json(&JournalJson {
            image: args.image.display().to_string(),
            format: "journal_dev",
            label: args.label.clone().unwrap_or_default(),
            uuid: uuid_text(&made.uuid),
            size: made.bytes,
            block_bytes: made.block_bytes,
            blocks: made.blocks,
        })?;
    } else {
        writeln!(
            out,
            "{}: a journal, {}, {} blocks of {} bytes, UUID {}",
            args.image.display(),
            human(made.bytes),
            made.blocks,
            made.block_bytes,
            uuid_text(&made.uuid),
        )?;
    }
    out.finish()
}
