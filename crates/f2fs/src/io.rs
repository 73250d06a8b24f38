//! Batched writes, and reads of scattered blocks: many requests in flight, one wait, the first error wins.
//!
//! Neighbouring blocks become one vectored request, because a device pays per request rather than per
//! block.

use blockwright_device::{
    AlignedBuf, DevOffset, DeviceError, Flags, IoPriority, IoSlice, Op, Request, SharedDevice,
};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Requests in flight at once.
const IN_FLIGHT_MAX: usize = 32;
/// Upper bound of one request in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

type Progress = Arc<(Mutex<(usize, Option<DeviceError>)>, Condvar)>;

/// Writes on their way to one device. Adjacent pushes are merged.
pub(crate) struct WriteBatch {
    device: SharedDevice,
    priority: IoPriority,
    flags: Flags,
    bytes_max: usize,
    progress: Progress,
    start: u64,
    bytes: usize,
    slices: Vec<IoSlice>,
}

impl WriteBatch {
    /// An empty batch; every request of it has this priority.
    pub(crate) fn new(device: &SharedDevice, priority: IoPriority) -> Self {
        let limit = device.geometry().request_bytes_max as usize;
        WriteBatch {
            device: Arc::clone(device),
            priority,
            flags: Flags::META,
            bytes_max: limit.clamp(1 << 16, REQUEST_BYTES_MAX),
            progress: Arc::default(),
            start: 0,
            bytes: 0,
            slices: Vec::new(),
        }
    }

    /// As [`WriteBatch::new`], for data of files.
    pub(crate) fn for_data(device: &SharedDevice, priority: IoPriority) -> Self {
        WriteBatch {
            flags: Flags::empty(),
            ..WriteBatch::new(device, priority)
        }
    }

    /// Adds a write. Submits what was gathered before when the new write does not follow it.
    pub(crate) fn push(&mut self, offset: DevOffset, slice: IoSlice) {
        let follows = offset.0 == self.start + self.bytes as u64;
        if !follows || self.bytes + slice.len() > self.bytes_max {
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
        {
            let (lock, changed) = &*self.progress;
            let mut progress = lock.lock();
            while progress.0 >= IN_FLIGHT_MAX {
                changed.wait(&mut progress);
            }
            progress.0 += 1;
        }
        let theirs = Arc::clone(&self.progress);
        let mut request = Request::new(Op::Write(slices), DevOffset(self.start), move |done| {
            let (lock, changed) = &*theirs;
            let mut progress = lock.lock();
            progress.0 -= 1;
            if let Err(error) = done.result {
                progress.1.get_or_insert(error);
            }
            changed.notify_all();
        });
        request.flags = self.flags;
        request.priority = self.priority;
        self.device.submit(request);
    }

    /// Submits the rest and waits for everything.
    ///
    /// # Errors
    /// The first error that a request reported.
    pub(crate) fn finish(mut self) -> Result<(), DeviceError> {
        self.submit();
        let (lock, changed) = &*self.progress;
        let mut progress = lock.lock();
        while progress.0 > 0 {
            changed.wait(&mut progress);
        }
        progress.1.take().map_or(Ok(()), Err)
    }
}

/// Reads scattered blocks, neighbours in one request. In the order asked for.
///
/// # Errors
/// The first error that a request reported.
pub(crate) fn read_blocks(
    device: &SharedDevice,
    priority: IoPriority,
    blocks: &[BlockAddr],
) -> Result<Vec<IoSlice>, DeviceError> {
    let mut runs: Vec<(BlockAddr, usize)> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((start, n))
                if start.0 + *n as u32 == block.0 && *n * BLOCK_SIZE < REQUEST_BYTES_MAX =>
            {
                *n += 1;
            }
            _ => runs.push((*block, 1)),
        }
    }
    type Found = (usize, Vec<Option<AlignedBuf>>, Option<DeviceError>);
    let found = vec![None; runs.len()];
    let shared: Arc<(Mutex<Found>, Condvar)> =
        Arc::new((Mutex::new((runs.len(), found, None)), Condvar::new()));
    for (slot, (start, n)) in runs.iter().enumerate() {
        let theirs = Arc::clone(&shared);
        let op = Op::Read(AlignedBuf::for_overwrite(n * BLOCK_SIZE));
        let at = DevOffset(u64::from(start.0) << 12);
        let mut request = Request::new(op, at, move |done| {
            let (lock, changed) = &*theirs;
            let mut found = lock.lock();
            found.0 -= 1;
            found.1[slot] = done.read;
            if let Err(error) = done.result {
                found.2.get_or_insert(error);
            }
            changed.notify_all();
        });
        request.priority = priority;
        device.submit(request);
    }
    let (lock, changed) = &*shared;
    let mut found = lock.lock();
    while found.0 > 0 {
        changed.wait(&mut found);
    }
    if let Some(error) = found.2.take() {
        return Err(error);
    }
    let mut out = Vec::with_capacity(blocks.len());
    for buf in found.1.drain(..).flatten() {
        let buf = Arc::new(buf);
        for at in (0..buf.len()).step_by(BLOCK_SIZE) {
            out.push(IoSlice::new(Arc::clone(&buf), at..at + BLOCK_SIZE));
        }
    }
    Ok(out)
}
