//! Volumes that workloads begin with, on a device that is full of [`STALE`]; and the ballast that cleaning moves.

use crate::plan::{Cleaning, Format, Plan, Room, STALE};
use crate::{ballast, mounted};
use blockwright_device::BlockDevice as _;
use blockwright_device::{DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_mkfs::ext4::{Before, FormatOptions};
use blockwright_vfs::{CreateRequest, Cred, FileKind, InodeRef, OpenFlags, Vfs};
use std::sync::Arc;

const EXT4_BYTES: u64 = 24 << 20;

/// What volumes for large writes have more.
const LARGE_BYTES: u64 = 40 << 20;

/// How much larger than the smallest the plan's volume is.
fn more(plan: &Plan) -> u64 {
    match plan.write_bytes_max {
        0..0x10_0000 => 0,
        _ => LARGE_BYTES,
    }
}

impl Format {
    /// The unit of tearing. ext4's superblock is 1 KiB with one checksum and no second copy that is kept
    /// current, so the format (and the kernel) relies on these two sectors being written together. The nodes
    /// that f2fs's fsync writes are recovered by their footers, most have no checksum: a block is one unit.
    pub(crate) fn logical_block_bytes(self) -> u32 {
        match self {
            Format::Ext4 => 1024,
            Format::F2fs => 4096,
        }
    }
}

/// A volume as mkfs makes it, on a device full of [`STALE`].
///
/// # Errors
/// When mkfs fails.
pub fn fresh_volume(plan: &Plan) -> Result<MemoryDevice, String> {
    if plan.format == Format::F2fs {
        return fresh_f2fs(plan);
    }
    let bytes = EXT4_BYTES + more(plan);
    let device = Arc::new(MemoryDevice::with_logical_block(
        bytes,
        plan.format.logical_block_bytes(),
    ));
    let stale = vec![STALE; 1 << 20];
    for k in 0..bytes >> 20 {
        device
            .write_at(DevOffset(k << 20), &stale, Flags::empty())
            .map_err(|e| e.to_string())?;
    }
    let shared: SharedDevice = device.clone();
    let options = FormatOptions {
        block_bytes: Some(plan.block_bytes),
        uuid: Some([7; 16]),
        now: 1_700_000_000,
        features: plan.features.to_owned(),
        before: Before::Unknown,
        ..FormatOptions::default()
    };
    blockwright_mkfs::ext4::format(&shared, &options).map_err(|e| format!("mkfs: {e}"))?;
    Ok(device.snapshot())
}

/// The smallest that mkfs.f2fs makes, and some room.
const F2FS_BYTES: u64 = 52 << 20;

/// The same for sections of two segments.
const F2FS_SECTIONS_BYTES: u64 = 80 << 20;

/// A volume as mkfs.f2fs makes it; what it did not write in the main area is [`STALE`].
fn fresh_f2fs(plan: &Plan) -> Result<MemoryDevice, String> {
    let bytes = match plan.cleaning {
        Some(Cleaning { segments: 2.., .. }) => F2FS_SECTIONS_BYTES,
        _ => F2FS_BYTES,
    } + more(plan);
    let file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    file.as_file().set_len(bytes).map_err(|e| e.to_string())?;
    let mut mkfs = std::process::Command::new("mkfs.f2fs");
    // The same volume for each run of a plan.
    mkfs.args(["-q", "-r", "-T", "1700000000"]);
    mkfs.args(["-U", "07070707-0707-0707-0707-070707070707"]);
    if let Some(cleaning) = plan.cleaning {
        mkfs.args(["-s", &cleaning.segments.to_string()]);
    }
    if !plan.features.is_empty() {
        mkfs.args(["-O", plan.features]);
    }
    let out = mkfs.arg(file.path()).output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("mkfs.f2fs: {out:?}"));
    }
    let whole = std::fs::read(file.path()).map_err(|e| e.to_string())?;
    // `main_blkaddr` of the superblock.
    let main = whole
        .get(1024 + 92..1024 + 96)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_le_bytes)
        .ok_or("no superblock")?;
    let device = MemoryDevice::with_logical_block(bytes, plan.format.logical_block_bytes());
    let stale = [STALE; 4096];
    for (n, block) in whole.chunks_exact(4096).enumerate() {
        let unwritten = n >= main as usize && block.iter().all(|b| *b == 0);
        let bytes = if unwritten { &stale[..] } else { block };
        device
            .write_at(DevOffset(n as u64 * 4096), bytes, Flags::empty())
            .map_err(|e| e.to_string())?;
    }
    if plan.cleaning.is_none() {
        return Ok(device);
    }
    let device = Arc::new(device);
    mounted::alone(plan, || add_ballast(plan, device.clone()))?;
    Ok(device.snapshot())
}

