//! `du` and `df`.

use super::stats::{connect, said};
use crate::args::{DfArgs, DuArgs};
use crate::failure::{At, Result, Tally};
use crate::image::{Access, Image, Images};
use crate::operand::Inside;
use crate::output::{Out, Table, base64_unless_text, human, text};
use blockwright::walk::WalkStep;
use blockwright_vfs::stats::Value;
use blockwright_vfs::{FileKind, Ino, InodeRef};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

/// What a file or a directory with all below it takes.
#[derive(Serialize)]
struct Usage {
    image: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    /// Bytes of blocks.
    allocated: u64,
    /// Bytes as files show them.
    apparent: u64,
    /// Inodes, each once.
    inodes: u64,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    allocated: u64,
    apparent: u64,
    inodes: u64,
}

/// Runs `du`.
///
/// # Errors
/// As printed; the rest was counted.
pub fn du(args: &DuArgs) -> Result<()> {
    let mut images = Images::new(Access::Read);
    let mut report = DuReport {
        args,
        out: Out::new(),
        json: Vec::new(),
        tally: Tally::default(),
    };
    for operand in args.paths.iter().map(|path| Inside::parse(path)) {
        let found = images.get(&operand.image).and_then(|image| {
            let inode = image.resolve(&operand.path, false)?;
            Ok((image, inode))
        });
        if let Some((image, inode)) = report.tally.note(found)? {
            report.operand(&image, inode, &operand.path)?;
        }
    }
    let DuReport {
        mut out,
        json,
        tally,
        ..
    } = report;
    if args.json {
        out.json(&json)?;
    }
    out.finish()?;
    images.close()?;
    tally.finish()
}

struct DuReport<'a> {
    args: &'a DuArgs,
    out: Out,
    json: Vec<Usage>,
    tally: Tally,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.apparent = self.apparent.saturating_add(other.apparent);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

