//! An export of an NBD server as a device.
//!
//! One connection, as many requests in flight as are submitted. A *sender* thread writes requests to the socket, a
//! *receiver* reads replies, in the order in which the server sends them, and completes. The receiver never
//! sends: a server that waits for its replies to be read before it reads on would never read on.
//!
//! A request larger than the server takes is sent in parts and completed when all are answered. What the
//! server cannot do is done otherwise: FUA by a flush behind the write, zeroing by zeroes; discards are
//! dropped. A server without flush is taken at its word that writes are durable when they are answered.
//!
//! # When the server does not answer
//! A connection that is lost, breaks the protocol, or moves no byte for [`NbdOptions::time_limit`] while requests are in
//! flight, is given up: what is in flight fails with the reason, everything later with
//! [`DeviceErrorKind::Gone`]. There is no second connection, which could find other bytes.
//!
//! # Locks
//! The queue's, then that of what is in flight. Neither is held during I/O or a completion.

mod address;
mod claim;
mod handshake;
#[cfg(any(test, feature = "conformance"))]
pub mod server;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

pub use address::{NBD_PORT, NbdAddress, NbdEndpoint, scheme_len};
pub use claim::is_claimed;

use super::queue::{Queue, completing};
use crate::monitor::Monitor;
use crate::{
    BlockDevice, DevOffset, DeviceError, DeviceErrorKind, Flags, Geometry, IoSlice, Op, Request,
    Result, SharedDevice, refuse,
};
use claim::Claim;
use handshake::{Export, lost, negotiate, refused};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};
use stream::Stream;
use wire::{Command, REPLY_BYTES, RequestHead, Transmission, decode_reply, kind_of};

/// Requests that wait to be sent.
const QUEUED_MAX: usize = 1024;
/// The largest request that is worth it; servers allow up to 32 MiB.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// The largest range that is zeroed or discarded by one request: a server may have to write it.
const RANGE_BYTES_MAX: u32 = 64 << 20;
/// Zeroes for servers that cannot zero.
const ZEROES_BYTES: usize = 256 << 10;
/// How many slices one system call sends.
const SLICES_MAX: usize = 64;
/// What the receiver reads ahead: replies without data, mostly.
const AHEAD_BYTES: usize = 16 << 10;

/// How a server is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Keep other writers of this host away: see the module's head.
    pub lock: bool,
    /// How long connecting and negotiating may take, and how long the server may be silent while requests are in
    /// flight.
    pub time_limit: Duration,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions {
            read_only: false,
            lock: true,
            time_limit: Duration::from_secs(30),
        }
    }
}

/// A request in flight.
struct Flight {
    request: Request,
    /// Which parts are not answered yet.
    waiting: Vec<bool>,
    left: usize,
    error: Option<DeviceErrorKind>,
    /// A flush must follow the last part.
    flush: bool,
    part_bytes: u32,
}

#[derive(Default)]
struct Flights {
    by_id: HashMap<u32, Flight>,
    next: u32,
    /// Requests that are not completed yet, those in the receiver's hands included.
    pending: usize,
    /// Why the connection was given up.
    dead: Option<DeviceErrorKind>,
}

enum Job {
    Request(Request),
    /// The flush that makes a write durable.
    Flush(u32),
}

struct Shared {
    stream: Stream,
    export: Export,
    geometry: Geometry,
    name: String,
    time_limit: Duration,
    monitor: Monitor,
    queue: Queue<Job>,
    work: Condvar,
    flights: Mutex<Flights>,
    /// When a byte moved last, in milliseconds since `epoch`.
    moved: AtomicU64,
    epoch: Instant,
}

/// See the module's head.
pub struct NbdDevice {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
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
    /// [`DeviceErrorKind::Os`] when the server cannot be reached in time, [`DeviceErrorKind::Refused`] when it does not
    /// speak the protocol or has no such export, [`DeviceErrorKind::ReadOnly`] when the export is and
    /// shall be written, [`DeviceErrorKind::InUse`] when another process of this host writes to it.
    pub fn open(address: &NbdAddress, options: &NbdOptions) -> Result<SharedDevice> {
        Self::connect(address, options)?.begin()
    }

