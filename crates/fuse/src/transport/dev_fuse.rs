//! The classic transport: worker threads that read `/dev/fuse`, one request at a time each.
//!
//! READs and overwrites past the cache occupy no worker: they are left to the device and answered in its completion
//! context, on the descriptor they were read from (a [`Flight`]); the worker reads on.
//!
//! Every worker has its own descriptor of the connection (`FUSE_DEV_IOC_CLONE`), which spares the
//! kernel a shared lock per reply; a request must be answered on the descriptor it was read
//! from. Where the device may not be opened a second time (an unprivileged server that got the
//! descriptor from the helper), all share one.
//!
//! Requests are read to `page − 80`, where a WRITE's data begin exactly on a page boundary. Replies
//! go out by one `writev`, data straight from the page cache.
//!
//! A worker that waits in `read` is woken by a request or by the end of the connection, never
//! otherwise: workers are not cancelled, the mount is. `pool` decides which workers wait there and which are parked.

use super::pool::{Next, Pool, Worker};
use super::{Notifier, ReplySink, Transport, Uring, watch};
use crate::dispatch::{Dispatcher, Held};
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::mount::{DEV_FUSE, Keeper};
use crate::options::{Log, TransportKind};
use crate::protocol::flags::NOTIFY_INVAL_INODE;
use crate::protocol::reply::{NotifyInvalInode, OutHeader};
use crate::protocol::{Opcode, Request, WRITE_HEADER_BYTES};
use blockwright_device::{AlignedBuf, BUFFER_ALIGN};
use blockwright_vfs::{Stats, Unit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Where in a worker's buffer a request is read to.
const REQUEST_AT: usize = BUFFER_ALIGN - WRITE_HEADER_BYTES;
/// The largest request that is not a WRITE: SETXATTR with a value of 64 KiB, and its headers.
const OTHER_REQUEST_BYTES_MAX: usize = (64 + 4) << 10;
/// So many bytes of READs and WRITEs are left to the device at once; beyond that workers wait for them.
const FLYING_BYTES_MAX: usize = 32 << 20;

/// For how long FORGETs may gather in the kernel before they are read, when nothing else comes over the device: each that
/// finds a reader asleep makes the program that caused it wake the reader. An INTERRUPT behind them
/// loses nothing: requests are carried out to their end here (locks, the one thing to wait for without end, are the kernel's).
const FORGETS_GATHER: Duration = Duration::from_millis(2);

/// `_IOR(229, 0, uint32_t)`: makes a freshly opened device another end of a connection.
const FUSE_DEV_IOC_CLONE: libc::c_ulong = (2 << 30) | (4 << 16) | (229 << 8);

/// The transport over `/dev/fuse`.
pub struct DevFuse {
    shared: Arc<Shared>,
}

struct Shared {
    /// The connection. Shared by workers that could not get a descriptor of their own.
    fd: Arc<OwnedFd>,
    pool: Pool,
    buffer_bytes: usize,
    log: Log,
    /// Opens the device where this process may not.
    keeper: Option<Arc<Keeper>>,
    dispatcher: OnceLock<Weak<Dispatcher>>,
    /// The transport that takes most requests instead. It is told when the connection ends.
    queues: OnceLock<Weak<Uring>>,
}

impl DevFuse {
    /// A transport over this connection, with at most `threads_max` workers, of which `threads_min` are
    /// kept when they have nothing to do, for WRITEs of up to `max_write` bytes.
    #[must_use]
    pub fn new(
        fd: OwnedFd,
        threads_min: usize,
        threads_max: usize,
        max_write: u32,
        log: Log,
        keeper: Option<Arc<Keeper>>,
    ) -> Self {
        let payload = usize::try_from(max_write).unwrap_or(usize::MAX >> 1);
        DevFuse {
            shared: Arc::new(Shared {
                fd: Arc::new(fd),
                pool: Pool::new(threads_min, threads_max.max(threads_min)),
                buffer_bytes: BUFFER_ALIGN + payload.max(OTHER_REQUEST_BYTES_MAX),
                log,
                keeper,
                dispatcher: OnceLock::new(),
                queues: OnceLock::new(),
            }),
        }
    }

    /// The connection.
    pub(crate) fn connection(&self) -> &Arc<OwnedFd> {
        &self.shared.fd
    }

    /// From now on most requests come over these queues. Only the first call counts.
    pub(crate) fn hand_over(&self, queues: &Arc<Uring>) {
        let _ = self.shared.queues.set(Arc::downgrade(queues));
        if self.shared.pool.has_ended() {
            self.shared.ended();
        }
    }

    /// Lets the dispatcher tell the kernel things.
    #[must_use]
    pub fn notifier(&self) -> Arc<dyn Notifier> {
        Arc::new(DevNotifier(Arc::downgrade(&self.shared)))
    }
}

impl Transport for DevFuse {
    fn stats(&self, out: &mut Stats) {
        let queues = self.shared.queues();
        let kind = match &queues {
            Some(_) => TransportKind::IoUring,
            None => TransportKind::DevFuse,
        };
        out.text(
            "transport",
            "how requests travel between the kernel and the server",
            kind.to_string(),
        );
        if let Some(queues) = queues {
            queues.stats(out);
        }
        out.gauge(
            "fuse_threads",
            Unit::Count,
            "threads that read requests from /dev/fuse",
            self.shared.pool.stations().len() as u64,
        );
        out.gauge(
            "fuse_in_flight",
            Unit::Count,
            "requests from /dev/fuse that are left to the device",
            self.shared.pool.flying() as u64,
        );
    }

    fn start(&self, dispatcher: Arc<Dispatcher>) -> Result<()> {
        if self
            .shared
            .dispatcher
            .set(Arc::downgrade(&dispatcher))
            .is_err()
        {
            return Err(FuseError::new(
                FuseErrorKind::Transport,
                "the transport was started twice",
            ));
        }
        // It takes one burst to warm all workers' buffers and to have as much on its way as may be.
        let flying = FLYING_BYTES_MAX.div_ceil(self.shared.buffer_bytes);
        dispatcher.reserve_memory(self.shared.pool.workers_max() + flying);
        let shared = self.shared.clone();
        std::thread::Builder::new()
            .name("fuse-watch".to_owned())
            .spawn(move || {
                watch::run(
                    &shared.pool,
                    || !shared.is_relieved() && shared.has_queue(),
                    || spawn_another(&shared),
                );
            })
            .map_err(|e| FuseError::os("cannot start a thread", e))?;
        self.shared.pool.add();
        spawn(&self.shared, dispatcher)
            .map_err(|e| FuseError::os("cannot start a worker thread", e))
    }

    fn wait(&self, limit: Option<Duration>) -> bool {
        self.shared.pool.wait(limit)
    }
}

impl Shared {
    /// The connection has ended.
    fn ended(&self) {
        self.pool.end();
        if let Some(queues) = self.queues() {
            queues.end();
        }
    }

    fn queues(&self) -> Option<Arc<Uring>> {
        self.queues.get().and_then(Weak::upgrade)
    }

    /// Whether others take most requests.
    fn is_relieved(&self) -> bool {
        self.queues.get().is_some()
    }

    /// Whether requests wait to be read.
    fn has_queue(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec::default();
        matches!(poll(&mut fds, Some(&now)), Ok(1..)) && fds[0].revents().contains(PollFlags::IN)
    }
}

/// Starts a worker that has been counted in the pool.
fn spawn(shared: &Arc<Shared>, dispatcher: Arc<Dispatcher>) -> io::Result<()> {
    let theirs = shared.clone();
    let spawned = std::thread::Builder::new()
        .name("fuse-worker".to_owned())
        .spawn(move || {
            let mut worker = Worker::new(&theirs.pool);
            // By value: the dispatcher's count must be given back before the worker is taken off the
            // pool's, because the session closes the volume when the pool is empty.
            work(&theirs, dispatcher, &mut worker);
        });
    if let Err(e) = spawned {
        shared.pool.remove();
        return Err(e);
    }
    Ok(())
}

/// Starts the worker that the pool asked for.
fn spawn_another(shared: &Arc<Shared>) {
    let Some(dispatcher) = shared.dispatcher.get().and_then(Weak::upgrade) else {
        shared.pool.remove();
        return;
    };
    if let Err(e) = spawn(shared, dispatcher) {
        shared
            .log
            .line(&format!("cannot start another FUSE worker thread: {e}"));
    }
}

/// Serves until the connection ends, or the worker is not needed any more.
#[allow(clippy::needless_pass_by_value)] // See `spawn`.
fn work(shared: &Arc<Shared>, dispatcher: Arc<Dispatcher>, worker: &mut Worker<'_>) {
    let fd = match clone_connection(shared.fd.as_fd(), shared.keeper.as_deref()) {
        Ok(own) => Arc::new(own),
        Err(_) => Arc::clone(&shared.fd),
    };
    let mut buffer = AlignedBuf::zeroed(shared.buffer_bytes);
    // What was read into stays warm.
    let mut held = dispatcher.hold(0);
    loop {
        let bytes = match rustix::io::read(&*fd, &mut buffer[REQUEST_AT..]) {
            Ok(bytes) => bytes,
            // ENOENT: the request was taken back while we were about to read it.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(e) => {
                // ENODEV: unmounted. ECONNABORTED: the connection was cut.
                if !matches!(e, Errno::NODEV | Errno::CONNABORTED) && !shared.pool.has_ended() {
                    shared.log.line(&format!("reading from {DEV_FUSE}: {e}"));
                }
                shared.ended();
                return;
            }
        };
        held.grow(bytes);
        let request = &buffer[REQUEST_AT..REQUEST_AT + bytes];
        let opcode = request.get(4..8).map(|_| u32_at(request, 4));
        let opcode = opcode.and_then(Opcode::from_wire);
        if !leave_to_device(shared, &dispatcher, &fd, request, worker) {
            if worker.begin(opcode, bytes) {
                spawn_another(shared);
            }
            serve(shared, &dispatcher, fd.as_fd(), request);
        }
        let forgets = matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget));
        if worker.finish() == Next::Leave {
            return;
        }
        if forgets && shared.is_relieved() {
            std::thread::sleep(FORGETS_GATHER);
        }
    }
}

