//! Waiting for requests: the synchronous face of a device.

use crate::{AlignedBuf, BlockDevice, DevOffset, Done, Flags, Op, Request, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Submits one request and waits for it.
pub(crate) fn wait<D: BlockDevice + ?Sized>(
    device: &D,
    op: Op,
    offset: DevOffset,
    flags: Flags,
) -> Result<Option<AlignedBuf>> {
    let cell: Arc<(Mutex<Option<Done>>, Condvar)> = Arc::default();
    let theirs = Arc::clone(&cell);
    let mut request = Request::new(op, offset, move |done| {
        *theirs.0.lock() = Some(done);
        theirs.1.notify_one();
    });
    request.flags = flags;
    device.submit(request);
    let mut slot = cell.0.lock();
    loop {
        if let Some(done) = slot.take() {
            return done.result.map(|()| done.read);
        }
        cell.1.wait(&mut slot);
    }
}

pub(crate) fn read_through_submit<D: BlockDevice + ?Sized>(
    device: &D,
    offset: DevOffset,
    buf: &mut [u8],
) -> Result<()> {
    let filled = wait(
        device,
        Op::Read(AlignedBuf::for_overwrite(buf.len())),
        offset,
        Flags::empty(),
    )?;
    if let Some(filled) = filled {
        buf.copy_from_slice(&filled);
    }
    Ok(())
}

pub(crate) fn write_through_submit<D: BlockDevice + ?Sized>(
    device: &D,
    offset: DevOffset,
    buf: &[u8],
    flags: Flags,
) -> Result<()> {
    let op = Op::Write(vec![AlignedBuf::copy_of(buf).into()]);
    wait(device, op, offset, flags).map(|_| ())
}

/// Conveniences on top of every device.
pub trait DeviceExt: BlockDevice {
    /// Reads a fresh buffer of `bytes` bytes.
    ///
    /// # Errors
    /// As [`BlockDevice::read_at`].
    fn read_buf(&self, offset: DevOffset, bytes: usize) -> Result<AlignedBuf> {
        self.read_aligned(offset, AlignedBuf::for_overwrite(bytes))
    }

    /// Writes counted slices synchronously, without copying them.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    fn write_slices(
        &self,
        offset: DevOffset,
        slices: Vec<crate::IoSlice>,
        flags: Flags,
    ) -> Result<()> {
        self.write_vectored_at(offset, &slices, flags)
    }
}

impl<D: BlockDevice + ?Sized> DeviceExt for D {}
