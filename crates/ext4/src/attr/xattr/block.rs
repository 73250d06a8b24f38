//! The attribute block of an inode. Several inodes with the same attributes may share one block, which then has a reference count.
//!
//! It is the only part that reads or writes attribute blocks. `area` encodes and decodes their contents.

use super::Xattrs;
use super::area::{self, Attribute};
use crate::inode::ext4;
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, BufferRef};
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::BlockNo;
use blockwright_ondisk::sums_differ;
use blockwright_vfs as vfs;

impl Xattrs {
    /// Reads an attribute block; `None` when there is none.
    pub(super) fn block(
        &self,
        op: &'static str,
        inode: &vfs::Inode,
        block: BlockNo,
    ) -> Result<Option<BufferRef>> {
        if block.0 == 0 {
            return Ok(None);
        }
        let ino = ext4(inode).ino;
        self.groups.check_block_range(op, Some(ino), block, 1)?;
        let geo = self.volume.geometry();
        let read = self.volume.cache.read(block, BlockKind::Xattr, |data| {
            if geo.metadata_csum()
                && sums_differ(area::checksum(data), geo.seed.xattr_block(block, data))
            {
                return Err(
                    Error::corrupt(op, "the checksum of the attribute block is wrong")
                        .block(block.0),
                );
            }
            area::parse_block(data)
                .map(drop)
                .map_err(|bad| Error::corrupt(op, bad.0).block(block.0))
        });
        match read {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                Err(self
                    .volume
                    .corrupt(op, Some(ino), Some(block), e.to_string()))
            }
            other => other.map(Some),
        }
    }

    pub(super) fn block_is_shared(&self, op: &'static str, inode: &vfs::Inode) -> Result<bool> {
        let block = ext4(inode).body.lock().file_acl;
        let buffer = self.block(op, inode, block)?;
        Ok(buffer.is_some_and(|b| area::refcount(&b.data()) > 1))
    }

    fn seal(&self, block: BlockNo, data: &mut [u8]) {
        let geo = self.volume.geometry();
        if geo.metadata_csum() {
            let sum = geo.seed.xattr_block(block, data);
            area::set_checksum(data, sum);
        }
    }

    /// Gives the inode a block with these attributes, or none for an empty list; the caller stores
    /// the inode. On an error nothing has changed.
    pub(super) fn put_block(
        &self,
        h: &Handle<'_>,
        inode: &vfs::Inode,
        attrs: &[Attribute],
    ) -> Result<()> {
        const OP: &str = "store attribute block";
        let own = ext4(inode);
        let old = own.body.lock().file_acl;
        let old_buffer = self.block(OP, inode, old)?;
        if attrs.is_empty() {
            if let Some(buffer) = old_buffer {
                self.leave_block(h, inode, &buffer)?;
                own.body.lock().file_acl = BlockNo(0);
            }
            return Ok(());
        }
        let bytes = area::encode_block(attrs, self.volume.block_bytes())
            .ok_or_else(|| Error::new(ErrorKind::NoSpace, OP).ino(inode.ino()))?;
        if let Some(buffer) = &old_buffer {
            let done = h.modify(buffer, |data| {
                // Decided inside the buffer's lock: another inode may leave the block meanwhile.
                if area::refcount(data) > 1 {
                    return false;
                }
                data.copy_from_slice(&bytes);
                self.seal(old, data);
                true
            })?;
            if done {
                return Ok(());
            }
        }
        // A block in place of an old one adds nothing to the owner's use: leaving the old block takes as much off.
        if old_buffer.is_none() {
            self.quota.check_blocks(inode, 1)?;
        }
        let goal = own.location.0;
        let new = self.alloc.alloc_meta(h, goal, own.ino)?;
        h.create(new, BlockKind::Xattr, |data| {
            data.copy_from_slice(&bytes);
            self.seal(new, data);
        })?;
        self.account(inode, 1);
        own.body.lock().file_acl = new;
        match old_buffer {
            Some(buffer) => self.leave_block(h, inode, &buffer),
            None => Ok(()),
        }
    }

    /// Gives up the inode's reference on its block; the last one frees it.
    fn leave_block(&self, h: &Handle<'_>, inode: &vfs::Inode, buffer: &BufferRef) -> Result<()> {
        let block = buffer.block();
        let left = h.modify(buffer, |data| {
            let left = area::refcount(data).saturating_sub(1);
            if left > 0 {
                area::set_refcount(data, left);
                self.seal(block, data);
            }
            left
        })?;
        if left == 0 {
            h.forget(block, 1);
            self.alloc.free(
                h,
                crate::alloc::Run {
                    start: block,
                    len: 1,
                },
                true,
            )?;
        }
        self.account(inode, -1);
        Ok(())
    }

    /// Adds blocks to, or takes them from, the inode's space in use.
    fn account(&self, inode: &vfs::Inode, blocks: i64) {
        let geo = self.volume.geometry();
        let bytes = i64::from(geo.block_size) * i64::from(geo.cluster_ratio);
        self.add_space(inode, blocks * bytes);
    }

    /// Adds bytes to, or takes them from, the inode's space in use. Storing the inode charges quota.
    pub(super) fn add_space(&self, inode: &vfs::Inode, bytes: i64) {
        let sectors = bytes >> 9;
        let mut map = ext4(inode).map.write();
        map.blocks = map.blocks.saturating_add_signed(sectors);
        inode.update_attr(|a| a.blocks512 = a.blocks512.saturating_add_signed(sectors));
    }
}
