//! The plain back end: a small pool of threads that perform requests one by one.
//!
//! Threads start when there is work and no idle thread, up to a limit, and live as long as the
//! device. Locks: the queue's, a leaf, never held during I/O or a completion.

use super::file::HostFile;
use super::perform;
use super::queue::{Queue, completing};
use super::sys;
use crate::{DeviceErrorKind, Request};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Enough to keep a device busy; more threads only move the queue.
const THREADS_MAX: usize = 16;
const QUEUED_MAX: usize = 1024;

struct Shared {
    file: Arc<HostFile>,
    queue: Queue<Request>,
    work: Condvar,
}

/// See the module's head.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    pub(super) fn new(file: Arc<HostFile>) -> Self {
        let shared = Shared {
            file,
            queue: Queue::new(QUEUED_MAX),
            work: Condvar::new(),
        };
        Pool {
            shared: Arc::new(shared),
            threads: Mutex::default(),
        }
    }

    pub(super) fn push(&self, request: Request) {
        let idle = self.shared.queue.push(request, |state| {
            if state.sleepers >= state.items.len() {
                self.shared.work.notify_one();
                return true;
            }
            false
        });
        if !idle {
            self.grow();
        }
    }

    fn grow(&self) {
        let mut threads = self.threads.lock();
        if threads.len() == THREADS_MAX {
            return;
        }
        let shared = Arc::clone(&self.shared);
        match thread::Builder::new()
            .name("device-io".into())
            .spawn(move || serve(&shared))
        {
            Ok(thread) => threads.push(thread),
            Err(_) if !threads.is_empty() => {} // those that run will get to it
            Err(error) => {
                // No thread at all: nothing would ever complete the queued requests.
                drop(threads);
                // A host without threads (WASI): the submitter performs its requests itself.
                let here = error.kind() == std::io::ErrorKind::Unsupported;
                let errno = error.raw_os_error().unwrap_or(sys::EAGAIN);
                let queued = std::mem::take(&mut self.shared.queue.lock().items);
                for mut request in queued {
                    let result = match here {
                        true => perform(&self.shared.file, &mut request),
                        false => Err(request.error(DeviceErrorKind::Os(errno))),
                    };
                    completing(|| self.shared.file.monitor.complete(request, result));
                }
            }
        }
    }
}

fn serve(shared: &Shared) {
    loop {
        let mut request = {
            let mut state = shared.queue.lock();
            loop {
                if let Some(request) = state.items.pop_front() {
                    shared.queue.taken(&state);
                    break request;
                }
                if state.closed {
                    return;
                }
                state.sleepers += 1;
                shared.work.wait(&mut state);
                state.sleepers -= 1;
            }
        };
        request.priority.adopt();
        let result = perform(&shared.file, &mut request);
        completing(|| shared.file.monitor.complete(request, result));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_all();
        let me = thread::current().id();
        for thread in self.threads.get_mut().drain(..) {
            // The last reference may be dropped by a completion, on one of these threads; that
            // one drains the queue with the others and ends by itself.
            if thread.thread().id() != me {
                let _panics_are_caught = thread.join().is_err();
            }
        }
    }
}
