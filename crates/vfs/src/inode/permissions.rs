//! Permissions: mode bits, ACLs, capabilities, the sticky bit, set-id stripping, protected
//! flags, and when an access time is worth changing.
//!
//! Every front end passes a [`Cred`]. When the kernel has checked already (`default_permissions`),
//! mode bits and ownership are not checked twice; what the kernel cannot know (the immutable and
//! append-only flags, a read-only volume) is checked always.

use crate::error::{Error, ErrorKind, Result};
use crate::inode::acl::Acl;
use crate::types::{Attr, FileKind, InodeFlags, Timestamp};
use smallvec::SmallVec;

bitflags::bitflags! {
    /// The access that a caller wants to an inode, as in `access(2)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u8 {
        /// Execute a file, search a directory.
        const EXECUTE = 1;
        /// Change it.
        const WRITE = 2;
        /// Read it.
        const READ = 4;
    }
}

bitflags::bitflags! {
    /// Capabilities that matter to a file system (capabilities(7)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Caps: u32 {
        /// Change owners.
        const CHOWN = 1;
        /// Ignore mode bits.
        const DAC_OVERRIDE = 2;
        /// Read files and search directories whatever the mode bits.
        const DAC_READ_SEARCH = 4;
        /// Act as the owner of every file.
        const FOWNER = 8;
        /// Keep set-id bits on writes; set set-gid for foreign groups.
        const FSETID = 16;
        /// Change the immutable and append-only flags.
        const LINUX_IMMUTABLE = 32;
        /// Make device files.
        const MKNOD = 64;
        /// Trusted extended attributes and more.
        const SYS_ADMIN = 128;
        /// Use reserved blocks.
        const SYS_RESOURCE = 256;
        /// Set file capabilities.
        const SETFCAP = 512;
    }
}

/// Which side checks mode bits and ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessCheck {
    /// The kernel did (`default_permissions`), or nothing is to be checked.
    ByKernel,
    /// This crate.
    Here,
}

/// On whose behalf something is done.
#[derive(Clone, Debug)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: SmallVec<[u32; 8]>,
    /// Which side checks mode bits.
    pub check: AccessCheck,
    /// Privileges of the user beyond mode bits.
    pub caps: Caps,
}

impl Cred {
    /// The superuser, checked here.
    #[must_use]
    pub fn root() -> Self {
        Cred {
            uid: 0,
            gid: 0,
            groups: SmallVec::new(),
            check: AccessCheck::Here,
            caps: Caps::all(),
        }
    }

    /// A caller whose permissions are not checked: new files belong to root.
    #[must_use]
    pub fn unchecked() -> Self {
        Cred {
            check: AccessCheck::ByKernel,
            ..Self::root()
        }
    }

    /// An ordinary user, checked here, without capabilities.
    #[must_use]
    pub fn user(uid: u32, gid: u32) -> Self {
        Cred {
            uid,
            gid,
            groups: SmallVec::new(),
            check: AccessCheck::Here,
            caps: Caps::empty(),
        }
    }

    /// Whether the user is in this group.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether set-gid of an inode of this group stays when the caller changes contents or owner, as far as the group decides.
    #[must_use]
    pub fn keeps_group_bit(&self, gid: u32) -> bool {
        self.caps.contains(Caps::FSETID) || self.in_group(gid)
    }

    /// Whether mode bits and ownership are checked here.
    #[must_use]
    pub fn checked_here(&self) -> bool {
        self.check == AccessCheck::Here
    }

    fn has(&self, cap: Caps) -> bool {
        !self.checked_here() || self.caps.contains(cap)
    }

    /// Whether the user owns the inode or may act as its owner.
    #[must_use]
    pub fn owns(&self, attr: &Attr) -> bool {
        self.uid == attr.uid || self.has(Caps::FOWNER)
    }

    /// Whether the user has the capability (always, when the kernel did the checks).
    #[must_use]
    pub fn capable(&self, cap: Caps) -> bool {
        self.has(cap)
    }
}

/// What changes access times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AtimeMode {
    /// When older than the last change, or older than a day.
    #[default]
    Relative,
    /// On every read.
    Strict,
    /// Never.
    None,
}

fn denied(kind: ErrorKind, attr: &Attr) -> Error {
    Error::new(kind, "permission check").ino(attr.ino)
}

/// Checks mode bits, ACL and capabilities. `acl` is the access ACL, if the inode has one.
///
/// # Errors
/// `AccessDenied`; `NotPermitted` for writing to an immutable inode.
pub fn check_access(cred: &Cred, attr: &Attr, acl: Option<&Acl>, want: Access) -> Result<()> {
    if want.contains(Access::WRITE) && attr.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(denied(ErrorKind::NotPermitted, attr));
    }
    if !cred.checked_here() {
        return Ok(());
    }
    let bits = want.bits();
    let granted = match acl {
        Some(acl) => acl.allows(cred.uid, |g| cred.in_group(g), attr.uid, attr.gid, bits),
        None => {
            let shift = if cred.uid == attr.uid {
                6
            } else if cred.in_group(attr.gid) {
                3
            } else {
                0
            };
            (attr.perm >> shift) as u8 & bits == bits
        }
    };
    if granted || capability_grants(cred, attr, want) {
        Ok(())
    } else {
        Err(denied(ErrorKind::AccessDenied, attr))
    }
}

fn capability_grants(cred: &Cred, attr: &Attr, want: Access) -> bool {
    let search = cred.caps.contains(Caps::DAC_READ_SEARCH);
    if attr.kind == FileKind::Directory {
        return cred.caps.contains(Caps::DAC_OVERRIDE) || (search && !want.contains(Access::WRITE));
    }
    // Even root needs one execute bit somewhere.
    (cred.caps.contains(Caps::DAC_OVERRIDE)
        && (!want.contains(Access::EXECUTE) || attr.perm & 0o111 != 0))
        || (search && want == Access::READ)
}

