//! Direct I/O without waiting: submitted by one thread, completed wherever the device completes it.
//!
//! A write that overwrites mapped blocks of a file with no cached pages over the range has nothing left
//! to do when the device is done: its completion runs right there, in the device's context, and the
//! writer is told at once. Only work that may block goes to the *finisher* thread: dropping cached
//! pages, committing blocks, an `O_DSYNC` flush, an error. What needs more than mapped blocks (new blocks, a new size, data in
//! the cache or in the inode) is done synchronously by a small pool.
//!
//! # Locks
//! A submitted operation holds no lock while it flies; the file counts it instead, and truncation, with
//! the inode lock and `invalidate` held exclusively, waits until the count is zero. So a finisher
//! takes neither of these locks: only the pool may, which is why the two are different threads.

use crate::buffered::InodeLock;
use crate::engine::{Intent, Place, SyncScope};
use crate::error::{Error, Result};
use crate::handle::{Handle, SyncMode};
use crate::inode::Inode;
use crate::inode_cache::InodeRef;
use crate::types::Timestamp;
use crate::vfs::Core;
use crate::writeback::split_requests;
use blockwright_device::{AlignedBuf, DevOffset, DeviceError, IoSlice, Op, Request};
use crossbeam_channel::Sender;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Told once how a submitted write went. May run in the device's context: must not block.
pub type WriteDone = Box<dyn FnOnce(Result<usize>) + Send>;
/// Told once how a submitted read went. May run in the device's context: must not block.
pub type ReadDone = Box<dyn FnOnce(Result<Vec<IoSlice>>) + Send>;

type Task = Box<dyn FnOnce() + Send>;

const POOL_THREADS: usize = 4;

/// Threads for what may block. Started when first needed; they end with the volume.
#[derive(Default)]
pub(crate) struct Workers {
    pool: OnceLock<Sender<Task>>,
    finisher: OnceLock<Sender<Task>>,
}

impl Workers {
    fn start(name: &str, threads: usize) -> Sender<Task> {
        let (send, receive) = crossbeam_channel::unbounded::<Task>();
        for _ in 0..threads {
            let receive = receive.clone();
            // Without any thread the channel is closed, and tasks run where they are handed in.
            let _ = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    for task in receive {
                        task();
                    }
                });
        }
        send
    }

    fn run(queue: &OnceLock<Sender<Task>>, name: &str, threads: usize, task: Task) {
        let queue = queue.get_or_init(|| Self::start(name, threads));
        if let Err(back) = queue.send(task) {
            back.into_inner()();
        }
    }

    fn in_pool(&self, task: Task) {
        Self::run(&self.pool, "bw-direct", POOL_THREADS, task);
    }

    fn in_finisher(&self, task: Task) {
        Self::run(&self.finisher, "bw-finisher", 1, task);
    }
}

/// A reference that may be dropped in a device's context: if it is the last one, what follows (an
/// eviction, perhaps) is left to the pool.
struct LoosePin {
    inode: Option<InodeRef>,
    ino: Arc<Inode>,
    core: Arc<Core>,
}

impl LoosePin {
    fn new(core: &Arc<Core>, inode: &InodeRef) -> Self {
        LoosePin {
            inode: Some(inode.clone()),
            ino: Arc::clone(inode),
            core: Arc::clone(core),
        }
    }
}

impl Deref for LoosePin {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        &self.ino
    }
}

impl Drop for LoosePin {
    fn drop(&mut self) {
        if let Some(last) = self.inode.take().and_then(InodeRef::release) {
            self.core.workers.in_pool(Box::new(move || drop(last)));
        }
    }
}

/// A direct write on its way.
struct WriteInFlight {
    core: Arc<Core>,
    inode: LoosePin,
    range: Range<u64>,
    sync: SyncMode,
    left: AtomicUsize,
    outcome: crate::locks::Mutex<(Option<DeviceError>, Option<WriteDone>)>,
}

