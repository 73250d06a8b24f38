//! The two sides of a recursive copy: a walk over the source, and the directory of the destination that follows it.
//!
//! Trees may be deeper than the stack, than a path that the host takes, and than the number of files that a process may
//! have open. So walks are iterative, files are found from their directory, and only the lowest directories on the
//! host are kept open; those above are opened again by `..`, and it is checked that they are the same ones.

use crate::commands::place::{FilePlace, Meta};
use crate::failure::{At, Failure, Result};
use crate::image::{Image, join};
use blockwright::device::IoSlice;
use blockwright::walk::{ReadAheadWalk, WalkStep, Walker};
use blockwright_vfs::{FileKind, Ino, InodeRef};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

/// How many directories of a path are kept open.
const OPEN_MAX: usize = 16;

/// A directory of the host on the current path.
struct HostLevel {
    /// Device and inode.
    id: (u64, u64),
    /// While it is among the lowest.
    fd: Option<Rc<OwnedFd>>,
}

/// The directories of the host on the current path.
#[derive(Default)]
struct HostDirs(Vec<HostLevel>);

#[allow(clippy::unnecessary_cast)] // The types differ between processors.
fn identity(fd: &OwnedFd) -> std::result::Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}

impl HostDirs {
    fn current(&self) -> Option<Rc<OwnedFd>> {
        self.0.last().and_then(|level| level.fd.clone())
    }

    fn enter(&mut self, fd: OwnedFd) -> Result<()> {
        let id = identity(&fd)?;
        if self.0.iter().any(|level| level.id == id) {
            return Err(Failure::new("directory loop: it is below itself"));
        }
        self.0.push(HostLevel {
            id,
            fd: Some(Rc::new(fd)),
        });
        if let Some(at) = self.0.len().checked_sub(OPEN_MAX + 1) {
            self.0[at].fd = None;
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let below = self.0.pop().and_then(|level| level.fd);
        let Some(level) = self.0.last_mut() else {
            return Ok(());
        };
        if level.fd.is_none()
            && let Some(below) = below
        {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&*below, "..", flags, Mode::empty())?;
            if identity(&fd)? != level.id {
                return Err(Failure::new("a directory was moved while it was copied"));
            }
            level.fd = Some(Rc::new(fd));
        }
        Ok(())
    }
}

/// The directory of the destination that a copy is in.
pub struct Target {
    top: FilePlace,
    /// The current directory's path.
    shown: Vec<u8>,
    /// Lengths of the paths of the directories above.
    above: Vec<usize>,
    side: TargetSide,
}

enum TargetSide {
    Host(HostDirs),
    Inside(Rc<Image>, Vec<Ino>),
}

impl Target {
    /// A destination; its directory is not entered yet.
    pub fn new(top: &FilePlace) -> Self {
        Target {
            top: top.clone(),
            shown: top.path().to_vec(),
            above: Vec::new(),
            side: match top {
                FilePlace::Host(_) => TargetSide::Host(HostDirs::default()),
                FilePlace::Inside(image, _) => TargetSide::Inside(image.clone(), Vec::new()),
            },
        }
    }

    /// The place of a name in the current directory; the top before one was entered.
    pub fn place(&self, name: &[u8]) -> Result<FilePlace> {
        match &self.side {
            TargetSide::Host(dirs) => Ok(match dirs.current() {
                Some(dir) => {
                    let shown = PathBuf::from(OsStr::from_bytes(&join(&self.shown, name)));
                    FilePlace::host_in(dir, name, shown)
                }
                None => self.top.clone(),
            }),
            TargetSide::Inside(image, dirs) => Ok(match dirs.last() {
                Some(ino) => {
                    let shown = join(&self.shown, name);
                    let dir = image.vfs().inode(*ino).at(image.place(&self.shown))?;
                    FilePlace::inside_in(image.clone(), dir, name, shown)
                }
                None => self.top.clone(),
            }),
        }
    }

    /// Goes into a directory: one that [`Target::place`] gave.
    pub fn enter(&mut self, place: &FilePlace) -> Result<()> {
        match &mut self.side {
            TargetSide::Host(dirs) => {
                if let Some(fd) = place.host_dir()? {
                    dirs.enter(fd).map_err(|e| e.at(place))?;
                }
            }
            TargetSide::Inside(_, dirs) => {
                if let Some((_, dir)) = place.inside_dir()? {
                    dirs.push(dir.ino());
                }
            }
        }
        self.above.push(self.shown.len());
        if self.above.len() > 1 {
            self.shown = place.path().to_vec();
        }
        Ok(())
    }