impl DuReport<'_> {
    /// Counts an operand with all below it.
    fn operand(&mut self, image: &Image, inode: InodeRef, path: &[u8]) -> Result<()> {
        // Files with several names count once.
        let mut linked: HashSet<Ino> = HashSet::new();
        // What the directories on the way hold so far.
        let mut open: Vec<Sum> = Vec::new();
        let mut walk = image.walk(inode, path);
        while let Some(step) = walk.step() {
            match step {
                WalkStep::Found(node) => {
                    let attr = image.stat(&node.inode);
                    let is_dir = attr.kind == FileKind::Directory;
                    if attr.nlink > 1 && !is_dir && !linked.insert(attr.ino) {
                        continue;
                    }
                    let sum = Sum {
                        allocated: attr.blocks512.saturating_mul(512),
                        apparent: attr.size,
                        inodes: 1,
                    };
                    if is_dir {
                        open.push(sum);
                    } else if let Some(above) = open.last_mut() {
                        above.add(sum);
                    } else {
                        // An operand that is no directory is listed, too.
                        self.tell(image, walk.path(), sum)?;
                    }
                }
                WalkStep::Left(node) => {
                    let sum = open.pop().unwrap_or_default();
                    if let Some(above) = open.last_mut() {
                        above.add(sum);
                    }
                    if node.depth == 0 || !self.args.summarize {
                        self.tell(image, walk.path(), sum)?;
                    }
                }
                WalkStep::Failed(e) => {
                    self.tally.note::<()>(Err(image.walk_failure(e)))?;
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, image: &Image, path: &[u8], sum: Sum) -> Result<()> {
        if self.args.json {
            self.json.push(usage(image, path, sum));
            return Ok(());
        }
        let bytes = if self.args.apparent_size {
            sum.apparent
        } else {
            sum.allocated
        };
        if self.args.sizes.human {
            write!(self.out, "{}\t", human(bytes))?;
        } else {
            // Kibibytes, rounded up, as du(1) has them.
            write!(self.out, "{}\t", bytes.div_ceil(1024))?;
        }
        self.out.name(image.place(path).as_bytes())?;
        writeln!(self.out)?;
        Ok(())
    }
}

fn usage(image: &Image, path: &[u8], sum: Sum) -> Usage {
    Usage {
        image: image.path().display().to_string(),
        path: text(path),
        path_base64: base64_unless_text(path),
        allocated: sum.allocated,
        apparent: sum.apparent,
        inodes: sum.inodes,
    }
}

/// How full a volume is.
#[derive(Serialize)]
struct SpaceJson {
    image: String,
    format: String,
    block_bytes: u64,
    size: u64,
    used: u64,
    free: u64,
    /// Free for users who are not root.
    available: u64,
    inodes: u64,
    inodes_used: u64,
    inodes_free: u64,
}

fn percent(used: u64, of: u64) -> String {
    if of == 0 {
        return "-".to_owned();
    }
    let share = (u128::from(used) * 100).div_ceil(u128::from(of));
    format!("{share}%")
}

/// Runs `df`.
///
/// # Errors
/// As printed; the other volumes were looked at.
pub fn df(args: &DfArgs) -> Result<()> {
    let mut out = Out::new();
    let mut tally = Tally::default();
    // The program is confined where it reads an image, and cannot ask a server then: beside images, directories are refused.
    let mounted = args.images.iter().all(|path| Path::new(path).is_dir());
    let mut found = Vec::new();
    for image in &args.images {
        let space = match mounted {
            true => space_of_mount(Path::new(image)),
            false => space_of(image),
        };
        if let Some(space) = tally.note(space)? {
            found.push(space);
        }
    }
    if args.json {
        // One operand: as before there could be several.
        match &found[..] {
            [one] if args.images.len() == 1 => out.json(one)?,
            all => out.json(&all)?,
        }
    } else if !found.is_empty() {
        let mut table = Table::new(&[
            "Image",
            ">Size",
            ">Used",
            ">Available",
            ">Use%",
            ">Inodes",
            ">IUsed",
            ">IFree",
            ">IUse%",
        ]);
        for space in found {
            table.row(vec![
                space.image,
                human(space.size),
                human(space.used),
                human(space.available),
                percent(space.used, space.used.saturating_add(space.available)),
                space.inodes.to_string(),
                space.inodes_used.to_string(),
                space.inodes_free.to_string(),
                percent(space.inodes_used, space.inodes),
            ]);
        }
        table.print(&mut out)?;
    }
    out.finish()?;
    tally.finish()
}

fn space_of(image: &OsStr) -> Result<SpaceJson> {
    // As everywhere, `IMAGE:` is the image's root; the space is the volume's wherever one asks.
    let path = Inside::parse(image).image;
    let image = Image::open(&path, Access::Read)?;
    let place = path.display().to_string();
    let s = image.vfs().statfs().at(&place)?;
    let counts = Counts {
        block_bytes: u64::from(s.block_bytes),
        blocks: s.blocks,
        free: s.blocks_free,
        available: s.blocks_available,
        inodes: s.files,
        inodes_free: s.files_free,
    };
    let space = counts.space(place, image.vfs().format().name.to_owned());
    image.close()?;
    Ok(space)
}

/// The space of a mounted volume of ours, at its mount point or any directory of it.
fn space_of_mount(path: &Path) -> Result<SpaceJson> {
    let place = path.display().to_string();
    let stats = connect(path)?.stats().map_err(|e| said(&e).at(&place))?;
    let format = stats.metrics().iter().find(|m| m.name == "format");
    let format = match format.map(|m| &m.value) {
        Some(Value::Text(format)) => format.clone(),
        _ => String::new(),
    };
    let s = rustix::fs::statvfs(path).map_err(std::io::Error::from);
    let s = s.at(&place)?;
    let counts = Counts {
        block_bytes: s.f_frsize,
        blocks: s.f_blocks,
        free: s.f_bfree,
        available: s.f_bavail,
        inodes: s.f_files,
        inodes_free: s.f_ffree,
    };
    Ok(counts.space(place, format))
}

/// What `statfs` tells.
struct Counts {
    block_bytes: u64,
    blocks: u64,
    free: u64,
    /// Free for users who are not root.
    available: u64,
    inodes: u64,
    inodes_free: u64,
}

impl Counts {
    fn space(&self, image: String, format: String) -> SpaceJson {
        let bytes = |blocks: u64| blocks.saturating_mul(self.block_bytes);
        SpaceJson {
            image,
            format,
            block_bytes: self.block_bytes,
            size: bytes(self.blocks),
            used: bytes(self.blocks.saturating_sub(self.free)),
            free: bytes(self.free),
            available: bytes(self.available),
            inodes: self.inodes,
            inodes_used: self.inodes.saturating_sub(self.inodes_free),
            inodes_free: self.inodes_free,
        }
    }
}
