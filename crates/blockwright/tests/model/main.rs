//! Random operations through the public library against a tree in memory.
//!
//! A run is a list of operations made from a seed. Operations name files by number, resolved against what
//! exists when they run, so every part of a list is a valid list: when one fails, the list is cut after the
//! failing operation and then thinned as long as it still fails, and what is left is printed.
//!
//! Seeds that found something are kept in [`REGRESSIONS`].

use blockwright_test_support as common;
mod ops;
mod switches;
mod tree;
mod world;

use blockwright::{VolumeBuilder, VolumeOptions};
use blockwright_mkfs::ext4::FsType;
use common::testing;
use ops::Op;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use switches::{Position, Turn};
use world::World;

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
struct Layout {
    name: &'static str,
    /// `None` for f2fs.
    kind: Option<FsType>,
    features: &'static str,
    block: u32,
    mib: u64,
    /// What is switched.
    position: Option<Position>,
}

const LAYOUTS: [Layout; 10] = [
    Layout {
        name: "default",
        kind: Some(FsType::Ext4),
        features: "",
        block: 4096,
        mib: 96,
        position: None,
    },
    Layout {
        name: "inline",
        kind: Some(FsType::Ext4),
        features: "inline_data,orphan_file,ea_inode",
        block: 1024,
        mib: 48,
        position: None,
    },
    Layout {
        name: "ext2",
        kind: Some(FsType::Ext2),
        features: "",
        block: 1024,
        mib: 48,
        position: None,
    },
    Layout {
        name: "ext3",
        kind: Some(FsType::Ext3),
        features: "",
        block: 4096,
        mib: 64,
        position: None,
    },
    Layout {
        name: "no-journal",
        kind: Some(FsType::Ext4),
        features: "^has_journal",
        block: 2048,
        mib: 64,
        position: None,
    },
    Layout {
        name: "64k",
        kind: Some(FsType::Ext4),
        features: "^resize_inode",
        block: 65536,
        mib: 512,
        position: None,
    },
    Layout {
        name: "f2fs",
        kind: None,
        features: "",
        block: 4096,
        mib: 96,
        position: None,
    },
    Layout {
        name: "f2fs-extra",
        kind: None,
        features: "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,verity,compression",
        block: 4096,
        mib: 96,
        position: None,
    },
    Layout {
        name: "f2fs-android",
        kind: None,
        features: "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,verity,casefold,compression",
        block: 4096,
        mib: 96,
        position: None,
    },
    Layout {
        // Everything out of place, and sections cleaned all the time.
        name: "f2fs-lfs",
        kind: None,
        features: "extra_attr,inode_checksum",
        block: 4096,
        mib: 72,
        position: None,
    },
];

/// Layout, seed and number of operations of runs that failed once.
const REGRESSIONS: [(&str, u64, usize); 0] = [];

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a list; on failure says at which operation and why.
fn run(layout: Layout, ops: &[Op]) -> Result<(), (usize, String)> {
    let at = Arc::new(AtomicUsize::new(0));
    let (ops, progress) = (ops.to_vec(), Arc::clone(&at));
    let result = std::panic::catch_unwind(move || {
        common::guarded(layout.name, LIMIT, move || {
            let dir = tempfile::tempdir().expect("a directory");
            let image = dir.path().join("disk.img");
            match layout.kind {
                Some(kind) => {
                    VolumeBuilder::new()
                        .fs_type(kind)
                        .features(layout.features)
                        .block_size(layout.block)
                        .size(layout.mib << 20)
                        .create(&image)
                        .expect("made");
                }
                None => common::mkfs_f2fs(&image, layout.features, layout.mib << 20),
            };
            let lfs = layout.name.ends_with("lfs");
            let mut options = VolumeOptions::default();
            if lfs {
                options.parts.f2fs.mode = blockwright_f2fs::Mode::Lfs;
            }
            let mut tuned = None;
            match layout.position.map(|p| (p.name, p.turn)) {
                Some((_, Turn::Option(turn))) => turn(&mut options),
                Some((name, Turn::Tunable(value))) => tuned = Some((name, value)),
                None => {}
            }
            let mut world = World::new(
                &image,
                layout.block,
                layout.features.contains("inline_data"),
                // f2fs has no unwritten extents, but moves what follows as ext4 with extents does.
                layout.kind.is_none_or(|kind| kind == FsType::Ext4),
                layout.kind.is_some(),
                options,
                tuned,
            );
            for (n, op) in ops.iter().enumerate() {
                progress.store(n, Ordering::Relaxed);
                world.apply(op)?;
                if lfs && n % 4 == 3 {
                    world.clean();
                }
            }
            world.finish()?;
            match layout.kind {
                Some(_) => testing::assert_e2fsck_clean(&image),
                None => common::assert_fsck_f2fs_clean(&image),
            }
            Ok::<(), String>(())
        })
    });
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err((at.load(Ordering::Relaxed), why)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            Err((at.load(Ordering::Relaxed), text))
        }
    }
}

/// Makes a failing list as short as it gets within a minute.
fn shrink(
    layout: Layout,
    mut ops: Vec<Op>,
    failed_at: usize,
    mut why: String,
) -> (Vec<Op>, String) {
    let started = Instant::now();
    ops.truncate(failed_at + 1);
    let mut piece = ops.len() / 2;
    while piece > 0 {
        let mut start = 0;
        while start < ops.len() {
            if started.elapsed() > Duration::from_secs(60) {
                return (ops, why);
            }
            let mut fewer = ops.clone();
            fewer.drain(start..(start + piece).min(ops.len()));
            match run(layout, &fewer) {
                Ok(()) => start += piece,
                Err((at, text)) => {
                    fewer.truncate(at + 1);
                    ops = fewer;
                    why = text;
                }
            }
        }
        piece /= 2;
    }
    (ops, why)
}

fn check(layout: Layout, seed: u64, count: usize) {
    let ops = ops::make(seed, count);
    if let Err((at, why)) = run(layout, &ops) {
        let position = layout.position.map_or("", |p| p.name);
        eprintln!(
            "{} {position}: seed {seed} fails at operation {at} of {count}: {why}",
            layout.name
        );
        let (fewer, why) = shrink(layout, ops, at, why);
        panic!(
            "{} {position}: seed {seed}: {} operations are enough:\n{fewer:#?}\n{why}",
            layout.name,
            fewer.len()
        );
    }
}

fn layout(name: &str) -> Layout {
    *LAYOUTS.iter().find(|l| l.name == name).expect("a layout")
}

#[test]
fn regressions() {
    for (name, seed, count) in REGRESSIONS {
        check(layout(name), seed, count);
    }
}

macro_rules! model_tests {
    ($($test:ident: $name:literal, $seed:literal;)*) => {$(
        #[test]
        fn $test() {
            if layout($name).kind.is_none() && !common::have_tool("fsck.f2fs") {
                return;
            }
            let seed = common::seed($seed);
            for round in 0..2 {
                check(layout($name), seed + round, 400);
            }
        }
    )*};
}

model_tests! {
    default_layout: "default", 11;
    inline_data: "inline", 22;
    ext2: "ext2", 33;
    ext3: "ext3", 44;
    no_journal: "no-journal", 55;
    blocks_of_64k: "64k", 66;
    f2fs: "f2fs", 77;
    f2fs_extra_attributes: "f2fs-extra", 88;
    f2fs_android: "f2fs-android", 99;
    f2fs_lfs_cleaned: "f2fs-lfs", 111;
}
