//! Volumes built from directories: what went in is what the library, the kernel and e2fsck see.

use blockwright_test_support as common;

use blockwright::{Volume, VolumeBuilder, ext4::FsType};
use common::testing::{
    LoopMount, Snapshot, assert_e2fsck_clean, assert_same, have, run, run_ok, snapshot_host,
    snapshot_volume,
};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

const UUID: [u8; 16] = *b"\xAA\xAA\xAA\xAA\xBB\xBB\xCC\xCC\xDD\xDD\xEE\xEE\xEE\xEE\xEE\xEE";
const MIB: u64 = 1 << 20;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        })
        .collect()
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
}

/// A tree with a bit of everything.
fn make_tree(root: &Path) {
    let p = |name: &str| root.join(name);
    fs::create_dir_all(p("a/b/c/d")).expect("made");
    fs::create_dir(p("empty")).expect("made");
    for (i, size) in [
        0usize, 1, 59, 60, 61, 100, 150, 1023, 1024, 1025, 4095, 4096, 4097, 70_000,
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(p(&format!("a/size-{size}")), pattern(size, i as u64)).expect("written");
    }
    fs::write(p("a/b/large"), pattern(3_500_000, 77)).expect("written");
    symlink("a/size-1", p("short")).expect("made");
    symlink("x".repeat(59), p("link-59")).expect("made");
    symlink("x".repeat(60), p("link-60")).expect("made");
    symlink("/no/where/".repeat(90), p("link-900")).expect("made");
    fs::hard_link(p("a/size-100"), p("a/b/hard")).expect("made");
    fs::hard_link(p("a/size-100"), p("empty/../hard2")).expect("made");
    fs::create_dir(p("many")).expect("made");
    for i in 0..1500 {
        let name = format!("many/{i:05}-{}", "n".repeat(i % 60));
        fs::write(
            p(&name),
            if i % 7 == 0 {
                pattern(i, 3)
            } else {
                Vec::new()
            },
        )
        .expect("written");
    }
    fs::create_dir(p("subdirs")).expect("made");
    for i in 0..300 {
        fs::create_dir(p(&format!("subdirs/{i}"))).expect("made");
    }
    // Holes at the start, the middle, the end; more pieces than a leaf of extents holds.
    let f = File::create(p("holes")).expect("made");
    for i in 0..900u64 {
        f.write_all_at(&pattern(1000, i), 65_536 + i * 16_384)
            .expect("written");
    }
    f.set_len(40 * MIB).expect("extended");
    File::create(p("all-hole"))
        .expect("made")
        .set_len(7 * MIB + 5)
        .expect("extended");
    fs::write(p("with spaces and \u{e4}\u{f6}"), b"x").expect("written");
    fs::write(p(&"L".repeat(255)), b"long").expect("written");
    fs::set_permissions(p("a/size-1"), fs::Permissions::from_mode(0o4751)).expect("set");
    fs::set_permissions(p("empty"), fs::Permissions::from_mode(0o1777)).expect("set");
    for (name, len) in [("user.small", 5), ("user.empty", 0), ("user.middle", 300)] {
        assert!(set_xattr(&p("a/size-4096"), name, &pattern(len, 9)));
    }
    assert!(set_xattr(&p("a/size-60"), "user.t", b"tiny"));
    for name in ["a/size-1024", "a/size-1025", "many"] {
        assert!(set_xattr(&p(name), "user.shared", &pattern(500, 5)));
    }
    if is_root() {
        for (name, kind, dev) in [
            ("fifo", rustix::fs::FileType::Fifo, 0),
            (
                "null",
                rustix::fs::FileType::CharacterDevice,
                rustix::fs::makedev(1, 3),
            ),
            (
                "big-dev",
                rustix::fs::FileType::BlockDevice,
                rustix::fs::makedev(259, 70_000),
            ),
        ] {
            rustix::fs::mknodat(rustix::fs::CWD, p(name), kind, 0o640.into(), dev).expect("made");
        }
        chown(p("a/size-1024"), Some(1000), Some(70_000)).expect("changed");
        chown(p("a/b"), Some(4_000_000_000), Some(12)).expect("changed");
        set_xattr(&p("a/size-4097"), "trusted.t", b"root only");
        set_xattr(&p("a/size-4097"), "security.s", b"s");
        if have("setfacl") {
            run_ok(
                "setfacl",
                &[
                    "-m",
                    "u:1000:r,g:70000:rwx",
                    &p("a/size-1023").display().to_string(),
                ],
            );
            run_ok(
                "setfacl",
                &["-d", "-m", "u:1001:rx", &p("a/b/c").display().to_string()],
            );
        }
    }
    let set = |name: &str, secs: i64, nanos: u32| {
        let base = SystemTime::UNIX_EPOCH;
        let t = if secs < 0 {
            base - Duration::from_secs(secs.unsigned_abs()) + Duration::from_nanos(nanos.into())
        } else {
            base + Duration::new(secs.unsigned_abs(), nanos)
        };
        File::open(p(name))
            .expect("there")
            .set_modified(t)
            .expect("set");
    };
    set("a/size-4095", 1, 5);
    set("a/size-4096", 5_000_000_000, 999_999_999);
    set("a/size-4097", -1_000_000_000, 123_456_789);
    set("a", 1_600_000_000, 42);
}

