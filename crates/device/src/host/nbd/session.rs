//! The connections that are up together: their senders and receivers, and the requests on them.
//!
//! Each connection (a *link*) has two threads. A *sender* takes jobs off the device's queue and writes requests to the socket; a *receiver*
//! reads replies, in the order in which the server sends them, and completes. The receiver never sends: a server that waits for its
//! replies to be read before it reads on would never read on.
//!
//! A request larger than the server takes is sent in parts and completed when all are answered.
//!
//! A session ends with the first of its connections. Whatever the others would still bring is not waited for: an answer
//! that came from a server that is gone must not count after its writes were repeated on the next one.
//!
//! # Locks
//! The queue's, then the replay's, then that of a link's flights. None is held during I/O or a completion.

use super::transport::Wire;
use super::wire::{
    COMMAND_FUA, COMMAND_ONE, Command, REPLY_BYTES, ReplyHead, RequestHead, Transmission, chunk,
    decode_reply, kind_of, lost, refused, take,
};
use super::{Job, RANGE_BYTES_MAX, REQUEST_BYTES_MAX, Shared, Work, ZEROES_BYTES, part_max};
use crate::host::queue::State;
use crate::{AlignedBuf, DeviceErrorKind, Flags, IoSlice, Op, Request};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How many slices one system call sends.
const SLICES_MAX: usize = 64;
/// What the receiver reads ahead: replies without data, mostly.
const AHEAD_BYTES: usize = 16 << 10;
/// The longest chunk that carries no data of the export.
const CHUNK_BYTES_MAX: u32 = 64 << 10;

/// A part of a request.
#[derive(Clone, Copy, Default)]
struct Part {
    answered: bool,
    /// Bytes of a read that came in chunks so far.
    covered: u32,
}

/// A request on its way.
struct Flight {
    job: Job,
    parts: Vec<Part>,
    left: usize,
    error: Option<DeviceErrorKind>,
    part_bytes: u32,
    /// What a flush covers.
    mark: u64,
    /// The order in which requests were sent.
    order: u64,
}

#[derive(Default)]
struct Flights {
    by_id: HashMap<u32, Flight>,
    next: u32,
}

/// One connection.
pub(super) struct Link {
    wire: Wire,
    flights: Mutex<Flights>,
    /// Requests on it, and how many of them write; those in the receiver's hands included.
    pending: AtomicUsize,
    writing: AtomicUsize,
    /// When a byte moved last, in milliseconds since `epoch`.
    moved: AtomicU64,
    epoch: Instant,
}

/// What must be written again before anything else happens.
#[derive(Default)]
struct Replay {
    todo: VecDeque<Request>,
    left: usize,
}

/// See the module's head.
pub(super) struct Session {
    pub(super) links: Vec<Link>,
    replay: Mutex<Replay>,
    replaying: AtomicBool,
    over: AtomicBool,
    leaving: AtomicBool,
    why: Mutex<Option<DeviceErrorKind>>,
    order: AtomicU64,
}

impl Session {
    pub(super) fn new(wires: Vec<Wire>, replay: VecDeque<Request>) -> Self {
        let link = |wire| Link {
            wire,
            flights: Mutex::default(),
            pending: AtomicUsize::new(0),
            writing: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            epoch: Instant::now(),
        };
        let left = replay.len();
        Session {
            links: wires.into_iter().map(link).collect(),
            replay: Mutex::new(Replay { todo: replay, left }),
            replaying: AtomicBool::new(left > 0),
            over: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            why: Mutex::default(),
            order: AtomicU64::new(0),
        }
    }

    /// Why it ended.
    pub(super) fn why(&self) -> DeviceErrorKind {
        self.why.lock().clone().unwrap_or(DeviceErrorKind::Gone)
    }

    /// Ends all connections. The first reason counts.
    pub(super) fn end(&self, shared: &Shared, why: DeviceErrorKind) {
        self.why.lock().get_or_insert(why);
        self.over.store(true, Ordering::SeqCst);
        for link in &self.links {
            link.wire.shutdown();
        }
        let _state = shared.queue.lock();
        shared.work.notify_all();
    }

    /// The jobs to be done again, in the order in which they were sent.
    pub(super) fn take_back(&self) -> Vec<Job> {
        let mut flights: Vec<Flight> = Vec::new();
        for link in &self.links {
            flights.extend(link.flights.lock().by_id.drain().map(|(_, flight)| flight));
        }
        flights.sort_by_key(|flight| flight.order);
        let jobs = flights.into_iter().map(|flight| flight.job);
        jobs.filter(|job| !matches!(job, Job::Send(Work::Replay(_))))
            .collect()
    }

