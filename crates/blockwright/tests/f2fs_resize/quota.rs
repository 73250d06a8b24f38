//! Quota files that `set` has made: files stay as they are, and the engine and Linux count on from what the files say. This project's checker and fsck.f2fs count
//! themselves.

use super::packs::both_packs_count;
use super::refusals::crashed;
use super::{MIB, clean, contents, fill, issues, made, made_by_us, pattern, shared};
use blockwright::device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright::reshape::{self, Settings};
use blockwright::{Cred, OpenOptions, Result, Volume};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_ondisk::f2fs::{Features, Superblock};
use blockwright_test_support::testing::{assert_same, have};
use blockwright_test_support::uml;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const USER: u32 = 1000;

/// Files of several owners, and a directory for all users.
fn owned(device: &Arc<MemoryDevice>) {
    fill(device, 60, 2);
    let volume = Volume::open_device(shared(device)).expect("opened");
    volume.create_dir_mode("/home", 0o777).expect("made");
    for n in 0..60u32 {
        let owners = (Some(n % 4 * 70_000), Some(n % 3));
        volume
            .chown(format!("/d/{n}"), owners.0, owners.1)
            .expect("given");
    }
    volume.close().expect("closed");
}

fn set(device: &SharedDevice, features: &str) -> Result<()> {
    let settings = Settings {
        features: Some(features.into()),
        ..Settings::default()
    };
    reshape::set(device, &settings)
}

/// Which kinds of quota the superblock names files for.
fn named(device: &MemoryDevice) -> [bool; 3] {
    let mut block = vec![0; 4096];
    device.read_at(DevOffset(0), &mut block).expect("read");
    let sb = Superblock::parse(&block, None).expect("a superblock");
    let on = sb.raw.features().contains(Features::QUOTA);
    sb.raw.qf_ino.map(|ino| on && ino.get() > 3)
}

/// A user writes, overwrites and removes.
fn work(device: &Arc<MemoryDevice>) {
    let options = Volume::options().credentials(Cred {
        uid: USER,
        gid: USER,
        ..Cred::unchecked()
    });
    let volume = options.open_device(shared(device)).expect("opened");
    assert_eq!(volume.read_only_reason(), None);
    for n in 0..30 {
        volume
            .write(format!("/home/{n}"), pattern(n, n * 7000))
            .expect("written");
    }
    for n in 0..10 {
        volume.remove_file(format!("/home/{n}")).expect("removed");
        volume
            .write(format!("/home/{}", n + 10), pattern(n, n * 900))
            .expect("written");
    }
    volume.close().expect("closed");
}

/// A number in a quota file that is wrong is found: so the files are looked at.
fn numbers_are_compared(device: &MemoryDevice, what: &str) {
    let copy = Arc::new(device.snapshot());
    let magic = 0xD9C0_1F11_u32.to_le_bytes();
    for block in 0..copy.geometry().bytes / 4096 {
        let mut bytes = vec![0; 4096];
        copy.read_at(DevOffset(block * 4096), &mut bytes)
            .expect("read");
        if bytes.starts_with(&magic) {
            // The number of inodes of the first owner.
            bytes[2 * 1024 + 16 + 24] ^= 1;
            copy.write_at(DevOffset(block * 4096), &bytes, Flags::empty())
                .expect("written");
        }
    }
    let found = issues(&copy);
    assert!(
        found.iter().any(|issue| issue.contains("quota")),
        "{what}: {found:?}"
    );
}

#[test]
fn the_engine_and_linux_count_on() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    // Linux 6.1 of user-mode-linux has neither casefolding nor compression.
    let android = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,verity";
    let volumes = [
        ("plain", made(&[], 64 * MIB, 0), "quota"),
        ("android", made(&["-O", android], 64 * MIB, 0), "quota"),
        ("sections", made(&["-s", "2"], 100 * MIB, 0), "quota"),
        ("ours", made_by_us(64 * MIB, 0), "quota"),
    ];
    let dir = tempfile::tempdir().expect("a directory");
    let mut paths: Vec<PathBuf> = Vec::new();
    for (name, device, features) in &volumes {
        owned(device);
        let before = contents(device);
        set(&shared(device), features).unwrap_or_else(|e| panic!("{name}: {e}"));
        let projects = *name == "android";
        assert_eq!(named(device), [true, true, projects], "{name}");
        clean(device, name);
        assert_same(&before, &contents(device), &[]);
        both_packs_count(device, device.geometry().bytes, name);
        work(device);
        clean(device, name);
        numbers_are_compared(device, name);
        let path = dir.path().join(name);
        device.save(&path).expect("saved");
        paths.push(path);
    }
    if !uml::available() {
        return;
    }
    let out = dir.path().join("out");
    std::fs::create_dir(&out).expect("made");
    let images: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let script = r"
