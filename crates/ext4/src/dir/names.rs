//! [`Names`]: changes of the tree: making, linking, removing and renaming, each in one transaction.
//!
//! It owns nothing but its references. It calls `Directories`, `Inodes`, `Orphans`, `Xattrs`, `InlineData`, `Eviction` and `Maps`. It
//! never checks permissions, ancestor loops or the rules of names and kinds that all formats share, and takes no lock of an inode: the
//! vfs does all that.
//!
//! # Locks
//! The vfs holds the locks of the directories and of the inodes that change names.
//!
//! # Crash order: never half done
//! What can fail for lack of space comes first in each handle: the new inode with its contents, then the
//! new name. A new inode whose name could not be added goes on the orphan list in the same handle, and is
//! deleted right after. Everything that follows only fails when the device does, which ends the
//! journal, and with it the transaction.

use super::{Directories, Found};
use crate::alloc::groups::Groups;
use crate::alloc::{Allocator, inodes};
use crate::attr::xattr::Xattrs;
use crate::data::InlineData;
use crate::inode::{Eviction, Inodes, Orphans, disk_kind, ext4, orphan};
use crate::journal::Handle;
use crate::journal::buffer::BlockKind;
use crate::map::{BlockState, META_BLOCK_CREDITS, Maps};
use crate::quota::Quota;
use crate::vfs_ino;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::features::{Incompat, RoCompat};
use blockwright_ondisk::ext4::types::LINK_MAX;
use blockwright_ondisk::ext4::{FileBlock, FileKind as DiskKind, InodeFlags};
use blockwright_vfs as vfs;
use blockwright_vfs::engine::Rename;
use blockwright_vfs::types::{FileKind, NewInode, RenameMode, Timestamp, XattrMode};
use std::sync::Arc;

type Inode = Arc<vfs::Inode>;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Names {
        volume: Volume,
        groups: Groups,
        alloc: Allocator,
        quota: Quota,
        orphans: Orphans,
        inodes: Inodes,
        maps: Maps,
        dirs: Directories,
        xattrs: Xattrs,
        inline: InlineData,
        eviction: Eviction,
    }
}

impl Names {
    fn create_credits(&self, new: &NewInode) -> u32 {
        let xattrs = if new.xattrs.is_empty() {
            0
        } else {
            self.xattrs.credits()
        };
        inodes::ALLOC_CREDITS
            + self.dirs.insert_credits()
            + META_BLOCK_CREDITS
            + orphan::CREDITS
            + xattrs
            + 2 * self.quota.credits()
            + 4
    }

    fn check_room_for_subdirectory(&self, op: &'static str, dir: &vfs::Inode) -> Result<()> {
        let indexed = ext4(dir).flags().contains(InodeFlags::INDEX);
        if dir.attr().nlink >= LINK_MAX
            && !(self.volume.has_ro_compat(RoCompat::DIR_NLINK) && indexed)
        {
            return Err(Error::new(ErrorKind::TooManyLinks, op).ino(dir.ino()));
        }
        Ok(())
    }

    /// One subdirectory more.
    fn add_subdirectory(dir: &vfs::Inode) {
        dir.update_attr(|a| {
            // 1 stands for more than can be counted, for good.
            if a.nlink != 1 {
                a.nlink += 1;
                if a.nlink > LINK_MAX {
                    a.nlink = 1;
                }
            }
        });
    }

    /// One subdirectory less.
    fn remove_subdirectory(dir: &vfs::Inode) {
        dir.update_attr(|a| {
            if a.nlink > 2 {
                a.nlink -= 1;
            }
        });
    }

    fn touch_dir(&self, h: &Handle<'_>, dir: &vfs::Inode, now: Timestamp) -> Result<()> {
        dir.update_attr(|a| (a.mtime, a.ctime) = (now, now));
        ext4(dir).body.lock().version += 1;
        self.inodes.store(h, dir)
    }

