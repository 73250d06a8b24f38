//! A device that notes what was written, for the engine's checks.

use crate::locks::Mutex;
use blockwright_device::{
    BlockDevice, DeviceError, DeviceErrorKind, Done, Geometry, Op, Request, SharedDevice,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The device under a [`MemEngine`]: notes which blocks were written, and fails on demand.
pub struct TrackedDevice {
    pub(super) inner: SharedDevice,
    pub(super) block: u64,
    pub(super) written: Arc<Mutex<HashSet<u64>>>,
    /// Writes fail while set.
    pub fail_writes: AtomicBool,
    /// Reads fail while set.
    pub fail_reads: AtomicBool,
    /// Write requests so far.
    pub writes: AtomicU64,
    /// Offsets of write requests, in the order of submission.
    pub write_order: Mutex<Vec<(u64, u64)>>,
}

impl BlockDevice for TrackedDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, mut request: Request) {
        let fail = match request.op {
            Op::Write(_) => self.fail_writes.load(Ordering::SeqCst),
            Op::Read(_) => self.fail_reads.load(Ordering::SeqCst),
            _ => false,
        };
        if fail {
            let error = DeviceError {
                op: request.op.name(),
                offset: request.offset,
                bytes: request.op.bytes(),
                kind: DeviceErrorKind::Os(5),
            };
            (request.done)(Done {
                result: Err(error),
                read: None,
            });
            return;
        }
        if matches!(request.op, Op::Write(_)) {
            self.writes.fetch_add(1, Ordering::Relaxed);
            let bytes = request.op.bytes();
            self.write_order.lock().push((request.offset.0, bytes));
            let range =
                request.offset.0 / self.block..(request.offset.0 + bytes).div_ceil(self.block);
            let written = Arc::clone(&self.written);
            let done = request.done;
            request.done = Box::new(move |d: Done| {
                if d.result.is_ok() {
                    written.lock().extend(range);
                }
                done(d);
            });
        }
        self.inner.submit(request);
    }

    fn name(&self) -> String {
        format!("tracked {}", self.inner.name())
    }
}
