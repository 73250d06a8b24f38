//! Devices that fail: every error reaches a caller, nothing hangs, and what was reported durable is there once
//! the device works again, on a volume that e2fsck finds nothing wrong with.
//!
//! Faults are put at the nth request of a fixed piece of work, for every n or a spread of them. Every case runs
//! under a watchdog.

use blockwright_test_support as common;

use blockwright::{Error, ErrorKind, ExtentKind, OpenOptions, Volume, VolumeBuilder, XattrMode};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{FaultyDevice, MemoryDevice, SharedDevice};
use common::testing::{assert_e2fsck_clean, have};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const LIMIT: Duration = Duration::from_secs(60);

fn base(features: &str) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(24 << 20));
    let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
    VolumeBuilder::new()
        .features(features)
        .size(24 << 20)
        .block_size(1024)
        .create_on(&shared)
        .expect("made");
    let v = Volume::open_device(shared).expect("opens");
    v.create_dir("/old").expect("made");
    for i in 0..30 {
        v.write(format!("/old/{i}"), pattern(i, 3000 + 700 * i as usize))
            .expect("written");
    }
    v.close().expect("closed");
    device.snapshot()
}

fn pattern(salt: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (salt as usize * 31 + i * 7 + i / 251) as u8)
        .collect()
}

/// What must be there after the device was healed.
#[derive(Default)]
struct Promised {
    files: BTreeMap<String, Vec<u8>>,
    errors: Vec<Error>,
}

impl Promised {
    fn note<T>(&mut self, result: Result<T, Error>) -> bool {
        result.map_err(|e| self.errors.push(e)).is_ok()
    }

    /// Writes a new file and syncs it; it is promised when both worked.
    fn file(&mut self, v: &Volume, path: &str, bytes: Vec<u8>) {
        let done = v.create_file(path).and_then(|file| {
            file.write_all_at(&bytes, 0)?;
            file.sync_all()
        });
        if self.note(done) {
            self.files.insert(path.to_owned(), bytes);
        }
    }
}

/// The work in which something goes wrong. Files are written once, so that each is promised whole or not at all.
fn work(v: &Volume, promised: &mut Promised) {
    for i in 0..30 {
        let path = format!("/old/{i}");
        let bytes = pattern(i, 3000 + 700 * i as usize);
        match v.read(&path) {
            Ok(read) => assert!(read == bytes, "{path} reads as something else"),
            Err(e) => promised.errors.push(e),
        }
        promised.files.insert(path, bytes);
    }
    promised.file(v, "/first", pattern(100, 20_000));
    let made = v.create_dir_all("/d/e");
    promised.note(made);
    promised.file(v, "/d/e/deep", pattern(101, 150_000));
    for i in 0..12 {
        let wrote = v.write(format!("/d/unsynced{i}"), pattern(i, 9_000));
        promised.note(wrote);
    }
    let set = v.set_xattr("/first", "user.big", [1; 700], XattrMode::Any);
    promised.note(set);
    if promised.note(v.rename("/first", "/d/renamed")) {
        // Until the next sync either name may be the one that survives.
        if let Some(bytes) = promised.files.remove("/first")
            && promised.note(v.sync())
        {
            promised.files.insert("/d/renamed".into(), bytes);
        }
    }
    // Removing what is promised takes the promise back, whether or not it is reported to have worked.
    for i in 0..5 {
        let path = format!("/old/{i}");
        promised.files.remove(&path);
        promised.note(v.remove_file(&path));
    }
    promised.file(v, "/d/last", pattern(102, 40_000));
    promised.note(v.sync());
}

