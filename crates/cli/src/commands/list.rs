//! `ls` and `tree`.

use crate::args::{LsArgs, TreeArgs};
use crate::failure::{Result, Tally};
use crate::image::{Access, Image, Images, join};
use crate::operand::Inside;
use crate::output::{
    AttrJson, Out, base64_unless_text, device_numbers, human, kind_letter, mode_string, text,
    time_short,
};
use blockwright_vfs::{Attr, FileKind, InodeRef};
use serde::Serialize;
use std::io::Write;
use std::rc::Rc;

/// A line of a listing.
struct Line {
    name: Vec<u8>,
    attr: Attr,
    /// Target of a symlink.
    target: Option<Vec<u8>>,
}

/// A file in a listing's JSON: the same in `ls`, `tree` and `stat`.
#[derive(Serialize)]
pub struct FileJson {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    #[serde(flatten)]
    attr: AttrJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_base64: Option<String>,
}

impl FileJson {
    /// A file with its name, and its target if it is a symlink.
    pub fn new(name: &[u8], attr: &Attr, target: Option<&[u8]>) -> Self {
        FileJson {
            name: text(name),
            name_base64: base64_unless_text(name),
            attr: attr.into(),
            target: target.map(text),
            target_base64: target.and_then(base64_unless_text),
        }
    }
}

/// One listed directory, or the operands that are none.
#[derive(Serialize)]
struct ListingJson {
    image: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    entries: Vec<FileJson>,
}

fn line(image: &Image, inode: &InodeRef, name: &[u8], path: &[u8]) -> Result<Line> {
    use crate::failure::At;
    let target = match inode.kind() {
        FileKind::Symlink => Some(image.vfs().read_link(inode).at(image.place(path))?),
        _ => None,
    };
    Ok(Line {
        name: name.to_vec(),
        attr: image.stat(inode),
        target,
    })
}

struct Lister<'a> {
    args: &'a LsArgs,
    out: Out,
    tally: Tally,
    json: Vec<ListingJson>,
    /// Listings so far, for the empty lines between them.
    listed: usize,
    /// Whether listings are headed by their directory.
    heads: bool,
}

/// Runs `ls`.
///
/// # Errors
/// As printed; the other operands were listed.
pub fn ls(args: &LsArgs) -> Result<()> {
    let mut images = Images::new(Access::Read);
    let mut lister = Lister {
        args,
        out: Out::new(),
        tally: Tally::default(),
        json: Vec::new(),
        listed: 0,
        heads: args.recursive || args.paths.len() > 1,
    };
    // Operands that are no directories come first, as ls(1) has it.
    let mut directories = Vec::new();
    let mut files: Vec<(Rc<Image>, Vec<u8>, Line)> = Vec::new();
    for operand in args.paths.iter().map(|path| Inside::parse(path)) {
        let found = images.get(&operand.image).and_then(|image| {
            // A symlink to a directory is listed through, unless its own attributes are wanted.
            let follow = !args.long && !args.directory;
            let inode = image.resolve(&operand.path, follow)?;
            Ok((image, inode))
        });
        let Some((image, inode)) = lister.tally.note(found)? else {
            continue;
        };
        if inode.kind() == FileKind::Directory && !args.directory {
            directories.push((image, inode, operand.path));
        } else {
            let found = line(&image, &inode, &operand.path, &operand.path);
            if let Some(line) = lister.tally.note(found)? {
                files.push((image, operand.path, line));
            }
        }
    }
    if !files.is_empty() {
        lister.listed += 1;
        if args.json {
            for (image, path, line) in &files {
                lister
                    .json
                    .push(listing(image, path, std::slice::from_ref(line)));
            }
        } else {
            let lines: Vec<&Line> = files.iter().map(|(_, _, line)| line).collect();
            lister.print(&lines)?;
        }
    }
    for (image, inode, path) in directories {
        lister.directory(&image, &inode, &path)?;
    }
    let Lister {
        mut out,
        tally,
        json,
        ..
    } = lister;
    if args.json {
        out.json(&json)?;
    }
    out.finish()?;
    images.close()?;
    tally.finish()
}

