//! The io_uring back end: one ring, owned by one thread.
//!
//! Submitters put requests into a queue and wake the ring's thread when it sleeps (an eventfd that
//! the ring itself polls). The thread cuts requests into parts of at most `request_bytes_max`,
//! submits them in batches, continues short transfers, and calls completions. A single issuing
//! thread lets the kernel defer its completion work to that thread (`DEFER_TASKRUN`), and spares
//! submitters the signals and the cancellation at exit that a ring shared by threads brings.
//!
//! Invariants: memory that an in-flight part points to belongs to its request in `active`, which
//! is removed when `outstanding` has reached zero, never before; the ring is dropped only when
//! nothing but the eventfd's poll, which points to no memory, is in flight.
//!
//! Locks: the queue's, a leaf, held for a push or to take what is queued.
//!
//! Not responsible for discard and write-zeroes, which would block the kernel's worker pool
//! unboundedly long: the pool of [`super::plain`] does those.
//!
//! References: io_uring_enter(2), io_uring_setup(2).

use super::file::{HostFile, RETRIES_MAX, SLICES_MAX, Step};
use super::queue::{Queue, completing};
use super::slab::Slab;
use crate::{DeviceError, DeviceErrorKind, Flags, IoSlice, Op, Request};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

/// Parts in flight at most.
const DEPTH: usize = 256;
/// Requests waiting for the ring's thread at most.
const QUEUED_MAX: usize = 1024;
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

fn build_ring() -> io::Result<IoUring> {
    let entries = DEPTH as u32 + 1;
    // The newest kernel features first; older kernels answer EINVAL to flags they do not know.
    let ring = IoUring::builder()
        .setup_clamp()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries)
        .or_else(|_| IoUring::builder().setup_clamp().build(entries))?;
    // Came with Linux 5.13, as did the poll that fires more than once.
    if !ring.params().is_feature_resource_tagging() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(ring)
}

/// A request being worked on.
struct Active {
    request: Request,
    /// Parts that are queued or in flight.
    outstanding: usize,
    error: Option<DeviceError>,
}

/// A part of a request, no larger than the device takes at once.
struct Part {
    active: usize,
    /// Where the part begins in the request, its length, and how much of it is done.
    start: usize,
    len: usize,
    moved: usize,
    retries: u32,
    /// What a vectored write in flight points to.
    iovecs: Vec<libc::iovec>,
}

struct Server {
    ring: IoUring,
    file: Arc<HostFile>,
    shared: Arc<Shared>,
    active: Slab<Active>,
    parts: Slab<Part>,
    /// Parts waiting for a place in the ring.
    ready: VecDeque<usize>,
    in_flight: usize,
}

impl Server {
    fn new(ring: IoUring, file: Arc<HostFile>, shared: Arc<Shared>) -> Self {
        Server {
            ring,
            file,
            shared,
            active: Slab::default(),
            parts: Slab::default(),
            ready: VecDeque::new(),
            in_flight: 0,
        }
    }

