//! A change of size that a power failure cut is made by the same command, whatever the cut left: also where the journal holds a transaction of which the superblock does not know yet.

use blockwright::device::{MemoryDevice, SharedDevice};
use blockwright::reshape::{self, ResizeOptions, Settings};
use blockwright::{ErrorKind, Volume};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_test_support::testing::{assert_same, have, run, run_ok, snapshot_volume};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A small volume with files behind the new end.
fn made(image: &Path) -> MemoryDevice {
    let name = image.display().to_string();
    let features = "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode";
    run_ok(
        "mke2fs",
        &[
            "-q", "-F", "-b", "1024", "-J", "size=1", "-O", features, &name, "40M",
        ],
    );
    let volume = Volume::open(image).expect("opened");
    for n in 0..40u8 {
        let bytes = vec![n; 300_000];
        volume.write(format!("/{n}"), bytes).expect("written");
    }
    volume.sync().expect("synced");
    for n in 0..30u8 {
        volume.remove_file(format!("/{n}")).expect("removed");
    }
    volume.close().expect("closed");
    MemoryDevice::load(image).expect("loaded")
}

/// e2fsck finds no more than blocks of a journal that was about to be replaced: a cut leaves them taken.
fn clean(device: &MemoryDevice, image: &Path, what: &str) {
    device.save(image).expect("saved");
    let e2fsck = |how| {
        let out = run("e2fsck", &[how, &image.display().to_string()]);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.code().unwrap_or(99), said)
    };
    let (code, said) = e2fsck("-fy");
    assert!(code < 2, "{what}: {said}");
    let passes = said.lines().filter(|line| line.contains("differences"));
    assert!(passes.count() <= 1, "{what}: {said}");
    let (code, said) = e2fsck("-fn");
    assert_eq!(code, 0, "{what}: {said}");
}

#[test]
fn the_same_command_makes_it() {
    if !(have("mke2fs") && have("e2fsck")) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (image, crashed) = (dir.path().join("image"), dir.path().join("crashed"));
    let base = made(&image);
    let contents = |device: &SharedDevice| {
        let volume = Volume::open_device(device.clone()).expect("opened");
        let all = snapshot_volume(&volume, "/").expect("read");
        volume.close().expect("closed");
        all
    };
    let copy: SharedDevice = Arc::new(base.snapshot());
    let before = contents(&copy);
    let recording = Arc::new(RecordingDevice::new(&base));
    let device: SharedDevice = recording.clone();
    let smaller = ResizeOptions::to_bytes(16 * MIB);
    let resized = reshape::resize(&device, &smaller).expect("smaller");
    let length = recording.log_len();
    let mut unmade = 0;
    for cut in 0..=length {
        let pending = recording.pending_at(cut).len();
        let mut policies = vec![CrashPolicy::AllKept];
        if pending > 0 {
            policies.push(CrashPolicy::NoneKept);
        }
        for policy in policies {
            let what = format!("cut {cut} of {length}, {policy:?}");
            let memory = Arc::new(recording.image_at(cut, policy));
            let device: SharedDevice = memory.clone();
            if blockwright_reshape::ext4::unmade::holds_unmade_change(&device, None).expect("read")
            {
                unmade += 1;
            }
            let again = reshape::resize(&device, &smaller);
            let again = again.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(again.bytes(), resized.bytes(), "{what}");
            clean(&memory, &crashed, &what);
            assert_same(&before, &contents(&device), &[]);
        }
    }
    println!("{length} entries, {unmade} with a change that was not made");
    assert!(unmade > 0);
}

/// Transactions that are not a change of this kind are neither dropped nor replayed.
#[test]
fn other_transactions_are_left_to_the_user() {
    if !(have("mke2fs") && have("debugfs")) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    made(&image);
    let volume = Volume::open(&image).expect("opened");
    volume.write("/synced", b"contents").expect("written");
    volume.sync().expect("synced");
    let crashed = dir.path().join("crashed");
    std::fs::copy(&image, &crashed).expect("copied");
    volume.close().expect("closed");
    run_ok(
        "debugfs",
        &[
            "-w",
            "-R",
            "feature -needs_recovery",
            &crashed.display().to_string(),
        ],
    );
    let base = MemoryDevice::load(&crashed).expect("loaded");
    let recording = Arc::new(RecordingDevice::new(&base));
    let device: SharedDevice = recording.clone();
    let label = Settings {
        features: Some("quota".into()),
        ..Settings::default()
    };
    let smaller = ResizeOptions::to_bytes(16 * MIB);
    for error in [
        reshape::resize(&device, &smaller).expect_err("refused"),
        reshape::set(&device, &label).expect_err("refused"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("check -y"), "{error}");
        assert!(error.changed_nothing());
    }
    assert_eq!(recording.log_len(), 0);
}
