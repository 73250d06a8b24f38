//! The classic transport: threads that read `/dev/fuse`, one request at a time each.
//!
//! READs, and WRITEs past the cache, occupy no thread. They are left to the device and answered in its completion
//! context, on the descriptor that they were read from (a [`Flight`]). The reader reads on.
//!
//! Reading is a job of the pool ([`Threads`]). Each such job has a [`Desk`]: a buffer, and a descriptor of the connection of its own
//! (`FUSE_DEV_IOC_CLONE`), which spares the kernel a shared lock per reply. A request must be answered on the descriptor that it was
//! read from. Where the device may not be opened a second time (an unprivileged server that got the descriptor from the helper),
//! all share one.
//!
//! Requests are read to `page − 80`, where a WRITE's data begin exactly on a page boundary. Replies
//! go out by one `writev`, data straight from the page cache.
//!
//! A thread that waits in `read` is woken by a request or by the end of the connection, never
//! otherwise: threads are not cancelled, the mount is. `readers` decides how many wait there.
//!
//! [`Threads`]: crate::threads::Threads

use super::readers::{Next, Reader, Readers};
use super::{Uring, watch};
use crate::connection::{Notifier, ReplySink, TransportStats};
use crate::dispatch::{Dispatcher, Held};
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::keeper::Keeper;
use crate::mount::DEV_FUSE;
use crate::options::{Log, TransportKind};
use crate::protocol::flags::NOTIFY_INVAL_INODE;
use crate::protocol::reply::{NotifyInvalInode, OutHeader};
use crate::protocol::{Opcode, Request, WRITE_HEADER_BYTES};
use crate::scheduling::slow_kinds::is_slow_by_nature;
use blockwright_device::{AlignedBuf, BUFFER_ALIGN};
use blockwright_vfs::Stats;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Where in a buffer a request is read to.
const REQUEST_AT: usize = BUFFER_ALIGN - WRITE_HEADER_BYTES;
/// The largest request that is not a WRITE: SETXATTR with a value of 64 KiB, and its headers.
const OTHER_REQUEST_BYTES_MAX: usize = (64 + 4) << 10;
/// The most bytes of READs and WRITEs that are left to the device at once. Beyond that, threads wait for them.
const IN_FLIGHT_BYTES_MAX: usize = 32 << 20;

/// For how long FORGETs may gather in the kernel before they are read, when nothing else comes over the device: each that
/// finds a reader asleep makes the program that caused it wake the reader. An INTERRUPT behind them
/// loses nothing: requests are carried out to their end here (locks, the one thing to wait for without end, are the kernel's).
const FORGETS_GATHER: Duration = Duration::from_millis(2);

/// `_IOR(229, 0, uint32_t)`: makes a freshly opened device another end of a connection.
const FUSE_DEV_IOC_CLONE: libc::Ioctl = (2 << 30) | (4 << 16) | (229 << 8);

/// The transport over `/dev/fuse`.
pub struct DevFuse {
    shared: Arc<Shared>,
}

struct Shared {
    /// The connection. Shared by readers that could not get a descriptor of their own.
    fd: Arc<OwnedFd>,
    readers: Readers,
    /// Desks that no reader uses.
    desks: Mutex<Vec<Desk>>,
    buffer_bytes: usize,
    log: Log,
    /// Opens the device where this process may not.
    keeper: Option<Arc<Keeper>>,
    dispatcher: OnceLock<Weak<Dispatcher>>,
    /// The transport that takes most requests instead. It is notified when the connection ends.
    queues: OnceLock<Weak<Uring>>,
}

