//! A journal on another device: attached and detached, beside what `mke2fs -J device=` and `tune2fs` make; changes through it; every cut of both.

mod common;

use blockwright_device::{
    CrashPolicy, DevOffset, Flags, MemoryDevice, RecordingDevice, SharedDevice,
};
use blockwright_ondisk::ext4::journal_device::JournalDevice;
use blockwright_reshape::ext4::resize::resize;
use blockwright_reshape::ext4::settings::{ExternalJournal, Settings, set};
use blockwright_reshape::{ResizeOptions, Watch};
use common::{contents, device, field, have_tools, mke2fs, ok, output, scratch, tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const BARE: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "^has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode",
];

fn journal(dir: &Path, name: &str, block: &str) -> PathBuf {
    let path = dir.join(name);
    ok(Command::new("mke2fs")
        .args(["-q", "-F", "-O", "journal_dev", "-b", block])
        .arg(&path)
        .arg("4M"));
    path
}

fn external(path: &Path) -> ExternalJournal {
    ExternalJournal {
        device: device(path),
        number: 0,
    }
}

fn settings(list: &str, journal: Option<&Path>) -> Settings {
    Settings {
        features: Some(list.to_owned()),
        journal: journal.map(external),
        ..Settings::default()
    }
}

fn apply(image: &Path, list: &str, journal: &Path) -> Result<(), String> {
    let settings = settings(list, Some(journal));
    set(&device(image), &settings, &Watch::default()).map_err(|e| e.to_string())
}

/// `e2fsck` finds nothing, with the journal or without it.
fn clean(image: &Path, journal: Option<&Path>, what: &str) {
    let mut e2fsck = Command::new("e2fsck");
    e2fsck.arg("-fn");
    if let Some(journal) = journal {
        e2fsck.arg("-j").arg(journal);
    }
    let out = output(e2fsck.arg(image));
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{what}: {said}");
}

fn users(journal: &Path) -> String {
    field(journal, "Journal users")
}

/// A loop device for a file, taken away when dropped.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Self {
        let said = ok(Command::new("losetup").args(["-f", "--show"]).arg(file));
        Self(said.trim().to_owned())
    }

    fn number(&self) -> u32 {
        let at = self.0.trim_start_matches("/dev/loop");
        0x700 | at.parse::<u32>().expect("a number")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let name = self.0.trim_start_matches("/dev/");
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        let held = fs::read(&backing).ok();
        output(Command::new("losetup").arg("-d").arg(&self.0));
        // The kernel lets go of the file when the last program has closed the device; others look at all devices for a moment.
        for _ in 0..100 {
            if held.is_none() || fs::read(&backing).ok() != held {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

fn have_loops() -> bool {
    blockwright_oracles::root() && Path::new("/dev/loop-control").exists()
}

#[test]
fn it_is_attached_and_detached_as_tune2fs_does() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
    mke2fs(&image, BARE, "40M", &files);
    let before = contents(&image);
    apply(&image, "has_journal", &log).expect("attached");
    clean(&image, Some(&log), "attached");
    assert_eq!(users(&log), field(&image, "Filesystem UUID"));
    assert_eq!(
        field(&image, "Journal UUID"),
        field(&log, "Filesystem UUID")
    );
    // Again: nothing is to be done.
    apply(&image, "has_journal", &log).expect("attached");
    // Another volume, another size of blocks, and what is no journal.
    let second = dir.path().join("second");
    mke2fs(&second, BARE, "40M", &files);
    let wide = journal(dir.path(), "wide", "4096");
    let none = dir.path().join("none");
    fs::copy(&image, &none).expect("copied");
    for (path, says) in [
        (&log, "is the journal of the volume"),
        (&wide, "blocks of 4096"),
        (&none, "no journal device"),
    ] {
        let said = apply(&second, "has_journal", path).expect_err("refused");
        assert!(said.contains(says), "{said}");
    }
    // A new UUID is known on both sides, and only when the journal is named.
    let uuid = Settings {
        uuid: Some([0x5A; 16]),
        ..Settings::default()
    };
    let said = set(&device(&image), &uuid, &Watch::default()).expect_err("refused");
    assert!(said.to_string().contains("--journal"), "{said}");
    let uuid = Settings {
        journal: Some(external(&log)),
        ..uuid
    };
    set(&device(&image), &uuid, &Watch::default()).expect("set");
    drop(uuid);
    assert_eq!(users(&log), "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a");
    clean(&image, Some(&log), "another UUID");

    let said = set(
        &device(&image),
        &settings("^has_journal", None),
        &Watch::default(),
    );
    let said = said.expect_err("refused").to_string();
    assert!(said.contains("--journal"), "{said}");
    apply(&image, "^has_journal", &log).expect("detached");
    clean(&image, None, "detached");
    assert_eq!(field(&log, "Journal number of users"), "0");
    assert_eq!(field(&image, "Journal UUID"), "");
    assert!(contents(&image) == before, "files differ");
    // With another UUID at the same time, both ways.
    for (list, listed) in [("has_journal", 1), ("^has_journal", 0)] {
        let both = Settings {
            uuid: Some([listed as u8 + 7; 16]),
            ..settings(list, Some(&log))
        };
        set(&device(&image), &both, &Watch::default()).expect("set");
        drop(both);
        clean(&image, names_journal(&image).then_some(log.as_path()), list);
        assert_eq!(count_users(&log), listed, "{list}");
        if listed == 1 {
            assert_eq!(users(&log), field(&image, "Filesystem UUID"));
        }
    }
}

/// A change of the UUID that fails between the two devices is made by the same command, and by one with yet another UUID.
#[test]
fn a_uuid_is_changed_after_either_device_has_failed() {
    use blockwright_device::FaultyDevice;
    use blockwright_device::sim::faulty::{Fault, Ops, Rule};
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    for (volume_fails, again) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
        mke2fs(&image, BARE, "40M", &files);
        apply(&image, "has_journal", &log).expect("attached");
        let failing = |path: &Path, fails: bool| -> SharedDevice {
            let faulty = FaultyDevice::new(device(path), 1);
            if fails {
                faulty.add(Rule::new(Ops::WRITE, Fault::Errno(5)).always());
            }
            Arc::new(faulty)
        };
        let uuid = |device: SharedDevice, n: u8| Settings {
            uuid: Some([n; 16]),
            journal: Some(ExternalJournal { device, number: 0 }),
            ..Settings::default()
        };
        let cut = uuid(failing(&log, !volume_fails), 1);
        set(&failing(&image, volume_fails), &cut, &Watch::default()).expect_err("a device failed");
        drop(cut);
        clean(&image, Some(&log), "between");
        let rest = uuid(device(&log), again);
        set(&device(&image), &rest, &Watch::default()).expect("set");
        drop(rest);
        clean(&image, Some(&log), "changed");
        assert_eq!(users(&log), field(&image, "Filesystem UUID"));
    }
}

/// A volume that its journal lists by another UUID, as a change of it leaves it that ended between the two, is detached, and the journal is free.
#[test]
fn the_only_user_is_the_volume() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
    mke2fs(&image, BARE, "40M", &files);
    apply(&image, "has_journal", &log).expect("attached");
    external(&log).list([9; 16]).expect("listed");
    apply(&image, "^has_journal", &log).expect("detached");
    assert_eq!(count_users(&log), 0);
    clean(&image, None, "detached");
}

