//! Bounded black-box crash testing, after CrashMonkey and ACE (Mohan et al., OSDI 2018): not random workloads but *all*
//! short ones over a small alphabet, because most crash bugs need two or three operations on the same few names.
//!
//! A workload is a sequence of [`Op`](crate::script::Op)s, each followed by a [`Persist`](crate::script::Persist), the last one never by none. It runs on a small
//! volume with two directories and two files, on a recording device. Every position of the log since the mount is a
//! cut: with all that was written, and where several writes are not flushed yet, with some of them. Each image is held
//! against the durability model and the checker, as everywhere in this crate.
//!
//! Left out are workloads in which an operation has nothing to act on, and orders of two threads.

use crate::fresh;
use crate::plan::{Format, Plan, Rng};
use crate::script::Sequence;
use crate::verify::{self, Part};
use crate::workload::scripted_run;
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Workloads that ran.
    pub workloads: usize,
    /// Workloads in which an operation had nothing to act on.
    pub impossible: usize,
    /// Positions that were cut at.
    pub cuts: usize,
    /// Images that were verified.
    pub states: usize,
    /// Of them, images that e2fsck or fsck.f2fs looked at.
    pub outside: usize,
}

/// The plan of all workloads.
fn plan(format: Format) -> Plan {
    Plan {
        format,
        block_bytes: match format {
            Format::Ext4 => 1024,
            Format::F2fs => 4096,
        },
        ..Plan::small(1)
    }
}

/// Runs workloads on two threads, and verifies all crash images. Every `outside`th image is shown to the format's own
/// checker as well (0: none).
///
/// # Errors
/// All violations that were found, at most one for each workload.
pub fn run(format: Format, all: &[Sequence], outside: usize) -> Result<Done, String> {
    let plan = plan(format);
    let base = base_volume(&plan)?;
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(4);
    let work = || {
        let (mut done, mut violations) = (Done::default(), Vec::new());
        while let Some(sequence) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = one(&plan, &base, sequence, outside, &mut done) {
                violations.push(format!("{sequence:?}: {e}"));
            }
        }
        (done, violations)
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|t| t.join()).collect()
    });
    let (mut sum, mut violations) = (Done::default(), Vec::new());
    for part in parts {
        let (done, found) = part.map_err(|_| "a panic".to_owned())?;
        sum.workloads += done.workloads;
        sum.impossible += done.impossible;
        sum.cuts += done.cuts;
        sum.states += done.states;
        sum.outside += done.outside;
        violations.extend(found);
    }
    match violations.len() {
        0 => Ok(sum),
        n => {
            violations.truncate(20);
            Err(format!(
                "{n} workloads violate a promise ({sum:?}):\n{}",
                violations.join("\n")
            ))
        }
    }
}

/// The volume that workloads begin with.
fn base_volume(plan: &Plan) -> Result<MemoryDevice, String> {
    let fresh = fresh::fresh_volume(plan)?;
    let recording = Arc::new(RecordingDevice::new(&fresh));
    scripted_run(plan, &recording, &[], None)?;
    Ok(recording.live())
}

fn one(
    plan: &Plan,
    base: &MemoryDevice,
    sequence: &Sequence,
    outside: usize,
    done: &mut Done,
) -> Result<(), String> {
    let recording = Arc::new(RecordingDevice::new(base));
    let Some(ran) = scripted_run(plan, &recording, sequence, Some(base))? else {
        done.impossible += 1;
        return Ok(());
    };
    done.workloads += 1;
    let (first, last) = (ran.log.start, ran.log.end);
    let model: Vec<Part> = vec![ran.part];
    let mut rng = Rng::new(last as u64);
    for cut in first..=last {
        let pending = recording.pending_at(cut).len();
        let mut policies = vec![CrashPolicy::AllKept];
        // The last moment before a flush has all subsets of what is not flushed that the moments before it have.
        let ends_here = cut == last || recording.pending_at(cut + 1).len() < pending;
        if pending > 0 && ends_here {
            policies.push(CrashPolicy::NoneKept);
        }
        if pending > 1 && ends_here {
            policies.push(CrashPolicy::Random { seed: rng.next() });
            policies.push(CrashPolicy::AllBut(rng.below(pending as u64) as usize));
        }
        done.cuts += 1;
        for policy in policies {
            done.states += 1;
            let look = outside > 0 && done.states.is_multiple_of(outside);
            done.outside += usize::from(look);
            let image = recording.image_at(cut, policy);
            verify::verify(image, &model, cut, true, look)
                .map_err(|e| format!("cut {cut} of {first}..={last}, {policy:?}: {e}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Op, Persist};

    #[test]
    fn a_promise_that_is_not_kept_is_found() {
        // A volume that forgets what it promised: the images of a shorter workload against a longer one's model.
        let plan = plan(Format::Ext4);
        let base = base_volume(&plan).unwrap();
        let recording = Arc::new(RecordingDevice::new(&base));
        let sequence = [(Op::Create("/A/new"), Persist::Fsync)];
        let ran = scripted_run(&plan, &recording, &sequence, Some(&base))
            .unwrap()
            .unwrap();
        let last = ran.log.end;
        let model = vec![ran.part];
        let whole = recording.image_at(last, CrashPolicy::AllKept);
        assert!(verify::verify(whole, &model, last, true, false).is_ok());
        let forgotten = base.snapshot();
        assert!(verify::verify(forgotten, &model, last, true, false).is_err());
    }
}