    /// The next step of a sender, if there is one.
    fn next(&self, shared: &Shared, state: &mut State<Job>) -> Option<Job> {
        if self.replaying.load(Ordering::Acquire) {
            let request = self.replay.lock().todo.pop_front()?;
            return Some(Job::Send(Work::Replay(request)));
        }
        let at = match shared.log.is_full() {
            false => 0,
            // The flush that makes room is among the others.
            true => state.items.iter().position(|job| !job.writes())?,
        };
        let job = state.items.remove(at)?;
        shared.queue.taken(state);
        Some(job)
    }

    /// A write was repeated, or could not be.
    fn replayed(&self, shared: &Shared, error: Option<DeviceErrorKind>) {
        if let Some(kind) = error {
            shared.log.fail(kind);
        }
        let mut replay = self.replay.lock();
        replay.left -= 1;
        let done = replay.left == 0;
        drop(replay);
        if done {
            self.replaying.store(false, Ordering::Release);
            let _state = shared.queue.lock();
            shared.work.notify_all();
        }
    }
}

impl Link {
    fn note_moved(&self) {
        let now = self.epoch.elapsed().as_millis() as u64;
        self.moved.store(now, Ordering::Relaxed);
    }

    /// How long the server may go on being silent; `None` while nothing is asked of it.
    fn patience(&self, shared: &Shared) -> Option<Duration> {
        if self.pending.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let limit = match self.writing.load(Ordering::Relaxed) {
            0 => shared.options.time_limit,
            // A write that is stuck in a server may be done at any time, also after it was repeated. So it is waited for.
            _ => shared.options.time_limit.max(shared.options.reconnect),
        };
        let moved = Duration::from_millis(self.moved.load(Ordering::Relaxed));
        let silent = self.epoch.elapsed().saturating_sub(moved);
        Some(limit.saturating_sub(silent))
    }

    /// What the server's silence means.
    fn silence(&self, shared: &Shared) -> DeviceErrorKind {
        match self.writing.load(Ordering::Relaxed) {
            writing if writing == 0 || shared.options.reconnect.is_zero() => {
                DeviceErrorKind::Os(libc::ETIMEDOUT)
            }
            _ => DeviceErrorKind::Refused {
                why: "the server does not answer a write, and may still do it".into(),
            },
        }
    }

    /// Puts a request among those on their way.
    fn take_off(
        &self,
        shared: &Shared,
        session: &Session,
        job: Job,
        parts: usize,
        part_bytes: u32,
    ) -> u32 {
        let mark = match job.flushes() {
            true => shared.log.mark(),
            false => 0,
        };
        if self.pending.fetch_add(1, Ordering::Relaxed) == 0 {
            self.note_moved();
        }
        self.writing
            .fetch_add(usize::from(job.writes()), Ordering::Relaxed);
        let mut flights = self.flights.lock();
        while flights.by_id.contains_key(&flights.next) {
            flights.next = flights.next.wrapping_add(1);
        }
        let id = flights.next;
        flights.next = id.wrapping_add(1);
        let flight = Flight {
            job,
            parts: vec![Part::default(); parts],
            left: parts,
            error: None,
            part_bytes,
            mark,
            order: session.order.fetch_add(1, Ordering::Relaxed),
        };
        flights.by_id.insert(id, flight);
        id
    }

