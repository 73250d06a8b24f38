//! A power failure at every moment of a change: what opens the volume next finishes or undoes it.
//!
//! Every write and flush of a change is recorded. At each cut, with what was not flushed kept, lost, torn or reordered, `e2fsck -fy` replays and
//! repairs; then it finds nothing, and every file is as it was.

mod common;

use blockwright_device::{CrashPolicy, DevOffset, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_reshape::ext4::resize::resize;
use blockwright_reshape::ext4::settings::{Settings, set};
use blockwright_reshape::{Phase, ReshapeError, ResizeOptions, Watch};
use common::{clean, contents, have_tools, mke2fs, output, recovers, scratch};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const EXT4: &[&str] = &[
    "-b",
    "1024",
    "-O",
    "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode",
    "-J",
    "size=2",
];
const META_BG: &[&str] = &[
    "-b",
    "1024",
    "-O",
    "has_journal,extent,64bit,metadata_csum,^resize_inode",
    "-J",
    "size=2",
];
const EXT3: &[&str] = &[
    "-b",
    "1024",
    "-O",
    "has_journal,dir_index,uninit_bg,resize_inode",
    "-J",
    "size=2",
];
const EXT2: &[&str] = &["-b", "1024", "-O", "filetype,resize_inode"];

/// Which volume is changed, and how often the change is cut.
#[derive(Clone, Copy)]
struct Base {
    size: &'static str,
    /// Files lie at the back.
    at_the_back: bool,
    /// Large directories have an index.
    indexed: bool,
    /// Most images that are checked.
    images_max: usize,
    /// Writes may be torn.
    tears: bool,
    /// The volume is as small as its files allow.
    minimal: bool,
}

const BASE: Base = Base {
    size: "12M",
    at_the_back: false,
    indexed: false,
    images_max: usize::MAX,
    tears: true,
    minimal: false,
};
const INDEXED: Base = Base {
    indexed: true,
    ..BASE
};
const AT_THE_BACK: Base = Base {
    size: "20M",
    at_the_back: true,
    ..BASE
};

/// Cuts a change everywhere.
fn cut(name: &str, options: &[&str], bytes: u64, change: impl Fn(&SharedDevice)) {
    cut_of(name, options, BASE, bytes, change);
}

/// Gives large directories the indexes that `mke2fs -d` does not make.
fn index(image: &Path) {
    let out = output(Command::new("e2fsck").arg("-fyD").arg(image));
    assert!(out.status.code().is_some_and(|code| code < 2), "{out:?}");
    let dump = "htree_dump /many";
    let said = common::ok(Command::new("debugfs").args(["-R", dump]).arg(image));
    assert!(said.contains("Root node dump"), "{said}");
}

/// As [`cut`], of another volume.
fn cut_of(name: &str, options: &[&str], base: Base, bytes: u64, change: impl Fn(&SharedDevice)) {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = dir.path().join("few");
    std::fs::create_dir_all(files.join("d/e")).expect("made");
    for n in 0..12usize {
        std::fs::write(files.join(format!("d/{n}")), vec![n as u8; n * 2500]).expect("written");
        std::fs::write(files.join(format!("d/e/{n}")), format!("{n}")).expect("written");
    }
    // Names of 8 bytes fill blocks of 1024 bytes to the last one.
    std::fs::create_dir(files.join("full")).expect("made");
    for n in 0..130 {
        std::fs::write(files.join(format!("full/name-{n:03}")), b"").expect("written");
    }
    if base.indexed {
        std::fs::create_dir(files.join("many")).expect("made");
        for n in 0..60 {
            let name = format!("many/a file with a name of some length {n}");
            std::fs::write(files.join(name), b"").expect("written");
        }
    }
    let image = dir.path().join("image");
    mke2fs(&image, options, base.size, &files);
    if base.indexed {
        index(&image);
    }
    if base.at_the_back {
        push_back(&image, dir.path(), 11 << 20);
    }
    if base.minimal {
        resize(&common::device(&image), &ResizeOptions::to_minimum(0)).expect("resized");
        clean(&image, "minimal");
    }
    let before = contents(&image);
    common::set_len(&image, bytes);
    let memory = MemoryDevice::load(&image).expect("loaded");
    let recording = Arc::new(RecordingDevice::new(&memory));
    change(&(Arc::clone(&recording) as SharedDevice));
    let length = recording.log_len();
    let (mut seen, mut images) = (HashSet::new(), 0);
    for cut in (0..=length).rev() {
        let pending = recording.pending_at(cut).len();
        let mut policies = vec![CrashPolicy::AllKept, CrashPolicy::NoneKept];
        if pending > 0 {
            policies.extend([CrashPolicy::AllBut(0), CrashPolicy::Only(pending - 1)]);
            let random = (0..2).map(|n| CrashPolicy::Random {
                seed: (cut * 7 + n) as u64,
            });
            policies.extend(random.filter(|_| base.tears));
        }
        for policy in policies {
            let crashed = recording.image_at(cut, policy);
            // Images that differ in nothing need one check.
            if images == base.images_max || !seen.insert(digest(&crashed)) {
                continue;
            }
            images += 1;
            let what = format!("{name}: cut {cut} of {length}, {policy:?}");
            crashed.save(&image).expect("saved");
            recovers(&image, &before, &what, images % 16 == 1);
        }
    }
    println!("{name}: {length} entries, {images} images");
    assert!(images > 2, "{name}: only {images} images");
}

/// Writes files behind one that is removed again.
fn push_back(image: &Path, dir: &Path, blocker_bytes: usize) {
    let write = |name: &str, bytes: usize| {
        let file = dir.join(name);
        std::fs::write(&file, vec![bytes as u8; bytes]).expect("written");
        format!("write {} {name}\n", file.display())
    };
    let mut script = write("blocker", blocker_bytes);
    for n in 0..9usize {
        script += &write(&format!("back-{n}"), 17_000 * n + 10);
        script += &format!("ea_set back-{n} user.large {}\n", "v".repeat(600));
    }
    script += &write("pieces", 90 << 10);
    for n in (1..80).step_by(2) {
        script += &format!("punch pieces {n} {n}\n");
    }
    script += "rm blocker\n";
    let commands = dir.join("commands");
    std::fs::write(&commands, script).expect("written");
    common::ok(
        Command::new("debugfs")
            .args(["-w", "-f"])
            .arg(&commands)
            .arg(image),
    );
    output(Command::new("e2fsck").arg("-fy").arg(image));
    clean(image, "made");
}

fn digest(image: &MemoryDevice) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    image.to_vec().hash(&mut hasher);
    hasher.finish()
}

