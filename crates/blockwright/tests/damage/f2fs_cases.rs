//! Judging a damaged f2fs volume beside fsck.f2fs.

use super::f2fs::{Base, bases, more_bases};
use super::lab::Rng;
use super::lab::f2fs::{F2Volume, clean, names, repair_f2fs, show, verify_f2fs};
use super::lab::verdict::fsck_f2fs_silent;
use super::trees::{self, Tree};
use super::{Judgement, RARE, WAITING, cases, keep, tools, volume_of};
use blockwright::Volume;
use blockwright_check::Mode;
use blockwright_check::f2fs::{CheckOptions, IssueKind, Report, check};
use blockwright_device::MemoryDevice;
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use std::path::Path;
use std::sync::Arc;

pub fn run(own: u64, once: &[u64]) {
    let mut bases = bases();
    let common = bases.len();
    let settled = |base: &Base| {
        let report = verify_f2fs(&base.volume.device).expect("checked");
        !names(&report).contains(&"RecoveryPending".to_owned())
    };
    let (rare, waiting): (Vec<_>, Vec<_>) = more_bases().into_iter().partition(settled);
    let lists = [common, rare.len(), 0, waiting.len()];
    bases.extend(rare);
    bases.extend(waiting);
    let before: Vec<Tree> = bases
        .iter()
        .map(|b| {
            let tree = trees::read(&b.volume.device).expect("opens");
            assert!(tree.errors.is_empty(), "{}: {:?}", b.name, tree.errors);
            let report = verify_f2fs(&b.volume.device).expect("checked");
            assert!(report.is_clean(), "{}: {}", b.name, show(&report));
            tree
        })
        .collect();
    let dir = tools::scratch();
    cases("f2fs", own, once, &[RARE, WAITING], |seed| {
        let (n, _) = volume_of(seed, lists);
        match seed >= WAITING {
            true => judge_waiting(seed, &bases[n], &before[n], dir.path()),
            false => judge(seed, &bases[n], &before[n], dir.path()),
        }
    });
}

/// A volume with a damaged chain of nodes. The mount recovers it, and then nothing is wrong. Or it does not: then `check -n` calls the chain damaged, and a repair
/// that gives it up leaves nothing wrong. fsck.f2fs gives up every chain; whatever it keeps is there in both cases.
fn judge_waiting(seed: u64, base: &Base, before: &Tree, dir: &Path) -> Judgement {
    let mut rng = Rng::new(0xF2F5_0000 + seed);
    let (device, what) = base.damage(&mut rng);
    let what = format!("[{}] {what}", base.name);
    let mut out = Judgement::default();
    let said = verify_f2fs(&device);
    let ours_clean = said.as_ref().is_ok_and(|r| r.is_clean());
    let said = said.map_or_else(|e| format!("    {e}\n"), |r| show(&r));
    let story = |more: &str| format!("{what}\n-- check -n:\n{said}{more}");
    let mounted = Arc::new(device.snapshot());
    let recovered = match Volume::open_device(mounted.clone()) {
        Err(e) => Err(e.to_string()),
        Ok(v) => {
            let reason = v.read_only_reason();
            let closed = v.close().map_err(|e| e.to_string());
            reason.map_or(closed, Err)
        }
    };
    let after = match recovered {
        Ok(()) => {
            out.verdict = "recovered";
            mounted.snapshot()
        }
        Err(reason) => {
            out.verdict = "not recovered";
            if ours_clean {
                out.faults.push(("not named", story(&reason)));
            }
            let copy = Arc::new(device.snapshot());
            let options = CheckOptions {
                mode: Mode::Yes,
                discard_fsynced: true,
                ..CheckOptions::default()
            };
            match check(copy.clone(), &options) {
                Ok(report) if !report.has_uncorrected() => {}
                Ok(report) => out.faults.push(("left", story(&show(&report)))),
                Err(e) => out.faults.push(("refused", story(&e.to_string()))),
            }
            copy.snapshot()
        }
    };
    match verify_f2fs(&after) {
        Ok(again) if again.is_clean() => {}
        Ok(again) => out.faults.push(("not clean to us", story(&show(&again)))),
        Err(e) => out.faults.push(("not clean to us", story(&e.to_string()))),
    }
    let path = dir.join("f2fs.img");
    let fsck = |device: &MemoryDevice, args: &[&str]| {
        device.save(&path).expect("saved");
        tools::run("fsck.f2fs", args, &path)
    };
    let (code, text) = fsck(&after, &["--dry-run", "-f"]);
    if !clean(code, &text) {
        out.faults.push(("not clean to fsck.f2fs", story(&text)));
    }
    let ours_after = reads(&after, &[], &story, &mut out);
    let fixed = fsck(&device, &["-f", "-y"]);
    let theirs = tools::load(&path);
    if let Some(ours_after) = ours_after
        && fixed.0 <= 1
        && verify_f2fs(&theirs).is_ok_and(|r| r.is_clean())
        && let Ok(theirs_after) = trees::read(&theirs)
    {
        let lost = trees::lost(before, &ours_after, &theirs_after);
        if !lost.is_empty() {
            out.faults.push(("lost", story(&lost.join("\n"))));
        }
    }
    if !out.faults.is_empty() {
        keep(&format!("f2fs-{seed}.img"), &device);
    }
    out
}

