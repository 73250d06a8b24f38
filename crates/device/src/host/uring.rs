//! The io_uring back end: one ring, owned by one thread.
//!
//! Submitters put requests into a queue and wake the ring's thread when it sleeps (an eventfd that the ring itself polls).
//! The thread submits them in batches, as parts (`parts`), and calls completions. With a single issuing thread, the kernel
//! defers its completion work to that thread (`DEFER_TASKRUN`), and spares submitters the signals and the cancellation at
//! exit that a ring shared by threads brings.
//!
//! Invariant: the ring is dropped only when nothing but the eventfd's poll, which points to no memory, is in flight.
//!
//! Locks: the queue's, a leaf, held for a push or to take what is queued.
//!
//! Threads that have a ring of their own need not come here (`own_ring`). Not responsible for discard and write-zeroes, which would block the kernel's worker pool
//! unboundedly long: the pool of [`super::plain`] does those.
//!
//! References: io_uring_enter(2), io_uring_setup(2).

use super::file::HostFile;
use super::parts::Parts;
use super::queue::Queue;
use crate::Request;
use io_uring::register::Restriction;
use io_uring::{IoUring, Submitter, cqueue, opcode, squeue, types};
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

/// Parts in flight at most.
const DEPTH: usize = 256;
/// Requests waiting for the ring's thread at most.
const QUEUED_MAX: usize = 1024;
/// Parts that are submitted at once. The kernel gives none of them to the device before it has prepared all, 4 µs each; three and
/// more also wait for each other in a plug. A device that was nearly idle when completions came would stay so for all that time.
const HELD_MAX: usize = 2;
/// `user_data` of the eventfd's poll.
const WAKE: u64 = u64::MAX;

struct Shared {
    queue: Queue<Request>,
    wake: OwnedFd,
}

impl Shared {
    fn wake(&self) {
        // The counter is never read, and takes 2^64 wake-ups to fill.
        while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.wake, &1u64.to_ne_bytes())
        {
        }
    }
}

/// See the module's head.
pub(super) struct Uring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Uring {
    /// Starts the ring and its thread.
    ///
    /// # Errors
    /// When the host does not permit or know io_uring, or is out of memory.
    pub(super) fn start(file: &Arc<HostFile>) -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared {
            queue: Queue::new(QUEUED_MAX),
            wake,
        });
        let (theirs, file) = (Arc::clone(&shared), Arc::clone(file));
        // The ring belongs to the thread that creates it, so the news comes back by a channel.
        let (news, built) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("device-ring".into())
            .spawn(move || match build_ring() {
                Ok(ring) => {
                    let mut server = Server::new(ring, file, theirs);
                    if news.send(Ok(())).is_ok() {
                        server.serve();
                    }
                }
                Err(error) => drop(news.send(Err(error))),
            })?;
        match built.recv() {
            Ok(Ok(())) => Ok(Uring {
                shared,
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the ring's thread ended")),
        }
    }

    /// Queues a read, write or flush.
    pub(super) fn push(&self, request: Request) {
        let sleeps = self
            .shared
            .queue
            .push(request, |state| std::mem::take(&mut state.sleepers) > 0);
        if sleeps {
            self.shared.wake();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take()
            // Dropped by one of its own completions, the thread drains the rest and ends.
            && thread.thread().id() != thread::current().id()
        {
            let _panics_are_caught = thread.join().is_err();
        }
    }
}

pub(super) fn build_ring() -> io::Result<IoUring> {
    let entries = DEPTH as u32 + 1;
    // The newest kernel features first; older kernels answer EINVAL to flags they do not know.
    let ring = IoUring::builder()
        .setup_clamp()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        // Without it, a submission that waits for nothing posts no completions.
        .setup_taskrun_flag()
        .build(entries)
        .or_else(|_| {
            IoUring::builder()
                .setup_clamp()
                .setup_r_disabled()
                .build(entries)
        })?;
    // Came with Linux 5.13, as did the poll that fires more than once.
    if !ring.params().is_feature_resource_tagging() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    restrict(&ring.submitter(), &[])?;
    Ok(ring)
}

/// What a ring of this program does with the device: [`Parts`] makes these entries, and an eventfd is polled.
const OPERATIONS: [u8; 5] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::PollAdd::CODE,
];

