//! [`Ext4`]: the engine as the vfs sees it. A method checks what concerns the whole file
//! (encrypted, verity, inline) and calls the part that does the work.

use crate::inode::{Purpose, changeable, ext4, readable};
use crate::mount::{Fs, FsRef};
use crate::options::Options;
use crate::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::Ino;
use blockwright_vfs as vfs;
use blockwright_vfs::engine::{
    Attributes, CommitWrite, Data, FallocMode, Format, Intent, Mapping, Names, Rename, Space,
    SyncScope, Volume, WriteTarget,
};
use blockwright_vfs::types::{
    AttrChange, DirEntry, FileKind, NewInode, StatFs, Timestamp, XattrMode,
};
use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

type Inode = Arc<vfs::Inode>;

/// A mounted ext2, ext3 or ext4 volume.
pub struct Ext4 {
    fs: FsRef,
}

impl Ext4 {
    /// Mounts the volume on a device: recovers the journal, finishes orphans, opens quota.
    ///
    /// # Errors
    /// What cannot be used, naming the structure or the feature; or a device error.
    pub fn mount(device: SharedDevice, options: Options) -> Result<Arc<Self>> {
        let fs = Fs::mount(device, options)?;
        if fs.quota.load().is_err() {
            // Written without quota, the files would lie from then on.
            fs.volume.errors.note();
            fs.volume.set_read_only();
        }
        fs.recovery.load_orphans()?;
        if !fs.volume.is_read_only() {
            fs.recovery.process_orphans()?;
        }
        // The root must be readable, or there is nothing to use.
        fs.stored.load_for(Ino::ROOT, Purpose::User)?;
        Ok(Arc::new(Ext4 { fs }))
    }

    /// The parts, for code that knows the format.
    #[must_use]
    pub fn fs(&self) -> &FsRef {
        &self.fs
    }

    fn number(&self, ino: vfs::Ino) -> Result<Ino> {
        u32::try_from(ino.0)
            .map(Ino)
            .map_err(|_| Error::new(ErrorKind::Stale, "load inode").ino(ino))
    }

    /// Fails for contents that cannot be had without a key.
    fn check_readable(&self, op: &'static str, inode: &Inode) -> Result<()> {
        readable(op, inode, ext4(inode).flags())
    }

    /// Fails for contents that may not be changed.
    fn check_changeable(&self, op: &'static str, inode: &Inode) -> Result<()> {
        self.fs.volume.check_writable(op)?;
        changeable(op, inode, ext4(inode).flags())
    }
}

