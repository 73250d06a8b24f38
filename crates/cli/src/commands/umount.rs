//! `umount`: takes the mount out of the tree and waits until the server has let go of the image.

use crate::args::UmountArgs;
use crate::failure::{At, Failure, Result, Tally};
use blockwright_device::NbdAddress;
use blockwright_device::host::nbd::is_claimed;
use blockwright_disk::container;
use blockwright_fuse::{FuseErrorKind, MountEntry, Unmount, mounted_at};
use blockwright_ondisk::ext4::Incompat;
use blockwright_ondisk::ext4::superblock::{
    MAGIC, RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State,
};
use blockwright_ondisk::f2fs::{self, geometry::Copy2};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TYPE: &str = "fuse.blockwright";
/// How long the wait is silent.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a mount may be busy before a message says so.
const BUSY: Duration = Duration::from_secs(1);
/// How long other readers of an image that was mounted read-only may keep us: they cannot be
/// distinguished from the server, which has nothing to write.
const READERS: Duration = Duration::from_secs(2);

/// The mount point as the mount table has it. The last component is not looked at: what is mounted there
/// may be dead.
fn absolute(path: &Path) -> Result<PathBuf> {
    let path_at = std::path::absolute(path).at(path.display())?;
    match (path_at.parent(), path_at.file_name()) {
        (Some(parent), Some(name)) => {
            Ok(std::fs::canonicalize(parent).at(path.display())?.join(name))
        }
        _ => Ok(path_at),
    }
}

/// Runs `umount`.
///
/// # Errors
/// As printed; the other volumes were unmounted.
pub fn umount(args: &UmountArgs) -> Result<()> {
    let mut tally = Tally::default();
    for mountpoint in &args.mountpoints {
        tally.note(unmount(mountpoint, args.lazy))?;
    }
    tally.finish()
}

/// Unmounts one volume. Fails when nothing of ours is mounted there, it is busy, or the server did not close the volume
/// cleanly.
fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let mut point = absolute(mountpoint)?;
    let at = |point: &Path| mounted_at(point).at("/proc/self/mountinfo");
    let mut entry = at(&point)?;
    if entry.is_none()
        && let Ok(real) = std::fs::canonicalize(&point)
    {
        entry = at(&real)?;
        point = real;
    }
    let entry = match entry {
        None => return Err(Failure::new("not mounted").at(mountpoint.display())),
        Some(entry) if entry.kind != TYPE => {
            return Err(Failure::new(format_args!(
                "{} is mounted there, not a volume of blockwright's",
                entry.kind
            ))
            .at(mountpoint.display()));
        }
        Some(entry) => entry,
    };
    let export = NbdAddress::parse(&entry.source).and_then(|address| address.ok());
    // Opened before, so that it is the same file also when it is renamed meanwhile.
    let image = File::open(crate::wall::file_of(&entry.source)).ok();
    // A server that is gone left the volume as it was then, which f2fs's flags do not tell: they are those of the last checkpoint.
    let dead = !lazy
        && matches!(
            rustix::fs::statfs(&point),
            Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)
        );
    // Asked before the unmount: afterwards the server is gone.
    let offset = if lazy || dead { 0 } else { offset(&point) };
    let how = if lazy {
        Unmount::Detach
    } else {
        Unmount::IfIdle
    };
    take_out(&point, how)?;
    if !lazy && let Some(what) = held_elsewhere(entry.minor) {
        // As the kernel's own umount: it is not mounted here any more.
        crate::failure::warn(format_args!(
            "{}: unmounted here, but {what}; its server goes on until it is unmounted there, too",
            point.display()
        ));
        return Ok(());
    }
    if let Some(export) = &export
        && !lazy
        && !entry.read_only
    {
        wait_until(&entry, || !is_claimed(export));
    }
    match image {
        Some(image) if !lazy => wait(&image, &entry, dead, offset),
        _ => Ok(()),
    }
}

/// Where the volume begins in its image.
fn offset(point: &Path) -> u64 {
    let stats = super::stats::connect(point)
        .ok()
        .and_then(|control| control.stats().ok());
    stats
        .and_then(|stats| stats.get("fuse_image_offset"))
        .unwrap_or(0)
}

