//! [`InodeTable`]: where in the inode tables an inode is, and the blocks of the tables.
//!
//! It owns nothing but its references. It calls `volume` and `groups`. It never looks at an inode's bytes.
//!
//! # Locks
//! None of its own.

use super::Ext4Inode;
use crate::alloc::groups::Groups;
use crate::journal::buffer::{BlockKind, BufferRef};
use crate::vfs_ino;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::{self as disk, BlockNo, Ino};

blockwright_vfs::part! {
    /// See the module's head.
    pub struct InodeTable {
        volume: Volume,
        groups: Groups,
    }
}

impl InodeTable {
    /// Where in the inode tables an inode is.
    pub(crate) fn location(&self, ino: Ino) -> Result<(BlockNo, usize, disk::GroupNo)> {
        let geo = self.volume.geometry();
        if ino.0 == 0 || ino.0 > geo.inodes_count {
            return Err(Error::new(ErrorKind::Stale, "load inode")
                .ino(vfs_ino(ino))
                .detail("the inode number is past the volume's last"));
        }
        let index = ino.0 - 1;
        let group = disk::GroupNo(index / geo.inodes_per_group);
        let within = index % geo.inodes_per_group;
        let table = self.groups.inode_table(group)?;
        let block = BlockNo(table.0 + u64::from(within / geo.inodes_per_block));
        let offset = (within % geo.inodes_per_block) as usize * usize::from(geo.inode_size);
        Ok((block, offset, group))
    }

    /// Starts reading the stretch of a group's inode table that `block` lies in: a caller that reads one
    /// inode of a cold volume (for example, a listing) soon reads its neighbours. A device takes as long
    /// for one block as for all of these.
    fn read_ahead(&self, group: disk::GroupNo, block: BlockNo) {
        let geo = self.volume.geometry();
        let Ok(table) = self.groups.inode_table(group) else {
            return;
        };
        let stretch = self.volume.tuning.inode_readahead_blks();
        if stretch == 0 {
            return;
        }
        let within = block.0.saturating_sub(table.0);
        let first = within / stretch * stretch;
        let count = stretch.min(u64::from(geo.inode_table_blocks).saturating_sub(first));
        // At most what `stretch` says, which is small.
        self.volume
            .cache
            .read_around(Some(block), &[(BlockNo(table.0 + first), count as u32)]);
    }

    /// The inode table block an inode lives in.
    pub(crate) fn buffer(&self, ino: Ino) -> Result<(BufferRef, usize)> {
        let (block, offset, group) = self.location(ino)?;
        if self.volume.cache.find(block).is_none() {
            self.read_ahead(group, block);
        }
        // Inodes carry a checksum each, verified when one is loaded; the block has none.
        let buffer = self
            .volume
            .cache
            .read(block, BlockKind::InodeTable(group), |_| Ok(()))?;
        Ok((buffer, offset))
    }

    /// The inode table block of an inode in memory.
    pub(crate) fn stored_in(&self, own: &Ext4Inode) -> Result<(BufferRef, usize)> {
        let (block, offset) = own.location;
        match self.volume.cache.find(block) {
            Some(buffer) => Ok((buffer, offset)),
            None => self.buffer(own.ino),
        }
    }
}