impl Names for Ext4 {
    vfs::forward! { names:
        lookup(dir: &Inode, name: &[u8]) -> Result<Option<(vfs::Ino, Option<FileKind>)>>;
        create(dir: &Inode, name: &[u8], new: &NewInode) -> Result<Inode>;
        create_unnamed(dir: &Inode, new: &NewInode) -> Result<Inode>;
        link(dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()>;
        unlink(dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()>;
        rmdir(dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()>;
        rename(rename: &Rename<'_>) -> Result<()>;
        read_link(inode: &Inode) -> Result<Vec<u8>>;
    }

    fn readdir(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.fs.dirs.list(dir, cookie, sink)
    }

    fn list_ahead(&self, dirs: &[Inode]) {
        self.fs.dirs.read_ahead(dirs);
    }

    fn parent(&self, dir: &Inode) -> Result<vfs::Ino> {
        Ok(vfs_ino(self.fs.dirs.parent(dir)?))
    }
}

impl Attributes for Ext4 {
    vfs::forward! { eviction:
        evict(inode: &Inode) -> Result<()>;
    }
    vfs::forward! { attributes:
        set_attr(inode: &Inode, change: &AttrChange) -> Result<()>;
        set_xattr(inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        remove_xattr(inode: &Inode, name: &[u8]) -> Result<()>;
    }
    vfs::forward! { inodes:
        write_attr(inode: &Inode) -> Result<()>;
    }

    fn load(&self, ino: vfs::Ino) -> Result<Inode> {
        self.fs.stored.load(self.number(ino)?)
    }

    /// As the kernel shows it: data in the inode takes no blocks, but programs that take a file without
    /// blocks for one without data (tar among them) must not be fooled.
    fn stat(&self, inode: &vfs::Inode) -> vfs::Attr {
        let mut attr = inode.attr();
        if attr.kind == FileKind::Regular && attr.size > 0 && ext4(inode).is_inline() {
            attr.blocks512 = attr.blocks512.saturating_add(attr.size.div_ceil(512));
        }
        attr
    }

    fn sync_inode(&self, inode: &Inode, scope: SyncScope) -> Result<()> {
        if self.fs.volume.is_read_only() && self.fs.volume.journal.aborted().is_none() {
            return Ok(());
        }
        let own = ext4(inode);
        let tid = match scope {
            SyncScope::All => {
                self.fs.inodes.write_attr(inode)?;
                own.sync_tid.get()
            }
            SyncScope::Data => own.datasync_tid.get(),
        };
        // Flushes also when the transaction was durable before: the data may still be in the device's
        // cache.
        self.fs.volume.journal.sync(tid)
    }

    fn is_durable(&self, inode: &Inode, scope: SyncScope) -> bool {
        let own = ext4(inode);
        let tid = match scope {
            SyncScope::All => return false,
            SyncScope::Data => own.datasync_tid.get(),
        };
        self.fs.volume.journal.aborted().is_none() && self.fs.volume.journal.tid_is_durable(tid)
    }

    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.xattrs.get(inode, name)
    }

    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.fs.xattrs.list(inode)
    }
}

impl Data for Ext4 {
    vfs::forward! { maps:
        file_bytes_max(inode: &vfs::Inode) -> u64;
        open_end(inode: &Inode) -> Option<u64>;
    }
    vfs::forward! { commits:
        commit_write(inode: &Inode, target: &WriteTarget, data_end: u64) -> Result<()>;
        commit_writes(writes: &[CommitWrite<'_>]) -> Vec<Result<()>>;
    }
    vfs::forward! { delayed:
        abandon_write(inode: &Inode, target: &WriteTarget);
    }

    fn map(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Mapping> {
        self.check_readable("map", inode)?;
        self.fs.maps.map(inode, offset, bytes)
    }

    fn extent_in_place(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Option<Mapping>> {
        self.check_changeable("overwrite", inode)?;
        self.fs.maps.extent_in_place(inode, offset, bytes)
    }

    fn extents(&self, inode: &Inode, leaves: &mut usize) -> Option<u64> {
        self.fs.maps.count_extents(inode, leaves)
    }

    fn read_inline(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.fs.inline.read(inode)
    }

    fn allocate(
        &self,
        inode: &Inode,
        range: Range<u64>,
        data_end: u64,
        intent: Intent,
    ) -> Result<WriteTarget> {
        const OP: &str = "allocate";
        self.check_changeable(OP, inode)?;
        if intent == Intent::Direct {
            self.fs.inline.to_blocks(inode)?;
        }
        if intent == Intent::Writeback
            && let Some(target) = self.fs.inline.allocate(inode, &range, data_end)?
        {
            return Ok(target);
        }
        let target = self.fs.delayed.allocate(inode, range, data_end, intent)?;
        if intent == Intent::Direct
            && let Err(error) = self.fs.quota.limit_direct_write(inode)
        {
            self.fs.delayed.abandon_write(inode, &target);
            return Err(error);
        }
        Ok(target)
    }

    fn allocate_nowait(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        data_end: u64,
    ) -> Option<WriteTarget> {
        self.check_changeable("allocate", inode).ok()?;
        self.fs.delayed.allocate_nowait(inode, range, data_end)
    }

    fn allocate_runs(
        &self,
        inode: &Inode,
        ranges: &[Range<u64>],
        data_end: u64,
        intent: Intent,
    ) -> Result<Vec<WriteTarget>> {
        self.check_changeable("allocate", inode)?;
        // Alone where it may be the inode that takes the first, and where quota is looked at for each.
        if let Some(range) = ranges.first()
            && (intent == Intent::Direct
                || ext4(inode).is_inline()
                || range.start == 0 && self.fs.inline.may_go_inline(inode))
        {
            let target = self.allocate(inode, range.clone(), data_end, intent)?;
            return Ok(vec![target]);
        }
        self.fs
            .delayed
            .allocate_runs(inode, ranges, data_end, intent)
    }

    fn commits_at_once(&self) -> bool {
        self.fs.volume.journal.has_room()
    }

    fn write_inline(&self, inode: &Inode, bytes: &[u8], data_end: u64) -> Result<bool> {
        self.check_changeable("write inline data", inode)?;
        self.fs.inline.write(inode, bytes, data_end)
    }

    fn truncate(&self, inode: &Inode, size: u64, now: Timestamp) -> Result<()> {
        self.check_changeable("truncate", inode)?;
        self.fs.truncation.truncate(inode, size, now)
    }

    fn check_fallocate(&self, inode: &Inode, mode: FallocMode) -> Result<()> {
        self.check_changeable("fallocate", inode)?;
        self.fs.truncation.check_fallocate(inode, mode)
    }

    fn fallocate(
        &self,
        inode: &Inode,
        range: Range<u64>,
        mode: FallocMode,
        now: Timestamp,
    ) -> Result<()> {
        self.check_changeable("fallocate", inode)?;
        if !matches!(mode, FallocMode::PunchHole | FallocMode::CollapseRange) {
            self.fs.quota.check_fallocate(inode, &range)?;
        }
        self.fs.truncation.fallocate(inode, range, mode, now)
    }
}

impl Space for Ext4 {
    vfs::forward! { inline:
        reserve_hole(inode: &Inode, range: Range<u64>) -> Result<bool>;
        may_go_inline(inode: &Inode) -> bool;
    }
    vfs::forward! { delayed:
        unreserve(inode: &Inode, range: Range<u64>);
        release_write(inode: &Inode);
    }
    vfs::forward! { alloc:
        set_delayed_allocation(on: bool);
        trim(range: Range<u64>, bytes_min: u64) -> Result<u64>;
    }
    vfs::forward! { quota:
        quotas(kind: vfs::quota::Kind) -> Result<Option<Vec<vfs::quota::Quota>>>;
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.fs.alloc.statfs())
    }

    fn reserve(&self, inode: &Inode, range: Range<u64>) -> Result<()> {
        self.reserve_hole(inode, range).map(drop)
    }

    fn check_quota(&self, inode: &Inode, bytes: u64) -> Result<()> {
        let blocks = bytes.div_ceil(self.fs.volume.block_bytes() as u64);
        self.fs.quota.check_blocks(inode, blocks)
    }

    fn set_quota_limits(
        &self,
        kind: vfs::quota::Kind,
        id: u32,
        limits: &vfs::quota::Limits,
    ) -> Result<()> {
        self.fs.quota.set_limits(kind, id, limits)
    }

    #[cfg(feature = "grow")]
    fn grow(&self, size: vfs::engine::NewSize) -> Result<vfs::engine::Grown> {
        self.fs.grow(size)
    }
}

impl Volume for Ext4 {
    vfs::forward! { volume:
        is_read_only() -> bool;
    }

    fn format(&self) -> Format {
        Format {
            name: "ext4",
            root: vfs_ino(Ino::ROOT),
            block_bytes: self.fs.volume.geometry().block_size,
            moves_blocks: false,
            keeps_places: true,
            reserve_allocates: true,
        }
    }

    fn read_only_reason(&self) -> Option<String> {
        self.fs.read_only_reason()
    }

    fn stats(&self, out: &mut vfs::Stats) {
        let fs = &self.fs;
        out.section("ext4");
        vfs::stat_lines! { out;
            gauge "orphans", Count, "inodes that are freed or cut when they leave memory" => fs.orphans.count() as u64;
            counter "errors_found", Count, "damage found since the mount" => fs.volume.errors.count();
        }
        fs.volume.journal.stats(out);
        fs.volume.cache.stats(out);
        fs.alloc.stats(out);
    }

    fn tunables(&self) -> Vec<vfs::Tunable> {
        self.fs.tunables()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<()> {
        self.fs.set_tunable(name, value)
    }

    fn memory_bytes(&self) -> u64 {
        self.fs.volume.cache.memory_bytes()
    }

    fn sync_volume(&self) -> Result<()> {
        if self.fs.volume.is_read_only() && self.fs.volume.journal.aborted().is_none() {
            return Ok(());
        }
        let tid = self.fs.volume.journal.running_tid();
        self.fs.volume.journal.sync(tid)
    }

    fn unmount(&self) -> Result<()> {
        self.fs.orphans.clear_present()?;
        self.fs.unmount()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