/// Enables a ring that was made disabled (`setup_r_disabled`), for the device's operations and `more`, and nothing else for as long
/// as it lives. A ring opens files, connects sockets and renames without any system call that a seccomp filter sees, so no ring of this
/// process may be without these bounds.
///
/// # Errors
/// When the kernel does not know restrictions, which came with Linux 5.10.
pub fn restrict(submitter: &Submitter<'_>, more: &[u8]) -> io::Result<()> {
    let allowed = OPERATIONS.iter().chain(more);
    let mut list: Vec<Restriction> = allowed.map(|op| Restriction::sqe_op(*op)).collect();
    submitter.register_restrictions(&mut list)?;
    submitter.register_enable_rings()
}

/// The outcome of taking in requests.
struct Taken {
    /// Nothing will come any more.
    closed: bool,
    /// Completions were called, which may have submitted more.
    told: bool,
}

struct Server {
    ring: IoUring,
    file: Arc<HostFile>,
    shared: Arc<Shared>,
    parts: Parts,
}

impl Server {
    fn new(ring: IoUring, file: Arc<HostFile>, shared: Arc<Shared>) -> Self {
        Server {
            ring,
            file,
            shared,
            parts: Parts::default(),
        }
    }

    fn serve(&mut self) {
        self.listen();
        let mut incoming = Vec::new();
        let mut finished = Vec::new();
        loop {
            let taken = self.take_in(&mut incoming, true);
            if taken.closed && self.parts.requests() == 0 {
                return;
            }
            // Something is always in flight: the eventfd's poll, if nothing else.
            match self.ring.submit_and_wait(usize::from(!taken.told)) {
                Ok(_) => {}
                // EBUSY and EAGAIN: the kernel wants completions reaped, or memory; go on.
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EBUSY) => {}
                    _ => thread::yield_now(),
                },
            }
            finished.extend(self.ring.completion());
            // Requests that completions submit need no wake-up: this thread runs.
            self.shared.queue.lock().sleepers = 0;
            for entry in finished.drain(..) {
                let (user_data, result) = (entry.user_data(), entry.result());
                if user_data == WAKE {
                    if !cqueue::more(entry.flags()) {
                        self.listen();
                    }
                } else if let Some(finished) = self.parts.done(user_data as usize, result) {
                    finished.tell();
                    // Completions submit what comes next: the device works on it while the other
                    // completions are delivered.
                    self.take_in(&mut incoming, false);
                }
            }
        }
    }

    /// Takes what is queued, as much as the ring can hold, and passes it on. A thread that sleeps afterwards must be woken for more.
    fn take_in(&mut self, incoming: &mut Vec<Request>, sleeps: bool) -> Taken {
        let closed = {
            let mut state = self.shared.queue.lock();
            // So a full queue holds submitters back.
            let room = DEPTH.saturating_sub(self.parts.in_flight() + self.parts.waiting());
            let take = room.min(state.items.len());
            incoming.extend(state.items.drain(..take));
            self.file
                .monitor
                .note_queued(self.parts.requests() + incoming.len() + state.items.len());
            self.shared.queue.taken(&state);
            state.sleepers = usize::from(sleeps && state.items.is_empty());
            state.closed && state.items.is_empty()
        };
        let mut told = false;
        for request in incoming.drain(..) {
            if let Some(finished) = self.parts.begin(request, &self.file) {
                finished.tell();
                told = true;
            }
        }
        self.fill_ring();
        Taken {
            closed: closed && !told,
            told,
        }
    }

    /// Has the ring poll the eventfd, so that waiting for completions also waits for requests.
    fn listen(&mut self) {
        let wake = types::Fd(self.shared.wake.as_raw_fd());
        let entry = opcode::PollAdd::new(wake, libc::POLLIN as u32)
            .multi(true)
            .build();
        // SAFETY: a poll points to no memory; the kernel holds its own reference to the eventfd.
        unsafe { self.push(&entry.user_data(WAKE)) };
    }

    /// Puts an entry into the submission queue, which has room for `DEPTH` parts and the wake-up.
    ///
    /// # Safety
    /// What the entry points to must stay valid until its completion was reaped.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: promised by the caller.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            if self.ring.submit().is_err() {
                thread::yield_now();
            }
        }
    }

    fn fill_ring(&mut self) {
        let mut held = self.ring.submission().len();
        while self.parts.in_flight() < DEPTH {
            let Some(entry) = self.parts.next_entry() else {
                return;
            };
            // SAFETY: the memory that the entry points to stays valid until `Parts::done` gets this
            // completion: `parts` lives as long as the ring, and its drop ends the process otherwise.
            unsafe { self.push(&entry) };
            held += 1;
            // Entries that the kernel refuses for now go along with the next submission.
            if held >= HELD_MAX && self.ring.submit().is_ok() {
                held = 0;
            }
        }
    }
}
