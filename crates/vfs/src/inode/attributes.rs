//! Attributes and extended attributes: which callers may change them, and what follows from a change.
//!
//! Mode bits and the access ACL are two views of one thing. The ACL is stored only when it says more
//! than the mode bits; chmod rewrites its mask, setting an ACL rewrites the mode bits.

use crate::core::Core;
use crate::core::InodeRef;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode::acl::{self, Acl};
use crate::inode::permissions::{Access, Caps, Cred, atime_due, check_access, without_set_id};
use crate::types::{Attr, AttrChange, FileKind, InodeFlags, Timestamp, XattrMode};
use crate::vfs::Vfs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes of a full name that is set, as `setxattr(2)` has it.
const XATTR_NAME_MAX: usize = 255;

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time. Both times so need only write access.
    Now,
    /// The current time, as the front end has read it already.
    NowAs(Timestamp),
    /// This time; needs ownership.
    At(Timestamp),
}

impl SetTime {
    fn is_now(self) -> bool {
        matches!(self, SetTime::Now | SetTime::NowAs(_))
    }

    fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            SetTime::Now => now,
            SetTime::NowAs(t) | SetTime::At(t) => t,
        }
    }
}

/// A request to change attributes. `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (`0o7777`).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates or extends.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (only front ends that keep times themselves set it).
    pub ctime: Option<SetTime>,
    /// Birth time (only the image builder sets it).
    pub crtime: Option<Timestamp>,
    /// Project.
    pub project: Option<u32>,
    /// User-visible flags.
    pub flags: Option<InodeFlags>,
    /// Take set-id bits off, as the caller's kernel asks for.
    pub kill_priv: bool,
    /// The times, and nothing else is set, are what the front end has kept for changes that were allowed when they were made: whether
    /// the inode is protected by now does not matter.
    pub kept_times: bool,
}

/// Flags `FS_IOC_SETFLAGS` may change; the rest describe how the inode is stored.
const CHANGEABLE_FLAGS: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::CASEFOLD);

/// An inode with one of these keeps its attributes.
const PROTECTED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

impl Core {
    /// The ACL under this attribute name, parsed once. The inode's lock is held or the caller can
    /// live with a concurrent change.
    pub(crate) fn acl(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Acl>>> {
        let is_default = name == acl::DEFAULT_NAME;
        if inode.kind() == FileKind::Symlink || (is_default && inode.kind() != FileKind::Directory)
        {
            return Ok(None);
        }
        {
            let cache = inode.acls.lock();
            let known = if is_default {
                &cache.default
            } else {
                &cache.access
            };
            if let Some(known) = known {
                return Ok(known.clone());
            }
        }
        let found = match self.engine.get_xattr(inode, name) {
            Ok(value) => Some(Arc::new(Acl::parse(&value).map_err(|e| {
                Error::corrupt("read ACL", "the stored ACL is not valid")
                    .ino(inode.ino())
                    .source(e)
            })?)),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::NoAttribute | ErrorKind::Unsupported | ErrorKind::UnsupportedFeature
                ) =>
            {
                None
            }
            Err(e) => return Err(e),
        };
        let mut cache = inode.acls.lock();
        let slot = if is_default {
            &mut cache.default
        } else {
            &mut cache.access
        };
        *slot = Some(found.clone());
        Ok(found)
    }