impl DevFuse {
    /// A transport over this connection, with at most `readers_max` threads that read at once, for WRITEs of up to `max_write` bytes.
    #[must_use]
    pub fn new(
        fd: OwnedFd,
        readers_max: usize,
        max_write: u32,
        log: Log,
        keeper: Option<Arc<Keeper>>,
    ) -> Self {
        let payload = usize::try_from(max_write).unwrap_or(usize::MAX >> 1);
        DevFuse {
            shared: Arc::new(Shared {
                fd: Arc::new(fd),
                readers: Readers::new(readers_max),
                desks: Mutex::default(),
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
        if self.shared.readers.has_ended() {
            self.shared.ended();
        }
    }

    /// Lets the dispatcher tell the kernel things.
    #[must_use]
    pub fn notifier(&self) -> Arc<dyn Notifier> {
        Arc::new(DevNotifier(Arc::downgrade(&self.shared)))
    }
}

impl TransportStats for DevFuse {
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
        blockwright_vfs::stat_lines! { out;
            gauge "fuse_threads", Count, "threads that read requests from /dev/fuse, or serve what they have read"
                => self.shared.readers.count() as u64;
            gauge "fuse_in_flight", Count, "requests from /dev/fuse that are left to the device" => self.shared.readers.in_flight() as u64;
        }
    }
}

impl DevFuse {
    /// Starts serving.
    ///
    /// # Errors
    /// When there are no threads.
    pub fn start(&self, dispatcher: &Arc<Dispatcher>) -> Result<()> {
        let shared = &self.shared;
        if shared.dispatcher.set(Arc::downgrade(dispatcher)).is_err() {
            return Err(FuseError::new(
                FuseErrorKind::Transport,
                "the transport was started twice",
            ));
        }
        // It takes one burst to warm all buffers and to have as much on its way as may be.
        let in_flight = IN_FLIGHT_BYTES_MAX.div_ceil(shared.buffer_bytes);
        dispatcher.reserve_memory(dispatcher.threads().max() + in_flight);
        let no_thread = |e| FuseError::os("cannot start a thread", e);
        let theirs = Arc::clone(shared);
        std::thread::Builder::new()
            .name("fuse-watch".to_owned())
            .spawn(move || {
                watch::run(
                    &theirs.readers,
                    || !theirs.is_relieved() && theirs.has_queue(),
                    || queue_reader(&theirs),
                );
            })
            .map_err(no_thread)?;
        // Without a thread in the pool, reading would be done by this one.
        dispatcher.threads().begin().map_err(no_thread)?;
        if shared.readers.ensure_one() {
            queue_reader(shared);
        }
        Ok(())
    }

    /// Waits until the connection has ended, and no thread reads it or serves what it has read, or for `limit`. Returns whether that
    /// is so.
    #[must_use]
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        self.shared.readers.wait(limit)
    }
}

impl Shared {
    /// The connection has ended.
    fn ended(&self) {
        self.readers.end();
        // Outside the lock: what they hold of the volume's budget is given back.
        let desks = std::mem::take(&mut *self.desks.lock());
        drop(desks);
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

/// What a reader needs.
struct Desk {
    fd: Arc<OwnedFd>,
    buffer: AlignedBuf,
    /// Memory that was read into stays warm.
    held: Held,
}

impl Shared {
    /// A desk that was used before, or a new one.
    fn desk(&self, dispatcher: &Dispatcher) -> Desk {
        let used = self.desks.lock().pop();
        used.unwrap_or_else(|| Desk {
            fd: match clone_connection(self.fd.as_fd(), self.keeper.as_deref()) {
                Ok(own) => Arc::new(own),
                Err(_) => Arc::clone(&self.fd),
            },
            buffer: AlignedBuf::zeroed(self.buffer_bytes),
            held: dispatcher.hold(0),
        })
    }

    /// Keeps a desk for the next reader.
    fn put_back(&self, desk: Desk) {
        let mut desks = self.desks.lock();
        if !self.readers.has_ended() && desks.len() < self.readers.places_max() {
            desks.push(desk);
        }
    }
}

/// Queues a reading job that is counted already.
fn queue_reader(shared: &Arc<Shared>) {
    let Some(dispatcher) = shared.dispatcher.get().and_then(Weak::upgrade) else {
        // It ends at once.
        return drop(Reader::new(&shared.readers));
    };
    let threads = Arc::clone(dispatcher.threads());
    let shared = Arc::clone(shared);
    threads.run(move || {
        // After a panic the request is answered with an error. The others must still be read.
        let _ = catch_unwind(AssertUnwindSafe(|| read_requests(&shared, &dispatcher)));
        if shared.readers.ensure_one() {
            queue_reader(&shared);
        }
    });
}

/// Reads and serves requests until the connection ends, or this reader is not needed any more.
fn read_requests(shared: &Arc<Shared>, dispatcher: &Arc<Dispatcher>) {
    let mut reader = Reader::new(&shared.readers);
    let mut desk = shared.desk(dispatcher);
    loop {
        let bytes = match rustix::io::read(&*desk.fd, &mut desk.buffer[REQUEST_AT..]) {
            Ok(bytes) => bytes,
            // ENOENT: the request was taken back while we were about to read it.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(e) => {
                // ENODEV: unmounted. ECONNABORTED: the connection was cut.
                if !matches!(e, Errno::NODEV | Errno::CONNABORTED) && !shared.readers.has_ended() {
                    shared.log.line(&format!("reading from {DEV_FUSE}: {e}"));
                }
                return shared.ended();
            }
        };
        desk.held.grow(bytes);
        let request = &desk.buffer[REQUEST_AT..REQUEST_AT + bytes];
        let opcode = match Request::parse(request) {
            Ok(request) => serve(shared, dispatcher, &desk.fd, &request, &mut reader),
            Err(e) => {
                reader.begin_quick(None);
                shared.log.line(&e.to_string());
                refuse(desk.fd.as_fd(), request);
                None
            }
        };
        let forgets = matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget));
        if reader.finish() == Next::Leave {
            return shared.put_back(desk);
        }
        if forgets && shared.is_relieved() {
            std::thread::sleep(FORGETS_GATHER);
        }
    }
}

