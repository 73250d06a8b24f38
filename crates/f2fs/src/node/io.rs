//! Reads of scattered blocks: many requests in flight, one wait, the first error wins.
//!
//! Neighbouring blocks become one request, because a device pays per request rather than per block.

use blockwright_device::{
    AlignedBuf, DevOffset, DeviceError, IoPriority, IoSlice, Op, Request, SharedDevice,
};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Upper bound of one request in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

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
