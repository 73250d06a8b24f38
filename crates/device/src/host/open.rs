//! Opening, locking and measuring a file or block special.
//!
//! The lock is advisory (`flock`): exclusive for writing, shared for reading, taken before
//! anything is read. A block special opened for writing is also claimed with `O_EXCL`, which the
//! kernel refuses while the device is mounted, and which keeps it from being mounted. A regular
//! file that a loop device is backed by is not opened for writing either.

use super::file::{HostFile, kind_of};
use super::flags::is_set_read_only;
use super::mode::{DirectIo, OpenMode};
use super::sys::refused;
use crate::monitor::Monitor;
use crate::{AlignedBuf, DeviceError, DeviceErrorKind, Geometry, Result};
use rustix::fs::{FileType, FlockOperation, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

fn failed(errno: Errno) -> DeviceError {
    refused(kind_of(errno.raw_os_error()))
}

pub(super) fn create(path: &Path, bytes: u64, mode: &OpenMode) -> Result<HostFile> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, 0o666.into()).map_err(failed)?;
    let made = lock(&fd, mode)
        .and_then(|()| rustix::fs::ftruncate(&fd, bytes).map_err(failed))
        .and_then(|()| measure(path, fd, mode));
    if made.is_err() {
        // A new file that could not become a device (for example, too large for the host) must not
        // stay behind.
        let _already_failing = rustix::fs::unlink(path).is_err();
    }
    made
}

pub(super) fn open(path: &Path, mode: &OpenMode) -> Result<HostFile> {
    let stat = rustix::fs::stat(path).map_err(failed)?;
    let block_special = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        FileType::Directory => return Err(failed(Errno::ISDIR)),
        _ => return Err(refused(DeviceErrorKind::Unsupported)),
    };
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags |= if mode.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    // Without O_CREAT, O_EXCL has a meaning for block specials only.
    flags.set(OFlags::EXCL, block_special && mode.lock && !mode.read_only);
    let fd = match rustix::fs::open(path, flags, 0.into()) {
        Err(Errno::BUSY) => {
            let holder = Some("the kernel (mounted, or part of another device)".to_owned());
            return Err(refused(DeviceErrorKind::InUse { holder }));
        }
        result => result.map_err(failed)?,
    };
    if mode.lock {
        lock(&fd, mode)?;
        if !block_special
            && !mode.read_only
            && let Some(device) = loop_device_on(&stat)
        {
            let holder = Some(format!("loop device {device}"));
            return Err(refused(DeviceErrorKind::InUse { holder }));
        }
    }
    measure(path, fd, mode)
}

/// How long to wait for a lock without a living holder. A lock outlives the process that took it for some ten milliseconds: a process that a signal
/// ends leaves requests in its ring, which the host completes before it closes the file. Until then the image may still be written to. In a container the
/// kernel lists the locks of its living processes alone; where the holder lives outside of it the wait is in vain.
const ENDED_HOLDER_PATIENCE: Duration = Duration::from_secs(1);
const ENDED_HOLDER_STEP: Duration = Duration::from_millis(5);

fn lock(fd: &OwnedFd, mode: &OpenMode) -> Result<()> {
    let operation = if mode.read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let began = Instant::now();
    loop {
        match rustix::fs::flock(fd, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                let pids = holders(fd);
                let living = pids.iter().find(|pid| !has_ended(**pid));
                // Where none is listed, the lock was released before the table was read, or the holder is hidden.
                if living.is_some() || began.elapsed() >= ENDED_HOLDER_PATIENCE {
                    let holder = living.or(pids.first()).copied().map(describe);
                    return Err(refused(DeviceErrorKind::InUse { holder }));
                }
                std::thread::sleep(ENDED_HOLDER_STEP);
            }
            // A file system without locks (some network ones): no lock is possible.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        }
    }
}