    /// Goes back to the directory above.
    pub fn leave(&mut self) -> Result<()> {
        if let Some(length) = self.above.pop() {
            self.shown.truncate(length);
        }
        match &mut self.side {
            TargetSide::Host(dirs) => {
                let left = dirs.leave();
                left.map_err(|e| e.at(OsStr::from_bytes(&self.shown).display()))
            }
            TargetSide::Inside(_, dirs) => {
                dirs.pop();
                Ok(())
            }
        }
    }
}

/// A step over a source. [`Source::name`] is the name of what it concerns.
pub enum Step {
    /// A file or directory; a directory comes before what is in it.
    Found(FilePlace, Box<Meta>),
    /// All in this directory was visited. Follows each directory that was found and not skipped.
    Left(FilePlace),
    /// This cannot be read. With `true` the walk cannot go on.
    Failed(Failure, bool),
}

/// The walk over a source.
pub enum Source<'i> {
    /// In an image.
    Inside(&'i Rc<Image>, FilePlace, ImageWalk<'i>),
    /// On the host.
    Host(Box<HostWalk>),
}

/// The walk over a directory in an image.
pub enum ImageWalk<'i> {
    /// Where the files are not read: their data is copied inside the image.
    Plain(Box<Walker<'i>>),
    /// Where they are.
    Ahead(Box<ReadAheadWalk<'i>>),
}

impl ImageWalk<'_> {
    fn step(&mut self) -> Option<WalkStep> {
        match self {
            ImageWalk::Plain(walk) => walk.step(),
            ImageWalk::Ahead(walk) => walk.step(),
        }
    }

    fn skip(&mut self) {
        match self {
            ImageWalk::Plain(walk) => walk.skip(),
            ImageWalk::Ahead(walk) => walk.skip(),
        }
    }

    fn path(&self) -> &[u8] {
        match self {
            ImageWalk::Plain(walk) => walk.path(),
            ImageWalk::Ahead(walk) => walk.path(),
        }
    }

    fn name(&self) -> &[u8] {
        match self {
            ImageWalk::Plain(walk) => walk.name(),
            ImageWalk::Ahead(walk) => walk.name(),
        }
    }

    fn parent(&self) -> blockwright::Result<Option<InodeRef>> {
        match self {
            ImageWalk::Plain(walk) => walk.parent(),
            ImageWalk::Ahead(walk) => walk.parent(),
        }
    }
}

/// A walk over a directory of the host. Symlinks are not followed, except by an operand.
pub struct HostWalk {
    top: FilePlace,
    dirs: HostDirs,
    /// The path of the current directory, and the names there that are still to visit.
    shown: Vec<u8>,
    levels: Vec<(usize, std::vec::IntoIter<Vec<u8>>)>,
    /// The name of the last step, and those of the directories above.
    name: Vec<u8>,
    names: Vec<Vec<u8>>,
    begun: bool,
    enter: Option<FilePlace>,
    /// A directory that was found and could not be entered.
    closed: Option<FilePlace>,
}

impl<'i> Source<'i> {
    /// A walk over the directory at `top`, for a copy to `to`.
    pub fn new(top: &FilePlace, image: Option<&'i Rc<Image>>, to: &FilePlace) -> Result<Self> {
        if let (Some(image), Some((_, dir))) = (image, top.inside_dir()?) {
            let walk = match to {
                FilePlace::Inside(same, _) if Rc::ptr_eq(same, image) => {
                    ImageWalk::Plain(Box::new(image.walk(dir, top.path())))
                }
                _ => ImageWalk::Ahead(Box::new(image.walk_ahead(dir, top.path()))),
            };
            return Ok(Source::Inside(image, top.clone(), walk));
        }
        Ok(Source::Host(Box::new(HostWalk {
            top: top.clone(),
            dirs: HostDirs::default(),
            shown: top.path().to_vec(),
            levels: Vec::new(),
            name: Vec::new(),
            names: Vec::new(),
            begun: false,
            enter: None,
            closed: None,
        })))
    }

    /// The name of the last step's file in its directory.
    pub fn name(&self) -> &[u8] {
        match self {
            Source::Inside(_, _, walk) => walk.name(),
            Source::Host(walk) => &walk.name,
        }
    }

    /// Data of the last step's file from `offset` on, if it was read ahead. Offsets must ascend.
    pub fn data(&mut self, offset: u64) -> Option<Vec<IoSlice>> {
        match self {
            Source::Inside(_, _, ImageWalk::Ahead(walk)) => walk.data(offset),
            Source::Inside(..) | Source::Host(_) => None,
        }
    }