/// Begins a READ or a WRITE past the cache that need not wait for anybody; carries it out when it has to wait after
/// all. Returns whether the request was one of these.
fn leave_to_device(
    shared: &Arc<Shared>,
    dispatcher: &Arc<Dispatcher>,
    fd: &Arc<OwnedFd>,
    bytes: &[u8],
    worker: &mut Worker<'_>,
) -> bool {
    // `serve` reports damaged requests.
    let Ok(request) = Request::parse(bytes) else {
        return false;
    };
    let Some(data) = dispatcher.data_request(&request) else {
        return false;
    };
    if !shared.pool.take_off(data.bytes(), FLYING_BYTES_MAX) {
        return false;
    }
    let flight = Flight {
        shared: Arc::clone(shared),
        fd: Arc::clone(fd),
        unique: request.header.unique,
        bytes: data.bytes(),
        _held: dispatcher.hold(data.bytes()),
        replied: false,
    };
    worker.begin_quick(request.opcode());
    let slices = data.slices(&request);
    if let Err(later) = dispatcher.submit(data, slices, flight, None) {
        if worker.turn_slow() {
            spawn_another(shared);
        }
        dispatcher.carry_out(later);
    }
    true
}

/// Handles one request.
fn serve(shared: &Shared, dispatcher: &Dispatcher, fd: BorrowedFd<'_>, bytes: &[u8]) {
    match Request::parse(bytes) {
        Ok(request) => dispatcher.handle(request, DevSink(fd)),
        Err(e) => {
            // Without a sound header there is nothing to reply to; with one, a client waits.
            shared.log.line(&e.to_string());
            if let Some(header) = bytes.get(..16)
                && Opcode::from_wire(u32_at(header, 4)).is_none_or(Opcode::has_reply)
            {
                fail(
                    fd,
                    u64::from(u32_at(header, 8)) | u64::from(u32_at(header, 12)) << 32,
                );
            }
        }
    }
}

