//! A volume under test, and what the vfs does with one: locks, an inode cache, data on the device.

use super::{Access, Subject};
use crate::engine::{Engine, FallocMode, Format, Intent, Place, Rename, WriteTarget};
use crate::error::{ErrorKind, Result};
use crate::inode::Inode;
use crate::types::{AttrChange, FileKind, Ino, NewInode, RenameMode, Timestamp, XattrMode};
use blockwright_device::{DevOffset, Flags};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// See the module's head.
pub struct Fixture {
    subject: Box<dyn Subject>,
    engine: Arc<dyn Engine>,
    inodes: BTreeMap<Ino, Arc<Inode>>,
    clock: i64,
}

/// Runs `job` with the inode locks of these inodes held exclusively, in ascending order.
pub(super) fn locked<R>(inodes: &[&Arc<Inode>], job: impl FnOnce() -> R) -> R {
    let mut order: Vec<&Arc<Inode>> = inodes.to_vec();
    order.sort_by_key(|i| i.ino());
    order.dedup_by_key(|i| i.ino());
    let _guards: Vec<_> = order
        .iter()
        .enumerate()
        .map(|(n, i)| match n {
            0 => i.lock.write(),
            _ => i.lock.write_nested(),
        })
        .collect();
    job()
}

impl Fixture {
    pub(super) fn new(subject: Box<dyn Subject>) -> Self {
        let engine = subject.engine();
        Fixture {
            subject,
            engine,
            inodes: BTreeMap::new(),
            clock: 1_700_000_000,
        }
    }

    /// Unmounts, and has the volume checked.
    pub(super) fn finish(mut self) {
        self.unmount();
        drop(self.engine);
        self.subject.check();
    }

    fn unmount(&mut self) {
        for (_, inode) in std::mem::take(&mut self.inodes) {
            self.engine.evict(&inode).expect("evicted");
        }
        self.engine.stop_cleaning();
        self.engine.unmount().expect("unmounted");
    }

    /// Unmounts and mounts again. Inodes that the case holds are of the past.
    pub(super) fn remount(&mut self, access: Access) {
        self.unmount();
        self.subject.remount(access);
        self.engine = self.subject.engine();
    }

    /// The volume as a crash now would leave it, mounted again.
    pub(super) fn crashed(&self) -> Option<Fixture> {
        self.subject.crashed().map(Fixture::new)
    }

