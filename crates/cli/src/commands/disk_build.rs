//! `disk create` and `disk add`: disks with partitions from directories, archives and images.

use super::mkfs::{Counts, progress_bar, show, source_date_epoch, uuid_text};
use super::progress::PhaseBar;
use crate::args::{AddArgs, CreateArgs, DiskFormat, PartSize, PartSpec, PartType};
use crate::exit;
use crate::failure::{At, Failure, Result};
use crate::image_file::refuse_among_devices;
use crate::interrupt::{Interrupts, remove_output};
use crate::output::{Out, Table, human};
use crate::source::MkfsSource;
use blockwright::disk::{self, Disk, DiskBuilder, DiskReport, Part, PartReport, Scheme};
use blockwright::{ErrorKind, Format, VolumeBuilder, ext4::FsType};
use blockwright_device::OpenMode;
use blockwright_disk::table::{guid_text, type_name};
use clap::ValueEnum;
use serde::Serialize;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

#[derive(Serialize)]
struct CreateJson {
    image: String,
    /// The container's format, `raw` without one.
    container: &'static str,
    table: &'static str,
    id: String,
    bytes: u64,
    partitions: Vec<PartJson>,
    seconds: f64,
}

#[derive(Serialize)]
struct PartJson {
    number: u32,
    name: String,
    start: u64,
    bytes: u64,
    /// Of the contents.
    format: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    type_name: Option<&'static str>,
    /// Of a volume of ext2, ext3, ext4 or f2fs.
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
}

fn type_text(kind: PartType) -> String {
    let name = kind.to_possible_value();
    name.map_or_else(String::new, |name| name.get_name().to_owned())
}

fn described(spec: &PartSpec, report: &PartReport) -> PartJson {
    let (kind, type_name) = type_name(report.kind);
    PartJson {
        number: report.number,
        name: report.name.clone(),
        start: report.start,
        bytes: report.bytes,
        format: type_text(spec.kind),
        kind,
        type_name,
        uuid: report.volume.as_ref().map(|v| uuid_text(&v.uuid)),
    }
}

