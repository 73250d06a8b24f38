//! `cp`: into, out of, between and inside images, with the rules of cp(1).
//!
//! Holes stay holes. With `-a` everything an inode has goes along: owner, mode, times, attributes, ACLs,
//! devices, and which names are one file. On the host, what a user without root may not set
//! (owners, some attributes) is left out silently, as cp(1) does, and then set-id bits are too.

use crate::args::CpArgs;
use crate::commands::edit::umask;
use crate::commands::mode::Owner;
use crate::commands::place::{FileId, FilePlace, Meta, Writer};
use crate::failure::{At, Failure, Result, Tally};
use crate::image::{Access, Image, Images, last_name};
use crate::operand::Operand;
use blockwright_vfs::{ErrorKind, FileKind};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BUFFER_BYTES: usize = 1 << 20;

/// Attributes that are a file's permissions: kept by `-p`, too.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

struct Copier {
    recursive: bool,
    archive: bool,
    preserve: bool,
    no_clobber: bool,
    owner: Option<(u32, u32)>,
    umask: u32,
    /// Where the files with several names went.
    links: HashMap<FileId, FilePlace>,
    buffer: Vec<u8>,
    tally: Tally,
}

/// Runs `cp`.
///
/// # Errors
/// As printed; the other files were copied.
pub fn cp(args: &CpArgs) -> Result<()> {
    let operands: Vec<Operand> = args.paths.iter().map(|path| Operand::parse(path)).collect();
    let Some((to, sources)) = operands.split_last() else {
        return Err(Failure::usage("a source and a destination are needed"));
    };
    let any_inside = operands.iter().any(|o| matches!(o, Operand::Inside(_)));
    if !any_inside {
        return Err(Failure::usage(
            "no operand is in an image (IMAGE:/path); cp(1) copies local files",
        ));
    }
    if sources.len() > 1 && *to == Operand::Stdio {
        return Err(Failure::usage("one file at a time goes to standard output"));
    }
    let mut copier = Copier {
        recursive: args.recursive || args.archive,
        archive: args.archive,
        preserve: args.preserve || args.archive,
        no_clobber: args.no_clobber,
        owner: args.owner.as_deref().map(Owner::parse_pair).transpose()?,
        umask: umask(),
        links: HashMap::new(),
        buffer: vec![0; BUFFER_BYTES],
        tally: Tally::default(),
    };
    // The image that is written to is opened first: one that is read as well must not be locked for
    // reading only.
    let mut images = Images::new(Access::Read);
    let target = match to {
        Operand::Inside(inside) => {
            let image = Image::open(&inside.image, Access::Write)?;
            images.add(image.clone());
            Some(FilePlace::Inside(image, inside.path.clone()))
        }
        Operand::Local(path) => Some(FilePlace::Host(path.clone())),
        Operand::Stdio => None,
    };
    for source in sources {
        let result = copier.operand(&mut images, source, target.as_ref(), sources.len() > 1);
        copier.tally.note(result)?;
    }
    let Copier { tally, links, .. } = copier;
    drop((links, target));
    images.close()?;
    tally.finish()
}

/// The name a source has in a directory it is copied into. Empty for what stands for its contents.
fn name_of(source: &Operand) -> &[u8] {
    let path: &[u8] = match source {
        Operand::Stdio => return b"",
        Operand::Local(path) => path.as_os_str().as_bytes(),
        Operand::Inside(inside) => &inside.path,
    };
    match last_name(path) {
        b"." | b".." => b"",
        name => name,
    }
}

impl Copier {
    fn operand(
        &mut self,
        images: &mut Images,
        source: &Operand,
        to: Option<&FilePlace>,
        several: bool,
    ) -> Result<()> {
        let from = match source {
            Operand::Inside(inside) => Some(FilePlace::Inside(
                images.get(&inside.image)?,
                inside.path.clone(),
            )),
            Operand::Local(path) => Some(FilePlace::Host(path.clone())),
            Operand::Stdio => None,
        };
        let Some(to) = to else {
            return self.file_to_stdout(from.as_ref());
        };
        let there = to.meta(true)?;
        let into = there
            .as_ref()
            .is_some_and(|meta| meta.kind == FileKind::Directory);
        let slash = match to {
            FilePlace::Host(path) => path.as_os_str().as_bytes().ends_with(b"/"),
            FilePlace::Inside(_, path) => path.len() > 1 && path.ends_with(b"/"),
        };
        if !into && several {
            let kind = if there.is_some() {
                ErrorKind::NotDirectory
            } else {
                ErrorKind::NotFound
            };
            return Err(Failure::new(kind).at(to));
        }
        let Some(from) = from else {
            if into || slash {
                return Err(Failure::usage("standard input needs a file to go to").at(to));
            }
            return self.stdin_to_file(to);
        };
        let found = from.meta(!self.recursive)?;
        let Some(meta) = found else {
            return Err(Failure::new(ErrorKind::NotFound).at(&from));
        };
        if !into && slash && meta.kind != FileKind::Directory {
            let kind = if there.is_some() {
                ErrorKind::NotDirectory
            } else {
                ErrorKind::NotFound
            };
            return Err(Failure::new(kind).at(to));
        }
        let name = name_of(source);
        let to = if into && !name.is_empty() {
            to.join(name)
        } else {
            to.clone()
        };
        if meta.kind == FileKind::Directory && self.leads_into_itself(&from, &to)? {
            return Err(Failure::new(format_args!(
                "a directory cannot be copied into itself ({to})"
            ))
            .at(&from));
        }
        self.file(&from, &meta, &to, true)
    }