#[test]
fn tune2fs_and_the_kernel_agree() {
    if !have_tools() || !have_loops() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
    // What tune2fs attaches is detached here.
    mke2fs(&image, BARE, "40M", &files);
    let (volume, elsewhere) = (Loop::new(&image), Loop::new(&log));
    ok(Command::new("tune2fs")
        .arg("-J")
        .arg(format!("device={}", elsewhere.0))
        .arg(&volume.0));
    drop((volume, elsewhere));
    apply(&image, "^has_journal", &log).expect("detached");
    clean(&image, None, "detached from tune2fs's");
    assert_eq!(field(&log, "Journal number of users"), "0");
    // What is attached here is mounted by the kernel, which writes through it, and detached by tune2fs.
    let number = Loop::new(&log).number();
    let mut attach = settings("has_journal", Some(&log));
    attach.journal = attach.journal.map(|j| ExternalJournal { number, ..j });
    set(&device(&image), &attach, &Watch::default()).expect("attached");
    drop(attach);
    let elsewhere = Loop::new(&log);
    let named = format!("journal_path={}", elsewhere.0);
    // Without an option, the number leads the kernel to it, if the device still has that.
    let by_number = (elsewhere.number() == number).then(|| "data=ordered".to_owned());
    let point = dir.path().join("mounted");
    fs::create_dir(&point).expect("made");
    let volume = Loop::new(&image);
    for options in by_number.into_iter().chain([named]) {
        ok(Command::new("mount")
            .args(["-t", "ext4", "-o", &options, &volume.0])
            .arg(&point));
        let written = fs::write(point.join("new"), vec![7; 50_000]);
        ok(Command::new("umount").arg(&point));
        written.expect("written");
    }
    ok(Command::new("e2fsck").args(["-fn", "-j", &elsewhere.0, &volume.0]));
    ok(Command::new("tune2fs").args(["-O", "^has_journal", &volume.0]));
    drop((volume, elsewhere));
    clean(&image, None, "detached by tune2fs");
    assert_eq!(field(&log, "Journal number of users"), "0");
}

