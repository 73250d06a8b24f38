//! A volume that is nearly full does not take writes that it cannot keep.
//!
//! With its writeback cache the kernel accepts a buffered write before the server hears of it, so there is nothing to refuse when there
//! is no room. A server can do this instead:
//! - It watches how much is free beyond what the kernel holds dirty. While that is little, the volume is *tight*.
//! - On a tight volume the attributes of files open for writing have no lifetime, and those given out before are called in. So the kernel
//!   sends a GETATTR with the handle before every cached write, and gives the writer the error that this is answered with: the [`Gate`].
//! - New and emptied files are opened past the kernel's cache while little is free, so their writes come here one by one.
//!
//! The gate does not learn how much will be written. It lets some writes pass, then has the kernel write and drop the file's pages, and
//! counts what came: so it knows what is free, and how large writes are. When less is free than a few such writes, handles that
//! only write are refused until there is room. Handles that read as well are held up and not refused: the kernel asks the same way
//! before a read at the end of the file and before a seek to it. Writes by `mmap` do not ask at all.
//!
//! # Not responsible for
//! Files opened past the kernel's cache or with `O_DIRECT`, whose writes meet `ENOSPC` in the engine.
//!
//! # Locks
//! `watch` and a gate's state, leaves; a gate waits for the kernel without them.

use super::Dispatcher;
use super::answer::Failure;
use super::files::OpenFile;
use super::gate::Gate;
use blockwright_vfs::{ErrorKind, FileKind, Inode};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A volume with more free bytes than this beyond what the kernel holds is never tight ...
const TIGHT_BYTES_MAX: u64 = 256 << 20;
/// ... a smaller one is below this part of it.
const TIGHT_PART: u64 = 8;
const TIGHT_BYTES_MIN: u64 = 16 << 20;
/// New files go past the kernel's cache below this number of free bytes, or this part of the volume.
const PAST_BYTES_MAX: u64 = 64 << 20;
const PAST_PART: u64 = 16;
const PAST_BYTES_MIN: u64 = 16 << 20;
/// No program fills the kernel's cache faster (bytes a second): how long the watch may look away.
const FILL_RATE_MAX: u64 = 8 << 30;
const LOOK_EVERY_MIN: Duration = Duration::from_millis(10);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(500);
/// Dirty bytes that the kernel is assumed to hold when it does not report them.
const DIRTY_BYTES_UNKNOWN: u64 = 256 << 20;

/// There is room again when this number of bytes more is free than when a write found no room.
const ROOM_BYTES: u64 = 2 << 20;
/// The most writers that are counted.
const WRITERS_MAX: usize = 8;
#[derive(Default)]
struct Watch {
    /// No file is open for writing: the watch sleeps.
    parked: bool,
    /// The watch must look now.
    asked: bool,
    ended: bool,
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Room {
    tight: AtomicBool,
    /// Files open for writing through the kernel's cache.
    writers: AtomicUsize,
    /// A write-back of the kernel found no space. The next check of free space clears this.
    failed: AtomicBool,
    /// Free bytes at that time. While no more is free, no write passes.
    failed_at: AtomicU64,
    parked: AtomicBool,
    watch: Mutex<Watch>,
    wake: Condvar,
}

impl Room {
    pub(super) fn is_tight(&self) -> bool {
        self.tight.load(Ordering::SeqCst)
    }

    /// A file was opened for writing through the kernel's cache.
    pub(super) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) {
            let mut watch = self.watch.lock();
            watch.parked = false;
            watch.asked = true;
            self.wake.notify_all();
        }
    }

    pub(super) fn remove_writer(&self) {
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    fn writers(&self) -> u64 {
        self.writers.load(Ordering::Relaxed).clamp(1, WRITERS_MAX) as u64
    }

    /// Notes that a write-back of the kernel found no space. May be called in a device's context.
    pub(super) fn note_failure(&self) {
        self.failed.store(true, Ordering::SeqCst);
        self.watch.lock().asked = true;
        self.wake.notify_all();
    }

    /// Notes the free bytes. If a write found no room meanwhile, they count as none.
    fn note_free(&self, free: u64) {
        if self.failed.swap(false, Ordering::SeqCst) {
            self.failed_at.store(free, Ordering::SeqCst);
        }
    }

    /// The volume ends.
    pub(super) fn end(&self) {
        self.watch.lock().ended = true;
        self.wake.notify_all();
    }

    /// Sleeps until it is time to look again. Whether the volume is still there.
    fn sleep(&self, limit: Duration) -> bool {
        let mut watch = self.watch.lock();
        self.parked.store(true, Ordering::SeqCst);
        watch.parked = self.writers.load(Ordering::SeqCst) == 0;
        while watch.parked && !watch.ended && !watch.asked {
            self.wake.wait(&mut watch);
        }
        self.parked.store(false, Ordering::SeqCst);
        if !watch.ended && !watch.asked {
            self.wake.wait_for(&mut watch, limit);
        }
        watch.asked = false;
        !watch.ended
    }
}

