//! Changes inside an image: `mv`, `rm`, `mkdir`, `ln`, `chmod`, `chown`.

use crate::args::{ChmodArgs, ChownArgs, LnArgs, MkdirArgs, MvArgs, RmArgs};
use crate::commands::each::each_operand;
use crate::commands::mode::{ModeChange, Owner, parse_octal};
use crate::failure::{At, Failure, Result, Tally};
use crate::image::{Access, Image, Images, join, last_name};
use crate::operand::Inside;
use crate::output::Out;
use crate::wall::same_file;
use blockwright::walk::WalkStep;
use blockwright_vfs::{CreateRequest, ErrorKind, FileKind, InodeRef, RenameMode, SetAttr};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

/// The process's umask. Reading it means setting it for a moment; no other thread makes files then.
pub fn umask() -> u32 {
    let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::umask(old);
    old.as_raw_mode()
}

/// The path that a file gets when it is moved to `to`: inside `to` when that is a directory.
fn landing(image: &Image, to: &[u8], name: &[u8], must_be_dir: bool) -> Result<Vec<u8>> {
    let found = image.find(to, true)?;
    match found {
        Some(inode) if inode.kind() == FileKind::Directory => Ok(join(to, name)),
        _ if must_be_dir || to.ends_with(b"/") => {
            let kind = if found.is_some() {
                ErrorKind::NotDirectory
            } else {
                ErrorKind::NotFound
            };
            Err(Failure::new(kind).at(image.place(to)))
        }
        _ => Ok(to.to_vec()),
    }
}

/// Runs `mv`.
///
/// # Errors
/// As printed; the other operands were moved.
pub fn mv(args: &MvArgs) -> Result<()> {
    let operands: Vec<Inside> = args.paths.iter().map(|path| Inside::parse(path)).collect();
    let Some((to, sources)) = operands.split_last() else {
        return Err(Failure::usage("a source and a destination are needed"));
    };
    if let Some(other) = sources.iter().find(|s| !same_file(&s.image, &to.image)) {
        return Err(
            Failure::usage("files are moved inside one image (cp copies between images)").at(other),
        );
    }
    let image = Image::open(&to.image, Access::Write)?;
    let mut tally = Tally::default();
    let mut out = args.verbose.then(Out::new);
    for source in sources {
        let moved = move_one(&image, source, to, sources.len() > 1, args.no_clobber);
        if let Some(Some(path)) = tally.note(moved)?
            && let Some(out) = &mut out
        {
            let told = format!("renamed '{source}' -> '{}'", image.place(&path));
            out.name(told.as_bytes())?;
            writeln!(out)?;
        }
    }
    if let Some(out) = out {
        out.finish()?;
    }
    image.close()?;
    tally.finish()
}

fn move_one(
    image: &Image,
    source: &Inside,
    to: &Inside,
    into_dir: bool,
    no_clobber: bool,
) -> Result<Option<Vec<u8>>> {
    let (old_dir, old_name) = image.resolve_parent(&source.path)?;
    let landing = landing(image, &to.path, last_name(&source.path), into_dir);
    // mv(1) takes `newname/` for a directory that is moved.
    let path = match landing {
        Ok(path) => path,
        Err(e) => match image.find(&source.path, false)? {
            Some(inode)
                if inode.kind() == FileKind::Directory
                    && !into_dir
                    && image.find(&to.path, true)?.is_none() =>
            {
                to.path.clone()
            }
            _ => return Err(e),
        },
    };
    let (new_dir, new_name) = image.resolve_parent(&path)?;
    let mode = if no_clobber {
        RenameMode::NoReplace
    } else {
        RenameMode::Replace
    };
    match image
        .vfs()
        .rename(image.cred(), &old_dir, &old_name, &new_dir, &new_name, mode)
    {
        Err(e) if no_clobber && e.kind() == ErrorKind::Exists => Ok(None),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Err(Failure::from(e).at(image.place(&source.path)))
        }
        Err(e) if e.kind() == ErrorKind::Invalid => {
            Err(Failure::new("a directory cannot be moved into itself")
                .at(image.place(&source.path)))
        }
        result => result.at(image.place(&path)).map(|()| Some(path)),
    }
}

