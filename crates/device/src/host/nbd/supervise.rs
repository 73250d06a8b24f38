//! The time between sessions: a lost connection is replaced, and writes that the server may have lost are sent
//! again.
//!
//! # Order
//! 1. All connections of the session are closed. Requests without an answer go back to the head of the queue, in their order.
//! 2. After a pause, new connections are made, until it works or the time is over. The export must be able to do what it could.
//! 3. Writes that were answered since the last flush are sent again ([`super::log`]) and answered before any other request is
//!    sent.
//! 4. Requests go on.
//!
//! Callers see none of this but the time: their requests are not complete meanwhile. When the time is over, they fail with the reason, and later ones
//! with [`DeviceErrorKind::Gone`].
//!
//! # What is not repeated
//! A write that a server leaves without an answer while the connection is there may still be done later, after newer ones. So a server that is silent during
//! a write is waited for, and given up; it is not asked again on another connection. A server that breaks the protocol is given up at once.

use super::handshake::{Export, negotiate};
use super::session::{Session, receive, send};
use super::transport::Wire;
use super::wire::{Transmission, lost, refused};
use super::{CONNECTION_IS_OURS, Job, Shared, Work};
use crate::{DevOffset, DeviceErrorKind, Op, Request};
use std::collections::VecDeque;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// The first pause, and the longest. The first one lets a server that is still there finish writes of the lost connection before they are repeated.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What failed before any agreement: the errors of the system keep their number.
pub(super) fn unreachable(e: &io::Error) -> DeviceErrorKind {
    match e.raw_os_error() {
        Some(errno) => DeviceErrorKind::Os(errno),
        // The resolver's errors have no number.
        None => refused(e.to_string()),
    }
}

impl Shared {
    /// One connection, and what the export can do.
    pub(super) fn dial(&self, deadline: Instant) -> Result<(Export, Wire), DeviceErrorKind> {
        let stream = self
            .connector
            .connect(&self.address.endpoint, deadline)
            .map_err(|e| unreachable(&e))?;
        let (export, wire) = negotiate(stream, &self.address, self.tls.as_ref(), deadline)?;
        self.prepare(&wire)?;
        Ok((export, wire))
    }

    /// So that a blocked send is looked at before the limit is over.
    pub(super) fn prepare(&self, wire: &Wire) -> Result<(), DeviceErrorKind> {
        let tick = (self.options.time_limit / 4).max(Duration::from_millis(1));
        let stream = wire.stream();
        stream.set_write_limit(Some(tick)).map_err(|e| lost(&e))
    }

    /// The connections beside the first one.
    pub(super) fn dial_more(
        &self,
        first: (Export, Wire),
        deadline: Instant,
    ) -> Result<Vec<Wire>, DeviceErrorKind> {
        let several = first.0.flags.contains(Transmission::CAN_MULTI_CONN);
        let count = match several {
            true => self.options.connections.max(1),
            false => 1,
        };
        let mut wires = vec![first.1];
        while wires.len() < count {
            let (export, wire) = self.dial(deadline)?;
            if let Some(why) = first.0.differs(&export) {
                return Err(refused(format!("the server offers another export: {why}")));
            }
            wires.push(wire);
        }
        Ok(wires)
    }

    /// What must be written again on new connections.
    fn repeated(&self) -> VecDeque<Request> {
        let plan = self.log.plan().into_iter();
        plan.map(|(offset, bytes, slices)| {
            let op = match slices {
                Some(slices) => Op::Write(slices),
                None => Op::WriteZeroes { bytes },
            };
            Request::new(op, DevOffset(offset), |_| {})
        })
        .collect()
    }

    /// Waits for the pause to be over. Returns whether the device must be closed with no request waiting
    /// for an answer.
    fn pause(&self, until: Instant) -> bool {
        let mut state = self.queue.lock();
        loop {
            if state.closed && self.is_idle() {
                return true;
            }
            if self.work.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
    }

    /// New connections; `None` when no request needs them any more.
    fn dial_again(
        &self,
        lost_at: Instant,
        mut why: DeviceErrorKind,
    ) -> Result<Option<Vec<Wire>>, DeviceErrorKind> {
        let mut since = lost_at;
        let mut pause = PAUSE_MIN;
        loop {
            if self.pause(Instant::now() + pause) {
                return Ok(None);
            }
            pause = (pause * 2).min(PAUSE_MAX);
            // Time counts while a request waits.
            if self.is_idle() {
                since = Instant::now();
            }
            let left = self.options.reconnect.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(why);
            }
            let deadline = Instant::now() + left.min(self.options.time_limit);
            let dialled =
                self.dial(deadline)
                    .and_then(|(export, wire)| match self.export.differs(&export) {
                        Some(why) => Err(refused(format!("another export came back: {why}"))),
                        None => self.dial_more((export, wire), deadline),
                    });
            match dialled {
                Ok(wires) => return Ok(Some(wires)),
                Err(kind) => why = kind,
            }
        }
    }

    /// Whether a session that ended like this can be followed by another one.
    fn can_go_on(&self, why: &DeviceErrorKind) -> bool {
        !self.options.reconnect.is_zero() && !matches!(why, DeviceErrorKind::Refused { .. })
    }
}

/// The device's own thread: runs sessions, one after another.
pub(super) fn supervise(shared: &Shared, first: Vec<Wire>) {
    CONNECTION_IS_OURS.set(shared.id());
    let mut wires = first;
    // Since when nothing was completed.
    let mut lost_at: Option<Instant> = None;
    loop {
        let completed = shared.completed();
        let session = Session::new(wires, shared.repeated());
        thread::scope(|scope| {
            for link in &session.links {
                for (name, work) in [("nbd-receive", receive as fn(_, _, _)), ("nbd-send", send)] {
                    let thread = thread::Builder::new().name(name.into());
                    let session = &session;
                    let started = thread.spawn_scoped(scope, move || {
                        CONNECTION_IS_OURS.set(shared.id());
                        work(shared, session, link);
                    });
                    if let Err(e) = started {
                        let errno = e.raw_os_error().unwrap_or(libc::EAGAIN);
                        session.end(shared, DeviceErrorKind::Os(errno));
                    }
                }
            }
        });
        let why = session.why();
        let jobs = session.take_back();
        drop(session);
        {
            let mut state = shared.queue.lock();
            for job in jobs.into_iter().rev() {
                state.items.push_front(job);
            }
            if state.closed && shared.is_idle() {
                return;
            }
        }
        if !shared.can_go_on(&why) {
            return shared.die(why);
        }
        if shared.completed() != completed {
            lost_at = None;
        }
        let since = *lost_at.get_or_insert_with(Instant::now);
        match shared.dial_again(since, why) {
            Ok(Some(again)) => wires = again,
            Ok(None) => return,
            Err(why) => return shared.die(why),
        }
    }
}

impl Job {
    /// Whether a server that does it changes the export.
    pub(super) fn writes(&self) -> bool {
        match self {
            Job::Send(Work::Caller(request) | Work::Replay(request)) => {
                !matches!(request.op, Op::Read(_) | Op::Flush)
            }
            Job::Send(Work::Ask(_) | Work::Flush) | Job::Harden(_) => false,
        }
    }

    /// Whether it makes earlier writes durable.
    pub(super) fn flushes(&self) -> bool {
        match self {
            Job::Send(Work::Caller(request)) => matches!(request.op, Op::Flush),
            Job::Harden(_) | Job::Send(Work::Flush) => true,
            Job::Send(_) => false,
        }
    }
}