/// Sizes and features change through the journal that is elsewhere.
#[test]
fn changes_go_through_it() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
    mke2fs(&image, BARE, "40M", &files);
    let before = contents(&image);
    apply(&image, "has_journal,orphan_file,quota", &log).expect("attached");
    clean(&image, Some(&log), "with files of its own");
    for list in [
        "^quota",
        "^metadata_csum",
        "metadata_csum",
        "^64bit",
        "^orphan_file",
    ] {
        apply(&image, list, &log).unwrap_or_else(|e| panic!("{list}: {e}"));
        clean(&image, Some(&log), list);
    }
    common::set_len(&image, 80 << 20);
    let larger = ResizeOptions::to_bytes(80 << 20);
    let said = resize(&device(&image), &larger);
    assert!(said.expect_err("refused").to_string().contains("--journal"));
    let with = || Some(external(&log));
    resize(&device(&image), &larger.journal(with())).expect("larger");
    clean(&image, Some(&log), "larger");
    let smaller = ResizeOptions::to_minimum(0).journal(with());
    resize(&device(&image), &smaller).expect("smaller");
    clean(&image, Some(&log), "smaller");
    assert!(contents(&image) == before, "files differ");
    assert_eq!(users(&log), field(&image, "Filesystem UUID"));
}

/// Other features change while a detachment that was interrupted is made again.
#[test]
fn features_change_while_a_journal_forgets_the_volume() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
    mke2fs(&image, BARE, "40M", &files);
    let before = contents(&image);
    // As a cut leaves it between the volume and the list.
    let uuid = field(&image, "Filesystem UUID").replace('-', "");
    let uuid = u128::from_str_radix(&uuid, 16).expect("a UUID");
    external(&log).list(uuid.to_be_bytes()).expect("listed");
    apply(&image, "^has_journal,quota,^64bit", &log).expect("changed");
    clean(&image, None, "changed");
    assert_eq!(count_users(&log), 0);
    assert!(!names_journal(&image));
    assert!(field(&image, "Filesystem features").contains("quota"));
    assert!(contents(&image) == before, "files differ");
}

/// What cannot be the volume's journal, or not for this change, is refused, and neither device is written.
#[test]
fn a_journal_that_does_not_do_is_refused() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    let make = |name: &str, options: &[&str], size: &str| {
        let path = dir.path().join(name);
        ok(Command::new("mke2fs")
            .args(["-q", "-F", "-O", "journal_dev"])
            .args(options)
            .arg(&path)
            .arg(size));
        path
    };
    let unchanged = |log: &Path, what: &str, change: &dyn Fn() -> Result<(), String>| {
        let before = (
            fs::read(&image).expect("read"),
            fs::read(log).expect("read"),
        );
        let said = change().expect_err(what);
        assert!(said.contains(what), "{what}: {said}");
        let now = (
            fs::read(&image).expect("read"),
            fs::read(log).expect("read"),
        );
        assert!(before == now, "{said}: something was written");
    };
    // Without a UUID no volume can name it.
    mke2fs(&image, BARE, "40M", &files);
    let nameless = make("nameless", &["-b", "1024", "-U", "clear"], "4M");
    unchanged(&nameless, "has no UUID", &|| {
        apply(&image, "has_journal", &nameless)
    });
    // Each of the 1024 blocks that are reserved for descriptors gets another list when a group has copies of them.
    let reserve = [
        "-b",
        "4096",
        "-E",
        "resize=2147483647",
        "-O",
        "^has_journal,extent,64bit,metadata_csum,resize_inode",
    ];
    mke2fs(&image, &reserve, "120M", &files);
    let narrow = make("narrow", &["-b", "4096"], "4096K");
    apply(&image, "has_journal", &narrow).expect("attached");
    common::set_len(&image, 400 << 20);
    unchanged(&narrow, "is too small for a transaction", &|| {
        let larger = ResizeOptions::to_bytes(400 << 20).journal(Some(external(&narrow)));
        let done = resize(&device(&image), &larger);
        done.map(drop).map_err(|e| e.to_string())
    });
    clean(&image, Some(&narrow), "refused");
}

/// Two devices as one, whose writes and flushes are recorded in one log: the journal lies behind the volume.
fn joined(image: &Path, log: &Path) -> (MemoryDevice, u64) {
    let mut bytes = fs::read(image).expect("read");
    let at = bytes.len() as u64;
    bytes.extend(fs::read(log).expect("read"));
    (MemoryDevice::from_image(&bytes), at)
}