/// The loop device whose backing file this is. The kernel does not lock such files, and a file
/// system mounted through it would be destroyed by a second writer.
fn loop_device_on(file: &rustix::fs::Stat) -> Option<String> {
    for entry in std::fs::read_dir("/sys/block").ok()?.flatten() {
        // Absent for loop devices that are not in use, and for everything else.
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        if let Ok(stat) = rustix::fs::stat(backing.trim_end_matches('\n'))
            && (stat.st_dev, stat.st_ino) == (file.st_dev, file.st_ino)
        {
            return Some(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    None
}

/// The processes that took locks of a file, from the kernel's table: lines like
/// `1: FLOCK  ADVISORY  WRITE 2345 fe:00:1234 0 EOF`. Not above 0 for one in another process namespace. In such a namespace, those of processes that have
/// ended are not shown.
fn holders(fd: &OwnedFd) -> Vec<i64> {
    let Ok(stat) = rustix::fs::fstat(fd) else {
        return Vec::new();
    };
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let place = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let held = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&place.as_str());
        found.then(|| words[4].parse().unwrap_or(0))
    });
    held.collect()
}

/// Whether no process has this number. One of another user, which `/proc` may hide, has it.
fn has_ended(pid: i64) -> bool {
    let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 0) else {
        return false;
    };
    // SAFETY: takes two numbers. Signal 0 is not sent.
    let there = unsafe { libc::kill(pid, 0) } == 0;
    !there && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

fn describe(pid: i64) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) if !name.trim().is_empty() => format!("process {pid} ({})", name.trim()),
        // A child has the file open, too, or the host still completes requests.
        _ if pid > 0 => format!("what process {pid} started, which has ended"),
        _ => "a process that cannot be seen from here".to_owned(),
    }
}

/// `TMPFS_MAGIC`, statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

fn measure(path: &Path, fd: OwnedFd, mode: &OpenMode) -> Result<HostFile> {
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    let block_special = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let bytes = if block_special {
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(failed)?
    } else {
        u64::try_from(stat.st_size).unwrap_or(0)
    };
    if block_special && !mode.read_only && is_set_read_only(&fd).unwrap_or(false) {
        // Opening it for writing works for root, writing does not.
        return Err(refused(DeviceErrorKind::ReadOnly));
    }
    let (sector, optimal) = if block_special {
        let sector = rustix::fs::ioctl_blksszget(&fd).map_err(failed)?;
        (sector, rustix::fs::ioctl_blkpbszget(&fd).unwrap_or(sector))
    } else {
        (512, 4096)
    };
    let direct = match mode.direct {
        DirectIo::Never => None,
        DirectIo::Auto => go_direct(&fd, sector, bytes).filter(|direct| direct.offset <= sector),
        DirectIo::Always => {
            let direct = go_direct(&fd, sector, bytes);
            Some(direct.ok_or_else(|| refused(DeviceErrorKind::Unsupported))?)
        }
    };
    set_direct(&fd, direct.is_some()).map_err(failed)?;
    let in_memory =
        !block_special && rustix::fs::fstatfs(&fd).is_ok_and(|st| st.f_type == TMPFS_MAGIC);
    let logical_block_bytes = direct.map_or(sector, |direct| direct.offset.max(sector));
    let geometry = Geometry {
        bytes: bytes - bytes % u64::from(logical_block_bytes),
        logical_block_bytes,
        optimal_io_bytes: optimal.max(logical_block_bytes).max(4096),
        request_bytes_max: 1 << 20,
        // Direct overwrites become one forced write; buffered ones are a write and a flush.
        fua: direct.is_some(),
        discard: !mode.read_only,
        read_only: mode.read_only,
    };
    Ok(HostFile {
        file: File::from(fd),
        path: path.to_owned(),
        bytes: AtomicU64::new(geometry.bytes),
        opened: geometry,
        memory_align: direct.map_or(1, |direct| direct.memory as usize),
        block_special,
        in_memory,
        monitor: Monitor::default(),
    })
}

/// What alignment direct I/O wants, in bytes.
#[derive(Clone, Copy)]
struct DirectAlign {
    memory: u32,
    offset: u32,
}

