//! Every switch there is, and where each of its positions is tried on contents.
//!
//! The tables take the option structures apart: a field without an entry does not compile.

use blockwright::PartOptions;
use blockwright_ext4::Options as Ext4Options;
use blockwright_f2fs::Options as F2fsOptions;
use blockwright_fuse::FuseOptions;
use blockwright_vfs::MountOptions;

/// Where positions other than the default are tried.
#[derive(Clone, Copy)]
pub enum Tried {
    /// By rounds through mounts with these options, on both formats.
    Both(&'static [&'static str]),
    /// The same on one format.
    Ext4(&'static [&'static str]),
    F2fs(&'static [&'static str]),
    /// By rounds in which the tunable of the field's name has these values.
    Tuned(&'static [u64]),
    /// With the entry of this name.
    With(&'static str),
    /// It decides nothing of what files hold, or changes what can be expected: the test in this file, in which this word stands.
    Elsewhere(&'static str, &'static str),
}
use Tried::{Both, Elsewhere, Ext4, F2fs, Tuned, With};

macro_rules! switches {
    ($($options:ident { $($field:ident: $tried:expr,)* })*) => {
        /// The fields of all option structures: structure, field, where it is tried.
        pub fn options() -> Vec<(&'static str, &'static str, Tried)> {
            $(let $options { $($field: _,)* } = $options::default();)*
            vec![$($((stringify!($options), stringify!($field), $tried),)*)*]
        }
    };
}

switches! {
    PartOptions {
        vfs: With("MountOptions"),
        ext4: With("Ext4Options"),
        f2fs: With("F2fsOptions"),
    }
    FuseOptions {
        fsname: Elsewhere("crates/cli/tests/switches/rest.rs", "fsname"),
        read_only: Elsewhere("crates/cli/tests/mounting.rs", "\"ro"),
        visibility: Elsewhere("crates/cli/tests/posix.rs", "allow_other"),
        permissions: Both(&["default_permissions", "volume_permissions"]),
        allow_suid: Elsewhere("crates/cli/tests/switches/rest.rs", "suid"),
        allow_dev: Elsewhere("crates/cli/tests/switches/rest.rs", "suid"),
        allow_exec: Elsewhere("crates/cli/tests/switches/rest.rs", "suid"),
        no_atime: With("atime"),
        uid: Both(&["uid=0,gid=0"]),
        gid: With("uid"),
        max_read: Both(&["max_read=4K"]),
        max_write: Both(&["max_write=4K", "max_write=1M"]),
        max_background: Elsewhere("crates/fuse/tests/dispatch.rs", "max_background"),
        writeback_cache: Both(&["writethrough"]),
        xattrs: Elsewhere("crates/fuse/tests/mounted/noxattr.rs", "xattrs: false"),
        direct_io: Both(&["direct_io", "direct_io,transport=dev_fuse"]),
        entry_timeout: Elsewhere("crates/fuse/src/options.rs", "entry_timeout: Duration = Duration::from_secs(3600)"),
        attr_timeout: Elsewhere("crates/fuse/src/options.rs", "attr_timeout: Duration = Duration::from_secs(3600)"),
        negative_timeout: Elsewhere("crates/fuse/src/options.rs", "negative_timeout: Duration = Duration::from_secs(3600)"),
        read_ahead_kib: With("readahead_bytes"),
        transport: Both(&["transport=dev_fuse"]),
        cpu_latency: Both(&["cpu_latency=off"]),
        direct_ring: Elsewhere("crates/fuse/tests/direct_ring.rs", "DirectRing::Off"),
        threads_min: With("threads_max"),
        threads_max: Both(&["threads=1"]),
        shutdown_grace: Elsewhere("crates/fuse/tests/signal.rs", "grace"),
        log: Elsewhere("crates/cli/tests/switches/rest.rs", "--log"),
        image_offset: Elsewhere("crates/cli/tests/unmounting.rs", "offset=1M"),
        keeper: Elsewhere("crates/cli/tests/sandbox/main.rs", "debug-keeper"),
    }
    MountOptions {
        read_only: Elsewhere("crates/cli/tests/mounting.rs", "\"ro"),
        cache_bytes: Both(&["cache=1M"]),
        dirty_bytes_background: With("dirty_bytes_max"),
        dirty_bytes_max: Both(&["dirty=64K,dirty_background=0"]),
        commit_interval: Both(&["commit=1"]),
        writeback_interval: With("commit_interval"),
        lazy_time_interval: Both(&["lazytime"]),
        atime: Both(&["strictatime", "noatime"]),
        readahead_bytes: Both(&["readahead=0"]),
        read_past_bytes: Both(&["read_past=0", "read_past=4K"]),
        write_past_bytes: Both(&["write_past=0", "write_past=1"]),
        delayed_allocation: Ext4(&["nodelalloc"]),
        inodes_idle_max: Tuned(&[0]),
        comparison: Elsewhere("crates/blockwright/tests/model/switches.rs", "legacy_writeback"),
    }
    Ext4Options {
        read_only: Elsewhere("crates/cli/tests/mounting.rs", "\"ro"),
        downgrade_to_read_only: Elsewhere("crates/ext4/tests/journal_group.rs", "downgrade_to_read_only"),
        superblock_1k: Elsewhere("crates/cli/tests/switches/rest.rs", "sb="),
        commit_interval: With("commit_interval"),
        barrier: Both(&["nobarrier"]),
        errors: Ext4(&["errors=continue"]),
        on_panic: Elsewhere("crates/cli/tests/mounting.rs", "errors="),
        metadata_cache_bytes: Both(&["metadata_cache=1M"]),
        journal_device: Elsewhere("crates/ext4/tests/journal_group.rs", "journal_device"),
        no_journal_replay: Elsewhere("crates/cli/tests/switches/rest.rs", "norecovery"),
        block_validity: Ext4(&["noblock_validity"]),
        mount_point: Elsewhere("crates/cli/tests/switches/rest.rs", "mounted_on"),
        comparison: Elsewhere("crates/blockwright/tests/model/switches.rs", "preallocating("),
        host_name: Elsewhere("crates/cli/tests/sandbox/main.rs", "host_name"),
    }
    F2fsOptions {
        read_only: Elsewhere("crates/cli/tests/mounting.rs", "\"ro"),
        metadata_cache_bytes: With("metadata_cache_bytes"),
        discard: F2fs(&["nodiscard"]),
        fsync_mode: F2fs(&["fsync_mode=strict"]),
        no_recovery: Elsewhere("crates/cli/tests/switches/rest.rs", "norecovery"),
        commit_interval: With("commit_interval"),
        mode: F2fs(&["mode=lfs"]),
        background_cleaning: F2fs(&["background_gc=off", "mode=lfs,background_gc=sync"]),
        cleaning_interval: Elsewhere("crates/f2fs/tests/cleaning.rs", "cleaning_interval"),
        checkpoint: Elsewhere("crates/f2fs/tests/volume/disabled.rs", "Checkpointing::Disabled"),
        checkpoint_merge: F2fs(&["nocheckpoint_merge"]),
        active_logs: F2fs(&["active_logs=4", "active_logs=2", "active_logs=2,mode=lfs"]),
        ckpt_thread_ioprio: F2fs(&["ckpt_thread_ioprio=7"]),
        dio_alloc: Elsewhere("crates/blockwright/tests/model/switches.rs", "DirectAllocation::Serialized"),
        serialized_dio_pages: F2fs(&["serialized_dio_pages=1"]),
    }
}

/// The setters of `blockwright::VolumeOptions`: those of its own fields, and those of the fields above.
pub const SETTERS: &[(&str, Tried)] = &[
    (
        "read_only",
        Elsewhere("crates/cli/tests/mounting.rs", "\"ro"),
    ),
    (
        "direct_io",
        Elsewhere("crates/blockwright/tests/model/switches.rs", "DirectIo::"),
    ),
    ("lock", Elsewhere("crates/cli/tests/mounting.rs", "in use")),
    (
        "credentials",
        Elsewhere("crates/fuse/tests/mounted/cases.rs", "as_nobody"),
    ),
    (
        "more_devices",
        Elsewhere("crates/f2fs/tests/volume/devices.rs", "more_devices"),
    ),
    (
        "journal",
        Elsewhere("crates/cli/tests/journal_device.rs", "--journal"),
    ),
    (
        "overlay",
        Elsewhere("crates/cli/tests/overlay.rs", "--overlay"),
    ),
    (
        "allow_backing",
        Elsewhere("crates/cli/tests/disks.rs", "--allow-backing"),
    ),
    ("journal_device", With("journal_device")),
    ("cache_bytes", With("cache_bytes")),
    ("metadata_cache_bytes", With("metadata_cache_bytes")),
    ("dirty_bytes", With("dirty_bytes_max")),
    ("commit_interval", With("commit_interval")),
    ("access_times", With("atime")),
    ("lazy_time_interval", With("lazy_time_interval")),
    ("readahead_bytes", With("readahead_bytes")),
    ("delayed_allocation", With("delayed_allocation")),
    ("recovery", With("no_recovery")),
    ("barriers", With("barrier")),
    ("superblock_1k", With("superblock_1k")),
    ("errors", With("errors")),
    ("block_validity", With("block_validity")),
    ("discard", With("discard")),
    ("fsync_mode", With("fsync_mode")),
    ("mode", With("mode")),
    ("active_logs", With("active_logs")),
    ("background_cleaning", With("background_cleaning")),
    ("checkpoint", With("checkpoint")),
    ("checkpoint_merge", With("checkpoint_merge")),
];

/// What can be tuned and is not an option of that name. The values are tried where a mount has the tunable.
pub const TUNABLES: &[(&str, Tried)] = &[
    // vfs
    ("cache_bytes", With("cache_bytes")),
    ("dirty_bytes", With("dirty_bytes_max")),
    ("dirty_background_bytes", With("dirty_bytes_max")),
    ("readahead_bytes", With("readahead_bytes")),
    ("read_past_bytes", With("read_past_bytes")),
    ("write_past_bytes", With("write_past_bytes")),
    ("writeback_interval_ms", Tuned(&[10])),
    ("lazy_time_interval_ms", Tuned(&[10])),
    // Of f2fs it has no option; of ext4 it may be changed while files wait for their blocks.
    ("delayed_allocation", Tuned(&[0])),
    ("inodes_idle_max", Tuned(&[0])),
    // ext4
    ("commit_interval_ms", Tuned(&[10])),
    ("barrier", With("barrier")),
    ("metadata_cache_bytes", With("metadata_cache_bytes")),
    ("inode_readahead_blks", Tuned(&[0])),
    ("mb_group_prealloc", Tuned(&[1])),
    ("mb_stream_req", Tuned(&[0, 32_768])),
    ("mb_max_to_scan", Tuned(&[1])),
    ("reserve_for_root", Tuned(&[1])),
    // f2fs
    ("checkpoint", With("checkpoint")),
    ("checkpoint_merge", With("checkpoint_merge")),
    ("ckpt_thread_ioprio", With("ckpt_thread_ioprio")),
    ("checkpoint_nodes_left", Tuned(&[0, 1 << 20])),
    ("serialized_dio_pages", With("serialized_dio_pages")),
    // The kernel's, of a mount
    ("kernel_read_ahead_kb", Tuned(&[0])),
    ("kernel_max_ratio", Tuned(&[1])),
    ("kernel_strict_limit", Tuned(&[1])),
];
