//! Settings of f2fs, beside what mkfs.f2fs makes and what fsck.f2fs says.

mod common;

use blockwright_device::{
    BlockDevice, CrashPolicy, DevOffset, MemoryDevice, RecordingDevice, SharedDevice,
};
use blockwright_ondisk::f2fs::{Features, RawSuperblock};
use blockwright_reshape::ext4::settings::Settings;
use blockwright_reshape::{Watch, f2fs};
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
    f2fs::set(device, settings, &Watch::default())
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

/// An image with files of several owners, made without quota.
fn filled(dir: &Path, options: &[&str]) -> std::path::PathBuf {
    let image = dir.join("image");
    mkfs(&image, options);
    let files = dir.join("files");
    std::fs::create_dir_all(files.join("sub")).expect("made");
    for n in 0..20u32 {
        let path = files.join(format!("sub/{n}"));
        std::fs::write(&path, vec![n as u8; n as usize * 5000]).expect("written");
        if blockwright_oracles::is_root() {
            std::os::unix::fs::chown(&path, Some(n % 3 * 70_000), Some(n % 5)).expect("chown");
        }
    }
    // Of f2fs-tools 1.15 it forgets the room for attributes (flexible_inline_xattr), repairs that at its end, and tells of it by 1.
    let out = common::output(
        Command::new("sload.f2fs")
            .args(["-P", "-f"])
            .arg(&files)
            .arg(&image),
    );
    assert!(matches!(out.status.code(), Some(0 | 1)), "{out:?}");
    clean(&image, "filled");
    image
}

/// fsck.f2fs counts what the quota files say. It would write them otherwise, as it does where a number is wrong.
fn quota_is_right(image: &Path, what: &str) {
    clean(image, what);
    let whole = std::fs::read(image).expect("read");
    let fixed = || common::ok(Command::new("fsck.f2fs").arg("-f").arg(image));
    let said = fixed();
    assert!(!said.contains("Quota file"), "{what}: {said}");
    let mut bytes = whole.clone();
    let magic = 0xD9C0_1F11_u32.to_le_bytes();
    // The number of inodes of the first owner, in a file's third block of 1024 bytes. Files that were given up are changed as well.
    let files = bytes.chunks_mut(4096).filter(|b| b.starts_with(&magic));
    files.for_each(|block| block[2 * 1024 + 16 + 24] ^= 1);
    std::fs::write(image, bytes).expect("written");
    let said = fixed();
    std::fs::write(image, whole).expect("written");
    assert!(said.contains("Fixing Quota file"), "{what}: {said}");
}

#[test]
fn quota_files_count_what_is_used() {
    if !have_tools() || !blockwright_oracles::have(&["sload.f2fs"]) {
        return;
    }
    for options in [
        &[][..],
        &[
            "-O",
            "extra_attr,inode_checksum,sb_checksum,flexible_inline_xattr,inode_crtime",
        ],
        &["-O", "extra_attr", "-l", "short"],
    ] {
        let dir = scratch();
        let image = filled(dir.path(), options);
        set(&device(&image), &features("quota,encrypt")).expect("quota");
        let raw = superblock(&*device(&image));
        assert!(raw.features().contains(Features::QUOTA | Features::ENCRYPT));
        assert!(raw.qf_ino[0].get() > 3 && raw.qf_ino[1].get() > 3 && raw.qf_ino[2].get() == 0);
        quota_is_right(&image, "user and group");
        let project = set(&device(&image), &features("project_quota"));
        match options.len() {
            0 => assert!(project.is_err()),
            2 => {
                project.expect("project");
                let raw = superblock(&*device(&image));
                assert!(raw.qf_ino[2].get() > raw.qf_ino[1].get());
                quota_is_right(&image, "project");
            }
            _ => refused(&image, &features("project_quota"), "no room for a project"),
        }
        refused(&image, &features("^quota"), "`quota` cannot be cleared");
    }
}

#[test]
fn a_full_or_damaged_volume_gets_no_quota() {
    if !have_tools() || !blockwright_oracles::have(&["sload.f2fs"]) {
        return;
    }
    let dir = scratch();
    let image = filled(dir.path(), &["-O", "extra_attr,inode_checksum"]);
    let whole = std::fs::read(&image).expect("read");
    // An inode whose checksum is wrong, found while it is counted.
    let mut bytes = whole.clone();
    let place = (0..bytes.len() / 4096)
        .find(|n| {
            let node = &bytes[n * 4096..][..4096];
            node[4072..4076] == node[4076..4080] && node[4072..4076] == 3u32.to_le_bytes()
        })
        .expect("the root");
    bytes[place * 4096 + 5] ^= 1;
    std::fs::write(&image, &bytes).expect("written");
    refused(&image, &features("quota"), "checksum");
    std::fs::write(&image, whole).expect("written");
    set(&device(&image), &features("quota")).expect("whole");
}

/// Whatever a power failure leaves of the files, the volume has all it had, and the same command makes them.
#[test]
fn a_power_failure_while_quota_is_made() {
    if !have_tools() || !blockwright_oracles::have(&["sload.f2fs"]) {
        return;
    }
    let dir = scratch();
    let image = filled(dir.path(), &["-O", "extra_attr,sb_checksum,inode_crtime"]);
    let base = MemoryDevice::load(&image).expect("loaded");
    let recording = Arc::new(RecordingDevice::new(&base));
    let target: SharedDevice = recording.clone();
    let settings = features("quota,project_quota");
    set(&target, &settings).expect("set");
    let length = recording.log_len();
    let (mut unnamed, mut images) = (0, 0);
    for cut in 0..=length {
        let mut policies = vec![CrashPolicy::AllKept];
        if !recording.pending_at(cut).is_empty() {
            policies.push(CrashPolicy::Random { seed: cut as u64 });
        }
        for policy in policies {
            let what = format!("cut {cut} of {length}, {policy:?}");
            let crashed = recording.image_at(cut, policy);
            crashed.save(&image).expect("saved");
            images += 1;
            let said = fsck(&image);
            // Only files that nothing leads to, and the numbers that count them.
            for line in said.lines().filter(|line| line.contains("[Fail]")) {
                let fine = [
                    "nat entries",
                    "valid_block_count",
                    "valid_node_count",
                    "valid_inode_count",
                    "SIT valid block",
                    "other corrupted",
                    "NAT",
                ];
                assert!(
                    fine.iter().any(|f| line.contains(f)),
                    "{what}: {line}\n{said}"
                );
            }
            unnamed += usize::from(said.contains("[Fail]"));
            set(&device(&image), &settings).unwrap_or_else(|e| panic!("{what}: {e}"));
            let again = superblock(&*device(&image));
            assert!(
                again
                    .features()
                    .contains(Features::QUOTA | Features::PROJECT_QUOTA),
                "{what}"
            );
            clean(&image, &what);
            if images % 16 == 1 || length == cut {
                quota_is_right(&image, &what);
            }
        }
    }
    println!("{images} images, {unnamed} with files that nothing leads to");
    assert!(images > 15 && unnamed > 0, "{images}, {unnamed}");
}
