//! The contract, kept and checked.

use super::{MemEngine, ROOT, State, Volume};
use crate::engine::{Engine, FallocMode, Intent, Mapping, Place, SyncScope, WriteTarget};
use crate::error::{ErrorKind, Result};
use crate::inode::Inode;
use crate::stats::Stats;
use crate::types::{
    AttrChange, DirEntry, FileKind, Ino, InodeFlags, NewInode, RenameMode, StatFs, Timestamp,
    XattrMode,
};
use blockwright_device::{BlockDevice, DevOffset};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Engine for MemEngine {
    fn format(&self) -> &'static str {
        "mem"
    }
    fn root(&self) -> Ino {
        ROOT
    }
    fn block_bytes(&self) -> u32 {
        self.options.block_bytes
    }
    fn file_bytes_max(&self, _inode: &Inode) -> u64 {
        1 << 44
    }
    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }
    fn statfs(&self) -> Result<StatFs> {
        let v = self.volume.lock();
        let free = v.free.len() as u64 - v.reserved;
        Ok(StatFs {
            block_bytes: self.options.block_bytes,
            blocks: self.device.geometry().bytes / self.block(),
            blocks_free: free,
            blocks_available: free,
            files: u64::MAX,
            files_free: u64::MAX,
            name_bytes_max: 255,
            fsid: 1,
        })
    }
    fn stats(&self, _out: &mut Stats) {}

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
            Self::free_from(&mut v, inode.ino(), 0..u64::MAX);
            v.files.remove(&inode.ino());
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
        let mut v = self.volume.lock();
        v.attr_writes += 1;
        Self::file(&mut v, inode).attr = inode.attr();
        Ok(())
    }

    fn sync_inode(&self, _inode: &Arc<Inode>, _scope: SyncScope) -> Result<()> {
        Ok(())
    }
    fn sync_volume(&self) -> Result<()> {
        self.volume.lock().synced += 1;
        Ok(())
    }
    fn unmount(&self) -> Result<()> {
        Ok(())
    }

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
        Self::locked_exclusively(dir);
        let mut v = self.volume.lock();
        if Self::file(&mut v, dir).entries.contains_key(name) {
            return Err(ErrorKind::Exists.into());
        }
        let is_dir = new.kind == FileKind::Directory;
        let inode = self.make(&mut v, dir, new, if is_dir { 2 } else { 1 });
        Self::add_entry(&mut v, dir, name, inode.ino(), new.kind);
        if is_dir {
            dir.update_attr(|a| a.nlink += 1);
        }
        Ok(inode)
    }

    fn create_unnamed(&self, dir: &Arc<Inode>, new: &NewInode) -> Result<Arc<Inode>> {
        self.writable()?;
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
        Self::locked_exclusively(dir);
        Self::locked_exclusively(inode);
        let mut v = self.volume.lock();
        Self::add_entry(&mut v, dir, name, inode.ino(), inode.kind());
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
        _now: Timestamp,
    ) -> Result<()> {
        Self::locked_exclusively(dir);
        Self::locked_exclusively(inode);
        let mut v = self.volume.lock();
        if !Self::file(&mut v, inode).entries.is_empty() {
            return Err(ErrorKind::NotEmpty.into());
        }
        Self::file(&mut v, dir).entries.remove(name);
        inode.update_attr(|a| a.nlink = 0);
        dir.update_attr(|a| a.nlink -= 1);
        Ok(())
    }

    fn rename(
        &self,
        old_dir: &Arc<Inode>,
        old_name: &[u8],
        inode: &Arc<Inode>,
        new_dir: &Arc<Inode>,
        new_name: &[u8],
        target: Option<&Arc<Inode>>,
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        for i in [old_dir, inode, new_dir].into_iter().chain(target) {
            Self::locked_exclusively(i);
        }
        let is_dir = |i: &Inode| i.kind() == FileKind::Directory;
        let mut v = self.volume.lock();
        if let Some(t) = target.filter(|_| mode != RenameMode::Exchange)
            && is_dir(t)
            && !Self::file(&mut v, t).entries.is_empty()
        {
            return Err(ErrorKind::NotEmpty.into());
        }
        let old = Self::file(&mut v, old_dir).entries.remove(old_name);
        assert_eq!(old.map(|e| e.ino), Some(inode.ino()));
        let new = Self::file(&mut v, new_dir).entries.remove(new_name);
        assert_eq!(new.map(|e| e.ino), target.map(|t| t.ino()));
        Self::add_entry(&mut v, new_dir, new_name, inode.ino(), inode.kind());
        let moved = |v: &mut Volume, i: &Arc<Inode>, from: &Arc<Inode>, to: &Arc<Inode>| {
            if is_dir(i) {
                Self::file(v, i).parent = to.ino();
                from.update_attr(|a| a.nlink -= 1);
                to.update_attr(|a| a.nlink += 1);
            }
        };
        moved(&mut v, inode, old_dir, new_dir);
        if let Some(t) = target {
            if mode == RenameMode::Exchange {
                Self::add_entry(&mut v, old_dir, old_name, t.ino(), t.kind());
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
            Self::add_entry(&mut v, old_dir, old_name, white.ino(), white.kind());
        }
        inode.update_attr(|a| a.ctime = now);
        Ok(())
    }

    fn read_link(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, inode).symlink.clone())
    }

    fn get_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Vec<u8>> {
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

    fn map(&self, inode: &Arc<Inode>, offset: u64, bytes: u64) -> Result<Mapping> {
        let block = self.block();
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let generation = file.generation;
        if file.inline.is_some() {
            return Ok(Mapping {
                offset: 0,
                bytes: self.options.inline_bytes_max.max(offset + 1),
                place: Place::Inline,
                generation,
            });
        }
        let place = |u: u64| match file.blocks.get(&u) {
            Some((p, State::Written)) => Place::Mapped(DevOffset(p * block)),
            Some((p, State::Unwritten)) => Place::Unwritten(DevOffset(p * block)),
            None if file.delayed.contains(&u) || file.pending.contains_key(&u) => Place::Delayed,
            None => Place::Hole,
        };
        let first = offset / block;
        let start = place(first);
        let stop = offset.saturating_add(bytes.max(1)).div_ceil(block);
        let next = |p: Place, i: u64| match p {
            Place::Mapped(d) => Place::Mapped(DevOffset(d.0 + i * block)),
            Place::Unwritten(d) => Place::Unwritten(DevOffset(d.0 + i * block)),
            other => other,
        };
        let last = file
            .blocks
            .keys()
            .next_back()
            .max(file.delayed.last())
            .max(file.pending.keys().next_back())
            .copied();
        if last.is_none_or(|l| l < first) {
            return Ok(Mapping {
                offset: first * block,
                bytes: (u64::MAX / block - first) * block,
                place: Place::Hole,
                generation,
            });
        }
        let mut n = 1;
        while first + n < stop && place(first + n) == next(start, n) {
            n += 1;
        }
        Ok(Mapping {
            offset: first * block,
            bytes: n * block,
            place: start,
            generation,
        })
    }

    fn reserve(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
        self.writable()?;
        let mut range = range;
        {
            let mut v = self.volume.lock();
            if Self::file(&mut v, inode).inline.is_some() {
                range.end = range.end.next_multiple_of(self.block());
            }
        }
        let units = self.units(&range);
        let mut v = self.volume.lock();
        let available = v.free.len() as u64 - v.reserved;
        let file = Self::file(&mut v, inode);
        let new: Vec<u64> = units
            .filter(|u| {
                !file.blocks.contains_key(u)
                    && !file.delayed.contains(u)
                    && !file.pending.contains_key(u)
            })
            .collect();
        if new.len() as u64 > available {
            return Err(ErrorKind::NoSpace.into());
        }
        file.delayed.extend(&new);
        Self::refresh_blocks(inode, file, self.block());
        v.reserved += new.len() as u64;
        drop(v);
        if let Some(meanwhile) = self.on_reserve.get() {
            meanwhile();
        }
        Ok(())
    }

    fn unreserve(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let units = self.units(&range);
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let before = file.delayed.len();
        file.delayed.retain(|u| !units.contains(u));
        let gone = (before - file.delayed.len()) as u64;
        Self::refresh_blocks(inode, file, self.block());
        v.reserved -= gone;
    }

    fn allocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        data_end: u64,
        intent: Intent,
    ) -> Result<WriteTarget> {
        self.writable()?;
        let block = self.block();
        let units = self.units(&range);
        let mut v = self.volume.lock();
        let Volume {
            files,
            free,
            reserved,
            ..
        } = &mut *v;
        let file = files.get_mut(&inode.ino()).expect("in use");
        if file.inline.is_some() {
            if data_end <= self.options.inline_bytes_max {
                if file.delayed.remove(&0) {
                    *reserved -= 1;
                }
                return Ok(WriteTarget {
                    offset: range.start,
                    bytes: range.end - range.start,
                    device: None,
                    commit: false,
                    fresh: false,
                });
            }
            let held = file.inline.as_ref().is_some_and(|b| !b.is_empty());
            assert!(
                units.start == 0 || !held || file.blocks.contains_key(&0),
                "inline data leaves the inode with the first block"
            );
            file.inline = None;
        }
        let limit = (self.options.allocate_bytes_max / block).max(1);
        let grows = range.start < data_end && {
            let end = data_end.min(range.end);
            end > file.disk_size
        };
        for u in units.clone() {
            assert!(
                !file.pending.contains_key(&u),
                "two writebacks of block {u} of {inode:?}"
            );
        }
        let first = units.start;
        let want = (units.end - first).min(limit);
        if let Some((p, state)) = file.blocks.get(&first).copied() {
            let mut n = 1;
            while n < want && file.blocks.get(&(first + n)) == Some(&(p + n, state)) {
                n += 1;
            }
            let commit = state == State::Unwritten || grows;
            if commit {
                for u in first..first + n {
                    file.pending.insert(u, None);
                }
                let mut written = self.device.written.lock();
                for q in p..p + n {
                    written.remove(&q);
                }
            }
            return Ok(WriteTarget {
                offset: range.start,
                bytes: n * block,
                device: Some(DevOffset(p * block)),
                commit,
                fresh: false,
            });
        }
        let mut n = 0;
        while n < want && !file.blocks.contains_key(&(first + n)) {
            if intent == Intent::Writeback {
                assert!(
                    file.delayed.contains(&(first + n)),
                    "block {} of {inode:?} is written back without reservation",
                    first + n
                );
            }
            n += 1;
        }
        if intent == Intent::Direct && free.len() as u64 - *reserved < n {
            n = free.len() as u64 - *reserved;
            if n == 0 {
                return Err(ErrorKind::NoSpace.into());
            }
        }
        let after = first
            .checked_sub(1)
            .and_then(|u| {
                file.blocks
                    .get(&u)
                    .map(|b| b.0)
                    .or(file.pending.get(&u).copied().flatten())
            })
            .map(|p| p + 1);
        let (p, n) = Self::take_run(free, n, after).ok_or(ErrorKind::NoSpace)?;
        let mut written = self.device.written.lock();
        for i in 0..n {
            if file.delayed.remove(&(first + i)) {
                *reserved -= 1;
            }
            file.pending.insert(first + i, Some(p + i));
            written.remove(&(p + i));
        }
        Ok(WriteTarget {
            offset: range.start,
            bytes: n * block,
            device: Some(DevOffset(p * block)),
            commit: true,
            fresh: true,
        })
    }

    fn allocate_nowait(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
        data_end: u64,
    ) -> Option<WriteTarget> {
        let holds_nothing = {
            let units = self.units(range);
            let mut v = self.volume.lock();
            let file = Self::file(&mut v, inode);
            let clear = |u: u64| {
                !file.blocks.contains_key(&u)
                    && !file.pending.contains_key(&u)
                    && !file.delayed.contains(&u)
            };
            let open = !file.disk_size.is_multiple_of(self.block());
            file.inline.is_none() && !open && units.clone().all(clear)
        };
        if !self.options.preallocated || !holds_nothing || range.end > self.file_bytes_max(inode) {
            return None;
        }
        let target = self
            .allocate(inode, range.clone(), data_end, Intent::Direct)
            .ok()?;
        if target.bytes == range.end - range.start {
            return Some(target);
        }
        self.abandon_write(inode, &target);
        None
    }

    fn commits_at_once(&self) -> bool {
        self.options.preallocated
    }

    fn commit_write(&self, inode: &Arc<Inode>, target: &WriteTarget, data_end: u64) -> Result<()> {
        assert!(target.commit);
        let block = self.block();
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let written = self.device.written.lock();
        for u in target.offset / block..(target.offset + target.bytes) / block {
            let p = match file.pending.remove(&u) {
                Some(Some(p)) => p,
                Some(None) => file.blocks[&u].0,
                None => panic!("block {u} of {inode:?} was not allocated"),
            };
            assert!(
                written.contains(&p),
                "block {u} of {inode:?} is committed before it is written"
            );
            file.blocks.insert(u, (p, State::Written));
        }
        drop(written);
        file.disk_size = file
            .disk_size
            .max(data_end.min(target.offset + target.bytes));
        Self::refresh_blocks(inode, file, block);
        Ok(())
    }

    fn open_end(&self, inode: &Arc<Inode>) -> Option<u64> {
        let block = self.block();
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let open = file.inline.is_none() && !file.disk_size.is_multiple_of(block);
        open.then_some(file.disk_size)
    }

    fn is_durable(&self, _inode: &Arc<Inode>, scope: SyncScope) -> bool {
        scope == SyncScope::Data
    }

    fn keeps_places(&self) -> bool {
        true
    }

    fn extent_in_place(&self, inode: &Arc<Inode>, at: u64, bytes: u64) -> Result<Option<Mapping>> {
        let mut m = self.map(inode, at, bytes)?;
        let mut v = self.volume.lock();
        let disk_size = Self::file(&mut v, inode).disk_size;
        m.bytes = disk_size.min(m.offset + m.bytes).saturating_sub(m.offset);
        Ok(Some(m).filter(|m| matches!(m.place, Place::Mapped(_)) && m.bytes > 0))
    }

    fn abandon_write(&self, inode: &Arc<Inode>, target: &WriteTarget) {
        assert!(target.commit);
        let block = self.block();
        let mut v = self.volume.lock();
        let Volume { files, free, .. } = &mut *v;
        let file = files.get_mut(&inode.ino()).expect("in use");
        for u in target.offset / block..(target.offset + target.bytes) / block {
            if let Some(Some(p)) = file.pending.remove(&u) {
                free.insert(p);
            }
        }
    }

    fn read_inline(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, inode).inline.clone().unwrap_or_default())
    }

    fn write_inline(&self, inode: &Arc<Inode>, bytes: &[u8], data_end: u64) -> Result<()> {
        assert!(bytes.len() as u64 <= self.options.inline_bytes_max);
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        file.inline = Some(bytes.to_vec());
        file.disk_size = data_end;
        Ok(())
    }

    fn truncate(&self, inode: &Arc<Inode>, size: u64, now: Timestamp) -> Result<()> {
        self.writable()?;
        Self::locked_exclusively(inode);
        assert!(
            inode.invalidate.try_read().is_none(),
            "invalidate is held exclusively"
        );
        let block = self.block();
        let cut = size.div_ceil(block);
        assert!(
            !inode.pages.lock().holds(cut * block..u64::MAX, block),
            "pages behind the new end are gone"
        );
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let grew_out = size > self.options.inline_bytes_max;
        if let Some(inline) = &mut file.inline {
            if grew_out {
                assert!(
                    inline.is_empty() || file.delayed.contains(&0),
                    "inline data is in the cache when its file outgrows the inode"
                );
                file.inline = None;
            } else {
                inline.resize((size as usize).min(inline.len()), 0);
            }
        }
        if size < inode.size() {
            Self::free_from(&mut v, inode.ino(), cut..u64::MAX);
        }
        let file = Self::file(&mut v, inode);
        file.disk_size = size;
        Self::refresh_blocks(inode, file, block);
        inode.update_attr(|a| {
            a.size = size;
            a.mtime = now;
            a.ctime = now;
        });
        Ok(())
    }

    fn fallocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
        _now: Timestamp,
    ) -> Result<()> {
        self.writable()?;
        Self::locked_exclusively(inode);
        assert!(inode.invalidate.try_read().is_none());
        let block = self.block();
        let outer = range.start / block..range.end.div_ceil(block);
        assert!(
            !inode
                .pages
                .lock()
                .holds(outer.start * block..outer.end * block, block),
            "pages of the range are gone"
        );
        let inner = range.start.div_ceil(block)..range.end / block;
        let mut v = self.volume.lock();
        if Self::file(&mut v, inode).inline.is_some() {
            return Err(ErrorKind::Unsupported.into());
        }
        let size = inode.size();
        let mut new_size = size;
        match mode {
            FallocMode::PunchHole => {
                if !inner.is_empty() {
                    Self::free_from(&mut v, inode.ino(), inner);
                }
            }
            FallocMode::Allocate { keep_size } | FallocMode::ZeroRange { keep_size } => {
                let zero = matches!(mode, FallocMode::ZeroRange { .. });
                let Volume {
                    files,
                    free,
                    reserved,
                    ..
                } = &mut *v;
                let file = files.get_mut(&inode.ino()).expect("in use");
                for u in outer {
                    if let Some(b) = file.blocks.get_mut(&u) {
                        if zero && inner.contains(&u) {
                            b.1 = State::Unwritten;
                        }
                    } else if !file.delayed.contains(&u) {
                        if free.len() as u64 <= *reserved {
                            return Err(ErrorKind::NoSpace.into());
                        }
                        let (p, _) = Self::take_run(free, 1, None).ok_or(ErrorKind::NoSpace)?;
                        file.blocks.insert(u, (p, State::Unwritten));
                    }
                }
                if !keep_size {
                    new_size = size.max(range.end);
                }
            }
            FallocMode::CollapseRange | FallocMode::InsertRange => {
                let n = outer.end - outer.start;
                if mode == FallocMode::CollapseRange {
                    Self::free_from(&mut v, inode.ino(), outer.clone());
                    new_size = size - n * block;
                } else {
                    new_size = size + n * block;
                }
                let file = Self::file(&mut v, inode);
                assert!(file.delayed.range(outer.start..).next().is_none());
                assert!(file.pending.is_empty());
                let tail = file.blocks.split_off(&outer.start);
                for (u, b) in tail {
                    let to = if mode == FallocMode::CollapseRange {
                        u - n
                    } else {
                        u + n
                    };
                    file.blocks.insert(to, b);
                }
            }
        }
        let file = Self::file(&mut v, inode);
        file.generation += 1;
        if new_size != size {
            file.disk_size = new_size;
        }
        Self::refresh_blocks(inode, file, block);
        inode.update_attr(|a| a.size = new_size);
        Ok(())
    }

    fn parent(&self, dir: &Arc<Inode>) -> Result<Ino> {
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, dir).parent)
    }
    fn trim(&self, _range: Range<u64>, _bytes_min: u64) -> Result<u64> {
        Ok(0)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
