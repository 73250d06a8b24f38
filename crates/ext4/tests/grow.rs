//! Growth of a volume that is in use, beside `resize2fs` on the same image, and a power failure at every write of it.

mod support;
#[path = "support/volume.rs"]
mod volume;

use blockwright_check::Mode;
use blockwright_check::ext4::{CheckOptions, check};
use blockwright_device::sim::recording::{CrashPolicy, RecordingDevice};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ext4::ErrorKind;
use blockwright_ext4::engine::Ext4;
use blockwright_reshape::ext4::resize::Growth;
use blockwright_vfs::engine::{NewSize, Space, Volume as _};
use blockwright_vfs::types::FileKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Image, fsck, have, run, save};
use volume::Volume;

/// Options of `mke2fs`; MiB before and after. With groups of 1 MiB, a block has the descriptors of 16 or 32 groups.
const LAYOUTS: &[(&str, &[&str], u64, u64)] = &[
    (
        "ext4",
        &[
            "-b1024",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,flex_bg,resize_inode",
            "-G4",
            "-J",
            "size=4",
        ],
        20,
        150,
    ),
    (
        "a last group that was cut",
        &[
            "-b1024",
            "-g1024",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,flex_bg,resize_inode",
            "-G8",
            "-J",
            "size=4",
            "-N",
            "512",
        ],
        // Not a multiple of 1 MiB: see `make`.
        11,
        20,
    ),
    (
        "meta_bg",
        &[
            "-b1024",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,meta_bg,^resize_inode,flex_bg",
            "-J",
            "size=4",
        ],
        20,
        280,
    ),
    (
        "ext3 with uninit_bg",
        &[
            "-b1024",
            "-O",
            "has_journal,resize_inode,uninit_bg,dir_index,filetype",
            "-J",
            "size=4",
        ],
        20,
        100,
    ),
    (
        "4k",
        &[
            "-b4096",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,flex_bg,resize_inode,orphan_file",
            "-J",
            "size=4",
        ],
        40,
        400,
    ),
    (
        "no reserved blocks",
        &[
            "-b1024",
            "-g1024",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,flex_bg,^resize_inode",
            "-G4",
            "-J",
            "size=4",
            "-N",
            "512",
        ],
        11,
        20,
    ),
    (
        "too few reserved blocks",
        &[
            "-b1024",
            "-g1024",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,flex_bg,resize_inode",
            "-G4",
            "-J",
            "size=4",
            "-N",
            "512",
            "-E",
            "resize=20480",
        ],
        11,
        36,
    ),
    (
        "ext2",
        &[
            "-b1024",
            "-g1024",
            "-O",
            "resize_inode,sparse_super,filetype,^has_journal",
            "-N",
            "512",
        ],
        11,
        15,
    ),
    // The second copy of the superblock moves to the new last group.
    (
        "sparse_super2",
        &[
            "-b1024",
            "-g1024",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,flex_bg,sparse_super2,^resize_inode",
            "-G4",
            "-J",
            "size=1",
            "-N",
            "512",
        ],
        8,
        15,
    ),
    (
        "no journal",
        &[
            "-b1024",
            "-g1024",
            "-t",
            "ext4",
            "-O",
            "metadata_csum,64bit,flex_bg,^resize_inode,^has_journal",
            "-G4",
            "-N",
            "512",
        ],
        11,
        20,
    ),
];

fn has_journal(options: &[&str]) -> bool {
    !options.iter().any(|o| o.contains("^has_journal"))
}

/// A volume, on an image that has room for the larger one.
fn make(options: &[&str], before: u64, after: u64) -> Image {
    let image = Image::make(before * 1024 + 300, options);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&image.path)
        .expect("image");
    file.set_len(after << 20).expect("room");
    image
}

