//! Opening: what a caller may open, and with which rights.
//!
//! All checks come before the only change, the truncation, which holds the inode's lock exclusively. A handle keeps the rights that it was opened
//! with, as POSIX has it: a later change of mode bits does not concern it.

use crate::core::InodeRef;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{Handle, OpenFlags};
use crate::inode::permissions::{Access, Caps, Cred};
use crate::types::{FileKind, InodeFlags};
use crate::vfs::Vfs;
use std::sync::Arc;

impl Vfs {
    /// Opens a regular file (or a directory, for `sync` only).
    ///
    /// # Errors
    /// `AccessDenied`, `NotPermitted`, `IsDirectory`, `ReadOnly`, `Invalid` for other kinds.
    pub fn open(&self, cred: &Cred, inode: &InodeRef, flags: OpenFlags) -> Result<Arc<Handle>> {
        let op = "open";
        self.core.alive(op)?;
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory if flags.write || flags.truncate => {
                return Err(Error::new(ErrorKind::IsDirectory, op).ino(inode.ino()));
            }
            FileKind::Directory => {}
            FileKind::Symlink => {
                return Err(Error::new(ErrorKind::TooManySymlinks, op).ino(inode.ino()));
            }
            _ => return Err(Error::new(ErrorKind::Invalid, op).ino(inode.ino())),
        }
        let mut want = Access::empty();
        want.set(Access::READ, flags.read);
        want.set(Access::WRITE, flags.write || flags.truncate);
        self.check(cred, inode, want)?;
        let attr = inode.attr();
        if attr.flags.contains(InodeFlags::APPEND)
            && (flags.truncate || (flags.write && !flags.append))
        {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
        }
        // Its contents are signed: no caller may change them.
        if attr.flags.contains(InodeFlags::VERITY) && want.contains(Access::WRITE) {
            return Err(Error::new(ErrorKind::NotPermitted, op)
                .ino(attr.ino)
                .detail("the file is protected by fs-verity"));
        }
        // As in Linux, even if it is empty: there is no key.
        if attr.flags.contains(InodeFlags::ENCRYPT) && inode.kind() == FileKind::Regular {
            return Err(Error::new(ErrorKind::KeyRequired, op)
                .ino(attr.ino)
                .detail("the file is encrypted"));
        }
        if want.contains(Access::WRITE) && inode.kind() == FileKind::Regular {
            self.core.engine.check_changeable(inode)?;
        }
        if flags.noatime && cred.checked_here() && !cred.owns(&attr) {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
        }
        if flags.truncate && attr.size != 0 {
            self.core.writable(op)?;
            let lock = self.core.lock_to_change(inode, op)?;
            if !cred.capable(Caps::FSETID) {
                self.core
                    .strip_privileges(inode, |gid| cred.in_group(gid))?;
            }
            self.core.truncate(inode, 0, &lock)?;
        }
        let strips = (!cred.capable(Caps::FSETID)).then(|| Arc::new(cred.clone()));
        Ok(Handle::new(&self.core, inode, flags, strips))
    }
}
