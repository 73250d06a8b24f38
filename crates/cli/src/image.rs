//! Images, opened for a command: resolved paths, listed directories, errors that name image and path.
//!
//! Offline commands act as root inside the image, also when a user runs them: a user with the right to write the image
//! file can change everything in it. New files belong to 0:0 unless told otherwise.

use crate::devices::{journal, more_devices};
use crate::failure::{At, Failure, Result};
use crate::operand::Inside;
use blockwright::walk::{ReadAheadWalk, WalkStep, Walker};
use blockwright::{Volume, VolumeOptions};
use blockwright_vfs::{Attr, Cred, FileKind, Handle, Ino, InodeRef, OpenFlags, Vfs};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// How a command uses an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Look at it. Nothing is written, not even a journal's replay.
    Read,
    /// Change it.
    Write,
}

/// An open image.
pub struct Image {
    path: PathBuf,
    volume: RefCell<Option<Volume>>,
    vfs: Arc<Vfs>,
    cred: Cred,
}

/// A name in a directory.
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode's number.
    pub ino: Ino,
}

/// The options with the volume's other devices and its journal, where the command line names them.
pub fn with_other_devices(options: VolumeOptions) -> VolumeOptions {
    let options = options.more_devices(more_devices());
    match journal() {
        Some(device) => options.journal(device),
        None => options,
    }
}

impl Image {
    /// Opens an image.
    ///
    /// # Errors
    /// With the image named.
    pub fn open(path: &Path, access: Access) -> Result<Rc<Image>> {
        let options = with_other_devices(Volume::options().read_only(access == Access::Read));
        Self::open_with(path, &options).map(Rc::new)
    }

    /// Opens an image with options.
    ///
    /// # Errors
    /// With the image named.
    pub fn open_with(path: &Path, options: &VolumeOptions) -> Result<Image> {
        let volume = options.open_by(path, &mut crate::wall::device)?;
        if !options.is_read_only() && volume.vfs().engine().is_read_only() {
            let why = volume.read_only_reason();
            let _ = volume.close();
            return Err(Failure::new(match why {
                Some(why) => format!("the volume can only be read: {why}"),
                None => "the volume has features that this program can only read".to_owned(),
            })
            .at(path.display()));
        }
        Ok(Image {
            path: path.to_owned(),
            vfs: volume.vfs().clone(),
            volume: RefCell::new(Some(volume)),
            cred: Cred::unchecked(),
        })
    }

    /// The image's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volume.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// Does something with the volume as a whole, which is open.
    ///
    /// # Errors
    /// Those of `act`, and for a volume that was closed.
    pub fn on_volume<T>(&self, act: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
        match self.volume.borrow().as_ref() {
            Some(volume) => act(volume),
            None => Err(Failure::new("the volume is closed")),
        }
    }

    /// On whose behalf things are done.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// A path of the image for messages.
    pub fn place(&self, path: &[u8]) -> String {
        Inside {
            image: self.path.clone(),
            path: path.to_vec(),
        }
        .to_string()
    }

