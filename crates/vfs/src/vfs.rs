//! A mounted volume: what front ends hold.
//!
//! [`Vfs`] ties an engine and a device to the caches and runs the flusher. Its methods are spread by
//! concept over `namespace`, `attributes`, `path` and `handle`; the state they share is `Core`.

use crate::cache::budget::Budget;
use crate::counters::Counters;
use crate::engine::{Engine, Format};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode::cache::{InodeCache, InodeRef, SHARDS, gone};
use crate::inode::permissions::AtimeMode;
use crate::io::Workers;
use crate::locks::{Mutex, Rank};
use crate::options::MountOptions;
use crate::relocation::{Above, Reads};
use crate::stats::Stats;
use crate::types::{Attr, FileKind, Ino, StatFs};
use crate::writeback::flusher::Flusher;
use blockwright_device::SharedDevice;
use blockwright_device::sim::turns::Moment;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Inodes loaded one after another before it is asked whether that waits for the device.
const LOADS_PROBED: usize = 8;
/// They took this long: it does. From memory each takes a microsecond or two.
const LOADS_SLOW: Duration = Duration::from_micros(320);
/// Threads that load inodes then.
const LOADERS: usize = 8;

/// About what an inode takes in memory, the engine's part and its places in maps included.
const INODE_BYTES: u64 = 3072;
/// A thread that loads or makes an inode looks for idle ones in so many shards of the cache.
const SHARDS_AT_ONCE: usize = 2;
/// When inodes and metadata take so much the flusher minds memory, though nothing be dirty.
const MINDED_BYTES: u64 = 4 << 20;
/// When so much less of small things is in memory than there was, the allocator is asked to give pages back.
const TRIM_BYTES: u64 = 16 << 20;

/// What all parts of a mounted volume share.
pub(crate) struct Core {
    /// Itself: for the flusher's thread.
    pub(crate) me: Weak<Core>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) format: Format,
    pub(crate) device: SharedDevice,
    pub(crate) options: parking_lot::RwLock<Arc<MountOptions>>,
    pub(crate) inodes: InodeCache,
    /// The first failed eviction that no sync of the volume has reported yet.
    evict_error: Mutex<Option<Error>>,
    /// Serialises renames that move directories about.
    pub(crate) rename: Mutex<()>,
    /// Numbers of inodes with dirty pages or lazy times.
    pub(crate) dirty: Mutex<BTreeSet<Ino>>,
    pub(crate) started: Moment,
    pub(crate) unmounted: AtomicBool,
    pub(crate) budget: Arc<Budget>,
    pub(crate) flusher: Flusher,
    /// Reads under way, where the engine moves blocks.
    pub(crate) reads: Option<Arc<Reads>>,
    pub(crate) counters: Counters,
    pub(crate) readahead_bytes: AtomicU64,
    pub(crate) read_past_bytes: AtomicU64,
    pub(crate) write_past_bytes: AtomicU64,
    /// Delayed allocation is off and the engine cannot place blocks earlier: writes are written back before
    /// they return.
    pub(crate) write_through: AtomicBool,
    read_only: AtomicBool,
    atime: AtomicU8,
    #[cfg(any(test, feature = "comparison"))]
    pub(crate) comparison: crate::comparison::Comparison,
    pub(crate) workers: Workers,
    /// The engine was unmounted: what still holds inodes must not call it.
    pub(crate) engine_gone: AtomicBool,
    pub(crate) request_bytes_max: u64,
    pub(crate) logical_block_bytes: u32,
    /// The device makes single writes durable for less than a flush.
    pub(crate) device_fua: bool,
}

/// Whether writes must be written back before they return, for want of an engine that places blocks early.
fn writes_through(engine: &dyn Engine, format: &Format, options: &MountOptions) -> bool {
    if format.reserve_allocates {
        engine.set_delayed_allocation(options.delayed_allocation);
        return false;
    }
    !options.delayed_allocation
}

