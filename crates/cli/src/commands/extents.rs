//! `extents`: where a file's blocks are.

use crate::args::PathsArgs;
use crate::commands::each::show_each;
use crate::failure::{At, Failure, Result};
use crate::image::Image;
use crate::operand::Inside;
use crate::output::{Out, Table, base64_unless_text, text};
use blockwright_vfs::{FileKind, InodeRef, Place};
use serde::Serialize;
use std::io::Write;

/// A stretch of a file. All numbers are bytes.
#[derive(Serialize, PartialEq, Eq, Debug)]
struct ExtentJson {
    /// Where it begins in the file.
    logical: u64,
    /// Where it begins on the volume; absent for data in the inode.
    #[serde(skip_serializing_if = "Option::is_none")]
    physical: Option<u64>,
    length: u64,
    flags: Vec<&'static str>,
}

#[derive(Serialize)]
struct FileExtents {
    image: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    ino: u64,
    size: u64,
    block_bytes: u32,
    extents: Vec<ExtentJson>,
}

/// Everything that is not a hole, neighbours joined.
fn collect(image: &Image, inode: &InodeRef, place: &Inside) -> Result<Vec<ExtentJson>> {
    let engine = image.vfs().engine();
    let attr = image.stat(inode);
    let unit = u64::from(image.vfs().format().block_bytes);
    // Blocks may be allocated past the end (fallocate with keep-size): as many as are counted.
    let end = attr
        .size
        .saturating_add(attr.blocks512.saturating_mul(512))
        .next_multiple_of(unit)
        .min(engine.file_bytes_max(inode).max(attr.size));
    let mut extents: Vec<ExtentJson> = Vec::new();
    let mut at = 0;
    while at < end {
        let mapping = engine.map(inode, at, end - at).at(place)?;
        if matches!(mapping.place, Place::Inline) {
            // All of the file: it has no blocks, so nothing is past its end either.
            extents.push(ExtentJson {
                logical: 0,
                physical: None,
                length: attr.size,
                flags: vec!["inline"],
            });
            break;
        }
        let next = mapping.offset.saturating_add(mapping.bytes);
        if next <= at {
            break;
        }
        let length = next - at;
        let moved = |device: blockwright_device::DevOffset| device.0 + (at - mapping.offset);
        let found = match mapping.place {
            Place::Hole | Place::Inline => None,
            Place::Delayed => Some((None, vec!["delayed"])),
            Place::Mapped(device) => Some((Some(moved(device)), vec![])),
            Place::Unwritten(device) => Some((Some(moved(device)), vec!["unwritten"])),
            Place::Reserved => Some((None, vec!["unwritten"])),
            Place::Encoded => Some((None, vec!["encoded"])),
        };
        if let Some((physical, flags)) = found {
            let joins = extents.last().is_some_and(|last| {
                last.flags == flags
                    && last.logical + last.length == at
                    && last.physical.map(|p| p + last.length) == physical
                    && physical.is_some()
            });
            match extents.last_mut() {
                Some(last) if joins => last.length += length,
                _ => extents.push(ExtentJson {
                    logical: at,
                    physical,
                    length,
                    flags,
                }),
            }
        }
        at = next;
    }
    for extent in &mut extents {
        if extent.logical >= attr.size {
            extent.flags.push("past-end");
        }
    }
    if let Some(last) = extents.last_mut() {
        last.flags.push("last");
    }
    Ok(extents)
}

fn one(image: &Image, operand: &Inside) -> Result<FileExtents> {
    let inode = image.resolve(&operand.path, true)?;
    if !matches!(inode.kind(), FileKind::Regular | FileKind::Directory) {
        return Err(
            Failure::new(format_args!("a {} has no blocks", inode.kind().name())).at(operand),
        );
    }
    let attr = image.stat(&inode);
    Ok(FileExtents {
        image: operand.image.display().to_string(),
        path: text(&operand.path),
        path_base64: base64_unless_text(&operand.path),
        ino: attr.ino.0,
        size: attr.size,
        block_bytes: image.vfs().format().block_bytes,
        extents: collect(image, &inode, operand)?,
    })
}

/// Runs `extents`.
///
/// # Errors
/// As printed; the other operands were shown.
pub fn extents(args: &PathsArgs) -> Result<()> {
    show_each(
        (&args.paths, args.json),
        one,
        |_, found| found,
        |out, _, found| print(out, &found),
    )
}

/// In blocks, as filefrag(8) does it.
fn print(out: &mut Out, file: &FileExtents) -> Result<()> {
    let unit = u64::from(file.block_bytes).max(1);
    out.name(format!("{}:{}", file.image, file.path).as_bytes())?;
    writeln!(
        out,
        ": inode {}, {} bytes, {} extent{}, blocks of {} bytes",
        file.ino,
        file.size,
        file.extents.len(),
        if file.extents.len() == 1 { "" } else { "s" },
        file.block_bytes
    )?;
    let mut table = Table::new(&[">Logical", ">Physical", ">Length", "Flags"]);
    for extent in &file.extents {
        table.row(vec![
            (extent.logical / unit).to_string(),
            extent
                .physical
                .map_or_else(|| "-".to_owned(), |p| (p / unit).to_string()),
            extent.length.div_ceil(unit).to_string(),
            extent.flags.join(","),
        ]);
    }
    if !file.extents.is_empty() {
        table.print(out)?;
    }
    Ok(())
}