fn set_direct(fd: &OwnedFd, on: bool) -> rustix::io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(OFlags::DIRECT, on);
    // O_NONBLOCK was for the open alone, which must not wait for a drive without a medium.
    flags.remove(OFlags::NONBLOCK);
    rustix::fs::fcntl_setfl(fd, flags)
}

/// Switches the descriptor to direct I/O and finds out what it wants; `None` when it refuses.
fn go_direct(fd: &OwnedFd, sector: u32, bytes: u64) -> Option<DirectAlign> {
    set_direct(fd, true).ok()?;
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    if let Ok(stat) = rustix::fs::statx(fd, "", flags, StatxFlags::DIOALIGN)
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
        let sane = |align: u32| align.is_power_of_two() && align <= 4096;
        // Zero means that this file cannot be accessed directly.
        return (sane(memory) && sane(offset)).then_some(DirectAlign {
            memory,
            offset: offset.max(512),
        });
    }
    // An older kernel, or a file system that does not say (tmpfs): try, with memory as aligned as every buffer here. An empty file cannot
    // tell, and is treated as the strictest.
    if bytes >= 8192 {
        for offset in [sector, 4096] {
            let mut probe = AlignedBuf::zeroed(offset as usize);
            if rustix::io::pread(fd, &mut probe[..], u64::from(offset)).is_ok() {
                return Some(DirectAlign {
                    memory: offset,
                    offset,
                });
            }
        }
        return None;
    }
    Some(DirectAlign {
        memory: 4096,
        offset: 4096,
    })
}

