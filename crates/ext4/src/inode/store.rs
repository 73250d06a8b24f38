//! [`Inodes`]: storing inodes with what their owners are charged, and making new ones (`create`).
//!
//! It owns nothing but its references. It calls `StoredInodes`, `Orphans`, `InodeAllocator` and `Quota`. It never maps a block and
//! never looks into a directory.
//!
//! # Locks
//! An inode's `map` and `body`, below a handle.
//!
//! # Crash order
//! A change of space and its charge are in one handle. A new inode without a name goes on the orphan list in the handle that makes it.

use super::orphan::Orphans;
use super::stored::StoredInodes;
use super::table::InodeTable;
use super::{MapState, ext4};
use crate::Result;
use crate::alloc::inodes::InodeAllocator;
use crate::journal::Handle;
use crate::quota::{Owner, Quota};
use crate::volume::Volume;
use blockwright_ondisk::ext4::InodeFlags;
use blockwright_ondisk::ext4::features::Incompat;
use blockwright_vfs as vfs;
use blockwright_vfs::types as vt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Inodes {
        pub(super) volume: Volume,
        pub(super) ialloc: InodeAllocator,
        pub(super) table: InodeTable,
        orphans: Orphans,
        pub(super) stored: StoredInodes,
        pub(super) quota: Quota,
    }
}

impl Inodes {
    /// Writes an inode into its table block. Takes the map lock for reading.
    ///
    /// # Errors
    /// A device error, or a value the volume's format cannot hold.
    pub fn store(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let map = ext4(inode).map.read();
        self.store_locked(h, inode, &map)
    }

    /// [`Self::store`] for a holder of the map lock.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub fn store_locked(&self, h: &Handle<'_>, inode: &vfs::Inode, map: &MapState) -> Result<()> {
        self.write(h, inode, map)?;
        ext4(inode).datasync_tid.raise(h.tid());
        Ok(())
    }

    /// Writes an inode of which only times have changed: `fdatasync` need not wait for it.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub fn store_times(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let map = ext4(inode).map.read();
        self.write(h, inode, &map)
    }

    fn write(&self, h: &Handle<'_>, inode: &vfs::Inode, map: &MapState) -> Result<()> {
        let own = ext4(inode);
        let place = self.table.stored_in(own)?;
        let charged = own.charged_sectors.swap(map.blocks, Ordering::AcqRel);
        if charged != map.blocks && self.quota.is_charged(own.ino, map.flags) {
            let sectors = map.blocks as i64 - charged as i64;
            let owner = Owner::of(&inode.attr());
            self.quota.add(h, &owner, sectors * 512, 0)?;
        }
        self.stored.write_at(h, inode, map, place)
    }

    /// Whether times were changed in memory since the inode was stored.
    fn times_are_dirty(inode: &vfs::Inode) -> bool {
        let attr = inode.attr();
        *ext4(inode).stored_times.lock() != [attr.atime, attr.mtime, attr.ctime]
    }

    /// Journals attributes that were changed in memory only.
    ///
    /// # Errors
    /// A device error.
    pub fn write_attr(&self, inode: &Arc<vfs::Inode>) -> Result<()> {
        if self.volume.is_read_only() || !Self::times_are_dirty(inode) {
            return Ok(());
        }
        let h = self.volume.journal.start(1, "write inode times")?;
        self.store_times(&h, inode)
    }

    /// Whether a symlink's target is kept in `i_block`.
    pub(crate) fn is_fast_symlink(&self, inode: &vfs::Inode) -> bool {
        let own = ext4(inode);
        let map = own.map.read();
        if inode.kind() != vt::FileKind::Symlink
            || map
                .flags
                .intersects(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS)
            || map.disk_size >= 60
        {
            return false;
        }
        // Values of attributes in inodes of their own count as the link's space, so that its space says
        // nothing; old links of less than 60 bytes in a block only exist without them.
        if self.volume.has_incompat(Incompat::EA_INODE) {
            return true;
        }
        let attr_sectors = match own.body.lock().file_acl.0 {
            0 => 0,
            _ => {
                (u64::from(self.volume.geometry().cluster_ratio)
                    << self.volume.geometry().block_bits)
                    >> 9
            }
        };
        map.blocks.saturating_sub(attr_sectors) == 0
    }

    /// Puts an inode among the orphans, if it is not there, and stores it.
    ///
    /// # Errors
    /// A device error.
    pub fn store_as_orphan(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        self.orphans.put_on(h, inode)?;
        self.store(h, inode).or_else(|e| {
            // The head is in the transaction already, and must lead to somewhere.
            self.orphans.put_own_link(h, inode)?;
            Err(e)
        })
    }
}