    /// Leaves out what is in the directory that the last step found.
    pub fn skip(&mut self) {
        match self {
            Source::Inside(_, _, walk) => walk.skip(),
            Source::Host(walk) => walk.enter = None,
        }
    }

    /// The next step.
    pub fn step(&mut self) -> Option<Step> {
        match self {
            Source::Inside(image, top, walk) => {
                let step = walk.step()?;
                let depth = match &step {
                    WalkStep::Found(node) | WalkStep::Left(node) => node.depth,
                    WalkStep::Failed(_) => 0,
                };
                let place = if depth == 0 {
                    Ok(top.clone())
                } else {
                    match walk.parent() {
                        Ok(Some(dir)) => Ok(FilePlace::inside_in(
                            Rc::clone(image),
                            dir,
                            walk.name(),
                            walk.path().to_vec(),
                        )),
                        Ok(None) => Ok(top.clone()),
                        Err(e) => Err(image.walk_failure(e)),
                    }
                };
                Some(match (step, place) {
                    (WalkStep::Failed(e), _) => Step::Failed(image.walk_failure(e), false),
                    (_, Err(e)) => Step::Failed(e, true),
                    (WalkStep::Found(node), Ok(place)) => {
                        let meta = crate::commands::place::inside_meta(image, &node.inode);
                        Step::Found(place.with_inode(&node.inode), Box::new(meta))
                    }
                    (WalkStep::Left(_), Ok(place)) => Step::Left(place),
                })
            }
            Source::Host(walk) => walk.step(),
        }
    }
}

impl HostWalk {
    fn step(&mut self) -> Option<Step> {
        // A directory that was found is left, also where it cannot be entered.
        if let Some(place) = self.closed.take() {
            return Some(Step::Left(place));
        }
        if let Some(place) = self.enter.take() {
            let depth = self.levels.len();
            if let Err(e) = self.descend(&place) {
                if self.levels.len() == depth {
                    self.closed = Some(place);
                }
                return Some(Step::Failed(e, false));
            }
        }
        if !self.begun {
            self.begun = true;
            let top = self.top.clone();
            return self.found(top);
        }
        loop {
            let (_, names) = self.levels.last_mut()?;
            let Some(name) = names.next() else {
                return Some(self.leave());
            };
            let dir = self.dirs.current()?;
            let shown = PathBuf::from(OsStr::from_bytes(&join(&self.shown, &name)));
            let place = FilePlace::host_in(dir, &name, shown);
            self.name = name;
            // One that is gone meanwhile is passed by.
            if let Some(step) = self.found(place) {
                return Some(step);
            }
        }
    }

    fn found(&mut self, place: FilePlace) -> Option<Step> {
        match place.meta(self.levels.is_empty()) {
            Ok(Some(meta)) => {
                if meta.kind == FileKind::Directory {
                    self.enter = Some(place.clone());
                }
                Some(Step::Found(place, Box::new(meta)))
            }
            Ok(None) => None,
            Err(e) => Some(Step::Failed(e, false)),
        }
    }

    fn descend(&mut self, place: &FilePlace) -> Result<()> {
        let Some(fd) = place.host_dir()? else {
            return Ok(());
        };
        self.dirs.enter(fd).map_err(|e| e.at(place))?;
        let mut names = Vec::new();
        let mut listed = Ok(());
        if let Some(dir) = self.dirs.current() {
            listed = list(&dir, &mut names).at(place);
        }
        names.sort_unstable();
        self.levels.push((self.shown.len(), names.into_iter()));
        if self.levels.len() > 1 {
            self.shown = place.path().to_vec();
        }
        self.names.push(std::mem::take(&mut self.name));
        listed
    }

    fn leave(&mut self) -> Step {
        if let Some((length, _)) = self.levels.pop() {
            self.shown.truncate(length);
        }
        self.name = self.names.pop().unwrap_or_default();
        if let Err(e) = self.dirs.leave() {
            self.levels.clear();
            return Step::Failed(e.at(OsStr::from_bytes(&self.shown).display()), true);
        }
        let place = match self.dirs.current() {
            Some(dir) => {
                let shown = PathBuf::from(OsStr::from_bytes(&join(&self.shown, &self.name)));
                FilePlace::host_in(dir, &self.name, shown)
            }
            None => self.top.clone(),
        };
        Step::Left(place)
    }
}

fn list(dir: &OwnedFd, names: &mut Vec<Vec<u8>>) -> std::result::Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(dir, ".", flags, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(open)? {
        let name = entry?.file_name().to_owned().into_bytes();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(())
}