/// Runs `rm`.
///
/// # Errors
/// As printed; the other operands were removed.
pub fn rm(args: &RmArgs) -> Result<()> {
    let mut images = Images::new(Access::Write);
    let mut tally = Tally::default();
    for operand in args.paths.iter().map(|path| Inside::parse(path)) {
        let Some(image) = tally.note(images.get(&operand.image))? else {
            continue;
        };
        let result = image.resolve_parent(&operand.path).and_then(|(dir, name)| {
            if matches!(&name[..], b"." | b"..") {
                return Err(
                    Failure::new("`.` and `..` are not removed").at(image.place(&operand.path))
                );
            }
            remove(&image, &dir, &name, &operand.path, args, &mut tally)
        });
        match result {
            Err(_) if args.force && image.find(&operand.path, false).is_ok_and(|f| f.is_none()) => {
            }
            result => {
                tally.note(result)?;
            }
        }
    }
    images.close()?;
    tally.finish()
}

fn remove(
    image: &Rc<Image>,
    dir: &InodeRef,
    name: &[u8],
    path: &[u8],
    args: &RmArgs,
    tally: &mut Tally,
) -> Result<()> {
    let (vfs, cred) = (image.vfs(), image.cred());
    let place = || image.place(path);
    let inode = vfs.lookup(cred, dir, name).at(place())?;
    if inode.kind() != FileKind::Directory {
        return vfs.unlink(cred, dir, name).at(place());
    }
    if !args.recursive && !args.dir {
        return Err(Failure::new("is a directory (-r removes it with all in it)").at(place()));
    }
    if args.recursive {
        let mut walk = image.walk(inode, path);
        while let Some(step) = walk.step() {
            let (node, is_dir) = match step {
                WalkStep::Found(node) if node.inode.kind() == FileKind::Directory => continue,
                WalkStep::Found(node) => (node, false),
                WalkStep::Left(node) => (node, true),
                WalkStep::Failed(e) => {
                    tally.note::<()>(Err(image.walk_failure(e)))?;
                    continue;
                }
            };
            // The operand itself follows below.
            if node.depth == 0 {
                continue;
            }
            // Or its blocks are freed only when the walk is over.
            drop(node);
            let removed = walk.parent().map_err(Failure::from).and_then(|parent| {
                let Some(parent) = parent else {
                    return Ok(());
                };
                let removed = if is_dir {
                    vfs.rmdir(cred, &parent, walk.name())
                } else {
                    vfs.unlink(cred, &parent, walk.name())
                };
                removed.at(image.place(walk.path()))
            });
            tally.note(removed)?;
        }
    } else {
        drop(inode);
    }
    vfs.rmdir(cred, dir, name).at(place())
}

/// Runs `mkdir`.
///
/// # Errors
/// As printed; the other operands were made.
pub fn mkdir(args: &MkdirArgs) -> Result<()> {
    let mode = parse_octal(&args.mode)?;
    each_operand(Access::Write, &args.paths, |image, operand| {
        make_dirs(image, &operand.path, mode, args.parents)
    })
}

/// Makes a directory, and with `parents` those above it.
fn make_dirs(image: &Image, path: &[u8], mode: u32, parents: bool) -> Result<()> {
    let make = |path: &[u8], mode: u32| -> Result<()> {
        let (dir, name) = image.resolve_parent(path)?;
        let request = CreateRequest::new(FileKind::Directory, mode);
        image
            .vfs()
            .create(image.cred(), &dir, &name, &request)
            .at(image.place(path))
            .map(|_| ())
    };
    if !parents {
        return make(path, mode);
    }
    let (vfs, cred) = (image.vfs(), image.cred());
    // From directory to directory: looking each up from the root would cost the square of the depth.
    let mut dir = vfs.root().at(image.place(b"/"))?;
    let mut done = b"/".to_vec();
    let mut parts = path
        .split(|&b| b == b'/')
        .filter(|p| !p.is_empty())
        .peekable();
    while let Some(part) = parts.next() {
        if done.last() != Some(&b'/') {
            done.push(b'/');
        }
        done.extend_from_slice(part);
        dir = match vfs.resolve_at(cred, &dir, part, true) {
            Ok(inode) if inode.kind() == FileKind::Directory => inode,
            Ok(_) => {
                return Err(Failure::new(ErrorKind::NotDirectory).at(image.place(&done)));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                // Those above must let their owner in, as mkdir(1) has it.
                let mode = if parts.peek().is_none() { mode } else { 0o755 };
                let request = CreateRequest::new(FileKind::Directory, mode);
                vfs.create(cred, &dir, part, &request)
                    .at(image.place(&done))?
                    .0
            }
            Err(e) => return Err(Failure::from(e).at(image.place(&done))),
        };
    }
    Ok(())
}

/// Runs `ln`.
///
/// # Errors
/// As making the link.
pub fn ln(args: &LnArgs) -> Result<()> {
    let link = Inside::parse(&args.link);
    let image = Image::open(&link.image, Access::Write)?;
    let result = link_one(&image, args, &link);
    let closed = image.close();
    result.and(closed)
}

