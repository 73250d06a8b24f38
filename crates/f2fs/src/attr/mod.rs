//! Storing inodes: attributes, new inodes, extended attributes, the end of an inode's life.
//!
//! # Part
//! [`Attributes`] owns nothing beside the other parts. It begins operations, and calls directories only to ask whether one is empty. It never changes
//! names.
//!
//! # Locks
//! An operation is under way; the inode's `body`, exclusively.

mod extended;
pub(crate) mod quotas;

use crate::checkpoint::Checkpoints;
use crate::dir::Directories;
use crate::node::Nodes;
use crate::node::inode::{Body, F2fsInode, disk_time, f2fs, make_dev, vfs_time};
use crate::node::load::Purpose;
use crate::node::tree::Tree;
use crate::node::tree::store::USER_FLAGS;
use crate::volume::Volume;
use crate::volume::vfs_ino;
use crate::writer::Access;
use crate::writer::Writer;
use crate::{Error, ErrorKind, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::acl::Acl;
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::node::{Footer, NodeOffset};
use blockwright_ondisk::f2fs::xattr::{
    self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, NODE_BYTES, Xattr, XattrList,
};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, Features, Ino, Log, Nid};
use blockwright_vfs as vfs;
use blockwright_vfs::quota::Owner;
use blockwright_vfs::types::{self as vt, AttrChange, FileKind, NewInode, XattrMode};
use std::sync::Arc;

/// Major and minor number of a `dev_t`.
fn split_dev(dev: u64) -> (u32, u32) {
    (
        (((dev >> 8) & 0xFFF) | ((dev >> 32) & 0xFFFF_F000)) as u32,
        ((dev & 0xFF) | ((dev >> 12) & 0xFFFF_FF00)) as u32,
    )
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Attributes {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        tree: Tree,
        checkpoints: Checkpoints,
        directories: Directories,
    }
}

impl Attributes {
    /// Writes an inode's attributes into its node, unless it has them.
    pub(crate) fn store_attr_if_changed(&self, inode: &vfs::Inode) -> Result<()> {
        let changed = {
            let body = f2fs(inode).body.read();
            let mut filled = body.inode.clone();
            Tree::fill_inode(&inode.attr(), body.disk_size, &mut filled);
            filled != body.inode
        };
        if changed {
            self.write_attr(inode)?;
        }
        Ok(())
    }

    /// [`blockwright_vfs::engine::Attributes::set_attr`].
    pub(crate) fn set_attr(&self, inode: &vfs::Inode, c: &AttrChange) -> Result<()> {
        const OP: &str = "set attributes";
        let op = self.checkpoints.begin(OP)?;
        let own = f2fs(inode);
        let mut body = own.body.write();
        if let Some(project) = c.project
            && project != inode.attr().project
            && !(self.volume.features().contains(Features::PROJECT_QUOTA)
                && body.inode.extra.is_some_and(|e| e.has_projid()))
        {
            return Err(Error::new(ErrorKind::Unsupported, OP)
                .ino(inode.ino())
                .detail("the volume keeps no projects"));
        }
        if let Some(flags) = c.flags
            && (flags ^ inode.attr().flags).contains(vt::InodeFlags::CASEFOLD)
        {
            let empty = inode.kind() == FileKind::Directory
                && self.directories.dir_is_empty(inode, &body)?;
            if !self.volume.features().contains(Features::CASEFOLD) || !empty {
                return Err(Error::new(ErrorKind::Invalid, OP).ino(inode.ino()));
            }
        }
        let old = Owner::of(&inode.attr());
        let new = Owner {
            uid: c.uid.unwrap_or(old.uid),
            gid: c.gid.unwrap_or(old.gid),
            project: c.project.unwrap_or(old.project),
        };
        self.tree.check_transfer(&body, &old, &new)?;
        self.tree.transfer(&mut body, &old, &new);
        let changeable = vt::InodeFlags::from_bits_retain(USER_FLAGS);
        inode.update_attr(|a| c.apply(a, changeable));
        let result = self.tree.store_inode(inode, &mut body);
        drop(op);
        result
    }

    /// [`blockwright_vfs::engine::Attributes::write_attr`].
    pub(crate) fn write_attr(&self, inode: &vfs::Inode) -> Result<()> {
        let _op = self.checkpoints.begin("write attributes")?;
        let mut body = f2fs(inode).body.write();
        self.tree.store_inode(inode, &mut body)
    }

