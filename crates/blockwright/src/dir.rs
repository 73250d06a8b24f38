//! Listing directories.

use crate::{FileType, Metadata, Result, Volume};
use blockwright_vfs::InodeRef;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// An entry of a directory.
pub struct DirEntry<'v> {
    volume: &'v Volume,
    dir: PathBuf,
    name: OsString,
    ino: u64,
    kind: Option<FileType>,
}

impl DirEntry<'_> {
    /// The name in its directory.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The path it was found by.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Kind, without following symbolic links.
    ///
    /// # Errors
    /// As [`Volume::symlink_metadata`], when the directory does not record kinds.
    pub fn file_type(&self) -> Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.metadata()?.file_type()),
        }
    }

    /// Attributes, without following symbolic links.
    ///
    /// # Errors
    /// As [`Volume::symlink_metadata`].
    pub fn metadata(&self) -> Result<Metadata> {
        self.volume.symlink_metadata(self.path())
    }
}

impl std::fmt::Debug for DirEntry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirEntry({})", self.path().display())
    }
}

/// How many entries are fetched at once.
const BATCH: usize = 256;

/// The entries of a directory, without `.` and `..`, in the directory's own order. Fetched in
/// batches: entries that come and go meanwhile may or may not be seen, all others are seen once.
pub struct ReadDir<'v> {
    volume: &'v Volume,
    dir: InodeRef,
    path: PathBuf,
    batch: std::vec::IntoIter<DirEntry<'v>>,
    cookie: u64,
    done: bool,
}

impl<'v> ReadDir<'v> {
    pub(crate) fn new(volume: &'v Volume, path: &Path) -> Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        let dir = volume.vfs().resolve(volume.cred(), bytes, true)?;
        let mut all = ReadDir {
            volume,
            dir,
            path: path.to_owned(),
            batch: Vec::new().into_iter(),
            cookie: 0,
            done: false,
        };
        // Like std, this call reports a path that is not a directory, instead of the first entry
        // doing so.
        all.fetch()?;
        Ok(all)
    }

    fn fetch(&mut self) -> Result<()> {
        let mut batch = Vec::new();
        let mut cookie = self.cookie;
        let mut full = false;
        self.volume
            .vfs()
            .readdir(self.volume.cred(), &self.dir, self.cookie, &mut |e| {
                if batch.len() == BATCH {
                    full = true;
                    return ControlFlow::Break(());
                }
                cookie = e.cookie;
                if e.name != b"." && e.name != b".." {
                    batch.push(DirEntry {
                        volume: self.volume,
                        dir: self.path.clone(),
                        name: OsString::from_vec(e.name.to_vec()),
                        ino: e.ino.0,
                        kind: e.kind,
                    });
                }
                ControlFlow::Continue(())
            })?;
        self.cookie = cookie;
        self.done = !full;
        self.batch = batch.into_iter();
        Ok(())
    }
}

impl<'v> Iterator for ReadDir<'v> {
    type Item = Result<DirEntry<'v>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.batch.next() {
                return Some(Ok(entry));
            }
            if self.done {
                return None;
            }
            if let Err(e) = self.fetch() {
                self.done = true;
                return Some(Err(e.at(&self.path)));
            }
        }
    }
}