    /// Takes set-id bits and file capabilities off before a caller that may not keep them changes contents; `in_group`
    /// returns whether that caller is in a group. Inode lock held exclusively.
    ///
    /// # Errors
    /// `NotPermitted` when bits must go from an inode whose attributes are protected, as in Linux: then the contents stay, too.
    pub(crate) fn strip_privileges(
        &self,
        inode: &Arc<Inode>,
        in_group: impl FnOnce(u32) -> bool,
    ) -> Result<()> {
        const CAPABILITY: &[u8] = b"security.capability";
        let attr = inode.attr();
        let stripped = without_set_id(attr.perm, || in_group(attr.gid));
        if stripped != attr.perm {
            if attr.flags.intersects(PROTECTED) {
                return Err(
                    Error::new(ErrorKind::NotPermitted, "strip privileges").ino(inode.ino())
                );
            }
            let change = AttrChange {
                perm: Some(stripped),
                ctime: Some(Timestamp::now()),
                ..AttrChange::default()
            };
            self.engine.set_attr(inode, &change)?;
        }
        if !inode.no_capability.load(Ordering::Relaxed) {
            match self.engine.remove_xattr(inode, CAPABILITY) {
                Ok(()) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::NoAttribute
                            | ErrorKind::Unsupported
                            | ErrorKind::UnsupportedFeature
                    ) => {}
                Err(e) => return Err(e),
            }
            inode.no_capability.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a write must call [`Core::strip_privileges`] first.
    pub(crate) fn has_privileges(&self, inode: &Inode, in_group: impl FnOnce(u32) -> bool) -> bool {
        let attr = inode.attr();
        without_set_id(attr.perm, || in_group(attr.gid)) != attr.perm
            || !inode.no_capability.load(Ordering::Relaxed)
    }

    /// Updates the access time after a read, in memory, if it is due.
    pub(crate) fn touch_atime(&self, inode: &Arc<Inode>) {
        let mode = self.atime_mode();
        let attr = inode.attr();
        let now = Timestamp::now();
        if atime_due(mode, &attr, now) && !self.is_read_only() {
            inode.update_attr(|a| a.atime = now);
            self.mark_lazy(inode);
        }
    }
}

impl Vfs {
    pub(crate) fn touch_atime(&self, inode: &InodeRef) {
        self.core.touch_atime(inode);
    }

    pub(crate) fn acl(&self, inode: &InodeRef, name: &[u8]) -> Result<Option<Arc<Acl>>> {
        self.core.acl(inode, name)
    }

    /// Checks that the user may do `want` with the inode.
    pub(crate) fn check(&self, cred: &Cred, inode: &InodeRef, want: Access) -> Result<()> {
        if want.contains(Access::WRITE)
            && matches!(
                inode.kind(),
                FileKind::Regular | FileKind::Directory | FileKind::Symlink
            )
            && self.core.is_read_only()
        {
            return Err(Error::new(ErrorKind::ReadOnly, "permission check").ino(inode.ino()));
        }
        let acl = if cred.checked_here() {
            self.core.acl(inode, acl::ACCESS_NAME)?
        } else {
            None
        };
        check_access(cred, &inode.attr(), acl.as_deref(), want)
    }

    /// Whether the user may do all of `mask`.
    ///
    /// # Errors
    /// `AccessDenied`, `NotPermitted` for writing to an immutable inode, `ReadOnly`.
    pub fn access(&self, cred: &Cred, inode: &InodeRef, mask: Access) -> Result<()> {
        self.core.alive("access")?;
        self.check(cred, inode, mask)
    }

