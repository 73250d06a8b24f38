//! Every option and tunable of the library in every position, under the same random operations.
//!
//! The tables take the option structures apart: a field without an entry does not compile. What FUSE adds is tried in the `switches`
//! test of the program, which names the tests of what neither can try.

use crate::{LAYOUTS, Layout, check, common};
use blockwright::{Volume, VolumeBuilder, VolumeOptions};
use blockwright_device::DirectIo;
use blockwright_ext4::comparison::{Comparison, Preallocation};
use blockwright_f2fs::comparison::DirectAllocation;
use blockwright_f2fs::options::ActiveLogs;
use blockwright_f2fs::{BackgroundCleaning, FsyncMode, Mode};
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_vfs::AtimeMode;
use std::collections::BTreeSet;
use std::time::Duration;

/// A switch in another position than the default.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub name: &'static str,
    pub turn: Turn,
}

#[derive(Clone, Copy, Debug)]
pub enum Turn {
    Option(fn(&mut VolumeOptions)),
    Tunable(u64),
}

/// Positions of the fields of one structure, as an expression; `o` stands for the field.
macro_rules! positions {
    ($path:ident: $options:path { $($field:ident: [$($value:expr),*],)* }) => {{
        use $options as This;
        let This { $($field: _,)* } = This::default();
        vec![$($(Position {
            name: concat!(stringify!($path), ".", stringify!($field), " = ", stringify!($value)),
            turn: Turn::Option(|o| o.parts.$path.$field = $value),
        },)*)*]
    }};
}

const FAST: Duration = Duration::from_millis(10);

fn of_vfs() -> Vec<Position> {
    positions!(vfs: blockwright_vfs::MountOptions {
        read_only: [], // refuses all of this
        cache_bytes: [1 << 20],
        dirty_bytes_background: [0],
        dirty_bytes_max: [64 << 10],
        commit_interval: [FAST],
        writeback_interval: [FAST],
        lazy_time_interval: [FAST],
        atime: [AtimeMode::Strict, AtimeMode::None],
        readahead_bytes: [0],
        read_past_bytes: [0, 4096],
        write_past_bytes: [0, 1],
        delayed_allocation: [false],
        inodes_idle_max: [0],
        comparison: [
            blockwright_vfs::Comparison { legacy_writeback: true, deferred_completion: false },
            blockwright_vfs::Comparison { legacy_writeback: false, deferred_completion: true }
        ],
    })
}

fn preallocating(preallocation: Preallocation) -> Comparison {
    Comparison {
        preallocation,
        ..Comparison::default()
    }
}

fn of_ext4() -> Vec<Position> {
    positions!(ext4: blockwright_ext4::Options {
        read_only: [],
        downgrade_to_read_only: [false],
        superblock_1k: [], // elsewhere: when the first one is gone
        commit_interval: [FAST],
        barrier: [false],
        errors: [Some(ErrorBehaviour::Continue), Some(ErrorBehaviour::Panic)],
        on_panic: [], // only when there is damage
        metadata_cache_bytes: [1 << 20],
        journal_device: [], // of another layout
        no_journal_replay: [], // refuses changes
        block_validity: [false],
        comparison: [
            preallocating(Preallocation::List),
            preallocating(Preallocation::None),
            Comparison { group_commit: false, ..Comparison::default() }
        ],
        mount_point: [Some("/somewhere".to_owned())],
        host_name: [Some("elsewhere".to_owned())],
    })
}

fn of_f2fs() -> Vec<Position> {
    positions!(f2fs: blockwright_f2fs::Options {
        read_only: [],
        metadata_cache_bytes: [1 << 20],
        discard: [false],
        fsync_mode: [FsyncMode::Strict, FsyncMode::NoBarrier],
        no_recovery: [], // refuses changes
        commit_interval: [FAST],
        mode: [Mode::Lfs],
        background_cleaning: [BackgroundCleaning::Off, BackgroundCleaning::Sync],
        cleaning_interval: [FAST],
        checkpoint: [], // volumes are reopened here: elsewhere
        checkpoint_merge: [Some(false), Some(true)],
        active_logs: [ActiveLogs::Four, ActiveLogs::Two],
        ckpt_thread_ioprio: [0, 7],
        dio_alloc: [DirectAllocation::Serialized, DirectAllocation::None],
        serialized_dio_pages: [1], // with the default of `dio_alloc`
    })
}

