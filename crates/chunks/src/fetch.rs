//! Fetching chunks: several at once, each once, checked; the last ones stay in memory.
//!
//! Chunks that a caller waits for go before chunks that are read ahead. A chunk that is wrong is fetched once more past the cache, because the
//! cache's file may be damaged.
//!
//! # Locks
//! One, held neither during I/O nor while a waiter is called.

use crate::pack::unpack;
use crate::{ChunkId, Digest, Error, Result, Source};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Chunks that are fetched at once.
pub const THREADS: usize = 16;
/// Chunks that stay in memory, in bytes.
pub const MEMORY_BYTES: usize = 64 << 20;
/// Chunks that wait to be read ahead.
const AHEAD_MAX: usize = 256;

/// A chunk's contents.
pub type Contents = Arc<Vec<u8>>;
type Waiter = Box<dyn FnOnce(Result<Contents>) + Send>;

/// Fetches a chunk and checks it.
///
/// # Errors
/// As [`Source::fetch`]; [`Error::Wrong`].
pub fn fetch_checked(
    source: &dyn Source,
    digest: Digest,
    id: ChunkId,
    bytes: usize,
) -> Result<Vec<u8>> {
    let mut wrong = None;
    for fresh in [false, true] {
        let packed = source.fetch(id, bytes, fresh)?;
        match unpack(digest, id, bytes, &packed.bytes, &packed.store) {
            Ok(contents) => return Ok(contents),
            Err(e) => wrong = Some(e),
        }
    }
    Err(wrong.unwrap_or_else(|| Error::Index(format!("chunk {id} was not asked for"))))
}

/// The last chunks, up to [`MEMORY_BYTES`].
#[derive(Default)]
struct Ready {
    by_id: HashMap<ChunkId, (Contents, u64)>,
    by_use: BTreeMap<u64, ChunkId>,
    bytes: usize,
    clock: u64,
}

impl Ready {
    fn get(&mut self, id: ChunkId) -> Option<Contents> {
        let (contents, used) = self.by_id.get_mut(&id)?;
        self.clock += 1;
        self.by_use.remove(used);
        *used = self.clock;
        self.by_use.insert(self.clock, id);
        Some(Arc::clone(contents))
    }

    fn insert(&mut self, id: ChunkId, contents: Contents) {
        self.clock += 1;
        self.bytes += contents.len();
        self.by_use.insert(self.clock, id);
        if let Some((old, used)) = self.by_id.insert(id, (contents, self.clock)) {
            self.bytes -= old.len();
            self.by_use.remove(&used);
        }
        while self.bytes > MEMORY_BYTES
            && let Some((_, oldest)) = self.by_use.pop_first()
            && let Some((old, _)) = self.by_id.remove(&oldest)
        {
            self.bytes -= old.len();
        }
    }
}

struct Flight {
    bytes: usize,
    waiters: Vec<Waiter>,
    started: bool,
}

#[derive(Default)]
struct State {
    ready: Ready,
    flights: HashMap<ChunkId, Flight>,
    /// Chunks in `flights` that are waited for. One can be in `ahead` as well.
    wanted: VecDeque<ChunkId>,
    ahead: VecDeque<ChunkId>,
    closed: bool,
}

struct Shared {
    source: Box<dyn Source>,
    digest: Digest,
    state: Mutex<State>,
    work: Condvar,
}

/// See the module's head. Dropping it waits until every waiter was called.
pub(crate) struct Fetcher {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Fetcher {
    pub(crate) fn new(source: Box<dyn Source>, digest: Digest) -> Self {
        Fetcher {
            shared: Arc::new(Shared {
                source,
                digest,
                state: Mutex::default(),
                work: Condvar::new(),
            }),
            threads: Mutex::default(),
        }
    }

