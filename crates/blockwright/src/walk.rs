//! Walks over directory trees: one mechanism for all commands and library calls.
//!
//! A walk is iterative, so its depth is not limited by the stack. It finds inodes by the numbers in directory
//! entries rather than by path, so its cost does not grow with the depth. It visits each directory once: on a
//! damaged volume a directory can be below itself, or have several names, and the second visit fails with the
//! path's name instead of going on.
//!
//! Memory: the names still to visit of each directory on the current path, and one bit for each directory that
//! was visited.
//!
//! [`ReadAheadWalk`] makes the same walk for readers of whole trees.
//!
//! Not responsible for: what is done with the files; paths of the host.

mod read_ahead;

pub use read_ahead::ReadAheadWalk;

use crate::{Error, ErrorKind, Metadata, Result, Volume};
use blockwright_device::os_name;
use blockwright_vfs::{Access, Cred, FileKind, Ino, InodeRef, Vfs};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A file or directory met on a walk.
#[derive(Clone, Debug)]
pub struct WalkNode {
    /// The inode. It stays in memory while this is held.
    pub inode: InodeRef,
    /// Levels below the start: 0 for the start itself.
    pub depth: usize,
    /// Whether no further name of its directory follows.
    pub last: bool,
}

/// A step of a walk. [`Walker::path`] is the path that it concerns.
#[derive(Debug)]
pub enum WalkStep {
    /// A file or a directory. A directory comes before what is in it.
    Found(WalkNode),
    /// All below this directory was visited. Follows each directory that was found and not skipped, also where its names
    /// could not be read.
    Left(WalkNode),
    /// The file or directory at the path could not be read, or the directory was visited already.
    Failed(Error),
}

/// A name in a directory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    name: Box<[u8]>,
    ino: Ino,
    /// The entry says that it is a directory. That may be wrong: for reading ahead only.
    dir: bool,
}

/// A directory on the path from the start to where the walk is.
struct Level {
    ino: Ino,
    /// Its own place in its directory.
    last: bool,
    /// Bytes of the path that are its own path.
    path_len: usize,
    /// Names still to visit.
    names: std::vec::IntoIter<Name>,
}

/// Inode numbers, a bit each.
#[derive(Default)]
struct InodeSet(HashMap<u64, [u64; 8]>);

impl InodeSet {
    /// Adds a number. `false` when it was in the set already.
    fn insert(&mut self, ino: Ino) -> bool {
        let word = &mut self.0.entry(ino.0 >> 9).or_default()[(ino.0 >> 6 & 7) as usize];
        let bit = 1 << (ino.0 & 63);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// A walk over a tree in which the caller sees each step: directories before and after what is in them, names in
/// byte order. See the [module's](self) head for what it guarantees.
///
/// ```
/// use blockwright::walk::{WalkStep, Walker};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let volume = blockwright::Volume::create(dir.path().join("disk.img"), 16 << 20)?;
/// volume.create_dir_all("/srv/www")?;
/// let mut walk = Walker::new(volume.vfs(), volume.cred(), b"/srv")?;
/// let mut found = Vec::new();
/// while let Some(step) = walk.step() {
///     match step {
///         WalkStep::Found(_) => found.push(walk.path().to_vec()),
///         WalkStep::Left(_) => {}
///         WalkStep::Failed(e) => eprintln!("{e}"),
///     }
/// }
/// assert_eq!(found, [&b"/srv"[..], b"/srv/www"]);
/// # Ok(())
/// # }
/// ```
pub struct Walker<'v> {
    vfs: &'v Vfs,
    cred: &'v Cred,
    path: Vec<u8>,
    /// Where the name of the current step begins in the path.
    name_at: usize,
    levels: Vec<Level>,
    visited: InodeSet,
    /// The start, before the first step.
    start: Option<InodeRef>,
    /// The directory that the last step found and whose names are to be read next.
    enter: Option<WalkNode>,
    /// Metadata of the inodes that follow is brought into memory together.
    load_ahead: bool,
}

/// Inodes that are brought into memory together.
const LOADED_TOGETHER: usize = 128;

/// Brings metadata into memory that the walk needs next.
fn load_ahead(vfs: &Vfs, names: &[Name]) {
    let all: Vec<Ino> = names.iter().map(|name| name.ino).collect();
    vfs.load_ahead(&all);
    let dirs = names.iter().filter(|name| name.dir);
    let dirs: Vec<Ino> = dirs.map(|name| name.ino).collect();
    if dirs.len() > 1 {
        vfs.list_ahead(&dirs);
    }
}

impl<'v> Walker<'v> {
    /// A walk from the inode that `path` names; a symbolic link at its end is not followed.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`.
    pub fn new(vfs: &'v Vfs, cred: &'v Cred, path: &[u8]) -> Result<Self> {
        let shown = os_name::of(path);
        let shown = Path::new(&*shown);
        let start = vfs
            .resolve(cred, path, false)
            .map_err(|e| Error::from(e).at(shown))?;
        Ok(Self::from_inode(vfs, cred, start, path))
    }