    /// The inode a path names. A path that ends with a slash must name a directory.
    ///
    /// # Errors
    /// With the path named.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<InodeRef> {
        let slash = path.len() > 1 && path.ends_with(b"/");
        let inode = self
            .vfs
            .resolve(&self.cred, path, follow || slash)
            .at(self.place(path))?;
        if slash && inode.kind() != FileKind::Directory {
            return Err(Failure::new(blockwright_vfs::ErrorKind::NotDirectory).at(self.place(path)));
        }
        Ok(inode)
    }

    /// As [`Image::resolve`], with `None` for what is not there.
    ///
    /// # Errors
    /// As [`Image::resolve`], except `NotFound`.
    pub fn find(&self, path: &[u8], follow: bool) -> Result<Option<InodeRef>> {
        match self.vfs.resolve(&self.cred, path, follow) {
            Ok(inode) => Ok(Some(inode)),
            Err(e) if e.kind() == blockwright_vfs::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Failure::from(e).at(self.place(path))),
        }
    }

    /// The directory that a path's last name is in, and that name.
    ///
    /// # Errors
    /// With the path named.
    pub fn resolve_parent(&self, path: &[u8]) -> Result<(InodeRef, Vec<u8>)> {
        if path.iter().all(|&b| b == b'/') {
            return Err(
                Failure::new("the root directory cannot be made, moved or removed")
                    .at(self.place(path)),
            );
        }
        self.vfs
            .resolve_parent(&self.cred, path)
            .at(self.place(path))
    }

    /// What `stat` shows.
    pub fn stat(&self, inode: &InodeRef) -> Attr {
        self.vfs.stat(inode)
    }

    /// A directory's entries without `.` and `..`, by name.
    ///
    /// # Errors
    /// With `path` named.
    pub fn entries(&self, dir: &InodeRef, path: &[u8]) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.vfs
            .readdir(&self.cred, dir, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    entries.push(Entry {
                        name: entry.name.to_vec(),
                        ino: entry.ino,
                    });
                }
                ControlFlow::Continue(())
            })
            .at(self.place(path))?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// A walk over everything at and below an inode, whose path this is.
    pub fn walk(&self, start: InodeRef, path: &[u8]) -> Walker<'_> {
        Walker::from_inode(&self.vfs, &self.cred, start, path)
    }

    /// The same walk, for a command that reads the files.
    pub fn walk_ahead(&self, start: InodeRef, path: &[u8]) -> ReadAheadWalk<'_> {
        ReadAheadWalk::from_inode(&self.vfs, &self.cred, start, path)
    }

    /// An error of a walk over this image, for people.
    pub fn walk_failure(&self, e: blockwright::Error) -> Failure {
        Failure::from(e).within(&self.path)
    }

    /// Opens a regular file for reading; access times are left alone.
    ///
    /// # Errors
    /// With `path` named.
    pub fn open_file(&self, inode: &InodeRef, path: &[u8]) -> Result<Arc<Handle>> {
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => {
                return Err(
                    Failure::new(blockwright_vfs::ErrorKind::IsDirectory).at(self.place(path))
                );
            }
            kind => {
                return Err(Failure::new(format_args!(
                    "a {} has no contents to read",
                    kind.name()
                ))
                .at(self.place(path)));
            }
        }
        let flags = OpenFlags {
            noatime: true,
            ..OpenFlags::read_only()
        };
        self.vfs.open(&self.cred, inode, flags).at(self.place(path))
    }

    /// Writes everything and marks the volume clean. All inodes and handles must be gone.
    ///
    /// # Errors
    /// With the image named.
    pub fn close(&self) -> Result<()> {
        match self.volume.borrow_mut().take() {
            Some(volume) => volume.close().at(self.path.display()),
            None => Ok(()),
        }
    }
}

/// On a way out that is an error already: what was done is kept, and the volume marked clean.
impl Drop for Image {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            crate::failure::print(&e);
        }
    }
}

/// About how many bytes the data of a file have, or of all files at and below a directory: to show how far a command is.
pub fn data_bytes(vfs: &Arc<Vfs>, cred: &Cred, start: InodeRef, path: &[u8]) -> u64 {
    let mut walk = Walker::from_inode(vfs, cred, start, path);
    let mut bytes = 0u64;
    while let Some(step) = walk.step() {
        if let WalkStep::Found(node) = step {
            let attr = vfs.stat(&node.inode);
            if attr.kind == FileKind::Regular {
                // Holes are not copied.
                let stored = attr.blocks512.saturating_mul(512);
                bytes = bytes.saturating_add(attr.size.min(stored));
            }
        }
    }
    bytes
}

/// A path one level down.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last name of a path, without slashes after it; empty for the root.
pub fn last_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    let start = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    &path[start..]
}

/// The images a command has open, each once, so that one command can name an image several times.
pub struct Images {
    access: Access,
    open: Vec<Rc<Image>>,
}

impl Images {
    /// None yet; all will be opened for this.
    pub fn new(access: Access) -> Self {
        Images {
            access,
            open: Vec::new(),
        }
    }

    /// The image at this path.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn get(&mut self, path: &Path) -> Result<Rc<Image>> {
        if let Some(image) = self
            .open
            .iter()
            .find(|image| crate::wall::same_file(image.path(), path))
        {
            return Ok(image.clone());
        }
        let image = Image::open(path, self.access)?;
        self.open.push(image.clone());
        Ok(image)
    }

    /// Adds an image that is open already.
    pub fn add(&mut self, image: Rc<Image>) {
        self.open.push(image);
    }

    /// Closes all.
    ///
    /// # Errors
    /// The first failure; the others are printed.
    pub fn close(self) -> Result<()> {
        let mut result = Ok(());
        for image in &self.open {
            match (image.close(), &result) {
                (Err(e), Ok(())) => result = Err(e),
                (Err(e), Err(_)) => crate::failure::print(&e),
                (Ok(()), _) => {}
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(last_name(b"/a/b//"), b"b");
        assert_eq!(last_name(b"/"), b"");
        assert_eq!(last_name(b"x"), b"x");
    }
}