/// Checks that an entry naming `victim` may be removed from `dir` (beyond write and search access
/// to `dir`): sticky bit, append-only and immutable flags.
///
/// # Errors
/// `NotPermitted`.
pub fn check_removal(cred: &Cred, dir: &Attr, victim: &Attr) -> Result<()> {
    let protected = InodeFlags::APPEND | InodeFlags::IMMUTABLE;
    if dir.flags.intersects(protected) || victim.flags.intersects(protected) {
        return Err(denied(ErrorKind::NotPermitted, victim));
    }
    let sticky = dir.perm & 0o1000 != 0 && cred.uid != victim.uid && cred.uid != dir.uid;
    if cred.checked_here() && sticky && !cred.caps.contains(Caps::FOWNER) {
        return Err(denied(ErrorKind::NotPermitted, victim));
    }
    Ok(())
}

/// The permission bits after a write or an ownership change by a caller that may not keep set-id
/// bits. Set-uid goes. Set-gid goes when the group may execute the file; otherwise it asks for mandatory
/// locking, and only a caller in the file's group keeps it. `in_group` is asked in that case alone.
#[must_use]
pub fn without_set_id(perm: u32, in_group: impl FnOnce() -> bool) -> u32 {
    let perm = perm & !0o4000;
    if perm & 0o2000 != 0 && (perm & 0o010 != 0 || !in_group()) {
        perm & !0o2000
    } else {
        perm
    }
}

/// Whether a read should change the access time now.
#[must_use]
pub fn atime_due(mode: AtimeMode, attr: &Attr, now: Timestamp) -> bool {
    const DAY: i64 = 24 * 60 * 60;
    if attr.flags.contains(InodeFlags::NOATIME) {
        return false;
    }
    match mode {
        AtimeMode::None => false,
        AtimeMode::Strict => attr.atime != now,
        AtimeMode::Relative => {
            attr.atime <= attr.mtime
                || attr.atime <= attr.ctime
                || now.secs.saturating_sub(attr.atime.secs) >= DAY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Ino;

    fn attr(kind: FileKind, perm: u32, uid: u32, gid: u32) -> Attr {
        Attr {
            ino: Ino(7),
            generation: 0,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            project: 0,
            rdev: 0,
            size: 0,
            blocks512: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            crtime: None,
            flags: InodeFlags::empty(),
        }
    }

    #[test]
    fn mode_bits_pick_one_class() {
        let a = attr(FileKind::Regular, 0o074, 10, 20);
        let owner = Cred::user(10, 20);
        assert!(check_access(&owner, &a, None, Access::READ).is_err());
        let member = Cred::user(11, 20);
        assert!(check_access(&member, &a, None, Access::all()).is_ok());
        let other = Cred::user(11, 21);
        assert!(check_access(&other, &a, None, Access::READ).is_ok());
        assert!(check_access(&other, &a, None, Access::WRITE).is_err());
        assert!(check_access(&Cred::unchecked(), &a, None, Access::all()).is_ok());
    }

    #[test]
    fn root_needs_an_execute_bit() {
        let a = attr(FileKind::Regular, 0o600, 10, 20);
        assert!(check_access(&Cred::root(), &a, None, Access::READ | Access::WRITE).is_ok());
        assert!(check_access(&Cred::root(), &a, None, Access::EXECUTE).is_err());
        let d = attr(FileKind::Directory, 0, 10, 20);
        assert!(check_access(&Cred::root(), &d, None, Access::all()).is_ok());
    }

    #[test]
    fn immutable_binds_everybody() {
        let mut a = attr(FileKind::Regular, 0o666, 10, 20);
        a.flags = InodeFlags::IMMUTABLE;
        for cred in [Cred::root(), Cred::unchecked(), Cred::user(10, 20)] {
            let e = check_access(&cred, &a, None, Access::WRITE).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotPermitted);
        }
    }

    #[test]
    fn sticky_directories() {
        let d = attr(FileKind::Directory, 0o1777, 1, 1);
        let f = attr(FileKind::Regular, 0o666, 10, 20);
        assert!(check_removal(&Cred::user(10, 20), &d, &f).is_ok());
        assert!(check_removal(&Cred::user(1, 1), &d, &f).is_ok());
        assert!(check_removal(&Cred::user(11, 20), &d, &f).is_err());
        assert!(check_removal(&Cred::root(), &d, &f).is_ok());
    }

    #[test]
    fn set_id_stripping_keeps_mandatory_locking_for_the_group() {
        assert_eq!(without_set_id(0o6755, || true), 0o755);
        assert_eq!(without_set_id(0o2745, || true), 0o2745);
        assert_eq!(without_set_id(0o2745, || false), 0o745);
        assert_eq!(without_set_id(0o2755, || true), 0o755);
        // Finding out may cost a look at /proc.
        assert_eq!(without_set_id(0o4755, || unreachable!()), 0o755);
    }

    #[test]
    fn relative_atime() {
        let mut a = attr(FileKind::Regular, 0, 0, 0);
        let at = |secs| Timestamp { secs, nanos: 0 };
        a.atime = at(100);
        a.mtime = at(50);
        a.ctime = at(50);
        assert!(!atime_due(AtimeMode::Relative, &a, at(200)));
        assert!(atime_due(AtimeMode::Relative, &a, at(100 + 86_400)));
        assert!(atime_due(AtimeMode::Strict, &a, at(200)));
        a.mtime = at(150);
        assert!(atime_due(AtimeMode::Relative, &a, at(200)));
        assert!(!atime_due(AtimeMode::None, &a, at(200)));
    }
}
