//! Tests of the whole vfs over [`MemEngine`](crate::testing::MemEngine).

mod ahead;
mod asynchronous;
mod concurrency;
mod conformance;
mod copies;
mod crowded;
mod errors;
mod model;
mod names;
mod rights;
mod streaming;

use crate::testing::{MemEngine, MemOptions};
use crate::{
    CreateRequest, Cred, Done, Engine, FileKind, Handle, InodeRef, MountOptions, OpenFlags,
    Operation, Patience, ReadDone, ReadOp, Vfs, WriteDone, WriteOp,
};
use blockwright_device::sim::memory::MemoryDevice;
use blockwright_device::{BlockDevice, Geometry, IoSlice, Request, SharedDevice};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// A device whose completions come from another thread, a little later and out of order.
struct LateDevice {
    inner: SharedDevice,
    queue: std::sync::Mutex<mpsc::Sender<Request>>,
}

impl LateDevice {
    fn new(inner: SharedDevice) -> Self {
        let (send, receive) = mpsc::channel::<Request>();
        let device = Arc::clone(&inner);
        std::thread::spawn(move || {
            let mut batch = Vec::new();
            while let Ok(first) = receive.recv() {
                batch.push(first);
                std::thread::sleep(Duration::from_micros(50));
                batch.extend(receive.try_iter());
                for request in batch.drain(..).rev() {
                    device.submit(request);
                }
            }
        });
        LateDevice {
            inner,
            queue: std::sync::Mutex::new(send),
        }
    }
}

impl BlockDevice for LateDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, request: Request) {
        self.queue.lock().unwrap().send(request).unwrap();
    }
    fn name(&self) -> String {
        "late".to_owned()
    }
}

struct Fixture {
    vfs: Arc<Vfs>,
    engine: Arc<MemEngine>,
    cred: Cred,
    root: InodeRef,
}

impl Fixture {
    fn new(bytes: u64, mem: MemOptions, mount: MountOptions) -> Self {
        Self::over(Arc::new(MemoryDevice::new(bytes)), mem, mount)
    }

    fn late(bytes: u64, mem: MemOptions, mount: MountOptions) -> Self {
        let device = LateDevice::new(Arc::new(MemoryDevice::new(bytes)));
        Self::over(Arc::new(device), mem, mount)
    }

    fn over(device: SharedDevice, mem: MemOptions, mount: MountOptions) -> Self {
        let engine = MemEngine::new(device, mem);
        let device: SharedDevice = Arc::clone(engine.device()) as SharedDevice;
        let vfs = Vfs::new(Arc::clone(&engine) as Arc<dyn Engine>, device, mount);
        let root = vfs.root().unwrap();
        Fixture {
            vfs,
            engine,
            cred: Cred::root(),
            root,
        }
    }

    fn file(&self, name: &str) -> InodeRef {
        let mut req = CreateRequest::new(FileKind::Regular, 0o644);
        req.exclusive = false;
        self.vfs
            .create(&self.cred, &self.root, name.as_bytes(), &req)
            .unwrap()
            .0
    }

    fn dir(&self, at: &InodeRef, name: &str) -> InodeRef {
        let req = CreateRequest::new(FileKind::Directory, 0o755);
        self.vfs
            .create(&self.cred, at, name.as_bytes(), &req)
            .unwrap()
            .0
    }

    fn open(&self, inode: &InodeRef) -> Arc<Handle> {
        self.vfs
            .open(&self.cred, inode, OpenFlags::read_write())
            .unwrap()
    }

    /// As a front end that caches what it reads.
    fn open_above(&self, inode: &InodeRef) -> Arc<Handle> {
        let flags = OpenFlags {
            front_end: crate::FrontEnd::FuseClient,
            ..OpenFlags::read_write()
        };
        self.vfs.open(&self.cred, inode, flags).unwrap()
    }

    fn open_direct(&self, inode: &InodeRef) -> Arc<Handle> {
        let flags = OpenFlags {
            direct: true,
            ..OpenFlags::read_write()
        };
        self.vfs.open(&self.cred, inode, flags).unwrap()
    }
}

/// Options without background activity, so that tests decide what is written when.
fn quiet() -> MountOptions {
    MountOptions {
        writeback_interval: Duration::from_secs(3600),
        lazy_time_interval: Duration::from_secs(3600),
        ..MountOptions::default()
    }
}

fn read_all(h: &Arc<Handle>) -> Vec<u8> {
    let mut buf = vec![0xEE; h.inode().size() as usize + 10];
    let n = h.read_at(&mut buf, 0).unwrap();
    buf.truncate(n);
    buf
}

/// Handing operations to the vfs's workers, in few words.
trait Submit {
    fn submit_write(&self, slices: Vec<IoSlice>, at: u64, done: WriteDone);
    fn submit_read(&self, at: u64, len: usize, done: ReadDone);
}

impl Submit for Arc<Handle> {
    fn submit_write(&self, slices: Vec<IoSlice>, at: u64, done: WriteDone) {
        self.start(WriteOp::at(at, slices), done, Patience::Worker);
    }

    fn submit_read(&self, at: u64, len: usize, done: ReadDone) {
        self.start(ReadOp::new(at, len), done, Patience::Worker);
    }
}

/// Starts an operation at once if that can be done, and otherwise waits for what it needs.
fn start_or_wait<O: Operation>(h: &Arc<Handle>, op: O, done: Done<O::Output>) {
    if let Some(back) = h.start(op, done, Patience::Nowait) {
        h.start(back.op, back.done, Patience::Wait);
    }
}
