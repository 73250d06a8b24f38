//! Counters around any device.
//!
//! Synchronous calls become requests here, so that all are counted in one place. Requests are counted when they are submitted, whether or not they succeed. Counters are relaxed
//! atomics: exact once nothing is in flight, and never a reason to wait.

use crate::{BlockDevice, DevOffset, Flags, Geometry, Op, Request, SharedDevice};
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCount {
    /// How many.
    pub requests: u64,
    /// How many bytes of the device they covered.
    pub bytes: u64,
}

/// What was asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Reads.
    pub reads: OpCount,
    /// Writes, of any flags.
    pub writes: OpCount,
    /// Writes with [`Flags::META`], also among `writes`.
    pub meta_writes: OpCount,
    /// Writes with [`Flags::FUA`], also among `writes`.
    pub fua_writes: OpCount,
    /// Discards.
    pub discards: OpCount,
    /// Write-zeroes.
    pub zeroes: OpCount,
    /// Flushes.
    pub flushes: u64,
}

impl DeviceStats {
    /// What was asked since an earlier reading of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &DeviceStats) -> DeviceStats {
        let less = |now: OpCount, then: OpCount| OpCount {
            requests: now.requests.saturating_sub(then.requests),
            bytes: now.bytes.saturating_sub(then.bytes),
        };
        DeviceStats {
            reads: less(self.reads, earlier.reads),
            writes: less(self.writes, earlier.writes),
            meta_writes: less(self.meta_writes, earlier.meta_writes),
            fua_writes: less(self.fua_writes, earlier.fua_writes),
            discards: less(self.discards, earlier.discards),
            zeroes: less(self.zeroes, earlier.zeroes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}

#[derive(Default)]
struct Counter {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> OpCount {
        OpCount {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Passes everything on to another device, and counts.
pub struct CountingDevice {
    inner: SharedDevice,
    reads: Counter,
    writes: Counter,
    meta_writes: Counter,
    fua_writes: Counter,
    discards: Counter,
    zeroes: Counter,
    flushes: Counter,
}

impl CountingDevice {
    /// Counts what is asked of `inner` from now on.
    #[must_use]
    pub fn new(inner: SharedDevice) -> Self {
        CountingDevice {
            inner,
            reads: Counter::default(),
            writes: Counter::default(),
            meta_writes: Counter::default(),
            fua_writes: Counter::default(),
            discards: Counter::default(),
            zeroes: Counter::default(),
            flushes: Counter::default(),
        }
    }

    /// The counters' values.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        DeviceStats {
            reads: self.reads.get(),
            writes: self.writes.get(),
            meta_writes: self.meta_writes.get(),
            fua_writes: self.fua_writes.get(),
            discards: self.discards.get(),
            zeroes: self.zeroes.get(),
            flushes: self.flushes.get().requests,
        }
    }

    fn count_write(&self, bytes: u64, flags: Flags) {
        self.writes.add(bytes);
        if flags.contains(Flags::META) {
            self.meta_writes.add(bytes);
        }
        if flags.contains(Flags::FUA) {
            self.fua_writes.add(bytes);
        }
    }
}

impl BlockDevice for CountingDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        let bytes = request.op.bytes();
        match request.op {
            Op::Read(_) => self.reads.add(bytes),
            Op::Write(_) => self.count_write(bytes, request.flags),
            Op::Flush => self.flushes.add(0),
            Op::Discard { .. } => self.discards.add(bytes),
            Op::WriteZeroes { .. } => self.zeroes.add(bytes),
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
    use crate::{AlignedBuf, DeviceExt, MemoryDevice, conformance};
    use std::sync::Arc;

    #[test]
    fn conforms() {
        let inner = Arc::new(MemoryDevice::new(conformance::BYTES_MIN));
        conformance::run(&(Arc::new(CountingDevice::new(inner)) as SharedDevice), 4);
    }

    #[test]
    fn every_way_in_is_counted_once() {
        let device = CountingDevice::new(Arc::new(MemoryDevice::new(1 << 20)));
        device
            .write_at(DevOffset(0), &[1; 512], Flags::FUA)
            .unwrap();
        let before = device.stats();
        let slices = vec![
            AlignedBuf::zeroed(1024).into(),
            AlignedBuf::zeroed(512).into(),
        ];
        device
            .write_slices(DevOffset(0), slices, Flags::META)
            .unwrap();
        let write = Op::Write(vec![AlignedBuf::zeroed(512).into()]);
        device.submit(Request::new(write, DevOffset(0), |done| {
            done.result.unwrap()
        }));
        device.read_at(DevOffset(0), &mut [0; 512]).unwrap();
        device.read_buf(DevOffset(0), 4096).unwrap();
        device.flush().unwrap();
        device.discard(DevOffset(0), 512).unwrap();
        device.write_zeroes(DevOffset(0), 1024).unwrap();
        let count = |requests, bytes| OpCount { requests, bytes };
        let expected = DeviceStats {
            reads: count(2, 4608),
            writes: count(2, 2048),
            meta_writes: count(1, 1536),
            fua_writes: count(0, 0),
            discards: count(1, 512),
            zeroes: count(1, 1024),
            flushes: 1,
        };
        assert_eq!(device.stats().since(&before), expected);
        assert_eq!(device.stats().fua_writes, count(1, 512));
    }
}
