//! Runs a plan, cuts the record of its writes, and verifies what each cut leaves.

use crate::explored::Explored;
use crate::plan::{Plan, Rng};
use crate::verify::{Part, verify};
use crate::{fresh, mounted, workload};
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use std::sync::Arc;

/// Which cuts are tried.
#[derive(Clone, Copy, Debug)]
pub enum Cuts {
    /// After every write and flush.
    All,
    /// So many, spread over the log by the seed.
    Sample(usize),
}

/// Runs a plan, then verifies crash images; continues on one of them as often as the plan says. `e2fsck_every`: every how many
/// images e2fsck is asked as well.
///
/// # Errors
/// The first image that breaks a promise: seed, cut, policy and what is wrong, in one text.
pub fn explore(plan: &Plan, cuts: Cuts, e2fsck_every: usize) -> Result<Explored, String> {
    let mut done = Explored::default();
    let mut base = fresh::fresh_volume(plan)?;
    for sequel in 0..=plan.sequels {
        let this = life(plan, sequel);
        base = explore_one(&this, &base, sequel > 0, cuts, e2fsck_every, &mut done)
            .map_err(|e| format!("sequel {sequel}: {e}"))?;
    }
    Ok(done)
}

/// The plan of one life: the first is number 0.
pub(crate) fn life(plan: &Plan, number: usize) -> Plan {
    Plan {
        seed: plan.seed ^ ((number as u64) << 40),
        ..plan.without_others()
    }
}

/// Returns one of the crash images.
fn explore_one(
    plan: &Plan,
    base: &MemoryDevice,
    sequel: bool,
    cuts: Cuts,
    e2fsck_every: usize,
    done: &mut Explored,
) -> Result<MemoryDevice, String> {
    let recording = Arc::new(RecordingDevice::with_completions(base, plan.completions));
    let before = sequel.then_some(base);
    // The cuts are within this log. Dropped at the end, the volume writes behind them.
    let (model, _left) = workload::run(plan, &recording, before, done)?;
    let log = recording.log_len();
    let mut rng = Rng::new(plan.seed ^ 0xc4a5);
    let points: Vec<usize> = match cuts {
        Cuts::All => (0..=log).collect(),
        Cuts::Sample(n) => {
            let mut v: Vec<usize> = (0..n).map(|_| rng.below(log as u64 + 1) as usize).collect();
            v.push(log);
            v.sort_unstable();
            v.dedup();
            v
        }
    };
    done.operations += model.iter().map(|p| p.model.operations()).sum::<usize>();
    done.log += log;
    let chosen = points[rng.clone().below(points.len() as u64) as usize];
    for cut in points {
        let pending = recording.pending_at(cut).len();
        let mut policies = vec![
            CrashPolicy::AllKept,
            CrashPolicy::NoneKept,
            CrashPolicy::Random { seed: rng.next() },
            CrashPolicy::Random { seed: rng.next() },
        ];
        if pending > 0 {
            policies.push(CrashPolicy::AllBut(rng.below(pending as u64) as usize));
            policies.push(CrashPolicy::Only(rng.below(pending as u64) as usize));
            policies.push(CrashPolicy::Prefix(rng.below(pending as u64) as usize));
        } else {
            policies.truncate(1);
        }
        for policy in policies {
            let image = recording.image_at(cut, policy);
            let name = |image: &MemoryDevice| {
                let kept = keep(image);
                format!("{plan:?}: cut {cut} of {log}, {policy:?}{kept}")
            };
            done.images += 1;
            if plan.journal && done.images.is_multiple_of(7) {
                done.nested += 1;
                nested(&image, &model, cut, &mut rng)
                    .map_err(|e| format!("{}: {e}", name(&image)))?;
            }
            let e2fsck = e2fsck_every > 0 && done.images.is_multiple_of(e2fsck_every);
            done.e2fsck += usize::from(e2fsck);
            let crashed = image.snapshot();
            done.recovered += verify(image, &model, cut, plan.journal, e2fsck)
                .map_err(|e| format!("{}: {e}", name(&crashed)))?;
        }
    }
    let seed = rng.next();
    Ok(recording.image_at(chosen, CrashPolicy::Random { seed }))
}

/// Writes an image that breaks a promise where `CRASH_KEEP` says: workloads of several threads do not come again.
fn keep(image: &MemoryDevice) -> String {
    match std::env::var_os("CRASH_KEEP") {
        Some(path) => match image.save(std::path::Path::new(&path)) {
            Ok(()) => format!(", image in {}", path.display()),
            Err(e) => format!(", not kept: {e}"),
        },
        None => String::new(),
    }
}

/// A crash during the recovery from the crash: the volume must come back anyway.
fn nested(image: &MemoryDevice, model: &[Part], cut: usize, rng: &mut Rng) -> Result<(), String> {
    let recording = Arc::new(RecordingDevice::new(image));
    let device: SharedDevice = recording.clone();
    let volume = mounted::mount(device)?;
    volume
        .unmount()
        .map_err(|e| format!("unmount after recovery: {e}"))?;
    drop(volume);
    let again = rng.below(recording.log_len() as u64 + 1) as usize;
    let policy = CrashPolicy::Random { seed: rng.next() };
    verify(recording.image_at(again, policy), model, cut, true, false)
        .map(drop)
        .map_err(|e| format!("cut again in its recovery, at {again}, {policy:?}: {e}"))
}
