//! Small files kept in their inode's node, in the place of its block addresses.
//!
//! A new regular file starts inline. Room for a block is reserved when the first bytes are written, as for any file. Writeback
//! knows the size: it puts data that fits into the node and gives the block back. It does the same for a file that has lost
//! all of its blocks. Data that outgrows the node moves to a block when room is reserved.
//!
//! # Locks
//! A file's `body`, exclusively, inside the gate.
//!
//! # Crash order
//! The block is written before a node names it. Node and size change together.

use crate::alloc::Need;
use crate::data::Data;
use crate::data::log_of;
use crate::node::inode::{Body, f2fs};
use crate::volume::vfs_ino;
use crate::writer::Writer;
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags};
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::summary::Summary;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, NodeOffset};
use blockwright_vfs::{FileKind, Inode};

/// Whether a file has no block, and no nodes except its inode and that of its attributes. It must have no reservation beyond
/// the first block, and no write into that block in flight.
fn has_nothing(body: &Body) -> bool {
    let attributes = u64::from(body.inode.xattr_nid.0 != 0);
    body.inode.blocks == 1 + attributes
        && body.pending.is_empty()
        && !body.delayed.intersects(1..u64::MAX)
}

impl Data {
    /// The most bytes of data that the inode can hold inline; 0 for a file with block addresses.
    pub(crate) fn inline_capacity(body: &Body) -> u64 {
        if body.inode.inline.contains(InlineFlags::DATA) {
            body.layout.inline_bytes().len() as u64
        } else {
            0
        }
    }

    /// Moves an inline file's bytes to a block. The block is written before anything names it.
    pub(crate) fn inline_to_blocks(
        &self,
        w: &Writer,
        inode: &Inode,
        body: &mut Body,
    ) -> Result<()> {
        const OP: &str = "move inline data";
        if !body.inode.inline.contains(InlineFlags::DATA) {
            return Ok(());
        }
        let own = f2fs(inode);
        let node = self.nodes.inode_node(own.ino)?;
        let range = body.layout.inline_bytes();
        let size = (body.disk_size as usize).min(range.len());
        let mut data = AlignedBuf::zeroed(BLOCK_SIZE);
        data[..size].copy_from_slice(&node[range.start..range.start + size]);
        // A change copies the bytes while another reference to them is held.
        drop(node);
        let address = if size > 0 {
            let (version, block) = w.segments.charge_for(1, || {
                let version = self.nodes.nat.get(own.ino.nid())?.version;
                let (block, _) = w.segments.take_run(Need::User, log_of(w, body), 1)?;
                let at = DevOffset(u64::from(block.0) << 12);
                if let Err(e) = self.volume.device.write_at(at, &data, Flags::empty()) {
                    w.segments.give_back(block, 1);
                    return Err(Error::io(OP, e).ino(vfs_ino(own.ino)));
                }
                Ok((version, block))
            })?;
            w.segments.commit_as(block, 1, w.age(), |_| Summary {
                nid: own.ino.nid(),
                version,
                offset: 0,
            })?;
            body.inode.blocks += 1;
            // The block may have been promised already.
            self.tree.drop_delayed(w, body, 0..1);
            block
        } else {
            BlockAddr::NULL
        };
        body.inode.inline -= InlineFlags::DATA | InlineFlags::DATA_EXIST;
        body.end_is_open = false;
        body.layout = body.inode.layout(self.volume.features());
        let words = body.layout.address_bytes();
        self.nodes
            .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                b[words.clone()].fill(0);
                b[words.start..words.start + 4].copy_from_slice(&address.0.to_le_bytes());
            })?;
        body.generation += 1;
        self.tree.store_inode(inode, body)
    }

    /// [`blockwright_vfs::engine::Space::may_go_inline`].
    pub(crate) fn may_go_inline(&self, inode: &Inode) -> bool {
        let body = f2fs(inode).body.read();
        let i = &body.inode;
        inode.kind() == FileKind::Regular
            && !i
                .inline
                .intersects(InlineFlags::DATA | InlineFlags::PIN_FILE)
            && !i.flags.contains(InodeFlags::COMPRESS)
            && !i.advise.intersects(Advise::ENCRYPT | Advise::VERITY)
            && has_nothing(&body)
    }

    /// Puts a file without blocks into its inode, if `bytes` fit that, and gives back what was reserved for them.
    pub(crate) fn go_inline(
        &self,
        w: &Writer,
        inode: &Inode,
        body: &mut Body,
        bytes: u64,
    ) -> Result<bool> {
        let own = f2fs(inode);
        let range = body.layout.inline_bytes();
        if bytes > range.len() as u64 || body.disk_size > bytes || !has_nothing(body) {
            return Ok(false);
        }
        self.tree.drop_delayed(w, body, 0..1);
        body.inode.inline |= InlineFlags::DATA;
        body.inode.extent.2 = 0;
        body.end_is_open = false;
        body.layout = body.inode.layout(self.volume.features());
        body.generation += 1;
        let words = body.layout.address_bytes();
        self.nodes
            .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                b[words.clone()].fill(0)
            })?;
        self.tree.store_inode(inode, body)?;
        self.tree.show_blocks(inode, body);
        Ok(true)
    }

    /// [`blockwright_vfs::engine::Data::write_inline`].
    pub(crate) fn write_inline(&self, inode: &Inode, bytes: &[u8], data_end: u64) -> Result<bool> {
        const OP: &str = "write inline data";
        self.check_changeable(OP, inode)?;
        let op = self.checkpoints.begin(OP)?;
        let own = f2fs(inode);
        let mut body = own.body.write();
        let range = body.layout.inline_bytes();
        if !body.inode.inline.contains(InlineFlags::DATA) {
            return Ok(false);
        }
        if bytes.len() > range.len() {
            return Err(self.volume.corrupt(
                OP,
                Some(own.ino),
                None,
                "the data does not fit the inode",
            ));
        }
        self.nodes
            .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                b[range.clone()].fill(0);
                b[range.start..range.start + bytes.len()].copy_from_slice(bytes);
            })?;
        body.disk_size = data_end;
        if !bytes.is_empty() {
            body.inode.inline |= InlineFlags::DATA_EXIST;
        }
        self.tree.store_inode(inode, &mut body)?;
        drop(op);
        Ok(true)
    }
}
