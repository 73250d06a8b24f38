//! Long calls: their progress is told to a Python function, and an exception of it or a signal stops them.

use crate::error::exception;
use parking_lot::Mutex;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often a progress function is called at most.
const BETWEEN: Duration = Duration::from_millis(20);
/// How often the caller's thread looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// So many bytes are wanted of a Python object.
struct Wanted {
    object: Arc<Py<PyAny>>,
    bytes: usize,
    answer: mpsc::Sender<io::Result<Vec<u8>>>,
}

/// A long call. The first exception is kept; the progress function is not called again, and the call stops where it can.
pub(crate) struct Watched {
    call: Option<Py<PyAny>>,
    state: Mutex<(Option<Instant>, Option<PyErr>)>,
    wanted: Mutex<VecDeque<Wanted>>,
    caller: Mutex<Thread>,
}

/// Wakes the caller, also after a panic.
struct Ended<'a> {
    flag: &'a AtomicBool,
    caller: Thread,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Release);
        self.caller.unpark();
    }
}

impl Watched {
    /// With the progress function, if there is one.
    pub(crate) fn new(call: Option<Py<PyAny>>) -> Arc<Self> {
        Arc::new(Watched {
            call,
            state: Mutex::new((None, None)),
            wanted: Mutex::new(VecDeque::new()),
            caller: Mutex::new(thread::current()),
        })
    }

    /// Tells a step, and says whether to go on. `always`: also when another one has just been told.
    pub(crate) fn tell(&self, step: &str, done: u64, total: u64, always: bool) -> ControlFlow<()> {
        let Some(call) = &self.call else {
            return self.goes_on();
        };
        {
            let mut state = self.state.lock();
            if state.1.is_some() {
                return ControlFlow::Break(());
            }
            let now = Instant::now();
            let soon = state.0.is_some_and(|last| now - last < BETWEEN);
            if soon && !always {
                return ControlFlow::Continue(());
            }
            state.0 = Some(now);
        }
        // The lock is free: the function may take long.
        let told = Python::attach(|py| call.call1(py, (step, done, total)).map(drop));
        if let Err(e) = told {
            self.fail(e);
        }
        self.goes_on()
    }

    fn fail(&self, e: PyErr) {
        self.state.lock().1.get_or_insert(e);
    }

    /// Whether nothing has stopped the call.
    pub(crate) fn goes_on(&self) -> ControlFlow<()> {
        match self.state.lock().1 {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// Has the caller's thread read a Python object: there a signal interrupts a read that waits, and objects that belong to a thread work.
    ///
    /// # Errors
    /// The exception of the object in words.
    pub(crate) fn read(&self, object: &Arc<Py<PyAny>>, bytes: usize) -> io::Result<Vec<u8>> {
        let (answer, answered) = mpsc::channel();
        self.wanted.lock().push_back(Wanted {
            object: Arc::clone(object),
            bytes,
            answer,
        });
        self.caller.lock().unpark();
        let ended = |_| io::Error::other("the call has ended");
        answered.recv().map_err(ended)?
    }

    fn serve(&self, py: Python<'_>) {
        loop {
            let Some(wanted) = self.wanted.lock().pop_front() else {
                return;
            };
            let read = match self.goes_on() {
                ControlFlow::Break(()) => Err(io::Error::other("stopped")),
                ControlFlow::Continue(()) => {
                    let read = wanted.object.call_method1(py, "read", (wanted.bytes,));
                    let bytes: PyResult<Vec<u8>> = read.and_then(|b| b.extract(py));
                    bytes.map_err(|e| {
                        let text = e.to_string();
                        // Of a signal, or of `sys.exit`.
                        if !e.is_instance_of::<PyException>(py) {
                            self.fail(e);
                        }
                        io::Error::other(text)
                    })
                }
            };
            // The asking thread may have ended.
            let _unheard = wanted.answer.send(read);
        }
    }

    /// Does the work on a thread of its own, without the interpreter. The caller's thread takes signals meanwhile, which only the main thread can: `KeyboardInterrupt`
    /// stops the work as an exception of the progress function does. Either comes out when the work has ended, also when it came too late to stop it.
    pub(crate) fn run<R: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce() -> blockwright::Result<R>,
    ) -> PyResult<R> {
        *self.caller.lock() = thread::current();
        let flag = AtomicBool::new(false);
        let ended = Ended {
            flag: &flag,
            caller: thread::current(),
        };
        let done = thread::scope(|scope| {
            let running = scope.spawn(move || {
                let _ended = ended;
                work()
            });
            while !flag.load(Ordering::Acquire) {
                py.detach(|| thread::park_timeout(SIGNALS));
                self.serve(py);
                if let Err(e) = py.check_signals() {
                    self.fail(e);
                }
            }
            py.detach(|| running.join())
        });
        if let Some(e) = self.state.lock().1.take() {
            return Err(e);
        }
        match done {
            Ok(done) => done.map_err(|e| exception(&e)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
