//! A journal on another device that is lost: the volume goes without it, as with `tune2fs -f`, and what waits in it is given up only when that is said twice.

mod common;

use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_reshape::ReshapeError;
use blockwright_reshape::Watch;
use blockwright_reshape::ext4::settings::{ExternalJournal, LostJournal, Settings, set};
use common::{
    clean, contents, device, field, have_tools, mke2fs, ok, output, recovers, scratch, tree,
};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const OPTIONS: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "^has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode",
];

/// A volume whose journal is lost, with these features beside it.
fn volume(dir: &Path, image: &Path, size: &str, files: &Path, features: &str) {
    let log = dir.join("log");
    let mut mke2fs_log = Command::new("mke2fs");
    mke2fs_log.args(["-q", "-F", "-O", "journal_dev", "-b", "1024"]);
    ok(mke2fs_log.arg(&log).arg("4M"));
    mke2fs(image, OPTIONS, size, files);
    let settings = Settings {
        features: Some(format!("has_journal{features}")),
        journal: Some(ExternalJournal {
            device: device(&log),
            number: 0,
        }),
        ..Settings::default()
    };
    set(&device(image), &settings, &Watch::default()).expect("attached");
    drop(settings);
    fs::remove_file(&log).expect("lost");
}

fn lost(list: &str, lost: LostJournal) -> Settings {
    Settings {
        features: Some(list.to_owned()),
        lost_journal: Some(lost),
        ..Settings::default()
    }
}

fn apply(image: &Path, settings: &Settings) -> Result<(), ReshapeError> {
    set(&device(image), settings, &Watch::default())
}

/// It is refused, and not a byte is written.
fn refused(image: &Path, settings: &Settings, part: &str) {
    let before = fs::read(image).expect("read");
    let memory = MemoryDevice::from_image(&before);
    let recording = Arc::new(RecordingDevice::new(&memory));
    let device = Arc::clone(&recording) as SharedDevice;
    let error = set(&device, settings, &Watch::default()).expect_err(part);
    assert!(error.to_string().contains(part), "{part}: {error}");
    assert_eq!(recording.log_len(), 0, "{error}: something was written");
}

/// The features, without those that only this project takes along with the journal that they need.
fn features(image: &Path) -> Vec<String> {
    let all = field(image, "Filesystem features");
    let needy = ["orphan_file", "fast_commit"];
    let kept = all.split_whitespace().filter(|name| !needy.contains(name));
    kept.map(str::to_owned).collect()
}

#[test]
fn a_clean_volume_goes_without_it_as_with_tune2fs() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let (image, theirs) = (dir.path().join("image"), dir.path().join("theirs"));
    for with in ["", ",fast_commit", ",orphan_file", ",quota"] {
        volume(dir.path(), &image, "40M", &files, with);
        let before = contents(&image);
        fs::copy(&image, &theirs).expect("copied");
        let plain = Settings {
            features: Some("^has_journal".into()),
            ..Settings::default()
        };
        refused(&image, &plain, "--force");
        apply(&image, &lost("^has_journal", LostJournal::Journal))
            .unwrap_or_else(|e| panic!("{with}: {e}"));
        clean(&image, with);
        assert_eq!(field(&image, "Journal UUID"), "", "{with}");
        assert!(contents(&image) == before, "{with}: files differ");
        let mut tune2fs = Command::new("tune2fs");
        ok(tune2fs.args(["-f", "-O", "^has_journal"]).arg(&theirs));
        assert_eq!(features(&image), features(&theirs), "{with}");
        // Again: nothing is to be done.
        apply(&image, &lost("^has_journal", LostJournal::Journal)).expect("again");
        clean(&image, with);
        // It can have another one.
        let inside = Settings {
            features: Some("has_journal".into()),
            ..Settings::default()
        };
        apply(&image, &inside).expect("a journal");
        clean(&image, with);
    }
}

#[test]
fn other_settings_change_with_it() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    for list in [
        "^has_journal,quota",
        "^has_journal,^metadata_csum",
        "^has_journal,^64bit,^dir_index",
    ] {
        volume(dir.path(), &image, "40M", &files, ",orphan_file");
        let before = contents(&image);
        let settings = Settings {
            label: Some(b"new".to_vec()),
            uuid: Some([7; 16]),
            ..lost(list, LostJournal::Journal)
        };
        apply(&image, &settings).unwrap_or_else(|e| panic!("{list}: {e}"));
        clean(&image, list);
        assert_eq!(field(&image, "Filesystem volume name"), "new");
        assert!(!field(&image, "Filesystem features").contains("has_journal"));
        assert!(contents(&image) == before, "{list}: files differ");
    }
}

