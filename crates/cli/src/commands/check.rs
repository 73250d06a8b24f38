//! `check`: the verifier and repairer, with fsck(8)'s exit codes.

use crate::args::CheckArgs;
use crate::commands::map::{Companion, page_name};
use crate::commands::progress::{PhaseBar, Stops};
use crate::exit::{self, fsck};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::Out;
use blockwright_check::usage::Place;
use blockwright_check::{Issue, Mode, ProgressFn, Report, ext4, f2fs, fsck_exit_code};
use blockwright_device::{OpenMode, SharedDevice};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

#[derive(Serialize)]
struct IssueJson {
    /// The kind of the issue: a stable name.
    kind: String,
    severity: &'static str,
    outcome: &'static str,
    /// What was found, and where, for people.
    text: String,
    /// First block and number of blocks, with `--map`.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<(u64, u64)>,
}

#[derive(Serialize)]
struct CheckJson {
    image: String,
    /// Nothing worse than notes was found.
    clean: bool,
    /// Something was written to the image.
    changed: bool,
    exit_code: u8,
    issues: Vec<IssueJson>,
    /// Issues beyond those listed.
    suppressed: u64,
    inodes: u64,
    inodes_used: u64,
    blocks: u64,
    blocks_used: u64,
    directories: u64,
    files: u64,
    symlinks: u64,
    specials: u64,
    names: u64,
    transactions_replayed: u64,
    blocks_written: u64,
}

/// Runs `check`.
///
/// # Errors
/// Always carries fsck's exit code when that is not 0.
pub fn check(args: &CheckArgs) -> Result<()> {
    run(args).map_err(|e| match e.exit_code() {
        _ if e.is_silent() => e,
        exit::USAGE => e.code(fsck::USAGE),
        fsck::CANCELED => e,
        _ => e.code(fsck::OPERATIONAL),
    })
}

fn run(args: &CheckArgs) -> Result<()> {
    let mode = if args.yes {
        Mode::Yes
    } else if args.preen {
        Mode::Preen
    } else {
        Mode::ReadOnly
    };
    let place = args.image.display();
    if let Some(map) = &args.map {
        page_name(map)?;
    }
    let open = OpenMode {
        read_only: mode == Mode::ReadOnly,
        ..OpenMode::default()
    };
    let failed = |e: blockwright_device::DeviceError| Failure::from(e).at(place.to_string());
    let device = crate::wall::device(&args.image, open).map_err(failed)?;
    let more = crate::devices::more_devices();
    let device = blockwright::join_devices_by(device, more, open, &mut crate::wall::device)
        .map_err(|e| Failure::from(e).at(place.to_string()))?;
    let journal = crate::devices::journal()
        .map(|path| {
            crate::wall::device(path, open).map_err(|e| Failure::from(e).at(path.display()))
        })
        .transpose()?;
    let bar = PhaseBar::new("checking", args.json);
    // Repairs are written at the end, all of them: a signal stops the check before, or comes too late. Without repairs, nothing is lost by an end at once.
    let interrupts = match mode {
        Mode::ReadOnly => None,
        _ => Some(Interrupts::note()?),
    };
    let stops = interrupts.map(|noted| -> Stops { Box::new(move || noted.came()) });
    let progress = bar.progress(stops);
    let report = checked(args, device.clone(), journal.clone(), mode, progress);
    bar.finish();
    let report = report.map_err(|e| e.at(place.to_string()))?;
    let code = fsck_exit_code(&report);
    let map = args.map.as_deref().map(|path| {
        Companion::new(path, device, journal, args.json).map_err(|e| e.at(place.to_string()))
    });
    // A map that fails takes nothing from the report: with `-y`, no other run finds what was repaired.
    let (map, failed) = match map.transpose() {
        Ok(map) => (map, None),
        Err(e) => (None, Some(e)),
    };
    let mut out = Out::new();
    if args.json {
        out.json(&json(args, &report, map.as_ref(), code))?;
    } else {
        print(&mut out, args, &report, map.as_ref())?;
    }
    out.finish()?;
    if let Some(e) = failed {
        return Err(e);
    }
    if let Some(map) = map {
        let issues = report.issues.into_iter().map(|issue| Issue {
            severity: issue.severity,
            outcome: issue.outcome,
            kind: blockwright_map::Told {
                text: issue.kind.text,
                place: issue.kind.place,
            },
        });
        map.write(&args.image, Some(issues.collect()))?;
    }
    if code == 0 {
        Ok(())
    } else {
        Err(Failure::said(code))
    }
}

