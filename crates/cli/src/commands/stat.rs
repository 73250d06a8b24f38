//! `stat`.

use crate::args::PathsArgs;
use crate::commands::each::show_each;
use crate::commands::list::FileJson;
use crate::failure::{At, Result};
use crate::image::Image;
use crate::operand::Inside;
use crate::output::{Out, device_numbers, flag_names, mode_string, octal, text, time_full};
use blockwright_vfs::{Attr, FileKind};
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct StatJson {
    image: String,
    #[serde(flatten)]
    file: FileJson,
    xattrs: Vec<String>,
}

struct Found {
    image: String,
    path: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
    xattrs: Vec<Vec<u8>>,
    block_bytes: u32,
}

fn one(image: &Image, operand: &Inside) -> Result<Found> {
    let inode = image.resolve(&operand.path, false)?;
    let attr = image.stat(&inode);
    let target = match attr.kind {
        FileKind::Symlink => Some(image.vfs().read_link(&inode).at(operand)?),
        _ => None,
    };
    Ok(Found {
        image: operand.image.display().to_string(),
        path: operand.path.clone(),
        attr,
        target,
        xattrs: image.vfs().list_xattr(image.cred(), &inode).at(operand)?,
        block_bytes: image.vfs().format().block_bytes,
    })
}

/// Runs `stat`.
///
/// # Errors
/// As printed; the other operands were shown.
pub fn stat(args: &PathsArgs) -> Result<()> {
    show_each(
        (&args.paths, args.json),
        one,
        |_, found| StatJson {
            image: found.image,
            file: FileJson::new(&found.path, &found.attr, found.target.as_deref()),
            xattrs: found.xattrs.iter().map(|name| text(name)).collect(),
        },
        |out, _, found| print(out, &found),
    )
}

fn print(out: &mut Out, found: &Found) -> Result<()> {
    let attr = &found.attr;
    write!(out, "  File: ")?;
    out.name(format!("{}:{}", found.image, text(&found.path)).as_bytes())?;
    if let Some(target) = &found.target {
        write!(out, " -> ")?;
        out.name(target)?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {}",
        attr.size,
        attr.blocks512,
        found.block_bytes,
        attr.kind.name()
    )?;
    write!(out, " Inode: {:<15} Links: {}", attr.ino.0, attr.nlink)?;
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let (major, minor) = device_numbers(attr.rdev);
        write!(out, "     Device type: {major},{minor}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "Access: ({}/{})  Uid: {}   Gid: {}   Project: {}",
        octal(attr.perm),
        mode_string(attr.kind, attr.perm),
        attr.uid,
        attr.gid,
        attr.project
    )?;
    writeln!(out, "Access: {}", time_full(attr.atime))?;
    writeln!(out, "Modify: {}", time_full(attr.mtime))?;
    writeln!(out, "Change: {}", time_full(attr.ctime))?;
    match attr.crtime {
        Some(t) => writeln!(out, " Birth: {}", time_full(t))?,
        None => writeln!(out, " Birth: -")?,
    }
    let flags = flag_names(attr);
    if !flags.is_empty() {
        writeln!(out, " Flags: {}", flags.join(" "))?;
    }
    if !found.xattrs.is_empty() {
        let names: Vec<String> = found.xattrs.iter().map(|name| text(name)).collect();
        writeln!(out, "Xattrs: {}", names.join(" "))?;
    }
    Ok(())
}
