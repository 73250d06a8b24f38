//! The functions of [`std::fs`] for a volume: methods that take paths.

use crate::{
    DirStream, Error, ErrorKind, File, FileType, Metadata, OpenOptions, ReadDir, RenameMode,
    Result, Times, Volume, Walk, XattrMode,
    walk::{WalkStep, Walker},
};
use blockwright_device::os_name;
use blockwright_vfs::{CreateRequest, FileKind, InodeRef, OpenFlags, SetAttr};
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

fn bytes(path: &Path) -> &[u8] {
    os_name::bytes(path)
}

impl Volume {
    fn find(&self, path: &Path, follow: bool) -> Result<InodeRef> {
        Ok(self.vfs().resolve(self.cred(), bytes(path), follow)?)
    }

    /// Runs `f` and adds the path to its error.
    fn with<R>(path: impl AsRef<Path>, f: impl FnOnce(&Path) -> Result<R>) -> Result<R> {
        let path = path.as_ref();
        f(path).map_err(|e| e.at(path))
    }

    fn make(&self, path: &Path, request: &CreateRequest) -> Result<InodeRef> {
        let (dir, name) = self.vfs().resolve_parent(self.cred(), bytes(path))?;
        Ok(self.vfs().create(self.cred(), &dir, &name, request)?.0)
    }

