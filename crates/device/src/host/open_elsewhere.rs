//! Opening, locking and measuring a file on hosts other than Linux.

use super::file::{HostFile, kind_of};
use super::mode::{DirectIo, Engine, OpenMode};
use super::sys::{self, refused};
use crate::monitor::Monitor;
use crate::{DeviceErrorKind, Geometry};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// `ERROR_SHARING_VIOLATION`.
#[cfg(windows)]
const IN_USE: i32 = 32;

/// Has Windows refuse other writers (and, of a writer, other readers that exclude writers) while the file is open.
#[cfg(windows)]
fn share(options: &mut OpenOptions, mode: &OpenMode) {
    use std::os::windows::fs::OpenOptionsExt;
    const READ: u32 = 1;
    const WRITE: u32 = 2;
    options.share_mode(match (mode.lock, mode.read_only) {
        (false, _) => READ | WRITE,
        (true, true) => READ,
        (true, false) => 0,
    });
}

#[cfg(not(windows))]
fn share(_: &mut OpenOptions, _: &OpenMode) {}

fn failed(error: &io::Error) -> crate::DeviceError {
    let number = sys::number_of(error);
    #[cfg(windows)]
    if number == IN_USE {
        return refused(DeviceErrorKind::InUse { holder: None });
    }
    refused(kind_of(number))
}

#[cfg(unix)]
fn lock(file: &File, mode: &OpenMode) -> crate::Result<()> {
    use rustix::fs::FlockOperation;
    use rustix::io::Errno;
    if !mode.lock {
        return Ok(());
    }
    let operation = match mode.read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(refused(DeviceErrorKind::InUse { holder: None }));
            }
            // A file system without locks: nothing to be had.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            Err(e) => return Err(refused(kind_of(e.raw_os_error()))),
        }
    }
}

/// Windows: [`share`]. WASI: no locks.
#[cfg(not(unix))]
fn lock(_: &File, _: &OpenMode) -> crate::Result<()> {
    Ok(())
}

pub(super) fn create(path: &Path, bytes: u64, mode: &OpenMode) -> crate::Result<HostFile> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    share(&mut options, mode);
    let file = options.open(path).map_err(|e| failed(&e))?;
    let made = lock(&file, mode)
        .and_then(|()| file.set_len(bytes).map_err(|e| failed(&e)))
        .and_then(|()| measure(path, file, mode));
    if made.is_err() {
        let _already_failing = std::fs::remove_file(path).is_err();
    }
    made
}

pub(super) fn open(path: &Path, mode: &OpenMode) -> crate::Result<HostFile> {
    let mut options = OpenOptions::new();
    options.read(true).write(!mode.read_only);
    share(&mut options, mode);
    // Before the open, which may wait for the other end of a pipe.
    if !std::fs::metadata(path).map_err(|e| failed(&e))?.is_file() {
        return Err(refused(DeviceErrorKind::Unsupported));
    }
    let file = options.open(path).map_err(|e| failed(&e))?;
    lock(&file, mode)?;
    measure(path, file, mode)
}

fn measure(path: &Path, file: File, mode: &OpenMode) -> crate::Result<HostFile> {
    if mode.direct == DirectIo::Always || mode.engine == Engine::Uring {
        return Err(refused(DeviceErrorKind::Unsupported));
    }
    let bytes = sys::end(&file).map_err(|number| refused(kind_of(number)))?;
    let geometry = Geometry {
        bytes: bytes - bytes % 512,
        logical_block_bytes: 512,
        optimal_io_bytes: 4096,
        request_bytes_max: 1 << 20,
        fua: false,
        discard: false,
        read_only: mode.read_only,
    };
    Ok(HostFile {
        file,
        path: path.to_owned(),
        bytes: AtomicU64::new(geometry.bytes),
        opened: geometry,
        memory_align: 1,
        block_special: false,
        in_memory: false,
        monitor: Monitor::default(),
    })
}