    /// A walk from an inode. Paths begin with `path`.
    #[must_use]
    pub fn from_inode(vfs: &'v Vfs, cred: &'v Cred, start: InodeRef, path: &[u8]) -> Self {
        Walker {
            vfs,
            cred,
            path: path.to_vec(),
            name_at: 0,
            levels: Vec::new(),
            visited: InodeSet::default(),
            start: Some(start),
            enter: None,
            load_ahead: false,
        }
    }

    /// The path of the last step. It begins with the start's path.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The last name of [`Walker::path`]; the whole path for the start.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }

    /// The directory that the last step's file or directory is in; `None` for the start.
    ///
    /// # Errors
    /// As reading the inode.
    pub fn parent(&self) -> Result<Option<InodeRef>> {
        match self.levels.last() {
            Some(level) => Ok(Some(self.vfs.inode(level.ino)?)),
            None => Ok(None),
        }
    }

    /// Leaves out what is in the directory that the last step found.
    pub fn skip(&mut self) {
        self.enter = None;
    }

    fn fail(&self, e: impl Into<Error>) -> WalkStep {
        WalkStep::Failed(e.into().at(Path::new(&*os_name::of(&self.path))))
    }

    /// The next step; `None` at the end.
    pub fn step(&mut self) -> Option<WalkStep> {
        if let Some(node) = self.enter.take()
            && let Err(e) = self.descend(&node)
        {
            return Some(self.fail(e));
        }
        if let Some(inode) = self.start.take() {
            return Some(self.found(inode, true));
        }
        let level = self.levels.last_mut()?;
        self.path.truncate(level.path_len);
        if self.load_ahead && level.names.len().is_multiple_of(LOADED_TOGETHER) {
            let next = level.names.as_slice();
            load_ahead(self.vfs, &next[..next.len().min(LOADED_TOGETHER)]);
        }
        let Some(Name { name, ino, .. }) = level.names.next() else {
            return self.leave();
        };
        let last = level.names.as_slice().is_empty();
        if self.path.last() != Some(&b'/') {
            self.path.push(b'/');
        }
        self.name_at = self.path.len();
        self.path.extend_from_slice(&name);
        Some(match self.vfs.inode(ino) {
            Ok(inode) => self.found(inode, last),
            Err(e) => self.fail(e),
        })
    }

    fn found(&mut self, inode: InodeRef, last: bool) -> WalkStep {
        let depth = self.levels.len();
        let node = WalkNode { inode, depth, last };
        if node.inode.kind() == FileKind::Directory {
            let ino = node.inode.ino();
            if !self.visited.insert(ino) {
                let what = if self.levels.iter().any(|level| level.ino == ino) {
                    format!("directory loop: inode {} is below itself", ino.0)
                } else {
                    format!(
                        "directory inode {} has a second name; it is visited once",
                        ino.0
                    )
                };
                return self.fail(Error::new(ErrorKind::Corrupt, what));
            }
            self.enter = Some(node.clone());
        }
        WalkStep::Found(node)
    }

