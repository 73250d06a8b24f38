//! The state that all parts of a mounted volume share.
//!
//! [`Core`] owns the engine, the device, the options in force, and the caches and counters of the vfs. Front ends hold a
//! [`Vfs`](crate::vfs::Vfs) or a [`Handle`](crate::handle::Handle), and each of these holds the `Core`.
//!
//! This module decides which inodes and pages leave memory, and what an eviction owes the engine. It does no file I/O and resolves no
//! names. The modules above it (`writeback`, `io`, `space`, `relocation`, `namespace`) implement these on `Core`, each at its own place.
//!
//! # Locks
//! `rename`, `dirty` and `evict_error` are the only locks here. No engine and no device is called under `dirty` or `evict_error`.

mod stats;

use crate::cache::budget::Budget;
use crate::counters::Counters;
use crate::engine::{Engine, Format};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode::cache::{Home, InodeCache, Pinned, SHARDS};
use crate::inode::permissions::AtimeMode;
use crate::io::workers::Workers;
use crate::locks::{Mutex, Rank, WriteGuard};
use crate::options::MountOptions;
use crate::relocation::reads::Reads;
use crate::types::Ino;
use crate::writeback::flusher_state::Flusher;
use blockwright_device::SharedDevice;
use blockwright_device::sim::turns::Moment;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// About what an inode takes in memory, the engine's part and its places in maps included.
const INODE_BYTES: u64 = 3072;
/// A thread that loads or makes an inode looks for idle ones in this many shards of the cache.
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
    pub(crate) inodes: InodeCache<Core>,
    /// The first failed eviction that no sync of the volume has reported yet.
    evict_error: Mutex<Option<Error>>,
    /// Serialises renames that move directories about.
    pub(crate) rename: Mutex<()>,
    /// Numbers of inodes with dirty pages or lazy times.
    pub(crate) dirty: Mutex<BTreeSet<Ino>>,
    pub(crate) started: Moment,
    /// The volume is being unmounted: nothing new begins, and what has begun ends.
    pub(crate) closing: AtomicBool,
    /// Everything was written. Nothing of the vfs serves the engine any more.
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

/// Whether writes must be written back before they return, for lack of an engine that places blocks early.
fn writes_through(engine: &dyn Engine, format: &Format, options: &MountOptions) -> bool {
    if format.reserve_allocates {
        engine.set_delayed_allocation(options.delayed_allocation);
        return false;
    }
    !options.delayed_allocation
}

