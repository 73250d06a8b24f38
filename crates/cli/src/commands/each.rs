//! Commands that do the same for each of their operands, and go on after failures, as coreutils do.

use crate::failure::{Result, Tally};
use crate::image::{Access, Image, Images};
use crate::operand::Inside;
use crate::output::Out;
use serde::Serialize;
use std::ffi::OsString;

/// Runs `work` for each operand.
///
/// # Errors
/// As printed; the other operands were served.
pub fn each_operand(
    access: Access,
    paths: &[OsString],
    mut work: impl FnMut(&Image, &Inside) -> Result<()>,
) -> Result<()> {
    let mut images = Images::new(access);
    let mut tally = Tally::default();
    for operand in paths.iter().map(|path| Inside::parse(path)) {
        let done = images
            .get(&operand.image)
            .and_then(|image| work(&image, &operand));
        tally.note(done)?;
    }
    images.close()?;
    tally.finish()
}

/// Shows what `find` finds for each operand: as a JSON list of what `to_json` makes of it, or as `print` prints it.
///
/// # Errors
/// As printed, and of writing to standard output; the other operands were shown.
pub fn show_each<T, J: Serialize>(
    (paths, json): (&[OsString], bool),
    find: impl Fn(&Image, &Inside) -> Result<T>,
    to_json: impl Fn(&Inside, T) -> J,
    print: impl Fn(&mut Out, &Inside, T) -> Result<()>,
) -> Result<()> {
    let mut images = Images::new(Access::Read);
    let mut tally = Tally::default();
    let mut out = Out::new();
    let mut all = Vec::new();
    for operand in paths.iter().map(|path| Inside::parse(path)) {
        let found = images
            .get(&operand.image)
            .and_then(|image| find(&image, &operand));
        match tally.note(found)? {
            Some(found) if json => all.push(to_json(&operand, found)),
            Some(found) => print(&mut out, &operand, found)?,
            None => {}
        }
    }
    if json {
        out.json(&all)?;
    }
    out.finish()?;
    images.close()?;
    tally.finish()
}
