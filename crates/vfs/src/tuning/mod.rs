//! Settings that can be changed while a volume is mounted.
//!
//! The vfs has tunables of its own, and the engine adds its own ([`Volume::tunables`](crate::engine::Volume::tunables)); [`Vfs::tune`] checks the range and hands the value to its owner.
//!
//! Names follow ext4's directory in sysfs where there is the same thing, `blockwright`'s mount options
//! otherwise.

pub mod tunable;

use crate::error::{Error, ErrorKind, Result};
use crate::options::MountOptions;
use crate::vfs::Vfs;
use std::time::Duration;
use tunable::Tunable;

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// The vfs's own.
fn of_options(o: &MountOptions) -> Vec<Tunable> {
    const HOUR_MS: u64 = 3_600_000;
    crate::tunables! {
        "cache_bytes", Bytes, 1 << 20..=1 << 50, o.cache_bytes,
            "budget of pages, metadata and inodes in memory; pages above what the others leave are dropped at once as far as they are clean";
        "dirty_bytes", Bytes, 1 << 16..=1 << 50, o.dirty_bytes_max,
            "dirty bytes from which writers clean pages themselves (at most half of the cache counts)";
        "dirty_background_bytes", Bytes, 0..=1 << 50, o.dirty_bytes_background,
            "dirty bytes from which the flusher works (at most half of dirty_bytes counts)";
        "readahead_bytes", Bytes, 0..=1 << 30, o.readahead_bytes,
            "largest readahead window of this program; 0 turns it off (the kernel's own: kernel_read_ahead_kb)";
        "read_past_bytes", Bytes, 0..=1 << 30, o.read_past_bytes,
            "reads of a mount from this size on go past the cache of this program; 0: none does";
        "write_past_bytes", Bytes, 0..=1 << 60, o.write_past_bytes,
            "from this offset of a file on, large pieces that the kernel writes back go past the cache of this program; 0: none does";
        "writeback_interval_ms", Milliseconds, 10..=HOUR_MS, millis(o.writeback_interval),
            "age from which the flusher writes dirty pages";
        "lazy_time_interval_ms", Milliseconds, 10..=24 * HOUR_MS, millis(o.lazy_time_interval),
            "age from which times that changed in memory only are written";
        "delayed_allocation", Switch, 0..=1, u64::from(o.delayed_allocation),
            "allocate blocks at writeback; 0: writes are written back before they return";
        "inodes_idle_max", Count, 0..=1 << 32, o.inodes_idle_max as u64,
            "unused inodes that are kept in memory";
    }
}

/// Sets one of the vfs's own. Whether there is one of this name.
fn set_option(o: &mut MountOptions, name: &str, value: u64) -> bool {
    match name {
        "cache_bytes" => o.cache_bytes = value,
        "dirty_bytes" => o.dirty_bytes_max = value,
        "dirty_background_bytes" => o.dirty_bytes_background = value,
        "readahead_bytes" => o.readahead_bytes = value,
        "read_past_bytes" => o.read_past_bytes = value,
        "write_past_bytes" => o.write_past_bytes = value,
        "writeback_interval_ms" => o.writeback_interval = Duration::from_millis(value),
        "lazy_time_interval_ms" => o.lazy_time_interval = Duration::from_millis(value),
        "delayed_allocation" => o.delayed_allocation = value != 0,
        "inodes_idle_max" => o.inodes_idle_max = usize::try_from(value).unwrap_or(usize::MAX),
        _ => return false,
    }
    true
}

impl Vfs {
    /// What can be changed, with the values in force.
    #[must_use]
    pub fn tunables(&self) -> Vec<Tunable> {
        let mut all = of_options(&self.options());
        all.extend(self.core.engine.tunables());
        all
    }

    /// Changes one of [`Vfs::tunables`]. In force when this returns.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name; `Invalid` when the value is out of range; what the
    /// engine reports.
    pub fn tune(&self, name: &str, value: u64) -> Result<()> {
        const OP: &str = "tune";
        self.core.alive(OP)?;
        let Some(known) = self.tunables().into_iter().find(|t| t.name == name) else {
            return Err(Error::new(ErrorKind::NotFound, OP).detail(format!("no tunable {name}")));
        };
        if !(known.min..=known.max).contains(&value) {
            return Err(Error::new(ErrorKind::Invalid, OP).detail(format!(
                "{name}={value}: {} to {} {}",
                known.min,
                known.max,
                known.unit.name()
            )));
        }
        if self.change_options(|options| set_option(options, name, value)) {
            return Ok(());
        }
        self.core.engine.set_tunable(name, value)
    }
}
