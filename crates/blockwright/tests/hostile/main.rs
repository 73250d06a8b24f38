//! Bad input: whatever the bytes of an image are, opening, walking, reading and writing give a clear error or
//! work. Nothing panics, hangs or takes memory without bounds, and reading changes nothing.
//!
//! Every case runs under a watchdog. Random cases print their seed; `BLOCKWRIGHT_SEED` repeats them.

#[path = "../common/mod.rs"]
mod common;
mod exercise;
mod fuzz;
mod image;
mod strangers;
mod structures;
mod superblock;

use blockwright::VolumeOptions;
use std::time::Duration;

/// No case takes seconds unless something hangs or loops; the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// Far more than caches and copies of images of 12 MiB take, far less than an absurd size asks for.
const MEMORY_MAX: u64 = 1 << 30;

/// Runs one damaged image for writing, and read-only.
fn both(what: &str, bytes: Vec<u8>) -> (exercise::Outcome, exercise::Outcome) {
    common::reset_peak_memory();
    let before = common::resident_memory();
    let copy = bytes.clone();
    let reading = common::guarded(&format!("{what}, read-only"), LIMIT, move || {
        exercise::exercise(&copy, VolumeOptions::read_only())
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