/// Replies that it did not work.
fn fail(fd: BorrowedFd<'_>, unique: u64) {
    let reply = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: -libc::EIO,
        unique,
    };
    let _ = DevSink(fd).send(&[IoSlice::new(reply.as_bytes())]);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Another descriptor of the same connection.
fn clone_connection(fd: BorrowedFd<'_>, keeper: Option<&Keeper>) -> io::Result<OwnedFd> {
    let new = match keeper {
        Some(keeper) => keeper.device().map_err(io::Error::other)?,
        None => rustix::fs::open(DEV_FUSE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?,
    };
    let old = fd.as_raw_fd().cast_unsigned();
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32 from the pointer, which is valid for the call; both
    // descriptors are open.
    let result = unsafe { libc::ioctl(new.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const old) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(new)
}

/// Replies on the descriptor that the request came from.
struct DevSink<'a>(BorrowedFd<'a>);

impl ReplySink for DevSink<'_> {
    fn send(self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        // The device takes a reply whole or not at all; there are no short writes.
        rustix::io::retry_on_intr(|| rustix::io::writev(self.0, parts))?;
        Ok(())
    }
}

/// A request that no worker waits for: holds the descriptor that it came from, is counted in the pool, and is
/// answered with EIO if it is dropped without a reply.
struct Flight {
    shared: Arc<Shared>,
    fd: Arc<OwnedFd>,
    unique: u64,
    bytes: usize,
    /// What is on its way beside the worker's buffer.
    _held: Held,
    replied: bool,
}