    /// Finds a name that is known to name an inode.
    fn find_naming(
        &self,
        op: &'static str,
        dir: &vfs::Inode,
        name: &[u8],
        inode: &vfs::Inode,
    ) -> Result<Found> {
        let found = self
            .dirs
            .find(dir, name)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, op).ino(dir.ino()))?;
        if found.ino != ext4(inode).ino {
            return Err(Error::new(ErrorKind::Stale, op)
                .ino(dir.ino())
                .detail("the name names another inode by now"));
        }
        Ok(found)
    }

    /// See [`blockwright_vfs::engine::Names::create`].
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, `QuotaExceeded`, `KeyRequired`, `TooManyLinks`, damage, or a device error.
    pub(crate) fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<Inode> {
        const OP: &str = "create";
        self.volume.check_writable(OP)?;
        self.check_may_create(OP, dir)?;
        if self.dirs.find(dir, name)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, OP).ino(dir.ino()));
        }
        let is_dir = new.kind == FileKind::Directory;
        if is_dir {
            self.check_room_for_subdirectory(OP, dir)?;
        }
        self.alloc.retry_after_commit(|| {
            let h = self.volume.journal.start(self.create_credits(new), OP)?;
            let nlink = if is_dir { 2 } else { 1 };
            let inode = self
                .inodes
                .create_unstored(&h, dir, new, nlink, InodeFlags::empty())?;
            let kind = disk_kind(new.kind);
            let named = self
                .fill_new(&h, dir, &inode, new)
                .and_then(|()| self.dirs.insert(&h, dir, name, ext4(&inode).ino, kind));
            if let Err(e) = named {
                return Err(self.abandon_new(h, &inode, e));
            }
            if is_dir {
                Self::add_subdirectory(dir);
            }
            self.touch_dir(&h, dir, new.now)?;
            Ok(inode)
        })
    }

    /// See [`blockwright_vfs::engine::Names::create_unnamed`].
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(crate) fn create_unnamed(&self, dir: &Inode, new: &NewInode) -> Result<Inode> {
        const OP: &str = "create unnamed";
        self.volume.check_writable(OP)?;
        self.check_may_create(OP, dir)?;
        self.alloc.retry_after_commit(|| {
            let h = self.volume.journal.start(self.create_credits(new), OP)?;
            let inode = self
                .inodes
                .create_unstored(&h, dir, new, 0, InodeFlags::empty())?;
            let done = self
                .fill_new(&h, dir, &inode, new)
                .and_then(|()| self.orphans.add(&h, &inode))
                .and_then(|()| self.inodes.store(&h, &inode));
            match done {
                Ok(()) => Ok(inode),
                Err(e) => Err(self.abandon_new(h, &inode, e)),
            }
        })
    }

    fn check_may_create(&self, op: &'static str, dir: &Inode) -> Result<()> {
        if ext4(dir).flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::new(ErrorKind::KeyRequired, op)
                .ino(dir.ino())
                .detail("the directory is encrypted"));
        }
        Ok(())
    }

    /// Gives up a new inode that could not be finished; returns the error to report.
    fn abandon_new(&self, h: Handle<'_>, inode: &Inode, cause: Error) -> Error {
        inode.update_attr(|a| a.nlink = 0);
        let listed = self.inodes.store_as_orphan(&h, inode);
        drop(h);
        match listed.and_then(|()| self.eviction.evict(inode)) {
            // Left on the orphan list at worst, for the next mount.
            Ok(()) | Err(_) => cause,
        }
    }

    /// Gives a new inode its contents and attributes.
    fn fill_new(&self, h: &Handle<'_>, dir: &Inode, inode: &Inode, new: &NewInode) -> Result<()> {
        for (name, value) in &new.xattrs {
            // A new inode has no old value to free.
            self.xattrs
                .set_in(h, inode, name, Some(value), XattrMode::Any)?;
        }
        match new.kind {
            FileKind::Directory => self.dirs.init(h, inode, ext4(dir).ino)?,
            FileKind::Symlink => self.fill_symlink(h, inode, &new.symlink)?,
            FileKind::Regular if self.volume.has_incompat(Incompat::INLINE_DATA) => {
                self.inline.start(inode);
            }
            _ => {}
        }
        self.inodes.store(h, inode)
    }

    fn fill_symlink(&self, h: &Handle<'_>, inode: &Inode, target: &[u8]) -> Result<()> {
        let own = ext4(inode);
        let size = target.len() as u64;
        if target.len() < 60 {
            let mut map = own.map.write();
            map.flags -= InodeFlags::EXTENTS;
            map.root = [0; 60];
            map.root[..target.len()].copy_from_slice(target);
            map.disk_size = size;
        } else {
            let block = self.maps.create_meta(h, inode, FileBlock(0))?;
            h.create(block, BlockKind::Symlink, |data| {
                data[..target.len()].copy_from_slice(target);
            })?;
            own.map.write().disk_size = size;
        }
        inode.update_attr(|a| a.size = size);
        Ok(())
    }

    /// See [`blockwright_vfs::engine::Names::read_link`].
    ///
    /// # Errors
    /// `KeyRequired` for an encrypted target, damage, or a device error.
    pub(crate) fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        const OP: &str = "read symbolic link";
        let own = ext4(inode);
        let flags = own.flags();
        if flags.contains(InodeFlags::ENCRYPT) {
            return Err(Error::new(ErrorKind::KeyRequired, OP).ino(inode.ino()));
        }
        let size = inode.size() as usize;
        let mut target = if self.inodes.is_fast_symlink(inode) {
            own.map.read().root[..size.min(60)].to_vec()
        } else if flags.contains(InodeFlags::INLINE_DATA) {
            self.inline.read(inode)?
        } else {
            let bad = |what: &str| {
                self.volume
                    .corrupt(OP, Some(own.ino), None, what.to_owned())
            };
            let (BlockState::Mapped(block), _) = self.maps.lookup(inode, FileBlock(0), 1)? else {
                return Err(bad("the symbolic link has no target block"));
            };
            self.groups.check_block_range(OP, Some(own.ino), block, 1)?;
            let buffer = self
                .volume
                .cache
                .read(block, BlockKind::Symlink, |_| Ok(()))?;
            let data = buffer.data();
            data.get(..size)
                .ok_or_else(|| bad("the symbolic link is longer than a block"))?
                .to_vec()
        };
        if let Some(end) = target.iter().position(|b| *b == 0) {
            target.truncate(end);
        }
        Ok(target)
    }

    /// See [`blockwright_vfs::engine::Names::link`].
    ///
    /// # Errors
    /// `Exists`, `TooManyLinks`, `NoSpace`, damage, or a device error.
    pub(crate) fn link(
        &self,
        dir: &Inode,
        name: &[u8],
        inode: &Inode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "link";
        self.volume.check_writable(OP)?;
        if inode.attr().nlink >= LINK_MAX {
            return Err(Error::new(ErrorKind::TooManyLinks, OP).ino(inode.ino()));
        }
        if self.dirs.find(dir, name)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, OP).ino(dir.ino()));
        }
        self.alloc.retry_after_commit(|| {
            let credits = self.dirs.insert_credits() + orphan::CREDITS + 2;
            let h = self
                .volume
                .journal
                .start(credits + self.quota.credits(), OP)?;
            self.dirs
                .insert(&h, dir, name, ext4(inode).ino, disk_kind(inode.kind()))?;
            let unnamed = inode.update_attr(|a| {
                a.nlink += 1;
                a.ctime = now;
                a.nlink == 1
            });
            if unnamed {
                self.orphans.remove(&h, inode)?;
            }
            self.inodes.store(&h, inode)?;
            self.touch_dir(&h, dir, now)
        })
    }

    /// Takes a name from an inode; without any left it becomes an orphan.
    fn drop_name(&self, h: &Handle<'_>, inode: &vfs::Inode, now: Timestamp) -> Result<()> {
        let left = inode.count_name_removed(now);
        if left == 0 {
            self.inodes.store_as_orphan(h, inode)
        } else {
            self.inodes.store(h, inode)
        }
    }

    fn remove_credits(&self) -> u32 {
        6 + orphan::CREDITS + 2 * self.quota.credits()
    }

    /// See [`blockwright_vfs::engine::Names::unlink`].
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, damage, or a device error.
    pub(crate) fn unlink(
        &self,
        dir: &Inode,
        name: &[u8],
        inode: &Inode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "unlink";
        self.volume.check_writable(OP)?;
        let found = self.find_naming(OP, dir, name, inode)?;
        let h = self.volume.journal.start(self.remove_credits(), OP)?;
        self.dirs.remove(&h, dir, &found)?;
        self.drop_name(&h, inode, now)?;
        self.touch_dir(&h, dir, now)
    }

    /// See [`blockwright_vfs::engine::Names::rmdir`].
    ///
    /// # Errors
    /// `NotEmpty`, `NotFound`, `NotDirectory`, damage, or a device error.
    pub(crate) fn rmdir(
        &self,
        dir: &Inode,
        name: &[u8],
        inode: &Inode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "remove directory";
        self.volume.check_writable(OP)?;
        let found = self.find_naming(OP, dir, name, inode)?;
        if !self.dirs.is_empty(inode)? {
            return Err(Error::new(ErrorKind::NotEmpty, OP).ino(inode.ino()));
        }
        let h = self.volume.journal.start(self.remove_credits(), OP)?;
        self.dirs.remove(&h, dir, &found)?;
        self.drop_name(&h, inode, now)?;
        Self::remove_subdirectory(dir);
        self.touch_dir(&h, dir, now)
    }

    /// See [`blockwright_vfs::engine::Names::rename`].
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NotEmpty`, `NotDirectory`, `IsDirectory`, `TooManyLinks`, `NoSpace` (nothing
    /// has changed), damage, or a device error.
    pub(crate) fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        const OP: &str = "rename";
        self.volume.check_writable(OP)?;
        let Rename {
            old_dir,
            old_name,
            inode,
            new_dir,
            new_name,
            target,
            ..
        } = *rename;
        let old = self.dirs.find(old_dir, old_name)?;
        let there = self.dirs.find(new_dir, new_name)?;
        let number = |found: &Option<Found>| found.as_ref().map(|found| vfs_ino(found.ino));
        rename.check_found(OP, number(&old), number(&there))?;
        if let Some(target) = rename.exchanged() {
            return self.exchange(OP, rename, target);
        }
        if let Some(dir) = rename.replaced_dir()
            && !self.dirs.is_empty(dir)?
        {
            return Err(Error::new(ErrorKind::NotEmpty, OP).ino(dir.ino()));
        }
        if target.is_none() {
            self.check_may_create(OP, new_dir)?;
            if inode.kind() == FileKind::Directory && !rename.same_dir() {
                self.check_room_for_subdirectory(OP, new_dir)?;
            }
        }
        self.alloc
            .retry_after_commit(|| self.rename_once(OP, rename, there))
    }

    fn rename_once(
        &self,
        op: &'static str,
        rename: &Rename<'_>,
        there: Option<Found>,
    ) -> Result<()> {
        let Rename {
            old_dir,
            old_name,
            inode,
            new_dir,
            new_name,
            target,
            mode,
            now,
        } = *rename;
        let same_dir = rename.same_dir();
        let kind = disk_kind(inode.kind());
        let is_dir = kind == DiskKind::Directory;
        let credits = self.dirs.insert_credits()
            + inodes::ALLOC_CREDITS
            + 2 * orphan::CREDITS
            + 4 * self.quota.credits()
            + 10;
        let h = self.volume.journal.start(credits, op)?;
        let whiteout = match mode {
            RenameMode::Whiteout => Some(self.new_whiteout(&h, old_dir, inode, now)?),
            _ => None,
        };
        let named = match &there {
            Some(found) => self
                .dirs
                .retarget(&h, new_dir, found, ext4(inode).ino, kind),
            None => self
                .dirs
                .insert(&h, new_dir, new_name, ext4(inode).ino, kind),
        };
        if let Err(e) = named {
            return Err(match &whiteout {
                Some(whiteout) => self.abandon_new(h, whiteout, e),
                None => e,
            });
        }
        // Looked up again: adding the new name may have moved the old one.
        let old = self.find_naming(op, old_dir, old_name, inode)?;
        match &whiteout {
            Some(w) => {
                self.dirs
                    .retarget(&h, old_dir, &old, ext4(w).ino, DiskKind::CharDevice)?;
            }
            None => self.dirs.remove(&h, old_dir, &old)?,
        }
        if is_dir && !same_dir {
            self.dirs.set_parent(&h, inode, ext4(new_dir).ino)?;
            Self::remove_subdirectory(old_dir);
            Self::add_subdirectory(new_dir);
        }
        if let Some(target) = target {
            if target.kind() == FileKind::Directory {
                Self::remove_subdirectory(new_dir);
            }
            self.drop_name(&h, target, now)?;
        }
        inode.update_attr(|a| a.ctime = now);
        self.inodes.store(&h, inode)?;
        self.touch_dir(&h, old_dir, now)?;
        if !same_dir {
            self.touch_dir(&h, new_dir, now)?;
        }
        Ok(())
    }

    fn new_whiteout(
        &self,
        h: &Handle<'_>,
        dir: &Inode,
        inode: &Inode,
        now: Timestamp,
    ) -> Result<Inode> {
        let new = NewInode::whiteout(&inode.attr(), now);
        self.inodes.create(h, dir, &new, 1, InodeFlags::empty())
    }

    fn exchange(&self, op: &'static str, rename: &Rename<'_>, target: &Inode) -> Result<()> {
        let Rename {
            old_dir,
            old_name,
            inode,
            new_dir,
            new_name,
            now,
            ..
        } = *rename;
        let same_dir = rename.same_dir();
        let (a_dir, b_dir) = (
            inode.kind() == FileKind::Directory,
            target.kind() == FileKind::Directory,
        );
        if !same_dir && a_dir != b_dir {
            self.check_room_for_subdirectory(op, if a_dir { new_dir } else { old_dir })?;
        }
        let old = self.find_naming(op, old_dir, old_name, inode)?;
        let new = self.find_naming(op, new_dir, new_name, target)?;
        let h = self.volume.journal.start(12 + self.quota.credits(), op)?;
        let (a, b) = (ext4(inode).ino, ext4(target).ino);
        self.dirs
            .retarget(&h, new_dir, &new, a, disk_kind(inode.kind()))?;
        self.dirs
            .retarget(&h, old_dir, &old, b, disk_kind(target.kind()))?;
        if !same_dir {
            if a_dir {
                self.dirs.set_parent(&h, inode, ext4(new_dir).ino)?;
                Self::remove_subdirectory(old_dir);
                Self::add_subdirectory(new_dir);
            }
            if b_dir {
                self.dirs.set_parent(&h, target, ext4(old_dir).ino)?;
                Self::remove_subdirectory(new_dir);
                Self::add_subdirectory(old_dir);
            }
        }
        for moved in [inode, target] {
            moved.update_attr(|a| a.ctime = now);
            self.inodes.store(&h, moved)?;
        }
        self.touch_dir(&h, old_dir, now)?;
        if !same_dir {
            self.touch_dir(&h, new_dir, now)?;
        }
        Ok(())
    }

    /// See [`blockwright_vfs::engine::Names::lookup`].
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn lookup(
        &self,
        dir: &Inode,
        name: &[u8],
    ) -> Result<Option<(vfs::Ino, Option<FileKind>)>> {
        let Some(found) = self.dirs.find(dir, name)? else {
            self.dirs.check_sought_name(dir, name)?;
            return Ok(None);
        };
        let kind = DiskKind::from_dirent(found.file_type).map(crate::inode::vfs_kind);
        Ok(Some((vfs_ino(found.ino), kind)))
    }
}