impl Core {
    pub(crate) fn options(&self) -> Arc<MountOptions> {
        Arc::clone(&self.options.read())
    }

    /// Puts options in force.
    fn apply(&self, options: &MountOptions) {
        self.inodes.set_idle_max(options.inodes_idle_max);
        self.readahead_bytes
            .store(options.readahead_bytes, Ordering::Relaxed);
        self.read_past_bytes
            .store(options.read_past_bytes, Ordering::Relaxed);
        self.write_past_bytes
            .store(options.write_past_bytes, Ordering::Relaxed);
        self.read_only.store(options.read_only, Ordering::Relaxed);
        self.atime.store(options.atime as u8, Ordering::Relaxed);
        self.budget.set_limits(options);
        self.write_through.store(
            writes_through(&*self.engine, &self.format, options),
            Ordering::Relaxed,
        );
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed) || self.engine.is_read_only()
    }

    /// When reads change access times.
    pub(crate) fn atime_mode(&self) -> AtimeMode {
        let mode = self.atime.load(Ordering::Relaxed);
        [AtimeMode::Relative, AtimeMode::Strict, AtimeMode::None]
            .into_iter()
            .find(|m| *m as u8 == mode)
            .unwrap_or_default()
    }

    /// Fails when the volume takes no changes.
    pub(crate) fn writable(&self, op: &'static str) -> Result<()> {
        self.alive(op)?;
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, op));
        }
        Ok(())
    }

    pub(crate) fn alive(&self, op: &'static str) -> Result<()> {
        if self.unmounted.load(Ordering::Acquire) {
            return Err(gone(op));
        }
        Ok(())
    }

    /// Milliseconds since the volume was mounted.
    pub(crate) fn clock_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes what metadata, inodes and tables take of the budget. The bytes of the first.
    fn note_others(&self) -> u64 {
        let metadata = self.engine.memory_bytes();
        let inodes = self.inodes.len() as u64 * INODE_BYTES;
        let all = metadata.saturating_add(inodes + self.budget.table_bytes());
        self.budget.note_others(all);
        metadata
    }

    /// Drops clean pages until `bytes` more fit the budget, beside what metadata and inodes take of it. No table is locked
    /// by the caller.
    pub(crate) fn make_room_in_cache(&self, bytes: u64) {
        self.note_others();
        self.budget.make_room(bytes);
    }

    /// An inode is about to be loaded or made: evicts idle ones that are too many, and drops pages as
    /// [`Core::make_room_in_cache`]. Nothing is held but locks of inodes, or less.
    pub(crate) fn make_room_for_inode(self: &Arc<Self>) {
        let metadata = self.note_others();
        if metadata + self.inodes.len() as u64 * INODE_BYTES >= MINDED_BYTES {
            self.need_flusher();
        }
        self.shrink_inodes(metadata, SHARDS_AT_ONCE);
        self.budget.make_room(0);
    }

    fn shrink_inodes(self: &Arc<Self>, metadata: u64, shards: usize) {
        let most = self.budget.inodes_limit(metadata) / INODE_BYTES;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.inodes.shrink_to(self, most, shards);
    }

    /// What the flusher does about memory, once per round. `most`: how much small things took since the last time that pages were
    /// given back, which allocators do not do by themselves while anything lives behind them.
    pub(crate) fn mind_memory(self: &Arc<Self>, most: &mut u64) {
        self.budget.age_front();
        let metadata = self.note_others();
        self.shrink_inodes(metadata, SHARDS);
        self.make_room_in_cache(0);
        let small = self.inodes.len() as u64 * INODE_BYTES + self.budget.folio_bytes();
        *most = small.max(*most);
        if small + TRIM_BYTES <= *most {
            blockwright_device::trim_heap();
            *most = small;
        }
    }

    pub(crate) fn mark_lazy(&self, inode: &Inode) {
        // Known to be dirty already: the clock need not be read, which for one block of direct I/O is most of what is done here.
        if !inode.is_lazy() && inode.set_lazy(self.clock_ms()) {
            self.dirty.lock().insert(inode.ino());
            self.need_flusher();
        }
    }

    /// Removes an inode from memory.
    ///
    /// An eviction promises two things. The engine has every attribute of a named inode, lazy times included. The engine has
    /// freed the blocks of a nameless inode. A failed eviction breaks the promise, and no handle is left that could report it:
    /// the times are lost, or the blocks stay in use until the next mount frees them from the orphan list. So the volume's next
    /// sync, or its unmount, returns the error.
    pub(crate) fn evict(&self, inode: &Arc<Inode>) {
        self.dirty.lock().remove(&inode.ino());
        if self.engine_gone.load(Ordering::Acquire) {
            return;
        }
        inode.pages.wait_writeback(0..u64::MAX);
        self.drop_pages(inode, 0..u64::MAX);
        let persisted = self.write_times(inode);
        if let Err(e) = persisted.and(self.engine.evict(inode)) {
            self.counters.evict_errors.fetch_add(1, Ordering::Relaxed);
            self.evict_error.lock().get_or_insert(e);
        }
    }

    /// Reports a failed eviction, once.
    fn report_evictions(&self) -> Result<()> {
        self.evict_error.lock().take().map_or(Ok(()), Err)
    }

    /// Gives the engine times that are in memory only, unless the inode has no name or nothing may be changed.
    pub(crate) fn write_times(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.take_lazy() && inode.attr().nlink > 0 && !self.is_read_only() {
            return self.engine.write_attr(inode);
        }
        Ok(())
    }

    /// The last writer closed a file.
    pub(crate) fn release_write(&self, inode: &Arc<Inode>) {
        if !self.engine_gone.load(Ordering::Acquire) {
            self.engine.release_write(inode);
        }
    }
}

