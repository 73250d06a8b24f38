//! Judging a damaged ext4 volume beside e2fsck.

use super::ext4::{Base, bases, chosen_bases, more_bases};
use super::kernel::{self, Mounted};
use super::lab::verdict::{e2fsck_clean, e2fsck_repaired_nothing, e2fsck_silent};
use super::lab::{Rng, repair, show, verify};
use super::tools::{self, Slot};
use super::trees::{self, Tree};
use super::{CHOSEN, Judgement, RARE, WAITING, cases, keep, volume_of};
use blockwright_check::Mode;
use blockwright_device::MemoryDevice;
use std::path::Path;

pub fn run(own: u64, once: &[u64]) {
    let mut bases = bases();
    let common = bases.len();
    let (rare, waiting): (Vec<_>, Vec<_>) = more_bases().into_iter().partition(Base::is_settled);
    let chosen = chosen_bases();
    let lists = [common, rare.len(), chosen.len(), waiting.len()];
    bases.extend(rare);
    bases.extend(chosen);
    let settled = bases.len();
    bases.extend(waiting);
    let before: Vec<Tree> = bases
        .iter()
        .map(|b| {
            let tree = trees::read(&MemoryDevice::from_image(&b.image)).expect("opens");
            assert!(tree.errors.is_empty(), "{}: {:?}", b.name, tree.errors);
            let report = verify(&b.image).expect("checked");
            assert!(report.is_clean(), "{}: {}", b.name, show(&report));
            tree
        })
        .collect();
    let dir = tools::scratch();
    let root = blockwright_oracles::is_root();
    if !root {
        eprintln!("the kernel is not asked: that takes root's privilege");
    }
    // Each base has its slot: so a case writes what it damaged, not a volume.
    let mut slots: Vec<Slot> = (0..bases.len())
        .map(|n| Slot::new(dir.path(), &format!("ext4-{n}.img")))
        .collect();
    // A kernel without casefolding, for one, mounts none of a base's images.
    let by_kernel: Vec<bool> = bases
        .iter()
        .zip(&mut slots)
        .zip(&before)
        .enumerate()
        .map(|(n, ((base, slot), before))| {
            slot.put(&base.image);
            // To mount one that waits changes it.
            let mounted = root
                && n < settled
                && Mounted::new(&slot.path, dir.path()).is_ok_and(|m| {
                    let other = kernel::differences(before, &m.read());
                    assert!(other.is_empty(), "{}: {}", base.name, other.join("\n"));
                    true
                });
            if root && !mounted && n < settled {
                eprintln!("the kernel does not mount {}", base.name);
            }
            mounted
        })
        .collect();
    cases("ext4", own, once, &[RARE, CHOSEN, WAITING], |seed| {
        let (n, round) = volume_of(seed, lists);
        // Mounting takes longer than all the rest: one round in ten.
        let kernel = by_kernel[n].then_some(Kernel {
            dir: dir.path(),
            repairs: round.is_multiple_of(10),
        });
        judge(seed, &bases[n], &before[n], &mut slots[n], kernel)
    });
}

/// How the kernel is asked.
#[derive(Clone, Copy)]
struct Kernel<'a> {
    /// Where it mounts.
    dir: &'a Path,
    /// Whether it reads what we repaired, too.
    repairs: bool,
}

/// What the kernel makes of a damaged image.
fn ask_the_kernel(before: &Tree, slot: &Slot, kernel: Option<Kernel<'_>>) -> String {
    let Some(kernel) = kernel else {
        return "-- the kernel was not asked\n".to_owned();
    };
    match Mounted::new(&slot.path, kernel.dir) {
        Ok(mounted) => {
            let other = kernel::differences(before, &mounted.read());
            format!("-- the kernel mounts it: {other:?}\n")
        }
        Err(e) => format!("-- the kernel refuses it: {e}\n"),
    }
}

/// Whether e2fsck calls a volume clean, its exit code, and what it said. Where `-n` failed at writing, the repair of a copy tells.
fn ask_e2fsck(slot: &mut Slot, image: &[u8]) -> (bool, i32, String) {
    slot.put(image);
    let (code, text) = tools::run("e2fsck", &["-fn"], &slot.path);
    if !text.contains("Error writing block") {
        return (e2fsck_clean(code, &text), code, text);
    }
    let (fixed, story) = tools::run("e2fsck", &["-fy"], &slot.path);
    slot.take();
    slot.put(image);
    let clean = e2fsck_repaired_nothing(fixed, &story);
    (clean, code, format!("{text}-- e2fsck -y {fixed}:\n{story}"))
}