    /// Connects and agrees on an export, as [`NbdDevice::open`] does. Nothing is served before [`NbdDevice::begin`].
    pub(super) fn connect(address: &NbdAddress, options: &NbdOptions) -> Result<Self> {
        let claim = match options.lock {
            true => claim::claim(address, !options.read_only).map_err(failed_open)?,
            false => None,
        };
        let deadline = Instant::now() + options.time_limit;
        let stream =
            Stream::connect(&address.endpoint, deadline).map_err(|e| match e.raw_os_error() {
                Some(errno) => failed_open(DeviceErrorKind::Os(errno)),
                // The resolver's errors have no number.
                None => failed_open(refused(e.to_string())),
            })?;
        let export = negotiate(&stream, address, deadline).map_err(failed_open)?;
        let read_only = export.flags.contains(Transmission::READ_ONLY);
        if read_only && !options.read_only {
            return Err(failed_open(DeviceErrorKind::ReadOnly));
        }
        let shared = Arc::new(Shared {
            geometry: geometry(&export, options.read_only),
            stream,
            export,
            name: address.to_string(),
            time_limit: options.time_limit.max(Duration::from_millis(1)),
            monitor: Monitor::default(),
            queue: Queue::new(QUEUED_MAX),
            work: Condvar::new(),
            flights: Mutex::default(),
            moved: AtomicU64::new(0),
            epoch: Instant::now(),
        });
        // So that a blocked send is looked at before the limit is over.
        let tick = (shared.time_limit / 4).max(Duration::from_millis(1));
        shared
            .stream
            .set_write_limit(Some(tick))
            .map_err(|e| failed_open(lost(&e)))?;
        Ok(NbdDevice {
            shared,
            threads: Vec::new(),
            _claim: claim,
        })
    }

    /// Starts the threads.
    pub(super) fn begin(mut self) -> Result<SharedDevice> {
        self.start("nbd-receive", receive)?;
        self.start("nbd-send", send)?;
        Ok(Arc::new(self))
    }

    fn start(&mut self, name: &str, work: fn(&Shared)) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || work(&shared));
        match thread {
            Ok(thread) => self.threads.push(thread),
            Err(e) => {
                // The other one ends when the connection does.
                self.shared.stream.shutdown(Shutdown::Both);
                let errno = e.raw_os_error().unwrap_or(libc::EAGAIN);
                return Err(failed_open(DeviceErrorKind::Os(errno)));
            }
        }
        Ok(())
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
        shared.queue.push(Job::Request(request), |state| {
            if state.sleepers > 0 {
                shared.work.notify_one();
            }
        });
    }

    fn monitor(&self) -> Option<&Monitor> {
        Some(&self.shared.monitor)
    }

    fn name(&self) -> String {
        self.shared.name.clone()
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_one();
        let me: ThreadId = thread::current().id();
        // The last reference may be dropped by a completion, in one of these threads: they end by themselves
        // when everything is answered.
        if self.threads.iter().all(|thread| thread.thread().id() != me) {
            for thread in self.threads.drain(..) {
                let _panics_are_caught = thread.join().is_err();
            }
        }
    }
}

impl Shared {
    fn note_moved(&self) {
        let now = self.epoch.elapsed().as_millis() as u64;
        self.moved.store(now, Ordering::Relaxed);
    }

    /// How long the server may go on being silent.
    fn patience(&self) -> Duration {
        let silent = self
            .epoch
            .elapsed()
            .saturating_sub(Duration::from_millis(self.moved.load(Ordering::Relaxed)));
        self.time_limit.saturating_sub(silent)
    }

    fn has_pending(&self) -> bool {
        self.flights.lock().pending > 0
    }

    /// Gives the connection up. The receiver wakes up and fails what is in flight.
    fn give_up(&self, why: DeviceErrorKind) {
        self.flights.lock().dead.get_or_insert(why);
        self.stream.shutdown(Shutdown::Both);
    }

    /// Puts a request among those in flight, or gives it back when the connection is dead.
    fn take_off(
        &self,
        request: Request,
        parts: usize,
        flush: bool,
        part_bytes: u32,
    ) -> std::result::Result<u32, Request> {
        let mut flights = self.flights.lock();
        if flights.dead.is_some() {
            return Err(request);
        }
        if flights.pending == 0 {
            self.note_moved();
        }
        while flights.by_id.contains_key(&flights.next) {
            flights.next = flights.next.wrapping_add(1);
        }
        let id = flights.next;
        flights.next = id.wrapping_add(1);
        flights.pending += 1;
        flights.by_id.insert(
            id,
            Flight {
                request,
                waiting: vec![true; parts],
                left: parts,
                error: None,
                flush,
                part_bytes,
            },
        );
        Ok(id)
    }

    /// Completes a request that was among those in flight.
    fn land(&self, flight: Flight) {
        let Flight { request, error, .. } = flight;
        let result = match error {
            Some(kind) => Err(request.error(kind)),
            None => Ok(()),
        };
        completing(|| self.monitor.complete(request, result));
        let idle = {
            let mut flights = self.flights.lock();
            flights.pending -= 1;
            flights.pending == 0
        };
        // Closing the device waits for the last one.
        if idle && self.queue.lock().closed {
            self.work.notify_one();
        }
    }

