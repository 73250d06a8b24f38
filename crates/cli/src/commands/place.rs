//! Where a copy comes from and goes to: a file of the host or one in an image, behind one interface.
//!
//! Not responsible for: the rules of copying (`copy`).

use crate::commands::streams::{Reader, Writer};
use crate::devices::HostFile;
use crate::failure::{At, Failure, Result};
use crate::image::{Image, join};
use blockwright_vfs::{
    CreateRequest, ErrorKind, FileKind, Ino, InodeRef, OpenFlags, SetAttr, SetTime, Timestamp,
    XattrMode,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Extended attributes: full names and values.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// A file, there or not.
///
/// In a tree it is found from its directory, by descriptor or inode: paths from the top may be longer than the host
/// takes, and looking them up would cost the square of the depth.
#[derive(Clone)]
pub enum FilePlace {
    /// On the host.
    Host(HostPlace),
    /// In an image.
    Inside(Rc<Image>, InsidePlace),
}

/// A file of the host.
#[derive(Clone)]
pub struct HostPlace {
    /// The directory that `path` begins in; the working directory without it.
    dir: Option<Rc<OwnedFd>>,
    path: PathBuf,
    /// The path for messages.
    shown: PathBuf,
}

/// A file in an image.
#[derive(Clone)]
pub struct InsidePlace {
    /// The file, where a walk has found it.
    inode: Option<InodeRef>,
    /// The directory that `path` begins in; the root without it.
    dir: Option<InodeRef>,
    path: Vec<u8>,
    /// The path for messages.
    shown: Vec<u8>,
}

/// A file that has further names, as it is found for them.
#[derive(Clone)]
pub enum LinkTarget {
    /// By its path.
    Host(PathBuf),
    /// By its inode.
    Inside(Rc<Image>, Ino),
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId {
    /// The host's device number, or an identity of an open image.
    volume: (bool, u64),
    ino: u64,
}

impl Meta {
    /// Which file of the host it is, if it is one.
    pub fn host_file(&self) -> Option<HostFile> {
        let (on_host, volume) = self.id.volume;
        on_host.then_some(match self.kind {
            FileKind::BlockDevice => HostFile::BlockDevice(self.rdev),
            _ => HostFile::Inode(volume, self.id.ino),
        })
    }
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
            FilePlace::Host(host) => host.shown.display().fmt(f),
            FilePlace::Inside(image, inside) => f.write_str(&image.place(&inside.shown)),
        }
    }
}

fn host_meta(stat: &Stat) -> Meta {
    use rustix::fs::FileType as T;
    let kind = match T::from_raw_mode(stat.st_mode) {
        T::Directory => FileKind::Directory,
        T::Symlink => FileKind::Symlink,
        T::CharacterDevice => FileKind::CharDevice,
        T::BlockDevice => FileKind::BlockDevice,
        T::Fifo => FileKind::Fifo,
        T::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    };
    // The types of the fields differ between processors.
    #[allow(clippy::unnecessary_cast)]
    let time = |secs, nanos: i64| Timestamp {
        secs,
        nanos: u32::try_from(nanos).unwrap_or(0),
    };
    #[allow(clippy::unnecessary_cast)]
    Meta {
        id: FileId {
            volume: (true, stat.st_dev as u64),
            ino: stat.st_ino as u64,
        },
        kind,
        perm: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: stat.st_nlink as u64,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        rdev: stat.st_rdev as u64,
        atime: time(stat.st_atime as i64, stat.st_atime_nsec as i64),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
    }
}

/// What is copied of an inode in an image.
pub fn inside_meta(image: &Rc<Image>, inode: &InodeRef) -> Meta {
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

/// Whether the host refuses for lack of privilege or of a feature: what a copy by a user who is not
/// root leaves out.
fn host_cannot(e: Errno) -> bool {
    matches!(
        e,
        Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::NOSYS
    )
}

impl HostPlace {
    fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(CWD, |dir| dir.as_fd())
    }

    /// A path for system calls that know no directories' descriptors.
    fn whole(&self) -> PathBuf {
        match &self.dir {
            Some(dir) => Path::new("/proc/self/fd")
                .join(dir.as_raw_fd().to_string())
                .join(&self.path),
            None => self.path.clone(),
        }
    }

    fn open(&self, flags: OFlags, perm: u32) -> std::result::Result<File, Errno> {
        let mode = Mode::from_raw_mode(perm);
        let fd = rustix::fs::openat(self.dir(), &self.path, flags | OFlags::CLOEXEC, mode)?;
        Ok(File::from(fd))
    }

    fn unlink(&self) -> std::result::Result<(), Errno> {
        rustix::fs::unlinkat(self.dir(), &self.path, AtFlags::empty())
    }
}