/// A mounted volume.
pub struct Vfs {
    pub(crate) core: Arc<Core>,
}

impl Vfs {
    /// Puts a vfs over a mounted engine. The flusher starts when something becomes dirty.
    #[must_use]
    pub fn new(engine: Arc<dyn Engine>, device: SharedDevice, options: MountOptions) -> Arc<Vfs> {
        let geometry = device.geometry();
        let format = engine.format();
        let reads = format.moves_blocks.then(Arc::<Reads>::default);
        let core = Arc::new_cyclic(|me| Core {
            me: Weak::clone(me),
            reads: reads.clone(),
            budget: Budget::new(&options),
            flusher: Flusher::new(),
            counters: Counters::default(),
            readahead_bytes: AtomicU64::new(options.readahead_bytes),
            read_past_bytes: AtomicU64::new(options.read_past_bytes),
            write_past_bytes: AtomicU64::new(options.write_past_bytes),
            write_through: AtomicBool::new(writes_through(&*engine, &format, &options)),
            read_only: AtomicBool::new(options.read_only),
            atime: AtomicU8::new(options.atime as u8),
            #[cfg(any(test, feature = "comparison"))]
            comparison: options.comparison,
            workers: Workers::default(),
            engine_gone: AtomicBool::new(false),
            request_bytes_max: u64::from(geometry.request_bytes_max.max(64 << 10)),
            logical_block_bytes: geometry.logical_block_bytes.max(512),
            device_fua: geometry.fua,
            engine,
            format,
            device,
            inodes: InodeCache::new(options.inodes_idle_max),
            evict_error: Mutex::new(Rank::Leaf, None),
            options: parking_lot::RwLock::new(Arc::new(options)),
            rename: Mutex::new(Rank::Rename, ()),
            dirty: Mutex::new(Rank::InodeMap, BTreeSet::new()),
            started: Moment::now(),
            unmounted: AtomicBool::new(false),
        });
        core.engine.attach(Arc::new(Above {
            core: Arc::downgrade(&core),
            reads,
        }));
        Arc::new(Vfs { core })
    }

