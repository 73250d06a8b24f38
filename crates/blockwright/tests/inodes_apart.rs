//! Listings with attributes on a device that takes its time: inodes that lie apart are loaded side by side.

use blockwright::Volume;
use blockwright_device::{BlockDevice, Geometry, MemoryDevice, Op, Request, SharedDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Every read takes a while, in the thread that asks; how many did at the same time.
struct Slow {
    inner: MemoryDevice,
    reading: AtomicUsize,
    most: AtomicUsize,
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        let reads = matches!(request.op, Op::Read(_));
        if reads {
            let now = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.submit(request);
        if reads {
            self.reading.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn name(&self) -> String {
        "slow".to_owned()
    }
}

#[test]
fn inodes_that_lie_apart_are_loaded_side_by_side() {
    let memory = MemoryDevice::new(64 << 20);
    let slow = Arc::new(Slow {
        inner: memory,
        reading: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let device: SharedDevice = slow.clone();
    let options = blockwright_mkfs::f2fs::FormatOptions::default();
    blockwright_mkfs::f2fs::format(&device, &options).expect("formatted");
    let volume = Volume::open_device(device.clone()).expect("opens");
    let mut made = Vec::new();
    for n in 0..300u64 {
        let path = format!("/file{n}");
        volume.write(&path, vec![1; n as usize]).expect("written");
        // Every other: those side by side are one read.
        if n % 2 == 0 {
            made.push((volume.metadata(&path).expect("known").ino(), n));
        }
    }
    volume.close().expect("closed");
    let volume = Volume::options()
        .read_only(true)
        .open_device(device)
        .expect("opens");
    slow.most.store(0, Ordering::SeqCst);
    // One that is not in use, in the middle.
    made.insert(75, (made[149].0 + 2, 0));
    let wanted: Vec<_> = made
        .iter()
        .map(|(ino, _)| blockwright_vfs::Ino(*ino))
        .collect();
    let found = volume.vfs().inodes(&wanted);
    assert_eq!(found.len(), made.len());
    for (k, (inode, (ino, size))) in found.iter().zip(&made).enumerate() {
        match inode {
            Ok(inode) => {
                let attr = inode.attr();
                assert_eq!((attr.ino.0, attr.size), (*ino, *size));
                assert_ne!(k, 75);
            }
            Err(e) => assert_eq!((k, e.kind()), (75, blockwright::ErrorKind::Stale), "{e}"),
        }
    }
    let most = slow.most.load(Ordering::SeqCst);
    assert!(most > 1, "{most} at the same time");
    // And all from memory: the device is not asked.
    slow.most.store(0, Ordering::SeqCst);
    assert_eq!(volume.vfs().inodes(&wanted[..75]).len(), 75);
    assert_eq!(slow.most.load(Ordering::SeqCst), 0);
    assert!(volume.vfs().inodes(&[]).is_empty());
}