    /// Calls `waiter` with a chunk: at once when it is in memory, otherwise in a fetching thread.
    pub(crate) fn want(
        &self,
        id: ChunkId,
        bytes: usize,
        waiter: impl FnOnce(Result<Contents>) + Send + 'static,
    ) {
        let mut state = self.shared.state.lock();
        let other_size = |found: usize| {
            Error::Index(format!(
                "chunk {id} has {bytes} bytes in one place and {found} in another"
            ))
        };
        if let Some(contents) = state.ready.get(id) {
            drop(state);
            return waiter(match contents.len() == bytes {
                true => Ok(contents),
                false => Err(other_size(contents.len())),
            });
        }
        let flight = state.flights.entry(id).or_insert_with(|| Flight {
            bytes,
            waiters: Vec::new(),
            started: false,
        });
        if flight.bytes != bytes {
            let error = other_size(flight.bytes);
            drop(state);
            return waiter(Err(error));
        }
        let queue = !flight.started && flight.waiters.is_empty();
        flight.waiters.push(Box::new(waiter));
        if queue {
            state.wanted.push_back(id);
        }
        drop(state);
        if queue {
            self.shared.work.notify_one();
            self.start();
        }
    }

    /// Fetches chunks that may be wanted soon. When there are too many, the oldest of them are forgotten.
    pub(crate) fn want_soon(&self, chunks: impl Iterator<Item = (ChunkId, usize)>) {
        let mut state = self.shared.state.lock();
        let State {
            ready,
            flights,
            ahead,
            ..
        } = &mut *state;
        let mut queued = 0;
        for (id, bytes) in chunks {
            if ready.by_id.contains_key(&id) || flights.contains_key(&id) {
                continue;
            }
            let flight = Flight {
                bytes,
                waiters: Vec::new(),
                started: false,
            };
            flights.insert(id, flight);
            ahead.push_back(id);
            queued += 1;
            if ahead.len() > AHEAD_MAX
                && let Some(oldest) = ahead.pop_front()
                && flights
                    .get(&oldest)
                    .is_some_and(|f| !f.started && f.waiters.is_empty())
            {
                flights.remove(&oldest);
            }
        }
        drop(state);
        for _ in 0..queued.min(THREADS) {
            self.shared.work.notify_one();
        }
    }

    /// Starts the threads, once.
    fn start(&self) {
        let mut threads = self.threads.lock();
        if !threads.is_empty() {
            return;
        }
        for _ in 0..THREADS {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("chunk-fetch".to_owned());
            if let Ok(thread) = thread.spawn(move || shared.work()) {
                threads.push(thread);
            }
        }
        if threads.is_empty() {
            // Without threads the caller fetches.
            drop(threads);
            while self.shared.work_once(false) {}
        }
    }
}

impl Shared {
    fn work(&self) {
        while self.work_once(true) {}
    }

    /// Fetches one chunk. False when there is nothing to do, and `wait` does not say to wait for it, or everything is done.
    fn work_once(&self, wait: bool) -> bool {
        let mut state = self.state.lock();
        let (id, bytes) = loop {
            let State {
                flights,
                wanted,
                ahead,
                ..
            } = &mut *state;
            match wanted.pop_front().or_else(|| ahead.pop_front()) {
                Some(id) => {
                    if let Some(flight) = flights.get_mut(&id).filter(|f| !f.started) {
                        flight.started = true;
                        break (id, flight.bytes);
                    }
                }
                None if state.closed || !wait => return false,
                None => self.work.wait(&mut state),
            }
        };
        drop(state);
        let fetched = fetch_checked(&*self.source, self.digest, id, bytes).map(Arc::new);
        let mut state = self.state.lock();
        if let Ok(contents) = &fetched {
            state.ready.insert(id, Arc::clone(contents));
        }
        let waiters = state.flights.remove(&id).map(|flight| flight.waiters);
        drop(state);
        for waiter in waiters.into_iter().flatten() {
            waiter(fetched.clone());
        }
        true
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        for id in std::mem::take(&mut state.ahead) {
            if state
                .flights
                .get(&id)
                .is_some_and(|f| !f.started && f.waiters.is_empty())
            {
                state.flights.remove(&id);
            }
        }
        drop(state);
        self.shared.work.notify_all();
        let me = thread::current().id();
        for thread in self.threads.get_mut().drain(..) {
            // The last owner may be a waiter, on one of these threads.
            if thread.thread().id() != me {
                // A panic was that thread's.
                let _panicked = thread.join();
            }
        }
    }
}
