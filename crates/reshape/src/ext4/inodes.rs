//! Iterates over all inodes of a volume that are in use, group by group.

use blockwright_ondisk::ext4::{GroupFlags, GroupNo, Ino, Inode};

use super::volume::{Volume, bit};
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

impl Volume {
    /// A group's inode bitmap; one that was never written is empty.
    pub fn inode_bitmap(&self, group: GroupNo) -> Result<Vec<u8>> {
        let desc = self.desc(group)?;
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            let mut bits = vec![0; self.disk.block_len()];
            super::volume::set_padding(&mut bits, self.sb.geo.inodes_per_group as usize);
            return Ok(bits);
        }
        let bytes = self.disk.read(desc.inode_bitmap.0, "inode bitmap")?;
        desc.verify_inode_bitmap(&bytes, &self.sb.geo, group)?;
        Ok(bytes)
    }

    /// Tells that a phase that takes one group after the other has come to this one.
    ///
    /// # Errors
    /// `Interrupted`.
    pub fn tell_group(&self, phase: Phase, group: GroupNo) -> Result<()> {
        let groups = self.sb.geo.groups_count;
        let watch = &self.disk.watch;
        watch.tell(phase, u64::from(group.0), u64::from(groups))
    }

    /// Calls `visit` for every inode that is in use, in ascending order.
    ///
    /// # Errors
    /// Those of `visit`; damage of an inode; `Interrupted`.
    pub fn scan_inodes(&self, visit: &mut dyn FnMut(Ino, &Inode) -> Result<()>) -> Result<()> {
        let geo = &self.sb.geo;
        let size = usize::from(geo.inode_size);
        for group in geo.groups() {
            self.tell_group(Phase::Inodes, group)?;
            let desc = self.desc(group)?;
            if desc.free_inodes == geo.inodes_per_group
                || desc.flags.contains(GroupFlags::INODE_UNINIT)
            {
                continue;
            }
            let bits = self.inode_bitmap(group)?;
            let used = geo.inodes_per_group - desc.itable_unused.min(geo.inodes_per_group);
            let blocks = used.div_ceil(geo.inodes_per_block);
            let table = self
                .disk
                .read_run(desc.inode_table.0, u64::from(blocks), "inode table")?;
            for (index, raw) in table.chunks_exact(size).enumerate() {
                if !bit(&bits, index) {
                    continue;
                }
                let ino = geo.ino_at(group, index as u32).ok_or_else(|| {
                    ReshapeError::Damaged(format!("group {group} has too many inodes"))
                })?;
                // Reserved inodes count as used, also those that are empty.
                if raw.iter().all(|byte| *byte == 0) {
                    continue;
                }
                visit(ino, &Inode::parse(raw, geo, ino)?)?;
            }
        }
        Ok(())
    }
}
