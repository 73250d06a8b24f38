//! A refused change changes nothing: the image has the same bytes afterwards, for every feature and setting, over small, full and plain volumes.

mod common;

use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{
    CountingDevice, CrashPolicy, FaultyDevice, MemoryDevice, RecordingDevice, SharedDevice,
};
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_reshape::ext4::resize::resize;
use blockwright_reshape::ext4::settings::{Reserved, Settings, rehearse, set};
use blockwright_reshape::{ReshapeError, ResizeOptions, Watch};
use common::{clean, have_tools, mke2fs, ok, output, scratch};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Features of each volume, its size, and whether it is full.
const VOLUMES: [(&str, &str, &str, bool); 12] = [
    (
        "ext4",
        "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode",
        "12M",
        false,
    ),
    (
        "full ext4",
        "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode",
        "12M",
        true,
    ),
    ("ext3", "has_journal,dir_index,resize_inode", "12M", false),
    (
        "full ext3",
        "has_journal,dir_index,resize_inode",
        "12M",
        true,
    ),
    (
        "full ext3 with large descriptors",
        "has_journal,extent,uninit_bg,dir_index,resize_inode",
        "12M",
        true,
    ),
    ("ext2", "filetype,resize_inode", "12M", false),
    ("full ext2", "filetype,resize_inode", "12M", true),
    ("small ext2", "filetype,^resize_inode", "1M", false),
    (
        "small and full",
        "filetype,extent,^resize_inode",
        "1M",
        true,
    ),
    (
        "without reserve",
        "has_journal,extent,uninit_bg,flex_bg,dir_index,^resize_inode",
        "12M",
        false,
    ),
    (
        "clusters",
        "has_journal,extent,64bit,metadata_csum,flex_bg,bigalloc,^resize_inode",
        "12M",
        false,
    ),
    (
        "quota",
        "has_journal,extent,uninit_bg,quota,dir_index,resize_inode",
        "12M",
        true,
    ),
];

/// Every feature, on and off, and lists in which the last part is the impossible one.
fn lists() -> Vec<String> {
    let names = [
        "has_journal",
        "ext_attr",
        "resize_inode",
        "dir_index",
        "sparse_super2",
        "fast_commit",
        "stable_inodes",
        "orphan_file",
        "filetype",
        "meta_bg",
        "extent",
        "64bit",
        "mmp",
        "flex_bg",
        "ea_inode",
        "metadata_csum_seed",
        "large_dir",
        "inline_data",
        "encrypt",
        "casefold",
        "sparse_super",
        "large_file",
        "huge_file",
        "uninit_bg",
        "dir_nlink",
        "extra_isize",
        "quota",
        "bigalloc",
        "metadata_csum",
        "project",
        "verity",
    ];
    let mut all: Vec<String> = names
        .iter()
        .flat_map(|n| [(*n).to_owned(), format!("^{n}")])
        .collect();
    all.extend(
        [
            "quota,orphan_file,mmp",
            "^metadata_csum,quota,project",
            "metadata_csum,64bit",
            "^uninit_bg,quota",
            "has_journal,orphan_file,fast_commit",
            "^dir_index,quota,orphan_file",
            "^64bit,orphan_file",
            "verity,^extent",
            "^has_journal,quota",
        ]
        .map(str::to_owned),
    );
    all
}

