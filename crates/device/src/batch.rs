//! Batched writes: many requests in flight, one wait, the first error wins.
//!
//! Neighbouring blocks become one vectored request, because a device (and the host's file system
//! below an image) pays per request rather than per block.

use crate::in_flight::InFlight;
use crate::{DevOffset, DeviceError, Flags, IoPriority, IoSlice, Op, Request, SharedDevice};
use std::sync::Arc;

/// Requests in flight at once. Enough to keep a fast device busy, few enough that foreground
/// reads still get their turn.
const IN_FLIGHT_MAX: usize = 32;
/// Upper bound of one request in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Writes on their way to one device. Adjacent pushes are merged.
pub struct WriteBatch {
    device: SharedDevice,
    flags: Flags,
    priority: IoPriority,
    request_bytes_max: usize,
    in_flight: InFlight,
    start: u64,
    bytes: usize,
    slices: Vec<IoSlice>,
}

impl WriteBatch {
    /// An empty batch; every request of it carries `flags` and has this priority.
    #[must_use]
    pub fn new(device: &SharedDevice, flags: Flags, priority: IoPriority) -> Self {
        let limit = device.geometry().request_bytes_max as usize;
        WriteBatch {
            device: Arc::clone(device),
            flags,
            priority,
            request_bytes_max: limit.clamp(1 << 16, REQUEST_BYTES_MAX),
            in_flight: InFlight::default(),
            start: 0,
            bytes: 0,
            slices: Vec::new(),
        }
    }

    /// Adds a write. Submits what was gathered before when the new write does not follow it.
    pub fn push(&mut self, offset: DevOffset, slice: IoSlice) {
        let follows = offset.0 == self.start + self.bytes as u64;
        if !follows || self.bytes + slice.len() > self.request_bytes_max {
            self.submit();
        }
        if self.slices.is_empty() {
            self.start = offset.0;
        }
        self.bytes += slice.len();
        self.slices.push(slice);
    }

    fn submit(&mut self) {
        if self.slices.is_empty() {
            return;
        }
        let slices = std::mem::take(&mut self.slices);
        self.bytes = 0;
        self.in_flight.begin(IN_FLIGHT_MAX);
        let in_flight = self.in_flight.clone();
        let mut request = Request::new(Op::Write(slices), DevOffset(self.start), move |done| {
            in_flight.end(done.result);
        });
        request.flags = self.flags;
        request.priority = self.priority;
        self.device.submit(request);
    }

    /// Writes the rest and waits for everything. The last request is done in this thread, which would only wait for it. So a
    /// small transaction with one request needs no other thread.
    ///
    /// # Errors
    /// The first error that a request reported.
    pub fn finish(mut self) -> Result<(), DeviceError> {
        // The work of this thread has this thread's priority.
        if self.priority != IoPriority::current() {
            self.submit();
        }
        let last = if self.slices.is_empty() {
            Ok(())
        } else {
            self.device
                .write_vectored_at(DevOffset(self.start), &self.slices, self.flags)
        };
        let others = self.in_flight.wait();
        others.and(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, MemoryDevice};

    #[test]
    fn scattered_and_adjacent_writes_arrive() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        let mut batch = WriteBatch::new(&device, Flags::META, IoPriority::default());
        for block in [0u64, 1, 2, 7, 8, 200, 3] {
            let slice = AlignedBuf::copy_of(&[block as u8 + 1; 4096]).into();
            batch.push(DevOffset(block * 4096), slice);
        }
        batch.finish().expect("memory does not fail");
        for block in [0u64, 1, 2, 3, 7, 8, 200] {
            let mut found = [0u8; 4096];
            device
                .read_at(DevOffset(block * 4096), &mut found)
                .expect("in range");
            assert_eq!(found, [block as u8 + 1; 4096], "block {block}");
        }
    }

    #[test]
    fn an_error_is_reported() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(8192));
        let mut batch = WriteBatch::new(&device, Flags::META, IoPriority::default());
        batch.push(DevOffset(1 << 30), AlignedBuf::zeroed(4096).into());
        assert!(batch.finish().is_err());
    }
}
