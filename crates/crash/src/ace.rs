//! Bounded black-box crash testing, after CrashMonkey and ACE (Mohan et al., OSDI 2018): not random workloads but *all*
//! short ones over a small alphabet, because most crash bugs need two or three operations on the same few names.
//!
//! A workload is a sequence of [`Op`]s, each followed by a [`Persist`], the last one never by none. It runs on a small
//! volume with two directories and two files, on a recording device. Every position of the log since the mount is a
//! cut: with all that was written, and where several writes are not flushed yet, with some of them. Each image is held
//! against the durability model and the checker, as everywhere in this crate.
//!
//! Left out are workloads in which an operation has nothing to act on, and orders of two threads.

use crate::verify::{self, Part};
use crate::workload::scripted_run;
use crate::{Format, Plan, Rng, fresh};
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice};
use blockwright_vfs::FallocMode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where in a file a write goes, and how many bytes it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At its beginning.
    Begin(usize),
    /// At its end.
    End(usize),
    /// At this offset.
    At(usize, usize),
}

/// An operation of the alphabet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are what their names say
pub enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Rmdir(&'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Write(&'static str, Place),
    DirectWrite(&'static str, Place),
    Truncate(&'static str, usize),
    /// From one block to another.
    Falloc(&'static str, FallocMode, u64, u64),
    SetXattr(&'static str, usize),
    RemoveXattr(&'static str),
    Chmod(&'static str, u32),
}

impl Op {
    /// What fsync is called on afterwards; its directory is the one whose names changed.
    #[must_use]
    pub fn file(&self) -> &'static str {
        match self {
            Op::Link(_, path) | Op::Rename(_, path) | Op::Exchange(_, path) => path,
            Op::Create(path) | Op::Mkdir(path) | Op::Rmdir(path) | Op::Unlink(path) => path,
            Op::Write(path, _) | Op::DirectWrite(path, _) | Op::Truncate(path, _) => path,
            Op::Falloc(path, ..) | Op::SetXattr(path, _) => path,
            Op::RemoveXattr(path) | Op::Chmod(path, _) => path,
        }
    }
}

/// How an operation is made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persist {
    /// Not at all.
    None,
    /// fsync of its file.
    Fsync,
    /// fdatasync of its file.
    Fdatasync,
    /// fsync of the directory that has its name.
    FsyncDir,
    /// sync of the volume.
    Sync,
}

impl Persist {
    /// All of them.
    pub const ALL: [Persist; 5] = [
        Persist::None,
        Persist::Fsync,
        Persist::Fdatasync,
        Persist::FsyncDir,
        Persist::Sync,
    ];
}

/// A workload.
pub type Sequence = Vec<(Op, Persist)>;

/// All operations.
#[must_use]
pub fn alphabet() -> Vec<Op> {
    use FallocMode::{Allocate, CollapseRange, InsertRange, PunchHole, ZeroRange};
    use Place::{At, Begin, End};
    vec![
        Op::Create("/A/new"),
        Op::Create("/A/foo"),
        Op::Create("/bar"),
        Op::Mkdir("/A/sub"),
        Op::Mkdir("/A/foo"),
        Op::Rmdir("/B"),
        Op::Link("/A/foo", "/B/link"),
        Op::Link("/bar", "/A/new"),
        Op::Unlink("/A/foo"),
        Op::Unlink("/bar"),
        Op::Rename("/A/foo", "/A/new"),
        Op::Rename("/A/foo", "/B/foo"),
        Op::Rename("/A/foo", "/bar"),
        Op::Rename("/bar", "/A/foo"),
        Op::Rename("/A/new", "/A/foo"),
        Op::Rename("/B", "/A/sub"),
        Op::Rename("/A", "/B"),
        Op::Exchange("/A/foo", "/bar"),
        Op::Write("/A/foo", Begin(700)),
        Op::Write("/A/foo", End(3000)),
        Op::Write("/A/foo", At(20_000, 300)),
        Op::Write("/A/new", Begin(5000)),
        Op::Write("/bar", At(4000, 1000)),
        Op::DirectWrite("/A/foo", Begin(1)),
        Op::DirectWrite("/A/foo", End(5000)),
        Op::DirectWrite("/A/new", Begin(9000)),
        Op::DirectWrite("/bar", At(8192, 4096)),
        Op::Truncate("/A/foo", 0),
        Op::Truncate("/A/foo", 1000),
        Op::Truncate("/A/foo", 9000),
        Op::Truncate("/bar", 0),
        Op::Falloc("/A/foo", Allocate { keep_size: false }, 0, 6),
        Op::Falloc("/A/foo", Allocate { keep_size: true }, 4, 12),
        Op::Falloc("/bar", PunchHole, 1, 3),
        Op::Falloc("/bar", ZeroRange { keep_size: false }, 2, 20),
        Op::Falloc("/bar", ZeroRange { keep_size: true }, 0, 2),
        Op::Falloc("/bar", CollapseRange, 1, 2),
        Op::Falloc("/bar", InsertRange, 1, 2),
        Op::SetXattr("/A/foo", 3),
        Op::SetXattr("/bar", 600),
        Op::RemoveXattr("/bar"),
        Op::Chmod("/A/foo", 0o640),
    ]
}

/// All workloads of so many operations: each operation but the last persisted in one of the given ways, the last in
/// one of the others than none.
#[must_use]
pub fn sequences(ops: usize, between: &[Persist]) -> Vec<Sequence> {
    let alphabet = alphabet();
    let mut all: Vec<Sequence> = vec![Vec::new()];
    for n in 0..ops {
        let last = n + 1 == ops;
        let ways = if last { &Persist::ALL[1..] } else { between };
        let longer = |s: &Sequence| {
            let mut out = Vec::new();
            for op in &alphabet {
                for way in ways {
                    out.push([&s[..], &[(*op, *way)]].concat());
                }
            }
            out
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// One workload of so many operations, drawn.
#[must_use]
pub fn drawn(ops: usize, seed: u64) -> Sequence {
    let alphabet = alphabet();
    let mut rng = Rng::new(seed ^ 0xace);
    (0..ops)
        .map(|n| {
            let first = usize::from(n + 1 == ops);
            let op = alphabet[rng.below(alphabet.len() as u64) as usize];
            let ways = &Persist::ALL[first..];
            (op, ways[rng.below(ways.len() as u64) as usize])
        })
        .collect()
}

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

    #[test]
    fn sequences_are_all_there_are() {
        let n = alphabet().len();
        assert_eq!(sequences(1, &[]).len(), n * 4);
        let two = sequences(2, &[Persist::None, Persist::Sync]);
        assert_eq!(two.len(), n * 2 * n * 4);
        assert!(two.iter().all(|s| s.len() == 2 && s[1].1 != Persist::None));
        assert_eq!(drawn(3, 9), drawn(3, 9));
        assert!((0..50).all(|seed| drawn(3, seed)[2].1 != Persist::None));
    }

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
