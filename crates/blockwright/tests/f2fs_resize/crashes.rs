//! A power failure at every moment of a change of size.
//!
//! Every write and flush is recorded. At each cut, with what was not flushed kept, lost, torn or reordered, the volume opens with all its files, and nothing
//! is damaged: the copies of the superblock may differ, and the number of free segments may be too small.

use super::{MIB, clean, contents, cut as front, fill, issues, made, made_by_us, shared};
use blockwright::device::{MemoryDevice, SharedDevice};
use blockwright::reshape::{self, ResizeOptions};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_test_support::testing::{assert_same, have};
use std::collections::HashSet;
use std::sync::Arc;

/// What an interrupted change may leave.
fn harmless(issue: &str) -> bool {
    issue.contains("superblock") || issue.contains("free segments")
}

/// Cuts a change to this size everywhere, and finishes it afterwards.
fn cut(name: &str, base: &Arc<MemoryDevice>, bytes: u64, step: usize) {
    let before = contents(base);
    let recording = Arc::new(RecordingDevice::new(base));
    let device: SharedDevice = recording.clone();
    reshape::resize(&device, &ResizeOptions::to_bytes(bytes)).expect("resized");
    let length = recording.log_len();
    let mut images = 0;
    let mut kinds = HashSet::new();
    for at in (0..=length).step_by(step) {
        let pending = recording.pending_at(at).len();
        let mut policies = vec![CrashPolicy::AllKept];
        if pending > 0 {
            policies.extend([
                CrashPolicy::NoneKept,
                CrashPolicy::Random { seed: at as u64 },
            ]);
        }
        for policy in policies {
            let crashed = Arc::new(recording.image_at(at, policy));
            images += 1;
            let what = format!("{name}: cut {at} of {length}, {policy:?}");
            let found = issues(&crashed);
            assert!(
                found.iter().all(|issue| harmless(issue)),
                "{what}: {found:?}"
            );
            kinds.extend(found.iter().cloned());
            assert_same(&before, &contents(&crashed), &[]);
            if images % 8 == 1 {
                if found.is_empty() {
                    clean(&crashed, &what);
                }
                // The next change finishes it.
                reshape::resize(&shared(&crashed), &ResizeOptions::to_bytes(bytes))
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                let short = front(&crashed, bytes);
                clean(&short, &what);
                assert_same(&before, &contents(&short), &[]);
            }
        }
    }
    println!("{name}: {length} entries, {images} images, {kinds:?}");
    assert!(images > 10, "{name}: only {images} images");
}

#[test]
fn growth_with_larger_areas() {
    let base = made_by_us(64 * MIB, 1600 * MIB);
    fill(&base, 20, 2);
    cut("larger", &base, 1600 * MIB, 1);
}

#[test]
fn growth_within_the_areas() {
    let base = made_by_us(64 * MIB, 80 * MIB);
    fill(&base, 20, 2);
    cut("the end", &base, 80 * MIB, 1);
}

#[test]
fn growth_of_a_volume_of_mkfs_f2fs() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    let base = made(
        &["-O", "extra_attr,sb_checksum,inode_checksum"],
        64 * MIB,
        1200 * MIB,
    );
    fill(&base, 20, 2);
    cut("theirs", &base, 1200 * MIB, 1);
}

#[test]
fn shrinkage() {
    let base = made_by_us(1600 * MIB, 1600 * MIB);
    fill(&base, 20, 2);
    cut("smaller", &base, 90 * MIB, 1);
}

#[test]
fn growth_of_a_volume_with_large_sections() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    let base = made(&["-s", "2", "-z", "2"], 200 * MIB, 1400 * MIB);
    fill(&base, 20, 2);
    cut("sections", &base, 1400 * MIB, 2);
}

#[test]
fn growth_of_a_full_volume() {
    // In several steps.
    let base = made_by_us(100 * MIB, 60_000 * MIB);
    let volume = blockwright::Volume::open_device(shared(&base)).expect("opened");
    let mut n = 0;
    while volume
        .write(format!("/{n}"), vec![n as u8; 300_000])
        .is_ok()
    {
        n += 1;
    }
    let _left = volume.remove_file(format!("/{n}"));
    volume.close().expect("closed");
    cut("full", &base, 60_000 * MIB, 11);
}