/// Opens the directory that a path's last name is in, however long the path is.
fn host_parent(path: &Path) -> std::result::Result<(Option<OwnedFd>, PathBuf), Errno> {
    /// Less than the host takes in one call.
    const PART_MAX: usize = 2048;
    let mut dir: Option<OwnedFd> = None;
    let mut rest = path.as_os_str().as_bytes();
    while rest.len() > PART_MAX {
        let cut = match rest[..PART_MAX].iter().rposition(|&b| b == b'/') {
            Some(cut) if cut > 0 => cut,
            _ => return Err(Errno::NAMETOOLONG),
        };
        let part = OsStr::from_bytes(&rest[..cut]);
        let at = dir.as_ref().map_or(CWD, |dir| dir.as_fd());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        dir = Some(rustix::fs::openat(at, part, flags, Mode::empty())?);
        rest = &rest[cut + 1..];
    }
    Ok((dir, PathBuf::from(OsStr::from_bytes(rest))))
}

impl FilePlace {
    /// A file of the host by its path.
    pub fn host(path: &Path) -> Self {
        FilePlace::Host(HostPlace {
            dir: None,
            path: path.to_owned(),
            shown: path.to_owned(),
        })
    }

    /// A file of the host by its name in a directory.
    pub fn host_in(dir: Rc<OwnedFd>, name: &[u8], shown: PathBuf) -> Self {
        FilePlace::Host(HostPlace {
            dir: Some(dir),
            path: PathBuf::from(OsStr::from_bytes(name)),
            shown,
        })
    }

    /// A file in an image by its path.
    pub fn inside(image: Rc<Image>, path: &[u8]) -> Self {
        let place = InsidePlace {
            inode: None,
            dir: None,
            path: path.to_vec(),
            shown: path.to_vec(),
        };
        FilePlace::Inside(image, place)
    }

    /// A file in an image by its name in a directory.
    pub fn inside_in(image: Rc<Image>, dir: InodeRef, name: &[u8], shown: Vec<u8>) -> Self {
        let place = InsidePlace {
            inode: None,
            dir: Some(dir),
            path: name.to_vec(),
            shown,
        };
        FilePlace::Inside(image, place)
    }

    /// The same place in an image, where this inode was found.
    pub fn with_inode(mut self, inode: &InodeRef) -> Self {
        if let FilePlace::Inside(_, place) = &mut self {
            place.inode = Some(inode.clone());
        }
        self
    }

    /// The path as it is shown, without the image's.
    pub fn path(&self) -> &[u8] {
        match self {
            FilePlace::Host(host) => host.shown.as_os_str().as_bytes(),
            FilePlace::Inside(_, inside) => &inside.shown,
        }
    }

    /// What is there; `None` when nothing is.
    ///
    /// # Errors
    /// With the place named.
    pub fn meta(&self, follow: bool) -> Result<Option<Meta>> {
        match self {
            FilePlace::Host(host) => {
                let flags = if follow {
                    AtFlags::empty()
                } else {
                    AtFlags::SYMLINK_NOFOLLOW
                };
                match rustix::fs::statat(host.dir(), &host.path, flags) {
                    Ok(stat) => Ok(Some(host_meta(&stat))),
                    Err(Errno::NOENT) => Ok(None),
                    Err(e) => Err(Failure::from(e).at(self)),
                }
            }
            FilePlace::Inside(image, inside) => {
                let found = self.find(image, inside, follow)?;
                Ok(found.map(|inode| inside_meta(image, &inode)))
            }
        }
    }