for d in a b c d; do
    attach $d
    cp -r /usr/lib/uml/modules/*/kernel/fs/f2fs /mnt/$d/home/linux
    chown -R 1000:70000 /mnt/$d/home/linux
    for n in 1 2 3 4 5; do echo $n > /mnt/$d/home/k$n; chown $((n * 99)):$n /mnt/$d/home/k$n; done
    rm /mnt/$d/home/1*
    umount /mnt/$d
done";
    uml::run(&out, &images, script, Duration::from_secs(200));
    let dmesg = std::fs::read_to_string(out.join("dmesg")).expect("written");
    for line in dmesg.lines().filter(|line| line.contains("F2FS-fs")) {
        let fine = ["Mounted with checkpoint version", "Found nat_bits"];
        assert!(fine.iter().any(|f| line.contains(f)), "{line}");
    }
    for path in &paths {
        let device = Arc::new(MemoryDevice::load(path).expect("loaded"));
        let what = format!("{}, after Linux", path.display());
        clean(&device, &what);
        numbers_are_compared(&device, &what);
        work(&device);
        clean(&device, &what);
    }
}

#[test]
fn what_was_synced_is_counted() {
    let base = made_by_us(64 * MIB, 0);
    owned(&base);
    let device = crashed(&base, |volume| {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .open(volume, "/synced")
            .expect("a file");
        file.write_all_at(&pattern(3, 300_000), 0).expect("written");
        file.sync_all().expect("synced");
    });
    set(&shared(&device), "quota").expect("set");
    let after = contents(&device);
    assert_eq!(after[Path::new("synced")].size, 300_000);
    clean(&device, "synced");
    numbers_are_compared(&device, "synced");
}

/// Either there is room for the files, or nothing changes.
#[test]
fn a_full_volume() {
    let device = made_by_us(64 * MIB, 0);
    let volume = Volume::open_device(shared(&device)).expect("opened");
    let mut n = 0;
    while volume.write(format!("/{n}"), pattern(n, 300_000)).is_ok() {
        n += 1;
    }
    while volume
        .write(format!("/small-{n}"), pattern(n, 4000))
        .is_ok()
    {
        n += 1;
    }
    volume.close().expect("closed");
    let before = contents(&device);
    let result = set(&shared(&device), "quota");
    println!("{n} files: {result:?}");
    let error = result.expect_err("full");
    assert_eq!(error.kind(), blockwright::ErrorKind::NoSpace, "{error}");
    assert!(error.changed_nothing(), "{error}");
    clean(&device, "refused");
    assert_same(&before, &contents(&device), &[]);
    let volume = Volume::open_device(shared(&device)).expect("opened");
    for n in 0..10 {
        volume.remove_file(format!("/{n}")).expect("removed");
    }
    volume.close().expect("closed");
    set(&shared(&device), "quota").expect("room");
    clean(&device, "room");
}

/// Power fails at every write: the volume opens with all its files, and the same command makes the quota files.
#[test]
fn cut_anywhere() {
    let base = made_by_us(64 * MIB, 0);
    owned(&base);
    let before = contents(&base);
    let recording = Arc::new(RecordingDevice::new(&base));
    let device: SharedDevice = recording.clone();
    set(&device, "quota").expect("set");
    let length = recording.log_len();
    let mut kinds = std::collections::BTreeSet::new();
    for at in 0..=length {
        let policy = CrashPolicy::Random { seed: at as u64 };
        let crashed = Arc::new(recording.image_at(at, policy));
        let what = format!("cut {at} of {length}");
        kinds.extend(issues(&crashed));
        assert_same(&before, &contents(&crashed), &[]);
        set(&shared(&crashed), "quota").unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(named(&crashed), [true, true, false], "{what}");
        let found = issues(&crashed);
        assert!(found.is_empty(), "{what}: {found:?}");
        assert_same(&before, &contents(&crashed), &[]);
    }
    println!("{length} entries: {kinds:#?}");
    assert!(length > 10 && !kinds.is_empty(), "{length}: {kinds:?}");
}