fn grown(device: &SharedDevice, bytes: u64) {
    resize(device, &ResizeOptions::to_bytes(bytes)).expect("resized");
}

#[test]
fn growth_of_ext4() {
    cut("ext4", EXT4, 30 << 20, |d| grown(d, 30 << 20));
}

#[test]
fn growth_into_meta_groups() {
    cut("meta_bg", META_BG, 140 << 20, |d| grown(d, 140 << 20));
}

#[test]
fn growth_of_ext3() {
    cut("ext3", EXT3, 30 << 20, |d| grown(d, 30 << 20));
}

#[test]
fn growth_of_ext2_with_a_temporary_journal() {
    cut("ext2", EXT2, 30 << 20, |d| grown(d, 30 << 20));
}

#[test]
fn shrinkage_of_ext4_with_its_journal() {
    // The journal of 5 MiB lies in the second group: it is made again in front.
    let with_large = |o: &&'static str| if *o == "size=2" { "size=5" } else { *o };
    let options: Vec<&str> = EXT4.iter().map(with_large).collect();
    cut_of("smaller ext4", &options, AT_THE_BACK, 20 << 20, |d| {
        grown(d, 11 << 20);
    });
}

#[test]
fn shrinkage_of_ext3_and_ext2() {
    for (name, options) in [("smaller ext3", EXT3), ("smaller ext2", EXT2)] {
        cut_of(name, options, AT_THE_BACK, 20 << 20, |d| grown(d, 10 << 20));
    }
}

/// There is no room for the journal of the change in front of the end.
#[test]
fn the_minimum_of_ext2() {
    cut_of("minimum of ext2", EXT2, AT_THE_BACK, 20 << 20, |d| {
        resize(d, &ResizeOptions::to_minimum(0)).expect("resized");
    });
}

/// Nor is there room for the journal of a growth: the last group gets longer first.
#[test]
fn growth_of_a_full_ext2() {
    let minimal = Base {
        minimal: true,
        ..BASE
    };
    cut_of("full ext2", EXT2, minimal, 14 << 20, |d| grown(d, 14 << 20));
}