/// Where the connection with this number is still mounted, after it was unmounted here.
fn held_elsewhere(minor: u32) -> Option<String> {
    // The connection is gone when the last umount returns. Where that cannot be seen, processes are asked.
    if blockwright_fuse::connection_exists(minor) == Some(false) {
        return None;
    }
    match blockwright_fuse::mounted_elsewhere(minor) {
        Some(there) => Some(format!(
            "still mounted at {} in the mount namespace of process {}",
            there.point.display(),
            there.pid
        )),
        None if blockwright_fuse::connection_exists(minor) == Some(true) => {
            Some("still mounted in another mount namespace".to_owned())
        }
        None => None,
    }
}

/// Takes the mount out of the tree. Busy for a moment is not busy: a program forked while another one had
/// a file open has it, too, until it becomes what it is to run; so may a scan of new mounts.
fn take_out(point: &Path, how: Unmount) -> Result<()> {
    let start = Instant::now();
    loop {
        match blockwright_fuse::unmount(point, how) {
            Err(e) if e.kind() == FuseErrorKind::Busy && start.elapsed() < BUSY => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done.map_err(Failure::new),
        }
    }
}

/// Waits until the server has let go of the image. Whether it has.
fn wait_until(entry: &MountEntry, free: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    let mut told = false;
    while !free() {
        if entry.read_only && start.elapsed() > READERS {
            return false;
        }
        if !told && start.elapsed() > SILENCE {
            told = true;
            crate::failure::warn(format_args!(
                "{}: waiting for the server to finish writing",
                entry.source.display()
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    true
}

/// Waits until the server has let go of the image, and looks how it left it.
fn wait(image: &File, entry: &MountEntry, dead: bool, offset: u64) -> Result<()> {
    let lock = || rustix::fs::flock(image, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !wait_until(entry, lock) {
        return Ok(());
    }
    // Where a volume is in a container cannot be seen from outside.
    let mut head = [0; container::DETECT_BYTES];
    let is_raw = image.read_exact_at(&mut head, 0).is_err()
        || container::detect(&head) == container::Format::Raw;
    let left = is_raw.then(|| state(image, offset)).flatten();
    let _ = rustix::fs::flock(image, FlockOperation::Unlock);
    match dead || left == Some(false) {
        true if !entry.read_only => Err(Failure::new(
            "the server did not close the volume cleanly; it will be recovered when it is opened next (see the system's log)",
        )
        .at(entry.source.display())),
        _ => Ok(()),
    }
}

/// Whether the volume that begins at this byte is marked clean; `None` when that cannot be seen.
fn state(image: &File, offset: u64) -> Option<bool> {
    if let Some(clean) = f2fs_state(image, offset) {
        return Some(clean);
    }
    let mut bytes = [0u8; SUPERBLOCK_SIZE];
    let at = offset.checked_add(SUPERBLOCK_OFFSET)?;
    image.read_exact_at(&mut bytes, at).ok()?;
    let raw = RawSuperblock::read(&bytes).ok()?;
    if raw.magic.get() != MAGIC {
        return None;
    }
    let recovery = raw.features().has_incompat(Incompat::NEEDS_RECOVERY);
    Some(!recovery && raw.state().contains(State::CLEAN))
}

/// As [`state`], of an f2fs volume: whether its newest checkpoint was written at unmount. `None` when it is
/// none.
fn f2fs_state(image: &File, offset: u64) -> Option<bool> {
    let read = |block: u32, count: u32| {
        let mut bytes = vec![0; count as usize * f2fs::BLOCK_SIZE];
        image
            .read_exact_at(&mut bytes, offset.checked_add(u64::from(block) << 12)?)
            .ok()?;
        Some(bytes)
    };
    let copy = |n| f2fs::Superblock::parse(&read(n, 1)?, None).ok();
    let geo = copy(0).or_else(|| copy(1))?.geo;
    let pack = |which| {
        let start = geo.pack_start(which).0;
        let head = read(start, 1 + geo.cp_payload)?;
        let (raw, _) = f2fs::checkpoint::verify_block(&head).ok()?;
        let total = raw.cp_pack_total_block_count.get();
        if !(2..=f2fs::BLOCKS_PER_SEG).contains(&total) {
            return None;
        }
        let tail = read(start + total - 1, 1)?;
        f2fs::pack::verify_pair(&head, &tail).ok()?;
        Some((
            raw.checkpoint_ver.get(),
            f2fs::Checkpoint::parse(&head, &geo).ok(),
        ))
    };
    let packs = [pack(Copy2::First), pack(Copy2::Second)];
    let newest = packs
        .into_iter()
        .flatten()
        .max_by_key(|(version, _)| *version)?;
    Some(newest.1?.flags().contains(f2fs::CheckpointFlags::UMOUNT))
}
