//! `du` and `df`.

use crate::args::{DuArgs, ImageArgs};
use crate::failure::{At, Result, Tally};
use crate::image::{Access, Image, Images, join};
use crate::operand::Inside;
use crate::output::{Out, Table, base64_unless_text, human, text};
use blockwright_vfs::{FileKind, Ino, InodeRef};
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;

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

struct Walk<'a> {
    image: &'a Image,
    summarize: bool,
    /// Files with several names count once.
    seen: HashSet<Ino>,
    usages: Vec<Usage>,
    tally: &'a mut Tally,
}

/// Runs `du`.
///
/// # Errors
/// As printed; the rest was counted.
pub fn du(args: &DuArgs) -> Result<()> {
    let mut images = Images::new(Access::Read);
    let mut tally = Tally::default();
    let mut usages = Vec::new();
    for operand in args.paths.iter().map(|path| Inside::parse(path)) {
        let found = images.get(&operand.image).and_then(|image| {
            let inode = image.resolve(&operand.path, false)?;
            Ok((image, inode))
        });
        let Some((image, inode)) = tally.note(found)? else {
            continue;
        };
        let mut walk = Walk {
            image: &image,
            summarize: args.summarize,
            seen: HashSet::new(),
            usages: Vec::new(),
            tally: &mut tally,
        };
        let sum = walk.count(&inode, &operand.path, true)?;
        let mut found = walk.usages;
        // An operand that is no directory is listed, too; and with -s, every operand is all there is.
        if args.summarize || inode.kind() != FileKind::Directory {
            found.push(usage(&image, &operand.path, sum));
        }
        usages.append(&mut found);
    }
    let mut out = Out::new();
    if args.json {
        out.json(&usages)?;
    } else {
        for usage in &usages {
            let bytes = if args.apparent_size {
                usage.apparent
            } else {
                usage.allocated
            };
            if args.sizes.human {
                write!(out, "{}\t", human(bytes))?;
            } else {
                // Kibibytes, rounded up, as du(1) has them.
                write!(out, "{}\t", bytes.div_ceil(1024))?;
            }
            out.name(format!("{}:{}", usage.image, usage.path).as_bytes())?;
            writeln!(out)?;
        }
    }
    out.finish()?;
    images.close()?;
    tally.finish()
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

impl Walk<'_> {
    fn count(&mut self, inode: &InodeRef, path: &[u8], top: bool) -> Result<Sum> {
        let attr = self.image.stat(inode);
        if attr.nlink > 1 && attr.kind != FileKind::Directory && !self.seen.insert(attr.ino) {
            return Ok(Sum::default());
        }
        let mut sum = Sum {
            allocated: attr.blocks512.saturating_mul(512),
            apparent: attr.size,
            inodes: 1,
        };
        if attr.kind != FileKind::Directory {
            return Ok(sum);
        }
        // A directory that names one above it is damage; it must not be walked for ever.
        if !self.seen.insert(attr.ino) {
            return Ok(Sum::default());
        }
        let entries = self.tally.note(self.image.entries(inode, path))?;
        for entry in entries.unwrap_or_default() {
            let path = join(path, &entry.name);
            let found = self
                .image
                .vfs()
                .inode(entry.ino)
                .at(self.image.place(&path));
            let Some(inode) = self.tally.note(found)? else {
                continue;
            };
            let below = self.count(&inode, &path, false)?;
            sum.allocated = sum.allocated.saturating_add(below.allocated);
            sum.apparent = sum.apparent.saturating_add(below.apparent);
            sum.inodes += below.inodes;
        }
        if !self.summarize {
            self.usages.push(usage(self.image, path, sum));
        } else if top {
            self.usages.clear();
        }
        Ok(sum)
    }
}

/// How full a volume is.
#[derive(Serialize)]
struct SpaceJson {
    image: String,
    format: &'static str,
    block_bytes: u32,
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
/// What opening the image reports.
pub fn df(args: &ImageArgs) -> Result<()> {
    // As everywhere, `IMAGE:` is the image's root; the space is the volume's wherever one asks.
    let path = Inside::parse(args.image.as_os_str()).image;
    let image = Image::open(&path, Access::Read)?;
    let place = path.display().to_string();
    let s = image.vfs().statfs().at(&place)?;
    let unit = u64::from(s.block_bytes);
    let bytes = |blocks: u64| blocks.saturating_mul(unit);
    let json = SpaceJson {
        image: place.clone(),
        format: image.vfs().engine().format(),
        block_bytes: s.block_bytes,
        size: bytes(s.blocks),
        used: bytes(s.blocks.saturating_sub(s.blocks_free)),
        free: bytes(s.blocks_free),
        available: bytes(s.blocks_available),
        inodes: s.files,
        inodes_used: s.files.saturating_sub(s.files_free),
        inodes_free: s.files_free,
    };
    let mut out = Out::new();
    if args.json {
        out.json(&json)?;
    } else {
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
        table.row(vec![
            place,
            human(json.size),
            human(json.used),
            human(json.available),
            percent(json.used, json.used.saturating_add(json.available)),
            json.inodes.to_string(),
            json.inodes_used.to_string(),
            json.inodes_free.to_string(),
            percent(json.inodes_used, json.inodes),
        ]);
        table.print(&mut out)?;
    }
    out.finish()?;
    image.close()
}
