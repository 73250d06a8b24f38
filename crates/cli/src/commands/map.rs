//! `map`: what each block of a volume is, as text, JSON, a picture, or a page to zoom in.

use crate::args::MapArgs;
use crate::commands::progress::PhaseBar;
use crate::failure::{At, Failure, Result};
use crate::output::{Out, Table, human};
use blockwright_check::Issue;
use blockwright_check::usage::{Place, Usage, UsageOptions};
use blockwright_device::{OpenMode, SharedDevice};
use blockwright_map::{Told, about, fragmented_text, problems};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Issues that the text lists.
const ISSUES_SHOWN: usize = 20;
/// Width of a picture in pixels.
const WIDTH: u32 = 1000;

#[derive(Serialize)]
struct FileJson {
    ino: u64,
    pieces: u64,
    blocks: u64,
    first_block: u64,
}

#[derive(Serialize)]
struct MapJson {
    image: String,
    format: &'static str,
    block_bytes: u32,
    blocks: u64,
    /// Blocks by kind.
    kinds: BTreeMap<&'static str, u64>,
    files: u64,
    fragmented_files: u64,
    fragmented: Vec<FileJson>,
    claimed_twice: u64,
    marked_free: u64,
    damaged: bool,
    problems: Vec<String>,
    /// First block, blocks, kind; in order. Absent on volumes with very many.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<(u64, u64, &'static str)>>,
    /// Blocks of a cell.
    cell_blocks: u64,
    /// Blocks by kind of equal parts of the volume; only without `runs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cells: Option<Vec<BTreeMap<&'static str, u64>>>,
}

/// What is written to a file.
#[derive(Clone, Copy)]
enum Picture {
    Svg,
    Png,
    Html,
}

fn picture_of(path: &Path) -> Result<Picture> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("svg") => Ok(Picture::Svg),
        Some("png") => Ok(Picture::Png),
        Some("html" | "htm") => Ok(Picture::Html),
        _ => {
            Err(Failure::usage("the map's name must end in .svg, .png or .html").at(path.display()))
        }
    }
}

/// Runs `map`.
///
/// # Errors
/// When nothing can be said about the volume, or the output cannot be written. Damage is no error.
pub fn map(args: &MapArgs) -> Result<()> {
    let picture = args.output.as_deref().map(picture_of).transpose()?;
    let quiet = args.json;
    let (format, usage) = survey(&args.image, quiet)?;
    let image = args.image.display().to_string();
    if let (Some(path), Some(picture)) = (&args.output, picture) {
        draw(&usage, format, &image, path, picture)?;
    }
    let mut out = Out::new();
    if args.json {
        out.json(&json(&usage, format, image))?;
    } else if args.output.is_none() {
        print(&mut out, &usage, format, &image)?;
    }
    out.finish()
}

/// The usage of a volume of whichever format it has.
fn survey(image: &Path, quiet: bool) -> Result<(&'static str, Usage<Told>)> {
    let open = OpenMode::read_only();
    let device = crate::wall::device(image, open).at(image.display())?;
    let more = crate::devices::more_devices();
    let device = blockwright::join_devices_by(device, more, open, &mut crate::wall::device)
        .at(image.display())?;
    let journal = crate::devices::journal()
        .map(|path| crate::wall::device(path, open).at(path.display()))
        .transpose()?;
    survey_device(device, journal, quiet).at(image.display())
}

/// The usage of the volume on a device.
fn survey_device(
    device: SharedDevice,
    journal: Option<SharedDevice>,
    quiet: bool,
) -> Result<(&'static str, Usage<Told>)> {
    let bar = PhaseBar::new("mapping", quiet);
    let options = UsageOptions {
        journal,
        progress: bar.progress(None),
        ..UsageOptions::default()
    };
    let usage = blockwright_map::survey(device, &options).map_err(Failure::new);
    bar.finish();
    usage
}

/// A map that other commands write beside their report, to link to places in it.
pub struct Companion<'a> {
    path: &'a Path,
    usage: Usage<Told>,
    format: &'static str,
}

impl<'a> Companion<'a> {
    /// The map of a volume on a device, to be written to `path`.
    ///
    /// # Errors
    /// As `map`.
    pub fn new(
        path: &'a Path,
        device: SharedDevice,
        journal: Option<SharedDevice>,
        quiet: bool,
    ) -> Result<Self> {
        let (format, usage) = survey_device(device, journal, quiet)?;
        Ok(Companion {
            path,
            usage,
            format,
        })
    }

    /// The blocks of a place.
    pub fn blocks_of(&self, place: Place) -> Option<(u64, u64)> {
        self.usage.blocks_of(place)
    }

    /// A link to blocks in the map.
    pub fn link(&self, (first, len): (u64, u64)) -> String {
        let last = first + len.saturating_sub(1);
        format!("{}#blocks={first}-{last}", self.path.display())
    }

