//! Listing directories.

use crate::{Error, FileType, Metadata, Result, Volume};
use blockwright_device::os_name;
use blockwright_vfs::{Cred, InodeRef, Vfs};
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        os_name::join(&self.dir, &self.name)
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
    stream: DirStream,
}

impl<'v> ReadDir<'v> {
    pub(crate) fn new(volume: &'v Volume, path: &Path) -> Result<Self> {
        let stream = DirStream::new(volume, path)?;
        Ok(ReadDir { volume, stream })
    }
}

impl<'v> Iterator for ReadDir<'v> {
    type Item = Result<DirEntry<'v>>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.stream.next()?;
        Some(entry.map(|entry| DirEntry {
            volume: self.volume,
            dir: self.stream.path.clone(),
            name: entry.name,
            ino: entry.ino,
            kind: entry.kind,
        }))
    }
}

/// An entry of a [`DirStream`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamEntry {
    /// The name in its directory.
    pub name: OsString,
    /// Inode number.
    pub ino: u64,
    /// Kind, where the directory records it. [`DirStream::file_type`] finds it otherwise.
    pub kind: Option<FileType>,
}

/// The entries of a directory as [`ReadDir`] lists them, without borrowing the volume: for callers that keep a listing beside it.
///
/// After the volume was closed, the next batch fails with `Stale`.
pub struct DirStream {
    vfs: Arc<Vfs>,
    cred: Cred,
    dir: InodeRef,
    path: PathBuf,
    batch: std::vec::IntoIter<StreamEntry>,
    cookie: u64,
    done: bool,
}

impl DirStream {
    pub(crate) fn new(volume: &Volume, path: &Path) -> Result<Self> {
        let bytes = os_name::bytes(path);
        let dir = volume.vfs().resolve(volume.cred(), bytes, true)?;
        let mut stream = DirStream {
            vfs: Arc::clone(volume.vfs()),
            cred: volume.cred().clone(),
            dir,
            path: path.to_owned(),
            batch: Vec::new().into_iter(),
            cookie: 0,
            done: false,
        };
        // Like std, this call reports a path that is not a directory, instead of the first entry
        // doing so.
        stream.fetch()?;
        Ok(stream)
    }

    fn fetch(&mut self) -> Result<()> {
        let mut batch = Vec::new();
        let mut cookie = self.cookie;
        let mut full = false;
        self.vfs
            .readdir(&self.cred, &self.dir, self.cookie, &mut |e| {
                if batch.len() == BATCH {
                    full = true;
                    return ControlFlow::Break(());
                }
                cookie = e.cookie;
                if e.name != b"." && e.name != b".." {
                    batch.push(StreamEntry {
                        name: os_name::of_vec(e.name.to_vec()),
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

    /// The kind of an entry, without following symbolic links. Asks the inode where the directory does not record kinds.
    ///
    /// # Errors
    /// As [`Volume::symlink_metadata`].
    pub fn file_type(&self, entry: &StreamEntry) -> Result<FileType> {
        if let Some(kind) = entry.kind {
            return Ok(kind);
        }
        let name = os_name::bytes(&entry.name);
        let found = self.vfs.resolve_at(&self.cred, &self.dir, name, false);
        let inode = found.map_err(|e| Error::from(e).at(os_name::join(&self.path, &entry.name)))?;
        Ok(self.vfs.stat(&inode).kind)
    }
}

impl Iterator for DirStream {
    type Item = Result<StreamEntry>;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_listing_outlives_its_volume_and_says_so() {
        let dir = tempfile::tempdir().expect("a folder");
        let volume = Volume::create(dir.path().join("d.img"), 16 << 20).expect("made");
        volume.create_dir("/many").expect("a directory");
        for n in 0..BATCH * 2 {
            volume.write(format!("/many/{n}"), b"").expect("a file");
        }
        let all = volume.dir_stream("/many").expect("opened");
        let names: std::collections::BTreeSet<_> = all.map(|e| e.expect("an entry").name).collect();
        assert_eq!(names.len(), BATCH * 2);
        let cut = volume.dir_stream("/many").expect("opened");
        volume.close().expect("closed");
        let (good, bad): (Vec<_>, Vec<_>) = cut.partition(Result::is_ok);
        // What was fetched is there; the next batch is not.
        assert!((1..=BATCH).contains(&good.len()), "{}", good.len());
        let [Err(error)] = &bad[..] else {
            panic!("{bad:?}");
        };
        assert_eq!(error.kind(), ErrorKind::Stale);
    }
}
