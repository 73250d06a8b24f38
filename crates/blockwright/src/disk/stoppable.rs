//! A device whose writes a caller can stop.

use blockwright_device::{
    BlockDevice, DevOffset, DeviceError, DeviceErrorKind, Geometry, Op, Request, SharedDevice,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Asked before each write, from any thread: how many bytes were written before, of at most how many.
pub type WriteWatch = Arc<dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync>;

/// Bytes that are zeroed at once. A host may have to write the zeroes, which takes long for a whole partition.
const ZEROES_MAX: u64 = 32 << 20;

/// The device below, until the watch breaks: from then on all writes fail.
pub(super) struct Stoppable {
    inner: SharedDevice,
    watch: WriteWatch,
    written: AtomicU64,
    stopped: AtomicBool,
}

fn stopped() -> DeviceErrorKind {
    DeviceErrorKind::Refused {
        why: "stopped".to_owned(),
    }
}

impl Stoppable {
    pub fn new(inner: SharedDevice, watch: WriteWatch) -> Self {
        Stoppable {
            inner,
            watch,
            written: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Whether the watch has stopped the writes.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether this many bytes may be written.
    fn may_write(&self, bytes: u64) -> bool {
        let total = self.inner.geometry().bytes;
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if !self.is_stopped() && (self.watch)(before.min(total), total).is_break() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        !self.is_stopped()
    }
}

impl BlockDevice for Stoppable {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        let changes = match &request.op {
            Op::Read(_) | Op::Flush => None,
            Op::Write(_) | Op::WriteZeroes { .. } | Op::Discard { .. } => Some(request.op.bytes()),
        };
        if changes.is_some_and(|bytes| !self.may_write(bytes)) {
            let error = request.error(stopped());
            return request.complete(Err(error));
        }
        self.inner.submit(request);
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> blockwright_device::Result<()> {
        self.inner.read_at(offset, buf)
    }

    /// In pieces, so that the watch is asked between them.
    fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> blockwright_device::Result<()> {
        let mut done = 0;
        while done < bytes {
            let (at, piece) = (DevOffset(offset.0 + done), ZEROES_MAX.min(bytes - done));
            if !self.may_write(piece) {
                return Err(DeviceError {
                    op: "write-zeroes",
                    offset: at,
                    bytes: piece,
                    kind: stopped(),
                });
            }
            self.inner.write_zeroes(at, piece)?;
            done += piece;
        }
        Ok(())
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        self.inner.next_data(offset)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