    /// Sends a message whole.
    fn send(
        &self,
        shared: &Shared,
        head: &RequestHead,
        data: &[IoSlice],
    ) -> Result<(), DeviceErrorKind> {
        let head = head.encode();
        let mut parts = Vec::with_capacity(data.len() + 1);
        parts.push(io::IoSlice::new(&head));
        parts.extend(data.iter().map(|slice| io::IoSlice::new(slice)));
        let mut rest = &mut parts[..];
        loop {
            let now = rest.len().min(SLICES_MAX);
            let step = match now {
                0 => self.wire.push().map(|()| 0),
                _ => self.wire.send(&rest[..now]),
            };
            match step {
                Ok(0) if now == 0 => return Ok(()),
                Ok(0) => return Err(DeviceErrorKind::Gone),
                Ok(n) => {
                    self.note_moved();
                    io::IoSlice::advance_slices(&mut rest, n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.patience(shared).is_some_and(|left| left.is_zero()) {
                        return Err(self.silence(shared));
                    }
                }
                Err(e) => return Err(lost(&e)),
            }
        }
    }

    /// Sends a job in as many parts as it takes.
    fn transmit(
        &self,
        shared: &Shared,
        session: &Session,
        job: Job,
    ) -> Result<(), DeviceErrorKind> {
        let export = &shared.export;
        let has = |flag| export.flags.contains(flag);
        let payload_max = part_max(export, REQUEST_BYTES_MAX);
        let range_max = RANGE_BYTES_MAX.max(shared.geometry.logical_block_bytes);
        let (mut flags, mut slices, mut zeroes) = (0, Vec::new(), None);
        let (command, part_bytes, start, bytes) = match &job {
            Job::Harden(_) | Job::Send(Work::Flush) => (Command::Flush, 1, 0, 0),
            Job::Send(Work::Ask(ask)) => {
                flags = COMMAND_ONE;
                (
                    Command::BlockStatus,
                    ask.bytes,
                    ask.offset,
                    u64::from(ask.bytes),
                )
            }
            Job::Send(Work::Caller(request) | Work::Replay(request)) => {
                let (command, part_bytes) = match &request.op {
                    Op::Read(_) => (Command::Read, payload_max),
                    Op::Write(list) => {
                        slices.clone_from(list);
                        (Command::Write, payload_max)
                    }
                    Op::Flush => (Command::Flush, 1),
                    Op::Discard { .. } => (Command::Trim, range_max),
                    Op::WriteZeroes { .. } if has(Transmission::WRITE_ZEROES) => {
                        (Command::WriteZeroes, range_max)
                    }
                    Op::WriteZeroes { .. } => {
                        let bytes = payload_max.min(ZEROES_BYTES as u32);
                        let all = AlignedBuf::zeroed(bytes as usize);
                        zeroes = Some(IoSlice::from(all));
                        (Command::Write, bytes)
                    }
                };
                if request.flags.contains(Flags::FUA)
                    && matches!(command, Command::Write | Command::WriteZeroes)
                    && has(Transmission::FUA)
                {
                    flags = COMMAND_FUA;
                }
                (command, part_bytes, request.offset.0, request.op.bytes())
            }
        };
        let parts = bytes.div_ceil(u64::from(part_bytes)).max(1) as usize;
        let id = self.take_off(shared, session, job, parts, part_bytes);
        let mut done = 0;
        for part in 0..parts {
            let now = (bytes - done).min(u64::from(part_bytes));
            let data = match &zeroes {
                Some(zeroes) => vec![zeroes.slice(0..now as usize)],
                None => take_front(&mut slices, now as usize),
            };
            let head = RequestHead {
                flags,
                command: command as u16,
                cookie: u64::from(id) << 32 | part as u64,
                offset: start + done,
                bytes: now as u32,
            };
            self.send(shared, &head, &data)?;
            done += now;
        }
        Ok(())
    }

    /// Everything is answered: ends the connection in the way the server wants it.
    fn goodbye(&self, shared: &Shared) {
        let head = RequestHead {
            flags: 0,
            command: Command::Disconnect as u16,
            cookie: 0,
            offset: 0,
            bytes: 0,
        };
        // Without hearing it the server sees the connection close.
        let _unheard = self.send(shared, &head, &[]);
    }

    /// Takes in one reply, or a chunk of one.
    fn take_reply(
        &self,
        shared: &Shared,
        session: &Session,
        from: &mut impl Read,
    ) -> Result<(), DeviceErrorKind> {
        let mut head = [0; REPLY_BYTES];
        from.read_exact(&mut head).map_err(|e| lost(&e))?;
        let reply = decode_reply(&head)
            .filter(|reply| shared.export.structured || matches!(reply, ReplyHead::Simple { .. }))
            .ok_or_else(|| broken("no reply where one is due"))?;
        let cookie = match reply {
            ReplyHead::Simple { cookie, .. } | ReplyHead::Chunk { cookie, .. } => cookie,
        };
        let (id, at) = ((cookie >> 32) as u32, cookie as u32 as usize);
        // Out of the table: its buffer is filled without the lock.
        let taken = {
            let mut flights = self.flights.lock();
            let due = |flight: &Flight| flight.parts.get(at).is_some_and(|part| !part.answered);
            match flights.by_id.get(&id).is_some_and(due) {
                true => flights.by_id.remove(&id),
                false => None,
            }
        };
        let Some(mut flight) = taken else {
            return Err(broken("a reply without a request"));
        };
        let result = flight.take_in(shared, at, reply, from);
        match result {
            Ok(true) => {
                flight.parts[at].answered = true;
                flight.left -= 1;
            }
            Ok(false) => {}
            Err(why) => {
                self.flights.lock().by_id.insert(id, flight);
                return Err(why);
            }
        }
        match flight.left {
            0 => self.land(shared, session, flight),
            _ => {
                self.flights.lock().by_id.insert(id, flight);
            }
        }
        Ok(())
    }

    /// A request whose parts are all answered.
    fn land(&self, shared: &Shared, session: &Session, flight: Flight) {
        let Flight {
            job, error, mark, ..
        } = flight;
        self.writing
            .fetch_sub(usize::from(job.writes()), Ordering::Relaxed);
        self.pending.fetch_sub(1, Ordering::Relaxed);
        let flushes = job.flushes();
        let flushed = |error: Option<DeviceErrorKind>| {
            let kept = flushes.then(|| shared.log.flushed(mark).err()).flatten();
            error.or(kept)
        };
        match job {
            Job::Send(Work::Replay(_)) => session.replayed(shared, error),
            Job::Send(Work::Caller(request)) => {
                let mut own_flush = false;
                if error.is_none() {
                    let fua = request.flags.contains(Flags::FUA);
                    let durable = fua && shared.export.flags.contains(Transmission::FUA);
                    own_flush = shared.log.note(&request, durable);
                    let writes = matches!(request.op, Op::Write(_) | Op::WriteZeroes { .. });
                    if fua
                        && !durable
                        && writes
                        && shared.export.flags.contains(Transmission::FLUSH)
                    {
                        shared.push(Job::Harden(request));
                        return shared.flush_log(own_flush);
                    }
                }
                shared.finish(request, flushed(error));
                shared.flush_log(own_flush);
            }
            Job::Send(Work::Ask(ask)) => {
                ask.answer(error.map_or(Ok(()), Err));
                shared.finished();
            }
            Job::Send(Work::Flush) => {
                if let Some(kind) = flushed(error) {
                    shared.log.fail(kind);
                }
                shared.finished();
                // Writes may have waited for it.
                let _state = shared.queue.lock();
                shared.work.notify_all();
            }
            Job::Harden(request) => shared.finish(request, flushed(error)),
        }
    }
}

fn broken(how: &str) -> DeviceErrorKind {
    refused(format!("the server breaks the protocol: {how}"))
}

fn number<const N: usize>(from: &mut impl Read) -> Result<u64, DeviceErrorKind> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map_err(|e| lost(&e))?;
    Ok(take::<N>(&mut &bytes[..]))
}

