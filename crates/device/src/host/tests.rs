//! The host's devices against the conformance suite, and what is particular to them.

use super::*;
use crate::conformance;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A unique path, removed when dropped.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        Self::inside(&beside_the_build())
    }

    pub(super) fn inside(dir: &Path) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Scratch(dir.join(format!("blockwright-host-{}-{number}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _may_not_exist = std::fs::remove_file(&self.0);
    }
}

/// On a disk, most likely. The host's temporary directory may be in memory.
fn beside_the_build() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

fn conforms(dir: &Path, mode: OpenMode) {
    let path = Scratch::inside(dir);
    drop(HostDevice::create(&path.0, conformance::BYTES_MIN).unwrap());
    let device = HostDevice::open(&path.0, mode).unwrap();
    conformance::run(&device, 11);
}

/// False, loudly, where the host does not permit io_uring.
fn has_uring() -> bool {
    let path = Scratch::new();
    drop(HostDevice::create(&path.0, 4096).unwrap());
    let mode = OpenMode {
        engine: Engine::Uring,
        ..OpenMode::default()
    };
    let has = HostDevice::open(&path.0, mode).is_ok();
    if !has {
        blockwright_oracles::leave("this host does not permit io_uring");
    }
    has
}

#[test]
fn plain_conforms() {
    for direct in [DirectIo::Auto, DirectIo::Never] {
        let mode = OpenMode {
            direct,
            engine: Engine::Plain,
            ..OpenMode::default()
        };
        conforms(&beside_the_build(), mode);
    }
}

#[test]
fn uring_conforms() {
    for direct in [DirectIo::Auto, DirectIo::Never] {
        if has_uring() {
            let mode = OpenMode {
                direct,
                engine: Engine::Uring,
                ..OpenMode::default()
            };
            conforms(&beside_the_build(), mode);
        }
    }
}

#[test]
fn tmpfs_conforms() {
    let dir = Path::new("/dev/shm");
    if dir.is_dir() {
        conforms(dir, OpenMode::default());
    }
}

#[test]
fn a_failed_creation_leaves_nothing() {
    let path = Scratch::new();
    let error = HostDevice::create(&path.0, u64::MAX).err().unwrap();
    assert!(matches!(error.kind, DeviceErrorKind::Os(_)), "{error}");
    assert!(!path.0.exists());
    drop(HostDevice::create(&path.0, 4096).unwrap());
    let error = HostDevice::create(&path.0, 4096).err().unwrap();
    assert_eq!(error.kind, DeviceErrorKind::Os(libc::EEXIST));
    assert!(path.0.exists(), "somebody else's file stays");
}

#[test]
fn dropping_waits_for_what_was_submitted() {
    for engine in [Engine::Plain, Engine::Auto] {
        let path = Scratch::new();
        drop(HostDevice::create(&path.0, 8 << 20).unwrap());
        let device = HostDevice::open(
            &path.0,
            OpenMode {
                engine,
                ..OpenMode::default()
            },
        )
        .unwrap();
        let finished = Arc::new(AtomicUsize::new(0));
        for index in 0..500u64 {
            let finished = Arc::clone(&finished);
            let op = Op::Write(vec![AlignedBuf::copy_of(&[index as u8; 4096]).into()]);
            device.submit(Request::new(op, DevOffset(index * 4096), move |done| {
                done.result.unwrap();
                finished.fetch_add(1, Ordering::SeqCst);
            }));
        }
        drop(device);
        assert_eq!(finished.load(Ordering::SeqCst), 500);
        let bytes = std::fs::read(&path.0).unwrap();
        for index in 0..500 {
            assert_eq!(bytes[index * 4096 + 17], index as u8);
        }
    }
}

#[test]
fn a_completion_may_drop_the_device_and_may_panic() {
    for engine in [Engine::Plain, Engine::Auto] {
        let path = Scratch::new();
        drop(HostDevice::create(&path.0, 1 << 20).unwrap());
        let device = HostDevice::open(
            &path.0,
            OpenMode {
                engine,
                ..OpenMode::default()
            },
        )
        .unwrap();
        let panics = Request::new(Op::Read(AlignedBuf::zeroed(512)), DevOffset(0), |_| {
            panic!("a test's completion, on purpose");
        });
        device.submit(panics);
        let (tell, told) = std::sync::mpsc::channel();
        let last = Arc::clone(&device);
        let (give, given) = std::sync::mpsc::channel::<SharedDevice>();
        device.submit(Request::new(Op::Flush, DevOffset(0), move |done| {
            done.result.unwrap();
            drop(given.recv().unwrap());
            tell.send(()).unwrap();
        }));
        drop(device);
        give.send(last).unwrap();
        told.recv_timeout(std::time::Duration::from_secs(20))
            .unwrap();
    }
}

#[test]
fn a_submitted_read_past_a_truncation_is_short() {
    for engine in [Engine::Plain, Engine::Auto] {
        for direct in [DirectIo::Never, DirectIo::Auto] {
            let path = Scratch::new();
            std::fs::write(&path.0, vec![1; 4 << 20]).unwrap();
            let mode = OpenMode {
                engine,
                direct,
                ..OpenMode::default()
            };
            let device = HostDevice::open(&path.0, mode).unwrap();
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(&path.0)
                .unwrap();
            file.set_len((2 << 20) + 4096).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let op = Op::Read(AlignedBuf::zeroed(3 << 20));
            device.submit(Request::new(op, DevOffset(0), move |done| {
                tell.send(done).unwrap()
            }));
            let done = told
                .recv_timeout(std::time::Duration::from_secs(20))
                .unwrap();
            let transferred = (2 << 20) + 4096;
            assert_eq!(
                done.result.unwrap_err().kind,
                DeviceErrorKind::Short { transferred }
            );
            assert_eq!(done.read.unwrap().len(), 3 << 20);
        }
    }
}

/// A block special by way of a loop device; needs root.
#[test]
fn a_block_special_conforms_and_is_claimed() {
    let losetup = |arguments: &[&str]| {
        std::process::Command::new("losetup")
            .args(arguments)
            .output()
            .ok()
            .filter(|o| o.status.success())
    };
    let path = Scratch::new();
    std::fs::File::create(&path.0)
        .unwrap()
        .set_len(conformance::BYTES_MIN)
        .unwrap();
    let backing = path.0.to_str().unwrap();
    let Some(output) = losetup(&["--find", "--show", "--sector-size", "512", backing]) else {
        blockwright_oracles::leave("no loop devices here");
        return;
    };
    let node = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    struct Detach(String);
    impl Drop for Detach {
        fn drop(&mut self) {
            let _gone = std::process::Command::new("losetup")
                .args(["-d", &self.0])
                .status();
        }
    }
    let _detach = Detach(node.clone());
    let error = HostDevice::open(&path.0, OpenMode::default())
        .err()
        .unwrap();
    let holder = Some(format!("loop device {node}"));
    assert_eq!(error.kind, DeviceErrorKind::InUse { holder });
    HostDevice::open(&path.0, OpenMode::read_only()).unwrap();
    for engine in [Engine::Plain, Engine::Auto] {
        let device = HostDevice::open(
            &node,
            OpenMode {
                engine,
                ..OpenMode::default()
            },
        )
        .unwrap();
        assert_eq!(device.geometry().bytes, conformance::BYTES_MIN);
        let error = HostDevice::open(&node, OpenMode::default()).err().unwrap();
        assert!(
            matches!(error.kind, DeviceErrorKind::InUse { holder: Some(_) }),
            "{error}"
        );
        conformance::run(&device, 12);
    }
}

/// A host without space: the write is short first, then refused. Needs root, for a small tmpfs.
#[test]
fn a_full_host_is_an_error_with_its_place() {
    let place = Scratch::new();
    std::fs::create_dir(&place.0).unwrap();
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _gone = std::process::Command::new("umount").arg(self.0).output();
            let _empty = std::fs::remove_dir(self.0);
        }
    }
    let mounted = Unmount(&place.0);
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(mounted.0)
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        blockwright_oracles::leave("cannot mount a tmpfs here");
        return;
    }
    let path = mounted.0.join("image");
    drop(HostDevice::create(&path, 8 << 20).unwrap());
    for engine in [Engine::Plain, Engine::Auto] {
        for direct in [DirectIo::Never, DirectIo::Auto] {
            let mode = OpenMode {
                engine,
                direct,
                ..OpenMode::default()
            };
            let device = HostDevice::open(&path, mode).unwrap();
            let data: IoSlice = AlignedBuf::copy_of(&vec![1; 4 << 20]).into();
            let (tell, told) = std::sync::mpsc::channel();
            let op = Op::Write(vec![data.clone()]);
            let at = DevOffset(1 << 20);
            device.submit(Request::new(op, at, move |done| {
                tell.send(done.result).unwrap()
            }));
            let submitted = told
                .recv_timeout(std::time::Duration::from_secs(20))
                .unwrap();
            for result in [
                submitted,
                device.write_vectored_at(at, &[data], Flags::empty()),
            ] {
                let error = result.unwrap_err();
                assert_eq!(
                    error.kind,
                    DeviceErrorKind::Os(libc::ENOSPC),
                    "{engine:?} {direct:?}"
                );
                assert_eq!(
                    (error.op, error.offset, error.bytes),
                    ("write", at, 4 << 20)
                );
            }
            // Space comes back, and the device continues.
            device.discard(DevOffset(0), 8 << 20).unwrap();
            device.write_at(at, &[2; 4096], Flags::FUA).unwrap();
        }
    }
}