impl WriteInFlight {
    /// One request is done. The last one completes the write.
    fn one_done(self: Arc<Self>, error: Option<DeviceError>) {
        if let Some(e) = error {
            self.outcome.lock().0.get_or_insert(e);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (error, done) = {
            let mut outcome = self.outcome.lock();
            (outcome.0.take(), outcome.1.take())
        };
        let Some(done) = done else { return };
        let quiet = error.is_none()
            && self.sync == SyncMode::None
            && self.core.inline_completion.load(Ordering::Relaxed)
            && !self.inode.pages.lock().overlaps(self.range.clone());
        let counters = &self.core.counters;
        if quiet {
            counters.direct_inline.fetch_add(1, Ordering::Relaxed);
            self.finish(None, done);
        } else {
            counters.direct_deferred.fetch_add(1, Ordering::Relaxed);
            let core = Arc::clone(&self.core);
            core.workers
                .in_finisher(Box::new(move || self.finish(error, done)));
        }
    }

    fn finish(self: Arc<Self>, error: Option<DeviceError>, done: WriteDone) {
        let n = (self.range.end - self.range.start) as usize;
        let mut result = match error {
            None => Ok(n),
            Some(e) => Err(Error::io("direct write", e).ino(self.inode.ino())),
        };
        if self.inode.pages.lock().overlaps(self.range.clone()) {
            self.core.drop_overlap(&self.inode, self.range.clone());
        }
        let scope = match self.sync {
            SyncMode::None => None,
            SyncMode::Data => Some(SyncScope::Data),
            SyncMode::All => Some(SyncScope::All),
        };
        if let Some(scope) = scope
            && result.is_ok()
            && let Err(e) = self.core.engine.sync_inode(&self.inode, scope)
        {
            result = Err(e);
        }
        self.inode.pages.direct_end();
        done(result);
    }
}

struct ReadInFlight {
    inode: LoosePin,
    left: AtomicUsize,
    state: crate::locks::Mutex<ReadState>,
}

struct ReadState {
    parts: Vec<Option<IoSlice>>,
    error: Option<DeviceError>,
    done: Option<ReadDone>,
}

impl ReadInFlight {
    fn one_done(self: Arc<Self>, slot: usize, slice: std::result::Result<IoSlice, DeviceError>) {
        {
            let mut state = self.state.lock();
            match slice {
                Ok(s) => state.parts[slot] = Some(s),
                Err(e) => state.error = Some(e),
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (parts, error, done) = {
            let mut state = self.state.lock();
            (
                std::mem::take(&mut state.parts),
                state.error.take(),
                state.done.take(),
            )
        };
        self.inode.pages.direct_end();
        if let Some(done) = done {
            done(match error {
                None => Ok(parts.into_iter().flatten().collect()),
                Some(e) => Err(Error::io("direct read", e).ino(self.inode.ino())),
            });
        }
    }
}

impl Handle {
    /// Writes slices at `offset` without waiting; `done` is told how many bytes were written. Order
    /// among overlapping operations in flight is not defined.
    ///
    /// Block-aligned overwrites through a direct handle never leave the device's completion context.
    pub fn submit_write(self: &Arc<Self>, slices: Vec<IoSlice>, offset: u64, done: WriteDone) {
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let fast = self.flags().direct
            && !self.flags().append
            && self.core().is_direct_aligned(offset, len)
            && self.may_overwrite().is_ok();
        let (slices, done) = if fast {
            match self.try_submit_overwrite(slices, offset, len, done) {
                None => return,
                Some(back) => back,
            }
        } else {
            (slices, done)
        };
        let me = Arc::clone(self);
        self.core()
            .counters
            .direct_deferred
            .fetch_add(1, Ordering::Relaxed);
        self.core().workers.in_pool(Box::new(move || {
            let result = me.write_slices(slices, offset);
            done(result);
        }));
    }

    /// Submits the write if it is a pure overwrite; otherwise gives everything back.
    fn try_submit_overwrite(
        self: &Arc<Self>,
        slices: Vec<IoSlice>,
        offset: u64,
        len: usize,
        done: WriteDone,
    ) -> Option<(Vec<IoSlice>, WriteDone)> {
        let core = self.core();
        let inode = self.inode();
        let range = offset..offset.saturating_add(len as u64);
        let lock = inode.lock.read();
        if inode.pages.lock().overlaps(range.clone())
            || !matches!(core.is_overwrite(inode, &range), Ok(true))
        {
            return Some((slices, done));
        }
        let size = inode.size();
        // Pure overwrites in place are all that goes on here: what the engine wants committed (blocks
        // that move) takes the other way, and nothing has been submitted yet.
        let mut devices = Vec::new();
        let mut at = range.start;
        while at < range.end {
            match core
                .engine
                .allocate(inode, at..range.end, size, Intent::Direct)
            {
                Ok(t) if t.offset == at && t.bytes > 0 && !t.commit => match t.device {
                    Some(device) => {
                        let bytes = t.bytes.min(range.end - at);
                        devices.push((device, bytes));
                        at += bytes;
                    }
                    None => return Some((slices, done)),
                },
                Ok(t) => {
                    if t.commit {
                        core.engine.abandon_write(inode, &t);
                    }
                    return Some((slices, done));
                }
                Err(_) => return Some((slices, done)),
            }
        }
        inode.pages.direct_begin();
        let now = Timestamp::now();
        inode.update_attr(|a| {
            a.mtime = now;
            a.ctime = now;
        });
        core.mark_lazy(inode);
        core.counters
            .bytes_written
            .fetch_add(len as u64, Ordering::Relaxed);
        drop(lock);
        let mut requests = Vec::new();
        let mut rest = slices;
        for (device, bytes) in devices {
            let (now, later) = crate::direct_io::split_slices(rest, bytes);
            rest = later;
            let mut at = device.0;
            for part in split_requests(now, core.request_bytes_max) {
                let n: u64 = part.iter().map(|s| s.len() as u64).sum();
                requests.push((at, part));
                at += n;
            }
        }
        let flight = Arc::new(WriteInFlight {
            core: Arc::clone(core),
            inode: LoosePin::new(core, inode),
            range,
            sync: self.flags().sync,
            left: AtomicUsize::new(requests.len()),
            outcome: crate::locks::Mutex::new(crate::locks::Rank::Leaf, (None, Some(done))),
        });
        for (at, part) in requests {
            let flight = Arc::clone(&flight);
            core.device
                .submit(Request::new(Op::Write(part), DevOffset(at), move |done| {
                    flight.one_done(done.result.err())
                }));
        }
        None
    }

    /// Writes slices at `offset` and waits; direct handles write aligned slices without copying.
    ///
    /// # Errors
    /// As [`Handle::write_at`].
    pub fn write_slices(&self, slices: Vec<IoSlice>, offset: u64) -> Result<usize> {
        let len: usize = slices.iter().map(|s| s.len()).sum();
        let at_end = self.flags().append && !self.flags().append_resolved;
        if at_end || !self.flags().direct || !self.core().is_direct_aligned(offset, len) {
            return match &slices[..] {
                [one] => self.write_at(one, offset),
                _ => {
                    let parts: Vec<&[u8]> = slices.iter().map(|s| &s[..]).collect();
                    self.write_at(&AlignedBuf::concat(&parts), offset)
                }
            };
        }
        self.write_direct_slices(slices, offset, len)
    }

    /// Reads at `offset` without waiting; `done` gets slices that are together `len` bytes, or fewer at
    /// the end of the file.
    pub fn submit_read(self: &Arc<Self>, offset: u64, len: usize, done: ReadDone) {
        let done = if self.flags().direct && self.may_read().is_ok() {
            match self.try_submit_read(offset, len, done) {
                None => return,
                Some(done) => done,
            }
        } else {
            done
        };
        let me = Arc::clone(self);
        self.core().workers.in_pool(Box::new(move || {
            let result = me.read_slices(offset, len);
            done(result);
        }));
    }

    /// Submits the read if every block is mapped and nothing is dirty; otherwise gives `done` back.
    fn try_submit_read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        done: ReadDone,
    ) -> Option<ReadDone> {
        let core = self.core();
        let inode = self.inode();
        let logical = u64::from(core.logical_block_bytes);
        let guard = inode.invalidate.read();
        let range = self.clamp_to_size(offset, len);
        if range.is_empty() || inode.pages.lock().has_unwritten(core.blocks_over(&range)) {
            return Some(done);
        }
        let mut reads = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Ok(m) = core.engine.map(inode, at, range.end - at) else {
                return Some(done);
            };
            let Place::Mapped(device) = m.place else {
                return Some(done);
            };
            let end = m.offset.saturating_add(m.bytes).min(range.end);
            if end <= at {
                return Some(done);
            }
            let from = device.0 + (at - m.offset);
            let first = from / logical * logical;
            let bytes = (from + (end - at) - first).next_multiple_of(logical);
            reads.push((first, bytes, (from - first) as usize, (end - at) as usize));
            at = end;
        }
        inode.pages.direct_begin();
        drop(guard);
        core.counters
            .bytes_read
            .fetch_add(range.end - range.start, Ordering::Relaxed);
        if !self.flags().noatime {
            core.touch_atime(inode);
        }
        let flight = Arc::new(ReadInFlight {
            inode: LoosePin::new(core, inode),
            left: AtomicUsize::new(reads.len()),
            state: crate::locks::Mutex::new(
                crate::locks::Rank::Leaf,
                ReadState {
                    parts: vec![None; reads.len()],
                    error: None,
                    done: Some(done),
                },
            ),
        });
        for (slot, (first, bytes, skip, len)) in reads.into_iter().enumerate() {
            let flight = Arc::clone(&flight);
            core.device.submit(Request::new(
                Op::Read(AlignedBuf::for_overwrite(bytes as usize)),
                DevOffset(first),
                move |done| {
                    let slice = done.result.and_then(|()| {
                        done.read
                            .map(|buf| IoSlice::new(Arc::new(buf), skip..skip + len))
                            .ok_or(DeviceError {
                                op: "read",
                                offset: DevOffset(first),
                                bytes,
                                kind: blockwright_device::DeviceErrorKind::Gone,
                            })
                    });
                    flight.one_done(slot, slice);
                },
            ));
        }
        None
    }

    /// Writes aligned slices past the cache, under the lock the write needs.
    pub(crate) fn write_direct_slices(
        &self,
        slices: Vec<IoSlice>,
        at: u64,
        len: usize,
    ) -> Result<usize> {
        self.may_overwrite()?;
        let core = self.core();
        let inode = self.inode();
        let end = at.saturating_add(len as u64);
        let strip = self.must_strip();
        let n = 'written: {
            if !strip {
                let lock = inode.lock.read();
                if core.is_overwrite(inode, &(at..end))? {
                    let proof = InodeLock::Shared(&lock);
                    break 'written core.write_direct(inode, slices, at, &proof)?;
                }
            }
            let lock = inode.lock.write();
            if strip {
                core.strip_privileges(inode)?;
            }
            core.write_direct(inode, slices, at, &InodeLock::Exclusive(&lock))?
        };
        self.after_write(at, n)?;
        Ok(n)
    }
}
