//! A file system in memory, as simple as the engine's contract allows: what the front end's tests mount.
//!
//! Blocks lie on a memory device and are handed out one after another, never reused.

use blockwright_device::DevOffset;
use blockwright_vfs::engine::{FallocMode, Intent, Mapping, Place, SyncScope, WriteTarget};
use blockwright_vfs::{
    Attr, AttrChange, DirEntry, Engine, Error, ErrorKind, FileKind, Ino, Inode, InodeFlags,
    NewInode, RenameMode, Result, StatFs, Timestamp, XattrMode,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub const BLOCK: u64 = 4096;
const ROOT: u64 = 2;
const BLOCKS: u64 = 1 << 20;

#[derive(Default)]
struct Node {
    blocks: BTreeMap<u64, (u64, bool)>,
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    next_cookie: u64,
    parent: u64,
    symlink: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Shared = Arc<Mutex<Node>>;

#[derive(Default)]
pub struct MemEngine {
    inodes: Mutex<HashMap<u64, (Attr, Shared)>>,
    next_ino: AtomicU64,
    next_block: AtomicU64,
    pub syncs: AtomicU64,
    pub unmounted: AtomicBool,
}

fn err<T>(kind: ErrorKind) -> Result<T> {
    Err(Error::new(kind, "memory"))
}

fn node(inode: &Inode) -> &Shared {
    inode.private::<Shared>()
}

fn find(dir: &Inode, name: &[u8]) -> Option<(u64, u64)> {
    let node = node(dir).lock();
    node.entries
        .iter()
        .find(|(_, (n, _))| n == name)
        .map(|(cookie, (_, ino))| (*cookie, *ino))
}

fn add(dir: &Inode, name: &[u8], ino: u64, now: Timestamp) {
    let mut node = node(dir).lock();
    let cookie = node.next_cookie.max(3);
    node.next_cookie = cookie + 1;
    node.entries.insert(cookie, (name.to_vec(), ino));
    touch(dir, now);
}

fn touch(inode: &Inode, now: Timestamp) {
    inode.update_attr(|a| {
        a.mtime = now;
        a.ctime = now;
    });
}

fn relink(inode: &Inode, by: i32, now: Timestamp) {
    inode.update_attr(|a| {
        a.nlink = a.nlink.saturating_add_signed(by);
        a.ctime = now;
    });
}

impl MemEngine {
    pub fn new() -> Arc<Self> {
        let engine = MemEngine {
            next_ino: AtomicU64::new(11),
            next_block: AtomicU64::new(1),
            ..MemEngine::default()
        };
        let new = NewInode {
            kind: FileKind::Directory,
            perm: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            symlink: Vec::new(),
            now: Timestamp::now(),
            xattrs: Vec::new(),
        };
        engine.make(ROOT, ROOT, &new);
        Arc::new(engine)
    }

    fn make(&self, ino: u64, parent: u64, new: &NewInode) -> Arc<Inode> {
        let attr = Attr {
            ino: Ino(ino),
            generation: 1,
            kind: new.kind,
            perm: new.perm,
            nlink: if new.kind == FileKind::Directory {
                2
            } else {
                1
            },
            uid: new.uid,
            gid: new.gid,
            project: 0,
            rdev: new.rdev,
            size: new.symlink.len() as u64,
            blocks512: 0,
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
            crtime: Some(new.now),
            flags: InodeFlags::empty(),
        };
        let shared: Shared = Arc::new(Mutex::new(Node {
            parent,
            symlink: new.symlink.clone(),
            xattrs: new.xattrs.iter().cloned().collect(),
            ..Node::default()
        }));
        self.inodes.lock().insert(ino, (attr, shared.clone()));
        Arc::new(Inode::new(attr, shared))
    }

    fn fill(&self, node: &mut Node, range: Range<u64>, unwritten: bool) {
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            node.blocks
                .entry(block)
                .or_insert_with(|| (self.next_block.fetch_add(1, Ordering::Relaxed), unwritten));
        }
    }

    fn recount(inode: &Inode) {
        let blocks = node(inode).lock().blocks.len() as u64;
        inode.update_attr(|a| a.blocks512 = blocks * (BLOCK / 512));
    }
}

impl Engine for MemEngine {
    fn format(&self) -> &'static str {
        "memory"
    }
    fn root(&self) -> Ino {
        Ino(ROOT)
    }
    fn block_bytes(&self) -> u32 {
        BLOCK as u32
    }
    fn file_bytes_max(&self, _: &Inode) -> u64 {
        1 << 40
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn statfs(&self) -> Result<StatFs> {
        let free = BLOCKS - self.next_block.load(Ordering::Relaxed);
        Ok(StatFs {
            block_bytes: BLOCK as u32,
            blocks: BLOCKS,
            blocks_free: free,
            blocks_available: free,
            files: 1 << 20,
            files_free: 1 << 19,
            name_bytes_max: 255,
            fsid: 1,
        })
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    fn load(&self, ino: Ino) -> Result<Arc<Inode>> {
        match self.inodes.lock().get(&ino.0) {
            Some((attr, shared)) => Ok(Arc::new(Inode::new(*attr, shared.clone()))),
            None => err(ErrorKind::Stale),
        }
    }
    fn evict(&self, inode: &Arc<Inode>) -> Result<()> {
        let attr = inode.attr();
        let mut inodes = self.inodes.lock();
        if attr.nlink == 0 {
            inodes.remove(&attr.ino.0);
        } else if let Some(stored) = inodes.get_mut(&attr.ino.0) {
            stored.0 = attr;
        }
        Ok(())
    }
    fn set_attr(&self, inode: &Arc<Inode>, change: &AttrChange) -> Result<()> {
        inode.update_attr(|a| {
            a.perm = change.perm.unwrap_or(a.perm);
            a.uid = change.uid.unwrap_or(a.uid);
            a.gid = change.gid.unwrap_or(a.gid);
            a.project = change.project.unwrap_or(a.project);
            a.atime = change.atime.unwrap_or(a.atime);
            a.mtime = change.mtime.unwrap_or(a.mtime);
            a.ctime = change.ctime.unwrap_or(a.ctime);
            a.flags = change.flags.unwrap_or(a.flags);
        });
        Ok(())
    }
    fn write_attr(&self, _: &Arc<Inode>) -> Result<()> {
        Ok(())
    }
    fn sync_inode(&self, _: &Arc<Inode>, _: SyncScope) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn sync_volume(&self) -> Result<()> {
        Ok(())
    }
    fn unmount(&self) -> Result<()> {
        self.unmounted.store(true, Ordering::Release);
        Ok(())
    }
    fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<(Ino, Option<FileKind>)>> {
        assert_ne!(name, b"panic please", "asked to");
        Ok(find(dir, name).map(|(_, ino)| (Ino(ino), None)))
    }
    fn readdir(
        &self,
        dir: &Arc<Inode>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let node = node(dir).lock();
        let dots = [
            (1, b".".to_vec(), dir.ino().0),
            (2, b"..".to_vec(), node.parent),
        ];
        let all = dots
            .into_iter()
            .chain(node.entries.iter().map(|(c, (n, i))| (*c, n.clone(), *i)));
        for (at, name, ino) in all.filter(|(at, _, _)| *at > cookie) {
            let entry = DirEntry {
                ino: Ino(ino),
                kind: None,
                name: &name,
                cookie: at,
            };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }
    fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode) -> Result<Arc<Inode>> {
        if name.len() > 255 {
            return err(ErrorKind::NameTooLong);
        }
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        let inode = self.make(ino, dir.ino().0, new);
        add(dir, name, ino, new.now);
        if new.kind == FileKind::Directory {
            relink(dir, 1, new.now);
        }
        Ok(inode)
    }
    fn create_unnamed(&self, dir: &Arc<Inode>, new: &NewInode) -> Result<Arc<Inode>> {
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        let inode = self.make(ino, dir.ino().0, new);
        inode.update_attr(|a| a.nlink = 0);
        Ok(inode)
    }
    fn link(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()> {
        add(dir, name, inode.ino().0, now);
        relink(inode, 1, now);
        Ok(())
    }
    fn unlink(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()> {
        let Some((cookie, _)) = find(dir, name) else {
            return err(ErrorKind::NotFound);
        };
        node(dir).lock().entries.remove(&cookie);
        touch(dir, now);
        relink(inode, -1, now);
        Ok(())
    }
    fn rmdir(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()> {
        if !node(inode).lock().entries.is_empty() {
            return err(ErrorKind::NotEmpty);
        }
        self.unlink(dir, name, inode, now)?;
        inode.update_attr(|a| a.nlink = 0);
        relink(dir, -1, now);
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
        let is_dir = |i: &Arc<Inode>| i.kind() == FileKind::Directory;
        let Some((old_cookie, _)) = find(old_dir, old_name) else {
            return err(ErrorKind::NotFound);
        };
        if mode == RenameMode::Exchange {
            let (Some(target), Some((new_cookie, _))) = (target, find(new_dir, new_name)) else {
                return err(ErrorKind::NotFound);
            };
            let swap = |dir: &Arc<Inode>, cookie, ino| {
                if let Some(entry) = node(dir).lock().entries.get_mut(&cookie) {
                    entry.1 = ino;
                }
            };
            swap(old_dir, old_cookie, target.ino().0);
            swap(new_dir, new_cookie, inode.ino().0);
            node(inode).lock().parent = new_dir.ino().0;
            node(target).lock().parent = old_dir.ino().0;
            let moved = i32::from(is_dir(inode)) - i32::from(is_dir(target));
            relink(old_dir, -moved, now);
            relink(new_dir, moved, now);
            return Ok(());
        }
        if let Some(target) = target {
            if is_dir(target) {
                self.rmdir(new_dir, new_name, target, now)?;
            } else {
                self.unlink(new_dir, new_name, target, now)?;
            }
        }
        node(old_dir).lock().entries.remove(&old_cookie);
        touch(old_dir, now);
        add(new_dir, new_name, inode.ino().0, now);
        node(inode).lock().parent = new_dir.ino().0;
        if is_dir(inode) {
            relink(old_dir, -1, now);
            relink(new_dir, 1, now);
        }
        if mode == RenameMode::Whiteout {
            let new = NewInode {
                kind: FileKind::CharDevice,
                perm: 0,
                uid: 0,
                gid: 0,
                rdev: 0,
                symlink: Vec::new(),
                now,
                xattrs: Vec::new(),
            };
            self.create(old_dir, old_name, &new)?;
        }
        Ok(())
    }
    fn read_link(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        Ok(node(inode).lock().symlink.clone())
    }
    fn get_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Vec<u8>> {
        match node(inode).lock().xattrs.get(name) {
            Some(value) => Ok(value.clone()),
            None => err(ErrorKind::NoAttribute),
        }
    }
    fn set_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let mut node = node(inode).lock();
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return err(ErrorKind::Exists),
            (XattrMode::Replace, false) => return err(ErrorKind::NoAttribute),
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }
    fn remove_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<()> {
        match node(inode).lock().xattrs.remove(name) {
            Some(_) => Ok(()),
            None => err(ErrorKind::NoAttribute),
        }
    }
    fn list_xattr(&self, inode: &Arc<Inode>) -> Result<Vec<Vec<u8>>> {
        Ok(node(inode).lock().xattrs.keys().cloned().collect())
    }
    fn map(&self, inode: &Arc<Inode>, offset: u64, _: u64) -> Result<Mapping> {
        let node = node(inode).lock();
        let first = offset / BLOCK;
        let (place, blocks) = match node.blocks.get(&first) {
            Some(&(dev, true)) => (Place::Unwritten(DevOffset(dev * BLOCK)), 1),
            Some(&(dev, false)) => (Place::Mapped(DevOffset(dev * BLOCK)), 1),
            None => {
                let next = node.blocks.range(first..).next();
                let end = next.map_or(u64::MAX / BLOCK, |(block, _)| *block);
                (Place::Hole, end - first)
            }
        };
        Ok(Mapping {
            offset: first * BLOCK,
            bytes: blocks * BLOCK,
            place,
            generation: 0,
        })
    }
    fn reserve(&self, _: &Arc<Inode>, _: Range<u64>) -> Result<()> {
        Ok(())
    }
    fn unreserve(&self, _: &Arc<Inode>, _: Range<u64>) {}
    fn allocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        _: u64,
        _: Intent,
    ) -> Result<WriteTarget> {
        let mut node = node(inode).lock();
        let first = range.start / BLOCK;
        let fresh = node
            .blocks
            .get(&first)
            .is_none_or(|(_, unwritten)| *unwritten);
        self.fill(&mut node, range.start..range.start + 1, true);
        let dev = node.blocks[&first].0;
        Ok(WriteTarget {
            offset: first * BLOCK,
            bytes: BLOCK,
            device: Some(DevOffset(dev * BLOCK)),
            commit: true,
            fresh,
        })
    }
    fn commit_write(&self, inode: &Arc<Inode>, target: &WriteTarget, _: u64) -> Result<()> {
        if let Some(block) = node(inode).lock().blocks.get_mut(&(target.offset / BLOCK)) {
            block.1 = false;
        }
        Self::recount(inode);
        Ok(())
    }
    fn abandon_write(&self, inode: &Arc<Inode>, target: &WriteTarget) {
        node(inode).lock().blocks.remove(&(target.offset / BLOCK));
    }
    fn read_inline(&self, _: &Arc<Inode>) -> Result<Vec<u8>> {
        err(ErrorKind::NotSupported)
    }
    fn write_inline(&self, _: &Arc<Inode>, _: &[u8], _: u64) -> Result<()> {
        err(ErrorKind::NotSupported)
    }
    fn truncate(&self, inode: &Arc<Inode>, size: u64, now: Timestamp) -> Result<()> {
        node(inode).lock().blocks.split_off(&size.div_ceil(BLOCK));
        touch(inode, now);
        inode.update_attr(|a| a.size = size);
        Self::recount(inode);
        Ok(())
    }
    fn fallocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
        now: Timestamp,
    ) -> Result<()> {
        let inner = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        let keep = match mode {
            FallocMode::Allocate { keep_size } | FallocMode::ZeroRange { keep_size } => keep_size,
            FallocMode::PunchHole => true,
            FallocMode::CollapseRange | FallocMode::InsertRange => {
                return err(ErrorKind::NotSupported);
            }
        };
        {
            let mut node = node(inode).lock();
            if !matches!(mode, FallocMode::Allocate { .. }) {
                node.blocks.retain(|block, _| !inner.contains(block));
            }
            if !matches!(mode, FallocMode::PunchHole) {
                self.fill(&mut node, range.clone(), true);
            }
        }
        touch(inode, now);
        if !keep {
            inode.update_attr(|a| a.size = a.size.max(range.end));
        }
        Self::recount(inode);
        Ok(())
    }
    fn parent(&self, dir: &Arc<Inode>) -> Result<Ino> {
        Ok(Ino(node(dir).lock().parent))
    }
    fn trim(&self, range: Range<u64>, _: u64) -> Result<u64> {
        Ok(range.end.min(BLOCKS * BLOCK).saturating_sub(range.start))
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl MemEngine {
    /// The size of a file in the root directory, as last stored.
    pub fn size_of(&self, name: &str) -> Option<u64> {
        let inodes = self.inodes.lock();
        let (_, root) = inodes.get(&ROOT)?;
        let root = root.lock();
        let (_, ino) = root.entries.values().find(|(n, _)| n == name.as_bytes())?;
        inodes.get(ino).map(|(attr, _)| attr.size)
    }
}
