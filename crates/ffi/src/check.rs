//! A check of either format, with its issues as data.

use blockwright::{Error, ErrorKind, Result};
use blockwright_check::{
    Issue, Mode, Outcome, ProgressFn, Report, Severity, Stats, ext4, f2fs, fsck_exit_code,
};
use blockwright_device::SharedDevice;
use std::fmt::{Debug, Display};

/// What a check does and tells.
#[derive(Clone, Default)]
pub struct CheckOptions {
    /// What may be changed.
    pub mode: Mode,
    /// Keep at most this many issues; the rest is counted. `None`: 10 000.
    pub issues_max: Option<usize>,
    /// Called with the progress, from any thread.
    pub progress: Option<ProgressFn>,
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

fn of_ext4(error: ext4::CheckError) -> Error {
    use ext4::CheckError as E;
    let kind = match &error {
        E::Device { source, .. } => Error::from(source.clone()).kind(),
        E::Unsupported { .. } => ErrorKind::UnsupportedFeature,
        E::ReadOnlyDevice => ErrorKind::ReadOnly,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}

fn of_f2fs(error: f2fs::CheckError) -> Error {
    use f2fs::CheckError as E;
    let kind = match &error {
        E::Device { source, .. } => Error::from(source.clone()).kind(),
        E::Unsupported { .. } => ErrorKind::UnsupportedFeature,
        E::ReadOnlyDevice => ErrorKind::ReadOnly,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}

/// Checks the volume on a device, and repairs it as the mode allows. The volume must not be open.
///
/// # Errors
/// When nothing can be said about the volume: `Io`, `Corrupt` without a usable superblock, `UnsupportedFeature`, `ReadOnly` for a
/// repair on a device that cannot be written. Damage is an issue of the report, not an error.
pub fn check(device: SharedDevice, options: &CheckOptions) -> Result<CheckReport> {
    if f2fs::is_f2fs(&device).map_err(of_f2fs)? {
        let mut own = f2fs::CheckOptions {
            mode: options.mode,
            progress: options.progress.clone(),
            ..f2fs::CheckOptions::default()
        };
        own.max_issues = options.issues_max.unwrap_or(own.max_issues);
        return f2fs::check(device, &own).map(data).map_err(of_f2fs);
    }
    let mut own = ext4::CheckOptions {
        mode: options.mode,
        progress: options.progress.clone(),
        ..ext4::CheckOptions::default()
    };
    own.max_issues = options.issues_max.unwrap_or(own.max_issues);
    ext4::check(device, &own).map(data).map_err(of_ext4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright::{Format, VolumeBuilder};
    use blockwright_device::{DevOffset, DeviceExt, Flags, MemoryDevice};
    use std::sync::Arc;

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
}
