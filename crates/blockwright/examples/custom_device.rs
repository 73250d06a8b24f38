//! A block device of one's own: it counts the bytes that a volume writes to memory.
//!
//! `cargo run -p blockwright --example custom_device`

use blockwright::device::{BlockDevice, Geometry, MemoryDevice, Op, Request, SharedDevice};
use blockwright::{Volume, VolumeBuilder};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Passes requests on and counts what they write.
struct Counting {
    inner: SharedDevice,
    written: AtomicU64,
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    // All other operations have defaults that come here.
    fn submit(&self, request: Request) {
        if let Op::Write(_) = request.op {
            self.written
                .fetch_add(request.op.bytes(), Ordering::Relaxed);
        }
        self.inner.submit(request);
    }

    fn name(&self) -> String {
        format!("counting {}", self.inner.name())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Arc::new(Counting {
        inner: Arc::new(MemoryDevice::new(32 << 20)),
        written: AtomicU64::new(0),
    });
    let shared: SharedDevice = device.clone();
    VolumeBuilder::new().create_on(&shared)?;
    let formatted = device.written.load(Ordering::Relaxed);
    let volume = Volume::open_device(shared)?;
    volume.write("/data", vec![7; 1 << 20])?;
    volume.close()?;
    let all = device.written.load(Ordering::Relaxed);
    println!(
        "{formatted} bytes to format, {} for 1 MiB of data",
        all - formatted
    );
    Ok(())
}