/// Judges a case.
fn judge(
    seed: u64,
    base: &Base,
    before: &Tree,
    slot: &mut Slot,
    kernel: Option<Kernel<'_>>,
) -> Judgement {
    let mut rng = Rng::new(0xDA3A_6E00 + seed);
    let (image, what) = base.damage(&mut rng);
    let what = format!("[{}] {what}", base.name);
    let mut out = Judgement::default();
    let (theirs_clean, code, text) = ask_e2fsck(slot, &image);
    let ours = verify(&image);
    let said = match &ours {
        Ok(report) => show(report),
        Err(error) => format!("    {error}\n"),
    };
    let ours_clean = ours.as_ref().is_ok_and(|r| r.is_clean());
    let story =
        |more: &str| format!("{what}\n-- e2fsck -n {code}:\n{text}-- check -n:\n{said}{more}");
    out.verdict = match (ours_clean, theirs_clean) {
        (true, true) => "clean to both",
        (false, false) => "damaged to both",
        (true, false) => "clean to us alone",
        (false, true) => "clean to e2fsck alone",
    };
    // A log or an orphan that waits for a mount is damage to `e2fsck -n`, and a note here.
    let waits = seed >= WAITING;
    if waits {
        out.verdict = "waits";
    }
    if ours_clean != theirs_clean && !waits {
        let silent = ours.as_ref().ok().and_then(e2fsck_silent);
        match silent {
            Some(reason) if theirs_clean => out.excused = Some(reason),
            _ if text.contains("e2fsck: aborted") => out.excused = Some("e2fsck gives up"),
            _ if text.contains("Programming error?") => {
                out.excused =
                    Some("e2fsck finds no way to claim a bad block among reserved blocks");
            }
            _ if text.contains("Clearing fields beyond the V1") => {
                out.excused = Some("e2fsck repairs a head of version 1 without a question");
            }
            _ => out
                .faults
                .push(("verdict", story(&ask_the_kernel(before, slot, kernel)))),
        }
    }
    // What the checker calls clean the engine reads.
    if ours_clean {
        reads(&image, &story, &mut out);
        if !waits {
            return out;
        }
    }
    // Copy A is ours to repair, copy B theirs.
    let (report, after) = repair(&image, Mode::Yes);
    let report = match report {
        Ok(report) if !report.has_uncorrected() => report,
        Ok(report) => {
            out.verdict = "left";
            let left = format!("-- check -y left:\n{}", show(&report));
            out.faults.push(("left", story(&left)));
            return out;
        }
        Err(error) => {
            out.verdict = "refused";
            // A name that says nothing is no reason.
            assert!(error.to_string().len() > 20, "{error}");
            return out;
        }
    };
    let did = format!("-- check -y:\n{}", show(&report));
    match verify(&after) {
        Ok(again) if again.is_clean() => {}
        Ok(again) => {
            let more = format!("{did}-- then check -n:\n{}", show(&again));
            out.faults.push(("not clean to us", story(&more)));
        }
        Err(e) => out.faults.push(("not clean to us", story(&e.to_string()))),
    }
    let fixed = tools::run("e2fsck", &["-fy"], &slot.path);
    let theirs = slot.take();
    slot.put(&after);
    let (code_after, text_after) = tools::run("e2fsck", &["-fn"], &slot.path);
    if !e2fsck_clean(code_after, &text_after) {
        let more = format!("{did}-- then e2fsck -n {code_after}:\n{text_after}");
        out.faults.push(("not clean to e2fsck", story(&more)));
    }
    let told = |more: &str| story(&format!("{did}{more}"));
    let ours_after = reads(&after, &told, &mut out);
    if let (Some(kernel), Some(ours_after)) = (kernel.filter(|k| k.repairs), &ours_after) {
        match Mounted::new(&slot.path, kernel.dir) {
            Ok(mounted) => {
                let other = kernel::differences(ours_after, &mounted.read());
                if !other.is_empty() {
                    out.faults.push(("kernel", told(&other.join("\n"))));
                }
            }
            Err(e) => out.faults.push(("kernel refuses", told(&e))),
        }
    }
    // A repair of theirs that failed, or that the engine cannot read, shows nothing.
    if fixed.0 < 4
        && let Some(ours_after) = ours_after
        && let Ok(theirs_after) = trees::read(&MemoryDevice::from_image(&theirs))
    {
        let lost = trees::lost(before, &ours_after, &theirs_after);
        if !lost.is_empty() {
            let more = format!(
                "{did}-- e2fsck -y:\n{}-- lost:\n{}",
                fixed.1,
                lost.join("\n")
            );
            out.faults.push(("lost", story(&more)));
        }
    }
    if !out.faults.is_empty() {
        keep(
            &format!("ext4-{seed}.img"),
            &MemoryDevice::from_image(&image),
        );
    }
    out
}

/// Reads everything; what fails is a fault.
fn reads(image: &[u8], story: &dyn Fn(&str) -> String, out: &mut Judgement) -> Option<Tree> {
    match trees::read(&MemoryDevice::from_image(image)) {
        Ok(tree) => {
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
