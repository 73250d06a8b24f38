//! `ls` and `tree`.

use crate::args::{LsArgs, TreeArgs};
use crate::failure::{Result, Tally};
use crate::image::{Access, Image, Images, join};
use crate::operand::Inside;
use crate::output::{
    AttrJson, Out, base64_unless_text, device_numbers, human, kind_letter, mode_string, text,
    time_short,
};
use blockwright::walk::{WalkNode, WalkStep, Walker};
use blockwright_vfs::{Attr, FileKind, InodeRef};
use serde::Serialize;
use std::cmp::Ordering;
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
            let follow = !args.is_long() && !args.directory;
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
    files.sort_by(|a, b| args.order(&a.2.attr, &b.2.attr));
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
        if args.recursive {
            lister.below(&image, inode, &path)?;
        } else {
            lister.directory(&image, &inode, &path)?;
        }
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

impl LsArgs {
    /// Which of two files comes first; those that are equal stay in the order of their names.
    fn order(&self, a: &Attr, b: &Attr) -> Ordering {
        let order = if self.size {
            b.size.cmp(&a.size)
        } else if self.time {
            (b.mtime.secs, b.mtime.nanos).cmp(&(a.mtime.secs, a.mtime.nanos))
        } else {
            Ordering::Equal
        };
        if self.reverse { order.reverse() } else { order }
    }

    fn is_long(&self) -> bool {
        self.long || self.numeric
    }

    fn hides(&self, name: &[u8]) -> bool {
        !self.all && name.first() == Some(&b'.')
    }
}