    /// Reads the names of a directory that was found.
    fn descend(&mut self, node: &WalkNode) -> Result<()> {
        let mut names = Vec::new();
        // Inodes are found by number, so this is the check that a lookup of each name would make.
        let listed = self
            .vfs
            .access(self.cred, &node.inode, Access::EXECUTE)
            .and_then(|()| {
                self.vfs.readdir(self.cred, &node.inode, 0, &mut |entry| {
                    if entry.name != b"." && entry.name != b".." {
                        names.push(Name {
                            name: Box::from(entry.name),
                            ino: entry.ino,
                            dir: entry.kind == Some(FileKind::Directory),
                        });
                    }
                    ControlFlow::Continue(())
                })
            });
        // Entries that were read before the error are still visited.
        names.sort_unstable();
        names.dedup_by(|a, b| a.name == b.name && a.ino == b.ino);
        if self.load_ahead {
            // Up to the point where `step` takes over.
            load_ahead(self.vfs, &names[..names.len() % LOADED_TOGETHER]);
        }
        self.levels.push(Level {
            ino: node.inode.ino(),
            last: node.last,
            path_len: self.path.len(),
            names: names.into_iter(),
        });
        Ok(listed?)
    }

    fn leave(&mut self) -> Option<WalkStep> {
        let level = self.levels.pop()?;
        self.name_at = match self.levels.last() {
            // The name begins behind its directory's path, and behind the slash unless that path ends with one.
            Some(above) => {
                let at = above.path_len;
                at + usize::from(self.path.get(at) == Some(&b'/'))
            }
            None => 0,
        };
        Some(match self.vfs.inode(level.ino) {
            Ok(inode) => WalkStep::Left(WalkNode {
                inode,
                depth: self.levels.len(),
                last: level.last,
            }),
            Err(e) => self.fail(e),
        })
    }
}

/// Something met on a walk.
#[derive(Debug)]
pub struct WalkEntry {
    /// Its path, beginning with the path the walk started from.
    pub path: PathBuf,
    /// Its attributes; symbolic links are not followed.
    pub metadata: Metadata,
    /// Levels below the start: 0 for the start itself.
    pub depth: usize,
}

/// The entries of a walk, directories before what is in them, names in byte order. After an error the walk continues
/// with what else there is.
pub struct Walk<'v> {
    volume: &'v Volume,
    walker: Result<Walker<'v>>,
}

impl<'v> Walk<'v> {
    pub(crate) fn new(volume: &'v Volume, path: &Path) -> Self {
        Walk {
            volume,
            walker: Walker::new(volume.vfs(), volume.cred(), os_name::bytes(path)),
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let walker = match &mut self.walker {
            Ok(walker) => walker,
            Err(e) => {
                // Told once; an empty walk remains.
                let e = e.clone();
                let vfs = self.volume.vfs();
                let root = vfs.root().ok()?;
                let mut ended = Walker::from_inode(vfs, self.volume.cred(), root, b"/");
                ended.start = None;
                self.walker = Ok(ended);
                return Some(Err(e));
            }
        };
        loop {
            match walker.step()? {
                WalkStep::Found(node) => {
                    return Some(Ok(WalkEntry {
                        path: PathBuf::from(&*os_name::of(walker.path())),
                        metadata: Metadata(self.volume.vfs().stat(&node.inode)),
                        depth: node.depth,
                    }));
                }
                WalkStep::Left(_) => {}
                WalkStep::Failed(e) => return Some(Err(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_set_once() {
        let mut set = InodeSet::default();
        for ino in [0, 1, 63, 64, 511, 512, u64::MAX] {
            assert!(set.insert(Ino(ino)), "{ino}");
            assert!(!set.insert(Ino(ino)), "{ino}");
        }
    }
}