/// Does the work with a rule in force, heals the device, and looks at what is left. Returns how often the rule
/// fired.
fn case(what: &str, base: &MemoryDevice, rule: Rule, fsck: bool) -> u64 {
    let memory = Arc::new(base.snapshot());
    let title = what.to_owned();
    let full = rule.fault == Fault::Errno(ENOSPC);
    common::guarded(what, LIMIT, move || {
        let faulty = Arc::new(FaultyDevice::new(Arc::clone(&memory) as SharedDevice, 1));
        faulty.add(rule);
        let mut promised = Promised::default();
        let opened = Volume::open_device(Arc::clone(&faulty) as SharedDevice);
        match opened {
            Ok(v) => {
                work(&v, &mut promised);
                promised.note(v.close());
            }
            Err(e) => promised.errors.push(e),
        }
        let fired = faulty.fired();
        faulty.heal();
        if full && fired > 0 {
            // The volume needs no repair: it is as after a crash.
            let options = blockwright_check::ext4::CheckOptions::default();
            let copy: SharedDevice = Arc::new(memory.snapshot());
            let report = blockwright_check::ext4::check(copy, &options).expect("checked");
            assert!(report.is_clean(), "{title}: {:?}", report.issues);
            assert!(!promised.errors.is_empty(), "{title}: nothing was told");
        }
        for e in &promised.errors {
            assert!(
                matches!(
                    e.kind(),
                    ErrorKind::Io | ErrorKind::Poisoned | ErrorKind::ReadOnly | ErrorKind::NotFound
                ),
                "{title}: {e} ({:?})",
                e.kind()
            );
        }
        drop(faulty);
        after_healing(&title, &memory, &promised, fsck);
        fired
    })
}

fn after_healing(title: &str, memory: &Arc<MemoryDevice>, promised: &Promised, fsck: bool) {
    let shared = Arc::clone(memory) as SharedDevice;
    let v =
        Volume::open_device(shared).unwrap_or_else(|e| panic!("{title}: does not open again: {e}"));
    for (path, bytes) in &promised.files {
        let read = v
            .read(path)
            .unwrap_or_else(|e| panic!("{title}: promised: {e}\n{:?}", promised.errors));
        assert!(
            read == *bytes,
            "{title}: {path} was promised, and differs\n{:?}",
            promised.errors
        );
    }
    for entry in v.walk("/") {
        entry.unwrap_or_else(|e| panic!("{title}: {e}"));
    }
    v.write("/afterwards", b"works again")
        .unwrap_or_else(|e| panic!("{title}: after healing: {e}"));
    v.close()
        .unwrap_or_else(|e| panic!("{title}: after healing: {e}"));
    if fsck && have("e2fsck") {
        // What went wrong before explains what e2fsck finds; shown when the test fails.
        eprintln!("{title}: {:?}", promised.errors);
        let file = tempfile::NamedTempFile::new().expect("a file");
        memory.save(file.path()).expect("saved");
        assert_e2fsck_clean(file.path());
    }
}

/// Puts the fault at request after request until it no longer fires.
fn sweep(features: &str, ops: Ops, fault: &Fault, step: u64, forever: bool) {
    let base = base(features);
    let mut nth = 0;
    loop {
        let mut rule = Rule::new(ops, fault.clone()).skip(nth);
        if forever {
            rule = rule.always();
        }
        if matches!(fault, Fault::Short) {
            // The format has nothing against a superblock of which one sector of two was written: docs/DURABILITY.md.
            rule.range = 2048..u64::MAX;
        }
        let what = format!("{features}: {fault:?} at {ops:?} {nth}");
        if case(&what, &base, rule, nth % 3 == 0) == 0 {
            break;
        }
        nth += step;
        assert!(nth < 5000, "the work does not end");
    }
    eprintln!("{features}: {fault:?} at {ops:?}: {nth} requests");
}

#[test]
fn writes_fail_once() {
    sweep("", Ops::WRITE, &Fault::Errno(EIO), 1, false);
}

#[test]
fn writes_fail_from_then_on() {
    sweep("orphan_file", Ops::WRITE, &Fault::Errno(EIO), 3, true);
}

#[test]
fn reads_fail() {
    sweep("", Ops::READ, &Fault::Errno(EIO), 1, false);
    sweep("", Ops::READ, &Fault::Errno(EIO), 5, true);
}

#[test]
fn flushes_fail() {
    sweep("", Ops::FLUSH, &Fault::Errno(EIO), 1, false);
    sweep("", Ops::FLUSH, &Fault::Errno(EIO), 2, true);
}

#[test]
fn writes_are_short() {
    sweep("", Ops::WRITE, &Fault::Short, 2, false);
}

