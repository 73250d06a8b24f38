//! What attributes cost. The kernel keeps a file's times while it caches writes, and sends those that differ from what the server gave
//! the file. It asks for attributes that it does not know.

use crate::TRANSPORT;
use crate::noxattr::requests;
use crate::support::{Mounted, can_mount};
use blockwright_device::AlignedBuf;
use blockwright_fuse::FuseOptions;
use rustix::fs::{FallocateFlags, IFlags, OFlags};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

/// SETATTR requests since the mount began.
fn set_attrs(m: &Mounted) -> u64 {
    requests(m, "SetAttr")
}

#[test]
fn a_fresh_file_that_is_written_costs_no_setattr() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(FuseOptions {
        transport: TRANSPORT,
        ..FuseOptions::default()
    });
    let before = set_attrs(&m);
    const FILES: u64 = 400;
    for n in 0..FILES {
        fs::write(m.path(&format!("f{n}")), [n as u8; 3000]).unwrap();
    }
    let sent = set_attrs(&m) - before;
    // One that was made just before a tick of the clock and written after it has two times; on a busy machine
    // that is more than a few. With a finer clock it is each.
    assert!(sent < FILES / 2, "{sent} SETATTRs for {FILES} files");
    // The program's own arrive.
    fs::File::open(m.path("f0"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    assert!(set_attrs(&m) - before > sent);
    m.unmount().unwrap();
}

/// An ioctl that changes attributes changes the change time. The kernel does not know that by itself, and keeps the times of a regular
/// file while it caches writes, whatever a server says (docs/FORMAT-SUPPORT.md).
#[test]
fn chattr_is_seen_in_the_change_time() {
    if !can_mount() {
        return;
    }
    for writeback_cache in [true, false] {
        let m = Mounted::new(FuseOptions {
            transport: TRANSPORT,
            writeback_cache,
            ..FuseOptions::default()
        });
        fs::create_dir(m.path("dir")).unwrap();
        fs::write(m.path("file"), b"bytes").unwrap();
        for name in ["dir", "file"] {
            let path = m.path(name);
            let ctime = || {
                let meta = fs::metadata(&path).unwrap();
                (meta.ctime(), meta.ctime_nsec())
            };
            let before = ctime();
            std::thread::sleep(std::time::Duration::from_millis(20));
            let file = fs::File::open(&path).unwrap();
            rustix::fs::ioctl_setflags(&file, IFlags::NODUMP).unwrap();
            assert!(
                rustix::fs::ioctl_getflags(&file)
                    .unwrap()
                    .contains(IFlags::NODUMP)
            );
            if name == "dir" || !writeback_cache {
                assert!(ctime() > before, "{name}, cached: {writeback_cache}");
            }
        }
        m.unmount().unwrap();
    }
}

/// On a nearly full volume the kernel asks before it caches a write, and not before a direct one, which meets `ENOSPC` by itself.
#[test]
fn direct_writes_to_a_nearly_full_volume_ask_for_nothing() {
    const WRITES: u64 = 100;
    const PAGE: usize = 4096;
    if !can_mount() {
        return;
    }
    let m = Mounted::new(FuseOptions {
        transport: TRANSPORT,
        ..FuseOptions::default()
    });
    // Not new, so it is not opened past the kernel's cache.
    fs::write(m.path("direct"), vec![1; WRITES as usize * PAGE]).unwrap();
    let stat = rustix::fs::statvfs(m.path("")).unwrap();
    let spare = 4 << 20;
    let full = fs::File::create(m.path("full")).unwrap();
    let bytes = stat.f_bavail * stat.f_frsize - spare;
    rustix::fs::fallocate(&full, FallocateFlags::empty(), 0, bytes).unwrap();
    let asked_by = |write: &dyn Fn(u64)| {
        let before = requests(&m, "GetAttr");
        (0..WRITES).for_each(write);
        requests(&m, "GetAttr") - before
    };
    let cached = |n: u64| {
        // Refused when it might find no room.
        let _ = full.write_at(&[1], n);
    };
    let until = Instant::now() + Duration::from_secs(60);
    while asked_by(&cached) < WRITES {
        assert!(Instant::now() < until, "the shortage is not noticed");
    }
    let direct = fs::OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(m.path("direct"))
        .unwrap();
    let page = AlignedBuf::zeroed(PAGE);
    let asked = asked_by(&|n| direct.write_all_at(&page, n * PAGE as u64).unwrap());
    assert!(asked < WRITES / 4, "{asked} questions");
    drop((full, direct));
    m.unmount().unwrap();
}

/// Direct writes fill the volume while nothing is open for cached writing. The first cached writer finds out before its first write.
#[test]
fn the_first_cached_writer_after_direct_ones_is_asked_for() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(FuseOptions {
        transport: TRANSPORT,
        ..FuseOptions::default()
    });
    fs::write(m.path("old"), b"contents").unwrap();
    let stat = rustix::fs::statvfs(m.path("")).unwrap();
    let full = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(m.path("full"))
        .unwrap();
    let bytes = stat.f_bavail * stat.f_frsize - (4 << 20);
    rustix::fs::fallocate(&full, FallocateFlags::empty(), 0, bytes).unwrap();
    let before = requests(&m, "GetAttr");
    let old = fs::OpenOptions::new()
        .write(true)
        .open(m.path("old"))
        .unwrap();
    let _ = old.write_at(&[1], 8);
    assert!(requests(&m, "GetAttr") > before, "nobody asked");
    drop((full, old));
    m.unmount().unwrap();
}