fn settings() -> Vec<(String, Settings)> {
    let mut all: Vec<(String, Settings)> = lists()
        .into_iter()
        .map(|list| {
            let settings = Settings {
                label: Some(b"changed".to_vec()),
                features: Some(list.clone()),
                ..Settings::default()
            };
            (list, settings)
        })
        .collect();
    let mut one = |name: &str, settings: Settings| all.push((name.to_owned(), settings));
    for mib in [0, 1, 2, 5, 8, 11, 4000] {
        let journal_bytes = Some(mib << 20);
        one(
            &format!("journal of {mib} MiB"),
            Settings {
                journal_bytes,
                ..Settings::default()
            },
        );
        let features = Some("has_journal,quota".to_owned());
        one(
            &format!("new journal of {mib} MiB, quota"),
            Settings {
                journal_bytes,
                features,
                ..Settings::default()
            },
        );
    }
    one(
        "uuid",
        Settings {
            uuid: Some([7; 16]),
            ..Settings::default()
        },
    );
    one(
        "hash seed",
        Settings {
            hash_seed: Some([7; 16]),
            ..Settings::default()
        },
    );
    one(
        "reserved",
        Settings {
            reserved: Some(Reserved::Percent(51.0)),
            ..Settings::default()
        },
    );
    one(
        "errors",
        Settings {
            errors: Some(ErrorBehaviour::Panic),
            ..Settings::default()
        },
    );
    let default_options = Some("acl,nonsense".to_owned());
    one(
        "options",
        Settings {
            default_options,
            ..Settings::default()
        },
    );
    all
}

/// Fills the volume: no block, or almost none, and no inode is free.
fn fill(image: &Path, dir: &Path, blocks_left: u64) {
    let mut script = String::new();
    let small = dir.join("small");
    fs::write(&small, b"x").expect("written");
    let free: u64 = common::field(image, "Free inodes")
        .parse()
        .expect("a number");
    for n in 0..free.saturating_sub(1) {
        script += &format!("mknod fifo-{n} p\n");
    }
    let commands = dir.join("commands");
    fs::write(&commands, &script).expect("written");
    ok(Command::new("debugfs")
        .args(["-w", "-f"])
        .arg(&commands)
        .arg(image));
    let free: u64 = common::field(image, "Free blocks")
        .parse()
        .expect("a number");
    // Its own indirect blocks are among them.
    let bytes = free.saturating_sub(blocks_left + free / 128 + 4) * 1024;
    fs::write(&small, vec![b'y'; bytes as usize]).expect("written");
    let script = format!("write {} filler\n", small.display());
    fs::write(&commands, &script).expect("written");
    ok(Command::new("debugfs")
        .args(["-w", "-f"])
        .arg(&commands)
        .arg(image));
    output(Command::new("e2fsck").arg("-fy").arg(image));
    clean(image, "filled");
}

fn make(dir: &Path, image: &Path, (features, size, full): (&str, &str, bool)) {
    let files = dir.join("few");
    fs::create_dir_all(files.join("full")).expect("made");
    for n in 0..130 {
        fs::write(files.join(format!("full/name-{n:03}")), b"").expect("written");
    }
    let mut options = vec!["-b", "1024", "-I", "256", "-O", features];
    if features.contains("has_journal") {
        // A narrow one.
        options.extend(["-J", "size=1"]);
    }
    if size == "1M" {
        options.extend(["-N", "256"]);
    }
    mke2fs(image, &options, size, &files);
    if full {
        fill(image, dir, if size == "1M" { 3 } else { 12 });
    }
}

/// Makes a change of a copy. It is made, or it is refused and nothing was written.
fn refused(
    image: &[u8],
    what: &str,
    change: &dyn Fn(&SharedDevice) -> Result<(), ReshapeError>,
) -> Option<String> {
    let memory = MemoryDevice::from_image(image);
    let recording = Arc::new(RecordingDevice::new(&memory));
    let device = Arc::clone(&recording) as SharedDevice;
    let error = change(&device).err()?;
    assert!(
        !matches!(error, ReshapeError::Device { .. }),
        "{what}: {error}"
    );
    let now = recording
        .image_at(recording.log_len(), CrashPolicy::AllKept)
        .to_vec();
    assert!(now == image, "{what}: {error}: the image was changed");
    assert_eq!(
        recording.log_len(),
        0,
        "{what}: {error}: something was written"
    );
    Some(error.to_string())
}

