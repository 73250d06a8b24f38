//! A device on which what is discarded reads as zeroes.
//!
//! A discard only permits the device to forget; this layer turns it into write-zeroes. A host keeps sparse images sparse, because write-zeroes
//! makes holes there.
//!
//! Synchronous calls become requests here, as on every device without a shorter way. The layer is for trimming, not for a data path.

use crate::{BlockDevice, DevOffset, Geometry, Op, Request, SharedDevice};

/// Another device whose discards are write-zeroes. See the module's head.
pub struct ZeroingDevice {
    inner: SharedDevice,
}

impl ZeroingDevice {
    /// The layer over a device, which need not be able to discard.
    #[must_use]
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner }
    }
}

impl BlockDevice for ZeroingDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            discard: true,
            ..self.inner.geometry()
        }
    }

    fn submit(&self, mut request: Request) {
        if let Op::Discard { bytes } = request.op {
            request.op = Op::WriteZeroes { bytes };
        }
        self.inner.submit(request);
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        self.inner.next_data(offset)
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
    use crate::{Flags, MemoryDevice, conformance};
    use std::sync::Arc;

    #[test]
    fn conforms_and_discards_to_zeroes() {
        let inner: SharedDevice = Arc::new(MemoryDevice::new(conformance::BYTES_MIN));
        let device: SharedDevice = Arc::new(ZeroingDevice::new(inner));
        conformance::run(&device, 9);
        device
            .write_at(DevOffset(0), &[7; 8192], Flags::empty())
            .unwrap();
        device.discard(DevOffset(4096), 4096).unwrap();
        let mut seen = vec![1; 8192];
        device.read_at(DevOffset(0), &mut seen).unwrap();
        assert!(seen[..4096] == [7; 4096] && seen[4096..] == [0; 4096]);
    }
}