/// Fills a volume, then removes every other file: all its segments have holes.
fn add_ballast(plan: &Plan, device: SharedDevice) -> Result<(), String> {
    let Some(cleaning) = plan.cleaning else {
        return Ok(());
    };
    let volume = mounted::mount_for(plan, device)?;
    if plan.format == Format::F2fs {
        // Nodes lie as one checkpoint lays them, whatever the workload is told.
        let tuned = volume.tune("checkpoint_nodes_left", 1 << 20);
        tuned.map_err(|e| e.to_string())?;
    }
    let cred = Cred::root();
    let request = CreateRequest::new(FileKind::Directory, 0o755);
    let root = volume.root().map_err(fail)?;
    let (dir, _) = volume
        .create(&cred, &root, ballast::DIRECTORY.as_bytes(), &request)
        .map_err(fail)?;
    let free = volume.statfs().map_err(fail)?.blocks_free;
    let (spare, one_of) = match cleaning.room {
        Room::Ample => (free / 4, 2),
        Room::None => (free / 24, 9),
        Room::InHoles => (free / 8, 2),
    };
    let mut files = Vec::new();
    let mut made = 0;
    let short = || {
        let count = |name| volume.stats().get(name).unwrap_or(0);
        count("cleaned_foreground") + count("cleaned_ahead") + count("segments_refilled") > 0
    };
    for round in 0.. {
        let holes = cleaning.room == Room::InHoles && round > 0;
        while volume.statfs().map_err(fail)?.blocks_free > spare && !(holes && short()) {
            add_file(&volume, &dir, made)?;
            files.push(made);
            made += 1;
        }
        volume.sync().map_err(fail)?;
        let mut nth = 0..;
        let mut stay = |_: &u64| nth.next().is_some_and(|n: u64| n % one_of != 1);
        let (left, gone) = files.iter().copied().partition(|n| stay(n));
        files = left;
        let gone: Vec<u64> = gone;
        for n in gone {
            let name = n.to_string();
            volume.unlink(&cred, &dir, name.as_bytes()).map_err(fail)?;
        }
        // What is left lies in more and more segments, until one has to be cleaned or filled.
        if cleaning.room != Room::InHoles || short() {
            break;
        }
        if round == 16 {
            return Err("ballast: there are free sections still".into());
        }
    }
    drop((root, dir));
    volume.unmount().map_err(fail)
}

fn fail(e: blockwright_vfs::Error) -> String {
    format!("ballast: {e}")
}

fn add_file(volume: &Arc<Vfs>, dir: &InodeRef, n: u64) -> Result<(), String> {
    let cred = Cred::root();
    let request = CreateRequest::new(FileKind::Regular, 0o644);
    let (file, _) = volume
        .create(&cred, dir, n.to_string().as_bytes(), &request)
        .map_err(fail)?;
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let handle = volume.open(&cred, &file, flags).map_err(fail)?;
    handle.write_at(&ballast::contents(n), 0).map_err(fail)?;
    Ok(())
}
