//! A check of either format, with its issues as data.

use blockwright::{Error, ErrorKind, Result};
use blockwright_check::{
    Issue, Mode, Outcome, ProgressFn, Report, Severity, Stats, ext4, f2fs, fsck_exit_code,
};
use blockwright_device::SharedDevice;
use std::fmt::{Debug, Display};
use std::sync::Arc;

/// What a check does and tells.
#[derive(Clone, Default)]
pub struct CheckOptions {
    /// What may be changed.
    pub mode: Mode,
    /// Keep at most this many issues; the rest is counted. `None`: 10 000.
    pub issues_max: Option<usize>,
    /// Called with the progress, from any thread.
    pub progress: Option<ProgressFn>,
    /// ext4: use the superblock in this block instead of the primary one.
    pub superblock: Option<u64>,
    /// ext4: the device that the journal is on, when it is not on the volume.
    pub journal: Option<SharedDevice>,
    /// f2fs: give up what fsync wrote since the last checkpoint, where a mount refuses to recover it. Only with [`Mode::Yes`].
    pub discard_fsynced: bool,
}

/// An issue of either format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueData {
    /// The kind of the issue: a stable name, as `blockwright check --json` has it.
    pub kind: String,
    /// How bad it is.
    pub severity: Severity,
    /// What became of it.
    pub outcome: Outcome,
    /// What was found, and where, for people.
    pub text: String,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// The findings, in the order found.
    pub issues: Vec<IssueData>,
    /// Findings beyond those kept.
    pub suppressed: u64,
    /// Nothing worse than notes was found.
    pub clean: bool,
    /// Something worse than a note is still there.
    pub uncorrected: bool,
    /// Something was written to the device.
    pub changed: bool,
    /// The exit code that fsck programs use: 0, 1 or 4.
    pub exit_code: u8,
    /// What was on the volume.
    pub stats: Stats,
}

fn data<K: Debug + Display>(report: Report<K>) -> CheckReport {
    let told = |issue: &Issue<K>| IssueData {
        kind: issue.kind_name(),
        severity: issue.severity,
        outcome: issue.outcome,
        text: issue.kind.to_string(),
    };
    CheckReport {
        issues: report.issues.iter().map(told).collect(),
        suppressed: report.suppressed,
        clean: report.is_clean(),
        uncorrected: report.has_uncorrected(),
        changed: report.changed,
        exit_code: fsck_exit_code(&report),
        stats: report.stats,
    }
}

