//! All workloads of one operation, and a sample of those of two and three, cut everywhere. `cargo xtask crash ace` runs all of
//! two.

use blockwright_crash::Format;
use blockwright_crash::ace::run;
use blockwright_crash::script::{Sequence, drawn, sequences};

/// Workloads of one operation, and as many drawn ones of more as the time for tests allows.
fn sample(first: u64) -> Vec<Sequence> {
    let mut all = sequences(1, &[]);
    all.extend((first..first + 300).map(|seed| drawn(2, seed)));
    all.extend((first..first + 60).map(|seed| drawn(3, seed)));
    all
}

fn short(format: Format, first: u64) {
    let done = run(format, &sample(first), 400).unwrap_or_else(|e| panic!("{e}"));
    println!("{format:?}: {done:?}");
    assert!(
        done.workloads > 150 && done.states > 1000,
        "hardly anything was cut: {done:?}"
    );
}

#[test]
fn ext4_keeps_its_promises_in_short_workloads() {
    short(Format::Ext4, 0);
}

#[test]
fn f2fs_keeps_its_promises_in_short_workloads() {
    if blockwright_oracles::have(&["mkfs.f2fs", "fsck.f2fs"]) {
        short(Format::F2fs, 1000);
    }
}
