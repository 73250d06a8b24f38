//! Threads for what may block: preparing a write, finishing one, synchronising.
//!
//! Not responsible for the work itself: the pool runs what it is handed, the finisher `completion::finish_batch`.
//!
//! A thread that takes turns with others ([`turns`]) hands nothing over, because another thread would run beside it. It runs the
//! tasks itself.
//!
//! # Locks
//! Only the pool may take an inode's lock or `invalidate`: truncation holds them while it waits for operations that finisher and
//! synchronisers have yet to end. That is why they are different threads.

use super::completion::{CompletedWrite, FINISH_MAX, finish_batch};
use crate::inode::Inode;
use blockwright_device::sim::turns;
use crossbeam_channel::Sender;
use std::sync::OnceLock;

pub(super) type Task = Box<dyn FnOnce() + Send>;

const POOL_THREADS: usize = 4;

/// Synchronisers beside each other share one commit.
const SYNC_THREADS: usize = 8;

/// Threads for what may block. Started when first needed; they end with the volume.
#[derive(Default)]
pub(crate) struct Workers {
    /// What concerns one file goes to one thread, in order: appends that were submitted one after another are
    /// allocated so, and do not wait for each other's lock.
    pool: [OnceLock<Sender<Task>>; POOL_THREADS],
    syncers: OnceLock<Sender<Task>>,
    finisher: OnceLock<Sender<CompletedWrite>>,
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

    pub(super) fn in_finisher(&self, finish: CompletedWrite) {
        if turns::takes_turns() {
            return finish_batch(&mut vec![finish]);
        }
        let queue = self.finisher.get_or_init(|| {
            let (send, receive) = crossbeam_channel::unbounded::<CompletedWrite>();
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
