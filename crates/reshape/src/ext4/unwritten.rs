//! Parts of a volume that were never written, because their descriptors say so: they are written, so that descriptors need no checksums.
//!
//! # Crash order
//! Bitmaps and tables that count as unwritten are not read by anything, so they are written in place. Then one transaction of the journal
//! has the descriptors.

use blockwright_ondisk::ext4::{GroupFlags, Ino};

use super::volume::{Volume, set_padding};
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

impl Volume {
    /// Writes all that was never written. The descriptors that say so are staged by the caller.
    ///
    /// # Errors
    /// Damage of a descriptor; `Interrupted`.
    pub fn write_unwritten(&mut self) -> Result<()> {
        let geo = self.sb.geo.clone();
        let mut empty = vec![0; geo.block_len()];
        set_padding(&mut empty, geo.inodes_per_group as usize);
        for group in geo.groups() {
            self.tell_group(Phase::Metadata, group)?;
            let mut desc = self.desc(group)?;
            if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                let bits = self.fresh_bitmap(group);
                self.disk
                    .write_now(desc.block_bitmap.0, &bits, "block bitmap")?;
                desc.set_block_bitmap_csum(&bits, &geo);
            }
            let mut used = geo.inodes_per_group - desc.itable_unused.min(geo.inodes_per_group);
            if desc.flags.contains(GroupFlags::INODE_UNINIT) {
                self.disk
                    .write_now(desc.inode_bitmap.0, &empty, "inode bitmap")?;
                desc.set_inode_bitmap_csum(&empty, &geo);
                used = 0;
            }
            if !desc.flags.contains(GroupFlags::INODE_ZEROED) {
                let per = geo.inodes_per_block;
                let whole = used.div_ceil(per);
                let rest = u64::from(geo.inode_table_blocks - whole);
                let first = desc.inode_table.0 + u64::from(whole);
                self.disk.zero_now(first, rest, "inode table")?;
                if !used.is_multiple_of(per) {
                    let ino: Ino = geo.ino_at(group, used).ok_or_else(|| {
                        ReshapeError::Damaged(format!("group {group} has too many inodes"))
                    })?;
                    let (block, at) = self.inode_place(ino)?;
                    let mut bytes = self.disk.read(block, "inode table")?;
                    bytes[at..].fill(0);
                    self.disk.write_now(block, &bytes, "inode table")?;
                }
            }
            desc.flags = GroupFlags::empty();
            desc.itable_unused = 0;
            self.descs[group.0 as usize] = desc;
        }
        self.disk.flush("bitmaps and inode tables")
    }
}
