//! Merged checkpoints of f2fs: one for many who ask, none who waits forever, and what it says of itself.

use crate::common::f2fs::{assert_clean, formatted};
use blockwright::{ErrorKind, OpenOptions, Volume, VolumeOptions};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{FaultyDevice, MemoryDevice, SharedDevice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn options(merge: bool) -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.parts.f2fs.checkpoint_merge = Some(merge);
    options
}

fn count(volume: &Volume, name: &str) -> u64 {
    let stats = volume.vfs().stats();
    stats.get(name).unwrap_or_else(|| panic!("no {name}"))
}

/// One round of who makes names durable: a file, and the directory it is in.
fn create_and_sync(volume: &Volume, dir: &str, name: &str) -> blockwright::Result<()> {
    volume.write(format!("{dir}/{name}"), b"x")?;
    OpenOptions::new().read(true).open(volume, dir)?.sync_all()
}

/// `threads` make `rounds` files each, syncing their directory after each.
fn storm(volume: &Volume, threads: usize, rounds: usize) {
    let barrier = Barrier::new(threads);
    for t in 0..threads {
        volume.create_dir(format!("/d{t}")).expect("a directory");
    }
    std::thread::scope(|s| {
        for t in 0..threads {
            let barrier = &barrier;
            s.spawn(move || {
                barrier.wait();
                for n in 0..rounds {
                    create_and_sync(volume, &format!("/d{t}"), &n.to_string()).expect("durable");
                }
            });
        }
    });
}

/// A device whose flushes take as long as those of real ones: callers pile up.
fn slow(memory: &Arc<MemoryDevice>) -> SharedDevice {
    let slow = FaultyDevice::new(Arc::clone(memory) as SharedDevice, 1);
    slow.add(Rule::new(Ops::FLUSH, Fault::Delay(Duration::from_millis(2))).always());
    Arc::new(slow)
}

#[test]
fn many_share_a_checkpoint() {
    const ASKED: u64 = 16 * 15;
    let storm_of = |merge: bool| {
        let memory = formatted(256 << 20);
        let volume = options(merge).open_device(slow(&memory)).expect("opened");
        storm(&volume, 16, 15);
        let stats = volume.vfs().stats();
        volume.close().expect("closed");
        assert_clean(&memory);
        stats
    };
    let merged = storm_of(true);
    let get = |name| merged.get(name).expect("a number");
    println!("{ASKED} fsyncs: {} checkpoints", get("ckpt_merge_issued"));
    assert!(get("ckpt_merge_total") >= ASKED);
    assert!(
        get("ckpt_merge_issued") * 4 < ASKED,
        "{}",
        get("ckpt_merge_issued")
    );
    assert_eq!(get("ckpt_merge_queued"), 0);
    assert_eq!(get("checkpoint_merge"), 1);
    assert!(get("ckpt_merge_peak_ms") >= 2, "flushes take two of them");
    assert!(get("ckpt_merge_peak_ms") >= get("ckpt_merge_cur_ms"));
    assert_eq!(get("ckpt_merge_batch"), get("ckpt_merge_issued"));

    let alone = storm_of(false);
    let get = |name| alone.get(name).expect("a number");
    assert_eq!((get("checkpoint_merge"), get("ckpt_merge_total")), (0, 0));
    // Another caller's checkpoint may have contained the change; no caller waited for that.
    assert!(get("checkpoints") > merged.get("checkpoints").expect("a number"));
}

#[test]
fn the_option_starts_and_stops_the_daemon() {
    let memory = formatted(256 << 20);
    let volume = options(true).open_device(slow(&memory)).expect("opened");
    let tune = |name: &str, value: u64| volume.vfs().tune(name, value);
    let shown = |volume: &Volume| {
        let stats = volume.vfs().stats();
        let all = stats.metrics();
        let found = all.iter().find(|m| m.name == "mount_options");
        format!("{:?}", found.expect("options").value)
    };
    assert!(shown(&volume).contains("checkpoint_merge"));
    assert!(!shown(&volume).contains("nocheckpoint_merge"));
    tune("checkpoint_merge", 0).expect("stopped");
    tune("checkpoint_merge", 0).expect("stopped already");
    assert!(shown(&volume).contains("nocheckpoint_merge"));
    let before = (
        count(&volume, "ckpt_merge_total"),
        count(&volume, "checkpoints"),
    );
    create_and_sync(&volume, "/", "alone").expect("durable");
    assert_eq!(count(&volume, "ckpt_merge_total"), before.0);
    assert!(count(&volume, "checkpoints") > before.1);
    tune("checkpoint_merge", 1).expect("started");
    tune("checkpoint_merge", 1).expect("started already");
    create_and_sync(&volume, "/", "served").expect("durable");
    assert!(count(&volume, "ckpt_merge_total") > before.0);
    tune("ckpt_thread_ioprio", 7).expect("set");
    assert!(tune("ckpt_thread_ioprio", 8).is_err());

    // On and off again while callers ask: no caller waits forever, and no request is forgotten.
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let switch = s.spawn(|| {
            let mut n = 0u64;
            while !done.load(Ordering::Relaxed) || n < 20 {
                volume
                    .vfs()
                    .tune("checkpoint_merge", n % 2)
                    .expect("switched");
                n += 1;
            }
        });
        storm(&volume, 8, 15);
        done.store(true, Ordering::Relaxed);
        switch.join().expect("the switch");
    });
    volume.close().expect("closed");
    assert_clean(&memory);
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory.clone())
        .expect("opened");
    for t in 0..8 {
        assert_eq!(
            volume.read_dir(format!("/d{t}")).expect("listed").count(),
            15
        );
    }
}

