//! Bad input: whatever the bytes of an image are, opening, walking, reading and writing give a clear error or
//! work. Nothing panics, hangs or takes memory without bounds, and reading changes nothing.
//!
//! Every case runs under a watchdog. Random cases print their seed; `BLOCKWRIGHT_SEED` repeats them.

use blockwright_test_support as common;
mod exercise;
mod fast_commits;
mod fields;
mod fields_f2fs;
mod fuzz;
mod image;
mod judge;
mod records;
mod strangers;
mod structures;
mod superblock;

use blockwright::VolumeOptions;
use std::time::Duration;

/// No case takes seconds unless something hangs or loops; the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// Far more than caches and copies of images of 12 MiB take, far less than an absurd size asks for.
const MEMORY_MAX: u64 = 1 << 30;

/// Values that break assumptions more often than random ones.
const VALUES: [u32; 16] = [
    0,
    1,
    2,
    3,
    8,
    12,
    0xFF,
    0x400,
    0x7FFF,
    0x8000,
    0xFFFF,
    0xF30A,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFE,
    0xFFFF_FFFF,
];

/// Runs this many rounds of a test and those that found something once, or those of `BLOCKWRIGHT_FIELDS=FROM..TO`; those
/// that fail are told of in the end.
fn rounds(own: u64, once: &[u64], mut round: impl FnMut(u64)) {
    let all: Vec<u64> = match std::env::var("BLOCKWRIGHT_FIELDS") {
        Ok(text) => {
            let (from, to) = text.split_once("..").expect("FROM..TO");
            (from.parse().expect("a number")..to.parse().expect("a number")).collect()
        }
        Err(_) => (0..own).chain(once.iter().copied()).collect(),
    };
    let mut failed = Vec::new();
    for n in all {
        let one = std::panic::AssertUnwindSafe(|| round(n));
        if std::panic::catch_unwind(one).is_err() {
            failed.push(n);
        }
    }
    assert!(failed.is_empty(), "rounds {failed:?}");
}

/// Runs one damaged image for writing, and read-only.
fn both(what: &str, bytes: Vec<u8>) -> (exercise::Outcome, exercise::Outcome) {
    common::reset_peak_memory();
    let before = common::resident_memory();
    let copy = bytes.clone();
    let reading = common::guarded(&format!("{what}, read-only"), LIMIT, move || {
        exercise::exercise(&copy, VolumeOptions::new().read_only(true))
    });
    let writing = common::guarded(what, LIMIT, move || {
        exercise::exercise(&bytes, VolumeOptions::default())
    });
    // Other tests of this program run at the same time, each with a few copies of its image.
    let more = common::peak_memory().saturating_sub(before);
    assert!(more < MEMORY_MAX, "{what}: {more} bytes of memory");
    (reading, writing)
}

#[test]
fn an_undamaged_image_has_no_errors() {
    for features in ["inline_data,orphan_file", "^metadata_csum", "^has_journal"] {
        let (reading, writing) = both(features, image::make(features).0);
        assert_eq!(
            (reading.text(), writing.text()),
            (String::new(), String::new())
        );
    }
}
