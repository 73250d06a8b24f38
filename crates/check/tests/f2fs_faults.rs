//! A repair of an f2fs volume that a power failure cuts short leaves the volume as it was, or
//! repaired; a failing device is an error, and says what was being read or written.

use blockwright_test_support::lab as common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwright_check::Mode;
use blockwright_check::f2fs::{CheckError, CheckOptions, check};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{CrashPolicy, FaultyDevice, RecordingDevice, SharedDevice};
use blockwright_ondisk::f2fs::SegNo;
use common::Rng;
use common::f2fs::{F2Lab, F2Volume, FULL, f2fs_tools, names, repair_f2fs, show, verify_f2fs};

fn options(mode: Mode) -> CheckOptions {
    CheckOptions {
        mode,
        ..CheckOptions::default()
    }
}

/// A volume with something wrong in each kind of structure.
fn damaged(lab: &F2Lab) -> F2Volume {
    let mut v = lab.volume(&["-O", FULL]);
    v.edit_inode(v.lookup("dir/sub/middle"), |h| h.blocks.set(9));
    v.edit_inode(v.lookup("hard"), |h| h.links.set(9));
    let dir = v.lookup("many");
    v.edit_dir(dir, "a-file-with-a-long-name-0200", |bytes, _, slot| {
        // Its hash.
        bytes[30 + slot * 11] ^= 0x55;
    });
    let segment = v
        .pack
        .checkpoint
        .raw
        .log(blockwright_ondisk::f2fs::Log::WarmData);
    let mut entry = v.sit_entry(segment.segment);
    entry.valid.set(100, true);
    entry.valid.set(0, false);
    v.set_sit(segment.segment, entry);
    v.edit(v.geo.ssa_block(SegNo(6)).unwrap(), |b| b[0] ^= 3);
    v
}

/// Stops at call `stop` of the function that is told the progress. How often it was called.
fn stopping(stop: usize) -> (CheckOptions, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let stopped = CheckOptions {
        progress: Some(Arc::new(move |_| {
            match seen.fetch_add(1, Ordering::Relaxed) < stop {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })),
        ..options(Mode::Yes)
    };
    (stopped, calls)
}

/// A repair that is stopped has written nothing.
#[test]
fn a_repair_may_be_stopped_anywhere() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let v = damaged(&lab);
    let before = v.device.to_vec();
    let (all, calls) = stopping(usize::MAX);
    let device = Arc::new(v.device.snapshot());
    check(device.clone(), &all).unwrap();
    assert!(device.to_vec() != before, "nothing was repaired");
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls >= 5, "{calls} calls");
    for stop in 0..calls {
        let (stopped, seen) = stopping(stop);
        let device = Arc::new(v.device.snapshot());
        let error = check(device.clone(), &stopped).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "interrupted; nothing was changed", "call {stop}");
        assert_eq!(
            seen.load(Ordering::Relaxed),
            stop + 1,
            "called after the stop"
        );
        assert!(device.to_vec() == before, "changed before call {stop}");
    }
    let (report, after) = repair_f2fs(&v.device, Mode::Yes);
    report.unwrap();
    assert!(verify_f2fs(&after).unwrap().is_clean());
}

#[test]
fn a_repair_may_be_cut_anywhere() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let v = damaged(&lab);
    let before = names(&verify_f2fs(&v.device).unwrap());
    assert!(before.len() >= 5, "{before:?}");
    let recording = Arc::new(RecordingDevice::new(&v.device));
    let device: SharedDevice = recording.clone();
    check(device, &options(Mode::Yes)).unwrap();
    let log = recording.log_len();
    assert!(log > 4, "{log}");
    let (mut old, mut new) = (0, 0);
    for cut in 0..=log {
        for policy in [
            CrashPolicy::AllKept,
            CrashPolicy::NoneKept,
            CrashPolicy::Random { seed: cut as u64 },
        ] {
            let torn = recording.image_at(cut, policy);
            let report = verify_f2fs(&torn).unwrap();
            if report.is_clean() {
                new += 1;
            } else {
                // Summaries are written in place, and may be right already.
                let found = names(&report);
                let missing: Vec<_> = before.iter().filter(|n| !found.contains(n)).collect();
                let known = |n: &String| before.contains(n) || n == "CheckpointBad";
                assert!(found.iter().all(known), "cut {cut} {policy:?}: {found:?}");
                assert!(
                    missing.iter().all(|n| *n == "SummaryEntries"),
                    "{missing:?}"
                );
                old += 1;
            }
            let (report, after) = repair_f2fs(&torn, Mode::Yes);
            let again = verify_f2fs(&after).unwrap();
            let report = report.unwrap();
            assert!(
                again.is_clean(),
                "cut {cut} {policy:?}: {}then {}",
                show(&report),
                show(&again)
            );
            if cut % 4 == 0 {
                let (clean, text) = lab.fsck(&after);
                assert!(clean, "cut {cut} {policy:?}: {text}");
            }
        }
    }
    assert!(old > 0 && new > 0, "{old} as before, {new} repaired");
}