/// Serves one request, or leaves it to the device, and sees to it that others are read meanwhile. Returns its kind.
fn serve(
    shared: &Arc<Shared>,
    dispatcher: &Arc<Dispatcher>,
    fd: &Arc<OwnedFd>,
    request: &Request<'_>,
    reader: &mut Reader<'_>,
) -> Option<Opcode> {
    let call = dispatcher.decode(request);
    let opcode = call.opcode();
    if let Some(bytes) = call.startable_bytes()
        && shared.readers.begin_flight(bytes, IN_FLIGHT_BYTES_MAX)
    {
        let flight = Flight {
            shared: Arc::clone(shared),
            fd: Arc::clone(fd),
            unique: call.unique(),
            bytes,
            _held: dispatcher.hold(bytes),
            replied: false,
        };
        reader.begin_quick(opcode);
        let slices = call.slices(request);
        if let Err(later) = dispatcher.start(call, slices, flight, None) {
            if reader.turn_slow() {
                queue_reader(shared);
            }
            dispatcher.carry_out(later);
        }
        return opcode;
    }
    let slow = call.waits_for_kernel()
        || opcode.is_some_and(|op| {
            is_slow_by_nature(op, request.body.len()) || shared.readers.slow_kinds.is_slow(op)
        });
    match slow {
        true if reader.begin_slow() => queue_reader(shared),
        true => {}
        false => reader.begin_quick(opcode),
    }
    dispatcher.serve(&call, request, DevSink(fd.as_fd()));
    opcode
}

/// Answers a request that is not what the protocol says. Without a sound header there is nothing to reply to; with one, a client waits.
fn refuse(fd: BorrowedFd<'_>, bytes: &[u8]) {
    if let Some(header) = bytes.get(..16)
        && Opcode::from_wire(u32_at(header, 4)).is_none_or(Opcode::has_reply)
    {
        let unique = u64::from(u32_at(header, 8)) | u64::from(u32_at(header, 12)) << 32;
        fail(fd, unique);
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

/// A request that no thread waits for. It holds the descriptor that it came from, is counted among those in flight, and is
/// answered with EIO if it is dropped without a reply.
struct Flight {
    shared: Arc<Shared>,
    fd: Arc<OwnedFd>,
    unique: u64,
    bytes: usize,
    /// What is on its way beside the reader's buffer.
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
        self.shared.readers.end_flight(self.bytes);
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
        Self::invalidate(&shared, nodeid, off, len)
    }

    fn forget_attributes(&self, nodeid: u64) -> io::Result<()> {
        let Some(shared) = self.0.upgrade() else {
            return Err(Errno::NODEV.into());
        };
        Self::invalidate(&shared, nodeid, -1, 0)
    }
}