    /// Whether `to` is below the directory `from`.
    fn leads_into_itself(&self, from: &FilePlace, to: &FilePlace) -> Result<bool> {
        match (from, to) {
            (FilePlace::Host(from), FilePlace::Host(to)) => {
                let real = |path: &Path| std::fs::canonicalize(path).ok();
                let parent = to.parent().filter(|p| !p.as_os_str().is_empty());
                let to = real(to).or_else(|| real(parent.unwrap_or(Path::new("."))));
                Ok(matches!((real(from), to), (Some(from), Some(to)) if to.starts_with(&from)))
            }
            (FilePlace::Inside(image, from), FilePlace::Inside(same, to))
                if std::rc::Rc::ptr_eq(image, same) =>
            {
                let source = image.resolve(from, true)?.ino();
                let mut dir = match image.find(to, true)? {
                    Some(inode) if inode.kind() == FileKind::Directory => inode,
                    _ => image.resolve_parent(to)?.0,
                };
                // Up to the root, which is its own parent.
                loop {
                    if dir.ino() == source {
                        return Ok(true);
                    }
                    let above = image
                        .vfs()
                        .lookup(image.cred(), &dir, b"..")
                        .at(image.place(to))?;
                    if above.ino() == dir.ino() {
                        return Ok(false);
                    }
                    dir = above;
                }
            }
            _ => Ok(false),
        }
    }

    /// Copies one file, or a directory with all below it. `top`: it was named by an operand.
    fn file(&mut self, from: &FilePlace, meta: &Meta, to: &FilePlace, top: bool) -> Result<()> {
        let there = to.meta(false)?;
        // A regular file is written through a symlink that is there; everything else replaces it.
        let there = match there {
            Some(link) if link.kind == FileKind::Symlink && meta.kind == FileKind::Regular => {
                to.meta(true)?.or(Some(link))
            }
            // So a directory given as a symlink can be copied into.
            Some(link)
                if link.kind == FileKind::Symlink && meta.kind == FileKind::Directory && top =>
            {
                to.meta(true)?.or(Some(link))
            }
            there => there,
        };
        if let Some(there) = &there
            && there.id == meta.id
        {
            return Err(Failure::new(format_args!("{to} is the same file")).at(from));
        }
        if meta.kind == FileKind::Directory {
            return self.directory(from, meta, to, there.as_ref());
        }
        if there
            .as_ref()
            .is_some_and(|there| there.kind == FileKind::Directory)
        {
            return Err(Failure::new("a directory is not overwritten by a file").at(to));
        }
        if there.is_some() && self.no_clobber {
            return Ok(());
        }
        if self.archive && meta.nlink > 1 {
            if let Some(first) = self.links.get(&meta.id).cloned() {
                if there.is_some() {
                    to.remove()?;
                }
                if to.link_to(&first)? {
                    return Ok(());
                }
            }
            self.links.insert(meta.id, to.clone());
        }
        let as_node = self.recursive || meta.kind == FileKind::Symlink;
        match meta.kind {
            FileKind::Regular => self.regular(from, meta, to)?,
            FileKind::Symlink => {
                if there.is_some() {
                    to.remove()?;
                }
                to.make(FileKind::Symlink, 0o777, 0, &from.target()?)?;
            }
            kind if as_node => {
                if there.is_some() {
                    to.remove()?;
                }
                to.make(kind, meta.perm & 0o777, meta.rdev, &[])?;
            }
            _ => match from {
                // cp(1) reads what comes out of a device or a pipe.
                FilePlace::Host(path) => {
                    let mut file = std::fs::File::open(path).at(from)?;
                    let writer = to.writer(meta.perm & 0o777 & !self.umask)?;
                    self.stream(&mut file, &writer, from, to)?;
                }
                FilePlace::Inside(..) => {
                    return Err(Failure::new("a special file is copied with -r only").at(from));
                }
            },
        }
        self.finish(from, meta, to, there.is_none())
    }