impl Lister<'_> {
    /// Lists a directory and all below it.
    fn below(&mut self, image: &Rc<Image>, dir: InodeRef, path: &[u8]) -> Result<()> {
        let mut walk = image.walk(dir, path);
        while let Some(step) = walk.step() {
            match step {
                WalkStep::Found(node) if node.depth > 0 && self.args.hides(walk.name()) => {
                    walk.skip();
                }
                WalkStep::Found(node) if node.inode.kind() == FileKind::Directory => {
                    self.directory(image, &node.inode, walk.path())?;
                }
                WalkStep::Found(_) | WalkStep::Left(_) => {}
                WalkStep::Failed(e) => {
                    self.tally.note::<()>(Err(image.walk_failure(e)))?;
                }
            }
        }
        Ok(())
    }

    /// Lists a directory. In a walk, the walk reports what cannot be read.
    fn directory(&mut self, image: &Rc<Image>, dir: &InodeRef, path: &[u8]) -> Result<()> {
        let entries = match image.entries(dir, path) {
            Ok(entries) => entries,
            Err(_) if self.args.recursive => return Ok(()),
            Err(e) => return self.tally.note::<()>(Err(e)).map(|_| ()),
        };
        let mut lines = Vec::with_capacity(entries.len());
        let sorted = self.args.time || self.args.size;
        let detail = self.args.is_long() || self.args.json || sorted;
        let mut plain = Vec::new();
        for entry in entries {
            if self.args.hides(&entry.name) {
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
                .map(|inode| (line(image, &inode, &entry.name, &path), inode));
            let line = match found {
                Ok((line, _)) => line,
                Err(_) if self.args.recursive => continue,
                Err(e) => Err(e),
            };
            if let Some(line) = self.tally.note(line)? {
                lines.push(line);
            }
        }
        if self.args.reverse && !sorted {
            lines.reverse();
            plain.reverse();
        }
        lines.sort_by(|a, b| self.args.order(&a.attr, &b.attr));
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
            if self.args.is_long() {
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
            if self.args.is_long()
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

/// Runs `tree`.
///
/// # Errors
/// As printed; the other directories were listed.
pub fn tree(args: &TreeArgs) -> Result<()> {
    let operand = Inside::parse(&args.path);
    let image = Image::open(&operand.image, Access::Read)?;
    let root = image.resolve(&operand.path, true)?;
    let mut tree = Tree {
        image: &image,
        out: Out::new(),
        prefix: String::new(),
        levels: Vec::new(),
        first: true,
        directories: 0,
        files: 0,
    };
    let depth_max = args.depth.unwrap_or(usize::MAX);
    let mut tally = Tally::default();
    let mut walk = image.walk(root, &operand.path);
    while let Some(step) = walk.step() {
        match step {
            WalkStep::Found(node) => {
                let found = line(&image, &node.inode, walk.name(), walk.path());
                let line = match found {
                    Ok(line) => line,
                    Err(e) => {
                        tally.note::<()>(Err(e))?;
                        continue;
                    }
                };
                if args.json {
                    tree.json(&node, &line)?;
                } else {
                    tree.draw(&node, &line, &walk)?;
                }
                if node.depth >= depth_max {
                    walk.skip();
                    tree.left(args.json, &node)?;
                }
            }
            WalkStep::Left(node) => tree.left(args.json, &node)?,
            WalkStep::Failed(e) => {
                tally.note::<()>(Err(image.walk_failure(e)))?;
            }
        }
    }
    drop(walk);
    let Tree {
        mut out,
        directories,
        files,
        ..
    } = tree;
    writeln!(out)?;
    if !args.json {
        let plural =
            |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        writeln!(
            out,
            "{}, {}",
            plural(directories, "directory", "directories"),
            plural(files, "file", "files")
        )?;
    }
    out.finish()?;
    image.close()?;
    tally.finish()
}

/// A tree that is being printed, as drawing or as JSON. Neither is kept: trees may be deeper than the stack and larger
/// than memory.
struct Tree<'a> {
    image: &'a Image,
    out: Out,
    /// What stands before the names of the current directory, and its length in those above.
    prefix: String,
    levels: Vec<usize>,
    /// No entry was written into the current list yet.
    first: bool,
    directories: u64,
    files: u64,
}

/// JSON is indented no deeper than this, so that its size stays in proportion to the number of files.
const INDENT_MAX: usize = 32;

impl Tree<'_> {
    fn draw(&mut self, node: &WalkNode, line: &Line, walk: &Walker<'_>) -> Result<()> {
        let kind = node.inode.kind();
        let is_dir = kind == FileKind::Directory;
        if node.depth == 0 {
            self.out.name(self.image.place(walk.path()).as_bytes())?;
        } else {
            if is_dir {
                self.directories += 1;
            } else {
                self.files += 1;
            }
            let branch = if node.last {
                "└── "
            } else {
                "├── "
            };
            write!(self.out, "{}{branch}", self.prefix)?;
            self.out.name(&line.name)?;
            match &line.target {
                Some(target) => {
                    write!(self.out, " -> ")?;
                    self.out.name(target)?;
                }
                None if is_dir => write!(self.out, "/")?,
                None if kind_letter(kind) != '-' => {
                    write!(self.out, " [{}]", kind.name())?;
                }
                None => {}
            }
        }
        writeln!(self.out)?;
        if is_dir {
            self.levels.push(self.prefix.len());
            if node.depth > 0 {
                self.prefix
                    .push_str(if node.last { "    " } else { "│   " });
            }
        }
        Ok(())
    }

    fn json(&mut self, node: &WalkNode, line: &Line) -> Result<()> {
        if node.depth > 0 && !self.first {
            write!(self.out, ",")?;
        }
        if node.depth > 0 {
            let indent = node.depth.min(INDENT_MAX);
            write!(self.out, "\n{:indent$}", "")?;
        }
        let file = FileJson::new(&line.name, &line.attr, line.target.as_deref());
        let text = serde_json::to_string(&file).map_err(std::io::Error::from)?;
        self.first = node.inode.kind() == FileKind::Directory;
        if self.first {
            let open = text.strip_suffix('}').unwrap_or(&text);
            write!(self.out, "{open},\"entries\":[")?;
        } else {
            write!(self.out, "{text}")?;
        }
        Ok(())
    }

    /// A directory is complete.
    fn left(&mut self, json: bool, node: &WalkNode) -> Result<()> {
        if node.inode.kind() != FileKind::Directory {
            return Ok(());
        }
        if json {
            self.first = false;
            write!(self.out, "]}}")?;
        } else if let Some(length) = self.levels.pop() {
            self.prefix.truncate(length);
        }
        Ok(())
    }
}
