//! New inodes: number, charge, inherited flags, generation. What they hold is the caller's work.
//!
//! The owner is charged first, then a number is taken; what fails gives both back in the same handle, so a crash shows neither. The vfs
//! holds the lock of the directory.

use super::store::Inodes;
use super::{disk_kind, disk_time, empty_extent_root, ext4, split_dev};
use crate::Result;
use crate::journal::Handle;
use blockwright_ondisk::ext4 as disk;
use blockwright_vfs as vfs;
use blockwright_vfs::types as vt;
use disk::features::Incompat;
use disk::{FileKind, Ino, InodeFlags};
use std::sync::Arc;

impl Inodes {
    /// Makes a new inode in memory and stores it: number, inherited flags and `extra`, times, first mapping. Its
    /// link count is what the caller says. Contents and attributes are the caller's work. One for an attribute's value
    /// (`EA_INODE`) is charged to no owner.
    ///
    /// # Errors
    /// `NoSpace` without free inodes, `QuotaExceeded`, or a device error.
    pub(crate) fn create(
        &self,
        h: &Handle<'_>,
        dir: &vfs::Inode,
        new: &vt::NewInode,
        nlink: u32,
        extra: InodeFlags,
    ) -> Result<Arc<vfs::Inode>> {
        let inode = self.create_unstored(h, dir, new, nlink, extra)?;
        if let Err(e) = self.store(h, &inode) {
            let is_dir = new.kind == vt::FileKind::Directory;
            self.ialloc.free(h, ext4(&inode).ino, is_dir)?;
            let charge = crate::quota::Owner::of(&inode.attr());
            let count = i64::from(!extra.contains(InodeFlags::EA_INODE));
            self.quota.refund(h, &charge, 0, count)?;
            return Err(e);
        }
        Ok(inode)
    }

    /// [`Self::create`] for a caller that stores the inode later in the handle, when it has its contents.
    pub(crate) fn create_unstored(
        &self,
        h: &Handle<'_>,
        dir: &vfs::Inode,
        new: &vt::NewInode,
        nlink: u32,
        extra: InodeFlags,
    ) -> Result<Arc<vfs::Inode>> {
        let geo = self.volume.geometry();
        let parent_flags = ext4(dir).flags();
        let parent = dir.attr();
        let kind = disk_kind(new.kind);
        let is_value = extra.contains(InodeFlags::EA_INODE);
        let flags = match is_value {
            true => self.inherited_flags(InodeFlags::empty(), kind) | extra,
            false => self.inherited_flags(parent_flags, kind) | extra,
        };
        let count = i64::from(!is_value);
        let project = if parent.flags.contains(vt::InodeFlags::PROJINHERIT) {
            parent.project
        } else {
            0
        };
        let charge = crate::quota::Owner {
            uid: new.uid,
            gid: new.gid,
            project,
        };
        self.quota.charge(h, &charge, 0, count)?;
        let ino = match self.ialloc.alloc(h, dir, new.kind) {
            Ok(ino) => ino,
            Err(e) => {
                self.quota.refund(h, &charge, 0, count)?;
                return Err(e);
            }
        };
        let inode = (|| {
            let (buffer, offset) = self.table.buffer(ino)?;
            let old = {
                let data = buffer.data();
                let at = offset + 0x64;
                u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
            };
            let mut i = disk::Inode::new(geo, kind.mode_bits() | (new.perm & 0o7777) as u16);
            let now = disk_time(new.now);
            (i.uid, i.gid, i.projid) = (new.uid, new.gid, project);
            (i.atime, i.mtime, i.ctime) = (now, now, now);
            i.crtime = i.crtime.map(|_| now);
            i.links = nlink as u16;
            i.flags = flags;
            i.generation = self.next_generation(ino, old, new.now);
            match kind {
                FileKind::CharDevice | FileKind::BlockDevice => {
                    let (major, minor) = split_dev(new.rdev);
                    i.set_device(major, minor);
                }
                _ if flags.contains(InodeFlags::EXTENTS) => i.block = empty_extent_root(),
                _ => {}
            }
            let raw = vec![0; usize::from(geo.inode_size)];
            Ok(self
                .stored
                .make(ino, kind, &i, raw, (buffer.block(), offset)))
        })();
        if inode.is_err() {
            self.ialloc
                .free(h, ino, new.kind == vt::FileKind::Directory)?;
            self.quota.refund(h, &charge, 0, count)?;
        }
        inode
    }

    fn inherited_flags(&self, parent: InodeFlags, kind: FileKind) -> InodeFlags {
        let inherited = InodeFlags::SECRM
            | InodeFlags::UNRM
            | InodeFlags::COMPR
            | InodeFlags::SYNC
            | InodeFlags::NODUMP
            | InodeFlags::NOATIME
            | InodeFlags::NOCOMPR
            | InodeFlags::JOURNAL_DATA
            | InodeFlags::NOTAIL
            | InodeFlags::DIRSYNC
            | InodeFlags::PROJINHERIT
            | InodeFlags::CASEFOLD
            | InodeFlags::DAX;
        let for_directories = InodeFlags::DIRSYNC | InodeFlags::CASEFOLD | InodeFlags::PROJINHERIT;
        let mut flags = parent & inherited;
        match kind {
            FileKind::Directory => {}
            FileKind::Regular => flags -= for_directories,
            _ => flags &= InodeFlags::NODUMP | InodeFlags::NOATIME,
        }
        let maps = matches!(
            kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        if maps && self.volume.has_incompat(Incompat::EXTENT) {
            flags |= InodeFlags::EXTENTS;
        }
        flags
    }

    /// A generation that differs from the one the number had before. Derived, not random, so that
    /// building an image twice from the same input gives the same bytes.
    fn next_generation(&self, ino: Ino, old: u32, now: vt::Timestamp) -> u32 {
        let mut state = disk::checksum::crc32c(!0, &self.volume.geometry().uuid);
        state = disk::checksum::crc32c(state, &ino.0.to_le_bytes());
        state = disk::checksum::crc32c(state, &now.secs.to_le_bytes());
        state = disk::checksum::crc32c(state, &now.nanos.to_le_bytes());
        state = disk::checksum::crc32c(state, &old.to_le_bytes());
        if state == old {
            state.wrapping_add(1)
        } else {
            state
        }
    }
}
