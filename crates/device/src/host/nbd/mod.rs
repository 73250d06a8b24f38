//! An export of an NBD server as a device.
//!
//! As many requests in flight as are submitted, over one connection, or over several where the server allows it ([`NbdAddress::connections`]):
//! its `session`. Abilities that the server lacks are replaced: FUA by a flush behind the write, zeroing by writes of zeroes. Discards are
//! dropped. A server without flush is taken at its word that writes are durable when they are answered. With structured replies, holes travel as
//! their lengths. Where the server's smallest request is larger than 4 KiB, smaller ones are made of it ([`SplitBlocksDevice`]).
//!
//! # When the server does not answer
//! A connection that is lost is made again (`supervise`), for as long as [`NbdOptions::reconnect`] says. Meanwhile
//! requests wait. Writes that the server had answered but not made durable are sent again first (`log`), since a server that crashed has lost them.
//! So a successful flush also holds across restarts of the server.
//!
//! A server that breaks the protocol, comes back with another size or other abilities, or does not come back in time is given up: requests
//! in flight fail with the reason, later ones with [`DeviceErrorKind::Gone`].
//!
//! # Not seen
//! Whether the server that comes back has the same bytes: an export that lost durable data, or was written by others meanwhile.
//!
//! # Locks
//! The queue's, then those of a session. None is held during I/O or a completion.

mod claim;
mod connect;
mod handshake;
mod log;
#[cfg(any(test, feature = "conformance"))]
pub mod server;
mod session;
mod stream;
mod supervise;
#[cfg(test)]
mod tests;
mod tls;
mod transport;
mod wire;

pub use super::nbd_address::{CONNECTIONS_MAX, NBD_PORT, NbdAddress, NbdEndpoint, scheme_len};
pub use claim::is_claimed;
pub use connect::{Connector, serve_connections};

use super::queue::{Queue, completing};
use crate::monitor::Monitor;
use crate::{
    BlockDevice, DevOffset, DeviceError, DeviceErrorKind, Geometry, Op, Request, Result,
    SharedDevice, SplitBlocksDevice, refuse,
};
use claim::Claim;
use handshake::Export;
use log::Log;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tls::Tls;
use transport::Wire;
use wire::{EXTENT_ZERO, Transmission};

/// Requests that wait to be sent.
const QUEUED_MAX: usize = 1024;
/// The largest request that is worth it; servers allow up to 32 MiB.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// The largest range that is zeroed or discarded by one request: a server may have to write it.
const RANGE_BYTES_MAX: u32 = 64 << 20;
/// Where the server's smallest request is larger, parts of blocks are read and written again: volumes have smaller blocks.
const SMALLEST_BYTES_MAX: u32 = 4096;
/// Zeroes for servers that cannot zero.
const ZEROES_BYTES: usize = 256 << 10;
/// How far a server is asked at once where zeroes end.
const EXTENT_BYTES_MAX: u64 = 1 << 30;

thread_local! {
    /// The device that a thread belongs to, by its address; 0 for threads of others.
    static CONNECTION_IS_OURS: Cell<usize> = const { Cell::new(0) };
}

crate::with_defaults! {
/// How a server is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Refuse writes.
    pub read_only: bool = false,
    /// Keep other writers of this host away: see the module's head.
    pub lock: bool = true,
    /// How long connecting and negotiating may take, and how long the server may be silent while requests are in
    /// flight.
    pub time_limit: Duration = Duration::from_secs(30),
    /// How long a lost connection is waited for while requests wait, and how long a server may be silent during a write. Zero: a lost connection is final.
    /// An address that names a time takes precedence.
    pub reconnect: Duration = Duration::from_secs(60),
    /// How many connections are used where the server allows several. An address that names a number takes precedence.
    pub connections: usize = 1,
    /// How many bytes of writes are kept until a flush has made them durable. When there are so many, the device flushes by itself.
    pub unflushed_bytes_max: u64 = 64 << 20,
}
}

/// A question where zeroes end.
struct Ask {
    offset: u64,
    bytes: u32,
    extent: Mutex<Option<(u32, u32)>>,
    result: Mutex<Option<std::result::Result<(), DeviceErrorKind>>>,
    answered: Condvar,
}

impl Ask {
    /// The first extent: its length and flags.
    fn note(&self, extent: (u32, u32)) {
        self.extent.lock().get_or_insert(extent);
    }

    fn answer(&self, result: std::result::Result<(), DeviceErrorKind>) {
        *self.result.lock() = Some(result);
        self.answered.notify_all();
    }

    /// The length of the first extent, if it reads as zeroes.
    fn wait(&self) -> Option<u64> {
        let mut result = self.result.lock();
        while result.is_none() {
            self.answered.wait(&mut result);
        }
        let good = matches!(*result, Some(Ok(())));
        let (bytes, flags) = (*self.extent.lock()).filter(|_| good)?;
        (flags & EXTENT_ZERO != 0 && bytes > 0).then_some(u64::from(bytes))
    }
}

enum Work {
    Caller(Request),
    /// A write that is repeated on a new connection.
    Replay(Request),
    Ask(Arc<Ask>),
    /// A flush of the device's own.
    Flush,
}