    /// The inode at a place in an image; `None` when there is none.
    fn find(&self, image: &Image, at: &InsidePlace, follow: bool) -> Result<Option<InodeRef>> {
        if let Some(inode) = &at.inode
            && !(follow && inode.kind() == FileKind::Symlink)
        {
            return Ok(Some(inode.clone()));
        }
        let Some(dir) = &at.dir else {
            return image.find(&at.path, follow);
        };
        let found = image.vfs().resolve_at(image.cred(), dir, &at.path, follow);
        match found {
            Ok(inode) => Ok(Some(inode)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Failure::from(e).at(self)),
        }
    }

    /// The inode at a place in an image.
    fn inode(&self, image: &Image, at: &InsidePlace, follow: bool) -> Result<InodeRef> {
        match (&at.dir, &at.inode) {
            (None, None) => image.resolve(&at.path, follow),
            _ => self
                .find(image, at, follow)?
                .ok_or_else(|| Failure::new(ErrorKind::NotFound).at(self)),
        }
    }

    /// The directory of a place in an image, and the name there.
    fn parent(image: &Image, at: &InsidePlace) -> Result<(InodeRef, Vec<u8>)> {
        match &at.dir {
            Some(dir) => Ok((dir.clone(), at.path.clone())),
            None => image.resolve_parent(&at.path),
        }
    }

    /// The directory at this place, to find what is in it.
    ///
    /// # Errors
    /// With the place named.
    pub fn inside_dir(&self) -> Result<Option<(Rc<Image>, InodeRef)>> {
        match self {
            FilePlace::Host(_) => Ok(None),
            FilePlace::Inside(image, inside) => {
                let dir = self.inode(image, inside, true)?;
                Ok(Some((image.clone(), dir)))
            }
        }
    }