    /// Changes attributes, size included, and returns them as they are then.
    ///
    /// # Errors
    /// `NotPermitted`, `AccessDenied`, `ReadOnly`, `FileTooLarge`, `NoSpace`, `Io`…
    pub fn set_attr(&self, cred: &Cred, inode: &InodeRef, req: &SetAttr) -> Result<Attr> {
        let op = "set attributes";
        self.core.writable(op)?;
        let now = Timestamp::now();
        self.core.make_room(0);
        let _lock = self.core.lock_to_change(inode, op)?;
        let attr = inode.attr();
        self.check_set_attr(cred, inode, &attr, req)?;
        if let Some(size) = req.size {
            match inode.kind() {
                FileKind::Regular => {}
                FileKind::Directory => {
                    return Err(Error::new(ErrorKind::IsDirectory, op).ino(attr.ino));
                }
                _ => return Err(Error::new(ErrorKind::Invalid, op).ino(attr.ino)),
            }
            if req.kill_priv || !cred.capable(Caps::FSETID) {
                self.core
                    .strip_privileges(inode, |gid| cred.keeps_group_bit(gid))?;
            }
            self.core.truncate(inode, size, &_lock)?;
        }
        let change = self.attr_change(cred, inode, req, now);
        if change != AttrChange::default() {
            let chmod_acl = match change.perm {
                Some(perm) if req.mode.is_some() => self
                    .acl(inode, acl::ACCESS_NAME)?
                    .map(|a| a.with_mode(perm)),
                _ => None,
            };
            if attr.nlink == 0 && change.is_times_only() {
                // Front ends' kernels tell the ctime of what they have just removed, and wait. It need not
                // be stored before the inode gets a name again, which stores all of it.
                inode.update_attr(|a| {
                    a.atime = change.atime.unwrap_or(a.atime);
                    a.mtime = change.mtime.unwrap_or(a.mtime);
                    a.ctime = change.ctime.unwrap_or(a.ctime);
                });
                self.core.mark_lazy(inode);
            } else {
                self.core.engine.set_attr(inode, &change)?;
            }
            if let Some(acl) = chmod_acl {
                self.core.engine.set_xattr(
                    inode,
                    acl::ACCESS_NAME,
                    &acl.to_bytes(),
                    XattrMode::Any,
                )?;
                inode.acls.lock().access = Some(Some(Arc::new(acl)));
            }
        }
        Ok(self.stat(inode))
    }

    fn check_set_attr(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        attr: &Attr,
        req: &SetAttr,
    ) -> Result<()> {
        let refuse = || Error::new(ErrorKind::NotPermitted, "set attributes").ino(attr.ino);
        // Both to now is a touch, which a caller with write permission may do. One alone is a time that was chosen.
        let touched = req.atime.is_some() || req.mtime.is_some();
        let now = |t: Option<SetTime>| t.is_some_and(SetTime::is_now);
        let times_set = touched && !(now(req.atime) && now(req.mtime));
        let protection = match req.kept_times {
            true => InodeFlags::empty(),
            false => attr.flags & PROTECTED,
        };
        if !protection.is_empty()
            && (req.mode.is_some()
                || req.uid.is_some()
                || req.gid.is_some()
                || req.size.is_some()
                || times_set)
        {
            return Err(refuse());
        }
        if protection.contains(InodeFlags::IMMUTABLE) && touched {
            return Err(refuse());
        }
        if let Some(flags) = req.flags {
            if (flags ^ attr.flags).intersects(PROTECTED) && !cred.capable(Caps::LINUX_IMMUTABLE) {
                return Err(refuse());
            }
            if !(flags ^ attr.flags).difference(CHANGEABLE_FLAGS).is_empty() {
                return Err(Error::new(ErrorKind::Unsupported, "set flags").ino(attr.ino));
            }
        }
        if !cred.checked_here() {
            return Ok(());
        }
        if req.size.is_some() {
            self.check(cred, inode, Access::WRITE)?;
        }
        let is_owner = cred.uid == attr.uid;
        let may_chown = cred.caps.contains(Caps::CHOWN);
        if req
            .uid
            .is_some_and(|uid| !(may_chown || is_owner && uid == attr.uid))
        {
            return Err(refuse());
        }
        if req
            .gid
            .is_some_and(|gid| !(may_chown || is_owner && (gid == attr.gid || cred.in_group(gid))))
        {
            return Err(refuse());
        }
        let needs_owner =
            req.mode.is_some() || times_set || req.flags.is_some() || req.project.is_some();
        if needs_owner && !cred.owns(attr) {
            return Err(refuse());
        }
        if touched && !times_set && !cred.owns(attr) {
            self.check(cred, inode, Access::WRITE)?;
        }
        Ok(())
    }

