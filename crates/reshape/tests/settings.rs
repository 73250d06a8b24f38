//! Settings, beside what `tune2fs` makes of the same image.

mod common;

use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_reshape::Watch;
use blockwright_reshape::ext4::settings::{Reserved, Settings, set};
use common::{clean, contents, device, field, have_tools, mke2fs, ok, scratch, tree};
use std::fs;
use std::path::Path;
use std::process::Command;

const EXT4: &[&str] = &[
    "-t",
    "ext4",
    "-O",
    "has_journal,extent,64bit,metadata_csum,flex_bg,uninit_bg,dir_index,^metadata_csum_seed",
];
const EXT3: &[&str] = &[
    "-O",
    "has_journal,dir_index,uninit_bg,^metadata_csum,^64bit,extent",
];
const EXT2: &[&str] = &[
    "-b",
    "1024",
    "-O",
    "^has_journal,^extent,^metadata_csum,^64bit,^flex_bg,^uninit_bg",
];
const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

fn features(list: &str) -> Settings {
    Settings {
        features: Some(list.into()),
        ..Settings::default()
    }
}

fn apply(image: &Path, settings: &Settings, what: &str) {
    set(&device(image), settings, &Watch::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    clean(image, what);
}

fn feature_list(image: &Path) -> Vec<String> {
    let mut list: Vec<String> = field(image, "Filesystem features")
        .split(' ')
        .map(str::to_owned)
        .collect();
    list.sort();
    list
}

#[test]
fn plain_settings_are_tune2fs_s() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for options in [EXT4, EXT3, EXT2] {
        mke2fs(&ours, options, "40M", &files);
        fs::copy(&ours, &theirs).expect("copied");
        let before = contents(&ours);
        let settings = Settings {
            label: Some(b"a label".to_vec()),
            reserved: Some(Reserved::Percent(2.5)),
            errors: Some(ErrorBehaviour::RemountReadOnly),
            default_options: Some("^acl,user_xattr,journal_data_writeback,nodelalloc".into()),
            ..Settings::default()
        };
        apply(&ours, &settings, "plain");
        ok(Command::new("tune2fs")
            .args([
                "-L",
                "a label",
                "-m",
                "2.5",
                "-e",
                "remount-ro",
                "-o",
                "^acl,user_xattr,journal_data_writeback,nodelalloc",
            ])
            .arg(&theirs));
        for known in [
            "Filesystem volume name",
            "Reserved block count",
            "Errors behavior",
            "Default mount options",
            "Free blocks",
        ] {
            assert_eq!(field(&ours, known), field(&theirs, known), "{known}");
        }
        apply(
            &ours,
            &Settings {
                reserved: Some(Reserved::Bytes(1 << 20)),
                ..Settings::default()
            },
            "reserved bytes",
        );
        let size: u64 = field(&ours, "Block size").parse().expect("a number");
        assert_eq!(
            field(&ours, "Reserved block count"),
            ((1 << 20) / size).to_string()
        );
        assert_eq!(contents(&ours), before);
    }
}

#[test]
fn a_new_uuid_keeps_checksums_valid() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    for (options, seed) in [
        (EXT4, true),
        (EXT3, false),
        (EXT2, false),
        (&["-O", "^has_journal,uninit_bg,^metadata_csum"][..], false),
    ] {
        mke2fs(&image, options, "40M", &files);
        let before = contents(&image);
        let mut list = feature_list(&image);
        let free = field(&image, "Free blocks");
        let uuid = u128::from_str_radix(&UUID.replace('-', ""), 16)
            .expect("hex")
            .to_be_bytes();
        apply(
            &image,
            &Settings {
                uuid: Some(uuid),
                ..Settings::default()
            },
            "uuid",
        );
        assert_eq!(field(&image, "Filesystem UUID"), UUID);
        if seed {
            list.push("metadata_csum_seed".into());
            list.sort();
        }
        assert_eq!(
            (feature_list(&image), field(&image, "Free blocks")),
            (list, free)
        );
        assert_eq!(contents(&image), before);
    }
}

