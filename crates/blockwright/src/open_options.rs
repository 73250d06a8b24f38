//! How a file is opened.

use crate::setters::setters;
use crate::{Error, ErrorKind, File, Result, Volume};
use blockwright_device::os_name;
use blockwright_vfs::{CreateRequest, FileKind, OpenFlags, SyncMode};
use std::path::Path;

/// How a file is opened, as [`std::fs::OpenOptions`]. Starts with everything off.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    flags: OpenFlags,
    create: bool,
    create_new: bool,
    mode: u32,
    follow: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Everything off; new files get mode 0644.
    #[must_use]
    pub fn new() -> Self {
        OpenOptions {
            flags: OpenFlags::default(),
            create: false,
            create_new: false,
            mode: 0o644,
            follow: true,
        }
    }

    setters! { &mut
        /// For reading.
        read(on: bool) { flags.read = on; }
        /// For writing.
        write(on: bool) { flags.write = on; }
    }

    /// For writing at the end, wherever that is at the time of each write.
    pub fn append(&mut self, on: bool) -> &mut Self {
        self.flags.append = on;
        if on {
            self.flags.write = true;
        }
        self
    }

    setters! { &mut
        /// Cut to nothing on opening.
        truncate(on: bool) { flags.truncate = on; }
        /// Make the file when it is not there.
        create(on: bool) { create = on; }
        /// Make the file; fail when it is there.
        create_new(on: bool) { create_new = on; }
        /// Permission bits of a file that is made.
        mode(mode: u32) { mode = mode; }
        /// Bypass the page cache where alignment allows.
        direct(on: bool) { flags.direct = on; }
        /// What every write waits for.
        sync(mode: SyncMode) { flags.sync = mode; }
        /// Leave the access time alone when reading.
        noatime(on: bool) { flags.noatime = on; }
        /// Follow a symbolic link at the path's end (the default).
        follow(on: bool) { follow = on; }
    }

    /// Opens a file of `volume`.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `IsDirectory`, `AccessDenied`, `ReadOnly`, `Invalid` for contradictory
    /// options.
    pub fn open(&self, volume: &Volume, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        self.open_inner(volume, path).map_err(|e| e.at(path))
    }

    fn open_inner(&self, volume: &Volume, path: &Path) -> Result<File> {
        let (vfs, cred) = (volume.vfs(), volume.cred());
        let bytes = os_name::bytes(path);
        let making = self.create || self.create_new;
        let writes = self.flags.write || self.flags.append;
        let pointless = !self.flags.read && !writes;
        if pointless || ((making || self.flags.truncate) && !writes) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a file is opened for reading or writing, and made or cut only for writing",
            ));
        }
        let inode = if self.create_new {
            let (dir, name) = vfs.resolve_parent(cred, bytes)?;
            let request = CreateRequest::new(FileKind::Regular, self.mode);
            vfs.create(cred, &dir, &name, &request)?.0
        } else {
            match vfs.resolve(cred, bytes, self.follow) {
                Ok(inode) => inode,
                Err(e) if self.create && e.kind() == ErrorKind::NotFound => {
                    let (dir, name) = vfs.resolve_parent(cred, bytes)?;
                    let mut request = CreateRequest::new(FileKind::Regular, self.mode);
                    request.exclusive = false;
                    vfs.create(cred, &dir, &name, &request)?.0
                }
                Err(e) => return Err(e.into()),
            }
        };
        Ok(File::new(vfs.open(cred, &inode, self.flags)?, vfs.clone()))
    }
}
