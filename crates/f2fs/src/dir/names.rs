//! Changes of the tree: making, linking, removing and renaming, each in one operation: a checkpoint has all
//! of it or nothing.
//!
//! Not responsible for: permissions, locks of inodes, ancestor loops, the rules of names and kinds that all formats share
//! (the vfs), and what a directory looks like inside (`change`).
//!
//! # Part
//! [`Names`] owns nothing beside the other parts. It begins operations, and calls directories for entries and attributes for inodes. It never touches
//! contents of files.
//!
//! # Never half done
//! The steps that can fail for lack of space come first: the new inode with its contents, then the new name. A new
//! inode whose name could not be added is freed again at once.

use crate::attr::Attributes;
use crate::checkpoint::Checkpoints;
use crate::dir::Directories;
use crate::node::Nodes;
use crate::node::inode::f2fs;
use crate::node::sought::Entry;
use crate::node::tree::Tree;
use crate::volume::{Volume, vfs_ino};
use crate::writer::Access;
use crate::writer::Writer;
use crate::writer::chain::CheckpointReason;
use crate::{Error, ErrorKind, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags};
use blockwright_ondisk::f2fs::node::NodeOffset;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::engine::Rename;
use blockwright_vfs::types::{FileKind, NewInode, RenameMode, Timestamp, XattrMode};
use std::sync::Arc;

type Inode = Arc<vfs::Inode>;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Names {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        tree: Tree,
        checkpoints: Checkpoints,
        directories: Directories,
        attributes: Attributes,
    }
}

impl Names {
    fn touch_dir(&self, dir: &vfs::Inode, now: Timestamp) -> Result<()> {
        dir.update_attr(|a| (a.mtime, a.ctime) = (now, now));
        let mut body = f2fs(dir).body.write();
        self.tree.store_inode(dir, &mut body)?;
        self.tree.show_blocks(dir, &body);
        Ok(())
    }

    fn check_may_create(&self, op: &'static str, dir: &Inode) -> Result<()> {
        self.access.writer(op)?;
        f2fs(dir).check_readable(op)?;
        Ok(())
    }