#[test]
fn a_refused_setting_leaves_all_bytes() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let path = dir.path().join("image");
    let (mut reasons, mut made) = (BTreeSet::new(), 0);
    for (name, features, size, full) in VOLUMES {
        make(dir.path(), &path, (features, size, full));
        let image = fs::read(&path).expect("read");
        for (setting, settings) in settings() {
            let what = format!("{name}, {setting}");
            match refused(&image, &what, &|device| {
                set(device, &settings, &Watch::default())
            }) {
                Some(reason) => _ = reasons.insert(reason),
                None => made += 1,
            }
        }
    }
    // Those that only the change itself finds are among them.
    for part in ["free blocks in few enough pieces", "no inode is free"] {
        assert!(
            reasons.iter().any(|r| r.contains(part)),
            "{part}: {reasons:#?}"
        );
    }
    println!(
        "{made} changes made, {} reasons: {reasons:#?}",
        reasons.len()
    );
}

#[test]
fn a_refused_size_leaves_all_bytes() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let path = dir.path().join("image");
    let (mut reasons, mut made) = (BTreeSet::new(), 0);
    for (name, features, size, full) in VOLUMES {
        make(dir.path(), &path, (features, size, full));
        let mut image = fs::read(&path).expect("read");
        // Room to grow behind it.
        image.resize(300 << 20, 0);
        for kib in [
            0, 100, 900, 1500, 3000, 5000, 7000, 9000, 11_000, 20_000, 100_000, 300_000, 400_000,
        ] {
            let what = format!("{name}, {kib} KiB");
            let change = |device: &SharedDevice| {
                resize(device, &ResizeOptions::to_bytes(kib << 10)).map(|_| ())
            };
            match refused(&image, &what, &change) {
                Some(reason) => _ = reasons.insert(reason),
                None => made += 1,
            }
        }
        refused(&image, &format!("{name}, minimum"), &|device| {
            resize(device, &ResizeOptions::to_minimum(0)).map(|_| ())
        });
    }
    assert!(
        reasons.iter().any(|r| r.contains("do not fit")),
        "{reasons:#?}"
    );
    println!(
        "{made} changes made, {} reasons: {reasons:#?}",
        reasons.len()
    );
}

/// A device that fails during a rehearsal, wherever: the error is told, and nothing reaches the device, not even what gives a begun change up.
#[test]
fn a_device_that_fails_in_a_rehearsal_leaves_all_bytes() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let image = dir.path().join("image");
    for (features, list) in [
        // A journal for the time of the change, which an error gives up again.
        ("filetype,extent", "metadata_csum,quota"),
        // A journal of the volume's own, which is enlarged or goes.
        ("has_journal,extent", "metadata_csum,orphan_file"),
        ("has_journal,extent,metadata_csum,64bit", "^metadata_csum"),
        ("has_journal,extent", "^has_journal"),
    ] {
        make(dir.path(), &image, (features, "12M", false));
        let before = fs::read(&image).expect("read");
        let memory = Arc::new(MemoryDevice::from_image(&before));
        let counting = Arc::new(CountingDevice::new(memory.clone()));
        let faulty = Arc::new(FaultyDevice::new(counting.clone(), 1));
        let device: SharedDevice = faulty.clone();
        let settings = Settings {
            features: Some(list.to_owned()),
            ..Settings::default()
        };
        rehearse(&device, &settings, &Watch::default()).expect("possible");
        let reads = counting.stats().reads.requests;
        assert!(reads > 10, "{list}: {reads}");
        for skip in (0..reads).step_by((reads / 25).max(1) as usize) {
            for fault in [Fault::Errno(5), Fault::Gone] {
                for change in [rehearse, set] {
                    let what = format!("{list}: read {skip} of {reads}: {fault:?}");
                    faulty.heal();
                    faulty.add(Rule::new(Ops::READ, fault.clone()).skip(skip));
                    let error = change(&device, &settings, &Watch::default()).expect_err(&what);
                    let device = matches!(error, ReshapeError::Device { .. });
                    assert!(device, "{what}: {error}");
                    let stats = counting.stats();
                    let written = stats.writes.requests
                        + stats.zeroes.requests
                        + stats.discards.requests
                        + stats.flushes;
                    assert_eq!(written, 0, "{what}");
                }
            }
        }
        assert!(memory.to_vec() == before, "{list}: changed");
        faulty.heal();
        set(&device, &settings, &Watch::default()).expect("set");
        fs::write(&image, memory.to_vec()).expect("written");
        clean(&image, list);
    }
}
