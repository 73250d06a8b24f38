//! Journals on devices of their own, and what a failure leaves of them.

use blockwright::build::JournalBuilder;
use blockwright::device::{MemoryDevice, SharedDevice};
use blockwright::reshape::ExternalJournal;
use blockwright::{ErrorKind, VolumeBuilder};
use blockwright_device::FaultyDevice;
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use std::sync::Arc;

/// The journal of a volume that could not be made serves another try.
#[test]
fn a_volume_that_fails_leaves_its_journal_free() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(8 << 20));
    JournalBuilder::new().create_on(&device).expect("a journal");
    let journal = ExternalJournal { device, number: 0 };
    let builder = VolumeBuilder::new().journal_device(journal.clone());
    let memory: SharedDevice = Arc::new(MemoryDevice::new(32 << 20));
    let faulty = Arc::new(FaultyDevice::new(memory, 1));
    let rule = Rule::new(Ops::WRITE | Ops::WRITE_ZEROES, Fault::Errno(28));
    faulty.add(rule.skip(3).always());
    let failing: SharedDevice = Arc::clone(&faulty) as SharedDevice;
    builder.create_on(&failing).expect_err("no space");
    assert!(faulty.fired() > 0);
    assert!(journal.read().expect("a journal").users().is_empty());
    let device: SharedDevice = Arc::new(MemoryDevice::new(32 << 20));
    let made = builder.create_on(&device).expect("made");
    assert_eq!(journal.read().expect("a journal").users(), [made.uuid]);
}

/// A journal in use is neither made longer nor written.
#[test]
fn a_journal_in_use_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("log.img");
    JournalBuilder::new()
        .size(8 << 20)
        .create(&path)
        .expect("a journal");
    let before = std::fs::read(&path).expect("read");
    let held = blockwright::device::open(&path, Default::default()).expect("opened");
    let longer = JournalBuilder::new().size(16 << 20);
    let error = longer.create(&path).expect_err("in use");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(std::fs::read(&path).expect("read") == before);
    drop(held);
    let made = longer.create(&path).expect("free");
    assert_eq!(made.bytes, 16 << 20);
}