    fn check_absent(&self, op: &'static str, dir: &Inode, name: &[u8]) -> Result<()> {
        let body = f2fs(dir).body.read();
        if self.directories.find_entry(dir, &body, name)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, op).ino(dir.ino()));
        }
        Ok(())
    }

    fn add_name(
        &self,
        w: &Writer,
        dir: &Inode,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        let mut body = f2fs(dir).body.write();
        self.directories
            .insert_entry(w, dir, &mut body, name, ino, kind)
    }

    fn fill_new(&self, w: &Writer, dir: &Inode, inode: &Inode, new: &NewInode) -> Result<()> {
        for (name, value) in &new.xattrs {
            self.attributes
                .change_xattr_in(w, inode, name, Some(value), XattrMode::Any)?;
        }
        let own = f2fs(inode);
        let mut body = own.body.write();
        match new.kind {
            FileKind::Directory => self.directories.init_dir(inode, &mut body, f2fs(dir).ino)?,
            FileKind::Symlink => {
                let target = &new.symlink;
                let range = body.layout.inline_bytes();
                if target.len() < range.len() {
                    body.inode.inline |= InlineFlags::DATA | InlineFlags::DATA_EXIST;
                    self.nodes
                        .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                            b[range.start..range.start + target.len()].copy_from_slice(target);
                        })?;
                } else {
                    let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
                    bytes[..target.len()].copy_from_slice(target);
                    self.tree.make_meta_block(w, own, &mut body, 0, bytes)?;
                }
                inode.update_attr(|a| a.size = target.len() as u64);
            }
            _ => {}
        }
        self.tree.store_inode(inode, &mut body)?;
        self.tree.show_blocks(inode, &body);
        Ok(())
    }

    /// Gives up a new inode that could not be finished; returns the error to report.
    fn abandon_new(&self, w: &Writer, inode: &Inode, cause: Error) -> Error {
        inode.update_attr(|a| a.nlink = 0);
        match self.attributes.free_inode(w, inode) {
            Ok(()) | Err(_) => cause,
        }
    }

    /// See [`blockwright_vfs::engine::Names::create`].
    pub(crate) fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<Inode> {
        const OP: &str = "create";
        self.check_may_create(OP, dir)?;
        let op = self.checkpoints.begin(OP)?;
        self.check_absent(OP, dir, name)?;
        let is_dir = new.kind == FileKind::Directory;
        let inode = self
            .attributes
            .new_inode(op.w, dir, name, new, if is_dir { 2 } else { 1 })?;
        let named = self
            .fill_new(op.w, dir, &inode, new)
            .and_then(|()| self.add_name(op.w, dir, name, f2fs(&inode).ino, new.kind));
        if let Err(e) = named {
            return Err(self.abandon_new(op.w, &inode, e));
        }
        if is_dir {
            dir.update_attr(|a| a.nlink += 1);
        }
        self.touch_dir(dir, new.now)?;
        Ok(inode)
    }

    /// See [`blockwright_vfs::engine::Names::create_unnamed`].
    pub(crate) fn create_unnamed(&self, dir: &Inode, new: &NewInode) -> Result<Inode> {
        const OP: &str = "create unnamed";
        self.check_may_create(OP, dir)?;
        let op = self.checkpoints.begin(OP)?;
        let inode = self.attributes.new_inode(op.w, dir, b"", new, 0)?;
        if let Err(e) = self.fill_new(op.w, dir, &inode, new) {
            return Err(self.abandon_new(op.w, &inode, e));
        }
        op.w.orphans.lock().insert(f2fs(&inode).ino);
        Ok(inode)
    }

    /// See [`blockwright_vfs::engine::Names::link`].
    pub(crate) fn link(
        &self,
        dir: &Inode,
        name: &[u8],
        inode: &Inode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "link";
        self.check_may_create(OP, dir)?;
        if inode.attr().nlink == u32::MAX {
            return Err(Error::new(ErrorKind::TooManyLinks, OP).ino(inode.ino()));
        }
        let op = self.checkpoints.begin(OP)?;
        self.check_absent(OP, dir, name)?;
        let own = f2fs(inode);
        op.w.chain.mark_file(own.ino, CheckpointReason::Renamed);
        self.add_name(op.w, dir, name, own.ino, inode.kind())?;
        let unnamed = inode.update_attr(|a| {
            a.nlink += 1;
            a.ctime = now;
            a.nlink == 1
        });
        let mut body = own.body.write();
        if unnamed {
            op.w.orphans.lock().remove(&own.ino);
            body.inode.pino = f2fs(dir).ino;
            body.inode.name = name.to_vec();
        }
        self.tree.store_inode(inode, &mut body)?;
        drop(body);
        self.touch_dir(dir, now)
    }

    /// Takes a name from an inode; without any left it becomes an orphan.
    fn drop_name(
        &self,
        w: &Writer,
        dir: &vfs::Inode,
        name: &[u8],
        inode: &vfs::Inode,
        now: Timestamp,
    ) -> Result<()> {
        let left = inode.count_name_removed(now);
        let own = f2fs(inode);
        if left == 0 {
            w.orphans.lock().insert(own.ino);
        } else {
            w.chain.mark_file(own.ino, CheckpointReason::Renamed);
        }
        // A directory's contents went before it, in ways that no chain records.
        let survives = left > 0 || inode.kind() == FileKind::Directory;
        w.chain.mark_name(f2fs(dir).ino, name, survives);
        self.tree.store_inode(inode, &mut own.body.write())
    }

    fn remove_name(
        &self,
        op: &'static str,
        w: &Writer,
        dir: &Inode,
        name: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let mut body = f2fs(dir).body.write();
        let entry = self
            .directories
            .find_entry(dir, &body, name)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, op).ino(dir.ino()))?;
        if entry.ino != f2fs(inode).ino {
            return Err(Error::new(ErrorKind::Stale, op)
                .ino(dir.ino())
                .detail("the name names another inode by now"));
        }
        let result = self.directories.remove_entry(w, dir, &mut body, &entry);
        self.tree.store_inode(dir, &mut body)?;
        result
    }

    /// See [`blockwright_vfs::engine::Names::unlink`].
    pub(crate) fn unlink(
        &self,
        dir: &Inode,
        name: &[u8],
        inode: &Inode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "unlink";
        let op = self.checkpoints.begin(OP)?;
        self.remove_name(OP, op.w, dir, name, inode)?;
        self.drop_name(op.w, dir, name, inode, now)?;
        self.touch_dir(dir, now)
    }

    /// See [`blockwright_vfs::engine::Names::rmdir`].
    pub(crate) fn rmdir(
        &self,
        dir: &Inode,
        name: &[u8],
        inode: &Inode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "remove directory";
        let op = self.checkpoints.begin(OP)?;
        if !self
            .directories
            .dir_is_empty(inode, &f2fs(inode).body.read())?
        {
            return Err(Error::new(ErrorKind::NotEmpty, OP).ino(inode.ino()));
        }
        self.remove_name(OP, op.w, dir, name, inode)?;
        self.drop_name(op.w, dir, name, inode, now)?;
        dir.update_attr(|a| a.nlink = a.nlink.saturating_sub(1).max(2));
        self.touch_dir(dir, now)
    }

    fn set_parent(&self, inode: &vfs::Inode, parent: Ino) -> Result<()> {
        let body = f2fs(inode).body.write();
        let entry = self
            .directories
            .find_entry(inode, &body, b"..")?
            .ok_or_else(|| {
                self.volume.corrupt(
                    "rename",
                    Some(f2fs(inode).ino),
                    None,
                    "there is no entry \"..\"",
                )
            })?;
        self.directories
            .retarget_entry(inode, &body, &entry, parent, FileKind::Directory)
    }

    /// Notes where an inode is named, for recovery.
    fn set_name(
        &self,
        w: &Writer,
        inode: &vfs::Inode,
        dir: &vfs::Inode,
        name: &[u8],
        now: Timestamp,
    ) -> Result<()> {
        inode.update_attr(|a| a.ctime = now);
        w.chain
            .mark_file(f2fs(inode).ino, CheckpointReason::Renamed);
        let mut body = f2fs(inode).body.write();
        body.inode.pino = f2fs(dir).ino;
        body.inode.name = name.to_vec();
        body.inode.advise -= Advise::LOST_PINO;
        self.tree.store_inode(inode, &mut body)
    }

    /// See [`blockwright_vfs::engine::Names::rename`].
    pub(crate) fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        const OP: &str = "rename";
        let Rename {
            old_dir,
            old_name,
            inode,
            new_dir,
            new_name,
            target,
            mode,
            now,
        } = *rename;
        self.check_may_create(OP, new_dir)?;
        f2fs(old_dir).check_readable(OP)?;
        let op = self.checkpoints.begin(OP)?;
        let find = |dir: &Inode, name: &[u8]| {
            let body = f2fs(dir).body.read();
            self.directories.find_entry(dir, &body, name)
        };
        let number = |entry: &Option<Entry>| entry.as_ref().map(|e| vfs_ino(e.ino));
        let old = find(old_dir, old_name)?;
        let there = find(new_dir, new_name)?;
        rename.check_found(OP, number(&old), number(&there))?;
        let same_dir = rename.same_dir();
        let moved = |i: &Inode, from: &Inode, to: &Inode| -> Result<()> {
            if i.kind() == FileKind::Directory && !same_dir {
                self.set_parent(i, f2fs(to).ino)?;
                from.update_attr(|a| a.nlink = a.nlink.saturating_sub(1).max(2));
                to.update_attr(|a| a.nlink += 1);
            }
            Ok(())
        };
        let retarget = |dir: &Inode, name: &[u8], to: &Inode| -> Result<()> {
            let body = f2fs(dir).body.write();
            match self.directories.find_entry(dir, &body, name)? {
                Some(entry) => {
                    self.directories
                        .retarget_entry(dir, &body, &entry, f2fs(to).ino, to.kind())
                }
                None => Err(Error::new(ErrorKind::NotFound, OP).ino(dir.ino())),
            }
        };
        if let Some(target) = rename.exchanged() {
            retarget(new_dir, new_name, inode)?;
            retarget(old_dir, old_name, target)?;
            moved(inode, old_dir, new_dir)?;
            moved(target, new_dir, old_dir)?;
            let chain = &op.w.chain;
            chain.mark_name(f2fs(old_dir).ino, old_name, true);
            chain.mark_name(f2fs(new_dir).ino, new_name, true);
            self.set_name(op.w, inode, new_dir, new_name, now)?;
            self.set_name(op.w, target, old_dir, old_name, now)?;
            self.touch_dir(old_dir, now)?;
            return self.touch_dir(new_dir, now);
        }
        if let Some(dir) = rename.replaced_dir()
            && !self.directories.dir_is_empty(dir, &f2fs(dir).body.read())?
        {
            return Err(Error::new(ErrorKind::NotEmpty, OP).ino(dir.ino()));
        }
        let whiteout = match mode {
            RenameMode::Whiteout => {
                let new = NewInode::whiteout(&inode.attr(), now);
                Some(
                    self.attributes
                        .new_inode(op.w, old_dir, old_name, &new, 1)?,
                )
            }
            _ => None,
        };
        let named = match &there {
            Some(_) => retarget(new_dir, new_name, inode),
            None => self.add_name(op.w, new_dir, new_name, f2fs(inode).ino, inode.kind()),
        };
        if let Err(e) = named {
            return Err(match &whiteout {
                Some(whiteout) => self.abandon_new(op.w, whiteout, e),
                None => e,
            });
        }
        match &whiteout {
            Some(whiteout) => retarget(old_dir, old_name, whiteout)?,
            None => self.remove_name(OP, op.w, old_dir, old_name, inode)?,
        }
        moved(inode, old_dir, new_dir)?;
        if let Some(target) = target {
            if target.kind() == FileKind::Directory {
                new_dir.update_attr(|a| a.nlink = a.nlink.saturating_sub(1).max(2));
            }
            self.drop_name(op.w, new_dir, new_name, target, now)?;
        }
        op.w.chain.mark_name(f2fs(old_dir).ino, old_name, true);
        self.set_name(op.w, inode, new_dir, new_name, now)?;
        self.touch_dir(old_dir, now)?;
        if !same_dir {
            self.touch_dir(new_dir, now)?;
        }
        Ok(())
    }
}
