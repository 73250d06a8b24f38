//! Walking paths from the volume's root, for front ends that have no kernel to do it.
//!
//! No lock is held between two components: a rename meanwhile may lead the walk through the old or the new place. An absolute target of a symlink
//! starts at the volume's root, so no walk leaves the volume. Permissions are checked by the lookup of each component.

use crate::core::InodeRef;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::permissions::Cred;
use crate::types::FileKind;
use crate::vfs::Vfs;

/// How many symlinks one walk follows.
const SYMLINKS_MAX: usize = 40;

impl Vfs {
    /// The inode a path names. `follow` says whether a symlink at its end is followed; symlinks on the
    /// way always are, relative to the volume's root when absolute.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `TooManySymlinks`, `AccessDenied`.
    pub fn resolve(&self, cred: &Cred, path: &[u8], follow: bool) -> Result<InodeRef> {
        let start = self.root()?;
        self.resolve_at(cred, &start, path, follow)
    }

    /// As [`Vfs::resolve`], with relative paths starting at `start`.
    ///
    /// # Errors
    /// As [`Vfs::resolve`].
    pub fn resolve_at(
        &self,
        cred: &Cred,
        start: &InodeRef,
        path: &[u8],
        follow: bool,
    ) -> Result<InodeRef> {
        let mut links = 0;
        let (dir, name) = self.walk(cred, start, path, &mut links)?;
        self.last(cred, dir, name, follow, &mut links)
    }

    /// The directory a path's last component is in, and that component.
    ///
    /// # Errors
    /// As [`Vfs::resolve`]; `Invalid` when the path has no last component (`/`).
    pub fn resolve_parent(&self, cred: &Cred, path: &[u8]) -> Result<(InodeRef, Vec<u8>)> {
        let mut links = 0;
        let (dir, name) = self.walk(cred, &self.root()?, path, &mut links)?;
        match name {
            Some(name) => Ok((dir, name.to_vec())),
            None => Err(Error::new(ErrorKind::Invalid, "resolve")),
        }
    }

    /// Walks all but the last component.
    fn walk<'p>(
        &self,
        cred: &Cred,
        start: &InodeRef,
        path: &'p [u8],
        links: &mut usize,
    ) -> Result<(InodeRef, Option<&'p [u8]>)> {
        let mut dir = if path.first() == Some(&b'/') {
            self.root()?
        } else {
            start.clone()
        };
        let mut parts = path.split(|b| *b == b'/').filter(|p| !p.is_empty());
        let Some(mut part) = parts.next() else {
            return Ok((dir, None));
        };
        for next in parts {
            dir = self.last(cred, dir, Some(part), true, links)?;
            part = next;
        }
        if dir.kind() != FileKind::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, "resolve").ino(dir.ino()));
        }
        Ok((dir, Some(part)))
    }

    /// Looks up one component, following symlinks if asked.
    fn last(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: Option<&[u8]>,
        follow: bool,
        links: &mut usize,
    ) -> Result<InodeRef> {
        let Some(name) = name else {
            return Ok(dir);
        };
        let found = self.lookup(cred, &dir, name)?;
        if !follow || found.kind() != FileKind::Symlink {
            return Ok(found);
        }
        *links += 1;
        if *links > SYMLINKS_MAX {
            return Err(Error::new(ErrorKind::TooManySymlinks, "resolve").ino(found.ino()));
        }
        let target = self.read_link(&found)?;
        let (dir, name) = self.walk(cred, &dir, &target, links)?;
        self.last(cred, dir, name, true, links)
    }
}
