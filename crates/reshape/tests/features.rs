//! Features that change more than a bit, beside what `tune2fs` makes of the same image.

mod common;

use blockwright_reshape::Watch;
use blockwright_reshape::ext4::settings::{Settings, set};
use common::{clean, contents, device, field, have_tools, kernel_writes, mke2fs, ok, scratch};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const EXT4: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode",
];
const EXT3: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "has_journal,dir_index,resize_inode",
];
const EXT2: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "filetype,dir_index,resize_inode",
];
const UNINIT: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "has_journal,extent,uninit_bg,flex_bg,dir_index,resize_inode",
];
/// A cluster has several blocks; a journal and quota files do not end with one.
const CLUSTERS: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,bigalloc,^resize_inode",
    "-C",
    "16384",
];
const LARGE_CLUSTERS: &[&str] = &[
    "-b",
    "4096",
    "-I",
    "256",
    "-O",
    "has_journal,extent,64bit,uninit_bg,flex_bg,dir_index,bigalloc,^metadata_csum,^resize_inode",
    "-C",
    "65536",
];
const BASES: [(&str, &[&str]); 4] = [
    ("ext4", EXT4),
    ("ext3", EXT3),
    ("ext2", EXT2),
    ("uninit", UNINIT),
];
const BIGALLOC: [(&str, &[&str]); 2] = [("clusters", CLUSTERS), ("large clusters", LARGE_CLUSTERS)];

fn apply(image: &Path, list: &str, what: &str) {
    let settings = Settings {
        features: Some(list.into()),
        ..Settings::default()
    };
    set(&device(image), &settings, &Watch::default())
        .unwrap_or_else(|e| panic!("{what}, {list}: {e}"));
    clean(image, &format!("{what}, {list}"));
}

fn names(image: &Path) -> Vec<String> {
    let mut list: Vec<String> = field(image, "Filesystem features")
        .split(' ')
        .map(str::to_owned)
        .collect();
    list.sort();
    list
}

fn free(image: &Path) -> [String; 2] {
    ["Free blocks", "Free inodes"].map(|name| field(image, name))
}

/// The files of [`common::tree`], with files of several owners and a directory that has an index.
fn tree(dir: &Path) -> PathBuf {
    let root = common::tree(dir);
    fs::create_dir(root.join("many")).expect("made");
    for n in 0..300 {
        let name = format!("many/a file with a name of some length {n}");
        fs::write(root.join(name), b"").expect("written");
    }
    // Names of 8 bytes fill blocks of 1024 bytes to the last one.
    fs::create_dir(root.join("dense")).expect("made");
    for n in 0..300 {
        fs::write(root.join(format!("dense/name-{n:03}")), b"").expect("written");
    }
    for n in 1..9u32 {
        // Without root, all files have one owner.
        let _ = std::os::unix::fs::chown(
            root.join(format!("a/file-{n}")),
            Some(n * 1000),
            Some(n * 7),
        );
    }
    root
}

/// Directories of the image get the indexes that `mke2fs -d` does not make.
fn index(image: &Path) {
    let out = common::output(Command::new("e2fsck").arg("-fyD").arg(image));
    assert!(out.status.code().is_some_and(|code| code < 2), "{out:?}");
    clean(image, "indexed");
}

