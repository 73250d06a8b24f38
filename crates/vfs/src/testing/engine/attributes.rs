//! Inodes and attributes in memory.

use crate::engine::{Attributes, SyncScope};
use crate::error::{ErrorKind, Result};
use crate::inode::Inode;
use crate::testing::MemEngine;
use crate::types::{AttrChange, FileKind, Ino, InodeFlags, XattrMode};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Refuses the names that no format has a place for.
fn has_namespace(name: &[u8]) -> Result<()> {
    let prefixes: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];
    let known = |p: &&[u8]| name.len() > p.len() && name.starts_with(p);
    match prefixes.iter().any(known) {
        true => Ok(()),
        false => Err(ErrorKind::Unsupported.into()),
    }
}

impl Attributes for MemEngine {
    fn load(&self, ino: Ino) -> Result<Arc<Inode>> {
        let v = self.volume.lock();
        let file = v.files.get(&ino).ok_or(ErrorKind::Stale)?;
        let mut attr = file.attr;
        attr.size = match attr.kind {
            FileKind::Regular => file.disk_size,
            _ => attr.size,
        };
        Ok(Arc::new(Inode::new(attr, ())))
    }

    fn evict(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.fail_evictions.load(Ordering::Relaxed) {
            return Err(ErrorKind::Io.into());
        }
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        assert!(
            file.delayed.is_empty() && file.pending.is_empty(),
            "evicted {inode:?} has no reservations"
        );
        if inode.attr().nlink == 0 {
            Self::free_range(&mut v, inode.ino(), 0..u64::MAX);
            v.files.remove(&inode.ino());
            self.names_are_full.store(false, Ordering::SeqCst);
        } else {
            file.attr = inode.attr();
        }
        Ok(())
    }

    fn set_attr(&self, inode: &Arc<Inode>, c: &AttrChange) -> Result<()> {
        self.writable()?;
        Self::locked_exclusively(inode);
        let all = InodeFlags::from_bits_retain(u32::MAX);
        inode.update_attr(|a| c.apply(a, all));
        let mut v = self.volume.lock();
        Self::file(&mut v, inode).attr = inode.attr();
        Ok(())
    }

    fn write_attr(&self, inode: &Arc<Inode>) -> Result<()> {
        self.writable()?;
        let mut v = self.volume.lock();
        v.attr_writes += 1;
        Self::file(&mut v, inode).attr = inode.attr();
        Ok(())
    }

    fn sync_inode(&self, _inode: &Arc<Inode>, _scope: SyncScope) -> Result<()> {
        Ok(())
    }

    fn is_durable(&self, _inode: &Arc<Inode>, scope: SyncScope) -> bool {
        scope == SyncScope::Data
    }

    fn get_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Vec<u8>> {
        has_namespace(name)?;
        let mut v = self.volume.lock();
        let value = Self::file(&mut v, inode).xattrs.get(name).cloned();
        value.ok_or_else(|| ErrorKind::NoAttribute.into())
    }

    fn set_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        has_namespace(name)?;
        self.writable()?;
        Self::locked_exclusively(inode);
        let mut v = self.volume.lock();
        let xattrs = &mut Self::file(&mut v, inode).xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(ErrorKind::Exists.into()),
            (XattrMode::Replace, false) => return Err(ErrorKind::NoAttribute.into()),
            _ => {}
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<()> {
        has_namespace(name)?;
        self.writable()?;
        Self::locked_exclusively(inode);
        let mut v = self.volume.lock();
        match Self::file(&mut v, inode).xattrs.remove(name) {
            Some(_) => Ok(()),
            None => Err(ErrorKind::NoAttribute.into()),
        }
    }

    fn list_xattr(&self, inode: &Arc<Inode>) -> Result<Vec<Vec<u8>>> {
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, inode).xattrs.keys().cloned().collect())
    }
}