/// A volume of `total` bytes is tight with less room than this.
fn tight_below(total: u64) -> u64 {
    (total / TIGHT_PART).clamp(TIGHT_BYTES_MIN, TIGHT_BYTES_MAX)
}

/// Free bytes, and all there are.
struct Free {
    free: u64,
    total: u64,
}

impl Dispatcher {
    pub(super) fn is_tight(&self) -> bool {
        self.room.is_tight()
    }

    fn count_free(&self) -> Option<Free> {
        let st = self.vfs.statfs().ok()?;
        let block = u64::from(st.block_bytes);
        Some(Free {
            free: st.blocks_available.saturating_mul(block),
            total: st.blocks.saturating_mul(block),
        })
    }

    /// The same; a write that found no room is answered by it.
    fn free(&self) -> Option<Free> {
        let counted = self.count_free()?;
        self.room.note_free(counted.free);
        Some(counted)
    }

    /// A file is about to be opened for writing through the kernel's cache. The watch may not have seen yet what was preallocated, or written past
    /// the cache.
    pub(super) fn look_before_writer(&self) {
        if self.kernel_keeps_times()
            && !self.is_tight()
            && self
                .count_free()
                .is_some_and(|Free { free, total }| free < tight_below(total))
        {
            self.become_tight();
        }
    }

    /// Looks how much room there is; `dirty`: what the kernel holds at most. For how long that is good.
    pub(super) fn look_at_room(&self, dirty: u64) -> Duration {
        let failed = self.room.failed.load(Ordering::SeqCst);
        let Some(Free { free, total }) = self.free() else {
            return LOOK_EVERY_MAX;
        };
        let room = free.saturating_sub(dirty);
        let below = tight_below(total);
        if failed || room < below {
            self.become_tight();
        } else if room > 2 * below {
            self.room.tight.store(false, Ordering::SeqCst);
        }
        let millis = room / (FILL_RATE_MAX / 1000);
        Duration::from_millis(millis).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX)
    }

    fn become_tight(&self) {
        if !self.room.tight.swap(true, Ordering::SeqCst) {
            self.call_in_attributes();
        }
    }

    /// From now on the kernel asks before it writes to its cache.
    fn call_in_attributes(&self) {
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        for inode in self.files.cached_writers() {
            // When the connection has ended there is nothing to tell.
            let _ = notifier.forget_attributes(self.nodes.swap_root(inode));
        }
    }

    /// Watches how much room there is for as long as the dispatcher lives. `meminfo` is `/proc/meminfo`, opened before the
    /// process confines itself.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn watch_room(self: &Arc<Self>, meminfo: Option<File>) -> std::io::Result<()> {
        if !self.kernel_keeps_times() {
            return Ok(());
        }
        self.look_at_room(dirty_bytes(meminfo.as_ref()));
        let room = Arc::clone(&self.room);
        let me: Weak<Self> = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("fuse-room".to_owned())
            .spawn(move || {
                let mut limit = LOOK_EVERY_MIN;
                while room.sleep(limit) {
                    let Some(me) = me.upgrade() else { return };
                    limit = me.look_at_room(dirty_bytes(meminfo.as_ref()));
                }
            })?;
        Ok(())
    }

    /// Whether a file that is new or was just emptied is to be written past the kernel's cache.
    pub(super) fn is_short_of_room(&self) -> bool {
        self.room.is_tight()
            && self.kernel_keeps_times()
            && self.free().is_some_and(|Free { free, total }| {
                free < (total / PAST_PART).clamp(PAST_BYTES_MIN, PAST_BYTES_MAX)
            })
    }

    /// For how long the kernel may keep the attributes of this node. Only a file that is open for writing through the kernel's cache has a
    /// gate to pass: opening it on a tight volume calls the attributes in that were given out before.
    pub(super) fn attr_lifetime(&self, nodeid: u64, kind: FileKind) -> Duration {
        let asks = self.room.is_tight()
            && kind == FileKind::Regular
            && self.nodes.has_cached_writers(nodeid);
        match asks {
            true => Duration::ZERO,
            false => self.options.attr_timeout,
        }
    }

    /// The kernel wrote back this number of bytes, through any file that is open for writing, with this error.
    pub(super) fn note_write_back(&self, gate: Option<&Gate>, bytes: u64, error: Option<Errno>) {
        if let Some(gate) = gate {
            gate.note_written(bytes);
        }
        if error == Some(Errno::NOSPC) {
            self.room.note_failure();
        }
    }

    /// A cached write is about to begin, perhaps: the kernel asks for attributes, and names the handle.
    ///
    /// # Errors
    /// `ENOSPC` when the write may find no room.
    pub(super) fn pass_gate(
        &self,
        nodeid: u64,
        inode: &Inode,
        file: &OpenFile,
    ) -> std::result::Result<(), Failure> {
        let Some(notifier) = self.notifier.get() else {
            return Ok(());
        };
        let Some(gate) = file.gate.as_deref().filter(|gate| !gate.pass()) else {
            return Ok(());
        };
        self.threads
            .while_blocked(|| notifier.drop_cached_pages(nodeid))
            .map_err(|_| Errno::IO)?;
        let Some(Free { free, .. }) = self.free() else {
            return Ok(());
        };
        let failed_at = self.room.failed_at.load(Ordering::SeqCst);
        let room = free.saturating_sub(failed_at);
        if room > ROOM_BYTES {
            self.room.failed_at.store(0, Ordering::SeqCst);
        }
        let fits = gate.reckon(room / self.room.writers());
        match fits || !file.write_only {
            true => Ok(()),
            false => {
                let no_space = blockwright_vfs::Error::new(ErrorKind::NoSpace, "write");
                Err(no_space.ino(inode.ino()).into())
            }
        }
    }
}

