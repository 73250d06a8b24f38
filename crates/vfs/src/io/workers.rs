//! Threads for what may block: preparing a write, finishing one, synchronising.
//!
//! Not responsible for the work itself, and does not know its types: the volume owns these threads, and the work holds the volume.
//! The finisher's queue is therefore kept without its type ([`Workers::in_finisher`]).
//!
//! A thread that takes turns with others ([`turns`]) hands nothing over, because another thread would run beside it. It runs the
//! tasks itself.
//!
//! # Locks
//! Only the pool may take an inode's lock or `invalidate`: truncation holds them while it waits for operations that finisher and
//! synchronisers have yet to end. That is why they are different threads.

use crate::inode::Inode;
use blockwright_device::sim::turns;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

pub(super) type Task = Box<dyn FnOnce() + Send>;

const POOL_THREADS: usize = 4;

/// Synchronisers beside each other share one commit.
const SYNC_THREADS: usize = 8;

/// Threads for what may block. Started when first needed; they end with the volume.
#[derive(Default)]
pub(crate) struct Workers {
    /// All work for one file goes to one thread, in order. So appends are allocated in the order of their
    /// submission, and do not wait for each other's lock.
    pool: [OnceLock<Sender<Task>>; POOL_THREADS],
    syncers: OnceLock<Sender<Task>>,
    /// A `Sender` of the work that [`Workers::in_finisher`] takes.
    finisher: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Workers {
    fn start(name: &str, threads: usize) -> Sender<Task> {
        let (send, receive) = mpsc::channel::<Task>();
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..threads {
            let receive = Arc::clone(&receive);
            // Without any thread the channel is closed, and tasks run where they are handed in.
            let _ = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    loop {
                        // One idle thread waits for a task, and the others for its place.
                        let task = receive.lock().recv();
                        match task {
                            Ok(task) => task(),
                            Err(_) => return,
                        }
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
            back.0();
        }
    }

    pub(super) fn in_pool(&self, file: &Inode, task: Task) {
        let k = file.ino().0 as usize % POOL_THREADS;
        Self::run(&self.pool[k], "bw-direct", 1, task);
    }

    pub(super) fn in_syncers(&self, task: Task) {
        Self::run(&self.syncers, "bw-sync", SYNC_THREADS, task);
    }

    /// Hands a write to the finisher, which calls `finish` with as many as wait, `together` at most. All calls for one volume are
    /// made with the same type and function.
    pub(super) fn in_finisher<W: Send + 'static>(
        &self,
        write: W,
        together: usize,
        finish: fn(&mut Vec<W>),
    ) {
        if turns::takes_turns() {
            return finish(&mut vec![write]);
        }
        let queue = self.finisher.get_or_init(|| {
            let (send, receive) = mpsc::channel::<W>();
            let _ = std::thread::Builder::new()
                .name("bw-finisher".to_owned())
                .spawn(move || {
                    let mut batch = Vec::new();
                    for first in &receive {
                        batch.push(first);
                        batch.extend(receive.try_iter().take(together - 1));
                        finish(&mut batch);
                    }
                });
            Box::new(send)
        });
        let left = match queue.downcast_ref::<Sender<W>>() {
            Some(queue) => queue.send(write).err().map(|back| back.0),
            None => Some(write),
        };
        if let Some(write) = left {
            finish(&mut vec![write]);
        }
    }
}
