//! Threads of a workload take turns, as the seed says: the same seed gives the same run, so a crash that breaks a promise can be
//! examined again.

use crate::explore::life;
use crate::explored::Explored;
use crate::plan::Plan;
use crate::{fresh, workload};
use blockwright_device::sim::recording::Action;
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What was done, where, how much, and a hash of the bytes.
type Entry = (&'static str, u64, u64, u64);

/// One life: the record of a run, and the volume that a crash at its end leaves.
fn live(plan: &Plan, base: &MemoryDevice, further: bool) -> (Vec<Entry>, MemoryDevice) {
    let recording = Arc::new(RecordingDevice::with_completions(base, plan.completions));
    let mut done = Explored::default();
    let before = further.then_some(base);
    let ran = workload::run(plan, &recording, before, &mut done);
    // Not dropped before the log is read.
    let _left = ran.unwrap_or_else(|e| panic!("{e}"));
    let log = recording.log();
    let entries = log.iter().map(|e| {
        let mut hasher = DefaultHasher::new();
        let what = match &e.action {
            Action::Write { data, .. } => {
                data.hash(&mut hasher);
                "write"
            }
            Action::WriteZeroes { .. } => "zeroes",
            Action::Discard { .. } => "discard",
            Action::Flush => "flush",
            Action::Marker(_) => "marker",
        };
        (what, e.offset.0, e.bytes(), hasher.finish())
    });
    let crash = CrashPolicy::Random { seed: plan.seed };
    (entries.collect(), recording.image_at(log.len(), crash))
}

/// Three lives, each upon the crash of the one before.
fn lives(plan: &Plan) -> Vec<Vec<Entry>> {
    let mut base = fresh::fresh_volume(&life(plan, 0)).expect("a volume");
    let mut logs = Vec::new();
    for number in 0..3 {
        let (log, crashed) = live(&life(plan, number), &base, number > 0);
        logs.push(log);
        base = crashed;
    }
    logs
}

/// Small volumes, full ones, sections of one and of two segments, both modes, small caches, quota.
#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "only locks of debug builds know of turns"
)]
fn a_seed_repeats_three_lives_of_several_threads() {
    if !blockwright_oracles::have(&["mkfs.f2fs"]) {
        return;
    }
    let seeds = match std::env::var("CRASH_TURNS") {
        Ok(text) => {
            let all = text.split(',').map(|seed| seed.parse().expect("a seed"));
            all.collect()
        }
        Err(_) => vec![1u64, 4, 8, 13, 142],
    };
    for seed in seeds {
        let plan = Plan::f2fs_in_turns(seed);
        let first = lives(&plan);
        assert!(first.iter().all(|log| log.len() > 50), "seed {seed}");
        let mut hasher = DefaultHasher::new();
        first.hash(&mut hasher);
        // The same in every process.
        println!("seed {seed}: {:016x}", hasher.finish());
        let again = lives(&plan);
        for (life, (first, again)) in first.iter().zip(&again).enumerate() {
            let same = first.iter().zip(again).take_while(|(a, b)| a == b).count();
            assert!(
                first == again,
                "seed {seed}, life {life}: after {same} entries of {} another run went on differently: {:?}, not {:?}",
                first.len(),
                again.get(same),
                first.get(same)
            );
        }
    }
}