fn built(tree: &Path, image: &Path, change: impl FnOnce(VolumeBuilder) -> VolumeBuilder) {
    let builder = VolumeBuilder::new().uuid(UUID).from(tree);
    change(builder)
        .create(image)
        .unwrap_or_else(|e| panic!("{e}"));
}

/// What an inode without room for nanoseconds, or for years past 2038, makes of a time.
fn coarse(mut snapshot: Snapshot) -> Snapshot {
    for item in snapshot.values_mut() {
        item.mtime = (
            item.mtime.0.clamp(i64::from(i32::MIN), i64::from(i32::MAX)),
            0,
        );
    }
    snapshot
}

fn examine(tree: &Path, image: &Path, what: &str, small_inodes: bool, kernel: bool) {
    eprintln!("{what}");
    assert_e2fsck_clean(image);
    let mut want = snapshot_host(tree).expect("read");
    if small_inodes {
        want = coarse(want);
    }
    let volume = Volume::open_read_only(image).expect(what);
    let got = snapshot_volume(&volume, "/").expect(what);
    assert_same(&want, &got, &["lost+found"]);
    drop(volume);
    if !kernel {
        return;
    }
    if let Some(mount) = LoopMount::new(image, "ro,noload") {
        let got = snapshot_host(mount.path()).expect(what);
        assert_same(&want, &got, &["lost+found"]);
    }
}

#[test]
fn every_kind_of_volume_holds_the_tree() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    make_tree(&tree);
    let image = dir.path().join("disk.img");
    for (kind, block, inode, features, kernel) in [
        (FsType::Ext4, 4096, 256, "", true),
        (FsType::Ext4, 1024, 256, "", true),
        (
            FsType::Ext4,
            2048,
            512,
            "quota,project,orphan_file,metadata_csum_seed",
            true,
        ),
        (FsType::Ext4, 4096, 128, "", true),
        (FsType::Ext4, 65536, 256, "", false),
        (FsType::Ext4, 4096, 1024, "inline_data", true),
        (
            FsType::Ext4,
            1024,
            256,
            "inline_data,^metadata_csum,uninit_bg",
            true,
        ),
        (FsType::Ext4, 4096, 256, "^extent,^64bit", true),
        (FsType::Ext4, 4096, 256, "^flex_bg,^dir_index", true),
        (FsType::Ext4, 1024, 256, "large_dir,ea_inode,mmp", true),
        (
            FsType::Ext4,
            4096,
            256,
            "meta_bg,^resize_inode,^has_journal",
            true,
        ),
        (FsType::Ext4, 4096, 256, "bigalloc", true),
        (FsType::Ext4, 1024, 256, "bigalloc,quota", true),
        (FsType::Ext3, 1024, 256, "", true),
        (FsType::Ext2, 1024, 128, "", true),
        (FsType::Ext2, 4096, 256, "", true),
    ] {
        let what = format!("{kind:?} -b {block} -I {inode} -O {features}");
        for auto in [true, false] {
            built(&tree, &image, |b| {
                let b = b
                    .fs_type(kind)
                    .block_size(block)
                    .inode_size(inode)
                    .features(features);
                if auto {
                    b.size_auto(0)
                } else {
                    b.size(200 * MIB)
                }
            });
            examine(&tree, &image, &what, inode == 128, kernel);
        }
    }
}

#[test]
fn auto_size_is_the_smallest() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    make_tree(&tree);
    let image = dir.path().join("disk.img");
    for block in [1024u32, 4096] {
        for free in [0u64, 5 * MIB, 60 * MIB] {
            let builder = || {
                VolumeBuilder::new()
                    .uuid(UUID)
                    .block_size(block)
                    .from(&tree)
            };
            let report = builder().size_auto(free).create(&image).expect("made");
            assert_e2fsck_clean(&image);
            let room = report.free_blocks * u64::from(block);
            assert!(room >= free, "{room} free, {free} asked for");
            // Free room is what there must be, and little more.
            assert!(
                room <= free + report.bytes / 100 + 64 * u64::from(block),
                "{room} for {free}"
            );
            if free == 0 {
                let smaller = report.bytes - (report.bytes / 100).max(64 * u64::from(block));
                let inodes = u64::from(report.inodes - report.free_inodes);
                let refused = builder()
                    .inodes(inodes)
                    .size(smaller)
                    .create(dir.path().join("small.img"));
                assert!(refused.is_err(), "{smaller} bytes would do, too");
                assert!(!dir.path().join("small.img").exists());
            }
        }
    }
}