fn link_one(image: &Image, args: &LnArgs, link: &Inside) -> Result<()> {
    let (vfs, cred) = (image.vfs(), image.cred());
    let (name, existing) = if args.symbolic {
        (last_name(args.target.as_bytes()).to_vec(), None)
    } else {
        let target = Inside::parse(&args.target);
        if !same_file(&target.image, &link.image) {
            return Err(Failure::usage("hard links stay inside one image").at(target));
        }
        let inode = image.resolve(&target.path, false)?;
        if inode.kind() == FileKind::Directory {
            return Err(Failure::new("directories have no hard links").at(target));
        }
        (last_name(&target.path).to_vec(), Some(inode))
    };
    let path = landing(image, &link.path, &name, false)?;
    let (dir, name) = image.resolve_parent(&path)?;
    if args.force
        && let Some(there) = image.find(&path, false)?
    {
        if existing
            .as_ref()
            .is_some_and(|inode| inode.ino() == there.ino())
        {
            return Ok(());
        }
        drop(there);
        vfs.unlink(cred, &dir, &name).at(image.place(&path))?;
    }
    match existing {
        Some(inode) => vfs.link(cred, &inode, &dir, &name),
        None => {
            let request = CreateRequest {
                symlink: args.target.as_bytes().to_vec(),
                ..CreateRequest::new(FileKind::Symlink, 0o777)
            };
            vfs.create(cred, &dir, &name, &request).map(|_| ())
        }
    }
    .at(image.place(&path))
}

/// What is done to an inode.
type Change<'a> = dyn Fn(&Image, &InodeRef) -> std::result::Result<(), blockwright_vfs::Error> + 'a;

/// Which files a change concerns.
#[derive(Clone, Copy)]
struct Scope {
    /// All below directories, too.
    recursive: bool,
    /// Operands that are symlinks stand for what they name.
    follow: bool,
    /// Symlinks met on the way are changed themselves; otherwise they are left alone, since what they
    /// name is elsewhere.
    symlinks_below: bool,
}

/// Calls `change` for each operand, and for all below it if asked.
fn for_each(paths: &[std::ffi::OsString], scope: Scope, change: &Change<'_>) -> Result<()> {
    let mut images = Images::new(Access::Write);
    let mut tally = Tally::default();
    for operand in paths.iter().map(|path| Inside::parse(path)) {
        let found = images.get(&operand.image).and_then(|image| {
            let inode = image.resolve(&operand.path, scope.follow)?;
            Ok((image, inode))
        });
        let Some((image, inode)) = tally.note(found)? else {
            continue;
        };
        let mut walk = image.walk(inode, &operand.path);
        while let Some(step) = walk.step() {
            match step {
                WalkStep::Found(node) => {
                    let below = node.depth > 0;
                    if below && !scope.symlinks_below && node.inode.kind() == FileKind::Symlink {
                        continue;
                    }
                    tally.note(change(&image, &node.inode).at(image.place(walk.path())))?;
                    if !scope.recursive {
                        break;
                    }
                }
                WalkStep::Left(_) => {}
                WalkStep::Failed(e) => {
                    tally.note::<()>(Err(image.walk_failure(e)))?;
                }
            }
        }
    }
    images.close()?;
    tally.finish()
}

/// Runs `chmod`.
///
/// # Errors
/// As printed; the other files were changed.
pub fn chmod(args: &ChmodArgs) -> Result<()> {
    let change = ModeChange::parse(&args.mode)?;
    let umask = umask();
    let scope = Scope {
        recursive: args.recursive,
        follow: true,
        symlinks_below: false,
    };
    for_each(&args.paths, scope, &|image, inode| {
        let attr = image.stat(inode);
        let mode = change.apply(attr.perm, attr.kind == FileKind::Directory, umask);
        let request = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        image
            .vfs()
            .set_attr(image.cred(), inode, &request)
            .map(|_| ())
    })
}

/// Runs `chown`.
///
/// # Errors
/// As printed; the other files were changed.
pub fn chown(args: &ChownArgs) -> Result<()> {
    let owner = Owner::parse(&args.owner)?;
    let scope = Scope {
        recursive: args.recursive,
        follow: !args.symlinks,
        symlinks_below: true,
    };
    for_each(&args.paths, scope, &|image, inode| {
        let request = SetAttr {
            uid: owner.uid,
            gid: owner.gid,
            ..SetAttr::default()
        };
        image
            .vfs()
            .set_attr(image.cred(), inode, &request)
            .map(|_| ())
    })
}
