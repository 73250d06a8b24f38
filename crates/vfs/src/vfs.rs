//! A mounted volume: what front ends hold.
//!
//! [`Vfs`] ties an engine and a device to the caches and runs the flusher. Its methods are spread by
//! concept over `namespace`, `attributes`, `path` and `handle`; the state they share is [`Core`].

use crate::core::{Core, InodeRef};
use crate::engine::{Engine, Format};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::options::MountOptions;
use crate::relocation::EngineHost;
use crate::stats::Stats;
use crate::types::{Attr, FileKind, Ino, StatFs};
use blockwright_device::SharedDevice;
use blockwright_device::sim::turns::Moment;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Inodes loaded one after another before it is asked whether that waits for the device.
const LOADS_PROBED: usize = 8;
/// They took this long: it does. From memory each takes a microsecond or two.
const LOADS_SLOW: Duration = Duration::from_micros(320);
/// Threads that load inodes then.
const LOADERS: usize = 8;

/// A mounted volume.
pub struct Vfs {
    pub(crate) core: Arc<Core>,
}

impl Vfs {
    /// Puts a vfs over a mounted engine. The flusher starts when something becomes dirty.
    #[must_use]
    pub fn new(engine: Arc<dyn Engine>, device: SharedDevice, options: MountOptions) -> Arc<Vfs> {
        let core = Core::new(engine, device, options);
        core.engine.attach(Arc::new(EngineHost {
            core: Arc::downgrade(&core),
            reads: core.reads.clone(),
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

    /// A front end may need this many bytes for requests at any moment: pages never have them.
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

    /// Properties that are fixed while the volume is mounted.
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
        self.core.inode(ino)
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
                    // In this thread when no other can be started.
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
        self.sync_all()
    }

    fn sync_all(&self) -> Result<()> {
        let written = self.core.write_all();
        let evicted = self.core.report_evictions();
        let synced = self.core.engine.sync_volume();
        written.and(evicted).and(synced)
    }

    /// Writes everything, evicts all inodes, unmounts the engine. Calls of other threads that have begun finish before, or fail as later ones do, with
    /// `Stale`: what was acknowledged is kept.
    ///
    /// # Errors
    /// `Io` and what else the engine reports; the volume is unmounted anyway.
    pub fn unmount(self: &Arc<Self>) -> Result<()> {
        self.core.quiesce("unmount")?;
        self.core.stop_flusher();
        // What is dirty may need cleaning.
        let synced = self.sync_all();
        self.core.engine.stop_cleaning();
        self.core.unmounted.store(true, Ordering::Release);
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
    /// Stops the flusher. Changes that were not synced or unmounted are lost, as with a power
    /// failure.
    fn drop(&mut self) {
        self.core.stop_flusher();
        self.core.engine.stop_cleaning();
    }
}
