//! `disk`: tables of partitions, and conversions.

use super::progress::Bar;
use crate::args::{DiskCommand, DiskFormat, ExtractArgs, ImageArgs};
use crate::failure::{At, Failure, Result, warn};
use crate::output::{Out, Table, human};
use blockwright_device::{DeviceError, OpenMode, SharedDevice};
use blockwright_disk::{Disk, Partition, Selector, container, probe, table};
use serde::Serialize;
use std::path::Path;

/// Runs `disk`.
///
/// # Errors
/// With the image named.
pub fn disk(command: &DiskCommand) -> Result<()> {
    match command {
        DiskCommand::Ls(args) => ls(args),
        DiskCommand::Convert(args) => {
            let format = args
                .format
                .unwrap_or_else(|| DiskFormat::of_name(&args.output));
            convert(&args.image, &args.output, format.container(), args.quiet)
        }
        DiskCommand::Extract(args) => extract(args),
        DiskCommand::Create(args) => super::disk_build::create(args),
        DiskCommand::Add(args) => super::disk_build::add(args),
    }
}

#[derive(Serialize)]
struct DiskJson {
    /// The container's format, `raw` without one.
    container: &'static str,
    bytes: u64,
    /// `gpt`, `mbr` or `none`.
    table: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sector_bytes: Option<u32>,
    /// What a disk without a table holds.
    #[serde(flatten)]
    contents: ContentsJson,
    partitions: Vec<PartitionJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct PartitionJson {
    number: u32,
    start: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    type_name: Option<&'static str>,
    #[serde(flatten)]
    contents: ContentsJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize, Default)]
struct ContentsJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    label: String,
}

impl From<Option<probe::Contents>> for ContentsJson {
    fn from(found: Option<probe::Contents>) -> Self {
        found.map_or_else(ContentsJson::default, |found| ContentsJson {
            format: Some(found.format),
            label: found.label,
        })
    }
}

fn describe(disk: &Disk, p: &Partition) -> blockwright_disk::Result<PartitionJson> {
    let contents = match p.problem {
        Some(_) => None,
        None => probe::contents(&disk.part(&Selector::Number(p.number))?)?,
    };
    let (kind, type_name) = table::type_name(p.kind);
    Ok(PartitionJson {
        number: p.number,
        start: p.start,
        bytes: p.bytes,
        name: p.name.clone(),
        uuid: p.uuid.as_ref().map(table::guid_text),
        kind,
        type_name,
        contents: contents.into(),
        problem: p.problem.clone(),
    })
}

fn gather(device: &SharedDevice, format: container::Format) -> blockwright_disk::Result<DiskJson> {
    let bytes = device.geometry().bytes;
    let disk = &Disk::of(device.clone());
    let container = format.name();
    let Some(table) = disk.table()? else {
        return Ok(DiskJson {
            container,
            bytes,
            table: "none",
            id: None,
            sector_bytes: None,
            contents: probe::contents(device)?.into(),
            partitions: Vec::new(),
            remarks: Vec::new(),
        });
    };
    let described = table.partitions.iter().map(|p| describe(disk, p));
    Ok(DiskJson {
        container,
        bytes,
        table: table.scheme.name(),
        id: Some(table.id.clone()),
        sector_bytes: Some(table.sector_bytes),
        contents: ContentsJson::default(),
        partitions: described.collect::<blockwright_disk::Result<_>>()?,
        remarks: table.remarks.clone(),
    })
}

/// Runs `disk ls`.
fn ls(args: &ImageArgs) -> Result<()> {
    let place = args.image.display();
    // Without the lock, as `info`: looking does no harm.
    let mode = OpenMode {
        lock: false,
        ..OpenMode::read_only()
    };
    let device = crate::wall::device(&args.image, mode).at(&place)?;
    let format = crate::wall::format_of(&args.image);
    let found =
        gather(&device, format).map_err(|e| Failure::from(DeviceError::from(e)).at(&place))?;
    let mut out = Out::new();
    if args.json {
        out.json(&found)?;
        return out.finish();
    }
    print(&mut out, &found)?;
    out.finish()?;
    for remark in &found.remarks {
        warn(format_args!("{place}: {remark}"));
    }
    Ok(())
}

fn print(out: &mut Out, found: &DiskJson) -> Result<()> {
    use std::io::Write;
    let size = human(found.bytes);
    if found.table == "none" {
        let holds = found.contents.format.unwrap_or("no known contents");
        writeln!(
            out,
            "{size}, {}, without partitions: {holds}",
            found.container
        )?;
        return Ok(());
    }
    let id = found.id.as_deref().unwrap_or("-");
    writeln!(out, "{size}, {}, {} {id}", found.container, found.table)?;
    if found.partitions.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["Part", ">Start", ">Size", "Type", "Name", "Holds", "Label"]);
    let or_dash = |text: &str| match text {
        "" => "-".to_owned(),
        text => text.to_owned(),
    };
    for p in &found.partitions {
        table.row(vec![
            format!("p{}", p.number),
            p.start.to_string(),
            human(p.bytes),
            p.type_name.unwrap_or(&p.kind).to_owned(),
            or_dash(&p.name),
            or_dash(p.contents.format.unwrap_or_default()),
            or_dash(&p.contents.label),
        ]);
    }
    table.print(out)?;
    for p in &found.partitions {
        if let Some(problem) = &p.problem {
            writeln!(out, "p{}: {problem}", p.number)?;
        }
    }
    Ok(())
}

fn extract(args: &ExtractArgs) -> Result<()> {
    if !crate::wall::is_part(&args.image) {
        return Err(Failure::usage(
            "no partition is named, as in disk.img:p2; `disk convert` writes a whole disk",
        )
        .at(args.image.display()));
    }
    convert(
        &args.image,
        &args.output,
        container::Format::Raw,
        args.quiet,
    )
}

fn convert(image: &Path, output: &Path, format: container::Format, quiet: bool) -> Result<()> {
    crate::image_file::refuse_among_devices(output)?;
    let device = crate::wall::device(image, OpenMode::read_only()).at(image.display())?;
    let made = crate::interrupt::remove_new_output(output)?;
    let bar = Bar::new(device.geometry().bytes, quiet);
    let done = blockwright_disk::convert(&device, output, format, &|at| bar.set(at));
    made.keep();
    bar.finish();
    done.map_err(|e| Failure::from(DeviceError::from(e)).at(output.display()))
}