#[test]
fn transactions_are_given_up_in_words() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    for with in ["", ",fast_commit", ",orphan_file"] {
        volume(dir.path(), &image, "40M", &files, with);
        let before = contents(&image);
        let mut debugfs = Command::new("debugfs");
        ok(debugfs
            .args(["-w", "-R", "feature needs_recovery"])
            .arg(&image));
        let journal = lost("^has_journal", LostJournal::Journal);
        refused(&image, &journal, "--lose-transactions");
        let mut label = lost("^has_journal", LostJournal::Transactions);
        label.label = Some(b"new".to_vec());
        refused(&image, &label, "after a check");
        let quota = lost("^has_journal,quota", LostJournal::Transactions);
        refused(&image, &quota, "after a check");
        refused(
            &image,
            &lost("", LostJournal::Transactions),
            "after a check",
        );
        apply(&image, &lost("^has_journal", LostJournal::Transactions))
            .unwrap_or_else(|e| panic!("{with}: {e}"));
        let state = field(&image, "Filesystem state");
        assert!(state.contains("errors"), "{with}: {state}");
        assert_eq!(field(&image, "Journal UUID"), "", "{with}");
        // What is left of it is an ordinary volume after a check. (tune2fs asks for one that finds the journal.)
        let e2fsck = || output(Command::new("e2fsck").arg("-fy").arg(&image));
        // It takes an orphan file away that has no journal, and frees the inode in the second round.
        let first = e2fsck();
        assert!(first.status.code().is_some_and(|c| c < 4), "{with}");
        let checked = e2fsck();
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(
            checked.status.code().is_some_and(|c| c < 4),
            "{with}: {said}"
        );
        clean(&image, with);
        assert!(contents(&image) == before, "{with}: files differ");
    }
}

#[test]
fn a_journal_that_is_not_lost_stays() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    let inside = ["-O", "has_journal,extent"];
    mke2fs(&image, &inside, "40M", &files);
    let journal = lost("^has_journal", LostJournal::Transactions);
    refused(&image, &journal, "not on another device");
    let mut debugfs = Command::new("debugfs");
    ok(debugfs
        .args(["-w", "-R", "feature needs_recovery"])
        .arg(&image));
    refused(&image, &journal, "not on another device");
    volume(dir.path(), &image, "40M", &files, "");
    refused(
        &image,
        &lost("quota", LostJournal::Journal),
        "is taken away",
    );
    let named = Settings {
        journal: Some(ExternalJournal {
            device: Arc::new(MemoryDevice::new(4 << 20)),
            number: 0,
        }),
        ..lost("^has_journal", LostJournal::Journal)
    };
    refused(&image, &named, "a journal device is named");
}

/// At every cut `e2fsck` accepts the volume and loses nothing.
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
    let (image, crashed) = (dir.path().join("image"), dir.path().join("crashed"));
    volume(dir.path(), &image, "12M", &few, ",orphan_file");
    let before = contents(&image);
    let base = MemoryDevice::load(&image).expect("loaded");
    let record = Arc::new(RecordingDevice::new(&base));
    let shared = Arc::clone(&record) as SharedDevice;
    let settings = lost("^has_journal", LostJournal::Journal);
    set(&shared, &settings, &Watch::default()).expect("without it");
    let length = record.log_len();
    let mut kept = 0;
    for cut in 0..=length {
        let pending = record.pending_at(cut).len();
        let mut policies = vec![CrashPolicy::AllKept];
        if pending > 0 {
            // Not torn: the copies of a torn superblock still name the journal.
            policies.extend([CrashPolicy::NoneKept, CrashPolicy::AllBut(0)]);
        }
        for policy in policies {
            let what = format!("cut {cut} of {length}, {policy:?}");
            let memory = record.image_at(cut, policy);
            memory.save(&crashed).expect("saved");
            // The UUID of the journal on another device.
            let bytes = fs::read(&crashed).expect("read");
            if bytes[1024 + 0xD0..][..16] != [0; 16] {
                // e2fsck cannot check it before it goes without its journal.
                apply(&crashed, &settings).unwrap_or_else(|e| panic!("{what}: {e}"));
                kept += 1;
            }
            recovers(&crashed, &before, &what, true);
        }
    }
    println!("{length} entries, {kept} images with the journal");
    assert!(kept > 0);
}
