//! Where a copy comes from and goes to: a file of the host or one in an image, behind one interface.
//!
//! Not responsible for: the rules of copying (`copy`).

use crate::failure::{At, Failure, Result};
use crate::image::{Image, join};
use blockwright_vfs::{
    CreateRequest, ErrorKind, FileKind, Handle, InodeRef, OpenFlags, SetAttr, SetTime, Timestamp,
    XattrMode,
};
use rustix::fs::{AtFlags, CWD, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Extended attributes: full names and values.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// A file, there or not.
#[derive(Clone)]
pub enum FilePlace {
    /// On the host.
    Host(PathBuf),
    /// In an image, by its path there.
    Inside(Rc<Image>, Vec<u8>),
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId {
    /// The host's device number, or what tells an open image from others.
    volume: (bool, u64),
    ino: u64,
}

/// What is copied of an inode besides its contents.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub id: FileId,
    pub kind: FileKind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u64,
    pub size: u64,
    pub rdev: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilePlace::Host(path) => path.display().fmt(f),
            FilePlace::Inside(image, path) => f.write_str(&image.place(path)),
        }
    }
}

fn host_meta(meta: &std::fs::Metadata) -> Meta {
    let kind = meta.file_type();
    let kind = if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else if kind.is_char_device() {
        FileKind::CharDevice
    } else if kind.is_block_device() {
        FileKind::BlockDevice
    } else if kind.is_fifo() {
        FileKind::Fifo
    } else if kind.is_socket() {
        FileKind::Socket
    } else {
        FileKind::Regular
    };
    let time = |secs, nanos| Timestamp {
        secs,
        nanos: u32::try_from(nanos).unwrap_or(0),
    };
    Meta {
        id: FileId {
            volume: (true, meta.dev()),
            ino: meta.ino(),
        },
        kind,
        perm: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink(),
        size: meta.size(),
        rdev: meta.rdev(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
    }
}

fn inside_meta(image: &Rc<Image>, inode: &InodeRef) -> Meta {
    let attr = image.stat(inode);
    Meta {
        id: FileId {
            volume: (false, Rc::as_ptr(image) as usize as u64),
            ino: attr.ino.0,
        },
        kind: attr.kind,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        nlink: u64::from(attr.nlink),
        size: attr.size,
        rdev: attr.rdev,
        atime: attr.atime,
        mtime: attr.mtime,
    }
}

fn not_found(e: &std::io::Error) -> bool {
    e.kind() == std::io::ErrorKind::NotFound
}

/// Whether the host refuses for want of privilege or of a feature: what a copy by a user who is not
/// root leaves out.
fn host_cannot(e: Errno) -> bool {
    matches!(
        e,
        Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::NOSYS
    )
}

impl FilePlace {
    /// What is there; `None` when nothing is.
    ///
    /// # Errors
    /// With the place named.
    pub fn meta(&self, follow: bool) -> Result<Option<Meta>> {
        match self {
            FilePlace::Host(path) => {
                let found = if follow {
                    std::fs::metadata(path)
                } else {
                    std::fs::symlink_metadata(path)
                };
                match found {
                    Ok(meta) => Ok(Some(host_meta(&meta))),
                    Err(e) if not_found(&e) => Ok(None),
                    Err(e) => Err(Failure::from(e).at(self)),
                }
            }
            FilePlace::Inside(image, path) => {
                let found = image.find(path, follow)?;
                Ok(found.map(|inode| inside_meta(image, &inode)))
            }
        }
    }

    /// The place one level down.
    pub fn join(&self, name: &[u8]) -> FilePlace {
        match self {
            FilePlace::Host(path) => FilePlace::Host(path.join(OsStr::from_bytes(name))),
            FilePlace::Inside(image, path) => FilePlace::Inside(image.clone(), join(path, name)),
        }
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// With the place named.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        match self {
            FilePlace::Host(path) => {
                let mut names = Vec::new();
                for entry in std::fs::read_dir(path).at(self)? {
                    names.push(entry.at(self)?.file_name().into_vec());
                }
                names.sort();
                Ok(names)
            }
            FilePlace::Inside(image, path) => {
                let dir = image.resolve(path, true)?;
                let entries = image.entries(&dir, path)?;
                Ok(entries.into_iter().map(|entry| entry.name).collect())
            }
        }
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// With the place named.
    pub fn target(&self) -> Result<Vec<u8>> {
        match self {
            FilePlace::Host(path) => Ok(std::fs::read_link(path)
                .at(self)?
                .into_os_string()
                .into_vec()),
            FilePlace::Inside(image, path) => {
                let inode = image.resolve(path, false)?;
                image.vfs().read_link(&inode).at(self)
            }
        }
    }

    /// All extended attributes, ACLs included.
    ///
    /// # Errors
    /// With the place named.
    pub fn xattrs(&self) -> Result<Attributes> {
        match self {
            FilePlace::Host(path) => host_xattrs(path).at(self),
            FilePlace::Inside(image, path) => {
                let inode = image.resolve(path, false)?;
                let (vfs, cred) = (image.vfs(), image.cred());
                let names = vfs.list_xattr(cred, &inode).at(self)?;
                names
                    .into_iter()
                    .map(|name| {
                        let value = vfs.get_xattr(cred, &inode, &name).at(self)?;
                        Ok((name, value))
                    })
                    .collect()
            }
        }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// With the place named.
    pub fn reader(&self) -> Result<Reader> {
        match self {
            FilePlace::Host(path) => Ok(Reader::Host(File::open(path).at(self)?)),
            FilePlace::Inside(image, path) => {
                let inode = image.resolve(path, true)?;
                Ok(Reader::Inside(image.open_file(&inode, path)?))
            }
        }
    }

    /// Opens a file for writing, empty, made if it is not there.
    ///
    /// # Errors
    /// With the place named.
    pub fn writer(&self, perm: u32) -> Result<Writer> {
        match self {
            FilePlace::Host(path) => {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(perm)
                    .open(path)
                    .at(self)?;
                Ok(Writer::Host(file))
            }
            FilePlace::Inside(image, path) => {
                let (vfs, cred) = (image.vfs(), image.cred());
                let inode = match image.find(path, true)? {
                    Some(inode) => inode,
                    None => {
                        let (dir, name) = image.resolve_parent(path)?;
                        let request = CreateRequest::new(FileKind::Regular, perm);
                        match vfs.create(cred, &dir, &name, &request) {
                            Ok((inode, _)) => inode,
                            // It is there, but leads nowhere.
                            Err(e) if e.kind() == ErrorKind::Exists => {
                                return Err(
                                    Failure::new("not writing through a dangling symlink").at(self)
                                );
                            }
                            Err(e) => return Err(Failure::from(e).at(self)),
                        }
                    }
                };
                let flags = OpenFlags {
                    write: true,
                    truncate: true,
                    ..OpenFlags::default()
                };
                Ok(Writer::Inside(vfs.open(cred, &inode, flags).at(self)?))
            }
        }
    }

    /// Makes a directory, a symlink, a device, a fifo or a socket.
    ///
    /// # Errors
    /// With the place named.
    pub fn make(&self, kind: FileKind, perm: u32, rdev: u64, target: &[u8]) -> Result<()> {
        match self {
            FilePlace::Host(path) => {
                let mode = Mode::from_raw_mode(perm);
                match kind {
                    FileKind::Directory => rustix::fs::mkdir(path, mode).at(self),
                    FileKind::Symlink => {
                        rustix::fs::symlink(OsStr::from_bytes(target), path).at(self)
                    }
                    kind => {
                        let kind = rustix::fs::FileType::from_raw_mode(kind.mode_bits());
                        rustix::fs::mknodat(CWD, path, kind, mode, rdev).at(self)
                    }
                }
            }
            FilePlace::Inside(image, path) => {
                let (dir, name) = image.resolve_parent(path)?;
                let request = CreateRequest {
                    rdev,
                    symlink: target.to_vec(),
                    ..CreateRequest::new(kind, perm)
                };
                image
                    .vfs()
                    .create(image.cred(), &dir, &name, &request)
                    .at(self)
                    .map(|_| ())
            }
        }
    }

    /// Makes this another name of `other`. `false` when they are on different sides.
    ///
    /// # Errors
    /// With the place named.
    pub fn link_to(&self, other: &FilePlace) -> Result<bool> {
        match (self, other) {
            (FilePlace::Host(new), FilePlace::Host(old)) => {
                rustix::fs::linkat(CWD, old, CWD, new, AtFlags::empty()).at(self)?;
                Ok(true)
            }
            (FilePlace::Inside(image, new), FilePlace::Inside(same, old))
                if Rc::ptr_eq(image, same) =>
            {
                let inode = image.resolve(old, false)?;
                let (dir, name) = image.resolve_parent(new)?;
                image
                    .vfs()
                    .link(image.cred(), &inode, &dir, &name)
                    .at(self)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Removes what is there, if it is no directory.
    ///
    /// # Errors
    /// With the place named.
    pub fn remove(&self) -> Result<()> {
        match self {
            FilePlace::Host(path) => std::fs::remove_file(path).at(self),
            FilePlace::Inside(image, path) => {
                let (dir, name) = image.resolve_parent(path)?;
                image.vfs().unlink(image.cred(), &dir, &name).at(self)
            }
        }
    }

    fn change(&self, request: &SetAttr) -> Result<()> {
        match self {
            FilePlace::Host(_) => Ok(()),
            FilePlace::Inside(image, path) => {
                let inode = image.resolve(path, false)?;
                image
                    .vfs()
                    .set_attr(image.cred(), &inode, request)
                    .at(self)
                    .map(|_| ())
            }
        }
    }

    /// Changes the owner, of a symlink itself. `false` when the host does not let us.
    ///
    /// # Errors
    /// With the place named.
    pub fn set_owner(&self, uid: u32, gid: u32) -> Result<bool> {
        if let FilePlace::Host(path) = self {
            let (uid, gid) = (
                rustix::fs::Uid::from_raw(uid),
                rustix::fs::Gid::from_raw(gid),
            );
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            return match rustix::fs::chownat(CWD, path, Some(uid), Some(gid), flags) {
                Ok(()) => Ok(true),
                Err(e) if host_cannot(e) => Ok(false),
                Err(e) => Err(Failure::from(e).at(self)),
            };
        }
        self.change(&SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        })?;
        Ok(true)
    }

    /// Changes permission bits. Not for symlinks.
    ///
    /// # Errors
    /// With the place named.
    pub fn set_perm(&self, perm: u32) -> Result<()> {
        if let FilePlace::Host(path) = self {
            return rustix::fs::chmod(path, Mode::from_raw_mode(perm)).at(self);
        }
        self.change(&SetAttr {
            mode: Some(perm),
            ..SetAttr::default()
        })
    }

    /// Sets the times, of a symlink itself.
    ///
    /// # Errors
    /// With the place named.
    pub fn set_times(&self, atime: Timestamp, mtime: Timestamp) -> Result<()> {
        if let FilePlace::Host(path) = self {
            let spec = |t: Timestamp| Timespec {
                tv_sec: t.secs,
                tv_nsec: t.nanos.into(),
            };
            let times = Timestamps {
                last_access: spec(atime),
                last_modification: spec(mtime),
            };
            return rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).at(self);
        }
        self.change(&SetAttr {
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        })
    }

    /// Sets an extended attribute, of a symlink itself. `false` when the host does not let us.
    ///
    /// # Errors
    /// With the place and the attribute named.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<bool> {
        let place = || format!("{self}: {}", String::from_utf8_lossy(name));
        match self {
            FilePlace::Host(path) => {
                let name = OsStr::from_bytes(name);
                match rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
                    Ok(()) => Ok(true),
                    Err(e) if host_cannot(e) => Ok(false),
                    Err(e) => Err(Failure::from(e).at(place())),
                }
            }
            FilePlace::Inside(image, path) => {
                let inode = image.resolve(path, false)?;
                image
                    .vfs()
                    .set_xattr(image.cred(), &inode, name, value, XattrMode::Any)
                    .at(place())?;
                Ok(true)
            }
        }
    }
}

/// The attributes of a host's file, of a symlink itself.
fn host_xattrs(path: &std::path::Path) -> std::result::Result<Attributes, Errno> {
    // No list and no value is larger on Linux.
    const BYTES_MAX: usize = 65_536;
    let mut buffer = vec![0u8; BYTES_MAX];
    let names = match rustix::fs::llistxattr(path, &mut buffer[..]) {
        Ok(bytes) => buffer[..bytes].to_vec(),
        Err(e) if host_cannot(e) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut all = Vec::new();
    for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let key = OsString::from_vec(name.to_vec());
        match rustix::fs::lgetxattr(path, &*key, &mut buffer[..]) {
            Ok(bytes) => all.push((name.to_vec(), buffer[..bytes].to_vec())),
            Err(e) if e == Errno::NODATA || host_cannot(e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// A file open for reading.
pub enum Reader {
    Host(File),
    Inside(Arc<Handle>),
}

impl Reader {
    /// The next stretch that has data at or after `offset`, within `size`.
    pub fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        if offset >= size {
            return Ok(None);
        }
        let (start, end) = match self {
            Reader::Host(file) => {
                let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
                    Ok(start) => start,
                    Err(Errno::NXIO) => return Ok(None),
                    // The host's file system does not know: it is all data.
                    Err(_) => return Ok(Some(offset..size)),
                };
                (
                    start,
                    rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size),
                )
            }
            Reader::Inside(handle) => {
                let start = match handle.seek_data(offset) {
                    Ok(start) => start,
                    Err(e) if e.kind() == ErrorKind::NoData => return Ok(None),
                    Err(e) => return Err(e.into()),
                };
                (start, handle.seek_hole(start)?)
            }
        };
        if start >= size || end <= start {
            return Ok(None);
        }
        Ok(Some(start..end.min(size)))
    }

    /// Copies all of it to a file of the same image, holes and unwritten blocks as such. `false` when they are
    /// not in one image: then nothing was done.
    pub fn copy_inside(&self, to: &Writer, size: u64) -> Result<bool> {
        let (Reader::Inside(from), Writer::Inside(to)) = (self, to) else {
            return Ok(false);
        };
        let mut at = 0;
        while at < size {
            match from.copy_range(at, to, at, size - at) {
                // Another image's.
                Err(e) if at == 0 && e.kind() == ErrorKind::CrossDevice => return Ok(false),
                // Cut by somebody while it was copied.
                Ok(0) if from.inode().size() <= at => break,
                Ok(0) => return Err(Failure::new(ErrorKind::NoSpace)),
                Ok(n) => at += n,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// Reads at an offset; 0 at the end.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Reader::Host(file) => Ok(file.read_at(buffer, offset)?),
            Reader::Inside(handle) => Ok(handle.read_at(buffer, offset)?),
        }
    }
}

/// A file open for writing.
pub enum Writer {
    Host(File),
    Inside(Arc<Handle>),
}

impl Writer {
    /// Writes all of it.
    pub fn write_at(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        match self {
            Writer::Host(file) => Ok(file.write_all_at(bytes, offset)?),
            Writer::Inside(handle) => {
                while !bytes.is_empty() {
                    let written = handle.write_at(bytes, offset)?;
                    if written == 0 {
                        return Err(Failure::new(ErrorKind::NoSpace));
                    }
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Ok(())
            }
        }
    }

    /// Gives the file its size, which a hole at its end would leave short.
    pub fn set_len(&self, size: u64) -> Result<()> {
        match self {
            // A device or a pipe has none.
            Writer::Host(file) if !file.metadata()?.is_file() => Ok(()),
            Writer::Host(file) => Ok(file.set_len(size)?),
            Writer::Inside(handle) => Ok(handle.set_len(size)?),
        }
    }
}
