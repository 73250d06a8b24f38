//! The crash explorer: runs a seeded workload over a recording device, cuts the power at chosen points, and
//! holds every resulting image against docs/DURABILITY.md.
//!
//! * A [`Plan`] says what is run and on what; [`workload`] draws the operations and runs them through the vfs, keeping the model in step.
//! * [`model`] is the durability model: what the volume looked like after each operation, and from which log
//!   position on what was promised.
//! * [`verify`] mounts a crash image, walks it, and asks the model whether such a volume may exist; then the
//!   checker, and on a sample e2fsck, must find nothing.
//!
//! Everything is drawn from one seed, so that seed and commit replay a run: also where f2fs is worked on by several threads, which
//! take turns then, in debug builds ([`Plan::takes_turns`]). The device is filled with
//! [`STALE`] before the volume is made: a file that shows this byte shows a block's earlier owner.
//!
//! Not responsible for: recording and cutting, which is `device::sim::RecordingDevice`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod ace;
mod fresh;
#[cfg(test)]
mod in_turns;
pub mod model;
mod plan;
#[cfg(test)]
mod second_life;
pub mod verify;
pub mod workload;
#[cfg(test)]
mod written_ahead;

pub use plan::{Cleaning, F2fsSwitches, Format, Plan, Rng, Room};

use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use std::sync::Arc;

/// The byte that no operation writes: it was on the device before.
pub const STALE: u8 = 0xdb;

/// Which cuts are tried.
#[derive(Clone, Copy, Debug)]
pub enum Cuts {
    /// After every write and flush.
    All,
    /// So many, spread over the log by the seed.
    Sample(usize),
}

/// What an exploration did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    /// Operations that ran.
    pub operations: usize,
    /// Entries of the device's log.
    pub log: usize,
    /// Crash images that were verified.
    pub images: usize,
    /// Of them, images that e2fsck looked at too.
    pub e2fsck: usize,
    /// Files that mounts rolled forward.
    pub recovered: u64,
    /// Of the images, those cut once more during their recovery.
    pub nested: usize,
    /// Blocks of files and directories that cleaning moved.
    pub moved_data: u64,
    /// Nodes that cleaning moved.
    pub moved_nodes: u64,
    /// Nodes that were written before checkpoints, while operations went on.
    pub early_nodes: u64,
    /// Sections that were cleaned because there was no room to write.
    pub cleaned_by_writers: u64,
    /// Sections that a thread cleaned before there was none.
    pub cleaned_ahead: u64,
    /// Segments in use whose holes were filled.
    pub refilled: u64,
    /// Bytes of ranges that were copied.
    pub copied: u64,
    /// Direct writes for which blocks were at hand.
    pub preallocated: u64,
    /// Those finished by the thread that they landed in.
    pub finished_here: u64,
}

/// Runs a plan, then verifies crash images; goes on upon one of them as often as the plan says. `e2fsck_every`: every how many
/// images e2fsck is asked as well.
///
/// # Errors
/// The first image that breaks a promise: seed, cut, policy and what is wrong, in one text.
pub fn explore(plan: &Plan, cuts: Cuts, e2fsck_every: usize) -> Result<Explored, String> {
    let mut done = Explored::default();
    let mut base = fresh::fresh_volume(plan)?;
    for sequel in 0..=plan.sequels {
        let this = Plan {
            seed: plan.seed ^ ((sequel as u64) << 40),
            ..plan.without_others()
        };
        base = explore_one(&this, &base, sequel > 0, cuts, e2fsck_every, &mut done)
            .map_err(|e| format!("sequel {sequel}: {e}"))?;
    }
    Ok(done)
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
            done.recovered += verify::verify(image, &model, cut, plan.journal, e2fsck)
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

/// A crash during the recovery from the crash: the volume must come back all the same.
fn nested(
    image: &MemoryDevice,
    model: &[verify::Part],
    cut: usize,
    rng: &mut Rng,
) -> Result<(), String> {
    let recording = Arc::new(RecordingDevice::new(image));
    let device: SharedDevice = recording.clone();
    let volume = verify::mount(device)?;
    volume
        .unmount()
        .map_err(|e| format!("unmount after recovery: {e}"))?;
    drop(volume);
    let again = rng.below(recording.log_len() as u64 + 1) as usize;
    let policy = CrashPolicy::Random { seed: rng.next() };
    verify::verify(recording.image_at(again, policy), model, cut, true, false)
        .map(drop)
        .map_err(|e| format!("cut again in its recovery, at {again}, {policy:?}: {e}"))
}
