//! A device that fails at any moment of a growth: the image file, cut as [`reshape::file_bytes`] says, holds a volume that opens with all its files.

use blockwright::device::{BlockDevice, MemoryDevice, SharedDevice};
use blockwright::reshape::{self, Phase, ResizeOptions, Watch};
use blockwright::{Error, ErrorKind, Format, Volume, VolumeBuilder};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{CountingDevice, FaultyDevice};
use blockwright_test_support::testing::{have, run_ok};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

fn set_len(path: &Path, bytes: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.expect("an image").set_len(bytes).expect("a size");
}

/// Grows a copy of the image while write or flush `n` fails, and later ones with `for_good`. The image as its file is then; `None` when nothing failed.
fn failed(image: &Path, out: &Path, bytes: u64, n: u64, for_good: bool) -> Option<u64> {
    let before = std::fs::metadata(image).expect("an image").len();
    std::fs::copy(image, out).expect("copied");
    set_len(out, bytes);
    let memory = Arc::new(MemoryDevice::load(out).expect("loaded"));
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&memory) as SharedDevice, 1));
    // ENOSPC, as a host says whose file system is full.
    let rule = Rule::new(
        Ops::WRITE | Ops::WRITE_ZEROES | Ops::FLUSH,
        Fault::Errno(28),
    )
    .skip(n);
    faulty.add(if for_good { rule.always() } else { rule });
    let device: SharedDevice = Arc::clone(&faulty) as SharedDevice;
    let resized = reshape::resize(&device, &ResizeOptions::to_bytes(bytes));
    let fired = faulty.fired() > 0;
    assert_eq!(resized.is_err(), fired, "{n}: {resized:?}");
    let length = reshape::file_bytes(&device, before, None, Some(bytes), resized.as_ref());
    if !fired {
        assert_eq!(length, bytes);
        return None;
    }
    assert!((before..=memory.geometry().bytes).contains(&length));
    memory.save(out).expect("saved");
    set_len(out, length);
    Some(length)
}

/// Every moment, or every `step`th one.
fn every_failure(image: &Path, bytes: u64, step: usize, opens: impl Fn(&Path, &str)) {
    let out = image.with_extension("failed");
    let before = std::fs::metadata(image).expect("an image").len();
    for for_good in [true, false] {
        let (mut short, mut long) = (0, 0);
        for n in (0..).step_by(step) {
            let Some(length) = failed(image, &out, bytes, n, for_good) else {
                break;
            };
            match length == before {
                true => short += 1,
                false => long += 1,
            }
            opens(
                &out,
                &format!("write {n}, for good: {for_good}, {length} bytes"),
            );
        }
        println!("{}: {short} short, {long} long", image.display());
        assert!(short > 0 && long > 0, "{short} short, {long} long");
    }
}

fn checked_by_e2fsck(image: &Path, what: &str) {
    let run = |how: &str| {
        let out = Command::new("e2fsck").arg(how).arg(image).output();
        let out = out.expect("e2fsck");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.code().unwrap_or(99), said)
    };
    let (code, said) = run("-fy");
    assert!(code < 4, "{what}: {said}");
    let (code, said) = run("-fn");
    assert_eq!(code, 0, "{what}: {said}");
}

fn has_files(image: &Path, what: &str) {
    let volume = Volume::open(image).unwrap_or_else(|e| panic!("{what}: {e}"));
    for n in 0..8u8 {
        let bytes = volume.read(format!("/{n}"));
        let bytes = bytes.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(bytes == vec![n; 9000 * usize::from(n)], "{what}: {n}");
    }
    volume.close().unwrap_or_else(|e| panic!("{what}: {e}"));
}

fn made(path: &Path, format: Format, bytes: u64) {
    let volume = VolumeBuilder::new().format(format).size(bytes);
    volume.create(path).expect("made");
    let volume = Volume::open(path).expect("opened");
    for n in 0..8u8 {
        let bytes = vec![n; 9000 * usize::from(n)];
        volume.write(format!("/{n}"), bytes).expect("written");
    }
    volume.close().expect("closed");
}

#[test]
fn ext4_keeps_what_was_committed() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    made(&image, Format::Ext4, 16 * MIB);
    let tools = have("e2fsck");
    every_failure(&image, 300 * MIB, 1, |image, what| {
        has_files(image, what);
        if tools {
            checked_by_e2fsck(image, what);
        }
    });
}

#[test]
fn ext2_keeps_what_was_committed() {
    if !(have("mke2fs") && have("e2fsck")) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    let name = image.display().to_string();
    run_ok("mke2fs", &["-q", "-t", "ext2", "-b", "1024", &name, "16M"]);
    every_failure(&image, 48 * MIB, 1, checked_by_e2fsck);
}

#[test]
fn f2fs_keeps_what_was_committed() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    made(&image, Format::F2fs, 64 * MIB);
    every_failure(&image, 200 * MIB, 1, has_files);
}