    /// The effect of a checked request.
    fn attr_change(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        req: &SetAttr,
        now: Timestamp,
    ) -> AttrChange {
        let attr = inode.attr();
        let mut perm = req.mode.map(|m| m & 0o7777);
        let gid = req.gid.unwrap_or(attr.gid);
        if let Some(perm) = &mut perm
            && inode.kind() != FileKind::Directory
            && cred.checked_here()
            && !cred.in_group(gid)
            && !cred.caps.contains(Caps::FSETID)
        {
            *perm &= !0o2000;
        }
        let owner_changes = req.uid.is_some() || req.gid.is_some();
        if (owner_changes || req.kill_priv) && inode.kind() != FileKind::Directory {
            let before = perm.unwrap_or(attr.perm);
            let after = without_set_id(before, || cred.keeps_group_bit(attr.gid));
            // An explicit mode in the same request is what the caller wants in the end.
            if after != before && req.mode.is_none() {
                perm = Some(after);
            }
        }
        let mut change = AttrChange {
            perm,
            uid: req.uid,
            gid: req.gid,
            project: req.project,
            atime: req.atime.map(|t| t.resolve(now)),
            mtime: req.mtime.map(|t| t.resolve(now)),
            ctime: req.ctime.map(|t| t.resolve(now)),
            crtime: req.crtime,
            flags: req.flags,
        };
        if change != AttrChange::default() && change.ctime.is_none() {
            change.ctime = Some(now);
        }
        change
    }

    // ---- extended attributes ----

    /// Checks access to an attribute by its name's namespace. `write` says what for. Which namespaces there are is the
    /// engine's to say; what is stored can be read, whatever Linux allows to be set.
    fn check_xattr(&self, cred: &Cred, inode: &InodeRef, name: &[u8], write: bool) -> Result<()> {
        let op = "extended attribute";
        let attr = inode.attr();
        if write {
            self.core.writable(op)?;
            if attr.flags.intersects(PROTECTED) {
                return Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
            }
        }
        if write && name.len() > XATTR_NAME_MAX {
            return Err(Error::new(ErrorKind::Range, op).ino(attr.ino));
        }
        if write
            && name.starts_with(b"user.")
            && !matches!(inode.kind(), FileKind::Regular | FileKind::Directory)
        {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
        }
        if !cred.checked_here() {
            return Ok(());
        }
        let refuse = Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
        if name.starts_with(b"trusted.") && !cred.caps.contains(Caps::SYS_ADMIN) {
            return match write {
                true => refuse,
                false => Err(Error::new(ErrorKind::NoAttribute, op).ino(attr.ino)),
            };
        }
        if name.starts_with(b"security.") {
            let needed = if name == b"security.capability" {
                Caps::SETFCAP
            } else {
                Caps::SYS_ADMIN
            };
            return if write && !cred.caps.contains(needed) {
                refuse
            } else {
                Ok(())
            };
        }
        if !name.starts_with(b"system.") {
            if write
                && name.starts_with(b"user.")
                && inode.kind() == FileKind::Directory
                && attr.perm & 0o1000 != 0
                && !cred.owns(&attr)
            {
                return refuse;
            }
            return self.check(
                cred,
                inode,
                if write { Access::WRITE } else { Access::READ },
            );
        }
        Ok(())
    }