impl Core {
    /// The state of a volume that is mounted with these options.
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        device: SharedDevice,
        options: MountOptions,
    ) -> Arc<Core> {
        let geometry = device.geometry();
        let format = engine.format();
        Arc::new_cyclic(|me| Core {
            me: Weak::clone(me),
            reads: format.moves_blocks.then(Arc::<Reads>::default),
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
            closing: AtomicBool::new(false),
            unmounted: AtomicBool::new(false),
        })
    }

    pub(crate) fn options(&self) -> Arc<MountOptions> {
        Arc::clone(&self.options.read())
    }

    /// Puts options in force.
    pub(crate) fn apply(&self, options: &MountOptions) {
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
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::unmounted(op));
        }
        Ok(())
    }

    /// The first inode lock of a change, exclusive: that of the inode, or of the first directory. A change that has it when the volume begins to be
    /// unmounted is waited for ([`Core::quiesce`]); later ones are refused.
    ///
    /// # Errors
    /// The volume is being unmounted.
    pub(crate) fn lock_to_change<'a>(
        &self,
        inode: &'a Inode,
        op: &'static str,
    ) -> Result<WriteGuard<'a, ()>> {
        let lock = inode.lock.write();
        self.alive(op)?;
        Ok(lock)
    }

    /// Refuses all that begins from now on, and waits for changes that have begun. What was acknowledged is in the cache or on the device then.
    ///
    /// # Errors
    /// The volume is being unmounted already.
    pub(crate) fn quiesce(&self, op: &'static str) -> Result<()> {
        if self.closing.swap(true, Ordering::AcqRel) {
            return Err(Error::unmounted(op));
        }
        for inode in self.inodes.live() {
            let _lock = inode.lock.write();
            let _invalidate = inode.invalidate.write();
            inode.pages.wait_direct();
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

    /// The inode of this number, loaded if need be.
    pub(crate) fn inode(self: &Arc<Self>, ino: Ino) -> Result<InodeRef> {
        self.inodes.get(self, ino).map(InodeRef)
    }

    /// The inode of this number if it is in memory. Waits while it is being loaded or evicted.
    pub(crate) fn find_inode(self: &Arc<Self>, ino: Ino) -> Option<InodeRef> {
        self.inodes.find(self, ino).map(InodeRef)
    }

    /// Puts an inode that the engine has just made into the cache.
    pub(crate) fn add_inode(self: &Arc<Self>, inode: Arc<Inode>) -> InodeRef {
        InodeRef(self.inodes.insert_new(self, inode))
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

    /// The flusher's work on memory, once per round. `most`: how much small things took since the last time that pages were given
    /// back, which allocators do not do by themselves while anything lives behind them.
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

    /// Reports a failed eviction, once.
    pub(crate) fn report_evictions(&self) -> Result<()> {
        self.evict_error.lock().take().map_or(Ok(()), Err)
    }

    /// Gives the engine times that are in memory only, unless the inode has no name or nothing may be changed.
    fn write_times(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.take_lazy() && inode.attr().nlink > 0 && !self.is_read_only() {
            return self.engine.write_attr(inode);
        }
        Ok(())
    }

    /// Notes times that are in memory only.
    pub(crate) fn mark_lazy(&self, inode: &Inode) {
        // Known to be dirty already: the clock need not be read, which for one block of direct I/O is most of what is done here.
        if !inode.is_lazy() && inode.set_lazy(self.clock_ms()) {
            self.dirty.lock().insert(inode.ino());
            self.need_flusher();
        }
    }

    /// The last writer closed a file.
    pub(crate) fn release_write(&self, inode: &Arc<Inode>) {
        if !self.engine_gone.load(Ordering::Acquire) {
            self.engine.release_write(inode);
        }
    }
}

impl Home for Core {
    fn inodes(&self) -> &InodeCache<Self> {
        &self.inodes
    }

    fn load(self: &Arc<Self>, ino: Ino) -> Result<Arc<Inode>> {
        self.make_room_for_inode();
        self.engine.load(ino)
    }

    fn write_times_of_idle(&self, inode: &Arc<Inode>) -> bool {
        let written = self.write_times(inode);
        let ok = written.is_ok();
        if let Err(e) = written {
            inode.pages.record_error(e);
            self.mark_lazy(inode);
        }
        ok
    }

    /// Removes an inode from memory.
    ///
    /// An eviction promises two things. The engine has every attribute of a named inode, lazy times included. The engine has
    /// freed the blocks of a nameless inode. A failed eviction breaks the promise, and no handle is left that could report it:
    /// the times are lost, or the blocks stay in use until the next mount frees them from the orphan list. So the volume's next
    /// sync, or its unmount, returns the error.
    fn evict(&self, inode: &Arc<Inode>) {
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
}

/// A counted reference that keeps an inode in memory. Cheap to clone.
#[derive(Clone)]
pub struct InodeRef(Pinned<Core>);

impl InodeRef {
    pub(crate) fn arc(&self) -> &Arc<Inode> {
        self.0.arc()
    }
}

impl Deref for InodeRef {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        self.0.arc()
    }
}

impl AsRef<Arc<Inode>> for InodeRef {
    fn as_ref(&self) -> &Arc<Inode> {
        self.0.arc()
    }
}

impl std::fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.arc().fmt(f)
    }
}