/// The growth is stopped when the last group is longer. It gets its old end back.
#[test]
fn a_stopped_growth_of_a_full_ext2() {
    let minimal = Base {
        minimal: true,
        ..BASE
    };
    cut_of("stopped full ext2", EXT2, minimal, 30 << 20, |d| {
        let count = || {
            let mut superblock = [0; 1024];
            d.read_at(DevOffset(1024), &mut superblock).expect("read");
            superblock[4..8].to_vec()
        };
        let had = count();
        let watch = Watch::new(|progress| match progress.phase {
            Phase::Metadata => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        let options = ResizeOptions::to_bytes(30 << 20).watch(watch);
        let stopped = resize(d, &options).expect_err("stopped");
        assert!(matches!(stopped, ReshapeError::Interrupted), "{stopped}");
        assert_eq!(count(), had);
    });
}

/// The journal of the change is longer than a block group.
#[test]
fn growth_of_ext2_with_a_temporary_journal_across_groups() {
    const SMALL: &[&str] = &[
        "-b",
        "1024",
        "-g",
        "1024",
        "-O",
        "filetype,resize_inode",
        "-N",
        "400",
    ];
    let few = Base {
        images_max: 50,
        ..BASE
    };
    cut_of("small groups", SMALL, few, 20 << 20, |d| grown(d, 20 << 20));
    let minimal = Base {
        minimal: true,
        images_max: 50,
        ..BASE
    };
    cut_of("full small groups", SMALL, minimal, 20 << 20, |d| {
        grown(d, 20 << 20);
    });
}

#[test]
fn a_new_uuid() {
    let settings = Settings {
        uuid: Some([0x5A; 16]),
        ..Settings::default()
    };
    for (name, options) in [("uuid ext4", EXT4), ("uuid ext3", EXT3)] {
        cut(name, options, 12 << 20, |d| {
            set(d, &settings, &Watch::default()).expect("set")
        });
    }
}

#[test]
fn another_journal() {
    let settings = Settings {
        journal_bytes: Some(3 << 20),
        ..Settings::default()
    };
    for (name, options) in [("journal ext4", EXT4), ("journal ext3", EXT3)] {
        cut(name, options, 12 << 20, |d| {
            set(d, &settings, &Watch::default()).expect("set")
        });
    }
}

#[test]
fn the_file_of_orphans_goes() {
    const ORPHANS: &[&str] = &[
        "-b",
        "1024",
        "-O",
        "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode,orphan_file",
        "-J",
        "size=2",
    ];
    let settings = Settings {
        features: Some("^orphan_file".to_owned()),
        ..Settings::default()
    };
    cut("orphan file", ORPHANS, 12 << 20, |d| {
        set(d, &settings, &Watch::default()).expect("set");
    });
}

/// Features that bring or take files, blocks and indexes, one after the other.
#[test]
fn features_with_files_of_their_own() {
    for (name, options) in [("ext4", EXT4), ("ext3", EXT3), ("ext2", EXT2)] {
        let options = [options, &["-I", "256"]].concat();
        let base = if name == "ext2" { BASE } else { INDEXED };
        cut_of(&format!("features {name}"), &options, base, 12 << 20, |d| {
            for list in ["quota,project", "^quota", "^dir_index"] {
                let settings = Settings {
                    features: Some(list.to_owned()),
                    ..Settings::default()
                };
                set(d, &settings, &Watch::default()).expect("set");
            }
        });
    }
}

fn changed(device: &SharedDevice, list: &str) {
    let settings = Settings {
        features: Some(list.to_owned()),
        ..Settings::default()
    };
    set(device, &settings, &Watch::default()).expect("set");
}

/// Directories among the files are full, so they are laid out anew.
#[test]
fn checksums_put_on_and_taken_off() {
    for (name, options) in [("ext3", EXT3), ("ext2", EXT2)] {
        let name = format!("checksums {name}");
        cut(&name, options, 12 << 20, |d| changed(d, "metadata_csum"));
    }
    cut_of("checksums of indexes", EXT3, INDEXED, 12 << 20, |d| {
        changed(d, "metadata_csum");
    });
    cut_of("no checksums", EXT4, INDEXED, 12 << 20, |d| {
        changed(d, "^metadata_csum");
    });
}

#[test]
fn checksums_of_descriptors_put_on_and_taken_off() {
    cut("uninit_bg goes", EXT3, 12 << 20, |d| {
        changed(d, "^uninit_bg")
    });
    let with_none = |o: &&'static str| match *o {
        "has_journal,dir_index,uninit_bg,resize_inode" => "has_journal,dir_index,resize_inode",
        other => other,
    };
    let options: Vec<&str> = EXT3.iter().map(with_none).collect();
    assert_ne!(options, EXT3);
    cut("uninit_bg comes", &options, 12 << 20, |d| {
        changed(d, "uninit_bg")
    });
}

/// A torn superblock is replaced by a copy that does not name the file: e2fsck puts it into `lost+found`, which is no loss.
#[test]
fn the_file_of_orphans_comes() {
    let whole = Base {
        tears: false,
        ..BASE
    };
    cut_of("orphan file comes", EXT4, whole, 12 << 20, |d| {
        changed(d, "orphan_file");
    });
}

/// e2fsck waits for other hosts wherever there is protection, so that few images are checked.
#[test]
fn protection_comes_and_goes() {
    let few = Base {
        images_max: 4,
        ..BASE
    };
    cut_of("mmp comes", EXT4, few, 12 << 20, |d| changed(d, "mmp"));
    cut_of("mmp goes", EXT4, few, 12 << 20, |d| {
        changed(d, "mmp");
        changed(d, "^mmp");
    });
}

#[test]
fn wide_and_narrow_descriptors() {
    cut("narrow", EXT4, 12 << 20, |d| changed(d, "^64bit"));
    let options = [
        "-b",
        "1024",
        "-O",
        "has_journal,extent,uninit_bg,dir_index,resize_inode",
        "-J",
        "size=2",
    ];
    cut("wide", &options, 12 << 20, |d| changed(d, "64bit"));
}
