//! A window on a device: a partition inside an image.
//!
//! Offsets in requests and in errors are those of the window. Flushes cover the whole device.
//!
//! Not responsible for reading partition tables.

use crate::{
    AlignedBuf, BlockDevice, DevOffset, DeviceError, DeviceErrorKind, Done, Flags, Geometry,
    IoSlice, Request, Result, SharedDevice, refuse,
};

/// A run of another device's bytes, as a device. See the module's head.
pub struct OffsetDevice {
    inner: SharedDevice,
    start: u64,
    geometry: Geometry,
}

impl OffsetDevice {
    /// The window of `bytes` bytes from `start` on; without a length, to the end of the device.
    /// The length is rounded down to a whole logical block.
    ///
    /// # Errors
    /// [`DeviceErrorKind::OutOfRange`] when the window does not lie on the device or does not
    /// begin at a logical block.
    pub fn new(inner: SharedDevice, start: DevOffset, bytes: Option<u64>) -> Result<Self> {
        let geometry = inner.geometry();
        let bytes = bytes.unwrap_or(geometry.bytes.saturating_sub(start.0));
        let bytes = bytes - bytes % u64::from(geometry.logical_block_bytes);
        refuse::range(&geometry, "open", start, bytes, false)?;
        Ok(OffsetDevice {
            inner,
            start: start.0,
            geometry: Geometry { bytes, ..geometry },
        })
    }

    fn inside(&self, offset: DevOffset) -> DevOffset {
        // No overflow: ranges are refused before they get here, unless they are flushes.
        DevOffset(offset.0.saturating_add(self.start))
    }

    fn translate<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| outside(error, self.start, self.geometry.bytes))
    }

    fn check(&self, op: &'static str, offset: DevOffset, bytes: u64) -> Result<()> {
        refuse::range(&self.geometry, op, offset, bytes, op != "read")
    }
}

/// An error of the device underneath, in terms of the window.
fn outside(mut error: DeviceError, start: u64, bytes: u64) -> DeviceError {
    error.offset.0 = error.offset.0.saturating_sub(start);
    if let DeviceErrorKind::OutOfRange { device_bytes } = &mut error.kind {
        *device_bytes = bytes;
    }
    error
}

impl BlockDevice for OffsetDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        if let Err(error) = refuse::request(&self.geometry, &request) {
            return request.complete(Err(error));
        }
        request.offset = self.inside(request.offset);
        let (start, bytes, done) = (self.start, self.geometry.bytes, request.done);
        request.done = Box::new(move |Done { result, read }| {
            done(Done {
                result: result.map_err(|error| outside(error, start, bytes)),
                read,
            });
        });
        self.inner.submit(request);
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        self.check("read", offset, buf.len() as u64)?;
        self.translate(self.inner.read_at(self.inside(offset), buf))
    }

    fn write_at(&self, offset: DevOffset, buf: &[u8], flags: Flags) -> Result<()> {
        self.check("write", offset, buf.len() as u64)?;
        self.translate(self.inner.write_at(self.inside(offset), buf, flags))
    }

    fn read_aligned(&self, offset: DevOffset, buf: AlignedBuf) -> Result<AlignedBuf> {
        self.check("read", offset, buf.len() as u64)?;
        self.translate(self.inner.read_aligned(self.inside(offset), buf))
    }

    fn write_vectored_at(&self, offset: DevOffset, slices: &[IoSlice], flags: Flags) -> Result<()> {
        refuse::slices(&self.geometry, offset, slices)?;
        self.translate(
            self.inner
                .write_vectored_at(self.inside(offset), slices, flags),
        )
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        self.check("discard", offset, bytes)?;
        self.translate(self.inner.discard(self.inside(offset), bytes))
    }

    fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        self.check("write-zeroes", offset, bytes)?;
        self.translate(self.inner.write_zeroes(self.inside(offset), bytes))
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        let inner = self.inner.next_data(self.inside(offset)).0;
        DevOffset(
            inner
                .saturating_sub(self.start)
                .clamp(offset.0, self.geometry.bytes.max(offset.0)),
        )
    }

    fn monitor(&self) -> Option<&crate::Monitor> {
        self.inner.monitor()
    }

    fn name(&self) -> String {
        format!("{} from byte {}", self.inner.name(), self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, conformance};
    use std::sync::Arc;

    #[test]
    fn conforms_and_stays_inside() {
        let image = vec![0x77; conformance::BYTES_MIN as usize + 8192];
        let inner = Arc::new(MemoryDevice::from_image(&image));
        let shared: SharedDevice = Arc::clone(&inner) as SharedDevice;
        let bytes = Some(conformance::BYTES_MIN);
        let window = OffsetDevice::new(shared, DevOffset(3584), bytes).unwrap();
        conformance::run(&(Arc::new(window) as SharedDevice), 5);
        let after = inner.to_vec();
        let (head, tail) = (
            &after[..3584],
            &after[3584 + conformance::BYTES_MIN as usize..],
        );
        assert!(head.iter().chain(tail).all(|byte| *byte == 0x77));
    }

    #[test]
    fn bad_windows_are_refused() {
        let inner: SharedDevice = Arc::new(MemoryDevice::new(8192));
        let window = |start, bytes| OffsetDevice::new(Arc::clone(&inner), DevOffset(start), bytes);
        assert!(window(100, None).is_err());
        assert!(window(8192 + 512, None).is_err());
        assert!(window(4096, Some(8192)).is_err());
        assert_eq!(window(4096, None).unwrap().geometry().bytes, 4096);
        assert_eq!(window(512, Some(1000)).unwrap().geometry().bytes, 512);
    }
}
