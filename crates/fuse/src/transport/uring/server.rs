//! A thread that serves the queues of one CPU.
//!
//! On two CPUs it has a part of the other CPU's entries, too (`scheduling::helper_entries`): a client with many requests in flight is then served by
//! both threads. The kernel takes the entry that was given back last, so each thread gets as many requests as it can serve.
//!
//! Its ring carries the commands of all its entries. It takes requests as they complete, answers quick ones at
//! once, hands others to the device or to the pool, and gives answered entries back. All commands of a round
//! and the wait for the next one are one system call. Only this thread touches the ring, so the kernel does
//! its part of the work (copying requests in and replies out) in this thread, too, and only when it asks.
//!
//! # The device's I/O in the same ring
//! Direct reads and writes that need not wait are put into this ring, too ([`OwnRing`]). They go to the device
//! with the same system call that gives back replies and waits. When they complete, this thread commits them ([`Carrier`], which never
//! waits for direct I/O) and writes their replies. No other thread takes part. In return **this thread waits for nothing while the
//! device's I/O is in its ring**: the holder of a lock that it would wait for may be waiting for that I/O, as truncation does. All other requests go to the pool then, of which
//! a thread always exists.
//!
//! # The end
//! The kernel completes every command with an error when the connection ends. The thread leaves when no command is
//! left in the kernel, the ring has no device request, and every request in progress was given back. If commands do not come back in time
//! ([`LEAVE_MAX`]), ring and memory are leaked, not freed, because the kernel may still write to them. A command that
//! fails for another reason, or a panic of this module's own, would leave a client waiting forever, so
//! the connection is aborted.

use super::abi;
use super::memory::{KEPT_BYTES, Memory, Warmth};
use super::ticket::{Answered, Shared, Ticket};
use super::{Plan, QueueConnection};
use crate::protocol::Request;
use crate::scheduling::QueuePolicy;
use crate::scheduling::cpus::Share;
use crate::scheduling::limits::{POLL_MAX, POLL_SPINS};
use blockwright_device::OwnRing;
use blockwright_vfs::Carrier;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// `user_data` of the eventfd's poll.
const WAKE: u64 = u64::MAX;
/// In `user_data`: an entry of the device's.
const DEVICE: u64 = 1 << 62;
/// How long the kernel may take to complete commands of an ended connection.
const LEAVE_MAX: Duration = Duration::from_secs(10);
/// How often a leaving thread looks whether it can.
const LEAVE_TICK: Duration = Duration::from_millis(50);
/// `IORING_ENTER_GETEVENTS`: completions that are due are to be posted.
const ENTER_GETEVENTS: u32 = 1;

/// Resources that a thread makes before the connection begins: everything that can fail.
pub(super) struct Server {
    ring: Ring,
    /// The device's I/O in it. None only where that is compared.
    device: Option<OwnRing>,
    /// Finishes the writes that complete in this thread.
    carrier: Arc<Carrier>,
    shared: Arc<Shared>,
    /// The CPU whose clients this thread serves first.
    cpu: u16,
    /// The queue of every entry.
    queues: Vec<u16>,
    warmth: Warmth,
    /// Which entries' commands the kernel has, or gets with what is queued.
    with_kernel: Box<[bool]>,
    /// The part of the payload that requests needed lately, and the bytes charged to the volume for this queue's requests
    /// in progress.
    lately_bytes: usize,
    told_bytes: u64,
    /// Commands that the kernel has.
    in_kernel: usize,
    /// Requests in progress.
    in_work: usize,
    /// Completions not yet looked at: `user_data`, result, flags.
    arrived: Vec<(u64, i32, u32)>,
    /// Completions of the device's entries: `user_data` as the device gave it, result.
    completed: Vec<(u64, i32)>,
    /// When the end of the connection was noticed.
    ended_at: Option<Instant>,
    /// Decides where each request is served, and on which CPU this thread runs.
    policy: QueuePolicy,
    /// How many of these threads poll.
    polling: Arc<AtomicUsize>,
}

