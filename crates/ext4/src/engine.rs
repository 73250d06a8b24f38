//! [`Ext4`]: the engine as the vfs sees it. Thin: every method checks what concerns the whole file
//! (encrypted, verity, inline) and hands over to the part that does the work.

use crate::fs::{Fs, FsRef};
use crate::inode::{Purpose, ext4, vfs_ino};
use crate::options::Options;
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::{Ino, InodeFlags};
use blockwright_vfs as vfs;
use blockwright_vfs::engine::{
    Attributes, CommitWrite, Data, FallocMode, Format, Intent, Mapping, Names, Space, SyncScope,
    Volume, WriteTarget,
};
use blockwright_vfs::types::{
    AttrChange, DirEntry, FileKind, NewInode, RenameMode, StatFs, Timestamp, XattrMode,
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
        if let Err(e) = fs.quota.load(&fs) {
            // Written without quota, the files would lie from then on.
            fs.turn_read_only(&e);
        }
        fs.load_orphans()?;
        if !fs.is_read_only() {
            fs.process_orphans()?;
        }
        // The root must be readable, or there is nothing to use.
        fs.load_inode_for(Ino::ROOT, Purpose::User)?;
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
        self.fs.check_writable(op)?;
        changeable(op, inode, ext4(inode).flags())
    }
}

/// Fails for contents that cannot be read here.
fn readable(op: &'static str, inode: &vfs::Inode, flags: InodeFlags) -> Result<()> {
    if flags.contains(InodeFlags::ENCRYPT) {
        return Err(Error::new(ErrorKind::KeyRequired, op)
            .ino(inode.ino())
            .detail("the file is encrypted"));
    }
    Ok(())
}

/// Fails for contents that may not be changed, whatever the volume allows.
pub(crate) fn changeable(op: &'static str, inode: &vfs::Inode, flags: InodeFlags) -> Result<()> {
    readable(op, inode, flags)?;
    if flags.contains(InodeFlags::VERITY) {
        return Err(Error::new(ErrorKind::NotPermitted, op)
            .ino(inode.ino())
            .detail("the file is protected by fs-verity"));
    }
    Ok(())
}

impl Names for Ext4 {
    fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<(vfs::Ino, Option<FileKind>)>> {
        self.fs.lookup(dir, name)
    }

    fn readdir(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.fs.dir_list(dir, cookie, sink)
    }

    fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<Inode> {
        self.fs.create(dir, name, new)
    }

    fn create_unnamed(&self, dir: &Inode, new: &NewInode) -> Result<Inode> {
        self.fs.create_unnamed(dir, new)
    }