    /// The value of an extended attribute, by full name.
    ///
    /// # Errors
    /// `NoAttribute`, `Unsupported` for an unknown namespace, `AccessDenied`.
    pub fn get_xattr(&self, cred: &Cred, inode: &InodeRef, name: &[u8]) -> Result<Vec<u8>> {
        self.core.alive("get attribute")?;
        self.check_xattr(cred, inode, name, false)?;
        let _lock = inode.lock.read();
        if name == acl::ACCESS_NAME || name == acl::DEFAULT_NAME {
            return match self.acl(inode, name)? {
                Some(acl) => Ok(acl.to_bytes()),
                None => Err(Error::new(ErrorKind::NoAttribute, "get attribute").ino(inode.ino())),
            };
        }
        self.core.engine.get_xattr(inode, name)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `NoSpace`, `TooBig`, `Unsupported`, `NotPermitted`, `Invalid` for an
    /// ACL that is none.
    pub fn set_xattr(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.check_xattr(cred, inode, name, true)?;
        self.core.make_room(0);
        let _lock = self.core.lock_to_change(inode, "set attribute")?;
        if name == acl::ACCESS_NAME || name == acl::DEFAULT_NAME {
            let acl = if value.is_empty() {
                None
            } else {
                Some(Acl::parse(value)?)
            };
            return self.set_acl(cred, inode, name, acl);
        }
        self.core.engine.set_xattr(inode, name, value, mode)?;
        if name == b"security.capability" {
            inode.no_capability.store(false, Ordering::Relaxed);
        }
        self.touch_ctime(inode)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `NotPermitted`, `AccessDenied`.
    pub fn remove_xattr(&self, cred: &Cred, inode: &InodeRef, name: &[u8]) -> Result<()> {
        self.check_xattr(cred, inode, name, true)?;
        let _lock = self.core.lock_to_change(inode, "remove attribute")?;
        if name == acl::ACCESS_NAME || name == acl::DEFAULT_NAME {
            return self.set_acl(cred, inode, name, None);
        }
        self.core.engine.remove_xattr(inode, name)?;
        self.touch_ctime(inode)
    }

    /// All full names the user may see.
    ///
    /// # Errors
    /// As the engine reports.
    pub fn list_xattr(&self, cred: &Cred, inode: &InodeRef) -> Result<Vec<Vec<u8>>> {
        self.core.alive("list attributes")?;
        let _lock = inode.lock.read();
        let mut names = self.core.engine.list_xattr(inode)?;
        if !cred.capable(Caps::SYS_ADMIN) {
            names.retain(|n| !n.starts_with(b"trusted."));
        }
        Ok(names)
    }

    fn touch_ctime(&self, inode: &InodeRef) -> Result<()> {
        let change = AttrChange {
            ctime: Some(Timestamp::now()),
            ..AttrChange::default()
        };
        self.core.engine.set_attr(inode, &change)
    }

    /// Stores or removes an ACL and brings the mode bits in line. Inode lock held exclusively.
    fn set_acl(&self, cred: &Cred, inode: &InodeRef, name: &[u8], acl: Option<Acl>) -> Result<()> {
        let op = "set ACL";
        let attr = inode.attr();
        if inode.kind() == FileKind::Symlink {
            return Err(Error::new(ErrorKind::Unsupported, op).ino(attr.ino));
        }
        if cred.checked_here() && !cred.owns(&attr) {
            return Err(Error::new(ErrorKind::NotPermitted, op).ino(attr.ino));
        }
        let is_default = name == acl::DEFAULT_NAME;
        if is_default && inode.kind() != FileKind::Directory {
            return match acl {
                Some(_) => Err(Error::new(ErrorKind::AccessDenied, op).ino(attr.ino)),
                None => Ok(()),
            };
        }
        let mut change = AttrChange {
            ctime: Some(Timestamp::now()),
            ..AttrChange::default()
        };
        let mut stored = acl;
        if !is_default && let Some(acl) = &stored {
            let mut perm = attr.perm & !0o777 | acl.mode_bits();
            if cred.checked_here() && !cred.in_group(attr.gid) && !cred.caps.contains(Caps::FSETID)
            {
                perm &= !0o2000;
            }
            change.perm = (perm != attr.perm).then_some(perm);
            if acl.equals_mode() {
                stored = None;
            }
        }
        match &stored {
            Some(acl) => {
                self.core
                    .engine
                    .set_xattr(inode, name, &acl.to_bytes(), XattrMode::Any)?;
            }
            None => match self.core.engine.remove_xattr(inode, name) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NoAttribute => {}
                Err(e) => return Err(e),
            },
        }
        let cached = Some(stored.map(Arc::new));
        {
            let mut cache = inode.acls.lock();
            if is_default {
                cache.default = cached;
            } else {
                cache.access = cached;
            }
        }
        self.core.engine.set_attr(inode, &change)
    }
}