#[test]
fn journals_come_and_go() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    for options in [
        EXT4,
        EXT3,
        EXT2,
        &["-O", "bigalloc,extent,64bit,metadata_csum", "-C", "16384"][..],
    ] {
        mke2fs(&image, options, "160M", &files);
        let before = contents(&image);
        let had = !field(&image, "Journal inode").is_empty();
        if had {
            apply(&image, &features("^has_journal"), "removed");
            assert_eq!(field(&image, "Journal inode"), "");
        }
        let free = field(&image, "Free blocks");
        for round in 0..2 {
            let settings = Settings {
                journal_bytes: (round == 1).then_some(6 << 20),
                ..features("+has_journal")
            };
            apply(&image, &settings, "added");
            assert_eq!(field(&image, "Journal inode"), "8");
            if round == 1 {
                assert_eq!(field(&image, "Total journal size"), "6144k");
            }
            assert_eq!(contents(&image), before);
            apply(&image, &features("^has_journal"), "removed");
            assert_eq!(field(&image, "Free blocks"), free);
        }
        apply(
            &image,
            &Settings {
                journal_bytes: Some(8 << 20),
                ..features("has_journal,fast_commit")
            },
            "with fast commits",
        );
        assert_eq!(field(&image, "Total journal size"), "8M");
        apply(
            &image,
            &Settings {
                journal_bytes: Some(4 << 20),
                ..Settings::default()
            },
            "another size",
        );
        assert_eq!(field(&image, "Total journal size"), "4096k");
        assert_eq!(contents(&image), before);
    }
}

/// The file of orphans needs a journal: it goes with it, or alone; its inode and its blocks are free afterwards.
#[test]
fn the_file_of_orphans_goes_before_the_journal() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    const WITHOUT: &str = "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index";
    let list = format!("{WITHOUT},orphan_file");
    let (with, without) = (&["-I", "256", "-O", &list], &["-I", "256", "-O", WITHOUT]);
    for (list, journal) in [("^orphan_file", true), ("^has_journal", false)] {
        mke2fs(&image, without, "64M", &files);
        if !journal {
            apply(&image, &features("^has_journal"), "removed");
        }
        let free = ["Free blocks", "Free inodes"].map(|name| field(&image, name));
        mke2fs(&image, with, "64M", &files);
        let before = contents(&image);
        apply(&image, &features(list), list);
        let names = feature_list(&image);
        assert!(!names.contains(&"orphan_file".to_owned()), "{names:?}");
        assert_eq!(names.contains(&"has_journal".to_owned()), journal);
        assert_eq!(field(&image, "Orphan file inode"), "");
        let now = ["Free blocks", "Free inodes"].map(|name| field(&image, name));
        assert_eq!(now, free, "{list}");
        assert_eq!(contents(&image), before);
    }
}

#[test]
fn features_change_or_are_refused_by_name() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    mke2fs(
        &ours,
        &[
            "-t",
            "ext4",
            "-I",
            "256",
            "-O",
            "has_journal,extent,^dir_index,^metadata_csum,^uninit_bg,^flex_bg,^project,^quota",
        ],
        "40M",
        &files,
    );
    fs::copy(&ours, &theirs).expect("copied");
    let before = contents(&ours);
    for name in [
        "large_dir",
        "fast_commit",
        "stable_inodes",
        "verity",
        "casefold",
        "project",
        "ea_inode",
        "dir_index",
        "uninit_bg",
    ] {
        apply(&ours, &features(name), name);
        assert!(
            feature_list(&ours).contains(&name.to_owned()),
            "{name}: {:?}",
            feature_list(&ours)
        );
        assert_eq!(contents(&ours), before, "{name}");
    }
    ok(Command::new("tune2fs").args(["-O", "large_dir,fast_commit,stable_inodes,verity,casefold,project,ea_inode,dir_index,uninit_bg"]).arg(&theirs));
    assert_eq!(feature_list(&ours), feature_list(&theirs));
    let untouched = fs::read(&ours).expect("read");
    for (list, says) in [
        ("^large_dir", "large_dir"),
        ("^casefold", "casefold"),
        ("^extent", "extent"),
        ("+encrypt,+bigalloc", "bigalloc"),
        ("+nonsense", "nonsense"),
        ("+metadata_csum_seed", "metadata_csum"),
        ("^stable_inodes", "stable_inodes"),
    ] {
        let error = set(&device(&ours), &features(list), &Watch::default())
            .expect_err(list)
            .to_string();
        assert!(error.contains(says), "{list}: {error}");
    }
    for (settings, says) in [
        (
            Settings {
                label: Some(b"far too long a label".to_vec()),
                ..Settings::default()
            },
            "16 bytes",
        ),
        (
            Settings {
                reserved: Some(Reserved::Percent(51.0)),
                ..Settings::default()
            },
            "half",
        ),
        (
            Settings {
                default_options: Some("acl,fancy".into()),
                ..Settings::default()
            },
            "fancy",
        ),
        (
            Settings {
                journal_bytes: Some(100 << 10),
                ..Settings::default()
            },
            "1024",
        ),
        (
            Settings {
                journal_bytes: Some(1 << 30),
                ..Settings::default()
            },
            "free",
        ),
        (
            Settings {
                uuid: Some([3; 16]),
                ..Settings::default()
            },
            "stable_inodes",
        ),
    ] {
        let error = set(&device(&ours), &settings, &Watch::default())
            .expect_err(says)
            .to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(
        fs::read(&ours).expect("read") == untouched,
        "refusals changed the image"
    );
}