    /// Drops clean cached pages and unused inodes.
    pub fn drop_caches(&self) {
        self.core.inodes.shrink_all(&self.core);
        for inode in self.core.inodes.live() {
            inode
                .pages
                .lock()
                .drop_clean(0..u64::MAX, self.core.block());
            inode.pages.wake_waiters();
        }
    }

    /// A front end may need so many bytes for requests at any moment: pages never have them.
    pub fn reserve_front_end_memory(&self, bytes: u64) {
        self.core.need_flusher();
        self.core.budget.reserve_front(bytes);
    }

    /// A front end holds `after` bytes of memory for requests where it held `before`: they are part of the budget. Pages give way
    /// before this returns, as far as they are clean; no lock is waited for but leaves.
    pub fn note_front_end_memory(&self, before: u64, after: u64) {
        self.core.need_flusher();
        if self.core.budget.note_front(before, after) {
            self.core.budget.make_room(0);
        }
    }

    /// A front end's table of inodes takes `after` bytes where it took `before`: part of
    /// the budget, which pages and idle inodes feel the next time that any comes to it.
    pub fn note_front_end_table(&self, before: u64, after: u64) {
        self.core.budget.note_table(before, after);
    }

    /// What is fixed while the volume is mounted.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.core.format
    }

    /// The engine below.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.core.engine
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.core.device
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> Arc<MountOptions> {
        self.core.options()
    }

    /// The root directory.
    ///
    /// # Errors
    /// As loading an inode.
    pub fn root(&self) -> Result<InodeRef> {
        self.inode(self.core.format.root)
    }

    /// The inode of this number.
    ///
    /// # Errors
    /// `Stale` when the number is not in use, `Corrupt`, `Io`.
    pub fn inode(&self, ino: Ino) -> Result<InodeRef> {
        self.core.alive("load inode")?;
        self.core.inodes.get(&self.core, ino)
    }

    /// These inodes are about to be asked for: brings the metadata of those that are not in memory there together, where the
    /// format can. Errors show when an inode is loaded.
    pub fn load_ahead(&self, wanted: &[Ino]) {
        let missing = |ino: &Ino| !self.core.inodes.has(*ino);
        let missing: Vec<Ino> = wanted.iter().copied().filter(missing).collect();
        if missing.len() > 1 && self.core.alive("load inodes").is_ok() {
            self.core.engine.load_ahead(&missing);
        }
    }

    /// These directories are about to be listed: starts reading them, where the format can. Errors show when they are listed.
    pub fn list_ahead(&self, wanted: &[Ino]) {
        if self.core.alive("list directories").is_err() {
            return;
        }
        let load = |ino: &Ino| self.inode(*ino).ok();
        let pinned: Vec<InodeRef> = wanted.iter().filter_map(load).collect();
        let directory = |inode: &&InodeRef| inode.kind() == FileKind::Directory;
        let dirs = pinned.iter().filter(directory);
        let dirs: Vec<Arc<Inode>> = dirs.map(|dir| Arc::clone(dir)).collect();
        self.core.engine.list_ahead(&dirs);
    }

    /// The inodes of these numbers, in this order: what a listing with attributes needs. Once loading one after
    /// another turns out to wait for the device, as with formats whose inodes lie apart, several threads load the rest.
    #[must_use]
    pub fn inodes(&self, wanted: &[Ino]) -> Vec<Result<InodeRef>> {
        let mut found = Vec::with_capacity(wanted.len());
        self.load_ahead(wanted);
        for probe in wanted.chunks(LOADS_PROBED) {
            let began = Moment::now();
            found.extend(probe.iter().map(|ino| self.inode(*ino)));
            let rest = &wanted[found.len()..];
            if rest.len() < LOADS_PROBED || began.elapsed() < LOADS_SLOW {
                continue;
            }
            let each = rest.len().div_ceil(LOADERS).max(LOADS_PROBED / 2);
            std::thread::scope(|scope| {
                let mut parts = rest.chunks(each);
                let own = parts.next().unwrap_or(&[]);
                let load = |part: &[Ino]| -> Vec<Result<InodeRef>> {
                    part.iter().map(|ino| self.inode(*ino)).collect()
                };
                let others: Vec<_> = parts
                    .map(|part| {
                        let helper = std::thread::Builder::new().name("bw-loader".to_owned());
                        (part, helper.spawn_scoped(scope, move || load(part)))
                    })
                    .collect();
                found.extend(load(own));
                for (part, other) in others {
                    let loaded = other.ok().and_then(|thread| thread.join().ok());
                    // Where there is no thread to be had, here.
                    found.extend(loaded.unwrap_or_else(|| load(part)));
                }
            });
            break;
        }
        found
    }

    /// What `stat` shows.
    #[must_use]
    pub fn stat(&self, inode: &InodeRef) -> Attr {
        self.core.engine.stat(inode)
    }

    /// How full the volume is.
    ///
    /// # Errors
    /// As the engine reports.
    pub fn statfs(&self) -> Result<StatFs> {
        self.core.alive("statfs")?;
        self.core.engine.statfs()
    }

    /// Makes everything durable: data, then metadata.
    ///
    /// # Errors
    /// `Io` and what else the engine reports.
    pub fn sync(&self) -> Result<()> {
        self.core.alive("sync")?;
        let written = self.core.write_all();
        let evicted = self.core.report_evictions();
        let synced = self.core.engine.sync_volume();
        written.and(evicted).and(synced)
    }

    /// Writes everything, evicts all inodes, unmounts the engine. Later calls fail.
    ///
    /// # Errors
    /// `Io` and what else the engine reports; the volume is unmounted all the same.
    pub fn unmount(self: &Arc<Self>) -> Result<()> {
        self.core.alive("unmount")?;
        self.core.stop_flusher();
        // What is dirty may need cleaning.
        let synced = self.sync();
        self.core.engine.stop_cleaning();
        if self.core.unmounted.swap(true, Ordering::AcqRel) {
            return Err(gone("unmount"));
        }
        self.core.inodes.evict_all(&self.core);
        self.core.engine_gone.store(true, Ordering::Release);
        let evicted = self.core.report_evictions();
        let unmounted = self.core.engine.unmount();
        synced.and(evicted).and(unmounted)
    }

    /// What the volume has done and holds, the engine's part and the device's included.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut out = Stats::new();
        self.core.add_stats(&mut out);
        if !self.core.engine_gone.load(Ordering::Acquire) {
            self.core.engine.stats(&mut out);
            self.core.add_extents(&mut out);
        }
        if let Some(monitor) = self.core.device.monitor() {
            out.device(&monitor.stats());
        }
        out
    }

    /// The numbers of [`Vfs::stats`] that have no label.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.stats().numbers()
    }

    /// Changes options under their lock, unless `change` says that it did not.
    pub(crate) fn change_options(&self, change: impl FnOnce(&mut MountOptions) -> bool) -> bool {
        let mut slot = self.core.options.write();
        let mut options = MountOptions::clone(&slot);
        if !change(&mut options) {
            return false;
        }
        self.core.apply(&options);
        *slot = Arc::new(options);
        drop(slot);
        // Limits that were lowered hold now, not at the next request.
        self.core.make_room_in_cache(0);
        self.core.kick_flusher();
        true
    }

    /// Changes the options that may change while mounted. Turning read-only writes everything first.
    ///
    /// # Errors
    /// `ReadOnly` when the engine cannot be made writable; what [`Vfs::sync`] reports.
    pub fn remount(&self, options: MountOptions) -> Result<()> {
        self.core.alive("remount")?;
        if !options.read_only && self.core.engine.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "remount"));
        }
        if options.read_only {
            self.sync()?;
        }
        self.core.apply(&options);
        *self.core.options.write() = Arc::new(options);
        Ok(())
    }
}

impl Drop for Vfs {
    /// Stops the flusher. What was not synced or unmounted is lost, as with a power cut.
    fn drop(&mut self) {
        self.core.stop_flusher();
        self.core.engine.stop_cleaning();
    }
}