enum Job {
    Send(Work),
    /// The flush that makes a write durable, which was answered.
    Harden(Request),
}

struct Shared {
    address: NbdAddress,
    connector: Connector,
    tls: Option<Tls>,
    export: Export,
    geometry: Geometry,
    options: NbdOptions,
    monitor: Monitor,
    queue: Queue<Job>,
    work: Condvar,
    log: Log,
    /// Jobs that are not done yet, wherever they are, and how many were done.
    pending: AtomicUsize,
    completed: AtomicU64,
    /// Set under the queue's lock: nothing is sent any more.
    dead: AtomicBool,
}

/// See the module's head.
pub struct NbdDevice {
    shared: Arc<Shared>,
    wires: Vec<Wire>,
    thread: Option<JoinHandle<()>>,
    _claim: Option<Claim>,
}

fn failed_open(kind: DeviceErrorKind) -> DeviceError {
    DeviceError {
        op: "open",
        offset: DevOffset(0),
        bytes: 0,
        kind,
    }
}

impl NbdDevice {
    /// Connects to an export.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Os`] when the server cannot be reached in time, [`DeviceErrorKind::Refused`] when it
    /// does not speak the protocol or has no such export, [`DeviceErrorKind::ReadOnly`] when the export is read-only
    /// and is opened for writing, [`DeviceErrorKind::InUse`] when another process of this host writes to it.
    pub fn open(address: &NbdAddress, options: &NbdOptions) -> Result<SharedDevice> {
        Self::connect(address, options)?.begin()
    }

    /// Connects and agrees on an export, as [`NbdDevice::open`] does. Nothing is served before [`NbdDevice::begin`].
    pub(super) fn connect(address: &NbdAddress, options: &NbdOptions) -> Result<Self> {
        let claim = match options.lock {
            true => claim::claim(address, !options.read_only).map_err(failed_open)?,
            false => None,
        };
        let tls = Tls::load(address).map_err(failed_open)?;
        let mut options = *options;
        options.time_limit = options.time_limit.max(Duration::from_millis(1));
        options.reconnect = address.reconnect.unwrap_or(options.reconnect);
        options.connections = address
            .connections
            .unwrap_or(options.connections)
            .min(CONNECTIONS_MAX);
        let deadline = Instant::now() + options.time_limit;
        let stream = stream::Stream::connect(&address.endpoint, deadline)
            .map_err(|e| failed_open(supervise::unreachable(&e)))?;
        let (export, wire) =
            handshake::negotiate(stream, address, tls.as_ref(), deadline).map_err(failed_open)?;
        let read_only = export.flags.contains(Transmission::READ_ONLY);
        if read_only && !options.read_only {
            return Err(failed_open(DeviceErrorKind::ReadOnly));
        }
        let keeps = !options.read_only
            && !options.reconnect.is_zero()
            && export.flags.contains(Transmission::FLUSH);
        let shared = Shared {
            address: address.clone(),
            connector: Connector::Direct,
            tls,
            geometry: geometry(&export, options.read_only),
            export,
            options,
            monitor: Monitor::default(),
            queue: Queue::new(QUEUED_MAX),
            work: Condvar::new(),
            log: Log::new(match keeps {
                true => options.unflushed_bytes_max.max(1),
                false => 0,
            }),
            pending: AtomicUsize::new(0),
            completed: AtomicU64::new(0),
            dead: AtomicBool::new(false),
        };
        let wires = shared
            .prepare(&wire)
            .and_then(|()| shared.dial_more((export, wire), deadline))
            .map_err(failed_open)?;
        Ok(NbdDevice {
            shared: Arc::new(shared),
            wires,
            thread: None,
            _claim: claim,
        })
    }

    /// Further connections are made in this way. Before [`NbdDevice::begin`].
    pub(super) fn reconnect_by(mut self, connector: Connector) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.connector = connector;
        }
        self
    }

    /// Starts the threads.
    pub(super) fn begin(mut self) -> Result<SharedDevice> {
        let (shared, wires) = (Arc::clone(&self.shared), std::mem::take(&mut self.wires));
        let thread = thread::Builder::new()
            .name("nbd".into())
            .spawn(move || supervise::supervise(&shared, wires))
            .map_err(|e| {
                let errno = e.raw_os_error().unwrap_or(libc::EAGAIN);
                failed_open(DeviceErrorKind::Os(errno))
            })?;
        self.thread = Some(thread);
        let block = self.shared.geometry.logical_block_bytes;
        let device: SharedDevice = Arc::new(self);
        Ok(match block > SMALLEST_BYTES_MAX {
            true => Arc::new(SplitBlocksDevice::new(device)),
            false => device,
        })
    }
}

fn geometry(export: &Export, read_only: bool) -> Geometry {
    let block = export.block_min.max(512);
    let preferred = export.block_preferred.clamp(4096, REQUEST_BYTES_MAX);
    Geometry {
        bytes: export.bytes - export.bytes % u64::from(block),
        logical_block_bytes: block,
        optimal_io_bytes: preferred.max(block).next_power_of_two(),
        request_bytes_max: part_max(export, REQUEST_BYTES_MAX),
        fua: export.flags.contains(Transmission::FUA),
        discard: !read_only && export.flags.contains(Transmission::TRIM),
        read_only,
    }
}

