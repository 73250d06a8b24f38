//! `cp`: into, out of, between and inside images, with the rules of cp(1).
//!
//! Holes stay holes. With `-a` everything an inode has goes along: owner, mode, times, attributes, ACLs,
//! devices, and which names are one file. On the host, what a user without root may not set
//! (owners, some attributes) is left out silently, as cp(1) does, and then set-id bits are too.

use crate::args::CpArgs;
use crate::commands::edit::umask;
use crate::commands::mode::Owner;
use crate::commands::place::{FileId, FilePlace, LinkTarget, Meta};
use crate::commands::progress::Bar;
use crate::commands::streams::{Reader, Writer};
use crate::commands::trees::{Source, Step, Target};
use crate::failure::{At, Failure, Result, Tally, warn};
use crate::image::{Access, Image, Images, data_bytes, last_name};
use crate::interrupt::{Interrupts, may_wait};
use crate::operand::Operand;
use crate::output::Out;
use blockwright::device::IoSlice;
use blockwright_vfs::{ErrorKind, FileKind};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const BUFFER_BYTES: usize = 1 << 20;
/// Bytes read at once where a larger read failed: a block of either format, so that no readable block is lost.
const RESCUE_BYTES: u64 = 4096;

/// Attributes that are a file's permissions: kept by `-p`, too.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Data of the file in progress from an offset on, where it was read ahead.
type Ahead<'a> = &'a mut dyn FnMut(u64) -> Option<Vec<IoSlice>>;

struct Copier {
    recursive: bool,
    archive: bool,
    preserve: bool,
    no_clobber: bool,
    force: bool,
    /// Copied files are listed on standard output.
    out: Option<Out>,
    owner: Option<(u32, u32)>,
    umask: u32,
    /// Where the files with several names went.
    links: HashMap<FileId, LinkTarget>,
    /// Symlinks that this command made. Nothing is written through them: their targets come from an image, and two sources can have
    /// one name.
    made_links: HashSet<FileId>,
    buffer: Vec<u8>,
    tally: Tally,
    bar: Bar,
    interrupts: Interrupts,
}

/// Runs `cp`.
///
/// # Errors
/// As printed; the other files were copied.
pub fn cp(args: &CpArgs) -> Result<()> {
    let operands = Operand::of_copy(args);
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
        force: args.force,
        out: args.verbose.then(Out::new),
        owner: args.owner.as_deref().map(Owner::parse_pair).transpose()?,
        umask: umask(),
        links: HashMap::new(),
        made_links: HashSet::new(),
        buffer: vec![0; BUFFER_BYTES],
        tally: Tally::default(),
        // The names, or the contents, would be written between two drawings of the bar.
        bar: Bar::new(
            0,
            args.verbose || (*to == Operand::Stdio && std::io::stdout().is_terminal()),
        ),
        // A stream may never come to its end: a signal ends such a copy at once.
        interrupts: match operands.iter().any(is_stream) {
            true => Interrupts::default(),
            false => Interrupts::note()?,
        },
    };
    // The image that is written to is opened first: one that is read as well must not be locked for
    // reading only.
    let mut images = Images::new(Access::Read);
    let target = match to {
        Operand::Inside(inside) => {
            let image = Image::open(&inside.image, Access::Write)?;
            images.add(image.clone());
            Some(FilePlace::inside(image, &inside.path))
        }
        Operand::Local(path) => Some(FilePlace::host(path)),
        Operand::Stdio => None,
    };
    for source in sources {
        let result = copier.operand(&mut images, source, target.as_ref(), sources.len() > 1);
        copier.tally.note(result)?;
    }
    // Signals are noted to the end: what was copied is made durable. Only a second one ends that, as a crash would.
    let Copier {
        tally,
        links,
        out,
        bar,
        interrupts: _noted,
        ..
    } = copier;
    bar.finish();
    drop((links, target));
    if let Some(out) = out {
        out.finish()?;
    }
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

/// Whether an operand may wait for another process for ever.
fn is_stream(operand: &Operand) -> bool {
    match operand {
        Operand::Stdio => true,
        Operand::Local(path) => may_wait(path),
        Operand::Inside(_) => false,
    }
}