fn judge(seed: u64, base: &Base, before: &Tree, dir: &Path) -> Judgement {
    let mut rng = Rng::new(0xF2F5_0000 + seed);
    let (device, what) = base.damage(&mut rng);
    let what = format!("[{}] {what}", base.name);
    let mut out = Judgement::default();
    let path = dir.join("f2fs.img");
    let fsck = |device: &MemoryDevice, args: &[&str]| {
        device.save(&path).expect("saved");
        tools::run("fsck.f2fs", args, &path)
    };
    let (code, text) = fsck(&device, &["--dry-run", "-f"]);
    let theirs_clean = clean(code, &text);
    let ours = verify_f2fs(&device);
    let ours_clean = ours.as_ref().is_ok_and(|r| r.is_clean());
    let said = match &ours {
        Ok(report) => show(report),
        Err(e) => format!("    {e}\n"),
    };
    let story = |more: &str| {
        let told: Vec<&str> = (text.lines())
            .filter(|l| {
                ["ASSERT", "FIX", "Fail", "rror"]
                    .iter()
                    .any(|w| l.contains(w))
            })
            .take(8)
            .collect();
        format!(
            "{what}\n-- fsck.f2fs {code}:\n{}\n-- check -n:\n{said}{more}",
            told.join("\n")
        )
    };
    out.verdict = match (ours_clean, theirs_clean) {
        (true, true) => "clean to both",
        (false, false) => "damaged to both",
        (true, false) => "clean to us alone",
        (false, true) => "clean to fsck.f2fs alone",
    };
    if ours_clean != theirs_clean {
        match ours.as_ref().ok().and_then(fsck_f2fs_silent) {
            Some(reason) if theirs_clean => out.excused = Some(reason),
            _ if ours_clean && fast_boot(&device) => {
                out.excused =
                    Some("fsck.f2fs looks for the summaries of a fast boot in the wrong place");
            }
            // It ends without a word, as where the newer checkpoint is unusable.
            _ if !theirs_clean && !(0..=1).contains(&code) && !text.contains("ASSERT") => {
                out.excused = Some("fsck.f2fs gives up");
            }
            _ => out.faults.push(("verdict", story(""))),
        }
    }
    if ours_clean {
        let told = ours.as_ref().map(unreadable).unwrap_or_default();
        reads(&device, &told, &story, &mut out);
        return out;
    }
    let (report, after) = repair_f2fs(&device, Mode::Yes);
    let report = match report {
        Ok(report) if !report.has_uncorrected() => report,
        Ok(report) => {
            // Told by name: without a root there is no volume to speak of, a disabled checkpoint is not replaced, and
            // nothing says which algorithm a file was compressed by, or in clusters of which size.
            const REFUSED: [&str; 5] = [
                "RootMissing",
                "QuotaInode",
                "CompressAlgorithm",
                "CompressClusterSize",
                "CheckpointDisabled",
            ];
            out.verdict = "left";
            if names(&report).iter().any(|k| REFUSED.contains(&k.as_str())) {
                return out;
            }
            let left = format!("-- check -y left:\n{}", show(&report));
            out.faults.push(("left", story(&left)));
            return out;
        }
        Err(error) => {
            out.verdict = "refused";
            assert!(error.to_string().len() > 20, "{error}");
            return out;
        }
    };
    let did = format!("-- check -y:\n{}", show(&report));
    let again = verify_f2fs(&after);
    let unreadable = again.as_ref().map(unreadable).unwrap_or_default();
    match again {
        Ok(again) if again.is_clean() => {}
        Ok(again) => {
            let more = format!("{did}-- then check -n:\n{}", show(&again));
            out.faults.push(("not clean to us", story(&more)));
        }
        Err(e) => out.faults.push(("not clean to us", story(&e.to_string()))),
    }
    let (code_after, text_after) = fsck(&after, &["--dry-run", "-f"]);
    if !clean(code_after, &text_after) {
        let more = format!("{did}-- then fsck.f2fs {code_after}:\n{text_after}");
        out.faults.push(("not clean to fsck.f2fs", story(&more)));
    }
    let told = |more: &str| story(&format!("{did}{more}"));
    let ours_after = reads(&after, &unreadable, &told, &mut out);
    let fixed = fsck(&device, &["-f", "-y"]);
    // What it calls repaired is not always: only what it finds clean then is compared.
    let theirs = tools::load(&path);
    let settled = verify_f2fs(&theirs).is_ok_and(|r| r.is_clean());
    if let Some(ours_after) = ours_after
        && fixed.0 <= 1
        && settled
        && let Ok(theirs_after) = trees::read(&theirs)
    {
        let lost = trees::lost(before, &ours_after, &theirs_after);
        if !lost.is_empty() {
            let more = format!("{did}-- lost:\n{}", lost.join("\n"));
            out.faults.push(("lost", story(&more)));
        }
    }
    if !out.faults.is_empty() {
        keep(&format!("f2fs-{seed}.img"), &device);
    }
    out
}

