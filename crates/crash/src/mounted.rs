//! Mounts volumes for workloads and for verification: as a plan says, and with options under which nothing happens but what a test asks for.

use crate::plan::{Cleaning, F2fsSwitches, Plan};
use blockwright_device::sim::turns;
use blockwright_device::{DevOffset, SharedDevice};
use blockwright_ext4::{Ext4, Options};
use blockwright_f2fs::{BackgroundCleaning, F2fs};
use blockwright_vfs::engine::Volume as _;
use blockwright_vfs::{MountOptions, Vfs};
use std::sync::Arc;
use std::time::Duration;

/// Options under which nothing happens but what a test asks for.
pub(crate) fn options() -> (Options, MountOptions) {
    let never = Duration::from_secs(100_000);
    (
        Options {
            commit_interval: never,
            ..Options::default()
        },
        MountOptions {
            commit_interval: never,
            writeback_interval: never,
            lazy_time_interval: never,
            // What is written back as by a front end goes past the cache wherever it can.
            write_past_bytes: 1,
            ..MountOptions::default()
        },
    )
}

/// Mounts for writing, with recovery.
pub(crate) fn mount(device: SharedDevice) -> Result<Arc<Vfs>, String> {
    mount_with(device, options(), F2fsSwitches::default(), None)
}

/// Mounts as the plan says.
pub(crate) fn mount_for(plan: &Plan, device: SharedDevice) -> Result<Arc<Vfs>, String> {
    mount_planned(plan, device, options())
}

/// As [`mount_for`], for the workload. Where its threads take turns, the flusher leaves what is dirty to them.
pub(crate) fn mount_to_run(plan: &Plan, device: SharedDevice) -> Result<Arc<Vfs>, String> {
    let (engine, mut vfs) = options();
    if plan.takes_turns() {
        vfs.dirty_bytes_background = u64::MAX;
    }
    mount_planned(plan, device, (engine, vfs))
}

/// Runs `work` in turns of its own where the plan's threads take turns: what it writes is then the same in each run.
pub(crate) fn alone<T>(plan: &Plan, work: impl FnOnce() -> T) -> T {
    match plan.takes_turns() {
        true => turns::alone(plan.seed, work),
        false => work(),
    }
}

fn mount_planned(
    plan: &Plan,
    device: SharedDevice,
    (mut engine, mut vfs): (Options, MountOptions),
) -> Result<Arc<Vfs>, String> {
    if plan.small_caches {
        engine.metadata_cache_bytes = SMALL_CACHE_BYTES;
        vfs.cache_bytes = SMALL_CACHE_BYTES;
        if vfs.dirty_bytes_background != u64::MAX {
            vfs.dirty_bytes_background = SMALL_CACHE_BYTES / 4;
        }
        vfs.dirty_bytes_max = SMALL_CACHE_BYTES / 2;
        vfs.inodes_idle_max = 2;
    }
    vfs.comparison = blockwright_vfs::Comparison {
        legacy_writeback: plan.compared,
        deferred_completion: plan.compared,
    };
    engine.comparison = plan.comparison;
    vfs.delayed_allocation = plan.delayed_allocation;
    let volume = mount_with(device, (engine, vfs), plan.f2fs, plan.cleaning)?;
    for (name, value) in plan.tuned {
        let tuned = volume.tune(name, *value);
        tuned.map_err(|e| format!("tune {name}={value}: {e}"))?;
    }
    Ok(volume)
}

/// The least that caches are given.
const SMALL_CACHE_BYTES: u64 = 256 << 10;

fn mount_with(
    device: SharedDevice,
    (engine, vfs): (Options, MountOptions),
    switches: F2fsSwitches,
    cleaning: Option<Cleaning>,
) -> Result<Arc<Vfs>, String> {
    if is_f2fs(&device)? {
        let options = blockwright_f2fs::Options {
            commit_interval: vfs.commit_interval,
            metadata_cache_bytes: engine.metadata_cache_bytes,
            mode: cleaning.map_or(switches.mode, |c| c.mode),
            fsync_mode: switches.fsync,
            active_logs: switches.logs,
            dio_alloc: switches.alloc,
            checkpoint_merge: switches.merge,
            discard: !switches.no_discard,
            background_cleaning: cleaning.map_or(BackgroundCleaning::Off, |c| c.background),
            cleaning_interval: vfs.commit_interval,
            ..blockwright_f2fs::Options::default()
        };
        let f2fs = F2fs::mount(Arc::clone(&device), options).map_err(|e| format!("mount: {e}"))?;
        if f2fs.is_read_only() {
            return Err(format!("mount: {}", f2fs.fs().volume.read_only("mount")));
        }
        let volume = Vfs::new(f2fs, device, vfs);
        if let Some(left) = switches.nodes_left {
            let tuned = volume.tune("checkpoint_nodes_left", left);
            tuned.map_err(|e| format!("tune: {e}"))?;
        }
        return Ok(volume);
    }
    let ext4 = Ext4::mount(Arc::clone(&device), engine).map_err(|e| format!("mount: {e}"))?;
    Ok(Vfs::new(ext4, device, vfs))
}

/// Whether the device holds f2fs.
pub(crate) fn is_f2fs(device: &SharedDevice) -> Result<bool, String> {
    let mut head = [0; 4096];
    device
        .read_at(DevOffset(0), &mut head)
        .map_err(|e| e.to_string())?;
    Ok(head[1024..1028] == 0xF2F5_2010u32.to_le_bytes())
}
