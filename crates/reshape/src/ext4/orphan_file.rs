//! Removing the file of orphans (`orphan_file`), which only a volume with a journal may have.
//!
//! # Crash order
//! One transaction of the journal: the superblock without the feature, the blocks and the inode given back.

use blockwright_ondisk::ext4::{Compat, Ino};

use super::commit::Order;
use super::log::Log;
use super::volume::{Volume, clear_bit};
use crate::error::{ReshapeError, Result};

impl Volume {
    /// Takes the file of orphans away. It is empty: a volume with orphans is not opened.
    ///
    /// # Errors
    /// `Damaged` without a journal, and for a file that is invalid.
    pub fn remove_orphan_file(&mut self) -> Result<()> {
        let mut log = Log::open(self)?.ok_or_else(|| {
            ReshapeError::Damaged("there is a file of orphans and no journal".into())
        })?;
        let ino = Ino(self.sb.raw.orphan_file_inum.get());
        let (group, index) = self
            .sb
            .geo
            .split_ino(ino)
            .ok_or_else(|| ReshapeError::Damaged(format!("there is no inode {ino}")))?;
        let inode = self.inode(ino)?;
        let map = self.runs(ino, &inode)?;
        self.free_map(&map)?;
        self.stage_inode(ino, None)?;
        let mut bits = self.inode_bitmap(group)?;
        clear_bit(&mut bits, index as usize);
        let mut desc = self.desc(group)?;
        desc.free_inodes += 1;
        desc.set_inode_bitmap_csum(&bits, &self.sb.geo);
        self.descs[group.0 as usize] = desc;
        self.disk.stage(desc.inode_bitmap.0, bits);
        let mut features = self.sb.raw.features();
        features.compat.remove(Compat::ORPHAN_FILE);
        self.sb.raw.set_features(features);
        self.sb.raw.orphan_file_inum.set(0);
        self.count_free();
        self.follow()?;
        self.stage_descs()?;
        self.commit_through(&mut log, Order::Log)
    }
}