fn of_volumes() -> Vec<Position> {
    let position = |name, turn| Position {
        name,
        turn: Turn::Option(turn),
    };
    vec![
        position("direct = Never", |o| {
            *o = o.clone().direct_io(DirectIo::Never)
        }),
        position("lock = false", |o| *o = o.clone().lock(false)),
    ]
}

/// Tunables that are no options, and values to try; and those that an option of another name is for.
const TUNABLES: [(&str, &[u64]); 23] = [
    ("cache_bytes", &[]),
    ("dirty_bytes", &[]),
    ("dirty_background_bytes", &[]),
    ("readahead_bytes", &[]),
    ("read_past_bytes", &[]),
    ("write_past_bytes", &[]),
    ("writeback_interval_ms", &[10]),
    ("lazy_time_interval_ms", &[10]),
    // Unlike the option, it changes a mounted volume.
    ("delayed_allocation", &[0]),
    ("inodes_idle_max", &[]),
    ("commit_interval_ms", &[]),
    ("barrier", &[0]),
    ("metadata_cache_bytes", &[]),
    ("inode_readahead_blks", &[0]),
    ("mb_group_prealloc", &[1]),
    ("mb_stream_req", &[0, 32_768]),
    ("mb_max_to_scan", &[1]),
    ("reserve_for_root", &[1]),
    ("checkpoint", &[]),
    ("checkpoint_merge", &[0]),
    ("ckpt_thread_ioprio", &[]),
    ("checkpoint_nodes_left", &[0, 1 << 20]),
    ("serialized_dio_pages", &[]),
];

fn layout(name: &str) -> Layout {
    *LAYOUTS.iter().find(|l| l.name == name).expect("a layout")
}

/// The names of what a volume of this layout can tune.
fn tunables(layout: Layout) -> BTreeSet<String> {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    match layout.kind {
        Some(kind) => {
            let made = VolumeBuilder::new().fs_type(kind).size(layout.mib << 20);
            made.create(&image).expect("made");
        }
        None => common::mkfs_f2fs(&image, "", layout.mib << 20),
    }
    let volume = Volume::open(&image).expect("opened");
    let names = volume.vfs().tunables().into_iter().map(|t| t.name.into());
    let names = names.collect();
    volume.close().expect("closed");
    names
}

/// Runs the operations in each of the positions, on each of the layouts.
fn tried(layouts: &[&str], positions: Vec<Position>) {
    assert!(!positions.is_empty());
    for (n, position) in (0..).zip(positions) {
        for name in layouts {
            let layout = Layout {
                position: Some(position),
                ..layout(name)
            };
            check(layout, 1000 + n, 300);
        }
    }
}

fn tuned(name: &str) {
    let there = tunables(layout(name));
    let positions = TUNABLES.iter().filter(|(name, _)| there.contains(*name));
    let positions = positions.flat_map(|(name, values)| {
        values.iter().map(|value| Position {
            name,
            turn: Turn::Tunable(*value),
        })
    });
    tried(&[name], positions.collect());
}

#[test]
fn switches_of_all_volumes() {
    let positions = [of_vfs(), of_volumes()].concat();
    tried(&["inline"], positions.clone());
    if common::have_tool("fsck.f2fs") {
        tried(&["f2fs"], positions);
    }
}

#[test]
fn switches_of_ext4() {
    tried(&["default", "ext3"], of_ext4());
}

#[test]
fn switches_of_f2fs() {
    if common::have_tool("fsck.f2fs") {
        tried(&["f2fs"], of_f2fs());
    }
}

#[test]
fn tunables_of_mounted_volumes() {
    tuned("default");
    if common::have_tool("fsck.f2fs") {
        tuned("f2fs");
    }
}

/// No tunable is without an entry.
#[test]
fn the_table_of_tunables_is_whole() {
    let mut there = tunables(layout("default"));
    if common::have_tool("fsck.f2fs") {
        there.extend(tunables(layout("f2fs")));
    }
    for name in there {
        assert!(
            TUNABLES.iter().any(|(entry, _)| *entry == name),
            "tunable {name} has no entry: under which operations is each of its positions tried?"
        );
    }
}
