//! What the tests of mounts share.
#![allow(dead_code)] // Each test binary uses a part.

pub mod scene;

use blockwright_device::{BlockDevice, Geometry, MemoryDevice, Op, Request, SharedDevice};
use blockwright_fuse::{FuseErrorKind, FuseOptions, Log, Session, Unmount, Unmounter};
use blockwright_vfs::testing::{MemEngine, MemOptions};
use blockwright_vfs::{MountOptions, Vfs};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Whether mounts can be tested here; the test is skipped otherwise, and fails in CI.
pub fn can_mount() -> bool {
    blockwright_oracles::root() && blockwright_oracles::fuse()
}

/// A memory device whose reads and writes can be made slow, and which remembers the priority of the last one.
pub struct SlowDevice {
    inner: Arc<MemoryDevice>,
    pub write_millis: AtomicU64,
    pub read_millis: AtomicU64,
    pub written_at: AtomicU64,
}

impl BlockDevice for SlowDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, request: Request) {
        if let Op::Write(_) = request.op {
            let level = u64::from(request.priority.0);
            self.written_at.store(level, Ordering::Relaxed);
            let millis = self.write_millis.load(Ordering::Relaxed);
            if millis > 0 {
                // Who submits does not wait, as with any device.
                let inner = Arc::clone(&self.inner);
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(millis));
                    inner.submit(request);
                });
                return;
            }
        }
        if let Op::Read(_) = request.op {
            std::thread::sleep(Duration::from_millis(
                self.read_millis.load(Ordering::Relaxed),
            ));
        }
        self.inner.submit(request);
    }
    fn name(&self) -> String {
        "slow memory".to_owned()
    }
}

/// A fresh volume in memory.
pub struct Volume {
    pub engine: Arc<MemEngine>,
    pub device: Arc<SlowDevice>,
    pub vfs: Arc<Vfs>,
}

/// A device in memory that is not slow yet.
pub fn slow_memory() -> Arc<SlowDevice> {
    Arc::new(SlowDevice {
        inner: Arc::new(MemoryDevice::new(256 << 20)),
        write_millis: AtomicU64::new(0),
        read_millis: AtomicU64::new(0),
        written_at: AtomicU64::new(u64::MAX),
    })
}

/// A fresh volume whose files' bytes are on this device.
pub fn vfs_on(device: SharedDevice) -> (Arc<MemEngine>, Arc<Vfs>) {
    let mem = MemOptions {
        preallocated: true,
        ..MemOptions::default()
    };
    let engine = MemEngine::new(device, mem);
    let vfs = Vfs::new(
        engine.clone(),
        engine.device().clone(),
        MountOptions::default(),
    );
    (engine, vfs)
}

pub fn volume() -> Volume {
    let device = slow_memory();
    let (engine, vfs) = vfs_on(device.clone());
    Volume {
        engine,
        device,
        vfs,
    }
}

/// A log that is remembered.
pub fn log() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    (
        Log::new(move |line| sink.lock().push(line.to_owned())),
        lines,
    )
}

/// A mounted volume; unmounts when dropped.
pub struct Mounted {
    pub volume: Volume,
    pub log: Arc<Mutex<Vec<String>>>,
    unmounter: Unmounter,
    run: Option<JoinHandle<blockwright_fuse::Result<()>>>,
    dir: tempfile::TempDir,
}

impl Mounted {
    pub fn new(options: FuseOptions) -> Self {
        let volume = volume();
        let (log, lines) = log();
        let dir = tempfile::tempdir().expect("a mount point");
        let options = FuseOptions { log, ..options };
        let session = Session::mount(volume.vfs.clone(), dir.path(), &options).expect("mounts");
        let about_transport = |hint: &&String| hint.contains("io_uring");
        let hints = session.hints().iter().filter(|hint| !about_transport(hint));
        assert_eq!(hints.count(), 0, "{:?}", session.hints());
        let unmounter = session.unmount_handle();
        let run = Some(std::thread::spawn(move || session.run()));
        Mounted {
            volume,
            log: lines,
            unmounter,
            run,
            dir,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Unmounts and returns how the session ended.
    pub fn unmount(mut self) -> blockwright_fuse::Result<()> {
        // A child that another test has just forked holds copies of our files until it has executed its
        // program.
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(e) = self.unmounter.unmount(Unmount::IfIdle) {
            if e.kind() != FuseErrorKind::Busy || Instant::now() > deadline {
                return Err(e);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let run = self.run.take().expect("runs");
        run.join().expect("does not panic")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else { return };
        let _ = self.unmounter.unmount(Unmount::Detach);
        if !std::thread::panicking() {
            run.join().expect("does not panic").expect("ends well");
        }
    }
}