/// About how many bytes are copied of a file, or of all below a directory.
fn bytes_of(from: &FilePlace, meta: &Meta) -> u64 {
    if meta.kind == FileKind::Regular {
        return meta.size;
    }
    let FilePlace::Inside(image, _) = from else {
        let Ok(mut source) = Source::new(from, None, from) else {
            return 0;
        };
        let mut bytes = 0u64;
        while let Some(step) = source.step() {
            if let Step::Found(_, meta) = step
                && meta.kind == FileKind::Regular
            {
                bytes = bytes.saturating_add(meta.size);
            }
        }
        return bytes;
    };
    match from.inside_dir() {
        Ok(Some((_, dir))) => data_bytes(image.vfs(), image.cred(), dir, from.path()),
        _ => 0,
    }
}

/// Leaves no part of a file that looks like all of it, or says so.
fn tell_interrupted(to: &FilePlace, is_new: bool) {
    match is_new.then(|| to.remove()) {
        Some(Ok(())) => warn(format_args!("{to}: interrupted; it was removed")),
        Some(Err(_)) | None => warn(format_args!("{to}: interrupted; it is incomplete")),
    }
}

impl Copier {
    /// Copies one operand of the command, with all below it. `several`: it is one of several, so the destination must be a directory.
    fn operand(
        &mut self,
        images: &mut Images,
        source: &Operand,
        to: Option<&FilePlace>,
        several: bool,
    ) -> Result<()> {
        let from = match source {
            Operand::Inside(inside) => {
                let image = images.get(&inside.image)?;
                Some(FilePlace::inside(image, &inside.path))
            }
            Operand::Local(path) => Some(FilePlace::host(path)),
            Operand::Stdio => None,
        };
        let Some(to) = to else {
            return self.file_to_stdout(from.as_ref());
        };
        let there = to.meta(true)?;
        let into = there
            .as_ref()
            .is_some_and(|meta| meta.kind == FileKind::Directory);
        let path = to.path();
        let slash = path.ends_with(b"/") && (matches!(to, FilePlace::Host(_)) || path.len() > 1);
        if !into && several {
            let what = "not a directory (several files are copied into one)";
            return Err(Failure::new(what).at(to));
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
        if self.bar.is_shown() {
            self.bar.expect(bytes_of(&from, &meta));
        }
        if meta.kind == FileKind::Directory {
            return self.tree(&from, &to);
        }
        self.file(&from, &meta, &to, &mut |_| None)
    }

    /// Whether `to` is below the directory `from`.
    fn leads_into_itself(&self, from: &FilePlace, to: &FilePlace) -> Result<bool> {
        match (from, to) {
            (FilePlace::Host(_), FilePlace::Host(_)) => {
                let path = |place: &FilePlace| PathBuf::from(OsStr::from_bytes(place.path()));
                let (from, to) = (path(from), path(to));
                let real = |path: &Path| std::fs::canonicalize(path).ok();
                let parent = to.parent().filter(|p| !p.as_os_str().is_empty());
                let to = real(&to).or_else(|| real(parent.unwrap_or(Path::new("."))));
                Ok(matches!((real(&from), to), (Some(from), Some(to)) if to.starts_with(&from)))
            }
            (FilePlace::Inside(image, _), FilePlace::Inside(same, _))
                if Rc::ptr_eq(image, same) =>
            {
                let (from, to) = (from.path(), to.path());
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

    /// What is at a destination. A regular file is written through a symlink that is there, and a directory given as a
    /// symlink can be copied into; everything else replaces the link.
    fn there(&self, meta: &Meta, to: &FilePlace, top: bool) -> Result<Option<Meta>> {
        Ok(match to.meta(false)? {
            Some(link)
                if link.kind == FileKind::Symlink
                    && (meta.kind == FileKind::Regular
                        || meta.kind == FileKind::Directory && top) =>
            {
                if self.made_links.contains(&link.id) {
                    let why = "nothing is written through a symlink that was just copied";
                    return Err(Failure::new(why).at(to));
                }
                to.meta(true)?.or(Some(link))
            }
            there => there,
        })
    }

    fn tell(&mut self, from: &FilePlace, to: &FilePlace) -> Result<()> {
        if let Some(out) = &mut self.out {
            out.name(format!("'{from}' -> '{to}'").as_bytes())?;
            writeln!(out)?;
        }
        Ok(())
    }

    /// Copies a directory with all below it.
    fn tree(&mut self, from: &FilePlace, to: &FilePlace) -> Result<()> {
        if !self.recursive {
            return Err(Failure::new("is a directory (-r copies it with all in it)").at(from));
        }
        let image = match from {
            FilePlace::Inside(image, _) => Some(image.clone()),
            FilePlace::Host(_) => None,
        };
        let mut source = Source::new(from, image.as_ref(), to)?;
        let mut target = Target::new(to);
        // Of the directories on the way: what they keep of their sources, and whether they are new.
        let mut open: Vec<(Box<Meta>, bool)> = Vec::new();
        while let Some(step) = source.step() {
            self.interrupts.check()?;
            match step {
                Step::Found(from, meta) if meta.kind == FileKind::Directory => {
                    let entered = target.place(source.name()).and_then(|to| {
                        let new = self.directory(&from, &meta, &to, open.is_empty())?;
                        target.enter(&to)?;
                        Ok(new)
                    });
                    match self.tally.note(entered)? {
                        Some(new) => open.push((meta, new)),
                        None => source.skip(),
                    }
                }
                Step::Found(from, meta) => {
                    let copied = target.place(source.name()).and_then(|to| {
                        self.file(&from, &meta, &to, &mut |offset| source.data(offset))
                    });
                    self.tally.note(copied)?;
                }
                // Last, since what was copied into it changed its times, and its mode may forbid that.
                Step::Left(from) => {
                    let Some((meta, new)) = open.pop() else {
                        break;
                    };
                    target.leave()?;
                    let finished = target
                        .place(source.name())
                        .and_then(|to| self.finish(&from, &meta, &to, new));
                    self.tally.note(finished)?;
                }
                Step::Failed(e, true) => return Err(e),
                Step::Failed(e, false) => {
                    self.tally.note::<()>(Err(e))?;
                }
            }
        }
        Ok(())
    }

    /// Makes a directory, if it is not there. Whether it is new.
    fn directory(
        &mut self,
        from: &FilePlace,
        meta: &Meta,
        to: &FilePlace,
        top: bool,
    ) -> Result<bool> {
        let new = match self.there(meta, to, top)? {
            None => {
                to.make(FileKind::Directory, 0o700 | (meta.perm & 0o777), 0, &[])?;
                true
            }
            Some(there) if there.id == meta.id => {
                return Err(Failure::new(format_args!("{to} is the same file")).at(from));
            }
            Some(there) if there.kind == FileKind::Directory => false,
            Some(_) => {
                return Err(Failure::new("a file is not overwritten by a directory").at(to));
            }
        };
        self.tell(from, to)?;
        Ok(new)
    }

    /// Copies what is no directory. `ahead` has data that was read ahead.
    fn file(
        &mut self,
        from: &FilePlace,
        meta: &Meta,
        to: &FilePlace,
        ahead: Ahead<'_>,
    ) -> Result<()> {
        let there = self.there(meta, to, false)?;
        if let Some(there) = &there
            && there.id == meta.id
        {
            return Err(Failure::new(format_args!("{to} is the same file")).at(from));
        }
        if let Some(file) = there.as_ref().and_then(Meta::host_file) {
            crate::wall::spare_input(file, "copy").at(to)?;
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
        self.tell(from, to)?;
        if self.archive
            && meta.nlink > 1
            && let Some(first) = self.links.get(&meta.id).cloned()
        {
            if there.is_some() {
                to.remove()?;
            }
            if to.link_to(&first)? {
                return Ok(());
            }
        }
        let as_node = self.recursive || meta.kind == FileKind::Symlink;
        match meta.kind {
            FileKind::Regular => {
                let copied = self.regular(from, meta, to, ahead);
                if copied.as_ref().is_err_and(Failure::is_interrupted) {
                    tell_interrupted(to, there.is_none());
                }
                copied?;
            }
            FileKind::Symlink => {
                // Read before what is there is removed.
                let target = from.target()?;
                if there.is_some() {
                    to.remove()?;
                }
                to.make(FileKind::Symlink, 0o777, 0, &target)?;
                if let Some(made) = to.meta(false)? {
                    self.made_links.insert(made.id);
                }
            }
            kind if as_node => {
                if there.is_some() {
                    to.remove()?;
                }
                to.make(kind, meta.perm & 0o777, meta.rdev, &[])?;
            }
            _ => match from.reader() {
                // cp(1) reads what comes out of a device or a pipe.
                Ok(Reader::Host(mut file)) => {
                    let writer = to.writer(meta.perm & 0o777 & !self.umask, self.force)?;
                    let noted = self.interrupts.pause();
                    let copied = self.stream(&mut file, &writer, from, to);
                    if noted {
                        self.interrupts.resume()?;
                    }
                    copied?;
                }
                Ok(Reader::Inside(_)) | Err(_) if matches!(from, FilePlace::Inside(..)) => {
                    return Err(Failure::new("a special file is copied with -r only").at(from));
                }
                Ok(Reader::Inside(_)) => {}
                Err(e) => return Err(e),
            },
        }
        if self.archive && meta.nlink > 1 {
            self.links.insert(meta.id, to.link_target()?);
        }
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

    fn regular(
        &mut self,
        from: &FilePlace,
        meta: &Meta,
        to: &FilePlace,
        ahead: Ahead<'_>,
    ) -> Result<()> {
        let reader = from.reader()?;
        let perm = if self.preserve {
            // No other user may look before the owner is right.
            0o600
        } else {
            meta.perm & 0o777 & !self.umask
        };
        let writer = to.writer(perm, self.force)?;
        let (bar, interrupts) = (&self.bar, &self.interrupts);
        let mut step = |bytes| {
            bar.add(bytes);
            interrupts.check()
        };
        if reader.copy_inside(&writer, meta.size, &mut step).at(to)? {
            return Ok(());
        }
        let mut at = 0;
        // Where the last data ends.
        let mut written = 0;
        let mut want = BUFFER_BYTES as u64;
        let rescue = matches!(reader, Reader::Inside(_));
        // A damaged file's readable blocks are kept; holes are in the place of the others.
        let mut unreadable = None;
        loop {
            let range = match reader.next_data(at, meta.size) {
                Ok(Some(range)) => range,
                Ok(None) => break,
                Err(e) if rescue => {
                    unreadable.get_or_insert(e.at(from));
                    break;
                }
                Err(e) => return Err(e.at(from)),
            };
            at = range.start;
            while at < range.end {
                self.interrupts.check()?;
                if let Some(slices) = ahead(at) {
                    for slice in slices {
                        writer.write_at(&slice, at).at(to)?;
                        self.bar.add(slice.len() as u64);
                        at += slice.len() as u64;
                    }
                    written = at;
                    continue;
                }
                let part = (range.end - at).min(want) as usize;
                let read = match reader.read_at(&mut self.buffer[..part], at) {
                    // Another process cut it during the copy.
                    Ok(0) => return writer.set_len(at).at(to),
                    Ok(read) => read,
                    Err(_) if rescue && want > RESCUE_BYTES => {
                        want = RESCUE_BYTES;
                        continue;
                    }
                    Err(e) if rescue => {
                        unreadable.get_or_insert(e.at(from));
                        at += part as u64;
                        continue;
                    }
                    Err(e) => return Err(e.at(from)),
                };
                writer.write_at(&self.buffer[..read], at).at(to)?;
                self.bar.add(read as u64);
                at += read as u64;
                written = at;
            }
        }
        if let Some(e) = unreadable {
            self.tally.note::<()>(Err(e))?;
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
        if written == meta.size {
            return Ok(());
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
        let writer = to.writer(0o666 & !self.umask, self.force)?;
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
            Some(meta) => self.bar.expect(meta.size),
        }
        let reader = from.reader()?;
        let mut out = crate::output::stdout();
        let mut at = 0;
        loop {
            let read = reader.read_at(&mut self.buffer, at).at(from)?;
            if read == 0 {
                break;
            }
            out.write_all(&self.buffer[..read])?;
            self.bar.add(read as u64);
            at += read as u64;
        }
        out.flush()?;
        Ok(())
    }
}
