//! Threads for what may block: preparing a write, finishing one, synchronising.
//!
//! Not responsible for what they do: the pool runs what it is handed, the finisher `landing::finish_batch`. A thread that brings device I/O to its end
//! itself finishes what lands in it, where the engine says that this is allowed ([`finish_here`]); the rules for the finisher are its rules then.
//!
//! A thread that takes turns with others ([`turns`]) hands nothing over: another thread would run beside it. It carries tasks out itself.
//!
//! # Locks
//! Only the pool may take an inode's lock or `invalidate`: truncation holds them while it waits for operations that finisher and
//! synchronisers have yet to end. That is why they are different threads.

use super::landing::{WriteFlight, finish_batch};
use crate::inode::Inode;
use blockwright_device::DeviceError;
use blockwright_device::sim::turns;
use crossbeam_channel::Sender;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

pub(super) type Task = Box<dyn FnOnce() + Send>;

pub(super) type Finish = (WriteFlight, Option<DeviceError>);

thread_local! {
    /// What landed in a thread that finishes it itself.
    static LANDED: RefCell<Option<Vec<Finish>>> = const { RefCell::new(None) };
}

/// Does something in the course of which direct writes land in this thread, because it carries out its own device I/O; then finishes them
/// here, together, as far as that can begin at once. The others go to the finisher.
///
/// The thread holds no lock of the vfs's or the engine's, and `job` waits for no direct write that lands here.
pub fn finish_here<R>(job: impl FnOnce() -> R) -> R {
    /// Also when the job panics: whoever wrote waits.
    struct Ending;
    impl Drop for Ending {
        fn drop(&mut self) {
            let mut batch = LANDED.take().unwrap_or_default();
            let Some((first, _)) = batch.first() else {
                return;
            };
            let core = Arc::clone(first.handle.core());
            let alone = batch
                .iter()
                .all(|(flight, _)| Arc::ptr_eq(flight.handle.core(), &core));
            if alone && core.engine.commits_at_once() {
                let n = batch.len() as u64;
                core.counters
                    .direct_finished_here
                    .fetch_add(n, Ordering::Relaxed);
                finish_batch(&mut batch);
                return;
            }
            for finish in batch {
                let core = Arc::clone(finish.0.handle.core());
                core.workers.in_finisher(finish);
            }
        }
    }
    LANDED.set(Some(Vec::new()));
    let _ending = Ending;
    job()
}

/// Keeps a write that landed until [`finish_here`] comes to its end, if this thread is in it. Otherwise it comes back.
pub(super) fn keep_landed(finish: Finish) -> Option<Finish> {
    LANDED.with_borrow_mut(|landed| match landed {
        Some(landed) if landed.len() < FINISH_MAX => {
            landed.push(finish);
            None
        }
        _ => Some(finish),
    })
}

const POOL_THREADS: usize = 4;

/// Synchronisers beside each other share one commit.
const SYNC_THREADS: usize = 8;

/// Writes finished in one go.
const FINISH_MAX: usize = 256;

/// Threads for what may block. Started when first needed; they end with the volume.
#[derive(Default)]
pub(crate) struct Workers {
    /// What concerns one file goes to one thread, in order: appends that were submitted one after another are
    /// allocated so, and do not wait for each other's lock.
    pool: [OnceLock<Sender<Task>>; POOL_THREADS],
    syncers: OnceLock<Sender<Task>>,
    finisher: OnceLock<Sender<Finish>>,
}

impl Workers {
    fn start(name: &str, threads: usize) -> Sender<Task> {
        let (send, receive) = crossbeam_channel::unbounded::<Task>();
        for _ in 0..threads {
            let receive = receive.clone();
            // Without any thread the channel is closed, and tasks run where they are handed in.
            let _ = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    for task in receive {
                        task();
                    }
                });
        }
        send
    }

    fn run(queue: &OnceLock<Sender<Task>>, name: &str, threads: usize, task: Task) {
        if turns::takes_turns() {
            return task();
        }
        let queue = queue.get_or_init(|| Self::start(name, threads));
        if let Err(back) = queue.send(task) {
            back.into_inner()();
        }
    }

    pub(super) fn in_pool(&self, file: &Inode, task: Task) {
        let k = file.ino().0 as usize % POOL_THREADS;
        Self::run(&self.pool[k], "bw-direct", 1, task);
    }

    pub(super) fn in_syncers(&self, task: Task) {
        Self::run(&self.syncers, "bw-sync", SYNC_THREADS, task);
    }

    pub(super) fn in_finisher(&self, finish: Finish) {
        if turns::takes_turns() {
            return finish_batch(&mut vec![finish]);
        }
        let queue = self.finisher.get_or_init(|| {
            let (send, receive) = crossbeam_channel::unbounded::<Finish>();
            let _ = std::thread::Builder::new()
                .name("bw-finisher".to_owned())
                .spawn(move || {
                    let mut batch = Vec::new();
                    for first in &receive {
                        batch.push(first);
                        batch.extend(receive.try_iter().take(FINISH_MAX - 1));
                        finish_batch(&mut batch);
                    }
                });
            send
        });
        if let Err(back) = queue.send(finish) {
            finish_batch(&mut vec![back.into_inner()]);
        }
    }
}