fn listing(image: &Image, path: &[u8], lines: &[Line]) -> ListingJson {
    ListingJson {
        image: image.path().display().to_string(),
        path: text(path),
        path_base64: base64_unless_text(path),
        entries: lines
            .iter()
            .map(|line| FileJson::new(&line.name, &line.attr, line.target.as_deref()))
            .collect(),
    }
}

impl Lister<'_> {
    fn directory(&mut self, image: &Rc<Image>, dir: &InodeRef, path: &[u8]) -> Result<()> {
        let Some(entries) = self.tally.note(image.entries(dir, path))? else {
            return Ok(());
        };
        let mut lines = Vec::with_capacity(entries.len());
        let mut below = Vec::new();
        let detail = self.args.long || self.args.json || self.args.recursive;
        let mut plain = Vec::new();
        for entry in entries {
            if !self.args.all && entry.name.first() == Some(&b'.') {
                continue;
            }
            if !detail {
                plain.push((entry.ino, entry.name));
                continue;
            }
            use crate::failure::At;
            let path = join(path, &entry.name);
            let found = image
                .vfs()
                .inode(entry.ino)
                .at(image.place(&path))
                .and_then(|inode| Ok((line(image, &inode, &entry.name, &path)?, inode)));
            let Some((line, inode)) = self.tally.note(found)? else {
                continue;
            };
            lines.push(line);
            if self.args.recursive && inode.kind() == FileKind::Directory {
                below.push((inode, path));
            }
        }
        if self.args.json {
            self.json.push(listing(image, path, &lines));
        } else {
            if self.listed > 0 {
                writeln!(self.out)?;
            }
            if self.heads {
                let place = image.place(path);
                self.out.name(place.as_bytes())?;
                writeln!(self.out, ":")?;
            }
            for (ino, name) in plain {
                if self.args.inode {
                    write!(self.out, "{} ", ino.0)?;
                }
                self.out.name(&name)?;
                writeln!(self.out)?;
            }
            self.print(&lines.iter().collect::<Vec<_>>())?;
        }
        self.listed += 1;
        for (inode, path) in below {
            self.directory(image, &inode, &path)?;
        }
        Ok(())
    }

    /// Prints lines with their numbers aligned among them.
    fn print(&mut self, lines: &[&Line]) -> Result<()> {
        let width = |number: &dyn Fn(&Line) -> String| {
            lines
                .iter()
                .map(|line| number(line).len())
                .max()
                .unwrap_or(0)
        };
        let size = |line: &Line| match line.attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = device_numbers(line.attr.rdev);
                format!("{major}, {minor}")
            }
            _ if self.args.sizes.human => human(line.attr.size),
            _ => line.attr.size.to_string(),
        };
        let inos = width(&|line| line.attr.ino.0.to_string());
        let links = width(&|line| line.attr.nlink.to_string());
        let uids = width(&|line| line.attr.uid.to_string());
        let gids = width(&|line| line.attr.gid.to_string());
        let sizes = width(&|line| size(line));
        for line in lines {
            let attr = &line.attr;
            if self.args.inode {
                write!(self.out, "{:>inos$} ", attr.ino.0)?;
            }
            if self.args.long {
                write!(
                    self.out,
                    "{} {:>links$} {:>uids$} {:>gids$} {:>sizes$} {} ",
                    mode_string(attr.kind, attr.perm),
                    attr.nlink,
                    attr.uid,
                    attr.gid,
                    size(line),
                    time_short(attr.mtime),
                )?;
            }
            self.out.name(&line.name)?;
            if self.args.long
                && let Some(target) = &line.target
            {
                write!(self.out, " -> ")?;
                self.out.name(target)?;
            }
            writeln!(self.out)?;
        }
        Ok(())
    }
}

