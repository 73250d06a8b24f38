//! Names: looking up, making, removing, renaming.
//!
//! # Locks
//! A directory's inode lock is held shared to look, exclusively to change. An inode is always found
//! and pinned while its directory is locked, so it cannot lose its name in between. A removed or
//! replaced inode is locked after its directory. See [`Vfs::rename`] for its order.

mod path;

use crate::core::InodeRef;
use crate::engine::Rename;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::acl::{self, Acl};
use crate::inode::permissions::{Access, Caps, Cred, check_removal};
use crate::locks::WriteGuard;
use crate::types::{Attr, DirEntry, FileKind, Ino, InodeFlags, NewInode, RenameMode, Timestamp};
use crate::vfs::Vfs;
use std::ops::ControlFlow;

/// The kind of file that [`Vfs::create`] makes.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits asked for.
    pub mode: u32,
    /// Bits taken off unless the directory has a default ACL.
    pub umask: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Target of a symlink.
    pub symlink: Vec<u8>,
    /// Fail when the name exists. Always so for other than regular files.
    pub exclusive: bool,
}

impl CreateRequest {
    /// A request for this kind with these permission bits, exclusive.
    #[must_use]
    pub fn new(kind: FileKind, mode: u32) -> Self {
        CreateRequest {
            kind,
            mode,
            umask: 0,
            rdev: 0,
            symlink: Vec::new(),
            exclusive: true,
        }
    }
}

/// The longest name, in bytes: of both formats, and of Linux.
const NAME_BYTES_MAX: usize = 255;

fn check_name(name: &[u8], op: &'static str) -> Result<()> {
    let kind = match name {
        b"" => ErrorKind::NotFound,
        b"." => ErrorKind::Invalid,
        b".." => ErrorKind::NotEmpty,
        _ if name.contains(&0) || name.contains(&b'/') => ErrorKind::Invalid,
        _ if name.len() > NAME_BYTES_MAX => ErrorKind::NameTooLong,
        _ => return Ok(()),
    };
    Err(Error::new(kind, op))
}

fn need_directory(dir: &InodeRef, op: &'static str) -> Result<()> {
    if dir.kind() == FileKind::Directory {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::NotDirectory, op).ino(dir.ino()))
    }
}

impl Vfs {
    /// Fails unless names may be added to or taken from the locked directory.
    fn check_dir_change(&self, cred: &Cred, dir: &InodeRef, op: &'static str) -> Result<()> {
        self.core.writable(op)?;
        if dir.attr().nlink == 0 {
            return Err(Error::new(ErrorKind::NotFound, op)
                .ino(dir.ino())
                .detail("the directory has been removed"));
        }
        self.check(cred, dir, Access::WRITE | Access::EXECUTE)
    }