#[test]
fn a_journal_that_no_block_map_can_list_is_refused_first() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let image = dir.path().join("image");
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).expect("made");
    mke2fs(
        &image,
        &["-b", "1024", "-O", "has_journal,^extent"],
        "300M",
        &empty,
    );
    let before = fs::read(&image).expect("read");
    let settings = Settings {
        label: Some(b"after".to_vec()),
        journal_bytes: Some(80 << 20),
        ..Settings::default()
    };
    let said = set(&device(&image), &settings, &Watch::default())
        .expect_err("refused")
        .to_string();
    assert!(said.contains("without extents"), "{said}");
    assert!(fs::read(&image).expect("read") == before, "changed");
}

/// A full directory, of a volume with quota; a journal that is elsewhere; values of attributes by a UUID: all settings of the list stay as they were.
#[test]
fn a_refused_list_changes_nothing() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    fs::create_dir(files.join("dense")).expect("made");
    for n in 0..300 {
        fs::write(files.join(format!("dense/name-{n:03}")), b"").expect("written");
    }
    let value = dir.path().join("value");
    fs::write(&value, vec![b'v'; 3000]).expect("written");
    let image = dir.path().join("image");
    let commands = dir.path().join("commands");
    let elsewhere = "ssv journal_dev 1\nssv journal_inum 0\n".to_owned();
    let large = format!("ea_set -f {} dense user.large", value.display());
    let base = "extent,has_journal,ext_attr,ea_inode,dir_index";
    for (more, command, list, uuid, says) in [
        ("quota", None, "metadata_csum", false, "clear quota first"),
        (
            "uninit_bg",
            Some(&elsewhere),
            "quota",
            false,
            "another device",
        ),
        (
            "uninit_bg",
            Some(&elsewhere),
            "^uninit_bg",
            false,
            "another device",
        ),
        (
            "metadata_csum",
            Some(&large),
            "^metadata_csum",
            true,
            "UUID",
        ),
        ("uninit_bg", Some(&large), "", true, "UUID"),
        ("uninit_bg", Some(&large), "metadata_csum", true, "UUID"),
    ] {
        let features = format!("{base},{more}");
        let options = ["-b", "1024", "-I", "256", "-O", &features];
        mke2fs(&image, &options, "40M", &files);
        if let Some(command) = command {
            fs::write(&commands, command).expect("written");
            ok(Command::new("debugfs")
                .args(["-w", "-f"])
                .arg(&commands)
                .arg(&image));
        }
        let before = fs::read(&image).expect("read");
        let settings = Settings {
            label: Some(b"after".to_vec()),
            features: Some(list.into()),
            uuid: uuid.then_some([7; 16]),
            ..Settings::default()
        };
        let error = set(&device(&image), &settings, &Watch::default())
            .expect_err(list)
            .to_string();
        assert!(error.contains(says), "{more}, {list}: {error}");
        assert!(
            fs::read(&image).expect("read") == before,
            "{more}, {list}: {error}"
        );
    }
}

/// The journal is made larger for a transaction, and has its old size when that is given up.
#[test]
fn a_change_that_fails_leaves_the_journal_as_it_was() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    // More blocks of descriptors than the journal has.
    let options = [
        "-b",
        "1024",
        "-g",
        "256",
        "-N",
        "131072",
        "-O",
        "has_journal,extent,64bit,meta_bg,uninit_bg,^resize_inode",
        "-J",
        "size=1",
    ];
    mke2fs(&image, &options, "4300M", &files);
    clean(&image, "made");
    let journal = field(&image, "Total journal blocks");
    // Its map is read when checksums are written.
    ok(Command::new("debugfs")
        .args(["-w", "-R", "sif a/file-30 block[0] 0"])
        .arg(&image));
    let error = set(
        &device(&image),
        &features("metadata_csum"),
        &Watch::default(),
    )
    .expect_err("damage");
    assert!(error.to_string().contains("check"), "{error}");
    assert_eq!(field(&image, "Total journal blocks"), journal);
    assert!(!feature_list(&image).contains(&"metadata_csum".to_owned()));
}