#[test]
fn the_device_disappears() {
    sweep("", Ops::all(), &Fault::Gone, 7, false);
}

#[test]
fn the_host_is_full() {
    sweep(
        "",
        Ops::WRITE | Ops::WRITE_ZEROES,
        &Fault::Errno(ENOSPC),
        5,
        true,
    );
}

#[test]
fn without_a_journal() {
    // No promise about consistency after a failure, but neither hangs nor panics.
    let base = base("^has_journal");
    for nth in (0..200).step_by(7) {
        for ops in [Ops::WRITE, Ops::READ, Ops::FLUSH] {
            let memory = Arc::new(base.snapshot());
            common::guarded(&format!("no journal, {ops:?} {nth}"), LIMIT, move || {
                let faulty = Arc::new(FaultyDevice::new(memory, 1));
                faulty.add(Rule::new(ops, Fault::Errno(EIO)).skip(nth));
                let shared = Arc::clone(&faulty) as SharedDevice;
                if let Ok(v) = Volume::open_device(shared) {
                    work(&v, &mut Promised::default());
                    let _ = v.close();
                }
            });
        }
    }
}

/// A file whose place is known, and a rule that fails writes of it.
fn known_place(v: &Volume, path: &str) -> Rule {
    v.write(path, pattern(1, 64 << 10)).expect("written");
    v.sync().expect("durable");
    let extents = v.open_file(path).expect("opens").extents().expect("mapped");
    let ExtentKind::Data(at) = extents[0].kind else {
        panic!("{extents:?}");
    };
    Rule::new(Ops::WRITE, Fault::Errno(EIO)).range(at..at + extents[0].bytes)
}

#[test]
fn a_failed_data_write_is_told_once_to_every_handle() {
    let memory = Arc::new(base("").snapshot());
    common::guarded("data errors", LIMIT, move || {
        let faulty = Arc::new(FaultyDevice::new(memory, 1));
        let shared = Arc::clone(&faulty) as SharedDevice;
        let v = Volume::open_device(shared).expect("opens");
        let rule = known_place(&v, "/f");
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(&v, "/f")
                .expect("opens")
        };
        let (a, b) = (open(), open());
        faulty.add(rule);
        a.write_all_at(&[0xEE; 5000], 1000).expect("cached");
        let e = a.sync_data().expect_err("the write failed");
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        let e = b.sync_all().expect_err("told to this one as well");
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        a.sync_all().expect("told once");
        b.sync_all().expect("told once");
        open().sync_all().expect("opened after it was told");
        assert!(!v.is_read_only(), "only data was lost");
        faulty.heal();
        a.write_all_at(&[0xDD; 5000], 1000).expect("cached");
        a.sync_all().expect("works again");
        v.close().expect("closed");
    });
}

#[test]
fn a_failed_metadata_write_poisons() {
    let memory = Arc::new(base("").snapshot());
    common::guarded("poison", LIMIT, move || {
        let faulty = Arc::new(FaultyDevice::new(Arc::clone(&memory) as SharedDevice, 1));
        let shared = Arc::clone(&faulty) as SharedDevice;
        let v = Volume::open_device(shared).expect("opens");
        let mut promised = Promised::default();
        promised.file(&v, "/kept", pattern(3, 5000));
        faulty.add(Rule::new(Ops::WRITE, Fault::Errno(EIO)).always());
        v.create_dir("/lost").expect("in memory");
        v.sync().expect_err("cannot be made durable");
        assert!(v.is_read_only());
        faulty.heal();
        for e in [
            v.create_dir("/more").expect_err("refused"),
            v.write("/kept", b"x").expect_err("refused"),
            v.sync().expect_err("still not durable"),
        ] {
            assert!(
                matches!(e.kind(), ErrorKind::Poisoned | ErrorKind::ReadOnly),
                "{:?}: {e}",
                e.kind()
            );
        }
        assert!(v.read("/kept").expect("reads") == pattern(3, 5000));
        let e = v.close().expect_err("nothing was saved");
        assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
        after_healing("poison", &memory, &promised, true);
    });
}