    /// Finds and pins an entry of a locked directory.
    fn find_entry(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>> {
        match self.core.engine.lookup(dir, name)? {
            Some((ino, _)) => Ok(Some(self.core.inode(ino)?)),
            None => Ok(None),
        }
    }

    fn need_entry(&self, dir: &InodeRef, name: &[u8], op: &'static str) -> Result<InodeRef> {
        self.find_entry(dir, name)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, op).ino(dir.ino()))
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`.
    pub fn lookup(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.core.alive("lookup")?;
        need_directory(dir, "lookup")?;
        self.check(cred, dir, Access::EXECUTE)?;
        match name {
            b"." | b"" => return Ok(dir.clone()),
            b".." => {
                let parent = {
                    let _lock = dir.lock.read();
                    self.core.engine.parent(dir)?
                };
                return self.inode(parent);
            }
            _ => {}
        }
        let _lock = dir.lock.read();
        self.need_entry(dir, name, "lookup")
    }

    /// Lists entries after `cookie` (0 = from the start), `.` and `..` included, until `sink` breaks;
    /// the entry it broke at is not consumed.
    ///
    /// The directory's lock is held while `sink` runs: it must not call back into the directory.
    ///
    /// # Errors
    /// `NotDirectory`, and what the engine reports.
    pub fn readdir(
        &self,
        _cred: &Cred,
        dir: &InodeRef,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.core.alive("readdir")?;
        need_directory(dir, "readdir")?;
        {
            let _lock = dir.lock.read();
            self.core.engine.readdir(dir, cookie, sink)?;
        }
        self.touch_atime(dir);
        Ok(())
    }

    /// Properties of a new inode in `dir`: owner, set-gid inheritance, default ACL or umask.
    fn new_inode(&self, cred: &Cred, dir: &InodeRef, req: &CreateRequest) -> Result<NewInode> {
        let parent = dir.attr();
        let is_dir = req.kind == FileKind::Directory;
        let mut perm = req.mode & 0o7777;
        let mut gid = cred.gid;
        if parent.perm & 0o2000 != 0 {
            gid = parent.gid;
            if is_dir {
                perm |= 0o2000;
            } else if perm & 0o2010 == 0o2010
                && cred.checked_here()
                && !cred.in_group(gid)
                && !cred.caps.contains(Caps::FSETID)
            {
                // Or a user could make a set-gid program of a group they are not in.
                perm &= !0o2000;
            }
        }
        let mut xattrs = Vec::new();
        let default = if req.kind == FileKind::Symlink {
            perm = 0o777;
            None
        } else {
            self.acl(dir, acl::DEFAULT_NAME)?
        };
        if let Some(default) = default {
            let access = default.inherited(perm);
            perm = perm & !0o777 | access.mode_bits();
            if !access.equals_mode() {
                xattrs.push((acl::ACCESS_NAME.to_vec(), access.to_bytes()));
            }
            if is_dir {
                xattrs.push((acl::DEFAULT_NAME.to_vec(), Acl::to_bytes(&default)));
            }
        } else if req.kind != FileKind::Symlink {
            perm &= !(req.umask & 0o777);
        }
        Ok(NewInode {
            kind: req.kind,
            perm,
            uid: cred.uid,
            gid,
            rdev: match req.kind {
                FileKind::CharDevice | FileKind::BlockDevice => req.rdev,
                _ => 0,
            },
            symlink: req.symlink.clone(),
            now: Timestamp::now(),
            xattrs,
        })
    }

    fn check_new_kind(&self, cred: &Cred, req: &CreateRequest, op: &'static str) -> Result<()> {
        let whiteout = req.kind == FileKind::CharDevice && req.rdev == 0;
        let device = matches!(req.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if device && !whiteout && !cred.capable(Caps::MKNOD) {
            return Err(Error::new(ErrorKind::NotPermitted, op));
        }
        if req.kind == FileKind::Symlink {
            let target = &req.symlink;
            let kind = match target.len() {
                0 => ErrorKind::NotFound,
                // Both formats keep a target in one block, and end it with a zero where they can.
                n if n >= self.core.format.block_bytes as usize => ErrorKind::NameTooLong,
                _ if target.contains(&0) => ErrorKind::Invalid,
                _ => return Ok(()),
            };
            return Err(Error::new(kind, op));
        }
        Ok(())
    }

    /// Makes an inode and its name. With `exclusive` off, an existing one is returned instead, and
    /// `false`.
    ///
    /// # Errors
    /// `Exists`, `NotDirectory`, `AccessDenied`, `NotPermitted`, `NoSpace`, `NameTooLong`, `ReadOnly`…
    pub fn create(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        req: &CreateRequest,
    ) -> Result<(InodeRef, bool)> {
        self.core.alive("create")?;
        need_directory(dir, "create")?;
        match name {
            b"." | b".." => return Err(Error::new(ErrorKind::Exists, "create")),
            _ => check_name(name, "create")?,
        }
        self.core.make_room(0);
        self.core.make_room_for_inode();
        let lock = self.core.lock_to_change(dir, "create")?;
        if let Some(found) = self.find_entry(dir, name)? {
            drop(lock);
            if req.exclusive || req.kind != FileKind::Regular {
                return Err(Error::new(ErrorKind::Exists, "create").ino(found.ino()));
            }
            self.check(cred, dir, Access::EXECUTE)?;
            return Ok((found, false));
        }
        self.check_dir_change(cred, dir, "create")?;
        self.check_new_kind(cred, req, "create")?;
        let new = self.new_inode(cred, dir, req)?;
        let create = || self.core.engine.create(dir, name, &new);
        let inode = self.core.with_room(create)?;
        Ok((self.core.add_inode(inode), true))
    }

    /// Makes an inode without a name (`O_TMPFILE`); it goes away with its last reference unless it
    /// is linked before.
    ///
    /// # Errors
    /// As [`Vfs::create`].
    pub fn create_unnamed(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        req: &CreateRequest,
    ) -> Result<InodeRef> {
        need_directory(dir, "create unnamed")?;
        self.core.make_room(0);
        self.core.make_room_for_inode();
        let _lock = self.core.lock_to_change(dir, "create unnamed")?;
        self.check_dir_change(cred, dir, "create unnamed")?;
        self.check_new_kind(cred, req, "create unnamed")?;
        let new = self.new_inode(cred, dir, req)?;
        let create = || self.core.engine.create_unnamed(dir, &new);
        let inode = self.core.with_room(create)?;
        Ok(self.core.add_inode(inode))
    }

    /// Adds a name to an inode that is not a directory.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for directories and protected inodes, `TooManyLinks`, `CrossDevice`
    /// for another project's directory.
    pub fn link(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        new_dir: &InodeRef,
        new_name: &[u8],
    ) -> Result<()> {
        need_directory(new_dir, "link")?;
        match new_name {
            b"." | b".." => return Err(Error::new(ErrorKind::Exists, "link")),
            _ => check_name(new_name, "link")?,
        }
        if inode.kind() == FileKind::Directory {
            return Err(Error::new(ErrorKind::NotPermitted, "link").ino(inode.ino()));
        }
        self.core.make_room(0);
        let _dir_lock = self.core.lock_to_change(new_dir, "link")?;
        self.check_dir_change(cred, new_dir, "link")?;
        let _lock = inode.lock.write_nested();
        let attr = inode.attr();
        if attr
            .flags
            .intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
        {
            return Err(Error::new(ErrorKind::NotPermitted, "link").ino(attr.ino));
        }
        self.check_project(&new_dir.attr(), &attr, "link")?;
        if self.core.engine.lookup(new_dir, new_name)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "link").ino(new_dir.ino()));
        }
        let now = Timestamp::now();
        self.core
            .with_room(|| self.core.engine.link(new_dir, new_name, inode, now))
    }

    /// A directory whose new files inherit its project takes in only that project's.
    fn check_project(&self, dir: &Attr, inode: &Attr, op: &'static str) -> Result<()> {
        if dir.flags.contains(InodeFlags::PROJINHERIT) && dir.project != inode.project {
            return Err(Error::new(ErrorKind::CrossDevice, op).ino(inode.ino));
        }
        Ok(())
    }

    /// Removes a name of something that is not a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `AccessDenied`, `NotPermitted`.
    pub fn unlink(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<()> {
        self.unlink_held(cred, dir, name).map(drop)
    }

    /// As [`Vfs::unlink`], and returns what the name named, for a front end whose users may remember it: without a name it
    /// lives as long as it is held.
    ///
    /// # Errors
    /// As [`Vfs::unlink`].
    pub fn unlink_held(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.remove(cred, dir, name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, `AccessDenied`, `NotPermitted`, `Busy` for the root.
    pub fn rmdir(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<()> {
        self.rmdir_held(cred, dir, name).map(drop)
    }

    /// As [`Vfs::rmdir`], and returns the directory, as [`Vfs::unlink_held`].
    ///
    /// # Errors
    /// As [`Vfs::rmdir`].
    pub fn rmdir_held(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.remove(cred, dir, name, true)
    }

    fn remove(&self, cred: &Cred, dir: &InodeRef, name: &[u8], is_dir: bool) -> Result<InodeRef> {
        let op = if is_dir { "rmdir" } else { "unlink" };
        need_directory(dir, op)?;
        check_name(name, op)?;
        // Declared before the guards, so that the last reference goes after the locks: eviction
        // starts transactions of its own.
        let victim;
        let _dir_lock = self.core.lock_to_change(dir, op)?;
        victim = self.need_entry(dir, name, op)?;
        self.check_dir_change(cred, dir, op)?;
        if victim.ino() == dir.ino() {
            return Err(Error::corrupt(op, "a directory has an entry naming itself").ino(dir.ino()));
        }
        let _lock = victim.lock.write_nested();
        check_removal(cred, &dir.attr(), &victim.attr())?;
        let now = Timestamp::now();
        match (is_dir, victim.kind() == FileKind::Directory) {
            (true, true) if victim.ino() == self.core.format.root => {
                Err(Error::new(ErrorKind::Busy, op))
            }
            (true, true) => self.core.engine.rmdir(dir, name, &victim, now),
            (true, false) => Err(Error::new(ErrorKind::NotDirectory, op).ino(victim.ino())),
            (false, true) => Err(Error::new(ErrorKind::IsDirectory, op).ino(victim.ino())),
            (false, false) => self.core.engine.unlink(dir, name, &victim, now),
        }?;
        Ok(victim.clone())
    }

    /// Whether `above` is `below` or one of its ancestors. The rename mutex is held, so that no
    /// directory moves.
    fn is_ancestor(&self, above: Ino, below: &InodeRef) -> Result<bool> {
        let root = self.core.format.root;
        let mut at = below.clone();
        // A damaged volume may have a cycle; no sane tree is deeper than this.
        for _ in 0..1_000_000 {
            if at.ino() == above {
                return Ok(true);
            }
            if at.ino() == root || at.attr().nlink == 0 {
                return Ok(false);
            }
            let parent = {
                // `..` changes only under the rename mutex, or when the directory is removed.
                let _lock = at.lock.read();
                self.core.engine.parent(&at)?
            };
            at = self.inode(parent)?;
        }
        Err(Error::corrupt("rename", "directories form a cycle").ino(below.ino()))
    }

    /// Renames.
    ///
    /// Lock order: the rename mutex when directories move between directories or one directory
    /// replaces another; the two directories, an ancestor first, else by number; then the inodes
    /// that change names: directories before others, else by number.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NotEmpty`, `IsDirectory`, `NotDirectory`, `Invalid` when a directory
    /// would be moved into itself, `CrossDevice`, `AccessDenied`, `NotPermitted`.
    pub fn rename(
        &self,
        cred: &Cred,
        old_dir: &InodeRef,
        old_name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_held(cred, old_dir, old_name, new_dir, new_name, mode)
            .map(drop)
    }

