//! `checkpoint=disable` on f2fs: whatever ends the mount, the volume is as it was when it was mounted; and enabling them again
//! keeps all that was done.

use crate::common::f2fs::{assert_clean, formatted};
use blockwright::{ErrorKind, OpenOptions, Volume, VolumeOptions};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_f2fs::options::{Checkpointing, Mode, Unusable};
use std::sync::Arc;

fn disabled() -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.parts.f2fs.checkpoint = Checkpointing::Disabled {
        unusable_max: Unusable::Blocks(0),
    };
    // Little: nodes and directories are spilled.
    options.parts.f2fs.metadata_cache_bytes = 1 << 20;
    options
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| seed.wrapping_add((n / 100) as u8))
        .collect()
}

/// A tree to begin with: files large and small, and directories.
fn fill(volume: &Volume) {
    for d in 0..4 {
        volume.create_dir(format!("/d{d}")).expect("a directory");
        for n in 0..60 {
            let path = format!("/d{d}/{n}");
            volume
                .write(path, bytes(n, 500 * usize::from(n)))
                .expect("a file");
        }
    }
    volume.write("/large", bytes(9, 9 << 20)).expect("a file");
}

fn assert_as_filled(volume: &Volume) {
    for d in 0..4 {
        let listed = volume.read_dir(format!("/d{d}")).expect("listed").count();
        assert_eq!(listed, 60, "names of /d{d}");
        for n in 0..60 {
            let read = volume.read(format!("/d{d}/{n}")).expect("read");
            assert!(read == bytes(n, 500 * usize::from(n)), "/d{d}/{n}");
        }
    }
    assert!(
        volume.read("/large").expect("read") == bytes(9, 9 << 20),
        "/large"
    );
    assert!(volume.metadata("/new").is_err());
}

/// Changes nearly everything, again and again.
fn churn(volume: &Volume) {
    for round in 0..3u8 {
        for d in 0..4 {
            for n in 0..60 {
                let path = format!("/d{d}/{n}");
                volume
                    .write(&path, bytes(n ^ round, 700 * usize::from(n)))
                    .expect("written");
            }
            for n in 0..20 {
                if round == 1 {
                    volume.remove_file(format!("/d{d}/{n}")).expect("removed");
                }
            }
        }
        let file = OpenOptions::new()
            .write(true)
            .direct(round == 1)
            .open(volume, "/large");
        let file = file.expect("opened");
        for k in 0..300u64 {
            file.write_all_at(&[round ^ 0x77; 4096], k * 7 % 2304 * 4096)
                .expect("overwritten");
        }
        file.sync_all().expect("as far as it goes");
        volume
            .write("/new", bytes(round, 1 << 20))
            .expect("written");
        volume.sync().expect("as far as it goes");
    }
    for n in 0..2000 {
        volume
            .write(format!("/d0/many-{n}"), b"inline")
            .expect("a file");
    }
}

fn unusable(volume: &Volume) -> u64 {
    volume
        .vfs()
        .stats()
        .get("unusable_blocks")
        .expect("a number")
}

#[test]
fn an_unmount_brings_back_what_was() {
    let memory = formatted(256 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    fill(&volume);
    volume.close().expect("closed");
    for _ in 0..2 {
        let volume = disabled().open_device(memory.clone()).expect("opened");
        assert_as_filled(&volume);
        assert_eq!(unusable(&volume), 0);
        let checkpoints = volume.vfs().stats().get("checkpoints");
        churn(&volume);
        assert!(unusable(&volume) > 1000, "{} unusable", unusable(&volume));
        assert_eq!(volume.vfs().stats().get("checkpoints"), checkpoints);
        assert_eq!(volume.read("/new").expect("read"), bytes(2, 1 << 20));
        volume.close().expect("closed");
        let volume = Volume::options()
            .read_only(true)
            .open_device(memory.clone());
        assert_as_filled(&volume.expect("opened"));
        assert_clean(&memory);
    }
    // A mount that does not disable them enables them.
    let volume = Volume::open_device(memory.clone()).expect("opened");
    assert_as_filled(&volume);
    volume.write("/d0/after", b"kept").expect("written");
    volume.close().expect("closed");
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory.clone())
        .expect("opened");
    assert_eq!(volume.read("/d0/after").expect("read"), b"kept");
    drop(volume);
    assert_clean(&memory);
}

