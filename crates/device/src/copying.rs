//! Batched copies inside a device: each piece is read, and written elsewhere by the completion of its read.
//!
//! The thread that orders copies waits only while too many are in flight, so reads and writes overlap.

use crate::in_flight::InFlight;
use crate::{AlignedBuf, DevOffset, DeviceError, IoPriority, Op, Request, SharedDevice};
use std::sync::Arc;

/// Pieces in flight at once. They bound the memory, too.
const IN_FLIGHT_MAX: usize = 16;
/// Upper bound of one piece in bytes.
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// Copies on their way. Those that follow one another at both places are merged.
///
/// Until [`CopyBatch::finish`] has returned `Ok`, the destinations hold anything, and neither they nor the sources may be written. Dropping it waits for what is in flight.
pub struct CopyBatch {
    device: SharedDevice,
    piece_bytes_max: u64,
    in_flight: InFlight,
    /// What is gathered: from where, to where, how many bytes.
    from: u64,
    to: u64,
    bytes: u64,
}

impl CopyBatch {
    /// An empty batch.
    #[must_use]
    pub fn new(device: &SharedDevice) -> Self {
        let limit = u64::from(device.geometry().request_bytes_max);
        CopyBatch {
            device: Arc::clone(device),
            piece_bytes_max: limit.clamp(1 << 16, PIECE_BYTES_MAX),
            in_flight: InFlight::default(),
            from: 0,
            to: 0,
            bytes: 0,
        }
    }

    /// Orders a copy; all three are multiples of the logical block size, and the ranges do not overlap. After an error nothing more is copied.
    pub fn push(&mut self, from: DevOffset, to: DevOffset, bytes: u64) {
        let (mut from, mut to, mut left) = (from.0, to.0, bytes);
        while left > 0 {
            let follows = from == self.from + self.bytes && to == self.to + self.bytes;
            if !follows || self.bytes == self.piece_bytes_max {
                self.submit();
                (self.from, self.to) = (from, to);
            }
            let piece = left.min(self.piece_bytes_max - self.bytes);
            self.bytes += piece;
            from += piece;
            to += piece;
            left -= piece;
        }
    }

    fn submit(&mut self) {
        let (from, to) = (DevOffset(self.from), DevOffset(self.to));
        let bytes = std::mem::take(&mut self.bytes);
        if bytes == 0 || self.in_flight.has_failed() {
            return;
        }
        self.in_flight.begin(IN_FLIGHT_MAX);
        let buf = AlignedBuf::for_transfer(bytes as usize);
        let (device, in_flight) = (Arc::clone(&self.device), self.in_flight.clone());
        let priority = IoPriority::current();
        self.device
            .submit(Request::new(Op::Read(buf), from, move |done| {
                let buf = match (done.result, done.read) {
                    (Ok(()), Some(buf)) => buf,
                    (Ok(()), None) => unreachable!("the buffer of a read comes back"),
                    (Err(error), _) => return in_flight.end(Err(error)),
                };
                let mut write = Request::new(Op::Write(vec![buf.into()]), to, move |done| {
                    in_flight.end(done.result);
                });
                // The completion's thread has another.
                write.priority = priority;
                device.submit(write);
            }));
    }

    /// Copies the rest and waits for everything. The batch is empty then.
    ///
    /// # Errors
    /// The first error that a request reported.
    pub fn finish(&mut self) -> Result<(), DeviceError> {
        self.submit();
        self.in_flight.wait()
    }
}

impl Drop for CopyBatch {
    fn drop(&mut self) {
        // A caller that does not ask for the result has an error of its own.
        let _ = self.in_flight.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockDevice, Flags, Geometry, MemoryDevice};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    const BLOCK: u64 = 4096;

    fn numbered(blocks: u64) -> SharedDevice {
        let device: SharedDevice = Arc::new(MemoryDevice::new(blocks * BLOCK));
        for block in 0..blocks {
            let bytes = [block as u8; BLOCK as usize];
            device
                .write_at(DevOffset(block * BLOCK), &bytes, Flags::empty())
                .expect("in range");
        }
        device
    }