    fn directory(
        &mut self,
        from: &FilePlace,
        meta: &Meta,
        to: &FilePlace,
        there: Option<&Meta>,
    ) -> Result<()> {
        if !self.recursive {
            return Err(Failure::new("is a directory (-r copies it with all in it)").at(from));
        }
        match there {
            None => to.make(FileKind::Directory, 0o700 | (meta.perm & 0o777), 0, &[])?,
            Some(there) if there.kind == FileKind::Directory => {}
            Some(_) => {
                return Err(Failure::new("a file is not overwritten by a directory").at(to));
            }
        }
        let names = from.names()?;
        for name in names {
            let (from, to) = (from.join(&name), to.join(&name));
            let result = match from.meta(false) {
                Ok(Some(meta)) => self.file(&from, &meta, &to, false),
                // Gone in the meantime.
                Ok(None) => Ok(()),
                Err(e) => Err(e),
            };
            self.tally.note(result)?;
        }
        // Last, since what was copied into it changed its times, and its mode may forbid that.
        self.finish(from, meta, to, there.is_none())
    }

    /// Gives a copy what it keeps of its source besides the contents.
    fn finish(&self, from: &FilePlace, meta: &Meta, to: &FilePlace, new: bool) -> Result<()> {
        let mut perm = meta.perm;
        let owner = match self.owner {
            Some(owner) => Some(owner),
            None => self.preserve.then_some((meta.uid, meta.gid)),
        };
        if let Some((uid, gid)) = owner
            && !to.set_owner(uid, gid)?
        {
            // A set-id bit under another owner would give away that owner's rights.
            perm &= !0o6000;
        }
        if !self.preserve {
            // New directories and files with a mode were made with what the umask allows.
            if new && matches!(meta.kind, FileKind::Directory | FileKind::Regular) {
                to.set_perm(perm & 0o777 & !self.umask)?;
            }
            return Ok(());
        }
        for (name, value) in from.xattrs()? {
            if self.archive || ACLS.contains(&&name[..]) {
                to.set_xattr(&name, &value)?;
            }
        }
        if meta.kind != FileKind::Symlink {
            to.set_perm(perm)?;
        }
        to.set_times(meta.atime, meta.mtime)
    }

    fn regular(&mut self, from: &FilePlace, meta: &Meta, to: &FilePlace) -> Result<()> {
        let reader = from.reader()?;
        let perm = if self.preserve {
            // Nobody else looks before the owner is right.
            0o600
        } else {
            meta.perm & 0o777 & !self.umask
        };
        let writer = to.writer(perm)?;
        if reader.copy_inside(&writer, meta.size).at(to)? {
            return Ok(());
        }
        let mut at = 0;
        while let Some(range) = reader.next_data(at, meta.size).at(from)? {
            at = range.start;
            while at < range.end {
                let want = (range.end - at).min(BUFFER_BYTES as u64) as usize;
                let read = reader.read_at(&mut self.buffer[..want], at).at(from)?;
                if read == 0 {
                    // Cut by somebody while it was copied.
                    return writer.set_len(at).at(to);
                }
                writer.write_at(&self.buffer[..read], at).at(to)?;
                at += read as u64;
            }
        }
        if meta.size == 0 {
            // Files of /proc have contents but no size.
            loop {
                let read = reader.read_at(&mut self.buffer, at).at(from)?;
                if read == 0 {
                    return Ok(());
                }
                writer.write_at(&self.buffer[..read], at).at(to)?;
                at += read as u64;
            }
        }
        writer.set_len(meta.size).at(to)
    }

    fn stream(
        &mut self,
        source: &mut dyn Read,
        writer: &Writer,
        from: &dyn std::fmt::Display,
        to: &FilePlace,
    ) -> Result<()> {
        let mut at = 0;
        loop {
            let read = match source.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Failure::from(e).at(from)),
            };
            writer.write_at(&self.buffer[..read], at).at(to)?;
            at += read as u64;
        }
    }

    fn stdin_to_file(&mut self, to: &FilePlace) -> Result<()> {
        let there = to.meta(false)?;
        if there.is_some() && self.no_clobber {
            return Ok(());
        }
        let writer = to.writer(0o666 & !self.umask)?;
        self.stream(&mut std::io::stdin().lock(), &writer, &"standard input", to)?;
        if let Some((uid, gid)) = self.owner {
            to.set_owner(uid, gid)?;
        }
        Ok(())
    }

    fn file_to_stdout(&mut self, from: Option<&FilePlace>) -> Result<()> {
        let Some(from) = from else {
            return Err(Failure::usage(
                "standard input is not copied to standard output",
            ));
        };
        match from.meta(true)? {
            None => return Err(Failure::new(ErrorKind::NotFound).at(from)),
            Some(meta) if meta.kind == FileKind::Directory => {
                return Err(
                    Failure::new("is a directory (export writes one to standard output)").at(from),
                );
            }
            Some(_) => {}
        }
        let reader = from.reader()?;
        let mut out = std::io::stdout().lock();
        let mut at = 0;
        loop {
            let read = reader.read_at(&mut self.buffer, at).at(from)?;
            if read == 0 {
                break;
            }
            out.write_all(&self.buffer[..read])?;
            at += read as u64;
        }
        out.flush()?;
        Ok(())
    }
}