/// Dirty bytes in the kernel's page cache, of all file systems.
fn dirty_bytes(meminfo: Option<&File>) -> u64 {
    let mut text = [0; 4096];
    let read = meminfo.and_then(|file| file.read_at(&mut text, 0).ok());
    read.and_then(|bytes| std::str::from_utf8(&text[..bytes]).ok())
        .and_then(dirty_in)
        .unwrap_or(DIRTY_BYTES_UNKNOWN)
}

fn dirty_in(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let mut lines = meminfo.lines();
        let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((kib("Dirty")? + kib("Writeback")?) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::FuseOptions;
    use blockwright_device::{MemoryDevice, SharedDevice};
    use blockwright_vfs::testing::{MemEngine, MemOptions};
    use blockwright_vfs::{CreateRequest, Cred, MountOptions, Vfs};

    /// Programs that read a full volume do not pay for the gate of those that write to it.
    #[test]
    fn only_files_open_for_writing_have_no_lifetime_on_a_tight_volume() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
        let engine = MemEngine::new(device, MemOptions::default());
        let device = Arc::clone(engine.device()) as SharedDevice;
        let vfs = Vfs::new(engine, device, MountOptions::default());
        let options = FuseOptions::default();
        let dispatcher = Dispatcher::new(Arc::clone(&vfs), &options).unwrap();
        let new = CreateRequest::new(FileKind::Regular, 0o644);
        let root = vfs.root().unwrap();
        let (file, _) = vfs.create(&Cred::root(), &root, b"f", &new).unwrap();
        let nodeid = dispatcher.nodes.remember(&file);
        let lifetime = || dispatcher.attr_lifetime(nodeid, FileKind::Regular);
        dispatcher.nodes.add_writer(nodeid, &file, true);
        assert_eq!(lifetime(), options.attr_timeout, "there is room");
        dispatcher.nodes.remove_writer(nodeid, true);
        dispatcher.look_at_room(u64::MAX);
        assert!(dispatcher.is_tight());
        assert_eq!(lifetime(), options.attr_timeout, "not open for writing");
        dispatcher.nodes.add_writer(nodeid, &file, false);
        let direct = "open for direct writes only";
        assert_eq!(lifetime(), options.attr_timeout, "{direct}");
        dispatcher.nodes.add_writer(nodeid, &file, true);
        assert_eq!(lifetime(), Duration::ZERO);
        dispatcher.nodes.remove_writer(nodeid, true);
        assert_eq!(lifetime(), options.attr_timeout, "{direct}");
        dispatcher.nodes.add_writer(nodeid, &file, true);
        dispatcher.look_at_room(0);
        assert_eq!(lifetime(), options.attr_timeout, "there is room again");
        dispatcher.close();
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        let text = "MemTotal: 9 kB\nDirty:              1234 kB\nWriteback:            10 kB\nWritebackTmp: 5 kB\n";
        assert_eq!(dirty_in(text), Some(1244 << 10));
        assert_eq!(dirty_in("MemTotal: 9 kB\n"), None);
        let real = File::open("/proc/meminfo").ok();
        assert!(dirty_bytes(real.as_ref()) < 1 << 50);
        assert_eq!(dirty_bytes(None), DIRTY_BYTES_UNKNOWN);
    }
}