    pub(super) fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine)
    }

    pub(super) fn format(&self) -> Format {
        self.engine.format()
    }

    pub(super) fn block(&self) -> u64 {
        u64::from(self.format().block_bytes)
    }

    pub(super) fn device_bytes(&self) -> u64 {
        self.subject.device().geometry().bytes
    }

    pub(super) fn blocks_free(&self) -> u64 {
        self.engine.statfs().expect("statfs").blocks_free
    }

    /// A time that no inode has yet.
    pub(super) fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp {
            secs: self.clock,
            nanos: 123_000_000,
        }
    }

    pub(super) fn new_inode(&mut self, kind: FileKind) -> NewInode {
        NewInode {
            kind,
            perm: 0o640,
            uid: 0,
            gid: 0,
            rdev: 0,
            symlink: Vec::new(),
            now: self.now(),
            xattrs: Vec::new(),
        }
    }

    // ---- the inode cache ----

    pub(super) fn load(&mut self, ino: Ino) -> Result<Arc<Inode>> {
        if let Some(inode) = self.inodes.get(&ino) {
            return Ok(Arc::clone(inode));
        }
        let inode = self.engine.load(ino)?;
        assert_eq!(inode.ino(), ino, "the inode that was asked for");
        self.inodes.insert(ino, Arc::clone(&inode));
        Ok(inode)
    }

    pub(super) fn root(&mut self) -> Arc<Inode> {
        self.load(self.format().root).expect("the root")
    }

    /// The last reference goes away.
    pub(super) fn evict(&mut self, inode: Arc<Inode>) {
        self.inodes.remove(&inode.ino());
        self.engine.evict(&inode).expect("evicted");
    }

    // ---- names ----

    pub(super) fn find(&mut self, dir: &Arc<Inode>, name: &[u8]) -> Option<Arc<Inode>> {
        let found = {
            let _guard = dir.lock.read();
            self.engine.lookup(dir, name).expect("looked up")
        };
        let (ino, kind) = found?;
        let inode = self.load(ino).expect("the inode of a name");
        assert!(kind.is_none_or(|k| k == inode.kind()), "kind of {name:?}");
        Some(inode)
    }

    pub(super) fn create_as(
        &mut self,
        dir: &Arc<Inode>,
        name: &[u8],
        new: &NewInode,
    ) -> Result<Arc<Inode>> {
        let inode = locked(&[dir], || self.engine.create(dir, name, new))?;
        let twin = self.inodes.insert(inode.ino(), Arc::clone(&inode));
        assert!(twin.is_none(), "{inode:?} is in use already");
        Ok(inode)
    }

    pub(super) fn create(&mut self, dir: &Arc<Inode>, name: &[u8], kind: FileKind) -> Arc<Inode> {
        let new = self.new_inode(kind);
        self.create_as(dir, name, &new).expect("created")
    }

    /// A regular file in the root.
    pub(super) fn file(&mut self, name: &str) -> Arc<Inode> {
        let root = self.root();
        self.create(&root, name.as_bytes(), FileKind::Regular)
    }

    pub(super) fn create_unnamed(&mut self, kind: FileKind) -> Arc<Inode> {
        let (root, new) = (self.root(), self.new_inode(kind));
        let inode = locked(&[&root], || self.engine.create_unnamed(&root, &new)).expect("created");
        self.inodes.insert(inode.ino(), Arc::clone(&inode));
        inode
    }

    pub(super) fn link(
        &mut self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
    ) -> Result<Timestamp> {
        let now = self.now();
        locked(&[dir, inode], || self.engine.link(dir, name, inode, now))?;
        Ok(now)
    }

    /// Removes the name of a file or an empty directory. The inode stays in memory.
    pub(super) fn remove(&mut self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        let inode = self.find(dir, name).ok_or(ErrorKind::NotFound)?;
        let now = self.now();
        locked(&[dir, &inode], || match inode.kind() {
            FileKind::Directory => self.engine.rmdir(dir, name, &inode, now),
            _ => self.engine.unlink(dir, name, &inode, now),
        })?;
        Ok(inode)
    }

    pub(super) fn rename(
        &mut self,
        (old_dir, old_name): (&Arc<Inode>, &[u8]),
        (new_dir, new_name): (&Arc<Inode>, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let inode = self.find(old_dir, old_name).ok_or(ErrorKind::NotFound)?;
        let target = self.find(new_dir, new_name);
        let now = self.now();
        let mut all = vec![old_dir, &inode, new_dir];
        all.extend(&target);
        let target = target.as_ref();
        locked(&all, || {
            self.engine.rename(&Rename {
                old_dir,
                old_name,
                inode: &inode,
                new_dir,
                new_name,
                target,
                mode,
                now,
            })
        })
    }

    /// Up to `count` entries after a cookie: names, numbers and cookies. The engine is stopped by breaking.
    pub(super) fn list_some(
        &self,
        dir: &Arc<Inode>,
        cookie: u64,
        count: usize,
    ) -> Vec<(Vec<u8>, Ino, u64)> {
        let mut out = Vec::new();
        let _guard = dir.lock.read();
        let listed = self.engine.readdir(dir, cookie, &mut |e| {
            if out.len() == count {
                return ControlFlow::Break(());
            }
            assert_ne!(e.cookie, 0, "0 is the start");
            out.push((e.name.to_vec(), e.ino, e.cookie));
            ControlFlow::Continue(())
        });
        listed.expect("listed");
        out
    }

    /// All names of a directory, listed `count` at a time.
    pub(super) fn list(&self, dir: &Arc<Inode>, count: usize) -> BTreeMap<Vec<u8>, Ino> {
        let mut all = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let some = self.list_some(dir, cookie, count);
            let Some(last) = some.last() else { break };
            cookie = last.2;
            for (name, ino, _) in some {
                let twice = all.insert(name.clone(), ino);
                assert!(twice.is_none(), "{name:?} is listed once");
            }
        }
        all
    }

    // ---- attributes ----

    pub(super) fn set_attr(&self, inode: &Arc<Inode>, change: &AttrChange) -> Result<()> {
        locked(&[inode], || self.engine.set_attr(inode, change))
    }

    pub(super) fn set_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        locked(&[inode], || {
            self.engine.set_xattr(inode, name.as_bytes(), value, mode)
        })
    }

    pub(super) fn get_xattr(&self, inode: &Arc<Inode>, name: &str) -> Result<Vec<u8>> {
        let _guard = inode.lock.read();
        self.engine.get_xattr(inode, name.as_bytes())
    }

    pub(super) fn remove_xattr(&self, inode: &Arc<Inode>, name: &str) -> Result<()> {
        locked(&[inode], || {
            self.engine.remove_xattr(inode, name.as_bytes())
        })
    }

    // ---- data ----

    pub(super) fn place(&self, inode: &Arc<Inode>, offset: u64) -> Place {
        self.engine.map(inode, offset, 1).expect("mapped").place
    }

    /// The whole blocks over a range.
    pub(super) fn blocks_over(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.block();
        range.start / block * block..range.end.next_multiple_of(block)
    }

    pub(super) fn reserve(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<bool> {
        locked(&[inode], || self.engine.reserve_hole(inode, range))
    }

    /// Writes `bytes` at a block's start as a buffered write and its writeback do.
    pub(super) fn write(&self, inode: &Arc<Inode>, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let whole = self.blocks_over(&(offset..end));
        // The vfs reserves less than a block only for data that is in the inode.
        let inline = inode.size() > 0 && self.place(inode, offset) == Place::Inline;
        let range = offset..if inline { end } else { whole.end };
        self.engine.make_room(bytes.len() as u64);
        if let Err(e) = self.reserve(inode, range.clone()) {
            // Blocks that were freed a moment ago may be held back until the next commit.
            if e.kind() != ErrorKind::NoSpace {
                return Err(e);
            }
            self.engine.sync_volume()?;
            self.reserve(inode, range)?;
        }
        inode.update_attr(|a| a.size = a.size.max(end));
        self.write_reserved(inode, offset, bytes);
        Ok(())
    }

    /// Writes and commits bytes that have room.
    pub(super) fn write_reserved(&self, inode: &Arc<Inode>, offset: u64, bytes: &[u8]) {
        let whole = self.blocks_over(&(offset..offset + bytes.len() as u64));
        let mut at = whole.start;
        while at < whole.end {
            let range = at..whole.end;
            let targets = self
                .engine
                .allocate_runs(inode, &[range], inode.size(), Intent::Writeback)
                .expect("what was reserved can be allocated");
            for target in targets {
                assert_eq!(target.offset, at, "targets follow each other");
                assert!(target.bytes > 0, "targets are not empty");
                self.put(inode, &target, offset, bytes);
                at = whole.end.min(at + target.bytes);
            }
        }
    }

    /// Writes a target's part of `bytes`, which begin at `offset`, and commits it.
    pub(super) fn put(&self, inode: &Arc<Inode>, target: &WriteTarget, offset: u64, bytes: &[u8]) {
        if target.device.is_none() {
            let data = &bytes[..bytes.len().min(inode.size() as usize)];
            let done = self.engine.write_inline(inode, data, inode.size());
            assert!(done.expect("written into the inode"), "it is still inline");
            return;
        }
        self.put_on_device(target, offset, bytes);
        if target.commit {
            let done = self.engine.commit_write(inode, target, inode.size());
            done.expect("committed");
        }
    }

    /// Writes a target's part of `bytes`, which begin at `offset`, with zeroes behind them.
    pub(super) fn put_on_device(&self, target: &WriteTarget, offset: u64, bytes: &[u8]) {
        let device = target.device.expect("a place on the device");
        let start = (target.offset - offset) as usize;
        let end = bytes.len().min(start.saturating_add(target.bytes as usize));
        let mut data = bytes[start..end].to_vec();
        data.resize(data.len().next_multiple_of(self.block() as usize), 0);
        self.subject
            .device()
            .write_at(device, &data, Flags::empty())
            .expect("written to the device");
    }

    /// The file's contents as the engine and the device have them.
    pub(super) fn read(&self, inode: &Arc<Inode>) -> Vec<u8> {
        let size = inode.size();
        let mut out = Vec::new();
        while (out.len() as u64) < size {
            let at = out.len() as u64;
            let m = self.engine.map(inode, at, size - at).expect("mapped");
            let end = m.offset.saturating_add(m.bytes);
            assert!(m.offset <= at && at < end, "{m:?} holds {at}");
            let n = (end.min(size) - at) as usize;
            match m.place {
                Place::Inline => {
                    let mut data = self.engine.read_inline(inode).expect("inline data");
                    assert!(data.len() as u64 <= size, "no more than the size");
                    data.resize(size as usize, 0);
                    return data;
                }
                Place::Mapped(device) => {
                    let from = DevOffset(device.0 + (at - m.offset));
                    let mut data = vec![0; n.next_multiple_of(self.block() as usize)];
                    let read = self.subject.device().read_at(from, &mut data);
                    read.expect("read from the device");
                    out.extend_from_slice(&data[..n]);
                }
                Place::Hole | Place::Unwritten(_) | Place::Reserved => out.resize(out.len() + n, 0),
                Place::Delayed | Place::Encoded => panic!("{m:?} is not on the device"),
            }
        }
        out
    }

    pub(super) fn truncate(&mut self, inode: &Arc<Inode>, size: u64) -> Result<Timestamp> {
        let now = self.now();
        let _guard = inode.lock.write();
        let _invalidate = inode.invalidate.write();
        self.engine.truncate(inode, size, now)?;
        Ok(now)
    }

    pub(super) fn fallocate(
        &mut self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
    ) -> Result<()> {
        let now = self.now();
        let _guard = inode.lock.write();
        let _invalidate = inode.invalidate.write();
        let (size, len) = (inode.size(), range.end - range.start);
        self.engine.fallocate(inode, range.clone(), mode, now)?;
        // The vfs sets the size in memory.
        let size = match mode {
            FallocMode::Allocate { keep_size: false }
            | FallocMode::ZeroRange { keep_size: false } => size.max(range.end),
            FallocMode::CollapseRange => size - len,
            FallocMode::InsertRange => size + len,
            _ => size,
        };
        inode.update_attr(|a| a.size = size);
        Ok(())
    }
}

/// Bytes that differ from block to block and from seed to seed.
pub(super) fn pattern(seed: u8, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 512) as u8 ^ (i % 251) as u8 ^ seed)
        .collect()
}

/// The kind of an error.
pub(super) fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}