#[cfg(test)]
mod tests {
    use super::super::HostDevice;
    use super::super::tests::Scratch;
    use super::*;
    use crate::{DevOffset, Flags};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_second_writer_is_refused_by_name() {
        let path = Scratch::new();
        let first = HostDevice::create(&path.0, 1 << 20).unwrap();
        let error = HostDevice::open(&path.0, OpenMode::read_only())
            .err()
            .unwrap();
        let DeviceErrorKind::InUse { holder } = &error.kind else {
            panic!("{error}")
        };
        let pid = format!("process {} ", std::process::id());
        assert!(holder.as_ref().unwrap().starts_with(&pid), "{holder:?}");
        assert!(error.to_string().contains("in use by process"), "{error}");
        let unlocked = OpenMode {
            lock: false,
            ..OpenMode::default()
        };
        HostDevice::open(&path.0, unlocked).unwrap();
        drop(first);
        let reader = HostDevice::open(&path.0, OpenMode::read_only()).unwrap();
        HostDevice::open(&path.0, OpenMode::read_only()).unwrap();
        assert!(HostDevice::open(&path.0, OpenMode::default()).is_err());
        let error = reader
            .write_at(DevOffset(0), &[0; 512], Flags::empty())
            .unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::ReadOnly);
    }

    /// As after a process that a signal ended, whose ring the host still has to empty.
    #[test]
    fn a_lock_that_outlives_its_process_is_waited_for() {
        if !blockwright_oracles::have(&["flock"]) {
            return;
        }
        let path = Scratch::new();
        drop(HostDevice::create(&path.0, 1 << 20).unwrap());
        for (seconds, opens) in [("0.3", true), ("3", false)] {
            // The process that takes the lock ends at once. What it started keeps the file open.
            let held = std::process::Command::new("flock")
                .arg("-n")
                .arg(&path.0)
                .args(["-c", &format!("exec >&- 2>&-; sleep {seconds} &")])
                .status()
                .expect("flock");
            assert!(held.success());
            let opened = HostDevice::open(&path.0, OpenMode::default());
            assert_eq!(opened.is_ok(), opens, "{seconds}");
            if let Err(error) = opened {
                let said = error.to_string();
                let expected = match sees_ended_holders() {
                    true => "which has ended",
                    false => "in use",
                };
                assert!(said.contains(expected), "{said}");
            }
        }
    }

    /// The table of locks is read after a lock was refused. A lock that was released in between is free, and no open is refused for it.
    #[test]
    fn a_lock_that_is_released_meanwhile_is_no_refusal() {
        let path = Scratch::new();
        drop(HostDevice::create(&path.0, 1 << 20).unwrap());
        let ended = AtomicBool::new(false);
        let refused: Vec<String> = std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = File::open(&path.0).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
                    rustix::fs::flock(&held, FlockOperation::Unlock).unwrap();
                }
            });
            let opened = (0..3000).map(|_| HostDevice::open(&path.0, OpenMode::default()));
            let refused = opened.filter_map(|opened| Some(opened.err()?.to_string()));
            let refused = refused.collect();
            ended.store(true, Ordering::Relaxed);
            refused
        });
        // This process, which holds the lock at times.
        for said in refused {
            assert!(said.contains("in use by process"), "{said}");
        }
    }

    /// Whether the kernel's table shows locks of processes that have ended: it has this inode's number in the first process namespace alone.
    fn sees_ended_holders() -> bool {
        std::fs::read_link("/proc/self/ns/pid").is_ok_and(|of| of == Path::new("pid:[4026531836]"))
    }

    /// As in a container.
    #[test]
    fn so_is_one_in_a_process_namespace() {
        let unshare = || {
            let mut command = std::process::Command::new("unshare");
            command.args(["--fork", "--pid", "--mount-proc"]);
            command
        };
        let works = unshare().arg("true").output();
        let works = works.is_ok_and(|out| out.status.success());
        if !blockwright_oracles::available("a process namespace (root, unshare)", works) {
            return;
        }
        let test = "host::open::tests::a_lock_that_outlives_its_process_is_waited_for";
        let out = unshare()
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", test])
            .output()
            .expect("unshare");
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{said}");
        assert!(said.contains("1 passed"), "{said}");
    }

    #[test]
    fn what_is_not_a_device_is_refused() {
        let dir = std::env::temp_dir();
        let error = HostDevice::open(&dir, OpenMode::default()).err().unwrap();
        assert_eq!(error.kind, DeviceErrorKind::Os(libc::EISDIR));
        let error = HostDevice::open("/dev/null", OpenMode::default())
            .err()
            .unwrap();
        assert_eq!(error.kind, DeviceErrorKind::Unsupported);
        let error = HostDevice::open(dir.join("no such"), OpenMode::default())
            .err()
            .unwrap();
        assert_eq!(error.kind, DeviceErrorKind::Os(libc::ENOENT));
    }

    #[test]
    fn an_odd_size_is_rounded_down_and_its_tail_kept() {
        let path = Scratch::new();
        std::fs::write(&path.0, [7; 1500]).unwrap();
        let device = HostDevice::open(&path.0, OpenMode::default()).unwrap();
        assert_eq!(device.geometry().bytes, 1024);
        device
            .write_at(DevOffset(512), &[8; 512], Flags::empty())
            .unwrap();
        let error = device
            .write_at(DevOffset(1024), &[8; 512], Flags::empty())
            .unwrap_err();
        assert_eq!(
            error.kind,
            DeviceErrorKind::OutOfRange { device_bytes: 1024 }
        );
        drop(device);
        let bytes = std::fs::read(&path.0).unwrap();
        assert_eq!(bytes, [vec![7; 512], vec![8; 512], vec![7; 476]].concat());
    }

    #[test]
    fn a_file_truncated_underneath_is_a_short_read() {
        let path = Scratch::new();
        for direct in [DirectIo::Never, DirectIo::Auto] {
            std::fs::write(&path.0, [7; 8192]).unwrap();
            let mode = OpenMode {
                direct,
                ..OpenMode::default()
            };
            let device = HostDevice::open(&path.0, mode).unwrap();
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(&path.0)
                .unwrap();
            file.set_len(1536).unwrap();
            let mut buf = [0; 4096];
            let error = device.read_at(DevOffset(0), &mut buf).unwrap_err();
            assert_eq!(error.kind, DeviceErrorKind::Short { transferred: 1536 });
            let error = device.read_at(DevOffset(4096), &mut buf).unwrap_err();
            assert_eq!(
                (error.offset.0, error.kind),
                (4096, DeviceErrorKind::Short { transferred: 0 })
            );
        }
    }
}