pub(crate) fn of_ext4(error: ext4::CheckError) -> Error {
    use ext4::CheckError as E;
    let kind = match &error {
        E::Device { source, .. } => Error::from(source.clone()).kind(),
        E::Unsupported { .. } => ErrorKind::UnsupportedFeature,
        E::ReadOnlyDevice => ErrorKind::ReadOnly,
        E::Interrupted { .. } => ErrorKind::Interrupted,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}

pub(crate) fn of_f2fs(error: f2fs::CheckError) -> Error {
    use f2fs::CheckError as E;
    let kind = match &error {
        E::Device { source, .. } => Error::from(source.clone()).kind(),
        E::Unsupported { .. } => ErrorKind::UnsupportedFeature,
        E::ReadOnlyDevice => ErrorKind::ReadOnly,
        E::Interrupted => ErrorKind::Interrupted,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}

/// Refuses options that would change nothing, because they are for the other format or mode.
fn refuse_others(options: &CheckOptions, is_f2fs: bool) -> Result<()> {
    let refuse = |what: &str| Err(Error::new(ErrorKind::Invalid, what));
    match is_f2fs {
        true if options.journal.is_some() => {
            refuse("a journal device is named, and f2fs has no journal")
        }
        true if options.superblock.is_some() => refuse(
            "the block of a superblock is for ext4: of f2fs's two superblocks the usable one is taken by itself",
        ),
        false if options.discard_fsynced => {
            refuse("to discard what was synced is for f2fs: ext4 keeps it in its journal")
        }
        true if options.discard_fsynced && options.mode != Mode::Yes => {
            refuse("what was synced is only discarded when all repairs are made")
        }
        _ => Ok(()),
    }
}

/// Checks the volume on a device, and repairs it as the mode allows. The volume must not be open.
///
/// # Errors
/// When nothing can be said about the volume: `Io`, `Corrupt` without a usable superblock, `UnsupportedFeature` (also for a format that is known by name only),
/// `ReadOnly` for a repair on a device that cannot be written. `Invalid` for options of the other format. `Interrupted` when the function that is told the
/// progress breaks. Damage is an issue of the report, not an error.
pub fn check(device: SharedDevice, options: &CheckOptions) -> Result<CheckReport> {
    let is_f2fs = f2fs::is_f2fs(&device).map_err(of_f2fs)?;
    refuse_others(options, is_f2fs)?;
    if is_f2fs {
        let mut own = f2fs::CheckOptions {
            mode: options.mode,
            progress: options.progress.clone(),
            discard_fsynced: options.discard_fsynced,
            ..f2fs::CheckOptions::default()
        };
        own.max_issues = options.issues_max.unwrap_or(own.max_issues);
        return f2fs::check(device, &own).map(data).map_err(of_f2fs);
    }
    let mut own = ext4::CheckOptions {
        mode: options.mode,
        progress: options.progress.clone(),
        superblock: options.superblock,
        journal: options.journal.clone(),
        ..ext4::CheckOptions::default()
    };
    own.max_issues = options.issues_max.unwrap_or(own.max_issues);
    ext4::check(Arc::clone(&device), &own)
        .map(data)
        .map_err(|e| match e {
            ext4::CheckError::NoSuperblock { .. } => foreign(&device).unwrap_or_else(|| of_ext4(e)),
            e => of_ext4(e),
        })
}

/// Says what the device holds instead of a volume, where that is known.
fn foreign(device: &SharedDevice) -> Option<Error> {
    let what = blockwright::foreign_contents(device).ok()??;
    Some(Error::new(ErrorKind::UnsupportedFeature, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright::{Format, VolumeBuilder};
    use blockwright_device::{DevOffset, DeviceExt, Flags, MemoryDevice};

    #[test]
    fn damage_is_data_and_is_repaired() {
        for format in [Format::Ext4, Format::F2fs] {
            let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
            let made = VolumeBuilder::new().format(format).create_on(&device);
            made.expect("made");
            let clean = check(Arc::clone(&device), &CheckOptions::default()).expect("checked");
            assert!(clean.clean && clean.exit_code == 0, "{clean:?}");
            // The free-block count of ext4's superblock; the whole second superblock of f2fs.
            let (at, len) = match format {
                Format::Ext4 => (1024, 512),
                _ => (4096, 4096),
            };
            let mut bytes = device.read_buf(DevOffset(at), len).expect("read").to_vec();
            match format {
                Format::Ext4 => bytes[12] ^= 0x55,
                _ => bytes.fill(0),
            }
            let written = device.write_at(DevOffset(at), &bytes, Flags::empty());
            written.expect("written");
            let found = check(Arc::clone(&device), &CheckOptions::default()).expect("checked");
            assert!(!found.clean && !found.issues.is_empty(), "{format}");
            assert!(found.issues.iter().all(|i| !i.text.is_empty()));
            assert!(found.issues.iter().all(|i| !i.kind.contains([' ', '{'])));
            let repair = CheckOptions {
                mode: Mode::Yes,
                ..CheckOptions::default()
            };
            let repaired = check(Arc::clone(&device), &repair).expect("repaired");
            assert!(repaired.changed && !repaired.uncorrected, "{repaired:?}");
            let again = check(device, &CheckOptions::default()).expect("checked");
            assert!(again.clean, "{again:?}");
        }
    }

    #[test]
    fn no_file_system_is_an_error() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        let error = check(device, &CheckOptions::default()).expect_err("nothing there");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }

    #[test]
    fn options_of_the_other_format_are_refused() {
        let made = |format| -> SharedDevice {
            let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
            let made = VolumeBuilder::new().format(format).create_on(&device);
            made.expect("made");
            device
        };
        let (ext4, f2fs) = (made(Format::Ext4), made(Format::F2fs));
        let journal = CheckOptions {
            journal: Some(Arc::clone(&ext4)),
            ..CheckOptions::default()
        };
        let superblock = CheckOptions {
            superblock: Some(32768),
            ..CheckOptions::default()
        };
        let discard = |mode| CheckOptions {
            mode,
            discard_fsynced: true,
            ..CheckOptions::default()
        };
        for (device, options) in [
            (&f2fs, &journal),
            (&f2fs, &superblock),
            (&f2fs, &discard(Mode::Preen)),
            (&ext4, &discard(Mode::Yes)),
        ] {
            let error = check(Arc::clone(device), options).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        let checked = check(f2fs, &discard(Mode::Yes)).expect("checked");
        assert!(checked.clean, "{checked:?}");
    }

    #[test]
    fn another_format_is_named() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        let mut head = [0; 512];
        head[..4].copy_from_slice(b"hsqs");
        let magic = device.write_at(DevOffset(0), &head, Flags::empty());
        magic.expect("written");
        let error = check(device, &CheckOptions::default()).expect_err("no volume");
        assert_eq!(error.kind(), ErrorKind::UnsupportedFeature, "{error}");
        assert!(
            error.to_string().to_lowercase().contains("squash"),
            "{error}"
        );
    }
}