    fn link(&self, dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()> {
        self.fs.link(dir, name, inode, now)
    }

    fn unlink(&self, dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()> {
        self.fs.unlink(dir, name, inode, now)
    }

    fn rmdir(&self, dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()> {
        self.fs.rmdir(dir, name, inode, now)
    }

    fn rename(
        &self,
        old_dir: &Inode,
        old_name: &[u8],
        inode: &Inode,
        new_dir: &Inode,
        new_name: &[u8],
        target: Option<&Inode>,
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        self.fs.rename(
            old_dir, old_name, inode, new_dir, new_name, target, mode, now,
        )
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.fs.read_link(inode)
    }

    fn parent(&self, dir: &Inode) -> Result<vfs::Ino> {
        Ok(vfs_ino(self.fs.dir_parent(dir)?))
    }
}

impl Attributes for Ext4 {
    fn load(&self, ino: vfs::Ino) -> Result<Inode> {
        self.fs.load_inode(self.number(ino)?)
    }

    fn evict(&self, inode: &Inode) -> Result<()> {
        self.fs.evict_inode(inode)
    }

    fn set_attr(&self, inode: &Inode, change: &AttrChange) -> Result<()> {
        self.fs.set_attr(inode, change)
    }

    fn write_attr(&self, inode: &Inode) -> Result<()> {
        self.fs.write_attr(inode)
    }

    /// As the kernel shows it: data in the inode takes no blocks, but programs that take a file without
    /// blocks for one without data (tar among them) must not be fooled.
    fn stat(&self, inode: &vfs::Inode) -> vfs::Attr {
        let mut attr = inode.attr();
        if attr.kind == FileKind::Regular
            && attr.size > 0
            && ext4(inode).flags().contains(InodeFlags::INLINE_DATA)
        {
            attr.blocks512 = attr.blocks512.saturating_add(attr.size.div_ceil(512));
        }
        attr
    }

    fn sync_inode(&self, inode: &Inode, scope: SyncScope) -> Result<()> {
        if self.fs.is_read_only() && self.fs.journal.aborted().is_none() {
            return Ok(());
        }
        let own = ext4(inode);
        let tid = match scope {
            SyncScope::All => {
                self.fs.write_attr(inode)?;
                own.sync_tid.get()
            }
            SyncScope::Data => own.datasync_tid.get(),
        };
        // Flushes also when the transaction was durable before: the data may still be in the device's
        // cache.
        self.fs.journal.sync(tid)
    }

    fn is_durable(&self, inode: &Inode, scope: SyncScope) -> bool {
        let own = ext4(inode);
        let tid = match scope {
            SyncScope::All => return false,
            SyncScope::Data => own.datasync_tid.get(),
        };
        self.fs.journal.aborted().is_none() && self.fs.journal.tid_is_durable(tid)
    }

    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.xattr_get(inode, name)
    }

    fn set_xattr(&self, inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.fs.xattr_set(inode, name, value, mode)
    }

    fn remove_xattr(&self, inode: &Inode, name: &[u8]) -> Result<()> {
        self.fs.xattr_remove(inode, name)
    }

    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.fs.xattr_list(inode)
    }
}

impl Data for Ext4 {
    fn file_bytes_max(&self, inode: &vfs::Inode) -> u64 {
        self.fs.file_bytes_max(inode)
    }

    fn map(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Mapping> {
        self.check_readable("map", inode)?;
        self.fs.map(inode, offset, bytes)
    }

    fn extent_in_place(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Option<Mapping>> {
        self.check_changeable("overwrite", inode)?;
        self.fs.extent_in_place(inode, offset, bytes)
    }

    fn extents(&self, inode: &Inode, leaves: &mut usize) -> Option<u64> {
        self.fs.count_extents(inode, leaves)
    }

    fn read_inline(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.fs.read_inline(inode)
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
            self.fs.inline_to_blocks(inode)?;
        }
        if intent == Intent::Writeback
            && let Some(target) = self.fs.allocate_inline(inode, &range, data_end)?
        {
            return Ok(target);
        }
        let target = self.fs.allocate(inode, range, data_end, intent)?;
        if intent == Intent::Direct
            && let Err(error) = self.fs.limit_direct_write(inode)
        {
            self.fs.abandon_write(inode, &target);
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
        self.fs.allocate_nowait(inode, range, data_end)
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
                || self.fs.is_inline(inode)
                || range.start == 0 && self.fs.may_go_inline(inode))
        {
            let target = self.allocate(inode, range.clone(), data_end, intent)?;
            return Ok(vec![target]);
        }
        self.fs.allocate_runs(inode, ranges, data_end, intent)
    }

    fn commit_write(&self, inode: &Inode, target: &WriteTarget, data_end: u64) -> Result<()> {
        self.fs.commit_write(inode, target, data_end)
    }

    fn commit_writes(&self, writes: &[CommitWrite<'_>]) -> Vec<Result<()>> {
        self.fs.commit_writes(writes)
    }

    fn commits_at_once(&self) -> bool {
        self.fs.journal.has_room()
    }

    fn abandon_write(&self, inode: &Inode, target: &WriteTarget) {
        self.fs.abandon_write(inode, target);
    }

    fn open_end(&self, inode: &Inode) -> Option<u64> {
        self.fs.open_end(inode)
    }

    fn write_inline(&self, inode: &Inode, bytes: &[u8], data_end: u64) -> Result<()> {
        self.check_changeable("write inline data", inode)?;
        self.fs.write_inline(inode, bytes, data_end)
    }

    fn truncate(&self, inode: &Inode, size: u64, now: Timestamp) -> Result<()> {
        self.check_changeable("truncate", inode)?;
        if self.fs.truncate_inline(inode, size, now)? {
            return Ok(());
        }
        self.fs.truncate(inode, size, now)
    }

    fn check_fallocate(&self, inode: &Inode, mode: FallocMode) -> Result<()> {
        self.check_changeable("fallocate", inode)?;
        self.fs.check_fallocate(inode, mode)
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
            self.fs.check_fallocate_quota(inode, &range)?;
        }
        self.fs.inline_to_blocks(inode)?;
        self.fs.fallocate(inode, range, mode, now)
    }
}

impl Space for Ext4 {
    fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }

