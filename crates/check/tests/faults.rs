//! A repair cut short by a power failure can be repaired; a failing device is an error, and says
//! what was being read or written.

use blockwright_test_support::lab as common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwright_check::Mode;
use blockwright_check::ext4::{CheckError, CheckOptions, check};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{
    CrashPolicy, FaultyDevice, MemoryDevice, OpenMode, RecordingDevice, SharedDevice,
};
use blockwright_ondisk::ext4::Ino;
use common::volume::Volume;
use common::{Lab, Rng, repair, show, tools, verify};

fn options(mode: Mode) -> CheckOptions {
    CheckOptions {
        mode,
        ..CheckOptions::default()
    }
}

/// A volume with something wrong in each kind of structure.
fn damaged(lab: &Lab) -> Vec<u8> {
    let image = lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap();
    let mut v = Volume::new(image);
    let (dir, big) = (v.lookup("dir"), v.lookup("dir/big"));
    let block = v.blocks(dir)[0];
    v.block(block)[40] ^= 0xFF;
    v.edit_inode(big, |i| i.links = 9);
    let sparse = v.lookup("sparse");
    let tree = v.extent_blocks(sparse)[0];
    v.block(tree)[0] ^= 1;
    let many = v.lookup("many");
    let root = v.blocks(many)[0];
    v.block(root)[34] ^= 1;
    v.edit_block_bitmap(0, |b| b[300] ^= 0xF0);
    v.edit_desc(0, |d| d.free_inodes += 3);
    v.edit_inode(Ino::RESIZE, |i| i.links = 2);
    v.image
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
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = damaged(&lab);
    let (all, calls) = stopping(usize::MAX);
    let device = Arc::new(MemoryDevice::from_image(&image));
    check(device.clone(), &all).unwrap();
    let repaired = device.to_vec();
    assert!(repaired != image, "nothing was repaired");
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls >= 5, "{calls} calls");
    for stop in 0..calls {
        let (stopped, seen) = stopping(stop);
        let device = Arc::new(MemoryDevice::from_image(&image));
        let error = check(device.clone(), &stopped).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "interrupted; nothing was changed", "call {stop}");
        assert_eq!(
            seen.load(Ordering::Relaxed),
            stop + 1,
            "called after the stop"
        );
        assert!(device.to_vec() == image, "changed before call {stop}");
        let (report, after) = repair(&device.to_vec(), Mode::Yes);
        report.unwrap();
        assert!(verify(&after).unwrap().is_clean(), "call {stop}");
    }
}

#[test]
fn a_repair_may_be_cut_anywhere() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = damaged(&lab);
    let recording = Arc::new(RecordingDevice::new(&MemoryDevice::from_image(&image)));
    let device: SharedDevice = recording.clone();
    check(device, &options(Mode::Yes)).unwrap();
    let log = recording.log_len();
    assert!(log > 5);
    for cut in 0..=log {
        for policy in [
            CrashPolicy::AllKept,
            CrashPolicy::NoneKept,
            CrashPolicy::Random { seed: cut as u64 },
        ] {
            let torn = recording.image_at(cut, policy).to_vec();
            let (report, after) = repair(&torn, Mode::Yes);
            let again = verify(&after).unwrap();
            assert!(
                again.is_clean(),
                "cut {cut} {policy:?}: {}then {}",
                show(&report.unwrap()),
                show(&again)
            );
            if cut % 7 == 0 {
                let (code, text) = lab.e2fsck(&after);
                assert_eq!(code, 0, "cut {cut} {policy:?}: {text}");
            }
        }
    }
}

#[test]
fn failing_devices_are_errors() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = damaged(&lab);
    let mut rng = Rng::new(3);
    for round in 0..60u64 {
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
        let inner: SharedDevice = Arc::new(MemoryDevice::from_image(&image));
        let faulty = Arc::new(FaultyDevice::new(inner, round));
        faulty.add(Rule::new(ops, fault).skip(rng.below(40)));
        let mode = if round % 4 == 0 {
            Mode::ReadOnly
        } else {
            Mode::Yes
        };
        match check(faulty.clone(), &options(mode)) {
            Ok(_) => assert_eq!(faulty.fired(), 0, "round {round}: a failure went unnoticed"),
            Err(error) => {
                assert!(matches!(error, CheckError::Device { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains(": device "), "{text}");
            }
        }
    }
    // The host's own device works, too: a file.
    let path = lab.dir.path().join("file.img");
    std::fs::write(&path, &image).unwrap();
    let device = blockwright_device::HostDevice::open(&path, OpenMode::default()).unwrap();
    check(device, &options(Mode::Yes)).unwrap();
    assert_eq!(lab.e2fsck_path(&path).0, 0);
}
