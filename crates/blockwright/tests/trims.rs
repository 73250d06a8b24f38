//! A trim that is stopped between two ranges: the volume is whole, and the next trim does the rest.

use blockwright::{Format, Volume, VolumeBuilder};
use blockwright_test_support::testing::have;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

const BYTES: u64 = 3 << 30;

fn stopped(format: Format) {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    VolumeBuilder::new()
        .format(format)
        .size(BYTES)
        .create(&image)
        .expect("made");
    let volume = Volume::options().open(&image).expect("opened");
    volume.write("/kept", vec![0xC3; 1 << 20]).expect("written");
    volume.close().expect("closed");
    // Blocks that were in use at some time, in the first and in the last part.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&image);
    let file = file.expect("an image");
    let used = || std::fs::metadata(&image).expect("there").blocks() * 512;
    let old = vec![0xB7; 8 << 20];
    let places = [100 << 20, BYTES - (64 << 20)];
    let mut written = 0;
    for at in places {
        let mut there = vec![0; old.len()];
        file.read_exact_at(&mut there, at).expect("read");
        assert!(
            there.iter().all(|b| *b == 0),
            "{format:?}: something is at {at}"
        );
        file.write_all_at(&old, at).expect("written");
        written += old.len() as u64;
    }
    file.sync_all().expect("synced");
    let before = used();
    let remains = |at: u64| {
        let mut there = vec![0; old.len()];
        file.read_exact_at(&mut there, at).expect("read");
        there.iter().any(|b| *b != 0)
    };
    let volume = Volume::options().open(&image).expect("opened");
    let mut calls = Vec::new();
    let (first, whole) = volume
        .trim_watched(&mut |done, total| {
            calls.push((done, total));
            match calls.len() {
                1 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })
        .expect("trimmed");
    assert!(
        !whole && first > 0 && calls.len() == 2,
        "{format:?}: {calls:?}"
    );
    assert!(calls[0].0 == 0 && calls[1].0 > 0 && calls[1].1 <= BYTES);
    assert!(!remains(places[0]) && remains(places[1]), "{format:?}");
    let (rest, whole) = volume
        .trim_watched(&mut |_, _| ControlFlow::Continue(()))
        .expect("trimmed");
    assert!(whole && rest > 0, "{format:?}");
    assert!(!remains(places[0]) && !remains(places[1]), "{format:?}");
    assert!(
        before.saturating_sub(used()) >= written * 9 / 10,
        "{format:?}"
    );
    assert_eq!(volume.read("/kept").expect("read"), vec![0xC3; 1 << 20]);
    volume.close().expect("closed");
    let (tool, flag) = match format {
        Format::F2fs => ("fsck.f2fs", "--dry-run"),
        _ => ("e2fsck", "-fn"),
    };
    if have(tool) {
        let out = Command::new(tool)
            .arg(flag)
            .arg(&image)
            .output()
            .expect("run");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stdout)
        );
    }
}

/// Ranges that end within groups and segments give back what one range gives back.
#[test]
fn ranges_of_any_size_leave_nothing_out() {
    const MIB: u64 = 1 << 20;
    for format in [Format::Ext4, Format::F2fs] {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("image");
        let made = VolumeBuilder::new().format(format).size(300 * MIB);
        made.create(&image).expect("made");
        let volume = Volume::open(&image).expect("opened");
        volume.write("/kept", vec![0xC3; 5_000_000]).expect("kept");
        volume.write("/gone", vec![0xC3; 9_000_000]).expect("gone");
        volume.remove_file("/gone").expect("removed");
        volume.sync().expect("synced");
        let engine = volume.vfs().engine();
        let whole = engine.trim(0..u64::MAX, 0).expect("trimmed");
        for step in [3 * MIB, 7 * MIB + 12_288, 129 * MIB] {
            let mut sum = 0;
            for at in (0..300 * MIB).step_by(step as usize) {
                let end = (at + step).min(300 * MIB);
                sum += engine.trim(at..end, 0).expect("trimmed");
            }
            assert_eq!(sum, whole, "{format:?}, ranges of {step}");
        }
        volume.close().expect("closed");
    }
}

#[test]
fn a_stopped_trim_of_ext4() {
    stopped(Format::Ext4);
}

#[test]
fn a_stopped_trim_of_f2fs() {
    stopped(Format::F2fs);
}
