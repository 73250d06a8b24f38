//! [`Eviction`]: inodes leave memory, and those without a name are deleted.
//!
//! It owns nothing but its references. It calls the parts that hold what an inode has: `Delayed`, `Maps`, `Xattrs`, `Inodes`,
//! `Orphans`, `InodeAllocator` and `Quota`. It never removes a name.
//!
//! # Locks
//! The caller guarantees that no other reference to the inode exists, and holds no handle.
//!
//! # Crash order
//! Blocks and attributes go first, in as many handles as that takes, while the inode is among the orphans. One handle then takes it off
//! the list, stores it without a size and frees its number. A crash in between leaves an orphan for the next mount.

use super::orphan::{self, Orphans};
use super::{Inodes, ext4};
use crate::alloc::inodes::{self, InodeAllocator};
use crate::attr::xattr::Xattrs;
use crate::data::delayed::Delayed;
use crate::map::Maps;
use crate::quota::{Owner, Quota};
use crate::vfs_ino;
use crate::volume::Volume;
use crate::{Error, Result};
use blockwright_ondisk::ext4::{FileBlock, InodeFlags};
use blockwright_vfs as vfs;
use blockwright_vfs::types as vt;
use std::sync::Arc;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Eviction {
        volume: Volume,
        ialloc: InodeAllocator,
        orphans: Orphans,
        quota: Quota,
        inodes: Inodes,
        maps: Maps,
        delayed: Delayed,
        xattrs: Xattrs,
    }
}

impl Eviction {
    /// Frees a value's inode without references. No handle may be held.
    pub(crate) fn reap(&self, ea: Option<Arc<vfs::Inode>>) -> Result<()> {
        match ea {
            Some(ea) => self.evict(&ea).map_err(|e| {
                Error::new(e.kind(), "free attribute value")
                    .ino(vfs_ino(ext4(&ea).ino))
                    .source(e)
            }),
            None => Ok(()),
        }
    }

    /// See [`blockwright_vfs::engine::Attributes::evict`].
    ///
    /// # Errors
    /// A device error; the inode then stays on the orphan list for the next mount.
    pub fn evict(&self, inode: &Arc<vfs::Inode>) -> Result<()> {
        const OP: &str = "delete inode";
        let own = ext4(inode);
        if inode.kind() == vt::FileKind::Regular {
            self.delayed.release_blocks_in_memory(inode);
        }
        if inode.attr().nlink > 0 {
            return self.inodes.write_attr(inode);
        }
        if self.volume.is_read_only() {
            return Ok(());
        }
        let kind = inode.kind();
        let flags = own.flags();
        let maps = match kind {
            vt::FileKind::Regular | vt::FileKind::Directory => true,
            vt::FileKind::Symlink => !self.inodes.is_fast_symlink(inode),
            _ => false,
        } && !flags.contains(InodeFlags::INLINE_DATA);
        let all = FileBlock(0)..FileBlock(1 << 32);
        if maps && !self.maps.is_small_map(inode) {
            self.maps.remove(inode, all.start, all.end, OP)?;
        }
        self.xattrs.drop_all(inode, |value| self.reap(value))?;
        let mut credits = 3 + orphan::CREDITS + inodes::FREE_CREDITS + 2 * self.quota.credits();
        if maps && self.maps.is_small_map(inode) {
            credits += self.maps.small_map_credits(inode);
        }
        let mut h = self.volume.journal.start(credits, OP)?;
        if maps
            && self.maps.is_small_map(inode)
            && !self.maps.remove_in(&h, inode, all.clone(), OP)?
        {
            // More than one handle takes.
            drop(h);
            self.maps.remove(inode, all.start, all.end, OP)?;
            h = self.volume.journal.start(credits, OP)?;
        }
        self.orphans.unlist(&h, inode)?;
        inode.update_attr(|a| {
            a.size = 0;
        });
        {
            let mut map = own.map.write();
            map.disk_size = 0;
            own.body.lock().dtime = u32::try_from(vt::Timestamp::now().secs.max(1)).unwrap_or(1);
            self.inodes.store_locked(&h, inode, &map)?;
        }
        if self.quota.is_charged(own.ino, flags) {
            let owner = Owner::of(&inode.attr());
            self.quota.refund(&h, &owner, 0, 1)?;
        }
        self.ialloc
            .free(&h, own.ino, kind == vt::FileKind::Directory)
    }
}