/// An issue of either format, as it is printed.
#[derive(Debug)]
struct Told {
    kind: String,
    text: String,
    place: Option<Place>,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn told<K: std::fmt::Debug + std::fmt::Display>(
    report: Report<K>,
    place: impl Fn(&K) -> Option<Place>,
) -> Report<Told> {
    let issues = report.issues.into_iter().map(|issue| Issue {
        kind: Told {
            kind: issue.kind_name(),
            text: issue.kind.to_string(),
            place: place(&issue.kind),
        },
        severity: issue.severity,
        outcome: issue.outcome,
    });
    Report {
        issues: issues.collect(),
        suppressed: report.suppressed,
        suppressed_left: report.suppressed_left,
        stats: report.stats,
        changed: report.changed,
    }
}

/// Checks a volume of whichever format it has.
fn checked(
    args: &CheckArgs,
    device: SharedDevice,
    journal: Option<SharedDevice>,
    mode: Mode,
    progress: Option<ProgressFn>,
) -> Result<Report<Told>> {
    if f2fs::is_f2fs(&device).map_err(Failure::new)? {
        if journal.is_some() {
            return Err(Failure::usage("--journal is for ext4"));
        }
        if args.superblock.is_some() {
            return Err(Failure::usage(
                "-b is for ext4: of f2fs's two superblocks the usable one is taken by itself",
            ));
        }
        let options = f2fs::CheckOptions {
            mode,
            progress,
            discard_fsynced: args.discard_fsynced,
            ..f2fs::CheckOptions::default()
        };
        return f2fs::check(device, &options)
            .map(|report| told(report, f2fs::IssueKind::place))
            .map_err(|e| match e {
                f2fs::CheckError::Interrupted => Failure::new(e).code(fsck::CANCELED),
                e => Failure::new(e),
            });
    }
    if args.discard_fsynced {
        return Err(Failure::usage(
            "--discard-fsynced is for f2fs: ext4 keeps what was synced in its journal",
        ));
    }
    let options = ext4::CheckOptions {
        mode,
        superblock: args.superblock,
        journal,
        progress,
        ..ext4::CheckOptions::default()
    };
    ext4::check(Arc::clone(&device), &options)
        .map(|report| told(report, ext4::IssueKind::place))
        .map_err(|e| match e {
            ext4::CheckError::NoSuperblock { .. } => no_superblock(&device, e),
            ext4::CheckError::Interrupted { .. } => Failure::new(e).code(fsck::CANCELED),
            e => Failure::new(e),
        })
}

/// Says what the device holds instead of a volume, where that is known.
fn no_superblock(device: &SharedDevice, error: ext4::CheckError) -> Failure {
    match blockwright::foreign_contents(device) {
        Ok(Some(what)) => Failure::new(what),
        _ => Failure::new(error),
    }
}

/// The blocks of an issue in the map.
fn blocks(issue: &Issue<Told>, map: Option<&Companion<'_>>) -> Option<(u64, u64)> {
    map?.blocks_of(issue.kind.place?)
}

fn json(
    args: &CheckArgs,
    report: &Report<Told>,
    map: Option<&Companion<'_>>,
    code: u8,
) -> CheckJson {
    let stats = &report.stats;
    CheckJson {
        image: args.image.display().to_string(),
        clean: report.is_clean(),
        changed: report.changed,
        exit_code: code,
        issues: report
            .issues
            .iter()
            .map(|issue| IssueJson {
                kind: issue.kind.kind.clone(),
                severity: issue.severity.name(),
                outcome: issue.outcome.name(),
                text: issue.kind.text.clone(),
                blocks: blocks(issue, map),
            })
            .collect(),
        suppressed: report.suppressed,
        inodes: stats.inodes,
        inodes_used: stats.used_inodes,
        blocks: stats.blocks,
        blocks_used: stats.used_blocks,
        directories: stats.directories,
        files: stats.files,
        symlinks: stats.symlinks,
        specials: stats.specials,
        names: stats.names,
        transactions_replayed: stats.transactions_replayed,
        blocks_written: stats.blocks_written,
    }
}

/// `1 file`, `2 files`.
fn counted(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    }
}

fn print(
    out: &mut Out,
    args: &CheckArgs,
    report: &Report<Told>,
    map: Option<&Companion<'_>>,
) -> Result<()> {
    for issue in &report.issues {
        write!(out, "{issue}")?;
        if let (Some(map), Some(blocks)) = (map, blocks(issue, map)) {
            write!(out, " [{}]", map.link(blocks))?;
        }
        writeln!(out)?;
    }
    if report.suppressed > 0 {
        writeln!(out, "… and {} more", report.suppressed)?;
    }
    let stats = &report.stats;
    let replayed = match (stats.transactions_replayed, args.yes || args.preen) {
        (0, _) => String::new(),
        (n, true) => format!("; replayed {} of the journal", counted(n, "transaction")),
        (n, false) => format!(
            "; as after a replay of the journal ({})",
            counted(n, "transaction")
        ),
    };
    let verdict = if report.is_clean() {
        "clean"
    } else if report.has_uncorrected() {
        "DAMAGED: errors are left"
    } else {
        "repaired"
    };
    writeln!(
        out,
        "{}: {verdict}, {}, {}, {}, {} special, {}/{} inodes, {}/{} blocks{replayed}",
        args.image.display(),
        counted(stats.files, "file"),
        match stats.directories {
            1 => "1 directory".to_owned(),
            n => format!("{n} directories"),
        },
        counted(stats.symlinks, "symlink"),
        stats.specials,
        stats.used_inodes,
        stats.inodes,
        stats.used_blocks,
        stats.blocks,
    )?;
    if args.verbose {
        let mut line = |name: &str, value: u64| writeln!(out, "{name:<24}{value:>12}");
        line("inodes in use", stats.used_inodes)?;
        line("inodes", stats.inodes)?;
        line("blocks in use", stats.used_blocks)?;
        line("blocks", stats.blocks)?;
        line("regular files", stats.files)?;
        line("directories", stats.directories)?;
        line("symbolic links", stats.symlinks)?;
        line("special files", stats.specials)?;
        line("names", stats.names)?;
        line("transactions replayed", stats.transactions_replayed)?;
        line("blocks written", stats.blocks_written)?;
    }
    let waits = (report.issues.iter()).any(|issue| issue.kind.kind == "RecoveryPending");
    if waits && report.has_uncorrected() {
        writeln!(
            out,
            "nothing is repaired while files wait to be recovered: mount the volume first. Where a mount refuses to recover them, \
             `blockwright check -y --discard-fsynced` gives them up"
        )?;
    } else if !args.yes && report.has_uncorrected() {
        writeln!(out, "`blockwright check -y` repairs what can be repaired")?;
    }
    Ok(())
}