/// At every cut of attaching, of a change through it and of detaching, `e2fsck` accepts the volume, and the same change, made again, succeeds.
#[test]
fn every_cut_is_accepted() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let few = dir.path().join("few");
    fs::create_dir(&few).expect("made");
    for n in 0..20usize {
        fs::write(few.join(format!("{n}")), vec![n as u8; n * 900]).expect("written");
    }
    let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
    let (whole, half) = (dir.path().join("crashed"), dir.path().join("crashed-log"));
    mke2fs(&image, BARE, "12M", &few);
    let before = contents(&image);
    for list in ["has_journal", "quota", "^has_journal"] {
        let (memory, at) = joined(&image, &log);
        let record = Arc::new(RecordingDevice::new(&memory));
        change(&(Arc::clone(&record) as SharedDevice), at, list).expect("changed");
        let length = record.log_len();
        let mut images = 0;
        for cut in (0..=length).rev() {
            let pending = record.pending_at(cut).len();
            let mut policies = vec![CrashPolicy::AllKept, CrashPolicy::NoneKept];
            if pending > 0 {
                policies.extend([CrashPolicy::AllBut(0), CrashPolicy::Only(pending - 1)]);
                policies.extend((0..2).map(|n| CrashPolicy::Random {
                    seed: (cut * 7 + n) as u64,
                }));
            }
            for policy in policies {
                let what = format!("{list}: cut {cut} of {length}, {policy:?}");
                let crashed = record.image_at(cut, policy).to_vec();
                fs::write(&whole, &crashed[..at as usize]).expect("saved");
                fs::write(&half, &crashed[at as usize..]).expect("saved");
                let mut e2fsck = Command::new("e2fsck");
                let out = output(e2fsck.args(["-fy", "-j"]).arg(&half).arg(&whole));
                let said = String::from_utf8_lossy(&out.stdout);
                assert!(out.status.code().is_some_and(|c| c < 4), "{what}: {said}");
                assert!(
                    !said.contains("lost+found") || said.contains("Recreate"),
                    "{what}: {said}"
                );
                let both = names_journal(&whole).then_some(half.as_path());
                clean(&whole, both, &what);
                images += 1;
                if images % 8 == 1 {
                    assert!(contents(&whole) == before, "{what}: files differ");
                    apply(&whole, list, &half).unwrap_or_else(|e| panic!("{what}: {e}"));
                    let both = names_journal(&whole).then_some(half.as_path());
                    clean(&whole, both, &what);
                    let listed = if both.is_some() { 1 } else { 0 };
                    assert_eq!(count_users(&half), listed, "{what}");
                }
            }
        }
        println!("{list}: {length} entries, {images} images");
        assert!(images > 4);
        let all = record.image_at(length, CrashPolicy::AllKept).to_vec();
        fs::write(&image, &all[..at as usize]).expect("saved");
        fs::write(&log, &all[at as usize..]).expect("saved");
    }
}

fn names_journal(image: &Path) -> bool {
    field(image, "Filesystem features").contains("has_journal")
}

fn count_users(log: &Path) -> usize {
    let bytes = fs::read(log).expect("read");
    let found = JournalDevice::parse(&bytes, bytes.len() as u64).expect("a journal");
    found.users().len()
}

fn change(device: &SharedDevice, at: u64, list: &str) -> blockwright_reshape::Result<()> {
    use blockwright_device::OffsetDevice;
    let rest = device.geometry().bytes - at;
    let part = |from: u64, bytes: u64| -> SharedDevice {
        let part = OffsetDevice::new(Arc::clone(device), DevOffset(from), Some(bytes));
        Arc::new(part.expect("a part"))
    };
    let settings = Settings {
        features: Some(list.to_owned()),
        journal: Some(ExternalJournal {
            device: part(at, rest),
            number: 0,
        }),
        ..Settings::default()
    };
    set(&part(0, at), &settings, &Watch::default())
}

/// What waits in the journal is not dropped: neither by detaching nor by attaching it to another volume.
#[test]
fn a_journal_that_holds_changes_is_refused() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, log) = (dir.path().join("image"), journal(dir.path(), "log", "1024"));
    mke2fs(&image, BARE, "40M", &files);
    let live = |users: u8| {
        let device = device(&log);
        let mut block = vec![0; 1024];
        device.read_at(DevOffset(2048), &mut block).expect("read");
        block[0x1F] = 3;
        block[0x43] = users;
        device
            .write_at(DevOffset(2048), &block, Flags::empty())
            .expect("written");
    };
    live(0);
    let said = apply(&image, "has_journal", &log).expect_err("refused");
    assert!(said.contains("not replayed"), "{said}");
    let fresh = journal(dir.path(), "fresh", "1024");
    fs::rename(&fresh, &log).expect("renamed");
    apply(&image, "has_journal", &log).expect("attached");
    live(1);
    let said = apply(&image, "^has_journal", &log).expect_err("refused");
    assert!(said.contains("replayed"), "{said}");
}