/// What a specification describes.
fn part(spec: &PartSpec) -> Result<Part> {
    let bytes = match spec.size {
        Some(PartSize::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let name = &spec.name;
    let builder = VolumeBuilder::new();
    let builder = match spec.kind {
        PartType::Swap => return Ok(Part::swap(name, bytes)),
        PartType::Raw => {
            let device = crate::wall::device(&spec.source, OpenMode::read_only());
            return Ok(Part::raw(name, device.at(spec.source.display())?, bytes));
        }
        PartType::Fat32 | PartType::Ext4 => builder,
        PartType::Ext2 => builder.fs_type(FsType::Ext2),
        PartType::Ext3 => builder.fs_type(FsType::Ext3),
        PartType::F2fs => builder.format(Format::F2fs),
    };
    let mut builder = match spec.size {
        Some(PartSize::Bytes(bytes)) => builder.size(bytes),
        Some(PartSize::Auto(free)) => builder.size_auto(free),
        Some(PartSize::Fill) | None => builder,
    };
    if !spec.source.as_os_str().is_empty() {
        builder = MkfsSource::of(&spec.source).put_into(builder);
    }
    let part = match spec.kind {
        PartType::Fat32 => Part::fat32(name, builder),
        _ => Part::volume(name, builder),
    };
    Ok(match spec.size {
        Some(PartSize::Fill) => part.filling(),
        _ => part,
    })
}

fn check_input(parts: &[PartSpec]) -> Result<()> {
    let from_standard_input = |part: &&PartSpec| {
        matches!(part.kind, PartType::Swap | PartType::Raw).eq(&false)
            && !part.source.as_os_str().is_empty()
            && MkfsSource::of(&part.source).path().is_none()
    };
    match parts.iter().filter(from_standard_input).count() {
        0 | 1 => Ok(()),
        _ => Err(Failure::usage("standard input is read once")),
    }
}

/// Runs `disk create`.
///
/// # Errors
/// With the new file named. It is removed again then.
pub fn create(args: &CreateArgs) -> Result<()> {
    check_input(&args.parts)?;
    let format = args
        .format
        .unwrap_or_else(|| DiskFormat::of_name(&args.output))
        .container();
    let place = args.output.display().to_string();
    if std::fs::symlink_metadata(&args.output).is_ok() {
        return Err(Failure::new("it exists already; a disk is made in a new file").at(place));
    }
    refuse_among_devices(&args.output)?;
    let scheme = if args.mbr { Scheme::Mbr } else { Scheme::Gpt };
    let bar = progress_bar(args.quiet || args.json);
    let counts = Arc::new(Counts::default());
    let mut builder = {
        let (bar, counts) = (bar.clone(), counts.clone());
        DiskBuilder::new(scheme).progress(move |step| show(step, bar.as_ref(), &counts))
    };
    if let Some(bytes) = args.size {
        builder = builder.size(bytes);
    }
    if let Some(architecture) = args.arch {
        builder = builder.architecture(architecture);
    }
    if let Some(secs) = source_date_epoch()? {
        builder = builder.source_date_epoch(secs);
    }
    for spec in &args.parts {
        builder = builder.part(part(spec)?);
    }
    let start = Instant::now();
    let made = remove_output(&args.output)?;
    let report = builder.create(&args.output, format);
    made.keep();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = report.map_err(|e| Failure::from(e).at(&place))?;
    let described = args.parts.iter().zip(&report.partitions);
    let partitions: Vec<PartJson> = described
        .map(|(spec, part)| self::described(spec, part))
        .collect();
    let mut out = Out::new();
    if args.json {
        out.json(&CreateJson {
            image: place,
            container: format.name(),
            table: scheme.name(),
            id: id_text(&report, scheme),
            bytes: report.bytes,
            partitions,
            seconds: start.elapsed().as_secs_f64(),
        })?;
    } else if !args.quiet {
        writeln!(
            out,
            "{place}: {}, {}, {} {}",
            human(report.bytes),
            format.name(),
            scheme.name(),
            id_text(&report, scheme)
        )?;
        print(&mut out, &partitions)?;
    }
    out.finish()
}

fn id_text(report: &DiskReport, scheme: Scheme) -> String {
    match scheme {
        Scheme::Gpt => guid_text(&report.id),
        Scheme::Mbr => {
            let [a, b, c, d, ..] = report.id;
            format!("{:08x}", u32::from_le_bytes([a, b, c, d]))
        }
    }
}

fn print(out: &mut Out, partitions: &[PartJson]) -> Result<()> {
    let mut table = Table::new(&["Part", ">Start", ">Size", "Type", "Name", "Holds"]);
    for p in partitions {
        table.row(vec![
            format!("p{}", p.number),
            p.start.to_string(),
            human(p.bytes),
            p.type_name.unwrap_or(&p.kind).to_owned(),
            if p.name.is_empty() { "-" } else { &p.name }.to_owned(),
            p.format.clone(),
        ]);
    }
    table.print(out)
}

/// Runs `disk add`.
///
/// # Errors
/// With the image named; its table is as it was then.
pub fn add(args: &AddArgs) -> Result<()> {
    let place = args.image.display().to_string();
    if crate::wall::is_part(&args.image) {
        return Err(Failure::usage("a partition is added to a whole disk").at(place));
    }
    let device = crate::wall::device(&args.image, OpenMode::default()).at(&place)?;
    let epoch = source_date_epoch()?;
    let bar = PhaseBar::new("writing", args.quiet || args.json);
    let watch = {
        let bar = bar.clone();
        // Nothing is written while the sources are read: until then a signal ends the program at once.
        let interrupts = OnceLock::new();
        Arc::new(move |done, total| {
            bar.show("contents", done, total);
            let noted = interrupts.get_or_init(|| Interrupts::note().ok());
            match noted.as_ref().is_some_and(Interrupts::came) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    };
    let added = disk::add_watched(
        &Disk::of(device),
        part(&args.part)?,
        epoch,
        &std::env::temp_dir(),
        watch,
    );
    bar.finish();
    let added = added.map_err(|e| match e.kind() {
        ErrorKind::Interrupted => Failure::from(e).at(&place).code(exit::INTERRUPTED),
        _ => Failure::from(e).at(&place),
    });
    let added = described(&args.part, &added?);
    let mut out = Out::new();
    if args.json {
        out.json(&added)?;
    } else if !args.quiet {
        print(&mut out, &[added])?;
    }
    out.finish()
}
