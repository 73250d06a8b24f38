//! Storing inodes in their nodes, and the accounts that follow an inode: promised blocks, blocks shown to users.
//!
//! # Locks
//! An operation is under way; the inode's `body`, exclusively.

use crate::Result;
use crate::node::inode::{Body, F2fsInode, Pending, disk_time, f2fs};
use crate::node::tree::Tree;
use crate::writer::Writer;
use blockwright_device::AlignedBuf;
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::inode::{InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::node::NodeOffset;
use blockwright_ondisk::f2fs::{BlockAddr, FileKind, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::types as vt;
use std::ops::Range;

/// Flags of chattr(1) that users change here.
pub(crate) const USER_FLAGS: u32 = vt::InodeFlags::SYNC.bits()
    | vt::InodeFlags::IMMUTABLE.bits()
    | vt::InodeFlags::APPEND.bits()
    | vt::InodeFlags::NODUMP.bits()
    | vt::InodeFlags::NOATIME.bits()
    | vt::InodeFlags::DIRSYNC.bits()
    | vt::InodeFlags::PROJINHERIT.bits()
    | vt::InodeFlags::CASEFOLD.bits();

impl Tree {
    /// Makes a block of a directory or a symbolic link, empty.
    pub(crate) fn make_meta_block(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        at: u64,
        bytes: AlignedBuf,
    ) -> Result<()> {
        let slot = self.ensure_slot(w, own, body, at)?;
        self.check_block_quota(own, body, 1)?;
        w.segments.charge_for(1, || {
            self.nodes
                .set_address(slot.nid, slot.start, slot.position, BlockAddr::NEW)
        })?;
        body.inode.blocks += 1;
        self.nodes.blocks.insert_dirty((own.ino, at), bytes);
        Ok(())
    }

    /// Writes an inode's attributes and metadata into its node.
    pub(crate) fn store_inode(&self, inode: &vfs::Inode, body: &mut Body) -> Result<()> {
        Self::fill_inode(&inode.attr(), body.disk_size, &mut body.inode);
        self.store_body(f2fs(inode).ino, body)
    }

    /// Writes an inode's metadata into its node, with the attributes as they were stored last.
    pub(crate) fn store_body(&self, ino: Ino, body: &mut Body) -> Result<()> {
        const OP: &str = "store inode";
        let i = &body.inode;
        self.nodes
            .change_node(ino.nid(), ino, NodeOffset::INODE, |b| i.encode_into(b))?
            .ok_or_else(|| {
                self.volume
                    .corrupt(OP, Some(ino), None, "the inode cannot be encoded")
            })?;
        self.charge_blocks(ino, body);
        Ok(())
    }

    /// Brings an inode as stored up to its attributes in memory.
    pub(crate) fn fill_inode(attr: &vt::Attr, disk_size: u64, i: &mut disk::Inode) {
        i.mode = (attr.kind.mode_bits() | (attr.perm & 0o7777)) as u16;
        i.uid = attr.uid;
        i.gid = attr.gid;
        i.links = attr.nlink;
        i.size = match attr.kind {
            vt::FileKind::Regular => disk_size,
            _ => attr.size,
        };
        i.atime = disk_time(attr.atime);
        i.mtime = disk_time(attr.mtime);
        i.ctime = disk_time(attr.ctime);
        let kept = i.flags.bits() & !USER_FLAGS;
        i.flags = InodeFlags::from_bits_retain(kept | (attr.flags.bits() & USER_FLAGS));
        // The hint is not kept up: it may not name what was freed.
        i.extent.2 = 0;
        if let Some(extra) = &mut i.extra {
            extra.projid = attr.project;
            if let Some(crtime) = attr.crtime {
                extra.crtime = disk_time(crtime);
            }
        }
    }

    /// What `stat` shows of the space taken.
    pub(crate) fn show_blocks(&self, inode: &vfs::Inode, body: &Body) {
        let blocks = body.inode.blocks.saturating_sub(1) + body.delayed_blocks;
        inode.update_attr(|a| a.blocks512 = blocks * 8);
    }

    // ---- reserve ----

    pub(crate) fn drop_delayed(&self, w: &Writer, body: &mut Body, range: Range<u64>) {
        let n = self.take_delayed(body, range);
        w.segments.discharge(0, n);
    }

    /// Forgets promises: how many. Their room is the caller's to give back, or to use.
    pub(crate) fn take_delayed(&self, body: &mut Body, range: Range<u64>) -> u64 {
        let gone = body.delayed.remove(range);
        let n = blockwright_vfs::range_set::total(&gone);
        body.delayed_blocks = body.delayed_blocks.saturating_sub(n);
        if n > 0 {
            self.unpromise_blocks(body, n);
        }
        n
    }

    /// Gives up all that an inode holds in memory only.
    pub(crate) fn release_memory(&self, w: &Writer, body: &mut Body) {
        let runs: Vec<Pending> = body.pending.values().copied().collect();
        body.pending.clear();
        for p in runs {
            w.segments.give_back(p.block, p.len);
        }
        self.drop_delayed(w, body, 0..u64::MAX);
    }

    /// Whether an inode's tree holds anything to free.
    pub(crate) fn has_blocks(body: &Body) -> bool {
        !body
            .inode
            .inline
            .intersects(InlineFlags::DATA | InlineFlags::DENTRY)
            && matches!(
                body.inode.kind(),
                Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)
            )
    }
}