/// The most bytes of a request that carries them.
fn part_max(export: &Export, wanted: u32) -> u32 {
    let block = export.block_min.max(512);
    let most = export.payload_max.min(wanted);
    (most - most % block).max(block)
}

impl BlockDevice for NbdDevice {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn submit(&self, mut request: Request) {
        let shared = &self.shared;
        if let Err(error) = refuse::request(&shared.geometry, &request) {
            return request.complete(Err(error));
        }
        let has = |flag| shared.export.flags.contains(flag);
        let nothing = match &request.op {
            Op::Flush => shared.geometry.read_only || !has(Transmission::FLUSH),
            Op::Discard { .. } => !has(Transmission::TRIM),
            _ => false,
        };
        if nothing || (request.op.bytes() == 0 && !matches!(request.op, Op::Flush)) {
            return request.complete(Ok(()));
        }
        shared.monitor.note_submitted(&mut request);
        shared.begin(Job::Send(Work::Caller(request)));
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        let shared = &self.shared;
        let end = shared.geometry.bytes;
        let mut at = offset.0;
        if shared.export.allocation.is_none() || CONNECTION_IS_OURS.get() == shared.id() {
            return offset;
        }
        while at < end {
            let ask = Arc::new(Ask {
                offset: at,
                bytes: (end - at).min(EXTENT_BYTES_MAX) as u32,
                extent: Mutex::default(),
                result: Mutex::default(),
                answered: Condvar::new(),
            });
            shared.begin(Job::Send(Work::Ask(Arc::clone(&ask))));
            let Some(bytes) = ask.wait() else { break };
            at = at.saturating_add(bytes).min(end);
        }
        let block = u64::from(shared.geometry.logical_block_bytes);
        DevOffset((at - at % block).max(offset.0))
    }

    fn monitor(&self) -> Option<&Monitor> {
        Some(&self.shared.monitor)
    }

    fn name(&self) -> String {
        self.shared.address.to_string()
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_all();
        // The last reference may be dropped by a completion, in a thread of this device: they end by themselves
        // when everything is answered.
        if CONNECTION_IS_OURS.get() != self.shared.id()
            && let Some(thread) = self.thread.take()
        {
            let _panics_are_caught = thread.join().is_err();
        }
    }
}

impl Shared {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether no job waits or is on its way.
    fn is_idle(&self) -> bool {
        self.pending.load(Ordering::SeqCst) == 0
    }

    /// How many jobs were done.
    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Takes a new job in.
    fn begin(&self, job: Job) {
        self.pending.fetch_add(1, Ordering::SeqCst);
        self.push(job);
    }

    /// Adds a job to the queue; in a completion or a thread of the device without waiting for room.
    fn push(&self, job: Job) {
        let push = || {
            self.queue.push(job, |state| {
                if state.sleepers > 0 {
                    self.work.notify_one();
                }
                self.dead.load(Ordering::SeqCst)
            })
        };
        let mut dead = false;
        match CONNECTION_IS_OURS.get() == self.id() {
            true => completing(|| dead = push()),
            false => dead = push(),
        }
        if dead {
            self.fail_queued(&DeviceErrorKind::Gone);
        }
    }

    /// Flushes because of what is kept until a flush.
    fn flush_log(&self, wanted: bool) {
        if !wanted {
            return;
        }
        self.pending.fetch_add(1, Ordering::SeqCst);
        let mut state = self.queue.lock();
        state.items.push_front(Job::Send(Work::Flush));
        self.work.notify_all();
    }

    /// Completes a request.
    fn finish(&self, request: Request, error: Option<DeviceErrorKind>) {
        let result = match error {
            Some(kind) => Err(request.error(kind)),
            None => Ok(()),
        };
        completing(|| self.monitor.complete(request, result));
        self.finished();
    }

    /// A job is done.
    fn finished(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
        // Closing the device waits for the last one.
        if self.pending.fetch_sub(1, Ordering::SeqCst) == 1 {
            let state = self.queue.lock();
            if state.closed {
                self.work.notify_all();
            }
        }
    }

    /// Gives the export up.
    fn die(&self, why: DeviceErrorKind) {
        {
            let _state = self.queue.lock();
            self.dead.store(true, Ordering::SeqCst);
        }
        self.fail_queued(&why);
    }

    fn fail_queued(&self, why: &DeviceErrorKind) {
        loop {
            let job = {
                let mut state = self.queue.lock();
                let job = state.items.pop_front();
                self.queue.taken(&state);
                job
            };
            match job {
                None => return,
                Some(Job::Send(Work::Caller(request)) | Job::Harden(request)) => {
                    self.finish(request, Some(why.clone()));
                }
                Some(Job::Send(Work::Ask(ask))) => {
                    ask.answer(Err(why.clone()));
                    self.finished();
                }
                Some(Job::Send(Work::Flush)) => self.finished(),
                Some(Job::Send(Work::Replay(_))) => {}
            }
        }
    }
}