#[test]
fn same_tree_same_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    make_tree(&tree);
    // A copy has other inode numbers, another listing order, other access and change times.
    let copy = dir.path().join("copy");
    run_ok(
        "cp",
        &[
            "-a",
            &tree.display().to_string(),
            &copy.display().to_string(),
        ],
    );
    let mut images = Vec::new();
    for (from, name) in [(&tree, "1.img"), (&tree, "2.img"), (&copy, "3.img")] {
        let image = dir.path().join(name);
        built(from, &image, |b| {
            b.size_auto(MIB).source_date_epoch(1_700_000_000)
        });
        images.push(fs::read(image).expect("read"));
    }
    assert!(images[0] == images[1], "twice from one tree");
    assert!(images[0] == images[2], "from a copy");
}

#[test]
fn times_are_clamped_to_the_epoch() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("young"), b"x").expect("written");
    fs::write(tree.join("old"), b"x").expect("written");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::open(tree.join("old"))
        .expect("there")
        .set_modified(old)
        .expect("set");
    let image = dir.path().join("disk.img");
    built(&tree, &image, |b| {
        b.size_auto(0).source_date_epoch(1_500_000_000)
    });
    let volume = Volume::open_read_only(&image).expect("opens");
    let at = |p: &str| volume.metadata(p).expect("there").attr().mtime.secs;
    assert_eq!((at("/young"), at("/old")), (1_500_000_000, 1_000_000_000));
}

#[test]
fn owners_are_replaced_on_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("d")).expect("made");
    fs::write(tree.join("d/f"), b"x").expect("written");
    let image = dir.path().join("disk.img");
    built(&tree, &image, |b| b.size_auto(0).owner(12, 34));
    let volume = Volume::open_read_only(&image).expect("opens");
    for p in ["/", "/d", "/d/f"] {
        let m = volume.metadata(p).expect("there");
        assert_eq!((m.uid(), m.gid()), (12, 34), "{p}");
    }
}

#[test]
fn volumes_that_were_built_can_be_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    make_tree(&tree);
    let image = dir.path().join("disk.img");
    // A volume with quota files is mounted for writing only by a kernel that can keep them.
    let features = match common::testing::kernel_lacks("CONFIG_QFMT_V2") {
        false => "quota,orphan_file",
        true => {
            blockwright_oracles::leave("the kernel keeps no quota; without it then");
            "orphan_file"
        }
    };
    built(&tree, &image, |b| b.size_auto(30 * MIB).features(features));
    if let Some(mount) = LoopMount::new(&image, "rw") {
        for i in 0..500 {
            fs::write(mount.path().join(format!("many/more-{i}")), pattern(100, i))
                .expect("written");
        }
        fs::remove_dir_all(mount.path().join("subdirs")).expect("removed");
        fs::remove_file(mount.path().join("a/b/large")).expect("removed");
    }
    assert_e2fsck_clean(&image);
}

#[test]
fn an_image_in_use_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    let volume = Volume::create(&image, 8 * MIB).expect("made");
    volume.write("/precious", b"data").expect("written");
    let refused = VolumeBuilder::new()
        .size(8 * MIB)
        .create(&image)
        .expect_err("in use");
    assert_eq!(refused.kind(), blockwright::ErrorKind::Busy);
    volume.close().expect("closed");
    let volume = Volume::open_read_only(&image).expect("opens");
    assert_eq!(volume.read("/precious").expect("there"), b"data");
}

#[test]
fn the_image_may_lie_in_its_own_source() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), b"x").expect("written");
    let image = dir.path().join("disk.img");
    for _ in 0..2 {
        built(dir.path(), &image, |b| b.size_auto(0));
        let volume = Volume::open_read_only(&image).expect("opens");
        assert!(volume.exists("/file").expect("known"));
        assert!(!volume.exists("/disk.img").expect("known"));
    }
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("big"), pattern(5_000_000, 1)).expect("written");
    let image = dir.path().join("disk.img");
    let refused = VolumeBuilder::new()
        .size(4 * MIB)
        .from(&tree)
        .create(&image)
        .expect_err("too small");
    assert_eq!(refused.kind(), blockwright::ErrorKind::NoSpace);
    assert!(!image.exists());
    let missing = VolumeBuilder::new()
        .size(4 * MIB)
        .from(dir.path().join("none"));
    assert_eq!(
        missing.create(&image).expect_err("missing").kind(),
        blockwright::ErrorKind::NotFound
    );
    assert!(VolumeBuilder::new().create(&image).is_err());
    assert!(!image.exists());
}

#[test]
fn images_are_sparse() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    VolumeBuilder::new()
        .size(10 << 30)
        .create(&image)
        .expect("made");
    let m = fs::metadata(&image).expect("there");
    assert_eq!(m.len(), 10 << 30);
    assert!(
        m.blocks() * 512 < 64 * MIB,
        "{} bytes on disk",
        m.blocks() * 512
    );
}

#[test]
fn tools_agree_about_the_layout() {
    if !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("f"), pattern(1_000_000, 1)).expect("written");
    let image = dir.path().join("disk.img");
    built(&tree, &image, |b| b.size_auto(0));
    let out = run("debugfs", &["-R", "stat /f", &image.display().to_string()]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("Size: 1000000"), "{text}");
    // In one piece.
    assert!(text.lines().any(|l| l.starts_with("(0-244):")), "{text}");
}
