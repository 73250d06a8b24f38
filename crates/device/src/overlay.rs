//! A device whose writes stay in memory: what is below it is only read.
//!
//! Purpose: to run code that writes (the recovery of a journal) for a volume that must not change.
//! Memory is taken for what is written and no more: counted slices of the writers' own buffers, one
//! entry per logical block.
//!
//! # Invariants
//! A block that was ever written, or zeroed, is never read from below again. Nothing but reads reaches
//! the device below. A discard changes nothing, as its contract allows; a flush has nothing to do.
//!
//! # Locks
//! One lock, a leaf: not held while the device below works.

use crate::{
    AlignedBuf, BlockDevice, DevOffset, Done, Flags, Geometry, IoSlice, Op, Request, Result,
    SharedDevice, refuse,
};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of a logical block.
type Block = u64;

/// Written blocks, by number.
type Written = RwLock<BTreeMap<Block, IoSlice>>;

/// Another device with private changes on top. See the module's head.
pub struct OverlayDevice {
    inner: SharedDevice,
    geometry: Geometry,
    written: Arc<Written>,
}

/// Lays what was written over bytes that were read from below.
fn patch(written: &Written, block_bytes: u64, offset: u64, buf: &mut [u8]) {
    let first = offset / block_bytes;
    let end = (offset + buf.len() as u64) / block_bytes;
    for (block, bytes) in written.read().range(first..end) {
        let at = ((block - first) * block_bytes) as usize;
        buf[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl OverlayDevice {
    /// An overlay without changes, also over a device that cannot be written.
    #[must_use]
    pub fn new(inner: SharedDevice) -> Self {
        let geometry = Geometry {
            read_only: false,
            discard: false,
            ..inner.geometry()
        };
        OverlayDevice {
            inner,
            geometry,
            written: Arc::default(),
        }
    }

    /// How many bytes differ from the device below, or may.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.written.read().len() as u64 * self.block_bytes()
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.geometry.logical_block_bytes)
    }

    fn patch(&self, offset: DevOffset, buf: &mut [u8]) {
        patch(&self.written, self.block_bytes(), offset.0, buf);
    }

    /// Keeps slices whose lengths were checked to be whole blocks.
    fn keep(&self, offset: DevOffset, slices: &[IoSlice]) {
        let len = self.geometry.logical_block_bytes as usize;
        let mut block = offset.0 / self.block_bytes();
        let mut written = self.written.write();
        for slice in slices {
            let slice = slice.to_keep();
            for at in (0..slice.len()).step_by(len) {
                written.insert(block, slice.slice(at..at + len));
                block += 1;
            }
        }
    }

    /// Zeroes share one block.
    fn keep_zeroes(&self, offset: DevOffset, bytes: u64) {
        let zero = IoSlice::from(AlignedBuf::zeroed(
            self.geometry.logical_block_bytes as usize,
        ));
        let first = offset.0 / self.block_bytes();
        let mut written = self.written.write();
        for block in first..first + bytes / self.block_bytes() {
            written.insert(block, zero.clone());
        }
    }
}

impl BlockDevice for OverlayDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        if let Err(error) = refuse::request(&self.geometry, &request) {
            return request.complete(Err(error));
        }
        let offset = request.offset;
        match &request.op {
            Op::Read(_) => {
                let (written, block) = (Arc::clone(&self.written), self.block_bytes());
                let done = request.done;
                request.done = Box::new(move |Done { result, mut read }| {
                    if let (Ok(()), Some(buf)) = (&result, &mut read) {
                        patch(&written, block, offset.0, buf);
                    }
                    done(Done { result, read });
                });
                return self.inner.submit(request);
            }
            Op::Write(slices) => self.keep(offset, slices),
            Op::WriteZeroes { bytes } => self.keep_zeroes(offset, *bytes),
            Op::Flush | Op::Discard { .. } => {}
        }
        request.complete(Ok(()));
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        let below = self.inner.next_data(offset);
        let block = self.block_bytes();
        let written = self.written.read();
        let first = written.range(offset.0 / block..).next();
        first.map_or(below, |(first, _)| {
            DevOffset((first * block).clamp(offset.0, below.0.max(offset.0)))
        })
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)?;
        self.patch(offset, buf);
        Ok(())
    }

    fn read_aligned(&self, offset: DevOffset, buf: AlignedBuf) -> Result<AlignedBuf> {
        let mut buf = self.inner.read_aligned(offset, buf)?;
        self.patch(offset, &mut buf);
        Ok(buf)
    }

    fn write_vectored_at(
        &self,
        offset: DevOffset,
        slices: &[IoSlice],
        _flags: Flags,
    ) -> Result<()> {
        refuse::slices(&self.geometry, offset, slices)?;
        self.keep(offset, slices);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn monitor(&self) -> Option<&crate::Monitor> {
        self.inner.monitor()
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, conformance};

    #[test]
    fn conforms_over_a_device_that_refuses_writes() {
        let image: Vec<u8> = (0..conformance::BYTES_MIN).map(|n| n as u8).collect();
        let inner = Arc::new(MemoryDevice::from_image(&image).into_read_only());
        let shared: SharedDevice = Arc::clone(&inner) as SharedDevice;
        let device: SharedDevice = Arc::new(OverlayDevice::new(shared));
        conformance::run(&device, 9);
        assert!(inner.to_vec() == image, "the device below has changed");
    }

    #[test]
    fn reads_are_of_both() {
        let inner: SharedDevice = Arc::new(MemoryDevice::from_image(&[7; 4096]).into_read_only());
        let device = OverlayDevice::new(inner);
        device
            .write_at(DevOffset(1024), &[9; 512], Flags::FUA)
            .unwrap();
        device.write_zeroes(DevOffset(2048), 512).unwrap();
        assert_eq!(device.written_bytes(), 1024);
        let mut expected = vec![7; 4096];
        expected[1024..1536].fill(9);
        expected[2048..2560].fill(0);
        let mut back = vec![0; 4096];
        device.read_at(DevOffset(0), &mut back).unwrap();
        assert!(back == expected);
        device.read_at(DevOffset(1536), &mut back[..512]).unwrap();
        assert!(back[..512] == [7; 512]);
    }

    #[test]
    fn lent_memory_is_not_kept() {
        let inner: SharedDevice = Arc::new(MemoryDevice::new(8192).into_read_only());
        let device = OverlayDevice::new(inner);
        let (back, came_back) = std::sync::mpsc::channel();
        let lent = AlignedBuf::copy_of(&[3; 4096]);
        let mut loan = crate::Loan::of(lent, move |buf| back.send(buf).unwrap());
        let slice = IoSlice::from(loan.cut(0, 4096).unwrap());
        drop(loan);
        device.submit(Request::new(
            Op::Write(vec![slice]),
            DevOffset(4096),
            move |done| {
                done.result.expect("writes");
                assert_eq!(came_back.try_recv().unwrap()[..], [3; 4096]);
            },
        ));
        let mut found = [0; 4096];
        device.read_at(DevOffset(4096), &mut found).unwrap();
        assert_eq!(found, [3; 4096]);
    }
}