    fn reserve(&self, inode: &Inode, range: Range<u64>) -> Result<()> {
        self.reserve_hole(inode, range).map(drop)
    }

    fn reserve_hole(&self, inode: &Inode, range: Range<u64>) -> Result<bool> {
        self.fs.reserve_hole(inode, range)
    }

    fn unreserve(&self, inode: &Inode, range: Range<u64>) {
        self.fs.unreserve(inode, range);
    }

    fn may_go_inline(&self, inode: &Inode) -> bool {
        self.fs.may_go_inline(inode)
    }

    fn set_delayed_allocation(&self, on: bool) {
        self.fs.alloc.set_delayed_allocation(on);
    }

    fn release_write(&self, inode: &Inode) {
        self.fs.release_write(inode);
    }

    fn check_quota(&self, inode: &Inode, bytes: u64) -> Result<()> {
        let blocks = bytes.div_ceil(self.fs.block_bytes() as u64);
        self.fs.check_block_quota(inode, blocks)
    }

    fn quotas(&self, kind: vfs::quota::Kind) -> Result<Option<Vec<vfs::quota::Quota>>> {
        self.fs.quotas(kind)
    }

    fn set_quota_limits(
        &self,
        kind: vfs::quota::Kind,
        id: u32,
        limits: &vfs::quota::Limits,
    ) -> Result<()> {
        self.fs.set_quota_limits(kind, id, limits)
    }

    fn trim(&self, range: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.fs.trim(range, bytes_min)
    }
}

impl Volume for Ext4 {
    fn format(&self) -> Format {
        Format {
            name: "ext4",
            root: vfs_ino(Ino::ROOT),
            block_bytes: self.fs.geometry().block_size,
            moves_blocks: false,
            keeps_places: true,
            reserve_allocates: true,
        }
    }

    fn is_read_only(&self) -> bool {
        self.fs.is_read_only()
    }

    fn stats(&self, out: &mut vfs::Stats) {
        let fs = &self.fs;
        out.section("ext4");
        out.gauge(
            "orphans",
            vfs::Unit::Count,
            "inodes that are freed or cut when they leave memory",
            fs.orphans.count() as u64,
        );
        out.counter(
            "errors_found",
            vfs::Unit::Count,
            "damage found since the mount",
            fs.errors.count(),
        );
        fs.journal.stats(out);
        fs.cache.stats(out);
        fs.alloc.stats(out);
    }

    fn tunables(&self) -> Vec<vfs::Tunable> {
        self.fs.tunables()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<()> {
        self.fs.set_tunable(name, value)
    }

    fn memory_bytes(&self) -> u64 {
        self.fs.cache.memory_bytes()
    }

    fn sync_volume(&self) -> Result<()> {
        if self.fs.is_read_only() && self.fs.journal.aborted().is_none() {
            return Ok(());
        }
        let tid = self.fs.journal.running_tid();
        self.fs.journal.sync(tid)
    }

    fn unmount(&self) -> Result<()> {
        self.fs.orphans_settled()?;
        self.fs.unmount()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