    fn serve(&mut self) {
        self.listen();
        let mut incoming = Vec::new();
        let mut finished = Vec::new();
        loop {
            let closed = {
                let mut state = self.shared.queue.lock();
                // As much as the ring can hold, so that a full queue holds submitters back.
                let room = DEPTH.saturating_sub(self.in_flight + self.ready.len());
                let take = room.min(state.items.len());
                incoming.extend(state.items.drain(..take));
                self.file
                    .monitor
                    .note_queued(self.active.len() + incoming.len() + state.items.len());
                self.shared.queue.taken(&state);
                state.sleepers = usize::from(state.items.is_empty());
                state.closed && state.items.is_empty()
            };
            for request in incoming.drain(..) {
                self.begin(request);
            }
            self.fill_ring();
            if closed && self.active.is_empty() {
                return;
            }
            // Something is always in flight: the eventfd's poll, if nothing else.
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                // EBUSY and EAGAIN: the kernel wants completions reaped, or memory; go on.
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EBUSY) => {}
                    _ => thread::yield_now(),
                },
            }
            finished.extend(self.ring.completion());
            for entry in finished.drain(..) {
                let (user_data, result) = (entry.user_data(), entry.result());
                if user_data == WAKE {
                    if !cqueue::more(entry.flags()) {
                        self.listen();
                    }
                } else {
                    self.part_done(user_data as usize, result);
                }
            }
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

    /// Cuts a request into parts.
    fn begin(&mut self, mut request: Request) {
        if let Op::Write(slices) = &mut request.op {
            slices.retain(|slice| !slice.is_empty());
        }
        let bytes = request.op.bytes() as usize;
        let is_flush = matches!(request.op, Op::Flush);
        if bytes == 0 && !is_flush {
            return completing(|| request.complete_noted(&self.file.monitor, Ok(())));
        }
        let max = self.file.geometry.request_bytes_max as usize;
        let mut lengths = Vec::new();
        match &request.op {
            Op::Write(slices) => cut_slices(slices, max, &mut lengths),
            _ => {
                let mut rest = bytes;
                while rest > max {
                    lengths.push(max);
                    rest -= max;
                }
                lengths.push(rest);
            }
        }
        let outstanding = lengths.len();
        let active = self.active.insert(Active {
            request,
            outstanding,
            error: None,
        });
        let mut start = 0;
        for len in lengths {
            let iovecs = Vec::new();
            let part = Part {
                active,
                start,
                len,
                moved: 0,
                retries: 0,
                iovecs,
            };
            self.ready.push_back(self.parts.insert(part));
            start += len;
        }
    }

    fn fill_ring(&mut self) {
        while self.in_flight < DEPTH {
            let Some(index) = self.ready.pop_front() else {
                return;
            };
            let Some(entry) = self.entry(index) else {
                continue;
            };
            self.in_flight += 1;
            // SAFETY: the entry points into the request's buffers and the part's `iovecs`. The
            // request stays in `active` and the part in `parts` until `part_done` saw this very
            // completion; neither's heap memory moves or is written by this thread meanwhile.
            unsafe { self.push(&entry) };
        }
    }

    /// The submission entry of what is left of a part.
    fn entry(&mut self, index: usize) -> Option<squeue::Entry> {
        let part = self.parts.get_mut(index)?;
        let request = &self.active.get_mut(part.active)?.request;
        let fd = types::Fd(self.file.file.as_raw_fd());
        let at = part.start + part.moved;
        let left = part.len - part.moved;
        let offset = request.offset.0 + at as u64;
        // Class best-effort, see ioprio_set(2).
        let priority = 2u16 << 13 | u16::from(request.priority.0.min(7));
        let dsync = if request.flags.contains(Flags::FUA) {
            libc::RWF_DSYNC
        } else {
            0
        };
        let entry = match &request.op {
            Op::Read(buf) => {
                // Inside the buffer, because parts partition it; through the raw pointer, because
                // other parts of the buffer are being written by the kernel at this time.
                let to = buf.as_raw().wrapping_add(at);
                opcode::Read::new(fd, to, left as u32)
                    .offset(offset)
                    .ioprio(priority)
                    .build()
            }
            Op::Write(slices) => {
                gather(slices, at, left, &mut part.iovecs);
                let list = &part.iovecs;
                opcode::Writev::new(fd, list.as_ptr(), list.len() as u32)
                    .offset(offset)
                    .ioprio(priority)
                    .rw_flags(dsync)
                    .build()
            }
            Op::Flush | Op::Discard { .. } | Op::WriteZeroes { .. } => opcode::Fsync::new(fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        };
        Some(entry.user_data(index as u64))
    }

    fn part_done(&mut self, index: usize, result: i32) {
        self.in_flight -= 1;
        let Some(part) = self.parts.get_mut(index) else {
            return;
        };
        let Some(active) = self.active.get_mut(part.active) else {
            return;
        };
        let request = &active.request;
        let outcome = if matches!(request.op, Op::Flush) {
            match result {
                0.. => Ok(Step::Advance(0)),
                _ if part.retries < RETRIES_MAX && is_transient(-result) => {
                    part.retries += 1;
                    Ok(Step::Again)
                }
                _ => Err(super::file::kind_of(-result)),
            }
        } else {
            let result = usize::try_from(result).map_err(|_| -result);
            self.file
                .step(result, part.moved, part.len, &mut part.retries)
        };
        let error = match outcome {
            Ok(Step::Again) => return self.ready.push_back(index),
            Ok(Step::Advance(more)) => {
                part.moved += more;
                if part.moved < part.len {
                    return self.ready.push_back(index);
                }
                None
            }
            Err(DeviceErrorKind::Short { transferred }) => Some(DeviceErrorKind::Short {
                transferred: part.start + transferred,
            }),
            Err(kind) => Some(kind),
        };
        if let Some(kind) = error
            && active.error.is_none()
        {
            active.error = Some(request.error(kind));
        }
        active.outstanding -= 1;
        let (owner, finished) = (part.active, active.outstanding == 0);
        self.parts.remove(index);
        if finished && let Some(Active { request, error, .. }) = self.active.remove(owner) {
            let monitor = &self.file.monitor;
            completing(|| request.complete_noted(monitor, error.map_or(Ok(()), Err)));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // Only a panic of this module's own gets here. The kernel would go on writing to
            // memory that unwinding is about to free.
            std::process::abort();
        }
    }
}

