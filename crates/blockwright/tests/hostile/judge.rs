//! What is done to every damaged image, whatever its format.

use crate::{LIMIT, MEMORY_MAX, common, exercise};
use blockwright::{ErrorKind, VolumeOptions};
use blockwright_check::Mode;
use blockwright_device::{MemoryDevice, SharedDevice};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Ext4,
    F2fs,
}

/// What a check came to: everything right (again), or not.
type Checked = Result<(bool, bool, String), String>;

fn check(format: Format, device: &Arc<MemoryDevice>, mode: Mode) -> Checked {
    let shared = Arc::clone(device) as SharedDevice;
    let text = |issues: &[String]| issues[..issues.len().min(12)].join("\n");
    match format {
        Format::Ext4 => {
            let options = blockwright_check::ext4::CheckOptions {
                mode,
                ..Default::default()
            };
            let r = blockwright_check::ext4::check(shared, &options).map_err(|e| e.to_string())?;
            let issues: Vec<String> = r.issues.iter().map(|i| format!("{i}")).collect();
            Ok((r.is_clean(), r.has_uncorrected(), text(&issues)))
        }
        Format::F2fs => {
            let options = blockwright_check::f2fs::CheckOptions {
                mode,
                ..Default::default()
            };
            let r = blockwright_check::f2fs::check(shared, &options).map_err(|e| e.to_string())?;
            let issues: Vec<String> = r.issues.iter().map(|i| format!("{i}")).collect();
            Ok((r.is_clean(), r.has_uncorrected(), text(&issues)))
        }
    }
}

/// Checks read-only and with repair; what was repaired is clean, and the engine reads all of it.
fn checks(format: Format, what: &str, device: &MemoryDevice) {
    let untouched = Arc::new(device.snapshot());
    let found = check(format, &untouched, Mode::ReadOnly);
    assert!(
        untouched.to_vec() == device.to_vec(),
        "{what}: checking wrote"
    );
    let repaired = Arc::new(device.snapshot());
    let Ok((_, left, issues)) = check(format, &repaired, Mode::Yes) else {
        return;
    };
    if left {
        return;
    }
    let again = check(format, &repaired, Mode::ReadOnly);
    assert!(
        matches!(again, Ok((true, ..))),
        "{what}: repaired:\n{issues}\nbut then: {again:?}"
    );
    // A volume that was right is judged like one that was set right.
    let clean = found.is_ok_and(|(clean, ..)| clean);
    let volumes = [Some(&repaired), clean.then_some(&untouched)];
    for device in volumes.into_iter().flatten() {
        let copy = Arc::new(device.snapshot()) as SharedDevice;
        let outcome = exercise::exercise_device(copy, &VolumeOptions::default());
        let damage: Vec<String> = outcome
            .errors()
            .filter(|e| matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Poisoned))
            .map(ToString::to_string)
            .collect();
        assert!(
            damage.is_empty(),
            "{what}: the checker is content, the engine is not: {damage:?}\nrepaired:\n{issues}"
        );
    }
}

/// Opens, walks, reads, writes, checks, repairs: no panic, no hang, no memory without bounds.
pub fn judge(format: Format, what: &str, device: &MemoryDevice) {
    common::reset_peak_memory();
    let before = common::resident_memory();
    let run = |how: &str, options: VolumeOptions| {
        let copy = Arc::new(device.snapshot()) as SharedDevice;
        common::guarded(&format!("{what}, {how}"), LIMIT, move || {
            exercise::exercise_device(copy, &options)
        })
    };
    run("read-only", VolumeOptions::new().read_only(true));
    run("writing", VolumeOptions::default());
    let (copy, name) = (device.snapshot(), what.to_owned());
    common::guarded(&format!("{what}, checked"), LIMIT, move || {
        checks(format, &name, &copy);
    });
    let more = common::peak_memory().saturating_sub(before);
    assert!(more < MEMORY_MAX, "{what}: {more} bytes of memory");
}
