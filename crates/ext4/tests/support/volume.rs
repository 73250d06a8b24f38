//! A mounted volume with the least of an inode cache: what tests of the engine alone need of the vfs.

#![allow(dead_code)] // each test binary uses its part

use blockwright_device::SharedDevice;
use blockwright_ext4::{Ext4, Options, Result};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{Attributes, Names, Volume as _};
use blockwright_vfs::types::{FileKind, Ino, NewInode, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

pub struct Volume {
    pub engine: Arc<Ext4>,
    pub inodes: HashMap<u64, Arc<Inode>>,
    clock: i64,
}

impl Volume {
    pub fn mount(device: &SharedDevice) -> Self {
        Volume {
            engine: Ext4::mount(Arc::clone(device), Options::default()).unwrap(),
            inodes: HashMap::new(),
            clock: 1_700_000_000,
        }
    }

    /// Another view of a mounted volume. Two views must not have the same inode.
    pub fn of(engine: &Arc<Ext4>) -> Self {
        Volume {
            engine: Arc::clone(engine),
            inodes: HashMap::new(),
            clock: 1_700_000_000,
        }
    }

    /// Lets these inodes go.
    pub fn forget(&mut self, inodes: &[u64]) {
        for ino in inodes {
            if let Some(inode) = self.inodes.remove(ino) {
                self.engine.evict(&inode).unwrap();
            }
        }
    }

    /// Lets all inodes go; the volume stays mounted.
    pub fn let_go(mut self) {
        for (_, inode) in self.inodes.drain() {
            self.engine.evict(&inode).unwrap();
        }
    }

    pub fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp {
            secs: self.clock,
            nanos: 7,
        }
    }

    pub fn get(&mut self, ino: u64) -> Arc<Inode> {
        let engine = &self.engine;
        Arc::clone(
            self.inodes
                .entry(ino)
                .or_insert_with(|| engine.load(Ino(ino)).unwrap()),
        )
    }

    pub fn root(&mut self) -> Arc<Inode> {
        self.get(2)
    }

    pub fn find(&mut self, dir: &Arc<Inode>, name: &[u8]) -> Option<Arc<Inode>> {
        let (ino, _) = self.engine.lookup(dir, name).unwrap()?;
        Some(self.get(ino.0))
    }

    pub fn new_inode(kind: FileKind) -> NewInode {
        NewInode {
            kind,
            perm: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            symlink: Vec::new(),
            now: Timestamp {
                secs: 1_700_000_000,
                nanos: 5,
            },
            xattrs: Vec::new(),
        }
    }

    pub fn create(&mut self, dir: &Arc<Inode>, name: &[u8], kind: FileKind) -> Result<Arc<Inode>> {
        let inode = self.engine.create(dir, name, &Self::new_inode(kind))?;
        self.inodes.insert(inode.ino().0, Arc::clone(&inode));
        Ok(inode)
    }

    pub fn mkdir(&mut self, dir: &Arc<Inode>, name: &[u8]) -> Arc<Inode> {
        self.create(dir, name, FileKind::Directory).unwrap()
    }

    pub fn unlink(&mut self, dir: &Arc<Inode>, name: &[u8]) -> Arc<Inode> {
        let inode = self.find(dir, name).unwrap();
        let now = self.now();
        self.engine.unlink(dir, name, &inode, now).unwrap();
        inode
    }

    /// Evicts an inode without names, as the vfs does when its last user goes.
    pub fn settle(&mut self, inode: &Arc<Inode>) {
        if inode.attr().nlink == 0 {
            self.inodes.remove(&inode.ino().0);
            self.engine.evict(inode).unwrap();
        }
    }

    pub fn unmount(mut self) {
        for (_, inode) in self.inodes.drain() {
            self.engine.evict(&inode).unwrap();
        }
        self.engine.unmount().unwrap();
    }

    /// Lists up to `chunk` entries after a cookie; the cookie to go on from, `None` at the end.
    pub fn list_some(
        &self,
        dir: &Arc<Inode>,
        cookie: u64,
        chunk: usize,
        out: &mut Vec<(Vec<u8>, u64)>,
    ) -> Option<u64> {
        let (mut n, mut last) = (0, cookie);
        self.engine
            .readdir(dir, cookie, &mut |e| {
                if n == chunk {
                    return ControlFlow::Break(());
                }
                n += 1;
                assert_ne!(e.cookie, 0);
                last = e.cookie;
                out.push((e.name.to_vec(), e.ino.0));
                ControlFlow::Continue(())
            })
            .unwrap();
        (n > 0).then_some(last)
    }

    pub fn list(&self, dir: &Arc<Inode>, chunk: usize) -> BTreeMap<Vec<u8>, u64> {
        let mut all = Vec::new();
        let mut cookie = 0;
        while let Some(next) = self.list_some(dir, cookie, chunk, &mut all) {
            cookie = next;
        }
        let count = all.len();
        let map: BTreeMap<_, _> = all.into_iter().collect();
        assert_eq!(map.len(), count, "a name was listed twice");
        map
    }
}