    /// Attributes; a symbolic link at the path's end is followed.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`, `TooManySymlinks`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Self::with(path, |p| {
            Ok(Metadata(self.vfs().stat(&self.find(p, true)?)))
        })
    }

    /// Attributes; a symbolic link at the path's end is not followed.
    ///
    /// # Errors
    /// As [`Volume::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Self::with(path, |p| {
            Ok(Metadata(self.vfs().stat(&self.find(p, false)?)))
        })
    }

    /// Whether there is something at this path.
    ///
    /// # Errors
    /// Whatever keeps it from being known.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` when it is not one.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        Self::with(path, |p| {
            let target = self.vfs().read_link(&self.find(p, false)?)?;
            Ok(PathBuf::from(os_name::of_vec(target)))
        })
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir<'_>> {
        Self::with(path, |p| ReadDir::new(self, p))
    }

    /// The entries of a directory, in a listing that does not borrow the volume.
    ///
    /// # Errors
    /// As [`Volume::read_dir`].
    pub fn dir_stream(&self, path: impl AsRef<Path>) -> Result<DirStream> {
        Self::with(path, |p| DirStream::new(self, p))
    }

    /// Everything at and below a path, directories before what is in them, in byte order.
    pub fn walk(&self, path: impl AsRef<Path>) -> Walk<'_> {
        Walk::new(self, path.as_ref())
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `AccessDenied`.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Makes a file, or cuts the one that is there to nothing, and opens it for reading and writing.
    ///
    /// # Errors
    /// `NotFound` when the directory is missing, `IsDirectory`, `ReadOnly`, `NoSpace`.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self, path)
    }

    /// All bytes of a file.
    ///
    /// # Errors
    /// As [`Volume::open_file`] and reading.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        Self::with(path, |p| {
            let file = self.open_file(p)?;
            let size = usize::try_from(file.metadata()?.len())
                .map_err(|_| Error::new(ErrorKind::TooBig, "the file does not fit into memory"))?;
            let mut out = Vec::new();
            out.try_reserve_exact(size)
                .map_err(|_| Error::new(ErrorKind::TooBig, "the file does not fit into memory"))?;
            out.resize(size, 0);
            let mut at = 0;
            while at < out.len() {
                let n = file.read_at(&mut out[at..], at as u64)?;
                if n == 0 {
                    break;
                }
                at += n;
            }
            out.truncate(at);
            Ok(out)
        })
    }

    /// All of a file, as text.
    ///
    /// # Errors
    /// As [`Volume::read`]; `Invalid` when the file is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let bytes = self.read(&path)?;
        String::from_utf8(bytes)
            .map_err(|_| Error::new(ErrorKind::Invalid, "the file is not UTF-8").at(path))
    }

    /// Makes a file of these bytes, replacing the contents of one that is there.
    ///
    /// # Errors
    /// As [`Volume::create_file`] and writing.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        Self::with(path, |p| {
            self.create_file(p)?.write_all_at(contents.as_ref(), 0)
        })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`, `NotFound` when its parent is missing, `NoSpace`, `ReadOnly`.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_mode(path, 0o755)
    }

    /// Makes a directory with these permission bits.
    ///
    /// # Errors
    /// As [`Volume::create_dir`].
    pub fn create_dir_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        Self::with(path, |p| {
            self.make(p, &CreateRequest::new(FileKind::Directory, mode))
                .map(|_| ())
        })
    }

    /// Makes a directory and all missing ones above it.
    ///
    /// # Errors
    /// As [`Volume::create_dir`]; `NotDirectory` when something else is in the way.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (vfs, cred) = (self.vfs(), self.cred());
        // From directory to directory: looking each up from the root would cost the square of the depth.
        let mut dir = Self::with(path, |_| Ok(vfs.root()?))?;
        let mut done = PathBuf::from("/");
        for part in path.components() {
            let name = match part {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
                Component::ParentDir => OsStr::new(".."),
                Component::Normal(name) => name,
            };
            done.push(name);
            let name = os_name::bytes(name);
            let request = CreateRequest::new(FileKind::Directory, 0o755);
            let found = match vfs.resolve_at(cred, &dir, name, true) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    match vfs.create(cred, &dir, name, &request) {
                        // Another thread made it.
                        Err(e) if e.kind() == ErrorKind::Exists => {
                            vfs.resolve_at(cred, &dir, name, true)
                        }
                        made => made.map(|(inode, _)| inode),
                    }
                }
                found => found,
            };
            dir = found.map_err(|e| Error::from(e).at(&done))?;
            if dir.kind() != FileKind::Directory {
                return Err(Error::new(
                    ErrorKind::NotDirectory,
                    "something other than a directory is in the way",
                )
                .at(&done));
            }
        }
        Ok(())
    }

    /// Makes a fifo, socket or device file. `rdev` is a device number as `makedev` codes it.
    ///
    /// # Errors
    /// As [`Volume::create_dir`]; `Invalid` for other kinds.
    pub fn mknod(
        &self,
        path: impl AsRef<Path>,
        kind: FileType,
        mode: u32,
        rdev: u64,
    ) -> Result<()> {
        Self::with(path, |p| {
            if matches!(kind, FileKind::Directory | FileKind::Symlink) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "directories and links are made otherwise",
                ));
            }
            let mut request = CreateRequest::new(kind, mode);
            request.rdev = rdev;
            self.make(p, &request).map(|_| ())
        })
    }

    /// Makes a symbolic link at `link` to `target`, which may be any text.
    ///
    /// # Errors
    /// As [`Volume::create_dir`]; `NameTooLong`.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        Self::with(link, |p| {
            let mut request = CreateRequest::new(FileKind::Symlink, 0o777);
            request.symlink = bytes(target.as_ref()).to_vec();
            self.make(p, &request).map(|_| ())
        })
    }

    /// Gives the file at `original` another name, `link`. Symbolic links are not followed.
    ///
    /// # Errors
    /// `NotPermitted` for directories, `TooManyLinks`, `Exists`, `NoSpace`.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let inode = Self::with(original, |p| self.find(p, false))?;
        Self::with(link, |p| {
            let (dir, name) = self.vfs().resolve_parent(self.cred(), bytes(p))?;
            Ok(self.vfs().link(self.cred(), &inode, &dir, &name)?)
        })
    }

    /// Removes a name of something that is not a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `ReadOnly`.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        Self::with(path, |p| {
            let (dir, name) = self.vfs().resolve_parent(self.cred(), bytes(p))?;
            Ok(self.vfs().unlink(self.cred(), &dir, &name)?)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty`, `NotFound`, `NotDirectory`, `ReadOnly`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        Self::with(path, |p| {
            let (dir, name) = self.vfs().resolve_parent(self.cred(), bytes(p))?;
            Ok(self.vfs().rmdir(self.cred(), &dir, &name)?)
        })
    }

    /// Removes whatever is at a path, directories with everything in them. Symbolic links are removed,
    /// not followed.
    ///
    /// # Errors
    /// As [`Volume::remove_file`] and [`Volume::remove_dir`]; what was removed by then stays so.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if !self.symlink_metadata(path)?.is_dir() {
            return self.remove_file(path);
        }
        let mut walk = Walker::new(self.vfs(), self.cred(), bytes(path))?;
        while let Some(step) = walk.step() {
            let at = |e: blockwright_vfs::Error, walk: &Walker<'_>| {
                Error::from(e).at(Path::new(&*os_name::of(walk.path())))
            };
            match step {
                WalkStep::Failed(e) => return Err(e),
                WalkStep::Found(node) if node.inode.kind() == FileKind::Directory => {}
                WalkStep::Found(node) => {
                    let Some(dir) = walk.parent()? else {
                        break;
                    };
                    drop(node);
                    self.vfs()
                        .unlink(self.cred(), &dir, walk.name())
                        .map_err(|e| at(e, &walk))?;
                }
                WalkStep::Left(node) => {
                    let Some(dir) = walk.parent()? else {
                        break;
                    };
                    drop(node);
                    self.vfs()
                        .rmdir(self.cred(), &dir, walk.name())
                        .map_err(|e| at(e, &walk))?;
                }
            }
        }
        self.remove_dir(path)
    }

    /// Renames, replacing what is at the new path.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `IsDirectory`, `NotDirectory`, `Invalid` for a directory into itself.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames in another way: not replacing, or exchanging.
    ///
    /// # Errors
    /// As [`Volume::rename`]; `Exists`.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<()> {
        Self::with(from, |from| {
            let (old_dir, old) = self.vfs().resolve_parent(self.cred(), bytes(from))?;
            let (new_dir, new) = Self::with(to, |p| {
                Ok(self.vfs().resolve_parent(self.cred(), bytes(p))?)
            })?;
            Ok(self
                .vfs()
                .rename(self.cred(), &old_dir, &old, &new_dir, &new, mode)?)
        })
    }

    /// Copies a file's bytes, holes kept, and its permission bits, within the volume; returns how many
    /// bytes it has.
    ///
    /// # Errors
    /// As opening, making, reading and writing.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open_file(from)?;
        let metadata = source.metadata()?;
        let target = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(metadata.permissions())
            .open(self, to)?;
        let size = metadata.len();
        let mut at = 0;
        while at < size {
            let n = source
                .copy_range(at, &target, at, size - at)
                .map_err(|e| e.at(to))?;
            // Either it became shorter meanwhile, or there is no room.
            if n == 0 && source.metadata().map_err(|e| e.at(from))?.len() > at {
                return Err(Error::new(ErrorKind::NoSpace, "the volume is full").at(to));
            }
            if n == 0 {
                break;
            }
            at += n;
        }
        Ok(at)
    }

    fn change(&self, path: impl AsRef<Path>, follow: bool, change: &SetAttr) -> Result<()> {
        Self::with(path, |p| {
            let inode = self.find(p, follow)?;
            self.vfs().set_attr(self.cred(), &inode, change)?;
            Ok(())
        })
    }

    /// Sets the permission bits (`0o7777`).
    ///
    /// # Errors
    /// `NotPermitted`, `ReadOnly`, `NotFound`.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.change(
            path,
            true,
            &SetAttr {
                mode: Some(mode & 0o7777),
                ..SetAttr::default()
            },
        )
    }

    /// Sets owner and group; `None` leaves one as it is. A symbolic link at the path's end is followed.
    ///
    /// # Errors
    /// As [`Volume::set_permissions`].
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(
            path,
            true,
            &SetAttr {
                uid,
                gid,
                ..SetAttr::default()
            },
        )
    }

    /// As [`Volume::chown`], of a symbolic link itself.
    ///
    /// # Errors
    /// As [`Volume::set_permissions`].
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(
            path,
            false,
            &SetAttr {
                uid,
                gid,
                ..SetAttr::default()
            },
        )
    }

    /// Sets times. A symbolic link at the path's end is followed.
    ///
    /// # Errors
    /// As [`Volume::set_permissions`].
    pub fn set_times(&self, path: impl AsRef<Path>, times: Times) -> Result<()> {
        let change = SetAttr {
            atime: times.atime,
            mtime: times.mtime,
            ..SetAttr::default()
        };
        self.change(path, true, &change)
    }

    /// As [`Volume::set_times`], of a symbolic link itself.
    ///
    /// # Errors
    /// As [`Volume::set_permissions`].
    pub fn set_symlink_times(&self, path: impl AsRef<Path>, times: Times) -> Result<()> {
        let change = SetAttr {
            atime: times.atime,
            mtime: times.mtime,
            ..SetAttr::default()
        };
        self.change(path, false, &change)
    }

    /// Cuts or extends a file.
    ///
    /// # Errors
    /// `IsDirectory`, `FileTooLarge`, `NoSpace`, `ReadOnly`.
    pub fn set_len(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        Self::with(path, |p| {
            let inode = self.find(p, true)?;
            let handle = self
                .vfs()
                .open(self.cred(), &inode, OpenFlags::read_write())?;
            Ok(handle.set_len(size)?)
        })
    }

    /// The value of an extended attribute, by its full name (`user.x`). Symbolic links are not followed.
    ///
    /// # Errors
    /// `NoAttribute`, `Unsupported`.
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        Self::with(path, |p| {
            let inode = self.find(p, false)?;
            Ok(self
                .vfs()
                .get_xattr(self.cred(), &inode, os_name::bytes(name.as_ref()))?)
        })
    }

    /// Sets an extended attribute. Symbolic links are not followed.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` as `mode` demands, `NoSpace`, `NotPermitted`, `Unsupported`, `TooBig`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        Self::with(path, |p| {
            let inode = self.find(p, false)?;
            let name = os_name::bytes(name.as_ref());
            Ok(self
                .vfs()
                .set_xattr(self.cred(), &inode, name, value.as_ref(), mode)?)
        })
    }

    /// Removes an extended attribute. Symbolic links are not followed.
    ///
    /// # Errors
    /// `NoAttribute`, `NotPermitted`.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        Self::with(path, |p| {
            let inode = self.find(p, false)?;
            Ok(self
                .vfs()
                .remove_xattr(self.cred(), &inode, os_name::bytes(name.as_ref()))?)
        })
    }

    /// The full names of all extended attributes, in byte order. Symbolic links are not followed.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub fn list_xattr(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        Self::with(path, |p| {
            let inode = self.find(p, false)?;
            let mut names = self.vfs().list_xattr(self.cred(), &inode)?;
            names.sort_unstable();
            Ok(names.into_iter().map(os_name::of_vec).collect())
        })
    }
}
