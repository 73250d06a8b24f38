//! FUSE over io_uring: requests and replies in memory shared with the kernel, one system call for both.
//!
//! The kernel has a queue per possible CPU, and sends a request to the queue of the CPU on which it is made.
//! One thread per running CPU serves that CPU's queue (`server`), pinned there, so that a
//! request costs a switch between two threads of one CPU instead of waking another. On two CPUs each thread has a part of the
//! other queue's entries, for clients with many requests at once. Requests that wait for
//! something go to the session's pool of threads; reads, and writes past the cache, go to the device. So a queue's thread
//! never waits. FORGET, INTERRUPT and notifications still pass over `/dev/fuse`, which [`DevFuse`] continues
//! serving. It also owns the connection.
//!
//! # Order of the beginning
//! Before the connection there are threads, rings and memory ([`Uring::prepare`]): what can fail, fails then. The INIT reply says
//! that io_uring is used; from then on the kernel holds all requests back until every queue is
//! registered ([`Uring::start`]). Should that fail, the connection is of no use: it is aborted and made again
//! over `/dev/fuse`.
//!
//! # Order of the end
//! See `server`. Nothing here keeps a connection alive: descriptors are closed on exec, commands in the
//! kernel end with the process, and a thread that works on a request holds memory, not the connection.
//!
//! # Locks
//! `Shared::answered` and `alive`, leaves.
//!
//! References: the kernel's Documentation/filesystems/fuse/fuse-io-uring.rst.
//!
//! [`DevFuse`]: super::DevFuse

mod abi;
mod memory;
mod server;
mod ticket;

use crate::dispatch::{Call, Dispatcher};
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::options::{FuseOptions, Log};
use crate::scheduling::cpus::Cpus;
use crate::scheduling::helper_entries;
use crate::scheduling::slow_kinds::SlowKinds;
use blockwright_vfs::Stats;
use memory::{HUGE_PAGE, WarmBudget};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use ticket::{Shared, Ticket};

/// Entries per queue at most. As many requests of one CPU are in progress at once.
const DEPTH_MAX: usize = 64;
/// Entries per queue at least.
const DEPTH_MIN: usize = 4;
/// Address space for all entries together; it limits the depth where there are many CPUs.
const ENTRY_BYTES_MAX: usize = 1 << 30;
/// How much of it is asked to be huge pages, all queues together. The used part of that stays in use.
const HUGE_BYTES: usize = 16 << 20;
/// The most that is worth it for one queue: a stream has two windows of readahead under way.
const HUGE_QUEUE_BYTES_MAX: usize = 4 << 20;
/// How much of the rest may stay in use beyond what every entry keeps.
const WARM_BYTES: usize = 8 << 20;
/// The kernel's payloads are never smaller: 32 pages is what it takes without `MAX_PAGES`.
const PAYLOAD_BYTES_MIN: usize = 32 * 4096;
/// How long threads may take to be ready, and to register.
const START_MAX: Duration = Duration::from_secs(10);
/// The switch of the kernel.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// Tells the kernel to end the connection at once, saying why. Never fails: the last resort ends the process.
pub(crate) type Abort = Arc<dyn Fn(&str) + Send + Sync>;

/// Sizes.
struct Plan {
    depth: usize,
    /// How many of a queue's entries the thread of another CPU has.
    helper_entries: usize,
    payload_bytes: usize,
    /// How much of a queue's entries is in huge pages.
    huge_bytes: usize,
    warm: Arc<WarmBudget>,
    /// Parts of device requests that a queue's ring takes; 0: the device's thread has them all.
    direct_parts: usize,
    /// How many queue threads poll for their next request now.
    polling: Arc<AtomicUsize>,
}

/// The state that a queue's thread gets with the connection.
#[derive(Clone)]
struct QueueConnection {
    connection: Arc<OwnedFd>,
    dispatcher: Arc<Dispatcher>,
    slow_kinds: Arc<SlowKinds>,
    abort: Abort,
    log: Log,
}

/// How many threads live.
#[derive(Default)]
struct Alive {
    count: Mutex<usize>,
    none: Condvar,
}

/// A thread that waits for its connection.
struct Waiting {
    go: SyncSender<QueueConnection>,
    registered: Receiver<io::Result<()>>,
}

/// The queues of a connection. Dropped before it was started, its threads leave.
pub struct Uring {
    waiting: Mutex<Vec<Waiting>>,
    queues: Vec<Arc<Shared>>,
    depth: usize,
    alive: Arc<Alive>,
    log: Log,
    /// The last thread registers its queues with something that is no FUSE connection.
    #[cfg(test)]
    pub(crate) sabotaged: bool,
}

fn unavailable(why: impl Into<String>) -> FuseError {
    FuseError::new(FuseErrorKind::Transport, why)
}