#[test]
fn enabling_them_keeps_what_was_done() {
    let memory = formatted(256 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    fill(&volume);
    volume.close().expect("closed");
    let volume = disabled().open_device(memory.clone()).expect("opened");
    churn(&volume);
    let e = volume
        .vfs()
        .tune("checkpoint_merge", 1)
        .expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    volume.vfs().tune("checkpoint", 1).expect("enabled");
    assert_eq!(unusable(&volume), 0);
    volume.vfs().tune("checkpoint_merge", 1).expect("started");
    let e = volume.vfs().tune("checkpoint", 0).expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    // And works on as ever.
    volume.write("/after", b"kept").expect("written");
    volume.sync().expect("durable");
    churn_and_check(&volume);
    volume.close().expect("closed");
    assert_clean(&memory);
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory)
        .expect("opened");
    assert_eq!(volume.read("/after").expect("read"), b"kept");
    assert_eq!(volume.read("/new").expect("read"), bytes(2, 1 << 20));
    assert!(volume.metadata("/d1/59").is_ok());
}

fn churn_and_check(volume: &Volume) {
    for n in 20..60 {
        let path = format!("/d1/{n}");
        assert_eq!(
            volume.read(&path).expect("read"),
            bytes(n ^ 2, 700 * usize::from(n))
        );
        volume.write(&path, bytes(n, 100)).expect("written");
    }
}

/// The power fails anywhere: what the volume was when it was mounted is there.
#[test]
fn a_crash_brings_back_what_was() {
    let memory = formatted(256 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    fill(&volume);
    volume.close().expect("closed");
    let recording = Arc::new(RecordingDevice::new(&memory));
    let volume = disabled().open_device(recording.clone()).expect("opened");
    let begun = recording.log_len();
    churn(&volume);
    let end = recording.log_len();
    assert!(end > begun + 100, "a lot was written");
    for k in 0..12 {
        let at = begun + (end - begun) * k / 11;
        for policy in [CrashPolicy::AllKept, CrashPolicy::NoneKept] {
            let image = recording.image_at(at, policy);
            if k % 4 == 0 {
                assert_clean(&image);
            }
            let crashed = Volume::open_device(Arc::new(image));
            assert_as_filled(&crashed.expect("opened"));
        }
    }
    drop(volume);
}

/// Room is promised before data is accepted: a full volume says so, and nothing that was accepted is lost.
#[test]
fn a_volume_that_fills_up_says_so() {
    let memory = formatted(128 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    volume.write("/large", bytes(9, 40 << 20)).expect("a file");
    volume.close().expect("closed");
    let volume = disabled().open_device(memory.clone()).expect("opened");
    let mut full = false;
    let mut kept = Vec::new();
    for n in 0..200u64 {
        let path = format!("/f{n}");
        match volume.write(&path, bytes(n as u8, 1 << 20)) {
            Ok(()) => kept.push((path, n as u8)),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                full = true;
                break;
            }
        }
    }
    assert!(full, "40 MB are pinned, and 200 were to be written to 128");
    // Overwrites of what is pinned need room, too.
    let file = OpenOptions::new()
        .write(true)
        .open(&volume, "/large")
        .expect("opened");
    let refused = (0..10_000u64).any(|k| file.write_all_at(&[1; 4096], k * 4096).is_err());
    assert!(refused, "there was room for another 40 MB");
    drop(file);
    volume.sync().expect("nothing that was accepted is lost");
    for (path, n) in &kept {
        assert!(
            volume.read(path).expect("read") == bytes(*n, 1 << 20),
            "{path}"
        );
    }
    // What is freed and not pinned can be used again.
    for (path, _) in &kept[..kept.len() / 2] {
        volume.remove_file(path).expect("removed");
    }
    for n in 0..3u8 {
        volume
            .write("/again", bytes(n, 8 << 20))
            .expect("there is room again");
        volume.sync().expect("written");
    }
    volume.vfs().tune("checkpoint", 1).expect("enabled");
    volume.close().expect("closed");
    assert_clean(&memory);
}

#[test]
fn what_is_refused() {
    let memory = formatted(128 << 20);
    let mut options = disabled();
    options.parts.f2fs.checkpoint_merge = Some(true);
    let e = options.open_device(memory.clone()).expect_err("both");
    assert!(e.to_string().contains("checkpoint_merge"), "{e}");
    // Holes are not filled in lfs mode: they would be hidden.
    let volume = Volume::open_device(memory.clone()).expect("opened");
    for n in 0..300 {
        volume
            .write(format!("/f{n}"), bytes(n as u8, 100_000))
            .expect("a file");
    }
    volume.sync().expect("written");
    for n in (0..300).step_by(2) {
        volume.remove_file(format!("/f{n}")).expect("removed");
    }
    volume.close().expect("closed");
    let mut options = disabled();
    options.parts.f2fs.mode = Mode::Lfs;
    let e = options.open_device(memory.clone()).expect_err("too much");
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    options.parts.f2fs.checkpoint = Checkpointing::Disabled {
        unusable_max: Unusable::Percent(100),
    };
    let volume = options.open_device(memory.clone()).expect("opened");
    volume
        .write("/f1", b"gone with the mount")
        .expect("written");
    volume.close().expect("closed");
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory)
        .expect("opened");
    assert_eq!(volume.read("/f1").expect("read"), bytes(1, 100_000));
}
