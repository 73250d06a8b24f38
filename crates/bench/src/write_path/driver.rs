//! Keeps a number of submitted operations in flight, and says when all are done.
//!
//! Two ways of being an application: *chained*, where each completion submits the next operation, in
//! the device's context (what a program built on completions does); and *asking*, where one thread
//! submits and waits (what a program with a loop does, libaio's users among them).

use blockwright::File;
use blockwright_device::{AlignedBuf, DevOffset, IoSlice, Op, Request, SharedDevice};
use blockwright_vfs::{Handle, Patience, WriteOp};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Which thread submits the next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The completion of one before it.
    Chained,
    /// The thread that waits for all.
    Asking,
}

/// What is written to.
#[derive(Clone)]
pub enum To {
    File(Arc<Handle>),
    Device(SharedDevice),
}

impl From<&File> for To {
    fn from(file: &File) -> Self {
        To::File(Arc::clone(file.handle()))
    }
}

struct Run {
    to: To,
    /// One slice per place in flight, shared by all its operations.
    data: Vec<IoSlice>,
    offset: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    total: u64,
    next: AtomicU64,
    finished: AtomicU64,
    in_flight: AtomicUsize,
    depth: usize,
    style: Style,
    failed: Mutex<Option<String>>,
    woken: Condvar,
}

thread_local! {
    /// Places that became free inside the submission of another operation, on this thread.
    static FREED: RefCell<Vec<(Arc<Run>, usize)>> = const { RefCell::new(Vec::new()) };
    static PUMPING: Cell<bool> = const { Cell::new(false) };
}

impl Run {
    /// Submits the next operation from this place, if one is left.
    fn submit(self: &Arc<Self>, place: usize) {
        let k = self.next.fetch_add(1, Ordering::Relaxed);
        if k >= self.total {
            return;
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        let me = Arc::clone(self);
        let slices = vec![self.data[place].clone()];
        let offset = (self.offset)(k);
        let told = move |error: Option<String>| {
            if let Some(e) = error
                && let Ok(mut failed) = me.failed.lock()
            {
                failed.get_or_insert(e);
            }
            me.done(place);
        };
        match &self.to {
            To::File(handle) => {
                let done = move |result: blockwright_vfs::Result<usize>| {
                    told(result.err().map(|e| e.to_string()));
                };
                let op = WriteOp::at(offset, slices);
                handle.start(op, Box::new(done), Patience::Worker);
            }
            To::Device(device) => device.submit(Request::new(
                Op::Write(slices),
                DevOffset(offset),
                move |done| told(done.result.err().map(|e| e.to_string())),
            )),
        }
    }

    fn done(self: Arc<Self>, place: usize) {
        let before = self.in_flight.fetch_sub(1, Ordering::AcqRel);
        let finished = self.finished.fetch_add(1, Ordering::AcqRel) + 1;
        let wakes = match self.style {
            Style::Chained => finished == self.total,
            // The submitter sleeps only when all places are taken; half of them make a batch.
            Style::Asking => finished == self.total || before == self.depth.div_ceil(2),
        };
        if wakes {
            drop(self.failed.lock());
            self.woken.notify_all();
        }
        if self.style == Style::Chained {
            // Not from inside another submission, or a device that completes at once would recurse.
            FREED.with_borrow_mut(|freed| freed.push((self, place)));
            pump();
        }
    }
}

fn pump() {
    if PUMPING.replace(true) {
        return;
    }
    while let Some((run, place)) = FREED.with_borrow_mut(Vec::pop) {
        run.submit(place);
    }
    PUMPING.set(false);
}

/// Writes `total` operations of `bytes` bytes each with `depth` in flight; the k-th goes to `offset(k)`.
pub fn write(
    to: impl Into<To>,
    total: u64,
    bytes: usize,
    depth: usize,
    style: Style,
    offset: impl Fn(u64) -> u64 + Send + Sync + 'static,
) -> Result<(), String> {
    let data = (0..depth)
        .map(|k| AlignedBuf::copy_of(&vec![k as u8 | 1; bytes]).into())
        .collect();
    let run = Arc::new(Run {
        to: to.into(),
        data,
        offset: Box::new(offset),
        total,
        next: AtomicU64::new(0),
        finished: AtomicU64::new(0),
        in_flight: AtomicUsize::new(0),
        depth,
        style,
        failed: Mutex::new(None),
        woken: Condvar::new(),
    });
    match style {
        Style::Chained => {
            PUMPING.set(true);
            for place in 0..depth {
                run.submit(place);
            }
            PUMPING.set(false);
            pump();
        }
        Style::Asking => {
            let mut k = 0;
            while k < total {
                if run.in_flight.load(Ordering::Acquire) < depth {
                    run.submit((k % depth as u64) as usize);
                    k += 1;
                    continue;
                }
                let mut guard = run.failed.lock().map_err(|e| e.to_string())?;
                while run.in_flight.load(Ordering::Acquire) > depth / 2 {
                    guard = run.woken.wait(guard).map_err(|e| e.to_string())?;
                }
            }
        }
    }
    let mut failed = run.failed.lock().map_err(|e| e.to_string())?;
    while run.finished.load(Ordering::Acquire) < total {
        failed = run.woken.wait(failed).map_err(|e| e.to_string())?;
    }
    match failed.take() {
        Some(e) => Err(e),
        None => Ok(()),
    }
}
