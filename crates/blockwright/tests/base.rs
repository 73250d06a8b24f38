//! Volumes laid over an earlier build: the same files as without one, found clean by e2fsck, and most blocks unchanged.

use blockwright_test_support as common;

use blockwright::ext4::FsType;
use blockwright::{ExtentKind, Volume, VolumeBuilder};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{HostDevice, OpenMode, SharedDevice};
use common::below;
use common::testing::{
    assert_e2fsck_clean, assert_same, have, run_ok, snapshot_host, snapshot_volume,
};
use rustix::fs::{CWD, FileType, makedev, mknodat};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const EPOCH: u64 = 1_700_000_000;
const BLOCK: usize = 4096;

fn bytes(rng: &mut SplitMix64, len: u64) -> Vec<u8> {
    (0..len).map(|_| below(rng, 256) as u8).collect()
}

/// A tree of directories with files of many sizes.
fn make(root: &Path, rng: &mut SplitMix64) {
    for dir in 0..12 {
        let path = root.join(format!("dir{dir}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..40 {
            let len = below(rng, [10, 6_000, 30_000, 120_000][file % 4]);
            fs::write(path.join(format!("file{file}")), bytes(rng, len)).unwrap();
        }
        make_special(&path);
    }
}

/// Names of files in each directory that are neither regular files nor directories.
const SPECIAL: [&str; 6] = ["short", "long", "fifo", "socket", "null", "disk"];

/// All kinds of files without data. Device files need root.
fn make_special(dir: &Path) {
    symlink("file0", dir.join("short")).unwrap();
    // Too long for an inode.
    symlink("target/".repeat(30), dir.join("long")).unwrap();
    let node = |name: &str, kind, device| {
        mknodat(CWD, dir.join(name), kind, 0o640.into(), device).unwrap();
    };
    node("fifo", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
    if rustix::process::geteuid().is_root() {
        node("null", FileType::CharacterDevice, makedev(1, 3));
        node("disk", FileType::BlockDevice, makedev(259, 70_000));
    }
}

/// What a next build may change: files that grow, shrink, go and come; a directory of its own; one that needs more blocks.
fn change(root: &Path, rng: &mut SplitMix64) {
    for dir in [2, 5] {
        let path = |file| root.join(format!("dir{dir}/file{file}"));
        let longer = bytes(rng, 90_000);
        fs::write(path(1), &longer).unwrap();
        fs::write(path(2), b"short").unwrap();
        fs::remove_file(path(3)).unwrap();
        fs::remove_file(path(7)).unwrap();
        fs::write(root.join(format!("dir{dir}/AAA-new")), &longer[..50_000]).unwrap();
    }
    fs::create_dir(root.join("another")).unwrap();
    for file in 0..200 {
        let name = format!("another/{file:03}-{}", "n".repeat(100));
        fs::write(root.join(name), b"x").unwrap();
    }
    fs::remove_dir_all(root.join("dir9")).unwrap();
}

fn device(image: &Path) -> SharedDevice {
    HostDevice::open(image, OpenMode::read_only()).unwrap()
}

fn build(builder: VolumeBuilder, tree: &Path, image: &Path, base: Option<&Path>) {
    let mut builder = builder.from(tree).source_date_epoch(EPOCH);
    if let Some(base) = base {
        builder = builder.base(device(base));
    }
    builder.create_new(image).unwrap();
}

/// Blocks with anything in them, and how many of these are at the same place in the other image.
fn shared(image: &Path, other: &Path) -> (usize, usize) {
    let (image, other) = (fs::read(image).unwrap(), fs::read(other).unwrap());
    let used = image
        .chunks(BLOCK)
        .enumerate()
        .filter(|(_, block)| block.iter().any(|b| *b != 0));
    let mut counts = (0, 0);
    for (at, block) in used {
        counts.0 += 1;
        counts.1 += usize::from(other.get(at * BLOCK..at * BLOCK + block.len()) == Some(block));
    }
    counts
}

struct Trees {
    dir: tempfile::TempDir,
    old: PathBuf,
    new: PathBuf,
}

fn trees(seed: u64) -> Trees {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let mut rng = SplitMix64::new(common::seed(seed));
    make(&old, &mut rng);
    run_ok("cp", &["-a", old.to_str().unwrap(), new.to_str().unwrap()]);
    change(&new, &mut rng);
    set_times(dir.path());
    Trees { dir, old, new }
}

/// Times after the build's own would be cut off there.
fn set_times(root: &Path) {
    let all = root.to_str().unwrap();
    run_ok(
        "find",
        &[all, "-exec", "touch", "-h", "-d", "@1600000000", "{}", "+"],
    );
}

/// Numbers and places of all files that do not differ.
fn assert_kept(trees: &Trees, before: &Path, after: &Path) {
    let (before, after) = (
        Volume::open_read_only(before).unwrap(),
        Volume::open_read_only(after).unwrap(),
    );
    let (mut kept, mut special) = (0, 0);
    for dir in 0..12 {
        for file in 0..40 {
            let name = format!("dir{dir}/file{file}");
            let contents = |tree: &Path| fs::read(tree.join(&name)).ok();
            let (old, new) = (contents(&trees.old), contents(&trees.new));
            if old != new || old.is_none() {
                continue;
            }
            let look = |volume: &Volume| {
                let file = volume.open_file(&name).unwrap();
                (file.metadata().unwrap().ino(), file.extents().unwrap())
            };
            assert_eq!(look(&before), look(&after), "{name}");
            kept += 1;
        }
        for name in SPECIAL.map(|name| format!("dir{dir}/{name}")) {
            if trees.new.join(&name).symlink_metadata().is_err() {
                continue;
            }
            let number = |volume: &Volume| volume.symlink_metadata(&name).unwrap().ino();
            assert_eq!(number(&before), number(&after), "{name}");
            special += 1;
        }
    }
    assert!(kept > 400 && special >= 11 * 4, "{kept} and {special}");
}

#[test]
fn unchanged_files_stay_where_they_were() {
    if !have("e2fsck") {
        return;
    }
    let trees = trees(1);
    let at = |name: &str| trees.dir.path().join(name);
    let sized = || VolumeBuilder::new().block_size(4096).size(64 * MIB);
    let kinds: [(&str, &dyn Fn() -> VolumeBuilder); 5] = [
        ("ext4", &sized),
        ("ext3", &|| sized().fs_type(FsType::Ext3)),
        ("ext2", &|| sized().fs_type(FsType::Ext2)),
        ("inline", &|| {
            sized().features("inline_data,quota,orphan_file")
        }),
        ("small", &|| {
            VolumeBuilder::new().block_size(4096).size_auto(8 * MIB)
        }),
    ];
    for (name, builder) in kinds {
        let (old, over, again, alone) = (
            at(&format!("{name}-old")),
            at(&format!("{name}-over")),
            at(&format!("{name}-again")),
            at(&format!("{name}-alone")),
        );
        build(builder(), &trees.old, &old, None);
        build(builder(), &trees.new, &over, Some(&old));
        build(builder(), &trees.new, &again, Some(&old));
        build(builder(), &trees.new, &alone, None);
        assert!(
            fs::read(&over).unwrap() == fs::read(&again).unwrap(),
            "{name}: the same input, the same bytes"
        );
        assert_e2fsck_clean(&over);
        let snapshot = |image: &Path| {
            let volume = Volume::open_read_only(image).unwrap();
            snapshot_volume(&volume, "/").unwrap()
        };
        assert_same(&snapshot(&over), &snapshot(&alone), &["lost+found"]);
        assert_same(
            &snapshot(&over),
            &snapshot_host(&trees.new).unwrap(),
            &["lost+found"],
        );
        if name != "small" {
            assert_kept(&trees, &old, &over);
        }
        let ((used, kept), (_, without)) = (shared(&over, &old), shared(&alone, &old));
        println!("{name}: {kept} of {used} blocks are unchanged; without a base {without}");
        assert!(kept * 100 > used * 80 && kept > without, "{name}");
    }
}

/// What did not change at all is the same but for the superblocks, although the UUID is another one.
#[test]
fn the_same_tree_makes_the_same_image() {
    if !have("e2fsck") {
        return;
    }
    let trees = trees(2);
    let at = |name: &str| trees.dir.path().join(name);
    let sized = |uuid| {
        let builder = VolumeBuilder::new().block_size(4096).size(64 * MIB);
        builder.uuid([uuid; 16]).features("metadata_csum_seed")
    };
    build(sized(1), &trees.old, &at("a"), None);
    build(sized(2), &trees.old, &at("b"), Some(&at("a")));
    assert_e2fsck_clean(&at("b"));
    let (used, kept) = shared(&at("b"), &at("a"));
    // The superblock, and the first block of the journal, which has the UUID.
    assert!(used - kept <= 2, "{kept} of {used}");
}

/// The numbers of what is left have gaps then.
#[test]
fn files_keep_their_numbers_when_more_files_go_than_come() {
    if !have("e2fsck") {
        return;
    }
    let trees = trees(7);
    let at = |name: &str| trees.dir.path().join(name);
    fs::remove_dir_all(trees.new.join("another")).unwrap();
    set_times(&trees.new);
    for (name, features) in [
        ("plain", ""),
        ("ext2", "^metadata_csum,^has_journal,^extents"),
    ] {
        let builder = || {
            let builder = VolumeBuilder::new().block_size(4096).size(64 * MIB);
            builder.features(features)
        };
        let (old, over) = (at(&format!("{name}-old")), at(&format!("{name}-over")));
        build(builder(), &trees.old, &old, None);
        build(builder(), &trees.new, &over, Some(&old));
        assert_e2fsck_clean(&over);
        assert_kept(&trees, &old, &over);
        let volume = Volume::open_read_only(&over).unwrap();
        let found = snapshot_volume(&volume, "/").unwrap();
        assert_same(&found, &snapshot_host(&trees.new).unwrap(), &["lost+found"]);
    }
}

/// Neither the number of inodes of a large base, nor the numbers that a file may have there, make a small volume large.
#[test]
fn a_large_base_makes_no_large_volume() {
    if !have("e2fsck") {
        return;
    }
    let trees = trees(8);
    let at = |name: &str| trees.dir.path().join(name);
    let large = || VolumeBuilder::new().block_size(4096).size(16 << 30);
    build(large(), &trees.old, &at("large"), None);
    let small = || VolumeBuilder::new().block_size(4096).size_auto(0);
    build(small(), &trees.new, &at("alone"), None);
    build(small(), &trees.new, &at("over"), Some(&at("large")));
    assert_e2fsck_clean(&at("over"));
    let bytes = |name: &str| fs::metadata(at(name)).unwrap().len();
    let (over, alone) = (bytes("over"), bytes("alone"));
    assert!(over <= alone + alone / 4, "{over} and {alone} bytes");
}

#[test]
fn volumes_of_mke2fs_are_bases() {
    if !have("e2fsck") || !have("mke2fs") {
        return;
    }
    let trees = trees(3);
    let at = |name: &str| trees.dir.path().join(name);
    let (old, over) = (at("mke2fs"), at("over"));
    let from = trees.old.to_str().unwrap();
    run_ok(
        "mke2fs",
        &[
            "-q",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-d",
            from,
            old.to_str().unwrap(),
            "64M",
        ],
    );
    let builder = VolumeBuilder::new().block_size(4096).size(64 * MIB);
    build(builder, &trees.new, &over, Some(&old));
    assert_e2fsck_clean(&over);
    assert_kept(&trees, &old, &over);
}

#[test]
fn what_cannot_be_a_base_is_refused() {
    let trees = trees(4);
    let at = |name: &str| trees.dir.path().join(name);
    let sized = |block| VolumeBuilder::new().block_size(block).size(64 * MIB);
    build(sized(1024), &trees.old, &at("ext4"), None);
    let f2fs = || {
        VolumeBuilder::new()
            .format(blockwright::Format::F2fs)
            .size(64 * MIB)
    };
    build(f2fs(), &trees.old, &at("f2fs"), None);
    fs::write(at("nothing"), vec![0; 1 << 20]).unwrap();
    for (builder, base, says) in [
        (sized(4096), "ext4", "blocks of 1024 bytes"),
        (sized(1024), "f2fs", "ext2, ext3 or ext4 only"),
        (f2fs(), "ext4", "f2fs volume is a log"),
        (sized(1024), "nothing", "the base"),
        (sized(1024).features("bigalloc"), "ext4", "bigalloc"),
    ] {
        let out = at("out");
        let builder = builder.from(&trees.new).base(device(&at(base)));
        let error = builder.create_new(&out).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(!out.exists());
    }
}

/// A base is advice of an untrusted file: it is refused, or the volume that is laid over it is clean and has the tree's contents.
#[test]
fn damaged_bases_do_no_harm() {
    if !have("e2fsck") {
        return;
    }
    let trees = trees(5);
    let at = |name: &str| trees.dir.path().join(name);
    let builder = || {
        let builder = VolumeBuilder::new().block_size(4096).size(64 * MIB);
        // Without checksums, damage gets farther.
        builder.features("^metadata_csum,^has_journal")
    };
    build(builder(), &trees.old, &at("good"), None);
    let good = fs::read(at("good")).unwrap();
    let places = metadata(&at("good"), &good);
    // Directories have blocks of their own; used inodes have a few tens of bytes each.
    assert!(places.len() > 20_000, "{}", places.len());
    let over = |base: &str, out: &Path| {
        let builder = builder().from(&trees.new).source_date_epoch(EPOCH);
        builder.base(device(&at(base))).create_new(out)
    };
    over("good", &at("over-good")).unwrap();
    let undamaged = fs::read(at("over-good")).unwrap();
    let mut rng = SplitMix64::new(common::seed(6));
    let (mut refused, mut changed, mut same) = (0, 0, 0);
    for round in 0..24 {
        let mut image = good.clone();
        for _ in 0..1 + below(&mut rng, 30) {
            let at = places[below(&mut rng, places.len() as u64) as usize];
            image[at] = below(&mut rng, 256) as u8;
        }
        fs::write(at("damaged"), &image).unwrap();
        let out = at(&format!("out{round}"));
        if over("damaged", &out).is_err() {
            refused += 1;
            continue;
        }
        match fs::read(&out).unwrap() == undamaged {
            true => same += 1,
            false => changed += 1,
        }
        assert_e2fsck_clean(&out);
        let volume = Volume::open_read_only(&out).unwrap();
        let found = snapshot_volume(&volume, "/").unwrap();
        assert_same(&found, &snapshot_host(&trees.new).unwrap(), &["lost+found"]);
        drop(volume);
        fs::remove_file(out).unwrap();
    }
    println!("{refused} bases were refused, {changed} changed the volume, {same} did not");
    assert!(refused + changed > 12 && changed > 0 && changed + same > 3);
}

/// Where the metadata of a volume has anything but zeroes: all blocks but those of regular files.
fn metadata(path: &Path, image: &[u8]) -> Vec<usize> {
    let volume = Volume::open_read_only(path).unwrap();
    let mut is_data = vec![false; image.len() / BLOCK];
    for dir in 0..12 {
        for file in 0..40 {
            let name = format!("dir{dir}/file{file}");
            for extent in volume.open_file(&name).unwrap().extents().unwrap() {
                if let ExtentKind::Data(start) = extent.kind {
                    let first = start as usize / BLOCK;
                    let blocks = (extent.bytes as usize).div_ceil(BLOCK);
                    is_data[first..first + blocks].fill(true);
                }
            }
        }
    }
    let at = (0..image.len()).filter(|at| !is_data[at / BLOCK]);
    at.filter(|at| image[*at] != 0).collect()
}