    /// As [`Vfs::rename`], and returns what the new name named before and names no more, as [`Vfs::unlink_held`].
    ///
    /// # Errors
    /// As [`Vfs::rename`].
    pub fn rename_held(
        &self,
        cred: &Cred,
        old_dir: &InodeRef,
        old_name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Option<InodeRef>> {
        let op = "rename";
        need_directory(old_dir, op)?;
        need_directory(new_dir, op)?;
        for name in [old_name, new_name] {
            check_name(name, op).map_err(|e| match e.kind() {
                ErrorKind::Invalid | ErrorKind::NotEmpty => Error::new(ErrorKind::Busy, op),
                _ => e,
            })?;
        }
        let mut global = old_dir.ino() != new_dir.ino();
        loop {
            match self.try_rename(cred, old_dir, old_name, new_dir, new_name, mode, global)? {
                Some(replaced) => return Ok(replaced),
                // A directory meets a directory: again, with the rename mutex.
                None => global = true,
            }
        }
    }

    /// What was replaced, if anything; `None` when the rename mutex is needed and `global` says it was not asked for.
    #[allow(clippy::too_many_arguments)]
    fn try_rename(
        &self,
        cred: &Cred,
        old_dir: &InodeRef,
        old_name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        mode: RenameMode,
        global: bool,
    ) -> Result<Option<Option<InodeRef>>> {
        let op = "rename";
        // References outlive the guards: see `remove`.
        let source;
        let target;
        self.core.make_room(0);
        let _mutex = global.then(|| self.core.rename.lock());
        let same = old_dir.ino() == new_dir.ino();
        let old_above_new = !same && self.is_ancestor(old_dir.ino(), new_dir)?;
        let new_above_old = !same && !old_above_new && self.is_ancestor(new_dir.ino(), old_dir)?;
        let old_first = old_above_new || (!new_above_old && old_dir.ino() <= new_dir.ino());
        let (first, second) = if old_first {
            (old_dir, new_dir)
        } else {
            (new_dir, old_dir)
        };
        let _first = self.core.lock_to_change(first, op)?;
        let _second = (!same).then(|| second.lock.write_nested());

        source = self.need_entry(old_dir, old_name, op)?;
        target = self.find_entry(new_dir, new_name)?;
        self.check_dir_change(cred, old_dir, op)?;
        self.check_dir_change(cred, new_dir, op)?;
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => {
                return Err(Error::new(ErrorKind::Exists, op).ino(source.ino()));
            }
            (RenameMode::Exchange, None) => {
                return Err(Error::new(ErrorKind::NotFound, op).ino(new_dir.ino()));
            }
            _ => {}
        }
        // Two names of one inode: nothing to do, says POSIX.
        if target.as_ref().is_some_and(|t| t.ino() == source.ino()) {
            return Ok(Some(None));
        }
        let source_is_dir = source.kind() == FileKind::Directory;
        let target_is_dir = target
            .as_ref()
            .is_some_and(|t| t.kind() == FileKind::Directory);
        if source_is_dir && target_is_dir && !global {
            return Ok(None);
        }
        // The walk up takes locks of directories; those that are locked here already are skipped by
        // looking at numbers first: `old_above_new` was computed before anything was locked, and
        // under the rename mutex nothing moves.
        if !same {
            self.check_loops(old_dir, new_dir, &source, target.as_ref(), mode)?;
        }

        let mut children: Vec<&InodeRef> = std::iter::once(&source).chain(&target).collect();
        children.sort_by_key(|i| (i.kind() != FileKind::Directory, i.ino()));
        let _children: Vec<WriteGuard<'_, ()>> = children
            .iter()
            .filter(|i| i.ino() != old_dir.ino() && i.ino() != new_dir.ino())
            .map(|i| i.lock.write_nested())
            .collect();

        let (old_attr, new_attr) = (old_dir.attr(), new_dir.attr());
        let source_attr = source.attr();
        check_removal(cred, &old_attr, &source_attr)?;
        self.check_project(&new_attr, &source_attr, op)?;
        if let Some(target) = &target {
            let target_attr = target.attr();
            check_removal(cred, &new_attr, &target_attr)?;
            if mode == RenameMode::Exchange {
                self.check_project(&old_attr, &target_attr, op)?;
            } else if source_is_dir && !target_is_dir {
                return Err(Error::new(ErrorKind::NotDirectory, op).ino(target.ino()));
            } else if !source_is_dir && target_is_dir {
                return Err(Error::new(ErrorKind::IsDirectory, op).ino(target.ino()));
            }
        }
        // Moving a directory changes its `..`: that needs write access to it.
        if !same {
            if source_is_dir {
                self.check(cred, &source, Access::WRITE)?;
            }
            if let Some(target) = target
                .as_ref()
                .filter(|_| mode == RenameMode::Exchange && target_is_dir)
            {
                self.check(cred, target, Access::WRITE)?;
            }
        }
        let rename = Rename {
            old_dir,
            old_name,
            inode: &source,
            new_dir,
            new_name,
            target: target.as_ref().map(InodeRef::arc),
            mode,
            now: Timestamp::now(),
        };
        self.core.with_room(|| self.core.engine.rename(&rename))?;
        Ok(Some(
            target.clone().filter(|_| mode != RenameMode::Exchange),
        ))
    }