impl Uring {
    /// Makes threads, rings and memory for a connection to come.
    ///
    /// # Errors
    /// `Transport` when the kernel does not have FUSE over io_uring, or has it switched off, or does not permit
    /// io_uring; or when there are no threads or memory.
    pub fn prepare(options: &FuseOptions) -> Result<Self> {
        match std::fs::read_to_string(ENABLED) {
            Ok(text) if text.trim() == "Y" => {}
            Ok(_) => {
                return Err(unavailable(format!(
                    "FUSE over io_uring is switched off; metadata is faster when root runs: echo Y > {ENABLED}"
                )));
            }
            Err(_) => {
                return Err(unavailable(
                    "the kernel has no FUSE over io_uring, which came with Linux 6.14",
                ));
            }
        }
        let os = |e: io::Error| unavailable("io_uring cannot be used here").source(e);
        let shares = Cpus::read().map_err(os)?.share_out();
        let payload_bytes = usize::try_from(options.max_write_clamped())
            .unwrap_or(PAYLOAD_BYTES_MIN)
            .max(PAYLOAD_BYTES_MIN);
        let depth = ENTRY_BYTES_MAX / payload_bytes / shares.len();
        let depth = depth.clamp(DEPTH_MIN, DEPTH_MAX);
        let plan = Arc::new(Plan {
            depth,
            helper_entries: helper_entries(depth, shares.len()),
            payload_bytes,
            huge_bytes: (HUGE_BYTES / shares.len()).min(HUGE_QUEUE_BYTES_MAX) / HUGE_PAGE
                * HUGE_PAGE,
            warm: WarmBudget::new(WARM_BYTES, shares.len()),
            direct_parts: options.direct_parts(),
            polling: Arc::default(),
        });
        let mut uring = Uring {
            waiting: Mutex::default(),
            queues: Vec::new(),
            depth: plan.depth,
            alive: Arc::default(),
            log: options.log.clone(),
            #[cfg(test)]
            sabotaged: false,
        };
        let mut news = Vec::new();
        for share in shares {
            let (tell, told) = sync_channel(1);
            let (go, gone) = sync_channel(1);
            let (tell_registered, registered) = sync_channel(1);
            let (plan, alive) = (Arc::clone(&plan), Arc::clone(&uring.alive));
            *alive.count.lock() += 1;
            let leaving = Leaving(Arc::clone(&alive));
            std::thread::Builder::new()
                .name(format!("fuse-queue-{}", share.cpu))
                .spawn(move || {
                    let _leaving = leaving;
                    server::run(&share, &plan, &tell, &gone, &tell_registered);
                })
                .map_err(os)?;
            news.push(told);
            uring.waiting.get_mut().push(Waiting { go, registered });
        }
        let deadline = Instant::now() + START_MAX;
        for told in news {
            let shared = soon(&told, deadline).map_err(os)?;
            uring.queues.push(shared);
        }
        Ok(uring)
    }

    /// Registers all queues with a connection whose INIT reply agreed to it. When this returns, requests are
    /// served.
    ///
    /// # Errors
    /// `Transport` when the kernel refuses; the connection must be aborted then.
    pub(crate) fn start(
        &self,
        connection: &Arc<OwnedFd>,
        dispatcher: &Arc<Dispatcher>,
        abort: Abort,
    ) -> Result<()> {
        let go = QueueConnection {
            connection: Arc::clone(connection),
            dispatcher: Arc::clone(dispatcher),
            slow_kinds: Arc::default(),
            abort,
            log: self.log.clone(),
        };
        // From now on there is always one, so that no queue's thread has to do what waits.
        let none = |e| unavailable("there is no thread for requests that wait").source(e);
        dispatcher.threads().begin().map_err(none)?;
        // The kernel may fill a whole queue at once. The ring reports when it fills several.
        dispatcher.reserve_memory(self.depth);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let refused = |e| unavailable("the kernel refused the queues").source(e);
        let mut goes = vec![go; waiting.len()];
        #[cfg(test)]
        if self.sabotaged
            && let Some(last) = goes.last_mut()
        {
            let none = std::env::current_exe().and_then(std::fs::File::open);
            last.connection = Arc::new(none.map_err(refused)?.into());
        }
        for (thread, go) in waiting.iter().zip(goes.drain(..)) {
            let gone = |_| io::Error::other("a queue's thread ended");
            thread.go.send(go).map_err(gone).map_err(refused)?;
        }
        let deadline = Instant::now() + START_MAX;
        for thread in &waiting {
            soon(&thread.registered, deadline).map_err(refused)?;
        }
        Ok(())
    }

    /// Adds what there is to a snapshot.
    pub(crate) fn stats(&self, out: &mut Stats) {
        blockwright_vfs::stat_lines! { out;
            gauge "fuse_queue_threads", Count, "threads that serve io_uring queues" => self.queues.len() as u64;
            gauge "fuse_queue_depth", Count, "requests that a queue takes at once" => self.depth as u64;
            gauge "fuse_queue_threads_polling", Count, "those that leave their CPU to their clients and poll on another one (cpu_latency=auto)"
                => self.queues.iter().filter(|queue| queue.polls()).count() as u64;
            counter "fuse_queue_device_requests", Count, "device requests of direct reads and overwrites that went through the ring of a queue's thread"
                => self.queues.iter().map(|queue| queue.device_requests()).sum();
        }
    }

    /// The connection has ended.
    pub(crate) fn end(&self) {
        for queue in &self.queues {
            queue.end();
        }
    }

    /// Waits until the queues' threads have left, or for `limit`. Returns whether they have.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut count = self.alive.count.lock();
        while *count > 0 {
            match deadline {
                None => self.alive.none.wait(&mut count),
                Some(at) => {
                    if self.alive.none.wait_until(&mut count, at).timed_out() && *count > 0 {
                        return false;
                    }
                }
            }
        }
        true
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Threads that wait for a connection leave when their channel closes.
        self.waiting.get_mut().clear();
    }
}

/// Waits for the report of a thread.
fn soon<T>(told: &Receiver<io::Result<T>>, deadline: Instant) -> io::Result<T> {
    match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("a queue's thread ended")),
    }
}

/// Counts a thread off when it ends, however it does, or if it never starts.
struct Leaving(Arc<Alive>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

/// Serves one request and replies to it.
fn work(dispatcher: &Dispatcher, call: &Call, ticket: Ticket) {
    let processed = dispatcher.process(call, &call.request(ticket.bytes()));
    dispatcher.finish(processed, ticket);
}