/// What `repquota` would show: the dump of a quota file's entries by debugfs.
fn quotas(image: &Path, kind: &str) -> String {
    let said = ok(Command::new("debugfs")
        .arg("-R")
        .arg(format!("list_quota {kind}"))
        .arg(image));
    let lines = said.lines().filter(|line| !line.starts_with("debugfs"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Makes the same image twice, changes one with us and one with `tune2fs`, and compares: features, free blocks and inodes, files.
fn compare(list: &[&str], bases: &[(&str, &[&str])], also: impl Fn(&Path, &Path, &str)) {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for (base, options) in bases {
        mke2fs(&ours, options, "40M", &files);
        index(&ours);
        fs::copy(&ours, &theirs).expect("copied");
        let before = contents(&ours);
        for change in list {
            let what = format!("{base}, {change}");
            apply(&ours, change, base);
            ok(Command::new("tune2fs")
                .args(["-f", "-O", change])
                .arg(&theirs));
            assert_eq!(names(&ours), names(&theirs), "{what}");
            assert_eq!(free(&ours), free(&theirs), "{what}");
            assert!(contents(&ours) == before, "{what}: files differ");
            also(&ours, &theirs, &what);
        }
        kernel_writes(&ours, base);
    }
}

#[test]
fn quota_files_say_what_tune2fs_counts() {
    let list = [
        "quota",
        "project",
        "^project",
        "project",
        "^quota",
        "quota,project",
        "^quota",
    ];
    compare(&list, &BASES, |ours, theirs, what| {
        for kind in ["user", "group", "project"] {
            let name = ["User", "Group", "Project"]
                .into_iter()
                .find(|n| n.eq_ignore_ascii_case(kind))
                .unwrap_or_default();
            if !field(ours, &format!("{name} quota inode")).is_empty() {
                assert_eq!(quotas(ours, kind), quotas(theirs, kind), "{what}: {kind}");
            }
        }
    });
}

#[test]
fn the_file_of_orphans_and_protection_come_and_go() {
    let same = |ours: &Path, theirs: &Path, what: &str| {
        for name in ["Orphan file inode", "MMP update interval"] {
            assert_eq!(field(ours, name), field(theirs, name), "{what}: {name}");
        }
    };
    let list = ["orphan_file", "^orphan_file", "orphan_file"];
    compare(&list, &[BASES[0], BASES[1], BASES[3]], same);
    // e2fsck waits for other hosts wherever there is protection.
    compare(&["mmp", "^mmp"], &BASES[..1], same);
}

/// A file of the volume's own takes whole clusters, and none of them holds a node of its map beside data.
#[test]
fn own_files_take_whole_clusters() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    for (base, options) in BIGALLOC {
        for (list, back) in [
            ("quota,project", "^quota"),
            ("orphan_file", "^orphan_file"),
            ("^has_journal", "has_journal"),
        ] {
            mke2fs(&image, options, "80M", &files);
            let (before, count) = (contents(&image), free(&image));
            apply(&image, list, base);
            apply(&image, back, base);
            if list != "^has_journal" {
                assert_eq!(free(&image), count, "{base}, {list}");
            }
            for kib in [4420, 5120] {
                let settings = Settings {
                    journal_bytes: Some(kib << 10),
                    ..Settings::default()
                };
                set(&device(&image), &settings, &Watch::default())
                    .unwrap_or_else(|e| panic!("{base}: {e}"));
                clean(&image, &format!("{base}, {list}, a journal of {kib} KiB"));
            }
            assert!(contents(&image) == before, "{base}, {list}: files differ");
            kernel_writes(&image, base);
        }
    }
}

/// Values in inodes of their own count among a directory's blocks, also where it is laid out anew.
#[test]
fn a_directory_keeps_the_count_of_its_large_values() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, value) = (dir.path().join("image"), dir.path().join("value"));
    fs::write(&value, vec![b'v'; 3000]).expect("written");
    let options = [
        EXT3,
        &["-O", "ea_inode,ext_attr,has_journal,extent,dir_index"],
    ]
    .concat();
    for indexed in [true, false] {
        mke2fs(&image, &options, "40M", &files);
        for name in ["dense", "many"] {
            ok(Command::new("debugfs")
                .arg("-w")
                .arg("-R")
                .arg(format!("ea_set -f {} {name} user.large", value.display()))
                .arg(&image));
        }
        // debugfs does not count them.
        common::output(Command::new("e2fsck").arg("-fy").arg(&image));
        if indexed {
            index(&image);
        }
        clean(&image, "made");
        let before = contents(&image);
        apply(&image, "metadata_csum", "large values");
        assert!(contents(&image) == before, "files differ");
    }
}

/// `tune2fs` clears the feature alone, and leaves the directories to e2fsck.
#[test]
fn indexes_become_leaves() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    for (base, options) in BASES {
        mke2fs(&image, options, "40M", &files);
        index(&image);
        let htree = |image: &Path| {
            let out = common::output(
                Command::new("debugfs")
                    .args(["-R", "htree_dump /many"])
                    .arg(image),
            );
            let said = [out.stdout, out.stderr].concat();
            String::from_utf8_lossy(&said).into_owned()
        };
        assert!(htree(&image).contains("Root node dump"), "{base}");
        let (before, count) = (contents(&image), free(&image));
        apply(&image, "^dir_index", base);
        assert!(
            htree(&image).contains("Not a hash-indexed"),
            "{base}: {}",
            htree(&image)
        );
        assert_eq!(free(&image), count, "{base}");
        assert!(contents(&image) == before, "{base}: files differ");
        apply(&image, "dir_index", base);
        kernel_writes(&image, base);
    }
}

/// Groups that were never written are written when their descriptors lose the checksums.
#[test]
fn unwritten_groups_are_written() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let options = [UNINIT, &["-E", "lazy_itable_init=1"]].concat();
    // Where tables were never written, the device has what lay there before.
    fs::write(&ours, vec![0xA5; 60 << 20]).expect("written");
    mke2fs(&ours, &options, "60M", &files);
    fs::copy(&ours, &theirs).expect("copied");
    let before = contents(&ours);
    for change in ["^uninit_bg", "uninit_bg"] {
        apply(&ours, change, "unwritten");
        ok(Command::new("tune2fs")
            .args(["-f", "-O", change])
            .arg(&theirs));
        assert_eq!(names(&ours), names(&theirs), "{change}");
        assert_eq!(free(&ours), free(&theirs), "{change}");
    }
    assert!(contents(&ours) == before, "files differ");
    kernel_writes(&ours, "uninit_bg");
}