    /// Makes an inode in memory: its node is dirty, nothing names it yet.
    pub(crate) fn new_inode(
        &self,
        w: &Writer,
        dir: &vfs::Inode,
        name: &[u8],
        new: &NewInode,
        nlink: u32,
    ) -> Result<Arc<vfs::Inode>> {
        let parent = dir.attr();
        let passes_on = parent.flags.contains(vt::InodeFlags::PROJINHERIT);
        let owner = Owner {
            uid: new.uid,
            gid: new.gid,
            project: if passes_on { parent.project } else { 0 },
        };
        self.tree.check_inode_quota(&owner)?;
        let nid = w.segments.charge_for(1, || self.nodes.nat.take(None))?;
        {
            let counts = &mut w.segments.lock().counts;
            counts.nodes += 1;
            counts.inodes += 1;
        }
        let ino = nid.as_ino();
        let mode = new.kind.mode_bits() | (new.perm & 0o7777);
        let mut i = disk::Inode::new(mode as u16, self.volume.features());
        let flexible = self
            .volume
            .features()
            .contains(Features::FLEXIBLE_INLINE_XATTR);
        i.inline |= InlineFlags::XATTR;
        if let Some(extra) = &mut i.extra
            && flexible
        {
            extra.inline_xattr_words = disk::inode::INLINE_XATTR_WORDS as u16;
        }
        match new.kind {
            FileKind::Directory => {
                i.inline |= InlineFlags::DENTRY;
                i.current_depth = 1;
            }
            FileKind::Regular => {
                i.inline |= InlineFlags::DATA;
                match self.volume.sb.raw.temperature(name) {
                    Log::ColdData => i.advise |= Advise::COLD,
                    Log::HotData => i.advise |= Advise::HOT,
                    _ => {}
                }
            }
            _ => {}
        }
        i.generation = w.new_generation();
        i.pino = f2fs(dir).ino;
        i.name = name.to_vec();
        let inherited = {
            let flags = f2fs(dir).body.read().inode.flags;
            let mut keep = InodeFlags::PROJECT_INHERIT & flags;
            if new.kind == FileKind::Directory {
                keep |= flags & InodeFlags::CASEFOLD;
            }
            keep |= flags & (InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::SYNC);
            keep
        };
        i.flags = inherited;
        let crtime = i
            .extra
            .filter(|e| e.has_crtime() && self.volume.features().contains(Features::INODE_CRTIME))
            .map(|_| vfs_time(disk_time(new.now)));
        let attr = vt::Attr {
            ino: vfs_ino(ino),
            generation: i.generation,
            kind: new.kind,
            perm: new.perm & 0o7777,
            nlink,
            uid: new.uid,
            gid: new.gid,
            project: owner.project,
            rdev: match new.kind {
                FileKind::CharDevice | FileKind::BlockDevice => {
                    let (major, minor) = split_dev(new.rdev);
                    make_dev(major, minor)
                }
                _ => 0,
            },
            size: 0,
            blocks512: 0,
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
            crtime,
            flags: vt::InodeFlags::from_bits_truncate(inherited.bits()),
        };
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        let footer = Footer {
            nid,
            ino,
            offset: NodeOffset::INODE,
            cold: new.kind != FileKind::Directory,
            fsync: false,
            dentry: false,
            version: 0,
            next: BlockAddr(0),
        };
        // The block has its full length.
        let _ = footer.write(&mut bytes);
        let body = Body::new(&self.volume, i);
        if matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            let (major, minor) = split_dev(new.rdev);
            let at = body.layout.address_bytes().start;
            for (n, word) in disk::inode::encode_device(major, minor).iter().enumerate() {
                bytes[at + n * 4..at + n * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        self.nodes.cache.insert_dirty(nid, bytes);
        let own = F2fsInode::new(ino, body);
        let inode = Arc::new(vfs::Inode::new(attr, own));
        let mut body = f2fs(&inode).body.write();
        self.tree.store_inode(&inode, &mut body)?;
        self.tree.count_inode(&inode, &mut body, 1);
        drop(body);
        Ok(inode)
    }

    /// Frees an inode that nothing names: its blocks, its nodes, itself.
    pub(crate) fn free_inode(&self, w: &Writer, inode: &vfs::Inode) -> Result<()> {
        let own = f2fs(inode);
        let mut body = own.body.write();
        self.tree.release_memory(w, &mut body);
        if inode.kind() != FileKind::Regular {
            let end = inode.size().div_ceil(4096);
            let blocks = (0..end).map(|at| (own.ino, at));
            let is_its = |(ino, _): &(Ino, u64)| *ino == own.ino;
            self.nodes.blocks.remove_all(blocks, end, is_its);
        }
        if let Err(e) = self.free_contents(w, own, &mut body) {
            // It stays an orphan, and must not name the nodes that are gone.
            self.tree.store_inode(inode, &mut body)?;
            return Err(e);
        }
        self.tree.free_node(w, &mut body, own.ino.nid())?;
        body.gone = true;
        self.tree.count_inode(inode, &mut body, -1);
        let counts = &mut w.segments.lock().counts;
        counts.inodes = counts.inodes.saturating_sub(1);
        drop(body);
        w.orphans.lock().remove(&own.ino);
        Ok(())
    }

    /// Frees all nodes of an inode but its own. After an error the body says what is left.
    fn free_contents(&self, w: &Writer, own: &F2fsInode, body: &mut Body) -> Result<()> {
        if Tree::has_blocks(body) {
            self.tree.free_from(w, own, body, 0)?;
        }
        if let Some(nid) = body.inode.xattr_nid.non_zero() {
            self.tree.free_node(w, body, nid)?;
            body.inode.xattr_nid = Nid(0);
        }
        Ok(())
    }

    /// [`blockwright_vfs::engine::Attributes::evict`].
    pub(crate) fn evict(&self, inode: &vfs::Inode) -> Result<()> {
        if self.access.writer.is_none() {
            return Ok(());
        }
        let op = self.checkpoints.begin("evict")?;
        if inode.attr().nlink == 0 {
            return self.free_inode(op.w, inode);
        }
        let own = f2fs(inode);
        let mut body = own.body.write();
        self.tree.release_memory(op.w, &mut body);
        self.nodes.assert_stored(op.w, own, &body);
        Ok(())
    }

    /// Deletes what the last mount left without a name.
    pub(crate) fn finish_orphans(&self) -> Result<()> {
        let Some(w) = &self.access.writer else {
            return Ok(());
        };
        let list: Vec<Ino> = w.orphans.lock().iter().copied().collect();
        for ino in list {
            let op = self.checkpoints.begin("finish orphan")?;
            match self.nodes.load_inode_for(ino, Purpose::Orphan) {
                Ok(inode) if inode.attr().nlink == 0 => self.free_inode(op.w, &inode)?,
                // Named again, or gone: nothing to finish.
                Ok(_) => drop(w.orphans.lock().remove(&ino)),
                Err(e) if e.kind() == ErrorKind::Stale => drop(w.orphans.lock().remove(&ino)),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    // ---- extended attributes ----

    /// Sets or removes (`None`) an attribute.
    pub(crate) fn change_xattr(
        &self,
        inode: &vfs::Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let op = self.checkpoints.begin("set attribute")?;
        self.change_xattr_in(op.w, inode, name, value, mode)
    }

    pub(crate) fn change_xattr_in(
        &self,
        w: &Writer,
        inode: &vfs::Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        const OP: &str = "set attribute";
        let own = f2fs(inode);
        let error = |kind| Error::new(kind, OP).ino(vfs_ino(own.ino));
        let Some((index, rest)) = xattr::split_name(name) else {
            return Err(error(ErrorKind::Unsupported));
        };
        let stored = match value {
            Some(value) if index == INDEX_ACL_ACCESS || index == INDEX_ACL_DEFAULT => Some(
                Acl::from_xattr(value)
                    .map_err(|_| error(ErrorKind::Invalid))?
                    .to_disk(),
            ),
            other => other.map(<[u8]>::to_vec),
        };
        if stored.as_ref().is_some_and(|v| v.len() > xattr::VALUE_MAX) {
            return Err(error(ErrorKind::TooBig));
        }
        let bytes = self.xattr_list_bytes(inode)?;
        let list = XattrList::parse(&bytes).map_err(|e| self.volume.refused(OP, own.ino, &e))?;
        let exists = list.find(index, rest).is_some();
        match (exists, mode, &stored) {
            (true, XattrMode::Create, Some(_)) => return Err(error(ErrorKind::Exists)),
            (false, XattrMode::Replace, Some(_)) | (false, _, None) => {
                return Err(error(ErrorKind::NoAttribute));
            }
            _ => {}
        }
        let mut all: Vec<Xattr<'_>> = list
            .iter()
            .filter(|x| x.index != index || x.name != rest)
            .collect();
        if let Some(value) = &stored {
            all.push(Xattr {
                index,
                name: rest,
                value,
            });
        }
        let mut body = own.body.write();
        let inline = body.layout.xattr_bytes();
        let Some((head, tail)) = xattr::build(&all, inline.len()) else {
            return Err(error(ErrorKind::NoSpace));
        };
        let old = body.inode.xattr_nid.non_zero();
        match (tail, old) {
            (Some(tail), nid) => {
                let nid = match nid {
                    Some(nid) => nid,
                    None => self.tree.make_node(w, own, &mut body, NodeOffset::XATTR)?,
                };
                body.inode.xattr_nid = nid;
                self.nodes
                    .change_node(nid, own.ino, NodeOffset::XATTR, |b| {
                        b[..NODE_BYTES].copy_from_slice(&tail[..NODE_BYTES]);
                    })?;
            }
            (None, Some(nid)) => {
                self.tree.free_node(w, &mut body, nid)?;
                body.inode.xattr_nid = Nid(0);
            }
            (None, None) => {}
        }
        self.nodes
            .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                b[inline.clone()].copy_from_slice(&head);
            })?;
        self.tree.store_inode(inode, &mut body)?;
        self.tree.show_blocks(inode, &body);
        Ok(())
    }
}