impl Flight {
    /// Takes in what a reply carries. Whether it was the last of its part.
    fn take_in(
        &mut self,
        shared: &Shared,
        at: usize,
        reply: ReplyHead,
        from: &mut impl Read,
    ) -> Result<bool, DeviceErrorKind> {
        let part_bytes = self.part_bytes;
        let read = match &mut self.job {
            Job::Send(Work::Caller(Request {
                op: Op::Read(buf),
                offset,
                ..
            })) => {
                let start = at * part_bytes as usize;
                let end = buf.len().min(start + part_bytes as usize);
                Some((offset.0 + start as u64, &mut buf[start..end]))
            }
            _ => None,
        };
        let (flags, kind) = match reply {
            ReplyHead::Simple { error: 0, .. } => {
                match read {
                    // A server that agreed on chunks sends the data of reads in them.
                    Some(_) if shared.export.structured => {
                        return Err(broken("a read without chunks"));
                    }
                    Some((_, buf)) => from.read_exact(buf).map_err(|e| lost(&e))?,
                    None => {}
                }
                return Ok(true);
            }
            ReplyHead::Simple { error, .. } => {
                self.error.get_or_insert(kind_of(error));
                return Ok(true);
            }
            ReplyHead::Chunk { flags, kind, .. } => (flags, kind),
        };
        let bytes = number::<4>(from)? as u32;
        let done = flags & chunk::DONE != 0;
        match (kind, read) {
            (chunk::NONE, _) if bytes == 0 && done => {}
            (chunk::DATA | chunk::HOLE, Some((start, buf))) if bytes >= 8 => {
                let offset = number::<8>(from)?;
                let len = match kind {
                    chunk::DATA => bytes - 8,
                    _ if bytes == 12 => number::<4>(from)? as u32,
                    _ => return Err(broken("a hole without a length")),
                };
                let begin = offset.checked_sub(start).unwrap_or(u64::MAX);
                let end = begin.saturating_add(u64::from(len));
                let covered = self.parts[at].covered.checked_add(len);
                let (Some(covered), true) = (covered, len > 0 && end <= buf.len() as u64) else {
                    return Err(broken("a chunk outside of what was asked for"));
                };
                let buf = &mut buf[begin as usize..end as usize];
                match kind {
                    chunk::DATA => from.read_exact(buf).map_err(|e| lost(&e))?,
                    _ => buf.fill(0),
                }
                self.parts[at].covered = covered;
            }
            (chunk::BLOCK_STATUS, None) if (12..=CHUNK_BYTES_MAX).contains(&bytes) => {
                let mut data = vec![0; bytes as usize];
                from.read_exact(&mut data).map_err(|e| lost(&e))?;
                let mut rest = &data[..];
                let context = take::<4>(&mut rest) as u32;
                let extent = (take::<4>(&mut rest) as u32, take::<4>(&mut rest) as u32);
                if let (Job::Send(Work::Ask(ask)), true) =
                    (&self.job, Some(context) == shared.export.allocation)
                {
                    ask.note(extent);
                }
            }
            (kind, _) if kind & chunk::ERROR != 0 && (6..=CHUNK_BYTES_MAX).contains(&bytes) => {
                let mut data = vec![0; bytes as usize];
                from.read_exact(&mut data).map_err(|e| lost(&e))?;
                let error = take::<4>(&mut &data[..]) as u32;
                self.error.get_or_insert(kind_of(error));
            }
            _ => return Err(broken("a chunk that does not belong to the request")),
        }
        if !done {
            return Ok(false);
        }
        // Each byte once: chunks do not overlap, by the protocol, and fewer bytes would leave old ones in the buffer.
        if let Job::Send(Work::Caller(Request {
            op: Op::Read(buf), ..
        })) = &self.job
            && self.error.is_none()
        {
            let whole = (buf.len() - at * part_bytes as usize).min(part_bytes as usize);
            if self.parts[at].covered as usize != whole {
                return Err(broken("a read with missing bytes"));
            }
        }
        Ok(true)
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

/// A sender: also the one that looks at the clock.
pub(super) fn send(shared: &Shared, session: &Session, link: &Link) {
    loop {
        let job = {
            let mut state = shared.queue.lock();
            loop {
                if session.over.load(Ordering::SeqCst) {
                    return;
                }
                if let Some(job) = session.next(shared, &mut state) {
                    break job;
                }
                if state.closed && shared.is_idle() {
                    drop(state);
                    // One sender says it for all.
                    if !session.leaving.swap(true, Ordering::SeqCst) {
                        for link in &session.links {
                            link.goodbye(shared);
                        }
                        session.end(shared, DeviceErrorKind::Gone);
                    }
                    return;
                }
                let patience = link.patience(shared);
                if patience.is_some_and(|left| left.is_zero()) {
                    drop(state);
                    return session.end(shared, link.silence(shared));
                }
                state.sleepers += 1;
                match patience {
                    Some(patience) => {
                        shared.work.wait_for(&mut state, patience);
                    }
                    None => shared.work.wait(&mut state),
                }
                state.sleepers -= 1;
            }
        };
        if let Err(why) = link.transmit(shared, session, job) {
            return session.end(shared, why);
        }
    }
}

/// Notes when bytes come in.
struct Watched<'a>(&'a Link);

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = (&self.0.wire).read(buf)?;
        self.0.note_moved();
        Ok(n)
    }
}

/// A receiver; ends with the connection.
pub(super) fn receive(shared: &Shared, session: &Session, link: &Link) {
    let mut from = BufReader::with_capacity(AHEAD_BYTES, Watched(link));
    let why = loop {
        if let Err(why) = link.take_reply(shared, session, &mut from) {
            break why;
        }
        if session.over.load(Ordering::SeqCst) {
            break DeviceErrorKind::Gone;
        }
    };
    // A server closes each connection when it has heard the goodbye on it. The sender that says it on all of them ends the session.
    if !session.leaving.load(Ordering::SeqCst) {
        session.end(shared, why);
    }
}