fn field(image: &Path, name: &str) -> String {
    let out = run("dumpe2fs", &["-h", image.to_str().expect("utf-8")]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    said.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Makes directories with files in them until it is told to stop, at least 40 and at most `most`.
fn work(engine: &Arc<Ext4>, parent: u64, stop: &AtomicBool, most: usize) -> usize {
    let mut volume = Volume::of(engine);
    let parent = volume.get(parent);
    let mut made = 0;
    while made < 40 || !stop.load(Ordering::Relaxed) {
        if made == most {
            break;
        }
        let dir = volume.mkdir(&parent, format!("d{made}").as_bytes());
        volume
            .create(&dir, b"file", FileKind::Regular)
            .expect("room");
        made += 1;
    }
    volume.let_go();
    made
}

#[test]
fn grows_while_threads_work() {
    if !(have("mke2fs") && have("e2fsck") && have("resize2fs") && have("dumpe2fs")) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (name, options, before, after) in LAYOUTS {
        let image = make(options, *before, *after);
        let theirs = dir.path().join("theirs");
        std::fs::copy(&image.path, &theirs).expect("copied");
        let base = image.load();
        let device = Arc::new(RecordingDevice::new(&base));
        let shared = Arc::clone(&device) as SharedDevice;
        let mut volume = Volume::mount(&shared);
        let root = volume.root();
        let parents: Vec<u64> = ["a", "b"]
            .map(|n| volume.mkdir(&root, n.as_bytes()).ino().0)
            .to_vec();
        let engine = Arc::clone(&volume.engine);
        let room = engine.statfs().expect("statfs");
        volume.forget(&parents);
        let stop = AtomicBool::new(false);
        // However late the growth comes, the inodes of before suffice for two threads that make two each time.
        let most = usize::try_from(room.files / 8).expect("few").min(600);
        assert!(most >= 40, "{name}");
        let grown = std::thread::scope(|s| {
            let workers: Vec<_> = parents
                .iter()
                .map(|parent| s.spawn(|| work(&engine, *parent, &stop, most)))
                .collect();
            // In two steps.
            let half = engine.grow(NewSize::Bytes((before + after) << 19));
            let grown = half.and_then(|_| engine.grow(NewSize::Fill));
            stop.store(true, Ordering::Relaxed);
            for worker in workers {
                assert!(worker.join().expect("a worker") >= 40);
            }
            grown.unwrap_or_else(|e| panic!("{name}: {e}"))
        });
        assert!(
            grown.now > grown.before && grown.now <= after << 20,
            "{name}: {grown:?}"
        );
        let more = engine.statfs().expect("statfs");
        assert!(
            more.blocks > room.blocks && more.files > room.files,
            "{name}: {room:?} {more:?}"
        );
        // New groups are used: there are more files than the old ones had inodes for, whatever the threads have made.
        let used = more.files - more.files_free;
        let wanted = (room.files + 100).saturating_sub(used).min(4000);
        assert!(wanted > 0 && wanted <= more.files_free, "{name}: {more:?}");
        let mut fill = Volume::of(&engine);
        let b = fill.get(parents[1]);
        for n in 0..wanted {
            fill.create(&b, format!("more-{n}").as_bytes(), FileKind::Regular)
                .unwrap_or_else(|e| panic!("{name}: {n}: {e}"));
        }
        fill.let_go();
        let smaller = engine.grow(NewSize::Bytes(4 << 20)).expect_err("smaller");
        assert_eq!(smaller.kind(), ErrorKind::Invalid);
        drop(engine);
        volume.unmount();
        let path = save(&device.live(), dir.path(), "ours");
        fsck(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let size = format!("{after}M");
        let out = run("resize2fs", &["-f", theirs.to_str().expect("utf-8"), &size]);
        assert!(out.status.success(), "{name}");
        // resize2fs moves blocks for more descriptors; Linux and this engine, while mounted, put them into new groups.
        let is_converted = !options.iter().any(|o| o.contains("meta_bg"))
            && field(&path, "Filesystem features").contains("meta_bg");
        assert_eq!(
            is_converted,
            name.contains("reserved") || *name == "no journal",
            "{name}"
        );
        let more = ["Reserved GDT blocks", "Filesystem features"];
        let more = if is_converted { &[][..] } else { &more };
        for known in ["Block count", "Inode count"].iter().chain(more) {
            assert_eq!(
                field(&path, known),
                field(&theirs, known),
                "{name}: {known}"
            );
        }
    }
}

#[test]
fn a_power_failure_while_it_grows_leaves_a_whole_volume() {
    if !(have("mke2fs") && have("e2fsck")) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (name, options, before, after) in LAYOUTS {
        // Few new groups: their number does not matter here.
        let after = (*after).min(before + 30);
        let image = make(options, *before, after);
        let base = image.load();
        let device = Arc::new(RecordingDevice::new(&base));
        let mut volume = Volume::mount(&(Arc::clone(&device) as SharedDevice));
        let root = volume.root();
        for n in 0..6 {
            volume.mkdir(&root, format!("before-{n}").as_bytes());
        }
        let is_logged = has_journal(options);
        if !is_logged {
            // Only the growth is cut.
            volume.engine.sync_volume().expect("synced");
        }
        let start = device.log_len();
        volume
            .engine
            .grow(NewSize::Fill)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut grown = device.log_len();
        for n in 0..6 {
            volume.mkdir(&root, format!("after-{n}").as_bytes());
        }
        if is_logged {
            grown = device.log_len();
        }
        volume.unmount();
        let (mut sizes, mut images) = (std::collections::BTreeSet::new(), 0);
        for cut in start..=grown {
            let mut policies = vec![CrashPolicy::AllKept, CrashPolicy::NoneKept];
            match device.pending_at(cut).len() {
                // A journal also mends what is torn, as a superblock in two sectors.
                _ if is_logged => policies.push(CrashPolicy::Random { seed: cut as u64 }),
                0 => {}
                n => policies.extend([CrashPolicy::AllBut(0), CrashPolicy::Only(n - 1)]),
            }
            for policy in policies {
                let what = format!("{name}: cut {cut} of {start}..{grown}, {policy:?}");
                let crashed: Arc<MemoryDevice> = Arc::new(device.image_at(cut, policy));
                // e2fsck replays, and finds nothing then. Without a journal it mends what it may without a question.
                let path = save(&crashed, dir.path(), "crashed");
                let out = run("e2fsck", &["-fp", path.to_str().expect("utf-8")]);
                let said = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(
                    out.status.code().is_some_and(|code| code < 4),
                    "{what}: {said}"
                );
                fsck(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
                // So does the engine.
                let shared: SharedDevice = Arc::clone(&crashed) as SharedDevice;
                let report = check(Arc::clone(&shared), &CheckOptions::default()).expect("checked");
                assert!(
                    report.is_clean() || !is_logged,
                    "{what}: {:#?}",
                    report.issues
                );
                // As the host does it when it starts.
                let started: SharedDevice = Arc::new(crashed.snapshot());
                let preen = CheckOptions {
                    mode: Mode::Preen,
                    ..CheckOptions::default()
                };
                let report = check(Arc::clone(&started), &preen).expect("checked");
                assert!(!report.has_uncorrected(), "{what}: {:#?}", report.issues);
                let again = check(started, &CheckOptions::default()).expect("checked");
                assert!(again.issues.is_empty(), "{what}: {:#?}", again.issues);
                if is_logged {
                    Volume::mount(&shared).unmount();
                    let path = save(&crashed, dir.path(), "crashed");
                    fsck(&path).unwrap_or_else(|e| panic!("{what}, by the engine: {e}"));
                }
                sizes.insert(field(&path, "Block count"));
                images += 1;
            }
        }
        assert!(
            sizes.len() >= 2,
            "{name}: {sizes:?} in {images} images: no cut was before the change"
        );
        println!("{name}: {images} images, sizes {sizes:?}");
    }
}

#[test]
fn what_cannot_grow_while_mounted_is_refused() {
    if !(have("mke2fs") && have("e2fsck")) {
        return;
    }
    for (options, says) in [
        // The third group has a copy of the superblock.
        (
            &["-b1024", "-O", "^has_journal,resize_inode"][..],
            "at most 25166848 bytes",
        ),
        (
            &[
                "-b1024",
                "-t",
                "ext4",
                "-O",
                "sparse_super2,^resize_inode,^has_journal",
                "-g",
                "2048",
            ],
            "sparse_super2",
        ),
    ] {
        let image = make(options, 20, 500);
        let base = image.load();
        let device = Arc::new(RecordingDevice::new(&base));
        let volume = Volume::mount(&(Arc::clone(&device) as SharedDevice));
        let error = volume.engine.grow(NewSize::Fill).expect_err(says);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(says) && text.contains("blockwright resize"),
            "{text}"
        );
        volume.unmount();
        let dir = tempfile::tempdir().expect("a directory");
        fsck(&save(&device.live(), dir.path(), "refused")).expect("clean");
    }
}

/// The engine mounts such volumes for reading only, so nothing else keeps the plan from one that does not know of clusters.
#[test]
fn a_plan_with_clusters_is_refused() {
    if !have("mke2fs") {
        return;
    }
    let options = ["-t", "ext4", "-O", "bigalloc", "-C", "16384"];
    let device: SharedDevice = Arc::new(make(&options, 20, 500).load());
    let error = Growth::plan(&device, 400 << 20).err().expect("refused");
    let text = error.to_string();
    assert!(
        text.contains("bigalloc") && text.contains("blockwright resize"),
        "{text}"
    );
}