/// The thread's life: makes a server, reports to `news`, and serves once it is given a connection.
pub(super) fn run(
    share: &Share,
    plan: &Plan,
    news: &SyncSender<io::Result<Arc<Shared>>>,
    go: &Receiver<QueueConnection>,
    registered: &SyncSender<io::Result<()>>,
) {
    let policy = QueuePolicy::on_cpu(share.cpu);
    let mut server = match Server::new(plan, share, policy) {
        Ok(server) => server,
        Err(e) => return drop(news.send(Err(e))),
    };
    if news.send(Ok(Arc::clone(&server.shared))).is_err() {
        return;
    }
    // Nothing comes when the connection is made without us.
    let Ok(go) = go.recv() else { return };
    let result = server.register(&go);
    let good = result.is_ok();
    if !good {
        server.ended_at = Some(Instant::now());
    }
    if registered.send(result).is_err() || !good {
        // The waiting thread has given up, or will, and aborts the connection.
        server.ended_at.get_or_insert_with(Instant::now);
    }
    if catch_unwind(AssertUnwindSafe(|| server.serve(&go))).is_err() {
        (go.abort)("internal error in a queue's thread");
        server.ended_at = Some(Instant::now());
        // Once more, to collect what the kernel still has.
        let _ = catch_unwind(AssertUnwindSafe(|| server.serve(&go)));
    }
    server.leave(&go);
}

fn build_ring(entries: u32) -> io::Result<Ring> {
    let ring: Ring = IoUring::builder()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(entries)?;
    blockwright_device::host::restrict_ring(&ring.submitter(), &[opcode::UringCmd80::CODE])?;
    Ok(ring)
}

impl Server {
    fn new(plan: &Plan, share: &Share, policy: QueuePolicy) -> io::Result<Self> {
        let (cpu, others) = (share.cpu, share.queues.iter().filter(|q| **q != share.cpu));
        let mut entries = vec![cpu; plan.depth - plan.helper_entries];
        // Queues of CPUs that do not run are registered because they must be.
        entries.extend(others);
        entries.extend(
            share
                .neighbour
                .iter()
                .flat_map(|&queue| vec![queue; plan.helper_entries]),
        );
        // One more for the eventfd's poll.
        let places = u32::try_from(entries.len() + 1 + plan.direct_parts)
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        let ring = build_ring(places.next_power_of_two())?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let memory = Memory::new(entries.len(), plan.payload_bytes, plan.huge_bytes)?;
        let device = (plan.direct_parts > 0).then(|| OwnRing::new(plan.direct_parts));
        Ok(Server {
            ring,
            carrier: Carrier::new(device.as_ref().map(OwnRing::intake)),
            device,
            warmth: Warmth::new(entries.len(), &plan.warm),
            with_kernel: vec![false; entries.len()].into_boxed_slice(),
            lately_bytes: 0,
            told_bytes: 0,
            shared: Arc::new(Shared::new(memory, wake)),
            cpu,
            queues: entries,
            in_kernel: 0,
            in_work: 0,
            arrived: Vec::new(),
            completed: Vec::new(),
            ended_at: None,
            policy,
            polling: Arc::clone(&plan.polling),
        })
    }

