//! `find`: paths below directories, by name and type.

use crate::args::{FindArgs, FindType};
use crate::failure::{Failure, Result, Tally};
use crate::image::{Access, Image, Images, last_name};
use crate::operand::Inside;
use crate::output::Out;
use blockwright::walk::WalkStep;
use blockwright_vfs::FileKind;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Patterns of names. An empty list matches everything.
///
/// # Errors
/// A pattern that is none.
pub fn patterns(texts: &[String]) -> Result<GlobSet> {
    let wrong = |e: globset::Error| {
        let pattern = e.glob().unwrap_or_default();
        Failure::usage(format_args!(
            "--name: the pattern `{pattern}`: {}",
            e.kind()
        ))
    };
    let mut set = GlobSetBuilder::new();
    for text in texts {
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .backslash_escape(true)
            .build();
        set.add(glob.map_err(wrong)?);
    }
    set.build().map_err(wrong)
}

/// An option as find(1) has it.
pub fn long_option(option: &str) -> Option<&'static str> {
    match option {
        "-name" => Some("--name"),
        "-type" => Some("--type"),
        "-maxdepth" => Some("--max-depth"),
        _ => None,
    }
}

fn is_kind(wanted: FindType, kind: FileKind) -> bool {
    matches!(
        (wanted, kind),
        (FindType::File, FileKind::Regular)
            | (FindType::Directory, FileKind::Directory)
            | (FindType::Symlink, FileKind::Symlink)
            | (FindType::CharDevice, FileKind::CharDevice)
            | (FindType::BlockDevice, FileKind::BlockDevice)
            | (FindType::Fifo, FileKind::Fifo)
            | (FindType::Socket, FileKind::Socket)
    )
}

/// Runs `find`.
///
/// # Errors
/// As printed; the rest was visited.
pub fn find(args: &FindArgs) -> Result<()> {
    let names = patterns(&args.name)?;
    let mut images = Images::new(Access::Read);
    let mut tally = Tally::default();
    let mut out = Out::new();
    for path in &args.paths {
        let operand = Inside::parse(path);
        let found = images
            .get(&operand.image)
            .and_then(|image| below(args, &names, &image, &operand, &mut out, &mut tally));
        tally.note(found)?;
    }
    out.finish()?;
    images.close()?;
    tally.finish()
}

fn below(
    args: &FindArgs,
    names: &GlobSet,
    image: &Image,
    operand: &Inside,
    out: &mut Out,
    tally: &mut Tally,
) -> Result<()> {
    let start = image.resolve(&operand.path, false)?;
    let depth_max = args.max_depth.unwrap_or(usize::MAX);
    let mut walk = image.walk(start, &operand.path);
    while let Some(step) = walk.step() {
        match step {
            WalkStep::Found(node) => {
                let name = Path::new(OsStr::from_bytes(last_name(walk.path())));
                let named = names.is_empty() || names.is_match(name);
                let kind = node.inode.kind();
                if named && args.kind.is_none_or(|wanted| is_kind(wanted, kind)) {
                    if args.print0 {
                        out.write_all(walk.path())?;
                        out.write_all(b"\0")?;
                    } else {
                        out.name(walk.path())?;
                        out.write_all(b"\n")?;
                    }
                }
                if node.depth >= depth_max {
                    walk.skip();
                }
            }
            WalkStep::Left(_) => {}
            WalkStep::Failed(e) => {
                tally.note::<()>(Err(image.walk_failure(e)))?;
            }
        }
    }
    Ok(())
}