#[test]
fn safe_repairs_are_made_without_asking_and_others_not() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let mut v = lab.volume(&["-O", FULL]);
    v.edit_checkpoint(|cp| cp.raw.valid_block_count.set(17));
    v.edit_inode(v.lookup("hard"), |h| h.links.set(9));
    let (report, after) = repair_f2fs(&v.device, Mode::Preen);
    let report = report.unwrap();
    assert!(
        report.changed && !report.has_uncorrected(),
        "{}",
        show(&report)
    );
    assert!(verify_f2fs(&after).unwrap().is_clean());
    assert!(lab.fsck(&after).0);
    // A name that cannot be kept is not removed without asking; then nothing is written at all.
    let ino = v.lookup("dir/sub/middle");
    v.edit_inode(ino, |h| h.mode.set(0));
    let (report, after) = repair_f2fs(&v.device, Mode::Preen);
    let report = report.unwrap();
    assert!(
        !report.changed && report.has_uncorrected(),
        "{}",
        show(&report)
    );
    assert_eq!(after.to_vec(), v.device.to_vec());
}

#[test]
fn failing_devices_are_errors() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let v = damaged(&lab);
    let mut rng = Rng::new(3);
    for round in 0..40u64 {
        let ops = if round % 2 == 0 {
            Ops::READ
        } else {
            Ops::WRITE
        };
        let fault = match round % 3 {
            0 => Fault::Errno(5),
            1 => Fault::Short,
            _ => Fault::Gone,
        };
        let inner: SharedDevice = Arc::new(v.device.snapshot());
        let faulty = Arc::new(FaultyDevice::new(inner, round));
        faulty.add(Rule::new(ops, fault).skip(rng.below(20)));
        let mode = if round % 4 == 0 {
            Mode::ReadOnly
        } else {
            Mode::Yes
        };
        match check(faulty.clone(), &options(mode)) {
            Ok(_) => assert_eq!(faulty.fired(), 0, "round {round}: a failure went unnoticed"),
            Err(error) => {
                assert!(matches!(error, CheckError::Device { .. }), "{error}");
                assert!(error.to_string().contains(": device "), "{error}");
            }
        }
    }
}

#[test]
fn what_lost_its_name_is_kept() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    for (features, into) in [("lost_found,extra_attr", "lost+found/"), ("extra_attr", "")] {
        let v = lab.volume(&["-O", features]);
        let (dir, sub) = (v.lookup("dir"), v.lookup("dir/sub"));
        let middle = v.lookup("dir/sub/middle");
        v.edit_dir(dir, "sub", |bytes, _, slot| {
            bytes[slot / 8] &= !(1 << (slot % 8))
        });
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        assert!(!report.unwrap().has_uncorrected());
        let after = F2Volume::new(after);
        let path = format!("{into}lost_found_{}/middle", sub.0);
        assert_eq!(after.lookup(&path), middle, "{features}");
        assert!(verify_f2fs(&after.device).unwrap().is_clean());
        let (clean, text) = lab.fsck(&after.device);
        assert!(clean, "{features}: {text}");
    }
}

/// A size for users below the blocks in use: the size is wrong, not the count, and both packs end with the right one.
#[test]
fn a_size_for_users_below_the_blocks_in_use_is_restored() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let mut v = lab.volume(&["-O", FULL]);
    let size = v.pack.checkpoint.raw.user_block_count.get();
    v.edit_checkpoint(|cp| cp.raw.user_block_count.set(345));
    let (report, after) = repair_f2fs(&v.device, Mode::Yes);
    let report = report.unwrap();
    assert!(report.changed, "{}", show(&report));
    assert!(verify_f2fs(&after).unwrap().is_clean());
    assert!(lab.fsck(&after).0);
    let repaired = F2Volume::new(after);
    assert_eq!(repaired.pack.checkpoint.raw.user_block_count.get(), size);
}
