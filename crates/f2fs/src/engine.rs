//! [`F2fs`]: the engine as the vfs sees it. Each method calls the part that does the work.
//!
//! It owns the mounted parts and the thread that writes a checkpoint when changes come of age.

use crate::checkpoint::merge::Merger;
use crate::mount::{Fs, FsRef};
use crate::node::direct_addresses;
use crate::node::inode::f2fs;
use crate::options::{Mode, Options};
use crate::recovery::Recovered;
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_device::sim::turns;
use blockwright_device::{AlignedBuf, DevOffset, SharedDevice};
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_ondisk::f2fs::node::{NodeOffset, PER_NODE};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::engine::{
    Attributes, Data, FallocMode, Format, Grown, Host, Intent, Mapping, Names, NewSize, Rename,
    Space, SyncScope, Volume, WriteTarget,
};
use blockwright_vfs::locks::{Mutex, Rank};
use blockwright_vfs::types::{
    AttrChange, DirEntry, FileKind, NewInode, StatFs, Timestamp, XattrMode,
};
use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

type Inode = Arc<vfs::Inode>;

/// A mounted f2fs volume.
pub struct F2fs {
    fs: FsRef,
    format: Format,
    /// Wants checkpoints as changes come of age.
    ager: Mutex<Option<JoinHandle<()>>>,
}

impl F2fs {
    /// Mounts the volume on a device. Files that were fsynced after its last checkpoint are recovered: in memory only when
    /// the mount is for reading, which writes nothing.
    ///
    /// # Errors
    /// A structure or feature that cannot be used, by name; or a device error.
    pub fn mount(device: SharedDevice, options: Options) -> Result<Arc<Self>> {
        let fs = Fs::mount(device, options)?;
        // The root must be readable, or there is nothing to use.
        fs.nodes.load_inode(Ino::ROOT)?;
        if fs.access.writer.is_some() && fs.recovered != Recovered::default() {
            fs.checkpoints.checkpoint()?;
        }
        fs.attributes.finish_orphans()?;
        let mut ager = None;
        if fs.access.writer.is_some() {
            fs.checkpoints
                .merger
                .set_priority(fs.volume.options.ckpt_thread_ioprio);
            fs.checkpoints.apply_checkpoint_option()?;
            match fs.volume.options.checkpoint_merge {
                Some(true) => Merger::start(&fs.checkpoints)?,
                None if !fs.access.checkpoints_are_disabled() => {
                    // Without the thread (the host's limits, a host without threads) each caller writes its own checkpoints.
                    let _alone = Merger::start(&fs.checkpoints);
                }
                Some(false) | None => {}
            }
            // No other thread has a part in a run of threads that take turns.
            if !turns::takes_turns() {
                let checkpoints = Arc::clone(&fs.checkpoints);
                let thread = std::thread::Builder::new().name("f2fs-ckpt".to_owned());
                ager = thread.spawn(move || checkpoints.run_ager()).ok();
            }
        }
        // Blocks that disabled checkpoints refer to are not overwritten, so places are not kept; neither later in this mount, when
        // checkpoints are enabled again.
        let in_place = fs.volume.options.mode == Mode::Adaptive;
        let writes = fs.access.writer.is_some();
        let format = Format {
            name: "f2fs",
            root: vfs_ino(Ino::ROOT),
            block_bytes: BLOCK_SIZE as u32,
            moves_blocks: writes,
            keeps_places: writes && in_place && !fs.access.checkpoints_are_disabled(),
            reserve_allocates: false,
        };
        Ok(Arc::new(F2fs {
            fs,
            format,
            ager: Mutex::new(Rank::Leaf, ager),
        }))
    }

    /// The parts, for code that knows the format.
    #[must_use]
    pub fn fs(&self) -> &FsRef {
        &self.fs
    }

