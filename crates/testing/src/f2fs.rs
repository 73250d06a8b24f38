//! f2fs volumes in memory, and fsck.f2fs's opinion of them.

use blockwright_device::{MemoryDevice, SharedDevice};
use std::sync::Arc;

/// An empty volume of this many bytes, made by our own mkfs.
pub fn formatted(bytes: u64) -> Arc<MemoryDevice> {
    let memory = Arc::new(MemoryDevice::new(bytes));
    let device: SharedDevice = memory.clone();
    let options = blockwright_mkfs::f2fs::FormatOptions::default();
    blockwright_mkfs::f2fs::format(&device, &options).expect("formatted");
    memory
}

/// fsck.f2fs finds nothing to repair.
pub fn assert_clean(device: &MemoryDevice) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    device.save(&path).expect("saved");
    super::assert_fsck_f2fs_clean(&path);
}
