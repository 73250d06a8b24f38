//! [`F2fs`]: the engine as the vfs sees it. Thin: every method hands over to the part that does the work,
//! or refuses a change because the volume is mounted read-only.

use crate::fs::{Fs, FsRef, vfs_ino};
use crate::inode::f2fs;
use crate::node::direct_addresses;
use crate::options::Options;
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::f2fs::Ino;
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_ondisk::f2fs::node::PER_NODE;
use blockwright_vfs as vfs;
use blockwright_vfs::engine::{Engine, FallocMode, Intent, Mapping, SyncScope, WriteTarget};
use blockwright_vfs::types::{
    AttrChange, DirEntry, FileKind, NewInode, RenameMode, StatFs, Timestamp, XattrMode,
};
use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

type Inode = Arc<vfs::Inode>;

/// A mounted f2fs volume.
pub struct F2fs {
    fs: FsRef,
}

impl F2fs {
    /// Mounts the volume on a device, for reading: nothing is ever written to it. A volume that was not
    /// unmounted is shown as its last checkpoint has it.
    ///
    /// # Errors
    /// What cannot be used, naming the structure or the feature; or a device error.
    pub fn mount(device: SharedDevice, options: Options) -> Result<Arc<Self>> {
        let fs = Fs::mount(device, options)?;
        // The root must be readable, or there is nothing to use.
        fs.load_inode(Ino::ROOT)?;
        Ok(Arc::new(F2fs { fs }))
    }

    /// The parts, for code that knows the format.
    #[must_use]
    pub fn fs(&self) -> &FsRef {
        &self.fs
    }

    fn refuse<T>(&self, op: &'static str) -> Result<T> {
        Err(self.fs.read_only(op))
    }
}