/// What was fsynced is there after the power failed, at once, without a word from the volume.
#[test]
fn what_was_merged_is_durable() {
    let recording = Arc::new(blockwright_device::RecordingDevice::new(&formatted(
        256 << 20,
    )));
    let volume = options(true)
        .open_device(recording.clone())
        .expect("opened");
    let threads = 8;
    let barrier = Barrier::new(threads);
    let cuts: Vec<(usize, usize, usize)> = std::thread::scope(|s| {
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                let (barrier, volume, recording) = (&barrier, &volume, &recording);
                s.spawn(move || {
                    volume.create_dir(format!("/d{t}")).expect("a directory");
                    barrier.wait();
                    (0..6)
                        .map(|n| {
                            let name = n.to_string();
                            create_and_sync(volume, &format!("/d{t}"), &name).expect("durable");
                            (recording.log_len(), t, n)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        handles
            .into_iter()
            .flat_map(|h| h.join().expect("a thread"))
            .collect()
    });
    assert!(count(&volume, "ckpt_merge_total") > count(&volume, "ckpt_merge_issued"));
    for (at, t, n) in cuts {
        let image: SharedDevice =
            Arc::new(recording.image_at(at, blockwright_device::CrashPolicy::NoneKept));
        let volume = Volume::options()
            .read_only(true)
            .open_device(image)
            .expect("opened");
        for name in 0..=n {
            let path = format!("/d{t}/{name}");
            assert!(volume.metadata(&path).is_ok(), "{path} is lost at {at}");
        }
    }
    volume.close().expect("closed");
}

/// The checkpoint fails: every caller that waited for it gets the error, and none is left waiting.
#[test]
fn a_failure_reaches_everybody() {
    let memory = formatted(256 << 20);
    let faulty = Arc::new(FaultyDevice::new(memory as SharedDevice, 1));
    faulty.add(Rule::new(Ops::FLUSH, Fault::Delay(Duration::from_millis(5))).always());
    let volume = options(true)
        .open_device(faulty.clone() as SharedDevice)
        .expect("opened");
    const THREADS: usize = 12;
    for t in 0..THREADS {
        volume.create_dir(format!("/d{t}")).expect("a directory");
    }
    volume.sync().expect("durable");
    let barrier = Barrier::new(THREADS + 1);
    let failed = std::thread::scope(|s| {
        let handles: Vec<_> = (0..THREADS)
            .map(|t| {
                let (barrier, volume) = (&barrier, &volume);
                s.spawn(move || {
                    barrier.wait();
                    for n in 0..1000 {
                        if create_and_sync(volume, &format!("/d{t}"), &n.to_string()).is_err() {
                            return true;
                        }
                    }
                    false
                })
            })
            .collect();
        barrier.wait();
        // Some have succeeded by then.
        while count(&volume, "ckpt_merge_issued") < 5 {
            std::thread::yield_now();
        }
        faulty.heal();
        faulty.add(Rule::new(Ops::FLUSH, Fault::Errno(5)).always());
        handles.into_iter().all(|h| h.join().expect("a thread"))
    });
    assert!(failed, "a caller got no error");
    let e = volume.sync().expect_err("poisoned");
    assert!(
        matches!(
            e.kind(),
            ErrorKind::Poisoned | ErrorKind::ReadOnly | ErrorKind::Io
        ),
        "{e}"
    );
    assert_eq!(count(&volume, "ckpt_merge_queued"), 0);
    drop(volume);
}
