//! Checking and repairing.

use crate::call::{call, known, out, outside};
use crate::device::{CallbackDevice, bw_device};
use crate::error::{Fault, Result, bw_error, bw_status, copy_text};
use crate::handles::{REPORTS, bw_report};
use crate::place::{beside_device, bw_place, image_at};
use crate::raw::{Output, Text, User, Versioned, sized};
use blockwright_device::{OpenMode, SharedDevice};
use blockwright_ffi::{CheckOptions, CheckReport, Image, Mode, Outcome, Phase, Severity};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Change nothing.
pub const BW_CHECK_READ_ONLY: u32 = 0;
/// Make the repairs that are safe without a human.
pub const BW_CHECK_PREEN: u32 = 1;
/// Make all repairs.
pub const BW_CHECK_REPAIR: u32 = 2;

/// f2fs, with `BW_CHECK_REPAIR`: give up what fsync wrote since the last checkpoint, where a mount refuses to recover it.
pub const BW_CHECK_DISCARD_FSYNCED: u32 = 1;

/// Called from any thread with how far a check is. `phase`: 0 volume, 1 inodes, 2 directories, 3 links, 4 bitmaps. A result other than 0 stops the check, which
/// then fails with `BW_INTERRUPTED`. A repair that has begun to write is completed: calls may still come, and their results no longer count. So a check that was
/// stopped has written nothing, but the transactions of an ext4 journal that it replayed before.
pub type bw_check_progress =
    Option<extern "C" fn(user: User, phase: u32, done: u64, total: u64) -> i32>;

/// How a volume is checked. A structure of zeroes with `struct_size` set has the defaults, as null has.
#[repr(C)]
pub struct bw_check_options {
    /// `sizeof(bw_check_options)`.
    pub struct_size: usize,
    /// `BW_CHECK_READ_ONLY`, `BW_CHECK_PREEN` or `BW_CHECK_REPAIR`.
    pub mode: u32,
    /// `BW_CHECK_DISCARD_FSYNCED`.
    pub flags: u32,
    /// Keep at most this many issues; 0: 10 000. The rest is counted.
    pub issues_max: usize,
    /// ext4: use the superblock in this block; 0: the primary one.
    pub superblock: u64,
    /// Where the volume is.
    pub place: bw_place,
    /// May be null.
    pub progress: bw_check_progress,
    /// Handed to `progress`.
    pub user: User,
}

// SAFETY: numbers, texts and a function after `struct_size`.
unsafe impl Versioned for bw_check_options {}

/// What a check found, in short.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_check_summary {
    /// Issues that can be asked for.
    pub issues: usize,
    /// Issues beyond those.
    pub suppressed: u64,
    /// 1 when nothing worse than notes was found.
    pub clean: u32,
    /// 1 when something worse than a note is still there.
    pub uncorrected: u32,
    /// 1 when something was written to the device.
    pub changed: u32,
    /// The exit code that fsck programs use: 0, 1 or 4.
    pub exit_code: u32,
    /// Inodes of the volume.
    pub inodes: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Transactions of the journal that were replayed: in memory, where nothing may be changed.
    pub transactions_replayed: u64,
    /// Blocks that were written.
    pub blocks_written: u64,
}

/// Worth saying, but no damage.
pub const BW_SEVERITY_NOTE: u32 = 0;
/// A count, flag or bitmap that disagrees with what it sums up.
pub const BW_SEVERITY_MINOR: u32 = 1;
/// A structure is wrong; data or names may be affected.
pub const BW_SEVERITY_DAMAGE: u32 = 2;
/// The rest of the volume could not be checked because of it.
pub const BW_SEVERITY_FATAL: u32 = 3;

/// The issue is still there.
pub const BW_OUTCOME_LEFT: u32 = 0;
/// It was repaired.
pub const BW_OUTCOME_REPAIRED: u32 = 1;
/// It is still there, and no mode repairs it.
pub const BW_OUTCOME_UNREPAIRABLE: u32 = 2;

/// Bytes of the name of an issue's kind, with its NUL.
pub const BW_ISSUE_KIND_BYTES: usize = 64;
/// Bytes of an issue's text, with its NUL. A longer one is shortened in its middle.
pub const BW_ISSUE_TEXT_BYTES: usize = 952;

/// One finding.
#[repr(C)]
pub struct bw_issue {
    /// A `BW_SEVERITY_`.
    pub severity: u32,
    /// A `BW_OUTCOME_`.
    pub outcome: u32,
    /// The name of the issue's kind, which is stable.
    pub kind: [c_char; BW_ISSUE_KIND_BYTES],
    /// What was found, and where, for people.
    pub text: [c_char; BW_ISSUE_TEXT_BYTES],
}