    /// Refuses to move a directory below itself, or over one of its own ancestors. The two directories
    /// are locked and the rename mutex is held.
    fn check_loops(
        &self,
        old_dir: &InodeRef,
        new_dir: &InodeRef,
        source: &InodeRef,
        target: Option<&InodeRef>,
        mode: RenameMode,
    ) -> Result<()> {
        let invalid = |ino| Error::new(ErrorKind::Invalid, "rename").ino(ino);
        if source.kind() == FileKind::Directory && self.is_above_locked(source, new_dir)? {
            return Err(invalid(source.ino()));
        }
        if let Some(target) = target.filter(|t| t.kind() == FileKind::Directory)
            && self.is_above_locked(target, old_dir)?
        {
            return Err(match mode {
                RenameMode::Exchange => invalid(target.ino()),
                // It holds the source's directory, so it is not empty.
                _ => Error::new(ErrorKind::NotEmpty, "rename").ino(target.ino()),
            });
        }
        Ok(())
    }

    /// As `is_ancestor`, with `below` and perhaps others on the way locked by this thread: the engine's
    /// `parent` is asked without the directory's lock, which is safe under the rename mutex.
    fn is_above_locked(&self, above: &InodeRef, below: &InodeRef) -> Result<bool> {
        let root = self.core.format.root;
        let mut at = below.clone();
        for _ in 0..1_000_000 {
            if at.ino() == above.ino() {
                return Ok(true);
            }
            if at.ino() == root || at.attr().nlink == 0 {
                return Ok(false);
            }
            at = self.inode(self.core.engine.parent(&at)?)?;
        }
        Err(Error::corrupt("rename", "directories form a cycle").ino(below.ino()))
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// `Invalid` when it is not one.
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        self.core.alive("read link")?;
        if inode.kind() != FileKind::Symlink {
            return Err(Error::new(ErrorKind::Invalid, "read link").ino(inode.ino()));
        }
        let target = {
            let _lock = inode.lock.read();
            self.core.engine.read_link(inode)?
        };
        self.touch_atime(inode);
        Ok(target)
    }
}