/// Whether the pack that counts has summaries of nodes although the volume was not unmounted. The kernel reads them;
/// fsck.f2fs 1.15 takes the place of all summaries from the flag of an unmount alone.
fn fast_boot(device: &MemoryDevice) -> bool {
    let flags = F2Volume::new(device.snapshot()).pack.checkpoint.flags();
    flags.contains(CheckpointFlags::FASTBOOT) && !flags.contains(CheckpointFlags::UMOUNT)
}

/// How the engine names the inodes whose contents the check said cannot be unpacked, or whose target is not there.
pub fn unreadable(report: &Report) -> Vec<String> {
    let name = |kind: &IssueKind| match kind {
        IssueKind::CompressContents { ino, .. } | IssueKind::SymlinkTarget { ino } => {
            Some(format!(": inode {ino}: "))
        }
        _ => None,
    };
    report.issues.iter().filter_map(|i| name(&i.kind)).collect()
}

/// Reads everything; what fails is a fault, unless it is of an inode in `told`.
fn reads(
    device: &MemoryDevice,
    told: &[String],
    story: &dyn Fn(&str) -> String,
    out: &mut Judgement,
) -> Option<Tree> {
    match trees::read(device) {
        Ok(mut tree) => {
            let known = |e: &String| told.iter().any(|name| e.contains(name));
            tree.errors.retain(|e| !known(e));
            if !tree.errors.is_empty() {
                let more = format!("-- engine:\n{}\n", tree.errors.join("\n"));
                out.faults.push(("engine", story(&more)));
            }
            Some(tree)
        }
        Err(e) => {
            out.faults
                .push(("engine refuses", story(&format!("-- engine: {e}\n"))));
            None
        }
    }
}
