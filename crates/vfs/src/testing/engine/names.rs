//! Directories in memory.

use crate::engine::{Names, Rename};
use crate::error::{ErrorKind, Result};
use crate::inode::Inode;
use crate::testing::{Contents, MemEngine};
use crate::types::{DirEntry, FileKind, Ino, NewInode, RenameMode, Timestamp};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl MemEngine {
    /// For what makes a name.
    fn room_for_name(&self) -> Result<()> {
        match self.names_are_full.load(Ordering::SeqCst) {
            true => Err(ErrorKind::NoSpace.into()),
            false => Ok(()),
        }
    }
}

impl Names for MemEngine {
    fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<(Ino, Option<FileKind>)>> {
        assert!(dir.lock.try_write().is_none(), "{dir:?} is locked");
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, dir)
            .entries
            .get(name)
            .map(|e| (e.ino, Some(e.kind))))
    }

    fn readdir(
        &self,
        dir: &Arc<Inode>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, dir);
        let mut all = vec![
            (1, b".".to_vec(), dir.ino(), FileKind::Directory),
            (2, b"..".to_vec(), file.parent, FileKind::Directory),
        ];
        all.extend(
            file.entries
                .iter()
                .map(|(n, e)| (e.cookie, n.clone(), e.ino, e.kind)),
        );
        drop(v);
        all.sort_by_key(|e| e.0);
        for (c, name, ino, kind) in all.into_iter().filter(|e| e.0 > cookie) {
            let entry = DirEntry {
                ino,
                kind: Some(kind),
                name: &name,
                cookie: c,
            };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode) -> Result<Arc<Inode>> {
        self.writable()?;
        self.room_for_name()?;
        Self::locked_exclusively(dir);
        let mut v = self.volume.lock();
        if Self::file(&mut v, dir).entries.contains_key(name) {
            return Err(ErrorKind::Exists.into());
        }
        let is_dir = new.kind == FileKind::Directory;
        let inode = self.make(&mut v, dir, new, if is_dir { 2 } else { 1 });
        Self::add_entry(&mut v, dir, name, &inode, new.now);
        if is_dir {
            dir.update_attr(|a| a.nlink += 1);
        }
        Ok(inode)
    }

    fn create_unnamed(&self, dir: &Arc<Inode>, new: &NewInode) -> Result<Arc<Inode>> {
        self.writable()?;
        self.room_for_name()?;
        let mut v = self.volume.lock();
        Ok(self.make(&mut v, dir, new, 0))
    }

    fn link(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()> {
        self.writable()?;
        self.room_for_name()?;
        Self::locked_exclusively(dir);
        Self::locked_exclusively(inode);
        let mut v = self.volume.lock();
        if Self::file(&mut v, dir).entries.contains_key(name) {
            return Err(ErrorKind::Exists.into());
        }
        Self::add_entry(&mut v, dir, name, inode, now);
        inode.update_attr(|a| {
            a.nlink += 1;
            a.ctime = now;
        });
        Ok(())
    }

    fn unlink(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()> {
        self.writable()?;
        Self::locked_exclusively(dir);
        Self::locked_exclusively(inode);
        let mut v = self.volume.lock();
        let gone = Self::file(&mut v, dir).entries.remove(name);
        assert_eq!(gone.map(|e| e.ino), Some(inode.ino()));
        Self::touch(dir, now);
        inode.update_attr(|a| {
            a.nlink -= 1;
            a.ctime = now;
        });
        Ok(())
    }

    fn rmdir(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()> {
        self.writable()?;
        Self::locked_exclusively(dir);
        Self::locked_exclusively(inode);
        let mut v = self.volume.lock();
        if !Self::file(&mut v, inode).entries.is_empty() {
            return Err(ErrorKind::NotEmpty.into());
        }
        Self::file(&mut v, dir).entries.remove(name);
        Self::touch(dir, now);
        inode.update_attr(|a| a.nlink = 0);
        dir.update_attr(|a| a.nlink -= 1);
        Ok(())
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
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
        self.writable()?;
        self.room_for_name()?;
        for i in [old_dir, inode, new_dir].into_iter().chain(target) {
            Self::locked_exclusively(i);
        }
        let is_dir = |i: &Inode| i.kind() == FileKind::Directory;
        let mut v = self.volume.lock();
        if let Some(dir) = rename.replaced_dir()
            && !Self::file(&mut v, dir).entries.is_empty()
        {
            return Err(ErrorKind::NotEmpty.into());
        }
        let old = Self::file(&mut v, old_dir).entries.remove(old_name);
        let new = Self::file(&mut v, new_dir).entries.remove(new_name);
        rename
            .check_found("rename", old.map(|e| e.ino), new.map(|e| e.ino))
            .expect("the vfs has looked both names up");
        Self::touch(old_dir, now);
        Self::add_entry(&mut v, new_dir, new_name, inode, now);
        let moved = |v: &mut Contents, i: &Arc<Inode>, from: &Arc<Inode>, to: &Arc<Inode>| {
            if is_dir(i) {
                Self::file(v, i).parent = to.ino();
                from.update_attr(|a| a.nlink -= 1);
                to.update_attr(|a| a.nlink += 1);
            }
        };
        moved(&mut v, inode, old_dir, new_dir);
        if let Some(t) = target {
            if mode == RenameMode::Exchange {
                Self::add_entry(&mut v, old_dir, old_name, t, now);
                moved(&mut v, t, new_dir, old_dir);
            } else if is_dir(t) {
                t.update_attr(|a| a.nlink = 0);
                new_dir.update_attr(|a| a.nlink -= 1);
            } else {
                t.update_attr(|a| a.nlink -= 1);
            }
        }
        if mode == RenameMode::Whiteout {
            let white = NewInode::whiteout(&inode.attr(), now);
            let white = self.make(&mut v, old_dir, &white, 1);
            Self::add_entry(&mut v, old_dir, old_name, &white, now);
        }
        inode.update_attr(|a| a.ctime = now);
        Ok(())
    }

    fn read_link(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, inode).symlink.clone())
    }

    fn parent(&self, dir: &Arc<Inode>) -> Result<Ino> {
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, dir).parent)
    }
}