    /// Where each kind of the volume's own structures begins: what it is, and a link.
    pub fn places(&self) -> Vec<(&'static str, String)> {
        let place = |(kind, at)| (kind, self.link(at));
        blockwright_map::places(&self.usage)
            .into_iter()
            .map(place)
            .collect()
    }

    /// Writes the map, with these issues in the place of its own.
    ///
    /// # Errors
    /// With the path named.
    pub fn write(mut self, image: &Path, issues: Option<Vec<Issue<Told>>>) -> Result<()> {
        if let Some(issues) = issues {
            self.usage.issues = issues;
        }
        let image = image.display().to_string();
        draw(&self.usage, self.format, &image, self.path, Picture::Html)
    }
}

/// Insists on a name that a page can have.
///
/// # Errors
/// Another name.
pub fn page_name(path: &Path) -> Result<()> {
    match picture_of(path) {
        Ok(Picture::Html) => Ok(()),
        _ => Err(Failure::usage("the map's name must end in .html").at(path.display())),
    }
}

fn draw(
    usage: &Usage<Told>,
    format: &str,
    image: &str,
    path: &Path,
    picture: Picture,
) -> Result<()> {
    // Also without a wall, which looks at it before.
    crate::wall::spare_inputs(path, "map")?;
    let about = about(usage, format);
    let drawing = || blockwright_map::picture(usage, &format!("{image}: {about}"), WIDTH).draw();
    let bytes = match picture {
        Picture::Svg => drawing().svg().into_bytes(),
        Picture::Png => drawing().png().at(path.display())?,
        Picture::Html => blockwright_map::page(usage, image, &about)
            .map_err(Failure::new)?
            .into_bytes(),
    };
    let mut file = crate::wall::output(path).at(path.display())?;
    file.write_all(&bytes).at(path.display())?;
    crate::wall::keep_output();
    Ok(())
}

fn json(usage: &Usage<Told>, format: &'static str, image: String) -> MapJson {
    let cells = usage.runs.is_none().then(|| {
        let kinds = |cell: &blockwright_check::usage::Cell| {
            cell.kinds().map(|(kind, n)| (kind.name(), n)).collect()
        };
        usage.cells.iter().map(kinds).collect()
    });
    MapJson {
        image,
        format,
        block_bytes: usage.block_bytes,
        blocks: usage.blocks,
        kinds: usage.kinds().map(|(kind, n)| (kind.name(), n)).collect(),
        files: usage.files,
        fragmented_files: usage.fragmented_files,
        fragmented: (usage.fragmented.iter())
            .map(|file| FileJson {
                ino: file.ino,
                pieces: file.pieces,
                blocks: file.blocks,
                first_block: file.first,
            })
            .collect(),
        claimed_twice: usage.claimed_twice,
        marked_free: usage.marked_free,
        damaged: usage.is_damaged(),
        problems: problems(usage),
        runs: usage.runs.as_ref().map(|runs| {
            runs.iter()
                .map(|r| (r.first, r.len, r.kind.name()))
                .collect()
        }),
        cell_blocks: usage.cell_blocks,
        cells,
    }
}

fn print(out: &mut Out, usage: &Usage<Told>, format: &str, image: &str) -> Result<()> {
    out.name(image.as_bytes())?;
    writeln!(out, ": {}", about(usage, format))?;
    writeln!(out)?;
    for row in blockwright_map::letters(usage) {
        writeln!(out, "  {row}")?;
    }
    writeln!(out)?;
    let mut table = Table::new(&["", "Kind", ">Blocks", ">Size", ">Share"]);
    for (kind, blocks) in usage.kinds() {
        table.row(vec![
            blockwright_map::letter(kind).to_string(),
            kind.label().to_owned(),
            blocks.to_string(),
            human(blocks.saturating_mul(u64::from(usage.block_bytes))),
            format!("{:.1}%", blocks as f64 * 100.0 / usage.blocks.max(1) as f64),
        ]);
    }
    table.print(out)?;
    if usage.fragmented_files > 0 {
        writeln!(
            out,
            "\n{} of {} files are fragmented; in most pieces:",
            usage.fragmented_files, usage.files
        )?;
        for file in &usage.fragmented {
            writeln!(out, "  {}", fragmented_text(file, usage.block_bytes))?;
        }
    }
    let problems = problems(usage);
    if !problems.is_empty() {
        writeln!(out, "\nDamaged:")?;
        for problem in problems.iter().take(ISSUES_SHOWN) {
            writeln!(out, "  {}", crate::text::printable(problem))?;
        }
        if problems.len() > ISSUES_SHOWN {
            writeln!(out, "  … and {} more", problems.len() - ISSUES_SHOWN)?;
        }
    }
    Ok(())
}