/// `tune2fs` leaves full directories to e2fsck, so what is free may differ; e2fsck says that it is right.
#[test]
fn checksums_come_and_go() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for (base, options) in BASES {
        for indexed in [true, false] {
            mke2fs(&ours, options, "40M", &files);
            if indexed {
                index(&ours);
            }
            // tune2fs asks for a check that is younger than the last mount.
            common::output(Command::new("e2fsck").arg("-fy").arg(&ours));
            fs::copy(&ours, &theirs).expect("copied");
            let before = contents(&ours);
            let first = match base {
                "ext4" => ["^metadata_csum", "metadata_csum", "^metadata_csum"],
                _ => ["metadata_csum", "^metadata_csum", "metadata_csum"],
            };
            for change in first {
                let what = format!("{base}, indexed: {indexed}, {change}");
                apply(&ours, change, &what);
                let _ = common::output(
                    Command::new("tune2fs")
                        .args(["-f", "-O", change])
                        .arg(&theirs),
                );
                assert_eq!(names(&ours), names(&theirs), "{what}");
                assert!(contents(&ours) == before, "{what}: files differ");
            }
            kernel_writes(&ours, base);
            let has = names(&ours).contains(&"metadata_csum".to_owned());
            if has {
                let before = contents(&ours);
                apply(&ours, "metadata_csum_seed", base);
                apply(&ours, "^metadata_csum", base);
                apply(
                    &ours,
                    "metadata_csum,metadata_csum_seed,quota,orphan_file,has_journal",
                    base,
                );
                assert!(contents(&ours) == before, "{base}: files differ");
                kernel_writes(&ours, base);
            }
        }
    }
}

/// Enlarges or narrows descriptors, as `resize2fs -b` and `-s` do.
#[test]
fn block_numbers_become_wider_and_narrower() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    // 150 groups: wide descriptors take more blocks than narrow ones.
    for (base, options) in [BASES[0], BASES[3]] {
        mke2fs(&ours, &[options, &["-g", "2048"]].concat(), "300M", &files);
        common::output(Command::new("e2fsck").arg("-fy").arg(&ours));
        fs::copy(&ours, &theirs).expect("copied");
        let before = contents(&ours);
        let list = match base {
            "ext4" => [("^64bit", "-s"), ("64bit", "-b"), ("^64bit", "-s")],
            _ => [("64bit", "-b"), ("^64bit", "-s"), ("64bit", "-b")],
        };
        for (change, flag) in list {
            let what = format!("{base}, {change}");
            apply(&ours, change, &what);
            ok(Command::new("resize2fs").args(["-f", flag]).arg(&theirs));
            assert_eq!(names(&ours), names(&theirs), "{what}");
            for name in [
                "Free blocks",
                "Reserved GDT blocks",
                "Block count",
                "Group descriptor size",
            ] {
                assert_eq!(field(&ours, name), field(&theirs, name), "{what}: {name}");
            }
            assert!(contents(&ours) == before, "{what}: files differ");
        }
        kernel_writes(&ours, base);
    }
}

/// Descriptors of half the size leave whole clusters only, and not the one that holds the superblock.
#[test]
fn narrow_descriptors_leave_whole_clusters() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    for cluster in ["2048", "4096", "16384"] {
        for group in ["2048", "4096"] {
            let features = "bigalloc,extent,64bit,^metadata_csum,uninit_bg,flex_bg,^resize_inode";
            let options = ["-b", "1024", "-N", "2048", "-O", features, "-C", cluster];
            mke2fs(
                &image,
                &[&options[..], &["-g", group]].concat(),
                "256M",
                &files,
            );
            let before = contents(&image);
            let what = format!("clusters of {cluster} bytes, {group} in a group");
            apply(&image, "^64bit", &what);
            assert!(contents(&image) == before, "{what}: files differ");
            kernel_writes(&image, &what);
        }
    }
}

/// `^metadata_csum` leaves checksums of descriptors, unless the list clears them as well.
#[test]
fn no_checksums_at_all() {
    let only_first = &BASES[..1];
    compare(
        &["^metadata_csum,^uninit_bg", "uninit_bg"],
        only_first,
        |_, _, _| {},
    );
    compare(&["^uninit_bg,^metadata_csum"], only_first, |_, _, _| {});
}

#[test]
fn small_files_may_lie_in_inodes() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    mke2fs(&image, EXT4, "40M", &files);
    let before = contents(&image);
    apply(&image, "inline_data", "ext4");
    assert!(contents(&image) == before, "files differ");
    kernel_writes(&image, "inline_data");
}

#[test]
fn refusals_name_the_feature_and_change_nothing() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    mke2fs(&image, EXT2, "40M", &files);
    let untouched = fs::read(&image).expect("read");
    for (list, says) in [
        ("orphan_file", "orphan_file needs has_journal"),
        ("fast_commit", "fast_commit needs has_journal"),
        ("sparse_super2", "sparse_super2"),
        ("^resize_inode", "resize_inode"),
        ("^filetype", "filetype"),
        ("read-only", "read-only"),
        ("bigalloc", "bigalloc"),
        ("meta_bg", "meta_bg"),
        ("64bit", "extent"),
        ("metadata_csum_seed", "metadata_csum"),
    ] {
        let settings = Settings {
            features: Some(list.into()),
            ..Settings::default()
        };
        let error = set(&device(&image), &settings, &Watch::default())
            .expect_err(list)
            .to_string();
        assert!(error.contains(says), "{list}: {error}");
        assert!(fs::read(&image).expect("read") == untouched, "{list}");
    }
}