    /// Opens the host's directory at this place, to find what is in it. A symlink is followed only where an operand
    /// names it.
    ///
    /// # Errors
    /// With the place named.
    pub fn host_dir(&self) -> Result<Option<OwnedFd>> {
        let FilePlace::Host(host) = self else {
            return Ok(None);
        };
        let mut flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, host.dir.is_some());
        let fd = rustix::fs::openat(host.dir(), &host.path, flags, Mode::empty()).at(self)?;
        Ok(Some(fd))
    }

    /// The place one level down of what an operand names.
    pub fn join(&self, name: &[u8]) -> FilePlace {
        match self {
            FilePlace::Host(host) => {
                let name = OsStr::from_bytes(name);
                FilePlace::Host(HostPlace {
                    dir: host.dir.clone(),
                    path: host.path.join(name),
                    shown: host.shown.join(name),
                })
            }
            FilePlace::Inside(image, inside) => {
                let place = InsidePlace {
                    inode: None,
                    dir: inside.dir.clone(),
                    path: join(&inside.path, name),
                    shown: join(&inside.shown, name),
                };
                FilePlace::Inside(image.clone(), place)
            }
        }
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// With the place named.
    pub fn target(&self) -> Result<Vec<u8>> {
        match self {
            FilePlace::Host(host) => {
                let target = rustix::fs::readlinkat(host.dir(), &host.path, Vec::new()).at(self)?;
                Ok(target.into_bytes())
            }
            FilePlace::Inside(image, inside) => {
                let inode = self.inode(image, inside, false)?;
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
            FilePlace::Host(host) => host_xattrs(&host.whole()).at(self),
            FilePlace::Inside(image, inside) => {
                let inode = self.inode(image, inside, false)?;
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
            FilePlace::Host(host) => Ok(Reader::Host(host.open(OFlags::RDONLY, 0).at(self)?)),
            FilePlace::Inside(image, inside) => {
                let inode = self.inode(image, inside, true)?;
                Ok(Reader::Inside(image.open_file(&inode, &inside.shown)?))
            }
        }
    }

    /// Opens a file for writing, empty, made if it is not there. With `force`, a file of the host that cannot be opened
    /// is removed first.
    ///
    /// # Errors
    /// With the place named.
    pub fn writer(&self, perm: u32, force: bool) -> Result<Writer> {
        match self {
            FilePlace::Host(host) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
                let file = match host.open(flags, perm) {
                    Err(Errno::ACCESS | Errno::TXTBSY | Errno::PERM) if force => {
                        host.unlink().at(self)?;
                        host.open(flags | OFlags::EXCL, perm)
                    }
                    opened => opened,
                };
                Ok(Writer::Host(file.at(self)?))
            }
            FilePlace::Inside(image, inside) => {
                let (vfs, cred) = (image.vfs(), image.cred());
                let inode = match self.find(image, inside, true)? {
                    Some(inode) => inode,
                    None => {
                        let (dir, name) = Self::parent(image, inside)?;
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
            FilePlace::Host(host) => {
                let (dir, path, mode) = (host.dir(), &host.path, Mode::from_raw_mode(perm));
                match kind {
                    FileKind::Directory => rustix::fs::mkdirat(dir, path, mode).at(self),
                    FileKind::Symlink => {
                        rustix::fs::symlinkat(OsStr::from_bytes(target), dir, path).at(self)
                    }
                    kind => {
                        let kind = rustix::fs::FileType::from_raw_mode(kind.mode_bits());
                        rustix::fs::mknodat(dir, path, kind, mode, rdev).at(self)
                    }
                }
            }
            FilePlace::Inside(image, inside) => {
                let (dir, name) = Self::parent(image, inside)?;
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

    /// How further names of this file find it.
    ///
    /// # Errors
    /// With the place named.
    pub fn link_target(&self) -> Result<LinkTarget> {
        match self {
            FilePlace::Host(host) => Ok(LinkTarget::Host(host.shown.clone())),
            FilePlace::Inside(image, inside) => {
                let inode = self.inode(image, inside, false)?;
                Ok(LinkTarget::Inside(image.clone(), inode.ino()))
            }
        }
    }

    /// Makes this another name of `other`. `false` when they are on different sides.
    ///
    /// # Errors
    /// With the place named.
    pub fn link_to(&self, other: &LinkTarget) -> Result<bool> {
        match (self, other) {
            (FilePlace::Host(new), LinkTarget::Host(old)) => {
                let (dir, name) = host_parent(old).at(self)?;
                let old_dir = dir.as_ref().map_or(CWD, |dir| dir.as_fd());
                let flags = AtFlags::empty();
                rustix::fs::linkat(old_dir, &name, new.dir(), &new.path, flags).at(self)?;
                Ok(true)
            }
            (FilePlace::Inside(image, new), LinkTarget::Inside(same, ino))
                if Rc::ptr_eq(image, same) =>
            {
                let vfs = image.vfs();
                let inode = vfs.inode(*ino).at(self)?;
                let (dir, name) = Self::parent(image, new)?;
                vfs.link(image.cred(), &inode, &dir, &name).at(self)?;
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
            FilePlace::Host(host) => host.unlink().at(self),
            FilePlace::Inside(image, inside) => {
                let (dir, name) = Self::parent(image, inside)?;
                image.vfs().unlink(image.cred(), &dir, &name).at(self)
            }
        }
    }

    fn change(&self, request: &SetAttr) -> Result<()> {
        match self {
            FilePlace::Host(_) => Ok(()),
            FilePlace::Inside(image, inside) => {
                let inode = self.inode(image, inside, false)?;
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
        if let FilePlace::Host(host) = self {
            let (uid, gid) = (
                rustix::fs::Uid::from_raw(uid),
                rustix::fs::Gid::from_raw(gid),
            );
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let changed = rustix::fs::chownat(host.dir(), &host.path, Some(uid), Some(gid), flags);
            return match changed {
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
        if let FilePlace::Host(host) = self {
            let mode = Mode::from_raw_mode(perm);
            return rustix::fs::chmodat(host.dir(), &host.path, mode, AtFlags::empty()).at(self);
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
        if let FilePlace::Host(host) = self {
            let spec = |t: Timestamp| Timespec {
                tv_sec: t.secs,
                tv_nsec: t.nanos.into(),
            };
            let times = Timestamps {
                last_access: spec(atime),
                last_modification: spec(mtime),
            };
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            return rustix::fs::utimensat(host.dir(), &host.path, &times, flags).at(self);
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
            FilePlace::Host(host) => {
                let name = OsStr::from_bytes(name);
                match rustix::fs::lsetxattr(host.whole(), name, value, XattrFlags::empty()) {
                    Ok(()) => Ok(true),
                    Err(e) if host_cannot(e) => Ok(false),
                    Err(e) => Err(Failure::from(e).at(place())),
                }
            }
            FilePlace::Inside(image, inside) => {
                let inode = self.inode(image, inside, false)?;
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
