//! A few threads for requests that may wait for the container's file. They start with the first such request.

use blockwright_device::{DeviceErrorKind, Request, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Threads of one device.
const THREADS: usize = 4;

/// Does a request. It is completed with the result.
type Perform = dyn Fn(&mut Request) -> Result<()> + Send + Sync;

/// The threads, and what they do. Dropping it waits until all that was pushed is done.
pub(crate) struct Pool {
    perform: Arc<Perform>,
    started: Mutex<Started>,
}

#[derive(Default)]
struct Started {
    queue: Option<Sender<Request>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn new(
        perform: impl Fn(&mut Request) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Pool {
            perform: Arc::new(perform),
            started: Mutex::default(),
        }
    }

    /// Hands a request to the threads.
    pub(crate) fn push(&self, request: Request) {
        let mut started = self.started.lock();
        if started.queue.is_none() {
            let (queue, jobs) = channel();
            started.queue = Some(queue);
            let jobs = Arc::new(Mutex::new(jobs));
            for _ in 0..THREADS {
                let (perform, jobs) = (Arc::clone(&self.perform), Arc::clone(&jobs));
                let thread = std::thread::Builder::new().name("container".to_owned());
                if let Ok(thread) = thread.spawn(move || serve(&*perform, &jobs)) {
                    started.threads.push(thread);
                }
            }
        }
        let back = match &started.queue {
            Some(queue) if !started.threads.is_empty() => queue.send(request).err().map(|e| e.0),
            _ => Some(request),
        };
        drop(started);
        match back {
            // There are no threads at all. The device below waits for its file in its caller, too.
            Some(mut request) if cfg!(target_os = "wasi") => {
                let result = (self.perform)(&mut request);
                request.complete(result);
            }
            Some(request) => {
                const EAGAIN: i32 = 11;
                let error = request.error(DeviceErrorKind::Os(EAGAIN));
                request.complete(Err(error));
            }
            None => {}
        }
    }
}

fn serve(perform: &Perform, jobs: &Mutex<Receiver<Request>>) {
    loop {
        let job = jobs.lock().recv();
        let Ok(mut request) = job else {
            return;
        };
        let result = perform(&mut request);
        request.complete(result);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let started = self.started.get_mut();
        started.queue = None;
        let me = std::thread::current().id();
        for thread in started.threads.drain(..) {
            // The last owner may be a completion on one of these threads.
            if thread.thread().id() != me {
                // A panic was that thread's.
                let _panicked = thread.join();
            }
        }
    }
}