    /// Data whose write was accepted finds no room until cleaning was asked for this many times. For tests of what happens then.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn withhold_room(&self, passes: u32) {
        if let Some(w) = &self.fs.access.writer {
            w.segments.withhold(passes);
        }
    }

    /// Changes how simultaneous writes share a data log, for later allocations. It has no effect on a read-only volume.
    #[cfg(feature = "comparison")]
    pub fn set_direct_allocation(&self, way: crate::comparison::DirectAllocation) {
        if let Some(w) = &self.fs.access.writer {
            w.sharing.set_way(way);
        }
    }

    fn stop_threads(&self) {
        self.fs.cleaning.stop_cleaning();
        self.fs.checkpoints.stop_threads();
        let ager = self.ager.lock().take();
        if let Some(ager) = ager {
            // A panic of it has been reported by its own thread.
            let _ended = ager.join();
        }
    }
}

impl Drop for F2fs {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl Names for F2fs {
    vfs::forward! { directories:
        lookup(dir: &Inode, name: &[u8]) -> Result<Option<(vfs::Ino, Option<FileKind>)>>;
        parent(dir: &Inode) -> Result<vfs::Ino>;
    }
    vfs::forward! { names:
        create(dir: &Inode, name: &[u8], new: &NewInode) -> Result<Inode>;
        create_unnamed(dir: &Inode, new: &NewInode) -> Result<Inode>;
        link(dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()>;
        unlink(dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()>;
        rmdir(dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) -> Result<()>;
        rename(rename: &Rename<'_>) -> Result<()>;
    }
    vfs::forward! { nodes:
        read_link(inode: &Inode) -> Result<Vec<u8>>;
    }

    fn readdir(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.fs.directories.list(dir, cookie, sink)
    }
}

impl Attributes for F2fs {
    vfs::forward! { attributes:
        evict(inode: &Inode) -> Result<()>;
        set_attr(inode: &Inode, change: &AttrChange) -> Result<()>;
        write_attr(inode: &Inode) -> Result<()>;
        get_xattr(inode: &Inode, name: &[u8]) -> Result<Vec<u8>>;
        list_xattr(inode: &Inode) -> Result<Vec<Vec<u8>>>;
    }

    fn load(&self, ino: vfs::Ino) -> Result<Inode> {
        let number = u32::try_from(ino.0)
            .map_err(|_| Error::new(ErrorKind::Stale, "load inode").ino(ino))?;
        self.fs.nodes.read_neighbours(Ino(number));
        self.fs.nodes.load_inode(Ino(number))
    }

    fn load_ahead(&self, wanted: &[vfs::Ino]) {
        let numbers = wanted.iter().filter_map(|ino| u32::try_from(ino.0).ok());
        let inodes = numbers.map(Ino).map(|i| (i.nid(), i, NodeOffset::INODE));
        self.fs.nodes.read_nodes_ahead(inodes);
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

    fn sync_inode(&self, inode: &Inode, scope: SyncScope) -> Result<()> {
        if self.fs.access.writer.is_none() || self.fs.access.checkpoints_are_disabled() {
            return Ok(());
        }
        self.fs.fsync.sync_file(inode, scope)
    }

    fn set_xattr(&self, inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.fs
            .attributes
            .change_xattr(inode, name, Some(value), mode)
    }

    fn remove_xattr(&self, inode: &Inode, name: &[u8]) -> Result<()> {
        self.fs
            .attributes
            .change_xattr(inode, name, None, XattrMode::Any)
    }
}

impl Data for F2fs {
    vfs::forward! { data:
        allocate(inode: &Inode, range: Range<u64>, data_end: u64, intent: Intent) -> Result<WriteTarget>;
        commit_write(inode: &Inode, target: &WriteTarget, data_end: u64) -> Result<()>;
        abandon_write(inode: &Inode, target: &WriteTarget);
        open_end(inode: &Inode) -> Option<u64>;
        write_inline(inode: &Inode, bytes: &[u8], data_end: u64) -> Result<bool>;
        truncate(inode: &Inode, size: u64, now: Timestamp) -> Result<()>;
        check_fallocate(inode: &Inode, mode: FallocMode) -> Result<()>;
        fallocate(inode: &Inode, range: Range<u64>, mode: FallocMode, now: Timestamp) -> Result<()>;
    }

    fn file_bytes_max(&self, inode: &vfs::Inode) -> u64 {
        let body = f2fs(inode).body.read();
        let direct = direct_addresses(body.cluster);
        let per = PER_NODE as u64;
        let in_inode = body.layout.addresses_used(body.cluster) as u64;
        (in_inode + direct * (2 + 2 * per + per * per)) << 12
    }

    fn map(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Mapping> {
        f2fs(inode).check_readable("map")?;
        self.fs.data.map(inode, offset, bytes)
    }

    fn extent_in_place(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Option<Mapping>> {
        match self.format.keeps_places {
            true => self.fs.data.extent_in_place(inode, offset, bytes),
            false => Ok(None),
        }
    }

    fn read_inline(&self, inode: &Inode) -> Result<Vec<u8>> {
        f2fs(inode).check_readable("read inline data")?;
        self.fs.nodes.read_inline(inode)
    }

    fn read_encoded(&self, inode: &Inode, offset: u64) -> Result<AlignedBuf> {
        f2fs(inode).check_readable("read compressed data")?;
        self.fs.data.read_encoded(inode, offset)
    }

    fn check_changeable(&self, inode: &Inode) -> Result<()> {
        self.fs.data.check_contents("open for writing", inode)
    }

    fn allocate_nowait(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        _data_end: u64,
    ) -> Option<WriteTarget> {
        self.fs.data.allocate_nowait(inode, range)
    }
}

impl Space for F2fs {
    vfs::forward! { data:
        reserve(inode: &Inode, range: Range<u64>) -> Result<()>;
        unreserve(inode: &Inode, range: Range<u64>);
        may_go_inline(inode: &Inode) -> bool;
    }
    vfs::forward! { cleaning:
        make_room(bytes: u64);
        unwritten_bytes_max() -> u64;
    }
    vfs::forward! { tree:
        quotas(kind: vfs::quota::Kind) -> Result<Option<Vec<vfs::quota::Quota>>>;
    }
    vfs::forward! { quotas:
        set_quota_limits(kind: vfs::quota::Kind, id: u32, limits: &vfs::quota::Limits) -> Result<()>;
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.fs.statfs())
    }

    /// The areas of checkpoints, SIT, NAT and SSA lie in front of the main area, and grow with the volume. To make room for them, the beginning of the main
    /// area is emptied and the whole layout is written in another place, from which no running engine could read.
    fn grow(&self, _size: NewSize) -> Result<Grown> {
        Err(Error::new(ErrorKind::Unsupported, "grow").detail(
            "an f2fs volume does not grow while it is mounted: its tables lie in front of the data. Unmount it, and run `blockwright resize IMAGE SIZE`",
        ))
    }

    fn check_quota(&self, inode: &Inode, bytes: u64) -> Result<()> {
        let own = f2fs(inode);
        let blocks = bytes.div_ceil(BLOCK_SIZE as u64);
        self.fs
            .tree
            .check_block_quota(own, &own.body.read(), blocks)
    }

    fn trim(&self, range: Range<u64>, bytes_min: u64) -> Result<u64> {
        const OP: &str = "trim";
        let w = self.fs.access.writer(OP)?;
        let bytes = range.end.saturating_sub(range.start);
        if range.start >> 12 >= self.fs.volume.geo.blocks_count || bytes < 4096 {
            return Err(Error::new(ErrorKind::Invalid, OP));
        }
        // Blocks that were freed since the last checkpoint are not free before the next.
        self.sync_volume()?;
        let blocks = range.start.div_ceil(4096)..range.end >> 12;
        let device = &self.fs.volume.device;
        let discard = |start: BlockAddr, count: u64| {
            device
                .discard(DevOffset(u64::from(start.0) << 12), count << 12)
                .map_err(|e| Error::io(OP, e))
        };
        let min = (bytes_min >> 12).max(1);
        let free = w.segments.discard_free(blocks.clone(), min, discard)?;
        let holes = w.segments.discard_holes(blocks, min, discard)?;
        let discarded = free + holes;
        Ok(discarded << 12)
    }
}

impl Volume for F2fs {
    vfs::forward! { access:
        read_only_reason() -> Option<String>;
    }
    vfs::forward! { cleaning:
        stop_cleaning();
    }

    fn format(&self) -> Format {
        self.format
    }

    fn is_read_only(&self) -> bool {
        match &self.fs.access.writer {
            Some(w) => w.failure().is_some(),
            None => true,
        }
    }

    fn stats(&self, out: &mut vfs::Stats) {
        let fs = &self.fs;
        out.section("f2fs");
        let (node_hits, node_misses) = fs.nodes.cache.counts();
        let (directory_hits, directory_misses) = fs.nodes.blocks.counts();
        vfs::stat_lines! { out;
            counter "node_hits", Count, "nodes found in memory" => node_hits;
            counter "node_misses", Count, "nodes read, or made" => node_misses;
            counter "directory_hits", Count, "blocks of directories found in memory" => directory_hits;
            counter "directory_misses", Count, "blocks of directories that were not, holes included" => directory_misses;
            counter "errors_found", Count, "damage found since the mount" => fs.volume.error_count();
            gauge "orphans", Count, "inodes without a name that the last checkpoint names" => fs.volume.orphans.len() as u64;
            counter "recovered_files", Count, "fsynced files that the mount recovered" => fs.recovered.files;
            counter "recovered_nodes", Count, "nodes of fsynced files that the mount followed" => fs.recovered.nodes;
        }
        if let Some(w) = &fs.access.writer {
            w.chain.stats(out);
        }
        fs.cleaning.cleaning_stats(out);
        out.text(
            "mount_options",
            "the engine's options in force, as mount takes them",
            fs.mount_options(),
        );
        if let Some(w) = &fs.access.writer {
            let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
            vfs::stat_lines! { out;
                counter "checkpoints", Count, "checkpoints written, for whatever reason" => get(&w.checkpoints);
            }
            fs.checkpoints.preflush.stats(out);
            fs.checkpoints.merger.stats(out);
            let pinned = w.segments.is_pinned();
            vfs::stat_lines! { out;
                gauge "unusable_blocks", Blocks, "blocks that disabled checkpoints keep from being used again"
                    => if pinned { w.segments.unusable() } else { 0 };
                counter "runs_allocated", Count, "runs of data blocks handed out" => get(&w.sharing.runs);
                counter "run_blocks_allocated", Count, "blocks of these runs" => get(&w.sharing.blocks);
            }
        }
    }

    fn tunables(&self) -> Vec<vfs::Tunable> {
        self.fs.tunables()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<()> {
        Fs::set_tunable(&self.fs, name, value)
    }

    fn memory_bytes(&self) -> u64 {
        self.fs.nodes.cache.memory_bytes() + self.fs.nodes.blocks.memory_bytes()
    }

    fn attach(&self, host: Arc<dyn Host>) {
        self.fs.cleaning.start_cleaning(host);
    }

    fn sync_volume(&self) -> Result<()> {
        if self.fs.access.writer.is_none() || self.fs.access.checkpoints_are_disabled() {
            return Ok(());
        }
        self.fs.checkpoints.checkpoint()
    }

    fn commit_freed(&self) -> Result<()> {
        match &self.fs.access.writer {
            Some(w) if w.segments.checkpoint_frees() || self.fs.nodes.nat.checkpoint_frees() => {
                self.sync_volume()
            }
            _ => Ok(()),
        }
    }

    fn unmount(&self) -> Result<()> {
        self.stop_threads();
        self.fs.checkpoints.unmount()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
