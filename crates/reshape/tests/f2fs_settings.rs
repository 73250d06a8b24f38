//! Settings of f2fs, beside what mkfs.f2fs makes and what fsck.f2fs says.

mod common;

use blockwright_device::{
    BlockDevice, CrashPolicy, DevOffset, MemoryDevice, RecordingDevice, SharedDevice,
};
use blockwright_ondisk::f2fs::{Features, RawSuperblock};
use blockwright_reshape::ext4::settings::Settings;
use blockwright_reshape::f2fs;
use common::{device, ok, scratch};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn have_tools() -> bool {
    blockwright_oracles::have(&["mkfs.f2fs", "fsck.f2fs"])
}

fn mkfs(image: &Path, options: &[&str]) {
    let file = std::fs::File::create(image).expect("an image");
    file.set_len(64 << 20).expect("a size");
    ok(Command::new("mkfs.f2fs").arg("-q").args(options).arg(image));
}

fn fsck(image: &Path) -> String {
    let out = common::output(
        Command::new("fsck.f2fs")
            .args(["-f", "--dry-run"])
            .arg(image),
    );
    format!("{}{}", out.status, String::from_utf8_lossy(&out.stdout))
}

/// fsck.f2fs finds nothing.
fn clean(image: &Path, what: &str) {
    let said = fsck(image);
    let bad = ["[Fail]", "[ASSERT]"].iter().any(|bad| said.contains(bad));
    assert!(said.starts_with("exit status: 0") && !bad, "{what}: {said}");
}

/// Both copies of the superblock, which are the same.
fn superblock(device: &dyn BlockDevice) -> RawSuperblock {
    let mut head = vec![0; 8192];
    device.read_at(DevOffset(0), &mut head).expect("read");
    assert_eq!(head[1024..4096], head[4096 + 1024..], "the copies differ");
    let raw = RawSuperblock::read(&head).expect("a superblock");
    raw.verify_checksum().expect("a checksum");
    raw
}

fn names(list: &[&[u8]]) -> Vec<String> {
    let name = |name: &&[u8]| String::from_utf8_lossy(name).into_owned();
    list.iter().map(name).collect()
}

fn lists(cold: &str, hot: &str) -> Settings {
    Settings {
        cold_extensions: Some(cold.into()),
        hot_extensions: Some(hot.into()),
        ..Settings::default()
    }
}

fn features(list: &str) -> Settings {
    Settings {
        features: Some(list.into()),
        ..Settings::default()
    }
}

fn set(device: &SharedDevice, settings: &Settings) -> blockwright_reshape::Result<()> {
    f2fs::set(device, settings)
}

/// The setting is refused with these words, and nothing is written.
fn refused(image: &Path, settings: &Settings, words: &str) {
    let before = std::fs::read(image).expect("read");
    let error = set(&device(image), settings).expect_err(words).to_string();
    assert!(error.contains(words), "{error}, not {words}");
    assert!(
        before == std::fs::read(image).expect("read"),
        "{words}: written"
    );
}

#[test]
fn lists_of_extensions_are_those_of_mkfs_f2fs() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for checksum in [&[][..], &["-O", "extra_attr,sb_checksum"]] {
        mkfs(&ours, checksum);
        mkfs(
            &theirs,
            &[checksum, &["-e", "log,tmp", "-E", "wal"]].concat(),
        );
        set(&device(&ours), &lists("log,+tmp", "wal")).expect("set");
        let (mine, other) = (superblock(&*device(&ours)), superblock(&*device(&theirs)));
        assert_eq!(
            (
                mine.extension_count,
                mine.hot_ext_count,
                mine.extension_list
            ),
            (
                other.extension_count,
                other.hot_ext_count,
                other.extension_list
            )
        );
        clean(&ours, "names added");
        // A name leaves its place to those behind it; one that is there, or is not, changes nothing.
        set(&device(&ours), &lists("^log,!jpg,TMP", "none,db,wal")).expect("set");
        let raw = superblock(&*device(&ours));
        let (cold, hot) = raw.extensions();
        let (was_cold, _) = other.extensions();
        let mut expected = names(&was_cold);
        expected.retain(|name| name != "log");
        assert_eq!(
            (names(&cold), names(&hot)),
            (expected, vec!["db".into(), "wal".into()])
        );
        clean(&ours, "names removed");
        set(&device(&ours), &lists("none", "none")).expect("set");
        let raw = superblock(&*device(&ours));
        assert_eq!((raw.extension_count.get(), raw.hot_ext_count), (0, 0));
        assert_eq!(raw.extension_list, [[0; 8]; 64]);
        clean(&ours, "no names");
        let many: Vec<String> = (0..64).map(|n| format!("x{n}")).collect();
        set(
            &device(&ours),
            &lists(&many[..40].join(","), &many[40..].join(",")),
        )
        .expect("64");
        clean(&ours, "64 names");
        refused(&ours, &lists("one", ""), "41 cold and 24 hot extensions");
        refused(&ours, &lists("x63", "^x62"), "`x63` would be cold and hot");
        refused(
            &ours,
            &lists("^x1,extension", ""),
            "`extension` is no cold extension",
        );
        refused(&ours, &lists("", "^x41,a.b"), "`a.b` is no hot extension");
    }
}