fn options_of(options: Option<&bw_check_options>) -> Result<CheckOptions> {
    let mut made = CheckOptions::default();
    let Some(o) = options else {
        return Ok(made);
    };
    known(o.flags, BW_CHECK_DISCARD_FSYNCED, "options.flags")?;
    made.mode = match o.mode {
        BW_CHECK_READ_ONLY => Mode::ReadOnly,
        BW_CHECK_PREEN => Mode::Preen,
        BW_CHECK_REPAIR => Mode::Yes,
        other => {
            let what = format!("options.mode: {other} is no BW_CHECK_");
            return Err(Fault::Misuse(what));
        }
    };
    made.discard_fsynced = o.flags & BW_CHECK_DISCARD_FSYNCED != 0;
    made.superblock = (o.superblock != 0).then_some(o.superblock);
    made.issues_max = (o.issues_max != 0).then_some(o.issues_max);
    if let Some(tell) = o.progress {
        let user = o.user;
        made.progress = Some(Arc::new(move |p| {
            let phase = match p.phase {
                Phase::Volume => 0,
                Phase::Inodes => 1,
                Phase::Directories => 2,
                Phase::Links => 3,
                Phase::Bitmaps => 4,
            };
            match outside(|| tell(user, phase, p.done, p.total)) {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        }));
    }
    Ok(made)
}

/// Checks a volume whose device `open` opens.
fn checked(
    image: &Image,
    options: Option<&bw_check_options>,
    open: impl FnOnce(OpenMode) -> Result<SharedDevice>,
) -> Result<bw_report> {
    let mut options = options_of(options)?;
    let mode = OpenMode {
        read_only: options.mode == Mode::ReadOnly,
        ..OpenMode::default()
    };
    let device = open(mode)?;
    options.journal = image.open_journal(mode)?.map(|journal| journal.device);
    let found = blockwright_ffi::check(device, &options);
    let found = match image.path.as_os_str().is_empty() {
        true => found?,
        false => found.map_err(|e| e.at(&image.path))?,
    };
    let id = REPORTS.insert(found)?;
    Ok(bw_report { id })
}

/// Checks the volume at `path`, which must not be open, and repairs it as the options say. Damage is no error: it is in the report. `options` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn bw_check(
    path: Text,
    options: *const bw_check_options,
    report: Option<&mut MaybeUninit<bw_report>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let report = out(report, "report")?;
        report.write(bw_report { id: 0 });
        let options = sized(options, "options")?;
        let image = image_at(path, options.map(|o| &o.place))?;
        let open = |mode| Ok(image.open_device(mode)?);
        report.write(checked(&image, options, open)?);
        Ok(())
    })
}

/// As `bw_check`, on a device of the program. Of the options' `place`, only `journal` and `flags` may be set.
#[unsafe(no_mangle)]
pub extern "C" fn bw_check_device(
    device: *const bw_device,
    options: *const bw_check_options,
    report: Option<&mut MaybeUninit<bw_report>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let report = out(report, "report")?;
        report.write(bw_report { id: 0 });
        let options = sized(options, "options")?;
        let beside = beside_device(options.map(|o| &o.place))?;
        let open = |_| Ok(Arc::new(CallbackDevice::new(device)?) as SharedDevice);
        report.write(checked(&beside, options, open)?);
        Ok(())
    })
}

/// What the check found, in short.
#[unsafe(no_mangle)]
pub extern "C" fn bw_report_summary(
    report: bw_report,
    summary: Option<&mut MaybeUninit<bw_check_summary>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let summary = out(summary, "summary")?;
        let report = REPORTS.get(report.id)?;
        let stats = &report.stats;
        summary.write(bw_check_summary {
            issues: report.issues.len(),
            suppressed: report.suppressed,
            clean: u32::from(report.clean),
            uncorrected: u32::from(report.uncorrected),
            changed: u32::from(report.changed),
            exit_code: u32::from(report.exit_code),
            inodes: stats.inodes,
            inodes_used: stats.used_inodes,
            blocks: stats.blocks,
            blocks_used: stats.used_blocks,
            directories: stats.directories,
            files: stats.files,
            symlinks: stats.symlinks,
            transactions_replayed: stats.transactions_replayed,
            blocks_written: stats.blocks_written,
        });
        Ok(())
    })
}

fn issue_at(report: &CheckReport, index: usize) -> Result<&blockwright_ffi::IssueData> {
    let all = report.issues.len();
    let found = report.issues.get(index);
    found.ok_or_else(|| Fault::Misuse(format!("index is {index}, and there are {all} issues")))
}

/// Gets an issue; `index` is from 0.
#[unsafe(no_mangle)]
pub extern "C" fn bw_report_issue(
    report: bw_report,
    index: usize,
    issue: Option<&mut MaybeUninit<bw_issue>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let to = out(issue, "issue")?;
        let report = REPORTS.get(report.id)?;
        let issue = issue_at(&report, index)?;
        let severity = match issue.severity {
            Severity::Note => BW_SEVERITY_NOTE,
            Severity::Minor => BW_SEVERITY_MINOR,
            Severity::Damage => BW_SEVERITY_DAMAGE,
            Severity::Fatal => BW_SEVERITY_FATAL,
        };
        let outcome = match issue.outcome {
            Outcome::Left => BW_OUTCOME_LEFT,
            Outcome::Repaired => BW_OUTCOME_REPAIRED,
            Outcome::Unrepairable => BW_OUTCOME_UNREPAIRABLE,
        };
        let to = to.write(bw_issue {
            severity,
            outcome,
            kind: [0; BW_ISSUE_KIND_BYTES],
            text: [0; BW_ISSUE_TEXT_BYTES],
        });
        copy_text(&issue.kind, &mut to.kind);
        copy_text(&issue.text, &mut to.text);
        Ok(())
    })
}

/// Gets the whole text of an issue, with a NUL behind it, which `bytes` counts. With `room` 0 nothing is copied; `BW_RANGE` when `room` is too small.
#[unsafe(no_mangle)]
pub extern "C" fn bw_report_issue_text(
    report: bw_report,
    index: usize,
    mut buffer: Output,
    room: usize,
    bytes: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let report = REPORTS.get(report.id)?;
        let mut text = issue_at(&report, index)?.text.clone().into_bytes();
        text.push(0);
        crate::attr::fill(&text, &mut buffer, room, bytes)
    })
}

/// Frees the report.
#[unsafe(no_mangle)]
pub extern "C" fn bw_report_close(
    report: bw_report,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || REPORTS.remove(report.id).map(drop))
}
