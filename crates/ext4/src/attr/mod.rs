//! [`Attributes`]: changes of an inode's attributes, each in a transaction.
//!
//! It owns nothing but its references. It calls `Xattrs`, `Inodes`, `Maps`, `Quota`, `Directories` (to see whether one is empty) and
//! `Eviction` (for the inode of an attribute's old value). It never checks permissions: the vfs does.
//!
//! # Locks
//! The vfs holds the inode lock exclusively.
//!
//! # Crash order
//! One handle per change. The inode of an old value is among the orphans when that handle ends, and is deleted after it.

pub(crate) mod xattr;

use crate::dir::Directories;
use crate::inode::{Eviction, FIXED_USER_FLAGS, Inodes, ext4};
use crate::map::Maps;
use crate::quota::{Owner, Quota};
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::InodeFlags;
use blockwright_ondisk::ext4::features::{Incompat, RoCompat};
use blockwright_vfs as vfs;
use blockwright_vfs::types::{self as vt, XattrMode};
use std::sync::Arc;
use xattr::Xattrs;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Attributes {
        volume: Volume,
        quota: Quota,
        inodes: Inodes,
        maps: Maps,
        dirs: Directories,
        xattrs: Xattrs,
        eviction: Eviction,
    }
}

impl Attributes {
    /// See [`blockwright_vfs::engine::Attributes::set_xattr`].
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `NoSpace`, `TooBig`, damage, or a device error.
    pub(crate) fn set_xattr(
        &self,
        inode: &Arc<vfs::Inode>,
        full: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.change_xattr("set attribute", inode, full, Some(value), mode)
    }

    /// See [`blockwright_vfs::engine::Attributes::remove_xattr`].
    ///
    /// # Errors
    /// `NoAttribute`, damage, or a device error.
    pub(crate) fn remove_xattr(&self, inode: &Arc<vfs::Inode>, full: &[u8]) -> Result<()> {
        self.change_xattr("remove attribute", inode, full, None, XattrMode::Replace)
    }

    fn change_xattr(
        &self,
        op: &'static str,
        inode: &Arc<vfs::Inode>,
        full: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.volume.check_writable(op)?;
        let old = {
            let h = self.volume.journal.start(self.xattrs.credits(), op)?;
            let old = self.xattrs.set_in(&h, inode, full, value, mode)?;
            inode.update_attr(|a| a.ctime = vfs::Timestamp::now());
            self.inodes.store(&h, inode)?;
            old
        };
        self.eviction.reap(old)
    }

    /// See [`blockwright_vfs::engine::Attributes::set_attr`].
    ///
    /// # Errors
    /// `ReadOnly`, `QuotaExceeded`, `Unsupported` for what the volume has no room for.
    pub fn set_attr(&self, inode: &Arc<vfs::Inode>, change: &vt::AttrChange) -> Result<()> {
        const OP: &str = "change attributes";
        self.volume.check_writable(OP)?;
        let own = ext4(inode);
        let old = inode.attr();
        if let Some(project) = change.project
            && project != old.project
            && (!self.volume.has_ro_compat(RoCompat::PROJECT) || own.body.lock().extra_isize < 32)
        {
            return Err(Error::new(ErrorKind::Unsupported, OP)
                .ino(old.ino)
                .detail("the inode has no room for a project id"));
        }
        let mut bits = None;
        if let Some(new) = change.flags {
            let changed = new.bits() ^ old.flags.bits();
            if changed & FIXED_USER_FLAGS != 0 {
                return Err(Error::new(ErrorKind::Unsupported, OP)
                    .ino(old.ino)
                    .detail("encryption and verity are not flags that can be switched"));
            }
            if changed & vt::InodeFlags::CASEFOLD.bits() != 0 {
                if !self.volume.has_incompat(Incompat::CASEFOLD)
                    || old.kind != vt::FileKind::Directory
                {
                    return Err(Error::new(ErrorKind::Unsupported, OP).ino(old.ino));
                }
                if !self.dirs.is_empty(inode)? {
                    return Err(Error::new(ErrorKind::NotEmpty, OP).ino(old.ino));
                }
                self.dirs.check_casefold_writable(OP)?;
            }
            bits = Some((changed, new.bits()));
        }
        let owner = Owner::of(&old);
        let new_owner = Owner {
            uid: change.uid.unwrap_or(old.uid),
            gid: change.gid.unwrap_or(old.gid),
            project: change.project.unwrap_or(old.project),
        };
        let h = self
            .volume
            .journal
            .start(2 + 2 * self.quota.credits(), OP)?;
        if owner != new_owner {
            let bytes = own.map.read().blocks * 512;
            self.quota
                .transfer(&h, &owner, &new_owner, own.ino, bytes, 1)?;
        }
        let all = vt::InodeFlags::from_bits_retain(u32::MAX);
        inode.update_attr(|a| change.apply(a, all));
        if owner != new_owner {
            self.maps.show_blocks(inode, &own.map.read());
        }
        if let Some((changed, new)) = bits {
            let mut map = own.map.write();
            let kept = map.flags.bits() & !changed;
            map.flags = InodeFlags::from_bits_retain(kept | (new & changed));
        }
        self.inodes.store(&h, inode)
    }
}