impl ReplySink for Flight {
    fn send(mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let sent = DevSink(self.fd.as_fd()).send(parts);
        self.replied = sent.is_ok();
        sent
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.replied {
            fail(self.fd.as_fd(), self.unique);
        }
        self.shared.pool.land(self.bytes);
    }
}

/// Sends notifications. Weak, so that a dispatcher that outlives the connection does not keep it open.
struct DevNotifier(Weak<Shared>);

impl DevNotifier {
    fn invalidate(shared: &Shared, nodeid: u64, off: i64, len: i64) -> io::Result<()> {
        let body = NotifyInvalInode {
            ino: nodeid,
            off,
            len,
        };
        let head = OutHeader {
            len: (size_of::<OutHeader>() + size_of::<NotifyInvalInode>()) as u32,
            error: NOTIFY_INVAL_INODE,
            unique: 0,
        };
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body.as_bytes())];
        match rustix::io::retry_on_intr(|| rustix::io::writev(&*shared.fd, &parts)) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Notifier for DevNotifier {
    fn drop_cached_range(&self, nodeid: u64, range: Range<u64>) -> io::Result<()> {
        let Some(shared) = self.0.upgrade() else {
            return Err(Errno::NODEV.into());
        };
        // No length: to the end.
        let off = i64::try_from(range.start).unwrap_or(i64::MAX);
        let len = i64::try_from(range.end).map_or(0, |end| end - off);
        if shared.pool.block() {
            spawn_another(&shared);
        }
        let result = Self::invalidate(&shared, nodeid, off, len);
        shared.pool.unblock();
        result
    }

    fn forget_attributes(&self, nodeid: u64) -> io::Result<()> {
        let Some(shared) = self.0.upgrade() else {
            return Err(Errno::NODEV.into());
        };
        Self::invalidate(&shared, nodeid, -1, 0)
    }
}
