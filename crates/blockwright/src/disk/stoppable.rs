//! A device whose writes, or reads, a caller can stop.

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

/// The requests of which a watch is asked, and that fail when it has broken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    Reads,
    Writes,
}

/// The device below, until the watch breaks: from then on all writes fail, or all reads.
pub(super) struct Stoppable {
    inner: SharedDevice,
    watch: WriteWatch,
    watched: Watched,
    done: AtomicU64,
    stopped: AtomicBool,
}

fn stopped() -> DeviceErrorKind {
    DeviceErrorKind::Refused {
        why: "stopped".to_owned(),
    }
}

impl Stoppable {
    /// A device whose writes the watch stops.
    pub fn new(inner: SharedDevice, watch: WriteWatch) -> Self {
        Self::of(Watched::Writes, inner, watch)
    }

    /// A device whose reads the watch stops: it is asked before each read, and told the bytes that were read before.
    pub fn of_reads(inner: SharedDevice, watch: WriteWatch) -> Self {
        Self::of(Watched::Reads, inner, watch)
    }

    fn of(watched: Watched, inner: SharedDevice, watch: WriteWatch) -> Self {
        Stoppable {
            inner,
            watch,
            watched,
            done: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Whether the watch has stopped the requests.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether a request of this kind with this many bytes may go on.
    fn may(&self, kind: Watched, bytes: u64) -> bool {
        if kind != self.watched {
            return true;
        }
        let total = self.inner.geometry().bytes;
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
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
        let kind = match &request.op {
            Op::Flush => None,
            Op::Read(_) => Some(Watched::Reads),
            Op::Write(_) | Op::WriteZeroes { .. } | Op::Discard { .. } => Some(Watched::Writes),
        };
        if kind.is_some_and(|kind| !self.may(kind, request.op.bytes())) {
            let error = request.error(stopped());
            return request.complete(Err(error));
        }
        self.inner.submit(request);
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> blockwright_device::Result<()> {
        let bytes = buf.len() as u64;
        if !self.may(Watched::Reads, bytes) {
            return Err(DeviceError {
                op: "read",
                offset,
                bytes,
                kind: stopped(),
            });
        }
        self.inner.read_at(offset, buf)
    }

    /// In pieces, so that the watch is asked between them.
    fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> blockwright_device::Result<()> {
        let mut done = 0;
        while done < bytes {
            let (at, piece) = (DevOffset(offset.0 + done), ZEROES_MAX.min(bytes - done));
            if !self.may(Watched::Writes, piece) {
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