#[test]
fn features_that_are_flags_are_set() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let image = dir.path().join("image");
    mkfs(&image, &["-O", "extra_attr"]);
    let mut expected = Features::EXTRA_ATTR;
    for (name, feature) in [
        ("encrypt", Features::ENCRYPT),
        ("+verity", Features::VERITY),
        ("casefold", Features::CASEFOLD),
        ("lost_found", Features::LOST_FOUND),
        ("sb_checksum", Features::SB_CHECKSUM),
        ("compression", Features::COMPRESSION),
        ("inode_crtime", Features::INODE_CRTIME),
        ("project_quota", Features::PROJECT_QUOTA),
    ] {
        set(&device(&image), &features(name)).expect(name);
        expected |= feature;
        assert_eq!(superblock(&*device(&image)).features(), expected, "{name}");
        clean(&image, name);
    }
    let raw = superblock(&*device(&image));
    assert_eq!((raw.s_encoding.get(), raw.s_encoding_flags.get()), (1, 0));
    assert_eq!(raw.checksum_offset.get(), 3068);
    set(&device(&image), &features("^lost_found,^sb_checksum")).expect("cleared");
    expected -= Features::LOST_FOUND | Features::SB_CHECKSUM;
    let raw = superblock(&*device(&image));
    assert_eq!(raw.features(), expected);
    assert_eq!((raw.checksum_offset.get(), raw.crc.get()), (0, 0));
    clean(&image, "cleared");
    for name in [
        "encrypt",
        "verity",
        "casefold",
        "compression",
        "extra_attr",
        "inode_crtime",
        "project_quota",
    ] {
        refused(
            &image,
            &features(&format!("lost_found,^{name}")),
            &format!("`{name}` cannot be cleared"),
        );
    }
}

/// What fsck.f2fs, the tuner of f2fs-tools, sets beside what this crate sets.
#[test]
fn features_are_those_of_the_tuner() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    mkfs(&ours, &[]);
    std::fs::copy(&ours, &theirs).expect("copied");
    set(&device(&ours), &features("encrypt,casefold")).expect("set");
    ok(Command::new("fsck.f2fs")
        .args(["-f", "-O", "encrypt,casefold", "-C", "utf8"])
        .arg(&theirs));
    let (mine, other) = (superblock(&*device(&ours)), superblock(&*device(&theirs)));
    assert_eq!(mine.features(), other.features());
    // The tuner forgets the encoding, which mkfs.f2fs stores.
    mkfs(&theirs, &["-O", "casefold", "-C", "utf8"]);
    let other = superblock(&*device(&theirs));
    assert_eq!(mine.s_encoding, other.s_encoding);
    assert_eq!(mine.s_encoding_flags, other.s_encoding_flags);
}

#[test]
fn other_features_are_refused_by_name() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let image = dir.path().join("image");
    mkfs(&image, &[]);
    for (list, words) in [
        (
            "compression",
            "`compression` cannot be set: inodes have no room",
        ),
        (
            "encrypt,inode_crtime",
            "`inode_crtime` cannot be set: inodes have no room",
        ),
        ("project_quota", "`project_quota` cannot be set"),
        ("quota", "`quota` cannot be set: its files"),
        ("extra_attr", "`extra_attr` cannot be set: the layout"),
        (
            "flexible_inline_xattr",
            "`flexible_inline_xattr` cannot be set: the layout",
        ),
        (
            "inode_checksum",
            "`inode_checksum` cannot be set: all inodes",
        ),
        ("blkzoned", "`blkzoned` cannot be set"),
        ("ro", "`ro` cannot be set"),
        ("FEATURE_20", "`FEATURE_20` cannot be set: it is unknown"),
        ("encrypt,nonsense", "`nonsense` is no feature"),
        ("none", "name them"),
    ] {
        refused(&image, &features(list), words);
    }
    let ext4 = Settings {
        journal_bytes: Some(1 << 20),
        ..features("encrypt")
    };
    refused(&image, &ext4, "`journal-size` cannot be changed on f2fs");
}

/// One copy of the superblock changes after the other: whatever a power failure leaves, one is whole, and each that is has all settings or none.
#[test]
fn a_power_failure_leaves_a_superblock() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let image = dir.path().join("image");
    mkfs(&image, &["-O", "extra_attr"]);
    let base = MemoryDevice::load(&image).expect("loaded");
    let recording = Arc::new(RecordingDevice::new(&base));
    let target: SharedDevice = recording.clone();
    let settings = Settings {
        features: Some("casefold,sb_checksum,compression".into()),
        ..lists("log,^jp", "wal")
    };
    let old = superblock(&base).to_bytes();
    set(&target, &settings).expect("set");
    let new = superblock(&*target).to_bytes();
    assert!(old != new);
    let length = recording.log_len();
    let mut seen = [0, 0];
    for cut in 0..=length {
        for policy in [
            CrashPolicy::AllKept,
            CrashPolicy::NoneKept,
            CrashPolicy::Random { seed: cut as u64 },
        ] {
            let crashed = recording.image_at(cut, policy);
            let mut head = vec![0; 8192];
            crashed.read_at(DevOffset(0), &mut head).expect("read");
            let copies = [0, 4096].map(|at| head[at + 1024..at + 1024 + 3072].to_vec());
            let whole = |copy: &Vec<u8>| copy[..] == old[..] || copy[..] == new[..];
            assert!(copies.iter().any(whole), "cut {cut}, {policy:?}");
            for (n, state) in [&old, &new].into_iter().enumerate() {
                seen[n] += usize::from(copies.iter().any(|copy| copy[..] == state[..]));
            }
            // The next command makes it.
            let again: SharedDevice = Arc::new(crashed);
            set(&again, &settings).expect("set again");
            assert!(
                superblock(&*again).to_bytes() == new,
                "cut {cut}, {policy:?}"
            );
        }
    }
    assert!(seen[0] > 2 && seen[1] > 2, "{seen:?}");
}