    /// Puts an entry into the submission queue, which has room for one per command, the wake-up and the device's.
    ///
    /// # Safety
    /// What the entry points to must be the kernel's until its completion was reaped.
    unsafe fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.ring.submission().push(entry) }
            .map_err(|_| io::Error::other("the submission queue is full"))
    }

    /// Has the ring poll the eventfd, so that waiting for requests also waits for answers.
    fn listen(&mut self) -> io::Result<()> {
        let wake = types::Fd(self.shared.wake_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(wake, libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(WAKE);
        // SAFETY: a poll points to no memory; the kernel holds its own reference to the eventfd.
        unsafe { self.push(&entry.into()) }
    }

    /// Gives all entries to the kernel.
    fn register(&mut self, go: &QueueConnection) -> io::Result<()> {
        let fd = go.connection.as_raw_fd();
        let pieces: Vec<[libc::iovec; 2]> = (0..self.queues.len())
            .map(|index| self.shared.memory.pieces(index))
            .collect();
        // The kernel hands out the entry that comes last first. So entries in huge pages, of this thread's own queue, come last.
        for (index, pieces) in pieces.iter().enumerate().rev() {
            let queue = self.queues[index];
            let entry = abi::register(fd, queue, std::ptr::from_ref(pieces), index as u64);
            // SAFETY: the list of pieces lives until it was submitted, right below; the memory it names is
            // the kernel's until the command completes: only then is there a `Ticket`, and `leave` does not
            // free it before.
            unsafe { self.push(&entry)? };
            self.in_kernel += 1;
            self.with_kernel[index] = true;
        }
        self.listen()?;
        let mut left = self.queues.len() + 1;
        while left > 0 {
            match self.ring.submit() {
                Ok(0) => return Err(io::Error::other("the kernel takes no commands")),
                Ok(n) => left = left.saturating_sub(n),
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // Entries that were not submitted go along with the next call, and count until
                // then.
                Err(e) => return Err(e),
            }
        }
        // A refused command completes while it is submitted; one that was taken, when a request comes.
        self.reap();
        let refused = |&(user_data, result, _): &(u64, i32, u32)| {
            (user_data != WAKE && result < 0).then(|| io::Error::from_raw_os_error(-result))
        };
        self.arrived.iter().find_map(refused).map_or(Ok(()), Err)
    }

    /// Takes completions off the ring: of the device's requests, and of the kernel's commands.
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            let (user_data, result) = (entry.user_data(), entry.result());
            if user_data != WAKE && user_data & DEVICE != 0 {
                self.completed.push((user_data & !DEVICE, result));
            } else {
                self.arrived.push((user_data, result, entry.flags()));
            }
        }
    }

    /// Serves until the connection has ended and nothing is left to do.
    fn serve(&mut self, go: &QueueConnection) {
        let mut answered = Vec::with_capacity(self.queues.len());
        loop {
            self.finish_device_requests();
            let mut arrived = std::mem::take(&mut self.arrived);
            for (user_data, result, flags) in arrived.drain(..) {
                if user_data == WAKE {
                    if !cqueue::more(flags) && self.listen().is_err() {
                        self.fail(go, "a queue's thread cannot be woken any more");
                    }
                    continue;
                }
                self.in_kernel -= 1;
                self.with_kernel[user_data as usize] = false;
                if result >= 0 {
                    self.begin(go, user_data as usize);
                    self.submit_to_device(go);
                } else {
                    self.refused(go, -result);
                }
            }
            self.arrived = arrived;
            // Requests that needed no entry of the ring.
            self.finish_device_requests();
            // The rest of what was transferred in part.
            self.submit_to_device(go);
            // Until there is nothing, and the next thread that answers knows that it has to wake this one.
            while self.shared.take_or_sleep(&mut answered) {
                for entry in answered.drain(..) {
                    self.give_back(go, entry);
                }
            }
            if self.shared.has_ended() {
                self.ended_at.get_or_insert_with(Instant::now);
            }
            if self.in_work == 0
                && self.device_is_idle()
                && (self.in_kernel == 0 || self.ended_at.is_some_and(|at| at.elapsed() > LEAVE_MAX))
            {
                return;
            }
            self.tell_memory(go);
            self.wait(go);
            self.shared.awake();
            self.reap();
            self.tell_memory(go);
            self.cool();
            self.choose_cpu(go);
        }
    }

    /// Answers the requests whose device I/O has completed.
    fn finish_device_requests(&mut self) {
        if let Some(device) = &mut self.device
            && (!self.completed.is_empty() || device.has_finished())
        {
            // This thread commits the completed direct writes together.
            self.carrier.collect(|| {
                for (user_data, result) in self.completed.drain(..) {
                    // SAFETY: the completion of an entry that `submit_to_device` has submitted; each is looked at once.
                    unsafe { device.completed(user_data, result) };
                }
                device.tell_finished();
            });
        }
    }

    /// Submits what is queued, and looks for a moment whether something happens. Returns whether something has.
    fn poll(&mut self) -> bool {
        let until = Instant::now() + POLL_MAX;
        let mut entered = false;
        loop {
            let (queued, work) = {
                let submission = self.ring.submission();
                (submission.len(), submission.taskrun())
            };
            if !entered || work {
                // Never more than the ring's places, which were counted in 32 bits.
                let queued = queued as u32;
                // SAFETY: without an argument the kernel accesses the ring alone.
                let result = unsafe {
                    let submitter = self.ring.submitter();
                    submitter.enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None)
                };
                if result.is_err() {
                    // The wait meets it, too, and handles it.
                    return false;
                }
                entered = true;
            }
            if !self.ring.completion().is_empty() {
                return true;
            }
            for _ in 0..POLL_SPINS {
                std::hint::spin_loop();
            }
            if Instant::now() > until {
                return false;
            }
        }
    }

    /// Submits what is queued, and waits for something to happen.
    fn wait(&mut self, go: &QueueConnection) {
        if self.policy.polls() && self.ended_at.is_none() {
            self.polling.fetch_add(1, Ordering::Relaxed);
            let came = self.poll();
            self.polling.fetch_sub(1, Ordering::Relaxed);
            if came {
                return;
            }
        }
        let tick = match self.ended_at {
            Some(_) => Some(LEAVE_TICK),
            None => self.policy.sleep_max(),
        };
        let result = if let Some(tick) = tick {
            let tick = types::Timespec::from(tick);
            let args = types::SubmitArgs::new().timespec(&tick);
            self.ring.submitter().submit_with_args(1, &args)
        } else {
            self.ring.submit_and_wait(1)
        };
        let Err(e) = result else { return };
        match e.raw_os_error() {
            Some(libc::ETIME) => {
                if self.policy.idle(go.dispatcher.keeps_cpus_awake()) {
                    self.shared.set_polls(false);
                }
            }
            Some(libc::EINTR | libc::EBUSY) => {}
            // Out of memory for the moment: what is queued is submitted next time.
            Some(libc::EAGAIN) => std::thread::yield_now(),
            _ => {
                self.fail(go, &format!("a queue's ring does not work any more: {e}"));
                std::thread::sleep(LEAVE_TICK);
            }
        }
    }

    /// This thread cannot serve any more: ends the connection, so that no client waits for it.
    fn fail(&mut self, go: &QueueConnection, why: &str) {
        if self.ended_at.is_none() {
            self.ended_at = Some(Instant::now());
            (go.abort)(why);
        }
    }

    /// A command came back without a request.
    fn refused(&mut self, go: &QueueConnection, errno: i32) {
        match errno {
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => {
                self.ended_at.get_or_insert_with(Instant::now);
            }
            _ => {
                let error = io::Error::from_raw_os_error(errno);
                self.fail(
                    go,
                    &format!("the kernel refused a queue's command: {error}"),
                );
            }
        }
    }

    /// Gives an answered entry back to the kernel.
    fn give_back(&mut self, go: &QueueConnection, entry: Answered) {
        self.in_work -= 1;
        if self.ended_at.is_some() {
            return;
        }
        let index = entry.index;
        // SAFETY: the entry is answered, so no ticket of it exists, and it is not in the kernel.
        let commit_id = unsafe { (*self.shared.memory.header(index)).commit_id };
        let fd = go.connection.as_raw_fd();
        let command = abi::commit_and_fetch(fd, self.queues[index], commit_id, index as u64);
        // SAFETY: the entry's memory is the kernel's from here until the command completes, as in `register`.
        match unsafe { self.push(&command) } {
            Ok(()) => {
                self.in_kernel += 1;
                self.with_kernel[index] = true;
            }
            Err(e) => self.fail(go, &e.to_string()),
        }
        if index >= self.shared.memory.huge_entries() {
            self.warmth.used(index, entry.payload_bytes);
        }
        self.lately_bytes = entry.payload_bytes;
    }

    /// Tells the volume how much the payloads in use take: many large requests at once are part of its budget. Estimated by the last
    /// one, as reading them all would cost more than it is worth; small ones do not count.
    fn tell_memory(&mut self, go: &QueueConnection) {
        let each = match self.lately_bytes {
            small if small <= KEPT_BYTES => 0,
            large => large as u64,
        };
        let bytes = (self.in_work + self.arrived.len()) as u64 * each;
        if bytes != self.told_bytes {
            go.dispatcher.note_memory(self.told_bytes, bytes);
            self.told_bytes = bytes;
        }
    }

    /// Before work: moves this thread to the CPU that is best for it.
    fn choose_cpu(&mut self, go: &QueueConnection) {
        if self.arrived.is_empty() && self.completed.is_empty() {
            return;
        }
        let polling = self.polling.load(Ordering::Relaxed);
        if let Some(polls) = (self.policy).choose_cpu(go.dispatcher.keeps_cpus_awake(), polling) {
            self.shared.set_polls(polls);
        }
    }

    /// Gives back memory of entries that wait in the kernel for their next request, when too much is warm.
    fn cool(&mut self) {
        // What could not be submitted yet holds replies.
        if !self.ring.submission().is_empty() {
            return;
        }
        let (came, with_kernel) = (&self.arrived, &self.with_kernel);
        let idle = |index: usize| {
            // Entries whose next request has arrived are not idle.
            let busy = |&(user_data, ..): &(u64, i32, u32)| user_data == index as u64;
            with_kernel[index] && !came.iter().any(busy)
        };
        while let Some(index) = self.warmth.too_warm(idle) {
            // SAFETY: the reply was copied when the entry was submitted, and the next request has not
            // come. The kernel copies it in this very thread, inside the system call.
            unsafe { self.shared.memory.cool(index) };
        }
    }

    /// Submits queued device requests, a batch at a time. The kernel hands a batch to the device only after it has prepared all of
    /// it, and this thread may have many requests to look at meanwhile.
    fn submit_to_device(&mut self, go: &QueueConnection) {
        let Some(mut device) = self.device.take() else {
            return;
        };
        let mut held = false;
        // SAFETY: an entry goes into this thread's ring. `device` lives as long as the ring, and longer than what
        // is in flight: `serve` does not return before that is over, nor does `leave` free it.
        while let Some(entry) = unsafe { device.next_entry() } {
            let user_data = entry.get_user_data() | DEVICE;
            // SAFETY: as above.
            if let Err(e) = unsafe { self.push(&entry.user_data(user_data).into()) } {
                self.fail(go, &e.to_string());
                break;
            }
            held = true;
        }
        // Entries that the kernel refuses for now go along with the next call.
        if held && self.ring.submission().len() >= QueuePolicy::device_batch(self.in_work) {
            let _ = self.ring.submit();
        }
        self.shared.note_device_requests(device.taken());
        self.device = Some(device);
    }

    /// Nothing of the device's is in the ring, or about to be.
    fn device_is_idle(&self) -> bool {
        self.device.as_ref().is_none_or(OwnRing::is_idle)
    }

    /// A request has come.
    fn begin(&mut self, go: &QueueConnection, index: usize) {
        self.in_work += 1;
        // SAFETY: its command has just completed with a request; it is submitted again in `give_back`, after
        // the ticket was dropped.
        let mut ticket = unsafe { Ticket::new(&self.shared, index) };
        let request = match ticket.request().and_then(Request::parse) {
            Ok(request) => request,
            // Dropping the ticket answers it.
            Err(e) => return go.dispatcher.log(&e.to_string()),
        };
        let (dispatcher, threads) = (&go.dispatcher, go.dispatcher.threads());
        let call = dispatcher.decode(&request);
        let request_bytes = request.body.len();
        let of_neighbour = self.queues[index] != self.cpu;
        (self.policy).request_came(call.client(), self.in_work, of_neighbour);
        if let Some(bytes) = call.startable_bytes()
            && let Some(slices) = ticket.data(call.data_bytes())
        {
            let submit = || dispatcher.start(call, slices, ticket, Some(&self.carrier));
            let result = match &mut self.device {
                Some(device) if self.policy.uses_own_ring(bytes, self.in_work) => {
                    device.collect(submit)
                }
                _ => submit(),
            };
            if let Err(later) = result {
                let dispatcher = Arc::clone(dispatcher);
                threads.run(move || dispatcher.carry_out(later));
            }
            return;
        }
        let opcode = call.opcode();
        let slow = !self.device_is_idle()
            || call.waits_for_kernel()
            || opcode.is_some_and(|op| {
                (self.policy).goes_to_pool(op, request_bytes, self.in_work, &go.slow_kinds)
            });
        if slow {
            let dispatcher = Arc::clone(dispatcher);
            return threads.run(move || super::work(&dispatcher, &call, ticket));
        }
        let begun = self.policy.begin();
        super::work(dispatcher, &call, ticket);
        if let Some(took) = self.policy.end(&begun)
            && let Some(opcode) = opcode
        {
            go.slow_kinds.note(opcode, took);
        }
    }

    /// Frees what the kernel does not use any more.
    fn leave(self, go: &QueueConnection) {
        if self.in_kernel > 0 || !self.device_is_idle() {
            go.log.line(
                "the kernel keeps memory of a FUSE connection that has ended; it is not freed",
            );
            std::mem::forget(self);
        }
    }
}