/// A directory tree in JSON.
#[derive(Serialize)]
struct TreeJson {
    #[serde(flatten)]
    file: FileJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<TreeJson>>,
}

struct TreeWalk<'a> {
    image: &'a Image,
    depth_max: usize,
    out: Out,
    tally: Tally,
    print: bool,
    directories: u64,
    files: u64,
}

/// Runs `tree`.
///
/// # Errors
/// As printed; the other directories were listed.
pub fn tree(args: &TreeArgs) -> Result<()> {
    let operand = Inside::parse(&args.path);
    let image = Image::open(&operand.image, Access::Read)?;
    let root = image.resolve(&operand.path, true)?;
    let mut walk = TreeWalk {
        image: &image,
        depth_max: args.depth.unwrap_or(usize::MAX),
        out: Out::new(),
        tally: Tally::default(),
        print: !args.json,
        directories: 0,
        files: 0,
    };
    if walk.print {
        walk.out.name(image.place(&operand.path).as_bytes())?;
        writeln!(walk.out)?;
    }
    let mut prefix = String::new();
    let entries = walk.below(&root, &operand.path, &mut prefix, 0)?;
    let top = line(&image, &root, &operand.path, &operand.path)?;
    let TreeWalk {
        mut out,
        tally,
        directories,
        files,
        ..
    } = walk;
    if args.json {
        out.json(&TreeJson {
            file: FileJson::new(&top.name, &top.attr, top.target.as_deref()),
            entries: (root.kind() == FileKind::Directory).then_some(entries),
        })?;
    } else {
        let plural =
            |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        writeln!(
            out,
            "\n{}, {}",
            plural(directories, "directory", "directories"),
            plural(files, "file", "files")
        )?;
    }
    out.finish()?;
    drop(root);
    image.close()?;
    tally.finish()
}

impl TreeWalk<'_> {
    fn below(
        &mut self,
        dir: &InodeRef,
        path: &[u8],
        prefix: &mut String,
        depth: usize,
    ) -> Result<Vec<TreeJson>> {
        use crate::failure::At;
        let mut json = Vec::new();
        if dir.kind() != FileKind::Directory || depth >= self.depth_max {
            return Ok(json);
        }
        let Some(entries) = self.tally.note(self.image.entries(dir, path))? else {
            return Ok(json);
        };
        let count = entries.len();
        for (index, entry) in entries.into_iter().enumerate() {
            let last = index + 1 == count;
            let path = join(path, &entry.name);
            let found = self
                .image
                .vfs()
                .inode(entry.ino)
                .at(self.image.place(&path))
                .and_then(|inode| Ok((line(self.image, &inode, &entry.name, &path)?, inode)));
            let Some((line, inode)) = self.tally.note(found)? else {
                continue;
            };
            let is_dir = inode.kind() == FileKind::Directory;
            if is_dir {
                self.directories += 1;
            } else {
                self.files += 1;
            }
            if self.print {
                write!(self.out, "{prefix}{}", if last { "└── " } else { "├── " })?;
                self.out.name(&line.name)?;
                match &line.target {
                    Some(target) => {
                        write!(self.out, " -> ")?;
                        self.out.name(target)?;
                    }
                    None if is_dir => write!(self.out, "/")?,
                    None if kind_letter(inode.kind()) != '-' => {
                        write!(self.out, " [{}]", crate::output::kind_name(inode.kind()))?;
                    }
                    None => {}
                }
                writeln!(self.out)?;
            }
            let length = prefix.len();
            prefix.push_str(if last { "    " } else { "│   " });
            let entries = self.below(&inode, &path, prefix, depth + 1)?;
            prefix.truncate(length);
            if !self.print {
                json.push(TreeJson {
                    file: FileJson::new(&line.name, &line.attr, line.target.as_deref()),
                    entries: is_dir.then_some(entries),
                });
            }
        }
        Ok(json)
    }
}