impl Engine for F2fs {
    fn format(&self) -> &'static str {
        "f2fs"
    }

    fn root(&self) -> vfs::Ino {
        vfs_ino(Ino::ROOT)
    }

    fn block_bytes(&self) -> u32 {
        4096
    }

    fn file_bytes_max(&self, inode: &vfs::Inode) -> u64 {
        let body = f2fs(inode).body.read();
        let direct = direct_addresses(body.cluster);
        let per = PER_NODE as u64;
        let in_inode = body.layout.addresses_used(body.cluster) as u64;
        (in_inode + direct * (2 + 2 * per + per * per)) << 12
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.fs.statfs())
    }

    /// As the kernel shows it: data in the inode takes no blocks, but programs that take a file without
    /// blocks for one without data (tar among them) must not be fooled.
    fn stat(&self, inode: &vfs::Inode) -> vfs::Attr {
        let mut attr = inode.attr();
        let inline = f2fs(inode).body.read().inode.inline;
        if attr.kind == FileKind::Regular && attr.size > 0 && inline.contains(InlineFlags::DATA) {
            attr.blocks512 = attr.blocks512.saturating_add(attr.size.div_ceil(512));
        }
        attr
    }

    fn stats(&self, out: &mut vfs::Stats) {
        let fs = &self.fs;
        out.section("f2fs");
        let mut count = |name, help, value| out.counter(name, vfs::Unit::Count, help, value);
        let (hits, misses) = fs.nodes.counts();
        count("node_hits", "nodes found in memory", hits);
        count("node_misses", "nodes read, or made", misses);
        let (hits, misses) = fs.blocks.counts();
        count(
            "directory_hits",
            "blocks of directories found in memory",
            hits,
        );
        count(
            "directory_misses",
            "blocks of directories that were not, holes included",
            misses,
        );
        count(
            "errors_found",
            "damage found since the mount",
            fs.error_count(),
        );
        out.gauge(
            "orphans",
            vfs::Unit::Count,
            "inodes without a name that the last checkpoint names",
            fs.orphans.len() as u64,
        );
    }

    fn load(&self, ino: vfs::Ino) -> Result<Inode> {
        let number = u32::try_from(ino.0)
            .map_err(|_| Error::new(ErrorKind::Stale, "load inode").ino(ino))?;
        self.fs.load_inode(Ino(number))
    }

    fn evict(&self, _inode: &Inode) -> Result<()> {
        Ok(())
    }

    fn set_attr(&self, _inode: &Inode, _change: &AttrChange) -> Result<()> {
        self.refuse("set attributes")
    }

    fn write_attr(&self, _inode: &Inode) -> Result<()> {
        self.refuse("write attributes")
    }

    fn sync_inode(&self, _inode: &Inode, _scope: SyncScope) -> Result<()> {
        Ok(())
    }

    fn sync_volume(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<(vfs::Ino, Option<FileKind>)>> {
        self.fs.lookup(dir, name)
    }

    fn readdir(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.fs.list(dir, cookie, sink)
    }

    fn create(&self, _dir: &Inode, _name: &[u8], _new: &NewInode) -> Result<Inode> {
        self.refuse("create")
    }

    fn create_unnamed(&self, _dir: &Inode, _new: &NewInode) -> Result<Inode> {
        self.refuse("create unnamed")
    }

    fn link(&self, _dir: &Inode, _name: &[u8], _inode: &Inode, _now: Timestamp) -> Result<()> {
        self.refuse("link")
    }

    fn unlink(&self, _dir: &Inode, _name: &[u8], _inode: &Inode, _now: Timestamp) -> Result<()> {
        self.refuse("unlink")
    }

    fn rmdir(&self, _dir: &Inode, _name: &[u8], _inode: &Inode, _now: Timestamp) -> Result<()> {
        self.refuse("remove directory")
    }

    fn rename(
        &self,
        _old_dir: &Inode,
        _old_name: &[u8],
        _inode: &Inode,
        _new_dir: &Inode,
        _new_name: &[u8],
        _target: Option<&Inode>,
        _mode: RenameMode,
        _now: Timestamp,
    ) -> Result<()> {
        self.refuse("rename")
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.fs.read_link(inode)
    }

    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.get_xattr(inode, name)
    }

    fn set_xattr(&self, _: &Inode, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        self.refuse("set attribute")
    }

    fn remove_xattr(&self, _inode: &Inode, _name: &[u8]) -> Result<()> {
        self.refuse("remove attribute")
    }

    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.fs.list_xattr(inode)
    }

    fn map(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Mapping> {
        f2fs(inode).check_readable("map")?;
        self.fs.map(inode, offset, bytes)
    }

    fn reserve(&self, _inode: &Inode, _range: Range<u64>) -> Result<()> {
        self.refuse("reserve")
    }

    fn unreserve(&self, _inode: &Inode, _range: Range<u64>) {}

    fn allocate(&self, _: &Inode, _: Range<u64>, _: u64, _: Intent) -> Result<WriteTarget> {
        self.refuse("allocate")
    }

    fn commit_write(&self, _: &Inode, _: &WriteTarget, _: u64) -> Result<()> {
        self.refuse("commit write")
    }

    fn abandon_write(&self, _inode: &Inode, _target: &WriteTarget) {}

    fn read_inline(&self, inode: &Inode) -> Result<Vec<u8>> {
        f2fs(inode).check_readable("read inline data")?;
        self.fs.read_inline(inode)
    }

    fn write_inline(&self, _inode: &Inode, _bytes: &[u8], _data_end: u64) -> Result<()> {
        self.refuse("write inline data")
    }

    fn truncate(&self, _inode: &Inode, _size: u64, _now: Timestamp) -> Result<()> {
        self.refuse("truncate")
    }

    fn check_fallocate(&self, _inode: &Inode, _mode: FallocMode) -> Result<()> {
        self.refuse("fallocate")
    }

    fn fallocate(&self, _: &Inode, _: Range<u64>, _: FallocMode, _: Timestamp) -> Result<()> {
        self.refuse("fallocate")
    }

    fn parent(&self, dir: &Inode) -> Result<vfs::Ino> {
        self.fs.parent(dir)
    }

    fn trim(&self, _range: Range<u64>, _bytes_min: u64) -> Result<u64> {
        self.refuse("trim")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