    fn block(device: &SharedDevice, n: u64) -> u8 {
        let mut found = [0; BLOCK as usize];
        device
            .read_at(DevOffset(n * BLOCK), &mut found)
            .expect("in range");
        assert!(found.iter().all(|b| *b == found[0]));
        found[0]
    }

    #[test]
    fn merged_and_split_copies_arrive() {
        let device = numbered(4096);
        let mut batch = CopyBatch::new(&device);
        // One longer than a piece, and neighbours one by one, in front of it and elsewhere.
        batch.push(DevOffset(100 * BLOCK), DevOffset(1100 * BLOCK), 700 * BLOCK);
        for n in 0..5 {
            batch.push(
                DevOffset((10 + n) * BLOCK),
                DevOffset((3000 + n) * BLOCK),
                BLOCK,
            );
            batch.push(
                DevOffset((20 + n) * BLOCK),
                DevOffset((3500 - n) * BLOCK),
                BLOCK,
            );
        }
        batch.finish().expect("memory does not fail");
        for n in 0..700 {
            assert_eq!(block(&device, 1100 + n), (100 + n) as u8);
        }
        for n in 0..5 {
            assert_eq!(block(&device, 3000 + n), 10 + n as u8);
            assert_eq!(block(&device, 3500 - n), 20 + n as u8);
        }
        assert_eq!(block(&device, 1099), 1099_u64 as u8, "in front of it");
        assert_eq!(block(&device, 1800), 1800_u64 as u8, "behind it");
        // Empty, and used again.
        batch.push(DevOffset(0), DevOffset(BLOCK), BLOCK);
        batch.finish().expect("memory does not fail");
        assert_eq!(block(&device, 1), 0);
    }

    /// A device that takes its time: requests are done one after another by a thread of its own.
    struct Later {
        memory: Arc<MemoryDevice>,
        queue: mpsc::Sender<Request>,
        /// Pieces that are read and not yet written, and the most that there were.
        open: Arc<AtomicUsize>,
        most: AtomicUsize,
    }

    impl Later {
        fn new(blocks: u64) -> Arc<Self> {
            let memory = Arc::new(MemoryDevice::new(blocks * BLOCK));
            let open = Arc::new(AtomicUsize::new(0));
            let (queue, requests) = mpsc::channel::<Request>();
            let (theirs, ended) = (Arc::clone(&memory), Arc::clone(&open));
            thread::spawn(move || {
                for request in requests {
                    thread::sleep(Duration::from_micros(200));
                    if matches!(request.op, Op::Write(_)) {
                        ended.fetch_sub(1, Ordering::SeqCst);
                    }
                    theirs.submit(request);
                }
            });
            Arc::new(Later {
                memory,
                queue,
                open,
                most: AtomicUsize::new(0),
            })
        }
    }

    impl BlockDevice for Later {
        fn geometry(&self) -> Geometry {
            self.memory.geometry()
        }

        fn submit(&self, request: Request) {
            if matches!(request.op, Op::Read(_)) {
                let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(open, Ordering::SeqCst);
            }
            self.queue.send(request).expect("a thread");
        }

        fn name(&self) -> String {
            "later".to_owned()
        }
    }

    #[test]
    fn many_are_in_flight_and_a_bound_holds() {
        let later = Later::new(4096);
        let device: SharedDevice = Arc::clone(&later) as SharedDevice;
        let mut batch = CopyBatch::new(&device);
        for n in 0..64 {
            batch.push(
                DevOffset(2 * n * BLOCK),
                DevOffset((2000 + 2 * n) * BLOCK),
                BLOCK,
            );
        }
        // A batch that is dropped early leaves no request that still writes.
        drop(batch);
        assert_eq!(later.open.load(Ordering::SeqCst), 0);
        assert_eq!(later.most.load(Ordering::SeqCst), IN_FLIGHT_MAX);
    }

    #[test]
    fn errors_of_reads_and_writes_are_reported() {
        let device = numbered(8);
        for (from, to) in [(100, 0), (0, 100)] {
            let mut batch = CopyBatch::new(&device);
            batch.push(DevOffset(from * BLOCK), DevOffset(to * BLOCK), BLOCK);
            assert!(batch.finish().is_err(), "{from} to {to}");
        }
    }
}
