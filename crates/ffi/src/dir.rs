//! A listing that owns what it reads from, for languages without lifetimes.

use blockwright::{Error, FileType, Result, Volume};
use blockwright_vfs::{Cred, InodeRef, Vfs};
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many entries are fetched at once.
const BATCH: usize = 256;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name in its directory.
    pub name: OsString,
    /// Inode number.
    pub ino: u64,
    /// Kind, where the directory records it.
    pub kind: Option<FileType>,
}

/// The entries of a directory without `.` and `..`, in the directory's own order.
///
/// Entries are fetched in batches. Those that come and go meanwhile may or may not be seen; all others are seen once.
/// After the volume was closed, the next batch fails with `Stale`.
pub struct DirStream {
    vfs: Arc<Vfs>,
    cred: Cred,
    dir: InodeRef,
    path: PathBuf,
    batch: std::vec::IntoIter<Entry>,
    cookie: u64,
    done: bool,
}

impl DirStream {
    /// The listing of a directory of `volume`; symbolic links are followed.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`, `Corrupt`, `Io`.
    pub fn open(volume: &Volume, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let open = || {
            let bytes = path.as_os_str().as_bytes();
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
            // A path that is no directory is refused here, not at the first entry.
            stream.fetch()?;
            Ok(stream)
        };
        open().map_err(|e: Error| e.at(path))
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
                    batch.push(Entry {
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

    /// The kind of an entry, without following symbolic links. Asks the inode where the directory does not record kinds.
    ///
    /// # Errors
    /// As [`Volume::symlink_metadata`].
    pub fn kind_of(&self, entry: &Entry) -> Result<FileType> {
        if let Some(kind) = entry.kind {
            return Ok(kind);
        }
        let path = self.path.join(OsStr::new(&entry.name));
        let bytes = path.as_os_str().as_bytes();
        let found = self.vfs.resolve(&self.cred, bytes, false);
        let inode = found.map_err(|e| Error::from(e).at(&path))?;
        Ok(self.vfs.stat(&inode).kind)
    }
}

impl Iterator for DirStream {
    type Item = Result<Entry>;

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
    use blockwright::ErrorKind;

    #[test]
    fn a_listing_outlives_its_volume_and_says_so() {
        let dir = tempfile::tempdir().expect("a folder");
        let volume = Volume::create(dir.path().join("d.img"), 16 << 20).expect("made");
        volume.create_dir("/many").expect("a directory");
        for n in 0..BATCH * 2 {
            volume.write(format!("/many/{n}"), b"").expect("a file");
        }
        let all = DirStream::open(&volume, "/many").expect("opened");
        let names: std::collections::BTreeSet<_> = all.map(|e| e.expect("an entry").name).collect();
        assert_eq!(names.len(), BATCH * 2);
        let cut = DirStream::open(&volume, "/many").expect("opened");
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