/// Whatever error ends a change, the file keeps what the volume asks for by now: several steps may have been committed before. It never gets more than it has.
#[test]
fn no_error_cuts_a_volume() {
    let kinds = [
        ErrorKind::Invalid,
        ErrorKind::Unsupported,
        ErrorKind::UnsupportedFeature,
        ErrorKind::Busy,
        ErrorKind::NoSpace,
        ErrorKind::Io,
        ErrorKind::Corrupt,
        ErrorKind::Interrupted,
    ];
    let dir = tempfile::tempdir().expect("a directory");
    for format in [Format::Ext4, Format::F2fs] {
        let image = dir.path().join("image");
        let made = VolumeBuilder::new().format(format).size(96 * MIB);
        made.create(&image).expect("made");
        let device: SharedDevice = Arc::new(MemoryDevice::load(&image).expect("loaded"));
        let now = reshape::volume_bytes(&device).expect("a volume");
        let wanted = Some(200 * MIB);
        for kind in kinds {
            let error = Error::new(kind, "");
            // The file was shorter before the steps that made the volume larger.
            let length =
                reshape::file_bytes(&device, 64 * MIB, Some(64 * MIB), wanted, Err(&error));
            assert_eq!(length, now, "{format}, {kind:?}");
        }
        // A volume that has become smaller before it was stopped.
        let stopped = &Error::new(ErrorKind::Interrupted, "");
        let length = reshape::file_bytes(&device, 128 * MIB, Some(128 * MIB), None, Err(stopped));
        assert_eq!(length, now, "{format}");
        // A superblock that claims more than there is.
        set_len(&image, 80 * MIB);
        let short: SharedDevice = Arc::new(MemoryDevice::load(&image).expect("loaded"));
        for kind in kinds {
            let error = Error::new(kind, "");
            let length = reshape::file_bytes(&short, 64 * MIB, None, wanted, Err(&error));
            assert!(
                (64 * MIB..=80 * MIB).contains(&length),
                "{format}, {kind:?}: {length}"
            );
        }
    }
    let text: SharedDevice = Arc::new(MemoryDevice::new(MIB));
    let refused = &Error::new(ErrorKind::Invalid, "");
    assert_eq!(
        reshape::file_bytes(&text, 512, None, Some(MIB), Err(refused)),
        512
    );
}

/// A volume of 400 MiB that was not closed, with 60 MiB behind the first 200.
fn dirty(image: &Path) -> MemoryDevice {
    VolumeBuilder::new()
        .size(400 * MIB)
        .create(image)
        .expect("made");
    let memory = Arc::new(MemoryDevice::load(image).expect("loaded"));
    let volume = Volume::open_device(Arc::clone(&memory) as SharedDevice).expect("opened");
    for (name, bytes) in [("/gone", 200 * MIB), ("/kept", 60 * MIB)] {
        let bytes = vec![7; bytes as usize];
        volume.write(name, bytes).expect("written");
        volume.sync().expect("synced");
    }
    volume.remove_file("/gone").expect("removed");
    volume.sync().expect("synced");
    memory.save(image).expect("saved");
    volume.close().expect("closed");
    MemoryDevice::load(image).expect("loaded")
}

/// What is tried in memory before the journal is replayed does not copy the contents of files.
#[test]
fn a_volume_that_was_not_closed_is_shrunk_without_its_contents_in_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let counting = Arc::new(CountingDevice::new(Arc::new(dirty(
        &dir.path().join("image"),
    ))));
    let device: SharedDevice = Arc::clone(&counting) as SharedDevice;
    let copied = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&copied);
    let watch = Watch::new(move |progress| {
        if progress.phase == Phase::Data {
            let stats = counting.stats();
            assert!(stats.writes.requests > 0, "contents are copied in memory");
            seen.fetch_max(progress.total, Ordering::Relaxed);
        }
        ControlFlow::Continue(())
    });
    reshape::resize(
        &device,
        &ResizeOptions::to_bytes(100 * MIB).watch(watch.clone()),
    )
    .expect("smaller");
    assert!(copied.load(Ordering::Relaxed) > 20 * MIB);
    let volume = Volume::open_device(device).expect("opened");
    let kept = volume.read("/kept").expect("read");
    assert!(kept == vec![7; 60 << 20], "a file differs");
    volume.close().expect("closed");
}

/// A refusal that comes before the journal is replayed gives the file its length back.
#[test]
fn a_refusal_before_the_replay_cuts_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    drop(dirty(&image));
    set_len(&image, 500 * MIB);
    let memory = Arc::new(MemoryDevice::load(&image).expect("loaded"));
    let counting = Arc::new(CountingDevice::new(memory));
    let device: SharedDevice = Arc::clone(&counting) as SharedDevice;
    let resized = reshape::resize(&device, &ResizeOptions::to_bytes(40 * MIB));
    let error = resized.as_ref().expect_err("too small");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(counting.stats().writes.requests, 0);
    let length = reshape::file_bytes(&device, 400 * MIB, None, None, resized.as_ref());
    assert_eq!(length, 400 * MIB);
}