    /// Sends a message whole.
    fn send(
        &self,
        head: &RequestHead,
        data: &[IoSlice],
    ) -> std::result::Result<(), DeviceErrorKind> {
        let head = head.encode();
        let mut parts = Vec::with_capacity(data.len() + 1);
        parts.push(io::IoSlice::new(&head));
        parts.extend(data.iter().map(|slice| io::IoSlice::new(slice)));
        let mut rest = &mut parts[..];
        while !rest.is_empty() {
            let now = rest.len().min(SLICES_MAX);
            match self.stream.send(&rest[..now]) {
                Ok(0) => return Err(DeviceErrorKind::Gone),
                Ok(n) => {
                    self.note_moved();
                    io::IoSlice::advance_slices(&mut rest, n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.patience().is_zero() {
                        return Err(DeviceErrorKind::Os(libc::ETIMEDOUT));
                    }
                }
                Err(e) => return Err(lost(&e)),
            }
        }
        Ok(())
    }

    /// Sends a request in as many parts as it takes.
    fn send_request(&self, request: Request) {
        let has = |flag| self.export.flags.contains(flag);
        let payload_max = part_max(&self.export, REQUEST_BYTES_MAX);
        let range_max = RANGE_BYTES_MAX.max(self.geometry.logical_block_bytes);
        let (command, part_bytes) = match &request.op {
            Op::Read(_) => (Command::Read, payload_max),
            Op::Write(_) => (Command::Write, payload_max),
            Op::Flush => (Command::Flush, 1),
            Op::Discard { .. } => (Command::Trim, range_max),
            Op::WriteZeroes { .. } if has(Transmission::WRITE_ZEROES) => {
                (Command::WriteZeroes, range_max)
            }
            Op::WriteZeroes { .. } => (Command::Write, payload_max.min(ZEROES_BYTES as u32)),
        };
        let mut slices = match &request.op {
            Op::Write(slices) => slices.clone(),
            _ => Vec::new(),
        };
        let zeroes = match (&request.op, command) {
            (Op::WriteZeroes { .. }, Command::Write) => Some(IoSlice::from(
                crate::AlignedBuf::zeroed(part_bytes as usize),
            )),
            _ => None,
        };
        let (start, bytes) = (request.offset.0, request.op.bytes());
        let durable = request.flags.contains(Flags::FUA)
            && matches!(command, Command::Write | Command::WriteZeroes);
        let fua = durable && has(Transmission::FUA);
        let flush = durable && !fua && has(Transmission::FLUSH);
        let parts = bytes.div_ceil(u64::from(part_bytes)).max(1) as usize;
        let id = match self.take_off(request, parts, flush, part_bytes) {
            Ok(id) => id,
            Err(request) => {
                let error = request.error(DeviceErrorKind::Gone);
                return completing(|| self.monitor.complete(request, Err(error)));
            }
        };
        let mut done = 0;
        for part in 0..parts {
            let now = (bytes - done).min(u64::from(part_bytes));
            let data = match &zeroes {
                Some(zeroes) => vec![zeroes.slice(0..now as usize)],
                None => take_front(&mut slices, now as usize),
            };
            let head = RequestHead {
                fua,
                command: command as u16,
                cookie: u64::from(id) << 32 | part as u64,
                offset: if command == Command::Flush {
                    0
                } else {
                    start + done
                },
                bytes: if command == Command::Flush {
                    0
                } else {
                    now as u32
                },
            };
            if let Err(why) = self.send(&head, &data) {
                return self.give_up(why);
            }
            done += now;
        }
    }

    fn send_flush(&self, id: u32) {
        let head = RequestHead {
            fua: false,
            command: Command::Flush as u16,
            cookie: u64::from(id) << 32,
            offset: 0,
            bytes: 0,
        };
        if let Err(why) = self.send(&head, &[]) {
            self.give_up(why);
        }
    }

    /// Takes in one reply.
    fn take_reply(&self, from: &mut impl Read) -> std::result::Result<(), DeviceErrorKind> {
        let mut head = [0; REPLY_BYTES];
        from.read_exact(&mut head).map_err(|e| lost(&e))?;
        let Some((cookie, error)) = decode_reply(&head) else {
            return Err(refused(
                "the server breaks the protocol: no reply where one is due",
            ));
        };
        let (id, part) = ((cookie >> 32) as u32, cookie as u32 as usize);
        // Out of the table: its buffer is filled without the lock.
        let taken = {
            let mut flights = self.flights.lock();
            let known = flights
                .by_id
                .get(&id)
                .is_some_and(|flight| flight.waiting.get(part) == Some(&true));
            if known {
                flights.by_id.remove(&id)
            } else {
                None
            }
        };
        let Some(mut flight) = taken else {
            return Err(refused(
                "the server breaks the protocol: a reply without a request",
            ));
        };
        flight.waiting[part] = false;
        flight.left -= 1;
        if error != 0 {
            flight.error.get_or_insert(kind_of(error));
        } else if let Op::Read(buf) = &mut flight.request.op {
            let start = part * flight.part_bytes as usize;
            let end = buf.len().min(start + flight.part_bytes as usize);
            if let Err(e) = from.read_exact(&mut buf[start..end]) {
                let why = lost(&e);
                flight.error = Some(self.reason(&why));
                self.land(flight);
                return Err(why);
            }
        }
        if flight.left == 0 && flight.flush && flight.error.is_none() {
            flight.flush = false;
            (flight.waiting, flight.left) = (vec![true], 1);
            self.flights.lock().by_id.insert(id, flight);
            // As in a completion: this thread must never wait for room.
            completing(|| {
                self.queue.push(Job::Flush(id), |state| {
                    if state.sleepers > 0 {
                        self.work.notify_one();
                    }
                });
            });
        } else if flight.left == 0 {
            self.land(flight);
        } else {
            self.flights.lock().by_id.insert(id, flight);
        }
        Ok(())
    }

    /// Why the connection is dead: the reason given first counts.
    fn reason(&self, seen: &DeviceErrorKind) -> DeviceErrorKind {
        let flights = self.flights.lock();
        flights.dead.clone().unwrap_or_else(|| seen.clone())
    }
}

/// Takes the first `bytes` off a list of slices.
fn take_front(slices: &mut Vec<IoSlice>, bytes: usize) -> Vec<IoSlice> {
    let mut left = bytes;
    let mut front = Vec::new();
    let mut whole = 0;
    while left > 0 && whole < slices.len() {
        let len = slices[whole].len();
        if len <= left {
            front.push(slices[whole].clone());
            (left, whole) = (left - len, whole + 1);
        } else {
            front.push(slices[whole].slice(0..left));
            slices[whole] = slices[whole].slice(left..len);
            left = 0;
        }
    }
    slices.drain(..whole);
    front
}

/// The sender: also the one that looks at the clock.
fn send(shared: &Shared) {
    loop {
        let job = {
            let mut state = shared.queue.lock();
            loop {
                if let Some(job) = state.items.pop_front() {
                    shared.queue.taken(&state);
                    break job;
                }
                let pending = shared.has_pending();
                if state.closed && !pending {
                    drop(state);
                    return goodbye(shared);
                }
                let patience = shared.patience();
                if pending && patience.is_zero() {
                    drop(state);
                    shared.give_up(DeviceErrorKind::Os(libc::ETIMEDOUT));
                    state = shared.queue.lock();
                    // Until the receiver has seen it.
                    shared.note_moved();
                    continue;
                }
                state.sleepers += 1;
                if pending {
                    shared.work.wait_for(&mut state, patience);
                } else {
                    shared.work.wait(&mut state);
                }
                state.sleepers -= 1;
            }
        };
        match job {
            Job::Request(request) => shared.send_request(request),
            Job::Flush(id) => shared.send_flush(id),
        }
    }
}

/// Everything is answered: ends the connection in the way the server wants it.
fn goodbye(shared: &Shared) {
    let head = RequestHead {
        fua: false,
        command: Command::Disconnect as u16,
        cookie: 0,
        offset: 0,
        bytes: 0,
    };
    // Without hearing it the server sees the connection close.
    let _unheard = shared.send(&head, &[]);
    shared.give_up(DeviceErrorKind::Gone);
}

/// Notes when bytes come in.
struct Watched<'a>(&'a Shared);

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = (&self.0.stream).read(buf)?;
        self.0.note_moved();
        Ok(n)
    }
}

/// The receiver; ends with the connection.
fn receive(shared: &Shared) {
    let mut from = BufReader::with_capacity(AHEAD_BYTES, Watched(shared));
    let why = loop {
        if let Err(why) = shared.take_reply(&mut from) {
            break why;
        }
    };
    shared.give_up(why.clone());
    let why = shared.reason(&why);
    let rest = std::mem::take(&mut shared.flights.lock().by_id);
    for (_, mut flight) in rest {
        flight.error.get_or_insert_with(|| why.clone());
        shared.land(flight);
    }
    // The sender may wait for them, or for a reason to look again.
    let _state = shared.queue.lock();
    shared.work.notify_one();
}