fn is_transient(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN | libc::ECANCELED)
}

/// Cuts a vectored write into parts of at most `max` bytes and `SLICES_MAX` slices. Parts end at
/// multiples of the logical block because slices and `max` are such.
fn cut_slices(slices: &[IoSlice], max: usize, lengths: &mut Vec<usize>) {
    let (mut len, mut count) = (0, 0);
    for slice in slices {
        let mut rest = slice.len();
        while rest > 0 {
            if len == max || count == SLICES_MAX {
                lengths.push(len);
                (len, count) = (0, 0);
            }
            let take = rest.min(max - len);
            (len, count, rest) = (len + take, count + 1, rest - take);
        }
    }
    lengths.push(len);
}

/// Lists the memory of bytes `at .. at + left` of a vectored write.
fn gather(slices: &[IoSlice], mut at: usize, mut left: usize, list: &mut Vec<libc::iovec>) {
    list.clear();
    for slice in slices {
        if at >= slice.len() {
            at -= slice.len();
            continue;
        }
        let part = &slice[at..slice.len().min(at.saturating_add(left))];
        list.push(libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        (at, left) = (0, left - part.len());
        if left == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    fn slices(lengths: &[usize]) -> Vec<IoSlice> {
        lengths
            .iter()
            .map(|len| AlignedBuf::zeroed(*len).into())
            .collect()
    }

    #[test]
    fn parts_respect_both_limits() {
        let cut = |lens: &[usize], max| {
            let mut lengths = Vec::new();
            cut_slices(&slices(lens), max, &mut lengths);
            lengths
        };
        assert_eq!(cut(&[512], 4096), [512]);
        assert_eq!(cut(&[4096, 4096], 4096), [4096, 4096]);
        assert_eq!(cut(&[1024, 8192, 512], 4096), [4096, 4096, 1536]);
        assert_eq!(cut(&[512; 1030], 1 << 20), [1024 * 512, 6 * 512]);
    }

    #[test]
    fn gathering_starts_and_ends_inside_slices() {
        let slices = slices(&[1024, 512, 2048]);
        let mut list = Vec::new();
        let lens = |list: &Vec<libc::iovec>| list.iter().map(|v| v.iov_len).collect::<Vec<_>>();
        gather(&slices, 0, 3584, &mut list);
        assert_eq!(lens(&list), [1024, 512, 2048]);
        gather(&slices, 512, 1024, &mut list);
        assert_eq!(lens(&list), [512, 512]);
        gather(&slices, 1536, 512, &mut list);
        assert_eq!(lens(&list), [512]);
        assert_eq!(list[0].iov_base.cast_const().cast(), slices[2].as_ptr());
    }
}
